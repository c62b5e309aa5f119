"""Numbers in few bits, and back, against their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opcalls import arrays_of, doubtful_of, outputs_of
from opvalues import close, i32, same, values, whole

from precision_tool.lib.ops.base import Input, NotComputedError, OutputSpec


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize(("mode", "rounded"), [("Round", np.rint), ("Floor", np.floor), ("Ceil", np.ceil)])
def test_quantized(mode: str, rounded: Any, root: bool) -> None:
    x = values((4, 50), 3) * 40
    exact = x * (0.25 if root else 0.5) + 3
    (result,) = outputs_of("AscendQuant", x, scale=0.5, offset=3.0, sqrt_mode=root, round_mode=mode)
    same(result.array, np.clip(rounded(exact), -128, 127))
    doubtful = result.doubtful
    assert doubtful is not None
    # What a kernel in float16 makes of it is either the same or doubtful.
    half = x.astype(np.float16)
    for factor in [0.5] * (2 if root else 1):
        half = half * np.float16(factor)
    narrow = np.clip(rounded(half.astype(np.float16) + np.float16(3)), -128, 127)
    exact16 = x.astype(np.float16).astype(np.float64)
    (of_half,) = outputs_of(
        "AscendQuant", Input(array=exact16, dtype="float16"), scale=0.5, offset=3.0, sqrt_mode=root, round_mode=mode
    )
    same(narrow[~doubtful_of(of_half)], of_half.array[~doubtful_of(of_half)])
    assert doubtful.mean() < 0.5


def test_quantized_by_channel() -> None:
    x, scales, zeros = values((2, 3, 4), 1), np.array([0.5, 0.25, 2.0]), i32([1, -2, 3])
    expected = np.rint(x / scales.reshape(3, 1) + zeros.reshape(3, 1))
    (result,) = arrays_of("Quantize", x, scales, zeros, axis=1)
    same(result, np.clip(expected, -128, 127))
    (result,) = arrays_of("Quantize", x, scales[:1], zeros[:1], specs=(OutputSpec(dtype="uint8"),))
    same(result, np.clip(np.rint(x / 0.5 + 1), 0, 255))
    with pytest.raises(NotComputedError):
        arrays_of("Quantize", x, scales, zeros, axis=2)
    with pytest.raises(NotComputedError):
        arrays_of("AscendQuant", x, scale=1.0, offset=0.0, specs=(OutputSpec(dtype="float8_e5m2"),))


def test_from_few_bits() -> None:
    x = whole((2, 3, 4), 5, -128, 128, "int8")
    for root, factor in ((False, 0.3), (True, 0.09)):
        (result,) = arrays_of("AscendAntiQuant", x, scale=0.3, offset=2.0, sqrt_mode=root)
        close(result, (x.astype(float) + 2) * factor)
    sums, scale = whole((2, 3, 4), 6, -5000, 5000), np.array([0.5, 0.1, 3.0, 1e-3], np.float32)
    packed = scale.view(np.uint32).astype(np.uint64) | np.uint64(1 << 40)
    for given_scale in (scale, packed):
        for relu in (False, True):
            (result,) = arrays_of("AscendDequant", sums, given_scale, relu_flag=relu)
            expected = sums * scale.astype(np.float64)
            close(result, np.maximum(expected, 0) if relu else expected)
    with pytest.raises(NotComputedError):
        arrays_of("AscendDequant", sums, np.ones(5))
    images = whole((2, 4, 3, 4), 7, -5000, 5000)
    (result,) = arrays_of("AscendDequant", images, scale, layout="NCHW")
    close(result, images * scale.astype(np.float64)[:, None, None])
    (result,) = arrays_of("AscendDequant", images, scale, layout="NHWC")
    close(result, images * scale.astype(np.float64))
