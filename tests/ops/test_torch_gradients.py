"""Gradients of PyTorch's functions: against autograd, over the arguments of torch_cases."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opcalls import arrays_of, rounding_ratio
from opvalues import Array, close, tries, values
from tensorflow_oracle import OracleError
from test_torch_apis import outputs_of_call, recorded
from torch_cases import CASES, Case, Make
from torch_oracle import Differentiated, Torch, adds_up_in_type

from precision_tool.lib.diagnose.error_shape import misfit, rounded_to
from precision_tool.lib.ops.base import Call, Input, NotComputedError, Output
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.ops.torch_apis import known_apis, torch_call
from precision_tool.lib.ops.torch_gradients import has_gradient, recorded_gradients, torch_gradients

#: Where PyTorch's kernels have constants in float32, or 1 − x in float64 of an x near 1.
LOOSE = {"Functional.celu": 1e-6, "Functional.hardsigmoid": 1e-6, "Functional.binary_cross_entropy": 1e-6}


#: The arguments of `torch_gradients`.
Recorded = tuple[str, list[Any], dict[str, Any], list[Input | None], list[Input | None]]


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


def of_type(value: Any, dtype: str) -> Any:
    """An argument as a reader of a dump gives it, with its floating-point numbers rounded to a type."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return Input(array=rounded_to(value, dtype).astype(np.float64), dtype=dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(of_type(part, dtype) for part in value)
    return recorded(value)


def of_call(
    api: str, args: list[Any], kwargs: dict[str, Any], true: Differentiated, dtype: str = "float64"
) -> Recorded:
    """The arguments of `torch_gradients`."""
    arguments = of_type(list(args), dtype), {name: of_type(value, dtype) for name, value in kwargs.items()}
    return api, *arguments, inputs_of(true.outputs, dtype), inputs_of(true.given, dtype)


def differentiated(
    torch: Torch, api: str, make: Make, maker: Case, dtype: str = "float64"
) -> tuple[Recorded, Differentiated] | None:
    """A drawn call and its gradients; None for one that has none."""
    args, kwargs = maker(make)
    try:
        true = torch.differentiated(api, args, kwargs, dtype)
    except OracleError:
        return None
    if all(each is None for each in true.given):
        return None
    return of_call(api, args, kwargs, true, dtype), true


NAMES = sorted(api for api in CASES if has_gradient(api))


@pytest.mark.parametrize("api", NAMES)
@given(random=st.randoms(use_true_random=False))
@tries(8)
def test_each_is_what_autograd_computes(api: str, random: Random, torch: Torch) -> None:
    for maker in CASES[api]:
        drawn = differentiated(torch, api, Make(random), maker)
        if drawn is None:
            continue
        arguments, true = drawn
        with suppress(NotComputedError):
            for number, call in torch_gradients(*arguments).items():
                expected = true.gradients[number]
                if expected is not None:
                    fits(first_output(call), expected, LOOSE.get(api, 1e-9))


@pytest.mark.parametrize("api", NAMES)
@given(random=st.randoms(use_true_random=False))
@tries(4)
def test_what_the_last_node_gives_is_a_candidate(api: str, random: Random, torch: Torch) -> None:
    """Of each result that has candidates, one is right: a correct kernel is never accused."""
    for maker in CASES[api]:
        drawn = differentiated(torch, api, Make(random), maker)
        if drawn is not None:
            assert_candidates(*drawn, LOOSE.get(api, 1e-9))


def assert_candidates(arguments: Recorded, true: Differentiated, tolerance: float = 1e-9) -> int:
    """How many of the results have candidates, of which one must fit."""
    shapes = [None if gave is None else gave.shape for gave in true.gave]
    candidates = recorded_gradients(*arguments[:4], inputs_of(true.got), shapes)
    for position, calls in candidates.items():
        expected = true.gave[position]
        assert expected is not None
        assert any(is_it(call, expected, tolerance) for call in calls), (position, [call.op_type for call in calls])
    return len(candidates)


