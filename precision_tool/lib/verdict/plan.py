"""What to do next: a ready command or line for each cause.

A switch that fixes precision is an argument that all calls of `tf_config` take alike, so that one line serves sessions,
Estimators and TensorFlow 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, log2
from shlex import quote

from precision_tool.lib.checks.headroom import MARGIN, is_gradient_name
from precision_tool.lib.formats.fusion_passes import is_switchable
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.ops.base import Kind
from precision_tool.lib.verdict.judgement import OpJudgement, SlotJudgement, State
from precision_tool.lib.verdict.model import Cause, Proof, Step, Suspect
from precision_tool.lib.verdict.places import Mistake

#: Where the arguments that fix precision go.
_CALL = "the arguments of the npu_tf_config call of the training script"
#: Own errors of float32 products that came from inputs in HF32, with 12 or 13 bits less: float32 itself is a hundredth.
_HF32 = (2.0**-16, 2.0**-10)
#: A larger own error is no matter of precision.
_ROUGH = 2.0**-5
#: Floating-point types that float32 is better than.
_HALVES = ("float16", "bfloat16")
#: What has a session's run write its passport.
_PASSPORT = "npu_tf_config.passport(sess, feed_dict)"
#: Types of the graph as the file `customize_dtypes` calls them; the device decides on others.
_CUSTOM = {
    "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double", "int8": "int8",
    "uint8": "uint8", "int32": "int32", "int64": "int64", "bool": "bool",
}  # fmt: skip


def plan(
    first: Suspect | None, suspects: Sequence[Suspect], has_benchmark: bool, judged: Sequence[OpJudgement] = ()
) -> tuple[Step, ...]:
    """The steps for a verdict, the one that settles most first. `first` is None for a clean one.

    What is to be mended ends with the command that tells whether it is.
    """
    steps: list[Step] = []
    if first is None:
        is_scaled = any(one.cause is Cause.LOSS_SCALE for one in suspects)
        if is_scaled:
            steps.append(Step(why="compare with the loss scale in mind: give both sides the same"))
        steps += _hf32(judged)
        if has_benchmark and not is_scaled:
            steps += _elsewhere()
    else:
        steps += _STEPS[first.cause](first)
    if not has_benchmark:
        steps.append(
            Step(
                why="a benchmark would tell whether data, weights and random numbers agree; make one with tfdbg, then",
                line="tf_dump",
            )
        )
    return tuple(steps) if first is None else (*steps, *again())


def again() -> tuple[Step, ...]:
    """How to see whether a change helped."""
    return (Step(why="then collect again, and see whether it is mended", line="ac -c --since"),)


def with_passports_known(steps: Sequence[Step], *, differ: bool) -> tuple[Step, ...]:
    """The steps of a clean verdict where both runs have passports: to mend what these say differs, if anything does."""
    others = tuple(step for step in steps if step.line != _PASSPORT)
    if len(others) == len(steps) or not differ:
        return others
    return Step(why="give both sides the same of what their passports say differs"), *others


def _elsewhere() -> list[Step]:
    """Where to look if training goes wrong, and no op of this step computes wrong."""
    return [
        Step(
            why="if training goes wrong, data, seeds or settings may differ: `ac` compares passports of both runs",
            line=_PASSPORT,
            file="both training scripts",
        ),
        Step(why="or it begins in another step: dump that on both sides, then", line="ac -c"),
    ]


def _kernel(one: Suspect) -> list[Step]:
    look = Step(why="look at the op", line=f"ni {quote(one.culprit)}")
    return [look, _package("report it, with this package for whoever writes the kernel", one), *_more_precise(one)]


def _package(why: str, one: Suspect) -> Step:
    """To cut an op out of the network, with all that its kernel's writers need."""
    return Step(why=why, line=f"repro {quote(one.culprit)}")


def _more_precise(one: Suspect) -> list[Step]:
    """Switches that may set a kernel right: other ways to compute it, or another kernel for float32."""
    slot = one.judgement.worst_slot if one.judgement is not None else None
    if one.judgement is None or slot is None:
        return []
    if _is_hf32(slot):
        return [_argument("multiply float32 as float32, not as HF32", "allow_hf32=False")]
    if slot.dtype not in _HALVES:
        return []
    steps = []
    if slot.own < _ROUGH and _is_scattered(slot):
        mode = repr({one.culprit: "high_precision"})
        steps.append(_argument("try it in high precision", f"op_precision_mode={mode}"))
    types = repr({one.culprit: _in_float32(one.judgement.op)})
    return [*steps, _argument("try its kernel for float32", f"customize_dtypes={types}")]


def _in_float32(op: Op) -> str:
    """The types of an op for `customize_dtypes`, with float32 for those that are narrower."""

    def types(descs: Sequence[TensorDesc]) -> str:
        return ",".join(_CUSTOM.get(desc.dtype, "") for desc in descs)

    parts = [("InputDtype", types(op.input_descs)), ("OutputDtype", types(op.output_descs))]
    return ",".join(f"{word}:{listed}" for word, listed in parts if listed)


def _argument(why: str, line: str) -> Step:
    return Step(why=why, line=line, file=_CALL)


def _is_hf32(slot: SlotJudgement) -> bool:
    low, high = _HF32
    return slot.kind is Kind.MATRIX and slot.dtype == "float32" and low < slot.own < high and _is_scattered(slot)


