"""`infer`: what msquickcmp wrote, as a data folder; or what an offline model holds."""

from __future__ import annotations

import argparse
import posixpath
from dataclasses import replace
from pathlib import Path

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, load_command, show_note, tell_notes
from precision_tool.lib.cli.words import find_word
from precision_tool.lib.data.workspace import is_infer_folder, shown_path, typed_path
from precision_tool.lib.io.files import exists, is_file, is_folder, list_folder
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.io.om_file import read_om_header
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import toolkit_screen as report
from precision_tool.lib.view.text import plain


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "path", metavar="DIR|FILE.om", completes="folder",
        help="msquickcmp's output folder, or an offline model",
    )  # fmt: skip
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="a command and its arguments (default: the prompt)"
    )


@command(
    "infer",
    "Work on what msquickcmp wrote (dump_data/npu, dump_data/tf or onnx, model/*.json, result_*.csv) "
    "where it lies: starts the prompt on it, or runs COMMAND. Of an .om it shows the model's graphs.",
    _options,
    example="infer msquickcmp_out ac -c",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if is_file(args.path):
        return _show_om(session, args, output)
    folder = find_output(args.path)
    settings = replace(session.settings, data=folder)
    if args.command:
        return _run_command(Session(settings), args.command, output)
    if output.pager is not None:  # at a prompt already, which is on another folder
        raise UsageError("cli.infer_needs_command", folder=shown_path(str(folder)))
    from precision_tool.lib.cli import prompt

    return prompt.start(Session(settings))


def find_output(path: str) -> Path:
    """Return the output folder of msquickcmp: the named one, or the newest below it, whose name is the time."""
    if not exists(path) and is_folder(posixpath.dirname(path) or "."):
        raise DataNotFoundError.of(path, "cli.no_infer_folder")
    folders = [path, *(posixpath.join(path, name) for name in reversed(list_folder(path, "output of msquickcmp")))]
    folder_ = next((folder for folder in folders if is_infer_folder(folder)), None)
    if folder_ is None:
        raise DataNotFoundError.of(path, "cli.no_infer_dump")
    return Path(folder_)


def _run_command(session: Session, line: list[str], output: Output) -> int:
    word = find_word(line[0])
    if word is None or word.name in ("data", "infer"):
        raise UsageError("cli.no_command_there", command="infer", name=line[0])
    return load_command(word.name)(session, line[1:], output)


def _show_om(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.command:
        raise UsageError("cli.infer_om_command", path=args.path)
    header = read_om_header(args.path)
    file = load_graph_file(args.path)
    tell_notes(session, output)
    output.show(*report.om_lines(args.path, header, file))
    for note in file.notes:
        show_note(output, note)
    output.out.print(plain(text("screen.cli.om_next", path=typed_path(args.path))))
    return DONE
