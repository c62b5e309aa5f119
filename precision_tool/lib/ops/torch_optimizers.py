"""Optimizers as PyTorch has them.

Sources: GE's prototype and specification of ApplyAdamW; torch.optim.AdamW.
"""

from __future__ import annotations

import numpy as np

from precision_tool.lib.ops.arguments import flag, numbers, same_shape, scalar
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
        raise NotComputedError("ApplyAdamW with amsgrad, which GE says it does not support")
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
