"""Words for what to do next, and the lines that can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from precision_tool.lib.verdict.model import Do, Step, ToldStep

#: What a step says; `{number}` is its number.
WHY = {
    Do.LOOK_AT_OP: "look at the op",
    Do.LOOK_AT_FUSED_OP: "look at the fused op",
    Do.LOOK_AT_CAST: "look at the cast",
    Do.LOOK_AT_VALUES: "look at the values of both sides",
    Do.REPORT_KERNEL: "report it, with this package for whoever writes the kernel",
    Do.REPORT_LAYOUT: "report the format of the op or of its conversion",
    Do.NO_HF32: "multiply float32 as float32, not as HF32",
    Do.NO_HF32_ANYWHERE: "{number:,} ops multiply float32 as HF32, with 12 bits less; to switch that off",
    Do.HIGH_PRECISION: "try it in high precision",
    Do.FLOAT32_KERNEL: "try its kernel for float32",
    Do.SWITCH_PASS_OFF: "switch the pass off",
    Do.KEEP_FUSED_TYPE: "the pass stays on; keep the type of what it fuses",
    Do.KEEP_TYPE: "keep its type",
    Do.SCALE_INPUTS: "or scale what it is fed; what else overflows",
    Do.LOWER_LOSS_SCALE: "lower the loss scale first; how far",
    Do.DIVIDE_LOSS_SCALE: "divide the loss scale by at least {number} first; what fits all gradients",
    Do.SAME_LOSS_SCALE: "compare with the loss scale in mind: give both sides the same",
    Do.FIND_WRITER: "it was overwritten; who did it",
    Do.DETERMINISTIC: "make kernels repeat themselves",
    Do.SAME_SEEDS: "give both sides the same seeds",
    Do.NO_DROPOUT: "where the two sides draw other numbers from one seed, turn dropout off",
    Do.RUN_AGAIN: "whether a seed is fixed at all: run the script again into npu/debug_1, then",
    Do.SAME_BATCH: "feed both sides the same batch: order, preprocessing and labels",
    Do.SAME_CHECKPOINT: "load the same checkpoint on both sides",
    Do.EARLIER_STEP: "the sides' ways have parted before this step: compare an earlier one, or all that were dumped",
    Do.MAKE_BENCHMARK: (
        "a benchmark would tell whether data, weights and random numbers agree; make one with tfdbg, then"
    ),
    Do.COMPARE_RUN: "compare that run with the benchmark",
    Do.MAKE_PASSPORTS: (
        "if training goes wrong, data, seeds or settings may differ: `ac` compares passports of both runs"
    ),
    Do.MEND_PASSPORTS: "give both sides the same of what their passports say differs",
    Do.OTHER_STEP: "or it begins in another step: dump that on both sides, then",
    Do.CHECK: "then collect again, and see whether it is mended",
}
ONE_HF32 = "1 op multiplies float32 as HF32, with 12 bits less; to switch that off"
#: Where code goes, if not to the arguments that all calls take.
CALL = "the arguments of the npu_tf_config call of the training script"
FILES = {
    Do.KEEP_FUSED_TYPE: "the training script",
    Do.KEEP_TYPE: "the training script",
    Do.SAME_SEEDS: "both training scripts, before the graph is made",
    Do.MAKE_PASSPORTS: "both training scripts",
}


def tell_step(step: Step | ToldStep) -> ToldStep:
    """A step in words, with its command or its lines; one of an older release as it is."""
    if isinstance(step, ToldStep):
        return step
    why = ONE_HF32 if step.do is Do.NO_HF32_ANYWHERE and step.number == 1 else WHY[step.do]
    why = why if step.number is None else why.format(number=step.number)
    if step.code:
        return ToldStep(why=why, line=_lines(step), file=FILES.get(step.do, CALL))
    return ToldStep(why=why, line=shlex.join(step.command))


def tell_steps(steps: Iterable[Step | ToldStep]) -> tuple[ToldStep, ...]:
    """All steps of a plan in words."""
    return tuple(map(tell_step, steps))


def _lines(step: Step) -> str:
    """The code; of a scope also what goes into it, where a name that would break its line is quoted."""
    if not step.ops:
        return step.code
    shown = ", ".join(name if name.isprintable() else repr(name) for name in step.ops)
    scope = f"{step.code}  # in TensorFlow 2: npu.keep_dtype_scope()"
    return f"{scope}\n    ...  # the lines that make {shown}"
