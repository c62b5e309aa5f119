"""Drawings of neighbourhoods, read back by `dot` itself, and what happens without it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import stat
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
from builders import graph_op

from precision_tool.lib.data.neighbourhood import Wiring, neighbourhood
from precision_tool.lib.messages import Message, use_language
from precision_tool.lib.messages.errors import OutputError
from precision_tool.lib.model.graph import Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.view.drawing import Figures, dot_source, picture_name, write_drawing

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the dot program is not installed")

SVG = "{http://www.w3.org/2000/svg}"
TITLE = "{http://www.w3.org/1999/xlink}title"

#: Names that would be markup, escapes or statements if they were not escaped.
NASTY = (
    'a"] ; evil [label="x', "<b>bold</b>", "<<i>", "&lt;&amp;#65;", r"back\Nslash\\G\l", "new\nline\rreturn",
    "\x1b[31mred", "tail\\", "</td></tr></table>>", "ünïcode→", "a:port:n", "-->", "]]>", "node", "strict",
    " ", "{|}", "%s{0}", "'", "x" * 9_000, "\\N&" * 300, "\u202eright to left", "/*", "//", "#",
)  # fmt: skip


def source_of(
    *graphs: Graph,
    name: str,
    where: str = "",
    depth: int = 1,
    cosines: Mapping[str, float] | None = None,
    threshold: float = 0.98,
    most: int = 500,
) -> str:
    file = GraphFile(path="graph.txt", graphs=graphs)
    home = next(graph for graph in graphs if graph.name == (where or graphs[0].name))
    hood = neighbourhood(Wiring(file), home.name, home.by_name[name], depth, most)
    return dot_source(hood, Figures(cosines=cosines or {}, threshold=threshold), "debug_0 graph.txt")


def graph(*ops: Op, name: str = "root") -> Graph:
    return Graph(name=name, ops=ops)


def parsed(source: str) -> dict[str, Any]:
    """What `dot` understood."""
    run = subprocess.run(["dot", "-Tjson"], input=source, capture_output=True, check=True, encoding="utf-8")
    assert run.stderr == ""
    document: dict[str, Any] = json.loads(run.stdout, strict=False)
    return document


def nodes(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["objects"] if "nodes" not in one and "subgraphs" not in one]


def words(label: str) -> str:
    """The text of an HTML-like label, its lines joined."""
    return html.unescape(re.sub("<[^>]*>", "", label)).replace("\u200b", "")


def node_named(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (node for node in nodes(document) if name in words(node["label"]))
    return found


def visible(text: str) -> str:
    """How control characters are shown."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- the source -------------------------------------------------------------------------------------------------------


def test_it_speaks_chinese() -> None:
    reader = replace(graph_op("reader", inputs=["op:0"]), control_inputs=("op",))
    ops = [graph_op("op"), reader]
    with use_language("zh"):
        source = source_of(graph(*ops), name="op", cosines={"op": 0.5})
    for text in ("上下游算子", "未比对", "所选算子", "余弦相似度 0.500000", "低于 0.5"):
        assert text in source
    assert re.findall(r"not compared|below|steps?\b|the op|cosine|order only|input \d", source) == []


