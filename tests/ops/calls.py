"""What tests of operators share: calls from arrays, and random tensors of several distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.base import Call, Input, Output, Wanted
from precision_tool.lib.ops.table import find

Array = npt.NDArray[Any]


def given(array: npt.ArrayLike, layout: str = "ND", dtype: str | None = None) -> Input:
    """An input; whole numbers keep their type."""
    values = np.asarray(array)
    name = dtype or (values.dtype.name if values.dtype.kind not in "f" else "float32")
    return Input(array=values.astype(np.float64) if values.dtype.kind == "f" else values, dtype=name, layout=layout)


def call_of(op_type: str, *inputs: Input | npt.ArrayLike | None, outputs: Sequence[Wanted] = (), **attrs: Any) -> Call:
    """A call of an op; arrays become inputs without a layout."""
    return Call(
        op_type=op_type,
        inputs=tuple(one if one is None or isinstance(one, Input) else given(one) for one in inputs),
        attrs=attrs,
        outputs=tuple(outputs),
    )


def outputs_of(call: Call) -> list[Output | None]:
    """What the table's function makes of a call."""
    spec = find(call.op_type)
    assert spec is not None, f"{call.op_type} is not in the table"
    return list(spec.function(call))


def compute(
    op_type: str, *inputs: Input | npt.ArrayLike | None, outputs: Sequence[Wanted] = (), **attrs: Any
) -> list[Array]:
    """The arrays of all outputs that have a formula."""
    found = outputs_of(call_of(op_type, *inputs, outputs=outputs, **attrs))
    return [output.array for output in found if output is not None]


def tensor(seed: int, shape: Sequence[int], kind: str = "normal") -> Array:
    """Random numbers: "normal", "positive" (after a Relu, half of them 0), "wide" (of very different sizes)."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(tuple(shape))
    if kind == "positive":
        return np.maximum(values, 0)
    if kind == "wide":
        return values * np.exp2(rng.integers(-8, 8, tuple(shape)))
    return values
