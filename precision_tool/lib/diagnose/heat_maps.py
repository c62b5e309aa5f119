"""Heat maps: how far off each op is, by step and by rank. They grow with steps, ranks and ops, not with tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from precision_tool.lib.diagnose.statistics_leaves import Columns, Texts


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
    #: Of the same shape: the rank of a value by step, the step of one by rank. None: not known.
    worst: npt.NDArray[np.int32] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, with null where nothing was compared and "inf" for what is not finite."""
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
        #: Of each op the worst that was compared, and the worst of what was not.
        self._by: dict[str, dict[int, npt.NDArray[np.float32]]] = {"step": {}, "rank": {}}
        #: Of the same shapes: the rank, or the step, that each is of.
        self._worst: dict[str, dict[int, npt.NDArray[np.int32]]] = {"step": {}, "rank": {}}

    def take(self, step: int, rank: int, columns: Columns) -> None:
        """Add the rows of a leaf."""
        ops, slots = columns["op"], columns["slot"]
        assert isinstance(ops, Texts)
        assert isinstance(slots, Texts)
        outputs = np.flatnonzero(slots.where(lambda slot: slot.startswith("output")))
        present, first, of_op = np.unique(ops.codes[outputs], return_index=True, return_inverse=True)
        numbers = np.asarray(columns["number"])[outputs][first].tolist()
        names = [ops.texts[code] for code in present.tolist()]
        for name, number in zip(names, numbers, strict=True):
            self._order.setdefault(name, number)
        places = np.array([self._ops.setdefault(name, len(self._ops)) for name in names], np.intp)[of_op]
        distances, is_compared = _distances(columns)
        distances, kinds = distances[outputs], np.where(is_compared[outputs], 0, 1)
        for what, place, other in (("step", step, rank), ("rank", rank, step)):
            row = self._by[what][place] = _widened(self._by[what].get(place), len(self._ops), np.float32(np.nan))
            worst = self._worst[what][place] = _widened(self._worst[what].get(place), len(self._ops), np.int32(other))
            before = row.copy()
            np.fmax.at(row, (kinds, places), distances)
            worst[(row > before) | (np.isnan(before) & ~np.isnan(row))] = other

    def maps(self) -> tuple[HeatMap, HeatMap]:
        """Return step × op and rank × op, ops in the order of execution."""
        names = sorted(self._ops, key=lambda name: (self._order[name], name))
        columns = np.array([self._ops[name] for name in names], np.intp)
        maps = []
        for what, rows in self._by.items():
            places = sorted(rows)
            values = np.full((len(places), len(names)), np.nan, np.float32)
            recomputed = np.zeros(values.shape, np.bool_)
            worst = np.zeros(values.shape, np.int32)
            for number, place in enumerate(places):
                compared, alone = _widened(rows[place], len(names), np.float32(np.nan))[:, columns]
                of_compared, of_alone = _widened(self._worst[what][place], len(names), np.int32(0))[:, columns]
                values[number] = np.fmax(compared, alone)
                recomputed[number] = ~np.isnan(alone) & ~(alone <= compared)
                worst[number] = np.where(recomputed[number], of_alone, of_compared)
            maps.append(
                HeatMap(
                    what=what, places=tuple(places), ops=tuple(names), values=values, recomputed=recomputed,
                    worst=worst,
                )
            )  # fmt: skip
        return maps[0], maps[1]


_Number = TypeVar("_Number", np.float32, np.int32)


def _widened(row: npt.NDArray[_Number] | None, ops: int, empty: _Number) -> npt.NDArray[_Number]:
    """Return a row of both kinds with a place for each op; where it had none, `empty`."""
    if row is not None and row.shape[1] == ops:
        return row
    wider = np.full((2, ops), empty, empty.dtype)
    if row is not None:
        wider[:, : row.shape[1]] = row
    return wider


#: The columns that a map needs.
NEEDED = ("op", "slot", "number", "cosine", "mismatches", "nan", "inf", "own_error", "relative_euclidean_distance")


def _distances(columns: Columns) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the error of each tensor, against the benchmark or else recomputed; and whether by the benchmark."""
    cosines, own = (np.asarray(columns[name], np.float64) for name in ("cosine", "own_error"))
    mismatches, nans, infs = (np.asarray(columns[name], np.int64) for name in ("mismatches", "nan", "inf"))
    alone = np.where(np.isnan(own) & ((nans > 0) | (infs > 0)), np.inf, own)
    compared = np.sqrt(2 * np.maximum(0.0, 1 - cosines))
    distances = np.where(np.isnan(cosines), alone, compared)
    is_compared = ~np.isnan(cosines) | (mismatches > 0)
    return np.where(mismatches > 0, np.inf, distances).astype(np.float32), is_compared
