"""Tensors of several ranks read as one: how they make up a benchmark's tensor, decided by values, and its metrics.

Which of the placements that shapes allow is right is decided on a sample, of which each file gives a few lines; then
each tensor is read once, in pieces. Small tensors are read once for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf, isfinite, isnan, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.compiled import kernel_of_thread
from precision_tool.lib.compare.pair_sums import KlSums, Sums, finish
from precision_tool.lib.compare.tensor_reader import Scratch, TensorReader, box_size
from precision_tool.lib.data.shard_map import Rule
from precision_tool.lib.data.sharding import (
    Placement,
    Shape,
    Shards,
    ShardTensor,
    Split,
    declared_placement,
    placements_of,
)
from precision_tool.lib.io.layouts import Box, own_plan, split_boxes
from precision_tool.lib.model.comparison import Metrics
from precision_tool.lib.model.msprobe import Direction
from precision_tool.lib.model.tensor import Tensor

Doubles = npt.NDArray[np.float64]
#: The indices of a sample along each axis.
Coordinates = tuple[npt.NDArray[np.intp], ...]

#: Tensors of up to so many elements are read whole and kept a while; so many bytes of them.
_WHOLE, _KEPT = 1 << 20, 256 << 20
#: Elements of a piece that is compared at a time.
_PIECE = 1 << 20
#: Indices of a sample along the last axis, in runs of this, and of the other axes together.
_RUN, _RUNS, _OUTER = 32, 4, 64
#: A placement is right where the sample is off by less than this; a less simple one has to be better by `_BETTER`.
_RIGHT, _BETTER = 0.05, 0.02
#: So many rows tell a vector that was added to all of them from what differs.
_ROWS = 8
#: Values that were copied, maybe in a narrower type, are off by less than this.
_EQUAL = 1e-3
#: Whole numbers that gradients of a mean over a part of the batch may be larger by agree within this.
_SCALE = 0.02


# --- values -----------------------------------------------------------------------------------------------------------


class Values(ABC):
    """An array whose values are read in parts."""

    shape: Shape

    @abstractmethod
    def box(self, box: Box) -> Doubles:
        """Return the values of a box."""

    @abstractmethod
    def grid(self, coordinates: Coordinates) -> Doubles:
        """Return the values at all combinations of indices along the axes, which rise."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


