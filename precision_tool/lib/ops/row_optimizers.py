"""Optimizers that update the rows of a variable which indices name.

Sources: the prototypes of GE's nn_training_ops.h, tf.raw_ops.ResourceSparseApply….
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from precision_tool.lib.ops.arguments import Array, attribute, distinct, numbers
from precision_tool.lib.ops.base import Call, Doubles, Input, Kind, NotComputedError, Output, Outputs, needed, op
from precision_tool.lib.ops.optimizers import (
    Rule,
    adadelta,
    adagrad,
    adagrad_dual,
    centered_rms,
    ftrl,
    gathered,
    keras_momentum,
    momentum,
    names_of,
    proximal_adagrad,
    proximal_descent,
    rms,
)
from precision_tool.lib.ops.scatter import indices_of
from precision_tool.lib.ops.tracked import Tracked


def _sparse(types: str, inputs: str, tensors: str, rule: Rule) -> None:
    """The same rule on the rows that the indices name, each at most once."""
    names, arrays = names_of(inputs), names_of(tensors)
    state = [name for name in arrays if name != "grad"]

    def compute(call: Call) -> Outputs:
        missing = len(names) - sum(given is not None for given in call.inputs)
        taken = [name for name in names if name not in (*arrays, "indices") and attribute(call, name) is not None]
        order = [name for name in names if name not in taken] if missing else list(names)
        slots = {name: slot for slot, name in enumerate(order)}
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
        kept = [
            given if slot not in cut else Input(array=cut[slot], dtype=needed(call, slot).dtype)
            for slot, given in enumerate(call.inputs)
            if slot != slots["indices"]
        ]
        dense = names_of(*(name for name in names if name != "indices"))
        done = rule(call, *gathered(replace(call, inputs=tuple(kept)), dense, arrays))
        return [_put(array, rows, new) for array, new in zip(whole, done, strict=True)]

    plain = names_of(types)
    op(*plain, *(f"Resource{name}" for name in plain if not name.endswith("D")), kind=Kind.COMPOSITE, inputs=names)(
        compute
    )


def _put(array: Doubles, rows: Array, new: Tracked) -> Output:
    result, summed = array.copy(), np.zeros(array.shape)
    result[rows], summed[rows] = new.value, new.summed
    return Output(array=result, summed=summed)


def _proximal_rows(call: Call, t: dict[str, Tracked], n: dict[str, float]) -> Sequence[Tracked]:
    return proximal_descent(call, t | {"delta": t["grad"]}, n)


_ADAGRAD = "var accum"
_ADADELTA = "var accum accum_update"
_RMS = "var ms mom"
_CENTERED = "var mg ms mom"
_FTRL = "var accum linear grad"
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
