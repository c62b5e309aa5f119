"""What kernels compute on their way and store in the type of their inputs: squares, sums, exponentials.

Assumed conservatively, as an op's kernel on the vector unit computes in the type of its inputs where it is not known to
convert them: element-wise ops and reductions. Not so:

- The matrix unit (MatMul, Conv) adds up in float32, and stores the result alone.
- Batch norm adds up sums and sums of squares in float32 (BNTrainingReduce puts out float32 for float16).
- Softmax, log-softmax and cross entropy subtract the largest logit first: exponentials are at most 1, and what can
  leave the range is their sum alone.
- What a norm, variance or softmax subtracts is of the axes that attributes or arguments tell; no claim without them.
- Exponentials that overflow harmlessly are no risk: the sigmoid's 1 / (1 + exp(-x)) is 0 then, as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.diagnose.emulation import Computed
from precision_tool.lib.model.msprobe import Literal

Array = npt.NDArray[Any]
#: What an op computes on its way, and the largest size of it.
Inside = tuple[str, float]

#: How types end that tell a version of the op.
_VERSION = re.compile(r"(?:v\d+|d)$")


def kernel_of(op_type: str) -> str:
    """Return the name under which kernels are looked up: `Functional.layer_norm` and `LayerNormV3` are `layernorm`."""
    word = op_type.rsplit(".", 1)[-1].lower().replace("_", "")
    return _VERSION.sub("", word) if word not in _KERNELS else word


def intermediates(computed: Computed) -> list[Inside]:
    """Return what the kernel of an op computes in the type of its inputs, and how large it gets in float32.

    Nothing for gradients, whose kernels are not as well known, and for ops without such intermediates.
    """
    kernel = _KERNELS.get(kernel_of(computed.op.type))
    floats = [
        computed.inputs[slot].array for slot in sorted(computed.inputs)
        if computed.inputs[slot].array.dtype.kind == "f"
    ]  # fmt: skip
    outputs = [array for _, array in sorted(computed.unrounded.items()) if array.dtype.kind == "f"]
    if kernel is None or not floats or not outputs or not floats[0].size:
        return []
    with np.errstate(all="ignore"):
        return [(name, size) for name, size in kernel(floats, outputs, computed).items() if size == size]


def _largest(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _numbers(value: Any) -> tuple[int, ...] | None:
    """Return whole numbers as attributes and recorded arguments have them; None for anything else."""
    value = value.value if isinstance(value, Literal) else value
    listed: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    items = [item.value if isinstance(item, Literal) else item for item in listed]
    numbers = tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))
    return numbers if len(numbers) == len(items) else None


def _argument(computed: Computed, place: int, *names: str) -> tuple[int, ...] | None:
    """Return the whole numbers of an attribute, or of an argument of a recorded call; None where they are not there."""
    recorded = computed.op.recorded
    values = computed.op.attrs if recorded is None else recorded.call.kwargs
    for name in names:
        if name in values:
            return _numbers(values[name])
    return _numbers(recorded.call.inputs[place]) if recorded is not None and place < len(recorded.call.inputs) else None


def _are_axes(axes: tuple[int, ...], rank: int) -> bool:
    return all(-rank <= axis < rank for axis in axes) and len({axis % rank for axis in axes}) == len(axes)


def _channels(computed: Computed) -> int:
    """Return the axis of the channels of an op's first input: the second where it has no names."""
    layout = computed.inputs[min(computed.inputs)].layout
    return layout.index("C") if "C" in layout else 1


def _square_without_mean(x: Array, axes: tuple[int, ...]) -> float:
    return _largest(x - x.mean(axes, keepdims=True)) ** 2


