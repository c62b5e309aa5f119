"""Which tensors of the ranks of one run belong to which of another run that was split otherwise, and how they may.

Calls of msprobe belong together by module, function and their order there. A run that takes the batch in several
parts calls each module so many times more. The stages of a pipeline, and ranks with experts of their own, may number
their layers and experts anew from 0: statistics of the parameters tell which they are. How the tensors of the ranks
make up the whole is a `Placement`; here are those that shapes allow, and values decide elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isclose, isqrt, prod
from typing import NamedTuple

from precision_tool.lib.data.msprobe_matching import CallList, base_of
from precision_tool.lib.data.msprobe_tree import MsprobeLeaf
from precision_tool.lib.model.msprobe import Argument, Direction, RecordedCall, RecordedTensor

#: How the functions begin that exchange tensors between ranks: a run that is not split has none of them.
COLLECTIVES = "Distributed."
#: Statistics that were computed on two devices agree within this.
_ALIKE = 1e-3
_NUMBER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.|$)|^[0-9]{1,9}(?=\.|$)")

Shape = tuple[int, ...]


# --- what each side recorded ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTensor:
    """A tensor of one rank: the call whose slot it is in, and the place of that call among the rank's calls."""

    leaf: MsprobeLeaf
    rank: int
    call: str
    slot: str
    number: int
    tensor: RecordedTensor

    @property
    def name(self) -> str:
        """The name of the call with the slot."""
        return f"{self.call}.{self.slot}"

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.tensor.shape

    @property
    def statistics(self) -> tuple[object, ...]:
        """What was recorded of its values; empty where nothing was."""
        each = (self.tensor.maximum, self.tensor.minimum, self.tensor.mean, self.tensor.norm)
        return each if any(figure is not None for figure in each) else ()


class Place(NamedTuple):
    """Where calls are made: the path of the module, and the function there ("" for the module itself)."""

    module: str
    api: str


@dataclass(kw_only=True)
class RankCalls:
    """The calls of a rank in one step. `bases` are the calls of a place in their order, without direction."""

    leaf: MsprobeLeaf
    rank: int
    bases: dict[Place, list[str]] = field(default_factory=dict)
    entries: dict[tuple[str, Direction], RecordedCall] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    #: The collectives, and where among all entries they stand.
    collectives: list[tuple[int, RecordedCall]] = field(default_factory=list)

    @cached_property
    def exchanged(self) -> set[tuple[object, ...]]:
        """Shape and statistics of each tensor that a collective was given, by which one is recognised."""
        return {
            (tensor.shape, *figures_of(tensor))
            for _, call in self.collectives
            for slot, tensor in call.tensors()
            if not slot.startswith("output")
        }


def figures_of(tensor: RecordedTensor) -> tuple[object, ...]:
    """Return the statistics by which the values of a tensor are recognised."""
    return tensor.maximum, tensor.minimum, tensor.mean, tensor.norm


def read_rank(leaf: MsprobeLeaf, rank: int) -> RankCalls:
    """Return the calls of one step and rank. FormatError for a file that is no dump of msprobe.

    Calls that are run again for their gradients (activation checkpointing), and damaged entries, are left out.
    """
    calls = CallList(leaf.dump)
    side = RankCalls(leaf=leaf, rank=rank)
    modules = {base: (path, count) for (path, count), base in calls.modules.items()}
    bases: dict[Place, set[str]] = {}
    for number, call in calls.read(calls.numbers.values()).items():
        if call.call is None or call.is_recomputed:
            continue
        if call.name.startswith(COLLECTIVES):
            side.collectives.append((number, call))
            continue
        base = base_of(call.name, call.call)
        place = Place(modules[base][0], "") if call.call.is_module else _place_of(calls, base)
        bases.setdefault(place, set()).add(base)
        side.entries[base, call.call.direction] = call
        side.numbers[call.name] = number
    for place, names in bases.items():
        side.bases[place] = sorted(names, key=_count)
    return side


def _count(base: str) -> int:
    return int(base.rpartition(".")[2])


def _place_of(calls: CallList, base: str) -> Place:
    place = calls.apis[base]
    return Place(place.module, place.api)


# --- layers and experts that ranks number anew ------------------------------------------------------------------------


def masked(path: str) -> str:
    """Return a path, or a name, with `#` for each number that is a part of it: what layers and experts share."""
    return _NUMBER.sub("#", path)


#: By the masked path before a number, how much is added to that number.
Offsets = Mapping[str, int]


