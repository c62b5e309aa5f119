"""Whatever a damaged graph or dump makes of a call: an output, or the reason why there is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from opcalls import as_input, call_of, check, results_of, spec_of
from opvalues import Array, shapes, tensor

from precision_tool.lib.ops.base import Call, Input, NotComputedError, OutputSpec, registered
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.view.verdict_messages import reason_words

assert find("Add") is not None
#: The modules whose ops compute an example each, which is damaged; the others are tried with whatever comes.
FAMILIES = ("attention", "convolution", "losses", "matrix", "norms", "pooling", "recurrent")
_BY_FAMILY = {name: spec.function.__module__.rsplit(".", 1)[1] for name, spec in registered().items()}
LAYERS = sorted(name for name, family in _BY_FAMILY.items() if family in FAMILIES)
OPS = sorted(set(_BY_FAMILY) - set(LAYERS))
#: Attributes that some op reads.
NAMES = (
    "axes", "axis", "keep_dims", "dimension", "k", "dim", "perm", "multiples", "concat_dim", "split_dim", "num_split",
    "size_splits", "offsets", "size", "begin", "end", "strides", "begin_mask", "end_mask", "shrink_axis_mask",
    "new_axis_mask", "ellipsis_mask", "shape", "paddings", "crops", "block_size", "block_shape", "mode", "depth", "num",
    "num_segments", "batch_dims", "seq_dim", "batch_dim", "value", "negative_slope", "alpha", "data_format", "dims",
    "align_corners", "half_pixel_centers", "p", "lr", "rho", "epsilon", "use_nesterov", "exclusive", "reverse",
)  # fmt: skip

attr_values = st.one_of(
    st.integers(-3, 6), st.sampled_from([2**31, -(2**63), 2**40]), st.floats(), st.booleans(), st.none(),
    st.sampled_from(["NHWC", "NCHW", "", "CRD", "REFLECT", "inf"]),
    st.lists(st.integers(-3, 6), max_size=5), st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=3),
    st.lists(st.floats(), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Input | None:
    """A tensor of any type and shape, an empty one too, or none."""
    kind = draw(
        st.sampled_from(["float16", "float32", "bfloat16", "int32", "int64", "uint8", "bool", "none", "complex64"])
    )
    if kind == "none":
        return None
    shape = draw(st.one_of(shapes, st.sampled_from([(0,), (2, 0), (0, 3, 3, 1)])))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    array: Array = random.integers(-3, 6, shape) if draw(st.booleans()) else random.normal(size=shape) * 3
    if kind.startswith("float") or kind == "bfloat16":
        array = np.where(random.random(shape) < 0.05, draw(st.sampled_from([np.nan, np.inf, -np.inf])), array)
        return Input(
            array=np.asarray(array, np.float64), dtype=kind, layout=draw(st.sampled_from(["ND", "NHWC", "NCHW"]))
        )
    if kind == "complex64":
        return Input(array=np.asarray(array, np.complex128), dtype=kind)
    return Input(array=np.asarray(array).astype(kind), dtype=kind)


calls = st.tuples(
    st.lists(tensors(), max_size=6),
    st.dictionaries(st.sampled_from(NAMES), attr_values, max_size=8),
    st.lists(
        st.builds(
            OutputSpec,
            shape=st.one_of(st.none(), shapes, st.just((2**31, 2**31)), st.just((-1, 2))),
            dtype=st.sampled_from(["float16", "float32", "int32", "bool", "string"]),
        ),
        max_size=2,
    ),
)


def trouble(name: str, call: Call) -> str | None:
    """What an op's function does that it must not; None where it gives outputs or a reason."""
    try:
        for output in registered()[name].function(call):
            if output is not None and output.array.dtype.kind != "c":
                check(output)
    except NotComputedError as reason:
        words = reason_words(reason.reason)
        return f"{name}: {words}" if not words or "None" in words else None
    except Exception as error:
        return f"{name}: {error!r}"
    return None


@pytest.mark.parametrize("part", range(4))
@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)  # fmt: skip
@given(data=calls)
def test_no_op_crashes(part: int, data: tuple[list[Input | None], dict[str, Any], list[OutputSpec]]) -> None:
    inputs, attrs, expected = data
    result = []
    for name in OPS[part::4]:
        call = Call(op_type=name, inputs=tuple(inputs), attrs=attrs, outputs=tuple(expected))
        result.append(trouble(name, call))
    assert not [each for each in result if each], data


