"""How simulated hosts and devices calculate: elementary functions, divisions, sums and products, each in its own way.

An `Arithmetic` is what formulas are written in; the plain one is the mathematics. `Ideal` sums in float32 and is exact
otherwise, `Host` is a plain float32 library, and `Imprecise` is as coarse as real kernels: a way of calculating is
drawn for each op type from the device's seed, so that all ops of a type on one device share it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Function = Callable[[Array], Array]

#: Smallest normal numbers: what is below becomes zero where subnormals are flushed.
_SMALLEST = {"float16": 2.0**-14, "float32": 2.0**-126}
_LARGEST_HALF = 65504.0


def seeded(*parts: object) -> np.random.Generator:
    """A generator of random numbers from any values, the same in every process."""
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def truncated(array: Array, bits: int) -> Array:
    """Float32 values with the last of their 24 bits cut off, down to `bits`."""
    mask = np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) & mask).view(np.float32)


def rounded(array: Array, bits: int) -> Array:
    """Float32 values rounded to nearest with `bits` bits, halves away from zero."""
    half = np.uint32(1 << (23 - bits))
    single = np.ascontiguousarray(array, np.float32)
    cut = truncated((single.view(np.uint32) + half).view(np.float32), bits)
    return np.where(np.isfinite(single), cut, single)


def _exact_functions() -> dict[str, Function]:
    return {
        "exp": np.exp, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x), "recip": lambda x: 1 / x,
        "sigmoid": lambda x: np.where(x >= 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))),
    }  # fmt: skip


FUNCTIONS = _exact_functions()


class Arithmetic:
    """Exact arithmetic in float64."""

    dtype: Any = np.float64

    def number(self, array: Array) -> Array:
        """An input as this arithmetic holds it; integers and bools as they are."""
        return array.astype(self.dtype) if array.dtype.kind == "f" else array

    def function(self, name: str, x: Array) -> Array:
        """One of `FUNCTIONS`."""
        return np.asarray(FUNCTIONS[name](x), self.dtype)

    def divide(self, a: Array, b: Array) -> Array:
        """a / b."""
        return np.asarray(a / b, self.dtype)

    def sum(self, x: Array, axes: tuple[int, ...], keep: bool = False) -> Array:
        """The sum over axes."""
        return np.asarray(np.sum(x, axis=axes, keepdims=keep))

    def matmul(self, a: Array, b: Array) -> Array:
        """The product of matrices."""
        return np.asarray(np.matmul(a, b))

    def store(self, array: Array, dtype: str) -> Array:
        """A result as it stands in memory."""
        with np.errstate(all="ignore"):
            return np.asarray(np.asarray(array).astype(dtype))


class Host(Arithmetic):
    """A library in float32; `chains` adds one term after the other, as some CPU kernels do."""

    dtype = np.float32

    def __init__(self, *, chains: bool = False) -> None:
        self.chains = chains

    def sum(self, x: Array, axes: tuple[int, ...], keep: bool = False) -> Array:
        if not self.chains:
            return super().sum(x, axes, keep)
        return _along(x, axes, keep, lambda rows: np.add.accumulate(rows, axis=1)[:, -1])


class Ideal(Arithmetic):
    """Sums and products in float32, all else exact, one rounding at the end."""

    def __init__(self, *, saturates: bool = False) -> None:
        self.saturates = saturates

    def sum(self, x: Array, axes: tuple[int, ...], keep: bool = False) -> Array:
        return np.asarray(np.sum(x.astype(np.float32), axis=axes, keepdims=keep)).astype(np.float64)

    def matmul(self, a: Array, b: Array) -> Array:
        return np.asarray(np.matmul(a.astype(np.float32), b.astype(np.float32))).astype(np.float64)

    def store(self, array: Array, dtype: str) -> Array:
        return _stored(array, dtype, self.saturates, flushes=False)


def _stored(array: Array, dtype: str, saturates: bool, *, flushes: bool) -> Array:
    array = np.asarray(array)
    with np.errstate(all="ignore"):
        if saturates and dtype == "float16":
            array = np.clip(np.nan_to_num(array, nan=0.0, posinf=np.inf, neginf=-np.inf), -_LARGEST_HALF, _LARGEST_HALF)
        stored = array.astype(dtype)
        if flushes and dtype in _SMALLEST:
            stored = np.where(np.abs(stored) < _SMALLEST[dtype], np.zeros_like(stored), stored)
    return np.asarray(stored)


def _along(x: Array, axes: tuple[int, ...], keep: bool, add: Callable[[Array], Array]) -> Array:
    """A sum by rows: `add` gets the terms of each result as one row."""
    axes = tuple(axis % x.ndim for axis in axes) if x.ndim else ()
    others = [axis for axis in range(x.ndim) if axis not in axes]
    moved = np.transpose(x, [*others, *axes])
    kept = [x.shape[axis] for axis in others]
    rows = np.ascontiguousarray(moved).reshape(int(np.prod(kept)), -1)
    total = add(rows) if rows.shape[1] else np.zeros(len(rows), x.dtype)
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)] if keep else kept
    return np.asarray(total).reshape(shape)


# --- imprecise devices ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Model:
    """A product: what its kernels may be like. `bits` bounds the functions' relative error, 2⁻ᵇ."""

    name: str
    bits: tuple[float, float]
    methods: tuple[str, ...]
    sums: tuple[str, ...]
    products: tuple[str, ...]
    #: Bits of float32 factors in the matrix unit: 24 for all.
    factors: tuple[int, ...] = (24,)
    #: How many of the op types divide by an approximate reciprocal.
    reciprocals: float = 0.5
    flushes: bool = True
    half_sums: float = 0.0


