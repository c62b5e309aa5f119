"""`ac`: compare, check everything, judge, and name the first faulty op.

With --all a study: every step, rank and model of one or many data folders, and one verdict on them.
"""

from __future__ import annotations

import argparse
import json
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, FOUND, Output, Parser, command, tell_notes
from precision_tool.lib.cli.comparison import compare_sides, measure_options, noise_floor_of, read_results
from precision_tool.lib.cli.comparison_screen import Outcome, finish, finish_without_benchmark
from precision_tool.lib.cli.words import USER_ERROR
from precision_tool.lib.compare.result_files import named_result
from precision_tool.lib.data.workspace import shown_path, typed_path
from precision_tool.lib.diagnose.casts import cast_pairs
from precision_tool.lib.diagnose.run_checks import Analysis, check_benchmark_fits
from precision_tool.lib.diagnose.stored_verdict import newest_verdicts
from precision_tool.lib.io.local import shared_open_files
from precision_tool.lib.io.urls import is_remote
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError, PrecisionToolError, UsageError
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.comparing import OtherRun
    from precision_tool.lib.diagnose.device_profile import DeviceProfile
    from precision_tool.lib.diagnose.pipeline import Diagnosis
    from precision_tool.lib.diagnose.redump import Redump
    from precision_tool.lib.diagnose.sharded import ShardedRun
    from precision_tool.lib.diagnose.stored_verdict import Since, StoredVerdict
    from precision_tool.lib.diagnose.study import Study
    from precision_tool.lib.diagnose.verdict_model import Verdict


#: Seconds between two looks for new steps.
_LOOK = 30
#: What a whole dump may take, unless told.
_BUDGET = "10GB"
_REDUMP = "redump_config.py"
_STUDY_REPORT = "report.html"

#: Options of `ac` that are of one comparison, and what each is called.
_OF_ONE = {
    "overflow": "--overflow_detection", "custom": "--custom", "file": "-f", "noise": "--noise-floor",
    "since": "--since", "engine": "--engine", "verbose": "--verbose", "prove": "--prove",
}  # fmt: skip


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument(
        "-c", "--vector_compare", dest="compare", action="store_true",
        help="compare first; implied by the options of the comparison",
    )  # fmt: skip
    rare = parser.folded_group("more options of the comparison", "-v")
    flags.add_sides(parser, session, rare)
    flags.add(
        parser, "-f", "--file", metavar="FILE|DIR", completes="result",
        help="an earlier result instead of the newest; partial results are accepted",
    )  # fmt: skip
    flags.add(
        parser, "--since", metavar="RESULT", nargs="?", const="", completes="result",
        help="after a fix: whether the culprit is now correct, and the switch took effect; RESULT is that of an "
        "earlier verdict (a result file or folder, or the verdict_*.json next to it; default: the newest earlier one)",
    )  # fmt: skip
    flags.add_common(parser, session, rare=rare)
    parser.add_argument("-v", "--verbose", action="store_true", help="show every panel in full, not only the verdict")
    flags.add(
        parser, "--report", metavar="FILE.html", nargs="?", const="", completes="file",
        help="also export the result as one HTML report (default: next to the result); `report` does so later",
    )  # fmt: skip
    parser.add_argument(
        "--prove", action="store_true",
        help="mend each culprit and recompute everything behind it, as `whatif` does: how much of the deviation it "
        "explains; a further fault that explains nothing is dropped from the verdict",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true",
        help="study every step, rank and model of the data folders (--data several times, or a pattern), "
        "and report the earliest wrong op, its step and rank. After an interruption, the same command continues",
    )  # fmt: skip
    flags.add_measures(rare)
    flags.add(
        rare, "--profile", metavar="FILE", completes="file",
        help="how precise the device is, as earlier runs of it showed: a profile_*.json next to a result, or "
        "that `profile learn` or `profile merge` wrote; one of another device or mode is refused",
    )  # fmt: skip
    _add_study(parser)


