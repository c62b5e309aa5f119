"""Comparison of the copies of a tensor: an input that differs from its producer's output was overwritten.

What an op put out and what its readers read is the same memory at different times, so the copies in their dump files
are the same numbers. Ops that write their output over their input, and variables that are updated, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial

import numpy as np

from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.compare.tensor_reader import key_of, same_range
from precision_tool.lib.diagnose.error_shape import SMALLEST_NORMAL, norm
from precision_tool.lib.diagnose.op_values import (
    MAX_ELEMENTS,
    PARAMETER_TYPES,
    VARIABLE_TYPES,
    Loaded,
    NoValueError,
    Root,
    RunValues,
    Slot,
)
from precision_tool.lib.diagnose.recorded_formulas import dropped_share
from precision_tool.lib.diagnose.verdict_model import Cause, Fact, OpResult, Proof, State, Suspect
from precision_tool.lib.io import data_types
from precision_tool.lib.io.layouts import as_stored, is_plain
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import Input
from precision_tool.lib.ops.optimizers import updated_inputs


def differences(values: RunValues, own: Tensor, other: Tensor, slot: Slot) -> np.ndarray | None:
    """Return the flat places, as stored, where two copies differ; None where they cannot be compared."""
    if own.size > MAX_ELEMENTS or not data_types.BY_NAME[own.dtype].is_numeric:
        return None
    in_memory: np.ndarray | None = None
    is_reshaped = "ND" in (own.layout, other.layout) and is_plain(own.layout) and is_plain(other.layout)
    is_alike = (own.layout, own.shape) == (other.layout, other.shape)
    if (is_alike or is_reshaped) and _same_bytes(values, own, other):
        return np.zeros(0, np.intp)
    if is_alike:
        try:
            in_memory = ~_same(_stored(own), _stored(other))
        except PrecisionToolError:
            return None
        if not in_memory.any():
            return np.zeros(0, np.intp)
    try:
        x, y = values.load(own, slot.desc).array, values.load(other, slot.desc).array
    except NoValueError:
        return None
    if x.size != y.size:
        return None
    apart = ~_same(x.reshape(-1), y.reshape(-1))
    if not apart.any():  # but padding
        return np.zeros(0, np.intp)
    return np.flatnonzero(apart if in_memory is None else in_memory)


def _same_bytes(values: RunValues, own: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one type and shape have equal bytes; False also if unknown.

    Where both were read before, their checksums (CRC-32) tell: equal ones are taken for equal bytes, which is wrong
    once in 4,000 million pairs.
    """
    if own.dataset or other.dataset or own.nbytes != other.nbytes:
        return False
    if (own.big_endian, own.fortran_order) != (other.big_endian, other.fortran_order):
        return False
    sums = values.checksums.get(key_of(own)), values.checksums.get(key_of(other))
    if None not in sums:
        return sums[0] == sums[1]
    try:
        return same_range(own, 0, other, 0, own.nbytes)
    except PrecisionToolError:
        return False


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    same: np.ndarray = x == y
    if x.dtype.kind in "fc":
        same |= np.isnan(x) & np.isnan(y)
    return same


def _stored(tensor: Tensor) -> np.ndarray:
    """Return the numbers as they lie, padding included."""
    with open_reader(tensor, as_stored(tensor).plan) as reader:
        return reader.whole().reshape(-1)


def is_in_place(values: RunValues, slot: Slot, tensor: Tensor) -> bool:
    """Return whether the op of a slot writes over that input: then its dump shows what it wrote."""
    op = slot.op
    if slot.graph_index in updated_inputs(op.type):
        return True
    dump = values.dumped(op)
    if dump is None or not tensor.address:
        return False
    return any(isinstance(output, Tensor) and _is_written_over(tensor, output) for output in dump.outputs.values())


