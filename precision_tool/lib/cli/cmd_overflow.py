"""`overflow`: which op overflowed first, by the status files and by the dumped values, and what to do about it."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Sequence
from pathlib import Path

from precision_tool.lib.checks.overflow_advice import Advice, advise, black_list
from precision_tool.lib.checks.overflow_search import statuses_asked_for
from precision_tool.lib.cli.cmd_toolkit import add_engine, engine_of, overflow_by_toolkit, show_overflow
from precision_tool.lib.cli.command import (
    DONE,
    FOUND,
    Command,
    Completion,
    Output,
    Parser,
    add_graph,
    add_json,
    collect_again,
    completes,
    count,
    tell_notes,
)
from precision_tool.lib.cli.switch_files import helper_lines, option_lines
from precision_tool.lib.collect.mixlist import MIXLIST_NAME, find_mixlist, mixed_precision_list
from precision_tool.lib.engine.scheduler import Resources
from precision_tool.lib.errors import OutputError, PrecisionToolError, UsageError
from precision_tool.lib.io.files import folder_exists
from precision_tool.lib.io.writing import why_no_file
from precision_tool.lib.model.wording import counted
from precision_tool.lib.present import overflow as report
from precision_tool.lib.present.fusion import script_block
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.present.text import plain
from precision_tool.lib.session import Session
from precision_tool.lib.settings import load_settings
from precision_tool.lib.verdict.checked_ops import recompute_overflow
from precision_tool.lib.workspace import shown_path

#: Stands for the usual place of the list.
_DEFAULT = ""
#: More ops than any network has.
_ALL = 1 << 31


def _parser(session: Session) -> Parser:
    parser = Parser(
        prog="overflow",
        description="Find the op that overflows first: by the overflow status files (Opdebug) below overflow/dump, and "
        "by the values of the data dump alone, or of any other dump folder. Says of each op whether it overflowed "
        "itself or received it, which op spent the range, and what to do.",
        epilog="example: overflow -l 5",
    )
    completes(
        parser.add_argument(
            "folder", nargs="?", metavar="DIR", help="a folder with dumps (default: overflow/dump and npu/debug_0/dump)"
        ),
        Completion.FOLDER,
    )
    parser.add_argument(
        "-l", "--limit", dest="limit", metavar="N", type=count(0), default=session.settings.limit,
        help="how many ops to show, 0 for all (default %(default)s)",
    )  # fmt: skip
    add_graph(parser)
    mixlist = parser.add_argument(
        "--mixlist", metavar="FILE", nargs="?", const=_DEFAULT, default=None,
        help="write the advised black list as a modify_mixlist file (default: modify_mixlist.json in the folder for "
        "results, which is precision_data/temp or that of --work)",
    )  # fmt: skip
    completes(mixlist, Completion.FILE)
    add_engine(parser, session)
    add_json(parser)
    parser.add_argument("--fail", action="store_true", help="exit code 1 if anything overflowed or could not be read")
    return parser


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    args.limit = args.limit or _ALL
    engine = engine_of(session, args)
    if engine == "cann":
        return _run_toolkit(session, args, output)
    if args.mixlist:
        _check_target(session, args.mixlist)
    with ProgressReport(output.err, "scanning") as progress:
        found, looked_in = session.overflow(args.folder, args.graph, args.limit, Resources(1, progress=progress))
    found = recompute_overflow(session.data, found)
    advice = advise(found)
    mixlist = "" if args.mixlist is None else _write_mixlist(session, args.mixlist, advice)
    if found.unreadable and engine == "auto":
        _ask_toolkit(session, args, [path for path, _ in found.unreadable])
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.to_json(found, advice, mixlist) + "\n")
    else:
        output.show(*report.overflow_lines(found, advice, args.limit, looked_in))
        if mixlist:
            output.out.print(plain(f"mixed-precision list: {shown_path(mixlist)}"), soft_wrap=True)
            output.out.print(script_block(_script_lines(mixlist)))
        output.out.print(report.conclusion_box(found))
        if not found.is_clean:
            output.out.print(collect_again(session, output))
    is_unread = bool(found.unreadable) or any(leaf.unreadable for leaf in found.leaves)
    return FOUND if args.fail and (not found.is_clean or is_unread) else DONE


def _run_toolkit(session: Session, args: argparse.Namespace, output: Output) -> int:
    """msaccucmp's summary of the first status files of each folder, and the files that it decoded."""
    given = {"-g": args.graph, "--mixlist": args.mixlist}
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise UsageError(f"overflow: {wrong}: msaccucmp does not know it", "use --engine native")
    files, _ = statuses_asked_for(session.data, args.folder)
    made = overflow_by_toolkit(session, files, args.limit)
    tell_notes(session, output)
    show_overflow(made, output, args.json)
    return FOUND if args.fail else DONE


def _ask_toolkit(session: Session, args: argparse.Namespace, unread: Sequence[str]) -> None:
    """With `--engine auto`: the folders of status files that native could not read go to the toolkit."""
    count = f"native could not read {counted(len(unread), 'overflow status', 'overflow statuses')}"
    if session.toolkit().msaccucmp is None:
        session.workspace.notes.append(f"{count}, and there is no toolkit to ask; `toolkit` shows where it was sought")
        return
    files, _ = statuses_asked_for(session.data, args.folder)
    try:
        made = overflow_by_toolkit(session, [file for file in files if file.path in unread], args.limit)
    except PrecisionToolError as error:
        session.workspace.notes.append(f"{count}; the toolkit neither: {error.message}")
        return
    paths = ", ".join(shown_path(one.paths[0]) for one in made)
    session.workspace.notes.append(f"{count}; the toolkit's summary of their folder: {paths}")


def _check_target(session: Session, path: str) -> None:
    """OutputError for a file that cannot be written, before anything is scanned."""
    folder = posixpath.dirname(posixpath.abspath(posixpath.expanduser(path)))
    session.workspace.check_outside_dumps(folder)
    reason = (
        "it is a folder" if folder_exists(posixpath.expanduser(path))
        else f"there is no folder {folder}" if not folder_exists(folder)
        else why_no_file(posixpath.expanduser(path))
    )  # fmt: skip
    if reason:
        raise OutputError(f"overflow --mixlist: {path} cannot be written ({reason})", "name another file")


def _script_lines(path: str) -> list[str]:
    """What a training script has to say to use the list: the action, where it finds the list by itself."""
    try:
        is_found = find_mixlist(load_settings()) == path
    except PrecisionToolError:
        is_found = False
    lines = helper_lines("mixlist", f"modify_mixlist={path!r}") if is_found else option_lines("modify_mixlist", path)
    return [*lines, "# with precision_mode 'allow_mix_precision' (or precision_mode_v2 'mixed_float16')"]


def _write_mixlist(session: Session, path: str, advice: Sequence[Advice]) -> str:
    types = black_list(advice)
    if not types:
        raise UsageError(
            "overflow --mixlist: no op type to compute in float32 follows from what was found",
            "`overflow` without it says what was found",
        )
    if path == _DEFAULT:
        path = str(session.workspace.output_dir() / MIXLIST_NAME)
    return mixed_precision_list(black=types, path=Path(path))


COMMAND = Command(_parser, _run)
