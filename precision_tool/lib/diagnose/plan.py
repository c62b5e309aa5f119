"""Next steps: a ready command or line for each cause, as values; their texts are `step.<value>`.

A switch that fixes precision is an argument that all calls of `tf_config` take alike; its line is a session's call. For
calls that msprobe recorded it is a line of PyTorch, or of MindSpore.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from keyword import iskeyword
from math import ceil, isfinite, log2

from precision_tool.lib.diagnose.error_shape import Mistake
from precision_tool.lib.diagnose.headroom import MARGIN, is_gradient_name
from precision_tool.lib.diagnose.recorded_script import NoCodeError, call_code, is_in_place
from precision_tool.lib.diagnose.verdict_model import (
    Action,
    Cause,
    OpResult,
    Proof,
    SlotResult,
    State,
    Step,
    StepText,
    Suspect,
)
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.msprobe import CallName, Direction, RecordedTensor, parse_call_name
from precision_tool.lib.ops.base import Kind
from precision_tool.lib.ops.op_arguments import HALF

#: Own errors of float32 products that came from inputs in HF32, with 12 or 13 bits less: float32 itself is a hundredth.
_HF32 = (2.0**-16, 2.0**-10)
#: A larger own error is no matter of precision.
_ROUGH = 2.0**-5
#: What keeps the type of the ops whose lines it holds.
_SCOPE = "from npu_bridge.npu_init import npu_scope\nwith npu_scope.keep_dtype_scope():"
#: A session's call of the helper, which adds an argument to what its config has.
_SESSION_CALL = "config = npu_tf_config.session_dump_config(config, {})"
#: Types of the graph as the file `customize_dtypes` calls them; the device decides on others.
_CUSTOM = {
    "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double", "int8": "int8",
    "uint8": "uint8", "int32": "int32", "int64": "int64", "bool": "bool",
}  # fmt: skip


#: Steps of which one makes the other pointless or wrong: a pass is off, or stays on; a gradient overflows for the loss
#: scale, or an op of the script for its type; a loss scale is as the other side's, or as the gradients need it.
CONTRADICTING = (
    frozenset({Action.SWITCH_PASS_OFF, Action.KEEP_FUSED_TYPE}),
    frozenset({Action.DIVIDE_LOSS_SCALE, Action.LOWER_LOSS_SCALE, Action.SAME_LOSS_SCALE}),
    frozenset({Action.DIVIDE_LOSS_SCALE, Action.KEEP_TYPE}),
    frozenset({Action.LOWER_LOSS_SCALE, Action.KEEP_TYPE}),
    frozenset({Action.DIVIDE_LOSS_SCALE, Action.SCALE_INPUTS}),
    frozenset({Action.LOWER_LOSS_SCALE, Action.SCALE_INPUTS}),
    frozenset({Action.NO_HF32, Action.NO_HF32_ANYWHERE}),
    frozenset({Action.SAME_CHECKPOINT, Action.EARLIER_STEP}),
    frozenset({Action.DETERMINISTIC, Action.SAME_SEEDS}),
    frozenset({Action.MAKE_PASSPORTS, Action.MEND_PASSPORTS}),
)


def plan(
    first: Suspect | None,
    suspects: Sequence[Suspect],
    has_benchmark: bool,
    judged: Sequence[OpResult] = (),
    framework: str = "",
) -> tuple[Step, ...]:
    """Return the steps for a verdict, the one that settles most first. `first` is None for a clean one.

    What is to be mended ends with the command that tells whether it is. `framework` is that of recorded calls.
    """
    if framework:
        return _consistent(_recorded_steps(first, suspects, has_benchmark, judged, framework))
    steps: list[Step] = []
    if first is None:
        is_scaled = any(other.cause is Cause.LOSS_SCALE for other in suspects)
        if is_scaled:
            steps.append(Step(do=Action.SAME_LOSS_SCALE))
        steps += _hf32(judged)
        if has_benchmark and not is_scaled:
            steps += _elsewhere()
    else:
        steps += _STEPS[first.cause](first)
    if not has_benchmark:
        steps.append(Step(do=Action.MAKE_BENCHMARK, command=("tf_dump",)))
    return _consistent(steps) if first is None else (*_consistent(steps), *_what_if(first, has_benchmark), *again())


def _consistent(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps without those that contradict an earlier one, which settles more."""
    kept: list[Step] = []
    for step in steps:
        others = {other.do for other in kept} - {step.do}
        if not any(step.do in pair and others & pair for pair in CONTRADICTING):
            kept.append(step)
    return tuple(kept)


