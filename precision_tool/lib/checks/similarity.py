"""How alike the graphs of two runs are: ops in both, ops in one only, and what differs in ops of the same name.

The similarity is the share of ops that have a partner of the same name and type in the other graph: 2 x (ops with a
partner) / (ops of one graph + ops of the other). Ops that the compiler put in (Cast, TransData) are numbered anew in
every graph, so their names mean nothing: they are paired by type alone, and what they pass on is looked at instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precision_tool.lib.checks.missing import NotOneGraphEach
from precision_tool.lib.compare.known import KnownValues
from precision_tool.lib.graph.catalog import MissingGraph, RunGraph
from precision_tool.lib.model.finding import CheckResult, Evidence, Finding, FindingKind, Grade
from precision_tool.lib.model.graph import Edge, GraphFile, Op

NAME = "graph_similarity"
#: Ops put in one after the other that a walk back to what they pass on goes through at most.
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDifference:
    """An op of both graphs in which something differs: `what` with its values there and here."""

    op_name: str
    what: str
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """Two graphs beside each other.

    `inserted` counts by type the ops that the compiler put in, left and right; all else is of the other ops.
    `fused_away` counts, by pass, ops of the right graph that an op of the left one, made by that pass, stands for.
    """

    left: str
    right: str
    left_ops: int
    right_ops: int
    in_both: int
    alike: int
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    differences: tuple[OpDifference, ...]
    fused_away: tuple[tuple[str, int], ...]
    inserted: tuple[tuple[str, int, int], ...]

    @property
    def share(self) -> float:
        """The similarity, 0 to 1."""
        total = self.left_ops + self.right_ops
        return 2 * self.alike / total if total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphsCompared(Evidence):
    """The graphs of one run, each beside the one of the other run that is most like it."""

    graphs: tuple[Similarity, ...]

    @property
    def share(self) -> float:
        """The similarity of all of them, 0 to 1."""
        total = sum(one.left_ops + one.right_ops for one in self.graphs)
        return sum(2 * one.alike for one in self.graphs) / total if total else 1.0


def compare_graphs(left: GraphFile, right: GraphFile) -> Similarity:
    """Compares two graphs by the names of their ops."""
    views = _View(left), _View(right)
    ops, others = views[0].named, views[1].named
    both = [name for name in ops if name in others]
    only_right = tuple(name for name in others if name not in ops)
    counts = [Counter(op.type for op in view.inserted) for view in views]
    return Similarity(
        left=left.path,
        right=right.path,
        left_ops=len(left.ops),
        right_ops=len(right.ops),
        in_both=len(both),
        alike=sum(ops[name].type == others[name].type for name in both) + (counts[0] & counts[1]).total(),
        only_left=tuple(name for name in ops if name not in others),
        only_right=only_right,
        differences=tuple(found for name in both for found in _differences(name, *views)),
        fused_away=_fused_away(left, set(only_right)),
        inserted=tuple((name, counts[0][name], counts[1][name]) for name in sorted(counts[0] | counts[1])),
    )


class _View:
    """The ops of a graph by name, those that the compiler put in apart."""

    def __init__(self, file: GraphFile) -> None:
        self.inserted = [op for op in file.ops if op.original_names == ()]
        self.named: dict[str, Op] = {}
        for op in file.ops:
            if op.original_names != ():
                self.named.setdefault(op.name, op)
        self._home = {id(op): graph for graph in file.graphs for op in graph.ops}

    def fed(self, op: Op) -> str:
        """What an op is fed, as tensors of the training script where the graph tells them."""
        return ", ".join("-" if edge is None else self._source(op, edge) for edge in op.inputs)

    def _source(self, op: Op, edge: Edge) -> str:
        by_name = self._home[id(op)].by_name
        for _ in range(_MAX_STEPS):
            producer = by_name.get(edge.producer)
            if producer is None:
                break
            if producer.original_names != () or not producer.inputs or producer.inputs[0] is None:
                desc = producer.output_descs[edge.index] if edge.index < len(producer.output_descs) else None
                if desc is not None and desc.dump_origin_name:
                    return f"{desc.dump_origin_name}:{desc.dump_origin_index or 0}"
                if producer.original_names == ():
                    return f"a {producer.type} of the compiler"  # whose name is another in every graph
                break
            edge = producer.inputs[0]
        return f"{edge.producer}:{edge.index}"


def _differences(name: str, *views: _View) -> list[OpDifference]:
    left, right = (view.named[name] for view in views)
    if left.type != right.type:  # all else follows from that
        return [OpDifference(op_name=name, what="type", left=left.type, right=right.type)]
    sides = [_described(view.named[name], view) for view in views]
    return [
        OpDifference(op_name=name, what=what, left=sides[0][what], right=sides[1][what])
        for what in sides[0]
        if sides[0][what] != sides[1][what]
    ]


def _described(op: Op, view: _View) -> dict[str, str]:
    descs = op.output_descs
    return {
        "output dtype": ", ".join(desc.dtype for desc in descs),
        "output layout": ", ".join(desc.layout for desc in descs),
        "output shape": ", ".join(str(list(desc.shape)) for desc in descs),
        "inputs": view.fed(op),
        "passes": ", ".join(op.pass_names),
    }


def _fused_away(left: GraphFile, only_right: set[str]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for op in left.ops:
        gone = only_right.intersection(op.original_names or ())
        for name in op.pass_names:
            counts[name] += len(gone)
    return tuple((name, count) for name, count in counts.most_common() if count)


def check_similarity(
    runs: Sequence[RunGraph], missing: Sequence[MissingGraph] = (), known: Mapping[str, KnownValues] | None = None
) -> CheckResult:
    """The graphs of debug_0 beside those of debug_1 that are most like them."""
    left, right = ([run for run in runs if run.number == number] for number in (0, 1))
    if not left or not right:
        only = next((number for number, found in ((0, left), (1, right)) if found), None)
        unseen = tuple(one for one in missing if one.number in (0, 1))
        return CheckResult(name=NAME, skipped=NotOneGraphEach(only=only, missing=unseen))
    found = [_closest(run.file, right) for run in left]
    evidence = GraphsCompared(graphs=tuple(found))
    finding = Finding(kind=FindingKind.GRAPH_SIMILARITY, grade=Grade.INFO, evidence=evidence)
    return CheckResult(name=NAME, finding=finding, details=evidence.graphs)


def _closest(file: GraphFile, others: Sequence[RunGraph]) -> Similarity:
    names = {op.name for op in file.ops}
    best = max(others, key=lambda run: sum(op.name in names for op in run.file.ops) / max(len(run.file.ops), 1))
    return compare_graphs(file, best.file)
