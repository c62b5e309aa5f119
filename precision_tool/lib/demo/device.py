"""Faults of a demo, and the simulated device: it computes each op as an NPU and as the benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from precision_tool.lib.demo import numerics
from precision_tool.lib.demo.dump_writer import BLOCK, Array, Blocks, pack
from precision_tool.lib.demo.graph_writer import AI_CORE, GE_LOCAL
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.graph import Edge, Op, TensorDesc

# ---- faults ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way for an op to go wrong: `apply` spoils the float32 result before it is stored.

    `target` is the kind of op it strikes, `conv` or `matmul` (a fused one); None strikes nothing. `with_unfused` adds
    a run without fusion, which does not have the op and so not the fault. `largest_weight` is what the op's weights are
    scaled to on both sides, `loss_scale` multiplies the gradients. With `saturates` float16 values end at ±65504, else
    they become infinite. `with_status` writes overflow status files, `runs` is how many NPU runs there are, and with
    `overwrites` memory of the op's input is overwritten before it is read. `did` names what
    to say of the op: a kind of `screen.cli.demo_did`.
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
    did: str = "wrong"


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
            did="overflows",
        ),
        Fault(
            name="scale",
            summary="a loss scale is too large: gradients leave float16's range and become infinite",
            loss_scale=2.0**18,
            did="overflows",
        ),
        Fault(
            name="random",
            summary="a convolution sums in another order in each of two runs; a dropout mask differs as it should",
            target="conv",
            apply=_last_bits,
            runs=2,
            did="differs",
        ),
        Fault(
            name="stomp",
            summary="memory of a matrix product's input is overwritten before it is read",
            target="matmul",
            overwrites=True,
            did="overwritten",
        ),
    )
}


def fault_by_name(name: str) -> Fault:
    """Return the fault of this name; UsageError if there is none."""
    if name not in FAULTS:
        raise UsageError("demo.no_such_fault", name=name, choices=tuple(FAULTS))
    return FAULTS[name]


#: The ops that faults strike, by kind.
TARGETS = {"conv": "conv2/Conv2Dconv2/BiasAddconv2/Relu", "matmul": "fc1/MatMulfc1/BiasAddfc1/Relu"}


# --- the machine ------------------------------------------------------------------------------------------------------


#: Where the device's memory for tensors begins.
MEMORY_START = 0x1240_8000_0000
_MEMORY_STEP = 512
#: The largest float16.
HALF_LIMIT = 65504.0
Compute = Callable[..., Any]


# ---- values and steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Data type and layouts of a stored output."""

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
        """Data type and layouts of the stored tensor."""
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
    """A machine that runs ops in order on both sides and passes each to `emit`."""

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
        """Return the number of earlier ops of `kind`, which numbers compiler-inserted ops."""
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
        """Return True if the memory of this layer's input is overwritten."""
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
        outputs = [
            Value(
                op=name, index=index, array=array, reference=reference, layout=form.layout,
                origin_layout=form.origin_layout, address=shares.address if shares else 0, golden=golden, named=named,
            )
            for index, ((array, reference, golden), form) in enumerate(zip(results, forms, strict=True))
        ]  # fmt: skip
        for value in outputs if shares is None else ():
            stored = value.stored
            value.address = at or self._allocate(math.prod(stored.shape) * stored.dtype.itemsize)
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
        """Run each stage as an op with an output of its own, as with the fusion passes off."""
        rest: list[Value] = list(inputs)
        results: tuple[Value, ...] = ()
        plain_options = {name: value for name, value in options.items() if name not in ("passes", "attrs")}
        attrs = {name: value for name, value in (options.get("attrs") or {}).items() if name != "fusion_scope"}
        for number, stage in enumerate(stages):
            taken, rest = rest[: stage.takes], rest[stage.takes :]
            kind = op_type if number == 0 else stage.name.rsplit("/", 1)[-1]
            own = {"data_format": attrs["data_format"]} if number and "data_format" in attrs else {}
            op_inputs = [*results, *taken]
            single = replace(stage, takes=len(op_inputs))
            results = self.compute(kind, [single], op_inputs, forms, attrs=own if number else attrs, **plain_options)
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
    """Return True if a float16 tensor has saturated, infinite or NaN values."""
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
    stages: Sequence[Stage], inputs: Sequence[Array | Streamed], goldens: list[tuple[str, int, Array | Streamed]] | None
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
