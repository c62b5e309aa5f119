"""How precise the device computes, by type of op, learned from a run: what stands out from it is a fault.

A device is less precise than float32 for good reasons: functions by tables, products in HF32, sums in tiles, subnormal
numbers flushed (VERDICT.md §7). All ops of a type share that, and it is small; a fault is in one op, or large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite, sqrt
from statistics import median, quantiles

import numpy as np

from precision_tool.lib.diagnose.error_shape import APPROXIMATED, MEAN_SQUARE, OF_ROUNDING, UNIT, Misfit, Mistake
from precision_tool.lib.diagnose.formulas import Formula
from precision_tool.lib.diagnose.verdict_model import OpResult, SlotResult, State
from precision_tool.lib.model.documents import NOT_STORED
from precision_tool.lib.ops import op_table as table
from precision_tool.lib.ops.base import Doubles, Input, Kind
from precision_tool.lib.ops.op_arguments import HALF

#: Relative error up to which the vendor accepts a kernel, by type of its output.
ACCEPTED = {"float32": 1e-4, "float16": 1e-3, "bfloat16": 1e-3, "float64": 1e-4}
#: What a kernel made of approximated functions may be off by, however exact its peers are, which read other values:
#: twice what is accepted in half precision, since the vector unit's own functions miss that too, whatever the type.
_FUNCTIONS = 2.0**-9
#: Two inputs that the matrix unit rounds to 10 bits, each by up to 2**-10 of it, as it does in HF32 on some products.
#: Of sums of few products that is what an element may be off by; of long ones it averages out.
_NARROWED = 2 * 2.0**-10
#: No device is taken to be less precise than this: an error of all ops of a type may be a fault.
_LARGEST = 2.0**-8
#: An op stands out if it is so many times as far off as its middle peer, of which it has at least so many.
_TIMES, _PEERS = 4.0, 3
#: Kinds of ops of which a kernel is made of approximated functions or sums of its own.
_APPROXIMATING = (Kind.APPROXIMATE, Kind.COMPOSITE, Kind.SUM)
#: Kinds whose errors are relative to the result, not to terms that may cancel, and elements that are many.
_SHOWN_BY_ALL, _MANY_ELEMENTS = (Kind.ROUNDED, Kind.APPROXIMATE, Kind.COMPOSITE), 256
#: The share of correctly rounded elements of an output that is not off as a whole.
_MOSTLY = 0.5
#: Mistakes of which every element is right, elsewhere, or none was written.
_MISPLACED = (Mistake.AXES, Mistake.SHIFTED, Mistake.ZERO)
#: Fewer elements do not tell a factor, nor do some of many: those that are off beside a zero may have one.
_MIN_SCALED, _ALL_OVER = 8, 0.9
#: A device flushes subnormal numbers if it puts out so few of them beside those that it flushed.
_FLUSHES = 0.05
#: Values of a type that a profile keeps.
KEPT = 64
#: Points of a curve, elements that they are made of at most, and at least for each.
CURVE, _MOST, _LEAST = 16, 1 << 16, 4
#: The relative distance that rounding a number once makes (rms), in float32; products in HF32 round their inputs to
#: 12 bits less, and that is what their rounding allows for.
_ONCE, _HF32 = sqrt(MEAN_SQUARE) * UNIT["float32"], 2.0**12
#: From here on, and within these bounds of what HF32 makes of it, the error of a product is that of HF32: float32 alone
#: is 2**12 times as exact, so the middle of the two is 2**6 below.
_HF32_FROM, _HF32_BETWEEN = 2.0**-17, (2.0**-6, 4.0)
#: Sums are bounded as if their terms were added one by one: a tree of K terms makes an error that is smaller by the
#: root of K over its logarithm, so much is a fourth from 2**9 terms on. Below this rounding there are fewer terms.
_TREE, _MANY_TERMS = 0.25, 2.0**-22

#: Types of the original ops, joined, and type of the output.
Key = tuple[str, str]
#: The error of a function over its input.
Curve = tuple[tuple[float, float], ...]


class SumOrder(StrEnum):
    """How a device adds up, by the error that this makes."""

    TREE = "tree"
    SEQUENTIAL = "sequential"
    #: With a larger error than float32 sums have, one by one.
    COARSE = "coarse"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePrecision:
    """Precision of one type of op with one type of output.

    Attributes
    ----------
    op_type : str
        The type, of a fused op those of its parts, joined by "+".
    dtype : str
        Type of the output.
    kind : Kind
        How its result is rounded.
    ops : int
        Outputs that were recomputed.
    imprecisions : tuple of float
        Errors beyond rounding, relative to all that goes into an element: of each output the largest but one element
        in ten thousand; sorted, at most 64 of them.
    own : float
        The middle one of the relative distances of the outputs from the exact result.
    rounding : float
        The same as the verdict's bounds make it: HF32 in products, and approximated functions, are allowed for.
    input_dtype : str
        Type of the floating inputs; "" where they are of several.
    curve : tuple of (float, float)
        Of a function of one input, the signed relative error by the input's value: the middle ones of each of at most
        16 parts of the values, which are in order and equally many.
    """

    op_type: str
    dtype: str
    kind: Kind
    ops: int
    imprecisions: tuple[float, ...]
    own: float
    rounding: float
    input_dtype: str = ""
    curve: Curve = ()

    @property
    def imprecision(self) -> float:
        """The middle one of the imprecisions."""
        return median(self.imprecisions)

    @property
    def is_accepted(self) -> bool:
        """Whether the vendor's acceptance rule for kernels holds."""
        return self.imprecision <= ACCEPTED.get(self.dtype, 0.0)

    @property
    def accepted(self) -> float:
        """The relative error up to which the vendor accepts a kernel of the type."""
        return ACCEPTED.get(self.dtype, 0.0)

    @property
    def float32(self) -> float:
        """What the middle distance would be if the device computed in float32, and rounded once at the end."""
        if self._may_be_hf32:
            return max(self.rounding / _HF32, _ONCE)
        if self.kind in APPROXIMATED and self.dtype == "float32" and self.rounding <= 1.01 * APPROXIMATED[self.kind]:
            return _ONCE
        return self.rounding

    @property
    def is_hf32(self) -> bool:
        """Whether its float32 products are as far off as inputs in HF32 make them."""
        low, high = _HF32_BETWEEN
        return self._may_be_hf32 and self.own >= _HF32_FROM and low * self.rounding <= self.own <= high * self.rounding

    @property
    def order(self) -> SumOrder | None:
        """How float32 sums are added up; None where their error does not tell."""
        is_sum = self.kind is Kind.SUM or (self.kind is Kind.MATRIX and self.input_dtype in HALF)
        if not is_sum or self.dtype != "float32" or self.rounding < _MANY_TERMS:
            return None
        if self.own < _TREE * self.rounding:
            return SumOrder.TREE
        return SumOrder.SEQUENTIAL if self.own <= self.rounding / _TREE else SumOrder.COARSE

    @property
    def _may_be_hf32(self) -> bool:
        specs = map(table.find, self.op_type.split("+"))
        has_products = any(spec is not None and spec.kind is Kind.MATRIX for spec in specs)
        return has_products and self.dtype == self.input_dtype == "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """Precision of a device, as one or several runs showed it.

    Attributes
    ----------
    types : tuple of TypePrecision
        By type of op.
    flushes : tuple of str
        Types whose subnormal numbers it flushes to zero.
    runs : int
        How many runs it was learned from.
    device : str
        What device it is; "" if the runs do not say.
    mode : mapping of str to str
        Settings that choose its kernels, as far as the runs say: "precision_mode", "overflow" and so on.
    path : str
        Its file, "" as long as it has none.
    """

    types: tuple[TypePrecision, ...] = ()
    flushes: tuple[str, ...] = ()
    runs: int = 1
    device: str = ""
    mode: Mapping[str, str] = field(default_factory=dict)
    path: str = field(default="", compare=False, metadata=NOT_STORED)


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device of a run, by which its ops are judged.

    `imprecisions` are those of this run by key and name of the op, `kinds` the kinds of the keys; `profile` is what
    earlier runs showed.
    """

    imprecisions: Mapping[Key, Mapping[str, float]] = field(default_factory=dict)
    kinds: Mapping[Key, Kind] = field(default_factory=dict)
    flushes: frozenset[str] = frozenset()
    profile: DeviceProfile | None = None
    #: The distances of this run's outputs from the exact ones beyond rounding, by key and name of the op.
    distances: Mapping[Key, Mapping[str, float]] = field(default_factory=dict)

    def tolerance(self, how: Sequence[str], dtype: str, kind: Kind, name: str) -> float:
        """Return the imprecision that is no fault of an op: what its peers have, within what can be a device's.

        Parameters
        ----------
        how : sequence of str
            Types of the original ops.
        dtype : str
            Type of the output.
        kind : Kind
            How the result is rounded.
        name : str
            The op, which is no peer of itself.
        """
        if kind is Kind.EXACT or dtype not in UNIT:
            return 0.0
        least = max(ACCEPTED[dtype], _FUNCTIONS) if kind in _APPROXIMATING else ACCEPTED[dtype]
        if kind is Kind.MATRIX:
            # The matrix unit multiplies half precision exactly and adds up in float32; only float32 may be narrowed.
            least = 0.0 if dtype in HALF else _NARROWED
        peers = self._of((_joined(how), dtype), name)
        if len(peers) < _PEERS:
            family = _APPROXIMATING if kind in _APPROXIMATING else (kind,)
            is_half = dtype in HALF
            relatives = [
                value for key, other in self.kinds.items()
                # What float32 products lose as their inputs are narrowed tells nothing of those in half precision.
                if other in family and (kind is not Kind.MATRIX or (key[1] in HALF) is is_half)
                for value in self._of(key, name)
            ]  # fmt: skip
            middle = quantiles(relatives, n=4)[2] if len(relatives) >= _PEERS else 0.0
        else:
            middle = median(peers)
        return min(max(least, _TIMES * middle), _LARGEST)

    def explains(self, slot: SlotResult, how: Sequence[str], name: str) -> bool:
        """Return whether the device's imprecision explains all that is off in an output."""
        if slot.flushed and slot.dtype not in self.flushes:
            return False
        if slot.places is not None and slot.places.mistake in OF_ROUNDING:
            return False
        tolerance = self.tolerance(how, slot.dtype, slot.kind, name)
        return slot.imprecision <= tolerance and not _is_structured(slot, tolerance)

    def is_structured(self, slot: SlotResult, how: Sequence[str], name: str) -> bool:
        """Return whether an output is off in a way that no imprecision is, however small it is beside its size."""
        return _is_structured(slot, self.tolerance(how, slot.dtype, slot.kind, name))

    def is_outlier(self, slot: SlotResult, how: Sequence[str], name: str) -> bool:
        """Return whether an output in half precision is farther off than its peers, though no element shows it.

        Of an element, rounding allows several units of half precision; of all elements together it allows for no more
        than their root mean square. So much more is an error of the whole, such as a factor.
        """
        if slot.kind not in _SHOWN_BY_ALL or slot.dtype not in HALF or slot.looked_at < _MANY_ELEMENTS:
            return False
        if slot.exact_share > _MOSTLY or slot.own <= 2 * slot.rounding:
            return False
        peers = [value for other, value in self.distances.get((_joined(how), slot.dtype), {}).items() if other != name]
        least = max(self.tolerance(how, slot.dtype, slot.kind, name), _TIMES * median(peers)) if peers else _LARGEST
        return beyond_rounding(slot) > least

    def _of(self, key: Key, name: str) -> list[float]:
        values = [value for other, value in self.imprecisions.get(key, {}).items() if other != name]
        if self.profile is not None:
            for entry in self.profile.types:
                if (entry.op_type, entry.dtype) == key:
                    values += entry.imprecisions
        return values


