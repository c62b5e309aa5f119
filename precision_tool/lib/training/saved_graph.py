"""The graph of a dumped step, saved as `tf/graph/{name}.pb`: what says how the benchmark's tensors hang together.

This module runs on Python 3.7.
"""

import contextlib
import os
from typing import AbstractSet, Any, Optional

from precision_tool.lib.data.settings import Settings
from precision_tool.lib.data.workspace import Workspace, make_writable
from precision_tool.lib.io.writing import temporary_file
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.training.packages import reason_of, say

#: Names of the files: the graph of a session, and that of a function or of a batch of Keras.
SESSION, FUNCTION = "session", "function"


class GraphSaver:
    """Saves the graph of a session before a run; again only when it has grown since."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._version = -1

    def before_run(self, graph: Any) -> None:
        """Save the graph if that was not done."""
        if graph.version != self._version:
            self._version = graph.version
            save_graph(graph, SESSION, self._settings)


def save_graph(graph: Any, name: str, settings: Settings, ops: Optional[AbstractSet[str]] = None) -> None:
    """Save a graph with the shapes of its tensors, of its ops only those of these names if they are given.

    A graph that cannot be saved ends no training: a line says so.
    """
    try:
        definition = graph.as_graph_def(add_shapes=True)
        if ops is not None:
            nodes = [node for node in definition.node if node.name in ops]
            del definition.node[:]
            definition.node.extend(nodes)
        content = definition.SerializeToString()
        folder = str(make_writable(Workspace(settings.data).tf_graph_dir))
        handle, path = temporary_file(folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.rename(path, os.path.join(folder, f"{name}.pb"))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
    except PrecisionToolError as error:
        say("graph_not_saved", reason=error.full_message)
    except Exception as error:  # protobuf refuses what is larger than 2 GB; the error has no public name
        say("graph_not_saved", reason=reason_of(error))
