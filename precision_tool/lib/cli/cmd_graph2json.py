"""`graph2json`: a graph as the JSON that the vendor's atc makes of it."""

from __future__ import annotations

import argparse
import posixpath

from precision_tool.lib.cli.command import (
    DONE,
    Command,
    Completion,
    Output,
    Parser,
    completes,
    tell_notes,
)
from precision_tool.lib.errors import UsageError
from precision_tool.lib.formats.ge_graph_export import export_with_notes, json_text
from precision_tool.lib.formats.ge_graph_tree import is_json
from precision_tool.lib.io.files import atomic_text, exists, folder_exists, is_file, open_binary, real_path, size_of
from precision_tool.lib.present.text import byte_size, plain
from precision_tool.lib.session import Session
from precision_tool.lib.workspace import lies_in, shown_path

#: Bytes that tell whether a file is JSON.
_HEAD = 4096


def _graph2json_parser(session: Session) -> Parser:
    parser = Parser(
        prog="graph2json",
        description="Write a graph as the JSON that atc --mode=5 makes of it, without atc. An .om gives the graphs of "
        "its model definition, without weights.",
        epilog="example: graph2json precision_data/npu/debug_0/graph/ge_proto_00000007_graph_1_Build.txt graph.json",
    )
    completes(parser.add_argument("graph", metavar="GRAPH", help="a ge_proto_*.txt or an .om"), Completion.GRAPH)
    completes(
        parser.add_argument(
            "out", nargs="?", metavar="OUT", help="the file to write (default: its name below temp/op_graph)"
        ),
        Completion.FILE,
    )
    return parser


def _run_graph2json(session: Session, args: argparse.Namespace, output: Output) -> int:
    document, notes = export_with_notes(args.graph)
    session.workspace.notes += [f"{shown_path(args.graph)}: {note}" for note in notes]
    text = json_text(document)
    path = args.out
    if path is None:
        stem = posixpath.splitext(posixpath.basename(args.graph))[0]
        path = str(session.workspace.output_dir("op_graph") / f"{stem}.json")
    if folder_exists(path):
        path = posixpath.join(path, posixpath.splitext(posixpath.basename(args.graph))[0] + ".json")
    if exists(path) and real_path(path) == real_path(args.graph):
        raise UsageError(f"{path}: is the graph itself", "name another file to write")
    _check_target(session, path)
    with atomic_text(path) as file:
        file.write(text)
    tell_notes(session, output)
    output.out.print(plain(f"{shown_path(path)}: {byte_size(size_of(path))}"), soft_wrap=True)
    return DONE


def _check_target(session: Session, path: str) -> None:
    """Raises UsageError for a file of the user's that would be lost, or a place where only a run's own files lie."""
    hint = "name another file, or leave OUT out; one graph is written at a time"
    if exists(path) and not _is_json_file(path):  # as the second of `graph2json *.txt`
        raise UsageError(f"{path}: is there already and no JSON: it is not replaced", hint)
    session.workspace.check_outside_dumps(path)
    place = real_path(path)
    for number in session.workspace.debug_numbers():
        folder = session.workspace.graph_dir(number)
        if lies_in(place, real_path(folder)):
            raise UsageError(f"{path}: lies in {folder}, which holds the run's own graphs", hint)


def _is_json_file(path: str) -> bool:
    if not is_file(path):
        return False
    with open_binary(path) as file:
        return is_json(file.read(_HEAD))


COMMAND = Command(_graph2json_parser, _run_graph2json)
