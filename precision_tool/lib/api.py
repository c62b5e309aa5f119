"""The public Python interface; `precision_tool.compare` and the other names of the package come from here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from precision_tool.lib import urls
from precision_tool.lib.checks.agreement import ops_of
from precision_tool.lib.checks.first_fault import find_first_fault
from precision_tool.lib.compare.folders import CompareOptions, LeafResult
from precision_tool.lib.compare.sides import compare_sides
from precision_tool.lib.engine.workers import Progress
from precision_tool.lib.errors import UsageError
from precision_tool.lib.formats.ge_graph import load_graph_file as load_graph
from precision_tool.lib.messages.language import language, use_language
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row
from precision_tool.lib.present.console import ReportConsole
from precision_tool.lib.present.findings import RenderedFinding, render_finding
from precision_tool.lib.present.verdict_json import told
from precision_tool.lib.results.columns import METRIC_FIELDS
from precision_tool.lib.results.result_csv import write_result
from precision_tool.lib.session import Session
from precision_tool.lib.settings import load_settings
from precision_tool.lib.shell.commands.base import Output
from precision_tool.lib.shell.commands.registry import load_command
from precision_tool.lib.user_files import PathLike
from precision_tool.lib.verdict.model import Verdict
from precision_tool.lib.verdict.of_results import verdict_on
from precision_tool.lib.words import find_word

__all__ = ["CompareOptions", "CompareResult", "Session", "Verdict", "compare", "load_graph", "open_data", "run"]


@dataclass(frozen=True, kw_only=True)
class CompareResult:
    """The comparison of one leaf folder (device, model, step).

    Attributes
    ----------
    rows : sequence of Row
        One a pair of tensors, in execution order, inputs before outputs; a pair that was not compared says why in
        `reason`. Metrics have no unit but that of the tensors.
    leaf : DumpLeaf
        The folder of the NPU's dump files.
    graph_path : str or None
        The graph that told which tensors belong together; None where names did.
    notes : sequence of str
        What a user should know of the folders.
    """

    rows: Sequence[Row]
    leaf: DumpLeaf
    graph_path: str | None
    notes: Sequence[str]
    _result: LeafResult

    def findings(self, threshold: float = 0.98) -> list[RenderedFinding]:
        """What the rows tell.

        Parameters
        ----------
        threshold : float
            Cosine similarity, -1 to 1, below which a tensor counts as wrong.

        Returns
        -------
        list of RenderedFinding
            The first faulty op, or different inputs, or that all agree; `op_name` names the op, `message` is a
            sentence on it, `facts` are what it is said from.
        """
        ops = ops_of(self.rows, threshold)
        return [render_finding(finding) for finding in find_first_fault(ops, threshold, self._result.unread_graph)]

    @cached_property
    def verdict(self) -> Verdict | None:
        """Who computes wrong, why, and what to do, judged when first asked for by recomputing each op of the dump.

        None where nothing can be recomputed: without a graph, and of PyTorch dumps. Its steps (`next`) have words
        (`why`), and a line to type or to paste (`line`).
        """
        verdict = verdict_on(self._result)
        return None if verdict is None else told(verdict)

    def to_numpy(self) -> npt.NDArray[Any]:
        """The rows as a structured array.

        Returns
        -------
        numpy.ndarray, shape (rows,)
            Fields `index` (int64), `op_name`, `op_type`, `slot`, `golden_tensor`, `status` (text), and each metric by
            the name of its field in `Metrics` (float64, nan where nothing was compared).
        """
        texts = {
            "op_name": [row.pair.op_name for row in self.rows],
            "op_type": [row.pair.op_type for row in self.rows],
            "slot": [row.pair.slot for row in self.rows],
            "golden_tensor": [row.pair.golden_tensor for row in self.rows],
            "status": [str(row.pair.status) for row in self.rows],
        }
        columns: list[tuple[str, npt.NDArray[Any]]] = [
            ("index", np.array([row.pair.index for row in self.rows], np.int64))
        ]
        columns += [(name, np.array(values, dtype=np.str_)) for name, values in texts.items()]
        for name in METRIC_FIELDS:
            numbers = [nan if row.metrics is None else getattr(row.metrics, name) for row in self.rows]
            columns.append((name, np.array(numbers, np.float64)))
        table = np.empty(len(self.rows), dtype=[(name, values.dtype) for name, values in columns])
        for name, values in columns:
            table[name] = values
        return table

    def write_csv(self, path: PathLike) -> None:
        """Writes the result file with the vendor's columns and ours.

        Parameters
        ----------
        path : path
            Its file; written whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        write_result(urls.path_of(path), self.rows, self._result.choice)


