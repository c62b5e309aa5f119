"""The JSON that atc --mode=5 makes, rule by rule; the whole of it is compared with the vendor's in tests/parity."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from command_line import tool

from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.io.ge_graph_partial import lines_of
from precision_tool.lib.messages.errors import FormatError


def exported(tmp_path: Path, text: str) -> Any:
    """The JSON of a graph, which is the same of the text as it stands and as GE writes it, line by line."""
    wanted = "".join(export_graph(str(written(tmp_path, text)))[0])
    assert "".join(export_graph(str(written(tmp_path, in_lines(text))))[0]) == wanted
    return json.loads(wanted)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "graph.txt"
    path.write_bytes(text.encode("latin-1"))
    return path


def in_lines(text: str) -> str:
    """A text as GE writes it, which is read op by op."""
    lines, depth = [], 0
    for token in re.findall(r'\w+: (?:"(?:\\.|[^"\\])*"|[^\s"]+)|\w+ \{|\}', text):
        depth -= token == "}"
        lines.append("  " * depth + token + "\n")
        depth += token.endswith("{")
    data = "".join(lines)
    assert lines_of(data.encode("latin-1")) is not None
    return data


def attr(tmp_path: Path, value: str) -> Any:
    """The JSON of an attribute's entry, which is the same in a graph and in each op."""
    entry = f'attr {{ key: "k" value {{ {value} }} }}'
    (graph,) = exported(tmp_path, f'graph {{ name: "g" {entry} op {{ {entry} }} op {{ {entry} }} }}')["graph"]
    (attrs,) = graph["attr"]
    assert graph["op"] == [{"attr": [attrs]}] * 2
    assert attrs.pop("key") == "k"
    return attrs


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("i: 0", {"i": 0}),
        ("b: false", {"b": False}),
        ('s: ""', {"s": ""}),
        ('s: "a\\"b\\n\\001\\303\\251"', {"s": '\\"'.join("ab") + "\\n\\001\\303\\251"}),
        ("f: 0.5", {"f": "0.5"}),
        ("f: 1e-5", {"f": "1e-05"}),
        # "1.23457e+08" does not fit the vendor's nine characters
        ("f: 123456789", {"f": 123456792.0}),
        ("f: -0.1", {"f": "-0.1"}),
        ("list { f: 0.1 f: 2 val_type: VT_LIST_FLOAT }", {"list": {"f": [0.10000000149011612, 2.0],
                                                                   "val_type": "VT_LIST_FLOAT"}}),
        ('list { s: "a\\"b" s: "\\377x" }', {"list": {"s": ['a"b', "x"]}}),
        ("list { val_type: 2 }", {"list": {"val_type": "VT_LIST_INT"}}),
        ("list { val_type: VT_LIST_NONE }", None),
        ("list_list_int { list_list_i { list_i: 1 list_i: 2 } list_list_i { } }",
         {"list_list_int": {"list_list_i": [{"list_i": [1, 2]}, None]}}),
        ("list_list_int { }", None),
        ('bt: "\\177ELF"', None),
        ('t { desc { name: "d" } data: "abc" }', {"t": {"desc": {"name": "d"}}}),
        ('g { name: "s" op { name: "x" id: 3 } op { name: "y" id: 4 } }',
         {"g": {"name": "s", "op": [{"name": "x", "id": 3}, {"name": "y", "id": 4}]}}),
        ("newer_kind: 5", {"newer_kind": 5}),
        ('newer_block { name: "x" name: "y" }', {"newer_block": {"name": ["x", "y"]}}),
    ],
)  # fmt: skip
def test_values(tmp_path: Path, value: str, wanted: Any) -> None:
    assert attr(tmp_path, value) == {"value": wanted}


def test_an_empty_value_is_absent(tmp_path: Path) -> None:
    assert attr(tmp_path, "") == {}


