"""What `vc`, `vcs` and `ac` show, on a screen or as JSON."""

from __future__ import annotations

import argparse
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from precision_tool.lib.cli.command import DONE, FOUND, Output, tell_notes
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.errors import DataNotFoundError, NoBenchmarkError
from precision_tool.lib.model.finding import CheckResult, FindingKind, Grade
from precision_tool.lib.model.wording import counted
from precision_tool.lib.session import Session
from precision_tool.lib.view import compare_screen as report
from precision_tool.lib.view.compare_screen import check_line, check_panel
from precision_tool.lib.view.tables import Heading
from precision_tool.lib.view.text import plain

if TYPE_CHECKING:  # `vc` and `vcs` begin without what only `ac` needs
    from rich.text import Text

    from precision_tool.lib.diagnose.comparing import OtherRun
    from precision_tool.lib.diagnose.stored_verdict import Since
    from precision_tool.lib.diagnose.verdict_model import Verdict

#: Findings of a comparison that no verdict replaces.
_ALWAYS_TOLD = (FindingKind.UNREADABLE, FindingKind.NOTHING_COMPARED)


def _exit_code(
    analyses: Sequence[Analysis],
    checks: Sequence[CheckResult],
    fail: bool,
    verdicts: Sequence[Verdict | None] = (),
) -> int:
    findings = [finding for analysis in analyses for finding in analysis.findings]
    findings += [check.finding for check in checks if check.finding is not None]
    found = any(finding.grade >= Grade.WARNING for finding in findings)
    found |= any(one is not None and one.culprit is not None for one in verdicts)
    return FOUND if fail and found else DONE


def _show_next_alone(session: Session, analysis: Analysis, output: Output) -> None:
    """What to do about an op of a PyTorch dump, which no verdict judges: look at it, and run it alone on the NPU."""
    faulty = [one for one in analysis.findings if one.kind is FindingKind.FIRST_FAULTY_OP]
    if analysis.has_graph or not faulty or analysis.leaf is None:
        return
    from precision_tool.lib.diagnose.verdict_model import StepText
    from precision_tool.lib.view.verdict_screen import NextSteps

    name = faulty[0].op_name
    copying = shlex.join(["h5copy", "-i", analysis.leaf.leaf.path, "-o", "output.h5", "-s", name])
    steps = [
        StepText(why="look at the values of both sides", line=shlex.join(["ni", name])),
        StepText(why="copy it out, to run it alone on the NPU", line=copying),
        StepText(why="and dump what it does inside the NPU", line="acl_json acl.json --dump-path output_IR2TBE"),
    ]
    output.out.print(NextSteps(steps, output.command_for(session)))


def _print_path(output: Output, label: str, path: str) -> None:
    output.out.print(plain(f"{label}: {shown_path(path)}"), soft_wrap=True)


def _show_source(analysis: Analysis, output: Output, *, is_one_of_many: bool) -> None:
    if analysis.leaf is None:
        _print_path(output, "result file", analysis.path)
        if analysis.source is not None or analysis.part:
            output.out.print(report.read_source_lines(analysis))
        return
    if is_one_of_many:
        output.out.print(Heading(plain(report.leaf_title(analysis))))
    output.out.print(report.source_lines(analysis.leaf))


def _show(
    session: Session,
    analyses: Sequence[Analysis],
    args: argparse.Namespace,
    output: Output,
    *,
    judges: bool,
    checks: Sequence[CheckResult] = (),
    verdicts: Sequence[Verdict | None] = (),
    held: Since | None = None,
    other: OtherRun | None = None,
) -> None:
    """Each result: where it is from, the counts, the ops below; with `judges` the verdict, else the findings.

    The checks of the run stand before the verdict, or, with several results, before the summary. What has changed
    since an earlier verdict (`held`) stands before it.
    """
    is_many = len(analyses) > 1
    for analysis, verdict in zip_longest(analyses, verdicts[: len(analyses)]):
        _show_source(analysis, output, is_one_of_many=is_many)
        if analysis.rows:
            output.out.print(report.overview_lines(analysis))
        if analysis.leaf is not None and analysis.leaf.details:
            _show_details(analysis, output)
        elif analysis.overview.compared or not judges:
            output.out.print(report.below_list(analysis, args.limit))
        if analysis.leaf is not None and analysis.path:
            _print_path(output, "result file", analysis.path)
        if not is_many:
            _show_other(other, output)
            _show_checks(checks, output, verdict, verbose=args.verbose)
        if judges:
            for finding in analysis.findings:
                # What the comparison alone says is told where nothing better is known.
                if verdict is None or args.verbose or finding.kind in _ALWAYS_TOLD:
                    output.out.print(report.finding_panel(finding))
            if verdict is None:
                _show_next_alone(session, analysis, output)
        if not is_many:
            _show_since(session, held, output)
        _show_verdict(session, verdict, output, analysis.part)
    if is_many:
        _show_other(other, output)
        _show_since(session, held, output)
        _show_checks(checks, output, next(filter(None, verdicts), None), verbose=args.verbose)
        if not any(analysis.leaf is not None and analysis.leaf.details for analysis in analyses):
            output.out.print(Heading(plain("summary")))
            output.out.print(report.summary_lines(analyses, _verdict_lines(analyses, verdicts)))
        if judges:
            _show_study(session, analyses, output)


