"""What was dumped: runs, their leaf folders and files, and the benchmark's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from precision_tool.lib.messages import Message
from precision_tool.lib.model.msprobe import RecordedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpName:
    """The parts of a dump file name. `op_name` is flattened: `. / \\` and space are `_`."""

    op_type: str
    op_name: str
    task_id: int
    timestamp: int
    stream_id: int | None = None
    task_type: int | None = None
    context_id: int | None = None
    thread_id: int | None = None
    device_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a file that has many ops: its name, and the bytes from `start` to `end`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFile:
    """A dump file. `name` is what its name says, read through `mapping.csv` where the file is a bare number.

    Of a file that has many ops, `entries` are those that make up this one: of a backward the forward comes second.
    """

    path: str
    name: DumpName
    statistics: bool = False
    #: False for what is named like a file and is none: a folder, a FIFO, a link to nothing.
    is_file: bool = True
    entries: tuple[Entry, ...] = ()
    #: Of a file that has one tensor of a benchmark: which output of the op it is.
    output: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpLeaf:
    """One folder of dump files: one device, model and step. Parts that the path does not tell are empty."""

    path: str
    files: Sequence[DumpFile] = field(repr=False)
    time: str = ""
    device: str = ""
    model_name: str = ""
    model_id: str = ""
    step: str = ""
    #: Names of files that are no dump files, with the reason; shown and counted, never fatal.
    ignored: tuple[tuple[str, Message], ...] = field(default=(), repr=False)
    #: The file of the dump that says how its ops are connected; empty where a graph does.
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything below one dump folder of one side."""

    root: str
    leaves: tuple[DumpLeaf, ...]
    notes: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFile:
    """A golden `.npy`, or a file of another kind: output `index` of the op whose flattened name is `op_name`.

    `key` names the tensor in a file of many. `recorded` is what msprobe recorded of the tensor; `path` is that of its
    `dump.json` then.
    """

    path: str
    op_name: str
    index: int
    timestamp: int
    key: str = ""
    recorded: RecordedTensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The benchmark's tensors, newest first where a tensor was dumped more than once."""

    root: str
    files: dict[tuple[str, int], BenchmarkFile] = field(repr=False)
    ignored: tuple[tuple[str, Message], ...] = field(default=(), repr=False)
    notes: tuple[Message, ...] = ()
    #: The tensors by the real names of their ops, where these are known.
    by_real_name: dict[tuple[str, int], BenchmarkFile] = field(default_factory=dict, repr=False)
    #: Keys of `files` that stand for tensors of several ops.
    alike: frozenset[tuple[str, int]] = field(default=frozenset(), repr=False)
    #: Folders of one step and rank each (None: of all), where folders are called so: `files` are of the newest then.
    places: dict[tuple[int | None, int | None], str] = field(default_factory=dict, repr=False)
    #: The benchmark's names of ops by the NPU's, under which `files` are, where ops of both are called otherwise.
    called: dict[str, str] | None = field(default=None, repr=False)
