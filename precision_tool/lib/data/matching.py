"""One NPU tensor and its benchmark tensor as a row, with the reason where they cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from precision_tool.lib.data.axis_alignment import UNDECLARED, Declared, align, status_of
from precision_tool.lib.data.dump_names import base_name, flatten, whole_name
from precision_tool.lib.data.dumped_ops import (
    BenchmarkSide,
    DumpedOp,
    DumpIndex,
    Found,
    GoldenDumps,
    Missing,
    NoBenchmark,
    OpDumps,
)
from precision_tool.lib.data.neighbourhood import TRANSPARENT_TYPES, described_inputs
from precision_tool.lib.data.origins import (
    Group,
    NoOrigin,
    Origin,
    Origins,
    groups_of,
    in_order,
    originals,
    output_desc,
)
from precision_tool.lib.io import data_types
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import NO_GRAPH, NO_OPS, Pair, Status
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.graph import Edge, GraphFile, Op, TensorDesc
from precision_tool.lib.model.records import changed
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.tensor import AnyTensor, Tensor, TensorStatistics


def without(pair: Pair, status: Status, reason: Message) -> Pair:
    """The row without a comparison, and why."""
    return changed(pair, status=status, reason=reason)


def pair_up(
    row: Pair,
    tensor: AnyTensor | Missing,
    golden: AnyTensor | Missing,
    declared: Declared = UNDECLARED,
    orders: dict[str, str] | None = None,
) -> Pair:
    """Return the row of a tensor and its benchmark tensor, or why they cannot be compared.

    Parameters
    ----------
    row : Pair
        Op, slot and names of both tensors.
    tensor, golden : AnyTensor or Missing
        Both tensors; only their headers are used.
    declared : Declared, optional
        What the graph says of the original tensor.
    orders : dict of str to str, optional
        Has, and gets, the layouts that benchmark tensors were found to be in.

    Returns
    -------
    Pair
        With the plans by which both are read in one order of elements, or with status and reason.
    """
    if isinstance(tensor, Missing):
        return without(changed(row, declared=tensor.declared), Status.UNREADABLE, tensor.reason)
    row = changed(row, npu=tensor, shape=tensor.shape, golden=None if isinstance(golden, Missing) else golden)
    if isinstance(golden, Missing):
        return without(row, Status.UNREADABLE if golden.damaged else Status.NO_BENCHMARK, golden.reason)
    for side, is_npu in ((tensor, True), (golden, False)):
        if isinstance(side, TensorStatistics):
            return without(row, Status.STATISTICS_ONLY, Message("row.data.statistics_only", is_npu=is_npu))
        if not data_types.BY_NAME[side.dtype].is_numeric:
            reason = Message("row.data.no_numbers", is_npu=is_npu, dtype=side.dtype)
            return without(row, Status.NOT_NUMERIC, reason)
    assert isinstance(tensor, Tensor)
    assert isinstance(golden, Tensor)
    orders = {} if orders is None else orders
    try:
        alignment = align(tensor, golden, declared, orders.get(row.golden_tensor, ""))
    except LayoutError as error:
        return without(row, status_of(error), error.reason)
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


def _without_origin(row: Pair, tensor: AnyTensor | Missing, origin: NoOrigin) -> Pair:
    """The row of a tensor that stands for no original tensor, with its own values where it can be read."""
    if not isinstance(tensor, Missing):
        row = changed(row, npu=tensor, shape=tensor.shape)
    return without(row, origin.status, origin.reason)


def _unreadable(base: Pair, dump: DumpedOp) -> Iterator[Pair]:
    """The rows of the files of an op that cannot be read, or that hold nothing."""
    yield from (without(base, Status.UNREADABLE, error.reason) for error in dump.errors)
    if not (dump.inputs or dump.outputs or dump.errors):
        empty = Message("error.place", where=dump.paths[0], reason=Message("row.data.empty_dump"))
        yield without(base, Status.UNREADABLE, empty)


# --- a run without a graph: the benchmark tensor of the op of the same name ---


#: The op of the other run for an op of this one, both flattened; None for an op that has none there.
Counterpart = Callable[[str], str | None]


def same_name(name: str) -> str | None:
    """The counterpart of an op whose run has no graph: the op of the same name."""
    return name


class NameMatcher:
    """Matches the ops of one leaf with those of equal name, all or one; with another NPU run inputs too.

    `counterpart` names the ops that are called otherwise in the other run.
    """

    def __init__(self, dumps: DumpIndex, benchmark: BenchmarkSide, counterpart: Counterpart = same_name) -> None:
        self._dumps = dumps
        self._benchmark = benchmark
        self._counterpart = counterpart
        self._other = benchmark.index if isinstance(benchmark, GoldenDumps) else None

    def pairs(self) -> Iterator[Pair]:
        """All pairs in the order in which the NPU's ops ran, then the ops that only the other run has."""
        self._dumps.walk()
        self._benchmark.walk()
        names = self._dumps.names_by_time()
        for index, name in enumerate(names):
            yield from self._of_op(index, name)
        if self._other is not None:
            other = self._other
            matched = set(map(self._counterpart, names))
            only_other = [name for name in other.names_by_time() if name not in matched]
            for index, name in enumerate(only_other, start=len(names)):
                op_type = other.op(name).op_type
                base = Pair(index=index, op_name=name, op_type=op_type, npu_ops=NO_OPS, golden_ops=(name,))
                yield without(base, Status.NO_NPU_DUMP, Message("row.data.only_in_other_run", op=name))

    def pairs_of(self, name: str) -> tuple[Pair, ...]:
        """The rows that `pairs` has for the op with this flattened name; () if it was not dumped."""
        if name not in self._dumps:
            return ()
        return tuple(self._of_op(self._dumps.names_by_time().index(name), name))

    def _of_op(self, index: int, name: str) -> Iterator[Pair]:
        op = self._dumps.op(name)
        name_there = self._counterpart(name)
        base = Pair(index=index, op_name=name, op_type=op.op_type, npu_ops=(name,), golden_ops=NO_OPS)
        if name_there is None:
            yield without(base, Status.NO_BENCHMARK, Message("row.data.inserted_unmatched", op=name))
            return
        if self._other is not None and name_there not in self._other:
            yield without(base, Status.NO_BENCHMARK, Message("row.data.not_in_other_run", op=name_there))
            return
        base = changed(base, golden_ops=(name_there,))
        yield from _unreadable(base, op)
        for slot, tensor in sorted(op.inputs.items()):
            row = changed(base, slot=f"input:{slot}")
            if self._other is None:
                yield _without_origin(row, tensor, NoOrigin(Status.NO_BENCHMARK, Message(NO_GRAPH)))
            else:
                missing = Missing(Message("row.data.no_slot_in_other_run", op=name_there, side="input", index=slot))
                yield pair_up(row, tensor, self._other.op(name_there).inputs.get(slot, missing))
        for slot, tensor in sorted(op.outputs.items()):
            row = changed(base, slot=f"output:{slot}", golden_tensor=f"{name_there}:{slot}")
            yield pair_up(row, tensor, self._benchmark.output(name_there, slot))


