"""Which command stands behind each word."""

from __future__ import annotations

import importlib

from precision_tool.lib.arguments import load_plain
from precision_tool.lib.shell.commands.base import Command
from precision_tool.lib.words import find_word

#: Module and name of each word's `Command`. One module a family; a command imports only what it needs.
_COMMANDS = {
    "ac": ("analyse", "AC"),
    "vc": ("compare", "VC"),
    "vcs": ("compare", "VCS"),
    "overflow": ("overflow", "OVERFLOW"),
    "random": ("random_errors", "RANDOM"),
    "report": ("report", "REPORT"),
    "repro": ("repro", "REPRO"),
    "ls": ("ops", "LS"),
    "ni": ("op", "NI"),
    "graphs": ("graphs", "GRAPHS"),
    "graph": ("graph_diff", "GRAPH"),
    "fusion": ("fusion", "FUSION"),
    "pt": ("tensors", "PT"),
    "cp": ("tensors", "CP"),
    "dc": ("decode", "DC"),
    "toolkit": ("toolkit", "TOOLKIT"),
    "graph2json": ("toolkit", "GRAPH2JSON"),
    "infer": ("infer", "INFER"),
    "h5copy": ("pytorch", "H5COPY"),
    "demo": ("demo", "DEMO"),
    "run": ("run", "RUN"),
}


def load_command(word: str) -> Command:
    """The command of a word; KeyError for a word without one."""
    known = find_word(word)
    if known is not None and known.plain:
        plain = load_plain(known)
        return Command(lambda session: plain.parser(), lambda session, args, output: plain.run(args, session.settings))
    module, name = _COMMANDS[word]
    command: Command = getattr(importlib.import_module(f"precision_tool.lib.shell.commands.{module}"), name)
    return command
