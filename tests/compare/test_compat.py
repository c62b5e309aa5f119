"""The rows of `--compat`, without the vendor's tool; tests/parity compares them with it."""

from __future__ import annotations

from pathlib import Path

import corner_trees
from corner_trees import CornerTree
from vendor_cells import name_of, table

import precision_tool
from precision_tool.lib.api import CompareOptions
from precision_tool.lib.compare.columns import EXTRA
from precision_tool.lib.demo.dump_writer import OutTensor


def lines(tree: CornerTree, *, compat: bool) -> tuple[list[str], list[str]]:
    """Header and names of the lines."""
    tree.finish()
    (result,) = precision_tool.compare(
        tree.leaf, tree.golden, graph=tree.graph, workers=1, options=CompareOptions(compat=compat)
    )
    path = tree.root / "result.csv"
    result.write_csv(path)
    header, found = table(path)
    return header, [name_of(header, line) for line in found]


def test_columns_and_lines(tmp_path: Path) -> None:
    tree = CornerTree(root=tmp_path)
    build = corner_trees.Builder(tree)
    build.op("good/plain")
    build.op("bad/cut")
    (path,) = tree.leaf.glob("Add.bad_cut.*")
    path.write_bytes(path.read_bytes()[:-8])
    build.op("bad/old", version=1)
    build.op("bad/with space")
    for number, names in enumerate((["l/a"], ["l/b"], ["l/c"])):
        build.op(f"l1/op_{number}", originals=names, l1="7")
    build.op("many/inner", originals=["m/op"], golden=False, origin=None, is_multiop=True)
    build.op("many/outer", originals=["m/op"], inputs=["many/inner:0"])
    tree.dump("stranger/op", outputs=[OutTensor(data=corner_trees.noise(3))])
    own_header, own = lines(tree, compat=False)
    header, kept = lines(tree, compat=True)
    assert header == own_header[: -len(EXTRA)]
    assert [name for name in own if name not in kept] == [
        "bad/cut:output:0", "bad/old:output:0", "bad/with space:output:0", "l1/op_0,l1/op_1,l1/op_2 | l/a,l/b,l/c",
        "many/inner:output:0", "stranger_op | *",
    ]  # fmt: skip
    assert kept == [
        "IteratorV2 | IteratorV2", "good/plain:output:0", "bad/cut | bad/cut", "bad/old | bad/old",
        "bad/with space | bad/with space", "l1/op_0:output:0", "l1/op_2:output:0", "many/outer:output:0",
        "NetOutput | NetOutput",
    ]  # fmt: skip


def test_it_says_how_many_are_left_out(tmp_path: Path) -> None:
    tree = CornerTree(root=tmp_path)
    corner_trees.Builder(tree).op("good/plain")
    tree.dump("stranger/op", outputs=[OutTensor(data=corner_trees.noise(3))])
    tree.finish()
    (result,) = precision_tool.compare(
        tree.leaf, tree.golden, graph=tree.graph, workers=1, options=CompareOptions(compat=True)
    )
    assert "--compat left out 1 row that msaccucmp would not have" in result.notes