# --- a run with a graph: the fusion rules of FORMATS.md §5 ---


#: Ops of a group that a reason names.
_MAX_NAMED = 8


class GraphMatcher:
    """Matches one leaf by a graph: all of it, or one op, for which only the files it needs are opened."""

    def __init__(self, dumps: DumpIndex, file: GraphFile, benchmark: BenchmarkSide) -> None:
        self._dumps = dumps
        self._benchmark = benchmark
        self._groups = groups_of(file)
        self._origins = file.once(Origins)
        self._finder = OpDumps(dumps, file)
        self._file = file

    def pairs(self) -> Iterator[Pair]:
        """All pairs, in execution order."""
        self._dumps.walk()
        self._benchmark.walk()
        for index, group in enumerate(self._groups):
            yield from self._of_group(index, group)
        strangers = [name for name in self._dumps.names_by_time() if not self._is_in_graph(name)]
        for index, name in enumerate(strangers, start=len(self._groups)):
            op_type = self._dumps.op(name).op_type
            base = Pair(index=index, op_name=name, op_type=op_type, npu_ops=(name,), golden_ops=NO_OPS)
            yield without(base, Status.NO_ORIGINAL_OP, Message("row.data.of_another_graph", op=name))

    @cached_property
    def _op_names(self) -> frozenset[str]:
        """The ops of the graph as files name them, and what they are slices of; a single op needs none of it."""
        return frozenset(
            spelling for flat in map(flatten, self._file.column("name")) for spelling in (flat, whole_name(flat))
        )

    def _is_in_graph(self, name: str) -> bool:
        """Return whether the graph has the op of a file name: by itself, as a slice, or in a graph that threads run."""
        return any(spelling in self._op_names for spelling in (name, whole_name(name), base_name(name)))

    def pairs_of(self, op: Op) -> tuple[Pair, ...]:
        """The rows that `pairs` has for one op of the graph; () if the op was not dumped."""
        index = self._groups.index_of(op)
        if not self._finder.has(op):
            return ()
        return tuple(self._of_group(index, self._groups[index], only=op))

    def _of_group(self, index: int, group: Group, only: Op | None = None) -> Iterator[Pair]:
        """The rows of a group, or with `only` those of that op of it."""
        dumped = [op for op in group.ops if self._finder.has(op)]
        missing = None if dumped else _why_missing(group.ops)
        base = Pair(
            index=index,
            op_name=group.ops[0].name,
            op_type=group.ops[0].type,
            npu_ops=tuple(op.name for op in group.ops),
            golden_ops=self._benchmark.ops_of(group.golden_ops),
            pass_names=group.ops[0].pass_names,
            original_names=() if group.inserted else group.original_names,
            status=Status.NO_NPU_DUMP if missing is not None else Status.COMPARED,
            reason=missing,
        )
        if missing is not None:
            yield base
            return
        inner: set[int] = set()
        if group.ops[0].l1_fusion_group and len(dumped) > 2:
            inner = {id(op) for op in sorted(dumped, key=self._finder.timestamp)[1:-1]}
        for op in dumped if only is None else [op for op in dumped if op is only]:
            of_op = changed(base, op_name=op.name, op_type=op.type, pass_names=op.pass_names)
            if id(op) in inner:
                yield without(of_op, Status.INTERMEDIATE, Message("row.data.inside_l1", op=op.name))
                continue
            dump = self._finder.find(op)
            if dump is not None:  # else its files have gone since `has`
                yield from (_with_dump_notes(pair, dump) for pair in self._of_op(of_op, op, dump))

    def _of_op(self, base: Pair, op: Op, dump: DumpedOp) -> Iterator[Pair]:
        """Rows of one dumped op: every input, then every output.

        What an input shows of the order of a benchmark tensor's axes holds for an output that is the same tensor. An op
        that ran in slices reads its producer's whole output, where that ran so too (as msaccucmp has it).
        """
        orders: dict[str, str] = {}
        yield from _unreadable(base, dump)
        places = input_places(op, max(dump.inputs, default=-1) + 1)
        for slot, tensor in sorted(dump.inputs.items()):
            row = changed(base, slot=f"input:{slot}")
            edge, desc = places[slot] if slot < len(places) else (None, None)
            producer = self._origins.producer(op, edge) if edge is not None else None
            if edge is None or producer is None:
                no_op = Message("row.data.no_op", op=edge.producer) if edge else None
                missing = no_op or Message("row.data.not_connected", index=slot)
                yield _without_origin(row, tensor, NoOrigin(Status.NO_BENCHMARK, missing))
                continue
            made = self._finder.find(producer) if dump.is_ffts else None
            whole = made.outputs.get(edge.index) if made is not None and made.is_ffts else None
            value: AnyTensor | Missing = tensor
            if isinstance(whole, Tensor) and isinstance(tensor, Tensor):
                value, desc = changed(whole, address=tensor.address), output_desc(producer, edge.index)
            origin = self._origins.of(producer, edge.index, self._benchmark)
            yield self._pair(row, value, self._own_origin(op, slot) or origin, desc, orders)
        for slot, tensor in sorted(dump.outputs.items()):
            row = changed(base, slot=f"output:{slot}")
            origin = self._origins.of(op, slot, self._benchmark)
            yield self._pair(row, tensor, origin, output_desc(op, slot), orders)

    def _own_origin(self, op: Op, slot: int) -> Origin | None:
        """The benchmark's tensor of the very input of a recorded call: what put it out is a guess by its figures."""
        name = op.recorded_input(slot)
        if not name or isinstance(self._benchmark.output_of(name, 0), Missing):
            return None
        return Origin(name, 0, "ND", None)

    def _pair(
        self,
        row: Pair,
        tensor: AnyTensor | Missing,
        origin: Origin | NoOrigin,
        desc: TensorDesc | None,
        orders: dict[str, str],
    ) -> Pair:
        """The row of one tensor and its origin; its own description tells how this copy of it is laid out."""
        if isinstance(origin, NoOrigin):
            return _without_origin(row, tensor, origin)
        declared = Declared(origin.layout, origin.shape)
        if desc is not None and desc.origin_layout:
            shape = origin.shape if desc.origin_shape is None else desc.origin_shape
            declared = Declared(desc.origin_layout, shape)
        golden = self._benchmark.output_of(origin.op_name, origin.index)
        row = changed(row, golden_tensor=f"{origin.op_name}:{origin.index}")
        return pair_up(row, tensor, golden, declared, orders)


