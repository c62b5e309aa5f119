"""The options of `vc`, and the checks that `ac` makes beside the comparison, as a user runs them."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import out_tensor, write_dump
from command_line import by_tensor, cells, fingerprint, only_result, result_files, table, tool
from outside_data import LENET, needs_outside_data
from small_tree import Node, SmallTree, chain, small_tree, values

from precision_tool.lib.compare.columns import METRIC_COLUMNS


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallTree]:
    """Data, Add, Mul with an error of 3000 in element 700 and an op after it; the same at the end."""
    victim = np.arange(1, 1025, dtype=np.float32)
    victim[700] += 3000
    nodes = chain(victim)
    nodes[3] = Node(**{**vars(nodes[3]), "golden": np.arange(1, 1025, dtype=np.float32)})
    made = small_tree(tmp_path_factory.mktemp("tree") / "precision_data", nodes)
    before = fingerprint(made.root)
    yield made
    assert fingerprint(made.root) == before


def args(tree: SmallTree, *more: str) -> list[str]:
    return ["--data", str(tree.root), "--work", "w", *more]


# --- one op ---------------------------------------------------------------------------------------------------------


def test_one_op_with_its_worst_elements(tree: SmallTree, tmp_path: Path) -> None:
    run = tool(*args(tree, "vc", "-op", "mul", "--top", "2"), cwd=tmp_path)
    path = only_result(tmp_path)
    assert path.name.startswith("single_op_result_")
    assert list(by_tensor(path)) == ["middle/Mul:input:0", "middle/Mul:output:0"]
    assert "2 of 2 tensors of 1 op," in run.text
    assert "middle/Mul output:0" in run.text
    assert "1 of 1,024 elements differ" in run.text
    assert "all 3 elements are equal" in run.text
    assert "absolute [700] 3701 701 3e+03 4.28" in run.text
    with (path.parent / "middle_Mul_output_0_absolute_error_topn.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["Index", "ID", "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError"],
            ["700", "700", "3701", "701", "3000", "4.27960057"],
        ]
    names = {entry.name for entry in path.parent.iterdir()} - {path.name, path.with_suffix(".json").name}
    assert names == {
        f"middle_Mul_{slot}_0_{kind}"
        for slot in ("input", "output")
        for kind in ("summary.txt", "absolute_error_topn.csv", "relative_error_topn.csv")
    }


def test_slots_of_an_op_and_several_ops(tree: SmallTree, tmp_path: Path) -> None:
    run = tool(*args(tree, "vc", "-op", "middle_Mul", "-o", "0", "--json"), cwd=tmp_path)
    (result,) = run.results
    assert [row["slot"] for row in result["rows"]] == ["output:0"]
    (detail,) = result["details"]
    assert (detail["tensor"], detail["shape"], detail["count"], detail["equal"]) == (
        "middle/Mul:output:0", [1024], 1024, 1023
    )  # fmt: skip
    (worst,) = detail["worst_absolute"]
    assert worst == {
        "index": [700],
        "npu": 3701.0,
        "golden": 701.0,
        "error": 3000.0,
        "relative": pytest.approx(3000 / 701),
    }
    (result,) = tool(*args(tree, "vc", "-op", "Mul", "-op", "last/Sub", "--json"), cwd=tmp_path).results
    assert {row["op"] for row in result["rows"]} == {"middle/Mul", "last/Sub"}


def test_one_op_of_several_steps_has_files_for_each(tmp_path: Path) -> None:
    made = small_tree(tmp_path / "precision_data", chain())
    step = made.copy_leaf("0", "m", "1", "7")
    assert step.is_dir()
    run = tool("vc", "-op", "Mul", "-o", "0", "-g", made.graph, cwd=tmp_path)
    names = sorted(path.name for path in tmp_path.rglob("*_absolute_error_topn.csv"))
    assert len(names) == 2
    assert all(name.endswith("_middle_Mul_output_0_absolute_error_topn.csv") for name in names)
    assert names[1].startswith("0_m_7_") or names[0].startswith("0_m_7_")
    assert run.out.count("all 1,024 elements are equal") == 2
    assert "summary" not in run.out


def test_the_result_of_one_op_is_not_taken_for_the_newest(tree: SmallTree, tmp_path: Path) -> None:
    tool(*args(tree, "vc"), cwd=tmp_path)
    tool(*args(tree, "vc", "-op", "Mul"), cwd=tmp_path)
    (result,) = tool(*args(tree, "vcs", "--json"), cwd=tmp_path).results
    assert len(result["rows"]) > 2
    single = next(path for path in result_files(tmp_path) if path.name.startswith("single_op"))
    (result,) = tool("vcs", "-f", single, "--json", cwd=tmp_path).results
    assert len(result["rows"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-op", "nothere"], "no op 'nothere'"),
        (["-op", "a"], "'a' fits"),
        (["-op", "Mul", "-o", "3"], "middle/Mul has no output:3"),
        (["-op", "IteratorV2"], "it has no tensor to compare: the NPU dumped no file of IteratorV2"),
        (["-i", "0"], "-i only goes with -op"),
        (["--top", "5"], "--top only goes with -op"),
        (["-op", "Mul", "--top", "10001"], "at most 10000"),
        (["-op", "Mul", "--range", "1,2,1"], "not allowed with argument -op"),
        (["--range", "1,2,1", "--select", "1"], "not allowed with argument -r/--range"),
        (["-op", "Mul", "--max", "5"], "--max does not go with -op"),
        (["--map", "-op", "Mul"], "-op does not go with --map"),
        (["--map", "--overflow_detection"], "--overflow_detection does not go with --map"),
        (["--map", "-alg", "0"], "--algorithm does not go with --map"),
        (["--range", "1,2"], "'1,2' is not START,END,STEP"),
        (["--range", "1,77,1"], "end 77 is not within 1 to 4"),
        (["--select", "77"], "77 is beyond the last op, which is 4"),
        (["--algorithm", "CosineSimilarity,Sine"], "there is no metric 'sine'"),
        (["--custom", "gone.py"], "gone.py: no such file"),
        (["--max", "-1"], "must be a whole number of at least 0"),
    ],
)
def test_what_makes_no_sense(tree: SmallTree, tmp_path: Path, options: list[str], words: str) -> None:
    run = tool(*args(tree, "vc", *options), cwd=tmp_path, code=2)
    assert words in run.text
    assert "hint: " in run.err
    assert run.out == ""
    assert not list(tmp_path.rglob("*.csv"))


# --- some ops and columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [("--range", "2,4,2"), ("-r", "2,-1,2"), ("-s", "2,4"), ("--select", "4, 2,99")])
def test_ops_by_id(tree: SmallTree, tmp_path: Path, option: tuple[str, str]) -> None:
    """The ids are those of the graph's ops: 0 IteratorV2, 1 IteratorGetNext, 2 Add, 3 Mul, 4 Sub."""
    run = tool(*args(tree, "vc", *option), cwd=tmp_path)
    path = only_result(tmp_path)
    header, lines = table(path)
    assert header[:3] == ["Index", "OpSequence", "OpType"]
    assert [(line[1], line[2]) for line in lines] == [("2", "Add")] * 2 + [("4", "Sub")] * 2
    assert "only 2 of 5 groups of ops were selected" in run.text
    assert ("no op has the id 99" in run.text) == ("99" in option[1])
    (read,) = tool("vcs", "-f", path, "--json", cwd=tmp_path).results
    assert [row["sequence"] for row in read["rows"]] == [2, 2, 4, 4]


