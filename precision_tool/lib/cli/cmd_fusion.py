"""`fusion`: the passes in effect, the switch files, the pass that computes wrong."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.bisect_runner import (
    BisectRun,
    check_edit,
    conduct,
    edit_alone,
    is_bisected,
    searched_so_far,
)
from precision_tool.lib.cli.command import (
    DONE,
    FOUND,
    Output,
    Parser,
    collect_again,
    command,
    show_note,
    show_result,
    spaced,
    tell_notes,
)
from precision_tool.lib.cli.switch_files import LAST, SwitchFile, find_switch_file, script_lines
from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.compare.result_files import BLAME_PREFIX
from precision_tool.lib.data.dump_tree import nothing_below
from precision_tool.lib.data.fusion_pair import Fusion
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.bisect import Outcome, Search
from precision_tool.lib.diagnose.comparing import compare, fusion_pair
from precision_tool.lib.diagnose.fusion_blame import Blame, BlameVerdict, blame_compared
from precision_tool.lib.diagnose.run_checks import Analysis, fusion_graphs
from precision_tool.lib.io.files import exists, is_folder, list_folder, real_path
from precision_tool.lib.io.fusion_passes import (
    ALL,
    ALWAYS_ON_REASON,
    ON_BY_NAME,
    SECTIONS,
    Switches,
    is_switchable,
    read_switches,
    text_to_write,
)
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.messages.help_texts import help_text
from precision_tool.lib.model.run import Run
from precision_tool.lib.session import Session
from precision_tool.lib.training.switches import FILE_VARIABLE
from precision_tool.lib.view import fusion_screen as report
from precision_tool.lib.view.bisect_screen import bisect_lines, fusion_bisect_json
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.text import json_text, plain

if TYPE_CHECKING:  # as in command.py
    from precision_tool.lib.view.verdict_screen import NextSteps


def _options(parser: Parser, session: Session) -> None:
    settings = session.settings
    parser.add_argument(
        "action", nargs="?", choices=tuple(_WORDS), default="list", metavar="WORD",
        help="list (the default), show, off, on, all-off, reset, blame or bisect",
    )  # fmt: skip
    flags.add(
        parser, "passes", nargs="*", metavar="PASS", help="with off, on and bisect: names of passes", completes="pass"
    )
    files = parser.add_mutually_exclusive_group()
    flags.add(
        files, "--file", metavar="FILE", completes="file",
        help="another switch file than the fusion_switch.cfg of the data folder",
    )  # fmt: skip
    files.add_argument("--off-file", action="store_true", help="the fusion_off.cfg of the data folder")
    parser.add_argument(
        "--installed", action="store_true", help="the installed file, which all users and data folders share"
    )
    parser.add_argument(
        "--section", choices=SECTIONS, help="with off and on: the section of a pass that the data does not contain"
    )
    parser.add_argument(
        "--force", action="store_true", help="with off, on and bisect: take names that the data does not have"
    )
    _add_blame(parser, session)
    _add_bisect(parser)
    parser.add_argument(
        "-l", "--limit", metavar="N", type=flags.count(1),
        help=help_text("with blame: how many ops of a pass to show (default {limit})", limit=settings.limit),
    )  # fmt: skip
    flags.add_json(parser)


def _add_blame(parser: Parser, session: Session) -> None:
    sides: tuple[tuple[str, str, str, str, flags.Completion], ...] = (
        ("-lt", "left", "DIR", "with blame: the dump of the run with fusion", "folder"),
        ("-rt", "right", "DIR", "with blame: the dump without fusion, or benchmark .npy files", "folder"),
        ("-g", "graph", "GRAPH", "with blame: the graph of the run with fusion", "graph"),
        ("-cf", "other_graph", "GRAPH", "with blame: the graph of the run without fusion", "graph"),
    )
    for option, dest, metavar, what, kind in sides:
        flags.add(parser, option, dest=dest, metavar=metavar, type=session.workspace.named, help=what, completes=kind)
    parser.add_argument(
        "--benchmark", action="store_true",
        help="with blame: compare with tf/dump even if there is a run without fusion",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", metavar="COS", type=flags.cosine,
        help=help_text(
            "with blame: cosine similarity below which a tensor counts as wrong (default {threshold})",
            threshold=session.settings.threshold,
        ),
    )  # fmt: skip
    flags.add_workers(parser, None, "with blame: processes that share the work (default 0: one per core)")
    parser.add_argument(
        "--write", action="store_true", help="with blame and bisect: switch off what was found in the switch file"
    )
    parser.add_argument(
        "--fail", action="store_true", help="with blame: exit code 1 if a pass is not clean, or nothing could be judged"
    )


def _add_bisect(parser: Parser) -> None:
    parser.add_argument(
        "--check", metavar="CMD",
        help="with bisect: the command that succeeds (exit code 0) without the fault; the switch file of the try is "
        f"the one of the data folder, or --file; its path is in ${FILE_VARIABLE} of its environment",
    )  # fmt: skip
    flags.add(
        parser, "--passes", dest="more_passes", nargs="+", metavar="PASS", default=(), completes="pass",
            help="with bisect: search these passes only (default: all that the data names)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=flags.count(1), help="with bisect: a try that takes longer fails"
    )
    parser.add_argument(
        "--repeat", metavar="N", type=flags.count(1),
        help="with bisect: run each try N times and stop if the answers differ (default 1)",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="with bisect: do not use the tries of an earlier attempt")


#: The options that only some of the words take: where the value is, and which words.
_GOES_WITH = {
    "--file": ("file", ("show", "off", "on", "all-off", "reset", "blame", "bisect")),
    "--installed": ("installed", ("show", "off", "on", "all-off", "reset")),
    "--off-file": ("off_file", ("show", "off", "on", "all-off", "reset")),
    "--section": ("section", ("off", "on")),
    "--force": ("force", ("off", "on", "bisect")),
    "-lt": ("left", ("blame",)),
    "-rt": ("right", ("blame",)),
    "-g": ("graph", ("blame", "list")),
    "-cf": ("other_graph", ("blame",)),
    "--benchmark": ("benchmark", ("blame",)),
    "--threshold": ("threshold", ("blame",)),
    "--workers": ("workers", ("blame",)),
    "-l": ("limit", ("blame",)),
    "--write": ("write", ("blame", "bisect")),
    "--fail": ("fail", ("blame",)),
    "--check": ("check", ("bisect",)),
    "--passes": ("more_passes", ("bisect",)),
    "--timeout": ("timeout", ("bisect",)),
    "--repeat": ("repeat", ("bisect",)),
    "--fresh": ("fresh", ("bisect",)),
    "PASS": ("passes", ("off", "on", "bisect")),
}


@command(
    "fusion",
    "Without a word: the fusion passes in effect. show: the switch files that the training helper "
    "points to, those of the data folder, or the installed ones where it has none. off, on PASS: switches passes; "
    "all-off: all of them; reset: as installed. blame: which pass computes incorrectly, from a run with fusion and one "
    "without, or from one with fusion and the benchmark. bisect: which passes must be off for a command of yours "
    "to succeed (exit code 1 if that does not help).",
    _options,
    example="fusion blame --benchmark; fusion off SoftmaxFusionPass --file my.cfg",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    for option, (dest, actions) in _GOES_WITH.items():
        value = getattr(args, dest)
        is_set = bool(value) or (value == 0 and value is not False)
        if is_set and args.action not in actions:
            what = args.passes[0] if option == "PASS" else option
            raise UsageError("cli.fusion_option", action=args.action, option=what, actions=actions)
    args.threshold = session.settings.threshold if args.threshold is None else args.threshold
    args.limit = args.limit or session.settings.limit
    args.repeat = args.repeat or 1
    return _WORDS[args.action](session, args, output)


def _list(session: Session, args: argparse.Namespace, output: Output) -> int:
    switches: Switches | None = None
    try:
        file = find_switch_file(session.workspace)
        _note_bisected(session, [file])
        switches = file.read()
    except PrecisionToolError as error:
        session.workspace.notes.append(error.full_message)
    session.data.check_data()
    graphs = fusion_graphs(session.data, args.graph, switches)
    return show_result(
        session, args, output,
        lambda: report.passes_json(graphs),
        lambda: spaced(report.passes_lines(graphs, session.settings.threshold)),
    )  # fmt: skip


# --- fusion show, off, on, all-off, reset -----------------------------------------------------------------------------


#: Where bisections keep their state, below the results.
_BISECT_FOLDER = "fusion_bisect"


def _seen_passes(session: Session) -> dict[str, str | None]:
    """Return the passes that the data names, with their sections where known; {} without data."""
    try:
        graphs = fusion_graphs(session.data)
    except PrecisionToolError:
        return {}
    return {row.name: row.section for graph in graphs for row in graph.rows}


def _sections_of(data_passes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the sections of passes that the data, or GE's own file, names."""
    return {**ON_BY_NAME, **{name: section for name, section in data_passes.items() if section is not None}}


