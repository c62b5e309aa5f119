"""How alike the graphs of two runs are: ops in both, ops in one only, and what differs in ops of the same name.

The similarity is the share of ops that have a partner of the same name and type in the other graph: 2 x (ops with a
partner) / (ops of one graph + ops of the other). Ops that the compiler put in (Cast, TransData) are numbered anew in
every graph, so their names mean nothing: they are paired by type alone, and what they pass on is looked at instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from precision_tool.lib.compare.run_values import KnownValues
from precision_tool.lib.data.fusion_pair import Fusion
from precision_tool.lib.data.graph_catalog import MissingGraph, RunGraph
from precision_tool.lib.diagnose.agreement import no_graph
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.io.fusion_switch import Switches
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind, Grade, joined
from precision_tool.lib.model.graph import Edge, GraphFile, Op
from precision_tool.lib.model.wording import NO_PASS

NAME = "graph_similarity"
#: Ops put in one after the other that a walk back to what they pass on goes through at most.
_MAX_STEPS = 64
#: Names and differences that the finding shows.
_MAX_LISTED = 5


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
    """Compare two graphs by the names of their ops."""
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
        differences=tuple(difference for name in both for difference in _differences(name, *views)),
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

    def inputs_of(self, op: Op) -> str:
        """Return the inputs of an op, as tensors of the training script where the graph tells them."""
        return ", ".join("-" if edge is None else self._source(op, edge) for edge in op.inputs)

    def _source(self, op: Op, edge: Edge) -> str:
        by_name = self._home[id(op)].by_name
        for _ in range(_MAX_STEPS):
            producer = by_name.get(edge.producer)
            if producer is None:
                break
            if producer.original_names != () or not producer.inputs or producer.inputs[0] is None:
                desc = producer.output_desc(edge.index)
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
        "inputs": view.inputs_of(op),
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
    runs: Sequence[RunGraph], missing: Sequence[MissingGraph] = (), cached: Mapping[str, KnownValues] | None = None
) -> CheckResult:
    """Compare the graphs of debug_0 with those of debug_1 that are most like them."""
    left, right = ([run for run in runs if run.number == number] for number in (0, 1))
    if not left or not right:
        only = next((number for number, has_graph in ((0, left), (1, right)) if has_graph), None)
        unseen = tuple(item for item in missing if item.number in (0, 1))
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
    for name, count in graph.fused_away[:_MAX_LISTED]:
        fused = Message("finding.fact.fused_away", pass_name=name, ops=count)
        yield Fact(Message("finding.label.fused_away"), fused)
    if graph.inserted:
        inserted = tuple(f"{name} {left} / {right}" for name, left, right in graph.inserted)
        yield Fact(Message("finding.label.inserted"), Message("finding.fact.inserted", types=inserted))
    kinds = Counter(difference.what for difference in graph.differences)
    if kinds:
        counts = tuple(f"{what}: {count}" for what, count in kinds.most_common())
        yield Fact(Message("finding.label.differ_in"), Message("finding.fact.list", items=counts))
    for difference in graph.differences[:_MAX_LISTED]:
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


# --- differences of two graphs, grouped ---


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDiff:
    """A pass, and how many ops it made in either graph. `is_off` is what the switch file says, None without one."""

    name: str
    left: int
    right: int
    is_switchable: bool
    is_off: bool | None

    @property
    def is_gone(self) -> bool:
        """True if just one of the graphs has it."""
        return not (self.left and self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGroup:
    """Ops of one graph that stand for ops which the other has: (fused op, its original ops)."""

    pass_name: str
    side: str
    ops: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ops that have something in common: what is only on one side, or differs."""

    what: str
    left: str
    right: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDiff:
    """The differences of two graphs. `only` has the ops that no fusion explains, by type and side."""

    similarity: Similarity
    passes: tuple[PassDiff, ...]
    fused: tuple[FusedGroup, ...]
    only_left: tuple[Group, ...]
    only_right: tuple[Group, ...]
    differences: tuple[Group, ...]

    @property
    def is_same(self) -> bool:
        """True if nothing differs but, at most, the ops the compiler put in."""
        return not (self.fused or self.only_left or self.only_right or self.differences)


