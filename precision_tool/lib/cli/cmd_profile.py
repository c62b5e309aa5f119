"""`profile`: how precise the device computes, by type of op; learned from a clean run, and merged over runs."""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.command import Output, Parser, command, show_result
from precision_tool.lib.cli.words import USER_ERROR
from precision_tool.lib.compare.result_files import named_result
from precision_tool.lib.compare.scheduler import WorkStoppedError
from precision_tool.lib.data.workspace import shown_path, typed_path
from precision_tool.lib.diagnose.device_profile import DeviceProfile
from precision_tool.lib.diagnose.stored_profile import merge, profiles_at, read_profile, write_profile
from precision_tool.lib.diagnose.verdict_model import tally
from precision_tool.lib.io.files import folder_exists
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.profile_screen import profile_json, profile_lines

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.pipeline import Diagnosis

_FOLDER = "profile"
_LEARN, _MERGE = "learn", "merge"


def _options(parser: Parser, session: Session) -> None:
    flags.add(
        parser, "action", nargs="?", metavar="RESULT|learn|merge", completes="result",
        help="the profile_*.json, result file or folder of results to show (default: the newest result); learn: judge "
        "a clean run; merge: put profiles together",
    )  # fmt: skip
    flags.add(
        parser, "names", nargs="*", metavar="DIR|FILE", completes="file",
        help="with learn: the data folder of the clean run; with merge: profiles, or results that have them",
    )  # fmt: skip
    flags.add(
        parser, "-o", dest="output", metavar="FILE.json", completes="file",
        help="with learn and merge: where the profile goes (default: temp/profile below the data folder)",
    )  # fmt: skip
    flags.add_limit(parser, 0, "how many types of op to show")
    flags.add_workers(parser, session.settings.workers)
    flags.add_json(parser, "the profile")


@command(
    "profile",
    "Show how precise the device computes, by type of op, as the newest comparison showed it: what float32 would give, "
    "what the device gives, and whether that is within what the vendor accepts of kernels. `profile learn DIR` takes a "
    "run that is known to be clean, `profile merge` several runs of one device; ac --profile FILE judges by it.",
    _options,
    example="profile learn clean_run -o npu.json",
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.action == _LEARN:
        return _learn(session, args, output)
    if args.action == _MERGE:
        return _merge(session, args, output)
    if args.names:
        raise UsageError("cli.profile_several", name=args.names[0])
    if args.output is not None:
        raise UsageError("cli.options_need", command="profile", option="-o", other="learn | merge")
    path = None if args.action is None else named_result(session.workspace, posixpath.expanduser(args.action))
    profiles = profiles_at(session.workspace, path)
    return _show(session, args, output, merge(profiles), [profile.path for profile in profiles])


def _learn(session: Session, args: argparse.Namespace, output: Output) -> int:
    if len(args.names) != 1:
        raise UsageError("cli.profile_one_folder")
    _check_place(session, args.output)
    return _write(session, args, output, learn_clean(session, args, output))


def learn_clean(session: Session, args: argparse.Namespace, output: Output) -> DeviceProfile:
    """Judge the run of a data folder; return the profile of its device.

    UsageError where something is wrong in it; WorkStoppedError where a worker died, as the profile would lack its ops.
    """
    folder = Path(posixpath.expanduser(args.names[0]))
    if not folder_exists(folder):
        raise DataNotFoundError.of(str(folder), "cli.profile_no_folder")
    other = Session(replace(session.settings, data=folder, more_data=()))
    diagnoses = _judge(other, args, output)
    judged = [diagnosis.judged for diagnosis in diagnoses if diagnosis.judged is not None]
    guilty = next((run.verdict for run in judged if run.verdict.culprit is not None), None)
    if guilty is not None:
        raise UsageError("cli.profile_not_clean", folder=str(folder), culprit=guilty.culprit)
    if any(op.reason is not None and op.reason.kind == "reason.worker_died" for run in judged for op in run.ops):
        raise WorkStoppedError("compare.worker_died", "", (), USER_ERROR, state=None)
    profiles = [run.profile for run in judged if run.profile.types]
    if not profiles:
        raise DataNotFoundError.of(str(folder), "cli.profile_nothing")
    session.workspace.notes += other.workspace.notes
    counts = tally([op for run in judged for op in run.ops])
    if counts.reasons:
        reason, _ = counts.reasons[0]
        session.workspace.notes.append(
            Message("note.cli.profile_left_out", count=counts.not_recomputed, ops=counts.ops, reason=reason)
        )
    return replace(merge(profiles), path="")


def _judge(session: Session, args: argparse.Namespace, output: Output) -> list[Diagnosis]:
    """Compare the run with its benchmark, if it has one, and recompute its ops."""
    from precision_tool.lib.diagnose.comparing import compare
    from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, diagnose_leaf, leaves_alone, leaves_of
    from precision_tool.lib.diagnose.run_checks import check_benchmark_fits

    options = DiagnoseOptions(compares=False)
    with ProgressReport(output.err, "comparing") as progress:
        resources = flags.resources_of(session, args, progress=progress)
        try:
            analyses = compare(session.data, options=session.default_options(), resources=resources)
            check_benchmark_fits(analyses)
            leaves = leaves_of(session.data, analyses)
        except NoBenchmarkError:
            leaves = leaves_alone(session.data)
    with ProgressReport(output.err, "recomputing") as progress:
        resources = flags.resources_of(session, args, progress=progress)
        return [diagnose_leaf(leaf, options, resources) for leaf in leaves]


def _merge(session: Session, args: argparse.Namespace, output: Output) -> int:
    if not args.names:
        raise UsageError("cli.profile_merge_nothing")
    _check_place(session, args.output)
    profiles = []
    for name in args.names:
        path = posixpath.expanduser(name)
        is_profile = path.endswith(".json")
        profiles += [read_profile(path)] if is_profile else profiles_at(session.workspace, path)
    return _write(session, args, output, merge(profiles))


def _check_place(session: Session, output: str | None) -> None:
    """Raise UsageError for -o that is a folder, or lies among the dumps, before the work is done."""
    if output is None:
        return
    path = posixpath.expanduser(output)
    if folder_exists(path):
        raise UsageError("cli.profile_folder", path=path)
    session.workspace.check_outside_dumps(posixpath.dirname(posixpath.abspath(path)))


def _write(session: Session, args: argparse.Namespace, output: Output, profile: DeviceProfile) -> int:
    path: str = posixpath.expanduser(args.output or "")
    if not path:
        path = str(session.workspace.output_dir(_FOLDER) / f"profile_{datetime.now():%Y%m%d%H%M%S}.json")
    write_profile(profile, path)
    code = _show(session, args, output, profile, [path])
    if not args.json:
        output.print_line(text("screen.cli.profile", path=shown_path(path)))
        words = (output.command_for(session), "ac", "-c", "--profile", typed_path(path))
        output.print_line(" ".join(filter(None, words)), "bold")
    return code


def _show(
    session: Session, args: argparse.Namespace, output: Output, profile: DeviceProfile, paths: Sequence[str]
) -> int:
    if not profile.device:
        session.workspace.notes.append(Message("note.diagnose.profile_no_device"))
    return show_result(
        session, args, output,
        lambda: profile_json(profile, paths), lambda: profile_lines(profile, paths, args.limit),
    )  # fmt: skip
