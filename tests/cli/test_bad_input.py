"""Bad input: each has a clear message, the rest is still compared, and nobody's files are touched."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MODEL, Array, graph_op, one_op_tree, text_graph
from command_line import Finished, by_tensor, cells, fingerprint, namespace, only_result, result_files, table, tool
from small_tree import Node, SmallTree, chain, small_tree, values

import precision_tool
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.demo.graph_writer import graph_file_name

#: The tensors of `chain()`: the victim's own, what it is fed, what it feeds, and the others.
WHOLE = "middle/Mul"
VICTIM, FED, FEEDS = "middle/Mul:output:0", "middle/Mul:input:0", "last/Sub:input:0"
OTHERS = {"IteratorGetNext:output:0", "first/Add:input:0", "first/Add:output:0", "last/Sub:output:0"}
#: Floats of the victim's output.
COUNT = 1024


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    return small_tree(tmp_path / "precision_data", chain())


@contextmanager
def untouched(*folders: Path) -> Iterator[None]:
    """What lies in the folders afterwards is just what lay there before: names, bytes and times."""
    before = [fingerprint(folder) for folder in folders]
    yield
    assert [fingerprint(folder) for folder in folders] == before


def compare(tree: SmallTree, *arguments: str | Path, code: int = 0) -> Finished:
    """`ac -c` on the tree, which must leave the tree alone and no half-written file anywhere."""
    with untouched(tree.root / "npu", tree.root / "tf"):
        run = tool("ac", "-c", *arguments, cwd=tree.root.parent, code=code)
    assert [path for path in tree.root.parent.rglob("*") if path.name.endswith(".part")] == []
    return run


def check_lost(tree: SmallTree, run: Finished, lost: Mapping[str, tuple[str, str]]) -> None:
    """`lost` tensors have a status and a reason; the others are compared, agree, and the counts say so.

    Where the whole dump file is lost, its op is one row.
    """
    rows = by_tensor(only_result(tree.root / "temp"))
    expected = {*OTHERS, FEEDS, *lost} | (set() if WHOLE in lost else {VICTIM, FED})
    assert set(rows) == expected | {"IteratorV2"}
    compared = {name for name, row in rows.items() if row["Status"] == "compared"}
    assert compared == expected - set(lost)
    assert {rows[name]["CosineSimilarity"] for name in compared} == {"1.000000"}
    for name, (status, reason) in lost.items():
        assert rows[name]["Status"] == status, rows[name]
        assert re.search(reason, rows[name]["CompareFailReason"]), rows[name]["CompareFailReason"]
        assert rows[name]["CosineSimilarity"] == "NaN"
    tensors = [name for name in rows if ":" in name]
    ops = 3 if WHOLE in lost else 4
    assert f"{len(compared)} of {len(tensors)} tensors of {ops} ops, 0 below 0.98" in run.text
    for status, words in (("unreadable", "tensors that cannot be read"), ("size_mismatch", "of different sizes")):
        if count := sum(status == wrong for wrong, _ in lost.values()):
            assert f"{words}: {count}" in run.text


# --- dump files -----------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def header(*, data_type: int = 1, layout: int = 2, dims: tuple[int, ...] = (COUNT,), size: int = 4 * COUNT) -> bytes:
    """A `DumpData` header with the victim's input and an output that may lie."""
    shape, fed_shape = (_field(1, b"".join(map(_varint, extents))) for extents in (dims, (3,)))
    output = _field(1, data_type) + _field(2, layout) + _field(3, shape) + _field(6, size)
    fed = _field(1, 1) + _field(2, 2) + _field(3, fed_shape) + _field(5, 12)
    return _field(1, b"2.0") + _field(3, output) + _field(4, fed)


def dump_bytes(head: bytes, extra: int = 0) -> bytes:
    """A dump file of version 2 with `extra` zero bytes at the end."""
    data = struct.pack("<3f", 5, 6, 7) + np.arange(1, COUNT + 1, dtype="<f4").tobytes()
    return struct.pack("<Q", len(head)) + head + data + bytes(extra)


Damage = Callable[[Path], None]


def cut(offset: int) -> Damage:
    """Only the first bytes are left; negative offsets count from the end."""

    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:offset])

    return damage


