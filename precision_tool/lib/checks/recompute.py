"""What a fused op should have put out: its original ops computed in float64 from the inputs in its own dump file.

Unlike a comparison this needs no second run to be right, and it tells an op's own error from one it was fed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.engine.statistics import open_reader
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.neighbourhood import TRANSPARENT_TYPES
from precision_tool.lib.model.graph import Edge, GraphFile, Op, TensorDesc
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.model.wording import counted
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.data_types import FLOATS
from precision_tool.lib.numbers.reading import reading_of
from precision_tool.lib.pairing.match import NoOrigin, Origins, groups_of, input_places, originals
from precision_tool.lib.pairing.unfused import GraphDumps
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpedOp, Found, Missing, NoBenchmark
from precision_tool.lib.sources.names import flatten

Doubles = npt.NDArray[np.float64]

#: Larger tensors, and more multiplications, are not recomputed.
_MAX_ELEMENTS = 1 << 24
_MAX_PRODUCTS = 10**11
_SAMPLED_ROWS = 64
#: Half the distance of neighbouring numbers at 1, and the smallest difference near 0, by type of the output.
_ROUNDING = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 0.0), "float32": (2.0**-24, 0.0)}
_LIMIT = {name: FLOATS[name].largest for name in ("float16", "bfloat16", "float32")}
_SUM_ROUNDING = 2.0**-24
#: float32 goes into sums of products rounded to so much (HF32), on some chips without being asked; and kernels of
#: exp, tanh and the like approximate it to so much.
_MATRIX_UNIT, _APPROXIMATE = 2.0**-12, 1e-4
#: Digits of a number in each type.
_BITS = {"float16": 11, "bfloat16": 8, "float32": 24}
#: As many times what rounding alone makes of it on the average is still taken for rounding.
_LENIENCY = 4.0


class NotRecomputedError(Exception):
    """Why an op cannot be recomputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The op's output against the recomputed one, both as relative distances (‖x − y‖ / ‖y‖).

    `rounding` is what rounding in the op's type explains; `benchmark_error` that of the benchmark's output, None where
    there is none. `mismatches` counts elements that are not finite though they should be. `how` names the ops.
    """

    error: float
    rounding: float
    cosine: float
    benchmark_error: float | None = None
    mismatches: int = 0
    how: str = ""
    #: Inputs that are the benchmark's, as the fused op is not fed them.
    borrowed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Value:
    """An array in the order of the training script. `is_image`: four axes, batch first and channels last."""

    array: Doubles
    is_image: bool = False
    #: ‖Σ |a b|‖ and the length of the sums, for the rounding of what was summed up.
    magnitude: float = 0.0
    length: int = 0


# --- what ops compute -------------------------------------------------------------------------------------------------


def _sigmoid(x: Doubles) -> Doubles:
    return 0.5 * (1 + np.tanh(0.5 * x))


_UNARY: dict[str, Callable[[Doubles], Doubles]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Exp": np.exp,
    "Log": np.log,
    "Square": np.square,
    "Neg": np.negative,
    "Abs": np.abs,
    "Reciprocal": lambda x: 1 / x,
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Swish": lambda x: x * _sigmoid(x),
    "Identity": lambda x: x,
    "Cast": lambda x: x,
}
_BINARY: dict[str, Callable[[Doubles, Doubles], Doubles]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Div": np.divide,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "ReluGrad": lambda grad, features: np.where(features > 0, grad, 0),
    "Relu6Grad": lambda grad, features: np.where((features > 0) & (features < 6), grad, 0),
    "TanhGrad": lambda y, grad: grad * (1 - y * y),
    "SigmoidGrad": lambda y, grad: grad * y * (1 - y),
}
_CONV = ("Conv2D",)
_MATMUL = ("MatMul", "MatMulV2", "BatchMatMul", "BatchMatMulV2")
#: Attributes that turn the one and the other matrix, of GE's ops and of TensorFlow's.
_TURNED = ("transpose_x1", "adj_x1", "transpose_a", "adj_x"), ("transpose_x2", "adj_x2", "transpose_b", "adj_y")
_BIAS = ("BiasAdd",)
_NORM = ("BatchNorm", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")


def _list(attrs: Mapping[str, Any], name: str) -> list[int]:
    value = attrs.get(name)
    return [int(one) for one in value] if isinstance(value, (list, tuple)) else []


def _plane(values: Sequence[int], data_format: str, otherwise: int) -> tuple[int, int]:
    """The numbers of height and width among those of four axes."""
    if len(values) == 4:
        return (values[2], values[3]) if data_format == "NCHW" else (values[1], values[2])
    return (otherwise, otherwise)


def _conv(attrs: Mapping[str, Any], images: _Value, filters: _Value, bias: _Value | None) -> _Value:
    """Correlation of NHWC images with HWCN filters."""
    data_format = str(attrs.get("data_format") or "NHWC")
    strides, dilations = (_plane(_list(attrs, name), data_format, 1) for name in ("strides", "dilations"))
    groups = int(attrs.get("groups") or 1)
    if images.array.ndim != 4 or filters.array.ndim != 4:
        raise NotRecomputedError("a convolution whose images or filters have not four axes")
    height, width, channels, count = filters.array.shape
    reach = (height - 1) * dilations[0] + 1, (width - 1) * dilations[1] + 1
    if groups != 1 or images.array.shape[3] != channels:
        raise NotRecomputedError(
            f"a convolution in groups, or of {images.array.shape[3]} channels with filters of {channels}"
        )
    pads = _list(attrs, "pads")
    if str(attrs.get("padding")) == "SAME":
        pads = []
        for extent, stride, far in zip(images.array.shape[1:3], strides, reach, strict=True):
            total = max(0, (-(-extent // stride) - 1) * stride + far - extent)
            pads += [total // 2, total - total // 2]
    elif str(attrs.get("padding")) == "VALID" or len(pads) != 4:
        pads = [0, 0, 0, 0]
    padded = np.pad(images.array, ((0, 0), (pads[0], pads[1]), (pads[2], pads[3]), (0, 0)))
    rows, columns = (
        (extent - far) // stride + 1 for extent, far, stride in zip(padded.shape[1:3], reach, strides, strict=True)
    )
    if rows < 1 or columns < 1:
        raise NotRecomputedError("a convolution whose filters are larger than its images")
    shape = (padded.shape[0], rows, columns, count)
    _check_size(prod(shape), prod(shape) * height * width * channels)
    result, magnitude = np.zeros(shape), np.zeros((1, *shape[1:]))
    for i in range(height):
        for j in range(width):
            top, left = i * dilations[0], j * dilations[1]
            rows_of = slice(top, top + (rows - 1) * strides[0] + 1, strides[0])
            columns_of = slice(left, left + (columns - 1) * strides[1] + 1, strides[1])
            part = padded[:, rows_of, columns_of]
            result += part @ filters.array[i, j]
            magnitude += np.abs(part[:1]) @ np.abs(filters.array[i, j])
    # One image tells the size of the sums of all.
    value = _Value(result, True, _norm(magnitude) * sqrt(shape[0]), height * width * channels)
    return value if bias is None else _bias(attrs, value, bias)


def _matmul(attrs: Mapping[str, Any], one: _Value, two: _Value, bias: _Value | None) -> _Value:
    arrays = []
    for value, names in ((one, _TURNED[0]), (two, _TURNED[1])):
        turned = any(bool(attrs.get(name)) for name in names)
        if value.array.ndim < 2:
            raise NotRecomputedError("a matrix product of a vector")
        arrays.append(np.swapaxes(value.array, -1, -2) if turned else value.array)
    a, b = arrays
    if a.shape[-1] != b.shape[-2]:
        raise NotRecomputedError(f"a matrix product of {list(a.shape)} and {list(b.shape)}")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    size = prod(batch) * a.shape[-2] * b.shape[-1]
    _check_size(size, size * a.shape[-1])
    some = a[..., :_SAMPLED_ROWS, :]  # they tell the size of the sums of all
    magnitude = _norm(np.abs(some) @ np.abs(b)) * sqrt(a.shape[-2] / max(some.shape[-2], 1))
    value = _Value(a @ b, False, magnitude, a.shape[-1])
    return value if bias is None else _bias(attrs, value, bias)


def _bias(attrs: Mapping[str, Any], value: _Value, bias: _Value) -> _Value:
    vector = bias.array.reshape(-1)
    axis = 1 if str(attrs.get("data_format")) == "NCHW" and not value.is_image and value.array.ndim > 2 else -1
    if value.array.shape[axis] != vector.size:
        raise NotRecomputedError(f"a bias of {vector.size} numbers for {list(value.array.shape)}")
    shape = [1] * value.array.ndim
    shape[axis] = vector.size
    return _Value(value.array + vector.reshape(shape), value.is_image, value.magnitude, value.length)


def _batch_norm(attrs: Mapping[str, Any], x: _Value, parameters: Sequence[_Value]) -> _Value:
    """(x − mean) scale / sqrt(variance + ε) + offset; in training mean and variance are the batch's own."""
    vectors = [value.array.reshape(-1) for value in parameters[:4]]
    if not x.is_image or len(vectors) < 2 or any(vector.size != x.array.shape[-1] for vector in vectors[:2]):
        raise NotRecomputedError("a batch normalisation whose parameters are not those of the channels")
    epsilon = float(attrs.get("epsilon") or 1e-4)
    has_moments = len(vectors) == 4 and vectors[2].size == vectors[3].size == x.array.shape[-1]
    if bool(attrs.get("is_training", not has_moments)):
        mean, variance = x.array.mean(axis=(0, 1, 2)), x.array.var(axis=(0, 1, 2))
    elif has_moments:
        mean, variance = vectors[2], vectors[3]
    else:
        raise NotRecomputedError("a batch normalisation without the mean and variance it uses")
    factor = vectors[0] / np.sqrt(variance + epsilon)
    grown = float(np.max(np.abs(factor), initial=0.0)) * (x.magnitude + _norm(x.array))
    return _Value((x.array - mean) * factor + vectors[1], True, grown, max(x.length, 1))


