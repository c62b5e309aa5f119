"""The data of a report: what it says of results, of odd names and of odd numbers, and that it says so every time."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array, graph_op, one_op_tree, text_graph, write_golden
from command_line import check_golden_text, only_result, tool
from report_files import compared, data_of, names_of, result_of, shown_without
from tiny_network import layers

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.stored_verdict import StoredRun, StoredVerdict
from precision_tool.lib.diagnose.verdict_model import Action, Cause, Fact, Proof, Step, Suspect, Verdict, tally
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.messages import LANGUAGES, Message, render
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.model.op_verdict import Examined, OpVerdict
from precision_tool.lib.view.op_report import _judged
from precision_tool.lib.view.packed_columns import Texts, number, sound, whole
from precision_tool.lib.view.report_document import SCHEMA, Material, document_of, steps_document, verdict_document
from precision_tool.lib.view.report_map import error_path, network_of
from precision_tool.lib.view.verdict_messages import confidence, plan_steps, proof
from precision_tool.lib.view.verdict_screen import allowed_error

INPUTS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 2.0, np.float32)]
SUM = INPUTS[0] + INPUTS[1]


def wrong_sum() -> Array:
    wrong = SUM.copy()
    wrong[1, 2] = 0.0
    return wrong


def small_report(folder: Path, *options: str, name: str = "block/add") -> Path:
    one_op_tree(
        folder / "precision_data", output=wrong_sum(), golden=SUM, inputs=INPUTS, input_goldens=INPUTS, op_name=name
    )
    return compared(folder, *options)


def test_nothing_but_zeros_has_no_headroom(tmp_path: Path) -> None:
    layers().with_part("two/Tanh", wrong=np.zeros_like).write(tmp_path / "precision_data")
    result = result_of(compared(tmp_path))
    rooms = dict(zip(names_of(result), result["ops"]["headroom"], strict=True))
    assert rooms["two/Tanh"] is None
    assert rooms["two/MatMul"] > 0
    assert "inf" not in (*rooms.values(), *result["tensors"]["headroom"])


def test_right_by_the_precision_of_the_device(tmp_path: Path) -> None:
    """Rounding does not explain the error, so its limit is not the one that the op is held against."""
    op = OpVerdict(
        name="e", type="Exp", number=0, state="right", own_error=6e-4, rounding=1e-6, worst=900.0, slack=16.0
    )  # fmt: skip
    verdict = Verdict(culprit=None, cause=Cause.NONE, confidence=0.9)
    run = StoredRun(number=0, npu="", graph="", ops=(op, replace(op, name="f", worst=8.0)))
    graph = Graph(name="g", ops=(Op(name="e", type="Exp", id=0), Op(name="f", type="Exp", id=1)))
    material = Material(
        title="t", file=GraphFile(path="", graphs=(graph,)), run=run,
        verdict=StoredVerdict(threshold=0.98, verdict=verdict, runs=(run,)),
    )  # fmt: skip
    (result,) = document_of([material], tool="t", time="t")["results"]
    assert result["ops"]["beyond"] == [None, 0.5]
    reasons = [result["texts"][at] for at in result["ops"]["reason"]]
    assert reasons == [{language: render(Message("page.op.of_device"), language) for language in LANGUAGES}, ""]
    assert allowed_error(op) == Message("verdict.op.of_device")
    # `ni` looks at the op alone, which shows no precision of the device.
    alone = Examined(judged=replace(op, state="wrong"))
    assert _judged(op, alone) is op
    assert _judged(None, alone) is alone.judged


def without_texts(value: Any) -> Any:
    """The same without what the tool says: only the shape of the data is pinned."""
    if isinstance(value, dict):
        return "TEXT" if value.keys() == {"en", "zh"} else {key: without_texts(item) for key, item in value.items()}
    return [without_texts(item) for item in value] if isinstance(value, list) else value


def test_the_data_of_a_small_network(tmp_path: Path) -> None:
    document = without_texts(data_of(small_report(tmp_path)))
    document["tool"], document["time"] = "TOOL", "TIME"
    check_golden_text("report.json", json.dumps(document, indent=1, sort_keys=True), tmp_path)


def test_what_the_small_network_says(tmp_path: Path) -> None:
    document = data_of(small_report(tmp_path))
    assert document["schema"] == SCHEMA == 4
    (result,) = document["results"]
    at = names_of(result).index("block/add")
    assert result["verdict"]["culprit"] == "block/add"
    suspect = result["verdict"]["suspects"][0]
    assert {"en", "zh"} == suspect["sentence"].keys() == suspect["why"][0].keys() == suspect["confidence_text"].keys()
    assert result["texts"][result["ops"]["state"][at]] == "wrong"
    assert result["ops"]["agree"][at] is False
    # |wrong - right| / |right| of the only wrong element, 7 of the sum.
    own = 7 / np.sqrt(np.sum(SUM.astype(np.float64) ** 2))
    assert result["ops"]["own"][at] == pytest.approx(own, rel=1e-3)
    assert result["error_path"][0] == at
    (output,) = [one for one in result["details"][str(at)] if one["slot"] == "output:0"]
    assert output["worst"][0] == {"index": [1, 2], "npu": 0, "golden": 7, "error": 7, "relative": 1}
    assert [axis["shares"] for axis in output["axes"]] == [[0, 1], [0, 0, 1]]
    assert sum(output["npu_histogram"]["counts"]) == sum(output["golden_histogram"]["counts"]) == 6
    wires = result["wires"]
    names = names_of(result)
    columns = zip(wires["producer"], wires["reader"], wires["slot"], strict=True)
    found = {(names[producer], names[reader], slot) for producer, reader, slot in columns}
    assert found == {
        ("IteratorV2", "IteratorGetNext", 0), ("IteratorGetNext", "block/add", 0), ("IteratorGetNext", "block/add", 1),
        ("block/add", "NetOutput", 0),
    }  # fmt: skip


def test_columns_are_as_long_as_there_are_ops_and_tensors(tmp_path: Path) -> None:
    result = result_of(small_report(tmp_path))
    assert {len(column) for column in result["ops"].values()} == {result["counts"]["ops"]}
    assert {len(column) for column in result["tensors"].values()} <= {0, result["counts"]["tensors"]}
    assert result["counts"]["compared"] == 3
    assert result["counts"]["below"] == 1


def test_a_report_on_an_earlier_result_says_the_same(tmp_path: Path) -> None:
    first = result_of(small_report(tmp_path))
    tool("report", "-o", "again.html", cwd=tmp_path)
    second = result_of(tmp_path / "again.html")
    # What a fresh comparison knows beside its result file.
    for result in (first, second):
        result.pop("findings")
        result.pop("notes")
        result.pop("title")
    # A result file has six digits behind the point.
    for part in ("ops", "tensors"):
        columns, others = first.pop(part), second.pop(part)
        assert columns.keys() == others.keys()
        for name, column in columns.items():
            plain = all(isinstance(value, float | int | None) for value in column)
            assert others[name] == (pytest.approx(column, abs=1e-6) if plain else column), name
    assert second == first


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>/x", '"><img src=x onerror=alert(1)>', "a\u202egnp.exe", "\U0001f600/op",
        "long/" + "x" * 10_000, "javascript:alert(1)", "{{ 7 * 7 }}", "__proto__", "constructor",
    ],
)  # fmt: skip
def test_names_are_names(tmp_path: Path, name: str) -> None:
    file = tmp_path / "ge_proto_00000005_graph_1_Build.txt"
    file.write_text(text_graph([graph_op("start", "Data"), graph_op(name, "Relu", ["start:0"])]), "utf-8")
    graph = load_graph_file(str(file))
    (result,) = document_of([Material(title=name, file=graph)], tool="t", time="t")["results"]
    shown = name.replace("\u202e", "\\u202e")  # nobody sees what such a mark does to a name
    assert names_of(result) == ["start", shown]
    assert result["title"] == shown


def test_texts_that_are_no_utf_8() -> None:
    texts = Texts()
    assert texts["a\udcff"] == 1
    assert texts.to_json() == ["", "a\\udcff"]
    assert sound({"\udc80": ["\udc81", float("nan")]}) == {"\\udc80": ["\\udc81", "nan"]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "-inf"), (None, None), (3, 3),
        (1 / 3, 0.333333), (2.0, 2), (1e300, 1e300), (-0.0, 0), (123456789.0, 123457000),
    ],
)  # fmt: skip
def test_numbers(value: float | None, shown: object) -> None:
    assert number(value) == shown


def test_nan_and_inf_everywhere(tmp_path: Path) -> None:
    odd = np.array([[np.nan, np.inf, -np.inf], [np.nan, np.nan, np.nan]], np.float32)
    one_op_tree(tmp_path / "precision_data", output=odd, golden=SUM, inputs=[odd, INPUTS[1]], input_goldens=[odd, odd])
    result = result_of(compared(tmp_path))
    tensors = result["tensors"]
    rows = {result["texts"][slot]: at for at, slot in enumerate(tensors["slot"])}
    assert tensors["npu_nan"][rows["output:0"]] == 4
    assert tensors["npu_min"][rows["output:0"]] == "nan"
    assert tensors["mismatches"][rows["output:0"]] == 6
    assert tensors["cosine"][rows["output:0"]] == "nan"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_scalars(tmp_path: Path, shape: tuple[int, ...]) -> None:
    wrong, right = np.full(shape, 3.0, np.float32), np.full(shape, 2.0, np.float32)
    inputs = [np.full(shape, 1.0, np.float32)] * 2
    one_op_tree(tmp_path / "precision_data", output=wrong, golden=right, inputs=inputs, input_goldens=inputs)
    result = result_of(compared(tmp_path))
    at = names_of(result).index("block/add")
    (output,) = [one for one in result["details"][str(at)] if one["slot"] == "output:0"]
    assert output["worst"][0]["error"] == 1
    assert sum(output["npu_histogram"]["counts"]) == 1


def test_without_a_graph_there_is_no_map(tmp_path: Path) -> None:
    tree = one_op_tree(
        tmp_path / "precision_data", output=wrong_sum(), golden=SUM, inputs=INPUTS, op_name="add", golden_name="add"
    )
    tree.graph_path.unlink()
    result = result_of(compared(tmp_path))
    assert result["map"] is None
    assert result["wires"] is None
    assert names_of(result)
    assert result["tensors"]["op"]


def test_without_a_benchmark(tmp_path: Path) -> None:
    one_op_tree(tmp_path / "precision_data", output=wrong_sum(), inputs=INPUTS)
    result = result_of(compared(tmp_path))
    assert result["compared"] is False
    assert result["verdict"]["culprit"] == "block/add"
    assert result["map"] is not None
    at = names_of(result).index("block/add")
    slots = {one["slot"]: one for one in result["details"][str(at)]}
    assert slots["output:0"]["golden"] is None
    assert sum(slots["output:0"]["npu_histogram"]["counts"]) == 6


def test_a_graph_with_a_cycle(tmp_path: Path) -> None:
    file = tmp_path / "ge_proto_00000005_graph_1_Build.txt"
    ops = [graph_op("a", "Add", ["c:0", "a:0"]), graph_op("b", "Relu", ["a:0"]), graph_op("c", "Relu", ["b:0"])]
    file.write_text(text_graph(ops), "ascii")
    (result,) = document_of([Material(title="x", file=load_graph_file(str(file)))], tool="t", time="t")["results"]
    assert result["map"]["order"] == [0, 1, 2]


def test_a_comparison_that_was_stopped(tmp_path: Path) -> None:
    small_report(tmp_path)
    result = only_result(tmp_path)
    partial = result.with_name(f"partial_{result.name}")
    result.rename(partial)
    tool("report", str(partial), "-o", "part.html", cwd=tmp_path)
    assert "stopped" in result_of(tmp_path / "part.html")["part"]["en"]


def test_two_results_are_both_there(tmp_path: Path) -> None:
    small_report(tmp_path)
    result = only_result(tmp_path)
    (result.parent / "result_2.csv").write_bytes(result.read_bytes())
    tool("report", str(result.parent), "-o", "two.html", cwd=tmp_path)
    assert len(data_of(tmp_path / "two.html")["results"]) == 2


def test_a_result_of_the_vendor(tmp_path: Path) -> None:
    header = "Index,OpType,NPUDump,GroundTruth,TensorIndex,CosineSimilarity,MaxAbsoluteError,CompareFailReason"
    (tmp_path / "result_20260101000000.csv").write_text(
        f"{header}\n0,Relu,relu,relu,relu:output:0,0.5,NaN,\n1,Add,=cmd(),*,NaN,NaN,NaN,none\n", "utf-8"
    )
    tool("report", "result_20260101000000.csv", "-o", "x.html", cwd=tmp_path)
    result = result_of(tmp_path / "x.html")
    assert result["verdict"] is None
    assert names_of(result) == ["relu", "=cmd()"]
    assert result["tensors"]["cosine"] == [0.5]


def test_the_demos_error_goes_to_the_loss(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "precision_data")
    result = result_of(compared(tmp_path))
    names = names_of(result)
    path = [names[at] for at in result["error_path"]]
    assert path[0] == truth.culprit
    assert path[-1].startswith("loss/")
    assert result["error_path"] == sorted(result["error_path"])


def test_the_way_of_an_error_is_the_wrong_one_of_two(tmp_path: Path) -> None:
    file = tmp_path / "ge_proto_00000005_graph_1_Build.txt"
    ops = [
        graph_op("start"), graph_op("right", inputs=["start:0"]), graph_op("wrong", inputs=["start:0"]),
        graph_op("end", inputs=["right:0", "wrong:0"]), graph_op("gradients/end", inputs=["end:0"]),
    ]  # fmt: skip
    file.write_text(text_graph(ops), "ascii")
    network = network_of(load_graph_file(str(file)))
    assert error_path(network, 0, {2, 3, 4}, {2: 0.5, 3: 0.9}) == [0, 2, 3]
    assert error_path(network, 4, {4}, {}) == [4]


def test_what_differs_between_the_runs(tmp_path: Path) -> None:
    root = tmp_path / "precision_data"
    for path, side, seed in ((root / "npu/debug_0", "npu", 1), (root / "tf", "benchmark", 2)):
        path.mkdir(parents=True)
        document = {
            "format": "precision_tool passport", "version": 1, "side": side, "versions": {}, "environment": {},
            "seeds": {"helper": seed}, "switches": {}, "optimizers": [], "batch": [], "left_out": {}, "variables": [],
        }  # fmt: skip
        (path / "passport.json").write_text(json.dumps(document), "utf-8")
    (difference,) = result_of(small_report(tmp_path))["passport"]["differences"]
    assert difference["topic"] == "seeds"
    assert difference["text"]["en"] == "seed: NPU 1, benchmark 2"
    assert "NPU 1" in difference["text"]["zh"]


def test_bad_input(tmp_path: Path) -> None:
    small_report(tmp_path)
    folder = only_result(tmp_path).parent
    dump = tmp_path / "precision_data" / "npu" / "debug_0" / "dump" / "x.html"
    for words, what in (
        (["report", "missing.csv"], "no such file"),
        (["report", "-o", str(folder)], "a folder"),
        (["report", "-o", str(dump)], "only read"),
        (["report", "-o", "/proc/x/report.html"], "cannot be written"),
        (["report", str(tmp_path / "report.html")], "no comparison result"),
    ):
        run = tool(*words, cwd=tmp_path, code=2)
        assert what in run.text
    assert not dump.exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precision_tool.lib.messages.errors import OutputError
    from precision_tool.lib.view.report_page import write_page

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    document = document_of([], tool="t", time="t")
    (tmp_path / "report.html").write_text("earlier", "ascii")
    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OutputError, match="No space left"):
        write_page(str(tmp_path / "report.html"), document, [])
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text("ascii") == "earlier"


def test_golden_files_named_after_the_script(tmp_path: Path) -> None:
    """An op that only the result has comes behind those of the graph, and is on no map."""
    tree = one_op_tree(tmp_path / "precision_data", output=SUM, golden=SUM, inputs=INPUTS)
    write_golden(tree.golden_dir, "other", 0, SUM)
    result = result_of(compared(tmp_path))
    assert len(result["map"]["parent"]) == 4 + len(result["map"]["groups"]["name"])


def test_counts_that_are_not_known_are_not_zero(tmp_path: Path) -> None:
    report = small_report(tmp_path)
    old = shown_without("NPUNaN", tmp_path)
    assert set(result_of(report)["tensors"]["npu_nan"]) <= {0}
    tensors = result_of(old)["tensors"]
    assert tensors["npu_nan"] == [None] * len(tensors["op"])


def test_ops_of_one_name_in_two_graphs(tmp_path: Path) -> None:
    tree = one_op_tree(tmp_path / "precision_data", output=wrong_sum(), golden=SUM, inputs=INPUTS, input_goldens=INPUTS)
    text = tree.graph_path.read_text("utf-8")
    tree.graph_path.write_text(text + text_graph([graph_op("block/add")], name="branch"), "utf-8")
    compared(tmp_path)
    tool("report", "-g", tree.graph_path, "-o", "both.html", cwd=tmp_path)
    result = result_of(tmp_path / "both.html")
    at = [op for op, name in enumerate(names_of(result)) if name == "block/add"]
    assert len(at) == 3
    in_graph = len(result["map"]["parent"]) - len(result["map"]["groups"]["name"])
    assert [op < in_graph for op in at] == [True, True, False]
    assert [result["ops"]["agree"][op] for op in at] == [None, None, False]
    assert set(result["tensors"]["op"]) & set(at) == {at[2]}
    assert not {*map(str, at[:2])} & {*result["details"]}
    assert any("(block/add)" in note["en"] for note in result["notes"])


def test_an_empty_tensor_of_a_huge_claimed_shape(tmp_path: Path) -> None:
    # 80 GB as float64, one for each index of the axis.
    empty = np.zeros((0, 10**10), np.float32)
    one_op_tree(
        tmp_path / "precision_data", output=np.zeros(3, np.float32), golden=np.ones(3, np.float32),
        inputs=[np.ones(3, np.float32), empty], input_goldens=[np.ones(3, np.float32), empty],
    )  # fmt: skip
    run = tool("ac", "-c", "--report", "report.html", cwd=tmp_path, code=None, prefix=("prlimit", "--as=6000000000"))
    assert "report: report.html" in run.out, run
    details = result_of(tmp_path / "report.html")["details"]
    (one,) = [one for tensors in details.values() for one in tensors if one["slot"] == "input:1"]
    assert one["npu"]["shape"] == [0, 10**10]


def test_integers_have_all_their_digits(tmp_path: Path) -> None:
    large = np.array([1234567891, 2, -1987654321], np.int32)
    one_op_tree(tmp_path / "precision_data", output=large, golden=large + np.int32(1234567), inputs=[large, large])
    result = result_of(compared(tmp_path))
    at = names_of(result).index("block/add")
    (output,) = [one for one in result["details"][str(at)] if one["slot"] == "output:0"]
    assert (output["npu_summary"]["min"], output["npu_summary"]["max"]) == (-1987654321, 1234567891)
    assert {(one["npu"], one["golden"], one["error"]) for one in output["worst"]} == {
        (1234567891, 1235802458, 1234567), (2, 1234569, 1234567), (-1987654321, -1986419754, 1234567),
    }  # fmt: skip
    tensors = result["tensors"]
    row = [result["texts"][slot] for slot in tensors["slot"]].index("output:0")
    assert (tensors["npu_min"][row], tensors["golden_max"][row]) == (-1987654321, 1235802458)
    assert tensors["max_absolute_error"][row] == 1234567


def test_integers_that_the_page_cannot_hold_are_text() -> None:
    assert whole(2**53) == 2**53
    assert whole(2**53 + 1) == "9007199254740993"
    assert whole(-(2**63)) == "-9223372036854775808"
    assert (whole(1234567.0), whole(0.1234567), whole(None)) == (1234567, 0.123457, None)


def test_a_place_is_looked_at_before_the_comparison(tmp_path: Path) -> None:
    one_op_tree(tmp_path / "precision_data", output=wrong_sum(), golden=SUM, inputs=INPUTS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine", "ascii")
    dump = tmp_path / "precision_data" / "npu" / "debug_0" / "dump"
    for place, what in (("folder", "a folder"), (dump / "x.html", "only read"), ("file/x.html", "cannot be written")):
        assert what in tool("ac", "-c", "--report", place, cwd=tmp_path, code=2).text
    assert not (tmp_path / "precision_data" / "temp" / "vector_compare").exists()


def test_a_folder_that_begins_like_ours_is_not_ours(tmp_path: Path) -> None:
    small_report(tmp_path)
    (path,) = (tmp_path / "precision_data" / "temp" / "vector_compare").glob("*/result_*.csv")
    (tmp_path / "precision_data" / "temp_of_mine").mkdir()
    mine = Path(shutil.copy(path, tmp_path / "precision_data" / "temp_of_mine" / path.name))
    tool("report", mine, cwd=tmp_path)
    assert [*mine.parent.iterdir()] == [mine]
    assert list((tmp_path / "precision_data" / "temp" / "report").glob("report_*.html"))


def test_each_result_is_held_against_the_threshold_of_its_verdict(tmp_path: Path) -> None:
    one_op_tree(tmp_path / "precision_data", output=wrong_sum(), golden=SUM, inputs=INPUTS)
    results = tmp_path / "results"
    results.mkdir()
    for at, threshold in enumerate(("0.5", "0.9999")):
        tool("ac", "-c", "--threshold", threshold, cwd=tmp_path, code=None)
        newest = max((tmp_path / "precision_data" / "temp" / "vector_compare").iterdir())
        for path in newest.iterdir():
            shutil.copy(path, results / path.name.replace(newest.name, f"2026010100000{at}"))
    tool("report", "results", "-o", "both.html", cwd=tmp_path)
    assert sorted(one["threshold"] for one in data_of(tmp_path / "both.html")["results"]) == [0.5, 0.9999]


def test_ops_have_one_number_everywhere(tmp_path: Path) -> None:
    """The one that `ni '[N]'` takes: behind ops that are made from the same original it is not the graph's id."""
    tree = one_op_tree(tmp_path / "precision_data", output=wrong_sum(), golden=SUM, inputs=INPUTS, input_goldens=INPUTS)
    (graph,) = load_graph_file(str(tree.graph_path)).graphs
    shared = {"IteratorV2": ("IteratorGetNext",)}
    ops = [replace(op, attrs={}, original_names=shared.get(op.name, op.original_names)) for op in graph.ops]
    tree.graph_path.write_text(text_graph(ops, attrs={"_session_graph_id": "0_1"}), "utf-8")
    result = result_of(compared(tmp_path))
    (suspect,) = result["verdict"]["suspects"]
    assert (suspect["culprit"], suspect["number"]) == ("block/add", 1)
    names, numbers = names_of(result), result["ops"]["id"]
    expected = {"IteratorV2": 0, "IteratorGetNext": 0, "block/add": 1, "NetOutput": 2}
    assert expected.items() <= dict(zip(names, numbers, strict=True)).items()
    assert "block/add" in tool("ni", "[1]", cwd=tmp_path).out
    with only_result(tmp_path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["NPUDump"]: row["Index"] for row in rows}["block/add"] == "1"
    tool("report", "-o", "again.html", cwd=tmp_path)
    assert result_of(tmp_path / "again.html")["verdict"]["suspects"][0]["number"] == 1


