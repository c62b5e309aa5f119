"""Checks of large ops with little work: sums of rows over all columns, blocks of elements, and sample rows.

A wrong element, column or row is seen in the sums of its rows unless it is small beside the rounding of a whole row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.diagnose.candidate_formulas import CandidateFormulas
from precision_tool.lib.diagnose.error_shape import (
    ACCUMULATED,
    APPROXIMATED,
    LIMIT,
    MEAN_SQUARE,
    MIN_MISROUNDED,
    ONE_WAY,
    SLACK,
    SMALLEST,
    UNIT,
    flat_doubles,
    has_rounding,
    norm,
)
from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, HF32_INSIDE, Formula
from precision_tool.lib.diagnose.op_values import Batch, NoValueError, OpInputs, Rows, RunValues, spread
from precision_tool.lib.diagnose.verdict_model import OpResult, SlotResult, State
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.layouts import reading_of
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import Doubles, Input, Kind, Output, Places, summed_of
from precision_tool.lib.ops.matrix import MAX_RESULT, MAX_WORK
from precision_tool.lib.ops.op_arguments import distinct

#: Elements that are held as doubles at once.
_AT_ONCE = 1 << 20
#: Elements at most of the rows that are farthest off, and as many of those without a sum, which are then recomputed.
_SHOWN = 1 << 12


@dataclass(frozen=True, slots=True)
class OddRows:
    """The flat places of output 0 in rows whose sums are not what they should be, and how many such rows are left."""

    places: Places
    left: int


def odd_rows(formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], u_in: float) -> OddRows | None:
    """Return the rows of output 0 whose sums are off by more than rounding, and some without a sum.

    A row with an element that is not finite has none: its other elements may be right, so that it tells less than one
    that is off. None where nothing was summed. `u_in` is what the matrix unit may round the inputs to.
    """
    output = got.get(0)
    sums = formula.row_sums(inputs) if output is not None else None
    if output is None or sums is None or output.dtype not in UNIT:
        return None
    rows = sums.as_rows(np.asarray(output.array))
    if rows.shape != (len(sums.sums), len(sums.signs)):
        return None
    with np.errstate(all="ignore"):
        total, energy = _summed(rows, sums.signs)
        # Of all elements of a row together, as `summed_of` has it of each.
        summed = summed_of(np.sqrt(energy), sums.squares - energy / max(sums.length, 1), sums.length)
        variance = UNIT[output.dtype] ** 2 * energy + (ACCUMULATED * summed) ** 2 + u_in**2 * sums.squares
        sigma = np.sqrt(MEAN_SQUARE * variance + rows.shape[1] * SMALLEST[output.dtype] ** 2 / 3)
        off = np.abs(total - sums.sums)
        ratio = np.divide(off, sigma, out=np.zeros_like(off), where=off != 0)
    is_told = np.isfinite(off) & ~np.isnan(ratio)
    off_rows = np.flatnonzero(is_told & (ratio > SLACK[Kind.MATRIX]))
    untold = np.flatnonzero(~is_told)
    few = max(1, _SHOWN // rows.shape[1])
    farthest = off_rows[np.argsort(-ratio[off_rows], kind="stable")[:few]]
    some = untold[:: max(1, -(-len(untold) // few))]
    left = len(off_rows) - len(farthest) + len(untold) - len(some)
    return OddRows(sums.places(distinct(np.append(farthest, some))), left)


def _summed(rows: npt.NDArray[Any], signs: Doubles) -> tuple[Doubles, Doubles]:
    """Return of each row the sum of its elements with their signs, and that of their squares."""
    total, energy = np.empty(len(rows)), np.empty(len(rows))
    step = max(1, _AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        wide = np.asarray(rows[some], np.float64)
        total[some], energy[some] = wide @ signs, np.einsum("rc,rc->r", wide, wide)
    return total, energy


# --- check in blocks --------------------------------------------------------------------------------------------------


#: Elements of a block, of all its tensors about four times as many.
_BLOCK = 1 << 17
#: A block of rows has so many times the elements of what it is multiplied with, but no more than this.
_TIMES_FACTOR, _MAX_ROWS = 4, 1 << 22
#: Elements of a chain that are computed twice to tell what float32 inside makes of all.
_TRIED = 1 << 12
#: Groups that these are told apart in.
_GROUPS = 16
#: Products and sums up to which an op is looked at whole.
MAX_WHOLE_WORK, MAX_WIDE_WORK = 1e9, 2e7
#: A correctly rounded element is off by at most so many times its rms, squared; the last digits are float32's.
_EXACT = 1 / MEAN_SQUARE * 1.0005
#: Float32 inputs go into the matrix unit with 11 digits less on some chips (HF32), without being asked for.
_HF32 = 2.0**-12
#: Sums whose input need not be widened, and is not cut into blocks.
SUMS = frozenset({
    "BiasAddGrad", "ReduceSum", "ReduceSumD", "Sum", "ReduceMean", "ReduceMeanD", "Mean",
    "BNTrainingReduce", "BN3DTrainingReduce", "BNTrainingUpdateGrad", "BN3DTrainingUpdateGrad",
})  # fmt: skip
_IN_FLOAT32 = (Kind.EXACT, Kind.ROUNDED, Kind.MATRIX)

Array = npt.NDArray[Any]
#: What blocks are computed in.
Float = type[np.float32] | type[np.float64]


def right_in_blocks(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], u_in: float
) -> tuple[SlotResult, ...] | None:
    """Return the judgement of every output if each of their elements is right; None if that does not show here.

    Inputs and outputs are as they were stored: floating types up to float32 in float32. `u_in` is what the matrix unit
    may round the inputs to. Raises what the formula raises.
    """
    looked_at = _looked_at(formula, inputs, got)
    if looked_at is None:
        return None
    dtype, parts = looked_at
    fed_as: Float = np.float32 if _sums_in_doubles(formula) else dtype
    is_chain = len(formula.stages) > 1
    noise = _noise(formula, inputs, parts, u_in) if is_chain and parts is not None else {}
    if noise is None:
        return None
    part = formula.unshaped(parts.rows_in_all) if parts is not None else formula
    sums = {slot: _Sums(got[slot].dtype, formula.kind, u_in, noise.get(slot, 0.0)) for slot in got}
    for some, flat in parts.blocks(inputs, got) if parts is not None else [(inputs, got)]:
        wide = {slot: _as(tensor, fed_as) for slot, tensor in some.items()}
        true = part.run(wide)
        slots = [slot for slot in true if slot in flat]
        if not slots:
            return None
        for slot in slots:
            if not sums[slot].add(np.asarray(flat[slot].array), true[slot], dtype):
                return None
    return tuple(tensor.result(slot) for slot, tensor in sorted(sums.items()) if tensor.size)


def is_looked_at(formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]) -> bool:
    """Return whether a first look is taken at an op: then it sees every element."""
    return _looked_at(formula, inputs, got) is not None


def _looked_at(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]
) -> tuple[Float, Parts | None] | None:
    """Return the type and the parts (None: all at once) of a first check; None for an op without one."""
    kinds = [spec.kind for stage in formula.stages if (spec := stage.spec) is not None]
    is_chain = len(formula.stages) > 1
    narrow = all(kind in _IN_FLOAT32 for kind in kinds) and (not is_chain or Kind.MATRIX in kinds)
    narrow &= all(_is_half(tensor) for tensor in (*inputs.values(), *got.values()))
    most = MAX_WHOLE_WORK if narrow else MAX_WIDE_WORK
    if formula.lent or (formula.by_channel(inputs) is None and formula.work(inputs) > most):
        return None
    parts = parts_of(formula, inputs, got)
    is_whole = (Kind.MATRIX in kinds and narrow) or _sums_in_doubles(formula)
    if parts is None and (is_chain or not is_whole):
        return None
    return np.float32 if narrow else np.float64, parts


def _sums_in_doubles(formula: Formula) -> bool:
    """Return whether an op sums in float64 even where its input is float32, which keeps it as stored."""
    return len(formula.stages) == 1 and formula.stages[0].op_type in SUMS


def folded_type(formula: Formula, inputs: Mapping[int, Input]) -> str:
    """Return the coarsest type of the inputs that parameters were folded into; empty if none were."""
    if not formula.lent:
        return ""
    used = {slot for stage in formula.stages for slot in stage.input_slots}
    types = [tensor.dtype for slot, tensor in inputs.items() if slot not in used and tensor.dtype in UNIT]
    return max(types, key=lambda dtype: UNIT[dtype], default="")


def type_inside(formula: Formula, inputs: Mapping[int, Input]) -> str:
    """Return what the stages of a chain may store their results as."""
    folded = folded_type(formula, inputs)
    return folded or (HF32_INSIDE if narrowing(formula, inputs) == _HF32 else "float32")


def narrowing(formula: Formula, inputs: Mapping[int, Input]) -> float:
    """Return the unit roundoff of the inputs after the matrix unit or folding narrowed them."""
    folded = folded_type(formula, inputs)
    if folded:
        return UNIT[folded]
    specs = (stage.spec for stage in formula.stages)
    on_matrix_unit = any(spec is not None and spec.kind is Kind.MATRIX for spec in specs)
    return _HF32 if on_matrix_unit and any(tensor.dtype == "float32" for tensor in inputs.values()) else 0.0


def run_in_blocks(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], stored: str = ""
) -> dict[int, Output]:
    """Return `Formula.run`, part by part where the op can be cut, so that intermediates stay small.

    What is too large for `Formula.run` is not run in parts either.
    """
    parts = parts_of(formula, inputs, got) if not formula.lent else None
    size = max((tensor.array.size for tensor in got.values()), default=0)
    if parts is None or parts.rows <= parts.per_block or size > MAX_RESULT or formula.work(inputs) > MAX_WORK:
        return formula.run(inputs, stored)
    chain = formula.unshaped(parts.rows_in_all)
    made: dict[int, _Assembled] = {}
    for some, flat in parts.blocks(inputs, got):
        for slot, out in chain.run(some, stored).items():
            if slot not in flat:
                continue
            is_small = parts.outputs is not None and slot not in parts.outputs
            if (out.array.size if is_small else out.array.shape) != (
                flat[slot].array.size if is_small else flat[slot].array.shape
            ):  # the whole says why
                return formula.run(inputs, stored)
            made.setdefault(slot, _Assembled(got[slot].array.shape)).add(out)
    return {slot: tensor.output() for slot, tensor in made.items()}


@dataclass(slots=True)
class _Assembled:
    """An output put together from its parts."""

    shape: tuple[int, ...]
    done: int = 0
    arrays: dict[str, Array] = field(default_factory=dict)
    #: Its first part, whose sums are those of the others: what is cut are rows.
    first: Output | None = None

    def add(self, out: Output) -> None:
        """Add the next part."""
        self.first = self.first or out
        parts = {"array": out.array, "summed": out.summed, "terms": out.terms, "doubtful": out.doubtful}
        for name, part in parts.items():
            if part is None or (not isinstance(part, np.ndarray) and not part):
                continue
            wide = np.broadcast_to(part, out.array.shape)
            whole = self.arrays.setdefault(name, np.zeros(prod(self.shape), wide.dtype))
            whole[self.done : self.done + wide.size] = wide.reshape(-1)
        self.done += out.array.size

    def output(self) -> Output:
        """Return the whole."""
        shaped = {name: array.reshape(self.shape) for name, array in self.arrays.items()}
        return Output(
            array=shaped["array"], summed=shaped.get("summed", 0.0), terms=shaped.get("terms", 0.0),
            doubtful=shaped.get("doubtful"), length=self.first.length if self.first is not None else 0,
            chained=self.first.chained if self.first is not None else None,
        )  # fmt: skip


def _is_half(tensor: Input) -> bool:
    """Return whether float32 is wide enough for a tensor: float16, one number that scales others, or whole numbers."""
    return (
        tensor.dtype == "float16"
        or tensor.array.dtype.kind in "iub"
        or (tensor.array.size == 1 and tensor.dtype == "float32")
    )


def _as(tensor: Input, dtype: Float) -> Input:
    if tensor.array.dtype.kind != "f" or tensor.array.dtype == dtype:
        return tensor
    return Input(array=tensor.array.astype(dtype), dtype=tensor.dtype, layout=tensor.layout)


# --- parts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """Partition of an op's result: which inputs are cut with it, and how many rows there are.

    `is_flat`: rows are single elements, whatever the shape.
    """

    rows: int
    cut: frozenset[int]
    per_block: int
    is_flat: bool
    #: Outputs that are cut; the others, which come with the first part, are few numbers. None: all.
    outputs: frozenset[int] | None = None
    #: What a tensor's shape becomes, where its rows are those of several axes.
    folded: tuple[int, ...] = ()

    @property
    def rows_in_all(self) -> int:
        """Return how many rows the op has in all; 0 where it does not matter."""
        return 0 if self.outputs is None else self.rows

    def blocks(
        self, inputs: Mapping[int, Input], got: Mapping[int, Input]
    ) -> Iterator[tuple[dict[int, Input], dict[int, Input]]]:
        """Yield inputs and outputs part by part."""
        ins = {slot: self._rows_of(tensor) if slot in self.cut else tensor for slot, tensor in inputs.items()}
        outs = {slot: self._rows_of(tensor) if self.is_cut(slot) else tensor for slot, tensor in got.items()}
        for start in range(0, self.rows, self.per_block):
            rows = slice(start, start + self.per_block)
            yield (
                self._some(ins, rows),
                {
                    slot: _cut(tensor, rows) if self.is_cut(slot) else tensor
                    for slot, tensor in outs.items()
                    if not start or self.is_cut(slot)
                },
            )

    def is_cut(self, slot: int) -> bool:
        """Return whether an output has the rows."""
        return self.outputs is None or slot in self.outputs

    def at(self, inputs: Mapping[int, Input], rows: npt.NDArray[np.intp]) -> dict[int, Input]:
        """Return the inputs of some rows."""
        ins = {slot: self._rows_of(tensor) if slot in self.cut else tensor for slot, tensor in inputs.items()}
        return self._some(ins, rows)

    def _some(self, inputs: Mapping[int, Input], rows: slice | npt.NDArray[np.intp]) -> dict[int, Input]:
        return {slot: _cut(tensor, rows) if slot in self.cut else tensor for slot, tensor in inputs.items()}

    def _rows_of(self, tensor: Input) -> Input:
        if self.folded and tensor.array.size == prod(self.folded):
            return replace(tensor, array=tensor.array.reshape(self.folded))
        return Input(array=tensor.array.reshape(-1), dtype=tensor.dtype) if self.is_flat else tensor


def _cut(tensor: Input, rows: slice | npt.NDArray[np.intp]) -> Input:
    return Input(array=tensor.array[rows], dtype=tensor.dtype, layout=tensor.layout)


def parts_of(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], *, folds: bool = True
) -> Parts | None:
    """Return how the op can be cut; None where it cannot. Without `folds` along the first axis of its tensors."""
    if not inputs or not got:
        return None
    if all(stage.is_by_element for stage in formula.stages):
        return _parts_of_elements(inputs, got)
    by_channel = formula.by_channel(inputs)
    if by_channel is not None:
        return _parts_of_images(by_channel, inputs, got, folds)
    batch = formula.batch_of(inputs)
    if batch is None:
        return None
    rows, cut = batch
    if not rows or any(not tensor.array.ndim or tensor.array.shape[0] != rows for tensor in got.values()):
        return None
    per_row = max(1, sum(tensor.array.size for tensor in got.values()) // rows)
    whole = sum(tensor.array.size for slot, tensor in inputs.items() if slot not in cut)
    size = min(max(_BLOCK, _TIMES_FACTOR * whole), _MAX_ROWS)
    return Parts(rows, cut, max(1, size // per_row), False)


def _parts_of_images(batch: Batch, inputs: Mapping[int, Input], got: Mapping[int, Input], folds: bool) -> Parts | None:
    """Return how an op can be cut that is told numbers of each channel; small outputs are numbers of channels too.

    Where the channels come last, the lines of an image are rows as well as images are.
    """
    first = next(tensor for slot, tensor in sorted(inputs.items()) if slot in batch.inputs)
    shape, rows = first.array.shape, batch.rows
    outputs = frozenset(slot for slot, tensor in got.items() if tensor.array.shape == shape)
    folded: tuple[int, ...] = ()
    if folds and len(shape) > 3 and first.layout.endswith("C"):
        rows = prod(shape[:-2])
        folded = (rows, *[1] * (len(shape) - 3), *shape[-2:])
    if not outputs or rows < 2:
        return None
    size = prod(shape)
    return Parts(rows, batch.inputs, max(1, _BLOCK * rows // max(1, size)), False, outputs, folded)


def _parts_of_elements(inputs: Mapping[int, Input], got: Mapping[int, Input]) -> Parts | None:
    shapes = [tensor.array.shape for tensor in inputs.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return None
    size = prod(shape)
    if not size or any(tensor.array.size != size for tensor in got.values()):
        return None
    if all(tensor == shape or prod(tensor) == 1 for tensor in shapes):
        cut = frozenset(slot for slot, tensor in inputs.items() if tensor.array.shape == shape)
        return Parts(size, cut, _BLOCK, True)
    if any(tensor.array.shape != shape for tensor in got.values()):
        return None
    rows = shape[0]
    cut = frozenset(
        slot for slot, tensor in inputs.items() if tensor.array.ndim == len(shape) and tensor.array.shape[0] == rows > 1
    )
    return Parts(rows, cut, max(1, _BLOCK // (size // rows)), False) if cut else None


def _noise(formula: Formula, inputs: Mapping[int, Input], parts: Parts, u_in: float) -> dict[int, float] | None:
    """Return the rms error of float32 intermediates, estimated on some rows; None if unknown."""
    count = min(parts.rows, max(2, _TRIED * parts.per_block // _BLOCK))
    rows = distinct(np.linspace(0, parts.rows - 1, count).astype(np.intp))
    some = {slot: _as(tensor, np.float64) for slot, tensor in parts.at(inputs, rows).items()}
    chain = formula.unshaped()
    true, stored = chain.run(some), chain.run(some, HF32_INSIDE if u_in == _HF32 else "float32")
    noise: dict[int, float] = {}
    for slot, out in stored.items():
        off = flat_doubles(out.array) - flat_doubles(true[slot].array)
        # The least of several groups: one large element must not allow more to all others.
        groups = [group for group in np.array_split(off, _GROUPS) if group.size]
        if groups:
            noise[slot] = min(norm(group) / sqrt(group.size) for group in groups)
    return noise if noise and all(map(isfinite, noise.values())) else None


# --- sums of a block --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sums:
    """One output as far as it was looked at."""

    dtype: str
    kind: Kind
    u_in: float
    noise: float
    size: int = 0
    off: float = 0.0
    true: float = 0.0
    sigma: float = 0.0
    worst: float = 0.0
    exact: int = 0

    @property
    def slack(self) -> float:
        """Allowed difference in units of its rms."""
        return SLACK[self.kind] if self.dtype in UNIT else 0.0

    def add(self, got: Array, out: Output, dtype: Float) -> bool:
        """Add a block; return False where an element of it is not plainly right."""
        if got.size != out.array.size or got.dtype.kind == "c" or out.array.dtype.kind == "c":
            return False
        y, f = got.reshape(-1), np.asarray(out.array).reshape(-1)
        self.size += f.size
        is_moved = self.kind is Kind.EXACT and _is_nothing(out.summed) and _is_nothing(out.terms) and not self.noise
        if self.dtype not in UNIT or f.dtype.kind != "f":
            self.exact += f.size
            return bool(is_moved and np.array_equal(y, f))  # whole numbers are right or wrong
        y, f = y.astype(dtype, copy=False), f.astype(dtype, copy=False)
        squares = f * f
        # Infinities and NaN end here as well, and what may leave the range of the type.
        if not float(squares.max()) < min((LIMIT[self.dtype] / 2) ** 2, float(np.finfo(dtype).max)):
            return False
        size = float(squares.sum(dtype=dtype))
        self.true += size
        unit = MEAN_SQUARE * UNIT[self.dtype] ** 2
        if is_moved and np.array_equal(y, f):
            self.sigma += unit * size
            self.exact += f.size
            return True
        return self._held_against(y, f, out, squares)

    def _held_against(self, y: Array, f: Array, out: Output, squares: Array) -> bool:
        """Add a block whose squares are known."""
        variance = squares
        variance *= MEAN_SQUARE * UNIT[self.dtype] ** 2
        for part, rounded in ((out.summed, ACCUMULATED), (out.terms, self.u_in)):
            if rounded and not _is_nothing(part):
                wide = np.broadcast_to(np.asarray(part, f.dtype), out.array.shape).reshape(-1) * f.dtype.type(rounded)
                wide *= wide
                wide *= MEAN_SQUARE
                variance += wide
        variance += SMALLEST[self.dtype] ** 2 / 3 + self.noise**2
        if self.dtype == "float32" and self.kind in APPROXIMATED:
            np.maximum(variance, (APPROXIMATED[self.kind] * f) ** 2, out=variance)
        off = y - f
        off *= off
        sigma = float(variance.sum())
        distance = float(off.sum())
        off /= variance
        if out.doubtful is not None and out.doubtful.any():
            # Many times as fast as setting these to 0 one by one; a NaN among them is looked at closely.
            off *= ~np.broadcast_to(out.doubtful, out.array.shape).reshape(-1)
        worst = float(off.max())
        if not (worst <= self.slack**2 and isfinite(sigma) and isfinite(distance)):
            return False
        if worst > _EXACT and self._may_be_misrounded(y, f, off):
            return False
        self.worst = max(self.worst, worst)
        self.off += distance
        self.sigma += sigma
        self.exact += int(np.count_nonzero(off <= _EXACT))
        return True

    def _may_be_misrounded(self, y: Array, f: Array, off: Array) -> bool:
        """Return whether many elements are rounded to the farther neighbour by an op that rounds once, toward zero."""
        if self.noise or self.kind not in (Kind.EXACT, Kind.ROUNDED):
            return False
        farther = off > _EXACT
        count = int(np.count_nonzero(farther))
        if count < MIN_MISROUNDED or self.kind is Kind.EXACT:
            return count >= MIN_MISROUNDED
        return int(np.count_nonzero(np.abs(y[farther]) < np.abs(f[farther]))) >= ONE_WAY * count

    def result(self, slot: int) -> SlotResult:
        """Return what the blocks say of the output."""
        return SlotResult(
            slot=slot, dtype=self.dtype, size=self.size, kind=self.kind,
            own=_root(self.off, self.true), rounding=_root(self.sigma, self.true), worst=sqrt(self.worst),
            slack=self.slack, beyond=0, exact_share=self.exact / self.size, overflowed=0, largest=0.0, not_finite=0,
            places=None,
        )  # fmt: skip


def _is_nothing(part: npt.NDArray[np.float64] | float) -> bool:
    return not isinstance(part, np.ndarray) and not part


def _root(squares: float, size: float) -> float:
    return sqrt(squares / size) if size else (0.0 if not squares else float("inf"))


# --- check on some channels ---


#: Sums over everything but the channels, each of which is computed alone.
_SUMS_OF_CHANNELS = frozenset({"BiasAddGrad", "BNTrainingReduce", "BNTrainingUpdateGrad"})
#: Channels that are looked at: this share of them, at least so many, in blocks that lie together.
_CHANNELS_PER_SAMPLED, _MIN_SAMPLE_CHANNELS, _CHANNEL_BLOCK = 8, 32, 16


def of_some_channels(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], place: int
) -> tuple[dict[int, Input], dict[int, Input]] | None:
    """Return inputs and outputs with some channels only, those at `place` among them.

    None for an op that is no sum over images with the channels last, or has few channels.
    """
    (stage, *others) = formula.stages
    first = inputs[min(inputs)] if inputs else None
    if others or stage.op_type not in _SUMS_OF_CHANNELS or first is None or not first.layout.endswith("C"):
        return None
    shape = first.array.shape
    channels = shape[-1]
    are_plain = all(tensor.array.shape == shape or tensor.array.size == channels for tensor in inputs.values())
    if not are_plain or any(tensor.array.size != channels for tensor in got.values()):
        return None
    count = max(_MIN_SAMPLE_CHANNELS, channels // _CHANNELS_PER_SAMPLED)
    if count * 2 > channels or str(stage.attrs.get("data_format") or "").startswith("NC"):
        return None
    rows = spread(channels, count, count // _CHANNEL_BLOCK, _CHANNEL_BLOCK).and_also(np.array([place], np.intp))

    def some(tensor: Input) -> Input:
        if tensor.array.shape == shape:
            return replace(tensor, array=np.concatenate([tensor.array[..., slice(*ends)] for ends in rows.pieces], -1))
        return replace(tensor, array=rows.of(tensor.array.reshape(-1)), layout="ND")

    return {slot: some(tensor) for slot, tensor in inputs.items()}, {slot: some(tensor) for slot, tensor in got.items()}


# --- check on sample rows ---------------------------------------------------------------------------------------------


#: Elements of the inputs and outputs of an op from which on some are looked at: this share of the rows, at least so
#: many rows and elements of the output.
_SAMPLE_FROM_ELEMENTS = 1 << 20
_ROWS_PER_SAMPLED, _MIN_SAMPLE_ROWS, _MIN_SAMPLE_ELEMENTS = 8, 6, 1 << 15
#: In how many pieces, and about how large ones: many small reads take longer than few.
_MIN_PIECES, _MAX_PIECES, _PIECE_ELEMENTS = 8, 64, 1 << 14
#: Rows that blocks of a matrix hold.
_BLOCK_ROWS = 16
#: Rows that elements are counted in at least, where an op treats each alone.
_MIN_COUNTED_ROWS = 512

_Found = dict[int, tuple[Tensor, TensorDesc | None]]


#: Judges an op by a formula of a part of it, its inputs and outputs.
Judge = Callable[[Formula, Mapping[int, Input], Mapping[int, Input]], OpResult | None]


def right_by_sample(
    values: RunValues, candidates: CandidateFormulas, base: OpResult, closer: Judge | None = None
) -> OpResult | None:
    """Return the judgement of an op whose chosen rows are right; None for any other, of which nothing is told.

    Rows that are not plainly right are looked at by `closer`, if it is given, whose judgement then is that of the op.
    """
    op = base.op
    tensors = _own_tensors(values, op)
    if tensors is None:
        return None
    inputs, outputs = tensors
    is_blocked = not all(layouts.is_plain(item.layout) for item, _ in (*inputs.values(), *outputs.values()))
    try:
        op_inputs = OpInputs(inputs={slot: _unread(*item) for slot, item in inputs.items()})
        got = {slot: _unread(*item) for slot, item in outputs.items()}
        for formula in candidates.without_search(op, op_inputs):
            slots = None
            parts = parts_of(formula, op_inputs.inputs, got, folds=is_blocked) if not formula.lent else None
            rows = _rows(parts, op_inputs.inputs, got, is_blocked) if parts is not None else None
            if rows is not None and parts is not None:
                rows = _with_the_worst(rows, got, values.compared.places, op.name, is_blocked)
                few = {slot: values.load(*item, stored=True, rows=rows.if_in(slot)) for slot, item in inputs.items()}
                some = {
                    slot: values.load(*item, stored=True, rows=rows if parts.is_cut(slot) else None)
                    for slot, item in outputs.items()
                }
                part = formula.unshaped(parts.rows_in_all)
                slots = right_in_blocks(part, few, some, narrowing(part, few))
                judged = closer(part, few, some) if not slots and closer is not None and formula.is_certain else None
                if judged is not None:
                    return replace(judged, formula=formula, slots=as_sampled(judged.slots, got))
            if slots:
                whole_slots = as_sampled(slots, got)
                candidates.fitting.setdefault(candidates.key(op), formula.shape)
                return replace(base, how=formula.how, formula=formula, slots=whole_slots, state=State.RIGHT)
    except (NoValueError, *FORMULA_ERRORS):
        pass  # the whole says why
    return None


def as_sampled(slots: Sequence[SlotResult], got: Mapping[int, Input]) -> tuple[SlotResult, ...]:
    """Return the judgements of outputs as those of some of their elements, where they are some."""
    sizes = {slot: tensor.array.size for slot, tensor in got.items()}
    return tuple(
        replace(item, size=sizes[item.slot], sampled=item.size) if item.size < sizes[item.slot] else item
        for item in slots
    )


def _own_tensors(values: RunValues, op: Op) -> tuple[_Found, _Found] | None:
    """Return inputs and outputs as the op's own dump has all of them; None if it lacks one, or they are few."""
    dump = values.dumped(op)
    if dump is None or dump.merged:
        return None
    inputs, outputs = {}, {}
    for slot in values.input_slots(op):
        tensor = values.tensor_at(slot)
        if not isinstance(tensor, Tensor):
            return None
        inputs[slot.index] = tensor, slot.desc
    for index, tensor in dump.outputs.items():
        if not isinstance(tensor, Tensor):
            return None
        outputs[index] = tensor, op.output_desc(index)
    tensors = [entry for entry, _ in (*inputs.values(), *outputs.values())]
    if sum(entry.size for entry in tensors) < _SAMPLE_FROM_ELEMENTS or len(outputs) < max(len(op.output_descs), 1):
        return None
    return (inputs, outputs) if inputs and all(has_rounding(entry.dtype) for entry in tensors) else None


