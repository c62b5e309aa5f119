"""Graphs by their lines and from cache files: the same as by a full parse, whatever lies in the cache folder."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import textwrap
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from builders import graph_op, text_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precision_tool.lib.data import graph_cache
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.graph_catalog import RunGraph, find_ops
from precision_tool.lib.data.neighbourhood import Wiring, connections
from precision_tool.lib.data.origins import Groups
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io import cache as cache_files
from precision_tool.lib.io import ge_graph_partial as ge_graph_lines
from precision_tool.lib.io import proto_text
from precision_tool.lib.io.cache import CacheFiles, OddCacheError
from precision_tool.lib.io.files import open_file, signature_of
from precision_tool.lib.io.ge_graph import load_graph_bytes, load_graph_file
from precision_tool.lib.io.ge_graph_partial import load_graph_lines, skim_graph_file, skim_ops
from precision_tool.lib.io.stores import Signature, StoredFile
from precision_tool.lib.io.writing import PART, TEMPORARY
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.model.graph import GraphFile, LazyOps, Op


def block(name: str, *lines: str) -> str:
    """A block of a text graph; what is in it is indented."""
    return "\n".join([f"{name} {{", *(textwrap.indent(line, "  ") for line in lines), "}"])


def attr(key: str, *value: str) -> str:
    """An attribute; several lines are a list."""
    return block("attr", f'key: "{key}"', block("value", *([block("list", *value)] if len(value) > 1 else value)))


STRINGS = "val_type: VT_LIST_STRING"
#: All that a graph may hold, as GE writes it: unconnected and control inputs, no originals and none said, subgraphs,
#: escapes, bytes that are not UTF-8, repeated attributes, fields that are not known.
MAIN = block(
    "graph",
    'name: "main"',
    block(
        "op",
        'name: "x"',
        'type: "Data"',
        attr("_parent_node_index", "i: 1"),
        attr("other", r'bt: "\177ELF } {\n \"op {\" \\"'),
        block(
            "output_desc",
            'name: "y"',
            "dtype: DT_FLOAT16",
            block("shape", "dim: 2", "dim: -1"),
            'layout: "NC1HWC0"',
            attr("origin_shape", "i: 2", "i: 3", "val_type: VT_LIST_INT"),
            attr("origin_format", 's: "NHWC"'),
            attr("_datadump_origin_name", 's: "first/x"'),
            attr("_datadump_origin_output_index", "i: 3"),
        ),
    ),
    block(
        "op",
        r'name: "fused\303\266\377"',
        'type: "Conv2D"',
        'input: "x:0"',
        'input: ""',
        'input: "x:-1"',
        attr("_datadump_original_op_names", 's: "a/b"', r's: "c\"d"', STRINGS),
        attr("pass_name", 's: "FirstPass"'),
        attr("pass_name", 's: "SecondPass"', 's: "ThirdPass"'),
        attr("_L1_fusion_sub_graph_no", 's: "7"'),
        attr("_datadump_is_multiop", "b: true"),
        attr("fused_kernelname", 's: "no_kernel_of_this_op"'),
        attr("_kernelname", 's: "te_conv2d"'),
        attr("_ge_attr_op_kernel_lib_name", 's: "AIcoreEngine"'),
        "id: 5",
        "stream_id: 4",
        'subgraph_name: "below"',
        block("input_desc"),
        block("input_desc", "dtype: DT_FLOAT"),
        block("newer", """name: "not the op's\""""),
        block("output_desc"),
    ),
    attr("_session_graph_id", 's: "0_1"'),
    block("newer", block("op", 'name: "no op of the graph"')),
)
CAST = block(
    "op",
    'name: "cast"',
    'type: "Cast"',
    block("attr", 'key: "_datadump_original_op_names"', block("value", block("list", STRINGS))),
)
TEXT = "\n".join([MAIN, block("graph", 'name: "below"', CAST), block("graph", 'name: "empty"'), ""])


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph files are cached whatever their size, and however new."""
    monkeypatch.setattr(graph_cache, "LARGE", 1)
    monkeypatch.setattr(cache_files, "LARGE", 1)
    monkeypatch.setattr(cache_files, "may_change_unseen", lambda *times: False)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "ge_proto_00000001_graph_1_Build.txt"
    path.write_bytes(TEXT.encode("latin-1"))
    return path


def store(tmp_path: Path) -> GraphStore:
    return GraphStore(CacheFiles(lambda: [tmp_path / "cache"]))


def cache_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache").iterdir()
    return path


VERSION = graph_cache._VERSION


def signature_in(data: bytes) -> Signature:
    """The signature of the graph file that a cache file is of."""
    size, modified, changed, inode, device = struct.unpack_from("<5q", data, 12)
    return size, modified, changed, inode, device


def refuse(*_: object) -> GraphFile:
    raise AssertionError("the graph file was read")


def cached(tmp_path: Path, graph: Path) -> tuple[GraphFile, GraphFile]:
    """A graph file as it is read whole, and as its cache file has it."""
    store(tmp_path).load(str(graph))
    return load_graph_file(graph), store(tmp_path).load(str(graph))


def test_fields_of_all_ops_are_those_of_each(tmp_path: Path, graph: Path) -> None:
    read, lazy = cached(tmp_path, graph)
    assert isinstance(lazy.ops, LazyOps)
    for field in fields(Op):
        if field.compare:
            assert list(lazy.column(field.name)) == [getattr(op, field.name) for op in read.ops], field.name
            for of_file, of_cache in zip(read.graphs, lazy.graphs, strict=True):
                assert list(of_cache.column(field.name)) == list(of_file.column(field.name))
    assert list(lazy.column("is_recorded")) == [False] * len(read.ops)


def test_an_op_is_one_object_wherever_it_is_asked_for(tmp_path: Path, graph: Path) -> None:
    _, lazy = cached(tmp_path, graph)
    number = next(at for at, name in enumerate(lazy.column("name")) if name == "cast")
    op = lazy.graphs[1].by_name["cast"]
    assert op is lazy.ops[number] is list(lazy.ops)[number] is lazy.ops[number - len(lazy.ops)]
    assert lazy.op("cast") is op
    assert (lazy.number_of(op), lazy.graph_of(op)) == (number, lazy.graphs[1])
    assert lazy.ops[number : number + 1] == (op,)
    with pytest.raises(KeyError):
        lazy.number_of(replace(op))
    with pytest.raises(IndexError):
        lazy.ops[len(lazy.ops)]


@pytest.mark.parametrize("chosen", [(1,), (2,), (1, 0), (2, 1, 0), (0, 1), (1, 1), ()])
def test_a_file_of_some_of_the_graphs_has_their_ops(tmp_path: Path, graph: Path, chosen: tuple[int, ...]) -> None:
    """In any order, as that of one of several models is made."""
    read, lazy = cached(tmp_path, graph)
    part, expected = (replace(file, graphs=tuple(file.graphs[at] for at in chosen)) for file in (lazy, read))
    names = [op.name for op in expected.ops]
    assert [op.name for op in part.ops] == list(part.column("name")) == names
    if len(set(chosen)) == len(chosen):
        assert [part.number_of(op) for op in part.ops] == list(range(len(names)))
        assert [part.graph_of(op).name for op in part.ops] == [expected.graph_of(op).name for op in expected.ops]
        assert [part.once(Groups).index_of(op) for op in part.ops] == list(part.once(Groups).indices)
    assert [part.glance(at).name for at in range(len(names))] == names
    others = [op for op in lazy.ops if op.name not in names]
    for op in others:
        with pytest.raises(KeyError):
            part.number_of(op)


def test_a_column_of_some_ops_is_theirs(tmp_path: Path, graph: Path) -> None:
    _, lazy = cached(tmp_path, graph)
    names = lazy.column("name")
    for key in (slice(1, 2), slice(None, None, -1), slice(None, None, 2), slice(5, 1)):
        part = lazy.ops[key]
        assert isinstance(part, LazyOps)
        assert list(part.column("name")) == [op.name for op in part] == list(names)[key]


def test_what_is_sent_to_another_process_is_equal(tmp_path: Path, graph: Path) -> None:
    read, lazy = cached(tmp_path, graph)
    assert lazy.once(len_of) == len(read.ops)
    assert pickle.loads(pickle.dumps(lazy)) == lazy == read


def len_of(file: GraphFile) -> int:
    return len(file.ops)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"text"', '{"a": "b"}', '{"a": {"s": "b"}}', '{"a": {"s": [1]}}', '{"a": ' * 9999,
     '{"a": {"s": []}}', '{"a": {"td": [{"dtype": []}]}}', '{"a": {"s": ["\u4e2d"]}}', '{"a": {"s": ["\\ud800"]}}'],
)  # fmt: skip
def test_attributes_that_nobody_wrote_are_odd(text: str) -> None:
    with pytest.raises(OddCacheError):
        graph_cache._graph_attrs(text)


def test_a_note_that_nobody_wrote_is_odd() -> None:
    for text in ("[" * 99999, "{}", "3", '{"kind": 3}'):
        with pytest.raises(OddCacheError):
            graph_cache._note(text)


def test_of_a_large_graph_only_the_ops_that_are_asked_for_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that feed an op or read it, in a chain."""
    path = tmp_path / "ge_proto_00000001_graph_1_Build.txt"
    ops = [graph_op(f"op{at}", inputs=[f"op{at - 1}:0"] if at else ()) for at in range(300)]
    path.write_text(text_graph(ops, "main"))
    _, lazy = cached(tmp_path, path)
    made: list[int] = []
    make = graph_cache._CachedOps.make

    def counted(table: graph_cache._CachedOps, number: int) -> Op:
        made.append(number)
        return make(table, number)

    monkeypatch.setattr(graph_cache._CachedOps, "make", counted)
    (op,) = [hit.op for hit in find_ops([RunGraph(file=lazy, reason=None, number=0, leaf=None)], "op150")]
    links = connections(lazy.once(Wiring), "main", op)
    assert [step.end.name for step in links.inputs[0].sources] == ["op149"]
    assert [step.end.name for step in links.outputs[0].readers] == ["op151"]
    assert lazy.once(Groups).index_of(op) == 150
    assert sorted(made) == [149, 150, 151]


