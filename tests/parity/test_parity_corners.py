"""One-op trees through both engines: every row, its order, every cell; each difference is named here, tree by tree.

The explanations, with the reason and the proof of each, are in vendor_cells.py. A difference that is not in these
tables fails, and so does one that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import corner_trees
import numpy as np
import pytest
from builders import TIMESTAMP, Array, graph_op, tensor_desc
from corner_trees import Corner, CornerTree
from ffts_files import write_slices
from vendor import Ran, Vendor
from vendor_cells import (
    ALWAYS,
    CORNERS,
    TWO_DUMPS,
    Explained,
    explain,
    name_of,
    no_address,
    no_figures_of_bools,
    own_remark,
    table,
    two_dumps_are_not_flattened,
)

import precision_tool
from precision_tool.lib.api import CompareOptions, CompareResult
from precision_tool.lib.demo.dump_writer import OutTensor
from precision_tool.lib.model.graph import TensorDesc

GIVES_UP = {"vendor_gives_up"}
NOT_FINITE = {"finite_elements"}
RANGE = {"float32_range"}


# Another program is run again and again: once, with the newest versions of the dependencies, is enough.
pytestmark = pytest.mark.slow


def both(vendor: Vendor, tree: CornerTree) -> tuple[Ran, CompareResult]:
    """The tree through both engines."""
    ran = vendor.compare(tree.leaf, tree.golden, "-f", tree.graph_json, output=tree.root / "out")
    (result,) = precision_tool.compare(tree.leaf, tree.golden, graph=tree.graph, workers=1)
    return ran, result


def check(vendor: Vendor, tree: CornerTree) -> Explained:
    ran, result = both(vendor, tree)
    return explain(ran.result, result, tree.root, CORNERS, tree.truth)


def of_corners(vendor: Vendor, root: Path, corners: list[Corner]) -> Explained:
    tree = CornerTree(root=root)
    for corner in corners:
        tree.add(corner)
    tree.finish()
    return check(vendor, tree)


def named(found: Explained) -> dict[str, set[str]]:
    """What needed more than the differences that every file has, by the corner's name."""
    beside = found.beside(*ALWAYS)
    return {line.removeprefix("corner/").removesuffix(":output:0"): names for line, names in beside.items()}


def lines_of(*names: str) -> tuple[set[str], set[str]]:
    """A line for the op where the vendor finds no dump file, a line for the tensor where ours does."""
    return {f"corner/{name} | corner/{name}" for name in names}, {f"corner/{name}:output:0" for name in names}


def test_data_types(vendor: Vendor, tmp_path: Path) -> None:
    found = of_corners(vendor, tmp_path, corner_trees.data_types())
    assert named(found) == {"type_bool": {"bool_distance"}, "type_bfloat16": {"stored_type"}}
    # Types the vendor's table lacks: it then says that there is no dump file.
    lacks = ("dual_sub_int8", "dual_sub_uint8", "qint8", "qint16", "qint32", "quint8", "quint16")
    assert (found.only_theirs, found.only_ours) == lines_of(*(f"type_{name}" for name in lacks))


def test_bools_against_numbers(vendor: Vendor, tmp_path: Path) -> None:
    """Of those the vendor has every figure, and ours the same."""
    found = of_corners(vendor, tmp_path, corner_trees.bools())
    assert found.only_theirs == found.only_ours == set()
    assert named(found) == {}


def test_small_types(vendor: Vendor, tmp_path: Path) -> None:
    found = of_corners(vendor, tmp_path, corner_trees.small_types())
    decoded = ("uint1", "hifloat8", "float8_e5m2", "float8_e4m3fn")
    assert named(found) == {f"type_{name}": {"stored_type"} for name in decoded} | {
        "type_resource": {"resource_as_numbers"}
    }
    lacks = (
        "int4",
        "int2",
        "uint2",
        "float8_e8m0",
        "float6_e3m2",
        "float6_e2m3",
        "float4_e2m1",
        "float4_e1m2",
        "string",
    )
    assert (found.only_theirs, found.only_ours) == lines_of(*(f"type_{name}" for name in lacks))


