"""What every kind of data answers; one test a question, for all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from diagnosing import studied

from precision_tool import lib
from precision_tool.lib.data import kinds
from precision_tool.lib.data.dump_tree import Stamps, list_folders
from precision_tool.lib.data.kinds import (
    GE,
    INFER,
    LISTED,
    NPY,
    PYTORCH,
    TFDBG,
    DataKind,
    NpyFiles,
    benchmark_kind,
    check_command,
    kind_at,
    kind_of_both,
)
from precision_tool.lib.data.overview import overview
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.model.run import Benchmark, BenchmarkFile, Run
from precision_tool.lib.model.tensor import Tensor

DUMP = "Add.add.1.2.1614716000000000"


def file(*parts: str) -> Callable[[Path], None]:
    """Makes an empty file in a folder."""

    def make(root: Path) -> None:
        path = root.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    return make


def listed(root: Path) -> None:
    """Makes a table of one tensor."""
    (root / "tensors.csv").write_text("op,file\nadd,x.npy\n")


#: A kind, what makes data of it in a folder, where it then lies, and how many files it finds.
MADE = [
    (GE, file("20210302123456", "0", "net", "1", "0", DUMP), "."),
    (INFER, file("dump_data", "npu", "20210302123456", "net", DUMP), "dump_data/npu"),
    (PYTORCH, file("rank0", "dump.h5"), "."),
    (NPY, file("add.0.1614716000000000.npy"), "."),
    (LISTED, listed, "."),
    (
        TFDBG,
        file(
            "run_1614716000000000_0", "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0",
            "add_0_DebugIdentity_1614716000000000",
        ),
        ".",
    ),
]  # fmt: skip
KINDS = pytest.mark.parametrize(("kind", "make", "place"), MADE, ids=[type(kind).__name__ for kind, _, _ in MADE])


@KINDS
def test_data_is_told_by_its_kind_alone(
    kind: DataKind, make: Callable[[Path], None], place: str, tmp_path: Path
) -> None:
    make(tmp_path)
    path = str(tmp_path / place)
    told = benchmark_kind(path) or kind_at(path)
    assert told is kind


@KINDS
def test_data_is_found_where_it_lies(kind: DataKind, make: Callable[[Path], None], place: str, tmp_path: Path) -> None:
    make(tmp_path)
    found = kind.find(str(tmp_path / place))
    if isinstance(found, Run):
        assert len(found.leaves) == 1
    else:
        assert isinstance(found, Benchmark)
        assert list(found.files) == [("add", 0)]


@KINDS
def test_a_folder_without_data_says_so(
    kind: DataKind, make: Callable[[Path], None], place: str, tmp_path: Path
) -> None:
    with pytest.raises(DataNotFoundError, match=re.escape(str(tmp_path))):
        kind.find(str(tmp_path))
    assert benchmark_kind(str(tmp_path)) is None


@KINDS
def test_only_data_with_graphs_is_what_the_checks_take(
    kind: DataKind, make: Callable[[Path], None], place: str, tmp_path: Path
) -> None:
    make(tmp_path)
    path = str(tmp_path / place)
    if kind.has_graph:
        check_command("overflow", path, None)
    else:
        with pytest.raises(UsageError, match="is a PyTorch dump"):
            check_command("overflow", None, path)


def test_sides_of_two_kinds_are_refused_whichever_is_first(tmp_path: Path) -> None:
    file("a", "dump.h5")(tmp_path)
    file("b", DUMP)(tmp_path)
    sides = [str(tmp_path / name) for name in "ab"]
    for npu, golden in (sides, sides[::-1]):
        with pytest.raises(UsageError, match=re.escape(f"{sides[1]}: no .h5 dump")):
            kind_of_both(npu, golden, {})
    with pytest.raises(UsageError, match="dumps are compared by op and order"):
        kind_of_both(sides[0], sides[0], {"-g": "graph.txt", "-cf": None})
    assert kind_of_both(sides[1], sides[1], {"-g": "graph.txt"}) is GE


def test_graphs_are_where_the_kind_puts_them(tmp_path: Path) -> None:
    """GE's beside the dump, msquickcmp's beside the folder of all its dumps."""
    assert GE.graph_folder(str(tmp_path)) == str(tmp_path / "graph")
    assert INFER.graph_folder(str(tmp_path)) == ""
    file("dump_data", "npu", DUMP)(tmp_path)
    assert INFER.graph_folder(str(tmp_path)) == str(tmp_path / "model")
    assert INFER.is_graph(str(tmp_path / "model"), "net.json")
    assert not INFER.is_graph(str(tmp_path / "graph"), "net.json")
    assert GE.is_graph(str(tmp_path / "graph"), "ge_proto_00000001_graph_1_Build.txt")
    assert str(tmp_path / "model") in INFER.no_graph(str(tmp_path / "dump_data" / "npu"), []).message


def test_each_file_of_pytorch_is_a_model(tmp_path: Path) -> None:
    file("one.h5")(tmp_path)
    file("sub", "two.hdf5")(tmp_path)
    run = PYTORCH.find(str(tmp_path))
    assert [(Path(leaf.path).name, leaf.model_name) for leaf in run.leaves] == [("one.h5", "one"), ("two.hdf5", "two")]
    assert [leaf.model_name for leaf in PYTORCH.find(str(tmp_path / "one.h5")).leaves] == [""]


class ValueFiles(NpyFiles):
    """A kind of benchmark that a newcomer adds: arrays in files of another name."""

    suffixes = (".values",)

    def owns(self, name: str) -> bool:
        return self.has_suffix(name)

    def find(self, path: str, stamps: Stamps | None = None) -> Benchmark:
        paths = [
            f"{folder}/{name}" for folder, names in list_folders(path, stamps) for name in names if self.owns(name)
        ]
        files = {
            (op, int(slot)): BenchmarkFile(path=path, op_name=op, index=int(slot), timestamp=0)
            for path in paths
            for op, slot in [Path(path).stem.rsplit(".", 1)]
        }
        return Benchmark(root=path, files=files)

    def read(self, file: BenchmarkFile) -> Tensor:
        return read_npy(file.path)


def test_a_new_kind_of_benchmark_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ac` and `ac --all` compare the same tensors, however the benchmark's files are called."""
    truth = generate_ranks(tmp_path, ranks=1, steps=1, fault="none", benchmark="all")
    data = tmp_path / truth.data[0]
    before = [one.compared for one in studied(tmp_path / "before", data).leaves]
    for path in list((data / "tf" / "dump").rglob("*.npy")):
        op, slot, *_ = path.name.split(".")
        path.rename(path.with_name(f"{op}.{slot}.values"))
    monkeypatch.setattr(kinds, "BENCHMARK_KINDS", (ValueFiles(), *kinds.BENCHMARK_KINDS))
    assert [one.compared for one in studied(tmp_path / "after", data).leaves] == before != [0]
    assert overview(Workspace(data)).benchmark_tensors


#: Rooms that name files as they write them, or that the vendor's programs write; the training side knows no kinds.
NAMING_ROOMS, NAMING_FILES = ("data", "io", "training"), ("cmd_tf_dump", "toolkit")


def test_nobody_else_asks_for_a_suffix() -> None:
    """Which kind of data a file is, its kind says."""
    asking = []
    for path in Path(lib.__path__[0]).rglob("*.py"):
        room = path.relative_to(lib.__path__[0]).parts[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if room in NAMING_ROOMS or path.stem in NAMING_FILES or not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr == "endswith":
                suffixes = {text.value for text in ast.walk(node) if isinstance(text, ast.Constant)}
                if suffixes & {".npy", ".h5", ".hdf5"}:
                    asking.append(f"{path.name}:{node.lineno}")
    assert asking == []
