"""TensorFlow's graphs: GraphDef, MetaGraphDef (`.meta`) and SavedModel, binary or text, to `GraphFile`.

Source: tensorflow/core/framework/{graph,node_def,attr_value,tensor,tensor_shape}.proto and
core/protobuf/{meta_graph,saved_model}.proto. An attribute is decoded when it is asked for. Of a binary file large ones,
which are weights, are read from the file then. Bodies of functions are not read: an op that calls one has no formula.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from precision_tool.lib.io import proto_text
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.ge_graph import TextScalars, refuse_out_of_proportion
from precision_tool.lib.io.proto_messages import SPAN, Schema
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.tfdbg_files import TYPES
from precision_tool.lib.io.wire import FIELD_SHARE, LENGTH, MAX_GRAPH_FIELDS, WireReader
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc

#: protobuf writes no larger file. A text, whose tree takes several times its size, is refused from this on.
MAX_FILE_SIZE, _MAX_TEXT_SIZE = 1 << 31, 1 << 30
#: Elements of a constant that is decoded.
MAX_ELEMENTS = 1 << 26
#: Axes of a constant that is decoded: as many as every version of numpy has.
_MAX_RANK = 32
#: Attributes of more bytes are left in the file.
_MAX_KEPT = 1 << 12
#: Bytes in which a control character, which no text has, tells a binary file: the tag of an op's type is one.
_HEAD = 1 << 12
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_OP_TYPE = re.compile(rb"[A-Za-z0-9.][A-Za-z0-9_.>]*\Z")
#: TensorFlow's data types by number; the name of ours, or of what has no numbers.
_TYPE_NAMES = {
    "DT_FLOAT": 1, "DT_DOUBLE": 2, "DT_INT32": 3, "DT_UINT8": 4, "DT_INT16": 5, "DT_INT8": 6, "DT_STRING": 7,
    "DT_COMPLEX64": 8, "DT_INT64": 9, "DT_BOOL": 10, "DT_QINT8": 11, "DT_QUINT8": 12, "DT_QINT32": 13,
    "DT_BFLOAT16": 14, "DT_QINT16": 15, "DT_QUINT16": 16, "DT_UINT16": 17, "DT_COMPLEX128": 18, "DT_HALF": 19,
    "DT_RESOURCE": 20, "DT_VARIANT": 21, "DT_UINT32": 22, "DT_UINT64": 23,
}  # fmt: skip
_DTYPES = {**{code: row.name for code, row in TYPES.items()}, 7: "string", 20: "resource", 21: "variant"}
_BY_NAME = {name: _DTYPES[code] for name, code in _TYPE_NAMES.items()}
#: The types of variables' memory.
_REF, _REF_SUFFIX = 100, "_REF"

_TYPE = "type"
_SCHEMA = Schema(
    {
        "SavedModel": f"saved_model_schema_version 1 int/meta_graphs 2 *{SPAN}",
        "MetaGraphDef": f"meta_info_def 1 MetaInfoDef/graph_def 2 {SPAN}",
        "MetaInfoDef": "tags 4 *string/tensorflow_version 5 string",
        "NodeDef": "name 1 string/op 2 string/input 3 *string/attr 5 *AttrEntry",
        "AttrEntry": f"key 1 string/value 2 {SPAN}",
        "NamedAttrs": "name 1 string",
        "Dim": "size 1 int",
        "Shape": "dim 2 *Dim/unknown_rank 3 bool",
        "Tensor": f"dtype 1 {_TYPE}/tensor_shape 2 Shape/tensor_content 4 bytes/float_val 5 *float/"
        "double_val 6 *double/int_val 7 *int/string_val 8 *bytes/scomplex_val 9 *float/int64_val 10 *int/"
        "bool_val 11 *bool/dcomplex_val 12 *double/half_val 13 *int/uint32_val 16 *uint/uint64_val 17 *uint",
        "List": f"s 2 *bytes/i 3 *int/f 4 *float/b 5 *bool/type 6 *{_TYPE}/shape 7 *Shape/tensor 8 *Tensor/"
        "func 9 *NamedAttrs",
        "AttrValue": f"list 1 ?List/s 2 ?bytes/i 3 ?int/f 4 ?float/b 5 ?bool/type 6 ?{_TYPE}/shape 7 ?Shape/"
        "tensor 8 ?Tensor/placeholder 9 ?string/func 10 ?NamedAttrs",
    },
    {_TYPE: {code: name for name, code in _TYPE_NAMES.items()}},
    deep="io.tf.deep",
    field="io.tf.field",
)
#: How the values of a tensor are written, by its field, where it has no content.
_VALUE_FIELDS = {
    5: "float_val", 6: "double_val", 7: "int_val", 9: "scomplex_val", 10: "int64_val", 11: "bool_val",
    12: "dcomplex_val", 13: "half_val", 16: "uint32_val", 17: "uint64_val",
}  # fmt: skip
_ROWS = {row.name: row for row in TYPES.values()}

Node = dict[str, list[Any]]


class _WireScalars:
    """Scalars of the wire format, which the schema has given their types; texts are bytes."""

    data: ClassVar = staticmethod(bytes)
    integer: ClassVar = staticmethod(int)
    number: ClassVar = staticmethod(float)
    boolean: ClassVar = staticmethod(bool)
    word: ClassVar = staticmethod(str)

    @staticmethod
    def text(value: bytes) -> str:
        """A string field."""
        return value.decode("utf-8", "backslashreplace")


_Scalars = _WireScalars | TextScalars


# --- attributes ---


@dataclass(frozen=True, slots=True)
class _Stored:
    """The bytes of an AttrValue: themselves, or None where they stay in the file."""

    path: str
    start: int
    stop: int
    data: bytes | None

    def tree(self) -> Node:
        """Return its fields. FormatError where they are damaged, or the file is another one by now."""
        data, start = self.stored(), self.start
        wire = WireReader(self.path, self.stop, lambda offset, count: data[offset - start : offset - start + count])
        return _SCHEMA.read(wire, self.start, self.stop, "AttrValue")

    def stored(self) -> bytes:
        """Return the bytes. FormatError where the file is another one by now."""
        if self.data is not None:
            return self.data
        with open_file(self.path) as file:
            if file.size < self.stop:
                raise FormatError.of(self.path, "io.tf.changed", offset=self.start)
            return file.read_at(self.start, self.stop - self.start)


class Attrs(Mapping[str, Any]):
    """Attributes of a TensorFlow op as plain Python, each decoded when it is asked for.

    Types are our names (`float32`), texts are str, shapes lists of whole numbers (-1: unknown; None: of unknown rank),
    constants numpy arrays (tuples of str where they are texts), functions the names of these, lists are lists.
    """

    __slots__ = ("_path", "_scalars", "_values")

    def __init__(self, values: Mapping[str, _Stored | Node], scalars: _Scalars, path: str) -> None:
        self._values, self._scalars, self._path = values, scalars, path

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        try:
            return _attr_value(value.tree() if isinstance(value, _Stored) else value, self._scalars)
        except FormatError as error:
            raise FormatError.of(self._path, "io.tf.attribute", key=shown(key), reason=error.reason_message) from None

    def digest(self, key: str) -> str:
        """Return what tells a value from others of this file as it is written, without decoding it."""
        value = self._values[key]
        return sha256(value.stored() if isinstance(value, _Stored) else repr(value).encode()).hexdigest()

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Attrs({list(self._values)})"


def _attr_value(node: Node, scalars: _Scalars) -> Any:
    for kind, values in node.items():
        if kind == "list":
            items = _block(values[-1])
            return [_scalar(each, value, scalars) for each in items for value in items[each] if each in _LISTED]
        if kind in _LISTED:
            return _scalar(kind, values[-1], scalars)
    return None


_LISTED = ("s", "i", "f", "b", "type", "shape", "tensor", "func")


def _scalar(kind: str, value: Any, scalars: _Scalars) -> Any:
    match kind:
        case "s":
            return scalars.text(value)
        case "i":
            return scalars.integer(value)
        case "f":
            return scalars.number(value)
        case "b":
            return scalars.boolean(value)
        case "type":
            return _dtype(value, scalars)
        case "shape":
            return _shape(_block(value), scalars)
        case "tensor":
            return _tensor(_block(value), scalars)
        case _:
            return _text(_block(value), "name", scalars)


def _block(value: Any) -> Node:
    if not isinstance(value, dict):
        raise FormatError.within("io.tf.field", name=shown(str(value)), expected="block")
    return value


def _dtype(value: Any, scalars: _Scalars) -> str:
    """Return our name of a data type; one that is not known stays as it is written."""
    word = scalars.word(value)
    if word.isascii() and word.isdecimal() and len(word) < 10:
        return _DTYPES.get(int(word) % _REF, word)
    return _BY_NAME.get(word.removesuffix(_REF_SUFFIX), word)


def _shape(node: Node, scalars: _Scalars) -> list[int] | None:
    if "unknown_rank" in node and scalars.boolean(node["unknown_rank"][-1]):
        return None
    dims = (_block(dim) for dim in node.get("dim", ()))
    return [scalars.integer(dim["size"][-1]) if "size" in dim else 0 for dim in dims]


def _tensor(node: Node, scalars: _Scalars) -> npt.NDArray[Any] | tuple[str, ...] | None:
    """Return a constant. Its claimed shape takes no memory: of what is not written, the last value stands for."""
    dtype = _dtype(node["dtype"][-1], scalars) if "dtype" in node else ""
    shape = tuple(_shape(_block(node["tensor_shape"][-1]), scalars) or ()) if "tensor_shape" in node else ()
    if dtype == "string":
        return tuple(scalars.text(value) for value in node.get("string_val", ()))
    row = _ROWS.get(dtype)
    if row is None:
        return None
    if len(shape) > _MAX_RANK:
        raise FormatError.within("io.tf.rank", rank=len(shape), limit=_MAX_RANK)
    if any(size < 0 for size in shape):
        raise FormatError.within("io.tf.shape", shape=shape)
    if prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise FormatError.within("io.tf.constant_too_large", shape=shape, limit=MAX_ELEMENTS)
    count = prod(shape)
    numpy_type = np.dtype("<u2") if dtype == "bfloat16" else np.dtype(row.descr)
    content = scalars.data(node["tensor_content"][-1]) if "tensor_content" in node else b""
    if content:
        if len(content) != count * numpy_type.itemsize:
            raise FormatError.within("io.tf.content", shape=shape, dtype=dtype, nbytes=len(content))
        values = np.frombuffer(content, numpy_type)
    else:
        values = _written_values(node.get(_VALUE_FIELDS[row.field], []), dtype, numpy_type, scalars)
        if values.size > count:
            raise FormatError.within("io.tf.values", shape=shape, number=values.size)
        if values.size < count:
            last = values[-1:] if values.size else np.zeros(1, numpy_type)
            if values.size <= 1:
                return _as_float(np.broadcast_to(last.reshape((1,) * len(shape)), shape), dtype)
            values = np.concatenate([values, np.broadcast_to(last, (count - values.size,))])
    return _as_float(values.reshape(shape), dtype)


def _written_values(listed: Sequence[Any], dtype: str, numpy_type: np.dtype[Any], scalars: _Scalars) -> Any:
    """Return the values that are written one by one."""
    if dtype in ("float16", "bfloat16"):
        bits = np.array([scalars.integer(value) & 0xFFFF for value in listed], "<u2")
        return bits.view("<f2") if dtype == "float16" else bits
    if dtype.startswith("complex"):
        reals = np.array([scalars.number(value) for value in listed], f"<f{numpy_type.itemsize // 2}")
        return reals[: reals.size // 2 * 2].view(numpy_type)
    if dtype == "bool":
        return np.array([scalars.boolean(value) for value in listed], np.bool_)
    if numpy_type.kind == "f":
        with np.errstate(over="ignore"):
            return np.array([scalars.number(value) for value in listed], numpy_type)
    values, limits = [scalars.integer(value) for value in listed], np.iinfo(numpy_type)
    if values and not limits.min <= min(values) <= max(values) <= limits.max:
        raise FormatError.within("io.tf.not_in_type", dtype=dtype)
    return np.array(values, numpy_type)


def _as_float(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return bfloat16, which numpy has not, as float32."""
    if dtype != "bfloat16":
        return values
    return np.asarray(np.left_shift(values.astype(np.uint32), np.uint32(16))).view(np.float32)


