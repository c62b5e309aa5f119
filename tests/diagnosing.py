"""Verdicts on the data folder of a session, compared first or alone."""

from __future__ import annotations

from pathlib import Path

from precision_tool.lib.compare.folders import DEFAULT_OPTIONS, CompareOptions
from precision_tool.lib.compare.scheduler import ALL_CORES, Resources
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose.comparing import compare
from precision_tool.lib.diagnose.decide import RunVerdict
from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, Leaf, diagnose_leaf, leaves_alone, leaves_of
from precision_tool.lib.diagnose.verdict_model import Cause, Verdict
from precision_tool.lib.session import Session


def judged_results(
    session: Session, options: CompareOptions = DEFAULT_OPTIONS, resources: Resources = ALL_CORES
) -> list[RunVerdict]:
    """Compare the data folder by one worker and return the verdict on each leaf, by these resources."""
    analyses = compare(session.data, options=options, resources=Resources(1))
    return _judged(leaves_of(session.data, analyses), resources)


def judged_alone(session: Session, resources: Resources = ALL_CORES) -> list[RunVerdict]:
    """Return the verdict on each model of the NPU run without a benchmark."""
    return _judged(leaves_alone(session.data), resources)


def _judged(leaves: list[Leaf], resources: Resources) -> list[RunVerdict]:
    diagnoses = [diagnose_leaf(leaf, DiagnoseOptions(compares=False), resources) for leaf in leaves]
    return [diagnosis.judged for diagnosis in diagnoses if diagnosis.judged is not None]


def verdict_of(
    data: Path,
    work: Path | None = None,
    options: CompareOptions = DEFAULT_OPTIONS,
    resources: Resources = ALL_CORES,
) -> Verdict:
    """Return the verdict of `ac -c` on a data folder, or of `ac` where it has no benchmark."""
    session = Session(load_settings({"data": str(data), "work": str(work or data / "work")}))
    is_alone = session.data.has_dump_alone()
    (judged,) = judged_alone(session, resources) if is_alone else judged_results(session, options, resources)
    return judged.verdict


def blame_of(data: Path) -> tuple[str | None, Cause]:
    """Return who computes wrong by that verdict, and the cause."""
    verdict = verdict_of(data)
    return verdict.culprit, verdict.cause