def cut_after_header(more: int) -> Damage:
    """The header and `more` bytes of data are left."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: 8 + struct.unpack("<Q", data[:8])[0] + more])

    return damage


def content(data: bytes) -> Damage:
    """Other bytes altogether."""

    def damage(path: Path) -> None:
        path.write_bytes(data)

    return damage


def instead(make: Callable[[Path], object]) -> Damage:
    """Something else under the name of the file."""

    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def no_permission(path: Path) -> None:
    """A file of somebody else."""
    if os.geteuid() == 0:
        pytest.skip("root may read every file")
    path.chmod(0)


NOT_A_DUMP = ("unreadable", r"Mul\.middle_Mul\S*: not a dump file, or damaged: .*; copy it or dump it again")
CUT_OFF = ("unreadable", r"Mul\.middle_Mul\S*: (in|out)put 0: its bytes \d+ to \d+ are past the end .* cut off")

#: What happens to the victim's dump file, and the rows that are lost, each with its status and reason: one of each kind
#: of reason, as `tests/io/test_reader_contract.py` has all of them.
DUMP_DAMAGES: dict[str, tuple[Damage, dict[str, tuple[str, str]]]] = {
    "empty": (cut(0), {WHOLE: ("unreadable", r"Mul\.middle_Mul\S*: the file is empty; .*dump it again")}),
    "cut after the header": (cut_after_header(0), {FED: CUT_OFF, VICTIM: CUT_OFF}),
    "last byte missing": (cut(-1), {VICTIM: CUT_OFF}),
    "text": (content(b"Permission denied\n" * 20), {WHOLE: NOT_A_DUMP}),
    "size too small for the shape": (
        content(dump_bytes(header(size=4000))),
        {VICTIM: ("unreadable", r"shape \(1024,\) of float32 needs 4096 bytes, the header gives 4000; dump this op")},
    ),
    "unknown dimension": (
        content(dump_bytes(header(dims=((1 << 64) - 1,)))),
        {VICTIM: ("unreadable", r"negative or unknown dimension")},
    ),
    "a hundred dimensions": (
        content(dump_bytes(header(dims=(1,) * 99 + (COUNT,)))),
        {VICTIM: ("unreadable", r"a shape of more than 31 dimensions; dump this op again")},
    ),
    "unknown data type": (
        content(dump_bytes(header(data_type=99))),
        {VICTIM: ("unreadable", r"unknown data type 99; a newer CANN wrote it")},
    ),
    "string": (
        content(dump_bytes(header(data_type=13))),
        {VICTIM: ("not_numeric", r"type string, which has no numbers")},
    ),
    "unknown layout with padding": (
        content(dump_bytes(header(layout=200, dims=(COUNT + 16,), size=4 * COUNT + 64), 64)),
        {VICTIM: ("layout", r"layout format 200 is unknown,? and its padding cannot be")},
    ),
    "FIFO": (
        instead(os.mkfifo),
        {WHOLE: ("unreadable", r"Mul\.middle_Mul\S*: not a regular file; move it away")},
    ),
    "link to itself": (
        instead(lambda path: path.symlink_to(path.name)),
        {WHOLE: ("unreadable", r"Mul\.middle_Mul\S*: cannot be read \(Too many levels of symbolic links\)")},
    ),
    "no permission": (
        no_permission,
        {WHOLE: ("unreadable", r"Mul\.middle_Mul\S*: no permission to read it; ")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DUMP_DAMAGES)
def test_a_bad_dump_file_costs_its_own_tensors_only(tree: SmallTree, name: str) -> None:
    damage, lost = DUMP_DAMAGES[name]
    damage(tree.dumps["middle/Mul"])
    check_lost(tree, compare(tree), lost)


def test_an_unknown_layout_without_padding_is_compared_as_it_lies(tree: SmallTree) -> None:
    tree.dumps["middle/Mul"].write_bytes(dump_bytes(header(layout=200)))
    check_lost(tree, compare(tree), {})


def test_bytes_behind_the_data_do_no_harm(tree: SmallTree) -> None:
    tree.dumps["middle/Mul"].write_bytes(dump_bytes(header(), extra=100))
    check_lost(tree, compare(tree), {})


# --- benchmark tensors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bomb:
    """Makes a file when it is unpickled."""

    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def saved(array: Array) -> Damage:
    """Another array under the name of the file."""

    def damage(path: Path) -> None:
        np.save(path, array)

    return damage


def npy_header(text: str, data: bytes = bytes(4 * COUNT), version: bytes = b"\x01\x00") -> Damage:
    """A `.npy` file whose header says `text`."""
    head = text.encode("latin-1")
    size = struct.pack("<H" if version[0] == 1 else "<I", len(head))
    return content(b"\x93NUMPY" + version + size + head + data)


RIGHT = np.arange(1, COUNT + 1, dtype=np.float32)
NPY = r"tf/dump/middle_Mul\S*\.npy: "
NPY_HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }\n"

GOLDEN_DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "cut in the data": (cut(2000), "unreadable", NPY + ".*needs 4096 bytes .* ends at byte 2000; .*cut off"),
    "text": (content(b"no such tensor\n" * 9), "unreadable", NPY + "damaged .npy header"),
    "smaller": (saved(RIGHT[:1000]), "size_mismatch", r"NPU \S*1024\S* \(1024 .*benchmark \S*1000\S* \(1000 elements"),
    "zero size": (saved(np.empty((0, 4))), "size_mismatch", r"benchmark .0, 4. \(0 elements"),
    "scalar": (saved(np.array(1.0)), "size_mismatch", r"benchmark .. \(1 element"),
    "complex": (saved(RIGHT.astype(np.complex64)), "layout", "one side is complex: NPU float32, benchmark complex64"),
    "text array": (saved(np.array(["a"] * COUNT)), "unreadable", NPY + "elements of type <U1 are not numbers"),
    "FIFO": (instead(os.mkfifo), "unreadable", NPY + "not a regular file"),
    "no permission": (no_permission, "unreadable", NPY + "no permission to read it; "),
}


@pytest.mark.parametrize("name", GOLDEN_DAMAGES)
def test_a_bad_benchmark_tensor_costs_the_tensors_that_need_it(tree: SmallTree, name: str) -> None:
    damage, status, reason = GOLDEN_DAMAGES[name]
    damage(tree.goldens["middle/Mul"])
    check_lost(tree, compare(tree), dict.fromkeys((VICTIM, FEEDS), (status, reason)))


def test_a_pickle_is_never_opened(tree: SmallTree) -> None:
    trap = tree.root.parent / "trap"
    array = np.empty(COUNT, object)
    array[:] = Bomb(str(trap))
    np.save(tree.goldens["middle/Mul"], array, allow_pickle=True)
    tree.goldens["last/Sub"].write_bytes(pickle.dumps(Bomb(str(trap))))
    run = compare(tree)
    assert not trap.exists()
    rows = by_tensor(only_result(tree.root / "temp"))
    for name in (VICTIM, FEEDS):
        assert (
            "array of Python objects: it would have to be unpickled, which is refused"
            in rows[name]["CompareFailReason"]
        )
    assert "damaged .npy header" in rows["last/Sub:output:0"]["CompareFailReason"]
    assert "tensors that cannot be read: 3" in run.text
    # The trap works.
    pickle.loads(tree.goldens["last/Sub"].read_bytes()).close()
    assert trap.exists()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int16", "int32", "int64", "uint16", ">f4", ">f8", ">i2"])
def test_another_type_of_the_same_values_agrees(tree: SmallTree, dtype: str) -> None:
    np.save(tree.goldens["middle/Mul"], RIGHT.astype(dtype))
    check_lost(tree, compare(tree), {})
    rows = by_tensor(only_result(tree.root / "temp"))
    assert {rows[name]["MaxAbsoluteError"] for name in (VICTIM, FEEDS)} == {"0.000000"}


def test_fortran_order(tmp_path: Path) -> None:
    right = RIGHT.reshape(4, 8, 32)
    tree = small_tree(tmp_path / "precision_data", chain(right))
    np.save(tree.goldens["middle/Mul"], np.asfortranarray(right))
    assert b"'fortran_order': True" in tree.goldens["middle/Mul"].read_bytes()
    check_lost(tree, compare(tree), {})
    # Read in the wrong order they would not agree.
    np.save(tree.goldens["middle/Mul"], right.reshape(-1, order="F"))
    tool("vc", "--fail", cwd=tmp_path, code=1)


def test_zero_size(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "precision_data", chain(np.empty((0, 4), np.float32)))
    run = compare(tree, "--fail")
    rows = by_tensor(only_result(tree.root / "temp"))
    for name in (VICTIM, FEEDS):
        assert rows[name]["CompareFailReason"] == "This tensor is empty."
        assert rows[name]["CosineSimilarity"] == "NaN"
    assert "5 of 7 tensors of 4 ops, 0 below 0.98" in run.text
    assert "not compared tensors without elements: 2" in run.text


@pytest.mark.parametrize(("golden", "agrees"), [(2.5, True), (2.2, True), (1.9, False), (-2.5, False), (0, False)])
def test_scalars_agree_by_their_value(tmp_path: Path, golden: float, agrees: bool) -> None:
    tree = small_tree(tmp_path / "precision_data", chain(np.array(2.5, np.float32)))
    np.save(tree.goldens["middle/Mul"], np.array(golden, np.float32))
    # What an op of right inputs puts out 12 % off is no rounding, whatever the threshold is.
    run = compare(tree, "--fail", code=0 if golden == 2.5 else 1)
    row = by_tensor(only_result(tree.root / "temp"))[VICTIM]
    assert (row["Shape"], row["CosineSimilarity"], row["CompareFailReason"]) == (
        "[1]",
        "1.000000",
        "This tensor is scalar.",
    )
    assert row["MaxAbsoluteError"] == f"{abs(2.5 - golden):.6f}"
    assert ("No op is below" in run.text) is agrees
    assert ("┃ middle/Mul (Mul) ┃" in run.text) is (golden != 2.5)


def test_an_array_of_python_2_is_read_without_a_word(tree: SmallTree) -> None:
    npy_header(NPY_HEADER % ("<f4", "1024L,"), RIGHT.tobytes())(tree.goldens["middle/Mul"])
    run = compare(tree)
    check_lost(tree, run, {})
    assert run.err == ""


def test_no_single_wrong_byte_of_a_header_is_an_internal_error(tmp_path: Path) -> None:
    """Every byte of the headers set to values that mean something else to a parser, and every cut."""
    image = np.arange(2 * 4 * 4 * 20, dtype=np.float16).reshape(2, 4, 4, 20)
    for version in (1, 2):
        output = OutTensor.packed(image, "NC1HWC0", "NHWC")
        site = one_op_tree(
            tmp_path / str(version), output=output, golden=image.astype(np.float32), layout="NC1HWC0",
            origin_layout="NHWC", version=version,
        )  # fmt: skip
        assert site.golden_path is not None
        compared = 0
        for path, length in ((site.dump_path, 120), (site.golden_path, 130)):
            good = path.read_bytes()
            bad = [good[:at] for at in range(length)]
            bad += [
                bytes([*good[:at], value, *good[at + 1 :]])
                for at in range(length)
                for value in {0, 0x80, 0xFF, good[at] ^ 1, good[at] ^ 8}
            ]
            for data in bad:
                path.write_bytes(data)
                (result,) = precision_tool.compare(site.dump_dir, site.golden_dir, graph=site.graph_path, workers=1)
                assert len(result.rows) >= 4
                assert not any("internal error" in str(row.reason) for row in result.rows)
                compared += result.rows[-2].metrics is not None
            path.write_bytes(good)
        assert compared > 20  # not every byte matters


# --- graphs ---------------------------------------------------------------------------------------------------------


def rewrite_graph(change: Callable[[bytes], bytes]) -> Callable[[SmallTree], None]:
    """Another text in the only graph file."""

    def damage(tree: SmallTree) -> None:
        tree.graph.write_bytes(change(tree.graph.read_bytes()))

    return damage


def graph_instead(make: Callable[[Path], object]) -> Callable[[SmallTree], None]:
    """Something else under the name of the graph file."""

    def damage(tree: SmallTree) -> None:
        tree.graph.unlink()
        make(tree.graph)

    return damage


GRAPH = r"graph/ge_proto_00000005_graph_1_Build\.txt"
NO_GRAPH = "no graph can be used: .*" + GRAPH

#: What happens to the graph, and the note about it.
GRAPH_DAMAGES: dict[str, tuple[Callable[[SmallTree], None], str]] = {
    "cut off in a block": (
        rewrite_graph(lambda text: text[: text.index(b'  name: "middle/Mul"')]),
        NO_GRAPH + r": line \d+, byte \d+: the text is cut off",
    ),
    "empty": (rewrite_graph(lambda text: b""), NO_GRAPH + ": the file is empty"),
    "zeros": (rewrite_graph(lambda text: bytes(4096)), NO_GRAPH + r": line 1, byte 0: NUL byte; this is a binary file"),
    "an ONNX graph": (rewrite_graph(lambda text: b"ir_version: 6\ngraph {\n}\n"), NO_GRAPH + ": an ONNX text graph"),
    "folder": (graph_instead(lambda path: path.mkdir()), NO_GRAPH + ": a folder where a file should be"),
    "FIFO": (graph_instead(os.mkfifo), NO_GRAPH + ": not a regular file"),
    "no Build graph": (
        graph_instead(lambda path: path.with_name("ge_proto_00000002_graph_1_PreRunBegin.txt").write_text("op {}")),
        r"no graph: no ge_proto_\*_Build\.txt in .*graph",
    ),
    "no folder": (lambda tree: shutil.rmtree(tree.graph.parent), r"no graph: no ge_proto"),
    "of another network": (
        lambda tree: void(tree.graph.write_text(text_graph([graph_op(f"other{i}") for i in range(9)], "other"))),
        r"no graph fits the dump: the only graph, .*" + GRAPH + ", names 0 of 4 dumped ops",
    ),
}  # fmt: skip


def void(_: object) -> None:
    """Forget a result."""


@pytest.mark.parametrize("name", GRAPH_DAMAGES)
def test_without_a_good_graph_ops_are_matched_by_name(tree: SmallTree, name: str) -> None:
    damage, note = GRAPH_DAMAGES[name]
    damage(tree)
    run = compare(tree)
    assert re.search(rf"note {note}.*; ops are matched by name, fused ops stay unmatched", run.text), run.text
    rows = by_tensor(only_result(tree.root / "temp"))
    compared = {name for name, row in rows.items() if row["Status"] == "compared"}
    assert compared == {f"{op}:output:0" for op in ("IteratorGetNext", "first_Add", "middle_Mul", "last_Sub")}
    assert {rows[name]["CosineSimilarity"] for name in compared} == {"1.000000"}
    assert "4 of 7 tensors of 4 ops, 0 below 0.98" in run.text


@pytest.mark.parametrize("words", [(), ("--fail",), ("--json",)])
def test_without_a_verdict_the_last_line_says_so(tree: SmallTree, words: tuple[str, ...]) -> None:
    GRAPH_DAMAGES["cut off in a block"][0](tree)
    run = tool("ac", "-c", *words, cwd=tree.root.parent, code=1 if "--fail" in words else 0)
    assert run.err.splitlines()[-1].startswith("note: no verdict: ")


@pytest.mark.parametrize("name", [name for name in GRAPH_DAMAGES if name not in ("folder", "of another network")])
def test_a_bad_graph_that_was_asked_for_is_an_error(tree: SmallTree, name: str) -> None:
    GRAPH_DAMAGES[name][0](tree)
    run = compare(tree, "-g", tree.graph, code=2)
    first, hint = run.err.splitlines()
    assert re.match(rf"error: .*{GRAPH}( |: )", first)
    assert hint.startswith("hint: ")
    assert run.out == ""
    assert result_files(tree.root) == []


def test_a_graph_that_is_not_utf_8_is_used(tree: SmallTree) -> None:
    text = tree.graph.read_bytes()
    assert text.count(b'type: "Mul"') == 1
    tree.graph.write_bytes(text.replace(b'type: "Mul"', b'type: "M\xff\xfe"'))
    run = compare(tree)
    check_lost(tree, run, {})
    assert by_tensor(only_result(tree.root / "temp"))[VICTIM]["OpType"] == r"M\xff\xfe"
    assert "note ge_proto_00000005_graph_1_Build.txt: 2 bytes are not UTF-8" in run.text


def test_of_several_candidates_the_one_that_fits_is_taken(tree: SmallTree) -> None:
    """Damaged ones, one of another name, one without a data source, one that names fewer ops."""
    folder, good = tree.graph.parent, tree.graph.read_bytes()
    few = [graph_op("IteratorV2", "IteratorV2"), graph_op("first/Add")]
    decoys = {
        1: good[:300],
        2: text_graph(
            [graph_op("IteratorV2", "IteratorV2"), *[graph_op(f"x{i}") for i in range(30)]], "other"
        ).encode(),
        3: text_graph([graph_op("first/Add"), graph_op("middle/Mul")]).encode(),
        4: text_graph(few).encode(),
    }
    for number, text in decoys.items():
        (folder / graph_file_name(number, number)).write_bytes(text)
    run = compare(tree)
    check_lost(tree, run, {})
    assert re.search(GRAPH + " chosen because its name is the dump's model folder", run.text)
    for reason in ("_1_Build.txt: line", "_2_Build.txt: has another graph name", "more graph"):
        assert reason in run.text
    # Without the right name the best overlap decides.
    tree.graph.write_bytes(good.replace(MODEL.encode(), b"renamed"))
    for number in (3, 4):
        (folder / graph_file_name(number, number)).unlink()
    run = tool("vc", cwd=tree.root.parent)
    assert re.search(GRAPH + " chosen because .* it names 4 of 4 dumped ops", run.text)
    assert "7 of 7 tensors of 4 ops, 0 below 0.98" in run.text


# --- folders --------------------------------------------------------------------------------------------------------


def empty(folder: Path, *strangers: str) -> None:
    """The folder stays, what is in it goes; `strangers` are the files in it then."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name in strangers:
        np.save(folder / name, RIGHT)  # puts .npy behind every name


