"""`ni`: everything about one op, and a drawing of its neighbourhood."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Sequence

from precision_tool.lib.cli import flags, pytorch_dumps
from precision_tool.lib.cli.command import DONE, Output, Parser, command, show_note
from precision_tool.lib.data.graph_catalog import FoundOp
from precision_tool.lib.data.neighbourhood import Wiring, neighbourhood
from precision_tool.lib.diagnose.stored_verdict import op_verdicts
from precision_tool.lib.messages import Message, text
from precision_tool.lib.session import Session
from precision_tool.lib.view import op_screen as report
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.op_report import report_of
from precision_tool.lib.view.op_screen import to_json
from precision_tool.lib.view.text import plain, shown_reason

#: Steps around an op that are drawn at most.
_MOST_STEPS = 100


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "name", nargs="?", metavar="NAME", completes="op",
        help="the op, or an op of the training script that went into it; with / or _, whole or a part that only one op "
        "has, or its number as [17]",
    )  # fmt: skip
    flags.add(parser, "-n", "--name", dest="option", metavar="NAME", help="the same", completes="op")
    flags.add_graph(parser, "graph file, or folder of them, to look in")
    flags.add(  # an op may follow, as in `ni -a NAME`
        parser, "-a", "--attr", dest="attribute", metavar="ATTR", nargs="?", const="", completes="op",
        help="all attributes and all readers too; with ATTR that attribute alone, whole, as `-a pass_name`",
    )  # fmt: skip
    parser.add_argument("-d", "--dump", action="store_true", help="the dumped tensors, which are shown without it too")
    parser.add_argument(
        "-s", "--save", dest="depth", metavar="DEPTH", type=_depth,
        help="draw the ops that lead to it and that it leads to, in up to DEPTH steps, as .gv and .svg",
    )  # fmt: skip
    flags.add(
        parser, "-o", dest="folder", metavar="DIR", completes="folder",
        help="where the drawing goes (default temp/op_graph)",
    )  # fmt: skip
    flags.add_place(parser)
    flags.add_json(parser)


def _depth(word: str) -> int:
    depth = flags.count(1)(word)
    if depth > _MOST_STEPS:
        raise argparse.ArgumentTypeError(text("argument.steps", value=repr(word[:20]), most=_MOST_STEPS))
    return depth


@command(
    "ni",
    "Show one op: its entry in the graph, its inputs and consumers, its dumped tensors next to the benchmark's, "
    "its own error, and its elements on both sides with their expected values.",
    _options,
    example="ni conv2/Relu -s 2",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    session = session.at(args.step, args.rank)
    names = [name for name in (args.name, args.option) if name is not None]
    if not names and args.attribute:  # `ni -a NAME`
        names, args.attribute = [args.attribute], ""
    everything = args.attribute == ""
    if len(names) != 1:
        run.parser(session).error(text("argument.one_op"))
    if args.folder is not None and args.depth is None:
        run.parser(session).error(text("argument.no_depth"))
    if args.folder is not None:
        session.workspace.check_outside_dumps(args.folder)
    if args.graph is None and session.data.is_pytorch_name(names[0]):
        return pytorch_dumps.show_op(session, args, names[0], output)
    hits = session.find_ops(names[0], args.graph)
    threshold = session.settings.threshold
    reports = [_report_of(session, output, hit, names[0]) for hit in hits]
    attribute = args.attribute or None
    if attribute is not None:
        attribute = report.find_attribute(reports, attribute)
    if not args.json:
        output.show(*report.op_lines(reports, threshold, everything, attribute))
    files: list[str] = []
    if args.depth is not None:
        files = _draw(session, args, output, hits)
    if args.json:
        output.write_json(to_json(reports, threshold, everything, attribute, files))
    return DONE


def _report_of(session: Session, output: Output, hit: FoundOp, name: str) -> report.OpReport:
    with ProgressReport(output.err, "reading") as progress:
        return report_of(session.data, hit, name, session.settings.workers, progress)


def _draw(session: Session, args: argparse.Namespace, output: Output, hits: Sequence[FoundOp]) -> list[str]:
    """Draw the op's neighbourhood in every graph and return the paths of the files."""
    from precision_tool.lib.view import drawing

    folder = args.folder or str(session.workspace.output_dir("op_graph"))
    files: dict[str, None] = {}
    for hit in hits:
        run = report.run_name(hit.run)
        hood = neighbourhood(hit.run.file.once(Wiring), hit.graph.name, hit.op, args.depth)
        where = ", ".join(dict.fromkeys((run, hit.graph.name, posixpath.basename(hit.run.file.path))))
        figures = drawing.Figures(
            cosines=session.cosines(hit.run),
            threshold=session.settings.threshold,
            judged=op_verdicts(session.workspace, hit.run),
        )
        source = drawing.dot_source(hood, figures, where)
        name = drawing.picture_name(hit.op.name, run, hit.graph.name, f"depth{args.depth}")
        drawn = drawing.write_drawing(source, folder, name)
        files |= dict.fromkeys(path for path in (drawn.svg, drawn.gv) if path is not None)
        if not args.json:
            output.out.print(report.drawing_lines(hood, drawn.gv, drawn.svg, run))
        if hood.left_out:
            show_note(output, Message("note.cli.drawing_left_out", ops=hood.left_out))
        if drawn.reason:
            show_note(output, Message("note.cli.no_picture", reason=drawn.reason))
            output.err.print(plain(text("screen.cli.hint", text=shown_reason(drawn.hint)), "yellow"))
    return list(files)
