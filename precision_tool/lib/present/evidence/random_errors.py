"""Words for what two runs of one script differ in, and for memory that was overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from precision_tool.lib.checks.memory import OwnMemory, Stomp, memory_advice
from precision_tool.lib.checks.random_errors import RandomOp, SlotPair
from precision_tool.lib.checks.random_evidence import (
    ByStatistics,
    ComputedDifferently,
    FirstThread,
    InputDiffers,
    InputsUnknown,
    NoNumbers,
    NotCompared,
    OneRunOnly,
    OnlyStatistics,
    OtherData,
    OtherForm,
    OutputNotCompared,
    RandomType,
    Size,
    UnknownInputs,
    ValuesInOneRun,
)
from precision_tool.lib.model.finding import Evidence

_SIZES = {
    Size.UNKNOWN: "by how much cannot be measured",
    Size.ROUNDING: "by roundings only, as of sums in another order (deterministic=True fixes it)",
    Size.MORE: "by more than roundings",
}
_UNKNOWN_INPUTS = {
    UnknownInputs.NOT_DUMPED: "its inputs were not dumped",
    UnknownInputs.WRITTEN_OVER: "what it writes over is only known from afterwards",
    UnknownInputs.NOT_COMPARED: "and none of its inputs can be compared",
}


def op_words(op: RandomOp) -> str:
    """From what the kind of an op is known."""
    return _words(op.evidence)


def slot_words(slot: SlotPair) -> str:
    """What is to be said of a tensor beside its state; "" if nothing is."""
    return _words(slot.reason)


def advice_words(stomps: Sequence[Stomp]) -> str:
    """What to do about memory that was overwritten; "" where none was."""
    return _words(memory_advice(stomps))


def _words(evidence: Evidence | None) -> str:
    return "" if evidence is None else SENTENCES[type(evidence)](evidence)


def _output_not_compared(one: OutputNotCompared) -> str:
    return f"{one.slot}: {_words(one.reason)}" if one.slot else "no output of it was dumped"


def _input_differs(one: InputDiffers) -> str:
    return f"{one.slot} already differs" + (f", from {one.producer}" if one.producer else "")


def _other_data(one: OtherData) -> str:
    why = "" if one.is_fed else " and nothing feeds it"
    return f"{', '.join(one.outputs)} differs{why}: the runs had different data"


def _computed_differently(one: ComputedDifferently) -> str:
    cause = _SIZES[one.size] if one.other_form is None else f"{one.other_slot} is {_other_form(one.other_form)}"
    but = f"; {', '.join(one.unknown)} could not be compared" if one.unknown else ""
    return f"its inputs are the same bit by bit, {', '.join(one.outputs)} is not: {cause}{but}"


def _other_form(one: OtherForm) -> str:
    return f"{one.left_dtype} {list(one.left_shape)} and {one.right_dtype} {list(one.right_shape)}"


def _own_memory(one: OwnMemory) -> str:
    some = ",".join(one.ops)
    if not one.is_writer_dumped:
        return (
            "no dumped op writes there, so look for a kernel that writes beside its output: run again with "
            "op_debug_config 'oom', which stops at it. If it finds none, give the producers memory of their own: "
            f"OP_NO_REUSE_MEM={some}"
        )
    return (
        f"run again with OP_NO_REUSE_MEM={some} in the environment, which gives these ops memory of their own (or with "
        "ge.exec.disableReuseMemory=1, atc --disable_reuse_memory=1, which does so for all). If the fault is gone, GE "
        "gave one memory to two ops: keep the setting, and report the graph to Huawei. If it stays, a kernel writes "
        "beside its output: run with op_debug_config 'oom', which stops at it"
    )


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    ByStatistics: lambda one: "by its statistics",
    ComputedDifferently: _computed_differently,
    FirstThread: lambda one: f"thread {one.thread}",
    InputDiffers: _input_differs,
    InputsUnknown: lambda one: f"{', '.join(one.outputs)} differs, {_UNKNOWN_INPUTS[one.why]}",
    NoNumbers: lambda one: f"elements of type {one.dtype} are no numbers",
    NotCompared: lambda one: str(one.reason),
    OneRunOnly: lambda one: "only one run has it",
    OnlyStatistics: lambda one: "only statistics",
    OtherData: _other_data,
    OtherForm: _other_form,
    OutputNotCompared: _output_not_compared,
    OwnMemory: _own_memory,
    RandomType: lambda one: f"{one.op_type} is random by design",
    ValuesInOneRun: lambda one: "only one run has more than statistics of it",
}
