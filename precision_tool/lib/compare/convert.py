"""Tensors of dumps decoded into `.npy` or text files, as stored or in another layout, in blocks whatever their size."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.scheduler import (
    ALL_CORES,
    Meter,
    Progress,
    Resources,
    check_stopping,
    keeping_rows,
    map_tasks,
)
from precision_tool.lib.compare.tensor_reader import Scratch, TensorReader, box_size
from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dump_names import dump_name, file_part, is_file_name, is_number, shortened
from precision_tool.lib.data.dump_tree import find_status_files, parse_status_name
from precision_tool.lib.data.kinds import NPY, PYTORCH
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.data_types import DataType
from precision_tool.lib.io.files import atomic_text, folder_exists, open_binary, real_path, size_of
from precision_tool.lib.io.hdf5 import read_h5
from precision_tool.lib.io.layouts import Box, LayoutError, Reading, as_stored, reading_as, split_boxes
from precision_tool.lib.io.npy import NpyWriter
from precision_tool.lib.io.opdebug import document_text, read_opdebug
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.io.writing import (
    own_prefix,
    place_of_worker,
    remove_leftovers,
    remove_places,
    replacing,
    temporary_path,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, PrecisionToolError, shown
from precision_tool.lib.model.finding import joined
from precision_tool.lib.model.run import DumpFile, Run
from precision_tool.lib.model.tensor import INNER, OUTER, WHOLE, AnyTensor, OpDump, Plan, Tensor

#: Items of a box of a blocked result.
_BOX = 1 << 18
#: Values of a text that are written at once.
_LINES = 1 << 14

#: A box, the shape it is a part of, and its items.
_Piece = tuple[Box, tuple[int, ...], npt.NDArray[Any]]


def result_type(data_type: DataType) -> np.dtype[Any]:
    """Return the numpy type that holds every value of a type: its own, or for one that numpy lacks a wider one."""
    if data_type.decode == "numpy":
        return np.dtype(data_type.numpy_name)
    if data_type.name == "complex32":
        return np.dtype(np.complex64)
    if data_type.name in ("int4", "int2"):
        return np.dtype(np.int8)
    if data_type.name in ("uint1", "uint2"):
        return np.dtype(np.uint8)
    return np.dtype(np.float32)


def write_npy(
    tensor: Tensor, reading: Reading, path: str, *, place: str = "", scratch: Scratch | None = None
) -> np.dtype[Any]:
    """Decode a tensor into a `.npy` file and returns its type; memory is bounded whatever its size.

    `place` is a folder for the file until it is complete; else it lies beside `path`. `scratch`: buffers to use again.
    """
    scratch = scratch or Scratch()
    data_type = data_types.BY_NAME[tensor.dtype]
    dtype = result_type(data_type)
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    if data_type.decode == "packed":  # they are looked up as floats
        real = np.dtype(np.float32)
    reader = TensorReader(tensor, reading.plan, real, scratch, "tensor")
    try:
        shape = reading.shape if reading.stored is None else reading.stored[1]
        with NpyWriter(path, dtype, shape, place=place) as writer:
            if reading.stored is not None:
                pieces = _blocked_pieces(reader, reading.stored[0])
            elif reader.is_flat:
                pieces = _flat_pieces(reader, writer, dtype, scratch)
            else:
                pieces = _plain_pieces(reader, dtype, scratch)
            for box, within, items in pieces:
                check_stopping()
                writer.write(box, within, items)
    finally:
        reader.close()
    return dtype


def _flat_pieces(reader: TensorReader, writer: NpyWriter, dtype: np.dtype[Any], scratch: Scratch) -> Iterator[_Piece]:
    """Return the result as it lies in the dump, in the pieces that the writer likes best."""
    parts = 2 if dtype.kind == "c" else 1
    size = reader.size // parts
    for start, stop in writer.pieces(size):
        items = scratch.numbers("items", (stop - start) * parts, reader.dtype)
        reader.read_flat(start * parts, stop * parts, items)
        yield ((start, stop),), (size,), items if parts == 1 else items.view(dtype)


def _plain_pieces(reader: TensorReader, dtype: np.dtype[Any], scratch: Scratch) -> Iterator[_Piece]:
    """Return the result as it is read; pairs of reals become complex numbers."""
    shape = reader.logical_shape
    for box in reader.boxes():
        items: npt.NDArray[Any] = scratch.numbers("items", box_size(box), reader.dtype)
        reader.read(box, items)
        if dtype.kind != "c":
            yield box, shape, items
        else:
            yield box[:-1], shape[:-1], items.view(dtype)


def _blocked_pieces(reader: TensorReader, plan: Plan) -> Iterator[_Piece]:
    """Return the result in boxes of its blocked storage, zero where it is padding. `plan` reads it back."""
    shape = plan.storage_shape
    granules = tuple(extent if role == INNER else 1 for extent, (_, role) in zip(shape, plan.axes, strict=True))
    for box in split_boxes(shape, granules, _BOX):
        logical = list(zip((0,) * len(plan.logical_shape), plan.logical_shape, strict=True))
        for (start, stop), (axis, role) in zip(box, plan.axes, strict=True):
            if role == WHOLE:
                logical[axis] = (start, stop)
            elif role == OUTER:
                block = plan.blocks[axis]
                logical[axis] = (start * block, min(stop * block, plan.logical_shape[axis]))
        items = np.empty(box_size(tuple(logical)), reader.dtype)
        reader.read_box(tuple(logical), items)
        stored = np.zeros([stop - start for start, stop in box], reader.dtype)
        layouts.fill_blocks(plan, items.reshape([stop - start for start, stop in logical]), stored)
        yield box, shape, stored


# --- as text ---


def write_text(tensor: Tensor, reading: Reading, path: str, progress: Progress | None = None) -> None:
    """Write the values of a tensor as `numpy.loadtxt` reads them: one line a row of the last axis, `#` before the
    header. OutputError when that cannot be done."""
    dtype = result_type(data_types.BY_NAME[tensor.dtype])
    with atomic_text(path) as file:
        shape = ", ".join(map(str, reading.shape))
        layout = reading.layout or f"{tensor.layout} as stored"
        file.write(f"# shape ({shape}) {tensor.dtype} {layout}\n# {tensor.path!a}\n")
        if not prod(reading.shape):
            return
        width = reading.shape[-1] if reading.shape else 1
        column = done = 0
        for text in map(_texts_of, _values(tensor, reading, posixpath.dirname(path))):
            column = _write_row_parts(file, text, column, width)
            done += len(text) * dtype.itemsize
            if progress is not None:
                progress(done, prod(reading.shape) * dtype.itemsize)


def _write_row_parts(file: TextIO, texts: list[str], column: int, width: int) -> int:
    """Write values with line ends after each `width` of them; the column the last one ended in."""
    start = 0
    while start < len(texts):
        part = texts[start : start + width - column]
        start += len(part)
        column += len(part)
        file.write(" ".join(part))
        file.write("\n" if column == width else " ")
        column %= width
    return column


def _values(tensor: Tensor, reading: Reading, folder: str) -> Iterator[npt.NDArray[Any]]:
    """Return the values in order, in blocks: through a file, as blocked layouts are read in another order."""
    path = temporary_path(folder)
    try:
        write_npy(tensor, reading, path)
        file = open_binary(path)  # it is read when its name is gone
    finally:
        Path(path).unlink()
    with file:
        yield from _npy_blocks(file)


def _npy_blocks(file: BinaryIO) -> Iterator[npt.NDArray[Any]]:
    """Return the values of a `.npy` file that `write_npy` wrote, in blocks."""
    np.lib.format.read_magic(file)
    _, _, dtype = np.lib.format.read_array_header_1_0(file)
    while (block := np.fromfile(file, dtype, _LINES)).size:
        yield block


def _texts_of(block: npt.NDArray[Any]) -> list[str]:
    kind, digits = block.dtype.kind, digits_of(block.dtype)
    values = block.tolist()
    if kind == "c":
        return [f"({value.real:.{digits}g}{value.imag:+.{digits}g}j)" for value in values]
    if kind == "f":
        return [f"{value:.{digits}g}" for value in values]
    return [str(int(value)) for value in values]


def digits_of(dtype: np.dtype[Any]) -> int:
    """Digits from which a number, or each part of a complex one, is read back as it was."""
    parts = 2 if dtype.kind == "c" else 1
    return 17 if dtype.itemsize // parts == 8 else 9


def write_lines(path: str, target: str, *, place: str = "") -> None:
    """Write the values of a `.npy` file that `write_npy` wrote as text, one per line, as `numpy.savetxt` does.

    In blocks, whatever the size. OutputError if that cannot be done.
    """
    try:
        with replacing(target, place) as temporary, open(temporary, "wb") as file, open_binary(path) as stored:
            for block in _npy_blocks(stored):
                np.savetxt(file, block)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError("compare.text_not_written", file=target, reason=reason) from error


# --- decoding dump files ---


#: Below this many bytes starting workers takes longer than the work.
_SERIAL_BYTES = 32 << 20
#: Bytes of a file name.
_MAX_NAME_BYTES = 255

#: (layout, shape) that the graph gives for a slot.
Origins = Mapping[str, tuple[str | None, tuple[int, ...] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A dump file to decode into `folder`. `name` begins the names of the results; only `slot` is decoded if given.

    Of a PyTorch dump only `datasets` are decoded, if any are given. With `text` each `.npy` gets a `.txt` beside it.
    """

    path: str
    name: str
    folder: str
    slot: str = ""
    origins: Origins = field(default_factory=dict)
    nbytes: int = 0
    datasets: frozenset[str] = frozenset()
    text: bool = False

    @property
    def not_by_toolkit(self) -> str:
        """The name for such files where msaccucmp does not decode them; else empty."""
        return ".h5 dumps" if PYTORCH.owns(self.path) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The result for one tensor, or for a whole file that cannot be read. `reason` says why there is no result.

    `as_stored` says why a tensor was not brought to the layout asked for, but decoded as it is stored.
    """

    source: str
    slot: str = ""
    path: str = ""
    stored_dtype: str = ""
    stored_layout: str = ""
    stored_shape: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    note: Message | None = None
    as_stored: Message | None = None
    reason: Message | None = None
    text_path: str = ""


# --- files ----------------------------------------------------------------------------------------------------------


def find_sources(path: str, output: str) -> tuple[list[Source], tuple[Message, ...]]:
    """Return the dump files below a folder of any level, or a single file, to be decoded below `output`; and notes.

    Of several leaf folders (devices, models, steps) each gets a folder of its own.
    """
    if not folder_exists(path):
        return [_source(path, output, _real_name(path))], ()
    statuses = find_status_files(path)
    try:
        run = walk.find_run(path)
    except DataNotFoundError:
        if not statuses:
            raise
        run = Run(root=posixpath.abspath(path), leaves=())
    sources = []
    notes = list(run.notes)
    folders = {leaf.path for leaf in run.leaves} | {posixpath.abspath(file.folder) for file in statuses}
    for file in statuses:
        below = posixpath.relpath(posixpath.abspath(file.folder), run.root)
        folder = posixpath.join(output, below) if len(folders) > 1 else output
        sources.append(_source(file.path, folder, posixpath.basename(file.path)))
    for leaf in run.leaves:
        folder = posixpath.join(output, posixpath.relpath(leaf.path, run.root)) if len(folders) > 1 else output
        sources += [_source(dump.path, folder, _name_of(dump)) for dump in leaf.files]
        others = [(name, why) for name, why in leaf.ignored if parse_status_name(name) is None]
        if others:
            name, why = others[0]
            notes.append(Message("note.compare.no_tensor_dumps", count=len(others), name=name, why=why))
    return sources, tuple(notes)


def h5_source(path: str, datasets: frozenset[str] = frozenset()) -> Source:
    """Return a PyTorch dump of which some, or all, data sets are to be decoded; where to is still open."""
    return replace(_source(path, "", posixpath.basename(path)), datasets=datasets)


def in_own_folders(sources: Sequence[Source], root: str) -> list[Source]:
    """Return each source with a folder named as its file below `root`: ops of `.h5` dumps have the same names."""
    own = [
        posixpath.relpath(posixpath.abspath(source.path), posixpath.abspath(root)).removesuffix(".h5")
        for source in sources
    ]
    return [
        replace(source, folder=posixpath.join(source.folder, below)) for source, below in zip(sources, own, strict=True)
    ]


def _source(path: str, folder: str, name: str) -> Source:
    try:
        nbytes = size_of(path)
    except OSError:
        nbytes = 0  # opening it says why
    return Source(path=path, name=name, folder=folder, nbytes=nbytes)


def _name_of(file: DumpFile) -> str:
    base = posixpath.basename(file.path)
    return dump_name(file.name) if is_number(base.removesuffix(".csv")) else base


def _real_name(path: str) -> str:
    """Return the name of a dump file; of a bare number the one in `mapping.csv` beside it."""
    base = posixpath.basename(path)
    if is_number(base.removesuffix(".csv")):
        try:
            leaves = walk.find_run(posixpath.dirname(path) or ".").leaves
        except PrecisionToolError:
            return base
        files = [file for leaf in leaves for file in leaf.files if real_path(file.path) == real_path(path)]
        return dump_name(files[0].name) if files else base
    return base


def convert_files(
    sources: Sequence[Source], layout: str | None = None, resources: Resources = ALL_CORES
) -> list[Decoded]:
    """Decode files.

    Parameters
    ----------
    sources : sequence of Source
        What is decoded, and where to.
    layout : str, optional
        The layout that tensors are brought to.
    resources : Resources
        Who shares the work; workers of our own are threads, or processes where the work is Python's.

    Raises
    ------
    WorkStoppedError
        After Ctrl+C, and when workers are lost; it carries the rows that are done, whose files stay.
    """
    meter = Meter(resources.progress, sum(source.nbytes for source in sources))
    prefix = f"{own_prefix()}dc-{time.time_ns()}-"
    folders = {source.folder for source in sources}
    for folder in folders:
        remove_leftovers(folder)
    rows: list[list[Decoded]] = [[] for _ in sources]

    def take(results: Sequence[tuple[int, list[Decoded]]]) -> None:
        for number, result in results:
            rows[number] = result
        meter.add(sum(sources[number].nbytes for number, _ in results))

    def rows_so_far() -> list[Decoded]:
        return [row for result in rows for row in result]

    def state() -> Message:
        return Message("note.compare.files_done", done=sum(map(bool, rows)), total=len(sources))

    # Writing text and undoing the filters of HDF5 is Python's: threads would wait.
    needs_python = any(source.text or PYTORCH.owns(source.path) for source in sources)
    try:
        with (
            keeping_rows(state, rows_so_far),
            resources.open(is_small=meter.total < _SERIAL_BYTES, in_threads=not needs_python) as pool,
        ):
            numbered = [*enumerate(sources)]
            step = max(1 << 20, meter.total // (resources.count * 16))
            tasks = [[each] for each in numbered] if pool is None else _tasks(numbered, step)
            scratch = Scratch() if pool is None else None
            map_tasks(_convert_all, [(task, layout, prefix, scratch) for task in tasks], pool, take)
    finally:
        remove_places(folders, prefix)
    return rows_so_far()


def _tasks(sources: Sequence[tuple[int, Source]], nbytes: int) -> Iterator[list[tuple[int, Source]]]:
    """Numbered sources in lists of about so many bytes, those with the largest files first."""
    task: list[tuple[int, Source]] = []
    filled = 0
    for number, source in sorted(sources, key=lambda item: -item[1].nbytes):
        task.append((number, source))
        filled += source.nbytes
        if filled >= nbytes:
            yield task
            task, filled = [], 0
    if task:
        yield task


def _convert_all(
    sources: Sequence[tuple[int, Source]], layout: str | None, prefix: str, scratch: Scratch | None
) -> list[tuple[int, list[Decoded]]]:
    scratch = scratch or Scratch()
    return [(number, _convert(source, layout, prefix, scratch)) for number, source in sources]


def _convert(source: Source, layout: str | None, prefix: str, scratch: Scratch) -> list[Decoded]:
    """Return the rows of one file. Of the errors only a full disk or the like ends the work of all."""
    try:
        if NPY.has_suffix(source.path):
            raise FormatError.of(source.path, "compare.decoded_already")
        if not is_file_name(source.name):  # whoever made it up: nothing is written but into the folder
            raise FormatError.of(source.path, "compare.bad_file_name", name=shown(source.name))
        if parse_status_name(source.name) is not None:
            return _convert_statuses(source)
        if PYTORCH.owns(source.path):
            return _convert_h5(source, layout, prefix, scratch)
        dump = open_op_dump(source.path)
    except PrecisionToolError as error:
        return [Decoded(source=source.path, slot=source.slot, reason=error.advice_message)]
    rows = []
    for slot, tensor in slots_of(dump):
        if source.slot in ("", slot):
            rows.append(_convert_slot(source, slot, tensor, layout, prefix, scratch))
    if not rows:
        reason = Message("error.place", where=source.path, reason=Message("row.compare.decoded.no_tensor"))
        if source.slot:
            reason = _no_slot(source)
        return [Decoded(source=source.path, slot=source.slot, reason=reason)]
    return rows


def _convert_statuses(source: Source) -> list[Decoded]:
    """Return the JSON of an overflow status file, under the name that the vendor's tool gives it."""
    if source.path.endswith(".json"):
        raise FormatError.of(source.path, "compare.status_decoded_already")
    rows = []
    for status in read_opdebug(source.path):
        slot = f"output:{status.output}"
        if source.slot not in ("", slot):
            continue
        path = posixpath.join(source.folder, f"{source.name}.output.{status.output}.json")
        text = document_text(status.document)
        with atomic_text(path) as file:
            file.write(text)
        rows.append(
            Decoded(
                source=source.path,
                slot=slot,
                path=path,
                stored_dtype="overflow status",
                dtype="JSON",
                nbytes=len(text),
                note=joined(status.notes),
            )
        )
    reason = _no_slot(source)
    return rows or [Decoded(source=source.path, slot=source.slot, reason=reason)]


