"""PyTorch `.h5` dumps as a user has them: compared, listed, looked at, decoded, copied."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from builders import one_op_tree, write_dump, write_golden
from command_line import Finished, cells, only_result, result_files, table, tool
from h5_files import GPU, NPU, Array, add_tensor, write_h5
from rich.console import Console

import precision_tool
from precision_tool.lib.compare import tensor_reader
from precision_tool.lib.compare.columns import METRIC_COLUMNS
from precision_tool.lib.compare.result_csv import read_result
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.demo.pytorch_demo import generate_pytorch
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import banner

CULPRIT = "/NpuConvolutionBackward/12"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's data, and a comparison of it."""
    folder = tmp_path_factory.mktemp("pytorch")
    generate_pytorch(folder / "precision_data")
    tool("vc", "--json", cwd=folder)
    return folder


@pytest.fixture
def data(generated: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(generated / "precision_data", tmp_path / "precision_data")
    return tmp_path


def dumps(folder: Path) -> tuple[Path, Path]:
    (npu,) = (folder / "precision_data" / "pt" / "npu").iterdir()
    (gpu,) = (folder / "precision_data" / "pt" / "gpu").iterdir()
    return npu, gpu


def logical(path: Path, name: str) -> Array:
    """The values of a data set, read with h5py and put in order by its strides."""
    with h5py.File(path, "r") as file:
        dataset = file[name]
        stored: Array = dataset[()]
        strides = [int(step) * stored.itemsize for step in dataset.attrs["Stride"]]
        if dataset.attrs["DeviceType"] == NPU or not stored.shape:
            return stored
        return np.lib.stride_tricks.as_strided(stored.reshape(-1), stored.shape, strides).copy()


# --- comparing --------------------------------------------------------------------------------------------------------


def test_the_result_has_the_vendors_columns_for_pytorch(generated: Path) -> None:
    """Those of msaccucmp's PytorchComparison; behind CompareFailReason come ours."""
    header, lines = table(only_result(generated))
    vendor = ["Index", "NPUDump", "NPUDumpPath", "GroundTruthPath", "DataType", "Shape"]
    assert header[: 7 + len(METRIC_COLUMNS)] == [*vendor, *METRIC_COLUMNS, "CompareFailReason"]
    assert [int(line[0]) for line in lines] == sorted(int(line[0]) for line in lines)
    by_path = {line[2]: line[:6] for line in lines}
    assert by_path["/NativeBatchNormBackward/11/output/grad_inputs/1"] == [
        "11",
        "NativeBatchNormBackward",
        "/NativeBatchNormBackward/11/output/grad_inputs/1",
        "/CudnnBatchNormBackward/11/output/grad_inputs/1",
        "float32",
        "[24]",
    ]
    assert by_path["/NpuConvolution/1/input/input"][3] == "/CudnnConvolution/1/input/self"


def test_every_metric_is_that_of_the_values(generated: Path) -> None:
    npu, gpu = dumps(generated)
    rows = cells(only_result(generated))
    assert len(rows) == 43
    for row in rows:
        x, y = (
            logical(*where).reshape(-1).astype(np.float64)
            for where in zip((npu, gpu), (row["NPUDumpPath"], row["GroundTruthPath"]), strict=True)
        )
        if not y.any():  # a bias that is zero on both sides
            assert (row["CosineSimilarity"], row["MaxAbsoluteError"]) == ("1.0", "0.000000")
            continue
        if x.size > 1:
            cosine = x @ y / np.sqrt((x @ x) * (y @ y))
            assert float(row["CosineSimilarity"]) == pytest.approx(cosine, abs=1e-6)
        assert float(row["MaxAbsoluteError"]) == pytest.approx(np.abs(x - y).max(), abs=1e-6)
        assert float(row["MeanAbsoluteError"]) == pytest.approx(np.abs(x - y).mean(), abs=1e-6)
        distance = np.sqrt(((x - y) ** 2).sum() / (y * y).sum())
        assert float(row["RelativeEuclideanDistance"]) == pytest.approx(distance, abs=1e-6)


def test_the_first_faulty_op_is_named_backward_too(data: Path) -> None:
    run = tool("ac", "-c", cwd=data)
    assert f"{CULPRIT} is the first op whose inputs agree and whose output does not" in run.text
    assert "matched by op and order" in run.text
    assert "benchmark /CudnnConvolutionBackward/12" in run.text
    assert "graph" not in run.text
    again = tool("ac", "--fail", "--json", cwd=data, code=1)
    (found,) = again.results[0]["findings"]
    assert (found["kind"], found["op_name"]) == ("first_faulty_op", CULPRIT)


def test_fresh_and_read_back_results_are_alike(generated: Path) -> None:
    fresh = tool("--work", "again", "vc", "--json", cwd=generated)
    back = tool("vcs", "--json", "-f", only_result(generated / "again"), cwd=generated)
    names = ("index", "op", "type", "slot", "npu_ops", "benchmark_ops", "benchmark", "shape", "npu_type", "status")
    for one, other in zip(fresh.results[0]["rows"], back.results[0]["rows"], strict=True):
        assert [one[name] for name in names] == [other[name] for name in names]
    assert fresh.results[0]["findings"] == back.results[0]["findings"]
    shutil.rmtree(generated / "again")


def test_a_result_of_the_vendors_tool_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result_20210615093000.csv"
    header = [
        "Index",
        "NPUDump",
        "NPUDumpPath",
        "GroundTruthPath",
        "DataType",
        "Shape",
        *METRIC_COLUMNS,
        "CompareFailReason",
    ]
    numbers = ["0.500000", *["1.000000"] * 4, "(0.0;1.0),(0.0;1.0)", *["1.000000"] * 4]
    lines = [
        ["4", "Addmm", "/Addmm/4/input/mat1", "/Addmm/6/input/mat1", "float16", "[2,3]", *numbers, ""],
        ["4", "Addmm", "NaN", "/Addmm/6/input/more", "NaN", "NaN", *["NaN"] * 10, "No data match"],
        ["7", "Mine", "NaN", "NaN", "NaN", "NaN", *["NaN"] * 10, "No data match with op:Mine in golden dump data."],
        ["8", "NaN", "NaN", "/Yours/3", "NaN", "NaN", *["NaN"] * 10, "No data match"],
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    rows = read_result(str(path))
    assert [(row.op_name, row.slot, row.op_type, ",".join(row.npu_ops), ",".join(row.golden_ops)) for row in rows] == [
        ("/Addmm/4", "input:mat1", "Addmm", "/Addmm/4", "/Addmm/6"),
        ("/Addmm/4", "input:more", "Addmm", "/Addmm/4", "/Addmm/6"),
        ("/Mine/7", "", "Mine", "/Mine/7", "*"),
        ("*", "", "Yours", "*", "/Yours/3"),
    ]
    assert "/Addmm/4" in tool("vcs", "-f", path, cwd=tmp_path).out


def test_options_of_vc(data: Path) -> None:
    shutil.rmtree(data / "precision_data" / "temp")
    one = tool("vc", "-op", "Addmm/4", "-o", "0", cwd=data)
    assert "80 of 80 elements differ" in one.text
    (result,) = (data / "precision_data" / "temp").rglob("single_op_result_*.csv")
    assert [row["NPUDumpPath"] for row in cells(result)] == ["/Addmm/4/output/result"]
    shutil.rmtree(data / "precision_data" / "temp")
    some = tool("vc", "--select", "3,4", "--algorithm", "CosineSimilarity", "--max", "5", cwd=data)
    assert "only 2 of 12 ops were selected" in some.text
    header, lines = table(only_result(data))
    assert header[5:8] == ["Shape", "CosineSimilarity", "CompareFailReason"]
    assert {line[0] for line in lines} == {"3", "4"}
    tool("vc", "--map", cwd=data)
    (mapping,) = (data / "precision_data" / "temp").rglob("mapping_*.csv")
    npu, _ = dumps(data)
    assert cells(mapping)[0]["NPUDumpPath"].endswith(f"{npu.name}:/NpuConvolution/1/input/input")


def test_overflow_and_own_metrics(tmp_path: Path) -> None:
    values = {"/A/1/output/x": np.array([1, 65504, 2], np.float16), "/A/1/output/y": np.ones(3, np.float16)}
    for side, device in (("npu", NPU), ("gpu", GPU)):
        write_h5(tmp_path / "precision_data" / "pt" / side / "a.h5", values, device, chunks=(2,))
    (tmp_path / "own.py").write_text("def compare_sum(x, y):\n    return float((x - y).sum())\n")
    tool("vc", "--overflow_detection", "--custom", "own.py", cwd=tmp_path)
    found = {row["NPUDumpPath"][-1]: (row["OverFlow"], row["compare_sum"]) for row in cells(only_result(tmp_path))}
    assert found == {"x": ("YES", "0"), "y": ("NO", "0")}


def test_two_files_are_named_and_need_no_data_folder(data: Path, tmp_path: Path) -> None:
    npu, gpu = dumps(data)
    there = tmp_path / "there"
    there.mkdir()
    run = tool("vc", "-lt", npu, "-rt", gpu, cwd=there)
    assert "43 of 43 tensors of 12 ops, 1 below 0.98" in run.text
    swapped = tool("vc", "-lt", gpu, "-rt", npu, cwd=there)
    assert "are they swapped?" in swapped.text


def test_files_of_one_name_are_compared_with_each_other(tmp_path: Path) -> None:
    for step in ("step0.h5", "step1.h5"):
        for side, device in (("npu", NPU), ("gpu", GPU)):
            values = np.arange(5, dtype=np.float32) * (-1 if step == "step1.h5" else 1)
            write_h5(tmp_path / "precision_data" / "pt" / side / step, {"/Relu/1/output/result": values}, device)
    write_h5(tmp_path / "precision_data" / "pt" / "npu" / "extra.h5", {"/Relu/1/output/result": np.ones(2)})
    run = tool("vc", cwd=tmp_path)
    assert "1 more .h5 file of the NPU left out (extra.h5)" in run.text
    assert run.text.count("1 of 1 tensor of 1 op, 0 below") == 2
    assert [path.name.split("_result")[0] for path in result_files(tmp_path)] == ["step0", "step1"]


@pytest.mark.parametrize(
    ("left", "right"), [("pt/npu", "pt/gpu"), ("pt/npu/a.h5", "pt/gpu"), ("pt/npu", "pt/gpu/a.h5")]
)
def test_a_newer_file_does_not_displace_one_of_the_same_name(tmp_path: Path, left: str, right: str) -> None:
    for place in ("npu/a", "gpu/a", "gpu/b"):
        write_h5(tmp_path / f"pt/{place}.h5", {"/Relu/1/output/result": np.ones(2)})
    os.utime(tmp_path / "pt/gpu/a.h5", (0, 0))
    (result,) = tool("vc", "-lt", left, "-rt", right, "--json", cwd=tmp_path).results
    assert result["benchmark"].endswith("pt/gpu/a.h5")


def test_a_damaged_one_of_many_does_not_hide_the_others(tmp_path: Path) -> None:
    for step in ("a.h5", "b.h5"):
        for side, device in (("npu", NPU), ("gpu", GPU)):
            write_h5(tmp_path / "precision_data" / "pt" / side / step, {"/Relu/1/output/y": np.ones(4)}, device)
    (tmp_path / "precision_data" / "pt" / "npu" / "a.h5").write_bytes(b"broken")
    run = tool("vc", cwd=tmp_path)
    assert "not compared: " in run.text
    assert "1 of 1 tensor of 1 op" in run.text
    listed = tool("ls", "dump", cwd=tmp_path)
    assert "/Relu/1/output/y" in listed.out
    assert "a.h5: not an HDF5 file" in listed.err


# --- looking ----------------------------------------------------------------------------------------------------------


def test_ls_dump_lists_the_data_sets_by_their_own_names(generated: Path) -> None:
    run = tool("ls", "dump", cwd=generated, columns=80)
    assert "/NpuConvolution/1/input/input" in run.out
    assert "/CudnnConvolution/1/input/self" in run.out
    assert "50 of 50 data sets of 12 ops" in run.text
    some = tool("ls", "dump", "-n", "AddmmBackward/9/output", "-t", "addmm", "-l", "1", cwd=generated)
    assert some.out.count("/AddmmBackward/9/output/") == 2  # one of each side
    assert "3 of 50 data sets" in some.text
    document = tool("ls", "dump", "--json", cwd=generated).json
    assert [dump["device"] for dump in document["pytorch"]] == ["NPU", "GPU"]
    first = document["pytorch"][0]["ops"][0]
    assert (first["name"], first["values"][0]["name"]) == ("/NpuConvolution/1", "/NpuConvolution/1/input/input")
    assert "closest are Addmm" in tool("ls", "dump", "-t", "Adm", cwd=generated, code=2).text


def test_ls_lists_ops_with_the_cosines_of_the_newest_result(generated: Path) -> None:
    run = tool("ls", "-t", "backward", cwd=generated, columns=80)
    (line,) = (line for line in run.out.splitlines() if line.endswith(CULPRIT))
    assert line.split()[-2] == "0.824916"
    assert "6 of 12 ops" in run.text
    below = tool("ls", "--below", "0.98", "--json", cwd=generated)
    assert [op["name"] for dump in below.json["dumps"] for op in dump["ops"]] == [CULPRIT]
    assert "is for graphs" in tool("ls", "-f", "SomePass", cwd=generated, code=2).text


@pytest.mark.parametrize("name", ["/Addmm/4", "Addmm/4", "Addmm", "Addmm/4/"])
def test_ni_shows_an_op_and_its_counterpart(generated: Path, name: str) -> None:
    run = tool("ni", name, cwd=generated, columns=80)
    for words in ("/Addmm/4", "after /Relu/3", "before /LogSoftmax/5", "input/alpha (double) 1", "output:result"):
        assert words in run.text
    assert "cos 1.000000" in run.out


def test_ni_as_json_and_what_it_refuses(generated: Path) -> None:
    (op,) = tool("ni", "NativeBatchNormBackward", "--json", cwd=generated).json["ops"]
    assert (op["name"], op["benchmark"]) == ("/NativeBatchNormBackward/11", "/CudnnBatchNormBackward/11")
    assert op["parameters"] == {"input/eps": "1e-05"}
    assert [tensor["slot"] for tensor in op["tensors"]][:2] == ["input:grads/0", "input:input"]
    assert "6 ops fit" in tool("ni", "Backward", cwd=generated, code=2).text
    assert "closest are /Addmm/4" in tool("ni", "Admm", cwd=generated, code=2).text
    assert "is for graphs" in tool("ni", "Addmm/4", "-s", "1", cwd=generated, code=2).text


def test_an_op_that_only_the_benchmark_has_is_shown_too(data: Path) -> None:
    _, gpu = dumps(data)
    with h5py.File(gpu, "a") as file:
        add_tensor(file, "/Dropout/13/output/mask", np.ones(3, np.float32), GPU)
    run = tool("ni", "Dropout", cwd=data)
    assert "PyTorch benchmark (GPU)" in run.text
    assert "no dump of another device belongs to its file" in run.text
    assert re.search(r"benchmark +float32 \[3\]", run.out)
    shutil.rmtree(data / "precision_data" / "pt" / "npu")
    assert "precision_data/pt/npu: no .h5 dump of the NPU" in tool("vc", cwd=data, code=2).text


def shown_values(run: Finished) -> list[list[float]]:
    return [
        [float(value) for value in line.split("]")[1].split()] for line in run.out.splitlines() if line.startswith("[")
    ]


@pytest.mark.parametrize("form", ["{name}", "{file}:{name}", "{bare}"])
def test_pt_shows_a_data_set_and_its_benchmark(generated: Path, form: str) -> None:
    npu, gpu = dumps(generated)
    name = "/Addmm/4/output/result"
    run = tool("pt", form.format(name=name, file=npu, bare=npu.name + ":" + name), "-p", "3", cwd=generated)
    shown = shown_values(run)
    assert shown[0] == pytest.approx(logical(npu, name).reshape(-1)[:3], rel=1e-5)
    assert shown[1] == pytest.approx(logical(gpu, name).reshape(-1)[:3], rel=1e-5)
    assert name in run.out


def test_pt_of_an_op_of_a_slot_and_of_a_file(generated: Path) -> None:
    _, gpu = dumps(generated)
    op = tool("pt", "/AddmmBackward/9", cwd=generated, columns=80)
    assert "inputs of /AddmmBackward/9" in op.text
    assert op.text.count("output:grad_inputs/") == 3
    assert op.text.count("histogram of") == 4  # of the smallest all values are shown
    transposed = tool("pt", "/AddmmBackward/9", "-i", "2", "-p", "4", cwd=generated)
    expected = logical(gpu, "/AddmmBackward/9/input/mat2").reshape(-1)[:4]
    assert shown_values(transposed)[1] == pytest.approx(expected, rel=1e-5)  # stored as (10, 2400)
    alone = tool("pt", gpu, "--json", cwd=generated)
    assert len(alone.json["tensors"]) == 50
    flag = tool("pt", "/NpuConvolution/1/input/stride", cwd=generated)
    assert shown_values(flag) == [[1, 1]]
    saved = tool("pt", "/Addmm/4/input/mat2", "-c", cwd=generated)
    paths = [Path(line) for line in saved.out.splitlines() if line.endswith(".txt")]
    assert len(set(paths)) == 2
    np.testing.assert_allclose(np.loadtxt(generated / paths[1]), logical(gpu, "/Addmm/4/input/mat2"), rtol=1e-6)


def test_cp_compares_an_op_two_data_sets_and_a_file(generated: Path, tmp_path: Path) -> None:
    npu, gpu = dumps(generated)
    of_op = tool("cp", f"{CULPRIT}/output/grad_inputs/1", "--json", cwd=generated).json
    x, y = (
        logical(*where)
        for where in (
            (npu, f"{CULPRIT}/output/grad_inputs/1"),
            (gpu, "/CudnnConvolutionBackward/12/output/grad_inputs/1"),
        )
    )
    assert of_op["metrics"]["max_absolute_error"] == pytest.approx(np.abs(x - y).max(), rel=1e-6)
    assert tuple(of_op["metrics"]["max_error_index"]) == np.unravel_index(np.abs(x - y).argmax(), x.shape)
    first_output = tool("cp", CULPRIT, cwd=generated, columns=80)
    assert f"{CULPRIT}/output/grad_inputs/0" in first_output.out
    np.save(tmp_path / "own.npy", y)
    with_file = tool("cp", f"{npu}:{CULPRIT}/output/grad_inputs/1", tmp_path / "own.npy", "--json", cwd=generated).json
    assert with_file["metrics"] == of_op["metrics"]
    other = tool("cp", "Addmm/4", "Relu/3", cwd=generated, code=2)
    assert "different sizes" in other.text


def test_dc_decodes_and_writes_text_as_numpy_does(generated: Path, tmp_path: Path) -> None:
    _, gpu = dumps(generated)
    tool("dc", f"{gpu}:/Addmm/4", "--txt", "-o", tmp_path / "out", cwd=generated)
    for name in ("mat1", "mat2", "self"):
        expected = logical(gpu, f"/Addmm/4/input/{name}")
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"Addmm.4.input.{name}.npy"), expected)
        np.savetxt(tmp_path / "expected.txt", expected.flatten())
        written = (tmp_path / "out" / f"Addmm.4.input.{name}.txt").read_bytes()
        assert written == (tmp_path / "expected.txt").read_bytes()
    every = tool("dc", "precision_data/pt/gpu", "-o", tmp_path / "all", "--json", cwd=generated).json
    assert (every["decoded"], every["failed"]) == (50, 0)
    assert "only read" in tool("dc", gpu, "-o", gpu.parent / "out", cwd=generated, code=2).text


