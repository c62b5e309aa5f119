"""`pt` and `cp`: look at a tensor, compare two."""

from __future__ import annotations

import argparse
import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby

from rich.console import RenderableType

from precision_tool.lib.engine.bundles import NO_MEMORY
from precision_tool.lib.engine.elements import compare_elements
from precision_tool.lib.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.graph.catalog import FoundOp
from precision_tool.lib.inspect.exports import write_elements, write_text
from precision_tool.lib.inspect.named_tensors import (
    NamedTensor,
    View,
    pair_up,
    split_slot,
    tensors_of_file,
    tensors_of_pair,
    view_of,
)
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.present import tensors as report
from precision_tool.lib.present.op import run_name
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.present.text import plain
from precision_tool.lib.session import Session
from precision_tool.lib.settings import MOST_PRINTED
from precision_tool.lib.shell.commands import pytorch
from precision_tool.lib.shell.commands.base import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    add_graph,
    add_json,
    add_workers,
    completes,
    count,
    tell_notes,
)
from precision_tool.lib.shell.commands.named import (
    OP_GRAPH_HELP,
    TENSOR_HELP,
    add_name,
    dumped_ops,
    named_files,
    note_others,
    one_name,
    origins_of,
)
from precision_tool.lib.sources.names import file_part, parse_dump_name, shortened
from precision_tool.lib.storage.stores import exists, folder_exists, real_path
from precision_tool.lib.workspace import path_below, shown_path

#: Lines of a histogram.
_BINS = 12
_LONGEST_STEM = 240
#: Digits of the hash that tells saved files of different folders apart.
_FOLDER_HASH = 8
#: What has fewer bytes is done at once, and has no progress.
_QUICK_BYTES = 16 << 20
_SAVED_HELP = (
    "named after the tensor's file, and a hash of its folder unless that is tf/dump or the only dump of debug_0"
)


def _groups(session: Session, text: str, graph: str | None) -> list[list[NamedTensor]]:
    """What a name stands for: each tensor alone, or with its benchmark."""
    name, slot = split_slot(text)
    if graph is None and pytorch.is_asked(session, name):
        return pytorch.tensor_groups(session, name, slot)
    if folder_exists(name):
        raise UsageError(f"{name}: a folder", "name a file in it; `dc` decodes whole folders")
    paths = named_files(session, name)
    if paths:
        return [[named] for path in paths for named in tensors_of_file(path, slot)]
    groups = []
    ops = dumped_ops(session, name, graph)
    for found, pairs in ops:
        origins = origins_of(found)
        for pair in pairs:
            if slot in ("", pair.slot):
                npu, golden = tensors_of_pair(pair, run_name(found.run), *origins.get(pair.slot, (None, None)))
                groups.append([npu] if golden is None else [npu, golden])
    if not groups:
        raise _no_slot(*ops[0], slot)
    return groups


def _no_slot(found: FoundOp, pairs: Sequence[Pair], slot: str) -> DataNotFoundError:
    slots = ", ".join(pair.slot for pair in pairs if pair.slot)
    return DataNotFoundError(f"{found.op.name}: its dump has no {slot}", f"it has {slots or 'no tensors'}")


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
        help=f"save the values as text in temp/decode/pt, {_SAVED_HELP}",
    )
    parser.add_argument(
        "-p", "-l", "--print", dest="shown", metavar="N", type=_shown, default=session.settings.print_count,
        help="how many of the first values to show (default %(default)s)",
    )  # fmt: skip
    add_graph(parser, OP_GRAPH_HELP)
    add_json(parser)
    return parser


def _shown(text: str) -> int:
    number = count(0)(text)
    if number > MOST_PRINTED:
        raise argparse.ArgumentTypeError(f"{number} are too many to show, {MOST_PRINTED} is most; files take all")
    return number


def _slot(args: argparse.Namespace) -> str:
    """The slot that -i or -o names, empty without."""
    if args.input is not None:
        return f"input:{args.input}"
    return "" if args.output is None else f"output:{args.output}"


