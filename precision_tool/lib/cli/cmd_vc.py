"""`vc`: compare two sides and list the ops below the threshold."""

from __future__ import annotations

import argparse
from dataclasses import replace

from precision_tool.lib.cli.cmd_toolkit import ask_toolkit, engine_of
from precision_tool.lib.cli.command import (
    Command,
    Completion,
    Options,
    Output,
    Parser,
    cluster_of,
    completes,
    count,
    resources_of,
)
from precision_tool.lib.cli.comparison_options import (
    add_common,
    add_measures,
    add_sides,
    measure_options,
    noise_floor_of,
)
from precision_tool.lib.cli.comparison_screen import Outcome, finish, finish_mapping
from precision_tool.lib.compare.columns import METRIC_COLUMNS, parse_metrics
from precision_tool.lib.compare.folders import DEFAULT_OPTIONS, CompareOptions
from precision_tool.lib.data.kinds import kind_at
from precision_tool.lib.data.pair_selection import OpNames, Selection, parse_ids, parse_range
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.io.local import shared_open_files
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport

#: Rows of the tables of the worst elements, unless --top says otherwise, and at most (the vendor's figures).
TOP, MOST_TOP = 20, 10000


def vc_parser(session: Session) -> Parser:
    """Return the parser of `vc`."""
    parser = Parser(
        prog="vc",
        description="Compare two dump folders op by op and write the result as CSV. Without folders: "
        "npu/debug_0 with tf/dump, or with npu/debug_1.",
        epilog="example: vc -op conv1/Conv2D --top 50",
    )
    add_common(parser, session)
    sides = parser.add_argument_group("what is compared")
    add_sides(sides, session)
    other = sides.add_argument(
        "-cf", dest="other_graph", metavar="GRAPH", nargs="?", const="",
        help="fused against unfused: the graph of the other run (-rt), by which it is matched with the ops of the "
        "training script; without GRAPH the one that fits, and without -lt and -rt the two runs that belong together",
    )  # fmt: skip
    completes(other, Completion.GRAPH)
    _add_choice(parser.add_argument_group("which ops and tensors"))
    measures = parser.add_argument_group("what is measured and written")
    _add_numbers(measures)
    add_measures(measures)
    return parser


def _add_choice(parser: Options) -> None:
    """Add the options that select ops and their tensors."""
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
        help=f"with -op: how many of the worst elements the files list (default {TOP}, at most {MOST_TOP})",
    )


def _add_numbers(parser: Options) -> None:
    """Add the options on metrics, elements and the result file."""
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


def compare_options(args: argparse.Namespace) -> CompareOptions:
    """Return the options of `vc`. UsageError for those that exclude each other."""
    _refuse("vc_only_with_op", args.op is None, {"-i": args.inputs, "-o": args.outputs, "--top": args.top})
    _refuse("vc_not_with_op", args.op is not None, {"--max": args.max})
    of_numbers = {"--algorithm": args.metrics, "--max": args.max, "--overflow_detection": args.overflow}
    _refuse("vc_not_with_map", args.map, {"-op": args.op, **of_numbers, "--custom": args.custom})
    if args.top is not None and args.top > MOST_TOP:
        raise UsageError("cli.top_too_large", top=args.top, most=MOST_TOP)
    selection: Selection | None = None
    if args.op is not None:
        selection = OpNames(names=tuple(args.op), inputs=tuple(args.inputs or ()), outputs=tuple(args.outputs or ()))
    elif args.range is not None:
        selection = parse_range(args.range)
    elif args.select is not None:
        selection = parse_ids(args.select)
    return replace(
        measure_options(args),
        selection=selection,
        metrics=parse_metrics(",".join(args.metrics)) if args.metrics else None,
        limit=args.max,
        worst=(args.top or TOP) if args.op is not None else 0,
        pairs_only=args.map,
        compat=args.compat,
        other_graph=args.other_graph,
    )


def _refuse(kind: str, holds: bool, options: dict[str, object]) -> None:
    set_options = [name for name, value in options.items() if value]
    if holds and set_options:
        raise UsageError(f"cli.{kind}", option=set_options[0])


def compare_sides(
    session: Session, args: argparse.Namespace, output: Output, options: CompareOptions = DEFAULT_OPTIONS
) -> list[Analysis]:
    """Compare the two sides that were asked for, by the engine that was asked for."""
    from precision_tool.lib.diagnose.comparing import compare, compare_by_toolkit, fusion_pair

    left, right = args.left, args.right
    if options.other_graph is not None and left is None and right is None:
        pair = fusion_pair(session.data)
        session.workspace.notes += pair.notes
        left, right = (str(session.workspace.dump_dir(run.number or 0)) for run in (pair.fused, pair.unfused))

    options = replace(options, graph=args.graph, threshold=args.threshold, noise=noise_floor_of(session, args))

    def by_toolkit(prefix: str = "") -> list[Analysis]:
        return compare_by_toolkit(session.data, session.tools(), left, right, replace(options, prefix=prefix))

    engine = engine_of(session, args)
    if engine == "cann":
        return by_toolkit()
    try:
        with cluster_of(args) as executor, ProgressReport(output.err, "comparing") as progress:
            analyses = compare(session.data, left, right, options, resources_of(session, args, executor, progress))
    except FormatError as error:
        has_graph = kind_at(left or session.data.default_npu()).has_graph  # else msaccucmp is not asked
        if engine != "auto" or not has_graph or session.toolkit().msaccucmp is None:
            raise
        session.workspace.notes.append(Message("note.cli.toolkit_compares", reason=error.full_message))
        return by_toolkit()
    if engine == "auto":
        ask_toolkit(session, analyses, by_toolkit)
    return analyses


@shared_open_files()
def _run_vc(session: Session, args: argparse.Namespace, output: Output) -> int:
    options = compare_options(args)
    analyses = compare_sides(session, args, output, options)
    if options.pairs_only:
        return finish_mapping(session, args, output, analyses)
    return finish(session, args, output, Outcome(analyses=analyses), is_whole=options.selection is None)


COMMAND = Command(vc_parser, _run_vc)