def test_dumps_that_are_decoded_together_or_in_turn_do_not_overwrite_each_other(tmp_path: Path) -> None:
    arrays = {}
    for number, (side, name) in enumerate((("npu", "a"), ("npu", "b"), ("gpu", "a"))):
        arrays[f"{side}/{name}"] = np.full(3, number, np.float32)
        write_h5(tmp_path / f"precision_data/pt/{side}/{name}.h5", {"/Relu/1/output/result": arrays[f"{side}/{name}"]})
    every = tool("dc", "precision_data/pt", "-o", "out", "--json", cwd=tmp_path).json
    assert every["decoded"] == 3
    for place in arrays:
        tool("dc", f"precision_data/pt/{place}.h5", cwd=tmp_path)
    for place, array in arrays.items():
        for folder in ("out", "precision_data/temp/decode/dump_decode/pt"):
            np.testing.assert_array_equal(np.load(tmp_path / folder / place / "Relu.1.output.result.npy"), array)


def test_a_decoded_file_has_no_control_characters_in_its_name(tmp_path: Path) -> None:
    write_h5(tmp_path / "a.h5", {"/Relu/1/output/red\x1b[31m\n": np.zeros(3, np.float32)})
    tool("dc", "a.h5", "-o", "out", cwd=tmp_path)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["Relu.1.output.red_[31m_.npy"]


