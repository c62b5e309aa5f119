"""A first look at an op, block by block: whether every element is what rounding makes of the true one.

The blocks stay in the cache, and float16 is held against float32, in which its sums and products are all but exact.
What does not plainly pass here is judged again by `judge`, whole and in float64: nothing is called wrong here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops import table
from precision_tool.lib.ops.arguments import distinct
from precision_tool.lib.ops.base import Input, Kind, Output
from precision_tool.lib.ops.products import MAX_RESULT, MAX_WORK
from precision_tool.lib.verdict.formulas import Formula
from precision_tool.lib.verdict.judgement import SlotJudgement
from precision_tool.lib.verdict.rounding import (
    ACCUMULATED,
    APPROXIMATED,
    LIMIT,
    MEAN_SQUARE,
    SLACK,
    SMALLEST,
    UNIT,
    norm,
)

#: Elements of a block, of all its tensors about four times as many.
_BLOCK = 1 << 17
#: A block of rows has so many times the elements of what it is multiplied with, but no more than this.
_TIMES_FACTOR, _MOST_ROWS = 4, 1 << 22
#: Elements of a chain that are computed twice to tell what float32 inside makes of all.
_TRIED = 1 << 12
#: Groups that these are told apart in.
_GROUPS = 16
#: Products and sums up to which an op is looked at whole.
MOST_WORK, MOST_WIDE_WORK = 1e9, 2e7
#: A correctly rounded element is off by at most so many times its rms, squared; the last digits are float32's.
_EXACT = 1 / MEAN_SQUARE * 1.0005
#: Float32 inputs go into the matrix unit with 11 digits less on some chips (HF32), without being asked for.
_HF32 = 2.0**-12
#: Sums whose input need not be widened, and is not cut into blocks.
_SUMS = frozenset({"BiasAddGrad", "ReduceSum", "ReduceSumD", "Sum", "ReduceMean", "ReduceMeanD", "Mean"})
_IN_FLOAT32 = (Kind.EXACT, Kind.ROUNDED, Kind.MATRIX)

Array = npt.NDArray[Any]
#: What blocks are computed in.
Float = type[np.float32] | type[np.float64]


def right_in_blocks(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], u_in: float
) -> tuple[SlotJudgement, ...] | None:
    """The judgement of every output if each of their elements is right; None if that does not show here.

    Inputs and outputs are as they were stored: floating types up to float32 in float32. `u_in` is what the matrix unit
    may round the inputs to. Raises what the formula raises.
    """
    looked_at = _looked_at(formula, inputs, got)
    if looked_at is None:
        return None
    dtype, parts = looked_at
    fed_as: Float = np.float32 if _sums_in_doubles(formula) else dtype
    is_chain = len(formula.stages) > 1
    noise = _noise(formula, inputs, parts) if is_chain and parts is not None else {}
    if noise is None:
        return None
    part = formula.unshaped() if parts is not None else formula
    sums = {slot: _Sums(got[slot].dtype, formula.kind, u_in, noise.get(slot, 0.0)) for slot in got}
    for some, flat in parts.blocks(inputs, got) if parts is not None else [(inputs, got)]:
        wide = {slot: _as(one, fed_as) for slot, one in some.items()}
        true = part.run(wide)
        found = [slot for slot in true if slot in got]
        if not found:
            return None
        for slot in found:
            if not sums[slot].add(np.asarray(flat[slot].array), true[slot], dtype):
                return None
    return tuple(one.judgement(slot) for slot, one in sorted(sums.items()) if one.size)


def is_looked_at(formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]) -> bool:
    """Whether a first look is taken at an op: then it sees every element."""
    return _looked_at(formula, inputs, got) is not None


def _looked_at(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]
) -> tuple[Float, Parts | None] | None:
    """What a first look is computed in, and the parts (None: all at once); None for an op that none is taken at."""
    kinds = [spec.kind for stage in formula.stages if (spec := table.find(stage.op_type)) is not None]
    is_chain = len(formula.stages) > 1
    narrow = all(kind in _IN_FLOAT32 for kind in kinds) and (not is_chain or Kind.MATRIX in kinds)
    narrow &= all(_is_half(one) for one in (*inputs.values(), *got.values()))
    if formula.lent or formula.work(inputs) > (MOST_WORK if narrow else MOST_WIDE_WORK):
        return None
    parts = parts_of(formula, inputs, got)
    is_whole = (Kind.MATRIX in kinds and narrow) or _sums_in_doubles(formula)
    if parts is None and (is_chain or not is_whole):
        return None
    return np.float32 if narrow else np.float64, parts


def _sums_in_doubles(formula: Formula) -> bool:
    """Whether an op sums what it is fed in float64 also where that is float32, which holds it as it was stored."""
    return len(formula.stages) == 1 and formula.stages[0].op_type in _SUMS


def folded_type(formula: Formula, inputs: Mapping[int, Input]) -> str:
    """The coarsest type of the inputs that parameters were folded into; empty if none were."""
    if not formula.lent:
        return ""
    used = {ref.slot for stage in formula.stages for ref in stage.args if ref is not None and ref.stage is None}
    types = [one.dtype for slot, one in inputs.items() if slot not in used and one.dtype in UNIT]
    return max(types, key=lambda dtype: UNIT[dtype], default="")


def narrowing(formula: Formula, inputs: Mapping[int, Input]) -> float:
    """To what the matrix unit may round the inputs, or folding has rounded them."""
    folded = folded_type(formula, inputs)
    if folded:
        return UNIT[folded]
    specs = map(table.find, formula.how)
    on_matrix_unit = any(spec is not None and spec.kind is Kind.MATRIX for spec in specs)
    return _HF32 if on_matrix_unit and any(one.dtype == "float32" for one in inputs.values()) else 0.0


def run_in_blocks(
    formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input], stored: str = ""
) -> dict[int, Output]:
    """`Formula.run`, part by part where the op can be cut, so that what it makes on the way stays small.

    What is too large for `Formula.run` is not run in parts either.
    """
    parts = parts_of(formula, inputs, got) if not formula.lent else None
    size = max((one.array.size for one in got.values()), default=0)
    if parts is None or parts.rows <= parts.per_block or size > MAX_RESULT or formula.work(inputs) > MAX_WORK:
        return formula.run(inputs, stored)
    chain = formula.unshaped()
    made: dict[int, _Assembled] = {}
    for some, flat in parts.blocks(inputs, got):
        for slot, out in chain.run(some, stored).items():
            if slot not in flat:
                continue
            if out.array.shape != flat[slot].array.shape:  # the whole says why
                return formula.run(inputs, stored)
            made.setdefault(slot, _Assembled(got[slot].array.shape)).add(out)
    return {slot: one.output() for slot, one in made.items()}


@dataclass(slots=True)
class _Assembled:
    """An output put together from its parts."""

    shape: tuple[int, ...]
    done: int = 0
    arrays: dict[str, Array] = field(default_factory=dict)

    def add(self, out: Output) -> None:
        """Takes the next part in."""
        parts = {"array": out.array, "summed": out.summed, "terms": out.terms, "doubtful": out.doubtful}
        for name, part in parts.items():
            if part is None or (not isinstance(part, np.ndarray) and not part):
                continue
            wide = np.broadcast_to(part, out.array.shape)
            whole = self.arrays.setdefault(name, np.zeros(prod(self.shape), wide.dtype))
            whole[self.done : self.done + wide.size] = wide.reshape(-1)
        self.done += out.array.size

    def output(self) -> Output:
        """The whole."""
        shaped = {name: one.reshape(self.shape) for name, one in self.arrays.items()}
        return Output(
            array=shaped["array"], summed=shaped.get("summed", 0.0), terms=shaped.get("terms", 0.0),
            doubtful=shaped.get("doubtful"),
        )  # fmt: skip


def _is_half(one: Input) -> bool:
    """Whether float32 is wide enough for a tensor: float16, one number that scales others, or whole numbers."""
    return one.dtype == "float16" or one.array.dtype.kind in "iub" or (one.array.size == 1 and one.dtype == "float32")


def _as(one: Input, dtype: Float) -> Input:
    if one.array.dtype.kind != "f" or one.array.dtype == dtype:
        return one
    return Input(array=one.array.astype(dtype), dtype=one.dtype, layout=one.layout)


# --- what is judged at one time ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """How an op's result falls into parts: which inputs are cut with it, and how many rows there are.

    `is_flat`: rows are single elements, whatever the shape.
    """

    rows: int
    cut: frozenset[int]
    per_block: int
    is_flat: bool

    def blocks(
        self, inputs: Mapping[int, Input], got: Mapping[int, Input]
    ) -> Iterator[tuple[dict[int, Input], dict[int, Input]]]:
        """Inputs and outputs part by part."""
        ins = {slot: self._rows_of(one) if slot in self.cut else one for slot, one in inputs.items()}
        outs = {slot: self._rows_of(one) for slot, one in got.items()}
        for start in range(0, self.rows, self.per_block):
            rows = slice(start, start + self.per_block)
            yield self._some(ins, rows), {slot: _cut(one, rows) for slot, one in outs.items()}

    def at(self, inputs: Mapping[int, Input], rows: npt.NDArray[np.intp]) -> dict[int, Input]:
        """The inputs of some rows."""
        ins = {slot: self._rows_of(one) if slot in self.cut else one for slot, one in inputs.items()}
        return self._some(ins, rows)

    def _some(self, inputs: Mapping[int, Input], rows: slice | npt.NDArray[np.intp]) -> dict[int, Input]:
        return {slot: _cut(one, rows) if slot in self.cut else one for slot, one in inputs.items()}

    def _rows_of(self, one: Input) -> Input:
        return Input(array=one.array.reshape(-1), dtype=one.dtype) if self.is_flat else one


def _cut(one: Input, rows: slice | npt.NDArray[np.intp]) -> Input:
    return Input(array=one.array[rows], dtype=one.dtype, layout=one.layout)


def parts_of(formula: Formula, inputs: Mapping[int, Input], got: Mapping[int, Input]) -> Parts | None:
    """How the op can be cut; None where it cannot."""
    if not inputs or not got:
        return None
    if all(table.is_by_element(stage.op_type) for stage in formula.stages):
        return _parts_of_elements(inputs, got)
    batch = formula.batch_of(inputs)
    if batch is None:
        return None
    rows, cut = batch
    if not rows or any(not one.array.ndim or one.array.shape[0] != rows for one in got.values()):
        return None
    per_row = max(1, sum(one.array.size for one in got.values()) // rows)
    whole = sum(one.array.size for slot, one in inputs.items() if slot not in cut)
    size = min(max(_BLOCK, _TIMES_FACTOR * whole), _MOST_ROWS)
    return Parts(rows, cut, max(1, size // per_row), False)


def _parts_of_elements(inputs: Mapping[int, Input], got: Mapping[int, Input]) -> Parts | None:
    shapes = [one.array.shape for one in inputs.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return None
    size = prod(shape)
    if not size or any(one.array.size != size for one in got.values()):
        return None
    if all(one == shape or prod(one) == 1 for one in shapes):
        cut = frozenset(slot for slot, one in inputs.items() if one.array.shape == shape)
        return Parts(size, cut, _BLOCK, True)
    if any(one.array.shape != shape for one in got.values()):
        return None
    rows = shape[0]
    cut = frozenset(
        slot for slot, one in inputs.items() if one.array.ndim == len(shape) and one.array.shape[0] == rows > 1
    )
    return Parts(rows, cut, max(1, _BLOCK // (size // rows)), False) if cut else None


def _noise(formula: Formula, inputs: Mapping[int, Input], parts: Parts) -> dict[int, float] | None:
    """The rms of what float32 inside makes of a chain's results, from some of their rows; None if that is not told."""
    count = min(parts.rows, max(2, _TRIED * parts.per_block // _BLOCK))
    rows = distinct(np.linspace(0, parts.rows - 1, count).astype(np.intp))
    some = {slot: _as(one, np.float64) for slot, one in parts.at(inputs, rows).items()}
    chain = formula.unshaped()
    true, stored = chain.run(some), chain.run(some, "float32")
    noise: dict[int, float] = {}
    for slot, out in stored.items():
        off = np.asarray(out.array, np.float64).reshape(-1) - np.asarray(true[slot].array, np.float64).reshape(-1)
        # The least of several groups: one large element must not allow more to all others.
        groups = [group for group in np.array_split(off, _GROUPS) if group.size]
        if groups:
            noise[slot] = min(norm(group) / sqrt(group.size) for group in groups)
    return noise if noise and all(map(isfinite, noise.values())) else None


# --- what is held against what ----------------------------------------------------------------------------------------


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
        """What a difference may be, in units of its rms."""
        return SLACK[self.kind] if self.dtype in UNIT else 0.0

    def add(self, got: Array, out: Output, dtype: Float) -> bool:
        """Takes a block in; False where an element of it is not plainly right."""
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
        """Takes a block in whose squares are known."""
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
        self.worst = max(self.worst, worst)
        self.off += distance
        self.sigma += sigma
        self.exact += int(np.count_nonzero(off <= _EXACT))
        return True

    def judgement(self, slot: int) -> SlotJudgement:
        """What the blocks say of the output."""
        return SlotJudgement(
            slot=slot, dtype=self.dtype, size=self.size, kind=self.kind,
            own=_root(self.off, self.true), rounding=_root(self.sigma, self.true), worst=sqrt(self.worst),
            slack=self.slack, beyond=0, exact_share=self.exact / self.size, overflowed=0, largest=0.0, not_finite=0,
            places=None,
        )  # fmt: skip


def _is_nothing(part: npt.NDArray[np.float64] | float) -> bool:
    return not isinstance(part, np.ndarray) and not part


def _root(squares: float, size: float) -> float:
    return sqrt(squares / size) if size else (0.0 if not squares else float("inf"))
