"""`pt`: one tensor, looked at; `cp`: two tensors, compared element by element."""

from __future__ import annotations

import argparse
import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby

from rich.console import RenderableType

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, show_result
from precision_tool.lib.cli.tensor_names import OP_GRAPH_HELP, TENSOR_HELP, add_name, look_up, one_name
from precision_tool.lib.compare.convert import write_text
from precision_tool.lib.compare.element_errors import compare_elements, write_elements
from precision_tool.lib.compare.named_tensors import NamedTensor, View, pair_up, split_slot, views_of
from precision_tool.lib.compare.scheduler import Resources
from precision_tool.lib.data.dump_names import file_part, shortened
from precision_tool.lib.data.kinds import NPY
from precision_tool.lib.data.settings import MOST_PRINTED
from precision_tool.lib.data.workspace import path_below
from precision_tool.lib.io.files import real_path
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.session import Session
from precision_tool.lib.view import tensors_screen as report
from precision_tool.lib.view.console import ProgressReport

#: Lines of a histogram.
_BINS = 12
#: Bytes of a file's name without its ending.
_LONGEST_STEM = 240
#: Digits of the hash that tells saved files of different folders apart.
_FOLDER_HASH = 8
#: What has fewer bytes is done at once, and has no progress.
_QUICK_BYTES = 16 << 20
_SAVED_HELP = (
    "named after the tensor's file, and a hash of its folder unless that is tf/dump or the only dump of debug_0"
)


# --- pt ---------------------------------------------------------------------------------------------------------------


def _pt_options(parser: Parser, session: Session) -> None:
    add_name(parser, "FILE|NAME", TENSOR_HELP)
    _add_slot(parser, "only input N, in full", "only output N")
    parser.add_argument(
        "-c", "--convert", dest="save", action="store_true",
        help=f"save the values as text in temp/decode/pt, {_SAVED_HELP}",
    )  # fmt: skip
    parser.add_argument(
        "-p", "-l", "--print", dest="shown", metavar="N", type=_shown_count, default=session.settings.print_count,
        help="how many of the first values to show (default %(default)s)",
    )  # fmt: skip
    flags.add_graph(parser, OP_GRAPH_HELP)
    flags.add_place(parser)
    flags.add_json(parser)


def _shown_count(word: str) -> int:
    number = flags.count(0)(word)
    if number > MOST_PRINTED:
        raise argparse.ArgumentTypeError(text("argument.shown", number=number, most=MOST_PRINTED))
    return number


def _add_slot(parser: Parser, input_help: str, output_help: str) -> None:
    """Add the options that `_slot_of` reads."""
    slot = parser.add_mutually_exclusive_group()
    slot.add_argument("-i", dest="input", metavar="N", type=flags.count(0), help=input_help)
    slot.add_argument("-o", dest="output", metavar="N", type=flags.count(0), help=output_help)


def _slot_of(args: argparse.Namespace) -> str:
    """Return the slot that -i or -o names; "" without them."""
    if args.input is not None:
        return f"input:{args.input}"
    return "" if args.output is None else f"output:{args.output}"


@command(
    "pt",
    "Show a tensor: type, layout and shape, figures, histogram and first values. Of an op, or a whole "
    "dump file, the outputs like this and the inputs in short, beside the benchmark's.",
    _pt_options,
    example="pt conv2/Relu -p 40",
)
def run_pt(session: Session, args: argparse.Namespace, output: Output) -> int:
    session = session.at(args.step, args.rank)
    text = one_name(args, "pt")
    (name, own_slot), slot = split_slot(text), _slot_of(args)
    if slot and own_slot:
        raise UsageError("cli.slot_twice", name=text, own_slot=own_slot, slot=slot)
    groups = look_up(session, name, args.graph).groups(own_slot or slot)
    all_views = iter(views_of([named for group in groups for named in group], bins=_BINS, first=args.shown))
    views = [[next(all_views) for _ in group] for group in groups]
    saved = (
        [path for group in views for view in group if (path := _save_text(session, view, output))] if args.save else []
    )
    show_result(
        session, args, output,
        lambda: report.tensors_json(views, saved),
        lambda: [*_blocks(views, is_chosen=bool(slot or own_slot)), *map(report.saved_line, saved)],
    )  # fmt: skip
    if all(view.figures is None for group in views for view in group):
        raise FormatError.of(
            views[0][0].named.path, "cli.no_values", what=Message("note.cli.nothing_read"), reason=views[0][0].reason
        )
    return DONE


def _blocks(views: Sequence[Sequence[View]], is_chosen: bool) -> Iterator[RenderableType]:
    """Return a block for each tensor; inputs of ops and files that have outputs share a table."""
    with_output = {_owner(group) for group in views if group[0].named.slot.startswith("output")}

    def in_short(group: Sequence[View]) -> bool:
        return not is_chosen and group[0].named.slot.startswith("input") and _owner(group) in with_output

    for (_, is_short), some in groupby(views, key=lambda group: (_owner(group), in_short(group))):
        if is_short:
            yield report.short_block(list(some))
        else:
            yield from map(report.tensor_block, some)


