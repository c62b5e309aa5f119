"""Loads the compiled kernel, if it was built and fits this machine.

`pip install` builds it where there is a C compiler. Whatever is wrong with it, numpy does the work instead: the log
has one line of why. PRECISION_TOOL_KERNEL=numpy leaves it alone.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from precision_tool.lib.io.files import environment

#: Names the kernel that is to do the work: "numpy" instead of the compiled one.
VARIABLE = "PRECISION_TOOL_KERNEL"
#: INTERFACE of kernel.c, of which this module is the other side.
_INTERFACE = 6

#: Largest relative error of a sum of equal squares: lanes stay below 3e-7, a sum one after the other does not.
_SUM_ERROR = 7e-7

_log = logging.getLogger(__name__)


class FirstSums(ctypes.Structure):
    """What the first pass adds up over a block: sums, least and largest values, places."""

    _fields_ = (
        *((name, ctypes.c_double) for name in (
            "dot", "npu_squares", "golden_squares", "error_squares", "error_total", "relative_total",
            "npu_total", "npu_deviations", "npu_low", "npu_high",
            "golden_total", "golden_deviations", "golden_low", "golden_high",
            "max_error", "max_relative",
        )),
        *((name, ctypes.c_int64) for name in ("max_error_at", "npu_zeros", "golden_zeros")),
    )  # fmt: skip


class SecondSums(ctypes.Structure):
    """What the second pass adds up over a block: p, q, q - p and p log2(p/q)."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("p", "q", "apart", "p_log_ratio"))


class SideSums(ctypes.Structure):
    """The sums of one side over its finite values in float64, and how many others there are."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("total", "deviations", "low", "high")),
        *((name, ctypes.c_int64) for name in (
            "count", "zeros", "nans", "positive_infinities", "negative_infinities",
        )),
    )  # fmt: skip


class IntegerSums(ctypes.Structure):
    """The sums of one side of integers; the total is that of halves, as of 2**63 more where they are signed."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("high_total", "low_total")),
        *((name, ctypes.c_int64) for name in ("low", "high", "zeros")),
        ("deviations", ctypes.c_double),
    )


class IntegerPairs(ctypes.Structure):
    """What the first pass adds up over pairs of integers."""

    _fields_ = (
        *((name, ctypes.c_double) for name in (
            "dot", "npu_squares", "golden_squares", "error_squares", "error_total", "relative_total",
            "max_error", "max_relative",
        )),
        ("max_error_at", ctypes.c_int64),
    )  # fmt: skip


class Together(ctypes.Structure):
    """How many items are finite on both sides, and of those that are not, how many are not the same."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("count", "mismatches", "nan_mismatches", "first_mismatch"))


class Codes(ctypes.Structure):
    """The largest code of a finite number, and how many numbers are the largest of their type, NaN or infinite."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("largest", "saturated", "nans", "positive_infinities", "negative_infinities")
    )


#: Decades that errors are counted in at most.
MOST_EDGES = 16


class ErrorsAsked(ctypes.Structure):
    """What is asked of the errors of a block: a tolerance, decades, and from where on an item is told."""

    _fields_ = (
        *((name, ctypes.c_double) for name in (
            "atol", "rtol", "rounding", "zero", "worst", "worst_relative", "largest",
        )),
        *((name, ctypes.c_int64) for name in ("edge_count", "room")),
        ("edges", ctypes.c_double * MOST_EDGES),
    )  # fmt: skip


class ErrorsFound(ctypes.Structure):
    """Counts of errors. More of the `worst` or of `worst_relative` than there is room for have no places."""

    _fields_ = (
        ("largest", ctypes.c_double),
        *((name, ctypes.c_int64) for name in (
            "surely_outside", "maybe_outside", "nonzero", "worst", "worst_relative",
        )),
        ("at_least", ctypes.c_int64 * MOST_EDGES),
    )  # fmt: skip


_address_of, _byte_of = ctypes.addressof, ctypes.c_char.from_buffer


def address(array: Any) -> int:
    """Where the items of a numpy array lie: `array.ctypes.data` in a quarter of its time."""
    try:
        return _address_of(_byte_of(array))
    except (TypeError, ValueError):  # empty, read-only or in several pieces
        start: int = array.ctypes.data
        return start


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of the C files beside this one. Arrays are given by address; Python's lock is not held."""

    functions: ctypes.CDLL
    path: Path

    @property
    def processor(self) -> str:
        """The kind of processor that the functions are chosen for, such as "AVX-512"."""
        return str(self.functions.pt_processor().decode("ascii"))


