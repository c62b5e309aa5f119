"""PyTorch `.h5` dumps: compared as msaccucmp compares them, and by msaccucmp with `--engine cann`."""

from __future__ import annotations

from math import prod
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import cells, only_result, table, tool
from h5_files import GPU, NPU, write_h5
from vendor import Vendor, cann
from vendor_cells import METRICS, Array, deviation, formulas, is_near, is_right

from precision_tool.lib.demo.pytorch_demo import PytorchTruth, generate_pytorch

# Another program is run again and again: once, with the newest versions of the dependencies, is enough.
pytestmark = pytest.mark.slow

#: Ops that only ours finds the counterpart of: the vendor knows that of `CudnnBatchNormBackward`, not of the op itself.
ONLY_OURS = {"/NativeBatchNorm/2/input/bias", "/NativeBatchNorm/2/input/input", "/NativeBatchNorm/2/input/weight"}
ONLY_OURS |= {"/NativeBatchNorm/2/output/result0", "/NpuConvolution/1/input/input"}


@pytest.fixture
def demo(tmp_path: Path) -> PytorchTruth:
    """A training step of an NPU and of a GPU."""
    return generate_pytorch(tmp_path / "precision_data", seed=3)


def values(path: Path, name: str) -> Array:
    """A data set in the order that its strides give, as float64."""
    with h5py.File(path, "r") as file:
        stored: Array = file[name][()]
        strides = [int(step) * stored.itemsize for step in file[name].attrs["Stride"]]
    flat = np.ascontiguousarray(stored).reshape(-1)
    assert prod(stored.shape) == flat.size
    return np.lib.stride_tricks.as_strided(flat, stored.shape, strides).astype(np.float64)


def test_our_cells(vendor: Vendor, demo: PytorchTruth, tmp_path: Path) -> None:
    """Columns, the rows that the vendor has figures in, their order, and the figures: float64 says who is right."""
    ran = vendor.compare(demo.npu, demo.golden, output=tmp_path / "out")
    tool("--work", "w", "vc", "--compat", cwd=tmp_path)
    mine = only_result(tmp_path / "w")
    assert table(ran.result)[0] == table(mine)[0]
    theirs = [row for row in cells(ran.result) if row["CosineSimilarity"] != "NaN"]
    ours = {row["NPUDumpPath"]: row for row in cells(mine)}
    assert len(theirs) > 30
    names = [row["NPUDumpPath"] for row in theirs]
    assert [name for name in ours if name in names] == names
    assert set(ours) - set(names) == ONLY_OURS
    for row in theirs:
        own = ours[row["NPUDumpPath"]]
        for column in ("Index", "NPUDump", "GroundTruthPath", "DataType", "Shape", "CompareFailReason"):
            assert own[column] == row[column], (row, column)
        x, y = values(demo.npu, row["NPUDumpPath"]), values(demo.golden, row["GroundTruthPath"])
        exact = formulas(x, y) if x.any() and y.any() else {}
        for column in METRICS:
            if own[column] == row[column]:
                continue
            assert is_right(own[column], exact[column]), (row, column)
            # It sums, and forms |x/y - 1|, in float32.
            assert is_near(row[column], exact[column], x.size**0.5), (row, column)
        if own["StandardDeviation"] != row["StandardDeviation"]:
            assert own["StandardDeviation"] == deviation(x, y)


def test_the_engine(vendor: Vendor, demo: PytorchTruth, tmp_path: Path) -> None:
    """With odd names, and sides that are named from the working folder."""
    npu, golden = (path.rename(path.with_name(f"it's {side}.h5")) for path, side in ((demo.npu, 1), (demo.golden, 2)))
    sides = ("-lt", npu.relative_to(tmp_path), "-rt", golden.relative_to(tmp_path))
    run = cann(vendor, tmp_path, "--work", "w", "ac", "-c", *sides, "--json")
    (document,) = run.results
    assert document["findings"][0]["op_name"] == demo.culprit
    plain = [path.rename(tmp_path / f"{number}.h5") for number, path in enumerate((npu, golden))]
    ran = vendor.compare(*plain, output=tmp_path / "by_hand")
    assert table(only_result(tmp_path / "w")) == table(ran.result)


def test_several_files_of_one_name(vendor: Vendor, tmp_path: Path) -> None:
    """Each has a result of its own, and one that it refuses does not end the others'."""
    one = np.arange(6, dtype=np.float32).reshape(2, 3)
    for number, device in ((1, NPU), (2, NPU), (3, GPU)):
        for side, of_side in (("npu", device), ("gpu", GPU)):
            path = tmp_path / side / f"rank{number}" / "step.h5"
            path.parent.mkdir(parents=True)
            write_h5(path, {"/Add/1/output/result": one * number}, device=of_side)
    sides = ("-lt", "npu", "-rt", "gpu")
    run = cann(vendor, tmp_path, "--work", "w", "vc", *sides)
    found = sorted((tmp_path / "w").rglob("*result_*.csv"))
    assert {cells(path)[0]["StandardDeviation"] for path in found} == {deviation(one * n, one * n) for n in (1, 2)}
    assert "not compared by the toolkit: msaccucmp: its result is not complete" in run.err
    assert "not the dump data of the model executed on the AI processor" in run.err
