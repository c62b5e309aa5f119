"""The JSON that atc --mode=5 makes, rule by rule; the whole of it is compared with the vendor's in tests/parity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precision_tool.lib.io.ge_graph_export import export_graph, json_text
from precision_tool.lib.messages.errors import FormatError


def exported(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "graph.txt"
    path.write_bytes(text.encode("latin-1"))
    return json.loads(json_text(export_graph(str(path))[0]))


def attr(tmp_path: Path, value: str) -> Any:
    """The JSON of an attribute's entry."""
    root = exported(tmp_path, f'graph {{ name: "g" attr {{ key: "k" value {{ {value} }} }} }}')
    (entry,) = root["graph"][0]["attr"]
    assert entry.pop("key") == "k"
    return entry


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
        json_text(export_graph(str(path))[0])
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
        export_graph(str(path))
    assert said in caught.value.message
    assert str(path) in caught.value.message
