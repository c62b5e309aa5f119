"""Overwritten memory: readers that read something else than was put out.

Where the op that put a tensor out was not dumped, its readers' copies are held against each other, and which of them is
the true one is asked of everything that may know: recomputing the op, the benchmark, the other readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from precision_tool.lib.engine.tensor_reader import key_of
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.numbers import data_types
from precision_tool.lib.verdict.copies import differences, is_in_place
from precision_tool.lib.verdict.judgement import OpJudgement, State
from precision_tool.lib.verdict.model import Cause, Fact, Proof, Suspect
from precision_tool.lib.verdict.rounding import norm
from precision_tool.lib.verdict.values import VARIABLE_TYPES, NoValueError, Root, RunValues, Slot

#: The benchmark has what one copy says if the others are so many times as far from it.
_NEARER = 4.0


class ToldBy(StrEnum):
    """What says which of two copies of a tensor is the true one."""

    #: The op that put it out was dumped.
    PRODUCER = "producer"
    #: That op was not dumped; recomputed, it gives the other copy.
    RECOMPUTED = "recomputed"
    #: The benchmark has the other copy's values.
    BENCHMARK = "benchmark"
    #: Most readers have the other copy.
    READERS = "readers"
    #: Nothing does.
    NOBODY = "nobody"


_CONFIDENCE = {
    ToldBy.PRODUCER: 0.93, ToldBy.RECOMPUTED: 0.95, ToldBy.BENCHMARK: 0.9, ToldBy.READERS: 0.8, ToldBy.NOBODY: 0.55,
}  # fmt: skip
#: The same where the op that put the tensor out was recomputed, and is right.
_RIGHT_PRODUCER = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwritten:
    """A tensor that a reader read otherwise than it was put out. Offsets are bytes in the tensor as stored.

    `true` is the copy it was held against, `told_by` what says that this is the true one.
    """

    root: Root
    reader: Slot
    true: Slot
    told_by: ToldBy
    first: int
    last: int
    different: int
    size: int
    nbytes: int

    @property
    def producer(self) -> Op:
        return self.root.op

    @property
    def consumer(self) -> Op:
        return self.reader.op

    def meets(self, other: Overwritten) -> bool:
        """Whether both were overwritten in the same place of the same tensor."""
        return self.root.key == other.root.key and self.first < other.last and other.first < self.last


#: Whether an op is right if a reader's copy is what it put out; None where it cannot be recomputed.
IsRight = Callable[[Root, Slot], "bool | None"]


def overwritten(values: RunValues, is_right: IsRight) -> list[Overwritten]:
    """Every input that differs from the tensor it is, in the order in which the ops ran."""
    found: list[Overwritten] = []
    disputed: dict[tuple[int, int], Root] = {}
    for op in values.ops:
        for slot in values.input_slots(op):
            root = values.fed_by.get((id(op), slot.graph_index))
            if root is None or root.op.type in VARIABLE_TYPES or values.parameter_is_updated(root):
                continue
            if isinstance(values.found(values.output_slot(root)), Tensor):
                one = _unlike_output(values, root, slot)
                if one is not None:
                    found.append(one)
            else:
                disputed[root.key] = root
    for root in disputed.values():
        found += _unlike_others(values, root, is_right)
    return sorted(found, key=lambda one: values.order[id(one.consumer)])


def _unlike_output(values: RunValues, root: Root, slot: Slot) -> Overwritten | None:
    mine = _read(values, slot)
    output = values.output_slot(root)
    own = values.found(output)
    if mine is None or not isinstance(own, Tensor):
        return None
    are_read = {key_of(mine), key_of(own)} <= values.checksums.keys()
    if not are_read and values.compared_alike(root, slot):
        return None
    return _held_against(values, root, slot, output, ToldBy.PRODUCER)


def _unlike_others(values: RunValues, root: Root, is_right: IsRight) -> Iterator[Overwritten]:
    """The readers of a tensor that no file of its op has, that read something else than the others."""
    readers = [slot for slot in values.readers.get(root.key, ()) if _read(values, slot) is not None]
    alike = _alike(values, readers)
    if len(alike) < 2:
        return
    true, told_by = _true_copy(values, root, alike, is_right)
    for group in alike:
        for slot in group:
            one = _held_against(values, root, slot, true, told_by) if group[0] is not true else None
            if one is not None:
                yield one


def _alike(values: RunValues, readers: Sequence[Slot]) -> list[list[Slot]]:
    """Readers of a tensor that have the same each, of those that can be held against each other.

    One that cannot, as of another type or by a file that cannot be read, neither differs nor counts.
    """
    families: list[list[list[Slot]]] = []
    for slot in readers:
        for family in families:
            apart = [_places_apart(values, slot, group[0]) for group in family]
            if all(places is None for places in apart):
                continue
            same = (
                group for group, places in zip(family, apart, strict=True) if places is not None and not len(places)
            )
            group = next(same, None)
            if group is not None:
                group.append(slot)
            elif all(places is not None for places in apart):
                family.append([slot])
            break
        else:
            families.append([[slot]])
    disputed = [family for family in families if len(family) > 1]
    return max(disputed, key=lambda family: sum(map(len, family)), default=[])


def _true_copy(
    values: RunValues, root: Root, alike: Sequence[Sequence[Slot]], is_right: IsRight
) -> tuple[Slot, ToldBy]:
    """The copy of a tensor that is what was put out, of readers that have the same each, and what says so."""
    for group in alike:
        if is_right(root, group[0]):
            return group[0], ToldBy.RECOMPUTED
    distances = [_from_benchmark(values, root, group[0]) for group in alike]
    known = sorted((one, number) for number, one in enumerate(distances) if one is not None)
    if len(known) == len(alike) and known[1][0] > _NEARER * known[0][0]:
        return alike[known[0][1]][0], ToldBy.BENCHMARK
    most = sorted(alike, key=len, reverse=True)
    if len(most[0]) > len(most[1]):
        return most[0][0], ToldBy.READERS
    # What was overwritten stays so: of two, the one that read it first is more likely to have read what was put out.
    return alike[0][0], ToldBy.NOBODY


def _from_benchmark(values: RunValues, root: Root, slot: Slot) -> float | None:
    golden = values.load_benchmark(root)
    tensor = values.found(slot)
    if golden is None or not isinstance(tensor, Tensor):
        return None
    try:
        mine = values.load(tensor, slot.desc).array
    except NoValueError:
        return None
    if mine.size != golden.input.array.size or mine.dtype.kind == "c":
        return None
    with np.errstate(all="ignore"):
        distance = norm(mine.reshape(-1).astype(np.float64) - golden.input.array.reshape(-1).astype(np.float64))
    return distance if distance == distance else float("inf")


def _read(values: RunValues, slot: Slot) -> Tensor | None:
    """What an op read; None where its file does not show it."""
    tensor = values.found(slot)
    return tensor if isinstance(tensor, Tensor) and not is_in_place(values, slot, tensor) else None


def _places_apart(values: RunValues, slot: Slot, other_slot: Slot) -> np.ndarray | None:
    """Where two copies of a tensor differ, as stored: nowhere if they are the same; None if that is not known."""
    mine, other = values.found(slot), values.found(other_slot)
    if not isinstance(mine, Tensor) or not isinstance(other, Tensor):
        return None
    if other.size != mine.size or other.dtype != mine.dtype:
        return None
    if (other.path, other.offset, other.dataset) == (mine.path, mine.offset, mine.dataset):
        return np.zeros(0, np.intp)
    return differences(values, mine, other, slot)


def _held_against(values: RunValues, root: Root, slot: Slot, true: Slot, told_by: ToldBy) -> Overwritten | None:
    """How what a reader read differs from another copy of a tensor; None if it does not, or cannot be held to it."""
    different, mine = _places_apart(values, slot, true), values.found(slot)
    if different is None or not different.size or not isinstance(mine, Tensor):
        return None
    bits = data_types.BY_NAME[mine.dtype].bits
    return Overwritten(
        root=root,
        reader=slot,
        true=true,
        told_by=told_by,
        first=int(different[0]) * bits // 8,
        last=(int(different[-1]) + 1) * bits // 8,
        different=int(different.size),
        size=mine.size,
        nbytes=mine.nbytes,
    )


# --- who is to blame --------------------------------------------------------------------------------------------------


def stomps(values: RunValues, found: Collection[Overwritten], judged: Mapping[int, OpJudgement]) -> Iterator[Suspect]:
    """Each place that was overwritten once, with all that read it so; `judged` by id of the op."""
    left = list(found)
    while left:
        first = left[0]
        together = [one for one in left if one.meets(first)]
        left = [one for one in left if not one.meets(first)]
        yield _stomp(values, first, together, judged.get(id(first.producer)))


def _stomp(
    values: RunValues, first: Overwritten, together: Sequence[Overwritten], producer: OpJudgement | None
) -> Suspect:
    is_right = producer is not None and producer.state is State.RIGHT
    others = list(dict.fromkeys(one.consumer.name for one in together if one.consumer is not first.consumer))
    facts = [
        Fact(name="tensor", value=first.root.name), Fact(name="reader", value=first.reader.name),
        Fact(name="first_byte", value=first.first), Fact(name="last_byte", value=first.last),
        Fact(name="different_elements", value=first.different), Fact(name="elements", value=first.size),
        Fact(name="bytes", value=first.nbytes), Fact(name="producer_is_right", value=is_right),
        Fact(name="producer", value=first.producer.name), Fact(name="told_by", value=str(first.told_by)),
    ]  # fmt: skip
    also = [first.producer.name, *others]
    if others:
        facts.append(Fact(name="other_readers", value=others))
    if first.told_by is not ToldBy.PRODUCER:
        facts.append(Fact(name="held_against", value=first.true.name))
    if first.told_by is ToldBy.NOBODY:
        also.insert(0, first.true.op.name)
    sure = _RIGHT_PRODUCER if is_right and first.told_by is ToldBy.PRODUCER else _CONFIDENCE[first.told_by]
    return Suspect(
        culprit=first.consumer.name, cause=Cause.STOMP, proof=Proof.COPIES, confidence=sure,
        number=values.order[id(first.consumer)], op_type=first.consumer.type, also=tuple(also), facts=tuple(facts),
    )  # fmt: skip