@pytest.mark.parametrize("options", [("--txt",), ()])
def test_what_the_toolkit_does_not_decode_is_refused(data: Path, options: tuple[str, ...]) -> None:
    run = tool("dc", "/Addmm/4", *options, "--engine", "cann", cwd=data, code=2)
    assert "--engine cann cannot do" in run.text


def test_a_data_set_is_found_as_ac_names_it(data: Path) -> None:
    """Without `input` and `output`, where that leaves no doubt."""
    run = tool("pt", f"{CULPRIT}/grad_inputs/1", "--json", cwd=data)
    assert run.out == tool("pt", f"{CULPRIT}/output/grad_inputs/1", "--json", cwd=data).out
    unknown = tool("pt", f"{CULPRIT}/grad_inputs/7", cwd=data, code=2)
    assert f"{CULPRIT}/output/grad_inputs/1" in unknown.text
    npu, _ = dumps(data)
    assert f"among 12 ops of precision_data/pt/npu/{npu.name}, 12 ops of precision_data/pt/gpu/" in unknown.err
    with h5py.File(npu, "a") as file:
        add_tensor(file, f"{CULPRIT}/input/grad_inputs/1", np.zeros(3, np.float32))
    doubtful = tool("pt", f"{CULPRIT}/grad_inputs/1", cwd=data, code=2)
    assert f"{CULPRIT}/input/grad_inputs/1" in doubtful.text
    assert f"{CULPRIT}/output/grad_inputs/1" in doubtful.text


