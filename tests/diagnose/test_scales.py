"""A loss scale without a benchmark: what one run shows of it, and what only looks like one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from diagnosing import blame_of, verdict_of
from tiny_network import (
    Network,
    binary,
    gradient_descent,
    matmul,
    numbers,
    scaled_gradients,
    source,
    unary,
)

from precision_tool.lib.diagnose.verdict_model import Action, Cause, Step


def divided(scale: float) -> Network:
    """The same where the gradient is divided by the scale itself."""
    network = scaled_gradients(scale)
    network = network.with_part("unscale/mul", type="RealDiv", inputs=("trans_Cast_2", "loss_scale"), compute=np.divide)
    return replace(network, parts=tuple(part for part in network.parts if part.name != "unscale/factor"))


@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize("scale", [32.0, 1024.0, 4096.0])
def test_a_scale_that_gradients_are_divided_by_again(tmp_path: Path, scale: float, inputs: bool) -> None:
    for number, network in enumerate((scaled_gradients(scale), divided(scale))):
        found = verdict_of(network.write(tmp_path / str(number), benchmark=False, inputs=inputs))
        assert (found.culprit, found.cause) == (None, Cause.LOSS_SCALE)
        (one,) = found.suspects
        assert (one.culprit, one.fact("factor")) == ("loss_scale", scale)
        assert Action.SAME_LOSS_SCALE in [step.do for step in found.next if isinstance(step, Step)]


@pytest.mark.parametrize(
    "network", [scaled_gradients(1.0), scaled_gradients(1000.0), scaled_gradients(unscales=False), divided(3.0)]
)
def test_what_is_no_loss_scale(tmp_path: Path, network: Network) -> None:
    """A scale of 1, one that is no power of two, and one that nothing is divided by again."""
    assert verdict_of(network.write(tmp_path, benchmark=False)).cause is Cause.NONE


def test_a_temperature_is_no_loss_scale(tmp_path: Path) -> None:
    """It divides what it does not feed, and feeds what nothing divides."""
    parts = (
        source("IteratorGetNext", numbers(6, 5, seed=1)),
        source("temperature", np.array(4, np.float32), op_type="Variable"),
        binary("cooled", "RealDiv", "IteratorGetNext", "temperature", "float32"),
        binary("penalty", "Mul", "IteratorGetNext", "temperature", "float32"),
        unary("end", "Tanh", "cooled", "float32"),
    )
    assert verdict_of(Network(parts=parts).write(tmp_path, benchmark=False)).cause is Cause.NONE


def without_update() -> Network:
    """Inference, say: nothing is learned from what is divided."""
    parts = scaled_gradients().parts
    return Network(parts=tuple(part for part in parts if part.name not in ("learned", "rate", "train/update")))


def update_of_another() -> Network:
    """An optimizer that does not read what is divided."""
    return scaled_gradients().with_part("train/update", inputs=("learned", "rate", "learned"))


def capped(*, is_trained: bool) -> Network:
    """tanh(x * cap) / cap in the way forward; what is learned behind it is of another size."""
    parts = [
        source("IteratorGetNext", numbers(6, 5, seed=1)),
        source("cap", np.array(32, np.float32), op_type="Variable"),
        binary("times", "Mul", "IteratorGetNext", "cap", "float32"),
        unary("soft", "Tanh", "times", "float32"),
        binary("again", "RealDiv", "soft", "cap", "float32"),
        unary("end", "Relu", "again", "float32"),
    ]
    if is_trained:
        parts += [
            source("labels", numbers(6, 3, seed=4)),
            source("rate", np.array(0.5, np.float32), op_type="Const"),
            source("kernel", numbers(5, 3, seed=5), op_type="Variable"),
            replace(
                matmul("gradients/MatMul", "end", "labels", "float32"), compute=lambda a, b: a.T @ b,
                attrs={"transpose_x1": True, "transpose_x2": False},
            ),
            gradient_descent("train/update", "kernel", "rate", "gradients/MatMul"),
        ]  # fmt: skip
    return Network(parts=tuple(parts))


@pytest.mark.parametrize(
    "network", [without_update(), update_of_another(), capped(is_trained=False), capped(is_trained=True)],
    ids=["without update", "update of another", "capped", "capped and trained"],
)  # fmt: skip
def test_what_updates_no_variable_is_no_scaled_gradient(tmp_path: Path, network: Network) -> None:
    assert blame_of(network.write(tmp_path, benchmark=False)) == (None, Cause.NONE)


def test_what_is_not_divided_by_the_number_has_no_such_scale(tmp_path: Path) -> None:
    """What was dumped of the number is not what the gradients were divided by."""
    network = divided(1024.0).with_part("unscale/mul", read={1: lambda array: np.array(64, np.float32)})
    assert verdict_of(network.write(tmp_path, benchmark=False)).cause is not Cause.LOSS_SCALE
