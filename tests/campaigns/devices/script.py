"""Training scripts as a user writes them: nodes in float32 with their gradients and updates, built op by op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from devices.formulas import compute
from devices.numerics import Arithmetic, Array, Host

Ref = tuple[str, int]

SOURCES = ("GetNext", "Variable", "Const", "RandomUniform")
#: Without a dump file: their output is the input's memory.
VIEWS = ("Reshape", "ExpandDims")


@dataclass(frozen=True)
class Tensor:
    """An output of a node, with the value that the benchmark gets while the script is built."""

    node: str
    index: int
    value: Array

    @property
    def ref(self) -> Ref:
        """The node's name and the number of the output."""
        return self.node, self.index

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.value.shape


@dataclass(frozen=True, kw_only=True)
class Node:
    """An op of the script. `half`: in mixed precision it is computed in float16."""

    name: str
    type: str
    inputs: tuple[Ref, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    half: bool = False
    #: Of a source, on both sides unless `npu_values` differ.
    values: tuple[Array, ...] = ()
    npu_values: tuple[Array, ...] = ()


class Script:
    """Nodes in the order in which they were added; `half` is the precision of those that are added next."""

    def __init__(self, seed: int, *, half: bool = True) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: dict[str, Node] = {}
        self.half = half
        self.variables: list[Tensor] = []
        self._values: dict[Ref, Array] = {}
        self._adds = 0

    # --- nodes ---

    def source(self, name: str, op_type: str, *values: Array) -> list[Tensor]:
        """Data, a variable, a constant or random numbers."""
        values = tuple(np.ascontiguousarray(value, np.float32 if value.dtype.kind == "f" else value.dtype)
                       if value.ndim else np.asarray(value, np.float32) for value in values)  # fmt: skip
        self.nodes[name] = Node(name=name, type=op_type, dtypes=tuple(v.dtype.name for v in values), values=values)
        return [self._tensor(name, index, value) for index, value in enumerate(values)]

    def _tensor(self, name: str, index: int, value: Array) -> Tensor:
        self._values[name, index] = value
        return Tensor(name, index, value)

    def variable(self, name: str, *shape: int, scale: float | None = None, around: float = 0.0) -> Tensor:
        """A variable that is learned, with random values."""
        if scale is None:
            scale = float(np.prod(shape[:-1])) ** -0.5 if len(shape) > 1 else 0.1
        (made,) = self.source(name, "Variable", around + scale * self.rng.standard_normal(shape))
        self.variables.append(made)
        return made

    def constant(self, name: str, value: float | Array) -> Tensor:
        """A constant."""
        if name in self.nodes:
            return self.tensor((name, 0))
        array = np.asarray(value)
        return self.source(name, "Const", array.astype(np.float32) if array.dtype.kind == "f" else array)[0]

    def outputs(self, name: str, op_type: str, *inputs: Tensor, half: bool | None = None, **attrs: Any) -> list[Tensor]:
        """Add an op with several outputs."""
        assert name not in self.nodes, name
        made = compute(Arithmetic(), op_type, attrs, [tensor.value for tensor in inputs])
        stored = [np.asarray(v, np.float32 if v.dtype.kind == "f" else v.dtype) for v in made]
        if op_type == "Cast":
            stored = [stored[0].astype({0: "float32", 3: "int32"}[attrs["dst_type"]])]
        self.nodes[name] = Node(
            name=name, type=op_type, inputs=tuple(tensor.ref for tensor in inputs), attrs=attrs,
            dtypes=tuple(v.dtype.name for v in stored), half=self.half if half is None else half,
        )  # fmt: skip
        return [self._tensor(name, index, value) for index, value in enumerate(stored)]

    def op(self, name: str, op_type: str, *inputs: Tensor, half: bool | None = None, **attrs: Any) -> Tensor:
        """Add an op and return its first output."""
        return self.outputs(name, op_type, *inputs, half=half, **attrs)[0]

    def tensor(self, ref: Ref) -> Tensor:
        """The tensor of a reference."""
        return Tensor(*ref, self._values[ref])

    # --- layers ---

    def dense(self, name: str, x: Tensor, width: int, activation: str = "", **attrs: Any) -> Tensor:
        """x W + b, with an activation."""
        kernel = self.variable(f"{name}/kernel", x.shape[-1], width, scale=1.2 * x.shape[-1] ** -0.5)
        bias = self.variable(f"{name}/bias", width)
        y = self.op(f"{name}/MatMul", "MatMulV2", x, kernel, transpose_x1=False, transpose_x2=False)
        y = self.op(f"{name}/BiasAdd", "BiasAdd", y, bias, data_format="NHWC")
        return self.op(f"{name}/{activation}", activation, y, **attrs) if activation else y

    def conv(
        self, name: str, x: Tensor, width: int, activation: str = "", *, size: int = 3, stride: int = 1,
        bias: bool = True, padding: str = "SAME",
    ) -> Tensor:  # fmt: skip
        """A convolution, with a bias and an activation."""
        kernel = self.variable(f"{name}/kernel", size, size, x.shape[-1], width,
                               scale=1.4 * (size * size * x.shape[-1]) ** -0.5)  # fmt: skip
        attrs: dict[str, Any] = {"data_format": "NHWC", "dilations": [1, 1, 1, 1], "padding": padding,
                 "strides": [1, stride, stride, 1]}  # fmt: skip
        y = self.op(f"{name}/Conv2D", "Conv2D", x, kernel, **attrs)
        if bias:
            y = self.op(f"{name}/BiasAdd", "BiasAdd", y, self.variable(f"{name}/bias", width), data_format="NHWC")
        return self.op(f"{name}/{activation}", activation, y) if activation else y

    def batch_norm(self, name: str, x: Tensor) -> Tensor:
        """A batch norm with the statistics of the batch."""
        gamma = self.variable(f"{name}/gamma", x.shape[-1], around=1.0, scale=0.2)
        beta = self.variable(f"{name}/beta", x.shape[-1])
        return self.op(f"{name}/FusedBatchNormV3", "FusedBatchNormV3", x, gamma, beta, data_format="NHWC",
                       epsilon=0.001, is_training=True)  # fmt: skip

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        """A layer norm over the last axis."""
        gamma = self.variable(f"{name}/gamma", x.shape[-1], around=1.0, scale=0.2)
        beta = self.variable(f"{name}/beta", x.shape[-1])
        last = len(x.shape) - 1
        return self.op(f"{name}/LayerNorm", "LayerNorm", x, gamma, beta, begin_norm_axis=last, begin_params_axis=last,
                       epsilon=1e-5)  # fmt: skip

    def reshape(self, name: str, x: Tensor, *shape: int) -> Tensor:
        """Another shape."""
        return self.op(name, "Reshape", x, shape=list(shape))

    def dropout(self, name: str, x: Tensor, rate: float = 0.3) -> Tensor:
        """Some elements set to zero, as TensorFlow does it."""
        (drawn,) = self.source(f"{name}/random_uniform/RandomUniform", "RandomUniform",
                               self.rng.random(x.shape).astype(np.float32))  # fmt: skip
        keep = self.op(f"{name}/GreaterEqual", "GreaterEqual", drawn, self.constant(f"{name}/rate", rate), half=False)
        mask = self.op(f"{name}/Cast", "Cast", keep, half=False, dst_type=0)
        scaled = self.op(f"{name}/mul", "Mul", x, self.constant(f"{name}/scale", 1 / (1 - rate)))
        return self.op(f"{name}/mul_1", "Mul", scaled, mask)

    def mean(self, name: str, x: Tensor, axes: Sequence[int], *, keep: bool = False) -> Tensor:
        """The mean over axes."""
        return self.op(name, "ReduceMeanD", x, axes=list(axes), keep_dims=keep)

    def total(self, name: str, x: Tensor, axes: Sequence[int], *, keep: bool = False) -> Tensor:
        """The sum over axes."""
        return self.op(name, "ReduceSumD", x, axes=list(axes), keep_dims=keep)

    # --- training ---

    def gradients(self, loss: Tensor, scale: Tensor) -> dict[Ref, Tensor]:
        """Add the gradients of a loss times a scale, and return them by variable."""
        self.half = False
        scaled = self.op("loss/scaled", "Mul", loss, scale)
        (seed,) = self.source("gradients/grad_ys_0", "Const", np.asarray(1, np.float32))
        found: defaultdict[Ref, list[Tensor]] = defaultdict(list)
        found[scaled.ref].append(seed)
        needed = self._depends()
        for node in reversed(list(self.nodes.values())):
            if node.type in SOURCES or node.name not in needed:
                continue
            gradients = [self._summed(found, (node.name, index), node.half) for index in range(len(node.dtypes))]
            if all(gradient is None for gradient in gradients):
                continue
            self.half = node.half
            rule = GRADIENTS.get(node.type)
            if rule is None:
                continue
            for ref, gradient in zip(node.inputs, rule(self, node, gradients), strict=True):
                if gradient is not None and ref[0] in needed:
                    found[ref].append(gradient)
        return {v.ref: g for v in self.variables if (g := self._summed(found, v.ref, False)) is not None}

    def _depends(self) -> set[str]:
        """Nodes that a variable reaches."""
        reached = {tensor.node for tensor in self.variables}
        for node in self.nodes.values():
            if any(name in reached for name, _ in node.inputs):
                reached.add(node.name)
        return reached

    def _summed(self, found: Mapping[Ref, list[Tensor]], ref: Ref, half: bool) -> Tensor | None:
        parts = found.get(ref, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        self._adds += 1
        suffix = f"_{self._adds - 1}" if self._adds > 1 else ""
        return self.op(f"gradients/AddN{suffix}", "AddN", *parts, half=half)

    def train(self, loss: Tensor, optimizer: str, loss_scale: float) -> None:
        """Gradients, the division by the loss scale, and the update of every variable."""
        (scale,) = self.source("loss_scale", "Variable", np.asarray(loss_scale, np.float32))
        gradients = self.gradients(loss, scale)
        self.half = False
        inverse = self.op("unscale/truediv", "Reciprocal", scale)
        for number, (ref, gradient) in enumerate(gradients.items()):
            suffix = f"_{number}" if number else ""
            unscaled = self.op(f"unscale/mul{suffix}", "Mul", gradient, inverse)
            _OPTIMIZERS[optimizer](self, self.tensor(ref), unscaled)

    def slot(self, variable: Tensor, name: str, *, positive: bool = False) -> Tensor:
        """A slot of an optimizer, as after some steps."""
        values = 0.01 * self.rng.standard_normal(variable.shape)
        return self.source(f"{variable.node}/{name}", "Variable", values * values + 1e-4 if positive else values)[0]


def golden_values(nodes: Mapping[str, Node], host: Host | None) -> dict[Ref, Array]:
    """What the benchmark computes, in float32 after every op: by exact arithmetic, or by the host's."""
    arithmetic = Arithmetic() if host is None else host
    values: dict[Ref, Array] = {}
    for node in nodes.values():
        made = list(node.values)
        if node.type not in SOURCES:
            results = compute(arithmetic, node.type, node.attrs, [values[ref] for ref in node.inputs])
            with np.errstate(all="ignore"):
                made = [np.asarray(v).astype(dtype) for v, dtype in zip(results, node.dtypes, strict=True)]
        values |= {(node.name, index): value for index, value in enumerate(made)}
    return values


# --- gradients --------------------------------------------------------------------------------------------------------

Rule = Callable[[Script, Node, Sequence[Tensor | None]], Sequence[Tensor | None]]


def _unary(op_type: str, *, output: bool, grad_first: bool, attrs: Sequence[str] = ()) -> Rule:
    """A gradient by an op of its own, of the input or the output."""

    def rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        other = s.tensor((node.name, 0) if output else node.inputs[0])
        given = grads[0]
        assert given is not None
        fed = (given, other) if grad_first else (other, given)
        kept = {key: node.attrs[key] for key in attrs}
        return [s.op(f"gradients/{node.name}_grad/{op_type}", op_type, *fed, **kept)]

    return rule


def _back(s: Script, node: Node, name: str, gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient summed over the axes along which an input was repeated."""
    if gradient.shape == like.shape:
        return gradient
    extra = len(gradient.shape) - len(like.shape)
    ones = [extra + i for i, size in enumerate(like.shape) if size == 1 != gradient.shape[extra + i]]
    base = f"gradients/{node.name}_grad/{name}"
    summed = s.total(base.replace("Mul", "Sum") if "Mul" in base else f"{base}Sum", gradient, [*range(extra), *ones])
    if summed.shape == like.shape:
        return summed
    return s.reshape(f"{base}Reshape", summed, *like.shape)


def _operands(s: Script, node: Node) -> tuple[Tensor, Tensor, str]:
    return s.tensor(node.inputs[0]), s.tensor(node.inputs[1]), f"gradients/{node.name}_grad"


def _mul_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    a, b, base = _operands(s, node)
    (g,) = grads
    assert g is not None
    needed = s._depends()
    first = _back(s, node, "Mul", s.op(f"{base}/Mul", "Mul", g, b), a) if a.node in needed else None
    second = _back(s, node, "Mul_1", s.op(f"{base}/Mul_1", "Mul", a, g), b) if b.node in needed else None
    return [first, second]


def _add_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    a, b, _ = _operands(s, node)
    (g,) = grads
    assert g is not None
    return [_back(s, node, "", g, a), _back(s, node, "1_", g, b)]


def _sub_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    a, b, base = _operands(s, node)
    (g,) = grads
    assert g is not None
    second = None
    if b.node in s._depends():
        second = _back(s, node, "1_", s.op(f"{base}/Neg", "Neg", g), b)
    return [_back(s, node, "", g, a), second]


def _div_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    a, b, base = _operands(s, node)
    (g,) = grads
    assert g is not None
    first = s.op(f"{base}/RealDiv", "RealDiv", g, b)
    second = None
    if b.node in s._depends():
        ratio = s.op(f"{base}/RealDiv_1", "RealDiv", s.tensor((node.name, 0)), b)
        second = _back(s, node, "Mul", s.op(f"{base}/mul", "Mul", s.op(f"{base}/Neg", "Neg", g), ratio), b)
    return [_back(s, node, "", first, a), second]


def _matmul_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    a, b, base = _operands(s, node)
    (g,) = grads
    assert g is not None
    first = None
    if node.attrs["transpose_x2"]:
        first = s.op(f"{base}/MatMul", "MatMulV2", g, b, transpose_x1=False, transpose_x2=False)
        return [first, s.op(f"{base}/MatMul_1", "MatMulV2", g, a, transpose_x1=True, transpose_x2=False)]
    if a.node in s._depends():
        first = s.op(f"{base}/MatMul", "MatMulV2", g, b, transpose_x1=False, transpose_x2=True)
    return [first, s.op(f"{base}/MatMul_1", "MatMulV2", a, g, transpose_x1=True, transpose_x2=False)]


def _batch_matmul_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    a, b, base = _operands(s, node)
    (g,) = grads
    assert g is not None
    if node.attrs["adj_x2"]:
        first = s.op(f"{base}/MatMul", "BatchMatMul", g, b, adj_x1=False, adj_x2=False)
        return [first, s.op(f"{base}/MatMul_1", "BatchMatMul", g, a, adj_x1=True, adj_x2=False)]
    first = s.op(f"{base}/MatMul", "BatchMatMul", g, b, adj_x1=False, adj_x2=True)
    return [first, s.op(f"{base}/MatMul_1", "BatchMatMul", a, g, adj_x1=True, adj_x2=False)]


def _bias_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    return [g, s.op(f"gradients/{node.name}_grad/BiasAddGrad", "BiasAddGrad", g, data_format="NHWC")]


def _spread(s: Script, node: Node, g: Tensor) -> Tensor:
    """The gradient of a reduction, repeated over the axes that it reduced."""
    x = s.tensor(node.inputs[0])
    axes = [axis % len(x.shape) for axis in node.attrs["axes"]]
    base = f"gradients/{node.name}_grad"
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if list(g.shape) != kept:
        g = s.reshape(f"{base}/Reshape", g, *kept)
    return s.op(f"{base}/Tile", "TileD", g, multiples=[x.shape[i] if i in axes else 1 for i in range(len(kept))])


def _sum_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    assert grads[0] is not None
    return [_spread(s, node, grads[0])]


def _mean_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    assert grads[0] is not None
    spread = _spread(s, node, grads[0])
    x = s.tensor(node.inputs[0])
    count = float(np.prod([x.shape[axis] for axis in node.attrs["axes"]]))
    base = f"gradients/{node.name}_grad"
    return [s.op(f"{base}/truediv", "RealDiv", spread, s.constant(f"{base}/Const", count))]


def _reshape_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    shape = s.tensor(node.inputs[0]).shape
    return [s.reshape(f"gradients/{node.name}_grad/Reshape", g, *shape)]


def _transpose_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    assert grads[0] is not None
    perm = [int(i) for i in np.argsort(node.attrs["perm"])]
    return [s.op(f"gradients/{node.name}_grad/transpose", "TransposeD", grads[0], perm=perm)]


def _concat_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    axis, start, parts = node.attrs["concat_dim"], 0, []
    for number, ref in enumerate(node.inputs):
        size = s.tensor(ref).shape
        offsets = [start if i == axis else 0 for i in range(len(size))]
        start += size[axis]
        suffix = f"_{number}" if number else ""
        name = f"gradients/{node.name}_grad/Slice{suffix}"
        needed = ref[0] in s._depends()
        parts.append(s.op(name, "SliceD", g, offsets=offsets, size=list(size)) if needed else None)
    return parts


def _slice_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x = s.tensor(node.inputs[0])
    ends = zip(node.attrs["offsets"], node.attrs["size"], x.shape, strict=True)
    paddings = [[start, full - start - size] for start, size, full in ends]
    return [s.op(f"gradients/{node.name}_grad/Pad", "PadD", g, paddings=paddings)]


def _split_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    parts = [g for g in grads if g is not None]
    assert len(parts) == len(grads)
    return [s.op(f"gradients/{node.name}_grad/concat", "ConcatV2D", *parts, concat_dim=node.attrs["split_dim"])]


def _conv_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, kernel, base = _operands(s, node)
    (g,) = grads
    assert g is not None
    first = None
    if x.node in s._depends():
        first = s.op(f"{base}/Conv2DBackpropInput", "Conv2DBackpropInput", kernel, g, **node.attrs,
                     input_size=list(x.shape))  # fmt: skip
    second = s.op(f"{base}/Conv2DBackpropFilter", "Conv2DBackpropFilter", x, g, **node.attrs,
                  filter_size=list(kernel.shape))  # fmt: skip
    return [first, second]


def _pool_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x, base = s.tensor(node.inputs[0]), f"gradients/{node.name}_grad"
    if node.type == "MaxPool":
        return [s.op(f"{base}/MaxPoolGrad", "MaxPoolGrad", x, s.tensor((node.name, 0)), g, **node.attrs)]
    return [s.op(f"{base}/AvgPoolGrad", "AvgPoolGradD", g, **node.attrs, orig_input_shape=list(x.shape))]


def _batch_norm_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    g = grads[0]
    assert g is not None
    x, gamma = s.tensor(node.inputs[0]), s.tensor(node.inputs[1])
    return s.outputs(f"gradients/{node.name}_grad/FusedBatchNormGradV3", "FusedBatchNormGradV3", g, x, gamma,
                     s.tensor((node.name, 3)), s.tensor((node.name, 4)), **node.attrs)  # fmt: skip


def _layer_norm_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    g = grads[0]
    assert g is not None
    x, gamma = s.tensor(node.inputs[0]), s.tensor(node.inputs[1])
    mean, variance = s.tensor((node.name, 1)), s.tensor((node.name, 2))
    base = f"gradients/{node.name}_grad"
    d_x = s.op(f"{base}/LayerNormXBackprop", "LayerNormXBackprop", g, x, variance, mean, gamma)
    others = s.outputs(f"{base}/LayerNormBetaGammaBackprop", "LayerNormBetaGammaBackprop", g, x, variance, mean,
                       shape_gamma=list(gamma.shape))  # fmt: skip
    return [d_x, *others]


def _rows_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient of a loss by rows times the slope that the loss put out."""
    (g, *_) = grads
    assert g is not None
    base = f"gradients/{node.name}_grad"
    wide = s.op(f"{base}/ExpandDims", "ExpandDims", g, shape=[*g.shape, 1])
    return [s.op(f"{base}/mul", "Mul", wide, s.tensor((node.name, 1))), None]


def _sigmoid_loss_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x, target, base = _operands(s, node)
    kind = "SigmoidCrossEntropyWithLogitsGrad"
    return [s.op(f"{base}/{kind}", kind, x, target, g), None]


def _gather_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    table, ids, base = _operands(s, node)
    count = int(np.prod(ids.shape))
    rows = s.reshape(f"{base}/Reshape", g, count, *table.shape[1:])
    flat = s.reshape(f"{base}/Reshape_1", ids, count)
    return [s.op(f"{base}/UnsortedSegmentSum", "UnsortedSegmentSumD", rows, flat, num_segments=table.shape[0]), None]


def _segment_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    ids = s.tensor(node.inputs[1])
    return [s.op(f"gradients/{node.name}_grad/GatherV2", "GatherV2D", g, ids, axis=0), None]


def _square_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    base = f"gradients/{node.name}_grad"
    double = s.op(f"{base}/Mul", "Mul", s.tensor(node.inputs[0]), s.constant(f"{base}/Const", 2.0))
    return [s.op(f"{base}/Mul_1", "Mul", g, double)]


def _log_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x, base = s.tensor(node.inputs[0]), f"gradients/{node.name}_grad"
    if node.type == "Log1p":
        x = s.op(f"{base}/add", "Add", x, s.constant(f"{base}/add/x", 1.0))
    return [s.op(f"{base}/mul", "Mul", g, s.op(f"{base}/Reciprocal", "Reciprocal", x))]


def _times(op_type: str, *, output: bool) -> Rule:
    """The gradient times a function of the input, or times the output itself (Exp)."""

    def rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        (g,) = grads
        assert g is not None
        base = f"gradients/{node.name}_grad"
        slope = s.tensor((node.name, 0)) if output else s.op(f"{base}/{op_type}", op_type, s.tensor(node.inputs[0]))
        return [s.op(f"{base}/mul", "Mul", g, slope)]

    return rule


def _neg_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    assert grads[0] is not None
    return [s.op(f"gradients/{node.name}_grad/Neg", "Neg", grads[0])]


def _extreme_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient goes to the input that was taken; the other is a constant here."""
    (g,) = grads
    assert g is not None
    a, b, base = _operands(s, node)
    kind = {"Minimum": "LessEqual", "Maximum": "GreaterEqual"}[node.type]
    taken = s.op(f"{base}/{kind}", kind, a, b)
    nothing = s.constant(f"{base}/zeros", np.zeros(g.shape, np.float32))
    return [s.op(f"{base}/Select", "Select", taken, g, nothing), None]


def _gelu_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    assert grads[0] is not None
    name = f"gradients/{node.name}_grad/GeluGrad"
    return [s.op(name, "GeluGrad", grads[0], s.tensor(node.inputs[0]), s.tensor((node.name, 0)))]


def _half_square_rule(s: Script, node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    assert grads[0] is not None
    return [s.op(f"gradients/{node.name}_grad/mul", "Mul", s.tensor(node.inputs[0]), grads[0])]


GRADIENTS: dict[str, Rule] = {
    "Add": _add_rule, "Sub": _sub_rule, "Mul": _mul_rule, "RealDiv": _div_rule, "Neg": _neg_rule,
    "MatMulV2": _matmul_rule, "BatchMatMul": _batch_matmul_rule, "BiasAdd": _bias_rule, "Conv2D": _conv_rule,
    "Relu": _unary("ReluGrad", output=True, grad_first=True),
    "LeakyRelu": _unary("LeakyReluGrad", output=False, grad_first=True, attrs=("negative_slope",)),
    "Elu": _unary("EluGrad", output=True, grad_first=True),
    "Sigmoid": _unary("SigmoidGrad", output=True, grad_first=False),
    "Tanh": _unary("TanhGrad", output=True, grad_first=False),
    "Softplus": _unary("SoftplusGrad", output=False, grad_first=True),
    "Sqrt": _unary("SqrtGrad", output=True, grad_first=False),
    "Rsqrt": _unary("RsqrtGrad", output=True, grad_first=False),
    "SoftmaxV2": _unary("SoftmaxGrad", output=True, grad_first=False),
    "Gelu": _gelu_rule, "Square": _square_rule, "Exp": _times("", output=True), "Abs": _times("Sign", output=False),
    "Log": _log_rule, "Log1p": _log_rule, "Minimum": _extreme_rule, "Maximum": _extreme_rule,
    "ReduceSumD": _sum_rule, "ReduceMeanD": _mean_rule, "Reshape": _reshape_rule, "TransposeD": _transpose_rule,
    "ConcatV2D": _concat_rule, "SplitD": _split_rule, "SliceD": _slice_rule, "MaxPool": _pool_rule,
    "AvgPool": _pool_rule, "FusedBatchNormV3": _batch_norm_rule, "LayerNorm": _layer_norm_rule,
    "SoftmaxCrossEntropyWithLogits": _rows_rule, "SparseSoftmaxCrossEntropyWithLogits": _rows_rule,
    "SigmoidCrossEntropyWithLogits": _sigmoid_loss_rule, "GatherV2D": _gather_rule,
    "UnsortedSegmentSumD": _segment_rule, "L2Loss": _half_square_rule,
}  # fmt: skip


# --- optimizers -------------------------------------------------------------------------------------------------------


def _rate(s: Script, value: float) -> Tensor:
    return s.constant("train/learning_rate", value)


def _sgd(s: Script, variable: Tensor, gradient: Tensor) -> None:
    s.op(
        f"train/update_{variable.node}/ApplyGradientDescent", "ApplyGradientDescent", variable, _rate(s, 0.05), gradient
    )


def _momentum(s: Script, variable: Tensor, gradient: Tensor) -> None:
    s.op(f"train/update_{variable.node}/ApplyMomentum", "ApplyMomentum", variable, s.slot(variable, "Momentum"),
         _rate(s, 0.05), gradient, s.constant("train/momentum", 0.9), use_nesterov=False)  # fmt: skip


def _adam(s: Script, variable: Tensor, gradient: Tensor) -> None:
    powers = []
    for name, value in (("beta1_power", 0.9**7), ("beta2_power", 0.999**7)):
        known = name in s.nodes
        powers.append(s.tensor((name, 0)) if known else s.source(name, "Variable", np.asarray(value, np.float32))[0])
    s.op(f"train/update_{variable.node}/ApplyAdam", "ApplyAdamD", variable, s.slot(variable, "Adam"),
         s.slot(variable, "Adam_1", positive=True), *powers, _rate(s, 0.01), s.constant("train/beta1", 0.9),
         s.constant("train/beta2", 0.999), s.constant("train/epsilon", 1e-7), gradient)  # fmt: skip


def _rms(s: Script, variable: Tensor, gradient: Tensor) -> None:
    s.op(f"train/update_{variable.node}/ApplyRMSProp", "ApplyRMSPropD", variable,
         s.slot(variable, "RMSProp", positive=True), s.slot(variable, "RMSProp_1"), _rate(s, 0.01),
         s.constant("train/decay", 0.9), s.constant("train/momentum", 0.5), s.constant("train/epsilon", 1e-6),
         gradient)  # fmt: skip


def _adagrad(s: Script, variable: Tensor, gradient: Tensor) -> None:
    s.op(f"train/update_{variable.node}/ApplyAdagrad", "ApplyAdagradD", variable,
         s.slot(variable, "Adagrad", positive=True), _rate(s, 0.05), gradient)  # fmt: skip


_OPTIMIZERS: dict[str, Callable[[Script, Tensor, Tensor], None]] = {
    "sgd": _sgd, "momentum": _momentum, "adam": _adam, "rmsprop": _rms, "adagrad": _adagrad,
}  # fmt: skip
OPTIMIZERS = tuple(_OPTIMIZERS)
