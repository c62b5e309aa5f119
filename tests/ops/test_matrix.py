"""Matrix products and bias additions against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opcalls import arrays_of, as_input, call_of, refused, results_of, sampled_of, tensor, work_of
from tensorflow_oracle import TensorFlow

_SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
_SIZES = st.integers(1, 7)


@given(m=_SIZES, k=_SIZES, n=_SIZES, turned=st.tuples(st.booleans(), st.booleans()), with_bias=st.booleans())
@_SETTINGS
def test_products(m: int, k: int, n: int, turned: tuple[bool, bool], with_bias: bool, tensorflow: TensorFlow) -> None:
    a = tensor(1, (k, m) if turned[0] else (m, k))
    b = tensor(2, (n, k) if turned[1] else (k, n))
    bias = tensor(3, (n,)) if with_bias else None
    (true,) = tensorflow.run("MatMul", {"a": a, "b": b}, transpose_a=turned[0], transpose_b=turned[1])
    true = true if bias is None else true + bias
    for names in (("transpose_x1", "transpose_x2"), ("transpose_a", "transpose_b")):
        attrs: dict[str, Any] = dict(zip(names, turned, strict=True))
        (y,) = arrays_of("MatMulV2", a, b, bias, **attrs)
        np.testing.assert_allclose(y, true, rtol=1e-12, atol=1e-12)


@given(
    batch=st.sampled_from([((2, 3), (2, 3)), ((1, 3), (2, 1)), ((3,), (2, 3)), ((), (2,))]),
    sizes=st.tuples(_SIZES, _SIZES, _SIZES),
    turned=st.tuples(st.booleans(), st.booleans()),
)
@_SETTINGS
def test_stacks_that_broadcast(
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    sizes: tuple[int, int, int],
    turned: tuple[bool, bool],
    tensorflow: TensorFlow,
) -> None:
    m, k, n = sizes
    a = tensor(1, (*batch[0], k, m) if turned[0] else (*batch[0], m, k))
    b = tensor(2, (*batch[1], n, k) if turned[1] else (*batch[1], k, n))
    (true,) = tensorflow.run("BatchMatMulV2", {"x": a, "y": b}, adj_x=turned[0], adj_y=turned[1])
    call = call_of("BatchMatMul", a, b, adj_x1=turned[0], adj_x2=turned[1])
    (output,) = results_of(call)
    assert output is not None
    np.testing.assert_allclose(output.array, true, rtol=1e-12, atol=1e-12)
    places = np.random.default_rng(0).permutation(true.size)[:30]
    some = sampled_of(call, places)
    np.testing.assert_allclose(some.array, true.ravel()[places], rtol=1e-12, atol=1e-12)
    for field in ("summed", "terms"):
        np.testing.assert_allclose(getattr(some, field), getattr(output, field).ravel()[places], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("a", "b"), [((700, 400), (400, 500)), ((6, 300, 200), (6, 200, 300))])
def test_large_ones_estimate_terms_and_agree_with_sampling(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    call = call_of("BatchMatMul", tensor(1, a, "positive"), tensor(2, b, "wide"))
    assert work_of(call) > 1 << 26
    (whole,) = results_of(call)
    assert whole is not None
    places = np.random.default_rng(0).integers(0, whole.array.size, 2000)
    some = sampled_of(call, places)
    np.testing.assert_allclose(some.array, whole.array.ravel()[places], rtol=1e-9, atol=1e-6)
    for one, all_of in ((some.terms, whole.terms), (some.summed, whole.summed)):
        low, high = np.quantile(np.asarray(all_of).ravel()[places] / np.asarray(one), [0.02, 0.98])
        assert low > 1 / 3
        assert high < 3


@pytest.mark.parametrize("seed", range(3))
def test_rows_permuted_scaled_and_split(seed: int) -> None:
    a, b = tensor(seed, (9, 12)), tensor(seed + 7, (12, 5))
    (y,) = arrays_of("MatMul", a, b)
    order = np.random.default_rng(seed).permutation(9)
    np.testing.assert_allclose(arrays_of("MatMul", a[order], b)[0], y[order], rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(arrays_of("MatMul", 8 * a, b)[0], 8 * y)
    parts = arrays_of("MatMul", a[:, :5], b[:5])[0] + arrays_of("MatMul", a[:, 5:], b[5:])[0]
    np.testing.assert_allclose(parts, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
@pytest.mark.parametrize("way", ["float16 inputs", "float32 sums"])
def test_rounding_is_predicted(kind: str, way: str) -> None:
    a, b = tensor(1, (60, 256), kind), tensor(2, (256, 40), kind)
    (output,) = results_of(call_of("MatMul", a, b))
    assert output is not None
    if way == "float16 inputs":
        narrowed = [one.astype(np.float16).astype(np.float64) for one in (a, b)]
        error = narrowed[0] @ narrowed[1] - output.array
        predicted = 0.425 * 2.0**-11 * np.sqrt(2) * np.asarray(output.terms)
    else:
        total, exact = np.zeros((60, 40), np.float32), np.zeros((60, 40))
        for k in range(256):
            part = a.astype(np.float32)[:, k, None] * b.astype(np.float32)[k]
            total, exact = total + part, exact + part
        error = total - exact
        predicted = 0.425 * 2.0**-24 * np.asarray(output.summed)
    ratio = float(np.sqrt(np.mean(error**2) / np.mean(predicted**2)))
    assert 0.5 < ratio < 1.6


@given(
    rank=st.integers(2, 5), sizes=st.lists(_SIZES, min_size=5, max_size=5), first=st.booleans(), by_layout=st.booleans()
)
@_SETTINGS
def test_bias(rank: int, sizes: list[int], first: bool, by_layout: bool, tensorflow: TensorFlow) -> None:
    shape = tuple(sizes[:rank])
    first = first and rank in (4, 5)
    x, bias = tensor(1, shape), tensor(2, shape[1:2] if first else shape[-1:])
    layouts = {4: ("NHWC", "NCHW"), 5: ("NDHWC", "NCDHW")}
    form = layouts[rank][first] if rank in layouts else "NHWC"
    (true,) = tensorflow.run("BiasAdd", {"value": x, "bias": bias}, data_format="NCHW" if first else "NHWC")
    if by_layout and rank in layouts:
        (y,) = arrays_of("BiasAdd", as_input(x, form), bias)
    else:
        (y,) = arrays_of("BiasAdd", x, bias, data_format=form)
    np.testing.assert_array_equal(y, true)


def test_a_fully_connected_layer_of_caffe() -> None:
    x, w, b = tensor(1, (2, 6, 1, 1)), tensor(2, (5, 6, 1, 1)), tensor(3, (5,))
    (y,) = arrays_of("FullyConnection", x, w, b, num_output=5, transpose=False, axis=1)
    np.testing.assert_allclose(y, x[:, :, 0, 0] @ w[:, :, 0, 0].T + b, rtol=1e-12)
    (turned,) = arrays_of("FullyConnection", x, w[:, :, 0, 0].T, b, num_output=5, transpose=True, axis=1)
    np.testing.assert_allclose(turned, y, rtol=1e-12)


@pytest.mark.parametrize(
    ("op_type", "shapes", "reason"),
    [
        ("MatMul", [(2, 3), (4, 5)], r"\(2, 3\), \(4, 5\) of MatMul have no matrix product"),
        ("MatMul", [(3,), (3, 5)], "matrices of shape \\(3,\\)"),
        ("MatMul", [(2, 3)], "input 1 of MatMul is not connected"),
        ("MatMul", [(2, 3), (3, 5), (4,)], "bias of shape \\(4,\\) does not fit"),
        ("BatchMatMul", [(2, 2, 3), (3, 3, 5)], "do not broadcast"),
        ("BiasAdd", [(2, 3), (4,)], "bias of shape \\(4,\\) does not fit"),
    ],
)
def test_what_does_not_fit_is_told(op_type: str, shapes: list[tuple[int, ...]], reason: str) -> None:
    with refused(reason):
        arrays_of(op_type, *(np.ones(shape) for shape in shapes))


def test_a_product_too_large_is_not_computed_whole_and_sampled_all_the_same() -> None:
    one = np.broadcast_to(1.0, (40_000, 2))
    call = call_of("MatMul", one, one.T)
    with refused("too large to recompute in full"):
        results_of(call)
    np.testing.assert_array_equal(sampled_of(call, np.array([0, 1_500_000_000])).array, [2, 2])
