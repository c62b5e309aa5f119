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
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.io.files import open_text
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.wording import counted
from precision_tool.lib.present.text import plain
from precision_tool.lib.results.result_files import TOOLKIT_PREFIX
from precision_tool.lib.session import Session
from precision_tool.lib.sources.overflow_files import DECODED_FOLDER, StatusFile
from precision_tool.lib.workspace import shown_path

if TYPE_CHECKING:
    from precision_tool.lib.checks.analysis import Analysis
    from precision_tool.lib.inspect.convert import Decoded, Source
    from precision_tool.lib.toolkit.tools import Produced


#: What rows say that native could not read, and that the toolkit is asked for.
UNREADABLE = (Status.UNREADABLE, Status.LAYOUT, Status.NOT_NUMERIC)


def engine_of(session: Session, args: argparse.Namespace) -> str:
    """Who is to do the work: the option, else the setting."""
    asked: str | None = args.engine
    return asked or session.settings.engine


def add_engine(parser: Options, session: Session) -> None:
    """The option --engine."""
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
    """With `--engine auto`: what native could not read, the toolkit compares; its result lies beside ours.

    `by_toolkit` has it compare all of it, into a file whose name begins as it is told.
    """
    unread = [row for analysis in analyses if analysis.has_graph for row in analysis.rows if row.status in UNREADABLE]
    if not unread:
        return
    count = f"native could not read {counted(len(unread), 'tensor')}"
    if session.toolkit().msaccucmp is None:
        session.workspace.notes.append(f"{count}, and there is no toolkit to ask; `toolkit` shows where it was sought")
        return
    try:
        asked = by_toolkit(TOOLKIT_PREFIX)
    except PrecisionToolError as error:
        session.workspace.notes.append(f"{count}; the toolkit neither: {error.message}")
        return
    wanted = {row.tensor_index for row in unread}
    told = [row for one in asked for row in one.rows if row.tensor_index in wanted and row.cosine is not None]
    paths = ", ".join(shown_path(one.path) for one in asked)
    session.workspace.notes.append(f"{count}; the toolkit compared {len(told)} of them: {paths}")


def decode_by_toolkit(session: Session, sources: Sequence[Source], layout: str | None) -> list[str]:
    """The `.npy` files that msaccucmp decodes dump files to; what is odd is told with the other notes."""
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
    """With `--engine auto`: the files of which native could not decode a tensor go to the toolkit."""
    lost = {row.source for row in failed}
    count = f"native could not decode {counted(len(failed), 'tensor')}"
    if session.toolkit().msaccucmp is None:
        session.workspace.notes.append(f"{count}, and there is no toolkit to ask; `toolkit` shows where it was sought")
        return
    try:
        paths = decode_by_toolkit(session, [source for source in sources if source.path in lost], layout)
    except PrecisionToolError as error:
        session.workspace.notes.append(f"{count}; the toolkit neither: {error.message}")
        return
    session.workspace.notes.append(f"{count}; the toolkit made {counted(len(paths), 'file')} of their dumps")


def show_decoded(paths: Sequence[str], output: Output, is_json: bool) -> None:
    """What msaccucmp decoded."""
    if is_json:
        output.out.file.write(json.dumps({"engine": "cann", "files": list(paths)}, indent=2) + "\n")
        return
    for folder in dict.fromkeys(map(posixpath.dirname, paths)):
        count = sum(posixpath.dirname(path) == folder for path in paths)
        output.out.print(
            plain(f"{shown_path(folder)}: {counted(count, 'tensor')} decoded by msaccucmp"), soft_wrap=True
        )


def overflow_by_toolkit(session: Session, files: Sequence[StatusFile], limit: int) -> list[Produced]:
    """What msaccucmp makes of each folder with status files: its summary first, then the decoded files.

    What is odd is told with the other notes.
    """
    tools = session.tools()
    tools.toolkit.need("msaccucmp")
    folders = list(dict.fromkeys(posixpath.abspath(file.folder) for file in files if not file.decoded))
    if not folders:
        raise DataNotFoundError(
            "no overflow status file (Opdebug.*) for msaccucmp", "name a folder with them, or use --engine native"
        )
    common = posixpath.commonpath(folders)
    made = []
    for folder in folders:
        below = [part for part in posixpath.relpath(folder, common).split("/") if part != "."]
        output = str(session.workspace.output_dir(*DECODED_FOLDER, *below))
        one = tools.overflow(folder, output, limit)
        session.workspace.notes += one.notes
        made.append(replace(one, paths=tuple(sorted(one.paths, key=lambda path: not path.endswith(".txt")))))
    return made


def show_overflow(made: Sequence[Produced], output: Output, is_json: bool) -> None:
    """msaccucmp's own words, and its files."""
    if is_json:
        documents = [{"summary": one.paths[0], "files": list(one.paths[1:])} for one in made]
        output.out.file.write(json.dumps({"engine": "cann", "results": documents}, indent=2) + "\n")
        return
    for one in made:
        summary, *files = one.paths
        with open_text(summary, errors="replace") as file:
            output.show(*(plain(line.rstrip()) for line in file))
        said = f"{shown_path(summary)}: msaccucmp's summary; beside it {counted(len(files), 'file')} that it decoded"
        output.out.print(plain(said), soft_wrap=True)


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
    from precision_tool.lib.present import toolkit as report  # no other command here needs it

    found = session.toolkit()
    python = session.settings.python or sys.executable
    tell_notes(session, output)
    if args.json:
        output.out.file.write(json.dumps(report.as_dict(found, session.settings.engine, python), indent=2) + "\n")
    else:
        output.out.print(*report.lines(found, session.settings.engine, python), sep="\n", soft_wrap=True)
    return DONE


COMMAND = Command(_toolkit_parser, _run_toolkit)
