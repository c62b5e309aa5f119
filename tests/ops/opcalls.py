"""Calls of an op's function, as short as a test wants them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from opvalues import Array, close

from precision_tool.lib.ops.base import Call, Input, NotComputedError, OpSpec, Output, OutputSpec
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.view.verdict_messages import reason_words


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
    specs: tuple[OutputSpec, ...] = (),
    layout: str = "ND",
    **attrs: Any,
) -> Call:
    """The call of an op."""
    arguments = tuple(None if value is None else as_input(value, layout) for value in inputs)
    return Call(op_type=op_type, inputs=arguments, attrs=attrs, outputs=specs)


def spec_of(op_type: str) -> OpSpec:
    """What the table knows of an op."""
    spec = find(op_type)
    assert spec is not None, f"{op_type} is not in the table"
    return spec


def results_of(call: Call) -> list[Output | None]:
    """What the op's function gives for a call; every output checked for what holds of all."""
    result = list(spec_of(call.op_type).function(call))
    for output in result:
        if output is not None:
            check(output)
    return result


def output_of(call: Call, slot: int = 0) -> Output:
    """One output of a call that has a formula."""
    output = results_of(call)[slot]
    assert output is not None
    return output


def doubtful_of(output: Output) -> npt.NDArray[np.bool_]:
    """Which elements of an output are doubtful; some may be."""
    assert output.doubtful is not None
    return output.doubtful


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
    specs: tuple[OutputSpec, ...] = (),
    layout: str = "ND",
    **attrs: Any,
) -> list[Output]:
    """What the op's function gives, where all outputs have a formula."""
    result = []
    for output in results_of(call_of(op_type, *inputs, specs=specs, layout=layout, **attrs)):
        assert output is not None
        result.append(output)
    return result


def arrays_of(
    op_type: str,
    *inputs: npt.ArrayLike | Input | None,
    specs: tuple[OutputSpec, ...] = (),
    layout: str = "ND",
    **attrs: Any,
) -> list[Array]:
    """The same, the arrays alone."""
    return [output.array for output in outputs_of(op_type, *inputs, specs=specs, layout=layout, **attrs)]


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


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Inside, an op is not computed, for a reason whose words have this in them."""
    with pytest.raises(NotComputedError) as caught:
        yield
    words = reason_words(caught.value.reason)
    assert re.search(match, words), words
    assert "None" not in words


def check_sampled(op_type: str, *inputs: npt.ArrayLike | Input | None, **attrs: Any) -> None:
    """Every place of the first output sampled alone is what the whole has there, with its rounding."""
    call = call_of(op_type, *inputs, **attrs)
    whole = output_of(call)
    places = np.random.default_rng(1).permutation(whole.array.size)[:200]
    some = sampled_of(call, places)
    close(some.array, whole.array.ravel()[places])
    for part, of_all in ((some.summed, whole.summed), (some.terms, whole.terms)):
        expected = np.broadcast_to(of_all, whole.array.shape).ravel()[places]
        np.testing.assert_allclose(np.broadcast_to(part, places.shape), expected, rtol=1e-9, atol=1e-12)


def check_estimated(call: Call, whole: Output, places: Array, factor: float) -> None:
    """Places sampled alone are what the whole has there; what it estimates of their rounding is within a factor."""
    some = sampled_of(call, places)
    np.testing.assert_allclose(some.array, whole.array.ravel()[places], rtol=1e-10, atol=1e-9)
    for exact, estimated in ((some.terms, whole.terms), (some.summed, whole.summed)):
        low, high = np.quantile(np.asarray(estimated).ravel()[places] / np.asarray(exact), [0.02, 0.98])
        assert low > 1 / factor
        assert high < factor


def rounding_ratio(error: Array, size: npt.ArrayLike, unit: float = 2.0**-24) -> float:
    """The rms of errors over what `size` predicts of them: rounding to nearest has an rms of 0.425 u."""
    return float(np.sqrt(np.mean(error**2) / np.mean((0.425 * unit * np.asarray(size)) ** 2)))
