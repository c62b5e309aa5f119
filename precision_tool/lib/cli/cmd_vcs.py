"""`vcs`: read what was compared, and list the ops below the threshold."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli.command import (
    Command,
    Completion,
    Output,
    Parser,
    add_place,
    completes,
)
from precision_tool.lib.cli.comparison_options import (
    add_common,
    noise_floor_of,
    read_results,
)
from precision_tool.lib.cli.comparison_screen import Outcome, finish
from precision_tool.lib.session import Session


def vcs_parser(session: Session) -> Parser:
    """Return the parser of `vcs`."""
    parser = Parser(
        prog="vcs",
        description="List the ops below a cosine similarity, in execution order, from a result file.",
        epilog="example: vcs -c 0.99 -l 10",
    )
    file = parser.add_argument(
        "-f",
        "--file",
        dest="file",
        metavar="FILE|DIR",
        help="result CSV, ours or msaccucmp's, by path or by its name alone (default: the newest)",
    )
    completes(file, Completion.RESULT)
    add_common(parser, session)
    add_place(parser)
    return parser


def _run_vcs(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.file is None and session.at(args.step, args.rank) is not session:
        from precision_tool.lib.diagnose.study import study_rows

        analyses = study_rows(session.workspace, session.place()[0], args.threshold)
    else:
        analyses = read_results(session, args.file, args.threshold, "vc", noise_floor_of(session, args))
    return finish(session, args, output, Outcome(analyses=analyses))


COMMAND = Command(vcs_parser, _run_vcs)
