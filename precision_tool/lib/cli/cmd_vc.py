"""`vc`: compare two sides and list the ops below the threshold; `vcs`: read what was compared."""

from __future__ import annotations

import argparse
from dataclasses import replace

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import Output, Parser, command
from precision_tool.lib.cli.comparison import compare_sides, measure_options, noise_floor_of, read_results
from precision_tool.lib.cli.comparison_screen import Outcome, finish, finish_mapping
from precision_tool.lib.compare.columns import METRIC_COLUMNS, parse_metrics
from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.data.pair_selection import OpNames, Selection, parse_ids, parse_range
from precision_tool.lib.io.local import shared_open_files
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session

#: Rows of the tables of the worst elements, unless --top says otherwise, and at most (the vendor's figures).
TOP, MOST_TOP = 20, 10000


def _vc_options(parser: Parser, session: Session) -> None:
    flags.add_common(parser, session, "-c", "--cos_sim")
    sides = parser.add_argument_group("what is compared")
    flags.add_sides(sides, session)
    flags.add(
        sides, "-cf", dest="other_graph", metavar="GRAPH", nargs="?", const="", completes="graph",
        help="fused against unfused: the graph of the other run (-rt), by which it is matched with the ops of the "
        "training script; without GRAPH the one that fits, and without -lt and -rt the two runs that belong together",
    )  # fmt: skip
    _add_choice(parser.add_argument_group("which ops and tensors"))
    measures = parser.add_argument_group("what is measured and written")
    _add_numbers(measures)
    flags.add_measures(measures)
    flags.add_place(sides)


def _add_choice(parser: flags.Options) -> None:
    """Add the options that select ops and their tensors."""
    ops = parser.add_mutually_exclusive_group()
    flags.add(
        ops, "-op", dest="op", metavar="NAME", action="append", completes="op",
        help="only this op (its name, a part of it, or its number as [17]; repeat it for several ops), with its worst "
        "elements as files",
    )  # fmt: skip
    ops.add_argument(
        "-r", "--range", metavar="START,END,STEP",
        help="only the ops whose ids in the graph, from 0 on as `ls` shows them, are in this range. As with msaccucmp, "
        "a START left out is 1, an END of -1 is the last, and END itself always is in it. Column OpSequence has "
        "the ids",
    )  # fmt: skip
    ops.add_argument("-s", "--select", metavar="1,5,7", help="only the ops with these ids (as `ls`)")
    parser.add_argument(
        "-i", dest="inputs", metavar="N", type=flags.count(0), action="append", help="with -op: only this input"
    )
    parser.add_argument(
        "-o", dest="outputs", metavar="N", type=flags.count(0), action="append", help="with -op: only this output"
    )
    parser.add_argument(
        "-n", "--top", metavar="N", type=flags.count(1),
        help=f"with -op: how many of the worst elements the files list (default {TOP}, at most {MOST_TOP})",
    )  # fmt: skip


def _add_numbers(parser: flags.Options) -> None:
    """Add the options on metrics, elements and the result file."""
    flags.add(
        parser, "-alg", "--algorithm", dest="metrics", metavar="NAME", nargs="+", completes="metric",
        help="only these metrics, by name or number, with commas or spaces between them: "
        + ", ".join(f"{number} {metric}" for number, metric in enumerate(METRIC_COLUMNS)),
    )  # fmt: skip
    parser.add_argument(
        "-max", "--max", metavar="N", type=flags.count(0), default=0,
        help="compare only the first N elements of each tensor (default 0: all)",
    )  # fmt: skip
    parser.add_argument(
        "-map", "--map", action="store_true",
        help="compare nothing: write which tensors of the two sides belong together as mapping_*.csv",
    )  # fmt: skip
    parser.add_argument(
        "--compat", action="store_true",
        help="write the rows and columns that msaccucmp would write, in its order, and no others",
    )  # fmt: skip


def _compare_options(args: argparse.Namespace) -> CompareOptions:
    """Return the options of the comparison. UsageError for those that exclude each other."""
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


@command(
    "vc",
    "Compare two dump folders op by op and write the result as CSV. Without folders: "
    "npu/debug_0 with tf/dump, or with npu/debug_1.",
    _vc_options,
    example="vc -op conv1/Conv2D --top 50",
)
@shared_open_files()
def run_vc(session: Session, args: argparse.Namespace, output: Output) -> int:
    options = _compare_options(args)
    if args.left is None:
        session = session.at(args.step, args.rank)
    analyses = compare_sides(session, args, output, options)
    if options.pairs_only:
        return finish_mapping(session, args, output, analyses)
    return finish(session, args, output, Outcome(analyses=analyses), is_whole=options.selection is None)


def _vcs_options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "-f", "--file", metavar="FILE|DIR", completes="result",
        help="result CSV, ours or msaccucmp's, by path or by its name alone (default: the newest)",
    )  # fmt: skip
    flags.add_common(parser, session, "-c", "--cos_sim")
    flags.add_place(parser)


@command(
    "vcs",
    "List the ops below a cosine similarity, in execution order, from a result file.",
    _vcs_options,
    example="vcs -c 0.99 -l 10",
)
def run_vcs(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.file is None and session.at(args.step, args.rank) is not session:
        from precision_tool.lib.diagnose.study import study_rows

        analyses = study_rows(session.workspace, session.place()[0], args.threshold)
    else:
        analyses = read_results(session, args.file, args.threshold, "vc", noise_floor_of(session, args))
    return finish(session, args, output, Outcome(analyses=analyses))
