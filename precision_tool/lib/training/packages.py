"""The packages of a training environment, loaded when first needed, and how this room talks to whoever runs a script.

This module runs on Python 3.7.
"""

import importlib
import importlib.util
import re
import sys
from typing import Any

from precision_tool.lib.messages import Message, text
from precision_tool.lib.messages.errors import PrecisionToolError, UsageError


class ScriptError(UsageError):
    """A mistake in a training script. Python's traceback prints `str()` of it alone, so that holds the advice too."""

    def __str__(self) -> str:
        return self.advice


class MissingPackageError(PrecisionToolError, ImportError):
    """A package that is needed here is not installed."""

    def __str__(self) -> str:
        return self.advice


def say(kind: str, **fields: Any) -> None:
    """Print a line, a kind below `note.training`, on stderr: what the training script prints is its own."""
    print("precision_tool: {}".format(text("note.training." + kind, **fields)), file=sys.stderr, flush=True)


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line: TensorFlow's errors are long, and TensorFlow 2 begins with where."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if lines and lines[0] == "Graph execution error:":
        nodes = [number for number, line in enumerate(lines) if re.match("Nodes?: '", line)]
        lines = lines[nodes[-1] + 1 :] if nodes else lines[1:]
        lines = [line for line in lines if line and not line.endswith("root error(s) found.")]
    elif lines and lines[0] == "in user code:":  # a trace: the places first
        lines = [line for line in lines if line][-1:]
    return lines[0] if lines else type(error).__name__


def is_installed(package: str) -> bool:
    """Whether `package` can be imported, without importing it."""
    if package in sys.modules:
        return True
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def tensorflow_v1() -> Any:
    """`tf.compat.v1` of whatever TensorFlow is installed. Raises MissingPackageError."""
    tensorflow = _load("tensorflow")
    try:
        return tensorflow.compat.v1
    except AttributeError:
        raise MissingPackageError("training.old_tensorflow", version=getattr(tensorflow, "__version__", "")) from None


def tensorflow_module(name: str) -> Any:
    """A module of TensorFlow that is no attribute of the package, such as `core.protobuf.rewriter_config_pb2`."""
    tensorflow_v1()
    return importlib.import_module("tensorflow." + name)


def numpy() -> Any:
    """numpy, which comes with TensorFlow."""
    return _load("numpy")


def npu_bridge_class(class_name: str) -> Any:
    """The `DumpConfig` or `NPURunConfig` of npu_bridge. Raises MissingPackageError."""
    require_npu_bridge()
    for name in ("npu_bridge.estimator.npu.npu_config", "npu_bridge.npu_init"):  # the second gathers all names
        try:
            return getattr(importlib.import_module(name), class_name)
        except (ModuleNotFoundError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("npu_bridge"):
                raise  # something that npu_bridge itself needs
    raise MissingPackageError("training.old_bridge", name=class_name)


def require_npu_bridge() -> Any:
    """npu_bridge, imported: that registers the NPU with TensorFlow 1.15. Raises MissingPackageError."""
    bridge = _load("npu_bridge")
    if is_installed("npu_bridge.npu_init"):
        importlib.import_module("npu_bridge.npu_init")
    return bridge


def _load(package: str) -> Any:
    if not is_installed(package):
        where = Message("note.training.package." + package)
        raise MissingPackageError("training.no_package", package=package, python=sys.executable, advice=where)
    return importlib.import_module(package)