def a_file_instead(folder: Path) -> None:
    """A file under the name of the folder."""
    shutil.rmtree(folder)
    folder.touch()


def nothing(tree: SmallTree) -> None:
    """All is well with the tree."""


FOLDER_DAMAGES: dict[str, tuple[Callable[[SmallTree], object], tuple[str, ...], str, str]] = {
    "no data folder": (lambda tree: shutil.rmtree(tree.root), (), "precision_data: no such data folder", "--data DIR"),
    "empty data folder": (lambda tree: empty(tree.root), (), "npu/debug_0/dump: no NPU dump", "Collect"),
    "no dump folder": (lambda tree: shutil.rmtree(tree.dump_path), (), "npu/debug_0/dump: no NPU dump", "-lt"),
    "empty dump folder": (lambda tree: empty(tree.dump_path), (), "dump: no dump file below this", "enable_dump"),
    "empty leaf": (lambda tree: empty(tree.leaf), (), "dump: no dump file below this folder", "collect dump data"),
    "a file as dump folder": (
        lambda tree: a_file_instead(tree.dump_path),
        (), "npu/debug_0/dump: a file where a folder should be", "move it away",
    ),
    "a file as data folder": (
        lambda tree: a_file_instead(tree.root), (), "precision_data: a file where the data folder should be", "--data",
    ),
    "no benchmark": (lambda tree: shutil.rmtree(tree.root / "tf"), (), "neither .*tf/dump nor .*debug_1", "-rt"),
    "empty benchmark": (lambda tree: empty(tree.root / "tf/dump"), (), "neither .*tf/dump nor .*debug_1", "put"),
    "strangers as benchmark": (
        lambda tree: empty(tree.root / "tf/dump", "notes.txt"),
        (), "tf/dump: no benchmark tensor", "collect them on CPU or GPU",
    ),
    "strangers as dump": (
        lambda tree: empty(tree.leaf, "core.1234"), (), "no dump file below .*op_type", "collect",
    ),
    "npy without names": (
        lambda tree: empty(tree.root / "tf/dump", "a.npy"),
        (), "no benchmark tensor", "collect them on CPU or GPU",
    ),
    "no such left": (nothing, ("-lt", "nowhere"), "nowhere: no such folder", "folder of the NPU dump"),
    "no such right": (nothing, ("-rt", "nowhere"), "nowhere: no such folder", "benchmark tensors"),
    "a file on the left": (
        nothing, ("-lt", "precision_data/npu/debug_0/graph/ge_proto_00000005_graph_1_Build.txt"),
        "a file where a folder should be", "folder of the NPU dump",
    ),
    "left and right swapped": (
        nothing, ("-lt", "precision_data/tf/dump", "-rt", "precision_data/npu/debug_0/dump"),
        "precision_data/tf/dump: no dump file below", "swapped",
    ),
    "no such graph": (nothing, ("-g", "nowhere.txt"), "nowhere.txt: no such graph", "ge_proto_"),
    "no graph in the folder": (nothing, ("-g", "precision_data/tf"), "no graph: no ge_proto_", "-g"),
    "a dump as graph": (
        lambda tree: shutil.copy(tree.dumps["middle/Mul"], tree.root.parent / "graph"),
        ("-g", "graph"), "graph: line 1, byte .*: NUL byte", "ge_proto",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDER_DAMAGES)
def test_nothing_to_compare_is_an_error_that_says_what_to_do(tree: SmallTree, name: str) -> None:
    damage, arguments, message, hint = FOLDER_DAMAGES[name]
    damage(tree)
    cwd = tree.root.parent
    tool("-h", cwd=cwd)  # makes the temporary folder
    before = sorted(cwd.rglob("*"))
    run = tool("vc", *arguments, cwd=cwd, code=2)
    assert sorted(cwd.rglob("*")) == before
    first, second = run.err.splitlines()
    assert re.match(f"error: .*{message}", first), run
    assert re.match(f"hint: .*{hint}", second), run
    assert run.out == ""


def test_a_dump_is_not_compared_with_itself(tree: SmallTree) -> None:
    for words in (("-lt", "debug_0/dump", "-rt", "debug_0/dump"), ("-rt", "debug_0/dump")):
        run = compare(tree, *words, code=2)
        assert "the same dump on both sides" in run.err
        assert "hint: name the benchmark, or the dump of another run, with -rt" in run.err


def test_results_of_no_comparison(tree: SmallTree) -> None:
    cwd = tree.root.parent
    for arguments, message in (
        (("vcs",), "precision_data: no comparison result yet"),
        (("ac",), "precision_data: no comparison result yet"),
        (("vcs", "-f", "nowhere.csv"), "nowhere.csv"),
        (("vcs", "-f", "precision_data"), "precision_data: no comparison result below this folder"),
    ):
        run = tool(*arguments, cwd=cwd, code=2)
        assert re.match(f"error: .*{message}.*\nhint: .*", run.err), run


HEAD = "Index,LeftOp,RightOp,TensorIndex,CosineSimilarity\r\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no comparison result: the first line has no CosineSimilarity column"),
        (b"a,b\n1,2\n", "no CosineSimilarity column"),
        (bytes(5000), "no CosineSimilarity column|no valid CSV"),
        (b"Index,CosineSimilarity\n0,1\n", "the first line has no NPUDump column"),
        (HEAD.encode() + b"x,a,b,a:output:0,1.0\r\n", "line 2 cannot be read"),
        (HEAD.encode() + b"0,a,b,a:output:0,1.0\r\n1,a,b,a:output:1,fast\r\n", "line 3 cannot be read"),
        (HEAD.encode() + b"0,a\r\n", "line 2 cannot be read"),
        (HEAD.encode() + b'0,"' + b"x" * (2 << 20), "field larger than field limit"),
        (HEAD.removeprefix("Index,").encode() + b"a,b,a:output:0,1.0\r\n", "the first line has no Index column"),
    ],
    ids=["empty", "others", "zeros", "one column", "index", "number", "short", "megabytes", "no index"],
)
def test_a_bad_result_file(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "result_1.csv"
    path.write_bytes(text)
    run = tool("vcs", "-f", path, cwd=tmp_path, code=2)
    assert re.match(rf"error: .*result_1\.csv: .*({message})", run.err)
    assert "hint: name a result_*.csv that vc, ac -c or msaccucmp wrote" in run.err
    assert run.out == ""


# --- places that cannot be written ----------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["file/below", "/proc/self/work", "/proc/work", "/dev/null", "/dev/null/x", "ring"])
def test_a_work_folder_that_cannot_be_made(tree: SmallTree, work: str) -> None:
    cwd = tree.root.parent
    (cwd / "file").touch()
    (cwd / "ring").symlink_to("ring")
    run = compare_in(tree, "--work", work, code=2)
    # That earlier results cannot be looked for there is a note.
    assert re.search(rf"(?m)^error: {work}\S* cannot be written \(.+\)\nhint: .* --work DIR\n\Z", run.err), run
    assert sorted(path.name for path in cwd.iterdir()) == [".tmp", "file", "precision_data", "ring"]
    assert (cwd / "file").is_file()


def compare_in(tree: SmallTree, *before: str, code: int = 0, **options: Any) -> Finished:
    """`ac -c` with options that stand before the command."""
    with untouched(tree.root):
        return tool(*before, "ac", "-c", cwd=tree.root.parent, code=code, **options)


def test_no_place_at_all(tree: SmallTree) -> None:
    """The data folder cannot hold results, nor can the working folder."""
    (tree.root / "temp").touch()
    (tree.root.parent / "precision_work").symlink_to("/proc/nowhere")
    run = compare_in(tree, code=2)
    assert re.match(
        r"error: precision_data/temp/\S* cannot be written \(.+\); precision_work/\S* cannot be written \(.+\)\nhint: ",
        run.err,
    )


def on_small_disk(size: str, folder: Path, listing: Path) -> tuple[str, ...]:
    """A command prefix that mounts a disk of `size` on `folder`, runs, and lists what is left on the disk."""
    prefix = namespace()
    if prefix is None:
        pytest.skip("mounting is not allowed here")
    script = (
        f'mount -t tmpfs -o size={size} none "$0" && out="$1" && shift && "$@"; code=$?; find "$0" > "$out"; exit $code'
    )
    return (*prefix, "sh", "-c", script, str(folder), str(listing))


def many_ops(count: int = 150) -> list[Node]:
    """So many ops that the result file has more than 60 kB."""
    return [
        *chain(),
        *(Node(name=f"more/{i}", type="Add", output=values(i, 1), golden=values(i, 1)) for i in range(count)),
    ]


@pytest.mark.parametrize("size", ["32k", "8k"])
def test_a_full_disk(tmp_path: Path, size: str) -> None:
    """8 kB hold not even the first lines, 32 kB a part of the result."""
    tree = small_tree(tmp_path / "precision_data", many_ops())
    disk, listing = tmp_path / "disk", tmp_path / "listing"
    disk.mkdir()
    run = compare_in(tree, "--work", "disk", code=2, prefix=on_small_disk(size, disk, listing))
    assert re.match(
        r"error: disk/\S*: cannot be written \(No space left on device\)\nhint: free some space .*--work", run.err
    )
    assert run.out == ""
    assert listing.read_text().splitlines() == [str(disk)]


def test_a_disk_that_is_full_from_the_start(tree: SmallTree) -> None:
    """The data folder's own disk is full: the results go to the working folder, and that is said."""
    (tree.root / "temp").mkdir()
    listing = tree.root.parent / "listing"
    prefix = list(on_small_disk("4k", tree.root / "temp", listing))
    prefix[prefix.index("-c") + 1] = prefix[prefix.index("-c") + 1].replace("&& out", '&& { echo x > "$0/x"; } && out')
    run = compare_in(tree, prefix=prefix)
    assert run.err.startswith("note: precision_data/temp/vector_compare cannot be written (No space left on device)")
    assert "results go to precision_work instead" in run.err
    assert len(result_files(tree.root.parent / "precision_work")) == 1
    assert set(listing.read_text().splitlines()) == {str(tree.root / "temp"), str(tree.root / "temp/x")}


def test_a_file_size_limit(tmp_path: Path) -> None:
    """What quotas do, without mounting anything."""
    tree = small_tree(tmp_path / "precision_data", many_ops())

    prefix = ("sh", "-c", 'ulimit -f 40 && exec "$@"', "sh")  # of 512 bytes
    run = tool("ac", "-c", cwd=tmp_path, code=2, prefix=prefix)
    assert re.match(
        r"error: precision_data/temp/\S*: cannot be written \(File too large\)\nhint: free some space", run.err
    )
    assert [path for path in tree.root.rglob("*") if path.is_file() and "temp" in path.parts] == []


def test_the_reader_of_the_output_has_no_space(tree: SmallTree) -> None:
    """`precision-tool vc > FILE` on a full disk."""
    for arguments in (("vc",), ("vc", "--json"), ("vcs",), ("-h",), ("vc", "-h"), ("--version",)):
        script = '"$0" "$@" > /dev/full'
        run = tool(*arguments, cwd=tree.root.parent, code=2, prefix=("sh", "-c", script))
        assert re.search(r"error: the output cannot be written \(No space left on device\)\n", run.err), (
            arguments,
            run,
        )
        assert run.err.count("\n") <= 2


# --- names ----------------------------------------------------------------------------------------------------------

NASTY_NAMES = (
    "=cmd|'C:calc'!A0",
    "@SUM(A1:A9)",
    "+1+1",
    "-2",
    "%x",
    "[bold red]loud[/bold red]",
    "[/]",
    "[link=file:x]y[/link]",
    ":smile:",
    "esc\x1b[31mred\x1b]0;title\x07",
    "tab\there",
    "line\nbreak",
    "carriage\rreturn",
    "bell\x07",
    "c1\x9b31m",
    "\u202eright to left",
    'quote"d, and comma',
    "'quoted",
    "naïve 中文 😀",
    "a" * 180,
)


def test_nasty_names_are_shown_harmlessly(tmp_path: Path) -> None:
    nodes = chain()
    for number, name in enumerate(NASTY_NAMES):
        wrong = values(1, -1) if number % 2 else values(3, 4)
        nodes.append(
            Node(name=name, type="Add", output=values(3, 4), golden=wrong, originals=(name,), passes=(f"{name} pass",))
        )
    tree = small_tree(tmp_path / "precision_data", nodes)
    run = compare(tree, "-l", "99")
    shown = run.out + run.err + tool("vcs", "-l", "99", cwd=tmp_path).out
    assert not [char for char in shown if not char.isprintable() and char != "\n"]
    path = only_result(tree.root / "temp")
    # No cell starts like a formula, behind spaces neither.
    header, lines = table(path)
    text_columns = [i for i, name in enumerate(header) if name in TEXTS]
    assert not [line[i] for line in lines for i in text_columns if re.match(r"\s*[=+@%\t\r-]", line[i])]
    rows = {row["op"]: row for row in tool("vc", "--json", cwd=tmp_path).results[0]["rows"]}
    for number, name in enumerate(NASTY_NAMES):
        assert rows[name]["status"] == "compared", rows[name]
        assert rows[name]["metrics"]["cosine"] == pytest.approx(-1 / 50**0.5 if number % 2 else 1)
        escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
        if number % 2 and len(name) < 100:
            assert f"] {escaped} (Add)" in shown
    # Read back, the names are the same.
    read = tool("vcs", "--json", cwd=tmp_path).results[0]["rows"]
    assert {row["op"] for row in read} == set(rows)
    assert {",".join(row["pass"]) for row in read} >= {f"{name} pass" for name in NASTY_NAMES}


TEXTS = {"OpType", "NPUDump", "GroundTruth", "TensorIndex", "CompareFailReason", "PassName", "OriginalOps",
         "GroundTruthTensor"}  # fmt: skip


def test_nasty_file_names_are_shown_harmlessly(tree: SmallTree) -> None:
    """What lies among the dumps, whatever its name, is left alone and printed without its control characters."""
    folder = os.fsencode(tree.leaf)
    for name in (b"=1+1", b"\xff\xfe.csv", b"a\x1b[31m", b"[red]", b"Add.\xff\x1b[31m.9.0.1772443800000099"):
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(b"x" * 100)
    evil = Path(os.fsdecode(os.fsencode(tree.graph.parent) + b"/ge_proto_00000001_\x1b[31m\xff_Build.txt"))
    evil.write_text("graph {")
    run = compare(tree)
    assert "7 of 7 tensors of 4 ops" in run.text
    assert not [char for char in run.out + run.err if not char.isprintable() and char != "\n"]
    run = compare(tree, "-g", evil, code=2)
    assert re.match(
        r"error: .*ge_proto_00000001_\\x1b\[31m\\udcff_Build.txt: line 1, byte 7: the text is cut off", run.err
    )
    assert len(tool("vc", "--json", cwd=tree.root.parent).results) == 1


@pytest.mark.parametrize("encoding", ["ascii", "gb2312", "latin-1"])
def test_a_terminal_that_cannot_show_everything(tmp_path: Path, encoding: str) -> None:
    nodes = [*chain(), Node(name="卷积😀", type="Conv2D", output=values(3, 4), golden=values(4, -3))]
    tree = small_tree(tmp_path / "precision_data", nodes)
    del tree
    script = '"$0" "$@" | iconv -f latin1 -t utf-8'
    run = tool("ac", "-c", cwd=tmp_path, env={"PYTHONIOENCODING": encoding}, prefix=("sh", "-c", script))
    assert run.err == ""
    assert "Verdict" in run.out


def test_nobody_to_tell(tree: SmallTree) -> None:
    """Standard output and standard error closed by who started the tool."""
    run = tool("ac", "-c", "--fail", cwd=tree.root.parent, prefix=("sh", "-c", '"$0" "$@" >&- 2>&-'))
    assert (run.out, run.err) == ("", "")
    assert len(cells(only_result(tree.root / "temp"))) == 8
    tool("ac", "-c", "-lt", "nowhere", cwd=tree.root.parent, code=2, prefix=("sh", "-c", '"$0" "$@" >&- 2>&-'))