def _is_written_over(tensor: Tensor, output: Tensor) -> bool:
    """Return whether an output lies in the memory of a tensor, which then holds its bytes there.

    Addresses alone prove nothing: an op that is said to write there may have been overwritten by another as well.
    """
    first = max(tensor.address, output.address)
    end = min(tensor.address + tensor.nbytes, output.address + output.nbytes)
    if not output.address or first >= end or output.parts or tensor.parts:  # parts lie apart
        return False
    if tensor.dataset or output.dataset:
        return True  # HDF5 does not tell where bytes lie
    try:
        return same_range(tensor, first - tensor.address, output, first - output.address, end - first)
    except PrecisionToolError:
        return True  # what cannot be read accuses nobody


# --- comparison with another run --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsteady:
    """An op that was fed the same numbers in two runs and put out others."""

    op: Op
    output: int
    different: int
    size: int
    distance: float


def first_unsteady(
    values: RunValues, other: RunValues, allowed: Mapping[tuple[str, int], float], ignored: Collection[str]
) -> Unsteady | None:
    """Return the first op in execution order that computes differently in two runs, from the very same inputs.

    Outputs, by op and slot, may be as far apart as is `allowed`; some ops are `ignored`. Where dump files hold outputs
    only, inputs are what their producers put out. A variable that no file has counts as the same where all variables
    that both runs show are.
    """
    twins = {op.name: op for op in other.ops}

    starts_alike = cache(partial(_starts_alike, values, other, twins))
    for op in values.ops:
        twin = twins.get(op.name)
        dump, other_dump = values.dumped(op), None if twin is None else other.dumped(twin)
        if op.name in ignored or twin is None or twin.type != op.type:
            continue
        if dump is None or other_dump is None or not dump.outputs:
            continue
        if set(dump.inputs) != set(other_dump.inputs) or set(dump.outputs) != set(other_dump.outputs):
            continue
        if not dump.inputs and not _is_fed_alike(values, other, op, twin, starts_alike):
            continue
        if all(_equal(values, dump.inputs[slot], other_dump.inputs[slot]) for slot in dump.inputs):
            for slot in sorted(dump.outputs):
                x, y = _flat(values, dump.outputs[slot]), _flat(values, other_dump.outputs[slot])
                unsteady = None if x is None or y is None else _unsteady(op, slot, x, y)
                if unsteady is not None and unsteady.distance > allowed.get((op.name, slot), 0.0):
                    return unsteady
    return None


def _unsteady(op: Op, slot: int, x: np.ndarray, y: np.ndarray) -> Unsteady | None:
    """Return how far apart the outputs of two runs are; None where they are the same, or cannot be compared."""
    if x.size != y.size:
        return None
    different = int(np.count_nonzero(~_same(x, y)))
    if not different:
        return None
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        size, off = float(np.linalg.norm(y)), float(np.linalg.norm(x - y))
    return Unsteady(
        op=op, output=slot, different=different, size=int(x.size), distance=off / size if size else float("inf")
    )


def _is_fed_alike(values: RunValues, other: RunValues, op: Op, twin: Op, starts_alike: Callable[[], bool]) -> bool:
    """Return whether the producers of an op's inputs put out the same in both runs, one at least known."""
    producers, its = list(values.producers(op)), list(other.producers(twin))
    connected = sum(edge is not None for edge in op.inputs)
    if len(producers) != connected or [root.name for root in producers] != [root.name for root in its]:
        return False
    unknown = [
        root for root in producers if root.op.type in PARAMETER_TYPES and next(_loaded(values, root), None) is None
    ]
    if len(unknown) == connected:
        return False
    pairs = [pair for pair in zip(producers, its, strict=True) if pair[0] not in unknown]
    return all(_is_same(values, other, *pair) for pair in pairs) and (not unknown or starts_alike())


