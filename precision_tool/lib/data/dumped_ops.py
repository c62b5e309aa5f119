"""The two sides of a comparison, asked by op name: dump files of a leaf merged per op, and golden `.npy`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from precision_tool.lib.data.dump_names import StepAndRank, base_name, flatten, slice_number, whole_name
from precision_tool.lib.data.kinds import NPY, NpyFiles
from precision_tool.lib.data.msprobe_ops import read_entry
from precision_tool.lib.data.neighbourhood import order_of
from precision_tool.lib.io.files import signature_of, store_of
from precision_tool.lib.io.readers import NoNumbersError, open_op_dump
from precision_tool.lib.io.stores import Signature
from precision_tool.lib.io.tensor_bytes import joined
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.comparison import NO_OPS
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import Benchmark, BenchmarkFile, DumpFile, DumpLeaf
from precision_tool.lib.model.tensor import AnyTensor, OpDump, Tensor

#: The task type of ops that FFTS+ runs in slices, in the names of their files.
_FFTS = 4
#: Slices whose shapes a reason names.
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class Missing:
    """A tensor that is not there or cannot be read, and why. `damaged` tells the two apart.

    `path` is the file that cannot be read, empty where there is none. `declared` is what the header says of a tensor
    that has too few bytes.
    """

    reason: Message
    damaged: bool = False
    path: str = ""
    declared: Tensor | None = None


Found = AnyTensor | Missing


@dataclass(slots=True)
class DumpedOp:
    """The newest tensors of one op of a leaf, by slot."""

    name: str
    op_type: str
    timestamp: int
    inputs: dict[int, Found] = field(default_factory=dict)
    outputs: dict[int, Found] = field(default_factory=dict)
    #: Files of the op that cannot be read at all.
    errors: list[Missing] = field(default_factory=list)
    #: Slots that come from a file older than one that cannot be read.
    older: set[str] = field(default_factory=set)
    #: FFTS+ threads, or slices, that dumped the op; with more than one each file holds a slice.
    threads: int = 1
    #: Whether FFTS+ ran it, and whether its outputs are joined of the slices; its inputs are those of the first.
    is_ffts: bool = False
    merged: bool = False
    #: Slices that were not dumped, of those that ran.
    missing: int = 0
    #: How its files were told from those of other ops of its name; empty where there are none.
    told_apart: Message | None = None
    #: What the files were when they were opened, by path.
    signatures: dict[str, Signature | None] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, the newest first."""
        return tuple(self.signatures)


def _unclear(op_name: str, file: DumpFile, reason: Message) -> DumpedOp:
    """An op whose own files cannot be told from those of others."""
    errors = [Missing(reason, damaged=True, path=file.path)]
    return DumpedOp(op_name, file.name.op_type, file.name.timestamp, errors=errors)


