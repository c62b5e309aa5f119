"""`tf_dump`: what tfdbg dumped while training becomes the `.npy` files of the benchmark side.

Runs in training environments: Python 3.7, plain text, no package but numpy. The heads and most values are read
without even that.
"""

import argparse
import os
import sys
import time
from collections import Counter
from typing import Dict, List, Optional, Sequence

from precision_tool.lib.cli.arguments import Parser, plain_command, print_line, run_in_shell, training_environment
from precision_tool.lib.cli.words import DONE
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import Workspace, lies_in
from precision_tool.lib.io import tfdbg_files as runs
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.training import tfdbg_analyzer as analyzer
from precision_tool.lib.training import tfdbg_copy as extract

WORD = "tf_dump"

_TIME_LIMIT = 600.0
_SHOWN = 5
_PROGRESS_SECONDS = 5.0


def _options(parser: Parser) -> None:
    parser.add_argument("command", nargs="?", metavar="CMD", help="run this first if tf/tf_debug is empty")
    parser.add_argument(
        "--run", metavar="N|NAME|all",
        help="a run by the number at the end of its folder's name, its name, or a folder elsewhere; all: every run "
        "with all its tensors (default: of every tensor what the last run that holds it has)",
    )  # fmt: skip
    parser.add_argument("-o", "--out", metavar="DIR", help="write the tensors there instead of into tf/dump")
    parser.add_argument(
        "--engine", choices=("native", "tfdbg"), default="native",
        help="tfdbg: let TensorFlow's own analyzer decode them, which is slow and needs TensorFlow and pexpect",
    )  # fmt: skip
    parser.add_argument(
        "--time-limit", type=_seconds, default=_TIME_LIMIT, metavar="S",
        help=f"seconds that --engine tfdbg may take for a tensor (default {_TIME_LIMIT:g})",
    )  # fmt: skip


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(text("argument.seconds", value=repr(word)))
    return value


@plain_command(
    WORD,
    "Write what TensorFlow's debugger (tfdbg) dumped into tf/tf_debug as op.output.time.npy into "
    "tf/dump, where comparisons look for the benchmark. A set of tensors replaces the one before as a whole.",
    _options,
    example='tf_dump "python3 train.py"',
)
def tf_dump(args: argparse.Namespace, settings: Settings) -> int:
    workspace = Workspace(settings.data, settings.work)
    usual, choice = str(workspace.tf_debug_dir), args.run
    source = usual
    if choice is not None and choice != runs.ALL_RUNS and not runs.is_number(choice) and os.path.isdir(choice):
        source, choice = choice, None
    folder = args.out or str(workspace.tf_dump_dir)
    _check_place(workspace, source, folder)  # before a training run is spent
    if args.command is not None:
        usual_runs = runs.find_runs(usual)
        if usual_runs:
            _print_error(text("screen.cli.tf_not_run", command=args.command))
            last = usual_runs[-1].name
            _print_error(text("screen.cli.tf_dump_there", folder=usual, runs=len(usual_runs), last=last))
        else:
            code = run_in_shell([args.command], training_environment(settings))
            if code != 0:
                has_dump = bool(runs.find_runs(usual))
                _print_error(text("screen.cli.tf_command_failed", code=code, has_dump=has_dump))
                return code
    chosen = _find(source, choice)
    files = [runs.files_of_run(run) for run in chosen]
    keep_all = choice == runs.ALL_RUNS
    dumps = [tensor for each in files for tensor in each.tensors] if keep_all else runs.last_of_each(files)
    if args.engine == "tfdbg":
        log_folder = os.path.abspath(str(workspace.output_dir(WORD)))
        done = analyzer.extract_with_analyzer(files, dumps, folder, log_folder, args.time_limit, _Progress())
        for note in map(render, workspace.notes):
            _print_error(note)
        _print_error(text("screen.cli.tf_analyzer_log", folder=log_folder))
    else:
        done = extract.extract(dumps, folder, settings.workers, _Progress())
    _show(done, files)
    taken = set(dumps)
    mixed = sum(any(tensor in taken for tensor in each.tensors) for each in files)
    if mixed > 1 and not keep_all:
        print_line(text("screen.cli.tf_mixed_runs", runs=mixed))
    return DONE


def _find(source: str, choice: Optional[str]) -> List[runs.RunFolder]:
    if not os.path.isdir(source):
        raise DataNotFoundError.of(source, "cli.no_tfdbg_folder")
    run_folders = runs.find_runs(source)
    if not run_folders:
        raise DataNotFoundError.of(source, "cli.no_tfdbg_run")
    return run_folders if choice is None else runs.choose_runs(run_folders, choice)


def _check_place(workspace: Workspace, source: str, folder: str) -> None:
    """Raise UsageError for a folder whose replacement would touch dumps, which are only read, or where one works."""
    place = os.path.realpath(folder)
    if lies_in(os.getcwd(), place):
        raise UsageError("cli.replaces_working_folder", folder=folder)
    for dump in (source, str(workspace.root / "npu"), *map(str, workspace.dump_dirs())):
        root = os.path.realpath(dump)
        if dump != str(workspace.tf_dump_dir) and (lies_in(place, root) or lies_in(root, place)):
            raise UsageError("cli.among_dumps", folder=folder, dump=dump)


class _Progress:
    """A line on standard error every few seconds."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < _PROGRESS_SECONDS or not 0 < done < total:
            return
        self._last = now
        rate = done / (now - self._started)
        _print_error(
            text(
                "screen.cli.tf_progress", done=100 * done // total, size=total, rate=rate, seconds=(total - done) / rate
            )
        )


def _show(done: extract.Extracted, files: Sequence[runs.RunFiles]) -> None:
    print_line(
        text(
            "screen.cli.tf_written",
            folder=done.folder,
            same=bool(done.same),
            tensors=done.count,
            size=done.nbytes,
            runs=len(files),
        )
    )
    if done.replaced.tensors:
        print_line(text("screen.cli.tf_replaced", tensors=done.replaced.tensors))
    others = [name for name in done.replaced.others if name.endswith(".npy")]
    if others:
        print_line(text("screen.cli.tf_others", files=len(others), first=others[0]))
    for note in done.notes:
        print_line(text("screen.cli.note", text=note))
    skipped = [*done.skipped, *(row for each in files for row in each.skipped)]
    firsts: Dict[Message, str] = {}
    for name, reason in skipped:
        firsts.setdefault(reason, name)
    for reason, count in Counter(reason for _, reason in skipped).most_common():
        print_line(text("screen.cli.tf_skipped", count=count, reason=reason, first=firsts[reason]))
    damaged = [*done.damaged, *(row for each in files for row in each.unreadable)]
    for name, reason in damaged[:_SHOWN]:
        print_line(text("screen.cli.tf_unread", name=name, reason=reason))
    if len(damaged) > _SHOWN:
        print_line(text("screen.cli.tf_unread_more", more=len(damaged) - _SHOWN, all=len(damaged)))


def _print_error(line: str) -> None:
    print_line(line, sys.stderr)
