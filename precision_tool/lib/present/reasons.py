"""Words for why an op was not recomputed, or not judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from precision_tool.lib.model.reason import Reason, Shape, Why
from precision_tool.lib.verdict.judgement import Tally

#: What a reason says; `{name}` is a field of it.
WORDS: Mapping[Why, str] = {
    Why.NO_FORMULA: "there is no formula for {op_type}",
    Why.NO_VARIANT: "there is no formula for {op_type} with {name} {value}",
    Why.UNDOCUMENTED: "what {name} does in {op_type} is not documented",
    Why.NO_ATTRIBUTE: "{op_type} has no attribute {name}",
    Why.NOT_GIVEN: "{op_type} has no {name}, neither as attribute nor as input",
    Why.NO_SIZE: "{op_type} tells neither the size of its result nor its padding",
    Why.NOT_WHOLE: "the attribute {name} of {op_type} is {value} and not a whole number",
    Why.NOT_NUMBER: "the attribute {name} of {op_type} is {value} and not a number",
    Why.NOT_WHOLE_NUMBERS: "{name} of {op_type} are no whole numbers",
    Why.NOT_SINGLE: "{name} of {op_type} is {number} numbers instead of one",
    Why.NOT_ALLOWED: "{name} of {op_type} cannot be {value}",
    Why.EXCLUSIVE: "{name} and {other} of {op_type} exclude each other",
    Why.TWICE: "{name} {value} of {op_type} name one twice",
    Why.OUT_OF_RANGE: "{op_type}: {name} {value} outside of {limit}",
    Why.OUT_OF_SHAPE: "{op_type}: {name} {value} reaches outside of the shape {shape}",
    Why.CUTS_OUTSIDE: "{op_type} cuts outside of the shape {shape}",
    Why.AXES_OF_SPACE: "{name} {value} of {op_type} is not for {number} axes of space",
    Why.OVER_CHANNELS: "{name} {value} of {op_type} reaches over batch or channels",
    Why.WINDOW: "windows of {op_type} reach over {number} elements of {limit}",
    Why.VALUE_MISFIT: "{op_type}: {name} {value} does not fit the shape {shapes}",
    Why.VALUE_INPUTS: "{op_type}: {name} {value} does not fit {number} inputs",
    Why.NOT_CONNECTED: "input {slot} of {op_type} is not connected",
    Why.INPUT_COUNT: "there is no formula for {op_type} of {number} inputs",
    Why.INPUTS_EXPECTED: "{op_type} has {number} inputs instead of {limit}",
    Why.DATA_TYPE: "there is no formula for {op_type} with {name} of type {dtype}",
    Why.TYPES_DIFFER: "{op_type}: {name} is of type {dtype} and not of {value}",
    Why.NO_CONVERSION: "there is no formula for {op_type} from {dtype} to {value}",
    Why.NEGATIVE_POWER: "there is no formula for {op_type} of whole numbers to a negative power",
    Why.SHAPE: "{op_type} does not take {name} of the shape {shape}",
    Why.SHAPE_EXPECTED: "{op_type}: {name} has the shape {shape} and not {other_shape}",
    Why.SHAPE_ROWS: "{op_type}: {name} of the shape {shape} does not fit {number} inputs",
    Why.SHAPE_MISFIT: "{op_type}: {name} of the shape {shape} does not fit {other} of the shape {other_shape}",
    Why.SHAPES_MISFIT: "{op_type}: the shapes {shapes} of {name} do not fit each other",
    Why.TYPED_MISFIT: (
        "{op_type}: {name} of the shape {shape} and type {dtype} does not fit {other} of the shape {other_shape}"
    ),
    Why.FILTER_MISFIT: "{op_type}: {name} of the shape {shape} does not fit {limit} channels",
    Why.GROUPS_MISFIT: "{op_type}: {name} of the shape {shape} does not fit {limit} channels in {number} groups",
    Why.COUNT_MISFIT: "{op_type}: {name} has {number} elements for {limit} {other}",
    Why.AXIS_COUNT: "{op_type}: {name} has {number} axes instead of {limit}",
    Why.AXIS_DIFFERS: "axis {name} of {op_type} has {number} and {limit} elements",
    Why.NO_MULTIPLE: "{op_type}: {number} {name} are no multiple of {limit}",
    Why.NO_BROADCAST: "the shapes {shapes} of {op_type} do not broadcast",
    Why.NO_PRODUCT: "the shapes {shapes} of {op_type} give no matrix product",
    Why.SHAPES_DIFFER: "the shapes {shapes} of {op_type} differ",
    Why.NO_SHAPE: "{op_type}: {shape} is no shape",
    Why.NOT_HELD: "{op_type}: the shape {shape} does not hold the {number} elements",
    Why.EMPTY: "{op_type} of nothing is not defined",
    Why.NOT_FINITE: "{name} of {op_type} are not finite",
    Why.UNSORTED: "{name} of {op_type} are not sorted",
    Why.CONTRADICTION: "its inputs and attributes contradict each other ({detail})",
    Why.UNORDERED: "the order of what {op_type} gives is not defined",
    Why.INDEX_TWICE: "an index of {op_type} comes twice: the order of its updates is not defined",
    Why.TIED: "what {op_type} gives hangs on an order that is not defined: two {name} are the same",
    Why.AT_THRESHOLD: "what {op_type} gives hangs on rounding: {name} is at the threshold",
    Why.NO_OUTPUT_SHAPE: "the graph does not say the shape of the output",
    Why.OTHER_THAN_GRAPH: (
        "output {slot} of {op_type} is {shape} by inputs and attributes, {other_shape} by the graph"
    ),
    Why.OTHER_THAN_DUMPED: "output {slot} has the shape {shape}, the recomputed one {other_shape}",
    Why.OUTPUT_WITHOUT_FORMULA: "output {slot} has no formula",
    Why.OUTPUTS_WITHOUT_FORMULA: "no output of it has a formula ({value})",
    Why.NO_DUMPED_OUTPUT: "no output that has a formula was dumped",
    Why.NOWHERE_FINITE: "its true result is nowhere finite",
    Why.ROUNDING_UNKNOWN: "how {dtype} is rounded is not known here",
    Why.NOT_DUMPED: "neither it nor what reads it was dumped",
    Why.INPUT_NOT_DUMPED: "input {slot} was not dumped",
    Why.INPUT_STATISTICS: "only statistics of input {slot} were dumped",
    Why.INPUT_UNREADABLE: "input {slot}: {detail}",
    Why.UNREADABLE: "{detail}",
    Why.NO_NUMBERS: "elements of type {dtype} are no numbers",
    Why.AXES_UNKNOWN: "the order of its axes is not known",
    Why.FED_UNKNOWN: "input {slot} of {name} is not known",
    Why.FED_WITHOUT_FORMULA: "{op_type} is fed a result that has no formula",
    Why.TOO_LARGE: "{op_type}: the shape {shape} has more than {limit} elements",
    Why.TOO_MANY_AXES: "{op_type}: a shape of {number} axes, where {limit} are allowed",
    Why.TOO_MANY_ELEMENTS: "too large to recompute whole: {number} elements",
    Why.TOO_MANY_PRODUCTS: "too large to recompute whole: {number} products",
    Why.OUT_OF_MEMORY: "too large for the memory there is",
    Why.OUT_OF_TIME: "the time for recomputing was over",
    Why.WORKER_DIED: "a process that recomputed ops died: was it killed for its memory?",
    Why.NOT_DONE: "{detail}",
    Why.FORMULA_FAILED: "the formula for {op_type} failed: {detail}",
    Why.FUSED_UNKNOWN: "how it is fused is not known",
    Why.FUSED_GUESSED: "how its ops hang together is only guessed",
    Why.FUSED_NONE_FITS: "none of the ways in which its ops may hang together gives what it put out",
    Why.BENCHMARK_DISOBEYS: "the benchmark does not obey its formula either",
    Why.ROWS_OFF: "more of its rows than are recomputed have sums that are off, or not finite",
}


def reason_words(reason: Reason | str | None) -> str:
    """A reason as a sentence, empty for none; one of an older release as it is."""
    if reason is None or isinstance(reason, str):
        return reason or ""
    words = WORDS[reason.why].format_map({each.name: _shown(getattr(reason, each.name)) for each in fields(reason)})
    return "; ".join((words, *map(reason_words, reason.also)))


def reason_kind(reason: Reason | str | None) -> str | None:
    """The kind of a reason as JSON has it; None for none, and for one of an older release."""
    return str(reason.why) if isinstance(reason, Reason) else None


def reason_counts(tally: Tally) -> list[tuple[str, int]]:
    """Why ops were not recomputed, in words, with how many were not; the most frequent first."""
    counts: dict[str, int] = {}
    for reason, count in tally.reasons:
        words = reason_words(reason)
        counts[words] = counts.get(words, 0) + count
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def kind_counts(tally: Tally) -> dict[str, int]:
    """The same by kind, without those of older releases."""
    counts: dict[str, int] = {}
    for reason, count in tally.reasons:
        kind = reason_kind(reason)
        if kind is not None:
            counts[kind] = counts.get(kind, 0) + count
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _shown(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return " and ".join(map(_shape, value))
    if isinstance(value, tuple):
        return _shape(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
