"""What the arithmetic takes an element, in the cache, for each pair of types and both kernels.

Part `kernel` of `scripts/bench`: CPU time, the best of several runs, the kernels taking turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.compiled import CompiledKernel
from precision_tool.lib.compare.kernel import Kernel
from precision_tool.lib.compare.pair_sums import KlSums, SideSums, Sums
from precision_tool.lib.compare.scheduler import reuse_memory
from precision_tool.lib.io import data_types, decode
from precision_tool.lib.io.decode import Bytes, Numbers
from precision_tool.lib.io.native.library import library

#: Items of a block, as the comparison works on them.
_BLOCK = 1 << 17
_REPEATS, _BLOCKS = 7, 5
#: The NPU's type and the benchmark's.
_PAIRS = (
    ("float32", "float32"), ("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"), ("float8_e4m3fn", "float32"), ("float8_e5m2", "float32"), ("hifloat8", "float32"),
    ("int8", "int8"), ("int32", "int32"), ("float64", "float64"), ("int64", "int64"),
    ("uint64", "int64"),
)  # fmt: skip


def _stored(name: str, values: npt.NDArray[np.float64]) -> Bytes:
    """Values as a dump has them."""
    kind = data_types.BY_NAME[name]
    if name == "hifloat8":
        codes: Bytes = np.clip(np.abs(values) * 30, 0, 100).astype(np.uint8)
        return codes
    if kind.is_integer:
        values = values * 20
    dtype = np.dtype(getattr(ml_dtypes, name)) if kind.decode != "numpy" else np.dtype(name)
    stored: Bytes = values.astype(dtype).view(np.uint8)
    return stored


def _nanoseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    for _ in range(_BLOCKS):
        work()
    return (time.process_time() - start) / _BLOCKS / _BLOCK * 1e9


class _Case:
    """A block of both sides of two types, through decoding and both passes."""

    def __init__(self, npu: str, golden: str, spoil: float = 0.0) -> None:
        rng = np.random.default_rng(1)
        values = rng.standard_normal(_BLOCK)
        near = values + rng.standard_normal(_BLOCK) * 1e-3
        if spoil:
            values[rng.random(_BLOCK) < spoil] = near[values != values] = np.nan
            near[np.isnan(values)] = np.nan
        types = tuple(data_types.BY_NAME[name] for name in (npu, golden))
        self._sides = tuple(_stored(name, side) for name, side in ((npu, values), (golden, near)))
        self._decoders = tuple(decode.decoder(kind) for kind in types)
        self._blocks: tuple[Numbers, ...] = tuple(np.empty(_BLOCK, dtype) for dtype in decode.compute_types(*types))

    def decode(self) -> None:
        for decoder, side, block in zip(self._decoders, self._sides, self._blocks, strict=True):
            decoder(side, block)

    def times(self, kernel: Kernel) -> tuple[float, ...]:
        """Of decoding both sides, the first pass, the second, and the sums of one side alone."""
        decoding = _nanoseconds(self.decode)
        x, y = self._blocks
        first = Sums()
        kernel.add_block(first, x, y, 0)
        return (
            decoding,
            _nanoseconds(lambda: kernel.add_block(Sums(), x, y, 0)),
            _nanoseconds(lambda: kernel.add_second(KlSums(), first, x, y)),
            _nanoseconds(lambda: kernel.add_side(SideSums(), x)),
        )


@contextmanager
def _without_compiled() -> Iterator[None]:
    """Decoding by numpy too."""
    original = decode.library
    decode.library = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        decode.library = original


def bench_kernels() -> None:
    """Prints nanoseconds an element, both kernels side by side."""
    compiled = library()
    print(f"kernel:  nanoseconds an element and core in the cache, blocks of {_BLOCK}: numpy / compiled")
    if compiled is None:
        print("  the compiled kernel was not built here")
        return
    reuse_memory()  # as every worker of a comparison does
    kernels = Kernel(), CompiledKernel(compiled)
    print(f"  {'':28}" + "".join(f"{name:>16}" for name in ("decoding", "first pass", "second pass", "one side")))
    for npu, golden, spoil in (*((*pair, 0.0) for pair in _PAIRS), ("float32", "float32", 0.1)):
        case = _Case(npu, golden, spoil)
        best: list[tuple[float, ...]] = [(np.inf,) * 4] * 2
        for _ in range(_REPEATS):
            for number, kernel in enumerate(kernels):
                if number:
                    times = case.times(kernel)
                else:
                    with _without_compiled():
                        times = case.times(kernel)
                best[number] = tuple(map(min, best[number], times))
        title = f"{npu} {golden}{' a tenth NaN' if spoil else ''}"
        cells = (f"{ours:.2f} / {plain:.2f}" for ours, plain in zip(*best, strict=True))
        print(f"  {title:28}" + "".join(f"{cell:>16}" for cell in cells))
