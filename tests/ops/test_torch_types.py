"""GE's types of networks that come from PyTorch: against PyTorch, or their definition where PyTorch has none."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from opcalls import (
    arrays_of,
    as_input,
    call_of,
    check_sampled,
    output_of,
    outputs_of,
    refused,
    results_of,
    rounding_ratio,
)
from opvalues import Array, close, close_all, pairs, same, seeds, tries, values, whole
from torch_oracle import Torch

from precision_tool.lib.ops.base import OutputSpec

_RANKED = array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)
_IMAGES = array_shapes(min_dims=3, max_dims=5, min_side=1, max_side=4).filter(lambda s: prod(s) > s[1])
_LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


@given(shape=_RANKED, seed=seeds, data=st.data())
@tries(15)
def test_rms_norm(shape: tuple[int, ...], seed: int, data: st.DataObject, torch: Torch) -> None:
    last = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    x, gamma = values(shape, seed), values(last, seed + 1)
    true = torch.run("Functional.rms_norm", x, list(last), gamma, 1e-3)[0]
    y, rstd = arrays_of("RmsNorm", x, gamma, epsilon=1e-3)
    close(y, true, 1e-11)
    axes = tuple(range(len(shape) - len(last), len(shape)))
    close(rstd, 1 / np.sqrt(np.mean(x**2, axes, keepdims=True) + 1e-3), 1e-12)
    check_sampled("RmsNorm", x, gamma, epsilon=1e-3)
    added = arrays_of("AddRmsNorm", x / 2, x / 2, gamma, epsilon=1e-3)
    close_all(added, [y, rstd, x], 1e-11)


@given(shape=_RANKED, seed=seeds, scaled=st.booleans(), shifted=st.booleans(), data=st.data())
@tries(15)
def test_layer_norm_v4(
    shape: tuple[int, ...], seed: int, scaled: bool, shifted: bool, data: st.DataObject, torch: Torch
) -> None:
    last = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    x = values(shape, seed)
    gamma, beta = (values(last, seed + n) if is_there else None for n, is_there in ((1, scaled), (2, shifted)))
    true = torch.run("Torch.native_layer_norm", x, list(last), gamma, beta, 1e-3)
    close_all(arrays_of("LayerNormV4", x, np.array(last), gamma, beta, epsilon=1e-3), true, 1e-10)
    check_sampled("LayerNormV4", x, np.array(last), gamma, beta, epsilon=1e-3)


@given(shape=_IMAGES, seed=seeds, training=st.booleans())
@tries(15)
def test_batch_norm_v3(shape: tuple[int, ...], seed: int, training: bool, torch: Torch) -> None:
    x = values(shape, seed) + 3
    weight, bias, mean = (values(shape[1:2], seed + n) for n in (1, 2, 3))
    variance = values(shape[1:2], seed + 4, "positive")
    true = torch.run("Torch.native_batch_norm", x, weight, bias, mean, variance, training, 0.1, 1e-3)
    image = as_input(x, _LAYOUTS[len(shape)])
    y, new_mean, new_variance, saved, inverse = outputs_of(
        "BatchNormV3", image, weight, bias, mean, variance, epsilon=1e-3, momentum=0.1, is_training=training
    )
    close(y.array, true[0], 1e-9)
    if training:
        close_all([saved.array, inverse.array], true[1:3], 1e-9)
        count = x.size // shape[1]
        axes = (0, *range(2, len(shape)))
        close(new_mean.array, 0.9 * mean + 0.1 * x.mean(axes), 1e-10)
        close(new_variance.array, 0.9 * variance + 0.1 * x.var(axes) * count / (count - 1), 1e-10)
    else:
        same(new_mean.array, mean)


@given(shape=_RANKED, seed=seeds, form=st.sampled_from(["none", "tanh"]))
@tries(15)
def test_gelu(shape: tuple[int, ...], seed: int, form: str, torch: Torch) -> None:
    x = 3 * values(shape, seed)
    close(arrays_of("GeluV2", x, approximate=form)[0], torch.run("Functional.gelu", x, approximate=form)[0], 1e-12)


def test_gelu_keeps_the_digits_of_large_negative_numbers(torch: Torch) -> None:
    x = np.linspace(-12, 12, 500)
    expected = 0.5 * x * torch.run("Torch.erfc", -x / np.sqrt(2))[0]
    np.testing.assert_allclose(arrays_of("GeluV2", x)[0], expected, rtol=1e-11)
    same(arrays_of("GeluV2", np.array([-np.inf, np.inf]))[0], np.array([0.0, np.inf]))


@given(shape=_RANKED, seed=seeds, data=st.data())
@tries(10)
def test_swiglu(shape: tuple[int, ...], seed: int, data: st.DataObject, torch: Torch) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    a, b = values(shape, seed), values(shape, seed + 1)
    expected = torch.run("Functional.silu", a)[0] * b
    close(arrays_of("SwiGlu", np.concatenate([a, b], axis), dim=axis)[0], expected, 1e-12)


@given(shapes=pairs(3), seed=seeds, value=st.sampled_from([1.0, -0.5, 2.0]))
@tries(15)
def test_addcmul_and_addcdiv(shapes: tuple[tuple[int, ...], ...], seed: int, value: float, torch: Torch) -> None:
    x, a, b = (values(shape, seed + n, "nonzero") for n, shape in enumerate(shapes))
    for name, api in (("Addcmul", "Torch.addcmul"), ("Addcdiv", "Torch.addcdiv")):
        true = torch.run(api, x, a, b, value=value)[0]
        close(arrays_of(name, x, a, b, np.array(value))[0], true)
        close(arrays_of(name, x, a, b, value=value)[0], true)


def test_eltwise() -> None:
    a, b, c = (values((2, 3), seed) for seed in (1, 2, 3))
    close(arrays_of("Eltwise", a, b, c, mode=0)[0], a * b * c)
    close(arrays_of("Eltwise", a, b, c)[0], a + b + c)
    close(arrays_of("Eltwise", a, b, c, mode=1, coeff=[1.0, -1.0, 0.5])[0], a - b + c / 2)
    same(arrays_of("Eltwise", a, b, c, mode=2)[0], np.maximum(np.maximum(a, b), c))
    with refused("coeff"):
        arrays_of("Eltwise", a, b, c, mode=1, coeff=[1.0])


@given(
    rest=array_shapes(min_dims=0, max_dims=2, max_side=3), seed=seeds, smoothing=st.sampled_from([0.0, 0.1]),
    reduction=st.sampled_from(["mean", "sum", "none"]), weighted=st.booleans(), ignored=st.booleans(),
)  # fmt: skip
@tries(25)
def test_cross_entropy_loss(
    rest: tuple[int, ...], seed: int, smoothing: float, reduction: str, weighted: bool, ignored: bool, torch: Torch
) -> None:
    x, labels = values((4, 5, *rest), seed), whole((4, *rest), seed, 0, 5, "int64")
    if ignored:
        labels[0] = 2
        labels[1] = 3
    weight = values((5,), seed + 1, "positive") if weighted else None
    index = 2 if ignored else -100
    true = torch.run(
        "Functional.cross_entropy", x, labels, weight, ignore_index=index, reduction=reduction,
        label_smoothing=smoothing,
    )[0]  # fmt: skip
    loss, log_prob = arrays_of(
        "CrossEntropyLoss", x, labels, weight, reduction=reduction, ignore_index=index, label_smoothing=smoothing
    )
    close(loss, true, 1e-11)
    close(log_prob, torch.run("Functional.log_softmax", x, 1)[0], 1e-11)


def test_cross_entropy_of_probabilities(torch: Torch) -> None:
    x, weight = values((4, 5), 1), values((5,), 3, "positive")
    target = torch.run("Functional.softmax", values((4, 5), 2), 1)[0]
    for reduction in ("mean", "sum", "none"):
        true = torch.run(
            "Functional.cross_entropy", x, target, weight, reduction=reduction, label_smoothing=0.2
        )[0]  # fmt: skip
        close(
            arrays_of("CrossEntropyLoss", x, target, weight, reduction=reduction, label_smoothing=0.2)[0], true, 1e-11
        )
    assert output_of(call_of("CrossEntropyLoss", x, target, specs=(OutputSpec(shape=(1,)),))).array.shape == (1,)


def test_cross_entropy_refuses_labels_that_are_no_class() -> None:
    with refused("out of range"):
        arrays_of("CrossEntropyLoss", values((2, 3), 1), np.array([0, 3]))


def test_index() -> None:
    x = values((4, 5, 6), 1)
    rows, columns = np.array([[0, -1], [2, 3]]), np.array([1, 5])
    same(arrays_of("Index", x, np.array([1, 0, 1]), np.array([30, 1]), rows, columns)[0], x[rows, :, columns])
    same(arrays_of("Index", x, np.array([0, 1]), None, columns - 1)[0], x[:, columns - 1])
    with refused("out of range"):
        arrays_of("Index", x, np.array([0, 0, 1]), None, np.array([6]))


@given(shape=_RANKED, seed=seeds, step=st.integers(1, 50), amsgrad=st.booleans(), maximize=st.booleans())
@tries(15)
def test_adamw(shape: tuple[int, ...], seed: int, step: int, amsgrad: bool, maximize: bool, torch: Torch) -> None:
    var, m, grad = (values(shape, seed + n) for n in range(3))
    v, largest = (values(shape, seed + n, "positive") for n in (3, 4))
    rates: dict[str, Any] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.02, "eps": 1e-6}
    got = arrays_of(
        "ApplyAdamWV2", var, m, v, grad, np.array(step), largest if amsgrad else None,
        amsgrad=amsgrad, maximize=maximize, **rates,
    )  # fmt: skip
    true = torch.run(
        "Optimizer.adamw", var, grad, m, v, largest, step=step, amsgrad=amsgrad, maximize=maximize, **rates
    )
    close_all(got, true[: len(got)], 1e-11)


@given(seed=seeds, smooth=st.booleans())
@tries(10)
def test_dynamic_quant(seed: int, smooth: bool) -> None:
    x = values((3, 4, 16), seed).astype(np.float16)
    factors = values((16,), seed + 1, "positive").astype(np.float16)
    scaled = x.astype(np.float64) * (factors.astype(np.float64) if smooth else 1)
    y, scale = outputs_of("DynamicQuant", x, factors if smooth else None)
    close(scale.array, np.abs(scaled).max(-1) / 127, 1e-12)
    assert np.abs(y.array).max() <= 127
    assert np.all(np.abs(y.array - scaled / scale.array[..., None]) <= 0.5 + 1e-9)
    groups = arrays_of("DynamicQuant", x.reshape(12, 16), np.stack([factors, 2 * factors]), np.array([5, 12]))
    own = np.where(np.arange(12)[:, None] < 5, factors, 2 * factors).astype(np.float64) * x.reshape(12, 16)
    close(groups[1], np.abs(own).max(-1) / 127, 1e-12)


@given(seed=seeds, mode=st.sampled_from([0, 1]), heads=st.integers(1, 3))
@tries(10)
def test_rotary_embedding(seed: int, mode: int, heads: int) -> None:
    """Pairs of numbers are turned as complex numbers by the angles that the cosines and sines are of."""
    x, angles = values((2, 3, heads, 8), seed), values((1, 3, 1, 4), seed + 1)
    both = np.repeat(angles, 2, -1) if mode else np.concatenate([angles, angles], -1)
    y = arrays_of("RotaryMul", x, np.cos(both), np.sin(both), mode=mode)[0]
    first, second = (x[..., ::2], x[..., 1::2]) if mode else (x[..., :4], x[..., 4:])
    turned = (first + 1j * second) * np.exp(1j * angles)
    got = (y[..., ::2], y[..., 1::2]) if mode else (y[..., :4], y[..., 4:])
    close_all(list(got), [turned.real, turned.imag], 1e-12)


def _to_layout(x: Array, layout: str) -> Array:
    """(batch, heads, rows, numbers) in one of the kernel's layouts."""
    if layout == "BNSD":
        return x
    y = np.transpose(x, (2, 0, 1, 3) if layout == "SBH" else (0, 2, 1, 3))
    return y if layout == "BSND" else y.reshape(*y.shape[:2], -1)


