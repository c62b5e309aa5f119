"""Ops of one output each as a graph and the dump of one leaf, for tests of what a run shows by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builders import MODEL, STAMP, TIMESTAMP, Array, graph_op, text_graph, write_dump

from precision_tool.lib.data.dump_tree import find_run
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name, write_statistics
from precision_tool.lib.io.ge_graph import load_graph_file
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf


@dataclass(frozen=True, kw_only=True)
class Step:
    """An op: what feeds it by name, its output, and whether inputs and op are dumped.

    `read` is what is in the dump of its inputs, by slot, if not what the ops before put out.
    """

    name: str
    type: str = "Add"
    inputs: tuple[str, ...] = ()
    output: Array | None = None
    address: int = 0
    read: Mapping[int, Array] = field(default_factory=dict)
    dumped: bool = True
    with_inputs: bool = True

    def stored(self, array: Array | None = None) -> OutTensor:
        """Its output, or another array, where its output lies."""
        data = self.output if array is None else array
        assert data is not None
        return OutTensor(data=data, origin_shape=data.shape, address=self.address)


def chain(*outputs: Array, names: Sequence[str] = "abcdefg") -> list[Step]:
    """Ops one behind the other."""
    return [
        Step(name=names[at], inputs=(names[at - 1],) if at else (), output=output) for at, output in enumerate(outputs)
    ]


def write_steps(
    folder: Path, steps: Sequence[Step], graph: Path, *, statistics: bool = False
) -> tuple[DumpLeaf, GraphFile]:
    """Write the dump of the steps below `folder`, and their graph."""
    leaf = folder / STAMP / "0" / MODEL / "1" / "0"
    by_name = {step.name: step for step in steps}
    for number, step in enumerate(steps):
        if not step.dumped:
            continue
        sources = [by_name[name] for name in step.inputs] if step.with_inputs else []
        fed = [source.stored(step.read.get(slot)) for slot, source in enumerate(sources)]
        path = leaf / dump_file_name(step.type, step.name, number, TIMESTAMP + 10 * number, stream_id=0)
        if statistics:
            leaf.mkdir(parents=True, exist_ok=True)
            write_statistics(Path(f"{path}.csv"), fed, [step.stored()])
        else:
            write_dump(path, step.name, fed, [step.stored()])
    graph.parent.mkdir(parents=True, exist_ok=True)
    ops = [graph_op(step.name, step.type, [f"{name}:0" for name in step.inputs]) for step in steps]
    graph.write_text(text_graph(ops))
    (found,) = find_run(str(folder)).leaves
    return found, load_graph_file(str(graph))