def is_it(call: Call, expected: Array, tolerance: float) -> bool:
    """Whether a candidate is what was given."""
    try:
        fits(first_output(call), expected, tolerance)
    except (AssertionError, NotComputedError):
        return False
    return True


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("api", NAMES)
@given(random=st.randoms(use_true_random=False))
@tries(2)
def test_kernels_are_right_by_the_rounding_that_is_predicted(
    api: str, dtype: str, random: Random, torch: Torch
) -> None:
    for maker in CASES[api]:
        drawn = differentiated(torch, api, Make(random), maker, dtype)
        if drawn is None:
            continue
        arguments, true = drawn
        with suppress(NotComputedError):
            for number, call in torch_gradients(*arguments).items():
                kernel = true.gradients[number]
                spec = find(call.op_type)
                assert spec is not None
                if kernel is not None and adds_up_in_type(call.op_type, dtype):
                    true_values = np.asarray(first_output(call).array, np.float64)
                    assert np.linalg.norm(kernel - true_values) <= 0.1 * np.linalg.norm(true_values)
                elif kernel is not None:
                    fit = misfit(kernel, first_output(call), dtype, spec.kind)
                    # What is beyond a type's range between two kernels may be NaN afterwards.
                    assert not (fit.bad & ~fit.over).any(), (number, call.op_type)


def _narrow(*shape: int, domain: str = "real", seed: int = 1) -> Array:
    return values(shape, seed, domain).astype(np.float32).astype(np.float64)


#: Calls whose gradients have enough elements to tell the size of their rounding, and the tensor that is looked at.
ROUNDED: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "Functional.linear": ([_narrow(64, 128), _narrow(32, 128, seed=2), _narrow(32, seed=3)], {}, 1),
    "Torch.matmul": ([_narrow(4, 32, 64), _narrow(4, 64, 32, seed=2)], {}, 0),
    "Functional.conv2d": ([_narrow(2, 8, 12, 12), _narrow(8, 8, 3, 3, seed=2)], {"padding": 1}, 0),
    "Functional.layer_norm": ([_narrow(64, 128), [128], _narrow(128, seed=2)], {}, 0),
    "Functional.batch_norm": ([_narrow(8, 16, 9, 9), None, None], {"training": True}, 0),
    "Functional.group_norm": ([_narrow(4, 8, 9, 9), 2, _narrow(8, seed=2), _narrow(8, seed=3)], {}, 0),
    "Functional.rms_norm": ([_narrow(64, 128), [128], _narrow(128, seed=2)], {}, 0),
    "Functional.softmax": ([_narrow(64, 128), -1], {}, 0),
    "Functional.log_softmax": ([_narrow(64, 128), -1], {}, 0),
    "Functional.gelu": ([_narrow(64, 128)], {}, 0),
    "Functional.silu": ([_narrow(64, 128)], {}, 0),
    "Functional.cross_entropy": ([_narrow(64, 128), np.arange(64)], {}, 0),
    "Functional.scaled_dot_product_attention": (
        [_narrow(2, 4, 32, 16), _narrow(2, 4, 48, 16, seed=2), _narrow(2, 4, 48, 16, seed=3)], {}, 1
    ),
    "Functional.interpolate": ([_narrow(2, 3, 16, 16)], {"size": [23, 29], "mode": "bicubic"}, 0),
    "Torch.mul": ([_narrow(64, 64), _narrow(64, 1, seed=2)], {}, 1),
    "Torch.cumsum": ([_narrow(64, 64), 1], {}, 0),
    "Torch.std": ([_narrow(64, 64), 1], {}, 0),
}  # fmt: skip


@pytest.mark.parametrize("api", sorted(ROUNDED))
def test_rounding_is_of_the_predicted_size(api: str, torch: Torch) -> None:
    """PyTorch's float32 kernels are off by no more than about what is predicted, nor is that far too much."""
    args, kwargs, number = ROUNDED[api]
    true = torch.differentiated(api, args, kwargs, "float32")
    kernel = true.gradients[number]
    assert kernel is not None
    output = first_output(torch_gradients(*of_call(api, args, kwargs, true, "float32"))[number])
    size = np.hypot(np.hypot(output.summed, output.terms), output.array)
    assert 0.02 < rounding_ratio(kernel - output.array, size) < 1.6


X4 = values((2, 4, 5, 6), 1)


