"""What an op of a compiled graph has to put out: one formula, or those of the original ops that were fused into it.

The graph of a run without fusion tells how the original ops hang together. Where there is none, their names tell what
they are, as TensorFlow makes names, and the order of the fused op's inputs tells what feeds them: compilers append an
op's outside inputs as they take the op in. What that leaves open is tried, and must fit the benchmark or the dump.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

import numpy as np

from precision_tool.lib.model.graph import GraphFile, Op, TensorDesc
from precision_tool.lib.ops import table
from precision_tool.lib.ops.base import Call, Doubles, Input, Kind, NotComputedError, OpSpec, Output, Wanted
from precision_tool.lib.pairing.match import NoOrigin, Origins, groups_of, originals
from precision_tool.lib.sources.dumps import NoBenchmark
from precision_tool.lib.sources.names import flatten
from precision_tool.lib.verdict.rounding import rounded_to

#: Ways to wire a fused op that are tried at most.
_MOST_WIRINGS = 96
#: Multiplications and additions that are made for one op at most.
_MAX_WORK = 4e10
_IMAGES = ("NHWC", "NCHW", "NDHWC", "NCDHW")
_FILTERS = ("HWCN", "DHWCN")


@dataclass(frozen=True, slots=True)
class Ref:
    """What a stage is fed: an input of the op by its slot (`stage` None), or a result of an earlier stage."""

    slot: int
    stage: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One original op."""

    name: str
    op_type: str
    args: tuple[Ref | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    wanted: tuple[Wanted, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The stages of an op and which of their results it puts out, by its output slot.

    `is_certain` tells that nothing was guessed.
    """

    stages: tuple[Stage, ...]
    outputs: Mapping[int, Ref]
    is_certain: bool = True

    @property
    def how(self) -> tuple[str, ...]:
        """Types of the stages."""
        return tuple(stage.op_type for stage in self.stages)

    @property
    def shape(self) -> tuple[object, ...]:
        """What formulas of ops that are fused alike share."""
        return tuple((stage.op_type, stage.args) for stage in self.stages)

    @property
    def kind(self) -> Kind:
        """How its results are rounded."""
        kinds = {spec.kind for stage in self.stages if (spec := table.find(stage.op_type)) is not None}
        return next(iter(kinds)) if len(kinds) == 1 else Kind.COMPOSITE

    def run(self, inputs: Mapping[int, Input], stored: str = "") -> dict[int, Output]:
        """Results by output slot. With `stored` every stage's result is rounded to that type.

        NotComputedError says why there are none.
        """
        done: list[Sequence[Output | None]] = []
        for stage in self.stages:
            args = tuple(_value(ref, inputs, done, stage) for ref in stage.args)
            done.append(_run_stage(stage, args, stored))
        results = {}
        for slot, ref in self.outputs.items():
            made = done[ref.stage or 0]
            found = made[ref.slot] if ref.slot < len(made) else None
            if found is not None:
                results[slot] = found
        if not results:
            raise NotComputedError(f"no output of it has a formula ({', '.join(self.how)})")
        return results


def _value(
    ref: Ref | None, inputs: Mapping[int, Input], done: list[Sequence[Output | None]], stage: Stage
) -> Input | None:
    if ref is None:
        return None
    if ref.stage is None:
        if ref.slot not in inputs:
            raise NotComputedError(f"input {ref.slot} of {stage.name} is not known")
        return inputs[ref.slot]
    made = done[ref.stage]
    output = made[ref.slot] if ref.slot < len(made) else None
    if output is None:
        raise NotComputedError(f"{stage.name} is fed a result that has no formula")
    return Input(array=output.array, dtype="float32", layout="ND")


def _run_stage(stage: Stage, args: tuple[Input | None, ...], stored: str) -> Sequence[Output | None]:
    spec = table.find(stage.op_type)
    if spec is None:
        raise NotComputedError(f"there is no formula for {stage.op_type}")
    call = Call(op_type=stage.op_type, inputs=_with_axes(spec, stage, args), attrs=stage.attrs, outputs=stage.wanted)
    if spec.work is not None:
        work = spec.work(call)
        if work > _MAX_WORK:
            raise NotComputedError(f"too large to recompute: {work:.2g} products")
    with np.errstate(all="ignore"):
        made = spec.function(call)
        if not stored:
            return made
        return [None if one is None else _stored(one, stored) for one in made]


def _stored(output: Output, dtype: str) -> Output:
    if output.array.dtype.kind != "f":
        return output
    return replace(output, array=rounded_to(output.array, dtype))


def _with_axes(spec: OpSpec, stage: Stage, args: tuple[Input | None, ...]) -> tuple[Input | None, ...]:
    """The inputs with the names of their axes: some graphs call those of images by the names of a filter's."""
    named = str(stage.attrs.get("data_format") or "")
    result: list[Input | None] = []
    for number, one in enumerate(args):
        name = spec.inputs[min(number, len(spec.inputs) - 1)] if spec.inputs else ""
        layout = one.layout if one is not None else "ND"
        if one is not None and len(named) == one.array.ndim and named in _IMAGES:
            if "filter" in name:
                layout = ("HWCN" if one.array.ndim == 4 else "DHWCN") if layout in ("ND", "NHWC", "NDHWC") else layout
            elif layout in ("ND", *_FILTERS):
                layout = named
        result.append(one if one is None or layout == one.layout else replace(one, layout=layout))
    return tuple(result)


def wanted_of(descs: Sequence[TensorDesc]) -> tuple[Wanted, ...]:
    """What a graph says of outputs."""
    return tuple(
        Wanted(shape=desc.origin_shape, dtype=desc.dtype or "float32", layout=desc.origin_layout or "ND")
        for desc in descs
    )


# --- single ops -------------------------------------------------------------------------------------------------------


def direct(op: Op, slots: Mapping[int, int]) -> Formula:
    """The formula of the op's own type. `slots` are its dump's input slots by those of the graph."""
    last = max(slots, default=-1)
    args = tuple(Ref(slots[number]) if number in slots else None for number in range(last + 1))
    count = max(len(op.output_descs), 1)
    stage = Stage(name=op.name, op_type=op.type, args=args, attrs=op.attrs, wanted=wanted_of(op.output_descs))
    return Formula(stages=(stage,), outputs={slot: Ref(slot, 0) for slot in range(count)})


def is_fused(op: Op) -> bool:
    """Whether an op does the work of several."""
    return len(originals(op)) > 1


# --- fused ops, by a graph without fusion -----------------------------------------------------------------------------


class UnfusedGraph:
    """The original ops of a graph without fusion by flattened name, and the tensors of the script that feed them."""

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
        """The tensors of the script that feed an op, by its slots."""
        return [None if edge is None else script_tensor(self._origins, self._origins.producer(op, edge), edge.index)
                for edge in op.inputs]  # fmt: skip

    def formula(
        self, op: Op, fed: Mapping[tuple[str, int], int], puts_out: Mapping[int, tuple[str, int]]
    ) -> Formula | None:
        """The chain of a fused op. `fed` are its input slots, `puts_out` its outputs, by the script's tensors."""
        names = sorted({flatten(name) for name in originals(op)} & set(self.ops), key=lambda name: self.order[name])
        if len(names) != len(set(map(flatten, originals(op)))):
            return None
        made: dict[tuple[str, int], Ref] = {}
        stages = []
        for number, name in enumerate(names):
            original = self.ops[name]
            args: list[Ref | None] = []
            for key in self.inputs(original):
                if key is not None and key in made:
                    args.append(made[key])
                elif key is not None and key in fed:
                    args.append(Ref(fed[key]))
                elif key is None:
                    args.append(None)
                else:
                    return None
            stages.append(
                Stage(
                    name=original.name, op_type=original.type, args=tuple(args), attrs=original.attrs,
                    wanted=wanted_of(original.output_descs),
                )
            )  # fmt: skip
            for slot in range(max(len(original.output_descs), 1)):
                made[name, slot] = Ref(slot, number)
        outputs = {slot: made[key] for slot, key in puts_out.items() if key in made}
        return Formula(stages=tuple(stages), outputs=outputs) if outputs else None


def script_tensor(origins: Origins, op: Op | None, index: int) -> tuple[str, int] | None:
    """The tensor of the script that an output stands for."""
    origin = None if op is None else origins.of(op, index, NoBenchmark())
    return None if origin is None or isinstance(origin, NoOrigin) else (flatten(origin.op_name), origin.index)


# --- fused ops, by names ----------------------------------------------------------------------------------------------

#: The names that TensorFlow gives to Python's operators, and types that GE has under another name.
_SPELLED = {
    "add": "Add", "addv2": "Add", "mul": "Mul", "sub": "Sub", "truediv": "RealDiv", "div": "RealDiv", "neg": "Neg",
    "pow": "Pow", "mean": "ReduceMeanD", "sum": "ReduceSumD", "max": "ReduceMaxD", "min": "ReduceMinD",
    "sqdiff": "SquaredDifference", "squareddifference": "SquaredDifference", "softmax": "SoftmaxV2", "sqrt": "Sqrt",
    "rsqrt": "Rsqrt", "square": "Square", "matmul": "MatMulV2",
}  # fmt: skip
#: Inputs that ops of a chain take, those of other types are two.
_TAKES = {
    **dict.fromkeys(
        ("Relu", "Relu6", "Sigmoid", "Tanh", "Elu", "Selu", "LeakyRelu", "Softplus", "Softsign", "Sqrt", "Rsqrt", "Exp",
         "Log", "Log1p", "Square", "Neg", "Abs", "Reciprocal", "Inv", "Sign", "Cast", "Identity", "SoftmaxV2", "Gelu",
         "ReduceMeanD", "ReduceSumD", "ReduceMaxD", "ReduceMinD", "Swish", "Floor", "Erf", "L2Loss", "Softmax"),
        (1,),
    ),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "BatchNorm"), (3, 5)),
    **dict.fromkeys(("Select", "FusedMulAdd"), (3,)),
    **dict.fromkeys(("AddN", "ConcatV2", "ConcatV2D"), (2, 3, 4)),
}  # fmt: skip
#: What is tried for an op whose name does not tell what it is.
_TRIED = {
    1: ("Relu", "Relu6", "Tanh", "Sigmoid", "Elu", "Square", "Sqrt", "Rsqrt", "Neg", "Exp", "Softplus", "LeakyRelu"),
    2: ("Add", "Mul", "Sub", "SquaredDifference", "RealDiv", "Maximum", "Minimum"),
}
_MATRIX_UNIT = ("Conv2D", "MatMul", "MatMulV2", "BatchMatMul", "BatchMatMulV2", "DepthwiseConv2D", "Conv3D")


