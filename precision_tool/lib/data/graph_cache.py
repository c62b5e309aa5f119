"""Graph files read once: kept in memory as long as they do not change, large ones in cache files too.

A cache file holds the model of one graph without its attributes, which are read from the graph file when somebody
asks for them. Whatever is odd about it, the graph file is read instead. Layout: columns of 64-bit numbers (`_COLUMNS`),
each after its length; texts are numbers of a table of distinct texts at the end.
"""

from __future__ import annotations

import json
import logging
import posixpath
import struct
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from precision_tool.lib.data.msprobe_ops import read_msprobe_graph
from precision_tool.lib.data.msprobe_tree import DUMP_FILE
from precision_tool.lib.io.cache import LARGE, CacheFiles, OddCacheError
from precision_tool.lib.io.files import signature_of
from precision_tool.lib.io.ge_graph import Attrs, TextScalars, load_graph_file, read_graph_bytes
from precision_tool.lib.io.ge_graph_partial import (
    DATA_SOURCE_TYPES,
    AttrSource,
    GraphSkim,
    LazyAttrs,
    load_graph_lines,
    load_graph_ops,
    skim_graph_file,
    skim_ops,
)
from precision_tool.lib.io.proto_text import paused_gc
from precision_tool.lib.io.stores import Signature
from precision_tool.lib.messages import Message
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, LazyOps, Op, OpTable, TensorDesc

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: To be raised with every change of the layout, or of what readers make of a graph file.
_VERSION = 4
_NONE = -(1 << 63)
#: Characters of the attributes of a graph that a cache file has.
_MAX_ATTRS = 1 << 20
#: Tensors that are remembered while a cache file is made.
_MOST_DESCS = 1 << 14
_COLUMNS = (
    # of a skim alone
    "skim_names", "skim_sources", "skim_count",
    # of the file, and of each graph
    "notes", "graph_name", "graph_ops", "graph_attrs",
    # of each op; counts are those of the columns below
    "name", "type", "id", "stream", "kernel", "kernel_lib", "l1_group", "is_multiop", "parent", "offset",
    "inputs", "controls", "input_descs", "output_descs", "passes", "originals", "subgraphs",
    # of all ops together
    "input_producer", "input_index", "control", "input_desc", "output_desc", "pass", "original", "subgraph",
    # of each distinct tensor, and of all together
    "dtype", "layout", "dims", "origin_layout", "origin_dims", "dump_name", "dump_index", "dump_layout",
    "dim", "origin_dim",
)  # fmt: skip
#: Columns of one length each: one entry a graph, an op, a tensor.
_SAME_LENGTH = (
    ("graph_name", "graph_ops", "graph_attrs"),
    ("name", "type", "id", "stream", "kernel", "kernel_lib", "l1_group", "is_multiop", "parent", "offset",
     "inputs", "controls", "input_descs", "output_descs", "passes", "originals", "subgraphs"),
    ("input_producer", "input_index"),
    ("dtype", "layout", "dims", "origin_layout", "origin_dims", "dump_name", "dump_index", "dump_layout"),
)  # fmt: skip
#: A column of counts, and the one that holds so many entries in all.
_COUNTED = (
    ("graph_ops", "name"), ("inputs", "input_producer"), ("controls", "control"), ("input_descs", "input_desc"),
    ("output_descs", "output_desc"), ("passes", "pass"), ("originals", "original"), ("subgraphs", "subgraph"),
    ("dims", "dim"), ("origin_dims", "origin_dim"),
)  # fmt: skip
#: Counts that may be -1: the graph does not say.
_MAY_BE_UNSAID = ("originals", "origin_dims")
_TEXTS = ("skim_names", "skim_sources", "notes", "graph_name", "name", "type", "kernel", "kernel_lib", "control",
          "pass", "original", "subgraph", "dtype", "layout")  # fmt: skip
_TEXTS_OR_NONE = ("graph_attrs", "l1_group", "input_producer", "origin_layout", "dump_name", "dump_layout")
_ReadColumns = Mapping[str, "memoryview[int]"]


@dataclass(slots=True)
class _ReadFile:
    """What was read of a file at `signature`."""

    signature: Signature
    file: GraphFile | None = None
    skim: GraphSkim | None = None


