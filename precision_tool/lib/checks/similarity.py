"""How alike the graphs of two runs are: ops in both, ops in one only, and what differs in ops of the same name.

The similarity is the share of ops that have a partner of the same name and type in the other graph: 2 x (ops with a
partner) / (ops of one graph + ops of the other). Ops that the compiler put in (Cast, TransData) are numbered anew in
every graph, so their names mean nothing: they are paired by type alone, and what they pass on is looked at instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from precision_tool.lib.checks.missing import no_graph
from precision_tool.lib.compare.known import KnownValues
from precision_tool.lib.graph.catalog import MissingGraph, RunGraph
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind, Grade
from precision_tool.lib.model.graph import Edge, GraphFile, Op
from precision_tool.lib.model.reason import joined

NAME = "graph_similarity"
#: Ops put in one after the other that a walk back to what they pass on goes through at most.
_MAX_STEPS = 64
#: Names and differences that the finding shows.
_SHOWN = 5


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
        reasons = joined(tuple(map(no_graph, unseen)))
        return CheckResult(name=NAME, skipped=Message("check.graph_similarity.two_graphs", only=only, missing=reasons))
    graphs = tuple(_closest(run.file, right) for run in left)
    total = sum(graph.left_ops + graph.right_ops for graph in graphs)
    share = sum(2 * graph.alike for graph in graphs) / total if total else 1.0
    finding = Finding(
        kind=FindingKind.GRAPH_SIMILARITY,
        grade=Grade.INFO,
        message=Message("finding.similarity", share=share),
        facts=tuple(fact for graph in graphs for fact in _facts(graph)),
    )
    sizes = tuple(
        Message("check.graph_similarity.sizes", left=graph.left_ops, right=graph.right_ops) for graph in graphs
    )
    looked_at = Message("check.graph_similarity.looked_at", sizes=sizes)
    return CheckResult(name=NAME, finding=finding, looked_at=looked_at, details=graphs)


def _facts(graph: Similarity) -> Iterator[Fact]:
    differing = len({difference.op_name for difference in graph.differences})
    yield Fact(
        Message("finding.label.in_both"), Message("finding.fact.in_both", ops=graph.in_both, differing=differing)
    )
    yield Fact(Message("finding.label.only", run=0), _named(graph.only_left))
    yield Fact(Message("finding.label.only", run=1), _named(graph.only_right))
    for name, count in graph.fused_away[:_SHOWN]:
        fused = Message("finding.fact.fused_away", pass_name=name, ops=count)
        yield Fact(Message("finding.label.fused_away"), fused)
    if graph.inserted:
        inserted = tuple(f"{name} {left} / {right}" for name, left, right in graph.inserted)
        yield Fact(Message("finding.label.inserted"), Message("finding.fact.inserted", types=inserted))
    kinds = Counter(difference.what for difference in graph.differences)
    if kinds:
        counts = tuple(f"{what}: {count}" for what, count in kinds.most_common())
        yield Fact(Message("finding.label.differ_in"), Message("finding.fact.list", items=counts))
    for difference in graph.differences[:_SHOWN]:
        first = Message(
            "finding.fact.difference",
            op_name=difference.op_name,
            what=difference.what,
            left=difference.left or Message("finding.none"),
            right=difference.right or Message("finding.none"),
        )
        yield Fact(Message("finding.label.first"), first)


def _named(names: Sequence[str]) -> Message:
    return Message("finding.fact.only", count=len(names), names=names) if names else Message("finding.none")


def _closest(file: GraphFile, others: Sequence[RunGraph]) -> Similarity:
    names = {op.name for op in file.ops}
    best = max(others, key=lambda run: sum(op.name in names for op in run.file.ops) / max(len(run.file.ops), 1))
    return compare_graphs(file, best.file)