@pytest.mark.parametrize("option", [("-s", "2"), ("--range", "2,2,1"), ("--max", "5")])
def test_the_result_of_a_part_acquits_nobody(tree: SmallTree, tmp_path: Path, option: tuple[str, str]) -> None:
    """What the part leaves out is what is wrong: element 700 of the op with the id 3."""
    tool(*args(tree, "vc", *option), cwd=tmp_path)
    path = only_result(tmp_path)
    assert path.name.startswith("part_result_")
    for word in ("ac", "vcs"):
        run = tool(*args(tree, word, "--fail"), cwd=tmp_path, code=2)
        assert "no complete result file" in run.err
    assert tool(*args(tree, "ls", "--json"), cwd=tmp_path).out.count('"cosine": null') == 5
    read = tool("vcs", "-f", path, cwd=tmp_path)
    assert "only a part: the selected ops, or the first elements of each tensor" in read.text
    assert "No op is below" in read.text
    (result,) = tool("vcs", "-f", path, "--json", cwd=tmp_path).results
    (note,) = result["notes"]
    assert note.startswith("only a part")
    # `ac` recomputes what the part does not show, and says first that it is one.
    judged = tool("ac", "-f", path, "--fail", "--threshold", "0.99", cwd=tmp_path, code=1)
    assert re.search(r"Verdict ━+┓ ┃ only a part: the selected ops, [^┃]* ┃ ┃ middle/Mul \(Mul\)", judged.text)
    stopped = path.rename(path.with_name(path.name.replace("part_", "partial_", 1)))
    source = path.with_suffix(".json").rename(stopped.with_suffix(".json"))
    judged = tool("ac", "-f", stopped, "--threshold", "0.99", cwd=tmp_path)
    assert re.search(r"Verdict ━+┓ ┃ only a part: the comparison was stopped; [^┃]*┃ ┃ middle/Mul \(Mul\)", judged.text)
    stopped.rename(path)
    source.rename(path.with_suffix(".json"))
    refused = tool("ac", "-c", "-f", path, cwd=tmp_path, code=2)
    assert "-f reads an earlier result" in refused.err
    tool(*args(tree, "vc"), cwd=tmp_path)
    judged = tool(*args(tree, "ac", "--fail", "--threshold", "0.99"), cwd=tmp_path, code=1)
    assert re.search(r"Verdict ━+┓ ┃ middle/Mul \(Mul\)", judged.text)
    tool(*args(tree, "vc", *option), cwd=tmp_path)
    judged = tool(*args(tree, "ac", "--fail", "--threshold", "0.99"), cwd=tmp_path, code=1)
    assert re.search(r"Verdict ━+┓ ┃ middle/Mul \(Mul\)", judged.text)