MODELS = {
    model.name: model
    for model in (
        Model(
            name="tables", bits=(12, 14), methods=("table", "newton"), sums=("tile",), products=("tile",),
            factors=(11, 12),
        ),
        Model(
            name="halves", bits=(10, 12), methods=("half", "mantissa", "curve"), sums=("tile", "pairs"),
            products=("split",), factors=(11,), half_sums=0.4,
        ),
        Model(
            name="curves", bits=(10, 14), methods=("curve", "newton", "mantissa"), sums=("chain", "atomic"),
            products=("split", "tile"), factors=(24, 12), reciprocals=0.3, flushes=False,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A device: a product, and the seed by which its kernels were drawn. Without a model it is ideal."""

    model: Model | None
    seed: int = 0
    saturates: bool = False
    #: Differs from run to run: the order of atomic additions.
    run: int = 0

    def arithmetic(self, op_type: str, dtype: str, op: str) -> Arithmetic:
        """How an op of this type with such results is calculated; the op's name is only for atomics."""
        if self.model is None:
            return Ideal(saturates=self.saturates)
        return Imprecise(self.model, self.seed, op_type, dtype, self.saturates, seeded(self.run, op))


@dataclass
class Imprecise(Arithmetic):
    """The arithmetic of one op type of a device, in float32 throughout."""

    model: Model
    seed: int
    op_type: str
    result: str
    saturates: bool
    order: np.random.Generator
    dtype: Any = field(default=np.float32, init=False)

    def _draw(self, *what: object) -> np.random.Generator:
        return seeded(self.model.name, self.seed, self.op_type, *what)

    def function(self, name: str, x: Array) -> Array:
        draw = self._draw(name)
        method = str(draw.choice(self.model.methods))
        low, high = self.model.bits
        bits = float(draw.uniform(low, high))
        with np.errstate(all="ignore"):
            made = np.asarray(_METHODS[method](name, np.asarray(x, np.float32), bits, draw), np.float32)
            exact = np.asarray(FUNCTIONS[name](np.asarray(x, np.float64)))
        # Ends of the range are right: kernels treat them apart.
        return np.where(np.isfinite(made) & np.isfinite(exact) & (exact != 0), made, exact).astype(np.float32)

    def divide(self, a: Array, b: Array) -> Array:
        if self._draw("divide").random() < self.model.reciprocals:
            with np.errstate(all="ignore"):
                made = a * self.function("recip", np.asarray(b))
                return np.where(np.isfinite(made), made, a / b).astype(np.float32)
        return np.asarray(np.asarray(a, np.float32) / np.asarray(b, np.float32))

    def sum(self, x: Array, axes: tuple[int, ...], keep: bool = False) -> Array:
        draw = self._draw("sum")
        way = str(draw.choice(self.model.sums))
        if self.result == "float16" and draw.random() < self.model.half_sums:
            way = "half"
        return _along(np.asarray(x, np.float32), axes, keep, lambda rows: _SUMS[way](rows, self.order))

    def matmul(self, a: Array, b: Array) -> Array:
        draw = self._draw("matmul")
        bits = int(draw.choice(self.model.factors))
        # Float16 factors have 11 bits and stay what they are.
        a, b = rounded(a, bits) if bits < 24 else a, rounded(b, bits) if bits < 24 else b
        way = str(draw.choice(self.model.products))
        width = 16 if way == "tile" else max(16, -(-a.shape[-1] // int(draw.integers(2, 5))))
        total = np.zeros((), np.float32)
        with np.errstate(all="ignore"):
            for start in range(0, a.shape[-1], width):
                part = np.matmul(a[..., start : start + width], b[..., start : start + width, :])
                total = np.asarray(total + part, np.float32)
        return total

    def store(self, array: Array, dtype: str) -> Array:
        return _stored(array, dtype, self.saturates, flushes=self.model.flushes)


# --- sums -------------------------------------------------------------------------------------------------------------


def _chain(rows: Array, order: np.random.Generator) -> Array:
    return np.asarray(np.add.accumulate(rows, axis=1)[:, -1])


def _tiles(rows: Array, order: np.random.Generator) -> Array:
    """Sixteen at a time, one after the other, and so the sums of the tiles."""
    width = -(-rows.shape[1] // 16) * 16
    padded = np.pad(rows, ((0, 0), (0, width - rows.shape[1]))).reshape(len(rows), -1, 16)
    return _chain(np.add.accumulate(padded, axis=2)[:, :, -1], order)


def _halves(rows: Array, order: np.random.Generator) -> Array:
    """Tiles whose sums are kept in float16."""
    width = -(-rows.shape[1] // 16) * 16
    padded = np.pad(rows, ((0, 0), (0, width - rows.shape[1]))).reshape(len(rows), -1, 16)
    with np.errstate(all="ignore"):
        total = padded.sum(axis=2, dtype=np.float32).astype(np.float16)
        return np.add.accumulate(total, axis=1, dtype=np.float16)[:, -1].astype(np.float32)


def _atomic(rows: Array, order: np.random.Generator) -> Array:
    """Blocks that are added as they are ready."""
    blocks = np.array_split(np.arange(rows.shape[1]), min(rows.shape[1], 8))
    order.shuffle(blocks)
    total = np.zeros(len(rows), np.float32)
    for block in blocks:
        total = total + _chain(rows[:, block], order)
    return total


def _pairs(rows: Array, order: np.random.Generator) -> Array:
    return np.asarray(rows.sum(axis=1, dtype=np.float32))


_SUMS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "chain": _chain, "tile": _tiles, "half": _halves, "atomic": _atomic, "pairs": _pairs,
}  # fmt: skip


# --- functions --------------------------------------------------------------------------------------------------------


def _core(name: str, x: Array) -> tuple[Array, Function, tuple[float, float], Function]:
    """A function as smooth on a short range: the argument there, the function, the range, and the way back."""
    x = np.asarray(x, np.float64)
    fraction, exponent = np.frexp(np.abs(x))
    if name == "exp":
        scaled = x / np.log(2)
        whole = np.floor(scaled)
        return scaled - whole, np.exp2, (0, 1), lambda y: np.ldexp(y, np.clip(whole, -2000, 2000).astype(int))
    if name == "log":
        low = fraction < np.sqrt(0.5)
        t, e = np.where(low, 2 * fraction, fraction) - 1, np.where(low, exponent - 1, exponent)
        return t, lambda t: _ratio(np.log1p, t), (-0.3, 0.4143), lambda y: y * t + e * np.log(2)
    if name == "recip":
        return fraction, lambda t: 1 / t, (0.5, 1), lambda y: np.sign(x) * np.ldexp(y, -exponent)
    if name in ("rsqrt", "sqrt"):
        odd = exponent % 2
        t, half = np.ldexp(fraction, -odd), (exponent + odd) // 2
        if name == "sqrt":
            return t, np.sqrt, (0.25, 1), lambda y: np.ldexp(y, half)
        return t, lambda t: 1 / np.sqrt(t), (0.25, 1), lambda y: np.ldexp(y, -half)
    if name == "tanh":
        t = np.minimum(np.abs(x), 9)
        return t, lambda t: _ratio(np.tanh, t), (0, 9), lambda y: np.sign(x) * y * t
    if name == "sigmoid":
        t = np.minimum(np.abs(x), 17)
        return t, lambda t: 1 / (1 + np.exp(-t)), (0, 17), lambda y: np.where(x >= 0, y, y * np.exp(-np.abs(x)))
    assert name == "log1p"  # above 1 the caller takes the logarithm
    t = np.clip(x, 0, 1)
    return t, lambda t: _ratio(np.log1p, t), (0, 1), lambda y: y * t


def _ratio(function: Function, t: Array) -> Array:
    """function(t) / t, with the limit 1 at 0."""
    with np.errstate(all="ignore"):
        return np.where(t == 0, 1.0, function(np.asarray(t)) / np.where(t == 0, 1.0, t))


def _table(name: str, x: Array, bits: float, draw: np.random.Generator) -> Array:
    """Straight lines or parabolas between the knots of a table that is just as fine as needed."""
    t, function, (low, high), back = _core(name, x)
    is_line = bool(draw.random() < 0.6)
    outside = None
    if name == "log1p":
        outside = _table("log", 1 + np.asarray(x, np.float64), bits, draw)
    probe = np.linspace(low, high, 1001)
    for segments in 2 ** np.arange(2, 12):
        made = _interpolated(function, low, high, int(segments), probe, is_line)
        if np.max(np.abs(made / function(probe) - 1)) <= 2.0**-bits:
            break
    made = back(_interpolated(function, low, high, int(segments), t, is_line))
    return made if outside is None else np.where((x >= 0) & (x <= 1), made, outside)


def _interpolated(function: Function, low: float, high: float, segments: int, t: Array, is_line: bool) -> Array:
    width = (high - low) / segments
    place = np.clip(np.floor((t - low) / width), 0, segments - 1)
    left = low + place * width
    s = (t - left) / width
    first, last = function(left), function(left + width)
    if is_line:
        return first + (last - first) * s
    middle = function(left + width / 2)
    return np.asarray(first + s * (4 * middle - 3 * first - last) + s * s * (2 * first - 4 * middle + 2 * last))


def _newton(name: str, x: Array, bits: float, draw: np.random.Generator) -> Array:
    """One step from a coarse start; functions without such a step take a table."""
    if name not in ("rsqrt", "recip", "sqrt"):
        return _table(name, x, bits, draw)
    step = 2.0 ** (-bits / 2)  # squared by the step
    t, _, _, back = _core("rsqrt" if name == "sqrt" else name, x)
    if name == "recip":
        start = 1 / t * (1 + step * np.sin(40 * t))
        return back(start * (2 - t * start))
    start = 1 / np.sqrt(t) * (1 + 0.8 * step * np.sin(40 * t))
    root = back(start * (1.5 - 0.5 * t * start * start))
    return root if name == "rsqrt" else np.where(x > 0, x * root, 0.0)


def _mantissa(name: str, x: Array, bits: float, draw: np.random.Generator) -> Array:
    """The function of an argument whose last bits were dropped. Near 1 a logarithm would lose all."""
    if name in ("log", "log1p", "exp"):
        return _curve(name, x, bits, draw)
    return FUNCTIONS[name](truncated(x, round(bits) + 1).astype(np.float64))


def _half(name: str, x: Array, bits: float, draw: np.random.Generator) -> Array:
    """The function in float16 where its range suffices, else by a table."""
    if name not in ("exp", "tanh", "sigmoid"):
        return _table(name, x, bits, draw)
    argument = x.astype(np.float16).astype(np.float64) if name != "exp" else x.astype(np.float64)
    exact = FUNCTIONS[name](argument)
    inside = (np.abs(exact) > 2.0**-14) & (np.abs(exact) < _LARGEST_HALF)
    return np.where(inside, exact.astype(np.float16).astype(np.float64), exact)


def _curve(name: str, x: Array, bits: float, draw: np.random.Generator) -> Array:
    """A smooth relative error that goes up and down with the argument."""
    frequency, phase = draw.uniform(1, 6), draw.uniform(0, 6.28)
    x64 = x.astype(np.float64)
    place = np.log2(np.abs(x64) + 2.0**-20) if name in ("recip", "rsqrt", "sqrt", "log") else x64
    return np.asarray(FUNCTIONS[name](x64) * (1 + 2.0**-bits * np.sin(frequency * place + phase)))


_METHODS: dict[str, Callable[[str, Array, float, np.random.Generator], Array]] = {
    "table": _table, "newton": _newton, "mantissa": _mantissa, "half": _half, "curve": _curve,
}  # fmt: skip
