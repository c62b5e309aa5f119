"""Candidate formulas of an op: how the original ops of a fused op are connected where no graph without fusion shows it.

Their names tell what they are, as TensorFlow makes names, or the names of their gradients do. Compilers append an op's
outside inputs as they take it in, so the order of the fused op's inputs says what feeds them. What that leaves open is
tried: every stage must give what the benchmark has of it, or what the fused op puts out of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice, product
from math import isfinite

import numpy as np
import numpy.typing as npt

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.origins import originals, originals_of
from precision_tool.lib.diagnose.error_shape import flat_doubles, norm
from precision_tool.lib.diagnose.formulas import (
    FORMULA_ERRORS,
    ROWS_FIRST,
    Formula,
    Ref,
    Stage,
    UnfusedGraph,
    arguments,
    direct,
    is_fused,
    is_turned,
    run_stage,
    script_tensor,
)
from precision_tool.lib.diagnose.op_values import Batch, NoValueError, OpInputs, Root, Rows, RunValues, Slot, spread
from precision_tool.lib.diagnose.recorded_formulas import recorded_formulas
from precision_tool.lib.diagnose.verdict_model import OpResult, SlotResult
from precision_tool.lib.model.graph import GraphFile, Op, TensorDesc
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops import op_table as table
from precision_tool.lib.ops.base import Doubles, Input, Output

#: Stages that are computed at most to find one chain.
_MAX_CHAINS_TRIED = 600
#: Ways to feed one stage that are looked at.
_MAX_ARGUMENTS_TRIED = 4096
#: How near a stage must come to the benchmark's tensor, which was computed in float32 and another order.
_NEAR = 2e-4
#: How near to what was put out in a type of fewer digits.
_NEAR_STORED = {"float16": 2.0**-9, "bfloat16": 2.0**-6}

#: The names that TensorFlow gives to Python's operators, and types that GE has under another name.
_SPELLED = {
    "add": "Add", "addv2": "Add", "mul": "Mul", "sub": "Sub", "truediv": "RealDiv", "div": "RealDiv", "neg": "Neg",
    "pow": "Pow", "mean": "ReduceMeanD", "sum": "ReduceSumD", "max": "ReduceMaxD", "min": "ReduceMinD",
    "sqdiff": "SquaredDifference", "squareddifference": "SquaredDifference", "softmax": "SoftmaxV2", "sqrt": "Sqrt",
    "rsqrt": "Rsqrt", "square": "Square", "matmul": "MatMulV2",
}  # fmt: skip
#: How many inputs ops of a chain take; those of other types take two.
_TAKES = {
    **dict.fromkeys(
        ("Relu", "Relu6", "Sigmoid", "Tanh", "Elu", "Selu", "LeakyRelu", "Softplus", "Softsign", "Sqrt", "Rsqrt", "Exp",
         "Log", "Log1p", "Square", "Neg", "Abs", "Reciprocal", "Inv", "Sign", "Cast", "Identity", "SoftmaxV2", "Gelu",
         "ReduceMeanD", "ReduceSumD", "ReduceMaxD", "ReduceMinD", "Swish", "Floor", "Erf", "L2Loss", "Softmax"),
        (1,),
    ),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "BatchNorm"), (3, 5)),
    **dict.fromkeys(("Select", "FusedMulAdd", "SelectV2"), (3,)),
}  # fmt: skip
#: Ops that take any number of inputs, from two on.
_VARIADIC = frozenset({"AddN", "ConcatV2", "ConcatV2D"})
#: What is tried for an op whose name does not tell what it is.
_TRIED = (
    "Relu", "Relu6", "Tanh", "Sigmoid", "Elu", "Square", "Sqrt", "Rsqrt", "Neg", "Exp", "Softplus", "LeakyRelu",
    "Reciprocal", "Add", "Mul", "Sub", "SquaredDifference", "RealDiv", "Maximum", "Minimum",
)  # fmt: skip
_MATRIX_UNIT = frozenset({
    "Conv2D", "MatMul", "MatMulV2", "BatchMatMul", "BatchMatMulV2", "DepthwiseConv2D", "Conv3D", "Conv2DBackpropInput",
    "Conv2DBackpropFilter", "Conv2DBackpropInputD", "Conv2DBackpropFilterD",
})  # fmt: skip


def kind_in(name: str) -> str | None:
    """Return the type that the name of an op of the script ends with: `conv1/Relu_1` is a Relu."""
    word = re.sub(r"_\d+$", "", re.split(r"[/.]", name)[-1])
    spelled = _SPELLED.get(word.lower())
    if spelled is not None:
        return spelled
    return word if table.find(word) is not None else table.spelled(word)


class Kinds:
    """The types of the script's ops as names tell them: their own, or those of the ops of their gradients."""

    def __init__(self, file: GraphFile) -> None:
        self._by_gradient: dict[str, str] = {}
        for names in file.once(originals_of):
            for name in names if any("gradients" in name for name in names) else ():
                match = re.match(r"(?:.*/)?gradients(?:_\d+)?/(.+)_grad/([A-Za-z0-9]+)Grad(?:_\d+)?$", name)
                if match and table.find(match[2]) is not None:
                    self._by_gradient[match[1]] = match[2]

    def of(self, name: str) -> str | None:
        return self._by_gradient.get(name) or kind_in(name)

    def stages(self, op: Op) -> list[tuple[str, ...]]:
        """Return the types that each original op may be of; several where its name does not tell."""
        names = originals(op)
        kinds = [self.of(name) for name in names]
        if op.type in _MATRIX_UNIT and op.type not in kinds:
            # The op's own type stands for the original that spells it otherwise, or does not tell it at all.
            alike = [at for at, kind in enumerate(kinds) if kind in _MATRIX_UNIT and kind is not None]
            unknown = [at for at, kind in enumerate(kinds) if kind is None]
            for at in (alike or unknown)[:1]:
                kinds[at] = op.type
        stages: list[tuple[str, ...]] = [(kind,) if kind is not None else _TRIED for kind in kinds]
        if kinds and kinds[0] is None and op.type not in kinds and table.find(op.type) is not None:
            stages[0] = (op.type, *(kind for kind in _TRIED if kind != op.type))  # many are named after their first op
        return stages


