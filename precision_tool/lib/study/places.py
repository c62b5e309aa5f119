"""One step of one rank: where its dump and its benchmark lie, and what a study has of it."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from precision_tool.lib.checks.analysis import Analysis, analyse
from precision_tool.lib.data.folder import Place
from precision_tool.lib.errors import DataNotFoundError
from precision_tool.lib.io.files import exists
from precision_tool.lib.model.table import ColumnChoice, Table
from precision_tool.lib.study.benchmarks import BenchmarkFolder, pair_benchmarks
from precision_tool.lib.study.journal import JOURNAL, KeptRows, read_rows
from precision_tool.lib.study.leaves import list_leaves, sources_of, spans
from precision_tool.lib.study.packed import rows_of, unpack
from precision_tool.lib.workspace import Workspace


def find_place(folders: Sequence[str], step: int | None, rank: int | None) -> tuple[Place, str]:
    """The dump folders (one a model) and benchmark of a step of a rank, by default of the first, and their data folder.

    DataNotFoundError where that was not dumped.
    """
    listing = list_leaves(sources_of(folders))
    fitting = [
        leaf for leaf in listing.leaves if (step is None or leaf.step == step) and (rank is None or leaf.rank == rank)
    ]
    if not fitting:
        asked = [f"{what} {number}" for what, number in (("step", step), ("rank", rank)) if number is not None]
        raise DataNotFoundError(
            f"no dump of {', '.join(asked)}: there are steps {spans(listing.steps)} of ranks {spans(listing.ranks)}",
            "name another with --step and --rank; `all` goes back to all of them",
        )
    first = fitting[0]
    leaves = [leaf for leaf in fitting if (leaf.step, leaf.rank) == (first.step, first.rank)]
    benchmarks = pair_benchmarks(listing.leaves).folders
    prints = {leaf.path: (leaf.fingerprint, _print_of(benchmarks.get(leaf.path))) for leaf in leaves}
    golden = benchmarks[first.path].path if first.path in benchmarks else ""
    return Place(leaves=tuple(leaf.path for leaf in leaves), golden=golden, prints=prints), first.data


def _print_of(folder: BenchmarkFolder | None) -> str:
    return "" if folder is None else folder.fingerprint


def study_rows(space: Workspace, place: Place, threshold: float) -> list[Analysis]:
    """Return the rows that a study has of a place, checked at a threshold; DataNotFoundError where none has any."""
    tables = kept_rows([str(folder) for folder in space.result_dirs()], place, space.notes)
    return [analyse(path, table, threshold) for path, table in tables]


def kept_rows(results: Sequence[str], place: Place, notes: list[str]) -> list[tuple[str, Table]]:
    """What studies in these folders of results have of a place, a table for each model, and the journal that has it.

    `notes` is told what has changed since. DataNotFoundError where none has anything.
    """
    journals = [posixpath.join(folder, "study", JOURNAL) for folder in results]
    found = []
    for path in place.leaves:
        for journal in filter(exists, journals):
            kept = read_rows(journal, path)
            if kept is not None:
                found.append((journal, Table(tuple(rows_of(unpack(journal, kept.rows))), ColumnChoice(own_error=True))))
                notes += _changed(path, kept, place)
                break
    if not found:
        raise DataNotFoundError(f"{place.leaves[0]}: no study has anything of it yet", "`ac --all` makes one")
    return found


def _changed(path: str, kept: KeptRows, place: Place) -> list[str]:
    """What has changed since a study had a leaf; of another benchmark than the place's nothing is known."""
    dump, benchmark = place.prints.get(path, (kept.dump, kept.benchmark_print))
    changed = ["its dump"] if dump != kept.dump else []
    if kept.benchmark == place.golden and benchmark != kept.benchmark_print:
        changed.append("its benchmark")
    return [f"{path}: {' and '.join(changed)} changed since the study: `ac --all` does it anew"] if changed else []
