"""Functions of PyTorch by the names that msprobe records: against PyTorch in float64, over drawn arguments."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opcalls import check, refused, rounding_ratio
from opvalues import Array, close, same, tries, values
from torch_cases import CASES as USUAL
from torch_cases import Make
from torch_oracle import Torch
from torch_rarer_cases import RARER

from precision_tool.lib.ops.base import Call, Input, Kind, NotComputedError, Output
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.ops.torch_apis import builder_of, known_apis, torch_call

CASES = {**USUAL, **{name: USUAL.get(name, []) + makers for name, makers in RARER.items()}}


def recorded(value: Any) -> Any:
    """An argument as a reader of a dump gives it."""
    if isinstance(value, np.ndarray):
        return Input(array=value, dtype=value.dtype.name)
    if isinstance(value, (list, tuple)):
        return type(value)(recorded(part) for part in value)
    return value


def outputs_of_api(api: str, *args: Any, **kwargs: Any) -> list[Output | None]:
    """What the formula of a function gives."""
    call = torch_call(api, recorded(list(args)), {name: recorded(value) for name, value in kwargs.items()})
    return outputs_of_call(call)


def outputs_of_call(call: Call) -> list[Output | None]:
    """What the formula of a call gives, checked for what holds of all."""
    spec = find(call.op_type)
    assert spec is not None, call.op_type
    outputs = list(spec.function(call))
    for output in outputs:
        if output is not None and output.array.dtype.kind != "c":
            check(output)
    return outputs


def compared(api: str, args: list[Any], kwargs: dict[str, Any], true: list[Array]) -> None:
    """The outputs are those of PyTorch, but for what is doubtful."""
    outputs = outputs_of_api(api, *args, **kwargs)
    assert len(outputs) >= len(true), (api, len(outputs), len(true))
    for output, expected in zip(outputs, true, strict=False):
        if output is None:
            continue
        assert output.array.shape == expected.shape, api
        got = output.array
        if output.doubtful is not None:
            got = np.where(output.doubtful, expected, got)
        if expected.dtype.kind in "biu" or got.dtype.kind in "biu":
            np.testing.assert_array_equal(got, expected, err_msg=api)
        elif expected.dtype == np.float32:  # what is rounded to a type is not in the formula
            np.testing.assert_allclose(got, expected, rtol=2e-3 if api == "Tensor.half" else 1e-6, atol=1e-6)
        else:
            close(got, expected, 1e-10, 1e-10)


@pytest.mark.parametrize("api", sorted(CASES))
@given(random=st.randoms(use_true_random=False))
@tries(8)
def test_each_is_what_pytorch_computes(api: str, random: Random, torch: Torch) -> None:
    for maker in CASES[api]:
        args, kwargs = maker(Make(random))
        compared(api, args, kwargs, torch.run(api, *args, **kwargs))


def test_nearly_all_functions_have_a_case() -> None:
    """What has none is an alias, or a function of torch_npu, which is tested by the type that computes it."""
    tried = {id(builder_of(api)) for api in CASES}
    untried = {name for name in known_apis() if id(builder_of(name if "." in name else f"Torch.{name}")) not in tried}
    of_torch = {name for name in untried if "npu" not in name}
    assert len(of_torch) < len(known_apis()) / 16, sorted(of_torch)


def test_an_unknown_function_is_refused() -> None:
    for api in ("Functional.nothing", "Distributed.all_reduce", "gelu", "", "Torch."):
        with pytest.raises(NotComputedError) as caught:
            torch_call(api, [], {})
        assert caught.value.reason.kind == "reason.no_formula"


def test_arguments_that_do_not_fit_are_refused() -> None:
    x = recorded(values((3, 4), 1))
    wrong: list[tuple[str, list[Any]]] = [
        ("Functional.linear", [x]),
        ("Functional.linear", [x, None]),
        ("Functional.conv2d", [x, x]),
        ("Torch.reshape", [x, [5]]),
        ("Torch.cat", [[]]),
        ("Torch.permute", [x, [0, 0]]),
        ("Tensor.expand", [x, 2**40, 3, 4]),
        ("Tensor.to", [x, "torch.complex64"]),
        ("Functional.dropout", [x, 0.5]),
        ("Torch.norm", [x, "nuc"]),
        ("Tensor.__getitem__", [x, (0, 0, 0)]),
        ("Functional.interpolate", [x]),
        ("Functional.max_pool2d", [x, "2"]),
        ("Torch._foreach_add", [[x], [x, x]]),
    ]
    for api, args in wrong:
        with pytest.raises(NotComputedError):
            outputs_of_call(torch_call(api, args, {}))


_ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5), st.sampled_from([2**40, -(2**63)]), st.floats(),
    st.sampled_from(["torch.float16", "mean", "...", "", "same"]), st.just(Ellipsis), st.just(slice(None, 2)),
    st.lists(st.integers(-2, 4), max_size=3),
    st.builds(
        lambda shape, kind: recorded(values(shape, 1).astype(kind)),
        st.sampled_from([(), (0,), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 4)]),
        st.sampled_from(["float64", "int64", "bool", "complex128"]),
    ),
)  # fmt: skip
_NAMES = st.sampled_from(["dim", "keepdim", "dtype", "weight", "size", "padding", "value", "alpha", "input"])


@pytest.mark.parametrize("part", range(4))
@given(
    args=st.lists(st.one_of(_ANY, st.lists(_ANY, max_size=2)), max_size=5),
    kwargs=st.dictionaries(_NAMES, _ANY, max_size=2),
)
@tries(40)
def test_no_arguments_crash(part: int, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A call with outputs, or a reason, and nothing else."""
    for name in sorted(known_apis())[part::4]:
        with suppress(NotComputedError):
            outputs_of_call(torch_call(name if "." in name else f"Torch.{name}", args, kwargs))


