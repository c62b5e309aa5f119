"""A loss scale without a benchmark: what one run shows of it, and what only looks like one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_network import Network, Part, binary, numbers, scaled_gradients, source, unary

from precision_tool.lib.session import Session
from precision_tool.lib.settings import load_settings
from precision_tool.lib.verdict.model import Cause, Verdict


def alone(data: Path) -> Verdict:
    """The verdict on a dump without a benchmark."""
    (judged,) = Session(load_settings({"data": str(data), "work": str(data / "work")})).verdicts_alone()
    return judged.verdict


def divided(scale: float) -> Network:
    """The same where the gradient is divided by the scale itself."""
    network = scaled_gradients(scale)
    parts = [part for part in network.parts if part.name not in ("unscale/factor", "unscale/mul")]
    last = binary("unscale/truediv", "RealDiv", "trans_Cast_2", "loss_scale", "float32")
    return replace(network, parts=(*parts, last))


@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize("scale", [32.0, 1024.0, 4096.0])
def test_a_scale_that_gradients_are_divided_by_again(tmp_path: Path, scale: float, inputs: bool) -> None:
    for number, network in enumerate((scaled_gradients(scale), divided(scale))):
        found = alone(network.write(tmp_path / str(number), benchmark=False, inputs=inputs))
        assert (found.culprit, found.cause) == (None, Cause.LOSS_SCALE)
        (one,) = found.suspects
        assert (one.culprit, one.fact("factor")) == ("loss_scale", scale)
        assert any("give both sides the same" in step.why for step in found.next)


@pytest.mark.parametrize(
    "network", [scaled_gradients(1.0), scaled_gradients(1000.0), scaled_gradients(unscales=False), divided(3.0)]
)
def test_what_is_no_loss_scale(tmp_path: Path, network: Network) -> None:
    """A scale of 1, one that is no power of two, and one that nothing is divided by again."""
    assert alone(network.write(tmp_path, benchmark=False)).cause is Cause.NONE


def test_a_temperature_is_no_loss_scale(tmp_path: Path) -> None:
    """It divides what it does not feed, and feeds what nothing divides."""
    parts = (
        source("IteratorGetNext", numbers(6, 5, seed=1)),
        source("temperature", np.array(4, np.float32), op_type="Variable"),
        binary("cooled", "RealDiv", "IteratorGetNext", "temperature", "float32"),
        binary("penalty", "Mul", "IteratorGetNext", "temperature", "float32"),
        unary("end", "Tanh", "cooled", "float32"),
    )
    assert alone(Network(parts=parts).write(tmp_path, benchmark=False)).cause is Cause.NONE


def test_a_variable_that_no_update_follows_is_no_loss_scale(tmp_path: Path) -> None:
    """Where the graph has optimizers, what is divided must reach one of them."""
    network = scaled_gradients()
    learned = source("other", numbers(5, 4, seed=8), op_type="Variable")
    rate = source("rate", np.array(0.5, np.float32), op_type="Const")
    step = Part(
        name="train/ApplyGradientDescent", type="ApplyGradientDescent", inputs=("other", "rate", "other"),
        compute=lambda w, rate, gradient: w - rate * gradient, originals=("train/ApplyGradientDescent",),
    )  # fmt: skip
    found = alone(replace(network, parts=(*network.parts, learned, rate, step)).write(tmp_path, benchmark=False))
    assert found.cause is Cause.NONE
