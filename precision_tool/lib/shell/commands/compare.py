"""`vc`, `vcs` and `ac`: compare two sides, list the ops below the threshold, name the first faulty one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.rule import Rule

from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.compare.folders import ComparisonStoppedError
from precision_tool.lib.model.finding import Grade
from precision_tool.lib.report import compare as report
from precision_tool.lib.report.progress import ProgressReport
from precision_tool.lib.report.text import plain, shown_path
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import DONE, FOUND, Command, Output, Parser, cosine, count, tell_notes


def _add_common(parser: Parser, session: Session) -> None:
    settings = session.settings
    parser.add_argument(
        *(["-c"] if parser.prog == "vcs" else []),  # in ac, -c means compare
        "--threshold",
        dest="threshold",
        metavar="COS",
        type=cosine,
        default=settings.threshold,
        help="cosine similarity below which a tensor counts as wrong (default %(default)s)",
    )
    parser.add_argument(
        "-l", dest="limit", metavar="N", type=count(1), default=settings.limit,
        help="how many ops to show (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    parser.add_argument("--fail", action="store_true", help="exit code 1 if anything is below the threshold")


def _add_sides(parser: Parser) -> None:
    parser.add_argument("-lt", dest="left", metavar="DIR", help="NPU dump: a folder of any level of the dump tree")
    parser.add_argument("-rt", dest="right", metavar="DIR", help="benchmark .npy files, or the dump of another NPU run")
    parser.add_argument("-g", dest="graph", metavar="GRAPH", help="graph file (text or JSON), or a folder of them")
    parser.add_argument(
        "--workers",
        metavar="N",
        type=count(0),
        default=None,
        help="processes that share the work (default: one a core)",
    )


def _vc_parser(session: Session) -> Parser:
    parser = Parser(
        prog="vc",
        description="Compare two dump folders op by op and write the result as CSV. Without folders: "
        "npu/debug_0 with tf/dump, or with npu/debug_1.",
        epilog="example: vc -lt precision_data/npu/debug_0/dump -rt precision_data/tf/dump",
    )
    _add_sides(parser)
    _add_common(parser, session)
    return parser


def _vcs_parser(session: Session) -> Parser:
    parser = Parser(
        prog="vcs",
        description="List the ops below a cosine similarity, in execution order, from a result file.",
        epilog="example: vcs -c 0.99 -l 10",
    )
    parser.add_argument(
        "-f", dest="file", metavar="FILE|DIR", help="result CSV, ours or msaccucmp's (default: the newest)"
    )
    _add_common(parser, session)
    return parser


def _ac_parser(session: Session) -> Parser:
    parser = Parser(
        prog="ac",
        description="Check everything and name the first op that computes wrong. Without -c the newest result is read.",
        epilog="example: ac -c",
    )
    parser.add_argument(
        "-c", dest="compare", action="store_true", help="compare first; implied by -lt, -rt, -g and --workers"
    )
    _add_sides(parser)
    _add_common(parser, session)
    return parser


def _compare(session: Session, args: argparse.Namespace, output: Output) -> list[Analysis]:
    workers = session.settings.workers if args.workers is None else args.workers
    try:
        with ProgressReport(output.err, "comparing") as progress:
            return session.compare(args.left, args.right, args.graph, args.threshold, workers, progress)
    except ComparisonStoppedError:
        tell_notes(session, output)
        raise


def _exit_code(analyses: Sequence[Analysis], fail: bool) -> int:
    found = any(finding.grade >= Grade.WARNING for analysis in analyses for finding in analysis.findings)
    return FOUND if fail and found else DONE


def _show(analyses: Sequence[Analysis], args: argparse.Namespace, output: Output, *, verdict: bool) -> None:
    """Each result: where it is from, the counts, the ops below, and with `verdict` the findings; then a summary."""
    for analysis in analyses:
        if analysis.leaf is not None:
            if len(analyses) > 1:
                output.out.print(Rule(plain(report.leaf_title(analysis)), style="dim"))
            output.out.print(report.source_lines(analysis.leaf), crop=False)
        else:
            output.out.print(plain(f"result file: {shown_path(analysis.path)}"), soft_wrap=True)
        if analysis.rows:
            output.out.print(report.overview_lines(analysis), crop=False)
        if analysis.overview.compared or not verdict:
            output.out.print(report.below_list(analysis, args.limit))
        if analysis.leaf is not None and analysis.path:
            output.out.print(plain(f"result file: {shown_path(analysis.path)}"), soft_wrap=True)
        if verdict:
            for finding in analysis.findings:
                output.out.print(report.finding_panel(finding))
    if len(analyses) > 1:
        output.out.print(Rule(plain("summary"), style="dim"))
        output.out.print(report.summary_lines(analyses))


def _finish(session: Session, args: argparse.Namespace, output: Output, analyses: list[Analysis], verdict: bool) -> int:
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.to_json(analyses) + "\n")
    else:
        _show(analyses, args, output, verdict=verdict)
    return _exit_code(analyses, args.fail)


def _run_vc(session: Session, args: argparse.Namespace, output: Output) -> int:
    return _finish(session, args, output, _compare(session, args, output), verdict=False)


def _run_vcs(session: Session, args: argparse.Namespace, output: Output) -> int:
    return _finish(session, args, output, session.results(args.file, args.threshold), verdict=False)


def _run_ac(session: Session, args: argparse.Namespace, output: Output) -> int:
    sides = (args.left, args.right, args.graph, args.workers)
    if args.compare or any(side is not None for side in sides):
        analyses = _compare(session, args, output)
    else:
        analyses = session.results(None, args.threshold)
    return _finish(session, args, output, analyses, verdict=True)


VC = Command(_vc_parser, _run_vc)
VCS = Command(_vcs_parser, _run_vcs)
AC = Command(_ac_parser, _run_ac)
