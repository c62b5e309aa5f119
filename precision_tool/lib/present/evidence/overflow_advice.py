"""Words for what to do about an overflow, and for the loss scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precision_tool.lib.checks.headroom import (
    BenchmarkNeeds,
    BitsLeft,
    CutOff,
    InForwardPass,
    LossScale,
    NoGradientSize,
)
from precision_tool.lib.checks.overflow_advice import (
    Advice,
    CheckData,
    ComputeWider,
    DumpInputs,
    FitLossScale,
    HeldBefore,
    KeepType,
    LookAtIntegers,
    LookAtSpender,
    LookForNan,
    LookForUndefined,
    LookUpstream,
    MayIgnore,
    MendKernel,
)
from precision_tool.lib.formats.opdebug import CORE_BITS
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted


def advice_words(one: Advice) -> str:
    """One thing to do."""
    return SENTENCES[type(one.evidence)](one.evidence)


def scale_reason(scale: LossScale) -> str:
    """From what a loss scale is known to fit, or why none helps."""
    return SENTENCES[type(scale.evidence)](scale.evidence)


def loss_scale_words(scale: LossScale) -> str:
    """The loss scale that fits, and why."""
    return scale_reason(scale) if scale.exponent is None else f"{scale_words(scale)}: {scale_reason(scale)}"


def scale_words(scale: LossScale) -> str:
    """What to do with the loss scale."""
    assert scale.exponent is not None
    most = "at most " if scale.is_bound else ""
    if scale.fitting is not None:
        return f"set the loss scale to {most}{scale.fitting:g} (it is {scale.current:g}, {scale.source})"
    if scale.exponent == 0:
        return "keep the loss scale"
    if scale.exponent > 0:
        return f"{2**scale.exponent} times the present loss scale (1 where there is none) fits"
    least = "at least " if scale.is_bound else ""
    return f"divide the loss scale by {least}{2**-scale.exponent}"


def _benchmark_needs(one: BenchmarkNeeds) -> str:
    if one.bits > 0:
        return f"the benchmark's {one.op_name} needs {one.bits:.1f} bits more than float16 has"
    return f"the benchmark's gradients are within the range by {-one.bits:.1f} bits"


def _look_at_integers(one: LookAtIntegers) -> str:
    words = "; ".join(meaning for bit, meaning in CORE_BITS.items() if one.bits & bit)
    return f"look at the integers that {one.op_name} is fed ({words}): another floating-point type does not help"


def _look_at_spender(one: LookAtSpender) -> str:
    kind = f" ({one.op_type})" if one.op_type else ""
    return (
        f"or make {one.op_name}{kind} smaller: its values reach {one.largest:g}, which takes more of the type's range "
        f"than {one.overflowed} itself does"
    )


def _compute_wider(one: ComputeWider) -> str:
    who = f"what reads {one.op_name}" if one.is_cast else one.op_name
    if one.readers:
        who += f" ({', '.join(one.readers)})"
    return (
        f"compute {who} in float32: put {', '.join(one.op_types)} on the black list (`overflow --mixlist` writes the "
        "file for modify_mixlist); it holds for all ops of a type"
    )


def _look_upstream(one: LookUpstream) -> str:
    where = f"look upstream: at {one.producer}, or at what feeds it" if one.producer else "look upstream"
    return f"{where}. {one.op_name} only received it"


def _mend_kernel(one: MendKernel) -> str:
    words = f"{one.op_name} computes wrong, so no wider type and no loss scale helps"
    if one.pass_name:
        words += f": a fusion pass made it, switch that off by `fusion off {one.pass_name}`"
    return f"{words}; `ac -c` tells more"


def _may_ignore(one: MayIgnore) -> str:
    seen = "one step was dumped"
    if one.steps > 1:
        seen = f"{one.overflowed} of {counted(one.steps, 'dumped step')} overflowed"
    return (
        f"or ignore it: {one.op_name} ({one.op_type}) lets loss scaling skip a step that overflows, and lower the "
        f"scale; single steps do no harm, several in a row do ({seen})"
    )


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    BenchmarkNeeds: _benchmark_needs,
    BitsLeft: lambda one: f"the gradients have {one.bits:.1f} bits left",
    CheckData: lambda one: f"check the data: {one.op_name} is fed by no op",
    ComputeWider: _compute_wider,
    CutOff: lambda one: (
        f"{counted(one.gradients, 'gradient is', 'gradients are')} cut off, by how much their values do not tell"
    ),
    DumpInputs: lambda one: f"dump inputs too (dump_mode all), to see whether {one.op_name} overflowed itself",
    FitLossScale: lambda one: loss_scale_words(one.scale),
    HeldBefore: lambda one: (
        f"{one.producer} held it before this step: look at the step that wrote it, or at what was loaded"
    ),
    InForwardPass: lambda one: f"{one.op_name} is in the forward pass, which no loss scale changes",
    KeepType: lambda one: f"or keep the type of {counted(one.ops, 'op')} of the script only",
    LookAtIntegers: _look_at_integers,
    LookAtSpender: _look_at_spender,
    LookForNan: lambda one: (
        f"or look for 0 / 0, or a log or root of what is not positive, in {one.op_name}: it has NaN, and no Inf"
    ),
    LookForUndefined: lambda one: (
        "the range of its type does not explain it: look for a division by 0, or a log or root of what is not "
        f"positive, in {one.op_name}"
    ),
    LookUpstream: _look_upstream,
    MayIgnore: _may_ignore,
    MendKernel: _mend_kernel,
    NoGradientSize: lambda one: (
        f"every float16 gradient is {'0: a larger loss scale may help' if one.are_zero else 'of unknown size'}"
    ),
}