@dataclass(frozen=True, kw_only=True)
class ChainReference:
    """Tensors that a chain has to reproduce, of the script by flattened name and output.

    `inputs` are the op's by slot, as the benchmark has them (None where it does not have all).
    """

    inputs: Mapping[int, Input]
    golden_inputs: Mapping[int, Input] | None
    golden: Callable[[str, int], npt.NDArray[np.float64] | None]
    put_out: Mapping[tuple[str, int], Input]


def batch_of_chain(op: Op, kinds: Kinds, inputs: Mapping[int, Input], got: Mapping[int, Input]) -> Batch | None:
    """Return the rows that every stage may treat one by one; None where there are none.

    What is found on some rows has to be held against all.
    """
    first, *others = kinds.stages(op)
    shapes = {tensor.array.shape for tensor in got.values()}
    if len(shapes) != 1 or not inputs or is_turned(op.attrs):
        return None
    (shape,) = shapes
    by_element = all(map(table.is_by_element, first))
    if not shape or not (by_element or ROWS_FIRST.issuperset(first)):
        return None
    if any(tensor != "BiasAdd" and not table.is_by_element(tensor) for types in others for tensor in types):
        return None
    slots = sorted(inputs)
    alone = [] if by_element else slots[1:2]
    cut = frozenset(
        slot for slot in slots
        if slot not in alone and inputs[slot].array.ndim == len(shape) and inputs[slot].array.shape[0] == shape[0]
    )  # fmt: skip
    return Batch(shape[0], cut) if slots[0] in cut else None


