"""What is needed of a GE graph file to choose among many, several times as fast as loading it."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, count, islice
from pathlib import PurePath
from typing import Any, TypeAlias, TypeVar

from precision_tool.lib.io import proto_text
from precision_tool.lib.io.files import open_file, signature_of
from precision_tool.lib.io.ge_graph import (
    Attrs,
    GraphBuilder,
    Keep,
    Node,
    Scalars,
    TextScalars,
    attr_nodes,
    graph_nodes,
    graph_tree,
    load_graph_bytes,
    load_graph_file,
    read_graph_bytes,
)
from precision_tool.lib.io.stores import Signature, StoredFile
from precision_tool.lib.io.wire import OP_MEMORY, TEXT_OP_SHARE, out_of_proportion, refuse_many_ops
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.graph import Graph, GraphFile, Op, TensorDesc

T = TypeVar("T")

#: Ops that only the computational graph has: they fetch the data of a training step.
DATA_SOURCE_TYPES = ("IteratorV2", "Iterator", "GetNext")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSkim:
    """What a graph file holds, without its ops; `op_count` counts the ops of all graphs of the file."""

    path: str
    size: int
    graph_names: tuple[str, ...] = ()
    data_source_types: tuple[str, ...] = ()
    op_count: int = 0


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
#: Of an op that begins otherwise both groups are empty.
_OP_HEAD = re.compile(rf"\n  op \{{\n(?:    name: {_QUOTED}(?>(?:\n    type: {_QUOTED})?)(?=\n)|)".encode())
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
            if match[1] is None:
                yield from _odd_head(rest[match.start() : rest.find(_OP_END, match.end() - 1) + len(_OP_END)])
                continue
            try:
                head = _text_token(match[1]), _text_token(match[2] or b'""')
            except FormatError as error:
                raise error.at(file.path) from None
            yield head
        rest = rest[last:]


def _odd_head(block: bytes) -> Iterator[tuple[str, str]]:
    """Name and type of an op that does not begin with its name; nothing of one that is damaged or not whole."""
    with suppress(FormatError):
        node: Any = proto_text.parse_proto_text(block)
        for op in node.get("op", ()):
            if isinstance(op, dict):
                name, kind = (proto_text.string_of(op[field][-1]) if field in op else "" for field in ("name", "type"))
                yield name, kind


def _text_token(token: bytes) -> str:
    return proto_text.string_of(token.decode("latin-1"))


#: Names of the graphs, types of their ops that are in DATA_SOURCE_TYPES, number of ops.
_Skimmed: TypeAlias = tuple[list[str], set[str], int]


def _skim_tree(data: bytes, path: str) -> _Skimmed:
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


def _skim_lines(data: bytes) -> _Skimmed | None:
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
    with suppress(FormatError):  # the full parse says which string is none
        type_names = {proto_text.string_of(value) for value in set(types)}
        return [proto_text.string_of(value) for value in names], type_names, len(types)
    return None


# --- Large GE text graphs several times as fast as by a full parse: only what the model needs of them is looked at ---


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
#: Bytes of memory that a piece of an op takes, and each of its characters.
_PIECE_MEMORY, _PIECE_TIMES = 700, 10
#: The field of a tensor's node that has its lines, and how many tensors and blocks are not made again.
_LINES, _MOST_KEPT = "", 1 << 12
#: An attribute of an op as GE writes it, with its key.
_ATTR_TEXT = re.compile(rb'(?<=\n)    attr \{\n      key: "([^"\\\n]*+)"\n(?:      [^\n]*+\n)*    \}\n')


_OP_END = b"\n  }\n"


class _OtherwiseError(Exception):
    """The text is not written as this reader expects: a full parse must read it."""


class _TooLargeError(Exception):
    """An op takes so much memory, and may take so much."""


def load_graph_lines(data: bytes, path: str, check: Signature, keep: Keep = tuple) -> GraphFile | None:
    """The graph of a text that is written line by line; None for all others, which a full parse reads.

    It equals what a full parse gives. `check` is the signature that the file has to have when attributes are read
    from it later (`signature_of`). `keep` takes the ops of each graph, and gives what the graph has of them.
    """
    text = lines_of(data)
    if text is None:
        return None
    try:
        with proto_text.paused_gc():
            graphs = _graphs(text, path, AttrSource(path, check), keep)
    except _TooLargeError as error:
        raise out_of_proportion(path, len(data), *error.args) from None
    except (_OtherwiseError, FormatError):
        return None  # the full parse says what is wrong, if anything
    return GraphFile(path=path, graphs=graphs, notes=proto_text.not_utf8_notes(data))


def load_graph_ops(data: bytes, path: str, check: Signature, keep: Keep = tuple) -> GraphFile:
    """The graph of a file of any format; like `load_graph_lines`, but for the time and the memory that it takes."""
    source, numbers = AttrSource(path, check), count()
    return load_graph_bytes(data, path, keep, lambda: LazyAttrs(source, next(numbers)))


def _apart(text: str, path: str) -> tuple[tuple[Node, ...], list[tuple[int, int, int]]]:
    """The graphs of a text with empty ops, and where the ops' blocks start, and their contents start and end."""
    spans = [(match.start(), *match.span(1)) for match in _OP_BLOCK.finditer(text)]
    refuse_many_ops(path, len(spans), len(text), len(text), TEXT_OP_SHARE)
    between, done = [], 0
    for start, _, end in spans:
        between.append(text[done:start])
        done = end + len("\n  }")
    between.append(text[done:])
    root = proto_text.parse_proto_text(_EMPTY_OP.join(between).encode("latin-1"), path)
    nodes = graph_nodes(root, path)
    if sum(len(node.get("op", ())) for node in nodes) != len(spans):
        raise _OtherwiseError
    return tuple(nodes), spans