class _Walk:
    """Files that are opened in about this order. Where each read takes a while, heads of many are read together."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(paths)
        self._places = {path: place for place, path in enumerate(self._paths)}

    def reach(self, path: str) -> None:
        """Says that a file is opened now, and those behind it soon."""
        place = self._places.get(path)
        if place is not None:
            store_of(path).gather((each, 0, 0) for each in self._paths[place:])


def _walk_of(folder: str, paths: Iterable[str]) -> _Walk | None:
    return _Walk(paths) if store_of(folder).gathers else None


def open_dump(file: DumpFile) -> OpDump:
    """Return the tensors of a dump file. Errors as of `open_op_dump`."""
    if file.output is not None:
        dump = open_op_dump(file.path)
        return replace(dump, outputs=(*[None] * file.output, *dump.outputs[:1]))
    return read_entry(file) if file.entries else open_op_dump(file.path)


class DumpIndex:
    """The dump files of one leaf by flattened op name; files are opened when their op is asked for."""

    def __init__(self, leaf: DumpLeaf) -> None:
        self.leaf = leaf
        self._files: dict[str, list[DumpFile]] = {}
        for file in sorted(leaf.files, key=lambda file: -file.name.timestamp):
            name = file.name.op_name
            self._files.setdefault(whole_name(name) if file.name.task_type == _FFTS else name, []).append(file)
        #: Files by the name that the op has in the script's graph: without slice, and without the graph of threads.
        self._by_short: dict[str, list[DumpFile]] = {}
        for name, files in self._files.items():
            short = base_name(name)
            if short not in self._files:
                self._by_short.setdefault(short, []).extend(files)
            if short != whole_name(name) and whole_name(name) not in self._files:
                self._by_short.setdefault(whole_name(name), []).extend(files)
        for files in self._by_short.values():
            files.sort(key=lambda file: -file.name.timestamp)
        self._ops: dict[str, DumpedOp] = {}
        self._walk: _Walk | None = None

    def walk(self) -> None:
        """Say that all ops are asked for next, about in the order in which they ran."""
        ordered = sorted(self.leaf.files, key=lambda file: file.name.timestamp)
        self._walk = _walk_of(self.leaf.path, (file.path for file in ordered))

    def __contains__(self, op_name: str) -> bool:
        return bool(self._of(op_name))

    def _of(self, op_name: str) -> list[DumpFile]:
        """The files of an op, the newest first; of one that ran in slices those of all slices."""
        for name in (op_name, whole_name(op_name)):
            files = self._files.get(name) or self._by_short.get(name)
            if files:
                return files
        return []

    def names_by_time(self) -> list[str]:
        """Flattened op names in the order in which the ops ran (their newest dump)."""
        return sorted(self._files, key=lambda name: (self._files[name][0].name.timestamp, name))

    def timestamp(self, op_name: str) -> int:
        """When the newest dump of an op that is in the index was made, by its file name."""
        return self._of(op_name)[0].name.timestamp

    def op(self, op_name: str) -> DumpedOp:
        """The tensors of an op that is in the index; per tensor the newest file that holds it wins."""
        cached = self._ops.get(op_name)
        if cached is None:
            cached = self._ops[op_name] = self._merge(op_name, self._of(op_name))
        return cached

    def op_by_header(self, op_name: str, real_name: str) -> DumpedOp | None:
        """Return the dump of one of several ops whose names are flattened alike, by the names inside the files."""
        files = self._of(op_name)
        matching, nameless = [], 0
        for file in files:
            try:
                inside = open_dump(file).op_name
            except PrecisionToolError:
                continue  # its op cannot be determined
            nameless += not inside
            if inside == real_name:
                matching.append(file)
        if matching:
            return self._merge(op_name, matching)
        if not nameless:
            return None
        return _unclear(op_name, files[0], Message("row.data.spelled_alike_dumps", path=files[0].path, op=real_name))

    def op_of_several(self, op_name: str, place: int, count: int) -> DumpedOp:
        """Return the dump of the op at `place` among `count` ops of one name, by the order of their tasks.

        With another number of tasks the op of a file cannot be determined, which is an error of the op.
        """
        key = f"{op_name}\0{place}"
        cached = self._ops.get(key)
        if cached is not None:
            return cached
        files = self._of(op_name)
        tasks = sorted({(file.name.task_id, file.name.stream_id or 0) for file in files})
        if len(tasks) == count:
            matching = [file for file in files if (file.name.task_id, file.name.stream_id or 0) == tasks[place]]
            op = self._merge(op_name, matching)
            op.told_apart = Message("row.data.by_task_order", count=count)
        else:
            why = Message("row.data.ambiguous_tasks", path=files[0].path, count=count, tasks=len(tasks))
            op = _unclear(op_name, files[0], why)
        self._ops[key] = op
        return op

    def forget_changed(self) -> None:
        """Drop the ops of which a file has changed since it was opened; they are read again when needed."""
        store_of(self.leaf.path).look_together(path for op in self._ops.values() for path in op.signatures)
        for name, op in list(self._ops.items()):
            if any(signature_of(path) != signature for path, signature in op.signatures.items()):
                del self._ops[name]

    def _merge(self, op_name: str, files: list[DumpFile]) -> DumpedOp:
        """The tensors of `files`, newest first. A damaged one is not replaced in silence by an older one."""
        newest = files[0].name
        op = DumpedOp(op_name, newest.op_type, newest.timestamp)
        op.threads = len({(file.name.thread_id, slice_number(file.name.op_name)) for file in files})
        opened: list[tuple[DumpFile, OpDump]] = []
        for file in files:
            if self._walk is not None:
                self._walk.reach(file.path)
            op.signatures[file.path] = signature_of(file.path)  # before it is read: a change meanwhile shows
            try:
                dump = open_dump(file)
            except PrecisionToolError as error:
                op.errors.append(Missing(error.advice_message, damaged=True, path=file.path))
                continue
            opened.append((file, dump))
            bad = dict(dump.bad_slots)
            for side, slots, merged in (("input", dump.inputs, op.inputs), ("output", dump.outputs, op.outputs)):
                for index, tensor in enumerate(slots):
                    slot = f"{side}:{index}"
                    if index in merged or (tensor is None and slot not in bad):
                        continue
                    if tensor is None:
                        why = Message("row.data.slot", path=file.path, side=side, index=index, reason=bad[slot])
                        declared = dict(dump.declared).get(slot)
                        merged[index] = Missing(why, damaged=True, path=file.path, declared=declared)
                        continue
                    merged[index] = tensor
                    if op.errors:
                        op.older.add(slot)
        _join_slices(op, opened)
        return op


def _join_slices(op: DumpedOp, opened: list[tuple[DumpFile, OpDump]]) -> None:
    """Joins the outputs of an op that FFTS+ ran in slices, as msaccucmp does, where the dump tells how they were cut.

    `opened` are the files that can be read, the newest first: of each slice the newest counts.
    """
    slices: dict[int, OpDump] = {}
    for file, dump in opened:
        op.is_ffts = op.is_ffts or dump.slicing is not None
        number = slice_number(file.name.op_name)
        number = file.name.thread_id if number is None else number
        if file.name.task_type == _FFTS and number is not None:
            slices.setdefault(number, dump)
    dumps = [dump for _, dump in sorted(slices.items())]
    base = dumps[0].slicing if len(dumps) > 1 else None
    if base is None:
        return
    axes = [next((axis for axis, pieces in enumerate(cut) if pieces != 1), None) for cut in base.cuts]
    if all(axis is None for axis in axes):
        return  # the newest file counts
    op.merged = True
    op.missing = max((base.count or 0) - len(dumps), 0)
    op.inputs = {number: tensor for number, tensor in enumerate(dumps[0].inputs) if tensor is not None}
    for number, axis in enumerate(axes[: len(dumps[0].outputs)]):
        whole = dumps[0].outputs[number] if axis is None else _joined_output(dumps, number, axis)
        if whole is not None:
            op.outputs[number] = whole
            op.older.discard(f"output:{number}")


def _joined_output(dumps: list[OpDump], number: int, axis: int) -> Found:
    """Output `number` of slices, in their order, joined along an axis."""
    parts: list[Tensor] = []
    for place, dump in enumerate(dumps):
        part = dump.outputs[number] if number < len(dump.outputs) else None
        if not isinstance(part, Tensor):
            why = dict(dump.bad_slots).get(f"output:{number}", Message("row.data.not_in_slice"))
            return _damaged_output(dump.path, number, why)
        shapes = dumps[0].slicing.shapes if dumps[0].slicing is not None and dumps[0].slicing.is_threaded else ()
        shape = shapes[place][number] if place < len(shapes) and number < len(shapes[place]) else part.shape
        parts.append(replace(part, shape=shape) if min(shape, default=0) >= 0 and prod(shape) == part.size else part)
    whole = joined(tuple(parts), axis, number)
    if whole is None:
        cut = tuple(part.shape for part in parts[:_MAX_NAMED])
        return _damaged_output(dumps[0].path, number, Message("row.data.slices_misfit", shapes=cut, axis=axis))
    return whole


def _damaged_output(path: str, number: int, why: Message) -> Missing:
    reason = Message("row.data.slot", path=path, side="output", index=number, reason=why)
    return Missing(reason, damaged=True, path=path)


class BenchmarkSide(ABC):
    """The benchmark side of a comparison."""

    @abstractmethod
    def output(self, op_name: str, index: int) -> Found:
        """Output `index` of the op with this flattened name."""

    def output_of(self, real_name: str, index: int) -> Found:
        """Output `index` of the op with this name."""
        return self.output(flatten(real_name), index)

    def has_real_name(self, real_name: str, index: int) -> bool:
        """Return whether it has output `index` under exactly this op name, not only under its spelling in files."""
        return False

    def ops_of(self, originals: tuple[str, ...]) -> tuple[str, ...]:
        """The ops of this side that do the work of ops of the training script: of a benchmark these themselves."""
        return originals

    def walk(self) -> None:  # noqa: B027  # a side without files has none to read
        """Say that all tensors are asked for next."""

    def forget_changed(self) -> None:  # noqa: B027  # a side without files has nothing to forget
        """Drop what was opened of files that have changed since; they are read again when needed."""


class GoldenFiles(BenchmarkSide):
    """Golden `.npy` files, the tensor files of tfdbg, or those of another `kind`, as the benchmark side."""

    def __init__(self, benchmark: Benchmark, kind: NpyFiles = NPY) -> None:
        self._benchmark = benchmark
        self._kind = kind
        #: What was opened, and what its file was then.
        self._opened: dict[BenchmarkFile, tuple[Found, Signature | None]] = {}
        self._of_places: dict[StepAndRank, GoldenFiles] = {}
        self._of_leaves: dict[str, GoldenFiles] = {}
        self._walk: _Walk | None = None

    def walk(self) -> None:
        """Say that all tensors are asked for next."""
        self._walk = _walk_of(self.root, (file.path for file in self.files))

    @property
    def root(self) -> str:
        """The folder of the files."""
        return self._benchmark.root

    @property
    def notes(self) -> tuple[Message, ...]:
        """Notes for the user on the files."""
        return self._benchmark.notes

    @property
    def files(self) -> tuple[BenchmarkFile, ...]:
        """The files, one a tensor."""
        return tuple((self._benchmark.by_real_name or self._benchmark.files).values())

    @property
    def places(self) -> int:
        """Number of steps and ranks named by its folders, each with tensors of its own; 0 where it stands for all."""
        return len(self._benchmark.places)

    @property
    def steps_and_ranks(self) -> tuple[StepAndRank, ...]:
        """The steps and ranks that its folders name."""
        return tuple(self._benchmark.places)

    def of_place(self, step: int | None, rank: int | None) -> GoldenFiles | None:
        """The tensors of a step and rank; None where there are none. Folders that name no rank are of all."""
        for place in ((step, rank), (step, None), (None, rank), (None, None)):
            folder = self._benchmark.places.get(place)
            if folder is not None:
                if place not in self._of_places:
                    self._of_places[place] = GoldenFiles(self._kind.find(folder), self._kind)
                return self._of_places[place]
        return None

    def fitted(self, leaf: DumpLeaf) -> GoldenFiles:
        """The tensors by the names that ops have in a leaf; these very files where all are called alike."""
        if leaf.path not in self._of_leaves:
            benchmark = self._kind.fitted(self._benchmark, leaf)
            is_same = benchmark is self._benchmark
            self._of_leaves[leaf.path] = self if is_same else GoldenFiles(benchmark, self._kind)
        return self._of_leaves[leaf.path]

    def check_same_network(self, leaf: DumpLeaf) -> None:
        """Raise UsageError where this is a benchmark of another network than a leaf's."""
        self._kind.check_same_network(self._benchmark, leaf)

    def ops_of(self, originals: tuple[str, ...]) -> tuple[str, ...]:
        """The ops of the benchmark that stand for ops of the NPU's run."""
        called = self._benchmark.called
        if called is None:
            return originals
        return tuple(called[name] for name in originals if name in called) or NO_OPS

    def output(self, op_name: str, index: int) -> Found:
        """The golden tensor of an op's output."""
        file = self._benchmark.files.get((op_name, index))
        if file is None:
            return Missing(Message("row.data.no_tensor", op=op_name, index=index))
        if (op_name, index) in self._benchmark.alike:
            return Missing(Message("row.data.spelled_alike", op=op_name, index=index))
        return self.open(file)

    def output_of(self, real_name: str, index: int) -> Found:
        """The golden tensor of an op's output, by the real name where the benchmark has these."""
        file = self._benchmark.by_real_name.get((real_name, index))
        return self.open(file) if file is not None else self.output(flatten(real_name), index)

    def has_real_name(self, real_name: str, index: int) -> bool:
        """Return whether the benchmark has the tensor by its op's real name."""
        return (real_name, index) in self._benchmark.by_real_name

    def file_of(self, real_name: str, index: int) -> BenchmarkFile | None:
        """The file of an op's output; None where there is none, or nothing tells which op's it is."""
        if self._benchmark.by_real_name:
            return self._benchmark.by_real_name.get((real_name, index))
        return self._benchmark.files.get((flatten(real_name), index))

    def open(self, file: BenchmarkFile) -> Found:
        """The tensor of a file, whose values are read when they are used; why there is none."""
        cached = self._opened.get(file)
        if cached is not None:
            return cached[0]
        if self._walk is not None:
            self._walk.reach(file.path)
        signature = signature_of(file.path)  # before it is read: a change meanwhile shows
        tensor: Found
        try:
            tensor = self._kind.read(file)
        except NoNumbersError as error:
            tensor = Missing(error.full_message)
        except PrecisionToolError as error:
            tensor = Missing(error.advice_message, damaged=True, path=file.path)
        self._opened[file] = tensor, signature
        return tensor

    def forget_changed(self) -> None:
        """Drop the tensors of changed files."""
        store_of(self.root).look_together(file.path for file in self._opened)
        for file, (_, signature) in list(self._opened.items()):
            if signature_of(file.path) != signature:
                del self._opened[file]
        for side in (*self._of_places.values(), *self._of_leaves.values()):
            if side is not self:
                side.forget_changed()


