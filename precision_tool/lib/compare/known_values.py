"""What a comparison already knows of a leaf's values, for whoever looks at them next without reading again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.compare.tensor_figures import extremes_by, extremes_of
from precision_tool.lib.compare.tensor_reader import key_of
from precision_tool.lib.data.dumped_ops import DumpIndex
from precision_tool.lib.data.kinds import NPY
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Extremes, Pair, Summary
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor

#: What tells a tensor from all others.
Key = tuple[str, str, int]


@dataclass(frozen=True, kw_only=True)
class KnownValues:
    """The dump files of a leaf as they were opened, and what comparing them told of their tensors, NPU side by key.

    `compared` are the rows of pairs that were compared beside the leaf's own, by the keys of both tensors; `rows` the
    leaf's own by op and slot.
    """

    dumps: DumpIndex | None = None
    extremes: Mapping[Key, Extremes] = field(default_factory=dict)
    summaries: Mapping[Key, Summary] = field(default_factory=dict)
    compared: Mapping[tuple[Key, Key], Row] = field(default_factory=dict)
    rows: Mapping[tuple[str, str], Row] = field(default_factory=dict)

    def golden_extremes(self, op_name: str, slot: str) -> Extremes | None:
        """Return the extremes of the benchmark's tensor of an op; None without one, or where it cannot be read."""
        row = self.rows.get((op_name, slot))
        golden = None if row is None else row.pair.golden
        if row is None or not isinstance(golden, Tensor) or not NPY.has_suffix(golden.path):
            return None
        extremes = extremes_by(golden, row.golden) if row.golden is not None and row.metrics is not None else None
        try:
            return extremes or extremes_of(golden)
        except PrecisionToolError:
            return None

    def row_of(self, pair: Pair) -> Row | None:
        """Return the row of a pair that was compared beside the others."""
        if not isinstance(pair.npu, Tensor) or not isinstance(pair.golden, Tensor):
            return None
        return self.compared.get((key_of(pair.npu), key_of(pair.golden)))


#: Where nothing was compared.
NOTHING = KnownValues()


def known_values(results: Sequence[LeafResult]) -> dict[str, KnownValues]:
    """Return the values that comparisons computed, by the folder of the leaf."""
    return {result.leaf.path: _values_of(result) for result in results}


def _values_of(result: LeafResult) -> KnownValues:
    npu = [(key_of(row.pair.npu), row) for row in result.rows if isinstance(row.pair.npu, Tensor)]
    return KnownValues(
        dumps=result.dumps,
        extremes={key: row.extremes for key, row in npu if row.extremes is not None},
        summaries={key: row.npu for key, row in npu if row.npu is not None and row.metrics is not None},
        compared={
            (key_of(row.pair.npu), key_of(row.pair.golden)): row
            for row in result.extra_rows
            if isinstance(row.pair.npu, Tensor) and isinstance(row.pair.golden, Tensor)
        },
        rows={(row.op_name, row.slot): row for row in result.rows},
    )