def _what_if(suspect: Suspect, has_benchmark: bool) -> list[Step]:
    """Return the step that proves a culprit, where something tells its right value."""
    if suspect.proof not in (Proof.RECOMPUTED, Proof.COPIES, *((Proof.SOURCE,) if has_benchmark else ())):
        return []
    return [Step(do=Action.WHAT_IF, command=("whatif", suspect.culprit))]


def again() -> tuple[Step, ...]:
    """Return how to see whether a change helped."""
    return (Step(do=Action.CHECK, command=("ac", "-c", "--since")),)


def with_passports_known(steps: Sequence[Step | StepText], *, differ: bool) -> tuple[Step | StepText, ...]:
    """Return the steps of a clean verdict where both runs have passports: to fix what differs in them."""
    others = tuple(step for step in steps if getattr(step, "do", None) is not Action.MAKE_PASSPORTS)
    if len(others) == len(steps) or not differ:
        return others
    return Step(do=Action.MEND_PASSPORTS), *others


def with_switch_file_known(
    steps: Sequence[Step | StepText], off: Collection[str], code: Sequence[str]
) -> tuple[Step | StepText, ...]:
    """Return the steps where the passes `off` are off in a file that the session does not use: `code` gives it."""
    give = Step(do=Action.GIVE_SWITCH_FILE, code="\n".join(code), where="script")

    def is_off(step: Step | StepText) -> bool:
        return isinstance(step, Step) and step.do is Action.SWITCH_PASS_OFF and step.command[-1] in off

    return tuple(dict.fromkeys(give if is_off(step) else step for step in steps))


def _elsewhere() -> list[Step]:
    """Return where to look if training goes wrong, and no op of this step computes wrong."""
    return [
        Step(do=Action.MAKE_PASSPORTS, code="npu_tf_config.passport(sess, feed_dict)"),
        Step(do=Action.OTHER_STEP, command=("ac", "-c")),
    ]


def _kernel(suspect: Suspect) -> list[Step]:
    return [_look(Action.LOOK_AT_OP, suspect), _package(suspect), *_more_precise(suspect)]


def _look(do: Action, suspect: Suspect) -> Step:
    return Step(do=do, command=("ni", suspect.culprit))


def _package(suspect: Suspect) -> Step:
    """Return the step that cuts an op out of the network with all that the kernel team needs."""
    return Step(do=Action.REPORT_KERNEL, command=("repro", suspect.culprit))


def _more_precise(suspect: Suspect) -> list[Step]:
    """Return the switches that may avoid a kernel's error: another algorithm, or a float32 kernel."""
    slot = suspect.result.worst_slot if suspect.result is not None else None
    if suspect.result is None or slot is None:
        return []
    if _is_hf32(slot):
        return [Step(do=Action.NO_HF32, code=_SESSION_CALL.format("allow_hf32=False"))]
    if slot.dtype not in HALF:
        return []
    steps = []
    if slot.own < _ROUGH and _is_scattered(slot):
        mode = repr({suspect.culprit: "high_precision"})
        steps.append(Step(do=Action.HIGH_PRECISION, code=_SESSION_CALL.format(f"op_precision_mode={mode}")))
    types = repr({suspect.culprit: dtypes_in_float32(suspect.result.op)})
    return [*steps, Step(do=Action.FLOAT32_KERNEL, code=_SESSION_CALL.format(f"customize_dtypes={types}"))]


