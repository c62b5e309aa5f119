"""The studies of `scripts/benchmarks/study_figures.py`: every network trains, and the score is by the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from diagnosing import studied
from study_cases import CASES, write_case
from study_figures import judged
from study_machine import DEVICES, Job, Writer
from study_networks import NETWORKS, Feeding

CASE = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_trains_on_all_ranks(name: str, tmp_path: Path) -> None:
    writer = Writer(tmp_path, 2)
    job = Job(2, DEVICES["imprecise"], writer)
    NETWORKS[name](job, Feeding(3))
    before = {variable: {r: x.copy() for r, x in device.items()} for variable, (device, _) in job.variables.items()}
    job.end_step()
    trained = [v for v, old in before.items() if any((job.variables[v][0][r] != x).any() for r, x in old.items())]
    weights = {variable for variable in before if variable.endswith(("kernel", "bias", "gamma", "shard"))}
    assert weights <= set(trained)
    for variable in weights:
        device, bench = job.variables[variable]
        for rank, values in device.items():
            # By their norms: Adam's first step is of one size, and takes the sign of a gradient near zero.
            assert np.linalg.norm(values - bench[rank]) <= 0.05 * np.linalg.norm(bench[rank]), variable


def test_a_study_is_scored_by_its_truth(tmp_path: Path) -> None:
    case = replace(CASE["f23"], ranks=2, step=0, steps=1, at=(1,))
    truth = write_case(case, tmp_path)
    said = studied(tmp_path, tmp_path / "data").to_dict()
    assert judged(truth, said)["right"]
    assert judged(truth | {"ops": ["head/MatMul"]}, said)["wrong"] == ["op"]
    assert judged(truth | {"clean": True}, said)["wrong"] == ["accused"]
    assert judged(truth | {"at": [0]}, said)["wrong"] == ["rank"]
    assert judged(truth, said | {"culprit": None})["wrong"] == ["nobody"]
