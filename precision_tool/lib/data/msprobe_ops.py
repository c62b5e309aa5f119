"""msprobe's dumps as ops: an entry of `dump.json` is an op, its tensors lie beside it, and equal tensors connect ops.

An op is named and typed after its entry: `Functional.gelu.1.forward` is a `Functional.gelu`. Its inputs are the tensors
among its arguments in their order. The op of a backward reads the gradients, and then the inputs and outputs of its
forward, which its formula needs. A module whose calls were recorded is no op: these have it as an attribute, and its
parameters are `Variable` ops. Other tensors that no call put out are `Data` ops where data come in, and `Unrecorded`
ops elsewhere: functions that a script imported itself are not recorded.

Nothing in a dump says which output is which input. Equal shape, type and checksum, or figures, within the order of
calls do; the latest output counts.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterator, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any, overload

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dump_tree import Stamps
from precision_tool.lib.data.msprobe_tree import (
    CONSTRUCT_FILE,
    STACK_FILE,
    TENSOR_FOLDER,
    MsprobeLeaf,
    find_msprobe,
    modules_beside,
)
from precision_tool.lib.io.files import exists, is_folder
from precision_tool.lib.io.msprobe_dump import (
    data_type_of,
    read_calls,
    read_construct,
    read_dump_index,
    read_entries,
    read_stacks,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.model.msprobe import (
    CallName,
    CallStacks,
    Direction,
    ModuleTree,
    Number,
    RecordedCall,
    RecordedOp,
    RecordedTensor,
    UnreadCall,
    parse_call_name,
)
from precision_tool.lib.model.run import Benchmark, BenchmarkFile, DumpFile, DumpLeaf, DumpName, Entry, Run
from precision_tool.lib.model.tensor import AnyTensor, OpDump, TensorStatistics

#: Types of the ops that stand for tensors which no call put out.
DATA, VARIABLE, UNRECORDED = "Data", "Variable", "Unrecorded"
#: The kind of the note on a `dump.json` that ends before its entries do.
CUT_OFF = "row.io.msprobe.ends"
#: The name of each graph that is made of a dump: ops of all ranks and steps are those of one network.
GRAPH_NAME = "msprobe"
#: Functions whose arguments behind the first are parameters, where these require gradients.
WITH_PARAMETERS = frozenset({
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "layer_norm",
    "batch_norm", "group_norm", "instance_norm", "rms_norm", "npu_rms_norm", "embedding", "bilinear", "prelu",
})  # fmt: skip
_FORWARD, _BACKWARD = f".{Direction.FORWARD}", f".{Direction.BACKWARD}"


# --- entries as dump files --------------------------------------------------------------------------------------------


class EntryFiles(Sequence[DumpFile]):
    """The entries of a `dump.json` as the dump files of a leaf; the file is read when they are asked for."""

    def __init__(self, path: str) -> None:
        self._path = path

    @cached_property
    def _files(self) -> tuple[DumpFile, ...]:
        index = read_dump_index(self._path)
        places = {
            name: Entry(name=name, start=start, end=end)
            for name, start, end in zip(index.names, index.starts, index.ends, strict=True)
        }
        containers = modules_beside(self._path).children
        files = []
        for number, (name, place) in enumerate(places.items()):
            call = parse_call_name(name)
            if call is None or _is_container(name, call, containers):
                continue
            forward = places.get(call.entry(Direction.FORWARD)) if call.direction is Direction.BACKWARD else None
            dump_name = DumpName(op_type=type_of(call), op_name=flatten(name), task_id=number, timestamp=number)
            entries = (place,) if forward is None else (place, forward)
            files.append(DumpFile(path=self._path, name=dump_name, entries=entries))
        return tuple(files)

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, place: int) -> DumpFile: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[DumpFile]: ...
    def __getitem__(self, place: int | slice) -> DumpFile | Sequence[DumpFile]:
        return self._files[place]

    def __iter__(self) -> Iterator[DumpFile]:
        return iter(self._files)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntryFiles) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __reduce__(self) -> tuple[Any, ...]:
        return EntryFiles, (self._path,)


def type_of(call: CallName) -> str:
    """Return the type of the op of a call: its function, or the class of its module, and `backward` for gradients."""
    name = f"{call.prefix}.{call.class_name or call.name}"
    return name if call.direction is Direction.FORWARD else f"{name}.{call.direction}"


def _is_container(name: str, call: CallName, containers: Container[str]) -> bool:
    """Return whether all that a module computed is recorded call by call; `containers` are calls that others ran in."""
    if not call.is_module or call.direction is Direction.PARAMETERS_GRAD:
        return False
    return (name if call.direction is Direction.FORWARD else call.entry(Direction.FORWARD)) in containers


def read_entry(file: DumpFile) -> OpDump:
    """Return the tensors of an op; one whose file is missing or damaged is named in `bad_slots`.

    Raises
    ------
    FormatError
        The entry is damaged.
    """
    leaf = _leaf_of(file.path)
    first, *more = read_entries(file.path, file.entries)
    if isinstance(first, UnreadCall):
        raise FormatError.of(file.path, "io.msprobe.entry", offset=file.entries[0].start, reason=first.reason)
    forward = next((call for call in more if isinstance(call, RecordedCall)), None)
    recorded = RecordedOp(call=first, forward=forward)
    bad: list[tuple[str, Message]] = []

    def opened(side: str, tensors: Sequence[RecordedTensor]) -> tuple[AnyTensor | None, ...]:
        slots: list[AnyTensor | None] = []
        for number, tensor in enumerate(tensors):
            try:
                slots.append(open_recorded(leaf, tensor))
            except PrecisionToolError as error:
                bad.append((f"{side}:{number}", error.advice_message))
                slots.append(None)
        return tuple(slots)

    inputs, outputs = opened("input", recorded.inputs), opened("output", recorded.outputs)
    return OpDump(path=file.path, op_name=first.name, inputs=inputs, outputs=outputs, bad_slots=tuple(bad))


def _leaf_of(path: str) -> MsprobeLeaf:
    """The leaf of a `dump.json`, of which only the tensors are asked for."""
    folder = posixpath.dirname(path)
    return MsprobeLeaf(path=folder, root=folder)


def open_recorded(leaf: MsprobeLeaf, tensor: RecordedTensor) -> AnyTensor:
    """Return a tensor undecoded; where it was not saved, what was recorded of it. Errors as of `read_tensor`."""
    if tensor.data_name:
        return leaf.read_tensor(tensor)

    def number(value: Number | None) -> float | None:
        return None if value is None else float(value)

    return TensorStatistics(
        path=leaf.dump,
        dtype=data_type_of(tensor.dtype) or tensor.dtype,
        shape=tensor.shape,
        maximum=number(tensor.maximum),
        minimum=number(tensor.minimum),
        mean=number(tensor.mean),
        l2_norm=number(tensor.norm),
    )


# --- runs and benchmarks ----------------------------------------------------------------------------------------------


def find_msprobe_run(path: str, stamps: Stamps | None = None) -> Run:
    """Return the steps and ranks of a dump of msprobe; of several dump paths the one that is named last.

    Errors as of `find_msprobe`.
    """
    found = find_msprobe(path, stamps)
    leaves = tuple(
        DumpLeaf(
            path=leaf.path,
            files=EntryFiles(leaf.dump),
            device="" if leaf.rank is None else str(leaf.rank),
            step="" if leaf.step is None else str(leaf.step),
            graph=leaf.dump,
        )
        for leaf in found.leaves
        if leaf.root == found.roots[-1]
    )
    notes = found.notes
    if len(found.roots) > 1:
        notes = (*notes, Message("note.data.msprobe_roots", count=len(found.roots) - 1, root=found.roots[-1]))
    return Run(root=found.root, leaves=leaves, notes=notes)


def find_msprobe_benchmark(path: str, stamps: Stamps | None = None) -> Benchmark:
    """Return the tensors of a dump of msprobe as a benchmark: those of the first step and rank, and where others lie.

    An op's outputs are named after it, every other tensor after its slot: `Functional.linear.0.forward.input.1`, a
    parameter also as its module has it. Errors as of `find_msprobe`, and FormatError for a damaged `dump.json`.
    """
    run = find_msprobe_run(path, stamps)
    places: dict[tuple[int | None, int | None], str] = {}
    for leaf in run.leaves:
        step, rank = (int(part) if part else None for part in (leaf.step, leaf.device))
        places[step, rank] = leaf.path
    first = run.leaves[0]
    files: dict[tuple[str, int], BenchmarkFile] = {}
    entries, notes = read_dump_index(first.graph), list(run.notes)
    if entries.problem is not None:
        notes.append(Message("error.place", where=first.graph, reason=entries.problem))
    for number, call in enumerate(read_calls(entries)):
        if isinstance(call, UnreadCall) or call.call is None:
            continue
        for name, index, tensor in _named_tensors(call):
            file = BenchmarkFile(
                path=first.graph, op_name=flatten(name), index=index, timestamp=number, recorded=tensor
            )
            files.setdefault((file.op_name, index), file)
    return Benchmark(root=run.root, files=files, notes=tuple(notes), places=places if len(places) > 1 else {})


def _named_tensors(call: RecordedCall) -> Iterator[tuple[str, int, RecordedTensor]]:
    for index, tensor in enumerate(RecordedOp(call=call).outputs):
        yield call.name, index, tensor
    for slot, tensor in call.tensors():
        if not slot.startswith("output"):
            yield f"{call.name}.{slot}", 0, tensor
        if slot.startswith("parameters.") and call.call is not None:
            yield _parameter_name(call.call, slot), 0, tensor


def _parameter_name(call: CallName, slot: str) -> str:
    """A parameter as its module has it: `blocks.1.up.weight`."""
    return f"{call.name}.{slot.partition('.')[2]}".lstrip(".")


def read_recorded(file: BenchmarkFile) -> AnyTensor:
    """Return the tensor of a file of a benchmark. Errors as of `MsprobeLeaf.read_tensor`."""
    assert file.recorded is not None
    return open_recorded(_leaf_of(file.path), file.recorded)


# --- the graph --------------------------------------------------------------------------------------------------------


def read_msprobe_graph(path: str) -> GraphFile:
    """Return the calls of a `dump.json` as a graph, with what `stack.json` and `construct.json` beside it say of them.

    Raises
    ------
    FormatError
        It is no dump of msprobe. An entry that alone is damaged is left out and counted in `notes`.
    """
    index = read_dump_index(path)
    calls: list[RecordedCall] = []
    unread: list[UnreadCall] = []
    for call in read_calls(index):
        if isinstance(call, UnreadCall):
            unread.append(call)
        elif call.call is not None:
            calls.append(call)
    notes = [] if index.problem is None else [index.problem]
    if unread:
        notes.append(Message("note.data.msprobe_unread", count=len(unread), first=unread[0].name, why=unread[0].reason))
    folder = posixpath.dirname(path)
    stacks, tree = CallStacks(frames={}), ModuleTree(parents={})
    for name in (STACK_FILE, CONSTRUCT_FILE):
        if not exists(posixpath.join(folder, name)):
            continue
        try:
            if name == STACK_FILE:
                stacks = read_stacks(posixpath.join(folder, name))
            else:
                tree = read_construct(posixpath.join(folder, name))
        except PrecisionToolError as error:
            notes.append(error.full_message)
    for name, problem in ((STACK_FILE, stacks.problem), (CONSTRUCT_FILE, tree.problem)):
        if problem is not None:
            notes.append(Message("error.place", where=name, reason=problem))
    if index.task == "tensor" and not is_folder(posixpath.join(folder, TENSOR_FOLDER)):
        notes.append(Message("note.data.msprobe_no_tensors", folder=posixpath.join(folder, TENSOR_FOLDER)))
    ops = _Builder(calls, stacks, tree).ops()
    attrs = {"framework": index.framework, "level": index.level, "task": index.task}
    return GraphFile(path=path, graphs=(Graph(name=GRAPH_NAME, ops=tuple(ops), attrs=attrs),), notes=tuple(notes))


class _Builder:
    """Makes the ops of a leaf's calls."""

    def __init__(self, calls: Sequence[RecordedCall], stacks: CallStacks, tree: ModuleTree) -> None:
        self._calls, self._stacks, self._tree = calls, stacks, tree
        self._by_name = {call.name: call for call in calls}
        self._first_api = next((call.name for call in calls if call.call and not call.call.is_module), "")
        #: Parameters, and what the network as a whole is given, by what tells tensors apart.
        self._parameters: dict[object, dict[str, str]] = {}
        self._data: set[object] = set()
        for call in calls:
            if call.call is None or not call.call.is_module or call.call.direction is not Direction.FORWARD:
                continue
            for slot, tensor in call.tensors():
                if slot.startswith("parameters."):
                    of_modules = self._parameters.setdefault(identity_of(tensor), {})
                    of_modules[call.call.name] = _parameter_name(call.call, slot)
                elif slot.startswith("input") and tree.parents.get(call.name, "") is None:
                    self._data.add(identity_of(tensor))
        #: The output that a tensor is, the latest one.
        self._made: dict[object, Edge] = {}
        #: What put the inputs out, by the names of these.
        self._edges: dict[str, Edge] = {}
        #: The outputs in the order in which they were put out, the calls that read each call, and all that have an op.
        self._latest: list[tuple[Edge, RecordedTensor]] = []
        self._readers: dict[str, list[str]] = {}
        self._added: set[str] = set()
        #: The calls that tensors which no call put out are probably made of.
        self._views: dict[str, tuple[str, ...]] = {}
        self._ops: list[Op] = []

    def ops(self) -> list[Op]:
        """The ops in the order in which their calls ended."""
        for number, call in enumerate(self._calls):
            if call.call is not None and not _is_container(call.name, call.call, self._tree.children):
                self._add(number, call, call.call)
        return self._ops

    def _add(self, number: int, call: RecordedCall, name: CallName) -> None:
        recorded = self._recorded(call, name)
        forward, inputs = recorded.forward, recorded.inputs
        edges = [
            self._edge(call, recorded.tensor_name(number), slot, tensor)
            for number, (slot, tensor) in enumerate(zip(recorded.input_slots, inputs, strict=True))
        ]
        attrs: dict[str, Any] = {"recorded": recorded}
        origin = call.name if forward is None else forward.name
        module = self._module_of(origin)
        if module:
            attrs["module"] = module
        source = source_line(self._stacks.frames.get(origin, ()))
        if source:
            attrs["source"] = source
        if call.is_recomputed:
            attrs["is_recompute"] = True
        if origin in self._tree.micro_steps:
            attrs["micro_step"] = self._tree.micro_steps[origin]
        self._ops.append(
            Op(
                name=call.name,
                type=type_of(name),
                id=number,
                inputs=tuple(edges),
                input_descs=tuple(map(_desc, inputs)),
                output_descs=tuple(map(_desc, recorded.outputs)),
                original_names=(call.name,),
                attrs=attrs,
                recorded=recorded,
            )
        )
        self._added.add(call.name)
        for index, tensor in enumerate(recorded.outputs):
            identity = identity_of(tensor)
            edge = Edge(producer=call.name, index=index)
            if identity is not None:
                self._made[identity] = edge
            if name.direction is Direction.FORWARD:
                self._latest.append((edge, tensor))
        for edge in edges if name.direction is Direction.FORWARD else ():
            self._readers.setdefault(edge.producer, []).append(call.name)
            for behind in self._views.get(edge.producer, ()):
                self._readers.setdefault(behind, []).append(call.name)

    def _recorded(self, call: RecordedCall, name: CallName) -> RecordedOp:
        """The op of a call, with the calls that it belongs to."""
        if name.direction is Direction.BACKWARD:
            return RecordedOp(call=call, forward=self._by_name.get(name.entry(Direction.FORWARD)))
        if name.direction is Direction.FORWARD:
            return RecordedOp(call=call)
        module = call.name.replace(f".{Direction.PARAMETERS_GRAD}.", f"{_FORWARD}.")
        inside = [other for other in self._tree.children.get(module, ()) if _has_parameters(self._by_name.get(other))]
        if inside or module in self._tree.children:
            forward = self._by_name.get(inside[0]) if len(inside) == 1 else None
        else:
            forward = self._by_name.get(module)
        if forward is None or forward.call is None or self._is_called_again(name):
            return RecordedOp(call=call)
        return RecordedOp(
            call=call, forward=forward, backward=self._by_name.get(forward.call.entry(Direction.BACKWARD))
        )

    def _is_called_again(self, name: CallName) -> bool:
        """Whether a module ran more than once, so that the gradients of its parameters are sums."""
        again = f"{name.prefix}.{name.name}.{name.class_name}{_FORWARD}."
        return any(f"{again}{count}" in self._by_name for count in range(2) if count != name.count)

    def _edge(self, call: RecordedCall, name: str, slot: str, tensor: RecordedTensor) -> Edge:
        """What put an input out: a call before, or an op that stands for what came from elsewhere.

        `name` is that of the tensor, `slot` its place among the arguments. What nobody put out is of its own reader:
        other tensors may have the same figures.
        """
        identity = identity_of(tensor)
        parameter = self._parameter(call, slot, identity)
        edge = self._edges.get(name)
        if edge is None and not parameter:
            edge = self._made.get(identity) if identity is not None else None
        if edge is not None:
            return edge
        op_type, source = (VARIABLE, parameter) if parameter else self._source(call, name, slot, tensor, identity)
        edge = self._edges[name] = Edge(producer=source, index=0)
        if source not in self._by_name:
            self._by_name[source] = call
            made_of = self._made_of(call, slot, tensor) if op_type == UNRECORDED else ()
            self._views[source] = tuple(behind.producer for behind in made_of)
            self._ops.append(
                Op(
                    name=source, type=op_type, inputs=made_of, output_descs=(_desc(tensor),), original_names=(source,)
                )
            )  # fmt: skip
        if identity is not None and op_type != UNRECORDED:
            self._made.setdefault(identity, edge)
        return edge

    def _parameter(self, call: RecordedCall, slot: str, identity: object) -> str:
        """The parameter that an argument is: of the module of the call, else of another that has such numbers."""
        of_modules = self._parameters.get(identity, {}) if identity is not None else {}
        is_argument = call.call is not None and call.call.direction is Direction.FORWARD and slot != "input.0"
        if not of_modules or not (is_argument and (_has_parameters(call) or slot.startswith("parameters."))):
            return ""
        module = call.name if call.call is not None and call.call.is_module else self._tree.parents.get(call.name)
        inside = parse_call_name(module or call.name)
        return of_modules.get(inside.name if inside is not None else "") or next(iter(of_modules.values()))

    def _source(
        self, call: RecordedCall, name: str, slot: str, tensor: RecordedTensor, identity: object
    ) -> tuple[str, str]:
        """The type and name of an op for a tensor that no call put out."""
        if identity is None:
            return UNRECORDED, name
        parameters = self._parameters.get(identity)
        if parameters:
            return VARIABLE, next(iter(parameters.values()))
        assert call.call is not None
        is_first = slot == "input.0"
        if not is_first and tensor.requires_grad and call.call.name in WITH_PARAMETERS:
            return VARIABLE, name
        is_float = (data_type_of(tensor.dtype) or tensor.dtype).startswith(("float", "bfloat"))
        is_data = identity in self._data or call.name == self._first_api or not is_float
        if is_data and not tensor.requires_grad and call.call.direction is Direction.FORWARD:
            return DATA, name
        return UNRECORDED, name

    def _made_of(self, call: RecordedCall, slot: str, tensor: RecordedTensor) -> tuple[Edge, ...]:
        """What a tensor that no recorded call put out was probably made of, which tells what an error spreads to.

        In a backward that is what the readers of the forward's outputs put out; in a forward a view, or a part, of what
        was put out last that may be it, by the figures. msprobe does not record calls that only make views.
        """
        assert call.call is not None
        if call.call.direction is Direction.BACKWARD:
            if not slot.startswith("input"):
                return ()
            readers = dict.fromkeys(self._readers.get(call.call.entry(Direction.FORWARD), ()))
            calls = (self._by_name[reader] for reader in readers)
            backwards = (reader.call.entry(Direction.BACKWARD) for reader in calls if reader.call is not None)
            return tuple(Edge(producer=name, index=0) for name in backwards if name in self._added)
        latest = self._latest[-_MAX_LOOKED_BACK:]
        views = (edge for edge, made in reversed(latest) if _may_be_view(tensor, made))
        parts = (edge for edge, made in reversed(latest) if _may_be_part(tensor, made))
        best = next(views, None) or next(parts, None)
        return () if best is None else (best,)

    def _module_of(self, name: str) -> str:
        """The path and class of the module that a call ran in; that of a module's call itself is its own."""
        parent: str | None = name
        call = parse_call_name(name)
        if call is None or not call.is_module:
            parent = self._tree.parents.get(name)
        module = None if parent is None else parse_call_name(parent)
        return f"{module.name} ({module.class_name})".lstrip() if module is not None else ""


