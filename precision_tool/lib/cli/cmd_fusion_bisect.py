"""`fusion bisect`: which passes must be off for a command of the user's to succeed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping

from precision_tool.lib.cli.bisect_runner import BisectRun, Try, check_edit
from precision_tool.lib.cli.cmd_fusion_blame import write_off
from precision_tool.lib.cli.cmd_fusion_switches import (
    BISECT_FOLDER,
    bisect_folders,
    check_names,
    files_asked_for,
    meant_passes,
    sections_of,
    seen_passes,
)
from precision_tool.lib.cli.command import DONE, FOUND, Output, show_note, tell_notes
from precision_tool.lib.diagnose.fusion_bisect import Bisection, Outcome, bisect_passes
from precision_tool.lib.io.files import real_path
from precision_tool.lib.io.fusion_passes import ALWAYS_ON_REASON, ON_BY_NAME, is_switchable, text_to_write
from precision_tool.lib.messages import text
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen as report
from precision_tool.lib.view.text import plain


def bisect(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not args.check:
        raise UsageError("cli.bisect_no_command")
    sections = seen_passes(session)
    passes, reserve, left_out = _candidates(session, args, sections)
    (file,) = files_asked_for(session, args)
    folder = session.workspace.output_dir(BISECT_FOLDER)
    # What was killed in this folder is put back; what was in another would pass for the user's own.
    check_edit([other for other in bisect_folders(session) if str(other) != real_path(folder)], file.target)
    text_to_write(file.read(), file.path)  # one that GE would refuse is refused before anything runs

    def show_try(attempt: Try, number: int) -> None:
        again = any(before.off == attempt.off for before in run.tries[: number - 1])
        line = report.try_line(
            number,
            len(attempt.off),
            len(_searched(run, passes)),
            attempt.succeeded,
            attempt.code,
            attempt.seconds,
            again,
        )
        output.err.print(line, soft_wrap=True)

    run = BisectRun(
        folder=folder,
        check=args.check,
        passes=(*passes, *reserve),
        file=file,
        sections=sections_of(sections),
        timeout=args.timeout,
        repeat=args.repeat,
        on_try=show_try,
    )
    with run.alone():
        session.workspace.notes += [*run.open(args.fresh), *([file.note] if file.note else [])]
        if left_out:
            session.workspace.notes.append(text("note.cli.not_searched", names=left_out))
        tell_notes(session, output)
        interrupted = True
        try:
            before = len(run.tries)
            result = bisect_passes(passes, run.ask, reserve=reserve, results=run.answers, confirmed=run.confirmed)
            interrupted = False
        finally:
            run.close()
            if interrupted:
                output.err.print(plain(text("screen.cli.bisect_kept", tries=len(run.tries)), "yellow"), soft_wrap=True)
    if len(run.tries) == before:
        show_note(output, text("note.cli.bisect_finished"))
    _show_bisection(output, args, result, run, _searched(run, passes))
    if result.outcome is Outcome.FLAKY:
        raise UsageError("cli.bisect_flaky")
    if args.write:
        write_off(session, args, output, sorted(result.off))
    elif result.off and not args.json:
        command = f"fusion off {shlex.join(sorted(result.off))}"
        line = text("screen.cli.bisect_next", command=command, count=len(result.off))
        output.out.print(plain(line, "dim"), soft_wrap=True)
    return FOUND if result.outcome is Outcome.NOT_FUSION else DONE


def _candidates(
    session: Session, args: argparse.Namespace, data_passes: Mapping[str, str | None]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the passes to search, those to search after them, and those that GE never switches off."""
    named = tuple(dict.fromkeys((*args.passes, *args.more_passes)))
    check_names(named)
    named = tuple(meant_passes(session, args, named, [*data_passes]))
    always = [name for name in named if not is_switchable(name)]
    if always:
        raise UsageError("cli.bisect_always_on", names=always, reason=ALWAYS_ON_REASON)
    if named:
        unknown = [name for name in named if data_passes and name not in data_passes]
        if unknown:
            session.workspace.notes.append(text("note.cli.passes_unknown", names=unknown))
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


def _searched(run: BisectRun, passes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the passes, with the reserve if the search reached it."""
    return passes if all({*attempt.off} <= {*passes} for attempt in run.tries) else run.passes


def _show_bisection(
    output: Output, args: argparse.Namespace, result: Bisection, run: BisectRun, passes: tuple[str, ...]
) -> None:
    tries = [(attempt.off, attempt.succeeded, attempt.code, attempt.seconds, attempt.log) for attempt in run.tries]
    if args.json:
        output.out.file.write(report.bisect_json(result, tries, passes) + "\n")
    else:
        output.show(*report.bisect_lines(result, tries, len(passes)))
