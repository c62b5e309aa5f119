"""The map of a report: the ops of a graph, the wires between them, the path of an error, and the groups of the map.

The map is a tree of groups, which the page draws as layers, one group at a time. What it needs for this is made here: a
group has no edge back to what comes before it. A scope or module that the data flow leaves and comes back to (a ReLU
that a block calls three times) is cut into a group for each visit. The forward pass, the backward pass and what uses
the gradients are lanes: the page draws the backward pass beside the forward one, from the bottom to the top.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile
from math import inf, isnan
from typing import NamedTuple

from precision_tool.lib.data.neighbourhood import CONTROL
from precision_tool.lib.data.origins import groups_of
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.view.report_places import (
    OPTIMIZER,
    Place,
    is_recorded,
    module_classes,
    order_of_calls,
    places_of_calls,
    places_of_names,
)

#: A group with more children than this is split into sections of consecutive ones, each lane on its own.
MOST_CHILDREN = 96
_SECTION = MOST_CHILDREN // 3
#: A group at the top with this part of the forward pass is replaced by what is in it, so many times.
_MOST_OF_IT = 0.6
_MOST_DISSOLVED = 4
#: Groups that are looked at to find out whether an op may join one; then the op begins another.
_MOST_LOOKED_AT = 2000

Edge = tuple[int, int]


# --- the network -----------------------------------------------------------------------------------------------------


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
    its scopes. Names that several ops have are `repeated`: they do not tell which of these a dump is of. A network of
    recorded calls `is_recorded`; `classes` are those of its modules by their scopes, and `order` are edges that only
    the layout has.
    """

    ops: Sequence[Op]
    graphs: Sequence[str]
    numbers: Sequence[int]
    wires: Sequence[Wire]
    places: Sequence[Place]
    positions: Mapping[str, int]
    repeated: Collection[str] = ()
    is_recorded: bool = False
    classes: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    order: Sequence[Edge] = ()

    def layout(self) -> Layout:
        joint = "." if self.is_recorded else "/"
        return lay_out(self.places, [*((wire.producer, wire.reader) for wire in self.wires), *self.order], joint)


def network_of(file: GraphFile) -> Network:
    """Return the network of a graph file. An op of a subgraph stands in a group of the subgraph's name."""
    graph_ops = [(graph, op) for graph in file.graphs for op in graph.ops]
    at = {(graph.name, op.name): number for number, (graph, op) in reversed(list(enumerate(graph_ops)))}
    wires = _wires([(graph.name, op) for graph, op in graph_ops], at)
    recorded = is_recorded(file)
    # As the compiler numbered them, as far as the edges bear it out. Recorded calls are in the order of time.
    numbers = [*range(len(graph_ops))]
    if not recorded:
        numbers.sort(key=lambda at: _number(graph_ops[at][1], at))
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
    network = Network(
        ops=ops, graphs=graphs, numbers=[number_of[id(op)] for op in ops], wires=wires, places=(),
        positions=positions, repeated=repeated,
    )  # fmt: skip
    return _with_places(network, file.graphs[0].name if file.graphs else "", recorded)


