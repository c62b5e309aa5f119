"""Offline models: the same graph as from the text they were made of, or which part cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from om_files import compressed, model_def, om_bytes
from small_tree import faulty_chain, small_tree

from precision_tool.lib.data.graph_choice import is_named_by
from precision_tool.lib.data.origins import groups_of, in_order
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io import om_file, wire
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.io.ge_graph_partial import skim_graph_file
from precision_tool.lib.io.om_file import name_in_model, read_om_header
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError


@pytest.fixture(scope="module")
def text_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with fused ops, kernels and all kinds of attributes."""
    return generate_demo(tmp_path_factory.mktemp("demo") / "data", seed=1).graph_path


def write_om(path: Path, *texts: str, is_wide: bool = True) -> Path:
    path.write_bytes(om_bytes(*(model_def(text).SerializeToString() for text in texts), is_wide=is_wide))
    return path


@pytest.mark.parametrize("is_wide", [True, False], ids=["64-bit table", "32-bit table"])
def test_it_gives_the_graph_of_the_text(tmp_path: Path, text_graph: Path, is_wide: bool) -> None:
    path = write_om(tmp_path / "net.om", text_graph.read_text("utf-8"), is_wide=is_wide)
    text, om = load_graph_file(text_graph), load_graph_file(path)
    assert [graph.name for graph in om.graphs] == [graph.name for graph in text.graphs]
    for one, other in zip(om.ops, text.ops, strict=True):
        for name in ("name", "type", "id", "inputs", "input_descs", "output_descs", "pass_names", "original_names",
                     "stream_id", "kernel_name", "kernel_lib", "is_multiop"):  # fmt: skip
            assert getattr(one, name) == getattr(other, name), (other.name, name)
        assert dict(one.attrs) == dict(other.attrs)
    assert skim_graph_file(path).graph_names == skim_graph_file(text_graph).graph_names


def test_it_gives_the_json_of_the_text(tmp_path: Path, text_graph: Path) -> None:
    path = write_om(tmp_path / "net.om", text_graph.read_text("utf-8"))
    assert sorted_attrs(exported(path)) == sorted_attrs(exported(text_graph))


def exported(path: Path) -> Any:
    """The JSON of a graph file."""
    return json.loads("".join(export_graph(str(path))[0]))