def _files_asked_for(session: Session, args: argparse.Namespace, *, both: bool = False) -> list[SwitchFile]:
    """Return the switch file that the options name; by default the one for single passes, or `both`."""
    to_write = args.action != "show"
    if args.file is not None and args.installed:
        raise UsageError("cli.two_switch_files")
    offs = [False, True] if both and args.file is None and not args.off_file else [args.off_file]
    if args.file is None and not args.installed:
        session.data.check_data()
    files = [
        find_switch_file(session.workspace, args.file, off=off, installed=args.installed, to_write=to_write)
        for off in offs
    ]
    if not to_write:
        _note_bisected(session, files)
    elif args.action != "bisect":  # which looks itself
        for file in files:
            check_edit(_bisect_folders(session), file.target)
    return files


def _note_bisected(session: Session, files: Sequence[SwitchFile]) -> None:
    """Add a note for each of these files that a bisection has changed."""
    for folder, file in product(_bisect_folders(session), files):
        if is_bisected(folder, file.target):
            session.workspace.notes.append(Message("note.cli.bisected", path=file.target))


def _bisect_folders(session: Session) -> list[Path]:
    """Return the folders in which bisections keep their state."""
    return [Path(folder) / _BISECT_FOLDER for folder in dict.fromkeys(map(real_path, session.workspace.result_dirs()))]


