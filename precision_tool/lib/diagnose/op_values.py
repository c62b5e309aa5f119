"""The tensors of a run as formulas take them, and the figures of the comparison that save reading them again."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, isnan, nan, prod, sqrt
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.compare.tensor_reader import Budget, Opens, OpenTensors, TensorKey, key_of
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import BenchmarkSide, DumpedOp, DumpIndex, Missing, OpDumps
from precision_tool.lib.data.matching import input_places
from precision_tool.lib.data.neighbourhood import Consumers, order_of
from precision_tool.lib.data.origins import NoOrigin, Origins, groups_of, in_order
from precision_tool.lib.io import data_types
from precision_tool.lib.io.data_types import DataType
from precision_tool.lib.io.files import store_of
from precision_tool.lib.io.layouts import Reading, reading_of
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import Metrics, Status, Summary
from precision_tool.lib.model.finding import ReasonError
from precision_tool.lib.model.graph import Edge, GraphFile, Op, TensorDesc
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Access, AnyTensor, Tensor, TensorStatistics
from precision_tool.lib.ops.base import Input, in_doubles
from precision_tool.lib.ops.op_arguments import distinct
from precision_tool.lib.ops.optimizers import updated_inputs

#: An op shows nothing new if the largest error of its outputs, over their rms, is within so much, and so many times
#: the largest of its inputs (VERDICT.md §3).
_ROUNDED, _TIMES_FED = 2.0**-6, 2.0

#: What tells the numbers of a tensor: its type, the benchmark's tensor, and all figures of the two.
Figures = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """`quiet` are the names of ops that show nothing new; `figures` are by op name and slot ("output:0").

    `places` are those of the largest errors of quiet ops' outputs, by the same: a flat index, and of how many elements.
    `unread` are the ops of which a tensor or file could not be read, in the order of the result.
    """

    quiet: frozenset[str] = frozenset()
    figures: Mapping[tuple[str, str], Figures] = field(default_factory=dict, repr=False)
    places: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict, repr=False)
    unread: tuple[str, ...] = ()
    #: Relative Euclidean distances of tensors whose every element was compared; 0.0 only where all are equal.
    distances: Mapping[tuple[str, str], float] = field(default_factory=dict, repr=False)
    #: The largest absolute values of the benchmark's tensors that these were held against.
    largest: Mapping[tuple[str, str], float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Compared:
        """Return what the rows of a result say; nothing of tensors that a file names without their figures."""
        errors: dict[str, dict[str, float]] = {}
        figures: dict[tuple[str, str], Figures] = {}
        places: dict[tuple[str, str], tuple[int, int]] = {}
        unread: dict[str, None] = {}
        distances: dict[tuple[str, str], float] = {}
        largest: dict[tuple[str, str], float] = {}
        for row in rows:
            if row.status == Status.UNREADABLE:
                unread[row.op_name] = None
            if not row.slot or row.absent:
                continue
            side, _, _ = row.slot.partition(":")
            if side == "input" and row.metrics is None:  # a constant of the compiler, say: it brings no error in
                continue
            slot_errors = errors.setdefault(row.op_name, {})
            if _is_in_part(row):  # the elements behind those that were compared may be anything
                slot_errors[side] = float("inf")
                continue
            slot_errors[side] = max(slot_errors.get(side, 0.0), _largest_error(row.metrics, row.golden))
            worst = _place(row.metrics.max_error_index, row.shape) if row.metrics is not None else None
            if side == "output" and worst is not None and row.shape is not None:
                places[row.op_name, row.slot] = worst, prod(row.shape)
            figures_of_row = _figures(row)
            if figures_of_row is not None:
                figures[row.op_name, row.slot] = figures_of_row
                distances[row.op_name, row.slot] = _distance(row.metrics)
            if row.golden is not None and not _is_in_part(row):
                largest[row.op_name, row.slot] = max(abs(row.golden.minimum), abs(row.golden.maximum))
        quiet = {
            name for name, slots in errors.items()
            if "output" in slots and slots["output"] <= _ROUNDED + _TIMES_FED * slots.get("input", 0.0) < float("inf")
        }  # fmt: skip
        places = {key: place for key, place in places.items() if key[0] in quiet}
        return cls(
            quiet=frozenset(quiet), figures=figures, places=places, unread=tuple(unread), distances=distances,
            largest=largest,
        )  # fmt: skip

    def is_same(self, key: tuple[str, str], other: tuple[str, str]) -> bool:
        """Return whether two tensors were held against the same one of the benchmark, and every figure is the same."""
        own = self.figures.get(key)
        return own is not None and own == self.figures.get(other)


def _distance(metrics: Metrics | None) -> float:
    """Return the relative distance of two tensors; not 0 where an element differs, NaN where it is not known."""
    if metrics is None or isnan(metrics.max_absolute_error):
        return nan
    if not metrics.max_absolute_error:
        return 0.0
    return metrics.relative_euclidean_distance or nan


def _is_in_part(row: Row) -> bool:
    """Return whether only the first elements of a tensor were compared."""
    return row.npu is not None and row.shape is not None and row.npu.count < prod(row.shape)


def _largest_error(metrics: Metrics | None, golden: Summary | None) -> float:
    """Return the largest error of an element over the rms of the benchmark's; inf where that is not known."""
    if metrics is None or golden is None or metrics.non_finite_mismatches:
        return float("inf")
    error, size = metrics.max_absolute_error, sqrt(golden.mean**2 + golden.std**2)
    if not (isfinite(error) and isfinite(size)):
        return float("inf")
    return error / size if size else (0.0 if not error else float("inf"))


