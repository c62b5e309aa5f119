"""`fusion blame`: which pass computes wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from precision_tool.lib.cli.cmd_fusion_switches import edit, files_asked_for, sections_of, seen_passes
from precision_tool.lib.cli.command import (
    DONE,
    FOUND,
    Output,
    collect_again,
    resources_of,
    show_note,
    spaced,
    tell_notes,
)
from precision_tool.lib.cli.switch_files import script_lines
from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.compare.result_files import BLAME_PREFIX
from precision_tool.lib.data.dump_tree import nothing_below
from precision_tool.lib.data.fusion_pair import Fusion
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.comparing import compare, fusion_pair
from precision_tool.lib.diagnose.fusion_blame import Blame, BlameVerdict, blame_compared
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.io.files import is_folder, list_folder
from precision_tool.lib.io.fusion_passes import Switches
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.run import Run
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen as report
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.text import plain


@dataclass(frozen=True, kw_only=True)
class _Blamed:
    """The passes of one compared leaf, the result file, and the sources as JSON has them."""

    blame: Blame
    path: str
    sources: dict[str, object]


def blame(session: Session, args: argparse.Namespace, output: Output) -> int:
    left, right, options = _sides(session, args)
    options = replace(options, graph=args.graph, threshold=args.threshold, prefix=BLAME_PREFIX)
    with ProgressReport(output.err, "comparing") as progress:
        analyses = compare(session.data, left, right, options, resources_of(session, args, progress=progress))
    results = _blame_leaves(session, analyses, output)
    tell_notes(session, output)
    off = tuple(dict.fromkeys(name for result in results for name in result.blame.switch_off))
    if args.json:
        documents = [report.blame_json(result.blame, result.sources) for result in results]
        output.out.file.write("[" + ",\n".join(documents) + "]\n")
    else:
        for result in results:
            output.out.print(report.blame_sources(result.sources))
            output.show(*spaced([*report.blame_lines(result.blame, args.limit)]))
            line = text("screen.cli.result_file", path=shown_path(result.path))
            output.out.print(plain(line, "dim"), soft_wrap=True)
    if args.write:
        write_off(session, args, output, off)
    elif off and not args.json:
        output.out.print(plain(text("screen.cli.blame_next"), "dim"))
    verdicts = {pass_result.verdict for result in results for pass_result in result.blame.passes}
    is_clean = verdicts.isdisjoint((BlameVerdict.GUILTY, BlameVerdict.SUSPICIOUS))
    is_judged = any(result.blame.is_judged for result in results)
    return FOUND if args.fail and not (is_clean and is_judged) else DONE


def _blame_leaves(session: Session, analyses: Sequence[Analysis], output: Output) -> list[_Blamed]:
    """Recompute the fused ops of each compared leaf. Raises the error of the first where none can be checked."""
    results: list[_Blamed] = []
    problems: list[PrecisionToolError] = []
    for analysis in analyses:
        leaf = analysis.leaf
        if leaf is None or not analysis.rows:
            continue
        session.workspace.notes += leaf.notes
        try:
            with ProgressReport(output.err, "recomputing") as progress:
                result = blame_compared(analysis, progress)
        except UsageError as error:
            problems.append(error)
            continue
        sources: dict[str, object] = {
            "fused": leaf.leaf.path,
            "other": leaf.golden_root,
            "graph": leaf.graph.file.path if leaf.graph else None,
            "other_graph": leaf.other_graph.file.path if leaf.other_graph else None,
            "result": analysis.path,
        }
        results.append(_Blamed(blame=result, path=analysis.path, sources=sources))
    if not results:
        raise problems[0] if problems else DataNotFoundError("cli.nothing_to_blame")
    session.workspace.notes += [error.message for error in problems]
    return results


def _sides(session: Session, args: argparse.Namespace) -> tuple[str, str, CompareOptions]:
    """Return the run with fusion, the dump to compare it with, and the options for that."""
    pair_options = CompareOptions(other_graph=args.other_graph or "")
    workspace = session.workspace
    if args.left is not None or args.right is not None:
        if args.left is None or args.right is None:
            raise UsageError("cli.blame_one_folder")
        is_dump = isinstance(session.data.inputs(args.left, args.right).golden, Run)
        return args.left, args.right, pair_options if is_dump else CompareOptions()
    has_benchmark = is_folder(workspace.tf_dump_dir) and bool(list_folder(str(workspace.tf_dump_dir)))
    if args.benchmark:
        if not has_benchmark:
            raise DataNotFoundError("cli.no_benchmark_tensor", folder=workspace.tf_dump_dir)
        return _benchmark_sides(session)
    try:
        pair = fusion_pair(session.data)
    except PrecisionToolError as error:
        if not has_benchmark or args.other_graph is not None:
            raise
        sides = _benchmark_sides(session)
        workspace.notes.append(text("note.cli.benchmark_instead", reason=error.message))
        return sides
    workspace.notes += pair.notes
    fused, unfused = pair.fused.number or 0, pair.unfused.number or 0
    return str(workspace.dump_dir(fused)), str(workspace.dump_dir(unfused)), pair_options


def _benchmark_sides(session: Session) -> tuple[str, str, CompareOptions]:
    """Return the run with most fused ops, and the benchmark."""
    workspace = session.workspace
    runs = [run for run in session.run_graphs() if run.leaf is not None]
    if not runs:
        nothing = DataNotFoundError("cli.no_run_with_graph")
        raise nothing_below(nothing, *(str(workspace.dump_dir(number)) for number in workspace.debug_numbers()))
    best = max(runs, key=lambda run: sum(bool(op.pass_names) for op in run.file.ops))
    missing = session.data.graph_reasons()
    if missing and not Fusion(best.file).switchable:
        # The run without fusion would pass for the one with it, and come out clean.
        raise DataNotFoundError("cli.fused_run_without_graph", reasons=list(missing))
    return str(workspace.dump_dir(best.number or 0)), str(workspace.tf_dump_dir), CompareOptions()


def write_off(session: Session, args: argparse.Namespace, output: Output, off: Sequence[str]) -> None:
    """Switch passes off in the switch file and print how a script uses it."""
    console = output.err if args.json else output.out
    if not off:
        console.print(plain(text("screen.cli.nothing_to_write")), soft_wrap=True)
        return
    (file,) = files_asked_for(session, args)
    sections = sections_of(seen_passes(session))

    def change(switches: Switches) -> Switches:
        for name in off:
            switches = switches.with_pass(name, False, sections.get(name))
        return switches

    _, _, path = edit(session, file, change)
    if file.note:
        show_note(output, file.note)
    console.print(plain(text("screen.cli.switched_off", path=shown_path(path), names=off)), soft_wrap=True)
    console.print(report.script_block(script_lines(file)))
    if not args.json:
        console.print(collect_again(session, output))
