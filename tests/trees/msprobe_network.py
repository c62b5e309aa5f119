"""A small network of two layers as msprobe dumps it, with or without a wrong GELU, made without torch and msprobe."""

from __future__ import annotations

from math import erf, sqrt
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from msprobe_files import dump_text, forward, tensor, write_leaf

#: The call that is wrong, its module with its class, and the line that made it.
CULPRIT, MODULE, SOURCE = "Functional.gelu.0.forward", "blocks.0.act (GELU)", "train.py:85 in forward"
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_FRAME = "File /home/me/{file}, line {line}, in {function}, \n {code}"


def dump_network(
    folder: Path, dtype: str = "float32", *, wrong: bool = False, seed: int = 3, gain: float = 1.0, **header: Any
) -> Path:
    """Write the dump of one step and rank: `blocks.0.up` (Linear), `blocks.0.act` (GELU), `head` (Linear), a sum.

    `gain` multiplies the weights. `header` has other members of `dump.json`, as `framework`.
    """
    kind = TYPES[dtype]
    random = np.random.default_rng(seed)
    entries: dict[str, Any] = {}
    tensors: dict[str, Any] = {}

    is_mindspore = header.get("framework") == "mindspore"
    suffix = ".npy" if is_mindspore else ".pt"

    def described(array: Any, name: str = "") -> dict[str, Any]:
        spelled = {"type": "mindspore.Tensor", "dtype": array.dtype.name.title()} if is_mindspore else {}
        return {**tensor(array, name), **spelled}

    def save(name: str, array: Any) -> dict[str, Any]:
        tensors[name + suffix] = array
        return described(array, name + suffix)

    def call(name: str, inputs: list[Any], made: Any) -> None:
        slots = [save(f"{name}.input.{number}", array) for number, array in enumerate(inputs)]
        entries[name] = forward(*slots, output=[save(f"{name}.output.0", made)])

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        return (x.astype(float) @ weight.astype(float).T + bias.astype(float)).astype(kind)

    x = random.standard_normal((6, 8)).astype(kind)
    weights = [(random.standard_normal(shape) / 3 * gain).astype(kind) for shape in ((16, 8), (16,), (4, 16), (4,))]
    up = linear(x, *weights[:2])
    call("Functional.linear.0.forward", [x, *weights[:2]], up)
    gelu = np.vectorize(lambda value: value * (1 + erf(value / sqrt(2))) / 2)(up.astype(float)).astype(kind)
    if wrong:
        gelu[:, -3:] = 0
    call(CULPRIT, [up], gelu)
    entries["Module.blocks.0.act.GELU.forward.0"] = forward(described(up), output=[described(gelu)])
    head = linear(gelu, *weights[2:])
    call("Functional.linear.1.forward", [gelu, *weights[2:]], head)
    call("Tensor.__add__.0.forward", [head, head], (head.astype(float) * 2).astype(kind))
    modules = ["blocks.0.up.Linear", "blocks.0.act.GELU", "head.Linear"]
    parents = {name: f"Module.{module}.forward.0" for name, module in zip(entries, (*modules[:2], "", modules[2]))}  # noqa: B905
    parents = {name: parent for name, parent in parents.items() if not name.startswith("Module.")}
    parents["Functional.linear.1.forward"] = "Module.head.Linear.forward.0"
    construct = {**parents, **{f"Module.{module}.forward.0": None for module in modules}}
    stack = {
        "0": [
            [CULPRIT],
            [
                _FRAME.format(
                    file="site-packages/torch/nn/modules/activation.py", line=1, function="forward", code="x"
                ),
                _FRAME.format(file="train.py", line=85, function="forward", code="return self.act(x)"),
            ],
        ]
    }
    write_leaf(folder, entries, {} if is_mindspore else tensors, stack=stack, construct=construct)
    for name, array in tensors.items() if is_mindspore else ():
        np.save(folder / "dump_tensor_data" / name, array)
    if header:
        (folder / "dump.json").write_text(dump_text(entries, **header))
    return folder


def data_folder(root: Path, dtype: str = "bfloat16", *, wrong: bool = True, steps: int = 1) -> Path:
    """Write a data folder with a run, wrong if that is asked for, and its benchmark in float32; return it."""
    for step in range(steps):
        dump_network(root / "npu" / f"step{step}" / "rank0", dtype, wrong=wrong, seed=3 + step)
        dump_network(root / "gpu" / f"step{step}" / "rank0", seed=3 + step)
    return root
