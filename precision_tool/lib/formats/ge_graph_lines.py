"""Large GE text graphs several times as fast as by a full parse: only what the model needs of them is looked at.

Attributes that the model does not have are read from the file when somebody asks for them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from precision_tool.lib.errors import FormatError
from precision_tool.lib.formats import proto_text
from precision_tool.lib.formats.ge_graph import load_graph_file
from precision_tool.lib.formats.ge_graph_model import Attrs, GraphBuilder, attr_nodes
from precision_tool.lib.formats.ge_graph_skim import lines_of
from precision_tool.lib.formats.ge_graph_tree import Node, TextScalars, graph_nodes, read_graph_bytes
from precision_tool.lib.io.files import open_file, signature_of
from precision_tool.lib.io.stores import Signature
from precision_tool.lib.model.graph import Graph, GraphFile, Op, TensorDesc

#: The attributes of ops and of tensors that the builder asks for.
_OP_ATTRS = (
    "pass_name", "_datadump_original_op_names", "_kernelname", "_ge_attr_op_kernel_lib_name",
    "_L1_fusion_sub_graph_no", "_datadump_is_multiop", "_parent_node_index",
)  # fmt: skip
_DESC_ATTRS = (
    "origin_format", "origin_shape", "_datadump_origin_name", "_datadump_origin_output_index",
    "_datadump_origin_format",
)  # fmt: skip


def _attr(indent: str, keys: str) -> str:
    """An attribute with one of the keys: key and the lines after it. One that is written otherwise has neither."""
    usual = rf'key: "[^"\\\n]*+"\n{indent}  value \{{\n'
    return rf'attr \{{\n{indent}  (?:key: "({keys})"((?:\n{indent}  [^\n]*+)*+)|(?!{usual}))'


def _block(name: str, indent: str) -> str:
    """The lines in a block of this name."""
    return rf"{name} \{{((?:\n{indent}  [^\n]*+)*+)"


_OP_BLOCK = re.compile(r"\n  op \{((?:\n    [^\n]*+)*+)\n  \}(?=\n)")
_EMPTY_OP = "\n  op {\n  }"
_KERNEL_NAMES = r"(?:[^\"\\\n]*_kernelname)"
# Groups: 1 key and 2 lines of an attribute, 3 name and 4 lines of a tensor, 5 name and 6 value of a field.
_OP_PIECE = re.compile(
    rf"\n    (?:{_attr('    ', '|'.join((*_OP_ATTRS, _KERNEL_NAMES)))}"
    rf"|{_block('(input_desc|output_desc)', '    ')}"
    r"|(name|type|input|id|stream_id|subgraph_name): ([^\n]*+))"
)
# Groups: 1 key and 2 lines of an attribute, 3 lines of the shape, 4 name and 5 value of a field.
_DESC_PIECE = re.compile(
    rf"\n      (?:{_attr('      ', '|'.join(_DESC_ATTRS))}|{_block('shape', '      ')}|(dtype|layout): ([^\n]*+))"
)
_SIMPLE_VALUE = re.compile(r"\s*value \{\s*+(s|i|b): ([^\n]++)\n\s*+\}")
_PIECE = 1 << 16
#: An attribute of an op as GE writes it, with its key.
_ATTR_TEXT = re.compile(rb'(?<=\n)    attr \{\n      key: "([^"\\\n]*+)"\n(?:      [^\n]*+\n)*    \}\n')


_OP_END = b"\n  }\n"
_AGAIN = "run `refresh`, or the command again"


class _OtherwiseError(Exception):
    """The text is not written as this reader expects: a full parse must read it."""


def load_graph_lines(data: bytes, path: str, check: Signature) -> GraphFile | None:
    """The graph of a text that is written line by line; None for all others, which a full parse reads.

    It equals what a full parse gives. `check` is the signature that the file has to have when attributes are read
    from it later (`signature_of`).
    """
    text = lines_of(data)
    if text is None:
        return None
    try:
        with proto_text.paused_gc():
            graphs = _graphs(text, path, AttrSource(path, check))
    except (_OtherwiseError, FormatError):
        return None  # the full parse says what is wrong, if anything
    return GraphFile(path=path, graphs=graphs, notes=proto_text.not_utf8_notes(data))


def _apart(text: str, path: str) -> tuple[tuple[Node, ...], list[tuple[int, int, int]]]:
    """The graphs of a text with empty ops, and where the ops' blocks start, and their contents start and end."""
    spans = [(match.start(), *match.span(1)) for match in _OP_BLOCK.finditer(text)]
    between, done = [], 0
    for start, _, end in spans:
        between.append(text[done:start])
        done = end + len("\n  }")
    between.append(text[done:])
    root = proto_text.parse_proto_text(_EMPTY_OP.join(between).encode("latin-1"), path).root
    nodes = graph_nodes(root, path)
    if sum(len(node.get("op", ())) for node in nodes) != len(spans):
        raise _OtherwiseError
    return tuple(nodes), spans


