"""What the fusion commands show: passes in effect, switch files, blame, bisection, differences of graphs; or JSON."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.fusion_bisect import Bisection, Outcome
from precision_tool.lib.diagnose.fusion_blame import Blame, BlameVerdict, OpBlame, PassBlame
from precision_tool.lib.diagnose.fusion_effect import GraphFusion, PassRow
from precision_tool.lib.diagnose.graph_diff import GraphDiff, PassDiff
from precision_tool.lib.diagnose.graph_diff import Group as DiffGroup
from precision_tool.lib.io.fusion_passes import ALWAYS_ON_REASON, is_switchable
from precision_tool.lib.io.fusion_switch import ALL, EITHER, Switches
from precision_tool.lib.view.evidence.blame import beyond_words, blame_notes, op_json, op_words, pass_words
from precision_tool.lib.view.tables import Box, NameTable
from precision_tool.lib.view.text import (
    ALWAYS_MARK,
    LabelledLines,
    cosine_text,
    counted,
    json_text,
    plain,
    safe,
    shown_reason,
    whole_path,
)

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
LEFT_TO_DO = (
    "compute the op in float32: mixed_precision_list(black=[TYPE]) with action='mixlist', for all ops of its type",
    "keep the types of this one op: keep_dtype([OP]) prints the lines",
    "report it to the vendor with this verdict, the op's dump files and its graph",
)


def _table(*columns: tuple[str, bool]) -> NameTable:
    """Columns of names, that are never broken, and of numbers."""
    table = NameTable(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    return table


# --- passes in effect -------------------------------------------------------------------------------------------------


def passes_lines(graphs: Sequence[GraphFusion], threshold: float) -> Iterator[list[RenderableType]]:
    """Every graph with its passes."""
    for graph in graphs:
        yield [*_graph_passes(graph, threshold)]


def _graph_passes(graph: GraphFusion, threshold: float) -> Iterator[RenderableType]:
    name = f"debug_{graph.run}" if graph.run is not None else "graph"
    if graph.path or graph.run is not None:
        yield plain(f"{name}  {counted(graph.fused, 'op')} made by fusion", "bold")
    else:
        yield plain(f"graph {graph.graph_id or 'without an id'}, of which only a report is there", "bold")
    if graph.path:
        yield whole_path(graph.path)
    if graph.source:
        yield whole_path(graph.source)
    if graph.nameless:
        yield plain(f"the graph names no pass for {counted(graph.nameless, 'fused op')}", "yellow")
    if not graph.rows:
        yield plain("no pass made an op of it", "dim")
        return
    table = _table(("pass", False), ("matched", True), ("in effect", True), ("ops", True), ("worst cosine", True))
    for row in graph.rows:
        agrees = None if row.cosine is None else not isnan(row.cosine) and row.cosine >= threshold
        table.add_row(
            _pass_cell(row), _count(row.matched), _count(row.effective), str(len(row.ops)),
            cosine_text(row.cosine, agrees),
        )  # fmt: skip
    yield table


def _pass_cell(row: PassRow) -> Text:
    text = plain(row.name)
    marks = [row.section.removesuffix("Fusion")] if row.section else []
    if not row.section and row.is_switchable:
        marks.append("section unknown")
    if not row.is_switchable:
        marks.append(ALWAYS_MARK)
    elif row.switch is False:
        marks.append("off in the switch file")
    text.append(f"\n  {', '.join(marks)}", style="dim")
    return text


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def passes_json(graphs: Sequence[GraphFusion]) -> str:
    """The passes as one JSON document."""
    return json_text({"graphs": [asdict(graph) for graph in graphs]})


# --- switch files -----------------------------------------------------------------------------------------------------


def switch_lines(
    path: str, switches: Switches, seen: Mapping[str, str | None], warnings: Sequence[str]
) -> list[RenderableType]:
    """One switch file, pass by pass, and what the passes that were `seen`, with their sections, are by it."""
    lines: list[RenderableType] = [whole_path(path)]
    if switches.refused:
        lines += [plain(f"GE refuses this file: {reason}", "bold yellow") for reason in switches.refused]
    else:
        lines.append(plain("GE takes this file", "dim"))
    lines += [plain(f"note: {note}", "yellow") for note in switches.notes]
    if switches.is_old_form:
        lines.append(plain("in the old form: a line PASS:on or PASS:off for each pass", "dim"))
    table = _table(("section", False), ("pass", False), ("", False))
    for section, passes in switches.sections.items():
        for number, (name, on) in enumerate(passes.items()):
            shown = "every pass not named" if name == ALL else name
            state = Text("on" if on else "off", style="green" if on else "red")
            if not on and name != ALL and not is_switchable(name):
                state.append(f" (no effect: {ALWAYS_MARK})", style="yellow")
            table.add_row("" if number else (section or "both"), plain(shown), state)
    if table.row_count:
        lines.append(table)
    else:
        lines.append(plain("names no pass: every pass is on", "dim"))
    off = [name for name, section in seen.items() if is_switchable(name) and switches.state_of(name, section) is False]
    always = [name for name in seen if not is_switchable(name)]
    rows = [("of the data", plain(f"{len(off)} of {counted(len(seen), 'pass', 'passes')} seen there are off"))]
    if always:
        rows.append((ALWAYS_MARK, plain(f"{', '.join(always)}: {ALWAYS_ON_REASON}")))
    if not seen:
        rows = []
    if left_on := switches.left_on():
        what = "GE's own file names them, which beats ALL (on the 910B); `fusion all-off` names them too"
        rows.append(("stay on", plain(f"{', '.join(left_on)}: {what}", "yellow")))
    if rows:
        lines.append(LabelledLines(rows))
    lines += [plain(f"warning: {warning}", "yellow") for warning in warnings]
    return lines


def switch_json(path: str, switches: Switches, warnings: Sequence[str]) -> dict[str, Any]:
    """One switch file."""
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
    text = Text("in the training script:", style="dim")
    return Group(text, *(Text(f"  {line}", no_wrap=True, overflow="ignore") for line in lines))


# --- blame ------------------------------------------------------------------------------------------------------------


def blame_sources(sources: dict[str, Any]) -> RenderableType:
    """Which dumps and graphs a verdict rests on."""
    two_runs = sources.get("other_graph") is not None
    rows = [("fused", whole_path(sources["fused"])), ("graph", whole_path(sources["graph"]))]
    rows.append(("unfused" if two_runs else "benchmark", whole_path(sources["other"])))
    if two_runs:
        rows.append(("graph", whole_path(sources["other_graph"])))
    return LabelledLines(rows)


def blame_lines(blame: Blame, limit: int) -> Iterator[list[RenderableType]]:
    """The passes, worst first; the ops of those that are not clean; what to switch off, and what is left to do."""
    yield [*(plain(f"note: {note}", "yellow") for note in blame_notes(blame)), _blame_table(blame.passes)]
    for one in blame.passes:
        if one.verdict in (BlameVerdict.GUILTY, BlameVerdict.SUSPICIOUS):
            yield [_pass_panel(one, limit)]
    unjudged = [one for one in blame.passes if one.verdict is BlameVerdict.NOT_JUDGED]
    if unjudged:
        yield [
            plain("not judged", "bold"),
            LabelledLines([(f"  {safe(one.name)}", plain(shown_reason(pass_words(one)))) for one in unjudged])
            if all(len(one.name) < 30 for one in unjudged)
            else Group(*(_named_reason(one.name, pass_words(one)) for one in unjudged)),
        ]
    yield [*_advice(blame)]


def _named_reason(name: str, reason: str) -> RenderableType:
    return Group(plain(f"  {name}"), LabelledLines([("   ", plain(shown_reason(reason), "dim"))]))


def _blame_table(passes: Sequence[PassBlame]) -> NameTable:
    table = _table(("pass", False), ("verdict", False), ("ops", True), ("worst", True), ("median", True))
    for one in passes:
        name = plain(one.name)
        counts = [f"{one.count(verdict)} {verdict}" for verdict in BlameVerdict if one.count(verdict)]
        if not one.is_switchable:
            counts.append(ALWAYS_MARK)
        beyond = [op for op in one.ops if op.beyond_range is not None]
        if beyond:
            counts.append(f"{len(beyond)} beyond its type's range: [{beyond[0].index}] {beyond_words(beyond[0])}")
        name.append(f"\n  {', '.join(counts)}", style="dim")
        table.add_row(
            name, Text(one.verdict, style=_VERDICT_STYLE[one.verdict]), str(len(one.ops)), _error(one.worst),
            _error(one.median),
        )  # fmt: skip
    return table


def _error(error: float | None) -> str:
    if error is None:
        return "-"
    return f"{error:.2%}" if isfinite(error) else "inf"


def _pass_panel(one: PassBlame, limit: int) -> RenderableType:
    wrong = [op for op in one.ops if op.verdict is one.verdict]
    wrong.sort(key=lambda op: -(op.error or 0.0))
    parts: list[RenderableType] = []
    for op in wrong[: limit or None]:
        parts += [plain(f"[{op.index}] {op.op_name} ({op.op_type})", "bold"), _op_lines(op)]
    if 0 < limit < len(wrong):
        parts.append(Text(f"and {len(wrong) - limit} more; -l N shows more", style="dim"))
    title = Text.assemble((safe(one.name), "bold"), f": {one.verdict}")
    return Box(Group(*parts), title=title, style=_VERDICT_STYLE[one.verdict])


def _op_lines(op: OpBlame) -> RenderableType:
    rows = [("original ops", plain(", ".join(op.originals)))]
    if len(op.passes) > 1:
        rows.append(("made by", plain(", ".join(op.passes))))
    if op.output_error is not None:
        fed = "inputs not compared" if op.input_error is None else f"inputs {_error(op.input_error)} off"
        rows.append(("compared", plain(f"output {_error(op.output_error)} off, {fed}")))
    rows.append(("why", plain(shown_reason(op_words(op)))))
    return LabelledLines(rows)


def _advice(blame: Blame) -> Iterator[RenderableType]:
    if blame.switch_off:
        yield Text.assemble(("switch off: ", "bold"), (safe(", ".join(blame.switch_off)), "bold red"))
        for one in blame.passes:
            clean = one.count(BlameVerdict.CLEAN)
            if one.name in blame.switch_off and clean:
                right = f"{one.name} made {counted(clean, 'op')} that {'is' if clean == 1 else 'are'} right as well"
                yield plain(f"{right}; a switch file turns a pass off for all of them", "dim")
    if blame.unavoidable:
        names = ", ".join(dict.fromkeys(name for op in blame.unavoidable for name in op.passes))
        yield plain(f"no switch avoids the fault in {', '.join(op.op_name for op in blame.unavoidable)}", "bold red")
        yield plain(f"{names}: {ALWAYS_ON_REASON}. What is left to do:", "")
        yield from (plain(f"  - {what}") for what in LEFT_TO_DO)
    if not blame.switch_off and not blame.unavoidable:
        suspicious = any(one.verdict is BlameVerdict.SUSPICIOUS for one in blame.passes)
        if not blame.is_judged:
            yield plain("nothing was judged: of no pass that a switch file turns off an op could be", "bold yellow")
        elif suspicious:
            yield plain('no pass is guilty; `fusion bisect --check "CMD"` decides about the suspicious ones', "bold")
        else:
            yield plain("no pass is guilty: every fused op that could be judged computes right", "bold green")


def blame_json(blame: Blame, sources: dict[str, Any]) -> str:
    """The verdicts as one JSON document."""
    passes = [
        {
            "pass": one.name,
            "verdict": one.verdict,
            "reason": pass_words(one),
            "switchable": one.is_switchable,
            "worst": one.worst,
            "median": one.median,
            "ops": [op.op_name for op in one.ops],
        }
        for one in blame.passes
    ]
    return json_text(
        {
            **sources,
            "passes": passes,
            "ops": [op_json(op) for op in blame.ops],
            "switch_off": blame.switch_off,
            "unavoidable": [op.op_name for op in blame.unavoidable],
            "judged": blame.is_judged,
            "notes": blame_notes(blame),
        }
    )


# --- bisection --------------------------------------------------------------------------------------------------------


def try_line(number: int, off: int, total: int, succeeded: bool, code: int | None, seconds: float, again: bool) -> Text:
    """One try, as it ends; `again`: of a set that was tried before."""
    result = Text("succeeds", style="green") if succeeded else Text("fails", style="red")
    if not succeeded:
        result.append(" (out of time)" if code is None else f" ({code})")
    return Text.assemble(
        f"try {number}: {off} of {counted(total, 'pass', 'passes')} off{', again' * again}: ",
        result,
        f", {seconds:.1f} s",
    )


def bisect_lines(
    result: Bisection, tries: Sequence[tuple[tuple[str, ...], bool, int | None, float, str]], total: int
) -> list[RenderableType]:
    """The table of all tries, and what they come to."""
    table = _table(("try", True), ("off", True), ("check", False), ("seconds", True), ("passes off", False))
    first: dict[tuple[str, ...], int] = {}
    for number, (off, succeeded, code, seconds, _) in enumerate(tries, start=1):
        check = Text("succeeds", style="green") if succeeded else Text("fails", style="red")
        if not succeeded:
            check.append(" (time)" if code is None else f" ({code})")
        named = "none" if not off else "all" if len(off) == total else ", ".join(off) if len(off) < SHOWN else "…"
        if first.setdefault(off, number) != number:  # what the result rests on is asked for twice
            named += f" (try {first[off]} again)"
        table.add_row(str(number), str(len(off)), check, f"{seconds:.1f}", plain(named))
    lines: list[RenderableType] = [table]
    if tries:
        lines.append(whole_path(f"{posixpath.dirname(tries[0][4])}/try_*.log"))
    failed = [code for _, succeeded, code, _, _ in tries if not succeeded]
    if failed and all(code is None for code in failed):
        lines.append(plain("every try that failed ran out of time: --timeout may be too short", "yellow"))
    if result.outcome is Outcome.NOT_FUSION:
        lines.append(plain("What is left to do:"))
        lines.append(plain("  - see in a log whether the check uses the switch file of the try (`fusion -h`)"))
        lines.append(plain("  - if it is an op of a pass that is always on (`fusion blame` tells):"))
        lines += [plain(f"    - {what}") for what in LEFT_TO_DO]
    if result.interact:
        lines.append(plain("passes interact: switching off more was seen to break what less had mended", "yellow"))
    lines.append(_bisect_verdict(result))
    return lines


def _bisect_verdict(result: Bisection) -> Text:
    if result.outcome is Outcome.FOUND:
        count = counted(len(result.off), "pass has", "passes have")
        return Text.assemble(
            (f"{count} to be off for the check to succeed: ", "bold"), (safe(", ".join(sorted(result.off))), "bold red")
        )
    if result.outcome is Outcome.NOT_NEEDED:
        return plain("the check succeeds with all of these passes on: there is nothing to find", "bold green")
    if result.outcome is Outcome.NOT_FUSION:
        why = "the check fails with all of these passes off as well, so that switching them off cannot mend it"
        return plain(why, "bold yellow")
    off = ", ".join(sorted(result.off)) or "none"
    return plain(f"the check gave different answers for the same passes off: {off}", "bold red")


def bisect_json(
    result: Bisection, tries: Sequence[tuple[tuple[str, ...], bool, int | None, float, str]], passes: Sequence[str]
) -> str:
    """The bisection as one JSON document."""
    return json_text(
        {
            "outcome": result.outcome,
            "off": sorted(result.off),
            "interact": result.interact,
            "sets": result.tries,
            "passes": passes,
            "tries": [
                {"off": off, "succeeded": succeeded, "code": code, "seconds": seconds, "log": log}
                for off, succeeded, code, seconds, log in tries
            ],
        }
    )


# --- graph diff -------------------------------------------------------------------------------------------------------


def diff_lines(diff: GraphDiff, names: tuple[str, str], limit: int) -> Iterator[list[RenderableType]]:
    """What differs, in groups. `names` are what the two graphs are called."""
    one = diff.similarity
    yield [
        LabelledLines(
            [
                (names[0], plain(f"{counted(one.left_ops, 'op')}, {shown_path(one.left)}")),
                (names[1], plain(f"{counted(one.right_ops, 'op')}, {shown_path(one.right)}")),
                ("alike", plain(f"{one.share:.1%}: {counted(one.alike, 'op')} with one of the same name and type")),
            ]
        )
    ]
    if diff.passes:
        table = _table(("pass", False), (names[0], True), (names[1], True), ("", False))
        for row in diff.passes:
            state = _pass_state(row, names[1] if row.left else names[0])
            table.add_row(plain(row.name), str(row.left or "-"), str(row.right or "-"), state)
        yield [plain("ops made by fusion passes", "bold"), table]
    for side, name, other in (("left", *names), ("right", *names[::-1])):
        groups = [group for group in diff.fused if group.side == side]
        if groups:
            yield [plain(f"fused in {name}, single ops in {other}", "bold"), *_fused_lines(groups, limit)]
    for name, found in zip(names, (diff.only_left, diff.only_right), strict=True):
        if found:
            yield [plain(f"only in {name}, and not because of fusion", "bold"), _group_lines(found, limit)]
    if one.inserted:
        changed = [f"{name} {left} / {right}" for name, left, right in one.inserted]
        yield [LabelledLines([("put in by the compiler", plain(", ".join(changed)))])]
    if diff.differences:
        title = "ops of both that differ, and outputs of fused ops that do"
        yield [plain(title, "bold"), _group_lines(diff.differences, limit)]
    if diff.is_same:
        yield [plain("the graphs have the same ops, types, layouts, shapes and passes", "green")]


def _fused_lines(groups: Sequence[Any], limit: int) -> Iterator[RenderableType]:
    for group in groups:
        originals = sum(len(names) for _, names in group.ops)
        what = f"{counted(len(group.ops), 'op')} for {originals}"
        rows = [(what if not number else "", plain(f"{name} = {', '.join(names)}", "dim"))
                for number, (name, names) in enumerate(group.ops[: limit or None])]  # fmt: skip
        more = len(group.ops) - limit
        if limit and more > 0:
            rows.append(("", plain(f"and {more} more", "dim")))
        yield plain(f"  {group.pass_name}")
        yield LabelledLines([(f"    {label}", text) for label, text in rows])


def _pass_state(row: PassDiff, other: str) -> Text:
    if not row.is_switchable:
        return Text(ALWAYS_MARK, style="yellow")
    if row.is_gone:
        return Text(f"gone in {other}", style="green")
    if row.is_off:
        return Text("still there, though off in the switch file", style="bold red")
    return Text("in both", style="dim")


def _group_lines(groups: Sequence[DiffGroup], limit: int) -> RenderableType:
    rows = []
    for group in groups[: _SHOWN_GROUPS if limit else None]:
        changed = f": {group.left or 'none'} / {group.right or 'none'}" if group.left or group.right else ""
        rows.append((f"  {len(group.ops)}", plain(f"{group.what}{changed}")))
        shown = group.ops[: limit or None]
        more = len(group.ops) - len(shown)
        rows.append(("", plain(", ".join(shown) + (f" and {more} more" if more else ""), "dim")))
    if limit and len(groups) > _SHOWN_GROUPS:
        rest = groups[_SHOWN_GROUPS:]
        told = f"and {counted(len(rest), 'group')} of {sum(len(group.ops) for group in rest)} more; -l 0 shows all"
        rows.append(("", plain(told, "dim")))
    return LabelledLines(rows)


def diff_json(diff: GraphDiff) -> str:
    """The differences as one JSON document."""
    return json_text({**asdict(diff), "share": diff.similarity.share})
