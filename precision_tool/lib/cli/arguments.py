"""What commands are made of on the command line: a parser whose errors are the user's, plain lines, the user's shell.

This module runs on Python 3.7.
"""

import argparse
import difflib
import os
import shlex
import shutil
import subprocess
import sys
from typing import Callable, Dict, Mapping, NamedTuple, NoReturn, Optional, Sequence, TextIO

from precision_tool.lib.errors import UsageError, escaped
from precision_tool.lib.io import urls
from precision_tool.lib.settings import Settings

#: The tool's name in a shell where it is installed, and Python's.
NAME, PACKAGE = "precision-tool", "precision_tool"
_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


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


def program() -> str:
    """Return how this tool was called, quoted for a shell: a line that begins with it runs in the user's folder."""
    typed, count = list(getattr(sys, "orig_argv", [])), len(sys.argv) - 1  # Python 3.10 and newer
    start = typed[: len(typed) - count]
    if not start or typed[len(start) :] != sys.argv[1:]:  # the user's own program calls the package
        return NAME
    if start[-2:] == ["-m", PACKAGE] or os.path.realpath(start[-1]) == os.path.join(
        os.path.realpath(_FOLDER), "cli.py"
    ):
        return " ".join(map(shlex.quote, start))
    if os.path.basename(start[-1]) != NAME or shutil.which(NAME) == start[-1]:
        return NAME
    return shlex.quote(os.path.relpath(start[-1]) if start[-1].startswith(os.getcwd() + os.sep) else start[-1])