def _warnings(switches: Switches, data_passes: Sequence[str], names: Sequence[str]) -> list[Message]:
    """Return warnings for passes that GE never switches off, or that no data names."""
    warnings: list[Message] = []
    off = {name for _, name, on in switches.named() if not on}
    for name in names:
        if not is_switchable(name):
            if name in off:
                warnings.append(Message("note.cli.pass_never_off", name=name, reason=ALWAYS_ON_REASON))
        elif data_passes and name not in data_passes:
            warnings.append(Message("note.cli.pass_closest", name=name, closest=_closest(name, data_passes)))
    return warnings


def _closest(name: str, data_passes: Sequence[str]) -> list[str]:
    """Return the passes with similar names, whatever their case."""
    by_lower = {pass_name.lower(): pass_name for pass_name in data_passes}
    return [by_lower[pass_name] for pass_name in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]


def _show(session: Session, args: argparse.Namespace, output: Output) -> int:
    data_passes = _seen_passes(session)
    files = _files_asked_for(session, args, both=True)
    tell_notes(session, output)
    parts, documents = [], []
    problems: list[PrecisionToolError] = []
    for file in files:
        try:
            # One that was named is no new one: its name may be misspelt.
            switches = file.read() if args.file is None else read_switches(file.path)
        except PrecisionToolError as error:  # the other file is shown all the same
            problems.append(error)
            continue
        # The examples of an installed file, and what GE's own file names, need not be passes of this network.
        examples = {*ON_BY_NAME, *(name for _, name, _ in file.shipped.named())}
        named = dict.fromkeys(name for _, name, _ in switches.named() if name not in examples)
        warnings = _warnings(switches, list(data_passes), list(named))
        if file.note:
            show_note(output, file.note)
        parts.append(report.switch_lines(file.path, switches, data_passes, warnings))
        documents.append(report.switch_json(file.path, switches, warnings))
    if args.json and not problems:
        output.write_json(json_text({"files": documents}))
    elif parts:
        output.show(*spaced(parts))
    if problems:
        raise problems[0]
    return DONE