def same(file: GraphFile, other: GraphFile) -> bool:
    """Equal, attributes too, which the model leaves out of comparisons."""
    return (
        file == other
        and all(dict(op.attrs) == dict(twin.attrs) for op, twin in zip(file.ops, other.ops, strict=True))
        and all(dict(one.attrs) == dict(twin.attrs) for one, twin in zip(file.graphs, other.graphs, strict=True))
    )


# --- by lines ---------------------------------------------------------------------------------------------------------


def by_lines(path: Path) -> GraphFile | None:
    signature = signature_of(str(path))
    assert signature is not None
    return load_graph_lines(path.read_bytes(), str(path), signature)


def test_lines_give_what_a_full_parse_gives(graph: Path) -> None:
    found = by_lines(graph)
    assert found is not None
    assert same(found, load_graph_file(graph))
    fused = found.ops[1]
    assert fused.pass_names == ("SecondPass", "ThirdPass")  # the last of two attributes with one key
    assert fused.original_names == ("a/b", 'c"d')
    assert (fused.inputs[1], fused.control_inputs) == (None, ("x",))
    assert fused.kernel_name == "te_conv2d"
    assert [len(one.ops) for one in found.graphs] == [2, 1, 0]


@pytest.mark.parametrize("other", ["PreRunBegin", "Build"])
def test_lines_of_the_demo(tmp_path: Path, other: str) -> None:
    generate_demo(tmp_path / "data", ops=40)
    paths = [path for path in (tmp_path / "data").rglob("ge_proto_*.txt") if path.stem.endswith(other)]
    assert paths
    for path in paths:
        found = by_lines(path)
        assert found is not None
        assert same(found, load_graph_file(path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('    attr {\n      key: "pass_name"\n', '    attr {\n      key: "pass\\137name"\n'),
        ('      key: "other"\n', ""),
        ("    id: 5\n", "    id: 5 stream_id: 2\n"),
        ('  name: "main"\n', '  name: "ma"\n    "in"\n'),
        ("graph {\n", "graph { # GE\n"),
    ],
    ids=["an escaped key", "no key", "two fields in a line", "a string in two lines", "a comment"],
)
def test_what_is_written_otherwise_is_left_to_the_full_parse_or_read_alike(graph: Path, old: str, new: str) -> None:
    graph.write_bytes(TEXT.replace(old, new, 1).encode("latin-1"))
    expected = load_graph_file(graph)
    found = by_lines(graph)
    assert found is None or same(found, expected)