def _has_parameters(call: RecordedCall | None) -> bool:
    """Whether a function takes parameters of the module that it runs in."""
    return call is not None and call.call is not None and call.call.name in WITH_PARAMETERS


def identity_of(tensor: RecordedTensor) -> object:
    """Return what tells a tensor from others; None where nothing of its values was recorded."""
    if tensor.checksum:
        return tensor.dtype, tensor.shape, tensor.checksum
    figures = (tensor.maximum, tensor.minimum, tensor.mean, tensor.norm)
    if all(figure is None for figure in figures):
        return None
    return tensor.dtype, tensor.shape, *map(repr, figures)  # NaN is equal to itself as text


#: Outputs that are looked at for what an input is a view of.
_MAX_LOOKED_BACK = 32
#: How far figures may differ that were summed up in another order, by type; others are of 24 bits.
_ORDER = {"float16": 2.0**-8, "bfloat16": 2.0**-5}
_OTHERS = 2.0**-16


def _may_be_view(tensor: RecordedTensor, made: RecordedTensor) -> bool:
    """Whether a tensor may be another one in another shape: the same elements in any order have the same figures."""
    if tensor.dtype != made.dtype or prod(tensor.shape) != prod(made.shape) or tensor.maximum is None:
        return False
    if repr((tensor.maximum, tensor.minimum)) != repr((made.maximum, made.minimum)):
        return False
    if tensor.norm is None or made.norm is None:
        return True
    return abs(tensor.norm - made.norm) <= _ORDER.get(data_type_of(tensor.dtype), _OTHERS) * abs(made.norm)


