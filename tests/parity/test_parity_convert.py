"""`msaccucmp convert` and `dc`: the same files with the same bytes; each difference is named here."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import corner_trees
import numpy as np
import pytest
from corner_trees import CornerTree
from vendor import Vendor

import precision_tool
from precision_tool.lib.demo.generate import DemoTruth, generate_demo

#: Types that the vendor's table lacks; it lists their files as failed.
LACKS = (
    "dual_sub_int8", "dual_sub_uint8", "qint8", "qint16", "qint32", "quint8", "quint16", "int4", "int2", "uint2",
    "float8_e8m0", "float6_e3m2", "float6_e2m3", "float4_e2m1", "float4_e1m2",
)  # fmt: skip
#: Files whose bytes differ: the array is of another type or shape, and of the same values.
OTHER_ARRAYS = {
    # The vendor's own small floats come out as float64; every value of them is a float32.
    "type_float8_e4m3fn": ("float64", "float32"),
    "type_float8_e5m2": ("float64", "float32"),
    "type_hifloat8": ("float64", "float32"),
    # It takes the bytes of an undefined type for its shape, and a scalar for a vector.
    "type_undefined": ((20,), (4, 5)),
    "scalar": ((1,), ()),
    "bool_scalar": ((1,), ()),
    # An array without elements loses its type.
    "empty": ("float64", "float32"),
    "empty_against_some": ("float64", "float32"),
}


# Another program is run again and again: once, with the newest versions of the dependencies, is enough.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoTruth:
    """A network in all layouts."""
    return generate_demo(tmp_path_factory.mktemp("demo") / "data", seed=6)


def both(vendor: Vendor, leaf: Path, root: Path, *flags: str) -> tuple[dict[str, Path], dict[str, Path]]:
    """The `.npy` of both, by name."""
    theirs, mine = root / "theirs", root / "mine"
    vendor.run("convert", "-d", leaf, *flags, output=theirs)
    precision_tool.run("dc", str(leaf), *flags, "-o", str(mine), work=root / "work", file=io.StringIO())
    made = [{path.name: path for path in folder.glob("*.npy")} for folder in (theirs, mine)]
    return made[0], made[1]


def corner_of(name: str) -> str:
    """The corner of a file name."""
    return name.split(".")[1].removeprefix("corner_")


def all_corners(tree: CornerTree) -> None:
    for corners in corner_trees.LISTS:
        for corner in corners():
            tree.add(corner)


@pytest.mark.parametrize(
    ("build", "least"), [(all_corners, 90), (corner_trees.structures, 45), (corner_trees.damages, 10)]
)
def test_corners(vendor: Vendor, tmp_path: Path, build: Callable[[CornerTree], None], least: int) -> None:
    tree = CornerTree(root=tmp_path / "tree")
    build(tree)
    tree.finish()
    theirs, mine = both(vendor, tree.leaf, tmp_path)
    # A resource is a handle, not numbers; files of bare numbers get their own names here, and keep the number there.
    only_theirs, only_mine = set(theirs) - set(mine), set(mine) - set(theirs)
    assert {corner_of(name) for name in only_theirs} <= {"type_resource", "output"}
    lacks = {f"type_{name}" for name in LACKS}
    assert {corner_of(name) for name in only_mine if "long_long" not in name} <= lacks | {"one_version_1_file"}
    differ = {corner_of(name): name for name in theirs.keys() & mine if not same_bytes(theirs[name], mine[name])}
    assert set(differ) == (set(OTHER_ARRAYS) if build is all_corners else set())
    for corner, name in differ.items():
        arrays = [np.load(folder[name]) for folder in (theirs, mine)]
        what = [str(array.dtype) if isinstance(OTHER_ARRAYS[corner][0], str) else array.shape for array in arrays]
        assert tuple(what) == OTHER_ARRAYS[corner]
        assert np.array_equal(arrays[0].reshape(-1), arrays[1].reshape(-1))
    assert len(theirs.keys() & mine) - len(differ) >= least


def same_bytes(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def test_a_network(vendor: Vendor, demo: DemoTruth, tmp_path: Path) -> None:
    """Every tensor of it, byte for byte; but a scalar, which has no axis, is a vector of one for the vendor."""
    theirs, mine = both(vendor, demo.dump_dir, tmp_path)
    assert sorted(theirs) == sorted(mine)
    assert len(theirs) > 150
    differ = [name for name in theirs if not same_bytes(theirs[name], mine[name])]
    for name in differ:
        one, other = np.load(theirs[name]), np.load(mine[name])
        assert (one.shape, other.shape, one.dtype, one[0]) == ((1,), (), other.dtype, other[()])
    assert len(differ) < 20


@pytest.mark.parametrize(("layout", "least"), [("NCHW", 13), ("NHWC", 30), ("HWCN", 10), ("ND", 30)])
def test_in_another_layout(vendor: Vendor, demo: DemoTruth, tmp_path: Path, layout: str, least: int) -> None:
    """What both convert to arrays of the same shape has the same bytes.

    The vendor leaves the padding in some of its arrays, and writes nothing for what it cannot convert.
    """
    theirs, mine = both(vendor, demo.dump_dir, tmp_path, "-f", layout)
    common = theirs.keys() & mine
    assert len(common) >= least
    assert [name for name in common if not same_bytes(theirs[name], mine[name])] == []