def sorted_attrs(value: Any) -> Any:
    """A map has no order."""
    if isinstance(value, dict):
        return {key: sorted_attrs(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [sorted_attrs(item) for item in value]
        is_map = bool(items) and all(isinstance(item, dict) and "key" in item for item in items)
        return sorted(items, key=lambda item: str(item["key"])) if is_map else items
    return value


def test_several_models(tmp_path: Path) -> None:
    texts = [small_tree(tmp_path / name, faulty_chain()).graph.read_text("ascii") for name in ("a", "b")]
    texts[1] = texts[1].replace("ge_default", "second")
    path = write_om(tmp_path / "net.om", *texts)
    file = load_graph_file(path)
    assert [graph.name.split("_")[0] for graph in file.graphs] == ["ge", "second"]
    assert file.notes[0] == Message("note.io.om_models", count=2)


def test_several_models_whose_graph_names_repeat(tmp_path: Path) -> None:
    """Also of subgraphs: each call stays within its own model."""
    text = small_tree(tmp_path / "a", faulty_chain()).graph.read_text("ascii")
    name = text.split('"')[1]
    whole = f'{text}graph {{\n  name: "body"\n  op {{\n    name: "inner"\n    type: "Relu"\n  }}\n}}\n'
    whole = whole.replace("  op {\n", '  op {\n    subgraph_name: "body"\n', 1)
    path = write_om(tmp_path / "net.om", whole, whole, text)
    file = load_graph_file(path)
    assert [graph.name for graph in file.graphs] == [
        name, "body", f"{name} (model 2)", "body (model 2)", f"{name} (model 3)"
    ]  # fmt: skip
    calls = [[called for op in graph.ops for called in op.subgraph_names] for graph in file.graphs]
    assert calls == [["body"], [], ["body (model 2)"], [], []]
    assert len(in_order(file)) == len(file.ops)
    assert sorted(index for group in groups_of(file) for index in map(id, group.ops)) == sorted(map(id, file.ops))
    # A dump's own model is found by the name that the model has by itself.
    assert name_in_model(file.graphs[2].name) == name
    assert is_named_by([file.graphs[2].name], name)
    assert skim_graph_file(path).graph_names == tuple(graph.name for graph in file.graphs)


def test_the_json_is_of_the_first_model(tmp_path: Path) -> None:
    """As atc writes it; and that is said."""
    texts = [small_tree(tmp_path / name, faulty_chain()).graph.read_text("ascii") for name in ("a", "b")]
    path = write_om(tmp_path / "net.om", texts[0], texts[1].replace("ge_default", "second"))
    alone = write_om(tmp_path / "alone.om", texts[0])
    pieces, notes = export_graph(str(path))
    assert "".join(pieces) == "".join(export_graph(str(alone))[0])
    assert notes() == (Message("note.io.om_first", count=2),)
    assert export_graph(str(alone))[1]() == ()


@pytest.mark.parametrize("count", [3, 200])
def test_compressed_attributes(tmp_path: Path, text_graph: Path, count: int) -> None:
    """om_compress_version 1: names and texts are numbers of two lists of the model, to base 127 in the names."""
    text = text_graph.read_text("utf-8")
    more = "".join(f'    attr {{ key: "filling_{number}" value {{ i: {number} }} }}\n' for number in range(count))
    text = text.replace("  op {\n", "  op {\n" + more, 1)
    plain = write_om(tmp_path / "plain.om", text)
    path = tmp_path / "net.om"
    path.write_bytes(om_bytes(compressed(model_def(text)).SerializeToString()))
    assert b"pass_name" in path.read_bytes()
    assert path.read_bytes().count(b"_datadump_original_op_names") == 1  # in the list only
    file, wanted = load_graph_file(path), load_graph_file(plain)
    assert any(op.pass_names for op in file.ops)
    for one, other in zip(file.ops, wanted.ops, strict=True):
        assert one == other
        assert {key: one.attrs[key] for key in one.attrs} == {key: other.attrs[key] for key in other.attrs}
    assert sorted_attrs(exported(path)) == sorted_attrs(exported(plain))
    assert file.notes == ()


def test_compressed_attributes_that_cannot_be_restored(tmp_path: Path) -> None:
    """Numbers beyond the lists, and a version that nobody knows: the rest is read, and that is said."""
    text = small_tree(tmp_path / "a", faulty_chain()).graph.read_text("ascii")
    model = compressed(model_def(text))
    lists = {entry.key: entry.value for entry in model.attr}
    lost = len(lists["attr_value_enum"].list.s)
    del lists["attr_value_enum"].list.s[:]
    path = tmp_path / "net.om"
    path.write_bytes(om_bytes(model.SerializeToString()))
    file = load_graph_file(path)
    (note,) = file.notes
    assert (note.number, note.what.kind) == (1, "note.io.om_attributes")
    assert note.what.count >= lost > 0
    lists["om_compress_version"].i = 2
    path.write_bytes(om_bytes(model.SerializeToString()))
    (note,) = load_graph_file(path).notes
    assert note.what == Message("note.io.om_version", version=2)


def test_an_attribute_of_bytes_alone(tmp_path: Path) -> None:
    """Its value is null in the JSON: bytes are left out, the attribute is not."""
    text = 'graph { name: "g" op { name: "a" type: "A" attr { key: "k" value { bt: "\\177ELF" } } } }'
    path = write_om(tmp_path / "net.om", text)
    assert exported(path)["graph"][0]["op"][0]["attr"] == [{"key": "k", "value": None}]


def test_the_header(tmp_path: Path, text_graph: Path) -> None:
    header = read_om_header(str(write_om(tmp_path / "net.om", text_graph.read_text("utf-8"))))
    assert (header.name, header.platform) == ("net", "1.83.T2")
    assert [[part.name for part in parts] for parts in header.models] == [["model definition", "weights"]]


def damaged(case: str, whole: bytes) -> bytes:
    if case == "table":
        return whole[:256] + b"\xff" * 8 + whole[264:]
    if case == "definition":
        return whole[:312] + b"\xff" * 64 + whole[376:]
    if case == "no definition":
        return whole[:264] + b"\x05" + whole[265:]
    return {"header": whole[:100], "cut": whole[:-10], "encrypted": whole[:80] + b"\x01" + whole[81:]}[case]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("header", "the header of this offline model is cut off"),
        ("cut", "the offline model is cut off"),
        ("encrypted", "'net' is encrypted, so only its header"),
        ("table", "the table of parts at byte 256 cannot be read"),
        ("definition", "in the model definition (bytes 312 to"),
        ("no definition", "no model definition in this offline model, only shared objects, weights"),
    ],
)
def test_the_error_says_which_part(tmp_path: Path, case: str, said: str) -> None:
    tree = small_tree(tmp_path / "data", faulty_chain())
    whole = write_om(tmp_path / "whole.om", tree.graph.read_text("ascii")).read_bytes()
    path = tmp_path / "net.om"
    path.write_bytes(damaged(case, whole))
    for read in (load_graph_file, skim_graph_file):
        with pytest.raises(FormatError) as caught:
            read(path)
        assert said in caught.value.message
        assert str(path) in caught.value.message


