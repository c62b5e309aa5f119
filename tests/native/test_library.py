"""The compiled kernel is loaded where it fits, and where anything is wrong with it numpy does the work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled_kernel import PROCESSORS, compiled_library
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.native import library as module
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.decode import decoder


def load(path: Path) -> str:
    with pytest.raises((OSError, ValueError, AttributeError)) as caught:
        module._load(path)
    return str(caught.value)


def test_it_says_what_it_is() -> None:
    known = compiled_library()
    assert module.description() == f"compiled, {known.processor}"


def test_a_file_that_is_cut_off_is_not_loaded(tmp_path: Path) -> None:
    whole = compiled_library().path.read_bytes()
    for size in (0, 10, 63, 64, len(whole) // 2, len(whole) - 1):
        path = tmp_path / "kernel.so"
        path.write_bytes(whole[:size])
        assert load(path) in ("it is cut off", "it is no shared library of Linux")


@pytest.mark.parametrize(
    ("interface", "why"), [(0, "it is of another version of precision_tool"), (module._INTERFACE, "pt_first_float32")]
)
def test_a_library_that_is_not_ours_is_not_used(tmp_path: Path, interface: int, why: str) -> None:
    source = tmp_path / "other.c"
    source.write_text(f"int pt_interface(void) {{ return {interface}; }}\n")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "other.so"), str(source)], check=True)
    assert why in load(tmp_path / "other.so")


def test_of_another_machine(tmp_path: Path) -> None:
    data = bytearray(compiled_library().path.read_bytes())
    data[18] ^= 0xFF  # e_machine
    path = tmp_path / "kernel.so"
    path.write_bytes(data)
    assert "kernel.so" in load(path)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("numpy", "numpy (PRECISION_TOOL_KERNEL=numpy)"),
        ("off", "numpy (PRECISION_TOOL_KERNEL='off' is unknown: numpy or compiled)"),
        ("compiled", "compiled, "),
        ("", "compiled, "),
    ],
)
def test_the_variable_switches_it_off(setting: str, said: str) -> None:
    compiled_library()
    program = "from precision_tool.lib.native import library; print(library.description())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, module.VARIABLE: setting},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(said)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("start", [0, 1])
def test_every_float16_is_decoded_as_numpy_does(processor: str, start: int) -> None:
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    codes = np.arange(start, 65536, dtype=np.uint16)
    out = np.empty(codes.size, np.float32)
    decoder(data_types.BY_NAME["float16"])(codes.view(np.uint8), out)
    functions.pt_use_processor(0)
    with np.errstate(invalid="ignore"):
        wanted = codes.view(np.float16).astype(np.float32)
    nan = np.isnan(wanted)
    assert (np.isnan(out) == nan).all()
    np.testing.assert_array_equal(out[~nan].view(np.uint32), wanted[~nan].view(np.uint32))
    # Sign and payload of a NaN are kept; whether it is made a quiet one is the processor's in numpy's case.
    np.testing.assert_array_equal(out[nan].view(np.uint32) | 0x400000, wanted[nan].view(np.uint32) | 0x400000)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 5000),
    shift=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    processor=st.sampled_from(sorted(PROCESSORS)),
)
def test_second_sums(size: int, shift: int, seed: int, processor: str) -> None:
    """p, q and p log2(p/q) of arrays that begin anywhere, against float64."""
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    rng = np.random.default_rng(seed)
    x, y = (rng.lognormal(0, 3, size + shift).astype(np.float32)[shift:] for _ in range(2))
    limits = np.array([x.min(), y.min(), 1e-3, 2e-3])
    found = module.SecondSums()
    functions.pt_second_float32(x.ctypes.data, y.ctypes.data, size, limits.ctypes.data, found)
    functions.pt_use_processor(0)
    p = np.maximum(x.astype(np.float64) - limits[0], 1e-3)
    q = np.maximum(y.astype(np.float64) - limits[1], 2e-3)
    assert found.p == pytest.approx(p.sum(), rel=1e-6)
    assert found.q == pytest.approx(q.sum(), rel=1e-6)
    assert found.apart == pytest.approx((q - p).sum(), abs=1e-6 * np.abs(q - p).sum())
    assert found.p_log_ratio == pytest.approx(
        (p * np.log2(p / q)).sum(), abs=2e-6 * (p * (1 + abs(np.log2(p / q)))).sum()
    )
