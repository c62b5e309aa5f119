"""TensorFlow as the oracle of what operators compute: one process of it for all tests, asked op by op.

A test takes the fixture `tensorflow` (2.15) or `tensorflow_115`:

    y, = tensorflow.run("Conv2D", {"input": x, "filter": w}, strides=[1, 2, 2, 1], padding="SAME")
    var, = tensorflow.run("ResourceApplyGradientDescent", {"var": v, "alpha": a, "delta": d}, variables=["var"])
    dx, = tensorflow.run("nn.gelu", {"features": x}, gradient=(["features"], dy))
"""

from __future__ import annotations

import json
import os
import selectors
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from training_side import HANG, tensorflow_python

Array = npt.NDArray[Any]


class OracleError(Exception):
    """The oracle refused the op."""


class Oracle:
    """A process that runs one op at a time for the tests."""

    def __init__(self, python: str, script: str) -> None:
        self._process = subprocess.Popen(
            [python, "-W", "ignore", str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def _send(self, document: Mapping[str, Any], arrays: Sequence[Array]) -> None:
        shapes = [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays]
        text = json.dumps({**document, "arrays": shapes}).encode("utf-8")
        assert self._process.stdin is not None
        message = struct.pack(">Q", len(text)) + text + b"".join(array.tobytes() for array in arrays)
        view = memoryview(message)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _receive(self) -> tuple[dict[str, Any], list[Array]]:
        (length,) = struct.unpack(">Q", self._read(8))
        document: dict[str, Any] = json.loads(self._read(length))
        outputs = []
        for desc in document["arrays"]:
            dtype = np.dtype(desc["dtype"])
            size = int(np.prod(desc["shape"], dtype=np.int64)) * dtype.itemsize
            outputs.append(np.frombuffer(self._read(size), dtype).reshape(desc["shape"]))
        return document, outputs

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while len(data) < count:
                assert selector.select(HANG), "the oracle does not answer"
                part = os.read(self._process.stdout.fileno(), count - len(data))
                assert part, "the process of the oracle has ended"
                data += part
        return data


class TensorFlow(Oracle):
    """A process with TensorFlow that runs one op at a time."""

    def __init__(self, version: str) -> None:
        super().__init__(tensorflow_python(version), "tensorflow_worker.py")

    def run(
        self,
        op: str,
        inputs: Mapping[str, npt.ArrayLike | Sequence[Array]],
        *,
        variables: Sequence[str] = (),
        gradient: tuple[Sequence[str], Array] | None = None,
        **attrs: Any,
    ) -> list[Array]:
        """The outputs of a raw op, or of a function below `tf` that is named with its dots ("nn.gelu").

        Inputs go by name; a list of arrays is an input that takes a list. Those named in `variables` are resource
        variables, whose values after the op follow its outputs. `gradient` asks for the gradients for these inputs
        instead, given the gradient of the output. Types are written as their names ("float32").
        """
        arrays: list[Array] = []

        def place(array: npt.ArrayLike) -> int:
            arrays.append(np.asarray(array))
            return len(arrays) - 1

        document = {
            "op": op,
            "inputs": {
                name: [place(one) for one in value] if isinstance(value, list) else place(value)
                for name, value in inputs.items()
            },
            "variables": list(variables),
            "attrs": attrs,
            "gradient": gradient and [list(gradient[0]), place(gradient[1])],
        }
        self._send(document, arrays)
        answer, outputs = self._receive()
        if answer["error"]:
            raise OracleError(f"{op}: {answer['error']}")
        return outputs
