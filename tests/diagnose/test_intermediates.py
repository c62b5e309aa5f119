"""What kernels compute on their way: of the axes that an op says, and nothing claimed where it says none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from precision_tool.lib.diagnose.emulation import Computed
from precision_tool.lib.diagnose.intermediates import intermediates
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import Literal, RecordedCall, RecordedOp
from precision_tool.lib.ops.base import Input

#: Two samples of four channels that are far apart, and a position that is far from the others.
X = np.random.default_rng(0).standard_normal((2, 4, 6))
X += np.array([300.0, 300.0, -300.0, -300.0])[:, None]
X[:, :, 0] += 9
WEIGHT = np.ones(6)


def inside(op: Op, y: Any, *more: Any, layout: str = "ND") -> dict[str, float]:
    arrays = [X if layout != "NHWC" else np.moveaxis(X[:, :, None], 1, -1), *more]
    inputs = {slot: Input(array=array, layout=layout if not slot else "ND") for slot, array in enumerate(arrays)}
    results = {0: np.asarray(y)}
    return dict(intermediates(Computed(op=op, inputs=inputs, outputs=results, unrounded=results)))


def called(name: str, *arguments: Any, **kwargs: Any) -> Op:
    """A call that msprobe recorded."""
    call = RecordedCall(name=f"Functional.{name}.0.forward", call=None, inputs=("x", *arguments), kwargs=kwargs)
    return Op(name=call.name, type=f"Functional.{name}", recorded=RecordedOp(call=call))


def compiled(op_type: str, **attrs: Any) -> Op:
    return Op(name="op", type=op_type, attrs=attrs)


def square(*axes: int, x: Any = X) -> float:
    """The largest square without the mean over axes."""
    return float(((x - x.mean(axes, keepdims=True)) ** 2).max())


GROUPED = X.reshape(2, 2, -1)


@pytest.mark.parametrize(
    ("op", "more", "expected"),
    [
        (called("instance_norm"), (), square(2)),
        (compiled("InstanceNorm"), (), square(2)),
        (called("group_norm", 2), (), square(2, x=GROUPED)),
        (compiled("GroupNorm", num_groups=2), (), square(2, x=GROUPED)),
        (compiled("GroupNorm"), (), None),
        (called("layer_norm", (4, 6)), (), square(1, 2)),
        (called("layer_norm", normalized_shape=(6,)), (), square(2)),
        (compiled("LayerNorm", begin_norm_axis=1), (), square(1, 2)),
        (compiled("LayerNormV3", begin_norm_axis=-1), (), square(2)),
        (called("LayerNorm"), (WEIGHT,), square(2)),
        (called("layer_norm"), (), None),
    ],
)  # fmt: skip
def test_norms(op: Op, more: tuple[Any, ...], expected: float | None) -> None:
    assert inside(op, X, *more).get("square") == (None if expected is None else pytest.approx(expected))


def test_channels_at_the_end() -> None:
    assert inside(compiled("InstanceNorm"), X, layout="NHWC")["square"] == pytest.approx(square(2))
    assert inside(compiled("GroupNorm", num_groups=2), X, layout="NHWC") == {}


@pytest.mark.parametrize(
    "op", [called("var", Literal("int", 2)), called("std", dim=(-1,)), compiled("ReduceStd", axes=[2])]
)
def test_variances(op: Op) -> None:
    y = X.std(2) if "td" in op.type else X.var(2)
    found = inside(op, y)
    assert found["square"] == pytest.approx(square(2))
    assert found["sum"] == pytest.approx(X.var(2).max() * 6)


def test_variances_of_all_and_of_unknown_axes() -> None:
    assert inside(called("var"), X.var())["square"] == pytest.approx(square(0, 1, 2))
    assert "square" not in inside(called("var"), X.var(2))


@pytest.mark.parametrize(
    ("op", "axis"),
    [(called("softmax", 1), 1), (called("log_softmax", dim=-1), 2), (called("softmax"), None),
     (compiled("SoftmaxV2", axes=[1]), 1), (compiled("SoftmaxV2"), 2), (called("cross_entropy"), 1),
     (compiled("SparseSoftmaxCrossEntropyWithLogits"), 2), (called("logsumexp", 5), None)],
)  # fmt: skip
def test_softmax(op: Op, axis: int | None) -> None:
    found = inside(op, X)
    if axis is None:
        assert found == {}
    else:
        assert found["sum"] == pytest.approx(np.exp(X - X.max(axis, keepdims=True)).sum(axis).max())