def test_cp_tells_of_the_other_outputs(data: Path) -> None:
    run = tool("cp", CULPRIT, cwd=data)
    assert f"note: {CULPRIT}: output:grad_inputs/0 is compared, one of 2 outputs" in run.err
    assert "-o 1 (grad_inputs/1)" in run.err
    chosen = tool("cp", CULPRIT, "-o", "1", cwd=data)
    assert f"{CULPRIT}/output/grad_inputs/1" in chosen.out
    assert chosen.err == tool("cp", "/Addmm/4", cwd=data).err == ""


def test_vc_takes_the_op_of_exactly_this_type(data: Path) -> None:
    run = tool("vc", "-op", "Addmm", cwd=data)
    assert "of 1 op" in run.text
    assert "/Addmm/4" in run.text
    assert "2 ops" in tool("vc", "-op", "Addm", cwd=data, code=2).text


def test_dc_writes_nowhere_among_the_dumps(data: Path) -> None:
    assert "only read" in tool("dc", CULPRIT, "-o", "precision_data/pt/x", cwd=data, code=2).text
    assert not (data / "precision_data" / "pt" / "x").exists()
    assert "no such file or folder" in tool("dc", "nonexistent_dir", cwd=data, code=2).text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("random",), "random: precision_data/pt/npu is a PyTorch dump"),
        (("overflow",), "overflow: precision_data/pt/npu is a PyTorch dump"),
        (("overflow", "precision_data/pt/gpu"), "overflow: precision_data/pt/gpu is a PyTorch dump"),
        (("fusion",), "its dumps are PyTorch's, which have none"),
        (("graphs",), "its dumps are PyTorch's, which have none"),
        (("vc", "-cf"), "its dumps are PyTorch's, which have none"),
        (("vc", "-lt", "precision_data/pt/npu", "-rt", "precision_data/pt/gpu", "-cf", "x"), "-cf: .h5 dumps are"),
        (("vc", "-g", "x"), "-g: .h5 dumps are"),
    ],
)
def test_what_is_for_other_dumps_says_so(data: Path, arguments: tuple[str, ...], words: str) -> None:
    run = tool(*arguments, cwd=data, code=2)
    assert words in run.text
    assert "hint:" in run.err