def kind_in(name: str) -> str | None:
    """The type that the name of an op of the script ends with: `conv1/Relu_1` is a Relu."""
    word = re.sub(r"_\d+$", "", re.split(r"[/.]", name)[-1])
    known = _SPELLED.get(word.lower())
    if known is not None:
        return known
    if table.find(word) is not None:
        return word
    return next((one for one in table.all_types() if one.lower() == word.lower()), None)


class Kinds:
    """The types of the script's ops as names tell them: their own, or those of the ops of their gradients."""

    def __init__(self, file: GraphFile) -> None:
        self._by_gradient: dict[str, str] = {}
        for op in file.ops:
            for name in originals(op):
                match = re.match(r"(?:.*/)?gradients(?:_\d+)?/(.+)_grad/([A-Za-z0-9]+)Grad(?:_\d+)?$", name)
                if match and table.find(match[2]) is not None:
                    self._by_gradient[match[1]] = match[2]

    def of(self, name: str) -> str | None:
        return self._by_gradient.get(name) or kind_in(name)


Fits = Callable[[Formula], bool]


def by_names(op: Op, kinds: Kinds, count: int, puts_out: Mapping[int, tuple[str, int]]) -> Iterator[Formula]:
    """Formulas of a fused op with `count` inputs by the names of its original ops, the likeliest first."""
    names = originals(op)
    types: list[tuple[str, ...]] = []
    guessed = False
    for name in names:
        known = kinds.of(name)
        if known is not None:
            types.append((known,))
        elif op.type in _MATRIX_UNIT and (op.type,) not in types and not any(one[0] in _MATRIX_UNIT for one in types):
            types.append((op.type,))
        else:
            types.append((*_TRIED[1], *_TRIED[2]))
            guessed = True
    # The op's own type stands for the one among its originals that names of no type spell.
    if op.type in _MATRIX_UNIT:
        types = [
            (op.type,) if any(t in _MATRIX_UNIT or op.type.startswith(t) for t in one) and len(one) == 1 else one
            for one in types
        ]
    flat = [flatten(name) for name in names]
    shown = {flat.index(key[0]) for key in puts_out.values() if key[0] in flat}
    found = 0
    ways = [
        (chosen, wiring)
        for chosen in islice(product(*types), _MOST_WIRINGS)
        for wiring in islice(_wirings(chosen, count, shown), _MOST_WIRINGS)
    ]
    for chosen, wiring in ways:
        stages = tuple(
            Stage(name=name, op_type=kind, args=args, attrs=op.attrs)
            for name, kind, args in zip(names, chosen, wiring, strict=True)
        )
        outputs = {slot: Ref(key[1], flat.index(key[0])) for slot, key in puts_out.items() if key[0] in flat}
        if not outputs and len(op.output_descs) <= 1:
            outputs = {0: Ref(0, len(stages) - 1)}
        yield Formula(stages=stages, outputs=outputs, is_certain=len(ways) == 1 and not guessed)
        found += 1
        if found >= _MOST_WIRINGS:
            return


