"""Matrix products and bias additions against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opcalls import (
    arrays_of,
    as_input,
    call_of,
    check_estimated,
    output_of,
    refused,
    results_of,
    rounding_ratio,
    sampled_of,
    work_of,
)
from opvalues import same, tensor, tries
from tensorflow_oracle import TensorFlow

from precision_tool.lib.ops.base import NotComputedError

_SIZES = st.integers(1, 7)


@given(m=_SIZES, k=_SIZES, n=_SIZES, turned=st.tuples(st.booleans(), st.booleans()), with_bias=st.booleans())
@tries(30)
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
@tries(30)
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
    output = output_of(call)
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
    whole = output_of(call)
    places = np.random.default_rng(0).integers(0, whole.array.size, 2000)
    check_estimated(call, whole, places, 3)


@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
@pytest.mark.parametrize("way", ["float16 inputs", "float32 sums"])
def test_rounding_is_predicted(kind: str, way: str) -> None:
    a, b = tensor(1, (60, 256), kind), tensor(2, (256, 40), kind)
    output = output_of(call_of("MatMul", a, b))
    if way == "float16 inputs":
        narrowed = [one.astype(np.float16).astype(np.float64) for one in (a, b)]
        error = narrowed[0] @ narrowed[1] - output.array
        ratio = rounding_ratio(error, np.sqrt(2) * np.asarray(output.terms), 2.0**-11)
    else:
        total, exact = np.zeros((60, 40), np.float32), np.zeros((60, 40))
        for k in range(256):
            part = a.astype(np.float32)[:, k, None] * b.astype(np.float32)[k]
            total, exact = total + part, exact + part
        ratio = rounding_ratio(total - exact, output.summed)
    assert 0.5 < ratio < 1.6


@given(
    rank=st.integers(2, 5), sizes=st.lists(_SIZES, min_size=5, max_size=5), first=st.booleans(), by_layout=st.booleans()
)
@tries(30)
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
    same(y, true)


def test_a_fully_connected_layer_of_caffe() -> None:
    x, w, b = tensor(1, (2, 6, 1, 1)), tensor(2, (5, 6, 1, 1)), tensor(3, (5,))
    (y,) = arrays_of("FullyConnection", x, w, b, num_output=5, transpose=False, axis=1)
    np.testing.assert_allclose(y, x[:, :, 0, 0] @ w[:, :, 0, 0].T + b, rtol=1e-12)
    (turned,) = arrays_of("FullyConnection", x, w[:, :, 0, 0].T, b, num_output=5, transpose=True, axis=1)
    np.testing.assert_allclose(turned, y, rtol=1e-12)


def test_a_product_too_large_is_not_computed_whole_and_sampled_all_the_same() -> None:
    one = np.broadcast_to(1.0, (40_000, 2))
    call = call_of("MatMul", one, one.T)
    with refused("too large to recompute in full"):
        results_of(call)
    same(sampled_of(call, np.array([0, 1_500_000_000])).array, [2, 2])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("BTNH,BSNH->BNTS", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("BNTS,BSNH->BTNH", [(2, 2, 3, 5), (2, 5, 2, 4)]),
        ("abc,cde->abde", [(2, 3, 4), (4, 5, 2)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ij->i", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
        ("ijk->", [(2, 3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], tensorflow: TensorFlow) -> None:
    arrays = [tensor(seed, shape) for seed, shape in enumerate(shapes, 1)]
    (true,) = tensorflow.run("Einsum", {"inputs": arrays}, equation=equation)
    result = output_of(call_of("Einsum", *arrays, equation=equation))
    assert result.array.shape == true.shape
    np.testing.assert_allclose(result.array, true, rtol=1e-12, atol=1e-12)


def test_the_rounding_of_einsum_is_that_of_a_product() -> None:
    a, b = tensor(1, (6, 9)), tensor(2, (9, 4))
    (one,), (other,) = results_of(call_of("Einsum", a, b, equation="ij,jk->ik")), results_of(call_of("MatMulV2", a, b))
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.terms, other.terms, rtol=1e-12)
    np.testing.assert_allclose(one.summed, other.summed, rtol=1e-12)
    assert work_of(call_of("Einsum", a, b, equation="ij,jk->ik")) == 6 * 9 * 4


@pytest.mark.parametrize("equation", ["", "ij", "ij,kl,m->i", "ij,ik->ik", "i(j,jk->ik", "ijl,jk->ik", "ij,jk->iz"])
def test_an_equation_that_is_not_of_its_inputs(equation: str) -> None:
    with pytest.raises(NotComputedError):
        arrays_of("Einsum", np.ones((3, 4)), np.ones((4, 5)), equation=equation)
