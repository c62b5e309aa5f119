"""The ops of a graph as a report numbers them, the edges between them, and the path of an error."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import NamedTuple

from precision_tool.lib.graph.neighbourhood import CONTROL
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.pairing.groups import groups_of
from precision_tool.lib.report.map_layout import Layout, Place, execution_order, lay_out, places


class Wire(NamedTuple):
    """Output `output` of op `producer` is input `slot` of op `reader`; both are CONTROL where only the order counts."""

    producer: int
    output: int
    reader: int
    slot: int


@dataclass(frozen=True, slots=True)
class Network:
    """Ops in order of execution and the wires between them; `positions` finds an op of the dump by its name.

    `graphs` has the name of the graph of each op, `numbers` the number that lists and `ni '[17]'` have for it, `places`
    its scopes. Names that several ops have are `repeated`: they do not tell which of these a dump is of.
    """

    ops: Sequence[Op]
    graphs: Sequence[str]
    numbers: Sequence[int]
    wires: Sequence[Wire]
    places: Sequence[Place]
    positions: Mapping[str, int]
    repeated: Collection[str] = ()

    def layout(self) -> Layout:
        """Return where the ops stand on the map."""
        return lay_out(self.places, [(wire.producer, wire.reader) for wire in self.wires])


def network_of(file: GraphFile) -> Network:
    """Return the network of a graph file. An op of a subgraph stands in a group of the subgraph's name."""
    graph_ops = [(graph, op) for graph in file.graphs for op in graph.ops]
    at = {(graph.name, op.name): number for number, (graph, op) in reversed(list(enumerate(graph_ops)))}
    wires = _wires([(graph.name, op) for graph, op in graph_ops], at)
    # As the compiler numbered them, as far as the edges bear it out.
    numbers = sorted(range(len(graph_ops)), key=lambda at: _number(graph_ops[at][1], at))
    rank = {old: new for new, old in enumerate(numbers)}
    order = execution_order(len(graph_ops), [(rank[wire.producer], rank[wire.reader]) for wire in wires])
    new = [order[rank[old]] for old in range(len(graph_ops))]
    by_position = sorted(range(len(graph_ops)), key=new.__getitem__)
    wires = [Wire(new[wire.producer], wire.output, new[wire.reader], wire.slot) for wire in wires]
    wires.sort(key=lambda wire: (wire.reader, wire.slot, wire.producer, wire.output))
    ops = [graph_ops[old][1] for old in by_position]
    graphs = [graph_ops[old][0].name for old in by_position]
    names = Counter(op.name for op in ops)
    positions = {op.name: position for position, op in enumerate(ops) if names[op.name] == 1}
    repeated = {name for name, count in names.items() if count > 1}
    number_of = {id(op): number for number, group in enumerate(groups_of(file)) for op in group.ops}
    return Network(
        ops=ops, graphs=graphs, numbers=[number_of[id(op)] for op in ops], wires=wires,
        places=_places(file, ops, graphs, wires), positions=positions, repeated=repeated,
    )  # fmt: skip


def _number(op: Op, otherwise: int) -> tuple[int, int]:
    return (op.id if op.id is not None else otherwise, otherwise)


def _wires(ops: Sequence[tuple[str, Op]], at: Mapping[tuple[str, str], int]) -> list[Wire]:
    wires: list[Wire] = []
    starts: dict[str, list[int]] = {}
    for position, (graph, op) in enumerate(ops):
        if op.type == "Data":
            starts.setdefault(graph, []).append(position)
    for reader, (graph, op) in enumerate(ops):
        for slot, edge in enumerate(op.inputs):
            producer = at.get((graph, edge.producer)) if edge is not None else None
            if edge is not None and producer is not None:
                wires.append(Wire(producer, edge.index, reader, slot))
        for name in op.control_inputs:
            producer = at.get((graph, name))
            if producer is not None:
                wires.append(Wire(producer, CONTROL, reader, CONTROL))
        for name in op.subgraph_names:
            # What a subgraph begins with follows the op that calls it.
            wires += [Wire(reader, CONTROL, start, CONTROL) for start in starts.get(name, ()) if start != reader]
    return wires


def _places(file: GraphFile, ops: Sequence[Op], graphs: Sequence[str], wires: Sequence[Wire]) -> list[Place]:
    producers: list[list[int]] = [[] for _ in ops]
    readers: list[list[int]] = [[] for _ in ops]
    for wire in wires:
        if wire.slot != CONTROL:
            producers[wire.reader].append(wire.producer)
            readers[wire.producer].append(wire.reader)
    op_places = places(ops, producers, readers)
    root = file.graphs[0].name if file.graphs else ""
    return [
        place if graph == root else Place((graph, *place.scopes))
        for place, graph in zip(op_places, graphs, strict=True)
    ]


# --- the path of an error ---------------------------------------------------------------------------------------------


def error_path(network: Network, culprit: int, wrong: Collection[int], cosines: Mapping[int, float]) -> list[int]:
    """Return the ops from the culprit on that its error goes through, up to the loss, or to where it ends.

    The end is the last op of the forward pass behind the culprit that ops are wrong up to; of a culprit in the backward
    pass the last op at all. Of two ways the one with more wrong ops on it is taken, then the worse one.
    """
    followers: dict[int, list[int]] = {}
    for wire in network.wires:
        if wire.slot != CONTROL and wire.producer < wire.reader:
            followers.setdefault(wire.producer, []).append(wire.reader)
    is_backward = network.places[culprit].is_backward
    came_from: dict[int, int] = {culprit: culprit}
    weight: dict[int, tuple[int, float]] = {culprit: (0, 0.0)}
    downstream = _downstream(culprit, followers)
    # Positions follow the edges, so each op is complete when it is its turn.
    for op in sorted(downstream):
        for reader in followers.get(op, ()):
            if network.places[reader].is_backward and not is_backward:
                continue
            before = weight.get(op)
            if before is None:
                continue
            distance = 1 - cosines.get(reader, 1.0)
            score = (before[0] + (reader in wrong), before[1] + (distance if not isnan(distance) else 2.0))
            if reader not in weight or score > weight[reader]:
                weight[reader], came_from[reader] = score, op
    end = max(weight, key=lambda op: (op in wrong, weight[op][0], op), default=culprit)
    path = [end]
    while path[-1] != culprit:
        path.append(came_from[path[-1]])
    return path[::-1]


def _downstream(start: int, followers: Mapping[int, Sequence[int]]) -> set[int]:
    reached = {start}
    waiting = deque([start])
    while waiting:
        for reader in followers.get(waiting.popleft(), ()):
            if reader not in reached:
                reached.add(reader)
                waiting.append(reader)
    return reached


def lowest(values: Sequence[float | None]) -> float | None:
    """Return the lowest of some cosines, NaN lowest of all; None without any."""
    cosines = [value for value in values if value is not None]
    if len(cosines) < 2:
        return cosines[0] if cosines else None
    return min(cosines, key=lambda value: -inf if isnan(value) else value)
