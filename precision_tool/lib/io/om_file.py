"""Offline models (`.om`): header, parts and graphs; GE's messages (`ge_ir.proto`, FORMATS.md §4) as data."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from precision_tool.lib.io.data_types import BY_CODE
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.lazy_nodes import LazyNodes
from precision_tool.lib.io.proto_messages import SPAN, Schema
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.wire import (
    FIELD_BYTES,
    FIELD_SHARE,
    MAX_GRAPH_FIELDS,
    OP_MEMORY,
    OP_SHARE,
    WINDOW,
    WireReader,
    refuse_many_ops,
    too_many_fields,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown

_LINES = {
    "ModelDef": "name 1 string/version 2 uint/custom_version 3 string/graph 7 *GraphDef/attr 11 *AttrEntry",
    "GraphDef": "name 1 string/input 4 *string/output 5 *string/op 6 *OpDef/attr 11 *AttrEntry",
    "AttrEntry": "key 1 string/value 2 AttrDef",
    "OpDef": "name 1 string/type 2 string/input 5 *string/attr 10 *AttrEntry/has_out_attr 20 bool/id 21 int/"
    "stream_id 22 int/input_name 23 *string/src_name 24 *string/src_index 25 *int/dst_name 26 *string/"
    "dst_index 27 *int/input_i 28 *int/output_i 29 *int/workspace 30 *int/workspace_bytes 31 *int/"
    "is_input_const 32 *bool/input_desc 33 *TensorDescriptor/output_desc 34 *TensorDescriptor/"
    "subgraph_name 35 *string",
    "ShapeDef": "dim 1 *int",
    "TensorDescriptor": "name 1 string/dtype 2 dtype/shape 3 ShapeDef/layout 4 string/attr 5 *AttrEntry/"
    "has_out_attr 9 bool/size 10 int/weight_size 11 int/reuse_input 12 bool/output_tensor 13 bool/"
    "device_type 14 string/input_tensor 15 bool/real_dim_cnt 16 int/reuse_input_index 17 int/data_offset 18 int/"
    "cmps_size 19 int/cmps_tab 20 string/cmps_tab_offset 21 int",
    "TensorDef": "desc 1 TensorDescriptor/data 2 bytes",
    "NamedAttrs": "name 1 string/attr 2 *AttrEntry",
    "ListInt": "list_i 1 *int",
    "ListListInt": "list_list_i 1 *ListInt",
    "ListFloat": "list_f 1 *float",
    "ListListFloat": "list_list_f 1 *ListFloat",
    "ListValue": "s 2 *bytes/i 3 *int/f 4 *float/b 5 *bool/bt 7 *bytes/td 8 *TensorDescriptor/t 9 *TensorDef/"
    "g 10 *GraphDef/na 11 *NamedAttrs/dt 12 *int/val_type 20 val_type",
    "AttrDef": "list 1 ?ListValue/s 2 ?bytes/i 3 ?int/f 4 ?float/b 5 ?bool/bt 6 ?bytes/func 10 ?NamedAttrs/"
    "td 11 ?TensorDescriptor/t 12 ?TensorDef/g 13 ?GraphDef/list_list_int 14 ?ListListInt/dt 15 ?int/"
    "list_list_float 16 ?ListListFloat",
}


_LIST_TYPES = (
    "VT_LIST_NONE", "VT_LIST_STRING", "VT_LIST_INT", "VT_LIST_FLOAT", "VT_LIST_BOOL", "VT_LIST_BYTES",
    "VT_LIST_TENSOR_DESC", "VT_LIST_TENSOR", "VT_LIST_GRAPH", "VT_LIST_NAMED_ATTRS", "VT_LIST_DATA_TYPE",
)  # fmt: skip
#: enum → the name of each of its values.
ENUMS: dict[str, dict[int, str]] = {
    "dtype": {code: row.ge_name for code, row in BY_CODE.items()},
    "val_type": dict(enumerate(_LIST_TYPES)),
}
_SCHEMA = Schema(_LINES, ENUMS, deep="io.om.deep", field="io.om.field")
#: The same, but of the ops of a model's own graphs it only says where they are.
_FRAME_LINES = {
    "ModelDef": _LINES["ModelDef"].replace("*GraphDef", "*ModelGraph"),
    "ModelGraph": _LINES["GraphDef"].replace("*OpDef", f"*{SPAN}"),
}
_FRAME_SCHEMA = Schema(_LINES | _FRAME_LINES, ENUMS, deep="io.om.deep", field="io.om.field")
#: message → its fields by name.
MESSAGES = _SCHEMA.messages


# --- attributes whose names and texts are numbers of two lists in the model (`om_compress_version` 1)
#
# A name that begins with a zero byte is a number to base 127, least digit first, each digit a byte one above it; it
# counts in `attr_name_enum`. Where `attrs_use_string_value` has true for that name, the value is a number, or a list of
# numbers, that count in `attr_value_enum`. Source: GE's ModelCompressManager, EnumAttrUtils and Pb2Json.

_VERSION, _NAMES, _TEXTS, _IS_TEXT = (
    b"om_compress_version", b"attr_name_enum", b"attr_value_enum", b"attrs_use_string_value"
)  # fmt: skip
_KNOWN_VERSION = 1
_BASE = 127
#: Digits of a number in a name; no list is as long as more of them count.
_MAX_DIGITS = 8

_Tree = dict[str, list[Any]]
#: Gives what there is to say of a file, as far as it was read.
Notes: TypeAlias = Callable[[], tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class _Lists:
    """What the numbers in the attributes of a model count in."""

    names: Sequence[bytes]
    texts: Sequence[bytes]
    is_text: Sequence[bool]

    def restore(self, tree: _Tree) -> int:
        """Give the attributes of a tree their names and texts, and return of how many that cannot be done."""
        return sum(not self._restore(entry) for node in _nodes(tree) for entry in node.get("attr", ()))

    def _restore(self, entry: _Tree) -> bool:
        key = _key(entry)
        if not key.startswith(b"\0"):
            return True
        number = sum((digit - 1) * _BASE**place for place, digit in enumerate(key[1 : _MAX_DIGITS + 1]))
        if len(key) - 1 > _MAX_DIGITS or not 0 <= number < min(len(self.names), len(self.is_text)):
            return False
        value = _last(entry, "value")
        if self.is_text[number] and isinstance(value, dict):
            holder = value if "i" in value else _last(value, "list")
            if isinstance(holder, dict):
                numbers = holder.pop("i", [])
                if not all(isinstance(index, int) and 0 <= index < len(self.texts) for index in numbers):
                    return False
                if numbers:
                    holder["s"] = [self.texts[index] for index in numbers]
                if "val_type" in holder:
                    holder["val_type"] = ["VT_LIST_STRING"]
        entry["key"] = [self.names[number]]
        return True


def _take_lists(root: _Tree) -> tuple[_Lists | None, Message | None]:
    """Take the lists out of a ModelDef's tree, None without any; with what to say of those of a newer version."""
    lists = {key: value for key, value in _entries(root) if key in (_VERSION, _NAMES, _TEXTS, _IS_TEXT)}
    if not lists:
        return None, None
    root["attr"] = [entry for entry in root["attr"] if _key(entry) not in lists]
    if not root["attr"]:
        del root["attr"]
    version = _last(lists.get(_VERSION), "i")
    if version != _KNOWN_VERSION:  # without one the lists mean nothing, to GE as well
        return None, None if version is None else Message("note.io.om_version", version=version)
    names, texts, is_text = (
        _listed(lists.get(key), field) for key, field in ((_NAMES, "s"), (_TEXTS, "s"), (_IS_TEXT, "b"))
    )
    return _Lists(names, texts, is_text), None


