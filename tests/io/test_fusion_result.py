"""`fusion_result.json` in all its shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.io.fusion_passes import (
    GRAPH,
    UB,
    GraphPasses,
    PassCount,
    parse_fusion_result,
    read_fusion_result,
)
from precision_tool.lib.messages.errors import FormatError

counts = st.integers(0, 10**6)
number = st.tuples(counts, st.booleans())
#: (name, kind, matched, effective, repository hits or None), each count also as a text.
found_passes = st.dictionaries(
    st.tuples(st.sampled_from(["graph_fusion", "ub_fusion"]), st.text("abcPass", min_size=1, max_size=8)),
    st.tuples(number, number, st.none() | number),
    max_size=5,
)


def written(value: tuple[int, bool]) -> int | str:
    return str(value[0]) if value[1] else value[0]


def document(found: dict[Any, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"graph_fusion": {}, "ub_fusion": {}}
    for (kind, name), (matched, effective, hits) in found.items():
        result[kind][name] = {"match_times": written(matched), "effect_times": written(effective)}
        if hits is not None:
            result[kind][name]["repository_hit_times"] = written(hits)
    return result


def expected(found: dict[Any, Any], graph: str) -> GraphPasses:
    passes = [
        PassCount(
            name=name, section=GRAPH if kind == "graph_fusion" else UB, matched=matched[0], effective=effective[0],
            repository_hits=None if hits is None else hits[0],
        )
        for wanted in ("graph_fusion", "ub_fusion")
        for (kind, name), (matched, effective, hits) in found.items()
        if kind == wanted
    ]  # fmt: skip
    return GraphPasses(path="f", graph=graph, passes=tuple(passes))


@given(st.lists(st.tuples(st.from_regex(r"[0-9]{1,2}_[0-9]{1,3}", fullmatch=True), found_passes), min_size=1,
                max_size=4, unique_by=lambda one: one[0]), st.integers(0, 3))  # fmt: skip
def test_all_four_shapes(graphs: list[tuple[str, Any]], shape: int) -> None:
    documents = [{"session_and_graph_id": graph, **document(found)} for graph, found in graphs]
    text = {
        0: json.dumps(documents[0]),
        1: "\n".join(map(json.dumps, documents)),
        2: json.dumps(documents),
        3: json.dumps({f"session_and_graph_id_{graph}": document(found) for graph, found in graphs}),
    }[shape]
    wanted = [expected(found, graph) for graph, found in (graphs[:1] if shape == 0 else graphs)]
    assert list(parse_fusion_result(text, "f")) == wanted


@pytest.mark.parametrize(
    ("ids", "graph"),
    [
        ({}, ""),
        ({"graphId": 3}, "3"),
        ({"graphId": "3", "sessionId": "1"}, "1_3"),
        ({"session_and_graph_id": "session_and_graph_id_0_7"}, "0_7"),
    ],
)
def test_where_the_graph_is_named(ids: dict[str, Any], graph: str) -> None:
    (found,) = parse_fusion_result(json.dumps({**ids, "ub_fusion": {}}))
    assert found.graph == graph


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "contains neither graph_fusion"),
        ("{}", "contains neither graph_fusion"),
        ("[3]", "'3' is not a JSON object"),
        ('{"graph_fusion": ', "line 1: not JSON"),
        ('{"graph_fusion": {}}\n{"ub_fusion"', "line 2: not JSON"),
        ('{"graph_fusion": [1]}', "graph_fusion is not a JSON object"),
        ('{"graph_fusion": {"A": 3}}', "graph_fusion: A is not a JSON object"),
        ('{"graph_fusion": {"A": {"match_times": "many"}}}', "A: match_times: 'many' is not a count"),
        ('{"graph_fusion": {"A": {"effect_times": -1}}}', "A: effect_times: '-1' is not a count"),
        ('{"graph_fusion": {"A": {"effect_times": true}}}', "A: effect_times: 'True' is not a count"),
        ("[" * 100_000, "cannot be read"),
        ('{"graph_fusion": {"A": {"match_times": ' + "9" * 5000 + "}}}", "cannot be read"),
    ],
)
def test_what_is_damaged(text: str, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_fusion_result(text, "f.json")
    assert caught.value.message.startswith("f.json")
    assert words in caught.value.message


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "fusion_result.json"
    path.write_text('{"graph_fusion": {"A": {"match_times": "2"}}},\n{"graphId": 1, "ub_fusion": {}}\n')
    first, second = read_fusion_result(str(path))
    assert first.passes == (PassCount(name="A", section=GRAPH, matched=2, effective=0),)
    assert (second.graph, second.path) == ("1", str(path))
