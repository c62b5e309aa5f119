"""Ops of layers: each computes a small call, and gives a reason for whatever is damaged in it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from op_data import Array, tensor
from opcalls import as_input, call_of, check, results_of, spec_of

from precision_tool.lib.ops.base import Call, Input, NotComputedError, Wanted, known_types
from precision_tool.lib.ops.op_table import find

FAMILIES = ("batch_norms", "convolution", "losses", "matrix", "norms", "pooling", "recurrent")
assert find("Conv2D") is not None
OPS = sorted(name for name, spec in known_types().items() if spec.function.__module__.rsplit(".", 1)[1] in FAMILIES)

_X, _X3 = (2, 4, 4, 3), (2, 3, 4, 4, 3)
_MOVES: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NHWC"}
_MOVES3: dict[str, Any] = {"strides": [1, 1, 1, 1, 1], "padding": "SAME"}
_POOL: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
_POOL3: dict[str, Any] = {"ksize": [1, 1, 2, 2, 1], "strides": [1, 1, 2, 2, 1], "padding": "VALID"}
_HALF, _HALF3 = (2, 2, 2, 3), (2, 3, 2, 2, 3)
_LABELS = np.array([1, 0])
_C = (3,)

#: For a part of the name of ops, which the first that fits decides: shapes or arrays of the inputs, and attributes.
EXAMPLES: list[tuple[str, list[tuple[int, ...] | Array], dict[str, Any]]] = [
    ("DepthwiseConv2DBackpropInput", [(3, 3, 3, 2), (2, 4, 4, 6)], {**_MOVES, "input_size": [*_X]}),
    ("DepthwiseConv2dNativeBackpropInput", [np.array(_X), (3, 3, 3, 2), (2, 4, 4, 6)], _MOVES),
    ("DepthwiseConv2DBackpropFilter", [_X, (2, 4, 4, 6)], {**_MOVES, "filter_size": [3, 3, 3, 2]}),
    ("DepthwiseConv2dNativeBackpropFilter", [_X, np.array((3, 3, 3, 2)), (2, 4, 4, 6)], _MOVES),
    ("DepthwiseConv2", [_X, (3, 3, 3, 2)], _MOVES),
    ("Conv2DBackpropInput", [(3, 3, 3, 2), (2, 4, 4, 2)], {**_MOVES, "input_size": [*_X]}),
    ("Conv2DBackpropFilter", [_X, (2, 4, 4, 2)], {**_MOVES, "filter_size": [3, 3, 3, 2]}),
    ("Conv3DBackpropInput", [(2, 2, 2, 3, 2), (2, 3, 4, 4, 2)], {**_MOVES3, "input_size": [*_X3]}),
    ("Conv3DBackpropFilter", [_X3, (2, 3, 4, 4, 2)], {**_MOVES3, "filter_size": [2, 2, 2, 3, 2]}),
    ("Conv2DTranspose", [(2, 4, 4, 2), (3, 3, 3, 2)], {**_MOVES, "input_size": [*_X]}),
    ("Conv3DTranspose", [(2, 3, 4, 4, 2), (2, 2, 2, 3, 2)], {**_MOVES3, "input_size": [*_X3]}),
    ("Deconvolution", [(2, 4, 4, 2), (3, 3, 3, 2)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("Conv2D", [_X, (3, 3, 3, 2), (2,)], _MOVES),
    ("Conv3D", [_X3, (2, 2, 2, 3, 2), (2,)], _MOVES3),
    ("BatchMatMul", [(2, 3, 4), (2, 4, 5)], {}),
    ("MatMul", [(3, 4), (4, 5), (5,)], {}),
    ("FullyConnection", [(2, 3, 1, 1), (4, 3, 1, 1), (4,)], {"num_output": 4}),
    ("BiasAdd", [_X, _C], {"data_format": "NHWC"}),
    ("MaxPoolGradWithArgmax", [_X, _HALF, np.zeros(_HALF, np.uint16)], _POOL),
    ("MaxPool3DGrad", [_X3, _HALF3, _HALF3], _POOL3),
    ("MaxPoolGrad", [_X, _HALF, _HALF], _POOL),
    ("MaxPoolV3Grad", [_X, _HALF, _HALF], _POOL),
    ("MaxPoolV2", [_X, np.array([1, 2, 2, 1]), np.array([1, 2, 2, 1])], {"padding": "SAME"}),
    ("AvgPool3DGradD", [_HALF3], {**_POOL3, "orig_input_shape": [*_X3]}),
    ("AvgPool3DGrad", [np.array(_X3), _HALF3], _POOL3),
    ("AvgPoolGradD", [_HALF], {**_POOL, "orig_input_shape": [*_X]}),
    ("AvgPoolV2GradD", [_HALF], {**_POOL, "orig_input_shape": [*_X]}),
    ("AvgPoolGrad", [np.array(_X), _HALF], _POOL),
    ("AvgPoolV2Grad", [np.array(_X), _HALF], _POOL),
    ("Pool3D", [_X3], _POOL3),
    ("Pooling", [_X], {"mode": 1, "window": [2, 2], "stride": [2, 2], "pad": [0, 0, 0, 0]}),
    ("Pool", [_X], _POOL),
    ("TrainingReduceGrad", [_X, _X, _C, _C, _C, _C, np.ones(3)], {"epsilon": 0.1}),
    ("TrainingUpdateGrad", [_X, _X, _C, np.ones(3)], {"epsilon": 0.1}),
    ("TrainingReduce", [_X], {}),
    ("TrainingUpdate", [_X, _C, 99 * np.ones(3), _C, _C, _C, _C], {"epsilon": 0.1, "factor": 0.1}),
    ("BNInferGrad", [_X, _C, np.ones(3)], {"epsilon": 0.1}),
    ("BNInfer", [_X, _C, _C, _C, np.ones(3)], {"epsilon": 0.1}),
    ("BatchNorm3DGrad", [_X, _X, _C, _C, np.ones(3)], {}),
    ("BatchNormGrad", [_X, _X, _C, _C, np.ones(3)], {"is_training": True}),
    ("BatchNorm", [_X, _C, _C, _C, np.ones(3)], {"is_training": False}),
    ("LayerNormBetaGammaBackpropV2", [(4, 3), (4, 3)], {"shape_gamma": [3]}),
    ("LayerNormBetaGammaBackprop", [(4, 3), (4, 3), np.ones((4, 1)), (4, 1)], {"shape_gamma": [3]}),
    ("LayerNormGrad", [(4, 3), (4, 3), np.ones((4, 1)), (4, 1), (3,)], {}),
    ("LayerNormX", [(4, 3), (4, 3), np.ones((4, 1)), (4, 1), (3,)], {}),
    ("LayerNorm", [(4, 3), (3,), (3,)], {"begin_norm_axis": 1, "begin_params_axis": 1}),
    ("INInferV2", [_X, _C, _C, _C, np.ones(3)], {"epsilon": 0.1}),
    ("InstanceNorm", [_X, _C, _C], {"epsilon": 0.1}),
    ("GroupNorm", [_X, _C, _C], {"num_groups": 3}),
    ("LRNGrad", [_X, _X, _X], {"depth_radius": 1}),
    ("LRN", [_X], {"depth_radius": 1}),
    ("L2NormalizeGrad", [(3, 4), (3, 4), (3, 4)], {"dim": [1]}),
    ("L2Normalize", [(3, 4)], {"axis": [1]}),
    ("SparseSoftmax", [(2, 3), _LABELS], {}),
    ("SoftmaxCross", [(2, 3), (2, 3)], {}),
    ("SoftmaxGradExt", [(2, 3), (2, 3), (2, 3)], {}),
    ("SoftmaxGrad", [(2, 3), (2, 3)], {}),
    ("Softmax", [(2, 3)], {"axes": [-1]}),
    ("SigmoidCrossEntropyWithLogitsGrad", [(2, 3), (2, 3), (2, 3)], {}),
    ("SigmoidCross", [(2, 3), (2, 3)], {}),
    ("NLLLossGrad", [(2, 3), (1,), _LABELS, (3,), np.ones(1)], {}),
    ("NLLLoss", [(2, 3), _LABELS, (3,)], {}),
    ("LossGrad", [(2, 3), (2, 3), (2, 3)], {}),
    ("CrossEntropyGrad", [(2, 3), (2, 3), (2, 3)], {}),
    ("Loss", [(2, 3), (2, 3)], {}),
    ("BinaryCross", [np.full((2, 3), 0.3), np.ones((2, 3))], {}),
    ("KLDiv", [(2, 3), np.ones((2, 3))], {"reduction": "sum"}),
    ("DropOutDoMaskV3", [(2, 3), np.ones(128, np.uint8), np.full(1, 0.5)], {}),
    ("DoMask", [(2, 3), np.ones(16, np.uint8), np.full(1, 0.5)], {}),
    ("BasicLSTMCellCState", [(2, 3)] * 8, {}),
    ("BasicLSTMCellInput", [(2, 12), (7, 12)], {}),
    ("BasicLSTMCellWeight", [(2, 4), (2, 3), (2, 12)], {}),
    ("BasicLSTMCell", [(2, 4), (2, 3), (2, 3), (7, 12), (12,)], {}),
    ("LSTMBlockCellGrad", [(2, 4), (2, 3), (2, 3), (7, 12), (3,), (3,), (3,), (12,), *[(2, 3)] * 8], {}),
    ("LSTMBlockCell", [(2, 4), (2, 3), (2, 3), (7, 12), (3,), (3,), (3,), (12,)], {}),
    ("GRUBlockCellGrad", [(2, 4), (2, 3), (7, 6), (7, 3), (6,), (3,), *[(2, 3)] * 4], {}),
    ("GRUBlockCell", [(2, 4), (2, 3), (7, 6), (7, 3), (6,), (3,)], {}),
    ("DynamicGRU", [(5, 2, 4), (4, 9), (3, 9), (9,), (9,)], {}),
    ("Dynamic", [(5, 2, 4), (7, 12), (12,)], {}),
]


def example(name: str) -> Call:
    """A call of the op that computes."""
    shapes, attrs = next((shapes, attrs) for part, shapes, attrs in EXAMPLES if part in name)
    arrays = [one if isinstance(one, np.ndarray) else tensor(seed, one) for seed, one in enumerate(shapes)]
    return call_of(name, *arrays, **attrs)


@pytest.mark.parametrize("name", OPS)
def test_each_computes_and_is_sampled_alike(name: str) -> None:
    call = example(name)
    results = results_of(call)
    assert results
    first, spec = results[0], spec_of(name)
    assert first is not None
    assert np.isfinite(first.array).all()
    if spec.sampled is None:
        return
    places = np.arange(first.array.size) if spec.cheap_places is None else spec.cheap_places(call, 20)
    some = spec.sampled(call, places)
    np.testing.assert_allclose(some.array, first.array.ravel()[places], rtol=1e-9, atol=1e-12)
    assert spec.work is not None
    assert spec.work(call) > 0


@st.composite
def damages(draw: st.DrawFn) -> Call:
    """An example of which inputs, attributes or wanted outputs are exchanged for something else."""
    call = example(draw(st.sampled_from(OPS)))
    inputs, attrs = list(call.inputs), dict(call.attrs)
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["input", "input", "attr", "attr", "wanted", "fewer", "more", "layout"]))
        if kind == "input" and inputs:
            inputs[draw(st.integers(0, len(inputs) - 1))] = draw(_other_inputs())
        elif kind == "fewer" and inputs:
            inputs.pop(draw(st.integers(0, len(inputs) - 1)))
        elif kind == "more":
            inputs.append(draw(_other_inputs()))
        elif kind == "layout" and inputs and inputs[0] is not None:
            inputs[0] = replace(inputs[0], layout=draw(st.sampled_from(["NCHW", "NCDHW", "HWCN", "NC1HWC0"])))
        elif kind == "attr":
            names = (*attrs, "groups", "pads", "dilations", "epsilon", "axes", "reduction", "ceil_mode", "use_peephole")
            attrs[draw(st.sampled_from(names))] = draw(_other_values())
        elif kind == "wanted":
            shape = draw(st.sampled_from([None, (), (3,), (2, 2), (-1,), (2**31, 2**31), _X]))
            call = replace(call, outputs=(Wanted(shape=shape, layout=draw(st.sampled_from(["ND", "NCHW"]))),) * 2)
    return replace(call, inputs=tuple(inputs), attrs=attrs)


def _other_values() -> st.SearchStrategy[Any]:
    numbers = st.sampled_from(
        [None, -1, 0, 1, 2, 3, 2**40, -(2**63), 0.5, float("nan"), float("inf"), True, "none", "?"]
    )
    lists = st.lists(st.integers(-2, 4) | st.sampled_from([2**40, 0.5]), max_size=6)
    return numbers | lists | st.sampled_from([[1, 1, 1, 1], [1, 3, 3, 1], [0, 0, 0, 0], {}, [[1]], "SAME", "VALID"])


@st.composite
def _other_inputs(draw: st.DrawFn) -> Input | None:
    """Of another type or shape, empty, with infinities, or none."""
    shape = draw(st.sampled_from([(), (0,), (2, 0), (3,), (2, 3), (4, 3), _X, _HALF, _X3, (0, 4, 4, 3), (1, 1, 1, 1)]))
    array = tensor(9, shape)
    kind = draw(st.sampled_from(["none", "float32", "float16", "int32", "uint8", "bool", "complex64", "infinite"]))
    if kind == "none":
        return None
    if kind == "infinite":
        return as_input(np.where(array > 0.5, np.inf, np.where(array < -0.5, np.nan, array)))
    if kind == "complex64":
        return Input(array=array.astype(np.complex128), dtype=kind)
    if kind.startswith("float"):
        return as_input(array, dtype=kind)
    return Input(array=np.abs(3 * array).astype(kind), dtype=kind)


@settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(call=damages())
def test_no_damage_crashes(call: Call) -> None:
    """Outputs or a reason, and nothing else."""
    spec = spec_of(call.op_type)
    with suppress(NotComputedError):
        for output in spec.function(call):
            if output is not None:
                check(output)
    with suppress(NotComputedError):
        if spec.work is not None:
            spec.work(call)
    with suppress(NotComputedError):
        if spec.cheap_places is not None:
            spec.cheap_places(call, 4)