@dataclass
class GraphStore:
    """Reads graph files, each once as long as it does not change. Threads may share it."""

    cache: CacheFiles = field(default_factory=CacheFiles)
    _entries: dict[str, _ReadFile] = field(default_factory=dict, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)

    def load(self, path: str) -> GraphFile:
        """Return the graphs of a file, see `load_graph_file`."""
        with self._lock:
            entry = self._entry(path)
            if entry is None:
                return load_graph_file(path)  # which says what is wrong
            if entry.file is None:
                self._find_cached(path, entry)
            return entry.file or self._read(path, entry)

    def skim(self, path: str) -> GraphSkim:
        """Return an overview of a file, see `skim_graph_file`."""
        with self._lock:
            entry = self._entry(path)
            if entry is None:
                return skim_graph_file(path)
            if entry.skim is None:
                self._find_cached(path, entry)
            if entry.skim is None and _is_msprobe(path):
                self.load(path)
            if entry.skim is None:
                entry.skim = skim_graph_file(path)
                with _not_cached(path):
                    self.cache.write(path, entry.signature, _VERSION, _Columns().of_skim(entry.skim))
            return entry.skim

    def forget(self) -> None:
        """Drops everything that was read; cache files stay, as they are checked whenever they are read."""
        with self._lock:
            self._entries.clear()

    def signature(self, path: str) -> Signature | None:
        """The signature that a file had when it was read; None for one that was not."""
        entry = self._entries.get(path)
        return None if entry is None else entry.signature

    def _entry(self, path: str) -> _ReadFile | None:
        signature = signature_of(path)
        if signature is None:
            self._entries.pop(path, None)
            return None
        entry = self._entries.get(path)
        if entry is None or entry.signature != signature:
            entry = self._entries[path] = _ReadFile(signature)
        return entry

    def _find_cached(self, path: str, entry: _ReadFile) -> None:
        """Takes what a cache file has of the graph file."""
        if _is_msprobe(path):
            return
        payload = self.cache.read(path, entry.signature, _VERSION)
        if payload is None:
            return
        try:
            skim, file = _decode(payload, path, entry.signature)
        except OddCacheError as error:
            _log.info("%s: its cache file is odd (%s); the graph file is read instead", path, error)
            return
        entry.skim = skim
        entry.file = entry.file or file

    def _read(self, path: str, entry: _ReadFile) -> GraphFile:
        """Read a graph file. A large one is kept as in its cache file, which is written: that takes less memory."""
        file: GraphFile | None = None
        if _is_msprobe(path):
            file = read_msprobe_graph(path)
        elif entry.signature[0] < LARGE:  # which reads as fast as a cache file
            file = load_graph_file(path)
        else:
            data = read_graph_bytes(path)
            with _not_cached(path):
                payload = _columns_of_graph(data, path, entry.signature)
                entry.skim, file = _decode(payload, path, entry.signature)
                self.cache.write(path, entry.signature, _VERSION, payload)
            if file is None:
                file = load_graph_ops(data, path, entry.signature)
        entry.file, entry.skim = file, entry.skim or _skim_of(file, entry.signature)
        return file


@contextmanager
def _not_cached(path: str) -> Iterator[None]:
    """Leave a graph with numbers and texts that no real one has out of the cache."""
    try:
        yield
    except (OddCacheError, OverflowError, UnicodeEncodeError) as error:
        _log.info("%s: not cached: %s", path, error)


def _is_msprobe(path: str) -> bool:
    return posixpath.basename(path) == DUMP_FILE


def ops_in(path: str) -> Iterable[tuple[str, str]]:
    """Return the names and types of the ops of a graph file, see `skim_ops`."""
    if _is_msprobe(path):
        return ((op.name, op.type) for op in read_msprobe_graph(path).ops)
    return skim_ops(path)


def _skim_of(file: GraphFile, signature: Signature) -> GraphSkim:
    types = set(file.column("type"))
    return GraphSkim(
        path=file.path,
        size=signature[0],
        graph_names=tuple(graph.name for graph in file.graphs),
        data_source_types=tuple(kind for kind in DATA_SOURCE_TYPES if kind in types),
        op_count=len(file.ops),
    )


