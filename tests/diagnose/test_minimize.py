"""Ops with planted faults shrink to the smallest case that is known, with the rule that generalizes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from precision_tool.lib.cli.kernel_command import KernelCommand
from precision_tool.lib.diagnose.formulas import Formula, Ref, Stage
from precision_tool.lib.diagnose.minimize import (
    Case,
    Condition,
    KernelFailedError,
    Minimized,
    NotWrongError,
    Part,
    Span,
    minimize,
)
from precision_tool.lib.diagnose.op_settings import CallArguments, OpAttributes, with_shapes
from precision_tool.lib.diagnose.recorded_script import call_code
from precision_tool.lib.diagnose.verdict_model import OpResult, State
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import RecordedCall, RecordedOp, RecordedTensor, parse_call_name
from precision_tool.lib.ops.base import Input, OutputSpec
from precision_tool.lib.view.minimal_case import sentence, single_op
from precision_tool.lib.view.reproduction import Repro, ReproOutput, minimal_repro, write_repro

Array = npt.NDArray[Any]
Fault = Callable[[Array, Case], Array]


def formula(op_type: str, inputs: int, outputs: int = 1, **attrs: Any) -> Formula:
    stage = Stage(
        name="op", op_type=op_type, args=tuple(map(Ref, range(inputs))), attrs=attrs,
        output_specs=tuple(OutputSpec(dtype="float16") for _ in range(outputs)),
    )  # fmt: skip
    return Formula(stages=(stage,), outputs={slot: Ref(slot, 0) for slot in range(outputs)})


def tensor(*shape: int, scale: float = 1.0, layout: str = "ND") -> Input:
    values = np.random.default_rng(sum(shape)).standard_normal(shape) * scale
    return Input(array=values.astype(np.float16).astype(np.float64), dtype="float16", layout=layout)


def right(case: Case) -> Array:
    made: Array = case.formula.run(case.inputs)[0].array.astype(np.float16)
    return made


def whole(op: Formula, inputs: tuple[Input, ...], fault: Fault) -> tuple[dict[int, Input], dict[int, Input]]:
    """The inputs and the faulty output of an op."""
    given = dict(enumerate(inputs))
    case = Case(inputs=given, changes={}, formula=op)
    return given, {0: Input(array=fault(right(case), case).astype(np.float64), dtype="float16")}


def shrunk(op: Formula, inputs: tuple[Input, ...], fault: Fault, **options: Any) -> Minimized:
    given, got = whole(op, inputs, fault)
    return minimize(OpAttributes(op, given), given, got, lambda case: {0: fault(right(case), case)}, **options)


def dumped(op: Formula, inputs: tuple[Input, ...], fault: Fault) -> Minimized:
    given, got = whole(op, inputs, fault)
    return minimize(OpAttributes(op, given), given, got)


def shapes(made: Minimized) -> tuple[tuple[int, ...], ...]:
    return tuple(item.array.shape for _, item in sorted(made.case.inputs.items()))


def rules(made: Minimized) -> list[tuple[Condition, int, int, bool]]:
    return [(rule.condition, rule.number, rule.axis, rule.is_output) for rule in made.rules]


# --- faults, as kernels have them -------------------------------------------------------------------------------------


def tail(y: Array, case: Case) -> Array:
    y[..., y.shape[-1] // 16 * 16 :] = 0
    return y


def end(y: Array, case: Case) -> Array:
    flat = y.reshape(-1)
    flat[-50:] = np.arange(50) % 7
    return y


def turned(y: Array, case: Case) -> Array:
    return y.transpose(2, 1, 0).reshape(y.shape)


def shifted(y: Array, case: Case) -> Array:
    return np.roll(y, 3, -1)


def tile(y: Array, case: Case) -> Array:
    y[..., 16:32, 16:32] *= -1
    return y


def channel(y: Array, case: Case) -> Array:
    y[..., 5] *= 1.5
    return y


def channel_if_there(y: Array, case: Case) -> Array:
    return channel(y, case) if y.shape[-1] > 5 else y


def head(y: Array, case: Case) -> Array:
    y[:, 2:3] *= 0.5
    return y


def first_axis(y: Array, case: Case) -> Array:
    powers = np.exp(case.inputs[0].array)
    return np.asarray(powers / powers.sum(0), np.float16)


def sums_in_float16(y: Array, case: Case) -> Array:
    a, b = (case.inputs[slot].array.astype(np.float16) for slot in (0, 1))
    total = np.zeros(y.shape, np.float16)
    for k in range(a.shape[1]):
        total = (total + a[:, k : k + 1] * b[k : k + 1]).astype(np.float16)
    return total


def without_epsilon(y: Array, case: Case) -> Array:
    x, gamma, beta = (case.inputs[slot].array for slot in range(3))
    with np.errstate(all="ignore"):
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True)) * gamma + beta
    return np.asarray(y, np.float16)


RELU = formula("Relu", 1), (replace(tensor(4, 8, 37), array=np.abs(tensor(4, 8, 37).array)),)
CONVOLUTION = (
    formula("Conv2D", 2, strides=[1, 2, 2, 1], dilations=[1, 1, 1, 1], padding="SAME", data_format="NHWC"),
    (tensor(2, 6, 6, 4, layout="NHWC"), tensor(3, 3, 4, 21, layout="HWCN")),
)
PRODUCT = formula("MatMulV2", 2, transpose_x1=False, transpose_x2=True), (tensor(48, 24), tensor(40, 24))
LONG = formula("MatMulV2", 2, transpose_x1=False, transpose_x2=False), (tensor(4, 600), tensor(600, 5))
ATTENTION = (
    formula("torch.scaled_dot_product_attention", 3),
    (tensor(2, 4, 6, 8), tensor(2, 4, 6, 8), tensor(2, 4, 6, 8)),
)
SOFTMAX = formula("SoftmaxV2", 1, axes=[-1]), (tensor(6, 37),)
NORM = (
    formula("LayerNorm", 3, 3, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5),
    (tensor(6, 8, 64, scale=0.005), tensor(64), tensor(64)),
)


@pytest.mark.parametrize(
    ("op", "fault", "smallest", "rule", "as_if"),
    [
        # One element is a tail: no size below is there.
        (RELU, tail, ((1, 1, 1),), [(Condition.NOT_MULTIPLE, 16, 2, True)], None),
        (CONVOLUTION, tail, ((1, 1, 1, 1), (1, 1, 1, 1)), [(Condition.NOT_MULTIPLE, 16, 3, True)], None),
        # Row 16 and column 16 are the first of the tile.
        (PRODUCT, tile, ((17, 1), (1, 17)), [(Condition.AT_LEAST, 17, axis, True) for axis in (0, 1)], None),
        (CONVOLUTION, channel_if_there, ((1, 1, 1, 1), (1, 1, 1, 6)), [(Condition.AT_LEAST, 6, 3, True)], None),
        (ATTENTION, head, ((1, 3, 1, 1),) * 3, [(Condition.AT_LEAST, 3, 1, True)], None),
        # The softmax of one number is 1 along any axis; of columns of one number it is not, so no size is right.
        (SOFTMAX, first_axis, ((1, 2),), [], ("axes", "-1", "0")),
        # The variance of one number is 0: 0 / 0 is another fault.
        (
            NORM, without_epsilon, ((1, 1, 2), (2,), (2,)), [(Condition.AT_LEAST, 2, 2, True)],
            ("epsilon", "1e-05", "0.0"),
        ),
    ],
    ids=["tail", "conv tail", "tile", "channel", "head", "axis", "epsilon"],
)  # fmt: skip
def test_planted_faults_shrink_to_the_smallest_shape(
    op: tuple[Formula, tuple[Input, ...]], fault: Fault, smallest: tuple[tuple[int, ...], ...], rule: list[Any],
    as_if: tuple[str, str, str] | None,
) -> None:  # fmt: skip
    made = shrunk(*op, fault)
    assert shapes(made) == smallest
    assert rules(made) == rule
    assert made.as_if == as_if
    assert made.is_at_any_size is (not rule)
    assert 0 < made.runs <= 160
    assert not made.is_limited


def test_values_and_attributes_get_plainer() -> None:
    made = shrunk(*CONVOLUTION, tail)
    assert made.case.changes == {(0, "padding"): "VALID", (0, "strides", 1): 1, (0, "strides", 2): 1}
    assert all((item.array == 1).all() for item in made.case.inputs.values())
    (op,) = single_op(made.case) or [{}]
    assert op["op"] == "Conv2D"
    assert {"name": "strides", "type": "list_int", "value": [1, 1, 1, 1]} in op["attr"]
    assert {"name": "padding", "type": "string", "value": "VALID"} in op["attr"]
    assert op["input_desc"][1] == {"format": "HWCN", "shape": [1, 1, 1, 1], "type": "float16"}
    assert made.changed == {"padding": "VALID", "strides.1": 1, "strides.2": 1}
    turned = shrunk(*PRODUCT, tile)
    assert turned.case.changes == {(0, "transpose_x2"): False}


def test_sums_in_float16_keep_only_as_many_terms_as_show_it() -> None:
    made = shrunk(*LONG, sums_in_float16)
    ((rows, terms), (other_terms, columns)) = shapes(made)
    assert (rows, columns) == (1, 1)
    assert terms == other_terms
    assert 2 < terms < 40
    assert made.as_if == ("sums", "float32", "float16")
    assert not made.is_at_any_size
    again = shrunk(LONG[0], tuple(made.case.inputs.values()), sums_in_float16)
    assert shapes(again) == shapes(made)  # nothing more can be left out


# --- without a kernel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "fault", "smallest"),
    [
        (RELU, tail, ((1, 1, 37),)),  # of one element none is a tail
        (RELU, end, ((4, 8, 37),)),
        (RELU, turned, ((2, 1, 2),)),  # axis 1 stands where it should
        (RELU, shifted, ((1, 1, 4),)),
        (PRODUCT, tile, ((33, 24), (33, 24))),  # the tile with its borders; the terms of a sum belong together
        (CONVOLUTION, channel, ((1, 3, 3, 4), (3, 3, 4, 1))),  # as much of the image as the filter covers
        (ATTENTION, head, ((1, 1, 1, 8), (1, 1, 6, 8), (1, 1, 6, 1))),
        (SOFTMAX, first_axis, ((1, 37),)),
    ],
    ids=["tail", "end", "turned", "shifted", "tile", "channel", "head", "axis"],
)
def test_a_part_of_the_dump_is_that_part_of_the_whole(
    op: tuple[Formula, tuple[Input, ...]], fault: Fault, smallest: tuple[tuple[int, ...], ...]
) -> None:
    made = dumped(*op, fault)
    assert shapes(made) == smallest
    assert made.runs == 0
    true = made.case.formula.run(made.case.inputs)[0].array
    everything = op[0].run(dict(enumerate(op[1])))[0].array
    got = made.case.got[0].array
    assert got.shape == true.shape
    assert (np.abs(got - true) > 1e-3).any()
    flat = everything.reshape(-1)
    assert all((np.abs(flat - value) < 1e-12).any() for value in true.reshape(-1))


def test_many_inputs_of_one_shape_shrink_together() -> None:
    """Ten inputs of 12 by 12: any few of their axes are too many to try."""
    op = formula("AddN", 10)
    inputs = tuple(replace(tensor(12, 12), dtype="float16") for _ in range(10))
    made = dumped(op, inputs, lambda y, case: np.where(np.arange(12) == 7, 2 * y, y))
    assert shapes(made) == ((1, 1),) * 10


def test_where_the_whole_is_wrong_is_said_by_axis() -> None:
    (span,) = dumped(*RELU, tail).spans
    assert span == Span(
        part=Part.TAIL, slot=0, axis=2, is_last=True, size=37, first=32, last=36, count=5, block=16
    )  # fmt: skip
    assert [(item.part, item.first, item.last) for item in dumped(*PRODUCT, tile).spans] == [(Part.RANGE, 16, 31)] * 2
    (one,) = dumped(*CONVOLUTION, channel).spans
    assert (one.part, one.first, one.axis) == (Part.ONE, 5, 3)


def test_the_sentence() -> None:
    said = render(sentence(shrunk(*RELU, tail)), "en")
    assert said.startswith("wrong when the last axis is no multiple of 16; ")
    assert "the last 5 of 37 along the last axis: the tail beyond the last multiple of 16" in said
    for made in (dumped(*NORM, without_epsilon), dumped(*LONG, sums_in_float16), dumped(*PRODUCT, tile)):
        assert not any("Message" in render(sentence(made), language) for language in ("en", "zh"))
    assert "axes were 0 instead of -1" in render(sentence(dumped(*SOFTMAX, first_axis)), "en")


def test_what_the_whole_has_is_not_said_of_a_kernel_that_is_wrong_at_any_size() -> None:
    made = replace(dumped(*RELU, tail), is_at_any_size=True)
    assert render(sentence(made), "en") == "wrong at every size that was tried."


def fused(folder: Path, command: str, variant: tuple[str, str, str] | None = None) -> Repro:
    """The smallest case of an addition and a ReLU in a kernel, which puts out both."""
    stages = tuple(
        replace(formula(name, count).stages[0], args=args)
        for name, count, args in (("Add", 2, (Ref(0), Ref(1))), ("Relu", 1, (Ref(0, 0),)))
    )
    op = Formula(stages=stages, outputs={0: Ref(0, 1), 1: Ref(0, 0)})
    inputs = {slot: tensor(4, 8) for slot in range(2)}
    outputs = [
        ReproOutput(slot=slot, npu=Input(array=out.array + 9, dtype="float16"))
        for slot, out in sorted(op.run(inputs).items())
    ]
    fused_op = Op(name="sum/relu", type="Add")
    judged = OpResult(number=0, op=fused_op, state=State.WRONG, formula=op, variant=variant)
    repro = Repro(op=fused_op, judged=judged, inputs=inputs, outputs=outputs)
    types = dict.fromkeys(range(2), ("float16", "ND"))
    made = minimal_repro(
        repro, lambda op_of: KernelCommand(command=command, timeout=60, framework="", outputs=types, op_of=op_of)
    )
    write_repro(str(folder), made)
    return made


def test_a_fused_op(tmp_path: Path) -> None:
    """The kernel tells its outputs by stage; what the dump computed as if is not said of one wrong at any size."""
    (tmp_path / "kernel.py").write_text(
        "import json, shutil, sys\n"
        "op = json.load(open(sys.argv[1] + '/op.json'))\n"
        "sizes = op['inputs'][0]['shape']\n"
        "assert [(o['slot'], o['stage'], o['type'], o['shape']) for o in op['outputs']] == [\n"
        "    (0, 1, 'Relu', sizes), (1, 0, 'Add', sizes)]\n"
        "assert [op['stages'][o['stage']]['type'] for o in op['outputs']] == ['Relu', 'Add']\n"
        "data = bytearray(open(sys.argv[1] + '/input_0.npy', 'rb').read())\n"
        "start = 10 + data[8] + 256 * data[9]\n"
        "data[start:] = b'\\x00\\x64' * ((len(data) - start) // 2)\n"  # 1024
        "for o in op['outputs']: open(sys.argv[2] + '/' + o['file'], 'wb').write(data)\n"
    )
    command = f"{sys.executable} -I -S {tmp_path}/kernel.py"
    made = fused(tmp_path / "out", command, ("axis", "0", "1")).minimized
    assert made is not None
    assert made.is_at_any_size
    assert made.as_if is None
    readme = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "There is no `single_op.json`: the kernel fuses 2 ops" in readme
    assert not (tmp_path / "out" / "single_op.json").exists()


# --- kernels that fail, and searches that end early -------------------------------------------------------------------


def test_a_kernel_that_fails_does_not_reproduce() -> None:
    given, got = whole(*RELU, tail)

    def kernel(case: Case) -> Mapping[int, Array]:
        if case.inputs[0].array.shape[1] < 4:
            raise KernelFailedError(Message("minimal.kernel.exit", code=139, last=None))
        return {0: tail(right(case), case)}

    made = minimize(OpAttributes(RELU[0], given), given, got, kernel)
    assert shapes(made) == ((1, 4, 1),)
    assert 0 < made.failed < made.runs


def test_a_right_kernel_or_one_without_results_for_the_own_inputs() -> None:
    given, got = whole(*RELU, tail)
    settings = OpAttributes(RELU[0], given)
    with pytest.raises(NotWrongError):
        minimize(settings, given, got, lambda case: {0: right(case)})
    with pytest.raises(KernelFailedError):
        minimize(settings, given, got, lambda case: {})
    with pytest.raises(KernelFailedError):
        minimize(settings, given, got, lambda case: {0: right(case)[:1]})


def test_the_limit_and_ctrl_c_keep_the_smallest_so_far() -> None:
    given, got = whole(*PRODUCT, tile)
    for limit, raised in ((40, None), (400, KeyboardInterrupt)):
        seen: list[int] = []

        def kernel(case: Case, seen: list[int] = seen, raised: Any = raised) -> Mapping[int, Array]:
            seen.append(case.inputs[0].array.size)
            if raised is not None and len(seen) == 41:
                raise raised
            return {0: tile(right(case), case)}

        made = minimize(OpAttributes(PRODUCT[0], given), given, got, kernel, limit=limit)
        assert (made.is_limited, made.is_stopped) == (raised is None, raised is not None)
        assert made.case.elements < made.original.elements
        assert made.runs <= limit
        assert dumped(made.case.formula, tuple(made.case.inputs.values()), tile).spans


def test_the_search_is_deterministic() -> None:
    first, second = (shrunk(*LONG, sums_in_float16) for _ in range(2))
    assert (first.runs, first.rules) == (second.runs, second.rules)
    np.testing.assert_array_equal(first.case.inputs[0].array, second.case.inputs[0].array)


# --- recorded calls ---------------------------------------------------------------------------------------------------


def recorded_tensor(*shape: int) -> RecordedTensor:
    return RecordedTensor(type="torch.Tensor", dtype="torch.float32", shape=shape)


def call_of(name: str, *inputs: Any, outputs: tuple[Any, ...] = ()) -> RecordedCall:
    return RecordedCall(name=name, call=parse_call_name(name), inputs=inputs, outputs=outputs)


def settings_of(recorded: RecordedOp) -> CallArguments:
    return CallArguments(op=Op(name=recorded.call.name, type=recorded.call.name), recorded=recorded)


def test_arguments_by_place_have_names_and_get_plainer() -> None:
    sizes = ((2, 3, 5, 5), (8, 3, 3, 3), (2, 8, 3, 3))
    image, kernel, made = (recorded_tensor(*size) for size in sizes)
    call = call_of("Functional.conv2d.0.forward", image, kernel, None, (2, 2), (1, 1), (1, 1), 1, outputs=(made,))
    settings = settings_of(RecordedOp(call=call))
    inputs = {slot: replace(tensor(*size), dtype="float32") for slot, size in enumerate(sizes[:2])}
    y = settings.formula(inputs, {}).run(inputs)[0].array.copy()
    y[:, 5] *= 2
    got = {0: Input(array=y, dtype="float32")}

    def doubled(case: Case) -> Mapping[int, Array]:
        made = case.formula.run(case.inputs)[0].array.copy()
        made[:, 5:6] *= 2
        return {0: made}

    smallest = minimize(settings, inputs, got, doubled)
    assert shapes(smallest) == ((1, 1, 1, 1), (6, 1, 1, 1))
    assert smallest.changed == {"stride.0": 1, "stride.1": 1, "padding.0": 0, "padding.1": 0}
    changed = settings.with_changes(smallest.case.changes)
    assert call_code(changed.call, "pytorch", lambda slot, _: slot.replace(".", "_")) == (
        "torch.nn.functional.conv2d(input_0, input_1, None, [1, 1], [0, 0], [1, 1], 1)"
    )
    part = minimize(settings, inputs, got)
    assert shapes(part) == ((1, 3, 3, 3), (1, 3, 3, 3))
    assert part.changed == {"padding.0": 0, "padding.1": 0}


def test_a_backward_shrinks_with_its_forward() -> None:
    x, y = recorded_tensor(4, 6), recorded_tensor(4, 6)
    forward = call_of("Functional.gelu.0.forward", x, outputs=(y,))
    backward = call_of("Functional.gelu.0.backward", y, outputs=(x,))
    recorded = RecordedOp(call=backward, forward=forward)
    settings = settings_of(recorded)
    inputs = {slot: replace(tensor(4, 6 + slot), array=tensor(4, 6 + slot).array[:, :6]) for slot in range(3)}
    inputs = {slot: replace(item, dtype="float32") for slot, item in inputs.items()}
    wrong = settings.formula(inputs, {}).run(inputs)[0].array.copy()
    wrong[2] *= 3
    made = minimize(settings, inputs, {0: Input(array=wrong, dtype="float32")})
    assert shapes(made) == ((1, 1), (1, 1), (1, 1))
    (span,) = made.spans
    assert (span.part, span.first, span.axis) == (Part.ONE, 2, 0)
    smaller = with_shapes(recorded, dict.fromkeys(range(3), (1, 1)), {0: (1, 1)})
    assert {item.shape for item in (*smaller.outputs, *smaller.gradients, *smaller.inputs[:2])} == {(1, 1)}
