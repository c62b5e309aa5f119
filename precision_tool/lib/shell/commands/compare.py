"""`vc` and `vcs`: compare two sides, or read what was compared, and list the ops below the threshold."""

from __future__ import annotations

import argparse
from dataclasses import replace

from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.compare.folders import DEFAULT_OPTIONS, CompareOptions
from precision_tool.lib.compare.result_source import newer_than
from precision_tool.lib.errors import FormatError
from precision_tool.lib.io.local import shared_open_files
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.results.noise import NoiseFloor
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import Command, Output, cluster_of, resources_of
from precision_tool.lib.shell.commands.compare_options import compare_options, noise_floor_of
from precision_tool.lib.shell.commands.compare_parsers import vc_parser, vcs_parser
from precision_tool.lib.shell.commands.compare_screen import finish, finish_mapping
from precision_tool.lib.shell.commands.toolkit import ask_toolkit, engine_of
from precision_tool.lib.sources.kinds import kind_at


def compare_sides(
    session: Session, args: argparse.Namespace, output: Output, options: CompareOptions = DEFAULT_OPTIONS
) -> list[Analysis]:
    """Compare the two sides that were asked for, by the engine that was asked for."""
    from precision_tool.lib.checks.comparing import compare, compare_by_toolkit, fusion_pair

    left, right = args.left, args.right
    if options.other_graph is not None and left is None and right is None:
        pair = fusion_pair(session.data)
        session.workspace.notes += pair.notes
        left, right = (str(session.workspace.dump_dir(run.number or 0)) for run in (pair.fused, pair.unfused))

    options = replace(options, graph=args.graph, threshold=args.threshold, noise=noise_floor_of(session, args))

    def by_toolkit(prefix: str = "") -> list[Analysis]:
        return compare_by_toolkit(session.data, session.tools(), left, right, replace(options, prefix=prefix))

    engine = engine_of(session, args)
    if engine == "cann":
        return by_toolkit()
    try:
        with cluster_of(args) as executor, ProgressReport(output.err, "comparing") as progress:
            analyses = compare(session.data, left, right, options, resources_of(session, args, executor, progress))
    except FormatError as error:
        has_graph = kind_at(left or session.data.default_npu()).has_graph  # else msaccucmp is not asked
        if engine != "auto" or not has_graph or session.toolkit().msaccucmp is None:
            raise
        session.workspace.notes.append(f"native cannot read it, so the toolkit compares: {error.message}")
        return by_toolkit()
    if engine == "auto":
        ask_toolkit(session, analyses, by_toolkit)
    return analyses


@shared_open_files()
def _run_vc(session: Session, args: argparse.Namespace, output: Output) -> int:
    options = compare_options(args)
    analyses = compare_sides(session, args, output, options)
    if options.pairs_only:
        return finish_mapping(session, args, output, analyses)
    return finish(session, args, output, analyses, is_whole=options.selection is None)


def read_results(
    session: Session, path: str | None, threshold: float, again: str, noise: NoiseFloor | None
) -> list[Analysis]:
    """Earlier results, with a note where what was compared has changed since; `again` compares it."""
    from precision_tool.lib.checks.comparing import read_results as read

    analyses = read(session.data, path, threshold, noise)
    sources = [(analysis.path, analysis.source) for analysis in analyses if analysis.source is not None]
    changed = dict.fromkeys(one for result, source in sources for one in newer_than(result, source))
    session.workspace.notes += [f"{one} is newer than this result: `{again}` compares anew" for one in changed]
    return analyses


def _run_vcs(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.file is None and session.at(args.step, args.rank) is not session:
        from precision_tool.lib.study.places import study_rows

        return finish(session, args, output, study_rows(session.workspace, session.place()[0], args.threshold))
    noise = noise_floor_of(session, args)
    return finish(session, args, output, read_results(session, args.file, args.threshold, "vc", noise))


VC = Command(vc_parser, _run_vc)
VCS = Command(vcs_parser, _run_vcs)
