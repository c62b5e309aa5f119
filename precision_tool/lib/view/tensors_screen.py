"""Screens of tensors: `pt`, `cp` and `dc`, with histograms of characters (`#` where the terminal has no blocks)."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from math import isnan, log1p, prod
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from precision_tool.lib.compare.columns import METRIC_FIELDS
from precision_tool.lib.compare.convert import Decoded
from precision_tool.lib.compare.named_tensors import BENCHMARK, BENCHMARK_ORDER, NamedTensor, View
from precision_tool.lib.compare.pair_sums import unravel
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.model.comparison import Metrics, Summary
from precision_tool.lib.model.elements import Detail, Element
from precision_tool.lib.model.tensor import AnyTensor, Tensor
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.view.tables import NUMBERS, Heading, NameTable, figure_table
from precision_tool.lib.view.text import (
    LabelledLines,
    byte_size,
    element_json,
    json_text,
    label,
    plain,
    safe,
    shown,
    shown_reason,
    whole_path,
    without_place,
)

#: Parts of a cell in eighths.
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
#: Counts that differ by more than this factor are drawn as logarithms.
_LOG_FROM = 200
_WIDEST = 60


@dataclass(frozen=True)
class Bar:
    """A bar of a share (0 to 1) of the width there is. Any share above zero is seen."""

    share: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        if options.ascii_only:
            yield Text("#" * max(round(self.share * width), self.share > 0), style="cyan", no_wrap=True)
            return
        eighths = max(round(self.share * width * 8), int(self.share > 0))
        rest = _EIGHTHS[eighths % 8] if eighths % 8 else ""
        yield Text(_FULL * (eighths // 8) + rest, style="cyan", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, min(options.max_width, _WIDEST))


def edges(low: float, high: float, bins: int) -> list[float]:
    """The borders of equal bins over [low, high], none of which is beyond one that follows."""
    inner = (low * ((bins - number) / bins) + high * (number / bins) for number in range(1, bins))
    # Rounding may lead out of so narrow a range, that of a constant among them.
    return list(accumulate((low, *(min(max(edge, low), high) for edge in inner), high), max))


def is_logarithmic(counts: Sequence[int]) -> bool:
    """True if the counts differ so much that small ones would not be seen beside large ones."""
    some = [count for count in counts if count]
    return bool(some) and max(some) > _LOG_FROM * min(some)


def histogram(labels: Sequence[tuple[str, str]], counts: Sequence[int], title: str) -> Table:
    """One line a bin: its borders (or one word), a bar, its count. `title` says of what."""
    logarithmic = is_logarithmic(counts)
    sizes = [log1p(count) if logarithmic else count for count in counts]
    largest = max(sizes, default=0) or 1
    table = Table(
        title=text("screen.view.tensor.logarithms", title=title) if logarithmic else title,
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        padding=(0, 1, 0, 0),
        expand=False,
    )
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for (low, high), count, size in zip(labels, counts, sizes, strict=True):
        between = Text(text("screen.view.tensor.to") if low and high else "", style="dim")
        table.add_row(Text(low), between, Text(high), Bar(size / largest), Text(str(count)))
    return table


# --- figures ---


#: An axis of which no index has so many times its fair share holds the error evenly.
_EVEN = 1.5
#: Rows of `dc`'s list of what was decoded, and of failures.
_SHOWN_ROWS = 20
_SUMMARY_ROWS = (
    ("min", "minimum"), ("max", "maximum"), ("mean", "mean"), ("std", "std"),
    ("elements", "count"), ("zeros", "zero_count"), ("nan", "nan_count"), ("positive_inf", "positive_inf_count"),
    ("negative_inf", "negative_inf_count"),
)  # fmt: skip
#: What a statistics dump does not tell.
_NOT_IN_STATISTICS = ("std", "zero_count")
#: Metrics that stand first, those of one kind beside each other; the others follow in the order of the columns.
_FIRST_METRICS = (
    "cosine", "max_absolute_error", "mean_absolute_error", "root_mean_square_error", "relative_euclidean_distance",
    "max_relative_error", "mean_relative_error",
)  # fmt: skip


def number_text(value: float | complex | None, digits: int = 6) -> str:
    """A number in as many digits; integers and bools whole, `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, complex):
        return f"{value.real:.{digits}g}{value.imag:+.{digits}g}j"
    return f"{value:.{digits}g}"


# --- one tensor: pt ---------------------------------------------------------------------------------------------------


def tensor_block(views: Sequence[View]) -> RenderableType:
    """A tensor, or one and its benchmark: where from, figures beside each other, histograms, first values."""
    first = views[0].named
    parts: list[RenderableType] = [Heading(plain(_title(first)))]
    for view in views:
        parts.append(LabelledLines(list(_facts(view))))
    with_figures = [view for view in views if view.figures is not None]
    if with_figures:
        parts.append(_figures(with_figures))
    for view in with_figures:
        parts += _values(view, side_label(view.named.side) if len(views) > 1 else "")
    parts.append(Text())
    return Group(*parts)


def short_block(groups: Sequence[Sequence[View]]) -> RenderableType:
    """Tensors of one op or file in a table: figures, without values."""
    first = groups[0][0].named
    table = figure_table()
    table.add_columns("screen.view.op.column", "slot", "side", "dtype", no_wrap=True)
    table.add_columns("screen.view.op.column", "shape")
    table.add_columns("screen.view.tensor.row", "min", "max", "mean", **NUMBERS)
    notes = []
    for view in (view for group in groups for view in group):
        named, summary = view.named, view.figures.summary if view.figures else None
        slot = "" if named.side == BENCHMARK else named.slot
        figures = [_short(getattr(summary, name)) if summary else "-" for name in ("minimum", "maximum", "mean")]
        dtype, shape = (named.tensor.dtype, shape_text(named.tensor.shape)) if named.tensor else ("-", "-")
        table.add_row(*map(plain, (slot, side_label(named.side), dtype, shape, *figures)))
        reason = view.reason or named.reason or (named.reading.note if named.reading else None)
        for note in filter(None, (shown_reason(reason), non_finite_text(summary) if summary else "")):
            notes.append((f"{named.slot} {side_label(named.side)}".strip(), plain(note, "yellow")))
    place = _place(first) or shown_path(first.path)
    title = Heading(shown(Message("screen.view.tensor.inputs", place=safe(place))))
    hint = shown(Message("screen.view.tensor.hint"), "dim")
    return Group(title, table, *([LabelledLines(notes)] if notes else []), hint, Text())


def _short(value: float) -> str:
    """A figure in four digits, smaller integers whole."""
    return str(value) if isinstance(value, int) and abs(value) < 10**8 else f"{value:.4g}"


def non_finite_text(summary: Summary) -> str:
    """Return how many values are NaN and Inf; "" if none is."""
    nan, inf = summary.nan_count or None, summary.inf_count or None
    if nan is None and inf is None:
        return ""
    is_both = nan is not None and inf is not None
    counts = Message("screen.view.tensor.non_finite_counts", nan=nan, inf=inf, both=is_both)
    return text("screen.view.tensor.non_finite", counts=counts, count=summary.count)


def _place(named: NamedTensor) -> str:
    return " ".join(filter(None, (named.run, named.op_name)))


def _title(named: NamedTensor) -> str:
    place = _place(named)
    if named.slot and place:
        return text("screen.view.tensor.title", slot=named.slot, place=place)
    return named.slot or place or shown_path(named.path)


def side_label(side: str) -> str:
    """Return a side (`NPU`, `benchmark`) in the language in use."""
    return label("benchmark") if side == BENCHMARK else side


def _facts(view: View) -> Iterator[tuple[str, Text]]:
    named = view.named
    tensor, reading = named.tensor, named.reading
    if named.path:
        yield side_label(named.side) or label("file"), whole_path(named.path)
    if isinstance(tensor, Tensor) and tensor.dataset:
        yield label("tensor"), plain(tensor.dataset)
    elif named.side == BENCHMARK and named.slot:
        yield label("tensor"), plain(named.slot)
    if tensor is not None:
        yield label("stored"), shown(_stored(tensor))
    if tensor is not None and tensor.dtype.startswith("complex"):
        yield "", shown(Message("screen.view.tensor.complex"), "dim")
    if tensor is not None and reading is not None and reading.layout != tensor.layout:
        shape = shape_text(reading.shape)
        values = Message("screen.view.tensor.storage_order", shape=shape)
        if reading.layout:
            is_benchmarks = reading.layout == BENCHMARK_ORDER
            layout = Message("screen.view.tensor.benchmark_order") if is_benchmarks else reading.layout
            values = Message("screen.view.tensor.unpadded", shape=shape, layout=layout)
        yield label("values"), shown(values)
    if reading is not None and reading.note:
        yield label("note"), plain(shown_reason(reading.note), "yellow")
    reason = view.reason or named.reason
    if reason:
        yield label("note"), plain(shown_reason(reason), "yellow")


def _stored(tensor: AnyTensor) -> Message:
    desc = f"{tensor.dtype} {tensor.layout} {shape_text(tensor.shape)}"
    if not isinstance(tensor, Tensor):
        return Message(
            "screen.view.tensor.stored", desc=safe(desc), bytes=None, origin="", fortran=False, big_endian=False,
            statistics=True,
        )  # fmt: skip
    origin = "" if tensor.origin_shape in (None, tensor.shape) else shape_text(tensor.origin_shape or ())
    return Message(
        "screen.view.tensor.stored", desc=safe(desc), bytes=tensor.nbytes, origin=origin,
        fortran=tensor.fortran_order, big_endian=tensor.big_endian, statistics=False,
    )  # fmt: skip


def _figures(views: Sequence[View]) -> Table:
    table = NameTable.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    for _ in views:
        table.add_column(justify="right", no_wrap=True)
    if len(views) > 1:
        table.add_row("", *(Text(side_label(view.named.side), style="bold") for view in views))
    for row, name in _SUMMARY_ROWS:
        table.add_row(text(f"screen.view.tensor.row.{row}"), *(_figure(view, name) for view in views))
    return table


def _figure(view: View, name: str) -> Text:
    assert view.figures is not None
    tensor = view.named.tensor
    value = getattr(view.figures.summary, name)
    if not isinstance(tensor, Tensor) and name in _NOT_IN_STATISTICS:
        return Text("-", style="dim")
    bad = name in ("nan_count", "positive_inf_count", "negative_inf_count") and value
    number = number_text(value)
    if name in ("minimum", "maximum") and tensor is not None and "int" in tensor.dtype and abs(value) < 2**53:
        number = f"{value:.0f}"  # of a statistics dump too
    return Text(number, style="red" if bad else "")


def _values(view: View, side: str) -> Iterator[RenderableType]:
    """Histogram and first values of one tensor."""
    figures, reading = view.figures, view.named.reading
    assert figures is not None
    if reading is None:
        return
    summary = figures.summary
    finite = sum(figures.histogram)
    total = prod(reading.shape)
    if len(figures.first) < total and finite:  # else all values are there to be seen
        if summary.minimum < summary.maximum:
            borders = [number_text(edge, 4) for edge in edges(summary.minimum, summary.maximum, len(figures.histogram))]
            title = text("screen.view.tensor.histogram", side=side, count=finite)
            yield histogram(list(pairwise(borders)), figures.histogram, title)
        else:
            yield shown(Message("screen.view.tensor.constant", side=side, value=number_text(summary.minimum)))
    if figures.first:
        some = len(figures.first) if len(figures.first) < total else None
        heading = Message(
            "screen.view.tensor.first_values", side=side, shown=some, count=total, storage=not reading.layout
        )  # fmt: skip
        yield shown(heading, "bold")
        yield FirstValues([number_text(value) for value in figures.first], reading.shape)


@dataclass(frozen=True)
class FirstValues:
    """Values in lines that begin with the index of their first; a row of the last axis begins a line."""

    texts: Sequence[str]
    shape: tuple[int, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        row = self.shape[-1] if self.shape else 1
        width = max(map(len, self.texts))
        indices = [unravel(at, self.shape) or () for at in range(len(self.texts))]
        label = max(len(shape_text(index)) for index in indices)
        fitting = max(1, (options.max_width - label - 1) // (width + 1))
        # A row of numbers that takes several lines is cut where it is easy to count.
        per_line = row if row <= fitting else next((n for n in (20, 10, 8, 5, 4, 2) if n <= fitting), 1)
        at = 0
        while at < len(self.texts):
            column = at % row
            count = min(per_line, row - column, len(self.texts) - at)
            values = " ".join(text.rjust(width) for text in self.texts[at : at + count])
            yield Text.assemble(
                (shape_text(indices[at]).rjust(label), "dim"), " ", values, no_wrap=True, overflow="fold"
            )
            at += count


def saved_line(path: str) -> RenderableType:
    return Group(Text(label("saved"), style="bold"), whole_path(path))


def tensors_json(groups: Sequence[Sequence[View]], saved: Sequence[str]) -> str:
    return json_text({"tensors": [_view_json(view) for group in groups for view in group], "saved": list(saved)})


def _tensor_json(named: NamedTensor) -> dict[str, Any]:
    tensor, reading = named.tensor, named.reading
    return {
        "path": named.path,
        "slot": named.slot or None,
        "side": named.side or None,
        "op": named.op_name or None,
        "run": named.run or None,
        "dtype": tensor.dtype if tensor else None,
        "layout": tensor.layout if tensor else None,
        "shape": tensor.shape if tensor else None,
        "original_shape": tensor.origin_shape if isinstance(tensor, Tensor) else None,
        "read_as": (reading.layout or None) if reading else None,
        "read_shape": reading.shape if reading else None,
        "note": (reading and reading.note) or "",
    }


def _view_json(view: View) -> dict[str, Any]:
    figures = view.figures
    document = _tensor_json(view.named) | {"reason": view.reason or view.named.reason or ""}
    if figures is None:
        return document | {"figures": None, "histogram": None, "first": None}
    first = [[value.real, value.imag] if isinstance(value, complex) else value for value in figures.first]
    borders = edges(figures.summary.minimum, figures.summary.maximum, len(figures.histogram) or 1)
    bins = {"edges": borders, "counts": figures.histogram} if sum(figures.histogram) else None
    return document | {"figures": asdict(figures.summary), "histogram": bins, "first": first}


# --- two tensors: cp --------------------------------------------------------------------------------------------------


def detail_block(detail: Detail, npu: NamedTensor, golden: NamedTensor) -> RenderableType:
    """Two tensors compared element by element."""
    row = detail.comparison
    parts: list[RenderableType] = [_sides(npu, golden, row.npu, row.golden)]
    if row.reason:
        parts.append(shown(Message("screen.view.note", note=shown_reason(row.reason)), "yellow"))
    if row.metrics is None:
        parts.append(shown(Message("screen.view.compare_tensors.empty"), "yellow"))
        return Group(*parts)
    parts += [Text(), _metrics(row.metrics, row.npu, row.golden), Text(), _tolerance(detail)]
    if row.metrics.non_finite_mismatches:
        place = shape_text(row.metrics.first_mismatch_index or ())
        mismatches = Message(
            "screen.view.compare_tensors.mismatches", count=row.metrics.non_finite_mismatches, place=place
        )  # fmt: skip
        parts.append(shown(mismatches, "red"))
    parts += _errors(detail)
    for title, elements in (
        (Message("screen.view.compare_tensors.first", shown=len(detail.first), count=detail.count), detail.first),
        (Message("screen.view.compare_tensors.worst_absolute"), detail.worst_absolute),
        (Message("screen.view.compare_tensors.worst_relative"), detail.worst_relative),
    ):
        if elements:
            parts += [Text(), element_table(title, elements)]
    return Group(*parts)


def _sides(npu: NamedTensor, golden: NamedTensor, *summaries: Summary | None) -> RenderableType:
    lines = [(label("npu"), whole_path(_where(npu))), (label("benchmark"), whole_path(_where(golden)))]
    table = NameTable.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    for _ in range(2):
        table.add_column(justify="right")
    table.add_row("", Text(label("npu"), style="bold"), Text(label("benchmark"), style="bold"))
    tensors = npu.tensor, golden.tensor
    table.add_row(label("dtype"), *(plain(tensor.dtype if tensor else "-") for tensor in tensors))
    table.add_row(label("layout"), *(plain(tensor.layout if tensor else "-") for tensor in tensors))
    table.add_row(label("shape"), *(plain(shape_text(tensor.shape) if tensor else "-") for tensor in tensors))
    for row, name in _SUMMARY_ROWS:
        cells = (Text(number_text(getattr(side, name)) if side else "-") for side in summaries)
        table.add_row(text(f"screen.view.tensor.row.{row}"), *cells)
    return Group(LabelledLines(lines), table)


def _where(named: NamedTensor) -> str:
    if isinstance(named.tensor, Tensor) and named.tensor.dataset:
        return f"{shown_path(named.path)}:{named.tensor.dataset}"
    return f"{shown_path(named.path)}:{named.slot}" if named.slot and named.side != BENCHMARK else named.path


def _metrics(metrics: Metrics, npu: Summary | None, golden: Summary | None) -> Table:
    table = NameTable.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    for name in dict.fromkeys((*_FIRST_METRICS, *METRIC_FIELDS)):
        value = getattr(metrics, name)
        number = f"{value:.6f}" if name == "cosine" else number_text(value)
        table.add_row(METRIC_FIELDS[name], Text(number, style="red" if isnan(value) else ""))
    if npu is not None and golden is not None:
        deviations = (f"({number_text(side.mean, 4)}; {number_text(side.std, 4)})" for side in (npu, golden))
        table.add_row("StandardDeviation", Text(", ".join(deviations)))
    return table


def _tolerance(detail: Detail) -> Text:
    rule = Message("screen.view.compare_tensors.rule", atol=detail.atol, rtol=detail.rtol)
    if detail.all_close:
        is_single = detail.count == 1
        close = Message("screen.view.compare_tensors.close", single=is_single, count=detail.count, rule=rule)
        return shown(close, "green")
    not_close = Message(
        "screen.view.compare_tensors.not_close", outside=detail.outside, count=detail.count,
        percent=100 * detail.outside_share, rule=rule,
    )  # fmt: skip
    return shown(not_close, "red")


def _errors(detail: Detail) -> Iterator[RenderableType]:
    """Yield the sizes of errors, and the indices of each axis that hold most of them."""
    if detail.histogram:
        rows = [("", text("screen.view.none"), detail.equal)] if detail.equal else []
        rows += [(f"{bin_.low:.0e}" if bin_.low else "0", f"{bin_.high:.0e}", bin_.count) for bin_ in detail.histogram]
        title = text("screen.view.compare_tensors.decades")
        yield Text()
        yield histogram([row[:2] for row in rows], [row[2] for row in rows], title)
    if detail.axes:
        heading = Message("screen.view.compare_tensors.squared_error")
        if detail.shares_of_mismatches:
            heading = Message("screen.view.compare_tensors.mismatch_places")
        yield Text()
        yield shown(heading, "bold")
        table = NameTable.grid(padding=(0, 2, 0, 0))
        for axis in detail.axes:
            top = [Text(f"[{at}] {100 * share:.3g} %", style="red" if share > 0.5 else "") for at, share in axis.top]
            if axis.top[0][1] * axis.extent < _EVEN:
                top = [shown(Message("screen.view.compare_tensors.evenly"), "dim")]
            name = Message("screen.view.compare_tensors.axis", axis=axis.axis, extent=axis.extent)
            table.add_row(shown(name), *top)
        yield table


def element_table(title: Message, elements: Sequence[Element]) -> NameTable:
    """Elements with their index, both values and both errors."""
    table = NameTable(title=render(title), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    table.add_columns("screen.view.compare.column", "index", no_wrap=True)
    table.add_columns("screen.view.compare.column", "npu", "benchmark", "absolute", "relative", **NUMBERS)
    for element in elements:
        relative = "-" if isnan(element.relative) else number_text(element.relative, 4)
        values = (number_text(element.npu), number_text(element.golden), number_text(element.error, 4), relative)
        table.add_row(shape_text(element.index), *values)
    return table


def detail_json(detail: Detail, npu: NamedTensor, golden: NamedTensor, saved: str) -> str:
    row = detail.comparison
    return json_text(
        {
            "npu": _tensor_json(npu) | {"figures": asdict(row.npu) if row.npu else None},
            "benchmark": _tensor_json(golden) | {"figures": asdict(row.golden) if row.golden else None},
            "note": row.reason or "",
            "shape": detail.shape,
            "metrics": asdict(row.metrics) if row.metrics else None,
            "atol": detail.atol,
            "rtol": detail.rtol,
            "count": detail.count,
            "outside": detail.outside,
            "equal": detail.equal,
            "all_close": detail.all_close,
            "first": [element_json(element) for element in detail.first],
            "worst_absolute": [element_json(element) for element in detail.worst_absolute],
            "worst_relative": [element_json(element) for element in detail.worst_relative],
            "error_histogram": [asdict(bin_) for bin_ in detail.histogram],
            "axes": [asdict(axis) for axis in detail.axes],
            "shares_of_mismatches": detail.shares_of_mismatches,
            "saved": saved or None,
        }
    )


# --- decoded files: dc ------------------------------------------------------------------------------------------------


def decoded_block(rows: Sequence[Decoded], folder: str, failed_list: str, layout: str = "") -> RenderableType:
    """Return the decoded tensors, those not converted to `layout`, and failures with reasons; long lists are cut."""
    done = [row for row in rows if not row.reason]
    failed = [row for row in rows if row.reason]
    parts: list[RenderableType] = []
    for row in done[:_SHOWN_ROWS]:
        parts.append(whole_path(row.path))
        stored = f"{row.stored_dtype} {row.stored_layout} {shape_text(row.stored_shape)}"
        result = f"{row.dtype} {row.layout} {shape_text(row.shape)}"
        if not row.layout:  # no tensor
            stored, result = row.stored_dtype, row.dtype
        parts.append(plain(f"  {stored}" + (f" -> {result}" if stored != result else ""), "dim"))
        if row.text_path:
            parts.append(whole_path(row.text_path))
        if row.note:
            parts.append(plain(f"  {render(row.note)}", "yellow"))
    if len(done) > _SHOWN_ROWS:
        parts.append(shown(Message("screen.view.limit.json", more=len(done) - _SHOWN_ROWS), "dim"))
        notes = Counter(row.note for row in done[_SHOWN_ROWS:] if row.note)
        for note, count in notes.most_common(3):
            parts.append(shown(Message("screen.view.decode.note_count", count=count, note=note), "yellow"))
    for row in failed[:_SHOWN_ROWS]:
        # The list that is written has whole paths.
        where = ":".join(filter(None, (posixpath.basename(row.source), row.slot)))
        parts.append(plain(where, "yellow"))
        parts.append(plain(f"  {render(without_place(row.reason or '', row.source))}", "yellow"))
    if len(failed) > _SHOWN_ROWS:
        parts.append(shown(Message("screen.view.decode.more_failed", more=len(failed) - _SHOWN_ROWS), "yellow"))
    size = byte_size(sum(row.nbytes for row in done))
    summary = Message("screen.view.decode.done", count=len(done), size=size, folder=safe(shown_path(folder)))
    parts.append(shown(summary, "green" if done else ""))
    reasons = Counter(row.as_stored for row in done if row.as_stored)
    if reasons:
        as_stored = Message("screen.view.decode.as_stored", count=reasons.total(), layout=layout)
        parts.append(shown(as_stored, "yellow"))
        for reason, count in reasons.most_common(3):
            parts.append(shown(Message("screen.view.decode.reason_count", count=count, reason=reason), "yellow"))
        if len(reasons) > 3:
            parts.append(shown(Message("screen.view.decode.more_reasons", more=len(reasons) - 3), "yellow"))
    if failed:
        path = safe(shown_path(failed_list))
        parts.append(shown(Message("screen.view.decode.failed", count=len(failed), path=path), "yellow"))
    return Group(*parts)


def decoded_json(rows: Sequence[Decoded], folder: str) -> str:
    failed = sum(bool(row.reason) for row in rows)
    counts = {
        "decoded": len(rows) - failed,
        "kept_as_stored": sum(bool(row.as_stored) for row in rows),
        "failed": failed,
    }
    return json_text({"folder": folder, **counts, "tensors": [_decoded_json(row) for row in rows]})


def _decoded_json(row: Decoded) -> dict[str, Any]:
    texts = {name: getattr(row, name) or "" for name in ("note", "as_stored", "reason")}
    return asdict(row) | texts
