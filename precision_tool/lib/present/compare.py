"""What `vc`, `vcs` and `ac` show of a comparison, as rich renderables and as JSON."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.checks.agreement import OpAgreement, agrees, is_only_noise, noise_distance
from precision_tool.lib.checks.analysis import Analysis
from precision_tool.lib.compare.folders import LeafResult
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.comparison import NO_OPS, Status
from precision_tool.lib.model.elements import Detail, Element
from precision_tool.lib.model.finding import CheckResult, Finding, FindingKind, Grade
from precision_tool.lib.model.table import Row, joined
from precision_tool.lib.present.findings import check_json, finding_json, render_finding
from precision_tool.lib.present.passports import pair_json
from precision_tool.lib.present.text import (
    LabelledLines,
    counted,
    json_text,
    marked_pass,
    percent,
    plain,
    row_text,
    safe,
    shown_reason,
    whole_path,
)
from precision_tool.lib.present.verdict_json import verdict_json
from precision_tool.lib.present.whole import Box, NameTable
from precision_tool.lib.results.result_json import SCHEMA, row_json
from precision_tool.lib.workspace import shown_path

if TYPE_CHECKING:
    from precision_tool.lib.checks.comparing import OtherRun
    from precision_tool.lib.checks.passports import PassportPair
    from precision_tool.lib.verdict.model import Verdict
    from precision_tool.lib.verdict.since import Since

#: What the `*` of a result file means.
_NO_OPS_WORDS = "* (no op of this side stands for it)"
#: The statuses in the user's words, for the count of tensors that were not compared.
STATUS_WORDS = {
    Status.COMPARED: "tensors without elements",
    Status.NO_NPU_DUMP: "ops the NPU dumped no file of (variables, constants, reshapes, …)",
    Status.NO_BENCHMARK: "tensors the benchmark does not have",
    Status.NO_ORIGINAL_OP: "tensors of ops that the compiler put in, without an original",
    Status.INTERMEDIATE: "part results inside fused ops",
    Status.STATISTICS_ONLY: "tensors of which only statistics were dumped",
    Status.NOT_NUMERIC: "tensors without numbers (strings, resources)",
    Status.UNREADABLE: "tensors that cannot be read",
    Status.SIZE_MISMATCH: "tensors of different sizes",
    Status.LAYOUT: "tensors whose layout cannot be converted",
}
#: The words that differ where two NPU runs are compared.
_TWO_RUNS_WORDS = {
    Status.NO_NPU_DUMP: "ops this run dumped no file of",
    Status.NO_BENCHMARK: "tensors the other run does not have",
}
#: And those where PyTorch dumps are.
_PYTORCH_WORDS = {
    Status.NO_NPU_DUMP: "ops or tensors only the benchmark has",
    Status.NO_BENCHMARK: "ops or tensors only the NPU has",
}
#: Of the worst elements of a tensor, as many are shown; the files list more.
_SHOWN_ELEMENTS = 3
#: Columns of a panel's line that are no title: corners, lines and spaces on both sides.
_PANEL_EDGES = 6
_PROBLEMS = (Status.UNREADABLE, Status.SIZE_MISMATCH, Status.LAYOUT)
GRADE_STYLE = {Grade.INFO: "green", Grade.WARNING: "yellow", Grade.FAULT: "red"}


def source_lines(result: LeafResult) -> RenderableType:
    """Which folders and which graph a comparison used, and why that graph."""
    rows = [
        ("NPU", whole_path(result.leaf.path)),
        ("other run" if result.golden_is_dump else "benchmark", whole_path(result.golden_root)),
    ]
    if result.graph is not None:
        rejected = result.graph.rejected
        rows.append(("graph", whole_path(result.graph.file.path)))
        rows.append(("", plain(f"chosen because {result.graph.reason}", "dim")))
        rows += [("", plain(f"not {posixpath.basename(path)}: {why}", "dim")) for path, why in rejected[:3]]
        if len(rejected) > 3:
            rows.append(("", plain(f"nor {counted(len(rejected) - 3, 'more graph')}", "dim")))
    if result.other_graph is not None:
        rows.append(("its graph", whole_path(result.other_graph.file.path)))
        rows.append(("", plain(f"chosen because {result.other_graph.reason}", "dim")))
    if result.choice.h5:
        rows.append(("matched", plain("by op and order", "dim")))
    elif result.graph is None and result.golden_is_dump:
        rows.append(("matched", plain("by the names of ops, inputs and outputs", "dim")))
    rows += [("note", plain(shown_reason(note), "yellow")) for note in result.notes]
    return LabelledLines(rows)


def read_source_lines(analysis: Analysis) -> RenderableType:
    """What a result that was read back is of, as far as that is known."""
    rows: list[tuple[str, Text]] = []
    if analysis.source is not None:
        rows.append(("NPU", whole_path(analysis.source.npu)))
        rows.append(("other run" if analysis.is_two_runs else "benchmark", whole_path(analysis.source.golden)))
        if analysis.source.graph:
            rows.append(("graph", whole_path(analysis.source.graph)))
    if analysis.part:
        rows.append(("note", plain(analysis.part, "yellow")))
    return LabelledLines(rows)


def leaf_title(analysis: Analysis) -> str:
    """Which of several results it is: its device, model and step as far as its path tells, or its file."""
    if analysis.leaf is None:
        return posixpath.basename(analysis.path)
    leaf = analysis.leaf.leaf
    parts = [leaf.device and f"device {leaf.device}", leaf.model_name, leaf.step and f"step {leaf.step}"]
    return " ".join(filter(None, parts)) or shown_path(leaf.path)


def summary_lines(analyses: Sequence[Analysis], verdicts: Sequence[Text | None]) -> RenderableType:
    """What was found in each of several results, a sentence each: its verdict, or what the comparison says."""
    lines = []
    for analysis, verdict in zip(analyses, verdicts, strict=True):
        found = verdict or plain("; ".join(render(finding.message) for finding in analysis.findings))
        if verdict is None:
            found.stylize(GRADE_STYLE[max(finding.grade for finding in analysis.findings)])
        lines.append(Text.assemble((safe(leaf_title(analysis)), "bold"), ": ", found))
    return Group(*lines)


def overview_lines(analysis: Analysis) -> RenderableType:
    """Counts: compared, below the threshold, and why the others were not compared, with the first bad file."""
    view = analysis.overview
    told = Text.assemble(
        f"{view.compared:,} of {counted(analysis.tensors, 'tensor')} of {counted(analysis.dumped_ops, 'op')}, ",
        (f"{view.below:,} below {analysis.threshold:.9g}", "red" if view.below else "green"),
        f" in {counted(view.ops_below, 'op')}" if view.below else "",
    )
    rows = [("compared", told)]
    compared, differ = analysis.statistics
    if compared:
        words = f"those of {counted(compared, 'tensor')} compared, {differ:,} differ"
        rows.append(("statistics", plain(words, "red" if differ else "green")))
    if any(row.noise is not None for row in analysis.rows):
        noisy = sum(is_only_noise(row, analysis.threshold) for row in analysis.rows)
        words = f"{noisy:,} more are below {analysis.threshold:.9g}, and no farther off than their own noise allows"
        rows.append(("noise", plain(words, "cyan")))
    limits = [row for row in analysis.rows if row.overflow is not None]
    if limits:
        over = [row for row in limits if row.overflow]
        where = f", first {over[0].tensor_index}" if over else ""
        of_them = f"{len(over):,} of {counted(len(limits), 'float16 tensor')}"
        text = f"{of_them} with values of 65504 or more, or Inf{where}"
        rows.append(("overflow", plain(text, "red" if over else "green")))
    counted_rows = len(rows)
    status_words = _status_words(analysis)
    for status, count in view.not_compared:
        known = status in set(Status)
        words = status_words.get(Status(status), status) if known else "tensors without a result"
        problem = known and Status(status) in _PROBLEMS
        label = "not compared" if len(rows) == counted_rows else ""
        rows.append((label, plain(f"{words}: {count}", "yellow" if problem else "dim")))
        if problem:
            first = next(row for row in analysis.rows if row.cosine is None and row.status == status)
            where = f"{first.op_name} {first.slot}".rstrip()
            rows.append(("", plain(f"first: {where}: {shown_reason(first.reason)}", "yellow")))
    return LabelledLines(rows)


def _status_words(analysis: Analysis) -> dict[Status, str]:
    own = _PYTORCH_WORDS if not analysis.has_graph else _TWO_RUNS_WORDS if analysis.is_two_runs else {}
    return STATUS_WORDS | own


def mapping_lines(analysis: Analysis) -> RenderableType:
    """Counts of a result that only tells which tensors belong together."""
    paired = sum(bool(row.slot) and row.status == Status.COMPARED for row in analysis.rows)
    of_them = f"{paired:,} of {counted(analysis.tensors, 'tensor')} of {counted(analysis.dumped_ops, 'op')}"
    rows = [("paired", Text(f"{of_them} with a tensor to be compared with"))]
    words = _status_words(analysis)
    alone = [(status, number) for status, number in analysis.overview.not_compared if status != Status.COMPARED]
    rows += [
        ("" if number else "alone", plain(f"{words[Status(status)]}: {times}", "dim"))
        for number, (status, times) in enumerate(alone)
    ]
    return LabelledLines(rows)


def _slot_cosines(rows: Sequence[Row], threshold: float) -> Text:
    text = Text()
    for row in rows:
        if text:
            text.append("  ")
        text.append(f"[{row.slot.split(':')[-1]}] ")
        text.append(row_text(row, agrees(row, threshold)))
    return text or Text("none", style="dim")


class TitledPanel:
    """A panel whose title is never cut: what does not fit into its line stands in rows within, label and text each.

    `titles` are the titles to choose from, longest first, each with the rows that it makes necessary.
    """

    def __init__(
        self,
        titles: Sequence[tuple[Text, Sequence[tuple[str, Text]]]],
        rows: Sequence[tuple[str, Text]],
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


def op_panel(op: OpAgreement, threshold: float) -> RenderableType:
    """One op: `[index] name (type)`, Left (NPU), Right (benchmark), cosines of inputs and outputs, own errors of these.

    An own error, of an output that was recomputed, is how far it is off what the op's own inputs say.
    """
    rows: list[tuple[str, Text]] = [
        ("Right:", _ops(op, 1)),
        ("Input:", _slot_cosines(op.inputs, threshold)),
        ("Output:", _slot_cosines(op.outputs, threshold)),
    ]
    own = [row for row in op.outputs if row.own_error is not None]
    if own:
        rows.append(("Own:", plain("  ".join(f"[{row.slot.split(':')[-1]}] {percent(row.own_error)}" for row in own))))
    left: list[tuple[str, Text]] = [("Left:", _ops(op, 0))]
    passes: list[tuple[str, Text]] = []
    if op.pass_names:
        passes.append(("Pass:", plain(", ".join(map(marked_pass, op.pass_names)))))
    noise = [f"{row.slot} {_noise_words(row)}" for row in (*op.inputs, *op.outputs) if row.noise is not None]
    if noise:
        rows.append(("Noise:", plain(", ".join(noise))))
    over = [row.slot for row in op.rows if row.overflow]
    if over:
        rows.append(("Overflow:", plain(", ".join(over), "bold red")))
    rows += [(f"{name}:", plain(values)) for name, values in _custom_values(op.rows).items()]
    notes = [row for row in (*op.inputs, *op.outputs) if row.mismatches]
    rows += [("", plain(f"{row.slot}: {row.reason}", "yellow")) for row in notes]
    style = "red" if op.is_suspect else "yellow" if op.is_below else "green"
    index, name = Text(f"[{op.index}]"), Text.assemble(f"[{op.index}] ", (safe(op.op_name), "bold"))
    kind: list[tuple[str, Text]] = [("Type:", plain(op.op_type))] if op.op_type else []
    whole = Text.assemble(name, f" ({safe(op.op_type)})" if op.op_type else "")
    # A name that is too long for the title is said once.
    alone: list[tuple[str, Text]] = left
    if op.npu_ops != (op.op_name,):
        alone = [("Name:", plain(op.op_name, "bold")), *left]
    titles = [(whole, [*passes, *left]), (name, [*kind, *passes, *left]), (index, [*kind, *passes, *alone])]
    return TitledPanel(titles, rows, style)


def _listed(names: Sequence[str], unlisted: int = 0) -> Text:
    """Names that wrap between them; of very many the first."""
    return plain(", ".join(joined(names, unlisted).split(",")))


def _ops(op: OpAgreement, side: int) -> Text:
    """The ops of the group on the NPU (0) or the benchmark side (1)."""
    names = (op.npu_ops, op.golden_ops)[side]
    if names == NO_OPS:
        return plain(_NO_OPS_WORDS, "dim")
    return _listed(names, op.rows[0].unlisted[side])


def _noise_words(row: Row) -> str:
    """How an error stands to the tensor's own noise."""
    if row.cosine is None:
        return "not compared"
    if not row.noise:
        return "has none"
    times = noise_distance(row) / row.noise
    return f"{times:.3g} times it" if isfinite(times) else "far beyond it"