@needs_dot
def test_ops_edges_and_tensors() -> None:
    described = [
        TensorDesc(dtype="float16", layout="NC1HWC0", shape=(2, 1, 5, 5, 16)),
        TensorDesc(dtype="int32", layout="ND", shape=()),
    ]
    maker = graph_op("net/maker", "MaxPool", output_descs=described)
    asked = replace(graph_op("net/asked", "Conv2D", ["net/maker:1", "net/maker:0"], pass_names=["SomePass"]))
    reader = replace(graph_op("reader", "Relu", ["net/asked:0"]), control_inputs=("net/maker",))
    document = parsed(source_of(graph(maker, asked, reader), name="net/asked"))
    assert {words(node["label"]) for node in nodes(document)} == {
        "MaxPoolnet/maker", "Conv2Dnet/askedSomePass", "Relureader",
    }  # fmt: skip
    by_id = {one["_gvid"]: words(one["label"]) for one in document["objects"]}
    edges = [
        (by_id[edge["tail"]], by_id[edge["head"]], words(edge.get("label", "")).split(), edge.get("style"))
        for edge in document["edges"]
    ]
    assert sorted(edges, key=str) == sorted(
        [
            ("MaxPoolnet/maker", "Conv2Dnet/askedSomePass", ["1:", "int32", "ND", "[]"], None),
            ("MaxPoolnet/maker", "Conv2Dnet/askedSomePass",
             ["0:", "float16", "NC1HWC0", "[2,1,5,5,16]"], None),
            ("Conv2Dnet/askedSomePass", "Relureader", ["float32", "ND", "[]"], None),
            ("MaxPoolnet/maker", "Relureader", [], "dashed"),
        ],
        key=str,
    )  # fmt: skip
    (marked,) = (node for node in nodes(document) if node.get("penwidth"))
    assert "net/asked" in words(marked["label"])


@needs_dot
def test_colours_follow_the_cosine_and_the_legend_names_them() -> None:
    cosines = {"good": 0.98, "near": 0.95, "far": 0.7, "wrong": -0.3, "nan": nan, "op": 1.0}
    ops = [graph_op("op"), *(graph_op(name, inputs=["op:0"]) for name in (*cosines, "unknown") if name != "op")]
    document = parsed(source_of(graph(*ops), name="op", cosines=cosines))
    colours = {words(node["label"]).removeprefix("Add"): node["fillcolor"] for node in nodes(document)}
    named = dict(
        reversed(cell) for cell in re.findall(r'<td bgcolor="([^"]+)">([^<]+)</td>', html.unescape(document["label"]))
    )
    assert list(named) == ["cosine ≥ 0.98", "0.9 to 0.98", "0.5 to 0.9", "below 0.5, or nan", "not compared"]
    assert len(set(named.values())) == 5
    assert colours == {
        "opcosine 1.000000": named["cosine ≥ 0.98"],
        "goodcosine 0.980000": named["cosine ≥ 0.98"],
        "nearcosine 0.950000": named["0.9 to 0.98"],
        "farcosine 0.700000": named["0.5 to 0.9"],
        "wrongcosine -0.300000": named["below 0.5, or nan"],
        "nancosine nan": named["below 0.5, or nan"],
        "unknown": named["not compared"],
    }


@needs_dot
@pytest.mark.parametrize(("threshold", "bounds"), [(0.999, 5), (0.9, 4), (0.7, 4), (0.3, 3), (-1.0, 2)])
def test_the_legend_has_no_colour_that_cannot_be(threshold: float, bounds: int) -> None:
    document = parsed(source_of(graph(graph_op("op")), name="op", cosines={"op": 1.0}, threshold=threshold))
    assert document["label"].count("<td bgcolor") == bounds


@needs_dot
def test_without_a_result_the_picture_says_how_to_get_one() -> None:
    assert (
        "no comparison result for these ops (vc makes one)"
        in parsed(source_of(graph(graph_op("op")), name="op"))["label"]
    )


@needs_dot
def test_what_is_left_out_is_said() -> None:
    ops = [graph_op("op"), *(graph_op(f"r{i}", inputs=["op:0"]) for i in range(9))]
    document = parsed(source_of(graph(*ops), name="op", most=4))
    assert len(nodes(document)) == 4
    assert "left out: 6 more ops, farther away" in words(document["label"])
    assert words(node_named(document, "op")["label"]).endswith("6 more out")


