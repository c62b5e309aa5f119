"""The ten metrics of FORMATS.md §5 and the summaries of both sides, from the sums of both passes."""

from __future__ import annotations

from math import inf, isfinite, log, log1p, nan, sqrt

from precision_tool.lib.engine.pair_sums import RELATIVE_SCALE, KlSums, SideSums, Sums
from precision_tool.lib.model.comparison import Metrics, Summary

#: Squares of errors, of the product of the sides' lengths, up to which these tell the cosine best.
_NEAR = 2.0**-10


def cosine(sums: Sums | KlSums) -> float:
    """Cosine of the angle between the sides: 1 if both are all zero, nan if only one is; never above 1."""
    if sums.npu_squares == 0 and sums.golden_squares == 0:
        return 1.0
    if sums.npu_squares == 0 or sums.golden_squares == 0:
        return nan
    return max(-1.0, min(1.0, sums.dot / (sqrt(sums.npu_squares) * sqrt(sums.golden_squares))))


def _near_cosine(first: Sums) -> float | None:
    """The cosine of sides that are nearly the same; None for others.

    By the law of cosines: the small squares of the errors keep the digits that float32's sums of products lose.
    """
    product = sqrt(first.npu_squares) * sqrt(first.golden_squares)
    if first.is_extreme or not 0 < product < inf or first.error_squares > _NEAR * product:
        return None
    lengths = sqrt(first.npu_squares) - sqrt(first.golden_squares)
    return 1 - max(0.0, first.error_squares - lengths * lengths) / (2 * product)


def kl_divergence(second: KlSums) -> float:
    """Σ p ln(p/q) of p and q normalised to sum 1, from the sums before normalising."""
    if second.p <= 0 or second.q <= 0:
        return nan
    is_near = abs(second.apart) < second.p / 2
    of_sums = log1p(second.apart / second.p) if is_near else log(second.q / second.p)
    # Of nearly equal sides rounding may take it below zero, which it never is.
    return max(second.p_log_ratio * log(2) / second.p + of_sums, 0.0)


def summarize(side: SideSums, size: int, deviation: float, deviation_squares: float) -> Summary:
    """The summary of one side of `size` elements."""
    mean, std = side.mean, nan
    if side.count:
        variance = side.variance
        if side.is_extreme:
            offset = deviation / side.count
            variance = max(deviation_squares / side.count - offset * offset, 0.0)
            mean = side.centre + offset / side.scale
        std = sqrt(variance) / side.scale
    return Summary(
        count=size,
        minimum=side.minimum if side.count else nan,
        maximum=side.maximum if side.count else nan,
        mean=mean,
        std=std,
        nan_count=side.nan_count,
        positive_inf_count=side.positive_inf_count,
        negative_inf_count=side.negative_inf_count,
        zero_count=side.zero_count,
    )


def finish(first: Sums, second: KlSums, shape: tuple[int, ...]) -> tuple[Metrics | None, Summary, Summary]:
    """Metrics and both summaries. `shape` turns flat positions into indices; empty tensors have no metrics."""
    npu = summarize(first.npu, first.size, second.npu_deviation, second.npu_deviation_squares)
    golden = summarize(first.golden, first.size, second.golden_deviation, second.golden_deviation_squares)
    if not first.size:
        return None, npu, golden
    if first.mismatches:
        return _mismatch_metrics(first, shape), npu, golden
    return _metrics(first, second, shape), npu, golden


def _mismatch_metrics(first: Sums, shape: tuple[int, ...]) -> Metrics:
    """Metrics of a tensor with elements that are finite on one side only.

    All are nan, or inf where no NaN is involved; the summaries and the count of mismatches tell the rest.
    """
    error = nan if first.nan_mismatches else inf
    index = unravel(first.first_mismatch, shape)
    return Metrics(
        cosine=nan,
        max_absolute_error=error,
        accumulated_relative_error=error,
        relative_euclidean_distance=error,
        kullback_leibler_divergence=nan,
        mean_absolute_error=error,
        root_mean_square_error=error,
        max_relative_error=error,
        mean_relative_error=error,
        max_error_index=index,
        npu_at_max_error=first.first_mismatch_values[0],
        golden_at_max_error=first.first_mismatch_values[1],
        non_finite_mismatches=first.mismatches,
        first_mismatch_index=index,
        is_scalar=first.size == 1,
    )


def _metrics(first: Sums, second: KlSums, shape: tuple[int, ...]) -> Metrics:
    """Metrics over the finite elements; if there are none, every element is the same NaN or Inf on both sides."""
    count = first.count
    sums: Sums | KlSums = first
    error_scale = golden_scale = 1.0
    if first.is_extreme:
        sums, error_scale, golden_scale = second, first.error_scale, first.golden.scale
    distance, golden_norm = sqrt(sums.error_squares), sqrt(sums.golden_squares)
    near = _near_cosine(first)
    return Metrics(
        cosine=1.0 if first.size == 1 or not count else cosine(sums) if near is None else near,
        max_absolute_error=max(first.max_error, 0.0),
        accumulated_relative_error=first.relative_total,
        relative_euclidean_distance=distance / golden_norm * (golden_scale / error_scale) if golden_norm else 0.0,
        kullback_leibler_divergence=kl_divergence(second) if count else 0.0,
        mean_absolute_error=sums.error_total / max(count, 1) / error_scale,
        root_mean_square_error=distance / sqrt(max(count, 1)) / error_scale,
        max_relative_error=first.max_relative,
        mean_relative_error=_mean_relative(first),
        max_error_index=unravel(first.max_error_at, shape) if first.max_error > 0 else None,
        npu_at_max_error=first.npu_at_max,
        golden_at_max_error=first.golden_at_max,
        is_scalar=first.size == 1,
        both_zero=count > 0 and sums.npu_squares == 0 and sums.golden_squares == 0,
    )


def _mean_relative(first: Sums) -> float:
    count = max(first.count, 1)
    if isfinite(first.relative_total):
        return first.relative_total / count
    return first.scaled_relative_total / count / RELATIVE_SCALE


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The index of the flat `position` in `shape`, None for no position."""
    if position < 0:
        return None
    index = []
    for extent in reversed(shape):
        index.append(position % extent if extent else 0)
        position //= extent or 1
    return tuple(reversed(index))