def test_layouts(vendor: Vendor, tmp_path: Path) -> None:
    found = of_corners(vendor, tmp_path, corner_trees.layouts())
    assert found.only_theirs == found.only_ours == set()
    gives_up = (
        "FRACTAL_Z_NHWC", "FRACTAL_NZ_ND_2x3x20x33", "FRACTAL_NZ_NCHW", "FRACTAL_NZ_NHWC", "NDC1HWC0_NDHWC", "NCHW_HWCN"
    )  # fmt: skip
    assert named(found) == dict.fromkeys(gives_up, GIVES_UP)


def test_layouts_that_are_not_as_declared(vendor: Vendor, tmp_path: Path) -> None:
    found = of_corners(vendor, tmp_path, corner_trees.odd_layouts())
    assert found.only_theirs == found.only_ours == set()
    assert named(found) == {
        "golden_is_NCHW": {"own_remark"},
        "golden_is_NHWC": GIVES_UP,
        "no_origin_format": GIVES_UP,
        "blocked_origin_ND": {"raw_blocks", "own_remark"},
        "per_channel_20": GIVES_UP,
    }


def test_sizes(vendor: Vendor, tmp_path: Path) -> None:
    found = of_corners(vendor, tmp_path, corner_trees.sizes())
    assert found.only_theirs == found.only_ours == set()
    assert named(found) == {
        "larger": {"larger_is_cut"},
        "same_count": {"own_remark"},
        "same_values_other_rank": {"own_remark"},
        "empty": {"nothing_to_compare"},
    }


def test_values(vendor: Vendor, tmp_path: Path) -> None:
    found = of_corners(vendor, tmp_path, corner_trees.value_corners())
    assert found.only_theirs == found.only_ours == set()
    one_side = NOT_FINITE | {"own_remark"}
    assert named(found) == {
        "zero_npu": {"no_cosine_of_zeros"},
        "zero_golden": {"no_cosine_of_zeros"},
        **dict.fromkeys(("nan_npu", "nan_golden", "nan_elsewhere", "inf_npu", "inf_golden", "inf_signs"), one_side),
        **dict.fromkeys(("nan_both", "inf_both"), NOT_FINITE),
        **dict.fromkeys(("huge_beyond_float32_squares", "tiny", "denormal"), RANGE),
        "large_int": {"float32_integers"},
    }


def built(vendor: Vendor, root: Path, build: Callable[[CornerTree], None]) -> Explained:
    tree = CornerTree(root=root)
    build(tree)
    tree.finish()
    return check(vendor, tree)


def test_structures(vendor: Vendor, tmp_path: Path) -> None:
    found = built(vendor, tmp_path, corner_trees.structures)
    # The vendor does not look for files of names with spaces as GE spells them, nor reads files of version 1.
    unread = ("one/with.dot and space", "one/version_1_file")
    assert found.only_theirs == {f"{name} | {name}" for name in unread}
    # Ours has a line for the op in the middle of an L1 fusion, and says why it is not compared.
    inner = "l1/op_0,l1/op_1,l1/op_2 | l/a,l/b,l/c"
    assert found.only_ours == {f"{name}:output:0" for name in unread} | {inner}
    assert found.beside(*ALWAYS) == {
        "one/empty_original:output:0": {"own_name"},
        "in/more_fed_than_connected:input:1": {"vendor_is_silent"},
    }


def test_damages(vendor: Vendor, tmp_path: Path) -> None:
    found = built(vendor, tmp_path, corner_trees.damages)
    # A tensor that is cut off costs the vendor all tensors of the file.
    assert found.only_theirs == {"bad/cut | bad/cut"}
    assert found.only_ours == {"bad/cut:output:0", "not_in_graph | *"}
    silent = {"vendor_is_silent"}
    assert found.beside(*ALWAYS) == {
        "bad/no_tensors | bad/no_tensors": silent,
        "bad/golden_garbage:output:0": silent,
        "bad/golden_cut:output:0": silent,
        "bad/golden_fortran:output:0": {own_remark.__name__},
        "bad/golden_big_endian:output:0": GIVES_UP,
    }


def every_tree(root: Path) -> list[CornerTree]:
    """All corners, a tree for each list of them."""
    listed, grown = (
        [CornerTree(root=root / make.__name__) for make in makers]
        for makers in (corner_trees.LISTS, corner_trees.TREES)
    )
    for tree, corners in zip(listed, corner_trees.LISTS, strict=True):
        for corner in corners():
            tree.add(corner)
    for tree, build in zip(grown, corner_trees.TREES, strict=True):
        build(tree)
    for tree in (*listed, *grown):
        tree.finish()
    return [*listed, *grown]


