"""What lies beside a dump in its data folder counts in a study as in `ac`: other runs, overflow status files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from diagnosing import studied
from opdebug_payloads import AIC, core_fields, new_payload, write_status
from tiny_network import layers

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.study_conclusion import Culprit
from precision_tool.lib.diagnose.study_plan import StudyOptions, prepare


def culprit_of(data: Path, work: Path) -> Culprit | None:
    """Whom the study of a data folder accuses."""
    return studied(work, data).conclusion.culprit


def test_an_op_that_computes_differently_in_two_runs(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    truth = generate_demo(data, fault="random")
    found = culprit_of(data, tmp_path / "work")
    assert found is not None
    assert (found.op, found.cause, found.run) == (truth.culprit, "random", None)
    shutil.rmtree(data / "npu" / "debug_1")  # nothing of the leaf itself has changed
    assert culprit_of(data, tmp_path / "work") is None


def test_where_only_another_run_computes_wrong_it_is_that(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    generate_demo(data, fault="none")
    assert culprit_of(data, tmp_path / "work") is None
    wrong = generate_demo(tmp_path / "wrong", fault="fused")
    shutil.move(tmp_path / "wrong" / "npu" / "debug_0", data / "npu" / "debug_1")
    found = culprit_of(data, tmp_path / "work")
    assert found is not None
    assert (found.op, found.run) == (wrong.culprit, 1)


def test_another_step_of_another_run_tells_nothing(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    generate_demo(data, fault="random")
    (step,) = (data / "npu" / "debug_1" / "dump").glob("*/*/*/*/0")
    step.rename(step.with_name("7"))
    (plan,) = prepare(StudyOptions(folders=[str(data)])).plans
    assert plan.surroundings.runs == ()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A data folder without a benchmark: an op that nobody can recompute puts out Inf, and a status file says so."""
    network = layers().with_part(
        "two/Tanh", type="Secret", compute=lambda x: 60000 * (1 + np.abs(x)), dtype="float16"
    )  # fmt: skip
    data = network.with_part("trans_Cast_4", compute=lambda x: x).write(tmp_path / "told", benchmark=False)
    (file,) = (data / "npu").rglob("*.two_Tanh.*")
    payload = new_payload(AIC, core_fields(task=int(file.name.split(".")[-3]), stream=0))
    write_status(file.parent, payload, timestamp=int(file.name.rsplit(".", 1)[1]) + 1)
    return data


def test_an_op_that_a_status_file_names_is_accused(secret: Path, tmp_path: Path) -> None:
    found = culprit_of(secret, tmp_path / "work")
    assert found is not None
    assert (found.op, found.cause) == ("two/Tanh", "overflow")
    (status,) = secret.rglob("Opdebug.*")
    status.unlink()
    found = culprit_of(secret, tmp_path / "work")
    assert found is None or found.op != "two/Tanh"


@pytest.mark.parametrize(("device", "is_told"), [("", True), ("5", False)])
def test_the_overflow_detections_dump_tells_of_its_own_device(
    secret: Path, tmp_path: Path, device: str, is_told: bool
) -> None:
    (status,) = secret.rglob("Opdebug.*")
    parts = list(status.parent.parts[-5:])
    parts[1] = device or parts[1]
    folder = secret.joinpath("overflow", "dump", *parts)
    folder.mkdir(parents=True)
    shutil.move(status, folder / status.name)
    (dump,) = (secret / "npu").rglob("*.two_Tanh.*")
    shutil.copy(dump, folder)  # it dumps what overflows, and has task numbers of its own
    (plan,) = prepare(StudyOptions(folders=[str(secret)])).plans
    assert plan.surroundings.statuses == ((str(folder / status.name),) if is_told else ())
    found = culprit_of(secret, tmp_path / "work")
    assert (found is not None and found.op == "two/Tanh") is is_told