def _convert_h5(source: Source, layout: str | None, prefix: str, scratch: Scratch) -> list[Decoded]:
    """Return the rows of a PyTorch dump: tensors are named after their op, `Addmm.4.input.mat1`."""
    dump = read_h5(source.path)
    rows = []
    taken: set[str] = set()
    for op in dump.ops:
        for value in op.values:
            if source.datasets and value.path not in source.datasets:
                continue
            if value.tensor is None:
                rows.append(Decoded(source=source.path, slot=value.path, reason=value.reason))
                continue
            named = replace(source, name=file_part(f"{op.type}.{op.seq}"))
            slot = f"{value.direction}.{file_part(value.name.replace('/', '.'))}"
            while f"{named.name}.{slot}" in taken:  # x/y and x.y
                slot += "_"
            taken.add(f"{named.name}.{slot}")
            row = _convert_slot(named, slot, value.tensor, layout, prefix, scratch)
            rows.append(replace(row, slot=value.path))
    reason = Message("error.place", where=source.path, reason=Message("row.compare.decoded.no_dataset"))
    return rows or [Decoded(source=source.path, reason=reason)]


def _no_slot(source: Source) -> Message:
    return Message("error.place", where=source.path, reason=Message("row.compare.decoded.no_slot", slot=source.slot))


