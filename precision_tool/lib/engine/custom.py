"""The user's own metrics: functions of two arrays in a Python file that the user names on the command line.

    def compare_max_ulp(x, y):          # every public function compare_*, or those that METRICS names
        return float(abs(x - y).max())  # a number or a short text

`x` is the NPU tensor and `y` the benchmark's, of one shape, in the order of the benchmark, as float32 or float64
(complex where they are), read-only. The file is run as any Python program is: nothing loads it but its name given
with --custom.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.errors import UsageError, escaped
from precision_tool.lib.io.files import read_bytes

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
    """What the metrics say of one pair, in their order; None for one that failed, with the reason in `errors`."""

    values: tuple[float | str | None, ...]
    errors: tuple[tuple[str, str], ...] = ()


def load_metrics(path: str, taken: Sequence[str] = ()) -> CustomMetrics:
    """Runs the file and finds its metrics, whose names become columns and may not be among `taken`.

    DataNotFoundError if there is no such file, FormatError if it cannot be read, UsageError if it fails or has no
    metrics.
    """
    path = posixpath.abspath(path)
    _functions.cache_clear()  # at the prompt the file may have been edited since
    names = tuple(_functions(path))
    clash = [name for name in names if name in taken]
    if clash:
        raise UsageError(f"{path}: {clash[0]} is the name of another column", "give the function another name")
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
        raise UsageError(f"{path}: the file cannot be run: {_described(error)}", "try it with python3") from error
    found = vars(module)
    names = found.get("METRICS")
    if names is None:
        names = [name for name, value in found.items() if name.startswith(_PREFIX) and callable(value)]
    if not isinstance(names, (list, tuple)) or not names:
        raise UsageError(
            f"{path}: it has no metrics", f"define functions {_PREFIX}NAME(x, y), or list functions in METRICS"
        )
    bad = [name for name in names if not (isinstance(name, str) and name.isidentifier() and callable(found.get(name)))]
    if bad:
        raise UsageError(f"{path}: METRICS names {bad[0]!r}, which is no function of the file", "mend the list")
    return {name: found[name] for name in names}


def apply_metrics(metrics: CustomMetrics, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> CustomValues:
    """The value of every metric for two arrays; whatever a function raises becomes its reason."""
    x.flags.writeable = y.flags.writeable = False
    values: list[float | str | None] = []
    errors = []
    for name, function in _functions(metrics.path).items():
        try:
            with redirect_stdout(sys.stderr):
                value: float | str | None = _as_value(function(x, y))
        except (Exception, SystemExit) as error:
            value = None
            errors.append((name, _described(error)))
        values.append(value)
    return CustomValues(tuple(values), tuple(errors))


def failed_metrics(metrics: CustomMetrics, reason: str) -> CustomValues:
    """The values where no function could be asked."""
    return CustomValues((None,) * len(metrics.names), (("own metrics", reason),))


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
    """An integer of more digits than anybody reads as a float, else as text."""
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
