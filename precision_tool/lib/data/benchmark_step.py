"""The benchmark's step by itself, before there is an NPU run: its ops, how they hang together, and their tensors.

Of TensorFlow the graph was saved beside the tensors when they were dumped (`tf/graph/*.pb`), or with the checkpoint of
the step (`tf/checkpoints/ckpt.meta`); a dump of msprobe tells it itself.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import BenchmarkSide, GoldenFiles, Missing, NoBenchmark, alike
from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.msprobe_ops import read_msprobe_graph
from precision_tool.lib.data.sides import benchmark_folder, find_golden, find_run
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io.files import is_folder, list_folder
from precision_tool.lib.io.tf_graph import Attrs, described, load_tf_graph, tensor_desc
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, NoBenchmarkError, PrecisionToolError
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.model.run import BenchmarkFile, DumpFile, DumpLeaf, DumpName, Run
from precision_tool.lib.model.tensor import AnyTensor
from precision_tool.lib.ops import op_table as table
from precision_tool.lib.ops.optimizers import updated_inputs

#: How graph files of TensorFlow end.
_SUFFIXES = (".pb", ".pbtxt", ".meta")
#: Folders beside the tensors in which graphs lie, the best first.
_BESIDE = ("graph", "checkpoints", "")
#: What a network has learned or was built with.
_CONSTANTS = frozenset({"Const", "HostConst"})
_VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
#: What stands for something of another graph.
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
_READ, _HANDLE = "ReadVariableOp", "VarHandleOp"
#: The name that TensorFlow gives to the constant that it computed instead of an op, as names of files have it.
_FOLDED = re.compile(r"(?P<op>.+)__[0-9]{1,9}__cf__(?P<number>[0-9]{1,9})", re.DOTALL)
#: The name that a session gives to what is fed in the place of an output.
_FED = re.compile(r"_arg_(?P<op>.+)_(?P<slot>[0-9]{1,6})_[0-9]{1,9}", re.DOTALL)
#: Ops that put out what they are fed, in another shape at most. Runs have no dump of them, and look through them.
_PASSES_ON = frozenset({"Reshape", "ExpandDims", "Squeeze", "Identity", "StopGradient", "ReadVariableOp"})
#: Ops that put out the input that comes: that of the branch that ran, or of a loop.
_JOINS = frozenset({"Merge", "RefMerge"})
#: What initialises a variable, if it is given nothing that the step computes.
_ASSIGNS = frozenset({"Assign", "AssignVariableOp"})


@dataclass(frozen=True, kw_only=True)
class BenchmarkStep:
    """One step of the benchmark.

    `leaf` has the tensors as those of a run, so that `RunValues(leaf, file, side)` loads inputs and outputs by op;
    `side` has the same tensors by the names of the script (of msprobe: none).
    """

    file: GraphFile
    leaf: DumpLeaf
    side: BenchmarkSide = field(repr=False)
    notes: tuple[Message, ...] = ()


def benchmark_step(
    space: Workspace,
    golden: str | None = None,
    graph: str | None = None,
    *,
    golden_at: Callable[[str], GoldenFiles | Run] = find_golden,
) -> BenchmarkStep:
    """Return the step that the benchmark of a data folder holds, with its graph.

    Parameters
    ----------
    space : Workspace
        The paths of the data folder.
    golden : str, optional
        The benchmark's tensors: a folder of `.npy` files, runs of tfdbg, or a dump of msprobe; by default the data
        folder's.
    graph : str, optional
        A TensorFlow graph, or a folder of them; by default the one that was saved with the tensors. A dump of msprobe
        has its own.
    golden_at : callable, optional
        Returns the data below a folder; callers with a cache pass its lookup.

    Raises
    ------
    DataNotFoundError
        There is no benchmark, no graph of it, or only graphs of other networks.
    FormatError
        The graph is damaged.
    """
    folder = golden or _usual_folder(space)
    if MSPROBE.lies_at(folder):
        return _of_msprobe(folder)
    side = golden_at(folder)
    if not isinstance(side, GoldenFiles):
        raise DataNotFoundError.of(folder, "data.no_benchmark_below")
    file = _graph_of(side, [graph] if graph is not None else list(_graph_folders(space, folder)), graph is not None)
    return _Step(file, side).build()


def _usual_folder(space: Workspace) -> str:
    folder = benchmark_folder(space)
    if folder is None and space.is_dump:
        folder = space.root
    if folder is None:
        raise NoBenchmarkError("data.no_benchmark_step", folder=space.tf_dump_dir)
    return str(folder)


def _of_msprobe(folder: str) -> BenchmarkStep:
    """The first rank and step of a dump of msprobe: its ops' own tensors are the benchmark."""
    run = find_run(folder)
    leaf = run.leaves[0]
    notes = run.notes
    if len(run.leaves) > 1:
        notes = (*notes, Message("note.data.first_leaf", path=leaf.path, count=len(run.leaves)))
    file = read_msprobe_graph(leaf.graph)
    return BenchmarkStep(file=file, leaf=leaf, side=NoBenchmark(), notes=(*notes, *file.notes))


