"""GE graph files, text (`ge_proto_*_Build.txt`), JSON (`atc --mode=5`) or offline model, to `GraphFile`.

All formats become one tree (ge_graph_tree), from which one builder makes the model (ge_graph_model).
"""

from __future__ import annotations

from pathlib import PurePath

from precision_tool.lib.formats import proto_text
from precision_tool.lib.formats.ge_graph_model import GraphBuilder
from precision_tool.lib.formats.ge_graph_tree import graph_nodes, graph_tree, read_graph_bytes
from precision_tool.lib.model.graph import GraphFile


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
