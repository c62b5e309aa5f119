"""Runs single operators in TensorFlow 1.15 or 2.15, as asked over standard input: the other half of tensorflow_oracle.

A message is a length (8 bytes, big endian), so many bytes of JSON, and the bytes of its arrays one after the other.
"""

import importlib
import json
import os
import struct
import sys
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

import numpy as np


def read_exactly(stream: BinaryIO, count: int) -> Optional[bytes]:
    """So many bytes; None at the end of the stream."""
    data = stream.read(count)
    return data if len(data) == count else None


def read_message(stream: BinaryIO) -> Optional[Tuple[Dict[str, Any], List[Any]]]:
    """The JSON of a message and its arrays."""
    head = read_exactly(stream, 8)
    text = read_exactly(stream, struct.unpack(">Q", head)[0]) if head else None
    if text is None:
        return None
    document = json.loads(text.decode("utf-8"))
    arrays = []
    for desc in document["arrays"]:
        dtype = np.dtype(desc["dtype"])
        count = int(np.prod(desc["shape"], dtype=np.int64))
        data = read_exactly(stream, count * dtype.itemsize)
        if data is None:
            return None
        arrays.append(np.frombuffer(data, dtype).reshape(desc["shape"]))
    return document, arrays


def write_message(stream: BinaryIO, document: Dict[str, Any], arrays: List[Any]) -> None:
    """The JSON of a message and its arrays."""
    shapes = [{"dtype": array.dtype.name, "shape": list(array.shape)} for array in arrays]
    text = json.dumps(dict(document, arrays=shapes)).encode("utf-8")
    stream.write(struct.pack(">Q", len(text)) + text)
    for array in arrays:
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


class Worker:
    """TensorFlow, running eagerly."""

    def __init__(self) -> None:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        self.tf: Any = importlib.import_module("tensorflow")
        if self.tf.__version__[0] == "1":
            self.tf.compat.v1.enable_eager_execution()

    def _function(self, name: str) -> Any:
        """A raw op by its name, or any public function by its dotted name below `tf`."""
        if "." not in name:
            return getattr(self.tf.raw_ops, name)
        result = self.tf
        for part in name.split("."):
            result = getattr(result, part)
        return result

    def _tensor(self, array: Any) -> Any:
        return self.tf.constant(array)

    def run(self, document: Dict[str, Any], arrays: List[Any]) -> List[Any]:
        """The outputs of an op; of a gradient request the gradients; of one with variables also those, afterwards."""
        tf, variables, inputs = self.tf, {}, {}
        for name, places in document["inputs"].items():
            if name in document["variables"]:
                variables[name] = (
                    tf.Variable(arrays[places], use_resource=True)
                    if tf.__version__[0] == "1"
                    else tf.Variable(arrays[places])
                )
                inputs[name] = variables[name].handle
            elif isinstance(places, list):
                inputs[name] = [self._tensor(arrays[place]) for place in places]
            else:
                inputs[name] = self._tensor(arrays[places])
        function = self._function(document["op"])
        if document["gradient"] is None:
            outputs = function(**dict(inputs, **document["attrs"]))
        else:
            expected, upstream = document["gradient"]
            with tf.GradientTape() as tape:
                for name in expected:
                    tape.watch(inputs[name])
                value = function(**dict(inputs, **document["attrs"]))
            outputs = tape.gradient(value, [inputs[name] for name in expected], self._tensor(arrays[upstream]))
        return [np.asarray(value.numpy()) for value in self._flat(outputs)] + [
            np.asarray(variable.numpy()) for variable in variables.values()
        ]

    def _flat(self, outputs: Any) -> List[Any]:
        if outputs is None or isinstance(outputs, self.tf.Operation):
            return []
        if isinstance(outputs, (list, tuple)):
            return [value for output in outputs for value in self._flat(output)]
        return [outputs]


def main() -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what TensorFlow prints is no answer
    worker = Worker()
    while True:
        message = read_message(sys.stdin.buffer)
        if message is None:
            return
        try:
            outputs, error = worker.run(*message), None
        except Exception as problem:  # told to the one who asked
            outputs, error = [], f"{type(problem).__name__}: {problem}"
        write_message(answers, {"error": error}, outputs)


if __name__ == "__main__":
    main()
