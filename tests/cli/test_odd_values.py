"""Values that no writer writes, in places that every command looks at: each is told, and no command stops at it."""

from __future__ import annotations

import csv
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import only_result, tool
from small_tree import Node, chain, small_tree, values

import precision_tool
from precision_tool.lib.io.ge_graph import load_graph_bytes
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.statistics_csv import read_statistics
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import FormatError


@pytest.mark.parametrize("name", ["²", "①", "٣", "9" * 250])
def test_folders_named_like_numbers(tmp_path: Path, name: str) -> None:
    """Digits to Python, which `int` does not take, or whose number nothing takes."""
    tree = small_tree(tmp_path / "precision_data", chain())
    odd = tree.leaf.parent / name
    odd.mkdir()
    for file in tree.leaf.iterdir():
        (odd / file.name).write_bytes(file.read_bytes())
    (tree.leaf / name).write_bytes(b"")
    for words in (["ls"], ["vc"], ["ac", "-c"], ["graphs"]):
        assert tool(*words, cwd=tmp_path, code=None).code in (0, 1, 2)
    assert "compared" in tool("vc", cwd=tmp_path).text


FIELDS = ("name", "type", "input", "output_desc", "input_desc", "attr", "id", "stream_id", "subgraph_name", "dtype",
          "layout", "shape", "key", "value", "s", "i", "list", "dim")  # fmt: skip


def emptied(value: Any, field: str) -> Any:
    """The document with an empty list as the value of every field of this name."""
    if isinstance(value, dict):
        return {key: [] if key == field else emptied(item, field) for key, item in value.items()}
    return [emptied(item, field) for item in value] if isinstance(value, list) else value