def test_functions_of_linalg_are_not_those_of_torch(torch: Torch) -> None:
    """msprobe leaves `linalg.` out of names: what both have in different ways is refused where they differ."""
    x, y, cube = values((3, 4), 1), values((3, 3), 2), values((3, 4, 5), 3)
    differ: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("Torch.inv", [y], {}),
        ("Torch.norm", [x, inf], {}),
        ("Torch.norm", [x, 2], {}),
        ("Torch.norm", [x], {"ord": 1}),
        ("Torch.norm", [cube, 1, [0, 1]], {}),
        ("Torch.diagonal", [cube], {}),
        ("Torch.diagonal", [cube], {"dim1": 0}),
        ("Torch.cross", [y, y + 1], {}),
    ]
    for api, args, options in differ:
        with pytest.raises(NotComputedError):
            outputs_of_api(api, *args, **options)
    agree: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("Torch.norm", [x], {}),
        ("Torch.norm", [x, "fro"], {}),
        ("Torch.norm", [cube, 3], {}),
        ("Torch.norm", [x, inf, 1], {}),
        ("Torch.diagonal", [x], {"offset": 1}),
        ("Torch.diagonal", [cube, 1], {}),
        ("Torch.diagonal", [cube], {"dim1": 2, "dim2": 0}),
        ("Torch.cross", [y, y + 1], {"dim": 0}),
        ("Torch.cross", [x, x + 1], {}),
        ("Torch.cross", [values((4, 3), 4), values((4, 3), 5)], {}),
    ]
    for api, args, options in agree:
        output = outputs_of_api(api, *args, **options)[0]
        assert output is not None
        close(np.asarray(output.array), torch.run(api, *args, **options)[0], 1e-12)
    assert builder_of("Functional.inv") is builder_of("Torch.reciprocal")  # of mindspore.ops
    assert not [name for name in known_apis() if name.startswith("linalg.")]