def dtypes_in_float32(op: Op) -> str:
    """Return the types of an op for `customize_dtypes`, with float32 for those that are narrower."""

    def types(descs: Sequence[TensorDesc]) -> str:
        return ",".join(_CUSTOM.get(desc.dtype, "") for desc in descs)

    parts = [("InputDtype", types(op.input_descs)), ("OutputDtype", types(op.output_descs))]
    return ",".join(f"{word}:{listed}" for word, listed in parts if listed)


def _is_hf32(slot: SlotResult) -> bool:
    low, high = _HF32
    return slot.kind is Kind.MATRIX and slot.dtype == "float32" and low < slot.own < high and _is_scattered(slot)


#: Mistakes by which numbers are inexact, rather than in wrong places or missing.
_INEXACT = (Mistake.UNKNOWN, Mistake.SCALED, Mistake.NARROWED, Mistake.TRUNCATED, Mistake.MISROUNDED)


def _is_scattered(slot: SlotResult) -> bool:
    """Return whether an output is inexact throughout."""
    return slot.places is None or slot.places.mistake in _INEXACT


def _hf32(judged: Sequence[OpResult]) -> list[Step]:
    """Return the step that switches HF32 off, where most products of a run are as exact as HF32."""
    number = _in_hf32(judged)
    code = _SESSION_CALL.format("allow_hf32=False")
    return [Step(do=Action.NO_HF32_ANYWHERE, code=code, number=number)] if number else []


def _in_hf32(judged: Sequence[OpResult]) -> int:
    """Return how many products of a run are as exact as HF32, if most are; else 0."""
    slots = [slot for result in judged if result.state is State.RIGHT for slot in result.slots]
    products = [slot for slot in slots if slot.kind is Kind.MATRIX and slot.dtype == "float32"]
    number = sum(map(_is_hf32, products))
    return number if 2 * number >= len(products) else 0


def _fusion(suspect: Suspect) -> list[Step]:
    steps = []
    if suspect.pass_name and is_switchable(suspect.pass_name):
        steps.append(Step(do=Action.SWITCH_PASS_OFF, command=("fusion", "off", suspect.pass_name)))
    else:
        steps += _kept_in_float32(suspect)
    return [*steps, _look(Action.LOOK_AT_FUSED_OP, suspect), _package(suspect)]


def _kept_in_float32(suspect: Suspect) -> list[Step]:
    """Return the line that keeps the types of what a pass fused, where it fused halves: the pass itself stays on."""
    slot = suspect.result.worst_slot if suspect.result is not None else None
    names = suspect.result.op.original_names if suspect.result is not None else ()
    if slot is None or slot.dtype not in HALF or not names:
        return []
    return [Step(do=Action.KEEP_FUSED_TYPE, code=_SCOPE, ops=tuple(names))]


def _layout(suspect: Suspect) -> list[Step]:
    return [_look(Action.REPORT_LAYOUT, suspect)]


def _cast(suspect: Suspect) -> list[Step]:
    package = [_package(suspect)] if suspect.fact("own_error") is not None else []
    return [*_keep_types(suspect), _look(Action.LOOK_AT_CAST, suspect), *package]


def _overflow(suspect: Suspect) -> list[Step]:
    if suspect.fact("nan_op") == suspect.culprit:  # of infinities that no overflow put out, as a division by 0 does
        return [*_keep_types(suspect), _look(Action.LOOK_AT_OP, suspect)]
    loss_scale = _loss_scale(suspect)
    if loss_scale:  # `overflow` tells how far, and what else overflows
        return loss_scale
    return [*_keep_types(suspect), Step(do=Action.SCALE_INPUTS, command=("overflow",))]


def _loss_scale(suspect: Suspect) -> list[Step]:
    """Return the step that lowers the loss scale until an overflowing gradient fits, if it is one."""
    if not is_gradient_name(suspect.culprit, *(suspect.fact("script_ops") or [])):
        return []
    return _lower_loss_scale(suspect)