def _meant_passes(
    session: Session, args: argparse.Namespace, names: Sequence[str], candidates: Sequence[str]
) -> list[str]:
    """Return full names of passes: a part of one name of the data is replaced by it, with a note.

    What is no known name, and not built like one, is refused. Without data everything may be a name.
    """
    meant = []
    for name in names:
        parts = [candidate for candidate in candidates if name.lower() in candidate.lower()]
        if (
            not candidates
            or name in candidates
            or not is_switchable(name)
            or args.force
            or name.lower().endswith("pass")
        ):
            meant.append(name)
        elif len(parts) == 1:
            session.workspace.notes.append(Message("note.cli.taken_for", name=name, match=parts[0]))
            meant.append(parts[0])
        elif parts or (close := _closest(name, candidates)):
            raise UsageError("cli.pass_ambiguous", name=name, is_part=bool(parts), candidates=parts or close)
        elif name.lower().endswith("fusion"):
            meant.append(name)
        else:
            raise UsageError("cli.pass_unknown", name=name)
    for name in dict.fromkeys(meant):
        if candidates and name not in candidates and is_switchable(name):
            close = _closest(name, candidates)
            session.workspace.notes.append(Message("note.cli.pass_not_in_data", name=name, closest=close))
    return list(dict.fromkeys(meant))


def _check_names(names: Sequence[str]) -> None:
    """Raise UsageError for what cannot be the name of a pass, above all several in one word."""
    wrong = next((name for name in names if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None), None)
    if wrong is not None:
        raise UsageError("cli.bad_pass_name", name=wrong)


def _switch(session: Session, args: argparse.Namespace, output: Output) -> int:
    on = args.action == "on"
    if not args.passes:
        raise UsageError("cli.no_pass_named", action=args.action)
    if ALL in args.passes:
        raise UsageError("cli.all_is_no_pass", action=args.action, name=ALL)
    _check_names(args.passes)
    data_passes = _seen_passes(session)
    (file,) = _files_asked_for(session, args)
    # A name that only the file has, maybe a typo of before, is meant by no part of it.
    named = [name for _, name, _ in file.read().named() if name in args.passes]
    shipped = (name for _, name, _ in file.shipped.named())
    candidates = dict.fromkeys([*data_passes, *shipped, *named]) if data_passes else {}
    args.passes = _meant_passes(session, args, args.passes, [*candidates])
    always = [name for name in args.passes if not is_switchable(name)]
    if always and not on:
        raise UsageError("cli.always_on", names=always, reason=ALWAYS_ON_REASON)

    sections = _sections_of(data_passes)

    def change(switches: Switches) -> Switches:
        for name in args.passes:
            switches = switches.with_pass(name, on, args.section or sections.get(name))
        return switches

    return _write(session, args, output, file, change, data_passes)


def _edit(session: Session, file: SwitchFile, change: Callable[[Switches], Switches]) -> tuple[Switches, Switches, str]:
    """Change a switch file with no other writer; return its switches before and after, and its path."""
    with edit_alone(_bisect_folders(session), file.target):
        before = file.read()
        after = replace(change(before), notes=(), refused=())
        return before, after, file.write(after)