def test_a_file_is_not_compared_with_itself(data: Path) -> None:
    npu, gpu = (str(path) for path in dumps(data))
    assert "the same file on both sides" in tool("vc", "-lt", npu, "-rt", npu, cwd=data, code=2).text
    for sides in (("-lt", "precision_data/pt"), ("-lt", npu, "-rt", "precision_data/pt")):
        result = tool("vc", *sides, "--json", cwd=data).results[0]
        assert (os.path.basename(os.path.dirname(result["npu"])), result["overview"]["below"]) == ("npu", 1)
        assert os.path.realpath(result["benchmark"]) == os.path.realpath(gpu)


def test_compat_has_the_vendors_columns_alone(data: Path) -> None:
    shutil.rmtree(data / "precision_data/temp")
    tool("vc", "--compat", cwd=data)
    (path,) = (data / "precision_data/temp/vector_compare").glob("*/*.csv")
    with path.open(newline="") as file:
        header = next(csv.reader(file))
    assert header[:6] == ["Index", "NPUDump", "NPUDumpPath", "GroundTruthPath", "DataType", "Shape"]
    assert header[-1] == "CompareFailReason"


def test_ac_has_no_panel_for_what_pytorch_dumps_have_not(data: Path) -> None:
    assert "skipped (" not in tool("ac", "-c", cwd=data).text


def test_ls_takes_a_name_for_that_of_an_op(data: Path) -> None:
    found = tool("ls", "-n", "add", "--json", cwd=data).json
    names = [op["name"] for dump in found["dumps"] for op in dump["ops"]]
    assert names == ["/Addmm/4", "/AddmmBackward/9"] * 2  # no convolution, which has a parameter padding


