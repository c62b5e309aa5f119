"""The noise floor of a network: how far each tensor is off in two runs of the same script, as a file.

Errors are then judged against the tensor's own noise (`checks.agreement`).
"""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.io.files import atomic_text, is_folder, list_folder, open_file
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.model.table import Table

FOLDER, _PREFIX = "random", "noise_floor_"
_COLUMNS = ("Op", "Slot", "RelativeEuclideanDistance", "MaxAbsoluteError", "CosineSimilarity")
_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The distance between a tensor of one run and that of the other. Cosine and absolute error are for people."""

    op_name: str
    slot: str
    distance: float
    max_absolute_error: float = 0.0
    cosine: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """The relative distance of each tensor of a file, by flattened op name and slot."""

    path: str
    distances: Mapping[tuple[str, str], float] = field(repr=False)

    def of(self, op_name: str, slot: str) -> float | None:
        """Return the noise of a tensor; None if the file does not have it."""
        return self.distances.get((flatten(op_name), slot))


def with_noise(table: Table, floor: NoiseFloor | None) -> Table:
    """Return the table, each row with its tensor's own noise."""
    if floor is None:
        return table
    return replace(table, rows=tuple(replace(row, noise=floor.of(row.op_name, row.slot)) for row in table))


def noise_path(folder: Path, time: str) -> str:
    """Return the path of a noise floor written at that time, in the folder for results."""
    return str(folder / f"{_PREFIX}{time}.csv")


def write_noise(path: str, rows: Iterable[Noise]) -> None:
    """Write a noise floor; of a tensor that is there several times the largest. OutputError when it cannot."""
    largest: dict[tuple[str, str], Noise] = {}
    for row in rows:
        noise = largest.setdefault((row.op_name, row.slot), row)
        if row.distance > noise.distance:
            largest[row.op_name, row.slot] = row
    with atomic_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for row in largest.values():
            numbers = (row.distance, row.max_absolute_error, row.cosine)
            writer.writerow([row.op_name, row.slot, *(f"{number:.9g}" for number in numbers)])


def find_noise(named: str, result_folders: Iterable[Path]) -> str:
    """Return the noise floor that was named; of a folder, or of those for results where nothing was, the newest.

    DataNotFoundError if there is none.
    """
    if named and not is_folder(named):
        return named
    folders = [folder / FOLDER for folder in result_folders]
    if named:  # may also be a data folder, or one for results
        folders = [Path(named), Path(named, FOLDER), Path(named, "temp", FOLDER)]
    paths = [
        str(folder / name)
        for folder in folders
        if is_folder(folder)
        for name in list_folder(str(folder))
        if name.startswith(_PREFIX) and name.endswith(".csv")
    ]
    if not paths:
        raise DataNotFoundError("compare.no_noise_in", folder=named) if named else DataNotFoundError("compare.no_noise")
    return max(paths, key=posixpath.basename)


def read_noise(path: str) -> NoiseFloor:
    """Read a noise floor; FormatError for what is none."""
    with open_file(path) as file:
        if file.size > _MAX_BYTES:
            raise FormatError.of(path, "compare.large_noise", size=file.size)
        text = file.read_at(0, file.size).decode("utf-8", "backslashreplace")
    distances: dict[tuple[str, str], float] = {}
    try:
        reader = csv.DictReader(text.splitlines())
        missing = [name for name in _COLUMNS[:3] if name not in (reader.fieldnames or ())]
        if missing:
            raise FormatError.of(path, "compare.noise_column", column=missing[0])
        for number, row in enumerate(reader, start=2):
            try:
                distance = float(row["RelativeEuclideanDistance"])
            except (TypeError, ValueError):
                raise FormatError.of(path, "compare.noise_line", number=number) from None
            if isfinite(distance) and distance >= 0:
                distances[flatten(row["Op"]), row["Slot"]] = distance
    except csv.Error as error:
        raise FormatError.of(path, "compare.bad_noise", reason=str(error)) from error
    return NoiseFloor(path=path, distances=distances)
