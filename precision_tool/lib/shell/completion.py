"""What Tab offers: pure functions from what is typed and what there is to what may be meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from precision_tool.lib.sources.names import flatten

#: More than these nobody reads; and each costs the terminal time.
LIMIT = 100


@dataclass(frozen=True)
class Names:
    """Names to choose from, sorted, and the same as they are looked up: flat and in lower case."""

    names: Sequence[str]

    @cached_property
    def _flat(self) -> list[str]:
        return [flatten(name).lower() for name in self.names]

    def offers(self, text: str, limit: int = LIMIT) -> list[str]:
        """The names that start with `text`, else those that hold it, `/` and `_` alike, at most `limit`.

        Of too many the last is always among them: what the offers have in common is what all matches have in common.
        """
        wanted = flatten(text).lower()
        if not wanted:
            return _at_most(list(self.names), limit)
        pairs = list(zip(self.names, self._flat, strict=True))
        starting = [name for name, flat in pairs if flat.startswith(wanted)]
        return _at_most(starting or [name for name, flat in pairs if wanted in flat], limit)


def _at_most(names: list[str], limit: int) -> list[str]:
    return names if len(names) <= limit else [*names[: limit - 1], names[-1]]