def test_zeros_and_what_is_left_out(tmp_path: Path) -> None:
    """Protobuf does not tell a zero from an absent field, except in an attribute's value."""
    root = exported(
        tmp_path,
        'graph { name: "g" output: "o" op { name: "a" type: "" id: 0 stream_id: 3 has_out_attr: false workspace: 8 '
        'output_i: 0 output_desc { dtype: DT_UNDEFINED shape { } layout: "ND" size: 64 data_offset: 7 '
        "real_dim_cnt: 2 } input_desc { dtype: 27 shape { dim: 0 } } input_desc { } } }",
    )
    assert root == {
        "graph": [
            {
                "name": "g",
                "op": [
                    {
                        "name": "a",
                        "stream_id": 3,
                        "output_i": [0],
                        "output_desc": [{"layout": "ND", "real_dim_cnt": 2}],
                        "input_desc": [{"dtype": "DT_BF16", "shape": {"dim": [0]}}, None],
                    }
                ],
            }
        ]
    }


def test_the_layout_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text('name: "m"\ngraph { name: "卷积" }\n', encoding="utf-8")
    assert (
        "".join(export_graph(str(path))[0])
        == '{\n  "graph": [\n    {\n      "name": "卷积"\n    }\n  ],\n  "name": "m"\n}'
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"graph": []}', "JSON already"),
        ('node { name: "a" }', "no GE graph"),
        ("graph { op { id: five } }", "'five' where a number"),
        ("graph { op: 5 }", "a value where a block"),
        ("graph {", "cut off"),
    ],
)
def test_refusals(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(FormatError) as caught:
        "".join(export_graph(str(path))[0])
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_ops_that_are_written_alike(tmp_path: Path) -> None:
    """What differs between them is read of each: scalars, zeros, escapes, fields of a newer release in any order."""
    blocks = [
        'name: "a" id: 1 zz_new { y: 1 x: "p" } aa_new: "n" output_desc { dtype: DT_FLOAT shape { dim: 8 } }',
        'name: "b\\"\\303\\251" id: 20 zz_new { y: 2 x: "q: 7" } aa_new: "m" output_desc { dtype: 1 shape { dim: 9 } }',
        'name: "c" id: 0 zz_new { y: 0 x: "" } aa_new: "" output_desc { dtype: DT_FLOAT shape { dim: 0 } }',
    ]
    ops = [f"op {{ {block} }}" for block in blocks]
    root = exported(tmp_path, f'graph {{ name: "g" {" ".join(ops)} }}')
    new = [{"y": 1, "x": "p"}, {"y": 2, "x": "q: 7"}, {"y": 0, "x": ""}]
    names = ["a", 'b"\u00e9', "c"]
    assert root["graph"][0]["op"] == [
        {"name": name, "zz_new": block, "aa_new": text,
         "output_desc": [{"dtype": "DT_FLOAT", "shape": {"dim": [dim]}}], **({"id": number} if number else {})}
        for name, block, text, dim, number in zip(names, new, ("n", "m", ""), (8, 9, 0), (1, 20, 0), strict=True)
    ]  # fmt: skip


def test_an_op_as_long_as_its_kernel(tmp_path: Path) -> None:
    """It is not like any other."""
    text = "x\\377" * 5000
    root = exported(tmp_path, f'graph {{ name: "g" op {{ name: "a" attr {{ key: "k" value {{ s: "{text}" }} }} }} }}')
    assert root["graph"][0]["op"] == [{"name": "a", "attr": [{"key": "k", "value": {"s": text}}]}]


def graph_of(tmp_path: Path, count: int, last: str = "") -> Path:
    ops = (f'op {{ name: "op{number}" id: {number} input: "op{number // 2}:0" }}' for number in range(count))
    return written(tmp_path, in_lines(f'graph {{ name: "g" {" ".join(ops)} {last} }}'))


def test_a_large_graph_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    peaks, sizes = [], []
    for count in (100, 2000):
        pieces, _ = export_graph(str(graph_of(tmp_path, count)))
        tracemalloc.start()
        sizes.append(sum(map(len, pieces)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert sizes[1] > 15 * sizes[0]
    assert peaks[1] < 1.5 * peaks[0]


def test_an_error_behind_what_is_written(tmp_path: Path) -> None:
    """The ops before it come first; a command leaves nothing of them."""
    path = graph_of(tmp_path, 50, "op { id: five }")
    made: list[str] = []
    with pytest.raises(FormatError) as caught:
        made.extend(export_graph(str(path))[0])
    assert str(path) in caught.value.message
    assert "op49" in "".join(made)
    assert (
        "'five' where a number" in tool("graph2json", path, tmp_path / "out" / "graph.json", cwd=tmp_path, code=2).text
    )
    assert list((tmp_path / "out").iterdir()) == []
