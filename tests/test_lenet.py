"""A LeNet step of a real network against its truth, and cell by cell against what the vendor's tool printed for it.

Every cell that differs from the vendor's has an explanation here, by name, and what can be proved is proved with
float64 over whole arrays. The data is not part of the project: ../shared/data/lenet (its README says what it is).
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import isnan, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import by_tensor, fingerprint, only_result, tool

import precision_tool
from precision_tool.lib.api import CompareResult
from precision_tool.lib.model.comparison import Comparison, Status
from precision_tool.lib.model.tensor import Tensor

LENET = Path(__file__).resolve().parents[2] / "shared" / "data" / "lenet"
DATA = LENET / "precision_data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{LENET} is not here: it does not come with the project")

Array = npt.NDArray[Any]
METRICS = (
    "CosineSimilarity", "MaxAbsoluteError", "AccumulatedRelativeError", "RelativeEuclideanDistance",
    "KullbackLeiblerDivergence", "MeanAbsoluteError", "RootMeanSquareError", "MaxRelativeError", "MeanRelativeError",
)  # fmt: skip


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
    rows = by_tensor(only_result(tmp_path))
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


# --- plain formulas over whole arrays -------------------------------------------------------------------------------


def stored(tensor: Tensor) -> Array:
    """The tensor as it lies in its file."""
    array: Array
    if tensor.path.endswith(".npy"):
        array = np.load(tensor.path, allow_pickle=False)
    else:
        array = np.fromfile(tensor.path, tensor.dtype, prod(tensor.shape), offset=tensor.offset).reshape(tensor.shape)
    return array


def unpacked(tensor: Tensor) -> Array:
    """The values without padding, in the order of the training script (NHWC, HWCN or rows and columns)."""
    array = stored(tensor)
    shape = tensor.origin_shape
    if tensor.layout == "NC1HWC0":
        assert shape is not None
        n, c1, h, w, c0 = array.shape
        array = array.transpose(0, 2, 3, 1, 4).reshape(n, h, w, c1 * c0)[..., : shape[-1]]
    elif tensor.layout == "FRACTAL_NZ":
        assert shape is not None
        c1, n1, n0, c0 = array.shape
        array = array.transpose(1, 2, 0, 3).reshape(n1 * n0, c1 * c0)[: shape[0], : shape[1]]
    elif tensor.layout == "FRACTAL_Z":
        assert shape is not None
        h, w, c, n = shape
        _, n1, n0, c0 = array.shape
        array = array.reshape(-1, h, w, n1, n0, c0).transpose(1, 2, 0, 5, 3, 4)
        array = array.reshape(h, w, -1, n1 * n0)[:, :, :c, :n]
    return array


def formulas(x: Array, y: Array) -> dict[str, float]:
    """The metrics of formats.md §5 in float64."""
    x, y = x.astype(np.float64).reshape(-1), y.astype(np.float64).reshape(-1)
    error = np.abs(x - y)
    relative = np.where(np.abs(y) > 2.2e-16, error / np.where(y == 0, 1, np.abs(y)), 0)
    norms = np.linalg.norm(x), np.linalg.norm(y)
    spans = np.ptp(x), np.ptp(y)
    kl = 0.0
    if all(spans):
        p, q = (np.maximum((a - a.min()) / span, 2.0**-23) for a, span in ((x, spans[0]), (y, spans[1])))
        p, q = p / p.sum(), q / q.sum()
        kl = float((p * np.log(p / q)).sum())
    return {
        "CosineSimilarity": float(x @ y / (norms[0] * norms[1])),
        "MaxAbsoluteError": float(error.max()),
        "AccumulatedRelativeError": float(relative.sum()),
        "RelativeEuclideanDistance": float(np.linalg.norm(x - y) / norms[1]),
        "KullbackLeiblerDivergence": kl,
        "MeanAbsoluteError": float(error.mean()),
        "RootMeanSquareError": float(np.sqrt((error**2).mean())),
        "MaxRelativeError": float(relative.max()),
        "MeanRelativeError": float(relative.mean()),
    }


def deviation(x: Array, y: Array) -> str:
    """The StandardDeviation cell."""
    sides = []
    for a in (x.astype(np.float64), y.astype(np.float64)):
        sides.append(";".join(f"{0.0 if abs(value) < 0.001 else value:.3f}" for value in (a.mean(), a.std())))
    return f"({sides[0]}),({sides[1]})"


def is_right(cell: str, exact: float) -> bool:
    """Whether a printed number is the exact one: half of the last of six digits, or what one row of float32 loses."""
    return abs(float(cell) - exact) <= 5.1e-7 + 2e-7 * abs(exact)


def is_near(cell: str, exact: float, factor: float = 1.0) -> bool:
    """Whether float32 arithmetic explains a printed number."""
    return abs(float(cell) - exact) <= factor * (3e-6 + 3e-6 * abs(exact))


# --- explanations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A cell of the vendor's file and ours that differ."""

    column: str
    vendor: str
    ours: str
    row: Comparison
    vendor_row: Mapping[str, str]

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        npu, golden = self.row.pair.npu, self.row.pair.golden
        assert isinstance(npu, Tensor)
        assert isinstance(golden, Tensor)
        return npu, golden


