"""Ops that the graph compiler put in, of two graphs of one network: which belong together, by what they connect.

Their names, `trans_TransData_17`, only count them: one op more or less in a graph moves all numbers behind it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.pairing.groups import in_order, originals
from precision_tool.lib.sources.names import flatten

_COUNTED = re.compile(r"trans_\w*?_?\d+")
#: Ops that the compiler put in, one behind the other, as many are walked through.
_MAX_CHAIN = 64

#: The op of the training script that feeds or reads, the output or input of it, and what stands between.
_End = tuple[Hashable, ...]


@dataclass(frozen=True)
class Counterparts:
    """Which op of the other run belongs to one of this run; all names are flattened."""

    #: Of the ops of this run that the compiler put in, those that have one.
    _found: dict[str, str]
    _inserted: frozenset[str]

    def of(self, name: str) -> str | None:
        """The op of the other run for one of this run; None where nothing there connects the same."""
        if name in self._found:
            return self._found[name]
        return None if name in self._inserted or _COUNTED.fullmatch(name) else name


def is_inserted(op: Op) -> bool:
    """Whether the graph compiler put an op in."""
    return not originals(op) or _COUNTED.fullmatch(op.name) is not None


def counterparts(file: GraphFile, other: GraphFile) -> Counterparts:
    """Which op of `other` stands where an op of `file` does, for the ops that the compiler put in."""
    mine, theirs = _Inserted(file), _Inserted(other)
    found: dict[str, str] = {}
    left, right = list(mine.ops), list(theirs.ops)
    for what, is_sure in ((_whole, True), (_fed, False), (_read, False)):
        ours, others = _by_key(left, mine, what), _by_key(right, theirs, what)
        for key, ops in ours.items():
            same = others.get(key, [])
            # Ops that connect the same are copies of each other; of what is only alike there must be one.
            if len(ops) == len(same) and (is_sure or len(ops) == 1):
                found.update((flatten(one.name), flatten(two.name)) for one, two in zip(ops, same, strict=True))
        used = set(found.values())
        left = [op for op in left if flatten(op.name) not in found]
        right = [op for op in right if flatten(op.name) not in used]
    return Counterparts(found, frozenset(flatten(op.name) for op in mine.ops))


@dataclass
class _Links:
    """What one op that the compiler put in connects."""

    feeds: list[_End] = field(default_factory=list)
    readers: set[_End] = field(default_factory=set)


class _Inserted:
    """The ops of a graph file that the compiler put in, in execution order, and what they connect."""

    def __init__(self, file: GraphFile) -> None:
        self.ops = [op for op in in_order(file) if is_inserted(op)]
        self.links: dict[int, _Links] = {}
        for graph in file.graphs:
            self._add(graph)

    def _add(self, graph: Graph) -> None:
        readers: dict[str, list[tuple[Op, int]]] = defaultdict(list)
        for op in graph.ops:
            for slot, edge in enumerate(op.inputs):
                if edge is not None:
                    readers[edge.producer].append((op, slot))
        for op in graph.ops:
            if is_inserted(op):
                feeds = [_source(graph, op, slot) for slot, edge in enumerate(op.inputs) if edge is not None]
                self.links[id(op)] = _Links(feeds, set(_readers(readers, op)))


def _source(graph: Graph, op: Op, slot: int) -> _End:
    """The op of the script, and its output, behind an input, and the ops between."""
    between: list[Hashable] = []
    edge = op.inputs[slot]
    while edge is not None:
        producer = graph.by_name.get(edge.producer)
        if producer is None or not is_inserted(producer) or len(between) == _MAX_CHAIN:
            return (edge.producer, edge.index, *between)
        between.append(_made(producer))
        edge = next((one for one in producer.inputs if one is not None), None)
    return tuple(between)


def _readers(readers: dict[str, list[tuple[Op, int]]], op: Op) -> Iterable[_End]:
    """The ops of the script, and their inputs, that read an op, and the ops between."""
    todo: list[tuple[str, tuple[Hashable, ...]]] = [(op.name, ())]
    seen = {op.name}
    while todo:
        name, between = todo.pop()
        for reader, slot in readers[name]:
            if not is_inserted(reader):
                yield (reader.name, slot, *between)
            elif reader.name not in seen and len(between) < _MAX_CHAIN:
                seen.add(reader.name)
                todo.append((reader.name, (*between, _made(reader))))


def _made(op: Op) -> Hashable:
    """What an op makes: its type, and type and layout of its outputs."""
    return op.type, tuple((desc.dtype, desc.layout) for desc in op.output_descs)


def _whole(op: Op, links: _Links) -> Hashable:
    return _made(op), tuple(links.feeds), frozenset(links.readers)


def _fed(op: Op, links: _Links) -> Hashable:
    return _made(op), tuple(links.feeds)


def _read(op: Op, links: _Links) -> Hashable:
    return _made(op), frozenset(links.readers)


def _by_key(ops: Iterable[Op], side: _Inserted, what: Callable[[Op, _Links], Hashable]) -> dict[Hashable, list[Op]]:
    found: dict[Hashable, list[Op]] = defaultdict(list)
    for op in ops:
        found[what(op, side.links[id(op)])].append(op)
    return found