def test_compat_has_the_vendors_lines_and_no_others(vendor: Vendor, tmp_path: Path) -> None:
    """The same header, and the same lines in the same order, of every tree; what native gives more is left out."""
    count = 0
    for tree in every_tree(tmp_path):
        ran = vendor.compare(tree.leaf, tree.golden, "-f", tree.graph_json, output=tree.root / "out")
        options = CompareOptions(compat=True)
        (result,) = precision_tool.compare(tree.leaf, tree.golden, graph=tree.graph, workers=1, options=options)
        result.write_csv(tree.root / "ours.csv")
        header, lines = table(tree.root / "ours.csv")
        vendor_header, vendor_lines = table(ran.result)
        assert header == vendor_header
        names = [(line[0], name_of(header, line)) for line in lines]
        wanted = [(line[0], name_of(vendor_header, line)) for line in vendor_lines]
        # Of an op whose original name is empty the vendor prints `*`: see own_name.
        assert names == wanted
        count += len(names)
    assert count > 150


def test_compat_of_tensors_with_too_few_bytes(vendor: Vendor, tmp_path: Path) -> None:
    """Each has its line with address and shape as declared; the other tensors of the file keep their figures."""
    tree, full = CornerTree(root=tmp_path), corner_trees.noise(20, seed=5)

    def tensor(count: int, *shape: int) -> OutTensor:
        return OutTensor(
            data=full[:count].tobytes(), dtype="float32", shape=shape, origin_shape=shape, address=4096 + count
        )

    outputs = {
        "alone": [tensor(10, 20)],
        "second": [tensor(20, 20), tensor(10, 20)],
        "first": [tensor(10, 20), tensor(20, 20)],
        "planes": [tensor(10, 4, 5)],
        "none": [tensor(0, 20)],
    }
    for name, tensors in outputs.items():
        tree.dump(name, outputs=tensors)
        for number, one in enumerate(tensors):
            tree.benchmark(name, full.reshape(one.shape or ()), number)
        desc = TensorDesc(dtype="float32", layout="ND", shape=(20,), dump_origin_name=name, dump_origin_index=0)
        tree.ops.append(graph_op(name, output_descs=[desc] * len(tensors)))
    tree.finish()
    ran = vendor.compare(tree.leaf, tree.golden, "-f", tree.graph_json, output=tree.root / "out")
    options = CompareOptions(compat=True)
    (result,) = precision_tool.compare(tree.leaf, tree.golden, graph=tree.graph, workers=1, options=options)
    result.write_csv(tree.root / "ours.csv")
    header, lines = table(tree.root / "ours.csv")
    _, vendor_lines = table(ran.result)
    end = header.index("MaxAbsoluteError")
    assert [line[:end] for line in lines] == [line[:end] for line in vendor_lines]
    assert sum(line[header.index("Address")] == "4106" for line in lines) == 4


def test_two_runs(vendor: Vendor, tmp_path: Path) -> None:
    """Without a graph; the vendor drops all inputs, or all outputs, of an op if one of their shapes differs."""
    one, other = (CornerTree(root=tmp_path / name) for name in ("one", "other"))
    corner_trees.two_runs(one, other)
    ran = vendor.compare(one.leaf, other.leaf, output=tmp_path / "out")
    (result,) = precision_tool.compare(one.leaf, other.leaf, workers=1)
    found = explain(ran.result, result, tmp_path, (*TWO_DUMPS, *CORNERS))
    given_up = ("run_more_in_other", "run_other_layout", "run_other_shape")
    assert found.only_theirs == {f"{name} | {name}" for name in given_up}
    assert found.only_ours == {*(f"{name}:output:0" for name in given_up), "run_fed_more_in_other:input:0"}
    flat, other_type = {"two_dumps_are_not_flattened"}, {"type_of_an_op_of_one_run"}
    assert found.beside(*ALWAYS) == {
        "run_only_in_one | *": other_type,
        "* | run_only_in_other": other_type,
        "run_NC1HWC0:output:0": {"prefix_is_cut"},
        "run_HWCN:output:0": {"prefix_is_cut"},
        "run_FRACTAL_Z:output:0": {"padding_counts"},
        "run_other_type:output:0": flat,
        "run_scalar:output:0": flat,
        "run_damaged | run_damaged": other_type | {"vendor_is_silent"},
    }
    (result,) = precision_tool.compare(one.leaf, other.leaf, workers=1, options=CompareOptions(compat=True))
    result.write_csv(tmp_path / "compat.csv")
    tables = [table(path) for path in (ran.result, tmp_path / "compat.csv")]
    assert tables[0][0] == tables[1][0]
    assert [name_of(*tables[0][:1], line) for line in tables[0][1]] == [
        name_of(*tables[1][:1], line) for line in tables[1][1]
    ]


