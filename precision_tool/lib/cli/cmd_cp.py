"""`cp`: two tensors, compared element by element."""

from __future__ import annotations

import argparse

from precision_tool.lib.cli.cmd_pt import LONGEST_STEM, SAVED_HELP, progress_of, saved_stem, shown_count, slot_of
from precision_tool.lib.cli.command import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    add_graph,
    add_json,
    add_place,
    add_workers,
    completes,
    count,
    tell_notes,
)
from precision_tool.lib.cli.tensor_names import (
    OP_GRAPH_HELP,
    TENSOR_HELP,
    look_up,
)
from precision_tool.lib.compare.element_errors import compare_elements, write_elements
from precision_tool.lib.compare.named_tensors import pair_up, split_slot
from precision_tool.lib.compare.scheduler import Resources
from precision_tool.lib.data.dump_names import shortened
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import tensors_screen as report


def _cp_parser(session: Session) -> Parser:
    settings = session.settings
    parser = Parser(
        prog="cp",
        description="Compare two tensors element by element. Of an op alone, its first output with its benchmark.",
        epilog="example: cp conv2/Relu -o 0 -al 0.01",
    )
    completes(
        parser.add_argument("names", nargs="*", metavar="LEFT RIGHT", help=f"NPU side and benchmark: {TENSOR_HELP}"),
        Completion.TENSOR,
    )
    completes(
        parser.add_argument(
            "-n", "--name", dest="option_names", nargs="+", metavar="NAME", help="the same, as an option"
        ),
        Completion.TENSOR,
    )
    slot = parser.add_mutually_exclusive_group()
    slot.add_argument("-i", dest="input", metavar="N", type=count(0), help="input N of dumps and ops")
    slot.add_argument("-o", dest="output", metavar="N", type=count(0), help="output N of dumps and ops (default 0)")
    parser.add_argument(
        "-p", "--print", dest="shown", metavar="N", type=shown_count, default=settings.print_count,
        help="how many first and worst elements to show (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-al", "--atol", dest="atol", metavar="ATOL", type=_tolerance, default=settings.atol,
        help="absolute tolerance (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-rl", "--rtol", dest="rtol", metavar="RTOL", type=_tolerance, default=settings.rtol,
        help="tolerance relative to the benchmark (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-s", "--save", dest="save", action="store_true",
        help=f"save all elements as CSV in temp/tensor_compare, {SAVED_HELP}",
    )  # fmt: skip
    add_graph(parser, OP_GRAPH_HELP)
    add_workers(parser, settings.workers, "processes that share a large tensor (default: one per core)")
    add_place(parser)
    add_json(parser)
    return parser


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance: give a number of at least 0")
    return value


def _run_cp(session: Session, args: argparse.Namespace, output: Output) -> int:
    session = session.at(args.step, args.rank)
    names = [*args.names, *(args.option_names or ())]
    if len(names) not in (1, 2):
        raise UsageError("cli.cp_names")
    slot = slot_of(args)
    if len(names) == 1:
        name, own_slot = split_slot(names[0])
        pair, npu, golden = look_up(session, name, args.graph).pair(own_slot or slot)
    else:
        npu, golden = (
            look_up(session, name, args.graph).single(own_slot, slot, output)
            for name, own_slot in map(split_slot, names)
        )
        pair = pair_up(npu, golden)
    try:
        with progress_of(output, "comparing", pair.npu, pair.golden) as progress:
            detail = compare_elements(
                pair, Resources(args.workers, progress=progress), atol=args.atol, rtol=args.rtol, shown=args.shown
            )
    except MemoryError:
        raise FormatError.of(npu.path, "cli.no_memory", reason=Message("row.compare.no_memory")) from None
    saved = ""
    if args.save:
        stems = [saved_stem(session, named) for named in (npu, golden)]
        stem = shortened("_vs_".join(stems), LONGEST_STEM)
        saved = str(session.workspace.output_dir("tensor_compare") / f"{stem}.csv")
        with progress_of(output, "saving", pair.npu, pair.golden) as progress:
            write_elements(pair, saved, progress)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.detail_json(detail, npu, golden, saved) + "\n")
    else:
        output.show(report.detail_block(detail, npu, golden), *([report.saved_line(saved)] if saved else []))
    return DONE


COMMAND = Command(_cp_parser, _run_cp)
