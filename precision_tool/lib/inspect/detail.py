"""The files about the worst elements of one tensor, named and laid out as msaccucmp's for a single op.

Per tensor `{op}_{input|output}_{i}_summary.txt`, `…_absolute_error_topn.csv` and `…_relative_error_topn.csv`. The
second column of the tables is the element's index in the shape compared; its header names the axes.
"""

from __future__ import annotations

import csv
import hashlib
import posixpath
from collections.abc import Sequence
from math import isnan

from precision_tool.lib.inspect.exports import digits_of
from precision_tool.lib.io.files import atomic_text
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.elements import Detail, Element
from precision_tool.lib.numbers import data_types, decode
from precision_tool.lib.sources.names import file_part, flatten

#: Bytes of a file name; longer ones keep their start and get a hash.
_LONGEST_NAME = 255
_HASH = 12
_SUFFIXES = ("_summary.txt", "_absolute_error_topn.csv", "_relative_error_topn.csv")


def write_detail(folder: str, detail: Detail, prefix: str = "") -> list[str]:
    """Writes the three files and returns their paths. OutputError when they cannot be written."""
    pair = detail.comparison.pair
    digits = _digits(pair)
    stem = _short(file_part(f"{prefix}{flatten(pair.op_name)}_{pair.slot.replace(':', '_')}"))
    paths = [posixpath.join(folder, stem + suffix) for suffix in _SUFFIXES]
    with atomic_text(paths[0]) as file:
        file.write(_summary(detail))
    for path, elements in zip(paths[1:], (detail.worst_absolute, detail.worst_relative), strict=True):
        with atomic_text(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["Index", _axes(detail.shape), "NPUDump", "GroundTruth", "AbsoluteError", "RelativeError"])
            writer.writerows(_line(element, detail.shape, digits) for element in elements)
    return paths


def _short(stem: str) -> str:
    room = _LONGEST_NAME - max(map(len, _SUFFIXES))
    if len(stem.encode("utf-8", "surrogateescape")) <= room:
        return stem
    digest = hashlib.sha256(stem.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH]
    return stem.encode("utf-8", "surrogateescape")[: room - _HASH - 1].decode("utf-8", "ignore") + "_" + digest


def _axes(shape: Sequence[int]) -> str:
    """The header of the index: `ID` for a vector as the vendor has it, else the axes in the order compared."""
    return " ".join(f"Dim{axis}" for axis in range(len(shape))) if len(shape) > 1 else "ID"


def _line(element: Element, shape: Sequence[int], digits: int) -> list[str]:
    flat = 0
    for extent, at in zip(shape, element.index, strict=True):
        flat = flat * extent + at
    numbers = (element.npu, element.golden, element.error, element.relative)
    return [
        str(flat), " ".join(map(str, element.index)), *(_number(value, digits) for value in numbers[:3]),
        "-" if isnan(numbers[3]) else _number(numbers[3], digits),
    ]  # fmt: skip


def _number(value: float, digits: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def _digits(pair: Pair) -> int:
    """Digits that tell the numbers compared from each other."""
    types = [data_types.BY_NAME[side.dtype] for side in (pair.npu, pair.golden) if side is not None]
    return digits_of(decode.compute_types(types[0], types[-1])[0])


def _summary(detail: Detail) -> str:
    pair = detail.comparison.pair
    metrics = detail.comparison.metrics
    digits = _digits(pair)
    facts = [
        ("TotalCount", str(detail.count)),
        ("NPUDump", " ".join(pair.npu_ops)),
        ("GroundTruth", " ".join(pair.golden_ops)),
        ("Format", _axes(detail.shape)),
        ("Shape", " ".join(map(str, detail.shape))),
        ("EqualCount", str(detail.equal)),
        ("MaxAbsoluteError", "-" if metrics is None else _number(metrics.max_absolute_error, digits)),
        ("MaxRelativeError", "-" if metrics is None else _number(metrics.max_relative_error, digits)),
    ]
    return "".join(f"{name}:{' '.join(value.split())}\n" for name, value in facts)