def test_names_are_completed(generated: Path) -> None:
    session = Session(Settings(data=generated / "precision_data"))
    assert "/Addmm/4" in session.names.op_names()
    assert "CudnnConvolution" in session.names.op_types()
    assert "/CudnnConvolution/1/input/self" in session.names.dump_file_names()


def test_the_prompt_says_what_is_there(generated: Path) -> None:
    screen = Console(width=80, file=io.StringIO())
    screen.print(banner(Session(Settings(data=generated / "precision_data")).overview()))
    shown = " ".join(screen.file.getvalue().split())  # type: ignore[attr-defined]
    assert "PyTorch 1 .h5 file of the NPU, 1 of the benchmark" in shown
    assert "benchmark none" not in shown


@pytest.mark.parametrize("words", [("--since",), ("-c", "--since"), ("--since", "verdict_x.json")])
def test_no_verdict_of_before_is_promised(data: Path, words: tuple[str, ...]) -> None:
    run = tool("ac", *words, cwd=data, code=2)
    assert "ac: --since: ops of PyTorch dumps are not recomputed" in run.text
    assert "after the next dump" not in run.text


def test_a_result_read_back_has_the_same_next_steps_and_its_report_asks_for_no_verdict(data: Path) -> None:
    compared = tool("ac", "-c", cwd=data)
    steps = compared.out[compared.out.index("h5copy -i ") :]
    assert steps in tool("ac", cwd=data).out
    report = tool("report", cwd=data)
    assert (report.code, report.err) == (0, "")


# --- h5copy -----------------------------------------------------------------------------------------------------------


def same(one: h5py.Dataset, other: h5py.Dataset) -> bool:
    attributes = [{name: np.asarray(value).tolist() for name, value in each.attrs.items()} for each in (one, other)]
    return attributes[0] == attributes[1] and np.array_equal(one[()], other[()])


def test_ops_are_copied_as_the_documents_do_it(data: Path) -> None:
    npu, _ = dumps(data)
    shutil.copy(npu, data / "input.h5")
    words = ("-pv", "-i", "./input.h5", "-o", "./output.h5")
    run = tool("h5copy", *words, "-s", "/Addmm/4/", "-d", "/Addmm/4/", cwd=data)
    assert "1 op copied to output.h5" in run.text
    tool("h5copy", *words, "-s", "/Relu/3/", "-d", "/Relu/3/", cwd=data)
    with h5py.File(data / "input.h5", "r") as given, h5py.File(data / "output.h5", "r") as made:
        assert {name: list(group) for name, group in made.items()} == {"Addmm": ["4"], "Relu": ["3"]}
        assert set(made["/Addmm/4/input"]) == {"self", "mat1", "mat2", "beta", "alpha"}
        for place in ("/Addmm/4/input/mat2", "/Addmm/4/output/result", "/Relu/3/input/self"):
            assert same(given[place], made[place])
    assert (data / "output.h5").read_bytes()[8] == 0  # the version of the superblock that every HDF5 reads
    compared = tool("vc", "-lt", "output.h5", "-rt", "input.h5", cwd=data)
    assert "6 of 6 tensors of 2 ops, 0 below" in compared.text


def test_many_ops_by_type_and_what_is_there_already(data: Path) -> None:
    first = tool("h5copy", "-o", "out.h5", "-s", "Addmm", "-s", CULPRIT, "--json", cwd=data)
    assert first.json["ops"] == ["/Addmm/4", CULPRIT]
    again = tool("h5copy", "-o", "out.h5", "-s", "/Addmm/4", cwd=data)
    assert "/Addmm/4 6 data sets (replaced)" in again.text
    with h5py.File(data / "out.h5", "r") as made:
        assert sorted(made) == ["Addmm", "NpuConvolutionBackward"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "out.h5", "-s", "/Addmm/4", "-d", "/Addmm/5"), "-d is not the same as -s"),
        (("-o", "out.h5", "-s", "/Addmm/5"), "no such op"),
        (("-o", "out.h5", "-s", "/Add/4"), "no such op"),
        (("-o", "out.h5", "-s", "/Addmm/4/input"), "is not an op"),
        (("-o", "precision_data/pt/npu/out.h5", "-s", "/Addmm/4"), "only read"),
        (("-i", "none.h5", "-o", "out.h5", "-s", "/Addmm/4"), "no such file"),
        (("-o", "bad.h5", "-s", "/Addmm/4"), "not an HDF5 file"),
    ],
)
def test_what_is_not_copied(data: Path, arguments: tuple[str, ...], words: str) -> None:
    (data / "bad.h5").write_bytes(b"something")
    run = tool("h5copy", *arguments, cwd=data, code=2)
    assert words in run.text
    assert not (data / "out.h5").exists()
    assert (data / "bad.h5").read_bytes() == b"something"


def test_a_dump_is_never_changed(data: Path) -> None:
    npu, _ = dumps(data)
    before = npu.read_bytes()
    assert (
        "is the file to copy from"
        in tool("h5copy", "-i", npu, "-o", data / "link.h5", "-s", "/Addmm/4", cwd=linked(data, npu), code=2).text
    )
    assert npu.read_bytes() == before


