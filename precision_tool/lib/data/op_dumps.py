"""The dump of an op of the graph, also where file names do not tell two ops apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpedOp, DumpIndex
from precision_tool.lib.model.graph import Op


class OpDumps:
    """The dumped tensors of the ops of one graph file, looked up among the dumps of a leaf.

    Ops whose names are spelled alike in file names are told apart by the names inside the files. Ops of one name, in
    two subgraphs, are told apart by the order of their tasks, which is that in which they run.
    """

    def __init__(self, dumps: DumpIndex, ops: Sequence[Op]) -> None:
        """`ops` are those of the graph file in the order in which they run."""
        self._dumps = dumps
        self._alike = alike(op.name for op in ops)
        places: dict[str, list[int]] = {}
        for op in ops:
            places.setdefault(op.name, []).append(id(op))
        self._repeated = {name: ids for name, ids in places.items() if len(ids) > 1}

    def find(self, op: Op) -> DumpedOp | None:
        """The op's dump, None if there is none."""
        name = flatten(op.name)
        if name not in self._dumps:
            return None
        places = self._repeated.get(op.name)
        if op.name in self._alike:
            return self._dumps.op_by_header(name, op.name)
        if places is None:
            return self._dumps.op(name)
        return self._dumps.op_of_several(name, places.index(id(op)), len(places))

    def is_repeated(self, op: Op) -> bool:
        """Return whether several ops of the file have its name."""
        return op.name in self._repeated

    def has(self, op: Op) -> bool:
        """Return whether the op has a dump; files are opened only where their names are ambiguous."""
        return flatten(op.name) in self._dumps and (op.name not in self._alike or self.find(op) is not None)

    def timestamp(self, op: Op) -> int:
        """When the newest dump of an op that has one was made."""
        if op.name not in self._alike and op.name not in self._repeated:
            return self._dumps.timestamp(flatten(op.name))
        dump = self.find(op)
        return 0 if dump is None else dump.timestamp


def alike(names: Iterable[str]) -> frozenset[str]:
    """The names among `names` that another of them is flattened to the same text as."""
    by_flat: dict[str, set[str]] = {}
    for name in names:
        by_flat.setdefault(flatten(name), set()).add(name)
    return frozenset(name for spelled in by_flat.values() if len(spelled) > 1 for name in spelled)
