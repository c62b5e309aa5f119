"""An op that was judged by itself: its own error, or how what nothing computes stands to the benchmark; elements."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from precision_tool.lib.compare.columns import IN_NI
from precision_tool.lib.data.graph_catalog import RunGraph, implementation
from precision_tool.lib.data.neighbourhood import CONTROL, Connections, Input, Neighbourhood, Node, Output, Step
from precision_tool.lib.diagnose.agreement import agrees
from precision_tool.lib.diagnose.recorded_script import NoCodeError, call_code
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.messages.errors import FormatError, UsageError
from precision_tool.lib.model.comparison import Summary
from precision_tool.lib.model.graph import Graph, Op, TensorDesc
from precision_tool.lib.model.msprobe import RecordedOp, RecordedTensor
from precision_tool.lib.model.op_verdict import Element, OpVerdict, Source
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.view.tables import NUMBERS, Heading, NameTable, figure_table
from precision_tool.lib.view.tensors_screen import non_finite_text
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    desc_text,
    json_text,
    label,
    labelled,
    leaf_words,
    marked_pass,
    plain,
    row_text,
    safe,
    shown,
    shown_reason,
    whole_path,
)
from precision_tool.lib.view.verdict_messages import reason_words
from precision_tool.lib.view.verdict_screen import allowed_error, judged_json


def source_lines(title: str, source: Source, elements: Sequence[Element]) -> RenderableType:
    """Return whether data, a variable or random numbers are the same on both sides."""
    is_different = bool(source.different)
    state = Message("verdict.op.source", different=is_different)
    rows = [_row("state", state, "bold red" if is_different else "green")]
    if is_different:
        rows.append(
            _row(
                "differs",
                Message("verdict.op.differs", distance=source.distance, count=source.different, elements=source.size),
            )
        )
    if source.seen_in:
        rows.append(_row("seen_in", Message("verdict.op.seen_in", op=source.seen_in)))
    return _block(title, rows, elements, 0)


def verdict_lines(title: str, judged: OpVerdict, elements: Sequence[Element]) -> RenderableType:
    """Return whether an op computes correctly from its own inputs, and how much of its error is inherited."""
    state = judged.state if judged.state in ("right", "wrong", "doubtful") else "not_recomputed"
    style = {"right": "green", "wrong": "bold red"}.get(state, "yellow")
    message = Message(f"verdict.op.{state}", figures=None, reason=None)
    if judged.overflowed and state == "right":
        message, style = Message("verdict.op.overflow", wrong=False, count=None, largest=None, figures=None), "bold red"
    rows = [_row("state", message, style)]
    if judged.overflowed:
        beyond = Message("verdict.op.beyond", count=judged.overflowed, largest=judged.largest, right=state == "right")
        rows.append(_row("beyond", beyond))
    if judged.reason:
        rows.append((Message("verdict.op.label.reason"), plain(shown_reason(reason_words(judged.reason)))))
    if judged.own_error is not None:
        own = Message(
            "verdict.op.own_error", error=judged.own_error, output=judged.slot or 0, formula=tuple(judged.how),
            producers=judged.is_fed_by_others,
        )  # fmt: skip
        rows.append(_row("own_error", own))
        rounding = Message("verdict.op.rounding", rounding=judged.rounding, allowed=allowed_error(judged))
        rows.append(_row("rounding", rounding))
    if judged.looked_at is not None and judged.size is not None:
        sample = Message("verdict.op.sample", count=judged.looked_at, elements=judged.size, sums=judged.is_summed)
        rows.append(_row("sample", sample))
    if judged.inherited is not None:
        rows.append(_row("inherited", Message("verdict.op.inherited", error=judged.inherited)))
    if judged.benchmark_own is not None:
        rows.append(_row("benchmark", Message("verdict.op.benchmark", error=judged.benchmark_own)))
    return _block(title, rows, elements, judged.slot or 0)


def _row(label: str, message: Message, style: str = "") -> Line:
    return Message(f"verdict.op.label.{label}"), shown(message, style)


def _block(title: str, rows: Sequence[Line], elements: Sequence[Element], slot: int) -> RenderableType:
    heading = Heading(shown(Message("verdict.op.title", place=title)))
    parts: list[RenderableType] = [heading, LabelledLines(rows)]
    if elements:
        parts.append(_element_table(elements, slot))
    return Group(*parts)


def _element_table(elements: Sequence[Element], slot: int) -> NameTable:
    """Elements of an output as the NPU has them, as the benchmark has them, and as the op's inputs say."""
    columns = ["npu", "golden", "recomputed"]
    if all(element.recomputed is None for element in elements):
        columns.pop()
    table = figure_table()
    table.add_column(text("verdict.op.elements.output", slot=slot), no_wrap=True)
    table.add_columns("verdict.op.elements", "place", no_wrap=True)
    table.add_columns("verdict.op.elements", *columns, **NUMBERS)
    before = ""
    for element in elements:
        kind = text("verdict.op.elements.worst" if element.is_worst else "verdict.op.elements.first")
        table.add_row(
            "" if kind == before else kind, plain(shape_text(element.place)),
            *(Text("-", style="dim") if value is None else plain(_element(value))
              for value in (element.npu, element.benchmark, element.recomputed)[: len(columns)]),
        )  # fmt: skip
        before = kind
    return table


