"""A run that is split over ranks, held against one that is split otherwise: tensors merged, faults named.

Each tensor of the benchmark is compared with what the ranks have of it together. Where a rank departs from that, what
it has instead tells the fault: another slice of the same tensor, pieces in another order, its own term of a sum that
was never added up, or what it had in the step before. What is none of these is told as a difference, and nobody is
accused where the values of all ranks fit no placement.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isnan
from typing import Any

import numpy as np

from precision_tool.lib.compare.merged import (
    Fit,
    GroupResult,
    MergedTensor,
    describe,
    distance,
    is_compared,
    new_cache,
)
from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.msprobe_tree import MsprobeLeaf, MsprobeRun, find_msprobe
from precision_tool.lib.data.shard_map import ShardMap
from precision_tool.lib.data.sharding import (
    RankCalls,
    Shards,
    figures_of,
    find_offsets,
    match_shards,
    read_rank,
)
from precision_tool.lib.io.files import real_path
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.comparison import Metrics
from precision_tool.lib.model.msprobe import Direction

#: What equals another slice is off by less than this, and so many times more off its own.
_SAME, _TIMES = 0.05, 4.0
#: In so many other layers a tensor is no sum, at least, where one that is a sum is taken for a missing reduction.
_LAYERS = 2
#: Sums before a tensor that it may be a term of.
_SUMS_BEFORE = 6
#: A step that changes the benchmark's parameter by less than so many roundings of the run's type changes nothing.
_ROUNDINGS = 4.0
_EPSILON = {"torch.float32": 2.0**-23, "torch.float16": 2.0**-10, "torch.bfloat16": 2.0**-7}


class ShardFault(StrEnum):
    """What is wrong with what a rank has."""

    #: It has another slice than its place among the ranks says.
    WRONG_SLICE = "wrong_slice"
    #: It has a parameter of another layer or expert.
    WRONG_TENSOR = "wrong_tensor"
    #: What was gathered is in another order.
    WRONG_ORDER = "wrong_order"
    #: A term of a sum is used as if it were the sum.
    NOT_REDUCED = "not_reduced"
    #: A parameter is still that of the step before.
    STALE = "stale"
    #: Copies that were equal before the step differ after it.
    COPIES_DIFFER = "copies_differ"
    #: A call with inputs that agree has an output that does not.
    DIFFERS = "differs"
    #: A tensor is off on some ranks and agrees on others, and what came before agrees.
    OTHER_VALUES = "other_values"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFinding:
    """A fault: in which step, on which ranks, in which tensor (the benchmark's name, and the first rank's own).

    `expected` and `held` are slices, counted from 0, of `parts` along `axis` (-1: of all elements in one line);
    `other` is the name of a further tensor: what a rank has instead, or where a sum that is none is used.
    """

    fault: ShardFault
    step: int
    ranks: tuple[int, ...]
    tensor: str
    own_name: str
    order: float
    distance: float = 0.0
    axis: int = -1
    parts: int = 0
    expected: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    other: str = ""
    #: Further tensors in which the same is seen.
    more: int = 0

    @property
    def message(self) -> Message:
        """It as a sentence."""
        return Message(
            f"sharded.fault.{self.fault}",
            tensor=self.tensor, ranks=list(self.ranks), count=len(self.ranks), axis=self.axis, is_flat=self.axis < 0,
            parts=self.parts, expected=list(self.expected), held=list(self.held), other=self.other, off=self.distance,
            step=self.step,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {
            "fault": self.fault.value, "step": self.step, "ranks": list(self.ranks), "tensor": self.tensor,
            "own_name": self.own_name, "distance": _number(self.distance), "axis": self.axis, "parts": self.parts,
            "expected": list(self.expected), "held": list(self.held), "other": self.other, "more": self.more,
        }  # fmt: skip


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedRow:
    """A tensor of the benchmark and what all ranks have of it; `reason` says why it was not compared."""

    step: int
    name: str
    order: int
    fit: Fit | None = None
    metrics: Metrics | None = None
    ranks: tuple[GroupResult, ...] = ()
    agrees: bool | None = None
    reason: Message | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        metrics = self.metrics
        return {
            "step": self.step,
            "tensor": self.name,
            "agrees": self.agrees,
            "placement": None if self.fit is None else describe(self.fit.npu),
            "is_certain": self.fit is not None and self.fit.is_right,
            "cosine": None if metrics is None else _number(metrics.cosine),
            "distance": None if metrics is None else _number(metrics.relative_euclidean_distance),
            "max_absolute_error": None if metrics is None else _number(metrics.max_absolute_error),
            "reason": None if self.reason is None else render(self.reason),
            "ranks": [
                {"ranks": list(each.ranks), "slices": list(each.positions), "distance": _number(each.distance)}
                for each in self.ranks
            ],
        }


@dataclass(frozen=True, kw_only=True)
class ShardedRun:
    """Two runs that are split differently, compared: all rows, and the faults, the earliest first."""

    npu: str
    golden: str
    ranks: tuple[int, ...]
    golden_ranks: tuple[int, ...]
    steps: tuple[int, ...]
    parts: tuple[int, int]
    threshold: float
    rows: tuple[ShardedRow, ...]
    findings: tuple[ShardFinding, ...]
    notes: tuple[Message, ...] = ()

    @property
    def compared(self) -> list[ShardedRow]:
        """The rows that were compared."""
        return [row for row in self.rows if row.agrees is not None]

    @property
    def off(self) -> list[ShardedRow]:
        """Those of them that do not agree."""
        return [row for row in self.rows if row.agrees is False]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {
            "npu": self.npu,
            "benchmark": self.golden,
            "ranks": list(self.ranks),
            "benchmark_ranks": list(self.golden_ranks),
            "steps": list(self.steps),
            "micro_batches": list(self.parts),
            "compared": len(self.compared),
            "off": len(self.off),
            "threshold": self.threshold,
            "findings": [finding.to_dict() for finding in self.findings],
            "tensors": [row.to_dict() for row in self.rows],
        }


# --- both runs --------------------------------------------------------------------------------------------------------


def compare_sharded(
    npu: str,
    golden: str,
    *,
    threshold: float,
    shard_map: ShardMap | None = None,
    wants: Callable[[int], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShardedRun:
    """Compare two dumps of msprobe whose ranks split the network differently.

    Parameters
    ----------
    npu, golden : str
        The folders of both dumps.
    threshold : float
        The cosine similarity, -1 to 1, below which a tensor does not agree.
    shard_map : ShardMap, optional
        What the user says about how tensors are split.
    wants : callable, optional
        Returns whether a step is wanted.
    progress : callable, optional
        Is told how many tensors are done, and how many there are.

    Raises
    ------
    UsageError
        A side is no dump of msprobe, or the runs have no step in common.
    DataNotFoundError, FormatError
        A side has no dump, or one that cannot be read.
    """
    for path in (npu, golden):
        if not MSPROBE.lies_at(path):
            raise UsageError.of(path, "diagnose.sharded.kind")
    if real_path(npu) == real_path(golden):
        raise UsageError.of(golden, "data.same_dump")
    runs = find_msprobe(npu), find_msprobe(golden)
    notes = [note for run in runs for note in run.notes]
    by_step = _steps_of(*runs, wants)
    judge = _Judge(threshold, shard_map or ShardMap())
    parts = (1, 1)
    for number, (step, (left, right)) in enumerate(by_step.items()):

        def tell(done: int, count: int, number: int = number) -> None:
            if progress is not None:
                progress(number * count + done, len(by_step) * count)

        parts = judge.add_step(step, _read(left), _read(right), tell)
    notes += judge.notes
    rows = judge.rows
    if not any(row.agrees is not None for row in rows):
        reason = next((row.reason for row in rows if row.reason is not None), None)
        raise DataNotFoundError.of(golden, "diagnose.sharded.nothing", reason=reason)
    return ShardedRun(
        npu=npu, golden=golden, ranks=_ranks(runs[0]), golden_ranks=_ranks(runs[1]), steps=tuple(by_step), parts=parts,
        threshold=threshold,
        rows=tuple(rows), findings=tuple(_together(judge.findings)), notes=tuple(notes),
    )  # fmt: skip


def _ranks(run: MsprobeRun) -> tuple[int, ...]:
    return tuple(sorted({rank for rank, _ in _numbered(run.leaves)}))


def _numbered(leaves: Sequence[MsprobeLeaf]) -> list[tuple[int, MsprobeLeaf]]:
    """Return leaves with their ranks; processes that are no ranks count from 0."""
    processes = sorted({leaf.process for leaf in leaves if leaf.rank is None and leaf.process is not None})
    return [
        (leaf.rank if leaf.rank is not None else processes.index(leaf.process) if leaf.process is not None else 0, leaf)
        for leaf in leaves
    ]


def _steps_of(
    npu: MsprobeRun, golden: MsprobeRun, wants: Callable[[int], bool] | None
) -> dict[int, tuple[list[MsprobeLeaf], list[MsprobeLeaf]]]:
    """Return the leaves of each step that both sides have; a side with one step alone stands for the other's."""
    sides = []
    for run in (npu, golden):
        root = run.roots[-1]
        by_step: dict[int, list[MsprobeLeaf]] = {}
        for leaf in run.leaves:
            if leaf.root == root:
                by_step.setdefault(leaf.step or 0, []).append(leaf)
        sides.append(by_step)
    left, right = sides
    common = [step for step in sorted(left) if step in right and (wants is None or wants(step))]
    if common:
        return {step: (left[step], right[step]) for step in common}
    if len(left) == len(right) == 1 and wants is None:
        return {step: (left[step], next(iter(right.values()))) for step in left}
    raise UsageError("diagnose.sharded.no_common_step", npu=sorted(left), benchmark=sorted(right))


