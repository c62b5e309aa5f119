"""GE graphs: ops, their tensors as compiled, and what each op was before fusion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from precision_tool.lib.messages import Message
from precision_tool.lib.model.msprobe import RecordedOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Output `index` of the op `producer`."""

    producer: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDesc:
    """A tensor of an op as the compiled graph describes it.

    `dump_origin_*` name the tensor of the training script that this one must equal
    (`_datadump_origin_name`, `…_output_index`, `…_format`); None where the graph does not say.
    """

    dtype: str = ""
    layout: str = ""
    shape: tuple[int, ...] = ()
    origin_layout: str | None = None
    origin_shape: tuple[int, ...] | None = None
    dump_origin_name: str | None = None
    dump_origin_index: int | None = None
    dump_origin_layout: str | None = None


@dataclass(frozen=True, kw_only=True)
class Op:
    """A node of a graph.

    `inputs` keeps data edges only, by slot; None marks a slot that is not connected.
    `original_names` is None when the graph does not say, `()` when it says that no original op exists
    (`Cast` and `TransData` that the compiler put in).
    """

    name: str
    type: str
    id: int | None = None
    inputs: tuple[Edge | None, ...] = ()
    control_inputs: tuple[str, ...] = ()
    input_descs: tuple[TensorDesc, ...] = ()
    output_descs: tuple[TensorDesc, ...] = ()
    pass_names: tuple[str, ...] = ()
    original_names: tuple[str, ...] | None = None
    stream_id: int | None = None
    kernel_name: str = ""
    kernel_lib: str = ""
    l1_fusion_group: str | None = None
    is_multiop: bool = False
    parent_index: int | None = None
    subgraph_names: tuple[str, ...] = ()
    #: Every attribute, decoded when asked for.
    attrs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    #: The call that msprobe recorded; None for an op of a compiler's graph.
    recorded: RecordedOp | None = field(default=None, repr=False, compare=False)

    @property
    def pass_name(self) -> str:
        """The first of the passes that made the op, empty for none."""
        return self.pass_names[0] if self.pass_names else ""

    @property
    def is_recorded(self) -> bool:
        """Whether it is a call that msprobe recorded."""
        return self.recorded is not None

    def recorded_input(self, slot: int) -> str:
        """The name that a benchmark has of an input of a recorded call, whatever put it out; "" for other ops."""
        recorded = self.recorded
        return recorded.tensor_name(slot) if recorded is not None and slot < len(recorded.input_slots) else ""

    @property
    def module(self) -> str:
        """The module that made a recorded call, with its class: `blocks.1.act (GELU)`; "" where nothing says."""
        return str(self.attrs.get("module", "")) if self.is_recorded else ""

    @property
    def source(self) -> str:
        """The line of the script that made a recorded call: `train.py:85 in forward`; "" where nothing says."""
        return str(self.attrs.get("source", "")) if self.is_recorded else ""

    def output_desc(self, index: int = 0) -> TensorDesc | None:
        """Return the description of an output; None where the graph has none."""
        return self.output_descs[index] if index < len(self.output_descs) else None


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One graph of a file; subgraphs are graphs of their own that ops name in `subgraph_names`."""

    name: str
    ops: tuple[Op, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.ops)} ops>"

    @cached_property
    def by_name(self) -> dict[str, Op]:
        """Ops by name; of two with one name the first."""
        index: dict[str, Op] = {}
        for op in self.ops:
            index.setdefault(op.name, op)
        return index


@dataclass(frozen=True, kw_only=True)
class GraphFile:
    """All graphs of one file, the root graph first. `notes` are things the user should know of the file."""

    path: str
    graphs: tuple[Graph, ...] = ()
    notes: tuple[Message, ...] = ()

    @property
    def framework(self) -> str:
        """The framework whose calls msprobe recorded, "pytorch" or "mindspore"; "" of a graph that GE compiled."""
        graph = next(iter(self.graphs), None)
        if graph is None or not any(op.is_recorded for op in graph.ops):
            return ""
        return str(graph.attrs.get("framework") or "pytorch")

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops of all graphs, in file order."""
        return tuple(op for graph in self.graphs for op in graph.ops)

    def op(self, name: str) -> Op | None:
        """Return the first op of a name, None for none."""
        return next((graph.by_name[name] for graph in self.graphs if name in graph.by_name), None)
