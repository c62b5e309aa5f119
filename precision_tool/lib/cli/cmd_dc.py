"""`dc`: decodes dump files."""

from __future__ import annotations

import argparse
import json
import posixpath
from collections.abc import Sequence
from dataclasses import replace

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.cmd_toolkit import hand_over
from precision_tool.lib.cli.command import DONE, Output, Parser, command, tell_notes
from precision_tool.lib.cli.tensor_names import OP_GRAPH_HELP, TENSOR_HELP, add_name, look_up, one_name, sources_below
from precision_tool.lib.compare.convert import Decoded, Source, convert_files
from precision_tool.lib.compare.named_tensors import split_slot
from precision_tool.lib.compare.scheduler import Resources, WorkStoppedError
from precision_tool.lib.data.workspace import lies_in, shown_path
from precision_tool.lib.io.files import atomic_text, folder_exists, real_path
from precision_tool.lib.io.layouts import known_layouts
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view import tensors_screen as report
from precision_tool.lib.view.console import ProgressReport

#: The file that names what could not be decoded; the vendor's tool writes one of this name.
FAILED_LIST = "convert_failed_file_list.txt"


def _options(parser: Parser, session: Session) -> None:
    add_name(parser, "FILE|DIR|OP", f"a folder, or {TENSOR_HELP}")
    parser.add_argument(
        "--txt", dest="text", action="store_true",
        help="beside each .npy its values as text, one per line as numpy.savetxt writes them",
    )  # fmt: skip
    flags.add(
        parser, "-f", "--format", dest="layout", metavar="FORMAT", type=_layout, completes="layout",
        help="convert to this layout: ND, NCHW, NHWC, HWCN, NC1HWC0, FRACTAL_Z, ... (default: as stored)",
    )  # fmt: skip
    flags.add(
        parser, "-o", "--output", dest="folder", metavar="DIR", completes="folder",
        help="where to (default: temp/decode/dump_decode)",
    )  # fmt: skip
    flags.add_graph(parser, OP_GRAPH_HELP)
    flags.add_workers(parser, session.settings.workers)
    flags.add_engine(parser, session)
    flags.add_place(parser)
    flags.add_json(parser)


def _layout(word: str) -> str:
    name = word.upper()
    if name not in known_layouts():
        raise argparse.ArgumentTypeError(text("argument.layout", value=repr(word), names=tuple(known_layouts())))
    return name


@command(
    "dc",
    "Decode NPU dumps, and .h5 dumps of PyTorch, to .npy: a file, a folder of any level, or an op's "
    "dump. Types that numpy lacks become float32; overflow status files (Opdebug) become JSON, as msaccucmp "
    "writes it. With -f a tensor that has no such layout is kept as stored, and counted. "
    "Ends with 0 if anything was decoded; what was not is listed and counted.",
    _options,
    example="dc precision_data/npu/debug_0/dump -f NCHW -o decoded",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    session = session.at(args.step, args.rank)
    name = one_name(args, "dc")
    sources, notes = _sources(session, name, args.graph, args.folder)
    if args.folder is not None:
        _check_output(session, args.folder, name, sources)
    session.workspace.notes += notes
    engine = flags.engine_of(session, args)
    if engine == "cann":
        _check_for_toolkit(sources, args)
        decoded = _decode_by_toolkit(session, sources, args.layout)
        tell_notes(session, output)
        _show_decoded(decoded, output, args.json)
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
        _decode_the_rest(session, sources, failed, args.layout)
    tell_notes(session, output)
    if args.json:
        output.write_json(report.decoded_json(rows, folder))
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
) -> tuple[list[Source], tuple[Message, ...]]:
    """Return the files to decode, each with its output folder, and notes."""
    if folder_exists(text):
        return sources_below(session, text, folder)
    name, slot = split_slot(text)
    return look_up(session, name, graph).sources(slot, folder), ()


def _decode_by_toolkit(session: Session, sources: Sequence[Source], layout: str | None) -> list[str]:
    """Decode dump files with msaccucmp and return the paths of the `.npy` files; add its notes."""
    tools = session.tools()
    options = [] if layout is None else ["-f", layout]
    by_folder: dict[str, dict[str, str]] = {}
    for source in sources:
        by_folder.setdefault(source.folder, {})[source.name] = source.path
    paths: list[str] = []
    for folder, dumps in by_folder.items():
        made = tools.convert(dumps, folder, options)
        paths += made.paths
        session.workspace.notes += made.notes
    return paths


def _show_decoded(paths: Sequence[str], output: Output, is_json: bool) -> None:
    """Show the files that msaccucmp decoded."""
    if is_json:
        output.write_json(json.dumps({"engine": "cann", "files": list(paths)}, indent=2))
        return
    for folder in dict.fromkeys(map(posixpath.dirname, paths)):
        count = sum(posixpath.dirname(path) == folder for path in paths)
        output.print_line(text("screen.cli.toolkit_decoded", folder=shown_path(folder), tensors=count))


def _decode_the_rest(
    session: Session, sources: Sequence[Source], failed: Sequence[Decoded], layout: str | None
) -> None:
    """With `--engine auto`, hand the files of which native could not decode a tensor to the toolkit."""
    lost = {row.source for row in failed}
    count = Message("screen.cli.native_failed.decode", count=len(failed))

    def decode() -> Message:
        paths = _decode_by_toolkit(session, [source for source in sources if source.path in lost], layout)
        return Message("note.cli.toolkit_decoded", count=count, files=len(paths))

    hand_over(session, count, decode)
