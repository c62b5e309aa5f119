"""The pairs of single ops, matched as the comparison of all of them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from precision_tool.lib.errors import DataNotFoundError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.lookup import FoundOp
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.pairing.inserted import counterparts
from precision_tool.lib.pairing.match import GraphMatcher
from precision_tool.lib.pairing.match_names import Counterpart, match_name, same_name
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpIndex, GoldenDumps, GoldenFiles, NoBenchmark
from precision_tool.lib.sources.inputs import golden_leaf, own_benchmark
from precision_tool.lib.sources.names import flatten


class OpPairs:
    """Pairs single ops of one leaf as `vc` would with all of them."""

    def __init__(
        self,
        run: RunGraph,
        golden: GoldenFiles | Run | None,
        leaves: Sequence[DumpLeaf],
        graphs: Callable[[], Sequence[RunGraph]],
    ) -> None:
        assert run.leaf is not None
        self._of = (run.leaf, run.file, run.is_named, golden)
        self._dumps = DumpIndex(run.leaf)
        self._other: GoldenDumps | None = None
        side: BenchmarkSide = NoBenchmark()
        if isinstance(golden, Run):
            position = next((at for at, leaf in enumerate(leaves) if leaf.path == run.leaf.path), 0)
            with suppress(DataNotFoundError):  # the other run has no such step
                side = self._other = GoldenDumps(golden_leaf(golden, run.leaf, position, len(leaves)))
        elif golden is not None:
            side = own_benchmark(golden, run.leaf, len(leaves))
        self._side = side
        # Two runs are matched by the names of ops, unless a graph is asked for.
        by_name = self._other is not None and not run.is_named
        self._counterpart: Counterpart = same_name
        if by_name and self._other is not None:
            path = self._other.root
            for one in graphs():
                if path in (leaf.path for leaf in one.leaves):
                    self._counterpart = counterparts(run.file, one.file).of
        self._by_graph = None if by_name else GraphMatcher(self._dumps, run.file, side)

    def is_for(self, run: RunGraph, golden: GoldenFiles | Run | None) -> bool:
        """True if nothing of what it was made of was read again since."""
        leaf, file, is_named, side = self._of
        return leaf is run.leaf and file is run.file and is_named == run.is_named and side is golden

    def pairs_of(self, found: FoundOp, looks_again: bool) -> tuple[Pair, ...]:
        """The pairs of one op, of the files as they are now: they may be written anew while a prompt is open."""
        if looks_again:
            self._dumps.forget_changed()
            self._side.forget_changed()
        if self._by_graph is not None:
            return self._by_graph.pairs_of(found.op)
        other = None if self._other is None else self._other.index
        return match_name(flatten(found.op.name), self._dumps, self._side, other, self._counterpart)
