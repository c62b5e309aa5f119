"""`npu_overflow`: run a training command with overflow detection on. This module runs on Python 3.7."""

from precision_tool.lib.cli.arguments import PlainCommand
from precision_tool.lib.cli.cmd_npu_dump import flagged_parser, run_flagged
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.training import switches as actions

COMMAND = PlainCommand(
    lambda: flagged_parser("npu_overflow", "overflow detection"),
    lambda args, settings: run_flagged(
        "npu_overflow", actions.OVERFLOW_FLAG, Workspace(settings.data).overflow_dump_dir, args, settings
    ),
)
