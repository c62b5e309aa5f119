"""Families of networks: each adds a forward pass to a script and returns its loss. Sizes vary with its seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from devices.numerics import Array
from devices.script import Script, Tensor

Family = Callable[[Script], Tensor]


def _data(s: Script, *values: Array) -> list[Tensor]:
    return s.source("IteratorGetNext", "GetNext", *values)


def _normal(s: Script, *shape: int, scale: float = 1.0) -> Array:
    return (scale * s.rng.standard_normal(shape)).astype(np.float32)


def _pick(s: Script, *choices: int) -> int:
    return int(s.rng.choice(choices))


def _classes(s: Script, count: int, classes: int) -> Array:
    return s.rng.integers(0, classes, count).astype(np.int32)


def _sparse_loss(s: Script, logits: Tensor, labels: Tensor) -> Tensor:
    s.half = False
    name = "loss/SparseSoftmaxCrossEntropyWithLogits"
    each = s.op(name, "SparseSoftmaxCrossEntropyWithLogits", logits, labels)
    return s.mean("loss/mean", each, [0])


def _sigmoid_loss(s: Script, logits: Tensor, target: Tensor) -> Tensor:
    s.half = False
    each = s.op("loss/logistic", "SigmoidCrossEntropyWithLogits", logits, target)
    return s.mean("loss/mean", each, list(range(len(each.shape))))


def mlp(s: Script) -> Tensor:
    """Dense layers with batch norms, and dropout."""
    batch, classes = _pick(s, 24, 32, 40), _pick(s, 7, 10)
    x, labels = _data(s, _normal(s, batch, _pick(s, 18, 28)), _classes(s, batch, classes))
    for number, width in enumerate((_pick(s, 20, 32), _pick(s, 16, 24)), 1):
        x = s.dense(f"layer{number}", x, width)
        x = s.batch_norm(f"norm{number}", x)
        x = s.op(f"act{number}", "Relu" if number == 1 else "Elu", x)
    x = s.dropout("dropout", x)
    return _sparse_loss(s, s.dense("logits", x, classes), labels)


def cnn(s: Script) -> Tensor:
    """Convolutions, a batch norm, pools."""
    batch, size, classes = _pick(s, 3, 4), _pick(s, 8, 12), _pick(s, 5, 8)
    x, labels = _data(s, _normal(s, batch, size, size, _pick(s, 3, 4)), _classes(s, batch, classes))
    x = s.conv("conv1", x, _pick(s, 8, 12), "Relu")
    pool: dict[str, Any] = {"data_format": "NHWC", "ksize": [1, 2, 2, 1], "padding": "VALID", "strides": [1, 2, 2, 1]}
    x = s.op("pool1/MaxPool", "MaxPool", x, **pool)
    x = s.conv("conv2", x, _pick(s, 12, 16), bias=False)
    x = s.op("act2", "Relu", s.batch_norm("norm2", x))
    x = s.conv("conv3", x, _pick(s, 8, 14), "Relu")
    x = s.op("pool3/AvgPool", "AvgPool", x, **pool)
    x = s.reshape("flatten/Reshape", x, batch, int(np.prod(x.shape[1:])))
    return _sparse_loss(s, s.dense("logits", x, classes), labels)


def residual(s: Script) -> Tensor:
    """Residual blocks with batch norms, a mean over the image."""
    batch, size, width, classes = _pick(s, 3, 4), _pick(s, 6, 8), _pick(s, 8, 16), _pick(s, 4, 6)
    x, labels = _data(s, _normal(s, batch, size, size, 3), _classes(s, batch, classes))
    x = s.op("stem/act", "Relu", s.batch_norm("stem/norm", s.conv("stem", x, width, bias=False)))
    y = s.op("block/act1", "Relu", s.batch_norm("block/norm1", s.conv("block/a", x, width, bias=False)))
    y = s.batch_norm("block/norm2", s.conv("block/b", y, width, bias=False, size=1))
    x = s.op("block/act2", "Relu", s.op("block/add", "Add", x, y))
    x = s.mean("mean", x, [1, 2])
    return _sparse_loss(s, s.dense("logits", x, classes), labels)


def transformer(s: Script, mask_value: float = -1e4) -> Tensor:
    """A transformer block with a mask of padding."""
    batch, length, heads, depth = _pick(s, 2, 3), _pick(s, 6, 8), 2, 8
    width, classes = heads * depth, _pick(s, 5, 6)
    mask = np.zeros((batch, 1, 1, length), np.float32)
    mask[1:, ..., -2:] = 1
    x, padding, labels = _data(s, _normal(s, batch * length, width), mask, _classes(s, batch * length, classes))

    def heads_of(name: str, perm: list[int]) -> Tensor:
        projected = s.reshape(f"{name}/Reshape", s.dense(name, x, width), batch, length, heads, depth)
        return s.op(f"{name}/transpose", "TransposeD", projected, perm=perm)

    q, k, v = (heads_of(f"attention/{name}", [0, 2, 1, 3]) for name in ("query", "key", "value"))
    scores = s.op("attention/scores", "BatchMatMul", q, k, adj_x1=False, adj_x2=True)
    scores = s.op("attention/scale", "Mul", scores, s.constant("attention/scale/y", depth**-0.5))
    hidden = s.op("attention/mask", "Mul", padding, s.constant("attention/mask/y", mask_value))
    scores = s.op("attention/masked", "Add", scores, hidden)
    probabilities = s.op("attention/probs", "SoftmaxV2", scores)
    context = s.op("attention/context", "BatchMatMul", probabilities, v, adj_x1=False, adj_x2=False)
    context = s.op("attention/transpose", "TransposeD", context, perm=[0, 2, 1, 3])
    context = s.reshape("attention/merge", context, batch * length, width)
    x = s.layer_norm("norm1", s.op("add1", "Add", x, s.dense("attention/output", context, width)))
    y = s.dense("ffn/inner", x, 2 * width, "Gelu")
    x = s.layer_norm("norm2", s.op("add2", "Add", x, s.dense("ffn/outer", y, width)))
    return _sparse_loss(s, s.dense("logits", x, classes), labels)


def lstm(s: Script) -> Tensor:
    """Two steps of an LSTM cell by hand."""
    batch, features, width, classes = _pick(s, 8, 12), _pick(s, 10, 14), _pick(s, 12, 16), 5
    first, second, labels = _data(s, _normal(s, batch, features), _normal(s, batch, features),
                                  _classes(s, batch, classes))  # fmt: skip
    (h, c) = s.source("state", "Const", _normal(s, batch, width, scale=0.5))[0], None
    kernel, bias = s.variable("lstm/kernel", features + width, 4 * width), s.variable("lstm/bias", 4 * width)
    for number, x in enumerate((first, second)):
        base = f"step{number}"
        joined = s.op(f"{base}/concat", "ConcatV2D", x, h, concat_dim=1)
        gates = s.op(f"{base}/MatMul", "MatMulV2", joined, kernel, transpose_x1=False, transpose_x2=False)
        gates = s.op(f"{base}/BiasAdd", "BiasAdd", gates, bias, data_format="NHWC")
        i, j, f, o = s.outputs(f"{base}/split", "SplitD", gates, num_split=4, split_dim=1)
        fresh = s.op(f"{base}/mul", "Mul", s.op(f"{base}/Sigmoid", "Sigmoid", i), s.op(f"{base}/Tanh", "Tanh", j))
        before = h if c is None else c
        kept = s.op(f"{base}/mul_1", "Mul", s.op(f"{base}/Sigmoid_1", "Sigmoid", f), before)
        c = s.op(f"{base}/add", "Add", kept, fresh)
        h = s.op(f"{base}/mul_2", "Mul", s.op(f"{base}/Sigmoid_2", "Sigmoid", o), s.op(f"{base}/Tanh_1", "Tanh", c))
    return _sparse_loss(s, s.dense("logits", h, classes), labels)


def autoencoder(s: Script) -> Tensor:
    """Dense layers down and up, noise, a sigmoid cross entropy."""
    batch, width = _pick(s, 16, 24), _pick(s, 32, 48)
    x, target = _data(s, s.rng.random((batch, width)).astype(np.float32),
                      (s.rng.random((batch, width)) > 0.6).astype(np.float32))  # fmt: skip
    hidden = s.dense("encoder/one", x, _pick(s, 20, 24), "Sigmoid")
    code = s.dense("encoder/two", hidden, _pick(s, 6, 8), "Tanh")
    hidden = s.dense("decoder/one", code, _pick(s, 20, 24), "LeakyRelu", negative_slope=0.2)
    return _sigmoid_loss(s, s.dense("decoder/two", hidden, width), target)


def embedding(s: Script) -> Tensor:
    """Embeddings, means of segments, a dense part beside."""
    batch, words, width = _pick(s, 8, 12), _pick(s, 40, 48), _pick(s, 12, 16)
    ids = s.rng.integers(0, 30, words).astype(np.int32)
    segments = np.sort(s.rng.integers(0, batch, words)).astype(np.int32)
    dense, labels = _normal(s, batch, 9), (s.rng.random((batch, 1)) > 0.5).astype(np.float32)
    ids_t, segments_t, dense_t, labels_t = _data(s, ids, segments, dense, labels)
    table = s.variable("embedding", 30, width, scale=0.5)
    s.half = False
    rows = s.op("lookup", "GatherV2D", table, ids_t, axis=0)
    total = s.op("segments/Sum", "UnsortedSegmentSumD", rows, segments_t, num_segments=batch)
    counts = np.maximum(np.bincount(segments, minlength=batch), 1).astype(np.float32)[:, None]
    mean = s.op("segments/truediv", "RealDiv", total, s.constant("segments/counts", counts))
    s.half = True
    joined = s.op("concat", "ConcatV2D", mean, dense_t, concat_dim=1)
    x = s.dense("one", joined, _pick(s, 16, 20), "Relu")
    x = s.dense("two", x, _pick(s, 10, 12), "Tanh")
    return _sigmoid_loss(s, s.dense("out", x, 1), labels_t)


def contrastive(s: Script) -> Tensor:
    """Two towers, normalised, with a logarithm of softmax by hand."""
    batch, features, width = _pick(s, 10, 14), _pick(s, 16, 20), _pick(s, 12, 16)
    left, right = _data(s, _normal(s, batch, features), _normal(s, batch, features))

    def tower(name: str, x: Tensor) -> Tensor:
        x = s.dense(f"{name}/two", s.dense(f"{name}/one", x, width + 8, "Relu"), width)
        squares = s.total(f"{name}/Sum", s.op(f"{name}/Square", "Square", x), [1], keep=True)
        floor = s.op(f"{name}/Maximum", "Maximum", squares, s.constant(f"{name}/Maximum/y", 1e-4))
        return s.op(f"{name}/normal", "Mul", x, s.op(f"{name}/Rsqrt", "Rsqrt", floor))

    a, b = tower("left", left), tower("right", right)
    scores = s.op("scores", "MatMulV2", a, b, transpose_x1=False, transpose_x2=True)
    s.half = False
    scores = s.op("temperature", "Mul", scores, s.constant("temperature/y", 5.0))
    powers = s.op("Exp", "Exp", scores)
    logarithm = s.op("Log", "Log", s.total("Sum", powers, [1]))
    own = s.total("own", s.op("diagonal", "Mul", scores, s.constant("eye", np.eye(batch, dtype=np.float32))), [1])
    return s.mean("loss/mean", s.op("loss/sub", "Sub", logarithm, own), [0])


def regression(s: Script) -> Tensor:
    """Softplus and Log1p, a Huber loss, decay of weights."""
    batch, features = _pick(s, 20, 28), _pick(s, 12, 16)
    x, target = _data(s, np.abs(_normal(s, batch, features, scale=3)), _normal(s, batch, 2, scale=2))
    s.half = False
    x = s.op("Log1p", "Log1p", x)
    s.half = True
    x = s.dense("one", x, _pick(s, 16, 24), "Softplus")
    x = s.dense("two", x, _pick(s, 12, 16), "Tanh")
    y = s.dense("out", x, 2)
    s.half = False
    error = s.op("loss/Abs", "Abs", s.op("loss/Sub", "Sub", y, target))
    near = s.op("loss/Minimum", "Minimum", error, s.constant("loss/delta", 1.0))
    far = s.op("loss/Sub_1", "Sub", error, near)
    half = s.op("loss/mul", "Mul", s.op("loss/Square", "Square", near), s.constant("loss/half", 0.5))
    huber = s.mean("loss/mean", s.op("loss/add", "Add", half, far), [0, 1])
    decay = s.op("L2Loss", "L2Loss", s.variables[0])
    decay = s.op("decay", "Mul", decay, s.constant("decay/y", 1e-3))
    return s.op("loss/total", "Add", huber, decay)


def gan(s: Script) -> Tensor:
    """A critic of generated rows: leaky units, noise, the root of a mean of squares."""
    batch, width = _pick(s, 16, 20), _pick(s, 12, 20)
    real, noise = _data(s, _normal(s, batch, width), _normal(s, batch, 6))
    made = s.dense("generator/two", s.dense("generator/one", noise, 24, "LeakyRelu", negative_slope=0.1), width, "Tanh")
    x = s.op("concat", "ConcatV2D", real, made, concat_dim=0)
    x = s.layer_norm("critic/norm", s.dense("critic/one", x, _pick(s, 16, 24), "Gelu"))
    x = s.dropout("dropout", x, 0.2)
    scores = s.dense("critic/two", x, 1)
    first = s.op("real", "SliceD", scores, offsets=[0, 0], size=[batch, 1])
    second = s.op("made", "SliceD", scores, offsets=[batch, 0], size=[batch, 1])
    s.half = False
    gap = s.op("gap", "Sub", first, second)
    mean = s.mean("loss/Mean", s.op("loss/Square", "Square", gap), [0, 1])
    return s.op("loss/Sqrt", "Sqrt", s.op("loss/add", "Add", mean, s.constant("loss/epsilon", 1e-3)))


FAMILIES: dict[str, Family] = {
    "mlp": mlp, "cnn": cnn, "residual": residual, "transformer": transformer, "lstm": lstm, "autoencoder": autoencoder,
    "embedding": embedding, "contrastive": contrastive, "regression": regression, "gan": gan,
}  # fmt: skip
