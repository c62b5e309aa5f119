"""`acl_json`: the file that makes AscendCL dump single ops, written or checked. This module runs on Python 3.7."""

import argparse
import os
import sys

from precision_tool.lib.cli.arguments import Parser, PlainCommand, print_line
from precision_tool.lib.collect.acl_json import (
    DEFAULT_DUMP_PATH,
    FILE_NAME,
    MODES,
    SWITCHES,
    acl_config,
    check_acl_json,
    write_acl_json,
)
from precision_tool.lib.errors import FormatError, UsageError
from precision_tool.lib.settings import Settings
from precision_tool.lib.workspace import Workspace

#: What each mode dumps, in words.
_MODE_WORDS = {"all": "inputs and outputs", "input": "inputs", "output": "outputs"}
_USE = (
    "next: put it beside the training script, export ACL_DUMP_DATA=1 and run one step inside",
    '  with torch.utils.dumper(use_load=True, dump_path="./", load_file_path="./output.h5", load_with_acl_dump=True):',
    "output.h5 has the ops to run again: h5copy makes it; dc DIR --txt decodes what is dumped",
)


def _parser() -> Parser:
    parser = Parser(
        prog="acl_json",
        description="Write the acl.json that makes AscendCL dump single ops, for ops of a PyTorch .h5 file that are "
        "run again (load_with_acl_dump=True); or check one.",
        epilog="example: acl_json --dump-path /home/HwHiAiUser/output",
    )
    parser.add_argument("file", nargs="?", default=FILE_NAME, metavar="FILE", help="the file (default %(default)s)")
    parser.add_argument(
        "--dump-path", metavar="DIR",
        help="where the dump goes on the machine that trains, absolute or as seen from there (default "
        f"{DEFAULT_DUMP_PATH})",
    )  # fmt: skip
    parser.add_argument("--dump-mode", choices=MODES, help="what is dumped (default all)")
    parser.add_argument("--dump-op-switch", choices=SWITCHES, help="dump of single ops (default on)")
    parser.add_argument("--check", action="store_true", help="write nothing: check the file")
    return parser


def _run(args: argparse.Namespace, settings: Settings) -> int:
    # None where nothing was given: --check takes none of them.
    fields = {name: getattr(args, name) for name in ("dump_path", "dump_mode", "dump_op_switch")}
    given = {name: value for name, value in fields.items() if value is not None}
    if args.check:
        if given:
            option = "--" + next(iter(given)).replace("_", "-")
            raise UsageError(f"acl_json: --check writes nothing, so {option} does not go with it", "leave one out")
        return _check(args.file)
    if args.dump_op_switch == "off":
        raise UsageError("acl_json: --dump-op-switch off: nothing would be dumped", "remove the file instead")
    config = acl_config(**given)
    path, mode = config["dump"]["dump_path"], config["dump"]["dump_mode"]
    Workspace(settings.data).check_outside_dumps(os.path.dirname(os.path.abspath(args.file)))
    kept = write_acl_json(args.file, config)
    print_line(f"{args.file}: {_MODE_WORDS[mode]} of single ops are dumped to {path}")
    if kept:
        print_line("kept what was there of {}".format(", ".join(kept)))
    if os.path.isabs(path) and not os.path.isdir(path):
        print_line(f"note: {path} is not here: make it where the training runs", sys.stderr)
    for line in _USE:
        print_line(line)
    return 0


def _check(path: str) -> int:
    problems = check_acl_json(path)
    for problem in problems:
        if not problem.is_error:
            print_line(f"note: {path}: {problem.text}", sys.stderr)
    wrong = [problem.text for problem in problems if problem.is_error]
    if wrong:
        raise FormatError.of(path, "; ".join(wrong), f"`acl_json {path}` writes it right")
    print_line(f"{path}: single ops are dumped")
    return 0


COMMAND = PlainCommand(_parser, _run)