def _lower_loss_scale(suspect: Suspect) -> list[Step]:
    largest, limit = suspect.fact("largest"), suspect.fact("limit")
    if isinstance(largest, float) and isinstance(limit, float) and isfinite(largest) and largest > 0:
        factor = 2 ** (max(ceil(log2(largest / limit)), 0) + MARGIN)
        return [Step(do=Action.DIVIDE_LOSS_SCALE, command=("overflow",), number=factor)]
    return [Step(do=Action.LOWER_LOSS_SCALE, command=("overflow",))]


def _keep_types(suspect: Suspect) -> list[Step]:
    """Return the lines that keep the type of the script's ops behind a culprit; none for those no line of it makes."""
    names = [name for name in suspect.fact("script_ops") or [] if not is_gradient_name(name)]
    return [Step(do=Action.KEEP_TYPE, code=_SCOPE, ops=tuple(names))] if names else []


def _stomp(suspect: Suspect) -> list[Step]:
    return [Step(do=Action.FIND_WRITER, command=("random",))]


def _random(suspect: Suspect) -> list[Step]:
    if suspect.proof is Proof.RUNS:
        return [Step(do=Action.DETERMINISTIC, code=_SESSION_CALL.format("deterministic=True"))]
    steps = []
    if not suspect.fact("repeats"):
        steps.append(Step(do=Action.SAME_SEEDS, code="npu_tf_config.seed_everything(1)"))
    steps.append(Step(do=Action.NO_DROPOUT))
    if suspect.fact("repeats") is None:
        steps.append(Step(do=Action.RUN_AGAIN, command=("random",)))
    return [*steps, _look(Action.LOOK_AT_VALUES, suspect)]


def _input(suspect: Suspect) -> list[Step]:
    return [Step(do=Action.SAME_BATCH), _look(Action.LOOK_AT_VALUES, suspect)]


def _weights(suspect: Suspect) -> list[Step]:
    if suspect.fact("step"):
        return [Step(do=Action.EARLIER_STEP, command=("ac", "--all")), _look(Action.LOOK_AT_VALUES, suspect)]
    return [Step(do=Action.SAME_CHECKPOINT), _look(Action.LOOK_AT_VALUES, suspect)]


def _arguments(suspect: Suspect) -> list[Step]:
    return [Step(do=Action.SAME_ARGUMENTS), _look(Action.LOOK_AT_VALUES, suspect)]


_STEPS = {
    Cause.KERNEL: _kernel, Cause.FUSION: _fusion, Cause.LAYOUT: _layout, Cause.CAST: _cast, Cause.OVERFLOW: _overflow,
    Cause.STOMP: _stomp, Cause.RANDOM: _random, Cause.INPUT: _input, Cause.WEIGHTS: _weights,
    Cause.ARGUMENTS: _arguments,
}  # fmt: skip


# --- recorded calls ---------------------------------------------------------------------------------------------------


#: The folder that the text of `MAKE_BENCHMARK_DUMP` names.
BENCHMARK_DUMP = "benchmark_dump"
#: Names for the tensors of a function, in their order; of others they are numbered.
_TENSORS = {
    "linear": ("x", "weight", "bias"), "layer_norm": ("x", "weight", "bias"), "group_norm": ("x", "weight", "bias"),
    "rms_norm": ("x", "weight"), "npu_rms_norm": ("x", "weight"), "matmul": ("a", "b"), "bmm": ("a", "b"),
    "scaled_dot_product_attention": ("q", "k", "v", "mask"),
    "batch_norm": ("x", "running_mean", "running_var", "weight", "bias"),
    **{f"conv{way}{axes}d": ("x", "weight", "bias") for way in ("", "_transpose") for axes in (1, 2, 3)},
}  # fmt: skip
#: Switches of the devices, by the framework's name; what is not here PyTorch has.
_NO_HF32 = {
    "mindspore": "import mindspore\nmindspore.device_context.ascend.op_precision.{}_allow_hf32(False)",
    "pytorch": "torch.npu.{}.allow_hf32 = False",
}
_DETERMINISTIC = {
    "mindspore": "import mindspore\nmindspore.set_deterministic(True)",
    "pytorch": "torch.use_deterministic_algorithms(True)",
}
_SEEDS = {
    "mindspore": "from msprobe.mindspore import seed_all\nseed_all(seed=1, mode=True, rm_dropout=True)",
    "pytorch": "from msprobe.pytorch import seed_all\nseed_all(seed=1, mode=True, rm_dropout=True)",
}
_HCCL = 'import os\nos.environ["HCCL_DETERMINISTIC"] = "true"'
#: Kernels that are compiled where they run in place of prebuilt ones, and tensors in the layouts of the script.
_OTHER_KERNEL = "torch.npu.set_compile_mode(jit_compile=True)\ntorch.npu.config.allow_internal_format = False"
_PLAIN_FORMATS = "torch.npu.config.allow_internal_format = False"