def _why_missing(ops: Sequence[Op]) -> Message:
    """The reason for ops without a dump."""
    if len(ops) == 1:
        return Message("row.data.not_dumped", op=ops[0].name, op_type=ops[0].type)
    reasons = tuple(Message("row.data.not_dumped", op=op.name, op_type=op.type) for op in ops[:_MAX_NAMED])
    return Message("row.data.none_dumped", reasons=reasons, more=max(len(ops) - _MAX_NAMED, 0) or None)


def _with_dump_notes(pair: Pair, dump: DumpedOp) -> Pair:
    """The pair with what its dump files let one expect."""
    if dump.threads > 1 and pair.status in (Status.SIZE_MISMATCH, Status.LAYOUT):
        if not dump.merged:
            return changed(pair, reason=Message("row.data.slices_uncut", op=pair.op_name, count=dump.threads))
        if pair.is_input:
            return changed(pair, reason=Message("row.data.first_slice", op=pair.op_name, count=dump.threads))
        if dump.missing:
            ran = dump.threads + dump.missing
            return changed(
                pair, reason=Message("row.data.slices_missing", op=pair.op_name, missing=dump.missing, count=ran)
            )
    if pair.status is not Status.COMPARED:
        return pair
    older = Message("row.data.older_dump") if pair.slot in dump.older else None
    notes = tuple(note for note in (pair.reason, dump.told_apart, older) if note is not None)
    return pair if notes == (pair.reason,) or not notes else changed(pair, reason=joined(notes))


