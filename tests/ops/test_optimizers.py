"""Optimizers against TensorFlow's resource variables, those of GE alone against their formulas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from opcalls import arrays_of, refused
from opvalues import FEW, Array, Shape, close, close_all, i32, same, same_all, seeds, shapes, values, whole
from tensorflow_oracle import TensorFlow


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer: its tensors and numbers in the order of GE's inputs, and attributes to try."""

    inputs: str
    state: str
    numbers: dict[str, float] = field(default_factory=dict)
    attrs: tuple[dict[str, Any], ...] = ({},)


NESTEROV: tuple[dict[str, Any], ...] = ({"use_nesterov": False}, {"use_nesterov": True})
RATES = {"lr": 0.1, "rho": 0.9, "momentum": 0.8, "epsilon": 1e-3}
ADAM = {"beta1_power": 0.81, "beta2_power": 0.998, "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}
FTRL = {"lr": 0.1, "l1": 0.05, "l2": 0.2, "l2_shrinkage": 0.3, "lr_power": -0.5}
SIGNS = {"lr": 0.1, "alpha": 1.0, "logbase": 0.7, "sign_decay": 0.5, "beta": 0.9}
RULES = {
    "ApplyGradientDescent": Rule(inputs="var alpha delta", state="var", numbers={"alpha": 0.1}),
    "ApplyMomentum": Rule(inputs="var accum lr grad momentum", state="var accum", numbers=RATES, attrs=NESTEROV),
    "ApplyKerasMomentum": Rule(
        inputs="var accum lr grad momentum", state="var accum", numbers=RATES, attrs=NESTEROV
    ),
    "ApplyAdam": Rule(
        inputs="var m v beta1_power beta2_power lr beta1 beta2 epsilon grad", state="var m v", numbers=ADAM,
        attrs=NESTEROV,
    ),
    "ApplyAdaMax": Rule(
        inputs="var m v beta1_power lr beta1 beta2 epsilon grad", state="var m v", numbers=ADAM
    ),
    "ApplyAdamWithAmsgrad": Rule(
        inputs="var m v vhat beta1_power beta2_power lr beta1 beta2 epsilon grad", state="var m v vhat", numbers=ADAM
    ),
    "ApplyAdagrad": Rule(
        inputs="var accum lr grad", state="var accum", numbers=RATES,
        attrs=({"update_slots": True}, {"update_slots": False}),
    ),
    "ApplyAdagradV2": Rule(inputs="var accum lr epsilon grad", state="var accum", numbers=RATES),
    "ApplyAdadelta": Rule(
        inputs="var accum accum_update lr rho epsilon grad", state="var accum accum_update", numbers=RATES
    ),
    "ApplyRMSProp": Rule(
        inputs="var ms mom lr rho momentum epsilon grad", state="var ms mom", numbers=RATES
    ),
    "ApplyCenteredRMSProp": Rule(
        inputs="var mg ms mom lr rho momentum epsilon grad", state="var mg ms mom", numbers=RATES
    ),
    "ApplyFtrl": Rule(inputs="var accum linear grad lr l1 l2 lr_power", state="var accum linear", numbers=FTRL),
    "ApplyFtrlV2": Rule(
        inputs="var accum linear grad lr l1 l2 l2_shrinkage lr_power", state="var accum linear", numbers=FTRL
    ),
    "ApplyProximalGradientDescent": Rule(
        inputs="var alpha l1 l2 delta", state="var", numbers={"alpha": 0.1, "l1": 0.2, "l2": 0.3}
    ),
    "ApplyProximalAdagrad": Rule(inputs="var accum lr l1 l2 grad", state="var accum", numbers=FTRL),
    "ApplyAdagradDA": Rule(
        inputs="var gradient_accumulator gradient_squared_accumulator grad lr l1 l2 global_step",
        state="var gradient_accumulator gradient_squared_accumulator", numbers=FTRL | {"global_step": 3},
    ),
    "ApplyAddSign": Rule(inputs="var m lr alpha sign_decay beta grad", state="var m", numbers=SIGNS),
    "ApplyPowerSign": Rule(inputs="var m lr logbase sign_decay beta grad", state="var m", numbers=SIGNS),
}  # fmt: skip
#: Slots that no optimizer has negative.
POSITIVE = {"accum", "v", "vhat", "ms", "accum_update", "gradient_squared_accumulator"}


def given_of(rule: Rule, shape: Shape, seed: int) -> dict[str, Array]:
    """The op's inputs by name."""
    inputs: dict[str, Array] = {}
    for place, name in enumerate(rule.inputs.split()):
        if name in rule.numbers:
            kind = np.int64 if name == "global_step" else np.float64
            inputs[name] = np.asarray(rule.numbers[name], kind)
        else:
            inputs[name] = values(shape, seed + place, "positive" if name in POSITIVE else "real")
    if "mg" in inputs:  # the variance of the gradient is positive
        inputs["ms"] = inputs["ms"] + inputs["mg"] ** 2 + values(shape, seed + 50) ** 2 * 4
    return inputs


@pytest.mark.parametrize("op_type", RULES)
@FEW
@given(shape=shapes, seed=seeds)
def test_rules(tensorflow: TensorFlow, op_type: str, shape: Shape, seed: int) -> None:
    rule = RULES[op_type]
    inputs = given_of(rule, shape, seed)
    oracle = {("momentum" if name == "momentum" else name): value for name, value in inputs.items()}
    for attrs in rule.attrs:
        expected = tensorflow.run(f"Resource{op_type}", oracle, variables=rule.state.split(), **attrs)
        result = arrays_of(op_type, *inputs.values(), **attrs)
        close_all(result, expected, rtol=1e-7, atol=1e-9)


SPARSE = {
    "SparseApplyAdagrad": "var accum lr grad indices",
    "SparseApplyFtrl": "var accum linear grad indices lr l1 l2 lr_power",
    "SparseApplyRMSProp": "var ms mom lr rho momentum epsilon grad indices",
    "SparseApplyAdadelta": "var accum accum_update lr rho epsilon grad indices",
    "SparseApplyCenteredRMSProp": "var mg ms mom lr rho momentum epsilon grad indices",
    "SparseApplyMomentum": "var accum lr grad indices momentum",
    "SparseApplyKerasMomentum": "var accum lr grad indices momentum",
    "SparseApplyProximalGradientDescent": "var alpha l1 l2 grad indices",
    "SparseApplyProximalAdagrad": "var accum lr l1 l2 grad indices",
    "SparseApplyAdagradDA": "var gradient_accumulator gradient_squared_accumulator grad indices lr l1 l2 global_step",
}


@pytest.mark.parametrize("op_type", SPARSE)
@FEW
@given(seed=seeds)
def test_rules_of_rows(tensorflow: TensorFlow, op_type: str, seed: int) -> None:
    dense = RULES[op_type.removeprefix("Sparse")]
    inputs = given_of(dense, (5, 3), seed) | {"indices": i32([3, 0])}
    inputs["grad"] = inputs.pop("delta", inputs.get("grad", inputs["var"]))[:2]
    inputs = {name: inputs[name] for name in SPARSE[op_type].split()}
    expected = tensorflow.run(f"Resource{op_type}", inputs, variables=dense.state.split())
    close_all(arrays_of(op_type, *inputs.values()), expected, rtol=1e-7, atol=1e-9)


def test_numbers_as_attributes() -> None:
    rule = RULES["ApplyRMSProp"]
    inputs = given_of(rule, (2, 3), 5)
    expected = arrays_of("ApplyRMSProp", *inputs.values())
    tensors = [inputs[name] for name in ("var", "ms", "mom", "lr", "grad")]
    attrs: dict[str, Any] = {name: rule.numbers[name] for name in ("rho", "momentum", "epsilon")}
    for result in (arrays_of("ApplyRMSPropD", *tensors, **attrs), arrays_of("ApplyRMSPropD", *inputs.values())):
        same_all(result, expected)
    adagrad = given_of(RULES["ApplyAdagrad"], (4, 2), 1)
    rows = {"var": adagrad["var"], "accum": adagrad["accum"], "grad": adagrad["grad"][:1], "indices": i32([2])}
    result = arrays_of("SparseApplyAdagradD", *rows.values(), lr=0.1)
    expected = arrays_of("ApplyAdagrad", adagrad["var"][2], adagrad["accum"][2], 0.1, adagrad["grad"][0])
    same(result[0][2], expected[0])
    same(np.delete(result[0], 2, 0), np.delete(adagrad["var"], 2, 0))


@pytest.mark.parametrize("op_type", ["Momentum", "KerasMomentum"])
def test_momentum_of_a_scaled_gradient(op_type: str) -> None:
    var, accum, grad = (values((3, 2), seed) for seed in range(3))
    for attrs in NESTEROV:
        expected = arrays_of(f"Apply{op_type}", var, accum, 0.1, grad * 0.25, 0.9, **attrs)
        result = arrays_of(f"FusedMulApply{op_type}", var, accum, 0.1, grad, 0.9, 0.25, **attrs)
        same_all(result, expected)


# --- of GE alone ------------------------------------------------------------------------------------------------------


@FEW
@given(shape=shapes, seed=seeds)
def test_adam_of_bert_is_adam(shape: Shape, seed: int) -> None:
    grad, m, var = (values(shape, seed + place) for place in range(3))
    v = values(shape, seed + 3, "positive")
    inputs: list[Any] = [grad, v, m, var, 0.1, 0.9, 0.1, 0.999, 0.001]
    new_v, new_m = 0.999 * v + 0.001 * grad**2, 0.9 * m + 0.1 * grad
    step = new_m / (np.sqrt(new_v) + 1e-6)
    for op_type, rest, expected in (
        ("AdamApplyOne", [1e-6], var - 0.1 * step),
        ("AdamApplyOneWithDecayAssign", [0.01, 1e-6], var - 0.1 * (step + 0.01 * var)),
    ):
        close_all(arrays_of(op_type, *inputs, *rest), (new_v, new_m, expected))


@FEW
@given(shape=shapes, seed=seeds)
def test_lamb(shape: Shape, seed: int) -> None:
    grad, m, var = (values(shape, seed + place) for place in range(3))
    v = values(shape, seed + 3, "positive")
    inputs: list[Any] = [grad, v, m, var, 0.9, 0.1, 0.999, 0.001, 1e-6, 4.0, 1.0, 0.01]
    new_v, new_m = 0.999 * v + 0.001 * grad**2, 0.9 * m + 0.1 * grad
    plain = new_m / (1 - 0.9**4) / (np.sqrt(new_v / (1 - 0.999**4)) + 1e-6)
    expected = [plain + 0.01 * var, new_v, new_m]
    close_all(arrays_of("LambApplyOptimizerAssign", *inputs), expected)
    moments: list[Any] = [grad**2, v, 1 - 0.999**4, grad, m, 1 - 0.9**4, var, 0.9, 0.1, 0.999, 0.001, 0.01, 1e-6]
    close_all(arrays_of("LambNextMV", *moments), [expected[0], new_m, new_v, plain])
    for norm, ratio in ((3.0, 1.5), (0.0, 1.0)):
        (result,) = arrays_of("LambApplyWeightAssign", norm, 2.0, 0.1, plain, var)
        close(result, var - ratio * 0.1 * plain)


@FEW
@given(shape=shapes, seed=seeds)
def test_lars(shape: Shape, seed: int) -> None:
    w, g = values(shape, seed), values(shape, seed + 1)
    squares = [sum(float(one) ** 2 for one in array.flat) for array in (w, g)]
    norms = [square**0.5 for square in squares]
    rate = 0.02 * norms[0] / (norms[1] + 0.1 * norms[0] + 1e-5)
    for clip, expected in ((False, rate), (True, min(rate / 0.01, 1))):
        attrs: dict[str, Any] = {"hyperpara": 0.02, "use_clip": clip}
        for result in (
            arrays_of("LarsV2", w, g, 0.1, 0.01, **attrs),
            arrays_of("LarsV2Update", w, g, *squares, 0.1, 0.01, **attrs),
        ):
            close(result[0], expected * (g + 0.1 * w))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("decay", "dampening"), [(0.0, 0.0), (0.01, 0.0), (0.0, 0.3), (0.1, 0.2)])