def _graphs(text: str, path: str, source: AttrSource) -> tuple[Graph, ...]:
    nodes, spans = _apart(text, path)
    builder = _Builder(path)
    # The text starts with a line end that the file does not have, so the block starts at `start` in the file.
    ops = (
        builder.lean_op(text, begin, end, LazyAttrs(source, number, start))
        for number, (start, begin, end) in enumerate(spans)
    )
    return tuple(_graph(node, builder, ops) for node in nodes)


def _graph(node: Node, builder: _Builder, ops: Iterator[Op]) -> Graph:
    bare = _bare(node, builder)
    return Graph(name=bare.name, ops=tuple(next(ops) for _ in node.get("op", ())), attrs=bare.attrs)


def _bare(node: Node, builder: GraphBuilder) -> Graph:
    """A graph without its ops."""
    return builder.graph({field: values for field, values in node.items() if field != "op"})


class _Builder(GraphBuilder):
    """Makes ops from blocks of text; tensors that are written alike are made once."""

    def __init__(self, path: str) -> None:
        super().__init__(TextScalars(), path)
        self._nodes: dict[str, Node] = {}
        self._parsed_before: dict[str, Node] = {}
        self._descs: dict[int, TensorDesc] = {}

    def lean_op(self, text: str, begin: int, end: int, attrs: Mapping[str, Any]) -> Op:
        """The op whose block is `text[begin:end]`."""
        node: Node = {}
        for match in _OP_PIECE.finditer(text, begin, end):
            key, value, desc, lines, field, scalar = match.groups()
            if field:
                node.setdefault(field, []).append(scalar)
            elif desc:
                known = self._nodes.get(lines)
                if known is None:
                    known = self._nodes[lines] = self._desc_node(lines)
                node.setdefault(desc, []).append(known)
            elif key:
                node.setdefault("attr", []).append(self._attr_node(key, value))
            else:
                raise _OtherwiseError
        return self.op(node, self._text(node, "name"), attrs)

    def desc(self, node: Node) -> TensorDesc:
        """The tensor of a node that `lean_op` made, which is kept."""
        known = self._descs.get(id(node))
        if known is None:
            known = self._descs[id(node)] = super().desc(node)
        return known

    def _desc_node(self, lines: str) -> Node:
        node: Node = {}
        for match in _DESC_PIECE.finditer(lines):
            key, value, dims, field, scalar = match.groups()
            if field:
                node.setdefault(field, []).append(scalar)
            elif dims is not None:
                node.setdefault("shape", []).append(self._parsed(dims))
            elif key:
                node.setdefault("attr", []).append(self._attr_node(key, value))
            else:
                raise _OtherwiseError
        return node

    def _attr_node(self, key: str, lines: str) -> Node:
        simple = _SIMPLE_VALUE.fullmatch(lines)
        if simple is not None:
            return {"key": [f'"{key}"'], "value": [{simple[1]: [simple[2]]}]}
        return {"key": [f'"{key}"'], **self._parsed(lines)}

    def _parsed(self, lines: str) -> Node:
        known = self._parsed_before.get(lines)
        if known is None:
            known = self._parsed_before[lines] = proto_text.parse_proto_text(lines.encode("latin-1")).root
        return known


# ---- attributes, when somebody asks for them