def _read(leaves: Sequence[MsprobeLeaf]) -> list[RankCalls]:
    return [read_rank(leaf, rank) for rank, leaf in sorted(_numbered(leaves), key=lambda each: each[0])]


# --- the judgement ----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Opened:
    """A tensor that was compared."""

    row: ShardedRow
    shards: Shards
    merged: MergedTensor
    fit: Fit

    @property
    def is_right(self) -> bool:
        return self.fit.is_right and self.row.agrees is not False

    def own_name(self, ranks: Sequence[int]) -> str:
        """The name that the tensor has on the first of some ranks."""
        return self.shards.npu[ranks[0]][0].name


@dataclass
class _Judge:
    """Compares step by step and collects rows and faults."""

    threshold: float
    shard_map: ShardMap
    rows: list[ShardedRow] = field(default_factory=list)
    findings: list[ShardFinding] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)
    _fits: dict[str, Fit] = field(default_factory=dict)
    _offsets: dict[int, dict[str, int]] = field(default_factory=dict)
    #: Whether something was off in the step before, of which copies that differ may come.
    _was_off: bool = False
    #: Parameters and their gradients in the step before, by the benchmark's name.
    _before: dict[str, _Opened] = field(default_factory=dict)
    _gradients: dict[str, _Opened] = field(default_factory=dict)

    def add_step(
        self,
        step: int,
        npu: Sequence[RankCalls],
        golden: Sequence[RankCalls],
        tell: Callable[[int, int], None],
    ) -> tuple[int, int]:
        """Compare a step; return in how many parts each side took the batch."""
        if not self._offsets:
            self._offsets = {
                side.rank: self.shard_map.offsets_of(side.rank) or find_offsets(side, golden, npu) for side in npu
            }
        matched = match_shards(npu, golden, self._offsets, self.shard_map.parts)
        if not self.rows:
            self._note(matched.uneven, matched.alone)
        kept = new_cache()
        opened: list[_Opened] = []
        for number, shards in enumerate(matched.shards):
            tell(number, len(matched.shards))
            row, each = self._compare(step, shards, kept)
            self.rows.append(row)
            if each is not None:
                opened.append(each)
        # What is right tells of what is not, also of layers before it.
        opened = [self._again(step, each) for each in opened]
        self._judge(step, opened, {side.rank: side.exchanged for side in npu})
        self._was_off = any(each.row.agrees is False and not each.fit.is_right for each in opened)
        self._before = {each.shards.name: each for each in opened if each.shards.is_parameter}
        self._gradients = {
            each.shards.name: each for each in opened if each.shards.direction is Direction.PARAMETERS_GRAD
        }
        return matched.parts

    def _note(self, uneven: Sequence[object], alone: tuple[int, int]) -> None:
        for rank, offsets in self._offsets.items():
            for above, offset in offsets.items():
                self.notes.append(Message("sharded.note.renumbered", rank=rank, above=above, offset=offset))
        if uneven:
            self.notes.append(Message("sharded.note.uneven", count=len(uneven)))
        if any(alone):
            self.notes.append(Message("sharded.note.alone", npu=alone[0], benchmark=alone[1]))

    def _compare(self, step: int, shards: Shards, kept: Any) -> tuple[ShardedRow, _Opened | None]:
        row = ShardedRow(step=step, name=shards.name, order=shards.order)
        if not is_compared(shards):
            return replace(row, reason=Message("sharded.row.not_saved")), None
        try:
            merged = MergedTensor(shards, kept)
            fit = merged.fit(self._fits.get(shards.pattern), self.shard_map.rule_of(shards.name))
            if fit is None:
                return replace(row, reason=Message("sharded.row.no_placement")), None
            if fit.is_right:
                self._fits.setdefault(shards.pattern, fit)
            return self._row(row, merged, fit)
        except PrecisionToolError as error:
            return replace(row, reason=error.full_message), None

    def _row(self, row: ShardedRow, merged: MergedTensor, fit: Fit) -> tuple[ShardedRow, _Opened]:
        metrics, results = merged.compare(fit)
        agrees = all(_agrees(result, self.threshold) for result in results)
        row = replace(row, fit=fit, metrics=metrics, ranks=tuple(results), agrees=agrees)
        return row, _Opened(row=row, shards=merged.shards, merged=merged, fit=fit)

    def _again(self, step: int, each: _Opened) -> _Opened:
        """Return a tensor that fits no placement by that of the same tensor in another layer, if one came later."""
        first = self._fits.get(each.shards.pattern)
        if each.fit.is_right or first is None or first.npu == each.fit.npu:
            return each
        fit = each.merged.fit(first)
        if fit is None or fit.npu == each.fit.npu:
            return each
        at = self.rows.index(each.row)
        row, again = self._row(replace(each.row), each.merged, fit)
        self.rows[at] = row
        return again

    # --- faults ---

    def _judge(self, step: int, opened: Sequence[_Opened], exchanged: Mapping[int, set[tuple[object, ...]]]) -> None:
        found: list[ShardFinding] = []
        first_of: dict[str, int] = {}
        for each in opened:
            first_of.setdefault(each.shards.place.module, each.shards.order)
        sums: list[_Opened] = []
        for each in opened:
            # A parameter is there before the calls of its module, which are recorded before the module.
            order = float(each.shards.order)
            if each.shards.is_parameter:
                order = first_of[each.shards.place.module] - 0.5
                found += self._stale(step, each, order, opened)
                found += self._copies(step, each, order)
            if not each.is_right:
                found += self._misplaced(step, each, order, sums, opened)
            if each.fit.npu.is_sum and each.fit.is_right:
                sums.append(each)
        found += self._unlike_other_layers(step, opened, sums)
        found += self._before_first(step, opened, exchanged)
        by_call: dict[str, list[_Opened]] = {}
        for each in opened:
            by_call.setdefault(each.shards.call, []).append(each)
        for of_call in by_call.values():
            found += self._of_call(step, of_call, sums)
        if not found and not self.findings:
            found += self._other_values(step, opened, first_of)
        if self.findings:  # what comes of a fault of an earlier step is no further fault
            found = [each for each in found if each.fault is ShardFault.STALE]
        self.findings += found

    def _misplaced(
        self, step: int, each: _Opened, order: float, sums: Sequence[_Opened], opened: Sequence[_Opened]
    ) -> Iterator[ShardFinding]:
        """Yield what ranks have in place of their slice, or of their copy."""
        count = len(each.merged.ranks)
        for result in each.row.ranks:
            if len(result.ranks) > 1 or result.distance < _SAME:
                continue
            (rank,) = result.ranks
            fault = ShardFinding(
                fault=ShardFault.WRONG_SLICE, step=step, ranks=(rank,), tensor=each.shards.name,
                own_name=each.own_name((rank,)), order=order, distance=result.distance,
            )  # fmt: skip
            off = each.merged.distances(each.fit, rank)
            best = min(off, key=off.__getitem__, default=())
            if off and best != result.positions and off[best] < min(_SAME, off[result.positions] / _TIMES):
                axis = next(
                    at for at, (a, b) in enumerate(zip(best, result.positions, strict=True)) if a != b
                )  # fmt: skip
                split = each.fit.npu.splits[axis]
                yield replace(
                    fault, axis=-1 if each.fit.npu.is_flat else split.axis, parts=split.parts,
                    expected=(result.positions[axis],), held=(best[axis],),
                )  # fmt: skip
                continue
            pieces = each.merged.pieces(each.fit, rank, max(count, len(each.shards.golden)))
            if pieces is not None:
                axis, held = pieces
                numbers = tuple(number for number in held if number is not None)
                yield replace(
                    fault, fault=ShardFault.WRONG_ORDER, axis=axis, parts=len(held), held=numbers,
                    expected=tuple(range(len(held))),
                )  # fmt: skip
                continue
            other = self._other_parameter(each, rank, opened)
            if other:
                yield replace(fault, fault=ShardFault.WRONG_TENSOR, other=other)
                continue
            term = self._own_term(each, rank, sums)
            if term is not None:
                yield replace(
                    fault, fault=ShardFault.NOT_REDUCED, tensor=term.shards.name, own_name=term.own_name((rank,)),
                    other=each.shards.name, parts=term.fit.npu.terms,
                )  # fmt: skip

    def _other_parameter(self, each: _Opened, rank: int, opened: Sequence[_Opened]) -> str:
        """Return the name of another layer's parameter that a rank has; "" for none."""
        if not each.shards.is_parameter:
            return ""
        own = each.merged.local_sample(rank, each.fit)
        for other in opened:
            if other is each or other.shards.pattern != each.shards.pattern:
                continue
            try:
                wanted = each.merged.wanted_sample(rank, each.fit, other.merged)
            except ValueError:  # of another shape
                continue
            if wanted.shape == own.shape and distance(own, wanted) < _SAME:
                return other.shards.name
        return ""

    def _own_term(self, each: _Opened, rank: int, sums: Sequence[_Opened]) -> _Opened | None:
        """Return the sum of which a rank has its own term in place of the whole."""
        tried = 0
        for term in reversed(sums):
            if rank not in term.shards.npu or term.shards.direction is not each.shards.direction:
                continue
            if term.shards.call == each.shards.call:
                continue
            tried += 1
            if tried > _SUMS_BEFORE:
                return None
            if each.merged.is_part_of(each.fit, rank, term.merged, term.fit):
                return term
        return None

    def _of_call(self, step: int, of_call: Sequence[_Opened], sums: Sequence[_Opened]) -> Iterator[ShardFinding]:
        """Yield what a call of a function shows: terms go in and no sum comes out; or it computes otherwise."""
        inputs = [each for each in of_call if not each.shards.slot.startswith(("output", "parameters"))]
        outputs = [each for each in of_call if each.shards.slot.startswith("output")]
        if not outputs or not of_call[0].shards.place.api:
            return
        terms = [each for each in inputs if each.fit.npu.is_sum and each.fit.is_right and self._are_terms(each)]
        unequal = [each for each in outputs if not each.fit.npu.is_sum and (not each.is_right or _unequal(each))]
        if terms and unequal and not any(each.fit.npu.is_sum and each.fit.is_right for each in outputs):
            for term in terms:
                ranks = tuple(sorted(term.shards.npu))
                source = next((each for each in sums if _same_benchmark(each, term)), term)
                yield ShardFinding(
                    fault=ShardFault.NOT_REDUCED, step=step, ranks=ranks, tensor=source.shards.name,
                    own_name=source.own_name(ranks), order=float(term.shards.order), parts=term.fit.npu.terms,
                    distance=max(each.row.ranks[0].distance for each in unequal), other=term.shards.name,
                )  # fmt: skip
            return
        if inputs and all(each.is_right for each in inputs) and self._has_all_inputs(of_call):
            for each in outputs:
                off = [
                    result for result in each.row.ranks if not _agrees(result, self.threshold)
                ]  # fmt: skip
                # All ranks off: another placement, or a view, cannot be told from a wrong result.
                if off and len(off) < len(each.row.ranks) and each.row.agrees is False and self._is_sure(each):
                    ranks = tuple(rank for result in off for rank in result.ranks)
                    yield ShardFinding(
                        fault=ShardFault.DIFFERS, step=step, ranks=ranks, tensor=each.shards.name,
                        own_name=each.own_name(ranks), order=float(each.shards.order),
                        distance=max(result.distance for result in off),
                    )  # fmt: skip

    def _is_sure(self, each: _Opened) -> bool:
        """Return whether a placement is that of another layer, or of sides that no other split explains."""
        known = self._fits.get(each.shards.pattern)
        if known is not None and known.npu == each.fit.npu:
            return True
        golden = len(each.shards.golden)
        return each.shards.direction is Direction.FORWARD and golden in (1, len(each.shards.npu))

    def _other_values(
        self, step: int, opened: Sequence[_Opened], first_of: Mapping[str, int]
    ) -> Iterator[ShardFinding]:
        """Yield the first tensor that is off on some ranks while it agrees on others, where nothing else is named."""
        for each in opened:
            off = [result for result in each.row.ranks if result.distance >= _SAME]
            if each.row.agrees is False:
                ranks = tuple(rank for result in off for rank in result.ranks)
                if off and len(off) < len(each.row.ranks) and self._is_sure(each):
                    order = first_of[each.shards.place.module] if each.shards.is_parameter else each.shards.order
                    yield ShardFinding(
                        fault=ShardFault.OTHER_VALUES, step=step, ranks=ranks, tensor=each.shards.name,
                        own_name=each.own_name(ranks), order=float(order),
                        distance=max(result.distance for result in off),
                    )  # fmt: skip
                return

    def _unlike_other_layers(
        self, step: int, opened: Sequence[_Opened], sums: Sequence[_Opened]
    ) -> Iterator[ShardFinding]:
        """Yield tensors that are terms of a sum in this layer and whole, or slices, in most others."""
        kinds: dict[str, Counter[bool]] = {}
        for each in opened:
            if each.fit.is_right:
                kinds.setdefault(each.shards.pattern, Counter())[each.fit.npu.is_sum] += 1
        for each in sums:
            count = kinds[each.shards.pattern]
            if count[False] < _LAYERS or count[False] <= count[True] or not self._are_terms(each):
                continue
            ranks = tuple(sorted(each.shards.npu))
            source = next((term for term in sums if _same_benchmark(term, each)), each)
            yield ShardFinding(
                fault=ShardFault.NOT_REDUCED, step=step, ranks=ranks, tensor=source.shards.name,
                own_name=source.own_name(ranks), order=float(each.shards.order), parts=each.fit.npu.terms,
                distance=each.merged.least_alone(each.fit), other="" if source is each else each.shards.name,
            )  # fmt: skip

    def _before_first(
        self, step: int, opened: Sequence[_Opened], exchanged: Mapping[int, set[tuple[object, ...]]]
    ) -> Iterator[ShardFinding]:
        """Yield the sum right before the first tensor that fits nothing, where no collective was given its terms.

        That is what a backward shows: autograd adds gradients up without a call that is recorded.
        """
        at = next((number for number, each in enumerate(opened) if each.row.agrees is False), None)
        if at is None or opened[at].fit.is_right:
            return
        chain: list[_Opened] = []
        for each in reversed(opened[:at]):
            if each.shards.direction is not opened[at].shards.direction:
                continue  # gradients of parameters are recorded between the calls of the backward
            if not (each.fit.npu.is_sum and each.fit.is_right and self._are_terms(each)):
                break
            chain.append(each)
        ranks = tuple(sorted(chain[0].shards.npu)) if chain else ()
        recorded = [exchanged.get(rank, set()) for rank in ranks]
        if not chain or not all(recorded) or any(self._is_exchanged(each, exchanged) for each in chain):
            return
        yield ShardFinding(
            fault=ShardFault.NOT_REDUCED, step=step, ranks=ranks, tensor=chain[-1].shards.name,
            own_name=chain[-1].own_name(ranks), order=float(opened[at].shards.order), parts=chain[-1].fit.npu.terms,
            distance=max(result.distance for result in opened[at].row.ranks), other=opened[at].shards.name,
        )  # fmt: skip

    @staticmethod
    def _is_exchanged(each: _Opened, exchanged: Mapping[int, set[tuple[object, ...]]]) -> bool:
        """Return whether a collective was given what a rank has of a tensor."""
        return any(
            (part.shape, *part.statistics) in exchanged.get(rank, set())
            for rank, parts in each.shards.npu.items()
            for part in parts
        )

    @staticmethod
    def _has_all_inputs(of_call: Sequence[_Opened]) -> bool:
        """Return whether every tensor that went into a call was compared; of a backward its forward's are not there."""
        return of_call[0].shards.direction is Direction.FORWARD

    @staticmethod
    def _are_terms(each: _Opened) -> bool:
        """Return whether no rank has the sum already."""
        return each.merged.least_alone(each.fit) > _SAME

    def _stale(self, step: int, each: _Opened, order: float, opened: Sequence[_Opened]) -> Iterator[ShardFinding]:
        """Yield ranks whose parameter is that of the step before, though the benchmark's changed and others did."""
        before = self._before.get(each.shards.name)
        if before is None or not each.fit.is_right or not before.fit.is_right:
            return
        ranks = []
        for rank in each.merged.ranks:
            if rank not in before.merged.ranks:
                continue
            now, then = each.merged.golden_sample(rank, each.fit), before.merged.golden_sample(rank, before.fit)
            if now.shape != then.shape:
                continue
            epsilon = _EPSILON.get(each.shards.npu[rank][0].tensor.dtype, 2.0**-7)
            own = each.merged.local_sample(rank, each.fit)
            is_kept = np.array_equal(own, before.merged.local_sample(rank, before.fit))
            if is_kept and distance(now, then) > _ROUNDINGS * epsilon and self._is_trained(rank, opened):
                ranks.append((rank, distance(own, now)))
        if ranks:
            numbers = tuple(rank for rank, _ in ranks)
            yield ShardFinding(
                fault=ShardFault.STALE, step=step, ranks=numbers, tensor=each.shards.name,
                own_name=each.own_name(numbers), order=order, distance=max(off for _, off in ranks),
            )  # fmt: skip

    def _is_trained(self, rank: int, opened: Sequence[_Opened]) -> bool:
        """Return whether the step changed most of a rank's parameters, by their statistics."""
        changes: Counter[bool] = Counter()
        for each in opened:
            before = self._before.get(each.shards.name)
            if (
                each.shards.is_parameter
                and before is not None
                and rank in each.shards.npu
                and rank in before.shards.npu
            ):
                now, then = each.shards.npu[rank][0].tensor, before.shards.npu[rank][0].tensor
                changes[figures_of(now) != figures_of(then)] += 1
        return changes[True] > changes[False]

    def _copies(self, step: int, each: _Opened, order: float) -> Iterator[ShardFinding]:
        """Yield copies of a parameter that were equal in the step before and are not any more."""
        before = self._before.get(each.shards.name)
        if self._was_off or before is None or not before.fit.is_right or _unequal(before) or not _unequal(each):
            return
        gradient = self._gradients.get(_gradient_of(each.shards.name))
        ranks = tuple(each.merged.ranks)
        fault = ShardFinding(
            fault=ShardFault.COPIES_DIFFER, step=step, ranks=ranks, tensor=each.shards.name,
            own_name=each.own_name(ranks), order=order, distance=max(each.row.ranks, key=lambda r: r.distance).distance,
        )  # fmt: skip
        if gradient is not None and gradient.fit.npu.is_sum and gradient.fit.is_right:
            yield replace(
                fault, fault=ShardFault.NOT_REDUCED, tensor=gradient.shards.name, own_name=gradient.own_name(ranks),
                other=each.shards.name, parts=gradient.fit.npu.terms,
            )  # fmt: skip
            return
        yield fault


