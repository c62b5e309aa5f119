"""Cells of a vendor's result file against ours: plain formulas in float64, and a name for every accepted difference.

An explanation is a function that takes a pair of cells that differ and says whether it explains them; what can be
proved is proved with float64 over whole arrays: ours is the right one, the vendor's what float32 gives.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.api import CompareResult
from precision_tool.lib.demo.dump_writer import pack
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor

Array = npt.NDArray[Any]
METRICS = (
    "CosineSimilarity", "MaxAbsoluteError", "AccumulatedRelativeError", "RelativeEuclideanDistance",
    "KullbackLeiblerDivergence", "MeanAbsoluteError", "RootMeanSquareError", "MaxRelativeError", "MeanRelativeError",
)  # fmt: skip


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
    """The metrics of FORMATS.md §5 in float64."""
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

#: Both sides' values, element by element, of tensors whose files alone do not tell; by tensor index.
Truth = Mapping[str, tuple[Array, Array]]


@dataclass(frozen=True)
class Cell:
    """A cell of the vendor's file and ours that differ."""

    column: str
    vendor: str
    ours: str
    row: Row
    vendor_row: Mapping[str, str]
    truth: tuple[Array, Array] | None = None
    #: Only so many elements were compared; 0: all.
    limit: int = 0

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        npu, golden = self.row.pair.npu, self.row.pair.golden
        assert isinstance(npu, Tensor)
        assert isinstance(golden, Tensor)
        return npu, golden

    @property
    def values(self) -> tuple[Array, Array]:
        """What both sides hold, flat, in one order."""
        x, y = self.truth or tuple(map(unpacked, self.sides))
        return x.reshape(-1)[: self.limit or None], y.reshape(-1)[: self.limit or None]

    @property
    def exact(self) -> float:
        """The true value of a metric."""
        return formulas(*self.values)[self.column]

    @property
    def ours_is_right(self) -> bool:
        """Whether our cell is what float64 gives over all elements."""
        if self.column == "StandardDeviation":
            return self.ours == deviation(*self.values)
        return self.column in METRICS and is_right(self.ours, self.exact)


#: What the vendor's reasons speak of → what ours may call it.
KINDS: tuple[tuple[str, tuple[Status, ...]], ...] = (
    (r"no dump file for my output operator", (Status.NO_NPU_DUMP, Status.UNREADABLE)),
    (r"The fusion operator list is empty", (Status.NO_NPU_DUMP,)),
    (r"no the ground truth dump file", (Status.NO_BENCHMARK, Status.NO_ORIGINAL_OP, Status.INTERMEDIATE)),
    (r"in the fusion rule file", (Status.NO_BENCHMARK, Status.NO_ORIGINAL_OP, Status.LAYOUT)),
    (r"the my output dump file for the op", (Status.NO_NPU_DUMP,)),
    (r"different shapes on the left and right|shape does not match", (Status.SIZE_MISMATCH, Status.LAYOUT)),
    (r"dtype\(.*\) does not support|Failed to parse dump file", (Status.UNREADABLE, Status.NOT_NUMERIC)),
    (r"Failed to execute 'compare'", (Status.COMPARED,)),
)


def own_words(cell: Cell) -> bool:
    """Both say why nothing was compared, each in its words, and mean the same kind of reason."""
    if cell.column != "CompareFailReason" or cell.row.metrics is not None or not cell.ours:
        return False
    kinds = [statuses for pattern, statuses in KINDS if re.search(pattern, cell.vendor)]
    return any(cell.row.pair.status in statuses for statuses in kinds)


def float32_ratio(cell: Cell) -> bool:
    """The vendor forms |x/y - 1| in float32, which loses what x and y have in common. Ours is right."""
    if cell.column not in ("AccumulatedRelativeError", "MaxRelativeError", "MeanRelativeError"):
        return False
    x, y = (side.astype(np.float32) for side in cell.values)
    keep = np.abs(y) > 2.2e-16
    ratio = np.abs(x[keep] / y[keep] - np.float32(1))
    theirs = {
        "AccumulatedRelativeError": ratio.sum(),
        "MaxRelativeError": ratio.max(initial=0),
        "MeanRelativeError": ratio.sum() / np.float32(x.size),
    }[cell.column]
    return cell.ours_is_right and abs(float(theirs) - float(cell.vendor)) <= 1e-6 + 4e-7 * abs(cell.exact)


