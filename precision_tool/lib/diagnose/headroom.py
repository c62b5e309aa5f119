"""How the range of a type is spent: the way that leads to an op, and the loss scale that would fit.

Headroom is log2(largest number of the type / largest size in the tensor): 0 bits where the limit is reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, isfinite, isnan, log2
from statistics import median

from precision_tool.lib.compare.run_values import OpInput, RunOp, RunValues
from precision_tool.lib.compare.tensor_figures import figures_of
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Extremes
from precision_tool.lib.model.tensor import Tensor

#: The extremes of the benchmark's tensor for an op's output slot; None without one.
Golden = Callable[[RunOp, int], Extremes | None]

#: How names of ops of the backward pass begin, or go on after a scope.
_GRADIENT = re.compile(r"(?:^|[/_])gradient(?:s|_tape)[/_]", re.IGNORECASE)
LOSS_SCALE = re.compile(r"loss[/_]?scal(?:e|ing)", re.IGNORECASE)
#: The type that loss scales are made for.
_SCALED = "float16"
#: Bits that a fitting loss scale leaves free.
MARGIN = 1
_MAX_STEPS = 1000
#: Clean gradients that are compared with the benchmark's, to see whether both sides have one loss scale.
_COMPARED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailStep:
    """One op on the way: the tensor that goes on from it, and by how many bits it is larger than what it was fed.

    Of the first step `growth` is by how many bits it is larger than 1. `true_largest` is the benchmark's.
    """

    op_name: str
    op_type: str
    slot: str
    extremes: Extremes
    growth: float | None = None
    dumped: bool = True
    true_largest: float | None = None


def is_gradient(op: RunOp) -> bool:
    """Return True for an op of the backward pass, by its name or those of the script's ops it was made of."""
    originals = (op.op.original_names or ()) if op.op is not None else ()
    return is_gradient_name(op.name, *originals)


def is_gradient_name(*names: str) -> bool:
    """Return True if one of the names of an op is that of an op of the backward pass."""
    return any(_GRADIENT.search(name) for name in names)


def trail_to(values: RunValues, op: RunOp, slot: int, golden: Golden | None = None) -> tuple[TrailStep, ...]:
    """Return the ops that lead to output `slot` of an op, first to last, by the input with the largest values."""
    tensor = dict(values.outputs(op)).get(slot)
    extremes = None if tensor is None else values.extremes(tensor)
    if extremes is None:
        return ()
    true = _size(golden, op, slot)
    name = f"output:{slot}"
    steps: list[TrailStep] = []
    visited: set[int] = set()
    while len(steps) < _MAX_STEPS:
        visited.add(op.number)
        driver = _driver(values, op)
        growth = _growth(1.0 if driver is None else driver[1].largest, extremes, true)
        steps.append(
            TrailStep(
                op_name=op.name, op_type=op.op_type, slot=name, extremes=extremes, growth=growth, true_largest=true
            )
        )
        if driver is None:
            break
        source, extremes = driver
        true = None
        made = values.made_by(op, source.slot)
        if made is None or made[0].number in visited:
            label = source.producer or f"input of {op.name}"
            steps.append(
                TrailStep(
                    op_name=label,
                    op_type=source.producer_type,
                    slot=f"input:{source.slot}",
                    extremes=extremes,
                    growth=_growth(1.0, extremes, None),
                    dumped=False,
                )
            )
            break
        op, name = made[0], f"output:{made[1]}"
    return tuple(reversed(steps))


def _driver(values: RunValues, op: RunOp) -> tuple[OpInput, Extremes] | None:
    """Return the input with the largest values."""
    candidates = []
    for op_input in values.inputs(op):
        extremes = None if op_input.tensor is None else values.extremes(op_input.tensor)
        if extremes is not None and extremes.largest > 0:
            candidates.append((op_input, extremes))
    return max(candidates, key=lambda candidate: candidate[1].largest, default=None)


def _size(golden: Golden | None, op: RunOp, slot: int) -> float | None:
    """Return the largest size in the benchmark's tensor; None without one, and for one that has Inf or NaN itself."""
    extremes = None if golden is None else golden(op, slot)
    return None if extremes is None or not extremes.is_clean or not isfinite(extremes.largest) else extremes.largest


def _growth(before: float, after: Extremes, true: float | None) -> float | None:
    if true is None and (after.inf_count or after.nan_count):
        return None  # the largest finite value is not what it came to
    size = true if true is not None and after.bad else after.largest
    return log2(size) - log2(before) if size > 0 and isfinite(size) else None


