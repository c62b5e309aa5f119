"""A report from a session: gathered, laid out and written."""

from __future__ import annotations

import gc
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from precision_tool import __version__
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.errors import OutputError, UsageError
from precision_tool.lib.io.files import folder_exists, real_path
from precision_tool.lib.io.writing import why_no_file
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.report.document import document_of
from precision_tool.lib.report.exchange import write_model_explorer
from precision_tool.lib.report.gather import gather
from precision_tool.lib.report.page import write_page
from precision_tool.lib.session import Session
from precision_tool.lib.workspace import lies_in


def make_report(
    session: Session,
    diagnoses: Sequence[Diagnosis],
    path: str = "",
    *,
    graph: str | None = None,
    checks: Sequence[CheckResult] = (),
) -> str:
    """Write the report on results and their verdicts; return its path, by default beside the first result.

    UsageError for a place among the dumps, OutputError where it cannot be written: then nothing of it is left.
    """
    path = place_of(session, path) if path else _default_path(session, diagnoses)
    findings = [check.finding for check in checks if check.finding is not None]
    with _no_collections():
        materials = gather(session, diagnoses, graph, findings)
        time = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        document = document_of(materials, tool=f"precision_tool {__version__}", time=time)
        write_page(path, document, materials)
    return path


def export_graphs(
    session: Session,
    diagnoses: Sequence[Diagnosis],
    path: str,
    *,
    graph: str | None = None,
) -> list[str]:
    """Writes the graphs and their figures for model-explorer; the paths.

    UsageError where no result has a graph, and for a place among the dumps; OutputError where they cannot be written.
    """
    path = place_of(session, path)
    with _no_collections():
        materials = gather(session, diagnoses, graph)
        if all(material.file is None for material in materials):
            raise UsageError("--model-explorer: the result has no graph", "name one with -g")
        return write_model_explorer(path, document_of(materials, tool=f"precision_tool {__version__}", time=""))


def place_of(session: Session, path: str, *dumps: str) -> str:
    """Where a file that was asked for goes, `~` being the home.

    UsageError for a folder, and for a place among the dumps of the data folder or `dumps`; OutputError where nothing
    can be written.
    """
    path = posixpath.expanduser(path)
    if folder_exists(path):
        raise UsageError(f"{path}: a folder", "name a file, as report.html")
    folder = posixpath.dirname(posixpath.abspath(path))
    session.workspace.check_outside_dumps(folder, *dumps)
    if why := why_no_file(path):
        raise OutputError.of(path, f"cannot be written ({why})", "name another file")
    return path


@contextmanager
def _no_collections() -> Iterator[None]:
    """No search for garbage: each goes through all rows of a result, and a document has no cycles to be found.

    Nor is there one right behind, as all that is left counts as old then.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def _default_path(session: Session, diagnoses: Sequence[Diagnosis]) -> str:
    """Beside the result if it lies in our folder of results, else in that folder."""
    time = f"{datetime.now():%Y%m%d%H%M%S}"
    analysis = diagnoses[0].analysis if diagnoses else None
    if analysis is not None and analysis.path:
        stem = posixpath.splitext(posixpath.basename(analysis.path))[0]
        folder = posixpath.dirname(posixpath.abspath(analysis.path))
        place = real_path(folder)
        if any(lies_in(place, real_path(base)) for base in session.workspace.result_dirs()):
            return posixpath.join(folder, f"report_{stem}.html")
        return str(session.workspace.output_dir("report") / f"report_{stem}.html")
    return str(session.workspace.output_dir("report") / f"report_{time}.html")
