"""The graph with node data in the format of Google's model-explorer.

The graph is a GraphCollection, the node data one file a figure, each by graph and node id
(github.com/google-ai-edge/model-explorer: graph_builder.py, node_data_builder.py).
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.io.files import atomic_text
from precision_tool.lib.messages import language, text
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.version import __version__
from precision_tool.lib.view.report_document import document_of
from precision_tool.lib.view.report_material import garbage_collection_off, gather, place_of

#: The figures that become node data, with the lower ends of their colours: those of the report's map.
_FIGURES = {
    "own_error": ("own", (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)),
    "one_minus_cosine": ("cosine", (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)),
}
_COLOURS = ("#d9e8f2", "#a5cbe3", "#f4e3a1", "#f2b04c", "#e0662e", "#a50f15")
#: Stands for numbers that are not finite, which JSON has not.
_BEYOND = 1e30


def export_graphs(
    data: DataFolder,
    diagnoses: Sequence[Diagnosis],
    path: str,
    *,
    graph: str | None = None,
) -> list[str]:
    """Write the graphs of results, and their figures (node data) next to it.

    Parameters
    ----------
    data, diagnoses, graph
        As for `make_report`.
    path : str
        The JSON file of the graphs; figures go to `NAME_own_error.json` and `NAME_one_minus_cosine.json`.

    Returns
    -------
    list of str
        All paths that were written.

    Raises
    ------
    UsageError
        No result has a graph, or the place lies among the dumps.
    OutputError
        They cannot be written.
    """
    path = place_of(data, path)
    with garbage_collection_off():
        materials = gather(data, diagnoses, graph)
        if all(material.file is None for material in materials):
            raise UsageError("view.explorer_no_graph")
        return _write(path, document_of(materials, tool=f"precision_tool {__version__}", time=""))


def _write(path: str, document: Mapping[str, Any]) -> list[str]:
    results = [result for result in document["results"] if result["map"] is not None]
    stem = posixpath.splitext(path)[0]
    # A graph needs an id of its own.
    titles = [result["title"] for result in results]
    names = [f"{number}: {title}" for number, title in enumerate(titles)] if len(titles) > 1 else titles
    graphs = [_graph(name, result) for name, result in zip(names, results, strict=True)]
    written = {path: {"label": document["tool"], "graphs": graphs}}
    for figure, (column, limits) in _FIGURES.items():
        data = {name: _node_data(result, column, limits) for name, result in zip(names, results, strict=True)}
        if any(entry["results"] for entry in data.values()):
            written[f"{stem}_{figure}.json"] = data
    for target, content in written.items():
        with atomic_text(target) as file:
            file.write(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
    return list(written)


def _graph(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    texts, ops, wires = result["texts"], result["ops"], result["wires"]
    count = len(result["map"]["parent"]) - len(result["map"]["groups"]["name"])
    edges: list[list[dict[str, str]]] = [[] for _ in range(count)]
    for producer, output, reader, slot in zip(
        wires["producer"], wires["output"], wires["reader"], wires["slot"], strict=True
    ):
        if slot >= 0:  # an order without a tensor is no edge there
            edges[reader].append({
                "sourceNodeId": str(producer), "sourceNodeOutputId": str(output), "targetNodeInputId": str(slot),
            })  # fmt: skip
    nodes = []
    for op in range(count):
        nodes.append({
            "id": str(op), "label": texts[ops["type"][op]] or "op", "namespace": _namespace(result, op),
            "attrs": [{"key": key, "value": value} for key, value in _attributes(result, op)],
            "incomingEdges": edges[op],
            "outputsMetadata": [
                {"id": str(number), "attrs": [{"key": "tensor", "value": texts[at]}]}
                for number, at in enumerate(ops["outputs"][op] or ())
            ],
        })  # fmt: skip
    graph: dict[str, Any] = {"id": name, "nodes": nodes}
    if len(result["error_path"]) > 1:
        graph["tasksData"] = {"edgeOverlaysDataListLeftPane": [_overlay(result["error_path"])]}
    return graph


def _overlay(path: Sequence[int]) -> dict[str, Any]:
    edges = [{"sourceNodeId": str(source), "targetNodeId": str(target)} for source, target in pairwise(path)]
    overlay = {"name": text("page.map.path"), "edgeColor": "#c1121f", "edgeWidth": 3, "edges": edges}
    return {"name": "precision_tool", "type": "edge_overlays", "overlays": [overlay]}


def _namespace(result: Mapping[str, Any], op: int) -> str:
    """Return the groups of an op, without the sections of the report's map: model-explorer makes its own."""
    layout = result["map"]
    names, sections, parents = layout["groups"]["name"], layout["groups"]["section"], layout["parent"]
    count = len(parents) - len(names)
    groups = []
    group = parents[op]
    while group >= 0:
        if not sections[group]:
            groups.append(result["texts"][names[group]])
        group = parents[count + group]
    return "/".join(reversed(groups))


def _attributes(result: Mapping[str, Any], op: int) -> list[tuple[str, str]]:
    texts, ops = result["texts"], result["ops"]
    attributes = [("name", texts[ops["name"][op]])]
    for key, column in (("fusion passes", "pass"), ("original ops", "originals")):
        if ops[column][op]:
            attributes.append((key, ", ".join(texts[at] for at in ops[column][op])))
    for key, column in (("judged", "state"), ("reason", "reason"), ("status", "status")):
        if ops[column][op]:
            shown = texts[ops[column][op]]
            attributes.append((key, shown if isinstance(shown, str) else shown[language()]))
    for key in ("own", "rounding", "fed", "cosine", "cosine_in", "headroom"):
        if ops[key][op] is not None:
            attributes.append((key, str(ops[key][op])))
    return [*attributes, *result["attributes"].get(str(op), {}).items()]


def _node_data(result: Mapping[str, Any], column: str, limits: Sequence[float]) -> dict[str, Any]:
    values: dict[str, dict[str, float]] = {}
    for op in range(len(result["map"]["parent"]) - len(result["map"]["groups"]["name"])):
        value = result["ops"][column][op]
        if value is None:
            continue
        number = _BEYOND if isinstance(value, str) else 1 - value if column == "cosine" else value
        values[str(op)] = {"value": max(0.0, number)}
    ends = [*limits, _BEYOND]
    thresholds = [{"value": end, "bgColor": colour} for end, colour in zip(ends, _COLOURS, strict=True)]
    return {"results": values, "thresholds": thresholds}
