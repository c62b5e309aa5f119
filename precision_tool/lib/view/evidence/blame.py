"""Words for what the verdict of `fusion blame` on an op or a pass rests on, and its JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from math import isfinite
from typing import Any

from precision_tool.lib.data.fusion_pair import COLLECT_PASSES
from precision_tool.lib.diagnose.fusion_blame import (
    BeyondType,
    Blame,
    BlameVerdict,
    FedNotFinite,
    FormulaDistrusted,
    NotJudged,
    OpBlame,
    PassBlame,
    Recomputed,
    Sign,
)
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted
from precision_tool.lib.view.verdict_messages import reason_words

#: Inputs of the other side, and ops without a pass, that are named.
_NAMED = 3
#: What comparing says: `out` and `into` are how far off the output and the inputs are.
_COMPARED = {
    Sign.ONLY_STATISTICS: "only statistics were dumped",
    Sign.IN_BOTH_RUNS: "the other run has it too, made by {shared}: comparing the two tells nothing (--benchmark may)",
    Sign.AGREES: "its output agrees",
    Sign.OFF_INPUTS_UNKNOWN: "its output is {out} off, which may have come in: no input could be compared",
    Sign.NOT_BELOW: "its output is {out} off, though not below the threshold",
    Sign.CANCELLED: "its true output is zero beside its inputs: only rounding is compared",
    Sign.BEHIND_OTHERS: "its output is {out} off, which may have come in: ops before it are off already",
    Sign.NO_INPUT_COMPARED: "its output is {out} off, and no input could be compared",
    Sign.AS_FAR_AS_INPUTS: "its output is {out} off, and its inputs ({into}) are nearly as far off",
    Sign.ONE_INPUT_UNKNOWN: (
        "its output is {out} off, the inputs that could be compared agree, and {slot} could not be"
    ),
    Sign.INPUTS_AGREE: "its output is {out} off, and its inputs agree",
    Sign.MORE_THAN_INPUTS: "its output is {out} off, much more than its inputs ({into})",
    Sign.MAY_BE_INHERITED: "its inputs are {into} off already, so that its error may be theirs",
}
_RIGHT = {Sign.RIGHT_AS_FED: ": what the comparison shows it was fed", Sign.RIGHT: ""}


def op_words(op: OpBlame) -> str:
    """What the verdict on an op rests on."""
    if op.ground.sign is Sign.NOT_DUMPED:
        return "it was not dumped"
    if op.recomputed is not None:
        return _recomputed(op, op.recomputed)
    why = op.ground.reason or "no output of it was compared"
    if op.ground.sign in _COMPARED:
        why = _COMPARED[op.ground.sign].format(
            out=_percent(op.output_error),
            into=_percent(op.input_error),
            shared=", ".join(op.ground.shared),
            slot=op.ground.slot,
        )
    return f"{why}; not recomputed: {_words(op.not_recomputed)}"


def _recomputed(op: OpBlame, own: Recomputed) -> str:
    ground = op.ground
    how = f"recomputed ({own.how}) from its own inputs"
    if ground.sign is Sign.OFF_IN_BOTH_RUNS:
        shared = ", ".join(ground.shared)
        off = f"{how}, its output is {own.error:.2%} off"
        return f"{off}, and so is the other run's, which {shared} made too (--benchmark may tell)"
    if own.borrowed:
        how += f" and the other side's {', '.join(own.borrowed[:_NAMED])}"
    if ground.sign is Sign.NOT_FINITE:
        return f"{how}, its output is not finite in {counted(own.mismatches, 'element')} where it should be"
    other = ground.other_error
    if ground.sign in (Sign.WRONG, Sign.DOUBTFUL):
        why = f"{how}, its output is {own.error:.2%} off, where rounding explains {_small(own.rounding)}"
        if other is None:
            return why
        if ground.sign is Sign.WRONG:
            return f"{why}; the other side's is {other:.2%} off"
        return f"{why}; so is the other side's, {other:.2%}, which makes the formula doubtful"
    why = f"{how}, its output is right ({own.error:.2%} off)"
    if op.beyond_range is not None:
        why += f" as far as its type reaches: {_words(op.beyond_range)}"
    if ground.sign is Sign.RIGHT_OTHER_WRONG and other is not None:
        return f"{why}: the other side's is wrong, {other:.2%} off"
    return why + _RIGHT[ground.sign]


def pass_words(one: PassBlame) -> str:
    """What the verdict on a pass rests on; "" where there is nothing to say."""
    unjudged = one.count(BlameVerdict.NOT_JUDGED)
    reason = ""
    if one.verdict is not BlameVerdict.CLEAN:
        reason = f"{one.worst_op.op_name}: {op_words(one.worst_op)}"
    elif unjudged:
        reason = f"{unjudged} of its {counted(len(one.ops), 'op')} could not be judged"
    beyond = next((op for op in one.ops if op.verdict is BlameVerdict.CLEAN and op.beyond_range is not None), None)
    if beyond is not None:
        told = f"{beyond.op_name}: {beyond_words(beyond)}"
        reason = f"{reason}; {told}" if reason else told
    if one.verdict is BlameVerdict.GUILTY and len(one.worst_op.passes) > 1:
        others = ", ".join(name for name in one.worst_op.passes if name != one.name)
        reason += f"; {others} had a part in this op too"
    return reason


def beyond_words(op: OpBlame) -> str:
    """What became of a result that the op's type cannot hold; "" where it holds all."""
    return _words(op.beyond_range)


def blame_notes(blame: Blame) -> list[str]:
    """What a user should know of the fused ops."""
    if not blame.nameless:
        return []
    named = ", ".join(blame.nameless[:_NAMED])
    return [f"the graph names no pass for {counted(len(blame.nameless), 'fused op')}: {named}; {COLLECT_PASSES}"]


def op_json(op: OpBlame) -> dict[str, Any]:
    """The object of JSON."""
    return {
        "op_name": op.op_name,
        "op_type": op.op_type,
        "passes": op.passes,
        "originals": op.originals,
        "index": op.index,
        "verdict": op.verdict,
        "reason": op_words(op),
        "input_error": op.input_error,
        "output_error": op.output_error,
        "cosine": op.cosine,
        "recomputed": None if op.recomputed is None else asdict(op.recomputed),
        "not_recomputed": _words(op.not_recomputed),
        "beyond_range": beyond_words(op),
    }


def _words(evidence: Evidence | None) -> str:
    return "" if evidence is None else SENTENCES[type(evidence)](evidence)


def _beyond(one: BeyondType) -> str:
    where = f"{one.elements:,} of {counted(one.size, 'element')}"
    end = f", where {one.dtype} ends at {one.limit:g}" if one.limit is not None else ""
    what = "overflows" if one.is_infinite else "saturates"
    return f"it {what} in {where} (the true result reaches {one.largest:.6g}{end})"


def _percent(error: float | None) -> str:
    if error is None:
        return "an unknown amount"
    return f"{error:.2%}" if isfinite(error) else "infinitely"


def _small(error: float) -> str:
    """A distance that may be far below a hundredth of a percent."""
    return f"{error:.2%}" if error >= 1e-4 or not error else f"{100 * error:.2g}%"


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    BeyondType: _beyond,
    FedNotFinite: lambda one: "it was fed numbers that are not finite",
    FormulaDistrusted: lambda one: f"the formula of {one.ops} fits neither side where the two agree",
    NotJudged: lambda one: reason_words(one.reason),
}
