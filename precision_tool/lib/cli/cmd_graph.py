"""`graph diff`: what differs between the graphs of two runs, in groups."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import Output, Parser, command, show_result, spaced
from precision_tool.lib.cli.switch_files import find_switch_file
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.diagnose.graph_diff import compare_graphs, diff_graphs
from precision_tool.lib.io.fusion_passes import Switches
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen as report


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument(
        "action", nargs="?", choices=("diff",), metavar="diff", help="what to do: diff compares two graphs"
    )
    for name in ("left", "right"):
        flags.add(
            parser,
            name,
            nargs="?",
            metavar=name.upper(),
            help="graph file, or a folder of them, or of a dump of msprobe",
            completes="graph",
        )
    flags.add_limit(parser, report.SHOWN, "names to show of each group")
    flags.add_json(parser, "everything")


@command(
    "graph",
    "graph diff: what differs between two graphs, grouped: passes, fused ops, ops that only one has, "
    "data types, layouts, shapes. Without names the graphs of npu/debug_0 and npu/debug_1, or the calls that msprobe "
    "recorded on both sides.",
    _options,
    example="graph diff; graph diff ge_proto_00005_Build.txt ge_proto_00006_Build.txt",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.action is None:
        raise UsageError("cli.graph_no_action")
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
    diff = diff_graphs(left.file, right.file, _switches(session))
    return show_result(
        session, args, output,
        lambda: report.diff_json(diff),
        lambda: spaced(report.diff_lines(diff, names, args.limit)),
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
