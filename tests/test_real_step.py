"""A training step that TensorFlow really did: what is read of it is what TensorFlow had, and its fault is found."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import tool
from real_tree import ARCHIVE, CULPRIT, PASS, tensors_of, unpack
from training_side import run_script, tensorflow_python

import precision_tool
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.model.comparison import Status

REPO = Path(__file__).resolve().parents[1]
#: Reads every tensor of a run as TensorFlow's own debugger does, into one .npz.
READ = """
import sys
import numpy as np
from tensorflow.python.debug.lib import debug_data
found = {}
for datum in debug_data.DebugDumpDir(sys.argv[1], validate=False).dumped_tensor_data:
    found["%s:%d" % (datum.node_name, datum.output_slot)] = datum.get_tensor()
np.savez(sys.argv[2], **{name.replace("/", "@"): value for name, value in found.items()})
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    unpack(folder)
    return folder


def test_it_is_small() -> None:
    assert ARCHIVE.stat().st_size < 1 << 20


def test_every_metric_is_that_of_the_values(real_data: Path, archive: Path) -> None:
    """Each output of an op of the script against plain numpy on what tfdbg wrote; layouts and casts change nothing."""
    device, benchmark = tensors_of(archive / "device"), tensors_of(archive / "benchmark")
    device["conv2_Relu:0"] = np.load(archive / "device_fed.npy")
    (result,) = precision_tool.compare(real_data / "npu/debug_0/dump", real_data / "tf/tf_debug", workers=1)
    checked = 0
    for row in result.rows:
        name, _, index = row.pair.golden_tensor.rpartition(":")
        key = f"{flatten(name)}:{index}"
        is_of_script = row.status == Status.COMPARED and bool(row.original_ops) and not row.pair.is_input
        if not is_of_script or row.is_scalar or key not in device:
            continue
        x, y = (np.asarray(side[key], np.float64).ravel() for side in (device, benchmark))
        assert row.metrics is not None
        assert row.metrics.max_absolute_error == pytest.approx(np.abs(x - y).max(), rel=1e-6, abs=1e-9), key
        if x.any() and y.any():
            expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
            assert row.metrics.cosine == pytest.approx(expected, abs=1e-6), key
        checked += 1
    assert checked > 45


def test_the_fault_is_found(real_data: Path, tmp_path: Path) -> None:
    """The fused op is the first that is wrong: everything before it agrees to what float16 can tell."""
    run = tool("--data", real_data, "--work", "w", "ac", "-c", "--json", cwd=tmp_path)
    (result,) = run.results
    rows = [row for row in result["rows"] if row["metrics"] is not None]
    at = next(number for number, row in enumerate(rows) if row["op"] == CULPRIT and row["slot"] == "output:0")
    assert min(row["metrics"]["cosine"] for row in rows[:at]) > 0.99999
    assert rows[at]["metrics"]["cosine"] < 0.6
    assert rows[at]["pass"] == [PASS]
    first = result["findings"][0]
    assert (first["op_name"], first["original_ops"]) == (CULPRIT, "conv2/Conv2D,conv2/BiasAdd,conv2/Relu")


def test_ops_that_the_benchmark_does_not_have_are_the_compilers(real_data: Path, tmp_path: Path) -> None:
    listed = json.loads(tool("--data", real_data, "--work", "w", "ls", "--json", cwd=tmp_path).out)["graphs"][0]["ops"]
    types = [op["type"] for op in listed]
    assert types.count("TransData") > 4
    assert types.count("Cast") > 8
    assert sum(op["dumped"] for op in listed) == 77
    assert [op["name"] for op in listed if op["passes"]] == ["conv1/Conv2Dconv1/BiasAddconv1/Relu", CULPRIT]


# --- where TensorFlow is ----------------------------------------------------------------------------------------------


def test_its_tensors_are_read_as_tensorflow_reads_them(archive: Path, tmp_path: Path) -> None:
    python = tensorflow_python("1.15")
    for name in ("benchmark", "device"):
        (run,) = (archive / name).glob("run_*")
        run_script(python, READ, tmp_path, str(run), str(tmp_path / f"{name}.npz"))
        theirs = {flatten(key.replace("@", "/")): value for key, value in np.load(tmp_path / f"{name}.npz").items()}
        ours = tensors_of(archive / name)
        assert len(theirs) == len(ours) > 90
        for key, value in theirs.items():
            mine = ours[re.sub(r"^_arg_(\w+?)_\d+_\d+:0", r"\1:0", key)]
            assert mine.dtype == value.dtype, key
            np.testing.assert_array_equal(mine, value, err_msg=key)


def test_it_is_what_its_script_makes(archive: Path, tmp_path: Path) -> None:
    """Made anew it has the same ops and tensors; processors may round sums in another order."""
    python = tensorflow_python("1.15")
    made = tmp_path / "made"
    made.mkdir()
    subprocess.run(
        [python, str(REPO / "scripts" / "real_step.py"), str(made)],
        check=True,
        capture_output=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert sorted(path.name for path in made.iterdir()) == sorted(path.name for path in archive.iterdir())
    for name, close in (("benchmark", 1e-4), ("device", 2e-2)):
        assert (made / f"{name}.json").read_text("ascii") == (archive / f"{name}.json").read_text("ascii")
        old, new = (tensors_of(folder / name) for folder in (archive, made))
        assert old.keys() == new.keys()
        for key, value in old.items():
            size = np.abs(value.astype(np.float64)).max(initial=0) + 1e-6
            np.testing.assert_allclose(
                new[key].astype(np.float64), value.astype(np.float64), rtol=0, atol=close * size, err_msg=key
            )
