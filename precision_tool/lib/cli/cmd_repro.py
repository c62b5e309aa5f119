"""`repro`: one op cut out of its network, for whoever writes its kernel."""

from __future__ import annotations

import argparse
import posixpath

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, show_note
from precision_tool.lib.data.dump_names import file_part, flatten, shortened
from precision_tool.lib.data.workspace import shown_path, typed_path
from precision_tool.lib.diagnose.checked_ops import references_of
from precision_tool.lib.io.files import check_local, exists
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view.verdict_messages import reason_words

#: Bytes of a folder's name.
_LONGEST = 120


def _options(parser: Parser, session: Session) -> None:
    flags.add(parser, "name", metavar="OP", help="the op, as for `ni`", completes="op")
    flags.add(
        parser, "folder", nargs="?", metavar="DIR", completes="folder",
        help="a new folder for it (default: temp/repro/OP below the data folder)",
    )  # fmt: skip
    flags.add_graph(parser, "graph file, or folder of them, to look in")
    flags.add_place(parser)


@command(
    "repro",
    "Build a reproduction package of one op: inputs, attributes, outputs of both sides and the float64 result as "
    ".npy and .json, with a script that needs only numpy and shows the error on any machine, and for a call of PyTorch "
    "or MindSpore with run.py, which makes that call again.",
    _options,
    example="repro conv2/Relu conv2_relu",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    from precision_tool.lib.view.reproduction import RUN_SCRIPT, reproduction, write_repro

    session = session.at(args.step, args.rank)
    hits = session.find_ops(args.name, args.graph)
    hits = tuple(hit for hit in hits if hit.run.leaf is not None) or hits
    if len({hit.op.name for hit in hits}) > 1:
        raise UsageError("cli.several_ops", name=args.name)
    target = posixpath.expanduser(args.folder) if args.folder is not None else None
    if target is not None:
        check_local(target)
        session.workspace.check_outside_dumps(target)
    repro = reproduction(hits[0].run, hits[0].op, *references_of(session.data, hits[0].run))
    folder = write_repro(target or _default(session, hits[0].op.name), repro)
    output.print_line(text("screen.cli.reproduction", path=shown_path(folder)))
    if repro.reason:
        show_note(output, Message("note.cli.not_recomputed", reason=reason_words(repro.reason)))
    output.print_line(f"python3 {typed_path(posixpath.join(folder, 'check.py'))}")
    run_script = posixpath.join(folder, RUN_SCRIPT)
    if exists(run_script):
        output.print_line(f"python3 {typed_path(run_script)}")
    return DONE


def _default(session: Session, name: str) -> str:
    """Return a folder that does not exist yet."""
    stem = shortened(file_part(flatten(name)), _LONGEST) or "op"
    base = str(session.workspace.local_output_dir("repro") / stem)
    number, folder = 1, base
    while posixpath.lexists(folder):
        number += 1
        folder = f"{base}_{number}"
    return folder
