"""One dump leaf as ops that run one after the other, with the extremes of their inputs and outputs.

`KnownValues` is what a comparison found out about a leaf's values, so that nothing is read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, count
from math import inf

from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.compare.scheduler import map_tasks
from precision_tool.lib.compare.tensor_figures import extremes_of, merged
from precision_tool.lib.compare.tensor_reader import TensorKey, key_of
from precision_tool.lib.data.dump_names import base_name, flatten, whole_name
from precision_tool.lib.data.dumped_ops import DumpedOp, DumpIndex, Missing, OpDumps
from precision_tool.lib.data.kinds import NPY
from precision_tool.lib.data.neighbourhood import Link, Node, Wiring, order_of
from precision_tool.lib.data.origins import groups_of
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Extremes, Pair, Summary
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor, OpDump, Tensor

#: Types of ops that give the very memory they are fed.
_SAME_MEMORY = frozenset(
    {"Reshape", "ExpandDims", "Squeeze", "Unsqueeze", "Flatten", "FlattenV2", "Identity", "IdentityN", "Bitcast",
     "StopGradient", "ReFormat"}
)  # fmt: skip
#: Types of ops that bring data in; what feeds them is never dumped.
SOURCE_TYPES = frozenset({"GetNext", "IteratorGetNext", "Data", "AnnData", "AippData", "QueueData"})
#: Types of ops whose values were there before the step.
KEPT_TYPES = frozenset({"Variable", "VariableV2", "RefData", "Const", "Constant", "ConstPlaceHolder", "FileConstant"})
#: Ops in a row without a dump that are followed to find what feeds an op.
_MAX_BACK = 16
#: Bytes of the tensors that an executor is asked for at one time.
_BUNDLE_BYTES = 16 << 20


# --- what a comparison found out --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KnownValues:
    """The dump files of a leaf as they were opened, and what comparing them told of their tensors, NPU side by key.

    `compared` are the rows of pairs that were compared beside the leaf's own, by the keys of both tensors; `rows` the
    leaf's own by op and slot.
    """

    dumps: DumpIndex | None = None
    extremes: Mapping[TensorKey, Extremes] = field(default_factory=dict)
    summaries: Mapping[TensorKey, Summary] = field(default_factory=dict)
    compared: Mapping[tuple[TensorKey, TensorKey], Row] = field(default_factory=dict)
    rows: Mapping[tuple[str, str], Row] = field(default_factory=dict)

    def golden_extremes(self, op_name: str, slot: str) -> Extremes | None:
        """Return the extremes of the benchmark's tensor of an op; None without one, or where it cannot be read."""
        row = self.rows.get((op_name, slot))
        golden = None if row is None else row.pair.golden
        if row is None or not isinstance(golden, Tensor) or not NPY.has_suffix(golden.path):
            return None
        try:
            return extremes_of(golden, summary=row.golden if row.metrics is not None else None)
        except PrecisionToolError:
            return None

    def row_of(self, pair: Pair) -> Row | None:
        """Return the row of a pair that was compared beside the others."""
        if not isinstance(pair.npu, Tensor) or not isinstance(pair.golden, Tensor):
            return None
        return self.compared.get((key_of(pair.npu), key_of(pair.golden)))


def known_values(results: Sequence[LeafResult]) -> dict[str, KnownValues]:
    """Return the values that comparisons computed, by the folder of the leaf."""
    return {result.leaf.path: _values_of(result) for result in results}


def _values_of(result: LeafResult) -> KnownValues:
    npu = [(key_of(row.pair.npu), row) for row in result.rows if isinstance(row.pair.npu, Tensor)]
    return KnownValues(
        dumps=result.dumps,
        extremes={key: row.extremes for key, row in npu if row.extremes is not None},
        summaries={key: row.npu for key, row in npu if row.npu is not None and row.metrics is not None},
        compared={
            (key_of(row.pair.npu), key_of(row.pair.golden)): row
            for row in result.extra_rows
            if isinstance(row.pair.npu, Tensor) and isinstance(row.pair.golden, Tensor)
        },
        rows={(row.op_name, row.slot): row for row in result.rows},
    )


#: Where nothing was compared.
NOTHING = KnownValues()