def test_dropout_that_draws_has_no_formula() -> None:
    with refused("p 0.5"):
        torch_call("Functional.dropout", [recorded(values((3,), 1)), 0.5], {"training": True})


def test_a_prefix_may_have_arguments_of_its_own() -> None:
    x, w = values((2, 3, 4, 4), 1), values((3,), 2)
    functional = outputs_of_api("Functional.batch_norm", x, w, w**2, None, None, False, 0.1, 1e-3)[0]
    torch = outputs_of_api("Torch.batch_norm", x, None, None, w, w**2, False, 0.1, 1e-3, False)[0]
    assert functional is not None
    assert torch is not None
    same(functional.array, torch.array)
    assert builder_of("Aten.unfold") is builder_of("Tensor.unfold")
    assert builder_of("Aten.unfold") is not builder_of("Functional.unfold")


def test_a_number_does_not_widen_whole_numbers() -> None:
    call = torch_call("Tensor.__add__", [recorded(np.array([1, 2], np.int32)), 3], {})
    assert outputs_of_call(call)[0].array.dtype == np.int32  # type: ignore[union-attr]


def test_products_are_sampled_and_their_kind_is_known() -> None:
    x, weight = values((2, 3, 8), 1), values((4, 3, 3), 2)
    call = torch_call("Functional.conv1d", recorded([x, weight]), {"padding": 1})
    spec = find(call.op_type)
    assert spec is not None
    assert spec.kind is Kind.MATRIX
    assert spec.sampled is not None
    whole = spec.function(call)[0]
    assert whole is not None
    places = np.array([0, 5, 17, 40])
    close(spec.sampled(call, places).array, whole.array.ravel()[places])
    linear = find(torch_call("Functional.linear", recorded([x, values((5, 8), 3)]), {}).op_type)
    assert linear is not None
    assert linear.row_sums is not None


def test_npu_functions() -> None:
    x, gamma = values((2, 3, 8), 1), values((8,), 2)
    y = outputs_of_api("NPU.npu_rms_norm", x, gamma, epsilon=1e-3)[0]
    assert y is not None
    close(y.array, x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-3) * gamma)
    gate = outputs_of_api("NPU.npu_swiglu", x, dim=-1)[0]
    assert gate is not None
    close(gate.array, x[..., :4] / (1 + np.exp(-x[..., :4])) * x[..., 4:])
    turned = outputs_of_api("NPU.npu_rotary_mul", x, np.ones((1, 1, 8)), np.zeros((1, 1, 8)))[0]
    assert turned is not None
    same(turned.array, x)
    query = values((2, 3, 2, 4), 3)
    outputs = outputs_of_api("NPU.npu_fusion_attention", query, query, query, 3, "BNSD", scale=0.5)
    scores = np.exp(np.einsum("bnsd,bntd->bnst", query, query) * 0.5)
    assert outputs[0] is not None
    close(outputs[0].array, scores / scores.sum(-1, keepdims=True) @ query, 1e-11)
    chosen, experts, _ = outputs_of_api("NPU.npu_moe_gating_top_k_softmax", gamma[None], k=2)
    assert chosen is not None
    assert experts is not None
    softmax = np.exp(gamma) / np.exp(gamma).sum()
    close(chosen.array, np.sort(softmax)[::-1][None, :2], 1e-11)
    same(experts.array, np.argsort(-gamma)[None, :2].astype(np.int32))
    weights = [values((8, 5), seed) for seed in (4, 5)]
    product = outputs_of_api("NPU.npu_grouped_matmul", [x[0]], weights, group_list=[1, 3], split_item=3, group_type=0)
    assert product[0] is not None
    close(product[0].array, np.concatenate([x[0, :1] @ weights[0], x[0, 1:] @ weights[1]]))


def _narrow(*shape: int, domain: str = "real", seed: int = 1) -> Array:
    return values(shape, seed, domain).astype(np.float32)


