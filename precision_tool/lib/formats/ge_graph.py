"""GE graph files, text (`ge_proto_*_Build.txt`) or JSON (`atc --mode=5`), to `GraphFile`.

`load_graph_file` reads everything, `skim_graph_file` only what is needed to choose among many files.
Both formats become one tree (field name → list of values), from which one builder makes the model;
messages and fields are those of GE's `ge_ir.proto`, fields that are not known are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Protocol, TypeAlias

from precision_tool.lib.errors import FormatError, shown
from precision_tool.lib.formats import proto_text
from precision_tool.lib.formats.ge_graph_json import JsonScalars, parse_graph_json
from precision_tool.lib.formats.om_file import MAGIC, WireScalars, model_bytes, parse_om
from precision_tool.lib.model.graph import Edge, Graph, GraphFile, Op, TensorDesc
from precision_tool.lib.numbers.data_types import BY_CODE, BY_GE_NAME
from precision_tool.lib.storage.store import StoredFile
from precision_tool.lib.storage.stores import open_file

#: Larger files are refused before they are read: the tree takes several times the size of the file.
MAX_FILE_SIZE = 1 << 30

#: Ops that only the computational graph has: they fetch the data of a training step.
DATA_SOURCE_TYPES = ("IteratorV2", "Iterator", "GetNext")

#: The output index of an edge that carries no tensor, only the order of two ops.
CONTROL_INDEX = -1

Node: TypeAlias = dict[str, list[Any]]

_WANTED = "give a GE graph: ge_proto_*_Build.txt, or the JSON that atc --mode=5 makes of it"


class Scalars(Protocol):
    """How the scalars of a tree are written; each method raises `FormatError` for what it cannot read."""

    def text(self, value: Any) -> str: ...
    def bytes_text(self, value: Any) -> str: ...
    def data(self, value: Any) -> bytes: ...
    def listed_data(self, value: Any) -> bytes: ...
    def integer(self, value: Any) -> int: ...
    def number(self, value: Any) -> float: ...
    def boolean(self, value: Any) -> bool: ...
    def word(self, value: Any) -> str: ...
    def guess(self, value: Any) -> Any: ...


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
            raise FormatError("a block where a name was expected", _WANTED)
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


# ---- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSkim:
    """What a graph file holds, without its ops; `op_count` counts the ops of all graphs of the file."""

    path: str
    size: int
    graph_names: tuple[str, ...] = ()
    data_source_types: tuple[str, ...] = ()
    op_count: int = 0


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


def load_graph_bytes(data: bytes, path: str) -> GraphFile:
    """Like `load_graph_file`, for the contents of the file; `path` names it."""
    root, notes, scalars = graph_tree(data, path)
    with proto_text.paused_gc():
        graphs = tuple(GraphBuilder(scalars, path).graph(node) for node in graph_nodes(root, path))
    return GraphFile(path=path, graphs=graphs, notes=notes)


#: The beginning of a text graph as GE writes it: the name of the root graph comes first.
_HEAD = re.compile(rb'\s*graph\s*\{\s*name:\s*("(?:[^"\\\n]|\\.)*")')
_HEAD_BYTES = 4096


def peek_graph_name(path: str | PurePath) -> str | None:
    """The name of the first graph of a text file, from its first bytes; None where they do not tell."""
    with open_file(str(path)) as file:
        match = _HEAD.match(file.read_at(0, min(_HEAD_BYTES, file.size)))
    return None if match is None else proto_text.string_of(match[1].decode("latin-1"))


def skim_graph_file(path: str | PurePath) -> GraphSkim:
    """Find out what a graph file holds, several times as fast as loading it.

    Same answers and errors as of the full load, save that the values in ops and tensors are not looked at.
    """
    name = str(path)
    data = read_graph_bytes(name)
    names, types, count = _skim_lines(data) or _skim_tree(data, name)
    return GraphSkim(
        path=name,
        size=len(data),
        graph_names=tuple(names),
        data_source_types=tuple(kind for kind in DATA_SOURCE_TYPES if kind in types),
        op_count=count,
    )


_QUOTED = r'("[^"\\\n]*+(?:\\.[^"\\\n]*+)*+")'
_OP_HEAD = re.compile(rf"\n  op \{{\n    name: {_QUOTED}(?>(?:\n    type: {_QUOTED})?)(?=\n)".encode())
_OP_START = b"\n  op {"
_BLOCK = 4 << 20
#: The name and the type of an op are never longer than this together.
_MAX_OP_HEAD = 1 << 16


def skim_ops(path: str | PurePath) -> Iterator[tuple[str, str]]:
    """Name and type of every op of a graph file, in file order.

    A text as GE writes it is read in pieces, so it may be of any size, and is not checked as a whole; of others the
    answers and errors are those of the full load.
    """
    name = str(path)
    with open_file(name) as file:
        in_lines = _HEAD.match(file.read_at(0, min(_HEAD_BYTES, file.size))) is not None
        if in_lines:
            yield from _op_heads(file)
    if not in_lines:
        yield from ((op.name, op.type) for op in load_graph_file(name).ops)


def _op_heads(file: StoredFile) -> Iterator[tuple[str, str]]:
    rest, position = b"", 0
    while position < file.size:
        data = file.read_at(position, min(_BLOCK, file.size - position))
        position += len(data)
        rest += data
        # The last op may go on in the next piece: it is left for then.
        last = rest.rfind(_OP_START)
        if last < 0:
            last = max(len(rest) - len(_OP_START), 0)
        if position == file.size or len(rest) - last > _MAX_OP_HEAD:
            last = len(rest)
        for match in _OP_HEAD.finditer(rest):
            if match.start() >= last:
                break
            yield _text_token(match[1]), _text_token(match[2] or b'""')
        rest = rest[last:]


def _text_token(token: bytes) -> str:
    return proto_text.string_of(token.decode("latin-1"))


def read_graph_bytes(path: str) -> bytes:
    """The contents of a graph file, which is neither empty nor too large; of an offline model without the weights."""
    with open_file(path) as file:
        size = file.size
        if size > len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC:
            size = model_bytes(file)
        if size > MAX_FILE_SIZE:
            raise FormatError(
                f"{path}: {size} bytes are too many for a graph file (limit {MAX_FILE_SIZE})",
                "dump the graph without weights (DUMP_GE_GRAPH=2)",
            )
        data = file.read_at(0, size)
    if not data or data.isspace():
        raise FormatError(f"{path}: the file is empty", "dump or copy the graph again")
    return data


def graph_tree(data: bytes, path: str) -> tuple[Node, tuple[str, ...], Scalars]:
    """The tree of a graph file's contents, notes about it, and how its scalars are read.

    Parsed by what the content looks like: no text format starts with a brace, all JSON objects do.
    """
    if data.startswith(MAGIC):
        root, notes = parse_om(data, path)
        return root, notes, WireScalars()
    if is_json(data):
        root, notes = parse_graph_json(data, path)
        return root, notes, JsonScalars()
    parsed = proto_text.parse_proto_text(data, path)
    return parsed.root, parsed.notes, TextScalars()


def is_json(data: bytes) -> bool:
    """Whether the contents of a file begin as JSON does."""
    return data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def graph_nodes(root: Node, path: str) -> list[Node]:
    """The GraphDefs of a ModelDef, or the root itself when it is a GraphDef; anything else is no GE graph."""
    nodes = [node for node in root.get("graph", ()) if isinstance(node, dict)]
    if not nodes and "op" in root:
        nodes = [root]
    if "ir_version" in root or any("node" in node and "op" not in node for node in nodes):
        raise FormatError(
            f"{path}: an ONNX text graph, not a GE graph",
            "look for ge_proto_*_Build.txt beside it (ge_onnx_*.pbtxt holds less and is not read)",
        )
    if not nodes:
        kind = "a TensorFlow graph" if "node" in root else f"fields {', '.join(map(shown, list(root)[:5])) or 'none'}"
        raise FormatError(f"{path}: no GE graph in this file ({kind})", _WANTED)
    return nodes


# ---- building


def _block(value: Any) -> Node:
    if not isinstance(value, dict):
        raise FormatError("a value where a block was expected", _WANTED)
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

    def __init__(self, nodes: dict[str, Node], scalars: Scalars) -> None:
        self._nodes = nodes
        self._scalars = scalars

    def __getitem__(self, key: str) -> Any:
        try:
            return _attr_value(self._nodes[key], self._scalars)
        except RecursionError:
            raise FormatError(f"attribute {shown(key)} is nested too deep", _WANTED) from None

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"Attrs({list(self._nodes)})"


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

    def graph(self, node: Node) -> Graph:
        where = "graph"
        ops: list[Op] = []
        try:
            name = self._text(node, "name")
            where = f"graph {shown(name)}"
            attrs = Attrs(attr_nodes(node, self._scalars), self._scalars)
            for op_node in _messages(node, "op"):
                where = f"graph {shown(name)}, op number {len(ops)}"
                op_name = self._text(op_node, "name")
                where = f"graph {shown(name)}, op {shown(op_name)}"
                ops.append(self.op(op_node, op_name))
        except FormatError as error:
            raise FormatError(f"{self._path}: {where}: {error.message}", error.hint) from None
        return Graph(name=name, ops=tuple(ops), attrs=attrs)

    def skim(self, node: Node) -> tuple[str, list[str]]:
        """Name of a graph and the types of its ops."""
        try:
            return self._text(node, "name"), [self._text(op, "type") for op in _messages(node, "op")]
        except FormatError as error:
            raise FormatError(f"{self._path}: {error.message}", error.hint) from None

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
                raise FormatError(
                    f"input {shown(text)} has the index {number}; only -1 (control) may be negative", _WANTED
                )
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
        if word.isdecimal():  # how a writer shows a value that is newer than its own list of names
            data_type = BY_CODE.get(self._scalars.integer(word))
            return data_type.name if data_type else word
        return BY_GE_NAME[word].name if word in BY_GE_NAME else word

    def _text(self, node: Node, field: str) -> str:
        return self._scalars.text(node[field][-1]) if field in node else ""

    def _integer(self, node: Node, field: str) -> int:
        """A number field of a message; protobuf does not write a 0, so an absent one is 0."""
        return self._scalars.integer(node[field][-1]) if field in node else 0


# ---- skimming

#: Names of the graphs, types of their ops that are in DATA_SOURCE_TYPES, number of ops.
_Found: TypeAlias = tuple[list[str], set[str], int]


def _skim_tree(data: bytes, path: str) -> _Found:
    """Skim by a full parse, for JSON and for text in any style."""
    root, _, scalars = graph_tree(data, path)
    builder = GraphBuilder(scalars, path)
    names: list[str] = []
    types: set[str] = set()
    count = 0
    for node in graph_nodes(root, path):
        name, op_types = builder.skim(node)
        names.append(name)
        types.update(op_types)
        count += len(op_types)
    return names, types, count


# GE writes one field a line, two spaces deeper in each block. `_ODD_LINE` finds a line that is not like that or
# whose successor is at a wrong depth; where it finds none, the text is valid and indentation tells its structure.
# In a line at a depth of one or more, group 1 is the indentation of the block around it.
#
# Kernels make strings of megabytes, which the exact pattern checks character by character. The quick one jumps
# from quote to quote and looks back at most three backslashes; more are left to the exact one. It could run over
# the end of the line, but then the line where it stops ends with an opening quote, so that line is odd unless its
# own string runs over its end as well, and so on: the last of them has nowhere to stop.
_ESCAPED, _NOT_ESCAPED = r"(?:(?<=[^\\]\\)|(?<=[^\\]\\\\\\))", r"(?:(?<!\\)|(?<=[^\\]\\\\))"
_MORE_QUOTES = proto_text.any_number_of(f'{_ESCAPED}"[^"]*+')
_QUICK_STRING = rf'"[^"]*+{_MORE_QUOTES}{_NOT_ESCAPED}"'
_NUMBER_OR_WORD = rf"-?+(?:{proto_text.WORD}|{proto_text.NUMBER})"
_LINE = rf"(?:{proto_text.WORD}: (?:{_QUICK_STRING}\n|{_NUMBER_OR_WORD}\n|{proto_text.STRING}\n)|\}}\n)"
_OPEN = rf"{proto_text.WORD} \{{\n"
_ODD_LINE = re.compile(
    rf"\n(?!  ( *+)(?:{_LINE}\1(?:  [A-Za-z_]|\}})|{_OPEN}\1(?:    [A-Za-z_]|  \}}))"
    rf"|{_LINE}(?:[A-Za-z_]|\Z)|{_OPEN}(?:  [A-Za-z_]|\}})|\Z)"
)
#: What a skim looks at: 1 what it leaves to a full parse, 2 a block of the root, 3 a block in that, 4 a name in
#: a block of the root, 5 a type in a block in that.
_LANDMARK = re.compile(
    rf"\n(?:(ir_version|  node|  op:)|({proto_text.WORD}) \{{"
    rf"|  (?:({proto_text.WORD}) \{{|name: ([^\n]*+)|  type: ([^\n]*+)))"
)


def lines_of(data: bytes) -> str | None:
    """The text of a ModelDef that is written line by line as GE does, so that indentation tells its structure.

    It begins with a line end; None when it is written otherwise, damaged, or no ModelDef.
    """
    text = "\n" + data.decode("latin-1")
    too_deep = " " * (2 * proto_text.MAX_DEPTH)
    if "\ngraph {\n" not in text or text[1] in " }" or "\0" in text or too_deep in text or _ODD_LINE.search(text):
        return None
    return text


def _skim_lines(data: bytes) -> _Found | None:
    """Skim text by its lines; None when it is not written line by line, or is no ModelDef."""
    text = lines_of(data)
    if text is None:
        return None
    names: list[str] = []
    types: list[str] = []
    in_graph = in_op = False
    for match in _LANDMARK.finditer(text):
        unusual, root_block, block, name, op_type = match.groups()
        if unusual:
            return None
        if root_block:
            in_graph, in_op = root_block == "graph", False
            if in_graph:
                names.append('""')
        elif block:
            in_op = in_graph and block == "op"
            if in_op:
                types.append('""')
        elif name:
            if in_graph:
                names[-1] = name
        elif in_op:
            types[-1] = op_type
    if not all(value[0] in "\"'" for value in (*names, *types)):
        return None  # the full parse says what is wrong
    found = {proto_text.string_of(value) for value in set(types)}
    return [proto_text.string_of(value) for value in names], found, len(types)