@pytest.mark.parametrize(
    "index",
    [
        1, (slice(None), 1), (slice(None), 1, slice(2, 4)), (Ellipsis, slice(None, None, 2)), (slice(None), None),
        (slice(None), 1, None, slice(2, 4), -1), (0, np.array([1, 3])), np.array([1, 0, 1]), X4 > 0,
        (slice(None), np.array([0, 2, 2]), 3), (Ellipsis, 1, slice(1, 3)),
        (0, slice(None), np.array([1, 3])), (1, Ellipsis, np.array([1, 3, 3])),
    ],
)  # fmt: skip
def test_each_part_of_an_index_may_be_the_last_node(index: Any, torch: Torch) -> None:
    true = torch.differentiated("Tensor.__getitem__", [X4, index], {})
    assert assert_candidates(of_call("Tensor.__getitem__", [X4, index], {}, true), true) == 1


def test_a_linear_layer_of_three_axes_is_a_view_last(torch: Torch) -> None:
    args = [values((2, 4, 6), 1), values((3, 6), 2), values((3,), 3)]
    true = torch.differentiated("Functional.linear", args, {})
    assert [gave.shape for gave in true.gave if gave is not None] == [(8, 3)]
    calls = recorded_gradients(*of_call("Functional.linear", args, {}, true), [(8, 3)])
    assert [call.op_type for call in calls[0]] == ["Identity"]
    matrix = [values((4, 6), 1), values((6, 6), 2), values((6,), 3)]
    true = torch.differentiated("Functional.linear", matrix, {})
    assert assert_candidates(of_call("Functional.linear", matrix, {}, true), true) == 3


def test_a_linear_layer_of_a_strided_tensor_adds_its_bias_last() -> None:
    x, weight, bias, g = (recorded(values(shape, 1)) for shape in ((2, 4, 6), (3, 6), (3,), (2, 4, 3)))
    calls = recorded_gradients("Functional.linear", [x, weight, bias], {}, [], [g], [(2, 4, 3), (3,)])
    close(first_output(calls[0][0]).array, g.array)
    close(first_output(calls[1][0]).array, g.array.sum((0, 1)), 1e-11)


def test_a_smooth_loss_without_a_bend_is_a_mean_last() -> None:
    """PyTorch computes it as an l1_loss, whose last node is that of the mean or the sum."""
    x, target, g = (recorded(array) for array in (values((3, 4), 1), values((3, 4), 2), values((), 3)))
    for beta, reduction, expected in ((0.0, "mean", 1 / 12), (0.0, "sum", 1.0), (0.5, "mean", None)):
        options = {"beta": beta, "reduction": reduction}
        calls = recorded_gradients("Functional.smooth_l1_loss", [x, target], options, [], [g], [(3, 4)])
        of_mean = np.full((3, 4), g.array * (expected or 1 / 12))
        assert any(is_it(call, of_mean, 1e-12) for call in calls[0]) is (expected is not None)


def test_a_wrong_gradient_is_no_candidate(torch: Torch) -> None:
    for api, args in (
        ("Functional.gelu", [values((4, 6), 1)]),
        ("Functional.linear", [values((4, 6), 1), values((5, 6), 2)]),
        ("Torch.mul", [values((4, 6), 1), values((4, 6), 2)]),
    ):
        true = torch.differentiated(api, args, {})
        shapes = [None if gave is None else gave.shape for gave in true.gave]
        for position, calls in recorded_gradients(*of_call(api, args, {}, true), shapes).items():
            gave = np.array(true.gave[position])
            gave[..., 0] = 0
            assert not any(is_it(call, gave, 1e-9) for call in calls)


def test_a_gradient_that_may_be_of_a_tensor_without_a_formula_is_not_computed() -> None:
    x, y = recorded(values((3, 4), 1)), recorded(values((3, 4), 2))
    assert not recorded_gradients("Functional.multi_margin_loss", [x, y], {}, [], [x], [(3, 4)])
    product = recorded_gradients("Torch.normalize", [x], {"p": 3.0}, [], [x], [(3, 4)])
    assert not product