def _may_be_part(tensor: RecordedTensor, made: RecordedTensor) -> bool:
    """Whether a tensor may be a part of another one: its figures lie within those of the whole."""
    size, whole = prod(tensor.shape), prod(made.shape)
    if tensor.dtype != made.dtype or not 0 < size < whole or whole % size:
        return False
    near = 1 + _ORDER.get(data_type_of(tensor.dtype), _OTHERS)
    return (
        _are_ordered(made.minimum, tensor.minimum)
        and _are_ordered(tensor.maximum, made.maximum)
        and _are_ordered(tensor.norm, made.norm, near)
    )


def _are_ordered(low: Number | None, high: Number | None, factor: float = 1.0) -> bool:
    return low is not None and high is not None and low <= factor * high


def _desc(tensor: RecordedTensor) -> TensorDesc:
    return _desc_of(tensor.dtype, tensor.shape)


@lru_cache(maxsize=1 << 14)
def _desc_of(recorded_dtype: str, shape: tuple[int, ...]) -> TensorDesc:
    """One object for all tensors of a type and shape, of which a network has few."""
    dtype = data_type_of(recorded_dtype) or recorded_dtype
    return TensorDesc(dtype=dtype, layout="ND", shape=shape, origin_layout="ND", origin_shape=shape)


#: Files of frameworks, which are not the user's.
_FRAMEWORKS = (
    "/torch/",
    "/torch_npu/",
    "/mindspore/",
    "/mindtorch/",
    "/msprobe/",
    "/site-packages/",
    "/dist-packages/",
)
_FRAME = re.compile(r"File (?P<path>.+), line (?P<line>\d{1,9}), in (?P<function>[^,]*),", re.DOTALL)


def source_line(frames: Sequence[str]) -> str:
    """Return the place in the user's code that made a call, `model.py:85 in forward`; the innermost frame that is.

    Code of frameworks, and of other installed packages, counts only where there is no other.
    """
    places = [match for frame in frames if (match := _FRAME.match(frame)) is not None]
    own = [place for place in places if not any(part in place["path"] for part in _FRAMEWORKS)]
    best = next(iter(own or places), None)
    return f"{posixpath.basename(best['path'])}:{best['line']} in {best['function']}" if best is not None else ""
