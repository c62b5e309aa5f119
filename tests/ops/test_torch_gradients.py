"""Gradients of PyTorch's functions: against autograd in float64, over the arguments of torch_cases."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opvalues import Array, close, tries
from tensorflow_oracle import OracleError
from test_torch_apis import outputs_of_call, recorded
from torch_cases import CASES, Make
from torch_oracle import Differentiated, Torch

from precision_tool.lib.ops.base import Call, Input, NotComputedError, Output
from precision_tool.lib.ops.torch_gradients import has_gradient, recorded_gradients, torch_gradients


def first_output(call: Call) -> Output:
    """What the formula of a gradient gives."""
    output = outputs_of_call(call)[0]
    assert output is not None
    return output


def inputs_of(arrays: list[Array | None], dtype: str = "float64") -> list[Input | None]:
    """Arrays as a reader of a dump gives them."""
    return [
        None
        if array is None
        else Input(
            array=array.astype(np.float64) if array.dtype.kind == "f" else array,
            dtype=dtype if array.dtype.kind == "f" else array.dtype.name,
        )
        for array in arrays
    ]


def fits(output: Output, expected: Array, tolerance: float = 1e-9) -> None:
    """A gradient is that of PyTorch, but for what is doubtful."""
    got = output.array
    assert got.shape == expected.shape, (got.shape, expected.shape)
    if output.doubtful is not None:
        got = np.where(output.doubtful, expected, got)
    close(got, expected, tolerance, tolerance)


def tensors_in(value: Any) -> list[Array]:
    """The arrays of arguments, in order."""
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [array for part in parts for array in tensors_in(part)]


def of_call(api: str, args: list[Any], kwargs: dict[str, Any], true: Differentiated) -> tuple[Any, ...]:
    """The arguments of `torch_gradients`."""
    arguments = recorded(list(args)), {name: recorded(value) for name, value in kwargs.items()}
    return api, *arguments, inputs_of(true.outputs), inputs_of(true.given)


def differentiable(api: str) -> bool:
    """Whether the API has a formula of its gradients."""
    return has_gradient(api) and not api.endswith(("detach", "zeros_like", "ones_like"))


@pytest.mark.parametrize("api", sorted(filter(differentiable, CASES)))
@given(random=st.randoms(use_true_random=False))
@tries(8)
def test_each_is_what_autograd_computes(api: str, random: Random, torch: Torch) -> None:
    for maker in CASES[api]:
        args, kwargs = maker(Make(random))
        try:
            true = torch.differentiated(api, args, kwargs)
        except OracleError:
            continue  # a variant that has no gradient
        if all(each is None for each in true.given):
            continue
        try:
            calls = torch_gradients(*of_call(api, args, kwargs, true))
        except NotComputedError:
            continue
        for number, call in calls.items():
            expected = true.gradients[number]
            if expected is not None:
                fits(first_output(call), expected)