@command(
    "ac",
    "Run all checks and report the faulty op. Without -c, read the newest result.",
    _options,
    example="ac -c",
)
@shared_open_files()
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.profile is not None:
        from precision_tool.lib.diagnose.stored_profile import read_profile

        args.profile = read_profile(posixpath.expanduser(args.profile))
    if args.sharded is not None:
        from precision_tool.lib.cli.sharded_command import run_sharded

        return run_sharded(session, args, output)
    if args.all:
        return _run_study(session, args, output)
    _check_no_study(session, args)
    compares = _compares(args)
    if args.report:  # before the hours that a comparison may take
        from precision_tool.lib.view.report_material import place_of

        place_of(session.data, args.report, *filter(None, (args.left, args.right)))
    earlier = _earlier(session, args, compares=compares)
    analyses: Sequence[Analysis] = []
    missing: NoBenchmarkError | None = None
    other: OtherRun | None = None
    try:
        if compares or (args.file is None and session.data.has_dump_alone()):
            options = replace(measure_options(args), extremes=True, extra_pairs=cast_pairs)
            analyses = compare_sides(session, args, output, options)
            check_benchmark_fits(analyses)
            other = _compare_other(session, args, output)
        else:
            analyses = read_results(session, args.file, args.threshold, "ac -c", noise_floor_of(session, args))
            check_benchmark_fits(analyses)
    except NoBenchmarkError as error:
        if not session.data.kind().has_graph:
            raise
        analyses, missing = [], error  # the NPU's dump alone shows something too
        _note_other_leaves(session, args, output)
    diagnoses, checks = _diagnose(session, args, output, analyses, is_alone=missing is not None)
    change = _since_earlier(earlier, session, args, output, diagnoses)
    verdicts = [None if diagnosis.stored is None else diagnosis.stored.verdict for diagnosis in diagnoses]
    outcome = Outcome(
        analyses=[diagnosis.analysis for diagnosis in diagnoses if diagnosis.analysis is not None],
        checks=checks,
        verdicts=[verdict if verdict is None else _with_switch_file(verdict, change) for verdict in verdicts],
        since=change,
        other=other,
    )
    if any(verdict is not None and verdict.run for verdict in outcome.verdicts):
        from precision_tool.lib.diagnose.comparing import forget_second_run

        forget_second_run(session.workspace)  # the verdict's next step names it anew
    if missing is not None:
        code = finish_without_benchmark(session, args, output, missing, outcome)
    else:
        code = finish(session, args, output, outcome, is_whole=compares)
    if args.report is not None:
        from precision_tool.lib.view.report_material import make_report

        path = make_report(session.data, diagnoses, args.report, graph=args.graph, checks=checks)
        if not args.json:
            output.print_line(text("screen.cli.report", path=shown_path(path)))
    return code


def _note_other_leaves(session: Session, args: argparse.Namespace, output: Output) -> None:
    """Add a note where a dump of msprobe has more steps and ranks than the one that is judged without a benchmark."""
    from precision_tool.lib.view.text import leaf_words

    leaves = session.data.leaves_at(args.left or str(session.workspace.dump_dir(0)))
    if len(leaves) > 1 and leaves[0].graph:
        command = f"{output.command_for(session)} ac --all".lstrip()
        command += f" -lt {typed_path(args.left)}" if args.left else ""
        words = leaf_words(leaves[0], " ")
        note = Message("note.cli.first_leaf", leaf=words, count=len(leaves), command=command)
        session.workspace.notes.append(note)


def _compares(args: argparse.Namespace) -> bool:
    """Return whether to compare anew: -c, or any option of a comparison. UsageError if -f names a result, too."""
    options = (args.left, args.right, args.graph, args.workers, args.cluster, args.engine, args.custom)
    compares = bool(args.compare or args.overflow) or any(option is not None for option in options)
    if compares and args.file is not None:
        raise UsageError("cli.result_or_comparison")
    return compares


def _diagnose(
    session: Session, args: argparse.Namespace, output: Output, analyses: Sequence[Analysis], *, is_alone: bool
) -> tuple[list[Diagnosis], list[CheckResult]]:
    """Return the diagnosis of each result, and the checks of the run with what the verdicts add to them."""
    from precision_tool.lib.diagnose.judging import with_checks
    from precision_tool.lib.diagnose.run_checks import all_checks

    checks = all_checks(session.data, analyses, args.threshold, npu=args.left, graph=args.graph, limit=args.limit)
    return with_checks(_diagnoses(session, args, output, analyses, is_alone=is_alone), checks)


def _compare_other(session: Session, args: argparse.Namespace, output: Output) -> OtherRun | None:
    """Compare the run with fusion besides one without it, or the reverse, where no sides were named."""
    if (args.left, args.right, args.graph) != (None, None, None) or flags.engine_of(session, args) == "cann":
        return None
    from precision_tool.lib.diagnose.comparing import compare_other_run

    options = replace(measure_options(args), threshold=args.threshold, noise=noise_floor_of(session, args))
    with ProgressReport(output.err, "comparing the other run") as progress:
        return compare_other_run(session.data, options, flags.resources_of(session, args, progress=progress))


