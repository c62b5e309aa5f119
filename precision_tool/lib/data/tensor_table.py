"""A benchmark whose tensors lie in files of any name and format: a table, `tensors.csv`, says what they are.

Its first line names the columns: `op` and `file`, and where needed `output` (0 without it) and `key`, the name of the
tensor in a `.safetensors` file. Files are named relative to the table's folder, and lie in it or below it.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Iterator

from precision_tool.lib.data.dump_names import StepAndRank, flatten, placed_below
from precision_tool.lib.data.dump_tree import Stamps, list_folders, nothing_below
from precision_tool.lib.io.files import check_folder, read_text
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.io.safetensors_file import read_safetensor
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, shown
from precision_tool.lib.model.run import Benchmark, BenchmarkFile
from precision_tool.lib.model.tensor import Tensor

TABLE_FILE = "tensors.csv"
_OP, _FILE, _OUTPUT, _KEY = "op", "file", "output", "key"
_MAX_BYTES = 256 << 20
#: Digits of the largest index of an output, as in the names of `.npy` files.
_MAX_DIGITS = 6


def find_listed(path: str, stamps: Stamps | None = None) -> Benchmark:
    """Return the tensors that the tables below a folder list.

    Parameters
    ----------
    path : str
        The folder; folders below it may be named after a step or rank.
    stamps : Stamps, optional
        Notes the folders that are listed, and the tables.

    Raises
    ------
    DataNotFoundError
        There is no table.
    FormatError
        A table cannot be read, or lacks a column.
    """
    check_folder(path, "benchmark tensors")
    root = posixpath.abspath(path)
    files: dict[tuple[str, int], BenchmarkFile] = {}
    by_real_name: dict[tuple[str, int], BenchmarkFile] = {}
    alike: set[tuple[str, int]] = set()
    ignored: list[tuple[str, Message]] = []
    places: dict[StepAndRank, str] = {}
    for folder, names in list_folders(root, stamps):
        if TABLE_FILE not in names:
            continue
        table = posixpath.join(folder, TABLE_FILE)
        if stamps is not None:
            stamps.note(table)
        place = placed_below(root, folder)
        places[place] = posixpath.commonpath([places.get(place, folder), folder])
        for line, op, row in _rows(table):
            if isinstance(row, Message):
                reason = Message("note.data.table_line", line=line, reason=row)
                ignored.append((posixpath.relpath(table, root), reason))
                continue
            key = row.op_name, row.index
            if key in files and (op, row.index) not in by_real_name:
                alike.add(key)
            by_real_name[op, row.index] = files[key] = row
    if not places:
        raise nothing_below(DataNotFoundError.of(path, "data.no_benchmark_below"), root)
    notes = []
    if ignored:
        first, reason = ignored[0]
        notes.append(Message("note.data.table_lines_left_out", count=len(ignored), file=first, first=reason))
    return Benchmark(
        root=root,
        files=files,
        ignored=tuple(ignored),
        notes=tuple(notes),
        by_real_name=by_real_name,
        alike=frozenset(alike),
        places={} if set(places) == {(None, None)} else places,
    )


def _rows(path: str) -> Iterator[tuple[int, str, BenchmarkFile | Message]]:
    """Line, real name of the op and tensor of each row, or why it is left out."""
    text = read_text(path, _MAX_BYTES, errors="backslashreplace", newline="").removeprefix("\ufeff")  # Excel's mark
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip().lower() for name in next(lines, [])]
        for name in (_OP, _FILE):
            if name not in header:
                raise FormatError.of(path, "data.table_without_column", column=name)
        columns = {name: header.index(name) for name in (_OP, _FILE, _OUTPUT, _KEY) if name in header}
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            texts = {name: cells[place].strip() for name, place in columns.items() if place < len(cells)}
            op = texts.get(_OP, "")
            yield lines.line_num, op, _row(posixpath.dirname(path), op, texts)
    except csv.Error as error:
        raise FormatError.of(path, "data.no_csv", error=str(error)) from error


def _row(folder: str, op: str, texts: dict[str, str]) -> BenchmarkFile | Message:
    name, output = texts.get(_FILE, ""), texts.get(_OUTPUT, "") or "0"
    if not op or not name:
        return Message("note.data.ignored.empty_cell", column=_FILE if op else _OP)
    if not (output.isascii() and output.isdecimal() and len(output) <= _MAX_DIGITS):
        return Message("note.data.ignored.no_output", text=shown(output))
    # A table comes from elsewhere: it leads to no other folder.
    if posixpath.isabs(name) or ".." in name.split("/") or "\0" in name:
        return Message("note.data.ignored.elsewhere", name=shown(name))
    return BenchmarkFile(
        path=posixpath.join(folder, posixpath.normpath(name)),
        op_name=flatten(op),
        index=int(output),
        timestamp=0,
        key=texts.get(_KEY, ""),
    )


def read_listed(file: BenchmarkFile) -> Tensor:
    """Return the tensor of a row, undecoded.

    Raises
    ------
    PrecisionToolError
        Its file is missing, damaged, of no known format or without this tensor, or has several and the row no key.
    """
    if file.key:
        return read_safetensor(file.path, file.key)
    dump = open_op_dump(file.path)
    tensors = [tensor for tensor in (*dump.inputs, *dump.outputs) if isinstance(tensor, Tensor)]
    if len(tensors) == 1 and not dump.bad_slots:
        return tensors[0]
    reasons = [reason for _, reason in dump.bad_slots]
    if len(reasons) == 1 and not tensors:
        raise FormatError.of(file.path, "io.safetensors.tensor", reason=reasons[0])
    raise FormatError.of(file.path, "data.no_key", count=len(tensors) + len(reasons))
