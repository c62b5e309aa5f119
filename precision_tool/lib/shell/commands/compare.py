"""`vc`, `vcs` and `ac`: compare two sides, list the ops below the threshold, name the first faulty one."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from precision_tool.lib.checks.analysis import Analysis, tell_overflow
from precision_tool.lib.checks.casts import cast_pairs
from precision_tool.lib.compare.folders import DEFAULT_OPTIONS, CompareOptions
from precision_tool.lib.compare.result_source import newer_than
from precision_tool.lib.engine.custom import load_metrics
from precision_tool.lib.errors import (
    DataNotFoundError,
    FormatError,
    NoBenchmarkError,
    OutputError,
    UsageError,
)
from precision_tool.lib.model.finding import CheckResult, FindingKind, Grade
from precision_tool.lib.model.table import ColumnChoice
from precision_tool.lib.pairing.selection import OpNames, Selection, parse_ids, parse_range
from precision_tool.lib.present import compare as report
from precision_tool.lib.present.checks import check_line, check_panel
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.present.text import plain
from precision_tool.lib.present.whole import Heading
from precision_tool.lib.results.columns import METRIC_COLUMNS, columns_of, parse_metrics
from precision_tool.lib.results.noise import NoiseFloor, find_noise, read_noise
from precision_tool.lib.results.result_csv import write_own_errors
from precision_tool.lib.results.result_files import named_result
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import (
    DONE,
    FOUND,
    Command,
    Completion,
    Output,
    Parser,
    add_cluster,
    add_graph,
    add_json,
    add_place,
    add_side,
    add_workers,
    cluster_of,
    completes,
    cosine,
    count,
    tell_notes,
)
from precision_tool.lib.shell.commands.study import add_study, check_no_study, run_study_command
from precision_tool.lib.shell.commands.toolkit import add_engine, ask_toolkit, engine_of

if TYPE_CHECKING:  # `vc` and `vcs` begin without what only `ac` needs
    from rich.text import Text

    from precision_tool.lib.checks.comparing import OtherRun
    from precision_tool.lib.verdict.decide import Judged
    from precision_tool.lib.verdict.model import Verdict
    from precision_tool.lib.verdict.since import Since
    from precision_tool.lib.verdict.stored import StoredVerdict
from precision_tool.lib.sources.kinds import kind_at
from precision_tool.lib.workspace import shown_path, typed_path

#: Rows of the tables of the worst elements, unless --top says otherwise, and at most (the vendor's figures).
_TOP, _MOST_TOP = 20, 10000


#: Findings of a comparison that no verdict replaces.
_ALWAYS_TOLD = (FindingKind.UNREADABLE, FindingKind.NOTHING_COMPARED)


def _add_common(parser: Parser, session: Session) -> None:
    settings = session.settings
    parser.add_argument(
        *(["-c", "--cos_sim"] if parser.prog != "ac" else []),  # in ac, -c means compare
        "--threshold",
        dest="threshold",
        metavar="COS",
        type=cosine,
        default=settings.threshold,
        help="cosine similarity below which a tensor counts as wrong (default %(default)s)",
    )
    parser.add_argument(
        "-l", "--limit", dest="limit", metavar="N", type=count(0), default=settings.limit,
        help="how many ops to show, 0 for all (default %(default)s)",
    )  # fmt: skip
    add_json(parser)
    parser.set_defaults(verbose=False)
    parser.add_argument("--fail", action="store_true", help="exit code 1 if anything is below the threshold")
    noise = parser.add_argument(
        "--noise-floor",
        dest="noise",
        metavar="FILE",
        nargs="?",
        const="",
        help="judge each tensor also against its own noise in two runs of the same script: a file that `random` wrote, "
        "or a folder of them (default: the newest)",
    )
    completes(noise, Completion.FILE)


def _add_sides(parser: Parser, session: Session) -> None:
    add_side(parser, session, "-lt", "--left", "NPU dump: a folder of any level of the dump tree, or debug_1")
    add_side(parser, session, "-rt", "--right", "benchmark .npy files, or the dump of another NPU run")
    add_graph(parser)
    add_workers(parser, None)
    add_cluster(parser)
    add_engine(parser, session)


def _add_measures(parser: Parser) -> None:
    parser.add_argument(
        "-overflow_detection",
        "--overflow_detection",
        dest="overflow",
        action="store_true",
        help="look for float16 values of 65504 or more: column OverFlow",
    )
    custom = parser.add_argument(
        "--custom",
        metavar="FILE.py",
        help="your own metrics: the file is run, and its functions compare_*(x, y), or those that its list METRICS "
        "names, become columns. x is the NPU tensor, y the benchmark's, whole in memory (at most 4 GiB a pair and "
        "worker); they return a number or a short text",
    )
    completes(custom, Completion.FILE)


def _add_choice(parser: Parser) -> None:
    """Which ops, and what of them."""
    ops = parser.add_mutually_exclusive_group()
    name = ops.add_argument(
        "-op",
        dest="op",
        metavar="NAME",
        action="append",
        help="only this op (its name, a part of it, or its number as [17]; again for more ops), with its worst "
        "elements as files",
    )
    completes(name, Completion.OP)
    ops.add_argument(
        "-r",
        "--range",
        dest="range",
        metavar="START,END,STEP",
        help="only the ops whose ids in the graph, from 0 on as `ls` shows them, are in this range. As with msaccucmp, "
        "a START left out is 1, an END of -1 is the last, and END itself always is in it. Column OpSequence has "
        "the ids",
    )
    ops.add_argument("-s", "--select", dest="select", metavar="1,5,7", help="only the ops with these ids (as `ls`)")
    parser.add_argument(
        "-i", dest="inputs", metavar="N", type=count(0), action="append", help="with -op: only this input"
    )
    parser.add_argument(
        "-o", dest="outputs", metavar="N", type=count(0), action="append", help="with -op: only this output"
    )
    parser.add_argument(
        "-n",
        "--top",
        dest="top",
        metavar="N",
        type=count(1),
        help=f"with -op: how many of the worst elements the files list (default {_TOP}, at most {_MOST_TOP})",
    )
    metrics = parser.add_argument(
        "-alg",
        "--algorithm",
        dest="metrics",
        metavar="NAME",
        nargs="+",
        help="only these metrics, by name or number, with commas or spaces between them: "
        + ", ".join(f"{number} {metric}" for number, metric in enumerate(METRIC_COLUMNS)),
    )
    completes(metrics, Completion.METRIC)
    parser.add_argument(
        "-max",
        "--max",
        dest="max",
        metavar="N",
        type=count(0),
        default=0,
        help="compare only the first N elements of each tensor (default: all)",
    )
    parser.add_argument(
        "-map",
        "--map",
        dest="map",
        action="store_true",
        help="compare nothing: write which tensors of the two sides belong together as mapping_*.csv",
    )
    parser.add_argument(
        "--compat",
        action="store_true",
        help="write the rows and columns that msaccucmp would write, in its order, and no others",
    )


def _vc_parser(session: Session) -> Parser:
    parser = Parser(
        prog="vc",
        description="Compare two dump folders op by op and write the result as CSV. Without folders: "
        "npu/debug_0 with tf/dump, or with npu/debug_1.",
        epilog="example: vc -op conv1/Conv2D --top 50",
    )
    _add_sides(parser, session)
    other = parser.add_argument(
        "-cf", dest="other_graph", metavar="GRAPH", nargs="?", const="",
        help="fused against unfused: the graph of the other run (-rt), by which it is matched with the ops of the "
        "training script; without GRAPH the one that fits, and without -lt and -rt the two runs that belong together",
    )  # fmt: skip
    completes(other, Completion.GRAPH)
    _add_choice(parser)
    _add_measures(parser)
    _add_common(parser, session)
    return parser


def _vcs_parser(session: Session) -> Parser:
    parser = Parser(
        prog="vcs",
        description="List the ops below a cosine similarity, in execution order, from a result file.",
        epilog="example: vcs -c 0.99 -l 10",
    )
    file = parser.add_argument(
        "-f",
        "--file",
        dest="file",
        metavar="FILE|DIR",
        help="result CSV, ours or msaccucmp's, by path or by its name alone (default: the newest)",
    )
    completes(file, Completion.RESULT)
    _add_common(parser, session)
    add_place(parser)
    return parser


def _ac_parser(session: Session) -> Parser:
    parser = Parser(
        prog="ac",
        description="Check everything and name the first op that computes wrong. Without -c the newest result is read.",
        epilog="example: ac -c",
    )
    parser.add_argument(
        "-c",
        "--vector_compare",
        dest="compare",
        action="store_true",
        help="compare first; implied by the options of the comparison",
    )
    _add_sides(parser, session)
    _add_measures(parser)
    file = parser.add_argument(
        "-f", "--file", dest="file", metavar="FILE|DIR",
        help="an earlier result in place of the newest; also one of a part, as a comparison that was stopped leaves it",
    )  # fmt: skip
    completes(file, Completion.RESULT)
    _add_common(parser, session)
    since = parser.add_argument(
        "--since", dest="since", metavar="RESULT", nargs="?", const="",
        help="after a fix: whether the culprit of an earlier verdict (a result file or folder, or the verdict_*.json "
        "beside one; default: the newest earlier one) computes right now, and whether the switch took effect",
    )  # fmt: skip
    completes(since, Completion.RESULT)
    parser.add_argument("-v", "--verbose", action="store_true", help="every panel whole, not only the verdict's")
    page = parser.add_argument(
        "--report", dest="report", metavar="FILE.html", nargs="?", const="",
        help="write all of it as one HTML file too (default: beside the result); `report` does so later",
    )  # fmt: skip
    completes(page, Completion.FILE)
    add_study(parser)
    return parser


def _compare(
    session: Session, args: argparse.Namespace, output: Output, options: CompareOptions = DEFAULT_OPTIONS
) -> list[Analysis]:
    workers = session.settings.workers if args.workers is None else args.workers
    left, right = args.left, args.right
    if options.other_graph is not None and left is None and right is None:
        pair = session.fusion_pair()
        session.workspace.notes += pair.notes
        left, right = (str(session.workspace.dump_dir(run.number or 0)) for run in (pair.fused, pair.unfused))

    noise = _noise_floor(session, args)

    def by_toolkit(prefix: str = "") -> list[Analysis]:
        from precision_tool.lib.checks.comparing import compare_by_toolkit

        return compare_by_toolkit(
            session, session.tools(), left, right, args.graph, args.threshold, options, prefix, noise
        )

    engine = engine_of(session, args)
    if engine == "cann":
        return by_toolkit()
    try:
        with cluster_of(args) as executor, ProgressReport(output.err, "comparing") as progress:
            analyses = session.compare(
                left, right, args.graph, args.threshold, workers, progress, options, noise, executor=executor
            )
    except FormatError as error:
        has_graph = kind_at(left or session.default_npu()).has_graph  # else msaccucmp is not asked
        if engine != "auto" or not has_graph or session.toolkit().msaccucmp is None:
            raise
        session.workspace.notes.append(f"native cannot read it, so the toolkit compares: {error.message}")
        return by_toolkit()
    if engine == "auto":
        ask_toolkit(session, analyses, by_toolkit)
    return analyses


def _noise_floor(session: Session, args: argparse.Namespace) -> NoiseFloor | None:
    """The noise floor that was asked for."""
    if args.noise is None:
        return None
    return read_noise(find_noise(args.noise, session.workspace.result_dirs()))


def _measure_options(args: argparse.Namespace) -> CompareOptions:
    """What `vc` and `ac` both can be asked for."""
    taken = [column.name for column in columns_of(ColumnChoice(sequence=True, overflow=True, golden_address=True))]
    custom = load_metrics(args.custom, taken) if args.custom else None
    return CompareOptions(overflow=args.overflow, custom=custom)


def _options(args: argparse.Namespace) -> CompareOptions:
    """The options of `vc`; UsageError for those that make no sense together."""
    _refuse("only goes with -op", args.op is None, {"-i": args.inputs, "-o": args.outputs, "--top": args.top})
    _refuse("does not go with -op, which looks at whole tensors", args.op is not None, {"--max": args.max})
    of_numbers = {"--algorithm": args.metrics, "--max": args.max, "--overflow_detection": args.overflow}
    _refuse(
        "does not go with --map, which compares nothing",
        args.map,
        {"-op": args.op, **of_numbers, "--custom": args.custom},
    )
    if args.top is not None and args.top > _MOST_TOP:
        raise UsageError(f"vc: --top {args.top}: at most {_MOST_TOP}", "`cp -s` saves every element of two tensors")
    selection: Selection | None = None
    if args.op is not None:
        selection = OpNames(names=tuple(args.op), inputs=tuple(args.inputs or ()), outputs=tuple(args.outputs or ()))
    elif args.range is not None:
        selection = parse_range(args.range)
    elif args.select is not None:
        selection = parse_ids(args.select)
    return replace(
        _measure_options(args),
        selection=selection,
        metrics=parse_metrics(",".join(args.metrics)) if args.metrics else None,
        limit=args.max,
        worst=(args.top or _TOP) if args.op is not None else 0,
        pairs_only=args.map,
        compat=args.compat,
        other_graph=args.other_graph,
    )


def _refuse(why: str, holds: bool, options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value]
    if holds and given:
        raise UsageError(f"vc: {given[0]} {why}", "`vc -h` shows the options")


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
        if not is_many:
            _show_since(held, output)
        _show_verdict(session, verdict, output, analysis.part)
    if is_many:
        _show_other(other, output)
        _show_since(held, output)
        _show_checks(checks, output, next(filter(None, verdicts), None), verbose=args.verbose)
        if not any(analysis.leaf is not None and analysis.leaf.details for analysis in analyses):
            output.out.print(Heading(plain("summary")))
            output.out.print(report.summary_lines(analyses, _verdict_lines(analyses, verdicts)))


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
    from precision_tool.lib.present.verdict import verdict_line

    return [None if verdict is None else verdict_line(verdict) for verdict in verdicts]


def _show_verdict(session: Session, verdict: Verdict | None, output: Output, part: str = "") -> None:
    if verdict is not None:
        from precision_tool.lib.present.verdict import verdict_block

        output.out.print(verdict_block(verdict, part, output.command_for(session)))


def _show_since(held: Since | None, output: Output) -> None:
    if held is not None:
        from precision_tool.lib.present.verdict import since_block

        output.out.print(since_block(held))


def _show_checks(
    checks: Sequence[CheckResult], output: Output, verdict: Verdict | None = None, *, verbose: bool = False
) -> None:
    """Each check: whole, or in one line where a verdict stands that it says nothing of."""
    if verdict is None or verbose:
        for check in checks:
            output.out.print(check_panel(check))
        return
    from precision_tool.lib.present.verdict import belongs_to

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


def _finish(
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
            from precision_tool.lib.present.passports import passport_lines

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


def _run_vc(session: Session, args: argparse.Namespace, output: Output) -> int:
    options = _options(args)
    analyses = _compare(session, args, output, options)
    if options.pairs_only:
        return _finish_mapping(session, args, output, analyses)
    return _finish(session, args, output, analyses, is_whole=options.selection is None)


def _finish_mapping(session: Session, args: argparse.Namespace, output: Output, analyses: list[Analysis]) -> int:
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


def _read(session: Session, path: str | None, threshold: float, again: str, noise: NoiseFloor | None) -> list[Analysis]:
    """Earlier results, with a note where what was compared has changed since; `again` compares it."""
    analyses = session.results(path, threshold, noise)
    sources = [(analysis.path, analysis.source) for analysis in analyses if analysis.source is not None]
    changed = dict.fromkeys(one for result, source in sources for one in newer_than(result, source))
    session.workspace.notes += [f"{one} is newer than this result: `{again}` compares anew" for one in changed]
    return analyses


def _run_vcs(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.file is None and session.at(args.step, args.rank) is not session:
        return _finish(session, args, output, session.study_rows(args.threshold))
    noise = _noise_floor(session, args)
    return _finish(session, args, output, _read(session, args.file, args.threshold, "vc", noise))


def _run_ac(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.all:
        return run_study_command(session, args, output)
    check_no_study(session, args)
    asked = (
        args.left, args.right, args.graph, args.workers, args.cluster, args.engine, args.custom, args.overflow or None
    )  # fmt: skip
    compares = args.compare or any(option is not None for option in asked)
    if compares and args.file is not None:
        raise UsageError("-f reads an earlier result: it does not go with -c or the options of a comparison")
    if args.report:  # before the hours that a comparison may take
        from precision_tool.lib.report.making import place_of

        place_of(session, args.report, *filter(None, (args.left, args.right)))
    earlier = _earlier(session, args, compares=compares)
    analyses: Sequence[Analysis] = []
    lack: NoBenchmarkError | None = None
    other: OtherRun | None = None
    if compares or (args.file is None and session.has_dump_alone()):
        try:
            options = replace(_measure_options(args), extremes=True, beside=cast_pairs)
            analyses = _compare(session, args, output, options)
            other = _compare_other(session, args, output)
        except NoBenchmarkError as error:
            if not session.kind().has_graph:
                raise
            lack = error  # the NPU's dump alone tells something too
    else:
        analyses = _read(session, args.file, args.threshold, "ac -c", _noise_floor(session, args))
    from precision_tool.lib.checks.run_checks import all_checks

    checks = all_checks(session, analyses, args.threshold, npu=args.left, graph=args.graph, limit=args.limit)
    from precision_tool.lib.verdict.since import since

    analyses, kept = _verdicts(session, args, output, analyses, is_alone=lack is not None)
    verdicts = [None if one is None else one.as_verdict() for one in kept]
    if any(one is not None and one.run for one in verdicts):  # its next step says how that run is compared
        from precision_tool.lib.checks.comparing import forget_second_run

        forget_second_run(session.workspace)
    held = None if earlier is None else next((since(earlier, one) for one in kept if one is not None), None)
    if args.since is None and held is not None and not args.json:
        where = typed_path(held.file)
        session.workspace.notes.append(f"an earlier verdict named {held.culprit}: `ac --since {where}` compares")
        held = None
    if lack is not None:
        alone = [one for one in verdicts if one is not None]
        code = _finish_alone(session, args, output, lack, checks, alone, held)
        _report(session, args, output, analyses, kept, checks)
        return code
    for check in checks:
        if check.finding is not None and check.finding.kind == FindingKind.OVERFLOW:
            analyses = [tell_overflow(analysis, check.finding) for analysis in analyses]
    code = _finish(
        session, args, output, analyses, checks=checks, verdicts=verdicts, is_whole=compares, held=held, other=other
    )
    _report(session, args, output, analyses, kept, checks)
    return code


def _compare_other(session: Session, args: argparse.Namespace, output: Output) -> OtherRun | None:
    """The run with fusion beside one without it, or the other way round, where no sides were named."""
    if (args.left, args.right, args.graph) != (None, None, None) or engine_of(session, args) == "cann":
        return None
    from precision_tool.lib.checks.comparing import compare_other_run

    workers = session.settings.workers if args.workers is None else args.workers
    with ProgressReport(output.err, "comparing the other run") as progress:
        return compare_other_run(
            session, args.threshold, workers, progress, _measure_options(args), _noise_floor(session, args)
        )


def _report(
    session: Session,
    args: argparse.Namespace,
    output: Output,
    analyses: Sequence[Analysis],
    kept: Sequence[StoredVerdict | None],
    checks: Sequence[CheckResult],
) -> None:
    """Writes the report, where one was asked for."""
    if args.report is None:
        return
    from precision_tool.lib.report.making import make_report
    from precision_tool.lib.shell.commands.report import tell_report

    path = make_report(session, analyses, kept, args.report, graph=args.graph, checks=checks)
    if not args.json:
        tell_report(path, output)


def _earlier(session: Session, args: argparse.Namespace, *, compares: bool) -> StoredVerdict | None:
    """The verdict that today's is held against: that of --since, or the newest earlier one that named a culprit.

    DataNotFoundError where one was asked for and there is none. Without `compares` the newest is today's itself.
    """
    from precision_tool.lib.verdict.stored import read_verdict, stored_verdicts

    if args.since:
        found = read_verdict(named_result(session.workspace, args.since))
        if found.verdict["culprit"] is None:
            raise UsageError(f"{args.since}: this verdict names no culprit", "name an earlier result with one")
        return found
    if args.since is None and not compares:
        return None
    todays: set[str] = set()
    if not compares:
        todays = {one.path for one in session.stored_verdicts()}
    known = (one for one in stored_verdicts(session.workspace) if one.path not in todays)
    earlier = next((one for one in known if one.verdict["culprit"] is not None), None)
    if earlier is None and args.since is not None:
        raise DataNotFoundError(
            f"{session.workspace.root}: no earlier verdict that names a culprit",
            "`ac -c` keeps one with each result; name a verdict_*.json of elsewhere with --since FILE",
        )
    return earlier


def _finish_alone(
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
        _show_since(held, output)
        for verdict in says:
            _show_verdict(session, verdict, output)
    if not says:
        raise lack
    return _exit_code([], checks, args.fail, verdicts)


def _verdicts(
    session: Session, args: argparse.Namespace, output: Output, analyses: Sequence[Analysis], *, is_alone: bool
) -> tuple[Sequence[Analysis], list[StoredVerdict | None]]:
    """The verdict on each result, or without a benchmark on the NPU's dump alone; kept from now on.

    That of an earlier result is read where it is kept; a new one comes with the own errors in its rows and its file.
    """
    from precision_tool.lib.verdict.of_results import with_own_errors
    from precision_tool.lib.verdict.stored import read_beside, stored

    if not is_alone:
        known = [None if one.leaf is not None else read_beside(one.path, one.threshold) for one in analyses]
        if known and all(known):
            return analyses, [*known]
    workers = session.settings.workers if args.workers is None else args.workers
    with ProgressReport(output.err, "recomputing") as progress:
        judged: Sequence[Judged | None]
        if is_alone:
            judged = session.verdicts_alone(args.left, args.graph, progress, workers)
        else:
            judged = session.verdicts(analyses, args.left, args.graph, progress, workers)
            pairs = zip(analyses, judged, strict=True)
            analyses = [analysis if one is None else with_own_errors(analysis, one) for analysis, one in pairs]
    found = [None if one is None else stored(one, args.threshold) for one in judged]
    with suppress(OutputError):  # whoever asks for it later has it judged again
        _keep(session, analyses, found, is_alone=is_alone)
    return analyses, found


def _keep(
    session: Session, analyses: Sequence[Analysis], found: Sequence[StoredVerdict | None], *, is_alone: bool
) -> None:
    """Writes verdicts beside the results that are of our making."""
    from precision_tool.lib.verdict.stored import write_alone, write_verdict

    if is_alone:
        time = datetime.now().strftime("%Y%m%d%H%M%S")
        for number, one in enumerate(found):
            if one is not None and not one.as_verdict().is_empty:
                write_alone(one, session.workspace, time, number)
        return
    for analysis, one in zip(analyses, found, strict=True):
        if one is not None and analysis.path and analysis.source is not None:
            if analysis.leaf is not None and analysis.choice.own_error:
                write_own_errors(analysis.path, analysis.rows, analysis.choice)
            write_verdict(one, analysis.path, str(session.workspace.root))


VC = Command(_vc_parser, _run_vc)
VCS = Command(_vcs_parser, _run_vcs)
AC = Command(_ac_parser, _run_ac)
