"""Optimizers: the new values of variables and slots, computed from those before the update.

The dump of an op that updates a variable in place may show it before the update or after (`updated_inputs`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from precision_tool.lib.ops.base import (
    Call,
    Doubles,
    Function,
    Input,
    Kind,
    NotComputedError,
    Output,
    Outputs,
    needed,
    op,
)
from precision_tool.lib.ops.movement import indices_of
from precision_tool.lib.ops.op_arguments import (
    ROUNDOFF,
    Array,
    attribute,
    common_shape,
    distinct,
    flag,
    numbers,
    real,
    same_shape,
    scalar,
)
from precision_tool.lib.ops.tracked import Tracked, maximum, where

#: Types that begin so have the variable as their first input. What else they write (slots of an optimizer) has no other
#: reader, or an address that tells.
_FIRST = (
    "Assign",
    "Apply",
    "SparseApply",
    "ResourceApply",
    "ResourceSparseApply",
    "FusedMulApply",
    "ResourceFusedMulApply",
)
_SCATTERED = frozenset(
    f"{prefix}{what}"
    for prefix in ("Scatter", "ScatterNd", "ResourceScatter", "ResourceScatterNd")
    for what in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")
)
#: Others, with the places of what they write, as the prototypes name them (the inputs that are outputs as well).
_ELSEWHERE = {
    "SGD": (0, 3, 5),
    "AdamApplyOneAssign": (1, 2, 3),
    "AdamApplyOneWithDecayAssign": (1, 2, 3),
    "LambApplyOptimizerAssign": (1, 2),
    "LambApplyWeightAssign": (4,),
}


def updated_inputs(op_type: str) -> tuple[int, ...]:
    """The inputs of an op, by slot, that it updates in place; none for most types."""
    if op_type.startswith(_FIRST) or op_type in _SCATTERED:
        return (0,)
    return _ELSEWHERE.get(op_type, ())


# --- dense updates ----------------------------------------------------------------------------------------------------


#: New values of a variable and of its slots, from the tensors (the gradient among them) and the numbers.
Rule = Callable[[Call, dict[str, Tracked], dict[str, float]], Sequence[Tracked]]


def names_of(*texts: str) -> tuple[str, ...]:
    """The words of texts."""
    return tuple(" ".join(texts).split())


def _slots_of(call: Call, inputs: Sequence[str], tensors: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """The inputs by name with their slots, and those that are attributes: numbers alone may be."""
    absent = len(inputs) - sum(tensor is not None for tensor in call.inputs)
    as_attribute = [name for name in inputs if name not in tensors and attribute(call, name) is not None]
    if absent <= 0:
        as_attribute = []
    elif absent != len(as_attribute):
        raise NotComputedError("inputs_expected", number=len(inputs) - absent, limit=len(inputs))
    connected = [name for name in inputs if name not in as_attribute]
    return {name: slot for slot, name in enumerate(connected)}, as_attribute


def gathered(call: Call, inputs: Sequence[str], tensors: Sequence[str]) -> tuple[dict[str, Tracked], dict[str, float]]:
    """Tensors and numbers by name; a number that is an attribute has no input."""
    slots, as_attribute = _slots_of(call, inputs, tensors)
    arrays = {name: Tracked(numbers(call, slots[name])[0]) for name in tensors}
    same_shape(call, *(array.value for array in arrays.values()))
    values = {name: real(call, name) for name in as_attribute}
    values |= {name: scalar(call, slot) for name, slot in slots.items() if name not in tensors}
    return arrays, values


def _register(types: str, names: Sequence[str], compute: Function) -> None:
    """Register a function for op types; those without D are also TensorFlow's of resource variables."""
    plain = names_of(types)
    resources = (f"Resource{name}" for name in plain if not name.endswith("D"))
    op(*plain, *resources, kind=Kind.COMPOSITE, inputs=names)(compute)


