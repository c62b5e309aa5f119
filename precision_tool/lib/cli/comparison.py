"""What `vc`, `vcs` and `ac` share: the comparison that their options ask for, and earlier results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.cmd_toolkit import hand_over
from precision_tool.lib.cli.command import Output
from precision_tool.lib.compare.columns import columns_of
from precision_tool.lib.compare.custom_metrics import load_metrics
from precision_tool.lib.compare.folders import DEFAULT_OPTIONS, CompareOptions
from precision_tool.lib.compare.noise import NoiseFloor, find_noise, read_noise
from precision_tool.lib.compare.result_files import TOOLKIT_PREFIX, newer_than
from precision_tool.lib.data.kinds import kind_at
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.diagnose.stored_verdict import newest_verdicts
from precision_tool.lib.io.files import real_path
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.table import ColumnChoice
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport

#: What rows say that native could not read, and that the toolkit is asked for.
UNREADABLE = (Status.UNREADABLE, Status.LAYOUT, Status.NOT_NUMERIC)


def noise_floor_of(session: Session, args: argparse.Namespace) -> NoiseFloor | None:
    """Return the noise floor of --noise-floor; None without it."""
    if args.noise is None:
        return None
    return read_noise(find_noise(args.noise, session.workspace.result_dirs()))


def judge_place(session: Session, args: argparse.Namespace, output: Output) -> Session:
    """Return the session of the step and rank that are asked for; diagnoses them if no verdict on them is stored.

    A study keeps the rows of every dump folder, but the verdicts on single ops of none.
    """
    placed = session.at(args.step, args.rank)
    if placed is not session and not _is_judged(placed):
        with ProgressReport(output.err, "recomputing") as progress:
            placed.diagnose(resources=replace(placed.resources(), progress=progress))
    return placed


def _is_judged(session: Session) -> bool:
    """Return whether the newest verdicts are on dump folders of this session alone."""
    own = {real_path(leaf.path) for folder in session.data.run_folders() if folder.run for leaf in folder.run.leaves}
    verdicts = newest_verdicts(session.workspace)
    return bool(verdicts) and all(real_path(run.npu) in own for verdict in verdicts for run in verdict.runs)


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


def compare_sides(
    session: Session, args: argparse.Namespace, output: Output, options: CompareOptions = DEFAULT_OPTIONS
) -> list[Analysis]:
    """Compare the two sides that were asked for, by the engine that was asked for."""
    from precision_tool.lib.diagnose.comparing import compare, compare_by_toolkit, fusion_pair

    left, right = args.left, args.right
    if options.other_graph is not None and left is None and right is None:
        pair = fusion_pair(session.data)
        session.workspace.notes += pair.notes
        left, right = (str(session.workspace.dump_dir(run.number or 0)) for run in (pair.fused, pair.unfused))

    options = replace(options, graph=args.graph, threshold=args.threshold, noise=noise_floor_of(session, args))

    def by_toolkit(prefix: str = "") -> list[Analysis]:
        return compare_by_toolkit(session.data, session.tools(), left, right, replace(options, prefix=prefix))

    engine = flags.engine_of(session, args)
    if engine == "cann":
        return by_toolkit()
    try:
        with flags.cluster_of(args) as executor, ProgressReport(output.err, "comparing") as progress:
            analyses = compare(
                session.data, left, right, options, flags.resources_of(session, args, executor, progress)
            )
    except FormatError as error:
        has_graph = kind_at(left or session.data.default_npu()).has_graph  # else msaccucmp is not asked
        if engine != "auto" or not has_graph or session.toolkit().msaccucmp is None:
            raise
        session.workspace.notes.append(Message("note.cli.toolkit_compares", reason=error.full_message))
        return by_toolkit()
    if engine == "auto":
        _compare_unread(session, analyses, by_toolkit)
    return analyses


def _compare_unread(
    session: Session, analyses: Sequence[Analysis], by_toolkit: Callable[[str], Sequence[Analysis]]
) -> None:
    """With `--engine auto`, let the toolkit compare what native could not read, into a result file of its own.

    `by_toolkit` has it compare all of it, into a file whose name begins as it is told.
    """
    unread = [row for analysis in analyses if analysis.has_graph for row in analysis.rows if row.status in UNREADABLE]
    if not unread:
        return
    count = Message("screen.cli.native_failed.tensors", count=len(unread))

    def compare() -> Message:
        made = by_toolkit(TOOLKIT_PREFIX)
        tensors = {row.tensor_index for row in unread}
        rows = [row for analysis in made for row in analysis.rows if row.tensor_index in tensors]
        compared = sum(row.cosine is not None for row in rows)
        paths = ", ".join(shown_path(analysis.path) for analysis in made)
        return Message("note.cli.toolkit_compared", count=count, compared=compared, paths=paths)

    hand_over(session, count, compare)
