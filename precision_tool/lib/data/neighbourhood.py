"""Ops that call a subgraph as a function does, and the one way of a tensor across the borders of what they call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc

#: Only these run their graph once with the inputs they have; that of a loop or a branch runs often or not at all.
_TYPES = ("PartitionedCall", "StatefulPartitionedCall")
#: Types of ops at the border of a subgraph, outside and inside, whose outputs may be tensors that others put out.
BORDER_TYPES = frozenset((*_TYPES, "Data"))


def output_of(graph: Graph) -> Op | None:
    """The op of a subgraph whose inputs are the outputs of the op that calls it."""
    named = graph.by_name.get(f"{graph.name}_Node_Output")
    if named is not None:
        return named
    types = graph.column("type")
    return graph.ops[types.index("NetOutput")] if "NetOutput" in types else None


def order_of(file: GraphFile) -> Sequence[int]:
    """The numbers of all ops of a graph file in the order in which they run.

    Those of a subgraph come before the op that calls it, where it first is called.
    """
    calls = [
        [(place, names) for place, names in enumerate(graph.column("subgraph_names")) if names] for graph in file.graphs
    ]
    if not any(calls) and len(file.graphs) < 2:
        return range(len(file.ops))
    by_name: dict[str, int] = {}
    for at, graph in enumerate(file.graphs):
        by_name.setdefault(graph.name, at)
    called = {name for of_graph in calls for _, names in of_graph for name in names}
    roots = [at for at, graph in enumerate(file.graphs) if graph.name not in called] or [0]
    order: list[int] = []
    done: set[int] = set()
    for root in [*roots, *range(len(file.graphs))]:  # the second round finds graphs that only call each other
        if root in done:
            continue
        done.add(root)
        #: Graphs that are walked through, with the ops that are done, and the calls.
        stack = [(root, 0, 0)]
        while stack:
            at, start, call = stack.pop()
            first, end = file.starts[at : at + 2]
            for number in range(call, len(calls[at])):
                place, names = calls[at][number]
                below = next((by_name[name] for name in names if by_name.get(name, at) not in done), None)
                if below is not None:
                    order += range(first + start, first + place)
                    done.add(below)
                    stack += [(at, place, number), (below, 0, 0)]
                    break
            else:
                order += range(first + start, end)
    return order


def data_of(graph: Graph) -> list[Op]:
    """The `Data` ops of a subgraph that stand for inputs of the op that calls it."""
    places = zip(graph.column("type"), graph.column("parent_index"), strict=True)
    return [graph.ops[at] for at, (kind, index) in enumerate(places) if kind == "Data" and index is not None]


class Calls:
    """Who calls which graph of a file."""

    def __init__(self, file: GraphFile) -> None:
        self._file = file
        self._graphs = {graph.name: graph for graph in file.graphs}
        self._data: dict[str, list[Op]] = {}
        #: Of the outputs of subgraphs, by op, the output of the caller that each input is.
        self._outputs: dict[int, dict[int, int]] = {}
        #: The numbers of the ops that call a graph. It stands for the last of them.
        self._callers: dict[str, list[int]] = {}
        for number, names in enumerate(file.column("subgraph_names")):
            for name in names:
                self._callers.setdefault(name, []).append(number)

    def producer(self, op: Op, edge: Edge) -> Op | None:
        """The op that an input edge of `op` comes from; edges stay within a graph."""
        return self._file.graph_of(op).by_name.get(edge.producer)

    def caller(self, op: Op) -> Op | None:
        """The op that calls the graph that `op` is in."""
        numbers = self._callers.get(self._file.graph_of(op).name)
        return self._file.ops[numbers[-1]] if numbers else None

    def is_conditional(self, caller: Op) -> bool:
        """Return whether a caller runs its graphs several times, or perhaps not at all."""
        return caller.type not in _TYPES

    def passed_on_from(self, op: Op, index: int) -> tuple[Op, Edge] | None:
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

    def passed_on_to(self, op: Op, slot: int) -> Iterator[tuple[Op, int | None]]:
        """The ops, and their outputs, that an op at a border hands an input on as; None for all outputs."""
        for name in op.subgraph_names if op.type in _TYPES else ():
            yield from ((data, None) for data in self._data_of(name) if data.parent_index == slot)
        graph = self._file.graph_of(op)
        callers = self._callers.get(graph.name)
        if not callers or op is not output_of(self._graphs[graph.name]):
            return
        if id(op) not in self._outputs:
            connected = [number for number, edge in enumerate(op.inputs) if edge is not None]
            self._outputs[id(op)] = {number: output for output, number in enumerate(connected)}
        if slot in self._outputs[id(op)]:
            yield from ((self._file.ops[number], self._outputs[id(op)][slot]) for number in callers)

    def _data_of(self, name: str) -> list[Op]:
        if name not in self._data:
            self._data[name] = [op for graph in self._file.graphs if graph.name == name for op in data_of(graph)]
        return self._data[name]


# --- producers and consumers, across the borders of subgraphs ---


#: Ops that change storage and type of a tensor but not what it stands for.
TRANSPARENT_TYPES = ("Cast", "TransData")

#: The index of a link that carries no tensor, only an order.
CONTROL = -1

#: Ops in a row that only pass a tensor on: more are a damaged graph.
_MAX_THROUGH = 64

#: A picture of more ops than these says nothing.
MAX_NODES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An op and the graph it is in. `op` is None where an edge names an op that the graph does not have."""

    graph: str
    name: str
    op: Op | None

    @property
    def key(self) -> tuple[str, str]:
        """Graph and name, which identify the node in its file."""
        return self.graph, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Output `index` of `producer` is input `slot` of `consumer`; both are CONTROL for a link without a tensor.

    `crosses` tells that the link leads into a subgraph or out of one.
    """

    producer: Node
    index: int
    consumer: Node
    slot: int
    crosses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The op at the other end of an input or output: `link` ends there, `through` are the ops passed on the way."""

    link: Link
    end: Node
    through: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """The ops within `depth` steps of an op, nearest first, and all links between them.

    `focus` are the keys of the op itself and, where the file holds its subgraphs, of the ops at their borders.
    `left_out` counts the ops that were too many. `calls` tells of a graph which graph calls it and by which op.
    """

    op: Op
    graph: str
    depth: int
    focus: frozenset[tuple[str, str]]
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    left_out: int
    #: By key of a node, how many of its inputs and consumers are not among the nodes; nodes without any are not listed.
    open_ends: Mapping[tuple[str, str], tuple[int, int]]
    calls: Mapping[str, tuple[str, Op]]