@needs_dot
def test_subgraphs_are_boxes_in_boxes_with_the_op_that_calls_them() -> None:
    document = parsed(
        source_of(
            graph(graph_op("maker"), replace(graph_op("p1", "PartitionedCall", ["maker:0"]), subgraph_names=("s1",))),
            graph(replace(graph_op("d1", "Data"), parent_index=0),
                  replace(graph_op("p2", "If", ["d1:0"]), subgraph_names=("s2",)), name="s1"),
            graph(replace(graph_op("d2", "Data"), parent_index=0), graph_op("deep", inputs=["d2:0"]), name="s2"),
            name="deep", where="s2",
        )
    )  # fmt: skip
    boxes = {words(one["label"]): one for one in document["objects"] if one["name"].startswith("cluster")}
    assert set(boxes) == {"PartitionedCallp1s1", "Ifp2s2"}
    names = [words(one["label"]) if "label" in one else "" for one in document["objects"]]
    inside = {box: {names[i] for i in one.get("nodes", [])} for box, one in boxes.items()}
    assert {name for name in inside["Ifp2s2"] if name} == {"Datad2", "Adddeep"}
    assert "Datad1" in inside["PartitionedCallp1s1"]
    assert "Addmaker" not in inside["PartitionedCallp1s1"]
    assert [names[i] for i in boxes["PartitionedCallp1s1"]["subgraphs"]] == ["Ifp2s2"]
    crossing = [edge for edge in document["edges"] if edge.get("color") == "#3b6fb0"]
    assert len(crossing) == 2


@needs_dot
def test_graphs_that_call_each_other_are_drawn() -> None:
    a = graph(replace(graph_op("da", "Data"), parent_index=0), graph_op("a", "Mul", ["da:0"]),
              replace(graph_op("pa", "PartitionedCall", ["a:0"]), subgraph_names=("b",)), name="a")  # fmt: skip
    b = graph(replace(graph_op("db", "Data"), parent_index=0), graph_op("b", "Mul", ["db:0"]),
              replace(graph_op("pb", "PartitionedCall", ["b:0"]), subgraph_names=("a",)), name="b")  # fmt: skip
    document = parsed(source_of(a, b, name="a", where="a", depth=4))
    assert {words(node["label"]) for node in nodes(document)} == {"Datada", "Datadb", "Mula", "Mulb"}


@needs_dot
@pytest.mark.parametrize("name", NASTY, ids=lambda name: ascii(name)[:20])
def test_no_name_becomes_markup(name: str, tmp_path: Path) -> None:
    """In every place where names stand; the picture shows them and the tooltip has them whole."""
    desc = TensorDesc(dtype=name, layout=name, shape=(1,))
    op = replace(
        graph_op(name, name, ["maker:0", f"{name} gone:0"], output_descs=[desc], pass_names=[name]), kernel_name=name
    )
    caller = replace(graph_op(f"{name} caller", name, ["maker:0"]), subgraph_names=(name,))
    inner = graph(replace(graph_op("d", "Data"), parent_index=0), replace(op, inputs=op.inputs[1:]),
                  graph_op("end", "NetOutput", [f"{name}:0"]), name=name)  # fmt: skip
    root = graph(graph_op("maker", output_descs=[desc]), op, caller, graph_op("reader", inputs=[f"{name}:0"]))
    for source in (source_of(root, inner, name=name), source_of(root, inner, name=name, where=name)):
        document = parsed(source)
        everything = [document, *document["objects"], *document.get("edges", [])]
        assert not any(key in one for one in everything for key in ("href", "URL", "evil"))
        assert {one["name"] for one in nodes(document)} == {f"n{i}" for i in range(len(nodes(document)))}
    source = source_of(root, inner, name=name)
    drawing = write_drawing(source, str(tmp_path), "picture")
    assert drawing.reason is None
    assert drawing.svg is not None
    tree = ET.parse(drawing.svg)
    shown = "".join(tree.getroot().itertext()).replace("\u200b", "").replace("\xa0", " ")
    assert visible(name)[:30].strip() in shown
    tooltips = [one.get(TITLE, "").replace("\u200b", "").split("\n") for one in tree.iter(f"{SVG}a")]
    assert any(visible(name) == lines[0] for lines in tooltips)
    assert len(list(tree.iter(f"{SVG}script"))) == 0


