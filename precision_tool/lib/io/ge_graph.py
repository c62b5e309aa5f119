"""GE graphs: the tree of a file, whichever of its formats it has, and the model that is made of it.

In the tree every field is a list of values, and every message a dict. What differs between the formats is how scalars
are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

from precision_tool.lib.io import proto_text
from precision_tool.lib.io.data_types import BY_CODE, BY_GE_NAME
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.ge_json import JSON_COSTS, cost_of, parse_graph_json
from precision_tool.lib.io.om_file import MAGIC, Notes, model_bytes, parse_om
from precision_tool.lib.io.proto_text import int_of_64_bits, not_utf8_notes, unescape
from precision_tool.lib.io.wire import MEMORY, out_of_proportion
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc

#: A number in a string; Python's own `int` and `float` take digits of all scripts, underscores and spaces.
_NUMBER = re.compile(r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)


class JsonScalars:
    """Scalars of the JSON: strings are strings, but bytes are C-escaped and some numbers are strings."""

    def text(self, value: Any) -> str:
        """A string field."""
        if isinstance(value, str):
            # A lone surrogate, legal in JSON, could not be printed.
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
        if isinstance(value, (int, float)):
            return str(value)
        raise FormatError.within("io.graph.wrong_value", value=_shown(value), expected="text")

    def bytes_text(self, value: Any) -> str:
        """A bytes field that holds text."""
        text = self.text(value)
        return self.data(value).decode("utf-8", "backslashreplace") if "\\" in text else text

    def data(self, value: Any) -> bytes:
        """A bytes field."""
        return unescape(self.text(value).encode("utf-8").decode("latin-1"))

    def listed_data(self, value: Any) -> bytes:
        """A bytes field in a list, which the vendor does not escape."""
        return self.text(value).encode("utf-8")

    def integer(self, value: Any) -> int:
        """A whole number, also written as a string."""
        try:
            if isinstance(value, int) or _is_number(value) or (isinstance(value, float) and value.is_integer()):
                return int_of_64_bits(int(value))
        except ValueError:
            pass
        raise FormatError.within("io.graph.wrong_value", value=_shown(value), expected="integer")

    def number(self, value: Any) -> float:
        """A number, also written as a string."""
        try:
            if isinstance(value, (int, float)) or _is_number(value):
                return float(value)
        except (ValueError, OverflowError):
            pass
        raise FormatError.within("io.graph.wrong_value", value=_shown(value), expected="number")

    def boolean(self, value: Any) -> bool:
        """true or false, also as 0 and 1 or in a string."""
        truth = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
        if truth is None:
            raise FormatError.within("io.graph.wrong_value", value=_shown(value), expected="boolean")
        return truth

    def word(self, value: Any) -> str:
        """The name of an enum value, or its number when the writer knew no name."""
        return self.text(value)

    def guess(self, value: Any) -> Any:
        """A scalar of a field that is not known."""
        return self.text(value) if isinstance(value, (str, bytes)) else value


class WireScalars(JsonScalars):
    """Scalars of the wire format, which `parse_om` has given their types; texts are bytes."""

    def text(self, value: Any) -> str:
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else super().text(value)

    def data(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        raise FormatError.within("io.graph.wrong_value", value=Message("error.io.type.number"), expected="bytes")

    bytes_text = text
    listed_data = data


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None


def _shown(value: Any) -> str | Message:
    return Message("error.io.type.block") if isinstance(value, (dict, list)) else shown(str(value))


# --- The contents of a GE graph file, text, JSON or offline model, as one tree: field name → list of values ---


#: Larger files are refused before they are read: they are held in memory.
MAX_FILE_SIZE = 1 << 30
Node: TypeAlias = dict[str, list[Any]]
#: Takes the ops of a graph, and gives what the graph has of them.
Keep: TypeAlias = Callable[[Iterable[Op]], Sequence[Op]]


class TextScalars:
    """Scalars of the text format: tokens as they stand in the file."""

    text = staticmethod(proto_text.string_of)
    bytes_text = staticmethod(proto_text.string_of)
    data = listed_data = staticmethod(proto_text.bytes_of)
    integer = staticmethod(proto_text.int_of)
    number = staticmethod(proto_text.float_of)
    boolean = staticmethod(proto_text.bool_of)

    @staticmethod
    def word(value: Any) -> str:
        """The name of an enum value, or its number when the writer knew no name."""
        if not isinstance(value, str):
            raise FormatError.within("io.graph.wrong_value", value=Message("error.io.type.block"), expected="name")
        return value

    @staticmethod
    def guess(value: Any) -> Any:
        """A scalar of a field that is not known, by its looks."""
        if value[0] in "\"'":
            return proto_text.string_of(value)
        if value in ("true", "false"):
            return value == "true"
        for decode in (proto_text.int_of, proto_text.float_of):
            try:
                return decode(value)
            except FormatError:
                pass
        return value


#: How the scalars of a tree are written; each method raises `FormatError` for what it cannot read.
Scalars: TypeAlias = JsonScalars | TextScalars


def read_graph_bytes(path: str) -> bytes:
    """The contents of a graph file, which is neither empty nor too large; of an offline model without the weights."""
    with open_file(path) as file:
        size = file.size
        if size > len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC:
            size = model_bytes(file)
        if size > MAX_FILE_SIZE:
            raise FormatError.of(path, "io.graph.too_large", size=size, limit=MAX_FILE_SIZE)
        data = file.read_at(0, size)
    if not data or data.isspace():
        raise FormatError.of(path, "io.empty")
    refuse_out_of_proportion(data, path)
    return data


#: Bytes that what a character begins takes in memory, in text and in JSON, and how many times the size of a file these
#: may be: real graphs come to 10 times in text and, written in lines, 8 in JSON.
_TEXT_COSTS, _MAX_TEXT_TIMES = {b"{": 400, b"<": 400, b":": 120, b",": 60}, 16
#: Of JSON, where a list of scalars takes less memory than time.
_JSON_COSTS, _MAX_JSON_TIMES = JSON_COSTS | {b",": 100}, 18


def refuse_out_of_proportion(data: bytes, path: str) -> None:
    """Raise FormatError for a text whose tree would be too large, beyond what graphs of its size have.

    The ops of a graph of GE are parsed one by one, so that the whole tree never takes this memory, but the time.
    """
    if data.startswith(MAGIC):  # whose reader counts what it reads
        return
    costs, times = (_JSON_COSTS, _MAX_JSON_TIMES) if is_json(data) else (_TEXT_COSTS, _MAX_TEXT_TIMES)
    limit = max(MEMORY, times * len(data))
    if len(data) * max(costs.values()) > limit:
        needed = cost_of(data, costs)
        if needed > limit:
            raise out_of_proportion(path, len(data), needed, limit)


def graph_tree(data: bytes, path: str, *, first_model: bool = False) -> tuple[Node, Notes, Scalars]:
    """The tree of a graph file's contents, notes about what was read of it, and how its scalars are read.

    Parsed by what the content looks like: no text format starts with a brace, all JSON objects do. Of an offline model
    with several models `first_model` takes the first alone.
    """
    if data.startswith(MAGIC):
        root, notes = parse_om(data, path, first=first_model)
        return root, notes, WireScalars()
    if is_json(data):
        return parse_graph_json(data, path), lambda: not_utf8_notes(data), JsonScalars()
    return proto_text.parse_proto_text(data, path, lazy="op"), lambda: not_utf8_notes(data), TextScalars()


def is_json(data: bytes) -> bool:
    """Whether the contents of a file begin as JSON does."""
    return data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def graph_nodes(root: Node, path: str) -> list[Node]:
    """The GraphDefs of a ModelDef, or the root itself when it is a GraphDef; anything else is no GE graph."""
    nodes = [node for node in root.get("graph", ()) if isinstance(node, dict)]
    if not nodes and "op" in root:
        nodes = [root]
    if "ir_version" in root or any("node" in node and "op" not in node for node in nodes):
        raise FormatError.of(path, "io.graph.onnx")
    if not nodes:
        if "node" in root:
            raise FormatError.of(path, "io.graph.tensorflow")
        raise FormatError.of(path, "io.graph.none", fields=tuple(map(shown, list(root)[:5])) or "-")
    return nodes


# --- The model of a GE graph, made of its tree ---


#: The output index of an edge that carries no tensor, only the order of two ops.
CONTROL_INDEX = -1


# ---- building


def _block(value: Any) -> Node:
    if not isinstance(value, dict):
        raise FormatError.within("io.graph.wrong_value", value=Message("error.io.type.value"), expected="block")
    return value


def _messages(node: Node, field: str) -> Iterator[Node]:
    return map(_block, node.get(field, ()))


def attr_nodes(node: Node, scalars: Scalars) -> dict[str, Node]:
    """The AttrDefs of a message's attribute map, by key; of two with one key the last, as protobuf has it."""
    nodes: dict[str, Node] = {}
    for entry in _messages(node, "attr"):
        # The vendor's JSON loses the key, or the value, of an attribute whose value is empty.
        if "key" in entry:
            values = entry.get("value")
            nodes[scalars.text(entry["key"][-1])] = _block(values[-1]) if values else {}
    return nodes


