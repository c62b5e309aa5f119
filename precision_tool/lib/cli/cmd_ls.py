"""`ls`: lists ops, or dump files, that fit all of some patterns."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.console import RenderableType

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import Output, Parser, command, show_result, spaced
from precision_tool.lib.cli.comparison import judge_place
from precision_tool.lib.data.dump_names import flatten, op_number
from precision_tool.lib.data.graph_catalog import RunGraph, where_of
from precision_tool.lib.data.pair_listing import DumpListing, OpFilter, list_dumps, list_ops
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.stored_verdict import newest_verdicts, op_verdicts
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import ops_screen as report

# What shows PyTorch dumps takes long to load, and most data has none.
if TYPE_CHECKING:
    from precision_tool.lib.data.pytorch_pairing import H5Listing

#: Rows that are shown where nothing else is asked for.
_LIMIT = 50
_DUMP = "dump"


def _options(parser: Parser, session: Session) -> None:
    for dest, metavar, help_ in (("what", _DUMP, "list dump files"), ("word", "NAME", "the same as -n NAME")):
        flags.add(parser, dest, nargs="?", metavar=metavar, type=flags.some_text, help=help_, completes="op")
    patterns: tuple[tuple[str, str, str, str, flags.Completion, str], ...] = (
        ("-n", "--name", "name", "NAME", "op", "name of the op"),
        ("-t", "--type", "type", "TYPE", "op_type", "type of the op"),
        ("-f", "--fusion", "fusion", "PASS", "pass", "fusion pass that made the op"),
        ("-k", "--kernel_name", "kernel", "KERNEL", "kernel", "kernel of the op, or its library"),
    )
    for short, long, dest, metavar, kind, help_ in patterns:
        flags.add(parser, short, long, dest=dest, metavar=metavar, type=flags.some_text, help=help_, completes=kind)
    flags.add_graph(parser, "graph file, or a folder of them")
    parser.add_argument(
        "--below", metavar="COS", type=flags.cosine,
        help="only ops whose output has a cosine below this in the newest result",
    )  # fmt: skip
    parser.add_argument(
        "--wrong", action="store_true",
        help="only ops with wrong results of their own, according to the newest verdict of `ac -c`",
    )  # fmt: skip
    parser.add_argument(
        "-l", "--limit", metavar="N", type=flags.count(0),
        help=f"how many rows to show, 0 for all (default {_LIMIT} in a terminal, else all)",
    )  # fmt: skip
    flags.add_place(parser)
    flags.add_json(parser, "all rows")


@command(
    "ls",
    "List the ops of the graphs in use, or with `ls dump` the dump files, that fit all of the "
    "patterns. A pattern is a part of the name or, with * ? [ ], a glob; / and _ are the same, and so are small "
    "and capital letters. [17] as a name is the op with this number.",
    _options,
    example="ls -n conv1 -t Conv2D; ls -f '*Relu*' --below 0.98; ls dump -t Cast",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    is_dump = args.what == _DUMP
    judges = args.wrong and not is_dump and session.data.kind().has_graph
    session = judge_place(session, args, output) if judges else session.at(args.step, args.rank)
    has_graph = session.data.kind().has_graph or args.graph is not None
    if args.wrong and not is_dump and has_graph and not newest_verdicts(session.workspace):
        raise DataNotFoundError("cli.ls_no_verdict", folder=session.workspace.root)
    names = [word for word in (None if is_dump else args.what, args.word, args.name) if word is not None]
    if len(names) > 1:
        raise UsageError("cli.ls_names", names=names)
    name = next(iter(names), None)
    return _list_dumps(session, args, name, output) if is_dump else _list_ops(session, args, name, output)


def _list_ops(session: Session, args: argparse.Namespace, name: str | None, output: Output) -> int:
    if not session.data.kind().has_graph and args.graph is None:
        if args.wrong:
            session.data.kind().check_judged("ls: --wrong")
        from precision_tool.lib.cli import pytorch_dumps

        return pytorch_dumps.list_ops(session, args, name, _limit(args, output), output)
    if args.below is not None and not session.cosines():
        raise DataNotFoundError("cli.ls_no_result", folder=session.workspace.root)
    op_filter = OpFilter(
        name=name, op_type=args.type, pass_name=args.fusion, kernel=args.kernel, below=args.below, wrong=args.wrong
    )
    listings = list_ops(
        session.run_graphs(args.graph),
        op_filter,
        session.cosines,
        partial(op_verdicts, session.workspace),
        session.data.scalars,
    )
    lacks = [_lack(session, args, listing.run) for listing in listings]
    session.workspace.notes += [
        Message("error.place", where=where_of([entry.run]), reason=why)
        for entry, why in zip(listings, lacks, strict=True)
        if why
    ]
    if args.wrong:
        session.workspace.notes += _uncomputed(session, [listing.run for listing in listings])
    threshold = session.settings.threshold if args.below is None else args.below
    limit = _limit(args, output)
    listed = zip(listings, lacks, strict=True)
    return show_result(
        session, args, output,
        lambda: report.ops_json(listings, args.limit or 0),
        lambda: spaced(report.op_listing(listing, limit, threshold, why) for listing, why in listed),
    )  # fmt: skip


def _uncomputed(session: Session, runs: Sequence[RunGraph]) -> list[Message]:
    """Return notes on what the newest verdicts blame besides ops: variables, data, random numbers."""
    notes = []
    for verdict in newest_verdicts(session.workspace):
        if not any(run.leaf is not None and verdict.ops_of(run.leaf.path, run.file.path) for run in runs):
            continue
        wrong = {op.name for run in verdict.runs for op in run.ops if op.is_wrong}
        for suspect in verdict.verdict.suspects:
            if suspect.culprit not in wrong:
                notes.append(Message("note.cli.not_own_error", culprit=suspect.culprit, cause=suspect.cause))
    return notes


def _lack(session: Session, args: argparse.Namespace, run: RunGraph) -> str:
    """Return why a run cannot be filtered as requested; "" if it can."""
    if args.wrong and not op_verdicts(session.workspace, run):
        return text("screen.cli.ls_missing.verdict")
    if args.below is not None and not session.cosines(run):
        return text("screen.cli.ls_missing.result")
    return ""


def _list_dumps(session: Session, args: argparse.Namespace, name: str | None, output: Output) -> int:
    op_options = {"-f": args.fusion, "-k": args.kernel, "-g": args.graph, "--below": args.below}
    op_options["--wrong"] = args.wrong or None
    for option, value in op_options.items():
        if value is not None:
            raise UsageError("cli.ls_dump_option", option=option)
    listings, h5_listings = _dumps(session, name, args.type)
    if h5_listings:
        from precision_tool.lib.view.pytorch_screen import listings_json, value_listing

    def document() -> str:
        h5_dumps = listings_json(h5_listings, args.limit or 0, {}) if h5_listings else ()
        return report.dumps_json(listings, args.limit or 0, h5_dumps)

    def blocks() -> Iterable[RenderableType]:
        limit = _limit(args, output)
        parts = [[*report.dump_listing(listing, limit)] for listing in listings]
        return spaced(parts + [[*value_listing(listing, limit)] for listing in h5_listings])

    return show_result(session, args, output, document, blocks)


def _limit(args: argparse.Namespace, output: Output) -> int:
    """Return how many rows to show: all of them to `grep` and files."""
    if args.limit is not None:
        return int(args.limit)
    return _LIMIT if output.out.is_terminal else 0


def _dumps(
    session: Session, name: str | None, op_type: str | None
) -> tuple[tuple[DumpListing, ...], tuple[H5Listing, ...]]:
    """Return the matching dump files and data sets of PyTorch dumps. DataNotFoundError if there are none."""
    session.data.check_data()
    listings: tuple[DumpListing, ...] = ()
    reason: DataNotFoundError | None = None
    try:
        ops: set[str] | None = None
        if name is not None and op_number(name) is not None and session.data.kind().has_graph:
            ops, name = {flatten(hit.op.name) for hit in session.find_ops(name)}, None
        listings = list_dumps(
            session.data.run_folders(), name, op_type, root=shown_path(str(session.workspace.root)), ops=ops
        )
    except DataNotFoundError as error:
        reason = error
    if not any(session.data.pytorch_files()):
        if reason is not None:
            raise reason
        return listings, ()
    from precision_tool.lib.cli import pytorch_dumps

    try:
        return listings, pytorch_dumps.listings(session, name, op_type)
    except DataNotFoundError:
        if reason is None:
            return listings, ()
        if session.data.run_folders():
            raise reason from None
        raise