class _Kept:
    """The small tensors that were read last."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[tuple[str, int], Doubles] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, int], read: Callable[[], Doubles]) -> Doubles:
        if key in self._arrays:
            self._arrays.move_to_end(key)
            return self._arrays[key]
        array = self._arrays[key] = read()
        self._bytes += array.nbytes
        while self._bytes > _KEPT and len(self._arrays) > 1:
            self._bytes -= self._arrays.popitem(last=False)[1].nbytes
        return array


class Stored(Values):
    """A tensor in a file."""

    def __init__(self, tensor: Tensor, kept: _Kept) -> None:
        self._tensor, self._kept = tensor, kept
        self._plan = own_plan(tensor)
        self.shape = self._plan.logical_shape

    def _whole(self) -> Doubles:
        key = self._tensor.path, self._tensor.offset
        return self._kept.get(key, lambda: self._read(tuple((0, extent) for extent in self.shape)))

    def _read(self, box: Box) -> Doubles:
        reader = TensorReader(self._tensor, self._plan, np.dtype(np.float64), Scratch(), "shard")
        try:
            items = np.empty(box_size(box), np.float64)
            if items.size:
                reader.read_box(box, items)
        finally:
            reader.close()
        return items.reshape([stop - start for start, stop in box])

    def box(self, box: Box) -> Doubles:
        if self.size <= _WHOLE:
            taken: tuple[Any, ...] = tuple(slice(start, stop) for start, stop in box)
            part: Doubles = self._whole()[taken]
            return part
        return self._read(box)

    def grid(self, coordinates: Coordinates) -> Doubles:
        if self.size <= _WHOLE:
            place: tuple[Any, ...] = np.ix_(*coordinates)
            sample: Doubles = self._whole()[place]
            return sample
        *outer, last = coordinates
        values = np.empty([len(each) for each in coordinates])
        for place in product(*(range(len(each)) for each in outer)):
            at = tuple((int(each[number]), int(each[number]) + 1) for each, number in zip(outer, place, strict=True))
            for run in _runs(last):
                span = int(last[run.start]), int(last[run.stop - 1]) + 1
                values[(*place, run)] = self._read((*at, span)).reshape(-1)  # type: ignore[index]
        return values


def _runs(indices: npt.NDArray[np.intp]) -> Iterator[slice]:
    """Return the parts of rising indices that follow one another."""
    if not len(indices):
        return
    breaks = [0, *(np.flatnonzero(np.diff(indices) != 1) + 1), len(indices)]
    for start, stop in pairwise(breaks):
        yield slice(int(start), int(stop))


class Joined(Values):
    """Arrays behind one another along an axis."""

    def __init__(self, parts: Sequence[Values], axis: int) -> None:
        self._parts, self._axis = parts, axis
        lengths = [part.shape[axis] for part in parts]
        self._starts = [0, *np.cumsum(lengths).tolist()]
        shape = parts[0].shape
        self.shape = (*shape[:axis], sum(lengths), *shape[axis + 1 :])

    def box(self, box: Box) -> Doubles:
        low, high = box[self._axis]
        pieces = []
        for part, start in zip(self._parts, self._starts, strict=False):
            limits = max(low - start, 0), min(high - start, part.shape[self._axis])
            if limits[0] < limits[1]:
                pieces.append(part.box((*box[: self._axis], limits, *box[self._axis + 1 :])))
        return np.concatenate(pieces, self._axis) if pieces else np.empty([stop - start for start, stop in box])

    def grid(self, coordinates: Coordinates) -> Doubles:
        indices = coordinates[self._axis]
        pieces = []
        for part, start in zip(self._parts, self._starts, strict=False):
            own = indices[(indices >= start) & (indices < start + part.shape[self._axis])] - start
            if len(own):
                pieces.append(part.grid((*coordinates[: self._axis], own, *coordinates[self._axis + 1 :])))
        return np.concatenate(pieces, self._axis)


class Added(Values):
    """The sum of arrays, times a factor."""

    def __init__(self, parts: Sequence[Values], factor: float = 1.0) -> None:
        self._parts, self._factor = parts, factor
        self.shape = parts[0].shape

    def box(self, box: Box) -> Doubles:
        total = self._parts[0].box(box) * self._factor
        for part in self._parts[1:]:
            total += part.box(box) * self._factor
        return total

    def grid(self, coordinates: Coordinates) -> Doubles:
        with np.errstate(all="ignore"):
            return np.asarray(sum(part.grid(coordinates) for part in self._parts) * self._factor)


class Shifted(Values):
    """An array plus a vector along the last axis: what `other` has more, as its mean over a sample of the rows."""

    def __init__(self, values: Values, other: Values) -> None:
        self._values, self.shape = values, values.shape
        *outer, _ = sample_of(self.shape)
        rows = (*outer, np.arange(self.shape[-1]))
        with np.errstate(all="ignore"):
            apart = other.grid(rows) - values.grid(rows)
        self._vector = apart.reshape(-1, self.shape[-1]).mean(0)

    def box(self, box: Box) -> Doubles:
        low, high = box[-1]
        moved: Doubles = self._values.box(box) + self._vector[low:high]
        return moved

    def grid(self, coordinates: Coordinates) -> Doubles:
        moved: Doubles = self._values.grid(coordinates) + self._vector[coordinates[-1]]
        return moved


class Cut(Values):
    """Parts of an array along an axis, which follow one another here."""

    def __init__(self, values: Values, axis: int, spans: Sequence[tuple[int, int]]) -> None:
        self._values, self._axis = values, axis
        self._indices = np.concatenate([np.arange(*span) for span in spans])
        self.shape = (*values.shape[:axis], len(self._indices), *values.shape[axis + 1 :])

    def box(self, box: Box) -> Doubles:
        low, high = box[self._axis]
        indices = self._indices[low:high]
        pieces = []
        for run in _runs(indices):
            limits = int(indices[run.start]), int(indices[run.stop - 1]) + 1
            pieces.append(self._values.box((*box[: self._axis], limits, *box[self._axis + 1 :])))
        return np.concatenate(pieces, self._axis) if pieces else np.empty([stop - start for start, stop in box])

    def grid(self, coordinates: Coordinates) -> Doubles:
        own = self._indices[coordinates[self._axis]]
        return self._values.grid((*coordinates[: self._axis], own, *coordinates[self._axis + 1 :]))


class Flat(Values):
    """All elements of an array in one line."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.shape = (values.size,)

    def box(self, box: Box) -> Doubles:
        ((low, high),) = box
        shape = self._values.shape
        if not shape:
            return self._values.box(()).reshape(-1)[low:high]
        row = prod(shape[1:])
        first, last = low // row, -(-high // row)
        rows = self._values.box(((first, last), *((0, extent) for extent in shape[1:])))
        return rows.reshape(-1)[low - first * row : high - first * row]

    def grid(self, coordinates: Coordinates) -> Doubles:
        (indices,) = coordinates
        pieces = [self.box(((int(indices[run.start]), int(indices[run.stop - 1]) + 1),)) for run in _runs(indices)]
        return np.concatenate(pieces) if pieces else np.empty(0)


