"""The formula of an op of a compiled graph: its own, or those of the original ops that were fused into it.

The graph of a run without fusion tells how the original ops hang together; `chains` finds it out where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any

import numpy as np

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.data.neighbourhood import TRANSPARENT_TYPES
from precision_tool.lib.data.origins import NoOrigin, Origins, originals
from precision_tool.lib.diagnose.error_shape import flat_doubles, norm, rounded_to, size_of
from precision_tool.lib.diagnose.op_values import PARAMETER_TYPES, Batch
from precision_tool.lib.model.graph import GraphFile, Op, TensorDesc
from precision_tool.lib.ops import op_table as table
from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Input,
    Kind,
    NotComputedError,
    OpSpec,
    Output,
    OutputSpec,
    Places,
    RowSums,
)
from precision_tool.lib.ops.op_arguments import HALF, distinct

#: Multiplications and additions that are made for one op at most.
_MAX_WORK = 4e10
#: Lent inputs are counted from here, behind those of any op.
LENT = 1 << 20
_PASSES_ON = (*TRANSPARENT_TYPES, "Identity", "ReadVariableOp")
#: Such ops in a row that a walk back passes through at most.
_MAX_STEPS = 64
_IMAGES = ("NHWC", "NCHW", "NDHWC", "NCDHW")
_FILTERS = ("HWCN", "DHWCN")


#: What `Formula.run` makes of the results of every stage, besides rounding them to a type: float32 with inputs of the
#: matrix unit in HF32, and an error of `IMPRECISION` of all that a kernel adds up or approximates.
HF32_INSIDE, IMPRECISE_INSIDE = "hf32", "imprecise"
#: The error by which a chain is tried; the size of an output is what it makes of it, over it.
IMPRECISION = 2.0**-12
#: Mean square of the error that rounding to HF32 makes of a product, over the square of its unit roundoff.
_HF32 = 2.0**-12

#: What running a formula raises that does not compute, or that the shapes contradict.
FORMULA_ERRORS = (NotComputedError, ValueError, IndexError, TypeError, KeyError)


@dataclass(frozen=True, slots=True)
class Ref:
    """Argument of a stage: an input of the op by its slot (`stage` None), or a result of an earlier stage."""

    slot: int
    stage: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One original op."""

    name: str
    op_type: str
    args: tuple[Ref | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    output_specs: tuple[OutputSpec, ...] = ()
    #: Rows that the op has in all, where it takes some of them; 0 for all.
    rows: int = 0
    #: Its formula, where that is no entry of the table.
    own_spec: OpSpec | None = field(default=None, repr=False)

    @property
    def spec(self) -> OpSpec | None:
        """The formula; None where there is none."""
        return self.own_spec or table.find(self.op_type)

    @property
    def is_by_element(self) -> bool:
        """Whether any part of its result can be computed from the same part of its inputs."""
        return self.own_spec is None and table.is_by_element(self.op_type)

    @property
    def input_slots(self) -> set[int]:
        """The slots of the op's inputs that it takes."""
        return {ref.slot for ref in self.args if ref is not None and ref.stage is None}


class _Remembered(Mapping[str, Any]):
    """Attributes, each of which a graph parses when it is asked for: here once for all parts of a batch."""

    __slots__ = ("_attrs", "_known")

    def __init__(self, attrs: Mapping[str, Any]) -> None:
        self._attrs = attrs
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._known:
            self._known[key] = self._attrs.get(key)
        if self._known[key] is None and key not in self._attrs:
            raise KeyError(key)
        return self._known[key]

    def __contains__(self, key: object) -> bool:
        return key in self._attrs

    def __iter__(self) -> Iterator[str]:
        return iter(self._attrs)

    def __len__(self) -> int:
        return len(self._attrs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The stages of an op and which of their results it puts out, by its output slot.

    `is_certain` tells that nothing was guessed, `is_refuted` that it is one of several, none of which gives what was
    put out.
    """

    stages: tuple[Stage, ...]
    outputs: Mapping[int, Ref]
    is_certain: bool = True
    is_refuted: bool = False
    #: Inputs beside the op's own by slot, and their names: parameters that were folded into others.
    lent: Mapping[int, Input] = field(default_factory=dict, repr=False)
    names_lent: tuple[str, ...] = ()
    #: Makes the same without the rounding of inputs that autocast makes, where it does.
    plain: Callable[[], Formula] | None = field(default=None, repr=False)

    def in_type(self, dtype: str) -> Formula:
        """Return the formula of a run that puts out another type: only half precision comes from autocast."""
        return self if self.plain is None or dtype in HALF else self.plain()

    @property
    def how(self) -> tuple[str, ...]:
        """Types of the stages."""
        return tuple(stage.op_type for stage in self.stages)

    @property
    def shape(self) -> tuple[object, ...]:
        """Structure that formulas of similarly fused ops share."""
        return tuple((stage.op_type, stage.args) for stage in self.stages)

    def is_same(self, other: Formula) -> bool:
        """Return whether another one computes the very same, however sure it is."""
        if self.lent or other.lent or self.shape != other.shape or self.outputs != other.outputs:
            return False
        return all(
            a.attrs is b.attrs and a.output_specs == b.output_specs and a.own_spec is b.own_spec
            for a, b in zip(self.stages, other.stages, strict=True)
        )

    @property
    def kind(self) -> Kind:
        """Rounding of its results."""
        kinds = {spec.kind for stage in self.stages if (spec := stage.spec) is not None}
        return next(iter(kinds)) if len(kinds) == 1 else Kind.COMPOSITE

    def work(self, inputs: Mapping[int, Input]) -> float:
        """Return the multiplications and additions of the stages that work on the op's inputs alone."""
        total = 0.0
        inputs = {**inputs, **self.lent}
        for stage in self.stages:
            spec = stage.spec
            if spec is not None and spec.work is not None and all(_is_input(ref, inputs) for ref in stage.args):
                total += spec.work(_call(spec, stage, arguments(stage, inputs)))
        return total

    def sample(
        self, inputs: Mapping[int, Input], count: int, also: Places | None = None
    ) -> tuple[Places, Output] | None:
        """Return output 0 of the only stage at about `count` flat places, and at those of `also`.

        None where it cannot be had without all of it.
        """
        (stage, *others) = self.stages
        spec = stage.spec
        if others or spec is None or spec.sampled is None or spec.cheap_places is None or len(self.outputs) > 1:
            return None
        call = _call(spec, stage, arguments(stage, inputs))
        places = spec.cheap_places(call, count)
        places = distinct(places if also is None else np.append(places, also))
        return places, spec.sampled(call, places)

    def row_sums(self, inputs: Mapping[int, Input]) -> RowSums | None:
        """Return the sums over the columns of output 0; None where they cost as much as the output."""
        (stage, *others) = self.stages
        spec = stage.spec
        if others or spec is None or spec.row_sums is None or len(self.outputs) > 1:
            return None
        return spec.row_sums(_call(spec, stage, arguments(stage, inputs)))

    def batch_of(self, inputs: Mapping[int, Input]) -> Batch | None:
        """Return the batch that every stage treats row by row; None if there is none."""
        first = self.stages[0]
        ref = first.args[0] if first.args else None
        if first.op_type not in _ROWS_FIRST or ref is None or ref.stage is not None or len(self.outputs) > 1:
            return None
        if self.lent or is_turned(first.attrs):
            return None
        rows, rank = inputs[ref.slot].array.shape[0], inputs[ref.slot].array.ndim
        slots = {ref.slot}
        if first.op_type in _STACKS and rank > 2:
            if any(other is not None and other.stage is not None for other in first.args[1:]):
                return None
            slots = first.input_slots
            if any(inputs[slot].array.shape[:1] != (rows,) for slot in slots):
                return None
        for stage in self.stages[1:]:
            if stage.op_type == "BiasAdd":
                continue
            if not stage.is_by_element:
                return None
            used = {slot: inputs[slot].array for slot in stage.input_slots}
            slots |= {slot for slot, array in used.items() if array.ndim == rank and array.shape[0] == rows}
        return Batch(rows, frozenset(slots))

    def by_channel(self, inputs: Mapping[int, Input]) -> Batch | None:
        """Return the batch of an op that is told some numbers of each channel beside it; None for any other.

        Of its outputs those have the rows that have the shape of its first input.
        """
        (stage, *others) = self.stages
        ref = stage.args[0] if stage.args else None
        if others or self.lent or stage.op_type not in _BY_CHANNEL or ref is None or ref.slot not in inputs:
            return None
        shape = inputs[ref.slot].array.shape
        if len(shape) < 2:
            return None
        return Batch(shape[0], frozenset(slot for slot, tensor in inputs.items() if tensor.array.shape == shape))

    def unshaped(self, rows: int = 0) -> Formula:
        """Return the same without the shapes that the graph says of its results, for a part of a batch of `rows`."""
        stages = []
        for stage in self.stages:
            open_shapes = tuple(replace(request, shape=None) for request in stage.output_specs)
            rows_in_all = stage.rows or rows
            attrs = stage.attrs if isinstance(stage.attrs, _Remembered) else _Remembered(stage.attrs)
            stages.append(
                replace(stage, output_specs=open_shapes, attrs=attrs, rows=rows_in_all)
            )  # fmt: skip
        make = self.plain
        plain = None if make is None else lambda: make().unshaped(rows)
        return replace(self, stages=tuple(stages), plain=plain)

    def run(self, inputs: Mapping[int, Input], stored: str = "", *, only_values: bool = False) -> dict[int, Output]:
        """Return the results by output slot. With `stored` every stage's result is rounded to that type.

        `stored` may be `HF32_INSIDE` or `IMPRECISE_INSIDE` too. With `only_values` results need not tell their
        rounding, which is as much work as sums of products. NotComputedError says why there are none.
        """
        done: list[Sequence[Output | None]] = []
        inputs = {**inputs, **self.lent}
        put_out = {ref.stage or 0 for ref in self.outputs.values()}
        for number, stage in enumerate(self.stages):
            args = arguments(stage, inputs, done)
            is_bare = only_values or (number not in put_out and stored not in _PERTURBED)
            done.append(run_stage(stage, args, stored, only_values=is_bare))
        results = {}
        for slot, ref in self.outputs.items():
            made = done[ref.stage or 0]
            output = made[ref.slot] if ref.slot < len(made) else None
            if output is not None:
                results[slot] = output
        if not results:
            raise NotComputedError("outputs_without_formula", value=", ".join(self.how))
        return results


def arguments(
    stage: Stage, inputs: Mapping[int, Input], done: Sequence[Sequence[Output | None]] = ()
) -> tuple[Input | None, ...]:
    """Return what a stage takes, of the op's inputs and of the results of the stages before it."""
    return tuple(None if ref is None else _argument(ref, stage, inputs, done) for ref in stage.args)


def _argument(ref: Ref, stage: Stage, inputs: Mapping[int, Input], done: Sequence[Sequence[Output | None]]) -> Input:
    if ref.stage is None:
        if ref.slot not in inputs:
            raise NotComputedError("fed_unknown", name=stage.name, slot=ref.slot)
        return inputs[ref.slot]
    made = done[ref.stage]
    output = made[ref.slot] if ref.slot < len(made) else None
    if output is None:
        raise NotComputedError("fed_without_formula", op_type=stage.op_type)
    return Input(array=output.array, dtype="float32", layout="ND")


_STACKS = frozenset({"BatchMatMul", "BatchMatMulV2"})
#: Ops whose first input alone has the rows that they work on one by one.
ROWS_FIRST = frozenset({"Conv2D", "DepthwiseConv2D", "Conv3D", "MatMul", "MatMulV2"})
#: With stacks of matrices, of which the second input has them too.
_ROWS_FIRST = ROWS_FIRST | _STACKS
#: Parts of batch norms that are given the sums over the batch, so that each image can be computed alone.
_BY_CHANNEL = frozenset({
    "BNTrainingUpdate", "BNTrainingUpdateV2", "BNTrainingUpdateV3", "BN3DTrainingUpdate", "BNTrainingReduceGrad",
    "BN3DTrainingReduceGrad", "BNInfer", "BNInferGrad",
})  # fmt: skip
_TURNED = ("transpose_x1", "transpose_a", "adj_x1", "adj_x")


def is_turned(attrs: Mapping[str, Any]) -> bool:
    """Return whether a matrix product takes the rows of its first input as columns."""
    return any(bool(attrs.get(name)) for name in _TURNED)


def _is_input(ref: Ref | None, inputs: Mapping[int, Input]) -> bool:
    return ref is None or (ref.stage is None and ref.slot in inputs)


def _call(spec: OpSpec, stage: Stage, args: tuple[Input | None, ...]) -> Call:
    return Call(
        op_type=stage.op_type, inputs=_with_axes(spec, stage, args), attrs=stage.attrs, outputs=stage.output_specs,
        rows=stage.rows,
    )  # fmt: skip


def run_stage(
    stage: Stage, args: tuple[Input | None, ...], stored: str = "", *, only_values: bool = False
) -> Sequence[Output | None]:
    """Return the results of one original op from its inputs; with `only_values` they need not tell their rounding."""
    spec = stage.spec
    if spec is None:
        raise NotComputedError("no_formula", op_type=stage.op_type)
    call = replace(_call(spec, stage, args), only_values=only_values)
    if spec.work is not None:
        work = spec.work(call)
        if work > _MAX_WORK:
            raise NotComputedError("too_many_products", number=work)
    with np.errstate(all="ignore"):
        made = spec.function(call)
        if not stored:
            return made
        return [None if output is None else _stored(output, stored) for output in made]


_PERTURBED = (HF32_INSIDE, IMPRECISE_INSIDE)


def _stored(output: Output, dtype: str) -> Output:
    if output.array.dtype.kind != "f":
        return output
    if dtype not in _PERTURBED:
        return replace(output, array=rounded_to(output.array, dtype))
    # Errors of elements are independent of each other, and the same in every run.
    signs = np.random.default_rng(0).integers(0, 2, output.array.shape) * 2.0 - 1.0
    if dtype == HF32_INSIDE:
        return replace(output, array=rounded_to(output.array + _HF32 * signs * output.terms, "float32"))
    return replace(output, array=output.array + IMPRECISION * signs * size_of(output).reshape(output.array.shape))


def _with_axes(spec: OpSpec, stage: Stage, args: tuple[Input | None, ...]) -> tuple[Input | None, ...]:
    """Return the inputs with the names of their axes: some graphs call those of images by the names of a filter's."""
    named = str(stage.attrs.get("data_format") or "")
    result: list[Input | None] = []
    for number, arg in enumerate(args):
        name = spec.inputs[min(number, len(spec.inputs) - 1)] if spec.inputs else ""
        layout = arg.layout if arg is not None else "ND"
        if arg is not None and len(named) == arg.array.ndim and named in _IMAGES:
            if "filter" in name:
                layout = ("HWCN" if arg.array.ndim == 4 else "DHWCN") if layout in ("ND", "NHWC", "NDHWC") else layout
            elif layout in ("ND", *_FILTERS):
                layout = named
        result.append(arg if arg is None or layout == arg.layout else replace(arg, layout=layout))
    return tuple(result)


def output_specs_of(descs: Sequence[TensorDesc]) -> tuple[OutputSpec, ...]:
    """Return what a graph says of outputs."""
    return tuple(
        OutputSpec(shape=desc.origin_shape, dtype=desc.dtype or "float32", layout=desc.origin_layout or "ND")
        for desc in descs
    )


# --- single ops -------------------------------------------------------------------------------------------------------


def direct(op: Op, slots: Mapping[int, int]) -> Formula:
    """Return the formula of the op's own type. `slots` are its dump's input slots by those of the graph."""
    last = max(slots, default=-1)
    args = tuple(Ref(slots[number]) if number in slots else None for number in range(last + 1))
    count = max(len(op.output_descs), 1)
    stage = Stage(
        name=op.name, op_type=op.type, args=args, attrs=_Remembered(_attributes(op)),
        output_specs=output_specs_of(op.output_descs),
    )  # fmt: skip
    return Formula(stages=(stage,), outputs={slot: Ref(slot, 0) for slot in range(count)})


def _attributes(op: Op) -> Mapping[str, Any]:
    """Return the op's attributes, with those that some graphs lack and the shapes of its inputs and output tell."""
    shape = op.output_descs[0].origin_shape if op.output_descs else None
    if shape is None:
        return op.attrs
    more: dict[str, Any] = {}
    if "BackpropFilter" in op.type or "BackpropInput" in op.type:
        name = "filter_size" if "BackpropFilter" in op.type else "input_size"
        if sum(edge is not None for edge in op.inputs) == 2 and not {name, f"{name}s"} & set(op.attrs):
            more[name] = list(shape)
    elif op.type.startswith("Reduce") and op.type.endswith("D") and not {"axes", "axis"} & set(op.attrs):
        before = op.input_descs[0].origin_shape if op.input_descs else None
        if before is not None and prod(shape) == 1:
            more = {"axes": list(range(len(before))), "keep_dims": len(shape) == len(before) > 0}
    return {**op.attrs, **more} if more else op.attrs


def is_fused(op: Op) -> bool:
    """Return whether an op does the work of several."""
    return len(originals(op)) > 1


# --- fused ops, by a graph without fusion -----------------------------------------------------------------------------


class UnfusedGraph:
    """The original ops of a graph without fusion by flattened name, and the tensors of the script that feed them."""

    def __init__(self, file: GraphFile) -> None:
        self._origins = file.once(Origins)
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
        """Return the tensors of the script that feed an op, by its slots."""
        return [None if edge is None else script_tensor(self._origins, self._origins.producer(op, edge), edge.index)
                for edge in op.inputs]  # fmt: skip

    def is_parameter(self, op: Op, slot: int) -> bool:
        """Return whether what feeds a slot is what a network has learned, or what it was built with."""
        edge = op.inputs[slot]
        producer = None if edge is None else self._origins.producer(op, edge)
        for _ in range(_MAX_STEPS):
            if producer is None or producer.type not in _PASSES_ON or not producer.inputs or not producer.inputs[0]:
                break
            producer = self._origins.producer(producer, producer.inputs[0])
        return producer is not None and producer.type in PARAMETER_TYPES

    def formula(
        self,
        op: Op,
        inputs: Mapping[tuple[str, int], int],
        puts_out: Mapping[int, tuple[str, int]],
        lend: Callable[[tuple[str, int], TensorDesc | None], Input | None] | None = None,
    ) -> Formula | None:
        """Return the chain of a fused op.

        `inputs` are its input slots, `puts_out` its outputs, by the script's tensors.

        `lend` gives a parameter that the op is not fed.
        """
        names = sorted({flatten(name) for name in originals(op)} & set(self.ops), key=lambda name: self.order[name])
        if len(names) != len(set(map(flatten, originals(op)))):
            return None
        made: dict[tuple[str, int], Ref] = {}
        lent: dict[int, Input] = {}
        lent_as: dict[tuple[str, int], int] = {}
        stages = []
        for number, name in enumerate(names):
            original = self.ops[name]
            args: list[Ref | None] = []
            for slot, key in enumerate(self.inputs(original)):
                if key is not None and key in made:
                    args.append(made[key])
                elif key is not None and key in inputs:
                    args.append(Ref(inputs[key]))
                elif key is None:
                    args.append(None)
                else:
                    if key not in lent_as:
                        loan = lend(key, _desc(original, slot)) if lend and self.is_parameter(original, slot) else None
                        if loan is None:
                            return None
                        lent_as[key] = LENT + len(lent)
                        lent[lent_as[key]] = loan
                    args.append(Ref(lent_as[key]))
            stages.append(
                Stage(
                    name=original.name, op_type=original.type, args=tuple(args), attrs=original.attrs,
                    output_specs=output_specs_of(original.output_descs),
                )
            )  # fmt: skip
            for slot in range(max(len(original.output_descs), 1)):
                made[name, slot] = Ref(slot, number)
        outputs = {slot: made[key] for slot, key in puts_out.items() if key in made}
        names_lent = tuple(f"{name}:{index}" for name, index in lent_as)
        return Formula(stages=tuple(stages), outputs=outputs, lent=lent, names_lent=names_lent) if outputs else None


def _desc(op: Op, slot: int) -> TensorDesc | None:
    return op.input_descs[slot] if slot < len(op.input_descs) else None


def script_tensor(origins: Origins, op: Op | None, index: int) -> tuple[str, int] | None:
    """Return the tensor of the script that an output stands for."""
    origin = None if op is None else origins.of(op, index, NoBenchmark())
    return None if origin is None or isinstance(origin, NoOrigin) else (flatten(origin.op_name), origin.index)


def noise_of(
    formula: Formula, inputs: Mapping[int, Input], true: Mapping[int, Output], inside: str = "float32"
) -> dict[int, Doubles]:
    """Return what a type inside makes of each output of a chain, flat; of a single op nothing."""
    return noise_between(true, formula.run(inputs, inside)) if len(formula.stages) > 1 else {}


def noise_between(true: Mapping[int, Output], stored: Mapping[int, Output]) -> dict[int, Doubles]:
    """Return what a type inside makes of each output of a chain, flat: how far one way to round every stage takes it.

    `true` are the results in float64, `stored` those with every stage's result rounded to the type.
    """
    noise = {}
    for slot, output in stored.items():
        with np.errstate(all="ignore"):
            off = flat_doubles(output.array) - flat_doubles(true[slot].array)
        np.abs(off, out=off)
        if not np.isfinite(off).all():
            off = np.where(np.isfinite(off), off, 0.0)
        noise[slot] = np.maximum(off, norm(off) / sqrt(off.size), out=off) if off.size else off
    return noise