# --- ops ---


#: Ops whose output is of no type that an attribute tells.
_BOOLEAN = frozenset({
    "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalNot",
    "LogicalXor", "IsFinite", "IsInf", "IsNan", "InTopK", "InTopKV2", "All", "Any", "ApproximateEqual",
})  # fmt: skip
#: Attributes that tell the type of an op's output, the best first.
_TYPE_ATTRS = ("DstT", "out_type", "output_type", "dtype", "Tparams", "T")


def _op(node: Node, scalars: _Scalars, path: str, values: Mapping[str, _Stored | Node]) -> Op:
    name, op_type = _text(node, "name", scalars), _text(node, "op", scalars)
    if not name or not op_type:
        raise FormatError.of(path, "io.tf.unnamed")
    inputs: list[Edge | None] = []
    control: list[str] = []
    for value in node.get("input", ()):
        text = scalars.text(value)
        if text.startswith("^"):
            control.append(text[1:])
            continue
        producer, colon, index = text.rpartition(":")
        is_number = colon and index.isascii() and index.isdecimal() and len(index) < 7
        inputs.append(Edge(producer=producer, index=int(index)) if is_number else Edge(producer=text, index=0))
    return Op(
        name=name,
        type=op_type,
        inputs=tuple(inputs),
        control_inputs=tuple(control),
        attrs=Attrs(values, scalars, path),
    )