# --- the loss scale ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Factor of the loss scale: a power of two, exact or (`is_bound`) an upper bound.

    `current` is the scale of the dump where it was found, in the op `source`. `exponent` is None where no scale helps.
    `tightest` is the gradient with the least headroom, `reason` says why the scale fits, or why none helps.
    """

    reason: Message
    exponent: int | None = None
    is_bound: bool = False
    current: float | None = None
    source: str = ""
    tightest: str = ""
    headroom: float = 0.0

    @property
    def fitting(self) -> float | None:
        """The scale that would fit, where the present one is known."""
        return None if self.current is None or self.exponent is None else self.current * 2.0**self.exponent


def scale_step(scale: LossScale) -> Message:
    """Return what to do with the loss scale; its exponent is known."""
    assert scale.exponent is not None
    if scale.fitting is not None:
        if scale.exponent == 0:
            return Message("check.loss_scale.keep")
        return Message(
            "check.loss_scale.raise" if scale.exponent > 0 else "check.loss_scale.set",
            fitting=scale.fitting,
            current=scale.current,
            source=scale.source,
            is_bound=scale.is_bound,
        )
    if scale.exponent == 0:
        return Message("check.loss_scale.keep")
    if scale.exponent > 0:
        return Message("check.loss_scale.multiply", factor=2**scale.exponent)
    return Message("check.loss_scale.divide", factor=2**-scale.exponent, is_bound=scale.is_bound)


def scale_message(scale: LossScale) -> Message:
    """Return the loss scale that fits, and why; or why none helps."""
    if scale.exponent is None:
        return scale.reason
    return Message("check.loss_scale.advice", step=scale_step(scale), reason=scale.reason)


def fitting_scale(values: RunValues, first: RunOp | None, golden: Golden | None = None) -> LossScale | None:
    """Return the loss scale that keeps every float16 gradient a bit below the limit; None without such gradients.

    `first` is the first op that overflowed. Behind an overflow the true sizes are only known from a benchmark.
    """
    gradients = list(_gradients(values))
    if not gradients:
        return None
    current, source = _current_scale(values)
    scale = partial(LossScale, current=current, source=source)
    if first is not None and not is_gradient(first):
        return scale(reason=Message("check.loss_scale.forward_pass", op_name=first.name))
    bad = [gradient for gradient in gradients if not gradient[2].is_clean]
    if not bad:
        measured = [gradient for gradient in gradients if not isnan(gradient[2].headroom)]
        op, _, extremes = min(measured or gradients, key=lambda gradient: gradient[2].headroom)
        if not isfinite(extremes.headroom):
            are_zero = len(measured) == len(gradients)
            return scale(reason=Message("check.loss_scale.zero" if are_zero else "check.loss_scale.unknown"))
        return scale(
            reason=Message("check.loss_scale.bits_left", bits=extremes.headroom),
            exponent=floor(extremes.headroom) - MARGIN,
            is_bound=len(measured) < len(gradients),
            tightest=op.name,
            headroom=extremes.headroom,
        )
    sizes = _true_sizes(gradients, bad, golden)
    if sizes is None:
        return scale(
            reason=Message("check.loss_scale.cut_off", gradients=len(bad)),
            exponent=-MARGIN,
            is_bound=True,
            tightest=bad[0][0].name,
        )
    need, worst = max(
        (log2(size / gradient[2].limit), gradient[0].name) for gradient, size in zip(bad, sizes, strict=True)
    )
    fits = Message("check.loss_scale.fits", bits=-need)
    reason = Message("check.loss_scale.needs", op_name=worst, bits=need) if need > 0 else fits
    return scale(reason=reason, exponent=-(ceil(need) + MARGIN), tightest=worst, headroom=-need)


def _gradients(values: RunValues) -> Iterator[tuple[RunOp, int, Extremes]]:
    """Return the float16 outputs of the backward pass."""
    for op in values.ops:
        if is_gradient(op):
            for slot, tensor in values.outputs(op):
                extremes = values.extremes(tensor) if tensor.dtype == _SCALED else None
                if extremes is not None:
                    yield op, slot, extremes


def _true_sizes(
    gradients: Sequence[tuple[RunOp, int, Extremes]],
    bad: Sequence[tuple[RunOp, int, Extremes]],
    golden: Golden | None,
) -> list[float] | None:
    """Return the benchmark's sizes of the `bad` gradients, at the NPU's loss scale; None if unknown."""
    sizes = [_size(golden, op, slot) for op, slot, _ in bad]
    if any(not size for size in sizes):
        return None
    ratios: list[float] = []
    for op, slot, extremes in gradients:
        if extremes.is_clean and extremes.largest > 0 and len(ratios) < _COMPARED:
            size = _size(golden, op, slot)
            if size:
                ratios.append(log2(extremes.largest / size))
    # Benchmarks are run without a loss scale as a rule: the clean gradients are then larger by a factor.
    shift = median(ratios) if ratios else 0.0
    return [float(size) * 2.0**shift for size in sizes if size is not None]


def _current_scale(values: RunValues) -> tuple[float | None, str]:
    """Return the value and the name of the loss scale, by the name of an op that provides it."""
    for op in values.ops:
        if op.op is None or not any(edge is not None and LOSS_SCALE.search(edge.producer) for edge in op.op.inputs):
            continue
        for op_input in values.inputs(op):
            if (
                not LOSS_SCALE.search(op_input.producer)
                or not isinstance(op_input.tensor, Tensor)
                or op_input.tensor.size != 1
            ):
                continue
            try:
                summary = values.known_summary(op_input.tensor) or figures_of(op_input.tensor).summary
            except PrecisionToolError:
                continue
            if isfinite(summary.maximum) and summary.maximum > 0:
                return float(summary.maximum), op_input.producer
    return None, ""
