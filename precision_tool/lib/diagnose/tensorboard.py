"""The curves of a study as event files of TensorBoard, by the library tensorboardX: a run for each rank.

Tags are `norm/gradient/fc1/kernel`: TensorBoard shows the ranks of one in one chart. Beside the ranks there are runs of
their smallest and largest value and of the median, and one of the benchmark. Rows are read rank by rank, one step in
memory at a time.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from math import isfinite
from pathlib import Path

import numpy as np

from precision_tool.lib.diagnose.curves import BENCHMARK, FIGURES, Curves, StoredRows, figures_of_leaf
from precision_tool.lib.io.writing import replacing
from precision_tool.lib.messages.errors import OutputError, UsageError

#: The same in every run, so that those of an earlier call are replaced.
_NAME = "events.out.tfevents.0.precision_tool"
#: A step of a run, and the values by tag.
_Values = tuple[int, Mapping[str, float]]


def write_events(folder: str, rows: StoredRows, curves: Curves, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Write the event files of all ranks below a local folder, each whole or not at all; return their paths.

    UsageError without tensorboardX, OutputError where they cannot be written. Files of an earlier call are replaced.
    """
    try:
        from tensorboardX.proto.event_pb2 import Event  # noqa: F401  # asked for before anything is read
    except ImportError:
        raise UsageError("cli.no_tensorboardx") from None
    paths = [_write(folder, f"rank_{rank}", _of_rank(rows, rank, names)) for rank in curves.ranks]
    if len(curves.ranks) > 1:
        ends = ("low", "median", "high")
        paths += [_write(folder, f"ranks_{end}", _of_band(curves, place)) for place, end in enumerate(ends)]
    if any(np.isfinite(curve.benchmark).any() for curve in curves.curves):
        paths.append(_write(folder, "benchmark", _of_benchmark(curves)))
    return tuple(paths)


def _of_rank(rows: StoredRows, rank: int, names: Sequence[str]) -> Iterator[_Values]:
    for step, _, columns, _ in rows.read({rank}):
        yield (
            step,
            {
                f"{figure}/{role}/{name}": value
                for role, name, values in figures_of_leaf(columns, names)
                for figure, value in zip(FIGURES, values.tolist(), strict=True)
            },
        )


def _of_band(curves: Curves, end: int) -> Iterator[_Values]:
    for place, step in enumerate(curves.steps):
        yield (
            step,
            {
                f"{figure}/{curve.role}/{curve.name}": float(curve.bands[number, place, end])
                for curve in curves.curves
                for number, figure in enumerate(FIGURES)
            },
        )


def _of_benchmark(curves: Curves) -> Iterator[_Values]:
    for place, step in enumerate(curves.steps):
        yield (
            step,
            {
                f"{figure}/{curve.role}/{curve.name}": float(curve.benchmark[number, place])
                for curve in curves.curves
                for number, figure in enumerate(BENCHMARK)
            },
        )


def _write(folder: str, run: str, steps: Iterable[_Values]) -> str:
    """Write the event file of a run: values that are not there are left out, NaN and Inf are counted, not drawn."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    path = posixpath.join(folder, run, _NAME)
    try:
        Path(folder, run).mkdir(parents=True, exist_ok=True)
        now = time.time()
        with replacing(path) as place, closing(RecordWriter(place)) as file:
            file.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
            for step, values in steps:
                there = [(tag, value) for tag, value in values.items() if isfinite(value)]
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in there])
                file.write(Event(wall_time=now, step=step, summary=summary).SerializeToString())
    except OSError as error:
        raise OutputError.of(path, "cli.events_not_written", reason=str(error)) from error
    return path
