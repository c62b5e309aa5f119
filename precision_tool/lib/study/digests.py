"""What a vote keeps of a tensor: a hash of what it holds and, where it is added up, means of its parts."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from itertools import pairwise

import numpy as np

from precision_tool.lib.engine.blocks import TensorReader
from precision_tool.lib.engine.statistics import open_reader
from precision_tool.lib.io.files import open_file
from precision_tool.lib.model.tensor import Access, Tensor, TensorStatistics
from precision_tool.lib.numbers import data_types, layouts
from precision_tool.lib.sources.dumps import Found
from precision_tool.lib.study.outcome import BlockMeans
from precision_tool.lib.verdict.rounding import UNIT

#: A tensor is held in so many parts: a part that is wrong is not lost in the mean of the whole.
_BLOCKS = 64
_PIECE = 1 << 21  # elements
_BYTES = 8 << 20
_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Digest:
    """The hash of a tensor as it is stored, "" if there is none; of one with statistics only, of these."""

    value: str
    means: BlockMeans | None = None


def digest_of(tensor: Found, with_means: bool = False) -> Digest:
    """The digest of a tensor, and if asked for the means of its parts, None without its numbers; it is read once."""
    if isinstance(tensor, TensorStatistics):
        return Digest("s" + hashlib.sha256(repr(astuple(tensor)[1:]).encode()).hexdigest()[: _DIGITS - 1])
    if not isinstance(tensor, Tensor) or tensor.parts or tensor.access is not Access.BYTES:
        return Digest("")
    digest = hashlib.sha256()
    means = None
    if with_means and _is_numbers(tensor):
        as_it_lies = layouts.plain_plan((tensor.size,))
        with open_reader(tensor, as_it_lies, np.dtype(np.float64)) as reader:
            reader.watch = lambda _, read: digest.update(read.data)
            means = _means_of(reader, tensor)
    else:
        with open_file(tensor.path) as file:
            for at in range(0, tensor.nbytes, _BYTES):
                digest.update(file.read_at(tensor.offset + at, min(_BYTES, tensor.nbytes - at)))
    return Digest(digest.hexdigest()[:_DIGITS], means)


def _is_numbers(tensor: Tensor) -> bool:
    """Whether a tensor is floating numbers and nothing behind them."""
    if tensor.dtype not in UNIT or not tensor.size:
        return False
    return tensor.nbytes == data_types.BY_NAME[tensor.dtype].byte_size(tensor.size)


def _means_of(reader: TensorReader, tensor: Tensor) -> BlockMeans:
    """Means, and roots of the mean squares, of consecutive parts of a tensor, read from end to end."""
    means, sizes = [], []
    ends = [tensor.size * number // _BLOCKS for number in range(_BLOCKS + 1)]
    for start, end in pairwise(ends):
        if start == end:
            continue
        total = squares = 0.0
        for at in range(start, end, _PIECE):
            values = np.empty(min(_PIECE, end - at), np.float64)
            reader.read_flat(at, at + values.size, values)
            with np.errstate(invalid="ignore", over="ignore"):
                total += float(values.sum())
                squares += float(np.square(values).sum())
        means.append(total / (end - start))
        sizes.append((squares / (end - start)) ** 0.5)
    return BlockMeans(means=tuple(means), sizes=tuple(sizes), rounding=2 * UNIT[tensor.dtype])
