"""`bisect`: the fewest changes of precision and fusion with which a command of the user's succeeds."""

from __future__ import annotations

import argparse
import json
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from precision_tool.lib.cli import flags
from precision_tool.lib.cli.bisect_runner import BisectRun, conduct
from precision_tool.lib.cli.command import DONE, FOUND, Output, Parser, collect_again, command
from precision_tool.lib.cli.switch_files import find_switch_file
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.bisect import Outcome, Search, most_runs
from precision_tool.lib.diagnose.bisect_changes import Searched, lines_to_keep, searched
from precision_tool.lib.diagnose.run_checks import fusion_graphs
from precision_tool.lib.diagnose.stored_verdict import newest_verdicts
from precision_tool.lib.io.files import check_local
from precision_tool.lib.io.fusion_passes import ON_BY_NAME, text_to_write
from precision_tool.lib.io.writing import rewrite_text
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import PrecisionToolError, UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.training.given_switches import VARIABLE
from precision_tool.lib.view.bisect_screen import bisect_json, bisect_lines

_FOLDER = "bisect"
_SWITCHES = "switches.json"
#: The share of wrong answers that is reckoned with once a check gives both answers for the same changes.
_ASSUMED = 0.1
_MOST_PERCENT = 30


def _options(parser: Parser, session: Session) -> None:
    parser.add_argument(
        "--check", metavar="CMD", required=True,
        help="the command that succeeds (exit code 0) without the fault; a script that uses npu_tf_config or "
        f"torch_config gets the switches of the try from them, any other one from the file that ${VARIABLE} names",
    )  # fmt: skip
    parser.add_argument(
        "--changes", nargs="+", metavar="CHANGE", default=(),
        help="search these only, for example type:SoftmaxV2 op:fc1/MatMul module:head fusion:APass allow_hf32=off "
        "precision_mode=force_fp32",
    )  # fmt: skip
    flags.add(
        parser, "--file", metavar="FILE", completes="file",
        help="the fusion switch file to start from (default: the fusion_switch.cfg of the data folder)",
    )  # fmt: skip
    parser.add_argument("--timeout", metavar="SECONDS", type=flags.count(1), help="a run that takes longer fails")
    parser.add_argument(
        "--flaky", metavar="PERCENT", type=flags.count(1, _MOST_PERCENT),
        help="up to so many of the runs give the wrong answer: each question is repeated until it is settled "
        "(default: only once two runs with the same changes differ, then 10)",
    )  # fmt: skip
    parser.add_argument("--runs", metavar="N", type=flags.count(1), help="stop after so many runs")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs of an earlier attempt")
    flags.add(
        parser, "--write", metavar="FILE", completes="file",
        help="write the switches that were found to this file, and print how to keep them",
    )  # fmt: skip
    flags.add_json(parser)