class Attrs(Mapping[str, Any]):
    """Attributes of a GE message as plain Python; each is decoded when it is asked for.

    s → str, i and dt → int, f → float, b → bool, bt → bytes, list → list, list_list_int and list_list_float →
    lists of lists, messages → dict, an attribute without a value → None.
    """

    __slots__ = ("_nodes", "_scalars")

    def __init__(self, nodes: Mapping[str, Node], scalars: Scalars) -> None:
        self._nodes = nodes
        self._scalars = scalars

    def __getitem__(self, key: str) -> Any:
        try:
            return _attr_value(self._nodes[key], self._scalars)
        except RecursionError:
            raise FormatError.within("io.graph.deep_attribute", key=shown(key)) from None

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"Attrs({list(self._nodes)})"

    @property
    def text_nodes(self) -> Mapping[str, Node] | None:
        """The attributes as they stand in a text, by key; None of a file of another format."""
        return self._nodes if isinstance(self._scalars, TextScalars) else None


#: How the scalar kinds of AttrDef are decoded; in a list they are written a little differently in JSON.
_KINDS: dict[str, Callable[[Scalars, Any], Any]] = {
    "s": lambda scalars, value: scalars.bytes_text(value),
    "i": lambda scalars, value: scalars.integer(value),
    "f": lambda scalars, value: scalars.number(value),
    "b": lambda scalars, value: scalars.boolean(value),
    "bt": lambda scalars, value: scalars.data(value),
    "dt": lambda scalars, value: scalars.integer(value),
}
_LIST_KINDS = _KINDS | {
    "s": lambda scalars, value: scalars.text(value),
    "bt": lambda scalars, value: scalars.listed_data(value),
}
#: Lists of lists: the field, the outer and the inner list, the kind of the elements.
_NESTED_LISTS = {
    "list_list_int": ("list_list_i", "list_i", "i"),
    "list_list_float": ("list_list_f", "list_f", "f"),
}
#: Fields that are repeated in GE's messages, so a list also when there is one value.
_REPEATED = frozenset(
    {"graph", "op", "input", "output", "dim", "input_desc", "output_desc", "subgraph_name", "is_input_const"}
    | {"input_name", "src_name", "src_index", "dst_name", "dst_index", "input_i", "output_i"}
    | {"workspace", "workspace_bytes"}
)


