"""Words for which tensors agree, and which op is the first to compute wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from precision_tool.lib.checks.analysis import OverflowsBefore, PartOnly
from precision_tool.lib.checks.first_fault import (
    AgreePartly,
    AllAgree,
    AllInherited,
    DifferentInput,
    FaultSign,
    FaultyOp,
    NothingCompared,
    NotRead,
    OnlyStatistics,
    OrderUnknown,
    OtherStatistics,
    SlotCosine,
)
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted

#: Inputs that were not compared, ops that were passed over, and ops that were not compared, that are named.
_SHOWN = 3
_GRAPH_AGAIN = ("next", "copy the graph files again, or name one with -g, and compare again")
_INPUTS_DIFFER = "their inputs' differ as well"
_SIGNS = {
    FaultSign.NO_INPUT_COMPARED: "the first op whose output does not agree; no input of it could be compared",
    FaultSign.MUCH_FARTHER_OFF: "the first op whose output is much farther off than its inputs",
    FaultSign.OWN_ERROR: "the first op with an error of its own: its inputs agree, its output does not",
    FaultSign.COMPARED_INPUTS_AGREE: "the first op whose compared inputs agree and whose output does not",
    FaultSign.INPUTS_AGREE: "the first op whose inputs agree and whose output does not",
}


def _only_statistics(one: OnlyStatistics) -> str:
    if not one.differing:
        return "only statistics were dumped, and they agree as far as they tell"
    why = f"the run's graph could not be read: {one.unread_graph}" if one.unread_graph else _INPUTS_DIFFER
    differ = f"only statistics were dumped, and those of {counted(one.ops, 'op')} differ"
    return f"{differ}; which is wrong they do not tell: {why}"


def _different_input(one: DifferentInput) -> str:
    if one.put_out_by:
        return (
            f"{one.slot} of {one.op_name} differs, and {one.put_out_by} put the same tensor out right: it was "
            "changed in between"
        )
    early = f"{one.slot} of {one.op_name} differs before any compared op computed wrong"
    if not one.unseen:
        return f"{early}: the two runs were fed different data or weights"
    return (
        f"{early}: the runs were fed different data or weights, or one of the ops before it that were not compared "
        f"({len(one.unseen)}) computed wrong"
    )


def _other_statistics(one: OtherStatistics) -> str:
    return (
        f"{one.op_name} is the first op whose output has other statistics, though its inputs' do not differ: "
        "evidence of statistics only"
    )


def _cosines(slots: Sequence[SlotCosine]) -> str:
    return ", ".join(f"{one.slot.split(':')[-1]}: {_cosine(one)}" for one in slots) or "none"


def _cosine(one: SlotCosine) -> str:
    if one.cosine is None:
        return "not compared"
    return f"{one.cosine:.6f}" if one.off is None else f"{one.off:.3g} times its size off"


# --- facts ------------------------------------------------------------------------------------------------------------


def _statistics(one: OnlyStatistics | OtherStatistics) -> tuple[str, str]:
    return "statistics", f"of {counted(one.tensors, 'tensor')}, {one.differing} of which differ"


def _only_statistics_facts(one: OnlyStatistics) -> Iterator[tuple[str, str]]:
    yield _statistics(one)
    if not one.differing:
        yield "doubt", "wrong values may have the same statistics; no value was compared"


def _other_statistics_facts(one: OtherStatistics) -> Iterator[tuple[str, str]]:
    yield _statistics(one)
    for slot in one.outputs:
        yield "differs", f"{slot.slot}: {slot.reason}"
    for slot in one.not_compared:
        yield "doubt", f"{slot.slot} was not compared: {slot.reason}"
    if one.fed_before:
        yield "doubt", f"fed values that differ before it: {one.fed_before}"
    if not one.has_inputs:
        yield "doubt", "it has no input: the runs may have been fed different data or weights"
    yield "next", "dump the tensors of it and of what feeds it (dump_data='tensor'), and compare again"


def _order_unknown_facts(one: OrderUnknown) -> Iterator[tuple[str, str]]:
    yield "graph", one.unread_graph
    yield "below", f"{counted(one.below, 'op')} below {one.threshold:.9g}, fused ops and inputs not looked at"
    yield _GRAPH_AGAIN


def _agree_partly_facts(one: AgreePartly) -> Iterator[tuple[str, str]]:
    yield "graph", one.unread_graph or "none: no ge_proto_*_Build.txt was found"
    yield "compared", f"all that was compared reaches a cosine of {one.threshold:.9g}"
    yield _GRAPH_AGAIN


def _not_read_facts(one: NotRead) -> Iterator[tuple[str, str]]:
    for number, row in enumerate(one.first):
        yield "" if number else "first", f"{f'{row.op_name} {row.slot}'.rstrip()}: {row.reason}"
    more = one.count - len(one.first)
    if more:
        yield "", f"more: {counted(more, 'row')} of the result with the status {Status.UNREADABLE}"


def _different_input_facts(one: DifferentInput) -> Iterator[tuple[str, str]]:
    yield "inputs", _cosines(one.inputs)
    if one.put_out_by:
        yield "next", "`random` shows whether its memory was overwritten, and which op writes there"
    for name in one.unseen[-_SHOWN:]:
        yield "not compared", name


def _faulty_op_facts(one: FaultyOp) -> Iterator[tuple[str, str]]:
    yield "inputs", _cosines(one.inputs)
    yield "outputs", _cosines(one.outputs)
    if one.note:
        yield "note", one.note
    if one.is_cancelled:
        yield "doubt", "its true output is zero beside its inputs, so this may be rounding alone"
    elif not one.made_error:
        yield "doubt", "its inputs are nearly as far off: this may be accumulated rounding"
    if not one.has_graph:
        yield "doubt", "without a graph fused ops and inputs are not compared: an op before it may be the faulty one"
        yield _GRAPH_AGAIN
    for slot in one.unknown_inputs[:_SHOWN]:
        yield "doubt", f"{slot.slot} was not compared, so the error may have come in there: {slot.reason}"
    for other in one.passed_over[:_SHOWN]:
        why = "its true output is zero beside its inputs" if other.is_cancelled else "its error is accumulated"
        yield "passed over", f"{other.op_name}: {why}"
    more = len(one.passed_over) - _SHOWN
    if more > 0:
        yield "passed over", f"and {counted(more, 'more op')}"


def _overflows_before_facts(one: OverflowsBefore) -> Iterator[tuple[str, str]]:
    when = " before that" if one.before else ""
    yield "overflow", f"{one.op_name} overflows{when}, see Overflow: begin there"


def _part_only_facts(one: PartOnly) -> Iterator[tuple[str, str]]:
    yield "caveat", one.part


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    AgreePartly: lambda one: (
        f"whether an op computes wrong is not known: no graph, and {one.not_compared:,} of "
        f"{counted(one.tensors, 'tensor')} not compared"
    ),
    AllAgree: lambda one: f"every compared tensor reaches a cosine of {one.threshold:.9g}",
    AllInherited: lambda one: f"every op with a wrong output already has a wrong input; the first is {one.first_op}",
    DifferentInput: _different_input,
    FaultyOp: lambda one: f"{one.op_name} is {_SIGNS[one.sign]}",
    NothingCompared: lambda one: (
        "no tensor could be compared: the notes and the last columns of the result file say why"
    ),
    NotRead: lambda one: f"tensors or files that could not be read: {one.count}; what they hold was not checked",
    OnlyStatistics: _only_statistics,
    OrderUnknown: lambda one: "which op is the first to compute wrong is not known: the run's graph could not be read",
    OtherStatistics: _other_statistics,
}
FACTS: dict[type[Evidence], Callable[[Any], Iterable[tuple[str, str]]]] = {
    AgreePartly: _agree_partly_facts,
    DifferentInput: _different_input_facts,
    FaultyOp: _faulty_op_facts,
    NotRead: _not_read_facts,
    OnlyStatistics: _only_statistics_facts,
    OrderUnknown: _order_unknown_facts,
    OtherStatistics: _other_statistics_facts,
    OverflowsBefore: _overflows_before_facts,
    PartOnly: _part_only_facts,
}
