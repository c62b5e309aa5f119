"""Results of `preflight` as they are shown, made by hand."""

from __future__ import annotations

from math import inf, nan

from precision_tool.lib.diagnose.preflight_model import (
    Errors,
    LossScale,
    OpRange,
    Preflight,
    Risk,
    SearchStep,
    Sensitivity,
    TypeForecast,
)
from precision_tool.lib.messages import Message

#: Ops by name with their types: the last two belong to the backward pass.
OPS = {
    "fc1/MatMul": "MatMul", "fc1/Square": "Square", "fc1/Relu": "Relu", "loss/Softmax": "Softmax",
    "loss/Mean": "Mean", "gradients/fc1": "MatMul", "gradients/fc2": "MatMul",
}  # fmt: skip


def op_range(name: str, headroom: float = 9.0, *risks: Risk, inside: float | None = None) -> OpRange:
    return OpRange(
        name=name, op_type=OPS[name], largest=2.0 ** (16 - headroom), smallest=1e-6, headroom=headroom,
        inside="square" if inside is not None else "", inside_headroom=inside, rounding=3e-4,
        is_gradient=name.startswith("gradients"), risks=risks,
    )  # fmt: skip


def forecast(
    dtype: str = "float16",
    *,
    kept: tuple[str, ...] = ("fc1/Square", "loss/Softmax"),
    kept_types: tuple[str, ...] = ("Softmax",),
    modules: tuple[str, ...] = (),
    is_enough: bool = True,
    is_finished: bool = True,
    smallest: int | None = 2,
) -> TypeForecast:
    """A type in which `fc1/Square` overflows: its set is found in three emulations."""
    return TypeForecast(
        dtype=dtype,
        ranges=(
            op_range("fc1/MatMul", 3.5), op_range("fc1/Square", -2.25, Risk.OVERFLOW), op_range("fc1/Relu"),
            op_range("loss/Softmax", 15.0, Risk.OVERFLOW_INSIDE, inside=-4.0), op_range("loss/Mean", 15.5),
            op_range("gradients/fc1", 30.0, Risk.UNDERFLOW), op_range("gradients/fc2", inf, Risk.LOST),
        ),
        scale=LossScale(advised=1024.0, lowest=16.0, highest=65536.0),
        sensitivities=(
            Sensitivity(name="fc1/Square", loss=inf, gradients=nan, by="emulation"),
            Sensitivity(name="loss/Softmax", loss=0.04, gradients=0.2, by="adjoint"),
            Sensitivity(name="fc1/MatMul", loss=2e-5, gradients=3e-4, by="adjoint"),
            Sensitivity(name="fc1/Relu", loss=0.0, gradients=0.0, by="adjoint"),
        ),
        all_narrow=Errors(loss=inf, gradients=nan, not_finite=3),
        kept=kept,
        kept_types=kept_types,
        kept_modules=modules,
        with_kept=Errors(loss=3e-4, gradients=0.011),
        is_enough=is_enough,
        is_finished=is_finished,
        steps=(
            SearchStep(float32=(), errors=Errors(loss=inf, gradients=nan, not_finite=3), seconds=0.5),
            SearchStep(float32=("fc1/Square",), errors=Errors(loss=0.04, gradients=0.2), seconds=0.25),
            SearchStep(float32=kept, errors=Errors(loss=3e-4, gradients=0.011), seconds=0.25),
        ),
        smallest=smallest,
    )  # fmt: skip


def calm(dtype: str = "bfloat16") -> TypeForecast:
    """A type that needs nothing: its panels are a line each."""
    return TypeForecast(
        dtype=dtype, ranges=(op_range("fc1/MatMul", 120.0), op_range("fc1/Square", 110.0)),
        scale=LossScale(advised=1.0, lowest=2.0**-90, highest=2.0**90), sensitivities=(),
        all_narrow=Errors(loss=1e-4, gradients=0.01), kept=(), kept_types=(), kept_modules=(),
        with_kept=Errors(loss=1e-4, gradients=0.01), is_enough=True, steps=(), smallest=0,
    )  # fmt: skip


def preflight_result(*types: TypeForecast, framework: str = "TensorFlow") -> Preflight:
    return Preflight(
        source="tf/dump", graph="tf/graph/step.pb", framework=framework, ops=len(OPS), emulated=len(OPS),
        loss_name="loss/Mean", loss=2.302585, bound_loss=1e-3, bound_gradients=0.05,
        types=types or (forecast(), calm()),
        not_emulated={"dropout/Mask": Message("reason.random")}, seconds=1.0,
    )  # fmt: skip
