"""`guide`: the guide that is installed with the tool. This module runs on Python 3.7."""

import argparse
import os
import pydoc
import sys

from precision_tool.lib.cli.arguments import Parser, plain_command
from precision_tool.lib.cli.words import DONE
from precision_tool.lib.data.settings import Settings

PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "GUIDE.md")


def _options(parser: Parser) -> None:
    parser.add_argument("--path", action="store_true", help="print only the path of the guide")


@plain_command(
    "guide",
    "Print the guide: how to dump, compare and find the faulty op. On a terminal, page by page.",
    _options,
    example="guide --path",
)
def run(args: argparse.Namespace, settings: Settings) -> int:
    if args.path:
        print(PATH)
        return DONE
    with open(PATH, encoding="utf-8") as file:
        text = file.read()
    if sys.stdout.isatty():
        pydoc.pager(text)
    else:
        sys.stdout.write(text)
    return DONE