# ---- what is in them


class _Texts:
    """A table of distinct texts."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def or_none(self, text: str | None) -> int:
        """The number of a text, -1 for None."""
        return -1 if text is None else self(text)

    def encoded(self) -> bytes:
        """Number of texts, their lengths, and all of them."""
        lengths = array("q", map(len, self._numbers)).tobytes()
        return struct.pack("<Q", len(self._numbers)) + lengths + "".join(self._numbers).encode("utf-8")


class _Columns:
    """What a cache file has of a graph file; ops are taken one by one, and none of them is kept."""

    def __init__(self) -> None:
        self._texts = _Texts()
        self._columns: dict[str, array[int]] = {name: array("q") for name in _COLUMNS}
        self._descs: dict[TensorDesc, int] = {}

    def take(self, ops: Iterable[Op]) -> tuple[Op, ...]:
        """Take the ops of the next graph, of which nothing is left for the graph itself."""
        ops_before = len(self._columns["name"])
        for op in ops:
            self._take(op)
        self._columns["graph_ops"].append(len(self._columns["name"]) - ops_before)
        return ()

    def of_file(self, file: GraphFile) -> bytes:
        """The contents of a cache file, of a graph file whose ops were taken."""
        columns, texts = self._columns, self._texts
        columns["notes"].extend(texts(json.dumps(note.to_dict())) for note in file.notes)
        for graph in file.graphs:
            columns["graph_name"].append(texts(graph.name))
            columns["graph_attrs"].append(texts.or_none(_text_of_attrs(graph.attrs)))
        return self._encoded()

    def of_skim(self, skim: GraphSkim) -> bytes:
        """The contents of a cache file, of a graph file that was skimmed."""
        columns, texts = self._columns, self._texts
        columns["skim_names"].extend(map(texts, skim.graph_names))
        columns["skim_sources"].extend(map(texts, skim.data_source_types))
        columns["skim_count"].append(skim.op_count)
        return self._encoded()

    def _encoded(self) -> bytes:
        parts: list[bytes] = []
        for column in self._columns.values():
            parts += [struct.pack("<Q", len(column)), column.tobytes()]
        return b"".join([*parts, self._texts.encoded()])

    def _take(self, op: Op) -> None:
        columns, texts = self._columns, self._texts
        originals = op.original_names or ()
        for name, value in (
            ("name", texts(op.name)),
            ("type", texts(op.type)),
            ("id", _number(op.id)),
            ("stream", _number(op.stream_id)),
            ("kernel", texts(op.kernel_name)),
            ("kernel_lib", texts(op.kernel_lib)),
            ("l1_group", texts.or_none(op.l1_fusion_group)),
            ("is_multiop", int(op.is_multiop)),
            ("parent", _number(op.parent_index)),
            ("offset", op.attrs.offset if isinstance(op.attrs, LazyAttrs) else -1),
            ("inputs", len(op.inputs)),
            ("controls", len(op.control_inputs)),
            ("input_descs", len(op.input_descs)),
            ("output_descs", len(op.output_descs)),
            ("passes", len(op.pass_names)),
            ("originals", -1 if op.original_names is None else len(originals)),
            ("subgraphs", len(op.subgraph_names)),
        ):
            columns[name].append(value)
        columns["input_producer"].extend(-1 if edge is None else texts(edge.producer) for edge in op.inputs)
        columns["input_index"].extend(0 if edge is None else edge.index for edge in op.inputs)
        columns["control"].extend(map(texts, op.control_inputs))
        columns["input_desc"].extend(map(self._desc, op.input_descs))
        columns["output_desc"].extend(map(self._desc, op.output_descs))
        columns["pass"].extend(map(texts, op.pass_names))
        columns["original"].extend(map(texts, originals))
        columns["subgraph"].extend(map(texts, op.subgraph_names))

    def _desc(self, desc: TensorDesc) -> int:
        """The number of a tensor; one that stands in many places has a few of them."""
        number = self._descs.get(desc)
        if number is not None:
            return number
        if len(self._descs) >= _MOST_DESCS:
            self._descs.clear()
        columns, texts = self._columns, self._texts
        number = self._descs[desc] = len(columns["dtype"])
        for name, value in (
            ("dtype", texts(desc.dtype)),
            ("layout", texts(desc.layout)),
            ("dims", len(desc.shape)),
            ("origin_layout", texts.or_none(desc.origin_layout)),
            ("origin_dims", -1 if desc.origin_shape is None else len(desc.origin_shape)),
            ("dump_name", texts.or_none(desc.dump_origin_name)),
            ("dump_index", _number(desc.dump_origin_index)),
            ("dump_layout", texts.or_none(desc.dump_origin_layout)),
        ):
            columns[name].append(value)
        columns["dim"].extend(desc.shape)
        columns["origin_dim"].extend(desc.origin_shape or ())
        return number


def _columns_of_graph(data: bytes, path: str, signature: Signature) -> bytes:
    """The contents of a cache file."""
    columns = _Columns()
    file = load_graph_lines(data, path, signature, columns.take)
    if file is None:
        columns = _Columns()  # without what was taken of the lines
        file = load_graph_ops(data, path, signature, columns.take)
    return columns.of_file(file)


def _text_of_attrs(attrs: Mapping[str, Any]) -> str | None:
    """The attributes of a graph as JSON; None where they are read from the graph file when somebody asks for them."""
    nodes = attrs.text_nodes if isinstance(attrs, Attrs) else None
    text = None if nodes is None else json.dumps(nodes)
    return text if text is not None and len(text) <= _MAX_ATTRS else None


def _graph_attrs(text: str) -> Attrs:
    try:
        nodes = json.loads(text)
        if not isinstance(nodes, dict) or not all(map(_is_node, nodes.values())):
            raise OddCacheError("attributes of a graph that are none")
    except (ValueError, RecursionError) as error:
        raise OddCacheError(str(error)) from None
    return Attrs(nodes, TextScalars())


def _is_node(value: object) -> bool:
    """Return whether a value is a message as it stands in a text: by field, tokens and messages."""
    if not isinstance(value, dict):
        return False
    items = [item for items in value.values() for item in (items if isinstance(items, list) and items else (None,))]
    # A text is read as Latin-1: its tokens have no other characters.
    return all(max(item, default="") <= "\xff" if isinstance(item, str) else _is_node(item) for item in items)


def _number(value: int | None) -> int:
    if value == _NONE:
        raise OverflowError(f"{value} stands for no number")
    return _NONE if value is None else value


def _decode(payload: bytes, path: str, signature: Signature) -> tuple[GraphSkim, GraphFile | None]:
    """The skim, and the graphs where the file has them. Everything is checked before anything is made of it."""
    columns, texts = _columns_of(payload)
    _check(columns, len(texts), signature[0])
    if len(columns["skim_count"]):
        skim = GraphSkim(
            path=path,
            size=signature[0],
            graph_names=tuple(texts[at] for at in columns["skim_names"]),
            data_source_types=tuple(texts[at] for at in columns["skim_sources"]),
            op_count=columns["skim_count"][0],
        )
        return skim, None
    with paused_gc():
        source = AttrSource(path, signature)
        table = _CachedOps(columns, texts, source)
        graphs = tuple(
            Graph(
                name=texts[name],
                ops=LazyOps(table, range(*ends)),
                attrs=LazyAttrs(source, number, is_graph=True) if attrs < 0 else _graph_attrs(texts[attrs]),
            )
            for number, (name, ends, attrs) in enumerate(
                zip(columns["graph_name"], pairwise(_starts(columns["graph_ops"])), columns["graph_attrs"], strict=True)
            )
        )
    file = GraphFile(path=path, graphs=graphs, notes=tuple(_note(texts[at]) for at in columns["notes"]))
    return _skim_of(file, signature), file


def _note(text: str) -> Message:
    try:
        return Message.from_dict(json.loads(text))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise OddCacheError("a note that is no message") from error


def _columns_of(payload: bytes) -> tuple[_ReadColumns, list[str]]:
    columns: dict[str, memoryview[int]] = {}
    position = 0

    def numbers() -> memoryview[int]:
        nonlocal position
        if position + 8 > len(payload):
            raise OddCacheError("cut off")
        (count,) = struct.unpack_from("<Q", payload, position)
        begin, position = position + 8, position + 8 + 8 * count
        if position > len(payload):
            raise OddCacheError("cut off")
        return memoryview(payload)[begin:position].cast("q")

    for name in _COLUMNS:
        columns[name] = numbers()
    lengths = numbers()
    try:
        text = payload[position:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise OddCacheError(str(error)) from None
    if (len(lengths) and min(lengths) < 0) or sum(lengths) != len(text):
        raise OddCacheError("texts of wrong lengths")
    ends = list(accumulate(lengths))
    return columns, [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _check(columns: _ReadColumns, text_count: int, size: int) -> None:
    """Raise OddCacheError unless all numbers point to something."""

    def within(name: str, low: int, end: int) -> None:
        column = columns[name]
        if len(column) and not (low <= min(column) and max(column) < end):
            raise OddCacheError(f"{name} out of range")

    for names in _SAME_LENGTH:
        if len({len(columns[name]) for name in names}) != 1:
            raise OddCacheError(f"{', '.join(names)} of different lengths")
    for counts, counted in _COUNTED:
        within(counts, -1 if counts in _MAY_BE_UNSAID else 0, len(columns[counted]) + 1)
        unsaid = sum(count < 0 for count in columns[counts]) if counts in _MAY_BE_UNSAID else 0
        if sum(columns[counts]) + unsaid != len(columns[counted]):
            raise OddCacheError(f"{counted} of a wrong length")
    for name in _TEXTS:
        within(name, 0, text_count)
    for name in _TEXTS_OR_NONE:
        within(name, -1, text_count)
    for name in ("input_desc", "output_desc"):
        within(name, 0, len(columns["dtype"]))
    within("input_index", 0, 1 << 63)
    within("is_multiop", 0, 2)
    within("offset", -1, size)
    within("skim_count", 0, 1 << 63)
    if any(_NONE < value < 0 for value in columns["parent"]):
        raise OddCacheError("parent out of range")
    if len(columns["skim_count"]) > 1 or not len(columns["skim_count"]) + len(columns["graph_name"]):
        raise OddCacheError("neither of a graph file nor of a skim")


#: Fields that are lists, and their columns: how many entries each op has, and the entries of all of them.
_LISTS = {
    "pass_names": ("passes", "pass"),
    "subgraph_names": ("subgraphs", "subgraph"),
    "control_inputs": ("controls", "control"),
    "original_names": ("originals", "original"),
    "input_descs": ("input_descs", "input_desc"),
    "output_descs": ("output_descs", "output_desc"),
}


class _CachedOps(OpTable):
    """The ops of a cache file."""

    def __init__(self, columns: _ReadColumns, texts: list[str], source: AttrSource) -> None:
        super().__init__(len(columns["name"]))
        self._numbers_of = columns
        self._texts = texts
        self._source = source
        self._descs: dict[int, TensorDesc] = {}
        #: Where the entries of each op, or tensor, start in a column of all together, by the column of their counts.
        self._starts: dict[str, array[int]] = {}
        self._made: dict[str, list[Any]] = {}

    def make(self, number: int) -> Op:
        columns, texts = self._numbers_of, self._texts
        l1_group = columns["l1_group"][number]
        return Op(
            name=texts[columns["name"][number]],
            type=texts[columns["type"][number]],
            id=_value(columns["id"][number]),
            inputs=self._field("inputs", number),
            control_inputs=self._field("control_inputs", number),
            input_descs=self._field("input_descs", number),
            output_descs=self._field("output_descs", number),
            pass_names=self._field("pass_names", number),
            original_names=self._field("original_names", number),
            stream_id=_value(columns["stream"][number]),
            kernel_name=texts[columns["kernel"][number]],
            kernel_lib=texts[columns["kernel_lib"][number]],
            l1_fusion_group=None if l1_group < 0 else texts[l1_group],
            is_multiop=bool(columns["is_multiop"][number]),
            parent_index=_value(columns["parent"][number]),
            subgraph_names=self._field("subgraph_names", number),
            attrs=LazyAttrs(self._source, number, columns["offset"][number]),
        )

    def prepare(self) -> None:
        for name in ("inputs", *_LISTS):
            self.column(name)

    def _field(self, name: str, number: int) -> Any:
        """Return a field of an op that is a list."""
        made = self._made.get(name)
        if made is not None:
            return made[number]
        if name == "inputs":
            return self._inputs(number)
        counts, entries = _LISTS[name]
        if self._numbers_of[counts][number] < 0:
            return None
        return tuple(map(self._maker(entries), self._of(number, counts, entries)))

    def _maker(self, entries: str) -> Callable[[int], Any]:
        """Return what makes an entry of a list of its number: a text, or the description of a tensor."""
        return self._desc if entries in ("input_desc", "output_desc") else self._texts.__getitem__

    def _of(self, number: int, counts: str, entries: str) -> Sequence[int]:
        """Entries of an op in a column of all ops together."""
        starts = self._starts.get(counts)
        if starts is None:
            starts = self._starts[counts] = _starts(self._numbers_of[counts])
        return self._numbers_of[entries][starts[number] : starts[number + 1]]

    def _inputs(self, number: int) -> tuple[Edge | None, ...]:
        producers = self._of(number, "inputs", "input_producer")
        indices = self._of(number, "inputs", "input_index")
        return tuple(
            None if producer < 0 else Edge(producer=self._texts[producer], index=index)
            for producer, index in zip(producers, indices, strict=True)
        )

    def _desc(self, number: int) -> TensorDesc:
        desc = self._descs.get(number)
        if desc is None:
            columns, texts = self._numbers_of, self._texts
            layout, name, dump_layout = (columns[key][number] for key in ("origin_layout", "dump_name", "dump_layout"))
            has_shape = columns["origin_dims"][number] >= 0
            desc = self._descs[number] = TensorDesc(
                dtype=texts[columns["dtype"][number]],
                layout=texts[columns["layout"][number]],
                shape=tuple(self._of(number, "dims", "dim")),
                origin_layout=None if layout < 0 else texts[layout],
                origin_shape=tuple(self._of(number, "origin_dims", "origin_dim")) if has_shape else None,
                dump_origin_name=None if name < 0 else texts[name],
                dump_origin_index=_value(columns["dump_index"][number]),
                dump_origin_layout=None if dump_layout < 0 else texts[dump_layout],
            )
        return desc

    def column(self, name: str) -> Sequence[Any]:
        if name not in self._made:
            self._made[name] = self._column(name)
        return self._made[name]

    def _column(self, name: str) -> list[Any]:
        columns, texts = self._numbers_of, self._texts
        if name in ("name", "type"):
            return [texts[at] for at in columns[name]]
        if name in _LISTS:
            counts, entries = _LISTS[name]
            lists = _split(map(self._maker(entries), columns[entries]), columns[counts])
            if counts not in _MAY_BE_UNSAID:
                return lists
            return [None if count < 0 else made for made, count in zip(lists, columns[counts], strict=True)]
        if name == "inputs":
            ends = zip(columns["input_producer"], columns["input_index"], strict=True)
            edges = (None if at < 0 else Edge(producer=texts[at], index=index) for at, index in ends)
            return _split(edges, columns["inputs"])
        if name == "l1_fusion_group":
            return [None if at < 0 else texts[at] for at in columns["l1_group"]]
        if name == "parent_index":
            return list(map(_value, columns["parent"]))
        if name == "is_recorded":
            return [False] * len(self)
        return [getattr(self.op(number), name) for number in range(len(self))]


def _split(values: Iterable[T], counts: memoryview[int]) -> list[tuple[T, ...]]:
    """The values in tuples of so many each; a count of -1 gives none."""
    whole = tuple(values)
    return [whole[start:end] for start, end in pairwise(_starts(counts))]


def _starts(counts: memoryview[int]) -> array[int]:
    """Where the entries of each start, and where the last end; a count of -1 is of none."""
    values = counts.tolist()
    return array("q", accumulate([max(count, 0) for count in values] if -1 in values else values, initial=0))


def _value(number: int) -> int | None:
    return None if number == _NONE else number