@pytest.mark.parametrize("cut", [10, 500, 900, 1500, 2200, len(TEXT) - 2])
def test_a_cut_off_text_is_the_same_error_as_of_the_full_load(graph: Path, tmp_path: Path, cut: int) -> None:
    graph.write_bytes(TEXT.encode("latin-1")[:cut])
    with pytest.raises(FormatError) as expected:
        load_graph_file(graph)
    with pytest.raises(FormatError) as found:
        store(tmp_path).load(str(graph))
    assert found.value.message == expected.value.message


EDITS = ("", "  ", '"', "\\", "{", "}", "\n", "'", ' "x"', "[", ":", " # x", "op {", "attr {", "key", "-1", "}\n  }")


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), st.sampled_from(EDITS)), min_size=1, max_size=3))
def test_edited_texts_are_read_alike_or_left_to_the_full_parse(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[float, int, str]]
) -> None:
    text = TEXT
    for place, removed, extra in edits:
        at = int(place * len(text))
        text = text[:at] + extra + text[at + removed :]
    path = tmp_path_factory.getbasetemp() / "edited.txt"
    path.write_bytes(text.encode("latin-1"))
    found = by_lines(path)
    assert found is None or found == load_graph_file(path)


def test_a_text_that_begins_with_an_end_of_a_block(graph: Path) -> None:
    graph.write_bytes(("}\n" + TEXT).encode("latin-1"))
    assert by_lines(graph) is None
    for read in (load_graph_file, skim_graph_file):
        with pytest.raises(FormatError, match="closes nothing"):
            read(graph)


