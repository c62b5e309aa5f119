"""What an op's own error does to the end of its run: the ops behind it, computed again from its right output.

Only the difference is carried on, f(x + d) − f(x): what other ops do wrong stays in their outputs (VERDICT.md §8).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from precision_tool.lib.diagnose.error_shape import Doubles, flat_doubles, norm
from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, Formula
from precision_tool.lib.diagnose.op_values import PARAMETER_TYPES, PASSING, NoValueError, Root
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import OpResult
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Input
from precision_tool.lib.ops.optimizers import updated_inputs

#: Multiplications and ops that carrying one error on may take.
_MAX_WORK, _MAX_OPS = 2e8, 400
#: Ops behind which nothing is to be computed, or is by those that read what they pass on.
_NOTHING_BEHIND = PASSING | PARAMETER_TYPES | {"NetOutput", "NoOp", "OutfeedEnqueueOp", "OutfeedEnqueueOpV2", "End"}
#: A deviation from the benchmark below this is rounding, of which nobody explains anything.
_NO_DEVIATION = 2.0**-20


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of an op's error on the last tensors of a run: those that nothing reads, and gradients.

    Attributes
    ----------
    target : str
        The tensor that it changes most.
    change : float
        The relative change of that tensor.
    explained : float or None
        The largest share of a last tensor's deviation from the benchmark that goes away with it; None without one.
    is_whole : bool
        Whether every op behind it could be computed.
    """

    target: str
    change: float
    explained: float | None
    is_whole: bool


def effect_of(recomputer: Recomputer, result: OpResult, deadline: float) -> Effect | None:
    """Return what an op's own error does; None where its right output, or that of no reader, can be computed.

    From `deadline` on (of the monotonic clock) it is carried no farther.
    """
    try:
        with np.errstate(all="ignore"), recomputer.values.reading():
            return _Replay(recomputer, result.op).effect(deadline)
    except (NoValueError, PrecisionToolError, MemoryError, *FORMULA_ERRORS):
        return None


class _Replay:
    """The way of one op's error through the run."""

    def __init__(self, recomputer: Recomputer, op: Op) -> None:
        self._recomputer, self._values, self._op = recomputer, recomputer.values, op
        self._computing = {id(other) for other in recomputer.computing}
        #: By how much outputs change, by root.
        self._changes: dict[tuple[int, int], Doubles] = {}
        self._roots: dict[tuple[int, int], Root] = {}
        self._is_whole = True

    def effect(self, deadline: float) -> Effect | None:
        """Return the effect on the last tensors."""
        for slot, change in self._first().items():
            self._set(Root(self._op, slot), change)
        waiting: list[tuple[int, int]] = []
        queued: set[int] = set()
        by_number: dict[int, Op] = {}

        def queue_readers(op: Op) -> None:
            for key in [key for key in self._changes if key[0] == id(op)]:
                for slot in self._values.readers(self._roots[key]):
                    number = self._values.number_of(slot.op)
                    if number not in queued and number > self._values.number_of(op):
                        queued.add(number)
                        by_number[number] = slot.op
                        heapq.heappush(waiting, (number, id(slot.op)))

        queue_readers(self._op)
        done = 0
        while waiting:
            number, _ = heapq.heappop(waiting)
            done += 1
            if done > _MAX_OPS or time.monotonic() > deadline:
                self._is_whole = False
                break
            op = by_number[number]
            if self._carry(op):
                queue_readers(op)
        return self._on_targets()

    def _first(self) -> dict[int, Doubles]:
        """Return what is to be added to each output of the op to make it right."""
        recomputer = self._recomputer
        op_inputs = recomputer.inputs_of(self._op)
        formula = self._formula(self._op, op_inputs.inputs)
        if formula is None:
            return {}
        true = formula.run(op_inputs.inputs)
        changes = {}
        for slot, tensor in recomputer.outputs(self._op).items():
            if slot in true:
                have = self._values.load(tensor, self._op.output_desc(slot)).array
                if have.size == true[slot].array.size and have.dtype.kind == "f":
                    change = flat_doubles(true[slot].array) - flat_doubles(have)
                    changes[slot] = np.where(np.isfinite(change), change, 0.0)
        return changes

    def _formula(self, op: Op, inputs: Mapping[int, Input]) -> Formula | None:
        op_inputs = self._recomputer.inputs_of(op)
        formula = next(self._recomputer.candidates.without_search(op, op_inputs), None)
        return None if formula is None or formula.lent or formula.work(inputs) > _MAX_WORK else formula

    def _set(self, root: Root, change: Doubles) -> None:
        if change.any():
            self._changes[root.key] = change
            self._roots[root.key] = root

    def _carry(self, op: Op) -> bool:
        """Compute an op from its changed inputs; return False where that cannot be done."""
        if id(op) not in self._computing:
            self._is_whole &= op.type in _NOTHING_BEHIND
            return False
        try:
            op_inputs = self._recomputer.inputs_of(op)
            formula = self._formula(op, op_inputs.inputs)
            if formula is None or op_inputs.missing:
                raise NoValueError("fused_unknown")
            changed = dict(op_inputs.inputs)
            for slot in self._values.input_slots(op):
                root = self._values.source_of(slot)
                change = self._changes.get(root.key) if root is not None else None
                given = changed.get(slot.index)
                if change is None or given is None or given.array.size != change.size or given.array.dtype.kind != "f":
                    continue
                changed[slot.index] = replace(given, array=given.array + change.reshape(given.array.shape))
            before, after = formula.run(op_inputs.inputs), formula.run(changed)
        except (NoValueError, PrecisionToolError, *FORMULA_ERRORS):
            self._is_whole = False
            return False
        for index, out in after.items():
            if out.array.dtype.kind == "f":
                difference = flat_doubles(out.array) - flat_doubles(before[index].array)
                self._set(Root(op, index), np.where(np.isfinite(difference), difference, 0.0))
        return True

    def _targets(self) -> Iterator[tuple[tuple[int, int], Root]]:
        """Yield the changed tensors that nothing reads, or that update a variable; all, where there are none."""
        last = []
        for key, root in self._roots.items():
            readers = [slot.op for slot in self._values.readers(root)]
            is_update = bool(updated_inputs(root.op.type))
            if not is_update and (not readers or any(updated_inputs(reader.type) for reader in readers)):
                last.append((key, root))
        yield from last or [item for item in self._roots.items() if not updated_inputs(item[1].op.type)]

    def _on_targets(self) -> Effect | None:
        effects = []
        for key, root in self._targets():
            loaded = self._values.load_root(root)
            if loaded is None or loaded.input.array.size != self._changes[key].size:
                continue
            have, change = flat_doubles(loaded.input.array), self._changes[key]
            size = norm(have + change)
            relative = norm(change) / size if size else float(bool(change.any()))
            if isfinite(relative):
                effects.append((relative, root.name, self._explained(root, have, change)))
        if not effects:
            return None
        relative, target, _ = max(effects, key=lambda item: item[0])
        shares = [share for _, _, share in effects if share is not None]
        return Effect(target, relative, max(shares, default=None), self._is_whole)

    def _explained(self, root: Root, have: Doubles, change: Doubles) -> float | None:
        """Return the share of a tensor's deviation from the benchmark that goes away with the change."""
        golden = self._values.load_benchmark(root)
        if golden is None or golden.input.array.size != have.size:
            return None
        reference = flat_doubles(golden.input.array)
        before, size = norm(have - reference), norm(reference)
        if not isfinite(before) or not before > _NO_DEVIATION * size:
            return None
        return max(0.0, 1.0 - norm(have + change - reference) / before)
