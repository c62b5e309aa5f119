"""Screens of `ls` and `ni` for PyTorch `.h5` dumps, and of `h5copy`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.pytorch_pairing import H5Hit, H5Listing, H5Side
from precision_tool.lib.messages import Message, text
from precision_tool.lib.model.pytorch import KINDS, OUTPUT, SCALAR_TYPES, H5Op, H5Value
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.view.op_screen import row_json, row_notes, tensor_table
from precision_tool.lib.view.ops_screen import shown_counts
from precision_tool.lib.view.tables import NUMBERS, Heading, list_table
from precision_tool.lib.view.tensors_screen import side_label
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    byte_size,
    cosine_text,
    json_text,
    label,
    labelled,
    plain,
    safe,
    shown,
    shown_reason,
    whole_path,
)

_COLUMN = "screen.view.list.column"
#: Values of a parameter that are shown.
SHOWN_VALUES = 8


def side_title(side: H5Side) -> RenderableType:
    """Return side and device of a dump, and below its file."""
    path = whole_path(side.dump.path)
    path.stylize("dim")
    return Group(plain(_title(side), "bold"), path)


def _title(side: H5Side) -> str:
    device = "" if side.dump.device in ("?", side.side) else f"({side.dump.device})"
    return " ".join(filter(None, ("PyTorch", side_label(side.side), device)))


def value_listing(listing: H5Listing, limit: int) -> Iterator[RenderableType]:
    """The data sets of one dump, at most `limit` of them (0: all), and how many there are."""
    yield side_title(listing.side)
    values = [value for row in listing.rows for value in row.values]
    some = values[: limit or None]
    if some:
        table = list_table()
        table.add_columns(_COLUMN, "kind", "type", "shape")
        table.add_columns(_COLUMN, "size", **NUMBERS)
        table.add_columns(_COLUMN, "name")
        for value in some:
            tensor = value.tensor
            table.add_row(
                plain(kind_text(value), "" if value.is_tensor else "dim"),
                plain(type_text(value)),
                shown(Message("screen.view.pytorch.not_read"), "yellow")
                if tensor is None
                else plain(shape_text(tensor.shape)),
                "-" if tensor is None else byte_size(tensor.nbytes),
                plain(value.path),
            )
        yield table
    dump = listing.side.dump
    total = sum(len(op.values) for op in dump.ops)
    counts = Message(
        "screen.view.pytorch.values", matching=len(values), total=total, ops=len(dump.ops), bytes=dump.size
    )  # fmt: skip
    yield shown_counts(counts, len(some), len(values))
    bad = [value for value in values if value.reason]
    if bad:
        reason = shown_reason(bad[0].reason)
        yield shown(Message("screen.view.pytorch.unreadable", count=len(bad), reason=reason), "yellow")
    if dump.ignored:
        name, why = dump.ignored[0]
        message = Message("screen.view.pytorch.ignored", count=len(dump.ignored), name=safe(name), why=why)
        yield shown(message, "dim")


def kind_text(value: H5Value) -> str:
    """Return the kind of a data set: a tensor, or a kind of parameter."""
    if value.kind is None:
        return text("screen.view.pytorch.tensor")
    return KINDS.get(value.kind) or text("screen.view.pytorch.kind", number=value.kind)


def type_text(value: H5Value) -> str:
    """PyTorch's name of the type and, where it is another, the type that is stored."""
    stored = "" if value.tensor is None else value.tensor.dtype
    if value.scalar_type is None:
        return stored or "-"
    name = SCALAR_TYPES.get(value.scalar_type) or text("screen.view.pytorch.type", type=value.scalar_type)
    usual = {"Float": "float32", "Half": "float16", "Double": "float64", "Long": "int64", "Int": "int32"}
    usual |= {"Byte": "uint8", "Char": "int8", "Short": "int16", "Bool": "bool"}
    if stored in ("", usual.get(name)):
        return name
    return text("screen.view.pytorch.stored_as", type=name, stored=stored)


def op_listing(
    listing: H5Listing, limit: int, cosines: Mapping[str, float], threshold: float
) -> Iterator[RenderableType]:
    """The ops of one dump in the order they ran."""
    yield side_title(listing.side)
    some = listing.rows[: limit or None]
    if some:
        table = list_table()
        table.add_columns(_COLUMN, "inputs", **NUMBERS)
        table.add_columns(_COLUMN, "outputs")
        table.add_columns(_COLUMN, "cosine", **NUMBERS)
        table.add_columns(_COLUMN, "name")
        for row in some:
            tensors = [value for value in row.op.tensors if value.direction == OUTPUT]
            outputs = [f"{value.tensor.dtype} {shape_text(value.tensor.shape)}" for value in tensors if value.tensor]
            cosine = cosines.get(row.op.name)
            table.add_row(
                str(len(row.op.tensors) - len(tensors)),
                Text("\n").join(map(plain, outputs)),
                cosine_text(cosine, None if cosine is None else cosine >= threshold),
                plain(row.op.name),
            )
        yield table
    matching = len(listing.rows)
    counts = Message("screen.view.pytorch.ops", matching=matching, total=len(listing.side.dump.ops))
    yield shown_counts(counts, len(some), matching)


