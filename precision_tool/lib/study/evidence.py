"""What statistics tell against an op, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from precision_tool.lib.study.leaf_statistics import LeafStatistics


class EvidenceKind(StrEnum):
    """What speaks against an op."""

    NAN = "nan"
    INF = "inf"
    AT_LIMIT = "at_limit"
    BENCHMARK = "benchmark"
    REPLICAS = "replicas"
    SUM = "sum"
    CHANGED = "changed"
    JUMP = "jump"
    OUTLIER = "outlier"


#: Evidence that holds by itself; norms, and Inf that may be meant, make an op suspect only.
CERTAIN = frozenset({EvidenceKind.NAN, EvidenceKind.REPLICAS, EvidenceKind.SUM, EvidenceKind.CHANGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What speaks against an op at a step of a rank.

    `value` and `expected` are counts, norms or means; `off` is what the inputs do not explain, as a logarithm of norms,
    and `bound` what it had to exceed; both NaN where there is no such thing. `number` is the op's place in the order of
    execution.
    """

    kind: EvidenceKind
    step: int
    rank: int
    op: str
    type: str
    tensor: str
    number: int
    value: float
    expected: float
    off: float = float("nan")
    bound: float = float("nan")


def evidence_of(
    kind: EvidenceKind, leaf: LeafStatistics, number: int, value: float, expected: float, *of: float
) -> Evidence:
    """Evidence of tensor `number` of a leaf; `of` are `off` and `bound`."""
    op = int(leaf.names.op_of[number])
    off, bound = of or (float("nan"), float("nan"))
    return Evidence(
        kind=kind, step=leaf.step, rank=leaf.rank, op=leaf.names.ops[op], type=leaf.names.types[op],
        tensor=leaf.names.tensor(number), number=op, value=value, expected=expected, off=off, bound=bound,
    )  # fmt: skip
