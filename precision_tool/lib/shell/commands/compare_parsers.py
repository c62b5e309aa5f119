"""The options of `vc`, `vcs` and `ac`."""

from __future__ import annotations

from precision_tool.lib.results.columns import METRIC_COLUMNS
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import (
    Completion,
    Parser,
    add_cluster,
    add_graph,
    add_json,
    add_place,
    add_side,
    add_workers,
    completes,
    cosine,
    count,
)
from precision_tool.lib.shell.commands.compare_options import MOST_TOP, TOP
from precision_tool.lib.shell.commands.study import add_study
from precision_tool.lib.shell.commands.toolkit import add_engine


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
    """Which ops, and which of their tensors."""
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


def _add_numbers(parser: Parser) -> None:
    """Which numbers of the tensors, and how they are written."""
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


def vc_parser(session: Session) -> Parser:
    """The options of `vc`."""
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
    _add_numbers(parser)
    _add_measures(parser)
    _add_common(parser, session)
    return parser


def vcs_parser(session: Session) -> Parser:
    """The options of `vcs`."""
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


def ac_parser(session: Session) -> Parser:
    """The options of `ac`."""
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