def _is_scattered(slot: SlotJudgement) -> bool:
    """Whether numbers are inexact, rather than in wrong places or missing."""
    return slot.places is None or slot.places.mistake in (Mistake.UNKNOWN, Mistake.SCALED, Mistake.NARROWED)


def _hf32(judged: Sequence[OpJudgement]) -> list[Step]:
    """To switch HF32 off, where the products of a run are as exact as HF32, most of them."""
    slots = [slot for one in judged if one.state is State.RIGHT for slot in one.slots]
    products = [slot for slot in slots if slot.kind is Kind.MATRIX and slot.dtype == "float32"]
    seen = sum(map(_is_hf32, products))
    if not seen or 2 * seen < len(products):
        return []
    ops = "1 op multiplies" if seen == 1 else f"{seen:,} ops multiply"
    return [_argument(f"{ops} float32 as HF32, with 12 bits less; to switch that off", "allow_hf32=False")]


def _fusion(one: Suspect) -> list[Step]:
    steps = []
    if one.pass_name and is_switchable(one.pass_name):
        steps.append(Step(why="switch the pass off", line=f"fusion off {quote(one.pass_name)}"))
    else:
        steps += _kept_in_float32(one)
    steps.append(Step(why="look at the fused op", line=f"ni {quote(one.culprit)}"))
    steps.append(_package("report it, with this package for whoever writes the kernel", one))
    return steps


def _kept_in_float32(one: Suspect) -> list[Step]:
    """The line that keeps the types of what a pass fused, where it fused halves: the pass itself stays on."""
    slot = one.judgement.worst_slot if one.judgement is not None else None
    names = one.judgement.op.original_names if one.judgement is not None else ()
    if slot is None or slot.dtype not in _HALVES or not names:
        return []
    return [_scope("the pass stays on; keep the type of what it fuses", names)]


def _layout(one: Suspect) -> list[Step]:
    return [Step(why="report the format of the op or of its conversion", line=f"ni {quote(one.culprit)}")]


def _cast(one: Suspect) -> list[Step]:
    return [*_kept(one), Step(why="look at the cast", line=f"ni {quote(one.culprit)}")]


def _overflow(one: Suspect) -> list[Step]:
    loss_scale = _loss_scale(one)
    if loss_scale:  # `overflow` tells how far, and what else overflows
        return [*loss_scale, *_kept(one)]
    return [*_kept(one), Step(why="or scale what it is fed; what else overflows", line="overflow")]


def _loss_scale(one: Suspect) -> list[Step]:
    """To lower the loss scale, where it is a gradient that overflows: at least so far that its true result fits."""
    if not is_gradient_name(one.culprit, *(one.fact("script_ops") or [])):
        return []
    largest, limit = one.fact("largest"), one.fact("limit")
    why = "lower the loss scale first; how far"
    if isinstance(largest, float) and isinstance(limit, float) and isfinite(largest) and largest > 0:
        factor = 2 ** (max(ceil(log2(largest / limit)), 0) + MARGIN)
        why = f"divide the loss scale by at least {factor} first; what fits all gradients"
    return [Step(why=why, line="overflow")]


def _kept(one: Suspect) -> list[Step]:
    """The lines that keep the type of the script's ops behind a culprit; none for those no line of it makes."""
    names = [name for name in one.fact("script_ops") or [] if not is_gradient_name(name)]
    return [_scope("keep its type", names)] if names else []


def _scope(why: str, names: Sequence[str]) -> Step:
    """The lines of a script that keep the type of its ops; a name that would break its line is quoted."""
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names)
    lines = ["with npu_scope.keep_dtype_scope():  # in TensorFlow 2: npu.keep_dtype_scope()"]
    lines.append(f"    ...  # the lines that make {shown}")
    return Step(why=why, line="\n".join(lines), file="the training script")


def _stomp(one: Suspect) -> list[Step]:
    return [Step(why="it was overwritten; who did it", line="random")]


def _random(one: Suspect) -> list[Step]:
    if one.proof is Proof.RUNS:
        return [_argument("make kernels repeat themselves", "deterministic=True")]
    steps = []
    if not one.fact("repeats"):
        where = "both training scripts, before the graph is made"
        steps.append(Step(why="give both sides the same seeds", line="npu_tf_config.seed_everything(1)", file=where))
    steps.append(Step(why="where the two sides draw other numbers from one seed, turn dropout off"))
    if one.fact("repeats") is None:
        steps.append(
            Step(why="whether a seed is fixed at all: run the script again into npu/debug_1, then", line="random")
        )
    steps.append(_compared(one))
    return steps


def _compared(one: Suspect) -> Step:
    """To look at what nothing computes."""
    return Step(why="look at the values of both sides", line=f"ni {quote(one.culprit)}")


def _input(one: Suspect) -> list[Step]:
    return [Step(why="feed both sides the same batch: order, preprocessing and labels"), _compared(one)]


def _weights(one: Suspect) -> list[Step]:
    return [Step(why="load the same checkpoint on both sides"), _compared(one)]


_STEPS = {
    Cause.KERNEL: _kernel, Cause.FUSION: _fusion, Cause.LAYOUT: _layout, Cause.CAST: _cast, Cause.OVERFLOW: _overflow,
    Cause.STOMP: _stomp, Cause.RANDOM: _random, Cause.INPUT: _input, Cause.WEIGHTS: _weights,
}  # fmt: skip
