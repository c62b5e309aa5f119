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
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, TextIO, Tuple, Union

from precision_tool.lib.cli.help_format import HelpFormatter, argparse_in_language
from precision_tool.lib.cli.words import COMMANDS, GLOBAL_OPTIONS
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.io import urls
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import UsageError, escaped
from precision_tool.lib.messages.help_texts import help_text

#: The tool's name in a shell where it is installed, and Python's.
NAME, PACKAGE = "precision-tool", "precision_tool"
_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


#: What makes a folded help show everything.
_VERBOSE = ("-v", "--verbose")


class Parser(argparse.ArgumentParser):
    """A parser that shows an example, and whose errors are the user's errors.

    The help of one with folded groups is brief: it fits a screen, and says how to see the rest.
    """

    def __init__(self, name: str, description: str, example: str) -> None:
        super().__init__(
            prog=name, description=description, epilog=help_text("example: ") + example, formatter_class=HelpFormatter
        )
        self._unknown: List[str] = []
        self._folded: List[Tuple[str, argparse._ArgumentGroup]] = []
        self._given: Sequence[str] = ()

    def folded_group(self, title: str, option: str) -> argparse._ArgumentGroup:
        """Add a group that the help leaves out, unless `option` or -v is given with -h; return the group."""
        group = self.add_argument_group(title)
        self._folded.append((option, group))
        return group

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Tuple[Any, List[str]]:
        """Return the arguments and the words that are none, which an error about them looks at."""
        self._given = () if args is None else args  # decides what -h shows
        with argparse_in_language():
            namespace, self._unknown = super().parse_known_args(args, namespace)
        return namespace, self._unknown

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Return the arguments; UsageError for what argparse objects to."""
        with argparse_in_language():
            parsed: argparse.Namespace = super().parse_args(args, namespace)
        return parsed

    def _get_values(self, action: argparse.Action, arg_strings: List[str]) -> Any:
        # `--name=--` has a value, which argparse before Python 3.13 takes for the end of the options.
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            return self._get_value(action, "--")
        return super()._get_values(action, arg_strings)

    def format_help(self) -> str:
        """Return the help: brief for a parser with folded groups."""
        if not self._folded or any(option in self._given for option in _VERBOSE):
            return self.whole_help()
        shown = [(option, group) for option, group in self._folded if option in self._given]
        formatter: Any = self._get_formatter()
        formatter.is_brief = not shown
        formatter.add_usage(f"{self.prog} {''.join(option + ' ' for option, _ in shown)}[OPTION ...]", [], [])
        formatter.add_text(self.description)
        folded = [group for _, group in self._folded]
        for group in [group for _, group in shown] or [group for group in self._action_groups if group not in folded]:
            opening = [option for option, each in shown if each is group]
            formatter.start_section(group.title)
            formatter.add_arguments(
                [*(self._option_string_actions[option] for option in opening), *group._group_actions]
            )
            formatter.end_section()
        others = [f"{self.prog} {option} -h" for option, group in self._folded if (option, group) not in shown]
        more = text("screen.cli.more_help", lines=[*others, *([f"{self.prog} -h"] if shown else [])])
        help_: str = formatter.format_help()
        return help_ + "\n" + "\n".join([*filter(None, [None if shown else self.epilog]), more, ""])

    def whole_help(self) -> str:
        """Return the help with everything in full."""
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise what argparse objects to, with the option that was probably meant."""
        options = [word.partition("=")[0] for word in self._unknown if word.startswith("-")]
        of_tool = next((option for option in options if option in GLOBAL_OPTIONS), None)
        valid = [option for action in self._actions for option in action.option_strings]
        close = [match for option in options for match in difflib.get_close_matches(option, valid, n=1)]
        raise UsageError(
            "cli.bad_arguments",
            command=self.prog,
            problem=message,
            near=close[0] if close and of_tool is None else None,
            of_tool=of_tool,
        )


class PlainCommand(NamedTuple):
    """A command of the training side: plain text out, nothing but the settings in; `run` returns the exit code."""

    name: str
    description: str
    example: str
    add_options: Callable[[Parser], None]
    run: Callable[[argparse.Namespace, Settings], int]

    def main(self, argv: Sequence[str], settings: Settings) -> int:
        """Run its command line and return the exit code; the user's errors are raised."""
        parser = Parser(self.name, self.description, self.example)
        self.add_options(parser)
        return self.run(parser.parse_args(list(argv)), settings)


def plain_command(
    name: str, description: str, add_options: Callable[[Parser], None], *, example: str
) -> Callable[[Callable[[argparse.Namespace, Settings], int]], PlainCommand]:
    """Make a function the command of this name, as `command` of `command.py` does."""

    def register(run: Callable[[argparse.Namespace, Settings], int]) -> PlainCommand:
        made = COMMANDS[name] = PlainCommand(name, description, example, add_options, run)
        return made

    return register


def print_line(line: str, file: Optional[TextIO] = None) -> None:
    """Print a line with control characters escaped, so that names from files cannot control the terminal."""
    print(escaped(urls.shown(line)), file=file, flush=True)


def print_note(note: Union[Message, str]) -> None:
    """Print a note on standard error."""
    print_line(text("screen.cli.note", text=note), sys.stderr)


def training_environment(settings: Settings) -> Dict[str, str]:
    """Return the environment of a training command, whose script uses the data folder of the command line."""
    return {**os.environ, "PRECISION_TOOL_DATA": os.path.abspath(str(settings.data))}


def run_in_shell(words: Sequence[str], environment: Optional[Mapping[str, str]] = None) -> int:
    """Run a command with the user's shell, several words each quoted as a word, and return its exit code."""
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
    package = os.path.realpath(_FOLDER)
    scripts = [os.path.join(folder, "cli.py") for folder in (package, os.path.dirname(package))]
    if start[-2:] == ["-m", PACKAGE] or os.path.realpath(start[-1]) in scripts:
        return " ".join(map(shlex.quote, start))
    if os.path.basename(start[-1]) != NAME or shutil.which(NAME) == start[-1]:
        return NAME
    return shlex.quote(os.path.relpath(start[-1]) if start[-1].startswith(os.getcwd() + os.sep) else start[-1])
