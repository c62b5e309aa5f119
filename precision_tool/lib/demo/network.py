"""A training step computed for real on two sides at once.

The benchmark side runs in float32. The device side runs the ops of a compiled graph: fused ops, `Cast` and
`TransData`, float16 storage with float32 sums. Every device op is computed from the very values it finds stored,
so errors travel as on a device, and recomputing an op tells its own error from one it inherited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from precision_tool.lib.demo import numerics
from precision_tool.lib.demo.dump_writer import BLOCK, Array, Blocks, pack
from precision_tool.lib.demo.graph_writer import AI_CORE, GE_LOCAL
from precision_tool.lib.errors import UsageError
from precision_tool.lib.model.graph import Edge, Op, TensorDesc

CONV_PASS = "TbeConvDequantVaddReluQuantFusionPass"
MATMUL_BIAS_PASS = "MatMulBiasAddFusionPass"
MATMUL_ELEMWISE_PASS = "TbeMatmulElemwiseFusionPass"
MEAN_PASS = "AReduceMeanFusionPass"

#: Where the device's memory for tensors begins.
MEMORY_START = 0x1240_8000_0000
_MEMORY_STEP = 512
#: The largest float16.
HALF_LIMIT = 65504.0
#: The share of values that dropout keeps.
_KEPT = 0.75

Compute = Callable[..., Any]


# ---- faults ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way for an op to go wrong: `apply` spoils the float32 result before it is stored.

    `target` is the kind of op it strikes, `conv` or `matmul` (a fused one); None strikes nothing. `with_unfused` adds
    a run without fusion, which does not have the op and so not the fault. `largest_weight` is what the op's weights are
    scaled to on both sides, `loss_scale` multiplies the gradients. With `saturates` float16 values end at ±65504, else
    they become infinite. `with_status` writes overflow status files, `runs` is how many NPU runs there are, and with
    `overwrites` memory of the op's input is overwritten before it is read. `did` is what to say of the op.
    """

    name: str
    summary: str
    target: str | None = None
    apply: Callable[[Array, np.random.Generator], Array] | None = None
    with_unfused: bool = False
    largest_weight: float = 0.0
    loss_scale: float = 1.0
    saturates: bool = False
    with_status: bool = False
    runs: int = 1
    overwrites: bool = False
    did: str = "was computed wrong"


def _lose_last_tile(result: Array, rng: np.random.Generator) -> Array:
    wrong = result.copy()
    wrong[..., (result.shape[-1] - 1) // BLOCK * BLOCK :] = 0
    return wrong


def _some_nan(result: Array, rng: np.random.Generator) -> Array:
    wrong = result.copy()
    wrong.reshape(-1)[rng.choice(result.size, size=min(3, result.size), replace=False)] = np.nan
    return wrong


def _last_bits(result: Array, rng: np.random.Generator) -> Array:
    """Another order of summation: some results are off by a rounding or two."""
    wrong = result.copy()
    wrong *= 1 + np.float32(2.0**-10) * rng.integers(-1, 2, size=result.shape).astype(np.float32)
    return wrong


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(name="none", summary="everything is right"),
        Fault(
            name="fused",
            summary="a fused convolution does not write its last channel tile",
            target="conv",
            apply=_lose_last_tile,
        ),
        Fault(name="nan", summary="a fused matrix product gives a few NaN", target="matmul", apply=_some_nan),
        Fault(
            name="fusion",
            summary="as fused, with a second run that was compiled without fusion",
            target="conv",
            apply=_lose_last_tile,
            with_unfused=True,
        ),
        Fault(
            name="overflow",
            summary="large weights drive a convolution over float16's range, which saturates",
            target="conv",
            largest_weight=40_000.0,
            saturates=True,
            with_status=True,
            did="overflows first",
        ),
        Fault(
            name="scale",
            summary="a loss scale is too large: gradients leave float16's range and become infinite",
            loss_scale=2.0**18,
            did="overflows first",
        ),
        Fault(
            name="random",
            summary="a convolution sums in another order in each of two runs; a dropout mask differs as it should",
            target="conv",
            apply=_last_bits,
            runs=2,
            did="computes differently in two runs",
        ),
        Fault(
            name="stomp",
            summary="memory of a matrix product's input is overwritten before it is read",
            target="matmul",
            overwrites=True,
            did="reads memory that was overwritten",
        ),
    )
}


def fault_by_name(name: str) -> Fault:
    """The fault; UsageError if there is none of that name."""
    if name not in FAULTS:
        raise UsageError(f'no fault is called "{name}"', f"choose one of {', '.join(FAULTS)}.")
    return FAULTS[name]