# --- distances --------------------------------------------------------------------------------------------------------


def sample_of(shape: Shape) -> Coordinates:
    """Return indices along each axis that a sample is taken at: runs of the last axis, single ones of the others."""
    if not shape:
        return ()
    *outer, last = shape
    each = []
    room = _OUTER
    for number, extent in enumerate(outer):
        count = min(extent, max(2, round(room ** (1 / (len(outer) - number)))))
        each.append(np.unique(np.linspace(0, extent - 1, count).astype(np.intp)) if extent else np.arange(0))
        room = max(1, room // max(count, 1))
    if last <= _RUN * _RUNS:
        return (*each, np.arange(last))
    starts = np.linspace(0, last - _RUN, _RUNS).astype(np.intp)
    return (*each, np.unique(np.concatenate([np.arange(start, start + _RUN) for start in starts])))


def distance(own: Doubles, other: Doubles) -> float:
    """Return the norm of the difference over that of `other`; inf where only one side is finite somewhere."""
    finite = np.isfinite(own) & np.isfinite(other)
    odd = ~finite
    if odd.any() and not np.array_equal(own[odd], other[odd], equal_nan=True):
        return inf
    own, other = own[finite], other[finite]
    error, size = float(np.linalg.norm(own - other)), float(np.linalg.norm(other))
    return 0.0 if error == 0 else error / size if size else inf


def _cost(value: float) -> float:
    return min(value, 1.0) if value == value else 1.0


# --- a tensor of both sides -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How the parts of the batch that a rank had one after the other make up one: along an axis, added, or copies."""

    axis: int | None = None
    is_sum: bool = False
    is_mean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How both sides' tensors make up one, and how far the sample of the NPU side is off, 0 to 1, over its groups."""

    npu: Placement
    golden: Placement
    npu_parts: Parts = Parts()
    golden_parts: Parts = Parts()
    cost: float = 1.0

    @property
    def is_right(self) -> bool:
        """Whether values agree with it, so that it is what the ranks were meant to have."""
        return self.cost < _RIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What one rank, or several whose sum is one, have in place of a slice of the benchmark's tensor."""

    ranks: tuple[int, ...]
    positions: tuple[int, ...]
    metrics: Metrics | None
    #: The norm of the difference over that of the benchmark's slice.
    distance: float


class MergedTensor:
    """A tensor of both sides, opened: evaluates placements, compares, and reads what else is asked of it."""

    def __init__(self, shards: Shards, kept: _Kept | None = None) -> None:
        kept = _Kept() if kept is None else kept
        self.shards = shards
        self.ranks = tuple(sorted(shards.npu))
        self._golden_ranks = tuple(sorted(shards.golden))
        self._npu = {rank: [_opened(each, kept) for each in shards.npu[rank]] for rank in self.ranks}
        self._golden = {rank: [_opened(each, kept) for each in shards.golden[rank]] for rank in self._golden_ranks}
        self._wholes: dict[tuple[Placement, Parts], Values | None] = {}

    # --- placements ---

    def fit(self, first: Fit | None = None, rule: Rule | None = None) -> Fit | None:
        """Return how the tensors make up one; None where no placement fits the shapes.

        Parameters
        ----------
        first : Fit, optional
            That of the same tensor in another layer, which is tried first, and taken where no other is right.
        rule : Rule, optional
            What the user says of it; by default, what DTensors say of themselves.
        """
        wanted = declared_placement(self.shards) if rule is None else rule.placement(len(self.ranks))
        if wanted is not None:
            fits = (self._evaluated(fit) for fit in self._candidates(wanted))
            return min((fit for fit in fits if fit is not None), key=lambda fit: fit.cost, default=None)
        if first is not None:
            again = self._evaluated(first)
            if again is not None and again.is_right:
                return again
        best: Fit | None = None
        for fit in self._candidates():
            found = self._evaluated(fit)
            if found is not None and (best is None or found.cost < best.cost - _BETTER):
                best = found
                if best.cost < _RIGHT / 10:
                    break
        if first is not None and (best is None or not best.is_right):
            return self._evaluated(first) or best
        return best

    def _candidates(self, wanted: Placement | None = None) -> Iterator[Fit]:
        """Return the placements that the shapes of both sides allow, the simplest first; or the one that is wanted."""
        for golden_parts in _part_modes(self._golden):
            for golden_placement in _wholes_of(self._shapes(self._golden, golden_parts)):
                whole = self._whole(golden_placement, golden_parts)
                if whole is None:
                    continue
                for npu_parts in _part_modes(self._npu):
                    shapes = self._shapes(self._npu, npu_parts)
                    if not shapes:
                        continue
                    allowed = placements_of(len(self.ranks), shapes, whole.shape) if wanted is None else (wanted,)
                    for placement in allowed:
                        yield Fit(
                            npu=placement, golden=golden_placement, npu_parts=npu_parts, golden_parts=golden_parts
                        )

    def _evaluated(self, fit: Fit) -> Fit | None:
        """Return the same with its cost, and the scale; None where the shapes do not allow it."""
        try:
            groups = self._groups(replace(fit, npu=replace(fit.npu, scale=1.0)))
        except (ValueError, IndexError):
            return None
        pairs = []
        for _, _, own, other in groups:
            if own.shape != other.shape:
                return None
            coordinates = sample_of(own.shape)
            pairs.append((own.grid(coordinates), other.grid(coordinates)))
        scale = _scale_of(pairs, self._scales(fit))
        cost = sum(_cost(distance(own * scale, other)) for own, other in pairs) / len(pairs)
        is_mean = fit.npu.is_sum and scale == 1 / fit.npu.terms
        return replace(fit, cost=cost, npu=replace(fit.npu, scale=scale, is_mean=is_mean))

    def _scales(self, fit: Fit) -> list[float]:
        """Return what sums and gradients may be off by: each rank took the mean over its part of the batch."""
        sides = []
        for placement, parts, count in (
            (fit.npu, fit.npu_parts, len(self._npu[self.ranks[0]])),
            (fit.golden, fit.golden_parts, len(self._golden[self._golden_ranks[0]])),
        ):
            own = {1, placement.terms, *(split.parts for split in placement.splits)}
            own |= {number * count for number in own} if parts != Parts() or count > 1 else set()
            sides.append(sorted(own) if self.shards.direction is not Direction.FORWARD else [1, placement.terms])
        members = len(self.ranks) if self.shards.direction is not Direction.FORWARD else 1
        ours = {*sides[0], members}
        return sorted({above / below for above in sides[1] for below in ours} | {
            above / below for above in ours for below in sides[1]
        }, key=lambda value: abs(np.log(value)))  # fmt: skip

    # --- how they are put together ---

    def _local(self, side: Mapping[int, Sequence[Values]], rank: int, parts: Parts) -> Values:
        values = side[rank]
        if len(values) == 1:
            return values[0]
        if parts.axis is not None:
            if len({(*each.shape[: parts.axis], *each.shape[parts.axis + 1 :]) for each in values}) > 1:
                raise ValueError
            return Joined(values, parts.axis)
        if parts.is_sum:
            if len({each.shape for each in values}) > 1:
                raise ValueError
            return Added(values, 1 / len(values) if parts.is_mean else 1.0)
        return values[-1]

    def _shapes(self, side: Mapping[int, Sequence[Values]], parts: Parts) -> list[Shape]:
        """Return the shape that each rank of a side has; none where its parts cannot be put together so."""
        try:
            return [self._local(side, rank, parts).shape for rank in sorted(side)]
        except ValueError:
            return []

    def _whole(self, placement: Placement, parts: Parts) -> Values | None:
        key = placement, parts
        if key not in self._wholes:
            try:
                members = [self._local(self._golden, rank, parts) for rank in self._golden_ranks]
                self._wholes[key] = _joined(placement, members)
            except (ValueError, IndexError):
                self._wholes[key] = None
        return self._wholes[key]

    def _groups(self, fit: Fit) -> list[tuple[tuple[int, ...], tuple[int, ...], Values, Values]]:
        """Return, for each slice that a rank or group has: ranks, positions, its values, those of the benchmark.

        ValueError where shapes do not allow the placement.
        """
        whole = self._whole(fit.golden, fit.golden_parts)
        if whole is None:
            raise ValueError
        members = [self._local(self._npu, rank, fit.npu_parts) for rank in self.ranks]
        groups = []
        for group in fit.npu.groups(len(members)):
            if len({members[member].shape for member in group}) > 1:
                raise ValueError
            positions = fit.npu.positions(group[0])
            parts = [members[member] for member in group]
            own = Added(parts) if len(group) > 1 else parts[0]
            own, other = _slice_of(fit.npu, positions, own, whole, members)
            if fit.npu.is_shifted:
                if own.shape != other.shape or prod(own.shape[:-1]) < _ROWS:
                    raise ValueError
                own = Shifted(own, other)
            groups.append((tuple(self.ranks[member] for member in group), positions, own, other))
        return groups

    # --- what is asked ---

    def compare(self, fit: Fit) -> tuple[Metrics | None, list[GroupResult]]:
        """Return the metrics of the whole, and of what each rank or group has. Errors as of the tensors' files.

        Of ranks with copies of one slice, the one that is farthest off counts for the whole.
        """
        results: list[GroupResult] = []
        worst: dict[tuple[int, ...], tuple[float, Sums]] = {}
        for ranks, positions, own, other in self._groups(fit):
            sums = _sums(own, other, fit.npu.scale)
            metrics = finish(sums, KlSums(), own.shape or (1,))[0]
            off = nan_to_inf(metrics.relative_euclidean_distance) if metrics is not None else 0.0
            results.append(GroupResult(ranks=ranks, positions=positions, metrics=metrics, distance=off))
            if positions not in worst or off > worst[positions][0]:
                worst[positions] = off, sums
        total = Sums()
        for _, sums in worst.values():
            total.add(sums)
        whole = self._whole(fit.golden, fit.golden_parts)
        shape = whole.shape if whole is not None and len(worst) == 1 else (max(total.size, 1),)
        return finish(total, KlSums(), shape or (1,))[0], results

    def distances(self, fit: Fit, rank: int) -> dict[tuple[int, ...], float]:
        """Return how far what a rank has is off each slice, on the sample; empty where ranks' sums are compared."""
        if fit.npu.is_sum or not fit.npu.splits:
            return {}
        whole = self._whole(fit.golden, fit.golden_parts)
        members = [self._local(self._npu, each, fit.npu_parts) for each in self.ranks]
        found: dict[tuple[int, ...], float] = {}
        if whole is None:
            return found
        for positions in product(*(range(split.parts) for split in fit.npu.splits)):
            try:
                own, other = _slice_of(fit.npu, positions, members[self.ranks.index(rank)], whole, members)
            except ValueError:
                continue  # a slice of another length, or one that no rank has
            if own.shape == other.shape:
                coordinates = sample_of(own.shape)
                found[positions] = distance(own.grid(coordinates) * fit.npu.scale, other.grid(coordinates))
        return found

    def pieces(self, fit: Fit, rank: int, count: int) -> tuple[int, list[int | None]] | None:
        """Return the axis along which the pieces that a rank gathered are in another order, and which each of them is.

        None where the rank has no copy, or its pieces are where they belong, or none of the benchmark's.
        """
        whole = self._whole(fit.golden, fit.golden_parts)
        if not fit.npu.is_copy or whole is None or count < 2:
            return None
        own = self._local(self._npu, rank, fit.npu_parts)
        if own.shape != whole.shape:
            return None
        for flat in (False, True):
            left, right = (Flat(own), Flat(whole)) if flat else (own, whole)
            for axis, extent in enumerate(left.shape):
                if extent % count or extent < count:
                    continue
                size = extent // count
                cuts = [(number * size, (number + 1) * size) for number in range(count)]
                theirs = [Cut(right, axis, [cut]) for cut in cuts]
                coordinates = sample_of(theirs[0].shape)
                wanted = [each.grid(coordinates) for each in theirs]
                held: list[int | None] = []
                for cut in cuts:
                    part = Cut(left, axis, [cut]).grid(coordinates)
                    off = [distance(part, each) for each in wanted]
                    best = min(range(count), key=off.__getitem__)
                    held.append(best if off[best] < _RIGHT else None)
                if None not in held and held != list(range(count)):
                    return (-1 if flat else axis), held
        return None

    def local_sample(self, rank: int, fit: Fit) -> Doubles:
        """Return the sample of what a rank has, without padding."""
        own, _ = self._held(rank, fit, self._whole(fit.golden, fit.golden_parts))
        return own.grid(sample_of(own.shape))

    def golden_sample(self, rank: int, fit: Fit) -> Doubles:
        """Return the sample of what a rank should have."""
        return self.wanted_sample(rank, fit, self)

    def wanted_sample(self, rank: int, fit: Fit, other: MergedTensor) -> Doubles:
        """Return the sample of what a rank would have if it had its slice of another tensor of the same shape."""
        _, wanted = self._held(rank, fit, other._whole(fit.golden, fit.golden_parts))
        return wanted.grid(sample_of(wanted.shape))

    def _held(self, rank: int, fit: Fit, whole: Values | None) -> tuple[Values, Values]:
        """Return what a rank has, and its slice of the whole."""
        members = [self._local(self._npu, each, fit.npu_parts) for each in self.ranks]
        member = self.ranks.index(rank)
        if whole is None:
            raise ValueError
        return _slice_of(fit.npu, fit.npu.positions(member), members[member], whole, members)

    def is_part_of(self, fit: Fit, rank: int, term: MergedTensor, term_fit: Fit) -> bool:
        """Return whether a rank has here just what it has of a sum, or its slice of that."""
        own, theirs = self._local(self._npu, rank, fit.npu_parts), term._local(term._npu, rank, term_fit.npu_parts)
        if own.shape != theirs.shape:
            whole = self._whole(fit.golden, fit.golden_parts)
            if whole is None or theirs.shape != whole.shape:
                return False
            own, theirs = self._held(rank, fit, theirs)
        coordinates = sample_of(own.shape)
        return own.shape == theirs.shape and distance(own.grid(coordinates), theirs.grid(coordinates)) < _EQUAL

    def least_alone(self, fit: Fit) -> float:
        """Return how far at least what a rank alone has is off a sum that it is a term of."""
        off = []
        for ranks, _, own, other in self._groups(fit):
            coordinates = sample_of(own.shape)
            wanted = other.grid(coordinates)
            for rank in ranks:
                part = self._local(self._npu, rank, fit.npu_parts)
                off.append(distance(part.grid(coordinates), wanted) if part.shape == own.shape else inf)
        return min(off, default=inf)


def nan_to_inf(value: float) -> float:
    """Return a distance, inf for one that is none."""
    return inf if isnan(value) else value


def new_cache() -> _Kept:
    """Return what keeps small tensors for those that are opened with it."""
    return _Kept()


def _opened(shard: ShardTensor, kept: _Kept) -> Values:
    return Stored(shard.leaf.read_tensor(shard.tensor), kept)


def is_compared(shards: Shards) -> bool:
    """Return whether all tensors were saved, as real numbers."""
    every = [each.tensor for side in (shards.npu, shards.golden) for tensors in side.values() for each in tensors]
    return all(tensor.data_name and "complex" not in tensor.dtype for tensor in every)


def _part_modes(side: Mapping[int, Sequence[Values]]) -> Iterator[Parts]:
    values = next(iter(side.values()))
    if len(values) == 1:
        yield Parts()
        return
    for axis in range(len(values[0].shape)):
        yield Parts(axis=axis)
    yield Parts()
    yield Parts(is_sum=True)
    yield Parts(is_sum=True, is_mean=True)


def _wholes_of(shapes: Sequence[Shape]) -> Iterator[Placement]:
    """Return the placements that the benchmark's own ranks may have."""
    members = len(shapes)
    if not members:
        return
    yield Placement()
    if members == 1 or len({len(shape) for shape in shapes}) > 1:
        return
    for terms in range(2, members + 1):
        if members % terms == 0:
            for stride in (each for each in range(1, members // terms + 1) if members // terms % each == 0):
                for axis in range(len(shapes[0])):
                    yield Placement(splits=(Split(axis, terms, stride),))
                yield Placement(terms=terms, stride=stride)


def _joined(placement: Placement, members: Sequence[Values]) -> Values:
    """Return what members have together. ValueError where their shapes do not allow it."""
    if placement.is_copy:
        return members[0]
    if placement.is_sum:
        group = placement.groups(len(members))[0]
        parts = [members[member] for member in group]
        if len({part.shape for part in parts}) > 1:
            raise ValueError
        return Added(parts)
    (split,) = placement.splits
    by_position: dict[int, Values] = {}
    for member, values in enumerate(members):
        by_position.setdefault(split.position(member), values)
    parts = [by_position[position] for position in sorted(by_position)]
    if len({(*part.shape[: split.axis], *part.shape[split.axis + 1 :]) for part in parts}) > 1:
        raise ValueError
    return Joined(parts, split.axis)


def _slice_of(
    placement: Placement, positions: tuple[int, ...], own: Values, whole: Values, members: Sequence[Values]
) -> tuple[Values, Values]:
    """Return what a rank has without padding, and the slice of the benchmark's tensor that it should be.

    ValueError where the slices do not make up the whole.
    """
    if placement.is_flat:
        own, whole = Flat(own), Flat(whole)
    for split, position in zip(placement.splits, positions, strict=True):
        extent = whole.shape[split.axis]
        if split.groups > 1:
            size = own.shape[split.axis] // split.groups
            starts = [group * split.parts * size + position * size for group in range(split.groups)]
            whole = Cut(whole, split.axis, [(start, start + size) for start in starts])
            continue
        lengths: dict[int, int] = {}
        for member, values in enumerate(members):
            shape = (values.size,) if placement.is_flat else values.shape
            lengths[split.position(placement.turn(member))] = shape[split.axis]
        if not all(before in lengths for before in range(position + 1)):
            raise ValueError
        total = sum(lengths.values())
        start = sum(lengths[before] for before in range(position))
        stop = min(start + lengths[position], extent)
        if total < extent or start > stop or lengths[position] != own.shape[split.axis]:
            raise ValueError
        whole = Cut(whole, split.axis, [(start, stop)])
        if stop - start < own.shape[split.axis]:
            own = Cut(own, split.axis, [(0, stop - start)])
    return own, whole


def _scale_of(pairs: Sequence[tuple[Doubles, Doubles]], allowed: Sequence[float]) -> float:
    """Return the factor of `allowed` that brings the first of each pair nearest to the second; 1 where none does."""
    with np.errstate(all="ignore"):
        dot = sum(float(np.vdot(own, other)) for own, other in pairs)
        squares = sum(float(np.vdot(own, own)) for own, _ in pairs)
    if not squares or not isfinite(dot) or not isfinite(squares):
        return 1.0
    factor = dot / squares
    return next((scale for scale in allowed if abs(factor / scale - 1) < _SCALE), 1.0)


def _sums(own: Values, other: Values, scale: float) -> Sums:
    """Return everything that is added up over two arrays, in pieces."""
    sums = Sums()
    position = 0
    for box in split_boxes(own.shape, (1,) * len(own.shape), _PIECE):
        left, right = np.ascontiguousarray(own.box(box)).reshape(-1), np.ascontiguousarray(other.box(box)).reshape(-1)
        kernel_of_thread().add_block(sums, left * scale if scale != 1 else left, right, position)
        position += left.size
    return sums


def describe(placement: Placement) -> dict[str, Any]:
    """Return a placement for JSON."""
    return {
        "splits": [
            {"axis": split.axis, "parts": split.parts, "stride": split.stride, "groups": split.groups}
            for split in placement.splits
        ],
        "flat": placement.is_flat,
        "terms": placement.terms,
        "mean": placement.is_mean,
        "shifted": placement.is_shifted,
        "scale": placement.scale,
    }
