"""`guide`: the guide that is installed with the tool. This module runs on Python 3.7."""

import argparse
import io
import os
import pydoc
import shutil
import sys

from precision_tool.lib.cli.arguments import Parser, plain_command
from precision_tool.lib.cli.words import DONE
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.messages import language

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: The guide by language.
_NAMES = {"en": "GUIDE.md", "zh": "GUIDE.zh-CN.md"}

#: Lines of prose that are longer are hard to read.
_WIDEST = 120


def _options(parser: Parser) -> None:
    parser.add_argument("--path", action="store_true", help="print only the path of the guide")


@plain_command(
    "guide",
    "Print the guide: how to dump, compare and find the faulty op. On a terminal, page by page.",
    _options,
    example="guide --path",
)
def run(args: argparse.Namespace, settings: Settings) -> int:
    path = os.path.join(_PACKAGE, _NAMES[language()])
    if args.path:
        print(path)
        return DONE
    with open(path, encoding="utf-8") as file:
        text = file.read().split("\n\n", 1)[1]  # without the line that links to the other language
    if sys.stdout.isatty():
        pydoc.pager(_rendered(text))
    else:
        sys.stdout.write(text)
    return DONE


def _rendered(text: str) -> str:
    """Return the guide for a terminal of this width; as it is where rich is not installed, on the training side."""
    try:
        from rich.console import Console
        from rich.markdown import Markdown
    except ImportError:
        return text
    console = Console(file=io.StringIO(), width=min(shutil.get_terminal_size().columns, _WIDEST), color_system=None)
    with console.capture() as capture:
        console.print(Markdown(text))
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())