def _nodes(root: _Tree) -> Iterator[_Tree]:
    """The messages of a tree that have attributes, whatever their depth; those of unknown names are taken out."""
    waiting: list[_Tree] = [root]
    while waiting:
        node = waiting.pop()
        if "attr" in node:
            yield node
            node["attr"] = [entry for entry in node["attr"] if not _key(entry).startswith(b"\0")]
        waiting += (item for items in node.values() for item in items if isinstance(item, dict))


def _entries(node: _Tree) -> Iterator[tuple[bytes, _Tree]]:
    for entry in node.get("attr", ()):
        value = _last(entry, "value")
        yield _key(entry), value if isinstance(value, dict) else {}


def _key(entry: Any) -> bytes:
    key = _last(entry, "key")
    return key if isinstance(key, bytes) else b""


def _last(node: Any, field: str) -> Any:
    values = node.get(field) if isinstance(node, dict) else None
    return values[-1] if values else None


def _listed(value: _Tree | None, field: str) -> list[Any]:
    last = _last(value, "list")
    return last.get(field, []) if isinstance(last, dict) else []


# --- Offline models (`.om`): their header, their table of parts, and the graphs in them ---


#: How an `.om` begins.
MAGIC = b"IMOD"
#: magic, header length, version, checksum, length, encrypted, checksummed, type, mode, name, ops, user info, IR
#: version, number of models, platform version, platform type, padding, length where 32 bits do not hold it.
_HEADER = struct.Struct("<4sII64sIBBBB32sI32sII20sB3xQ")
_HEADER_SIZE = 256
_MODEL_DEF = 0
_PARTS = {
    0: "model definition", 1: "weights", 2: "tasks", 3: "kernels", 4: "AI CPU kernels", 5: "shared objects",
    6: "flow model", 7: "flow submodel", 8: "inputs and outputs", 9: "static tasks", 10: "dynamic tasks",
    11: "task parameters", 20: "nano model", 21: "nano tasks", 22: "nano kernel arguments",
}  # fmt: skip
#: Entries of a table: (layout, its size, where the first one stands). Releases before the 64-bit one wrote the latter.
_TABLES = (("<I4xQQ", 24, 8), ("<III", 12, 4))
_MAX_PARTS = 1000
#: Fields of an op, whose memory is that of a whole graph of another format.
_MOST_FIELDS = OP_MEMORY // FIELD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a model: what it is and where it lies in the file."""

    kind: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What it is, in words."""
        return _PARTS.get(self.kind, f"part of kind {self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OmHeader:
    """What the header of an offline model says, and the parts of its models."""

    name: str
    platform: str
    models: tuple[tuple[Part, ...], ...]


class _Bytes:
    """Bytes in memory as something to read from."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.size, self._data = path, len(data), data

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes."""
        return self._data[offset : offset + count]


def read_header(source: StoredFile | _Bytes, size: int | None = None) -> OmHeader:
    """Header and tables of an offline model of `size` bytes; FormatError says which of them cannot be read."""
    size = source.size if size is None else size
    if source.read_at(0, min(len(MAGIC), source.size)) != MAGIC:
        raise FormatError.of(source.path, "io.om.magic", magic=MAGIC.decode())
    if source.size < _HEADER_SIZE:
        raise FormatError.of(source.path, "io.om.header")
    fields = _HEADER.unpack(source.read_at(0, _HEADER.size))
    length, encrypted, name, count, platform, long_length = (
        fields[4], fields[5], fields[9], fields[13], fields[14], fields[16]
    )  # fmt: skip
    if encrypted:
        raise FormatError.of(source.path, "io.om.encrypted", name=shown(_text(name)))
    end = _HEADER_SIZE + (long_length or length)
    if end > size:
        raise FormatError.of(source.path, "io.om.cut_off", end=end, size=size)
    models = []
    position = _HEADER_SIZE
    # A file of one model has 0 or 1 here.
    for number in range(max(1, count)):
        parts = _table(source, position, end)
        if parts is None:
            if number:
                break
            raise FormatError.of(source.path, "io.om.table", offset=position)
        models.append(parts)
        position = max(part.stop for part in parts)
    return OmHeader(name=_text(name), platform=_text(platform), models=tuple(models))


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _table(source: StoredFile | _Bytes, position: int, end: int) -> tuple[Part, ...] | None:
    """The parts that the table at `position` tells, in whichever of its two layouts they lie within the file."""
    if position + 4 > min(end, source.size):
        return None
    (count,) = struct.unpack("<I", source.read_at(position, 4))
    if not 0 < count <= _MAX_PARTS:
        return None
    for layout, step, first in _TABLES:
        start = position + first + count * step
        if start > min(end, source.size):
            continue
        entries = struct.iter_unpack(layout, source.read_at(position + first, count * step))
        parts = tuple(Part(kind=kind, start=start + at, stop=start + at + size) for kind, at, size in entries)
        if all(part.stop <= end and part.kind < 1000 for part in parts):
            return parts
    return None


def read_om_header(path: str) -> OmHeader:
    """Header and tables of an offline model."""
    with open_file(path) as file:
        return read_header(file)


def model_bytes(file: StoredFile) -> int:
    """How many bytes of the file hold the header, the tables and the definitions of all its models."""
    return max(part.stop for part in _definitions(read_header(file), file.path))


def _definitions(header: OmHeader, path: str) -> list[Part]:
    definitions = [part for parts in header.models for part in parts if part.kind == _MODEL_DEF]
    if not definitions:
        listed = ", ".join(part.name for parts in header.models for part in parts)
        raise FormatError.of(path, "io.om.no_model", parts=listed or "-")
    return definitions


def parse_om(data: bytes, path: str, *, first: bool = False) -> tuple[dict[str, list[Any]], Notes]:
    """The tree of the models in the first bytes of an `.om`, as far as `model_bytes`, and notes about the file.

    With `first` that of the first model alone. Graphs of a later model that have the name of an earlier one get its
    number: `graph (model 2)`. The notes count what is lost in the ops that were read.
    """
    source = _Bytes(path, data)
    # The parts behind, weights as a rule, are not in `data`.
    header = read_header(source, 1 << 63)
    parts = _definitions(header, path)
    models = [_Model(source, part) for part in parts[: 1 if first else None]]
    root = models[0].root
    if len(models) > 1:
        _tell_apart(models)
        for other in models[1:]:
            root.setdefault("graph", []).extend(other.graphs)

    def notes() -> Iterator[Message]:
        if len(models) > 1:
            yield Message("note.io.om_models", count=len(models))
        for number, model in enumerate(models, 1):
            what = model.note()
            if what is not None:
                yield Message("note.io.om_model", number=number, what=what)
        if first and len(parts) > 1:
            yield Message("note.io.om_first", count=len(parts))

    return root, lambda: tuple(notes())


class _Model:
    """A model definition as a tree, whose ops are read when somebody asks for them."""

    def __init__(self, source: _Bytes, part: Part) -> None:
        self._source, self._part = source, part
        #: The names of graphs that are changed, as they are in the file.
        self.renamed: dict[bytes, bytes] = {}
        #: How far ops were read once, the fields in these, and the attributes that were lost.
        self._read_to, self._fields, self._lost = part.start, 0, 0
        wire = WireReader(source.path, part.stop, source.read_at, max_fields=_MOST_FIELDS, field_share=OP_SHARE)
        with self._in_part():
            self.root = _FRAME_SCHEMA.read(wire, part.start, part.stop, "ModelDef")
            self.graphs: list[dict[str, Any]] = self.root.get("graph", [])
            count = sum(len(graph.get("op", ())) for graph in self.graphs)
            refuse_many_ops(source.path, count, part.stop, part.stop, OP_SHARE)
        self._lists, self._note = _take_lists(self.root)
        if self._lists is not None:
            self._lost = self._lists.restore(self.root)
        for graph in self.graphs:
            if "op" in graph:
                graph["op"] = LazyNodes(graph["op"], self._op)

    def note(self) -> Message | None:
        """What there is to say of the attributes of the ops that were read."""
        return Message("note.io.om_attributes", count=self._lost) if self._lost else self._note

    def _op(self, span: tuple[int, int]) -> _Tree:
        start, stop = span
        size = self._part.stop
        wire = WireReader(
            self._source.path, size, self._source.read_at, max_fields=_MOST_FIELDS, window=min(WINDOW, stop - start),
            field_share=size,
        )  # fmt: skip
        with self._in_part():
            op = _SCHEMA.read(wire, start, stop, "OpDef")
            lost = 0 if self._lists is None else self._lists.restore(op)
            if start >= self._read_to:
                self._read_to, self._lost = stop, self._lost + lost
                self._count(wire.fields_walked)
        if self.renamed and "subgraph_name" in op:
            op["subgraph_name"] = [self.renamed.get(name, name) for name in op["subgraph_name"]]
        return op

    def _count(self, fields: int) -> None:
        """Add the fields of an op; FormatError where there are too many for what was read up to now."""
        self._fields += fields
        if self._fields > MAX_GRAPH_FIELDS + self._read_to // FIELD_SHARE:
            raise too_many_fields(
                self._source.path, self._fields, self._read_to, self._part.stop, MAX_GRAPH_FIELDS, FIELD_SHARE
            )

    @contextmanager
    def _in_part(self) -> Iterator[None]:
        part = self._part
        try:
            yield
        except FormatError as error:
            raise FormatError.of(
                self._source.path, "io.om.part", offset=error.offset,
                reason=error.reason_message, part=part.name, start=part.start, stop=part.stop,
            ) from None  # fmt: skip


#: What stands behind the name of a graph whose name an earlier model of the file has.
_OF_MODEL = re.compile(r" \(model \d+\)$")


def name_in_model(name: str) -> str:
    """The name of a graph as its own model has it."""
    return _OF_MODEL.sub("", name)


def _tell_apart(models: Sequence[_Model]) -> None:
    """Give the graphs of later models whose names an earlier one has the number of their model."""
    taken: set[bytes] = set()
    for number, model in enumerate(models, start=1):
        names = {name for graph in model.graphs for name in graph.get("name", ())}
        model.renamed = {name: name + f" (model {number})".encode() for name in names & taken}
        for graph in model.graphs:
            if "name" in graph:
                graph["name"] = [model.renamed.get(name, name) for name in graph["name"]]
        taken |= names


def is_om(path: str) -> bool:
    """Whether a file begins as an offline model."""
    with open_file(path) as file:
        return file.size >= len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC
