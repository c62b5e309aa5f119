"""Emulate a recorded step: recompute its ops one after the other, each in a type of its own, from changed tensors.

`preflight` asks what 16 bits make of a step, `whatif` what is left of a deviation once an op is mended. Both start from
recorded tensors; what does not depend on a change keeps its recorded value, and is read only where it is needed.
Formulas are run in float32, as kernels add up; results are rounded to the type in which they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import inf, prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precision_tool.lib.data.dumped_ops import Missing
from precision_tool.lib.data.msprobe_ops import UNRECORDED
from precision_tool.lib.diagnose.divergence import is_random
from precision_tool.lib.diagnose.error_shape import LIMIT, UNIT, flat_doubles, norm
from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, Formula, is_fused
from precision_tool.lib.diagnose.headroom import is_gradient_name
from precision_tool.lib.diagnose.op_values import PASSING, Loaded, NoValueError, OpInputs, Root, Slot, missing_reason
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.unrecorded_views import View, view_of
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import Direction
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import Input, NotComputedError, Output, reason_of
from precision_tool.lib.ops.optimizers import updated_inputs

Array = npt.NDArray[Any]
#: Names a tensor of a step: `Root.key`.
Key = tuple[int, int]

#: A formula whose result is farther from the recorded one, as a relative distance, is not what the op computes.
_UNLIKE = 2.0**-6
#: Times the roundoff by which a result may be off as a whole.
_ROUNDINGS = 32.0
#: Formulas of one op that are held against what was recorded.
_MAX_FORMULAS = 24
_BACKWARD = (Direction.BACKWARD, Direction.PARAMETERS_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How an op is computed.

    Attributes
    ----------
    inputs : str
        Type that its floating-point inputs are rounded to first; "" for as they are stored.
    output : str
        Type that its floating-point results are stored in; "" for the recorded one.
    keeps_error : bool or None
        Whether the op's own recorded error stays: what changes is f(changed inputs) − f(recorded inputs), added to the
        recorded result. None: where that error is no rounding (`StepEmulator.unlike`).
    is_exact : bool
        Whether it is computed in float64.
    is_wide : bool
        Whether results that their type cannot hold are stored in float32.
    """

    inputs: str = ""
    output: str = ""
    keeps_error: bool | None = None
    is_exact: bool = False
    is_wide: bool = False