def _recorded_steps(
    first: Suspect | None, suspects: Sequence[Suspect], has_benchmark: bool, judged: Sequence[OpResult], framework: str
) -> list[Step]:
    """Return the steps for a verdict on calls that msprobe recorded."""
    steps: list[Step] = []
    if first is not None:
        own_steps = _RECORDED_STEPS.get(first.cause)
        steps += _STEPS[first.cause](first) if own_steps is None else own_steps(first, framework)
    else:
        if any(other.cause is Cause.LOSS_SCALE for other in suspects):
            steps.append(Step(do=Action.SAME_LOSS_SCALE))
        number = _in_hf32(judged)
        if number:
            lines = "\n".join(dict.fromkeys(
                line for kind in ("matmul", "conv") for line in _of(_NO_HF32, framework).format(kind).split("\n")
            ))  # fmt: skip
            steps.append(_line(Action.NO_HF32_ANYWHERE, lines, number))
        if has_benchmark:
            steps.append(Step(do=Action.OTHER_STEP, command=("ac", "-c")))
    if not has_benchmark:
        steps.append(Step(do=Action.MAKE_BENCHMARK_DUMP, command=("ac", "-c", "-rt", BENCHMARK_DUMP)))
    return steps if first is None else [*steps, *_what_if(first, has_benchmark), *again()]


def _of(lines: Mapping[str, str], framework: str) -> str:
    return lines.get(framework, lines["pytorch"])


def _line(do: Action, code: str, number: int | None = None, where: str = "script_start") -> Step:
    return Step(do=do, code=code, where=where, number=number)


def _recorded_kernel(suspect: Suspect, framework: str) -> list[Step]:
    steps = [_look(Action.LOOK_AT_OP, suspect), _package(suspect)]
    slot = suspect.result.worst_slot if suspect.result is not None else None
    name = parse_call_name(suspect.culprit)
    if name is not None and name.prefix == "Distributed":
        return [*steps, _line(Action.DETERMINISTIC, _HCCL)]
    if slot is not None and _is_hf32(slot):
        kind = "conv" if "conv" in suspect.op_type.lower() else "matmul"
        return [*steps, _line(Action.NO_HF32, _of(_NO_HF32, framework).format(kind))]
    steps += _computed_in_float32(suspect, framework)
    return steps if framework == "mindspore" else [*steps, _line(Action.OTHER_KERNEL, _OTHER_KERNEL)]


def _computed_in_float32(suspect: Suspect, framework: str) -> list[Step]:
    return in_float32(suspect.result.op, framework) if suspect.result is not None else []


