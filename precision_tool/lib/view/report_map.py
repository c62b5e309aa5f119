"""The map of a report: the ops of a graph, the wires between them, the path of an error, and where each op stands.

The layout is a tree of groups, and for each its children in ranks. No engine for general layouts: an edge from the
forward to the backward pass would lie across hundreds of ranks. Within a group the children are ranked by the longest
path of the edges between them, and ordered by the barycentre of their neighbours. The backward pass stands beside the
forward one, from the bottom to the top, each group at the height of the one that it is the gradient of. All steps take
time in proportion to the ops and edges.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan
from typing import NamedTuple

from precision_tool.lib.data.neighbourhood import CONTROL
from precision_tool.lib.data.origins import groups_of
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.view.report_places import (
    Place,
    is_recorded,
    module_classes,
    order_of_calls,
    places_of_calls,
    places_of_names,
)

#: A group with more children than this is split into sections of consecutive ops.
MOST_CHILDREN = 96
_SECTION = 48
#: Rounds of ordering by the neighbours, down and up.
_SWEEPS = 4

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


@dataclass(slots=True)
class Group:
    """A group of ops in the same scopes. `parent` is -1 for one at the top.

    A section is a piece of a group that is too large, and has no `scopes`.
    """

    name: str
    parent: int
    is_backward: bool = False
    is_section: bool = False
    ops: int = 0
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the ops, then of the groups, by one numbering: op `i` is item `i`, group `g` item `len(ops) + g`.

    `parents` are groups (-1: at the top), `ranks` count the rows of the parent from above, `orders` from the left
    within a row of one side. `backward` tells of the items that stand on the right, the side of the backward pass.
    `against` are the edges, by number, that lead against the order of execution: those that close a cycle.
    """

    groups: Sequence[Group]
    parents: Sequence[int]
    ranks: Sequence[int]
    orders: Sequence[int]
    backward: Sequence[bool]
    against: Sequence[int] = field(default=())


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
    is_in_order = all(producer < reader for producer, reader in edges)
    position = [*range(len(places))] if is_in_order else execution_order(len(places), edges)
    tree = _Tree(places, position, joint)
    local = _local_edges(tree, edges, len(places))
    count = len(places) + len(tree.groups)
    ranks, orders = [0] * count, [0] * count
    # The forward pass first, as the backward one looks at its ranks.
    numbers = sorted(range(-1, len(tree.groups)), key=lambda group: group >= 0 and tree.groups[group].is_backward)
    for group in numbers:
        children = tree.children[group + 1]
        sides = [[child for child in children if tree.backward[child] == side] for side in (False, True)]
        _rank_forward(sides[False], local, ranks)
        _rank_backward(sides[True], local, ranks, tree.mirrored)
        least = min((ranks[child] for child in children), default=0)
        for child in children:
            ranks[child] -= least
        for side in sides:
            _order(side, local, ranks, orders)
    against = [number for number, (producer, reader) in enumerate(edges) if position[producer] >= position[reader]]
    return Layout(tree.groups, tree.parents, ranks, orders, tree.backward, against)


# --- the tree of groups -----------------------------------------------------------------------------------------------


