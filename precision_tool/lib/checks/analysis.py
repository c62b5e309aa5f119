"""A result with everything the checks say about it: what commands show and programs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precision_tool.lib.checks.agreement import (
    OpAgreement,
    Overview,
    find_first_fault,
    find_unreadable,
    ops_of,
    overview,
)
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.compare.result_csv import ResultRow
from precision_tool.lib.model.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A result, its rows judged at a threshold, and what the checks found.

    `leaf` is None for a file read back, `path` is empty for a leaf that gave no rows and thus no file.
    """

    path: str
    threshold: float
    rows: Sequence[ResultRow]
    ops: Sequence[OpAgreement]
    overview: Overview
    findings: Sequence[Finding]
    leaf: LeafResult | None = None

    @property
    def tensors(self) -> int:
        """How many rows stand for a tensor; the others stand for an op without a dump."""
        return sum(bool(row.slot) for row in self.rows)

    @property
    def dumped_ops(self) -> int:
        """How many ops have a tensor."""
        return sum(bool(op.inputs or op.outputs) for op in self.ops)

    @property
    def is_two_runs(self) -> bool:
        """True if the other side is an NPU run as well: the result then has the address of its tensors too."""
        if self.leaf is not None:
            return self.leaf.golden_is_dump
        return any("GroundTruthAddress" in row.cells for row in self.rows[:1])


def analyse(path: str, rows: Sequence[ResultRow], threshold: float, leaf: LeafResult | None = None) -> Analysis:
    """Runs the checks over the rows of one result."""
    ops = ops_of(rows, threshold)
    return Analysis(
        path=path,
        threshold=threshold,
        rows=rows,
        ops=ops,
        overview=overview(rows, ops, threshold),
        findings=[*find_unreadable(rows), *find_first_fault(ops, threshold)],
        leaf=leaf,
    )
