"""`repro`: one op cut out of its network, for whoever writes its kernel."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, Output, Parser, command, show_note
from precision_tool.lib.data.dump_names import file_part, flatten, shortened
from precision_tool.lib.data.workspace import shown_path, typed_path
from precision_tool.lib.diagnose.checked_ops import references_of
from precision_tool.lib.diagnose.minimize import RUNS, Case
from precision_tool.lib.io.files import check_local, exists
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.text import json_text
from precision_tool.lib.view.verdict_messages import reason_words

if TYPE_CHECKING:  # loaded when one is made
    from precision_tool.lib.view.reproduction import Repro

#: Bytes of a folder's name.
_LONGEST = 120
#: Seconds that a run of a kernel may take, if the user says nothing.
_TIMEOUT = 60


def _options(parser: Parser, session: Session) -> None:
    flags.add(parser, "name", metavar="OP", help="the op, as for `ni`", completes="op")
    flags.add(
        parser, "folder", nargs="?", metavar="DIR", completes="folder",
        help="a new folder for it (default: temp/repro/OP below the data folder)",
    )  # fmt: skip
    flags.add_graph(parser, "graph file, or folder of them, to look in")
    flags.add_place(parser)
    group = parser.add_argument_group("minimize", "shrink the op to the smallest case in which it is still wrong")
    group.add_argument(
        "--minimize", action="store_true",
        help="fewer rows, channels and heads, plainer numbers and attributes; without --run a part of what was dumped",
    )  # fmt: skip
    group.add_argument(
        "--run", metavar="CMD", type=flags.some_text,
        help="a kernel: gets two folders as arguments, reads op.json and input_N.npy from the first, writes "
        "output_N.npy to the second; any smaller case is tried with it",
    )  # fmt: skip
    group.add_argument(
        "--runs", metavar="N", type=flags.count(1), default=RUNS, help="runs of CMD at most (default %(default)s)"
    )
    group.add_argument(
        "--timeout", metavar="SECONDS", type=flags.count(1), default=_TIMEOUT,
        help="a run of CMD that takes longer does not reproduce the error (default %(default)s)",
    )  # fmt: skip
    flags.add_json(parser)


@command(
    "repro",
    "Build a reproduction package of one op: inputs, attributes, outputs of both sides and the float64 result as "
    ".npy and .json, with a script that needs only numpy and shows the error on any machine, and for a call of PyTorch "
    "or MindSpore with run.py, which makes that call again. --minimize shrinks the op to the smallest case in which it "
    "is still wrong.",
    _options,
    example="repro conv2/Relu conv2_relu",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    from precision_tool.lib.view.reproduction import reproduction, write_repro

    if args.run is not None and not args.minimize:
        raise UsageError("cli.run_without_minimize")
    target = posixpath.expanduser(args.folder) if args.folder is not None else None
    if target is not None:
        check_local(target)
        session.workspace.check_outside_dumps(target)
    session = session.at(args.step, args.rank)
    hits = session.find_ops(args.name, args.graph)
    hits = tuple(hit for hit in hits if hit.run.leaf is not None) or hits
    if len({hit.op.name for hit in hits}) > 1:
        raise UsageError("cli.several_ops", name=args.name)
    repro = reproduction(hits[0].run, hits[0].op, *references_of(session.data, hits[0].run))
    if args.minimize:
        repro = _minimized(repro, args, output)
    folder = write_repro(target or _default(session, hits[0].op.name), repro)
    _show(folder, repro, args, output)
    if repro.minimized is not None and repro.minimized.is_stopped:
        raise KeyboardInterrupt
    return DONE


def _minimized(repro: Repro, args: argparse.Namespace, output: Output) -> Repro:
    """Return the smallest case of a reproduction; Ctrl+C leaves the smallest so far."""
    from precision_tool.lib.cli.kernel_command import KernelCommand
    from precision_tool.lib.view.reproduction import minimal_repro

    outputs = {made.slot: (made.npu.dtype, made.npu.layout) for made in repro.outputs}

    def kernel(op_of: Callable[[Case], Op]) -> KernelCommand:
        return KernelCommand(
            command=args.run, timeout=args.timeout, framework=repro.framework, outputs=outputs, op_of=op_of
        )

    with ProgressReport(output.err, "minimizing") as progress:
        if args.run is None:
            return minimal_repro(repro, progress=progress.counting("axes"))
        return minimal_repro(repro, kernel, args.runs, progress.counting("runs"))


def _show(folder: str, repro: Repro, args: argparse.Namespace, output: Output) -> None:
    from precision_tool.lib.view.minimal_case import changed, sentence
    from precision_tool.lib.view.reproduction import RUN_SCRIPT, repro_document

    made = repro.minimized
    if made is not None and made.is_limited:
        show_note(output, Message("note.cli.minimize_limited", runs=made.limit))
    if made is not None and made.is_stopped:
        show_note(output, Message("note.cli.minimize_stopped"))
    if args.json:
        output.write_json(json_text(repro_document(folder, repro)))
        return
    document = repro_document(folder, repro)
    if made is not None:
        output.print_line(text("screen.cli.minimized", sentence=sentence(made), cut=not made.runs or None))
        output.print_line(
            text(
                "screen.cli.minimized_size", before=made.original.elements, after=made.case.elements,
                size=sum(document["files"].values()), runs=made.runs or None, failed=made.failed or None,
            )
        )  # fmt: skip
        if not made.runs:
            output.print_line(text("screen.cli.minimized_cut"))
        other = changed(made.changed)
        if other is not None:
            output.print_line(render(other))
    output.print_line(text("screen.cli.reproduction", path=shown_path(folder)))
    if repro.reason:
        show_note(output, Message("note.cli.not_recomputed", reason=reason_words(repro.reason)))
    output.print_line(f"python3 {typed_path(posixpath.join(folder, 'check.py'))}")
    run_script = posixpath.join(folder, RUN_SCRIPT)
    if exists(run_script):
        output.print_line(f"python3 {typed_path(run_script)}")


def _default(session: Session, name: str) -> str:
    """Return a folder that does not exist yet."""
    stem = shortened(file_part(flatten(name)), _LONGEST) or "op"
    base = str(session.workspace.local_output_dir("repro") / stem)
    number, folder = 1, base
    while posixpath.lexists(folder):
        number += 1
        folder = f"{base}_{number}"
    return folder
