"""`ls` of many ops: pages that are printed while the next are made, and JSON in pieces, in little memory."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import graph_op, text_graph
from command_line import environment

from precision_tool.lib.cli.command import Output
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.pair_listing import OpFilter, OpListing, OpRow, OpRows, list_ops
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.model.wording import Streamed
from precision_tool.lib.view import ops_screen, tables
from precision_tool.lib.view.console import ReportConsole
from precision_tool.lib.view.text import json_pieces, json_text


def listing_of(count: int, op_of: Callable[[int], Op]) -> OpListing:
    file = GraphFile(path="graph.txt", graphs=(Graph(name="g"),))
    rows = OpRows(range(count), lambda number: OpRow(index=number, op=op_of(number), graph="g", dumped=False))
    return OpListing(run=RunGraph(file=file, reason=None, number=0, leaf=None), rows=rows, total=count)


def output(file: io.TextIOBase, width: int = 120) -> Output:
    console = ReportConsole(file=file, width=width)  # type: ignore[arg-type]
    return Output(console, console)


def listed(count: int, op_of: Callable[[int], Op], width: int = 120) -> list[str]:
    out = io.StringIO()
    output(out, width).stream(ops_screen.op_listing(listing_of(count, op_of), 0, 0.98))
    return out.getvalue().splitlines()


def test_a_page_is_printed_before_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_screen, "_PAGE", 3)
    out = io.StringIO()
    printed: list[int] = []

    def op_of(number: int) -> Op:
        printed.append(out.getvalue().count("op"))
        return graph_op(f"op{number}")

    output(out).stream(ops_screen.op_listing(listing_of(8, op_of), 0, 0.98))
    assert printed == [0, 0, 0, 3, 3, 3, 6, 6]
    assert out.getvalue().splitlines()[-1] == "8 of 8 ops"


@pytest.mark.parametrize("width", [40, 120])
def test_the_pages_of_a_list_are_one_table(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """What fits on the first page looks the same on all; a wider row widens those behind it."""
    whole = listed(8, lambda number: graph_op(f"op{number}"), width)
    monkeypatch.setattr(ops_screen, "_PAGE", 3)
    assert listed(8, lambda number: graph_op(f"op{number}"), width) == whole
    types = ["Add", "Add", "Add", "Add", "MatMulOfAnyRank", "Add", "Add", "Add"]
    lines = listed(8, lambda number: graph_op(f"op{number}", types[number]), width)
    (header,) = (line for line in lines if line.startswith("#"))
    starts = [line.index("op") for line in lines if "op" in line and not line.endswith("ops")]
    assert starts[:3] == [header.index("name")] * 3
    assert starts[3:] == [starts[0] + len("MatMulOfAnyRank") - len("type")] * 5


def test_a_column_that_a_later_page_has_comes_with_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_screen, "_PAGE", 3)
    lines = listed(9, lambda number: graph_op(f"op{number}", pass_names=["APass"] if number == 4 else ()))
    headers = [(at, line.split()) for at, line in enumerate(lines) if line.startswith("#")]
    assert [("pass" in words) for _, words in headers] == [False, True]
    assert [line.split()[0] for line in lines[headers[1][0] + 1 : -1]] == ["3", "4", "5", "6", "7", "8"]


def test_json_in_pieces_is_that_of_the_whole() -> None:
    documents: list[dict[str, list[object]]] = [
        {"a": [1, {"b": float("nan")}, "é"], "c": []},
        {"a": [], "c": [[1.5, None], (2,)]},
    ]
    for document in documents:
        streamed = {key: Streamed(iter(items)) for key, items in document.items()}
        assert "".join(json_pieces({"x": streamed, "y": 1})) == json_text({"x": document, "y": 1})


def test_json_is_written_while_it_is_made() -> None:
    out = io.StringIO()
    written: list[int] = []

    def items() -> Iterator[list[int]]:
        for number in range(4000):
            written.append(len(out.getvalue()) if number % 1000 == 999 else 0)
            yield [number]

    output(out).write_json(json_pieces({"x": Streamed(items())}))
    assert written[999] < written[1999] < written[2999] < written[3999]
    assert json.loads(out.getvalue())["x"] == [[number] for number in range(4000)]


class Counted(io.TextIOBase):
    """Keeps nothing of what is written but how much it is."""

    size = 0

    def write(self, text: str) -> int:
        self.size += len(text)
        return len(text)


@pytest.mark.parametrize("form", ["table", "json"])
def test_many_ops_take_no_more_memory_than_few(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(ops_screen, "_PAGE", 50)
    monkeypatch.setattr(tables, "_MANY", 0)
    peaks, sizes = [], []
    for count in (100, 100, 1000):  # the first time fills caches
        ops = tuple(graph_op(f"op{number}") for number in range(count))
        file = GraphFile(path="graph.txt", graphs=(Graph(name="g", ops=ops),))
        (listing,) = list_ops([RunGraph(file=file, reason=None, number=0, leaf=None)], OpFilter(), lambda _: {})
        out = Counted()
        tracemalloc.start()
        if form == "json":
            output(out).write_json(ops_screen.ops_json([listing], 0))
        else:
            output(out).stream(ops_screen.op_listing(listing, 0, 0.98))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes.append(out.size)
    assert sizes[2] > 9 * sizes[1]
    assert peaks[2] < 1.5 * peaks[1]


@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"]])
def test_a_reader_of_many_pages_that_goes_is_no_error(tmp_path: Path, words: list[str]) -> None:
    graph = tmp_path / "graph.txt"
    graph.write_text(text_graph([graph_op(f"op{number}") for number in range(1500)]), encoding="ascii")
    with subprocess.Popen(
        [sys.executable, "-m", "precision_tool", *words, "-g", str(graph)],
        cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141