def test_a_result_that_is_read_says_what_it_is_of(tree: SmallTree, tmp_path: Path) -> None:
    fresh = tool(*args(tree, "vc", "--json"), cwd=tmp_path).results[0]
    assert (fresh["npu"], fresh["graph"]) == (str(tree.leaf), str(tree.graph))
    read = tool(*args(tree, "vcs", "--json"), cwd=tmp_path).results[0]
    assert [read[name] for name in ("npu", "benchmark", "graph")] == [
        fresh[name] for name in ("npu", "benchmark", "graph")
    ]
    for word in ("vcs", "ac"):
        lines = [line.split() for line in tool(*args(tree, word), cwd=tmp_path).out.splitlines()]
        assert ["NPU", str(tree.leaf)] in lines
        assert ["benchmark", str(tree.root / "tf" / "dump")] in lines
        assert ["graph", str(tree.graph)] in lines
    only_result(tmp_path).with_suffix(".json").unlink()
    assert "benchmark" not in tool(*args(tree, "vcs"), cwd=tmp_path).out


def test_the_columns_that_are_asked_for(tree: SmallTree, tmp_path: Path) -> None:
    full = tool(*args(tree, "vc", "--json"), cwd=tmp_path).results[0]
    assert table(only_result(tmp_path))[0][9:19] == list(METRIC_COLUMNS)
    shutil.rmtree(tmp_path / "w")
    short = tool(*args(tree, "vc", "-alg", "8", "MaxAbsoluteError,0", "--json"), cwd=tmp_path).results[0]
    header, _ = table(only_result(tmp_path))
    assert header[9:13] == ["MaxRelativeError", "MaxAbsoluteError", "CosineSimilarity", "CompareFailReason"]
    for one, other in zip(full["rows"], short["rows"], strict=True):
        assert one["npu"] == other["npu"]
        for name, value in (other["metrics"] or {}).items():
            is_left_out = name in {
                "accumulated_relative_error", "relative_euclidean_distance", "kullback_leibler_divergence",
                "mean_absolute_error", "root_mean_square_error", "mean_relative_error",
            }  # fmt: skip
            assert value == (None if is_left_out else one["metrics"][name]), name


