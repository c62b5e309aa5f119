"""`graph diff`: what differs between the graphs of two runs, in groups."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli.command import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    completes,
    count,
    spaced,
    tell_notes,
)
from precision_tool.lib.cli.switch_files import find_switch_file
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.diagnose.graph_diff import compare_graphs, diff_graphs
from precision_tool.lib.io.fusion_passes import Switches
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen as report


def _parser(session: Session) -> Parser:
    parser = Parser(
        prog="graph",
        description="graph diff: what differs between two graphs, grouped: passes, fused ops, ops that only one has, "
        "data types, layouts, shapes. Without names the graphs of npu/debug_0 and npu/debug_1.",
        epilog="example: graph diff; graph diff ge_proto_00005_Build.txt ge_proto_00006_Build.txt",
    )
    parser.add_argument(
        "action", nargs="?", choices=("diff",), metavar="diff", help="what to do: diff compares two graphs"
    )
    for name in ("left", "right"):
        completes(
            parser.add_argument(name, nargs="?", metavar=name.upper(), help="graph file, or a folder of them"),
            Completion.GRAPH,
        )
    parser.add_argument(
        "-l", "--limit", dest="limit", metavar="N", type=count(0), default=report.SHOWN,
        help="names to show of each group, 0 for all (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON and nothing else")
    return parser


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.action is None:
        raise UsageError("cli.graph_no_action")
    if (args.left is None) != (args.right is None):
        raise UsageError("cli.graph_diff_one")
    if args.left is not None:
        left, right = (session.run_graphs(name)[0] for name in (args.left, args.right))
        names = ("left", "right")
    else:
        left, right = _of_runs(session)
        names = (f"debug_{left.number}", f"debug_{right.number}")
    diff = diff_graphs(left.file, right.file, _switches(session))
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.diff_json(diff) + "\n")
    else:
        output.show(*spaced([*report.diff_lines(diff, names, args.limit)]))
    return DONE


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


COMMAND = Command(_parser, _run)
