"""`acl_json`: the file that makes AscendCL dump single ops, written or checked. This module runs on Python 3.7."""

import argparse
import os

from precision_tool.lib.cli.arguments import Parser, plain_command, print_line, print_note
from precision_tool.lib.cli.words import DONE
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.training.acl_json import (
    DEFAULT_DUMP_PATH,
    FILE_NAME,
    MODES,
    SWITCHES,
    acl_config,
    check_acl_json,
    write_acl_json,
)


def _options(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", default=FILE_NAME, metavar="FILE", help="the file (default %(default)s)")
    parser.add_argument(
        "--dump-path", metavar="DIR",
        help="where the dump goes on the machine that trains, absolute or as seen from there (default "
        f"{DEFAULT_DUMP_PATH})",
    )  # fmt: skip
    parser.add_argument("--dump-mode", choices=MODES, help="what is dumped (default all)")
    parser.add_argument("--dump-op-switch", choices=SWITCHES, help="dump of single ops (default on)")
    parser.add_argument("--check", action="store_true", help="write nothing: check the file")


@plain_command(
    "acl_json",
    "Write the acl.json that makes AscendCL dump single ops, for ops of a PyTorch .h5 file that are "
    "run again (load_with_acl_dump=True); or check one.",
    _options,
    example="acl_json --dump-path /home/HwHiAiUser/output",
)
def run(args: argparse.Namespace, settings: Settings) -> int:
    # None where nothing was given: --check takes none of them.
    fields = {name: getattr(args, name) for name in ("dump_path", "dump_mode", "dump_op_switch")}
    set_fields = {name: value for name, value in fields.items() if value is not None}
    if args.check:
        if set_fields:
            option = "--" + next(iter(set_fields)).replace("_", "-")
            raise UsageError("cli.acl_json_check_only", option=option)
        return _check(args.file)
    if args.dump_op_switch == "off":
        raise UsageError("cli.acl_json_off")
    config = acl_config(**set_fields)
    path, mode = config["dump"]["dump_path"], config["dump"]["dump_mode"]
    Workspace(settings.data).check_outside_dumps(os.path.dirname(os.path.abspath(args.file)))
    unchanged = write_acl_json(args.file, config)
    print_line(text("screen.cli.acl_written", path=args.file, mode=mode, folder=path))
    if unchanged:
        print_line(text("screen.cli.acl_kept", fields=unchanged))
    if os.path.isabs(path) and not os.path.isdir(path):
        print_note(Message("note.cli.acl_folder", folder=path))
    for line in text("screen.cli.acl_use").splitlines():
        print_line(line)
    return DONE


def _check(path: str) -> int:
    problems = check_acl_json(path)
    for problem in problems:
        if not problem.is_error:
            print_note(Message("note.cli.acl_problem", path=path, problem=problem.text))
    wrong = [problem.text for problem in problems if problem.is_error]
    if wrong:
        raise FormatError.of(path, "cli.acl_json_problems", problems=wrong, file=path)
    print_line(text("screen.cli.acl_ok", path=path))
    return DONE