def _show_study(session: Session, analyses: Sequence[Analysis], output: Output) -> None:
    """The command that judges the dump folders of several ranks as one."""
    leaves = [analysis.leaf.leaf for analysis in analyses if analysis.leaf is not None]
    ranks, steps = (len(set(filter(None, names))) for names in ([x.device for x in leaves], [x.step for x in leaves]))
    if ranks > 1:
        what = f"{len(leaves)} dump folders of {ranks} ranks and {counted(steps, 'step')}"
        command = f"{output.command_for(session)} ac --all".lstrip()
        output.out.print(plain(f"{what}: `{command}` gives one verdict over them"), soft_wrap=True)


def _show_other(other: OtherRun | None, output: Output) -> None:
    """What the comparison of the other run gave, in short: the verdict judges both."""
    for analysis in other.analyses if other is not None else ():
        assert other is not None
        output.out.print(report.other_run_lines(other.number, analysis, is_fused=other.is_fused))
        if analysis.path:
            _print_path(output, "result file", analysis.path)


def _verdict_lines(analyses: Sequence[Analysis], verdicts: Sequence[Verdict | None]) -> Sequence[Text | None]:
    if not any(verdicts):
        return [None] * len(analyses)
    from precision_tool.lib.view.verdict_screen import verdict_line

    return [None if verdict is None else verdict_line(verdict) for verdict in verdicts]


def _show_verdict(session: Session, verdict: Verdict | None, output: Output, part: str = "") -> None:
    if verdict is not None:
        from precision_tool.lib.view.verdict_screen import verdict_block

        output.out.print(verdict_block(verdict, part, output.command_for(session)))


def _show_since(session: Session, held: Since | None, output: Output) -> None:
    if held is not None:
        from precision_tool.lib.view.verdict_screen import since_block

        output.out.print(since_block(held, output.command_for(session)))


def _show_checks(
    checks: Sequence[CheckResult], output: Output, verdict: Verdict | None = None, *, verbose: bool = False
) -> None:
    """Each check: whole, or in one line where a verdict stands that it says nothing of."""
    if verdict is None or verbose:
        for check in checks:
            output.out.print(check_panel(check))
        return
    from precision_tool.lib.view.verdict_screen import belongs_to

    for check in checks:
        output.out.print(check_panel(check) if belongs_to(verdict, check.name) else check_line(check))


def _show_details(analysis: Analysis, output: Output) -> None:
    """The ops that were asked for, and the worst elements of their tensors."""
    assert analysis.leaf is not None
    for op in analysis.ops:
        output.out.print(report.op_panel(op, analysis.threshold))
    for detail in analysis.leaf.details:
        output.out.print(report.detail_panel(detail))
    _print_path(output, "worst elements", posixpath.join(posixpath.dirname(analysis.path), "*_topn.csv"))


def finish(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    analyses: Sequence[Analysis],
    *,
    checks: Sequence[CheckResult] | None = None,
    verdicts: Sequence[Verdict | None] = (),
    is_whole: bool = False,
    held: Since | None = None,
    other: OtherRun | None = None,
) -> int:
    """Shows or prints as JSON; with `checks` and `verdicts`, which `ac` has, these too.

    Raises DataNotFoundError at the end if `is_whole`, all of two runs, and nothing of it could be compared.
    """
    judges = checks is not None
    passports = session.passports(args.left, args.right) if judges else None
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.to_json(analyses, checks, verdicts, held, passports, other) + "\n")
    else:
        if passports is not None and passports.differences:
            from precision_tool.lib.view.findings import passport_lines

            output.out.print(passport_lines(passports))
        telling = [None if one is None or one.is_empty else one for one in verdicts]
        _show(
            session,
            analyses,
            args,
            output,
            judges=judges,
            checks=checks or (),
            verdicts=telling,
            held=held,
            other=other,
        )
    if is_whole and not any(analysis.overview.compared or analysis.statistics[0] for analysis in analyses):
        raise DataNotFoundError(
            "no tensor could be compared", "the notes and the last columns of the result file say why"
        )
    return _exit_code(analyses, checks or (), args.fail, verdicts)


def finish_mapping(session: Session, args: argparse.Namespace, output: Output, analyses: list[Analysis]) -> int:
    """Nothing was compared, so there is nothing to judge."""
    tell_notes(session, output)
    if args.json:
        unjudged = [replace(analysis, findings=()) for analysis in analyses]
        output.out.file.write(report.to_json(unjudged) + "\n")
        return DONE
    for analysis in analyses:
        if analysis.leaf is not None:  # the toolkit's is a file and no more
            _show_source(analysis, output, is_one_of_many=len(analyses) > 1)
            output.out.print(report.mapping_lines(analysis))
        if analysis.path:
            _print_path(output, "mapping file", analysis.path)
    return DONE


def finish_without_benchmark(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    lack: NoBenchmarkError,
    checks: Sequence[CheckResult],
    verdicts: Sequence[Verdict],
    held: Since | None,
) -> int:
    """What an NPU run tells without a benchmark; raises what is lacking where that is nothing."""
    says = [one for one in verdicts if not one.is_empty]
    if says:
        session.workspace.notes.append(f"{lack.message}: judged by its own dump alone")
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.to_json([], checks, verdicts, held) + "\n")
    else:
        _show_checks(checks, output, next(iter(says), None), verbose=args.verbose)
        _show_since(session, held, output)
        for verdict in says:
            _show_verdict(session, verdict, output)
    if not says:
        raise lack
    return _exit_code([], checks, args.fail, verdicts)
