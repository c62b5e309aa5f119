"""Calls of an op's function, as short as a test wants them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.ops.base import Call, Input, OpSpec, Output, Wanted
from precision_tool.lib.ops.op_table import find

Array = npt.NDArray[Any]
Given = npt.ArrayLike | Input | None
Wanteds = tuple[Wanted, ...]


def as_input(value: npt.ArrayLike | Input, layout: str = "ND", dtype: str = "") -> Input:
    """Floating values as float64, with the name of the type they had or `dtype`; a Python float counts as float32."""
    if isinstance(value, Input):
        return value
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return Input(array=array, dtype=dtype or array.dtype.name, layout=layout)
    name = "float32" if array.dtype == np.float64 else array.dtype.name
    return Input(array=array.astype(np.float64), dtype=dtype or name, layout=layout)


def call_of(
    op_type: str,
    *inputs: npt.ArrayLike | Input | None,
    wanted: tuple[Wanted, ...] = (),
    layout: str = "ND",
    **attrs: Any,
) -> Call:
    """The call of an op."""
    given = tuple(None if value is None else as_input(value, layout) for value in inputs)
    return Call(op_type=op_type, inputs=given, attrs=attrs, outputs=wanted)


def spec_of(op_type: str) -> OpSpec:
    """What the table knows of an op."""
    spec = find(op_type)
    assert spec is not None, f"{op_type} is not in the table"
    return spec


def results_of(call: Call) -> list[Output | None]:
    """What the op's function gives for a call; every output checked for what holds of all."""
    found = list(spec_of(call.op_type).function(call))
    for output in found:
        if output is not None:
            check(output)
    return found


def sampled_of(call: Call, places: npt.ArrayLike) -> Output:
    """Some places of the first output, computed alone."""
    sampled = spec_of(call.op_type).sampled
    assert sampled is not None, f"{call.op_type} is not sampled"
    return sampled(call, np.asarray(places, np.intp))


def work_of(call: Call) -> float:
    """Multiplications that the op's function makes."""
    work = spec_of(call.op_type).work
    assert work is not None, f"{call.op_type} tells no work"
    return work(call)


def outputs_of(
    op_type: str,
    *inputs: npt.ArrayLike | Input | None,
    wanted: tuple[Wanted, ...] = (),
    layout: str = "ND",
    **attrs: Any,
) -> list[Output]:
    """What the op's function gives, where all outputs have a formula."""
    found = []
    for output in results_of(call_of(op_type, *inputs, wanted=wanted, layout=layout, **attrs)):
        assert output is not None
        found.append(output)
    return found


def arrays_of(
    op_type: str,
    *inputs: npt.ArrayLike | Input | None,
    wanted: tuple[Wanted, ...] = (),
    layout: str = "ND",
    **attrs: Any,
) -> list[Array]:
    """The same, the arrays alone."""
    return [output.array for output in outputs_of(op_type, *inputs, wanted=wanted, layout=layout, **attrs)]


def check(output: Output) -> None:
    """What every output keeps: float64 of floats, and sizes that broadcast to it and are not negative."""
    assert isinstance(output.array, np.ndarray)
    assert output.array.dtype.kind != "f" or output.array.dtype == np.float64
    for size in (output.summed, output.terms):
        assert np.broadcast_shapes(np.shape(size), output.array.shape) == output.array.shape
        assert not (np.asarray(size) < 0).any()
    if output.doubtful is not None:
        assert output.doubtful.dtype == np.bool_
        assert output.doubtful.shape == output.array.shape
