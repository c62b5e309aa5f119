"""The faults that a comparison alone does not explain: overflow, loss scale, two runs that differ, memory."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_tool.lib.demo import device as faults
from precision_tool.lib.demo.dump_writer import status_payload
from precision_tool.lib.demo.generate import MARKER, DemoTruth, generate_demo
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.model.tensor import Tensor

SEEDS = range(3)


def dumps(folder: Path) -> dict[str, Path]:
    """Dump files by the name of their op, flattened, in the order of their times."""
    files = sorted(folder.iterdir(), key=lambda path: int(path.name.split(".")[4]))
    return {path.name.split(".")[1]: path for path in files}


def raw(path: Path, side: str = "outputs", slot: int = 0) -> Any:
    """The bytes of a tensor as its type."""
    tensor = getattr(open_op_dump(str(path)), side)[slot]
    assert isinstance(tensor, Tensor)
    data = path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
    return np.frombuffer(data, tensor.dtype)


def reach_limit(truth: DemoTruth) -> list[str]:
    """Flattened names of the ops with a float16 output that reaches the limit."""
    found = []
    for name, path in dumps(truth.dump_dir).items():
        array = raw(path)
        if array.dtype == np.float16 and not (np.abs(array.astype(np.float64)) < 65504).all():
            found.append(name)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_overflow(tmp_path: Path, seed: int) -> None:
    truth = generate_demo(tmp_path / "x", seed=seed, fault="overflow")
    flat = [name.replace("/", "_") for name in truth.overflowed]
    assert reach_limit(truth) == flat
    assert truth.overflowed[0] == truth.culprit == "conv2/Conv2Dconv2/BiasAddconv2/Relu"
    files = dumps(truth.dump_dir)
    output = raw(files[flat[0]])
    assert np.isfinite(output).all()
    assert (output == 65504).any()
    kernel = raw(files[flat[0]], "inputs", 1)
    assert np.abs(kernel).max() < 65504
    (golden,) = truth.golden_dir.glob("conv2_Relu.0.*.npy")
    assert np.load(golden).max() > 65504


def test_status_files_of_overflow(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "x", fault="overflow")
    leaf = Path("overflow", "dump", *truth.dump_dir.parts[-5:])
    files = sorted((tmp_path / "x" / leaf).iterdir())
    statuses = [path for path in files if path.name.startswith("Opdebug.Node_OpDebug.")]
    copies = {path.name: path for path in files if path not in statuses}
    assert len(statuses) == len(copies) == 3
    by_task = {int(path.name.split(".")[2]): path for path in copies.values()}
    for path in statuses:
        (payload,) = [path.read_bytes()[-2048:]]
        magic, version, valid, kind, _, length = struct.unpack_from("<6I", payload)
        assert (magic, version, valid, kind, length) == (0x5A5A5A5A, 0, 1, 0, 88)
        fields = struct.unpack_from("<11Q", payload, 24)
        stream, task, status = fields[1], fields[2], fields[10]
        assert status == 0x20
        assert by_task[task].name.split(".")[3] == str(stream)
        assert path.name.split(".")[2] != str(task), "its own task is another"
        assert by_task[task].read_bytes() == (truth.dump_dir / by_task[task].name).read_bytes()
    told = {by_task[struct.unpack_from("<Q", path.read_bytes()[-2048:], 40)[0]].name.split(".")[1] for path in statuses}
    assert told == {name.replace("/", "_") for name in truth.overflowed[:3]}


def test_a_status_payload() -> None:
    payload = status_payload(12, 3, 0x110, model=7)
    assert len(payload) == 2048
    assert struct.unpack_from("<Q", payload, 24)[0] == 7
    assert struct.unpack_from("<2Q", payload, 32) == (3, 12)
    assert struct.unpack_from("<Q", payload, 104)[0] == 0x110


@pytest.mark.parametrize("seed", SEEDS)
def test_scale(tmp_path: Path, seed: int) -> None:
    truth = generate_demo(tmp_path / "x", seed=seed, fault="scale")
    assert reach_limit(truth) == [name.replace("/", "_") for name in truth.overflowed]
    assert truth.culprit == truth.overflowed[0]
    assert str(truth.culprit).startswith("gradients/")
    assert np.isinf(raw(dumps(truth.dump_dir)[str(truth.culprit).replace("/", "_")])).any()
    scale = faults.FAULTS["scale"].loss_scale
    (golden,) = truth.golden_dir.glob("loss_scale.0.*.npy")
    assert np.load(golden) == scale
    # The benchmark's updates are those of a step without a loss scale.
    plain = generate_demo(tmp_path / "y", seed=seed, fault="none")
    for name in ("conv1_kernel", "fc2_bias"):
        pattern = f"GradientDescent_update_{name}_ApplyGradientDescent.0.*.npy"
        (one,), (two,) = truth.golden_dir.glob(pattern), plain.golden_dir.glob(pattern)
        np.testing.assert_allclose(np.load(one), np.load(two), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_random(tmp_path: Path, seed: int) -> None:
    truth = generate_demo(tmp_path / "x", seed=seed, fault="random")
    (other,) = (tmp_path / "x" / "npu" / "debug_1" / "dump").glob("*/0/*/1/0")
    left, right = dumps(truth.dump_dir), dumps(other)
    assert list(left) == list(right)
    differ = [name for name in left if raw(left[name]).tobytes() != raw(right[name]).tobytes()]
    assert differ[0] == str(truth.culprit).replace("/", "_")
    assert "dropout_random_mask" in differ
    for slot in range(3):
        assert raw(left[differ[0]], "inputs", slot).tobytes() == raw(right[differ[0]], "inputs", slot).tobytes()
    x, y = (raw(side[differ[0]]).astype(np.float64) for side in (left, right))
    assert np.linalg.norm(x - y) < 0.01 * np.linalg.norm(x)
    assert len(list((tmp_path / "x" / "npu" / "debug_1" / "graph").glob("*_Build.txt"))) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_stomp(tmp_path: Path, seed: int) -> None:
    truth = generate_demo(tmp_path / "x", seed=seed, fault="stomp")
    files = dumps(truth.dump_dir)
    consumer = files[str(truth.culprit).replace("/", "_")]
    writer = open_op_dump(str(files[truth.overwriter])).outputs[0]
    read = open_op_dump(str(consumer)).inputs[0]
    assert isinstance(writer, Tensor)
    assert isinstance(read, Tensor)
    start = writer.address - read.address
    assert 0 < start < read.nbytes
    values = raw(consumer, "inputs").tobytes()
    assert values[start:] == raw(files[truth.overwriter]).tobytes()[: read.nbytes - start]
    # The op that put the input out has what was there before.
    (producer,) = [
        path for path in files.values()
        for tensor in open_op_dump(str(path)).outputs
        if isinstance(tensor, Tensor) and tensor.address == read.address
    ]  # fmt: skip
    assert raw(producer).tobytes()[:start] == values[:start]
    assert raw(producer).tobytes() != values


def test_faults_of_a_scaled_tree(tmp_path: Path) -> None:
    for fault in ("overflow", "stomp", "random"):
        truth = generate_demo(tmp_path / fault, fault=fault, ops=120)
        assert str(truth.culprit).startswith("tower0/")
        assert truth.overflowed[:1] == ((truth.culprit,) if fault == "overflow" else ())


def test_parts_of_an_earlier_demo_go(tmp_path: Path) -> None:
    root = tmp_path / "x"
    generate_demo(root, fault="random")
    assert (root / "npu" / "debug_1").is_dir()
    generate_demo(root, fault="overflow")
    assert not (root / "npu" / "debug_1").exists()
    assert (root / "overflow" / "dump").is_dir()
    generate_demo(root)
    assert not (root / "overflow" / "dump").exists()
    # The marker of a release that knew neither.
    marker = json.loads((root / MARKER).read_text())
    for part in ("npu/debug_1", "overflow/dump"):
        del marker["files"][part]
    (root / MARKER).write_text(json.dumps(marker))
    generate_demo(root)