class _Tree:
    """Groups, the parent of each item, and the children of each group in order of execution."""

    def __init__(self, places: Sequence[Place], position: Sequence[int], joint: str) -> None:
        count = len(places)
        self._joint = joint
        self.groups: list[Group] = []
        self.parents: list[int] = []
        self.backward = [place.is_backward for place in places]
        #: The items that a group, or an op of the backward pass, is beside.
        self.mirrored: dict[int, int] = {}
        by_scopes = self._dissolve(*self._matches(places), count)
        # An item comes where its first op is executed.
        self.keys = [*position, *[count] * len(self.groups)]
        for op in range(count):
            group = self.parents[op]
            while group >= 0:
                self.groups[group].ops += 1
                self.keys[count + group] = min(self.keys[count + group], position[op])
                group = self.groups[group].parent
        self.children: list[list[int]] = [[] for _ in range(len(self.groups) + 1)]
        for item in sorted(range(count + len(self.groups)), key=lambda item: (self.keys[item], item < count, item)):
            self.children[self.parent(item) + 1].append(item)
        self._mirror(places, by_scopes)
        self._split(count)
        self.parents += [group.parent for group in self.groups]

    def _matches(self, places: Sequence[Place]) -> tuple[dict[tuple[str, ...], int], list[int]]:
        """Make a group of every scope; return how many members each has."""
        by_scopes: dict[tuple[str, ...], int] = {(): -1}
        members: list[int] = []
        for place in places:
            for depth in range(1, len(place.scopes) + 1):
                scopes = place.scopes[:depth]
                if scopes not in by_scopes:
                    by_scopes[scopes] = len(self.groups)
                    self.groups.append(Group(scopes[-1], by_scopes[scopes[:-1]], place.is_backward, scopes=scopes))
                    members.append(0)
                    self.backward.append(place.is_backward)
                    parent = self.groups[-1].parent
                    if parent >= 0:
                        members[parent] += 1
            self.parents.append(by_scopes[place.scopes])
            if self.parents[-1] >= 0:
                members[self.parents[-1]] += 1
        return by_scopes, members

    def _dissolve(
        self, by_scopes: dict[tuple[str, ...], int], members: Sequence[int], count: int
    ) -> dict[tuple[str, ...], int]:
        """Replace each group with one member by that member; return the scopes of the groups left."""
        number = {-1: -1}
        groups: list[Group] = []
        for at, (group, size) in enumerate(zip(self.groups, members, strict=True)):  # a parent comes before its groups
            if size < 2:
                number[at] = number[group.parent]
                continue
            name, above = group.name, group.parent
            while above >= 0 and members[above] < 2:  # its name goes on in that of its member
                name = f"{self.groups[above].name}{self._joint}{name}"
                above = self.groups[above].parent
            number[at] = len(groups)
            groups.append(Group(name, number[group.parent], group.is_backward, scopes=group.scopes))
        self.groups = groups
        self.backward = [*self.backward[:count], *(group.is_backward for group in groups)]
        self.parents = [number[group] for group in self.parents]
        return {scopes: number[at] for scopes, at in by_scopes.items() if at < 0 or members[at] > 1}

    def parent(self, item: int) -> int:
        count = len(self.parents)
        return self.parents[item] if item < count else self.groups[item - count].parent

    def _mirror(self, places: Sequence[Place], by_scopes: dict[tuple[str, ...], int]) -> None:
        count = len(self.parents)
        for place in dict.fromkeys(place for place in places if place.is_backward):
            for depth in range(1, len(place.scopes) + 1):
                group = by_scopes.get(place.scopes[:depth], -1)
                other = by_scopes.get(place.mirrors[:depth], -1)
                if group >= 0 and other >= 0:
                    self.mirrored.setdefault(count + group, count + other)

    def _split(self, count: int) -> None:
        """Split groups with too many children into sections, and these again."""
        at = 0
        while at < len(self.children):
            children = self.children[at]
            if len(children) > MOST_CHILDREN:
                self.children[at] = []
                for side in (False, True):
                    of_side = [item for item in children if self.backward[item] == side]
                    self.children[at] += self._sections(of_side, at - 1, count)
            at += 1

    def _sections(self, children: list[int], parent: int, count: int) -> list[int]:
        if len(children) <= MOST_CHILDREN // 2:
            return children
        sections = []
        # So few sections that they fit into one group; those that are too large are split in turn.
        size = max(_SECTION, -(-len(children) // _SECTION))
        for start in range(0, len(children), size):
            piece = children[start : start + size]
            number = len(self.groups)
            name = f"{start + 1}–{start + len(piece)}"
            is_backward = self.backward[piece[0]]
            ops = sum(1 if item < count else self.groups[item - count].ops for item in piece)
            self.groups.append(Group(name, parent, is_backward, is_section=True, ops=ops))
            self.backward.append(is_backward)
            self.keys.append(self.keys[piece[0]])
            self.children.append(piece)
            for item in piece:
                if item < count:
                    self.parents[item] = number
                else:
                    self.groups[item - count].parent = number
            sections.append(count + number)
        return sections


# --- ranks and orders -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Local:
    """Edges between the children of the same group: the producers and readers of each item."""

    producers: list[list[int]]
    readers: list[list[int]]


def _local_edges(tree: _Tree, edges: Sequence[Edge], count: int) -> _Local:
    total = count + len(tree.groups)
    above = [parent + count if parent >= 0 else -1 for parent in tree.parents]
    depth = [0] * total
    for item in range(total):
        depth[item] = _depth(item, above)
    local = _Local([[] for _ in range(total)], [[] for _ in range(total)])
    edges_done: set[Edge] = set()
    for producer, reader in edges:
        a, b = producer, reader
        while depth[a] > depth[b]:
            a = above[a]
        while depth[b] > depth[a]:
            b = above[b]
        while above[a] != above[b]:
            a, b = above[a], above[b]
        # Against the order of execution an edge ranks nobody, so that there is no cycle.
        if tree.keys[a] < tree.keys[b] and (a, b) not in edges_done:
            edges_done.add((a, b))
            local.readers[a].append(b)
            local.producers[b].append(a)
    return local


def _depth(item: int, above: Sequence[int]) -> int:
    depth = 0
    while above[item] >= 0:
        item = above[item]
        depth += 1
    return depth


def _rank_forward(items: Sequence[int], local: _Local, ranks: list[int]) -> None:
    """Longest path; `items` are in order of execution. What nobody feeds stands right above its first reader."""
    siblings = set(items)
    for item in items:
        ranks[item] = max((ranks[other] + 1 for other in local.producers[item] if other in siblings), default=0)
    for item in reversed(items):
        reader_ranks = [ranks[neighbour] for neighbour in local.readers[item] if neighbour in siblings]
        if reader_ranks and siblings.isdisjoint(local.producers[item]):
            ranks[item] = min(reader_ranks) - 1
    least = min((ranks[item] for item in items), default=0)
    for item in items:
        ranks[item] -= least


def _rank_backward(items: Sequence[int], local: _Local, ranks: list[int], mirrored: Mapping[int, int]) -> None:
    """Rank the backward pass upwards, each item level with the one that it is the gradient of, or higher."""
    siblings = set(items)
    mirror_ranks = {item: ranks[mirrored[item]] for item in items if item in mirrored}
    # What comes before the first of them, the gradients of a loss, has room below it.
    lead = dict.fromkeys(items, 0)
    for item in items:
        before = [lead[other] + 1 for other in local.producers[item] if other in siblings and other not in mirror_ranks]
        lead[item] = max(before, default=0)
    lowest = max((rank + lead[item] for item, rank in mirror_ranks.items()), default=0)
    for item in items:
        highest = min((ranks[other] - 1 for other in local.producers[item] if other in siblings), default=None)
        rank = mirror_ranks.get(item, lowest if highest is None else highest)
        ranks[item] = rank if highest is None else min(rank, highest)
    for item in reversed(items):
        reader_ranks = [ranks[other] for other in local.readers[item] if other in siblings]
        if reader_ranks and item not in mirror_ranks and siblings.isdisjoint(local.producers[item]):
            ranks[item] = max(reader_ranks) + 1


def _order(items: Sequence[int], local: _Local, ranks: Sequence[int], orders: list[int]) -> None:
    rows: dict[int, list[int]] = {}
    for item in items:
        rows.setdefault(ranks[item], []).append(item)
    if len(rows) == len(items):  # a chain: one in each row
        for item in items:
            orders[item] = 0
        return
    place: dict[int, float] = {}

    def number(row: list[int]) -> None:
        for at, item in enumerate(row):
            orders[item] = at
            place[item] = (at + 0.5) / len(row)

    for row in rows.values():
        number(row)
    levels = sorted(rows)
    for sweep in range(_SWEEPS):
        neighbours = local.producers if sweep % 2 == 0 else local.readers
        for level in levels if sweep % 2 == 0 else reversed(levels):
            row = rows[level]
            if len(row) > 1:
                row.sort(key=lambda item: _barycentre(item, neighbours[item], place))
                number(row)


def _barycentre(item: int, neighbours: Sequence[int], place: dict[int, float]) -> float:
    at = [place[neighbour] for neighbour in neighbours if neighbour in place]
    return sum(at) / len(at) if at else place[item]
