"""Heat maps: how far off each op is, by step and by rank. They grow with steps, ranks and ops, not with tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.study.packed import Columns


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """One number for each place and op: the farthest any output is off, as a relative distance (NaN: not compared).

    `places` are steps or ranks, `values` has shape (places, ops); Inf stands for NaN or Inf in the data.
    """

    what: str
    places: tuple[int, ...]
    ops: tuple[str, ...]
    values: npt.NDArray[np.float32] = field(repr=False)
    #: Of the same shape: which values are not of a comparison, but of an op recomputed from its inputs. None: none.
    recomputed: npt.NDArray[np.bool_] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """It as JSON, with null where nothing was compared and "inf" for what is not finite."""
        rows = [[_number(value) for value in row] for row in self.values.tolist()]
        alone = [] if self.recomputed is None else [np.flatnonzero(row).tolist() for row in self.recomputed]
        return {
            "what": self.what, "places": list(self.places), "ops": list(self.ops), "values": rows,
            "recomputed": alone,
        }  # fmt: skip


def _number(value: float) -> float | str | None:
    if isnan(value):
        return None
    return "inf" if value == float("inf") else float(f"{value:.4g}")


class Maps:
    """Takes leaf after leaf; of all with the same place the worst counts."""

    def __init__(self) -> None:
        self._ops: dict[str, int] = {}
        self._order: dict[str, int] = {}
        self._by: dict[str, dict[int, _Row]] = {"step": {}, "rank": {}}

    def take(self, step: int, rank: int, columns: Columns) -> None:
        """Adds the rows of a leaf."""
        worst, recomputed = worst_of(columns)
        numbers = columns["number"]
        for name, number in zip(columns["op"], numbers, strict=True):
            if name in worst:
                self._order.setdefault(name, int(number))
        for name in worst:
            self._ops.setdefault(name, len(self._ops))
        places = np.array([self._ops[name] for name in worst], np.intp)
        values = np.array(list(worst.values()), np.float32)
        alone = np.array([name in recomputed for name in worst], np.bool_)
        for what, place in (("step", step), ("rank", rank)):
            row = self._by[what].setdefault(place, _Row())
            row.widen(len(self._ops))
            worse = ~np.isnan(values) & ~(values <= row.values[places])
            row.values[places[worse]] = values[worse]
            row.recomputed[places[worse]] = alone[worse]

    def maps(self) -> tuple[HeatMap, HeatMap]:
        """Step × op and rank × op, ops in the order of execution."""
        names = sorted(self._ops, key=lambda name: (self._order[name], name))
        columns = np.array([self._ops[name] for name in names], np.intp)
        found = []
        for what, rows in self._by.items():
            places = sorted(rows)
            values = np.full((len(places), len(names)), np.nan, np.float32)
            recomputed = np.zeros(values.shape, np.bool_)
            for number, place in enumerate(places):
                row = rows[place]
                row.widen(len(names))
                values[number], recomputed[number] = row.values[columns], row.recomputed[columns]
            found.append(
                HeatMap(what=what, places=tuple(places), ops=tuple(names), values=values, recomputed=recomputed)
            )
        return found[0], found[1]


class _Row:
    """What a place has of each op, in the order in which ops were seen first."""

    def __init__(self) -> None:
        self.values = np.full(0, np.nan, np.float32)
        self.recomputed = np.zeros(0, np.bool_)

    def widen(self, size: int) -> None:
        """Makes room for `size` ops."""
        more = size - self.values.size
        if more > 0:
            self.values = np.pad(self.values, (0, more), constant_values=np.nan)
            self.recomputed = np.pad(self.recomputed, (0, more))


#: The columns that a map needs.
NEEDED = ("op", "slot", "number", "cosine", "mismatches", "nan", "inf", "own_error", "relative_euclidean_distance")


def worst_of(columns: Columns) -> tuple[Mapping[str, float], set[str]]:
    """Of every op how far its worst output is off: by the benchmark, or without one by its own recomputed error.

    And those of which that is not by a benchmark.
    """
    worst: dict[str, float] = {}
    recomputed: set[str] = set()
    ops, slots = columns["op"], columns["slot"]
    cosines: Sequence[float] = _list(columns, "cosine")
    mismatches, nans, infs = (_list(columns, name) for name in ("mismatches", "nan", "inf"))
    own = _list(columns, "own_error")
    for number, (name, slot) in enumerate(zip(ops, slots, strict=True)):
        if not str(slot).startswith("output"):
            continue
        cosine = cosines[number]
        if mismatches[number]:
            value = float("inf")
        elif not isnan(cosine):
            value = sqrt(2 * max(0.0, 1 - cosine))
        elif not isnan(own[number]):
            value = own[number]
        else:
            value = float("inf") if nans[number] or infs[number] else nan
        if isnan(worst.get(name, nan)) or value > worst[name]:
            worst[name] = value
            if mismatches[number] or not isnan(cosine):
                recomputed.discard(name)
            else:
                recomputed.add(name)
    return worst, recomputed


def _list(columns: Columns, name: str) -> list[Any]:
    values = columns[name]
    return values.tolist() if isinstance(values, np.ndarray) else values
