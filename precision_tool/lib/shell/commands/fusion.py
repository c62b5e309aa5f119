"""`fusion`: the passes in effect, the switch files, the pass that computes wrong."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from precision_tool.lib.checks.fusion_bisect import Bisection, Outcome, bisect_passes
from precision_tool.lib.checks.run_checks import fusion_graphs
from precision_tool.lib.collect.fusion_files import FILE_VARIABLE
from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.formats.fusion_passes import ALWAYS_ON_REASON, ON_BY_NAME, SECTIONS, is_switchable
from precision_tool.lib.formats.fusion_switch import ALL, Switches, read_switches, text_to_write
from precision_tool.lib.model.run import Run
from precision_tool.lib.pairing.fusion_pair import Fusion
from precision_tool.lib.present import fusion as report
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.present.text import counted, json_text, plain
from precision_tool.lib.results.result_files import BLAME_PREFIX
from precision_tool.lib.session import Session
from precision_tool.lib.shell.bisect_runner import BisectRun, Try, bisected, check_edit, edit_alone
from precision_tool.lib.shell.commands.base import (
    DONE,
    FOUND,
    Command,
    Completion,
    Output,
    Parser,
    add_json,
    add_workers,
    completes,
    cosine,
    count,
    spaced,
    tell_notes,
)
from precision_tool.lib.shell.switch_files import LAST, SwitchFile, find_switch_file, script_lines
from precision_tool.lib.sources.walk import nothing_below
from precision_tool.lib.storage.stores import exists, is_folder, list_folder, real_path
from precision_tool.lib.verdict.blame import Blame, Verdict
from precision_tool.lib.workspace import shown_path

_ACTIONS = ("list", "show", "off", "on", "all-off", "reset", "blame", "bisect")
_BISECT_FOLDER = "fusion_bisect"


def _parser(session: Session) -> Parser:
    settings = session.settings
    parser = Parser(
        prog="fusion",
        description="Without a word: the fusion passes in effect. show: the switch files that the training helper "
        "points to, those of the data folder, or the installed ones where it has none. off, on PASS: switches passes; "
        "all-off: all of them; reset: as installed. blame: which pass computes wrong, from a run with fusion and one "
        "without, or from one with fusion and the benchmark. bisect: which passes must be off for a command of yours "
        "to succeed (exit code 1 if that does not help).",
        epilog="example: fusion blame --benchmark; fusion off SoftmaxFusionPass --file my.cfg",
    )
    parser.add_argument(
        "action", nargs="?", choices=_ACTIONS, default="list", metavar="WORD",
        help="list (the default), show, off, on, all-off, reset, blame or bisect",
    )  # fmt: skip
    completes(
        parser.add_argument("passes", nargs="*", metavar="PASS", help="with off, on and bisect: names of passes"),
        Completion.PASS,
    )
    files = parser.add_mutually_exclusive_group()
    completes(
        files.add_argument(
            "--file", metavar="FILE", help="another switch file than the fusion_switch.cfg of the data folder"
        ),
        Completion.FILE,
    )
    files.add_argument("--off-file", action="store_true", help="the fusion_off.cfg of the data folder")
    parser.add_argument(
        "--installed", action="store_true", help="the installed file, which all users and data folders share"
    )
    parser.add_argument(
        "--section", choices=SECTIONS, help="with off and on: the section of a pass that no data tells of"
    )
    parser.add_argument(
        "--force", action="store_true", help="with off, on and bisect: take names that the data does not have"
    )
    _add_blame(parser, session)
    _add_bisect(parser)
    parser.add_argument(
        "-l", "--limit", dest="limit", metavar="N", type=count(1),
        help=f"with blame: how many ops of a pass to show (default {settings.limit})",
    )  # fmt: skip
    add_json(parser)
    return parser


def _add_blame(parser: Parser, session: Session) -> None:
    for options, dest, metavar, what, kind in (
        ("-lt", "left", "DIR", "with blame: the dump of the run with fusion", Completion.FOLDER),
        ("-rt", "right", "DIR", "with blame: the dump without fusion, or benchmark .npy files", Completion.FOLDER),
        ("-g", "graph", "GRAPH", "with blame: the graph of the run with fusion", Completion.GRAPH),
        ("-cf", "other_graph", "GRAPH", "with blame: the graph of the run without fusion", Completion.GRAPH),
    ):
        named = session.workspace.named
        completes(parser.add_argument(options, dest=dest, metavar=metavar, type=named, help=what), kind)
    parser.add_argument(
        "--benchmark",
        action="store_true",
        help="with blame: compare with tf/dump even if there is a run without fusion",
    )
    parser.add_argument(
        "--threshold", metavar="COS", type=cosine,
        help="with blame: cosine similarity below which a tensor counts as wrong "
        f"(default {session.settings.threshold})",
    )  # fmt: skip
    add_workers(parser, None, "with blame: processes that share the work (default: one per core)")
    parser.add_argument(
        "--write", action="store_true", help="with blame and bisect: switch off what was found in the switch file"
    )
    parser.add_argument(
        "--fail", action="store_true", help="with blame: exit code 1 if a pass is not clean, or nothing could be judged"
    )


def _add_bisect(parser: Parser) -> None:
    parser.add_argument(
        "--check",
        metavar="CMD",
        help="with bisect: the command that succeeds (exit code 0) without the fault; the switch file of the try is "
        f"the one of the data folder, or --file; its path is in ${FILE_VARIABLE} of its environment",
    )
    completes(
        parser.add_argument(
            "--passes", dest="more_passes", nargs="+", metavar="PASS", default=(),
            help="with bisect: search these passes only (default: all that the data names)",
        ),
        Completion.PASS,
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=count(1), help="with bisect: a try that takes longer fails"
    )
    parser.add_argument(
        "--repeat", metavar="N", type=count(1),
        help="with bisect: run each try so often; different answers end it (default 1)",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="with bisect: do not use the tries of an earlier attempt")


#: What each option goes with; others are refused.
_GOES_WITH = {
    "--file": ("show", "off", "on", "all-off", "reset", "blame", "bisect"),
    "--installed": ("show", "off", "on", "all-off", "reset"),
    "--off-file": ("show", "off", "on", "all-off", "reset"),
    "--section": ("off", "on"),
    "--force": ("off", "on", "bisect"),
    "-lt": ("blame",),
    "-rt": ("blame",),
    "-g": ("blame", "list"),
    "-cf": ("blame",),
    "--benchmark": ("blame",),
    "--threshold": ("blame",),
    "--workers": ("blame",),
    "-l": ("blame",),
    "--write": ("blame", "bisect"),
    "--fail": ("blame",),
    "--check": ("bisect",),
    "--passes": ("bisect",),
    "--timeout": ("bisect",),
    "--repeat": ("bisect",),
    "--fresh": ("bisect",),
    "PASS": ("off", "on", "bisect"),
}


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    given = {
        "--file": args.file, "--off-file": args.off_file, "--installed": args.installed, "--section": args.section,
        "--force": args.force, "-lt": args.left, "-rt": args.right, "-g": args.graph, "-cf": args.other_graph,
        "--benchmark": args.benchmark, "--threshold": args.threshold, "--workers": args.workers, "-l": args.limit,
        "--write": args.write, "--fail": args.fail, "--check": args.check, "--passes": args.more_passes,
        "--timeout": args.timeout, "--repeat": args.repeat, "--fresh": args.fresh, "PASS": args.passes,
    }  # fmt: skip
    for name, value in given.items():
        is_given = bool(value) or (value == 0 and value is not False)
        if is_given and args.action not in _GOES_WITH[name]:
            what = args.passes[0] if name == "PASS" else name
            raise UsageError(f"fusion {args.action}: {what} goes with {', '.join(_GOES_WITH[name])}", "`fusion -h`")
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
        session.workspace.notes.append(error.message)
    session.check_data()
    graphs = fusion_graphs(session, args.graph, switches)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.passes_json(graphs) + "\n")
    else:
        output.show(*spaced([*report.passes_lines(graphs, session.settings.threshold)]))
    return DONE


# --- switch files -----------------------------------------------------------------------------------------------------


def _seen(session: Session) -> dict[str, str | None]:
    """The passes that the data names, and their sections where it tells them; {} where there is no data."""
    try:
        graphs = fusion_graphs(session)
    except PrecisionToolError:
        return {}
    return {row.name: row.section for graph in graphs for row in graph.rows}


def _sections(seen: Mapping[str, str | None]) -> dict[str, str]:
    """Those of the passes whose section the data tells, or GE's own file."""
    return {**ON_BY_NAME, **{name: section for name, section in seen.items() if section is not None}}