def _owner(group: Sequence[View]) -> tuple[str, str]:
    """Return what distinguishes the tensors of one op or file from others."""
    named = group[0].named
    return (named.run, named.op_name) if named.side else ("", named.path)


def _saved_stem(session: Session, named: NamedTensor) -> str:
    """Return the file name, without ending, for a saved tensor: different for different files and slots."""
    stem = posixpath.basename(named.path)
    if isinstance(named.tensor, Tensor) and named.tensor.dataset:
        stem += file_part(named.tensor.dataset.replace("/", "."))
    elif named.slot and not NPY.has_suffix(stem):
        stem += f".{file_part(named.slot.replace(':', '.'))}"
    folder = real_path(posixpath.dirname(named.path))
    if folder in _usual_folders(session):
        return stem
    folder = path_below(folder, real_path(session.workspace.root))  # holds wherever the data folder is moved to
    return f"{stem}~{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()[:_FOLDER_HASH]}"


def _usual_folders(session: Session) -> list[str]:
    """Return the folders in which file names are unique: the benchmark's, and that of a run with a single one."""
    leaves = [run.run.leaves for run in session.data.run_folders() if run.number == 0 and run.run is not None]
    only = [leaf.path for group in leaves for leaf in group if len(group) == 1]
    return [real_path(path) for path in (str(session.workspace.tf_dump_dir), *only)]


def _save_text(session: Session, view: View, output: Output) -> str:
    """Write a tensor as text and return the path; "" for a tensor without values."""
    named = view.named
    if view.figures is None or not isinstance(named.tensor, Tensor) or named.reading is None:
        return ""
    stem = shortened(_saved_stem(session, named), _LONGEST_STEM)
    path = session.workspace.output_dir("decode", "pt") / f"{stem}.txt"
    with _progress_of(output, "saving", named.tensor) as progress:
        write_text(named.tensor, named.reading, str(path), progress)
    return str(path)


def _progress_of(output: Output, what: str, *tensors: AnyTensor | None) -> ProgressReport | nullcontext[None]:
    """Return a progress report for large tensors, else a context without one."""
    nbytes = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    return ProgressReport(output.err, what) if nbytes > _QUICK_BYTES else nullcontext()


# --- cp ---------------------------------------------------------------------------------------------------------------


def _cp_options(parser: Parser, session: Session) -> None:
    settings = session.settings
    flags.add(
        parser, "names", nargs="*", metavar="LEFT RIGHT", completes="tensor",
        help=f"NPU side and benchmark: {TENSOR_HELP}",
    )  # fmt: skip
    flags.add(
        parser, "-n", "--name", dest="option_names", nargs="+", metavar="NAME", completes="tensor",
        help="the same, as an option",
    )  # fmt: skip
    _add_slot(parser, "input N of dumps and ops", "output N of dumps and ops (default 0)")
    parser.add_argument(
        "-p", "--print", dest="shown", metavar="N", type=_shown_count, default=settings.print_count,
        help="how many first and worst elements to show (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-al", "--atol", metavar="ATOL", type=_tolerance, default=settings.atol,
        help="absolute tolerance (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-rl", "--rtol", metavar="RTOL", type=_tolerance, default=settings.rtol,
        help="tolerance relative to the benchmark (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-s", "--save", action="store_true",
        help=f"save all elements as CSV in temp/tensor_compare, {_SAVED_HELP}",
    )  # fmt: skip
    flags.add_graph(parser, OP_GRAPH_HELP)
    flags.add_workers(parser, settings.workers, "processes that share a large tensor (default 0: one per core)")
    flags.add_place(parser)
    flags.add_json(parser)


def _tolerance(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(text("argument.tolerance", value=repr(word)))
    return value


@command(
    "cp",
    "Compare two tensors element by element. Of an op alone, its first output with its benchmark.",
    _cp_options,
    example="cp conv2/Relu -o 0 -al 0.01",
)
def run_cp(session: Session, args: argparse.Namespace, output: Output) -> int:
    session = session.at(args.step, args.rank)
    names = [*args.names, *(args.option_names or ())]
    if len(names) not in (1, 2):
        raise UsageError("cli.cp_names")
    slot = _slot_of(args)
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
        with _progress_of(output, "comparing", pair.npu, pair.golden) as progress:
            detail = compare_elements(
                pair, Resources(args.workers, progress=progress), atol=args.atol, rtol=args.rtol, shown=args.shown
            )
    except MemoryError:
        raise FormatError.of(npu.path, "cli.no_memory", reason=Message("row.compare.no_memory")) from None
    saved = ""
    if args.save:
        stems = [_saved_stem(session, named) for named in (npu, golden)]
        stem = shortened("_vs_".join(stems), _LONGEST_STEM)
        saved = str(session.workspace.output_dir("tensor_compare") / f"{stem}.csv")
        with _progress_of(output, "saving", pair.npu, pair.golden) as progress:
            write_elements(pair, saved, progress)
    return show_result(
        session, args, output,
        lambda: report.detail_json(detail, npu, golden, saved),
        lambda: [report.detail_block(detail, npu, golden), *([report.saved_line(saved)] if saved else [])],
    )  # fmt: skip