def _text(node: Node, field: str, scalars: _Scalars) -> str:
    return scalars.text(node[field][-1]) if field in node else ""


def _graph(name: str, ops: Iterable[Op]) -> Graph:
    """Return a graph of ops in an order in which they can run, with what is said of their outputs and inputs."""
    listed = in_running_order(list(ops))
    read: dict[str, set[int]] = {}
    for op in listed:
        for edge in op.inputs:
            if edge is not None:
                read.setdefault(edge.producer, set()).add(edge.index)
    descs = {op.name: _output_descs(op, read.get(op.name, ())) for op in reversed(listed)}
    return Graph(name=name, ops=tuple(described(op, descs) for op in listed))


def described(op: Op, descs: Mapping[str, tuple[TensorDesc, ...]]) -> Op:
    """Return an op with the descriptions of its outputs, and of the outputs that it reads, by the names of ops."""

    def of(edge: Edge | None) -> TensorDesc:
        outputs = descs.get(edge.producer, ()) if edge is not None else ()
        return outputs[edge.index] if edge is not None and edge.index < len(outputs) else _UNKNOWN

    return replace(op, output_descs=descs[op.name], input_descs=tuple(of(edge) for edge in op.inputs))


def _output_descs(op: Op, read: Collection[int]) -> tuple[TensorDesc, ...]:
    """Return what a graph says of an op's outputs; `read` are those that other ops read."""
    shapes = op.attrs.get("_output_shapes")
    if shapes is None and "shape" in op.attrs and op.type in ("Placeholder", "VariableV2"):
        shapes = [op.attrs["shape"]]
    shapes = shapes if isinstance(shapes, list) else []
    dtype = (
        "bool"
        if op.type in _BOOLEAN
        else next((value for name in _TYPE_ATTRS if isinstance(value := op.attrs.get(name), str)), "")
    )
    most = _OUTPUTS_FOR_READ * len(read)
    count = max(len(shapes), max((index + 1 for index in read if index < most), default=0))
    return tuple(
        tensor_desc(shapes[index] if index < len(shapes) else None, dtype if not index else "")
        if not index or index < len(shapes)
        else _UNKNOWN
        for index in range(count)
    )


