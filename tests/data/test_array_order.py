"""The same values in every order an array can lie in: what tells of them is the same, whichever side is how."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from builders import one_op_tree
from command_line import only_result, tool
from torch_files import torch_bytes

from precision_tool.lib.data import axis_alignment as alignments
from precision_tool.lib.data.axis_alignment import Declared, align
from precision_tool.lib.data.pytorch_pairing import align_h5
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.torch_file import read_torch
from precision_tool.lib.model.tensor import Plan, Tensor

Array = npt.NDArray[Any]
RIGHT = np.random.default_rng(3).normal(size=(4, 3, 5)).astype(np.float32)
WRONG = RIGHT.copy()
WRONG[2, 1, 3] += 7
ORDERS: dict[str, Callable[[Array], Array]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "big-endian": lambda a: np.ascontiguousarray(a).astype(">f4"),
    "big-endian Fortran": lambda a: np.asfortranarray(a).astype(">f4"),
}


def save(folder: Path, name: str, order: str, values: Array) -> str:
    array = ORDERS[order](values)
    assert array.flags.fnc == order.endswith("Fortran")
    np.save(folder / name, array, allow_pickle=False)
    return name


@pytest.mark.parametrize(("npu", "golden"), [*product(ORDERS, ORDERS)])
def test_cp(tmp_path: Path, npu: str, golden: str) -> None:
    x, y = save(tmp_path, "x.npy", npu, WRONG), save(tmp_path, "y.npy", golden, RIGHT)
    found = json.loads(tool("cp", x, y, "--json", cwd=tmp_path).out)
    assert [worst["index"] for worst in found["worst_absolute"]][:1] == [[2, 1, 3]]
    error = np.abs(WRONG.astype(np.float64) - RIGHT)
    assert found["metrics"]["max_absolute_error"] == pytest.approx(error.max(), rel=1e-6)
    assert found["metrics"]["mean_absolute_error"] == pytest.approx(error.mean(), rel=1e-6)
    same = json.loads(tool("cp", x, x, "--json", cwd=tmp_path).out)
    assert same["metrics"]["cosine"] == 1
    assert same["metrics"]["max_absolute_error"] == 0


@pytest.mark.parametrize("order", ORDERS)
def test_pt(tmp_path: Path, order: str) -> None:
    name = save(tmp_path, "x.npy", order, WRONG)
    (found,) = json.loads(tool("pt", name, "--json", "-l", "60", cwd=tmp_path).out)["tensors"]
    np.testing.assert_array_equal(np.array(found["first"], np.float32), WRONG.reshape(-1))


@pytest.mark.parametrize(
    ("npu", "golden"), [*product(ORDERS, ORDERS), *(("NC1HWC0", golden) for golden in ORDERS)]
)  # fmt: skip
def test_vc_and_dc(tmp_path: Path, npu: str, golden: str) -> None:
    """A dump file may hold an array as well, as `dc` and others write them."""
    values = np.random.default_rng(5).normal(size=(2, 5, 3, 19)).astype(np.float32)
    layout = npu if npu == "NC1HWC0" else "NHWC"
    tree = one_op_tree(tmp_path / "precision_data", output=values, golden=values, layout=layout, origin_layout="NHWC")
    assert tree.golden_path is not None
    np.save(tree.golden_path, ORDERS[golden](values), allow_pickle=False)
    if npu in ORDERS:
        with tree.dump_path.open("wb") as array:
            np.save(array, ORDERS[npu](values), allow_pickle=False)
    if golden == "C":
        tool("dc", "block/add", "-f", "NHWC", "-o", "out", cwd=tmp_path)
        (path,) = (tmp_path / "out").rglob("*.npy")
        np.testing.assert_array_equal(np.load(path), values)
    tool("vc", "--fail", cwd=tmp_path)
    with only_result(tmp_path / "precision_data" / "temp").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["CosineSimilarity"] != "NaN"]
    assert rows
    assert {(row["CosineSimilarity"], row["MaxAbsoluteError"]) for row in rows} == {("1.000000", "0.000000")}


# --- the plans ------------------------------------------------------------------------------------------------------


def in_order(path: str, plan: Plan) -> Array:
    """What a plan of an unblocked array says, element by element by hand."""
    return placed(np.load(path).flatten(order="K"), plan)


def placed(stored: Array, plan: Plan) -> Array:
    out = np.empty(plan.logical_shape, stored.dtype)
    for place in np.ndindex(plan.storage_shape):
        logical = [0] * len(plan.logical_shape)
        for (axis, _), at in zip(plan.axes, place, strict=True):
            logical[axis] += at
        out[tuple(logical)] = stored[np.ravel_multi_index(place, plan.storage_shape)]
    return out


def tensor(folder: Path, name: str, values: Array, fortran: bool) -> Tensor:
    np.save(folder / name, np.asfortranarray(values) if fortran else values)
    return read_npy(str(folder / name))


SHAPES = [
    ((6, 4), (6, 4)), ((6, 1, 4), (6, 4)), ((6, 4), (1, 6, 1, 4)), ((6, 4), (24,)), ((24,), (6, 4)), ((6, 4), (4, 6)),
    ((2, 3, 4), (6, 4)), ((6, 4), (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("x_shape", "y_shape"), SHAPES)
@pytest.mark.parametrize(("x_fortran", "y_fortran"), [*product([False, True], repeat=2)])
def test_shapes_that_differ_are_read_in_c_order(
    tmp_path: Path, x_shape: tuple[int, ...], y_shape: tuple[int, ...], x_fortran: bool, y_fortran: bool
) -> None:
    values = np.arange(24.0)
    x = tensor(tmp_path, "x.npy", values.reshape(x_shape), x_fortran)
    y = tensor(tmp_path, "y.npy", values.reshape(y_shape), y_fortran)
    if x.fortran_order and y.fortran_order and [n for n in x_shape if n > 1] != [n for n in y_shape if n > 1]:
        with pytest.raises(LayoutError, match="in another order cannot be read as"):
            align(x, y)
        return
    found = align(x, y)
    assert found.npu_plan.logical_shape == found.golden_plan.logical_shape
    np.testing.assert_array_equal(in_order(x.path, found.npu_plan).reshape(-1), values)
    np.testing.assert_array_equal(in_order(y.path, found.golden_plan).reshape(-1), values)


@pytest.mark.parametrize(("x_fortran", "y_fortran"), [*product([False, True], repeat=2)])
def test_beside_a_tensor_of_an_h5_file(tmp_path: Path, x_fortran: bool, y_fortran: bool) -> None:
    x = tensor(tmp_path, "x.npy", RIGHT, x_fortran)
    y = tensor(tmp_path, "y.npy", RIGHT, y_fortran)
    _, _, found = align_h5(x, y)
    for path, plan in ((x.path, found.npu_plan), (y.path, found.golden_plan)):
        np.testing.assert_array_equal(in_order(path, plan).reshape(-1), RIGHT.reshape(-1))
    flat = tensor(tmp_path, "flat.npy", RIGHT.reshape(-1), False)
    if x_fortran:
        with pytest.raises(LayoutError, match="Fortran order"):
            align_h5(x, flat)
    else:
        assert align_h5(x, flat)[2].npu_plan.is_flat


def test_what_is_known_of_other_shapes_changes_no_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Tensor(path="", offset=0, nbytes=0, dtype="float16", shape=(2, 1, 3, 4, 16), layout="NC1HWC0")
    plain = Tensor(path="", offset=0, nbytes=0, dtype="float32", shape=(2, 3, 4, 16))
    tensors = [
        blocked,
        replace(blocked, origin_shape=(2, 3, 4, 16)),
        replace(blocked, origin_shape=(2, 16, 3, 4)),
        plain,
        replace(plain, fortran_order=True),
        replace(plain, shape=(2, 16, 3, 4)),
        replace(plain, dtype="complex64"),
        replace(plain, layout="NHWC"),
    ]
    asked = [
        (npu, golden, declared, golden_layout)
        for npu, golden in product(tensors, tensors)
        for declared, golden_layout in (
            (Declared(), ""),
            (Declared("NHWC", (2, 3, 4, 16)), ""),
            (Declared("NHWC"), "NCHW"),
        )
    ]

    def said(*given: Any) -> object:
        try:
            return align(*given)
        except LayoutError as error:
            return str(error)

    together = [said(*given) for given in asked]
    for given, found in zip(asked, together, strict=True):
        monkeypatch.setattr(alignments, "_alignments", {})
        assert said(*given) == found
    assert len(set(map(str, together))) > 10


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 2, 0), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 3, 4), (24,), (1, 2, 3, 4)])
@pytest.mark.parametrize("is_npu", [False, True])
def test_axes_that_lie_in_any_order_are_read_in_c_order(
    tmp_path: Path, order: tuple[int, ...], shape: tuple[int, ...], is_npu: bool
) -> None:
    """A view that torch saved, beside an array in C order: `order` are its axes from the outermost that is stored."""
    values = np.arange(24.0)
    stored = np.ascontiguousarray(values.reshape(2, 3, 4).transpose(order))
    strides = [stored.strides[order.index(axis)] // stored.itemsize for axis in range(3)]
    (tmp_path / "x.pt").write_bytes(torch_bytes(stored, strides, 0, (2, 3, 4)))
    view = read_torch(str(tmp_path / "x.pt"))
    assert view.plan is not None
    plain = tensor(tmp_path, "y.npy", values.reshape(shape), False)
    found = align(view, plain) if is_npu else align(plain, view)
    plans = found.npu_plan, found.golden_plan
    of_view, of_plain = plans if is_npu else plans[::-1]
    np.testing.assert_array_equal(placed(stored.reshape(-1), of_view).reshape(-1), values)
    np.testing.assert_array_equal(in_order(plain.path, of_plain).reshape(-1), values)
