"""Comparison screens of `vc`, `vcs` and `ac`, as rich renderables and as JSON."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.compare.columns import SCHEMA, row_json
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.data.graph_choice import GraphChoice
from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.agreement import OpAgreement, agrees, is_only_noise, noise_distance
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.messages.catalogue import percent
from precision_tool.lib.model.comparison import NO_OPS, Status
from precision_tool.lib.model.elements import Detail, Element
from precision_tool.lib.model.finding import CheckResult, Finding, FindingKind, Grade
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.table import Row, joined
from precision_tool.lib.view.findings import check_json, check_title, finding_json, pair_json, render_finding
from precision_tool.lib.view.tables import Box, NameTable
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    element_json,
    json_text,
    label,
    leaf_words,
    marked_pass,
    plain,
    row_text,
    safe,
    shown,
    shown_reason,
    whole_path,
)
from precision_tool.lib.view.verdict_screen import verdict_json

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.comparing import OtherRun
    from precision_tool.lib.diagnose.passports import PassportPair
    from precision_tool.lib.diagnose.stored_verdict import Since
    from precision_tool.lib.diagnose.verdict_model import Suspect, Verdict


#: Statuses whose texts differ where two NPU runs or PyTorch dumps are compared.
_MISSING_ON_A_SIDE = (Status.NO_NPU_DUMP, Status.NO_BENCHMARK)
_INSERTED = Message("screen.view.compare.inserted")
_SHOWN_REJECTED = 3
#: Findings whose panel has a title of its own.
_FINDING_TITLES = (
    FindingKind.FIRST_FAULTY_OP, FindingKind.DIFFERENT_INPUT, FindingKind.ALL_AGREE, FindingKind.NOTHING_COMPARED,
    FindingKind.UNREADABLE,
)  # fmt: skip
#: Of the worst elements of a tensor, as many are shown; the files list more.
_SHOWN_ELEMENTS = 3
#: Columns of a panel's line that are no title: corners, lines and spaces on both sides.
_PANEL_EDGES = 6
_PROBLEMS = (Status.UNREADABLE, Status.SIZE_MISMATCH, Status.LAYOUT)
GRADE_STYLE = {Grade.INFO: "green", Grade.WARNING: "yellow", Grade.FAULT: "red"}


def source_lines(result: LeafResult) -> RenderableType:
    """Return the folders and the graph that a comparison used, with the reason for that graph."""
    rows = [
        (label("npu"), whole_path(result.leaf.path)),
        (label("other_run" if result.golden_is_dump else "benchmark"), whole_path(result.golden_root)),
    ]
    if result.graph is not None and not result.graph.file.framework:
        rejected = result.graph.rejected
        rows.append((label("graph"), whole_path(result.graph.file.path)))
        rows.append(("", _chosen(result.graph)))
        for path, why in rejected[:_SHOWN_REJECTED]:
            message = Message("screen.view.compare.rejected", graph=safe(posixpath.basename(path)), why=why)
            rows.append(("", shown(message, "dim")))
        if len(rejected) > _SHOWN_REJECTED:
            more = Message("screen.view.compare.rejected_more", more=len(rejected) - _SHOWN_REJECTED)
            rows.append(("", shown(more, "dim")))
    if result.other_graph is not None:
        rows.append((label("its_graph"), whole_path(result.other_graph.file.path)))
        rows.append(("", _chosen(result.other_graph)))
    if result.choice.h5:
        rows.append((label("matched"), shown(Message("screen.view.compare.by_order"), "dim")))
    elif result.graph is None and result.golden_is_dump:
        rows.append((label("matched"), shown(Message("screen.view.compare.by_names"), "dim")))
    rows += [(label("note"), plain(shown_reason(note), "yellow")) for note in result.notes]
    return LabelledLines(rows)


def _chosen(graph: GraphChoice) -> Text:
    return shown(Message("screen.view.compare.chosen", reason=graph.reason), "dim")


def read_source_lines(analysis: Analysis) -> RenderableType:
    """Return the sources of a result that was read from a file, as far as it names them."""
    rows: list[Line] = []
    if analysis.source is not None:
        rows.append((label("npu"), whole_path(analysis.source.npu)))
        side = "other_run" if analysis.is_two_runs else "benchmark"
        rows.append((label(side), whole_path(analysis.source.golden)))
        if analysis.source.graph and not _is_recorded(analysis):
            rows.append((label("graph"), whole_path(analysis.source.graph)))
    if analysis.part:
        rows.append((label("note"), shown(analysis.part, "yellow")))
    return LabelledLines(rows)


def _is_recorded(analysis: Analysis) -> bool:
    """Return whether the ops are calls that msprobe recorded."""
    if analysis.leaf is not None:
        return analysis.leaf.graph is not None and bool(analysis.leaf.graph.file.framework)
    graph = "" if analysis.source is None else analysis.source.graph
    return bool(graph) and MSPROBE.owns(posixpath.basename(graph))


def leaf_title(analysis: Analysis) -> str:
    """Return device, model and step of a result, as far as its path has them, or its file."""
    if analysis.leaf is None:
        return posixpath.basename(analysis.path)
    leaf = analysis.leaf.leaf
    return leaf_words(leaf, " ") or shown_path(leaf.path)


def summary_lines(analyses: Sequence[Analysis], verdicts: Sequence[Text | None]) -> RenderableType:
    """Return a line for each of several results: its verdict, or the findings of the comparison."""
    lines = []
    for analysis, verdict in zip(analyses, verdicts, strict=True):
        summary = verdict or plain("; ".join(render(finding.message) for finding in analysis.findings))
        if verdict is None:
            summary.stylize(GRADE_STYLE[max(finding.grade for finding in analysis.findings)])
        lines.append(Text.assemble((safe(leaf_title(analysis)), "bold"), ": ", summary))
    return Group(*lines)


def overview_lines(analysis: Analysis) -> RenderableType:
    """Counts: compared, below the threshold, and why the others were not compared, with the first bad file."""
    view = analysis.overview
    counts = Message(
        "screen.view.compare.counts", compared=view.compared, tensors=analysis.tensors, ops=analysis.dumped_ops,
        **_below(analysis),
    )  # fmt: skip
    rows = [(label("compared"), shown(counts, fields={"below": "red" if view.below else "green"}))]
    compared, differ = analysis.statistics
    if compared:
        statistics = Message("screen.view.compare.statistics", compared=compared, differ=differ)
        rows.append((label("statistics"), shown(statistics, "red" if differ else "green")))
    if any(row.noise is not None for row in analysis.rows):
        noisy = sum(is_only_noise(row, analysis.threshold) for row in analysis.rows)
        noise = Message("screen.view.compare.noise", noisy=noisy, threshold=analysis.threshold)
        rows.append((label("noise"), shown(noise, "cyan")))
    limits = [row for row in analysis.rows if row.overflow is not None]
    if limits:
        over = [row for row in limits if row.overflow]
        first = safe(over[0].tensor_index) if over else ""
        overflow = Message("screen.view.compare.limits", over=len(over), tensors=len(limits), first=first)
        rows.append((label("overflow"), shown(overflow, "red" if over else "green")))
    counted_rows = len(rows)
    for status, count in view.not_compared:
        is_problem = status in _PROBLEMS
        message = Message("screen.view.compare.status_count", status=_status_name(analysis, status), count=count)
        name = label("not_compared") if len(rows) == counted_rows else ""
        rows.append((name, shown(message, "yellow" if is_problem else "dim")))
        if is_problem:
            row = next(row for row in analysis.rows if row.cosine is None and row.status == status)
            where = safe(f"{row.op_name} {row.slot}".rstrip())
            example = Message("screen.view.reason.first", where=where, reason=shown_reason(row.reason))
            rows.append(("", shown(example, "yellow")))
    return LabelledLines(rows)


def _below(analysis: Analysis) -> dict[str, Any]:
    """Return the fields of a count of tensors that tell how many of them are below the threshold."""
    view = analysis.overview
    below = Message("screen.view.compare.below", below=view.below, threshold=analysis.threshold)
    return {"below": below, "ops_below": view.ops_below if view.below else None}


def _status_name(analysis: Analysis, status: str) -> Message:
    """Return a status in plain words, as the kind of comparison has them."""
    if status not in set(Status):
        return Message("screen.view.compare.status.unknown")
    if status in _MISSING_ON_A_SIDE and not analysis.has_graph:
        return Message(f"screen.view.compare.status.{Status(status).name.lower()}_pytorch")
    if status in _MISSING_ON_A_SIDE and analysis.is_two_runs:
        return Message(f"screen.view.compare.status.{Status(status).name.lower()}_two_runs")
    if status == Status.NO_NPU_DUMP and _is_recorded(analysis):
        return Message("screen.view.compare.status.unrecorded")
    return Message(f"screen.view.compare.status.{Status(status).name.lower()}")


def mapping_lines(analysis: Analysis) -> RenderableType:
    """Counts of a result that only tells which tensors belong together."""
    paired = sum(bool(row.slot) and row.status == Status.COMPARED for row in analysis.rows)
    pairs = Message(
        "screen.view.compare.paired", paired=paired, tensors=analysis.tensors, ops=analysis.dumped_ops
    )  # fmt: skip
    rows = [(label("paired"), shown(pairs))]
    for status, count in analysis.overview.not_compared:
        if status != Status.COMPARED:
            name = "" if len(rows) > 1 else label("not_paired")
            message = Message("screen.view.compare.status_count", status=_status_name(analysis, status), count=count)
            rows.append((name, shown(message, "dim")))
    return LabelledLines(rows)


def _slot_cosines(rows: Sequence[Row], threshold: float) -> Text:
    text = Text()
    for row in rows:
        if text:
            text.append("  ")
        text.append(f"[{row.slot.split(':')[-1]}] ")
        text.append(row_text(row, agrees(row, threshold)))
    return text or shown(Message("screen.view.none"), "dim")


class TitledPanel:
    """A panel whose title is never cut: what does not fit into its line stands in rows within, label and text each.

    `titles` are the titles to choose from, longest first, each with the rows that it makes necessary.
    """

    def __init__(
        self,
        titles: Sequence[tuple[Text, Sequence[Line]]],
        rows: Sequence[Line],
        style: str,
        body: RenderableType | None = None,
    ) -> None:
        self._titles = titles
        self._rows = rows
        self._style = style
        self._body = body

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _PANEL_EDGES
        fitting = (choice for choice in self._titles if choice[0].cell_len <= room)
        title, more = next(fitting, self._titles[-1])
        parts: list[RenderableType] = [LabelledLines([*more, *self._rows])] if more or self._rows else []
        parts += [self._body] if self._body is not None else []
        yield Box(Group(*parts), title=title, style=self._style)


def op_panel(
    op: OpAgreement,
    threshold: float,
    recorded: Op | None = None,
    *,
    is_recorded: bool = False,
    is_blamed: bool | None = None,
) -> RenderableType:
    """One op: `[index] name (type)`, Left (NPU), Right (benchmark), cosines of inputs and outputs, own errors of these.

    An own error, of an output that was recomputed, is how far it is off what the op's own inputs say. A call that is
    recorded has the same name on both sides; its module and its line, where `recorded` tells, stand there instead.
    Who is to blame is red: `is_blamed` where there is a verdict, else an op whose output disagrees and no input does.
    """
    is_same = is_recorded and op.npu_ops == op.golden_ops == (op.op_name,)
    rows: list[Line] = [
        *([] if is_same else [(_card("right"), _ops(op, 1))]),
        (_card("input"), _slot_cosines(op.inputs, threshold)),
        (_card("output"), _slot_cosines(op.outputs, threshold)),
    ]
    own = [row for row in op.outputs if row.own_error is not None]
    if own:
        errors = "  ".join(f"[{row.slot.split(':')[-1]}] {percent(row.own_error)}" for row in own)
        rows.append((_card("own"), plain(errors)))
    left: list[Line] = [(_card("left"), _ops(op, 0))]
    if is_same:
        places = () if recorded is None else (("module", recorded.module), ("source", recorded.source))
        left = [(_card(name), plain(place)) for name, place in places if place]
    passes: list[Line] = []
    if op.pass_names:
        passes.append((_card("pass"), plain(", ".join(map(marked_pass, op.pass_names)))))
    noise = [_noise(row) for row in (*op.inputs, *op.outputs) if row.noise is not None]
    if noise:
        rows.append((_card("noise"), plain(", ".join(noise))))
    over = [row.slot for row in op.rows if row.overflow]
    if over:
        rows.append((_card("overflow"), plain(", ".join(over), "bold red")))
    rows += [(f"{name}:", plain(values)) for name, values in _custom_values(op.rows).items()]
    notes = [row for row in (*op.inputs, *op.outputs) if row.mismatches]
    rows += [("", shown(Message("error.place", where=row.slot, reason=row.reason), "yellow")) for row in notes]
    is_red = op.is_suspect if is_blamed is None else is_blamed
    style = "red" if is_red else "yellow" if op.is_below else "green"
    index, name = Text(f"[{op.index}]"), Text.assemble(f"[{op.index}] ", (safe(op.op_name), "bold"))
    kind: list[Line] = [(_card("type"), plain(op.op_type))] if op.op_type else []
    whole = Text.assemble(name, f" ({safe(op.op_type)})" if op.op_type else "")
    # A name that is too long for the title is said once.
    named = left
    if op.npu_ops != (op.op_name,):
        named = [(_card("name"), plain(op.op_name, "bold")), *left]
    titles = [(whole, [*passes, *left]), (name, [*kind, *passes, *left]), (index, [*kind, *passes, *named])]
    return TitledPanel(titles, rows, style)


def _card(name: str) -> str:
    return text(f"screen.view.compare.card.{name}")


def _listed(names: Sequence[str], unlisted: int = 0) -> Text:
    """Names that wrap between them; of very many the first."""
    return plain(", ".join(joined(names, unlisted).split(",")))


def _ops(op: OpAgreement, side: int) -> Text:
    """The ops of the group on the NPU (0) or the benchmark side (1)."""
    names = (op.npu_ops, op.golden_ops)[side]
    if names == NO_OPS:
        # Ops on a card were compared: one without an original was inserted, and traced through to its producer.
        return shown(_INSERTED if side == 1 else Message("screen.view.compare.no_op"), "dim")
    return _listed(names, op.rows[0].unlisted[side])


def _noise(row: Row) -> str:
    """Return an error as a multiple of the tensor's own noise."""
    noise = Message("screen.view.compare.noise_none")
    if row.cosine is None:
        noise = Message("screen.view.compare.noise_not_compared")
    elif row.noise:
        times = noise_distance(row) / row.noise
        noise = Message("screen.view.compare.noise_far")
        if isfinite(times):
            noise = Message("screen.view.compare.noise_times", times=times)
    return text("screen.view.compare.noise_slot", slot=row.slot, noise=noise)


