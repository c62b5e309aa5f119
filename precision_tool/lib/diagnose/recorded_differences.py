"""How far figures and checksums of two runs of one network are apart, call by call, and what explains it.

Checksums of equal bytes are equal. Figures of two right runs differ by what their types round. Each call hands on what
its inputs differ by, more of it where it subtracts numbers that are nearly alike; beyond that an output differs by
roundings of its own, of which Mean and Norm average most out. How much the parts of a network multiply what was rounded
before is not in the figures of single calls, but in what was seen so far: nothing is held against a call that differs
no more than `_GROWTH` times as much as any before it, or as a rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, sqrt

from precision_tool.lib.diagnose.recorded_statistics import (
    MAX,
    MEAN,
    MIN,
    NORM,
    Range,
    Statistics,
    largest_of,
    statistics_of_any,
)
from precision_tool.lib.io.data_types import FLOATS
from precision_tool.lib.io.msprobe_dump import data_type_of
from precision_tool.lib.model.msprobe import Direction, Literal, RecordedCall, RecordedTensor

#: The relative error that the vendor's acceptance of float32 kernels allows.
_ACCEPTED = 1e-4
#: How many times what was seen so far, or a rounding, a difference may be.
_GROWTH = 3.0
#: Functions that write the running statistics, and their places by the prefix.
_WITH_STATE = ("batch_norm", "instance_norm")
_STATE = {"Functional": (["input", "1"], ["input", "2"]), "Torch": (["input", "3"], ["input", "4"])}
#: The slots of what a call reads.
_READ = ("input", "kwargs", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a slot differs: the figure that differs most, on both sides, relative to its tensor, and what is allowed.

    A difference of checksums alone has no figure.
    """

    slot: str
    figure: str = ""
    value: float | None = None
    benchmark: float | None = None
    relative: float = 0.0
    allowed: float = 0.0

    @property
    def is_beyond(self) -> bool:
        """Whether it is more than what is allowed."""
        return self.relative > self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTensor:
    """A slot of a call on both sides, with the figures where they have some."""

    slot: str
    own: RecordedTensor
    other: RecordedTensor

    @property
    def is_comparable(self) -> bool:
        """Whether equal numbers have equal checksums."""
        own, other = self.own, self.other
        lengths = len(own.checksum), len(other.checksum)
        return lengths[0] == lengths[1] > 0 and (own.dtype, own.shape) == (other.dtype, other.shape)

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same bytes, as far as checksums tell."""
        return self.is_comparable and self.own.checksum == self.other.checksum

    @property
    def has_same_figures(self) -> bool:
        """Whether all figures are recorded and the same."""
        own, other = self.own, self.other
        figures = (own.maximum, own.minimum, own.mean, own.norm)
        return own.maximum is not None and figures == (other.maximum, other.minimum, other.mean, other.norm)


def paired(call: RecordedCall, twin: RecordedCall, *, outputs: bool) -> Iterator[PairedTensor]:
    """Return the tensors that a call put out, or those that it read, with the benchmark's of the same slot."""
    others = dict(twin.tensors())
    for slot, tensor in call.tensors():
        if (slot.partition(".")[0] == "output") == outputs and slot in others and tensor.shape == others[slot].shape:
            yield PairedTensor(slot=slot, own=tensor, other=others[slot])


def difference_of(pair: PairedTensor, *, elements: bool) -> Difference | None:
    """Return how far the figures of a slot are apart; None where one side has none, or another size.

    Parameters
    ----------
    pair : PairedTensor
        The slot.
    elements : bool
        Whether Max and Min count as well: each is one element, in which no rounding averages out.
    """
    own, other = statistics_of_any(pair.own), statistics_of_any(pair.other)
    if own is None or other is None or own.count != other.count:
        return None
    if not own.is_finite or not other.is_finite:
        # What overflows in a type of less range, or is zero there and divided by, is no fault of the kernel.
        narrower = largest_of(own.dtype) < 0.5 * largest_of(other.dtype)
        if own.is_finite or not other.is_finite or narrower:
            return None
        figure = MIN if isfinite(own.maximum) else MAX
        value, benchmark = (own.minimum, other.minimum) if figure == MIN else (own.maximum, other.maximum)
        return Difference(slot=pair.slot, figure=figure, value=value, benchmark=benchmark, relative=inf)
    exact = not own.unit and not other.unit
    size = max(own.largest, other.largest)
    rms = max(own.rms, other.rms)
    tiny = max(own.tiny, other.tiny)
    candidates = []
    for figure, scale, amount in (
        (MAX, size, tiny), (MIN, size, tiny), (MEAN, rms, tiny), (NORM, rms * sqrt(own.count), tiny * sqrt(own.count))
    ):  # fmt: skip
        left, right = own.range_of(figure), other.range_of(figure)
        if left is None or right is None or (figure in (MAX, MIN) and not (elements or exact)):
            continue
        gap = max(left.low - right.high, right.low - left.high, 0.0)
        relative = max(gap - amount, 0.0) / scale if scale else 0.0
        candidates.append((relative, figure, left, right))
    if not candidates:
        return None
    relative, figure, left, right = max(candidates, key=lambda item: item[0])
    return Difference(
        slot=pair.slot, figure=figure, value=_middle(left), benchmark=_middle(right), relative=relative
    )  # fmt: skip


