"""`toolkit`: what was found of the vendor's toolkit; and how other commands hand work over to it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, tell_notes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.session import Session


def hand_over(session: Session, failed: Message, work: Callable[[], Message]) -> None:
    """With `--engine auto`, let the toolkit do what native has `failed` to do; `work` returns the note on it."""
    if session.toolkit().msaccucmp is None:
        note = Message("note.cli.toolkit_missing", count=failed)
    else:
        try:
            note = work()
        except PrecisionToolError as error:
            note = Message("note.cli.toolkit_failed", count=failed, reason=error.full_message)
    session.workspace.notes.append(note)


def _options(parser: Parser, session: Session) -> None:
    flags.add_json(parser)


@command(
    "toolkit",
    "Show the installed CANN toolkit (atc, msaccucmp, set_env.sh), its version, and what "
    "is missing. Nothing here needs it, unless --engine or the setting ENGINE asks for it.",
    _options,
    example="toolkit",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    from precision_tool.lib.view import toolkit_screen as report

    toolkit = session.toolkit()
    python = session.settings.python or sys.executable
    tell_notes(session, output)
    if args.json:
        output.write_json(json.dumps(report.as_dict(toolkit, session.settings.engine, python), indent=2))
    else:
        output.out.print(*report.lines(toolkit, session.settings.engine, python), sep="\n", soft_wrap=True)
    return DONE
