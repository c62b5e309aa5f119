"""`graphs`: the graph files, which one is in use and why; where an op is; choosing one; what differs between two."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import Output, Parser, command, show_result, spaced
from precision_tool.lib.cli.switch_files import find_switch_file
from precision_tool.lib.compare.data_folder import search_graphs, survey_graphs
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.diagnose.graph_diff import compare_graphs, diff_graphs
from precision_tool.lib.io.fusion_passes import Switches
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen
from precision_tool.lib.view import graphs_screen as report

_AUTO = "auto"


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument(
        "action", nargs="?", choices=("diff",), metavar="diff",
        help="what differs between two graphs, grouped: passes, fused ops, ops that only one has, data types, "
        "layouts, shapes",
    )  # fmt: skip
    for name in ("left", "right"):
        flags.add(
            parser, name, nargs="?", metavar=name.upper(), completes="graph",
            help="with diff: graph file, or a folder of them, or of a dump of msprobe (default: those of npu/debug_0 "
            "and npu/debug_1, or the calls that msprobe recorded on both sides)",
        )  # fmt: skip
    flags.add(
        parser, "--find", metavar="WORD", type=flags.some_text, completes="op",
            help="list the files with an op of this name: a part of it, or a glob with * ? [ ]",
    )  # fmt: skip
    flags.add(
        parser, "--use", metavar="FILE", type=flags.some_text, completes="graph",
            help=f"use this graph file; {_AUTO}: choose automatically, as at first",
    )  # fmt: skip
    parser.add_argument(
        "-l", "--limit", metavar="N", type=flags.count(0),
        help=f"ops to show of each file with --find (default {report.SHOWN_OPS}), or names of each group with diff "
        f"(default {fusion_screen.SHOWN}), 0 for all",
    )  # fmt: skip
    flags.add_json(parser)


@command(
    "graphs",
    "Show every graph file, its contents, how many dumped ops it names, and which one is in use "
    "and why. The choice of --use holds for this data folder, in later sessions too.",
    _options,
    example="graphs --find conv1/Conv2D",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.action is not None:
        return _diff(session, args, output)
    if args.find is not None and args.use is not None:
        raise UsageError("cli.options_exclude", command="graphs", option="--find", other="--use")
    if args.find is not None:
        return _find(session, args, output)
    if args.use is not None:
        path = None if args.use == _AUTO else args.use
        session.data.use_graph(path)
        if not args.json:
            output.out.print(report.use_line(path), soft_wrap=True)
    survey = survey_graphs(session.data)
    if survey.problem is not None and not args.json and not survey.rows and not survey.other_stages:
        raise survey.problem
    return show_result(
        session, args, output,
        lambda: report.survey_json(survey),
        lambda: spaced([line] for line in report.survey_lines(survey)),
    )  # fmt: skip


def _find(session: Session, args: argparse.Namespace, output: Output) -> int:
    hits = search_graphs(session.data, args.find)
    limit = report.SHOWN_OPS if args.limit is None else args.limit
    return show_result(
        session, args, output,
        lambda: report.matches_json(hits, args.find),
        lambda: spaced([line] for line in report.match_lines(hits, limit)),
    )  # fmt: skip


# --- graphs diff ------------------------------------------------------------------------------------------------------


def _diff(session: Session, args: argparse.Namespace, output: Output) -> int:
    for option, value in (("--find", args.find), ("--use", args.use)):
        if value is not None:
            raise UsageError("cli.options_exclude", command="graphs", option=option, other="diff")
    if (args.left is None) != (args.right is None):
        raise UsageError("cli.graph_diff_one")
    benchmark = session.workspace.msprobe_benchmark_dir
    sides = args.left, args.right
    if args.left is None and benchmark is not None and len(session.data.run_folders()) == 1:
        sides = str(session.workspace.dump_dir(0)), str(benchmark)
    if sides[0] is not None:
        left, right = (session.run_graphs(name)[0] for name in sides)
        names = (text("screen.view.diff.left"), text("screen.view.diff.right"))
    else:
        left, right = _of_runs(session)
        names = (f"debug_{left.number}", f"debug_{right.number}")
    limit = fusion_screen.SHOWN if args.limit is None else args.limit
    diff = diff_graphs(left.file, right.file, _switches(session))
    return show_result(
        session, args, output,
        lambda: fusion_screen.diff_json(diff),
        lambda: spaced(fusion_screen.diff_lines(diff, names, limit)),
    )  # fmt: skip


def _of_runs(session: Session) -> tuple[RunGraph, RunGraph]:
    """Return the graph of the first run and the most similar one of the second."""
    session.data.check_data()
    runs = session.run_graphs()
    numbers = sorted({run.number for run in runs if run.number is not None})
    if len(numbers) < 2:
        missing = session.data.graph_reasons()
        raise DataNotFoundError("cli.no_two_graphs", number=numbers[0] if numbers else None, reasons=missing)
    left = next(run for run in runs if run.number == numbers[0])
    others = [run for run in runs if run.number == numbers[1]]
    return left, max(others, key=lambda run: compare_graphs(left.file, run.file).share)


def _switches(session: Session) -> Switches | None:
    """Return the switches, or None if GE would refuse the file, as `fusion show` reports."""
    try:
        return find_switch_file(session.workspace).read()
    except PrecisionToolError:
        return None
