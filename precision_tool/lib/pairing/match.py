"""Which benchmark tensor each NPU tensor of a run with a graph must equal: the fusion rules of FORMATS.md §5."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from precision_tool.lib.graph.neighbourhood import described_inputs
from precision_tool.lib.model.changed import changed
from precision_tool.lib.model.comparison import NO_OPS, Pair, Status
from precision_tool.lib.model.graph import Edge, GraphFile, Op, TensorDesc
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.pairing.groups import Group, groups_of, in_order
from precision_tool.lib.pairing.op_dumps import OpDumps
from precision_tool.lib.pairing.origins import NoOrigin, Origins, output_desc
from precision_tool.lib.pairing.pair_up import pair_with_origin, without
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpedOp, DumpIndex, Missing
from precision_tool.lib.sources.names import base_name, flatten, whole_name

#: Ops of a group that a reason names.
_NAMED = 8


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
        self._file = file
        self._group_of = {id(op): index for index, group in enumerate(self._groups) for op in group.ops}

    def pairs(self) -> Iterator[Pair]:
        """All pairs, in execution order."""
        for index, group in enumerate(self._groups):
            yield from self._of_group(index, group)
        strangers = [name for name in self._dumps.names_by_time() if not self._is_known(name)]
        for index, name in enumerate(strangers, start=len(self._groups)):
            op_type = self._dumps.op(name).op_type
            base = Pair(index=index, op_name=name, op_type=op_type, npu_ops=(name,), golden_ops=NO_OPS)
            yield without(base, Status.NO_ORIGINAL_OP, f"the graph has no op {name}: it belongs to another graph")

    @cached_property
    def _known(self) -> frozenset[str]:
        """The ops of the graph as files name them, and what they are slices of; a single op needs none of it."""
        return frozenset(one for op in self._file.ops for one in (flatten(op.name), whole_name(flatten(op.name))))

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
        yield without(_base(index, group.ops[0], npu_ops, group), Status.NO_NPU_DUMP, reason)
        return
    inner: set[int] = set()
    if group.ops[0].l1_fusion_group and len(dumped) > 2:
        inner = {id(op) for op in sorted(dumped, key=finder.timestamp)[1:-1]}
    for op in dumped:
        if only is not None and op is not only:
            continue
        base = _base(index, op, npu_ops, group)
        if id(op) in inner:
            yield without(base, Status.INTERMEDIATE, f"{op.name} is inside an L1 fusion: its tensors stay on the chip")
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
    yield from (without(base, Status.UNREADABLE, error.reason) for error in dump.errors)
    if not dump.inputs and not dump.outputs:
        if not dump.errors:
            yield without(base, Status.UNREADABLE, f"{dump.paths[0]}: the dump holds no input and no output")
        return
    places = input_places(op, max(dump.inputs, default=-1) + 1)
    for slot, tensor in sorted(dump.inputs.items()):
        row = changed(base, slot=f"input:{slot}")
        edge, desc = places[slot] if slot < len(places) else (None, None)
        producer = origins.producer(op, edge) if edge is not None else None
        if edge is None or producer is None:
            missing = f"the graph has no op {edge.producer}" if edge else f"the graph connects nothing to input {slot}"
            yield pair_with_origin(row, tensor, NoOrigin(Status.NO_BENCHMARK, missing), None, benchmark)
            continue
        made = finder.find(producer) if dump.is_ffts else None
        whole = made.outputs.get(edge.index) if made is not None and made.is_ffts else None
        fed: AnyTensor | Missing = tensor
        if isinstance(whole, Tensor) and isinstance(tensor, Tensor):
            fed, desc = changed(whole, address=tensor.address), output_desc(producer, edge.index)
        yield pair_with_origin(row, fed, origins.of(producer, edge.index, benchmark), desc, benchmark, orders)
    for slot, tensor in sorted(dump.outputs.items()):
        row = changed(base, slot=f"output:{slot}")
        yield pair_with_origin(row, tensor, origins.of(op, slot, benchmark), output_desc(op, slot), benchmark, orders)


def input_places(op: Op, count: int) -> list[tuple[Edge | None, TensorDesc | None]]:
    """Edge and description of each input of a dump with `count` input slots.

    Unconnected optional inputs are slots in the dumps of some releases and left out of those of others.
    """
    connected = [slot for slot, edge in enumerate(op.inputs) if edge is not None]
    descs = described_inputs(op)
    slots = connected if count <= len(connected) else range(len(op.inputs))
    return [(op.inputs[slot], descs.get(slot)) for slot in slots]