def test_a_result_without_the_cosine_column_is_judged_all_the_same(tree: SmallTree, tmp_path: Path) -> None:
    threshold = ("--threshold", "0.99")
    fresh = tool(*args(tree, "vc", "--algorithm", "MaxAbsoluteError", "--json", *threshold), cwd=tmp_path).results[0]
    assert "CosineSimilarity" not in table(only_result(tmp_path))[0]
    (read,) = tool(*args(tree, "vcs", "--json", "-c", "0.99"), cwd=tmp_path).results
    assert fresh["overview"]["compared"] == read["overview"]["compared"] == 7
    assert fresh["overview"]["below"] == read["overview"]["below"] == 2  # Mul's output, and it as Sub's input
    assert [row["metrics"]["cosine"] for row in read["rows"] if row["metrics"]] == pytest.approx(
        [row["metrics"]["cosine"] for row in fresh["rows"] if row["metrics"]], abs=5e-7
    )
    assert re.search(r"Verdict ━+┓ ┃ middle/Mul \(Mul\)", tool(*args(tree, "ac", *threshold), cwd=tmp_path).text)


def test_the_first_elements_only(tree: SmallTree, tmp_path: Path) -> None:
    run = tool(*args(tree, "vc", "--max", "700"), cwd=tmp_path)
    assert "only the first 700 elements of each tensor are compared" in run.text
    row = by_tensor(only_result(tmp_path))["middle/Mul:output:0"]
    assert (row["MaxAbsoluteError"], row["NPUMax"]) == ("0.000000", "700")  # the wrong one is element 700
    shutil.rmtree(tmp_path / "w")
    tool(*args(tree, "vc", "-max", "701"), cwd=tmp_path)
    row = by_tensor(only_result(tmp_path))["middle/Mul:output:0"]
    assert (row["MaxAbsoluteError"], row["MaxErrorIndex"]) == ("3000.000000", "[700]")


def test_which_tensors_belong_together(tree: SmallTree, tmp_path: Path) -> None:
    run = tool(*args(tree, "vc", "--map"), cwd=tmp_path)
    (path,) = tmp_path.rglob("*.csv")
    assert path.name.startswith("mapping_")
    assert "7 of 7 tensors of 4 ops have a counterpart" in run.text
    rows = {row["TensorIndex"]: row for row in cells(path) if row["TensorIndex"] != "NaN"}
    assert rows["middle/Mul:output:0"]["NPUDumpPath"] == str(tree.dumps["middle/Mul"])
    assert rows["middle/Mul:output:0"]["GroundTruthPath"] == str(tree.goldens["middle/Mul"])
    assert rows["middle/Mul:input:0"]["GroundTruthPath"] == str(tree.goldens["first/Add"])
    assert "no complete result file" in tool(*args(tree, "vcs"), cwd=tmp_path, code=2).text
    (result,) = tool(*args(tree, "vc", "-map", "-s", "3", "--json", "--fail"), cwd=tmp_path).results
    assert [(row["op"], row["metrics"]) for row in result["rows"]] == [("middle/Mul", None)] * 2
    assert result["findings"] == []


# --- own metrics ----------------------------------------------------------------------------------------------------

MINE = """
import numpy as np
def compare_worst(x, y): return float(np.abs(x - y).max())
def compare_where(x, y): return "-" + "x".join(map(str, np.unravel_index(np.abs(x - y).argmax(), x.shape)))
def compare_small(x, y):
    if x.size > 100:
        raise ValueError("too\\nlarge \\x1b[31m")
    return x.size
"""


