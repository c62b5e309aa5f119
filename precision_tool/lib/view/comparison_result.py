"""A comparison as Python's users have it: rows, findings, the verdict, tables for numpy, pandas and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType

from precision_tool.lib.compare.columns import METRIC_FIELDS
from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.result_csv import write_result
from precision_tool.lib.diagnose.agreement import agrees, distance, find_first_fault, ops_of
from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, Diagnosis, Leaf, diagnose_leaf, leaves_of
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.diagnose.stored_verdict import read_beside
from precision_tool.lib.diagnose.verdict_model import Verdict
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import PathLike
from precision_tool.lib.messages import render
from precision_tool.lib.messages.catalogue import percent
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row
from precision_tool.lib.view.compare_screen import finding_panel, leaf_title, overview_lines
from precision_tool.lib.view.findings import RenderedFinding, render_finding
from precision_tool.lib.view.html import html_of, text_of
from precision_tool.lib.view.notebook import command_for, program
from precision_tool.lib.view.tables import NUMBERS, Heading, list_table
from precision_tool.lib.view.text import plain, row_text
from precision_tool.lib.view.verdict_screen import rendered_verdict, verdict_block, verdict_line

if TYPE_CHECKING:
    import pandas as pd

#: Rows that a notebook shows, the worst first.
_SHOWN_ROWS = 10


@dataclass(frozen=True, eq=False, repr=False)
class CompareResult:
    """The comparison of one leaf folder (device, model, step), made now or read back from its file.

    Attributes
    ----------
    analysis : Analysis
        The rows, the ops and what the checks found.
    data : DataFolder or None
        The data folder that it is of: the verdict looks at its other runs, status files and passports too.
    """

    analysis: Analysis
    data: DataFolder | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """One a pair of tensors, in execution order, inputs before outputs.

        A pair that was not compared says why in `reason`. Metrics have no unit but that of the tensors.
        """
        return self.analysis.rows

    @property
    def leaf(self) -> DumpLeaf | None:
        """The folder of the NPU's dump files; None for a result that was read back."""
        return None if self.analysis.leaf is None else self.analysis.leaf.leaf

    @property
    def path(self) -> str:
        """The result file; empty where none was written."""
        return self.analysis.path

    @property
    def threshold(self) -> float:
        """Cosine similarity below which a tensor counts as wrong."""
        return self.analysis.threshold

    @property
    def graph_path(self) -> str | None:
        """The graph that tensors were matched by; None where names did."""
        result, source = self.analysis.leaf, self.analysis.source
        if result is not None:
            return None if result.graph is None else result.graph.file.path
        return None if source is None else source.graph or None

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the folders."""
        return () if self.analysis.leaf is None else tuple(map(render, self.analysis.leaf.notes))

    def findings(self, threshold: float | None = None) -> list[RenderedFinding]:
        """Return what the rows tell.

        Parameters
        ----------
        threshold : float, optional
            Cosine similarity, -1 to 1, below which a tensor counts as wrong; by default that of the comparison.

        Returns
        -------
        list of RenderedFinding
            The first faulty op, or different inputs, or that all agree; `op_name` names the op, `message` is a
            sentence on it, `facts` are what it is said from.
        """
        threshold = self.threshold if threshold is None else threshold
        unread_graph = None if self.analysis.leaf is None else self.analysis.leaf.unread_graph
        return [
            render_finding(finding)
            for finding in find_first_fault(ops_of(self.rows, threshold), threshold, unread_graph)
        ]

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The comparison with the verdict on it, made when first asked for by recomputing each op of the dump."""
        result = self.analysis.leaf
        if self.data is not None:
            (leaf,) = leaves_of(self.data, [self.analysis])
        elif result is not None:
            leaf = Leaf(dump=result.leaf, golden=result.golden, analysis=self.analysis)
        else:
            leaf = Leaf(dump=None, analysis=self.analysis)
        return diagnose_leaf(leaf, DiagnoseOptions(compares=False))

    @cached_property
    def verdict(self) -> Verdict | None:
        """The first wrong op, why, and what to do; computed at first access by recomputing each op of the dump.

        None where nothing can be recomputed: without a graph, and of PyTorch dumps. Its steps (`next`) have words
        (`why`), and a line to type or to paste (`line`).
        """
        verdict = self.diagnosis.verdict
        return None if verdict is None else rendered_verdict(verdict)

    def _known_verdict(self) -> Verdict | None:
        """Return the verdict if that takes no recomputing: it was asked for, or `ac` kept it beside the result file."""
        if "verdict" in self.__dict__:
            return self.verdict
        kept = read_beside(self.path, self.threshold) if self.path else None
        return None if kept is None else rendered_verdict(kept.verdict)

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return the rows as a structured array.

        Returns
        -------
        numpy.ndarray, shape (rows,)
            Fields `index` (int64), `op_name`, `op_type`, `slot`, `golden_tensor`, `status` (text), and each metric by
            the name of its field in `Metrics` (float64, nan where nothing was compared).
        """
        columns = self._columns()
        table = np.empty(len(self.rows), dtype=[(name, values.dtype) for name, values in columns.items()])
        for name, values in columns.items():
            table[name] = values
        return table

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame with the fields of `to_numpy` as columns.

        Raises
        ------
        UsageError
            pandas is not installed.
        """
        return load_pandas().DataFrame(self._columns())

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        pairs = [row.pair for row in self.rows]
        texts = {
            "op_name": [pair.op_name for pair in pairs],
            "op_type": [pair.op_type for pair in pairs],
            "slot": [pair.slot for pair in pairs],
            "golden_tensor": [pair.golden_tensor for pair in pairs],
            "status": [str(pair.status) for pair in pairs],
        }
        columns: dict[str, npt.NDArray[Any]] = {"index": np.array([pair.index for pair in pairs], np.int64)}
        columns |= {name: np.array(values, dtype=np.str_) for name, values in texts.items()}
        for name in METRIC_FIELDS:
            numbers = [nan if row.metrics is None else getattr(row.metrics, name) for row in self.rows]
            columns[name] = np.array(numbers, np.float64)
        return columns

    def write_csv(self, path: PathLike) -> None:
        """Write the result file with the vendor's columns and ours.

        Parameters
        ----------
        path : path
            Its file; written whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        write_result(urls.path_of(path), self.rows, self.analysis.choice)

    def __repr__(self) -> str:
        view = self.analysis.overview
        counts = f"{view.compared} of {self.analysis.tensors} tensors compared, {view.below} below {self.threshold:g}"
        return f"<CompareResult {leaf_title(self.analysis)}: {counts}>"

    def worst_rows(self, count: int = _SHOWN_ROWS) -> list[Row]:
        """Return the rows of the outputs that are farthest off, the worst first.

        The inputs of an op are outputs of others. An error grows on its way: the worst output is seldom the first.

        Parameters
        ----------
        count : int
            How many rows at most; 0: all that were compared.

        Returns
        -------
        list of Row
            Mismatches of NaN and Inf come first, then the lowest cosines, single numbers by their relative error.
        """
        compared = [row for row in self.rows if row.pair.slot and not row.pair.is_input and row.metrics is not None]
        return sorted(compared, key=distance, reverse=True)[: count or None]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else text_of(*self.screen()))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict if it was asked for or is stored, or findings; the worst rows."""
        return html_of(*self.screen())

    def screen(self, *, short: bool = False) -> Iterator[RenderableType]:
        """Yield what a notebook shows; `short`: of the verdict one line."""
        yield Heading(plain(leaf_title(self.analysis)))
        verdict = self._known_verdict()
        if verdict is not None and short:
            yield verdict_line(verdict)
        elif verdict is not None:
            command = program() if self.data is None else command_for(self.data.workspace)
            yield verdict_block(verdict, self.analysis.part, command)
        else:
            yield from map(finding_panel, self.analysis.findings)
        yield overview_lines(self.analysis)
        if self.analysis.overview.compared:
            yield row_table(self.worst_rows(), self.threshold)