def _layer_norm(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Squares of what is left without the mean of the last axes, which the shape, a first axis or the weight tells.

    Source: torch's layer_norm (normalized_shape), GE's LayerNorm (begin_norm_axis); means are of terms divided first.
    """
    x = _wide(floats[0])
    shape, begin = _argument(computed, 1, "normalized_shape"), _numbers(computed.op.attrs.get("begin_norm_axis"))
    weight = floats[1].shape if len(floats) > 1 else ()
    if shape:
        first = x.ndim - len(shape)
    elif begin:
        first = begin[0] % max(x.ndim, 1)
    else:
        first = x.ndim - len(weight) if weight and x.shape[-len(weight) :] == weight else -1
    return {"square": _square_without_mean(x, tuple(range(first, x.ndim)))} if 0 <= first < x.ndim else {}


def _group_norm(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Squares without the mean of a sample's group of channels. Source: torch's group_norm, GE's GroupNorm."""
    x, groups = _wide(floats[0]), _argument(computed, 1, "num_groups")
    if not groups or x.ndim < 2 or _channels(computed) != 1 or groups[0] < 1 or x.shape[1] % groups[0]:
        return {}
    return {"square": _square_without_mean(x.reshape(x.shape[0], groups[0], -1), (2,))}


def _instance_norm(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Squares without the mean of a sample's channel. Source: torch's instance_norm, GE's InstanceNorm."""
    x, channels = _wide(floats[0]), _channels(computed)
    axes = tuple(axis for axis in range(1, x.ndim) if axis != channels)
    return {"square": _square_without_mean(x, axes)} if axes else {}


def _squares(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """RMS norm and normalizing by the L2 norm: squares, in the type of x. Source: their definitions."""
    return {"square": _largest(_wide(floats[0])) ** 2}


def _squares_and_sum(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """L2 loss and norms: squares, and the largest of their sums, as the result tells it. Source: their definitions."""
    x = _wide(floats[0])
    kept = max(outputs[0].size, 1)
    total = float(np.sum(x * x)) if kept == 1 else _largest(_wide(outputs[0])) ** 2
    return {"square": _largest(x) ** 2, "sum": total}


def _variance(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Sums of squares without the mean; the squares where the axes are told. Source: torch's var, GE's ReduceStd."""
    x = _wide(floats[0])
    terms = x.size / max(outputs[0].size, 1)
    size = _largest(_wide(outputs[0]))
    squared = size * size if kernel_of(computed.op.type) in ("std", "reducestd") else size
    axes = tuple(range(x.ndim)) if outputs[0].size == 1 else _argument(computed, 1, "dim", "axis", "axes")
    square = {"square": _square_without_mean(x, axes)} if axes and _are_axes(axes, x.ndim) else {}
    return {**square, "sum": squared * terms}


def _mean(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """The sum, which is divided last. Source: the definition."""
    return {"sum": _largest(_wide(outputs[0])) * floats[0].size / max(outputs[0].size, 1)}


def _differences(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """The mean squared error: squares of differences; their sum, divided last. Source: the definition."""
    if len(floats) < 2 or floats[0].shape != floats[1].shape:
        return {}
    difference = _wide(floats[0]) - _wide(floats[1])
    found = {"square": _largest(difference) ** 2}
    return found if outputs[0].size > 1 else {**found, "sum": float(np.sum(difference * difference))}


def _exponential(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Softplus: log(1 + exp(x)). Source: the definition."""
    return {"exp": float(np.exp(np.max(_wide(floats[0]))))}


def _softmax(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """The sum of exponentials without the largest. Source: torch's softmax (dim), GE's SoftmaxV2 (axes, else the last).

    Classes are on the second axis of torch's cross entropy, on the last of TensorFlow's and GE's.
    """
    x, kernel = _wide(floats[0]), kernel_of(computed.op.type)
    if kernel == "crossentropy":
        axes: tuple[int, ...] | None = (min(1, x.ndim - 1),)
    elif "crossentropy" in kernel:
        axes = (-1,)
    else:
        axes = _argument(computed, 1, "dim", "axis", "axes")
        if axes is None and computed.op.recorded is None and kernel in ("softmax", "logsoftmax"):
            axes = (-1,)
    if not axes or not _are_axes(axes, x.ndim):
        return {}
    return {"sum": _largest(np.exp(x - x.max(axes, keepdims=True)).sum(axes))}


def _cubes(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """GELU by the hyperbolic tangent: x³. Source: the definition."""
    return {"other": _largest(_wide(floats[0])) ** 3}


def _partial_sums(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Sums of the first tensors. Source: the definition of AddN."""
    total, largest = np.zeros(()), 0.0
    for array in floats:
        total = total + array
        largest = max(largest, _largest(total))
    return {"sum": largest}


Kernel = Callable[[list[Array], list[Array], Computed], Mapping[str, float]]
_KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("layernorm", "layernormalization"), _layer_norm),
    "groupnorm": _group_norm,
    "instancenorm": _instance_norm,
    **dict.fromkeys(("rmsnorm", "npurmsnorm", "addrmsnorm", "normalize", "l2normalize"), _squares),
    **dict.fromkeys(("l2loss", "norm", "vectornorm", "lpnorm", "euclideannorm", "dist"), _squares_and_sum),
    **dict.fromkeys(("squaresum", "squaresumall", "reducesumsquare"), _squares),
    **dict.fromkeys(("var", "std", "reducestd", "reducevariance"), _variance),
    **dict.fromkeys(("mean", "reducemean"), _mean),
    **dict.fromkeys(("mseloss",), _differences),
    **dict.fromkeys(("softplus",), _exponential),
    **dict.fromkeys(
        ("softmax", "logsoftmax", "logsumexp", "reducelogsumexp", "crossentropy", "softmaxcrossentropywithlogits",
         "sparsesoftmaxcrossentropywithlogits"),
        _softmax,
    ),
    **dict.fromkeys(("gelu", "fastgelu"), _cubes),
    **dict.fromkeys(("addn", "accumulaten"), _partial_sums),
}  # fmt: skip
