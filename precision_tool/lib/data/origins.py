"""The ops of a graph in groups: those made from the same original ops, named in the same order, share an index."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import BenchmarkSide, Missing, alike
from precision_tool.lib.data.neighbourhood import TRANSPARENT_TYPES, Calls, order_of
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import NO_OPS, Status
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc


@dataclass(slots=True)
class Group:
    """Ops made from the same original ops, in graph order."""

    ops: list[Op]
    original_names: tuple[str, ...]
    #: True for ops the compiler put in, which have no original op.
    inserted: bool = False

    @property
    def golden_ops(self) -> tuple[str, ...]:
        """The ops of the benchmark side."""
        return NO_OPS if self.inserted else self.original_names


def originals(op: Op) -> tuple[str, ...]:
    """Names of the ops of the training script that `op` does the work of; () if the compiler put it in."""
    return _originals(op.name, op.original_names)


def _originals(name: str, names: tuple[str, ...] | None) -> tuple[str, ...]:
    return (name,) if names is None or names == ("",) else names


def originals_of(file: GraphFile) -> list[tuple[str, ...]]:
    """`originals` of all ops of a graph file."""
    return list(map(_originals, file.column("name"), file.column("original_names")))


def in_order(file: GraphFile) -> Sequence[Op]:
    """All ops in the order they run: those of a subgraph before the op that calls it, where it first is called."""
    order = file.once(order_of)
    return file.ops if isinstance(order, range) else [file.ops[number] for number in order]


class Groups(Sequence[Group]):
    """The ops of all graphs of a file in groups, in the order in which a group first runs."""

    def __init__(self, file: GraphFile) -> None:
        self._file = file
        self._originals = file.once(originals_of)
        l1_groups = file.column("l1_fusion_group")
        #: The group of each op, and the ops of each group, by their numbers in the file.
        self.indices = array("q", bytes(8 * len(l1_groups)))
        self._members: list[int | list[int]] = []
        self._groups: dict[int, Group] = {}
        numbers: dict[object, int] = {}
        for number in file.once(order_of):
            l1_group, names = l1_groups[number], self._originals[number]
            key: object = ("L1", l1_group) if l1_group else names or number
            index = numbers.setdefault(key, len(numbers))
            self.indices[number] = index
            if index == len(self._members):
                self._members.append(number)
            elif isinstance(members := self._members[index], int):
                self._members[index] = [members, number]
            else:
                members.append(number)

    def index_of(self, op: Op) -> int:
        """Return the index of an op's group, which lists, results and `ni '[17]'` have."""
        return self.indices[self._file.number_of(op)]

    @property
    def of_several(self) -> Iterator[Group]:
        """The groups of more than one op."""
        return (self[index] for index, members in enumerate(self._members) if not isinstance(members, int))

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | Sequence[Group]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        if index not in self._groups:
            self._groups[index] = self._group(index)
        return self._groups[index]

    def _group(self, index: int) -> Group:
        members = self._members[index]
        numbers = [members] if isinstance(members, int) else members
        ops = [self._file.ops[number] for number in numbers]
        first = self._originals[numbers[0]]
        names = list(first) or [ops[0].name]
        listed = set(names)
        for number in numbers[1:]:
            more = [name for name in self._originals[number] if name not in listed]
            names += more
            listed.update(more)
        return Group(ops, tuple(names), inserted=not first)

    def __iter__(self) -> Iterator[Group]:
        list(self._file.ops)  # all at once takes less than each by itself
        return map(self._group, range(len(self)))

    def __len__(self) -> int:
        return len(self._members)


def groups_of(file: GraphFile) -> Groups:
    """The ops of all graphs in groups, in the order in which a group first runs."""
    return file.once(Groups)


# --- compiler-inserted ops of two graphs of one network ---


_COUNTED = re.compile(r"trans_\w*?_?\d+")
#: Ops that the compiler put in, one behind the other, as many are walked through.
_MAX_CHAIN = 64

#: The op of the training script that feeds or reads, the output or input of it, and what stands between.
_End = tuple[Hashable, ...]


def is_inserted(op: Op) -> bool:
    """Return whether the graph compiler inserted an op."""
    return not originals(op) or _COUNTED.fullmatch(op.name) is not None


