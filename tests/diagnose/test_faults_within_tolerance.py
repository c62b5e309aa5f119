"""Faults whose size the tolerance for an imprecise device covers, and that no imprecision makes all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import Array
from diagnosing import verdict_of
from tiny_network import Change, Network, Part, binary, matmul, numbers, source, unary


def element(place: int, value: float) -> Change:
    def change(array: Array) -> Array:
        changed = array.copy()
        changed.reshape(-1)[place] = value
        return changed

    return change


def activations(change: Change) -> Network:
    parts: list[Part] = [source("x", numbers(64, 64))]
    for number in range(4):
        parts.append(unary(f"tanh_{number}", "Tanh", parts[-1].name, "float32"))
    return Network(parts=tuple(parts)).with_part("tanh_2", wrong=change)


# --- values that are not finite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [7, slice(None)])
def test_what_is_not_finite_is_beyond_every_tolerance(tmp_path: Path, place: int | slice, value: float) -> None:
    verdict = verdict_of(activations(element(place, value)).write(tmp_path))  # type: ignore[arg-type]
    assert (verdict.culprit, verdict.suspects[0].fact("mistake")) == ("tanh_2", "not_finite")


@pytest.mark.parametrize("op", ["add", "product"])
def test_infinity_in_a_sum_is_wrong(tmp_path: Path, op: str) -> None:
    x, w = source("x", numbers(16, 16)), source("w", numbers(16, 16, seed=1))
    made = binary("add", "Add", "x", "w", "float32") if op == "add" else matmul("product", "x", "w", "float32")
    network = Network(parts=(x, w, replace(made, wrong=element(7, np.inf))))
    assert verdict_of(network.write(tmp_path)).culprit == op
