"""A benchmark in files of any name: `tensors.csv` says which tensor each of them is."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import only_result, tool
from diagnosing import studied
from safetensors_files import entry, safetensors_bytes, with_header
from torch_files import torch_bytes

from precision_tool.lib.compare.tensor_figures import figures_of
from precision_tool.lib.data.dump_tree import Stamps
from precision_tool.lib.data.dumped_ops import GoldenFiles, Missing
from precision_tool.lib.data.kinds import LISTED, benchmark_kind
from precision_tool.lib.data.sides import find_golden
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.model.tensor import Tensor


def table(folder: Path, *lines: str, header: str = "op,output,file,key") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tensors.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def golden_of(folder: Path) -> GoldenFiles:
    golden = find_golden(str(folder))
    assert isinstance(golden, GoldenFiles)
    return golden


def maximum(found: Tensor | Missing | Any) -> float:
    assert isinstance(found, Tensor)
    return float(figures_of(found).summary.maximum)


def test_files_of_every_format(tmp_path: Path) -> None:
    table(
        tmp_path, "net/conv,0,a.npy,", '"net/conv",1,sub/b.pt,', "Functional.gelu.1.forward,,model.safetensors,act",
        "net/fc,0,model.safetensors, head ",
    )  # fmt: skip
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "a.npy", np.array([1.0, 0]))
    (tmp_path / "sub/b.pt").write_bytes(torch_bytes(np.array([2.0, 0])))
    tensors = {"act": np.array([3, 0], np.float32), "head": np.array([4, 0], np.float16)}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    golden = golden_of(tmp_path)
    assert golden.notes == ()
    assert len(golden.files) == 4
    assert maximum(golden.output("net_conv", 0)) == 1
    assert maximum(golden.output_of("net/conv", 1)) == 2
    assert maximum(golden.output_of("Functional.gelu.1.forward", 0)) == 3
    assert maximum(golden.output("net_fc", 0)) == 4
    assert golden.has_real_name("net/fc", 0)


def test_columns_are_named_in_any_order(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([5.0]))
    np.save(tmp_path / "y.npy", np.array([6.0]))
    table(tmp_path, "x.npy,first", "y.npy,second", "", header="\ufeff File , OP")
    golden = golden_of(tmp_path)
    assert [maximum(golden.output(op, 0)) for op in ("first", "second")] == [5, 6]


def test_names_that_files_spell_alike_are_distinct(tmp_path: Path) -> None:
    for number, op in enumerate(("a/b", "a.b", "a_b")):
        np.save(tmp_path / f"{number}.npy", np.array([float(number)]))
        with (tmp_path / "tensors.csv").open("a") as file:
            file.write(f"{op},{number}.npy\n" if number else f"op,file\n{op},0.npy\n")
    golden = golden_of(tmp_path)
    assert [maximum(golden.output_of(op, 0)) for op in ("a/b", "a.b", "a_b")] == [0, 1, 2]
    assert isinstance(golden.output("a_b", 0), Missing)


LEFT_OUT = {
    ",0,x.npy,": "empty_cell",
    "op,0,,": "empty_cell",
    "op": "empty_cell",
    "op,-1,x.npy,": "no_output",
    "op,²,x.npy,": "no_output",
    "op,12345678,x.npy,": "no_output",
    "op,0,../x.npy,": "elsewhere",
    "op,0,sub/../../x.npy,": "elsewhere",
    "op,0,/etc/x.npy,": "elsewhere",
}


@pytest.mark.parametrize("line", LEFT_OUT)
def test_a_line_that_says_nothing_is_left_out(line: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([5.0]))
    table(tmp_path, "good,0,x.npy,", line)
    benchmark = LISTED.find(str(tmp_path))
    assert [*benchmark.files] == [("good", 0)]
    ((name, reason),) = benchmark.ignored
    assert (name, reason.line) == ("tensors.csv", 3)
    assert reason.reason.kind == f"note.data.ignored.{LEFT_OUT[line]}"
    (note,) = benchmark.notes
    assert (note.count, note.file) == (1, "tensors.csv")


def test_a_table_without_its_columns(tmp_path: Path) -> None:
    for header, column in (("1,Add.op", "op"), ("op,path", "file"), ("", "op")):
        table(tmp_path, "add,x.npy", header=header)
        with pytest.raises(FormatError) as caught:
            LISTED.find(str(tmp_path))
        assert (caught.value.kind, caught.value.fields["column"]) == ("data.table_without_column", column)
    (tmp_path / "tensors.csv").write_text('op,file\nadd,"' + "x" * 200_000)
    with pytest.raises(FormatError) as caught:
        LISTED.find(str(tmp_path))
    assert caught.value.kind == "data.no_csv"


def test_a_file_that_does_not_hold_the_tensor(tmp_path: Path) -> None:
    """Costs no other tensor, and says what to do."""
    header = {"odd": entry("F6_E2M3", [4], 0, 3)}
    (tmp_path / "two.safetensors").write_bytes(safetensors_bytes({"a": np.zeros(2), "b": np.ones(2)}))
    (tmp_path / "odd.safetensors").write_bytes(with_header(header, b"123"))
    (tmp_path / "bad.pt").write_bytes(torch_bytes(np.zeros(2))[:-30])
    np.save(tmp_path / "x.npy", np.array([5.0]))
    table(
        tmp_path, "missing,,nowhere.pt,", "two,,two.safetensors,", "other,,two.safetensors,c", "odd,,odd.safetensors,",
        "bad,,bad.pt,", "keyed,,x.npy,a", "good,,x.npy,",
    )  # fmt: skip
    golden = golden_of(tmp_path)
    for op, words in {
        "missing": "no such file", "two": "2 tensors", "other": "'c'", "odd": "F6_E2M3", "bad": "cut off", "keyed": "",
    }.items():  # fmt: skip
        found = golden.output(op, 0)
        assert isinstance(found, Missing), op
        assert found.damaged
        assert words in str(found.reason), op
    assert maximum(golden.output("good", 0)) == 5


def test_it_goes_before_other_kinds_and_not_for_a_mapping(tmp_path: Path) -> None:
    np.save(tmp_path / "op.0.1614716000000000.npy", np.array([1.0]))
    np.save(tmp_path / "other.npy", np.array([2.0]))
    (tmp_path / "mapping.csv").write_text("1,Add.add.1.2.1614716000000000\n")
    assert maximum(golden_of(tmp_path).output("op", 0)) == 1
    table(tmp_path, "op,0,other.npy,")
    assert benchmark_kind(str(tmp_path)) is LISTED
    assert maximum(golden_of(tmp_path).output("op", 0)) == 2


def test_a_folder_without_a_table(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError) as caught:
        LISTED.find(str(tmp_path))
    assert caught.value.kind == "data.no_benchmark_below"


def test_a_changed_table_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([5.0]))
    path = table(tmp_path, "op,0,x.npy,")
    for each in (path, tmp_path):
        os.utime(each, (1e9, 1e9))
    stamps = Stamps()
    LISTED.find(str(tmp_path), stamps)
    assert stamps.are_current()
    with path.open("a") as file:
        file.write("other,0,x.npy,\n")
    assert not stamps.are_current()


def relisted(folder: Path, is_one_file: bool) -> None:
    """Put the `.npy` files of a benchmark into files of other formats, and list them."""
    arrays = {path: np.load(path) for path in sorted(folder.glob("*.npy"))}
    lines, tensors = [], {}
    for number, (path, array) in enumerate(arrays.items()):
        op, slot, *_ = path.name.split(".")
        path.unlink()
        if is_one_file:
            tensors[f"tensor {number}"] = array
            lines.append(f"{op},{slot},model.safetensors,tensor {number}")
        else:
            (folder / f"{number}.pt").write_bytes(torch_bytes(array))
            lines.append(f"{op},{slot},{number}.pt,")
    if tensors:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    table(folder, *lines)


@pytest.mark.parametrize("is_one_file", [True, False])
def test_a_comparison_says_the_same(tmp_path: Path, is_one_file: bool) -> None:
    """`vc` and `ac -c` of the demo, whose benchmark is moved into other files."""
    data = tmp_path / "precision_data"
    truth = generate_demo(data)
    tool("vc", cwd=tmp_path)
    before = cosines(only_result(tmp_path))
    only_result(tmp_path).unlink()
    relisted(data / "tf" / "dump", is_one_file)
    tool("vc", cwd=tmp_path)
    assert cosines(only_result(tmp_path)) == before
    assert truth.culprit is not None
    assert truth.culprit in tool("ac", "-c", cwd=tmp_path).text
    assert tool("ls", cwd=tmp_path).text


def cosines(result: Path) -> dict[str, str]:
    with result.open(newline="") as file:
        rows = {row["TensorIndex"]: row["CosineSimilarity"] for row in csv.DictReader(file)}
    assert len(rows) > 20
    return rows


def test_tables_of_steps_and_ranks(tmp_path: Path) -> None:
    """Each step and rank has a table of its own, in a folder that is called so."""
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault="none", benchmark="all")
    data = tmp_path / truth.data[0]
    before = [leaf.compared for leaf in studied(tmp_path / "before", data).leaves]
    for folder in {path.parent for path in (data / "tf" / "dump").rglob("*.npy")}:
        relisted(folder, is_one_file=True)
    assert [leaf.compared for leaf in studied(tmp_path / "after", data).leaves] == before
    assert min(before) > 0
