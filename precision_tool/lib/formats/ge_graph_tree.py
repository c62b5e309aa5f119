"""The contents of a GE graph file, text, JSON or offline model, as one tree: field name → list of values."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from precision_tool.lib.errors import FormatError, shown
from precision_tool.lib.formats import proto_text
from precision_tool.lib.formats.ge_graph_json import JsonScalars, parse_graph_json
from precision_tool.lib.formats.om_file import MAGIC, WireScalars, model_bytes, parse_om
from precision_tool.lib.io.files import open_file

#: Larger files are refused before they are read: the tree takes several times the size of the file.
MAX_FILE_SIZE = 1 << 30
Node: TypeAlias = dict[str, list[Any]]
WANTED = "give a GE graph: ge_proto_*_Build.txt, or the JSON that atc --mode=5 makes of it"


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
            raise FormatError.within("a block where a name was expected", WANTED)
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


def read_graph_bytes(path: str) -> bytes:
    """The contents of a graph file, which is neither empty nor too large; of an offline model without the weights."""
    with open_file(path) as file:
        size = file.size
        if size > len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC:
            size = model_bytes(file)
        if size > MAX_FILE_SIZE:
            raise FormatError.of(
                path,
                f"{size} bytes are too many for a graph file (limit {MAX_FILE_SIZE})",
                "dump the graph without weights (DUMP_GE_GRAPH=2)",
            )
        data = file.read_at(0, size)
    if not data or data.isspace():
        raise FormatError.of(path, "the file is empty", "dump or copy the graph again")
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
        raise FormatError.of(
            path,
            "an ONNX text graph, not a GE graph",
            "look for ge_proto_*_Build.txt beside it (ge_onnx_*.pbtxt holds less and is not read)",
        )
    if not nodes:
        kind = "a TensorFlow graph" if "node" in root else f"fields {', '.join(map(shown, list(root)[:5])) or 'none'}"
        raise FormatError.of(path, f"no GE graph in this file ({kind})", WANTED)
    return nodes