@needs_dot
def test_names_longer_than_dot_reads() -> None:
    """Nobody's names are like that, save in a damaged file."""
    for name in ("x" * 20_000, "\\" * 20_000, "&" * 20_000, "→" * 20_000):
        described = TensorDesc(dtype=name, layout=name, shape=(1,) * 3_000)
        op = graph_op(name, name, ["maker:0"], pass_names=[name, name], original_names=[name])
        source = source_of(graph(graph_op("maker", output_descs=[described]), op), name=name)
        (node,) = (one for one in nodes(parsed(source)) if "penwidth" in one)
        assert words(node["label"]).startswith(name[:100])


# --- the files --------------------------------------------------------------------------------------------------------


def test_file_names_are_safe_short_and_different() -> None:
    assert picture_name("conv2/Relu", "debug_0", "ge_1", "depth2") == "conv2_Relu.debug_0.ge_1.depth2"
    names = [picture_name(name, "debug_0", "g") for name in (*NASTY, "../../etc/passwd", ".hidden", "y" * 300)]
    names.append(picture_name("y" * 301, "debug_0", "g"))
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name)
        assert len(f"{name}.svg".encode()) <= 255


@needs_dot
def test_both_files_are_written_and_nothing_else(tmp_path: Path) -> None:
    source = source_of(graph(graph_op("op"), graph_op("reader", inputs=["op:0"])), name="op")
    folder = tmp_path / "new" / "place with spaces"
    drawing = write_drawing(source, str(folder), "picture")
    assert sorted(os.listdir(folder)) == ["picture.gv", "picture.svg"]
    assert drawing.gv == str(folder / "picture.gv")
    assert Path(drawing.gv).read_text("utf-8") == source
    texts = ["".join(one.itertext()) for one in ET.parse(folder / "picture.svg").iter(f"{SVG}text")]
    assert "reader" in texts


def test_without_dot_the_source_is_there_and_the_hint_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    drawing = write_drawing("digraph { a }\n", str(tmp_path / "o"), "picture")
    assert drawing.svg is None
    assert os.listdir(tmp_path / "o") == ["picture.gv"]
    assert drawing.reason == Message("note.view.dot.missing")
    assert "apt install graphviz" in str(drawing.hint)
    assert f"dot -Tsvg {drawing.gv} -o {tmp_path / 'o' / 'picture.svg'}" in str(drawing.hint)


def fake_dot(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "bin" / "dot"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n", "ascii")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo half; echo 'Error: first' >&2; echo 'Format: \"svg\" not recognized' >&2; exit 3",
         'failed with exit code 3: Error: first; Format: "svg" not recognized'),
        ("exit 0", "failed with exit code 0: it printed nothing"),
        ("echo half; exec sleep 30", "was stopped after 0.2 s"),
        ("kill -9 $$", "failed with exit code -9"),
    ],
    ids=["error", "silent", "slow", "killed"],
)  # fmt: skip
def test_a_dot_that_fails(script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_dot(tmp_path, script, monkeypatch)
    folder = tmp_path / "o"
    folder.mkdir()
    (folder / "picture.svg").write_text("an older picture")
    drawing = write_drawing("digraph { a }\n", str(folder), "picture", time_limit=0.2 if "sleep" in script else 30)
    assert drawing.svg is None
    assert reason in str(drawing.reason)
    assert "dot -Tsvg" in str(drawing.hint)
    assert sorted(os.listdir(folder)) == ["picture.gv", "picture.svg"]
    assert (folder / "picture.svg").read_text() == "an older picture"


def test_a_dot_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_dot(tmp_path, "", monkeypatch)
    (tmp_path / "bin" / "dot").write_bytes(b"\x00\x01 no program")
    drawing = write_drawing("digraph { a }\n", str(tmp_path / "o"), "picture")
    assert drawing.svg is None
    assert "cannot be run" in str(drawing.reason)
    assert os.listdir(tmp_path / "o") == ["picture.gv"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_drawing("digraph { a }\n", str(tmp_path / "file" / "below"), "picture")