def test_what_was_dropped_is_where_the_result_is_zero(torch: Torch) -> None:
    args = [values((8, 8), 1), 0.4]
    true = torch.differentiated("Functional.dropout", args, {})
    arguments = of_call("Functional.dropout", args, {}, true)
    expected = true.gradients[0]
    assert expected is not None
    assert 0 < np.count_nonzero(expected == 0) < 64
    fits(first_output(torch_gradients(*arguments)[0]), expected)


def test_gradients_that_are_missing_count_as_zero() -> None:
    x, g = recorded(values((4, 6), 1)), recorded(values((2, 6), 2))
    y = first_output(torch_gradients("Torch.split", [x, 2], {}, [], [None, g])[0])
    close(y.array, np.concatenate([np.zeros((2, 6)), g.array]))
    with pytest.raises(NotComputedError):
        torch_gradients("Torch.split", [x, 2], {}, [], [None, None])
    with pytest.raises(NotComputedError):
        torch_gradients("Functional.gelu", [x], {}, [], [])


def along(api: str, args: list[Any], kwargs: dict[str, Any], number: int) -> tuple[float, float]:
    """The slope of the sum of g y along a direction of one tensor, by differences and by its gradient."""
    shapes = [
        np.shape(output.array) for output in outputs_of_call(torch_call(api, recorded(args), kwargs))[:1] if output
    ]
    g = values(shapes[0], 91)
    places = [at for at, value in enumerate(args) if isinstance(value, np.ndarray)]
    direction = values(args[places[number]].shape, 92)
    sums = []
    for step in (1e-5, -1e-5):
        moved = list(args)
        moved[places[number]] = args[places[number]] + step * direction
        output = outputs_of_call(torch_call(api, recorded(moved), kwargs))[0]
        assert output is not None
        sums.append(float(np.sum(output.array * g)))
    calls = torch_gradients(api, recorded(args), kwargs, [], [recorded(g)])
    return (sums[0] - sums[1]) / 2e-5, float(np.sum(first_output(calls[number]).array * direction))


def test_gradients_of_npu_functions() -> None:
    x, gamma, angles = values((2, 3, 8), 1, "unit"), values((8,), 2, "unit"), values((1, 3, 8), 3, "unit")
    query, key = values((2, 3, 8), 4, "unit"), values((2, 5, 8), 5, "unit")
    shared = values((2, 5, 4), 6, "unit")
    flash = {"head_num": 2, "scale": 0.4}
    cases: list[tuple[str, list[Any], dict[str, Any], int]] = [
        ("NPU.npu_rms_norm", [x, gamma], {"epsilon": 1e-3}, 2),
        ("NPU.npu_add_rms_norm", [x, x[::-1].copy(), gamma], {}, 3),
        ("NPU.npu_swiglu", [x], {"dim": -1}, 1),
        ("NPU.npu_swiglu", [x.transpose(2, 1, 0).copy()], {"dim": 0}, 1),
        ("NPU.npu_rotary_mul", [x, angles, angles[:, ::-1].copy()], {}, 3),
        ("NPU.npu_rotary_mul", [x, angles, angles[:, ::-1].copy(), "interleave"], {}, 3),
        ("NPU.npu_fusion_attention", [query, key, key[::-1].copy(), 2, "BSH"], {"scale": 0.4}, 3),
        ("NPU.npu_fusion_attention", [query, shared, shared[::-1].copy()], {**flash, "input_layout": "BSH"}, 3),
        ("NPU.npu_gelu", [x], {"approximate": "tanh"}, 1),
        ("NPU.npu_fast_gelu", [x], {}, 1),
    ]
    for api, args, kwargs, count in cases:
        for number in range(count):
            by_differences, by_gradient = along(api, args, kwargs, number)
            assert by_gradient == pytest.approx(by_differences, rel=1e-6, abs=1e-8), (api, number)


def test_the_sum_of_an_added_norm_has_a_gradient_too() -> None:
    x, gamma, g = (recorded(values(shape, seed)) for shape, seed in (((3, 8), 1), ((8,), 2), ((3, 8), 3)))
    alone, both = (
        first_output(torch_gradients("NPU.npu_add_rms_norm", [x, x, gamma], {}, [], [g, None, last])[0])
        for last in (None, g)
    )
    close(both.array, alone.array + g.array)