def _lstm_weights() -> list[Array]:
    return [_narrow(64, 8), _narrow(64, 16, seed=2), _narrow(64, seed=3), _narrow(64, seed=4)]


#: Calls whose result has enough elements to tell the size of their rounding.
ROUNDED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Functional.scaled_dot_product_attention": (
        [_narrow(2, 4, 32, 16), _narrow(2, 4, 48, 16, seed=2), _narrow(2, 4, 48, 16, seed=3)], {}
    ),
    "Functional.interpolate": ([_narrow(2, 3, 16, 16)], {"size": [23, 29], "mode": "bicubic"}),
    "Functional.adaptive_avg_pool2d": ([_narrow(2, 8, 37, 41), 7], {}),
    "Functional.group_norm": ([_narrow(4, 8, 9, 9), 2, _narrow(8, seed=2), _narrow(8, seed=3)], {}),
    "Functional.batch_norm": ([_narrow(8, 16, 9, 9), None, None], {"training": True}),
    "Functional.instance_norm": ([_narrow(4, 8, 9, 9)], {}),
    "Functional.normalize": ([_narrow(64, 128)], {}),
    "Functional.glu": ([_narrow(64, 128)], {}),
    "Functional.linear": ([_narrow(64, 128), _narrow(32, 128, seed=2), _narrow(32, seed=3)], {}),
    "Functional.conv2d": ([_narrow(2, 8, 12, 12), _narrow(8, 8, 3, 3, seed=2)], {"padding": 1}),
    "Functional.conv_transpose2d": ([_narrow(2, 8, 12, 12), _narrow(8, 8, 3, 3, seed=2)], {"stride": 2}),
    "Functional.binary_cross_entropy_with_logits": ([_narrow(64, 64), _narrow(64, 64, seed=2)], {"reduction": "none"}),
    "Functional.local_response_norm": ([_narrow(4, 8, 9, 9), 5], {"alpha": 0.1}),
    "Torch.baddbmm": (
        [_narrow(2, 16, 16), _narrow(2, 16, 32), _narrow(2, 32, 16, seed=2)], {"beta": 0.3, "alpha": 0.7}
    ),
    "Torch.var": ([_narrow(256, 128), 1], {}),
    "Torch.std": ([_narrow(256, 128), 1], {}),
    "Torch.lerp": ([_narrow(64, 64), _narrow(64, 64, seed=2), 0.1], {}),
    "Torch.div": ([_narrow(64, 64), 0.3], {}),
    "Torch.mul": ([_narrow(64, 64), 0.99999], {}),
    "Torch.addcmul": ([_narrow(64, 64), _narrow(64, 64, seed=2), _narrow(64, 64, seed=3)], {"value": 0.3}),
    "Torch.logsumexp": ([_narrow(256, 64), 1], {}),
    "VF.lstm": (
        [
            _narrow(6, 16, 8), [np.zeros((1, 16, 16), np.float32)] * 2, _lstm_weights(), True, 1, 0.0, False, False,
            False,
        ],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("api", sorted(ROUNDED))
def test_rounding_is_of_the_predicted_size(api: str, torch: Torch) -> None:
    """PyTorch's float32 kernels are off by no more than about what the formula predicts, nor is that far too much."""
    args, kwargs = ROUNDED[api]
    kernel = torch.run(api, *args, **kwargs)[0].astype(np.float64)
    output = outputs_of_api(api, *_wide(args), **kwargs)[0]
    assert output is not None
    ratio = rounding_ratio(kernel - output.array, np.hypot(np.hypot(output.summed, output.terms), output.array))
    assert 0.02 < ratio < 1.6


def _wide(value: Any) -> Any:
    """The same numbers in float64."""
    if isinstance(value, (list, tuple)):
        return [_wide(part) for part in value]
    return value.astype(np.float64) if isinstance(value, np.ndarray) else value
