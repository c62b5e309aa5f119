"""Ops that call a subgraph as a function does, and the one way of a tensor across the borders of what they call."""

from __future__ import annotations

from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op

#: Only these run their graph once with the inputs they have; that of a loop or a branch runs often or not at all.
_TYPES = ("PartitionedCall", "StatefulPartitionedCall")


def output_of(graph: Graph) -> Op | None:
    """The op of a subgraph whose inputs are the outputs of the op that calls it."""
    return graph.by_name.get(f"{graph.name}_Node_Output") or next(
        (op for op in graph.ops if op.type == "NetOutput"), None
    )


class Calls:
    """Who calls which graph of a file."""

    def __init__(self, file: GraphFile) -> None:
        self._graphs = {graph.name: graph for graph in file.graphs}
        self._home = {id(op): graph for graph in file.graphs for op in graph.ops}
        self._callers = {name: op for op in file.ops for name in op.subgraph_names}

    def producer(self, op: Op, edge: Edge) -> Op | None:
        """The op that an input edge of `op` comes from; edges stay within a graph."""
        return self._home[id(op)].by_name.get(edge.producer)

    def caller(self, op: Op) -> Op | None:
        """The op that calls the graph that `op` is in."""
        return self._callers.get(self._home[id(op)].name)

    def is_conditional(self, caller: Op) -> bool:
        """Whether a caller runs its graphs several times, or perhaps not at all."""
        return caller.type not in _TYPES

    def behind(self, op: Op, index: int) -> tuple[Op, Edge] | None:
        """The op, and its edge, that feed output `index` of an op at a border; None for any other op."""
        if op.type == "Data" and op.parent_index is not None:
            caller = self.caller(op)
            if caller is not None and caller.type in _TYPES and 0 <= op.parent_index < len(caller.inputs):
                edge = caller.inputs[op.parent_index]
                return (caller, edge) if edge is not None else None
        for name in op.subgraph_names if op.type in _TYPES else ():
            output = output_of(self._graphs[name]) if name in self._graphs else None
            edges = [] if output is None else [edge for edge in output.inputs if edge is not None]
            if output is not None and index < len(edges):
                return output, edges[index]
        return None
