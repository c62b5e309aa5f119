"""What to do next: a ready command or line for each cause."""

from __future__ import annotations

from collections.abc import Sequence

from precision_tool.lib.formats.fusion_passes import is_switchable
from precision_tool.lib.verdict.model import Cause, Proof, Step, Suspect


def plan(first: Suspect | None, suspects: Sequence[Suspect], has_benchmark: bool) -> tuple[Step, ...]:
    """The steps for a verdict, the one that settles most first. `first` is None for a clean one."""
    steps: list[Step] = []
    if first is None:
        if any(one.cause is Cause.LOSS_SCALE for one in suspects):
            steps.append(Step(why="compare with the loss scale in mind: give both sides the same"))
    else:
        steps += _STEPS[first.cause](first)
    if not has_benchmark:
        steps.append(Step(why="a benchmark would tell whether data, weights and random numbers agree", line="infer"))
    return tuple(steps)


def _kernel(one: Suspect) -> list[Step]:
    return [Step(why="look at the op, and report it with its inputs and attributes", line=f"ni {_quoted(one.culprit)}")]


def _fusion(one: Suspect) -> list[Step]:
    steps = []
    if one.pass_name and is_switchable(one.pass_name):
        steps.append(Step(why="switch the pass off and run again", line=f"fusion off {one.pass_name}"))
    steps.append(Step(why="report the fused op with its inputs and attributes", line=f"ni {_quoted(one.culprit)}"))
    return steps


def _layout(one: Suspect) -> list[Step]:
    return [Step(why="report the format of the op or of its conversion", line=f"ni {_quoted(one.culprit)}")]


def _cast(one: Suspect) -> list[Step]:
    return [*_kept(one), Step(why="look at the cast", line=f"ni {_quoted(one.culprit)}")]


def _overflow(one: Suspect) -> list[Step]:
    return [*_kept(one), Step(why="or scale what it is fed; what else overflows", line="overflow")]


def _kept(one: Suspect) -> list[Step]:
    """The line of `tf_config` that keeps the type of the script's ops behind a culprit."""
    names = one.fact("script_ops") or []
    if not names:
        return []
    return [Step(why="keep its type", line=f"keep_dtype({names!r})", file="the training script")]


def _stomp(one: Suspect) -> list[Step]:
    return [Step(why="memory is used again too early: who wrote there", line="random")]


def _random(one: Suspect) -> list[Step]:
    if one.proof is Proof.RUNS:
        return [Step(why="make kernels repeat themselves", line="deterministic=1", file="NPURunConfig")]
    return [Step(why="give both sides the same seeds, or turn dropout off")]


def _input(one: Suspect) -> list[Step]:
    return [Step(why="feed both sides the same batch: order, preprocessing and labels")]


def _weights(one: Suspect) -> list[Step]:
    return [Step(why="load the same checkpoint on both sides")]


_STEPS = {
    Cause.KERNEL: _kernel, Cause.FUSION: _fusion, Cause.LAYOUT: _layout, Cause.CAST: _cast, Cause.OVERFLOW: _overflow,
    Cause.STOMP: _stomp, Cause.RANDOM: _random, Cause.INPUT: _input, Cause.WEIGHTS: _weights,
}  # fmt: skip


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name
