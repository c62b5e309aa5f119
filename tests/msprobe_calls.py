"""A small network call by call, as msprobe records it: what a right kernel puts out, in the modules that call it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from msprobe_files import forward, literal, tensor, write_leaf

WIDTH = 16


class Calls:
    """Records calls; `dtype` is that of all tensors."""

    def __init__(self, dtype: Any = np.float32, seed: int = 1, width: int = WIDTH) -> None:
        self.dtype, self.width = dtype, width
        self._random = np.random.default_rng(seed)
        self.entries: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.construct: dict[str, str | None] = {}
        self._counts: Counter[str] = Counter()

    def numbers(self, *shape: int) -> Any:
        """Random numbers of the network's type; the same in every network of the seed and width."""
        return self._random.normal(size=shape).astype(self.dtype)

    def call(self, api: str, module: str, *args: Any, output: Any, **kwargs: Any) -> Any:
        """Record one call and return its output."""
        name = f"{api}.{self._counts[api]}.forward"
        self._counts[api] += 1
        if module:
            self.construct[name] = f"Module.{module}.Layer.forward.0"
            self.construct.setdefault(f"Module.{module}.Layer.forward.0", None)

        def entry(value: Any, slot: str) -> Any:
            if isinstance(value, np.ndarray):
                data_name = f"{name}.{slot}.pt"
                self.tensors[data_name] = value
                return tensor(value, data_name, requires_grad=slot != "input.0")
            return [entry(item, slot) for item in value] if isinstance(value, list) else literal(value)

        output = np.asarray(output).astype(self.dtype)
        self.entries[name] = forward(
            *(entry(value, f"input.{number}") for number, value in enumerate(args)),
            output=[entry(output, "output.0")],
            **{key: entry(value, f"kwargs.{key}") for key, value in kwargs.items()},
        )
        return output

    def linear(self, module: str, x: Any, width: int | None = None) -> Any:
        """Record a linear layer with weights of its own."""
        weight = self.numbers(width or self.width, x.shape[-1])
        exact = x.astype(np.float64) @ weight.astype(np.float64).T
        return self.call("Functional.linear", module, x, weight, output=exact)

    def norm(self, module: str, x: Any, eps: float = 1e-5, **kwargs: Any) -> Any:
        """Record a layer norm."""
        weight = np.ones(x.shape[-1], self.dtype)
        y = x.astype(np.float64)
        exact = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + eps)
        return self.call("Functional.layer_norm", module, x, [x.shape[-1]], weight, None, eps, output=exact, **kwargs)

    def relu(self, module: str, x: Any) -> Any:
        """Record a ReLU."""
        return self.call("Functional.relu", module, x, output=np.maximum(x, 0))

    def write(self, folder: Path, *, with_modules: bool = True) -> Path:
        """Write the folder of one rank."""
        files = {"construct": self.construct} if with_modules else {}
        return write_leaf(folder, self.entries, self.tensors, **files)
