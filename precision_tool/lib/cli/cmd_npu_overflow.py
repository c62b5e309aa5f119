"""`npu_overflow`: run a training command with overflow detection on. This module runs on Python 3.7."""

from precision_tool.lib.cli.arguments import PlainCommand
from precision_tool.lib.cli.cmd_npu_dump import flagged_parser, run_flagged
from precision_tool.lib.collect import actions
from precision_tool.lib.workspace import Workspace

COMMAND = PlainCommand(
    lambda: flagged_parser("npu_overflow", "overflow detection"),
    lambda args, settings: run_flagged(
        "npu_overflow", actions.OVERFLOW_FLAG, Workspace(settings.data).overflow_dump_dir, args, settings
    ),
)
