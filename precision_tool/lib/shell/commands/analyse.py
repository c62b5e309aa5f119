"""`ac`: compare, check everything, judge, and name the first faulty op."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from precision_tool.lib.checks.analysis import Analysis, tell_overflow
from precision_tool.lib.checks.casts import cast_pairs
from precision_tool.lib.errors import DataNotFoundError, NoBenchmarkError, OutputError, UsageError
from precision_tool.lib.model.finding import CheckResult, FindingKind
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.results.result_csv import write_own_errors
from precision_tool.lib.results.result_files import named_result
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import Command, Output, cluster_of
from precision_tool.lib.shell.commands.compare import compare_sides, read_results
from precision_tool.lib.shell.commands.compare_options import measure_options, noise_floor_of
from precision_tool.lib.shell.commands.compare_parsers import ac_parser
from precision_tool.lib.shell.commands.compare_screen import finish, finish_without_benchmark
from precision_tool.lib.shell.commands.study import check_no_study, run_study_command
from precision_tool.lib.shell.commands.toolkit import engine_of
from precision_tool.lib.storage.kept_open import files_kept_open
from precision_tool.lib.workspace import typed_path

if TYPE_CHECKING:  # the verdict is loaded when it is asked for
    from precision_tool.lib.checks.comparing import OtherRun
    from precision_tool.lib.verdict.decide import Judged
    from precision_tool.lib.verdict.since import Since
    from precision_tool.lib.verdict.stored import StoredVerdict


@files_kept_open()
def _run_ac(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.all:
        return run_study_command(session, args, output)
    check_no_study(session, args)
    asked = (
        args.left, args.right, args.graph, args.workers, args.cluster, args.engine, args.custom, args.overflow or None
    )  # fmt: skip
    compares = args.compare or any(option is not None for option in asked)
    if compares and args.file is not None:
        raise UsageError("-f reads an earlier result: it does not go with -c or the options of a comparison")
    if args.report:  # before the hours that a comparison may take
        from precision_tool.lib.report.report_material import place_of

        place_of(session, args.report, *filter(None, (args.left, args.right)))
    earlier = _earlier(session, args, compares=compares)
    analyses: Sequence[Analysis] = []
    lack: NoBenchmarkError | None = None
    other: OtherRun | None = None
    if compares or (args.file is None and session.has_dump_alone()):
        try:
            options = replace(measure_options(args), extremes=True, beside=cast_pairs)
            analyses = compare_sides(session, args, output, options)
            other = _compare_other(session, args, output)
        except NoBenchmarkError as error:
            if not session.kind().has_graph:
                raise
            lack = error  # the NPU's dump alone tells something too
    else:
        analyses = read_results(session, args.file, args.threshold, "ac -c", noise_floor_of(session, args))
    from precision_tool.lib.checks.run_checks import all_checks

    checks = all_checks(session, analyses, args.threshold, npu=args.left, graph=args.graph, limit=args.limit)
    from precision_tool.lib.verdict.told import with_verdicts

    analyses, kept = _verdicts(session, args, output, analyses, is_alone=lack is not None)
    verdicts = [None if one is None else one.as_verdict() for one in kept]
    judged = {op.name: op for one in kept if one is not None for op in one.runs[0].ops}
    checks = [with_verdicts(check, judged) for check in checks]
    if any(one is not None and one.run for one in verdicts):  # its next step says how that run is compared
        from precision_tool.lib.checks.comparing import forget_second_run

        forget_second_run(session.workspace)
    held = _held_against(earlier, session, args, output, kept)
    if lack is not None:
        alone = [one for one in verdicts if one is not None]
        code = finish_without_benchmark(session, args, output, lack, checks, alone, held)
        _report(session, args, output, analyses, kept, checks)
        return code
    for check in checks:
        if check.finding is not None and check.finding.kind == FindingKind.OVERFLOW:
            analyses = [tell_overflow(analysis, check.finding) for analysis in analyses]
    code = finish(
        session, args, output, analyses, checks=checks, verdicts=verdicts, is_whole=compares, held=held, other=other
    )
    _report(session, args, output, analyses, kept, checks)
    return code


def _compare_other(session: Session, args: argparse.Namespace, output: Output) -> OtherRun | None:
    """The run with fusion beside one without it, or the other way round, where no sides were named."""
    if (args.left, args.right, args.graph) != (None, None, None) or engine_of(session, args) == "cann":
        return None
    from precision_tool.lib.checks.comparing import compare_other_run

    workers = session.settings.workers if args.workers is None else args.workers
    with ProgressReport(output.err, "comparing the other run") as progress:
        return compare_other_run(
            session, args.threshold, workers, progress, measure_options(args), noise_floor_of(session, args)
        )


def _report(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    analyses: Sequence[Analysis],
    kept: Sequence[StoredVerdict | None],
    checks: Sequence[CheckResult],
) -> None:
    """Writes the report, where one was asked for."""
    if args.report is None:
        return
    from precision_tool.lib.report.report_material import make_report
    from precision_tool.lib.shell.commands.report import tell_report

    path = make_report(session, analyses, kept, args.report, graph=args.graph, checks=checks)
    if not args.json:
        tell_report(path, output)


def _held_against(
    earlier: StoredVerdict | None,
    session: Session,
    args: argparse.Namespace,
    output: Output,
    kept: Sequence[StoredVerdict | None],
) -> Since | None:
    """What became of an earlier verdict; on the screen only where --since asked for it, else a note names it."""
    from precision_tool.lib.verdict.since import since

    held = None if earlier is None else next((since(earlier, one) for one in kept if one is not None), None)
    if args.since is not None or held is None or args.json:
        return held
    if not held.is_same_dump:  # else nothing can have changed
        line = f"{output.command_for(session)} ac --since {typed_path(held.file)}".lstrip()
        session.workspace.notes.append(f"an earlier verdict named {held.culprit}: `{line}` compares")
    return None


def _earlier(session: Session, args: argparse.Namespace, *, compares: bool) -> StoredVerdict | None:
    """The verdict that today's is held against: that of --since, or the newest earlier one that named a culprit.

    DataNotFoundError where one was asked for and there is none. Without `compares` the newest is today's itself.
    """
    from precision_tool.lib.verdict.stored import read_verdict, stored_verdicts

    if args.since is not None and not session.kind().has_graph:
        session.kind().check_judged("ac: --since")
    if args.since:
        found = read_verdict(named_result(session.workspace, args.since))
        if found.verdict["culprit"] is None:
            raise UsageError(f"{args.since}: this verdict names no culprit", "name an earlier result with one")
        return found
    if args.since is None and not compares:
        return None
    todays = () if compares else tuple(session.stored_verdicts())
    paths = {one.path for one in todays}
    known = (one for one in stored_verdicts(session.workspace) if one.path not in paths)
    earlier = next((one for one in known if one.verdict["culprit"] is not None), None)
    if earlier is None and any(one.verdict["culprit"] is not None for one in todays):
        raise DataNotFoundError(
            f"{session.workspace.root}: the newest verdict is the only one that names a culprit",
            "`ac -c --since` compares anew and holds what is collected now against it",
        )
    if earlier is None and args.since is not None:
        raise DataNotFoundError(
            f"{session.workspace.root}: no earlier verdict that names a culprit",
            "once collected again, `ac -c --since` holds the verdict of then against the last one; "
            "--since FILE names a verdict_*.json of elsewhere",
        )
    return earlier


def _verdicts(
    session: Session, args: argparse.Namespace, output: Output, analyses: Sequence[Analysis], *, is_alone: bool
) -> tuple[Sequence[Analysis], list[StoredVerdict | None]]:
    """The verdict on each result, or without a benchmark on the NPU's dump alone; kept from now on.

    That of an earlier result is read where it is kept; a new one comes with the own errors in its rows and its file.
    """
    from precision_tool.lib.verdict.of_results import with_own_errors
    from precision_tool.lib.verdict.stored import read_beside, stored

    if not is_alone:
        known = [None if one.leaf is not None else read_beside(one.path, one.threshold) for one in analyses]
        if known and all(known):
            return analyses, [*known]
    workers = session.settings.workers if args.workers is None else args.workers
    with cluster_of(args) as executor, ProgressReport(output.err, "recomputing") as progress:
        judged: Sequence[Judged | None]
        workers = workers if executor is None else executor.workers
        if is_alone:
            judged = session.verdicts_alone(args.left, args.graph, progress, workers, executor)
        else:
            judged = session.verdicts(analyses, args.left, args.graph, progress, workers, executor)
            pairs = zip(analyses, judged, strict=True)
            analyses = [analysis if one is None else with_own_errors(analysis, one) for analysis, one in pairs]
    found = [None if one is None else stored(one, args.threshold) for one in judged]
    with suppress(OutputError):  # whoever asks for it later has it judged again
        _keep(session, analyses, found, is_alone=is_alone)
    return analyses, found


def _keep(
    session: Session, analyses: Sequence[Analysis], found: Sequence[StoredVerdict | None], *, is_alone: bool
) -> None:
    """Writes verdicts beside the results that are of our making."""
    from precision_tool.lib.verdict.stored import write_alone, write_verdict

    if is_alone:
        time = datetime.now().strftime("%Y%m%d%H%M%S")
        for number, one in enumerate(found):
            if one is not None and not one.as_verdict().is_empty:
                write_alone(one, session.workspace, time, number)
        return
    for analysis, one in zip(analyses, found, strict=True):
        if one is not None and analysis.path and analysis.source is not None:
            if analysis.leaf is not None and analysis.choice.own_error:
                write_own_errors(analysis.path, analysis.rows, analysis.choice)
            write_verdict(one, analysis.path, str(session.workspace.root))


AC = Command(ac_parser, _run_ac)