def _is_same(values: RunValues, other: RunValues, root: Root, its: Root) -> bool | None:
    """Return whether a tensor of two runs has the same numbers in both; None where one has none."""
    x, y = next(_loaded(values, root), None), next(_loaded(other, its), None)
    if x is None or y is None:
        return None
    if x.input.array.size != y.input.array.size:
        return None
    return bool(_same(x.input.array.reshape(-1), y.input.array.reshape(-1)).all())


def _starts_alike(values: RunValues, other: RunValues, twins: Mapping[str, Op]) -> bool:
    """Return whether all variables that both runs show are the same, and there is one."""
    comparisons = []
    for op in values.ops:
        variable = values.parameter_of(Root(op, 0))
        if variable is not None and variable.type in VARIABLE_TYPES and op.name in twins:
            comparisons.append(_is_same(values, other, Root(op, 0), Root(twins[op.name], 0)))
    return True in comparisons and False not in comparisons


def is_repeated(values: RunValues, other: RunValues, root: Root) -> bool | None:
    """Return whether a tensor has the same numbers in another run of the script; None if unknown."""
    twin = next((op for op in other.ops if (op.name, op.type) == (root.op.name, root.op.type)), None)
    return None if twin is None else _is_same(values, other, root, Root(twin, root.index))


def _flat(values: RunValues, tensor: object) -> np.ndarray | None:
    if not isinstance(tensor, Tensor):
        return None
    try:
        return values.load(tensor, None).array.reshape(-1)
    except NoValueError:
        return None


def _equal(values: RunValues, own: object, its: object) -> bool:
    x, y = _flat(values, own), _flat(values, its)
    return x is not None and y is not None and x.size == y.size and bool(_same(x, y).all())


# --- comparison with the benchmark ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A tensor that nothing in the graph computes, and that is not the benchmark's.

    `distance` is relative, `factor` the one number that all of it was multiplied by (None: it was not), `different`
    how many elements are off by more than the rounding of their type.
    """

    root: Root
    distance: float
    different: int
    size: int
    cosine: float
    factor: float | None = None
    #: Every value is there, in another order.
    reordered: bool = False
    is_scalar: bool = False
    seen_in: str = ""


#: The rounding of a type, twice.
_ROUNDED = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 2.0**-22}


def compare_with_benchmark(values: RunValues, root: Root) -> tuple[Loaded, Loaded, Divergence | None] | None:
    """Return a tensor, the benchmark's, and how they differ; None where a side lacks it or their sizes do."""
    golden = values.load_benchmark(root)
    npu = next((loaded for form in _forms(values, root) for loaded in _loaded(values, form)), None)
    if golden is None or npu is None or npu.input.array.size != golden.input.array.size:
        return None
    return npu, golden, divergence_of(values, root)


def divergence_of(values: RunValues, root: Root) -> Divergence | None:
    """Return how a tensor differs from the benchmark's; None if it does not, or nothing tells.

    Of a dropout it is which elements are zero that is random.
    """
    golden = values.load_benchmark(root)
    if golden is None:
        return None
    recorded = root.op.recorded
    if recorded is not None and dropped_share(recorded):
        own = values.load_root(root)
        divergence = None if own is None else _against(root, _where_zero(own), _where_zero(golden))
        is_other = divergence is not None and divergence.different > _OTHER_ZEROS * divergence.size
        return divergence if is_other else None
    best: Divergence | None = None
    for form in _forms(values, root):
        for loaded in _loaded(values, form):
            divergence = _against(root, loaded, golden)
            if divergence is None:
                return None
            if best is None or divergence.distance < best.distance:
                best = divergence
        if best is not None:
            return best
    return None


#: Zeros that two sides have in other places are chance up to this share: an activation may be zero on one side alone.
_OTHER_ZEROS = 2.0**-6


def _where_zero(loaded: Loaded) -> Loaded:
    return replace(loaded, input=Input(array=np.asarray(loaded.input.array == 0, np.float64), dtype="float32"))


