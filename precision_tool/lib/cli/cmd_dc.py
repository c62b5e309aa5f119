"""`dc`: decodes dump files."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.cli.cmd_toolkit import add_engine, decode_by_toolkit, decode_the_rest, engine_of, show_decoded
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
    tell_notes,
)
from precision_tool.lib.cli.tensor_names import (
    OP_GRAPH_HELP,
    TENSOR_HELP,
    add_name,
    look_up,
    one_name,
    sources_below,
)
from precision_tool.lib.compare.convert import Decoded, Source, convert_files
from precision_tool.lib.compare.named_tensors import split_slot
from precision_tool.lib.compare.scheduler import Resources, WorkStoppedError
from precision_tool.lib.data.workspace import lies_in
from precision_tool.lib.io.files import atomic_text, folder_exists, real_path
from precision_tool.lib.io.layouts import known_layouts
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import tensors_screen as report
from precision_tool.lib.view.console import ProgressReport

#: The file that names what could not be decoded; the vendor's tool writes one of this name.
FAILED_LIST = "convert_failed_file_list.txt"


def _parser(session: Session) -> Parser:
    parser = Parser(
        prog="dc",
        description="Decode NPU dumps, and .h5 dumps of PyTorch, to .npy: a file, a folder of any level, or an op's "
        "dump. Types that numpy lacks become float32; overflow status files (Opdebug) become JSON, as msaccucmp "
        "writes it. With -f a tensor that has no such layout is kept as stored, and counted. "
        "Ends with 0 if anything was decoded; what was not is listed and counted.",
        epilog="example: dc precision_data/npu/debug_0/dump -f NCHW -o decoded",
    )
    add_name(parser, "FILE|DIR|OP", f"a folder, or {TENSOR_HELP}")
    parser.add_argument(
        "--txt", dest="text", action="store_true",
        help="beside each .npy its values as text, one per line as numpy.savetxt writes them",
    )  # fmt: skip
    layout = parser.add_argument(
        "-f", "--format", dest="layout", metavar="FORMAT", type=_layout,
        help="convert to this layout: ND, NCHW, NHWC, HWCN, NC1HWC0, FRACTAL_Z, ... (default: as stored)",
    )  # fmt: skip
    completes(layout, Completion.LAYOUT)
    completes(
        parser.add_argument(
            "-o", "--output", dest="folder", metavar="DIR", help="where to (default: temp/decode/dump_decode)"
        ),
        Completion.FOLDER,
    )
    add_graph(parser, OP_GRAPH_HELP)
    add_workers(parser, session.settings.workers)
    add_engine(parser, session)
    add_place(parser)
    add_json(parser)
    return parser


def _layout(text: str) -> str:
    name = text.upper()
    if name not in known_layouts():
        raise argparse.ArgumentTypeError(f"{text!r} is no layout; known are {', '.join(known_layouts())}")
    return name


def _run(session: Session, args: argparse.Namespace, output: Output) -> int:
    session = session.at(args.step, args.rank)
    name = one_name(args, "dc")
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
    folder = posixpath.commonpath([source.folder for source in sources])
    stopped: WorkStoppedError | None = None
    try:
        with ProgressReport(output.err, "decoding") as progress:
            rows = convert_files(sources, args.layout, Resources(args.workers, progress=progress))
    except WorkStoppedError as stop:
        rows, stopped = stop.rows, stop
    failed = [row for row in rows if row.reason]
    failed_list = posixpath.join(folder, FAILED_LIST)
    if failed:
        _write_failed(failed_list, failed)
    if failed and engine == "auto" and stopped is None and not any(source.not_by_toolkit for source in sources):
        decode_the_rest(session, sources, failed, args.layout)
    tell_notes(session, output)
    if args.json:
        output.out.file.write(report.decoded_json(rows, folder) + "\n")
    else:
        output.show(report.decoded_block(rows, folder, failed_list, args.layout or ""))
    if stopped is not None:
        raise stopped
    if len(failed) == len(rows):
        raise FormatError.of(name, "cli.nothing_decoded", reason=failed[0].reason if failed else None)
    return DONE


def _check_for_toolkit(sources: Sequence[Source], args: argparse.Namespace) -> None:
    """Raise UsageError for what msaccucmp's convert cannot do."""
    unsupported = (
        "--txt" if args.text else next((source.not_by_toolkit for source in sources if source.not_by_toolkit), "")
    )
    if unsupported:
        raise UsageError("cli.not_by_msaccucmp", command="dc", option=unsupported)


def _check_output(session: Session, folder: str, name: str, sources: Sequence[Source]) -> None:
    """Raise UsageError if the results would lie among dumps, which are only read."""
    leaves = sorted({posixpath.dirname(real_path(source.path)) for source in sources})
    parents = [dump.parent for dump in session.workspace.dump_dirs()]  # pt/x is as much the user's as pt/npu
    session.workspace.check_outside_dumps(folder, *parents, *(leaves if folder_exists(name) else ()))
    place = real_path(folder)
    for leaf in leaves:
        root = real_path(name) if folder_exists(name) else leaf
        if lies_in(place, root) and lies_in(leaf, place):
            raise UsageError("cli.holds_dumps", folder=folder)


def _write_failed(path: str, rows: Sequence[Decoded]) -> None:
    with atomic_text(path) as file:
        for row in rows:
            reason = " ".join(render(row.reason).split())
            file.write(f"{':'.join(filter(None, (row.source, row.slot)))}: {reason}\n")


def _sources(
    session: Session, text: str, graph: str | None, folder: str | None
) -> tuple[list[Source], tuple[str, ...]]:
    """Return the files to decode, each with its output folder, and notes."""
    if folder_exists(text):
        return sources_below(session, text, folder)
    name, slot = split_slot(text)
    return look_up(session, name, graph).sources(slot, folder), ()


COMMAND = Command(_parser, _run)
