"""Sets of networks that train under msprobe: they are drawn alike each time, and a fault is where its truth says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from msprobe_python import run_torch
from pytorch.sets import KERNELS, NETWORKS, OTHER_SIDES, PRECISIONS, plans

SCRIPT = Path(__file__).resolve().parent / "simulate_pytorch.py"


def test_sets_are_drawn_alike_and_have_all_kinds() -> None:
    listed = plans(count=72, seed=3)
    assert listed == plans(count=72, seed=3)
    assert listed != plans(count=72, seed=4)
    assert Counter(plan.fault for plan in listed)["none"] == 24
    assert {plan.fault for plan in listed} > {*KERNELS, *OTHER_SIDES}
    assert {plan.network for plan in listed} == set(NETWORKS)
    assert {plan.precision for plan in listed} == set(PRECISIONS)
    assert all(set(plan.steps) <= {0, 1} and plan.since in plan.steps for plan in listed)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["block", "gradient_block", "weights"])
def test_a_fault_is_where_its_truth_says(tmp_path: Path, fault: str) -> None:
    run_torch(SCRIPT, tmp_path, str(tmp_path), "--count", "1", "--seed", "7", "--clean", "0", "--fault", fault)
    truth = json.loads((tmp_path / "truth/t000.json").read_text())
    assert truth["cause"] == ("weights" if fault == "weights" else "kernel")
    for side in ("npu", "gpu"):
        leaves = sorted((tmp_path / "t000" / side).glob("step*/*/dump.json"))
        assert len(leaves) == len(truth["steps"]) * truth["ranks"]
        entries = json.loads(leaves[-1].read_text())["data"]
        assert set(truth["accept"]) <= set(entries)
    assert bool(truth["accept"]) is (fault != "weights")
    if truth["accept"]:
        assert all(name.endswith(".backward") is fault.startswith("gradient") for name in truth["accept"])
        assert all(effect > 20 for effect in truth["effects"].values())
    else:
        assert truth["changed"]["parameter"]