def test_own_metrics(tree: SmallTree, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    run = tool(*args(tree, "ac", "--custom", "mine.py"), cwd=tmp_path)
    failed = "compare_small failed for 2 of 7 tensors, first middle/Mul:output:0"
    assert f"{failed}: ValueError: too large \\x1b[31m" in run.text
    header, _ = table(only_result(tmp_path))
    at = header.index("MeanRelativeError")
    assert header[at + 1 : at + 5] == ["compare_worst", "compare_where", "compare_small", "CompareFailReason"]
    row = by_tensor(only_result(tmp_path))["middle/Mul:output:0"]
    assert (row["compare_worst"], row["compare_where"], row["compare_small"]) == ("3000", "'-700", "NaN")
    x = np.arange(1.0, 1025)
    y = x.copy()
    x[700] += 3000
    assert float(row["CosineSimilarity"]) == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), abs=5e-7)
    assert row["CompareFailReason"] == "compare_small: ValueError: too large \\x1b[31m"
    fresh = tool(*args(tree, "vc", "--custom", "mine.py", "--json"), cwd=tmp_path).results[0]
    (read,) = tool(*args(tree, "vcs", "--json"), cwd=tmp_path).results
    assert [row["custom"] for row in fresh["rows"]] == [row["custom"] for row in read["rows"]]
    assert fresh["rows"][-1]["custom"] == {"compare_worst": 0.0, "compare_where": "-0", "compare_small": 2}
    assert "\x1b" not in tool(*args(tree, "vcs", "-c", "1"), cwd=tmp_path).out
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".tmp", "mine.py", "w"]