def _forms(values: RunValues, root: Root) -> Iterator[Root]:
    """Yield the tensor, then what casts and conversions of its layout make of it."""
    waiting, visited = [root], 0
    while waiting and visited < 64:
        form = waiting.pop(0)
        visited += 1
        yield form
        for slot in values.readers(form):
            if slot.op.type == "TransData" or (slot.op.type == "Cast" and _keeps_digits(slot.op)):
                waiting.append(Root(slot.op, 0))


def _keeps_digits(op: Op) -> bool:
    """Return whether a cast is one between floating types, or between others."""
    types = [desc.dtype for desc in (*op.input_descs[:1], *op.output_descs[:1])]
    return len(types) == 2 and ("float" in types[0]) == ("float" in types[1])


def _loaded(values: RunValues, root: Root) -> Iterator[Loaded]:
    for slot, tensor in values.copies(root):
        if slot.side == "input" and is_in_place(values, slot, tensor):
            continue
        try:
            yield Loaded(values.load(tensor, slot.desc), slot.side, slot, tensor)
        except NoValueError:
            continue


def _against(root: Root, loaded: Loaded, golden: Loaded) -> Divergence | None:
    x, y = np.asarray(loaded.input.array), np.asarray(golden.input.array)
    if x.size != y.size or x.dtype.kind == "c" or y.dtype.kind == "c":
        return None
    x, y = x.reshape(-1).astype(np.float64), y.reshape(-1).astype(np.float64)
    dtypes = loaded.input.dtype, golden.input.dtype
    unit = max(_ROUNDED.get(dtype, 0.0) for dtype in dtypes)
    smallest = 2.0**-24 if "float16" in dtypes else 1e-37
    with np.errstate(all="ignore"):
        if loaded.input.dtype == "float16":
            y = np.where(np.abs(y) > 65504, np.copysign(np.where(np.isfinite(x), 65504, np.inf), y), y)
        off = np.abs(x - y)
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | (off <= unit * np.abs(y) + smallest)
        same |= (x == 0) & (np.abs(y) < SMALLEST_NORMAL.get(loaded.input.dtype, 0.0))  # devices may flush these
        different = int(np.count_nonzero(~same))
        if not different:
            return None
        both = np.isfinite(x) & np.isfinite(y)
        size, npu_size = float(np.linalg.norm(y[both])), float(np.linalg.norm(x[both]))
        distance = float(np.linalg.norm(x[both] - y[both]))
        dot = float(x[both] @ y[both])
        factor = None
        if size:
            scale = dot / size**2
            if scale and float(np.linalg.norm(x[both] - scale * y[both])) <= 4 * max(unit, 2.0**-22) * npu_size:
                factor = scale
        order = np.allclose(np.sort(x), np.sort(y), rtol=max(unit, 1e-6), atol=smallest, equal_nan=True)
    return Divergence(
        root=root,
        distance=distance / size if size else float("inf"),
        different=different,
        size=int(x.size),
        cosine=dot / (size * npu_size) if size and npu_size else 0.0,
        factor=factor,
        reordered=bool(order),
        is_scalar=x.size == 1,
        seen_in=loaded.slot.name if loaded.slot is not None else "",
    )


# --- overwritten copies -----------------------------------------------------------------------------------------------


#: The benchmark has what one copy says if the others are so many times as far from it.
_NEARER = 4.0


class Witness(StrEnum):
    """Evidence for which copy of a tensor is the true one."""

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
    Witness.PRODUCER: 0.93, Witness.RECOMPUTED: 0.95, Witness.BENCHMARK: 0.9, Witness.READERS: 0.8,
    Witness.NOBODY: 0.55,
}  # fmt: skip
#: The same where the op that put the tensor out was recomputed, and is right.
_RIGHT_PRODUCER = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwritten:
    """A tensor that a reader read otherwise than it was put out. Offsets are bytes in the tensor as stored.

    `true` is the copy it was held against, `witness` what says that this is the true one.
    """

    root: Root
    reader: Slot
    true: Slot
    witness: Witness
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
        """Return whether both were overwritten in the same place of the same tensor."""
        return self.root.key == other.root.key and self.first < other.last and other.first < self.last