def beyond_rounding(slot: SlotResult) -> float:
    """Return the relative distance of an output from the exact one that rounding does not account for."""
    return sqrt(max(slot.own**2 - slot.rounding**2, 0.0)) if isfinite(slot.own) else 0.0


def _is_structured(slot: SlotResult, tolerance: float) -> bool:
    """Return whether the right values stand in wrong places, are times one factor, or none was written.

    Sums that cancel are small beside what was added up, so that even zero may be within the tolerance.
    """
    places = slot.places
    if places is None or slot.flushed == slot.beyond:
        return False
    most = max(_MIN_SCALED, _ALL_OVER * places.size)
    is_scaled = places.factor is not None and abs(places.factor - 1) > tolerance and places.wrong >= most
    return places.mistake in _MISPLACED or is_scaled


def learn(judged: Sequence[OpResult], profile: DeviceProfile | None = None) -> Device:
    """Return the device that ran these ops; a profile adds what other runs of it showed."""
    imprecisions: dict[Key, dict[str, float]] = {}
    distances: dict[Key, dict[str, float]] = {}
    kinds: dict[Key, Kind] = {}
    flushed: Counter[str] = Counter()
    subnormal: Counter[str] = Counter()
    for result, slot in _recomputed(judged):
        key = (_joined(result.how), slot.dtype)
        kinds.setdefault(key, slot.kind)
        of_key = imprecisions.setdefault(key, {})
        of_key[result.name] = max(of_key.get(result.name, 0.0), slot.imprecision)
        far = distances.setdefault(key, {})
        far[result.name] = max(far.get(result.name, 0.0), beyond_rounding(slot))
        flushed[slot.dtype] += slot.flushed
        subnormal[slot.dtype] += slot.subnormal
    for entry in profile.types if profile is not None else ():
        kinds.setdefault((entry.op_type, entry.dtype), entry.kind)
    flushes = {dtype for dtype, count in flushed.items() if count and subnormal[dtype] <= _FLUSHES * count}
    flushes |= set(profile.flushes if profile is not None else ())
    return Device(
        imprecisions=imprecisions, kinds=kinds, flushes=frozenset(flushes), profile=profile, distances=distances
    )  # fmt: skip