#: Outputs of an op that are described for each that is read: the place that a reader names is no proof of more.
_OUTPUTS_FOR_READ = 64
#: An output of which nothing is said.
_UNKNOWN = TensorDesc()


def tensor_desc(shape: Sequence[int] | None, dtype: str) -> TensorDesc:
    """Return the description of a tensor of a shape, which may be unknown or known in part."""
    if not isinstance(shape, (list, tuple)) or not all(isinstance(size, int) for size in shape):
        return TensorDesc(dtype=dtype)
    whole = tuple(shape) if min(shape, default=0) >= 0 else None
    return TensorDesc(dtype=dtype, shape=tuple(shape), origin_shape=whole)


def in_running_order(ops: Sequence[Op]) -> list[Op]:
    """Return ops with what they read before them, else in their order; what a loop feeds back counts as read later."""
    by_name: dict[str, Op] = {}
    for op in ops:
        by_name.setdefault(op.name, op)
    order: list[Op] = []
    begun: set[int] = set()
    for first in ops:
        waiting: list[tuple[Op, Iterator[str]]] = []
        if id(first) not in begun:
            begun.add(id(first))
            waiting.append((first, _before(first)))
        while waiting:
            op, before = waiting[-1]
            for name in before:
                other = by_name.get(name)
                if other is not None and id(other) not in begun and other.type not in _FED_BACK:
                    begun.add(id(other))
                    waiting.append((other, _before(other)))
                    break
            else:
                order.append(op)
                waiting.pop()
    return order


