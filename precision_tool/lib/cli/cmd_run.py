"""`run`: a command of the operating system."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli.arguments import run_in_shell
from precision_tool.lib.cli.command import Output, Parser, command
from precision_tool.lib.messages import text
from precision_tool.lib.session import Session


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")


@command(
    "run",
    "Run a command of the operating system with your shell. At the prompt `!CMD` is the same.",
    _options,
    example="run du -sh precision_data",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not args.command:
        run.parser(session).error(text("argument.command"))
    return run_in_shell(args.command)
