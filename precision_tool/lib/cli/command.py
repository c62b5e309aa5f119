"""What all commands share: the shape of a command, its console, its parser."""

from __future__ import annotations

import argparse
import importlib
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

from precision_tool.lib.cli.arguments import Parser as Parser
from precision_tool.lib.cli.arguments import PlainCommand, program
from precision_tool.lib.cli.words import find_word
from precision_tool.lib.data.settings import DEFAULT_DATA, MOST_COUNTED, MOST_WORKERS
from precision_tool.lib.extensions import take_notes
from precision_tool.lib.io import urls
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import ALL, Session
from precision_tool.lib.view.text import plain, shown_reason

if TYPE_CHECKING:  # the words of verdicts are loaded when one is shown
    from precision_tool.lib.compare.cluster import ClusterExecutor
    from precision_tool.lib.compare.scheduler import Progress, Resources
    from precision_tool.lib.view.verdict_screen import NextSteps

DONE, FOUND = 0, 1
#: What options are added to: a parser, or a group of one, which the help shows under a heading.
Options = argparse._ActionsContainer


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
        folders = [session.workspace.root, *session.settings.more_data]
        places = [("--data", folder) for folder in folders] if folders != [DEFAULT_DATA] else []
        if session.workspace.work is not None:
            places.append(("--work", session.workspace.work))
        return " ".join([self.command, *(f"{option} {quote(str(place))}" for option, place in places)])

    def show(self, *renderables: RenderableType) -> None:
        """Print results that may be long, through the pager where there is one."""
        if self.pager is not None:
            self.pager(Group(*renderables))
        else:
            self.out.print(*renderables, sep="\n")


class Completion(StrEnum):
    """The kinds of names that Tab offers for an argument."""

    OP = "op"
    OP_TYPE = "op_type"
    PASS = "pass"
    KERNEL = "kernel"
    GRAPH = "graph"
    #: An op, a dump file or a `.npy`.
    TENSOR = "tensor"
    RESULT = "result"
    #: Metrics of a comparison, with commas between them.
    METRIC = "metric"
    LAYOUT = "layout"
    FILE = "file"
    FOLDER = "folder"


def completes(action: argparse.Action, kind: Completion) -> argparse.Action:
    """Mark an argument of a parser with the kind of names that Tab offers for it."""
    action.completion = kind  # type: ignore[attr-defined]
    return action


def completion_of(action: argparse.Action) -> Completion | None:
    """Return the mark that `completes` set."""
    return getattr(action, "completion", None)


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its parser is also its help."""

    parser: Callable[[Session], Parser]
    run: Callable[[Session, argparse.Namespace, Output], int]

    def __call__(self, session: Session, argv: Sequence[str], output: Output) -> int:
        """Run the command line of the command and return its exit code."""
        args = self.parser(session).parse_args([_with_path(word) for word in argv])
        try:
            return self.run(session, args, output)
        finally:  # an error may come of what the notes tell of
            tell_notes(session, output)


def load_command(name: str) -> Command:
    """Import and return the command of a word; KeyError for a word without one."""
    word = find_word(name)
    if word is None or word.name == "data":
        raise KeyError(name)
    command: Command | PlainCommand = importlib.import_module(word.module).COMMAND
    if isinstance(command, Command):
        return command
    plain_parser, run = command
    return Command(lambda session: plain_parser(), lambda session, args, output: run(args, session.settings))


def _with_path(word: str) -> str:
    """Return a word of a command line with the path that stands for a URL in it."""
    option, sign, value = word.partition("=")
    return f"{option}={urls.path_of(value)}" if sign and option.startswith("-") else urls.path_of(word)


def some_text(text: str) -> str:
    """Return an argument that names something. ArgumentTypeError for an empty one, which would match everything."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty text names nothing")
    return text


def cosine(text: str) -> float:
    """Return an argument as a cosine."""
    try:
        value = float(text)
    except ValueError:
        value = 2.0
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no cosine: give a number from -1 to 1")
    return value


