"""PyTorch as the oracle of what its functions compute, in float64: one process of it for all tests, asked call by call.

A test takes the fixture `torch`, whose Python is that of the environment with msprobe:

    y, = torch.run("Functional.linear", x, weight, bias)
    values, places = torch.run("Torch.topk", x, 3, dim=-1)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow_oracle import Array, Oracle, OracleError
from training_side import HANG
from vendor import VARIABLE


@cache
def torch_python() -> str:
    """The Python that has PyTorch; skips the test without one, but not in CI."""
    path = os.environ.get(VARIABLE)
    # A build for another device is there, but cannot be imported.
    if (
        path
        and subprocess.run([path, "-c", "import torch"], check=False, timeout=HANG, capture_output=True).returncode == 0
    ):
        return path
    reason = f"{VARIABLE} names no Python with PyTorch"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def adds_up_in_type(op: str, dtype: str) -> bool:
    """Whether PyTorch adds up in bfloat16 itself: convolutions and their gradients, on a processor without AVX-512."""
    return dtype == "bfloat16" and "conv" in op.lower() and "avx512f" not in Path("/proc/cpuinfo").read_text("utf-8")


def packed_call(api: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Array]]:
    """The message of a call, and its arrays."""
    arrays: list[Array] = []

    def packed(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {"array": len(arrays) - 1}
        if isinstance(value, slice):
            return {"slice": [packed(part) for part in (value.start, value.stop, value.step)]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, tuple):
            return {"tuple": [packed(part) for part in value]}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [packed(part) for part in value]
        if isinstance(value, Mapping):
            raise TypeError(value)
        return value

    document = {"api": api, "args": packed(list(args)), "kwargs": {name: packed(kwargs[name]) for name in kwargs}}
    return document, arrays


@dataclass(frozen=True)
class Differentiated:
    """A call with its gradients; None for a tensor that has none."""

    outputs: list[Array | None]
    #: The gradients of the outputs.
    given: list[Array | None]
    #: Those of the tensors of the arguments.
    gradients: list[Array | None]
    #: What the last node of autograd's graph got and gave, as msprobe records it.
    got: list[Array | None]
    gave: list[Array | None]


class Torch(Oracle):
    """A process with PyTorch that calls one function at a time."""

    def __init__(self) -> None:
        super().__init__(torch_python(), "torch_worker.py")

    def run(self, api: str, *args: Any, **kwargs: Any) -> list[Array]:
        """The tensors that an API returns, named as msprobe does: Functional.*, Torch.*, Tensor.* (with dunders).

        Arrays become tensors of their type; "torch.float16" and the like become the type.
        """
        document, arrays = packed_call(api, args, kwargs)
        self._send(document, arrays)
        answer, outputs = self._receive()
        if answer["error"]:
            raise OracleError(f"{api}: {answer['error']}")
        return outputs

    def differentiated(
        self, api: str, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: str = "float64", seed: int = 1
    ) -> Differentiated:
        """The same call in a type, with drawn gradients of its outputs and those that autograd makes of them."""
        document, arrays = packed_call(api, args, kwargs)
        self._send({**document, "dtype": dtype, "seed": seed}, arrays)
        answer, outputs = self._receive()
        if answer["error"]:
            raise OracleError(f"{api}: {answer['error']}")
        rest = iter(outputs)
        parts = {
            name: [next(rest) if is_there else None for is_there in flags] for name, flags in answer["there"].items()
        }
        return Differentiated(**parts)