def counterparts(file: GraphFile, other: GraphFile) -> Callable[[str], str | None]:
    """Return the function from an op of one run to the op of the other run that stands in its place.

    Parameters
    ----------
    file, other : GraphFile
        The graphs of two runs of one network. The compiler numbers the ops that it inserts anew in each.

    Returns
    -------
    callable
        Takes and returns flattened names; None where nothing of the other run connects the same.
    """
    left, right = _inserted(file), _inserted(other)
    inserted = {links.name for links in left}
    matches: dict[str, str] = {}
    for by_sources, by_readers in ((True, True), (True, False), (False, True)):
        ours, others = (_alike(ops, by_sources, by_readers) for ops in (left, right))
        for key, names in ours.items():
            same = others.get(key, [])
            # Ops that connect the same are copies of each other; of what is only alike there must be one.
            if len(names) == len(same) and ((by_sources and by_readers) or len(names) == 1):
                matches.update(zip(names, same, strict=True))
        used = set(matches.values())
        left = [links for links in left if links.name not in matches]
        right = [links for links in right if links.name not in used]

    def counterpart(name: str) -> str | None:
        if name in matches:
            return matches[name]
        return None if name in inserted or _COUNTED.fullmatch(name) else name

    return counterpart


@dataclass(frozen=True)
class _Links:
    """What one compiler-inserted op is, by flattened name, and its sources and readers."""

    name: str
    made: Hashable
    sources: tuple[_End, ...]
    readers: frozenset[_End]


def _inserted(file: GraphFile) -> list[_Links]:
    """The compiler-inserted ops of a graph file in execution order."""
    links: dict[int, _Links] = {}
    for graph in file.graphs:
        readers: dict[str, list[tuple[Op, int]]] = defaultdict(list)
        for op in graph.ops:
            for slot, edge in enumerate(op.inputs):
                if edge is not None:
                    readers[edge.producer].append((op, slot))
        for op in filter(is_inserted, graph.ops):
            sources = (_source(graph, op, slot) for slot, edge in enumerate(op.inputs) if edge is not None)
            links[id(op)] = _Links(flatten(op.name), _made(op), tuple(sources), frozenset(_readers(readers, op)))
    return [links[id(op)] for op in in_order(file) if is_inserted(op)]


def _alike(ops: Iterable[_Links], by_sources: bool, by_readers: bool) -> dict[Hashable, list[str]]:
    """The ops that are made alike, and have the same sources, or readers, or both."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for op in ops:
        groups[op.made, op.sources if by_sources else (), op.readers if by_readers else ()].append(op.name)
    return groups


def _source(graph: Graph, op: Op, slot: int) -> _End:
    """The op of the script, and its output, behind an input, and the ops between."""
    between: list[Hashable] = []
    edge = op.inputs[slot]
    while edge is not None:
        producer = graph.by_name.get(edge.producer)
        if producer is None or not is_inserted(producer) or len(between) == _MAX_CHAIN:
            return (edge.producer, edge.index, *between)
        between.append(_made(producer))
        edge = next((candidate for candidate in producer.inputs if candidate is not None), None)
    return tuple(between)


def _readers(readers: dict[str, list[tuple[Op, int]]], op: Op) -> Iterable[_End]:
    """The ops of the script, and their inputs, that read an op, and the ops between."""
    todo: list[tuple[str, tuple[Hashable, ...]]] = [(op.name, ())]
    visited = {op.name}
    while todo:
        name, between = todo.pop()
        for reader, slot in readers[name]:
            if not is_inserted(reader):
                yield (reader.name, slot, *between)
            elif reader.name not in visited and len(between) < _MAX_CHAIN:
                visited.add(reader.name)
                todo.append((reader.name, (*between, _made(reader))))


def _made(op: Op) -> Hashable:
    """Return an op's type, and type and layout of its outputs."""
    return op.type, tuple((desc.dtype, desc.layout) for desc in op.output_descs)


# --- original tensors ---


#: Compiler-made ops in a row that a walk back passes through at most.
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """The original tensor that a tensor of the graph stands for."""

    op_name: str
    index: int
    layout: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class NoOrigin:
    """The reason why a tensor stands for no original tensor."""

    status: Status
    reason: Message


