"""Calls of an op's function, and the shapes and values of its tensors, as short as a test wants them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

from precision_tool.lib.ops.base import Call, Input, NotComputedError, OpSpec, Output, OutputSpec
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.view.verdict_messages import reason_words

Array = npt.NDArray[Any]

# --- shapes and values ---

#: A few examples of every op: the oracle is asked for each.
FEW = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SOME = settings(FEW, max_examples=20)

seeds = st.integers(0, 2**32 - 1)
shapes = array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=5)


def pairs(count: int = 2) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """Shapes that broadcast."""
    return mutually_broadcastable_shapes(num_shapes=count, max_dims=3, max_side=4).map(lambda found: found.input_shapes)


def values(shape: tuple[int, ...], seed: int, domain: str = "real") -> Array:
    """Values of a domain: "real" (with 0, ±1, halves and ties among them), "positive", "unit" (−1 to 1), "above1"."""
    random = np.random.default_rng(seed)
    x = random.normal(scale=3, size=shape)
    x = np.where(random.random(shape) < 0.3, np.round(2 * x) / 2, x)
    if domain == "positive":
        return np.asarray(np.abs(x) + 0.05)
    if domain == "unit":
        return np.asarray(np.tanh(x) * 0.99)
    if domain == "above1":
        return np.asarray(1 + np.abs(x))
    if domain == "nonzero":
        return np.asarray(np.where(np.abs(x) < 0.1, 0.5, x))
    return np.asarray(x)


def whole(shape: tuple[int, ...], seed: int, low: int = -9, high: int = 10, dtype: str = "int32") -> Array:
    """Whole numbers from `low` up to but not `high`."""
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape), np.dtype(dtype))


def close(found: Array, wanted: Array, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Alike, in shape too."""
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def i32(numbers: object) -> Array:
    """Whole numbers of 32 bits."""
    return np.array(numbers, np.int32)


def i64(numbers: object) -> Array:
    """Whole numbers of 64 bits."""
    return np.array(numbers, np.int64)


def tensor(seed: int, shape: Sequence[int], kind: str = "normal") -> Array:
    """Random numbers: "normal", "positive" (after a Relu, half of them 0), "wide" (of very different sizes)."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(tuple(shape))
    if kind == "positive":
        return np.maximum(x, 0)
    if kind == "wide":
        return x * np.exp2(random.integers(-8, 8, tuple(shape)))
    return x


# --- calls ---


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
    wanted: tuple[OutputSpec, ...] = (),
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
    wanted: tuple[OutputSpec, ...] = (),
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
    wanted: tuple[OutputSpec, ...] = (),
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


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Inside, an op is not computed, for a reason whose words have this in them."""
    with pytest.raises(NotComputedError) as caught:
        yield
    words = reason_words(caught.value.reason)
    assert re.search(match, words), words
    assert "None" not in words
