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
from precision_tool.lib.cli.command import DONE, FOUND, Output, tell_notes
from precision_tool.lib.diagnose.fusion_bisect import Bisection, Outcome, bisect_passes
from precision_tool.lib.errors import DataNotFoundError, UsageError
from precision_tool.lib.io.files import real_path
from precision_tool.lib.io.fusion_passes import ALWAYS_ON_REASON, ON_BY_NAME, is_switchable
from precision_tool.lib.io.fusion_switch import text_to_write
from precision_tool.lib.session import Session
from precision_tool.lib.view import fusion_screen as report
from precision_tool.lib.view.text import counted, plain


def bisect(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not args.check:
        raise UsageError("fusion bisect: no command is named", 'for example --check "python3 train.py --steps 20"')
    seen = seen_passes(session)
    passes, reserve, left_out = _candidates(session, args, seen)
    (file,) = files_asked_for(session, args)
    folder = session.workspace.output_dir(BISECT_FOLDER)
    # What was killed in this folder is put back; what was in another would pass for the user's own.
    check_edit([one for one in bisect_folders(session) if str(one) != real_path(folder)], file.target)
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
        sections=sections_of(seen),
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
            result = bisect_passes(passes, run.ask, reserve=reserve, results=run.known, confirmed=run.confirmed)
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
        write_off(session, args, output, sorted(result.off))
    elif result.off and not args.json:
        what = "it" if len(result.off) == 1 else "them"
        command = f"fusion off {shlex.join(sorted(result.off))}"
        output.out.print(plain(f"`{command}` switches {what} off, or this command with --write", "dim"), soft_wrap=True)
    return FOUND if result.outcome is Outcome.NOT_FUSION else DONE


def _candidates(
    session: Session, args: argparse.Namespace, seen: Mapping[str, str | None]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The passes to search, those that else stay on when all of these are off, and what GE never switches off."""
    named = tuple(dict.fromkeys((*args.passes, *args.more_passes)))
    check_names(named)
    named = tuple(meant_passes(session, args, named, [*seen]))
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
        session.data.check_data()
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
