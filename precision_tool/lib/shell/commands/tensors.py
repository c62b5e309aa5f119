"""`pt`, `cp` and `dc`: look at a tensor, compare two, decode dump files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from precision_tool.lib.compare.convert import (
    ConvertStoppedError,
    Decoded,
    Origins,
    Source,
    convert_files,
    find_sources,
)
from precision_tool.lib.compare.elements import compare_elements
from precision_tool.lib.compare.exports import write_elements, write_text
from precision_tool.lib.compare.named_tensors import (
    NamedTensor,
    View,
    pair_up,
    split_slot,
    tensors_of_file,
    tensors_of_pair,
    view_of,
)
from precision_tool.lib.compare.result_csv import atomic_text
from precision_tool.lib.discover.catalog import FoundOp
from precision_tool.lib.discover.names import parse_dump_name, shortened
from precision_tool.lib.discover.walk import find_named
from precision_tool.lib.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.formats.layouts import known_layouts
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.report import tensors as report
from precision_tool.lib.report.op import run_name
from precision_tool.lib.report.progress import ProgressReport
from precision_tool.lib.report.text import plain, shown_path
from precision_tool.lib.session import Session
from precision_tool.lib.shell.commands.base import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    completes,
    count,
    tell_notes,
)

#: Lines of a histogram.
_BINS = 12
#: The file that names what could not be decoded; the vendor's tool writes one of this name.
FAILED_LIST = "convert_failed_file_list.txt"
_LONGEST_STEM = 240
#: What has fewer bytes is done at once, and has no progress.
_QUICK_BYTES = 16 << 20
_TENSOR_HELP = "a dump file, one of its slots (FILE:output:0), a .npy file, or an op by any part of its name"


# --- what the user names ----------------------------------------------------------------------------------------------


def _add_graph(parser: Parser) -> None:
    completes(
        parser.add_argument("-g", dest="graph", metavar="GRAPH", help="graph file to look an op up in"),
        Completion.GRAPH,
    )


def _one_name(args: argparse.Namespace, command: str) -> str:
    names = [name for name in (args.name, args.option_name) if name is not None]
    if len(names) != 1 or not names[0]:
        raise UsageError(f"{command}: name one tensor, file or op", f"`{command} -h` shows how")
    return str(names[0])


def _files(session: Session, name: str) -> list[str]:
    """The paths a name stands for: itself, or files of this name in the data folder; none for what may be an op."""
    if os.path.exists(name):
        return [name]
    base = os.path.basename(name)
    is_file_name = base.endswith((".npy", ".csv")) or base.isdigit() or parse_dump_name(base) is not None
    if not is_file_name or "\0" in name:
        return []
    if base != name:
        raise DataNotFoundError(f"{name}: no such file", "check the name and the folder above it")
    space = session.workspace
    roots = [space.dump_dir(number) for number in space.debug_numbers()]
    roots += [space.tf_dump_dir, space.overflow_dump_dir, *(base / "decode" for base in space.result_dirs())]
    found = [path for root in roots if root.is_dir() for path in find_named(str(root), name)]
    if not found:
        raise DataNotFoundError(
            f"{name}: no such file, here or in {space.root}", "`ls dump` lists the dump files; or name an op"
        )
    return found


def _find_ops(session: Session, name: str, graph: str | None) -> list[tuple[FoundOp, tuple[Pair, ...]]]:
    """The op of a name in every graph, with the rows of its dump; DataNotFoundError if it has none."""
    try:
        found = session.find_ops(name, graph)
    except DataNotFoundError as error:
        raise DataNotFoundError(f"{name}: no such file, and no such op: {error.message}", error.hint) from error
    dumped = [(one, pairs) for one in found if (pairs := session.pairs_of(one))]
    if not dumped:
        raise DataNotFoundError(
            f"{found[0].op.name}: the graph has this op ({found[0].op.type}), the dump has no file of it",
            "constants, variables and ops that the compiler works out are not dumped; `ls dump` lists what is",
        )
    return dumped


def _origins(found: FoundOp) -> Origins:
    """What the graph tells of the original layout and shape of each slot of an op."""
    sides = (("input", found.op.input_descs), ("output", found.op.output_descs))
    return {
        f"{side}:{index}": (desc.dump_origin_layout or desc.origin_layout, desc.origin_shape)
        for side, descs in sides
        for index, desc in enumerate(descs)
    }


def _groups(session: Session, text: str, graph: str | None) -> list[list[NamedTensor]]:
    """What a name stands for: each tensor alone, or with its benchmark."""
    name, slot = split_slot(text)
    if os.path.isdir(name):
        raise UsageError(f"{name}: a folder", "name a file in it; `dc` decodes whole folders")
    paths = _files(session, name)
    if paths:
        return [[named] for path in paths for named in tensors_of_file(path, slot)]
    groups = []
    ops = _find_ops(session, name, graph)
    for found, pairs in ops:
        origins = _origins(found)
        for pair in pairs:
            if slot in ("", pair.slot):
                npu, golden = tensors_of_pair(pair, run_name(found.run), *origins.get(pair.slot, (None, None)))
                groups.append([npu] if golden is None else [npu, golden])
    if not groups:
        slots = ", ".join(pair.slot for pair in ops[0][1] if pair.slot)
        raise DataNotFoundError(f"{ops[0][0].op.name}: its dump has no {slot}", f"it has {slots or 'no tensors'}")
    return groups


# --- pt ---------------------------------------------------------------------------------------------------------------


def _pt_parser(session: Session) -> Parser:
    parser = Parser(
        prog="pt",
        description="Show a tensor: type, layout and shape, figures, histogram and first values. Of an op every input "
        "and output of its dump, beside the benchmark's.",
        epilog="example: pt conv1 -p 40",
    )
    completes(parser.add_argument("name", nargs="?", metavar="FILE|NAME", help=_TENSOR_HELP), Completion.TENSOR)
    completes(
        parser.add_argument("-n", dest="option_name", metavar="FILE|NAME", help="the same, as an option"),
        Completion.TENSOR,
    )
    parser.add_argument("-c", dest="save", action="store_true", help="save the values as text in temp/decode/pt")
    parser.add_argument(
        "-p", "-l", dest="shown", metavar="N", type=count(0), default=session.settings.print_count,
        help="how many of the first values to show (default %(default)s)",
    )  # fmt: skip
    _add_graph(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    return parser


def _run_pt(session: Session, args: argparse.Namespace, output: Output) -> int:
    groups = _groups(session, _one_name(args, "pt"), args.graph)
    views = [[view_of(named, bins=_BINS, first=args.shown) for named in group] for group in groups]
    saved = (
        [path for group in views for view in group if (path := _save_text(session, view, output))] if args.save else []
    )
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.tensors_json(views, saved) + "\n")
    else:
        output.show(*(report.tensor_block(group) for group in views), *map(report.saved_line, saved))
    if all(view.figures is None for group in views for view in group):
        reason = views[0][0].reason or "it holds no numbers"
        raise FormatError(f"nothing could be read: {reason}", "name another tensor")
    return DONE


def _save_text(session: Session, view: View, output: Output) -> str:
    """The path of the text written, empty for a tensor without values."""
    named = view.named
    if view.figures is None or not isinstance(named.tensor, Tensor) or named.reading is None:
        return ""
    stem = os.path.basename(named.path)
    if named.slot and not stem.endswith(".npy"):
        stem += f".{named.slot.replace(':', '.')}"
    path = session.workspace.output_dir("decode", "pt") / f"{shortened(stem, _LONGEST_STEM)}.txt"
    with _progress(output, "saving", named.tensor) as progress:
        write_text(named.tensor, named.reading, str(path), progress)
    return str(path)


# --- cp ---------------------------------------------------------------------------------------------------------------


def _cp_parser(session: Session) -> Parser:
    settings = session.settings
    parser = Parser(
        prog="cp",
        description="Compare two tensors element by element. Of an op alone, its first output with its benchmark.",
        epilog="example: cp conv1 -o 0 -al 0.01",
    )
    completes(
        parser.add_argument("names", nargs="*", metavar="LEFT RIGHT", help=f"NPU side and benchmark: {_TENSOR_HELP}"),
        Completion.TENSOR,
    )
    completes(
        parser.add_argument("-n", dest="option_names", nargs="+", metavar="NAME", help="the same, as an option"),
        Completion.TENSOR,
    )
    slot = parser.add_mutually_exclusive_group()
    slot.add_argument("-i", dest="input", metavar="N", type=count(0), help="input N of dumps and ops")
    slot.add_argument("-o", dest="output", metavar="N", type=count(0), help="output N of dumps and ops (default 0)")
    parser.add_argument(
        "-p", dest="shown", metavar="N", type=count(0), default=settings.print_count,
        help="how many first and worst elements to show (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-al", dest="atol", metavar="ATOL", type=_tolerance, default=settings.atol,
        help="absolute tolerance (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-rl", dest="rtol", metavar="RTOL", type=_tolerance, default=settings.rtol,
        help="tolerance relative to the benchmark (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("-s", dest="save", action="store_true", help="save all elements as CSV in temp/tensor_compare")
    _add_graph(parser)
    parser.add_argument(
        "--workers", metavar="N", type=count(0), default=settings.workers,
        help="processes that share a large tensor (default: one a core)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
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
    slot = f"output:{args.output}" if args.output is not None else ""
    if args.input is not None:
        slot = f"input:{args.input}"
    if len(names) == 1:
        pair, npu, golden = _op_pair(session, names[0], slot, args.graph)
    else:
        npu, golden = (_single(session, name, slot, args.graph, output) for name in names)
        pair = pair_up(npu, golden)
    with _progress(output, "comparing", pair.npu, pair.golden) as progress:
        detail = compare_elements(
            pair, atol=args.atol, rtol=args.rtol, shown=args.shown, workers=args.workers, progress=progress
        )
    saved = ""
    if args.save:
        stem = shortened(f"{Path(npu.path).name}_vs_{Path(golden.path).name}", _LONGEST_STEM)
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
    slot = own_slot or slot or "output:0"
    parsed = parse_dump_name(os.path.basename(name))
    if parsed is not None:
        name = parsed[0].op_name
    elif os.path.exists(name) and name.endswith(".npy"):
        raise UsageError(f"cp: {name} with what?", "name a second tensor")
    ops = _find_ops(session, name, graph)
    fitting = [(found, pair) for found, pairs in ops for pair in pairs if pair.slot == slot]
    if not fitting:
        slots = ", ".join(pair.slot for pair in ops[0][1] if pair.slot)
        raise DataNotFoundError(f"{ops[0][0].op.name}: its dump has no {slot}", f"it has {slots or 'no tensors'}")
    for found, pair in fitting:
        if pair.status is Status.COMPARED:
            npu, golden = tensors_of_pair(pair, run_name(found.run))
            assert golden is not None
            return pair, npu, golden
    _, pair = fitting[0]
    raise FormatError(
        f"{pair.tensor_index}: nothing to compare it with: {pair.reason}",
        "name both tensors, or another output with -o N",
    )


def _single(session: Session, text: str, slot: str, graph: str | None, output: Output) -> NamedTensor:
    """The one tensor a name stands for: of several slots that of `slot`, or output 0; of an op the NPU's tensor."""
    _, own_slot = split_slot(text)
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