def test_descent_with_momentum(nesterov: bool, decay: float, dampening: float) -> None:
    """Element by element, half of them at their first step."""
    var, grad, accum = (values((3, 4), seed) for seed in range(3))
    stat = whole((3, 4), 7, 0, 2).astype(np.float64)
    expected = np.empty(var.shape)
    for place in np.ndindex(*var.shape):
        g = grad[place] + decay * var[place]
        a = 0.9 * accum[place] + g
        if not stat[place]:
            a -= dampening * g
        expected[place] = var[place] - 0.1 * (g + 0.9 * a if nesterov else a)
    attrs: dict[str, Any] = {"nesterov": nesterov, "weight_decay": decay, "dampening": dampening}
    (result,) = arrays_of("SGD", var, grad, 0.1, accum, 0.9, stat, **attrs)
    close(result, expected)


@FEW
@given(shape=shapes, seed=seeds)
def test_fused_moments_of_lamb(shape: Shape, seed: int) -> None:
    grad, m, var = (values(shape, seed + place) for place in range(3))
    v = values(shape, seed + 3, "positive")
    new_v, new_m = 0.999 * v + 0.001 * grad**2, 0.9 * m + 0.1 * grad
    mean, variance = new_m / (1 - 0.9**4), new_v / (1 - 0.999**4)
    # An epsilon that tells beside and below the root apart.
    inputs: list[Any] = [grad**2, v, 1 - 0.999**4, grad, m, 1 - 0.9**4, var, 0.9, 0.1, 0.999, 0.001, 0.01, 0.3]
    expected = [
        0.01 * var + mean / np.sqrt(variance + 0.3), new_m, new_v, 0.01 * var + mean / (np.sqrt(variance) + 0.3)
    ]  # fmt: skip
    close_all(arrays_of("LambNextMVWithDecay", *inputs), expected)
    right: list[Any] = [grad, v, 0.999, 0.001, 1 / (1 - 0.999**4), 0.3]
    close_all(arrays_of("LambNextRight", *right), [new_v, np.sqrt(variance) + 0.3])


