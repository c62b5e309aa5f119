"""`pt`, `cp` and `dc`: look at a tensor, compare two, decode dump files."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby

from rich.console import RenderableType

from precision_tool.lib.compare.convert import (
    ConvertStoppedError,
    Decoded,
    Origins,
    Source,
    convert_files,
    find_sources,
    h5_source,
    in_own_folders,
)
from precision_tool.lib.compare.elements import compare_elements
from precision_tool.lib.compare.engine import NO_MEMORY
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
from precision_tool.lib.discover.catalog import FoundOp
from precision_tool.lib.discover.h5_files import find_h5_files, is_h5_name, is_h5_side
from precision_tool.lib.discover.names import file_part, parse_dump_name, shortened
from precision_tool.lib.discover.overflow_files import DECODED_FOLDER, parse_status_name
from precision_tool.lib.discover.walk import find_named
from precision_tool.lib.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.formats.files import atomic_text
from precision_tool.lib.formats.layouts import known_layouts
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.report import tensors as report
from precision_tool.lib.report.op import run_name
from precision_tool.lib.report.progress import ProgressReport
from precision_tool.lib.report.text import plain, shown_path
from precision_tool.lib.session import Session
from precision_tool.lib.settings import MOST_PRINTED
from precision_tool.lib.shell.commands import pytorch
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
from precision_tool.lib.shell.commands.toolkit import (
    add_engine,
    decode_by_toolkit,
    decode_the_rest,
    engine_of,
    show_decoded,
)
from precision_tool.lib.tfdbg import runs as tfdbg
from precision_tool.lib.workspace import lies_in, path_below

#: Lines of a histogram.
_BINS = 12
#: The file that names what could not be decoded; the vendor's tool writes one of this name.
FAILED_LIST = "convert_failed_file_list.txt"
_LONGEST_STEM = 240
#: Digits of the hash that tells saved files of different folders apart.
_FOLDER_HASH = 8
#: What has fewer bytes is done at once, and has no progress.
_QUICK_BYTES = 16 << 20
_SAVED_HELP = (
    "named after the tensor's file, and a hash of its folder unless that is tf/dump or the only dump of debug_0"
)
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
    is_dump_name = parse_dump_name(base) is not None or tfdbg.is_tensor_name(base)
    is_file_name = base.endswith((".npy", ".csv")) or base.isdigit() or is_dump_name
    if not is_file_name or "\0" in name:
        return []
    if base != name:
        raise DataNotFoundError(f"{name}: no such file", "check the name and the folder above it")
    space = session.workspace
    roots = [space.dump_dir(number) for number in space.debug_numbers()]
    roots += [space.tf_dump_dir, space.tf_debug_dir, space.overflow_dump_dir]
    roots += [base / "decode" for base in space.result_dirs()]
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
    if graph is None and pytorch.is_asked(session, name):
        return pytorch.tensor_groups(session, name, slot)
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
    completes(parser.add_argument("name", nargs="?", metavar="FILE|NAME", help=_TENSOR_HELP), Completion.TENSOR)
    completes(
        parser.add_argument("-n", dest="option_name", metavar="FILE|NAME", help="the same, as an option"),
        Completion.TENSOR,
    )
    slot = parser.add_mutually_exclusive_group()
    slot.add_argument("-i", dest="input", metavar="N", type=count(0), help="only input N, in full")
    slot.add_argument("-o", dest="output", metavar="N", type=count(0), help="only output N")
    parser.add_argument(
        "-c", dest="save", action="store_true", help=f"save the values as text in temp/decode/pt, {_SAVED_HELP}"
    )
    parser.add_argument(
        "-p", "-l", dest="shown", metavar="N", type=_shown, default=session.settings.print_count,
        help="how many of the first values to show (default %(default)s)",
    )  # fmt: skip
    _add_graph(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
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
    text = _one_name(args, "pt")
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
    stem = os.path.basename(named.path)
    if isinstance(named.tensor, Tensor) and named.tensor.dataset:
        stem += file_part(named.tensor.dataset.replace("/", "."))
    elif named.slot and not stem.endswith(".npy"):
        stem += f".{file_part(named.slot.replace(':', '.'))}"
    folder = os.path.realpath(os.path.dirname(named.path))
    if folder in _usual_folders(session):
        return stem
    folder = path_below(folder, os.path.realpath(session.workspace.root))  # holds wherever the data folder is moved to
    return f"{stem}~{hashlib.sha256(os.fsencode(folder)).hexdigest()[:_FOLDER_HASH]}"


def _usual_folders(session: Session) -> list[str]:
    """The benchmark's folder, and that of the run under test if it has only one: no two files have one name there."""
    leaves = [run.run.leaves for run in session.run_folders() if run.number == 0 and run.run is not None]
    only = [leaf.path for found in leaves for leaf in found if len(found) == 1]
    return [os.path.realpath(path) for path in (str(session.workspace.tf_dump_dir), *only)]


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
        "-p", dest="shown", metavar="N", type=_shown, default=settings.print_count,
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
    parser.add_argument(
        "-s", dest="save", action="store_true",
        help=f"save all elements as CSV in temp/tensor_compare, {_SAVED_HELP}",
    )  # fmt: skip
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
    slot = own_slot or slot or "output:0"
    parsed = parse_dump_name(os.path.basename(name))
    if parsed is not None:
        name = parsed[0].op_name
    elif os.path.exists(name) and name.endswith(".npy"):
        raise UsageError(f"cp: {name} with what?", "name a second tensor")
    ops = _find_ops(session, name, graph)
    fitting = [(found, pair) for found, pairs in ops for pair in pairs if pair.slot == slot]
    if not fitting:
        raise _no_slot(*ops[0], slot)
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


