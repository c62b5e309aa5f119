"""The arguments that several commands share: their types, what Tab offers for them, and what they ask for."""

from __future__ import annotations

import argparse
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from precision_tool.lib.data.settings import MOST_COUNTED, MOST_WORKERS
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.messages.help_texts import help_text
from precision_tool.lib.session import ALL, Session

if TYPE_CHECKING:
    from precision_tool.lib.compare.cluster import ClusterExecutor
    from precision_tool.lib.compare.scheduler import Progress, Resources

#: What arguments are added to: a parser, or a group of one, which the help shows under a heading.
Options = argparse._ActionsContainer

#: The kinds of names that Tab offers for an argument: `tensor` is an op, a dump file or a `.npy`; `metric` are metrics
#: of a comparison, with commas between them.
Completion = Literal[
    "op", "op_type", "pass", "kernel", "graph", "tensor", "result", "metric", "layout", "file", "folder"
]


def add(parser: Options, *names: str, completes: Completion, **settings: Any) -> None:
    """Add an argument as `add_argument` does; `completes` is the kind of names that Tab offers for it."""
    parser.add_argument(*names, **settings).completion = completes  # type: ignore[attr-defined]


def completion_of(action: argparse.Action) -> Completion | None:
    """Return the kind of names that `add` was told."""
    return getattr(action, "completion", None)


# --- types ------------------------------------------------------------------------------------------------------------


def some_text(word: str) -> str:
    """Return an argument that names something. ArgumentTypeError for an empty one, which would match everything."""
    if not word.strip():
        raise argparse.ArgumentTypeError(text("argument.empty"))
    return word


def cosine(word: str) -> float:
    """Return an argument as a cosine."""
    try:
        value = float(word)
    except ValueError:
        value = 2.0
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(text("argument.cosine", value=repr(word)))
    return value


def relative_error(word: str) -> float:
    """Return an argument as a relative error above 0."""
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(text("argument.relative_error", value=reprlib.repr(word)))
    return value


def count(least: int, most: int = MOST_COUNTED) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number from `least` to `most`."""

    def parse(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(text("argument.count", value=reprlib.repr(word), least=least))
        if value > most:
            raise argparse.ArgumentTypeError(text("argument.most", value=reprlib.repr(word), most=most))
        return value

    return parse


# --- arguments --------------------------------------------------------------------------------------------------------


def add_side(parser: Options, session: Session, short: str, long: str, what: str) -> None:
    """Add the option that names one of two sides; a folder of the data folder, as debug_1, is found there too."""
    add(parser, short, long, metavar="DIR", type=session.workspace.named, help=what, completes="folder")


def add_graph(parser: Options, what: str = "graph file (text or JSON), or a folder of them") -> None:
    """Add the option -g, --graph; `what` is its help."""
    add(parser, "-g", "--graph", metavar="GRAPH", help=what, completes="graph")


def add_place(parser: Options) -> None:
    """Add the options --step and --rank, which the prompt keeps."""
    for option, what in (("--step", "step"), ("--rank", "rank")):
        parser.add_argument(
            option, metavar="N", type=_place,
            help=f"what this {what} has, where several were dumped; the prompt keeps it until another, or `all`",
        )  # fmt: skip


def _place(word: str) -> int:
    return ALL if word == "all" else count(0)(word)


def add_limit(parser: Options, default: int, what: str = "how many ops to show") -> None:
    """Add the option -l, --limit."""
    parser.add_argument(
        "-l", "--limit", metavar="N", type=count(0), default=default, help=f"{what}, 0 for all (default %(default)s)"
    )


def add_json(parser: Options, what: str = "the result") -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON and nothing else")


def add_workers(
    parser: Options,
    default: int | None,
    what: str = "threads or processes that share the work (default 0: one per core)",
) -> None:
    """Add the option --workers; `what` is its help."""
    parser.add_argument("--workers", metavar="N", type=count(0, MOST_WORKERS), default=default, help=what)


def add_engine(parser: Options, session: Session) -> None:
    """Add the option --engine, which `engine_of` reads."""
    parser.add_argument(
        "--engine", choices=("native", "cann", "auto"),
        help=help_text(
            "engine: native (this tool), cann (the toolkit's msaccucmp and atc), auto (native, and the toolkit for "
            "files that native cannot read); default {engine}",
            engine=session.settings.engine,
        ),
    )  # fmt: skip


def engine_of(session: Session, args: argparse.Namespace) -> str:
    """Return who does the work: the option, else the setting."""
    engine: str | None = args.engine
    return engine or session.settings.engine


def add_cluster(parser: Options) -> None:
    """Add the options that give the work to a cluster; `cluster_of` opens it."""
    parser.add_argument(
        "--cluster", metavar="ADDRESS",
        help="distribute the work to this Dask cluster: tcp://HOST:PORT, or its scheduler file. Use only a cluster "
        "that you trust, because data is exchanged as pickles",
    )  # fmt: skip
    parser.add_argument(
        "--worker-for", metavar="HOST=DIR", action="append",
        help="with --cluster: only the workers of HOST (host or worker name, or a resource that they have) read files "
        "below DIR; may be repeated",
    )  # fmt: skip


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


# --- arguments of comparisons -----------------------------------------------------------------------------------------


def add_common(parser: Options, session: Session, *short: str, rare: Options | None = None) -> None:
    """Add the options of all comparisons on what is wrong, and what is shown; `short`: more names of --threshold.

    `rare` is the group of those that few need; by default the parser.
    """
    settings = session.settings
    parser.add_argument(
        *short, "--threshold", dest="threshold", metavar="COS", type=cosine, default=settings.threshold,
        help="cosine similarity below which a tensor counts as wrong (default %(default)s)",
    )  # fmt: skip
    add_limit(parser, settings.limit)
    add_json(parser)
    parser.set_defaults(verbose=False)
    parser.add_argument("--fail", action="store_true", help="exit code 1 if anything is below the threshold")
    add(
        rare or parser, "--noise-floor", dest="noise", metavar="FILE", nargs="?", const="", completes="file",
        help="also compare each tensor's error with its noise between two runs of the same script: a file written by "
        "`random`, or a folder of them (default: the newest)",
    )  # fmt: skip


def add_sides(parser: Options, session: Session, rare: Options | None = None) -> None:
    """Add the options on what is compared, and by whom; those on by whom to `rare`."""
    add_side(parser, session, "-lt", "--left", "NPU dump: a folder of any level of the dump tree, or debug_1")
    add_side(parser, session, "-rt", "--right", "benchmark .npy files, or the dump of another NPU run")
    add_graph(parser)
    add_workers(rare or parser, None)
    add_cluster(rare or parser)
    add_engine(rare or parser, session)


def add_measures(parser: Options) -> None:
    """Add the options on what is measured."""
    parser.add_argument(
        "-overflow_detection", "--overflow_detection", dest="overflow", action="store_true",
        help="report float16 values of 65504 or more in the column OverFlow",
    )  # fmt: skip
    add(
        parser, "--custom", metavar="FILE.py", completes="file",
        help="custom metrics: the file is executed, and its functions compare_*(x, y), or those in its list METRICS, "
        "become columns. x is the NPU tensor, y the benchmark tensor, both in memory (at most 4 GiB per pair and "
        "worker); they return a number or a short text",
    )  # fmt: skip
