"""The names that Tab offers, at the prompt and in a shell: ops, types, passes, files and so on of the data folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from precision_tool.lib.cli.flags import Completion
from precision_tool.lib.compare.columns import METRIC_COLUMNS
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.io.layouts import known_layouts
from precision_tool.lib.session import Session

#: Names that no shell takes for anything else: neither an option, a home folder, a command, nor a pattern of files.
PLAIN = re.compile(r"(?!.*[=:]~)(?:\[[0-9]+\])?(?:[\w./:@%,][\w./:@%+,=~-]*)?")
#: What may be a file, or a folder, too: those of the data folder are offered first.
IN_FILES = ("graph", "tensor", "result", "file", "folder")
#: What `-alg` takes.
_METRICS = (*METRIC_COLUMNS, "all")
#: More offers than these nobody reads; and each costs the terminal time.
MAX_OFFERS = 100


@dataclass(frozen=True)
class Names:
    """Names to choose from, sorted, and the same as they are looked up: flat and in lower case."""

    names: Sequence[str]

    @cached_property
    def _flat(self) -> list[str]:
        return [flatten(name).lower() for name in self.names]

    def offers(self, text: str, limit: int = MAX_OFFERS) -> list[str]:
        """Return the names that start with `text`, else those that hold it, `/` and `_` alike, at most `limit`.

        Of too many the last is always among them: what the offers have in common is what all matches have in common.
        """
        prefix = flatten(text).lower()
        if not prefix:
            return _at_most(list(self.names), limit)
        pairs = list(zip(self.names, self._flat, strict=True))
        starting = [name for name, flat in pairs if flat.startswith(prefix)]
        return _at_most(starting or [name for name, flat in pairs if prefix in flat], limit)


def _at_most(names: list[str], limit: int) -> list[str]:
    return names if len(names) <= limit else [*names[: limit - 1], names[-1]]


class Offers:
    """What is offered for the arguments of each kind; names are looked up again when the data changes."""

    def __init__(self) -> None:
        self._tensors: tuple[tuple[Sequence[str], ...], Sequence[str]] = ((), ())
        self._names: dict[Completion, tuple[Sequence[str], Names]] = {}

    def of(self, session: Session, kind: Completion, text: str) -> list[str]:
        """Return the names of one kind that hold `text`; none for plain files and folders."""
        sources: dict[Completion, Callable[[], Sequence[str]]] = {
            "op": session.names.op_names,
            "op_type": session.names.op_types,
            "pass": session.names.pass_names,
            "kernel": session.names.kernel_names,
            "graph": session.names.graph_paths,
            "result": session.names.result_paths,
            "tensor": lambda: self._tensor_names(session),
            "metric": lambda: _METRICS,
            "layout": known_layouts,
        }
        if kind not in sources:
            return []
        names = sources[kind]()
        cached = self._names.get(kind)
        if cached is None or cached[0] is not names:
            cached = self._names[kind] = names, Names(names)
        before, comma, last = text.rpartition(",") if kind == "metric" else ("", "", text)
        return [before + comma + name for name in cached[1].offers(last)]

    def _tensor_names(self, session: Session) -> Sequence[str]:
        parts = (session.names.op_names(), session.names.dump_file_names(), session.names.golden_file_names())
        if len(parts) != len(self._tensors[0]) or any(a is not b for a, b in zip(parts, self._tensors[0], strict=True)):
            self._tensors = parts, tuple(chain(*parts))
        return self._tensors[1]