@given(
    seed=seeds, layout=st.sampled_from(["BNSD", "BSND", "BSH", "SBH"]), shared=st.sampled_from([1, 2]),
    rows=st.integers(1, 4), columns=st.integers(1, 5), mode=st.sampled_from(["", "mask", "shift", "left", "right"]),
)  # fmt: skip
@tries(30)
def test_flash_attention(seed: int, layout: str, shared: int, rows: int, columns: int, mode: str, torch: Torch) -> None:
    if mode == "right":
        rows = min(rows, columns)
    query = values((2, 4, rows, 6), seed)
    key, value = (values((2, 4 // shared, columns, 6), seed + n) for n in (1, 2))
    mask, shift, sparse, takes_part = None, None, 0, np.ones((rows, columns), np.bool_)
    if mode == "mask":
        takes_part = np.random.default_rng(seed).random((rows, columns)) < 0.7
        takes_part[:, 0] = True
        mask = (~takes_part).astype(np.uint8)
    if mode in ("left", "right"):
        takes_part = np.tril(np.ones((rows, columns), np.bool_), 0 if mode == "left" else columns - rows)
        mask, sparse = np.triu(np.ones((8, 8), np.uint8), 1), 2 if mode == "left" else 3
    if mode == "shift":
        shift = values((2, 4, rows, columns), seed + 5)
    inputs = [_to_layout(x, layout) for x in (query, key, value)]
    attrs: dict[str, Any] = {"head_num": 4, "input_layout": layout, "scale_value": 0.4, "sparse_mode": sparse}
    largest, total, _, got = arrays_of_some(
        "FlashAttentionScore", *inputs, shift, None, None, mask, pse_type=0, **attrs
    )
    keys, many = np.repeat(key, shared, 1), np.repeat(value, shared, 1)
    added = np.where(takes_part, 0.0, -np.inf) + (0 if shift is None else shift)
    bias = np.broadcast_to(added, (2, 4, rows, columns)).copy()
    true = torch.run("Functional.scaled_dot_product_attention", query, keys, many, bias, scale=0.4)[0]
    assert got is not None
    assert largest is not None
    assert total is not None
    close(got, _to_layout(true, layout), 1e-11)
    scores = np.einsum("bnsd,bntd->bnst", query, keys) * 0.4 + added
    close(largest, np.repeat(scores.max(-1, keepdims=True), 8, -1), 1e-12)
    close(total, np.repeat(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True), 8, -1), 1e-11)


def arrays_of_some(op_type: str, *inputs: Any, **attrs: Any) -> list[Array | None]:
    """The arrays of all outputs, None where there is no formula."""
    return [None if output is None else output.array for output in results_of(call_of(op_type, *inputs, **attrs))]


@given(seed=seeds, kind=st.sampled_from([0, 1]), stacked=st.booleans(), turned=st.booleans(), biased=st.booleans())
@tries(10)
def test_grouped_matmul(seed: int, kind: int, stacked: bool, turned: bool, biased: bool) -> None:
    counts = [2, 0, 3]
    x, weights, biases = values((5, 4), seed), values((3, 4, 6), seed + 1), values((3, 6), seed + 2)
    listed = np.array(counts if kind else np.cumsum(counts), np.int64)
    factors = np.swapaxes(weights, 1, 2) if turned else weights
    inputs: list[Array] = [factors] if stacked else list(factors)
    inputs += ([biases] if stacked else list(biases)) if biased else []
    got = arrays_of("GroupedMatmul", x, *inputs, listed, group_list_type=kind, transpose_weight=turned)[0]
    rows = np.repeat([0, 1, 2], counts)
    close(got, np.einsum("mk,mkn->mn", x, weights[rows]) + (biases[rows] if biased else 0), 1e-12)


def _half(x: Array) -> Array:
    return x.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", ["RmsNorm", "LayerNormV4", "GeluV2", "SwiGlu", "CrossEntropyLoss"])
def test_rounding_is_of_the_predicted_size(name: str, torch: Torch) -> None:
    """PyTorch's float32 kernels are off from float64 by about as much as the formula predicts, and no more."""
    x, gamma, beta = _half(values((64, 256), 1)), _half(values((256,), 2)), _half(values((256,), 3))
    labels = whole((64,), 4, 0, 256, "int64")
    calls: dict[str, tuple[list[Any], tuple[str, list[Any]]]] = {
        "RmsNorm": ([x, gamma], ("Functional.rms_norm", [x, [256], gamma, 1e-6])),
        "LayerNormV4": ([x, np.array([256]), gamma, beta], ("Functional.layer_norm", [x, [256], gamma, beta])),
        "GeluV2": ([x], ("Functional.gelu", [x])),
        "SwiGlu": ([x], ("Functional.silu", [x[:, :128]])),
        "CrossEntropyLoss": ([x, labels], ("Functional.cross_entropy", [x, labels])),
    }
    inputs, (api, args) = calls[name]
    narrow = [a.astype(np.float32) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in args]
    kernel = torch.run(api, *narrow)[0].astype(np.float64)
    output = outputs_of(name, *inputs)[0]
    if name == "SwiGlu":
        kernel = kernel * x[:, 128:]
    size = np.sqrt(np.asarray(output.summed) ** 2 + output.array**2)
    assert rounding_ratio(kernel - output.array, size) < 1.5
