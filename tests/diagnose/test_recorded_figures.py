"""What Max, Min, Mean and Norm, and checksums, of msprobe's dumps tell without a single tensor."""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from msprobe_files import forward, literal, tensor, write_leaf
from msprobe_python import run_torch

from precision_tool.lib.data.msprobe_tree import find_msprobe
from precision_tool.lib.diagnose import figure_laws
from precision_tool.lib.diagnose.figure_laws import broken_bounds
from precision_tool.lib.diagnose.recorded_differences import is_overwritten
from precision_tool.lib.diagnose.recorded_figures import FiguresVerdict, Ground, Origin, judge_figures
from precision_tool.lib.io.msprobe_dump import call_of
from precision_tool.lib.messages import render

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order() -> None:
    """Numbers do not depend on which tests ran before."""
    RANDOM.bit_generator.state = np.random.default_rng(5).bit_generator.state


def numbers(*shape: int, scale: float = 1.0) -> Array:
    return (RANDOM.standard_normal(shape) * scale).astype(np.float32)


def broken(name: str, entry: Mapping[str, Any], forward_entry: Mapping[str, Any] | None = None) -> list[str] | None:
    """The laws that an entry breaks; None where none applies."""
    other = None if forward_entry is None else call_of(name.replace("backward", "forward"), forward_entry)
    bounds = broken_bounds(call_of(name, entry), other)
    return None if bounds is None else sorted({bound.law for bound in bounds})


# ---- laws: what right kernels put out obeys them, in every type, and what wrong ones put out does not


def gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def layer_norm(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


def log_softmax(x: Array) -> Array:
    return np.log(softmax(x))


#: API, the right function, other arguments, and a wrong result with the law that it breaks.
ONE_INPUT: list[tuple[str, Any, list[Any], Any, str]] = [
    ("Functional.gelu", gelu, [], lambda y: y * 1.1, "gate_max"),
    ("Functional.gelu", gelu, [], lambda y: y - 0.1, "gate_min"),
    ("Functional.gelu", gelu, [], lambda y: np.where(y == y.max(), y, np.minimum(y, 0)), "gate_mean"),
    ("Functional.silu", lambda x: x * sigmoid(x), [], lambda y: y * 1.1, "gate_max"),
    ("Functional.relu", lambda x: np.maximum(x, 0), [], lambda y: np.where(y == 0, -0.01, y), "relu"),
    ("Functional.relu", lambda x: np.maximum(x, 0), [], lambda y: np.where(y == 0, y.max(), y), "relu_mean"),
    ("Torch.sigmoid", sigmoid, [], lambda y: y * 1.1, "increasing"),
    ("Torch.tanh", np.tanh, [], lambda y: y * 1.1, "increasing"),
    ("Functional.softmax", softmax, [literal(-1)], lambda y: y * 1.05, "softmax_mean"),
    ("Functional.softmax", softmax, [], lambda y: y - 0.1, "softmax_range"),
    ("Functional.log_softmax", log_softmax, [literal(-1)], lambda y: y / 2, "log_softmax_mean"),
    ("Tensor.transpose", lambda x: x.T, [literal(0), literal(1)], lambda y: y * 1.1, "same_numbers"),
    ("Tensor.__neg__", lambda x: -x, [], lambda y: y * 1.1, "scaled"),
    ("Tensor.abs", abs, [], lambda y: y * 1.1, "absolute"),
    ("Tensor.mean", lambda x: x.mean(0), [literal(0)], lambda y: y + 0.5, "reduced_mean"),
    ("Tensor.sum", lambda x: x.sum(1), [literal(1)], lambda y: y + 5, "reduced_mean"),
    ("Tensor.__mul__", lambda x: x * 0.125, [literal(0.125)], lambda y: y * 1.1, "scaled"),
    ("Tensor.__truediv__", lambda x: x / 8, [literal(8)], lambda y: y * 1.1, "scaled"),
    ("Tensor.__radd__", lambda x: x + 2, [literal(2)], lambda y: y * 1.1, "sum_mean"),
    ("Tensor.__rsub__", lambda x: 2 - x, [literal(2)], lambda y: -y, "sum_mean"),
    ("Tensor.clamp", lambda x: np.clip(x, -1, 1), [literal(-1), literal(1)], lambda y: y * 2, "clamped"),
    ("Tensor.max", lambda x: x.max(0), [literal(0)], lambda y: y - 0.5, "one_of"),
    ("Tensor.__getitem__", lambda x: x[:3], [literal(3)], lambda y: y + 9, "one_of"),
    ("Functional.dropout", lambda x: x, [literal(0.5), literal(False)], lambda y: y * 2, "same_numbers"),
    ("Functional.dropout", lambda x: x * 2, [literal(0.5), literal(True)], lambda y: y * 2, "dropout"),
    ("Functional.layer_norm", layer_norm, [[literal(48)]], lambda y: y * 1.2, "normalized_norm"),
    ("Functional.layer_norm", layer_norm, [[literal(48)]], lambda y: y + 0.5, "normalized_mean"),
    ("Functional.rms_norm", lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True)), [[literal(48)]],
     lambda y: y * 1.5, "normalized_norm"),
    ("Functional.batch_norm", lambda x: layer_norm(x.T).T,
     [None, None, None, None, literal(True), literal(0.1), literal(1e-5)], lambda y: y * 1.2, "normalized_norm"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("name", "function", "arguments", "wrong", "law"), ONE_INPUT,
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_laws_of_one_input(
    dtype: Any, name: str, function: Any, arguments: list[Any], wrong: Any, law: str
) -> None:  # fmt: skip
    for scale in (0.01, 1.0, 6.0):
        x = numbers(32, 48, scale=scale).astype(dtype)
        y = function(x.astype(np.float64))
        entry = forward(rounded(x), *arguments, output=[rounded(y.astype(dtype))])
        assert broken(f"{name}.0.forward", entry) == [], scale
    x = numbers(32, 48).astype(dtype)
    y = wrong(function(x.astype(np.float64)))
    assert law in (
        broken(f"{name}.0.forward", forward(rounded(x), *arguments, output=[rounded(y.astype(dtype))])) or ()
    )


def rounded(array: Array) -> dict[str, Any]:
    """A tensor with Mean and Norm in its type, as msprobe has them."""
    entry = tensor(array)
    if array.dtype.kind not in "biu":
        entry |= {key: float(np.asarray(entry[key]).astype(array.dtype)) for key in ("Mean", "Norm")}
    return entry


def conv(x: Array, w: Array) -> Array:
    """A convolution of 3 by 3 without padding."""
    parts = [
        np.einsum("nchw,oc->nohw", x[:, :, i : i + x.shape[2] - 2, j : j + x.shape[3] - 2], w[:, :, i, j])
        for i in range(3)
        for j in range(3)
    ]
    return np.asarray(sum(parts))


TWO_INPUTS: list[tuple[str, Any, tuple[int, ...], tuple[int, ...], Any, str]] = [
    ("Tensor.__add__", np.add, (16, 24), (24,), lambda y: y + 0.2, "sum_mean"),
    ("Tensor.__add__", np.add, (16, 24), (16, 24), lambda y: y * 3, "sum_norm"),
    ("Tensor.__sub__", np.subtract, (16, 24), (16, 24), lambda y: y * 5, "sum"),
    ("Tensor.__mul__", np.multiply, (16, 24), (24,), lambda y: y * 20, "product"),
    ("Torch.matmul", np.matmul, (4, 16, 24), (24, 8), lambda y: y * 30, "matrix_norm"),
    ("Functional.linear", lambda x, w: x @ w.T, (16, 24), (8, 24), lambda y: y * 30, "matrix_norm"),
    ("Functional.conv2d", conv, (2, 3, 8, 8), (4, 3, 3, 3), lambda y: y * 30, "matrix_norm"),
    ("Torch.cat", lambda x, y: np.concatenate([x, y]), (3, 24), (5, 24), lambda y: y * 1.1, "joined"),
    ("Torch.maximum", np.maximum, (16, 24), (16, 24), lambda y: y + 2, "one_of"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("name", "function", "left", "right", "wrong", "law"), TWO_INPUTS)
def test_laws_of_two_inputs(
    dtype: Any, name: str, function: Any, left: tuple[int, ...], right: tuple[int, ...], wrong: Any, law: str
) -> None:
    x, z = numbers(*left).astype(dtype), numbers(*right).astype(dtype)
    y = function(x.astype(np.float64), z.astype(np.float64))
    inputs = [rounded(x), rounded(z)]
    arguments = [inputs] if name == "Torch.cat" else inputs
    assert broken(f"{name}.0.forward", forward(*arguments, output=[rounded(y.astype(dtype))])) == []
    wrong_entry = forward(*arguments, output=[rounded(wrong(y).astype(dtype))])
    assert law in (broken(f"{name}.0.forward", wrong_entry) or ())


def backward(*gradients: Any, output: Any) -> dict[str, Any]:
    return {"input": list(gradients), "output": list(output)}


def test_laws_of_gradients() -> None:
    x, dy = numbers(16, 24), numbers(16, 24)
    p = softmax(x)
    dx = p * (dy - (p * dy).sum(-1, keepdims=True))
    cases: list[tuple[str, Array, Array, str, dict[str, Any]]] = [
        ("Functional.relu", dy * (x > 0), dy * 1.5, "slope", forward(tensor(x))),
        ("Functional.gelu", dy * 0.7, dy * 1.3, "slope", forward(tensor(x))),
        ("Functional.softmax", dx, dx + 0.1, "gradient_sum", forward(tensor(x))),
        ("Functional.softmax", dx, p * np.abs(dy), "gradient_sum", forward(tensor(x))),
        ("Tensor.__add__", dy, dy * 2, "same_numbers", forward(tensor(x), tensor(x))),
        ("Tensor.__truediv__", dy / 4, dy, "scaled", forward(tensor(x), literal(4))),
    ]
    for name, right, wrong, law, entry in cases:
        assert broken(f"{name}.0.backward", backward(tensor(dy), output=[tensor(right)]), entry) == [], name
        assert law in (broken(f"{name}.0.backward", backward(tensor(dy), output=[tensor(wrong)]), entry) or ()), name


def test_numbers_that_are_not_finite() -> None:
    """NaN made of numbers is a fault; made of NaN, or beyond the type's range, it is none."""
    x, bad = numbers(8, 8), np.full((8, 8), np.nan, np.float32)
    assert broken("Functional.silu.0.forward", forward(tensor(x), output=[tensor(bad)])) == ["gate_max", "gate_min"]
    assert broken("Functional.silu.0.forward", forward(tensor(bad), output=[tensor(bad)])) is None
    big = np.full((8, 8), 3e4, np.float16)
    over = tensor(big) | {"Max": math.inf, "Min": math.inf, "Mean": math.inf, "Norm": math.inf}
    assert broken("Tensor.__mul__.0.forward", forward(tensor(big), literal(10), output=[over])) == []
    assert broken("Tensor.__mul__.0.forward", forward(tensor(big), literal(0.5), output=[over])) == ["scaled"]
    # A norm that overflows in its type tells nothing.
    large = np.full((64, 64), 3e4, np.float16)
    entry = forward(tensor(large, Norm=math.inf), output=[tensor(large, Norm=math.inf)])
    assert broken("Tensor.contiguous.0.forward", entry) == []


def test_no_law_without_its_arguments() -> None:
    x = numbers(4, 4)
    part = tensor(x) | {"type": "torch.distributed.tensor.DTensor"}
    for name, entry in (
        ("Functional.gelu.0.forward", forward(part, output=[tensor(x * 9)])),
        ("Functional.gelu.0.forward", forward(literal(3), output=[tensor(x)])),
        ("Functional.softmax.0.forward", forward(tensor(x), output=[literal(1)])),
        ("Tensor.__add__.0.forward", forward(tensor(x), tensor(numbers(3)), output=[tensor(x)])),
        ("Functional.no_such_function.0.forward", forward(tensor(x), output=[tensor(x)])),
        ("Module.a.MyBlock.forward.0", forward(tensor(x), output=[tensor(x)])),
    ):
        assert broken(name, entry) is None, name
    huge = tensor(x) | {"shape": [1 << 62, 1 << 62], "Max": 10**400}
    assert broken("Functional.gelu.0.forward", forward(huge, output=[huge])) is None


def test_where_takes_no_condition_for_a_side() -> None:
    """Numbers with Inf have no figures; what the condition says is no number of the output."""
    x = np.asarray([-1000.0, 2.0, 3.0, 5.0], np.float32)
    condition, zeros = tensor(np.asarray([True, True, False, True])), tensor(np.zeros(4, np.float32))
    right, wrong = tensor(np.asarray([-1000.0, 2.0, 0.0, 5.0], np.float32)), tensor(x * 2)
    over = tensor(x) | {"Max": math.inf, "Mean": math.inf, "Norm": math.inf}
    for name, arguments in (("Tensor", (tensor(x), condition)), ("Torch", (condition, tensor(x)))):
        assert broken(f"{name}.where.0.forward", forward(*arguments, zeros, output=[right])) == []
        assert broken(f"{name}.where.0.forward", forward(*arguments, zeros, output=[wrong])) == ["one_of"]
    for name, arguments in (("Tensor", (over, condition)), ("Torch", (condition, over))):
        assert broken(f"{name}.where.0.forward", forward(*arguments, zeros, output=[right])) is None
    # A bool is no side.
    assert broken("Torch.where.0.forward", forward(condition, condition, zeros, output=[right])) is None


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_quotient_without_a_fraction_has_no_slope(mode: str) -> None:
    entry = forward(tensor(numbers(8, 8)), literal(2), rounding_mode=literal(mode))
    gradient = backward(tensor(numbers(8, 8)), output=[tensor(np.zeros((8, 8), np.float32))])
    assert broken("Torch.div.0.backward", gradient, entry) is None


def test_a_stride_and_a_dilation_that_meet_the_same_elements() -> None:
    x = np.zeros((1, 1, 64, 64), np.float32)
    x[:, :, ::2, ::2] = 1
    arguments = [tensor(x), tensor(np.ones((1, 1, 3, 3), np.float32)), None, literal(2), literal(0)]

    def laws(name: str, value: float, *more: Any) -> list[str] | None:
        entry = forward(*arguments, *more, output=[tensor(np.full((1, 1, 30, 30), value, np.float32))])
        return broken(f"Functional.{name}.0.forward", entry)

    assert laws("conv2d", 9.0, literal(2)) == []
    assert laws("conv2d", 9.0, literal(1)) == ["matrix_norm"]  # each element is in four sums at most
    assert laws("conv2d", 9.0, [literal(2), literal(2)]) == []
    assert laws("conv2d", 9.0, literal(0)) is None
    spread = [literal(0), literal(1)]
    assert laws("conv_transpose2d", 9.0, *spread, literal(2)) == []
    assert "matrix_element" in (laws("conv_transpose2d", 9.0, *spread, literal(1)) or ())


def test_a_batch_norm_whose_weight_is_its_second_argument() -> None:
    """That of torch; that of torch.nn.functional has it behind the running statistics, which it writes."""
    x = numbers(64, 8)
    y = layer_norm(x.T).T
    state = [tensor(np.full(8, 0.01, np.float32)), tensor(np.full(8, 0.01, np.float32))]
    weights = [tensor(np.full(8, 5.0, np.float32)), tensor(np.zeros(8, np.float32))]
    rest = [literal(True), literal(0.1), literal(1e-5)]
    for prefix, arguments in (("Functional", [*state, *weights]), ("Torch", [*weights, *state])):
        name = f"{prefix}.batch_norm.0.forward"
        assert broken(name, forward(tensor(x), *arguments, *rest, output=[tensor(y * 5)])) == []
        assert "normalized_norm" in (
            broken(name, forward(tensor(x), *arguments, *rest, output=[tensor(y * 6)])) or ()
        )  # fmt: skip
        call = call_of(name, forward(tensor(x), *arguments, *rest, output=[tensor(y)]))
        places = [slot for slot, _ in call.tensors() if is_overwritten(call, slot)]
        assert places == (["input.1", "input.2"] if prefix == "Functional" else ["input.3", "input.4"])


def test_a_view_of_another_type_has_other_numbers() -> None:
    x = numbers(4, 8).astype(ml_dtypes.bfloat16)
    seen = x.view(np.float16)
    name, as_type = "Tensor.view.0.forward", literal("torch.float16", "torch.dtype")
    assert broken(name, forward(rounded(x), as_type, output=[rounded(seen)])) is None
    assert broken(name, forward(rounded(x), literal(32), output=[rounded(x.reshape(32))])) == []
    assert broken(name, forward(rounded(x), literal(32), output=[rounded(x.reshape(32) * 2)])) == ["same_numbers"]


def test_a_gradient_at_an_infinity() -> None:
    """What the forward read explains NaN in its gradient."""
    dy, bad = tensor(numbers(8, 8)), tensor(np.full((8, 8), np.nan, np.float32))
    x = numbers(8, 8)
    over = tensor(x) | {"Max": math.inf, "Mean": math.inf, "Norm": math.inf}
    assert broken("Functional.silu.0.backward", backward(dy, output=[bad]), forward(over)) is None
    assert broken("Functional.silu.0.backward", backward(dy, output=[bad]), forward(tensor(x))) == ["slope"]


def test_odd_arguments_and_figures(tmp_path: Path) -> None:
    """Whatever a file says, a law applies or it does not."""
    random = np.random.default_rng(3)
    odd: list[Any] = [
        None, literal(1e308), literal(0), literal("x"), literal(True), literal(-(10**400)), [], [literal(2)] * 3, {},
        literal(math.nan), {"type": "slice", "value": [0, None, 2]}, tensor(numbers(3, 4)),
        tensor(numbers(2, 3, 4, 4)),
        tensor(np.arange(4)), tensor(np.float32(2)),
        tensor(numbers(3, 4)) | {"Max": 1e308, "Min": -1e308, "Norm": 1e308},
        tensor(numbers(3, 4).astype(np.float64)) | {"Max": math.nan}, tensor(numbers(4, 0)),
        tensor(numbers(2)) | {"Norm": -3},
    ]  # fmt: skip
    for name in [*figure_laws._LAWS, *figure_laws._GRADIENT_LAWS]:
        for direction in ("forward", "backward"):
            for _ in range(20):
                chosen = [odd[number] for number in random.integers(0, len(odd), 10)]
                entry = forward(*chosen[:6], output=chosen[6:8], dim=chosen[8], alpha=chosen[9])
                gradient = backward(*chosen[:1], output=chosen[6:8])
                broken(f"Torch.{name}.0.{direction}", entry if direction == "forward" else gradient, entry)
    entries = [
        {f"Torch.{name}.0.forward": forward(*(odd[n] for n in random.integers(0, len(odd), 3)), output=odd[11:])
         for name in ("add", "layer_norm", "softmax", "add_")} for _ in range(40)
    ]  # fmt: skip
    for number, (own, other) in enumerate(itertools.pairwise(entries)):
        judge(tmp_path / str(number), own, other)


# ---- one run


def checksummed(array: Array) -> dict[str, Any]:
    return rounded(array) | {"md5": f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"}


def network(
    dtype: Any = np.float32, *, seed: int = 1, weight_scale: float = 1.0, gelu_scale: float = 1.0, spoil: Any = None,
    made: Any = checksummed, later: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Entries of a network: linear, gelu, linear, softmax, and an unrecorded chunk between."""
    random = np.random.default_rng(7)
    w1, w2 = ((random.standard_normal((32, 32)) / 5).astype(dtype) for _ in range(2))
    x = np.random.default_rng(seed).standard_normal((16, 32)).astype(dtype)
    w1 = (w1.astype(np.float32) * weight_scale).astype(dtype)

    def product(left: Array, right: Array) -> Array:
        return (left.astype(np.float32) @ right.astype(np.float32).T).astype(dtype)

    a = product(x, w1)
    b = (gelu(a.astype(np.float32)) * gelu_scale).astype(dtype)
    b = b if spoil is None else spoil(b)
    c = product(b, w2)
    half = np.ascontiguousarray(c[:, :16])
    d = softmax(half.astype(np.float32)).astype(dtype)
    grad = {"requires_grad": True}
    entries = {
        "Functional.linear.0.forward": forward(made(x), made(w1) | grad, output=[made(a) | grad]),
        "Functional.gelu.0.forward": forward(made(a) | grad, output=[made(b) | grad]),
        "Module.act.GELU.forward.0": forward(made(a) | grad, output=[made(b) | grad]),
        "Functional.linear.1.forward": forward(made(b) | grad, made(w2) | grad, output=[made(c) | grad]),
        "Functional.softmax.0.forward": forward(made(half) | grad, literal(-1), output=[made(d) | grad]),
    }
    return entries | ({"Tensor.sum.0.forward": forward(made(d), output=[made(d.sum())])} if later else {})


def judge(folder: Path, own: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> FiguresVerdict:
    leaf = find_msprobe(str(write_leaf(folder / "npu" / "step0" / "rank3", own))).leaves[0]
    if other is None:
        return judge_figures(leaf)
    return judge_figures(leaf, find_msprobe(str(write_leaf(folder / "gpu" / "step0" / "rank3", other))).leaves[0])


def test_one_run(tmp_path: Path) -> None:
    verdict = judge(tmp_path, network(gelu_scale=1.2, made=rounded))
    culprit = verdict.culprit
    assert culprit is not None
    assert (culprit.name, culprit.number, culprit.ground, culprit.slot) == (
        "Functional.gelu.0.forward", 1, Ground.LAW, "output.0",
    )  # fmt: skip
    assert {"gate_max"} <= {bound.law for bound in culprit.bounds}
    assert not any(bound.low <= bound.value <= bound.high for bound in culprit.bounds)
    assert culprit.producers == ("Functional.linear.0.forward",)
    assert [(reader.name, reader.slot) for reader in culprit.readers] == [("Functional.linear.1.forward", "input.0")]
    assert (verdict.step, verdict.rank, verdict.calls, verdict.judged, verdict.compared) == (0, 3, 4, 4, 0)
    assert culprit.confidence < 0.95  # that of a recomputed op
    for language in ("en", "zh"):
        texts = [render(message, language) for message in (verdict.conclusion, *culprit.reasons)]
        assert all(texts)
        assert "Functional.gelu.0.forward" in texts[0]
    document = json.loads(json.dumps(verdict.to_dict()))
    assert document["suspects"][0]["name"] == "Functional.gelu.0.forward"
    config = document["config"]
    assert (config["task"], config["step"], config["rank"]) == ("tensor", [0], [3])
    assert config["tensor"]["list"] == [
        "Functional.gelu.0.forward", "Functional.linear.0.forward", "Functional.linear.1.forward",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("made", [rounded, checksummed])
def test_right_runs_accuse_nobody(tmp_path: Path, dtype: Any, made: Any) -> None:
    verdict = judge(tmp_path / "alone", network(dtype, made=made))
    assert (verdict.suspects, verdict.reason) == ((), None)
    assert verdict.config() is None
    beside = judge(tmp_path / "both", network(dtype, made=made), network(made=made))
    assert beside.suspects == ()
    assert beside.compared == beside.calls == 4
    assert beside.has_figures
    assert (beside.same == 4) == (dtype is np.float32 and made is checksummed)
    assert render(beside.conclusion, "en")


# ---- two runs


def drop_tail(y: Array) -> Array:
    y = y.copy()
    y[:, -5:] = 0
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_figures_that_depart(tmp_path: Path, dtype: Any) -> None:
    """No law is broken by a tail of zeros; the benchmark, of another type, shows it."""
    assert judge(tmp_path / "alone", network(dtype, spoil=drop_tail, made=rounded)).suspects == ()
    verdict = judge(tmp_path, network(dtype, spoil=drop_tail, made=rounded), network(made=rounded))
    culprit = verdict.culprit
    assert culprit is not None
    assert (culprit.name, culprit.ground, culprit.slot) == ("Functional.gelu.0.forward", Ground.DEPARTURE, "output.0")
    assert culprit.difference is not None
    assert culprit.difference.figure in ("Mean", "Norm")
    assert culprit.difference.relative > culprit.difference.allowed > 0
    assert [suspect.name for suspect in verdict.suspects] == ["Functional.gelu.0.forward"]
    assert all(render(reason, "zh") for reason in culprit.reasons)


def test_checksums_with_figures(tmp_path: Path) -> None:
    verdict = judge(tmp_path, network(spoil=drop_tail), network())
    culprit = verdict.culprit
    assert culprit is not None
    assert (culprit.name, culprit.ground) == ("Functional.gelu.0.forward", Ground.CHECKSUM)
    assert verdict.has_checksums
    assert verdict.same == 1


def test_the_same_bytes_are_rounded_once(tmp_path: Path) -> None:
    """What figures alone leave open, they do not where the inputs have the same checksums."""

    def spoil(y: Array) -> Array:
        return np.where(y == y.max(), y, y.astype(np.float32) * 0.983).astype(y.dtype)

    own, other = network(ml_dtypes.bfloat16, spoil=spoil), network(ml_dtypes.bfloat16)
    culprit = judge(tmp_path / "both", own, other).culprit
    assert culprit is not None
    assert (culprit.name, culprit.ground) == ("Functional.gelu.0.forward", Ground.CHECKSUM)
    own, other = (network(ml_dtypes.bfloat16, spoil=fault, made=rounded) for fault in (spoil, None))
    assert judge(tmp_path / "figures", own, other).culprit is None


def only_sum(array: Array) -> dict[str, Any]:
    """A tensor of summary_mode xor: no statistics."""
    return checksummed(array) | {"Max": None, "Min": None, "Mean": None, "Norm": None}


def one_bit(y: Array) -> Array:
    y = y.copy()
    y[0, 0] = np.nextafter(y[0, 0], np.float32(9))
    return y


@pytest.mark.parametrize("made", [checksummed, only_sum])
def test_bytes_that_differ_by_a_rounding(tmp_path: Path, made: Any) -> None:
    """Which may be another device: it is told, and nobody is accused."""
    verdict = judge(tmp_path, network(spoil=one_bit, made=made), network(made=made))
    assert verdict.culprit is None
    assert [(suspect.name, suspect.ground) for suspect in verdict.suspects][:1] == [
        ("Functional.gelu.0.forward", Ground.BYTES)
    ]  # fmt: skip
    assert verdict.conclusion.kind == "figures.first_difference"
    assert verdict.config() is not None


def test_a_fault_behind_a_difference_of_bytes(tmp_path: Path) -> None:
    """Another device rounds in its own way from the first call on; what departs after that is found all the same."""
    own = network(spoil=lambda y: drop_tail(one_bit(y)))
    first = own["Functional.linear.0.forward"]["output"][0]
    own["Functional.gelu.0.forward"]["input_args"] = [first]
    first["md5"] = "00000000"
    first["Mean"] *= 1 + 1e-6
    verdict = judge(tmp_path, own, network())
    assert verdict.culprit is not None
    assert (verdict.culprit.name, verdict.culprit.ground) == ("Functional.gelu.0.forward", Ground.DEPARTURE)
    assert [suspect.ground for suspect in verdict.suspects] == [Ground.DEPARTURE, Ground.BYTES]


@pytest.mark.parametrize("made", [rounded, checksummed, only_sum])
def test_sources(tmp_path: Path, made: Any) -> None:
    for folder, own, slot, origin in (
        ("data", network(seed=2, made=made), "input.0", Origin.DATA),
        ("weight", network(weight_scale=1.05, made=made), "input.1", Origin.VARIABLE),
    ):
        culprit = judge(tmp_path / folder, own, network(made=made)).culprit
        assert culprit is not None
        assert (culprit.name, culprit.slot, culprit.ground, culprit.origin) == (
            "Functional.linear.0.forward", slot, Ground.SOURCE, origin,
        )  # fmt: skip
        assert all(render(reason, language) for reason in culprit.reasons for language in ("en", "zh"))


def test_what_is_written_over_has_no_checksum(tmp_path: Path) -> None:
    """msprobe computes CRCs in the background: that of what is written in place may be of what was written."""
    x = numbers(8, 8)

    def entries(checksum: str) -> dict[str, Any]:
        y = checksummed(np.abs(x)) | {"md5": checksum}
        return network() | {
            "Tensor.abs.0.forward": forward(checksummed(x), output=[y]),
            "Tensor.add_.0.forward": forward(y, literal(1), output=[checksummed(np.abs(x) + 1)]),
        }

    verdict = judge(tmp_path / "a", entries("00000001"), entries("00000002"))
    assert verdict.suspects == ()
    own, other = entries("00000001"), entries("00000002")
    del own["Tensor.add_.0.forward"], other["Tensor.add_.0.forward"]
    assert [suspect.ground for suspect in judge(tmp_path / "b", own, other).suspects] == [Ground.BYTES]


def test_random_numbers(tmp_path: Path) -> None:
    x = numbers(16, 16)
    sides = []
    for seed in (1, 2):
        y = np.where(np.random.default_rng(seed).random((16, 16)) < 0.5, x * 2, 0).astype(np.float32)
        entry = forward(checksummed(x), literal(0.5), literal(True), output=[checksummed(y)])
        sides.append({"Functional.dropout.0.forward": entry})
    verdict = judge(tmp_path, sides[0], sides[1])
    assert (verdict.culprit, [suspect.ground for suspect in verdict.suspects]) == (None, [Ground.RANDOM])


def test_calls_that_only_one_side_has(tmp_path: Path) -> None:
    """Calls of a function that one side called more often are not held together; the first that read them is named."""
    x = numbers(16, 24)
    own = {
        "Tensor.__mul__.0.forward": forward(checksummed(x), literal(3.0), output=[checksummed(x * 3)]),
        "Functional.relu.0.forward": forward(checksummed(x * 3), output=[checksummed(np.maximum(x * 3, 0))]),
        "Tensor.__mul__.1.forward": forward(checksummed(x), literal(2.0), output=[checksummed(x * 2)]),
    }
    other = {
        "Functional.relu.0.forward": forward(checksummed(x), output=[checksummed(np.maximum(x, 0))]),
        "Tensor.__mul__.0.forward": forward(checksummed(x), literal(2.0), output=[checksummed(x * 2)]),
    }
    verdict = judge(tmp_path, own, other)
    assert verdict.unpaired == 2
    assert verdict.culprit is not None
    assert (verdict.culprit.name, verdict.culprit.origin) == ("Functional.relu.0.forward", Origin.UNRECORDED)


def test_a_benchmark_of_another_network(tmp_path: Path) -> None:
    x = numbers(4, 4)
    other = {f"Torch.abs.{n}.forward": forward(tensor(x), output=[tensor(np.abs(x))]) for n in range(9)}
    verdict = judge(tmp_path, network(gelu_scale=1.2), other)
    assert verdict.reason is not None
    assert (verdict.reason.kind, verdict.compared) == ("figures.other_network", 0)
    assert verdict.culprit is not None  # by its own laws


def test_what_overflows_in_a_narrower_type_is_no_fault(tmp_path: Path) -> None:
    def entries(dtype: Any, **figures: float) -> dict[str, Any]:
        x = tensor(np.ones((8, 8), dtype))
        return {"Tensor.addcdiv_.0.forward": forward(x, x, x, output=[x | figures])}

    spoilt = {"Max": math.inf, "Min": 1.0, "Mean": math.inf, "Norm": math.inf}
    assert judge(tmp_path / "a", entries(np.float16, **spoilt), entries(np.float32)).suspects == ()
    culprit = judge(tmp_path / "b", entries(np.float16, **spoilt), entries(np.float16)).culprit
    assert culprit is not None
    assert culprit.difference is not None
    assert culprit.difference.value == math.inf
    assert all(render(reason, "en") for reason in culprit.reasons)


@pytest.mark.parametrize("made", [rounded, checksummed, only_sum])
def test_communication_brings_what_other_ranks_put_in(tmp_path: Path, made: Any) -> None:
    """Which is no fault of the communication, nor of what reads it."""
    x, y = numbers(16, 16), numbers(16, 16)
    sides = [
        {
            "Distributed.all_reduce.0.forward": forward(made(x), output=[made(total)]),
            "Functional.relu.0.forward": forward(made(total), output=[made(np.maximum(total, 0))]),
        }
        for total in (x + y, x + y * 2)
    ]
    verdict = judge(tmp_path, sides[0], sides[1])
    assert verdict.culprit is None
    assert [(suspect.name, suspect.origin) for suspect in verdict.suspects] == [
        ("Distributed.all_reduce.0.forward", Origin.RANKS)
    ]  # fmt: skip


def test_modules_where_there_are_no_apis(tmp_path: Path) -> None:
    x = numbers(8, 8)
    entries = {
        "Module.act.GELU.forward.0": forward(tensor(x), output=[tensor(gelu(x) * 1.5)]),
        "Module.head.Linear.parameters_grad.0": {"weight": [tensor(x)]},
    }
    verdict = judge(tmp_path, entries)
    assert verdict.calls == 1
    assert verdict.culprit is not None
    assert verdict.culprit.name == "Module.act.GELU.forward.0"
    assert judge(tmp_path / "none", {}).reason is not None


def test_a_class_with_parameters_may_be_the_users(tmp_path: Path) -> None:
    """A Linear that scales its weight breaks the law of torch's: it is shown, and not accused."""
    x, w = numbers(8, 16), numbers(4, 16)
    entry = forward(tensor(x), output=[tensor(x @ w.T * 30)]) | {"parameters": {"weight": tensor(w)}}
    verdict = judge(tmp_path, {"Module.head.Linear.forward.0": entry})
    assert [(suspect.name, suspect.ground) for suspect in verdict.suspects] == [
        ("Module.head.Linear.forward.0", Ground.LAW)
    ]  # fmt: skip
    assert verdict.culprit is None
    assert "not accused" in render(verdict.conclusion, "en")
    assert "Module.head.Linear.forward.0" in render(verdict.conclusion, "zh")
    # Beside a benchmark the departure accuses it.
    right = {"Module.head.Linear.forward.0": entry | {"output": [tensor(x @ w.T)]}}
    culprit = judge(tmp_path / "both", {"Module.head.Linear.forward.0": entry}, right).culprit
    assert culprit is not None
    assert culprit.ground is Ground.DEPARTURE


def norm_gradient(x: Array, dy: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    normal = centred / deviation
    rest = dy - dy.mean(-1, keepdims=True) - normal * (dy * normal).mean(-1, keepdims=True)
    return np.asarray(rest / deviation)


@pytest.mark.parametrize("name", ["Functional.layer_norm", "Functional.batch_norm"])
def test_a_gradient_of_which_nearly_all_cancels(tmp_path: Path, name: str) -> None:
    """The gradient of a norm has nothing of what would scale a row, as a loss of squares would; rounding stays."""
    random = np.random.default_rng(11)
    x = random.standard_normal((16, 24))
    y = layer_norm(x)

    def entries(dtype: Any, dy: Array, scale: float = 1.0) -> dict[str, Any]:
        low, steep, out = x.astype(dtype), dy.astype(dtype), y.astype(dtype)
        dx = norm_gradient(low.astype(np.float64), steep.astype(np.float64)) * scale
        return {
            f"{name}.0.forward": forward(rounded(low), output=[rounded(out)]),
            f"{name}.0.backward": backward(rounded(steep), output=[rounded(dx.astype(dtype))]),
        }

    bf16 = ml_dtypes.bfloat16
    assert judge(tmp_path / "right", entries(bf16, y * 0.1), entries(np.float32, y * 0.1)).suspects == ()
    # Where little cancels, or the benchmark has lost less, it is a fault as before.
    for number, scale in enumerate((0.01, 1.2)):
        dy = random.standard_normal(x.shape)
        sides = entries(bf16, dy, scale), entries(np.float32, dy)
        culprit = judge(tmp_path / str(number), *sides).culprit
        assert culprit is not None, scale
        assert culprit.name == f"{name}.0.backward"


@pytest.mark.parametrize("made", [rounded, checksummed])
def test_places_that_a_rounding_turns(tmp_path: Path, made: Any) -> None:
    """Which of two numbers that are nearly alike is the larger says something only of the same bytes."""
    x = numbers(16, 24)

    def entries(array: Array, places: Array) -> dict[str, Any]:
        return {"Tensor.max.0.forward": forward(made(array), literal(-1), output=[made(array.max(-1)), made(places)])}

    places = x.argmax(-1).astype(np.int64)
    turned = places + 20
    near = (x * (1 + 1e-6)).astype(np.float32)
    assert judge(tmp_path / "near", entries(near, turned), entries(x, places)).culprit is None
    verdict = judge(tmp_path / "same", entries(x, turned), entries(x, places))
    if made is checksummed:
        assert verdict.culprit is not None
        assert (verdict.culprit.ground, verdict.culprit.slot) == (Ground.CHECKSUM, "output.1")
    else:
        assert verdict.culprit is None  # without bytes nobody knows that the inputs were the same


# ---- what msprobe writes


NETWORK = """
import json, os, sys, torch
from torch import nn
import torch.nn.functional as F
config, is_faulty = sys.argv[1], sys.argv[2] == "faulty"
real = F.gelu
if is_faulty:
    F.gelu = lambda x, **more: real(x, **more) * 1.2
from msprobe.pytorch import PrecisionDebugger, seed_all
seed_all(seed=7, mode=True)
debugger = PrecisionDebugger(config_path=config)

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act, self.out = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x):
        return F.softmax(self.out(self.act(self.fc(F.relu(x)))).float(), -1)

model = Network()
for _ in range(2):
    debugger.start(model=model)
    F.mse_loss(model(torch.randn(5, 6)), torch.zeros(5, 4)).backward()
    debugger.stop()
    debugger.step()
"""


def run(folder: Path, config: dict[str, Any], fault: str = "faulty") -> Path:
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(config | {"dump_path": str(folder / "dump")}))
    run_torch(NETWORK, folder, str(path), fault)
    return folder / "dump"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "summary", "culprit", "entries"),
    [
        ("mix", "md5", "Functional.gelu.0.forward",
         ["Functional.linear.0.forward", "Functional.gelu.0.forward", "Functional.linear.1.forward"]),
        ("L1", "statistics", "Functional.gelu.0.forward",
         ["Functional.linear.0.forward", "Functional.gelu.0.forward", "Functional.linear.1.forward"]),
        ("L0", "statistics", "Module.act.GELU.forward.0",
         ["Module.fc.Linear.forward.0", "Module.act.GELU.forward.0", "Module.out.Linear.forward.0"]),
    ],
)  # fmt: skip
def test_real_dumps(tmp_path: Path, level: str, summary: str, culprit: str, entries: list[str]) -> None:
    """The config.json that is proposed, given to msprobe, collects the tensors that decide, and nothing else."""
    common = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
    config: dict[str, Any] = {
        "task": "statistics", "rank": [], "step": [0, 1], "level": level, "async_dump": False, "extra_info": True,
        "statistics": common | {"tensor_list": []},
    }  # fmt: skip
    faulty = find_msprobe(str(run(tmp_path / "faulty", config))).leaves
    for leaf in faulty:
        verdict = judge_figures(leaf)
        assert verdict.culprit is not None
        assert (verdict.culprit.name, verdict.step) == (culprit, leaf.step)
    if level == "mix":
        clean = find_msprobe(str(run(tmp_path / "clean", config, "clean"))).leaves
        for leaf, twin in zip(faulty, clean, strict=True):
            beside = judge_figures(leaf, twin).culprit
            assert beside is not None
            assert beside.name == culprit
            assert judge_figures(twin).suspects == ()
    verdict = judge_figures(faulty[1])
    proposed = verdict.config()
    assert proposed is not None
    (collected,) = find_msprobe(str(run(tmp_path / "again", proposed))).leaves
    assert (collected.step, collected.has_tensors) == (1, True)
    names = list(json.loads(Path(collected.dump).read_text())["data"])
    assert names == entries
    files = {path.name for path in (Path(collected.path) / "dump_tensor_data").iterdir()}
    assert {f"{name}.output.0.pt" for name in entries} <= files
    assert {name.rsplit(".", 3)[0] for name in files} <= {*entries, *(f"{name}.parameters" for name in entries)}