def test_lines_to_copy_are_lines(tmp_path: Path) -> None:
    step = Step(do=Action.KEEP_TYPE, code="with npu_scope.keep_dtype_scope():", ops=("conv",))
    (shown,) = steps_document(plan_steps([step]), "precision-tool")
    assert len(shown["line"].split("\n")) == 2
    assert "\\n" not in shown["line"]


@pytest.mark.parametrize("fact", [None, "one_of", "or_variable", "inputs_not_dumped", "benchmark_obeys"])
@pytest.mark.parametrize("rests_on", list(Proof))
def test_what_a_verdict_rests_on_is_said_as_on_the_terminal(rests_on: Proof, fact: str | None) -> None:
    facts = () if fact is None else (Fact(name=fact, value="conv/kernel"),)
    suspect = Suspect(culprit="conv", cause=Cause.KERNEL, proof=rests_on, confidence=0.9, number=3, facts=facts)
    verdict = Verdict(culprit="conv", cause=Cause.KERNEL, confidence=0.9, suspects=(suspect,), tally=tally([]))
    (written,) = verdict_document(verdict)["suspects"]
    shown = confidence(0.9, suspect)
    assert written["confidence_text"] == {language: render(shown, language) for language in LANGUAGES}
    assert render(proof(suspect), "en") in written["confidence_text"]["en"]
    assert " " in render(proof(suspect), "en"), "a sentence, no key"


def test_rows_of_one_reason_share_a_text() -> None:
    texts = Texts()
    message = Message("page.note.no_map", error="x")
    assert texts.at(message) == texts.at(Message("page.note.no_map", error="x")) == texts.at("No map: x") == 1
    assert texts.to_json()[1] == {"en": "No map: x", "zh": render(message, "zh")}


def test_the_largest_error_relative_to_rounding_is_that_of_the_verdict(tmp_path: Path) -> None:
    """And the one relative to the limit is smaller: some times its rounding is allowed."""
    ops = result_of(small_report(tmp_path))["ops"]
    verdict = json.loads(tool("ac", "--json", cwd=tmp_path).out)["results"][0]["verdict"]
    told = verdict["evidence"]["worst_over_rounding"]
    at = ops["worst_of_rounding"].index(max(filter(None, ops["worst_of_rounding"])))
    assert ops["worst_of_rounding"][at] == pytest.approx(told, rel=1e-3)
    assert ops["beyond"][at] < ops["worst_of_rounding"][at] / 2