@cache
def library() -> Library | None:
    """The compiled kernel; None where numpy does the work."""
    kernel, why = _loaded()
    if why:
        _log.info("numpy instead of the compiled kernel: %s", why)
    return kernel


def description() -> str:
    """Which kernel does the arithmetic, for a person."""
    kernel = library()
    return f"compiled, {kernel.processor}" if kernel is not None else f"numpy ({_loaded()[1]})"


@cache
def _loaded() -> tuple[Library | None, str]:
    """The library, or why there is none."""
    choice = environment(VARIABLE)
    if choice not in ("", "numpy", "compiled"):
        return None, f"{VARIABLE}={choice[:40]!r} is unknown: numpy or compiled"
    if choice == "numpy":
        return None, f"{VARIABLE}=numpy"
    path = Path(__file__).with_name("kernel.compiled.so")
    if path.is_symlink():  # pip and setup.py write a file: a link leads to what others may change
        return None, f"{path} is a link"
    if not path.exists():
        return None, "the compiled kernel was not built: pip builds it where there is a C compiler"
    try:
        return _load(path), ""
    except (OSError, AttributeError, ValueError) as error:
        return None, f"{path} cannot be used: {error}"


def _load(path: Path) -> Library:
    _check_is_whole(path)
    functions = ctypes.CDLL(str(path))
    if functions.pt_interface() != _INTERFACE:
        raise ValueError("it is of another version of precision_tool")
    address, count = ctypes.c_void_p, ctypes.c_int64
    for name in ("float32", "float64"):
        for function, arguments in (
            ("first", (address, address, count, address, ctypes.POINTER(FirstSums))),
            ("second", (address, address, count, address, ctypes.POINTER(SecondSums))),
            ("side", (address, count, ctypes.POINTER(SideSums))),
            ("bins", (address, count, ctypes.c_double, ctypes.c_double, count, address)),
            (
                "errors",
                (
                    address,
                    address,
                    count,
                    ctypes.POINTER(ErrorsAsked),
                    address,
                    address,
                    address,
                    ctypes.POINTER(ErrorsFound),
                ),
            ),
            ("together", (address, address, count, address, address, address, ctypes.POINTER(Together))),
        ):
            getattr(functions, f"pt_{function}_{name}").argtypes = arguments
    for bits in (16, 32, 64):
        getattr(functions, f"pt_codes_{bits}").argtypes = (address, count, count, ctypes.POINTER(Codes))
    functions.pt_decode_float16.argtypes = functions.pt_decode_bfloat16.argtypes = (address, address, count)
    functions.pt_side_integers.argtypes = (address, count, count, ctypes.POINTER(IntegerSums))
    functions.pt_first_integers.argtypes = (address, count, address, count, count, ctypes.POINTER(IntegerPairs))
    functions.pt_offsets.argtypes = (address, count, count, ctypes.c_uint64, address)
    functions.pt_copy_axes.argtypes = (count, count, address, address, address, address, address)
    functions.pt_decode_byte.argtypes = (address, address, address, count)
    _check_sums(functions)
    functions.pt_use_processor.restype = None
    functions.pt_processor.restype = ctypes.c_char_p
    return Library(functions, path)


def _check_sums(functions: ctypes.CDLL) -> None:
    """ValueError where a compiler made no lanes of the sums: one after the other, equal values lose digits."""
    limits = (ctypes.c_double * 4)(1e-12, 1e17, 1e-140, 1e140)
    sums = FirstSums()
    for value in (0.1, 0.3, 0.7, 1.1, 1.7):
        values = (ctypes.c_float * 1024)(*[value] * 1024)
        functions.pt_first_float32(values, values, len(values), limits, ctypes.byref(sums))
        expected = len(values) * float(values[0]) ** 2
        if not abs(sums.npu_squares - expected) < _SUM_ERROR * expected:
            raise ValueError("it was compiled without vector instructions, and its sums would lose digits")


def _check_is_whole(path: Path) -> None:
    """ValueError for a file that was cut off: the system would load it and die on the first page that is missing."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or len(data) < 64:
        raise ValueError("it is no shared library of Linux")
    # Of 64 bits, least byte first: where the table of sections lies, which is the end of the file.
    start, size, number = (*struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58))
    if start + size * number > len(data):
        raise ValueError("it is cut off")
