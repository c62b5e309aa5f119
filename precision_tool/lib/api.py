"""The public Python interface; `precision_tool.compare` and the other names of the package come from here."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from typing import TextIO

from precision_tool.lib.cli.command import Output, load_command
from precision_tool.lib.cli.words import find_word
from precision_tool.lib.compare.folders import CompareOptions, compare_sides
from precision_tool.lib.compare.noise import with_noise
from precision_tool.lib.compare.scheduler import Progress, Resources
from precision_tool.lib.data.settings import DEFAULT_DATA, load_settings
from precision_tool.lib.diagnose.run_checks import analyse
from precision_tool.lib.diagnose.verdict_model import Verdict
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import PathLike, is_folder
from precision_tool.lib.io.ge_graph import load_graph_file as load_graph
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.messages.language import choose_language, chosen_language, use_language
from precision_tool.lib.session import Session
from precision_tool.lib.view.comparison_result import CompareResult
from precision_tool.lib.view.console import ReportConsole

__all__ = [
    "CompareOptions",
    "CompareResult",
    "Resources",
    "Session",
    "Verdict",
    "compare",
    "load_graph",
    "open_data",
    "run",
]


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
    """Compare NPU dumps with benchmark tensors, or with the dumps of another run. Nothing is written.

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
        Those of `vc`: the threshold, a selection of ops, metrics of your own and so on.

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
    options = options or CompareOptions()
    if graph is not None:
        options = replace(options, graph=urls.path_of(graph))
    results = compare_sides(urls.path_of(npu), urls.path_of(golden), options, Resources(workers, executor, progress))
    return [
        CompareResult(analyse("", with_noise(result.table, options.noise), options.threshold, result))
        for result in results
    ]


def open_data(folder: PathLike | None = None, *, work: PathLike | None = None, language: str | None = None) -> Session:
    """Open a data folder: everything that the prompt knows of it, as values. Nothing is read before it is asked for.

    Parameters
    ----------
    folder : path, optional
        The data folder, or the folder that `precision_data` lies in; by default that of the settings, `precision_data`
        where you work.
    work : path, optional
        Where results are written; by default `temp` in the data folder.
    language : {"en", "zh"}, optional
        The language of all texts from now on; by default that of the settings, else of the locale.

    Returns
    -------
    Session
        `diagnose` names the op that computes wrong and why, `compare` and `results` give comparisons, `op`, `ops` and
        `find_ops` ops, `tensor` and `tensors` arrays, `pairs_of` the tensors of an op, `run_graphs` graphs, `cosines`
        the lowest of each op, `overflow` and `random_errors` causes, `passports` what the two runs were and what
        differs. Nothing is printed; a notebook shows what is in the folder.

    Raises
    ------
    DataNotFoundError
        There is no such folder.
    UsageError
        A setting is wrong.
    """
    session = Session(load_settings({"data": folder, "work": work, "language": language}))
    if session.settings.language:
        choose_language(session.settings.language)
    try:
        session.data.check_data()
    except DataNotFoundError:
        inner = session.settings.data / DEFAULT_DATA
        if not is_folder(inner):
            raise
        return open_data(inner, work=work, language=language)
    return session


def run(
    word: str,
    *arguments: str,
    data: PathLike | None = None,
    work: PathLike | None = None,
    file: TextIO | None = None,
) -> int:
    """Run a command of the prompt: ``run("ls", "-t", "Conv2D")``.

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
    command = find_word(word)
    if command is None or command.name == "data":
        raise UsageError("cli.no_such_command", name=word)
    settings = load_settings({"data": data, "work": work})
    out = ReportConsole(file=file, width=settings.width, theme=settings.theme)
    err = ReportConsole(stderr=True, width=settings.width, theme=settings.theme)
    with use_language(settings.language or chosen_language()):
        return load_command(command.name)(Session(settings), arguments, Output(out, err))