def _since_earlier(
    earlier: StoredVerdict | None,
    session: Session,
    args: argparse.Namespace,
    output: Output,
    diagnoses: Sequence[Diagnosis],
) -> Since | None:
    """Return what became of an earlier verdict; without --since add a note on it instead."""
    from precision_tool.lib.diagnose.stored_verdict import since

    change = (
        None
        if earlier is None
        else next((since(earlier, diagnosis.stored) for diagnosis in diagnoses if diagnosis.stored), None)
    )
    if args.since is not None and change is not None:
        return _with_switches(change, session)
    if change is None or args.json:
        return change
    if not change.is_same_dump:  # else nothing can have changed
        line = f"{output.command_for(session)} ac --since {typed_path(change.file)}".lstrip()
        session.workspace.notes.append(Message("note.cli.earlier_verdict", culprit=change.culprit, line=line))
    return None


def _with_switches(change: Since, session: Session) -> Since:
    """Return the same with why passes that were to be off are in effect still."""
    from precision_tool.lib.cli.switch_files import why_in_effect

    if change.is_same_dump:
        return change
    changes = []
    for each in change.changes:
        why, code = why_in_effect(session.data, each.name) if each.is_in_effect else (None, [])
        changes.append(replace(each, why=why, code=tuple(code)))
    return replace(change, changes=changes)


def _with_switch_file(verdict: Verdict, change: Since | None) -> Verdict:
    from precision_tool.lib.diagnose.plan import with_switch_file_known

    off = {each.name: each.code for each in change.changes if each.code} if change is not None else {}
    if not off:
        return verdict
    return replace(verdict, next=with_switch_file_known(verdict.next, off, next(iter(off.values()))))


def _earlier(session: Session, args: argparse.Namespace, *, compares: bool) -> StoredVerdict | None:
    """Return the verdict to check against: that of --since, or the newest earlier one that named a culprit.

    DataNotFoundError where one was asked for and there is none. Without `compares` the newest is today's itself.
    """
    from precision_tool.lib.diagnose.stored_verdict import read_verdict, stored_verdicts

    if args.since is not None and not session.data.kind().has_graph:
        session.data.kind().check_judged("ac: --since")
    if args.since:
        verdict = read_verdict(named_result(session.workspace, args.since))
        if verdict.verdict.culprit is None:
            raise UsageError("cli.verdict_without_culprit", path=args.since)
        return verdict
    if args.since is None and not compares:
        return None
    todays = () if compares else tuple(newest_verdicts(session.workspace))
    paths = {verdict_.path for verdict_ in todays}
    others = (verdict_ for verdict_ in stored_verdicts(session.workspace) if verdict_.path not in paths)
    earlier = next((verdict_ for verdict_ in others if verdict_.verdict.culprit is not None), None)
    if earlier is None and any(verdict_.verdict.culprit is not None for verdict_ in todays):
        raise DataNotFoundError("cli.single_verdict", folder=session.workspace.root)
    if earlier is None and args.since is not None:
        raise DataNotFoundError("cli.no_earlier_verdict", folder=session.workspace.root)
    return earlier


def _diagnoses(
    session: Session, args: argparse.Namespace, output: Output, analyses: Sequence[Analysis], *, is_alone: bool
) -> list[Diagnosis]:
    """Diagnose each result, or without a benchmark the NPU's dump alone; what is found is kept from now on.

    The verdict on an earlier result is read where it is kept; a new one comes with the own errors in its rows and file.
    """
    from precision_tool.lib.diagnose.judging import judge, prove_stored
    from precision_tool.lib.diagnose.pipeline import Diagnosis
    from precision_tool.lib.diagnose.stored_verdict import read_beside

    if not is_alone:
        earlier = [
            None if analysis.leaf is not None else read_beside(analysis.path, analysis.threshold)
            for analysis in analyses
        ]
        if earlier and all(earlier) and args.profile is None:
            kept = [
                Diagnosis(analysis=analysis, stored=stored) for analysis, stored in zip(analyses, earlier, strict=True)
            ]
            if not args.prove:
                return kept
            with ProgressReport(output.err, "recomputing") as progress:
                return prove_stored(session.data, kept, flags.resources_of(session, args, progress=progress))
    with flags.cluster_of(args) as executor, ProgressReport(output.err, "recomputing") as progress:
        diagnoses = judge(
            session.data, None if is_alone else analyses, args.threshold,
            flags.resources_of(session, args, executor, progress),
            npu=args.left, graph=args.graph, profile=args.profile, prove=args.prove,
        )  # fmt: skip
    _note_unknown(session, args.profile, diagnoses)
    return diagnoses


