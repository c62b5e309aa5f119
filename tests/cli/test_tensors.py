"""`pt`, `cp` and `dc` as a user runs them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OneOpTree, one_op_tree, write_dump
from command_line import fingerprint, tool
from small_tree import chain, small_tree

from precision_tool.lib.demo.dump_writer import OutTensor, write_statistics

OP = "block/add"
SHAPE = (2, 5, 3, 19)


@dataclass(frozen=True)
class Data:
    """A folder that tests only read: one op in NC1HWC0, its benchmark in NHWC, and the values of both."""

    cwd: Path
    tree: OneOpTree
    npu: Any
    golden: Any

    @property
    def dump(self) -> str:
        return str(self.tree.dump_path.relative_to(self.cwd))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    cwd = tmp_path_factory.mktemp("with space")
    random = np.random.default_rng(1)
    golden = random.normal(size=SHAPE).astype(np.float32)
    npu = golden.astype(np.float16)
    npu[..., 3] += np.float16(0.5)
    tree = one_op_tree(
        cwd / "precision_data", output=npu, golden=golden, layout="NC1HWC0", origin_layout="NHWC", op_name=OP
    )
    before = fingerprint(cwd / "precision_data")
    yield Data(cwd, tree, npu, golden)
    assert fingerprint(cwd / "precision_data") == before


def test_pt_of_a_dump_file(data: Data, tmp_path: Path) -> None:
    run = tool("--work", tmp_path, "pt", data.dump, "-p", "4", cwd=data.cwd, columns=80)
    assert "without padding" in run.out
    assert "NC1HWC0 [2,2,5,3,16]" in run.out
    for label, value in (("min", data.npu.min()), ("max", data.npu.max()), ("mean", data.npu.astype("f8").mean())):
        found = re.search(rf"^{label} +(\S+)$", run.out, re.MULTILINE)
        assert found is not None
        assert float(found[1]) == pytest.approx(float(value), rel=1e-5)
    first = next(line for line in run.out.splitlines() if line.startswith("[0,0,0,0]"))
    np.testing.assert_allclose(list(map(float, first.split()[1:])), data.npu[0, 0, 0, :4], rtol=1e-5)
    assert all(len(line) <= 80 for line in run.out.splitlines() if "precision_data" not in line)
    assert "\x1b" not in run.out


def test_pt_json_of_an_op_has_both_sides(data: Data, tmp_path: Path) -> None:
    run = tool("--work", tmp_path, "pt", "block_add", "--json", "-l", "3", cwd=data.cwd)
    npu, golden = run.json["tensors"]
    assert (npu["side"], golden["side"]) == ("NPU", "benchmark")
    for found, values in ((npu, data.npu), (golden, data.golden)):
        exact = values.astype(np.float64)
        assert found["figures"]["mean"] == pytest.approx(exact.mean(), rel=1e-9)
        assert found["figures"]["std"] == pytest.approx(exact.std(), rel=1e-9)
        assert found["figures"]["count"] == values.size
        assert tuple(found["read_shape"]) == SHAPE
        np.testing.assert_array_equal(found["first"], exact.reshape(-1)[:3])
        np.testing.assert_array_equal(found["histogram"]["counts"], np.histogram(exact, 12)[0])


@pytest.mark.parametrize("form", ["positional", "-n", "bare name", "slot"])
def test_names_in_every_form(data: Data, tmp_path: Path, form: str) -> None:
    words = {
        "positional": [data.dump],
        "-n": ["-n", data.dump],
        "bare name": [data.tree.dump_path.name],
        "slot": [f"{data.dump}:output:0"],
    }[form]
    run = tool("--work", tmp_path, "pt", *words, "--json", cwd=data.cwd)
    (found,) = run.json["tensors"]
    assert (found["slot"], found["figures"]["count"]) == ("output:0", data.npu.size)


def test_pt_saves_text(data: Data, tmp_path: Path) -> None:
    run = tool("--work", tmp_path / "w", "pt", data.tree.dump_path.name, "-c", cwd=data.cwd)
    (path,) = (tmp_path / "w" / "decode" / "pt").iterdir()
    assert path.name == f"{data.tree.dump_path.name}.output.0.txt"
    assert path.name in run.out
    np.testing.assert_array_equal(np.loadtxt(path, dtype=np.float16).reshape(SHAPE), data.npu)


def test_pt_speaks_the_language(data: Data, tmp_path: Path) -> None:
    run = tool("--lang", "zh", "--work", tmp_path, "pt", OP, "-o", "0", cwd=data.cwd)
    assert "按标杆的维度顺序" in run.out
    assert re.findall(r"benchmark|padding|order", run.out) == []


def test_pt_draws_with_ascii_where_there_are_no_blocks(data: Data, tmp_path: Path) -> None:
    latin = {"PYTHONIOENCODING": "latin-1"}
    run = tool("--work", tmp_path, "pt", data.dump, cwd=data.cwd, env=latin)
    assert "####" in run.out
    assert "█" in tool("--work", tmp_path, "pt", data.dump, cwd=data.cwd, env={"PYTHONIOENCODING": "utf-8"}).out


def test_pt_of_statistics_and_of_what_has_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "Add.op.1.0.1772443800000000.csv"
    write_statistics(path, [], [OutTensor(data=np.array([1.0, -4.0], np.float32))])
    run = tool("pt", path.name, cwd=tmp_path)
    assert re.search(r"^min +-4$", run.out, re.MULTILINE)
    assert "statistics only" in run.out
    write_dump(tmp_path / "Add.s.1.0.1772443800000000", "s", [], [OutTensor(data=b"text", dtype="string", shape=(1,))])
    assert "no numbers" in tool("pt", "Add.s.1.0.1772443800000000", cwd=tmp_path, code=2).err


def test_pt_shows_no_escape_sequences_of_names(tmp_path: Path) -> None:
    np.save(tmp_path / "a\x1b[31mred.npy", np.arange(3.0))
    run = tool("pt", "a\x1b[31mred.npy", cwd=tmp_path)
    assert "\x1b" not in run.out
    assert "\\x1b[31mred.npy" in run.out


def test_cp_of_an_op_finds_the_channel(data: Data, tmp_path: Path) -> None:
    run = tool("--work", tmp_path, "cp", "block/add", "-p", "2", cwd=data.cwd, columns=80)
    assert "AllClose: no" in run.out
    assert re.search(r"axis 3 of 19 +\[3\] 100 %", run.out)
    assert all(len(line) <= 80 for line in run.out.splitlines() if "precision_data" not in line)


@pytest.mark.parametrize("words", [["-n", "NPU", "GOLD"], ["NPU", "GOLD"]])
def test_cp_of_two_files(data: Data, tmp_path: Path, words: list[str]) -> None:
    golden = str(data.tree.golden_path)
    given = [{"NPU": data.dump, "GOLD": golden}.get(word, word) for word in words]
    run = tool("--work", tmp_path, "cp", *given, "-al", "0.1", "-rl", "0", "-p", "3", "--json", cwd=data.cwd)
    found = run.json
    x, y = data.npu.astype(np.float64), data.golden.astype(np.float64)
    assert found["outside"] == np.count_nonzero(np.abs(x - y) > 0.1)
    assert found["count"] == x.size
    assert found["metrics"]["cosine"] == pytest.approx((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))
    np.testing.assert_allclose([one["error"] for one in found["worst_absolute"]], np.sort(np.abs(x - y), None)[:-4:-1])
    assert tuple(found["worst_absolute"][0]["index"]) == np.unravel_index(np.abs(x - y).argmax(), SHAPE)


def test_cp_saves_every_element(data: Data, tmp_path: Path) -> None:
    tool("--work", tmp_path / "w", "cp", OP, "-s", cwd=data.cwd)
    (path,) = (tmp_path / "w" / "tensor_compare").iterdir()
    table = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(1, 2))
    np.testing.assert_allclose(np.sort(table[:, 0]), np.sort(data.npu.astype("f8"), None), rtol=1e-8)
    assert len(table) == data.npu.size


def test_cp_of_different_shapes(tmp_path: Path) -> None:
    values = np.arange(12.0)
    np.save(tmp_path / "a.npy", values.reshape(3, 4))
    np.save(tmp_path / "b.npy", values.reshape(2, 6))
    np.save(tmp_path / "c.npy", values[:10])
    run = tool("cp", "a.npy", "b.npy", cwd=tmp_path)
    assert "AllClose: yes" in run.out
    assert "shapes differ" in run.out
    wrong = tool("cp", "a.npy", "c.npy", cwd=tmp_path, code=2).err
    assert "(3, 4)" in wrong
    assert "(10,)" in wrong
    assert "never padded" in wrong


def test_dc_of_a_file_a_folder_and_an_op(data: Data, tmp_path: Path) -> None:
    name = f"{data.tree.dump_path.name}.output.0"
    for number, what in enumerate((data.dump, str(data.tree.dump_dir), "block_add")):
        run = tool("dc", what, "-f", "nhwc", "-o", tmp_path / str(number), cwd=data.cwd)
        assert "1 tensor decoded" in run.out
        found = np.load(tmp_path / str(number) / f"{name}.2x5x3x19.npy", allow_pickle=False)
        np.testing.assert_array_equal(found, data.npu)
    tool("--work", tmp_path / "w", "dc", "-n", data.dump, cwd=data.cwd)
    stored = np.load(tmp_path / "w" / "decode" / "dump_decode" / "debug_0" / f"{name}.npy")
    assert stored.shape == (2, 2, 5, 3, 16)


def test_dc_of_a_folder_that_is_not_there(data: Data, tmp_path: Path) -> None:
    run = tool("--work", tmp_path / "w", "dc", "nonexistent_dir", cwd=data.cwd, code=2)
    assert "nonexistent_dir: no such file or folder, and no such op" in run.text


def test_dc_lists_and_counts_what_failed(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    write_dump(folder / "Add.good.1.0.1772443800000000", "good", [], [np.arange(3.0)])
    (folder / "Add.bad.1.0.1772443800000001").write_bytes(b"\xff" * 64)
    run = tool("dc", "dump", "-o", "out", cwd=tmp_path)
    assert "1 tensor decoded" in run.out
    assert "1 not decoded" in run.out
    failed = (tmp_path / "out" / "convert_failed_file_list.txt").read_text()
    assert failed.startswith(f"{folder}/Add.bad.1.0.1772443800000001: ")
    document = tool("dc", "dump", "-o", "out", "--json", cwd=tmp_path).json
    assert (document["decoded"], document["failed"]) == (1, 1)
    os.unlink(folder / "Add.good.1.0.1772443800000000")
    assert "nothing was decoded" in tool("dc", "dump", "-o", "out2", cwd=tmp_path, code=2).err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pt"], "name one tensor"),
        (["pt", "no_such_op_at_all"], "no_such_op_at_all"),
        (["pt", "missing.npy"], "no such file"),
        (["pt", "."], "a folder"),
        (["pt", "block/add:output:7"], "has no output:7"),
        (["pt", "bad.npy"], "damaged"),
        (["pt", "object.npy"], "unpickled"),
        (["cp", "a.npy"], "needs a second tensor"),
        (["cp", "a", "b", "c"], "name two tensors"),
        (["cp", "block/add", "-al", "-1"], "no tolerance"),
        (["cp", "block/add", "-o", "3"], "no output:3"),
        (["dc", "block/add", "-f", "WHAT"], "known are"),
        (["dc", "a.npy"], "decoded already"),
        (["dc", "nowhere/at/all"], "nowhere/at/all"),
    ],
)
def test_what_is_wrong_is_said(data: Data, tmp_path: Path, words: list[str], says: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00garbage")
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    run = tool("--data", data.tree.root, "--work", "w", *words, cwd=tmp_path, code=2)
    assert says in run.err
    assert "hint:" in run.err


# --- what is written, and where ---------------------------------------------------------------------------------------


def test_saved_texts_of_different_folders_do_not_replace_each_other(tmp_path: Path) -> None:
    """Two runs with files of one name, and a file of that name elsewhere."""
    trees = [small_tree(tmp_path / "precision_data", chain(), run=f"debug_{number}") for number in (0, 1)]
    names = {tree.dumps["middle/Mul"].name for tree in trees}
    assert len(names) == 1
    (name,) = names
    write_dump(trees[1].dumps["middle/Mul"], "middle/Mul", [], [np.zeros(1024, np.float32)])
    write_dump(tmp_path / "elsewhere" / name, "middle/Mul", [], [np.ones(1024, np.float32)])
    folder = tmp_path / "precision_data" / "temp" / "decode" / "pt"
    found: dict[str, float] = {}
    for what in ("middle/Mul:output:0", f"elsewhere/{name}", "middle/Mul:output:0"):
        run = tool("pt", what, "-c", "--json", cwd=tmp_path)
        for path in run.json["saved"]:
            found[Path(path).name] = np.loadtxt(tmp_path / path).max()
    of_dumps = {text: top for text, top in found.items() if text.startswith("Mul.")}
    assert sorted(of_dumps.values()) == [0, 1, 1024]
    assert of_dumps[f"{name}.output.0.txt"] == 1024  # of debug_0
    assert {path.name for path in folder.iterdir()} == set(found)


def test_saved_tables_of_different_folders_do_not_replace_each_other(tmp_path: Path) -> None:
    for number, folder in enumerate(("a", "b", "golden")):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "x.npy", np.array([float(number)]))
    for folder in ("a", "b", "a"):
        tool("--work", "w", "cp", f"{folder}/x.npy", "golden/x.npy", "-s", cwd=tmp_path)
    tables = list((tmp_path / "w" / "tensor_compare").iterdir())
    assert sorted(path.read_text().splitlines()[1] for path in tables) == ["0,0,2,2,1", "0,1,2,1,0.5"]


@pytest.mark.parametrize("words", [["pt", "-p"], ["pt", "-l"], ["cp", "-p"]])
def test_no_more_values_are_shown_than_anybody_reads(data: Data, tmp_path: Path, words: list[str]) -> None:
    word, option = words
    place = ("--work", tmp_path, word, "block/add", option)
    err = tool(*place, "1000000000", cwd=data.cwd, code=2).err
    assert "1000000000 are too many to show, 10000 is most" in err
    tool(*place, "10000", "--json", cwd=data.cwd)


def test_results_do_not_go_among_the_dumps(data: Data, tmp_path: Path) -> None:
    root = data.tree.root
    inside = (data.tree.dump_dir, data.tree.dump_dir / "new", root / "tf" / "dump", root / "overflow" / "dump" / "new")
    for folder in inside:
        err = tool("--data", root, "--work", "w", "dc", "block/add", "-o", folder, cwd=tmp_path, code=2).err
        assert "only read" in err
    outside = tmp_path / "copy"
    write_dump(outside / "deep" / "Add.op.1.0.1772443800000000", "op", [], [np.arange(3.0)])
    for into in ("copy", "copy/deep", "copy/deep/new"):
        assert "only read" in tool("dc", "copy", "-o", into, cwd=tmp_path, code=2).err
    assert [path.name for path in outside.rglob("*")] == ["deep", "Add.op.1.0.1772443800000000"]
    tool("dc", "copy", "-o", "decoded", cwd=tmp_path)


# --- one slot of many -------------------------------------------------------------------------------------------------


def test_pt_of_an_op_has_its_inputs_in_short_and_one_in_full(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain())
    run = tool("pt", "middle/Mul", "-p", "2", cwd=tmp_path, columns=80)
    assert re.search(r"(?m)^input:0 +NPU +float32 +\[3\] +5 +7 +6$", run.out)
    assert re.search(r"(?m)^ +benchmark +float32 +\[3\] +5 +7 +6$", run.out)
    assert run.out.count("NPU histogram of") == 1
    assert "NPU histogram of 1,024" in run.out
    full = tool("pt", "middle/Mul", "-i", "0", "-p", "2", cwd=tmp_path, columns=80)
    assert "NPU histogram of 3 finite values" in full.out
    assert "1024" not in full.out
    (npu, golden) = tool("pt", "middle/Mul", "-o", "0", "--json", cwd=tmp_path).json["tensors"]
    assert (npu["slot"], golden["slot"], npu["figures"]["count"]) == ("output:0", "middle/Mul:0", 1024)
    dump = tree.dumps["middle/Mul"]
    assert "NPU histogram" not in tool("pt", dump, "-i", "0", cwd=tmp_path).out
    assert "name the tensor once" in tool("pt", f"{dump}:input:0", "-o", "0", cwd=tmp_path, code=2).err
    assert "has no input:7" in tool("pt", "middle/Mul", "-i", "7", cwd=tmp_path, code=2).err


def test_pt_shows_every_digit_of_long_integers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([-(2**63), 2**63 - 1, 2**53 + 1]))
    run = tool("pt", "a.npy", cwd=tmp_path)
    assert re.search(rf"(?m)^min +{-(2**63)}$", run.out)
    assert re.search(rf"(?m)^max +{2**63 - 1}$", run.out)
    (found,) = tool("pt", "a.npy", "--json", cwd=tmp_path).json["tensors"]
    assert (found["figures"]["minimum"], found["figures"]["maximum"]) == (-(2**63), 2**63 - 1)
    assert found["first"] == [-(2**63), 2**63 - 1, 2**53 + 1]


def test_dc_keeps_what_has_no_such_layout_as_stored(data: Data, tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_dump(tmp_path / "dump" / "Add.flat.1.0.1772443800000000", "flat", [], [values])
    folder = tmp_path / "dump"
    (folder / data.tree.dump_path.name).write_bytes(data.tree.dump_path.read_bytes())
    run = tool("dc", "dump", "-f", "NCHW", "-o", "out", cwd=tmp_path)
    assert "2 tensors decoded" in run.text
    assert "1 of them left as stored, as they cannot be converted to NCHW" in run.text
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "Add.flat.1.0.1772443800000000.output.0.npy"), values)