# --- dc ---------------------------------------------------------------------------------------------------------------


def _dc_parser(session: Session) -> Parser:
    parser = Parser(
        prog="dc",
        description="Decode NPU dumps to .npy: a file, a folder of any level, or an op's dump. Types that numpy lacks "
        "become float32. Ends with 0 if anything was decoded; what was not is listed and counted.",
        epilog="example: dc precision_data/npu/debug_0/dump -f NCHW -o decoded",
    )
    completes(
        parser.add_argument("name", nargs="?", metavar="FILE|DIR|OP", help=f"a folder, or {_TENSOR_HELP}"),
        Completion.TENSOR,
    )
    completes(
        parser.add_argument("-n", dest="option_name", metavar="FILE|DIR|OP", help="the same, as an option"),
        Completion.TENSOR,
    )
    parser.add_argument(
        "-f", dest="layout", metavar="FORMAT", type=_layout,
        help="convert to this layout: ND, NCHW, NHWC, HWCN, NC1HWC0, FRACTAL_Z, ... (default: as stored)",
    )  # fmt: skip
    completes(
        parser.add_argument("-o", dest="folder", metavar="DIR", help="where to (default: temp/decode/dump_decode)"),
        Completion.FOLDER,
    )
    _add_graph(parser)
    parser.add_argument(
        "--workers", metavar="N", type=count(0), default=session.settings.workers,
        help="processes that share the work (default: one a core)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    return parser


def _layout(text: str) -> str:
    name = text.upper()
    if name not in known_layouts():
        raise argparse.ArgumentTypeError(f"{text!r} is no layout; known are {', '.join(known_layouts())}")
    return name


def _run_dc(session: Session, args: argparse.Namespace, output: Output) -> int:
    name = _one_name(args, "dc")
    sources, notes = _sources(session, name, args.graph, args.folder)
    session.workspace.notes += notes
    folder = os.path.commonpath([source.folder for source in sources])
    stopped: ConvertStoppedError | None = None
    try:
        with ProgressReport(output.err, "decoding") as progress:
            rows = convert_files(sources, args.layout, workers=args.workers, progress=progress)
    except ConvertStoppedError as stop:
        rows, stopped = stop.rows, stop
    failed = [row for row in rows if row.reason]
    failed_list = os.path.join(folder, FAILED_LIST)
    if failed:
        _write_failed(failed_list, failed)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.decoded_json(rows, folder) + "\n")
    else:
        output.show(report.decoded_block(rows, folder, failed_list))
    if stopped is not None:
        raise stopped
    if len(failed) == len(rows):
        reason = failed[0].reason if failed else "there is nothing to decode"
        raise FormatError(f"{name}: nothing was decoded: {reason}", "name an NPU dump, a folder of dumps or an op")
    return DONE


