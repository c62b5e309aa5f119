"""`fusion show`, `off`, `on`, `all-off` and `reset`: the switch files."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from precision_tool.lib.cli.bisect_runner import check_edit, edit_alone, is_bisected
from precision_tool.lib.cli.command import DONE, Output, collect_again, show_note, spaced, tell_notes
from precision_tool.lib.cli.switch_files import LAST, SwitchFile, find_switch_file, script_lines
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.run_checks import fusion_graphs
from precision_tool.lib.io.files import exists, real_path
from precision_tool.lib.io.fusion_passes import ALWAYS_ON_REASON, ON_BY_NAME, is_switchable
from precision_tool.lib.io.fusion_switch import ALL, Switches, read_switches
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import PrecisionToolError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen as report
from precision_tool.lib.view.text import json_text

#: Where bisections keep their state, below the results.
BISECT_FOLDER = "fusion_bisect"


def seen_passes(session: Session) -> dict[str, str | None]:
    """Return the passes that the data names, with their sections where known; {} without data."""
    try:
        graphs = fusion_graphs(session.data)
    except PrecisionToolError:
        return {}
    return {row.name: row.section for graph in graphs for row in graph.rows}


def sections_of(data_passes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the sections of passes that the data, or GE's own file, names."""
    return {**ON_BY_NAME, **{name: section for name, section in data_passes.items() if section is not None}}


def files_asked_for(session: Session, args: argparse.Namespace, *, both: bool = False) -> list[SwitchFile]:
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
        note_bisected(session, files)
    elif args.action != "bisect":  # which looks itself
        for file in files:
            check_edit(bisect_folders(session), file.target)
    return files


def note_bisected(session: Session, files: Sequence[SwitchFile]) -> None:
    """Add a note for each of these files that a bisection has changed."""
    for folder, file in product(bisect_folders(session), files):
        if is_bisected(folder, file.target):
            session.workspace.notes.append(text("note.cli.bisected", path=file.target))


def bisect_folders(session: Session) -> list[Path]:
    """Return the folders in which bisections keep their state."""
    return [Path(folder) / BISECT_FOLDER for folder in dict.fromkeys(map(real_path, session.workspace.result_dirs()))]


def _warnings(switches: Switches, data_passes: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return warnings for passes that GE never switches off, or that no data names."""
    warnings = []
    off = {name for _, name, on in switches.named() if not on}
    for name in names:
        if not is_switchable(name):
            if name in off:
                warnings.append(text("note.cli.pass_never_off", name=name, reason=ALWAYS_ON_REASON))
        elif data_passes and name not in data_passes:
            warnings.append(text("note.cli.pass_closest", name=name, closest=_closest(name, data_passes)))
    return warnings


def _closest(name: str, data_passes: Sequence[str]) -> list[str]:
    """Return the passes with similar names, whatever their case."""
    by_lower = {pass_name.lower(): pass_name for pass_name in data_passes}
    return [by_lower[pass_name] for pass_name in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]


def show(session: Session, args: argparse.Namespace, output: Output) -> int:
    data_passes = seen_passes(session)
    files = files_asked_for(session, args, both=True)
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


def meant_passes(
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
            session.workspace.notes.append(text("note.cli.taken_for", name=name, match=parts[0]))
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
            session.workspace.notes.append(text("note.cli.pass_not_in_data", name=name, closest=close))
    return list(dict.fromkeys(meant))


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for what cannot be the name of a pass, above all several in one word."""
    wrong = next((name for name in names if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None), None)
    if wrong is not None:
        raise UsageError("cli.bad_pass_name", name=wrong)


def switch(session: Session, args: argparse.Namespace, output: Output) -> int:
    on = args.action == "on"
    if not args.passes:
        raise UsageError("cli.no_pass_named", action=args.action)
    if ALL in args.passes:
        raise UsageError("cli.all_is_no_pass", action=args.action, name=ALL)
    check_names(args.passes)
    data_passes = seen_passes(session)
    (file,) = files_asked_for(session, args)
    # A name that only the file has, maybe a typo of before, is meant by no part of it.
    named = [name for _, name, _ in file.read().named() if name in args.passes]
    shipped = (name for _, name, _ in file.shipped.named())
    candidates = dict.fromkeys([*data_passes, *shipped, *named]) if data_passes else {}
    args.passes = meant_passes(session, args, args.passes, [*candidates])
    always = [name for name in args.passes if not is_switchable(name)]
    if always and not on:
        raise UsageError("cli.always_on", names=always, reason=ALWAYS_ON_REASON)

    sections = sections_of(data_passes)

    def change(switches: Switches) -> Switches:
        for name in args.passes:
            switches = switches.with_pass(name, on, args.section or sections.get(name))
        return switches

    return _write(session, args, output, file, change, data_passes)


def edit(session: Session, file: SwitchFile, change: Callable[[Switches], Switches]) -> tuple[Switches, Switches, str]:
    """Change a switch file with no other writer; return its switches before and after, and its path."""
    with edit_alone(bisect_folders(session), file.target):
        before = file.read()
        after = replace(change(before), notes=(), refused=())
        return before, after, file.write(after)


def all_off(session: Session, args: argparse.Namespace, output: Output) -> int:
    (file,) = files_asked_for(session, args)
    return _write(session, args, output, file, Switches.all_off, seen_passes(session))


def reset(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Restore the installed switches, also in a file that cannot be read."""
    paths, documents = [], []
    for file in files_asked_for(session, args, both=True):
        with edit_alone(bisect_folders(session), file.target):
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
        session.workspace.notes.append(text("note.cli.switch_file_place"))
    tell_notes(session, output)
    before, after, path = edit(session, file, change)
    always = [name for name in args.passes if not is_switchable(name)]
    warnings = _warnings(after, list(data_passes), [name for name in args.passes if is_switchable(name)])
    warnings += [text("note.cli.pass_always_on", name=name, reason=ALWAYS_ON_REASON) for name in always]
    if args.json:
        output.write_json(json_text({"files": [report.switch_json(path, after, warnings)]}))
        return DONE
    if file.note:
        show_note(output, file.note)
    for note in (*before.refused, *before.notes):
        show_note(output, text("note.cli.rewritten", problem=note))
    output.out.print(*report.switch_lines(path, after, data_passes, warnings), sep="\n")
    _print_last(output, path)
    output.out.print(report.script_block(script_lines(file)))
    output.out.print(collect_again(session, output))
    return DONE


def _print_last(output: Output, path: str) -> None:
    """Print where the version of a file before its last change is."""
    if exists(path + LAST):
        output.print_line(text("screen.cli.version_before", path=shown_path(path + LAST)), "dim")
