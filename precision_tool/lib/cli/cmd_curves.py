"""`curves`: figures of variables, gradients and the loss over the steps and ranks of a study."""

from __future__ import annotations

import argparse
import posixpath
import shlex

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, FOUND, Output, Parser, command, tell_notes
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.curves import StoredRows, curves_of, stored_rows
from precision_tool.lib.diagnose.study_plan import StudyOptions, prepare
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, shown
from precision_tool.lib.session import Session
from precision_tool.lib.view.curves_screen import curves_json, curves_screen, next_command

#: Curves on the screen.
_LIMIT = 20


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "names", nargs="*", metavar="NAME", completes="op",
        help="variables, ops (their outputs) or tensors (`conv1/Relu:output:0`), with shell wildcards; default: all "
        "variables, their gradients and the loss",
    )  # fmt: skip
    parser.add_argument("--step", metavar="N", help="only these steps: 3, 0-7 or 1,5,8-")
    parser.add_argument("--rank", metavar="N", help="only these ranks")
    flags.add(
        parser, "--tensorboard", metavar="DIR", completes="file",
        help="also write event files for TensorBoard, one run per rank (needs tensorboardX)",
    )  # fmt: skip
    flags.add_limit(parser, _LIMIT, "how many curves to show")
    flags.add_json(parser)
    parser.add_argument("--fail", action="store_true", help="exit code 1 if a curve leaves its band")


@command(
    "curves",
    "Show how norm, mean, minimum, maximum, share of zeros, NaN and Inf, and own error of every variable and gradient, "
    "and the loss, develop over steps and ranks, and which is the first to leave the band of the other ranks or its "
    "benchmark. After `ac --all`, whose results it reads.",
    _options,
    example="curves 'fc1/*' --tensorboard events",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    settings, space = session.settings, session.workspace
    folders = [*map(str, (settings.data, *settings.more_data))]
    prepared = prepare(StudyOptions(folders=folders, steps=args.step, ranks=args.rank))
    rows = stored_rows([str(folder) for folder in space.result_dirs()], prepared)
    ranks = len({plan.leaf.rank for plan in prepared.plans})
    curves = curves_of(rows.read, ranks, args.names, settings.threshold)
    if not curves.steps:
        raise DataNotFoundError.of(folders[0], "diagnose.study_no_rows")
    if not curves.curves:
        kind = "curves_no_name" if args.names else "curves_no_role"
        raise DataNotFoundError(f"cli.{kind}", names=tuple(map(shown, args.names)))
    _tell_state(session, rows)
    files: tuple[str, ...] = ()
    if args.tensorboard is not None:
        from precision_tool.lib.diagnose.tensorboard import write_events

        space.check_outside_dumps(posixpath.abspath(posixpath.expanduser(args.tensorboard)))
        files = write_events(posixpath.expanduser(args.tensorboard), rows, curves, args.names)
    notes = list(space.notes)
    tell_notes(session, output)
    if args.json:
        output.write_json(curves_json(curves, notes, files))
    else:
        output.show(*curves_screen(curves, args.limit))
        if curves.first is not None:
            output.print_line(
                text("screen.cli.curves_next", line=f"{output.command_for(session)} {next_command(curves)}")
            )
        if files:
            line = f"tensorboard --logdir {shlex.quote(shown_path(args.tensorboard))}"
            output.print_line(text("screen.cli.tensorboard", runs=len(files), line=line))
    return FOUND if args.fail and curves.first is not None else DONE


def _tell_state(session: Session, rows: StoredRows) -> None:
    """Note leaves that no study has, or that changed since."""
    missing, changed = rows.state()
    for kind, count in (("missing", missing), ("changed", changed)):
        if count:
            note = Message(f"note.cli.curves_{kind}", count=count, all=len(rows.prepared.plans))
            session.workspace.notes.append(note)