def test_hdf5_may_die_of_a_damaged_file_and_not_the_tool(data: Path) -> None:
    """A checksummed chunk that claims 64 MB more than it has: HDF5 copies it over its own memory."""
    values = np.zeros((3, 5), np.float32)
    damaged = write_h5(data / "in.h5", {"Add/1/output/x": values}, chunks=(2, 3), fletcher32=True, shuffle=True)
    content = bytearray(damaged.read_bytes())
    chunk_size = content.index(b"TREE\x01") + 24  # of the first chunk, in its key
    content[chunk_size + 3] = 4
    damaged.write_bytes(content)
    run = tool("h5copy", "-i", damaged, "-o", "out.h5", "-s", "/Add/1", cwd=data, code=2)
    assert "in.h5" in run.text
    assert sorted(path.name for path in data.glob("*.h5*")) == ["in.h5"]
    assert not list(data.glob(".precision_tool-*"))


def linked(folder: Path, target: Path) -> Path:
    (folder / "link.h5").symlink_to(target)
    return folder


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_without_h5py_every_command_says_how_to_install_it(data: Path) -> None:
    (data / "h5py.py").write_text("raise ImportError('not here')\n")
    for arguments in (
        ("vc",),
        ("ls", "dump"),
        ("pt", "/Addmm/4"),
        ("ni", "Addmm"),
        ("h5copy", "-o", "x.h5", "-s", "A"),
    ):
        run = tool(*arguments, cwd=data, code=2)
        assert "need the package h5py" in run.text
        assert "pip install" in run.text


def test_a_bad_file_is_refused_by_every_command(data: Path) -> None:
    """`tests/io/test_h5.py` has all that may be bad."""
    npu, _ = dumps(data)
    with h5py.File(npu, "a") as file:
        file["/Secret/1"] = h5py.ExternalLink("/etc/secret.h5", "/x")
    words = "refused: /Secret/1 is a link to another file, /etc/secret.h5"
    for arguments in (
        ("vc",), ("ac", "-c"), ("pt", f"{npu}:/Relu/3"), ("dc", npu), ("h5copy", "-o", "x.h5", "-s", "Relu"),
    ):  # fmt: skip
        assert words in tool(*arguments, cwd=data, code=2).text
    assert words in tool("ls", cwd=data).text  # the benchmark is listed


