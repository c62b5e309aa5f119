"""`run`: a command of the operating system."""

from __future__ import annotations

import argparse
import os
import subprocess

from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import DONE, Command, Output, Parser


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
    # The one place where what the user typed is executed, as typed.
    done = subprocess.run(" ".join(args.command), shell=True, executable=os.environ.get("SHELL") or None, check=False)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode or DONE


RUN = Command(_parser, _run)