def add_side(parser: Options, session: Session, short: str, long: str, what: str) -> None:
    """Add the option that names one of two sides; a folder of the data folder, as debug_1, is found there too."""
    side = parser.add_argument(
        short, long, dest=long.lstrip("-"), metavar="DIR", type=session.workspace.named, help=what
    )
    completes(side, Completion.FOLDER)


def add_graph(parser: Options, what: str = "graph file (text or JSON), or a folder of them") -> None:
    """Add the option -g, --graph; `what` is its help."""
    completes(parser.add_argument("-g", "--graph", dest="graph", metavar="GRAPH", help=what), Completion.GRAPH)


def add_place(parser: Parser) -> None:
    """Add the options --step and --rank, which the prompt keeps."""
    for option, what in (("--step", "step"), ("--rank", "rank")):
        parser.add_argument(
            option, metavar="N", type=_place,
            help=f"what this {what} has, where several were dumped; the prompt keeps it until another, or `all`",
        )  # fmt: skip


def _place(text: str) -> int:
    return ALL if text == "all" else count(0)(text)


def add_json(parser: Parser) -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")


def add_workers(
    parser: Options, default: int | None, what: str = "threads or processes that share the work (default: one per core)"
) -> None:
    """Add the option --workers; `what` is its help."""
    parser.add_argument("--workers", metavar="N", type=count(0, MOST_WORKERS), default=default, help=what)


def add_cluster(parser: Options) -> None:
    """Add the options that give the work to a cluster; `cluster_of` opens it."""
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="the workers of this Dask cluster share the work: tcp://HOST:PORT, or its scheduler file; only one that "
        "you trust, as what goes between is pickled",
    )
    parser.add_argument(
        "--worker-for",
        dest="worker_for",
        metavar="HOST=DIR",
        action="append",
        help="with --cluster: what lies below DIR is read by the workers of HOST (host or worker name, or a resource "
        "that they have); again for more",
    )


@contextmanager
def cluster_of(args: argparse.Namespace) -> Iterator[ClusterExecutor | None]:
    """Open the cluster of the options and yield its executor; None without --cluster."""
    if args.cluster is None:
        if args.worker_for:
            raise UsageError("cli.options_need", command="", option="--worker-for", other="--cluster")
        yield None
        return
    from precision_tool.lib.compare.cluster import open_cluster, parse_place

    places = [parse_place(text) for text in args.worker_for or ()]
    with open_cluster(args.cluster, places) as executor:
        yield executor


def resources_of(
    session: Session,
    args: argparse.Namespace,
    executor: ClusterExecutor | None = None,
    progress: Progress | None = None,
) -> Resources:
    """Return who shares the work of a command: the cluster, or the workers that its options or the settings say."""
    from precision_tool.lib.compare.scheduler import Resources

    workers = session.settings.workers if args.workers is None else args.workers
    return Resources(workers if executor is None else executor.workers, executor, progress)


def count(least: int, most: int = MOST_COUNTED) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is no whole number of at least {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is more than {most}")
        return value

    return parse


def tell_notes(session: Session, output: Output) -> None:
    """Print the notes of the session, once."""
    for note in (*session.workspace.notes, *take_notes()):
        show_note(output, note)
    session.workspace.notes.clear()


def show_note(output: Output, note: str | Message) -> None:
    """Print a note on standard error."""
    output.err.print(plain(text("screen.cli.note", text=shown_reason(render(note))), "yellow"), soft_wrap=True)


def spaced(parts: Sequence[Sequence[RenderableType]]) -> list[RenderableType]:
    """Return everything in order, with an empty line between the parts."""
    return [line for number, part in enumerate(parts) for line in (*([Text()] if number else []), *part)]


def collect_again(session: Session, output: Output) -> NextSteps:
    """Return the step that checks a fix: against an earlier verdict, if one named a culprit."""
    from precision_tool.lib.diagnose.stored_verdict import newest_verdicts
    from precision_tool.lib.diagnose.verdict_model import StepText
    from precision_tool.lib.view.verdict_screen import NextSteps

    has_earlier = any(verdict.verdict.culprit is not None for verdict in newest_verdicts(session.workspace))
    line = "ac -c --since" if has_earlier else "ac -c"
    return NextSteps([StepText(why=Message("screen.cli.check_again"), line=line)], output.command_for(session))
