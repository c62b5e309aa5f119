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

from precision_tool.lib.cli.arguments import Parser, PlainCommand, print_line, run_in_shell, training_environment
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import Workspace, lies_in
from precision_tool.lib.errors import DataNotFoundError, UsageError
from precision_tool.lib.io import tfdbg_runs as runs
from precision_tool.lib.messages import render
from precision_tool.lib.training import tfdbg_analyzer as analyzer
from precision_tool.lib.training import tfdbg_copy as extract

WORD = "tf_dump"
DONE = 0

_TIME_LIMIT = 600.0
_SHOWN = 5
_HOW_TO_DUMP = (
    "run the training script with sess_dump or estimator_dump of precision_tool.tf_config, or name --data DIR"
)
_PROGRESS_SECONDS = 5.0


def _parser() -> Parser:
    parser = Parser(
        prog=WORD,
        description="Write what TensorFlow's debugger (tfdbg) dumped into tf/tf_debug as op.output.time.npy into "
        "tf/dump, where comparisons look for the benchmark. A set of tensors replaces the one before as a whole.",
        epilog='example: tf_dump "python3 train.py"',
    )
    parser.add_argument("command", nargs="?", metavar="CMD", help="run this first if tf/tf_debug is empty")
    parser.add_argument(
        "--run",
        metavar="N|NAME|all",
        help="a run by the number at the end of its folder's name, its name, or a folder elsewhere; all: every run "
        "with all its tensors (default: of every tensor what the last run that holds it has)",
    )
    parser.add_argument("-o", "--out", metavar="DIR", help="write the tensors there instead of into tf/dump")
    parser.add_argument(
        "--engine",
        choices=("native", "tfdbg"),
        default="native",
        help="tfdbg: let TensorFlow's own analyzer decode them, which is slow and needs TensorFlow and pexpect",
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        default=_TIME_LIMIT,
        metavar="S",
        help=f"seconds that --engine tfdbg may take for a tensor (default {_TIME_LIMIT:g})",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 but is {text!r}")
    return value


def _run(args: argparse.Namespace, settings: Settings) -> int:
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
            there = f"{usual} holds {_count(len(usual_runs), 'run')} already, the last {usual_runs[-1].name}"
            _say(f"not run: {args.command}")
            _say(f"{there}: that is taken; to dump again remove it first")
        else:
            code = run_in_shell([args.command], training_environment(settings))
            if code != 0:
                left = f"; {WORD} without it takes what it dumped" if runs.find_runs(usual) else ""
                _say(f"the command ended with exit code {code}{left}")
                return code
    chosen = _find(source, choice)
    files = [runs.files_of_run(run) for run in chosen]
    keep_all = choice == runs.ALL_RUNS
    dumps = [tensor for each in files for tensor in each.tensors] if keep_all else runs.last_of_each(files)
    if args.engine == "tfdbg":
        log_folder = os.path.abspath(str(workspace.output_dir(WORD)))
        done = analyzer.extract_with_analyzer(files, dumps, folder, log_folder, args.time_limit, _Progress())
        for note in map(render, workspace.notes):
            _say(note)
        _say(f"what the analyzer printed: {log_folder}")
    else:
        done = extract.extract(dumps, folder, settings.workers, _Progress())
    _show(done, files)
    taken = set(dumps)
    mixed = sum(any(tensor in taken for tensor in each.tensors) for each in files)
    if mixed > 1 and not keep_all:
        print_line(f"of {mixed} runs, of each tensor what the last run has: --run chooses one")
    return DONE


def _find(source: str, choice: Optional[str]) -> List[runs.RunFolder]:
    if not os.path.isdir(source):
        raise DataNotFoundError.of(source, "no such folder", _HOW_TO_DUMP)
    run_folders = runs.find_runs(source)
    if not run_folders:
        raise DataNotFoundError.of(source, "no run folder of tfdbg in it", _HOW_TO_DUMP)
    return run_folders if choice is None else runs.choose_runs(run_folders, choice)


def _check_place(workspace: Workspace, source: str, folder: str) -> None:
    """Raises UsageError for a folder whose replacement would touch dumps, which are only read, or where one works."""
    place = os.path.realpath(folder)
    if lies_in(os.getcwd(), place):
        raise UsageError(
            f"-o {folder}: is the working folder, or around it, and would be replaced as a whole",
            "name a folder in it, such as -o dump",
        )
    for dump in (source, str(workspace.root / "npu"), *map(str, workspace.dump_dirs())):
        root = os.path.realpath(dump)
        if dump != str(workspace.tf_dump_dir) and (lies_in(place, root) or lies_in(root, place)):
            raise UsageError(
                f"-o {folder}: lies in {dump}, or around it, which holds dumps: these are only read",
                "name a folder elsewhere",
            )


class _Progress:
    """Now and then a line on standard error."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < _PROGRESS_SECONDS or not 0 < done < total:
            return
        self._last = now
        rate = done / (now - self._started)
        left = (total - done) / rate
        _say(f"{WORD}: {100 * done // total}% of {_size(total)}, {_size(rate)}/s, {left:.0f} s left")


def _show(done: extract.Extracted, files: Sequence[runs.RunFiles]) -> None:
    tensors = f"{_count(done.count, 'tensor')} ({_size(done.nbytes)}) of {_count(len(files), 'run')}"
    print_line(f"{done.folder}: up to date, {tensors}" if done.same else f"{done.folder}: {tensors} written")
    if done.replaced.tensors:
        print_line(f"replaced: the {_count(done.replaced.tensors, 'tensor')} that were there")
    others = [name for name in done.replaced.others if name.endswith(".npy")]
    if others:
        print_line(f"kept: {len(others)} .npy files of another origin, the first {others[0]}")
    for note in done.notes:
        print_line(f"note: {note}")
    skipped = [*done.skipped, *(row for each in files for row in each.skipped)]
    firsts: Dict[str, str] = {}
    for name, reason in skipped:
        firsts.setdefault(reason, name)
    for reason, count in Counter(reason for _, reason in skipped).most_common():
        print_line(f"skipped {count}: {reason} (the first: {firsts[reason]})")
    damaged = [*done.damaged, *(row for each in files for row in each.unreadable)]
    for name, reason in damaged[:_SHOWN]:
        print_line(f"not read: {name}: {reason}")
    if len(damaged) > _SHOWN:
        print_line(f"not read: {len(damaged) - _SHOWN} more, {len(damaged)} in all")


def _count(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _size(nbytes: float) -> str:
    units = ["B", "KB", "MB", "GB"]
    while nbytes >= 1000 and len(units) > 1:
        nbytes /= 1000
        del units[0]
    return f"{nbytes:.0f} B" if units[0] == "B" else f"{nbytes:.1f} {units[0]}"


def _say(text: str) -> None:
    print_line(text, sys.stderr)


#: The word.
COMMAND = PlainCommand(_parser, _run)