def _optimizer(types: str, inputs: str, tensors: str) -> Callable[[Rule], Rule]:
    """Register a rule: `tensors` are those of the inputs that are no single numbers."""
    names, arrays = names_of(inputs), names_of(tensors)

    def register(rule: Rule) -> Rule:
        def compute(call: Call) -> Outputs:
            return [tracked.output() for tracked in rule(call, *gathered(call, names, arrays))]

        _register(types, names, compute)
        return rule

    return register


#: New values of tensors, from all inputs.
Step = Callable[[Sequence[Tracked]], Sequence[Tracked]]


def _step(types: str, *inputs: str) -> Callable[[Step], Step]:
    """Register a part of an optimizer, whose inputs broadcast."""
    names = names_of(*inputs)

    def register(step: Step) -> Step:
        def compute(call: Call) -> Outputs:
            arrays = numbers(call, *range(len(names)))
            common_shape(call, *arrays)
            return [tracked.output() for tracked in step([Tracked(array) for array in arrays])]

        op(*names_of(types), kind=Kind.COMPOSITE, inputs=names)(compute)
        return step

    return register


# --- plain descent and momentum ---------------------------------------------------------------------------------------


@_optimizer("ApplyGradientDescent", "var alpha delta", "var delta")
def gradient_descent(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """var − alpha delta."""
    return [t["var"] - t["delta"] * n["alpha"]]


@_optimizer("ApplyMomentum ApplyMomentumD", "var accum lr grad momentum", "var accum grad")
def momentum(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """accum = momentum accum + grad; the step is lr accum, or Nesterov's."""
    accum = t["accum"] * n["momentum"] + t["grad"]
    step = accum * n["lr"]
    if flag(call, "use_nesterov"):
        step = t["grad"] * n["lr"] + accum * n["momentum"] * n["lr"]
    return [t["var"] - step, accum]


@_optimizer("ApplyKerasMomentum ApplyKerasMomentumD", "var accum lr grad momentum", "var accum grad")
def keras_momentum(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """accum = momentum accum − lr grad, which is the step, or Nesterov's."""
    descent = t["grad"] * n["lr"]
    accum = t["accum"] * n["momentum"] - descent
    step = accum * n["momentum"] - descent if flag(call, "use_nesterov") else accum
    return [t["var"] + step, accum]


@_optimizer("FusedMulApplyMomentum FusedMulApplyKerasMomentum", "var accum lr x1 momentum x2", "var accum x1")
def scaled_momentum(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Momentum with the gradient x1 times the number x2."""
    scaled = t | {"grad": t["x1"] * n["x2"]}
    return (keras_momentum if "Keras" in call.op_type else momentum)(call, scaled, n)


# --- Adam and its kin -------------------------------------------------------------------------------------------------


@_optimizer("ApplyAdam ApplyAdamD", "var m v beta1_power beta2_power lr beta1 beta2 epsilon grad", "var m v grad")
def adam(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Moments and the step lr √(1 − β₂ᵗ) / (1 − β₁ᵗ) m / (√v + ε)."""
    grad = t["grad"]
    m = t["m"] + (grad - t["m"]) * (1 - n["beta1"])
    v = t["v"] + (grad * grad - t["v"]) * (1 - n["beta2"])
    rate = n["lr"] * np.sqrt(1 - n["beta2_power"]) / np.float64(1 - n["beta1_power"])
    ahead = m * n["beta1"] + grad * (1 - n["beta1"]) if flag(call, "use_nesterov") else m
    return [t["var"] - ahead * rate / (v.sqrt() + n["epsilon"]), m, v]


@_optimizer(
    "ApplyAdamWithAmsgrad ApplyAdamWithAmsgradD", "var m v vhat beta1_power beta2_power lr beta1 beta2 epsilon grad",
    "var m v vhat grad",
)  # fmt: skip
def adam_with_largest(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Adam by the largest second moment so far."""
    m = t["m"] + (t["grad"] - t["m"]) * (1 - n["beta1"])
    v = t["v"] + (t["grad"] * t["grad"] - t["v"]) * (1 - n["beta2"])
    vhat = maximum(t["vhat"], v)
    rate = n["lr"] * np.sqrt(1 - n["beta2_power"]) / np.float64(1 - n["beta1_power"])
    return [t["var"] - m * rate / (vhat.sqrt() + n["epsilon"]), m, v, vhat]


@_optimizer("ApplyAdaMax ApplyAdaMaxD", "var m v beta1_power lr beta1 beta2 epsilon grad", "var m v grad")
def adamax(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Adam with the largest gradient instead of the second moment."""
    m = t["m"] + (t["grad"] - t["m"]) * (1 - n["beta1"])
    v = maximum(t["v"] * n["beta2"], t["grad"].abs())
    rate = np.float64(n["lr"]) / (1 - n["beta1_power"])
    return [t["var"] - m * rate / (v + n["epsilon"]), m, v]


_ADAM_ONE = "input0 input1 input2 input3 input4 mul0_x mul1_x mul2_x mul3_x"


def _adam_moments(inputs: Sequence[Tracked]) -> tuple[Tracked, Tracked, Tracked]:
    """The second moment, the first, and the step, with the coefficients as inputs."""
    grad, v, m, _, _, beta1, one_minus_beta1, beta2, one_minus_beta2, *_, epsilon = inputs
    v = v * beta2 + grad * grad * one_minus_beta2
    m = m * beta1 + grad * one_minus_beta1
    return v, m, m / (v.sqrt() + epsilon)


@_step("AdamApplyOne AdamApplyOneAssign", _ADAM_ONE, "add2_y")
def adam_one(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """Adam's step of BERT: gradient, second and first moment, variable, learning rate."""
    v, m, step = _adam_moments(inputs)
    var, rate = inputs[3:5]
    return [v, m, var - step * rate]


@_step("AdamApplyOneWithDecay AdamApplyOneWithDecayAssign", _ADAM_ONE, "mul4_x add2_y")
def adam_one_with_decay(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """Adam's step of BERT with weight decay."""
    v, m, step = _adam_moments(inputs)
    var, rate, decay = inputs[3], inputs[4], inputs[9]
    return [v, m, var - (step + var * decay) * rate]


# --- LAMB and LARS ----------------------------------------------------------------------------------------------------


@_step(
    "LambApplyOptimizerAssign",
    "grad inputv inputm input3 mul0_x mul1_x mul2_x mul3_x add2_y steps do_use_weight weight_decay_rate",
)
def lamb_moments(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """LAMB's update before its trust ratio, the second and the first moment."""
    grad, v, m, var, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, steps, use, decay = inputs
    v, m = v * beta2 + grad * grad * one_minus_beta2, m * beta1 + grad * one_minus_beta1
    unbiased_v = v / (1 - Tracked(np.power(beta2.value, steps.value)))
    unbiased_m = m / (1 - Tracked(np.power(beta1.value, steps.value)))
    return [unbiased_m / (unbiased_v.sqrt() + epsilon) + var * decay * use, v, m]


#: The inputs of the ops that make LAMB's next update.
_NEXT_UPDATE = (
    "input_mul3 input_mul2 input_realdiv1 input_mul1 input_mul0 input_realdiv0 input_mul4",
    "mul0_x mul1_sub mul2_x mul3_sub1 mul4_x add2_y",
)


def _next_moments(inputs: Sequence[Tracked]) -> tuple[Tracked, ...]:
    """Both moments, the same without their bias, what the weights decay by, and the epsilon."""
    square, v, bias_v, grad, m, bias_m, var, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, epsilon = inputs
    m, v = m * beta1 + grad * one_minus_beta1, v * beta2 + square * one_minus_beta2
    return m, v, m / bias_m, v / bias_v, var * decay, epsilon


@_step("LambNextMV", *_NEXT_UPDATE)
def lamb_next_moments(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """LAMB's update, the first and the second moment, and the update without the decay."""
    m, v, unbiased_m, unbiased_v, taken, epsilon = _next_moments(inputs)
    step = unbiased_m / (unbiased_v.sqrt() + epsilon)
    return [step + taken, m, v, step]


@_step("LambNextMVWithDecay", *_NEXT_UPDATE)
def lamb_next_moments_with_decay(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """LAMB's update with the epsilon below the root, both moments, and the update with it beside the root."""
    m, v, unbiased_m, unbiased_v, taken, epsilon = _next_moments(inputs)
    below = taken + unbiased_m / (unbiased_v + epsilon).sqrt()
    return [below, m, v, taken + unbiased_m / (unbiased_v.sqrt() + epsilon)]


@_step("LambNextRight", "input_square input_mul2 mul2_x mul3_x truediv1_recip add2_y")
def lamb_next_right(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """LAMB's second moment, and the root of it by which the first is divided."""
    grad, v, beta2, one_minus_beta2, reciprocal, epsilon = inputs
    v = v * beta2 + grad * grad * one_minus_beta2
    return [v, (v * reciprocal).sqrt() + epsilon]


@_step(
    "LambUpdateWithLr",
    "input_greater1 input_greater_realdiv input_realdiv input_mul0 input_mul1 input_sub",
    "greater_y select_e minimum_y",
)
def lamb_clipped_step(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """The variable less the update, scaled by the ratio of two norms between a lower and an upper end."""
    first, above, below, rate, step, var, least, other, most = inputs
    chosen = (first.value > least.value) & (above.value > least.value)
    ratio = where(chosen, above / below, other)
    ratio = maximum(-maximum(-ratio, -most), least)
    return [var - ratio * rate * step]


@_step("LambUpdateWithLrV2", "x1 x2 x3 x4 x5 greater_y select_e")
def lamb_step(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """The variable less the update, scaled by the ratio of the first two inputs where both exceed a minimum."""
    above, below, rate, step, var, least, other = inputs
    chosen = (above.value > least.value) & (below.value > least.value)
    return [var - where(chosen, above / below, other) * rate * step]


@_step("LambApplyWeightAssign", "input0 input1 input2 input3 input_param")
def lamb_weight(inputs: Sequence[Tracked]) -> Sequence[Tracked]:
    """The variable less the update, scaled by the ratio of their norms where both are positive."""
    norm, step_norm, rate, step, var = inputs
    ratio = where((norm.value > 0) & (step_norm.value > 0), norm / step_norm, 1.0)
    return [var - ratio * (step * rate)]


def _lars(call: Call, w: Tracked, g: Tracked, squares: tuple[Tracked, Tracked], decay: float, lr: float) -> Outputs:
    w_norm, g_norm = squares[0].sqrt(), squares[1].sqrt()
    size = g_norm + w_norm * decay + real(call, "epsilon", default=1e-5)
    rate = w_norm * real(call, "hyperpara", "hyperparam", default=0.001) / size
    if flag(call, "use_clip"):
        clipped = rate / np.float64(lr)
        rate = where(clipped.value > 1, 1.0, maximum(clipped, 0.0))
    return [((w * decay + g) * rate).output()]


@op("LarsV2", kind=Kind.COMPOSITE, inputs=names_of("w g weight_decay learning_rate"))
def lars(call: Call) -> Outputs:
    """The gradient with decay, scaled by the ratio of the norms of weight and gradient."""
    w, g = (Tracked(values) for values in numbers(call, 0, 1))
    if w.value.shape != g.value.shape:
        raise NotComputedError("shape_misfit", name="g", shape=g.value.shape, other="w", other_shape=w.value.shape)
    sums = [np.asarray(np.sum(np.square(each.value))) for each in (w, g)]
    squares = [Tracked(total, total * total * max(1, w.value.size) / 3) for total in sums]
    return _lars(call, w, g, (squares[0], squares[1]), scalar(call, 2), scalar(call, 3))


@op("LarsV2Update", kind=Kind.COMPOSITE, inputs=names_of("w g w_square_sum g_square_sum weight_decay learning_rate"))
def lars_update(call: Call) -> Outputs:
    """The gradient with decay, scaled by the ratio of the norms, of which the sums of squares are inputs."""
    w, g = (Tracked(values) for values in numbers(call, 0, 1))
    if w.value.shape != g.value.shape:
        raise NotComputedError("shape_misfit", name="g", shape=g.value.shape, other="w", other_shape=w.value.shape)
    squares = [Tracked(np.asarray(scalar(call, slot))) for slot in (2, 3)]
    return _lars(call, w, g, (squares[0], squares[1]), scalar(call, 4), scalar(call, 5))


# --- rates of their own for every element -----------------------------------------------------------------------------


def adagrad(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """accum + grad²; the step is lr grad / √accum, with an epsilon below in the second version."""
    accum = t["accum"] + t["grad"] * t["grad"] if flag(call, "update_slots", default=True) else t["accum"]
    root = accum.sqrt() + n["epsilon"] if "epsilon" in n else accum.sqrt()
    return [t["var"] - t["grad"] * n["lr"] / root, accum]


def adadelta(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """The step by the ratio of the averages of steps and gradients."""
    rho, epsilon = n["rho"], n["epsilon"]
    accum = t["accum"] * rho + t["grad"] * t["grad"] * (1 - rho)
    update = (t["accum_update"] + epsilon).sqrt() / (accum + epsilon).sqrt() * t["grad"]
    return [t["var"] - update * n["lr"], accum, t["accum_update"] * rho + update * update * (1 - rho)]


def rms(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """The gradient over the root of its average square, with momentum."""
    ms = t["ms"] + (t["grad"] * t["grad"] - t["ms"]) * (1 - n["rho"])
    mom = t["mom"] * n["momentum"] + t["grad"] * n["lr"] / (ms + n["epsilon"]).sqrt()
    return [t["var"] - mom, ms, mom]


def ftrl(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Follow the regularised leader: the variable comes of the linear sums and the accumulated squares."""
    accum = t["accum"] + t["grad"] * t["grad"]
    power = -n["lr_power"]
    old, new = t["accum"].power(power), accum.power(power)
    grad = t["grad"] + t["var"] * (2 * n["l2_shrinkage"]) if "l2_shrinkage" in n else t["grad"]
    linear = t["linear"] + grad - (new - old) / np.float64(n["lr"]) * t["var"]
    below = new / np.float64(n["lr"]) + 2 * n["l2"]
    above = np.sign(linear.value) * n["l1"] - linear
    return [where(np.abs(linear.value) > n["l1"], above / below, 0.0), accum, linear]


def _shrunk(prox: Tracked, rate: Tracked | float, n: dict[str, float]) -> Tracked:
    """The proximal step of an l1 and an l2 norm."""
    if n["l1"] > 0:
        left = maximum(prox.abs() - rate * Tracked(np.asarray(n["l1"])), 0.0)
        prox = left * np.sign(prox.value)
    return prox / (1 + Tracked(np.asarray(n["l2"])) * rate)


_optimizer("ApplyAdagrad ApplyAdagradD", "var accum lr grad", "var accum grad")(adagrad)
_optimizer("ApplyAdagradV2 ApplyAdagradV2D", "var accum lr epsilon grad", "var accum grad")(adagrad)
_ADADELTA = "var accum accum_update"
_optimizer("ApplyAdadelta ApplyAdadeltaD", f"{_ADADELTA} lr rho epsilon grad", f"{_ADADELTA} grad")(adadelta)
_optimizer("ApplyRMSProp ApplyRMSPropD", "var ms mom lr rho momentum epsilon grad", "var ms mom grad")(rms)
_FTRL = "var accum linear grad"
_optimizer("ApplyFtrl ApplyFtrlD", f"{_FTRL} lr l1 l2 lr_power", _FTRL)(ftrl)
_optimizer("ApplyFtrlV2 ApplyFtrlV2D", f"{_FTRL} lr l1 l2 l2_shrinkage lr_power", _FTRL)(ftrl)


@_optimizer(
    "ApplyCenteredRMSProp ApplyCenteredRMSPropD", "var mg ms mom lr rho momentum epsilon grad", "var mg ms mom grad"
)
def centered_rms(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """RMSProp by the variance of the gradient."""
    ms = t["ms"] + (t["grad"] * t["grad"] - t["ms"]) * (1 - n["rho"])
    mg = t["mg"] + (t["grad"] - t["mg"]) * (1 - n["rho"])
    below = (ms - mg * mg + n["epsilon"]).sqrt()
    mom = t["mom"] * n["momentum"] + t["grad"] * n["lr"] / below
    return [t["var"] - mom, mg, ms, mom]


@_optimizer("ApplyProximalGradientDescent", "var alpha l1 l2 delta", "var delta")
def proximal_descent(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Descent, then the proximal step."""
    return [_shrunk(t["var"] - t["delta"] * n["alpha"], n["alpha"], n)]


@_optimizer("ApplyProximalAdagrad ApplyProximalAdagradD", "var accum lr l1 l2 grad", "var accum grad")
def proximal_adagrad(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Adagrad, then the proximal step at each element's own rate."""
    accum = t["accum"] + t["grad"] * t["grad"]
    rate = n["lr"] / accum.sqrt()
    return [_shrunk(t["var"] - t["grad"] * rate, rate, n), accum]


@_optimizer(
    "ApplyAdagradDA ApplyAdagradDAD",
    "var gradient_accumulator gradient_squared_accumulator grad lr l1 l2 global_step",
    "var gradient_accumulator gradient_squared_accumulator grad",
)
def adagrad_dual(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """Adagrad's dual averaging: the variable comes of the sums of gradients alone."""
    total = t["gradient_accumulator"] + t["grad"]
    squares = t["gradient_squared_accumulator"] + t["grad"] * t["grad"]
    upper = total
    if n["l1"] > 0:
        upper = maximum(total.abs() - n["l1"] * n["global_step"], 0.0) * np.sign(total.value)
    below = squares.sqrt() + n["l2"] * n["global_step"] * n["lr"]
    return [-(upper * n["lr"]) / below, total, squares]


def _sign_of(t: dict[str, Tracked], m: Tracked, n: dict[str, float]) -> Tracked:
    """Return the agreement of the gradient with its average; uncertain where rounding decides the average's sign."""
    unsure = np.abs(m.value) <= 8 * ROUNDOFF["float32"] * m.summed
    factor = n["sign_decay"] * np.sign(t["grad"].value)
    return Tracked(factor * np.sign(m.value), np.where(unsure, np.square(2 * factor / ROUNDOFF["float32"]), 0.0))


@_optimizer("ApplyAddSign ApplyAddSignD", "var m lr alpha sign_decay beta grad", "var m grad")
def add_sign(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """The step is larger where the gradient agrees with its average."""
    m = t["m"] * n["beta"] + t["grad"] * (1 - n["beta"])
    return [t["var"] - t["grad"] * (_sign_of(t, m, n) + n["alpha"]) * n["lr"], m]


@_optimizer("ApplyPowerSign ApplyPowerSignD", "var m lr logbase sign_decay beta grad", "var m grad")
def power_sign(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    """The step grows exponentially where the gradient agrees with its average."""
    m = t["m"] * n["beta"] + t["grad"] * (1 - n["beta"])
    return [t["var"] - t["grad"] * (_sign_of(t, m, n) * n["logbase"]).exp() * n["lr"], m]


# --- sparse updates ---------------------------------------------------------------------------------------------------


def _sparse(types: str, inputs: str, tensors: str, rule: Rule) -> None:
    """Register a rule that updates only the rows named by the indices, each at most once."""
    names, arrays = names_of(inputs), names_of(tensors)
    state = [name for name in arrays if name != "grad"]

    def compute(call: Call) -> Outputs:
        slots, _ = _slots_of(call, names, (*arrays, "indices"))
        var = needed(call, slots["var"]).array
        if var.ndim < 1:
            raise NotComputedError("shape", name="var", shape=var.shape)
        rows = indices_of(needed(call, slots["indices"]), var.shape[0])
        if rows.ndim != 1 or len(distinct(rows)) != rows.size:
            raise NotComputedError("index_twice")
        whole = numbers(call, *(slots[name] for name in state))
        if any(array.shape != var.shape for array in whole):
            raise NotComputedError("shapes_differ", shapes=(var.shape, *(array.shape for array in whole)))
        cut = {slots[name]: array[rows] for name, array in zip(state, whole, strict=True)}
        sliced = [
            tensor if slot not in cut else Input(array=cut[slot], dtype=needed(call, slot).dtype)
            for slot, tensor in enumerate(call.inputs)
            if slot != slots["indices"]
        ]
        dense = [name for name in names if name != "indices"]
        done = rule(call, *gathered(replace(call, inputs=tuple(sliced)), dense, arrays))
        return [_put(array, rows, new) for array, new in zip(whole, done, strict=True)]

    _register(types, names, compute)


def _put(array: Doubles, rows: Array, new: Tracked) -> Output:
    result, summed = array.copy(), np.zeros(array.shape)
    result[rows], summed[rows] = new.value, new.summed
    return Output(array=result, summed=summed)


def _proximal_rows(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    return proximal_descent(call, t | {"delta": t["grad"]}, n)


_ADAGRAD = "var accum"
_RMS = "var ms mom"
_CENTERED = "var mg ms mom"
_DUAL = "var gradient_accumulator gradient_squared_accumulator grad"
_RATES = "lr rho momentum epsilon grad indices"
_sparse("SparseApplyAdagrad SparseApplyAdagradD", f"{_ADAGRAD} lr grad indices", f"{_ADAGRAD} grad", adagrad)
_sparse(
    "SparseApplyAdagradV2 SparseApplyAdagradV2D", f"{_ADAGRAD} lr epsilon grad indices", f"{_ADAGRAD} grad", adagrad
)
_sparse(
    "SparseApplyAdadelta SparseApplyAdadeltaD", f"{_ADADELTA} lr rho epsilon grad indices", f"{_ADADELTA} grad",
    adadelta,
)  # fmt: skip
_sparse("SparseApplyRMSProp SparseApplyRMSPropD", f"{_RMS} {_RATES}", f"{_RMS} grad", rms)
_sparse("SparseApplyCenteredRMSProp", f"{_CENTERED} {_RATES}", f"{_CENTERED} grad", centered_rms)
_sparse("SparseApplyFtrl SparseApplyFtrlD", f"{_FTRL} indices lr l1 l2 lr_power", _FTRL, ftrl)
_sparse("SparseApplyFtrlV2 SparseApplyFtrlV2D", f"{_FTRL} indices lr l1 l2 l2_shrinkage lr_power", _FTRL, ftrl)
_sparse("SparseApplyMomentum", f"{_ADAGRAD} lr grad indices momentum", f"{_ADAGRAD} grad", momentum)
_sparse("SparseApplyKerasMomentum", f"{_ADAGRAD} lr grad indices momentum", f"{_ADAGRAD} grad", keras_momentum)
_sparse("SparseApplyProximalGradientDescent", "var alpha l1 l2 grad indices", "var grad", _proximal_rows)
_sparse("SparseApplyProximalAdagrad", f"{_ADAGRAD} lr l1 l2 grad indices", f"{_ADAGRAD} grad", proximal_adagrad)
_sparse("SparseApplyAdagradDA", f"{_DUAL} indices lr l1 l2 global_step", _DUAL, adagrad_dual)


# --- PyTorch's optimizers ---------------------------------------------------------------------------------------------


@op(
    "ApplyAdamW", kind=Kind.COMPOSITE,
    inputs=(
        "var", "m", "v", "beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2", "epsilon", "grad",
        "max_grad_norm",
    ),
)  # fmt: skip
def adam_with_decay(call: Call) -> Outputs:
    """Adam with a part of the variable taken off before; the powers of the betas are those of the step before."""
    if flag(call, "amsgrad"):
        raise NotComputedError("no_variant", name="amsgrad", value="True")
    arrays = numbers(call, 0, 1, 2, 10)
    same_shape(call, *arrays)
    var, m, v, grad = (Tracked(array) for array in arrays)
    power1, power2, rate, decay, beta1, beta2, epsilon = (np.float64(scalar(call, slot)) for slot in range(3, 10))
    if flag(call, "maximize"):
        grad = -grad
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + grad * grad * (1 - beta2)
    root = (v / (1 - power2 * beta2)).sqrt() + epsilon
    var = var * (1 - rate * decay) - m / root * (rate / (1 - power1 * beta1))
    return [var.output(), m.output(), v.output()]


@op(
    "ApplyAdamWV2", kind=Kind.COMPOSITE, inputs=("var", "m", "v", "grad", "step", "max_grad_norm"),
)  # fmt: skip
def adam_with_decay_v2(call: Call) -> Outputs:
    """Adam with a part of the variable taken off before, as PyTorch has it, at the step that `step` counts from 1.

    With `amsgrad` the largest v of all steps takes v's place; it is the fourth output.
    """
    amsgrad = flag(call, "amsgrad")
    arrays = numbers(call, 0, 1, 2, 3, *([5] if amsgrad else []))
    same_shape(call, *arrays)
    var, m, v, grad, *largest = (Tracked(array) for array in arrays)
    step = scalar(call, 4)
    if step < 1:
        raise NotComputedError("not_allowed", name="step", value=str(step))
    rate, beta1, beta2, decay, epsilon = (
        np.float64(real(call, name, default=0.1)) for name in ("lr", "beta1", "beta2", "weight_decay", "eps")
    )
    if flag(call, "maximize"):
        grad = -grad
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + grad * grad * (1 - beta2)
    largest = [maximum(largest[0], v)] if amsgrad else []
    root = ((largest[0] if amsgrad else v) / (1 - beta2**step)).sqrt() + epsilon
    var = var * (1 - rate * decay) - m / root * (rate / (1 - beta1**step))
    return [tracked.output() for tracked in (var, m, v, *largest)]


@op(
    "SGD", kind=Kind.COMPOSITE, inputs=("parameters", "gradient", "learning_rate", "accum", "momentum", "stat"),
)  # fmt: skip
def descent_with_momentum(call: Call) -> Outputs:
    """The parameters less lr accum, or Nesterov's step; `stat` is 1 where no step was made before."""
    arrays = numbers(call, 0, 1, 3, 5)
    same_shape(call, *arrays)
    var, grad, accum, stat = (Tracked(array) for array in arrays)
    rate, momentum = (np.float64(scalar(call, slot)) for slot in (2, 4))
    decay, dampening = real(call, "weight_decay", default=0.0), real(call, "dampening", default=0.0)
    if decay:
        grad = grad + var * decay
    accum = accum * momentum + grad
    if dampening:
        accum = accum - grad * (1 - stat) * dampening
    step = grad * rate + accum * momentum * rate if flag(call, "nesterov") else accum * rate
    return [(var - step).output()]
