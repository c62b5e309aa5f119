"""Pairs of which one side is statistics only: the statistics of both, and whether rounding explains what is between.

Of rounding each value to a type with unit roundoff u a statistic moves by u of the values' size; roundings of k ops one
after the other add up like a random walk to sqrt(k) u (Higham and Mary, 2019), and so do those of a sum of n values, of
which mean and norm are made, in float32. A dump's numbers are decimal texts: what their digits leave open is no
difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import hypot, isfinite, isnan, nan, sqrt

from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Pair, Status, Summary
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics

#: What a device's sums are accumulated in, and what some chips round a float32 product's factors to (HF32).
_ACCUMULATED, _HF32 = 2.0**-24, 2.0**-12
#: In the names of ops whose products may be in HF32.
_PRODUCTS = ("MatMul", "Conv")
_COUNTS = (("nan_count", "NaN"), ("positive_inf_count", "+Inf"), ("negative_inf_count", "-Inf"))


def has_statistics(pair: Pair) -> bool:
    """Return whether statistics are what both sides of a pair have, and numbers."""
    if pair.status != Status.STATISTICS_ONLY or pair.npu is None or pair.golden is None:
        return False
    types = [data_types.BY_NAME.get(side.dtype) for side in (pair.npu, pair.golden)]
    return all(data_type is not None and data_type.is_numeric and not data_type.is_complex for data_type in types)


def row_of_statistics(pair: Pair, npu: Summary, golden: Summary) -> Row:
    """Return the row of both sides' statistics, whose verdicts take all rows of the run (`with_verdicts`)."""
    sides = (("npu", pair.npu), ("golden", pair.golden))
    absent = frozenset(path for name, side in sides for path in _absent(name, side))
    return Row(pair=pair, npu=npu, golden=golden, reason=pair.reason, absent=absent)


def _absent(name: str, side: AnyTensor | None) -> list[str]:
    """Return the numbers that a statistics dump does not tell."""
    if not isinstance(side, TensorStatistics):
        return []
    optional = ("minimum", "maximum", "mean", *(count for count, _ in _COUNTS))
    return [
        f"{name}.{part}"
        for part in ("std", "zero_count", *(field for field in optional if getattr(side, field) is None))
    ]