def profile_of(judged: Sequence[OpResult], device: Device) -> DeviceProfile:
    """Return what a run shows of its device: by the ops that are right, as far as its precision goes."""
    slots: dict[Key, list[SlotResult]] = {}
    input_dtypes: dict[Key, set[str]] = {}
    for result, slot in _recomputed(judged):
        is_told = all(map(isfinite, (slot.own, slot.rounding, slot.imprecision)))
        if result.state is State.RIGHT and slot.dtype in UNIT and is_told:
            key = (_joined(result.how), slot.dtype)
            slots.setdefault(key, []).append(slot)
            dtypes = {desc.dtype for desc in result.op.input_descs if desc.dtype in UNIT}
            input_dtypes.setdefault(key, set()).update(dtypes)
    types = tuple(
        TypePrecision(
            op_type=key[0], dtype=key[1], kind=of_type[0].kind, ops=len(of_type),
            imprecisions=_some(slot.imprecision for slot in of_type), own=median(slot.own for slot in of_type),
            rounding=median(slot.rounding for slot in of_type), input_dtype=_only(input_dtypes[key]),
            curve=_joined_curve(slot.curve for slot in of_type),
        )
        for key, of_type in sorted(slots.items())
    )  # fmt: skip
    return DeviceProfile(types=types, flushes=tuple(sorted(device.flushes)))


