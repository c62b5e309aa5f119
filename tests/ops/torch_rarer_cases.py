"""Calls of PyTorch's rarer functions, for the same test as those of torch_cases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from opvalues import Array
from torch_cases import Arguments, Make

Case = Callable[[Make], Arguments]


def _elements() -> dict[str, Case]:
    return {
        "Torch.hypot": lambda make: (list(make.pair()), {}),
        "Torch.logaddexp": lambda make: (list(make.pair()), {}),
        "Torch.deg2rad": lambda make: ([make.like()], {}),
        "Torch.rad2deg": lambda make: ([make.like()], {}),
        "Torch.frac": lambda make: ([make.like()], {}),
        "Torch.sgn": lambda make: ([make.like()], {}),
        "Torch.arcsinh": lambda make: ([make.like()], {}),
        "Torch.arccosh": lambda make: ([make.like("above1")], {}),
        "Torch.arctanh": lambda make: ([make.like("unit") * 0.9], {}),
        "Torch.logit": lambda make: (
            [make.pick(np.array([0.1, 0.4, 0.5, 0.9]), np.array([0.0, 0.3, 1.0])), make.pick(0.01, 0.2)], {}
        ),
        "Functional.tanhshrink": lambda make: ([make.like()], {}),
        "Functional.hardshrink": lambda make: ([make.like(), make.pick(0.5, 0.1)], {}),
        "Functional.softshrink": lambda make: ([make.like(), make.pick(0.5, 0.1)], {}),
        "Torch.copysign": lambda make: (list(make.pair()), {}),
        "Torch.heaviside": lambda make: ([np.round(make.x(3, 4)), make.x(4)], {}),
        "Torch.ldexp": lambda make: ([make.x(3, 4), make.whole(4)], {}),
        "Tensor.bitwise_left_shift": lambda make: ([make.whole(3, 4), make.whole(4, low=0, high=3)], {}),
        "Tensor.bitwise_right_shift": lambda make: ([make.whole(3, 4), make.whole(4, low=0, high=3)], {}),
        "Tensor.__rmod__": lambda make: ([make.x(3, 4, domain="positive"), 2.5], {}),
        "Torch.atleast_2d": lambda make: ([make.pick(make.x(3), make.x(2, 3))], {}),
        "Torch.atleast_3d": lambda make: ([make.pick(make.x(3), make.x(2, 3), make.x(1, 2, 3, 2))], {}),
        "Torch.isreal": lambda make: ([make.x(3)], {}),
    }  # fmt: skip


def _new() -> dict[str, Case]:
    return {
        "Torch.arange": lambda make: (make.pick([5], [2, 7], [1, 8, 3], [0.5], [0.0, 1.0, 0.3], [7, 1, -2]), {}),
        "Torch.linspace": lambda make: ([make.pick(0, -1.5), 2.5, make.pick(1, 4, 7)], {}),
        "Torch.full": lambda make: ([make.pick([2, 3], [4]), 1.5], {}),
        "Torch.eye": lambda make: (make.pick([3], [2, 4]), {}),
        "Torch.tril_indices": lambda make: ([3, 4, make.size(-1, 1)], {}),
        "Torch.triu_indices": lambda make: ([3, 4, make.size(-1, 1)], {}),
        "Torch.ones_like": lambda make: ([make.like()], {}),
        "Torch.zeros": lambda make: (make.pick([2, 3], [[2, 3]]), {}),
    }


def _reductions() -> dict[str, Case]:
    def with_nan(make: Make) -> Array:
        x = make.x(3, 4)
        x[0, make.size(0, 3)] = np.nan
        return x

    return {
        "Torch.nansum": lambda make: ([with_nan(make), make.pick(None, 0, 1)], {}),
        "Torch.nanmean": lambda make: ([make.x(3, 4), make.pick(None, 0, 1)], {}),
        "Torch.kthvalue": lambda make: ([make.x(3, 5), make.size(1, 3), make.pick(0, -1)], {}),
        "Torch.median": lambda make: (
            [make.x(3, make.size()), *make.pick([], [0], [-1])], {}
        ),
        "Torch.cummax": lambda make: ([make.x(3, 4), make.pick(0, 1)], {}),
        "Torch.cummin": lambda make: ([make.x(3, 4), make.pick(0, 1)], {}),
        "Torch.aminmax": lambda make: ([make.x(3, 4)], {"dim": make.pick(None, 0, 1)}),
        "Torch.diff": lambda make: ([make.x(3, 4)], {"dim": make.pick(0, -1)}),
        "Torch.cross": lambda make: ([make.x(4, 3), make.x(4, 3)], make.pick({}, {"dim": 1})),
        "Torch.vecdot": lambda make: ([make.x(4, 3), make.x(4, 3)], {"dim": make.pick(0, -1)}),
        "Torch.dist": lambda make: ([make.x(4, 3), make.x(3)], {}),
        "Torch.cdist": lambda make: ([make.x(2, 4, 3), make.x(2, 5, 3)], {}),
        "Torch.tensordot": lambda make: (
            make.pick([make.x(2, 3, 4), make.x(3, 4, 5)], [make.x(2, 3, 4), make.x(4, 5, 2), [[0, 2], [2, 0]]]), {}
        ),
        "Torch.frobenius_norm": lambda make: ([make.x(4, 3), [0, 1]], {}),
        "Torch.matrix_norm": lambda make: ([make.x(2, 4, 3)], {"keepdim": make.pick(True, False)}),
        "Torch.kron": lambda make: ([make.x(2, 3), make.x(3, 2)], {}),
        "Torch.searchsorted": lambda make: (
            [np.array([0.0, 1.0, 1.0, 2.0]), make.pick(make.x(3), np.array([1.0, 0.0]))],
            {"right": make.pick(True, False)},
        ),
        "Torch.bucketize": lambda make: ([make.x(3, 4), np.array([-1.0, 0.0, 1.0])], {}),
        "Torch.bincount": lambda make: ([make.whole(5, low=0, high=4)], {"minlength": make.pick(0, 6)}),
        "Torch.isin": lambda make: ([make.whole(3, 4), make.whole(3)], {}),
        "Torch._softmax_backward_data": lambda make: (
            [make.x(3, 4), make.x(3, 4, domain="positive"), make.pick(0, 1), "torch.float64"], {}
        ),
    }  # fmt: skip


def _shapes() -> dict[str, Case]:
    return {
        "Torch.hsplit": lambda make: ([make.x(2, 4), make.pick(2, [1, 3])], {}),
        "Torch.vsplit": lambda make: ([make.x(4, 3), make.pick(2, [1, 3])], {}),
        "Torch.dsplit": lambda make: ([make.x(2, 3, 4), make.pick(2, [1, 3])], {}),
        "Torch.diag_embed": lambda make: ([make.x(2, 3), make.size(-1, 1)], make.pick({}, {"dim1": 0, "dim2": 2})),
        "Torch.diagflat": lambda make: ([make.pick(make.x(3), make.x(2, 2)), make.size(-1, 1)], {}),
        "Torch.block_diag": lambda make: ([make.x(2, 3), make.x(3), make.x(1, 2)], {}),
        "Torch.slice_scatter": lambda make: ([make.x(5, 3), make.x(2, 3), 0, 1, 3], {}),
        "Torch.select_scatter": lambda make: ([make.x(5, 3), make.x(5), 1, make.pick(0, -1)], {}),
        "Tensor.sum_to_size": lambda make: ([make.x(2, 3, 4), *make.pick([3, 4], [2, 1, 4], [4], [2, 3, 4])], {}),
        "Torch.narrow_copy": lambda make: ([make.x(5, 3), 0, 1, 2], {}),
        "Torch.unsafe_split_with_sizes": lambda make: ([make.x(5, 3), [2, 3]], {}),
    }


def _layers() -> dict[str, Case]:
    def bag(make: Make) -> Arguments:
        options = {"mode": make.pick("sum", "mean", "max")}
        if make.pick(True, False):
            return [make.whole(3, 4, low=0, high=6), make.x(6, 5)], options
        return [make.whole(7, low=0, high=6), make.x(6, 5), np.array([0, 2, 2])], options

    def cell(count: int) -> Case:
        def made(make: Make) -> Arguments:
            x, h = make.x(2, 3), make.x(2, 4)
            weights = [
                make.x(count * 4, 3),
                make.x(count * 4, 4),
                *make.pick([make.x(count * 4), make.x(count * 4)], []),
            ]
            return [x, [h, make.x(2, 4)] if count == 4 else h, *weights], {}

        return made

    def target(make: Make, *shape: int) -> Array:
        return np.where(make.x(*shape) > 0, 1.0, -1.0)

    return {
        "Torch.convolution": lambda make: (
            [make.x(2, 4, 6, 5), make.x(4, 2, 3, 3), make.x(4), [2, 1], [1, 0], [1, 1], False, [0, 0], 2], {}
        ),
        "Functional.grid_sample": lambda make: (
            [make.x(2, 3, 4, 5), make.x(2, 3, 2, 2)],
            {"padding_mode": make.pick("zeros", "border"), "align_corners": make.pick(True, False)},
        ),
        "Functional.fold": lambda make: make.pick(
            ([make.x(2, 12, 12), [4, 5], 2], {}),
            ([make.x(1, 8, 9), [5, 5], 2, 1, 1, 2], {}),
        ),
        "Functional.embedding_bag": bag,
        "Torch.lstm_cell": cell(4),
        "Torch.gru_cell": cell(3),
        "Torch.native_group_norm": lambda make: (
            [make.x(2, 6, 5), make.x(6), make.x(6), 2, 6, 5, make.pick(2, 3), 1e-3], {}
        ),
        "Functional.margin_ranking_loss": lambda make: (
            [make.x(5), make.x(5), target(make, 5), 0.3], {"reduction": make.pick("mean", "sum", "none")}
        ),
        "Functional.soft_margin_loss": lambda make: ([make.x(5, 3), target(make, 5, 3)], {}),
        "Functional.hinge_embedding_loss": lambda make: ([make.x(5, 3), target(make, 5, 3), 0.8], {}),
        "Functional.poisson_nll_loss": lambda make: (
            [make.x(5, domain="positive"), make.x(5, domain="positive")], {"log_input": make.pick(True, False)}
        ),
        "Functional.gaussian_nll_loss": lambda make: ([make.x(5), make.x(5), make.x(5, domain="positive")], {}),
    }  # fmt: skip


RARER: dict[str, list[Case]] = {
    name: [maker]
    for table in (_elements(), _new(), _reductions(), _shapes(), _layers())
    for name, maker in table.items()
}