def _attr_value(node: Node, scalars: Scalars) -> Any:
    for kind, values in node.items():
        if kind in _KINDS:
            return _KINDS[kind](scalars, values[-1])
        if kind == "list":
            return _list_value(_block(values[-1]), scalars)
        if kind in _NESTED_LISTS:
            outer, inner, element = _NESTED_LISTS[kind]
            rows = _messages(_block(values[-1]), outer)
            return [[_KINDS[element](scalars, value) for value in row.get(inner, ())] for row in rows]
    for values in node.values():  # func, td, t, g and kinds that a newer CANN may add
        return _plain(values[-1], scalars)
    return None


def _list_value(node: Node, scalars: Scalars) -> list[Any]:
    for kind, values in node.items():
        if kind in _LIST_KINDS:
            return [_LIST_KINDS[kind](scalars, value) for value in values]
    for kind, values in node.items():
        if kind != "val_type":
            return [_plain(value, scalars) for value in values]
    return []


def _plain(value: Any, scalars: Scalars) -> Any:
    """Any message as a dict, with attribute maps resolved."""
    if not isinstance(value, dict):
        return scalars.guess(value)
    plain: dict[str, Any] = {}
    for field, values in value.items():
        if field == "attr":
            attrs = attr_nodes(value, scalars)
            plain[field] = {key: _attr_value(attr, scalars) for key, attr in attrs.items()}
        elif field == "data":
            plain[field] = scalars.data(values[-1])
        elif field in _REPEATED:
            plain[field] = [_plain(item, scalars) for item in values]
        else:
            plain[field] = _plain(values[-1], scalars)
    return plain


# ---- attributes the model knows, straight from their nodes; None is an attribute that is absent