def with_verdicts(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a result in which those of statistics say whether they agree.

    A tensor is as exact as the coarsest type up to its op: what was float16 once is not more exact in float32.
    """
    if not any(_has_both_summaries(row) for row in rows):
        return list(rows)
    units: dict[int, float] = {}
    for row in rows:
        units[row.index] = max(units.get(row.index, 0.0), _unit(row))
    coarsest, so_far = 0.0, {}
    for index in sorted(units):
        so_far[index] = coarsest = max(coarsest, units[index])
    return [replace(row, reason=_reason(row, so_far[row.index])) if _has_both_summaries(row) else row for row in rows]


def _has_both_summaries(row: Row) -> bool:
    return has_statistics(row.pair) and row.npu is not None and row.golden is not None


def _unit(row: Row) -> float:
    """Return the coarser unit roundoff of both sides of a row, 0 for whole numbers."""
    types = [side.dtype for side in (row.pair.npu, row.pair.golden) if side is not None]
    units = [2.0 ** -(data_types.FLOATS[dtype].digits + 1) for dtype in types if dtype in data_types.FLOATS]
    if "float32" in types and any(name in row.op_type for name in _PRODUCTS):
        units.append(_HF32)
    return max(units, default=0.0)


class _Digits:
    """The uncertainty of numbers printed with limited digits: half a unit of the last.

    All numbers of a tensor are printed alike, with as many decimals or as many digits; zeros at their ends are gone.
    """

    def __init__(self, numbers: Sequence[float]) -> None:
        decimals = [Decimal(repr(float(number))).as_tuple() for number in numbers if isfinite(number)]
        self._finest = min((number.exponent for number in decimals if isinstance(number.exponent, int)), default=None)
        self._digits = max((len(number.digits) for number in decimals), default=0)

    def of(self, number: float) -> float:
        """Return how far a number may be from its printed form."""
        if self._finest is None or isnan(number):
            return 0.0
        exponent = self._finest
        if number:
            exponent = max(exponent, Decimal(number).adjusted() - self._digits + 1)
        return float(0.5 * 10.0**exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One side's statistics, nan for what is not known, and how far its printed digits leave them open."""

    count: int
    summary: Summary
    norm: float
    digits: _Digits
    has_odd_limits: bool = False


def _reason(row: Row, unit: float) -> Message:
    pair = row.pair
    assert pair.npu is not None
    assert pair.golden is not None
    assert row.npu is not None
    assert row.golden is not None
    npu, golden = _side(pair.npu, row.npu), _side(pair.golden, row.golden)
    sides = _of_one_size(npu, golden, pair)
    if sides is None:
        return Message("row.compare.other_sizes", reason=pair.reason, npu=npu.count, golden=golden.count)
    if pair.npu.dtype not in data_types.FLOATS and (unit or not _is_exact(pair.npu)):
        return Message("row.compare.unknown_rounding", reason=pair.reason, dtype=pair.npu.dtype)
    compared, differences = _differences(pair, *sides, unit)
    if differences:
        return Message("row.compare.statistics_differ", differences=joined(tuple(differences)))
    if compared:
        return Message("row.compare.statistics_agree", statistics=compared)
    return Message("row.compare.nothing_compared", reason=pair.reason)


def _is_exact(tensor: AnyTensor) -> bool:
    return tensor.dtype == "bool" or data_types.BY_NAME[tensor.dtype].is_integer


def _side(tensor: AnyTensor, summary: Summary) -> _Side:
    if isinstance(tensor, Tensor):
        norm = sqrt(summary.count) * hypot(summary.mean, summary.std)  # where all are finite, else not asked for
        return _Side(count=summary.count, summary=summary, norm=norm, digits=_Digits(()))
    norm = nan if tensor.l2_norm is None else tensor.l2_norm
    numbers = (summary.minimum, summary.maximum, summary.mean, norm)
    odd = any(limit is not None and not isfinite(limit) for limit in (tensor.minimum, tensor.maximum))
    return _Side(count=summary.count, summary=summary, norm=norm, digits=_Digits(numbers), has_odd_limits=odd)


def _of_one_size(npu: _Side, golden: _Side, pair: Pair) -> tuple[_Side, _Side] | None:
    """Return both sides with as many values, zeros added to the smaller one as the other's layout is padded."""
    if npu.count == golden.count:
        return npu, golden
    assert pair.npu is not None
    assert pair.golden is not None
    if npu.count > golden.count > 0 and not layouts.is_plain(pair.npu.layout):
        return npu, _padded(golden, npu.count)
    if golden.count > npu.count > 0 and not layouts.is_plain(pair.golden.layout):
        return _padded(npu, golden.count), golden
    return None


def _padded(side: _Side, count: int) -> _Side:
    summary = side.summary
    padded = replace(
        summary, count=count, minimum=min(summary.minimum, 0.0), maximum=max(summary.maximum, 0.0),
        mean=summary.mean * (side.count / count),
    )  # fmt: skip
    return replace(side, count=count, summary=padded)


def _differences(pair: Pair, npu: _Side, golden: _Side, unit: float) -> tuple[list[str], list[Message]]:
    """Return the statistics that both sides have, and those of them that differ by more than rounding explains."""
    compared: list[str] = []
    different: list[Message] = []
    unknown = {path for side in (("npu", pair.npu), ("golden", pair.golden)) for path in _absent(*side)}
    for name, words in _COUNTS:
        if not {f"npu.{name}", f"golden.{name}"} & unknown:
            compared.append(words)
            left, right = getattr(npu.summary, name), getattr(golden.summary, name)
            if left != right:
                different.append(Message("row.compare.count_differs", statistic=words, npu=left, golden=right))
    if different:  # the other numbers are then not of the same values
        return compared, different
    bad = [_not_finite(side) for side in (npu, golden)]
    if bad[0] != bad[1]:
        return compared, [Message("row.compare.limits_not_finite", on_npu=bad[0])]
    count = npu.count
    size = max(map(abs, (golden.summary.minimum, golden.summary.maximum)))
    norm = golden.norm if isfinite(golden.norm) else size * sqrt(count)
    own = unit * sqrt(pair.index + 2)  # of the inputs, and of the ops up to this one
    # Only floating-point numbers are rounded when they are summed up to be told of.
    summed = own + _ACCUMULATED * sqrt(count)
    for words, left, right, scale, relative in (
        ("min", npu.summary.minimum, golden.summary.minimum, size, own),
        ("max", npu.summary.maximum, golden.summary.maximum, size, own),
        ("mean", npu.summary.mean, golden.summary.mean, norm / sqrt(count) if count else nan, summed),
        ("norm", npu.norm, golden.norm, norm, summed),
    ):
        if not (isfinite(left) and isfinite(right) and isfinite(scale)):
            continue
        if bad[0] and words in ("mean", "norm"):  # who knows of which values, or of how many
            continue
        compared.append(words)
        if abs(left - right) > relative * scale + npu.digits.of(left) + golden.digits.of(right):
            different.append(Message("row.compare.value_differs", statistic=words, npu=left, golden=right))
    return compared, different


def _not_finite(side: _Side) -> bool:
    """Return whether a side has NaN or Inf: some releases put them into min and max, with or without the counts."""
    summary = side.summary
    return any(getattr(summary, name) for name, _ in _COUNTS) or side.has_odd_limits
