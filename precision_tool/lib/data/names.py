"""The names there are in a data folder, for completion: () rather than an error."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph import lookup
from precision_tool.lib.graph.choice import find_graph_files
from precision_tool.lib.model.graph import Op
from precision_tool.lib.results.result_files import results_in
from precision_tool.lib.sources.dumps import GoldenFiles
from precision_tool.lib.workspace import shown_path

if TYPE_CHECKING:
    from precision_tool.lib.model.pytorch import H5Op


class DataNames:
    """Names of ops, files and so on, sorted once as long as what they come from is the same."""

    def __init__(self, data: DataFolder) -> None:
        self._data = data
        self._names: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {}

    def op_names(self) -> tuple[str, ...]:
        """Names of the ops of the graphs in use, for completion: () rather than an error, as all below."""
        return self._with_h5("ops", self._of_ops("ops", lambda op: (op.name,)), lambda op: (op.name,))

    def op_types(self) -> tuple[str, ...]:
        """Types of the ops of the graphs in use."""
        return self._with_h5("types", self._of_ops("types", lambda op: (op.type,)), lambda op: (op.type,))

    def pass_names(self) -> tuple[str, ...]:
        """Names of the fusion passes that made ops of the graphs in use."""
        return self._of_ops("passes", lambda op: op.pass_names)

    def kernel_names(self) -> tuple[str, ...]:
        """Names of the kernels, and of the libraries they are in."""
        return self._of_ops("kernels", lambda op: (op.kernel_name, op.kernel_lib))

    def graph_paths(self) -> tuple[str, ...]:
        """Build graphs of the runs and of the working folder."""
        folders = [str(self._data.workspace.graph_dir(number)) for number in self._data.workspace.debug_numbers()]
        with suppress(PrecisionToolError, OSError):
            return tuple(sorted(map(shown_path, find_graph_files(folders, (".",)))))
        return ()

    def result_paths(self) -> tuple[str, ...]:
        """Result files, newest comparison first."""
        return tuple(shown_path(path) for folder in self._data.workspace.compare_dirs() for path in results_in(folder))

    def dump_file_names(self) -> tuple[str, ...]:
        """Names of the dump files of all runs, and of the data sets of PyTorch dumps."""
        runs = [folder.run for folder in self._data.run_folders()]
        files = self._sorted(
            "dumps",
            runs,
            lambda: (
                posixpath.basename(file.path) for run in runs if run for leaf in run.leaves for file in leaf.files
            ),
        )
        return self._with_h5("values", files, lambda op: (value.path for value in op.values))

    def golden_file_names(self) -> tuple[str, ...]:
        """Names of the benchmark's files."""
        golden = self._data.golden_of(0)
        if not isinstance(golden, GoldenFiles):
            return ()
        return self._sorted("goldens", [golden], lambda: (posixpath.basename(file.path) for file in golden.files))

    def _of_ops(self, what: str, names_of: Callable[[Op], Iterable[str]]) -> tuple[str, ...]:
        try:
            runs = self._data.run_graphs()
        except PrecisionToolError:
            return ()
        return self._sorted(
            what,
            runs,
            lambda: (name for _, _, op in lookup.every_op(runs) for name in names_of(op) if name),
        )

    def _with_h5(self, what: str, names: tuple[str, ...], names_of: Callable[[H5Op], Iterable[str]]) -> tuple[str, ...]:
        """The names, and those of PyTorch dumps; the same object as long as they are the same."""
        try:
            data = self._data.pytorch()
        except PrecisionToolError:
            data = None
        if data is None:
            return names
        ops = [op for side in data.sides for op in side.dump.ops]
        return self._sorted(
            f"h5 {what}", [names, data], lambda: (*names, *(name for op in ops for name in names_of(op)))
        )

    def _sorted(self, what: str, sources: Sequence[object], names: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        """The names once each, sorted; worked out again when they come from other objects than before."""
        before, known = self._names.get(what, ((), ()))
        if len(before) != len(sources) or any(old is not new for old, new in zip(before, sources, strict=True)):
            known = tuple(sorted(set(names())))
            self._names[what] = (tuple(sources), known)
        return known