def _run_pt(session: Session, args: argparse.Namespace, output: Output) -> int:
    text = one_name(args, "pt")
    (name, own_slot), slot = split_slot(text), _slot(args)
    if slot and own_slot:
        raise UsageError(f"pt: {text} names {own_slot} and the options {slot}", "name the tensor once")
    groups = _groups(session, f"{name}:{slot}" if slot else text, args.graph)
    views = [[view_of(named, bins=_BINS, first=args.shown) for named in group] for group in groups]
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
        reason = views[0][0].reason or "it holds no numbers"
        raise FormatError(f"nothing could be read: {reason}", "name another tensor")
    return DONE


def _blocks(views: Sequence[Sequence[View]], is_chosen: bool) -> Iterator[RenderableType]:
    """Tensors one below the other; of ops and files that have outputs, the inputs in a table."""
    with_output = {_owner(group) for group in views if group[0].named.slot.startswith("output")}

    def in_short(group: Sequence[View]) -> bool:
        return not is_chosen and group[0].named.slot.startswith("input") and _owner(group) in with_output

    for (_, is_short), some in groupby(views, key=lambda group: (_owner(group), in_short(group))):
        if is_short:
            yield report.short_block(list(some))
        else:
            yield from map(report.tensor_block, some)


def _owner(group: Sequence[View]) -> tuple[str, str]:
    """What tells the tensors of one op or file from others."""
    named = group[0].named
    return (named.run, named.op_name) if named.side else ("", named.path)


def _saved_stem(session: Session, named: NamedTensor) -> str:
    """The name of what is saved of a tensor, without ending. Those of different files, and slots, are different."""
    stem = posixpath.basename(named.path)
    if isinstance(named.tensor, Tensor) and named.tensor.dataset:
        stem += file_part(named.tensor.dataset.replace("/", "."))
    elif named.slot and not stem.endswith(".npy"):
        stem += f".{file_part(named.slot.replace(':', '.'))}"
    folder = real_path(posixpath.dirname(named.path))
    if folder in _usual_folders(session):
        return stem
    folder = path_below(folder, real_path(session.workspace.root))  # holds wherever the data folder is moved to
    return f"{stem}~{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()[:_FOLDER_HASH]}"


def _usual_folders(session: Session) -> list[str]:
    """The benchmark's folder, and that of the run under test if it has only one: no two files have one name there."""
    leaves = [run.run.leaves for run in session.run_folders() if run.number == 0 and run.run is not None]
    only = [leaf.path for found in leaves for leaf in found if len(found) == 1]
    return [real_path(path) for path in (str(session.workspace.tf_dump_dir), *only)]


def _save_text(session: Session, view: View, output: Output) -> str:
    """The path of the text written, empty for a tensor without values."""
    named = view.named
    if view.figures is None or not isinstance(named.tensor, Tensor) or named.reading is None:
        return ""
    stem = shortened(_saved_stem(session, named), _LONGEST_STEM)
    path = session.workspace.output_dir("decode", "pt") / f"{stem}.txt"
    with _progress(output, "saving", named.tensor) as progress:
        write_text(named.tensor, named.reading, str(path), progress)
    return str(path)


