"""A dump of statistics (`dump_data='stats'`) as `vc` and `ac` take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array, out_tensor
from command_line import by_tensor, only_result, tool
from small_tree import Node, SmallTree, chain, small_tree

from precision_tool.lib.demo.dump_writer import write_statistics

ONLY = "only statistics are compared"


def numbers(seed: int) -> Array:
    return np.random.default_rng(seed).normal(0.2, 1.0, 300).astype(np.float32)


def right() -> list[Node]:
    """The chain with vectors of no neat numbers."""
    source, *nodes = chain()
    made = [source]
    for seed, node in enumerate(nodes):
        made.append(replace(node, inputs=(made[-1],), output=numbers(seed), golden=numbers(seed)))
    return made


def wrong(factor: float = 1.5) -> list[Node]:
    """The same with `middle/Mul` wrong, and with it what comes after it."""
    source, data, first, middle, last = right()
    assert middle.output is not None
    assert last.output is not None
    middle = replace(middle, inputs=(first,), output=middle.output * np.float32(factor))
    return [source, data, first, middle, replace(last, inputs=(middle,), output=last.output * np.float32(factor))]


def statistics_tree(folder: Path, nodes: Sequence[Node], run: str = "debug_0") -> SmallTree:
    """The tree of `nodes` with statistics in place of its dump files."""
    tree = small_tree(folder / "precision_data", nodes, run)
    for node in nodes:
        if node.output is None:
            continue
        fed = [out_tensor(source.output) for source in node.inputs if source.output is not None]
        path = tree.dumps[node.name]
        path.unlink()
        write_statistics(path.with_name(f"{path.name}.csv"), fed, [out_tensor(node.output)])
    return tree


def test_the_first_op_with_other_statistics_is_named(tmp_path: Path) -> None:
    tree = statistics_tree(tmp_path, wrong())
    run = tool("ac", "-c", "--fail", cwd=tmp_path, code=1)
    assert "middle/Mul is the first op whose output statistics differ" in run.text
    assert "(statistics only)" in run.text
    rows = by_tensor(only_result(tree.root / "temp"))
    golden = numbers(2).astype(np.float64)
    row = rows["middle/Mul:output:0"]
    assert row["CompareFailReason"].startswith(f"{ONLY}, and differ, more than rounding explains: ")
    assert row["CosineSimilarity"] == "NaN"
    assert float(row["GroundTruthMean"]) == pytest.approx(golden.mean(), rel=1e-8)
    assert float(row["NPUMean"]) == pytest.approx(1.5 * golden.mean(), rel=1e-6)
    assert (row["NPUStd"], row["NPUZeros"]) == ("NaN", "NaN")  # a statistics dump has neither
    assert rows["first/Add:output:0"]["CompareFailReason"].startswith(f"{ONLY}, and agree as far as they tell: ")
    assert "statistics compared for 7 tensors, 3 of them differ" in run.text
    # Read back it says the same.
    again = tool("ac", "--json", cwd=tmp_path).results[0]
    assert [(one["kind"], one["op_name"]) for one in again["findings"]] == [("nothing_compared", "middle/Mul")]


def test_statistics_that_agree_are_no_fault(tmp_path: Path) -> None:
    statistics_tree(tmp_path, right())
    run = tool("vc", "--fail", cwd=tmp_path)
    assert "only statistics were dumped, and they agree" in run.text


def test_a_first_op_that_is_fed_others_is_told_of(tmp_path: Path) -> None:
    """What feeds the network differs: the op that makes the data has no input that could tell whose fault that is."""
    source, data, *nodes = right()
    assert data.output is not None
    other = replace(data, output=data.output * np.float32(2))
    statistics_tree(tmp_path, [source, other, replace(nodes[0], inputs=(other,)), *nodes[1:]])
    run = tool("ac", "-c", cwd=tmp_path)
    assert "IteratorGetNext is the first op whose output statistics differ" in run.text
    assert "the runs may have used different data or weights" in run.text
