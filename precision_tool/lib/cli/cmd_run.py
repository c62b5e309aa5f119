"""`run`: a command of the operating system."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli.arguments import run_in_shell
from precision_tool.lib.cli.command import Command, Output, Parser
from precision_tool.lib.session import Session


def _parser(session: Session) -> Parser:
    parser = Parser(
        prog="run",
        description="Run a command of the operating system with your shell. At the prompt `!CMD` is the same.",
        epilog="example: run du -sh precision_data",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")
    return parser


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not args.command:
        _parser(session).error("which command?")
    return run_in_shell(args.command)


COMMAND = Command(_parser, _run)
