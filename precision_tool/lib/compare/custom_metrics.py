"""The user's own metrics: functions of two arrays in a Python file that the user names on the command line.

    def compare_max_ulp(x, y):          # every public function compare_*, or those that METRICS names
        return float(abs(x - y).max())  # a number or a short text

`x` is the NPU tensor and `y` the benchmark's, of one shape, in the order of the benchmark, as float32 or float64
(complex where they are), read-only. The file is run as any Python program is: nothing loads it but its name given
with --custom. `OwnMetricsPass` gathers both tensors whole, as these functions want them.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.passes import Pass
from precision_tool.lib.compare.stream import Block, PairStream, tensors_of
from precision_tool.lib.io import data_types
from precision_tool.lib.io.decode import Numbers
from precision_tool.lib.io.files import read_bytes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import UsageError, escaped

#: The functions get whole tensors: of both sides together as many bytes, decoded, at most.
MAX_BYTES = 4 << 30
_PREFIX = "compare_"
_MAX_TEXT = 200
#: Of an integer that is no number of any other kind, as many characters are kept.
_MAX_INTEGER = 80
#: Larger integers are no counts or sizes: of them the leading digits are enough.
_MAX_WHOLE = (1 << 64) - 1
_MODULE = "precision_tool_custom_metrics"

Metric = Callable[[npt.NDArray[Any], npt.NDArray[Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetrics:
    """The metrics of a file. A value that workers get: each loads the file itself."""

    path: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CustomValues:
    """The metrics' values of one pair by name; None for one that failed, with the reason in `errors`."""

    values: Mapping[str, float | str | None]
    errors: tuple[tuple[str, Message | str], ...] = ()


def load_metrics(path: str, taken: Sequence[str] = ()) -> CustomMetrics:
    """Run the file and finds its metrics, whose names become columns and may not be among `taken`.

    DataNotFoundError if there is no such file, FormatError if it cannot be read, UsageError if it fails or has no
    metrics.
    """
    path = posixpath.abspath(path)
    _functions.cache_clear()  # at the prompt the file may have been edited since
    names = tuple(_functions(path))
    clash = [name for name in names if name in taken]
    if clash:
        raise UsageError.of(path, "compare.custom_name_taken", name=clash[0])
    return CustomMetrics(path=path, names=names)


@cache
def _functions(path: str) -> dict[str, Metric]:
    source = read_bytes(path)
    module = ModuleType(_MODULE)
    module.__file__ = path
    # Compiled here: importing it would write a __pycache__ folder beside the user's file.
    sys.modules[_MODULE] = module
    try:
        with redirect_stdout(sys.stderr):  # standard output is for results
            exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UsageError.of(path, "compare.custom_fails", error=_described(error)) from error
    defined = vars(module)
    names = defined.get("METRICS")
    if names is None:
        names = [name for name, value in defined.items() if name.startswith(_PREFIX) and callable(value)]
    if not isinstance(names, (list, tuple)) or not names:
        raise UsageError.of(path, "compare.custom_empty", prefix=_PREFIX)
    bad = [
        name for name in names if not (isinstance(name, str) and name.isidentifier() and callable(defined.get(name)))
    ]
    if bad:
        raise UsageError.of(path, "compare.custom_no_function", name=repr(bad[0]))
    return {name: defined[name] for name in names}


def apply_metrics(metrics: CustomMetrics, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> CustomValues:
    """Return the value of every metric for two arrays; whatever a function raises becomes its reason."""
    x.flags.writeable = y.flags.writeable = False
    values: dict[str, float | str | None] = {}
    errors: list[tuple[str, Message | str]] = []
    for name, function in _functions(metrics.path).items():
        values[name] = None
        try:
            with redirect_stdout(sys.stderr):
                values[name] = _as_value(function(x, y))
        except (Exception, SystemExit) as error:
            errors.append((name, _described(error)))
    return CustomValues(values, tuple(errors))


def _as_value(value: object) -> float | str:
    if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
        value = value.item()
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return value if abs(value) <= _MAX_WHOLE else _large(value)
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return _cut(escaped(" ".join(value.split())), _MAX_TEXT)
    raise TypeError(f"it returned a {type(value).__name__}, not a number or a text")


def _large(value: int) -> float | str:
    """Return an integer of more digits than anybody reads as a float, else as text."""
    try:
        return float(value)
    except OverflowError:
        with suppress(ValueError):  # Python writes no more than so many digits
            return _cut(str(value), _MAX_INTEGER)
        return _cut(hex(value), _MAX_INTEGER)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _described(error: BaseException) -> str:
    text = escaped(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text}"[:_MAX_TEXT] if text else type(error).__name__


# --- as a pass --------------------------------------------------------------------------------------------------------


#: Both sides as far as they are filled, in the shape of the boxes; None where they take too much memory.
Arrays = tuple[Numbers, Numbers] | None


class OwnMetricsPass(Pass[Arrays, CustomValues]):
    """The values of the user's functions of two arrays."""

    splits = False

    def __init__(self, custom: CustomMetrics) -> None:
        self.custom = custom

    def start(self, stream: PairStream) -> Arrays:
        if _bytes(stream) > MAX_BYTES:
            return None
        npu, golden = (np.empty(stream.shape, dtype) for dtype in stream.dtypes)
        return npu, golden

    def update(self, state: Arrays, block: Block) -> None:
        if state is None:
            return
        stop = block.start + block.npu.size
        for array, items in zip(state, (block.npu, block.golden), strict=True):
            part = array[tuple(slice(*limits) for limits in block.box)]
            if part.size == items.size:
                part[...] = items.reshape(part.shape)
            else:  # a box in several blocks
                part.flat[block.start : stop] = items

    def merge(self, state: Arrays, other: Arrays) -> None:
        raise NotImplementedError("a pass that takes tensors whole has no parts")

    def finish(self, state: Arrays, second: None, stream: PairStream) -> CustomValues:
        if state is None:
            reason = Message("row.compare.custom_memory", size=_bytes(stream) >> 20, limit=MAX_BYTES >> 20)
            return CustomValues(dict.fromkeys(self.custom.names), (("own metrics", reason),))
        x, y = (_as_given(side, stream) for side in state)
        return apply_metrics(self.custom, x, y)


def _bytes(stream: PairStream) -> int:
    return sum(dtype.itemsize for dtype in stream.dtypes) * stream.end


def _as_given(side: Numbers, stream: PairStream) -> npt.NDArray[Any]:
    """One side as functions get it: in the benchmark's shape, complex if it is; flat if only a part is compared."""
    array: npt.NDArray[Any] = side.reshape(-1)[: stream.end]
    if data_types.BY_NAME[tensors_of(stream.pair)[0].dtype].is_complex:
        array = array.view(np.complex64 if array.dtype.itemsize == 4 else np.complex128)
    shape = stream.pair.error_shape
    return array.reshape(shape) if array.size == prod(shape) else array
