"""The graph files of a data folder, of every stage of the compiler, whether or not one is in use."""

from __future__ import annotations

from contextlib import suppress

from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.survey import FoundIn, GraphSurvey, search, survey
from precision_tool.lib.sources.names import op_number
from precision_tool.lib.workspace import check_data


def survey_graphs(data: DataFolder) -> GraphSurvey:
    """Every graph file there is, what it holds, and whether it is in use."""
    problem: PrecisionToolError | None = None
    in_use: tuple[RunGraph, ...] = ()
    try:
        in_use = data.run_graphs()
    except PrecisionToolError as error:
        problem = error
    return survey(data.run_folders(), in_use, data.store, extra_folders=(".",), problem=problem)


def search_graphs(data: DataFolder, word: str) -> tuple[FoundIn, ...]:
    """The graph files of every stage with their ops whose names fit a part of a name, a glob or a number.

    DataNotFoundError when none has such an op, with the closest names.
    """
    check_data(data.workspace.root)
    in_use: tuple[RunGraph, ...] = ()
    with suppress(PrecisionToolError):  # files are searched whether or not one can be used
        in_use = data.run_graphs()
    if op_number(word) is not None:  # the number is that of the graph in use
        word = data.find_ops(word)[0].op.name
    return search(data.run_folders(), in_use, word, extra_folders=(".",))
