"""Comparisons, logic, selection by a condition, and bits.

Sources: the prototypes of GE's elewise_calculation_ops.h, selection_ops.h and bitwise_ops.h; tf.math and tf.bitwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from precision_tool.lib.ops.arguments import Array, Mask, common_shape, near, numbers, real, typed
from precision_tool.lib.ops.base import Call, Input, Kind, NotComputedError, Output, Outputs, needed, op


def _comparisons() -> None:
    types: dict[str, Callable[[Array, Array], Array]] = {
        "Equal": np.equal,
        "NotEqual": np.not_equal,
        "Less": np.less,
        "LessEqual": np.less_equal,
        "Greater": np.greater,
        "GreaterEqual": np.greater_equal,
    }
    for name, compare in types.items():

        def compute(call: Call, compare: Callable[[Array, Array], Array] = compare) -> Outputs:
            a, b = (typed(call, slot, "biufc" if "Equal" in call.op_type[:8] else "iuf") for slot in (0, 1))
            common_shape(call, a, b)
            types = [needed(call, slot).dtype for slot in (0, 1)]
            doubtful = near(a, b, *types) if a.dtype.kind == "f" and b.dtype.kind == "f" else None
            return [Output(array=np.asarray(compare(a, b)), doubtful=doubtful)]

        op(name, kind=Kind.EXACT, inputs=("x1", "x2"))(compute)


def _logic() -> None:
    types: dict[str, tuple[int, Callable[..., Array]]] = {
        "LogicalAnd": (2, np.logical_and),
        "LogicalOr": (2, np.logical_or),
        "LogicalXor": (2, np.logical_xor),
        "LogicalNot": (1, np.logical_not),
        "BitwiseAnd": (2, np.bitwise_and),
        "BitwiseOr": (2, np.bitwise_or),
        "BitwiseXor": (2, np.bitwise_xor),
        "Invert": (1, np.invert),
        "LeftShift": (2, np.left_shift),
        "RightShift": (2, np.right_shift),
    }
    for name, (count, formula) in types.items():

        def compute(
            call: Call, name: str = name, count: int = count, formula: Callable[..., Array] = formula
        ) -> Outputs:
            arrays = [needed(call, slot).array for slot in range(count)]
            common_shape(call, *arrays)
            if not name.startswith("Logical") and any(array.dtype.kind not in "iu" for array in arrays):
                raise NotComputedError(
                    "data_type",
                    name="inputs",
                    dtype=next(array.dtype.name for array in arrays if array.dtype.kind not in "iu"),
                )
            if name.endswith("Shift"):  # what is shifted out of the type is not defined
                bits = arrays[0].dtype.itemsize * 8
                arrays[1] = np.clip(arrays[1], 0, bits - 1)
            return [Output(array=np.asarray(formula(*arrays)))]

        op(name, kind=Kind.EXACT, inputs=("x1", "x2")[:count])(compute)


_comparisons()
_logic()


@op("ApproximateEqual", kind=Kind.EXACT, inputs=("x1", "x2"))
def approximately_equal(call: Call) -> Outputs:
    """|x1 − x2| below the tolerance."""
    a, b = numbers(call, 0, 1)
    common_shape(call, a, b)
    tolerance = real(call, "tolerance", default=1e-5)
    distance = np.abs(a - b)
    types = [needed(call, slot).dtype for slot in (0, 1)]
    doubtful = near(distance, tolerance, *types) | near(a, b + tolerance, *types) | near(a, b - tolerance, *types)
    return [Output(array=np.asarray(distance < tolerance), doubtful=doubtful)]


def _condition(given: Input) -> Mask:
    """A condition, which dumps also store as bytes."""
    return np.asarray(given.array, np.bool_)


@op("Select", kind=Kind.EXACT, inputs=("condition", "x1", "x2"))
def select(call: Call) -> Outputs:
    """x1 where the condition holds, else x2; a condition of one axis chooses along the first."""
    condition = _condition(needed(call, 0))
    one, other = needed(call, 1).array, needed(call, 2).array
    shape = common_shape(call, one, other)
    if condition.ndim == 1 and len(shape) > 1 and condition.shape[0] == shape[0]:
        condition = condition.reshape([-1] + [1] * (len(shape) - 1))
    common_shape(call, condition, one, other)
    return [Output(array=np.where(condition, one, other))]


@op("SelectV2", kind=Kind.EXACT, inputs=("condition", "then", "else"))
def select_v2(call: Call) -> Outputs:
    """x1 where the condition holds, else x2; all broadcast."""
    condition = _condition(needed(call, 0))
    one, other = needed(call, 1).array, needed(call, 2).array
    common_shape(call, condition, one, other)
    return [Output(array=np.where(condition, one, other))]


@op("MaskedFill", kind=Kind.EXACT, inputs=("x", "mask", "value"))
def masked_fill(call: Call) -> Outputs:
    """x, with the value where the mask is set."""
    x, mask, value = needed(call, 0).array, _condition(needed(call, 1)), needed(call, 2).array
    common_shape(call, x, mask, value)
    return [Output(array=np.where(mask, value, x))]


@op("Where", kind=Kind.EXACT, inputs=("x",))
def where(call: Call) -> Outputs:
    """The places of all elements that are not 0, one a row."""
    return [Output(array=np.argwhere(needed(call, 0).array).astype(np.int64))]