GRAPH = {
    "name": "g",
    "graph": [
        {
            "name": "g",
            "attr": [{"key": "_k", "value": {"list": {"i": [1, 2]}}}],
            "op": [
                {
                    "name": "a",
                    "type": "Add",
                    "id": 3,
                    "stream_id": 1,
                    "input": ["b:0"],
                    "subgraph_name": ["s"],
                    "attr": [
                        {"key": "_datadump_original_op_names", "value": {"list": {"s": ["x"]}}},
                        {"key": "_no_stream_split", "value": {"b": True}},
                        {"key": "n", "value": {"i": 3}},
                        {"key": "t", "value": {"s": "dA=="}},
                    ],
                    "input_desc": [{"dtype": "DT_FLOAT", "layout": "ND", "shape": {"dim": [1]}}],
                    "output_desc": [{"dtype": "DT_FLOAT", "layout": "ND", "shape": {"dim": [1]}}],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("field", FIELDS)
def test_an_empty_list_is_a_field_that_is_not_there(field: str) -> None:
    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key != field}
        return [without(item) for item in value] if isinstance(value, list) else value

    found = load_graph_bytes(json.dumps(emptied(GRAPH, field)).encode(), "g.json")
    expected = load_graph_bytes(json.dumps(without(GRAPH)).encode(), "g.json")
    assert [graph.name for graph in found.graphs] == [graph.name for graph in expected.graphs]
    for one, other in zip(found.ops, expected.ops, strict=True):
        assert (one.name, one.type, one.inputs, one.output_descs) == (
            other.name,
            other.type,
            other.inputs,
            other.output_descs,
        )
        assert dict(one.attrs) == dict(other.attrs)


def test_enum_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    text = 'graph {\n  name: "g"\n  op {\n    name: "a"\n    type: "A"\n    output_desc {\n      dtype: ' + "7" * 5000
    data = (text + "\n    }\n  }\n}\n").encode()
    with pytest.raises(FormatError):
        load_graph_bytes(data, "g.txt")
    path = tmp_path / "g_Build.txt"
    path.write_bytes(data)
    run = tool("graph2json", str(path), cwd=tmp_path, code=2)
    assert len(run.text) < 1000


@pytest.mark.parametrize("shape", [(0, 1 << 62, 1 << 62), (1 << 63,), (1 << 40, 1 << 40, 0), (1 << 62, 0)])
def test_shapes_beyond_64_bits(tmp_path: Path, shape: tuple[int, ...]) -> None:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    with pytest.raises(FormatError, match=r"no array can have the shape|needs"):
        read_npy(str(tmp_path / "a.npy"))
    tool("pt", "a.npy", cwd=tmp_path, code=2)
    tool("cp", "a.npy", "a.npy", cwd=tmp_path, code=2)
    text = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value\n"
    text += f"Output,0,16,DT_FLOAT,ND,{'x'.join(map(str, shape))},1\n"
    (tmp_path / "s.csv").write_text(text)
    assert read_statistics(str(tmp_path / "s.csv")).bad_slots


@pytest.mark.parametrize("column", ["Shape", "Index", "Data Size", "Count", "NaN Count"])
def test_whole_numbers_of_thousands_of_digits_in_statistics(tmp_path: Path, column: str) -> None:
    header = ["Input/Output", "Index", "Data Size", "Data Type", "Format", "Shape", "Count", "NaN Count"]
    cells = ["Output", "0", "16", "DT_FLOAT", "ND", "2x2", "4", "0"]
    cells[header.index(column)] = "7" * 5000
    (tmp_path / "s.csv").write_text(",".join(header) + "\n" + ",".join(cells) + "\n")
    ((_, reason),) = read_statistics(str(tmp_path / "s.csv")).bad_slots
    assert re.search(r"no whole number of 64 bits|is no number", reason.reason)
    assert len(render(reason)) < 200


def test_infinity_in_a_count_of_a_result(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", chain())
    tool("vc", cwd=tmp_path)
    path = only_result(tmp_path / "precision_data" / "temp")
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    counts = [at for at, name in enumerate(header) if name.endswith(("NaN", "PosInf", "NegInf", "Zeros"))]
    assert counts
    for value in ("inf", "-inf", "nan", "1e999"):
        for row in rows:
            for at in counts:
                row[at] = value if row[at].isdecimal() else row[at]
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
        assert tool("vcs", "-f", str(path), "--json", cwd=tmp_path, code=None).code in (0, 2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((np.nan, np.nan), "all 2 elements are NaN on both sides"),
        ((np.inf, np.inf), "all 2 elements are Inf on both sides"),
        ((np.nan, -np.inf), "all 2 elements are NaN or Inf on both sides"),
        ((np.nan,), "This tensor is scalar. all 1 elements are NaN on both sides"),
        ((np.nan, 1.0), ""),
        ((0.0, 0.0), ""),
    ],
)
def test_a_tensor_without_a_number_on_both_sides_is_remarked(
    tmp_path: Path, values: tuple[float, ...], said: str
) -> None:
    """Its cosine of 1 looks as if all were well."""
    x = np.array(values, np.float32)
    source = Node(name="IteratorV2", type="IteratorV2")
    op = Node(name="op", type="Add", inputs=(source,), output=x, golden=x.copy(), originals=("op",))
    tree = small_tree(tmp_path / "precision_data", [source, op])
    (result,) = precision_tool.compare(tree.root / "npu/debug_0/dump", tree.root / "tf/dump", workers=1)
    (row,) = [row for row in result.rows if row.pair.slot == "output:0"]
    assert row.metrics is not None
    assert render(row.reason).startswith(said) if said else row.reason is None


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """One side scales its loss by 1024."""
    source = Node(name="IteratorV2", type="IteratorV2")
    one = Node(name="scale", type="Mul", inputs=(source,), output=values(1024), golden=values(1))
    same = Node(name="same", type="Mul", inputs=(one,), output=values(0.5), golden=values(0.5))
    small_tree(tmp_path / "precision_data", [source, one, same])
    tool("vc", cwd=tmp_path)
    return tmp_path


def test_single_numbers_show_their_values_and_no_cosine(scale: Path) -> None:
    """A single number has no direction: its cosine is 1 whatever it is."""
    for words in (["ac"], ["vcs"], ["ni", "scale"], ["ls"]):
        text = tool(*words, cwd=scale).text
        assert "1024 / 1" in text, words
        assert "1.000000" not in text, words
    assert "0.5 / 0.5" in tool("ls", cwd=scale).text
    rows = {row["name"]: row for one in json.loads(tool("ls", "--json", cwd=scale).out)["graphs"] for row in one["ops"]}
    assert rows["scale"]["values"] == [1024.0, 1.0]
    assert rows["IteratorV2"]["values"] is None


def test_the_star_of_a_result_is_explained(tmp_path: Path) -> None:
    source = Node(name="IteratorV2", type="IteratorV2")
    op = Node(name="op", type="Add", inputs=(source,), output=values(3, 4), golden=values(4, 3), originals=("op",))
    cast = Node(name="trans_Cast_0", type="Cast", inputs=(op,), output=values(3, 4), originals=())
    small_tree(tmp_path / "precision_data", [source, op, cast])
    assert "Right: none (op inserted by the compiler)" in tool("vc", "-l", "0", cwd=tmp_path).text