# ---- values and steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How an output is stored."""

    dtype: str = "float16"
    layout: str = "ND"
    origin_layout: str = "ND"


IMAGE = Form(layout="NC1HWC0", origin_layout="NHWC")
FILTER_GRAD = Form(dtype="float32", layout="FRACTAL_Z", origin_layout="HWCN")
MATRIX = Form(layout="FRACTAL_NZ")
FLAT16 = Form()
FLAT32 = Form(dtype="float32")


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """A tensor too big for memory: its blocks can be made again and again."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Blocks


@dataclass(eq=False, kw_only=True)
class Value:
    """A tensor of both sides.

    `array` holds the device's values and `reference` the benchmark's, both in `origin_layout`. `golden` names the
    benchmark tensor (op, output index), or is None where the training script has no such tensor. `named` tells
    that the graph names it on this very output; behind `Cast` and `TransData` one has to walk back.
    """

    op: str
    index: int
    array: Array | Streamed
    reference: Array | Streamed
    layout: str
    origin_layout: str
    address: int
    golden: tuple[str, int] | None
    named: bool

    @property
    def form(self) -> Form:
        """How the tensor is stored."""
        return Form(dtype=self.array.dtype.name, layout=self.layout, origin_layout=self.origin_layout)

    @cached_property
    def stored(self) -> Array | Streamed:
        """The device's values in storage order."""
        if isinstance(self.array, Streamed):
            return self.array
        return pack(self.array, self.layout, self.origin_layout)

    @cached_property
    def cosine(self) -> float:
        """Cosine of both sides in float64: 1 for scalars and two zero tensors, NaN if only one side is zero."""
        if math.prod(self.array.shape) == 1:
            return 1.0
        dot = device = benchmark = 0.0
        for x, y in zip(_blocks(self.array), _blocks(self.reference), strict=True):
            a, b = x.ravel().astype(np.float64), y.ravel().astype(np.float64)
            with np.errstate(invalid="ignore"):
                dot, device, benchmark = dot + float(a @ b), device + float(a @ a), benchmark + float(b @ b)
        if device == benchmark == 0:
            return 1.0
        return dot / math.sqrt(device * benchmark) if device * benchmark else math.nan

    @cached_property
    def desc(self) -> TensorDesc:
        """The tensor as the compiled graph describes it."""
        op, index = self.golden if self.golden and self.named else (None, None)
        return TensorDesc(
            dtype=self.array.dtype.name,
            layout=self.layout,
            shape=self.stored.shape,
            origin_layout=self.origin_layout,
            origin_shape=self.array.shape,
            dump_origin_name=op,
            dump_origin_index=index,
            dump_origin_layout=self.origin_layout if op else None,
        )


def _blocks(tensor: Array | Streamed) -> Iterable[Array]:
    return tensor.blocks() if isinstance(tensor, Streamed) else (tensor,)


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One op of the device graph, run. `goldens` are the benchmark tensors that came to be with it."""

    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    goldens: tuple[tuple[str, int, Array | Streamed], ...] = ()
    dumped: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One op of the training script: `compute` takes the stage before it and the next `takes` inputs."""

    name: str
    compute: Compute
    takes: int = 1


#: Streams of the compiled graph: most work, and the parameter updates beside it.
UPDATE_STREAM = 1