_FED_BACK = ("NextIteration", "RefNextIteration")


def _before(op: Op) -> Iterator[str]:
    yield from (edge.producer for edge in op.inputs if edge is not None)
    yield from op.control_inputs


# --- files ---


def load_tf_graph(path: str | PurePath) -> GraphFile:
    """Read a graph file of TensorFlow, whatever its name: GraphDef, MetaGraphDef or SavedModel, binary or text.

    Parameters
    ----------
    path : path
        `graph.pb`, `graph.pbtxt`, `ckpt.meta` or `saved_model.pb`.

    Returns
    -------
    GraphFile
        A graph of ops in the order in which they can run, with data and control edges, attributes, and the shapes and
        types of outputs as far as the file tells them. A SavedModel has a graph for each of its tags.

    Raises
    ------
    DataNotFoundError
        The file is not there.
    FormatError
        It is damaged, too large or no graph of TensorFlow; the message has the offset.
    """
    name = str(path)
    with open_file(name) as file:
        if file.size == 0:
            raise FormatError.of(name, "io.empty")
        if file.size > MAX_FILE_SIZE:
            raise FormatError.of(name, "io.tf.too_large", size=file.size, limit=MAX_FILE_SIZE)
        head = file.read_at(0, min(_HEAD, file.size))
        if _CONTROL.search(head) is None:
            if file.size > _MAX_TEXT_SIZE:
                raise FormatError.of(name, "io.tf.too_large", size=file.size, limit=_MAX_TEXT_SIZE)
            with proto_text.paused_gc():
                graphs = _text_graphs(file.read_at(0, file.size), name)
        else:
            with proto_text.paused_gc():
                graphs = _binary_graphs(file)
    if not any(graph.ops for graph in graphs):
        raise FormatError.of(name, "io.tf.none")
    calls = sum(op.type in CALLS for graph in graphs for op in graph.ops)
    notes = (Message("note.io.tf_calls", count=calls),) if calls else ()
    return GraphFile(path=name, graphs=tuple(graphs), notes=notes)


#: Ops that run a graph of their own, whose ops are not read.
CALLS = frozenset({
    "PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf", "Case",
    "StatelessCase",
})  # fmt: skip
_NAME = "tensorflow"


