"""Two graphs beside each other, grouped: what fusion did, what only one has, what differs in ops of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from precision_tool.lib.checks.similarity import OpDifference, Similarity, compare_graphs
from precision_tool.lib.formats.fusion_passes import is_switchable
from precision_tool.lib.formats.fusion_switch import Switches
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.wording import NO_PASS
from precision_tool.lib.pairing.fusion_pair import Fusion

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
    """Compares two graphs op by op and groups what differs."""
    similarity = compare_graphs(left, right)
    ops = {side: {op.name: op for op in file.ops} for side, file in (("left", left), ("right", right))}
    only = {"left": set(similarity.only_left), "right": set(similarity.only_right)}
    fused: list[FusedGroup] = []
    explained: dict[str, set[str]] = {"left": set(), "right": set()}
    for side, other in (("left", "right"), ("right", "left")):
        groups: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for name in similarity.only_left if side == "left" else similarity.only_right:
            op = ops[side][name]
            originals = tuple(dict.fromkeys(one for one in op.original_names or () if one in only[other]))
            if not originals:
                continue
            explained[side].add(name)
            explained[other].update(originals)
            groups.setdefault(", ".join(op.pass_names) or NO_PASS, []).append((name, originals))
        fused += [FusedGroup(pass_name=name, side=side, ops=tuple(found)) for name, found in groups.items()]
    passes = Fusion(left).passes, Fusion(right).passes
    found = [*similarity.differences, *_put_out(left, ops["right"], only["left"], True)]
    found += _put_out(right, ops["left"], only["right"], False)
    relaid = {one.op_name for one in found if one.what == "output layout"}
    # In another layout the stored shape is another as well.
    differences = [one for one in found if one.what != "output shape" or one.op_name not in relaid]
    return GraphDiff(
        similarity=similarity,
        passes=tuple(
            PassDiff(
                name=name,
                left=passes[0][name],
                right=passes[1][name],
                is_switchable=is_switchable(name),
                is_off=None if switches is None or (on := switches.told(name)) is None else not on,
            )
            for name in sorted(passes[0] | passes[1], key=lambda name: (-abs(passes[0][name] - passes[1][name]), name))
        ),
        fused=tuple(fused),
        only_left=_by_type(similarity.only_left, ops["left"], explained["left"]),
        only_right=_by_type(similarity.only_right, ops["right"], explained["right"]),
        differences=_grouped(
            differences,
            key=lambda one: (one.what, *_shortened(one.what, one.left, one.right)),
            name=lambda one: one.op_name,
        ),
    )


def _put_out(file: GraphFile, others: Mapping[str, Op], only: set[str], is_left: bool) -> Iterator[OpDifference]:
    """What differs between the output of a fused op and that of the op it stands for in the other graph."""
    for op in file.ops:
        desc = op.output_descs[0] if op.output_descs else None
        other = others.get(desc.dump_origin_name or "") if desc is not None and op.name in only else None
        index = (desc.dump_origin_index or 0) if desc is not None else 0
        if desc is None or other is None or index >= len(other.output_descs):
            continue
        theirs = other.output_descs[index]
        for what, mine, its in (
            ("output dtype", desc.dtype, theirs.dtype),
            ("output layout", desc.layout, theirs.layout),
            ("output shape", str(list(desc.shape)), str(list(theirs.shape))),
        ):
            if mine != its:
                left, right = (mine, its) if is_left else (its, mine)
                yield OpDifference(op_name=op.name, what=what, left=left, right=right)


def _by_type(names: Iterable[str], ops: Mapping[str, Op], explained: set[str]) -> tuple[Group, ...]:
    left = [name for name in names if name not in explained]
    return _grouped(left, key=lambda name: (ops[name].type, "", ""), name=lambda name: name)


def _shortened(what: str, left: str, right: str) -> tuple[str, str]:
    """What is different for every op (its inputs) makes one group."""
    return ("", "") if what == "inputs" else (left, right)


def _grouped(
    items: Iterable[T], key: Callable[[T], tuple[str, str, str]], name: Callable[[T], str]
) -> tuple[Group, ...]:
    """The items by what they have in common, most common first."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        found.setdefault(key(item), []).append(name(item))
    counts = Counter({one: len(names) for one, names in found.items()})
    return tuple(
        Group(what=one[0], left=one[1], right=one[2], ops=tuple(found[one])) for one, _ in counts.most_common()
    )
