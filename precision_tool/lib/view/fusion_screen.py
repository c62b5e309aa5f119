"""Screens of the fusion commands: passes in effect, switch files, blame, differences of graphs; and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.fusion_blame import (
    Blame,
    BlameVerdict,
    OpBlame,
    PassBlame,
)
from precision_tool.lib.diagnose.fusion_effect import GraphFusion, PassRow
from precision_tool.lib.diagnose.graph_diff import GraphDiff, PassDiff
from precision_tool.lib.diagnose.graph_diff import Group as DiffGroup
from precision_tool.lib.io.fusion_passes import ALL, EITHER, Switches, is_switchable
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.view.tables import NUMBERS, Box, NameTable
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    always_mark,
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
from precision_tool.lib.view.verdict_messages import reason_words

_VERDICT_STYLE = {
    BlameVerdict.GUILTY: "bold red",
    BlameVerdict.SUSPICIOUS: "yellow",
    BlameVerdict.CLEAN: "green",
    BlameVerdict.NOT_JUDGED: "dim",
}
#: Names of a group that are shown unless more are asked for, and groups of one kind.
SHOWN = 3
_SHOWN_GROUPS = 12
#: What to do about a fault that no switch avoids.
TO_DO = (
    Message("screen.view.blame.todo.float32"),
    Message("screen.view.blame.todo.keep"),
    Message("screen.view.blame.todo.report"),
)
_ALWAYS_ON = Message("screen.view.fusion.always_on")
#: Inputs of the other side, and ops without a pass, that are named.
_NAMED = 3


_COLUMN = "screen.view.fusion.column"


def _table() -> NameTable:
    return NameTable(box=None, padding=(0, 2, 0, 0), show_edge=False)


# --- passes in effect -------------------------------------------------------------------------------------------------


def passes_lines(graphs: Sequence[GraphFusion], threshold: float) -> Iterator[list[RenderableType]]:
    for graph in graphs:
        yield [*_graph_passes(graph, threshold)]


def _graph_passes(graph: GraphFusion, threshold: float) -> Iterator[RenderableType]:
    name = f"debug_{graph.run}" if graph.run is not None else text("screen.view.fusion.graph_name")
    if graph.path or graph.run is not None:
        yield shown(Message("screen.view.fusion.graph", graph=name, ops=graph.fused), "bold")
    else:
        yield shown(Message("screen.view.fusion.only_report", graph=str(graph.graph_id or "")), "bold")
    if graph.path:
        yield whole_path(graph.path)
    if graph.source:
        yield whole_path(graph.source)
    if graph.nameless:
        yield shown(Message("screen.view.fusion.nameless", ops=graph.nameless), "yellow")
    if not graph.rows:
        yield shown(Message("screen.view.fusion.no_pass"), "dim")
        return
    table = _table()
    table.add_columns(_COLUMN, "pass")
    table.add_columns(_COLUMN, "matched", "effective", "ops", "cosine", **NUMBERS)
    for row in graph.rows:
        agrees = None if row.cosine is None else not isnan(row.cosine) and row.cosine >= threshold
        table.add_row(
            _pass_cell(row), _count(row.matched), _count(row.effective), str(len(row.ops)),
            cosine_text(row.cosine, agrees),
        )  # fmt: skip
    yield table


def _pass_cell(row: PassRow) -> Text:
    cell = plain(row.name)
    marks = [row.section.removesuffix("Fusion")] if row.section else []
    if not row.section and row.is_switchable:
        marks.append(text("screen.view.fusion.section_unknown"))
    if not row.is_switchable:
        marks.append(always_mark())
    elif row.switch is False:
        marks.append(text("screen.view.fusion.off_in_file"))
    cell.append(f"\n  {text('list.comma').join(marks)}", style="dim")
    return cell


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def passes_json(graphs: Sequence[GraphFusion]) -> str:
    return json_text({"graphs": [asdict(graph) for graph in graphs]})


# --- switch files -----------------------------------------------------------------------------------------------------


def switch_lines(
    path: str, switches: Switches, of_data: Mapping[str, str | None], warnings: Sequence[Message]
) -> list[RenderableType]:
    """One switch file, pass by pass, and its effect on the passes of the data, which have their sections."""
    lines: list[RenderableType] = [whole_path(path)]
    for reason in switches.refused:
        lines.append(shown(Message("screen.view.fusion.switch.refused", reason=reason), "bold yellow"))
    if not switches.refused:
        lines.append(shown(Message("screen.view.fusion.switch.accepted"), "dim"))
    lines += [shown(Message("screen.view.note", note=note), "yellow") for note in switches.notes]
    if switches.is_old_form:
        lines.append(shown(Message("screen.view.fusion.switch.old_form"), "dim"))
    table = _switch_table(switches)
    lines.append(table if table.row_count else shown(Message("screen.view.fusion.switch.empty"), "dim"))
    if rows := list(_effect_lines(switches, of_data)):
        lines.append(LabelledLines(rows))
    return lines + [shown(Message("screen.view.warning", warning=warning), "yellow") for warning in warnings]


def _switch_table(switches: Switches) -> NameTable:
    table = _table()
    table.add_columns(_COLUMN, "section", "pass")
    table.add_column()
    for section, passes in switches.sections.items():
        for number, (name, on) in enumerate(passes.items()):
            state = shown(Message(f"screen.view.fusion.switch.{'on' if on else 'off'}"), "green" if on else "red")
            if not on and name != ALL and not is_switchable(name):
                no_effect = Message("screen.view.fusion.switch.no_effect", mark=always_mark())
                state.append_text(shown(no_effect, "yellow"))
            head = "" if number else section or text("screen.view.fusion.switch.both")
            others = Message("screen.view.fusion.switch.others")
            table.add_row(head, shown(others) if name == ALL else plain(name), state)
    return table


def _effect_lines(switches: Switches, of_data: Mapping[str, str | None]) -> Iterator[Line]:
    """Yield how many passes of the data are off, and those that stay on."""
    always = [name for name in of_data if not is_switchable(name)]
    off = [
        name for name, section in of_data.items() if name not in always and switches.state_of(name, section) is False
    ]
    if of_data:
        counts = Message("screen.view.fusion.switch.of_data", off=len(off), passes=len(of_data))
        yield label("of_data"), shown(counts)
    if always:
        passes_on = Message("screen.view.fusion.always_on_passes", passes=safe(", ".join(always)), reason=_ALWAYS_ON)
        yield always_mark(), shown(passes_on)
    if left_on := switches.left_on():
        stay_on = Message("screen.view.fusion.switch.stay_on", passes=safe(", ".join(left_on)))
        yield label("stay_on"), shown(stay_on, "yellow")


def switch_json(path: str, switches: Switches, warnings: Sequence[Message]) -> dict[str, Any]:
    sections = {name or "either": dict(passes) for name, passes in switches.sections.items()}
    return {
        "file": path,
        "old_form": EITHER in switches.sections,
        "passes": sections,
        "refused": list(switches.refused),
        "notes": list(switches.notes),
        "left_on": list(switches.left_on()),
        "warnings": list(warnings),
    }


def script_block(lines: Sequence[str]) -> RenderableType:
    """Lines of a training script, to be copied."""
    heading = shown(Message("screen.view.fusion.script"), "dim")
    return Group(heading, *(Text(f"  {line}", no_wrap=True, overflow="ignore") for line in lines))


# --- blame ------------------------------------------------------------------------------------------------------------


def blame_sources(sources: dict[str, Any]) -> RenderableType:
    """Return the dumps and graphs that a verdict rests on."""
    two_runs = sources.get("other_graph") is not None
    rows = [(label("fused"), whole_path(sources["fused"])), (label("graph"), whole_path(sources["graph"]))]
    rows.append((label("unfused" if two_runs else "benchmark"), whole_path(sources["other"])))
    if two_runs:
        rows.append((label("graph"), whole_path(sources["other_graph"])))
    return LabelledLines(rows)


def blame_lines(blame: Blame, limit: int) -> Iterator[list[RenderableType]]:
    """The passes, worst first; the ops of those that are not clean; what to switch off, and what is left to do."""
    notes = [shown(Message("screen.view.note", note=note), "yellow") for note in blame_notes(blame)]
    yield [*notes, _blame_table(blame.passes)]
    for pass_ in blame.passes:
        if pass_.verdict in (BlameVerdict.GUILTY, BlameVerdict.SUSPICIOUS):
            yield [_pass_panel(pass_, limit)]
    unjudged = [pass_ for pass_ in blame.passes if pass_.verdict is BlameVerdict.NOT_JUDGED]
    if unjudged:
        is_short = all(len(pass_.name) < 30 for pass_ in unjudged)
        yield [
            shown(_verdict_name(BlameVerdict.NOT_JUDGED), "bold"),
            LabelledLines([(f"  {safe(each.name)}", plain(shown_reason(pass_words(each)))) for each in unjudged])
            if is_short
            else Group(*(_named_reason(pass_.name, pass_words(pass_)) for pass_ in unjudged)),
        ]
    yield [*_advice(blame)]


def _verdict_name(verdict: BlameVerdict) -> Message:
    return Message(f"screen.view.blame.verdict.{verdict.name.lower()}")


def _named_reason(name: str, reason: str) -> RenderableType:
    return Group(plain(f"  {name}"), LabelledLines([("   ", plain(shown_reason(reason), "dim"))]))


def _blame_table(passes: Sequence[PassBlame]) -> NameTable:
    table = _table()
    table.add_columns(_COLUMN, "pass", "verdict")
    table.add_columns(_COLUMN, "ops", "worst", "median", **NUMBERS)
    for pass_ in passes:
        name = plain(pass_.name)
        counts = [
            text("screen.view.blame.count", count=pass_.count(verdict), verdict=_verdict_name(verdict))
            for verdict in BlameVerdict
            if pass_.count(verdict)
        ]
        if not pass_.is_switchable:
            counts.append(always_mark())
        beyond = [op for op in pass_.ops if op.beyond_range is not None]
        if beyond:
            first = beyond[0]
            why = reason_words(first.beyond_range)
            counts.append(text("screen.view.blame.beyond_count", ops=len(beyond), index=first.index, why=why))
        name.append("\n  " + text("list.comma").join(counts), style="dim")
        verdict = shown(_verdict_name(pass_.verdict), _VERDICT_STYLE[pass_.verdict])
        table.add_row(name, verdict, str(len(pass_.ops)), _error(pass_.worst), _error(pass_.median))
    return table


def _error(error: float | None) -> str:
    if error is None:
        return "-"
    return f"{error:.2%}" if isfinite(error) else "inf"


def _pass_panel(pass_: PassBlame, limit: int) -> RenderableType:
    wrong = [op for op in pass_.ops if op.verdict is pass_.verdict]
    wrong.sort(key=lambda op: -(op.error or 0.0))
    parts: list[RenderableType] = []
    for op in wrong[: limit or None]:
        parts += [plain(f"[{op.index}] {op.op_name} ({op.op_type})", "bold"), _op_lines(op)]
    if 0 < limit < len(wrong):
        parts.append(shown(Message("screen.view.limit.more", more=len(wrong) - limit), "dim"))
    title = Message("screen.view.blame.title", **{"pass": safe(pass_.name)}, verdict=_verdict_name(pass_.verdict))
    return Box(Group(*parts), title=shown(title, fields={"pass": "bold"}), style=_VERDICT_STYLE[pass_.verdict])


def _op_lines(op: OpBlame) -> RenderableType:
    rows = [(label("original_ops"), plain(", ".join(op.originals)))]
    if len(op.passes) > 1:
        rows.append((label("made_by"), plain(", ".join(op.passes))))
    if op.output_error is not None:
        compared = Message("screen.view.blame.compared", output=op.output_error, inputs=op.input_error)
        rows.append((label("compared"), shown(compared)))
    rows.append((label("why"), plain(shown_reason(render(op.reason)))))
    return LabelledLines(rows)


def _advice(blame: Blame) -> Iterator[RenderableType]:
    if blame.switch_off:
        passes = safe(", ".join(blame.switch_off))
        yield shown(Message("screen.view.blame.switch_off", passes=passes), "bold", fields={"passes": "bold red"})
        for pass_ in blame.passes:
            clean = pass_.count(BlameVerdict.CLEAN)
            if pass_.name in blame.switch_off and clean:
                yield shown(Message("screen.view.blame.also_right", **{"pass": safe(pass_.name)}, ops=clean), "dim")
    if blame.unavoidable:
        passes = safe(", ".join(dict.fromkeys(name for op in blame.unavoidable for name in op.passes)))
        ops = safe(", ".join(op.op_name for op in blame.unavoidable))
        yield shown(Message("screen.view.blame.unavoidable", ops=ops), "bold red")
        yield shown(Message("screen.view.blame.left", passes=passes, reason=_ALWAYS_ON))
        yield from (shown(Message("screen.view.blame.item", item=item)) for item in TO_DO)
    if not blame.switch_off and not blame.unavoidable:
        suspicious = any(pass_.verdict is BlameVerdict.SUSPICIOUS for pass_ in blame.passes)
        if not blame.is_judged:
            yield shown(Message("screen.view.blame.nothing_judged"), "bold yellow")
        elif suspicious:
            yield shown(Message("screen.view.blame.only_suspicious"), "bold")
        else:
            yield shown(Message("screen.view.blame.none_guilty"), "bold green")


def blame_json(blame: Blame, sources: dict[str, Any]) -> str:
    passes = [
        {
            "pass": pass_.name,
            "verdict": pass_.verdict,
            "reason": pass_words(pass_),
            "switchable": pass_.is_switchable,
            "worst": pass_.worst,
            "median": pass_.median,
            "ops": [op.op_name for op in pass_.ops],
        }
        for pass_ in blame.passes
    ]
    return json_text(
        {
            **sources,
            "passes": passes,
            "ops": [_op_json(op) for op in blame.ops],
            "switch_off": blame.switch_off,
            "unavoidable": [op.op_name for op in blame.unavoidable],
            "judged": blame.is_judged,
            "notes": blame_notes(blame),
        }
    )


# --- reasons of blame -------------------------------------------------------------------------------------------------


def pass_words(blame: PassBlame) -> str:
    """Return the reason of the verdict on a pass; "" where there is none to give."""
    worst, unjudged = blame.worst_op, blame.count(BlameVerdict.NOT_JUDGED)
    reason: Message | str = ""
    if blame.verdict is not BlameVerdict.CLEAN:
        reason = Message("screen.view.blame.of_op", op=worst.op_name, why=worst.reason)
    elif unjudged:
        reason = Message("screen.view.blame.some_unjudged", count=unjudged, ops=len(blame.ops))
    beyond = next((op for op in blame.ops if op.verdict is BlameVerdict.CLEAN and op.beyond_range is not None), None)
    if beyond is not None:
        range_ = Message("screen.view.blame.of_op", op=beyond.op_name, why=beyond.beyond_range)
        reason = Message("screen.view.blame.both", first=reason, second=range_) if reason else range_
    if blame.verdict is BlameVerdict.GUILTY and len(worst.passes) > 1:
        others = [name for name in worst.passes if name != blame.name]
        reason = Message("screen.view.blame.shared_op", why=reason, passes=others)
    return render(reason)


def blame_notes(blame: Blame) -> list[str]:
    if not blame.nameless:
        return []
    advice = Message("screen.view.blame.collect")
    count, ops = len(blame.nameless), tuple(blame.nameless[:_NAMED])
    return [text("screen.view.blame.nameless", count=count, ops=ops, advice=advice)]


def _op_json(op: OpBlame) -> dict[str, Any]:
    return {
        "op_name": op.op_name,
        "op_type": op.op_type,
        "passes": op.passes,
        "originals": op.originals,
        "index": op.index,
        "verdict": op.verdict,
        "reason": render(op.reason),
        "input_error": op.input_error,
        "output_error": op.output_error,
        "cosine": op.cosine,
        "recomputed": None if op.recomputed is None else asdict(op.recomputed),
        "not_recomputed": reason_words(op.not_recomputed),
        "beyond_range": reason_words(op.beyond_range),
    }


# --- graphs diff ------------------------------------------------------------------------------------------------------


#: What may differ of an op that both graphs have; all else that heads a group is a type of op.
_DIFFERING = ("type", "output dtype", "output layout", "output shape", "inputs", "passes")


def diff_lines(diff: GraphDiff, names: tuple[str, str], limit: int) -> Iterator[list[RenderableType]]:
    """Return the differences in groups. `names` are those of the two graphs."""
    graphs = diff.similarity
    left = Message("screen.view.diff.side", ops=graphs.left_ops, path=safe(shown_path(graphs.left)))
    right = Message("screen.view.diff.side", ops=graphs.right_ops, path=safe(shown_path(graphs.right)))
    alike = Message("screen.view.diff.alike", share=graphs.share, ops=graphs.alike)
    yield [LabelledLines([(names[0], shown(left)), (names[1], shown(right)), (label("alike"), shown(alike))])]
    if diff.passes:
        table = _table()
        table.add_columns(_COLUMN, "pass")
        for name in names:
            table.add_column(name, **NUMBERS)
        table.add_column()
        for row in diff.passes:
            state = _pass_state(row, names[1] if row.left else names[0])
            table.add_row(plain(row.name), str(row.left or "-"), str(row.right or "-"), state)
        yield [shown(Message("screen.view.diff.passes"), "bold"), table]
    for side, name, other in (("left", *names), ("right", *names[::-1])):
        groups = [group for group in diff.fused if group.side == side]
        if groups:
            heading = Message("screen.view.diff.fused", graph=name, other=other)
            yield [shown(heading, "bold"), *_fused_lines(groups, limit)]
    for name, only in zip(names, (diff.only_left, diff.only_right), strict=True):
        if only:
            yield [shown(Message("screen.view.diff.only", graph=name), "bold"), _group_lines(only, limit)]
    if graphs.inserted:
        changed = [f"{op_type} {before} / {after}" for op_type, before, after in graphs.inserted]
        yield [LabelledLines([(label("inserted"), plain(", ".join(changed)))])]
    if diff.differences:
        yield [shown(Message("screen.view.diff.differences"), "bold"), _group_lines(diff.differences, limit)]
    if diff.is_same:
        yield [shown(Message("screen.view.diff.same"), "green")]


def _fused_lines(groups: Sequence[Any], limit: int) -> Iterator[RenderableType]:
    for group in groups:
        originals = sum(len(names) for _, names in group.ops)
        count = text("screen.view.diff.fused_ops", ops=len(group.ops), originals=originals)
        lines = [plain(f"{name} = {', '.join(names)}", "dim") for name, names in group.ops[: limit or None]]
        more = len(group.ops) - limit
        if limit and more > 0:
            lines.append(shown(Message("screen.view.more", more=more), "dim"))
        yield plain(f"  {group.pass_name}")
        yield LabelledLines([(f"    {head}", line) for head, line in labelled(count, lines)])


def _pass_state(row: PassDiff, other: str) -> Text:
    if not row.is_switchable:
        return Text(always_mark(), style="yellow")
    if row.is_gone:
        return shown(Message("screen.view.diff.gone", graph=other), "green")
    if row.is_off:
        return shown(Message("screen.view.diff.still_there"), "bold red")
    return shown(Message("screen.view.diff.in_both"), "dim")


def _group_lines(groups: Sequence[DiffGroup], limit: int) -> RenderableType:
    rows = []
    for group in groups[: _SHOWN_GROUPS if limit else None]:
        none = Message("screen.view.none")
        left, right = (safe(side) or none for side in (group.left, group.right))
        is_changed = bool(group.left or group.right)
        is_named = group.what in _DIFFERING
        what = Message(f"screen.view.diff.what.{group.what.replace(' ', '_')}") if is_named else safe(group.what)
        change = Message("screen.view.diff.change", what=what, changed=is_changed, left=left, right=right)
        rows.append((f"  {len(group.ops)}", shown(change)))
        ops = [safe(op) for op in group.ops[: limit or None]]
        names = Message("screen.view.diff.names", names=ops, more=len(group.ops) - len(ops) or None)
        rows.append(("", shown(names, "dim")))
    if limit and len(groups) > _SHOWN_GROUPS:
        rest = groups[_SHOWN_GROUPS:]
        count = sum(len(group.ops) for group in rest)
        rows.append(("", shown(Message("screen.view.diff.more_groups", groups=len(rest), ops=count), "dim")))
    return LabelledLines(rows)


def diff_json(diff: GraphDiff) -> str:
    return json_text({**asdict(diff), "share": diff.similarity.share})
