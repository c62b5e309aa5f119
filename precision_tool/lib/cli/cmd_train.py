"""`train`: replay a saved training step on CPU and NPU. This module runs on Python 3.7."""

import argparse
import os
from pathlib import Path

from precision_tool.lib.cli.arguments import Parser, plain_command, print_line, print_note
from precision_tool.lib.cli.words import DONE
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.messages import Message, text
from precision_tool.lib.training import replay
from precision_tool.lib.training import switches as actions
from precision_tool.lib.training.packages import MissingPackageError, require_npu_bridge


def _options(parser: Parser) -> None:
    parser.add_argument("-d", "--device", choices=("all", "npu", "cpu"), default="all", help="where (default all)")
    help_text = "switches of the NPU run: dump (default), overflow, fusion_off, fusion_switch, ... joined by |"
    parser.add_argument("-a", "--action", default="dump", help=help_text)


@plain_command(
    "train",
    "Replay the training step that PrecisionTfSession saved: under tfdbg on the CPU, then tf_dump; "
    "and on the NPU with switches set. Same weights, inputs and seeds, dropout off.",
    _options,
    example="train -d npu -a 'fusion_off|dump'",
)
def run(args: argparse.Namespace, settings: Settings) -> int:
    action = actions.parse_action(args.action, {})
    if args.device != "cpu":
        try:
            require_npu_bridge()  # before anything is half done
        except MissingPackageError as error:
            reason, advice = error.full_message, error.hint_message
            raise MissingPackageError("cli.train_needs_npu", reason=reason, advice=advice) from None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # what TensorFlow tells of the machine
    workspace = Workspace(settings.data)
    step = replay.load_step(workspace, settings.dump_seed)
    _show_step(step)
    # The switches' mistakes, and folders that cannot be written, come before anything is half done.
    config = None if args.device == "cpu" else replay.npu_config(args.action, settings)
    if args.device != "npu":
        _show_run("CPU", replay.replay_on_cpu(step, settings), workspace.tf_debug_dir)
        from precision_tool.lib.cli.cmd_tf_dump import tf_dump

        code = tf_dump.main([], settings)
        if code != DONE:
            return code
    if config is not None:
        place = workspace.overflow_dump_dir if "overflow" in action else workspace.debug_dir()
        _show_run("NPU", replay.replay_on_npu(step, config), place)
    return DONE


def _show_step(step: replay.SavedStep) -> None:
    print_line(text("screen.cli.train_restored", path=str(step.checkpoint)))
    fixed = step.fixed
    if fixed.rates:
        print_line(text("screen.cli.train_dropout", names=fixed.rates))
    if fixed.seeds:
        print_line(text("screen.cli.train_seeds", names=fixed.seeds))
    if fixed.unknown:
        print_note(Message("note.cli.train_random", names=fixed.unknown))


def _show_run(device: str, done: replay.Replayed, folder: Path) -> None:
    print_line(
        text("screen.cli.train_ran", device=device, ops=done.train_ops, inputs=list(done.feeds), folder=str(folder))
    )
