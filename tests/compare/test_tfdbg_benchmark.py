"""A run folder of tfdbg as the benchmark side: found, read where it lies, and compared as its `.npy` files are."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from command_line import by_tensor, only_result, tool
from rich.console import Console
from small_tree import faulty_chain, small_tree
from tfdbg_files import content, event, number, sized, tensor_proto, varint, write_tensor

import precision_tool
from precision_tool.lib.compare.dumps import GoldenFiles, Missing
from precision_tool.lib.compare.folders import find_golden
from precision_tool.lib.discover.catalog import overview
from precision_tool.lib.discover.walk import Stamps, find_benchmark, has_benchmark_files
from precision_tool.lib.errors import DataNotFoundError, FormatError
from precision_tool.lib.formats.registry import open_op_dump
from precision_tool.lib.formats.tfdbg_event import looks_like_event, read_tensor_event
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.report.banner import banner
from precision_tool.lib.workspace import Workspace

LENET = Path(__file__).resolve().parents[3] / "shared" / "data" / "lenet" / "precision_data"
TIME = 1795190660042954


def floats(*values: float) -> bytes:
    return tensor_proto("float32", (len(values),), content(struct.pack(f"<{len(values)}f", *values)))


def values_of(tensor: object) -> list[float]:
    assert isinstance(tensor, Tensor)
    with open(tensor.path, "rb") as file:
        file.seek(tensor.offset)
        return np.frombuffer(file.read(tensor.nbytes), tensor.dtype).tolist()  # type: ignore[no-any-return]


def test_every_tensor_of_the_runs_is_found(tmp_path: Path) -> None:
    write_tensor(tmp_path / "run_9_0", "scope/a.b", 1, TIME, floats(1, 2))
    write_tensor(tmp_path / "run_10_1", "scope/a.b", 1, TIME - 5, floats(3, 4))
    write_tensor(tmp_path / "run_9_0", "once", 0, TIME, floats(5))
    for time in (TIME, TIME + 1):
        write_tensor(tmp_path / "run_10_1", "loop", 0, time, floats(time - TIME))
    assert has_benchmark_files(str(tmp_path))
    golden = find_golden(str(tmp_path))
    assert isinstance(golden, GoldenFiles)
    assert sorted((file.op_name, file.index) for file in golden.files) == [("loop", 0), ("once", 0), ("scope_a_b", 1)]
    assert values_of(golden.output("scope_a_b", 1)) == [3, 4]  # the last run, not the newest time
    assert values_of(golden.output("once", 0)) == [5]
    assert values_of(golden.output("loop", 0)) == [1]
    read_from = "the benchmark is read from what tfdbg dumped (2 runs, of each tensor the last that has it)"
    assert read_from in golden.notes
    assert "older dumps of the same benchmark tensors left out: 1" in golden.notes


def test_npy_files_go_before_runs(tmp_path: Path) -> None:
    write_tensor(tmp_path / "tf_debug" / "run_1_0", "op", 0, TIME, floats(1))
    np.save(tmp_path / f"op.0.{TIME}.npy", np.array([2], np.float32))
    golden = find_golden(str(tmp_path))
    assert isinstance(golden, GoldenFiles)
    assert values_of(golden.output("op", 0)) == [2]


def test_a_folder_with_neither(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with pytest.raises(DataNotFoundError, match="or a run folder of tfdbg"):
        find_benchmark(str(tmp_path))


def test_a_new_run_is_noticed(tmp_path: Path) -> None:
    write_tensor(tmp_path / "run_1_0", "op", 0, TIME, floats(1))
    for path in [tmp_path, *tmp_path.rglob("*")]:
        os.utime(path, (1e9, 1e9))
    stamps = Stamps()
    find_benchmark(str(tmp_path), stamps)
    assert stamps.are_current()
    write_tensor(tmp_path / "run_2_0", "op", 0, TIME, floats(1))
    assert not stamps.are_current()


def test_tensors_without_numbers_say_so(tmp_path: Path) -> None:
    run = tmp_path / "run_1_0"
    write_tensor(run, "text", 0, TIME, tensor_proto("string", (1,), sized(8, b"a")))
    write_tensor(run, "never", 0, TIME, tensor_proto("float32", (2,)))
    write_tensor(run, "cut", 0, TIME, floats(1)).write_bytes(b"\x09")
    golden = find_golden(str(tmp_path))
    reasons = {}
    for op in ("text", "never", "cut"):
        found = golden.output(op, 0) if isinstance(golden, GoldenFiles) else None
        assert isinstance(found, Missing)
        assert found.damaged is (op == "cut")
        reasons[op] = found.reason
    assert "string" in reasons["text"]
    assert "not initialized" in reasons["never"]
    assert "byte" in reasons["cut"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool", "bfloat16", "float16", "qint8", "complex64"])
def test_a_tensor_file_is_known_by_its_first_bytes(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "any name"
    path.write_bytes(event(tensor_proto(dtype, (0, 3))))
    assert looks_like_event(path.read_bytes()[:256])
    (tensor,) = open_op_dump(str(path)).outputs
    assert isinstance(tensor, Tensor)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype.replace("qint", "int"), (0, 3), 0)


def test_values_that_are_encoded_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "event"
    path.write_bytes(event(tensor_proto("int32", (4,), sized(7, varint(1) + varint(-2)))))
    tensor = read_tensor_event(str(path))
    assert values_of(tensor) == [1, -2, -2, -2]  # the last value stands for the rest
    assert tensor.path != read_tensor_event(str(path)).path
    path.write_bytes(event(tensor_proto("int32", (1 << 25,), number(7, 3))))
    with pytest.raises(FormatError, match="134 MB of values") as error:
        read_tensor_event(str(path))
    assert "tf_dump" in error.value.hint


def test_packed_floats_are_read_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "event"
    path.write_bytes(event(tensor_proto("float32", (2,), sized(5, struct.pack("<2f", 8, 9)))))
    assert values_of(read_tensor_event(str(path))) == [8, 9]


def test_other_files_are_not_taken_for_events(tmp_path: Path) -> None:
    """A dump file of version 2 starts with the length of its header, which may begin with the same byte."""
    dump = struct.pack("<Q", 265) + b"\x0a\x2a" + bytes(40)
    for head in (b"", b"\x09", dump, b"\x93NUMPY\x01\x00v\x00", number(1, 5), b"\x09" + bytes(8) + b"\x2a"):
        assert not looks_like_event(head)
    with pytest.raises(FormatError):
        read_tensor_event(str(tmp_path))


# --- the same results as after tf_dump ------------------------------------------------------------------------------


def tf_dump(cwd: Path) -> Path:
    """Has the runs of `cwd`/precision_data written as files; their folder, moved away."""
    tool("tf_dump", cwd=cwd)
    dump = cwd / "precision_data" / "tf" / "dump"
    return dump.rename(cwd / "dumped")


def test_a_comparison_is_that_with_the_files(tmp_path: Path) -> None:
    """Right and wrong values, a tensor that the last of two runs has, one of each kind without numbers."""
    data = tmp_path / "precision_data"
    tree = small_tree(data, faulty_chain())
    first, second = data / "tf" / "tf_debug" / "run_1_0", data / "tf" / "tf_debug" / "run_2_1"
    for name, golden in tree.goldens.items():
        array = np.load(golden)
        write_tensor(second, name, 0, TIME, tensor_proto("float32", array.shape, content(array.tobytes())))
    write_tensor(first, "first/Add", 0, TIME - 1, floats(7, 7, 7))  # of an earlier run
    (never,) = second.rglob("Sub_0_*")
    never.write_bytes(event(tensor_proto("float32", (2,))))
    (text,) = second.rglob("IteratorGetNext_0_*")
    text.write_bytes(event(tensor_proto("string", (1,), sized(8, b"a"))))
    shutil.rmtree(data / "tf" / "dump")
    dumped = tf_dump(tmp_path)

    shown = tool("--work", "a", "vc", cwd=tmp_path)
    assert "2 runs, of each tensor the last that has it" in shown.out
    found = by_tensor(only_result(tmp_path / "a"))
    assert found["first/Add:output:0"]["CosineSimilarity"] == "1.000000"
    assert float(found["middle/Mul:output:0"]["CosineSimilarity"]) < 0.9
    assert "not initialized" in found["last/Sub:output:0"]["CompareFailReason"]
    assert "string" in found["IteratorGetNext:output:0"]["CompareFailReason"]

    tool("--work", "b", "vc", "-rt", dumped, cwd=tmp_path)
    after = by_tensor(only_result(tmp_path / "b"))
    for row in (*found.values(), *after.values()):
        row.pop("CompareFailReason")
    assert found == after


def test_the_banner_and_tensors_by_file_name(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    path = write_tensor(data / "tf" / "tf_debug" / "run_1_0", "scope/op", 0, TIME, floats(1, 5))
    write_tensor(data / "tf" / "tf_debug" / "run_2_1", "scope/op", 0, TIME + 1, floats(1, 5))
    seen = overview(Workspace(data))
    assert (seen.benchmark_tensors, seen.benchmark_runs, seen.is_empty) == (1, 2, False)
    screen = io.StringIO()
    Console(file=screen, width=100).print(banner(seen))
    assert "1 tensor in 2 runs of tfdbg" in screen.getvalue()
    shown = json.loads(tool("pt", path.name, "--json", cwd=tmp_path).out)
    assert "scope/op_0_DebugIdentity" in json.dumps(shown)
    refused = tool("dc", path, "-o", path.parent / "out", cwd=tmp_path, code=2)
    assert "only read" in refused.err
    (data / "tf" / "dump").mkdir()
    assert overview(Workspace(data)).benchmark_runs == 2
    np.save(data / "tf" / "dump" / f"op.0.{TIME}.npy", np.zeros(1))
    assert (overview(Workspace(data)).benchmark_tensors, overview(Workspace(data)).benchmark_runs) == (1, 0)


@pytest.mark.skipif(not LENET.is_dir(), reason=f"{LENET} is not here: it does not come with the project")
def test_a_real_run_gives_the_rows_of_its_files() -> None:
    results = []
    for benchmark in ("tf/dump", "tf/tf_debug"):
        (result,) = precision_tool.compare(LENET / "npu/debug_0/dump", LENET / benchmark, workers=1)
        results.append([(row.pair.tensor_index, row.pair.status, row.metrics) for row in result.rows])
    assert len(results[0]) > 150
    assert repr(results[0]) == repr(results[1])  # NaN is not equal to itself
