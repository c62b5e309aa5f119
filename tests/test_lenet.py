"""A LeNet step of a real network against its truth, and cell by cell against what the vendor's tool printed for it.

Every cell that differs from the vendor's has an explanation here, by name, and what can be proved is proved with
float64 over whole arrays. The data is not part of the project: ../shared/data/lenet (its README says what it is).
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from command_line import by_tensor, fingerprint, result_files, tool
from outside_data import LENET, needs_outside_data
from vendor_cells import (
    ALWAYS,
    CORNERS,
    TWO_DUMPS,
    explain,
    formulas,
    name_of,
    no_address,
    packed_like_the_other,
    table,
    unpacked,
)

import precision_tool
from precision_tool.lib.api import CompareResult
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.tensor import Tensor

DATA = LENET / "precision_data"
VENDOR = LENET / "vendor"

pytestmark = needs_outside_data


def truth_of(run: str) -> dict[str, Any]:
    name = {"debug_0": "truth.json", "debug_1": "truth_debug_1.json"}[run]
    found: dict[str, Any] = json.loads((LENET / name).read_text("utf-8"))
    return found


@cache
def compared(run: str, benchmark: str) -> CompareResult:
    """The comparison of a run with a folder of the data."""
    (result,) = precision_tool.compare(DATA / "npu" / run / "dump", DATA / benchmark, workers=1)
    return result


# --- against the truth ----------------------------------------------------------------------------------------------


def test_the_culprit_is_named(tmp_path: Path) -> None:
    truth = truth_of("debug_0")
    before = fingerprint(LENET)
    run = tool("--data", DATA, "--work", "w", "ac", "-c", "--fail", "--json", cwd=tmp_path, code=1)
    assert fingerprint(LENET) == before
    (result,) = run.results
    (finding,) = result["findings"]
    assert finding["kind"] == "first_faulty_op"
    assert finding["op_name"] == truth["culprit"]
    assert (finding["op_type"], finding["pass_name"]) == (truth["type"], truth["pass"])
    assert result["graph"] == str(DATA / truth["graph"])
    assert result["npu"] == str(DATA / truth["dump_dir"])
    (path,) = (one for one in result_files(tmp_path) if one.name.startswith("result_"))  # that of debug_1 is beside it
    rows = by_tensor(path)
    below = [name for name, row in rows.items() if ":output:" in name and float(row["CosineSimilarity"]) < 0.98]
    assert below[0] == truth["first_output_below_0.98"]
    assert len(below) == truth["counts"]["outputs_below_0.98"]
    assert truth["culprit"] in tool("--data", DATA, "--work", "w", "ac", cwd=tmp_path).text


def test_the_run_without_fusion_is_clean() -> None:
    assert truth_of("debug_1")["bug_op"] is None
    (finding,) = compared("debug_1", "tf/dump").findings()
    assert finding.kind == "all_agree"


@pytest.mark.parametrize("run", ["debug_0", "debug_1"])
def test_every_cosine_is_the_true_one(run: str) -> None:
    rows = {row.pair.tensor_index: row for row in compared(run, "tf/dump").rows if row.pair.slot}
    tensors = {tensor["tensor"]: tensor for tensor in truth_of(run)["tensors"]}
    assert set(rows) == set(tensors)
    checked = 0
    for name, tensor in tensors.items():
        metrics = rows[name].metrics
        if tensor["cosine"] is None:
            assert tensor["status"] != "ok"
            assert metrics is None
            continue
        assert metrics is not None, name
        if metrics.is_scalar:
            assert metrics.cosine == 1  # the vendor's rule
            continue
        assert abs(metrics.cosine - tensor["cosine"]) <= 1e-6, name
        checked += 1
    assert checked > 150


# --- cell by cell against the vendor ----------------------------------------------------------------------------------


def test_every_cell_against_the_benchmark(tmp_path: Path) -> None:
    """`npu_vs_tf.csv`: same lines, same order, and each cell the same or explained."""
    found = explain(VENDOR / "npu_vs_tf.csv", compared("debug_0", "tf/dump"), tmp_path, ALWAYS)
    assert found.only_theirs == found.only_ours == set()
    assert set(found.cells) == {"own_words", "float32_ratio", "float32_sums"}
    not_compared = sum(row.metrics is None for row in compared("debug_0", "tf/dump").rows)
    assert found.cells["own_words"] == not_compared == 18


def test_every_cell_of_the_run_without_fusion(tmp_path: Path) -> None:
    found = explain(VENDOR / "unfused_vs_tf.csv", compared("debug_1", "tf/dump"), tmp_path, ALWAYS)
    assert found.only_theirs == found.only_ours == set()
    assert set(found.cells) == {"own_words", "float32_ratio", "float32_sums"}


def test_every_cell_of_the_fused_run_against_the_other(tmp_path: Path) -> None:
    """`fused_vs_unfused.csv` (-f and -cf): ours does it with the graph of the fused run alone."""
    (graph,) = (DATA / "npu" / "debug_0" / "graph").glob("*_00000005_graph_1_Build.txt")
    sides = (DATA / "npu" / "debug_0" / "dump", DATA / "npu" / "debug_1" / "dump")
    (result,) = precision_tool.compare(*sides, graph=graph, workers=1)
    found = explain(
        VENDOR / "fused_vs_unfused.csv", result, tmp_path, (no_address, packed_like_the_other, *TWO_DUMPS, *CORNERS)
    )
    assert found.only_theirs == set()
    # The vendor has no lines of what the compiler put in, and cannot trace inputs back through it.
    assert {line.split("_")[1] for line in found.only_ours} == {"Cast", "TransData", "const"}
    assert set(found.cells) == {
        "float32_ratio", "no_address", "own_remark", "own_words", "packed_like_the_other", "padding_counts",
        "two_dumps_are_not_flattened", "vendor_gives_up",
    }  # fmt: skip


def test_every_cell_of_two_runs(tmp_path: Path) -> None:
    """`npu_vs_npu.csv`, by name. Where two tensors of one op differ in shape, the vendor gives up the whole op."""
    # Without their graphs: with them, ops that the compiler put in are matched by what they connect.
    sides = [shutil.copytree(DATA / "npu" / run / "dump", tmp_path / run) for run in ("debug_0", "debug_1")]
    (result,) = precision_tool.compare(*sides, workers=1)
    found = explain(VENDOR / "npu_vs_npu.csv", result, tmp_path, TWO_DUMPS)
    assert set(found.cells) == {explanation.__name__ for explanation in TWO_DUMPS}
    header, lines = table(VENDOR / "npu_vs_npu.csv")
    given_up = {name_of(header, line): line for line in lines if name_of(header, line) in found.only_theirs}
    assert all("The shape does not match" in line[-1] for line in given_up.values())
    ops = {name.split(" | ")[0] for name in given_up}
    # Where some inputs differ in shape and no output does, it leaves out all inputs.
    for row in result.rows:
        if row.pair.npu is not None and row.pair.golden is not None and row.pair.npu.shape != row.pair.golden.shape:
            ops.add(row.pair.op_name)
    assert {name.rsplit(":", 2)[0] for name in found.only_ours} <= ops
    # Of those, ours compares what is the same tensor in another layout, and says of the others what is wrong.
    rest = [row for row in result.rows if row.pair.tensor_index in found.only_ours]
    same = [row for row in rest if row.metrics is not None]
    assert len(same) >= 10
    for row in same:
        npu, golden = row.pair.npu, row.pair.golden
        assert isinstance(npu, Tensor)
        assert isinstance(golden, Tensor)
        assert npu.origin_shape == golden.origin_shape
        assert row.metrics is not None
        exact = formulas(unpacked(npu), unpacked(golden))
        assert isnan(row.metrics.cosine) or row.metrics.cosine == pytest.approx(exact["CosineSimilarity"], abs=1e-6)
        assert row.metrics.mean_absolute_error == pytest.approx(exact["MeanAbsoluteError"], rel=1e-5, abs=1e-9)
    for row in rest:
        if row.metrics is None:
            assert row.pair.status in (Status.SIZE_MISMATCH, Status.LAYOUT)
            assert row.reason