class NoBenchmark(BenchmarkSide):
    """The benchmark side where there is none."""

    def output(self, op_name: str, index: int) -> Found:
        """Return that there is no benchmark."""
        return Missing(Message("row.data.no_benchmark", op=op_name, index=index))


class GoldenDumps(BenchmarkSide):
    """Another NPU run as the benchmark side."""

    def __init__(self, leaf: DumpLeaf) -> None:
        self.index = DumpIndex(leaf)

    @property
    def root(self) -> str:
        """The folder of the dump files."""
        return self.index.leaf.path

    def output(self, op_name: str, index: int) -> Found:
        """Output `index` of the same op in the other run."""
        if op_name not in self.index:
            return Missing(Message("row.data.not_in_other_run", op=op_name))
        op = self.index.op(op_name)
        if index in op.outputs:
            return op.outputs[index]
        if op.errors:
            return op.errors[0]
        return Missing(Message("row.data.no_slot_in_other_run", op=op_name, side="output", index=index))

    def walk(self) -> None:
        """Say that all ops are asked for next."""
        self.index.walk()

    def forget_changed(self) -> None:
        """Drop the ops of changed files."""
        self.index.forget_changed()


# --- The dump of an op of the graph, also where file names do not tell two ops apart ---


class OpDumps:
    """The dumped tensors of the ops of one graph file, looked up among the dumps of a leaf.

    Ops whose names are spelled alike in file names are told apart by the names inside the files. Ops of one name, in
    two subgraphs, are told apart by the order of their tasks, which is that in which they run.
    """

    def __init__(self, dumps: DumpIndex, file: GraphFile) -> None:
        self._dumps = dumps
        self._file = file
        self._alike = file.once(_names_alike)
        self._repeated = file.once(_repeated)

    def find(self, op: Op) -> DumpedOp | None:
        """The op's dump, None if there is none."""
        name = flatten(op.name)
        if name not in self._dumps:
            return None
        places = self._repeated.get(op.name)
        if op.name in self._alike:
            return self._dumps.op_by_header(name, op.name)
        if places is None:
            return self._dumps.op(name)
        return self._dumps.op_of_several(name, places.index(self._file.number_of(op)), len(places))

    def is_repeated(self, op: Op) -> bool:
        """Return whether several ops of the file have its name."""
        return op.name in self._repeated

    def has(self, op: Op) -> bool:
        """Return whether the op has a dump; files are opened only where their names are ambiguous."""
        return flatten(op.name) in self._dumps and (op.name not in self._alike or self.find(op) is not None)

    def timestamp(self, op: Op) -> int:
        """When the newest dump of an op that has one was made."""
        if op.name not in self._alike and op.name not in self._repeated:
            return self._dumps.timestamp(flatten(op.name))
        dump = self.find(op)
        return 0 if dump is None else dump.timestamp


def alike(names: Iterable[str]) -> frozenset[str]:
    """The names among `names` that another of them is flattened to the same text as."""
    first: dict[str, str] = {}
    spelled: set[str] = set()
    for name in names:
        other = first.setdefault(flatten(name), name)
        if other != name:
            spelled |= {name, other}
    return frozenset(spelled)


def _names_alike(file: GraphFile) -> frozenset[str]:
    return alike(file.column("name"))


def _repeated(file: GraphFile) -> dict[str, list[int]]:
    """The ops of each name that several have, by their numbers in the order in which they run."""
    names = file.column("name")
    if len(set(names)) == len(names):
        return {}
    places: dict[str, list[int]] = {}
    for number in file.once(order_of):
        places.setdefault(names[number], []).append(number)
    return {name: numbers for name, numbers in places.items() if len(numbers) > 1}