@pytest.mark.parametrize(
    ("norms", "ratio"),
    [
        ((1.0, 3.0, 2.0), 1.5),
        ((1.0, 90.0, 2.0), 10.0),  # not above the upper end
        ((0.0, 3.0, 2.0), 1.0),  # the first decides whether there is a ratio at all
        ((1.0, 0.0, 2.0), 1.0),
        ((1.0, 0.0, 0.0), 1.0),
        ((1.0, 3.0, -2.0), 0.0),  # not below the lower end
    ],
)
def test_a_step_of_lamb_between_two_ends(norms: tuple[float, ...], ratio: float) -> None:
    step, var = values((3, 4), 1), values((3, 4), 2)
    (result,) = arrays_of("LambUpdateWithLr", *norms, 0.1, step, var, 0.0, 1.0, 10.0)
    close(result, var - ratio * 0.1 * step)


@pytest.mark.parametrize(
    ("norms", "ratio"), [((3.0, 2.0), 1.5), ((90.0, 2.0), 45.0), ((0.0, 2.0), 1.0), ((3.0, 0.0), 1.0)]
)
def test_a_step_of_lamb(norms: tuple[float, ...], ratio: float) -> None:
    step, var = values((3, 4), 1), values((3, 4), 2)
    (result,) = arrays_of("LambUpdateWithLrV2", *norms, 0.1, step, var, 0.0, 1.0)
    close(result, var - ratio * 0.1 * step)


@pytest.mark.parametrize("maximize", [False, True])
@FEW
@given(shape=shapes, seed=seeds, before=st.integers(0, 5))
def test_adam_with_decay(maximize: bool, shape: Shape, seed: int, before: int) -> None:
    var, m, grad = (values(shape, seed + place) for place in range(3))
    v = values(shape, seed + 3, "positive")
    slope = -grad if maximize else grad
    new_m, new_v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope**2
    mean, variance = new_m / (1 - 0.9 ** (before + 1)), new_v / (1 - 0.99 ** (before + 1))
    expected = [var - 0.1 * 0.02 * var - 0.1 * mean / (np.sqrt(variance) + 1e-3), new_m, new_v]
    inputs: list[Any] = [var, m, v, 0.9**before, 0.99**before, 0.1, 0.02, 0.9, 0.99, 1e-3, grad]
    close_all(arrays_of("ApplyAdamW", *inputs, maximize=maximize), expected)


def test_adam_with_the_largest_moment_is_refused() -> None:
    with refused("amsgrad"):
        arrays_of("ApplyAdamW", *[np.ones(3)] * 3, *[0.1] * 7, np.ones(3), amsgrad=True)