def _check_size(elements: int, products: int) -> None:
    if elements > _MAX_ELEMENTS or products > _MAX_PRODUCTS:
        raise NotRecomputedError(f"too large to recompute: {elements:,} numbers with {products:,} products")


def _norm(array: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(array.reshape(-1)))


def _compute(op_type: str, attrs: Mapping[str, Any], values: Sequence[_Value]) -> _Value:
    """One op. `values` are its inputs in its order."""
    unknown = NotRecomputedError(f"there is no formula for {op_type} with {counted(len(values), 'input')}")
    if not values:
        raise unknown
    if op_type in _CONV or op_type in _MATMUL:
        if not 2 <= len(values) <= 3:  # a fourth is an offset of quantised numbers
            raise NotRecomputedError(f"a {op_type} of {counted(len(values), 'input')}")
        work = _conv if op_type in _CONV else _matmul
        return work(attrs, values[0], values[1], values[2] if len(values) > 2 else None)
    if op_type in _BIAS and len(values) == 2:
        return _bias(attrs, values[0], values[1])
    if op_type in _NORM:
        return _batch_norm(attrs, values[0], values[1:])
    first = values[0]
    if op_type in _UNARY and len(values) == 1:
        return _Value(_UNARY[op_type](first.array), first.is_image, first.magnitude, first.length)
    if op_type == "LeakyRelu" and len(values) == 1:
        slope = attrs.get("negative_slope", attrs.get("alpha"))
        if slope is None:  # GE's default is not TensorFlow's
            raise NotRecomputedError("a LeakyRelu whose slope the graph does not tell")
        array = np.where(first.array > 0, first.array, float(slope) * first.array)
        return _Value(array, first.is_image, first.magnitude, first.length)
    if op_type in _BINARY and len(values) == 2:
        second = values[1]
        if first.array.ndim == second.array.ndim == 4 and first.is_image != second.is_image:
            raise NotRecomputedError(f"a {op_type} of two tensors whose axes have different names")
        array = _BINARY[op_type](first.array, second.array)
        magnitude = first.magnitude + second.magnitude
        return _Value(array, first.is_image or second.is_image, magnitude, max(first.length, second.length))
    raise unknown


