"""Screens of `ls`: ops and dump files as tables, or as JSON."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan, sqrt
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.pair_listing import DumpListing, DumpRow, OpListing, OpRow, is_below
from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.catalogue import percent
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.model.wording import Streamed
from precision_tool.lib.view.op_screen import recorded_title
from precision_tool.lib.view.tables import NUMBERS, NameTable, cell_width, list_table
from precision_tool.lib.view.text import (
    byte_size,
    cosine_text,
    desc_text,
    json_pieces,
    json_text,
    leaf_words,
    plain,
    safe,
    shown,
    values_text,
    whole_path,
)

_COLUMN = "screen.view.list.column"
#: Rows that are made, measured and printed at once.
_PAGE = 1_000
#: Wider than any line.
_ENDLESS = 1 << 20
#: Before a name that stands in a line of its own.
_INDENT = "  "
_STATE_STYLES = {"wrong": "bold red", "doubtful": "yellow"}


def run_title(run: RunGraph) -> RenderableType:
    """Return number and name of a run's graph, and below its file."""
    names = [graph.name for graph in run.file.graphs[:1]]
    number = "" if run.number is None else f"debug_{run.number}"
    if run.file.framework:
        return Group(plain(recorded_title(run), "bold"), _path(run.file.path))
    return Group(plain("  ".join(filter(None, (number, *names))), "bold"), _path(run.file.path))


def _path(path: str) -> Text:
    text = whole_path(path)
    text.stylize("dim")
    return text


def own_error_text(judged: OpVerdict | None) -> Text:
    """The relative error that an op's inputs do not explain, red where it computes wrong, `-` where nobody knows."""
    if judged is None or judged.own_error is None:
        return Text("-", style="dim")
    return Text(percent(judged.own_error), style=_STATE_STYLES.get(judged.state, ""))


@dataclass(slots=True)
class Pages:
    """What the pages of a table have in common: the next has the columns of those before it, at least as wide."""

    form: int = 0
    has_judged: bool = False
    has_modules: bool = False
    has_passes: bool = False
    headers: Sequence[RenderableType] = ()
    widths: Sequence[int] = ()

    def fit(self, table: NameTable) -> NameTable:
        """Widen a page to those before it, whose header it does without where it has the same columns."""
        headers = [column.header for column in table.columns]
        table.show_header = headers != self.headers
        for column, width in zip(table.columns, () if table.show_header else self.widths, strict=False):
            column.min_width = width
        return table

    def keep(self, table: NameTable) -> None:
        """Take the columns of a page that was drawn, and their widths, for the next."""
        self.headers = [column.header for column in table.columns]
        self.widths = [column.min_width or 0 for column in table.columns]


#: Forms of a table, by the room that they need: a column for every fact, a line for every fact, names below the rows.
_WIDE, _NARROW, _STACKED = range(3)