def test_two_graphs(vendor: Vendor, tmp_path: Path) -> None:
    """Fused against unfused: the ops of the other run are named as they are called there."""
    one, other = (CornerTree(root=tmp_path / name) for name in ("one", "other"))
    corner_trees.two_graphs(one, other)
    for tree in (one, other):
        tree.finish()
    graphs = ("-f", one.graph_json, "-cf", other.graph_json)
    ran = vendor.compare(one.leaf, other.leaf, *graphs, output=tmp_path / "out")
    options = CompareOptions(other_graph=str(other.graph))
    (result,) = precision_tool.compare(one.leaf, other.leaf, graph=one.graph, workers=1, options=options)
    found = explain(ran.result, result, tmp_path, (no_address, no_figures_of_bools, *TWO_DUMPS, *CORNERS))
    assert found.only_theirs == found.only_ours == set()
    # What the bfloat16 of a dump is called is the same in every result.
    assert found.beside(*ALWAYS, no_address, two_dumps_are_not_flattened) == {
        "type/bfloat16:output:0": {"stored_type"},
        "type/bool:output:0": {"no_figures_of_bools"},
    }


def aborts(vendor: Vendor, tree: CornerTree) -> tuple[int, list[str]]:
    """How many tensors both engines compare of a tree, and the names of the lines that only ours has."""
    tree.finish()
    ran, result = both(vendor, tree)
    assert ran.code not in (0, 2), ran.log[-2000:]
    result.write_csv(tree.root / "ours.csv")
    header, lines = table(tree.root / "ours.csv")
    theirs = {name_of(*table(path)[:1], line) for path in ran.output.glob("result_*.csv") for line in table(path)[1]}
    return len(theirs), [name_of(header, line) for line in lines if name_of(header, line) not in theirs]


def test_a_name_like_a_formula_aborts_the_vendor(vendor: Vendor, tmp_path: Path) -> None:
    """And what comes after it is lost; ours escapes it."""
    tree = CornerTree(root=tmp_path)
    build = corner_trees.Builder(tree)
    for name in ("good/one", "-minus", "good/two"):
        build.op(name)
    _, only_ours = aborts(vendor, tree)
    assert only_ours[:2] == ["'-minus:output:0", "good/two:output:0"]


def test_a_damaged_file_of_the_other_run_aborts_the_vendor(vendor: Vendor, tmp_path: Path) -> None:
    one, other = (CornerTree(root=tmp_path / name) for name in ("one", "other"))
    for tree in (one, other):
        build = corner_trees.Builder(tree)
        for name in ("good/one", "bad/one", "good/two"):
            path = build.stored(name, corner_trees.noise(9))
            if tree is other and name == "bad/one":
                path.write_bytes(b"x" * 40)
    ran = vendor.compare(one.leaf, other.leaf, output=tmp_path / "out")
    assert ran.code not in (0, 2)
    assert table(ran.result)[1] == []
    (result,) = precision_tool.compare(one.leaf, other.leaf, workers=1)
    assert [row.metrics is not None for row in result.rows] == [True, False, True]


def test_names_of_ffts_threads(vendor: Vendor, tmp_path: Path) -> None:
    """One thread, and the task types that are no FFTS+."""
    tree = CornerTree(root=tmp_path)
    build = corner_trees.Builder(tree)
    for number, name in enumerate(("aicore", "aicpu", "dvpp", "hccl", "ffts")):
        build.op(f"f/{name}", file_name=f"Add.f_{name}.{number}.0.{TIMESTAMP + number}.{number}.1.0.0")
    tree.finish()
    found = check(vendor, tree)
    assert found.only_theirs == found.only_ours == set()
    assert found.beside(*ALWAYS) == {}