class CompareResults(list[CompareResult]):
    """The comparisons of all leaf folders (devices, models, steps) of two sides, as a list."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all of them."""
        return tuple(row for result in self for row in result.rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows of all of them as a data frame.

        Returns
        -------
        pandas.DataFrame
            The columns of `CompareResult.to_pandas`; of several comparisons the first column, `leaf`, tells which.

        Raises
        ------
        UsageError
            pandas is not installed.
        """
        pandas = load_pandas()
        frames = [result.to_pandas() for result in self]
        if len(frames) == 1:
            return frames[0]
        for frame, result in zip(frames, self, strict=True):
            frame.insert(0, "leaf", leaf_title(result.analysis))
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else text_of(*self._screen()))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: each comparison."""
        return html_of(*self._screen())

    def _screen(self) -> Iterator[RenderableType]:
        for result in self:
            yield from result.screen(short=True)


def load_pandas() -> Any:
    """Return the module pandas. UsageError says how to install it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError("view.pandas_missing") from error
    return pd


def row_table(rows: Sequence[Row], threshold: float) -> RenderableType:
    """Return rows as a table: the tensor, its cosine, or both values of a single number, and its errors."""
    has_own_error = any(row.own_error is not None for row in rows)
    table = list_table()
    table.add_columns("screen.view.notebook.column", "cosine", "relative", "largest", **NUMBERS)
    if has_own_error:
        table.add_columns("screen.view.notebook.column", "own", **NUMBERS)
    table.add_columns("screen.view.notebook.column", "slot", "type", "op")
    for row in rows:
        metrics = row.metrics
        assert metrics is not None
        cells = [row_text(row, agrees(row, threshold))]
        cells += [plain(_figure(value)) for value in (metrics.relative_euclidean_distance, metrics.max_absolute_error)]
        if has_own_error:
            cells.append(plain("" if row.own_error is None else percent(row.own_error)))
        table.add_row(*cells, plain(row.slot), plain(row.op_type), plain(row.op_name))
    return table


def _figure(value: float) -> str:
    return f"{value:.3g}"
