"""`pt`: one tensor, looked at."""

from __future__ import annotations

import argparse
import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby

from rich.console import RenderableType

from precision_tool.lib.cli.command import (
    DONE,
    Command,
    Output,
    Parser,
    add_graph,
    add_json,
    add_place,
    count,
    tell_notes,
)
from precision_tool.lib.cli.tensor_names import (
    OP_GRAPH_HELP,
    TENSOR_HELP,
    add_name,
    look_up,
    one_name,
)
from precision_tool.lib.compare.exports import write_text
from precision_tool.lib.compare.named_tensors import NamedTensor, View, split_slot, views_of
from precision_tool.lib.data.dump_names import file_part, shortened
from precision_tool.lib.data.kinds import NPY
from precision_tool.lib.data.settings import MOST_PRINTED
from precision_tool.lib.data.workspace import path_below
from precision_tool.lib.io.files import real_path
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.session import Session
from precision_tool.lib.view import tensors_screen as report
from precision_tool.lib.view.console import ProgressReport

#: Lines of a histogram.
_BINS = 12
LONGEST_STEM = 240
#: Digits of the hash that tells saved files of different folders apart.
_FOLDER_HASH = 8
#: What has fewer bytes is done at once, and has no progress.
_QUICK_BYTES = 16 << 20
SAVED_HELP = (
    "named after the tensor's file, and a hash of its folder unless that is tf/dump or the only dump of debug_0"
)


# --- pt ---------------------------------------------------------------------------------------------------------------


def _pt_parser(session: Session) -> Parser:
    parser = Parser(
        prog="pt",
        description="Show a tensor: type, layout and shape, figures, histogram and first values. Of an op, or a whole "
        "dump file, the outputs like this and the inputs in short, beside the benchmark's.",
        epilog="example: pt conv2/Relu -p 40",
    )
    add_name(parser, "FILE|NAME", TENSOR_HELP)
    slot = parser.add_mutually_exclusive_group()
    slot.add_argument("-i", dest="input", metavar="N", type=count(0), help="only input N, in full")
    slot.add_argument("-o", dest="output", metavar="N", type=count(0), help="only output N")
    parser.add_argument(
        "-c",
        "--convert",
        dest="save",
        action="store_true",
        help=f"save the values as text in temp/decode/pt, {SAVED_HELP}",
    )
    parser.add_argument(
        "-p", "-l", "--print", dest="shown", metavar="N", type=shown_count, default=session.settings.print_count,
        help="how many of the first values to show (default %(default)s)",
    )  # fmt: skip
    add_graph(parser, OP_GRAPH_HELP)
    add_place(parser)
    add_json(parser)
    return parser


def shown_count(text: str) -> int:
    number = count(0)(text)
    if number > MOST_PRINTED:
        raise argparse.ArgumentTypeError(f"{number} are too many to show, {MOST_PRINTED} is most; files take all")
    return number


def slot_of(args: argparse.Namespace) -> str:
    """Return the slot that -i or -o names; "" without them."""
    if args.input is not None:
        return f"input:{args.input}"
    return "" if args.output is None else f"output:{args.output}"


def _run_pt(session: Session, args: argparse.Namespace, output: Output) -> int:
    session = session.at(args.step, args.rank)
    text = one_name(args, "pt")
    (name, own_slot), slot = split_slot(text), slot_of(args)
    if slot and own_slot:
        raise UsageError("cli.slot_twice", name=text, own_slot=own_slot, slot=slot)
    groups = look_up(session, name, args.graph).groups(own_slot or slot)
    all_views = iter(views_of([named for group in groups for named in group], bins=_BINS, first=args.shown))
    views = [[next(all_views) for _ in group] for group in groups]
    saved = (
        [path for group in views for view in group if (path := _save_text(session, view, output))] if args.save else []
    )
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.tensors_json(views, saved) + "\n")
    else:
        blocks = _blocks(views, is_chosen=bool(slot or own_slot))
        output.show(*blocks, *map(report.saved_line, saved))
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


def saved_stem(session: Session, named: NamedTensor) -> str:
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
    stem = shortened(saved_stem(session, named), LONGEST_STEM)
    path = session.workspace.output_dir("decode", "pt") / f"{stem}.txt"
    with progress_of(output, "saving", named.tensor) as progress:
        write_text(named.tensor, named.reading, str(path), progress)
    return str(path)


def progress_of(output: Output, what: str, *tensors: AnyTensor | None) -> ProgressReport | nullcontext[None]:
    """Return a progress report for large tensors, else a context without one."""
    nbytes = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    return ProgressReport(output.err, what) if nbytes > _QUICK_BYTES else nullcontext()


COMMAND = Command(_pt_parser, _run_pt)