def test_attributes_of_a_file_that_changed_are_an_error(graph: Path) -> None:
    found = by_lines(graph)
    assert found is not None
    graph.write_bytes(TEXT.replace("ELF", "FLE").encode("latin-1"))
    os.utime(graph, (1, 1))
    with pytest.raises(FormatError, match="has changed"):
        _ = found.ops[0].attrs["other"]


@pytest.mark.parametrize(("piece", "most"), [(1 << 16, 2), (700, 40), (64, 40)])
def test_attributes_of_ops_that_follow_one_another_are_read_together(
    graph: Path, monkeypatch: pytest.MonkeyPatch, piece: int, most: int
) -> None:
    """One after the other, backwards, and in pieces that are smaller than an op, they are those of the whole file."""
    ops = [graph_op(f"block{number}/add", "Add", attrs={"k": f"value {number}"}) for number in range(40)]
    graph.write_text(text_graph(ops))
    opened: list[str] = []

    def counted(path: str) -> StoredFile:
        opened.append(path)
        return open_file(path)

    monkeypatch.setattr(ge_graph_lines, "_PIECE", piece)
    monkeypatch.setattr(ge_graph_lines, "open_file", counted)
    for order in (1, -1):
        found = by_lines(graph)
        assert found is not None
        opened.clear()
        read = {op.name: op.attrs["k"] for op in found.ops[::order]}
        assert read == {f"block{number}/add": f"value {number}" for number in range(40)}
        assert len(opened) <= (most if order == 1 else 40)