def float32_sums(cell: Cell) -> bool:
    """The vendor sums and scales in float32. Ours is right, and the vendor's as near as float32 comes."""
    if cell.column not in METRICS or not isfinite(float(cell.vendor)):
        return False
    return cell.ours_is_right and is_near(cell.vendor, cell.exact)


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
    if (
        npu.layout not in ("FRACTAL_Z", "NC1HWC0", "FRACTAL_NZ")
        or npu.origin_shape is None
        or prod(npu.origin_shape) == npu.size
    ):
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
        elif side.layout == "HWCN" and array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif side.layout == "NHWC" and array.ndim == 4:
            array = array.transpose(0, 3, 1, 2)
        else:
            return False
        assert shape is not None
        arrays.append(array[tuple(slice(extent) for extent in shape)])
    return arrays[0].size < prod(cell.sides[0].shape) and _vendor_took(cell, *arrays)


def _vendor_took(cell: Cell, x: Array, y: Array) -> bool:
    """Whether the vendor's cell is that of these arrays, and ours that of all elements without padding."""
    if x.size != y.size:
        return False
    if cell.column == "StandardDeviation":
        return cell.vendor == deviation(x, y) and cell.ours_is_right
    return cell.ours_is_right and is_near(cell.vendor, formulas(x, y)[cell.column], 3)


def no_figures_of_bools(cell: Cell) -> bool:
    """With -cf the vendor gives no figures of two bool dumps, as it does without; ours are right."""
    if cell.row.metrics is None or any(side.dtype != "bool" for side in cell.sides):
        return False
    if cell.column == "CompareFailReason":
        return "does not support Boolean types" in cell.vendor
    return cell.vendor == "NaN" and cell.ours_is_right


def packed_like_the_other(cell: Cell) -> bool:
    """With -cf the vendor packs a plain dump as the other one is stored, and compares the padding too."""
    npu, golden = cell.row.pair.npu, cell.row.pair.golden
    if not isinstance(npu, Tensor) or not isinstance(golden, Tensor) or cell.row.metrics is None:
        return False
    if (npu.layout, golden.layout) not in (("HWCN", "FRACTAL_Z"), ("NHWC", "NC1HWC0"), ("NCHW", "NC1HWC0")):
        return False
    packed = pack(stored(npu), golden.layout, npu.layout)
    if cell.column == "Shape":
        return cell.vendor == str(list(packed.shape)).replace(" ", "")
    return _vendor_took(cell, packed, stored(golden))


def no_address(cell: Cell) -> bool:
    """With -cf the vendor prints no address of the other run's tensors."""
    return cell.column == "Address" and cell.vendor == "NaN" and cell.ours == str(cell.row.pair.golden.address)  # type: ignore[union-attr]


# --- explanations of corners ------------------------------------------------------------------------------------------


def vendor_gives_up(cell: Cell) -> bool:
    """The vendor cannot bring the tensor to the benchmark's layout, or cannot read it; ours can, and is right."""
    if cell.row.metrics is None or cell.vendor_row["CosineSimilarity"] != "NaN":
        return False
    if cell.column in ("DataType", "Shape", "CompareFailReason"):
        return True
    return cell.vendor == "NaN" and cell.ours_is_right


def vendor_is_silent(cell: Cell) -> bool:
    """Neither compared anything; ours says why."""
    return cell.column == "CompareFailReason" and cell.row.metrics is None and not cell.vendor and bool(cell.ours)


def own_remark(cell: Cell) -> bool:
    """Both compared; ours has something to remark."""
    if cell.column != "CompareFailReason" or cell.row.metrics is None:
        return False
    return cell.vendor in ("", "This tensor is scalar.") and bool(cell.ours)


