"""`graphs`: the graph files, which one is in use and why; where an op is; choosing one."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import Output, Parser, command, show_result, spaced
from precision_tool.lib.compare.data_folder import search_graphs, survey_graphs
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import graphs_screen as report

_AUTO = "auto"


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "--find", metavar="WORD", type=flags.some_text, completes="op",
            help="list the files with an op of this name: a part of it, or a glob with * ? [ ]",
    )  # fmt: skip
    flags.add(
        parser, "--use", metavar="FILE", type=flags.some_text, completes="graph",
            help=f"use this graph file; {_AUTO}: choose automatically, as at first",
    )  # fmt: skip
    flags.add_limit(parser, report.SHOWN_OPS, "ops to show of each file with --find")
    flags.add_json(parser)


@command(
    "graphs",
    "Show every graph file, its contents, how many dumped ops it names, and which one is in use "
    "and why. The choice of --use holds for this data folder, in later sessions too.",
    _options,
    example="graphs --find conv1/Conv2D",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
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
    return show_result(
        session, args, output,
        lambda: report.matches_json(hits, args.find),
        lambda: spaced([line] for line in report.match_lines(hits, args.limit)),
    )  # fmt: skip