def _wirings(types: Sequence[str], count: int, shown: set[int]) -> Iterator[tuple[tuple[Ref, ...], ...]]:
    """Ways to feed the stages with the op's inputs, in their order, and with each other's results.

    Every input is taken once, and every result that is not put out is used.
    """

    def extend(
        done: tuple[tuple[Ref, ...], ...], taken: int, unused: frozenset[int]
    ) -> Iterator[tuple[tuple[Ref, ...], ...]]:
        number = len(done)
        if number == len(types):
            if taken == count and unused <= shown | {number - 1}:
                yield done
            return
        for arity in _TAKES.get(types[number], (2,)):
            for args, now in _args(number, arity, taken, count, unused):
                used = {ref.stage for ref in args if ref.stage is not None}
                if number and not used and types[number] not in _MATRIX_UNIT and len(types) == 2:
                    continue
                yield from extend((*done, args), now, (unused - used) | {number})

    yield from extend((), 0, frozenset())


def _args(
    number: int, arity: int, taken: int, count: int, unused: frozenset[int]
) -> Iterator[tuple[tuple[Ref, ...], int]]:
    """What one stage may be fed, with the number of inputs that are taken then; results not used yet come first."""
    results = sorted(range(number), key=lambda stage: (stage not in unused, -stage))
    choices = [*(Ref(0, stage) for stage in results), None]
    for chosen in product(choices, repeat=arity):
        args: list[Ref] = []
        now = taken
        for one in chosen:
            if one is None:
                args.append(Ref(now))
                now += 1
            else:
                args.append(one)
        if now <= count:
            yield tuple(args), now


def noise_of(formula: Formula, inputs: Mapping[int, Input], true: Mapping[int, Output]) -> dict[int, Doubles]:
    """What float32 inside makes of each output of a chain, flat: how far one way to round every stage takes it."""
    if len(formula.stages) < 2:
        return {}
    stored = formula.run(inputs, "float32")
    noise = {}
    for slot, one in stored.items():
        with np.errstate(all="ignore"):
            off = np.abs(np.asarray(one.array, np.float64) - np.asarray(true[slot].array, np.float64)).reshape(-1)
        off = np.where(np.isfinite(off), off, 0.0)
        noise[slot] = np.maximum(off, float(np.sqrt(np.mean(off**2))) if off.size else 0.0)
    return noise
