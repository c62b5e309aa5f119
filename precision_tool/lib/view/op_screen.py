"""An op that was judged by itself: its own error, or how what nothing computes stands to the benchmark; elements."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from precision_tool.lib.compare.columns import IN_NI
from precision_tool.lib.data.graph_catalog import RunGraph, implementation
from precision_tool.lib.data.neighbourhood import CONTROL, Connections, Input, Neighbourhood, Node, Output, Step
from precision_tool.lib.diagnose.agreement import agrees
from precision_tool.lib.errors import FormatError, UsageError
from precision_tool.lib.messages import Message, text
from precision_tool.lib.model.comparison import Summary
from precision_tool.lib.model.graph import Graph, Op, TensorDesc
from precision_tool.lib.model.op_verdict import Element, OpVerdict, Source
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import AnyTensor
from precision_tool.lib.model.wording import counted, shape_text
from precision_tool.lib.view.tables import Heading, NameTable
from precision_tool.lib.view.tensors_screen import non_finite_text
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    json_text,
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
    """Whether what nothing computes is the same on both sides."""
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
    """Whether the op computes right by itself, and what of its error is not its own."""
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
    if judged.fed is not None:
        rows.append(_row("inherited", Message("verdict.op.inherited", error=judged.fed)))
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
    table = NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(text("verdict.op.elements.output", slot=slot), no_wrap=True)
    table.add_column(text("verdict.op.elements.place"), no_wrap=True)
    columns = ["npu", "golden", "recomputed"]
    if all(one.recomputed is None for one in elements):
        columns.pop()
    for name in columns:
        table.add_column(text(f"verdict.op.elements.{name}"), justify="right", no_wrap=True)
    before = ""
    for one in elements:
        label = text("verdict.op.elements.worst" if one.is_worst else "verdict.op.elements.first")
        table.add_row(
            "" if label == before else label, plain(shape_text(one.place)),
            *(Text("-", style="dim") if value is None else plain(_element(value))
              for value in (one.npu, one.benchmark, one.recomputed)[: len(columns)]),
        )  # fmt: skip
        before = label
    return table


def _element(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


# --- What `ni` shows of an op: what the graph says of it, its neighbours, its dumped tensors ---


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

    `asked` is the op of the training script that was asked for, where `op` does its work under another name.
    """

    run: RunGraph
    graph: Graph
    op: Op
    connections: Connections
    rows: tuple[Row, ...]
    not_dumped: str = ""
    asked: str = ""
    #: What recomputing said of it; None of an op that computes nothing, or was not dumped.
    judged: OpVerdict | None = None
    #: Of data, variables and random numbers how they stand to the benchmark's.
    source: Source | None = None
    #: Of the output that is farthest off.
    elements: Sequence[Element] = ()


# --- what the graph says ----------------------------------------------------------------------------------------------


def run_name(run: RunGraph) -> str:
    """Which NPU run a graph belongs to, or the graph file where it belongs to none."""
    return posixpath.basename(run.file.path) if run.number is None else f"debug_{run.number}"