def stored_type(cell: Cell) -> bool:
    """The vendor names the type that numpy has after decoding, ours the type of the file."""
    return (
        cell.column == "DataType" and cell.row.metrics is not None and cell.ours == cell.sides[0].dtype != cell.vendor
    )


def own_name(cell: Cell) -> bool:
    """Of an op whose original is the empty name the vendor prints `*`; ours the op whose tensor it is compared with."""
    return cell.column == "GroundTruth" and cell.vendor == "*" and cell.ours == cell.row.pair.op_name


def no_cosine_of_zeros(cell: Cell) -> bool:
    """One side is all zero and has no direction: `NaN` and a sentence there, `nan` (what the data gave) here."""
    if all(side.any() for side in cell.values):
        return False
    if cell.column == "CompareFailReason":
        return cell.vendor.startswith("Cannot compare by Cosine Similarity") and not cell.ours
    return cell.column == "CosineSimilarity" and (cell.vendor, cell.ours) == ("NaN", "nan")


def finite_elements(cell: Cell) -> bool:
    """NaN or Inf make the vendor's figures nan. Ours leaves out what agrees, and says where it does not."""
    x, y = (side.astype(np.float64) for side in cell.values)
    if np.isfinite(x).all() and np.isfinite(y).all():
        return False
    if cell.column == "StandardDeviation":
        return cell.ours == deviation(x[np.isfinite(x)], y[np.isfinite(y)])
    if cell.column not in METRICS:
        return False
    both = np.isfinite(x) & np.isfinite(y)
    agree = both | (np.isnan(x) & np.isnan(y)) | (x == y)
    if agree.all():
        return is_right(cell.ours, formulas(x[both], y[both])[cell.column])
    return cell.ours in ("nan", "inf")


def float32_range(cell: Cell) -> bool:
    """Squares of these values leave float32's range; float64 holds them."""
    if cell.column not in METRICS:
        return False
    largest = max(np.abs(side.astype(np.float64)).max() for side in cell.values)
    return (largest > 1e18 or largest < 1e-17) and cell.ours_is_right


def float32_integers(cell: Cell) -> bool:
    """Float32 cannot tell these integers apart."""
    x, y = cell.values
    if x.dtype.kind not in "iu" or cell.column != "StandardDeviation":
        return False
    return cell.ours_is_right and cell.vendor == deviation(*(side.astype(np.float32) for side in (x, y)))


def bool_distance(cell: Cell) -> bool:
    """numpy cannot subtract bools, so the vendor has no distance of them."""
    x, y = cell.values
    if x.dtype != np.bool_ or cell.row.metrics is None:
        return False
    if cell.column == "CompareFailReason":
        return "does not support Boolean types" in cell.vendor
    x, y = x.astype(np.float64), y.astype(np.float64)
    exact = float(np.linalg.norm(x - y) / np.linalg.norm(y))
    return cell.column == "RelativeEuclideanDistance" and cell.vendor == "NaN" and is_right(cell.ours, exact)


def raw_blocks(cell: Cell) -> bool:
    """A blocked tensor whose origin is declared ND: the vendor compares the stored bytes as they lie, cut to size."""
    npu, golden = cell.sides
    if npu.layout != "NC1HWC0":
        return False
    if cell.column == "Shape":
        return cell.vendor == f"[{golden.size},1,1,1]"
    return _vendor_took(cell, stored(npu).reshape(-1)[: golden.size], stored(golden).reshape(-1))


def larger_is_cut(cell: Cell) -> bool:
    """The NPU's tensor has more elements: the vendor compares the first ones, ours says that the sizes differ."""
    if cell.row.pair.status is not Status.SIZE_MISMATCH:
        return False
    npu, golden = cell.sides
    if npu.size <= golden.size:
        return False
    if cell.column not in METRICS:
        return cell.column in ("DataType", "Shape", "StandardDeviation", "CompareFailReason")
    x, y = stored(npu).reshape(-1)[: golden.size], stored(golden).reshape(-1)
    return cell.ours == "NaN" and is_near(cell.vendor, formulas(x, y)[cell.column], 3)


