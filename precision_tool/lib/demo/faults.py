"""The faults that a demo can have: which op they are in, and what they do to what it puts out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from precision_tool.lib.demo.dump_writer import BLOCK, Array
from precision_tool.lib.errors import UsageError

# ---- faults ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way for an op to go wrong: `apply` spoils the float32 result before it is stored.

    `target` is the kind of op it strikes, `conv` or `matmul` (a fused one); None strikes nothing. `with_unfused` adds
    a run without fusion, which does not have the op and so not the fault. `largest_weight` is what the op's weights are
    scaled to on both sides, `loss_scale` multiplies the gradients. With `saturates` float16 values end at ±65504, else
    they become infinite. `with_status` writes overflow status files, `runs` is how many NPU runs there are, and with
    `overwrites` memory of the op's input is overwritten before it is read. `did` is what to say of the op.
    """

    name: str
    summary: str
    target: str | None = None
    apply: Callable[[Array, np.random.Generator], Array] | None = None
    with_unfused: bool = False
    largest_weight: float = 0.0
    loss_scale: float = 1.0
    saturates: bool = False
    with_status: bool = False
    runs: int = 1
    overwrites: bool = False
    did: str = "was computed wrong"


def _lose_last_tile(result: Array, rng: np.random.Generator) -> Array:
    wrong = result.copy()
    wrong[..., (result.shape[-1] - 1) // BLOCK * BLOCK :] = 0
    return wrong


def _some_nan(result: Array, rng: np.random.Generator) -> Array:
    wrong = result.copy()
    wrong.reshape(-1)[rng.choice(result.size, size=min(3, result.size), replace=False)] = np.nan
    return wrong


def _last_bits(result: Array, rng: np.random.Generator) -> Array:
    """Another order of summation: some results are off by a rounding or two."""
    wrong = result.copy()
    wrong *= 1 + np.float32(2.0**-10) * rng.integers(-1, 2, size=result.shape).astype(np.float32)
    return wrong


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(name="none", summary="everything is right"),
        Fault(
            name="fused",
            summary="a fused convolution does not write its last channel tile",
            target="conv",
            apply=_lose_last_tile,
        ),
        Fault(name="nan", summary="a fused matrix product gives a few NaN", target="matmul", apply=_some_nan),
        Fault(
            name="fusion",
            summary="as fused, with a second run that was compiled without fusion",
            target="conv",
            apply=_lose_last_tile,
            with_unfused=True,
        ),
        Fault(
            name="overflow",
            summary="large weights drive a convolution over float16's range, which saturates",
            target="conv",
            largest_weight=40_000.0,
            saturates=True,
            with_status=True,
            did="overflows first",
        ),
        Fault(
            name="scale",
            summary="a loss scale is too large: gradients leave float16's range and become infinite",
            loss_scale=2.0**18,
            did="overflows first",
        ),
        Fault(
            name="random",
            summary="a convolution sums in another order in each of two runs; a dropout mask differs as it should",
            target="conv",
            apply=_last_bits,
            runs=2,
            did="computes differently in two runs",
        ),
        Fault(
            name="stomp",
            summary="memory of a matrix product's input is overwritten before it is read",
            target="matmul",
            overwrites=True,
            did="reads memory that was overwritten",
        ),
    )
}


def fault_by_name(name: str) -> Fault:
    """The fault; UsageError if there is none of that name."""
    if name not in FAULTS:
        raise UsageError(f'no fault is called "{name}"', f"choose one of {', '.join(FAULTS)}.")
    return FAULTS[name]


#: The ops that faults strike, by kind.
TARGETS = {"conv": "conv2/Conv2Dconv2/BiasAddconv2/Relu", "matmul": "fc1/MatMulfc1/BiasAddfc1/Relu"}