def slots_of(dump: OpDump) -> Iterator[tuple[str, AnyTensor | Message]]:
    """Slot and tensor, or why it cannot be read, of everything in a dump file, inputs first."""
    bad = dict(dump.bad_slots)
    for side, tensors in (("input", dump.inputs), ("output", dump.outputs)):
        for index, tensor in enumerate(tensors):
            slot = f"{side}:{index}"
            if tensor is not None:
                yield slot, tensor
            elif slot in bad:
                yield slot, bad.pop(slot)
    yield from bad.items()


def _convert_slot(
    source: Source, slot: str, tensor: AnyTensor | Message, layout: str | None, prefix: str, scratch: Scratch
) -> Decoded:
    if isinstance(tensor, Message):
        return Decoded(source=source.path, slot=slot, reason=tensor)
    row = Decoded(
        source=source.path,
        slot=slot,
        stored_dtype=tensor.dtype,
        stored_layout=tensor.layout,
        stored_shape=tensor.shape,
    )
    if not isinstance(tensor, Tensor):
        return replace(row, reason=Message("row.compare.decoded.statistics_only"))
    data_type = data_types.BY_NAME[tensor.dtype]
    if not data_type.is_numeric:
        return replace(row, reason=Message("row.compare.decoded.no_numbers", dtype=tensor.dtype))
    as_stored_reason = None
    try:
        reading = reading_as(tensor, layout, *source.origins.get(slot, (None, None))) if layout else as_stored(tensor)
    except LayoutError as error:
        reading, as_stored_reason = as_stored(tensor), error.reason
    if reading.stored is not None and data_type.is_complex:
        reading = as_stored(tensor)
        as_stored_reason = Message("row.compare.decoded.complex", layout=layout)
    shape = reading.shape if reading.stored is None else reading.stored[1]
    dims = f".{'x'.join(map(str, shape))}" if layout and tensor.layout != layout and not as_stored_reason else ""
    suffix = f".{slot.replace(':', '.')}{dims}.npy"
    stem = shortened(source.name, _MAX_NAME_BYTES - len(suffix))
    path = posixpath.join(source.folder, stem + suffix)
    try:
        place = place_of_worker(source.folder, prefix)
        dtype = write_npy(tensor, reading, path, place=place, scratch=scratch)
        text_path = f"{path.removesuffix('.npy')}.txt" if source.text else ""
        if text_path:
            write_lines(path, text_path, place=place)
    except OutputError:
        raise
    except PrecisionToolError as error:
        return replace(row, reason=error.advice_message)
    notes = [reading.note] if reading.note else []
    if data_type.decode != "numpy":
        notes.append(Message("row.compare.decoded.widened", stored=tensor.dtype, dtype=str(dtype)))
    if stem != source.name:
        notes.append(Message("row.compare.decoded.shortened"))
    return replace(
        row,
        path=path,
        dtype=str(dtype),
        layout=reading.layout or tensor.layout,
        shape=shape,
        nbytes=prod(shape) * dtype.itemsize,
        note=joined(tuple(notes)),
        as_stored=as_stored_reason,
        text_path=text_path,
    )