class OpTable:
    """Ops as a table: a column for every fact where all fit beside each other, else a line for every fact.

    Where a name does not fit a terminal, it stands in a line below, so that the terminal does not break it. `pages`
    is what the pages of a long table share.
    """

    def __init__(self, rows: Iterable[OpRow], threshold: float, pages: Pages) -> None:
        self._rows = tuple(rows)
        self._threshold = threshold
        self._pages = pages
        #: A column of its own only where something is known.
        pages.has_judged |= any(row.judged is not None for row in self._rows)
        pages.has_modules |= any(row.op.module for row in self._rows)
        pages.has_passes |= any(row.op.pass_names for row in self._rows)
        self._has_judged, self._has_modules, self._has_passes = pages.has_judged, pages.has_modules, pages.has_passes
        self._yes = shown(Message("screen.view.list.yes"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pages = self._pages
        if pages.form == _WIDE and self._needed() <= options.max_width:
            wide = pages.fit(self._wide())
            yield wide
            pages.keep(wide)
            return
        narrow = self._narrow()
        endless = options.update(max_width=_ENDLESS)
        if pages.form == _STACKED or (
            options.is_terminal and Measurement.get(console, endless, narrow).minimum > options.max_width
        ):
            pages.form = _STACKED
            yield from self._stacked(console, options)
        else:
            pages.form = _NARROW
            yield pages.fit(narrow)
            pages.keep(narrow)

    def _needed(self) -> int:

        def longest(texts: Iterable[str]) -> int:
            return max(map(cell_width, texts), default=0)

        ops = [row.op for row in self._rows]
        scalars = [f"{row.scalar[0]:.6g} / {row.scalar[1]:.6g}" for row in self._rows if row.scalar]
        widths = (
            longest(str(row.index) for row in self._rows), longest(op.type for op in ops),
            longest(["1.000000", text(f"{_COLUMN}.cosine"), *scalars]), longest([text(f"{_COLUMN}.dump")]),
            longest([text(f"{_COLUMN}.own_error")]) if self._has_judged else -2,
            longest(safe(op.name) for op in ops), longest(name for op in ops for name in op.pass_names),
            longest([*(safe(op.module) for op in ops), text(f"{_COLUMN}.module")]) if self._has_modules else -2,
            longest(desc_text(desc) for op in ops for desc in op.output_descs),
        )  # fmt: skip
        return sum(width + 2 for width in widths)

    def _name(self, row: OpRow) -> Text:
        name = plain(row.op.name, "bold" if is_below(row.cosine, self._threshold) else "")
        if row.found_by:
            name.append("\n").append_text(shown(Message("screen.view.list.made_of", names=safe(row.found_by)), "dim"))
        return name

    def _table(self) -> NameTable:
        table = list_table()
        table.add_column("#", **NUMBERS)
        table.add_columns(_COLUMN, "type", no_wrap=True)
        table.add_columns(_COLUMN, "cosine", *["own_error"] * self._has_judged, **NUMBERS)
        table.add_columns(_COLUMN, "dump", no_wrap=True)
        return table

    def _first(self, row: OpRow) -> tuple[str | Text, ...]:
        below = is_below(row.cosine, self._threshold)
        return (
            str(row.index),
            plain(row.op.type),
            cosine_text(row.cosine, None if below is None else not below)
            if row.scalar is None
            else values_text(*row.scalar, _is_alike(*row.scalar, self._threshold)),
            *([own_error_text(row.judged)] if self._has_judged else []),
            self._yes if row.dumped else Text("-", style="dim"),
        )

    def _wide(self) -> NameTable:
        table = self._table()
        table.add_columns(_COLUMN, "name", *["module"] * self._has_modules)
        if self._has_passes:
            table.add_columns(_COLUMN, "pass")
        table.add_columns(_COLUMN, "outputs")
        for row in self._rows:
            outputs = Text("\n").join(plain(desc_text(desc)) for desc in row.op.output_descs)
            passes = [Text("\n").join(plain(name, "magenta") for name in row.op.pass_names)] if self._has_passes else []
            modules = [plain(row.op.module)] if self._has_modules else []
            table.add_row(*self._first(row), self._name(row), *modules, *passes, outputs)
        return table

    def _narrow(self) -> NameTable:
        table = self._table()
        names = "names_passes" if self._has_passes else "names_modules" if self._has_modules else "names"
        table.add_columns(_COLUMN, names)
        for row in self._rows:
            table.add_row(*self._first(row), Text("\n").join(self._names(row)))
        return table

    def _names(self, row: OpRow) -> list[Text]:
        passes = [plain(name, "magenta") for name in row.op.pass_names]
        modules = [plain(row.op.module, "cyan")] if row.op.module else []
        return [self._name(row), *modules, *passes, *(plain(desc_text(desc), "dim") for desc in row.op.output_descs)]

    def _stacked(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        for row in self._rows:
            table.add_row(*self._first(row))
        lines = console.render_lines(self._pages.fit(table), options, pad=False)
        self._pages.keep(table)
        if table.show_header:
            yield from (*lines.pop(0), Segment.line())
        for line, row in zip(lines, self._rows, strict=True):
            yield from (*line, Segment.line())
            for name in Text("\n").join(self._names(row)).split("\n"):
                yield Text.assemble(_INDENT, name, no_wrap=True, overflow="ignore")


def _is_alike(npu: float, golden: float, threshold: float) -> bool:
    """Return whether two single numbers agree, by the relative error that a cosine allows (see `agrees`)."""
    if npu == golden or (isnan(npu) and isnan(golden)):
        return True
    return abs(npu - golden) <= sqrt(2 * (1 - threshold)) * abs(golden)


def op_listing(listing: OpListing, limit: int, threshold: float, reason: str = "") -> Iterator[RenderableType]:
    """One graph's ops, at most `limit` of them (0: all), and their number; or the `reason` why they are unknown."""
    yield run_title(listing.run)
    if reason:
        yield plain(reason, "yellow")
        return
    rows = listing.rows[: limit or None]
    pages = Pages()
    for start in range(0, len(rows), _PAGE):
        yield OpTable(rows[start : start + _PAGE], threshold, pages)
    total = Message("screen.view.list.ops", count=listing.total)
    matching = len(listing.rows)
    yield shown_counts(Message("screen.view.list.of", matching=matching, total=total), len(rows), matching)


def shown_counts(counts: Message, shown_rows: int, rows: int) -> Text:
    """Return counts, and how many of the rows are shown where these are not all."""
    if shown_rows >= rows:
        return shown(counts, "bold")
    message = Message("screen.view.limit.first", text=counts, shown=shown_rows, single=shown_rows == 1)
    return shown(message, "dim", fields={"text": "not dim bold"})


def dump_listing(listing: DumpListing, limit: int) -> Iterator[RenderableType]:
    """One leaf's dump files, at most `limit` of them (0: all), and how many there are."""
    run = "" if listing.leaf.graph else f"debug_{listing.run}"
    yield plain("  ".join(filter(None, (run, leaf_words(listing.leaf)))), "bold")
    yield _path(listing.leaf.path)
    rows = listing.rows[: limit or None]
    if listing.leaf.graph:
        yield _entry_table(rows)
        entries = Message("screen.view.list.entries", count=listing.total)
        of_all = Message("screen.view.list.of", matching=len(listing.rows), total=entries)
        yield shown_counts(of_all, len(rows), len(listing.rows))
        return
    if rows:
        table = list_table()
        table.add_columns(_COLUMN, "type", no_wrap=True)
        table.add_columns(_COLUMN, "task", "stream", **NUMBERS)
        table.add_columns(_COLUMN, "time", no_wrap=True)
        table.add_columns(_COLUMN, "size", **NUMBERS)
        table.add_columns(_COLUMN, "name")
        for row in rows:
            dump = row.file.name
            table.add_row(
                plain(dump.op_type),
                str(dump.task_id),
                "-" if dump.stream_id is None else str(dump.stream_id),
                shown_time(dump.timestamp),
                shown(Message("screen.view.list.no_file"), "yellow") if row.size is None else byte_size(row.size),
                _dump_name(row),
            )
        yield table
    size = byte_size(sum(row.size or 0 for row in listing.rows))
    no_files = sum(row.size is None for row in listing.rows)
    files = len(listing.rows) - no_files
    total = Message("screen.view.list.dump_files", count=listing.total, size=size)
    counts = shown_counts(Message("screen.view.list.of", matching=files, total=total), min(len(rows), files), files)
    if no_files:
        counts.append_text(shown(Message("screen.view.list.not_files", count=no_files), "yellow"))
    yield counts
    if listing.leaf.ignored:
        name, why = listing.leaf.ignored[0]
        count = len(listing.leaf.ignored)
        yield shown(Message("screen.view.list.ignored", count=count, name=safe(name), why=why), "dim")


def _entry_table(rows: Sequence[DumpRow]) -> NameTable:
    """The entries of a `dump.json`, which has no times."""
    table = list_table()
    table.add_column("#", **NUMBERS)
    table.add_columns(_COLUMN, "type", no_wrap=True)
    table.add_columns(_COLUMN, "name")
    for row in rows:
        entry = row.file.entries[0].name if row.file.entries else row.file.name.op_name
        table.add_row(str(row.file.name.task_id), plain(row.file.name.op_type), plain(entry))
    return table


def _dump_name(row: DumpRow) -> Text:
    name = safe(row.file.name.op_name)
    return shown(Message("screen.view.list.statistics", op=name)) if row.file.statistics else Text(name)


def shown_time(timestamp: int) -> str:
    """The time stamp of a dump file name, whose unit its number of digits tells, as time of day."""
    seconds = timestamp / 10 ** max(len(str(timestamp)) - 10, 0)
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return str(timestamp)


# --- JSON -------------------------------------------------------------------------------------------------------------


def ops_json(listings: Iterable[OpListing], limit: int) -> Iterator[str]:
    """The ops as one JSON document, in pieces."""
    return json_pieces({"graphs": [_listing_json(listing, limit) for listing in listings]})


def _listing_json(listing: OpListing, limit: int) -> dict[str, Any]:
    run = listing.run
    return {
        "run": run.number,
        "graph": posixpath.abspath(run.file.path),
        "graph_names": [graph.name for graph in run.file.graphs],
        "reason": run.reason or "",
        "total": listing.total,
        "matching": len(listing.rows),
        "ops": Streamed(map(_op_json, listing.rows[: limit or None])),
    }


def _op_json(row: OpRow) -> dict[str, Any]:
    op = row.op
    return {
        "index": row.index,
        "id": op.id,
        "name": op.name,
        "type": op.type,
        "graph": row.graph,
        "module": op.module,
        "source": op.source,
        "passes": op.pass_names,
        "kernel": op.kernel_name,
        "kernel_lib": op.kernel_lib,
        "original_ops": op.original_names,
        "outputs": [{"dtype": desc.dtype, "layout": desc.layout, "shape": desc.shape} for desc in op.output_descs],
        "cosine": row.cosine,
        "values": None if row.scalar is None else list(row.scalar),
        "own_error": row.judged.own_error if row.judged is not None else None,
        "state": row.judged.state if row.judged is not None else None,
        "dumped": row.dumped,
    }


def dumps_json(listings: Iterable[DumpListing], limit: int, h5_dumps: Sequence[dict[str, Any]] = ()) -> str:
    """The dump files as one JSON document; `h5_dumps` are what there is of PyTorch's."""
    return json_text(
        {
            "dumps": [
                {
                    "run": listing.run,
                    "folder": listing.leaf.path,
                    "device": listing.leaf.device,
                    "model": listing.leaf.model_name,
                    "model_id": listing.leaf.model_id,
                    "step": listing.leaf.step,
                    "total": listing.total,
                    "matching": len(listing.rows),
                    "files": [_dump_json(row) for row in listing.rows[: limit or None]],
                }
                for listing in listings
            ],
            **({"pytorch": h5_dumps} if h5_dumps else {}),
        }
    )


def _dump_json(row: DumpRow) -> dict[str, Any]:
    name = row.file.name
    return {
        "file": posixpath.basename(row.file.path),
        "op": row.file.entries[0].name if row.file.entries else name.op_name,
        "type": name.op_type,
        "task": name.task_id,
        "stream": name.stream_id,
        "timestamp": name.timestamp,
        "statistics": row.file.statistics,
        "size": row.size,
    }