class ChainSearch:
    """Finds the chain of one fused op. `puts_out` names the tensors of the script that its outputs are."""

    def __init__(
        self, op: Op, kinds: Kinds, reference: ChainReference, puts_out: Mapping[int, tuple[str, int]]
    ) -> None:
        self._op = op
        self._names = originals(op)
        self._flat = [flatten(name) for name in self._names]
        self._types = kinds.stages(op)
        self._reference = reference
        self._slots = sorted(reference.inputs)
        self._puts_out = puts_out
        self._shown = {self._flat.index(key[0]) for key in puts_out.values() if key[0] in self._flat}
        self._left = _MAX_CHAINS_TRIED

    def formulas(self) -> Iterator[Formula]:
        """Yield the chains that fit: first the benchmark, then the dumped output; last the plain ones."""
        if self._reference.golden_inputs is not None:
            golden_stages = next(self._extend([], [], self._reference.golden_inputs, self._is_golden), None)
            if golden_stages is not None:
                is_told = self._is_told()
                yield self._formula(golden_stages, certain=is_told)
                if is_told:
                    return
        self._left = _MAX_CHAINS_TRIED
        fitting = next(self._extend([], [], self._reference.inputs, self._is_put_out), None)
        if fitting is not None:
            yield self._formula(fitting, certain=False)
        refuted = fitting is None and self._left > 0  # every way was tried
        self._left = _MAX_CHAINS_TRIED
        if all(len(types) == 1 for types in self._types):
            plain = _unlike([types for types in self._some(16) if _is_line(types)])
            for stages in plain:
                yield replace(self._formula(stages, certain=len(plain) == 1), is_refuted=refuted)

    def _some(self, count: int) -> Iterator[list[Stage]]:
        for number, stages in enumerate(self._extend([], [], self._reference.inputs, lambda stage, made: True)):
            if number >= count:
                return
            yield stages

    def _formula(self, stages: Sequence[Stage], *, certain: bool) -> Formula:
        outputs = {
            slot: Ref(key[1], self._flat.index(key[0])) for slot, key in self._puts_out.items() if key[0] in self._flat
        }
        if not outputs and len(self._op.output_descs) <= 1:
            outputs = {0: Ref(0, len(stages) - 1)}
        return Formula(stages=tuple(stages), outputs=outputs, is_certain=certain)

    def _extend(
        self,
        stages: list[Stage],
        made: list[Sequence[Output | None]],
        inputs: Mapping[int, Input],
        fits: Callable[[int, Sequence[Output | None]], bool],
    ) -> Iterator[list[Stage]]:
        """Yield every way to go on from some stages, whose results are `made`."""
        number = len(stages)
        taken = sum(ref.stage is None for stage in stages for ref in stage.args if ref is not None)
        used = {ref.stage for stage in stages for ref in stage.args if ref is not None}
        unused = {at for at in range(number) if at not in used}
        if number == len(self._names):
            if taken == len(self._slots) and unused <= self._shown | {number - 1}:
                yield stages
            return
        for op_type in self._types[number]:
            for arity in self._arities(op_type, number):
                for args in self._args(number, op_type, arity, taken, unused):
                    if self._left <= 0:
                        return
                    self._left -= 1
                    stage = Stage(name=self._names[number], op_type=op_type, args=args, attrs=self._op.attrs)
                    try:
                        result = run_stage(stage, arguments(stage, inputs, made), only_values=True)
                    except FORMULA_ERRORS:
                        continue
                    if fits(number, result):
                        yield from self._extend([*stages, stage], [*made, result], inputs, fits)

    def _arities(self, op_type: str, number: int) -> Sequence[int]:
        """Return how many inputs a stage may have."""
        if op_type in _VARIADIC:
            return range(2, len(self._slots) + number + 1)
        return _TAKES.get(op_type, (2,))

    def _args(self, number: int, op_type: str, arity: int, taken: int, unused: set[int]) -> Iterator[tuple[Ref, ...]]:
        """Yield the arguments that a stage may have: unused results first, then the op's inputs in order."""
        results = [Ref(0, choice) for choice in sorted(range(number), key=lambda stage: (stage not in unused, -stage))]
        choices = _sums(results, arity) if op_type == "AddN" else product([*results, None], repeat=arity)
        for way, chosen in enumerate(choices):
            if way >= _MAX_ARGUMENTS_TRIED:
                self._left = 0
                return
            args: list[Ref] = []
            now = taken
            for choice in chosen:
                if choice is None:
                    if now >= len(self._slots):
                        break
                    args.append(Ref(self._slots[now]))
                    now += 1
                else:
                    args.append(choice)
            if len(args) == arity and len(self._slots) - now <= 4 * (len(self._names) - number - 1):
                yield tuple(args)

    def _is_told(self) -> bool:
        """Return whether the benchmark has a tensor of each op whose name does not show its type."""
        ambiguous = (name for name, types in zip(self._names, self._types, strict=True) if len(types) > 1)
        return all(self._reference.golden(name, 0) is not None for name in ambiguous)

    def _is_golden(self, number: int, made: Sequence[Output | None]) -> bool:
        """Return whether a stage gives what the benchmark has of it; True where it has nothing."""
        for index, output in enumerate(made):
            golden = self._reference.golden(self._names[number], index) if output is not None else None
            if golden is None or output is None:
                continue
            return _near(np.asarray(output.array, np.float64), golden, _NEAR)
        return True

    def _is_put_out(self, number: int, made: Sequence[Output | None]) -> bool:
        """Return whether a stage gives what the op puts out of it; True where it puts out nothing of it."""
        for index, output in enumerate(made):
            have = self._reference.put_out.get((self._flat[number], index))
            if have is not None and output is not None:
                near = _NEAR_STORED.get(have.dtype, _NEAR)
                if not _near(np.asarray(have.array, np.float64), np.asarray(output.array, np.float64), near):
                    return False
        return True