# --- one op -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Report:
    """An op with the figures of its tensors and the values of its parameters."""

    hit: H5Hit
    rows: tuple[Row, ...]
    #: Name, what it is, and its first values.
    parameters: tuple[tuple[H5Value, str], ...]

    @property
    def counterpart(self) -> H5Op | None:
        return self.hit.side.counterpart(self.hit.op)

    def neighbours(self) -> tuple[H5Op | None, H5Op | None]:
        """The ops that ran before and after it."""
        ops = self.hit.side.dump.ops
        at = next(number for number, op in enumerate(ops) if op is self.hit.op)
        return ops[at - 1] if at else None, ops[at + 1] if at + 1 < len(ops) else None


def op_lines(reports: Sequence[H5Report], threshold: float) -> list[RenderableType]:
    return [line for report in reports for line in _op(report, threshold)]


def _op(report: H5Report, threshold: float) -> Iterator[RenderableType]:
    op, side = report.hit.op, report.hit.side
    yield Heading(plain(_title(side)))
    before, after = report.neighbours()
    rows: list[Line] = [(label("name"), plain(op.name, "bold")), (label("type"), plain(op.type))]
    rows.append((label("ran_as"), shown(Message("screen.view.pytorch.number", number=op.seq))))
    golden = report.counterpart
    if side.other is not None:
        missing = Message("screen.view.pytorch.no_counterpart")
        rows.append((label("benchmark"), shown(missing, "yellow") if golden is None else plain(golden.name)))
    neighbours = (("after", before), ("before", after))
    rows += [(label(name), plain(neighbour.name)) for name, neighbour in neighbours if neighbour is not None]
    parameters = (
        f"{value.direction}/{value.name} ({kind_text(value)}) {values}" for value, values in report.parameters
    )
    rows += labelled(label("parameters"), map(plain, parameters))
    yield LabelledLines(rows)
    yield Heading(shown(Message("screen.view.pytorch.dump")))
    if any(row.pair.slot for row in report.rows):
        yield tensor_table(report.rows, threshold)
    notes = [(row.pair.slot, note) for row in report.rows for note in row_notes(row)]
    yield LabelledLines([(slot, plain(shown_reason(note), "yellow")) for slot, note in notes])
    files = [(label("file"), whole_path(side.dump.path))]
    if side.other is not None:
        files.append((label("benchmark"), whole_path(side.other.path)))
    yield LabelledLines(files)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _value_json(value: H5Value) -> dict[str, Any]:
    tensor = value.tensor
    return {
        "name": value.path,
        "direction": value.direction,
        "kind": kind_text(value),
        "pytorch_type": None if value.scalar_type is None else SCALAR_TYPES.get(value.scalar_type, value.scalar_type),
        "device": value.device,
        "dtype": None if tensor is None else tensor.dtype,
        "shape": None if tensor is None else tensor.shape,
        "elements": None if tensor is None else prod(tensor.shape),
        "reason": value.reason or None,
    }


def _op_json(op: H5Op, values: Sequence[H5Value]) -> dict[str, Any]:
    return {"name": op.name, "type": op.type, "sequence": op.seq, "values": [_value_json(value) for value in values]}


def listings_json(listings: Sequence[H5Listing], limit: int, cosines: Mapping[str, float]) -> list[dict[str, Any]]:
    """The ops and data sets of each dump as values for a JSON document."""
    return [
        {
            "file": posixpath.abspath(listing.side.dump.path),
            "side": listing.side.side or None,
            "device": listing.side.dump.device,
            "total": len(listing.side.dump.ops),
            "matching": len(listing.rows),
            "ops": [
                {**_op_json(row.op, row.values), "cosine": cosines.get(row.op.name)}
                for row in listing.rows[: limit or None]
            ],
        }
        for listing in listings
    ]


def op_json(reports: Sequence[H5Report], threshold: float) -> str:
    documents = []
    for report in reports:
        golden = report.counterpart
        documents.append(
            {
                **_op_json(report.hit.op, report.hit.op.values),
                "file": report.hit.side.dump.path,
                "side": report.hit.side.side or None,
                "benchmark": None if golden is None else golden.name,
                "parameters": {f"{value.direction}/{value.name}": values for value, values in report.parameters},
                "tensors": [row_json(row, threshold) for row in report.rows],
            }
        )
    return json_text({"ops": documents})
