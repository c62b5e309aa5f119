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
from memory_store import MemoryStore
from rich.console import Console
from small_tree import SmallTree, chain, faulty_chain, small_tree
from tfdbg_files import content, event, number, sized, tensor_proto, varint, write_tensor

import precision_tool
from precision_tool.lib.compare.result_files import ResultSource, read_source
from precision_tool.lib.data import graph_choice
from precision_tool.lib.data.dump_tree import Stamps, find_benchmark
from precision_tool.lib.data.dumped_ops import GoldenFiles, Missing
from precision_tool.lib.data.kinds import TFDBG, benchmark_kind
from precision_tool.lib.data.origins import NoOrigin, Origin, Origins
from precision_tool.lib.data.overview import overview
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.sides import find_golden
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io import readers as tfdbg_event
from precision_tool.lib.io.files import mounted
from precision_tool.lib.io.readers import looks_like_event, open_op_dump, read_tensor_event
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.session import Session
from precision_tool.lib.view.console import banner

TIME = 1795190660042954


def floats(*values: float) -> bytes:
    return tensor_proto("float32", (len(values),), content(struct.pack(f"<{len(values)}f", *values)))


def write_goldens(tree: SmallTree, run: Path, time: int = TIME) -> None:
    """Write the benchmark of a tree as a run of tfdbg."""
    for name, path in tree.goldens.items():
        array = np.load(path)
        write_tensor(run, name, 0, time, tensor_proto("float32", array.shape, content(array.tobytes())))


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
    assert benchmark_kind(str(tmp_path))
    golden = find_golden(str(tmp_path))
    assert isinstance(golden, GoldenFiles)
    assert sorted((file.op_name, file.index) for file in golden.files) == [("loop", 0), ("once", 0), ("scope_a_b", 1)]
    assert values_of(golden.output("scope_a_b", 1)) == [3, 4]  # the last run, not the newest time
    assert values_of(golden.output("once", 0)) == [5]
    assert values_of(golden.output("loop", 0)) == [1]
    assert Message("note.data.from_tfdbg", run=None, count=2) in golden.notes
    assert Message("note.data.older_tensors", count=1) in golden.notes


def test_ops_spelled_alike_are_told_apart_by_their_real_names(tmp_path: Path) -> None:
    for op, time, value in (("a/b", TIME + 1, 1), ("a_b", TIME, 2), ("a_b", TIME - 1, 3), ("other", TIME, 4)):
        write_tensor(tmp_path / "run_1_0", op, 0, time, floats(value))
    golden = find_golden(str(tmp_path))
    assert isinstance(golden, GoldenFiles)
    assert values_of(golden.output_of("a/b", 0)) == [1]
    assert values_of(golden.output_of("a_b", 0)) == [2]
    assert values_of(golden.output_of("other", 0)) == values_of(golden.output("other", 0)) == [4]
    unknown = golden.output("a_b", 0)
    assert isinstance(unknown, Missing)
    assert "several ops, spelled alike" in str(unknown.reason)
    assert Message("note.data.older_tensors", count=1) in golden.notes
    assert Message("note.data.spelled_alike", count=1, first=["a/b:0", "a_b:0"]) in golden.notes


def test_a_graph_tells_ops_spelled_alike_apart(tmp_path: Path) -> None:
    ops = (Op(name="a/b", type="Add"), Op(name="a_b", type="Add"), Op(name="c/d", type="Add"))
    file = GraphFile(path="g", graphs=(Graph(name="g", ops=ops),))
    for name, value in (("a/b", 1), ("a_b", 2), ("c_d", 3)):
        write_tensor(tmp_path / "run_1_0", name, 0, TIME + value, floats(value))
    golden = find_golden(str(tmp_path))
    assert isinstance(golden, GoldenFiles)
    origins = Origins(file)
    for op, value in zip(ops, (1, 2, 3), strict=True):
        origin = origins.of(op, 0, golden)
        assert isinstance(origin, Origin)
        assert values_of(golden.output_of(origin.op_name, origin.index)) == [value]
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / f"a_b.0.{TIME}.npy", np.array([2], np.float32))
    by_name = find_golden(str(tmp_path / "npy"))
    assert isinstance(by_name, GoldenFiles)
    assert isinstance(origins.of(ops[1], 0, by_name), NoOrigin)


def test_what_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    path = write_tensor(tmp_path / "run_1_0", "op", 0, TIME, floats(1))
    (path.parent / "loop").symlink_to(path.parent / "loop")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    benchmark = find_benchmark(str(tmp_path))
    assert list(benchmark.files) == [("op", 0)]
    (note,) = [note for note in benchmark.notes if note.kind == "note.data.unread_tfdbg"]
    assert (note.count, note.path) == (1, str(path.parent / "loop"))