def in_float32(op: Op, framework: str) -> list[Step]:
    """Return the lines that compute a call in float32, where it is computed in halves, whatever autocast says.

    None for one that works in place: its tensor keeps its type.
    """
    recorded = op.recorded
    if recorded is None or not any(desc.dtype in HALF for desc in op.output_descs):
        return []
    call = recorded.forward or recorded.call
    path, _, rest = op.module.partition(" (")
    made_by = rest.removesuffix(")")
    name = call.call
    if name is None or is_in_place(name):
        return []
    if framework == "mindspore":
        code = f"import mindspore\ndict(net.cells_and_names())[{path!r}].to_float(mindspore.float32)"
        return [_line(Action.COMPUTE_IN_FLOAT32, code, where="model")] if path else []
    if path and _is_the_modules(name, made_by):
        variable = path.rpartition(".")[2]
        variable = variable if variable.isidentifier() and not iskeyword(variable) else "module"
        code = (
            f"{variable} = model.get_submodule({path!r}).float()\n"
            f'in_float32 = torch.autocast("npu", enabled=False)({variable}.forward)\n'
            f"{variable}.forward = lambda x: in_float32(x.float()).to(x.dtype)"
        )
        return [_line(Action.COMPUTE_IN_FLOAT32, code, where="model")]
    names: dict[str, str] = {}

    def tensor(slot: str, recorded_tensor: RecordedTensor) -> str:
        usual = _TENSORS.get(name.name, ("x",))
        own = slot.removeprefix("kwargs.")
        number = len(names)
        names[slot] = own if own != slot else usual[number] if number < len(usual) else f"x{number}"
        is_half = recorded_tensor.dtype.rpartition(".")[2].lower() in HALF
        return f"{names[slot]}.float()" if is_half else names[slot]

    try:
        expression = call_code(call, framework, tensor)
    except NoCodeError:
        return []
    back = f".to({next(iter(names.values()))}.dtype)" if names and len(call.outputs) == 1 else ""
    whole = f"({expression})" if back and not expression.endswith(")") else expression
    code = f'with torch.autocast("npu", enabled=False):\n    y = {whole}{back}'
    line, _, function = op.source.partition(" in ")
    place = f"{line} ({function})" if function else line
    return [Step(do=Action.COMPUTE_IN_FLOAT32, code=code, where="line" if place else "script", place=place)]


def _is_the_modules(name: CallName, class_name: str) -> bool:
    """Return whether a module does nothing but this call: a `GELU` calls `gelu`, a `BatchNorm2d` `batch_norm`."""
    plain = name.name.replace("_", "").lower()
    return name.is_module or (bool(plain) and class_name.lower().startswith(plain))


def _recorded_cast(suspect: Suspect, framework: str) -> list[Step]:
    package = [_package(suspect)] if suspect.fact("own_error") is not None else []
    return [*_computed_in_float32(suspect, framework), _look(Action.LOOK_AT_CAST, suspect), *package]


def _recorded_overflow(suspect: Suspect, framework: str) -> list[Step]:
    if suspect.fact("nan_op") == suspect.culprit:
        return [*_computed_in_float32(suspect, framework), _look(Action.LOOK_AT_OP, suspect)]
    name = parse_call_name(suspect.culprit)
    if name is not None and name.direction is not Direction.FORWARD:
        return _lower_loss_scale(suspect)
    return [*_computed_in_float32(suspect, framework), Step(do=Action.SCALE_INPUTS, command=("overflow",))]


def _recorded_random(suspect: Suspect, framework: str) -> list[Step]:
    if suspect.proof is Proof.RUNS:
        name = parse_call_name(suspect.culprit)
        is_between_ranks = name is not None and name.prefix == "Distributed"
        return [_line(Action.DETERMINISTIC, _HCCL if is_between_ranks else _of(_DETERMINISTIC, framework))]
    seeds = _line(Action.SAME_SEEDS, _of(_SEEDS, framework), where="scripts_start")
    return [seeds, _look(Action.LOOK_AT_VALUES, suspect)]


def _recorded_layout(suspect: Suspect, framework: str) -> list[Step]:
    package = [_look(Action.REPORT_LAYOUT, suspect), _package(suspect)]
    return package if framework == "mindspore" else [_line(Action.PLAIN_FORMATS, _PLAIN_FORMATS), *package]


#: Of other causes the steps are the same for all frameworks.
_RECORDED_STEPS = {
    Cause.KERNEL: _recorded_kernel, Cause.FUSION: _recorded_kernel, Cause.LAYOUT: _recorded_layout,
    Cause.CAST: _recorded_cast, Cause.OVERFLOW: _recorded_overflow, Cause.RANDOM: _recorded_random,
}  # fmt: skip
