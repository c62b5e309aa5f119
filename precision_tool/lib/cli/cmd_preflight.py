"""`preflight`: what 16 bits will do to a step of the benchmark, and what to keep in float32; no NPU is needed."""

from __future__ import annotations

import argparse
import posixpath
from shlex import quote
from typing import TYPE_CHECKING

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import DONE, FOUND, Output, Parser, command, tell_notes
from precision_tool.lib.cli.words import STOPPED
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.data.workspace import open_workspace, shown_path
from precision_tool.lib.io.files import atomic_text, check_local, real_path
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import PrecisionToolError, UsageError, shown
from precision_tool.lib.session import ALL, Session
from precision_tool.lib.training.mixlist import find_mixlist

if TYPE_CHECKING:
    from rich.console import RenderableType

    from precision_tool.lib.diagnose.opened_step import OpenedStep
    from precision_tool.lib.diagnose.preflight_model import TypeForecast
    from precision_tool.lib.diagnose.verdict_model import StepText

_TYPES = {"float16": ("float16",), "bfloat16": ("bfloat16",), "both": ("float16", "bfloat16")}
#: Stands for the usual place of the files.
_DEFAULT = ""


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "folder", nargs="?", metavar="DIR", completes="folder",
        help="the benchmark: a data folder, a dump of msprobe, or a folder of .npy files (default: that of the data "
        "folder)",
    )  # fmt: skip
    flags.add_graph(
        parser, "TensorFlow's graph of the step, or a folder of them (default: the one saved with the step)"
    )
    parser.add_argument(
        "--type", choices=tuple(_TYPES), default="both", help="the 16-bit type of the NPU run (default %(default)s)"
    )
    parser.add_argument(
        "--bound-loss",
        metavar="X",
        type=flags.relative_error,
        help="largest relative error of the loss (default 0.001)",
    )
    parser.add_argument(
        "--bound-gradients", metavar="X", type=flags.relative_error,
        help="largest relative error of a weight's gradient (default 0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=flags.count(1),
        help="time for the search (default 60); the best set so far is kept",
    )
    flags.add_limit(parser, session.settings.limit, "how many ops and steps of the search to show")
    flags.add_place(parser)
    flags.add(
        parser, "--write", metavar="DIR", nargs="?", const=_DEFAULT, default=None, completes="folder",
        help="write the files that keep these ops in float32: modify_mixlist, keep_dtype, customize_dtypes and "
        "op_precision_mode, for PyTorch and MindSpore a module (default: the folder for results)",
    )  # fmt: skip
    flags.add(parser, "-o", dest="output", metavar="FILE.html", completes="file",
              help="also write a report with a heat map of all ops")  # fmt: skip
    flags.add_json(parser)
    parser.add_argument(
        "--fail", action="store_true", help="exit code 1 if a type needs ops in float32, or if that is not known"
    )


