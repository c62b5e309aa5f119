"""What the comparison with the benchmark showed of a run's tensors, as far as it spares reading them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, prod, sqrt

from precision_tool.lib.model.comparison import Metrics, Status, Summary
from precision_tool.lib.model.table import Row

#: An op shows nothing new if the largest error of its outputs, over their rms, is within so much, and so many times
#: the largest of its inputs (VERDICT.md §3).
_ROUNDED, _TIMES_FED = 2.0**-6, 2.0

#: What tells the numbers of a tensor: its type, the benchmark's tensor, and all figures of the two.
Figures = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """`quiet` are the names of ops that show nothing new; `figures` are by op name and slot ("output:0").

    `places` are those of the largest errors of quiet ops' outputs, by the same: a flat index, and of how many elements.
    `unread` are the ops of which a tensor or file could not be read, in the order of the result.
    """

    quiet: frozenset[str] = frozenset()
    figures: Mapping[tuple[str, str], Figures] = field(default_factory=dict, repr=False)
    places: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict, repr=False)
    unread: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Compared:
        """What the rows of a result say; nothing of tensors that a file names without their figures."""
        errors: dict[str, dict[str, float]] = {}
        figures: dict[tuple[str, str], Figures] = {}
        places: dict[tuple[str, str], tuple[int, int]] = {}
        unread: dict[str, None] = {}
        for row in rows:
            if row.status == Status.UNREADABLE:
                unread[row.op_name] = None
            if not row.slot or row.absent:
                continue
            side, _, _ = row.slot.partition(":")
            if side == "input" and row.metrics is None:  # a constant of the compiler, say: it brings no error in
                continue
            known = errors.setdefault(row.op_name, {})
            if _is_in_part(row):  # the elements behind those that were compared may be anything
                known[side] = float("inf")
                continue
            known[side] = max(known.get(side, 0.0), _largest_error(row.metrics, row.golden))
            worst = _place(row.metrics.max_error_index, row.shape) if row.metrics is not None else None
            if side == "output" and worst is not None and row.shape is not None:
                places[row.op_name, row.slot] = worst, prod(row.shape)
            told = _figures(row)
            if told is not None:
                figures[row.op_name, row.slot] = told
        quiet = {
            name for name, one in errors.items()
            if "output" in one and one["output"] <= _ROUNDED + _TIMES_FED * one.get("input", 0.0) < float("inf")
        }  # fmt: skip
        places = {key: place for key, place in places.items() if key[0] in quiet}
        return cls(quiet=frozenset(quiet), figures=figures, places=places, unread=tuple(unread))

    def is_same(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether two tensors were held against the same one of the benchmark, and every figure is the same."""
        mine = self.figures.get(one)
        return mine is not None and mine == self.figures.get(other)


def _is_in_part(row: Row) -> bool:
    """Whether only the first elements of a tensor were compared."""
    return row.npu is not None and row.shape is not None and row.npu.count < prod(row.shape)


def _largest_error(metrics: Metrics | None, golden: Summary | None) -> float:
    """The largest error of an element over the rms of the benchmark's; inf where that is not known."""
    if metrics is None or golden is None or metrics.non_finite_mismatches:
        return float("inf")
    error, size = metrics.max_absolute_error, sqrt(golden.mean**2 + golden.std**2)
    if not (isfinite(error) and isfinite(size)):
        return float("inf")
    return error / size if size else (0.0 if not error else float("inf"))


def _figures(row: Row) -> Figures | None:
    """None of what was not compared, or is not finite everywhere."""
    metrics, npu, tensor = row.metrics, row.npu, row.pair.npu
    if metrics is None or npu is None or tensor is None or row.golden is None or metrics.non_finite_mismatches:
        return None
    if npu.nan_count or npu.inf_count or not row.golden_tensor:
        return None
    return (
        tensor.dtype, row.golden_tensor, npu, row.golden, _place(metrics.max_error_index, row.shape),
        metrics.cosine, metrics.max_absolute_error, metrics.accumulated_relative_error,
        metrics.relative_euclidean_distance, metrics.mean_absolute_error, metrics.root_mean_square_error,
        metrics.max_relative_error, metrics.mean_relative_error, metrics.npu_at_max_error,
    )  # fmt: skip


def _place(index: tuple[int, ...] | None, shape: tuple[int, ...] | None) -> int | None:
    """A place in the order of the elements: tensors that were only reshaped have the same."""
    place = 0
    for at, extent in zip(index or (), shape or (), strict=False):
        place = place * extent + at
    return place if index is not None else None