def renumbered(path: str, offsets: Offsets) -> str:
    """Return the path of a module as the benchmark numbers it."""
    if not offsets:
        return path
    parts = path.split(".")
    above: list[str] = []
    for at, part in enumerate(parts):
        if _NUMBER.fullmatch(part):
            parts[at] = str(int(part) + offsets.get(".".join(above), 0))
            above.append("#")
        else:
            above.append(part)
    return ".".join(parts)


def _numbered(paths: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers that follow each masked path."""
    numbers: dict[str, set[int]] = {}
    for path in paths:
        above: list[str] = []
        for part in path.split("."):
            is_number = _NUMBER.fullmatch(part) is not None
            if is_number:
                numbers.setdefault(".".join(above), set()).add(int(part))
            above.append("#" if is_number else part)
    return numbers


def _parameters(side: RankCalls) -> Iterator[tuple[str, str, RecordedTensor]]:
    """Return the path of the module, the name, and what was recorded of each parameter."""
    for place, bases in side.bases.items():
        if place.api:
            continue
        call = side.entries.get((bases[0], Direction.FORWARD))
        for name, value in (call.parameters if call is not None else {}).items():
            if isinstance(value, RecordedTensor):
                yield place.module, name, value


def find_offsets(side: RankCalls, golden: Sequence[RankCalls], sides: Sequence[RankCalls]) -> dict[str, int]:
    """Return by how much each number of a rank's modules lies below the benchmark's.

    Parameters
    ----------
    side : RankCalls
        The rank.
    golden, sides : sequence of RankCalls
        The benchmark's ranks, and all ranks of the run.
    """
    wanted = _numbered(place.module for other in golden for place in other.bases)
    all_own = _numbered(place.module for other in sides for place in other.bases)
    own = _numbered(place.module for place in side.bases)
    offsets: dict[str, int] = {}
    for above in sorted(own, key=lambda name: name.count("#")):
        there, here = wanted.get(above, set()), own[above]
        room = max(there, default=-1) - max(all_own[above])
        if room <= 0 or max(here) - min(here) >= max(there):
            continue  # all are there, or numbered over all ranks
        # A dump may claim any number: the rank's first one is one of the benchmark's.
        tried = [number - min(here) for number in sorted(there) if 0 <= number - min(here) <= room]
        offset = _best_offset(side, golden, above, tried, offsets, sides)
        if offset:
            offsets[above] = offset
    return offsets


def _best_offset(
    side: RankCalls,
    golden: Sequence[RankCalls],
    above: str,
    tried: Sequence[int],
    offsets: Mapping[str, int],
    sides: Sequence[RankCalls],
) -> int:
    """Return the offset with which most parameters are those of the benchmark."""
    theirs: dict[tuple[str, str], list[RecordedTensor]] = {}
    for other in golden:
        for path, name, tensor in _parameters(other):
            theirs.setdefault((path, name), []).append(tensor)
    own = [each for each in _parameters(side) if f"{masked(each[0])}.".startswith(f"{above}.#.".lstrip("."))]
    scores: Counter[int] = Counter()
    for offset in tried:
        for path, name, tensor in own:
            others = theirs.get((renumbered(path, {**offsets, above: offset}), name), [])
            scores[offset] += max((_likeness(tensor, other) for other in others), default=0)
    best = max(scores.values(), default=0)
    leading = [offset for offset in scores if scores[offset] == best]
    if best and len(leading) == 1:
        return leading[0]
    # Nothing tells them apart: ranks with as many layers are stages, or have experts, in the order of their numbers.
    count = len(_numbered(place.module for place in side.bases)[above])
    peers = sorted(other.rank for other in sides)
    room = max(tried, default=0)
    stages = max(1, (room + count) // max(count, 1))
    return min(room, peers.index(side.rank) * stages // len(peers) * count)


def _likeness(tensor: RecordedTensor, other: RecordedTensor) -> int:
    """Return how much two parameters have in common: 10 for equal statistics, 1 for a slice that may be of it."""
    own, its = figures_of(tensor), figures_of(other)
    numbers = [
        (float(a), float(b))
        for a, b in zip(own, its, strict=True)
        if isinstance(a, (int, float)) and isinstance(b, (int, float))
    ]
    if len(numbers) < len(own) or not numbers:
        return 0
    if tensor.shape == other.shape:
        return 10 * all(isclose(a, b, rel_tol=_ALIKE, abs_tol=1e-6) for a, b in numbers)
    slack = _ALIKE * max(abs(numbers[0][1]), abs(numbers[1][1]))
    return int(numbers[0][0] <= numbers[0][1] + slack and numbers[1][0] >= numbers[1][1] - slack)


# --- tensors that belong together -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shards:
    """A tensor of the network: what each rank of either side has of it, by rank, a part of the batch each.

    `order` is its place in the benchmark's step, `call` the benchmark's call and `slot` where it stands there. `index`
    counts the calls of one function in its module.
    """

    call: str
    slot: str
    order: int
    place: Place
    index: int
    direction: Direction
    npu: Mapping[int, tuple[ShardTensor, ...]]
    golden: Mapping[int, tuple[ShardTensor, ...]]

    @property
    def name(self) -> str:
        """The benchmark's name of it."""
        return f"{self.call}.{self.slot}"

    @property
    def pattern(self) -> str:
        """What the same tensors of all layers share."""
        return f"{masked(self.place.module)} {self.place.api} {self.index} {self.direction} {self.slot}"

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter as its module has it."""
        return self.direction is Direction.FORWARD and self.slot.startswith("parameters.")


@dataclass(frozen=True, kw_only=True)
class MatchedShards:
    """The tensors that both sides have, in the order of the benchmark's step, and what has no counterpart.

    `alone` are places that one side alone has (collectives are not counted), `uneven` those that are called so often
    that no split of the batch explains it. `parts` are the parts of the batch on either side.
    """

    shards: tuple[Shards, ...]
    alone: tuple[int, int]
    uneven: tuple[Place, ...]
    parts: tuple[int, int]
    offsets: Mapping[int, Offsets]


def match_shards(
    npu: Sequence[RankCalls], golden: Sequence[RankCalls], offsets: Mapping[int, Offsets], parts: tuple[int, int] | None
) -> MatchedShards:
    """Return the tensors of two runs that belong together.

    Parameters
    ----------
    npu, golden : sequence of RankCalls
        The ranks of either side, of one step.
    offsets : mapping
        By rank of the NPU side, how its modules' numbers differ from the benchmark's.
    parts : tuple of two int, optional
        The parts that each side takes the batch in; by default, how often modules are called.
    """
    ours = [{_moved(place, offsets.get(side.rank, {})): bases for place, bases in side.bases.items()} for side in npu]
    theirs = [dict(side.bases) for side in golden]
    counts = _parts_of(ours, theirs) if parts is None else parts
    shards: list[Shards] = []
    uneven: list[Place] = []
    places = dict.fromkeys(place for side in theirs for place in side)
    all_ours = {place for side in ours for place in side}
    for place in places:
        if place not in all_ours:
            continue
        left = _cut(npu, ours, place)
        right = _cut(golden, theirs, place)
        try:
            shards += _of_place(place, left, right, counts)
        except ValueError:
            uneven.append(place)
    shards.sort(key=lambda each: each.order)
    return MatchedShards(
        shards=tuple(shards),
        alone=(len(all_ours - places.keys()), len(places.keys() - all_ours)),
        uneven=tuple(uneven),
        parts=counts,
        offsets=offsets,
    )


def _moved(place: Place, offsets: Offsets) -> Place:
    return Place(renumbered(place.module, offsets), place.api)


_Cut = list[tuple[RankCalls, list[str]]]


def _cut(sides: Sequence[RankCalls], places: Sequence[Mapping[Place, list[str]]], place: Place) -> _Cut:
    return [(side, bases[place]) for side, bases in zip(sides, places, strict=True) if place in bases]


def _parts_of(
    ours: Sequence[Mapping[Place, list[str]]], theirs: Sequence[Mapping[Place, list[str]]]
) -> tuple[int, int]:
    """Return how many parts each side takes the batch in: how often most modules are called, else functions."""
    for are_modules in (True, False):
        pairs: Counter[tuple[int, int]] = Counter()
        for left in ours:
            for right in theirs:
                for place in left.keys() & right.keys():
                    if bool(place.api) is not are_modules and (are_modules or place.module):
                        pairs[len(left[place]), len(right[place])] += 1
        if pairs:
            own, other = pairs.most_common(1)[0][0]
            return (1, 1) if own == other else (own, other)
    return 1, 1


def _of_place(place: Place, left: _Cut, right: _Cut, parts: tuple[int, int]) -> Iterator[Shards]:
    """Return the tensors of a place. ValueError where ranks call it so often that they cannot be matched."""
    ours, theirs = len(left[0][1]), len(right[0][1])
    if any(len(bases) != ours for _, bases in left) or any(len(bases) != theirs for _, bases in right):
        raise ValueError
    own, other = (1, 1) if ours == theirs else parts
    if ours % own or theirs % other or ours // own != theirs // other:
        raise ValueError
    for index in range(ours // own):
        for direction in Direction:
            npu = _tensors(left, index, ours // own, direction)
            golden = _tensors(right, index, theirs // other, direction)
            for slot, by_rank in golden.items():
                first = next(iter(by_rank.values()))[0]
                if slot in npu and all(len(each) == own for each in npu[slot].values()):
                    yield Shards(
                        call=first.call, slot=slot, order=first.number, place=place, index=index, direction=direction,
                        npu=npu[slot], golden=by_rank,
                    )  # fmt: skip


def _tensors(
    cut: _Cut, index: int, per_part: int, direction: Direction
) -> dict[str, dict[int, tuple[ShardTensor, ...]]]:
    """Return the tensors of the calls that are number `index` in each part of the batch, by slot and rank."""
    found: dict[str, dict[int, tuple[ShardTensor, ...]]] = {}
    for side, bases in cut:
        for base in bases[index::per_part]:
            call = side.entries.get((base, direction))
            if call is None:
                continue
            for slot, tensor in call.tensors():
                each = ShardTensor(
                    leaf=side.leaf, rank=side.rank, call=call.name, slot=slot,
                    number=side.numbers[call.name], tensor=tensor,
                )  # fmt: skip
                of_slot = found.setdefault(slot, {})
                of_slot[side.rank] = (*of_slot.get(side.rank, ()), each)
    return found


# --- how the ranks' tensors make up a whole ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """An axis of which the members have slices: `parts` of them, in turns of `stride` members.

    With `groups` the axis holds so many times all slices behind one another, of which a member has one of each: fused
    query, key and value; heads in one axis with the batch; every other sample of a batch.
    """

    axis: int
    parts: int
    stride: int = 1
    groups: int = 1

    def position(self, member: int) -> int:
        """Return which slice a member has."""
        return member // self.stride % self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How the tensors of several members make up one: slices along axes, sums, or copies of it.

    Members are the ranks that have the tensor, counted from 0 in their order. `terms` members each are added up, those
    that differ in `stride`; `is_mean`: then divided by their number. `is_flat`: slices of all elements in one line, the
    last one padded. `order` has the member at each place where these do not follow their numbers. `scale` is what the
    whole is multiplied with to be the benchmark: gradients of a mean over a part of the batch are larger. A sum that is
    `shifted` lacks a vector along the last axis, or has it too often: a bias that is added after the reduction.
    """

    splits: tuple[Split, ...] = ()
    terms: int = 1
    stride: int = 1
    is_mean: bool = False
    is_flat: bool = False
    order: tuple[int, ...] = ()
    scale: float = 1.0
    is_shifted: bool = False

    @property
    def is_sum(self) -> bool:
        """Whether the members' tensors have to be added up."""
        return self.terms > 1

    @property
    def is_copy(self) -> bool:
        """Whether each member has all of it."""
        return not self.splits and not self.is_sum

    def turn(self, member: int) -> int:
        """Return the place of a member."""
        return self.order.index(member) if self.order else member

    def positions(self, member: int) -> tuple[int, ...]:
        """Return which slice a member has, along each split axis."""
        turn = self.turn(member)
        return tuple(split.position(turn) for split in self.splits)

    def groups(self, members: int) -> list[tuple[int, ...]]:
        """Return the members that are added up together; one alone where nothing is."""
        if not self.is_sum:
            return [(member,) for member in range(members)]
        groups: dict[int, list[int]] = {}
        for member in range(members):
            turn = self.turn(member)
            groups.setdefault(turn - turn // self.stride % self.terms * self.stride, []).append(member)
        return [tuple(group) for group in groups.values()]


def _divisors(number: int) -> list[int]:
    low = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return low + [number // divisor for divisor in reversed(low) if divisor * divisor != number]


def placements_of(members: int, shapes: Sequence[Shape], whole: Shape) -> Iterator[Placement]:
    """Return the placements that shapes allow, the simplest first.

    Parameters
    ----------
    members : int
        How many ranks have the tensor.
    shapes : sequence of tuple of int
        The shape that each of them has.
    whole : tuple of int
        That of the benchmark's tensor.
    """
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        return
    if len(shapes[0]) == len(whole):
        yield from _by_axes(members, shapes, whole)
    if len(shapes[0]) == 1 and len(set(shapes)) == 1 and shapes[0] != whole:
        parts = -(-prod(whole) // max(shapes[0][0], 1))
        if parts > 0 and members % parts == 0 and (len(whole) > 1 or parts == 1):
            for stride in _divisors(members // parts):
                yield Placement(splits=(Split(0, parts, stride),), is_flat=True)


def _by_axes(members: int, shapes: Sequence[Shape], whole: Shape) -> Iterator[Placement]:
    cut: list[tuple[int, int]] = []
    for axis, extent in enumerate(whole):
        largest = max(shape[axis] for shape in shapes)
        if largest > extent or largest == 0:
            if largest != extent:
                return
            continue
        if any(shape[axis] != extent for shape in shapes):
            cut.append((axis, -(-extent // largest)))
    pieces = prod(parts for _, parts in cut)
    if members % pieces:
        return
    rest = members // pieces
    for splits in _strides(cut, members):
        yield Placement(splits=splits)
        for terms in reversed(_divisors(rest)[1:]):
            for stride in _divisors(members // terms):
                if _is_mesh([*((split.parts, split.stride) for split in splits), (terms, stride)], members):
                    yield Placement(splits=splits, terms=terms, stride=stride)
    if len(whole) > 1:
        for splits in _strides(cut, members):
            if rest > 1 and _is_mesh([*((split.parts, split.stride) for split in splits), (rest, pieces)], members):
                yield Placement(splits=splits, terms=rest, stride=pieces, is_shifted=True)
            if rest > 1 and _is_mesh([*((split.parts, split.stride) for split in splits), (rest, 1)], members):
                yield Placement(splits=splits, terms=rest, is_shifted=True)
    if len(cut) == 1 and len(set(shapes)) == 1:
        axis, parts = cut[0]
        own = shapes[0][axis]
        if own * parts == whole[axis]:
            for groups in _divisors(own)[1:]:
                for stride in _divisors(members // parts):
                    yield Placement(splits=(Split(axis, parts, stride, groups),))


def _strides(cut: Sequence[tuple[int, int]], members: int) -> Iterator[tuple[Split, ...]]:
    """Return the axes with the strides of their slices: the last one changes fastest, or another."""
    if not cut:
        yield ()
        return
    (axis, parts), *rest = cut
    for stride in _divisors(members // parts):
        for others in _strides(rest, members):
            splits = (Split(axis, parts, stride), *others)
            if _is_mesh([(split.parts, split.stride) for split in splits], members):
                yield splits


def _is_mesh(dimensions: Sequence[tuple[int, int]], members: int) -> bool:
    """Return whether the members are a grid in which each of these, (size, stride), is an axis of its own."""
    above = 0
    for size, stride in sorted(dimensions, key=lambda each: each[1]):
        if stride < above or (above and stride % above):
            return False
        above = size * stride
    return above <= members and members % max(above, 1) == 0


def declared_placement(shards: Shards) -> Placement | None:
    """Return the placement that DTensors of all ranks say they have; None where they do not say, or not alike."""
    by_rank = {rank: parts[0].tensor for rank, parts in shards.npu.items()}
    first = next(iter(by_rank.values()))
    placements, mesh = first.more.get("placements"), first.more.get("device_mesh")
    if not isinstance(placements, tuple) or not isinstance(mesh, tuple):
        return None
    if any(tensor.more.get("placements") != placements for tensor in by_rank.values()):
        return None
    sizes, ranks = _mesh(mesh)
    if sorted(ranks) != sorted(by_rank) or len(sizes) != len(placements):
        return None
    splits: list[Split] = []
    terms, stride = 1, 1
    for at, placement in enumerate(placements):
        below = prod(sizes[at + 1 :])
        if not isinstance(placement, Mapping):
            return None
        shard = placement.get("Shard")
        if isinstance(shard, Mapping) and isinstance(axis := shard.get("dim"), int):
            splits.append(Split(axis % max(len(first.shape), 1), sizes[at], below))
        elif "Partial" in placement and terms == 1:
            terms, stride = sizes[at], below
        elif "Replicate" not in placement:
            return None
    if len({split.axis for split in splits}) < len(splits):
        return None  # an axis that is cut twice
    members = sorted(by_rank)
    order = tuple(members.index(rank) for rank in ranks)
    is_sorted = order == tuple(range(len(order)))
    return Placement(splits=tuple(splits), terms=terms, stride=stride, order=() if is_sorted else order)


def _mesh(mesh: tuple[Argument, ...]) -> tuple[list[int], list[int]]:
    """Return the extents of a mesh of ranks, and its ranks in order."""
    if mesh and all(isinstance(row, tuple) for row in mesh):
        rows = [_mesh(row) for row in mesh if isinstance(row, tuple)]
        return [len(mesh), *rows[0][0]], [rank for _, ranks in rows for rank in ranks]
    return [len(mesh)], [rank for rank in mesh if isinstance(rank, int)]
