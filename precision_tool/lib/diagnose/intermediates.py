"""What kernels compute on their way and store in the type of their inputs: squares, sums, exponentials.

Assumed conservatively, as an op's kernel on the vector unit computes in the type of its inputs where it is not known to
convert them: element-wise ops and reductions. Not so:

- The matrix unit (MatMul, Conv) adds up in float32, and stores the result alone.
- Batch norm adds up sums and sums of squares in float32 (BNTrainingReduce puts out float32 for float16).
- Softmax, log-softmax and cross entropy subtract the largest logit first: exponentials are at most 1, and what can
  leave the range is their sum alone.
- Exponentials that overflow harmlessly are no risk: the sigmoid's 1 / (1 + exp(-x)) is 0 then, as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.diagnose.emulation import Computed

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


def _centred(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Layer norm: squares of what is left without the mean; means are of terms divided first.

    Its scale tells over which of the last axes. Nothing of group and instance norm, whose groups no input tells.
    """
    x = _wide(floats[0])
    axes = floats[1].ndim if len(floats) > 1 and floats[1].shape == x.shape[x.ndim - floats[1].ndim :] else 0
    if not axes:
        return {}
    rows = x.reshape(-1, prod(x.shape[x.ndim - axes :]))
    return {"square": _largest(rows - rows.mean(1, keepdims=True)) ** 2}


def _squares(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    return {"square": _largest(_wide(floats[0])) ** 2}


def _squares_and_sum(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """L2 loss and norms: squares, and the largest of their sums, as the result tells it."""
    x = _wide(floats[0])
    kept = max(outputs[0].size, 1)
    total = float(np.sum(x * x)) if kept == 1 else _largest(_wide(outputs[0])) ** 2
    return {"square": _largest(x) ** 2, "sum": total}


def _variance(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Variance and deviation: sums of squares without the mean; of the whole tensor also the largest square."""
    x = _wide(floats[0])
    terms = x.size / max(outputs[0].size, 1)
    size = _largest(_wide(outputs[0]))
    squared = size * size if kernel_of(computed.op.type) in ("std", "reducestd") else size
    sums = {"sum": squared * terms}
    return sums if outputs[0].size > 1 else {"square": _largest(x - x.mean()) ** 2, **sums}


def _mean(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    return {"sum": _largest(_wide(outputs[0])) * floats[0].size / max(outputs[0].size, 1)}


def _differences(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """The mean squared error: squares of differences; their sum, where it is divided last."""
    if len(floats) < 2 or floats[0].shape != floats[1].shape:
        return {}
    difference = _wide(floats[0]) - _wide(floats[1])
    found = {"square": _largest(difference) ** 2}
    return found if outputs[0].size > 1 else {**found, "sum": float(np.sum(difference * difference))}


def _exponential(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Softplus: log(1 + exp(x))."""
    return {"exp": float(np.exp(np.max(_wide(floats[0]))))}


def _softmax(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """Sums of exponentials, along the axis with the smallest: which it is depends on arguments."""
    x = _wide(floats[0])
    sums = (_largest(np.exp(x - x.max(axis, keepdims=True)).sum(axis)) for axis in range(x.ndim))
    return {"sum": min(sums)} if x.ndim else {}


def _cubes(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    """GELU by the hyperbolic tangent: x³."""
    return {"other": _largest(_wide(floats[0])) ** 3}


def _partial_sums(floats: list[Array], outputs: list[Array], computed: Computed) -> Mapping[str, float]:
    total, largest = np.zeros(()), 0.0
    for array in floats:
        total = total + array
        largest = max(largest, _largest(total))
    return {"sum": largest}


Kernel = Callable[[list[Array], list[Array], Computed], Mapping[str, float]]
_KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("layernorm", "layernormalization"), _centred),
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
