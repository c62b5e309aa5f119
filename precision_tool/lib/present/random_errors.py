"""What `random` shows, and the JSON of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.checks.memory import Stomp, memory_advice
from precision_tool.lib.checks.passports import PassportPair
from precision_tool.lib.checks.random_errors import (
    Kind,
    RandomOp,
    RandomReport,
    SlotPair,
    State,
)
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.present.judged import judged_json, judged_words
from precision_tool.lib.present.passports import pair_json
from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.present.text import (
    LabelledLines,
    counted,
    json_text,
    op_heading,
    plain,
    safe,
    shown_reason,
    unreadable_lines,
    whole_path,
)
from precision_tool.lib.present.whole import Box, NameTable, Prose
from precision_tool.lib.workspace import shown_path

#: The kinds in the user's words, and their colours.
KIND_WORDS = {
    Kind.EQUAL: ("the same", "green"),
    Kind.RANDOM: ("computes differently", "bold red"),
    Kind.EXPECTED: ("random by design", "cyan"),
    Kind.FOLLOWER: ("follows", "yellow"),
    Kind.DATA: ("was fed other data", "bold red"),
    Kind.UNSURE: ("unsure", "yellow"),
    Kind.NOT_COMPARED: ("not compared", "dim"),
}
_STATE_STYLE = {State.EQUAL: "green", State.SAME_VALUES: "green", State.DIFFERENT: "bold red", State.UNKNOWN: "dim"}
_SHOWN_BETWEEN = 5
_SHOWN_APART = 3
NO_PAIR = (
    "These are no two runs of one script: their ops are not the same, so that differences may come from that. Only ops "
    "that both have are compared, and no noise floor is written. Of a run with fusion and one without, `fusion blame` "
    "tells which pass changes results."
)


def random_lines(report: RandomReport, limit: int) -> list[RenderableType]:
    """All that `random` shows of one pair of leaves, or of one run alone."""
    rows = [("run", whole_path(report.left))]
    if report.right:
        rows.append(("other run", whole_path(report.right)))
    if report.graph:
        rows.append(("graph", whole_path(report.graph)))
    parts: list[RenderableType] = [LabelledLines(rows)]
    if report.right:
        parts += list(_run_parts(report, limit))
    parts += list(_memory_parts(report, limit))
    parts += unreadable_lines(report.unreadable)
    return parts


def _run_parts(report: RandomReport, limit: int) -> Iterator[RenderableType]:
    counts = Counter(op.kind for op in report.ops)
    slots = Counter(one.state for op in report.ops for one in op.slots)
    told = ", ".join(
        f"{counts[kind]} {words}" if kind is not Kind.FOLLOWER else f"{counts[kind]} follow"
        for kind, (words, _) in KIND_WORDS.items()
        if counts[kind]
    )
    compared = slots.total() - slots[State.UNKNOWN]
    bits = f"{slots[State.EQUAL] + slots[State.SAME_VALUES]} of {counted(compared, 'tensor')} are the same"
    if slots[State.UNKNOWN]:
        bits += f"; {slots[State.UNKNOWN]} more could not be compared"
    lines = [
        ("bit by bit", plain(bits)),
        ("ops", plain(f"{len(report.ops)}: {told}")),
    ]
    apart = (("first only", report.left_only), ("other only", report.right_only), ("two types", report.other_types))
    for label, alone in apart:
        if alone:
            begin = ", ".join(alone[:_SHOWN_APART]) + (", …" if len(alone) > _SHOWN_APART else "")
            lines.append((label, plain(f"{counted(len(alone), 'op')}: {begin}", "yellow")))
    yield LabelledLines(lines)
    if not report.is_pair:
        yield plain(NO_PAIR, "bold yellow")
    shown = report.of(Kind.DATA, Kind.RANDOM, Kind.UNSURE)
    for op in shown[:limit]:
        yield op_panel(op, is_first=op is report.first)
    if len(shown) > limit:
        yield Text(f"{limit} of {len(shown)} ops shown, in execution order; -l N shows more", style="dim")
    if not shown:
        unread = report.of(Kind.NOT_COMPARED)
        words = "No op computes differently in the two runs"
        words += ", of those that both have" if not report.is_pair else ""
        words += (
            f", of those that could be compared: not {unread[0].name}: {reason_words(unread[0].why)}" if unread else "."
        )
        yield plain(shown_reason(words), "yellow" if unread or not report.is_pair else "green")
    expected = report.of(Kind.EXPECTED)
    if expected:
        names = ", ".join(f"{op.name} ({op.op_type})" for op in expected[:limit])
        more = f" and {len(expected) - limit} more" if len(expected) > limit else ""
        yield plain(f"random by design: {names}{more}; fix their seeds or switch them off to compare the rest", "cyan")
    followers = report.of(Kind.FOLLOWER)
    if followers:
        first = followers[0]
        yield plain(
            f"followers: {counted(len(followers), 'op')}, the first {first.name}: {reason_words(first.why)}", "dim"
        )


def conclusion_box(reports: Sequence[RandomReport]) -> RenderableType:
    """What it comes to, the heaviest on the screen and the last."""
    lines = [Prose(words) for one in reports for words in _conclusion(one, several=len(reports) > 1)]
    is_clean = all(one.is_clean and not one.unreadable for one in reports)
    found = any(one.first is not None or one.stomps for one in reports)
    style = "bold red" if found else "green" if is_clean else "yellow"
    return Box(Group(*lines), title=Text("Random errors"), style=style, box=box.HEAVY)


def _conclusion(report: RandomReport, *, several: bool) -> Iterator[Text]:
    where = f"{shown_path(report.left)}: " if several else ""
    first = report.first
    if first is not None:
        words = "computes differently in the two runs" if first.kind is Kind.RANDOM else KIND_WORDS[first.kind][0]
        yield Text.assemble(safe(where), (safe(first.name), "bold red"), f" ({safe(first.op_type)}) {words}")
    elif report.right:
        yield plain(where + _same_words(report))
    if report.stomps:
        number = f"{counted(len(report.stomps), 'input')} {'was' if len(report.stomps) == 1 else 'were'} overwritten"
        stomp = report.stomps[0]
        yield plain(f"{where}{number} in memory, the first {stomp.consumer} input:{stomp.slot}", "bold red")
    elif not report.right:
        words = "no input was overwritten in memory" if report.memory_checked else "memory could not be checked"
        yield plain(f"{where}{words}; whether ops repeat themselves takes a second run, in npu/debug_1")


def _same_words(report: RandomReport) -> str:
    """That no op differs, and of which this is not known."""
    unread = report.of(Kind.NOT_COMPARED)
    words = "no op computes differently in the two runs"
    words += ", of those that both have" if not report.is_pair else ""
    return words + (f", of those that could be compared: {counted(len(unread), 'op')} could not" if unread else "")


def op_panel(op: RandomOp, *, is_first: bool) -> RenderableType:
    """One op that differs, with the state of each of its tensors."""
    words, style = KIND_WORDS[op.kind]
    rows: list[tuple[str, Text]] = []
    if op.pass_names:
        rows.append(("pass", plain(", ".join(op.pass_names))))
    if op.original_names and op.original_names != (op.name,):
        rows.append(("original", plain(", ".join(op.original_names))))
    for name, judged in zip(("first run", "other run"), op.judged, strict=False):
        rows.append((name, plain(shown_reason(judged_words(judged)))))
    what = "the first op that computes differently: " if is_first else ""
    body = Group(
        plain(f"{what}{reason_words(op.why)}", "bold"), LabelledLines(rows) if rows else Text(), slot_table(op.slots)
    )
    title = Text.assemble(op_heading(op.number, op.name, op.op_type), " ", (words, style))
    return Box(body, title=title, style=style.removeprefix("bold "))


def slot_table(slots: Sequence[SlotPair]) -> NameTable:
    """Each tensor: the same or not, and how far off."""
    table = NameTable(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for name in ("slot", "dtype"):
        table.add_column(name, no_wrap=True)
    table.add_column("shape", min_width=6)
    table.add_column("bits")
    for name in ("cosine", "max error", "relative"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in slots:
        tensor = one.left or one.right
        numbers = ["-"] * 3
        if one.metrics is not None:
            found = one.metrics
            relative = found.relative_euclidean_distance
            numbers = [f"{found.cosine:.6f}", f"{found.max_absolute_error:.3g}", f"{relative:.2e}"]
            if isnan(found.cosine):
                numbers[0] = "nan"
        state = one.state.value + (" (in place)" if one.in_place else "")
        table.add_row(
            plain(one.slot, "bold"),
            plain(tensor.dtype if tensor is not None else "-"),
            plain(shape_text(tensor.shape) if tensor is not None else "-"),
            plain(state, _STATE_STYLE[one.state]),
            *map(Text, numbers),
        )
    return table


def _memory_parts(report: RandomReport, limit: int) -> Iterator[RenderableType]:
    checked = counted(report.memory_checked, "input")
    if not report.memory_checked:
        yield plain("memory: not checked, as no graph tells which op feeds which, or inputs were not dumped", "dim")
        return
    if not report.stomps:
        yield plain(f"memory: {checked} are what the ops before put out", "green")
        return
    yield plain(f"memory: {len(report.stomps)} of {checked} are not what the ops before put out", "bold red")
    for stomp in report.stomps[:limit]:
        yield stomp_panel(stomp)
    if len(report.stomps) > limit:
        yield Text(f"{limit} of {len(report.stomps)} shown, in execution order; -l N shows more", style="dim")
    yield LabelledLines([("what to do", plain(reason_words(memory_advice(report.stomps))))])


def stomp_panel(stomp: Stomp) -> RenderableType:
    """One input whose memory was overwritten: where, and what ran between."""
    found = stomp.difference
    rows: list[tuple[str, Text]] = [
        ("producer", plain(f"{stomp.producer} ({stomp.producer_type}) output:{stomp.index}")),
        ("consumer", plain(f"{stomp.consumer} ({stomp.consumer_type}) input:{stomp.slot}")),
    ]
    if stomp.address:
        rows.append(("memory", plain(f"{stomp.address:#x} to {stomp.address + stomp.nbytes - 1:#x}")))
        rows.append(
            (
                "overwritten",
                plain(
                    f"{stomp.address + found.first:#x} to {stomp.address + found.last:#x}: {found.count:,} of "
                    f"{stomp.nbytes:,} bytes differ"
                ),
            )
        )
    else:
        rows.append(("overwritten", plain(f"bytes {found.first:,} to {found.last:,} of {stomp.nbytes:,}")))
        rows.append(("", plain("the dump tells no addresses, so who wrote there cannot be told", "dim")))
    for at, one in enumerate(stomp.suspects[:_SHOWN_BETWEEN]):
        proof = ", and its bytes were read" if one.holds else ""
        rows.append(("" if at else "suspect", plain(f"{one.name} ({one.op_type}) writes there{proof}", "bold red")))
    others = [one for one in stomp.between if not one.writes]
    names = ", ".join(one.name for one in others[:_SHOWN_BETWEEN])
    more = stomp.ran_between - len(stomp.suspects) - min(len(others), _SHOWN_BETWEEN)
    if others:
        which = f"between the two: {names}" + (f" and {more} more" if more > 0 else "")
        rows.append(("ran too", plain(which + ("; none writes there" if stomp.address else ""), "dim")))
    if not stomp.ran_between:
        rows.append(("between", plain("no dumped op ran between: look at what is not dumped (communication, host)")))
    message = f"{stomp.consumer} reads something else than {stomp.producer} put out ({shown_path(stomp.run)})"
    title = Text("Memory overwritten")
    return Box(Group(plain(message, "bold"), LabelledLines(rows)), title=title, style="red")


def noise_line(path: str) -> Text:
    """Where the noise floor is."""
    return plain(f"noise floor: {shown_path(path)} (`vc --noise-floor` judges errors against it)")


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(reports: Sequence[RandomReport], noise: str, passports: PassportPair | None = None) -> str:
    """All pairs of leaves as one JSON document, with what the two runs were."""
    return json_text(
        {
            "pairs": [_report_json(one) for one in reports],
            "noise_floor": noise or None,
            "passports": None if passports is None else pair_json(passports),
        }
    )


def _report_json(report: RandomReport) -> dict[str, Any]:
    first = report.first
    return {
        "run": report.left,
        "other_run": report.right or None,
        "graph": report.graph or None,
        "first": None if first is None else first.name,
        "ops": [_op_json(op) for op in report.ops],
        "is_pair": report.is_pair,
        "one_run_only": [*report.left_only, *report.right_only],
        "first_run_only": list(report.left_only),
        "other_run_only": list(report.right_only),
        "other_types": list(report.other_types),
        "unreadable": list(report.unreadable),
        "memory_checked": report.memory_checked,
        "overwritten": [_stomp_json(stomp) for stomp in report.stomps],
        "advice": reason_words(memory_advice(report.stomps)) or None,
    }


def _op_json(op: RandomOp) -> dict[str, Any]:
    return {
        "name": op.name,
        "type": op.op_type,
        "kind": op.kind,
        "why": reason_words(op.why),
        "judged": [judged_json(one) for one in op.judged],
        "pass": list(op.pass_names),
        "original_ops": list(op.original_names),
        "tensors": [
            {
                "slot": one.slot,
                "state": one.state,
                "in_place": one.in_place,
                "producer": one.producer or None,
                "reason": reason_words(one.reason),
                "metrics": None if one.metrics is None else asdict(one.metrics),
            }
            for one in op.slots
        ],
    }


def _stomp_json(stomp: Stomp) -> dict[str, Any]:
    found = stomp.difference
    return {
        "run": stomp.run,
        "consumer": stomp.consumer,
        "input": stomp.slot,
        "producer": stomp.producer,
        "output": stomp.index,
        "address": stomp.address or None,
        "first_byte": found.first,
        "last_byte": found.last,
        "bytes_that_differ": found.count,
        "bytes": stomp.nbytes,
        "suspects": [asdict(one) for one in stomp.suspects],
        "between": [asdict(one) for one in stomp.between],
        "ran_between": stomp.ran_between,
    }