class Origins:
    """Answers which original tensor an output of an op of the graph stands for."""

    def __init__(self, file: GraphFile) -> None:
        self.calls = file.once(Calls)
        #: Ops (by id) whose output another op of their group works on: part results of one original op.
        self._parts = {part for group in groups_of(file).of_several for part in self._feeding(group)}
        #: Names of original ops that are spelled alike in file names.
        self.alike = alike(name for names in file.once(originals_of) for name in names)

    def producer(self, op: Op, edge: Edge) -> Op | None:
        """The op that an input edge of `op` comes from; edges stay within a graph."""
        return self.calls.producer(op, edge)

    def _feeding(self, group: Group) -> set[int]:
        """The ops of a group that another op of it reads, directly or through compiler-inserted ops."""
        members = {id(op) for op in group.ops}
        feeding = set()
        for op in group.ops:
            for edge in _data_inputs(op):
                producer = self.producer(op, edge)
                steps = 0
                while producer is not None and producer.type in TRANSPARENT_TYPES and id(producer) not in members:
                    steps += 1
                    inputs = _data_inputs(producer)
                    producer = self.producer(producer, inputs[0]) if inputs and steps < _MAX_STEPS else None
                if producer is not None and id(producer) in members:
                    feeding.add(id(producer))
        return feeding

    def _passed_on_from(self, op: Op, index: int) -> tuple[Op, Edge] | None:
        """The op and its edge that feed what `op` only passes on; None if `op` makes its output itself."""
        if op.type in TRANSPARENT_TYPES:
            inputs = _data_inputs(op)
            return (op, inputs[0]) if inputs else None
        return self.calls.passed_on_from(op, index)

    def of(self, op: Op, index: int, benchmark: BenchmarkSide) -> Origin | NoOrigin:
        """The original tensor of output `index` of `op`; of several on the way back the first the benchmark has."""
        first: Origin | None = None
        visited: set[tuple[int, int]] = set()
        start = op
        while (id(op), index) not in visited:
            visited.add((id(op), index))
            origin = self._own(op, index)
            if isinstance(origin, Origin):
                if origin.op_name in self.alike and not benchmark.has_real_name(origin.op_name, origin.index):
                    return NoOrigin(Status.NO_BENCHMARK, Message("row.data.benchmark_spelled_alike", op=origin.op_name))
                first = first or origin
                if not isinstance(benchmark.output_of(origin.op_name, origin.index), Missing):
                    return origin
            passed_on = self._passed_on_from(op, index)
            if passed_on is None or (first is not None and not _keeps_values(op)):
                return first or origin
            reader, edge = passed_on
            producer = self.producer(reader, edge)
            if producer is None:
                return first or NoOrigin(Status.NO_BENCHMARK, Message("row.data.no_producer", op=edge.producer))
            op, index = producer, edge.index
        return first or NoOrigin(Status.NO_ORIGINAL_OP, Message("row.data.loop", op=start.name))

    def _own(self, op: Op, index: int) -> Origin | NoOrigin:
        """Return the origin that the graph declares for an output of `op` itself."""
        desc = output_desc(op, index)
        layout = desc.dump_origin_layout or desc.origin_layout
        if desc.dump_origin_name:
            slot = index if desc.dump_origin_index is None else desc.dump_origin_index
            return Origin(desc.dump_origin_name, slot, layout, desc.origin_shape)
        names = originals(op)
        if id(op) in self._parts:
            return NoOrigin(Status.INTERMEDIATE, Message("row.data.part_result", op=op.name, originals=names))
        if op.type == "Data":
            caller = self.calls.caller(op)
            if caller is not None and self.calls.is_conditional(caller):
                why = Message("row.data.conditional", op_type=caller.type, op=caller.name)
                return NoOrigin(Status.NO_ORIGINAL_OP, why)
        if not names:
            return NoOrigin(Status.NO_ORIGINAL_OP, Message("row.data.inserted", op=op.name))
        if len(names) > 1:
            return NoOrigin(Status.INTERMEDIATE, Message("row.data.fused", op=op.name, count=len(names)))
        return Origin(names[0], index, layout, desc.origin_shape)


def output_desc(op: Op, index: int) -> TensorDesc:
    """The description of an output; of one out of range the first (the vendor's rule)."""
    if not op.output_descs:
        return TensorDesc()
    return op.output_descs[index] if index < len(op.output_descs) else op.output_descs[0]


def _keeps_values(op: Op) -> bool:
    """False for a Cast from or to integers or bools, whose output differs from its input."""
    types = [desc.dtype for desc in (*op.input_descs[:1], *op.output_descs[:1])]
    return op.type != "Cast" or all("float" in name for name in types if name)


def _data_inputs(op: Op) -> tuple[Edge, ...]:
    return tuple(edge for edge in op.inputs if edge is not None)