def own_words(cell: Cell) -> bool:
    """Both say why nothing was compared, each in its words."""
    return cell.column == "CompareFailReason" and cell.row.metrics is None and bool(cell.vendor) and bool(cell.ours)


def float32_ratio(cell: Cell) -> bool:
    """The vendor forms |x/y - 1| in float32, which loses what x and y have in common. Ours is right."""
    if cell.column not in ("AccumulatedRelativeError", "MaxRelativeError", "MeanRelativeError"):
        return False
    x, y = (unpacked(side).reshape(-1).astype(np.float32) for side in cell.sides)
    exact = formulas(x, y)[cell.column]
    keep = np.abs(y) > 2.2e-16
    ratio = np.abs(x[keep] / y[keep] - np.float32(1))
    theirs = {
        "AccumulatedRelativeError": ratio.sum(),
        "MaxRelativeError": ratio.max(),
        "MeanRelativeError": ratio.sum() / np.float32(x.size),
    }[cell.column]
    return is_right(cell.ours, exact) and abs(float(theirs) - float(cell.vendor)) <= 1e-6 + 4e-7 * abs(exact)


def float32_sums(cell: Cell) -> bool:
    """The vendor sums and scales in float32. Ours is right, and the vendor's as near as float32 comes."""
    if cell.column not in ("CosineSimilarity", "KullbackLeiblerDivergence"):
        return False
    exact = formulas(*map(unpacked, cell.sides))[cell.column]
    return is_right(cell.ours, exact) and is_near(cell.vendor, exact)


def two_dumps_are_not_flattened(cell: Cell) -> bool:
    """Of ND the vendor prints the flat size, but not when both sides are dumps."""
    if cell.column != "Shape":
        return False
    npu, _ = cell.sides
    return npu.layout == "ND" and cell.vendor == str(list(npu.shape)).replace(" ", "")


def type_of_an_op_of_one_run(cell: Cell) -> bool:
    """The vendor prints no type for an op that only one of the runs has; the name of its file tells it."""
    return cell.column == "OpType" and cell.vendor == "NaN" and cell.row.metrics is None and cell.row.pair.slot == ""


def padding_counts(cell: Cell) -> bool:
    """The vendor compares two dumps in FRACTAL_Z and NC1HWC0 with their padding, which dilutes every mean."""
    if cell.row.metrics is None:
        return False
    npu, golden = cell.sides
    if npu.layout not in ("FRACTAL_Z", "NC1HWC0") or npu.origin_shape is None or prod(npu.origin_shape) == npu.size:
        return False
    return _vendor_took(cell, stored(npu), stored(golden))


def prefix_is_cut(cell: Cell) -> bool:
    """The vendor turns two dumps with named axes to NCHW and cuts that to the shape before: most of it is gone."""
    if cell.row.metrics is None:
        return False
    arrays = []
    for side in cell.sides:
        array, shape = stored(side), side.origin_shape
        if side.layout == "NC1HWC0":
            n, c1, h, w, c0 = array.shape
            array = array.transpose(0, 1, 4, 2, 3).reshape(n, c1 * c0, h, w)
        elif side.layout == "HWCN":
            array = array.transpose(3, 2, 0, 1)
        else:
            return False
        assert shape is not None
        arrays.append(array[tuple(slice(extent) for extent in shape)])
    return arrays[0].size < prod(cell.sides[0].shape) and _vendor_took(cell, *arrays)


def _vendor_took(cell: Cell, x: Array, y: Array) -> bool:
    """Whether the vendor's cell is that of these arrays, and ours that of all elements without padding."""
    right = tuple(map(unpacked, cell.sides))
    if cell.column == "StandardDeviation":
        return cell.vendor == deviation(x, y) and cell.ours == deviation(*right)
    if cell.column not in METRICS:
        return False
    return is_right(cell.ours, formulas(*right)[cell.column]) and is_near(cell.vendor, formulas(x, y)[cell.column], 3)


