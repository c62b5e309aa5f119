"""Verdicts on comparisons, or on a dump alone: `ac` and `Session.diagnose` judge and store them alike."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.result_csv import write_own_errors
from precision_tool.lib.compare.scheduler import ALL_CORES, Resources, counting
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.checked_ops import with_verdicts
from precision_tool.lib.diagnose.device_profile import DeviceProfile
from precision_tool.lib.diagnose.judgement_journal import KeptJudgements
from precision_tool.lib.diagnose.pipeline import (
    DiagnoseOptions,
    Diagnosis,
    Leaf,
    diagnose_leaf,
    leaves_alone,
    leaves_of,
)
from precision_tool.lib.diagnose.run_checks import Analysis, explain_overflow
from precision_tool.lib.diagnose.stored_profile import beside_verdict, profile_path, write_profile
from precision_tool.lib.diagnose.stored_verdict import write_alone, write_verdict
from precision_tool.lib.messages.errors import OutputError
from precision_tool.lib.model.finding import CheckResult, FindingKind


def judge(
    data: DataFolder,
    analyses: Sequence[Analysis] | None,
    threshold: float,
    resources: Resources = ALL_CORES,
    *,
    npu: str | None = None,
    graph: str | None = None,
    profile: DeviceProfile | None = None,
    prove: bool = False,
) -> list[Diagnosis]:
    """Judge each comparison, and store the verdicts beside the results.

    Parameters
    ----------
    data : DataFolder
        The data folder that they are of.
    analyses : sequence of Analysis or None
        The comparisons; None: the NPU's dump is judged alone.
    threshold : float
        Cosine similarity that is stored with the verdicts.
    resources : Resources
        Who shares the work; progress is counted in ops.
    npu, graph : str, optional
        The dump and the graph, where they are not those of the data folder.
    profile : DeviceProfile, optional
        How precise the device is, as earlier runs showed.
    prove : bool
        Whether the verdicts say what mending their culprits does (`prove.proven`).

    Returns
    -------
    list of Diagnosis
        One for each comparison, or for each dumped model.
    """
    kept = KeptJudgements(data.workspace.cache_dirs())
    with kept.keeping():
        leaves = leaves_alone(data, npu, graph) if analyses is None else leaves_of(data, analyses, npu, graph)
        options = DiagnoseOptions(compares=False, profile=profile)
        diagnoses = [diagnose_leaf(leaf, options, resources, kept=kept) for leaf in leaves]
        diagnoses = [replace(diagnosis, stored=diagnosis.to_store(threshold)) for diagnosis in diagnoses]
        if prove:
            diagnoses = _proven(diagnoses, leaves, resources)
        with suppress(OutputError):  # whoever asks for it later has it judged again
            _write(data.workspace, diagnoses)
    return diagnoses


def prove_stored(data: DataFolder, diagnoses: Sequence[Diagnosis], resources: Resources) -> list[Diagnosis]:
    """Return diagnoses whose verdicts were read back, proven (`prove.proven`), and store them so."""
    analyses = [diagnosis.analysis for diagnosis in diagnoses if diagnosis.analysis is not None]
    made = _proven(diagnoses, leaves_of(data, analyses), resources)
    with suppress(OutputError):
        for diagnosis in made:
            if diagnosis.stored is not None and diagnosis.analysis is not None:
                write_verdict(diagnosis.stored, diagnosis.analysis.path, str(data.workspace.root))
    return made


def _proven(diagnoses: Sequence[Diagnosis], leaves: Sequence[Leaf], resources: Resources) -> list[Diagnosis]:
    from precision_tool.lib.diagnose.prove import proven

    progress = counting(resources.progress, "ops")
    return [
        proven(diagnosis, leaf, progress=progress) for diagnosis, leaf in zip(diagnoses, leaves, strict=True)
    ]  # fmt: skip


def with_checks(
    diagnoses: Sequence[Diagnosis], checks: Sequence[CheckResult]
) -> tuple[list[Diagnosis], list[CheckResult]]:
    """Return diagnoses with what the checks of the run explain, and the checks with what the verdicts add."""
    checks = with_verdicts(checks, (diagnosis.stored for diagnosis in diagnoses))
    explained = list(diagnoses)
    for check in checks:
        if check.finding is not None and check.finding.kind == FindingKind.OVERFLOW:
            explained = [
                diagnosis
                if diagnosis.analysis is None
                else replace(diagnosis, analysis=explain_overflow(diagnosis.analysis, check.finding))
                for diagnosis in explained
            ]
    return explained, checks


def _write(space: Workspace, diagnoses: Sequence[Diagnosis]) -> None:
    """Write verdicts beside the results that are of our making; of a dump without a benchmark to a folder of theirs.

    The profile of the device goes beside the verdict.
    """
    time = datetime.now().strftime("%Y%m%d%H%M%S")
    for number, diagnosis in enumerate(diagnoses):
        analysis, verdict = diagnosis.analysis, diagnosis.stored
        if verdict is None:
            continue
        profile = None if diagnosis.judged is None else diagnosis.judged.profile
        if analysis is None:
            if not verdict.verdict.is_empty:
                path = write_alone(verdict, space, time, number)
                if profile is not None:
                    write_profile(profile, beside_verdict(path))
        elif analysis.path and analysis.source is not None:
            if analysis.leaf is not None and analysis.choice.own_error:
                write_own_errors(analysis.path, analysis.rows, analysis.choice)
            write_verdict(verdict, analysis.path, str(space.root))
            if profile is not None:
                write_profile(profile, profile_path(analysis.path))
