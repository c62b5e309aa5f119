"""`fusion show`, `off`, `on`, `all-off` and `reset`: the switch files."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from precision_tool.lib.checks.run_checks import fusion_graphs
from precision_tool.lib.cli.bisect_runner import bisected, check_edit, edit_alone
from precision_tool.lib.cli.command import (
    DONE,
    Output,
    collect_again,
    spaced,
    tell_notes,
)
from precision_tool.lib.cli.switch_files import LAST, SwitchFile, find_switch_file, script_lines
from precision_tool.lib.errors import PrecisionToolError, UsageError
from precision_tool.lib.formats.fusion_passes import ALWAYS_ON_REASON, ON_BY_NAME, is_switchable
from precision_tool.lib.formats.fusion_switch import ALL, Switches, read_switches
from precision_tool.lib.io.files import exists, real_path
from precision_tool.lib.present import fusion as report
from precision_tool.lib.present.text import json_text, plain
from precision_tool.lib.session import Session
from precision_tool.lib.workspace import shown_path

#: Where bisections keep their state, below the results.
BISECT_FOLDER = "fusion_bisect"


def seen_passes(session: Session) -> dict[str, str | None]:
    """The passes that the data names, and their sections where it tells them; {} where there is no data."""
    try:
        graphs = fusion_graphs(session.data)
    except PrecisionToolError:
        return {}
    return {row.name: row.section for graph in graphs for row in graph.rows}


def sections_of(seen: Mapping[str, str | None]) -> dict[str, str]:
    """Those of the passes whose section the data tells, or GE's own file."""
    return {**ON_BY_NAME, **{name: section for name, section in seen.items() if section is not None}}


def files_asked_for(session: Session, args: argparse.Namespace, *, both: bool = False) -> list[SwitchFile]:
    """The file that was chosen; without a choice the one for single passes, or `both`."""
    to_write = args.action != "show"
    if args.file is not None and args.installed:
        raise UsageError("--file and --installed name two files", "give one of them")
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
    """Notes which of these files are not as the user wrote them."""
    for folder, file in product(bisect_folders(session), files):
        reason = bisected(folder, file.target)
        if reason:
            session.workspace.notes.append(reason)


def bisect_folders(session: Session) -> list[Path]:
    """Where bisections keep what they do."""
    return [Path(one) / BISECT_FOLDER for one in dict.fromkeys(map(real_path, session.workspace.result_dirs()))]


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


def show(session: Session, args: argparse.Namespace, output: Output) -> int:
    seen = seen_passes(session)
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


def meant_passes(session: Session, args: argparse.Namespace, names: Sequence[str], known: Sequence[str]) -> list[str]:
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


def check_names(names: Sequence[str]) -> None:
    """Refuses what cannot be the name of a pass, above all several in one word."""
    wrong = next((name for name in names if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong!r} is no name of a pass", "several names stand one after the other, with spaces between"
        )


def switch(session: Session, args: argparse.Namespace, output: Output) -> int:
    on = args.action == "on"
    if not args.passes:
        raise UsageError(f"fusion {args.action}: no pass is named", "`fusion` lists those of the data")
    if ALL in args.passes:
        raise UsageError(f"fusion {args.action}: {ALL} is no pass", "`fusion all-off` and `fusion reset` are for all")
    check_names(args.passes)
    seen = seen_passes(session)
    (file,) = files_asked_for(session, args)
    # A name that only the file has, maybe a typo of before, is meant by no part of it.
    named = [name for _, name, _ in file.read().named() if name in args.passes]
    shipped = (name for _, name, _ in file.shipped.named())
    known = dict.fromkeys([*seen, *shipped, *named]) if seen else {}
    args.passes = meant_passes(session, args, args.passes, [*known])
    always = [name for name in args.passes if not is_switchable(name)]
    if always and not on:
        raise UsageError(
            f"{', '.join(always)}: {ALWAYS_ON_REASON}",
            "left to do: compute its ops in float32 (mixed_precision_list, keep_dtype), report it to the vendor",
        )

    sections = sections_of(seen)

    def change(switches: Switches) -> Switches:
        for name in args.passes:
            switches = switches.with_pass(name, on, args.section or sections.get(name))
        return switches

    return _write(session, args, output, [(file, change)], seen)


def edit(session: Session, file: SwitchFile, change: Callable[[Switches], Switches]) -> tuple[Switches, Switches, str]:
    """What a file said and says now, and its path. Nobody else changes it meanwhile."""
    with edit_alone(bisect_folders(session), file.target):
        before = file.read()
        after = replace(change(before), notes=(), refused=())
        return before, after, file.write(after)


def all_off(session: Session, args: argparse.Namespace, output: Output) -> int:
    (file,) = files_asked_for(session, args)
    return _write(session, args, output, [(file, Switches.all_off)], seen_passes(session))


def reset(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Also of a file that cannot be read."""
    paths, documents = [], []
    for file in files_asked_for(session, args, both=True):
        with edit_alone(bisect_folders(session), file.target):
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
    if session.workspace.work is not None and args.file is None and not args.installed:
        session.workspace.notes.append(
            "the training reads the switch file: it lies in the data folder and not below --work; --file names another"
        )
    tell_notes(session, output)
    documents = []
    for file, change in changes:
        before, after, path = edit(session, file, change)
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
    if not args.json:
        output.out.print(collect_again(session, output))
    if args.json:
        output.out.file.write(json_text({"files": documents}) + "\n")
    return DONE