def _gradient_of(name: str) -> str:
    """Return the name of the gradient of a parameter: `Module.up.Linear.parameters_grad.0.parameters.weight.0`."""
    call, _, parameter = name.rpartition(".parameters.")
    head, _, count = call.rpartition(".")
    return f"{head.removesuffix('.forward')}.{Direction.PARAMETERS_GRAD}.{count}.parameters.{parameter}.0"


def _unequal(each: _Opened) -> bool:
    """Return whether ranks that should have the same slice have not the same numbers."""
    if each.fit.npu.is_sum:
        return False
    by_place: dict[tuple[int, ...], int] = {}
    for result in each.row.ranks:
        first = by_place.setdefault(result.positions, result.ranks[0])
        if first != result.ranks[0]:
            own, other = (each.merged.local_sample(rank, each.fit) for rank in (first, result.ranks[0]))
            if own.shape != other.shape or not np.array_equal(own, other, equal_nan=True):
                return True
    return False


def _same_benchmark(each: _Opened, other: _Opened) -> bool:
    """Return whether the benchmark has one and the same values in two places."""
    own, its = (next(iter(opened.shards.golden.values()))[0] for opened in (each, other))
    return own.shape == its.shape and bool(own.statistics) and own.statistics == its.statistics


def _agrees(result: GroupResult, threshold: float) -> bool:
    """Return whether what a rank has agrees with the benchmark, by the cosine; a single number by its distance."""
    if result.metrics is None:
        return True
    if result.metrics.both_zero or result.distance == 0:
        return True
    cosine = result.metrics.cosine
    limit = float(np.sqrt(max(0.0, 1 - threshold * abs(threshold)))) if threshold < 1 else 0.0
    if isnan(cosine) or result.metrics.is_scalar:
        return result.distance <= limit
    return cosine >= threshold and result.distance <= 1