Explanation = Callable[[Cell], bool]
ALWAYS = (own_words, float32_ratio, float32_sums)
TWO_DUMPS = (*ALWAYS, two_dumps_are_not_flattened, type_of_an_op_of_one_run, padding_counts, prefix_is_cut)


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    return header, lines


def name_of(header: list[str], line: list[str]) -> str:
    """What tells a line from all others: its tensor, or the ops of both sides."""
    tensor = line[header.index("TensorIndex")]
    return tensor if tensor != "NaN" else f"{line[2]} | {line[header.index('GroundTruth')]}"


def explain(
    vendor_file: str, result: CompareResult, folder: Path, explanations: tuple[Explanation, ...], skip: set[str]
) -> tuple[Counter[str], set[str], set[str]]:
    """Names of the explanations with the cells each explains; lines only in the vendor's file; lines only in ours."""
    path = folder / "ours.csv"
    result.write_csv(path)
    header, lines = table(path)
    vendor_header, vendor_lines = table(LENET / "vendor" / vendor_file)
    assert header[: len(vendor_header)] == vendor_header
    ours = {name_of(header, line): (line, row) for line, row in zip(lines, result.rows, strict=True)}
    theirs = {name_of(vendor_header, line): line for line in vendor_lines}
    assert len(ours) == len(lines)
    assert len(theirs) == len(vendor_lines)
    # The lines that both have stand in the same order.
    assert [name for name in ours if name in theirs] == [name for name in theirs if name in ours]
    found: Counter[str] = Counter()
    for name, vendor_line in theirs.items():
        if name not in ours:
            continue
        line, row = ours[name]
        for column, vendor_cell, cell in zip(vendor_header, vendor_line, line, strict=False):
            if vendor_cell == cell or column in skip:
                continue
            difference = Cell(column, vendor_cell, cell, row, dict(zip(vendor_header, vendor_line, strict=True)))
            why = next((each.__name__ for each in explanations if each(difference)), None)
            assert why is not None, (name, column, vendor_cell, cell)
            found[why] += 1
    return found, set(theirs) - set(ours), set(ours) - set(theirs)


def test_every_cell_against_the_benchmark(tmp_path: Path) -> None:
    """`npu_vs_tf.csv`: same lines, same order, and each cell the same or explained."""
    found, only_theirs, only_ours = explain("npu_vs_tf.csv", compared("debug_0", "tf/dump"), tmp_path, ALWAYS, set())
    assert only_theirs == only_ours == set()
    assert set(found) == {"own_words", "float32_ratio", "float32_sums"}
    not_compared = sum(row.metrics is None for row in compared("debug_0", "tf/dump").rows)
    assert found["own_words"] == not_compared == 18


def test_every_cell_of_the_run_without_fusion(tmp_path: Path) -> None:
    found, only_theirs, only_ours = explain(
        "unfused_vs_tf.csv", compared("debug_1", "tf/dump"), tmp_path, ALWAYS, set()
    )
    assert only_theirs == only_ours == set()
    assert set(found) == {"own_words", "float32_ratio", "float32_sums"}


def test_every_cell_of_two_runs(tmp_path: Path) -> None:
    """`npu_vs_npu.csv`, by name. Where two tensors of one op differ in shape, the vendor gives up the whole op."""
    result = compared("debug_0", "npu/debug_1/dump")
    found, only_theirs, only_ours = explain("npu_vs_npu.csv", result, tmp_path, TWO_DUMPS, set())
    assert set(found) == {explanation.__name__ for explanation in TWO_DUMPS}
    header, lines = table(LENET / "vendor" / "npu_vs_npu.csv")
    given_up = {name_of(header, line): line for line in lines if name_of(header, line) in only_theirs}
    assert all("The shape does not match" in line[-1] for line in given_up.values())
    ops = {name.split(" | ")[0] for name in given_up}
    # Where some inputs differ in shape and no output does, it leaves out all inputs.
    for row in result.rows:
        if row.pair.npu is not None and row.pair.golden is not None and row.pair.npu.shape != row.pair.golden.shape:
            ops.add(row.pair.op_name)
    assert {name.rsplit(":", 2)[0] for name in only_ours} <= ops
    # Of those, ours compares what is the same tensor in another layout, and says of the others what is wrong.
    rest = [row for row in result.rows if row.pair.tensor_index in only_ours]
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
            assert row.note