# --- ops in execution order -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOp:
    """A dumped op of a leaf. `node` is its place in the graph, None without one.

    `number` is its place among the dumped ops, `index` its number as `ls` and results have it, where there is a graph.
    """

    number: int
    index: int
    name: str
    op_type: str
    timestamp: int
    flat: str
    node: Node | None = None

    @property
    def op(self) -> Op | None:
        """The op in the graph."""
        return None if self.node is None else self.node.op


@dataclass(frozen=True, slots=True, kw_only=True)
class OpInput:
    """An input of an op: the tensor, from its own dump or its producer's, or why it is unknown.

    `producer` names the op which makes it, where the graph tells. `in_place`: the op wrote its output there before the
    input was dumped, and no other dump has what was there.
    """

    slot: int
    tensor: AnyTensor | None = None
    reason: Message | None = None
    producer: str = ""
    producer_type: str = ""
    in_place: bool = False


def slot_of(dump: OpDump, slot: str) -> AnyTensor | None:
    """Return the tensor in a slot of a dump file; None if it has none."""
    side, _, number = slot.partition(":")
    tensors = dump.inputs if side == "input" else dump.outputs
    return tensors[int(number)] if int(number) < len(tensors) else None


class RunValues:
    """The ops of one leaf in execution order; files are opened when their op is asked for."""

    def __init__(self, leaf: DumpLeaf, file: GraphFile | None = None, cached: KnownValues = NOTHING) -> None:
        self.leaf = leaf
        self.index = cached.dumps or DumpIndex(leaf)
        self.wiring = None if file is None else file.once(Wiring)
        self._summaries = cached.summaries
        self._extremes: dict[object, Extremes | None] = dict(cached.extremes.items())
        #: What could not be read, with the reason, by file.
        self.unreadable: dict[str, Message] = {}
        self._known_links: dict[tuple[str, str], dict[int, Link]] = {}
        self._op_dumps = None if file is None else OpDumps(self.index, file)
        self.ops = tuple(self._in_order(file))
        self._by_node = {op.node.key: op for op in self.ops if op.node is not None}
        self._by_flat: dict[str, RunOp] = {}
        for op in self.ops:
            self._by_flat.setdefault(op.flat, op)

    def _in_order(self, file: GraphFile | None) -> Iterator[RunOp]:
        """In the order of the graph; what no graph names by the time of its files."""
        named = set() if file is None else set(map(flatten, file.column("name")))
        named |= {base_name(flat) for flat in named}
        types = {whole_name(dumped_file.name.op_name): dumped_file.name.op_type for dumped_file in self.leaf.files}
        types |= {dumped_file.name.op_name: dumped_file.name.op_type for dumped_file in self.leaf.files}
        strange = (flat for flat in self.index.names_by_time() if not {flat, base_name(flat)} & named)
        others = deque(strange)
        number = count()
        groups = None if file is None else groups_of(file)
        strangers = count(0 if groups is None else len(groups))  # behind the graph's own, as results number them

        def others_before(time: float) -> Iterator[RunOp]:
            while others and self.index.timestamp(others[0]) < time:
                flat = others.popleft()
                timestamp = self.index.timestamp(flat)
                place = next(number)
                index = place if file is None else next(strangers)
                yield RunOp(number=place, index=index, name=flat, op_type=types[flat], timestamp=timestamp, flat=flat)

        if file is not None and groups is not None and self._op_dumps is not None:
            names = file.column("name")
            for file_number in file.once(order_of):
                flat = flatten(names[file_number])
                if flat in self.index:
                    op = file.ops[file_number]
                    repeated = self._op_dumps.is_repeated(op)
                    time = self._op_dumps.timestamp(op) if repeated else self.index.timestamp(flat)
                    yield from others_before(time)
                    node = Node(graph=file.graph_of(op).name, name=op.name, op=op)
                    yield RunOp(
                        number=next(number),
                        index=groups.index_of(op),
                        name=op.name,
                        op_type=op.type,
                        timestamp=time,
                        flat=flat,
                        node=node,
                    )
        yield from others_before(inf)

    def find(self, name: str) -> RunOp | None:
        """Return the op of this name, flattened or not."""
        flat = flatten(name)
        return self._by_flat.get(flat) or self._by_flat.get(base_name(flat))

    def dump(self, op: RunOp) -> DumpedOp | None:
        """Return the dumped tensors of an op."""
        dumped: DumpedOp | None
        if op.op is not None and self._op_dumps is not None:
            dumped = self._op_dumps.find(op.op)
        else:
            dumped = self.index.op(op.flat)
        for error in () if dumped is None else dumped.errors:
            self._note(error)
        return dumped

    def _note(self, missing: Missing) -> None:
        self.unreadable.setdefault(missing.path, missing.reason)

    def outputs(self, op: RunOp) -> Iterator[tuple[int, AnyTensor]]:
        """Return the outputs that were dumped and can be read."""
        dump = self.dump(op)
        for slot, tensor in sorted(dump.outputs.items()) if dump is not None else ():
            if isinstance(tensor, Missing):
                self._note(tensor)
            else:
                yield slot, tensor

    def inputs(self, op: RunOp) -> list[OpInput]:
        """Return the inputs of an op by slot; what was not dumped, or only once overwritten, from its producer."""
        dump = self.dump(op)
        dumped = {} if dump is None else dump.inputs
        written = {tensor.address for _, tensor in self.outputs(op) if isinstance(tensor, Tensor) and tensor.address}
        links = self._links(op)
        inputs = []
        for slot in sorted({*dumped, *links}):
            tensor = dumped.get(slot)
            node = links[slot].producer if slot in links else None
            name, kind = ("", "") if node is None else (node.name, "" if node.op is None else node.op.type)
            source = OpInput(slot=slot, producer=name, producer_type=kind)
            if isinstance(tensor, Missing):
                self._note(tensor)
                inputs.append(replace(source, reason=tensor.reason))
            elif isinstance(tensor, Tensor) and tensor.address in written:
                inputs.append(self._before(op, replace(source, tensor=tensor, in_place=True)))
            elif tensor is not None:
                inputs.append(replace(source, tensor=tensor))
            elif not dumped:
                inputs.append(self._made(op, source))
        return inputs

    def _made(self, op: RunOp, source: OpInput) -> OpInput:
        """Return the input as the op before it put it out."""
        made = self.made_by(op, source.slot)
        if made is None:
            return replace(source, reason=Message("row.compare.not_dumped", producer=source.producer))
        maker, index = made
        tensor = dict(self.outputs(maker)).get(index)
        reason = None if tensor is not None else Message("row.compare.no_output", op=maker.name, index=index)
        return replace(source, tensor=tensor, reason=reason, producer=maker.name, producer_type=maker.op_type)

    def _before(self, op: RunOp, source: OpInput) -> OpInput:
        """Return an input that the op wrote over as it was before, if an op that ran before it put it out."""
        made = self.made_by(op, source.slot, same_memory=True)
        if made is None or made[0].timestamp > op.timestamp or max(self._threads(op), self._threads(made[0])) > 1:
            return source
        tensor = dict(self.outputs(made[0])).get(made[1])
        return source if tensor is None else replace(source, tensor=tensor, in_place=False)

    def _threads(self, op: RunOp) -> int:
        dump = self.dump(op)
        return 1 if dump is None else dump.threads

    def _links(self, op: RunOp) -> dict[int, Link]:
        """Return the link that ends at each input, across borders of subgraphs; slots as the dump counts them."""
        if op.node is None or op.op is None or self.wiring is None:
            return {}
        links = self._known_links.get(op.node.key)
        if links is None:
            links = self._known_links[op.node.key] = self._find_links(op, op.op, op.node, self.wiring)
        return links

    def _find_links(self, op: RunOp, in_graph: Op, node: Node, wiring: Wiring) -> dict[int, Link]:
        dump = self.dump(op)
        dumped = max(dump.inputs, default=-1) + 1 if dump is not None else 0
        slots = [slot for slot, edge in enumerate(in_graph.inputs) if edge is not None]
        # Some releases dump connected inputs only.
        packed = dumped == len(slots) < len(in_graph.inputs)
        links = {}
        for number, slot in enumerate(slots):
            steps = wiring.sources(node, slot)
            if steps:
                links[number if packed else slot] = steps[0].link
        return links

    def made_by(self, op: RunOp, slot: int, *, same_memory: bool = False) -> tuple[RunOp, int] | None:
        """Return the dumped op, and its output, that is what `op` is fed at a slot: also behind ops without a dump.

        These have one input, and with `same_memory` a type that keeps values where they are.
        """
        link = self._links(op).get(slot)
        for _ in range(_MAX_BACK):
            if link is None or self.wiring is None:
                return None
            node = link.producer
            maker = self._by_node.get(node.key)
            if maker is not None:
                return maker, link.index
            if node.op is None or (same_memory and node.op.type not in _SAME_MEMORY):
                return None
            inputs = [number for number, edge in enumerate(node.op.inputs) if edge is not None]
            if same_memory:  # the second input of a Reshape is only a shape
                inputs = inputs[:1]
            steps = self.wiring.sources(node, inputs[0]) if len(inputs) == 1 else []
            link = steps[0].link if steps else None
        return None

    def slices(self, op: RunOp) -> dict[int, OpDump]:
        """Return the dump of each FFTS+ thread of an op, the newest file of each; {} for an op that was not cut."""
        dump = self.dump(op)
        if dump is None or dump.threads < 2:
            return {}
        dumps: dict[int, OpDump] = {}
        for file in sorted(self.leaf.files, key=lambda file: file.name.timestamp):
            if file.name.thread_id is not None and file.path in dump.paths:
                with suppress(PrecisionToolError):  # `dump` has noted it
                    dumps[file.name.thread_id] = open_op_dump(file.path)
        return dumps

    def slot_extremes(self, op: RunOp, slot: str, tensor: AnyTensor) -> Extremes | None:
        """Return the extremes of a tensor of an op; of one that FFTS+ threads dumped in slices those of all slices."""
        slices = self.slices(op)
        if all(part.path != tensor.path for part in slices.values()):
            return self.extremes(tensor)
        extremes = []
        for dump in slices.values():
            part = slot_of(dump, slot)
            of_slice = None if part is None else self.extremes(part)
            if of_slice is not None:
                extremes.append(of_slice)
        return reduce(merged, extremes) if extremes else None

    def learn(self, tensors: Iterable[AnyTensor], pool: Executor, count_bytes: Callable[[int], object]) -> None:
        """Let an executor find the extremes of tensors; `count_bytes` is told of the bytes that are done."""
        bundles: list[list[Tensor]] = [[]]
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not self.knows(tensor):
                if sum(each.nbytes for each in bundles[-1]) > _BUNDLE_BYTES:
                    bundles.append([])
                bundles[-1].append(tensor)
        results = map_tasks(
            _extremes_of_all,
            [(bundle,) for bundle in bundles if bundle],
            pool,
            lambda result: count_bytes(sum(tensor.nbytes for tensor, _, _ in result)),
        )
        self._take(chain.from_iterable(results))

    def _take(self, results: Iterable[_TensorExtremes]) -> None:
        for tensor, extremes, reason in results:
            self._extremes[_key_of(tensor)] = extremes
            if reason:
                self.unreadable.setdefault(tensor.path, reason)

    def knows(self, tensor: AnyTensor) -> bool:
        """Return whether the extremes of a tensor are known without reading it."""
        return isinstance(tensor, Tensor) and key_of(tensor) in self._extremes

    def known_summary(self, tensor: AnyTensor) -> Summary | None:
        """Return the summary of a tensor where it is known without reading it."""
        return self._summaries.get(key_of(tensor)) if isinstance(tensor, Tensor) else None

    def extremes(self, tensor: AnyTensor) -> Extremes | None:
        """Return the extremes of a tensor; None for one that has none or cannot be read, which is noted."""
        key = _key_of(tensor)
        if key not in self._extremes:
            self._take(_extremes_of_all([tensor]))
        return self._extremes[key]


#: A tensor, its extremes, and why there are none.
_TensorExtremes = tuple[AnyTensor, Extremes | None, Message | None]


def _key_of(tensor: AnyTensor) -> object:
    return key_of(tensor) if isinstance(tensor, Tensor) else id(tensor)


def _extremes_of_all(tensors: Sequence[AnyTensor]) -> list[_TensorExtremes]:
    results: list[_TensorExtremes] = []
    for tensor in tensors:
        try:
            results.append((tensor, extremes_of(tensor), None))
        except PrecisionToolError as error:
            results.append((tensor, None, error.advice_message))
    return results
