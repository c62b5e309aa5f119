"""Which original tensor a tensor of the graph stands for.

An output must equal the original tensor the graph names for it; an input must equal what its producer had to put out,
found by walking back through the `Cast` and `TransData` ops that the compiler put in and through subgraph borders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from precision_tool.lib.graph.calls import Calls
from precision_tool.lib.graph.neighbourhood import TRANSPARENT_TYPES
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.graph import Edge, GraphFile, Op, TensorDesc
from precision_tool.lib.pairing.groups import Group, originals
from precision_tool.lib.pairing.op_dumps import alike
from precision_tool.lib.sources.dumps import BenchmarkSide, Missing

#: Compiler-made ops in a row that a walk back passes through at most.
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """The original tensor that a tensor of the graph stands for."""

    op_name: str
    index: int
    layout: str | None
    shape: tuple[int, ...] | None
    #: False where the name is only known as file names spell it.
    is_real: bool = True


@dataclass(frozen=True, slots=True)
class NoOrigin:
    """Why a tensor stands for no original tensor."""

    status: Status
    reason: str


class Origins:
    """Answers which original tensor an output of an op of the graph stands for."""

    def __init__(self, file: GraphFile, groups: Iterable[Group]) -> None:
        self.calls = Calls(file)
        #: Ops (by id) whose output another op of their group works on: part results of one original op.
        self._parts = {part for group in groups if len(group.ops) > 1 for part in self._feeding(group)}
        #: Names of original ops that are spelled alike in file names.
        self.alike = alike(name for op in file.ops for name in originals(op))

    def producer(self, op: Op, edge: Edge) -> Op | None:
        """The op that an input edge of `op` comes from; edges stay within a graph."""
        return self.calls.producer(op, edge)

    def _feeding(self, group: Group) -> set[int]:
        """The ops of a group that another op of it reads, directly or through ops the compiler put in."""
        members = {id(op) for op in group.ops}
        found = set()
        for op in group.ops:
            for edge in _data_inputs(op):
                producer = self.producer(op, edge)
                steps = 0
                while producer is not None and producer.type in TRANSPARENT_TYPES and id(producer) not in members:
                    steps += 1
                    inputs = _data_inputs(producer)
                    producer = self.producer(producer, inputs[0]) if inputs and steps < _MAX_STEPS else None
                if producer is not None and id(producer) in members:
                    found.add(id(producer))
        return found

    def _behind(self, op: Op, index: int) -> tuple[Op, Edge] | None:
        """The op and its edge that feed what `op` only passes on; None if `op` makes its output itself."""
        if op.type in TRANSPARENT_TYPES:
            inputs = _data_inputs(op)
            return (op, inputs[0]) if inputs else None
        return self.calls.behind(op, index)

    def of(self, op: Op, index: int, benchmark: BenchmarkSide) -> Origin | NoOrigin:
        """The original tensor of output `index` of `op`; of several on the way back the first the benchmark has."""
        first: Origin | None = None
        seen: set[tuple[int, int]] = set()
        start = op
        while (id(op), index) not in seen:
            seen.add((id(op), index))
            found = self._own(op, index)
            if isinstance(found, Origin):
                if found.op_name in self.alike and not benchmark.tells(found.op_name, found.index):
                    why = (
                        f"benchmark file names spell {found.op_name} like another op: whose tensor it is cannot be told"
                    )
                    return NoOrigin(Status.NO_BENCHMARK, why)
                first = first or found
                if not isinstance(benchmark.output_of(found.op_name, found.index), Missing):
                    return found
            behind = self._behind(op, index)
            if behind is None or (first is not None and not _keeps_values(op)):
                return first or found
            reader, edge = behind
            producer = self.producer(reader, edge)
            if producer is None:
                why = f"the graph has no op {edge.producer} to trace it back to"
                return first or NoOrigin(Status.NO_BENCHMARK, why)
            op, index = producer, edge.index
        return first or NoOrigin(Status.NO_ORIGINAL_OP, f"{start.name} is part of a loop without an original op")

    def _own(self, op: Op, index: int) -> Origin | NoOrigin:
        """What the graph says of an output of `op` itself."""
        desc = output_desc(op, index)
        layout = desc.dump_origin_layout or desc.origin_layout
        if desc.dump_origin_name:
            slot = index if desc.dump_origin_index is None else desc.dump_origin_index
            return Origin(desc.dump_origin_name, slot, layout, desc.origin_shape)
        names = originals(op)
        if id(op) in self._parts:
            return NoOrigin(
                Status.INTERMEDIATE, f"{op.name} is one of several ops made from {', '.join(names)}: a part result"
            )
        if op.type == "Data":
            caller = self.calls.caller(op)
            if caller is not None and self.calls.is_conditional(caller):
                why = f"it enters the {caller.type} {caller.name}, whose graph may run several times or not at all"
                return NoOrigin(Status.NO_ORIGINAL_OP, why)
        if not names:
            return NoOrigin(
                Status.NO_ORIGINAL_OP,
                f"{op.name} was put in by the graph compiler: the training script has no such tensor",
            )
        if len(names) > 1:
            return NoOrigin(
                Status.INTERMEDIATE,
                f"{op.name} is fused from {len(names)} ops and the graph names no original for this tensor",
            )
        return Origin(names[0], index, layout, desc.origin_shape)


def output_desc(op: Op, index: int) -> TensorDesc:
    """The description of an output; of one out of range the first (the vendor's rule)."""
    if not op.output_descs:
        return TensorDesc()
    return op.output_descs[index] if index < len(op.output_descs) else op.output_descs[0]


def _keeps_values(op: Op) -> bool:
    """False for a Cast from or to integers or bools, whose output is not what it was fed."""
    types = [desc.dtype for desc in (*op.input_descs[:1], *op.output_descs[:1])]
    return op.type != "Cast" or all("float" in name for name in types if name)


def _data_inputs(op: Op) -> tuple[Edge, ...]:
    return tuple(edge for edge in op.inputs if edge is not None)
