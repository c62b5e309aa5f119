"""`ac --all`: every step, rank and model of one or many data folders, and one verdict on them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_tool.lib.cli.command import (
    DONE,
    FOUND,
    Completion,
    Output,
    Parser,
    cluster_of,
    completes,
    count,
    resources_of,
    tell_notes,
)
from precision_tool.lib.io.urls import is_remote
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.redump import Redump
    from precision_tool.lib.diagnose.study import Study

#: Seconds between two looks for new steps.
_LOOK = 30
#: What a whole dump may take, unless told.
_BUDGET = "10GB"
_REDUMP = "redump_config.py"
_REPORT = "report.html"

#: Options of `ac` that are of one comparison, and what each is called.
_OF_ONE = {
    "overflow": "--overflow_detection", "custom": "--custom", "file": "-f", "noise": "--noise-floor",
    "since": "--since", "engine": "--engine",
}  # fmt: skip


def add_study(parser: Parser) -> None:
    """Add the options of a study."""
    group = parser.add_argument_group("many ranks and steps")
    group.add_argument(
        "--all", dest="all", action="store_true",
        help="a study: compare and judge every step, rank and model below the data folders (--data several times, or a "
        "pattern), and name the earliest step, rank and op that computes wrong. What was done is kept: the same "
        "command goes on where it was stopped",
    )  # fmt: skip
    group.add_argument("--step", metavar="N", help="with --all: these steps only: 3, 0-7 or 1,5,8-")
    group.add_argument("--rank", metavar="N", help="with --all: these ranks only")
    group.add_argument(
        "--judge", choices=("first", "suspects", "all"), default=None,
        help="with --all, which dumps are recomputed op by op: those of every step up to the first in which something "
        "computes wrong (default), those in which the comparison shows something, or all",
    )  # fmt: skip
    table = group.add_argument(
        "--table", metavar="FILE.parquet",
        help="with --all: where the table of all rows is written (default: study/study.parquet in the folder of "
        "results; needs pyarrow)",
    )  # fmt: skip
    completes(table, Completion.FILE)
    group.add_argument("--csv", action="store_true", help="with --all: a result file for each step, rank and model too")
    group.add_argument(
        "--watch", metavar="SECONDS", type=count(1), nargs="?", const=_LOOK, default=0,
        help="with --all: go on as new steps arrive, looking every SECONDS (default %(const)s), until Ctrl+C",
    )  # fmt: skip
    group.add_argument(
        "--budget", metavar="SIZE",
        help=f"with --all, of dumps of statistics: what a whole dump may take that is to tell more, as 50GB or 800MB "
        f"(default {_BUDGET})",
    )  # fmt: skip
    group.add_argument("--fresh", action="store_true", help="with --all: begin anew, whatever was done before")


def check_no_study(session: Session, args: argparse.Namespace) -> None:
    """Raise UsageError for options, or data folders, that only a study takes."""
    study_options = {"--step": args.step, "--rank": args.rank, "--judge": args.judge, "--fresh": args.fresh}
    study_options |= {"--table": args.table, "--csv": args.csv, "--watch": args.watch, "--budget": args.budget}
    for option, value in study_options.items():
        if value:
            place = f" {option} {value}" if option in ("--step", "--rank") else ""
            raise UsageError("cli.option_needs_all", option=option, place=place)
    if session.settings.more_data:
        raise UsageError("cli.data_folders_need_all")


def run_study_command(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Run the study, show it or print it as JSON, and return the exit code of `ac`."""
    for name, option in _OF_ONE.items():
        if getattr(args, name, None):
            raise UsageError("cli.option_not_with_all", option=option)
    if args.since is not None:
        raise UsageError("cli.since_with_all")
    from precision_tool.lib.diagnose.redump import parse_bytes
    from precision_tool.lib.diagnose.study_plan import Judging, StudyOptions

    budget = parse_bytes(args.budget or _BUDGET)
    page = _page(session, args)
    on_study = None
    if args.watch:

        def on_study(study: Study) -> None:
            _show_or_print(session, args, output, study, budget, page)

    if is_remote(session.settings.work or ""):
        folder = session.workspace.on_disk().output_dir("study")
        session.workspace.notes.append(Message("note.cli.state_folder", folder=folder))
    with cluster_of(args) as executor, ProgressReport(output.err, "studying") as progress:
        options = StudyOptions(
            npu=args.left, golden=args.right, graph=args.graph, steps=args.step, ranks=args.rank,
            judging=Judging(args.judge or "first"), threshold=args.threshold, table=args.table or "", csv=args.csv,
        )  # fmt: skip
        resources = resources_of(session, args, executor, progress)
        study = session.study(options, resources, fresh=args.fresh, watch_seconds=args.watch, on_study=on_study)
    if not args.watch:
        _show_or_print(session, args, output, study, budget, page)
    if study.failures and len(study.failures) == len(study.leaves):
        raise DataNotFoundError("cli.no_leaf_analysed", folders=len(study.leaves), reason=study.failures[0].failure)
    has_findings = study.conclusion.culprit is not None or any(leaf.below or leaf.bad for leaf in study.leaves)
    has_findings |= not study.has_evidence or (study.statistics is not None and bool(study.statistics.suspicions))
    return FOUND if args.fail and has_findings else DONE


def _page(session: Session, args: argparse.Namespace) -> str:
    """Return the path of the report; "" without --report."""
    if args.report is None:
        return ""
    from precision_tool.lib.view.report_material import place_of

    path = args.report or str(session.workspace.output_dir("study") / _REPORT)
    return place_of(session.data, path, *filter(None, (args.left, args.right)))


def _show_or_print(
    session: Session, args: argparse.Namespace, output: Output, study: Study, budget: int, page: str
) -> None:
    """Show a study, or print it as JSON: on one line if more will follow."""
    session.workspace.notes += study.notes
    if not study.table:
        session.workspace.notes.append(Message("note.cli.no_table"))
    redump, written = _redump(session, study, budget)
    tell_notes(session, output)
    if page:
        from precision_tool.lib.view.study_report import write_study

        write_study(page, study)
    if args.json:
        redump_dict = None if redump is None else {**redump.to_dict(), "path": written}
        document = {**study.to_dict(), "redump": redump_dict}
        output.out.file.write(json.dumps(document, indent=None if args.watch else 1) + "\n")
        output.out.file.flush()
        return
    named = [part for option, path in (("-rt", args.right), ("-g", args.graph)) if path for part in (option, path)]
    _show(study, output, output.command_for(session), named if args.left else None)
    if page:
        from precision_tool.lib.cli.cmd_report import tell_report

        tell_report(page, output)
    if study.statistics is not None:
        from precision_tool.lib.view.study_screen import statistics_block

        output.out.print(statistics_block(study.statistics, redump, written))


def _redump(session: Session, study: Study, budget: int) -> tuple[Redump | None, str]:
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


def _show(study: Study, output: Output, command: str, named: Sequence[str] | None) -> None:
    from precision_tool.lib.view.study_screen import HeatMapView, study_block, table_line

    for heat in study.maps:
        output.out.print(HeatMapView(heat))
    if study.table:
        output.out.print(table_line("table", study.table), soft_wrap=True)
    if study.csvs:
        output.out.print(table_line(f"{len(study.csvs)} result files, the first", study.csvs[0]), soft_wrap=True)
    output.out.print(study_block(study, command, named))
