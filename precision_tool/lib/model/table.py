"""The table of a comparison: one row a pair of tensors, and which columns it was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import overload

from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import (
    STATISTICS_AGREE,
    STATISTICS_DIFFER,
    Extremes,
    Metrics,
    Pair,
    Status,
    Summary,
)
from precision_tool.lib.model.records import record

#: What a row has without metrics of the user's own, all rows the same: they are many.
_NO_CUSTOM: Mapping[str, float | str | None] = {}
#: Of more ops than this, one line of a table shows the first ones only.
MAX_NAMES = 32


@record(frozen=True, slots=True, kw_only=True)
class Row:
    """A pair of tensors with what comparing them gave: compared now, or read from a result file.

    `reason` says what is odd about the pair, or why it was not compared. `overflow` tells of a float16 tensor,
    where it was asked for, whether a value reaches the type's limit, `extremes` how near its values come to it.
    `own_error` of an output that was recomputed is how far it is off what its op's own inputs say, as a relative
    distance.
    `custom` has the values of the user's own metrics by name, None for one that failed, and `custom_errors` which
    failed and why. `noise` is how far this tensor is off in two runs of the same script, where a noise floor has
    it.

    A row that was read has no tensors in its pair, `npu_dtype` and `golden_dtype` instead, and the number of its
    `line`. `absent` names the numbers that its file lacks (`npu.minimum`), which are nan or 0 here, `unlisted` how many
    names of `npu_ops`, `golden_ops` and `original_ops` the file left out, and `damaged` the cells, by column, that
    should hold a number.
    """

    pair: Pair
    metrics: Metrics | None = None
    npu: Summary | None = None
    golden: Summary | None = None
    reason: Message | None = None
    overflow: bool | None = None
    extremes: Extremes | None = None
    custom: Mapping[str, float | str | None] = field(default_factory=lambda: _NO_CUSTOM)
    custom_errors: tuple[tuple[str, Message | str], ...] = ()
    noise: float | None = None
    own_error: float | None = None
    npu_dtype: str = ""
    golden_dtype: str = ""
    line: int = 0
    absent: frozenset[str] = frozenset()
    unlisted: tuple[int, int, int] = (0, 0, 0)
    damaged: tuple[tuple[str, str], ...] = ()

    @property
    def index(self) -> int:
        """The number of the op's group in execution order."""
        return self.pair.index

    @property
    def op_name(self) -> str:
        """The op of the tensor, or the NPU's ops of a row that stands for a whole group."""
        return self.pair.op_name if self.pair.slot else joined(self.pair.npu_ops, self.unlisted[0])

    @property
    def op_type(self) -> str:
        """The type of the op."""
        return self.pair.op_type

    @property
    def slot(self) -> str:
        """`input:0` or `output:0`, empty for a row of a whole op."""
        return self.pair.slot

    @property
    def tensor_index(self) -> str:
        """`{op}:{input|output}:{i}`, empty for a row of a whole op."""
        return self.pair.tensor_index

    @property
    def status(self) -> str:
        """Why there are, or are not, metrics; empty in files of the vendor."""
        return self.pair.status

    @property
    def npu_ops(self) -> tuple[str, ...]:
        """The ops of the group on the NPU."""
        return self.pair.npu_ops

    @property
    def golden_ops(self) -> tuple[str, ...]:
        """The ops of the group on the benchmark side."""
        return self.pair.golden_ops

    @property
    def original_ops(self) -> tuple[str, ...]:
        """The ops of the training script that the op does the work of."""
        return self.pair.original_names

    @property
    def pass_names(self) -> tuple[str, ...]:
        """The fusion passes that made the op."""
        return self.pair.pass_names

    @property
    def golden_tensor(self) -> str:
        """The name of the benchmark's tensor."""
        return self.pair.golden_tensor

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape both sides are compared in."""
        return self.pair.shape

    @property
    def cosine(self) -> float | None:
        """Cosine similarity; None if nothing was compared."""
        metrics = self.metrics  # asked for very often, so without `_metric`
        return None if metrics is None or (self.absent and "metrics.cosine" in self.absent) else metrics.cosine

    @property
    def max_absolute_error(self) -> float | None:
        """The largest error; None if nothing was compared."""
        return self._metric("max_absolute_error")

    @property
    def relative_euclidean_distance(self) -> float | None:
        """The length of the error beside that of the benchmark; None if nothing was compared."""
        return self._metric("relative_euclidean_distance")

    def _metric(self, name: str) -> float | None:
        if self.metrics is None or f"metrics.{name}" in self.absent:
            return None
        value: float = getattr(self.metrics, name)
        return value

    @property
    def mismatches(self) -> int:
        """Elements that are NaN or Inf on one side only."""
        return 0 if self.metrics is None else self.metrics.non_finite_mismatches

    @property
    def is_scalar(self) -> bool:
        """True for a single number, of which a cosine says nothing."""
        return self.metrics is not None and self.metrics.is_scalar

    @property
    def statistics_agree(self) -> bool | None:
        """Whether the statistics of a tensor that has nothing else agree; None if they were not compared."""
        if self.status != Status.STATISTICS_ONLY or self.reason is None:
            return None
        return {STATISTICS_AGREE: True, STATISTICS_DIFFER: False}.get(self.reason.kind)

    @property
    def max_error_index(self) -> tuple[int, ...] | None:
        """Where the largest error is; None if there is none."""
        return None if self.metrics is None else self.metrics.max_error_index

    @property
    def golden_size(self) -> float | None:
        """Largest finite |value| of the benchmark tensor; None if unknown."""
        side = self.golden
        if side is None or isnan(side.minimum) or isnan(side.maximum):
            return None
        return max(abs(side.minimum), abs(side.maximum))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """Which of the columns that depend on what was compared, and on options, a result has.

    `metrics` are those of the vendor's that were asked for, in that order, None for all. `custom` names the user's own
    metrics. With `h5` the columns are those that the vendor has for PyTorch dumps; with `golden_address` the benchmark
    side is an NPU dump as well, whose tensors have an address. `own_error`: ops were recomputed. `compat`: the
    vendor's columns and nothing else.
    """

    h5: bool = False
    sequence: bool = False
    overflow: bool = False
    metrics: tuple[str, ...] | None = None
    custom: tuple[str, ...] = ()
    compat: bool = False
    own_error: bool = False
    golden_address: bool = False


@dataclass(frozen=True, slots=True)
class Table(Sequence[Row]):
    """The rows of one result in order."""

    rows: tuple[Row, ...]
    choice: ColumnChoice = ColumnChoice()

    def __repr__(self) -> str:
        return f"<Table: {len(self.rows)} rows>"

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def joined(names: Sequence[str], unlisted: int = 0) -> str:
    """Names with commas between them; of too many the first ones, and how many more there are."""
    count = len(names) + unlisted
    if count <= MAX_NAMES:
        return ",".join(names)
    shown = names[: MAX_NAMES - 1]
    return ",".join([*shown, f"… (+{count - len(shown)} more)"])