# --- the graph of the tensors ---


def _graph_folders(space: Workspace, golden: str) -> Iterator[str]:
    """Yield where the graph of a benchmark may lie, the best places first."""
    yield str(space.tf_graph_dir)
    above = golden.rstrip("/")
    for _ in range(2):
        above = posixpath.dirname(above) or "."
        yield from (posixpath.join(above, name) if name else above for name in _BESIDE)
    yield golden
    yield str(space.tf_checkpoint_dir)


def _graph_files(place: str) -> list[str]:
    if not is_folder(place):
        return []
    return [posixpath.join(place, name) for name in sorted(list_folder(place)) if name.endswith(_SUFFIXES)]


def _graph_of(side: GoldenFiles, places: list[str], is_named: bool) -> GraphFile:
    """Return the graph that has most of the benchmark's ops; of several that do the one of the best place."""
    dumped = {file.op_name for file in side.files}
    best: tuple[int, GraphFile] | None = None
    errors: list[PrecisionToolError] = []
    read: set[str] = set()
    for place in places:
        for path in [place] if is_named and not is_folder(place) else _graph_files(place):
            if path in read:
                continue
            read.add(path)
            try:
                file = load_tf_graph(path)
            except PrecisionToolError as error:
                errors.append(error)
                continue
            count = len(dumped & {flatten(op.name) for op in file.ops})
            if best is None or count > best[0]:
                best = count, file
        if best is not None and best[0] == len(dumped):
            break
    if best is not None and best[0]:
        return best[1]
    if errors:
        raise errors[0]
    if best is not None:
        raise DataNotFoundError.of(best[1].path, "data.other_tf_graph", dump=side.root)
    raise DataNotFoundError("data.no_tf_graph", folder=places[0], dump=side.root)


# --- its ops and their tensors ---


