"""`report`: one HTML file with all that is known of a result."""

from __future__ import annotations

import argparse
import posixpath

from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.errors import DataNotFoundError, UsageError
from precision_tool.lib.present.text import plain
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    add_graph,
    completes,
)
from precision_tool.lib.storage.stores import folder_exists
from precision_tool.lib.verdict.stored import StoredVerdict, read_beside, read_verdict
from precision_tool.lib.workspace import shown_path


def _parser(session: Session) -> Parser:
    parser = Parser(
        prog="report",
        description="Write one HTML file with the verdict, a map of the network, every op, tables and charts of a "
        "result. It needs no network and no server: open it, send it.",
        epilog="example: report -o resnet.html",
    )
    result = parser.add_argument(
        "result", nargs="?", metavar="RESULT",
        help="a result CSV, a folder of results, or a verdict_*.json (default: the newest result)",
    )  # fmt: skip
    completes(result, Completion.RESULT)
    output = parser.add_argument("-o", dest="output", metavar="FILE.html", default="", help="where it goes (default: "
                                 "beside the result)")  # fmt: skip
    completes(output, Completion.FILE)
    exchange = parser.add_argument(
        "--model-explorer", dest="exchange", metavar="FILE.json",
        help="instead, write the graph for Google's model-explorer, and its node data beside it (own error, cosine)",
    )  # fmt: skip
    completes(exchange, Completion.FILE)
    add_graph(parser, "the graph for the map, where the result does not tell its own")
    return parser


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    from precision_tool.lib.report.report_material import export_graphs, make_report

    if args.exchange is not None and args.output:
        raise UsageError("report: --model-explorer writes no report", "leave -o out, or make both one after the other")
    analyses, verdicts = _found(session, args.result)
    if args.exchange is not None:
        for path in export_graphs(session, analyses, verdicts, args.exchange, graph=args.graph):
            output.out.print(plain(f"model-explorer: {shown_path(path)}"), soft_wrap=True)
        return DONE
    folder = posixpath.dirname(posixpath.expanduser(args.output))
    is_new = bool(folder) and not folder_exists(folder)
    path = make_report(session, analyses, verdicts, args.output, graph=args.graph)
    if is_new:
        output.out.print(plain(f"made the folder {shown_path(folder)}"), soft_wrap=True)
    tell_report(path, output)
    return DONE


def _found(session: Session, path: str | None) -> tuple[list[Analysis], list[StoredVerdict | None]]:
    """The results that are meant and the verdicts kept beside them; without a result the newest verdict alone."""
    if path is not None and path.endswith(".json"):
        return [], [read_verdict(path)]
    try:
        analyses = session.results(path)
    except DataNotFoundError:
        alone = session.stored_verdicts() if path is None else []
        if not alone:
            raise
        return [], [*alone]
    verdicts = [read_beside(one.path) for one in analyses]
    if not any(verdicts):
        session.workspace.notes.append("no verdict is kept beside this result: `ac` judges it first")
    # What the verdict called wrong is called so here.
    judged = [
        session.results(one.path, verdict.threshold)[0]
        if verdict is not None and verdict.threshold != one.threshold
        else one
        for one, verdict in zip(analyses, verdicts, strict=True)
    ]
    return judged, verdicts


def tell_report(path: str, output: Output) -> None:
    """Says where a report is."""
    output.out.print(plain(f"report: {shown_path(path)}"), soft_wrap=True)


REPORT = Command(_parser, _run)