def _title(report: OpReport) -> str:
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
            text = "".join(part.text for fact in facts.values() for part in console.render(fact, endless))
            alike.setdefault(text, (facts, []))[1].append(report)
        labels = [facts for facts, _ in alike.values()]
        titles = [_title_of(reports) for _, reports in alike.values()]
        width = max((len(label) for facts in labels for label in facts), default=0) + 2
        needed = max(Measurement.get(console, endless, fact).minimum for facts in labels for fact in facts.values())
        beside = max(1, (options.max_width - width + 2) // max(_COLUMN, needed + 2))
        for start in range(0, len(labels), beside):
            shown = labels[start : start + beside]
            table = NameTable.grid(padding=(0, 2, 0, 0))
            table.add_column(style="bold", no_wrap=True)
            for _ in shown:
                table.add_column()
            if len(shown) == 1:
                yield Heading(plain(titles[start]))
            else:
                table.add_row("", *(plain(title, "bold") for title in titles[start : start + beside]))
            for label in dict.fromkeys(label for facts in shown for label in facts):
                table.add_row(label, *(facts.get(label, Text("-", style="dim")) for facts in shown))
            yield table


def _title_of(reports: Sequence[OpReport]) -> str:
    """The runs that an op is the same in, and its graph."""
    graphs = dict.fromkeys(report.graph.name for report in reports)
    if len(graphs) > 1:
        return ", ".join(map(_title, reports))
    return f"{' and '.join(dict.fromkeys(run_name(report.run) for report in reports))}  {next(iter(graphs))}"


def _facts(report: OpReport, everything: bool) -> Iterator[tuple[str, RenderableType]]:
    op, links = report.op, report.connections
    yield "name", plain(op.name, "bold")
    yield "type", plain(op.type)
    yield "id", plain(f"{op.id}" + ("" if op.stream_id is None else f", stream {op.stream_id}"))
    if op.kernel_name:
        yield "kernel", plain(op.kernel_name)
    if op.kernel_lib:
        yield "kernel lib", plain(op.kernel_lib)
    yield "kernel is", _whose_kernel(op)
    if op.pass_names:
        yield "PassName", plain(", ".join(map(marked_pass, op.pass_names)))
    yield "OriginOp", _originals(op)
    if links.caller is not None and links.caller.op is not None:
        yield "called by", plain(f"{links.caller.name} ({links.caller.op.type}) in {links.caller.graph}")
    if op.subgraph_names:
        yield "subgraphs", plain(", ".join(op.subgraph_names))
    if links.inputs:
        yield "inputs", _lines(line for one in links.inputs for line in _input(one))
    if links.waits_for:
        yield "runs after", _lines(_limited([("", plain(node.name)) for node in links.waits_for], everything))
    if links.outputs:
        yield "outputs", _lines(line for one in links.outputs for line in _output(one, everything))
    if links.awaited_by:
        yield "runs before", _lines(_limited([("", plain(node.name)) for node in links.awaited_by], everything))


def _whose_kernel(op: Op) -> Text:
    """Whether the op is a built-in or a custom one: of those the user's own code is to be looked at."""
    found = implementation(op)
    if found is None:
        return plain("not told by the graph", "dim")
    whose = "custom: code of your own, or a vendor's package" if found.is_custom else "built-in"
    return Text.assemble((whose, "yellow" if found.is_custom else ""), safe(f" ({found.why})"))


#: A line of a list with the little word before it, which stays clear when the line is wrapped.
_Line = tuple[str, Text]


def _lines(lines: Iterable[_Line]) -> Table:
    table = NameTable.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=4)
    table.add_column()
    for label, line in lines:
        table.add_row(Text(label, style="" if label.startswith("[") else "dim"), line)
    return table


def _originals(op: Op) -> Text:
    if op.original_names is None:
        return plain("not told", "dim")
    if not any(op.original_names):
        return plain("none: the graph compiler put it in" if not op.original_names else "itself", "dim")
    return plain(", ".join(op.original_names))


def _input(one: Input) -> Iterator[_Line]:
    if one.edge is None:
        yield f"[{one.slot}]", plain("not connected", "dim")
    else:
        yield f"[{one.slot}]", plain(f"{one.edge.producer}:{one.edge.index}")
    if one.desc is not None and (one.edge is not None or one.desc.dtype):
        yield "", plain(_stored(one.desc))
        yield from _origin(one.desc)
    for step in one.sources:
        if step.end.op is None:
            yield "from", plain(f"{step.end.name}, which is not in the graph", "yellow")
        elif step.through:
            yield "from", plain(f"{step.end.name}:{step.link.index}{_type(step.end)}{_through(step)}", "dim")


def _output(one: Output, everything: bool) -> Iterator[_Line]:
    desc = one.desc
    yield f"[{one.index}]", plain("not described" if desc is None else _stored(desc))
    if desc is not None:
        yield from _origin(desc)
    if desc is not None and desc.dump_origin_name:
        index = one.index if desc.dump_origin_index is None else desc.dump_origin_index
        layout = f" {desc.dump_origin_layout}" if desc.dump_origin_layout else ""
        yield "is", plain(f"{desc.dump_origin_name}:{index}{layout} of the training script")
    readers = [
        ("to", plain(f"{step.end.name}{_slot(step)}{_type(step.end)}{_through(step)}", "dim")) for step in one.readers
    ]
    yield from _limited(readers or [("to", plain("nothing", "dim"))], everything)


def _limited(lines: list[_Line], everything: bool) -> list[_Line]:
    more = 0 if everything else len(lines) - _LISTED
    return lines if more <= 0 else [*lines[:_LISTED], ("", plain(f"and {more} more (-a lists them)", "dim"))]


def _slot(step: Step) -> str:
    return "" if step.link.slot == CONTROL else f" input {step.link.slot}"


def _type(node: Node) -> str:
    return "" if node.op is None else f" ({node.op.type})"


def _through(step: Step) -> str:
    return f" through {', '.join(node.name for node in step.through)}" if step.through else ""


def _stored(desc: TensorDesc) -> str:
    return " ".join(filter(None, (desc.dtype, desc.layout, shape_text(desc.shape))))


def _origin(desc: TensorDesc) -> Iterator[_Line]:
    """Layout and shape in the training script, where they are others."""
    layout, shape = desc.origin_layout, desc.origin_shape
    if (layout not in (None, desc.layout)) or (shape not in (None, desc.shape)):
        known = filter(None, (layout, None if shape is None else shape_text(shape)))
        yield "", plain(f"originally {' '.join(known)}")


