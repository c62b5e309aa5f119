"""What is needed of a GE graph file to choose among many, several times as fast as loading it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeAlias

from precision_tool.lib.formats import proto_text
from precision_tool.lib.formats.ge_graph import load_graph_file
from precision_tool.lib.formats.ge_graph_model import GraphBuilder
from precision_tool.lib.formats.ge_graph_tree import graph_nodes, graph_tree, read_graph_bytes
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.stores import StoredFile

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
    found = {proto_text.string_of(value) for value in set(types)}
    return [proto_text.string_of(value) for value in names], found, len(types)
