"""`graphs`: the graph files, which one is in use and why; where an op is; choosing one."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli.command import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    add_json,
    completes,
    count,
    some_text,
    spaced,
    tell_notes,
)
from precision_tool.lib.compare.data_folder import search_graphs, survey_graphs
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import graphs_screen as report

_AUTO = "auto"


def _parser(session: Session) -> Parser:
    parser = Parser(
        prog="graphs",
        description="Show every graph file, what it holds, how much of the dump it explains, and which one is in use "
        "and why. The choice of --use holds for this data folder, in later sessions too.",
        epilog="example: graphs --find conv1/Conv2D",
    )
    completes(
        parser.add_argument(
            "--find", metavar="WORD", type=some_text,
            help="which files hold an op of this name: a part of it, or a glob with * ? [ ]",
        ),
        Completion.OP,
    )  # fmt: skip
    completes(
        parser.add_argument(
            "--use", metavar="FILE", type=some_text,
            help=f"use this graph file; {_AUTO}: choose automatically, as at first",
        ),
        Completion.GRAPH,
    )  # fmt: skip
    parser.add_argument(
        "-l", "--limit", dest="limit", metavar="N", type=count(0), default=report.SHOWN_OPS,
        help="ops to show of each file with --find, 0 for all (default %(default)s)",
    )  # fmt: skip
    add_json(parser)
    return parser


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
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
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.survey_json(survey) + "\n")
        return DONE
    if not survey.rows and not survey.other_stages and survey.problem is not None:
        raise survey.problem
    output.show(*spaced([[line] for line in report.survey_lines(survey)]))
    return DONE


def _find(session: Session, args: argparse.Namespace, output: Output) -> int:
    hits = search_graphs(session.data, args.find)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.matches_json(hits, args.find) + "\n")
    else:
        output.show(*spaced([[line] for line in report.match_lines(hits, args.limit)]))
    return DONE


COMMAND = Command(_parser, _run)