def _sums(results: Sequence[Ref], arity: int) -> Iterator[tuple[Ref | None, ...]]:
    """Yield what a sum may be fed: each result once, in any order; None is an input of the op."""
    for count in range(min(len(results), arity), -1, -1):
        for some in combinations(results, count):
            yield (*some, *[None] * (arity - count))


def rebound(op: Op, shape: Sequence[object], puts_out: Mapping[int, tuple[str, int]]) -> Formula | None:
    """Return the chain of an op that is fused as another is whose formula has this `shape`."""
    names = originals(op)
    if len(names) != len(shape):
        return None
    stages = []
    for name, stage_shape in zip(names, shape, strict=True):
        assert isinstance(stage_shape, tuple)
        stages.append(Stage(name=name, op_type=stage_shape[0], args=stage_shape[1], attrs=op.attrs))
    flat = [flatten(name) for name in names]
    outputs = {slot: Ref(key[1], flat.index(key[0])) for slot, key in puts_out.items() if key[0] in flat}
    if not outputs and len(op.output_descs) <= 1:
        outputs = {0: Ref(0, len(stages) - 1)}
    return Formula(stages=tuple(stages), outputs=outputs, is_certain=False)


def _is_line(stages: Sequence[Stage]) -> bool:
    """Return whether every stage works on the result of the one before it."""
    return all(
        any(ref is not None and ref.stage == number for ref in stage.args) for number, stage in enumerate(stages[1:])
    )


#: Inputs whose order does not matter.
_COMMUTING = frozenset({"Add", "AddV2", "AddN", "Mul", "Maximum", "Minimum", "SquaredDifference"})
#: The names that prototypes give to what flows backwards.
_GRADIENTS = ("dy", "grad", "gradients", "backprops", "dx")


def _unlike(chains: Sequence[list[Stage]]) -> list[list[Stage]]:
    """Return the distinct chains: inputs may commute, and gradients must flow into gradient inputs."""
    distinct_chains: dict[object, list[Stage]] = {}
    for stages in chains:
        shape = tuple(
            (stage.op_type, tuple(sorted(stage.args, key=repr)) if stage.op_type in _COMMUTING else stage.args)
            for stage in stages
        )
        distinct_chains.setdefault(shape, stages)
    backwards = [stages for stages in distinct_chains.values() if all(map(_flows_backwards, stages))]
    return backwards or list(distinct_chains.values())