@dataclass(eq=False, kw_only=True)
class Machine:
    """Runs ops one after the other on both sides and hands each to `emit`."""

    emit: Callable[[Step], None]
    rng: np.random.Generator
    fault: Fault = field(default_factory=lambda: FAULTS["none"])
    target: str | None = None
    #: Every op of the training script is an op of the device: the switchable passes are off.
    is_unfused: bool = False
    #: What differs from run to run; `rng` does not.
    noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    #: The op the fault struck, once it has run.
    culprit: Op | None = None
    #: The op that wrote over memory that was still to be read.
    overwriter: str = ""
    #: Ops whose float16 outputs reached the type's limit, in execution order.
    overflowed: list[str] = field(default_factory=list)
    #: 1 / loss scale, where there is one.
    inverse_scale: Value | None = None
    _next_id: int = 0
    _next_address: int = MEMORY_START
    _counters: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str) -> int:
        """How many of `kind` came before; numbers the ops that the compiler makes up."""
        number = self._counters.get(kind, 0)
        self._counters[kind] = number + 1
        return number

    def _allocate(self, nbytes: int) -> int:
        address = self._next_address
        self._next_address += (nbytes + 32 + _MEMORY_STEP - 1) // _MEMORY_STEP * _MEMORY_STEP
        return address

    def scaled(self, layer: str, weights: Array) -> Array:
        """The weights of a layer, as large as the fault wants them."""
        struck = self.target is not None and self.target.startswith(f"{layer}/Conv2D")
        if not struck or not self.fault.largest_weight:
            return weights
        larger: Array = weights * np.float32(self.fault.largest_weight / np.abs(weights).max())
        return larger

    def overwrites(self, layer: str) -> bool:
        """Whether the memory of this layer's input is overwritten."""
        return self.fault.overwrites and self.target is not None and self.target.startswith(f"{layer}/")

    def store(self, array: Array, dtype: str) -> Array:
        """Values as they are stored; what float16 cannot hold saturates or becomes infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            if dtype == "float16" and self.fault.saturates:
                array = np.clip(np.nan_to_num(array, posinf=HALF_LIMIT, neginf=-HALF_LIMIT), -HALF_LIMIT, HALF_LIMIT)
            return array.astype(dtype)

    def run(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[Array | Streamed, Array | Streamed, tuple[str, int] | None]],
        forms: Sequence[Form],
        *,
        originals: tuple[str, ...] | None,
        named: bool = True,
        passes: tuple[str, ...] = (),
        goldens: Sequence[tuple[str, int, Array | Streamed]] = (),
        attrs: Mapping[str, Any] | None = None,
        stream: int = 0,
        multi: bool = False,
        dumped: bool = True,
        kernel: bool = True,
        library: str = "",
        shares: Value | None = None,
        at: int = 0,
    ) -> tuple[Value, ...]:
        """Store `results`, (device, benchmark, golden name) each, and emit the step.

        `shares` is the value whose memory the output takes over (`Reshape`, updates in place). `at` is an address in
        memory that is in use, which a right allocator never gives. `library` is that of the kernel, where it is another
        than an AI core's.
        """
        outputs = []
        for index, ((array, reference, golden), form) in enumerate(zip(results, forms, strict=True)):
            value = Value(
                op=name,
                index=index,
                array=array,
                reference=reference,
                layout=form.layout,
                origin_layout=form.origin_layout,
                address=shares.address if shares else 0,
                golden=golden,
                named=named,
            )
            if shares is None:
                stored = value.stored
                value.address = at or self._allocate(math.prod(stored.shape) * stored.dtype.itemsize)
            outputs.append(value)
        if dumped and any(_reaches_limit(value.array) for value in outputs):
            self.overflowed.append(name)
        op = Op(
            name=name,
            type=op_type,
            id=self._next_id,
            inputs=tuple(Edge(producer=value.op, index=value.index) for value in inputs),
            input_descs=tuple(_as_input(value.desc) for value in inputs),
            output_descs=tuple(value.desc for value in outputs),
            pass_names=passes,
            original_names=originals,
            stream_id=stream or None,
            kernel_lib=library or (AI_CORE if kernel else GE_LOCAL),
            is_multiop=multi,
            attrs=dict(attrs or {}),
        )
        self._next_id += 1
        is_first = self.fault.loss_scale != 1 and self.overflowed == [name]
        if name == self.target or is_first:
            self.culprit = op
        self.emit(Step(op=op, inputs=tuple(inputs), outputs=tuple(outputs), goldens=tuple(goldens), dumped=dumped))
        return tuple(outputs)

    def compute(
        self,
        op_type: str,
        stages: Sequence[Stage],
        inputs: Sequence[Value],
        forms: Sequence[Form],
        *,
        name: str = "",
        in_script: bool = True,
        **options: Any,
    ) -> tuple[Value, ...]:
        """Run one device op that does the work of `stages`.

        The benchmark keeps the output of every stage, the device only rounds the last one. `in_script` is False for
        a part of an op that the compiler cut in two: its output has no golden tensor.
        """
        if self.is_unfused and len(stages) > 1:
            return self._one_by_one(op_type, stages, inputs, forms, **options)
        name = name or "".join(stage.name for stage in stages)
        goldens: list[tuple[str, int, Array | Streamed]] = []
        with np.errstate(over="ignore", invalid="ignore"):
            device = _chain(stages, [value.array for value in inputs], None)
        benchmark = _chain(stages, [value.reference for value in inputs], goldens if in_script else None)
        if name == self.target and self.fault.apply is not None:
            chance = self.noise if self.fault.runs > 1 else self.rng
            device = (self.fault.apply(device[0], chance), *device[1:])
        last = stages[-1].name
        results = [
            (x if isinstance(x, Streamed) else self.store(x, form.dtype), y, (last, i) if in_script else None)
            for i, (x, y, form) in enumerate(zip(device, benchmark, forms, strict=True))
        ]
        originals = tuple(stage.name for stage in stages)
        return self.run(op_type, name, inputs, results, forms, originals=originals, goldens=goldens, **options)

    def _one_by_one(
        self, op_type: str, stages: Sequence[Stage], inputs: Sequence[Value], forms: Sequence[Form], **options: Any
    ) -> tuple[Value, ...]:
        """What the passes would have fused: an op a stage, each with an output of its own."""
        rest: list[Value] = list(inputs)
        results: tuple[Value, ...] = ()
        kept = {name: value for name, value in options.items() if name not in ("passes", "attrs")}
        attrs = {name: value for name, value in (options.get("attrs") or {}).items() if name != "fusion_scope"}
        for number, stage in enumerate(stages):
            taken, rest = rest[: stage.takes], rest[stage.takes :]
            kind = op_type if number == 0 else stage.name.rsplit("/", 1)[-1]
            own = {"data_format": attrs["data_format"]} if number and "data_format" in attrs else {}
            fed = [*results, *taken]
            single = replace(stage, takes=len(fed))
            results = self.compute(kind, [single], fed, forms, attrs=own if number else attrs, **kept)
        return results

    def single(
        self, op_type: str, stage_name: str, compute: Compute, inputs: Sequence[Value], form: Form, **options: Any
    ) -> Value:
        """An op with one stage and one output."""
        stage = Stage(name=stage_name, compute=compute, takes=len(inputs))
        return self.compute(op_type, [stage], inputs, [form], **options)[0]

    def variable(self, name: str, array: Array, origin_layout: str = "ND", *, reference: Array | None = None) -> Value:
        """A trained parameter: in the graph, never dumped. `reference` is the benchmark's, where it has another."""
        reference = array if reference is None else reference
        golden = (f"{name}/read", 0)
        form = Form(dtype="float32", layout=origin_layout, origin_layout=origin_layout)
        return self.run(
            "Variable", name, (), [(array, reference, golden)], [form],
            originals=None, goldens=[(name, 0, reference), (*golden, reference)], dumped=False, kernel=False,
        )[0]  # fmt: skip

    def constant(self, value: float | Array, name: str = "", stream: int = 0) -> Value:
        """A `Const`, never dumped; without a name one the compiler made, which has no golden tensor."""
        array = np.asarray(value, np.float32)
        golden = (name, 0) if name else None
        op_name = name or f"dynamic_const_{16700 + self._next_id}_{self.count('const')}"
        return self.run(
            "Const", op_name, (), [(array, array, golden)], [FLAT32],
            originals=(name,) if name else (), goldens=[(name, 0, array)] if name else [],
            dumped=False, kernel=False, stream=stream,
        )[0]  # fmt: skip

    def cast(self, value: Value, dtype: str, stream: int = 0) -> Value:
        """A `Cast` of the compiler."""
        assert isinstance(value.array, np.ndarray)
        array = self.store(value.array, dtype)
        form = replace(value.form, dtype=dtype)
        codes = {"float32": 0, "float16": 1}
        return self.run(
            "Cast", f"trans_Cast_{self.count('cast')}", [value], [(array, value.reference, value.golden)], [form],
            originals=(), named=False, attrs={"dst_type": codes[dtype], "truncate": False}, stream=stream,
        )[0]  # fmt: skip

    def trans_data(self, value: Value, layout: str, stream: int = 0, at: int = 0) -> Value:
        """A `TransData` of the compiler: the same values in another storage layout."""
        form = replace(value.form, layout=layout)
        return self.run(
            "TransData", f"trans_TransData_{self.count('transdata')}", [value],
            [(value.array, value.reference, value.golden)], [form], originals=(), named=False,
            attrs={"src_format": value.layout, "dst_format": layout, "groups": 1}, stream=stream, at=at,
        )[0]  # fmt: skip

    def reshape(self, value: Value, name: str, shape: tuple[int, ...], layout: str, op_type: str = "Reshape") -> Value:
        """Another shape for the same bytes: no work for the device, so no dump."""
        assert isinstance(value.array, np.ndarray)
        assert isinstance(value.reference, np.ndarray)
        array, reference = value.array.reshape(shape), value.reference.reshape(shape)
        form = Form(dtype=array.dtype.name, layout=layout, origin_layout=layout)
        return self.run(
            op_type, name, [value], [(array, reference, (name, 0))], [form], originals=(name,),
            goldens=[(name, 0, reference)], dumped=False, kernel=False, shares=value,
        )[0]  # fmt: skip

    def update(self, variable: Value, rate: Value, grad: Value) -> Value:
        """One step of gradient descent, in place."""
        if self.inverse_scale is not None:
            name = f"LossScaleOptimizer/unscale_{variable.op}/Mul"
            grad = self.single("Mul", name, np.multiply, [grad, self.inverse_scale], grad.form, stream=UPDATE_STREAM)
        name = f"GradientDescent/update_{variable.op}/ApplyGradientDescent"
        return self.single(
            "ApplyGradientDescent", name, numerics.apply_gradient_descent, [variable, rate, grad], variable.form,
            attrs={"use_locking": False}, stream=UPDATE_STREAM, shares=variable,
        )  # fmt: skip


