"""What a command that found something ends with: how to see whether mending it helped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import Output
from precision_tool.lib.verdict.stored import newest_verdicts

if TYPE_CHECKING:  # the words of verdicts are loaded when one is told
    from precision_tool.lib.present.verdict import NextSteps
    from precision_tool.lib.verdict.model import ToldStep


def collect_again(session: Session, output: Output, before: Sequence[ToldStep] = ()) -> NextSteps:
    """To see whether it helped: held against an earlier verdict, if one named a culprit. `before` is done first."""
    from precision_tool.lib.present.verdict import NextSteps
    from precision_tool.lib.verdict.model import ToldStep

    has_earlier = any(one.verdict["culprit"] is not None for one in newest_verdicts(session.workspace))
    line = "ac -c --since" if has_earlier else "ac -c"
    why = "then collect again, and see whether it helped" if before else "collect again, and see whether it helped"
    return NextSteps([*before, ToldStep(why=why, line=line)], output.command_for(session))