def _all_off(session: Session, args: argparse.Namespace, output: Output) -> int:
    (file,) = _files_asked_for(session, args)
    return _write(session, args, output, file, Switches.all_off, _seen_passes(session))


def _reset(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Restore the installed switches, also in a file that cannot be read."""
    paths, documents = [], []
    for file in _files_asked_for(session, args, both=True):
        with edit_alone(_bisect_folders(session), file.target):
            paths.append(file.write(file.shipped))
        documents.append(report.switch_json(paths[-1], file.shipped, ()))
    tell_notes(session, output)
    if args.json:
        output.write_json(json_text({"files": documents}))
        return DONE
    for path in paths:
        output.print_line(text("screen.cli.as_installed", path=shown_path(path)))
        _print_last(output, path)
    return DONE


def _write(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    file: SwitchFile,
    change: Callable[[Switches], Switches],
    data_passes: Mapping[str, str | None],
) -> int:
    """Change a file and show its switches."""
    if session.workspace.work is not None and args.file is None and not args.installed:
        session.workspace.notes.append(Message("note.cli.switch_file_place"))
    tell_notes(session, output)
    before, after, path = _edit(session, file, change)
    always = [name for name in args.passes if not is_switchable(name)]
    warnings = _warnings(after, list(data_passes), [name for name in args.passes if is_switchable(name)])
    warnings += [Message("note.cli.pass_always_on", name=name, reason=ALWAYS_ON_REASON) for name in always]
    if args.json:
        output.write_json(json_text({"files": [report.switch_json(path, after, warnings)]}))
        return DONE
    if file.note:
        show_note(output, file.note)
    for note in (*before.refused, *before.notes):
        show_note(output, Message("note.cli.rewritten", problem=note))
    output.out.print(*report.switch_lines(path, after, data_passes, warnings), sep="\n")
    _print_last(output, path)
    output.out.print(report.script_block(script_lines(file)))
    output.out.print(collect_again(session, output))
    return DONE


def _print_last(output: Output, path: str) -> None:
    """Print where the version of a file before its last change is."""
    if exists(path + LAST):
        output.print_line(text("screen.cli.version_before", path=shown_path(path + LAST)), "dim")


# --- fusion blame -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Blamed:
    """The passes of one compared leaf, the result file, and the sources as JSON has them."""

    blame: Blame
    path: str
    sources: dict[str, object]


def _blame(session: Session, args: argparse.Namespace, output: Output) -> int:
    left, right, options = _sides(session, args)
    options = replace(options, graph=args.graph, threshold=args.threshold, prefix=BLAME_PREFIX)
    with ProgressReport(output.err, "comparing") as progress:
        analyses = compare(session.data, left, right, options, flags.resources_of(session, args, progress=progress))
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
            output.print_line(line, "dim")
    if args.write:
        _write_off(session, args, output, off)
    elif off and not args.json:
        output.out.print(_switching_off(session, output, off))
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
    session.workspace.notes += [error.full_message for error in problems]
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
        workspace.notes.append(Message("note.cli.benchmark_instead", reason=error.full_message))
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


def _switching_off(session: Session, output: Output, off: Sequence[str]) -> NextSteps:
    """Return the step that switches passes off."""
    from precision_tool.lib.diagnose.verdict_model import StepText
    from precision_tool.lib.view.verdict_screen import NextSteps

    why = Message("screen.cli.blame_next", count=len(off))
    return NextSteps([StepText(why=why, line=shlex.join(["fusion", "off", *off]))], output.command_for(session))


def _write_off(session: Session, args: argparse.Namespace, output: Output, off: Sequence[str]) -> None:
    """Switch passes off in the switch file and print how a script uses it."""
    console = output.err if args.json else output.out
    if not off:
        console.print(plain(text("screen.cli.nothing_to_write")), soft_wrap=True)
        return
    (file,) = _files_asked_for(session, args)
    sections = _sections_of(_seen_passes(session))

    def change(switches: Switches) -> Switches:
        for name in off:
            switches = switches.with_pass(name, False, sections.get(name))
        return switches

    _, _, path = _edit(session, file, change)
    if file.note:
        show_note(output, file.note)
    console.print(plain(text("screen.cli.switched_off", path=shown_path(path), names=off)), soft_wrap=True)
    console.print(report.script_block(script_lines(file)))
    if not args.json:
        console.print(collect_again(session, output))


#: What is left to do where no pass helps.
_TO_DO = (
    Message("screen.view.bisect.see_log"), Message("screen.view.bisect.other_switches"),
    Message("screen.view.bisect.always_on"),
)  # fmt: skip


# --- fusion bisect ----------------------------------------------------------------------------------------------------


def _bisect(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not args.check:
        raise UsageError("cli.bisect_no_command")
    sections = _seen_passes(session)
    passes, reserve, left_out = _candidates(session, args, sections)
    (file,) = _files_asked_for(session, args)
    folder = session.workspace.local_output_dir(_BISECT_FOLDER)
    # What was killed in this folder is put back; what was in another would pass for the user's own.
    check_edit([other for other in _bisect_folders(session) if str(other) != real_path(folder)], file.target)
    text_to_write(file.read(), file.path)  # one that GE would refuse is refused before anything runs

    names = (*passes, *reserve)
    bisection = BisectRun(
        folder=folder,
        check=args.check,
        names=names,
        passes={name: name for name in names},
        file=file,
        sections=_sections_of(sections),
        timeout=args.timeout,
    )
    search = Search(names=passes, reserve=reserve, repeat=args.repeat)
    notes = [file.note] if file.note else []
    if left_out:
        notes.append(Message("note.cli.not_searched", names=left_out))
    result = conduct(session, output, bisection, search, fresh=args.fresh, notes=notes)
    searched = searched_so_far(bisection, search)
    if args.json:
        output.write_json(fusion_bisect_json(result, bisection.tries, searched))
    else:
        output.show(*bisect_lines(result, bisection.tries, len(searched), _TO_DO, report.TO_DO))
    if result.outcome is Outcome.FLAKY:
        raise UsageError("cli.bisect_flaky")
    if args.write:
        _write_off(session, args, output, sorted(result.changes))
    elif result.changes and not args.json:
        output.out.print(_switching_off(session, output, sorted(result.changes)))
    return FOUND if result.outcome is Outcome.NOT_FIXED else DONE


def _candidates(
    session: Session, args: argparse.Namespace, data_passes: Mapping[str, str | None]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the passes to search, those to search after them, and those that GE never switches off."""
    named = tuple(dict.fromkeys((*args.passes, *args.more_passes)))
    _check_names(named)
    named = tuple(_meant_passes(session, args, named, [*data_passes]))
    always = [name for name in named if not is_switchable(name)]
    if always:
        raise UsageError("cli.bisect_always_on", names=always, reason=ALWAYS_ON_REASON)
    if named:
        unknown = [name for name in named if data_passes and name not in data_passes]
        if unknown:
            session.workspace.notes.append(Message("note.cli.passes_unknown", names=unknown))
        return named, (), ()
    passes = tuple(sorted(filter(is_switchable, data_passes)))
    if not passes:
        session.data.check_data()
        raise DataNotFoundError("cli.no_pass_to_search")
    return (
        passes,
        tuple(name for name in ON_BY_NAME if name not in data_passes),
        tuple(sorted(set(data_passes) - set(passes))),
    )


_WORDS: dict[str, Callable[[Session, argparse.Namespace, Output], int]] = {
    "list": _list,
    "show": _show,
    "off": _switch,
    "on": _switch,
    "all-off": _all_off,
    "reset": _reset,
    "blame": _blame,
    "bisect": _bisect,
}