def _reaches_limit(array: Array | Streamed) -> bool:
    """Whether a float16 tensor has saturated, infinite or NaN values."""
    if isinstance(array, Streamed) or array.dtype != np.float16:
        return False
    return bool((~(np.abs(array) < HALF_LIMIT)).any())


def _overwritten(value: Value, by: Value) -> Value:
    """A matrix in FRACTAL_NZ the second half of whose memory holds the beginning of another tensor."""
    assert isinstance(value.stored, np.ndarray)
    assert isinstance(by.stored, np.ndarray)
    raw = value.stored.copy()
    half = _overlap(value)
    raw.reshape(-1).view(np.uint8)[half:] = by.stored.reshape(-1).view(np.uint8)[: raw.nbytes - half]
    rows, columns = value.array.shape
    blocks, outer, inner, width = raw.shape
    whole = raw.transpose(1, 2, 0, 3).reshape(outer * inner, blocks * width)
    wrong = replace(value, array=whole[:rows, :columns])
    wrong.__dict__["stored"] = raw  # with what is in the padding now
    return wrong


def _overlap(value: Value) -> int:
    """The byte of a tensor where what is written over it begins."""
    nbytes = math.prod(value.stored.shape) * value.stored.dtype.itemsize
    return nbytes // 2 // _MEMORY_STEP * _MEMORY_STEP