class _Step:
    """The ops of a graph that the benchmark ran, with what it has of them."""

    def __init__(self, file: GraphFile, side: GoldenFiles) -> None:
        self._side = side
        self._file = file
        self._graph = self._with_most_ops(file.graphs)
        self._ops = self._graph.ops
        slots: dict[str, set[int]] = {}
        for golden in side.files:
            slots.setdefault(golden.op_name, set()).add(golden.index)
        folded: dict[str, list[tuple[int, BenchmarkFile]]] = {}
        fed: dict[str, dict[int, BenchmarkFile]] = {}
        for golden in side.files:
            match = _FED.fullmatch(golden.op_name)
            if match is not None:
                fed.setdefault(match["op"], {})[int(match["slot"])] = golden
            match = _FOLDED.fullmatch(golden.op_name)
            if match is not None:
                folded.setdefault(match["op"], []).append((int(match["number"]), golden))
        #: The tensors by op and output; none of ops whose names are spelled alike in names of files.
        self._files: dict[str, dict[int, BenchmarkFile]] = {}
        ambiguous = alike(op.name for op in self._ops)
        for op in self._ops:
            listed = self._files[op.name] = {}
            for slot in slots.get(flatten(op.name), ()):
                golden_file = side.file_of(op.name, slot)
                is_its_own = op.name not in ambiguous or side.has_real_name(op.name, slot)
                if golden_file is not None and is_its_own:
                    listed[slot] = golden_file
        self._ops = tuple(map(self._as_it_ran, self._ops))
        self._by_name = {op.name: op for op in reversed(self._ops)}
        #: Ops that read a variable after it was updated by an op that does not put it out.
        self._late: set[str] = set()
        self._readers: dict[str, list[Op]] = {}
        for op in self._ops:
            for edge in _data_edges(op):
                self._readers.setdefault(edge.producer, []).append(op)
        for op in self._ops:
            flat = flatten(op.name)
            if not self._files[op.name] and op.name not in ambiguous:
                self._files[op.name] = fed.get(flat) or self._outputs_of(op, folded.get(flat, []))
        self._files |= self._merged()

    def _as_it_ran(self, op: Op) -> Op:
        """Return what joins two branches as passing on that of the branch that ran."""
        taken = [edge for edge in _data_edges(op) if edge.index in self._files.get(edge.producer, {})]
        if op.type not in _JOINS or len(taken) != 1 or len(op.inputs) == 1:
            return op
        return replace(op, type="Identity", inputs=(taken[0],))

    def _merged(self) -> dict[str, dict[int, BenchmarkFile]]:
        """Return the tensors of ops that TensorFlow merged into others, which compute the same of the same inputs."""
        same: dict[str, str] = {}
        first: dict[object, str] = {}
        files: dict[str, dict[int, BenchmarkFile]] = {}
        for op in self._ops:
            if updated_inputs(op.type) or (op.type not in _CONSTANTS and table.find(op.type) is None):
                continue
            if any(self._is_variable(edge.producer) for edge in _data_edges(op)):  # which may change between two reads
                continue
            inputs = tuple((same.get(edge.producer, edge.producer), edge.index) for edge in _data_edges(op))
            same[op.name] = first.setdefault((op.type, inputs, _attributes_of(op)), op.name)
            if self._files[op.name]:
                files.setdefault(same[op.name], self._files[op.name])
        return {
            name: files[other] for name, other in same.items() if other in files and not self._files[name]
        }  # fmt: skip

    def _outputs_of(self, op: Op, folded: list[tuple[int, BenchmarkFile]]) -> dict[int, BenchmarkFile]:
        """Return which output each constant is that TensorFlow put in the place of an op; none if that is not clear.

        It makes them for the outputs that are still read, in their order.
        """
        edges = (edge for reader in self._readers.get(op.name, ()) for edge in _data_edges(reader))
        read = sorted({edge.index for edge in edges if edge.producer == op.name})
        constants = [file for _, file in sorted(folded, key=lambda pair: pair[0])]
        return dict(zip(read, constants, strict=True)) if len(read) == len(constants) else {}

    def _with_most_ops(self, graphs: Iterable[Graph]) -> Graph:
        """Return one graph: those of a SavedModel's tags are of one network."""
        dumped = {file.op_name for file in self._side.files}
        return max(graphs, key=lambda graph: len(dumped & {flatten(op.name) for op in graph.ops}))

    def build(self) -> BenchmarkStep:
        dumped = {name for name, files in self._files.items() if files}
        setup = self._only_for_setup(dumped)
        updates = {op.name for op in self._ops if op.name not in setup and self._is_update(op, dumped)}
        kept = self._with_what_they_read(updates | dumped - setup)
        self._connect_updates(updates)
        self._files |= self._variables()
        outputs = {op.name: self._descs(op) for op in self._ops if op.name in kept}
        ops = [
            described(self._as_variable(op), outputs) for op in self._ops if op.name in kept
        ]  # fmt: skip
        graph = Graph(name=self._graph.name, ops=tuple(ops), attrs=self._graph.attrs)
        leaf = DumpLeaf(path=self._side.root, files=tuple(self._dump_files(ops)))
        file = GraphFile(path=self._file.path, graphs=(graph,), notes=self._file.notes)
        notes = (*self._side.notes, *file.notes)
        without = [op.name for op in ops if not self._files[op.name] and self._is_removed(op)]
        if without:
            notes = (*notes, Message("note.data.optimized_away", count=len(without), first=without[0]))
        return BenchmarkStep(file=file, leaf=leaf, side=self._side, notes=notes)

    @staticmethod
    def _is_removed(op: Op) -> bool:
        """Return whether an op without tensors computed something, if TensorFlow did not take it out."""
        return (
            not updated_inputs(op.type) and op.type not in _PASSES_ON | _CONSTANTS and table.find(op.type) is not None
        )

    def _dump_files(self, ops: Iterable[Op]) -> Iterator[DumpFile]:
        """Yield the tensors by op; of what is only passed on that which was put out first."""
        is_there = {(name, index) for name, files in self._files.items() for index in files}
        for op in ops:
            passed = next(_data_edges(op), None) if op.type in _PASSES_ON and op.name not in self._late else None
            if passed is not None and (passed.producer, passed.index) in is_there:
                continue
            for index, golden in sorted(self._files[op.name].items()):
                name = DumpName(op_type=op.type, op_name=flatten(op.name), task_id=0, timestamp=golden.timestamp)
                yield DumpFile(path=golden.path, name=name, output=index)

    # --- variables ---

    def _is_handle(self, op: Op) -> bool:
        """Return whether an op is the memory of a variable: of a function's graph it stands for one outside."""
        is_resource = op.type in _PLACEHOLDERS and op.attrs.get("dtype") == "resource"
        return op.type == _HANDLE or (is_resource and (bool(self._files[op.name]) or self._is_read(op)))

    def _is_variable(self, name: str) -> bool:
        op = self._by_name.get(name)
        return op is not None and op.type not in _CONSTANTS and self._is_given(op)

    def _is_read(self, op: Op) -> bool:
        return any(reader.type == _READ or updated_inputs(reader.type) for reader in self._readers.get(op.name, ()))

    def _as_variable(self, op: Op) -> Op:
        return replace(op, type=_HANDLE) if op.type in _PLACEHOLDERS and self._is_handle(op) else op

    def _connect_updates(self, updates: set[str]) -> None:
        """Make ops that read a variable after its update read what the update puts out, which is the variable then."""
        bits = {name: 1 << number for number, name in enumerate(sorted(updates))}
        #: Which updates ran before each op, by the edges of the graph.
        before: dict[str, int] = {}
        #: The updates of each variable in their order; "" where it is no output of the op.
        updated: dict[str, list[tuple[int, str]]] = {}
        ops: list[Op] = []
        for op in self._ops:
            done = 0
            for name in (*(edge.producer for edge in _data_edges(op)), *op.control_inputs):
                done |= before.get(name, 0)
            before[op.name] = done | bits.get(op.name, 0)
            inputs: list[Edge | None] = []
            for edge in op.inputs:
                last = _last(updated.get(edge.producer, ()), done) if edge is not None and not edge.index else None
                if last == "":
                    self._late.add(op.name)
                inputs.append(Edge(producer=last, index=0) if last else edge)
                if last and op.type in _PASSES_ON and self._files[op.name] and not self._files[last]:
                    self._files[last] = {0: self._files[op.name][0]}
            for edge in _data_edges(op) if op.name in updates else ():
                variable = self._by_name.get(edge.producer)
                if variable is not None and self._is_given(variable):
                    is_output = edge is op.inputs[0]
                    updated.setdefault(edge.producer, []).append((bits[op.name], op.name if is_output else ""))
            ops.append(replace(op, inputs=tuple(inputs)) if inputs != list(op.inputs) else op)
        self._ops = tuple(ops)

    def _variables(self) -> dict[str, dict[int, BenchmarkFile]]:
        """Return what variables were before the step: what reads them, before anything changes them."""
        files: dict[str, dict[int, BenchmarkFile]] = {}
        for op in self._ops:
            golden = self._files[op.name].get(0) if op.type == _READ and op.name not in self._late else None
            for edge in _data_edges(op) if golden is not None else ():
                handle = self._by_name.get(edge.producer)
                if golden is not None and handle is not None and not self._files[edge.producer]:
                    files.setdefault(edge.producer, {0: golden})
        return files

    # --- which ops ran ---

    def _with_what_they_read(self, names: set[str]) -> set[str]:
        """Return ops, and all whose outputs reach them."""
        kept: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in kept:
                kept.add(name)
                read = (edge.producer for edge in _data_edges(self._by_name[name]))
                waiting += [producer for producer in read if producer in self._by_name]
        return kept

    def _is_update(self, op: Op, dumped: set[str]) -> bool:
        """Return whether an op changed a variable in the step: it was dumped, or what it is computed of was."""
        if not updated_inputs(op.type):
            return False
        if op.name in dumped:
            return True
        producers = [self._by_name.get(edge.producer) for edge in _data_edges(op)]
        read = [each for each in producers if each is not None and not self._is_given(each)]
        return bool(read) and all(each.name in dumped for each in read)

    def _is_given(self, op: Op) -> bool:
        return op.type in _CONSTANTS or op.type in _VARIABLES or self._is_handle(op)

    def _only_for_setup(self, dumped: set[str]) -> set[str]:
        """Return the ops of an earlier run that only initialised variables, from nothing that depends on one."""
        fed: set[str] = set()
        for op in self._ops:
            is_source = op.type not in _CONSTANTS and (self._is_given(op) or op.type in _PLACEHOLDERS)
            edges = list(_data_edges(op))
            takes = edges[1:] if op.type in _ASSIGNS else edges
            if is_source or any(edge.producer in fed for edge in takes) or _is_data(op):
                fed.add(op.name)
        setup = {op.name for op in self._ops if op.type in _ASSIGNS and op.name not in fed}
        for op in reversed(self._ops):
            readers = [reader.name for reader in self._readers.get(op.name, ()) if reader.name in dumped]
            readers = readers or [reader.name for reader in self._readers.get(op.name, ())]
            if op.name not in fed and readers and setup.issuperset(readers):
                setup.add(op.name)
        return setup

    # --- shapes and types ---

    def _descs(self, op: Op) -> tuple[TensorDesc, ...]:
        """Return the descriptions of an op's outputs, of those that were dumped as they are."""
        files = self._files[op.name]
        count = max(len(op.output_descs), max(files, default=-1) + 1)
        descs = []
        for index in range(count):
            said = op.output_descs[index] if index < len(op.output_descs) else TensorDesc()
            tensor = self._tensor(files[index]) if index in files else None
            descs.append(said if tensor is None else tensor_desc(tensor.shape, tensor.dtype))
        return tuple(descs)

    def _tensor(self, golden: BenchmarkFile) -> AnyTensor | None:
        tensor = self._side.open(golden)
        return None if isinstance(tensor, Missing) else tensor


def _attributes_of(op: Op) -> frozenset[tuple[str, str]]:
    """Return an op's own attributes, which tell ops of one type apart."""
    attrs = op.attrs
    return frozenset(
        (name, attrs.digest(name) if isinstance(attrs, Attrs) else repr(attrs[name]))
        for name in attrs
        if not name.startswith("_")
    )


def _is_data(op: Op) -> bool:
    return "GetNext" in op.type or "Dequeue" in op.type


def _last(updates: Sequence[tuple[int, str]], done: int) -> str | None:
    """Return the last of a variable's updates that is done; None if none is."""
    return next((name for bit, name in reversed(updates) if bit & done), None)


def _data_edges(op: Op) -> Iterator[Edge]:
    return (edge for edge in op.inputs if edge is not None)
