"""`whatif`: what is left of the deviation with an op mended."""

from __future__ import annotations

import argparse
import posixpath
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, tell_notes
from precision_tool.lib.diagnose.whatif import SECONDS, Replay, WhatIf, replay_of_ops
from precision_tool.lib.io.files import folder_exists
from precision_tool.lib.model.graph import Op
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.whatif_screen import whatif_block, whatif_json


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "names", nargs="+", metavar="OP", completes="op",
        help="the op, as for `ni`, data or a variable; several are mended one after the other, and together. A folder "
        "behind them is the data folder",
    )  # fmt: skip
    flags.add_graph(parser, "graph file, or folder of them, to look in")
    flags.add_place(parser)
    flags.add_json(parser)


@command(
    "whatif",
    "Put the right value of an op in its place, recompute everything behind it with the rounding of the recorded "
    "types, and show how much of the deviation from the benchmark goes away: in the loss, in the final outputs, and in "
    "the lowest cosine. An op that is not at fault changes nothing.",
    _options,
    example="whatif conv2/Relu",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    names = list(args.names)
    folder = posixpath.expanduser(names[-1])
    if len(names) > 1 and folder_exists(folder):
        names.pop()
        session = Session(replace(session.settings, data=Path(folder), more_data=()))
    session = session.at(args.step, args.rank)
    replay, ops = replay_of_ops(session.data, names, args.graph)
    tell_notes(session, output)
    alone: list[WhatIf] = []
    for op in ops:
        alone.append(_without(replay, [op], output))
        if not args.json:
            output.out.print(whatif_block(alone[-1]), crop=False)
    together = _without(replay, ops, output) if len(ops) > 1 else None
    if args.json:
        output.write_json(whatif_json(alone, together))
    elif together is not None:
        output.out.print(whatif_block(together), crop=False)
    return DONE


def _without(replay: Replay, ops: Sequence[Op], output: Output) -> WhatIf:
    with ProgressReport(output.err, "recomputing") as progress:
        return replay.without(ops, deadline=time.monotonic() + SECONDS, progress=progress.counting("ops"))