def _as_input(desc: TensorDesc) -> TensorDesc:
    """Only outputs say which tensor of the script they are."""
    if desc.dump_origin_name is None:
        return desc
    return replace(desc, dump_origin_name=None, dump_origin_index=None, dump_origin_layout=None)


def _widen(array: Array | Streamed) -> Any:
    """float16 as float32; everything else as it is."""
    return array.astype(np.float32) if isinstance(array, np.ndarray) and array.dtype == np.float16 else array


def _array(result: Any) -> Any:
    """numpy gives a scalar instead of an array without dimensions."""
    return result if isinstance(result, Streamed) else np.asarray(result)


def _chain(
    stages: Sequence[Stage],
    inputs: Sequence[Array | Streamed],
    goldens: list[tuple[str, int, Array | Streamed]] | None,
) -> tuple[Any, ...]:
    """Run the stages one into the next; their outputs are added to `goldens`."""
    results: tuple[Any, ...] = ()
    rest = [_widen(array) for array in inputs]
    for stage in stages:
        taken, rest = rest[: stage.takes], rest[stage.takes :]
        result = stage.compute(*results, *taken)
        results = tuple(map(_array, result if isinstance(result, tuple) else (result,)))
        if goldens is not None:
            goldens += [(stage.name, i, array) for i, array in enumerate(results)]
    return results


# ---- layers ------------------------------------------------------------------------------------------------


