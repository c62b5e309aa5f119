"""`ac`: compare, check everything, judge, and name the first faulty op."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from precision_tool.lib.cli.cmd_ac_all import add_study, check_no_study, run_study_command
from precision_tool.lib.cli.cmd_toolkit import engine_of
from precision_tool.lib.cli.cmd_vc import compare_sides
from precision_tool.lib.cli.command import (
    Command,
    Completion,
    Output,
    Parser,
    cluster_of,
    completes,
    resources_of,
)
from precision_tool.lib.cli.comparison_options import (
    add_common,
    add_measures,
    add_sides,
    measure_options,
    noise_floor_of,
    read_results,
)
from precision_tool.lib.cli.comparison_screen import Outcome, finish, finish_without_benchmark
from precision_tool.lib.compare.result_csv import write_own_errors
from precision_tool.lib.compare.result_files import named_result
from precision_tool.lib.data.workspace import typed_path
from precision_tool.lib.diagnose.casts import cast_pairs
from precision_tool.lib.diagnose.run_checks import Analysis, explain_overflow
from precision_tool.lib.diagnose.stored_verdict import newest_verdicts
from precision_tool.lib.io.local import shared_open_files
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError, OutputError, UsageError
from precision_tool.lib.model.finding import CheckResult, FindingKind
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.comparing import OtherRun
    from precision_tool.lib.diagnose.pipeline import Diagnosis
    from precision_tool.lib.diagnose.stored_verdict import Since, StoredVerdict


def ac_parser(session: Session) -> Parser:
    """Return the parser of `ac`."""
    parser = Parser(
        prog="ac",
        description="Check everything and name the first op that computes wrong. Without -c the newest result is read.",
        epilog="example: ac -c",
    )
    parser.add_argument(
        "-c",
        "--vector_compare",
        dest="compare",
        action="store_true",
        help="compare first; implied by the options of the comparison",
    )
    file = parser.add_argument(
        "-f", "--file", dest="file", metavar="FILE|DIR",
        help="an earlier result in place of the newest; also one of a part, as a comparison that was stopped leaves it",
    )  # fmt: skip
    completes(file, Completion.RESULT)
    add_common(parser, session)
    since = parser.add_argument(
        "--since", dest="since", metavar="RESULT", nargs="?", const="",
        help="after a fix: whether the culprit of an earlier verdict (a result file or folder, or the verdict_*.json "
        "beside one; default: the newest earlier one) computes right now, and whether the switch took effect",
    )  # fmt: skip
    completes(since, Completion.RESULT)
    parser.add_argument("-v", "--verbose", action="store_true", help="every panel whole, not only the verdict's")
    page = parser.add_argument(
        "--report", dest="report", metavar="FILE.html", nargs="?", const="",
        help="write all of it as one HTML file too (default: beside the result); `report` does so later",
    )  # fmt: skip
    completes(page, Completion.FILE)
    comparison = parser.add_argument_group("what is compared, and how")
    add_sides(comparison, session)
    add_measures(comparison)
    add_study(parser)
    return parser


@shared_open_files()
def _run_ac(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.all:
        return run_study_command(session, args, output)
    check_no_study(session, args)
    compares = _compares(args)
    if args.report:  # before the hours that a comparison may take
        from precision_tool.lib.view.report_material import place_of

        place_of(session.data, args.report, *filter(None, (args.left, args.right)))
    earlier = _earlier(session, args, compares=compares)
    analyses: Sequence[Analysis] = []
    missing: NoBenchmarkError | None = None
    other: OtherRun | None = None
    if compares or (args.file is None and session.data.has_dump_alone()):
        try:
            options = replace(measure_options(args), extremes=True, extra_pairs=cast_pairs)
            analyses = compare_sides(session, args, output, options)
            other = _compare_other(session, args, output)
        except NoBenchmarkError as error:
            if not session.data.kind().has_graph:
                raise
            missing = error  # the NPU's dump alone shows something too
    else:
        analyses = read_results(session, args.file, args.threshold, "ac -c", noise_floor_of(session, args))
    diagnoses, checks = _diagnose(session, args, output, analyses, is_alone=missing is not None)
    outcome = Outcome(
        analyses=[diagnosis.analysis for diagnosis in diagnoses if diagnosis.analysis is not None],
        checks=checks,
        verdicts=[None if diagnosis.stored is None else diagnosis.stored.verdict for diagnosis in diagnoses],
        since=_since_earlier(earlier, session, args, output, diagnoses),
        other=other,
    )
    if any(verdict is not None and verdict.run for verdict in outcome.verdicts):
        from precision_tool.lib.diagnose.comparing import forget_second_run

        forget_second_run(session.workspace)  # the verdict's next step names it anew
    if missing is not None:
        code = finish_without_benchmark(session, args, output, missing, outcome)
    else:
        code = finish(session, args, output, outcome, is_whole=compares)
    _report(session, args, output, diagnoses, checks)
    return code


def _compares(args: argparse.Namespace) -> bool:
    """Return whether to compare anew: -c, or any option of a comparison. UsageError if -f names a result, too."""
    options = (args.left, args.right, args.graph, args.workers, args.cluster, args.engine, args.custom)
    compares = bool(args.compare or args.overflow) or any(option is not None for option in options)
    if compares and args.file is not None:
        raise UsageError("cli.result_or_comparison")
    return compares


def _diagnose(
    session: Session, args: argparse.Namespace, output: Output, analyses: Sequence[Analysis], *, is_alone: bool
) -> tuple[list[Diagnosis], list[CheckResult]]:
    """Return the diagnosis of each result, and the checks of the run with what the verdicts add to them."""
    from precision_tool.lib.diagnose.checked_ops import with_verdicts
    from precision_tool.lib.diagnose.run_checks import all_checks

    checks = all_checks(session.data, analyses, args.threshold, npu=args.left, graph=args.graph, limit=args.limit)
    diagnoses = _diagnoses(session, args, output, analyses, is_alone=is_alone)
    ops = {
        op.name: op for diagnosis in diagnoses if diagnosis.stored is not None for op in diagnosis.stored.runs[0].ops
    }
    checks = [with_verdicts(check, ops) for check in checks]
    for check in checks:
        if check.finding is not None and check.finding.kind == FindingKind.OVERFLOW:
            diagnoses = [
                diagnosis
                if diagnosis.analysis is None
                else replace(diagnosis, analysis=explain_overflow(diagnosis.analysis, check.finding))
                for diagnosis in diagnoses
            ]
    return diagnoses, checks


def _compare_other(session: Session, args: argparse.Namespace, output: Output) -> OtherRun | None:
    """Compare the run with fusion besides one without it, or the reverse, where no sides were named."""
    if (args.left, args.right, args.graph) != (None, None, None) or engine_of(session, args) == "cann":
        return None
    from precision_tool.lib.diagnose.comparing import compare_other_run

    options = replace(measure_options(args), threshold=args.threshold, noise=noise_floor_of(session, args))
    with ProgressReport(output.err, "comparing the other run") as progress:
        return compare_other_run(session.data, options, resources_of(session, args, progress=progress))


def _report(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    diagnoses: Sequence[Diagnosis],
    checks: Sequence[CheckResult],
) -> None:
    """Write the report if --report asks for it."""
    if args.report is None:
        return
    from precision_tool.lib.cli.cmd_report import tell_report
    from precision_tool.lib.view.report_material import make_report

    path = make_report(session.data, diagnoses, args.report, graph=args.graph, checks=checks)
    if not args.json:
        tell_report(path, output)


def _since_earlier(
    earlier: StoredVerdict | None,
    session: Session,
    args: argparse.Namespace,
    output: Output,
    diagnoses: Sequence[Diagnosis],
) -> Since | None:
    """Return what became of an earlier verdict; without --since add a note on it instead."""
    from precision_tool.lib.diagnose.stored_verdict import since

    change = (
        None
        if earlier is None
        else next((since(earlier, diagnosis.stored) for diagnosis in diagnoses if diagnosis.stored), None)
    )
    if args.since is not None or change is None or args.json:
        return change
    if not change.is_same_dump:  # else nothing can have changed
        line = f"{output.command_for(session)} ac --since {typed_path(change.file)}".lstrip()
        session.workspace.notes.append(text("note.cli.earlier_verdict", culprit=change.culprit, line=line))
    return None


def _earlier(session: Session, args: argparse.Namespace, *, compares: bool) -> StoredVerdict | None:
    """Return the verdict to check against: that of --since, or the newest earlier one that named a culprit.

    DataNotFoundError where one was asked for and there is none. Without `compares` the newest is today's itself.
    """
    from precision_tool.lib.diagnose.stored_verdict import read_verdict, stored_verdicts

    if args.since is not None and not session.data.kind().has_graph:
        session.data.kind().check_judged("ac: --since")
    if args.since:
        verdict = read_verdict(named_result(session.workspace, args.since))
        if verdict.verdict.culprit is None:
            raise UsageError("cli.verdict_without_culprit", path=args.since)
        return verdict
    if args.since is None and not compares:
        return None
    todays = () if compares else tuple(newest_verdicts(session.workspace))
    paths = {verdict_.path for verdict_ in todays}
    others = (verdict_ for verdict_ in stored_verdicts(session.workspace) if verdict_.path not in paths)
    earlier = next((verdict_ for verdict_ in others if verdict_.verdict.culprit is not None), None)
    if earlier is None and any(verdict_.verdict.culprit is not None for verdict_ in todays):
        raise DataNotFoundError("cli.single_verdict", folder=session.workspace.root)
    if earlier is None and args.since is not None:
        raise DataNotFoundError("cli.no_earlier_verdict", folder=session.workspace.root)
    return earlier


def _diagnoses(
    session: Session, args: argparse.Namespace, output: Output, analyses: Sequence[Analysis], *, is_alone: bool
) -> list[Diagnosis]:
    """Diagnose each result, or without a benchmark the NPU's dump alone; what is found is kept from now on.

    The verdict on an earlier result is read where it is kept; a new one comes with the own errors in its rows and file.
    """
    from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, Diagnosis, diagnose_leaf, leaves_alone, leaves_of
    from precision_tool.lib.diagnose.stored_verdict import read_beside

    if not is_alone:
        earlier = [
            None if analysis.leaf is not None else read_beside(analysis.path, analysis.threshold)
            for analysis in analyses
        ]
        if earlier and all(earlier):
            return [
                Diagnosis(analysis=analysis, stored=stored) for analysis, stored in zip(analyses, earlier, strict=True)
            ]
    with cluster_of(args) as executor, ProgressReport(output.err, "recomputing") as progress:
        resources = resources_of(session, args, executor, progress)
        if is_alone:
            leaves = leaves_alone(session.data, args.left, args.graph)
        else:
            leaves = leaves_of(session.data, analyses, args.left, args.graph)
        diagnoses = [diagnose_leaf(leaf, DiagnoseOptions(compares=False), resources) for leaf in leaves]
    diagnoses = [replace(analysis, stored=analysis.to_store(args.threshold)) for analysis in diagnoses]
    with suppress(OutputError):  # whoever asks for it later has it judged again
        _keep(session, diagnoses)
    return diagnoses


def _keep(session: Session, diagnoses: Sequence[Diagnosis]) -> None:
    """Write verdicts beside the results that are of our making; of a dump without a benchmark to a folder of theirs."""
    from precision_tool.lib.diagnose.stored_verdict import write_alone, write_verdict

    time = datetime.now().strftime("%Y%m%d%H%M%S")
    for number, diagnosis in enumerate(diagnoses):
        analysis, verdict = diagnosis.analysis, diagnosis.stored
        if verdict is None:
            continue
        if analysis is None:
            if not verdict.verdict.is_empty:
                write_alone(verdict, session.workspace, time, number)
        elif analysis.path and analysis.source is not None:
            if analysis.leaf is not None and analysis.choice.own_error:
                write_own_errors(analysis.path, analysis.rows, analysis.choice)
            write_verdict(verdict, analysis.path, str(session.workspace.root))


COMMAND = Command(ac_parser, _run_ac)