def _files(session: Session, args: argparse.Namespace, *, both: bool = False) -> list[SwitchFile]:
    """The file that was chosen; without a choice the one for single passes, or `both`."""
    to_write = args.action != "show"
    if args.file is not None and args.installed:
        raise UsageError("--file and --installed name two files", "give one of them")
    offs = [False, True] if both and args.file is None and not args.off_file else [args.off_file]
    if args.file is None and not args.installed:
        session.check_data()
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
    """Notes which of these files are not as the user wrote them."""
    for folder, file in product(_bisect_folders(session), files):
        reason = bisected(folder, file.target)
        if reason:
            session.workspace.notes.append(reason)


def _bisect_folders(session: Session) -> list[Path]:
    """Where bisections keep what they do."""
    return [Path(one) / _BISECT_FOLDER for one in dict.fromkeys(map(real_path, session.workspace.result_dirs()))]


def _warnings(switches: Switches, seen: Sequence[str], names: Sequence[str]) -> list[str]:
    """What to say of these passes if GE never switches them off, or no data names them."""
    warnings = []
    off = {name for _, name, on in switches.named() if not on}
    for name in names:
        if not is_switchable(name):
            if name in off:
                warnings.append(f"{name}: {ALWAYS_ON_REASON}")
        elif seen and name not in seen:
            close = _closest(name, seen)
            what = f"; the closest are {', '.join(close)}" if close else ""
            warnings.append(f"{name}: no pass of this name is in the data{what}")
    return warnings


