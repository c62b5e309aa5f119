"""A metric is a field, a formula and one entry in the table of columns; a column is one entry: everything has them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import by_tensor, only_result, result_files, tool
from report_files import result_of
from small_tree import chain, small_tree

import precision_tool

PACKAGE = Path(precision_tool.__file__).parent
FIELD, COLUMN = "total_absolute_error", "total abs error"
#: What a contributor writes, by the recipe of CONTRIBUTING.md: file, the line before, the line.
RECIPE = (
    ("model/comparison.py", "    mean_relative_error: float\n", f"    {FIELD}: float = float('nan')\n"),
    (
        "compare/pair_sums.py",
        "        mean_relative_error=_mean_relative(first),\n",
        f"        {FIELD}=sums.error_total / error_scale,\n",
    ),
    (
        "compare/columns.py",
        '    _vendors("MeanRelativeError", "mean_relative_error", "mean_relative_error"),\n',
        f'    _metric("{COLUMN}", "{FIELD}"),\n',
    ),
    (
        "compare/columns.py",
        '    Column(name="OriginalOps", field="pair.original_names", form=NAMES, json="original_ops", **_NOT_SHOWN),\n',
        '    Column(name="Elements", field="npu.count", form=WHOLE, json="elements"),\n',
    ),
)
TENSOR = "middle/Mul:output:0"


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the package has one metric more."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(PACKAGE, root / "precision_tool", ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, line in RECIPE:
        path = root / "precision_tool" / "lib" / name
        text = path.read_text("utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, before + line), "utf-8")
    return {"PYTHONPATH": str(root)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which one op of three is off by a half in each of its 1024 elements."""
    root = tmp_path_factory.mktemp("data")
    source, data, first, second, last = chain()
    assert second.output is not None
    wrong = replace(second, output=second.output + np.float32(0.5))
    small_tree(root / "precision_data", [source, data, first, wrong, replace(last, inputs=(wrong,))])
    return root


def test_result_file_json_and_the_screen_of_one_tensor_have_it(extended: dict[str, str], folder: Path) -> None:
    document = tool("vc", "--json", cwd=folder, env=extended)
    cells = by_tensor(only_result(folder))[TENSOR]
    assert (float(cells[COLUMN]), cells["Elements"]) == (512, "1024")
    (result,) = document.results
    (row,) = [row for row in result["rows"] if row["op"] == "middle/Mul" and row["slot"] == "output:0"]
    assert (row["metrics"][FIELD], row["elements"]) == (512, 1024)
    read = tool("vcs", "--json", cwd=folder, env=extended)
    (row,) = [row for row in read.results[0]["rows"] if row["op"] == "middle/Mul" and row["slot"] == "output:0"]
    assert (row["metrics"][FIELD], row["elements"]) == (512, 1024)
    shown = tool("cp", "middle/Mul", cwd=folder, env=extended)
    assert f"{COLUMN} 512" in shown.text


def test_it_can_be_asked_for_alone(extended: dict[str, str], folder: Path) -> None:
    result = tool("vc", "-alg", COLUMN, "--json", cwd=folder, env=extended).results[0]
    metrics = next(row["metrics"] for row in result["rows"] if row["op"] == "middle/Mul" and row["slot"] == "output:0")
    assert metrics[FIELD] == 512
    assert metrics["mean_relative_error"] is None


def test_the_vendors_file_is_as_it_was(extended: dict[str, str], folder: Path, tmp_path: Path) -> None:
    found = []
    for name, environment in (("with", extended), ("without", {})):
        copy = tmp_path / name / "precision_data"
        shutil.copytree(folder / "precision_data", copy)
        tool("vc", "--compat", cwd=copy.parent, env=environment)
        found.append(result_files(copy)[-1].read_bytes())
    assert found[0] == found[1]


def test_ni_has_it_in_its_table_and_its_json(extended: dict[str, str], folder: Path) -> None:
    screen = tool("ni", "middle/Mul", cwd=folder, env=extended).out
    header, *lines = screen[screen.index("dump analysis") :].splitlines()[1:]
    npu, benchmark = next(pair for pair in pairwise(lines) if pair[0].startswith("output:0"))
    # Cells are right of their heading's end: one of the NPU's tensor in its line, one of both below it.
    assert npu[: header.index("Elements") + len("Elements")].split()[-1] == "1024"
    assert benchmark[: header.index(COLUMN) + len(COLUMN)].split()[-1] == "512"
    (op,) = json.loads(tool("ni", "middle/Mul", "--json", cwd=folder, env=extended).out)["ops"]
    (row,) = [row for row in op["tensors"] if row["slot"] == "output:0"]
    assert (row[FIELD], row["elements"]) == (512, 1024)


def test_the_report_has_it_and_tells_its_page_to_show_it(extended: dict[str, str], folder: Path) -> None:
    tool("ac", "-c", "--report", "report.html", cwd=folder, env=extended, code=None)
    result = result_of(folder / "report.html")
    assert 512 in result["tensors"][COLUMN]
    assert 1024 in result["tensors"]["Elements"]
    shown = {one["key"]: one for one in result["tensor_columns"]}
    assert shown[COLUMN] == {"key": COLUMN, "name": COLUMN, "part": "metrics", "look": "figure"}
    assert shown["Elements"] == {"key": "Elements", "name": "Elements", "part": "npu", "look": "count"}


def test_a_study_keeps_it_in_its_table_and_its_result_files(extended: dict[str, str], folder: Path) -> None:
    tool("ac", "--all", "--csv", "--table", "all.parquet", cwd=folder, env=extended, code=None)
    rows = pq.read_table(folder / "all.parquet").to_pylist()
    (row,) = [row for row in rows if row["op"] == "middle/Mul" and row["slot"] == "output:0"]
    assert (row[FIELD], row["npu_count"]) == (512, 1024)
    (file,) = (folder / "precision_data").rglob("result_step_0_rank_0_*.csv")
    cells = by_tensor(file)[TENSOR]
    assert (float(cells[COLUMN]), cells["Elements"]) == (512, "1024")
