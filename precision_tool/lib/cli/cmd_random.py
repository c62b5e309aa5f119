"""`random`: what computes differently in two runs of the same script, and whose memory was overwritten."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import isfinite

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, FOUND, Output, Parser, collect_again, command, tell_notes
from precision_tool.lib.compare.noise import FOLDER, Noise, noise_path, write_noise
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.checked_ops import recompute_random
from precision_tool.lib.diagnose.random_errors import RandomReport, State
from precision_tool.lib.session import Session
from precision_tool.lib.view import random_screen as report
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.findings import passport_lines
from precision_tool.lib.view.tables import Heading
from precision_tool.lib.view.text import plain


def _options(parser: Parser, session: Session) -> None:
    flags.add_side(parser, session, "-lt", "--left", "dump of one run (default: npu/debug_0/dump)")
    flags.add_side(parser, session, "-rt", "--right", "the other's (default: npu/debug_1/dump)")
    flags.add_graph(parser)
    flags.add_limit(parser, session.settings.limit)
    flags.add_workers(parser, session.settings.workers)
    flags.add_place(parser)
    flags.add_json(parser)
    parser.add_argument(
        "--fail", action="store_true",
        help="exit code 1 if an op differs, memory was overwritten, or the two runs have different ops",
    )  # fmt: skip


@command(
    "random",
    "Compare two NPU runs of the same script (npu/debug_0 and npu/debug_1) bit by bit, and with "
    "metrics where bits differ: names the first op that computes differently from the same inputs, tells it from "
    "ops that are made to be random and from followers, and finds inputs whose memory was overwritten. Of one run "
    "alone only the memory is checked. Writes the noise floor of the two runs for vc --noise-floor.",
    _options,
    example="random -l 5",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.left is None:
        session = session.at(args.step, args.rank)
    with ProgressReport(output.err, "comparing") as progress:
        reports = session.random_errors(
            args.left, args.right, args.graph, flags.resources_of(session, args, progress=progress)
        )
    reports = recompute_random(session.data, reports, args.graph)
    limit = args.limit or max((len(item.ops) + len(item.stomps) for item in reports), default=0)
    noise = _write_noise(session, reports)
    space = session.workspace
    passports = session.passports(args.left or str(space.dump_dir(0)), args.right or str(space.dump_dir(1)))
    tell_notes(session, output)
    if args.json:
        output.write_json(report.to_json(reports, noise, passports))
    else:
        if passports is not None and passports.differences:
            output.out.print(passport_lines(passports))
        for item in reports:
            title = [Heading(plain(shown_path(item.left)))] if len(reports) > 1 else []
            output.show(*title, *report.random_lines(item, limit))
        if noise:
            output.out.print(report.noise_line(noise), soft_wrap=True)
        output.out.print(report.conclusion_box(reports))
        if any(item.first is not None or item.stomps for item in reports):
            output.out.print(collect_again(session, output))
    return FOUND if args.fail and not all(item.is_clean and not item.unreadable for item in reports) else DONE


def _write_noise(session: Session, reports: Sequence[RandomReport]) -> str:
    """Write the noise floor of two runs, with all their devices and steps, and return its path; "" without a pair.

    What differs in runs of two graphs is no noise, and would hide errors.
    """
    pairs = [item for item in reports if item.is_pair]
    if not pairs:
        return ""
    path = noise_path(session.workspace.output_dir(FOLDER), f"{datetime.now():%Y%m%d%H%M%S}")
    write_noise(path, (row for item in pairs for row in _noise(item)))
    return path


def _noise(report_: RandomReport) -> Iterator[Noise]:
    for op in report_.ops:
        for slot in op.slots:
            if slot.state in (State.EQUAL, State.SAME_VALUES):
                yield Noise(op_name=op.name, slot=slot.slot, distance=0.0)
            elif slot.metrics is not None and isfinite(slot.metrics.relative_euclidean_distance):
                yield Noise(
                    op_name=op.name,
                    slot=slot.slot,
                    distance=slot.metrics.relative_euclidean_distance,
                    max_absolute_error=slot.metrics.max_absolute_error,
                    cosine=slot.metrics.cosine,
                )
