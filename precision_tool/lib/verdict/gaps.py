"""Several ops of which no file was dumped, judged as one: from what is known before them to what is known behind.

What they put out between is not known, so that a wrong result accuses all of them together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite

import numpy as np

from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Input, NotComputedError, Output, Wanted
from precision_tool.lib.verdict.departed import is_random
from precision_tool.lib.verdict.formulas import Formula, Ref, Stage
from precision_tool.lib.verdict.in_blocks import narrowing
from precision_tool.lib.verdict.judge import Judge
from precision_tool.lib.verdict.judgement import Gap, OpJudgement, SlotJudgement, State
from precision_tool.lib.verdict.rounding import UNIT, misfit
from precision_tool.lib.verdict.slots import largest_of, slot_of
from precision_tool.lib.verdict.values import NoValueError, Root, Slot

#: Ops that are judged as one at most, elements that they are fed together, and multiplications that this may take.
_MOST_OPS, _MOST_ELEMENTS, _MOST_WORK = 6, 1 << 23, 1e9
#: Results between them are rounded to types of their own, whose effect is only estimated: they are wrong from here on,
#: as a relative distance and in units of what rounding explains.
_FAR, _BEYOND = 0.02, 20.0


def gaps(judge: Judge, judged: Sequence[OpJudgement]) -> Iterator[Gap]:
    """Every op that could not be recomputed for want of its inputs, with those before it that make them."""
    computing = {id(op) for op in judge.computing()}
    for one in judged:
        if time.monotonic() > judge.deadline:
            return
        if one.state is not State.NOT_RECOMPUTED or is_random(one.op) or one.is_dumped:
            continue
        try:
            with np.errstate(all="ignore"), judge.values.reading():
                found = _judged(judge, computing, one)
        except (NotComputedError, NoValueError, PrecisionToolError, MemoryError):
            continue
        except (ValueError, IndexError, TypeError, KeyError):
            continue  # a formula that the shapes contradict
        if found is not None:
            yield found


@dataclass(slots=True)
class _Chain:
    """The formulas of several ops, put together."""

    judge: Judge
    computing: set[int]
    stages: list[Stage] = field(default_factory=list)
    inputs: dict[int, Input] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    borrowed: list[Op] = field(default_factory=list)
    elements: int = 0
    _done: dict[int, dict[int, Ref]] = field(default_factory=dict)

    def add(self, op: Op) -> dict[int, Ref]:
        """Puts an op behind those that make what it is fed; its outputs by slot. NotComputedError says why not."""
        known = self._done.get(id(op))
        if known is not None:
            return known
        if len(self.ops) >= _MOST_OPS or id(op) not in self.computing or is_random(op):
            raise NotComputedError("no_formula", op_type=op.type)
        self.ops.append(op)
        self.elements += sum(
            tensor.size
            for root in self.judge.values.producers(op)
            for _, tensor in islice(self.judge.values.copies(root), 1)
        )
        if self.elements > _MOST_ELEMENTS:
            raise NotComputedError("too_many_elements", number=self.elements)
        fed = self.judge.fed(op)
        refs: dict[int, Ref] = {}
        for slot in self.judge.values.input_slots(op):
            if slot.index in fed.inputs:
                number = len(self.inputs)
                self.inputs[number] = fed.inputs[slot.index]
                refs[slot.index] = Ref(number)
            root = self.judge.values.fed_by.get((id(op), slot.graph_index))
            parameter = self.judge.values.parameter_of(root) if root is not None else None
            if parameter is not None and fed.elsewhere.get(slot.index) == "benchmark":
                self.borrowed.append(parameter)
            if slot.index in fed.inputs:
                continue
            if root is None:
                raise NotComputedError("fed_unknown", name=op.name, slot=slot.index)
            refs[slot.index] = self._output(root, slot)
        formula = next(self.judge.ways.known(op, fed), None)
        if formula is None or formula.lent:
            raise NotComputedError("fused_unknown")
        base = len(self.stages)
        for stage in formula.stages:
            args = tuple(ref and (refs[ref.slot] if ref.stage is None else _later(ref, base)) for ref in stage.args)
            self.stages.append(replace(stage, args=args))
        self.types |= {desc.dtype for desc in op.output_descs[:1] if desc.dtype in UNIT}
        self._done[id(op)] = {slot: _later(ref, base) for slot, ref in formula.outputs.items()}
        return self._done[id(op)]

    def _output(self, root: Root, slot: Slot) -> Ref:
        """What a slot is fed, in the shape that its op takes: ops that only give it another one are passed by."""
        made = self.add(root.op)
        if root.index not in made:
            raise NotComputedError("fed_without_formula", op_type=root.op.type)
        ref = made[root.index]
        put_out = root.op.output_descs[root.index].origin_shape if root.index < len(root.op.output_descs) else None
        taken = slot.desc.origin_shape if slot.desc is not None else None
        if taken is None or put_out is None or taken == put_out or min(taken, default=0) < 0:
            return ref
        self.stages.append(Stage(name=slot.name, op_type="Reshape", args=(ref,), wanted=(Wanted(shape=taken),)))
        return Ref(0, len(self.stages) - 1)


def _later(ref: Ref, base: int) -> Ref:
    return Ref(ref.slot, (ref.stage or 0) + base)


def _judged(judge: Judge, computing: set[int], one: OpJudgement) -> Gap | None:
    tensors = judge.outputs(one.op)
    if not tensors:
        return None
    chain = _Chain(judge, computing)
    outputs = chain.add(one.op)
    if len(chain.ops) < 2 or not all(isfinite(largest_of(fed)) for fed in chain.inputs.values()):
        return None
    formula = Formula(stages=tuple(chain.stages), outputs={slot: outputs[slot] for slot in tensors if slot in outputs})
    if not formula.outputs or formula.work(chain.inputs) > _MOST_WORK:
        return None
    coarsest = max(chain.types, key=lambda dtype: UNIT[dtype], default="float32")
    true, stored = formula.run(chain.inputs), formula.run(chain.inputs, coarsest)
    slots, is_wrong = [], False
    for slot, out in true.items():
        descs = one.op.output_descs
        have = judge.values.load(tensors[slot], descs[slot] if slot < len(descs) else None)
        found = _slot(slot, have, out, stored[slot], formula, chain.inputs, coarsest)
        if found is None:
            return None
        slots.append(found)
        is_wrong |= bool(found.beyond) and found.own > max(_FAR, _BEYOND * found.rounding)
    ops = sorted(chain.ops, key=lambda op: judge.values.order[id(op)])
    is_right = not any(found.beyond for found in slots)
    state = State.WRONG if is_wrong else State.RIGHT if is_right else State.DOUBTFUL
    return Gap(
        ops=ops,
        judgement=replace(one, state=state, reason=None, how=formula.how, slots=tuple(slots)),
        borrowed=chain.borrowed,
    )


def _slot(
    slot: int, have: Input, out: Output, stored: Output, formula: Formula, inputs: dict[int, Input], coarsest: str
) -> SlotJudgement | None:
    """One output held against the true one; what rounding between makes of it is that of all elements together.

    It is as exact as the `coarsest` type between.
    """
    if have.array.size != out.array.size or have.dtype not in UNIT or have.array.dtype.kind == "c":
        return None
    off = np.asarray(stored.array, np.float64).reshape(-1) - np.asarray(out.array, np.float64).reshape(-1)
    noise = np.full(off.shape, np.sqrt(np.mean(np.square(off))))
    fit = misfit(have.array, out, have.dtype, formula.kind, u_in=narrowing(formula, inputs), noise=noise)
    if not fit.compared.any():
        return None
    return slot_of(slot, replace(have, dtype=coarsest), out, fit, formula.kind)
