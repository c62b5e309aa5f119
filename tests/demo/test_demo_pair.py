"""`demo --fault fusion`: the same step compiled with and without fusion, with a fault that only fusion has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpIndex
from precision_tool.lib.data.fusion_pair import Fusion
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.tensor import Tensor


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoTruth]:
    root = tmp_path_factory.mktemp("pair") / "precision_data"
    return root, generate_demo(root, fault="fusion")


def run(root: Path, number: int) -> tuple[GraphFile, DumpLeaf]:
    (leaf,) = walk.find_run(str(root / "npu" / f"debug_{number}" / "dump")).leaves
    (path,) = (root / "npu" / f"debug_{number}" / "graph").glob("ge_proto_*_graph_1_Build.txt")
    return GraphStore().load(str(path)), leaf


def test_the_folders_are_as_documented(demo: tuple[Path, DemoTruth]) -> None:
    """Without fusion in debug_0, with it in debug_1; the truth is of the run with the fault."""
    root, truth = demo
    unfused, fused = (Fusion(run(root, number)[0]) for number in (0, 1))
    assert set(unfused.passes) == {"AReduceMeanFusionPass"}  # which GE never switches off
    assert set(truth.culprit_passes) < set(fused.switchable)
    assert truth.dump_dir.is_relative_to(root / "npu" / "debug_1")
    assert truth.graph_path.is_file()
    assert unfused.script_ops == fused.script_ops


def test_every_op_of_the_script_is_an_op_without_fusion(demo: tuple[Path, DemoTruth]) -> None:
    root, truth = demo
    file, leaf = run(root, 0)
    ops = {op.name: op for op in file.ops}
    assert [ops[name].type for name in truth.culprit_originals] == ["Conv2D", "BiasAdd", "Relu"]
    dumps = DumpIndex(leaf)
    assert all(flatten(name) in dumps for name in truth.culprit_originals)


def test_only_the_fused_run_is_wrong(demo: tuple[Path, DemoTruth]) -> None:
    """The last channels of the convolution are lost in one run and there in the other."""
    root, truth = demo
    sums = []
    for number, name in ((0, truth.culprit_originals[-1]), (1, str(truth.culprit))):
        tensor = DumpIndex(run(root, number)[1]).op(flatten(name)).outputs[0]
        assert isinstance(tensor, Tensor)
        assert tensor.layout == "NC1HWC0"
        values = np.fromfile(tensor.path, np.float16, tensor.size, offset=tensor.offset).reshape(tensor.shape)
        sums.append([float(np.abs(values[:, block]).sum()) for block in range(2)])
    assert sums[0][0] == pytest.approx(sums[1][0], rel=0.01)
    assert sums[0][1] > 0
    assert sums[1][1] == 0


def test_another_demo_takes_the_second_run_away_and_back(tmp_path: Path) -> None:
    generate_demo(tmp_path, fault="fusion")
    generate_demo(tmp_path, fault="nan")
    assert sorted(path.name for path in (tmp_path / "npu").iterdir()) == ["debug_0"]
    generate_demo(tmp_path, fault="fusion")
    assert sorted(path.name for path in (tmp_path / "npu").iterdir()) == ["debug_0", "debug_1"]


def test_a_large_pair(tmp_path: Path) -> None:
    """The fault moves into the tower, as with one run."""
    truth = generate_demo(tmp_path, fault="fusion", ops=200)
    fused = Fusion(run(tmp_path, 1)[0])
    assert any(op.name == truth.culprit and op.pass_names == truth.culprit_passes for op in fused.file.ops)
    assert not set(truth.culprit_passes) & set(Fusion(run(tmp_path, 0)[0]).passes)
