"""What is said and written of the smallest case of an op: one sentence, its figures, and the op alone for atc."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from precision_tool.lib.diagnose.error_shape import Mistake, Places
from precision_tool.lib.diagnose.formulas import Stage
from precision_tool.lib.diagnose.minimize import Case, Minimized, Part, SizeRule, Span
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.ops.base import Input
from precision_tool.lib.view.verdict_messages import pattern_message

#: Longer texts are no attributes of a kernel.
_LONGEST = 200


def sentence(minimized: Minimized) -> Message:
    """Return the sentence that generalizes a smallest case."""
    rules, spans = [_rule(rule) for rule in minimized.rules], [_span(span) for span in minimized.spans]
    if minimized.is_at_any_size:
        spans = []  # where the whole op is wrong says nothing of a kernel that is wrong at any size
    clauses = [
        *[Message("minimal.when", rules=tuple(rules))] * bool(rules),
        *[Message("minimal.where", spans=tuple(spans), whole=bool(rules))] * bool(spans),
    ] or [Message("minimal.everywhere", sizes=minimized.is_at_any_size, part=bool(minimized.spans))]
    pattern = _pattern(minimized.places)
    if pattern is not None:
        clauses.append(pattern)
    if minimized.as_if is not None:
        name, value, other = minimized.as_if
        kind = "minimal.sums" if name == "sums" else "minimal.as_if"
        clauses.append(Message(kind, name=name, value=value, other=other))
    return Message("minimal.sentence", clauses=tuple(clauses))


def _pattern(places: Places | None) -> Message | None:
    """Return the simple mistake; None where the spans say it, or none fits."""
    if places is None or places.mistake in (Mistake.TAIL, Mistake.UNKNOWN):
        return None
    is_everywhere = places.wrong == places.size
    facts = {**asdict(places), "wrong_elements": places.wrong, "elements": places.size, "axis": None}
    if places.mistake is Mistake.SHIFTED:
        facts["axis"] = places.axis
    if places.mistake is Mistake.ZERO and not is_everywhere:
        return None
    return pattern_message(facts.get)


def changed(values: Mapping[str, Any]) -> Message | None:
    """Return which attributes of the smallest case differ from the op's own; None if none does."""
    return (
        Message("minimal.changed", changed=tuple(f"{name}={value}" for name, value in values.items()))
        if values
        else None
    )


def _rule(rule: SizeRule) -> Message:
    axis = _axis(rule.slot, rule.axis, is_output=rule.is_output, is_last=rule.is_last)
    return Message(
        f"minimal.rule.{rule.condition}", axis=axis, number=rule.number, wrong=rule.wrong, right=rule.right
    )  # fmt: skip


def _span(span: Span) -> Message:
    axis = _axis(span.slot, span.axis, is_output=True, is_last=span.is_last)
    second = span.first + span.block if span.part is Part.EVERY else None
    return Message(
        f"minimal.part.{span.part}", axis=axis, first=span.first, last=span.last, count=span.count, size=span.size,
        block=span.block, second=second,
    )  # fmt: skip


def _axis(slot: int, axis: int, *, is_output: bool, is_last: bool) -> Message:
    if is_output and is_last:
        return Message("minimal.axis.last")
    return Message("minimal.axis.output" if is_output else "minimal.axis.input", axis=axis, slot=slot)


def minimized_document(minimized: Minimized) -> dict[str, Any]:
    """Return what JSON has of a smallest case."""
    as_if = minimized.as_if
    return {
        "sentence": sentence(minimized),
        "elements_before": minimized.original.elements,
        "elements": minimized.case.elements,
        "runs": minimized.runs,
        "failed": minimized.failed,
        "limit": minimized.limit,
        "is_limited": minimized.is_limited,
        "is_stopped": minimized.is_stopped,
        "is_at_any_size": minimized.is_at_any_size,
        "is_cut": not minimized.runs,
        "rules": [asdict(rule) for rule in minimized.rules],
        "spans": [asdict(span) for span in minimized.spans],
        "changed": dict(minimized.changed),
        "as_if": None if as_if is None else dict(zip(("name", "value", "other"), as_if, strict=True)),
    }


# --- for kernels --------------------------------------------------------------------------------------------------


def attributes_of(stage: Stage) -> dict[str, Any]:
    """Return the attributes of a stage that JSON can hold, but for those that the compiler keeps for itself."""
    return dict(_attributes(stage.attrs))


def _attributes(attrs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in sorted(attrs):
        if name.startswith("_") or name.endswith("_kernelname"):
            continue
        try:
            value = _plain(attrs[name])
        except (FormatError, TypeError):
            continue
        yield name, value


def _plain(value: Any) -> Any:
    """Return a value as JSON has it. TypeError for what it has not."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= _LONGEST):
        return value
    raise TypeError


def single_op(case: Case) -> list[dict[str, Any]] | None:
    """Return the op as atc's --singleop takes it; None of a case of several ops."""
    if len(case.formula.stages) != 1 or case.formula.lent:
        return None
    (stage,) = case.formula.stages
    slots = [None if ref is None else ref.slot for ref in stage.args]
    described: dict[str, Any] = {
        "op": stage.op_type,
        "input_desc": [_described(None if slot is None else case.inputs.get(slot)) for slot in slots],
        "output_desc": [_described(tensor) for _, tensor in sorted(case.got.items())],
    }
    attributes = [
        {"name": name, "type": kind, "value": value}
        for name, value in attributes_of(stage).items()
        if (kind := _kind(value))
    ]
    return [{**described, "attr": attributes} if attributes else described]


def _described(tensor: Input | None) -> dict[str, Any]:
    if tensor is None:  # an optional input that is not connected
        return {"format": "RESERVED", "shape": [], "type": "UNDEFINED"}
    return {"format": tensor.layout, "shape": list(tensor.array.shape), "type": tensor.dtype}


def _kind(value: Any) -> str:
    """Return atc's name of the type of a value; "" for what has none."""
    if isinstance(value, list):
        kinds = {_kind(item) for item in value}
        return f"list_{kinds.pop()}" if len(kinds) == 1 and "" not in kinds else ""
    names = {bool: "bool", int: "int", float: "float", str: "string"}
    return names.get(type(value), "")