def _unread(tensor: Tensor, desc: TensorDesc | None) -> Input:
    """Return a tensor's type and shape in the order of the script, of numbers that take no memory."""
    named = desc.origin_layout if desc is not None else None
    declared = desc.origin_shape if desc is not None else None
    reading = reading_of(tensor, named, declared)
    if not reading.layout:
        raise NoValueError("axes_unknown")
    shape = reading.shape
    if declared is not None and prod(declared) == prod(shape) and min(declared, default=0) >= 0:
        shape = declared
    data_type = data_types.BY_NAME[tensor.dtype]
    kind = np.int8 if data_type.is_integer else np.bool_ if data_type.name == "bool" else np.float32
    layout = named if named and len(named) == len(shape) else "ND"
    return Input(array=np.broadcast_to(np.zeros((), kind), shape), dtype=tensor.dtype, layout=layout)


def _rows(parts: Parts, inputs: Mapping[int, Input], got: Mapping[int, Input], is_blocked: bool) -> Rows | None:
    """Return which rows are looked at; None where an op has few, or tensors of several shapes.

    Of tensors that lie in blocks those along the first axis can be read alone, and the lines of images.
    """
    size = max(tensor.array.size for tensor in got.values())
    cut = [tensor for slot, tensor in got.items() if parts.is_cut(slot)] + [inputs[slot] for slot in parts.cut]
    shapes = {tensor.array.shape for tensor in cut}
    count, is_flat, are_lines = parts.rows, False, bool(parts.folded)
    if parts.folded and len(parts.folded) != 4:
        return None
    if parts.is_flat:
        if len(shapes) != 1:
            return None
        (shape,) = shapes
        are_lines = is_blocked and len(shape) == 4 and all(tensor.layout == "NHWC" for tensor in cut)
        is_flat = not are_lines
        several = [prod(shape[:axis]) for axis in range(1, len(shape))]
        count = next((rows for rows in several if rows >= _MIN_COUNTED_ROWS and not is_blocked), shape[0])
        count = several[1] if are_lines else count
    chosen = max(_MIN_SAMPLE_ROWS, -(-count // _ROWS_PER_SAMPLED), -(-count * _MIN_SAMPLE_ELEMENTS // size))
    if chosen * 2 > count:
        return None
    pieces = min(_MAX_PIECES, max(_MIN_PIECES, chosen * (size // count) // _PIECE_ELEMENTS))
    block = _BLOCK_ROWS if is_blocked and not are_lines and chosen >= _MIN_PIECES * _BLOCK_ROWS else 1
    return replace(spread(count, chosen, pieces, block, parts.cut), is_flat=is_flat, are_lines=are_lines)


def _with_the_worst(
    rows: Rows, got: Mapping[int, Input], places: Mapping[tuple[str, str], tuple[int, int]], name: str, is_blocked: bool
) -> Rows:
    """Return these rows and those in which the comparison found the largest errors of the outputs."""
    block = _BLOCK_ROWS if is_blocked and not rows.are_lines else 1
    for slot, output in got.items():
        place, size = places.get((name, f"output:{slot}"), (0, 0))
        if place < size == output.array.size:
            first = place * rows.count // size // block * block
            rows = rows.with_piece(first, min(first + block, rows.count))
    return rows
