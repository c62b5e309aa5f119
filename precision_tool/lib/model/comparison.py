"""Pairs of tensors, and the numbers that comparing them gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf, isnan, log2, nan

from precision_tool.lib.messages import Message
from precision_tool.lib.model.records import record
from precision_tool.lib.model.tensor import AnyTensor, Plan, Tensor

#: Benchmark values up to this size count as zero for relative errors (the vendor's rule).
ZERO_BELOW = 2.2e-16


class Status(StrEnum):
    """Why a row has, or has not, metrics. Everything but COMPARED says why the tensors were not compared."""

    COMPARED = "compared"
    NO_NPU_DUMP = "no_npu_dump"
    NO_BENCHMARK = "no_benchmark"
    NO_ORIGINAL_OP = "no_original_op"
    INTERMEDIATE = "intermediate"
    STATISTICS_ONLY = "statistics_only"
    NOT_NUMERIC = "not_numeric"
    UNREADABLE = "unreadable"
    SIZE_MISMATCH = "size_mismatch"
    LAYOUT = "layout"


#: Kinds of reasons that decide something. A result file has no other trace of them than their texts.
STATISTICS_AGREE, STATISTICS_DIFFER = "row.compare.statistics_agree", "row.compare.statistics_differ"
NO_GRAPH = "row.data.no_graph"
#: The ops of a side that has none, as result files and JSON show it.
NO_OPS = ("*",)


@record(frozen=True, slots=True, kw_only=True)
class Pair:
    """A tensor of the NPU side and the benchmark tensor it must equal, or the reason why there is none.

    `index` numbers the op groups in execution order; `npu_ops` and `golden_ops` are all ops of the group on either
    side, NO_OPS where a side has none. `shape` is the shape both are compared in, as the result file prints it.
    `status` is a Status, or what a newer release wrote. With one other than COMPARED, `reason` says why. `sequence` is
    the op's id in the graph, where it was asked for. `declared` is what the header says of an NPU tensor that has too
    few bytes to be read.
    """

    index: int
    op_name: str
    op_type: str
    npu_ops: tuple[str, ...]
    golden_ops: tuple[str, ...]
    slot: str = ""
    npu: AnyTensor | None = None
    golden: AnyTensor | None = None
    golden_tensor: str = ""
    npu_plan: Plan | None = None
    golden_plan: Plan | None = None
    shape: tuple[int, ...] | None = None
    error_shape: tuple[int, ...] = ()
    status: str = Status.COMPARED
    reason: Message | None = None
    pass_names: tuple[str, ...] = ()
    original_names: tuple[str, ...] = ()
    sequence: int | None = None
    declared: Tensor | None = None

    @property
    def is_input(self) -> bool:
        """True for a row of an op's input."""
        return self.slot.startswith("input")

    @property
    def tensor_index(self) -> str:
        """`{op}:{input|output}:{i}`, empty for a row that stands for a whole op."""
        return f"{self.op_name}:{self.slot}" if self.slot else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One side's values. min, max, mean and std are those of its finite values, nan where it has none."""

    count: int = 0
    minimum: float = nan
    maximum: float = nan
    mean: float = nan
    std: float = nan
    nan_count: int = 0
    positive_inf_count: int = 0
    negative_inf_count: int = 0
    zero_count: int = 0

    @property
    def inf_count(self) -> int:
        """Infinities of both signs."""
        return self.positive_inf_count + self.negative_inf_count


def single_value(summary: Summary) -> float | None:
    """The value of a tensor that is a single number; None where only a file of the vendor told of it."""
    if summary.nan_count:
        return nan
    if summary.inf_count:
        return inf if summary.positive_inf_count else -inf
    return None if isnan(summary.maximum) else summary.maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The ten metrics of FORMATS.md §5 (two of them in the summaries), and where the largest error lies.

    Elements that are NaN on both sides, or the same Inf, agree and are left out. Those that are not finite on
    one side only are counted in `non_finite_mismatches`; any of them makes the metrics nan or inf.
    """

    cosine: float
    max_absolute_error: float
    accumulated_relative_error: float
    relative_euclidean_distance: float
    kullback_leibler_divergence: float
    mean_absolute_error: float
    root_mean_square_error: float
    max_relative_error: float
    mean_relative_error: float
    max_error_index: tuple[int, ...] | None = None
    npu_at_max_error: float = nan
    golden_at_max_error: float = nan
    non_finite_mismatches: int = 0
    first_mismatch_index: tuple[int, ...] | None = None
    is_scalar: bool = False
    both_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """The largest size among the finite values (nan: unknown), and how many values are at or beyond the limits.

    `limit` is the type's largest number. Of a tensor with statistics only, `saturated` is 1 for one or more.
    """

    dtype: str
    count: int
    limit: float
    largest: float
    saturated: int = 0
    nan_count: int = 0
    positive_inf_count: int = 0
    negative_inf_count: int = 0
    statistics_only: bool = False

    @property
    def inf_count(self) -> int:
        """Infinities of both signs."""
        return self.positive_inf_count + self.negative_inf_count

    @property
    def bad(self) -> int:
        """Values that are saturated, Inf or NaN."""
        return self.saturated + self.inf_count + self.nan_count

    @property
    def is_clean(self) -> bool:
        """True if no value is saturated, Inf or NaN."""
        return not self.bad

    @property
    def headroom(self) -> float:
        """Bits between the largest value and the limit: 0 when one is reached, inf for zeros, nan if unknown."""
        if self.saturated or self.inf_count:
            return 0.0
        if isnan(self.largest):
            return nan
        return log2(self.limit) - log2(self.largest) if self.largest else inf
