"""What an op's own error does to the end of its run, beside the same computed here with numpy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array
from diagnosing import verdict_of
from tiny_network import Network, binary, gradient_descent, matmul, numbers, source, unary

from precision_tool.lib.diagnose import decide
from precision_tool.lib.diagnose.replay import Effect, effect_of
from precision_tool.lib.diagnose.verdict_model import Suspect


def larger(array: Array) -> Array:
    """All of it is a half too large."""
    return array * np.float32(1.5)


def suspect_of(network: Network, folder: Path, *, benchmark: bool = True) -> Suspect:
    (suspect,) = verdict_of(network.write(folder, benchmark=benchmark)).suspects
    return suspect


def effect(suspect: Suspect) -> Any:
    return suspect.fact("changed_tensor"), suspect.fact("changes"), suspect.fact("explains")


X = numbers(8, 12)


def test_the_error_is_carried_to_the_last_tensor(tmp_path: Path) -> None:
    parts = (source("x", X), unary("a", "Tanh", "x", "float32"), unary("loss", "Square", "a", "float32"))
    suspect = suspect_of(Network(parts=parts).with_part("a", wrong=larger), tmp_path)
    assert suspect.culprit == "a"
    assert effect(suspect) == ("loss:output:0", pytest.approx(1.5**2 - 1, rel=1e-4), pytest.approx(1, abs=1e-4))


def test_without_a_benchmark_nothing_is_explained(tmp_path: Path) -> None:
    parts = (source("x", X), unary("a", "Tanh", "x", "float32"), unary("loss", "Square", "a", "float32"))
    suspect = suspect_of(Network(parts=parts).with_part("a", wrong=larger), tmp_path, benchmark=False)
    assert effect(suspect) == ("loss:output:0", pytest.approx(1.25, rel=1e-4), None)


def test_a_tensor_that_is_read_twice_changes_both_inputs(tmp_path: Path) -> None:
    parts = (source("x", X), unary("a", "Tanh", "x", "float32"), binary("twice", "Mul", "a", "a", "float32"))
    suspect = suspect_of(Network(parts=parts).with_part("a", wrong=larger), tmp_path)
    assert effect(suspect) == ("twice:output:0", pytest.approx(1.25, rel=1e-4), pytest.approx(1, abs=1e-4))


def test_of_two_errors_each_explains_its_share(tmp_path: Path) -> None:
    """y = a + b, and both are too large: either alone leaves the other's deviation."""
    parts = (
        source("x", X), unary("a", "Tanh", "x", "float32"), unary("b", "Square", "x", "float32"),
        binary("y", "Add", "a", "b", "float32"),
    )  # fmt: skip
    network = Network(parts=parts).with_part("a", wrong=larger).with_part("b", wrong=larger)
    suspects = {suspect.culprit: suspect for suspect in verdict_of(network.write(tmp_path)).suspects}
    a, b = np.tanh(X.astype(np.float64)), np.square(X.astype(np.float64))
    whole = np.linalg.norm(0.5 * a + 0.5 * b)
    for name, rest in (("a", 0.5 * b), ("b", 0.5 * a)):
        share = max(0.0, 1 - float(np.linalg.norm(rest)) / float(whole))
        assert suspects[name].fact("explains") == pytest.approx(share, rel=1e-3, abs=1e-4)


def test_the_end_is_the_gradient_and_not_the_variable_that_it_updates(tmp_path: Path) -> None:
    """With a small learning rate the variable hardly changes however wrong the gradient is."""
    parts = (
        source("x", X), source("w", numbers(12, 5, seed=2)),
        source("rate", np.array(1e-6, np.float32), op_type="Const"), matmul("gradient", "x", "w", "float32"),
        source("learned", numbers(8, 5, seed=3), op_type="Variable"),
        gradient_descent("train/update", "learned", "rate", "gradient"),
    )  # fmt: skip
    suspect = suspect_of(Network(parts=parts).with_part("gradient", wrong=larger), tmp_path)
    assert effect(suspect) == ("gradient:output:0", pytest.approx(0.5, rel=1e-4), pytest.approx(1, abs=1e-4))


def test_a_switch_that_hides_an_error_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Behind a Relu only the positive elements matter: the fault is named, and changes little."""

    def lower(array: Array) -> Array:
        return np.where(array < 0, 2 * array, array).astype(array.dtype)

    parts = (source("x", X), unary("a", "Tanh", "x", "float32"), unary("y", "Relu", "a", "float32"))
    suspect = suspect_of(Network(parts=parts).with_part("a", wrong=lower), tmp_path)
    assert suspect.culprit == "a"
    assert suspect.fact("changes") in (None, pytest.approx(0, abs=1e-6))


def test_from_the_deadline_on_it_is_carried_no_farther(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects: list[Effect | None] = []

    def late(recomputer: object, result: object, deadline: float) -> Effect | None:
        effects.append(effect_of(recomputer, result, time.monotonic() - 1))  # type: ignore[arg-type]
        return effects[-1]

    monkeypatch.setattr(decide, "effect_of", late)
    parts = (source("x", X), unary("a", "Tanh", "x", "float32"), unary("loss", "Square", "a", "float32"))
    suspect = suspect_of(Network(parts=parts).with_part("a", wrong=larger), tmp_path)
    assert suspect.culprit == "a"
    (result,) = effects
    assert result is None or not result.is_whole
