"""What all commands share: the shape of a command, where it writes, its notes and results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

from precision_tool.lib.cli.arguments import Parser as Parser
from precision_tool.lib.cli.arguments import PlainCommand, program
from precision_tool.lib.cli.words import COMMANDS, find_word
from precision_tool.lib.cli.words import DONE as DONE
from precision_tool.lib.cli.words import FOUND as FOUND
from precision_tool.lib.cli.words import USER_ERROR as USER_ERROR
from precision_tool.lib.data.settings import start_of_line
from precision_tool.lib.extensions import take_notes
from precision_tool.lib.io import urls
from precision_tool.lib.io.stores import noted_unread, take_unread
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.session import Session
from precision_tool.lib.view.text import plain, shown_reason

if TYPE_CHECKING:  # the words of verdicts are loaded when one is shown
    from precision_tool.lib.view.verdict_screen import NextSteps


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command writes: results to `out`, progress and warnings to `err`.

    `pager`, which only the prompt has, shows what is longer than the screen page by page. `command` begins a line that
    runs a command; it is empty at the prompt.
    """

    out: Console
    err: Console
    pager: Callable[[RenderableType], None] | None = None
    command: str = field(default_factory=program)

    def command_for(self, session: Session) -> str:
        """Return the start of a command line for a session, with its data and work folders if not the usual ones."""
        if not self.command:
            return ""
        space = session.workspace
        return start_of_line(self.command, [space.root, *session.settings.more_data], space.work)

    def show(self, *renderables: RenderableType) -> None:
        """Print results that may be long, through the pager where there is one."""
        self.stream(renderables)

    def stream(self, pieces: Iterable[RenderableType]) -> None:
        """Print results, each as soon as it is made."""
        if self.pager is not None:
            self.pager(Group(*pieces))
        else:
            for piece in pieces:
                self.out.print(piece)

    def print_line(self, line: str, style: str = "") -> None:
        """Print a line that a narrow terminal does not cut: paths and commands in it can be copied."""
        self.out.print(plain(line, style), soft_wrap=True)

    def write_json(self, document: str | Iterable[str]) -> None:
        """Write a JSON document, of which pieces are made meanwhile; an object also says what storage did not give."""
        if isinstance(document, str):
            if document.startswith("{") and noted_unread():
                document = json.dumps(json.loads(document) | {"unread": _unread()}, indent=1)
            self.out.file.write(document + "\n")
        else:
            end = ""  # which may come in two pieces
            for piece in document:
                self.out.file.write((end + piece)[:-2])
                end = (end + piece)[-2:]
            if end == "\n}" and noted_unread():
                end = f',\n "unread": {json.dumps(_unread())}\n}}'
            self.out.file.write(end + "\n")
        self.out.file.flush()


def _unread() -> dict[str, int | str]:
    """Return how many files storage did not give, and why the first of them."""
    unread = noted_unread()
    return {"files": len(unread), "reason": render(unread[min(unread)])}


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `add_options` fills its parser, which is also its help."""

    name: str
    description: str
    example: str
    add_options: Callable[[Parser, Session], None]
    run: Callable[[Session, argparse.Namespace, Output], int]

    def parser(self, session: Session) -> Parser:
        """Return the parser of the command."""
        parser = Parser(self.name, self.description, self.example)
        self.add_options(parser, session)
        return parser

    def __call__(self, session: Session, argv: Sequence[str], output: Output) -> int:
        """Run the command line of the command and return its exit code."""
        args = self.parser(session).parse_args([_with_path(word) for word in argv])
        take_unread()  # of an earlier command of this process
        try:
            code = self.run(session, args, output)
        finally:  # an error may come of what the notes tell of
            tell_notes(session, output)
        unread = take_unread()
        if not unread:
            return code
        reason = shown_reason(unread[min(unread)])
        console = output.err if getattr(args, "json", False) else output.out
        console.print(plain(text("study.unread", count=len(unread), reason=reason), "yellow"), soft_wrap=True)
        return USER_ERROR if code in (DONE, FOUND) else code


def command(
    name: str, description: str, add_options: Callable[[Parser, Session], None], *, example: str
) -> Callable[[Callable[[Session, argparse.Namespace, Output], int]], Command]:
    """Make a function the command of this name: it gets the session, its arguments and an Output.

    Parameters
    ----------
    name, description, example : str
        The word, what it does, and a command line to try: the help.
    add_options : callable
        Adds the arguments to the parser of the command; the session has the settings that are their defaults.

    Returns
    -------
    callable
        A decorator of a function that returns the exit code.
    """

    def register(run: Callable[[Session, argparse.Namespace, Output], int]) -> Command:
        made = COMMANDS[name] = Command(name, description, example, add_options, run)
        return made

    return register


def load_command(name: str) -> Command:
    """Import and return the command of a word; KeyError for a word without one."""
    word = find_word(name)
    if word is None or word.name == "data":
        raise KeyError(name)
    loaded: Command | PlainCommand = word.load()
    if isinstance(loaded, Command):
        return loaded
    name, description, example, add_options, run = loaded
    return Command(
        name, description, example,
        lambda parser, session: add_options(parser),
        lambda session, args, output: run(args, session.settings),
    )  # fmt: skip


def _with_path(word: str) -> str:
    """Return a word of a command line with the path that stands for a URL in it."""
    option, sign, value = word.partition("=")
    return f"{option}={urls.path_of(value)}" if sign and option.startswith("-") else urls.path_of(word)


def show_result(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    document: Callable[[], str | Iterable[str]],
    blocks: Callable[[], Iterable[RenderableType]],
) -> int:
    """Print the notes, then the result of a command: as JSON if --json asks for it. Return DONE."""
    tell_notes(session, output)
    if args.json:
        output.write_json(document())
    else:
        output.stream(blocks())
    return DONE


def tell_notes(session: Session, output: Output) -> None:
    """Print the notes of the session, once."""
    for note in (*session.workspace.notes, *take_notes()):
        show_note(output, note)
    session.workspace.notes.clear()


def show_note(output: Output, note: str | Message) -> None:
    """Print a note on standard error."""
    output.err.print(plain(text("screen.cli.note", text=shown_reason(render(note))), "yellow"), soft_wrap=True)


def spaced(parts: Iterable[Iterable[RenderableType]]) -> Iterator[RenderableType]:
    """Yield everything in order, with an empty line between the parts."""
    for number, part in enumerate(parts):
        if number:
            yield Text()
        yield from part


def collect_again(session: Session, output: Output) -> NextSteps:
    """Return the step that checks a fix: against an earlier verdict, if one named a culprit."""
    from precision_tool.lib.diagnose.stored_verdict import newest_verdicts
    from precision_tool.lib.diagnose.verdict_model import StepText
    from precision_tool.lib.view.verdict_screen import NextSteps

    has_earlier = any(verdict.verdict.culprit is not None for verdict in newest_verdicts(session.workspace))
    line = "ac -c --since" if has_earlier else "ac -c"
    return NextSteps([StepText(why=Message("screen.cli.check_again"), line=line)], output.command_for(session))