def _write_failed(path: str, rows: Sequence[Decoded]) -> None:
    with atomic_text(path) as file:
        for row in rows:
            reason = " ".join(row.reason.split())
            file.write(f"{':'.join(filter(None, (row.source, row.slot)))}: {reason}\n")


def _sources(
    session: Session, text: str, graph: str | None, folder: str | None
) -> tuple[list[Source], tuple[str, ...]]:
    """The files to decode, and where to."""
    if os.path.isdir(text):
        return find_sources(text, _output_folder(session, text, folder))
    name, slot = split_slot(text)
    paths = _files(session, name)
    if paths:
        found = [find_sources(path, _output_folder(session, path, folder))[0] for path in paths]
        return [replace(source, slot=slot) for sources in found for source in sources], ()
    chosen: dict[str, Source] = {}
    for one, pairs in _find_ops(session, name, graph):
        paths = [pair.npu.path for pair in pairs if pair.npu is not None and slot in ("", pair.slot)]
        for path in paths:
            (source,), _ = find_sources(path, _output_folder(session, path, folder))
            chosen.setdefault(path, replace(source, slot=slot, origins=_origins(one)))
    if not chosen:
        raise DataNotFoundError(f"{name}: its dump has no {slot or 'tensor that can be read'}", "`pt` shows its slots")
    return list(chosen.values()), ()


def _output_folder(session: Session, path: str, folder: str | None) -> str:
    """Where the results of `path` go: as asked, else the folder of its run."""
    if folder is not None:
        return folder
    place = os.path.abspath(path)
    for number in session.workspace.debug_numbers():
        root = os.path.abspath(session.workspace.debug_dir(number))
        if os.path.commonpath([root, place]) == root:
            return str(session.workspace.output_dir("decode", "dump_decode", f"debug_{number}"))
    return str(session.workspace.output_dir("decode", "dump_decode"))


PT = Command(_pt_parser, _run_pt)
CP = Command(_cp_parser, _run_cp)
DC = Command(_dc_parser, _run_dc)