def test_a_damaged_chunk_is_a_row_and_a_finding(tmp_path: Path) -> None:
    values = {"/A/1/output/x": np.random.default_rng(1).normal(size=(64, 64)), "/A/1/output/y": np.ones(3)}
    for side, device in (("npu", NPU), ("gpu", GPU)):
        path = write_h5(tmp_path / "precision_data" / "pt" / side / "a.h5", {"/A/1/output/y": np.ones(3)}, device)
        with h5py.File(path, "a") as file:
            add_tensor(file, "/A/1/output/x", values["/A/1/output/x"], device, chunks=(16, 16), compression="gzip")
            place = file["/A/1/output/x"].id.get_chunk_info(3)
        if side == "npu":
            with path.open("r+b") as raw:
                raw.seek(place.byte_offset + place.size // 2)
                raw.write(b"\xff" * 30)
    run = tool("ac", "-c", "--fail", cwd=tmp_path, code=1)
    assert "1 tensor or file could not be read" in run.text
    assert "1 of 2 tensors of 1 op" in run.text
    assert "chunk at [0, 48]" in run.text


def test_sides_that_do_not_go_together(data: Path) -> None:
    npu, gpu = dumps(data)
    golden = write_golden(data / "golden", "Relu", 0, np.ones(3, np.float32)).parent
    assert "no .h5 dump, and the other side is one" in tool("vc", "-lt", npu, "-rt", golden, cwd=data, code=2).text
    assert "without a graph" in tool("vc", "-g", "graph.txt", cwd=data, code=2).text
    shutil.rmtree(gpu.parent)
    assert "no .h5 file in precision_data/pt/gpu" in tool("vc", cwd=data, code=2).text
    assert "no such file" in tool("vc", "-lt", "none.h5", "-rt", npu, cwd=data, code=2).text


def test_both_kinds_of_dump_in_one_data_folder(data: Path) -> None:
    tree = one_op_tree(data / "ge", output=np.ones(4, np.float32), golden=np.ones(4, np.float32))
    for name in ("npu", "tf"):
        shutil.move(str(next(path for path in tree.root.rglob(name) if path.is_dir())), data / "precision_data" / name)
    listed = tool("ls", "dump", cwd=data)
    assert "1 of 1 dump file" in listed.text
    assert "50 of 50 data sets" in listed.text
    both = tool("vc", cwd=data)
    assert "matched by op and order" not in both.text
    assert "precision_data/pt also holds PyTorch dumps" in both.text
    assert "/Addmm/4/output/result" in tool("pt", "/Addmm/4/output/result", cwd=data).out
    assert "/Addmm/4" in tool("ni", "Addmm/4", cwd=data).text


# --- the dump of single ops -------------------------------------------------------------------------------------------


def test_the_acl_dump_of_single_ops_is_listed_decoded_and_compared(tmp_path: Path) -> None:
    """{dump_path}/{time}/{device}/{model_id}/{data_index}, without the name of a model."""
    rng = np.random.default_rng(4)
    image, pooled = (rng.normal(size=(2, 3, 4)).astype(np.float16) for _ in range(2))
    leaf = tmp_path / "output_IR2TBE" / "20200808163566" / "0" / "7" / "2"
    write_dump(leaf / "Pooling.pool1.1147.1589195081588018", "pool1", [image], [pooled])
    write_dump(leaf / "Add.add_1.1148.5.1589195081588019", "add/1", [pooled], [image])
    run = tool("dc", "output_IR2TBE", "-o", "numpy", "--txt", cwd=tmp_path)
    assert "4 tensors decoded" in run.text
    stem = tmp_path / "numpy" / "Pooling.pool1.1147.1589195081588018.output.0"
    np.testing.assert_array_equal(np.load(f"{stem}.npy"), pooled)
    np.savetxt(tmp_path / "expected.txt", pooled.flatten())
    assert Path(f"{stem}.txt").read_bytes() == (tmp_path / "expected.txt").read_bytes()
    place = tmp_path / "precision_data" / "npu" / "debug_0"
    place.mkdir(parents=True)
    shutil.move(tmp_path / "output_IR2TBE", place / "dump")
    (listed,) = tool("ls", "dump", "--json", cwd=tmp_path).json["dumps"]
    assert (listed["device"], listed["model"], listed["model_id"], listed["step"]) == ("0", "", "7", "2")
    shutil.copytree(place, place.parent / "debug_1")
    assert "4 of 4 tensors of 2 ops" in tool("vc", cwd=tmp_path).text


# --- the demo ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("language", "name"), [("en", "GUIDE.md"), ("zh", "GUIDE.zh-CN.md")])
def test_the_guide_shows_what_is_printed(data: Path, language: str, name: str) -> None:
    guide = (Path(__file__).resolve().parents[2] / "precision_tool" / name).read_text("utf-8")
    chapter = guide[guide.index("## PyTorch 1.5") :]
    (shown,) = re.findall(r"^```\n\$ precision-tool ac -c\n(.*?)^```$", chapter, re.DOTALL | re.MULTILINE)
    printed = [line.rstrip() for line in tool("--lang", language, "ac", "-c", cwd=data, columns=80).out.splitlines()]
    assert len(shown.splitlines()) > 7
    assert [line for line in shown.splitlines() if line not in printed] == []


def test_what_to_do_about_the_faulty_op_can_be_typed(data: Path, tmp_path: Path) -> None:
    """The lines below the last panel: the op's values, its copy, and the configuration to dump it alone."""
    printed = tool("ac", "-c", cwd=data, columns=80).out.splitlines()
    lines = [line.strip() for line in printed if line.startswith("        precision-tool ")]
    assert printed[-1].strip() == lines[-1]
    assert [shlex.split(line)[-1] for line in lines] == [CULPRIT, CULPRIT, "output_IR2TBE"]
    shutil.copytree(data, tmp_path / "here")
    for line, says in zip(lines, ("output:grad_inputs/1", "1 op copied to output.h5", "next: "), strict=True):
        assert says in tool(*shlex.split(line)[1:], cwd=tmp_path / "here").text


def test_the_demo_finds_what_it_did_wrong(tmp_path: Path) -> None:
    run = tool("demo", "here", "--h5", "--seed", "3", cwd=tmp_path, columns=80)
    assert f"{CULPRIT} is the first op whose inputs agree" in run.text
    assert f"truth of this demo: {CULPRIT} was computed incorrectly" in run.text
    assert "--size does not go with --h5" in tool("demo", "--h5", "--size", "9", cwd=tmp_path, code=2).text


def test_from_python(generated: Path) -> None:
    npu, gpu = dumps(generated)
    (result,) = precision_tool.compare(npu, gpu.parent)
    assert [finding.op_name for finding in result.findings()] == [CULPRIT]
    table_ = result.to_numpy()
    assert table_[table_["cosine"] < 0.98]["golden_tensor"].tolist() == [
        "/CudnnConvolutionBackward/12/output/grad_inputs/1"
    ]


@contextmanager
def impatient_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_workers_share_a_chunked_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split into parts by boxes, as tensors beyond 256 MB are, the result is that of one worker."""
    rng = np.random.default_rng(2)
    one = rng.normal(size=(300, 700)).astype(np.float32)
    other = one + rng.normal(size=one.shape).astype(np.float32) / 100
    sides = [
        write_h5(tmp_path / f"{name}.h5", {"/A/1/output/y": array}, device, chunks=chunks, compression="gzip")
        for name, array, device, chunks in (("npu", one, NPU, (64, 64)), ("gpu", other, GPU, (100, 33)))
    ]
    (alone,) = precision_tool.compare(*sides, workers=1)
    small = replace(tensor_reader.DEFAULT_BUDGET, serial_bytes=0, split_bytes=1, part_bytes=1 << 18, box=1 << 14)
    monkeypatch.setattr(tensor_reader, "DEFAULT_BUDGET", small)
    (one_row,) = alone.rows
    assert one_row.metrics is not None
    with ThreadPoolExecutor(4) as pool, impatient_threads():
        for _ in range(20):  # HDF5 is not safe beside threads, and h5py's functions do not all guard it
            (shared,) = precision_tool.compare(*sides, workers=4, executor=pool)
            (other_row,) = shared.rows
            assert other_row.metrics is not None, other_row
            assert other_row.metrics.max_error_index == one_row.metrics.max_error_index
            assert other_row.metrics.cosine == pytest.approx(one_row.metrics.cosine, rel=1e-7)
    x, y = one.astype(np.float64).reshape(-1), other.astype(np.float64).reshape(-1)
    assert one_row.metrics.cosine == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), rel=1e-7)