#: A link from an op: the output, the input that it ends at, and the op of that.
Consumer: TypeAlias = tuple[int, int, Op]


class Consumers:
    """The ops that read an op of a graph, or wait for it."""

    def __init__(self, file: GraphFile) -> None:
        self._file = file
        #: By graph and producer, the links from it, with the place of the op that each ends at.
        self._links: dict[int, dict[str, list[tuple[int, int, int]]]] = {}
        #: The same with the ops, of producers that were asked for: by output, and all under None.
        self._consumers: dict[tuple[int, str], dict[int | None, list[Consumer]]] = {}

    def of(self, graph: int, name: str, index: int | None = None) -> Sequence[Consumer]:
        """Return the links from an op, or from one of its outputs, in the order of the graph's ops.

        Parameters
        ----------
        graph : int
            The number of the graph in its file.
        name : str
            The op.
        index : int, optional
            The output, `CONTROL` for the ops that wait for it; all where it is not given.

        Returns
        -------
        sequence of Consumer
            Output, input slot, op.
        """
        consumers = self._consumers.get((graph, name))
        if consumers is None:
            consumers = self._consumers[graph, name] = {}
            ops = self._file.graphs[graph].ops
            for output, slot, place in self._links_in(graph).get(name, ()):
                for key in (None, output):
                    consumers.setdefault(key, []).append((output, slot, ops[place]))
        return consumers.get(index, ())

    def _links_in(self, graph: int) -> dict[str, list[tuple[int, int, int]]]:
        links = self._links.get(graph)
        if links is None:
            links = {}
            columns = (self._file.graphs[graph].column(name) for name in ("inputs", "control_inputs"))
            for place, (edges, producers) in enumerate(zip(*columns, strict=True)):
                for slot, edge in enumerate(edges):
                    if edge is not None:
                        links.setdefault(edge.producer, []).append((edge.index, slot, place))
                for producer in producers:
                    links.setdefault(producer, []).append((CONTROL, CONTROL, place))
            self._links[graph] = links
        return links