def _reader(file: StoredFile) -> WireReader:
    return WireReader(file.path, file.size, file.read_at, max_fields=MAX_GRAPH_FIELDS, field_share=FIELD_SHARE)


def _binary_graphs(file: StoredFile) -> list[Graph]:
    wire = _reader(file)
    first = next(wire.fields(0, file.size), None)
    if first is None or first[0] not in (1, 2):
        raise FormatError.of(file.path, "io.tf.none")
    if first[0] == 1 and first[1] != LENGTH:
        model = _SCHEMA.read(wire, 0, file.size, "SavedModel")
        return [_of_meta_graph(wire, *span) for span in model.get("meta_graphs", ())]
    if first[0] == 1 and _is_node(wire, first[2], first[3]):
        return [_graph(_NAME, _binary_ops(wire, 0, file.size))]
    return [_of_meta_graph(wire, 0, file.size)]


def _is_node(wire: WireReader, start: int, stop: int) -> bool:
    """Return whether a message is an op: the second field of a MetaInfoDef is no text."""
    for number, kind, value, end, _ in wire.fields(start, stop):
        if number == 2:
            return kind == LENGTH and end - value < 1000 and _OP_TYPE.match(wire.bytes_at(value, end)) is not None
    return False


def _of_meta_graph(wire: WireReader, start: int, stop: int) -> Graph:
    meta = _SCHEMA.read(wire, start, stop, "MetaGraphDef")
    spans = meta.get("graph_def", ())
    return _graph(_name_of(meta, _WireScalars()), _binary_ops(wire, *spans[-1]) if spans else ())


def _name_of(meta: Node, scalars: _Scalars) -> str:
    """Return the tags of a MetaGraphDef, which tell those of a SavedModel apart."""
    info = _block(meta["meta_info_def"][-1]) if "meta_info_def" in meta else {}
    return ",".join(scalars.text(tag) for tag in info.get("tags", ())) or _NAME


def _binary_ops(wire: WireReader, start: int, stop: int) -> Iterator[Op]:
    scalars = _WireScalars()
    for number, kind, value, end, tag_at in wire.fields(start, stop):
        if number != 1:
            continue
        if kind != LENGTH:
            raise FormatError.of(wire.path, "io.tf.field", name="node", expected="block", offset=tag_at)
        node = _SCHEMA.read(wire, value, end, "NodeDef")
        values = {}
        for entry in node.get("attr", ()):
            if "key" in entry and "value" in entry:
                low, high = entry["value"][-1]
                data = wire.bytes_at(low, high) if high - low <= _MAX_KEPT else None
                values[scalars.text(entry["key"][-1])] = _Stored(wire.path, low, high, data)
        yield _op(node, scalars, wire.path, values)


def _text_graphs(data: bytes, path: str) -> list[Graph]:
    refuse_out_of_proportion(data, path)
    root = proto_text.parse_proto_text(data, path)
    metas = root.get("meta_graphs") or ([root] if "graph_def" in root else None)
    scalars = TextScalars()
    try:
        if metas is None:
            if "node" not in root:
                raise FormatError.of(path, "io.tf.none")
            return [_graph(_NAME, _text_ops(root, scalars, path))]
        graphs = []
        for meta in map(_block, metas):
            definition = _block(meta["graph_def"][-1]) if "graph_def" in meta else {}
            graphs.append(_graph(_name_of(meta, scalars), _text_ops(definition, scalars, path)))
        return graphs
    except FormatError as error:
        raise error.at(path) from None


def _text_ops(root: Node, scalars: TextScalars, path: str) -> Iterator[Op]:
    for node in map(_block, root.get("node", ())):
        values: dict[str, _Stored | Node] = {}
        for entry in map(_block, node.get("attr", ())):
            if "key" in entry and "value" in entry:
                values[scalars.text(entry["key"][-1])] = _block(entry["value"][-1])
        yield _op(node, scalars, path, values)