def _together(findings: Sequence[ShardFinding]) -> list[ShardFinding]:
    """Return the faults, the earliest first: of a kind and some ranks the first that is a cause, and how many more.

    Ranks that share a fault of one tensor stand together. What an activation shows of a wrong parameter is no further
    fault, but each parameter is one of its own.
    """
    merged: dict[tuple[object, ...], ShardFinding] = {}
    for each in sorted(findings, key=lambda found: (found.step, found.order)):
        key: tuple[object, ...] = (
            each.fault, each.step, each.tensor, each.other, each.axis, each.expected, each.held,
        )  # fmt: skip
        if each.fault in (ShardFault.WRONG_SLICE, ShardFault.WRONG_TENSOR):
            key = (*key, each.ranks)
        if key in merged:
            first = merged[key]
            merged[key] = replace(first, ranks=tuple(sorted({*first.ranks, *each.ranks})))
        else:
            merged[key] = each
    kept: dict[tuple[object, ...], ShardFinding] = {}
    for each in merged.values():
        kind = (each.fault, each.ranks, each.tensor if ".parameters." in each.tensor else "")
        if kind in kept:
            kept[kind] = replace(kept[kind], more=kept[kind].more + 1)
        else:
            kept[kind] = each
    return _causes(list(kept.values()))


def _causes(findings: Sequence[ShardFinding]) -> list[ShardFinding]:
    """Return the earliest fault, and those of the others that cannot come of it: parameters that are wrong as well."""
    if not findings:
        return []
    first, *rest = findings
    return [
        first,
        *(each for each in rest if ".parameters." in each.tensor and each.step == first.step
          and posixpath.basename(each.tensor) != first.tensor),
    ]  # fmt: skip