def _texts(node: Node | None, scalars: Scalars) -> tuple[str, ...]:
    """The texts of an attribute that is s, list.s or (as a number) i."""
    if not node:
        return ()
    if "s" in node:
        return (scalars.bytes_text(node["s"][-1]),)
    if "list" in node:
        return tuple([scalars.text(value) for value in _block(node["list"][-1]).get("s", ())])
    return (str(scalars.integer(node["i"][-1])),) if "i" in node else ()


def _first_text(node: Node | None, scalars: Scalars) -> str | None:
    texts = _texts(node, scalars)
    return texts[0] if texts else None


def _whole(node: Node | None, scalars: Scalars) -> int | None:
    return scalars.integer(node["i"][-1]) if node and "i" in node else None


def _position(node: Node | None, scalars: Scalars) -> int | None:
    """A whole number that counts from 0; a negative one points nowhere."""
    value = _whole(node, scalars)
    return None if value is None or value < 0 else value


def _whole_numbers(node: Node | None, scalars: Scalars) -> tuple[int, ...] | None:
    if node is None:
        return None
    values = _block(node["list"][-1]).get("i", ()) if "list" in node else node.get("i", ())
    return tuple([scalars.integer(value) for value in values])


def _truth(node: Node | None, scalars: Scalars) -> bool:
    """A flag, which is b by its kind but may be a number or a word."""
    value = _attr_value(node, scalars) if node else False
    return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)


class GraphBuilder:
    """Makes the model from a tree; `path` is for errors."""

    def __init__(self, scalars: Scalars, path: str) -> None:
        self._scalars = scalars
        self._path = path

    def graph(
        self, node: Node, keep: Keep = tuple, attrs_of_op: Callable[[], Mapping[str, Any]] | None = None
    ) -> Graph:
        """The graph of a GraphDef.

        `keep` takes the ops one by one, and gives what the graph has of them; `attrs_of_op` gives the attributes of
        the next op where it is not to have those of its block.
        """
        where = Message("error.io.graph.in_graph", graph="", number=None, op="")
        try:
            name = self._text(node, "name")
            where = Message("error.io.graph.in_graph", graph=shown(name), number=None, op="")
            attrs = Attrs(attr_nodes(node, self._scalars), self._scalars)
        except FormatError as error:
            raise self._within(where, error) from None
        return Graph(name=name, ops=keep(self._ops(node, shown(name), attrs_of_op)), attrs=attrs)

    def _ops(self, node: Node, graph: str, attrs_of_op: Callable[[], Mapping[str, Any]] | None) -> Iterator[Op]:
        where = Message("error.io.graph.in_graph", graph=graph, number=0, op="")
        try:
            for number, op_node in enumerate(_messages(node, "op"), start=1):
                name = self._text(op_node, "name")
                where = Message("error.io.graph.in_graph", graph=graph, number=None, op=shown(name))
                op = self.op(op_node, name, attrs_of_op and attrs_of_op())
                where = Message("error.io.graph.in_graph", graph=graph, number=number, op="")
                yield op
        except FormatError as error:
            raise self._within(where, error) from None

    def _within(self, where: Message, error: FormatError) -> FormatError:
        if error.path is not None:  # it says where it is by itself
            return error
        return FormatError.of(
            self._path, "io.graph.within", where=where, reason=error.reason_message, next=error.hint_message
        )

    def skim(self, node: Node) -> tuple[str, list[str]]:
        """Name of a graph and the types of its ops."""
        try:
            return self._text(node, "name"), [self._text(op, "type") for op in _messages(node, "op")]
        except FormatError as error:
            raise error.at(self._path) from None

    def op(self, node: Node, name: str, all_attrs: Mapping[str, Any] | None = None) -> Op:
        """An op from its block; `all_attrs` where the block does not hold all attributes."""
        scalars = self._scalars
        attrs = attr_nodes(node, scalars)
        inputs, control_inputs = self._inputs(node)
        original = attrs.get("_datadump_original_op_names")
        kernel = attrs.get(f"{name}_kernelname") or attrs.get("_kernelname")
        return Op(
            name=name,
            type=self._text(node, "type"),
            id=self._integer(node, "id"),
            inputs=inputs,
            control_inputs=control_inputs,
            input_descs=tuple([self.desc(desc) for desc in _messages(node, "input_desc")]),
            output_descs=tuple([self.desc(desc) for desc in _messages(node, "output_desc")]),
            pass_names=tuple(filter(None, _texts(attrs.get("pass_name"), scalars))),
            original_names=None if original is None else _texts(original, scalars),
            stream_id=self._integer(node, "stream_id"),
            kernel_name=_first_text(kernel, scalars) or "",
            kernel_lib=_first_text(attrs.get("_ge_attr_op_kernel_lib_name"), scalars) or "",
            l1_fusion_group=_first_text(attrs.get("_L1_fusion_sub_graph_no"), scalars),
            is_multiop=_truth(attrs.get("_datadump_is_multiop"), scalars),
            parent_index=_position(attrs.get("_parent_node_index"), scalars),
            subgraph_names=tuple([scalars.text(value) for value in node.get("subgraph_name", ())]),
            attrs=Attrs(attrs, scalars) if all_attrs is None else all_attrs,
        )

    def _inputs(self, node: Node) -> tuple[tuple[Edge | None, ...], tuple[str, ...]]:
        data: list[Edge | None] = []
        control: list[str] = []
        for value in node.get("input", ()):
            text = self._scalars.text(value)
            producer, colon, index = text.rpartition(":")
            if not text:
                data.append(None)
            elif not colon or not (index.isascii() and index.removeprefix("-").isdecimal()):
                data.append(Edge(producer=text, index=0))
            elif (number := self._scalars.integer(index)) >= 0:
                data.append(Edge(producer=producer, index=number))
            elif number == CONTROL_INDEX:
                control.append(producer)
            else:
                raise FormatError.within("io.graph.negative_index", text=shown(text), number=number)
        return tuple(data), tuple(control)

    def desc(self, node: Node) -> TensorDesc:
        """A tensor from its block."""
        scalars = self._scalars
        attrs = attr_nodes(node, scalars)
        shape = node.get("shape")
        return TensorDesc(
            dtype=self._dtype(node),
            layout=self._text(node, "layout"),
            shape=tuple([scalars.integer(dim) for dim in _block(shape[-1]).get("dim", ())]) if shape else (),
            origin_layout=_first_text(attrs.get("origin_format"), scalars),
            origin_shape=_whole_numbers(attrs.get("origin_shape"), scalars),
            dump_origin_name=_first_text(attrs.get("_datadump_origin_name"), scalars),
            dump_origin_index=_whole(attrs.get("_datadump_origin_output_index"), scalars),
            dump_origin_layout=_first_text(attrs.get("_datadump_origin_format"), scalars),
        )

    def _dtype(self, node: Node) -> str:
        """Our name of the data type; one that has no name in our table stays as it is written."""
        if "dtype" not in node:
            return ""
        word = self._scalars.word(node["dtype"][-1])
        if word.isascii() and word.isdecimal():  # how a writer shows a value that is newer than its own list of names
            data_type = BY_CODE.get(self._scalars.integer(word))
            return data_type.name if data_type else word
        return BY_GE_NAME[word].name if word in BY_GE_NAME else word

    def _text(self, node: Node, field: str) -> str:
        return self._scalars.text(node[field][-1]) if field in node else ""

    def _integer(self, node: Node, field: str) -> int:
        """A number field of a message; protobuf does not write a 0, so an absent one is 0."""
        return self._scalars.integer(node[field][-1]) if field in node else 0