_Formulas = Callable[[str, Mapping[str, Any], Sequence[_Value]], _Value]


def _storing(dtype: str) -> _Formulas:
    """The formulas with every result rounded to a type; what does not fit it becomes infinite."""

    def compute(op_type: str, attrs: Mapping[str, Any], values: Sequence[_Value]) -> _Value:
        value = _compute(op_type, attrs, values)
        fraction, exponent = np.frexp(value.array)
        array = np.ldexp(np.rint(np.ldexp(fraction, _BITS[dtype])), exponent - _BITS[dtype])
        return replace(value, array=np.where(np.abs(array) > _LIMIT[dtype], np.copysign(inf, array), array))

    return compute


# --- which ops, fed with what -----------------------------------------------------------------------------------------

#: Further inputs an op takes beside the result of the one before, where no graph tells.
_TAKES = dict.fromkeys((*_UNARY, "LeakyRelu"), 0) | dict.fromkeys((*_BINARY, *_BIAS), 1)
#: Those that may take the result before as either input (`x - y`, `y - x`), or need an attribute of their own.
_NEEDS_GRAPH = frozenset({"Sub", "RealDiv", "Div", "TanhGrad", "SigmoidGrad", "LeakyRelu"})
#: The names that TensorFlow gives to Python's operators.
_OPERATORS = {"add": "Add", "mul": "Mul", "sub": "Sub", "truediv": "RealDiv"}
#: Where what a network has learned comes from.
_PARAMETERS = ("Const", "Constant", "Variable", "VariableV2", "VarHandleOp")
_PASSES_ON = (*TRANSPARENT_TYPES, "Identity", "ReadVariableOp")
#: Such ops in a row that a walk back passes through at most.
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class _Input:
    """A dumped input: its tensor, how the graph describes it, which tensor of the script it is."""

    tensor: AnyTensor | Missing
    desc: TensorDesc | None
    key: tuple[str, int] | None
    is_parameter: bool