def compare(
    npu: PathLike,
    golden: PathLike,
    *,
    graph: PathLike | None = None,
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    options: CompareOptions | None = None,
) -> list[CompareResult]:
    """Compares NPU dumps with benchmark tensors, or with the dumps of another run. Nothing is written.

    In a script, call it below ``if __name__ == "__main__":``, as it may start worker processes.

    Parameters
    ----------
    npu : path
        The NPU's dump files: a folder of any level of the dump tree, or PyTorch's `.h5` file or a folder of them.
    golden : path
        The benchmark's `.npy` files, a run of tfdbg, another run's dump, or the other device's `.h5`.
    graph : path, optional
        A graph file, or a folder of them; by default the one beside the dump that fits it.
    workers : int
        Threads or processes that share the work; 0: one per core.
    executor : concurrent.futures.Executor, optional
        Does the work instead of processes of our own.
    progress : callable, optional
        Called with the bytes that are done and those to do.
    options : CompareOptions, optional
        Those of `vc`: a selection of ops, metrics of your own and so on.

    Returns
    -------
    list of CompareResult
        One for each folder of dump files (device, model and step).

    Raises
    ------
    DataNotFoundError
        A folder is not there or holds nothing to compare.
    FormatError
        The graph that was asked for is damaged. A damaged dump file is a row with its reason instead.
    UsageError
        The folders are no NPU dump and benchmark, or options contradict each other.
    """
    sides = urls.path_of(npu), urls.path_of(golden)
    graph = None if graph is None else urls.path_of(graph)
    options = options or CompareOptions()
    results = compare_sides(*sides, graph=graph, workers=workers, executor=executor, progress=progress, options=options)
    return [
        CompareResult(
            rows=tuple(result.rows),
            leaf=result.leaf,
            graph_path=None if result.graph is None else result.graph.file.path,
            notes=result.notes,
            _result=result,
        )
        for result in results
    ]


def open_data(folder: PathLike | None = None, *, work: PathLike | None = None) -> Session:
    """Opens a data folder: everything that the prompt knows of it, as values. Nothing is read before it is asked for.

    Parameters
    ----------
    folder : path, optional
        The data folder; by default that of the settings, `precision_data` where you work.
    work : path, optional
        Where results are written; by default `temp` in the data folder.

    Returns
    -------
    Session
        `tensor` and `tensors` give arrays, `find_ops` ops, `pairs_of` their tensors, `run_graphs` graphs, `compare`
        and `results` comparisons, `cosines` the lowest of each op, `overflow` and `random_errors` causes, `passports`
        what the two runs were and what differs. Nothing is printed.

    Raises
    ------
    UsageError
        A setting is wrong. A folder that is not there is told by what is asked of it.
    """
    return Session(load_settings({"data": folder, "work": work}))


def run(
    word: str,
    *arguments: str,
    data: PathLike | None = None,
    work: PathLike | None = None,
    file: TextIO | None = None,
) -> int:
    """Runs a command of the prompt: ``run("ls", "-t", "Conv2D")``.

    Parameters
    ----------
    word : str
        The command.
    *arguments : str
        Its arguments, as on the command line.
    data, work : path, optional
        The data folder, and where results are written; as for `open_data`.
    file : text file, optional
        Where it prints to; by default standard output.

    Returns
    -------
    int
        Its exit code: 0 done, 1 findings with ``--fail``.

    Raises
    ------
    PrecisionToolError
        What the command line would say as an error, with exit code 2.
    SystemExit
        After ``-h``.
    """
    known = find_word(word)
    if known is None or known.name == "data":
        raise UsageError(f"{word}: no such command", "precision-tool -h lists the commands")
    settings = load_settings({"data": data, "work": work})
    out = ReportConsole(file=file, width=settings.width, theme=settings.theme)
    err = ReportConsole(stderr=True, width=settings.width, theme=settings.theme)
    with use_language(settings.language or language()):
        return load_command(known.name)(Session(settings), arguments, Output(out, err))
