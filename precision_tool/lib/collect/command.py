"""The words `train`, `npu_dump` and `npu_overflow`: arguments in, plain lines out. This module runs on Python 3.7."""

import argparse
import os
import sys
from pathlib import Path
from typing import Sequence

from precision_tool.lib.arguments import Parser, PlainCommand, print_line, run_in_shell, training_environment
from precision_tool.lib.collect import actions, replay
from precision_tool.lib.collect.packages import MissingPackageError, require_npu_bridge
from precision_tool.lib.errors import UsageError
from precision_tool.lib.settings import Settings
from precision_tool.lib.workspace import Workspace

DONE = 0


def _train_parser() -> Parser:
    parser = Parser(
        prog="train",
        description="Replay the training step that PrecisionTfSession saved: under tfdbg on the CPU, then tf_dump; "
        "and on the NPU with switches set. Same weights, inputs and seeds, dropout off.",
        epilog="example: train -d npu -a 'fusion_off|dump'",
    )
    parser.add_argument("-d", "--device", choices=("all", "npu", "cpu"), default="all", help="where (default all)")
    help_text = "switches of the NPU run: dump (default), overflow, fusion_off, fusion_switch, ... joined by |"
    parser.add_argument("-a", "--action", default="dump", help=help_text)
    return parser


def _train(args: argparse.Namespace, settings: Settings) -> int:
    action = actions.parse_action(args.action, {})
    if args.device != "cpu":
        try:
            require_npu_bridge()  # before anything is half done
        except MissingPackageError as error:
            raise MissingPackageError(error.message, f"{error.hint}; train -d cpu needs none") from None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # what TensorFlow tells of the machine
    workspace = Workspace(settings.data)
    step = replay.load_step(workspace, settings.dump_seed)
    _show_step(step)
    # The switches' mistakes, and folders that cannot be written, come before anything is half done.
    config = None if args.device == "cpu" else replay.npu_config(args.action, settings)
    if args.device != "npu":
        _show_run("CPU", replay.replay_on_cpu(step, settings), workspace.tf_debug_dir)
        from precision_tool.lib.collect.tfdbg.command import TF_DUMP

        code = TF_DUMP.main([], settings)
        if code != DONE:
            return code
    if config is not None:
        place = workspace.overflow_dump_dir if "overflow" in action else workspace.debug_dir()
        _show_run("NPU", replay.replay_on_npu(step, config), place)
    return DONE


def _show_step(step: replay.SavedStep) -> None:
    print_line(f"restored from {step.checkpoint}")
    fixed = step.fixed
    if fixed.rates:
        print_line(f"dropout rate 0: {_some(fixed.rates)}")
    if fixed.seeds:
        print_line(f"seeds fixed: {_some(fixed.seeds)}")
    if fixed.unknown:
        print_line(f"note: still random, no known form of dropout: {_some(fixed.unknown)}", sys.stderr)


def _show_run(device: str, done: replay.Replayed, folder: Path) -> None:
    feeds = f", fed {_some(done.fed)}" if done.fed else ""
    print_line(f"{device}: ran {_some(done.train_ops)}{feeds} -> {folder}")


def _some(names: Sequence[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _flagged_parser(word: str, what: str) -> Parser:
    parser = Parser(
        prog=word,
        description=f"Run a training command with {what} on, for scripts that call precision_tool.tf_config "
        "without an action. Ends with the command's exit code.",
        epilog=f'example: {word} "sh npu_train.sh param1"',
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")
    return parser


def _run_flagged(word: str, flag: str, place: Path, args: argparse.Namespace, settings: Settings) -> int:
    if not " ".join(args.command).strip():
        raise UsageError(f"{word}: which command?", f"`{word} -h` shows an example")
    environment = training_environment(settings)
    for each in (actions.DUMP_FLAG, actions.OVERFLOW_FLAG):
        environment.pop(each, None)
    environment[flag] = "True"
    before = _entries(place)
    code = run_in_shell(args.command, environment)
    if code == DONE and _entries(place) == before:
        print_line(
            f"note: nothing new in {place}; does the script call tf_config.session_dump_config(config) "
            "or one of its kind, without an action?",
            sys.stderr,
        )
    return code


def _entries(folder: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(str(folder)))
    except OSError:
        return []


TRAIN = PlainCommand(_train_parser, _train)
NPU_DUMP = PlainCommand(
    lambda: _flagged_parser("npu_dump", "data dump"),
    lambda args, settings: _run_flagged(
        "npu_dump", actions.DUMP_FLAG, Workspace(settings.data).dump_dir(), args, settings
    ),
)
NPU_OVERFLOW = PlainCommand(
    lambda: _flagged_parser("npu_overflow", "overflow detection"),
    lambda args, settings: _run_flagged(
        "npu_overflow", actions.OVERFLOW_FLAG, Workspace(settings.data).overflow_dump_dir, args, settings
    ),
)