@command(
    "bisect",
    "Run a command of yours with one set of switches after the other and find the fewest with which it succeeds: "
    "fusion passes, data types of op types, ops and modules, precision_mode, HF32, op_precision_mode, deterministic "
    "kernels, the loss scale, autocast. What the last verdict of ac suspects is tried first. An interrupted search "
    "continues where it stopped; exit code 1 if no switch helps.",
    _options,
    example='bisect --check "python3 train.py --steps 20"',
)
def run(session: Session, args: argparse.Namespace, output: Output) -> int:
    if args.write is not None:
        check_local(args.write)
        session.workspace.check_outside_dumps(args.write)
    passes, sections = _passes(session)
    what = searched(_runs(session), passes, [stored.verdict for stored in newest_verdicts(session.workspace)],
                    args.changes)  # fmt: skip
    folder = session.workspace.local_output_dir(_FOLDER)
    file = find_switch_file(session.workspace, args.file)
    file = replace(file, target=str(folder / "fusion_switch.cfg"), note=None)  # the user's own stays as it is
    switches = str(folder / _SWITCHES)

    def write(changes: frozenset[str]) -> Mapping[str, str]:
        rewrite_text(switches, _document(what, changes, file.target))
        return {VARIABLE: posixpath.abspath(switches)}

    bisection = BisectRun(
        folder=folder, check=args.check, names=what.names, passes=what.passes,
        sections={**ON_BY_NAME, **sections}, file=file, timeout=args.timeout, write=write,
    )  # fmt: skip
    rate = (args.flaky or 0) / 100
    search = Search(names=what.names, weights=what.weights, rate=rate, assume=_ASSUMED,
                    most=args.runs or most_runs(len(what.names), rate))  # fmt: skip
    result = conduct(session, output, bisection, search, fresh=args.fresh, suspected=what.suspected)
    kept: dict[str, Any] = json.loads(_document(what, result.changes, "")) if result.changes else {}
    is_found = result.outcome is Outcome.FOUND
    if is_found and args.write is not None:
        kept = _write(args.write, what, bisection, result.changes)
    path = posixpath.abspath(args.write) if args.write is not None else ""
    lines = lines_to_keep(kept, path, is_pytorch=what.is_pytorch) if is_found else []
    off = [what.passes[name] for name in sorted(result.changes) if name in what.passes]
    if off and is_found and args.write is None:
        lines.append(shlex.join([*output.command_for(session).split(), "fusion", "off", *off]))
    if args.json:
        output.write_json(bisect_json(result, bisection.tries, what.names, kept, lines))
    else:
        to_do = [Message(f"screen.view.bisect.{name}") for name in ("see_switches", "not_a_switch")]
        output.show(*bisect_lines(result, bisection.tries, len(what.names), to_do))
        if is_found:
            _show_kept(session, output, lines, args.write)
    if result.outcome is Outcome.FLAKY:
        raise UsageError("cli.bisect_too_flaky", percent=round(100 * result.rate))
    return FOUND if result.outcome in (Outcome.NOT_FIXED, Outcome.OUT_OF_RUNS) else DONE


def _show_kept(session: Session, output: Output, lines: Sequence[str], path: str | None) -> None:
    """Print how the changes are kept."""
    written = Message("screen.cli.bisect_keep") if path is None else (
        Message("screen.cli.bisect_written", path=shown_path(path)))  # fmt: skip
    output.print_line(render(written))
    for line in lines:
        output.print_line(f"  {line}")
    output.out.print(collect_again(session, output))


def _passes(session: Session) -> tuple[list[str], dict[str, str]]:
    """Return the passes that the data names, and their sections where known."""
    with suppress(PrecisionToolError):
        rows = [row for graph in fusion_graphs(session.data) for row in graph.rows]
        names = sorted({row.name for row in rows})
        return names, {row.name: row.section for row in rows if row.section is not None}
    return [], {}


def _runs(session: Session) -> tuple[RunGraph, ...]:
    """Return the graphs of the dumped runs; none where there is no data yet."""
    with suppress(PrecisionToolError):
        return session.run_graphs()
    return ()


def _document(what: Searched, changes: frozenset[str], switch_file: str) -> str:
    """Return the text of the file that tells a training script of changes."""
    document = what.switches(name for name in what.names if name in changes)
    if switch_file and any(name in what.passes for name in changes):
        document["fusion_switch_file"] = posixpath.abspath(switch_file)
    return json.dumps(document, indent=1) + "\n"


def _write(path: str, what: Searched, bisection: BisectRun, changes: frozenset[str]) -> dict[str, Any]:
    """Write the file of switches, and beside it that of fusion passes where some are off; return its contents."""
    file = posixpath.abspath(path)
    switch_file = f"{posixpath.splitext(file)[0]}_fusion_switch.cfg"
    if any(name in what.passes for name in changes):
        rewrite_text(switch_file, text_to_write(bisection.switches_with(changes), switch_file))
    document = _document(what, changes, switch_file)
    rewrite_text(file, document)
    contents: dict[str, Any] = json.loads(document)
    return contents
