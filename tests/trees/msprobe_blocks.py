"""A small network as msprobe records a step of it: two blocks, their backward, an optimizer; sound or faulty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
from msprobe_files import forward, literal, tensor, write_leaf

#: The line of the script that calls GELU.
GELU_LINE = "train.py:21 in forward"


class _Step:
    """Entries and tensors of a step, as its calls end."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.parents: dict[str, str | None] = {}
        self.lines: dict[str, int] = {}

    def saved(self, call: str, slot: str, array: Any, **more: Any) -> dict[str, Any]:
        name = f"{call}.{slot}.pt"
        self.tensors[name] = array
        return tensor(array, name, **more)

    def add(self, name: str, entry: Mapping[str, Any], parent: str | None, line: int = 0) -> None:
        self.entries[name], self.parents[name] = dict(entry), parent
        if line:
            self.lines[name] = line

    def stacks(self) -> dict[str, Any]:
        return {
            str(number): [[name], [f"File /home/me/train.py, line {line}, in forward, \n x = self.act(x)"]]
            for number, (name, line) in enumerate(self.lines.items())
        }


def gelu(x: Any) -> Any:
    return (x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2.0)))).astype(np.float32)


def gelu_slope(x: Any) -> Any:
    x = x.astype(np.float64)
    return 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2.0))) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def write_network(folder: Path, *, faulty: bool = False, modules: bool = True) -> Path:
    """A step of rank 0 below a folder; of a faulty run the last four columns that `gelu.1` puts out are zero."""
    rng = np.random.default_rng(7)
    step = _Step()
    of_call: dict[str, Callable[[Any], Any]] = {}
    x = rng.standard_normal((6, 8)).astype(np.float32)
    for block in range(2):
        inside = f"Module.blocks.{block}.Block.forward.0"
        weight = rng.standard_normal((8, 8)).astype(np.float32)
        up, call = f"Module.blocks.{block}.up.Linear.forward.0", f"Functional.linear.{block}.forward"
        y = (x.astype(np.float64) @ weight.T).astype(np.float32)
        entry = forward(
            step.saved(call, "input.0", x), step.saved(call, "input.1", weight, requires_grad=True), literal(None),
            output=[step.saved(call, "output.0", y)],
        )  # fmt: skip
        step.add(call, entry, up, 20)
        step.add(up, {**entry, "parameters": {"weight": entry["input_args"][1]}}, inside)
        call = f"Functional.gelu.{block}.forward"
        z = gelu(y)
        if faulty and block == 1:
            z[:, -4:] = 0
        entry = forward(
            step.saved(call, "input.0", y), output=[step.saved(call, "output.0", z)], approximate=literal("none")
        )
        of_call[f"Functional.linear.{block}"] = partial(np.dot, b=weight)
        of_call[f"Functional.gelu.{block}"] = partial(np.multiply, gelu_slope(y))
        step.add(call, entry, inside, 21)
        step.add(inside, forward(step.saved(inside, "input.0", x), output=entry["output"]), None)
        x = z
    call = "Functional.mse_loss.0.forward"
    # In another type, which msprobe did not see: nothing says where it comes from.
    lost = x.astype(np.float64) * 3
    loss = np.float64((lost**2).mean())
    entry = forward(
        step.saved(call, "input.0", lost), step.saved(call, "input.1", np.zeros((6, 8))),
        output=[step.saved(call, "output.0", loss)],
    )  # fmt: skip
    step.add(call, entry, None, 30)
    gradient = (lost / 24).astype(np.float32)
    for block in (1, 0):
        for name in (f"Functional.gelu.{block}", f"Functional.linear.{block}"):
            call, passed = f"{name}.backward", of_call[name](gradient.astype(np.float64)).astype(np.float32)
            step.add(
                call,
                {"input": [step.saved(call, "input.0", gradient)], "output": [step.saved(call, "output.0", passed)]},
                (step.parents[f"{name}.forward"] or "").replace("forward", "backward"),
            )  # fmt: skip
            gradient = passed
    for number in range(2):
        call = f"Tensor.mul_.{number}.forward"
        momentum = rng.standard_normal((8, 8)).astype(np.float32)
        step.add(
            call,
            forward(
                step.saved(call, "input.0", momentum), literal(0.5),
                output=[step.saved(call, "output.0", (momentum * 0.5).astype(np.float32))],
            ),
            None, 50,
        )  # fmt: skip
    files: dict[str, Any] = {"stack": step.stacks()}
    if modules:
        files["construct"] = step.parents
    entries = step.entries if modules else {name: one for name, one in step.entries.items() if name[0] != "M"}
    return write_leaf(folder / "step0" / "rank0", entries, step.tensors, **files)