def _flows_backwards(stage: Stage) -> bool:
    """Return whether the op of a gradient takes the result before it as its gradient input."""
    spec = table.find(stage.op_type)
    if spec is None or not stage.op_type.endswith("Grad") or not set(spec.inputs) & set(_GRADIENTS):
        return True
    from_stages = [number for number, ref in enumerate(stage.args) if ref is not None and ref.stage is not None]
    return not from_stages or any(
        number < len(spec.inputs) and spec.inputs[number] in _GRADIENTS for number in from_stages
    )


def _near(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], limit: float) -> bool:
    if x.size != y.size:
        return False
    x, y = x.reshape(-1), y.reshape(-1)
    both = np.isfinite(x) & np.isfinite(y)
    if not both.any():
        return bool((np.isnan(x) == np.isnan(y)).all())
    if np.count_nonzero(both) < x.size and not (np.isfinite(x) == np.isfinite(y)).all():
        return False
    return norm(x[both] - y[both]) <= limit * norm(y[both])


# --- candidate formulas -----------------------------------------------------------------------------------------------


#: Elements of a large op's output that are looked at to find out how its parts hang together, and the fewest rows.
_SEARCHED_ELEMENTS, _MIN_SAMPLE_ROWS = 1 << 16, 2
#: In how many pieces these rows lie at most: each of the benchmark's is a read of its own.
_PIECES = 32