def mismatch(profile: DeviceProfile, other: DeviceProfile) -> tuple[str, str, str] | None:
    """Return the first thing in which two profiles are of different devices or modes: its name and both values.

    None where they may be of the same: what one of them does not say fits everything.
    """
    if profile.device and other.device and profile.device != other.device:
        return "device", profile.device, other.device
    for name in profile.mode:
        if name in other.mode and profile.mode[name] != other.mode[name]:
            return name, profile.mode[name], other.mode[name]
    return None


def merged(profiles: Sequence[DeviceProfile]) -> DeviceProfile:
    """Return the profile of all runs together. They must be of one device and mode, see `mismatch`."""
    by_key: dict[Key, list[TypePrecision]] = {}
    for profile in profiles:
        for entry in profile.types:
            by_key.setdefault((entry.op_type, entry.dtype), []).append(entry)
    types = tuple(
        replace(
            entries[0], ops=sum(entry.ops for entry in entries),
            imprecisions=_some(value for entry in entries for value in entry.imprecisions),
            own=median(entry.own for entry in entries), rounding=median(entry.rounding for entry in entries),
            input_dtype=_only({entry.input_dtype for entry in entries}),
            curve=_joined_curve(entry.curve for entry in entries),
        )
        for _, entries in sorted(by_key.items())
    )  # fmt: skip
    return DeviceProfile(
        types=types,
        flushes=tuple(sorted({dtype for profile in profiles for dtype in profile.flushes})),
        runs=sum(profile.runs for profile in profiles),
        device=next((profile.device for profile in profiles if profile.device), ""),
        mode={name: value for profile in reversed(profiles) for name, value in profile.mode.items()},
    )