def _note_unknown(session: Session, profile: DeviceProfile | None, diagnoses: Sequence[Diagnosis]) -> None:
    """Say what is not known of the device and mode of a profile, or of a run, so that it could not be checked."""
    from precision_tool.lib.diagnose.stored_profile import unknown

    judged = [diagnosis.judged for diagnosis in diagnoses if diagnosis.judged is not None]
    names = dict.fromkeys(name for run in judged if profile is not None for name in unknown(profile, run.profile))
    if names:
        session.workspace.notes.append(Message("note.diagnose.profile_unchecked", names=list(names)))


# --- ac --all ---------------------------------------------------------------------------------------------------------


def _add_study(parser: Parser) -> None:
    """Add the options of a study."""
    group = parser.folded_group("many ranks and steps", "--all")
    flags.add(
        group, "--sharded", metavar="FILE.json", nargs="?", const="", completes="file",
        help="msprobe: the two sides split the network over ranks or micro-batches in different ways; merge the ranks' "
        "tensors, compare them as wholes, and name wrong slices, missing reductions and stale shards. FILE.json says "
        "how tensors are split where that cannot be told",
    )  # fmt: skip
    group.add_argument("--step", metavar="N", help="with --all: only these steps: 3, 0-7 or 1,5,8-")
    group.add_argument("--rank", metavar="N", help="with --all: only these ranks")
    group.add_argument(
        "--world-size", metavar="N", type=flags.count(1), default=0,
        help="with --all: how many ranks were trained together, dumped or not: whether a collective gave the sum is "
        "told only of all ranks of its group",
    )  # fmt: skip
    group.add_argument(
        "--judge", choices=("first", "suspects", "all"), default=None,
        help="with --all: which dumps are recomputed op by op: those of every step up to the first one with a wrong op "
        "(default), those whose comparison shows a deviation, or all",
    )  # fmt: skip
    flags.add(
        group, "--table", metavar="FILE.parquet", completes="file",
        help="with --all: file for the table of all rows (default: study/study.parquet in the results folder; needs "
        "pyarrow)",
    )  # fmt: skip
    group.add_argument(
        "--csv", action="store_true", help="with --all: also write a result file for each step, rank and model"
    )
    group.add_argument(
        "--watch", metavar="SECONDS", type=flags.count(1), nargs="?", const=_LOOK, default=0,
        help="with --all: continue with new steps as they arrive, checking every SECONDS (default %(const)s), "
        "until Ctrl+C",
    )  # fmt: skip
    group.add_argument(
        "--budget", metavar="SIZE",
        help=f"with --all on statistics dumps: size limit for the full dump it suggests, e.g. 50GB or 800MB "
        f"(default {_BUDGET})",
    )  # fmt: skip
    group.add_argument("--fresh", action="store_true", help="with --all: start over, ignoring earlier progress")


def _check_no_study(session: Session, args: argparse.Namespace) -> None:
    """Raise UsageError for options, or data folders, that only a study takes."""
    study_options = {"--step": args.step, "--rank": args.rank, "--judge": args.judge, "--fresh": args.fresh}
    study_options |= {
        "--world-size": args.world_size,
        "--table": args.table,
        "--csv": args.csv,
        "--watch": args.watch,
        "--budget": args.budget,
    }
    for option, value in study_options.items():
        if value:
            place = f" {option} {value}" if option in ("--step", "--rank") else ""
            raise UsageError("cli.option_needs_all", option=option, place=place)
    if session.settings.more_data:
        raise UsageError("cli.data_folders_need_all")