def _custom_values(rows: Sequence[Row]) -> dict[str, str]:
    """The values of the user's own metrics, by metric, a line each."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.custom.items():
            if value is not None:
                number = f"{value:.6g}" if isinstance(value, float) else str(value)
                texts.setdefault(name, []).append(f"{row.slot} {number}")
    return {name: ", ".join(values) for name, values in texts.items()}


def other_run_lines(number: int, analysis: Analysis, *, is_fused: bool) -> RenderableType:
    """Counts of the run beside the one under test, and its first op below the threshold."""
    view = analysis.overview
    counts = Message(
        "screen.view.compare.counts_other", fused=is_fused, compared=view.compared, tensors=analysis.tensors,
        **_below(analysis),
    )  # fmt: skip
    rows = [(f"debug_{number}", shown(counts, fields={"below": "red" if view.below else "green"}))]
    first = next((op for op in analysis.ops if op.is_below), None)
    if first is not None:
        kind = f" ({first.op_type})" if first.op_type else ""
        rows.append((label("first"), plain(f"[{first.index}] {first.op_name}{kind}")))
        rows.append((label("output"), _slot_cosines(first.outputs, analysis.threshold)))
    return LabelledLines(rows)


def below_list(analysis: Analysis, limit: int, verdict: Verdict | None = None) -> RenderableType:
    """The first `limit` ops (0: all) with a tensor below the threshold, and how many more there are.

    They stand in execution order; with a verdict its culprit comes first, whatever its cosine, then what runs after it.
    An op whose outputs agree, so that only an input of it is below, takes a line.
    """
    below = [op for op in analysis.ops if op.is_below]
    if not analysis.overview.compared:
        return Group(*(plain(render(finding.message), "yellow") for finding in analysis.findings))
    suspects = _suspects_of(analysis, verdict)
    blamed = {name for suspect in suspects for name in (suspect.culprit, *suspect.also)}
    # A variable that nothing was compared of has no card.
    known = (op for op in analysis.ops if op.inputs or op.outputs)
    first = next((op for op in known if suspects and op.op_name == suspects[0].culprit), None)
    listed = below
    if first is not None:
        after = [op for op in below if op.index > first.index]
        listed = [first, *after, *(op for op in below if op is not first and op.index <= first.index)]
    graph = analysis.leaf.graph if analysis.leaf is not None else None
    is_recorded = _is_recorded(analysis)
    recorded = {op.name: op for op in graph.file.ops} if graph is not None and graph.file.framework else {}
    chosen = listed[: limit or None]
    parts: list[RenderableType] = []
    for op in chosen:
        is_blamed = None if verdict is None else op.op_name in blamed
        if op is not first and not is_blamed and op.outputs_agree is True:
            parts.append(_op_line(op, analysis.threshold))
            continue
        panel = op_panel(
            op, analysis.threshold, recorded.get(op.op_name), is_recorded=is_recorded, is_blamed=is_blamed
        )  # fmt: skip
        parts.append(panel)
    if not below:
        parts.append(shown(Message("screen.view.compare.none_below", threshold=analysis.threshold), "green"))
    elif len(chosen) < len(listed):
        count = Message(
            "screen.view.compare.some_below", limit=sum(op.is_below for op in chosen), below=len(below),
            threshold=analysis.threshold, culprit=first is not None,
        )  # fmt: skip
        parts.append(shown(count, "dim"))
    return Group(*parts)


def _suspects_of(analysis: Analysis, verdict: Verdict | None) -> Sequence[Suspect]:
    """Return whom a verdict blames, the culprit first; nobody where it is on another run than the rows."""
    if verdict is None or verdict.culprit is None:
        return ()
    npu = analysis.source.npu if analysis.source is not None else ""
    return verdict.suspects if not verdict.run or f"debug_{verdict.run}" in npu.split("/") else ()


def _op_line(op: OpAgreement, threshold: float) -> RenderableType:
    """An op whose outputs agree, in a line: which it is, and the cosines of its wrong inputs and of its outputs."""
    kind = f" ({safe(op.op_type)})" if op.op_type else ""
    text = Text.assemble((safe(op.op_name), "bold"), kind)
    wrong = [row for row in op.inputs if agrees(row, threshold) is False]
    for name, rows in (("input", wrong), ("output", op.outputs)):
        text.append(f"  {_card(name)} ").append_text(_slot_cosines(rows, threshold))
    return LabelledLines([(f"[{op.index}]", text)])


def detail_panel(detail: Detail) -> RenderableType:
    """The worst few elements of one tensor."""
    pair = detail.comparison.pair
    if detail.equal == detail.count:
        equal = Message("screen.view.compare.all_equal", count=detail.count, single=detail.count == 1)
        body: RenderableType = shown(equal, "green")
    else:
        table = NameTable(box=None, padding=(0, 2, 0, 0), show_edge=False)
        table.add_columns("screen.view.compare.column", "worst", "index")
        table.add_columns("screen.view.compare.column", "npu", "benchmark", "error", "relative", justify="right")
        for name, elements in (("absolute", detail.worst_absolute), ("relative", detail.worst_relative)):
            for number, element in enumerate(elements[:_SHOWN_ELEMENTS]):
                kind = "" if number else text(f"screen.view.compare.column.{name}")
                table.add_row(kind, *_element_cells(element))
        differ = Message("screen.view.compare.differ", differ=detail.count - detail.equal, count=detail.count)
        body = Group(shown(differ, "bold"), table)
    titles: list[tuple[Text, list[Line]]] = [
        (plain(f"{pair.op_name} {pair.slot}", "bold"), []),
        (plain(pair.slot, "bold"), [(_card("name"), plain(pair.op_name, "bold"))]),
    ]
    return TitledPanel(titles, (), "cyan", body)


def _element_cells(element: Element) -> list[str]:
    relative = "-" if isnan(element.relative) else f"{element.relative:.3g}"
    return [str(list(element.index)), f"{element.npu:.6g}", f"{element.golden:.6g}", f"{element.error:.3g}", relative]


def finding_panel(finding: Finding) -> RenderableType:
    """One finding with the facts behind it."""
    rows: list[Line] = []
    if finding.op_type:
        rows.append((label("type"), plain(finding.op_type)))
    if finding.pass_names:
        rows.append((label("pass"), plain(", ".join(map(marked_pass, finding.pass_names)))))
    originals = joined(finding.original_ops)
    if finding.original_ops == NO_OPS:
        rows.append((label("original_ops"), shown(_INSERTED, "dim")))
    elif originals and originals != finding.op_name:
        # The ops of PyTorch dumps, which begin with a slash, have no originals but a counterpart.
        name = "benchmark" if originals.startswith("/") else "original_ops"
        rows.append((label(name), _listed(finding.original_ops)))
    rendered = render_finding(finding)
    rows += [(name, plain(shown_reason(value))) for name, value in rendered.facts]
    title = finding.kind.name.lower() if finding.kind in _FINDING_TITLES else "finding"
    if finding.kind == FindingKind.NOTHING_COMPARED and finding.op_name:
        title = "statistics"
    elif any(fact.value == Message("finding.fact.without_graph") for fact in finding.facts):
        title = "without_graph"
    style = GRADE_STYLE[finding.grade]
    return Box(
        Group(plain(rendered.message, "bold"), LabelledLines(rows)) if rows else plain(rendered.message, "bold"),
        title=shown(Message(f"screen.view.compare.finding.{title}")),
        style=style,
    )


# --- JSON -----------------------------------------------------------------------------------------------------------


def _detail_json(detail: Detail) -> dict[str, Any]:
    return {
        "tensor": detail.comparison.pair.tensor_index,
        "shape": detail.shape,
        "count": detail.count,
        "equal": detail.equal,
        "worst_absolute": [element_json(element) for element in detail.worst_absolute],
        "worst_relative": [element_json(element) for element in detail.worst_relative],
    }


def _result_json(analysis: Analysis) -> dict[str, Any]:
    leaf, source = analysis.leaf, analysis.source
    return {
        "file": analysis.path or None,
        "npu": source.npu if source else None,
        "benchmark": source.golden if source else None,
        "graph": source.graph or None if source else None,
        "notes": list(leaf.notes) if leaf else [analysis.part] if analysis.part else [],
        "threshold": analysis.threshold,
        "overview": {**asdict(analysis.overview), "tensors": analysis.tensors},
        "findings": [finding_json(finding) for finding in analysis.findings],
        "details": [_detail_json(detail) for detail in (leaf.details if leaf else ())],
        "rows": [row_json(row, analysis.choice, analysis.path) for row in analysis.rows],
    }


def to_json(
    analyses: Sequence[Analysis],
    checks: Sequence[CheckResult] | None = None,
    verdicts: Sequence[Verdict | None] = (),
    held: Since | None = None,
    passports: PassportPair | None = None,
    other: OtherRun | None = None,
) -> str:
    """All results as one JSON document, of one schema whether compared now or read from a file.

    `checks`, `passports` and `verdicts`, one a result, are `ac`'s; a verdict without a result stands at the top, and so
    does what has changed since an earlier one (`held`).
    """
    documents: list[dict[str, Any]] = []
    for analysis, verdict in zip_longest(analyses, verdicts[: len(analyses)]):
        documents.append(_result_json(analysis))
        if verdict is not None:
            documents[-1]["verdict"] = verdict_json(verdict)
    more: dict[str, Any] = {} if checks is None else {"checks": [check_json(check) for check in checks]}
    if checks is not None:
        more["passports"] = None if passports is None else pair_json(passports)
    separate = next((verdict for verdict in verdicts[len(analyses) :] if verdict is not None), None)
    if separate is not None:
        more["verdict"] = verdict_json(separate)
    if other is not None:
        more["other_run"] = {
            "debug": other.number,
            "is_fused": other.is_fused,
            "results": [_result_json(analysis) for analysis in other.analyses],
        }
    if held is not None:
        more["since"] = held.to_dict()
    return json_text({"schema": SCHEMA, "results": documents, **more})


# --- checks of `ac` ---


def check_line(result: CheckResult) -> RenderableType:
    """Return the finding as one line, or why the check was skipped."""
    title, style = check_title(result.name), "dim"
    if result.finding is None:
        message = Message("screen.view.compare.title", head=title, text=_skipped(result))
        return shown(message, "dim")
    if result.finding.grade > Grade.INFO:
        style = GRADE_STYLE[result.finding.grade]
    message = Message("screen.view.compare.title", head=title, text=result.finding.message)
    return shown(message, style)


def check_panel(result: CheckResult) -> RenderableType:
    """Return the finding, what was looked at and the facts; or why the check was skipped."""
    title = Text(check_title(result.name))
    if result.finding is None:
        return Box(plain(_skipped(result), "dim"), title=title, style="dim")
    finding = render_finding(result.finding)
    rows: list[Line] = []
    if result.looked_at is not None:
        rows.append((text("check.looked_at"), plain(render(result.looked_at), "dim")))
    last = ""
    for name, value in finding.facts:
        rows.append(("" if name == last else name, plain(shown_reason(value))))
        last = name
    body = Group(plain(finding.message, "bold"), LabelledLines(rows))
    return Box(body, title=title, style=GRADE_STYLE[finding.grade])


def _skipped(result: CheckResult) -> str:
    reason = "" if result.skipped is None else shown_reason(render(result.skipped))
    return text("check.skipped", reason=reason)
