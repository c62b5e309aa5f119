"""The pair of ../shared/data/lenet (fused debug_0, unfused debug_1): its pass, and what the vendor printed for it."""

from __future__ import annotations

import csv
import json
from math import isnan, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import by_tensor, fingerprint, only_result, tool
from outside_data import LENET, needs_outside_data

from precision_tool.lib.compare.folders import CompareOptions, compare_folders
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor

DATA = LENET / "precision_data"

pytestmark = needs_outside_data


def truth() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LENET / "truth.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("options", [[], ["--benchmark"]])
def test_its_pass_is_the_only_guilty_one(tmp_path: Path, options: list[str]) -> None:
    """By the pair, found by itself, and by the fused run with the benchmark."""
    before = fingerprint(LENET)
    run = tool("--data", DATA, "--work", "w", "fusion", "blame", *options, "--json", "--fail", cwd=tmp_path, code=1)
    assert fingerprint(LENET) == before
    (found,) = json.loads(run.out)
    verdicts = {one["pass"]: one["verdict"] for one in found["passes"]}
    assert verdicts.pop(truth()["pass"]) == "guilty"
    assert set(verdicts.values()) == {"clean"}
    assert found["switch_off"] == [truth()["pass"]]
    assert found["graph"] == str(DATA / truth()["graph"])
    guilty = [op for op in found["ops"] if op["verdict"] == "guilty"]
    assert [op["op_name"] for op in guilty] == truth()["affected"]
    # The truth's own figures of the fault: float64, from the very inputs of the op.
    recomputed = guilty[0]["recomputed"]
    assert recomputed["error"] == pytest.approx(truth()["local"]["rel_l2"], rel=1e-6)
    assert recomputed["cosine"] == pytest.approx(truth()["local"]["cosine"], abs=1e-6)
    assert recomputed["benchmark_error"] < 1e-3


def compared() -> dict[str, Row]:
    (result,) = compare_folders(
        str(DATA / "npu/debug_0/dump"),
        str(DATA / "npu/debug_1/dump"),
        resources=THIS_THREAD,
        options=CompareOptions(other_graph=""),
    )
    return {row.pair.tensor_index: row for row in result.rows if row.pair.slot}


def stored(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.fromfile(tensor.path, tensor.dtype, prod(tensor.shape), offset=tensor.offset)
    return array.astype(np.float64)


def test_every_row_of_the_vendor_is_there_and_its_numbers_are_ours() -> None:
    """`fused_vs_unfused.csv` has few rows with a number: the rest the vendor could not compare; we do."""
    with (LENET / "vendor" / "fused_vs_unfused.csv").open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    tensor, cosine = header.index("TensorIndex"), header.index("CosineSimilarity")
    vendor = {line[tensor]: line[cosine] for line in lines if line[tensor] != "NaN"}
    ours = compared()
    assert set(vendor) <= set(ours)
    numbers = {name: float(text) for name, text in vendor.items() if text != "NaN"}
    assert len(numbers) > 20
    for name, theirs in numbers.items():
        row = ours[name]
        assert row.metrics is not None, name
        if abs(row.metrics.cosine - theirs) <= 3e-6:
            continue
        # The vendor takes two dumps that are stored alike with their padding.
        npu, golden = row.pair.npu, row.pair.golden
        assert isinstance(npu, Tensor)
        assert isinstance(golden, Tensor)
        x, y = stored(npu), stored(golden)
        assert x.size > prod(npu.origin_shape or npu.shape), name
        assert float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) == pytest.approx(theirs, abs=3e-6), name
    dropped = set(ours) - set(vendor)
    assert len(dropped) > 50  # TransData and Cast, which vanish there
    assert all(name.startswith("trans_") for name in dropped)
    # All but what no original op stands for is compared.
    alone = {name for name, row in ours.items() if row.metrics is None}
    assert alone == {name for name, row in ours.items() if "dynamic_const" in str(row.reason)}


def test_every_cosine_is_the_true_one_of_both_benchmarked_runs() -> None:
    """The unfused run is right, so that the fused run is as far from it as from the benchmark, rounding aside."""
    known = {one["tensor"]: one["cosine"] for one in truth()["tensors"] if one["cosine"] is not None}
    checked = 0
    for name, row in compared().items():
        if row.metrics is None or row.metrics.is_scalar or name not in known or isnan(known[name]):
            continue
        assert row.metrics.cosine == pytest.approx(known[name], abs=1e-2), name
        checked += 1
    assert checked > 150


def test_the_documented_call(tmp_path: Path) -> None:
    """The procedure's `-m … -g … -f … -cf`, in the tool's words, with the graphs as the vendor's atc gives them."""
    run = tool(
        "--work", "w", "vc", "-lt", DATA / truth()["dump_dir"], "-rt", DATA / "npu/debug_1/dump",
        "-g", LENET / "vendor" / "debug_0.graph.json", "-cf", LENET / "vendor" / "debug_1.graph.json", cwd=tmp_path,
    )  # fmt: skip
    assert truth()["culprit"] in run.text
    row = by_tensor(only_result(tmp_path))[f"{truth()['culprit']}:output:0"]
    assert float(row["CosineSimilarity"]) == pytest.approx(truth()["local"]["cosine"], abs=1e-5)


def test_the_graphs_beside_each_other(tmp_path: Path) -> None:
    run = tool("--data", DATA, "graphs", "diff", "--json", cwd=tmp_path)
    found = json.loads(run.out)
    assert {one["name"]: (one["left"], one["right"]) for one in found["passes"]} == {
        "MatMulBiasAddFusionPass": (2, 0), "TbeConvDequantVaddReluQuantFusionPass": (2, 0),
        "TbeMatmulElemwiseFusionPass": (1, 0),
    }  # fmt: skip
    assert sum(len(one["ops"]) for one in found["fused"]) == truth()["counts"]["fused_ops"]
    assert found["only_left"] == found["only_right"] == []
