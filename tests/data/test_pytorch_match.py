"""PyTorch dumps: which op and tensor belongs to which."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from h5_files import GPU, NPU, Array, add_tensor, write_h5

from precision_tool.lib.data.pytorch_pairing import family, match_dumps, match_ops
from precision_tool.lib.io.hdf5 import read_h5
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.pytorch import H5Dump

ONE = np.ones((2, 3), np.float32)


def dump(path: Path, names: dict[str, Array] | list[str], device: int = NPU) -> H5Dump:
    given = names if isinstance(names, dict) else dict.fromkeys(names, ONE)
    return read_h5(str(write_h5(path, given, device)))


def ops(tmp_path: Path, npu: list[str], golden: list[str]) -> dict[str, str]:
    """NPU op → benchmark op, both given as /op/seq."""
    left = dump(tmp_path / "npu.h5", [f"{name}/input/x" for name in npu])
    right = dump(tmp_path / "gpu.h5", [f"{name}/input/x" for name in golden], GPU)
    return {
        one.npu.name: one.golden.name
        for one in match_ops(left, right).ops
        if one.npu is not None and one.golden is not None
    }


def rows(npu: H5Dump, golden: H5Dump) -> dict[str, Pair]:
    pairs, _ = match_dumps(npu, golden)
    return {pair.tensor_index or pair.op_name: pair for pair in pairs}


@pytest.mark.parametrize(
    ("npu", "golden"),
    [
        ("NpuConvolutionBackward", "CudnnConvolutionBackward"),
        ("NpuConvolutionBackward", "ThnnConvDepthwise2DBackward"),
        ("NativeBatchNormBackward", "CudnnBatchNormBackward"),
        ("NpuConvolution", "CudnnConvolution"),
        ("NpuX", "ThnnX"),
        ("NativeLayerNorm", "LayerNorm"),
        ("Addmm", "Addmm"),
    ],
)
def test_an_op_has_one_name_on_all_devices(npu: str, golden: str) -> None:
    assert family(npu) == family(golden)


def test_other_ops_stay_apart() -> None:
    assert len({family(name) for name in ("Add", "AddBackward", "Npu", "Nativ", "Cudnn", "Native")}) == 6


def test_the_kth_run_of_an_op_belongs_to_the_kth(tmp_path: Path) -> None:
    found = ops(tmp_path, ["/Relu/1", "/Add/2", "/Relu/3", "/Relu/10"], ["/Relu/2", "/Relu/30", "/Relu/4", "/Add/9"])
    assert found == {"/Relu/1": "/Relu/2", "/Relu/3": "/Relu/4", "/Relu/10": "/Relu/30", "/Add/2": "/Add/9"}


def test_ordinary_and_depthwise_convolutions_are_counted_together(tmp_path: Path) -> None:
    """As the vendor's comparison does: the NPU has one name for both."""
    found = ops(
        tmp_path,
        [f"/NpuConvolutionBackward/{number}" for number in (1, 2, 3)],
        ["/CudnnConvolutionBackward/1", "/ThnnConvDepthwise2DBackward/2", "/CudnnConvolutionBackward/5"],
    )
    assert found == {
        "/NpuConvolutionBackward/1": "/CudnnConvolutionBackward/1",
        "/NpuConvolutionBackward/2": "/ThnnConvDepthwise2DBackward/2",
        "/NpuConvolutionBackward/3": "/CudnnConvolutionBackward/5",
    }


def test_a_name_that_ran_as_often_on_both_sides_stands_for_itself(tmp_path: Path) -> None:
    found = ops(
        tmp_path,
        ["/NativeBatchNorm/1", "/BatchNorm/2"],
        ["/CudnnBatchNorm/2", "/BatchNorm/1"],
    )
    assert found == {"/NativeBatchNorm/1": "/CudnnBatchNorm/2", "/BatchNorm/2": "/BatchNorm/1"}


def test_a_different_number_of_runs_is_told(tmp_path: Path) -> None:
    left = dump(tmp_path / "npu.h5", ["/Relu/1/input/x", "/Relu/2/input/x"])
    right = dump(tmp_path / "gpu.h5", ["/Relu/1/input/x"], GPU)
    pairs, notes = match_dumps(left, right)
    assert Message("note.data.h5_counts", count=1, name="Relu", npu=2, golden=1) in notes
    assert [(pair.op_name, pair.status) for pair in pairs] == [
        ("/Relu/1", Status.COMPARED),
        ("/Relu/2", Status.NO_BENCHMARK),
    ]