def input_places(op: Op, count: int) -> list[tuple[Edge | None, TensorDesc | None]]:
    """Edge and description of each input of a dump with `count` input slots.

    Unconnected optional inputs are slots in the dumps of some releases and left out of those of others.
    """
    connected = [slot for slot, edge in enumerate(op.inputs) if edge is not None]
    descs = described_inputs(op)
    slots = connected if count <= len(connected) else range(len(op.inputs))
    return [(op.inputs[slot], descs.get(slot)) for slot in slots]


# --- an NPU run with its own graph as the benchmark side: fused against unfused (FORMATS.md §5, `-cf`) ---


#: Places of one tensor that are looked at, best first.
_PLACES = 16


@dataclass(frozen=True, slots=True)
class _Place:
    """A slot of an op whose dump has the tensor; inputs are places of their producer's output."""

    op: Op
    side: str
    index: int


class GraphDumps(BenchmarkSide):
    """The dump of an NPU run, asked for tensors of the training script."""

    def __init__(self, leaf: DumpLeaf, file: GraphFile) -> None:
        self.index = DumpIndex(leaf)
        self._file = file
        #: In the order in which they are tried: outputs of the op itself, of its copies, inputs of its readers.
        self._places: dict[tuple[str, int], list[_Place]] = {}
        self._inside: dict[str, Op] = {}
        #: The ops of the run by the ops of the training script whose work they do.
        self._doing: dict[str, list[str]] = {}
        for op in in_order(file):
            for name in originals(op):
                self._doing.setdefault(name, []).append(op.name)
        ranked: tuple[list[tuple[tuple[str, int], _Place]], ...] = ([], [], [])
        for rank, key, place in self._all_places():
            ranked[rank].append((key, place))
        for places in ranked:
            for key, place in places:
                listed = self._places.setdefault(key, [])
                if len(listed) < _PLACES:
                    listed.append(place)

    @property
    def root(self) -> str:
        """The folder of the dump files."""
        return self.index.leaf.path

    def walk(self) -> None:
        """Say that all tensors are asked for next."""
        self.index.walk()

    def _all_places(self) -> Iterator[tuple[int, tuple[str, int], _Place]]:
        origins = self._file.once(Origins)
        nothing = NoBenchmark()  # so that the first origin on the way back counts
        for op in in_order(self._file):
            for name in op.original_names or ():
                self._inside.setdefault(flatten(name), op)
            dumped = flatten(op.name) in self.index
            is_copy = op.type in TRANSPARENT_TYPES
            if not dumped:
                continue
            for slot in range(len(op.output_descs)):
                origin = origins.of(op, slot, nothing)
                if not isinstance(origin, NoOrigin):
                    yield int(is_copy), (flatten(origin.op_name), origin.index), _Place(op, "output", slot)
            for slot, edge in enumerate(op.inputs):
                producer = None if edge is None else origins.producer(op, edge)
                if edge is None or producer is None:
                    continue
                origin = origins.of(producer, edge.index, nothing)
                if not isinstance(origin, NoOrigin):
                    yield 2, (flatten(origin.op_name), origin.index), _Place(op, "input", slot)

    def ops_of(self, originals: tuple[str, ...]) -> tuple[str, ...]:
        """The ops that this run made of ops of the training script, as the vendor names them; `*` for none."""
        return tuple(dict.fromkeys(op for name in originals for op in self._doing.get(name, ()))) or NO_OPS

    def output(self, op_name: str, index: int) -> Found:
        """The tensor that output `index` of the script's op with this flattened name became in this run."""
        damaged: Missing | None = None
        for place in self._places.get((op_name, index), ()):
            tensor = self._at(place)
            if not isinstance(tensor, Missing):
                return tensor
            if tensor.damaged and damaged is None:
                damaged = tensor
        if damaged is not None:
            return damaged
        inside = self._inside.get(op_name)
        if inside is not None and flatten(inside.name) != op_name:
            return Missing(Message("row.data.inside_other", op=inside.name, passes=inside.pass_names))
        return Missing(Message("row.data.nowhere_in_other_run", op=op_name, index=index))

    def _at(self, place: _Place) -> Found:
        name = flatten(place.op.name)
        dump = self.index.op(name)
        slots = dump.outputs if place.side == "output" else dump.inputs
        slot = place.index
        if place.side == "input":
            # Dumps of some releases leave out unconnected inputs.
            places = input_places(place.op, max(slots, default=-1) + 1)
            edge = place.op.inputs[place.index]
            slot = next((at for at, (candidate, _) in enumerate(places) if candidate is edge), -1)
        tensor = slots.get(slot)
        if tensor is not None:
            return tensor
        if dump.errors:
            return dump.errors[0]
        return Missing(Message("row.data.no_slot_in_other_run", op=name, side=place.side, index=slot))