def _closest(name: str, seen: Sequence[str]) -> list[str]:
    """The passes that may be meant, whatever their case."""
    by_lower = {one.lower(): one for one in seen}
    return [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]


def _show(session: Session, args: argparse.Namespace, output: Output) -> int:
    seen = _seen(session)
    files = _files(session, args, both=True)
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
        warnings = _warnings(switches, list(seen), list(named))
        if file.note:
            output.err.print(plain(f"note: {file.note}", "yellow"), soft_wrap=True)
        parts.append(report.switch_lines(file.path, switches, seen, warnings))
        documents.append(report.switch_json(file.path, switches, warnings))
    if args.json and not problems:
        output.out.file.write(json_text({"files": documents}) + "\n")
    elif parts:
        output.show(*spaced(parts))
    if problems:
        raise problems[0]
    return DONE


def _meant(session: Session, args: argparse.Namespace, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The passes that are meant: a part of one known name is taken for it, with a note.

    What is no known name, and not built like one, is refused. Without data everything may be a name.
    """
    meant = []
    for name in names:
        parts = [one for one in known if name.lower() in one.lower()]
        if not known or name in known or not is_switchable(name) or args.force or name.lower().endswith("pass"):
            meant.append(name)
        elif len(parts) == 1:
            session.workspace.notes.append(f"{name}: taken for {parts[0]}")
            meant.append(parts[0])
        elif parts or (close := _closest(name, known)):
            why = "a part of several" if parts else "misspelt"
            raise UsageError(
                f"{name}: no pass of this name is in the data; it may be {why}: {', '.join(parts or close)}",
                "give the whole name, or --force for one that the data does not have",
            )
        elif name.lower().endswith("fusion"):
            meant.append(name)
        else:
            raise UsageError(
                f"{name}: no pass of this name is in the data, and it does not look like one (…FusionPass)",
                "`fusion` lists those of the data; --force takes the name as it is",
            )
    for name in dict.fromkeys(meant):
        if known and name not in known and is_switchable(name):
            close = _closest(name, known)
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            session.workspace.notes.append(f"{name}: no op of the data was made by a pass of this name{hint}")
    return list(dict.fromkeys(meant))


def _check_names(names: Sequence[str]) -> None:
    """Refuses what cannot be the name of a pass, above all several in one word."""
    wrong = next((name for name in names if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong!r} is no name of a pass", "several names stand one after the other, with spaces between"
        )


def _switch(session: Session, args: argparse.Namespace, output: Output) -> int:
    on = args.action == "on"
    if not args.passes:
        raise UsageError(f"fusion {args.action}: no pass is named", "`fusion` lists those of the data")
    if ALL in args.passes:
        raise UsageError(f"fusion {args.action}: {ALL} is no pass", "`fusion all-off` and `fusion reset` are for all")
    _check_names(args.passes)
    seen = _seen(session)
    (file,) = _files(session, args)
    known = dict.fromkeys([*seen, *(name for _, name, _ in file.read().named())]) if seen else {}
    args.passes = _meant(session, args, args.passes, [*known])
    always = [name for name in args.passes if not is_switchable(name)]
    if always and not on:
        raise UsageError(
            f"{', '.join(always)}: {ALWAYS_ON_REASON}",
            "left to do: compute its ops in float32 (mixed_precision_list, keep_dtype), report it to the vendor",
        )

    sections = _sections(seen)

    def change(switches: Switches) -> Switches:
        for name in args.passes:
            switches = switches.with_pass(name, on, args.section or sections.get(name))
        return switches

    return _write(session, args, output, [(file, change)], seen)


def _edit(session: Session, file: SwitchFile, change: Callable[[Switches], Switches]) -> tuple[Switches, Switches, str]:
    """What a file said and says now, and its path. Nobody else changes it meanwhile."""
    with edit_alone(_bisect_folders(session), file.target):
        before = file.read()
        after = replace(change(before), notes=(), refused=())
        return before, after, file.write(after)


def _all_off(session: Session, args: argparse.Namespace, output: Output) -> int:
    (file,) = _files(session, args)
    return _write(session, args, output, [(file, Switches.all_off)], _seen(session))


def _reset(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Also of a file that cannot be read."""
    paths, documents = [], []
    for file in _files(session, args, both=True):
        with edit_alone(_bisect_folders(session), file.target):
            paths.append(file.write(file.shipped))
        documents.append(report.switch_json(paths[-1], file.shipped, ()))
    tell_notes(session, output)
    if args.json:
        output.out.file.write(json_text({"files": documents}) + "\n")
        return DONE
    for path in paths:
        output.out.print(plain(f"as installed: {shown_path(path)}"), soft_wrap=True)
        if exists(path + LAST):
            output.out.print(plain(f"the version before: {shown_path(path + LAST)}", "dim"), soft_wrap=True)
    return DONE


def _write(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    changes: Sequence[tuple[SwitchFile, Callable[[Switches], Switches]]],
    seen: Mapping[str, str | None],
) -> int:
    """Changes files and shows what they then say."""
    tell_notes(session, output)
    documents = []
    for file, change in changes:
        before, after, path = _edit(session, file, change)
        warnings = _warnings(after, list(seen), [name for name in args.passes if is_switchable(name)])
        warnings += [f"{name}: always on; {ALWAYS_ON_REASON}" for name in args.passes if not is_switchable(name)]
        if args.json:
            documents.append(report.switch_json(path, after, warnings))
            continue
        if file.note:
            output.err.print(plain(f"note: {file.note}", "yellow"), soft_wrap=True)
        for note in (*before.refused, *before.notes):
            output.err.print(plain(f"note: before, {note}; the file is written anew", "yellow"), soft_wrap=True)
        output.out.print(*report.switch_lines(path, after, seen, warnings), sep="\n")
        if exists(path + LAST):
            output.out.print(plain(f"the version before: {shown_path(path + LAST)}", "dim"), soft_wrap=True)
        output.out.print(report.script_block(script_lines(file)))
    if args.json:
        output.out.file.write(json_text({"files": documents}) + "\n")
    return DONE


# --- blame ------------------------------------------------------------------------------------------------------------


def _blame(session: Session, args: argparse.Namespace, output: Output) -> int:
    left, right, options = _sides(session, args)
    workers = session.settings.workers if args.workers is None else args.workers
    with ProgressReport(output.err, "comparing") as progress:
        analyses = session.compare(
            left, right, args.graph, args.threshold, workers, progress, options, prefix=BLAME_PREFIX
        )
    found: list[tuple[Blame, str, dict[str, object]]] = []
    problems: list[PrecisionToolError] = []
    for analysis in analyses:
        if analysis.leaf is None or not analysis.rows:
            continue
        session.workspace.notes += analysis.leaf.notes
        try:
            with ProgressReport(output.err, "recomputing") as progress:
                result = session.blame(analysis, progress)
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
        _write_off(session, args, output, off)
    elif off and not args.json:
        output.out.print(plain("`fusion blame --write` does it; `fusion off PASS` as well", "dim"))
    not_clean = any(
        one.verdict in (Verdict.GUILTY, Verdict.SUSPICIOUS) for result, _, _ in found for one in result.passes
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
        is_dump = isinstance(session.inputs(args.left, args.right).golden, Run)
        return args.left, args.right, pair_options if is_dump else CompareOptions()
    has_benchmark = is_folder(workspace.tf_dump_dir) and bool(list_folder(str(workspace.tf_dump_dir)))
    why_benchmark: list[str] = []
    if not args.benchmark:
        try:
            pair = session.fusion_pair()
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
    missing = session.graph_reasons()
    if missing and not Fusion(best.file).switchable:
        # The run without fusion would pass for the one with it, and come out clean.
        raise DataNotFoundError(
            f"the run with fusion is not among those whose graphs can be used: {'; '.join(missing)}",
            "copy that graph again, or name the run with -lt, -rt and -g",
        )
    workspace.notes += why_benchmark
    return str(workspace.dump_dir(best.number or 0)), str(workspace.tf_dump_dir), CompareOptions()


def _write_off(session: Session, args: argparse.Namespace, output: Output, off: Sequence[str]) -> None:
    """Switches passes off in the switch file and prints how a script uses it."""
    console = output.err if args.json else output.out
    if not off:
        console.print(plain("nothing to write: no pass to be switched off was found"), soft_wrap=True)
        return
    (file,) = _files(session, args)
    sections = _sections(_seen(session))

    def change(switches: Switches) -> Switches:
        for name in off:
            switches = switches.with_pass(name, False, sections.get(name))
        return switches

    _, _, path = _edit(session, file, change)
    if file.note:
        output.err.print(plain(f"note: {file.note}", "yellow"), soft_wrap=True)
    console.print(plain(f"switched off in {shown_path(path)}: {', '.join(off)}"), soft_wrap=True)
    console.print(report.script_block(script_lines(file)))


# --- bisect -----------------------------------------------------------------------------------------------------------


def _bisect(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not args.check:
        raise UsageError("fusion bisect: no command is named", 'for example --check "python3 train.py --steps 20"')
    seen = _seen(session)
    passes, reserve, left_out = _candidates(session, args, seen)
    (file,) = _files(session, args)
    folder = session.workspace.output_dir(_BISECT_FOLDER)
    # What was killed in this folder is put back; what was in another would pass for the user's own.
    check_edit([one for one in _bisect_folders(session) if str(one) != real_path(folder)], file.target)
    text_to_write(file.read(), file.path)  # one that GE would refuse is refused before anything runs

    def tell(one: Try, number: int) -> None:
        again = any(before.off == one.off for before in run.tries[: number - 1])
        line = report.try_line(
            number, len(one.off), len(_searched(run, passes)), one.succeeded, one.code, one.seconds, again
        )
        output.err.print(line, soft_wrap=True)

    run = BisectRun(
        folder=folder,
        check=args.check,
        passes=(*passes, *reserve),
        file=file,
        sections=_sections(seen),
        timeout=args.timeout,
        repeat=args.repeat,
        tell=tell,
    )
    with run.alone():
        session.workspace.notes += [*run.open(args.fresh), *([file.note] if file.note else [])]
        if left_out:
            session.workspace.notes.append(f"not searched, as GE never switches them off: {', '.join(left_out)}")
        tell_notes(session, output)
        interrupted = True
        try:
            before = len(run.tries)
            result = bisect_passes(passes, run.ask, reserve=reserve, known=run.known, confirmed=run.confirmed)
            interrupted = False
        finally:
            run.close()
            if interrupted:
                told = f"{counted(len(run.tries), 'try', 'tries')} kept: the same command takes it up again"
                output.err.print(plain(told, "yellow"), soft_wrap=True)
    if len(run.tries) == before:
        told = "this search was finished before: nothing was run; --fresh searches anew, after a change of the check"
        output.err.print(plain(f"note: {told}", "yellow"), soft_wrap=True)
    _show_bisection(output, args, result, run, _searched(run, passes))
    if result.outcome is Outcome.FLAKY:
        raise UsageError(
            "the check gives different answers for the same passes, so that nothing can be concluded from it",
            "fix its seeds, or let it decide by more steps; --fresh then begins anew",
        )
    if args.write:
        _write_off(session, args, output, sorted(result.off))
    elif result.off and not args.json:
        what = "it" if len(result.off) == 1 else "them"
        command = f"fusion off {' '.join(sorted(result.off))}"
        output.out.print(plain(f"`{command}` switches {what} off, or this command with --write", "dim"), soft_wrap=True)
    return FOUND if result.outcome is Outcome.NOT_FUSION else DONE


def _candidates(
    session: Session, args: argparse.Namespace, seen: Mapping[str, str | None]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The passes to search, those that else stay on when all of these are off, and what GE never switches off."""
    named = tuple(dict.fromkeys((*args.passes, *args.more_passes)))
    _check_names(named)
    named = tuple(_meant(session, args, named, [*seen]))
    always = [name for name in named if not is_switchable(name)]
    if always:
        raise UsageError(f"{', '.join(always)}: {ALWAYS_ON_REASON}", "leave it out")
    if named:
        unknown = [name for name in named if seen and name not in seen]
        if unknown:
            session.workspace.notes.append(f"in no graph and no fusion_result.json of the data: {', '.join(unknown)}")
        return named, (), ()
    passes = tuple(sorted(filter(is_switchable, seen)))
    if not passes:
        session.check_data()
        raise DataNotFoundError(
            "no graph and no fusion_result.json names a pass to search", "name the passes with --passes"
        )
    return passes, tuple(name for name in ON_BY_NAME if name not in seen), tuple(sorted(set(seen) - set(passes)))


def _searched(run: BisectRun, passes: tuple[str, ...]) -> tuple[str, ...]:
    """The passes, and those of the reserve if it came to them."""
    return passes if all({*one.off} <= {*passes} for one in run.tries) else run.passes


def _show_bisection(
    output: Output, args: argparse.Namespace, result: Bisection, run: BisectRun, passes: tuple[str, ...]
) -> None:
    tries = [(one.off, one.succeeded, one.code, one.seconds, one.log) for one in run.tries]
    if args.json:
        output.out.file.write(report.bisect_json(result, tries, passes) + "\n")
    else:
        output.show(*report.bisect_lines(result, tries, len(passes)))


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

FUSION = Command(_parser, _run)