# --- GE graph files, text (`ge_proto_*_Build.txt`), JSON (`atc --mode=5`) or offline model, to `GraphFile` ---


def load_graph_file(path: str | PurePath) -> GraphFile:
    """Reads a graph file of GE, text or JSON, whatever its name (FORMATS.md §4).

    Parameters
    ----------
    path : path
        `ge_proto_*_Build.txt`, or the JSON that atc made of it.

    Returns
    -------
    GraphFile
        Its graphs with their ops: names, types, inputs, shapes and layouts, fusion passes, original ops.

    Raises
    ------
    DataNotFoundError
        The file is not there.
    FormatError
        It is damaged or no graph of GE; the message has the line or offset.
    """
    name = str(path)
    return load_graph_bytes(read_graph_bytes(name), name)


def load_graph_bytes(
    data: bytes, path: str, keep: Keep = tuple, attrs_of_op: Callable[[], Mapping[str, Any]] | None = None
) -> GraphFile:
    """Like `load_graph_file`, for the contents of the file; `path` names it, the rest is of `GraphBuilder.graph`."""
    root, notes, scalars = graph_tree(data, path)
    builder = GraphBuilder(scalars, path)
    with proto_text.paused_gc():
        graphs = tuple(builder.graph(node, keep, attrs_of_op) for node in graph_nodes(root, path))
    return GraphFile(path=path, graphs=graphs, notes=notes())