class CandidateFormulas:
    """The formulas of a run's ops. `unfused` is a graph that has the original ops of its fused ones."""

    def __init__(self, values: RunValues, benchmark: BenchmarkValues, unfused: GraphFile | None = None) -> None:
        self.values, self.benchmark, self.unfused = values, benchmark, unfused
        self._unfused = UnfusedGraph(unfused) if unfused is not None else None
        self._kinds = Kinds(values.file)
        #: Ways in which ops are fused that fitted the benchmark or a dump, by type, passes and types of stages.
        self.fitting: dict[object, tuple[object, ...]] = {}
        #: Formulas of ops that are not fused by the id of the op: they remember the attributes that they asked for.
        self._direct: dict[int, Formula] = {}
        #: Those of the recorded call that was asked for last, by its id and whether what it put out was given.
        self._recorded: tuple[tuple[int, bool] | None, tuple[Formula, ...]] = (None, ())

    def key(self, op: Op) -> object:
        """Return what ops that are fused alike share."""
        if op.recorded is not None:
            return op.type
        return op.type, op.pass_names, tuple(self._kinds.of(name) for name in op.original_names or ())

    def without_search(self, op: Op, op_inputs: OpInputs) -> Iterator[Formula]:
        """Yield the formulas of the op that are known without a search, whatever the numbers of its inputs."""
        return self.formulas(op, op_inputs, {}, no_search=True)

    def formulas(
        self, op: Op, op_inputs: OpInputs, got: Mapping[int, Input], *, no_search: bool = False
    ) -> Iterator[Formula]:
        """Yield what the op may compute, best first; with `no_search` nothing that has to be found out first."""
        recorded = op.recorded
        if recorded is not None:
            key = id(op), bool(got)
            if self._recorded[0] != key:  # of one op at a time, since they hold its numbers
                self._recorded = key, tuple(recorded_formulas(op, recorded, op_inputs.inputs, got))
            yield from self._recorded[1]
            return
        slots = self.values.input_slots(op)
        graph_slots = {slot.graph_index: slot.index for slot in slots}
        if not is_fused(op):
            formula = self._direct.get(id(op))
            if formula is None:
                formula = self._direct[id(op)] = direct(op, graph_slots)
            yield formula
            return
        puts_out = self._script_outputs(op)
        shown = self._shown_chains(op, slots, op_inputs, puts_out)
        yield from shown
        # Whether the op's own type is known to be a part of what it does: then it is not all of it.
        is_known = any(formula.is_certain and op.type in formula.how for formula in shown)
        is_whole = not op_inputs.missing
        alike = self.fitting.get(self.key(op))
        if no_search:
            if alike is None and not is_known and is_whole and got:
                yield from self._on_some_rows(op, op_inputs.inputs, got, puts_out)
            return
        if is_whole:
            if alike is not None:
                few = next(self._on_some_rows(op, op_inputs.inputs, got, puts_out), None)
                if few is not None and few.shape == alike:
                    # What other ops showed, and some rows say again, all rows need not be asked about.
                    yield few
                    return
            reference = self._reference(op, op_inputs.inputs, got, puts_out)
            for formula in ChainSearch(op, self._kinds, reference, puts_out).formulas():
                is_known = is_known or (formula.is_certain and op.type in formula.how)
                yield formula
        if not is_known and table.find(op.type) is not None:
            yield replace(direct(op, graph_slots), is_certain=False)

    def _shown_chains(
        self, op: Op, slots: Sequence[Slot], op_inputs: OpInputs, puts_out: Mapping[int, tuple[str, int]]
    ) -> list[Formula]:
        """Return the chain as the graph without fusion has it, and that of an op that is fused alike."""
        formulas = [self._from_unfused(op, slots, puts_out)]
        alike = self.fitting.get(self.key(op))
        if alike is not None and not op_inputs.missing and {slot.index for slot in slots} == set(op_inputs.inputs):
            formulas.append(rebound(op, alike, puts_out))
        return [formula for formula in formulas if formula is not None]

    def _script_outputs(self, op: Op) -> dict[int, tuple[str, int]]:
        """Return the tensors of the script that the op puts out, by its output slot."""
        keys = ((slot, script_tensor(self.values.origins, op, slot)) for slot in range(max(len(op.output_descs), 1)))
        return {slot: key for slot, key in keys if key is not None}

    def _from_unfused(self, op: Op, slots: Sequence[Slot], puts_out: Mapping[int, tuple[str, int]]) -> Formula | None:
        """Return the chain of a fused op as the graph without fusion has it; None without one."""
        if self._unfused is None:
            return None
        keys: dict[tuple[str, int], int] = {}
        parameters: set[int] = set()
        for slot in slots:
            root = self.values.source_of(slot)
            if root is not None and self.values.parameter_of(root) is not None:
                parameters.add(slot.index)
            key = script_tensor(self.values.origins, root.op, root.index) if root is not None else None
            if key is not None:
                keys.setdefault(key, slot.index)
        formula = self._unfused.formula(op, keys, puts_out)
        if formula is not None:
            return formula
        # Parameters may have been folded into others: then the op's parameters are not those of the script.
        own = {key: slot for key, slot in keys.items() if slot not in parameters}
        return self._unfused.formula(op, own, puts_out, self.benchmark.lend)

    def _reference(
        self,
        op: Op,
        inputs: Mapping[int, Input],
        got: Mapping[int, Input],
        puts_out: Mapping[int, tuple[str, int]],
        rows: Rows | None = None,
    ) -> ChainReference:
        """Tensors that a chain has to reproduce, of the script by flattened name and output."""
        return ChainReference(
            inputs=inputs,
            golden_inputs=self.benchmark.inputs(op, inputs, rows),
            golden=partial(self.benchmark.golden, rows=rows),
            put_out={key: got[slot] for slot, key in puts_out.items() if slot in got},
        )

    def _on_some_rows(
        self, op: Op, inputs: Mapping[int, Input], got: Mapping[int, Input], puts_out: Mapping[int, tuple[str, int]]
    ) -> Iterator[Formula]:
        """Yield the chain that fits some rows of a large op best; it still has to be checked on all rows.

        Trying the ways in which ops may hang together takes many times what one of them takes.
        """
        batch = batch_of_chain(op, self._kinds, inputs, got)
        size = sum(tensor.array.size for tensor in got.values())
        if batch is None or size < _SEARCHED_ELEMENTS:
            return
        chosen = max(_MIN_SAMPLE_ROWS, batch.rows * _SEARCHED_ELEMENTS // size)
        rows = spread(batch.rows, chosen, _PIECES, inputs=batch.inputs)
        if rows.chosen * 2 > batch.rows:
            return
        reference = self._reference(op, rows.of_inputs(inputs), rows.of_outputs(got), puts_out, rows)
        search = ChainSearch(op, self._kinds, reference, puts_out)
        yield from islice(search.formulas(), 1)


# --- comparison with the benchmark's values ---------------------------------------------------------------------------


#: Elements farthest from the benchmark's that a sample has too.
_FARTHEST = 16
#: Elements of which the largest is looked at first.
_BLOCK = 256
#: The benchmark obeys a formula up to this relative distance (it computes in float32, in other orders).
_OBEYS = 2e-3


class BenchmarkValues:
    """Values that the benchmark of a run has of its ops."""

    def __init__(self, values: RunValues) -> None:
        self._values = values

    def golden(self, name: str, index: int, rows: Rows | None = None) -> np.ndarray | None:
        """Return the benchmark's tensor of the script with the axes that a graph describes, or None."""
        golden = self._values.benchmark.output_of(name, index)
        if not isinstance(golden, Tensor):
            return None
        try:
            return np.asarray(self._values.load(golden, None, rows=rows).array, np.float64)
        except NoValueError:
            return None

    def lend(self, key: tuple[str, int], desc: TensorDesc | None) -> Input | None:
        """Return the benchmark's tensor of the script with the axes that a graph describes, or None."""
        golden = self._values.benchmark.output(*key)
        if not isinstance(golden, Tensor):
            return None
        try:
            return self._values.load(golden, desc)
        except NoValueError:
            return None

    def inputs(self, op: Op, op_inputs: Mapping[int, Input], rows: Rows | None = None) -> dict[int, Input] | None:
        """Return the op's inputs as the benchmark has them, of constants that it lacks the run's; None if others lack.

        With `rows` only these, as `op_inputs` has them.
        """
        values = self._values
        inputs: dict[int, Input] = {}
        for slot in values.input_slots(op):
            root = values.source_of(slot)
            some = rows.if_in(slot.index) if rows is not None else None
            loaded = values.load_benchmark_input(slot, some)
            own = op_inputs.get(slot.index)
            if loaded is None:
                if own is None or root is None or values.parameter_of(root) is None:
                    return None
                inputs[slot.index] = own
                continue
            array = loaded.input.array
            if own is not None and array.shape != own.array.shape and array.size == own.array.size:
                array = array.reshape(own.array.shape)
            layout = own.layout if own is not None and len(own.layout) == array.ndim else loaded.input.layout
            inputs[slot.index] = Input(array=array, dtype=loaded.input.dtype, layout=layout)
        return inputs

    def farthest(self, op: Op, got: Mapping[int, Input]) -> npt.NDArray[np.intp]:
        """Return the flat places of output 0 that are farthest from the benchmark's.

        None where that has no such tensor. Of an op that shows nothing new the comparison told the farthest one.
        """
        place, size = self._values.compared.places.get((op.name, "output:0"), (0, 0))
        if 0 in got and place < size == got[0].array.size:
            return np.array([place], np.intp)
        golden = self._values.load_benchmark(Root(op, 0)) if 0 in got else None
        if golden is None or golden.input.array.size != got[0].array.size or not golden.input.array.size:
            return np.zeros(0, np.intp)
        npu, golden_values = np.asarray(got[0].array).reshape(-1), np.asarray(golden.input.array).reshape(-1)
        if npu.dtype.kind not in "fiub" or golden_values.dtype.kind not in "fiub":
            return np.zeros(0, np.intp)
        with np.errstate(all="ignore"):
            off = np.abs(np.subtract(npu, golden_values, dtype=np.float64))
        off[~np.isfinite(off)] = 0.0
        off[np.isfinite(npu) != np.isfinite(golden_values)] = np.inf
        return _largest(off, _FARTHEST)

    def split_at_places(
        self, result: OpResult, formula: Formula, op_inputs: Mapping[int, Input], count: int
    ) -> OpResult | None:
        """Return what `split` does, from about `count` places of output 0; None where these cannot be had alone."""
        inputs = self.inputs(result.op, op_inputs)
        golden = self._values.load_benchmark(Root(result.op, 0)) if len(result.slots) == 1 else None
        if inputs is None or golden is None or result.slots[0].slot != 0:
            return None
        try:
            of_golden = formula.in_type(golden.input.dtype)
            true, npu_true = of_golden.sample(inputs, count), formula.sample(op_inputs, count)
        except FORMULA_ERRORS:
            return None
        if true is None or npu_true is None or golden.input.array.size != result.slots[0].size:
            return None
        places, f_b = true
        have = flat_doubles(golden.input.array)[places]
        slot = self._split_slot(result.slots[0], have, f_b.array, npu_true[1].array, self._moved(op_inputs, inputs))
        return replace(result, slots=(slot,))

    @staticmethod
    def _moved(op_inputs: Mapping[int, Input], inputs: Mapping[int, Input]) -> float:
        both = [(op_inputs[slot], inputs[slot]) for slot in inputs if slot in op_inputs]
        return _relative(*(_joined([pair[side] for pair in both]) for side in (0, 1)))

    @staticmethod
    def _split_slot(slot: SlotResult, golden: Doubles, true: Doubles, npu_true: Doubles, moved: float) -> SlotResult:
        own, inherited = _relative(golden, true), _relative(npu_true, true)
        kappa = inherited / moved if moved and isfinite(inherited) and isfinite(moved) else None
        return replace(slot, inherited=inherited, benchmark_own=own, amplification=kappa)

    def split(
        self, result: OpResult, formula: Formula, op_inputs: Mapping[int, Input], rows: Rows | None = None
    ) -> OpResult | None:
        """Add the inherited error and the benchmark's own; None where the benchmark has no such tensors.

        With `rows` both are those of some rows of the batch.
        """
        values = self._values
        op = result.op
        if rows is not None:
            formula, op_inputs = formula.unshaped(), rows.of_inputs(op_inputs)
        inputs = self.inputs(op, op_inputs, rows)
        if inputs is None:
            return None
        first = values.load_benchmark(Root(op, result.slots[0].slot), rows) if result.slots else None
        try:
            of_golden = formula if first is None else formula.in_type(first.input.dtype)
            true, npu_true = of_golden.run(inputs), formula.run(op_inputs)
        except FORMULA_ERRORS:
            return None
        moved = self._moved(op_inputs, inputs)
        slots = []
        for slot in result.slots:
            golden = values.load_benchmark(Root(op, slot.slot), rows)
            if golden is None or slot.slot not in true or golden.input.array.size != true[slot.slot].array.size:
                return None
            f_b, f_n = flat_doubles(true[slot.slot].array), flat_doubles(npu_true[slot.slot].array)
            slots.append(self._split_slot(slot, flat_doubles(golden.input.array), f_b, f_n, moved))
        return replace(result, slots=tuple(slots))


def _largest(values: Doubles, count: int) -> npt.NDArray[np.intp]:
    """Return the places of the largest values: they are in the blocks with the largest maxima."""
    whole = values.size // _BLOCK * _BLOCK
    places = np.arange(whole, values.size)
    if whole:
        maxima = values[:whole].reshape(-1, _BLOCK).max(axis=1)
        blocks = np.argpartition(maxima, -min(count, maxima.size))[-count:]
        places = np.append((blocks[:, None] * _BLOCK + np.arange(_BLOCK)).reshape(-1), places)
    return places[np.argpartition(values[places], -min(count, places.size))[-count:]]


def _joined(tensors: Sequence[Input]) -> Doubles:
    return np.concatenate([np.zeros(0), *(flat_doubles(tensor.array) for tensor in tensors)])


def _relative(x: np.ndarray, y: np.ndarray) -> float:
    both = np.isfinite(x) & np.isfinite(y)
    size = norm(y[both])
    distance = norm(x[both] - y[both])
    return distance / size if size else (0.0 if not distance else np.inf)


def is_obeyed(split: OpResult) -> bool:
    """Return whether the benchmark obeys the formula of a judgement that `BenchmarkValues.split` gave."""
    return all(slot.benchmark_own is not None and slot.benchmark_own <= _OBEYS for slot in split.slots)