def test_attributes_of_an_op_are_those_of_a_full_parse_and_only_what_is_asked_for_is_parsed(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attrs = {"one": 1, "two": "a } attr { b", "three": 3, "long": "x" * 500}
    graph.write_text(text_graph([graph_op("block/add", "Add", attrs=attrs)]))
    found = by_lines(graph)
    assert found is not None
    parsed: list[int] = []
    real = proto_text.parse_proto_text

    def counted(data: bytes | str, source: str = "", lazy: str = "") -> proto_text.Message:
        parsed.append(len(data))
        return real(data, source, lazy)

    monkeypatch.setattr(proto_text, "parse_proto_text", counted)
    mine = found.ops[0].attrs
    assert mine["three"] == 3
    assert mine.get("none") is None
    assert len(parsed) == 1
    assert sum(parsed) < 200
    whole = load_graph_file(str(graph)).graphs[0].ops[0].attrs
    assert dict(mine) == dict(whole)
    assert list(mine) == list(whole)


# --- heads of ops, in pieces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [7, 64, 1 << 20])
def test_heads_of_ops_that_do_not_begin_with_their_names(
    graph: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(ge_graph_lines, "_BLOCK", piece)
    usual, nameless, empty = 'name: "a"\n    type: "A"', 'id: 5\n    type: "B"', ""
    ops = [f"  op {{\n    {body}\n  }}\n".replace("    \n", "") for body in (usual, nameless, empty, usual, empty)]
    graph.write_text('graph {\n  name: "main"\n' + "".join(ops) + "}\n")
    assert list(skim_ops(graph)) == [(op.name, op.type) for op in load_graph_file(graph).ops]
    assert list(skim_ops(graph)) == [("a", "A"), ("", "B"), ("", ""), ("a", "A"), ("", "")]


@pytest.mark.parametrize("block", [7, 16, 64, 1 << 20])
def test_heads_of_ops_are_found_across_pieces(graph: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("precision_tool.lib.io.ge_graph_partial._BLOCK", block)
    text = text_graph([graph_op(f"block{number}/add", f"Type{number}") for number in range(12)])
    graph.write_text(text)
    assert list(skim_ops(graph)) == [(op.name, op.type) for op in load_graph_file(graph).ops]
    assert len(list(skim_ops(graph))) == 12


def test_heads_of_ops_of_json(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text('{"graph": [{"name": "g", "op": [{"name": "a", "type": "Add"}, {"name": "b"}]}]}')
    assert list(skim_ops(path)) == [("a", "Add"), ("b", "")]


# --- cache files ------------------------------------------------------------------------------------------------------


def test_a_cached_graph_is_the_same_and_the_file_is_not_read(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_graph_file(graph)
    skim = skim_graph_file(graph)
    assert same(store(tmp_path).load(str(graph)), expected)
    monkeypatch.setattr(GraphStore, "_read", refuse)
    monkeypatch.setattr(graph_cache, "skim_graph_file", refuse)
    again = store(tmp_path)
    assert again.skim(str(graph)) == skim
    assert same(again.load(str(graph)), expected)
    assert again.load(str(graph)) is again.load(str(graph))


def test_attributes_of_a_graph_are_read_without_its_ops(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command on passes asks for one of them, and a graph has many ops."""
    expected = [dict(one.attrs) for one in load_graph_file(graph).graphs]
    store(tmp_path).load(str(graph))
    monkeypatch.setattr(ge_graph_lines, "load_graph_file", refuse)
    again = store(tmp_path).load(str(graph))
    assert [dict(one.attrs) for one in again.graphs] == expected


def test_json_is_cached_and_its_attributes_are_read_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    attr = '"attr": [{"key": "k", "value": {"s": "v"}}]'
    path.write_text(f'{{"graph": [{{"name": "g", {attr}, "op": [{{"name": "a", "type": "Add", {attr}}}]}}]}}')
    store(tmp_path).load(str(path))
    found = store(tmp_path).load(str(path))
    assert same(found, load_graph_file(path))
    assert found.ops[0].attrs["k"] == "v"


def test_a_skim_alone_is_cached_and_completed_by_a_load(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = skim_graph_file(graph)
    assert store(tmp_path).skim(str(graph)) == expected
    size = cache_file(tmp_path).stat().st_size
    assert same(store(tmp_path).load(str(graph)), load_graph_file(graph))
    assert cache_file(tmp_path).stat().st_size > size
    monkeypatch.setattr(GraphStore, "_read", refuse)
    assert store(tmp_path).skim(str(graph)) == expected


def test_a_graph_that_changed_is_read_again(graph: Path, tmp_path: Path) -> None:
    keeps = store(tmp_path)
    keeps.load(str(graph))
    before = graph.stat()
    changed = TEXT.replace('"Conv2D"', '"Conv3D"')
    assert len(changed) == len(TEXT)
    graph.write_bytes(changed.encode("latin-1"))
    os.utime(graph, ns=(before.st_atime_ns, before.st_mtime_ns))  # size and time are the same: the change time tells
    for one in (keeps, store(tmp_path)):
        assert one.load(str(graph)).ops[1].type == "Conv3D"


def test_a_graph_that_is_gone_is_an_error_although_it_is_cached(graph: Path, tmp_path: Path) -> None:
    keeps = store(tmp_path)
    keeps.load(str(graph))
    graph.unlink()
    for one in (keeps, store(tmp_path)):
        with pytest.raises(DataNotFoundError):
            one.load(str(graph))


def test_small_graphs_are_not_cached(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "LARGE", len(TEXT) + 1)
    store(tmp_path).load(str(graph))
    assert not (tmp_path / "cache").exists()


def test_a_graph_that_was_just_written_is_not_cached(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_files, "may_change_unseen", lambda *times: True)
    store(tmp_path).load(str(graph))
    assert not (tmp_path / "cache").exists()


def test_where_nothing_can_be_written_there_is_no_cache(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    keeps = GraphStore(CacheFiles(lambda: [tmp_path / "file" / "cache"]))
    assert same(keeps.load(str(graph)), load_graph_file(graph))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", graph.name]


def test_the_second_place_is_taken_where_the_first_cannot_be_written(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    GraphStore(CacheFiles(lambda: [tmp_path / "file" / "cache", tmp_path / "cache"])).load(str(graph))
    assert cache_file(tmp_path).suffix == ".ptcache"


# --- cache files that are not what they should be ---------------------------------------------------------------------


def poison(tmp_path: Path, graph: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the cached bytes and read the graph: it must be what the file says, and be cached anew."""
    expected = load_graph_file(graph)
    store(tmp_path).load(str(graph))
    path = cache_file(tmp_path)
    good = path.read_bytes()
    path.write_bytes(change(good))
    assert same(store(tmp_path).load(str(graph)), expected)
    assert path.read_bytes() == good


@pytest.mark.parametrize("place", [0, 8, 12, 20, 60, 61, 100, 1000, 1500, 2000, -1])
def test_a_flipped_bit(tmp_path: Path, graph: Path, place: int) -> None:
    def change(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    poison(tmp_path, graph, change)


@pytest.mark.parametrize("size", [0, 1, 59, 92, 93, 200, 1000])
def test_a_cut_off_cache_file(tmp_path: Path, graph: Path, size: int) -> None:
    poison(tmp_path, graph, lambda data: data[:size])


def test_more_bytes_than_there_should_be(tmp_path: Path, graph: Path) -> None:
    poison(tmp_path, graph, lambda data: data + b"x")


def test_a_cache_file_of_a_gigabyte_is_not_read(tmp_path: Path, graph: Path) -> None:
    store(tmp_path).load(str(graph))
    path = cache_file(tmp_path)
    os.truncate(path, 1 << 30)
    assert same(store(tmp_path).load(str(graph)), load_graph_file(graph))
    assert path.stat().st_size < 1 << 20


def with_numbers(data: bytes, column: str, numbers: list[int]) -> bytes:
    """A cache file with other numbers in a column, and a checksum that fits: what an attacker could write."""
    payload = data[cache_files.HEADER.size :]
    position = 0
    for name in graph_cache._COLUMNS:
        (count,) = struct.unpack_from("<Q", payload, position)
        end = position + 8 + 8 * count
        if name == column:
            new = struct.pack("<Q", len(numbers)) + array("q", numbers).tobytes()
            return cache_files.framed(payload[:position] + new + payload[end:], signature_in(data), VERSION)
        position = end
    raise AssertionError(column)


@pytest.mark.parametrize("column", [name for name in graph_cache._COLUMNS if name not in ("dim", "origin_dim")])
def test_numbers_that_point_nowhere(tmp_path: Path, graph: Path, column: str) -> None:
    expected = load_graph_file(graph)
    store(tmp_path).load(str(graph))
    path = cache_file(tmp_path)
    good = path.read_bytes()
    for numbers in ([1 << 62], [-7], [1 << 62, -(1 << 62)], [0] * 500):
        path.write_bytes(with_numbers(good, column, numbers))
        found = store(tmp_path).load(str(graph))
        # Some numbers say something else that is possible: then they are taken, as a checksum vouches for them.
        free = column in ("skim_names", "skim_sources", "skim_count", "notes")
        assert free or found == expected


def test_a_claimed_length_costs_no_memory(tmp_path: Path, graph: Path) -> None:
    def change(data: bytes) -> bytes:
        payload = struct.pack("<Q", 1 << 61) + data[cache_files.HEADER.size + 8 :]
        return cache_files.framed(payload, signature_in(data), VERSION)

    poison(tmp_path, graph, change)


def test_texts_that_are_no_utf8(tmp_path: Path, graph: Path) -> None:
    poison(
        tmp_path,
        graph,
        lambda data: cache_files.framed(data[cache_files.HEADER.size : -1] + b"\xff", signature_in(data), VERSION),
    )


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to itself"])
def test_something_else_in_the_place_of_the_cache_file(tmp_path: Path, graph: Path, kind: str) -> None:
    store(tmp_path).load(str(graph))
    path = cache_file(tmp_path)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    assert same(store(tmp_path).load(str(graph)), load_graph_file(graph))


def test_what_another_version_wrote_is_written_anew(
    tmp_path: Path, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(graph_cache, "_VERSION", graph_cache._VERSION + 1)
        store(tmp_path).load(str(graph))
    before = hashlib.sha256(cache_file(tmp_path).read_bytes()).hexdigest()
    assert same(store(tmp_path).load(str(graph)), load_graph_file(graph))
    assert hashlib.sha256(cache_file(tmp_path).read_bytes()).hexdigest() != before


# --- many ------------------------------------------------------------------------------------------------------------


def test_the_oldest_cache_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "MAX_FILES", 3)
    keeps = store(tmp_path)
    folder = tmp_path / "cache"
    newest: list[str] = []
    for number in range(5):
        path = tmp_path / f"graph{number}.txt"
        path.write_text(TEXT.replace("main", f"main{number}"))
        keeps.load(str(path))
        fresh = next(one for one in folder.iterdir() if one.name not in newest)
        newest = [*newest, fresh.name][-3:]
        os.utime(fresh, (number + 1, number + 1))
        assert {one.name for one in folder.iterdir()} == set(newest)
    strange = folder / "notes.txt"
    strange.write_text("of somebody else")
    monkeypatch.setattr(cache_files, "MAX_BYTES", 1)
    path.write_text(TEXT)
    keeps.load(str(path))
    assert sorted(one.suffix for one in folder.iterdir()) == [".ptcache", ".txt"]


def test_what_was_never_finished_goes_and_what_is_being_written_stays(tmp_path: Path, graph: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    old, new = folder / f"{TEMPORARY}a{PART}", folder / f"{TEMPORARY}b{PART}"
    for part in (old, new):
        part.write_bytes(b"x")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    store(tmp_path).load(str(graph))
    assert (old.exists(), new.exists()) == (False, True)


def test_several_at_once(tmp_path: Path, graph: Path) -> None:
    expected = load_graph_bytes(TEXT.encode("latin-1"), str(graph))
    wrong: list[object] = []

    def work() -> None:
        for _ in range(10):
            if store(tmp_path).load(str(graph)) != expected:
                wrong.append("another graph")
            for path in list((tmp_path / "cache").iterdir())[:1]:
                path.unlink(missing_ok=True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_id_that_stands_for_none_in_a_cache_is_not_cached() -> None:
    """`write` leaves a graph alone that has numbers which the cache cannot hold."""
    assert graph_cache._number(None) == graph_cache._NONE
    with pytest.raises(OverflowError):
        graph_cache._number(graph_cache._NONE)


def test_a_graph_with_a_number_that_a_cache_cannot_hold_is_read_whole(tmp_path: Path, graph: Path) -> None:
    """The number that stands for none, as the id of an op."""
    graph.write_bytes(TEXT.replace("id: 5", f"id: {-(1 << 63)}").encode("latin-1"))
    assert by_lines(graph) is not None
    read = store(tmp_path).load(str(graph))
    assert read.ops[1].id == -(1 << 63)
    assert same(read, load_graph_file(graph))
    assert not list(tmp_path.glob("cache/*"))


def test_a_tensor_that_was_forgotten_is_made_again(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large graph with as many tensors as ops only some are kept."""
    monkeypatch.setattr(ge_graph_lines, "_MOST_KEPT", 1)
    tensors = [block("output_desc", f'layout: "L{at % 3}"', block("shape", f"dim: {at % 2}")) for at in range(12)]
    graph.write_text("\n".join([block("graph", 'name: "main"', block("op", 'name: "x"', *tensors)), ""]))
    read = by_lines(graph)
    assert read is not None
    assert [(desc.layout, desc.shape) for desc in read.ops[0].output_descs] == [
        (f"L{at % 3}", (at % 2,)) for at in range(12)
    ]
    assert same(read, load_graph_file(graph))


def test_an_op_of_more_pieces_than_any_has_is_refused(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes many times the memory of its text; as many in several ops are forgotten op by op."""
    monkeypatch.setattr(ge_graph_lines, "OP_MEMORY", 100_000)
    inputs = ['input: "x:0"'] * 100
    several = [block("op", f'name: "op{at}"', *inputs) for at in range(10)]
    graph.write_text("\n".join([block("graph", 'name: "main"', *several), ""]))
    assert len(store(tmp_path).load(str(graph)).ops) == 10
    graph.write_text("\n".join([block("graph", 'name: "main"', block("op", 'name: "op"', *inputs * 10)), ""]))
    with pytest.raises(FormatError, match=r"about [0-9.]+ kB of memory .* at most 100\.0 kB"):
        store(tmp_path).load(str(graph))