# --- attributes -------------------------------------------------------------------------------------------------------


def known_attribute(reports: Sequence[OpReport], asked: str) -> str:
    """The attribute that was asked for, as the op calls it; UsageError with close names where it has none."""
    known = sorted({name for report in reports for name in report.op.attrs})
    fitting = [name for name in known if name == asked] or [n for n in known if n.lower() == asked.lower()]
    if fitting:
        return fitting[0]
    parts = [name for name in known if asked.lower() in name.lower()][:_LISTED]
    close = parts or difflib.get_close_matches(asked, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else "`ni NAME -a` lists those it has"
    raise UsageError(f"{reports[0].op.name} has no attribute {asked}", hint)


def attribute_lines(report: OpReport, only: str | None = None) -> RenderableType:
    """Every attribute of the op; long values are cut, of bytes only the number is told. Of `only` one all of it."""
    table = NameTable.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name in _shown_attributes(report.op, only):
        table.add_row(plain(name), plain(attribute_text(report.op, name, _VALUE if only is None else _LONGEST_VALUE)))
    title = Heading(plain(f"attributes of {report.op.name}, {_title(report)}"))
    return Group(title, table if table.rows else Text("none", style="dim"))


def _shown_attributes(op: Op, only: str | None) -> list[str]:
    return sorted(op.attrs) if only is None else [only] if only in op.attrs else []


def attribute_text(op: Op, name: str, longest: int = _VALUE) -> str:
    """The value of an attribute, cut where it is longer; why it cannot be read in its place."""
    try:
        value = op.attrs[name]
    except FormatError as error:
        return f"cannot be read: {error.message}"
    text = value if isinstance(value, str) else str(_without_bytes(value))
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _without_bytes(value: Any) -> Any:
    """The value with binary data, kernels above all, replaced by its size."""
    if isinstance(value, bytes):
        return _Size(counted(len(value), "byte"))
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
    parts: list[RenderableType] = [Heading(plain(f"dump analysis, {_title(report)}"))]
    if any(row.pair.slot for row in report.rows):
        parts.append(tensor_table(report.rows, threshold))
    notes = [(row.pair.slot, note) for row in report.rows for note in row_notes(row)]
    if report.not_dumped:
        notes.insert(0, ("not dumped", report.not_dumped))
    parts.append(LabelledLines([(label, plain(shown_reason(note), "yellow")) for label, note in notes]))
    parts.append(LabelledLines(_files(report)))
    return Group(*parts)


def tensor_table(rows: Sequence[Row], threshold: float) -> NameTable:
    """Both sides of each tensor of an op, a line each, with the columns of a result that say so."""
    rows = [row for row in rows if row.pair.slot]
    figures = _figures(rows)
    table = NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("slot", no_wrap=True)
    table.add_column("side", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    table.add_column("shape")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True, min_width=9)
    for at, row in enumerate(rows):
        npu, golden = ([sides[side][at] for sides in figures.values()] for side in (0, 1))
        table.add_row(plain(row.pair.slot, "bold"), "NPU", *_stored_as(row.pair.npu), *npu)
        shown = row_text(row, agrees(row, threshold))
        table.add_row(
            Text.assemble("" if row.is_scalar else "cos ", shown), "benchmark", *_stored_as(row.pair.golden), *golden
        )
    return table


def _stored_as(tensor: AnyTensor | None) -> list[Text]:
    if tensor is None:
        return [Text("-", style="dim")] * 2
    return [plain(tensor.dtype), plain(shape_text(tensor.shape))]


def _figures(rows: Sequence[Row]) -> dict[str, tuple[list[Text], list[Text]]]:
    """By heading the cells in the NPU's lines and in the benchmark's, where what is told of both sides stands.

    Figures of each tensor are always there, the others where one row has a value.
    """
    found: dict[str, tuple[list[Text], list[Text]]] = {
        name: ([_no_figure(row.pair.npu) for row in rows], [_no_figure(row.pair.golden) for row in rows])
        for name in _FIRST_FIGURES
    }
    for column in IN_NI:
        values = [column.held(row) for row in rows]
        if all(value in (None, "", ()) for value in values):
            continue
        both = found.setdefault(column.ni_heading, ([Text()] * len(rows), [Text()] * len(rows)))
        lines = both[column.part != "npu"]
        for at, value in enumerate(values):
            if value is not None:
                lines[at] = plain(column.shown(value))
    return found


def _no_figure(tensor: AnyTensor | None) -> Text:
    return Text("-", style="dim" if tensor is None else "")


def row_notes(row: Row) -> Iterator[str]:
    """What the user should know of a tensor."""
    if row.reason:
        yield row.reason
    for side, summary in (("NPU", row.npu), ("benchmark", row.golden)):
        if summary is not None:
            text = non_finite_text(summary)
            if text:
                yield f"{side}: {text}"


def _files(report: OpReport) -> list[tuple[str, Text]]:
    run = report.run
    rows = [("graph", whole_path(run.file.path))]  # why it was chosen, `graphs` says
    npu = dict.fromkeys(row.pair.npu.path for row in report.rows if row.pair.npu is not None)
    rows += [("" if number else "NPU", whole_path(path)) for number, path in enumerate(npu)]
    golden: dict[str, list[str]] = {}
    for row in report.rows:
        if row.pair.golden is not None:
            golden.setdefault(row.pair.golden.path, []).append(row.pair.slot)
    rows += [(", ".join(slots), whole_path(path)) for path, slots in golden.items()]
    more = len(run.leaves) - 1
    if more > 0:
        others = counted(more, "more dump folder")
        rows.append(("", plain(f"not shown: {others} of this graph (devices, steps)", "dim")))
    return rows


def drawing_lines(hood: Neighbourhood, gv: str, svg: str | None, run: str) -> RenderableType:
    """Where a drawing is, and of how much."""
    rows = [
        (
            "drawn",
            plain(
                f"{counted(len(hood.nodes), 'op')} in up to {counted(hood.depth, 'step')} around {hood.op.name}, {run}"
            ),
        )
    ]
    rows += [("", whole_path(path)) for path in (svg, gv) if path is not None]
    return LabelledLines(rows)


# --- all of it --------------------------------------------------------------------------------------------------------


def op_lines(
    reports: Sequence[OpReport], threshold: float, everything: bool, attribute: str | None = None
) -> list[RenderableType]:
    """All that `ni` shows, `everything` with attributes and long lists; `attribute`: with this one."""
    parts: list[RenderableType] = []
    notes: dict[str, list[str]] = {}
    for report in reports:
        if report.asked:
            fusion = f" by {', '.join(report.op.pass_names)}" if report.op.pass_names else ""
            notes.setdefault(f"{report.asked} is now part of {report.op.name}{fusion}", []).append(run_name(report.run))
    parts += (plain(f"{' and '.join(runs)}: {note}", "cyan") for note, runs in notes.items())
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


# --- What `ni` says of an op, as JSON ---


def to_json(
    reports: Sequence[OpReport],
    threshold: float,
    everything: bool,
    attribute: str | None = None,
    drawings: Sequence[str] = (),
) -> str:
    """The same as one JSON document; attributes with `everything`, or that one."""
    ops = [_report_json(report, threshold, everything, attribute) for report in reports]
    return json_text({"ops": ops, "files": list(drawings)})


def _report_json(report: OpReport, threshold: float, everything: bool, attribute: str | None) -> dict[str, Any]:
    op, links, run = report.op, report.connections, report.run
    shown = _shown_attributes(op, attribute) if everything or attribute is not None else []
    longest = _VALUE if attribute is None else _LONGEST_VALUE
    code = implementation(op)
    caller = links.caller
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
        "asked": report.asked or None,
        "graph": report.graph.name,
        "graph_file": run.file.path,
        "reason": run.reason,
        "debug": run.number,
        "called_by": None if caller is None else caller.name,
        "subgraphs": list(op.subgraph_names),
        "inputs": [
            {
                "slot": one.slot,
                "producer": None if one.edge is None else one.edge.producer,
                "index": None if one.edge is None else one.edge.index,
                "sources": [_step_json(step, "index") for step in one.sources],
                **_desc_json(one.desc),
            }
            for one in links.inputs
        ],
        "outputs": [
            {
                "index": one.index,
                "readers": [_step_json(step, "slot") for step in one.readers],
                **_desc_json(one.desc),
            }
            for one in links.outputs
        ],
        "runs_after": [node.name for node in links.waits_for],
        "runs_before": [node.name for node in links.awaited_by],
        **({"attributes": {name: attribute_text(op, name, longest) for name in shown}} if shown else {}),
        "not_dumped": report.not_dumped or None,
        "verdict": None if report.judged is None else judged_json(report.judged),
        "source": None if report.source is None else asdict(report.source),
        "elements": [asdict(one) for one in report.elements],
        "tensors": [row_json(row, threshold) for row in report.rows],
    }


def _step_json(step: Step, place: str) -> dict[str, Any]:
    number = step.link.index if place == "index" else step.link.slot
    return {"op": step.end.name, place: number, "through": [node.name for node in step.through]}


def _desc_json(desc: TensorDesc | None) -> dict[str, Any]:
    return {"desc": None if desc is None else asdict(desc)}


def row_json(row: Row, threshold: float) -> dict[str, Any]:
    """A tensor of an op, with both sides' figures."""
    pair = row.pair
    return {
        "slot": pair.slot,
        "status": pair.status,
        "note": row.reason,
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
