"""How precise the device computes, by type of op, learned from a run: what stands out from it is a fault.

A device is less precise than float32 for good reasons: functions by tables, products in HF32, sums in tiles, subnormal
numbers flushed (VERDICT.md §7). All ops of a type share that, and it is small; a fault is in one op, or large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from statistics import median, quantiles

from precision_tool.lib.diagnose.error_shape import OF_ROUNDING, UNIT
from precision_tool.lib.diagnose.verdict_model import OpResult, SlotResult, State
from precision_tool.lib.ops.base import Kind

#: Relative error up to which the vendor accepts a kernel, by type of its output.
ACCEPTED = {"float32": 1e-4, "float16": 1e-3, "bfloat16": 1e-3, "float64": 1e-4}
#: Of a type without peers, what a kernel made of approximated functions may be off by: twice what is accepted in half
#: precision, since the vector unit's own functions do not reach that either, whatever the type.
_ALONE = 2.0**-9
#: Two inputs in float32 that the matrix unit rounds to 10 bits, as it does in HF32 on some products.
_NARROWED = 2 * 2.0**-11
#: No device is taken to be less precise than this: an error of all ops of a type may be a fault.
_LARGEST = 2.0**-8
#: An op stands out if it is so many times as far off as its middle peer, of which it has at least so many.
_TIMES, _PEERS = 4.0, 3
_HALF = ("float16", "bfloat16")
#: Kinds of ops of which a kernel is made of approximated functions or sums of its own.
_APPROXIMATING = (Kind.APPROXIMATE, Kind.COMPOSITE, Kind.SUM)
#: A device flushes subnormal numbers if it puts out so few of them beside those that it flushed.
_FLUSHES = 0.05
#: Values of a type that a profile keeps.
_KEPT = 64

#: Types of the original ops, joined, and type of the output.
Key = tuple[str, str]


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
        The same as float32 arithmetic would make it.
    """

    op_type: str
    dtype: str
    kind: Kind
    ops: int
    imprecisions: tuple[float, ...]
    own: float
    rounding: float

    @property
    def imprecision(self) -> float:
        """The middle one of the imprecisions."""
        return median(self.imprecisions)

    @property
    def is_accepted(self) -> bool:
        """Whether the vendor's acceptance rule for kernels holds."""
        return self.imprecision <= ACCEPTED.get(self.dtype, 0.0)


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
    """

    types: tuple[TypePrecision, ...] = ()
    flushes: tuple[str, ...] = ()
    runs: int = 1


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
        least = max(ACCEPTED[dtype], _ALONE) if kind in _APPROXIMATING else ACCEPTED[dtype]
        if kind is Kind.MATRIX:
            # The matrix unit multiplies half precision exactly and adds up in float32; only float32 may be narrowed.
            least = 0.0 if dtype in _HALF else _NARROWED
        peers = self._of((_joined(how), dtype), name)
        if len(peers) < _PEERS:
            family = _APPROXIMATING if kind in _APPROXIMATING else (kind,)
            relatives = [value for key, other in self.kinds.items() if other in family for value in self._of(key, name)]
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
        return slot.imprecision <= self.tolerance(how, slot.dtype, slot.kind, name)

    def _of(self, key: Key, name: str) -> list[float]:
        values = [value for other, value in self.imprecisions.get(key, {}).items() if other != name]
        if self.profile is not None:
            for entry in self.profile.types:
                if (entry.op_type, entry.dtype) == key:
                    values += entry.imprecisions
        return values


def learn(judged: Sequence[OpResult], profile: DeviceProfile | None = None) -> Device:
    """Return the device that ran these ops; a profile adds what other runs of it showed."""
    imprecisions: dict[Key, dict[str, float]] = {}
    kinds: dict[Key, Kind] = {}
    flushed: Counter[str] = Counter()
    subnormal: Counter[str] = Counter()
    for result, slot in _recomputed(judged):
        key = (_joined(result.how), slot.dtype)
        kinds.setdefault(key, slot.kind)
        of_key = imprecisions.setdefault(key, {})
        of_key[result.name] = max(of_key.get(result.name, 0.0), slot.imprecision)
        flushed[slot.dtype] += slot.flushed
        subnormal[slot.dtype] += slot.subnormal
    for entry in profile.types if profile is not None else ():
        kinds.setdefault((entry.op_type, entry.dtype), entry.kind)
    flushes = {dtype for dtype, count in flushed.items() if count and subnormal[dtype] <= _FLUSHES * count}
    flushes |= set(profile.flushes if profile is not None else ())
    return Device(imprecisions=imprecisions, kinds=kinds, flushes=frozenset(flushes), profile=profile)


def profile_of(judged: Sequence[OpResult], device: Device) -> DeviceProfile:
    """Return what a run shows of its device, without the ops that are wrong."""
    slots: dict[Key, list[SlotResult]] = {}
    for result, slot in _recomputed(judged):
        if result.state is not State.WRONG and slot.dtype in UNIT and isfinite(slot.own):
            slots.setdefault((_joined(result.how), slot.dtype), []).append(slot)
    types = tuple(
        TypePrecision(
            op_type=op_type, dtype=dtype, kind=of_type[0].kind, ops=len(of_type),
            imprecisions=_some(slot.imprecision for slot in of_type), own=median(slot.own for slot in of_type),
            rounding=median(slot.rounding for slot in of_type),
        )
        for (op_type, dtype), of_type in sorted(slots.items())
    )  # fmt: skip
    return DeviceProfile(types=types, flushes=tuple(sorted(device.flushes)))


def merged(profiles: Sequence[DeviceProfile]) -> DeviceProfile:
    """Return the profile of all runs together."""
    by_key: dict[Key, list[TypePrecision]] = {}
    for profile in profiles:
        for entry in profile.types:
            by_key.setdefault((entry.op_type, entry.dtype), []).append(entry)
    types = tuple(
        replace(
            entries[0], ops=sum(entry.ops for entry in entries),
            imprecisions=_some(value for entry in entries for value in entry.imprecisions),
            own=median(entry.own for entry in entries), rounding=median(entry.rounding for entry in entries),
        )
        for _, entries in sorted(by_key.items())
    )  # fmt: skip
    flushes = sorted({dtype for profile in profiles for dtype in profile.flushes})
    return DeviceProfile(types=types, flushes=tuple(flushes), runs=sum(profile.runs for profile in profiles))


def _recomputed(judged: Sequence[OpResult]) -> Iterable[tuple[OpResult, SlotResult]]:
    for result in judged:
        if result.state is not State.NOT_RECOMPUTED and result.finite_inputs and not result.is_guessed:
            for slot in result.slots:
                yield result, slot


def _some(values: Iterable[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= _KEPT:
        return tuple(ordered)
    return tuple(ordered[round(number * (len(ordered) - 1) / (_KEPT - 1))] for number in range(_KEPT))


def _joined(how: Sequence[str]) -> str:
    return "+".join(how)
