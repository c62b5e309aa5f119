"""`toolkit`: what was found of the vendor's toolkit; and what other commands hand over to it."""

from __future__ import annotations

import argparse
import json
import posixpath
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_tool.lib.cli.command import (
    DONE,
    Command,
    Options,
    Output,
    Parser,
    add_json,
    tell_notes,
)
from precision_tool.lib.compare.result_files import TOOLKIT_PREFIX
from precision_tool.lib.data.dump_tree import DECODED_FOLDER, StatusFile
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.io.files import open_text
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.session import Session
from precision_tool.lib.view.text import plain

if TYPE_CHECKING:
    from precision_tool.lib.compare.convert import Decoded, Source
    from precision_tool.lib.compare.toolkit import Produced
    from precision_tool.lib.diagnose.run_checks import Analysis


#: What rows say that native could not read, and that the toolkit is asked for.
UNREADABLE = (Status.UNREADABLE, Status.LAYOUT, Status.NOT_NUMERIC)


def engine_of(session: Session, args: argparse.Namespace) -> str:
    """Return who does the work: the option, else the setting."""
    engine: str | None = args.engine
    return engine or session.settings.engine


def add_engine(parser: Options, session: Session) -> None:
    """Add the option --engine."""
    parser.add_argument(
        "--engine",
        choices=("native", "cann", "auto"),
        default=None,
        help="who does it: native (this tool), cann (the toolkit's msaccucmp and atc), auto (native, and the toolkit "
        f"for what native cannot read); default {session.settings.engine}",
    )


def ask_toolkit(
    session: Session, analyses: Sequence[Analysis], by_toolkit: Callable[[str], Sequence[Analysis]]
) -> None:
    """With `--engine auto`, let the toolkit compare what native could not read, into a result file of its own.

    `by_toolkit` has it compare all of it, into a file whose name begins as it is told.
    """
    unread = [row for analysis in analyses if analysis.has_graph for row in analysis.rows if row.status in UNREADABLE]
    if not unread:
        return
    count = Message("screen.cli.native_failed.tensors", count=len(unread))
    if session.toolkit().msaccucmp is None:
        session.workspace.notes.append(text("note.cli.toolkit_missing", count=count))
        return
    try:
        toolkit_analyses = by_toolkit(TOOLKIT_PREFIX)
    except PrecisionToolError as error:
        session.workspace.notes.append(text("note.cli.toolkit_failed", count=count, reason=error.message))
        return
    unread_tensors = {row.tensor_index for row in unread}
    compared = [
        row
        for analysis in toolkit_analyses
        for row in analysis.rows
        if row.tensor_index in unread_tensors and row.cosine is not None
    ]
    paths = ", ".join(shown_path(analysis.path) for analysis in toolkit_analyses)
    session.workspace.notes.append(text("note.cli.toolkit_compared", count=count, compared=len(compared), paths=paths))


def decode_by_toolkit(session: Session, sources: Sequence[Source], layout: str | None) -> list[str]:
    """Decode dump files with msaccucmp and return the paths of the `.npy` files; add its notes."""
    tools = session.tools()
    options = [] if layout is None else ["-f", layout]
    by_folder: dict[str, dict[str, str]] = {}
    for source in sources:
        by_folder.setdefault(source.folder, {})[source.name] = source.path
    paths: list[str] = []
    for folder, dumps in by_folder.items():
        made = tools.convert(dumps, folder, options)
        paths += made.paths
        session.workspace.notes += made.notes
    return paths


def decode_the_rest(session: Session, sources: Sequence[Source], failed: Sequence[Decoded], layout: str | None) -> None:
    """With `--engine auto`, hand the files of which native could not decode a tensor to the toolkit."""
    lost = {row.source for row in failed}
    count = Message("screen.cli.native_failed.decode", count=len(failed))
    if session.toolkit().msaccucmp is None:
        session.workspace.notes.append(text("note.cli.toolkit_missing", count=count))
        return
    try:
        paths = decode_by_toolkit(session, [source for source in sources if source.path in lost], layout)
    except PrecisionToolError as error:
        session.workspace.notes.append(text("note.cli.toolkit_failed", count=count, reason=error.message))
        return
    session.workspace.notes.append(text("note.cli.toolkit_decoded", count=count, files=len(paths)))


def show_decoded(paths: Sequence[str], output: Output, is_json: bool) -> None:
    """Show the files that msaccucmp decoded."""
    if is_json:
        output.out.file.write(json.dumps({"engine": "cann", "files": list(paths)}, indent=2) + "\n")
        return
    for folder in dict.fromkeys(map(posixpath.dirname, paths)):
        count = sum(posixpath.dirname(path) == folder for path in paths)
        output.out.print(
            plain(text("screen.cli.toolkit_decoded", folder=shown_path(folder), tensors=count)), soft_wrap=True
        )


def overflow_by_toolkit(session: Session, files: Sequence[StatusFile], limit: int) -> list[Produced]:
    """Let msaccucmp decode each folder with status files; the summary comes first in each result.

    What is odd is told with the other notes.
    """
    tools = session.tools()
    tools.toolkit.need("msaccucmp")
    folders = list(dict.fromkeys(posixpath.abspath(file.folder) for file in files if not file.decoded))
    if not folders:
        raise DataNotFoundError("cli.no_status_files")
    common = posixpath.commonpath(folders)
    made = []
    for folder in folders:
        below = [part for part in posixpath.relpath(folder, common).split("/") if part != "."]
        output = str(session.workspace.output_dir(*DECODED_FOLDER, *below))
        result = tools.overflow(folder, output, limit)
        session.workspace.notes += result.notes
        made.append(replace(result, paths=tuple(sorted(result.paths, key=lambda path: not path.endswith(".txt")))))
    return made


def show_overflow(made: Sequence[Produced], output: Output, is_json: bool) -> None:
    """Show msaccucmp's summaries and its files."""
    if is_json:
        documents = [{"summary": result.paths[0], "files": list(result.paths[1:])} for result in made]
        output.out.file.write(json.dumps({"engine": "cann", "results": documents}, indent=2) + "\n")
        return
    for result in made:
        summary, *files = result.paths
        with open_text(summary, errors="replace") as file:
            output.show(*(plain(line.rstrip()) for line in file))
        shown = text("screen.cli.toolkit_summary", path=shown_path(summary), files=len(files))
        output.out.print(plain(shown), soft_wrap=True)


# --- toolkit ----------------------------------------------------------------------------------------------------------


def _toolkit_parser(session: Session) -> Parser:
    parser = Parser(
        prog="toolkit",
        description="Show what was found of the vendor's toolkit (atc, msaccucmp, set_env.sh), its version, and what "
        "is missing. Nothing here needs it, unless --engine or the setting ENGINE asks for it.",
        epilog="example: toolkit",
    )
    add_json(parser)
    return parser


def _run_toolkit(session: Session, args: argparse.Namespace, output: Output) -> int:
    from precision_tool.lib.view import toolkit_screen as report

    toolkit = session.toolkit()
    python = session.settings.python or sys.executable
    tell_notes(session, output)
    if args.json:
        output.out.file.write(json.dumps(report.as_dict(toolkit, session.settings.engine, python), indent=2) + "\n")
    else:
        output.out.print(*report.lines(toolkit, session.settings.engine, python), sep="\n", soft_wrap=True)
    return DONE


COMMAND = Command(_toolkit_parser, _run_toolkit)