@command(
    "preflight",
    "Tell from one step of the benchmark what float16 and bfloat16 will do on the NPU: which ops overflow, underflow "
    "or are lost to rounding, which loss scale fits, how much each op's rounding moves loss and gradients, and a small "
    "set of ops to keep in float32, verified by emulating the step. Needs no NPU.",
    _options,
    example="preflight --type float16 --write",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    from rich.console import Group

    from precision_tool.lib.diagnose.opened_step import open_step
    from precision_tool.lib.view import preflight_screen as screen
    from precision_tool.lib.view.console import ProgressReport
    from precision_tool.lib.view.verdict_screen import NextSteps

    session.step = _number(args.step, session.step)
    session.rank = _number(args.rank, session.rank)
    opened = open_step(session.workspace, args.folder, args.graph, step=session.step, rank=session.rank)
    folder = _checked_place(session, args.write, args.folder, opened)
    if args.output:
        _checked_place(session, args.output, args.folder, opened)
    options = {"bound_loss": args.bound_loss, "bound_gradients": args.bound_gradients, "seconds": args.seconds}
    given = {name: value for name, value in options.items() if value is not None}
    with ProgressReport(output.err, "emulating") as progress:
        result = session.preflight(opened, types=_TYPES[args.type], progress=progress.counting("ops"), **given)
    written: dict[str, str] = {}
    blocks: list[RenderableType] = []
    if folder is not None:
        for forecast in result.types:
            place = posixpath.join(folder, forecast.dtype) if len(result.types) > 1 else folder
            paths = _write(session, forecast, opened, place) if _is_usable(forecast) else []
            written |= {path: option for option, path in paths}
            is_in_place = _is_found(dict(paths).get("modify_mixlist", ""))
            blocks += screen.files_block(forecast, opened.framework, opened.file.ops, paths, is_in_place=is_in_place)
    steps = [] if folder is not None or not any(f.kept and _is_usable(f) for f in result.types) else [_write_step(args)]
    if args.output:
        from precision_tool.lib.view.preflight_report import write_preflight

        write_preflight(posixpath.expanduser(args.output), result, steps, output.command_for(session))
    tell_notes(session, output)
    if args.json:
        output.write_json(screen.preflight_json(result, written))
    else:
        output.show(*screen.preflight_lines(result, args.limit))
        if blocks:
            output.out.print(Group(*blocks))
        output.out.print(screen.conclusion_box(result, args.limit))
        if args.output:
            output.print_line(text("screen.cli.report", path=shown_path(args.output)))
        if steps:
            output.out.print(NextSteps(steps, output.command_for(session)))
    needs = any(forecast.kept or not forecast.is_enough for forecast in result.types)
    if result.is_interrupted:
        return STOPPED
    return FOUND if args.fail and needs else DONE


def _is_usable(forecast: TypeForecast) -> bool:
    """Return whether what is to be kept may be written: not a set that is beyond the bounds."""
    return forecast.is_enough is not False


def _number(given: int | None, kept: int | None) -> int | None:
    """Return a step or rank: the one that is given, else the one that the prompt keeps."""
    return kept if given is None else None if given == ALL else given


def _checked_place(session: Session, place: str | None, folder: str | None, opened: OpenedStep) -> str | None:
    """Return where to write, absolute; None for nowhere. UsageError for a place among dumps, and the graph itself."""
    if place is None:
        return None
    if place == _DEFAULT:
        return posixpath.abspath(str(session.workspace.output_dir()))
    path = posixpath.abspath(posixpath.expanduser(place))
    check_local(path)
    for space in (session.workspace, *([open_workspace(folder)] if folder is not None else [])):
        space.check_outside_dumps(path, opened.source)
    if real_path(path) == real_path(opened.file.path):
        raise UsageError("cli.output_is_input", path=place)
    return path


def _write(session: Session, forecast: TypeForecast, opened: OpenedStep, folder: str) -> list[tuple[str, str]]:
    """Write the files of a type; return the option of GE and the path of each. A note names the ops left out."""
    from precision_tool.lib.view.precision_files import precision_files, unnameable

    if left_out := unnameable(forecast, opened.file.ops, opened.framework):
        names = [shown(name) for name in left_out]
        session.workspace.notes.append(Message("note.cli.preflight_left_out", dtype=forecast.dtype, names=names))
    paths = []
    for file in precision_files(forecast, opened.file.ops, opened.framework):
        path = posixpath.join(folder, file.name)
        with atomic_text(path) as stream:
            stream.write(file.content)
        paths.append((file.option, path))
    return paths


def _is_found(path: str) -> bool:
    """Return whether the action `mixlist` of the training helper takes this file."""
    try:
        return bool(path) and find_mixlist(load_settings()) == path
    except PrecisionToolError:
        return False


def _write_step(args: argparse.Namespace) -> StepText:
    """Return the step that writes the files."""
    from precision_tool.lib.diagnose.verdict_model import StepText

    words = ["preflight", *([quote(args.folder)] if args.folder else [])]
    words += ["-g", quote(args.graph)] if args.graph else []
    words += ["--type", args.type] if args.type != "both" else []
    for option, value in (("--bound-loss", args.bound_loss), ("--bound-gradients", args.bound_gradients)):
        words += [option, f"{value:g}"] if value is not None else []
    for option, number in (("--step", args.step), ("--rank", args.rank)):
        words += [option, str(number)] if number not in (None, ALL) else []
    return StepText(why=Message("screen.cli.preflight.write"), line=" ".join([*words, "--write"]))
