"""`graph2json`: a graph as the JSON that the vendor's atc makes of it."""

from __future__ import annotations

import argparse
import posixpath

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, tell_notes
from precision_tool.lib.data.workspace import lies_in, shown_path
from precision_tool.lib.io.files import atomic_text, exists, folder_exists, is_file, open_binary, real_path, size_of
from precision_tool.lib.io.ge_graph import is_json
from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session

#: Bytes that tell whether a file is JSON.
_HEAD = 4096


def _options(parser: Parser, session: Session) -> None:
    flags.add(parser, "graph", metavar="GRAPH", help="a ge_proto_*.txt or an .om", completes="graph")
    flags.add(
        parser, "out", nargs="?", metavar="OUT", completes="file",
        help="the file to write (default: its name below temp/op_graph)",
    )  # fmt: skip


@command(
    "graph2json",
    "Write a graph as the JSON that atc --mode=5 makes of it, without atc. An .om gives the graphs of "
    "its model definition, without weights.",
    _options,
    example="graph2json precision_data/npu/debug_0/graph/ge_proto_00000007_graph_1_Build.txt graph.json",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    pieces, notes = export_graph(args.graph)
    path = args.out
    if path is None:
        stem = posixpath.splitext(posixpath.basename(args.graph))[0]
        path = str(session.workspace.output_dir("op_graph") / f"{stem}.json")
    if folder_exists(path):
        path = posixpath.join(path, posixpath.splitext(posixpath.basename(args.graph))[0] + ".json")
    if exists(path) and real_path(path) == real_path(args.graph):
        raise UsageError("cli.output_is_input", path=path)
    _check_target(session, path)
    with atomic_text(path) as file:
        file.writelines(pieces)
    place = shown_path(args.graph)
    session.workspace.notes += [Message("error.place", where=place, reason=note) for note in notes()]
    tell_notes(session, output)
    output.print_line(text("screen.cli.size", path=shown_path(path), size=size_of(path)))
    return DONE


def _check_target(session: Session, path: str) -> None:
    """Raise UsageError for a file of the user's that would be lost, or a place where only a run's own files lie."""
    if exists(path) and not _is_json_file(path):  # as the second of `graph2json *.txt`
        raise UsageError("cli.not_replaced", path=path)
    session.workspace.check_outside_dumps(path)
    place = real_path(path)
    for number in session.workspace.debug_numbers():
        folder = session.workspace.graph_dir(number)
        if lies_in(place, real_path(folder)):
            raise UsageError("cli.in_graph_folder", path=path, folder=folder)


def _is_json_file(path: str) -> bool:
    if not is_file(path):
        return False
    with open_binary(path) as file:
        return is_json(file.read(_HEAD))
