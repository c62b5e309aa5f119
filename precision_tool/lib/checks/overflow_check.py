"""Overflow as one of the checks of `ac`: which op overflowed first, and what tells so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precision_tool.lib.checks.overflow import OverflowReport
from precision_tool.lib.checks.overflow_advice import Advice, advise
from precision_tool.lib.checks.overflow_search import find_overflow
from precision_tool.lib.compare.known import KnownValues
from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.model.finding import CheckResult, Evidence, Finding, FindingKind, Grade, Unmade

NAME = "overflow"
#: `ac` stays quick: it reads so many bytes of outputs at most.
_MAX_BYTES = 4 << 30
#: More ops than any network has.
_ALL = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowFound(Evidence):
    """What the overflow statuses below `root` and the dumped values tell, and what to do; `limit` statuses are told."""

    report: OverflowReport
    root: str
    limit: int
    advice: tuple[Advice, ...]


def check_overflow(
    data: DataFolder,
    folder: str | None = None,
    graph: str | None = None,
    limit: int = 0,
    known: Mapping[str, KnownValues] | None = None,
) -> CheckResult:
    """What `ac` shows of it; of `folder` if another dump than the data folder's was named. `limit` 0 shows all.

    `known` is what a comparison found out, by the folder of the leaf.
    """
    try:
        limit = limit or _ALL
        found, root = find_overflow(data, folder, graph, limit, max_bytes=_MAX_BYTES, known=known)
    except PrecisionToolError as error:
        return CheckResult(name=NAME, skipped=Unmade(reason=error.advice))
    first = found.first
    finding = Finding(
        kind=FindingKind.OVERFLOW,
        grade=Grade.INFO if found.is_clean and not found.unreadable else Grade.WARNING,
        evidence=OverflowFound(report=found, root=root, limit=limit, advice=tuple(advise(found))),
        op_name="" if first is None else first.name,
        op_type="" if first is None else first.op_type,
        pass_names=() if first is None else first.pass_names,
        original_ops=() if first is None else first.original_names,
    )
    return CheckResult(name=NAME, finding=finding)