def curve_of(formula: Formula, inputs: Mapping[int, Input], fit: Misfit) -> Curve:
    """Return the relative error of an approximated function of one input by the input's value; () for other ops.

    The elements are put in the order of their inputs and cut into at most 16 parts of equal size; of each these are the
    median of the input and of (y − f) / f, with its sign. An approximation by tables or steps has one curve wherever it
    stands; a fault that depends on the place has none.
    """
    floats = [tensor for tensor in inputs.values() if tensor.dtype in UNIT]
    if len(formula.stages) != 1 or formula.kind is not Kind.APPROXIMATE or len(floats) != 1:
        return ()
    values = np.asarray(floats[0].array, np.float64).reshape(-1)
    if values.size != fit.true.size:
        return ()
    step = -(-values.size // _MOST) if values.size else 1
    x, y, f = values[::step], fit.got[::step], fit.true[::step]
    with np.errstate(all="ignore"):
        errors = (y - f) / f
    is_told = np.isfinite(x) & np.isfinite(errors)
    order = np.argsort(x[is_told], kind="stable")
    return _in_parts(x[is_told][order], errors[is_told][order], _LEAST)


def _joined_curve(curves: Iterable[Curve]) -> Curve:
    """Return the curve of the points of several."""
    points = sorted(point for curve in curves for point in curve)
    if len(points) <= CURVE:
        return tuple(points)
    x, errors = np.array(points).T
    return _in_parts(x, errors, 1)


def _in_parts(x: Doubles, errors: Doubles, least: int) -> Curve:
    count = min(CURVE, x.size // least)
    if not count:
        return ()
    parts = zip(np.array_split(x, count), np.array_split(errors, count), strict=True)
    return tuple((float(np.median(part)), float(np.median(error))) for part, error in parts)


def _only(dtypes: set[str]) -> str:
    return next(iter(dtypes)) if len(dtypes) == 1 else ""


def _recomputed(judged: Sequence[OpResult]) -> Iterable[tuple[OpResult, SlotResult]]:
    for result in judged:
        if result.state is not State.NOT_RECOMPUTED and result.finite_inputs and not result.is_guessed:
            for slot in result.slots:
                yield result, slot


def _some(values: Iterable[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= KEPT:
        return tuple(ordered)
    return tuple(ordered[round(number * (len(ordered) - 1) / (KEPT - 1))] for number in range(KEPT))


def _joined(how: Sequence[str]) -> str:
    return "+".join(how)