class Wiring:
    """All links of a graph file, in both directions."""

    def __init__(self, file: GraphFile) -> None:
        self._graphs: dict[str, Graph] = {}
        for graph in file.graphs:
            self._graphs.setdefault(graph.name, graph)
        #: Graph name → the graph that holds its caller, and the caller.
        self.calls: dict[str, tuple[str, Op]] = {}
        #: The `Data` ops of each graph that stand for inputs of its caller.
        self._data: dict[str, list[Op]] = {}
        for graph in self._graphs.values():
            for place, names in enumerate(graph.column("subgraph_names")):
                for name in names:
                    self.calls.setdefault(name, (graph.name, graph.ops[place]))
            self._data[graph.name] = data_of(graph)
        self._numbers: dict[str, int] = {}
        for number, graph in enumerate(file.graphs):
            self._numbers.setdefault(graph.name, number)
        self._consumers = file.once(Consumers)

    def _readers(self, graph: str, name: str, index: int | None = None) -> Sequence[Consumer]:
        return self._consumers.of(self._numbers[graph], name, index)

    def node(self, graph: str, name: str) -> Node:
        """The op of that name in a graph."""
        return Node(graph=graph, name=name, op=self._graphs[graph].by_name.get(name))

    def _bodies(self, op: Op | None) -> list[Graph]:
        """The subgraphs of an op that the file holds."""
        return [self._graphs[name] for name in op.subgraph_names if name in self._graphs] if op is not None else []

    def is_border(self, node: Node) -> bool:
        """True for a `Data` or output op of a subgraph: what stands for a tensor of the calling op."""
        if node.op is None or node.graph not in self.calls:
            return False
        return (node.op.type == "Data" and node.op.parent_index is not None) or node.op is self._output_of(node.graph)

    def _giving(self, op: Op | None) -> list[Graph]:
        """The subgraphs whose outputs are the outputs of the op: not the condition of a loop."""
        bodies = self._bodies(op)
        if op is not None and "While" in op.type:
            return [body for body in bodies if body.name == op.subgraph_names[-1]]
        return bodies

    def output_nodes(self, op: Op | None) -> list[Node]:
        """The ops that stand for a calling op where its outputs are read."""
        outputs = [(body.name, self._output_of(body.name)) for body in self._giving(op)]
        return [Node(graph=name, name=output.name, op=output) for name, output in outputs if output is not None]

    def _output_of(self, graph: str) -> Op | None:
        """The op of a subgraph whose inputs are the calling op's outputs."""
        return output_of(self._graphs[graph])

    def inside(self, op: Op) -> tuple[Node, ...]:
        """The border ops of an op's subgraphs; () if it has none in the file."""
        nodes = []
        for body in self._bodies(op):
            output = self._output_of(body.name)
            ops = [*self._data.get(body.name, ()), *([] if output is None else [output])]
            nodes += [Node(graph=body.name, name=inner.name, op=inner) for inner in ops]
        return tuple(nodes)

    # One link further. A link to or from a calling op is replaced by those to or from its subgraphs' borders.

    def inputs(self, node: Node, slot: int | None = None) -> Iterator[Link]:
        """The links that end at a node, or at one of its inputs: by slot, control edges last."""
        op = node.op
        if op is None:
            return
        for number in range(len(op.inputs)) if slot is None else (slot,):  # one slot of many is asked for many times
            edge = op.inputs[number] if 0 <= number < len(op.inputs) else None
            if edge is not None:
                yield from self._from(node.graph, edge, node, number)
        waits_for = [(node.graph, name) for name in op.control_inputs] if slot in (None, CONTROL) else []
        if op.type == "Data" and op.parent_index is not None and node.graph in self.calls:
            outer, caller = self.calls[node.graph]
            edge = caller.inputs[op.parent_index] if op.parent_index < len(caller.inputs) else None
            if edge is not None and slot in (None, 0):
                yield from self._from(outer, edge, node, 0)
            if slot in (None, CONTROL):
                waits_for += [(outer, name) for name in caller.control_inputs]
        for graph, name in waits_for:
            yield from self._from(graph, Edge(producer=name, index=CONTROL), node, CONTROL)

    def _from(self, graph: str, edge: Edge, consumer: Node, slot: int) -> Iterator[Link]:
        producer = self.node(graph, edge.producer)
        outputs = self.output_nodes(producer.op)
        for output in outputs:
            yield Link(producer=output, index=edge.index, consumer=consumer, slot=slot, crosses=True)
        if not outputs:
            crosses = graph != consumer.graph
            yield Link(producer=producer, index=edge.index, consumer=consumer, slot=slot, crosses=crosses)

    def outputs(self, node: Node, index: int | None = None) -> Iterator[Link]:
        """The links that begin at a node, or at one of its outputs, in the order of the graph's ops."""
        if not self.output_nodes(node.op):
            yield from self._to(node, node.graph, node.name, index, crosses=False)
        if node.op is not None and node.graph in self.calls and node.op is self._output_of(node.graph):
            outer, caller = self.calls[node.graph]
            if any(body.name == node.graph for body in self._giving(caller)):
                yield from self._to(node, outer, caller.name, index, crosses=True)

    def _to(self, node: Node, graph: str, name: str, index: int | None, crosses: bool) -> Iterator[Link]:
        for number, slot, op in self._readers(graph, name, index):
            consumer = Node(graph=graph, name=op.name, op=op)
            entries = [
                Node(graph=body.name, name=data.name, op=data)
                for body in self._bodies(op)
                for data in self._data.get(body.name, ())
                if slot in (CONTROL, data.parent_index)
            ]
            for entry in entries:
                entry_slot = CONTROL if slot == CONTROL else 0
                yield Link(producer=node, index=number, consumer=entry, slot=entry_slot, crosses=True)
            if not entries:
                yield Link(producer=node, index=number, consumer=consumer, slot=slot, crosses=crosses)

    # On to the next op that does something

    def sources(self, node: Node, slot: int, passing: bool = False) -> list[Step]:
        """Return the ops that produce input `slot` of a node, through the borders of subgraphs.

        With `passing` also through `Cast` and `TransData`. A branch's output comes from more than one.
        """
        return self._follow(self.inputs(node, slot), passing, forward=False)

    def readers(self, node: Node, index: int, passing: bool = False) -> list[Step]:
        """The ops that read output `index` of a node (or wait for it, with CONTROL), as `sources`."""
        return self._follow(self.outputs(node, index), passing, forward=True)

    def waiting(self, node: Node) -> Iterator[Node]:
        """The ops of the same graph that a control edge makes wait for a node, as the graph has it."""
        for _, _, op in self._readers(node.graph, node.name, CONTROL):
            yield Node(graph=node.graph, name=op.name, op=op)

    def neighbours(self, node: Node, forward: bool) -> list[Step]:
        """All that a node leads to, or all that leads to it."""
        return self._follow(self.outputs(node) if forward else self.inputs(node), False, forward)

    def _follow(self, links: Iterable[Link], passing: bool, forward: bool) -> list[Step]:
        steps: list[Step] = []
        visited: set[tuple[tuple[str, str], int]] = set()
        waiting: list[tuple[Link, tuple[Node, ...]]] = [(link, ()) for link in reversed(list(links))]
        while waiting:
            link, through = waiting.pop()
            end = link.consumer if forward else link.producer
            place = (end.key, link.slot if forward else link.index)
            fresh = place not in visited
            further: list[Link] = []
            visited.add(place)
            if fresh and link.index != CONTROL and len(through) < _MAX_THROUGH:
                further = list(self._beyond(link, passing, forward))
            if further:
                waiting += [(next_link, (*through, end)) for next_link in reversed(further)]
            elif fresh:
                steps.append(Step(link=link, end=end, through=through))
        return steps

    def _beyond(self, link: Link, passing: bool, forward: bool) -> Iterator[Link]:
        """The links behind the end of a link, if the op there only passes the tensor on."""
        end = link.consumer if forward else link.producer
        if end.op is None:
            return
        transparent = passing and end.op.type in TRANSPARENT_TYPES
        if not transparent and not self.is_border(end):
            return
        is_output = end.op.type != "Data" and not transparent
        if forward:
            yield from self.outputs(end, link.slot if is_output else 0)
        else:
            yield from self.inputs(end, link.index if is_output else 0)