def _with_places(network: Network, root: str, recorded: bool) -> Network:
    """Return a network with the places of its ops; `root` is the name of the graph that is not within another."""
    ops = network.ops
    producers: list[list[int]] = [[] for _ in ops]
    readers: list[list[int]] = [[] for _ in ops]
    for wire in network.wires:
        if wire.slot != CONTROL:
            producers[wire.reader].append(wire.producer)
            readers[wire.producer].append(wire.reader)
    if not recorded:
        by_names = zip(places_of_names(ops, producers, readers), network.graphs, strict=True)
        places = [place if graph == root else Place((graph, *place.scopes)) for place, graph in by_names]
        return replace(network, places=places)
    places = places_of_calls(ops, readers)
    return replace(
        network, places=places, is_recorded=True, classes=module_classes(ops, places),
        order=order_of_calls(ops, places, producers),
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
    # Positions follow the edges, so each op is complete when it is its turn.
    for op in range(culprit, len(network.ops)):
        before = weight.get(op)
        if before is None:  # not downstream
            continue
        for reader in followers.get(op, ()):
            if network.places[reader].is_backward and not is_backward:
                continue
            distance = 1 - cosines.get(reader, 1.0)
            score = (before[0] + (reader in wrong), before[1] + (distance if not isnan(distance) else 2.0))
            if reader not in weight or score > weight[reader]:
                weight[reader], came_from[reader] = score, op
    end = max(weight, key=lambda op: (op in wrong, weight[op][0], op))
    path = [end]
    while path[-1] != culprit:
        path.append(came_from[path[-1]])
    return path[::-1]


def lowest(values: Sequence[float | None]) -> float | None:
    """Return the lowest of some cosines, NaN lowest of all; None without any."""
    cosines = [value for value in values if value is not None]
    return min(cosines, key=lambda value: -inf if isnan(value) else value, default=None)


# --- the layout ------------------------------------------------------------------------------------------------------


class Lane(IntEnum):
    """Where an item stands within its group: the columns of the map, from the left."""

    FORWARD = 0
    BACKWARD = 1
    #: What reads gradients and is no gradient: loss scaling, the optimizer.
    UPDATE = 2


@dataclass(slots=True)
class Group:
    """A group of ops in the same scopes. `parent` is -1 for one at the top.

    A section is a piece of a group that is too large, and has no `scopes`.
    """

    name: str
    parent: int
    lane: Lane
    is_section: bool = False
    ops: int = 0
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the ops, then of the groups, by one numbering: op `i` is item `i`, group `g` item `len(ops) + g`.

    `parents` are groups (-1: at the top), `orders` count the children of one group in the order of the data flow: of an
    edge between two of them the producer has the lower number, unless the edge closes a cycle of ops. `mirrors` are
    pairs of an item of the backward pass and the one of the forward pass that it stands level with.
    """

    groups: Sequence[Group]
    parents: Sequence[int]
    orders: Sequence[int]
    lanes: Sequence[Lane]
    mirrors: Sequence[tuple[int, int]] = ()


def execution_order(count: int, edges: Iterable[Edge]) -> list[int]:
    """Return the position of each of `count` ops in an order that follows the edges, close to their numbers.

    Of a cycle the op with the lowest number comes first.
    """
    followers: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for producer, reader in edges:
        if producer != reader:
            followers[producer].append(reader)
            waiting[reader] += 1
    ready = [op for op in range(count) if not waiting[op]]
    position = [-1] * count
    placed, lowest = 0, 0
    while placed < count:
        if not ready:  # a cycle
            while position[lowest] >= 0:
                lowest += 1
            ready.append(lowest)
        op = heapq.heappop(ready)
        if position[op] >= 0:
            continue
        position[op] = placed
        placed += 1
        for reader in followers[op]:
            waiting[reader] -= 1
            if not waiting[reader] and position[reader] < 0:
                heapq.heappush(ready, reader)
    return position


def lay_out(places: Sequence[Place], edges: Sequence[Edge], joint: str = "/") -> Layout:
    """Return the layout of ops in these scopes. The same ops and edges always have the same layout.

    A group of nothing but another group is left out; its name stands before that of the other, with `joint` between.
    """
    flow = _Flow(places, edges)
    tree = _Tree(flow, joint)
    return Layout(tree.groups, tree.parents, tree.orders, tree.lanes, tree.mirrors())


class _Flow:
    """Ops in the order that the map shows them in, and the place and lane of each.

    Variables and constants come right before their first reader; what only one lane reads stands in it.
    """

    def __init__(self, places: Sequence[Place], edges: Sequence[Edge]) -> None:
        count = len(places)
        is_in_order = all(producer < reader for producer, reader in edges)
        position = [*range(count)] if is_in_order else execution_order(count, edges)
        self.producers: list[list[int]] = [[] for _ in places]
        self._readers: list[list[int]] = [[] for _ in places]
        for producer, reader in dict.fromkeys(edges):
            if position[producer] < position[reader]:  # an edge that closes a cycle is no flow
                self.producers[reader].append(producer)
                self._readers[producer].append(reader)
        by_position = sorted(range(count), key=position.__getitem__)
        self._leads = self._find_leads(by_position)
        self.order = self._sink(by_position)
        self.places = [*places]
        self.lanes = self._lanes(by_position)

    def _find_leads(self, by_position: Sequence[int]) -> list[bool]:
        """Return of each op whether it is a source that ops read, or computed from one such source alone."""
        leads = [False] * len(by_position)
        for op in by_position:
            producers = self.producers[op]
            leads[op] = bool(self._readers[op]) and len(producers) < 2 and all(leads[other] for other in producers)
        return leads

    def _sink(self, by_position: Sequence[int]) -> list[int]:
        order: list[int] = []
        done = [False] * len(by_position)
        for op in by_position:
            if self._leads[op]:
                continue
            for producer in self.producers[op]:
                chain = []
                lead: int | None = producer
                while lead is not None and self._leads[lead] and not done[lead]:
                    done[lead] = True
                    chain.append(lead)
                    lead = next(iter(self.producers[lead]), None)
                order += reversed(chain)
            order.append(op)
        return order

    def _lanes(self, by_position: Sequence[int]) -> list[Lane]:
        lanes = [Lane.BACKWARD if place.is_backward else Lane.FORWARD for place in self.places]
        # What has something of the forward pass. A constant of the backward pass alone says nothing of what reads it:
        # the compiler keeps equal constants once.
        is_fed = [lane == Lane.FORWARD for lane in lanes]
        for op in by_position:
            producers = self.producers[op]
            is_fed[op] = is_fed[op] or any(is_fed[producer] for producer in producers)
            is_behind = any(lanes[producer] != Lane.FORWARD and is_fed[producer] for producer in producers)
            if lanes[op] == Lane.FORWARD and (is_behind or self.places[op].scopes == (OPTIMIZER,)):
                lanes[op] = Lane.UPDATE
        for op in reversed(by_position):
            lane = min((lanes[reader] for reader in self._readers[op]), default=lanes[op])
            if not self.producers[op] and lane != lanes[op]:
                lanes[op] = lane
                self.places[op] = replace(self.places[self._readers[op][0]], leaf="")
        return lanes


# --- the tree of groups -----------------------------------------------------------------------------------------------


class _Tree:
    """Groups, and the parent, order and lane of each item: of the ops, then of the groups."""

    def __init__(self, flow: _Flow, joint: str) -> None:
        self._flow, self._joint = flow, joint
        self._count = len(flow.places)
        self.groups: list[Group] = []
        self.lanes = [*flow.lanes]
        self.orders = [0] * self._count
        self.parents = [-1] * self._count
        #: The group that each op is being put into.
        self._within = [-1] * self._count
        #: Items by their scopes in the forward pass, and ops by the last part of their name; in the order of the flow.
        self._by_path: dict[tuple[Lane, tuple[str, ...]], list[int]] = {}
        #: The scopes of the groups that are replaced by what is in them.
        self._dissolved: tuple[str, ...] = ()
        waiting: list[tuple[int, int, Sequence[list[int]]]] = [(-1, 0, self._top())]
        while waiting:
            parent, depth, visits = waiting.pop()
            for order, (item, more) in enumerate(self._items(parent, depth, visits)):
                self.orders[item] = order
                if more is not None:
                    waiting.append((item - self._count, *more))
        self.parents += [group.parent for group in self.groups]

    def _top(self) -> list[list[int]]:
        """Return the ops of each child at the top.

        A group that holds most of the network (`resnet`, and in it `encoder`) is replaced by what is in it, in the
        backward pass too: only siblings can stand level with each other.
        """
        visits = self._visits(self._flow.order, 0)
        for _ in range(_MOST_DISSOLVED):
            forward = [visit for visit in visits if self._flow.lanes[visit[0]] == Lane.FORWARD]
            largest = max(forward, key=len, default=[])
            if len(largest) < 2 or len(largest) < _MOST_OF_IT * sum(map(len, forward)):
                break
            scopes = _common([self._flow.places[op].scopes for op in largest])
            opened: list[list[int]] = []
            for visit in visits:
                place = self._flow.places[visit[0]]
                is_same = (place.mirrors if place.is_backward else place.scopes)[: len(scopes)] == scopes
                opened += self._visits(visit, len(scopes)) if is_same else [visit]
            if len(opened) > MOST_CHILDREN:
                break
            visits, self._dissolved = opened, scopes
        return visits

    def _items(
        self, parent: int, depth: int, visits: Sequence[list[int]]
    ) -> Iterator[tuple[int, tuple[int, Sequence[list[int]]] | None]]:
        """Make the children of a group; yield each with its own depth and visits, None for an op."""
        if len(visits) > MOST_CHILDREN:
            for lane in Lane:
                of_lane = [visit for visit in visits if self._flow.lanes[visit[0]] == lane]
                if len(of_lane) > _SECTION:
                    yield from self._sections(parent, depth, of_lane)
                else:
                    yield from self._items(parent, depth, of_lane)
            return
        for visit in visits:
            if len(visit) == 1:
                (op,) = visit
                self.parents[op] = parent
                place = self._flow.places[op]
                self._note_paths(op, op, depth, len(place.scopes))
                if place.leaf:
                    scopes = place.mirrors if place.is_backward else place.scopes
                    self._by_path.setdefault((self.lanes[op], (*scopes, place.leaf)), []).append(op)
                yield op, None
            else:
                yield self._group(parent, depth, visit)

    def _group(self, parent: int, depth: int, ops: list[int]) -> tuple[int, tuple[int, Sequence[list[int]]]]:
        scopes = self._flow.places[ops[0]].scopes
        start = depth
        depth += 1
        for op in ops:
            self._within[op] = len(self.groups)
        while len(visits := self._visits(ops, depth)) == 1:
            depth += 1
        name = self._joint.join(scopes[start:depth])
        item = self._add(Group(name, parent, self._flow.lanes[ops[0]], ops=len(ops), scopes=scopes[:depth]))
        self._note_paths(item, ops[0], start, depth)
        return item, (depth, visits)

    def _note_paths(self, item: int, op: int, start: int, end: int) -> None:
        """Note the scopes that an item stands for: its own, and those above that have nothing else in them."""
        place = self._flow.places[op]
        scopes = place.mirrors if place.is_backward else place.scopes
        for depth in range(start + 1, min(end, len(scopes)) + 1):
            if scopes[:depth] != self._dissolved[:depth]:
                self._by_path.setdefault((self.lanes[item], scopes[:depth]), []).append(item)

    def _sections(
        self, parent: int, depth: int, visits: Sequence[list[int]]
    ) -> Iterator[tuple[int, tuple[int, Sequence[list[int]]]]]:
        """Cut what is too much for one group into sections; these may be too large too."""
        # So few sections that they fit into one group.
        size = max(_SECTION, -(-len(visits) // _SECTION))
        for start in range(0, len(visits), size):
            piece = visits[start : start + size]
            ops = sum(map(len, piece))
            lane = self._flow.lanes[piece[0][0]]
            name = f"{start + 1}–{start + len(piece)}"
            yield self._add(Group(name, parent, lane, is_section=True, ops=ops)), (depth, piece)

    def _add(self, group: Group) -> int:
        self.groups.append(group)
        self.lanes.append(group.lane)
        self.orders.append(0)
        return self._count + len(self.groups) - 1

    def _visits(self, ops: Sequence[int], depth: int) -> list[list[int]]:
        """Return the ops of each child of a group, both in the order of the data flow.

        `ops` are all that are in the group. The ops of one scope are one child, unless the data flow leaves it and
        comes back.
        """
        flow, within = self._flow, self._within[ops[0]] if ops else -1
        visits: list[list[int]] = []
        visit_of: dict[int, int] = {}
        before: list[set[int]] = []
        latest: dict[tuple[Lane, str], int] = {}
        spans: list[tuple[int, int]] = []
        for at, op in enumerate(ops):
            lane, scopes = flow.lanes[op], flow.places[op].scopes
            producers = {
                visit_of[producer]
                for producer in flow.producers[op]
                if self._within[producer] == within and flow.lanes[producer] == lane and producer in visit_of
            }
            visit = latest.get((lane, scopes[depth])) if depth < len(scopes) else None
            if visit is None or _is_downstream(visit, producers - {visit}, before, spans):
                visit = len(visits)
                visits.append([])
                before.append(set())
                spans.append((at, at))
                if depth < len(scopes):
                    latest[lane, scopes[depth]] = visit
            visits[visit].append(op)
            visit_of[op] = visit
            before[visit] |= producers - {visit}
            spans[visit] = (spans[visit][0], at)
        edges = [(producer, reader) for reader, producers in enumerate(before) for producer in producers]
        if any(producer > reader for producer, reader in edges):
            order = execution_order(len(visits), edges)
            visits = [visits[number] for number in sorted(range(len(visits)), key=order.__getitem__)]
        return visits

    def mirrors(self) -> list[tuple[int, int]]:
        """Return pairs of siblings: an item of the backward pass, and what it is the gradient of.

        Of several visits the first of the backward pass belongs to the last of the forward pass.
        """
        found: dict[int, int] = {}
        taken: set[int] = set()
        for (lane, path), items in self._by_path.items():
            if lane == Lane.BACKWARD:
                forward = reversed(self._by_path.get((Lane.FORWARD, path), []))
                for backward, other in zip(items, forward, strict=False):
                    is_free = backward not in found and other not in taken
                    if is_free and self.parents[backward] == self.parents[other]:
                        found[backward] = other
                        taken.add(other)
        return [*found.items()]


def _common(scopes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the outer scopes that all have."""
    parts = takewhile(lambda part: len(set(part)) == 1, zip(*scopes, strict=False))
    return tuple(part[0] for part in parts)


def _is_downstream(visit: int, producers: Collection[int], before: Sequence[set[int]], spans: Sequence[Edge]) -> bool:
    """Return whether one of the producers is computed from what is in a visit; then no op behind it may join that."""
    waiting, seen = [*producers], set(producers)
    while waiting:
        other = waiting.pop()
        if visit in before[other] or len(seen) > _MOST_LOOKED_AT:
            return True
        # What ends before the visit begins has nothing of it.
        more = {one for one in before[other] if spans[one][1] > spans[visit][0]} - seen
        seen |= more
        waiting += more
    return False
