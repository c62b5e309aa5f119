"""Graphs in JSON, whose ops are parsed one by one: as Python's json reads the whole, whatever the layout."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from precision_tool.lib.io import ge_json, wire
from precision_tool.lib.io.ge_json import parse_graph_json
from precision_tool.lib.io.lazy_nodes import LazyNodes
from precision_tool.lib.messages.errors import FormatError

NAMES = st.sampled_from(["graph", "op", "attr", "name", "", 'o"p', "图", "\\"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=12)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
GRAPHS = st.dictionaries(NAMES, VALUES | st.lists(VALUES, max_size=4), max_size=4)
ROOTS = st.fixed_dictionaries({}, optional={
    "attr": VALUES, "graph": st.one_of(st.lists(GRAPHS | VALUES, max_size=3), GRAPHS, VALUES), "name": VALUES,
    "op": st.one_of(st.lists(VALUES, max_size=3), VALUES),
})  # fmt: skip
#: How json lays out and writes: with what indentation, and whether in ASCII alone.
LAYOUTS = st.sampled_from([
    {}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": "\t", "ensure_ascii": False}
])  # fmt: skip
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(
        [b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"1", b"-", b"tru", b"\\u12", b"\xff", b"\n", b"NaN"]
    )), min_size=1, max_size=2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that values go over the ends of the pieces in which they are looked for."""
    monkeypatch.setattr(ge_json, "_PIECE", 1)


def plain(value: Any) -> Any:
    """The tree of what json made, by the rules for fields."""
    if not isinstance(value, dict):
        return [plain(item) for item in value] if isinstance(value, list) else value
    tree = {}
    for name, item in value.items():
        items = item if isinstance(item, list) else [item]
        if item != []:
            tree[name] = [{} if one is None else plain(one) for one in items]
    return tree


def opened(tree: Any) -> Any:
    """A tree with the ops, which are of lists that are parsed when somebody asks for them."""
    if isinstance(tree, dict):
        return {name: opened(items) for name, items in tree.items()}
    return [opened(item) for item in tree] if isinstance(tree, (list, LazyNodes)) else tree


def read(data: bytes) -> Any:
    return opened(parse_graph_json(data, "g.json"))


TRIES = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@TRIES
@given(root=ROOTS, layout=LAYOUTS)
def test_the_tree_is_that_of_json(root: dict[str, Any], layout: dict[str, Any]) -> None:
    data = json.dumps(root, **layout).encode("utf-8", "surrogatepass")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        assume(False)
    tree = parse_graph_json(data, "g.json")
    assert opened(tree) == plain(json.loads(text))
    for node in (tree, *(node for node in tree.get("graph", ()) if isinstance(node, dict))):
        assert "op" not in node or isinstance(node["op"], LazyNodes)


@TRIES
@given(root=ROOTS, layout=LAYOUTS, edits=EDITS)
def test_what_is_malformed_is_malformed_at_the_same_place(
    root: dict[str, Any], layout: dict[str, Any], edits: list[tuple[float, int, bytes]]
) -> None:
    data = json.dumps(root, **layout).encode("utf-8", "replace")
    for place, removed, added in edits:
        at = 1 + int(place * (len(data) - 1))
        data = data[:at] + added + data[at + removed :]
    wrong = error_of(data)
    if wrong is None:
        read(data)
        return
    assume(not wrong.msg.startswith("Illegal trailing comma"))  # of Python 3.13, within an object
    with pytest.raises(FormatError) as caught:
        read(data)
    assert caught.value.kind == "io.graph.json"
    assert (caught.value.offset, caught.value.fields["reason"]) == (wrong.pos, wrong.msg)


def error_of(data: bytes) -> json.JSONDecodeError | None:
    """What json says of a text, which is read with a character a byte, so that positions are those of bytes."""
    try:
        json.loads(data.decode("latin-1"), strict=False)
    except json.JSONDecodeError as error:
        return error
    return None


def test_of_two_members_with_one_name_the_last_counts() -> None:
    text = (
        b'{"op": [{"name": "a"}], "graph": [{"op": [{}, {}]}], "op": {"name": "b"}, "graph": {"op": 5, "op": [7, 8]}}'
    )
    assert read(text) == {"op": [{"name": ["b"]}], "graph": [{"op": [7, 8]}]}


def test_a_byte_order_mark_and_bytes_that_are_not_utf8() -> None:
    text = b'\xef\xbb\xbf{"graph": [{"name": "\xe5\x9b\xbe", "op": [{"name": "\xff"}]}]}'
    assert read(text) == {"graph": [{"name": ["图"], "op": [{"name": ["\\xff"]}]}]}
    with pytest.raises(FormatError) as caught:
        read(text[:-1] + b"]")
    assert caught.value.offset == len(text) - 1


@pytest.mark.parametrize("indent", [None, 2])
def test_an_op_is_not_refused_for_its_strings_or_for_the_ops_behind_it(
    indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A string takes its bytes alone, and a piece in which a large op is looked for has others too."""
    large = {"name": "large", "kernel": "x" * 3000, "info": '{"a": [' * 300 + '\\"'}
    text = json.dumps({"graph": [{"op": [large, *[{"name": "n", "input": ["a"] * 5}] * 100]}]}, indent=indent)
    monkeypatch.setattr(ge_json, "OP_MEMORY", 0)
    (graph,) = read(text.encode())["graph"]
    assert graph["op"][0] == {name: [value] for name, value in large.items()}
    assert len(graph["op"]) == 101


def test_lazy_nodes_are_made_when_they_are_asked_for() -> None:
    nodes = LazyNodes([3, 1, 0], lambda place: 6 // place)
    assert (len(nodes), nodes[1], list(nodes[:2])) == (3, 6, [2, 6])
    with pytest.raises(ZeroDivisionError):
        list(nodes)


def test_an_error_of_a_lazy_node_is_not_the_end_of_them() -> None:
    values = [7]
    with pytest.raises(IndexError):
        list(LazyNodes([0, 1], values.__getitem__))


@pytest.mark.parametrize("text", ['{"op": [%s]}', '{"graph": [{"op": [{"attr": %s}]}]}', '{"attr": %s}', "%s"])
def test_lists_in_lists_of_any_depth(text: str) -> None:
    depth = 10 * sys.getrecursionlimit()
    with pytest.raises(FormatError) as caught:
        read((text % ("[" * depth + "]" * depth)).encode())
    assert caught.value.kind == "io.graph.deep_json"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('{"graph": [{"op": [{"input": [%s]}]}]}', "OP_MEMORY"),
        ('{"graph": [{"op": [%s]}]}', "MAX_GRAPH_OPS"),
        ('{"graph": [{"attr": [%s]}]}', "OP_MEMORY"),
        ('{"graph": [%s]}', "OP_MEMORY"),
    ],
)
def test_what_takes_more_than_its_size_is_refused_with_both_figures(
    text: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (text % ",".join(["{}"] * 1000)).encode()
    assert read(data)
    monkeypatch.setattr(ge_json if limit == "OP_MEMORY" else wire, limit, 100)
    with pytest.raises(FormatError) as caught:
        read(data)
    assert caught.value.kind == "io.out_of_proportion"
    fields: dict[str, Any] = caught.value.fields
    assert fields["size"] == len(data)
    assert fields["needed"] > fields["limit"]
