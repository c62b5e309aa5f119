"""Sharded runs with known faults, made by real ranks under msprobe, and how many of them are named.

usage: sharded_cases.py FOLDER [NAME…]

PRECISION_TOOL_MSPROBE is a Python with torch and msprobe. Each case is a training of two steps whose layers are split
by hand (tensor, sequence, data and expert parallel, flat slices, stages, micro-batches), and a benchmark that is not
split, or is otherwise. What is there in FOLDER already is not made again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from precision_tool.lib.diagnose.sharded import ShardedRun, compare_sharded

_RANKS = Path(__file__).with_name("sharded_ranks.py")
_SEED = 5


class Case(NamedTuple):
    """A layout, the fault in it, and what has to be named: one of the faults, the ranks, a part of the name."""

    layout: str
    fault: str = "none"
    faults: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    tensor: str = ""
    benchmark: str = "whole"
    precision: str = "fp32"

    @property
    def name(self) -> str:
        parts = [self.layout, self.benchmark, self.precision, self.fault.replace(":", "_")]
        return "-".join(parts)


_SLICE, _TERM, _STALE = ("wrong_slice",), ("not_reduced",), ("stale",)
#: The linear layers are q, k, v, out, up, down of each layer, in this order.
CASES = (
    Case("tp2"),
    Case("tp4", precision="bf16"),
    Case("dp2tp2", precision="bf16"),
    Case("fsdp4"),
    Case("pp2tp2"),
    Case("sp2", precision="bf16"),
    Case("ep2", benchmark="whole_moe"),
    Case("tp4", benchmark="tp2"),
    Case("tp2micro2"),
    Case("dp2", benchmark="micro2"),
    Case("tp2_fused", benchmark="whole_fused"),
    Case("dp2_fused", benchmark="whole_fused", precision="bf16"),
    Case("tp4_fused", "wrong_column:2:1", _SLICE, (1,), "layers.2.qkv", benchmark="whole_fused"),
    Case("tp2_fused", "no_reduce:1", _TERM, (0, 1), "Functional.linear.", benchmark="whole_fused"),
    Case("tp2_fused", "stale:3:0", _STALE, (0,), "layers.3.up", benchmark="whole_fused"),
    Case("tp2", "wrong_up:2:1", _SLICE, (1,), "layers.2.up"),
    Case("tp2", "wrong_up:2:1", _SLICE, (1,), "layers.2.up", precision="bf16"),
    Case("tp4", "wrong_column:1:3", _SLICE, (3,), "layers.1.k"),
    Case("dp2tp2", "wrong_row:0:2", _SLICE, (2,), "layers.0.out"),
    Case("tp4", "wrong_up:1:2", _SLICE, (2,), "layers.1.up", benchmark="tp2"),
    Case("pp2tp2", "wrong_up:3:3", _SLICE, (3,), "layers.3.up"),
    Case("tp2micro2", "wrong_row:2:0", _SLICE, (0,), "layers.2.out"),
    Case("dp2", "wrong_data:0:1", _SLICE, (1,), "embedding"),
    Case("fsdp2", "wrong_flat:1:1", _SLICE, (1,), "layers.1."),
    Case("ep2", "wrong_expert:1:1", ("wrong_tensor", "wrong_slice"), (1,), "layers.1.experts", benchmark="whole_moe"),
    Case("tp2", "no_reduce:1", _TERM, (0, 1), "Functional.linear.9."),
    Case("tp4", "no_reduce:2:1", _TERM, (1,), "Functional.linear.15."),
    Case("sp2", "no_reduce:0", _TERM, (0, 1), "Functional.linear.3."),
    Case("ep2", "no_reduce_mix:2", _TERM, (0, 1), "Tensor.__mul__.2", benchmark="whole_moe"),
    Case("tp2", "no_backward_reduce:3", _TERM, (0, 1), "layers.3.up."),
    Case("dp2", "no_gradient_reduce:1", _TERM, (0, 1), "layers.1.up"),
    Case("sp2", "turned:2:1", ("wrong_order",), (1,), "Functional.linear.12."),
    Case("fsdp4", "turned:3:2", ("wrong_order",), (2,), "Functional.linear.22."),
    Case("tp2", "stale:1:1", _STALE, (1,), "layers.1.up"),
    Case("fsdp2", "stale:2:0", _STALE, (0,), "layers.2.up"),
    Case("dp2tp2", "stale:0:3", _STALE, (3,), "layers.0.up"),
)


def make(folder: Path, cases: list[Case]) -> None:
    """Train the cases and benchmarks that are not there."""
    wanted: dict[str, dict[str, object]] = {}
    for case in cases:
        for out, layout, fault, precision in (
            (folder / case.name / "npu", case.layout, case.fault, case.precision),
            (folder / f"benchmark-{case.benchmark}", case.benchmark, "none", "fp32"),
        ):
            if not (out / "step1").is_dir():
                wanted[str(out)] = {
                    "out": str(out), "layout": layout, "fault": fault, "precision": precision, "seed": _SEED,
                }  # fmt: skip
    for case in cases:
        (folder / case.name).mkdir(parents=True, exist_ok=True)
        link = folder / case.name / "gpu"
        if not link.exists():
            link.symlink_to(f"../benchmark-{case.benchmark}")
    if wanted:
        plan = folder / "plan.json"
        plan.write_text(json.dumps(list(wanted.values())), encoding="utf-8")
        python = os.environ["PRECISION_TOOL_MSPROBE"]
        with (folder / "ranks.log").open("w") as log:
            subprocess.run([python, str(_RANKS), str(plan)], check=True, stdout=log, stderr=log)


def is_named(case: Case, run: ShardedRun) -> bool:
    """Return whether the fault is the first that is named; of a clean case, that none is."""
    if not case.faults:
        return not run.findings
    if not run.findings:
        return False
    first = run.findings[0]
    where = case.tensor in first.tensor or case.tensor in first.own_name
    return first.fault in case.faults and first.ranks == case.ranks and where


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    cases = [case for case in CASES if not sys.argv[2:] or any(word in case.name for word in sys.argv[2:])]
    folder.mkdir(parents=True, exist_ok=True)
    make(folder, cases)
    right = {True: [0, 0], False: [0, 0]}
    for case in cases:
        begin = time.perf_counter()
        run = compare_sharded(str(folder / case.name / "npu"), str(folder / case.name / "gpu"), threshold=0.98)
        seconds = time.perf_counter() - begin
        is_right = is_named(case, run)
        counts = right[bool(case.faults)]
        counts[0] += is_right
        counts[1] += 1
        print(f"{'right' if is_right else 'WRONG'}  {case.name:44} {len(run.compared):5} tensors {seconds:5.1f} s")
        for finding in run.findings[: 1 if is_right else 3]:
            print(f"       {finding.message}")
    named, clean = (f"{count} of {total}" for count, total in (right[True], right[False]))
    print(f"faults named {named}, clean ones not accused {clean}")


if __name__ == "__main__":
    main()