def neighbourhood(wiring: Wiring, graph: str, op: Op, depth: int, max_nodes: int = MAX_NODES) -> Neighbourhood:
    """The ops that lead to `op` and those it leads to in at most `depth` steps; borders of subgraphs are no step.

    Where they are too many, the nearest are taken.
    """
    start = Node(graph=graph, name=op.name, op=op)
    inside = wiring.inside(op)
    reached_nodes = {node.key: (0, node) for node in (start, *inside)}
    focus = frozenset(reached_nodes)
    for forward in (False, True):
        visited = set(focus)
        rim = [start, *inside]
        for distance in range(1, depth + 1):
            reached: list[Node] = []
            for step in (step for node in rim for step in wiring.neighbours(node, forward)):
                for passed in (*step.through, step.end):
                    reached_nodes[passed.key] = min(
                        reached_nodes.get(passed.key, (distance, passed)), (distance, passed), key=_nearness
                    )
                if step.end.key not in visited:
                    visited.add(step.end.key)
                    reached.append(step.end)
            rim = reached
            if not rim:
                break
    nearest = sorted(reached_nodes.values(), key=_nearness)[:max_nodes]
    nodes = {node.key: node for _, node in nearest}
    links = []
    open_ends = {}
    for node in nodes.values():
        ahead = list(wiring.outputs(node))
        drawn = [link for link in ahead if link.consumer.key in nodes]
        unread = sum(link.producer.key not in nodes for link in wiring.inputs(node))
        links += drawn
        if unread or len(drawn) < len(ahead):
            open_ends[node.key] = (unread, len(ahead) - len(drawn))
    if inside and not any(start.key in (link.producer.key, link.consumer.key) for link in links):
        del nodes[start.key]  # the borders of its subgraphs stand for all of it
        open_ends.pop(start.key, None)
    return Neighbourhood(
        op=op,
        graph=graph,
        depth=depth,
        focus=focus,
        nodes=tuple(nodes.values()),
        links=tuple(links),
        left_out=max(0, len(reached_nodes) - max_nodes),
        open_ends=open_ends,
        calls=wiring.calls,
    )