#: Whether an op is right if a reader's copy is what it put out; None where it cannot be recomputed.
IsRight = Callable[[Root, Slot], "bool | None"]


def overwritten(values: RunValues, is_right: IsRight) -> list[Overwritten]:
    """Return every input that differs from the tensor it is, in the order in which the ops ran."""
    results: list[Overwritten] = []
    disputed: dict[tuple[int, int], Root] = {}
    for op in values.dumped_ops:
        if op.recorded is not None:
            continue  # equal figures connect it: other bytes are of another tensor that has the same figures
        for slot in values.input_slots(op):
            root = values.source_of(slot)
            if root is None or root.op.type in VARIABLE_TYPES or values.parameter_is_updated(root):
                continue
            if isinstance(values.tensor_at(values.output_slot(root)), Tensor):
                stale_copy = _unlike_output(values, root, slot)
                if stale_copy is not None:
                    results.append(stale_copy)
            else:
                disputed[root.key] = root
    for root in disputed.values():
        results += _unlike_others(values, root, is_right)
    return sorted(results, key=lambda stale: values.number_of(stale.consumer))


def _unlike_output(values: RunValues, root: Root, slot: Slot) -> Overwritten | None:
    read = _read(values, slot)
    output = values.output_slot(root)
    own = values.tensor_at(output)
    if read is None or not isinstance(own, Tensor):
        return None
    are_read = {key_of(read), key_of(own)} <= values.checksums.keys()
    if not are_read and values.compared_alike(root, slot):
        return None
    return _held_against(values, root, slot, output, Witness.PRODUCER)


def _unlike_others(values: RunValues, root: Root, is_right: IsRight) -> Iterator[Overwritten]:
    """Yield the readers of a tensor that no file of its op has, that read something else than the others."""
    readers = [slot for slot in values.readers(root) if _read(values, slot) is not None]
    alike = _alike(values, readers)
    if len(alike) < 2:
        return
    true, witness = _true_copy(values, root, alike, is_right)
    for group in alike:
        for slot in group:
            stale_copy = _held_against(values, root, slot, true, witness) if group[0] is not true else None
            if stale_copy is not None:
                yield stale_copy