# --- cp ---------------------------------------------------------------------------------------------------------------


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
        "-p", "--print", dest="shown", metavar="N", type=_shown, default=settings.print_count,
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
        help=f"save all elements as CSV in temp/tensor_compare, {_SAVED_HELP}",
    )  # fmt: skip
    add_graph(parser, OP_GRAPH_HELP)
    add_workers(parser, settings.workers, "processes that share a large tensor (default: one per core)")
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
    names = [*args.names, *(args.option_names or ())]
    if len(names) not in (1, 2):
        raise UsageError("cp: name two tensors, or one op", "`cp -h` shows how")
    slot = _slot(args)
    if len(names) == 1:
        pair, npu, golden = _op_pair(session, names[0], slot, args.graph)
    else:
        npu, golden = (_single(session, name, slot, args.graph, output) for name in names)
        pair = pair_up(npu, golden)
    try:
        with _progress(output, "comparing", pair.npu, pair.golden) as progress:
            detail = compare_elements(
                pair, atol=args.atol, rtol=args.rtol, shown=args.shown, workers=args.workers, progress=progress
            )
    except MemoryError:
        raise FormatError(f"{npu.path}: {NO_MEMORY}", "free some, or try fewer workers (--workers 1)") from None
    saved = ""
    if args.save:
        stems = [_saved_stem(session, named) for named in (npu, golden)]
        stem = shortened("_vs_".join(stems), _LONGEST_STEM)
        saved = str(session.workspace.output_dir("tensor_compare") / f"{stem}.csv")
        with _progress(output, "saving", pair.npu, pair.golden) as progress:
            write_elements(pair, saved, progress)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.detail_json(detail, npu, golden, saved) + "\n")
    else:
        output.show(report.detail_block(detail, npu, golden), *([report.saved_line(saved)] if saved else []))
    return DONE


def _progress(output: Output, what: str, *tensors: AnyTensor | None) -> ProgressReport | nullcontext[None]:
    """A progress report where there is something to wait for."""
    nbytes = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    return ProgressReport(output.err, what) if nbytes > _QUICK_BYTES else nullcontext()


def _op_pair(session: Session, text: str, slot: str, graph: str | None) -> tuple[Pair, NamedTensor, NamedTensor]:
    """An op's tensor and its benchmark, as `vc` pairs them. A dump file stands for its op."""
    name, own_slot = split_slot(text)
    if graph is None and pytorch.is_asked(session, name):
        return pytorch.op_pair(session, name, own_slot or slot)
    is_chosen = bool(own_slot or slot)
    slot = own_slot or slot or "output:0"
    parsed = parse_dump_name(posixpath.basename(name))
    if parsed is not None:
        name = parsed[0].op_name
    elif exists(name) and name.endswith(".npy"):
        raise UsageError(f"cp: {name} with what?", "name a second tensor")
    ops = dumped_ops(session, name, graph)
    fitting = [(found, pair, pairs) for found, pairs in ops for pair in pairs if pair.slot == slot]
    if not fitting:
        raise _no_slot(*ops[0], slot)
    for found, pair, pairs in fitting:
        if pair.status is Status.COMPARED:
            npu, golden = tensors_of_pair(pair, run_name(found.run))
            assert golden is not None
            if not is_chosen:
                outputs = dict.fromkeys(one.slot for one in pairs if one.slot.startswith("output:"))
                others = [f"-o {one.partition(':')[2]}" for one in outputs if one != slot]
                note_others(session, name, slot, others)
            return pair, npu, golden
    _, pair, _ = fitting[0]
    raise FormatError(
        f"{pair.tensor_index}: nothing to compare it with: {pair.reason}",
        "name both tensors, or another output with -o N",
    )


def _single(session: Session, text: str, slot: str, graph: str | None, output: Output) -> NamedTensor:
    """The one tensor a name stands for: of several slots that of `slot`, or output 0; of an op the NPU's tensor."""
    name, own_slot = split_slot(text)
    if graph is None and pytorch.is_asked(session, name):
        return pytorch.single_tensor(session, name, own_slot or slot)
    groups = _groups(session, text, graph)
    wanted = own_slot or slot or "output:0"
    fitting = [group[0] for group in groups if group[0].slot in ("", wanted)]
    if not fitting and len(groups) == 1 and not (own_slot or slot):
        fitting = [groups[0][0]]
    if not fitting:
        slots = ", ".join(dict.fromkeys(group[0].slot for group in groups))
        raise DataNotFoundError(f"{text}: no {wanted}", f"it has {slots}: choose with -i N or -o N")
    if len(fitting) > 1:
        others = len(fitting) - 1
        note = f"note: {text} is found {len(fitting)} times; {shown_path(fitting[0].path)} is taken, {others} left out"
        output.err.print(plain(note, "yellow"), soft_wrap=True)
    return fitting[0]


PT = Command(_pt_parser, _run_pt)
CP = Command(_cp_parser, _run_cp)