@dataclass(frozen=True, slots=True)
class _Chain:
    """The original ops one after the other: names, types and results."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    results: tuple[_Value, ...]
    borrowed: tuple[str, ...] = ()

    def up_to(self, name: str | None) -> _Chain:
        """The chain that ends with the op whose result is put out: the last, unless the graph names another."""
        count = self.names.index(name) + 1 if name in self.names else len(self.names)
        return _Chain(self.names[:count], self.types[:count], self.results[:count], self.borrowed)


class Recomputer:
    """Recomputes fused ops of one run. `unfused` is a graph that has their original ops, if there is one.

    `own` are the tensors of this very run: what an op was fed where its inputs were not dumped (`dump_mode="output"`).
    """

    def __init__(
        self, file: GraphFile, unfused: GraphFile | None, benchmark: BenchmarkSide, own: GraphDumps | None = None
    ) -> None:
        self._own = own
        groups = groups_of(file)
        self._origins = Origins(file, groups)
        #: Ops (by id) that share the work of one original op, none of which puts out what that did.
        self._shared = {id(op) for group in groups if len(group.ops) > 1 and not group.inserted for op in group.ops}
        self._benchmark = benchmark
        self._unfused = _Originals(unfused) if unfused is not None else None

    def recompute(self, op: Op, dump: DumpedOp, golden: tuple[Tensor, str] | None = None) -> Recomputed:
        """The first output of an op. `golden` is the benchmark's and the layout its axes have in the script.

        NotRecomputedError says why it cannot be done.
        """
        if id(op) in self._shared:
            raise NotRecomputedError("it is one of several ops that were made from the same original ops")
        output = dump.outputs.get(0)
        if not isinstance(output, Tensor):
            raise NotRecomputedError("its output was not dumped, or only as statistics")
        if output.dtype not in _ROUNDING:
            raise NotRecomputedError(f"its output is {output.dtype}")
        if output.size > _MAX_ELEMENTS:
            raise NotRecomputedError(f"too large to recompute: {output.size:,} numbers")
        desc = op.output_descs[0] if op.output_descs else TensorDesc()
        names = tuple(name for name in op.original_names or (op.name,) if name)
        with np.errstate(all="ignore"):
            try:
                chain = self._run(op, dump, names, _compute).up_to(desc.dump_origin_name)
                found = _judge(output, desc, chain, golden)
                if found.error <= found.rounding:
                    return found
                # Before it is accused: what the ops make of each other's rounding.
                stored = self._run(op, dump, names, _storing(output.dtype)).up_to(desc.dump_origin_name)
                return _judge(output, desc, chain, golden, stored.results[-1].array)
            except (PrecisionToolError, ValueError) as error:  # ValueError: shapes that do not fit
                raise NotRecomputedError(str(error)) from error
            except MemoryError as error:
                raise NotRecomputedError("too large for the memory there is") from error

    def _run(self, op: Op, dump: DumpedOp, names: tuple[str, ...], compute: _Formulas) -> _Chain:
        """Types and results of the stages."""
        if self._unfused is not None and all(flatten(name) in self._unfused.ops for name in names):
            try:
                return self._by_graph(op, dump, names, self._unfused, compute)
            except NotRecomputedError:
                if len(names) == 1:
                    raise
        return self._by_order(op, dump, names, compute)

    def _inputs(self, op: Op, dump: DumpedOp) -> list[_Input]:
        """The dumped inputs, each with its description and the tensor of the script that it is."""
        slots = sorted(dump.inputs) or range(sum(edge is not None for edge in op.inputs))
        places = input_places(op, max(slots, default=-1) + 1)
        found = []
        for slot in slots:
            edge, desc = places[slot] if slot < len(places) else (None, None)
            producer = self._origins.producer(op, edge) if edge is not None else None
            key = None
            if edge is not None and producer is not None:
                origin = self._origins.of(producer, edge.index, self._benchmark)
                if not isinstance(origin, NoOrigin):
                    key = (flatten(origin.op_name), origin.index)
            tensor = dump.inputs.get(slot) or self._made(producer, edge, key)
            found.append(_Input(tensor, desc, key, is_parameter(self._origins, producer)))
        return found

    def _made(self, producer: Op | None, edge: Edge | None, key: tuple[str, int] | None) -> Found:
        """The input of an op from the dump of the op that made it, or from wherever this run has it."""
        if self._own is not None and producer is not None and edge is not None:
            name = flatten(producer.name)
            tensor = self._own.index.op(name).outputs.get(edge.index) if name in self._own.index else None
            if tensor is not None:
                return tensor
            if key is not None:
                return self._own.output(*key)
        return Missing("neither it nor the output that it is was dumped")

    def _by_graph(
        self,
        op: Op,
        dump: DumpedOp,
        names: tuple[str, ...],
        unfused: _Originals,
        compute: _Formulas,
        with_parameters: bool = True,
    ) -> _Chain:
        """Each original op, fed with what the graph without fusion feeds it.

        A fused op that is not fed a parameter of one of its ops has it folded into another (a normalisation into the
        filters before it): then all parameters are the benchmark's. Other inputs never are: the two sides differ there
        as soon as an op before this one is wrong.
        """
        inputs = [one for one in self._inputs(op, dump) if with_parameters or not one.is_parameter]
        fed = {one.key: one for one in inputs if one.key is not None and isinstance(one.tensor, Tensor)}
        done: dict[tuple[str, int], _Value] = {}
        results, types, borrowed = [], [], []
        done_names = sorted(names, key=lambda name: unfused.order[flatten(name)])
        for name in done_names:
            original = unfused.ops[flatten(name)]
            values = []
            for slot, key in enumerate(unfused.inputs(original)):
                is_filter = original.type in _CONV and slot == 1
                if key in done:
                    values.append(done[key])
                elif key in fed:
                    values.append(_load(fed[key].tensor, fed[key].desc, is_filter))
                else:
                    lent = key is not None and unfused.is_parameter(original, slot)
                    tensor = self._benchmark.output(*key) if key is not None and lent else Missing("unknown")
                    if key is None or isinstance(tensor, Missing):
                        raise NotRecomputedError(f"input {slot} of {name} was not dumped with it")
                    borrowed.append(f"{key[0]}:{key[1]}")
                    values.append(_load(tensor, unfused.desc(original, slot), is_filter))
            value = compute(original.type, original.attrs, values)
            done[flatten(name), 0] = value
            origin = unfused.outcome(original)
            if origin is not None:
                done[origin] = value
            results.append(value)
            types.append(original.type)
        if borrowed and with_parameters and any(one.is_parameter for one in inputs):
            return self._by_graph(op, dump, names, unfused, compute, with_parameters=False)
        return _Chain(tuple(done_names), tuple(types), tuple(results), tuple(borrowed))

    def _by_order(self, op: Op, dump: DumpedOp, names: tuple[str, ...], compute: _Formulas) -> _Chain:
        """The op itself and then the kinds of ops that the other original names end with, fed in input order."""
        rest = self._inputs(op, dump)
        kinds = [op.type, *(_kind(name) for name in names[1:])]
        results: list[_Value] = []
        for number, kind in enumerate(kinds):
            takes = _TAKES.get(kind)
            if number == 0:
                takes = 2 if kind in (*_CONV, *_MATMUL) else len(rest) if len(kinds) == 1 else (takes or 0) + 1
            elif kind in _NEEDS_GRAPH:
                takes = None
            if takes is None or takes > len(rest):
                raise NotRecomputedError(f"no graph tells what {kind} is fed, and its inputs do not tell it")
            taken, rest = rest[:takes], rest[takes:]
            values = [_load(one.tensor, one.desc, kind in _CONV and slot == 1) for slot, one in enumerate(taken)]
            results.append(compute(kind, op.attrs if number == 0 else {}, [*results[-1:], *values]))
        if rest:
            raise NotRecomputedError(f"{len(rest)} of its inputs belong to no op whose formula is known")
        return _Chain(names, tuple(kinds), tuple(results))


class _Originals:
    """The ops of a graph without fusion by flattened name, and what feeds them as tensors of the script."""

    def __init__(self, file: GraphFile) -> None:
        self._origins = Origins(file, groups_of(file))
        self.ops: dict[str, Op] = {}
        self.order: dict[str, int] = {}
        several: set[str] = set()
        for number, op in enumerate(file.ops):
            names = originals(op)
            for name in map(flatten, names):
                if name in self.order:
                    several.add(name)
                self.order.setdefault(name, number)
                if len(names) == 1:
                    self.ops[name] = op
        for name in several:  # whatever one of several ops does, it is not what the original did
            self.ops.pop(name, None)

    def inputs(self, op: Op) -> list[tuple[str, int] | None]:
        keys: list[tuple[str, int] | None] = []
        for edge in filter(None, op.inputs):
            producer = self._origins.producer(op, edge)
            origin = None if producer is None else self._origins.of(producer, edge.index, NoBenchmark())
            keys.append(
                None if origin is None or isinstance(origin, NoOrigin) else (flatten(origin.op_name), origin.index)
            )
        return keys

    def is_parameter(self, op: Op, slot: int) -> bool:
        edge = [*filter(None, op.inputs)][slot]
        return is_parameter(self._origins, self._origins.producer(op, edge))

    def outcome(self, op: Op) -> tuple[str, int] | None:
        origin = self._origins.of(op, 0, NoBenchmark())
        return None if isinstance(origin, NoOrigin) else (flatten(origin.op_name), origin.index)

    @staticmethod
    def desc(op: Op, slot: int) -> TensorDesc | None:
        return op.input_descs[slot] if slot < len(op.input_descs) else None


def is_parameter(origins: Origins, producer: Op | None) -> bool:
    """Whether what this op makes, or passes on, is what a network has learned."""
    for _ in range(_MAX_STEPS):
        if producer is None or producer.type not in _PASSES_ON or not producer.inputs or not producer.inputs[0]:
            break
        producer = origins.producer(producer, producer.inputs[0])
    return producer is not None and producer.type in _PARAMETERS


def _kind(name: str) -> str:
    """The type that the name of an op of the training script ends with: `conv1/Relu_1` is a Relu."""
    kind = re.sub(r"_\d+$", "", re.split(r"[/.]", name)[-1])
    return _OPERATORS.get(kind, kind)


def _load(tensor: AnyTensor | Missing, desc: TensorDesc | None, is_filter: bool) -> _Value:
    """A dumped tensor as the formulas take it: images NHWC, filters HWCN, all else as the script has it."""
    if not isinstance(tensor, Tensor):
        raise NotRecomputedError("an input was not dumped, or only as statistics")
    known = data_types.BY_NAME[tensor.dtype]
    if not known.is_numeric or known.is_complex:
        raise NotRecomputedError(f"an input is {tensor.dtype}")
    if tensor.size > _MAX_ELEMENTS:
        raise NotRecomputedError(f"too large to recompute: an input has {tensor.size:,} numbers")
    array, layout = _array(tensor, desc)
    if array.ndim != 4:
        return _Value(array)
    if is_filter:
        return _Value(array.transpose(2, 3, 1, 0) if layout == "NCHW" else array)
    if layout == "NCHW":
        return _Value(array.transpose(0, 2, 3, 1), True)
    # Some graphs call the axes of images by the names of a filter's; their order is the script's all the same.
    return _Value(array, layout in ("NHWC", "HWCN"))


def _array(tensor: Tensor, desc: TensorDesc | None) -> tuple[Doubles, str]:
    reading = reading_of(tensor, desc.origin_layout if desc else None, desc.origin_shape if desc else None)
    if not reading.layout:
        raise NotRecomputedError(reading.note or "the order of an input's axes is not known")
    with open_reader(tensor, reading.plan) as reader:
        array = reader.whole(np.float64)
    layout = reading.layout
    if layout == "ND" and desc is not None and desc.origin_layout in ("NCHW", "NHWC", "HWCN"):
        layout = desc.origin_layout
    shape = reading.shape if prod(reading.shape) == array.size else array.shape
    return array.reshape(shape), layout


# --- the verdict in numbers -------------------------------------------------------------------------------------------


def _judge(
    output: Tensor, desc: TensorDesc, chain: _Chain, golden: tuple[Tensor, str] | None, stored: Doubles | None = None
) -> Recomputed:
    """`stored` is the true result as it comes out when every op of the chain rounds its own."""
    results = chain.results
    true = results[-1]
    unit, smallest = _ROUNDING[output.dtype]
    if output.dtype == "float32":
        unit = _MATRIX_UNIT if any(value.length for value in results) else unit
    got = _matching(_load(output, desc, False), true)
    fits = np.isfinite(true.array) & (np.abs(true.array) <= _LIMIT[output.dtype])
    amplified = 0.0
    if stored is not None:
        fits &= np.isfinite(stored)
        amplified = _norm((stored - true.array)[fits])
    size = _norm(true.array[fits])
    sums = max((value.magnitude * sqrt(value.length) for value in results), default=0.0)
    rounded = sqrt(sum(_norm(value.array[np.isfinite(value.array)]) ** 2 for value in results))
    noise = _LENIENCY * (max(unit * rounded, amplified) + _SUM_ROUNDING * sums + smallest * sqrt(true.array.size))
    noise = max(noise, _APPROXIMATE * size)
    error, cosine, mismatches = _distance(got, true.array, fits, size)
    benchmark_error = None
    if golden is not None:
        tensor, layout = golden
        other = _load(tensor, TensorDesc(origin_layout=layout or None, origin_shape=tensor.origin_shape), False)
        benchmark_error = _distance(_matching(other, true), true.array, fits, size)[0]
    return Recomputed(
        error=error,
        rounding=noise / size if size else (0.0 if not noise else inf),
        cosine=cosine,
        benchmark_error=benchmark_error,
        mismatches=mismatches,
        how=", ".join(chain.types),
        borrowed=chain.borrowed,
    )


def _matching(value: _Value, true: _Value) -> Doubles:
    """The array in the order of the recomputed one."""
    if value.array.shape == true.array.shape:
        return value.array
    if true.is_image and value.array.ndim == 4 and value.array.transpose(0, 2, 3, 1).shape == true.array.shape:
        return value.array.transpose(0, 2, 3, 1)
    if value.array.size == true.array.size:
        return value.array.reshape(true.array.shape)
    raise NotRecomputedError(
        f"its output has the shape {list(value.array.shape)}, the recomputed one {list(true.array.shape)}"
    )


def _distance(got: Doubles, true: Doubles, fits: npt.NDArray[np.bool_], size: float) -> tuple[float, float, int]:
    """Relative distance, cosine, and how many elements are not finite though the true ones fit the type."""
    x, y = got[fits], true[fits]
    mismatches = int(np.count_nonzero(~np.isfinite(x)))
    if mismatches:
        return inf, float("nan"), mismatches
    norms = _norm(x), size
    distance = _norm(x - y)
    relative = distance / size if size else (0.0 if not distance else inf)
    cosine = float(x @ y / (norms[0] * norms[1])) if norms[0] and norms[1] else float(norms[0] == norms[1])
    return relative, cosine, 0