def _graphs(text: str, path: str, source: AttrSource, keep: Keep) -> tuple[Graph, ...]:
    nodes, spans = _apart(text, path)
    builder = _Builder(path)
    # The text starts with a line end that the file does not have, so the block starts at `start` in the file.
    ops = (
        builder.lean_op(text, begin, end, LazyAttrs(source, number, start))
        for number, (start, begin, end) in enumerate(spans)
    )
    bare = [(_bare(node, builder), len(node.get("op", ()))) for node in nodes]
    return tuple(Graph(name=graph.name, ops=keep(islice(ops, count)), attrs=graph.attrs) for graph, count in bare)


def _bare(node: Node, builder: GraphBuilder) -> Graph:
    """A graph without its ops."""
    return builder.graph({field: values for field, values in node.items() if field != "op"})


class _Builder(GraphBuilder):
    """Makes ops from blocks of text; tensors that are written alike are made once."""

    def __init__(self, path: str) -> None:
        super().__init__(TextScalars(), path)
        self._parsed_before: dict[str, Node] = {}
        self._descs: dict[str, TensorDesc] = {}

    def lean_op(self, text: str, begin: int, end: int, attrs: Mapping[str, Any]) -> Op:
        """The op whose block is `text[begin:end]`."""
        node: Node = {}
        memory, most = 0, max(OP_MEMORY, 2 * len(text))
        for match in _OP_PIECE.finditer(text, begin, end):
            memory += _PIECE_MEMORY + _PIECE_TIMES * (match.end() - match.start())
            if memory > most:
                raise _TooLargeError(memory * (end - begin) / (match.end() - begin), most)
            key, value, desc, lines, field, scalar = match.groups()
            if field:
                node.setdefault(field, []).append(scalar)
            elif desc:
                node.setdefault(desc, []).append({_LINES: [lines]})
            elif key:
                node.setdefault("attr", []).append(self._attr_node(key, value))
            else:
                raise _OtherwiseError
        return self.op(node, self._text(node, "name"), attrs)

    def desc(self, node: Node) -> TensorDesc:
        """The tensor whose lines `lean_op` found."""
        (lines,) = node[_LINES]
        desc = self._descs.get(lines)
        if desc is None:
            desc = _kept(self._descs, lines, super().desc(self._desc_node(lines)))
        return desc

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
        cached = self._parsed_before.get(lines)
        if cached is None:
            cached = _kept(self._parsed_before, lines, proto_text.parse_proto_text(lines.encode("latin-1")))
        return cached