# --- layers ---

_X, _X3 = (2, 4, 4, 3), (2, 3, 4, 4, 3)
_MOVES: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NHWC"}
_MOVES3: dict[str, Any] = {"strides": [1, 1, 1, 1, 1], "padding": "SAME"}
_POOL: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
_POOL3: dict[str, Any] = {"ksize": [1, 1, 2, 2, 1], "strides": [1, 1, 2, 2, 1], "padding": "VALID"}
_HALF, _HALF3 = (2, 2, 2, 3), (2, 3, 2, 2, 3)
_LABELS = np.array([1, 0])
_C, _STEPS = (3,), (5, 2, 3)

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
    ("GroupedMatmul", [(5, 4), (2, 4, 3), (2, 3), np.array([2, 5])], {}),
    ("Rotary", [(2, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4)], {"mode": 0}),
    ("FlashAttentionScoreGrad", [(2, 2, 3, 4)] * 4, {"head_num": 2, "input_layout": "BNSD", "scale_value": 0.5}),
    ("FlashAttentionScore", [(2, 2, 3, 4)] * 3, {"head_num": 2, "input_layout": "BNSD", "scale_value": 0.5}),
    ("attention_grad", [*[(2, 3, 4)] * 3, (3, 3), (2, 3, 4)], {"is_causal": True, "slot": 1}),
    ("scaled_dot_product", [(2, 3, 4)] * 3, {"is_causal": True}),
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
    ("BatchNormV3", [_X, _C, _C, _C, np.ones(3)], {"momentum": 0.1}),
    ("BatchNorm", [_X, _C, _C, _C, np.ones(3)], {"is_training": False}),
    ("LayerNormBetaGammaBackpropV2", [(4, 3), (4, 3)], {"shape_gamma": [3]}),
    ("LayerNormBetaGammaBackprop", [(4, 3), (4, 3), np.ones((4, 1)), (4, 1)], {"shape_gamma": [3]}),
    ("LayerNormGrad", [(4, 3), (4, 3), np.ones((4, 1)), (4, 1), (3,)], {}),
    ("LayerNormX", [(4, 3), (4, 3), np.ones((4, 1)), (4, 1), (3,)], {}),
    ("LayerNormV4", [(4, 3), np.array([3]), (3,), (3,)], {"epsilon": 0.1}),
    ("AddRmsNorm", [(4, 3), (4, 3), (3,)], {}),
    ("RmsNorm", [(4, 3), (3,)], {}),
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
    ("nll_loss", [(2, 3), _LABELS, (3,)], {}),
    ("CrossEntropyLoss", [(2, 3), _LABELS, np.ones(3)], {"label_smoothing": 0.1}),
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
    ("DynamicRNNGrad", [(5, 2, 4), (7, 12), (12,), _STEPS, (1, 2, 3), (1, 2, 3), *[_STEPS] * 3, (2, 3), (2, 3),
                        *[_STEPS] * 5], {}),
    ("BlockLSTMGrad", [np.array(5), (5, 2, 4), (2, 3), (2, 3), (7, 12), *[_C] * 3, (12,), *[_STEPS] * 9], {}),
    ("BlockLSTM", [np.array(5), (5, 2, 4), (2, 3), (2, 3), (7, 12), *[_C] * 3, (12,)], {}),
    ("Einsum", [(3, 4), (4, 5)], {"equation": "ij,jk->ik"}),
    ("Dynamic", [(5, 2, 4), (7, 12), (12,)], {}),
]  # fmt: skip


def example(name: str) -> Call:
    """A call of the op that computes."""
    shapes, attrs = next((shapes, attrs) for part, shapes, attrs in EXAMPLES if part in name)
    arrays = [one if isinstance(one, np.ndarray) else tensor(seed, one) for seed, one in enumerate(shapes)]
    return call_of(name, *arrays, **attrs)


@pytest.mark.parametrize("name", LAYERS)
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
    call = example(draw(st.sampled_from(LAYERS)))
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
            call = replace(call, outputs=(OutputSpec(shape=shape, layout=draw(st.sampled_from(["ND", "NCHW"]))),) * 2)
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
