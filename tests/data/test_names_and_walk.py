"""File-name grammars, and the walk over dump folders, which reads names only."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dump_names import LeafName
from precision_tool.lib.data.kinds import NPY, benchmark_kind
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.model.run import DumpLeaf, DumpName, Run

STAMP = 1_772_443_800_123_456
ADD = f"Add.block_add.3.7.{STAMP}"
MODEL = "ge_default_20260302093000_1"


# ---- names of dump files


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"Opdebug.Node_OpDebug.1.0.{STAMP}", True),
        (f"OpDebug.Node_Opdebug.1.0.{STAMP}", True),
        (f"Opdebug.Node_OpDebug.1.0.{STAMP}.output.0.json", True),
        (ADD, False),
        (f"OpdebugAdd.a.1.0.{STAMP}", False),
        ("Opdebug", False),
    ],
)
def test_an_overflow_status_file_is_known_by_its_name(name: str, expected: bool) -> None:
    assert walk.is_status_file(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            f"Conv2D.resnet_conv1_Conv2D.12.5.{STAMP}",
            {"op_type": "Conv2D", "op_name": "resnet_conv1_Conv2D", "task_id": 12, "stream_id": 5},
        ),
        # older: no stream id
        (f"Add.a_b.3.{STAMP}", {"op_type": "Add", "op_name": "a_b", "task_id": 3}),
        # FFTS+: task type, context, thread, device
        (
            f"MatMulV2.mm.3.7.{STAMP}.4.11.2.0",
            {
                "op_type": "MatMulV2", "op_name": "mm", "task_id": 3, "stream_id": 7, "task_type": 4, "context_id": 11,
                "thread_id": 2, "device_id": 0,
            },
        ),
        (
            f"Add.a.3.{STAMP}.0.65535.65535.7",
            {
                "op_type": "Add", "op_name": "a", "task_id": 3, "task_type": 0, "context_id": 65535,
                "thread_id": 65535, "device_id": 7,
            },
        ),
        (f"Add.a_lxslice0.3.7.{STAMP}", {"op_type": "Add", "op_name": "a_lxslice0", "task_id": 3, "stream_id": 7}),
        (f"Data.0.0.0.{STAMP}", {"op_type": "Data", "op_name": "0", "task_id": 0, "stream_id": 0}),
        # names are whatever users write
        (f"Add.größe_层.1.2.{STAMP}", {"op_type": "Add", "op_name": "größe_层", "task_id": 1, "stream_id": 2}),
        (f"Add.a-b+c:0.1.2.{STAMP}", {"op_type": "Add", "op_name": "a-b+c:0", "task_id": 1, "stream_id": 2}),
        (
            f"Opdebug.Node_OpDebug.9.8.{STAMP}",
            {"op_type": "Opdebug", "op_name": "Node_OpDebug", "task_id": 9, "stream_id": 8},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_dump_names(name: str, expected: dict[str, Any], suffix: str) -> None:
    assert names.parse_dump_name(name + suffix) == (DumpName(timestamp=STAMP, **expected), suffix == ".csv")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "mapping.csv",
        "12345",
        "12345.csv",
        "Add",
        "Add.a",
        "Add.a.3",
        "Add.a.3.7",
        "Add.a.3.7.123",  # no timestamp
        f"Add.a.x.7.{STAMP}",
        f"Add.a.3.{STAMP}.{STAMP}",
        f"Add.a.3.7.{STAMP}.4.1.2",  # three of four
        f"Add.a.3.7.{STAMP}.4.1.2.0.9",
        f"Add.a.3.7.{STAMP}.txt",
        f"Add.a.3.7.{STAMP}.npy",
        f"Add.a.3.7.{STAMP}.csv.csv",
        f"Add.a.3.7.{STAMP}\n",
        f"Add.a.3.7.{STAMP} ",
        f".a.3.7.{STAMP}",
        f"a.0.{STAMP}.npy",
        f"Add.a.b.c.3.7.{STAMP}",
        f"Add.a.٣.7.{STAMP}",  # digits, but not ours
        "ge_proto_00000005_graph_1_Build.txt",
        "._Add.a.3.7",
        pytest.param(f"Add.a.3.7.{STAMP}.4.{'1' * 5000}.2.0", id="5000 digits"),  # too many for int()
    ],
)
def test_names_that_are_no_dump_files(name: str) -> None:
    assert names.parse_dump_name(name) is None


@settings(deadline=None)
@given(
    op_type=st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1),
    op_name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    task=st.integers(0, 10**10 - 1),
    stream=st.none() | st.integers(0, 10**10 - 1),
    stamp=st.integers(10**15, 10**16 - 1),
    ffts=st.none() | st.tuples(*[st.integers(0, 70_000)] * 3),
    statistics=st.booleans(),
)
def test_any_flattened_name_comes_back(
    op_type: str,
    op_name: str,
    task: int,
    stream: int | None,
    stamp: int,
    ffts: tuple[int, int, int] | None,
    statistics: bool,
) -> None:
    flat_type, flat_name = ("".join("_" if c in "./\\ " else c for c in text) for text in (op_type, op_name))
    assert (names.flatten(op_type), names.flatten(op_name)) == (flat_type, flat_name)
    parts: list[object] = [flat_type, flat_name, task, *([] if stream is None else [stream]), stamp]
    name = ".".join(map(str, parts))
    if ffts is not None:
        name += f".4.{ffts[0]}.{ffts[1]}.{ffts[2]}"
    context, thread, device = ffts or (None, None, None)
    expected = DumpName(
        op_type=flat_type, op_name=flat_name, task_id=task, stream_id=stream, timestamp=stamp,
        task_type=None if ffts is None else 4, context_id=context, thread_id=thread, device_id=device,
    )  # fmt: skip
    assert names.parse_dump_name(name + (".csv" if statistics else "")) == (expected, statistics)


# ---- names of benchmark tensors and graphs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"resnet_conv1_Conv2D.0.{STAMP}.npy", ("resnet_conv1_Conv2D", 0, STAMP)),
        (f"IteratorGetNext.12.{STAMP}.npy", ("IteratorGetNext", 12, STAMP)),
        (f"a.b/c.1.{STAMP}.npy", ("a_b_c", 1, STAMP)),
        # tfdbg_ascend: tensor and nanoseconds
        (f"dense_Relu:0.{STAMP}123.npy", ("dense_Relu", 0, STAMP * 1000 + 123)),
        (f"dense_Relu_1.{STAMP}123.npy", ("dense_Relu_1", 0, STAMP * 1000 + 123)),
        (f"dense_Relu.{STAMP}123.npy", ("dense_Relu", 0, STAMP * 1000 + 123)),
    ],
)
def test_golden_names(name: str, expected: tuple[str, int, int]) -> None:
    assert names.parse_golden_name(name) == expected


@pytest.mark.parametrize("name", ["a.npy", "a.0.npy", "a.0.123.npy", f"a.0.{STAMP}.npz", f".{STAMP}.npy", ADD, ""])
def test_names_that_are_no_golden(name: str) -> None:
    assert names.parse_golden_name(name) is None


@pytest.mark.parametrize(
    ("name", "is_graph", "is_build"),
    [
        ("ge_proto_00005_Build.txt", True, True),
        ("ge_proto_00000005_graph_1_Build.txt", True, True),
        ("ge_proto_00000005_aclop_graph_1_Build.txt", True, True),
        ("ge_proto_00000179_PreRunAfterBuild.txt", True, True),
        ("ge_proto_00000179_graph_11_PreRunBegin.txt", True, False),
        ("ge_proto_00000001_graph_1_RunCustomPassAfterBuild.txt", True, False),
        ("ge_onnx_00000005_graph_1_Build.pbtxt", False, False),
        ("ge_readable_00000005_graph_1_Build.txt", False, False),
        ("ge_proto_Build.txt", False, False),
        ("ge_proto_00005_Build.txt.json", False, False),
    ],
)
def test_graph_names(name: str, is_graph: bool, is_build: bool) -> None:
    assert (names.is_graph_file(name), names.is_build_graph(name)) == (is_graph, is_build)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "/d/20260302093000/0/model/1/5",
            LeafName(time="20260302093000", device="0", model_name="model", model_id="1", step="5"),
        ),
        ("/d/0/model/1/5", LeafName(device="0", model_name="model", model_id="1", step="5")),
        ("/d/2026/7/model/1/5", LeafName(device="7", model_name="model", model_id="1", step="5")),
        # AscendCL's dump of single ops has no model name.
        ("/out/20200808163566/3/7/2", LeafName(time="20200808163566", device="3", model_id="7", step="2")),
        ("/d/flat", LeafName()),
        ("/", LeafName()),
        ("/d/x/model/1/5", LeafName()),
        ("/d/0/model/one/5", LeafName()),
        ("/d/0/model/1/last", LeafName()),
    ],
)  # fmt: skip
def test_folders_above_a_leaf(path: str, expected: LeafName) -> None:
    assert names.parse_leaf_path(Path(path).parts) == expected


# ---- the walk


def touch(folder: Path, *file_names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in file_names:
        (folder / name).write_bytes(b"never read")
    return folder


def leaf_path(
    root: Path, time: str = "20260302093000", device: int = 0, model: str = MODEL, number: int = 1, step: int = 0
) -> Path:
    return root / time / str(device) / model / str(number) / str(step)


def op_names(leaf: DumpLeaf) -> list[str]:
    return [file.name.op_name for file in leaf.files]


def parts(run: Run) -> list[tuple[str, str, str, str, str]]:
    return [(leaf.time, leaf.device, leaf.model_name, leaf.model_id, leaf.step) for leaf in run.leaves]


@pytest.mark.parametrize("level", range(6))
def test_a_run_from_every_level_of_the_tree(tmp_path: Path, level: int) -> None:
    leaf = touch(leaf_path(tmp_path / "dump"), ADD, f"Mul.block_mul.4.7.{STAMP}")
    start = [leaf, *leaf.parents][level]
    run = walk.find_run(str(start))
    assert run.root == str(start)
    assert run.notes == ()
    (found,) = run.leaves
    assert found.path == str(leaf)
    assert op_names(found) == ["block_add", "block_mul"]
    assert [file.path for file in found.files] == [str(leaf / file.name) for file in sorted(leaf.iterdir())]
    assert parts(run) == [("20260302093000", "0", MODEL, "1", "0")]


def test_a_relative_path_and_a_slash_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = touch(leaf_path(tmp_path), ADD)
    monkeypatch.chdir(leaf)
    for path in (".", "./", "..", "../../..", str(tmp_path) + "//"):
        run = walk.find_run(path)
        assert parts(run) == [("20260302093000", "0", MODEL, "1", "0")]
        assert run.leaves[0].files[0].path == str(leaf / ADD)


def test_a_flat_folder_made_by_hand(tmp_path: Path) -> None:
    touch(tmp_path / "some" / "where", ADD, "notes.txt", "Add.half.a.name")
    run = walk.find_run(str(tmp_path / "some"))
    assert parts(run) == [("", "", "", "", "")]
    assert op_names(run.leaves[0]) == ["block_add"]
    assert dict(run.leaves[0].ignored).keys() == {"notes.txt", "Add.half.a.name"}
    assert all(why.kind == "note.data.ignored.no_dump_name" for why in dict(run.leaves[0].ignored).values())


def test_devices_models_and_steps_in_the_order_of_numbers(tmp_path: Path) -> None:
    wanted = []
    for device in (0, 2, 10):
        for model, number in (("a_model", 1), ("b_model", 2), ("b_model", 11)):
            for step in (0, 9, 10):
                touch(leaf_path(tmp_path, device=device, model=model, number=number, step=step), ADD)
                wanted.append(("20260302093000", str(device), model, str(number), str(step)))
    run = walk.find_run(str(tmp_path))
    assert parts(run) == wanted
    assert run.notes == ()


def test_of_several_times_the_newest_of_each_device(tmp_path: Path) -> None:
    """One folder per timestamp and process: devices of one run may differ in time, runs are not mixed."""
    for time, device, step in (
        ("20260302093000", 0, 0), ("20260302093000", 0, 5), ("20260302093001", 1, 0),  # first run
        ("20260303120000", 0, 0), ("20260303120002", 1, 0),  # second
    ):  # fmt: skip
        touch(leaf_path(tmp_path, time=time, device=device, step=step), ADD)
    run = walk.find_run(str(tmp_path))
    assert [(leaf.time, leaf.device, leaf.step) for leaf in run.leaves] == [
        ("20260303120000", "0", "0"),
        ("20260303120002", "1", "0"),
    ]
    (note,) = run.notes
    assert note == Message("note.data.earlier_dumps", count=3, times=["20260302093000", "20260302093001"])
    first = walk.find_run(str(tmp_path / "20260302093000"))
    assert [(leaf.time, leaf.step) for leaf in first.leaves] == [("20260302093000", "0"), ("20260302093000", "5")]
    assert first.notes == ()


def test_several_files_of_an_op_are_all_listed(tmp_path: Path) -> None:
    older, newer = f"Add.a.3.7.{STAMP}", f"Add.a.3.7.{STAMP + 5}"
    run = walk.find_run(str(touch(tmp_path, older, newer)))
    assert sorted(file.name.timestamp for file in run.leaves[0].files) == [STAMP, STAMP + 5]


def test_overflow_status_files_are_no_tensors(tmp_path: Path) -> None:
    status = (f"Opdebug.Node_OpDebug.1.2.{STAMP}", f"Opdebug.Node_OpDebug.1.2.{STAMP}.4.0.0.0")
    run = walk.find_run(str(touch(tmp_path, ADD, *status)))
    assert op_names(run.leaves[0]) == ["block_add"]
    assert {name for name, why in run.leaves[0].ignored if why.kind == "note.data.ignored.overflow_status"} == set(
        status
    )


def test_only_overflow_status_files_are_no_run(tmp_path: Path) -> None:
    touch(tmp_path, f"Opdebug.Node_OpDebug.1.2.{STAMP}")
    with pytest.raises(DataNotFoundError, match="no dump file"):
        walk.find_run(str(tmp_path))


# ---- mapping.csv


def test_bare_numbers_by_mapping_csv(tmp_path: Path) -> None:
    long_name = "layer_" * 60
    touch(tmp_path, "1234567890", "42", "77.csv", "88.csv", "99", ADD)
    (tmp_path / "mapping.csv").write_text(
        f"1234567890,Add.{long_name}.3.7.{STAMP}\n"
        f"42, MatMul.mm.1.{STAMP}.4.1.2.0 \r\n"
        f"77,Relu.statistics_one.1.2.{STAMP}\n"
        f"88.csv,Relu.statistics_two.1.2.{STAMP}.csv\n"
        "99,not a dump name\n"
        "100,Add.gone.1.2.3\n"
        "\n"
        "short\n",
        encoding="utf-8",
    )
    (leaf,) = walk.find_run(str(tmp_path)).leaves
    found = {Path(file.path).name: (file.name.op_name, file.statistics) for file in leaf.files}
    assert found == {
        "1234567890": (long_name, False),
        "42": ("mm", False),
        "77.csv": ("statistics_one", True),
        "88.csv": ("statistics_two", True),
        ADD: ("block_add", False),
    }
    assert dict(leaf.ignored) == {"99": Message("note.data.ignored.no_dump_name")}


def test_bare_numbers_without_a_name(tmp_path: Path) -> None:
    touch(tmp_path, "1", "2.csv", "3", "4.csv", ADD)
    (tmp_path / "mapping.csv").write_text("7,x\n3,\n4.csv,\n")
    (leaf,) = walk.find_run(str(tmp_path)).leaves
    assert op_names(leaf) == ["block_add"]
    ignored = dict(leaf.ignored)
    assert ignored.keys() == {"1", "2.csv", "3", "4.csv"}
    assert all("mapping.csv" in str(why) for why in ignored.values())


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b'"' + b"x" * 200_000, b"1\n2\n", b"\xff\xfe1,Add"])
def test_a_damaged_mapping_is_told_and_costs_only_what_it_names(tmp_path: Path, content: bytes) -> None:
    touch(tmp_path, "1", ADD)
    (tmp_path / "mapping.csv").write_bytes(content)
    (leaf,) = walk.find_run(str(tmp_path)).leaves
    assert op_names(leaf) == ["block_add"]
    assert "1" in dict(leaf.ignored)
    assert ("mapping.csv" in dict(leaf.ignored)) == (len(content) > 100_000)


def test_a_mapping_may_name_no_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    touch(tmp_path, "1", ADD)
    (tmp_path / "mapping.csv").write_text(f"1,Add.a.3.7.{STAMP}.4.{'1' * 5000}.2.0")
    (leaf,) = walk.find_run(str(tmp_path)).leaves
    assert dict(leaf.ignored) == {"1": Message("note.data.ignored.no_dump_name")}


def test_a_mapping_names_only_its_own_folder(tmp_path: Path) -> None:
    one, two = leaf_path(tmp_path, step=0), leaf_path(tmp_path, step=1)
    for folder, op in ((one, "first"), (two, "second")):
        touch(folder, "5")
        (folder / "mapping.csv").write_text(f"5,Add.{op}.1.2.{STAMP}\n")
    assert [op_names(leaf) for leaf in walk.find_run(str(tmp_path)).leaves] == [["first"], ["second"]]


# ---- what the walk must not do


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    leaf = touch(leaf_path(tmp_path), ADD)
    (leaf / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    (tmp_path / "gone").symlink_to("nowhere")
    run = walk.find_run(str(tmp_path))
    assert [len(leaf.files) for leaf in run.leaves] == [1]


def test_a_linked_folder_is_walked_once(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere" / "0", ADD)
    root = tmp_path / "root"
    root.mkdir()
    (root / "one").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "two").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    run = walk.find_run(str(root))
    assert [leaf.path for leaf in run.leaves] == [str(root / "one" / "0")]


def test_folders_too_deep_are_left(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(60):
        deep /= "d"
    touch(deep, ADD)
    touch(tmp_path / "d" / "d", ADD)
    assert len(walk.find_run(str(tmp_path)).leaves) == 1


class Opened:
    """The names of files that were opened, by `open` or by `os.open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._wrap(monkeypatch, builtins, "open", builtins.open)
        self._wrap(monkeypatch, os, "open", os.open)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, where: object, name: str, real: Callable[..., Any]) -> None:
        def spy(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, (str, os.PathLike)):
                self.names.append(Path(path).name)
            return real(path, *args, **kwargs)

        monkeypatch.setattr(where, name, spy)


def test_listing_opens_no_dump_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2000
    leaf = touch(leaf_path(tmp_path), *(f"Add.op_{number}.{number}.7.{STAMP + number}" for number in range(count)))
    touch(leaf, "5")
    (leaf / "mapping.csv").write_text(f"5,Add.mapped.1.2.{STAMP}\n")
    before = {path: path.stat() for path in leaf.iterdir()}
    opened = Opened(monkeypatch)
    run = walk.find_run(str(tmp_path))
    assert len(run.leaves[0].files) == count + 1
    assert opened.names == ["mapping.csv"]
    after = {path: path.stat() for path in leaf.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[path].st_mtime_ns == before[path].st_mtime_ns for path in before)


def test_listing_a_benchmark_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, *(f"op_{number}.0.{STAMP}.npy" for number in range(2000)))
    opened = Opened(monkeypatch)
    assert benchmark_kind(str(tmp_path))
    assert len(walk.find_benchmark(str(tmp_path)).files) == 2000
    assert opened.names == []


# ---- errors


@pytest.mark.parametrize("find", [walk.find_run, walk.find_benchmark, benchmark_kind])
def test_no_folder(tmp_path: Path, find: Callable[[str], object]) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name, words in (("nowhere", "no such folder"), ("file", "a file where a folder should be")):
        with pytest.raises(DataNotFoundError, match=words) as caught:
            find(str(tmp_path / name))
        assert str(tmp_path / name) in caught.value.message
        assert caught.value.hint


@pytest.mark.parametrize("find", [walk.find_run, walk.find_benchmark])
def test_nothing_in_the_folder(tmp_path: Path, find: Callable[[str], object]) -> None:
    touch(tmp_path / "a" / "b", "readme.txt")
    with pytest.raises(DataNotFoundError, match="below this folder") as caught:
        find(str(tmp_path))
    assert caught.value.hint


def test_a_branch_that_cannot_be_listed_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may run as root, whom no file mode stops.
    touch(leaf_path(tmp_path, device=0), ADD)
    closed = touch(leaf_path(tmp_path, device=1), ADD)
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [leaf.device for leaf in walk.find_run(str(tmp_path)).leaves] == ["0"]


# ---- the benchmark


def test_of_a_tensor_dumped_twice_the_newest(tmp_path: Path) -> None:
    touch(tmp_path / "one", f"conv.0.{STAMP}.npy", f"conv.1.{STAMP + 9}.npy")
    touch(tmp_path / "two", f"conv.0.{STAMP + 2}.npy", f"conv.0.{STAMP + 1}.npy", "other.npy", "readme")
    benchmark = walk.find_benchmark(str(tmp_path))
    assert {key: file.path for key, file in benchmark.files.items()} == {
        ("conv", 0): str(tmp_path / "two" / f"conv.0.{STAMP + 2}.npy"),
        ("conv", 1): str(tmp_path / "one" / f"conv.1.{STAMP + 9}.npy"),
    }
    assert [name for name, _ in benchmark.ignored] == ["other.npy"]
    assert benchmark.notes[0] == Message("note.data.older_tensors", count=2)


def test_tf2_names_whose_last_number_may_be_the_output(tmp_path: Path) -> None:
    """`relu_1` is an op of that name, or output 1 of `relu`: both are found; a name that says its index wins."""
    named = (f"relu_1.{STAMP}001.npy", f"relu_1.{STAMP}009.npy", f"conv_0.{STAMP}001.npy", f"conv.0.{STAMP}.npy")
    touch(tmp_path, *named)
    files = walk.find_benchmark(str(tmp_path)).files
    assert {key: Path(file.path).name for key, file in files.items()} == {
        ("relu_1", 0): named[1],
        ("relu", 1): named[1],
        ("conv_0", 0): named[2],
        ("conv", 0): named[3],
    }


def test_a_benchmark_is_told_from_a_dump(tmp_path: Path) -> None:
    touch(tmp_path / "golden" / "x", f"conv.0.{STAMP}.npy")
    touch(tmp_path / "dump" / "x", ADD)
    touch(tmp_path / "neither" / "x", "readme")
    found = [benchmark_kind(str(tmp_path / name)) for name in ("golden", "dump", "neither")]
    assert found == [NPY, None, None]


def test_bare_numbers_without_a_mapping_are_told(tmp_path: Path) -> None:
    (tmp_path / "123456").write_bytes(b"x")
    with pytest.raises(DataNotFoundError, match=r"bare numbers, and there is no mapping\.csv"):
        walk.find_run(str(tmp_path))


@pytest.mark.parametrize("bad", ["/", "\\", "\0"])
def test_a_name_that_leads_elsewhere_is_no_dump_file(tmp_path: Path, bad: str) -> None:
    for name in (f"{bad}tmp{bad}Conv2D.op.1.2.1772440200006356", f"Conv2D.a{bad}b.1.2.1772440200006356"):
        assert names.parse_dump_name(name) is None
        assert not names.is_dump_file(name)
    (tmp_path / "12345").write_bytes(b"")
    (tmp_path / "Add.op.1.2.1772440200006356").write_bytes(b"")
    (tmp_path / "mapping.csv").write_text(f"12345,..{bad}out{bad}Conv2D.op.1.2.1772440200006356\n")
    (leaf,) = walk.find_run(str(tmp_path)).leaves
    assert [os.path.basename(file.path) for file in leaf.files] == ["Add.op.1.2.1772440200006356"]
    assert ("12345", Message("note.data.ignored.no_dump_name")) in leaf.ignored


@pytest.mark.parametrize(
    ("age", "is_whole", "is_sure"),
    [(0, True, False), (1, True, False), (3, True, True), (0, False, False), (1, False, True)],
)
def test_times_of_whole_seconds_are_not_trusted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: int, is_whole: bool, is_sure: bool
) -> None:
    """On a file system that keeps no parts of seconds a second change leaves the time as it is."""
    now = 1_800_000_000_010_000_000
    monkeypatch.setattr("precision_tool.lib.io.files.time.time_ns", lambda: now)
    moment = now - age * 10**9 - (10_000_000 if is_whole else 1)
    os.utime(tmp_path, ns=(moment, moment))
    stamps = walk.Stamps()
    stamps.note(str(tmp_path))
    assert stamps.are_current() is is_sure
