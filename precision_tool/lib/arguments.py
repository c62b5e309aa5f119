"""Arguments of commands: a parser whose errors are the user's, and commands that need no analysis.

This module runs on Python 3.7.
"""

import argparse
import difflib
import importlib
import os
import shlex
import subprocess
import sys
from typing import Callable, Dict, Mapping, NamedTuple, NoReturn, Optional, Sequence, TextIO

from precision_tool.lib.errors import UsageError
from precision_tool.lib.io import urls
from precision_tool.lib.settings import Settings
from precision_tool.lib.words import Word


class Parser(argparse.ArgumentParser):
    """A parser whose errors are the user's errors."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse found wrong, with the option that was probably meant."""
        hint = f"`{self.prog} -h` shows the options"
        unknown = message.split() if message.startswith("unrecognized") else []
        given = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if any(option in ("--data", "--work") for option in given):
            hint = "put --data and --work before the command"
        known = [option for action in self._actions for option in action.option_strings]
        close = [match for option in given for match in difflib.get_close_matches(option, known, n=1)]
        if close:
            hint = f"did you mean {close[0]}? {hint}"
        raise UsageError(f"{self.prog}: {message}", hint)


class PlainCommand(NamedTuple):
    """A command of the training side: plain text out, nothing but the settings in; `run` returns the exit code."""

    parser: Callable[[], Parser]
    run: Callable[[argparse.Namespace, Settings], int]

    def main(self, argv: Sequence[str], settings: Settings) -> int:
        """Runs its command line and returns the exit code; the user's errors are raised."""
        return self.run(self.parser().parse_args(list(argv)), settings)


def load_plain(word: Word) -> PlainCommand:
    """The command of a word that has one in `plain`."""
    module, _, name = word.plain.partition(":")
    command: PlainCommand = getattr(importlib.import_module(f"precision_tool.lib.{module}"), name)
    return command


def escaped(text: str) -> str:
    """Names come from other machines: control characters, escape sequences too, are shown as \\xNN."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def print_line(text: str, file: Optional[TextIO] = None) -> None:
    """A line in which names from files cannot be taken for commands by the terminal."""
    print(escaped(urls.shown(text)), file=file, flush=True)


def training_environment(settings: Settings) -> Dict[str, str]:
    """The environment of a training command, whose script uses the data folder that the command line does."""
    return {**os.environ, "PRECISION_TOOL_DATA": os.path.abspath(str(settings.data))}


def run_in_shell(words: Sequence[str], environment: Optional[Mapping[str, str]] = None) -> int:
    """Runs what the user typed with the user's shell, as typed or, of several words, each as a word; its exit code."""
    typed = words[0] if len(words) == 1 else " ".join(map(shlex.quote, words))
    sys.stdout.flush()
    shell = os.environ.get("SHELL", "")
    if not (os.path.isfile(shell) and os.access(shell, os.X_OK)):
        shell = "/bin/sh"
    process = subprocess.Popen(typed, shell=True, executable=shell, env=environment)
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:  # the command has heard it too: it may save what it has, and end as it likes
            continue
