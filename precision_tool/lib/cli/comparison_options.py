"""The options that `vc`, `vcs` and `ac` share, and what they ask for."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli.cmd_toolkit import add_engine
from precision_tool.lib.cli.command import (
    Completion,
    Options,
    Parser,
    add_cluster,
    add_graph,
    add_json,
    add_side,
    add_workers,
    completes,
    cosine,
    count,
)
from precision_tool.lib.compare.columns import columns_of
from precision_tool.lib.compare.custom_metrics import load_metrics
from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.compare.noise import NoiseFloor, find_noise, read_noise
from precision_tool.lib.compare.result_files import newer_than
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.messages import Message
from precision_tool.lib.model.table import ColumnChoice
from precision_tool.lib.session import Session


def add_common(parser: Parser, session: Session) -> None:
    settings = session.settings
    parser.add_argument(
        *(["-c", "--cos_sim"] if parser.prog != "ac" else []),  # in ac, -c means compare
        "--threshold",
        dest="threshold",
        metavar="COS",
        type=cosine,
        default=settings.threshold,
        help="cosine similarity below which a tensor counts as wrong (default %(default)s)",
    )
    parser.add_argument(
        "-l", "--limit", dest="limit", metavar="N", type=count(0), default=settings.limit,
        help="how many ops to show, 0 for all (default %(default)s)",
    )  # fmt: skip
    add_json(parser)
    parser.set_defaults(verbose=False)
    parser.add_argument("--fail", action="store_true", help="exit code 1 if anything is below the threshold")
    noise = parser.add_argument(
        "--noise-floor",
        dest="noise",
        metavar="FILE",
        nargs="?",
        const="",
        help="judge each tensor also against its own noise in two runs of the same script: a file that `random` wrote, "
        "or a folder of them (default: the newest)",
    )
    completes(noise, Completion.FILE)


def add_sides(parser: Options, session: Session) -> None:
    add_side(parser, session, "-lt", "--left", "NPU dump: a folder of any level of the dump tree, or debug_1")
    add_side(parser, session, "-rt", "--right", "benchmark .npy files, or the dump of another NPU run")
    add_graph(parser)
    add_workers(parser, None)
    add_cluster(parser)
    add_engine(parser, session)


def add_measures(parser: Options) -> None:
    parser.add_argument(
        "-overflow_detection",
        "--overflow_detection",
        dest="overflow",
        action="store_true",
        help="look for float16 values of 65504 or more: column OverFlow",
    )
    custom = parser.add_argument(
        "--custom",
        metavar="FILE.py",
        help="your own metrics: the file is run, and its functions compare_*(x, y), or those that its list METRICS "
        "names, become columns. x is the NPU tensor, y the benchmark's, whole in memory (at most 4 GiB a pair and "
        "worker); they return a number or a short text",
    )
    completes(custom, Completion.FILE)


def noise_floor_of(session: Session, args: argparse.Namespace) -> NoiseFloor | None:
    """Return the noise floor of --noise-floor; None without it."""
    if args.noise is None:
        return None
    return read_noise(find_noise(args.noise, session.workspace.result_dirs()))


def measure_options(args: argparse.Namespace) -> CompareOptions:
    """Return the options that `vc` and `ac` share."""
    taken = [column.name for column in columns_of(ColumnChoice(sequence=True, overflow=True, golden_address=True))]
    custom = load_metrics(args.custom, taken) if args.custom else None
    return CompareOptions(overflow=args.overflow, custom=custom)


def read_results(
    session: Session, path: str | None, threshold: float, again: str, noise: NoiseFloor | None
) -> list[Analysis]:
    """Read earlier results, with a note where their sources have changed since; `again` compares them."""
    from precision_tool.lib.diagnose.comparing import read_results as read

    analyses = read(session.data, path, threshold, noise)
    sources = [(analysis.path, analysis.source) for analysis in analyses if analysis.source is not None]
    changed = dict.fromkeys(source_path for result, source in sources for source_path in newer_than(result, source))
    session.workspace.notes += [
        Message("note.cli.newer_than_result", path=source_path, command=again) for source_path in changed
    ]
    return analyses