def test_parameters_that_are_called_otherwise(tmp_path: Path) -> None:
    left = dump(
        tmp_path / "npu.h5", ["/NpuConvolutionBackward/4/input/input", "/NpuConvolutionBackward/4/input/weight"]
    )
    right = dump(
        tmp_path / "gpu.h5", ["/CudnnConvolutionBackward/3/input/self", "/CudnnConvolutionBackward/3/input/weight"], GPU
    )
    found = rows(left, right)
    assert found["/NpuConvolutionBackward/4:input:input"].golden_tensor == "/CudnnConvolutionBackward/3/input/self"
    assert found["/NpuConvolutionBackward/4:input:weight"].golden_tensor == "/CudnnConvolutionBackward/3/input/weight"


def test_a_renamed_parameter_does_not_take_one_of_its_own_name(tmp_path: Path) -> None:
    left = dump(tmp_path / "npu.h5", ["/NpuX/1/input/self", "/NpuX/1/input/input"])
    right = dump(tmp_path / "gpu.h5", ["/CudnnX/1/input/self"], GPU)
    found = rows(left, right)
    assert found["/NpuX/1:input:self"].golden_tensor == "/CudnnX/1/input/self"
    assert found["/NpuX/1:input:input"].status is Status.NO_BENCHMARK


def test_what_only_one_side_has_is_a_row_with_the_reason(tmp_path: Path) -> None:
    left = dump(tmp_path / "npu.h5", ["/Add/1/input/x", "/Add/1/output/y", "/Mine/7/output/y"])
    right = dump(tmp_path / "gpu.h5", ["/Add/5/input/x", "/Add/5/input/more", "/Yours/6/output/y"], GPU)
    pairs, _ = match_dumps(left, right)
    assert [(pair.index, pair.op_name, pair.slot, str(pair.status)) for pair in pairs] == [
        (1, "/Add/1", "input:x", "compared"),
        (1, "/Add/1", "input:more", "no_npu_dump"),
        (1, "/Add/1", "output:y", "no_benchmark"),
        (7, "/Mine/7", "", "no_benchmark"),
        (8, "/Yours/6", "", "no_npu_dump"),  # the next number after the last, as the vendor has it
    ]
    assert all(pair.reason for pair in pairs[1:])


def test_a_dump_of_loaded_inputs_has_the_numbers_of_the_other(tmp_path: Path) -> None:
    """Its second Relu is the benchmark's third op: the first Relu was not run."""
    left = dump(tmp_path / "npu.h5", ["/Relu/3/output/y"])
    right = dump(tmp_path / "gpu.h5", [f"/Relu/{n}/{way}" for n in (1, 3) for way in ("input/x", "output/y")], GPU)
    pairs, notes = match_dumps(left, right)
    assert [(pair.op_name, pair.golden_tensor) for pair in pairs] == [
        ("/Relu/3", "/Relu/3/output/y"),
        ("/Relu/1", "/Relu/1"),
    ]
    assert Message("note.data.h5_by_number") in notes


def test_types_that_are_not_alike_are_told(tmp_path: Path) -> None:
    left = dump(tmp_path / "npu.h5", {"/A/1/input/x": np.ones(2, np.float16), "/A/1/input/y": np.ones(2, np.int32)})
    right = dump(tmp_path / "gpu.h5", {"/A/1/input/x": np.ones(2, "f4"), "/A/1/input/y": np.ones(2, "f4")}, GPU)
    found = rows(left, right)
    assert found["/A/1:input:x"].reason is None  # half precision beside single is what is compared
    assert str(found["/A/1:input:y"].reason) == "types differ: NPU Int, benchmark Float"
    assert found["/A/1:input:y"].status is Status.COMPARED


def test_shapes(tmp_path: Path) -> None:
    left = dump(tmp_path / "npu.h5", {f"/A/1/input/{name}": ONE for name in "abc"})
    right = dump(
        tmp_path / "gpu.h5",
        {
            "/A/1/input/a": np.ones((2, 1, 3), "f4"),
            "/A/1/input/b": np.ones((3, 2), "f4"),
            "/A/1/input/c": np.ones(7, "f4"),
        },
        GPU,
    )
    found = rows(left, right)
    assert (found["/A/1:input:a"].status, found["/A/1:input:a"].reason) == (Status.COMPARED, None)
    assert "shapes differ" in str(found["/A/1:input:b"].reason)
    assert found["/A/1:input:c"].status is Status.SIZE_MISMATCH


def test_parameters_are_not_compared(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "npu.h5", "w") as file:
        add_tensor(file, "/A/1/input/x", ONE)
        add_tensor(file, "/A/1/input/dim", np.array(1), kind=3)
    left = read_h5(str(tmp_path / "npu.h5"))
    pairs, notes = match_dumps(left, left)
    assert [pair.slot for pair in pairs] == ["input:x"]
    assert Message("note.data.h5_parameters", count=1) in notes