def _custom_values(rows: Sequence[Row]) -> dict[str, str]:
    """The values of the user's own metrics, by metric, a line each."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.custom.items():
            if value is not None:
                text = f"{value:.6g}" if isinstance(value, float) else str(value)
                found.setdefault(name, []).append(f"{row.slot} {text}")
    return {name: ", ".join(texts) for name, texts in found.items()}


def other_run_lines(number: int, analysis: Analysis, *, is_fused: bool) -> RenderableType:
    """Counts of the run beside the one under test, and its first op below the threshold."""
    view = analysis.overview
    told = Text.assemble(
        f"{'with' if is_fused else 'without'} fusion, against the same benchmark: ",
        f"{view.compared:,} of {counted(analysis.tensors, 'tensor')}, ",
        (f"{view.below:,} below {analysis.threshold:.9g}", "red" if view.below else "green"),
        f" in {counted(view.ops_below, 'op')}" if view.below else "",
    )
    rows = [(f"debug_{number}", told)]
    first = next((op for op in analysis.ops if op.is_below), None)
    if first is not None:
        kind = f" ({first.op_type})" if first.op_type else ""
        rows.append(("first", plain(f"[{first.index}] {first.op_name}{kind}")))
        rows.append(("output", _slot_cosines(first.outputs, analysis.threshold)))
    return LabelledLines(rows)


def below_list(analysis: Analysis, limit: int) -> RenderableType:
    """The first `limit` ops (0: all) below the threshold, in execution order, and how many more there are."""
    below = [op for op in analysis.ops if op.is_below]
    if not analysis.overview.compared:
        return Group(*(plain(render(finding.message), "yellow") for finding in analysis.findings))
    if not below:
        return Text(f"No op is below a cosine of {analysis.threshold:.9g}.", style="green")
    parts: list[RenderableType] = [op_panel(op, analysis.threshold) for op in below[: limit or None]]
    if 0 < limit < len(below):
        shown = f"{limit} of {len(below):,} ops below {analysis.threshold:.9g} shown, in execution order"
        parts.append(Text(f"{shown}; -l N shows more, -l 0 all", style="dim"))
    return Group(*parts)


def detail_panel(detail: Detail, shown: int = _SHOWN_ELEMENTS) -> RenderableType:
    """The worst few elements of one tensor."""
    pair = detail.comparison.pair
    if detail.equal == detail.count:
        equal = "the one element is equal" if detail.count == 1 else f"all {detail.count:,} elements are equal"
        body: RenderableType = plain(equal, "green")
    else:
        table = NameTable(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for name in ("worst", "index", "NPU", "benchmark", "error", "relative"):
            table.add_column(name, justify="left" if name in ("worst", "index") else "right")
        for name, elements in (("absolute", detail.worst_absolute), ("relative", detail.worst_relative)):
            for number, element in enumerate(elements[:shown]):
                table.add_row("" if number else name, *_element_cells(element))
        differ = f"{detail.count - detail.equal:,} of {counted(detail.count, 'element')} differ"
        body = Group(plain(differ, "bold"), table)
    titles: list[tuple[Text, list[tuple[str, Text]]]] = [
        (plain(f"{pair.op_name} {pair.slot}", "bold"), []),
        (plain(pair.slot, "bold"), [("Name:", plain(pair.op_name, "bold"))]),
    ]
    return TitledPanel(titles, (), "cyan", body)


def _element_cells(element: Element) -> list[str]:
    relative = "-" if isnan(element.relative) else f"{element.relative:.3g}"
    return [str(list(element.index)), f"{element.npu:.6g}", f"{element.golden:.6g}", f"{element.error:.3g}", relative]


def finding_panel(finding: Finding) -> RenderableType:
    """One finding with the facts behind it."""
    rows: list[tuple[str, Text]] = []
    if finding.op_type:
        rows.append(("type", plain(finding.op_type)))
    if finding.pass_names:
        rows.append(("pass", plain(", ".join(map(marked_pass, finding.pass_names)))))
    originals = joined(finding.original_ops)
    if finding.original_ops == NO_OPS:
        rows.append(("original ops", plain(_NO_OPS_WORDS, "dim")))
    elif originals and originals != finding.op_name:
        # The ops of PyTorch dumps, which begin with a slash, have no originals but a counterpart.
        label = "benchmark" if originals.startswith("/") else "original ops"
        rows.append((label, _listed(finding.original_ops)))
    rendered = render_finding(finding)
    rows += [(name, plain(shown_reason(value))) for name, value in rendered.facts]
    title = {
        FindingKind.FIRST_FAULTY_OP: "First faulty operator",
        FindingKind.DIFFERENT_INPUT: "Different input",
        FindingKind.ALL_AGREE: "No faulty operator",
        FindingKind.NOTHING_COMPARED: "Nothing compared",
        FindingKind.UNREADABLE: "Not read",
    }.get(finding.kind, "Finding")
    if finding.kind == FindingKind.NOTHING_COMPARED and finding.op_name:
        title = "First op with other statistics"
    elif any(fact.value == Message("finding.fact.without_graph") for fact in finding.facts):
        title = "First op below the threshold"
    style = GRADE_STYLE[finding.grade]
    return Box(
        Group(plain(rendered.message, "bold"), LabelledLines(rows)) if rows else plain(rendered.message, "bold"),
        title=Text(title),
        style=style,
    )


# --- JSON -----------------------------------------------------------------------------------------------------------


def _detail_json(detail: Detail) -> dict[str, Any]:
    return {
        "tensor": detail.comparison.pair.tensor_index,
        "shape": detail.shape,
        "count": detail.count,
        "equal": detail.equal,
        "worst_absolute": [_element_json(element) for element in detail.worst_absolute],
        "worst_relative": [_element_json(element) for element in detail.worst_relative],
    }


def _element_json(element: Element) -> dict[str, Any]:
    relative = None if isnan(element.relative) else element.relative
    return {**asdict(element), "error": element.error, "relative": relative}


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
    made: dict[str, Any] = {} if checks is None else {"checks": [check_json(check) for check in checks]}
    if checks is not None:
        made["passports"] = None if passports is None else pair_json(passports)
    alone = next((one for one in verdicts[len(analyses) :] if one is not None), None)
    if alone is not None:
        made["verdict"] = verdict_json(alone)
    if other is not None:
        made["other_run"] = {
            "debug": other.number,
            "is_fused": other.is_fused,
            "results": [_result_json(analysis) for analysis in other.analyses],
        }
    if held is not None:
        made["since"] = held.to_dict()
    return json_text({"schema": SCHEMA, "results": documents, **made})
