"""The commands that only a prompt has: their options, and how they are listed."""

from __future__ import annotations

import argparse

from precision_tool.lib.shell.commands.base import Parser
from precision_tool.lib.words import WORDS

#: Words that the prompt does itself.
OF_THE_PROMPT = ("data", "run")
#: The commands that only a prompt has: a line of help and an example.
OWN = {
    "help": ("the commands, or one of them", "help vc"),
    "set": ("show or change settings: threshold, limit, width, theme, paging and so on", "set threshold 0.99"),
    "history": ("what was typed; with -a in earlier sessions too, which Ctrl+R searches", "history -a"),
    "run_script": ("commands from a file, one per line", "run_script commands.txt"),
    "refresh": ("read dumps, graphs and results anew", "refresh"),
    "exit": ("leave; so do quit, Ctrl+D, and Ctrl+C at an empty prompt", "exit"),
}


def data_parser() -> Parser:
    """The options of `data`."""
    parser = Parser(
        prog="data",
        description="Go on with another data folder, or run one command on it.",
        epilog="example: data /data/run2/precision_data",
    )
    parser.add_argument("folder", metavar="DIR", help="the data folder")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="only this command, with arguments"
    )
    return parser


def refresh_parser() -> Parser:
    """The options of `refresh`."""
    return Parser(
        prog="refresh",
        description="Read dumps, graphs and results anew. New files are seen by the times of their folders anyway.",
        epilog=f"example: {OWN['refresh'][1]}",
    )


def exit_parser() -> Parser:
    """The options of `exit`."""
    return Parser(
        prog="exit",
        description="Leave. So do quit, Ctrl+D, and Ctrl+C at an empty prompt.",
        epilog=f"example: {OWN['exit'][1]}",
    )


def families() -> dict[str, list[tuple[str, str]]]:
    """Every command with its line of help, by family."""
    by_family: dict[str, list[tuple[str, str]]] = {}
    for word in WORDS:
        by_family.setdefault(word.family, []).append((word.name, word.help))
    by_family["Prompt"] = [(name, help_) for name, (help_, _) in OWN.items()]
    return by_family
