"""The interface of an operator's formula, and the table of all formulas.

A formula is a pure function: it takes the inputs in the order of the training script (no blocked layouts, no padding)
and the attributes of the op, and returns its outputs, each with what bounds its rounding error. Float64 inputs are
computed in float64, on which verdicts rest; float32 inputs, as a first pass has them, in float32.
Nothing here reads files or graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import wraps
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from precision_tool.lib.extensions import Registry
from precision_tool.lib.messages import Message
from precision_tool.lib.model.finding import ReasonError

Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


class NotComputedError(ReasonError):
    """An op cannot be recomputed."""


def typed_misfit(
    name: str, dtype: str, shape: tuple[int, ...], other: str, other_shape: tuple[int, ...]
) -> NotComputedError:
    """Return the error for an input whose type and shape do not fit those of another, by the op's prototype."""
    return NotComputedError("typed_misfit", name=name, dtype=dtype, shape=shape, other=other, other_shape=other_shape)


def reason_of(error: Exception) -> Message:
    """Return why an op was not recomputed, from what its function raised."""
    if isinstance(error, NotComputedError):
        return error.reason
    return Message("reason.contradiction", detail=str(error))


class Kind(Enum):
    """Rounding behaviour of an op's result. The verdict has one documented tolerance for each kind."""

    #: Moves, comparisons, selections, Relu, MaxPool: every element is one of the inputs' (or 0 and 1), bit for bit.
    EXACT = "exact"
    #: A few correctly rounded float32 operations an element (Add, Mul, BiasAdd, ReluGrad of a scaled slope).
    ROUNDED = "rounded"
    #: Functions that kernels approximate: Exp, Log, Tanh, Rsqrt, division, Pow.
    APPROXIMATE = "approximate"
    #: Sums over elements in float32: reductions, AddN, pooling by average, moments.
    SUM = "sum"
    #: Sums of products on the matrix unit: MatMul, Conv2D and their gradients.
    MATRIX = "matrix"
    #: Several of these in one kernel: softmax, norms, losses, optimizers, recurrent cells.
    COMPOSITE = "composite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A tensor as an op takes it.

    `array` is float64 for floating types (float32 in a first look) and complex128 for complex ones; integers and bools
    keep their type.
    `dtype` is the stored type's name ("float16", "bfloat16", "float32", "int32", "bool"). `layout` names the axes of
    the script ("NHWC", "NCHW", "HWCN", "NDHWC", "NCDHW", "DHWCN"), "ND" where they have no names.
    """

    array: npt.NDArray[Any]
    dtype: str = "float32"
    layout: str = "ND"

    def in_doubles(self) -> Input:
        """Return this input with its floating-point numbers as float64."""
        return replace(self, array=in_doubles(self.array))


def in_doubles(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a float32 array as float64, any other unchanged."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """An output as the graph describes it: shape in the order of the script (None: unknown), stored type, axes."""

    shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    layout: str = "ND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One op with its inputs (None: an optional one that is not connected), attributes and described outputs.

    Attributes are as GE's graphs or TensorFlow's have them, by name; lists are lists or tuples of numbers. A function
    takes what a 'D' op has as attribute (`axes`) from the last inputs as well, where the op without 'D' has it there.
    """

    op_type: str
    inputs: tuple[Input | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[OutputSpec, ...] = ()
    #: Only the values of the outputs are wanted: sums of products need not tell their rounding, which is as much work.
    only_values: bool = False
    #: Rows along the first axis that the op has in all, where its inputs are some of them; 0: these are all.
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Chained:
    """Some sums of an output, added up in float32 term after term (`sum_orders`).

    `factor` is how many times as far off they are as independent roundings in a random order would be (rms of the
    sums, or a quarter of the largest if that is more; at least 1), `worst` is Σ |s_k| over `Output.summed`: the unit
    roundoff times that is the most that such a chain can be off.
    """

    factor: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output, in the order of the script, and what rounding makes of it.

    With the unit roundoff u_acc of what the kernel accumulates in, u_in of what it rounds its inputs to and u_out of
    the stored type, the error that rounding makes of an element has an rms of about
    `0.425 sqrt(u_out² y² + u_acc² summed² + u_in² terms²)` (rounding to nearest has an rms of 0.425 u).

    - `summed`: sqrt(Σ s_k²) over the partial sums s_k of an element; where their order is not known, for n terms p
      with the sum S: sqrt(n S² / 3 + n Σ(p − p̄)² / 6). For a few float32 operations an element: the size of what was
      rounded on the way, such as |a| + |b| for a + b − c. A number, or an array that broadcasts to `array`.
    - `terms`: sqrt(Σ p_k²) over the products an element is the sum of, as far as an input's rounding moves it.
    - `doubtful`: True where the element hangs on a switch (x > 0, argmax, floor) that rounding of the inputs by a
      few units in the last place flips: a difference there accuses nobody.
    - `length`: terms of each sum; 0 where an element is no plain sum. A chain of so many additions is off by at most
      u_acc Σ |s_k| ≤ u_acc sqrt(length) summed, in the order in which `summed` holds.
    - `chained`: tells what long chains of additions in float32 make of these very numbers. It costs another look at
      some of them, so it is asked only where an element is off by more than the above accounts for.
    """

    array: npt.NDArray[Any]
    summed: Doubles | float = 0.0
    terms: Doubles | float = 0.0
    doubtful: npt.NDArray[np.bool_] | None = None
    length: int = 0
    chained: Callable[[], Chained] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """numpy makes numbers of arrays without axes; here they are arrays again."""
        object.__setattr__(self, "array", np.asarray(self.array))
        if self.doubtful is not None:
            object.__setattr__(self, "doubtful", np.asarray(self.doubtful))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSums:
    """Output 0 as rows and columns, and for each row the sum over all columns, each with a sign, without computing it.

    A sum of products is linear in the factor that has the columns, so that one column which is the signed sum of all
    costs as much as reading the factors (R. Freivalds, "Probabilistic machines can use less running time", 1977).
    `sums` are the true ones by row, `squares` Σ p² over the products of a row's elements, each of which sums `length`.
    `as_rows` turns an output into rows and columns, `places` some of its rows into flat places of all their elements.
    """

    signs: Doubles
    sums: Doubles
    squares: Doubles
    length: int
    as_rows: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    places: Callable[[Places], Places]


#: Outputs by slot; None for one that has no formula (a reserve space, a mask whose packing is not documented).
Outputs = Sequence[Output | None]
Function = Callable[[Call], Outputs]
#: Output 0 at some places only (flat indices in the order of the script): its `array` and all else are 1-D.
Sampled = Callable[[Call, Places], Output]
#: Multiplications and additions that `Function` makes, from the shapes alone.
Work = Callable[[Call], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """Formula of an op type, with what samples it cheaply."""

    op_type: str
    kind: Kind
    function: Function
    sampled: Sampled | None = None
    work: Work | None = None
    #: Where `sampled` is cheapest: about so many flat places of output 0, drawn from all of it.
    cheap_places: Callable[[Call, int], Places] | None = None
    #: Sums over output 0 that cost little; None for one that cannot be summed so.
    row_sums: Callable[[Call], RowSums | None] | None = None
    #: Names of the inputs by slot as the op's prototype has them ("x", "filter"); the last may repeat.
    inputs: tuple[str, ...] = ()


_TABLE: dict[str, OpSpec] = {}


def _registered(name: str, _: Any) -> OpSpec:
    """Return the formula that a plug-in registered under the name of its entry point."""
    if name not in _TABLE:
        raise LookupError(f"its module has no function marked @op({name!r}, ...)")
    return _TABLE[name]


#: All formulas by the name of the op; `op_table` imports those that are built in.
OPS = Registry("ops", _TABLE, _registered)


#: What numpy and Python make of shapes and attributes that contradict each other.
_CONTRADICTIONS = (IndexError, KeyError, ValueError, TypeError, OverflowError, ZeroDivisionError)

P = ParamSpec("P")
T = TypeVar("T")


def _guarded(function: Callable[Concatenate[Call, P], T]) -> Callable[Concatenate[Call, P], T]:
    """A function of a call that ends in its result or NotComputedError, whatever a damaged graph says of the op."""

    @wraps(function)
    def guarded(call: Call, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            with np.errstate(all="ignore"):  # an infinity or NaN is a result like others
                return function(call, *args, **options)
        except NotComputedError as error:
            if "op_type" in error.reason.fields:
                raise
            reason = Message(error.reason.kind, **error.reason.fields, op_type=call.op_type)
            raise NotComputedError(reason) from error
        except _CONTRADICTIONS as error:
            raise NotComputedError(reason_of(error)) from error

    return guarded


def op(
    *op_types: str,
    kind: Kind,
    inputs: Sequence[str] = (),
    sampled: Sampled | None = None,
    work: Work | None = None,
    cheap_places: Callable[[Call, int], Places] | None = None,
    row_sums: Callable[[Call], RowSums | None] | None = None,
) -> Callable[[Function], Function]:
    """Register a formula in the table.

    Parameters
    ----------
    *op_types : str
        GE's and TensorFlow's names of the op.
    kind : Kind
        How its result is rounded.
    inputs : sequence of str
        Names of the inputs by slot, as the op's prototype has them; the last may repeat.
    sampled : callable, optional
        Computes output 0 at flat places (1-D array) alone: `sampled(call, places) -> Output`.
    work : callable, optional
        Returns the number of multiplications from the shapes alone.
    cheap_places : callable, optional
        Returns about so many flat places of output 0 where `sampled` is cheapest.
    row_sums : callable, optional
        Returns cheap signed sums over output 0, or None where there are none.

    Raises
    ------
    ValueError
        If an op type has a formula already.
    """

    def register(function: Function) -> Function:
        for op_type in op_types:
            if op_type in _TABLE:
                raise ValueError(f"two functions for {op_type}")
            _TABLE[op_type] = OpSpec(
                op_type=op_type,
                kind=kind,
                function=_guarded(function),
                sampled=sampled and _guarded(sampled),
                work=work and _guarded(work),
                cheap_places=cheap_places and _guarded(cheap_places),
                row_sums=row_sums and _guarded(row_sums),
                inputs=tuple(inputs),
            )
        return function

    return register


def registered() -> Mapping[str, OpSpec]:
    """Return the table of the families imported so far; `op_table` imports all."""
    return _TABLE


#: No tensor of more elements is made, whatever shapes and attributes claim (2^26 doubles are 512 MiB).
MAX_ELEMENTS = 1 << 26
MAX_AXES = 32


# --- what functions share ---------------------------------------------------------------------------------------------


def optional(call: Call, slot: int) -> Input | None:
    """Return an input, or None where it is not connected."""
    return call.inputs[slot] if slot < len(call.inputs) else None


def needed(call: Call, slot: int) -> Input:
    """Return an input that the op cannot do without."""
    tensor = optional(call, slot)
    if tensor is None:
        raise NotComputedError("not_connected", op_type=call.op_type, slot=slot)
    return tensor


def check_no_inputs_from(call: Call, slot: int) -> None:
    """Raise where an input is connected at this slot or a later one: no prototype documents it."""
    if any(tensor is not None for tensor in call.inputs[slot:]):
        raise NotComputedError("input_count", number=len(call.inputs))


def check_size(shape: Sequence[int]) -> None:
    """Raise NotComputedError for a shape that is not computed: a negative axis, or more than MAX_ELEMENTS elements."""
    if any(size < 0 for size in shape):
        raise NotComputedError("no_shape", shape=tuple(shape))
    if len(shape) > MAX_AXES:
        raise NotComputedError("too_many_axes", number=len(shape), limit=MAX_AXES)
    if prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise NotComputedError("too_large", shape=tuple(shape), limit=MAX_ELEMENTS)


def summed_of(total: Doubles, spread: Doubles, count: int) -> Doubles:
    """Return `Output.summed` of sums of `count` terms in unknown order.

    `total` is the sum S of an element's terms, `spread` is Σ(p − p̄)² = Σp² − S²/n.
    """
    result: Doubles = np.sqrt(count * total**2 / 3 + count * np.maximum(spread, 0) / 6)
    return result
