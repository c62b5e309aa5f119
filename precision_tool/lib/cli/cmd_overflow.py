"""`overflow`: which op overflowed first, by the status files and by the dumped values, and what to do about it."""

from __future__ import annotations

import argparse
import json
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.cmd_toolkit import hand_over
from precision_tool.lib.cli.command import DONE, FOUND, Output, Parser, collect_again, command, tell_notes
from precision_tool.lib.cli.switch_files import helper_lines, option_lines
from precision_tool.lib.compare.scheduler import Resources
from precision_tool.lib.data.dump_tree import DECODED_FOLDER, StatusFile
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.checked_ops import recompute_overflow
from precision_tool.lib.diagnose.overflow import statuses_asked_for
from precision_tool.lib.diagnose.overflow_advice import Advice, advise, black_list
from precision_tool.lib.io.files import folder_exists, open_text
from precision_tool.lib.io.writing import why_no_file
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, OutputError, PrecisionToolError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.training.mixlist import MIXLIST_NAME, find_mixlist, mixed_precision_list
from precision_tool.lib.view import overflow_screen as report
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.fusion_screen import script_block
from precision_tool.lib.view.text import plain

if TYPE_CHECKING:
    from precision_tool.lib.compare.toolkit import Produced

#: Stands for the usual place of the list.
_DEFAULT = ""
#: More ops than any network has.
_ALL = 1 << 31


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "folder", nargs="?", metavar="DIR", completes="folder",
        help="a folder with dumps (default: overflow/dump and npu/debug_0/dump)",
    )  # fmt: skip
    flags.add_limit(parser, session.settings.limit)
    flags.add_graph(parser)
    flags.add(
        parser, "--mixlist", metavar="FILE", nargs="?", const=_DEFAULT, default=None, completes="file",
        help="write the advised black list as a modify_mixlist file (default: modify_mixlist.json in the folder for "
        "results, which is precision_data/temp or that of --work)",
    )  # fmt: skip
    flags.add_engine(parser, session)
    flags.add_place(parser)
    flags.add_json(parser)
    parser.add_argument("--fail", action="store_true", help="exit code 1 if anything overflowed or could not be read")


@command(
    "overflow",
    "Find the op that overflows first, from the overflow status files (Opdebug) below overflow/dump and from the "
    "values of the data dump or any other dump folder. Reports for each op whether it overflowed itself or "
    "inherited it, which op used up the range, and what to do.",
    _options,
    example="overflow -l 5",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    args.limit = args.limit or _ALL
    if args.folder is None:
        session = session.at(args.step, args.rank)
    engine = flags.engine_of(session, args)
    if engine == "cann":
        return _run_toolkit(session, args, output)
    if args.mixlist:
        _check_target(session, args.mixlist)
    with ProgressReport(output.err, "scanning") as progress:
        result, looked_in = session.overflow(args.folder, args.graph, args.limit, Resources(1, progress=progress))
    result = recompute_overflow(session.data, result)
    advice = advise(result)
    mixlist = "" if args.mixlist is None else _write_mixlist(session, args.mixlist, advice)
    if result.unreadable and engine == "auto":
        _ask_toolkit(session, args, [path for path, _ in result.unreadable])
    tell_notes(session, output)
    if args.json:
        output.write_json(report.to_json(result, advice, mixlist))
    else:
        output.show(*report.overflow_lines(result, advice, args.limit, looked_in))
        if mixlist:
            output.print_line(text("screen.cli.mixlist", path=shown_path(mixlist)))
            output.out.print(script_block(_script_lines(mixlist)))
        output.out.print(report.conclusion_box(result))
        if not result.is_clean:
            output.out.print(collect_again(session, output))
    is_unread = bool(result.unreadable) or any(leaf.unreadable for leaf in result.leaves)
    return FOUND if args.fail and (not result.is_clean or is_unread) else DONE


def _run_toolkit(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Show msaccucmp's summary of the first status files of each folder, and the files that it decoded."""
    native_options = {"-g": args.graph, "--mixlist": args.mixlist}
    wrong = next((name for name, value in native_options.items() if value is not None), None)
    if wrong is not None:
        raise UsageError("cli.not_by_msaccucmp", command="overflow", option=wrong)
    files, _ = statuses_asked_for(session.data, args.folder)
    made = _overflow_by_toolkit(session, files, args.limit)
    tell_notes(session, output)
    _show_overflow(made, output, args.json)
    return FOUND if args.fail else DONE


def _ask_toolkit(session: Session, args: argparse.Namespace, unread: Sequence[str]) -> None:
    """With `--engine auto`, hand the folders of status files that native could not read to the toolkit."""
    count = Message("screen.cli.native_failed.statuses", count=len(unread))

    def decode() -> Message:
        files, _ = statuses_asked_for(session.data, args.folder)
        made = _overflow_by_toolkit(session, [file for file in files if file.path in unread], args.limit)
        return Message("note.cli.toolkit_overflow", count=count, paths=[shown_path(result.paths[0]) for result in made])

    hand_over(session, count, decode)


def _overflow_by_toolkit(session: Session, files: Sequence[StatusFile], limit: int) -> list[Produced]:
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


def _show_overflow(made: Sequence[Produced], output: Output, is_json: bool) -> None:
    """Show msaccucmp's summaries and its files."""
    if is_json:
        documents = [{"summary": result.paths[0], "files": list(result.paths[1:])} for result in made]
        output.write_json(json.dumps({"engine": "cann", "results": documents}, indent=2))
        return
    for result in made:
        summary, *files = result.paths
        with open_text(summary, errors="replace") as file:
            output.show(*(plain(line.rstrip()) for line in file))
        output.print_line(text("screen.cli.toolkit_summary", path=shown_path(summary), files=len(files)))


def _check_target(session: Session, path: str) -> None:
    """Raise OutputError for a file that cannot be written, before anything is scanned."""
    folder = posixpath.dirname(posixpath.abspath(posixpath.expanduser(path)))
    session.workspace.check_outside_dumps(folder)
    reason = (
        Message("note.io.is_folder") if folder_exists(posixpath.expanduser(path))
        else Message("note.io.missing_folder", path=folder) if not folder_exists(folder)
        else why_no_file(posixpath.expanduser(path))
    )  # fmt: skip
    if reason:
        raise OutputError("cli.mixlist_not_written", path=path, reason=reason)


def _script_lines(path: str) -> list[str]:
    """Return the lines of a training script that use the list: the action, if it finds the list by itself."""
    try:
        is_found = find_mixlist(load_settings()) == path
    except PrecisionToolError:
        is_found = False
    lines = helper_lines("mixlist", f"modify_mixlist={path!r}") if is_found else option_lines("modify_mixlist", path)
    return [*lines, "# with precision_mode 'allow_mix_precision' (or precision_mode_v2 'mixed_float16')"]


def _write_mixlist(session: Session, path: str, advice: Sequence[Advice]) -> str:
    types = black_list(advice)
    if not types:
        raise UsageError("cli.mixlist_empty")
    if path == _DEFAULT:
        path = str(session.workspace.output_dir() / MIXLIST_NAME)
    return mixed_precision_list(black=types, path=Path(path))
