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
from precision_tool.lib.cli.comparison_screen import finish, finish_without_benchmark
from precision_tool.lib.compare.result_csv import write_own_errors
from precision_tool.lib.compare.result_files import named_result
from precision_tool.lib.data.workspace import typed_path
from precision_tool.lib.diagnose.casts import cast_pairs
from precision_tool.lib.diagnose.run_checks import Analysis, explain_overflow
from precision_tool.lib.diagnose.stored_verdict import newest_verdicts
from precision_tool.lib.errors import DataNotFoundError, NoBenchmarkError, OutputError, UsageError
from precision_tool.lib.io.local import shared_open_files
from precision_tool.lib.model.finding import CheckResult, FindingKind
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.comparing import OtherRun
    from precision_tool.lib.diagnose.pipeline import Diagnosis
    from precision_tool.lib.diagnose.stored_verdict import Since, StoredVerdict


def ac_parser(session: Session) -> Parser:
    """The options of `ac`."""
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
    asked = (
        args.left, args.right, args.graph, args.workers, args.cluster, args.engine, args.custom, args.overflow or None
    )  # fmt: skip
    compares = args.compare or any(option is not None for option in asked)
    if compares and args.file is not None:
        raise UsageError("-f reads an earlier result: it does not go with -c or the options of a comparison")
    if args.report:  # before the hours that a comparison may take
        from precision_tool.lib.view.report_material import place_of

        place_of(session.data, args.report, *filter(None, (args.left, args.right)))
    earlier = _earlier(session, args, compares=compares)
    analyses: Sequence[Analysis] = []
    lack: NoBenchmarkError | None = None
    other: OtherRun | None = None
    if compares or (args.file is None and session.data.has_dump_alone()):
        try:
            options = replace(measure_options(args), extremes=True, extra_pairs=cast_pairs)
            analyses = compare_sides(session, args, output, options)
            other = _compare_other(session, args, output)
        except NoBenchmarkError as error:
            if not session.data.kind().has_graph:
                raise
            lack = error  # the NPU's dump alone tells something too
    else:
        analyses = read_results(session, args.file, args.threshold, "ac -c", noise_floor_of(session, args))
    from precision_tool.lib.diagnose.run_checks import all_checks

    checks = all_checks(session.data, analyses, args.threshold, npu=args.left, graph=args.graph, limit=args.limit)
    from precision_tool.lib.diagnose.checked_ops import with_verdicts

    diagnoses = _diagnoses(session, args, output, analyses, is_alone=lack is not None)
    analyses = [one.analysis for one in diagnoses if one.analysis is not None]
    verdicts = [None if one.stored is None else one.stored.as_verdict() for one in diagnoses]
    op_verdicts = {op.name: op for one in diagnoses if one.stored is not None for op in one.stored.runs[0].ops}
    checks = [with_verdicts(check, op_verdicts) for check in checks]
    if any(one is not None and one.run for one in verdicts):  # its next step says how that run is compared
        from precision_tool.lib.diagnose.comparing import forget_second_run

        forget_second_run(session.workspace)
    held = _held_against(earlier, session, args, output, diagnoses)
    if lack is not None:
        alone = [one for one in verdicts if one is not None]
        code = finish_without_benchmark(session, args, output, lack, checks, alone, held)
        _report(session, args, output, diagnoses, checks)
        return code
    for check in checks:
        if check.finding is not None and check.finding.kind == FindingKind.OVERFLOW:
            analyses = [explain_overflow(analysis, check.finding) for analysis in analyses]
    diagnoses = [replace(one, analysis=analysis) for one, analysis in zip(diagnoses, analyses, strict=True)]
    code = finish(
        session, args, output, analyses, checks=checks, verdicts=verdicts, is_whole=compares, held=held, other=other
    )
    _report(session, args, output, diagnoses, checks)
    return code


def _compare_other(session: Session, args: argparse.Namespace, output: Output) -> OtherRun | None:
    """The run with fusion beside one without it, or the other way round, where no sides were named."""
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
    """Writes the report, where one was asked for."""
    if args.report is None:
        return
    from precision_tool.lib.cli.cmd_report import tell_report
    from precision_tool.lib.view.report_material import make_report

    path = make_report(session.data, diagnoses, args.report, graph=args.graph, checks=checks)
    if not args.json:
        tell_report(path, output)


def _held_against(
    earlier: StoredVerdict | None,
    session: Session,
    args: argparse.Namespace,
    output: Output,
    diagnoses: Sequence[Diagnosis],
) -> Since | None:
    """What became of an earlier verdict; on the screen only where --since asked for it, else a note names it."""
    from precision_tool.lib.diagnose.stored_verdict import since

    held = None if earlier is None else next((since(earlier, one.stored) for one in diagnoses if one.stored), None)
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
    from precision_tool.lib.diagnose.stored_verdict import read_verdict, stored_verdicts

    if args.since is not None and not session.data.kind().has_graph:
        session.data.kind().check_judged("ac: --since")
    if args.since:
        found = read_verdict(named_result(session.workspace, args.since))
        if found.verdict["culprit"] is None:
            raise UsageError(f"{args.since}: this verdict names no culprit", "name an earlier result with one")
        return found
    if args.since is None and not compares:
        return None
    todays = () if compares else tuple(newest_verdicts(session.workspace))
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


def _diagnoses(
    session: Session, args: argparse.Namespace, output: Output, analyses: Sequence[Analysis], *, is_alone: bool
) -> list[Diagnosis]:
    """Diagnose each result, or without a benchmark the NPU's dump alone; what is found is kept from now on.

    The verdict on an earlier result is read where it is kept; a new one comes with the own errors in its rows and file.
    """
    from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, Diagnosis, diagnose_leaf, leaves_alone, leaves_of
    from precision_tool.lib.diagnose.stored_verdict import read_beside

    if not is_alone:
        earlier = [None if one.leaf is not None else read_beside(one.path, one.threshold) for one in analyses]
        if earlier and all(earlier):
            return [Diagnosis(analysis=one, stored=kept) for one, kept in zip(analyses, earlier, strict=True)]
    with cluster_of(args) as executor, ProgressReport(output.err, "recomputing") as progress:
        resources = resources_of(session, args, executor, progress)
        if is_alone:
            leaves = leaves_alone(session.data, args.left, args.graph)
        else:
            leaves = leaves_of(session.data, analyses, args.left, args.graph)
        diagnoses = [diagnose_leaf(leaf, DiagnoseOptions(compares=False), resources) for leaf in leaves]
    diagnoses = [replace(one, stored=one.to_store(args.threshold)) for one in diagnoses]
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
            if not verdict.as_verdict().is_empty:
                write_alone(verdict, session.workspace, time, number)
        elif analysis.path and analysis.source is not None:
            if analysis.leaf is not None and analysis.choice.own_error:
                write_own_errors(analysis.path, analysis.rows, analysis.choice)
            write_verdict(verdict, analysis.path, str(session.workspace.root))


COMMAND = Command(ac_parser, _run_ac)
