"""Optimizers as PyTorch has them.

Sources: GE's prototypes and specifications of ApplyAdamW and SGD; torch.optim.
"""

from __future__ import annotations

import numpy as np

from precision_tool.lib.ops.arguments import flag, numbers, real, same_shape, scalar
from precision_tool.lib.ops.base import Call, Kind, NotComputedError, Outputs, op
from precision_tool.lib.ops.tracked import Tracked


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
