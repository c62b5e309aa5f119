"""Which benchmark tensor each NPU tensor must equal: the fusion rules of FORMATS.md §5, or plain op names.

Ops that were made from the same original ops, named in the same order, form a group and share an index. An output
must equal the original tensor the graph names for it; an input must equal what its producer had to put out, found by
walking back through the `Cast` and `TransData` ops that the compiler put in and through subgraph borders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from precision_tool.lib.graph.calls import Calls
from precision_tool.lib.graph.neighbourhood import TRANSPARENT_TYPES, described_inputs
from precision_tool.lib.model.changed import changed
from precision_tool.lib.model.comparison import NO_OPS, Pair, Status
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.layouts import LayoutError
from precision_tool.lib.pairing.align import SizeMismatchError, align
from precision_tool.lib.pairing.op_dumps import OpDumps, alike
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpedOp, DumpIndex, Missing
from precision_tool.lib.sources.names import base_name, flatten, whole_name

#: Compiler-made ops in a row that a walk back passes through at most.
_MAX_STEPS = 64
#: Ops of a group that a reason names.
_NAMED = 8


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
    if op.original_names is None or op.original_names == ("",):
        return (op.name,)
    return op.original_names


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
        desc = _output_desc(op, index)
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


def _output_desc(op: Op, index: int) -> TensorDesc:
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


def in_order(file: GraphFile) -> list[Op]:
    """All ops in the order they run: those of a subgraph before the op that calls it, where it first is called."""
    graphs: dict[str, Graph] = {}
    for graph in file.graphs:
        graphs.setdefault(graph.name, graph)
    called = {name for op in file.ops for name in op.subgraph_names}
    roots = [graph for graph in file.graphs if graph.name not in called] or list(file.graphs[:1])
    ops: list[Op] = []
    done: set[int] = set()
    stack: list[tuple[Graph, int]] = []
    for root in [*roots, *file.graphs]:  # the second round finds graphs that only call each other
        if id(root) in done:
            continue
        done.add(id(root))
        stack.append((root, 0))
        while stack:
            graph, start = stack.pop()
            for position in range(start, len(graph.ops)):
                op = graph.ops[position]
                subgraphs = (graphs[name] for name in op.subgraph_names if name in graphs)
                below = next((each for each in subgraphs if id(each) not in done), None)
                if below is not None:
                    done.add(id(below))
                    stack += [(graph, position), (below, 0)]
                    break
                ops.append(op)
    return ops


def groups_of(file: GraphFile) -> list[Group]:
    """The ops of all graphs in groups, in the order in which a group first runs."""
    groups: dict[object, Group] = {}
    for op in in_order(file):
        names = originals(op)
        key: object = ("L1", op.l1_fusion_group) if op.l1_fusion_group else names
        if not names and not op.l1_fusion_group:
            key = ("inserted", id(op))
        group = groups.get(key)
        if group is None:
            groups[key] = Group([op], names or (op.name,), inserted=not names)
        else:
            group.ops.append(op)
            known = group.original_names
            group.original_names = (*known, *(name for name in names if name not in known))
    return list(groups.values())


# --- with a graph -----------------------------------------------------------------------------------------------------


def match_by_graph(dumps: DumpIndex, file: GraphFile, benchmark: BenchmarkSide) -> Iterator[Pair]:
    """All pairs in execution order; ops without a dump are one row with the reason."""
    return GraphMatcher(dumps, file, benchmark).pairs()


class GraphMatcher:
    """Matches one leaf by a graph: all of it, or one op, for which only the files it needs are opened."""

    def __init__(self, dumps: DumpIndex, file: GraphFile, benchmark: BenchmarkSide) -> None:
        self._dumps = dumps
        self._benchmark = benchmark
        self._groups = groups_of(file)
        self._origins = Origins(file, self._groups)
        self._finder = OpDumps(dumps, in_order(file))
        self._known = {one for op in file.ops for one in (flatten(op.name), whole_name(flatten(op.name)))}
        self._group_of = {id(op): index for index, group in enumerate(self._groups) for op in group.ops}

    def pairs(self) -> Iterator[Pair]:
        """All pairs, in execution order."""
        for index, group in enumerate(self._groups):
            yield from self._of_group(index, group)
        strangers = [name for name in self._dumps.names_by_time() if not self._is_known(name)]
        for index, name in enumerate(strangers, start=len(self._groups)):
            op_type = self._dumps.op(name).op_type
            base = Pair(index=index, op_name=name, op_type=op_type, npu_ops=(name,), golden_ops=NO_OPS)
            yield _without(base, Status.NO_ORIGINAL_OP, f"the graph has no op {name}: it belongs to another graph")

    def _is_known(self, name: str) -> bool:
        """Whether the graph has the op of a file name: by itself, as a slice, or in a graph that threads run."""
        return any(one in self._known for one in (name, whole_name(name), base_name(name)))

    def pairs_of(self, op: Op) -> tuple[Pair, ...]:
        """The rows that `pairs` has for one op of the graph; () if the op was not dumped."""
        index = self._group_of[id(op)]
        if not self._finder.has(op):
            return ()
        return tuple(self._of_group(index, self._groups[index], only=op))

    def _of_group(self, index: int, group: Group, only: Op | None = None) -> Iterator[Pair]:
        names = self._benchmark.ops_of(group.golden_ops)
        for pair in _match_group(index, group, self._finder, self._origins, self._benchmark, only=only):
            yield pair if names == pair.golden_ops else changed(pair, golden_ops=names)


def _why_missing(op: Op) -> str:
    """The reason for an op without a dump."""
    return f"the NPU dumped no file of {op.name} ({op.type})"


def _match_group(
    index: int,
    group: Group,
    finder: OpDumps,
    origins: Origins,
    benchmark: BenchmarkSide,
    only: Op | None = None,
) -> Iterator[Pair]:
    """The rows of a group, or with `only` those of that op of it."""
    dumped = [op for op in group.ops if finder.has(op)]
    npu_ops = tuple(op.name for op in group.ops)
    if not dumped:
        reason = "; ".join(_why_missing(op) for op in group.ops[:_NAMED]) + _more(len(group.ops) - _NAMED)
        yield _without(_base(index, group.ops[0], npu_ops, group), Status.NO_NPU_DUMP, reason)
        return
    inner: set[int] = set()
    if group.ops[0].l1_fusion_group and len(dumped) > 2:
        inner = {id(op) for op in sorted(dumped, key=finder.timestamp)[1:-1]}
    for op in dumped:
        if only is not None and op is not only:
            continue
        base = _base(index, op, npu_ops, group)
        if id(op) in inner:
            yield _without(base, Status.INTERMEDIATE, f"{op.name} is inside an L1 fusion: its tensors stay on the chip")
            continue
        dump = finder.find(op)
        if dump is None:  # its files have gone since `has`
            continue
        for pair in _match_op(base, op, dump, finder, origins, benchmark):
            yield _with_dump_notes(pair, dump)


def _with_dump_notes(pair: Pair, dump: DumpedOp) -> Pair:
    """The pair with what its dump files let one expect."""
    if dump.threads > 1 and pair.status in (Status.SIZE_MISMATCH, Status.LAYOUT):
        if not dump.merged:
            why = f"was dumped in {dump.threads} slices by FFTS+, and the dump does not say how they were cut"
        elif pair.slot.startswith("input"):
            why = f"was run in {dump.threads} slices by FFTS+, and this is what the first was fed"
        else:
            why = (
                f"was run in slices by FFTS+, of which {dump.missing} of {dump.threads + dump.missing} were not dumped"
            )
        if not dump.merged or dump.missing or pair.slot.startswith("input"):
            return changed(pair, reason=f"{pair.op_name} {why}")
    notes = [pair.reason, dump.told_apart] if pair.status is Status.COMPARED else [pair.reason]
    if pair.slot in dump.older and pair.status is Status.COMPARED:
        notes.append("this is an older dump of the op: a newer one cannot be read")
    reason = "; ".join(filter(None, notes))
    return pair if reason == pair.reason else changed(pair, reason=reason)


def _more(count: int) -> str:
    return f"; and {count} more" if count > 0 else ""


def _base(index: int, op: Op, npu_ops: tuple[str, ...], group: Group) -> Pair:
    return Pair(
        index=index,
        op_name=op.name,
        op_type=op.type,
        npu_ops=npu_ops,
        golden_ops=group.golden_ops,
        pass_names=op.pass_names,
        original_names=() if group.inserted else group.original_names,
    )


def _match_op(
    base: Pair, op: Op, dump: DumpedOp, finder: OpDumps, origins: Origins, benchmark: BenchmarkSide
) -> Iterator[Pair]:
    """Rows of one dumped op: every input, then every output.

    What an input shows of the order of a benchmark tensor's axes holds for an output that is the same tensor. An op
    that ran in slices was fed what its producer put out whole, where that ran so too (as msaccucmp has it).
    """
    orders: dict[str, str] = {}
    yield from (_without(base, Status.UNREADABLE, error.reason) for error in dump.errors)
    if not dump.inputs and not dump.outputs:
        if not dump.errors:
            yield _without(base, Status.UNREADABLE, f"{dump.paths[0]}: the dump holds no input and no output")
        return
    places = input_places(op, max(dump.inputs, default=-1) + 1)
    for slot, tensor in sorted(dump.inputs.items()):
        row = changed(base, slot=f"input:{slot}")
        edge, desc = places[slot] if slot < len(places) else (None, None)
        producer = origins.producer(op, edge) if edge is not None else None
        if edge is None or producer is None:
            missing = f"the graph has no op {edge.producer}" if edge else f"the graph connects nothing to input {slot}"
            yield _finish(row, tensor, NoOrigin(Status.NO_BENCHMARK, missing), None, benchmark)
            continue
        made = finder.find(producer) if dump.is_ffts else None
        whole = made.outputs.get(edge.index) if made is not None and made.is_ffts else None
        fed: AnyTensor | Missing = tensor
        if isinstance(whole, Tensor) and isinstance(tensor, Tensor):
            fed, desc = changed(whole, address=tensor.address), _output_desc(producer, edge.index)
        yield _finish(row, fed, origins.of(producer, edge.index, benchmark), desc, benchmark, orders)
    for slot, tensor in sorted(dump.outputs.items()):
        row = changed(base, slot=f"output:{slot}")
        yield _finish(row, tensor, origins.of(op, slot, benchmark), _output_desc(op, slot), benchmark, orders)


def input_places(op: Op, count: int) -> list[tuple[Edge | None, TensorDesc | None]]:
    """Edge and description of each input of a dump with `count` input slots.

    Unconnected optional inputs are slots in the dumps of some releases and left out of those of others.
    """
    connected = [slot for slot, edge in enumerate(op.inputs) if edge is not None]
    descs = described_inputs(op)
    slots = connected if count <= len(connected) else range(len(op.inputs))
    return [(op.inputs[slot], descs.get(slot)) for slot in slots]


# --- without a graph --------------------------------------------------------------------------------------------------


#: The op of the other run for an op of this one, both flattened; None for an op that has none there.
Counterpart = Callable[[str], str | None]


def same_name(name: str) -> str | None:
    """The counterpart of an op whose run has no graph: the op of the same name."""
    return name


def match_by_name(
    dumps: DumpIndex,
    benchmark: BenchmarkSide,
    other: DumpIndex | None = None,
    counterpart: Counterpart = same_name,
) -> Iterator[Pair]:
    """Pairs of equal op names, NPU order; with `other` (an NPU run) inputs too, then the ops only it has.

    `counterpart` tells of ops that are called otherwise in the other run.
    """
    names = dumps.names_by_time()
    for index, name in enumerate(names):
        yield from _match_name(index, name, dumps, benchmark, other, counterpart)
    if other is not None:
        matched = set(map(counterpart, names))
        only_other = [name for name in other.names_by_time() if name not in matched]
        for index, name in enumerate(only_other, start=len(names)):
            base = Pair(index=index, op_name=name, op_type=other.op(name).op_type, npu_ops=NO_OPS, golden_ops=(name,))
            yield _without(base, Status.NO_NPU_DUMP, f"this run has no dump of {name}, the other has")


def match_name(
    name: str,
    dumps: DumpIndex,
    benchmark: BenchmarkSide,
    other: DumpIndex | None = None,
    counterpart: Counterpart = same_name,
) -> tuple[Pair, ...]:
    """The rows that `match_by_name` has for the op with this flattened name; () if it was not dumped."""
    if name not in dumps:
        return ()
    return tuple(_match_name(dumps.names_by_time().index(name), name, dumps, benchmark, other, counterpart))


def _match_name(
    index: int,
    name: str,
    dumps: DumpIndex,
    benchmark: BenchmarkSide,
    other: DumpIndex | None,
    counterpart: Counterpart,
) -> Iterator[Pair]:
    op = dumps.op(name)
    name_there = counterpart(name)
    base = Pair(index=index, op_name=name, op_type=op.op_type, npu_ops=(name,), golden_ops=NO_OPS)
    if name_there is None:
        why = f"{name} was put in by the graph compiler, and no such op of the other run connects the same ops"
        yield _without(base, Status.NO_BENCHMARK, why)
        return
    if other is not None and name_there not in other:
        yield _without(base, Status.NO_BENCHMARK, f"the other run has no dump of {name_there}")
        return
    base = changed(base, golden_ops=(name_there,))
    yield from (_without(base, Status.UNREADABLE, error.reason) for error in op.errors)
    if not op.inputs and not op.outputs:
        if not op.errors:
            yield _without(base, Status.UNREADABLE, f"{op.paths[0]}: the dump holds no input and no output")
        return
    for slot, tensor in sorted(op.inputs.items()):
        row = changed(base, slot=f"input:{slot}")
        if other is None:
            reason = "without a graph an input cannot be traced to the benchmark tensor it came from"
            yield _finish(row, tensor, NoOrigin(Status.NO_BENCHMARK, reason), None, benchmark)
        else:
            missing = Missing(f"the other run's dump of {name_there} has no input {slot}")
            found = other.op(name_there).inputs.get(slot, missing)
            yield _pair_up(row, tensor, found, None, None, {})
    for slot, tensor in sorted(op.outputs.items()):
        row = changed(base, slot=f"output:{slot}")
        yield _finish(row, tensor, Origin(name_there, slot, None, None, is_real=False), None, benchmark)


# --- one row ----------------------------------------------------------------------------------------------------------


def _without(pair: Pair, status: Status, reason: str) -> Pair:
    return changed(pair, status=status, reason=reason)


def _finish(
    row: Pair,
    tensor: AnyTensor | Missing,
    origin: Origin | NoOrigin,
    desc: TensorDesc | None,
    benchmark: BenchmarkSide,
    orders: dict[str, str] | None = None,
) -> Pair:
    """The row of one tensor whose origin is known, or why there is nothing to compare it with.

    `orders` has, and gets, the layouts that benchmark tensors were found to be in.
    """
    if isinstance(origin, NoOrigin):
        return _without(_with_npu(row, tensor), origin.status, origin.reason)
    find = benchmark.output_of if origin.is_real else benchmark.output
    golden = find(origin.op_name, origin.index)
    layout, shape = origin.layout, origin.shape
    if desc is not None and desc.origin_layout:
        # The tensor's own description tells how this copy of it is laid out.
        layout, shape = desc.origin_layout, shape if desc.origin_shape is None else desc.origin_shape
    name = f"{origin.op_name}:{origin.index}"
    return _pair_up(row, tensor, golden, layout, shape, {} if orders is None else orders, name)


def _with_npu(row: Pair, tensor: AnyTensor | Missing) -> Pair:
    if isinstance(tensor, Missing):
        return row
    return changed(row, npu=tensor, shape=tensor.shape)


def _pair_up(
    row: Pair,
    tensor: AnyTensor | Missing,
    golden: AnyTensor | Missing,
    origin_layout: str | None,
    origin_shape: tuple[int, ...] | None,
    orders: dict[str, str],
    golden_tensor: str = "",
) -> Pair:
    if isinstance(tensor, Missing):
        row = changed(row, golden_tensor=golden_tensor, declared=tensor.declared)
        return _without(row, Status.UNREADABLE, tensor.reason)
    found = None if isinstance(golden, Missing) else golden
    row = changed(row, golden_tensor=golden_tensor, npu=tensor, shape=tensor.shape, golden=found)
    if isinstance(golden, Missing):
        return _without(row, Status.UNREADABLE if golden.damaged else Status.NO_BENCHMARK, golden.reason)
    for side, what in ((tensor, "NPU dump"), (golden, "benchmark")):
        if isinstance(side, TensorStatistics):
            return _without(row, Status.STATISTICS_ONLY, f"the {what} holds only statistics of this tensor")
        if not data_types.BY_NAME[side.dtype].is_numeric:
            return _without(row, Status.NOT_NUMERIC, f"the {what} tensor is of type {side.dtype}, which has no numbers")
    assert isinstance(tensor, Tensor)
    assert isinstance(golden, Tensor)
    try:
        alignment = align(tensor, golden, origin_layout, origin_shape, orders.get(row.golden_tensor, ""))
    except SizeMismatchError as error:
        return _without(row, Status.SIZE_MISMATCH, str(error))
    except LayoutError as error:
        return _without(row, Status.LAYOUT, str(error))
    if alignment.golden_layout:
        orders.setdefault(row.golden_tensor, alignment.golden_layout)
    return changed(
        row,
        npu_plan=alignment.npu_plan,
        golden_plan=alignment.golden_plan,
        shape=alignment.shape,
        error_shape=alignment.error_shape(golden),
        reason=alignment.note,
    )