def _middle(limits: Range) -> float:
    return (limits.low + limits.high) / 2


def unit_of(call: RecordedCall, twin: RecordedCall) -> float:
    """Return what a kernel's output may differ by for rounding alone, relative to its size."""
    sides = [*_floats(call), *_floats(twin)]
    tiny = max((statistics.tiny for statistics in sides), default=0.0)
    # Numbers near the smallest of a type are rounded by more than others.
    units = [max(statistics.unit, tiny / statistics.rms) for statistics in sides if statistics.rms]
    return max([_ACCEPTED, *units])


def is_overwritten(call: RecordedCall, slot: str) -> bool:
    """Return whether a function writes into what it reads in a slot."""
    name = call.call
    if name is None or name.is_module or name.direction is not Direction.FORWARD:
        return False
    place = slot.split(".")[:2]
    if name.name in _WITH_STATE:
        return place in _STATE.get(name.prefix, _STATE["Functional"])
    argument = call.kwargs.get("inplace")
    writes = isinstance(argument, Literal) and argument.value is True
    writes |= name.name.startswith("__i") if name.name.endswith("__") else name.name.endswith("_")
    return writes and place == ["input", "0"]


def allowed_of_same(unit: float, amplification: float) -> float:
    """Return the largest difference of what two kernels make of the same bytes: a rounding of each."""
    return 2 * unit * amplification


def allowed_of(unit: float, seen: float, amplification: float) -> float:
    """Return the largest difference that is held against nobody.

    Parameters
    ----------
    unit : float
        What rounding makes of the output.
    seen : float
        The largest difference of a call before it, and of what it read.
    amplification : float
        How much the call multiplies the error of what it reads.
    """
    return _GROWTH * max(unit, seen) * amplification


def amplification_of(call: RecordedCall, forward: RecordedCall | None) -> float:
    """Return how much a function multiplies relative errors of its inputs, as their figures tell; 1 at least.

    Sums and means lose what cancels, norms divide by what varies, and exponents are relative errors of the result. The
    gradient of a norm loses what would only shift or scale a row: nearly all of it, if the loss asks for that.
    """
    name = call.call
    if name is None:
        return 1.0
    source = forward if forward is not None else call
    inputs = [tensor for slot, tensor in _statistics(source) if slot.partition(".")[0] in _READ]
    outputs = [tensor for slot, tensor in _statistics(source) if slot.startswith("output")]
    if not inputs or not outputs:
        return 1.0
    x, y = inputs[0], outputs[0]
    plain = name.class_name if name.is_module else name.name
    factor = 1.0
    if any(word in plain for word in ("add", "sub", "lerp", "sum", "mean", "cat", "stack")):
        least = y.norm.low / sqrt(y.count) if y.norm else y.largest
        most = sum(tensor.rms for tensor in inputs) * (x.count / y.count if plain == "sum" else 1.0)
        factor = most / least if least else 1.0
    elif "norm" in plain.lower() and x.norm and x.mean:
        nearest = min(abs(x.mean.low), abs(x.mean.high))
        variance = x.rms * x.rms - nearest * nearest
        factor = x.rms / sqrt(variance) if variance > 0 else 1.0
        if source is not call and variance > 0:
            factor *= _lost_in_gradient(call, y.rms / sqrt(variance))
    elif any(word in plain.lower() for word in ("softmax", "exp", "cross_entropy")):
        factor = x.rms
    return max(factor, 1.0)


def _lost_in_gradient(call: RecordedCall, slope: float) -> float:
    """Return how many times as large a gradient was before what cancels was taken away; 1 at least."""
    figures = dict(_statistics(call))
    dy, dx = figures.get("input.0"), figures.get("output.0")
    if dy is None or dx is None or dy.shape != dx.shape or dx.norm is None or not dx.norm.low:
        return 1.0
    return max(dy.rms * slope * sqrt(dx.count) / dx.norm.low, 1.0)


def _statistics(call: RecordedCall) -> Iterator[tuple[str, Statistics]]:
    for slot, tensor in call.tensors():
        statistics = statistics_of_any(tensor)
        if statistics is not None and statistics.is_finite and statistics.unit:
            yield slot, statistics


def _floats(call: RecordedCall) -> Iterator[Statistics]:
    return (statistics for _, statistics in _statistics(call))


def judged_outputs(call: RecordedCall, forward: RecordedCall | None, *, reads_same: bool) -> frozenset[str]:
    """Return the slots of outputs whose figures say something about the kernel.

    Gradients of parameters are sums in which most may cancel: of a bias before a batch norm all of it. Whole numbers
    and bools are places and decisions, which the least rounding of what was read may turn, unless `reads_same` bytes.
    """
    outputs = [
        (slot, tensor) for slot, tensor in call.tensors()
        if slot.startswith("output") and (reads_same or data_type_of(tensor.dtype) in FLOATS)
    ]  # fmt: skip
    if call.call is None or call.call.direction is Direction.FORWARD:
        return frozenset(slot for slot, _ in outputs)
    shapes = {tensor.shape for slot, tensor in call.tensors() if slot.startswith("input")}
    if forward is not None:
        shapes |= {tensor.shape for slot, tensor in forward.tensors() if slot == "input.0"}
    return frozenset(slot for slot, tensor in outputs if tensor.shape in shapes)