class AttrSource:
    """The file that attributes are read from, as long as it is the one that was loaded."""

    def __init__(self, path: str, check: Signature) -> None:
        self._path = posixpath.abspath(path)
        self._check = check
        self._whole: GraphFile | None = None
        #: What was read last, and where it starts: most ops are asked for in their order.
        self._read: tuple[int, bytes] = (0, b"")

    def of_op(self, number: int, offset: int) -> Mapping[str, Any]:
        """The attributes of an op by its number in the file, or by where its block starts, -1 if that is not known."""
        return self._load().ops[number].attrs if offset < 0 else self._of_op_at(offset)

    def _of_op_at(self, offset: int) -> Mapping[str, Any]:
        self._check_file()
        first, text = self._read
        end = text.find(_OP_END, offset - first) if offset >= first else -1
        if end < 0:
            first, text = self._read = offset, self._read_op(offset)
            end = text.find(_OP_END)
        block = text[offset - first : end + len(_OP_END)]
        if end < 0 or not block.startswith(b"  op {\n"):
            raise FormatError.of(self._path, f"no op at byte {offset}", _AGAIN, offset=offset)
        texts = {match[1].decode("ascii", "replace"): match[0] for match in _ATTR_TEXT.finditer(block)}
        if block.count(b"\n    attr") == len(texts) and all(map(str.isascii, texts)):
            return Attrs(_UnreadNodes(texts, self._path), TextScalars())
        parsed = proto_text.parse_proto_text(block, self._path)
        root: Node = parsed.root
        return Attrs(attr_nodes(root["op"][-1], TextScalars()), TextScalars())

    def _read_op(self, offset: int) -> bytes:
        """The text from `offset` on with the whole op that starts there, and others behind it."""
        block = bytearray()
        with open_file(self._path) as file:
            position, end = offset, -1
            while end < 0 and position < file.size:
                piece = file.read_at(position, min(_PIECE, file.size - position))
                position += len(piece)
                start = max(len(block) - len(_OP_END), 0)
                block += piece
                end = block.find(_OP_END, start)
        return bytes(block)

    def of_graph(self, number: int) -> Mapping[str, Any]:
        """The attributes of a graph by its number in the file, whose ops are skipped where that can be done."""
        if self._whole is None:
            self._check_file()
            text = lines_of(read_graph_bytes(self._path))
            if text is not None:
                with suppress(_OtherwiseError, FormatError), proto_text.paused_gc():
                    return _bare(_apart(text, self._path)[0][number], _Builder(self._path)).attrs
        return self._load().graphs[number].attrs

    def _load(self) -> GraphFile:
        if self._whole is None:
            self._check_file()
            self._whole = load_graph_file(self._path)
        return self._whole

    def _check_file(self) -> None:
        if signature_of(self._path) != self._check:
            raise FormatError.of(self._path, "has changed since it was read", _AGAIN)


class _UnreadNodes(Mapping[str, Node]):
    """The AttrDefs of an op by key, parsed when they are asked for: of dozens somebody wants two or three."""

    __slots__ = ("_path", "_texts")

    def __init__(self, texts: Mapping[str, bytes], path: str) -> None:
        self._texts, self._path = texts, path

    def __getitem__(self, key: str) -> Node:
        parsed = proto_text.parse_proto_text(self._texts[key], self._path)
        return attr_nodes(parsed.root, TextScalars())[key]

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class LazyAttrs(Mapping[str, Any]):
    """The attributes of an op, or with `is_graph` of a graph, that are read when the first is asked for.

    `offset` is where the op's block starts in the file, -1 where that is not known.
    """

    __slots__ = ("_attrs", "_is_graph", "_number", "_source", "offset")

    def __init__(self, source: AttrSource, number: int, offset: int = -1, *, is_graph: bool = False) -> None:
        self._source = source
        self._number = number
        self._is_graph = is_graph
        self._attrs: Mapping[str, Any] | None = None
        self.offset = offset

    def _all(self) -> Mapping[str, Any]:
        if self._attrs is None:
            self._attrs = (
                self._source.of_graph(self._number) if self._is_graph else self._source.of_op(self._number, self.offset)
            )
        return self._attrs

    def __getitem__(self, key: str) -> Any:
        return self._all()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