def _kept(made: dict[str, T], lines: str, value: T) -> T:
    """The value that was made of some lines, which is not made again as long as only a few others are."""
    if len(made) >= _MOST_KEPT:
        made.clear()
    made[lines] = value
    return value


# ---- attributes, when somebody asks for them


class AttrSource:
    """The file that attributes are read from, as long as it is the one that was loaded."""

    def __init__(self, path: str, check: Signature) -> None:
        self._path = posixpath.abspath(path)
        self._check = check
        self._read_tree: tuple[Sequence[Node], Sequence[int], Scalars] | None = None
        #: What was read last, and where it starts: most ops are asked for in their order.
        self._read: tuple[int, bytes] = (0, b"")

    def of_op(self, number: int, offset: int) -> Mapping[str, Any]:
        """The attributes of an op by its number in the file, or by where its block starts, -1 if that is not known."""
        if offset >= 0:
            return self._of_op_at(offset)
        nodes, starts, scalars = self._tree()
        graph = bisect_right(starts, number) - 1
        return Attrs(attr_nodes(nodes[graph]["op"][number - starts[graph]], scalars), scalars)

    def _of_op_at(self, offset: int) -> Mapping[str, Any]:
        self._check_file()
        first, text = self._read
        end = text.find(_OP_END, offset - first) if offset >= first else -1
        if end < 0:
            first, text = self._read = offset, self._read_op(offset)
            end = text.find(_OP_END)
        block = text[offset - first : end + len(_OP_END)]
        if end < 0 or not block.startswith(b"  op {\n"):
            raise FormatError.of(self._path, "io.graph.no_op", offset=offset)
        texts = {match[1].decode("ascii", "replace"): match[0] for match in _ATTR_TEXT.finditer(block)}
        if block.count(b"\n    attr") == len(texts) and all(map(str.isascii, texts)):
            return Attrs(_UnreadNodes(texts, self._path), TextScalars())
        root: Node = proto_text.parse_proto_text(block, self._path)
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
        if self._read_tree is None:
            self._check_file()
            text = lines_of(read_graph_bytes(self._path))
            if text is not None:
                with suppress(_OtherwiseError, FormatError), proto_text.paused_gc():
                    return _bare(_apart(text, self._path)[0][number], _Builder(self._path)).attrs
        nodes, _, scalars = self._tree()
        return Attrs(attr_nodes(nodes[number], scalars), scalars)

    def _tree(self) -> tuple[Sequence[Node], Sequence[int], Scalars]:
        """The graphs of the file as they stand in it, and the number of the first op of each."""
        if self._read_tree is None:
            self._check_file()
            root, _, scalars = graph_tree(read_graph_bytes(self._path), self._path)
            nodes = graph_nodes(root, self._path)
            starts = list(accumulate((len(node.get("op", ())) for node in nodes), initial=0))
            self._read_tree = nodes, starts[:-1], scalars
        return self._read_tree

    def _check_file(self) -> None:
        if signature_of(self._path) != self._check:
            raise FormatError.of(self._path, "io.changed")


class _UnreadNodes(Mapping[str, Node]):
    """The AttrDefs of an op by key, parsed when they are asked for: of dozens somebody wants two or three."""

    __slots__ = ("_path", "_texts")

    def __init__(self, texts: Mapping[str, bytes], path: str) -> None:
        self._texts, self._path = texts, path

    def __getitem__(self, key: str) -> Node:
        return attr_nodes(proto_text.parse_proto_text(self._texts[key], self._path), TextScalars())[key]

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