# --- dc ---------------------------------------------------------------------------------------------------------------


def _dc_parser(session: Session) -> Parser:
    parser = Parser(
        prog="dc",
        description="Decode NPU dumps, and .h5 dumps of PyTorch, to .npy: a file, a folder of any level, or an op's "
        "dump. Types that numpy lacks become float32; overflow status files (Opdebug) become JSON, as msaccucmp "
        "writes it. With -f a tensor that has no such layout is kept as stored, and counted. "
        "Ends with 0 if anything was decoded; what was not is listed and counted.",
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
        "--txt", dest="text", action="store_true",
        help="beside each .npy its values as text, one a line as numpy.savetxt writes them",
    )  # fmt: skip
    layout = parser.add_argument(
        "-f", dest="layout", metavar="FORMAT", type=_layout,
        help="convert to this layout: ND, NCHW, NHWC, HWCN, NC1HWC0, FRACTAL_Z, ... (default: as stored)",
    )  # fmt: skip
    completes(layout, Completion.LAYOUT)
    completes(
        parser.add_argument("-o", dest="folder", metavar="DIR", help="where to (default: temp/decode/dump_decode)"),
        Completion.FOLDER,
    )
    _add_graph(parser)
    parser.add_argument(
        "--workers", metavar="N", type=count(0), default=session.settings.workers,
        help="processes that share the work (default: one a core)",
    )  # fmt: skip
    add_engine(parser, session)
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
    if args.folder is not None:
        _check_output(session, args.folder, name, sources)
    session.workspace.notes += notes
    engine = engine_of(session, args)
    if engine == "cann":
        _check_for_toolkit(sources, args)
        decoded = decode_by_toolkit(session, sources, args.layout)
        tell_notes(session, output)
        show_decoded(decoded, output, args.json)
        return DONE
    sources = [replace(source, text=args.text) for source in sources]
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
    if failed and engine == "auto" and stopped is None and not any(is_h5_name(source.path) for source in sources):
        decode_the_rest(session, sources, failed, args.layout)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.decoded_json(rows, folder) + "\n")
    else:
        output.show(report.decoded_block(rows, folder, failed_list, args.layout or ""))
    if stopped is not None:
        raise stopped
    if len(failed) == len(rows):
        reason = failed[0].reason if failed else "there is nothing to decode"
        raise FormatError(f"{name}: nothing was decoded: {reason}", "name an NPU dump, a folder of dumps or an op")
    return DONE


def _check_for_toolkit(sources: Sequence[Source], args: argparse.Namespace) -> None:
    """Raises UsageError for what msaccucmp's convert cannot do."""
    asked = "--txt" if args.text else ".h5 dumps" if any(is_h5_name(source.path) for source in sources) else ""
    if asked:
        raise UsageError(f"dc: --engine cann does not do {asked}", "use --engine native")


def _check_output(session: Session, folder: str, name: str, sources: Sequence[Source]) -> None:
    """Raises UsageError if the results would lie among dumps, which are only read."""
    leaves = sorted({os.path.dirname(os.path.realpath(source.path)) for source in sources})
    session.workspace.check_outside_dumps(folder, *(leaves if os.path.isdir(name) else ()))
    place = os.path.realpath(folder)
    for leaf in leaves:
        root = os.path.realpath(name) if os.path.isdir(name) else leaf
        if lies_in(place, root) and lies_in(leaf, place):
            raise UsageError(f"{folder}: holds the dumps to decode, which are only read", "name another folder with -o")


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
        if is_h5_side(text):
            return _placed_h5(session, [h5_source(path) for path in find_h5_files(text)], folder), ()
        return find_sources(text, _output_folder(session, text, folder))
    name, slot = split_slot(text)
    if graph is None and pytorch.is_asked(session, name):
        return _placed_h5(session, pytorch.sources(session, name, slot), folder), ()
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


def _placed_h5(session: Session, sources: Sequence[Source], folder: str | None) -> list[Source]:
    """Where the tensors of `.h5` dumps go: as asked, but those of several dumps, or where nothing was asked, apart."""
    apart = folder is None or len(sources) > 1
    output = folder or str(session.workspace.output_dir("decode", "dump_decode", "pt"))
    placed = [replace(source, folder=output) for source in sources]
    if not apart:
        return placed
    root = os.path.abspath(session.workspace.pt_npu_dir.parent)
    places = [os.path.dirname(os.path.abspath(source.path)) for source in sources]
    is_inside = all(lies_in(place, root) for place in places)
    return in_own_folders(placed, root if is_inside else os.path.commonpath(places))


def _output_folder(session: Session, path: str, folder: str | None) -> str:
    """Where the results of `path` go: as asked, else the folder of its run."""
    if folder is not None:
        return folder
    place = os.path.abspath(path)
    for number in session.workspace.debug_numbers():
        root = os.path.abspath(session.workspace.debug_dir(number))
        if lies_in(place, root):
            return str(session.workspace.output_dir("decode", "dump_decode", f"debug_{number}"))
    root = os.path.abspath(session.workspace.overflow_dump_dir)
    if os.path.commonpath([root, place]) == root or parse_status_name(os.path.basename(place)) is not None:
        return str(session.workspace.output_dir(*DECODED_FOLDER))
    return str(session.workspace.output_dir("decode", "dump_decode"))


PT = Command(_pt_parser, _run_pt)
CP = Command(_cp_parser, _run_cp)
DC = Command(_dc_parser, _run_dc)