def _figures(row: Row) -> Figures | None:
    """Return the figures of a row; None if not compared, or not finite everywhere."""
    metrics, npu, tensor = row.metrics, row.npu, row.pair.npu
    if metrics is None or npu is None or tensor is None or row.golden is None or metrics.non_finite_mismatches:
        return None
    if npu.nan_count or npu.inf_count or not row.golden_tensor:
        return None
    return (
        tensor.dtype, row.golden_tensor, npu, row.golden, _place(metrics.max_error_index, row.shape),
        metrics.cosine, metrics.max_absolute_error, metrics.accumulated_relative_error,
        metrics.relative_euclidean_distance, metrics.mean_absolute_error, metrics.root_mean_square_error,
        metrics.max_relative_error, metrics.mean_relative_error, metrics.npu_at_max_error,
    )  # fmt: skip


def _place(index: tuple[int, ...] | None, shape: tuple[int, ...] | None) -> int | None:
    """Return a place in the order of the elements: tensors that were only reshaped have the same."""
    place = 0
    for at, extent in zip(index or (), shape or (), strict=False):
        place = place * extent + at
    return place if index is not None else None


# --- rows -------------------------------------------------------------------------------------------------------------


#: Rows and elements of a wrong large op at least that its mistake is told from, and the share of all that they are.
_MIN_DIAGNOSTIC_ROWS, _MIN_DIAGNOSTIC_ELEMENTS, _ROWS_PER_DIAGNOSTIC = 6, 1 << 16, 4
#: In how many pieces these rows lie at most.
_MAX_DIAGNOSTIC_PIECES = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """Some of the `count` rows along a tensor's first axis: pieces of rows that follow one another, in order.

    `is_flat`: the tensor falls into so many rows whatever its axes are, and only its elements count. `inputs` are the
    slots of an op's inputs that have such rows; its outputs all do.
    """

    count: int
    pieces: tuple[tuple[int, int], ...]
    is_flat: bool = False
    inputs: frozenset[int] = field(default=frozenset(), compare=False)
    #: Whether rows are the lines of images: those along the first two of four axes.
    are_lines: bool = False

    @property
    def chosen(self) -> int:
        """Number of rows."""
        return sum(stop - start for start, stop in self.pieces)

    @property
    def numbers(self) -> npt.NDArray[np.intp]:
        """The rows' numbers."""
        return np.concatenate([np.arange(start, stop, dtype=np.intp) for start, stop in self.pieces])

    def are_in(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape has as many rows."""
        if self.are_lines:
            return len(shape) == 4 and prod(shape[:2]) == self.count
        return prod(shape) % self.count == 0 if self.is_flat else shape[:1] == (self.count,)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of these rows of a tensor that has them, and is not taken flat."""
        return (self.chosen, 1, *shape[2:]) if self.are_lines else (self.chosen, *shape[1:])

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return these rows of an array of as many rows; any other array as it is."""
        if self.is_flat:
            return array.reshape(self.count, -1)[self.numbers].reshape(-1)
        if self.are_lines:
            if not self.are_in(array.shape):
                return array
            return array.reshape(self.count, 1, *array.shape[2:])[self.numbers]
        return array[self.numbers] if array.shape[:1] == (self.count,) else array

    def and_also(self, numbers: npt.NDArray[np.intp]) -> Rows:
        """Return these rows and those with the given numbers."""
        merged = distinct(np.append(self.numbers, numbers))
        runs = np.split(merged, np.flatnonzero(np.diff(merged) > 1) + 1)
        return replace(self, pieces=tuple((int(run[0]), int(run[-1]) + 1) for run in runs))

    def with_piece(self, first: int, stop: int) -> Rows:
        """Return these rows and those from `first` to `stop`."""
        pieces: list[tuple[int, int]] = []
        for start, end in sorted((*self.pieces, (first, stop))):
            if pieces and start <= pieces[-1][1]:
                pieces[-1] = pieces[-1][0], max(end, pieces[-1][1])
            else:
                pieces.append((start, end))
        return replace(self, pieces=tuple(pieces))

    def of_inputs(self, inputs: Mapping[int, Input]) -> dict[int, Input]:
        """Return an op's inputs in float64, with these rows only where they have them."""
        return {
            slot: (replace(tensor, array=self.of(tensor.array)) if slot in self.inputs else tensor).in_doubles()
            for slot, tensor in inputs.items()
        }

    def of_outputs(self, outputs: Mapping[int, Input]) -> dict[int, Input]:
        """Return these rows of an op's outputs in float64."""
        return {slot: replace(tensor, array=self.of(tensor.array)).in_doubles() for slot, tensor in outputs.items()}

    def if_in(self, slot: int) -> Rows | None:
        """Return these rows if an input has them."""
        return self if slot in self.inputs else None


class Batch(NamedTuple):
    """Rows that an op treats one by one, and the inputs that have them."""

    rows: int
    inputs: frozenset[int]


def spread(
    count: int, chosen: int, pieces: int | None = None, block: int = 1, inputs: frozenset[int] = frozenset()
) -> Rows:
    """Return about `chosen` of `count` rows, spread evenly; the first and the last are among them.

    They are in so many `pieces` (None: each row alone), which begin and end on borders of a `block` of rows.
    """
    chosen = max(1, min(chosen, count))
    many = min(chosen, pieces or chosen)
    length = -(-chosen // many // block) * block
    last = max(0, count - length)
    starts = distinct(np.linspace(0, last, many).astype(np.intp) // block * block)
    ranges: list[tuple[int, int]] = []
    for start in map(int, starts):
        stop = count if start == last // block * block else start + length
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], stop
        else:
            ranges.append((start, stop))
    return Rows(count, tuple(ranges), inputs=inputs)


def diagnostic_rows(batch: Batch | None, got: Mapping[int, Input]) -> Rows | None:
    """Return so many rows of an op's batch that they may tell a mistake; None without one, or if that is most of it."""
    if batch is None or len(got) != 1:
        return None
    (output,) = got.values()
    chosen = max(_MIN_DIAGNOSTIC_ROWS, -(-batch.rows * _MIN_DIAGNOSTIC_ELEMENTS // output.array.size))
    rows = spread(batch.rows, chosen, _MAX_DIAGNOSTIC_PIECES, inputs=batch.inputs)
    if rows.chosen * _ROWS_PER_DIAGNOSTIC > batch.rows or output.array.shape[0] != batch.rows:
        return None
    return rows


# --- tensors of a run -------------------------------------------------------------------------------------------------


Numbers = npt.NDArray[Any]

#: Larger tensors are not read whole.
MAX_ELEMENTS = 1 << 26
#: Bytes of numbers that are kept decoded.
_KEPT_BYTES = 64 << 20
#: Tensors up to so many bytes are read once.
_BUDGET = Budget(stored_bytes=16 << 20, stored_tensor=16 << 20)
#: Ops that put out what they are fed, in another shape at most; they have no kernel and are seldom dumped.
PASSING = frozenset({
    "Reshape", "ExpandDims", "Squeeze", "Identity", "StopGradient", "FlattenV2", "Flatten", "ReadVariableOp",
    "ReFormat", "SqueezeV2", "UnsqueezeV2", "Unsqueeze", "Bitcast",
})  # fmt: skip
#: What a network has learned or was built with.
CONSTANT_TYPES = frozenset({"Const", "Constant", "ConstPlaceHolder"})
VARIABLE_TYPES = frozenset({"Variable", "VariableV2", "VarHandleOp", "RefData"})
PARAMETER_TYPES = CONSTANT_TYPES | VARIABLE_TYPES
#: Where data come in.
DATA_TYPES = frozenset({
    "GetNext", "IteratorGetNext", "DynamicGetNext", "DynamicGetNextV2", "Data", "AnnData", "AippData", "Placeholder",
    "QueueData", "GetNextFromQueue", "QueueDequeue", "QueueDequeueMany",
})  # fmt: skip
#: Ops in a row that a walk passes through at most.
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Root:
    """Output `index` of an op: what names a tensor of a run."""

    op: Op
    index: int

    @property
    def key(self) -> tuple[int, int]:
        return id(self.op), self.index

    @property
    def name(self) -> str:
        return f"{self.op.name}:output:{self.index}"


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or output of an op as it stands in a dump: `side` is "input" or "output"."""

    op: Op
    side: str
    index: int
    #: Its place among the graph's inputs (unconnected ones counted).
    graph_index: int
    desc: TensorDesc | None
    edge: Edge | None = None

    @property
    def name(self) -> str:
        return f"{self.op.name}:{self.side}:{self.index}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Numbers in the order of the script, and where they were found: "own", "producer", "reader", "benchmark"."""

    input: Input
    source: str
    slot: Slot | None = None
    tensor: Tensor | None = None


@dataclass(slots=True)
class _Cache:
    """Decoded tensors, the least recently used forgotten first."""

    arrays: OrderedDict[object, tuple[Numbers, str]] = field(default_factory=OrderedDict)
    held: int = 0
    most: int = _KEPT_BYTES

    def get(self, key: object) -> tuple[Numbers, str] | None:
        array = self.arrays.get(key)
        if array is not None:
            self.arrays.move_to_end(key)
        return array

    def put(self, key: object, value: tuple[Numbers, str]) -> None:
        self.arrays[key] = value
        self.held += value[0].nbytes
        while self.held > self.most and len(self.arrays) > 1:
            _, (old, _) = self.arrays.popitem(last=False)
            self.held -= old.nbytes


@dataclass(slots=True)
class OpInputs:
    """The inputs of one op by slot, those that are missing with the reason, and where they are from."""

    inputs: dict[int, Input] = field(default_factory=dict)
    missing: dict[int, Message] = field(default_factory=dict)
    elsewhere: dict[int, str] = field(default_factory=dict)

    def widen(self) -> None:
        """Convert what was loaded as stored to float64."""
        self.inputs = {slot: tensor.in_doubles() for slot, tensor in self.inputs.items()}


class NoValueError(ReasonError):
    """The values of a tensor are not available."""


def _places(file: GraphFile) -> Sequence[int] | None:
    """The places of a file's ops in the order in which they run; None where they run in the file's order."""
    order = file.once(order_of)
    if isinstance(order, range):
        return None
    places = array("q", bytes(8 * len(order)))
    for place, number in enumerate(order):
        places[number] = place
    return places


class RunValues:
    """One run: its graph, its dump, the benchmark, and every tensor's copies.

    Dump files are opened, and what reads a tensor is looked up, when it is asked for. `compared` is what comparing the
    run with the benchmark showed.
    """

    def __init__(
        self,
        leaf: DumpLeaf,
        file: GraphFile,
        benchmark: BenchmarkSide,
        *,
        dumps: DumpIndex | None = None,
        compared: Compared | None = None,
    ) -> None:
        self.compared = compared or Compared()
        self.leaf, self.file, self.benchmark = leaf, file, benchmark
        self.dumps = dumps or DumpIndex(leaf)
        self.origins = file.once(Origins)
        self.ops = in_order(file)
        self._places = file.once(_places)
        self._op_dumps = OpDumps(self.dumps, file)
        self._dumped: dict[int, DumpedOp | None] = {}
        self._cache = _Cache()
        self._opened = OpenTensors(_BUDGET)
        self._is_reading = False
        #: Checksums of the bytes of tensors that were read and have copies, as they lie.
        self.checksums: dict[tuple[str, str, int], int] = {}
        self._consumers = file.once(Consumers)
        #: The tensor that feeds an input, by the id of the op and the input's place in the graph.
        self._sources: dict[tuple[int, int], Root | None] = {}
        #: By the tensor's key, the inputs that read it, and the ops that only pass it on.
        self._readers: dict[tuple[int, int], tuple[list[Slot], list[Op]]] = {}
        #: Whose tensor it is, by the tensor's key: of those that were asked for.
        self._slots: dict[TensorKey, Slot] = {}
        #: Of tensors whose copies differ, the copy that is taken first, by the tensor's key.
        self._true_copies: dict[tuple[int, int], Slot | None] = {}

    def number_of(self, op: Op) -> int:
        """Return the place of an op in `ops`, in which the ops are in the order in which they run."""
        number = self.file.number_of(op)
        return number if self._places is None else self._places[number]

    def index_of(self, op: Op) -> int:
        """Return the number of an op in lists, results and `ni '[17]'`; ops of the same originals share it."""
        return groups_of(self.file).index_of(op)

    # --- the graph ---

    def root_of(self, op: Op, edge: Edge) -> Root | None:
        """Return the tensor that an edge into `op` carries, through passing ops and borders of subgraphs."""
        reader = op
        for _ in range(_MAX_STEPS):
            producer = self.origins.producer(reader, edge)
            if producer is None:
                return None
            source = self._source(producer, edge.index)
            if source is None:
                return Root(producer, edge.index)
            reader, edge = source
        return None

    def _source(self, op: Op, index: int) -> tuple[Op, Edge] | None:
        """Return the op and its edge that feed what `op` only passes on."""
        if op.type in PASSING and index == 0 and self.dumped(op) is None:
            edge = next((edge for edge in op.inputs if edge is not None), None)
            return (op, edge) if edge is not None else None
        return self.origins.calls.passed_on_from(op, index)

    def source(self, op: Op, number: int) -> Root | None:
        """Return the tensor that feeds an input of an op, by the input's place in the graph."""
        key = (id(op), number)
        if key not in self._sources:
            edge = op.inputs[number] if 0 <= number < len(op.inputs) else None
            self._sources[key] = self.root_of(op, edge) if edge is not None else None
        return self._sources[key]

    def source_of(self, slot: Slot) -> Root | None:
        """Return the tensor that feeds an input."""
        return self.source(slot.op, slot.graph_index)

    def producers(self, op: Op) -> Iterator[Root]:
        """Yield the tensors that feed an op."""
        for number in range(len(op.inputs)):
            root = self.source(op, number)
            if root is not None:
                yield root

    def readers(self, root: Root) -> Sequence[Slot]:
        """Return the inputs that read a tensor, in the order in which the ops run."""
        return self._read_by(root)[0]

    def _read_by(self, root: Root) -> tuple[list[Slot], list[Op]]:
        """Return the inputs that read a tensor, and the ops that only pass it on: the script has it as theirs too."""
        read = self._readers.get(root.key)
        if read is None:
            ops = sorted(self._reading(root).values(), key=self.number_of)
            fed = (slot for op in ops for slot in self.input_slots(op))
            slots = [slot for slot in fed if self._is_fed(slot.op, slot.graph_index, root)]
            passing = [op for op in ops if self._is_passing(op) and self._is_fed(op, 0, root)]
            read = self._readers[root.key] = slots, passing
        return read

    def _is_fed(self, op: Op, number: int, root: Root) -> bool:
        source = self.source(op, number)
        return source is not None and source.key == root.key

    def _is_passing(self, op: Op) -> bool:
        return op.type in PASSING and self.dumped(op) is None

    def _reading(self, root: Root) -> dict[int, Op]:
        """Return the ops that may read a tensor, behind all that only pass it on."""
        ops: dict[int, Op] = {}
        waiting: list[tuple[Op, int | None]] = [(root.op, root.index)]
        visited: set[tuple[int, int | None]] = set()
        while waiting:
            op, index = waiting.pop()
            if (id(op), index) in visited:
                continue
            visited.add((id(op), index))
            for _, slot, reader in self._consumers.of(self.file.graph_number(op), op.name, index):
                ops[id(reader)] = reader
                waiting += self.origins.calls.passed_on_to(reader, slot)
                if self._is_passing(reader):
                    waiting.append((reader, 0))
        return ops

    def parameter_of(self, root: Root) -> Op | None:
        """Return the variable or constant that a tensor is, also behind casts and conversions of its layout."""
        op, index = root.op, root.index
        for _ in range(_MAX_STEPS):
            if op.type in PARAMETER_TYPES:
                return op
            if op.type not in ("Cast", "TransData", "Identity", "ReadVariableOp") or index:
                return None
            source = self.source(op, 0)
            if source is None:
                return None
            op, index = source.op, source.index
        return None

    def parameter_is_updated(self, root: Root) -> bool:
        """Return whether a tensor is a variable's memory, which ops of the run write to."""
        return bool(updated_inputs(root.op.type)) and bool(root.op.inputs)

    # --- dumps ---

    def dumped(self, op: Op) -> DumpedOp | None:
        """Return the op's dump; None if it has none."""
        if id(op) not in self._dumped:
            self._dumped[id(op)] = self._op_dumps.find(op)
        return self._dumped[id(op)]

    def gather(self, op: Op) -> None:
        """Say that an op and those behind it are recomputed next: a store where reads take long reads more at once."""
        store = store_of(self.leaf.path)
        if not store.gathers:
            return
        dumps = filter(None, map(self.dumped, self.ops[self.number_of(op) :]))
        tensors = (tensor for dump in dumps for tensor in (*dump.inputs.values(), *dump.outputs.values()))
        store.gather(
            (tensor.path, tensor.offset, tensor.nbytes)
            for tensor in tensors
            if isinstance(tensor, Tensor) and tensor.access is Access.BYTES
        )

    def named(self, names: Collection[str]) -> list[Op]:
        """Return the ops of these names, in the order in which they run."""
        column = self.file.column("name")
        return [self.file.ops[number] for number in self.file.once(order_of) if column[number] in names]

    def is_shown(self, op: Op) -> bool:
        """Return whether a dump has an output of an op: its own, or that of an op that reads it."""
        return id(op) in self._shown

    @cached_property
    def _shown(self) -> frozenset[int]:
        fed = (root for op in self.dumped_ops for root in self.producers(op))
        return frozenset((*map(id, self.dumped_ops), *(id(root.op) for root in fed)))

    @cached_property
    def dumped_ops(self) -> Sequence[Op]:
        """The ops that have a dump, in the order in which they run."""
        names = self.file.column("name")
        named = (number for number in self.file.once(order_of) if flatten(names[number]) in self.dumps)
        return [op for op in map(self.file.ops.__getitem__, named) if self._op_dumps.has(op)]

    def take_for_true(self, root: Root, copy: Slot | None) -> None:
        """Treat this copy as the true one of a tensor from now on (None: no copy)."""
        self._true_copies[root.key] = copy

    def input_slots(self, op: Op) -> list[Slot]:
        """Return the connected inputs of an op by their slots in its dump (in the graph, if it has none)."""
        dump = self.dumped(op)
        count = max(dump.inputs, default=-1) + 1 if dump is not None and dump.inputs else len(op.inputs)
        slots = []
        numbers = {id(edge): number for number, edge in enumerate(op.inputs) if edge is not None}
        for index, (edge, desc) in enumerate(input_places(op, count)):
            if edge is not None:
                slots.append(Slot(op, "input", index, numbers[id(edge)], desc, edge))
        return slots

    def output_slot(self, root: Root) -> Slot:
        """Return the output as a slot of its op."""
        return Slot(root.op, "output", root.index, root.index, root.op.output_desc(root.index))

    def tensor_at(self, slot: Slot) -> AnyTensor | Missing | None:
        """Return the tensor of a slot as its own dump file has it."""
        dump = self.dumped(slot.op)
        if dump is None or (dump.merged and slot.side == "input"):  # which holds what one slice of it was fed
            return None
        tensor = (dump.inputs if slot.side == "input" else dump.outputs).get(slot.index)
        if isinstance(tensor, Tensor):
            self._slots[key_of(tensor)] = slot
        return tensor

    def copies(self, root: Root) -> Iterator[tuple[Slot, Tensor]]:
        """Yield the copies of a tensor: the true one first, its op's output, then the inputs of its readers."""
        slots = [self.output_slot(root), *self.readers(root)]
        true = self._true_copies.get(root.key)
        if true is not None:
            slots.sort(key=lambda slot: slot != true)
        for slot in slots:
            tensor = self.tensor_at(slot)
            if isinstance(tensor, Tensor) and tensor.size:
                yield slot, tensor

    # --- numbers ---

    def load(self, tensor: Tensor, desc: TensorDesc | None, *, stored: bool = False, rows: Rows | None = None) -> Input:
        """Return the numbers of a tensor in the order of the script. NoValueError says why not.

        `stored`: floating types up to float32 in float32, which holds them as they are, instead of in float64.
        `rows`: only these of a tensor that has as many, all of any other.
        """
        if rows is not None and rows.is_flat:
            named, shape = (desc.origin_layout, desc.origin_shape) if desc is not None else (None, None)
            return Input(array=self._read(tensor, named, shape, stored, rows)[0], dtype=tensor.dtype)
        named = desc.origin_layout if desc is not None else None
        shape = desc.origin_shape if desc is not None else None
        array, layout = self._read(tensor, named, shape, stored, rows)
        if rows is not None and shape is not None and rows.are_in(shape) and array.shape[:1] == (rows.chosen,):
            shape = rows.shape_of(shape)
        if shape is not None and prod(shape) == array.size and min(shape, default=0) >= 0:
            array = array.reshape(shape)
        array = array if rows is None else rows.of(array)
        if layout in ("", "ND") and named and len(named) == array.ndim:
            layout = named
        if len(layout) != array.ndim:
            layout = "ND"
        return Input(array=array, dtype=tensor.dtype, layout=layout)

    @contextmanager
    def sharing(self, workers: int) -> Iterator[None]:
        """Divide the cache between so many processes, each with a copy of this."""
        self._cache = _Cache(most=_KEPT_BYTES // workers)
        try:
            yield
        finally:
            self._cache = _Cache()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Open the file of an op once while it is recomputed; read each tensor once and cache its checksum."""
        self._is_reading = True
        try:
            with self._opened:
                yield
        finally:
            self._is_reading = False

    def _opens(self, tensor: Tensor) -> StoredFile:
        if not self._is_reading:
            return open_bytes(tensor)
        self._opened.keep(tensor)
        stored = self._opened.stored(tensor)
        if stored is not None and self._has_unlike_copy(tensor):
            self.checksums[key_of(tensor)] = crc32(stored.data)
        return self._opened.open(tensor)

    def _has_unlike_copy(self, tensor: Tensor) -> bool:
        """Return whether there is a copy of a tensor that the comparison does not show to be the same."""
        slot = self._slots.get(key_of(tensor))
        if slot is None:
            return False
        if slot.side == "input":
            root = self.source_of(slot)
            return root is not None and not self.compared_alike(root, slot)
        root = Root(slot.op, slot.index)
        return any(not self.compared_alike(root, reader) for reader in self.readers(root))

    def compared_alike(self, root: Root, slot: Slot) -> bool:
        """Return whether what an op put out and what was read of it are the same in every figure of the comparison.

        Both were held against one tensor of the benchmark: sums over all elements, the largest error and its place.
        """
        read = slot.op.name, f"input:{slot.index}"
        return self.compared.is_same((root.op.name, f"output:{root.index}"), read)

    def is_the_benchmarks(self, root: Root) -> bool:
        """Return whether the comparison showed that a copy of a tensor is the benchmark's, every element of it."""
        distances = self.compared.distances
        if distances.get((root.op.name, f"output:{root.index}")) == 0.0:
            return True
        return any(distances.get((slot.op.name, f"input:{slot.index}")) == 0.0 for slot in self.readers(root))

    def _opens_parts(self, tensor: Tensor) -> StoredFile:
        """Return the same for a tensor of which only some rows are read."""
        return self._opened.open(tensor) if self._is_reading else open_bytes(tensor)

    def _read(
        self,
        tensor: Tensor,
        named: str | None,
        shape: tuple[int, ...] | None,
        stored: bool = False,
        rows: Rows | None = None,
    ) -> tuple[Numbers, str]:
        key = (tensor.path, tensor.dataset, tensor.offset, tensor.dtype, named, shape, rows)
        cached = self._cache.get((key, stored))
        if cached is None:
            narrow = self._cache.get((key, True))
            if narrow is not None:
                cached = (in_doubles(narrow[0]), narrow[1])
            else:
                opens = self._opens if rows is None else self._opens_parts
                cached = read_values(tensor, named, shape, stored=stored, opens=opens, rows=rows)
            cached[0].flags.writeable = False
            self._cache.put((key, stored), cached)
        return cached

    def load_root(self, root: Root, *, but: Slot | None = None, stored: bool = False) -> Loaded | None:
        """Return a tensor from its op's dump, or from a reader's (not `but`); None where the dump does not have it."""
        for slot, tensor in self.copies(root):
            if but is not None and slot.op is but.op and slot.side == but.side and slot.index == but.index:
                continue
            try:
                loaded = self.load(tensor, slot.desc, stored=stored)
            except NoValueError:
                continue
            return Loaded(loaded, "producer" if slot.side == "output" else "reader", slot, tensor)
        return self._empty(root)

    def _empty(self, root: Root) -> Loaded | None:
        """Return a tensor that an op put out without any elements; None for any other."""
        slot = self.output_slot(root)
        tensor = self.tensor_at(slot)
        if not isinstance(tensor, Tensor) or 0 not in tensor.shape or tensor.layout not in ("", "ND"):
            return None
        return Loaded(Input(array=np.zeros(tensor.shape), dtype=tensor.dtype), "producer", slot, tensor)

    def load_benchmark(self, root: Root, rows: Rows | None = None) -> Loaded | None:
        """Return a tensor as the benchmark has it, in float64 and the benchmark's type; None if it has not.

        `rows`: only these of a tensor that has as many.
        """
        golden = self._golden(root, rows)
        if golden is None and root.op.type in PARAMETER_TYPES:  # a resource has no numbers, what reads it has
            reads = (self._golden(Root(op, 0)) for op in self._read_by(root)[1])
            golden = next((loaded for loaded in reads if loaded is not None), None)
        return golden or self._declared(root, rows)

    def _declared(self, root: Root, rows: Rows | None) -> Loaded | None:
        """Return a constant of TensorFlow's graph as that has it; None for any other op."""
        value = root.op.attrs.get("value") if root.op.type in CONSTANT_TYPES and not root.index else None
        if not isinstance(value, np.ndarray):
            return None
        array = value.astype(np.float64) if value.dtype.kind == "f" else value
        dtype = str(root.op.attrs.get("dtype") or value.dtype.name)
        return Loaded(Input(array=array if rows is None else rows.of(array), dtype=dtype), "benchmark")

    def load_benchmark_input(self, slot: Slot, rows: Rows | None = None) -> Loaded | None:
        """Return an input as the benchmark has it: of a recorded call its own, else what put it out."""
        name = slot.op.recorded_input(slot.index)
        golden = self.benchmark.output_of(name, 0) if name else None
        if isinstance(golden, Tensor):
            with suppress(NoValueError):
                array, _ = self._read(golden, "ND", None, rows=rows)
                return Loaded(Input(array=array, dtype=golden.dtype, layout="ND"), "benchmark", None, golden)
        root = self.source_of(slot)
        return None if root is None else self.load_benchmark(root, rows)

    def _golden(self, root: Root, rows: Rows | None = None) -> Loaded | None:
        origin = self.origins.of(root.op, root.index, self.benchmark)
        if isinstance(origin, NoOrigin):
            return None
        golden = self.benchmark.output_of(origin.op_name, origin.index)
        if not isinstance(golden, Tensor):
            return None
        try:
            array, layout = self._read(golden, origin.layout, origin.shape, rows=rows)
        except NoValueError:
            return None
        layout = origin.layout if origin.layout and len(origin.layout) == array.ndim else layout
        return Loaded(Input(array=array, dtype=golden.dtype, layout=layout or "ND"), "benchmark", None, golden)


def read_values(
    tensor: Tensor,
    named: str | None,
    shape: tuple[int, ...] | None,
    *,
    stored: bool = False,
    opens: Opens = open_bytes,
    rows: Rows | None = None,
) -> tuple[Numbers, str]:
    """Return a tensor as float64, complex128, integers or bools in logical order, and its layout.

    `stored`: what float32 holds as it is, in float32. `rows`: only these of a tensor that has as many. NoValueError for
    what has no numbers, is too large, damaged, or in an order that nothing tells.
    """
    data_type = data_types.BY_NAME.get(tensor.dtype)
    if data_type is None or not data_type.is_numeric:
        raise NoValueError("no_numbers", dtype=tensor.dtype)
    if tensor.size > MAX_ELEMENTS:
        raise NoValueError("too_many_elements", number=tensor.size)
    reading = _reading(tensor, named, shape)
    order = reading.shape
    array: Numbers
    try:
        with open_reader(tensor, reading.plan, opens=opens) as reader:
            kind = _kind(data_type, is_narrow=stored and reader.dtype == np.float32)
            if rows is not None and not data_type.is_complex and rows.are_in(reader.logical_shape):
                array = reader.rows(rows.pieces, rows.count, kind)
                order = (-1,) if rows.is_flat else rows.shape_of(order)
            else:
                array = reader.whole(kind)
    except PrecisionToolError as error:
        raise NoValueError("unreadable", detail=error.full_message) from error
    except MemoryError as error:
        raise NoValueError("out_of_memory") from error
    if data_type.is_complex:
        array = np.ascontiguousarray(array).view(np.complex128).reshape(-1)
    elif data_type.name == "bool":
        array = np.asarray(array != 0)  # comparing a scalar gives no array
    if prod(order) == array.size or order == (-1,):
        array = array.reshape(order)
    return array, reading.layout


def _reading(tensor: Tensor, named: str | None, shape: tuple[int, ...] | None) -> Reading:
    """Return how a tensor's bytes are brought into the order of the script. NoValueError where nothing tells it."""
    reading = reading_of(tensor, named, shape)
    declared = tensor.origin_shape if tensor.origin_shape is not None else shape
    if not reading.layout and tensor.layout == "NC1HWC0" and declared is not None and len(declared) == 1:
        # One number a channel: GE stores it as an image of one pixel.
        as_image = replace(tensor, origin_shape=(1, 1, 1, declared[0]))
        reading = replace(reading_of(as_image, "NHWC", as_image.origin_shape), shape=declared)
    if not reading.layout:
        raise NoValueError("unreadable", detail=reading.note) if reading.note else NoValueError("axes_unknown")
    return reading


def _kind(data_type: DataType, is_narrow: bool) -> Any:
    """Return numpy's type for values of a stored type; `is_narrow`: those that float32 holds are wanted as they are."""
    if data_type.is_integer:
        return np.dtype(data_type.numpy_name if data_type.bits >= 8 else "int8")
    return np.float32 if is_narrow and not data_type.is_complex and data_type.name != "bool" else np.float64


def missing_reason(tensor: AnyTensor | Missing | None, slot: int) -> Message:
    """Return why an input has no numbers."""
    if isinstance(tensor, Missing):
        return Message("reason.input_unreadable", slot=slot, detail=tensor.reason)
    if isinstance(tensor, TensorStatistics):
        return Message("reason.input_statistics", slot=slot)
    return Message("reason.input_not_dumped", slot=slot)