def _nearness(item: tuple[int, Node]) -> int:
    return item[0]


# --- the connections of one op ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input slot of an op: its edge (None: not connected), its description, and the ops that feed it."""

    slot: int
    edge: Edge | None
    desc: TensorDesc | None
    sources: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An output of an op: its description and the ops that read it."""

    index: int
    desc: TensorDesc | None
    readers: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The connections of an op. `waits_for` and `awaited_by` are its control edges."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    waits_for: tuple[Node, ...]
    awaited_by: tuple[Node, ...]
    #: The op that calls the op's graph, where that is a subgraph.
    caller: Node | None


def described_inputs(op: Op) -> dict[int, TensorDesc]:
    """The descriptions of an op's inputs by slot; some releases describe only connected ones."""
    connected = [slot for slot, edge in enumerate(op.inputs) if edge is not None]
    slots = connected if len(op.input_descs) == len(connected) else range(len(op.input_descs))
    return dict(zip(slots, op.input_descs, strict=True))


def connections(wiring: Wiring, graph: str, op: Op) -> Connections:
    """Return the connections of `op` through subgraph borders and compiler-inserted `Cast` and `TransData`."""
    node = Node(graph=graph, name=op.name, op=op)
    descs = described_inputs(op)
    slots = range(max(len(op.inputs), max(descs, default=-1) + 1))
    edges = dict(enumerate(op.inputs))
    ends = wiring.output_nodes(op) or [node]
    read = {link.index for end in ends for link in wiring.outputs(end) if link.index != CONTROL}
    indices = sorted(read.union(range(len(op.output_descs))))
    call = wiring.calls.get(graph)
    return Connections(
        inputs=tuple(
            Input(
                slot=slot,
                edge=edges.get(slot),
                desc=descs.get(slot),
                sources=tuple(wiring.sources(node, slot, passing=True)),
            )
            for slot in slots
        ),
        outputs=tuple(
            Output(
                index=index,
                desc=op.output_desc(index),
                readers=tuple(step for end in ends for step in wiring.readers(end, index, passing=True)),
            )
            for index in indices
        ),
        waits_for=tuple(wiring.node(graph, name) for name in op.control_inputs),
        awaited_by=tuple(wiring.waiting(node)),
        caller=None if call is None else Node(graph=call[0], name=call[1].name, op=call[1]),
    )