def test_what_own_metrics_print_is_no_result(tree: SmallTree, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('loaded')\ndef compare_it(x, y):\n    print('asked')\n    return 1\n")
    run = tool(*args(tree, "vc", "--custom", "mine.py", "--json"), cwd=tmp_path)
    assert [row["custom"]["compare_it"] for row in run.results[0]["rows"] if row["metrics"]] == [1] * 7
    assert run.err.count("loaded") == 1
    assert "asked" in run.err


def test_a_python_file_in_the_dump_is_not_run(tmp_path: Path) -> None:
    made = small_tree(tmp_path / "precision_data", chain())
    for folder in (made.leaf, made.root, tmp_path):
        (folder / "metrics.py").write_text("raise SystemExit(9)\ndef compare_x(x, y): return 1\n")
    tool("vc", cwd=tmp_path)
    assert "compare_x" not in table(only_result(tmp_path))[0]


# --- overflow -------------------------------------------------------------------------------------------------------


def test_overflow(tmp_path: Path) -> None:
    half = np.array([1, 65504, 3], np.float16)
    nodes = chain()
    nodes[2] = Node(**{**vars(nodes[2]), "output": half, "golden": half.astype(np.float32)})
    nodes[3] = Node(**{**vars(nodes[3]), "golden": None})
    made = small_tree(tmp_path / "precision_data", nodes)
    run = tool("vc", "-overflow_detection", "--threshold", "-1", cwd=tmp_path)
    rows = by_tensor(only_result(tmp_path))
    header, _ = table(only_result(tmp_path))
    assert header[header.index("Shape") + 1] == "OverFlow"
    assert {name: row["OverFlow"] for name, row in rows.items() if row["OverFlow"] != "NaN"} == {
        "first/Add:output:0": "YES"
    }
    assert "1 of 1 float16 tensor with values of 65504 or more, or Inf, first first/Add:output:0" in run.text
    # Fed on to an op as float16 it is seen there too, also without a benchmark.
    write_dump(made.dumps["middle/Mul"], "middle/Mul", [out_tensor(half)], [out_tensor(np.ones(4, np.float16))])
    (result,) = tool("vc", "--overflow_detection", "--json", cwd=tmp_path).results
    found = {f"{row['op']}:{row['slot']}": row["overflow"] for row in result["rows"] if row["overflow"] is not None}
    assert found == {"first/Add:output:0": True, "middle/Mul:input:0": True, "middle/Mul:output:0": False}
    (read,) = tool("vcs", "--json", cwd=tmp_path).results
    assert [row["overflow"] for row in read["rows"]] == [row["overflow"] for row in result["rows"]]


@needs_outside_data
def test_overflow_is_what_the_vendors_tool_printed(tmp_path: Path) -> None:
    tool("--data", LENET / "precision_data", "--work", "w", "vc", "-overflow_detection", cwd=tmp_path)
    vendor = LENET / "vendor" / "npu_vs_tf_overflow.csv"
    ours_header, ours = table(only_result(tmp_path))
    header, lines = table(vendor)
    assert ours_header[: len(header)] == header
    at = header.index("OverFlow")
    assert [(line[at - 2], line[at]) for line in ours] == [(line[at - 2], line[at]) for line in lines]
    assert {line[at] for line in lines} == {"NO", "NaN"}


#: Cosine, largest absolute error, relative distance, largest and mean relative error that msaccucmp 26.2.0 printed for
#: the LeNet data with `-max 100`.
VENDOR_MAX_100 = {
    "conv1/Conv2Dconv1/BiasAddconv1/Relu:output:0": (1.000000, 0.000211, 0.000288, 0.004569, 0.000218),
    "conv2/Conv2Dconv2/BiasAddconv2/Relu:output:0": (0.849568, 0.258886, 0.527479, 1.000000, 0.190551),
    "trans_TransData_6:output:0": (0.860000, 0.193577, 0.511187, 4.828037, 0.351210),
    "gradients/fc1/MatMul_grad/MatMul_1:output:0": (0.833139, 0.006172, 0.557174, 4.847251, 0.382582),
}


@needs_outside_data
def test_the_first_elements_give_what_the_vendors_tool_printed(tmp_path: Path) -> None:
    """Of tensors that the device keeps in three layouts: the first elements are the benchmark's first."""
    tool("--data", LENET / "precision_data", "--work", "w", "vc", "-max", "100", cwd=tmp_path)
    columns = (
        "CosineSimilarity", "MaxAbsoluteError", "RelativeEuclideanDistance", "MaxRelativeError", "MeanRelativeError"
    )  # fmt: skip
    rows = by_tensor(only_result(tmp_path))
    for name, numbers in VENDOR_MAX_100.items():
        row = rows[name]
        printed = [float(row[column]) for column in columns]
        assert printed == pytest.approx(numbers, abs=2e-6), name


@needs_outside_data
def test_a_range_and_a_mapping_are_the_vendors(tmp_path: Path) -> None:
    """`-r 20,30,3` and `-map` of msaccucmp 26.2.0 on the same data."""
    data = ("--data", LENET / "precision_data", "--work", "w")
    tool(*data, "vc", "-r", "20,30,3", cwd=tmp_path)
    found = [(row["OpSequence"], row["OpType"], row["TensorIndex"]) for row in cells(only_result(tmp_path))]
    assert found == [
        ("20", "Cast", "trans_Cast_4:input:0"), ("20", "Cast", "trans_Cast_4:output:0"), ("23", "Reshape", "NaN"),
        ("26", "TransData", "trans_TransData_5:input:0"), ("26", "TransData", "trans_TransData_5:output:0"),
        ("29", "TransData", "trans_TransData_6:input:0"), ("29", "TransData", "trans_TransData_6:output:0"),
        ("30", "Cast", "trans_Cast_7:input:0"), ("30", "Cast", "trans_Cast_7:output:0"),
    ]  # fmt: skip
    shutil.rmtree(tmp_path / "w")
    tool(*data, "vc", "-map", cwd=tmp_path)
    (path,) = tmp_path.rglob("mapping_*.csv")
    rows = cells(path)
    assert (len(rows), sum(row["GroundTruthPath"] != "NaN" for row in rows)) == (194, 176)


# --- the checks of ac -----------------------------------------------------------------------------------------------


def with_cast(target: list[float]) -> list[Node]:
    """A chain that ends with a cast of (1, 70000) to float16."""
    nodes = chain()
    wide = Node(name="wide/Add", type="Add", inputs=(nodes[1],), output=values(1, 70000), golden=values(1, 70000))
    cast = Node(
        name="trans_Cast_0", type="Cast", inputs=(wide,), output=np.array(target, np.float16), originals=(),
    )  # fmt: skip
    return [*nodes, wide, cast]


def narrowing(made: SmallTree) -> None:
    """The cast's types as the graph of a real run has them: the small tree describes outputs, as float32, only."""
    text = made.graph.read_text("ascii")
    head, marker, tail = text.rpartition('type: "Cast"')
    assert marker
    described = 'input_desc {\n name: "x"\n dtype: DT_FLOAT\n layout: "ND"\n}\n'
    made.graph.write_text(head + marker + "\n" + described + tail.replace("DT_FLOAT\n", "DT_FLOAT16\n", 1), "ascii")


def checks_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in document["checks"]}


