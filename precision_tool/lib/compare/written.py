"""The files that a comparison leaves: tables, what they are of, the worst elements of single ops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precision_tool.lib.compare.folders import CompareOptions, LeafResult
from precision_tool.lib.compare.result_source import source_of, write_source
from precision_tool.lib.errors import OutputError
from precision_tool.lib.inspect.detail import write_detail
from precision_tool.lib.pairing.selection import OpNames
from precision_tool.lib.results.result_csv import write_mapping, write_result
from precision_tool.lib.results.result_files import OPS_PREFIX, PART_PREFIX
from precision_tool.lib.workspace import Workspace


def write_results(
    space: Workspace, folder: Path, results: Sequence[LeafResult], prefix: str = "", pairs_only: bool = False
) -> list[str]:
    """Write the results; return the path of each one's file, empty for a result without rows, which gets none."""
    paths: list[str] = []
    kind = "mapping" if pairs_only else "result"
    try:
        for result in results:
            if not result.rows:
                paths.append("")
                continue
            leaf = result.leaf
            parts = "_".join(part for part in (leaf.device, leaf.model_name, leaf.step) if part)
            name = stem = f"{parts or 'dump'}_" if len(results) > 1 else ""
            path = folder / f"{prefix}{name}{kind}_{folder.name}.csv"
            number = 1
            while str(path) in paths:  # the same model under two ids
                number += 1
                name = f"{stem}{number}_"
                path = folder / f"{prefix}{name}{kind}_{folder.name}.csv"
            if pairs_only:
                write_mapping(str(path), [row.pair for row in result.rows], sequence=result.choice.sequence)
            else:
                write_result(str(path), result.rows, result.choice)
                write_source(str(path), source_of(result), str(space.root))
            for detail in result.details:
                write_detail(str(folder), detail, name)
            paths.append(str(path))
    except OutputError:
        space.remove_empty(folder)
        raise
    return paths


def prefix_of(options: CompareOptions) -> str:
    """Return what the name of a result begins with: nothing where it is of every op, whole."""
    if options.prefix:
        return options.prefix
    if isinstance(options.selection, OpNames):
        return OPS_PREFIX
    return PART_PREFIX if options.selection is not None or options.limit else ""
