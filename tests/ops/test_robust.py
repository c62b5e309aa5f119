"""Whatever a damaged graph or dump makes of a call: an output, or the reason why there is none."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from op_data import Array, shapes
from opcalls import check

from precision_tool.lib.ops.base import Call, Input, NotComputedError, Wanted, known_types
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.view.verdict_messages import reason_words

#: The modules whose ops are tried; each op some times.
FAMILIES = (
    "activations", "blocks", "compare_select", "elementwise", "fills", "movement", "optimizers", "reductions",
    "resize", "scatter",
)  # fmt: skip
assert find("Add") is not None
OPS = sorted(name for name, spec in known_types().items() if spec.function.__module__.rsplit(".", 1)[1] in FAMILIES)
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
            Wanted,
            shape=st.one_of(st.none(), shapes, st.just((2**31, 2**31)), st.just((-1, 2))),
            dtype=st.sampled_from(["float16", "float32", "int32", "bool", "string"]),
        ),
        max_size=2,
    ),
)


def trouble(name: str, call: Call) -> str | None:
    """What an op's function does that it must not; None where it gives outputs or a reason."""
    try:
        for output in known_types()[name].function(call):
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
def test_no_op_crashes(part: int, data: tuple[list[Input | None], dict[str, Any], list[Wanted]]) -> None:
    inputs, attrs, wanted = data
    found = []
    for name in OPS[part::4]:
        call = Call(op_type=name, inputs=tuple(inputs), attrs=attrs, outputs=tuple(wanted))
        found.append(trouble(name, call))
    assert not [each for each in found if each], data
