"""`npu_dump`: run a training command with data dump, or overflow detection, on; its old word `npu_overflow`.

This module runs on Python 3.7.
"""

import argparse
import os
from pathlib import Path
from typing import Sequence

from precision_tool.lib.cli.arguments import Parser, plain_command, print_note, run_in_shell, training_environment
from precision_tool.lib.cli.words import DONE
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.training import switches as actions


def _options(parser: Parser) -> None:
    parser.add_argument("--overflow", action="store_true", help="overflow detection instead of data dump; before CMD")
    _add_command(parser)


def _add_command(parser: Parser) -> None:
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")


def _description(what: str) -> str:
    return (
        f"Run a training command with {what} on, for scripts that call precision_tool.tf_config "
        "without an action. Ends with the command's exit code."
    )


@plain_command("npu_dump", _description("data dump"), _options, example='npu_dump "sh npu_train.sh param1"')
def run_with_dump(args: argparse.Namespace, settings: Settings) -> int:
    return _run("npu_dump", args.overflow, args, settings)


@plain_command(
    "npu_overflow",
    _description("overflow detection") + " The same as npu_dump --overflow.",
    _add_command,
    example='npu_overflow "sh npu_train.sh param1"',
)
def run_with_overflow(args: argparse.Namespace, settings: Settings) -> int:
    return _run("npu_overflow", True, args, settings)


def _run(word: str, overflow: bool, args: argparse.Namespace, settings: Settings) -> int:
    if not " ".join(args.command).strip():
        raise UsageError("cli.no_training_command", command=word)
    workspace = Workspace(settings.data)
    flag, place = (
        (actions.OVERFLOW_FLAG, workspace.overflow_dump_dir) if overflow else (actions.DUMP_FLAG, workspace.dump_dir())
    )
    environment = training_environment(settings)
    for each in (actions.DUMP_FLAG, actions.OVERFLOW_FLAG):
        environment.pop(each, None)
    environment[flag] = "True"
    before = _entries(place)
    code = run_in_shell(args.command, environment)
    if code == DONE and _entries(place) == before:
        print_note(Message("note.cli.nothing_dumped", folder=str(place)))
    return code


def _entries(folder: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(str(folder)))
    except OSError:
        return []
