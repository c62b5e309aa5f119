"""A result with everything the checks say about it: what commands show and programs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precision_tool.lib.checks.agreement import OpAgreement, Overview, find_first_fault, ops_of, overview
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.compare.result_csv import ResultRow
from precision_tool.lib.model.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A result, its rows judged at a threshold, and what the checks found. `leaf` is None for a file read back."""

    path: str
    threshold: float
    rows: Sequence[ResultRow]
    ops: Sequence[OpAgreement]
    overview: Overview
    findings: Sequence[Finding]
    leaf: LeafResult | None = None


def analyse(path: str, rows: Sequence[ResultRow], threshold: float, leaf: LeafResult | None = None) -> Analysis:
    """Runs the checks over the rows of one result."""
    ops = ops_of(rows, threshold)
    return Analysis(
        path=path,
        threshold=threshold,
        rows=rows,
        ops=ops,
        overview=overview(rows, ops, threshold),
        findings=find_first_fault(ops, threshold),
        leaf=leaf,
    )