def nothing_to_compare(cell: Cell) -> bool:
    """A tensor without elements: the vendor prints a cosine of 1.0, and nan or an internal error of the rest."""
    pair = cell.row.pair
    return isinstance(pair.npu, Tensor) and pair.npu.size == 0 and pair.status is Status.COMPARED


def resource_as_numbers(cell: Cell) -> bool:
    """The vendor takes handles of resources for int64 numbers and compares them."""
    return cell.row.pair.status is Status.NOT_NUMERIC and cell.sides[0].dtype == "resource"


Explanation = Callable[[Cell], bool]
ALWAYS = (own_words, float32_ratio, float32_sums)
TWO_DUMPS = (*ALWAYS, two_dumps_are_not_flattened, type_of_an_op_of_one_run, padding_counts, prefix_is_cut)
CORNERS = (
    larger_is_cut, nothing_to_compare, resource_as_numbers, own_words, vendor_is_silent, own_remark,
    no_cosine_of_zeros, own_name, vendor_gives_up, stored_type, bool_distance, finite_elements, float32_ratio,
    float32_sums, float32_integers, float32_range, raw_blocks,
)  # fmt: skip


# --- two files --------------------------------------------------------------------------------------------------------


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    return header, lines


def name_of(header: list[str], line: list[str]) -> str:
    """What tells a line from all others: its tensor, or the ops of both sides."""
    tensor = line[header.index("TensorIndex")]
    return tensor if tensor != "NaN" else f"{line[header.index('NPUDump')]} | {line[header.index('GroundTruth')]}"


@dataclass(kw_only=True)
class Explained:
    """What differs between the vendor's file and ours: cells by what explains them, lines that only one has."""

    #: line → the explanations that cells of it needed.
    by_line: dict[str, set[str]] = field(default_factory=dict)
    cells: Counter[str] = field(default_factory=Counter)
    only_theirs: set[str] = field(default_factory=set)
    only_ours: set[str] = field(default_factory=set)

    def beside(self, *always: Explanation) -> dict[str, set[str]]:
        """The lines that needed other explanations than these."""
        known = {each.__name__ for each in always}
        return {line: names - known for line, names in self.by_line.items() if names - known}


def explain(
    vendor_file: Path,
    result: CompareResult,
    folder: Path,
    explanations: tuple[Explanation, ...],
    truth: Truth | None = None,
    limit: int = 0,
) -> Explained:
    """Explains every difference; the lines that both files have must stand in the same order."""
    path = folder / "ours.csv"
    result.write_csv(path)
    header, lines = table(path)
    vendor_header, vendor_lines = table(vendor_file)
    assert header[: len(vendor_header)] == vendor_header
    ours = {name_of(header, line): (line, row) for line, row in zip(lines, result.rows, strict=True)}
    theirs = {name_of(vendor_header, line): line for line in vendor_lines}
    assert len(ours) == len(lines)
    assert len(theirs) == len(vendor_lines)
    assert [name for name in ours if name in theirs] == [name for name in theirs if name in ours]
    found = Explained(only_theirs=set(theirs) - set(ours), only_ours=set(ours) - set(theirs))
    for name, vendor_line in theirs.items():
        if name not in ours:
            continue
        line, row = ours[name]
        for column, vendor_cell, cell in zip(vendor_header, vendor_line, line, strict=False):
            if vendor_cell == cell:
                continue
            vendor_row = dict(zip(vendor_header, vendor_line, strict=True))
            difference = Cell(column, vendor_cell, cell, row, vendor_row, (truth or {}).get(name), limit)
            why = next((each.__name__ for each in explanations if each(difference)), None)
            assert why is not None, (name, column, vendor_cell, cell)
            found.cells[why] += 1
            found.by_line.setdefault(name, set()).add(why)
    return found
