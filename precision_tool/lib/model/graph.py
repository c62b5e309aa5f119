"""GE graphs: ops, their tensors as compiled, and what each op was before fusion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from threading import Lock
from typing import Any, TypeVar, overload

from precision_tool.lib.messages import Message
from precision_tool.lib.model.msprobe import RecordedOp
from precision_tool.lib.model.records import record

T = TypeVar("T")


@record(frozen=True, slots=True, kw_only=True)
class Edge:
    """Output `index` of the op `producer`."""

    producer: str
    index: int


@record(frozen=True, slots=True, kw_only=True)
class TensorDesc:
    """A tensor of an op as the compiled graph describes it.

    `dump_origin_*` name the tensor of the training script that this one must equal
    (`_datadump_origin_name`, `…_output_index`, `…_format`); None where the graph does not say.
    """

    dtype: str = ""
    layout: str = ""
    shape: tuple[int, ...] = ()
    origin_layout: str | None = None
    origin_shape: tuple[int, ...] | None = None
    dump_origin_name: str | None = None
    dump_origin_index: int | None = None
    dump_origin_layout: str | None = None


@record(frozen=True, slots=True, kw_only=True)
class Op:
    """A node of a graph.

    `inputs` keeps data edges only, by slot; None marks a slot that is not connected.
    `original_names` is None when the graph does not say, `()` when it says that no original op exists
    (`Cast` and `TransData` that the compiler put in).
    """

    name: str
    type: str
    id: int | None = None
    inputs: tuple[Edge | None, ...] = ()
    control_inputs: tuple[str, ...] = ()
    input_descs: tuple[TensorDesc, ...] = ()
    output_descs: tuple[TensorDesc, ...] = ()
    pass_names: tuple[str, ...] = ()
    original_names: tuple[str, ...] | None = None
    stream_id: int | None = None
    kernel_name: str = ""
    kernel_lib: str = ""
    l1_fusion_group: str | None = None
    is_multiop: bool = False
    parent_index: int | None = None
    subgraph_names: tuple[str, ...] = ()
    #: Every attribute, decoded when asked for.
    attrs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    #: The call that msprobe recorded; None for an op of a compiler's graph.
    recorded: RecordedOp | None = field(default=None, repr=False, compare=False)

    @property
    def pass_name(self) -> str:
        """The first of the passes that made the op, empty for none."""
        return self.pass_names[0] if self.pass_names else ""

    @property
    def is_recorded(self) -> bool:
        """Whether it is a call that msprobe recorded."""
        return self.recorded is not None

    def recorded_input(self, slot: int) -> str:
        """The name that a benchmark has of an input of a recorded call, whatever put it out; "" for other ops."""
        recorded = self.recorded
        return recorded.tensor_name(slot) if recorded is not None and slot < len(recorded.input_slots) else ""

    @property
    def module(self) -> str:
        """The module that made a recorded call, with its class: `blocks.1.act (GELU)`; "" where nothing says."""
        return str(self.attrs.get("module", "")) if self.is_recorded else ""

    @property
    def source(self) -> str:
        """The line of the script that made a recorded call: `train.py:85 in forward`; "" where nothing says."""
        return str(self.attrs.get("source", "")) if self.is_recorded else ""

    def output_desc(self, index: int = 0) -> TensorDesc | None:
        """Return the description of an output; None where the graph has none."""
        return self.output_descs[index] if index < len(self.output_descs) else None


class OpTable(ABC):
    """The ops of a file as columns: each op is made when it is first asked for, and kept."""

    def __init__(self, count: int) -> None:
        self._ops: list[Op | None] = [None] * count
        self._numbers: dict[int, int] = {}
        self._lock = Lock()

    @abstractmethod
    def make(self, number: int) -> Op:
        """Make the op of a number."""

    @abstractmethod
    def column(self, name: str) -> Sequence[Any]:
        """Return a field of all ops, without making them where that can be done."""

    def __len__(self) -> int:
        return len(self._ops)

    def prepare(self) -> None:  # noqa: B027  # a table need not
        """Get ready to make all ops, so that each takes less."""

    def op(self, number: int) -> Op:
        """Return the op of a number."""
        op = self._ops[number]
        if op is None:
            with self._lock:  # threads share the file, and an op must be one object
                op = self._ops[number]
                if op is None:
                    op = self._ops[number] = self.make(number)
                    self._numbers[id(op)] = number
        return op

    def glance(self, number: int) -> Op:
        """Return the op of a number, which is not kept: two of them are two objects."""
        return self._ops[number] or self.make(number)

    def number_of(self, op: Op) -> int:
        """Return the number of an op that was made here. KeyError for any other."""
        return self._numbers[id(op)]


class LazyOps(Sequence[Op]):
    """Some ops of a table, one behind the other."""

    __slots__ = ("numbers", "table")

    def __init__(self, table: OpTable, numbers: range) -> None:
        self.table = table
        self.numbers = numbers

    @overload
    def __getitem__(self, key: int) -> Op: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Op]: ...
    def __getitem__(self, key: int | slice) -> Op | Sequence[Op]:
        if isinstance(key, slice):
            return LazyOps(self.table, self.numbers[key])
        return self.table.op(self.numbers[key])

    def __iter__(self) -> Iterator[Op]:
        if len(self.numbers) > len(self.table) // 2:
            self.table.prepare()
        return map(self.table.op, self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type[tuple[Op, ...]], tuple[tuple[Op, ...]]]:
        return tuple, (tuple(self),)

    def number_of(self, op: Op) -> int:
        """Return the place of one of these ops among them. KeyError for any other."""
        number = self.table.number_of(op)
        if number not in self.numbers:
            raise KeyError(op.name)
        return self.numbers.index(number)

    def column(self, name: str) -> Sequence[Any]:
        """Return a field of the ops."""
        column = self.table.column(name)
        if self.numbers == range(len(column)):
            return column
        return [column[number] for number in self.numbers]


class OpsByName(Mapping[str, T]):
    """Ops, or what is said of them, by the names of the ops; each is made when it is asked for."""

    def __init__(self, ops: Sequence[T], numbers: Mapping[str, int]) -> None:
        self._ops = ops
        self._numbers = numbers

    def __getitem__(self, name: str) -> T:
        return self._ops[self._numbers[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One graph of a file; subgraphs are graphs of their own that ops name in `subgraph_names`."""

    name: str
    ops: Sequence[Op] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.ops)} ops>"

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The places of the ops by their names; of two with one name the first."""
        numbers: dict[str, int] = {}
        for number, name in enumerate(self.column("name")):
            numbers.setdefault(name, number)
        return numbers

    @cached_property
    def by_name(self) -> Mapping[str, Op]:
        """Ops by name; of two with one name the first."""
        return OpsByName(self.ops, self.numbers)

    def column(self, name: str) -> Sequence[Any]:
        """Return a field of all ops, in their order: `name`, `type`, `inputs`, …"""
        ops = self.ops
        return ops.column(name) if isinstance(ops, LazyOps) else [getattr(op, name) for op in ops]


@dataclass(frozen=True, kw_only=True)
class GraphFile:
    """All graphs of one file, the root graph first. `notes` are things the user should know of the file."""

    path: str
    graphs: tuple[Graph, ...] = ()
    notes: tuple[Message, ...] = ()

    @cached_property
    def framework(self) -> str:
        """The framework whose calls msprobe recorded, "pytorch" or "mindspore"; "" of a graph that GE compiled."""
        graph = next(iter(self.graphs), None)
        if graph is None or not any(graph.column("is_recorded")):
            return ""
        return str(graph.attrs.get("framework") or "pytorch")

    @cached_property
    def ops(self) -> Sequence[Op]:
        """The ops of all graphs, in file order."""
        parts = [graph.ops for graph in self.graphs]
        if len(parts) == 1:
            return parts[0]
        table = parts[0].table if parts and isinstance(parts[0], LazyOps) else None
        places = map(range, self.starts, self.starts[1:])
        if table is not None and all(
            isinstance(part, LazyOps) and part.table is table and part.numbers == numbers
            for part, numbers in zip(parts, places, strict=True)
        ):
            return LazyOps(table, range(self.starts[-1]))
        return tuple(chain.from_iterable(parts))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number in `ops` at which each graph starts, and how many ops there are."""
        return tuple(accumulate((len(graph.ops) for graph in self.graphs), initial=0))

    def glance(self, number: int) -> Op:
        """Return the op of a number, to be looked at and forgotten: of a table it is not kept."""
        ops = self.ops
        return ops.table.glance(ops.numbers[number]) if isinstance(ops, LazyOps) else ops[number]

    def number_of(self, op: Op) -> int:
        """Return the number in `ops` of an op of this file. KeyError for any other."""
        ops = self.ops
        return ops.number_of(op) if isinstance(ops, LazyOps) else self._numbers[id(op)]

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(op): number for number, op in enumerate(self.ops)}

    def graph_of(self, op: Op) -> Graph:
        """Return the graph that an op of this file is in. KeyError for any other."""
        return self.graph_at(self.number_of(op))

    def graph_at(self, number: int) -> Graph:
        """Return the graph that the op of a number in `ops` is in."""
        return self.graphs[bisect_right(self.starts, number) - 1]

    def graph_number(self, op: Op) -> int:
        """Return the number of the graph that an op of this file is in. KeyError for any other."""
        return bisect_right(self.starts, self.number_of(op)) - 1

    def column(self, name: str) -> Sequence[Any]:
        """Return a field of the ops of all graphs, in file order."""
        if len(self.graphs) == 1:
            return self.graphs[0].column(name)
        return list(chain.from_iterable(graph.column(name) for graph in self.graphs))

    def op(self, name: str) -> Op | None:
        """Return the first op of a name, None for none."""
        return next((graph.by_name[name] for graph in self.graphs if name in graph.by_name), None)

    def once(self, function: Callable[[GraphFile], T]) -> T:
        """Return what a function makes of the file; it is called once as long as the file is in memory."""
        results = self._results
        if function not in results:
            results[function] = function(self)
        result: T = results[function]
        return result

    @cached_property
    def _results(self) -> dict[Callable[[GraphFile], Any], Any]:
        return {}

    def __reduce__(self) -> tuple[Callable[..., GraphFile], tuple[str, tuple[Graph, ...], tuple[Message, ...]]]:
        return _graph_file, (self.path, self.graphs, self.notes)


def _graph_file(path: str, graphs: tuple[Graph, ...], notes: tuple[Message, ...]) -> GraphFile:
    """Make a graph file of its pickled parts, without what was derived of it."""
    return GraphFile(path=path, graphs=graphs, notes=notes)