def test_flash_attention_gradient(torch: Torch) -> None:
    query, key, value = (values((2, 4, 3, 8), seed) for seed in (1, 2, 3))
    shift, mask = values((2, 4, 3, 3), 4), np.triu(np.ones((3, 3), np.bool_), 1)
    added = shift + np.where(mask, -np.inf, 0.0)
    true = torch.differentiated("Functional.scaled_dot_product_attention", [query, key, value, added], {"scale": 0.3})
    attrs: dict[str, Any] = {"head_num": 4, "input_layout": "BNSD", "scale_value": 0.3, "pse_type": 0}
    inputs = query, key, value, true.given[0], shift, None, None, mask
    outputs = arrays_of("FlashAttentionScoreGrad", *inputs, **attrs)
    for got, expected in zip(outputs, true.gradients, strict=True):
        assert expected is not None
        close(got, expected, 1e-10)


def test_what_came_through_nan_is_doubtful() -> None:
    x = values((1, 1, 4, 4), 1)
    x[0, 0, 0, 0] = np.nan
    g = recorded(values((1, 1, 2, 2), 2))
    doubtful = first_output(torch_gradients("Functional.max_pool2d", [recorded(x), 2], {}, [], [g])[0]).doubtful
    assert doubtful is not None
    assert doubtful[0, 0, :2, :2].all()
    assert not doubtful[0, 0, 2:].any()
    relu = first_output(torch_gradients("Functional.relu", [recorded(x)], {}, [recorded(x)], [recorded(x)])[0])
    assert relu.doubtful is not None
    assert relu.doubtful.sum() == 1


def test_nearly_all_that_is_differentiable_has_a_gradient() -> None:
    """By the functions that networks call most."""
    names = """linear matmul bmm mm addmm baddbmm conv1d conv2d conv3d conv_transpose2d layer_norm batch_norm group_norm
    instance_norm rms_norm gelu relu silu sigmoid tanh softmax log_softmax cross_entropy nll_loss mse_loss l1_loss
    smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div embedding mul add sub div neg pow sqrt
    rsqrt exp log sum mean max min amax where masked_fill clamp cat stack split chunk view transpose permute reshape
    __getitem__ expand repeat gather index_select index_add scatter max_pool2d avg_pool2d adaptive_avg_pool2d
    interpolate pad scaled_dot_product_attention npu_rms_norm npu_swiglu npu_rotary_mul npu_fusion_attention cumsum
    add_ mul_ __iadd__ einsum dropout"""
    assert not [name for name in names.split() if not has_gradient(f"Torch.{name}")]
    assert not has_gradient("Torch.argmax")
    assert not has_gradient("Distributed.add")


_ANY = st.one_of(
    st.none(), st.integers(-3, 5), st.floats(), st.sampled_from(["mean", "...", 2**40]), st.just(slice(None, 2)),
    st.lists(st.integers(-2, 4), max_size=3),
    st.builds(
        lambda shape, kind: recorded(values(shape, 1).astype(kind)),
        st.sampled_from([(), (0,), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 4)]),
        st.sampled_from(["float64", "int64", "bool"]),
    ),
)  # fmt: skip


@pytest.mark.parametrize("part", range(4))
@given(
    args=st.lists(st.one_of(_ANY, st.lists(_ANY, max_size=2)), max_size=4),
    gradient=st.sampled_from([None, (), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 4)]),
)
@tries(30)
def test_no_arguments_crash(part: int, args: list[Any], gradient: tuple[int, ...] | None) -> None:
    """Calls with outputs, or a reason, and nothing else."""
    g = None if gradient is None else recorded(values(gradient, 1))
    shapes = [gradient, (2, 3)]
    for name in sorted(known_apis())[part::4]:
        api = name if "." in name else f"Torch.{name}"
        with suppress(NotComputedError):
            for call in torch_gradients(api, args, {}, [], [g]).values():
                with suppress(NotComputedError):
                    first_output(call)
        for calls in recorded_gradients(api, args, {}, [], [g], shapes).values():
            for call in calls:
                with suppress(NotComputedError):
                    first_output(call)
