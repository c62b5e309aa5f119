"""`report`: one HTML file with all that is known of a result."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Sequence
from contextlib import suppress

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command
from precision_tool.lib.cli.comparison import judge_place
from precision_tool.lib.data.workspace import lies_in, shown_path
from precision_tool.lib.diagnose.comparing import read_results
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.diagnose.run_checks import check_benchmark_fits
from precision_tool.lib.diagnose.stored_verdict import newest_verdicts, read_beside, read_verdict
from precision_tool.lib.io.files import folder_exists, real_path
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.session import Session


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "result", nargs="?", metavar="RESULT", completes="result",
        help="a result CSV, a folder of results, or a verdict_*.json (default: the newest result)",
    )  # fmt: skip
    flags.add(parser, "-o", dest="output", metavar="FILE.html", default="", help="output file (default: "
                                 "beside the result)", completes="file")  # fmt: skip
    flags.add(
        parser, "--model-explorer", dest="exchange", metavar="FILE.json", completes="file",
        help="write the graph for Google's model-explorer instead, with its node data next to it (own error, cosine)",
    )  # fmt: skip
    flags.add_graph(parser, "the graph for the map, where the result does not tell its own")
    flags.add_place(parser)


@command(
    "report",
    "Write one HTML file with the verdict, a map of the network, every op, tables and charts of a "
    "result. It needs no network and no server: open it, send it.",
    _options,
    example="report -o resnet.html",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    from precision_tool.lib.view.model_explorer import export_graphs
    from precision_tool.lib.view.report_material import make_report

    if args.exchange is not None and args.output:
        raise UsageError("cli.options_exclude", command="report", option="-o", other="--model-explorer")
    if args.result is None:
        session = judge_place(session, args, output)
    diagnoses = _diagnoses(session, args.result)
    if args.exchange is not None:
        for path in export_graphs(session.data, diagnoses, args.exchange, graph=args.graph):
            output.print_line(text("screen.cli.model_explorer", path=shown_path(path)))
        return DONE
    folder = posixpath.dirname(posixpath.expanduser(args.output))
    is_new = bool(folder) and not folder_exists(folder)
    checks = _checks(session, diagnoses, args.graph)
    path = make_report(session.data, diagnoses, args.output, graph=args.graph, checks=checks)
    if is_new:
        output.print_line(text("screen.cli.made_folder", path=shown_path(folder)))
    output.print_line(text("screen.cli.report", path=shown_path(path)))
    return DONE


def _checks(session: Session, diagnoses: Sequence[Diagnosis], graph: str | None) -> list[CheckResult]:
    """Return what `ac` checks beside the comparison; nothing for results that are not of the data folder's runs."""
    from precision_tool.lib.diagnose.checked_ops import with_verdicts
    from precision_tool.lib.diagnose.run_checks import all_checks

    analyses = [diagnosis.analysis for diagnosis in diagnoses if diagnosis.analysis is not None]
    own = real_path(str(session.workspace.root))
    runs = [analysis.source.npu for analysis in analyses if analysis.source is not None]
    if len(runs) < len(analyses) or not all(lies_in(real_path(run), own) for run in runs):
        return []
    with suppress(PrecisionToolError):  # the dumps are gone, of which the page has notes
        checks = all_checks(session.data, analyses, session.settings.threshold, graph=graph)
        return with_verdicts(checks, (diagnosis.stored for diagnosis in diagnoses))
    return []


def _diagnoses(session: Session, path: str | None) -> list[Diagnosis]:
    """Return the results that are meant with the verdicts kept beside them; without a result the newest verdict."""
    threshold = session.settings.threshold
    if path is not None and path.endswith(".json"):
        return [Diagnosis(stored=read_verdict(path))]
    try:
        analyses = read_results(session.data, path, threshold)
        check_benchmark_fits(analyses)
    except DataNotFoundError:
        alone = newest_verdicts(session.workspace) if path is None else []
        if not alone:
            raise
        return [Diagnosis(stored=verdict) for verdict in alone]
    verdicts = [read_beside(analysis.path) for analysis in analyses]
    if not any(verdicts) and any(analysis.has_graph for analysis in analyses):  # others are never judged
        session.workspace.notes.append(Message("note.cli.no_verdict"))
    # What the verdict called wrong is called so here.
    analyses = [
        read_results(session.data, analysis.path, verdict.threshold)[0]
        if verdict is not None and verdict.threshold != analysis.threshold
        else analysis
        for analysis, verdict in zip(analyses, verdicts, strict=True)
    ]
    return [Diagnosis(analysis=analysis, stored=verdict) for analysis, verdict in zip(analyses, verdicts, strict=True)]
