"""`fusion blame`: which pass computes wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.cli.cmd_fusion_switches import edit, files_asked_for, sections_of, seen_passes
from precision_tool.lib.cli.command import DONE, FOUND, Output, collect_again, resources_of, spaced, tell_notes
from precision_tool.lib.cli.switch_files import script_lines
from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.compare.result_files import BLAME_PREFIX
from precision_tool.lib.data.dump_tree import nothing_below
from precision_tool.lib.data.fusion_pair import Fusion
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.comparing import compare, fusion_pair
from precision_tool.lib.diagnose.fusion_blame import Blame, BlameVerdict, blame_compared
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.io.files import is_folder, list_folder
from precision_tool.lib.io.fusion_switch import Switches
from precision_tool.lib.model.run import Run
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen as report
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.text import plain


def blame(session: Session, args: argparse.Namespace, output: Output) -> int:
    left, right, options = _sides(session, args)
    options = replace(options, graph=args.graph, threshold=args.threshold, prefix=BLAME_PREFIX)
    with ProgressReport(output.err, "comparing") as progress:
        analyses = compare(session.data, left, right, options, resources_of(session, args, progress=progress))
    found: list[tuple[Blame, str, dict[str, object]]] = []
    problems: list[PrecisionToolError] = []
    for analysis in analyses:
        if analysis.leaf is None or not analysis.rows:
            continue
        session.workspace.notes += analysis.leaf.notes
        try:
            with ProgressReport(output.err, "recomputing") as progress:
                result = blame_compared(analysis, progress)
        except UsageError as error:
            problems.append(error)
            continue
        leaf = analysis.leaf
        sources: dict[str, object] = {
            "fused": leaf.leaf.path,
            "other": leaf.golden_root,
            "graph": leaf.graph.file.path if leaf.graph else None,
            "other_graph": leaf.other_graph.file.path if leaf.other_graph else None,
            "result": analysis.path,
        }
        found.append((result, analysis.path, sources))
    if not found:
        raise problems[0] if problems else DataNotFoundError("nothing could be compared", "`vc` says why")
    session.workspace.notes += [error.message for error in problems]
    tell_notes(session, output)
    off = tuple(dict.fromkeys(name for result, _, _ in found for name in result.switch_off))
    if args.json:
        documents = [report.blame_json(result, sources) for result, _, sources in found]
        output.out.file.write("[" + ",\n".join(documents) + "]\n")
    else:
        for result, path, sources in found:
            output.out.print(report.blame_sources(sources))
            output.show(*spaced([*report.blame_lines(result, args.limit)]))
            output.out.print(plain(f"result file: {shown_path(path)}", "dim"), soft_wrap=True)
    if args.write:
        write_off(session, args, output, off)
    elif off and not args.json:
        output.out.print(plain("`fusion blame --write` does it; `fusion off PASS` as well", "dim"))
    not_clean = any(
        one.verdict in (BlameVerdict.GUILTY, BlameVerdict.SUSPICIOUS) for result, _, _ in found for one in result.passes
    )
    judged = any(result.is_judged for result, _, _ in found)
    return FOUND if args.fail and (not_clean or not judged) else DONE


def _sides(session: Session, args: argparse.Namespace) -> tuple[str, str, CompareOptions]:
    """The run with fusion, what it is compared with, and how."""
    pair_options = CompareOptions(other_graph=args.other_graph or "")
    workspace = session.workspace
    if args.left is not None or args.right is not None:
        if args.left is None or args.right is None:
            raise UsageError("fusion blame: one folder is named", "name both, with -lt and -rt, or none")
        is_dump = isinstance(session.data.inputs(args.left, args.right).golden, Run)
        return args.left, args.right, pair_options if is_dump else CompareOptions()
    has_benchmark = is_folder(workspace.tf_dump_dir) and bool(list_folder(str(workspace.tf_dump_dir)))
    why_benchmark: list[str] = []
    if not args.benchmark:
        try:
            pair = fusion_pair(session.data)
        except PrecisionToolError as error:
            if not has_benchmark or args.other_graph is not None:
                raise
            why_benchmark = [f"{error.message}, so that the benchmark is what it is compared with"]
        else:
            workspace.notes += pair.notes
            fused, unfused = pair.fused.number or 0, pair.unfused.number or 0
            return str(workspace.dump_dir(fused)), str(workspace.dump_dir(unfused)), pair_options
    elif not has_benchmark:
        raise DataNotFoundError(
            f"{workspace.tf_dump_dir}: no benchmark tensor", "collect them, or leave --benchmark out"
        )
    runs = [run for run in session.run_graphs() if run.leaf is not None]
    if not runs:
        nothing = DataNotFoundError("no run has both a dump and a graph", "`graphs` and `ls dump` show what there is")
        raise nothing_below(nothing, *(str(workspace.dump_dir(number)) for number in workspace.debug_numbers()))
    best = max(runs, key=lambda run: sum(bool(op.pass_names) for op in run.file.ops))
    missing = session.data.graph_reasons()
    if missing and not Fusion(best.file).switchable:
        # The run without fusion would pass for the one with it, and come out clean.
        raise DataNotFoundError(
            f"the run with fusion is not among those whose graphs can be used: {'; '.join(missing)}",
            "copy that graph again, or name the run with -lt, -rt and -g",
        )
    workspace.notes += why_benchmark
    return str(workspace.dump_dir(best.number or 0)), str(workspace.tf_dump_dir), CompareOptions()


def write_off(session: Session, args: argparse.Namespace, output: Output, off: Sequence[str]) -> None:
    """Switches passes off in the switch file and prints how a script uses it."""
    console = output.err if args.json else output.out
    if not off:
        console.print(plain("nothing to write: no pass to be switched off was found"), soft_wrap=True)
        return
    (file,) = files_asked_for(session, args)
    sections = sections_of(seen_passes(session))

    def change(switches: Switches) -> Switches:
        for name in off:
            switches = switches.with_pass(name, False, sections.get(name))
        return switches

    _, _, path = edit(session, file, change)
    if file.note:
        output.err.print(plain(f"note: {file.note}", "yellow"), soft_wrap=True)
    console.print(plain(f"switched off in {shown_path(path)}: {', '.join(off)}"), soft_wrap=True)
    console.print(report.script_block(script_lines(file)))
    if not args.json:
        console.print(collect_again(session, output))
