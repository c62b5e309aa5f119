"""Screens of `random`, and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.passports import PassportPair
from precision_tool.lib.diagnose.random_errors import (
    Kind,
    RandomOp,
    RandomReport,
    SlotPair,
    State,
    Stomp,
    memory_advice,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.view.findings import pair_json
from precision_tool.lib.view.tables import NUMBERS, Box, NameTable, Prose, figure_table
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    json_text,
    label,
    labelled,
    op_heading,
    origin_lines,
    plain,
    safe,
    shown,
    shown_reason,
    unreadable_lines,
    whole_path,
)
from precision_tool.lib.view.verdict_messages import reason_words
from precision_tool.lib.view.verdict_screen import judged_json, judged_words

_KIND_STYLES = {
    Kind.EQUAL: "green",
    Kind.RANDOM: "bold red",
    Kind.EXPECTED: "cyan",
    Kind.FOLLOWER: "yellow",
    Kind.DATA: "bold red",
    Kind.UNSURE: "yellow",
    Kind.NOT_COMPARED: "dim",
}
_STATE_STYLE = {State.EQUAL: "green", State.SAME_VALUES: "green", State.DIFFERENT: "bold red", State.UNKNOWN: "dim"}
_SHOWN_BETWEEN = 5
_SHOWN_APART = 3


def kind_name(kind: Kind) -> Message:
    return Message(f"screen.view.random.kind.{kind.name.lower()}")


def random_lines(report: RandomReport, limit: int) -> list[RenderableType]:
    rows = [(label("run"), whole_path(report.left))]
    if report.right:
        rows.append((label("other_run"), whole_path(report.right)))
    if report.graph:
        rows.append((label("graph"), whole_path(report.graph)))
    parts: list[RenderableType] = [LabelledLines(rows)]
    if report.right:
        parts += list(_run_parts(report, limit))
    if not report.is_recorded:
        parts += list(_memory_parts(report, limit))
    parts += unreadable_lines(report.unreadable)
    return parts


def _run_parts(report: RandomReport, limit: int) -> Iterator[RenderableType]:
    yield LabelledLines(list(_counts(report)))
    if not report.is_pair:
        yield shown(Message("screen.view.random.not_same_script"), "bold yellow")
    different = report.of(Kind.DATA, Kind.RANDOM, Kind.UNSURE)
    for op in different[:limit]:
        yield op_panel(op, is_first=op is report.first)
    if len(different) > limit:
        yield shown(Message("screen.view.random.some_ops", shown=limit, total=len(different)), "dim")
    if not different:
        yield _all_same(report)
    expected = report.of(Kind.EXPECTED)
    if expected:
        some = [Message("screen.view.random.named", op=safe(op.name), type=safe(op.op_type)) for op in expected[:limit]]
        more = len(expected) - limit if len(expected) > limit else None
        yield shown(Message("screen.view.random.by_design", names=some, more=more), "cyan")
    followers = report.of(Kind.FOLLOWER)
    if followers:
        first = followers[0]
        message = Message(
            "screen.view.random.followers", ops=len(followers), first=safe(first.name), why=reason_words(first.why)
        )  # fmt: skip
        yield shown(message, "dim")


def _counts(report: RandomReport) -> Iterator[Line]:
    """Yield how many tensors are the same, how many ops there are of each kind, and the ops that only one run has."""
    counts = Counter(op.kind for op in report.ops)
    slots = Counter(slot.state for op in report.ops for slot in op.slots)
    unknown = slots[State.UNKNOWN]
    bits = Message(
        "screen.view.random.bits", same=slots[State.EQUAL] + slots[State.SAME_VALUES],
        compared=slots.total() - unknown, unknown=unknown or None,
    )  # fmt: skip
    yield label("bitwise"), shown(bits)
    kinds = [
        Message("screen.view.random.count", count=counts[kind], what=kind_name(kind))
        for kind in _KIND_STYLES
        if counts[kind]
    ]
    yield label("ops"), shown(Message("screen.view.random.ops", ops=len(report.ops), kinds=kinds))
    apart = {"first_only": report.left_only, "other_only": report.right_only, "two_types": report.other_types}
    for name, ops in apart.items():
        if ops:
            names = [safe(op) for op in ops[:_SHOWN_APART]]
            message = Message("screen.view.random.apart", ops=len(ops), names=names, more=len(ops) > _SHOWN_APART)
            yield label(name), shown(message, "yellow")


def _all_same(report: RandomReport) -> Text:
    unread = next(iter(report.of(Kind.NOT_COMPARED)), None)
    same = Message(
        "screen.view.random.all_same", common=not report.is_pair, op="" if unread is None else safe(unread.name),
        why="" if unread is None else shown_reason(reason_words(unread.why)),
    )  # fmt: skip
    return shown(same, "yellow" if unread is not None or not report.is_pair else "green")


def conclusion_box(reports: Sequence[RandomReport]) -> RenderableType:
    """Return the conclusion, last and heaviest on the screen."""
    lines = [Prose(line) for report in reports for line in _conclusion(report, several=len(reports) > 1)]
    is_clean = all(report.is_clean and not report.unreadable for report in reports)
    is_faulty = any(report.first is not None or report.stomps for report in reports)
    style = "bold red" if is_faulty else "green" if is_clean else "yellow"
    return Box(Group(*lines), title=shown(Message("screen.view.random.title")), style=style, box=box.HEAVY)


def _conclusion(report: RandomReport, *, several: bool) -> Iterator[Text]:
    place = safe(shown_path(report.left)) if several else ""
    first = report.first
    if first is not None:
        message = Message(
            "screen.view.random.conclusion.first", place=place, op=safe(first.name), type=safe(first.op_type),
            what=kind_name(first.kind), runs=first.kind is Kind.RANDOM,
        )  # fmt: skip
        yield shown(message, fields={"op": "bold red"})
    elif report.right:
        unread = len(report.of(Kind.NOT_COMPARED)) or None
        yield shown(
            Message("screen.view.random.conclusion.same", place=place, common=not report.is_pair, unread=unread)
        )
    if report.stomps:
        stomp = report.stomps[0]
        message = Message(
            "screen.view.random.conclusion.overwritten", place=place, inputs=len(report.stomps),
            consumer=safe(stomp.consumer), slot=stomp.slot,
        )  # fmt: skip
        yield shown(message, "bold red")
    elif not report.right:
        yield shown(Message("screen.view.random.conclusion.one_run", place=place, checked=bool(report.memory_checked)))


def op_panel(op: RandomOp, *, is_first: bool) -> RenderableType:
    """One op that differs, with the state of each of its tensors."""
    style = _KIND_STYLES[op.kind]
    rows = origin_lines(op)
    for name, judged in zip(("first_run", "other_run"), op.judged, strict=False):
        rows.append((label(name), plain(shown_reason(judged_words(judged)))))
    why = reason_words(op.why)
    head = shown(Message("screen.view.random.first", why=why), "bold") if is_first else plain(why, "bold")
    body = Group(head, LabelledLines(rows) if rows else Text(), slot_table(op.slots))
    title = Text.assemble(op_heading(op.number, op.name, op.op_type), " ", shown(kind_name(op.kind), style))
    return Box(body, title=title, style=style.removeprefix("bold "))


def slot_table(slots: Sequence[SlotPair]) -> NameTable:
    """Each tensor: the same or not, and how far off."""
    table = figure_table()
    table.add_columns("screen.view.op.column", "slot", "dtype", no_wrap=True)
    table.add_columns("screen.view.op.column", "shape", min_width=6)
    table.add_columns("screen.view.random.column", "bits")
    table.add_columns("screen.view.random.column", "cosine", "max_error", "relative", **NUMBERS)
    for slot in slots:
        tensor = slot.left or slot.right
        numbers = ["-"] * 3
        if slot.metrics is not None:
            metrics = slot.metrics
            relative = metrics.relative_euclidean_distance
            numbers = [f"{metrics.cosine:.6f}", f"{metrics.max_absolute_error:.3g}", f"{relative:.2e}"]
            if isnan(metrics.cosine):
                numbers[0] = "nan"
        state = Message(f"screen.view.random.state.{slot.state.name.lower()}")
        if slot.in_place:
            state = Message("screen.view.random.in_place", state=state)
        table.add_row(
            plain(slot.slot, "bold"),
            plain(tensor.dtype if tensor is not None else "-"),
            plain(shape_text(tensor.shape) if tensor is not None else "-"),
            shown(state, _STATE_STYLE[slot.state]),
            *map(Text, numbers),
        )
    return table


def _memory_parts(report: RandomReport, limit: int) -> Iterator[RenderableType]:
    inputs, stomps = report.memory_checked, report.stomps
    if not inputs:
        yield shown(Message("screen.view.random.memory.not_checked"), "dim")
        return
    if not stomps:
        yield shown(Message("screen.view.random.memory.clean", inputs=inputs), "green")
        return
    overwritten = Message("screen.view.random.memory.overwritten", overwritten=len(stomps), inputs=inputs)
    yield shown(overwritten, "bold red")
    for stomp in stomps[:limit]:
        yield stomp_panel(stomp)
    if len(stomps) > limit:
        yield shown(Message("screen.view.random.memory.some", shown=limit, total=len(stomps)), "dim")
    yield LabelledLines([(label("advice"), plain(reason_words(memory_advice(stomps))))])


def stomp_panel(stomp: Stomp) -> RenderableType:
    """One input whose memory was overwritten: where, and what ran between."""
    difference = stomp.difference
    producer, consumer = safe(stomp.producer), safe(stomp.consumer)
    output = Message(
        "screen.view.random.stomp.producer", op=producer, type=safe(stomp.producer_type), slot=stomp.index
    )  # fmt: skip
    read = Message("screen.view.random.stomp.consumer", op=consumer, type=safe(stomp.consumer_type), slot=stomp.slot)
    rows: list[Line] = [(label("producer"), shown(output)), (label("consumer"), shown(read))]
    if stomp.address:
        start, end = f"{stomp.address:#x}", f"{stomp.address + stomp.nbytes - 1:#x}"
        rows.append((label("memory"), shown(Message("screen.view.random.stomp.range", first=start, last=end))))
        overwritten = Message(
            "screen.view.random.stomp.addresses", first=f"{stomp.address + difference.first:#x}",
            last=f"{stomp.address + difference.last:#x}", count=difference.count, bytes=stomp.nbytes,
        )  # fmt: skip
    else:
        overwritten = Message(
            "screen.view.random.stomp.bytes", first=difference.first, last=difference.last, bytes=stomp.nbytes
        )  # fmt: skip
    rows.append((label("overwritten"), shown(overwritten)))
    if not stomp.address:
        rows.append(("", shown(Message("screen.view.random.stomp.no_addresses"), "dim")))
    writes = [
        Message("screen.view.random.stomp.writes", op=safe(op.name), type=safe(op.op_type), proof=op.holds)
        for op in stomp.suspects[:_SHOWN_BETWEEN]
    ]
    rows += labelled(label("suspect"), (shown(message, "bold red") for message in writes))
    others = [op for op in stomp.between if not op.writes]
    more = stomp.ran_between - len(stomp.suspects) - min(len(others), _SHOWN_BETWEEN)
    if others:
        ran_too = Message(
            "screen.view.random.stomp.ran_too", names=[safe(op.name) for op in others[:_SHOWN_BETWEEN]],
            more=max(more, 0) or None, addresses=bool(stomp.address),
        )  # fmt: skip
        rows.append((label("ran_too"), shown(ran_too, "dim")))
    if not stomp.ran_between:
        rows.append((label("between"), shown(Message("screen.view.random.stomp.none_ran"))))
    message = Message(
        "screen.view.random.stomp.message", consumer=consumer, producer=producer, run=safe(shown_path(stomp.run))
    )  # fmt: skip
    title = shown(Message("screen.view.random.stomp.title"))
    return Box(Group(shown(message, "bold"), LabelledLines(rows)), title=title, style="red")


def noise_line(path: str) -> Text:
    return shown(Message("screen.view.random.noise_floor", path=safe(shown_path(path))))


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(reports: Sequence[RandomReport], noise: str, passports: PassportPair | None = None) -> str:
    """All pairs of leaves as one JSON document, with what the two runs were."""
    return json_text(
        {
            "pairs": [_report_json(report) for report in reports],
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
        "judged": [judged_json(judged) for judged in op.judged],
        "pass": list(op.pass_names),
        "original_ops": list(op.original_names),
        "tensors": [
            {
                "slot": slot.slot,
                "state": slot.state,
                "in_place": slot.in_place,
                "producer": slot.producer or None,
                "reason": reason_words(slot.reason),
                "metrics": None if slot.metrics is None else asdict(slot.metrics),
            }
            for slot in op.slots
        ],
    }


def _stomp_json(stomp: Stomp) -> dict[str, Any]:
    difference = stomp.difference
    return {
        "run": stomp.run,
        "consumer": stomp.consumer,
        "input": stomp.slot,
        "producer": stomp.producer,
        "output": stomp.index,
        "address": stomp.address or None,
        "first_byte": difference.first,
        "last_byte": difference.last,
        "bytes_that_differ": difference.count,
        "bytes": stomp.nbytes,
        "suspects": [asdict(op) for op in stomp.suspects],
        "between": [asdict(op) for op in stomp.between],
        "ran_between": stomp.ran_between,
    }
