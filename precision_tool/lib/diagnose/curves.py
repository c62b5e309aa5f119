"""The figures of variables, gradients and the loss over the steps of a study, and the first step that leaves a band.

Leaves are taken one after the other, in the order of steps, and of a step that is done only the bands of all ranks, and
the ranks farthest off, stay in memory: a thousand ranks take what a few take, and one step of all of them.

The band of a step is the median of all ranks, plus and minus so many times their spread as bound it for the whole
study: k of Student's t-distribution at a chance of 1 % that any value of any curve, step and rank leaves it by
accident, and at least 10. The spread is 1.4826 times the median of the absolute deviations (that of a normal
distribution), the mean of all steps or that of the step itself, whichever is larger. Norms deviate as logarithms,
means in units of their rank's rms, shares of zeros as they are. No band is narrower than a few roundings of the type,
nor than twice as far as any rank was off at the steps before.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import exp, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.data.settings import DEFAULT_THRESHOLD
from precision_tool.lib.diagnose.roles import Role
from precision_tool.lib.diagnose.study_journal import JOURNAL, KeptRows, read_rows
from precision_tool.lib.diagnose.study_plan import LeafPlan, Prepared
from precision_tool.lib.diagnose.study_table import Columns, Texts, unpack
from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import exists

Doubles = npt.NDArray[np.float64]
Wholes = npt.NDArray[np.int64]

#: The figures of a curve, and the column that each is; `not_finite` is the share of NaN and Inf.
_COLUMNS = {
    "norm": "npu_norm", "mean": "npu_mean", "minimum": "npu_minimum", "maximum": "npu_maximum", "zeros": "zero_share",
    "own_error": "own_error",
}  # fmt: skip
FIGURES = (*_COLUMNS, "not_finite")
#: Those of the benchmark.
BENCHMARK = ("norm", "mean", "minimum", "maximum")
#: Figures by which a rank leaves the band of the others.
_JUDGED = ("norm", "mean", "zeros")
#: What is read of a leaf.
CURVE_COLUMNS = (
    "op", "slot", "role", "variable", "number", "npu_type", "elements", "nan", "inf", "cosine", "scalar", "mismatches",
    "relative_euclidean_distance", *_COLUMNS.values(), *(f"benchmark_{figure}" for figure in BENCHMARK),
)  # fmt: skip
#: The role of tensors that were asked for by their names.
TENSOR = "tensor"

#: The chance that any value of a study leaves its band by accident, and the fewest spreads that a band has.
_CHANCE, _SPREADS = 0.01, 10.0
#: A median of absolute deviations as standard deviation, and what it tells of it beside the best estimate.
_SIGMA, _EFFICIENCY = 1.4826, 0.37
#: Degrees of freedom at most: values have longer tails than a normal distribution.
_DEGREES = 8.0
#: What leaves a band is so many times as far off as any rank was before.
_FARTHER = 2.0
#: Factors for a median of absolute deviations of so many values (Croux and Rousseeuw, 1992).
_CORRECTIONS = (1.0, 1.0, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
#: The spread of a step counts for others at most as so many times that of most.
_CLIPPED = 4.0
#: No band is narrower than so many roundings; some chips round products of float32 to 12 bits.
_ROUNDINGS, _HF32 = 4, 2.0**-12
#: Nor than this share of zeros.
_ZEROS = 0.2
#: The deviation of a norm that is 0 while those of others are not.
_GONE = 50.0
#: Ranks farthest off that are kept of each step, values of all ranks of a step, curves at least.
_FARTHEST, _CELLS, _CURVES = 4, 1_000_000, 64
#: Ranks whose own lines are kept, of the first so many curves.
_LINES, _LINED = 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The first step at which a curve leaves a band.

    `against` is "ranks" or "benchmark", or "all" where NaN or Inf are in most ranks. `ranks` are the farthest off of
    `count`, `value` is that of the first of them, and `low` and `high` are the ends of the band. Of two ranks that
    part, nothing tells which is right: both are named.
    """

    against: str
    figure: str
    step: int
    ranks: tuple[int, ...]
    count: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The figures of one rank, by figure and step; NaN where there is none."""

    rank: int
    figures: Doubles = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The figures of one tensor over all steps and ranks.

    `bands` has shape (figures, steps, 3): the smallest of all ranks, the median, and the largest. `benchmark` has shape
    (figures of BENCHMARK, steps): the median of the benchmarks. NaN stands for no value.
    """

    role: str
    name: str
    tensor: str
    number: int
    dtype: str
    bands: Doubles = field(repr=False)
    benchmark: Doubles = field(repr=False)
    leaves: tuple[Leaving, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether it is a single number, whose value is its mean."""
        return self.role == Role.LOSS


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of a study, the loss first, then in the order of execution. `left_out` were too many."""

    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    curves: tuple[Curve, ...] = ()
    left_out: int = 0

    @property
    def first(self) -> tuple[Curve, Leaving] | None:
        """The curve that leaves a band first, of several at one step that which is computed first."""
        return min(
            ((curve, leaving) for curve in self.curves for leaving in curve.leaves),
            key=lambda item: (item[1].step, item[0].number, item[1].against == "benchmark"),
            default=None,
        )

    @property
    def sorted(self) -> tuple[Curve, ...]:
        """The loss, then what leaves a band, the earliest first, then the others."""

        def key(curve: Curve) -> tuple[bool, float, int]:
            step = min((leaving.step for leaving in curve.leaves), default=float("inf"))
            return curve.role != Role.LOSS, step, curve.number

        return tuple(sorted(self.curves, key=key))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    role: str
    name: str
    tensor: str
    number: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What stays of a step: of the curves `ids` the bands, the spreads and the ranks farthest off.

    `counts`, `spreads` and `medians` have shape (curves, judged figures), `far_ranks`, `far_by`, `far_values` and
    `far_units` (of deviations) one axis more. `bad` and `off` are, by curve, the ranks with NaN or Inf and those off
    their benchmark: the count, the first of them and, of these, the value.
    """

    step: int
    ids: Wholes
    bands: Doubles
    benchmark: Doubles
    counts: Wholes
    spreads: Doubles
    medians: Doubles
    far_ranks: Wholes
    far_by: Doubles
    far_values: Doubles
    far_units: Doubles
    present: Wholes
    bad: list[_Flagged]
    off: list[_Flagged]


class CurveTaker:
    """Takes leaf after leaf, step by step."""

    def __init__(self, ranks: int, names: Sequence[str] = (), threshold: float = DEFAULT_THRESHOLD) -> None:
        """`names` are shell wildcards of variables, ops or tensors; without any, all variables are taken."""
        self._rows = _Rows(names, max(_CURVES, _CELLS // max(1, ranks)))
        self._allowed = sqrt(2 * (1 - threshold))
        self._threshold = threshold
        self._pending: list[tuple[int, Wholes, dict[str, Doubles]]] = []
        self._step: int | None = None
        self._steps: list[_Step] = []
        self._ranks: set[int] = set()

    def take(self, step: int, rank: int, columns: Columns, is_own: bool = True) -> None:
        """Add the rows of a leaf; steps must come in order. `is_own`: its benchmark is of just this step and rank."""
        if step != self._step:
            self._flush()
            self._step = step
        self._ranks.add(rank)
        ids, at = self._rows.of(columns)
        self._pending.append((rank, ids, _values(columns, at, is_own, self._threshold, self._allowed)))

    def _flush(self) -> None:
        """Reduce the ranks of a step."""
        if self._step is not None and self._pending:
            self._steps.append(_reduced(self._step, self._pending))
        self._pending = []

    def curves(self) -> Curves:
        """Return the curves of all that was taken."""
        self._flush()
        keys = self._rows.keys
        steps = tuple(step.step for step in self._steps)
        shape = (len(keys), len(FIGURES), len(steps), 3)
        bands, benchmark = np.full(shape, np.nan), np.full((len(keys), len(BENCHMARK), len(steps)), np.nan)
        for place, step in enumerate(self._steps):
            bands[step.ids, :, place] = step.bands
            benchmark[step.ids, :, place] = step.benchmark
        leaving = _leaving(keys, self._steps, self._allowed)
        curves = [
            Curve(
                role=key.role, name=key.name, tensor=key.tensor, number=key.number, dtype=key.dtype,
                bands=bands[place], benchmark=benchmark[place], leaves=leaving[place],
            )
            for place, key in enumerate(keys)
        ]  # fmt: skip
        curves.sort(key=lambda curve: (curve.role != Role.LOSS, curve.number))
        return Curves(
            steps=steps, ranks=tuple(sorted(self._ranks)), curves=tuple(curves), left_out=len(self._rows.left_out)
        )

    def with_lines(self, curves: Curves, leaves: Iterable[LeafRows]) -> Curves:
        """Return the curves, the first of them with the lines of the ranks that `leaves` are of."""
        keys = {(key.role, key.tensor): number for number, key in enumerate(self._rows.keys)}
        shown = {keys[curve.role, curve.tensor] for curve in curves.sorted[:_LINED]}
        steps = {step: place for place, step in enumerate(curves.steps)}
        lines: dict[int, dict[int, Doubles]] = {}
        for step, rank, columns, is_own in leaves:
            ids, at = self._rows.of(columns)
            is_shown = np.isin(ids, list(shown))
            values = _values(columns, at[is_shown], is_own, self._threshold, self._allowed)
            for place, number in enumerate(ids[is_shown].tolist()):
                of_curve = lines.setdefault(number, {})
                if rank not in of_curve:
                    of_curve[rank] = np.full((len(FIGURES), len(steps)), np.nan)
                of_curve[rank][:, steps[step]] = [values[figure][place] for figure in FIGURES]

        def lined(curve: Curve) -> Curve:
            of_curve = lines.get(keys[curve.role, curve.tensor], {})
            return replace(curve, lines=tuple(Line(rank=rank, figures=of_curve[rank]) for rank in sorted(of_curve)))

        return replace(curves, curves=tuple(map(lined, curves.curves)))


class _Rows:
    """Numbers the tensors that are curves, the same in every leaf."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self._names, self._most = names, most
        self._ids: dict[tuple[str, str], int] = {}
        self.keys: list[_Key] = []
        self.left_out: set[tuple[str, str]] = set()

    def of(self, columns: Columns) -> tuple[Wholes, Wholes]:
        """Return the curves of a leaf, and the rows in which they are."""
        roles, names, ops, slots, types = (columns[name] for name in ("role", "variable", "op", "slot", "npu_type"))
        assert isinstance(roles, Texts)
        assert isinstance(names, Texts)
        assert isinstance(ops, Texts)
        assert isinstance(slots, Texts)
        assert isinstance(types, Texts)
        numbers = np.asarray(columns["number"])
        has_role = roles.where(bool)
        if self._names:
            is_asked = has_role & names.where(self._is_asked)
            is_output = slots.where(lambda slot: slot.startswith("output"))
            by_name = ops.where(self._is_asked) & is_output & ~is_asked
            if any(":" in name for name in self._names):
                full = np.array([self._is_asked(f"{op}:{slot}") for op, slot in zip(ops, slots, strict=True)], np.bool_)
                by_name |= full & ~is_asked
            wanted = is_asked | by_name
        else:
            wanted = has_role
        ids, at = [], []
        taken: set[int] = set()
        for row in np.flatnonzero(wanted).tolist():
            tensor = f"{ops.texts[ops.codes[row]]}:{slots.texts[slots.codes[row]]}"
            role = roles.texts[roles.codes[row]] or TENSOR
            key = role, tensor
            place = self._ids.get(key)
            if place is None:
                if len(self.keys) >= self._most:
                    self.left_out.add(key)
                    continue
                place = self._ids[key] = len(self.keys)
                name = names.texts[names.codes[row]] or tensor
                dtype = types.texts[types.codes[row]]
                self.keys.append(_Key(role=role, name=name, tensor=tensor, number=int(numbers[row]), dtype=dtype))
            if place not in taken:  # several rows of one tensor have its benchmarks
                taken.add(place)
                ids.append(place)
                at.append(row)
        return np.array(ids, np.int64), np.array(at, np.int64)

    def _is_asked(self, name: str) -> bool:
        return bool(name) and any(fnmatchcase(name, pattern) for pattern in self._names)


def _values(columns: Columns, at: Wholes, is_own: bool, threshold: float, allowed: float) -> dict[str, Doubles]:
    """Return what is asked of the rows `at` of a leaf."""

    def column(name: str) -> Doubles:
        return np.asarray(columns[name], np.float64)[at]

    values = {figure: column(name) for figure, name in _COLUMNS.items()}
    values["elements"] = column("elements")
    bad = column("nan") + column("inf")
    values["not_finite"] = np.where(
        np.isnan(values["mean"]) & (bad == 0), np.nan, bad / np.maximum(values["elements"], 1)
    )
    own = {figure: column(f"benchmark_{figure}") if is_own else np.full(len(at), np.nan) for figure in BENCHMARK}
    values |= {f"benchmark_{figure}": own[figure] for figure in BENCHMARK}
    cosine, distance = column("cosine"), column("relative_euclidean_distance")
    is_compared = ~np.isnan(cosine) | (column("mismatches") > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_norms = np.abs(values["norm"] / own["norm"] - 1)
    # As `agreement.agrees`; of statistics the norms tell.
    off = np.where(column("scalar") > 0, distance > allowed, cosine < threshold) | (column("mismatches") > 0)
    is_off: npt.NDArray[np.bool_] = np.where(is_compared, off, of_norms > allowed) & ~np.isnan(own["norm"])
    values["off"] = is_off.astype(np.float64)
    values["distance"] = np.where(is_compared, distance, of_norms)
    return values


def _reduced(step: int, leaves: Sequence[tuple[int, Wholes, dict[str, Doubles]]]) -> _Step:
    """Return what stays of a step."""
    ids = np.unique(np.concatenate([of_leaf for _, of_leaf, _ in leaves]))
    ranks = np.array(sorted({rank for rank, _, _ in leaves}))
    places = {rank: place for place, rank in enumerate(ranks.tolist())}

    def table(name: str) -> Doubles:
        values = np.full((len(ids), len(ranks)), np.nan)
        for rank, of_leaf, columns in leaves:
            values[np.searchsorted(ids, of_leaf), places[rank]] = columns[name]
        return values

    figures = {figure: table(figure) for figure in FIGURES}
    spans = {figure: _span(values) for figure, values in figures.items()}
    bands = np.stack([np.stack(spans[figure], axis=-1) for figure in FIGURES], axis=1)
    benchmark = np.stack([_span(table(f"benchmark_{figure}"))[1] for figure in BENCHMARK], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rms = figures["norm"] / np.sqrt(np.maximum(table("elements"), 1))
        judged = (figures["norm"], figures["mean"] / rms, figures["zeros"])
    units = (np.ones_like(rms), rms, np.ones_like(rms))
    counts, spreads, medians, far = [], [], [], []
    for figure, values, unit in zip(_JUDGED, judged, units, strict=True):
        median = _span(values)[1]
        by = _deviations(figure, values, median)
        order = np.argsort(-np.nan_to_num(np.abs(by), nan=-1.0), axis=1, kind="stable")[:, :_FARTHEST]
        counts.append(np.count_nonzero(~np.isnan(by), axis=1))
        spreads.append(_span(np.abs(by))[1])
        medians.append(median)
        far.append([ranks[order], *(np.take_along_axis(each, order, 1) for each in (by, figures[figure], unit))])
    bad, off, distances = figures["not_finite"] > 0, table("off") > 0, table("distance")
    return _Step(
        step=step, ids=ids, bands=bands, benchmark=benchmark,
        counts=np.stack(counts, 1), spreads=np.stack(spreads, 1), medians=np.stack(medians, 1),
        far_ranks=np.stack([each[0] for each in far], 1), far_by=np.stack([each[1] for each in far], 1),
        far_values=np.stack([each[2] for each in far], 1), far_units=np.stack([each[3] for each in far], 1),
        present=np.count_nonzero(~np.isnan(figures["not_finite"]), axis=1),
        bad=_flagged(bad, figures["not_finite"], ranks), off=_flagged(off, distances, ranks),
    )  # fmt: skip


#: Of a curve: how many ranks are flagged, the first of them, and the value that the first has.
_Flagged = tuple[int, tuple[int, ...], float]


def _flagged(flags: npt.NDArray[np.bool_], values: Doubles, ranks: npt.NDArray[Any]) -> list[_Flagged]:
    """Return what is flagged of each curve; `flags` and `values` have shape (curves, ranks)."""
    return [
        (int(row.sum()), tuple(ranks[row][:_FARTHEST].tolist()), float(of_row[row.argmax()]))
        for row, of_row in zip(flags, values, strict=True)
    ]


def _span(values: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return the smallest, the median and the largest of each row, NaN left out; shape (rows,)."""
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.count_nonzero(~np.isnan(values), axis=1)
    rows = np.arange(len(values))
    last = np.maximum(count - 1, 0)
    with np.errstate(invalid="ignore"):
        median = ordered[rows, last // 2] / 2 + ordered[rows, (last + 1) // 2] / 2
    return ordered[:, 0], median, ordered[rows, last]


def _deviations(figure: str, values: Doubles, median: Doubles) -> Doubles:
    """Return how far each rank is off the median, in the measure of the figure; NaN where it has no value."""
    centre = median[:, None]
    if figure != "norm":
        return values - centre
    with np.errstate(divide="ignore", invalid="ignore"):
        by = np.where(values > 0, np.clip(np.log(values / centre), -_GONE, _GONE), -_GONE)
    # Where most have nothing but zeros, as of experts that no token reached, nothing is told of the others.
    return np.where(np.isnan(values), np.nan, np.where(centre > 0, by, 0.0))


# --- what leaves a band ---


def _leaving(keys: Sequence[_Key], steps: Sequence[_Step], allowed: float) -> list[tuple[Leaving, ...]]:
    """Return the first steps at which each curve leaves the band of the other ranks, or its benchmark."""
    by_curve: list[list[tuple[_Step, int]]] = [[] for _ in keys]
    for step in steps:
        for place, number in enumerate(step.ids.tolist()):
            by_curve[number].append((step, place))
    values = sum(int(step.counts.sum()) for step in steps)
    result = []
    for key, of_curve in zip(keys, by_curve, strict=True):
        against_ranks = [_first_off_ranks(key, figure, of_curve, values) for figure in range(len(_JUDGED))]
        against_ranks.append(_first_not_finite(of_curve))
        among = [leaving for leaving in against_ranks if leaving is not None]
        first = min(among, key=lambda leaving: leaving.step, default=None)
        result.append(tuple(filter(None, (first, _first_off_benchmark(of_curve, allowed)))))
    return result


def _first_off_ranks(key: _Key, figure: int, of_curve: Sequence[tuple[_Step, int]], values: int) -> Leaving | None:
    """Return the first step at which ranks leave the band of the others by one figure."""
    counts = np.array([step.counts[place, figure] for step, place in of_curve])
    spreads = np.array([step.spreads[place, figure] for step, place in of_curve]) * _small_sample(counts)
    is_there = counts > 0
    if not is_there.any():
        return None
    name = _JUDGED[figure]
    floor = _floor(name, key.dtype)
    degrees = min(_DEGREES, _EFFICIENCY * float(np.maximum(counts - 1, 0).sum()))
    factor = _factor(degrees, values)
    usual = _usual(spreads[is_there])
    farthest = 0.0  # that any rank was off before
    for at, (step, place) in enumerate(of_curve):
        by = step.far_by[place, figure]
        if counts[at] == 2 and key.role == Role.VARIABLE:
            # That is all there is of two ranks: they are alike, and then they are not.
            before = spreads[:at][is_there[:at]]
            bound = floor if before.size and before.max() <= floor else float("inf")
        elif counts[at] > 2:
            bound = max(factor * _SIGMA * max(usual, float(spreads[at])) + floor, _FARTHER * farthest)
        else:
            continue
        is_off = np.abs(by) > bound
        farthest = max(farthest, float(np.nanmax(np.abs(by))))
        if is_off.any():
            median, unit = float(step.medians[place, figure]), float(step.far_units[place, figure][0])
            ends = (median * exp(-bound), median * exp(bound)) if name == "norm" else (
                (median - bound) * unit, (median + bound) * unit
            )  # fmt: skip
            ranks = step.far_ranks[place, figure][is_off].tolist()
            return Leaving(
                against="ranks", figure=name, step=step.step, ranks=tuple(sorted(ranks) if counts[at] == 2 else ranks),
                count=int(is_off.sum()), value=float(step.far_values[place, figure][0]), low=ends[0], high=ends[1],
            )  # fmt: skip
    return None


def _floor(figure: str, dtype: str) -> float:
    """Return the narrowest band, as a deviation."""
    if figure == "zeros":
        return _ZEROS
    float_type = data_types.FLOATS.get(dtype)
    unit = 0.0 if float_type is None else 2.0 ** -(float_type.digits + 1)
    return _ROUNDINGS * max(unit, _HF32)


def _small_sample(counts: Wholes) -> Doubles:
    """Return the factors by which a median of the absolute deviations of few values is too small."""
    return np.where(counts < len(_CORRECTIONS), np.take(_CORRECTIONS, np.minimum(counts, len(_CORRECTIONS) - 1)), 1.0)


def _usual(spreads: Doubles) -> float:
    """Return the mean of steps, of which those that are far above most count less: from there on all may differ."""
    return float(np.minimum(spreads, _CLIPPED * np.median(spreads)).mean())


def _factor(degrees: float, values: int) -> float:
    """Return how many spreads a band has, by a bound of the tail of Student's t-distribution.

    `degrees` are those of freedom that the spread has, `values` all that may leave a band.
    """
    if degrees <= 0:
        return float("inf")
    exponent = -2 / degrees * np.log(_CHANCE / max(values, 1))
    return max(_SPREADS, sqrt(degrees * np.expm1(min(float(exponent), 600.0))))


def _first_not_finite(of_curve: Sequence[tuple[_Step, int]]) -> Leaving | None:
    """Return the first step with NaN or Inf, on some ranks or on most."""
    for step, place in of_curve:
        count, ranks, value = step.bad[place]
        if count:
            present = int(step.present[place])
            against = "ranks" if 2 * count < present else "all"
            return Leaving(
                against=against, figure="not_finite", step=step.step, ranks=ranks, count=count, value=value,
                low=0.0, high=0.0,
            )  # fmt: skip
    return None


def _first_off_benchmark(of_curve: Sequence[tuple[_Step, int]], allowed: float) -> Leaving | None:
    """Return the first step at which ranks are off their benchmark."""
    for step, place in of_curve:
        count, ranks, value = step.off[place]
        if count:
            return Leaving(
                against="benchmark", figure="distance", step=step.step, ranks=ranks, count=count, value=value,
                low=0.0, high=allowed,
            )  # fmt: skip
    return None


# --- the rows of a study's journal ---


#: Step, rank, rows, and whether the benchmark is of just these.
LeafRows = tuple[int, int, Columns, bool]
#: Gives the rows of every leaf whose rank is wanted (None: of all), in the order of steps.
ReadLeaves = Callable[[Collection[int] | None], Iterator[LeafRows]]


def curves_of(read: ReadLeaves, ranks: int, names: Sequence[str] = (), threshold: float = DEFAULT_THRESHOLD) -> Curves:
    """Return the curves of a study of so many ranks, with the lines of those that leave a band.

    Parameters
    ----------
    read : callable
        Gives the rows; it is asked twice.
    ranks : int
        The number of ranks, by which the number of curves is limited.
    names : sequence of str
        Shell wildcards of variables, ops (their outputs) or tensors; without any, of all variables, gradients and
        the loss.
    threshold : float
        Cosine similarity below which a tensor is off its benchmark.
    """
    taker = CurveTaker(ranks, names, threshold)
    for step, rank, columns, is_own in read(None):
        taker.take(step, rank, columns, is_own)
    curves = taker.curves()
    lined = ranks_with_lines(curves)
    return taker.with_lines(curves, read(lined)) if lined else curves


def figures_of_leaf(columns: Columns, names: Sequence[str] = ()) -> Iterator[tuple[str, str, Doubles]]:
    """Yield role, name and figures of each curve of a leaf, in the order of FIGURES."""
    rows = _Rows(names, len(columns["op"]) + 1)
    ids, at = rows.of(columns)
    values = _values(columns, at, True, 0.0, 0.0)
    for place, number in enumerate(ids.tolist()):
        key = rows.keys[number]
        yield key.role, key.name, np.array([values[figure][place] for figure in FIGURES])


def ranks_with_lines(curves: Curves) -> tuple[int, ...]:
    """Return the ranks whose own lines are drawn: those that leave a band, and all others of few."""
    off = dict.fromkeys(rank for curve in curves.sorted for leaving in curve.leaves for rank in leaving.ranks)
    ranks = [*off, *(rank for rank in curves.ranks if rank not in off)] if len(curves.ranks) <= _LINES else [*off]
    return tuple(sorted(ranks[:_LINES]))


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows that the journals of studies have of leaves; `missing` and `changed` count leaves once all are read."""

    journals: Sequence[str]
    prepared: Prepared

    def read(self, ranks: Collection[int] | None = None) -> Iterator[LeafRows]:
        """Yield the rows of every leaf that a study has, one in memory at a time."""
        for plan in self.prepared.plans:
            if ranks is None or plan.leaf.rank in ranks:
                kept = self._kept(plan)
                if kept is not None:
                    journal, rows = kept
                    yield plan.leaf.step, plan.leaf.rank, unpack(journal, rows.rows, CURVE_COLUMNS), plan.is_own

    def _kept(self, plan: LeafPlan) -> tuple[str, KeptRows] | None:
        for journal in self.journals:
            rows = read_rows(journal, plan.leaf.path)
            if rows is not None:
                return journal, rows
        return None

    def state(self) -> tuple[int, int]:
        """Return how many leaves no study has, and of how many the dump has changed since."""
        kept = [(plan, self._kept(plan)) for plan in self.prepared.plans]
        changed = sum(rows is not None and rows[1].dump != plan.leaf.fingerprint for plan, rows in kept)
        return sum(rows is None for _, rows in kept), changed


def stored_rows(results: Sequence[str], prepared: Prepared) -> StoredRows:
    """Return the rows that studies in these folders of results have of leaves."""
    journals = [posixpath.join(folder, "study", JOURNAL) for folder in results]
    return StoredRows([journal for journal in journals if exists(journal)], prepared)
