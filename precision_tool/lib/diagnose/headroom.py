"""How the range of a type is spent: the way that leads to an op, and the loss scale that would fit.

Headroom is log2(largest number of the type / largest size in the tensor): 0 bits where the limit is reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, isnan, log2
from statistics import median

from precision_tool.lib.compare.run_values import OpInput, RunOp, RunValues
from precision_tool.lib.compare.tensor_figures import figures_of
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.messages import Message
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
    """True for an op of the backward pass, by its name or those of the script's ops it was made of."""
    originals = (op.op.original_names or ()) if op.op is not None else ()
    return is_gradient_name(op.name, *originals)


def is_gradient_name(*names: str) -> bool:
    """True if one of the names of an op is that of an op of the backward pass."""
    return any(_GRADIENT.search(name) for name in names)


def trail_to(values: RunValues, op: RunOp, slot: int, golden: Golden | None = None) -> tuple[TrailStep, ...]:
    """The ops that lead to output `slot` of an op, first to last: always back to the input with the largest values."""
    tensor = dict(values.outputs(op)).get(slot)
    found = None if tensor is None else values.extremes(tensor)
    if found is None:
        return ()
    true = _size(golden, op, slot)
    name = f"output:{slot}"
    steps: list[TrailStep] = []
    seen: set[int] = set()
    while len(steps) < _MAX_STEPS:
        seen.add(op.number)
        driver = _driver(values, op)
        growth = _growth(1.0 if driver is None else driver[1].largest, found, true)
        steps.append(
            TrailStep(op_name=op.name, op_type=op.op_type, slot=name, extremes=found, growth=growth, true_largest=true)
        )
        if driver is None:
            break
        fed, found = driver
        true = None
        made = values.made_by(op, fed.slot)
        if made is None or made[0].number in seen:
            label = fed.producer or f"input of {op.name}"
            steps.append(
                TrailStep(
                    op_name=label,
                    op_type=fed.producer_type,
                    slot=f"input:{fed.slot}",
                    extremes=found,
                    growth=_growth(1.0, found, None),
                    dumped=False,
                )
            )
            break
        op, name = made[0], f"output:{made[1]}"
    return tuple(reversed(steps))


def _driver(values: RunValues, op: RunOp) -> tuple[OpInput, Extremes] | None:
    """The input with the largest values."""
    candidates = []
    for fed in values.inputs(op):
        known = None if fed.tensor is None else values.extremes(fed.tensor)
        if known is not None and known.largest > 0:
            candidates.append((fed, known))
    return max(candidates, key=lambda one: one[1].largest, default=None)


def _size(golden: Golden | None, op: RunOp, slot: int) -> float | None:
    """The largest size in the benchmark's tensor; None without one, and for one that has Inf or NaN itself."""
    found = None if golden is None else golden(op, slot)
    return None if found is None or not found.is_clean or not isfinite(found.largest) else found.largest


def _growth(before: float, after: Extremes, true: float | None) -> float | None:
    if true is None and (after.inf_count or after.nan_count):
        return None  # the largest finite value is not what it came to
    size = true if true is not None and after.bad else after.largest
    return log2(size) - log2(before) if size > 0 and isfinite(size) else None


# --- the loss scale ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """What to multiply the loss scale with: a power of two, exact or (`is_bound`) at most so much.

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
        return Message(
            "check.loss_scale.set",
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
    """The loss scale that keeps every float16 gradient below the limit by a bit; None without such gradients.

    `first` is the first op that overflowed. Behind an overflow the true sizes are only known from a benchmark.
    """
    gradients = list(_gradients(values))
    if not gradients:
        return None
    current, source = _current_scale(values)
    if first is not None and not is_gradient(first):
        return LossScale(
            reason=Message("check.loss_scale.forward_pass", op_name=first.name), current=current, source=source
        )
    bad = [one for one in gradients if not one[2].is_clean]
    if not bad:
        known = [one for one in gradients if not isnan(one[2].headroom)]
        op, _, extremes = min(known or gradients, key=lambda one: one[2].headroom)
        if not isfinite(extremes.headroom):
            are_zero = len(known) == len(gradients)
            return LossScale(
                reason=Message("check.loss_scale.zero" if are_zero else "check.loss_scale.unknown"),
                current=current,
                source=source,
            )
        return LossScale(
            reason=Message("check.loss_scale.bits_left", bits=extremes.headroom),
            exponent=floor(extremes.headroom) - MARGIN,
            is_bound=len(known) < len(gradients),
            current=current,
            source=source,
            tightest=op.name,
            headroom=extremes.headroom,
        )
    sizes = _true_sizes(gradients, bad, golden)
    if sizes is None:
        return LossScale(
            reason=Message("check.loss_scale.cut_off", gradients=len(bad)),
            exponent=-MARGIN,
            is_bound=True,
            current=current,
            source=source,
            tightest=bad[0][0].name,
        )
    need, worst = max((log2(size / one[2].limit), one[0].name) for one, size in zip(bad, sizes, strict=True))
    return LossScale(
        reason=Message("check.loss_scale.needs", op_name=worst, bits=need)
        if need > 0
        else Message("check.loss_scale.fits", bits=-need),
        exponent=-(ceil(need) + MARGIN),
        current=current,
        source=source,
        tightest=worst,
        headroom=-need,
    )


def _gradients(values: RunValues) -> Iterator[tuple[RunOp, int, Extremes]]:
    """The float16 outputs of the backward pass."""
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
    """What the sizes of the `bad` ones would be, by the benchmark, brought to the NPU's loss scale; None if unknown."""
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
    """The loss scale, where an op is fed by one that is called so: its value, and what it is called."""
    for op in values.ops:
        if op.op is None or not any(edge is not None and LOSS_SCALE.search(edge.producer) for edge in op.op.inputs):
            continue
        for fed in values.inputs(op):
            if not LOSS_SCALE.search(fed.producer) or not isinstance(fed.tensor, Tensor) or fed.tensor.size != 1:
                continue
            try:
                summary = values.known_summary(fed.tensor) or figures_of(fed.tensor).summary
            except PrecisionToolError:
                continue
            if isfinite(summary.maximum) and summary.maximum > 0:
                return float(summary.maximum), fed.producer
    return None, ""
