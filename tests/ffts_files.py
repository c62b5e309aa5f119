"""Dump files of ops that FFTS+ ran in slices, with the attribute that says how they were cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from builders import TIMESTAMP, Array, write_dump
from tfdbg_files import sized

from precision_tool.lib.demo.dump_writer import OutTensor

#: In the names of files: task type FFTS+.
FFTS = 4


def slicing_text(
    count: int, cuts: Sequence[Sequence[int]], *, threaded: bool, shapes: Sequence[Sequence[Sequence[int]]] = ()
) -> str:
    """The JSON text of the attribute. `shapes` of each output in each slice, for threads."""
    ranges = [[[{"lower": 0, "higher": length} for length in shape] for shape in outputs] for outputs in shapes]
    return json.dumps(
        {
            "threadMode": int(threaded),
            "slice_instance_num": count,
            "outputCutList": [list(cut) for cut in cuts],
            "input_tensor_slice": [],
            "output_tensor_slice": ranges,
        }
    )


def with_attribute(path: Path, text: str) -> Path:
    """Adds the attribute to the header of a dump file of version 2."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    inner = sized(1, b"ffts_plus") + sized(2, text.encode())
    header = data[8 : 8 + length] + sized(7, inner)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    return path


def write_slices(
    leaf: Path,
    name: str,
    outputs: Sequence[tuple[Array, int | None]],
    count: int,
    *,
    op_type: str = "Add",
    threaded: bool = True,
    fed: Sequence[Array] = (),
    task: int = 1,
    left_out: Sequence[int] = (),
    told: bool = True,
    task_type: int = FFTS,
    time: int = TIMESTAMP,
) -> list[Path]:
    """Writes the dumps of an op in `count` slices; each output with the axis it is cut along, None for one that is not.

    Threads have their number in the file name, slices in the op name. `left_out` are slices without a file; without
    `told` no attribute says how it was cut.
    """
    pieces = [[whole] * count if axis is None else np.array_split(whole, count, axis) for whole, axis in outputs]
    cuts = [[count if each == axis else 1 for each in range(whole.ndim)] for whole, axis in outputs]
    shapes = [[piece[number].shape for piece in pieces] for number in range(count)]
    paths = []
    for number in range(count):
        if number in left_out:
            continue
        op_name = name if threaded else f"{name}_lxslice{number}"
        thread = number if threaded else 0
        flat = op_name.replace("/", "_")
        path = (
            leaf / f"{op_type}.{flat}.{task + (0 if threaded else number)}.0.{time + number}.{task_type}.1.{thread}.0"
        )
        stored = [OutTensor(data=piece[number], origin_shape=piece[number].shape) for piece in pieces]
        given: list[Any] = [OutTensor(data=array, origin_shape=array.shape) for array in fed]
        write_dump(path, op_name, given, stored)
        paths.append(
            with_attribute(path, slicing_text(count, cuts, threaded=threaded, shapes=shapes)) if told else path
        )
    return paths