def diff_graphs(left: GraphFile, right: GraphFile, switches: Switches | None = None) -> GraphDiff:
    """Compare two graphs op by op and groups what differs."""
    similarity = compare_graphs(left, right)
    ops = {side: {op.name: op for op in file.ops} for side, file in (("left", left), ("right", right))}
    only = {"left": set(similarity.only_left), "right": set(similarity.only_right)}
    fused: list[FusedGroup] = []
    explained: dict[str, set[str]] = {"left": set(), "right": set()}
    for side, other in (("left", "right"), ("right", "left")):
        groups: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for name in similarity.only_left if side == "left" else similarity.only_right:
            op = ops[side][name]
            originals = tuple(
                dict.fromkeys(original for original in op.original_names or () if original in only[other])
            )
            if not originals:
                continue
            explained[side].add(name)
            explained[other].update(originals)
            groups.setdefault(", ".join(op.pass_names) or NO_PASS, []).append((name, originals))
        fused += [FusedGroup(pass_name=name, side=side, ops=tuple(members)) for name, members in groups.items()]
    passes = Fusion(left).passes, Fusion(right).passes
    members = [*similarity.differences, *_put_out(left, ops["right"], only["left"], True)]
    members += _put_out(right, ops["left"], only["right"], False)
    relaid = {difference.op_name for difference in members if difference.what == "output layout"}
    # In another layout the stored shape is another as well.
    differences = [
        difference for difference in members if difference.what != "output shape" or difference.op_name not in relaid
    ]
    return GraphDiff(
        similarity=similarity,
        passes=tuple(
            PassDiff(
                name=name,
                left=passes[0][name],
                right=passes[1][name],
                is_switchable=is_switchable(name),
                is_off=None if switches is None or (on := switches.state_of(name)) is None else not on,
            )
            for name in sorted(passes[0] | passes[1], key=lambda name: (-abs(passes[0][name] - passes[1][name]), name))
        ),
        fused=tuple(fused),
        only_left=_by_type(similarity.only_left, ops["left"], explained["left"]),
        only_right=_by_type(similarity.only_right, ops["right"], explained["right"]),
        differences=_grouped(
            differences,
            key=lambda difference: (difference.what, *_shortened(difference.what, difference.left, difference.right)),
            name=lambda difference: difference.op_name,
        ),
    )


def _put_out(file: GraphFile, others: Mapping[str, Op], only: set[str], is_left: bool) -> Iterator[OpDifference]:
    """Yield differences between the output of a fused op and that of the op it replaces in the other graph."""
    for op in file.ops:
        desc = op.output_desc()
        other = others.get(desc.dump_origin_name or "") if desc is not None and op.name in only else None
        index = (desc.dump_origin_index or 0) if desc is not None else 0
        if desc is None or other is None or index >= len(other.output_descs):
            continue
        other_desc = other.output_descs[index]
        for what, own, its in (
            ("output dtype", desc.dtype, other_desc.dtype),
            ("output layout", desc.layout, other_desc.layout),
            ("output shape", str(list(desc.shape)), str(list(other_desc.shape))),
        ):
            if own != its:
                left, right = (own, its) if is_left else (its, own)
                yield OpDifference(op_name=op.name, what=what, left=left, right=right)


def _by_type(names: Iterable[str], ops: Mapping[str, Op], explained: set[str]) -> tuple[Group, ...]:
    left = [name for name in names if name not in explained]
    return _grouped(left, key=lambda name: (ops[name].type, "", ""), name=lambda name: name)


def _shortened(what: str, left: str, right: str) -> tuple[str, str]:
    """Return the values by which differences are grouped: inputs, which differ for every op, make one group."""
    return ("", "") if what == "inputs" else (left, right)


def _grouped(
    items: Iterable[T], key: Callable[[T], tuple[str, str, str]], name: Callable[[T], str]
) -> tuple[Group, ...]:
    """Return the items by what they have in common, most common first."""
    names_by_key: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        names_by_key.setdefault(key(item), []).append(name(item))
    counts = Counter({group: len(names) for group, names in names_by_key.items()})
    return tuple(
        Group(what=group[0], left=group[1], right=group[2], ops=tuple(names_by_key[group]))
        for group, _ in counts.most_common()
    )