def _run_study(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Run the study, show it or print it as JSON, and return the exit code of `ac`."""
    for name, option in _OF_ONE.items():
        if getattr(args, name, None):
            raise UsageError("cli.option_not_with_all", option=option)
    if args.since is not None:
        raise UsageError("cli.since_with_all")
    from precision_tool.lib.diagnose.redump import parse_bytes
    from precision_tool.lib.diagnose.study_plan import Judging, StudyOptions

    budget = parse_bytes(args.budget or _BUDGET)
    page = _study_page(session, args)
    on_study = None
    if args.watch:

        def on_study(study: Study) -> None:
            _show_or_print_study(session, args, output, study, budget, page)

    if is_remote(session.settings.work or ""):
        folder = session.workspace.on_disk().output_dir("study")
        session.workspace.notes.append(Message("note.cli.state_folder", folder=folder))
    with flags.cluster_of(args) as executor, ProgressReport(output.err, "studying") as progress:
        options = StudyOptions(
            npu=args.left, golden=args.right, graph=args.graph, steps=args.step, ranks=args.rank,
            judging=Judging(args.judge or "first"), threshold=args.threshold, table=args.table or "", csv=args.csv,
            profile=args.profile, world_size=args.world_size,
        )  # fmt: skip
        resources = flags.resources_of(session, args, executor, progress)
        study = session.study(options, resources, fresh=args.fresh, watch_seconds=args.watch, on_study=on_study)
    if not args.watch:
        _show_or_print_study(session, args, output, study, budget, page)
    if study.failures and len(study.failures) == len(study.leaves):
        raise DataNotFoundError("cli.no_leaf_analysed", folders=len(study.leaves), reason=study.failures[0].failure)
    if study.unread:
        return USER_ERROR
    return FOUND if args.fail and study.has_findings else DONE


def _study_page(session: Session, args: argparse.Namespace) -> str:
    """Return the path of the report; "" without --report."""
    if args.report is None:
        return ""
    from precision_tool.lib.view.report_material import place_of

    path = args.report or str(session.workspace.output_dir("study") / _STUDY_REPORT)
    return place_of(session.data, path, *filter(None, (args.left, args.right)))


def _show_or_print_study(
    session: Session, args: argparse.Namespace, output: Output, study: Study, budget: int, page: str
) -> None:
    """Show a study, or print it as JSON: on one line if more will follow."""
    from precision_tool.lib.view.study_screen import without_culprit

    # What is said in place of a culprit is not said twice.
    said = without_culprit(study) if study.conclusion.culprit is None and not args.json else None
    session.workspace.notes += [note for note in study.notes if note != said]
    if not study.table:
        session.workspace.notes.append(Message("note.cli.no_table"))
    redump, written = _plan_redump(session, study, budget)
    tell_notes(session, output)
    if page:
        from precision_tool.lib.data.settings import PROGRAM
        from precision_tool.lib.view.study_report import write_study

        write_study(page, study, replace(output, command=PROGRAM).command_for(session))
    merged = _merged_too(session, args, output, study)
    tell_notes(session, output)
    if args.json:
        redump_dict = None if redump is None else {**redump.to_dict(), "path": written}
        document = {**study.to_dict(), "redump": redump_dict}
        if merged is not None:
            document["sharded"] = merged.to_dict()
        output.write_json(json.dumps(document, indent=None if args.watch else 1))
        output.out.file.flush()
        return
    named = [part for option, path in (("-rt", args.right), ("-g", args.graph)) if path for part in (option, path)]
    _show_study(study, output, output.command_for(session), named if args.left else None)
    if merged is not None:
        from precision_tool.lib.view.sharded_screen import sharded_block

        output.show(*sharded_block(merged, args.limit))
    if page:
        output.print_line(text("screen.cli.report", path=shown_path(page)))
    if study.statistics is not None:
        from precision_tool.lib.view.study_screen import statistics_block

        output.out.print(statistics_block(study.statistics, redump, written))


def _merged_too(session: Session, args: argparse.Namespace, output: Output, study: Study) -> ShardedRun | None:
    """Compare the ranks merged as well, where the benchmark has another number of them; None where it has not."""
    from precision_tool.lib.diagnose.study_leaves import OTHER_RANKS

    if not any(note.kind == OTHER_RANKS for note in study.notes):
        return None
    from precision_tool.lib.cli.sharded_command import compare_merged

    try:
        return compare_merged(session, args, output)
    except PrecisionToolError as error:
        session.workspace.notes.append(Message("study.note.not_merged", reason=error.full_message))
        return None


def _plan_redump(session: Session, study: Study, budget: int) -> tuple[Redump | None, str]:
    """Return what to dump in full next, and the file with the settings for it; None without statistics."""
    from precision_tool.lib.diagnose.redump import plan_redump
    from precision_tool.lib.io.files import atomic_text

    redump = None if study.statistics is None else plan_redump(study.statistics, budget, study.names)
    if redump is None or not redump.layers:
        return redump, ""
    path = str(session.workspace.output_dir("study") / _REDUMP)
    with atomic_text(path) as file:
        file.write(redump.config_text())
    return redump, path


def _show_study(study: Study, output: Output, command: str, named: Sequence[str] | None) -> None:
    from precision_tool.lib.view.study_screen import HeatMapView, study_block, table_line

    for heat in study.maps:
        output.out.print(HeatMapView(heat))
    if study.table:
        output.out.print(table_line(text("study.table"), study.table), soft_wrap=True)
    if study.csvs:
        output.out.print(table_line(text("study.csvs", n=len(study.csvs)), study.csvs[0]), soft_wrap=True)
    output.out.print(study_block(study, command, named))