def _alike(values: RunValues, readers: Sequence[Slot]) -> list[list[Slot]]:
    """Return the groups of readers of a tensor that have the same copy.

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
) -> tuple[Slot, Witness]:
    """Return the copy of a tensor that is what was put out, of readers that have the same each, and what says so."""
    for group in alike:
        if is_right(root, group[0]):
            return group[0], Witness.RECOMPUTED
    distances = [_from_benchmark(values, root, group[0]) for group in alike]
    ranked = sorted((apart, number) for number, apart in enumerate(distances) if apart is not None)
    if len(ranked) == len(alike) and ranked[1][0] > _NEARER * ranked[0][0]:
        return alike[ranked[0][1]][0], Witness.BENCHMARK
    most = sorted(alike, key=len, reverse=True)
    if len(most[0]) > len(most[1]):
        return most[0][0], Witness.READERS
    # What was overwritten stays so: of two, the one that read it first is more likely to have read what was put out.
    return alike[0][0], Witness.NOBODY


def _from_benchmark(values: RunValues, root: Root, slot: Slot) -> float | None:
    golden = values.load_benchmark(root)
    tensor = values.tensor_at(slot)
    if golden is None or not isinstance(tensor, Tensor):
        return None
    try:
        npu = values.load(tensor, slot.desc).array
    except NoValueError:
        return None
    if npu.size != golden.input.array.size or npu.dtype.kind == "c":
        return None
    with np.errstate(all="ignore"):
        distance = norm(npu.reshape(-1).astype(np.float64) - golden.input.array.reshape(-1).astype(np.float64))
    return distance if distance == distance else float("inf")


def _read(values: RunValues, slot: Slot) -> Tensor | None:
    """Return what an op read; None where its file does not show it."""
    tensor = values.tensor_at(slot)
    return tensor if isinstance(tensor, Tensor) and not is_in_place(values, slot, tensor) else None


def _places_apart(values: RunValues, slot: Slot, other_slot: Slot) -> np.ndarray | None:
    """Return where two copies of a tensor differ, as stored; None if that is not known."""
    tensor, other = values.tensor_at(slot), values.tensor_at(other_slot)
    if not isinstance(tensor, Tensor) or not isinstance(other, Tensor):
        return None
    if other.size != tensor.size or other.dtype != tensor.dtype:
        return None
    if (other.path, other.offset, other.dataset) == (tensor.path, tensor.offset, tensor.dataset):
        return np.zeros(0, np.intp)
    return differences(values, tensor, other, slot)


def _held_against(values: RunValues, root: Root, slot: Slot, true: Slot, witness: Witness) -> Overwritten | None:
    """Return how the copy of a reader differs from another; None if it does not, or is unknown."""
    different, tensor = _places_apart(values, slot, true), values.tensor_at(slot)
    if different is None or not different.size or not isinstance(tensor, Tensor):
        return None
    bits = data_types.BY_NAME[tensor.dtype].bits
    return Overwritten(
        root=root,
        reader=slot,
        true=true,
        witness=witness,
        first=int(different[0]) * bits // 8,
        last=(int(different[-1]) + 1) * bits // 8,
        different=int(different.size),
        size=tensor.size,
        nbytes=tensor.nbytes,
    )


# --- suspects ---------------------------------------------------------------------------------------------------------


def stomps(
    values: RunValues, stale_copies: Collection[Overwritten], judged: Mapping[int, OpResult]
) -> Iterator[Suspect]:
    """Yield each place that was overwritten once, with all that read it so; `judged` by id of the op."""
    left = list(stale_copies)
    while left:
        first = left[0]
        together = [item for item in left if item.meets(first)]
        left = [item for item in left if not item.meets(first)]
        yield _stomp(values, first, together, judged.get(id(first.producer)))


def _stomp(
    values: RunValues, first: Overwritten, together: Sequence[Overwritten], producer: OpResult | None
) -> Suspect:
    is_right = producer is not None and producer.state is State.RIGHT
    others = list(dict.fromkeys(item.consumer.name for item in together if item.consumer is not first.consumer))
    facts = [
        Fact(name="tensor", value=first.root.name), Fact(name="reader", value=first.reader.name),
        Fact(name="first_byte", value=first.first), Fact(name="last_byte", value=first.last - 1),
        Fact(name="different_elements", value=first.different), Fact(name="elements", value=first.size),
        Fact(name="bytes", value=first.nbytes), Fact(name="producer_is_right", value=is_right),
        Fact(name="producer", value=first.producer.name), Fact(name="told_by", value=str(first.witness)),
    ]  # fmt: skip
    also = [first.producer.name, *others]
    if others:
        facts.append(Fact(name="other_readers", value=others))
    if first.witness is not Witness.PRODUCER:
        facts.append(Fact(name="held_against", value=first.true.name))
    if first.witness is Witness.NOBODY:
        also.insert(0, first.true.op.name)
    sure = _RIGHT_PRODUCER if is_right and first.witness is Witness.PRODUCER else _CONFIDENCE[first.witness]
    return Suspect(
        culprit=first.consumer.name, cause=Cause.STOMP, proof=Proof.COPIES, confidence=sure,
        number=values.number_of(first.consumer), op_type=first.consumer.type, also=tuple(also), facts=tuple(facts),
    )  # fmt: skip