def test_slices_of_ffts_are_joined(vendor: Vendor, tmp_path: Path) -> None:
    """Threads and manual slices, along either axis, fed by each other; slices that are missing, or of no FFTS+ task."""
    tree = CornerTree(root=tmp_path)
    tree.leaf.mkdir(parents=True)

    def add(
        name: str, shape: tuple[int, ...], axis: int | None, count: int, fed_by: str = "", file: str = "", **words: Any
    ) -> None:
        number = len(tree.ops) + 1
        x = corner_trees.noise(*shape, seed=number)
        golden = corner_trees.near(x)
        tree.benchmark(name, golden)
        fed = [np.ascontiguousarray(made[fed_by][0][:2])] if fed_by else []
        write_slices(
            tree.leaf,
            file or name,
            [(x, axis)],
            count,
            fed=fed,
            task=10 * number,
            time=TIMESTAMP + 10 * number,
            **words,
        )
        described = tensor_desc(golden, name)
        inputs = [f"{fed_by}:0"] if fed_by else []
        descs = [tensor_desc(golden) for _ in inputs]
        tree.ops.append(graph_op(name, "Add", inputs, input_descs=descs, output_descs=[described]))
        made[name] = (x, golden)
        tree.truth[f"{name}:output:0"] = made[name]
        if fed_by:  # the input's row has the figures of what was put out
            tree.truth[f"{name}:input:0"] = made[fed_by]

    made: dict[str, tuple[Array, Array]] = {}
    add("t/rows", (6, 5), 0, 3)
    add("t/columns", (4, 6), 1, 2)
    add("m/rows", (6, 5), 0, 3, threaded=False)
    add("m/columns", (4, 6), 1, 2, threaded=False)
    add("t/fed", (6, 5), 0, 3, fed_by="t/rows")
    add("m/fed", (6, 5), 0, 2, fed_by="m/rows", threaded=False)
    add("t/one", (6, 5), 0, 1, fed_by="t/rows")
    add("t/whole", (6, 5), None, 2)
    add("s/graph", (6, 5), 0, 3, file="partition0_rank1_new_sub_graph1_sgt_graph_0_s/graph")
    add("t/missing", (6, 5), 0, 3, left_out=[1])
    add("m/plain", (6, 5), 0, 3, threaded=False, task_type=0)
    tree.finish()
    ran, result = both(vendor, tree)
    found = explain(ran.result, result, tree.root, CORNERS, tree.truth)
    assert found.only_theirs == found.only_ours == set()
    # The vendor keeps the types of the slice, of which it had no figures.
    assert found.beside(*ALWAYS) == {f"{name}:input:0": {"stored_type"} for name in ("t/fed", "m/fed", "t/one")}
    options = CompareOptions(compat=True)
    (compat,) = precision_tool.compare(tree.leaf, tree.golden, graph=tree.graph, workers=1, options=options)
    compat.write_csv(tmp_path / "compat.csv")
    (header, lines), (vendor_header, vendor_lines) = table(tmp_path / "compat.csv"), table(ran.result)
    assert header == vendor_header
    assert [name_of(header, line) for line in lines] == [name_of(vendor_header, line) for line in vendor_lines]
    shape = header.index("Shape")
    assert [line[shape] for line in lines] == [line[shape] for line in vendor_lines]
    compared = {f"{row.pair.op_name}:{row.pair.slot}" for row in result.rows if row.metrics is not None}
    assert compared == set(tree.truth) - {"t/missing:output:0", "m/plain:output:0"}


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_types_abort_the_vendor(vendor: Vendor, tmp_path: Path, name: str) -> None:
    """Its run ends without a line; ours compares them as pairs of real numbers."""
    corners = [corner for corner in corner_trees.complex_types() if corner.name == f"type_{name}"]
    tree = CornerTree(root=tmp_path)
    for corner in corners:
        tree.add(corner)
    tree.finish()
    ran, result = both(vendor, tree)
    assert ran.code == 1
    assert not any(Path(ran.output).glob("result_*.csv")) or not ran.result.read_text().splitlines()[1:]
    assert [row.metrics is not None for row in result.rows if row.pair.slot] == [True]