def _element(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


# --- `ni`: an op in its graph, its neighbours, its dumped tensors ---


#: Columns that one of several graphs needs at least beside the others.
_COLUMN = 50
#: Readers of an output, or ops that wait for the op, that are listed without -a.
_LISTED = 8
#: Figures of each tensor, which stand first; other columns follow in their order.
_FIRST_FIGURES = ("max", "min", "mean")
#: Characters of an attribute that are shown.
_VALUE = 400
#: Characters that are shown of one that was asked for.
_LONGEST_VALUE = 100_000


@dataclass(frozen=True, kw_only=True)
class OpReport:
    """An op in one graph. `rows` are its dumped tensors; where there are none, `not_dumped` says why.

    `requested` is the op of the training script that was named, where `op` does its work under another name.
    """

    run: RunGraph
    graph: Graph
    op: Op
    connections: Connections
    rows: tuple[Row, ...]
    not_dumped: str = ""
    requested: str = ""
    #: What recomputing said of it; None of an op that computes nothing, or was not dumped.
    judged: OpVerdict | None = None
    #: Of data, variables and random numbers how they stand to the benchmark's.
    source: Source | None = None
    #: Of the output that is farthest off.
    elements: Sequence[Element] = ()


# --- the op in its graph ----------------------------------------------------------------------------------------------


def run_name(run: RunGraph) -> str:
    """Return the NPU run of a graph, or the graph file where it belongs to none."""
    return posixpath.basename(run.file.path) if run.number is None else f"debug_{run.number}"


def recorded_title(run: RunGraph) -> str:
    """Return the framework, and step and rank, of a dump of msprobe."""
    return "  ".join(filter(None, (run.file.framework, leaf_words(run.leaf) if run.leaf is not None else "")))


def _title(report: OpReport) -> str:
    if report.run.file.framework:
        return recorded_title(report.run)
    return f"{run_name(report.run)}  {report.graph.name}"


@dataclass(frozen=True)
class SideBySide:
    """The op in each graph: beside each other as far as the terminal is wide, else below each other.

    Graphs that say the same of it share a column.
    """

    reports: Sequence[OpReport]
    everything: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        endless = options.update(max_width=1 << 20)
        alike: dict[str, tuple[dict[str, RenderableType], list[OpReport]]] = {}
        for report in self.reports:
            facts = dict(_facts(report, self.everything))
            content = "".join(part.text for fact in facts.values() for part in console.render(fact, endless))
            alike.setdefault(content, (facts, []))[1].append(report)
        columns = [facts for facts, _ in alike.values()]
        titles = [_title_of(reports) for _, reports in alike.values()]
        width = max((cell_len(name) for facts in columns for name in facts), default=0) + 2
        needed = max(Measurement.get(console, endless, fact).minimum for facts in columns for fact in facts.values())
        per_table = max(1, (options.max_width - width + 2) // max(_COLUMN, needed + 2))
        for start in range(0, len(columns), per_table):
            some = columns[start : start + per_table]
            table = NameTable.grid(padding=(0, 2, 0, 0))
            table.add_column(style="bold", no_wrap=True)
            for _ in some:
                table.add_column()
            if len(some) == 1:
                yield Heading(plain(titles[start]))
            else:
                table.add_row("", *(plain(title, "bold") for title in titles[start : start + per_table]))
            for name in dict.fromkeys(name for facts in some for name in facts):
                table.add_row(name, *(facts.get(name, Text("-", style="dim")) for facts in some))
            yield table


def _title_of(reports: Sequence[OpReport]) -> str:
    """The runs that an op is the same in, and its graph."""
    graphs = dict.fromkeys(report.graph.name for report in reports)
    if len(graphs) > 1:
        return ", ".join(map(_title, reports))
    if reports[0].run.file.framework:
        return _joined_runs(recorded_title(report.run) for report in reports)
    return f"{_joined_runs(run_name(report.run) for report in reports)}  {next(iter(graphs))}"


def _joined_runs(runs: Iterable[str]) -> str:
    return text("screen.view.op.and").join(dict.fromkeys(runs))


def _facts(report: OpReport, everything: bool) -> Iterator[tuple[str, RenderableType]]:
    op, links = report.op, report.connections
    yield label("name"), plain(op.name, "bold")
    yield label("type"), plain(op.type)
    is_recorded = bool(report.run.file.framework)
    if op.id is not None or not is_recorded:
        yield label("id"), shown(Message("screen.view.op.id", id=op.id, stream=op.stream_id))
    if op.kernel_name:
        yield label("kernel"), plain(op.kernel_name)
    if op.kernel_lib:
        yield label("kernel_lib"), plain(op.kernel_lib)
    if is_recorded:
        if op.module:
            yield label("module"), plain(op.module)
        if op.source:
            yield label("source_line"), plain(op.source)
    else:
        yield label("kernel_is"), _kernel_source(op)
    if op.pass_names:
        yield label("pass_name"), plain(", ".join(map(marked_pass, op.pass_names)))
    if not is_recorded:
        yield label("origin_op"), _originals(op)
    caller = links.caller
    if caller is not None and caller.op is not None:
        name, kind, graph = map(safe, (caller.name, caller.op.type, caller.graph))
        yield label("called_by"), shown(Message("screen.view.op.caller", name=name, type=kind, graph=graph))
    if op.subgraph_names:
        yield label("subgraphs"), plain(", ".join(op.subgraph_names))
    if links.inputs:
        yield label("inputs"), _lines(line for source in links.inputs for line in _input(source))
    if links.waits_for:
        yield label("runs_after"), _lines(_limited([("", plain(node.name)) for node in links.waits_for], everything))
    if links.outputs:
        yield label("outputs"), _lines(line for output in links.outputs for line in _output(output, everything))
    if links.awaited_by:
        yield label("runs_before"), _lines(_limited([("", plain(node.name)) for node in links.awaited_by], everything))


def _kernel_source(op: Op) -> Text:
    """Built-in or custom: of custom ops the user's own code is to be looked at."""
    code = implementation(op)
    if code is None:
        return shown(Message("screen.view.op.kernel_unknown"), "dim")
    source = Message("screen.view.op.custom") if code.is_custom else Message("screen.view.op.built_in")
    why = shown(Message("screen.view.op.kernel_why", why=safe(code.why)))
    return Text.assemble(shown(source, "yellow" if code.is_custom else ""), why)


#: A line of a list with the little word before it, which stays clear when the line is wrapped.
_Line = tuple[str, Text]


def _lines(lines: Iterable[_Line]) -> Table:
    table = NameTable.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=4)
    table.add_column()
    for name, line in lines:
        table.add_row(Text(name, style="" if name.startswith("[") else "dim"), line)
    return table


def _originals(op: Op) -> Text:
    if op.original_names is None:
        return shown(Message("screen.view.op.originals_unknown"), "dim")
    if not any(op.original_names):
        itself = Message("screen.view.op.itself")
        return shown(itself if op.original_names else Message("screen.view.op.inserted"), "dim")
    return plain(", ".join(op.original_names))


def _input(source: Input) -> Iterator[_Line]:
    if source.edge is None:
        yield f"[{source.slot}]", shown(Message("screen.view.op.not_connected"), "dim")
    else:
        yield f"[{source.slot}]", plain(f"{source.edge.producer}:{source.edge.index}")
    if source.desc is not None and (source.edge is not None or source.desc.dtype):
        yield "", plain(desc_text(source.desc))
        yield from _origin(source.desc)
    for step in source.sources:
        if step.end.op is None:
            missing = Message("screen.view.op.not_in_graph", name=safe(step.end.name))
            yield text("screen.view.op.from"), shown(missing, "yellow")
        elif step.through:
            place = f"{step.end.name}:{step.link.index}{_type(step.end)}{_through(step)}"
            yield text("screen.view.op.from"), plain(place, "dim")


def _output(output: Output, everything: bool) -> Iterator[_Line]:
    desc = output.desc
    undescribed = Message("screen.view.op.not_described")
    yield f"[{output.index}]", shown(undescribed) if desc is None else plain(desc_text(desc))
    if desc is not None:
        yield from _origin(desc)
    if desc is not None and desc.dump_origin_name:
        index = output.index if desc.dump_origin_index is None else desc.dump_origin_index
        tensor = safe(f"{desc.dump_origin_name}:{index}")
        origin = Message("screen.view.op.of_script", tensor=tensor, layout=safe(desc.dump_origin_layout or ""))
        yield text("screen.view.op.is"), shown(origin)
    to = text("screen.view.op.to")
    readers = [
        (to, plain(f"{step.end.name}{_slot(step)}{_type(step.end)}{_through(step)}", "dim")) for step in output.readers
    ]
    yield from _limited(readers or [(to, shown(Message("screen.view.op.unused"), "dim"))], everything)


def _limited(lines: list[_Line], everything: bool) -> list[_Line]:
    more = 0 if everything else len(lines) - _LISTED
    if more <= 0:
        return lines
    return [*lines[:_LISTED], ("", shown(Message("screen.view.op.more", more=more), "dim"))]


def _slot(step: Step) -> str:
    return "" if step.link.slot == CONTROL else text("screen.view.op.input_slot", slot=step.link.slot)


def _type(node: Node) -> str:
    return "" if node.op is None else f" ({node.op.type})"


def _through(step: Step) -> str:
    if not step.through:
        return ""
    return text("screen.view.op.through", ops=", ".join(node.name for node in step.through))


def _origin(desc: TensorDesc) -> Iterator[_Line]:
    """Layout and shape in the training script, where they are others."""
    layout, shape = desc.origin_layout, desc.origin_shape
    if (layout not in (None, desc.layout)) or (shape not in (None, desc.shape)):
        origin = filter(None, (layout, None if shape is None else shape_text(shape)))
        yield "", shown(Message("screen.view.op.originally", desc=safe(" ".join(origin))))


# --- attributes -------------------------------------------------------------------------------------------------------


def find_attribute(reports: Sequence[OpReport], attribute: str) -> str:
    """Return an attribute's name as the op spells it; UsageError with close names where it has none."""
    names = sorted({name for report in reports for name in report.op.attrs})
    matches = [name for name in names if name == attribute]
    matches += [name for name in names if name.lower() == attribute.lower()]
    if matches:
        return matches[0]
    parts = [name for name in names if attribute.lower() in name.lower()][:_LISTED]
    close = parts or difflib.get_close_matches(attribute, names, n=3)
    raise UsageError("view.no_attribute", op=reports[0].op.name, attribute=attribute, close=close)


def attribute_lines(report: OpReport, only: str | None = None) -> RenderableType:
    """Every attribute of the op; long values are cut, of bytes only the number is told. Of `only` one all of it."""
    table = NameTable.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name in _shown_attributes(report.op, only):
        table.add_row(plain(name), plain(attribute_text(report.op, name, _VALUE if only is None else _LONGEST_VALUE)))
    heading = Message("screen.view.op.attributes", op=safe(report.op.name), title=safe(_title(report)))
    return Group(Heading(shown(heading)), table if table.rows else shown(Message("screen.view.none"), "dim"))


def _shown_attributes(op: Op, only: str | None) -> list[str]:
    return sorted(op.attrs) if only is None else [only] if only in op.attrs else []


def attribute_text(op: Op, name: str, longest: int = _VALUE) -> str:
    """The value of an attribute, cut where it is longer; why it cannot be read in its place."""
    try:
        value = op.attrs[name]
    except FormatError as error:
        return text("screen.view.op.attribute_unreadable", reason=error.message)
    content = value if isinstance(value, str) else _call_text(value) or str(_without_bytes(value))
    if len(content) <= longest:
        return content
    return text("screen.view.op.attribute_cut", text=content[:longest], length=len(content))


def _call_text(value: Any) -> str:
    """What was recorded of a call as the code that made it; "" for other values, and for what no code is known of."""
    if not isinstance(value, RecordedOp):
        return ""
    forward = value.forward or value.call

    def tensor(slot: str, recorded: RecordedTensor) -> str:
        return slot.replace(".", "_")

    with suppress(NoCodeError):
        return call_code(forward, "", tensor)
    return forward.name


def _without_bytes(value: Any) -> Any:
    """The value with binary data, kernels above all, replaced by its size."""
    if isinstance(value, bytes):
        return _Size(text("screen.view.op.bytes", count=len(value)))
    if isinstance(value, dict):
        return {key: _without_bytes(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_bytes(item) for item in value]
    return value


class _Size(str):
    """A size, which is shown without quotes inside lists too."""

    def __repr__(self) -> str:
        return f"<{self}>"


# --- dumped tensors ---------------------------------------------------------------------------------------------------


def tensor_lines(report: OpReport, threshold: float) -> RenderableType:
    """The dumped tensors of both sides, what was wrong with them, and the files they lie in."""
    heading = shown(Message("screen.view.op.dump", title=safe(_title(report))))
    parts: list[RenderableType] = [Heading(heading)]
    if any(row.pair.slot for row in report.rows):
        parts.append(tensor_table(report.rows, threshold))
    notes = [(row.pair.slot, note) for row in report.rows for note in row_notes(row)]
    if report.not_dumped:
        notes.insert(0, (label("not_dumped"), report.not_dumped))
    parts.append(LabelledLines([(name, plain(shown_reason(note), "yellow")) for name, note in notes]))
    parts.append(LabelledLines(_files(report)))
    return Group(*parts)


def tensor_table(rows: Sequence[Row], threshold: float) -> NameTable:
    """Both sides of each tensor of an op, a line each, with the columns of a result that say so."""
    rows = [row for row in rows if row.pair.slot]
    figures = _figures(rows)
    table = figure_table()
    table.add_columns("screen.view.op.column", "slot", "side", "dtype", no_wrap=True)
    table.add_columns("screen.view.op.column", "shape")
    for name in figures:
        table.add_column(name, min_width=9, **NUMBERS)
    for at, row in enumerate(rows):
        npu, golden = ([sides[side][at] for sides in figures.values()] for side in (0, 1))
        table.add_row(plain(row.pair.slot, "bold"), label("npu"), *_stored_as(row.pair.npu), *npu)
        cosine = Text.assemble("" if row.is_scalar else "cos ", row_text(row, agrees(row, threshold)))
        table.add_row(cosine, label("benchmark"), *_stored_as(row.pair.golden), *golden)
    return table


def _stored_as(tensor: AnyTensor | None) -> list[Text]:
    if tensor is None:
        return [Text("-", style="dim")] * 2
    return [plain(tensor.dtype), plain(shape_text(tensor.shape))]


def _figures(rows: Sequence[Row]) -> dict[str, tuple[list[Text], list[Text]]]:
    """By heading the cells in the NPU's lines and in the benchmark's, where what is told of both sides stands.

    Figures of each tensor are always there, the others where one row has a value.
    """
    figures: dict[str, tuple[list[Text], list[Text]]] = {
        name: ([_no_figure(row.pair.npu) for row in rows], [_no_figure(row.pair.golden) for row in rows])
        for name in _FIRST_FIGURES
    }
    for column in IN_NI:
        values = [column.held(row) for row in rows]
        if all(value in (None, "", ()) for value in values):
            continue
        both = figures.setdefault(column.ni_heading, ([Text()] * len(rows), [Text()] * len(rows)))
        lines = both[column.part != "npu"]
        for at, value in enumerate(values):
            if value is not None:
                lines[at] = plain(column.shown(value))
    return figures


def _no_figure(tensor: AnyTensor | None) -> Text:
    return Text("-", style="dim" if tensor is None else "")


def row_notes(row: Row) -> Iterator[str]:
    if row.reason:
        yield render(row.reason)
    for side, summary in (("npu", row.npu), ("benchmark", row.golden)):
        note = "" if summary is None else non_finite_text(summary)
        if note:
            yield text("screen.view.op.side_note", side=label(side), note=note)


def _files(report: OpReport) -> list[Line]:
    run = report.run
    rows: list[Line] = [(label("graph"), whole_path(run.file.path))]  # why it was chosen, `graphs` says
    npu = dict.fromkeys(row.pair.npu.path for row in report.rows if row.pair.npu is not None)
    rows += labelled(label("npu"), map(whole_path, npu))
    golden: dict[str, list[str]] = {}
    for row in report.rows:
        if row.pair.golden is not None:
            golden.setdefault(row.pair.golden.path, []).append(row.pair.slot)
    rows += [(", ".join(slots), whole_path(path)) for path, slots in golden.items()]
    more = len(run.leaves) - 1
    if more > 0:
        rows.append(("", shown(Message("screen.view.op.not_shown", folders=more), "dim")))
    return rows


def drawing_lines(hood: Neighbourhood, gv: str, svg: str | None, run: str) -> RenderableType:
    """Return the path of a drawing and its extent."""
    drawing = Message(
        "screen.view.op.drawing", ops=len(hood.nodes), depth=hood.depth, op=safe(hood.op.name), run=safe(run)
    )  # fmt: skip
    rows = [(label("drawn"), shown(drawing))]
    rows += [("", whole_path(path)) for path in (svg, gv) if path is not None]
    return LabelledLines(rows)


# --- all of it --------------------------------------------------------------------------------------------------------


def op_lines(
    reports: Sequence[OpReport], threshold: float, everything: bool, attribute: str | None = None
) -> list[RenderableType]:
    """All that `ni` shows, `everything` with attributes and long lists; `attribute`: with this one."""
    parts: list[RenderableType] = []
    notes: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        if report.requested:
            passes = ", ".join(report.op.pass_names)
            notes.setdefault((report.requested, report.op.name, passes), []).append(run_name(report.run))
    for (requested, fused, passes), runs in notes.items():
        note = Message(
            "screen.view.op.now_part", runs=safe(_joined_runs(runs)), op=safe(requested), fused=safe(fused),
            passes=safe(passes),
        )  # fmt: skip
        parts.append(shown(note, "cyan"))
    parts.append(SideBySide(reports, everything))
    if everything or attribute is not None:
        parts += (attribute_lines(report, attribute) for report in reports)
    for report in reports:
        parts.append(tensor_lines(report, threshold))
        if report.judged is not None:
            parts.append(verdict_lines(_title(report), report.judged, report.elements))
        if report.source is not None:
            parts.append(source_lines(_title(report), report.source, report.elements))
    return parts


# --- JSON ---


def to_json(
    reports: Sequence[OpReport],
    threshold: float,
    everything: bool,
    attribute: str | None = None,
    drawings: Sequence[str] = (),
) -> str:
    """Return the screen of `ni` as one JSON document; all attributes with `everything`, or the one named."""
    ops = [_report_json(report, threshold, everything, attribute) for report in reports]
    return json_text({"ops": ops, "files": list(drawings)})


def _report_json(report: OpReport, threshold: float, everything: bool, attribute: str | None) -> dict[str, Any]:
    op, run = report.op, report.run
    attributes = _shown_attributes(op, attribute) if everything or attribute is not None else []
    longest = _VALUE if attribute is None else _LONGEST_VALUE
    code = implementation(op)
    return {
        "name": op.name,
        "type": op.type,
        "id": op.id,
        "stream": op.stream_id,
        "kernel": op.kernel_name or None,
        "kernel_lib": op.kernel_lib or None,
        "is_custom": None if code is None else code.is_custom,
        "pass": list(op.pass_names),
        "original_ops": None if op.original_names is None else list(op.original_names),
        "asked": report.requested or None,
        "module": op.module,
        "source_line": op.source,
        "graph": report.graph.name,
        "graph_file": run.file.path,
        "reason": run.reason or "",
        "debug": run.number,
        **_connections_json(report.connections, op),
        **({"attributes": {name: attribute_text(op, name, longest) for name in attributes}} if attributes else {}),
        "not_dumped": report.not_dumped or None,
        "verdict": None if report.judged is None else judged_json(report.judged),
        "source": None if report.source is None else asdict(report.source),
        "elements": [asdict(element) for element in report.elements],
        "tensors": [row_json(row, threshold) for row in report.rows],
    }


def _connections_json(links: Connections, op: Op) -> dict[str, Any]:
    return {
        "called_by": None if links.caller is None else links.caller.name,
        "subgraphs": list(op.subgraph_names),
        "inputs": [
            {
                "slot": source.slot,
                "producer": None if source.edge is None else source.edge.producer,
                "index": None if source.edge is None else source.edge.index,
                "sources": [_step_json(step, "index") for step in source.sources],
                "desc": None if source.desc is None else asdict(source.desc),
            }
            for source in links.inputs
        ],
        "outputs": [
            {
                "index": output.index,
                "readers": [_step_json(step, "slot") for step in output.readers],
                "desc": None if output.desc is None else asdict(output.desc),
            }
            for output in links.outputs
        ],
        "runs_after": [node.name for node in links.waits_for],
        "runs_before": [node.name for node in links.awaited_by],
    }


def _step_json(step: Step, place: str) -> dict[str, Any]:
    number = step.link.index if place == "index" else step.link.slot
    return {"op": step.end.name, place: number, "through": [node.name for node in step.through]}


def row_json(row: Row, threshold: float) -> dict[str, Any]:
    pair = row.pair
    return {
        "slot": pair.slot,
        "status": pair.status,
        "note": row.reason or "",
        "benchmark_tensor": pair.golden_tensor,
        "npu": _side_json(pair.npu, row.npu),
        "benchmark": _side_json(pair.golden, row.golden),
        "cosine": None if row.metrics is None else row.metrics.cosine,
        "agrees": agrees(row, threshold),
        # Figures of one side are in its summary.
        **{
            column.json or column.field.rpartition(".")[2]: column.held(row)
            for column in IN_NI
            if column.json or column.part not in ("npu", "golden")
        },
    }


def _side_json(tensor: AnyTensor | None, summary: Summary | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    figures = None if summary is None else asdict(summary)
    return {
        "path": tensor.path, "dtype": tensor.dtype, "layout": tensor.layout, "shape": list(tensor.shape),
        "summary": figures,
    }  # fmt: skip