def _he(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Weights that keep the size of activations (He et al. 2015), centred per output channel."""
    weights = rng.standard_normal(shape, dtype=np.float32)
    weights -= weights.mean(axis=tuple(range(len(shape) - 1)), keepdims=True)
    return weights * np.float32(math.sqrt(2 / math.prod(shape[:-1])))


def _bias(rng: np.random.Generator, count: int) -> Array:
    return (rng.standard_normal(count) * 0.05).astype(np.float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """Parameters of a layer and what its backward pass needs again."""

    name: str
    kernel: Value
    bias: Value
    device_kernel: Value
    features: Value
    out: Value


def conv_layer(machine: Machine, name: str, features: Value, kernel_shape: tuple[int, ...], pad: int = 0) -> Layer:
    """Conv2D + BiasAdd + Relu, fused. `features` are images in NC1HWC0."""
    kernel = machine.variable(f"{name}/kernel", machine.scaled(name, _he(machine.rng, kernel_shape)), "HWCN")
    bias = machine.variable(f"{name}/bias", _bias(machine.rng, kernel_shape[-1]))
    device_kernel = machine.trans_data(machine.cast(kernel, "float16"), "FRACTAL_Z")
    stages = [
        Stage(name=f"{name}/Conv2D", compute=partial(numerics.conv2d, pad=pad), takes=2),
        Stage(name=f"{name}/BiasAdd", compute=numerics.bias_add),
        Stage(name=f"{name}/Relu", compute=numerics.relu, takes=0),
    ]
    inputs = [features, device_kernel, machine.cast(bias, "float16")]
    out = machine.compute(
        "Conv2D", stages, inputs, [IMAGE], passes=(CONV_PASS,), attrs=conv_attrs(pad) | {"fusion_scope": 100}
    )[0]
    return Layer(name=name, kernel=kernel, bias=bias, device_kernel=device_kernel, features=features, out=out)


def conv_attrs(pad: int) -> dict[str, Any]:
    """Attributes of the convolutions."""
    ones = (int, (1, 1, 1, 1))
    return {
        "data_format": "NHWC",
        "strides": ones,
        "dilations": ones,
        "pads": (int, (pad,) * 4),
        "padding": "SAME" if pad else "VALID",
    }


def conv_updates(machine: Machine, layer: Layer, grad: Value, rate: Value, pad: int = 0) -> None:
    """Gradients of a convolution's parameters, and their updates."""
    prefix = f"gradients/{layer.name}"
    bias_grad = machine.single(
        "BiasAddGrad", f"{prefix}/BiasAdd_grad/BiasAddGrad", numerics.bias_add_grad, [grad], FLAT16
    )
    machine.update(layer.bias, rate, machine.cast(bias_grad, "float32", UPDATE_STREAM))
    kernel_grad = machine.single(
        "Conv2DBackpropFilter",
        f"{prefix}/Conv2D_grad/Conv2DBackpropFilter",
        partial(numerics.conv2d_backprop_filter, shape=layer.kernel.array.shape, pad=pad),
        [layer.features, grad],
        FILTER_GRAD,
        attrs=conv_attrs(pad),
    )
    machine.update(layer.kernel, rate, machine.trans_data(kernel_grad, "HWCN", UPDATE_STREAM))


def dense_layer(machine: Machine, name: str, features: Value, width: int, relu: bool, gain: float = 1.0) -> Layer:
    """MatMul + BiasAdd (+ Relu), fused. `features` are rows in FRACTAL_NZ."""
    weights = _he(machine.rng, (features.array.shape[1], width)) * np.float32(gain)
    kernel = machine.variable(f"{name}/kernel", weights)
    bias = machine.variable(f"{name}/bias", _bias(machine.rng, width))
    at = features.address + _overlap(features) if machine.overwrites(name) else 0
    device_kernel = machine.trans_data(machine.cast(kernel, "float16"), "FRACTAL_NZ", at=at)
    if at:
        features = _overwritten(features, device_kernel)
        machine.overwriter = device_kernel.op
    stages = [
        Stage(name=f"{name}/MatMul", compute=numerics.matmul, takes=2),
        Stage(name=f"{name}/BiasAdd", compute=numerics.bias_add),
    ]
    if relu:
        stages.append(Stage(name=f"{name}/Relu", compute=numerics.relu, takes=0))
    inputs = [features, device_kernel, machine.cast(bias, "float16")]
    out = machine.compute(
        "MatMulV2", stages, inputs, [MATRIX], passes=(MATMUL_BIAS_PASS,), attrs=matmul_attrs() | {"fusion_scope": 101}
    )[0]
    return Layer(name=name, kernel=kernel, bias=bias, device_kernel=device_kernel, features=features, out=out)


def matmul_attrs(x1: bool = False, x2: bool = False) -> dict[str, Any]:
    """Attributes of the matrix products."""
    return {"transpose_x1": x1, "transpose_x2": x2}


def _product_first_transposed(x: Array, grad: Array) -> Array:
    return numerics.matmul(x.T, grad)


def _product_second_transposed(grad: Array, weights: Array) -> Array:
    return numerics.matmul(grad, weights.T)


def dense_updates(machine: Machine, layer: Layer, grad: Value, bias_grad: Value, rate: Value) -> None:
    """Gradient of a dense layer's weights, and the updates. `grad` is in FRACTAL_NZ."""
    machine.update(layer.bias, rate, bias_grad)
    kernel_grad = machine.single(
        "MatMulV2",
        f"gradients/{layer.name}/MatMul_grad/MatMul_1",
        _product_first_transposed,
        [layer.features, grad],
        MATRIX,
        attrs=matmul_attrs(x1=True),
    )
    wide = machine.cast(kernel_grad, "float32", UPDATE_STREAM)
    machine.update(layer.kernel, rate, machine.trans_data(wide, "ND", UPDATE_STREAM))


# ---- the network -------------------------------------------------------------------------------------------

CLASSES = 10
#: Images of a step: their number, height, width and channels.
IMAGES = (8, 20, 20, 3)
#: The ops that faults strike, by kind.
TARGETS = {"conv": "conv2/Conv2Dconv2/BiasAddconv2/Relu", "matmul": "fc1/MatMulfc1/BiasAddfc1/Relu"}


def data_source(
    machine: Machine,
    features_shape: tuple[int, ...] | None = None,
    *,
    shape: tuple[int, int, int, int] = IMAGES,
    rng: np.random.Generator | None = None,
) -> tuple[Value, ...]:
    """The iterator: images, labels and, for a scaled network, the tower's features; drawn by the machine's `rng` or one
    of their own."""
    rng = rng or machine.rng
    iterator = machine.run(
        "IteratorV2", "IteratorV2", (), [(np.zeros((), np.int64),) * 2 + (None,)], [Form(dtype="int64")],
        originals=None, dumped=False, kernel=False, attrs={"container": "", "shared_name": "_1_IteratorV2"},
    )  # fmt: skip
    images = rng.random(shape, dtype=np.float32)
    arrays: list[Array] = [images, rng.integers(0, CLASSES, len(images), dtype=np.int32)]
    forms = [Form(dtype="float32", layout="NHWC", origin_layout="NHWC"), Form(dtype="int32")]
    if features_shape is not None:
        arrays.append(rng.standard_normal(features_shape, dtype=np.float32))
        forms.append(forms[0])
    name = "IteratorGetNext"
    return machine.run(
        "GetNext", name, iterator, [(array, array, (name, i)) for i, array in enumerate(arrays)], forms,
        originals=(name,), goldens=[(name, i, array) for i, array in enumerate(arrays)], kernel=False,
    )  # fmt: skip


def train_step(machine: Machine, images: Value, labels: Value, rate: Value) -> Value:
    """Forward pass, loss, backward pass and updates of a small convolutional network; returns the loss."""
    assert isinstance(images.array, np.ndarray)
    batch = len(images.array)
    # forward
    x = machine.trans_data(machine.cast(images, "float16"), "NC1HWC0")
    conv1 = conv_layer(machine, "conv1", x, (3, 3, 3, 16), pad=1)
    pool1 = machine.single("MaxPool", "pool1/MaxPool", numerics.max_pool, [conv1.out], IMAGE, attrs=_pool_attrs())
    conv2 = conv_layer(machine, "conv2", pool1, (3, 3, 16, 28))
    pool2 = machine.single("MaxPool", "pool2/MaxPool", numerics.max_pool, [conv2.out], IMAGE, attrs=_pool_attrs())
    plain = machine.trans_data(pool2, "NHWC")
    flat = machine.reshape(plain, "flatten/Reshape", (batch, math.prod(pool2.array.shape[1:])), "ND")
    fc1 = dense_layer(machine, "fc1", machine.trans_data(flat, "FRACTAL_NZ"), 100, relu=True)
    fc2 = dense_layer(machine, "fc2", fc1.out, CLASSES, relu=False, gain=2.0)
    logits = machine.cast(machine.trans_data(fc2.out, "ND"), "float32")
    loss_name = "loss/SparseSoftmaxCrossEntropyWithLogits"
    loss, backprop = machine.compute(
        "SparseSoftmaxCrossEntropyWithLogits",
        [Stage(name=loss_name, compute=numerics.softmax_cross_entropy, takes=2)],
        [logits, labels],
        [FLAT32, FLAT32],
    )
    mean = _mean(machine, loss, batch)
    if machine.fault.runs > 1:
        _dropout(machine, fc1.out)

    # backward
    ones = machine.constant(np.ones(1), "gradients/loss/Mean_grad/Reshape")
    if machine.fault.loss_scale != 1:
        scale = machine.constant(machine.fault.loss_scale, "loss_scale")
        machine.inverse_scale = machine.constant(1 / machine.fault.loss_scale, "LossScaleOptimizer/truediv")
        ones = machine.single("Mul", "gradients/LossScaleOptimizer/mul_grad/Mul", np.multiply, [ones, scale], FLAT32)
    tile = machine.single(
        "TileD", "gradients/loss/Mean_grad/Tile", partial(np.repeat, repeats=batch), [ones], FLAT32,
        attrs={"multiples": (int, (batch,))},
    )  # fmt: skip
    share = machine.single(
        "RealDiv", "gradients/loss/Mean_grad/truediv", np.divide, [tile, machine.constant(float(batch))], FLAT32
    )
    column = machine.reshape(share, f"gradients/{loss_name}_grad/ExpandDims", (batch, 1), "ND", "ExpandDims")
    grad32 = machine.single("Mul", f"gradients/{loss_name}_grad/mul", np.multiply, [column, backprop], FLAT32)
    bias_grad = machine.single(
        "BiasAddGrad", "gradients/fc2/BiasAdd_grad/BiasAddGrad", numerics.bias_add_grad, [grad32], FLAT32
    )
    grad = machine.trans_data(machine.cast(grad32, "float16"), "FRACTAL_NZ")
    dense_updates(machine, fc2, grad, bias_grad, rate)
    grad = machine.compute(
        "MatMulV2",
        [
            Stage(name="gradients/fc2/MatMul_grad/MatMul", compute=_product_second_transposed, takes=2),
            Stage(name="gradients/fc1/Relu_grad/ReluGrad", compute=numerics.relu_grad),
        ],
        [grad, fc2.device_kernel, fc1.out],
        [MATRIX],
        passes=(MATMUL_ELEMWISE_PASS,),
        attrs=matmul_attrs(x2=True) | {"fusion_scope": 102},
    )[0]
    bias_grad = machine.single(
        "BiasAddGrad", "gradients/fc1/BiasAdd_grad/BiasAddGrad", numerics.bias_add_grad, [grad], FLAT16
    )
    dense_updates(machine, fc1, grad, machine.cast(bias_grad, "float32", UPDATE_STREAM), rate)
    grad = machine.single(
        "MatMulV2", "gradients/fc1/MatMul_grad/MatMul", _product_second_transposed, [grad, fc1.device_kernel], MATRIX,
        attrs=matmul_attrs(x2=True),
    )  # fmt: skip
    grad = machine.reshape(
        machine.trans_data(grad, "ND"), "gradients/flatten/Reshape_grad/Reshape", pool2.array.shape, "NHWC"
    )
    grad = _pool_and_relu_grad(machine, "pool2", "conv2", conv2.out, pool2, machine.trans_data(grad, "NC1HWC0"))
    conv_updates(machine, conv2, grad, rate)
    grad = machine.single(
        "Conv2DBackpropInput",
        "gradients/conv2/Conv2D_grad/Conv2DBackpropInput",
        partial(numerics.conv2d_backprop_input, shape=pool1.array.shape),
        [conv2.device_kernel, grad],
        IMAGE,
        attrs=conv_attrs(0),
    )
    grad = _pool_and_relu_grad(machine, "pool1", "conv1", conv1.out, pool1, grad)
    conv_updates(machine, conv1, grad, rate, pad=1)
    return mean


def _dropout(machine: Machine, features: Value) -> None:
    """A branch with dropout, whose mask is another in each run."""
    rows, columns = features.array.shape
    bits = machine.noise.random((rows, columns)) < _KEPT
    name = "dropout/random_mask"
    shape, kept = machine.constant(np.array([rows, columns])), machine.constant(_KEPT)
    mask = machine.run(
        "DropOutGenMask", name, [shape, kept], [(np.packbits(bits.reshape(-1)),) * 2 + (None,)], [Form(dtype="uint8")],
        originals=(),
    )[0]  # fmt: skip

    def masked(values: Array, packed: Array) -> Array:
        chosen = np.unpackbits(packed)[: values.size].reshape(values.shape)
        result: Array = values * chosen.astype(np.float32) / np.float32(_KEPT)
        return result

    machine.single("DropOutDoMask", "dropout/mul", masked, [machine.trans_data(features, "ND"), mask], FLAT16)


def _pool_attrs() -> dict[str, Any]:
    window = (int, (1, 2, 2, 1))
    return {"data_format": "NHWC", "ksize": window, "strides": window, "padding": "VALID"}


def _mean(machine: Machine, loss: Value, batch: int) -> Value:
    """`loss/Mean`, which the compiler cuts into a sum and a factor: two device ops for one of the script."""
    name = "loss/Mean"
    options: dict[str, Any] = {"passes": (MEAN_PASS,), "multi": True}
    total = machine.single(
        "ReduceSumD", name, _sum_all, [loss], FLAT32, name=f"{name}_ReduceSumD", in_script=False, **options
    )
    factor = np.float32(1 / batch)
    attrs = {"value": float(factor)}
    return machine.single("Muls", name, partial(np.multiply, factor), [total], FLAT32, attrs=attrs, **options)


def _sum_all(values: Array) -> Array:
    return np.asarray(values.sum(dtype=np.float64), np.float32)


def _pool_grad(images: Array, pooled: Array, grad: Array) -> Array:
    return numerics.max_pool_grad(images, grad)


def _pool_and_relu_grad(machine: Machine, pool: str, conv: str, out: Value, pooled: Value, grad: Value) -> Value:
    grad = machine.single(
        "MaxPoolGrad", f"gradients/{pool}/MaxPool_grad/MaxPoolGrad", _pool_grad, [out, pooled, grad], IMAGE,
        attrs=_pool_attrs(),
    )  # fmt: skip
    return machine.single("ReluGrad", f"gradients/{conv}/Relu_grad/ReluGrad", numerics.relu_grad, [grad, out], IMAGE)