def test_npy_files_go_before_runs(tmp_path: Path) -> None:
    write_tensor(tmp_path / "tf_debug" / "run_1_0", "op", 0, TIME, floats(1))
    np.save(tmp_path / f"op.0.{TIME}.npy", np.array([2], np.float32))
    golden = find_golden(str(tmp_path))
    assert isinstance(golden, GoldenFiles)
    assert values_of(golden.output("op", 0)) == [2]


def test_a_folder_with_neither(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with pytest.raises(DataNotFoundError, match="a run folder of tfdbg"):
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
        reasons[op] = str(found.reason)
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
    os.utime(path, (1e9, 1e9))
    tensor = read_tensor_event(str(path))
    path.write_bytes(event(tensor_proto("int32", (1 << 25,), number(7, 3))))
    with pytest.raises(FormatError, match=r"134\.2 MB of values") as error:
        read_tensor_event(str(path))
    assert "tf_dump" in error.value.hint


def test_small_files_that_claim_much_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each a few bytes, and 40 MB by its shape."""
    monkeypatch.setattr(tfdbg_event, "_decoded_files", {})
    folder = tmp_path / "decoded"
    folder.mkdir()
    monkeypatch.setattr(tfdbg_event, "_decoded_folder", lambda: str(folder))
    for count in range(8):
        (tmp_path / f"event{count}").write_bytes(event(tensor_proto("int8", (40_000_000,), number(7, count))))
    paths = [str(tmp_path / f"event{count}") for count in range(8)]
    for path in paths[:6]:
        assert read_tensor_event(path).nbytes == 40_000_000
    for path in paths[6:]:
        with pytest.raises(FormatError, match=r"more than 268\.4 MB") as error:
            read_tensor_event(path)
        assert "tf_dump" in error.value.hint
    assert sum(each.stat().st_size for each in folder.iterdir()) < 268_000_000


def test_a_decoded_tensor_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt reads it again and again; but not after it has changed."""
    monkeypatch.setattr("precision_tool.lib.io.files.time.time_ns", lambda: 1 << 62)  # long after any change
    path = tmp_path / "event"
    path.write_bytes(event(tensor_proto("int32", (2,), sized(7, varint(1)))))
    first = read_tensor_event(str(path))
    assert read_tensor_event(str(path)).path == first.path
    path.write_bytes(event(tensor_proto("int32", (3,), sized(7, varint(2)))))
    assert values_of(read_tensor_event(str(path))) == [2, 2, 2]


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


def test_runs_of_a_store_that_is_no_disk(tmp_path: Path) -> None:
    """Found, read and compared as those of a disk; only values that have to be decoded want one."""
    data = tmp_path / "data"
    tree = small_tree(data, faulty_chain())
    write_goldens(tree, tmp_path / "runs" / "run_1_0")
    write_tensor(
        tmp_path / "runs" / "run_1_0", "coded", 0, TIME, tensor_proto("int32", (2,), number(7, 5) + number(7, 6))
    )
    store = MemoryStore()
    store.put_tree(tmp_path / "runs", "/elsewhere/runs")
    with mounted("/elsewhere", store):
        assert benchmark_kind("/elsewhere/runs") is TFDBG
        golden = find_golden("/elsewhere/runs")
        assert isinstance(golden, GoldenFiles)
        coded = golden.output("coded", 0)
        assert isinstance(coded, Missing)
        assert "read only from a disk of this machine" in str(coded.reason)
        (there,) = precision_tool.compare(tree.root / "npu", "/elsewhere/runs", graph=tree.graph)
    (here,) = precision_tool.compare(tree.root / "npu", tmp_path / "runs", graph=tree.graph)
    assert [row.metrics for row in there.rows] == [row.metrics for row in here.rows]
    assert any(row.cosine is not None and row.cosine < 0.9 for row in there.rows)


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
    write_goldens(tree, second)
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


def test_a_real_run_gives_the_rows_of_its_files(real_data: Path, tmp_path: Path) -> None:
    (tmp_path / "precision_data" / "tf").mkdir(parents=True)
    (tmp_path / "precision_data" / "tf" / "tf_debug").symlink_to(real_data / "tf" / "tf_debug")
    tool("tf_dump", cwd=tmp_path)
    results = []
    for benchmark in (tmp_path / "precision_data" / "tf" / "dump", real_data / "tf" / "tf_debug"):
        (result,) = precision_tool.compare(real_data / "npu/debug_0/dump", benchmark, workers=1)
        results.append([(row.pair.tensor_index, row.pair.status, row.metrics) for row in result.rows])
    assert len(results[0]) > 150
    assert repr(results[0]) == repr(results[1])  # NaN is not equal to itself


# --- which of tf/dump and tf/tf_debug -------------------------------------------------------------------------------


def data_with_a_run(root: Path, time: int = TIME) -> SmallTree:
    """A data folder whose benchmark is a run of tfdbg; tf/dump holds nothing but a .gitkeep."""
    tree = small_tree(root / "precision_data", chain())
    write_goldens(tree, tree.root / "tf" / "tf_debug" / f"run_{time}_0", time)
    for path in (tree.root / "tf" / "dump").iterdir():
        path.unlink()
    (tree.root / "tf" / "dump" / ".gitkeep").touch()
    return tree


def test_a_folder_without_tensors_is_passed_over_by_all(tmp_path: Path) -> None:
    tree = data_with_a_run(tmp_path)
    shown = tool("vc", cwd=tmp_path)
    assert "the benchmark is read from what tfdbg dumped" in shown.out
    assert (
        by_tensor(only_result(tmp_path / "precision_data" / "temp"))["middle/Mul:output:0"]["CompareFailReason"] == ""
    )
    session = Session(Settings(data=tree.root, workers=1))
    (found,) = session.find_ops("middle/Mul")
    golden = session.pairs_of(found)[-1].golden
    assert isinstance(golden, Tensor)
    assert "tf_debug" in golden.path
    np.save(tree.root / "tf" / "dump" / f"middle_Mul.0.{TIME}.npy", np.zeros((2, 3), np.float32))
    (found,) = session.find_ops("middle/Mul")
    golden = session.pairs_of(found)[-1].golden
    assert golden is not None
    assert golden.path.endswith(".npy")


def test_a_folder_without_tensors_and_nothing_else(tmp_path: Path) -> None:
    tree = data_with_a_run(tmp_path)
    shutil.rmtree(tree.root / "tf" / "tf_debug")
    assert "dump: no benchmark tensor (op.index.timestamp.npy" in tool("vc", cwd=tmp_path, code=2).err


def test_a_run_that_is_newer_than_the_tensors_is_told(tmp_path: Path) -> None:
    tree = data_with_a_run(tmp_path)
    tool("tf_dump", cwd=tmp_path)
    newer = "is newer than the tensors in precision_data/tf/dump, which are compared: tf_dump takes"
    shown = tool("vc", cwd=tmp_path)
    assert newer not in shown.out + shown.err
    write_tensor(tree.root / "tf" / "tf_debug" / f"run_{TIME + 9}_1", "middle/Mul", 0, TIME + 20, floats(1))
    shown = tool("vc", cwd=tmp_path)
    assert f"run_{TIME + 9}_1 {newer}" in " ".join((shown.out + shown.err).split())
    shown = tool("vc", "-rt", "precision_data/tf/dump", cwd=tmp_path)
    assert newer not in " ".join((shown.out + shown.err).split())


# --- what lies beside a result --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["\ud800/x", "a\0b"])
def test_a_source_with_a_path_that_is_none(tmp_path: Path, place: str) -> None:
    result = tmp_path / "result_1.csv"
    here = {"path": "/", "from_here": ""}
    for name in ("npu", "golden", "graph"):
        document = {"version": 1, "npu": here, "golden": here, "graph": here}
        assert read_source_of(result, document) is not None
        assert read_source_of(result, {**document, name: {"path": place, "from_here": ""}}) is None
        assert read_source_of(result, {**document, name: {"path": "/", "from_here": place}}) is None


def read_source_of(result: Path, document: object) -> ResultSource | None:
    result.with_suffix(".json").write_text(json.dumps(document), "utf-8")
    return read_source(str(result))


def test_a_pipe_beside_a_result_or_as_the_choice_of_a_graph_hangs_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result_1.json")
    assert read_source(str(tmp_path / "result_1.csv")) is None
    os.mkfifo(tmp_path / graph_choice.FILE_NAME)
    assert graph_choice.read([tmp_path], tmp_path).path is None
    (tmp_path / graph_choice.FILE_NAME).unlink()
    (tmp_path / graph_choice.FILE_NAME).write_text(json.dumps({"graph": "\ud800/x"}), "utf-8")
    assert graph_choice.read([tmp_path], tmp_path).path is None