def json_of(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    document: dict[str, Any] = tool(*arguments, cwd=cwd).json
    return document


def test_a_dangerous_cast_is_found(tmp_path: Path) -> None:
    made = small_tree(tmp_path / "precision_data", with_cast([1, 65504]))
    narrowing(made)
    run = tool("ac", "-c", "--fail", cwd=tmp_path, code=1)
    assert "Dangerous casts" in run.out
    assert "1 of 1 cast to a narrower type lost values" in run.text
    reason = "values up to 70000, while the type ends at 65504"
    assert f"trans_Cast_0: float32 → float16: {reason}" in run.text
    assert run.out.index("Dangerous casts") < run.out.index("Graph similarity") < run.out.index("━ Verdict ━")
    found = checks_of(json_of("ac", "--json", cwd=tmp_path))["dangerous_casts"]
    assert found["finding"]["grade"] == "warning"
    assert found["details"] == [
        {"op_name": "trans_Cast_0", "op_type": "Cast", "source": "float32", "target": "float16", "verdict": "dangerous",
         "reason": reason}
    ]  # fmt: skip


def test_the_graphs_of_two_runs(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", chain())
    small_tree(tmp_path / "precision_data", chain()[:4], run="debug_1")
    run = tool("ac", "-c", cwd=tmp_path)
    # 5 and 4 ops, of which 4 have a partner.
    assert "the graphs of debug_0 and debug_1 are 88.9% similar" in run.text
    assert "only debug_0 1 op: last/Sub" in run.text
    found = checks_of(json_of("ac", "--json", cwd=tmp_path))["graph_similarity"]
    assert found["details"][0]["only_left"] == ["last/Sub"]


def test_checks_that_cannot_be_made_say_why(tmp_path: Path) -> None:
    made = small_tree(tmp_path / "precision_data", chain())
    text = tool("ac", "-c", cwd=tmp_path).text
    assert "skipped (needs the graphs of two NPU runs; only debug_0 has one" in text
    # Only the result is left.
    shutil.rmtree(made.root / "npu")
    run = tool("ac", cwd=tmp_path)
    assert run.text.count("skipped (no graph") == 3
    document = json_of("ac", "--json", cwd=tmp_path)
    assert [check["finding"] for check in document["checks"]] == [None, None, None, None]
    assert all(check["skipped"].startswith("no graph") for check in document["checks"][:3])
    assert document["checks"][3]["skipped"].startswith("no overflow status file")


def test_the_run_that_was_named_is_checked(tmp_path: Path) -> None:
    """Not the one of the data folder."""
    made = small_tree(tmp_path / "elsewhere", with_cast([1, np.inf]))
    narrowing(made)
    small_tree(tmp_path / "precision_data", chain())
    named = ("-lt", made.dump_path, "-rt", made.root / "tf" / "dump")
    run = tool("ac", *named, cwd=tmp_path)
    assert "the type ends at 65504; 1 Inf appear" in run.text
    shutil.rmtree(made.graph.parent)
    text = tool("ac", *named, cwd=tmp_path).text
    assert text.count("skipped (the two sides were compared without a graph") == 3


def test_help_names_every_option(tmp_path: Path) -> None:
    text = tool("vc", "-h", cwd=tmp_path).text
    for option in ("-op", "--range", "--select", "--top", "--algorithm", "--max", "--map", "--overflow_detection"):
        assert option in text
    assert "9 MeanRelativeError" in text
    assert "example: vc -op conv1/Conv2D --top 50" in text


def test_the_casts_of_a_real_network_are_judged_by_their_values(real_data: Path, tmp_path: Path) -> None:
    """Those that narrow are from float32 to float16, and no value is out of its range."""
    document = json_of("--data", real_data, "--work", "w", "ac", "-c", "--json", cwd=tmp_path)
    found = checks_of(document)["dangerous_casts"]
    assert [(one["source"], one["target"], one["verdict"]) for one in found["details"]] == [
        ("float32", "float16", "harmless")
    ] * 11
    rows = {f"{row['op']}:{row['slot']}": row for row in document["results"][0]["rows"]}
    known = [rows[f"{one['op_name']}:input:0"]["npu"] for one in found["details"]]
    assert known.count(None) == 1  # of the fed image the benchmark has no tensor
    for before in filter(None, known):
        assert max(-before["minimum"], before["maximum"]) < 65504