#: Computes an op as it was: from its inputs as they are stored, into the type in which its results were recorded.
AS_RECORDED = Rounding()
#: Computes what an op should have put out.
MENDED = Rounding(keeps_error=False, is_exact=True, is_wide=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """An op of an emulation.

    Attributes
    ----------
    op : Op
        The op.
    inputs : mapping of int to Input
        What it took, by slot, rounded to the type in which it computes.
    outputs : mapping of int to ndarray
        What it put out, by slot, as stored.
    unrounded : mapping of int to ndarray
        The same in float32 or float64, before it is stored.
    """

    op: Op
    inputs: Mapping[int, Input] = field(repr=False)
    outputs: Mapping[int, Array] = field(repr=False)
    unrounded: Mapping[int, Array] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """What an emulation ended in.

    Attributes
    ----------
    values : mapping of Key to ndarray
        The tensors that were asked for, in the order and shape of the script. Recorded ones, where nothing changed.
    ops : int
        Ops that were computed.
    stopped : mapping of str to Message
        Ops that a change reached and that could not be computed, with the reason: their recorded results stand.
    """

    values: Mapping[Key, Array] = field(repr=False)
    ops: int = 0
    stopped: Mapping[str, Message] = field(default_factory=dict)


def stored_in(array: Array, dtype: str, scale: float = 1.0) -> Array:
    """Return floating-point numbers rounded to nearest as a type stores them, in float32 (float64 for float64).

    `scale` is a power of two by which they are larger while they are stored, as a loss scale makes gradients.
    """
    if array.dtype.kind != "f":
        return array
    with np.errstate(all="ignore"):
        if dtype == "float64":
            return array.astype(np.float64, copy=False)
        if dtype not in ("float16", "bfloat16"):
            return array.astype(np.float32, copy=False)
        narrow = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
        wide = array.astype(np.float32, copy=False)
        if scale == 1.0:
            return wide.astype(narrow).astype(np.float32)
        return (wide * np.float32(scale)).astype(narrow).astype(np.float32) / np.float32(scale)


def is_gradient(op: Op) -> bool:
    """Return whether an op belongs to the backward pass: a loss scale makes its results larger."""
    recorded = op.recorded
    if recorded is None:
        return is_gradient_name(op.name, *(op.original_names or ())) and not updated_inputs(op.type)
    return recorded.call.call is not None and recorded.call.call.direction in _BACKWARD


class StepEmulator:
    """A recorded step that can be computed again.

    Parameters
    ----------
    recomputer : Recomputer
        The run with its graph, its dump and, where there is one, the benchmark. Tensors that the dump lacks are taken
        from the benchmark.
    is_right : bool
        Whether what was recorded is right, as a benchmark is: an op whose formula says otherwise is not emulated.
    """

    def __init__(self, recomputer: Recomputer, *, is_right: bool = False) -> None:
        self.recomputer, self.values, self._is_right = recomputer, recomputer.values, is_right
        #: Ops that compute something, in the order in which they ran.
        self.ops: list[Op] = [op for op in recomputer.computing if op.type not in PASSING]
        #: Ops that cannot be emulated, by id, with the reason: their recorded results stand.
        self.uncomputable: dict[int, Message] = {}
        #: Relative distance between what ops put out and what their formulas say, by id, where that is no rounding:
        #: their recorded error is kept.
        self.unlike: dict[int, float] = {}
        #: The formula of each op that was checked, by its id; of a recorded call, whose formulas are bound to its
        #: numbers, which of them it is.
        self._chosen: dict[int, Formula | int] = {}
        self._views: dict[Key, tuple[View, list[Root]] | None] = {}

    # --- the step ---

    @cached_property
    def _last_reader(self) -> dict[Key, int]:
        """The place of the last op that reads a tensor, by the tensor's key."""
        last: dict[Key, int] = {}
        for number, op in enumerate(self.ops):
            for root in self.values.producers(op):
                last[root.key] = number
                for source in self.probable_sources(root):
                    last[source.key] = number
        return last

    # --- tensors that no recorded call put out ---

    def probable_sources(self, root: Root) -> list[Root]:
        """Return the results that a tensor which no recorded call put out may be made of; of any other none."""
        if root.op.type != UNRECORDED:
            return []
        behind = {id(source.op): source.op for source in self.values.producers(root.op)}
        return [Root(op, index) for op in behind.values() for index in range(max(len(op.output_descs), 1))]

    def view_of(self, root: Root) -> tuple[View, list[Root]] | None:
        """Return how such a tensor is made of results, and of which; None where that is not known."""
        if root.key not in self._views:
            self._views[root.key] = self._find_view(root)
        return self._views[root.key]

    def _find_view(self, root: Root) -> tuple[View, list[Root]] | None:
        sources = self.probable_sources(root)
        tensor = self.recorded(root) if sources else None
        if tensor is None:
            return None
        have = [(source, loaded.array) for source in sources if (loaded := self.recorded(source)) is not None]
        view = view_of(tensor.array, [(id(source.op), array) for source, array in have])
        return None if view is None else (view, [have[place][0] for place in view.sources])

    def _change_views(self, op: Op, changed: dict[Key, Array]) -> None:
        """Change what an op reads of views of changed results."""
        for root in self.values.producers(op):
            if root.op.type != UNRECORDED or root.key in changed:
                continue
            if not any(source.key in changed for source in self.probable_sources(root)):
                continue
            found = self.view_of(root)
            if found is None or not any(source.key in changed for source in found[1]):
                continue
            arrays = []
            for source in found[1]:
                recorded = None if source.key in changed else self.recorded(source)
                arrays.append(changed[source.key] if recorded is None else recorded.array)
            changed[root.key] = found[0].make(arrays)

    @cached_property
    def roots(self) -> list[Root]:
        """Every floating-point tensor that the step's ops put out, in order."""
        return [
            Root(op, index) for op in self.ops for index in range(max(len(op.output_descs), 1))
            if self.dtype_of(Root(op, index)) in UNIT
        ]  # fmt: skip

    def dtype_of(self, root: Root) -> str:
        """Return the type in which a tensor was recorded, or that the graph gives it; "" where neither tells."""
        copy = next(iter(self.values.copies(root)), None)
        if copy is not None:
            return copy[1].dtype
        desc = root.op.output_desc(root.index)
        if desc is not None and desc.dtype:
            return desc.dtype
        golden = self.values.load_benchmark(root)
        return "" if golden is None else golden.input.dtype

    @cached_property
    def last_roots(self) -> list[Root]:
        """The tensors in which a step ends: those that nothing computes with, and gradients that update variables."""
        ends = []
        for root in self.roots:
            if updated_inputs(root.op.type):
                continue
            readers = [slot.op for slot in self.values.readers(root)]
            computing = [reader for reader in readers if reader.type not in PASSING]
            if not computing or any(updated_inputs(reader.type) for reader in computing):
                ends.append(root)
        return ends

    @cached_property
    def loss(self) -> Root | None:
        """The loss: of the numbers that the forward pass puts out that on which most ops act; None without any.

        What is made of gradients, as their norm for clipping, is no loss; of recorded calls, whose gradients are passed
        on in ways that are not recorded, what is called behind the first backward.
        """
        ancestors: dict[int, int] = {}  # as the bits of a number, since there are many
        behind: set[int] = set()
        best: tuple[int, int, Root] | None = None
        for number, op in enumerate(self.ops):
            if is_gradient(op) and op.recorded is not None:
                break
            is_behind = any(id(root.op) in behind for root in self.values.producers(op))
            if is_behind or is_gradient(op) or updated_inputs(op.type):
                behind.add(id(op))
                continue
            above = 1 << number
            for root in self.values.producers(op):
                above |= ancestors.get(id(root.op), 0)
            ancestors[id(op)] = above
            for index, desc in enumerate(op.output_descs or (None,)):
                shape = None if desc is None else desc.origin_shape if desc.origin_shape is not None else desc.shape
                root = Root(op, index)
                if shape is None or prod(shape) != 1 or self.dtype_of(root) not in UNIT:
                    continue
                if best is None or (above.bit_count(), number) >= best[:2]:
                    best = above.bit_count(), number, root
        return None if best is None else best[2]

    # --- recorded tensors ---

    def recorded(self, root: Root) -> Input | None:
        """Return a tensor as recorded: of the run's own dump, else of the benchmark; None where neither has it."""
        loaded = self.values.load_root(root, stored=True) or self.values.load_benchmark(root)
        return None if loaded is None else _narrow(loaded.input)

    def inputs_of(self, op: Op, changed: Mapping[Key, Array] | None = None) -> OpInputs:
        """Return the inputs of an op as recorded, those that changed with their new values."""
        result = OpInputs()
        for slot in self.values.input_slots(op):
            root = self.values.source_of(slot)
            new = changed.get(root.key) if changed and root is not None else None
            try:
                loaded = self._changed_input(slot, root, new) if root is not None and new is not None else None
                loaded = loaded or self._recorded_input(slot, root)
            except NoValueError as error:
                result.missing[slot.index] = error.reason
                continue
            if loaded is None:
                result.missing[slot.index] = self._why_missing(slot, root)
            else:
                result.inputs[slot.index] = loaded
        return result

    def _why_missing(self, slot: Slot, root: Root | None) -> Message:
        """Return why an input is not there: a damaged file is not the same as none."""
        places = [slot] if root is None else [slot, self.values.output_slot(root), *self.values.readers(root)]
        for place in places:
            tensor = self.values.tensor_at(place)
            dump = self.values.dumped(place.op)
            if tensor is None and dump is not None and dump.errors and place.side == "output":
                tensor = dump.errors[0]
            if isinstance(tensor, Missing):
                return missing_reason(tensor, slot.index)
            if isinstance(tensor, Tensor):
                try:
                    self.values.load(tensor, place.desc, stored=True)
                except NoValueError as error:
                    return error.reason
        return Message("reason.input_not_dumped", slot=slot.index)

    def _changed_input(self, slot: Slot, root: Root, array: Array) -> Input:
        desc = slot.desc
        shape = desc.origin_shape if desc is not None else None
        if shape is not None and prod(shape) == array.size and min(shape, default=0) >= 0:
            array = array.reshape(shape)
        dtype = desc.dtype if desc is not None and desc.dtype else self.dtype_of(root)
        layout = (desc.origin_layout if desc is not None else None) or "ND"
        return Input(array=array, dtype=dtype, layout=layout if len(layout) == array.ndim else "ND")

    def _recorded_input(self, slot: Slot, root: Root | None) -> Input | None:
        own = self.values.tensor_at(slot)
        if isinstance(own, Tensor):
            return _narrow(self.values.load(own, slot.desc, stored=True))
        loaded: Loaded | None = self.values.load_root(root, stored=True) if root is not None else None
        loaded = loaded or self.values.load_benchmark_input(slot)
        if loaded is None:
            return None
        given = _narrow(loaded.input)
        desc = slot.desc
        shape = desc.origin_shape if desc is not None else None
        array = given.array.reshape(shape) if shape is not None and prod(shape) == given.array.size else given.array
        layout = desc.origin_layout if desc is not None and desc.origin_layout else given.layout
        return replace(given, array=array, layout=layout if len(layout) == array.ndim else "ND")

    # --- formulas ---

    def check(self, op: Op) -> Message | None:
        """Return why an op cannot be emulated; None where its formula is known.

        Of an op that may compute several things, the formula that comes nearest to what was recorded from its recorded
        inputs is the one that emulations use.
        """
        if id(op) in self.uncomputable:
            return self.uncomputable[id(op)]
        if id(op) in self._chosen:
            return None
        reason = self._choose(op)
        if reason is not None:
            self.uncomputable[id(op)] = reason
        return reason

    def trust(self, op: Op, formula: Formula) -> None:
        """Use this formula for an op, however far the op is from it: its recorded error is kept.

        NotComputedError for a recorded call that has no such formula with its inputs as they are stored.
        """
        op_inputs = self.inputs_of(op)
        chosen: Formula | int = formula
        if op.recorded is not None:
            formulas = self.recomputer.candidates.formulas(op, op_inputs, self._recorded_outputs(op), no_search=True)
            wanted = formula.how, formula.is_certain
            number = next((n for n, each in enumerate(formulas) if (each.how, each.is_certain) == wanted), None)
            if number is None:
                raise NotComputedError("no_formula", op_type=op.type)
            chosen = number
        self.uncomputable.pop(id(op), None)
        self._chosen[id(op)] = chosen
        distance = _distance(formula.run(op_inputs.inputs), self._recorded_outputs(op))
        if distance > _UNLIKE:
            self.unlike[id(op)] = distance

    def _choose(self, op: Op) -> Message | None:
        """Choose the formula of an op; return why there is none."""
        op_inputs = self.inputs_of(op)
        if op_inputs.missing:
            return next(iter(op_inputs.missing.values()))
        if op.recorded is None and is_random(op):
            return Message("reason.random")
        recorded = self._recorded_outputs(op)
        reason = Message("reason.no_formula", op_type=op.type)
        best: tuple[float, int, Formula] | None = None
        certain: tuple[float, int, Formula] | None = None
        # What fused ops compute may have to be searched, which takes long: only where nothing tells it.
        for no_search in (True, False) if is_fused(op) else (True,):
            try:
                formulas = self.recomputer.candidates.formulas(op, op_inputs, recorded, no_search=no_search)
                for number, formula in enumerate(islice(formulas, _MAX_FORMULAS)):
                    try:
                        distance = _distance(formula.run(op_inputs.inputs, only_values=True), recorded)
                        if distance > _UNLIKE / 4:  # what rounding explains costs as much again to know
                            distance = _distance(formula.run(op_inputs.inputs), recorded)
                    except FORMULA_ERRORS as error:
                        reason = reason_of(error)
                        continue
                    if best is None or distance < best[0]:
                        best = distance, number, formula
                    if certain is None and formula.is_certain and len(formula.stages) == 1:
                        certain = distance, number, formula
                    if distance <= _UNLIKE / 4:
                        break
            except (NotComputedError, NoValueError) as error:
                reason = error.reason
            if best is not None and best[0] > _UNLIKE and certain is not None:
                best = certain
            if best is not None and (best[0] <= _UNLIKE or (best is certain and not self._is_right)):
                self._chosen[id(op)] = best[2] if op.recorded is None else best[1]
                if best[0] > _UNLIKE:
                    self.unlike[id(op)] = best[0]
                return None
        return reason if best is None else Message("reason.formula_unlike", distance=best[0])

    def _recorded_outputs(self, op: Op) -> dict[int, Input]:
        outputs = {}
        for index in range(max(len(op.output_descs), 1)):
            recorded = self.recorded(Root(op, index))
            if recorded is not None:
                outputs[index] = recorded
        return outputs

    def _formula(self, op: Op, op_inputs: OpInputs) -> Formula:
        """Return the chosen formula, for these inputs. NotComputedError where they do not fit it."""
        chosen = self._chosen[id(op)]
        if isinstance(chosen, Formula):
            return chosen
        # Which elements a dropout left, or which of several gradients it is, what was put out tells.
        recorded = self._recorded_outputs(op)
        formulas = self.recomputer.candidates.formulas(op, op_inputs, recorded, no_search=True)
        formula = next(islice(formulas, chosen, None), None)
        if formula is None:
            raise NotComputedError("no_formula", op_type=op.type)
        return formula

    def _run(self, formula: Formula, inputs: Mapping[int, Input]) -> dict[int, Array]:
        return {slot: np.asarray(output.array) for slot, output in formula.run(inputs, only_values=True).items()}

    # --- emulating ---

    def run(
        self,
        rounding_of: Callable[[Op], Rounding | None] = lambda op: None,
        *,
        replaced: Mapping[Key, Array] | None = None,
        wanted: Collection[Root] = (),
        scale_of: Callable[[Op], float] = lambda op: 1.0,
        on_op: Callable[[Computed], None] | None = None,
        on_stop: Callable[[Op, Message], None] | None = None,
    ) -> Emulation:
        """Compute the step.

        Parameters
        ----------
        rounding_of : callable, optional
            How an op is computed, whatever its inputs; None for an op that is computed, as it was recorded, only where
            an input changed.
        replaced : mapping of Key to ndarray, optional
            Tensors that are given, in place of what their ops put out.
        wanted : collection of Root
            Tensors that are returned.
        scale_of : callable, optional
            Power of two by which an op's results are larger while they are stored.
        on_op : callable, optional
            Is given each op as it was computed; its arrays must not be changed. An exception that it raises ends the
            emulation.
        on_stop : callable, optional
            Is given each op that a change reached and that cannot be computed, with the reason.

        Returns
        -------
        Emulation
            The tensors that were asked for, and where a change was lost.
        """
        changed: dict[Key, Array] = dict(replaced or {})
        given = set(changed)
        keep = {root.key for root in wanted}
        stopped: dict[str, Message] = {}
        count = 0
        expiring: dict[int, list[Key]] = {}
        for key, number in self._last_reader.items():
            expiring.setdefault(number, []).append(key)
        for number, op in enumerate(self.ops):
            rounding = rounding_of(op)
            self._change_views(op, changed)
            is_reached = any(root.key in changed for root in self.values.producers(op))
            if rounding is not None or is_reached:
                result = self._emulate(op, rounding or AS_RECORDED, changed, scale_of)
                if isinstance(result, Computed):
                    count += 1
                    for slot, array in result.outputs.items():
                        key = id(op), slot
                        if key not in given and (key in keep or key in self._last_reader):
                            changed[key] = array
                    if on_op is not None:
                        on_op(result)
                else:
                    stopped[op.name] = result
                    if on_stop is not None:
                        on_stop(op, result)
            for key in expiring.get(number, ()):
                if key not in keep:
                    changed.pop(key, None)
        values = {}
        for root in wanted:
            recorded = None if root.key in changed else self.recorded(root)
            if root.key in changed:
                values[root.key] = changed[root.key]
            elif recorded is not None:
                values[root.key] = recorded.array
        return Emulation(values=values, ops=count, stopped=stopped)

    def _emulate(
        self, op: Op, rounding: Rounding, changed: Mapping[Key, Array], scale_of: Callable[[Op], float]
    ) -> Computed | Message:
        """Return an op computed from its inputs, or why it cannot be."""
        try:
            with np.errstate(all="ignore"), self.values.reading():
                reason = self.check(op)
                if reason is not None:
                    return reason
                op_inputs = self.inputs_of(op, changed)
                if op_inputs.missing:
                    return next(iter(op_inputs.missing.values()))
                return self._compute(op, op_inputs, rounding, scale_of)
        except (NotComputedError, NoValueError) as error:
            return error.reason
        except PrecisionToolError as error:
            return Message("reason.unreadable", detail=error.full_message)
        except MemoryError:
            return Message("reason.out_of_memory")
        except FORMULA_ERRORS as error:
            return reason_of(error)

    def _compute(self, op: Op, op_inputs: OpInputs, rounding: Rounding, scale_of: Callable[[Op], float]) -> Computed:
        if rounding.inputs:
            op_inputs.inputs = self._rounded_inputs(op, op_inputs.inputs, rounding.inputs, scale_of)
        formula = self._formula(op, op_inputs)
        if rounding.is_exact:
            op_inputs.widen()
        unrounded = self._run(formula, op_inputs.inputs)
        if id(op) in self.unlike if rounding.keeps_error is None else rounding.keeps_error:
            unrounded = self._with_error(op, unrounded)
        scale = scale_of(op)
        outputs = {slot: self._stored(Root(op, slot), array, rounding, scale) for slot, array in unrounded.items()}
        return Computed(op=op, inputs=op_inputs.inputs, outputs=outputs, unrounded=unrounded)

    def again(
        self, computed: Computed, rounding: Rounding, scale_of: Callable[[Op], float] = lambda op: 1.0
    ) -> Computed | None:
        """Compute an op of an emulation again, from the same inputs in another type; None where it does not compute."""
        try:
            with np.errstate(all="ignore"), self.values.reading():
                return self._compute(computed.op, OpInputs(inputs=dict(computed.inputs)), rounding, scale_of)
        except (*FORMULA_ERRORS, NoValueError, PrecisionToolError, MemoryError):
            return None

    def results(self, op: Op) -> dict[int, Output]:
        """Return what the formula of an op makes of its recorded inputs, with what bounds the rounding; {} without."""
        try:
            with np.errstate(all="ignore"), self.values.reading():
                if self.check(op) is not None:
                    return {}
                op_inputs = self.inputs_of(op)
                return dict(self._formula(op, op_inputs).run(op_inputs.inputs))
        except (*FORMULA_ERRORS, NoValueError, PrecisionToolError, MemoryError):
            return {}

    def _stored(self, root: Root, array: Array, rounding: Rounding, scale: float) -> Array:
        dtype = rounding.output or self.dtype_of(root)
        if not is_beyond(array, dtype):
            return stored_in(array, dtype, scale)
        if rounding.is_wide:
            return stored_in(array, "float32")
        recorded = self.recorded(root) if not rounding.output else None
        if recorded is not None and _saturates(recorded):
            array = np.clip(array, -LIMIT[dtype], LIMIT[dtype])
        return stored_in(array, dtype, scale)

    def _rounded_inputs(
        self, op: Op, inputs: Mapping[int, Input], dtype: str, scale_of: Callable[[Op], float]
    ) -> dict[int, Input]:
        sources = {slot.index: self.values.source_of(slot) for slot in self.values.input_slots(op)}
        rounded = {}
        for slot, tensor in inputs.items():
            if tensor.array.dtype.kind != "f" or tensor.dtype not in UNIT:
                rounded[slot] = tensor
                continue
            root = sources.get(slot)
            scale = 1.0 if root is None else scale_of(root.op)
            rounded[slot] = replace(tensor, array=stored_in(tensor.array, dtype, scale), dtype=dtype)
        return rounded

    def _with_error(self, op: Op, new: Mapping[int, Array]) -> dict[int, Array]:
        """Return new results with the recorded error of the op: as far from the recorded ones as f says they move."""
        recorded = self._recorded_outputs(op)
        op_inputs = self.inputs_of(op)
        before = self._run(self._formula(op, op_inputs), op_inputs.inputs)
        moved = dict(new)
        for slot, array in new.items():
            have, old = recorded.get(slot), before.get(slot)
            if have is None or old is None or array.dtype.kind != "f" or have.array.size != array.size:
                continue
            step = array - old
            moved[slot] = have.array.reshape(array.shape) + np.where(np.isfinite(step), step, 0.0)
        return moved


def is_beyond(array: Array, dtype: str) -> bool:
    """Return whether a type of 16 bits cannot hold some of these finite numbers."""
    if array.dtype.kind != "f" or dtype not in ("float16", "bfloat16"):
        return False
    return bool((np.isfinite(array) & (np.abs(array) > LIMIT[dtype])).any())


def _saturates(recorded: Input) -> bool:
    """Return whether results beyond a type became its largest number."""
    array = recorded.array
    limit = LIMIT.get(recorded.dtype, inf)
    return array.dtype.kind == "f" and bool(np.isfinite(array).all() and (np.abs(array) >= limit).any())


def _narrow(tensor: Input) -> Input:
    """Return a tensor in float32, unless its type holds more."""
    if tensor.array.dtype == np.float64 and tensor.dtype != "float64":
        return replace(tensor, array=tensor.array.astype(np.float32))
    return tensor


def _distance(results: Mapping[int, Output], recorded: Mapping[int, Input]) -> float:
    """Return how far results are from recorded ones, the largest relative distance; 0.0 where none was recorded.

    What rounding explains counts as nothing: the gradient of a bias before a batch norm is nothing else.
    """
    largest = 0.0
    for slot, output in results.items():
        have = recorded.get(slot)
        if have is None:
            continue
        if have.array.size != output.array.size:
            return inf
        x, y = flat_doubles(output.array), flat_doubles(have.array)
        if _saturates(have):
            x = np.clip(x, -LIMIT[have.dtype], LIMIT[have.dtype])
        finite = np.isfinite(x) & np.isfinite(y)
        size = norm(y[finite])
        off = norm(x[finite] - y[finite])
        unit = UNIT.get(have.dtype, 0.0)
        summed = np.broadcast_to(np.abs(output.summed), output.array.shape).reshape(-1)[finite]
        if off > _ROUNDINGS * (unit * size + UNIT["float32"] * norm(summed)):
            largest = max(largest, off / size if size else 1.0)
    return largest
