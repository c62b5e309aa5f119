"""The results of `vc`, `vcs` and `ac`, on the screen or as JSON."""

from __future__ import annotations

import argparse
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from precision_tool.lib.cli.command import DONE, FOUND, Output, show_note, tell_notes
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError
from precision_tool.lib.model.finding import CheckResult, FindingKind, Grade
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
_ALWAYS_SHOWN = (FindingKind.UNREADABLE, FindingKind.NOTHING_COMPARED)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `vc`, `vcs` and `ac` show.

    Attributes
    ----------
    analyses : sequence of Analysis
        The results, one for each step, rank and model.
    checks : sequence of CheckResult, optional
        The checks of the run; None for `vc` and `vcs`, which show neither findings nor verdicts.
    verdicts : sequence of Verdict or None
        The verdict on each result, or on a dump without a benchmark.
    since : Since, optional
        What has changed since an earlier verdict.
    other : OtherRun, optional
        The comparison of the run with fusion, or of that without it.
    """

    analyses: Sequence[Analysis] = ()
    checks: Sequence[CheckResult] | None = None
    verdicts: Sequence[Verdict | None] = ()
    since: Since | None = None
    other: OtherRun | None = None

    @property
    def shown_verdicts(self) -> list[Verdict | None]:
        """The verdicts that have something to show, None in place of others."""
        return [None if verdict is None or verdict.is_empty else verdict for verdict in self.verdicts]

    @property
    def is_unjudged(self) -> bool:
        """True if `ac` has no verdict on a result whose ops could be recomputed with a graph."""
        judged = zip_longest(self.analyses, self.verdicts[: len(self.analyses)])
        return self.checks is not None and any(one.has_graph and verdict is None for one, verdict in judged)

    def exit_code(self, fail: bool) -> int:
        """Return the exit code: with `fail` FOUND for a finding, a culprit, or a graph that cannot be read."""
        findings = [finding for analysis in self.analyses for finding in analysis.findings]
        findings += [check.finding for check in self.checks or () if check.finding is not None]
        has_findings = any(finding.grade >= Grade.WARNING for finding in findings)
        has_culprit = any(verdict is not None and verdict.culprit is not None for verdict in self.verdicts)
        is_unread = any(analysis.leaf is not None and analysis.leaf.unread_graph for analysis in self.analyses)
        return FOUND if fail and (has_findings or has_culprit or is_unread) else DONE


def _show_next_alone(session: Session, analysis: Analysis, output: Output) -> None:
    """Show the next steps for an op of a PyTorch dump, on which there is no verdict."""
    faulty = [finding for finding in analysis.findings if finding.kind is FindingKind.FIRST_FAULTY_OP]
    if analysis.has_graph or not faulty or analysis.source is None:
        return
    from precision_tool.lib.diagnose.verdict_model import StepText
    from precision_tool.lib.view.verdict_screen import NextSteps

    name = faulty[0].op_name
    copying = shlex.join(["h5copy", "-i", shown_path(analysis.source.npu), "-o", "output.h5", "-s", name])
    steps = [
        StepText(why=Message("screen.cli.look_at_values"), line=shlex.join(["ni", name])),
        StepText(why=Message("screen.cli.copy_op"), line=copying),
        StepText(why=Message("screen.cli.dump_inside"), line="acl_json acl.json --dump-path output_IR2TBE"),
    ]
    output.out.print(NextSteps(steps, output.command_for(session)))


def _print_path(output: Output, kind: str, path: str) -> None:
    output.print_line(text(kind, path=shown_path(path)))


def _show_source(analysis: Analysis, output: Output, *, is_one_of_many: bool) -> None:
    if analysis.leaf is None:
        _print_path(output, "screen.cli.result_file", analysis.path)
        if analysis.source is not None or analysis.part:
            output.out.print(report.read_source_lines(analysis))
        return
    if is_one_of_many:
        output.out.print(Heading(plain(report.leaf_title(analysis))))
    output.out.print(report.source_lines(analysis.leaf))


def _show(session: Session, outcome: Outcome, args: argparse.Namespace, output: Output) -> None:
    """Show each result: its source, the counts, the ops below the threshold; for `ac` the verdict or the findings.

    The checks of the run, and what has changed since an earlier verdict, stand before the verdict or, with several
    results, before the summary.
    """
    verdicts = outcome.shown_verdicts
    is_many = len(outcome.analyses) > 1
    for analysis, verdict in zip_longest(outcome.analyses, verdicts[: len(outcome.analyses)]):
        _show_source(analysis, output, is_one_of_many=is_many)
        _show_rows(analysis, args, output, verdict, is_checked=outcome.checks is not None)
        if not is_many:
            _show_other(outcome.other, output)
            _show_checks(outcome.checks or (), output, verdict, verbose=args.verbose)
        if outcome.checks is not None:
            _show_findings(session, analysis, verdict, output, verbose=args.verbose)
        if not is_many:
            _show_since(session, outcome.since, output)
        _show_verdict(session, verdict, args, output, analysis.part)
    if is_many:
        _show_other(outcome.other, output)
        _show_since(session, outcome.since, output)
        _show_checks(outcome.checks or (), output, next(filter(None, verdicts), None), verbose=args.verbose)
        if not any(analysis.leaf is not None and analysis.leaf.details for analysis in outcome.analyses):
            output.out.print(Heading(plain(text("screen.cli.summary"))))
            output.out.print(report.summary_lines(outcome.analyses, _verdict_lines(outcome.analyses, verdicts)))
        if outcome.checks is not None:
            _show_study(session, outcome.analyses, output)


def _show_rows(
    analysis: Analysis, args: argparse.Namespace, output: Output, verdict: Verdict | None, *, is_checked: bool
) -> None:
    if analysis.rows:
        output.out.print(report.overview_lines(analysis))
    if analysis.leaf is not None and analysis.leaf.details:
        _show_details(analysis, output)
    elif analysis.overview.compared or not is_checked:
        output.out.print(report.below_list(analysis, args.limit, verdict))
    if analysis.leaf is not None and analysis.path:
        _print_path(output, "screen.cli.result_file", analysis.path)


def _show_findings(
    session: Session, analysis: Analysis, verdict: Verdict | None, output: Output, *, verbose: bool
) -> None:
    """Show what the comparison alone found, where there is no verdict to replace it."""
    for finding in analysis.findings:
        if verdict is None or verbose or finding.kind in _ALWAYS_SHOWN:
            output.out.print(report.finding_panel(finding))
    if verdict is None:
        _show_next_alone(session, analysis, output)


def _show_study(session: Session, analyses: Sequence[Analysis], output: Output) -> None:
    """Show the command that analyses the dump folders of several ranks as one."""
    leaves = [analysis.leaf.leaf for analysis in analyses if analysis.leaf is not None]
    ranks, steps = (len(set(filter(None, names))) for names in ([x.device for x in leaves], [x.step for x in leaves]))
    if ranks > 1:
        command = f"{output.command_for(session)} ac --all".lstrip()
        line = text("screen.cli.study_next", folders=len(leaves), ranks=ranks, steps=steps, command=command)
        output.print_line(line)


def _show_other(other: OtherRun | None, output: Output) -> None:
    """Show the comparison of the other run in short: the verdict covers both."""
    for analysis in other.analyses if other is not None else ():
        assert other is not None
        output.out.print(report.other_run_lines(other.number, analysis, is_fused=other.is_fused))
        if analysis.path:
            _print_path(output, "screen.cli.result_file", analysis.path)


def _verdict_lines(analyses: Sequence[Analysis], verdicts: Sequence[Verdict | None]) -> Sequence[Text | None]:
    if not any(verdicts):
        return [None] * len(analyses)
    from precision_tool.lib.view.verdict_screen import verdict_line

    return [None if verdict is None else verdict_line(verdict) for verdict in verdicts]


def _show_verdict(
    session: Session, verdict: Verdict | None, args: argparse.Namespace, output: Output, part: Message | None = None
) -> None:
    if verdict is not None:
        from precision_tool.lib.view.named_sides import are_named_dumps, on_named_sides
        from precision_tool.lib.view.verdict_screen import verdict_block

        command = output.command_for(session)
        if are_named_dumps(session.workspace, args.left, args.right):
            steps = on_named_sides(verdict.next, args.left, args.right, at_prompt=not output.command)
            verdict, command = replace(verdict, next=tuple(steps)), output.command
        output.out.print(verdict_block(verdict, part, command))


def _show_since(session: Session, since: Since | None, output: Output) -> None:
    if since is not None:
        from precision_tool.lib.view.verdict_screen import since_block

        output.out.print(since_block(since, output.command_for(session)))


def _show_checks(
    checks: Sequence[CheckResult], output: Output, verdict: Verdict | None = None, *, verbose: bool = False
) -> None:
    """Show each check: in full, or in one line where the verdict does not refer to it."""
    if verdict is None or verbose:
        for check in checks:
            output.out.print(check_panel(check))
        return
    from precision_tool.lib.view.verdict_screen import belongs_to

    for check in checks:
        output.out.print(check_panel(check) if belongs_to(verdict, check.name) else check_line(check))


def _show_details(analysis: Analysis, output: Output) -> None:
    """Show the selected ops and the worst elements of their tensors."""
    assert analysis.leaf is not None
    for op in analysis.ops:
        output.out.print(report.op_panel(op, analysis.threshold))
    for detail in analysis.leaf.details:
        output.out.print(report.detail_panel(detail))
    _print_path(output, "screen.cli.worst_elements", posixpath.join(posixpath.dirname(analysis.path), "*_topn.csv"))


def finish(
    session: Session, args: argparse.Namespace, output: Output, outcome: Outcome, *, is_whole: bool = False
) -> int:
    """Show an outcome, or print it as JSON, and return the exit code.

    Raises DataNotFoundError at the end if `is_whole`, all of two runs, and nothing of it could be compared.
    """
    passports = session.passports(args.left, args.right) if outcome.checks is not None else None
    tell_notes(session, output)
    if args.json:
        document = report.to_json(
            outcome.analyses, outcome.checks, outcome.verdicts, outcome.since, passports, outcome.other
        )
        output.write_json(document)
    else:
        if passports is not None and passports.differences:
            from precision_tool.lib.view.findings import passport_lines

            output.out.print(passport_lines(passports))
        _show(session, outcome, args, output)
    if outcome.is_unjudged:
        show_note(output, Message("note.cli.not_judged"))
    if is_whole and not any(analysis.overview.compared or analysis.statistics[0] for analysis in outcome.analyses):
        raise DataNotFoundError("cli.nothing_compared")
    return outcome.exit_code(args.fail)


def finish_mapping(session: Session, args: argparse.Namespace, output: Output, analyses: list[Analysis]) -> int:
    """Show which tensors belong together, where nothing was compared."""
    tell_notes(session, output)
    if args.json:
        unjudged = [replace(analysis, findings=()) for analysis in analyses]
        output.write_json(report.to_json(unjudged))
        return DONE
    for analysis in analyses:
        if analysis.leaf is not None:  # the toolkit's is a file and no more
            _show_source(analysis, output, is_one_of_many=len(analyses) > 1)
            output.out.print(report.mapping_lines(analysis))
        if analysis.path:
            _print_path(output, "screen.cli.mapping_file", analysis.path)
    return DONE


def finish_without_benchmark(
    session: Session, args: argparse.Namespace, output: Output, missing: NoBenchmarkError, outcome: Outcome
) -> int:
    """Show what an NPU run alone reveals, and return the exit code; raise `missing` if that is nothing."""
    verdicts = [verdict for verdict in outcome.shown_verdicts if verdict is not None]
    if verdicts:
        session.workspace.notes.append(Message("note.cli.dump_alone", reason=missing.full_message))
    tell_notes(session, output)
    if args.json:
        every = [verdict for verdict in outcome.verdicts if verdict is not None]
        document = report.to_json([], outcome.checks, every, outcome.since)
        output.write_json(document)
    else:
        _show_checks(outcome.checks or (), output, next(iter(verdicts), None), verbose=args.verbose)
        _show_since(session, outcome.since, output)
        for verdict in verdicts:
            _show_verdict(session, verdict, args, output)
    if not verdicts:
        raise missing
    return outcome.exit_code(args.fail)
