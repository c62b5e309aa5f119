"""A few ops with the simplest of numbers as a whole `precision_data` folder, for tests of the command line."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from builders import STAMP, TIMESTAMP, Array, graph_op, leaf_folder, tensor_desc, write_dump, write_golden, write_graph

from precision_tool.lib.demo.dump_writer import dump_file_name
from precision_tool.lib.model.graph import Op


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """An op with one output. `inputs` are nodes; without `output` it is not dumped, without `golden` it has none."""

    name: str
    type: str
    inputs: tuple[Node, ...] = ()
    output: Array | None = None
    golden: Array | None = None
    originals: tuple[str, ...] | None = None
    passes: tuple[str, ...] = ()

    @property
    def original(self) -> str:
        """The op of the script whose output this op's output is."""
        return self.originals[-1] if self.originals else self.name

    def op(self) -> Op:
        """The op in the graph."""
        output = np.zeros((), np.float32) if self.output is None else self.output
        desc = replace(tensor_desc(output, None if self.originals == () else self.original), dtype="float32")
        return graph_op(
            self.name,
            self.type,
            [f"{node.name}:0" for node in self.inputs],
            output_descs=[desc],
            original_names=self.originals,
            pass_names=self.passes,
        )


@dataclass(frozen=True, kw_only=True)
class SmallTree:
    """Where the files of a small tree lie; `dumps` and `goldens` by name of the op."""

    root: Path
    graph: Path
    leaf: Path
    dumps: dict[str, Path]
    goldens: dict[str, Path]

    @property
    def dump_path(self) -> Path:
        """The folder that the training script was told."""
        return self.root / "npu" / "debug_0" / "dump"

    def copy_leaf(self, device: str, model: str, model_id: str, step: str, time: str = STAMP) -> Path:
        """The same dump files once more, as another device, model or step."""
        leaf = self.dump_path / time / device / model / model_id / step
        shutil.copytree(self.leaf, leaf)
        return leaf


def small_tree(root: Path, nodes: Sequence[Node], run: str = "debug_0") -> SmallTree:
    """Write dump, graph and benchmark of `nodes`, which stand in execution order."""
    leaf = leaf_folder(root, run)
    graph = write_graph(root, [node.op() for node in nodes], run)
    dumps, goldens = {}, {}
    for number, node in enumerate(nodes):
        if node.output is not None:
            name = dump_file_name(node.type, node.name, number, TIMESTAMP + number, stream_id=0)
            fed = [source.output for source in node.inputs if source.output is not None]
            dumps[node.name] = write_dump(leaf / name, node.name, fed, [node.output])
        if node.golden is not None:
            goldens[node.name] = write_golden(root / "tf" / "dump", node.original, 0, node.golden)
    return SmallTree(root=root, graph=graph, leaf=leaf, dumps=dumps, goldens=goldens)


def values(*numbers: float) -> Array:
    """A float32 vector."""
    return np.array(numbers, np.float32)


def chain(victim: Array | None = None) -> list[Node]:
    """Data, then three ops that are computed right; the one in the middle gives `victim`.

    With the source's output, two inputs and outputs each that is seven tensors, of which `middle/Mul` gives one and
    `last/Sub` is fed one.
    """
    middle = np.arange(1, 1025, dtype=np.float32) if victim is None else victim
    source = Node(name="IteratorV2", type="IteratorV2")
    data = Node(
        name="IteratorGetNext", type="GetNext", inputs=(source,), output=values(1, 2, 3), golden=values(1, 2, 3),
        originals=("IteratorGetNext",),
    )  # fmt: skip
    first = Node(name="first/Add", type="Add", inputs=(data,), output=values(5, 6, 7), golden=values(5, 6, 7))
    second = Node(name="middle/Mul", type="Mul", inputs=(first,), output=middle, golden=middle)
    third = Node(name="last/Sub", type="Sub", inputs=(second,), output=values(8, 9), golden=values(8, 9))
    return [source, data, first, second, third]


def faulty_chain() -> list[Node]:
    """The chain with its second op wrong, and with it what comes after it."""
    source, data, first, second, last = chain()
    assert second.output is not None
    assert last.output is not None
    wrong = replace(second, output=second.output[::-1])
    return [source, data, first, wrong, replace(last, inputs=(wrong,), output=last.output[::-1])]