def test_weights_are_not_read(tmp_path: Path) -> None:
    """A file whose weights claim a terabyte, which a sparse file has."""
    tree = small_tree(tmp_path / "data", faulty_chain())
    definition = model_def(tree.graph.read_text("ascii")).SerializeToString()
    path = tmp_path / "net.om"
    whole = bytearray(om_bytes(definition, weights=b""))
    size = 1 << 40
    whole[256 + 8 + 24 + 16 : 256 + 8 + 24 + 24] = size.to_bytes(8, "little")
    whole[184:192] = (len(whole) - 256 + size).to_bytes(8, "little")
    path.write_bytes(whole)
    with path.open("r+b") as file:
        file.truncate(len(whole) + size)
    assert len(load_graph_file(path).ops) == 5


_DIMS = b"\x8a\x02\x05\x1a\x03\x0a\x01\x01"


@pytest.mark.parametrize(
    ("piece", "limit", "value"),
    [
        (b"\x32\x00", "MAX_GRAPH_OPS", 100),
        (b"\x32\x08" + _DIMS, "MAX_GRAPH_FIELDS", 100),
        (b"\x32\x28" + 5 * _DIMS, "_MOST_FIELDS", 14),
    ],
    ids=["ops", "dims", "an op"],
)
def test_a_model_out_of_proportion_is_refused_with_what_it_needs(
    tmp_path: Path, piece: bytes, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = piece * 400
    length = len(graph)
    path = tmp_path / "net.om"
    path.write_bytes(om_bytes(b"\x3a" + bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14)) + graph))
    assert len(load_graph_file(path).ops) == 400
    monkeypatch.setattr(wire if limit == "MAX_GRAPH_OPS" else om_file, limit, value)
    with pytest.raises(FormatError) as caught:
        load_graph_file(path)
    assert caught.value.kind == "io.om.part"
    reason: Any = caught.value.fields["reason"]
    assert reason.kind == "error.io.out_of_proportion.text"
    assert reason.fields["needed"] > reason.fields["limit"] > 0
    assert reason.fields["seconds"] > reason.fields["most_seconds"]


def test_what_is_no_offline_model(tmp_path: Path) -> None:
    """Whatever its name says: no word of it being encrypted or cut off."""
    for number, data in enumerate((b"", b"IM", b"\xff" * 5000)):
        path = tmp_path / f"{number}.om"
        path.write_bytes(data)
        with pytest.raises(FormatError, match="not an offline model"):
            read_om_header(str(path))
