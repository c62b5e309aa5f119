"""`ac --sharded`: ranks that split a network in other ways than the benchmark's, merged and compared."""

from __future__ import annotations

import argparse
import json
import posixpath

from precision_tool.lib.cli.command import DONE, FOUND, Output, tell_notes
from precision_tool.lib.compare.scheduler import counting
from precision_tool.lib.data.shard_map import ShardMap, read_shard_map
from precision_tool.lib.data.sides import default_golden, default_npu
from precision_tool.lib.diagnose.sharded import ShardedRun, compare_sharded
from precision_tool.lib.diagnose.study_leaves import parse_numbers
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import ProgressReport
from precision_tool.lib.view.sharded_screen import sharded_block

#: Options of other comparisons, and what each is called.
_OTHERS = {
    "all": "--all", "overflow": "--overflow_detection", "custom": "--custom", "file": "-f", "noise": "--noise-floor",
    "since": "--since", "engine": "--engine", "prove": "--prove", "report": "--report", "graph": "-g",
    "profile": "--profile", "rank": "--rank", "judge": "--judge", "table": "--table", "csv": "--csv",
    "watch": "--watch", "budget": "--budget", "fresh": "--fresh", "cluster": "--cluster",
}  # fmt: skip


def run_sharded(session: Session, args: argparse.Namespace, output: Output) -> int:
    """Compare both sides merged, show the result or print it as JSON, and return the exit code of `ac`."""
    for name, option in _OTHERS.items():
        if getattr(args, name, None):
            raise UsageError("cli.option_not_with_sharded", option=option)
    run = compare_merged(session, args, output)
    session.workspace.notes += run.notes
    tell_notes(session, output)
    if args.json:
        output.write_json(json.dumps(run.to_dict(), indent=1))
    else:
        output.show(*sharded_block(run, args.limit))
    return FOUND if args.fail and (run.findings or run.off) else DONE


def compare_merged(session: Session, args: argparse.Namespace, output: Output) -> ShardedRun:
    """Return the comparison of both sides merged, of the wanted steps. Errors as of `compare_sharded`."""
    shard_map = read_shard_map(posixpath.expanduser(args.sharded)) if args.sharded else ShardMap()
    npu = args.left or default_npu(session.workspace)
    golden = args.right or default_golden(session.workspace, npu)
    wants = None if args.step is None else parse_numbers(args.step)
    with ProgressReport(output.err, "comparing") as progress:
        tell = counting(progress, "tensors")
        return compare_sharded(npu, golden, threshold=args.threshold, shard_map=shard_map, wants=wants, progress=tell)
