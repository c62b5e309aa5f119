"""The compiled kernel is loaded where it fits, and where anything is wrong with it numpy does the work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from compiled_kernel import PROCESSORS, compiled_library
from hypothesis import given, settings
from hypothesis import strategies as st

import precision_tool
from precision_tool.lib.io import data_types, layouts
from precision_tool.lib.io.data_types import decoder
from precision_tool.lib.io.native import library as module

#: What a copy of the package does without.
_NOT_COPIED = shutil.ignore_patterns("*.so", "__pycache__", "assets", "demo")


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
    # The loader returns what it has loaded under the same path, and the folder of a test that passed is reused.
    source = tmp_path / f"other_{interface}.c"
    source.write_text(f"int pt_interface(void) {{ return {interface}; }}\n")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(source.with_suffix(".so")), str(source)], check=True)
    assert why in load(source.with_suffix(".so"))


@pytest.mark.parametrize("damage", ["other machine", "no library", "cut off", "other version", "a folder"])
def test_what_cannot_be_loaded_is_one_line_of_the_log(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And numpy does the work."""
    data = bytearray(compiled_library().path.read_bytes())
    path = tmp_path / "kernel.compiled.so"
    if damage == "other machine":
        data[18] ^= 0xFF
    elif damage == "cut off":
        del data[len(data) // 2 :]
    elif damage == "no library":
        data[:] = b"no library at all" * 10
    elif damage == "other version":
        monkeypatch.setattr(module, "_INTERFACE", module._INTERFACE + 1)
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(data)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "library.py"))
    monkeypatch.setattr(module, "_loaded", cache(module._loaded.__wrapped__))
    monkeypatch.setattr(module, "library", cache(module.library.__wrapped__))
    monkeypatch.delenv(module.VARIABLE, raising=False)
    told: list[str] = []
    monkeypatch.setattr(module._log, "info", lambda text, *values: told.append(text % values))
    assert [module.library() for _ in range(3)] == [None] * 3
    (line,) = told
    assert line.startswith("numpy instead of the compiled kernel: ")
    assert module.description().startswith(f"numpy ({path} cannot be used: ")


def test_it_is_loaded_from_its_own_folder_and_from_nowhere_else(tmp_path: Path) -> None:
    """Where it is missing, neither the working folder, a search path nor a variable has another one loaded."""
    package = tmp_path / "site"
    native = "precision_tool/lib/io/native"
    shutil.copytree(Path(precision_tool.__file__).parent, package / "precision_tool", ignore=_NOT_COPIED)
    kernel = compiled_library().path
    elsewhere = tmp_path / "elsewhere"
    for place in ("", "lib", native, f"{native}/native"):
        (elsewhere / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(kernel, elsewhere / place / kernel.name)
    shutil.copy(kernel, package / kernel.name)
    variables = ("LD_LIBRARY_PATH", "LD_RUN_PATH", "PRECISION_TOOL_NATIVE", "PRECISION_TOOL_LIBRARY", "PATH")
    program = (
        "from precision_tool.lib.io.native import library; print(library.description())\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'kernel.compiled' in line})"
    )

    path = f"{package}:{elsewhere}:{elsewhere}/{native}"

    def loaded() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=elsewhere, capture_output=True, text=True, check=True,
            env={**os.environ, **dict.fromkeys(variables, str(elsewhere)), "PYTHONPATH": path, module.VARIABLE: ""},
        )  # fmt: skip
        described, maps = done.stdout.splitlines()
        return described, maps

    assert loaded() == ("numpy (the compiled kernel was not built: pip builds it where there is a C compiler)", "")
    own = package / native / kernel.name
    own.symlink_to(kernel)
    assert loaded() == (f"numpy ({own} is a link)", "")
    own.unlink()
    shutil.copy(kernel, own)
    described, maps = loaded()
    assert described.startswith("compiled, ")
    assert maps == str(own)


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
    program = "from precision_tool.lib.io.native import library; print(library.description())"
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


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "hifloat8"])
def test_every_code_of_other_short_floats(processor: str, name: str) -> None:
    """As their own types tell, where there are any; in numbers that is what the table of hifloat8 says."""
    word = np.dtype(np.uint16 if name == "bfloat16" else np.uint8)
    codes = np.arange(1, 1 << (8 * word.itemsize)).astype(word)
    out = np.empty(codes.size, np.float32)
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    decoder(data_types.BY_NAME[name])(codes.view(np.uint8), out)
    functions.pt_use_processor(0)
    if name == "hifloat8":
        wanted = data_types.value_table(name)[1:]
    else:
        wanted = codes.view(np.dtype(getattr(ml_dtypes, name))).astype(np.float32)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(np.signbit(out), np.signbit(wanted))


#: What is in a side: values of every size, the least and the largest, zeros of both signs, NaN, infinities.
SPECIALS = (0.0, -0.0, 1.0, 5e-324, -1e-310, 1e-38, -1e-45, 3e38, -1.7e308, np.nan, np.inf, -np.inf)


def side_values(dtype: str, size: int, seed: int, specials: int) -> npt.NDArray[Any]:
    rng = np.random.default_rng(seed)
    values = rng.normal(rng.choice([0, 1e4]), 1, size)
    at = rng.integers(0, size, specials)
    values[at] = rng.choice(SPECIALS[: rng.integers(1, len(SPECIALS) + 1)], specials)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


_SIDES = {
    "dtype": st.sampled_from(["float32", "float64"]),
    "size": st.sampled_from([1, 2, 15, 17, 255, 257, 1024, 1025, 5000]),
    "shift": st.integers(0, 3),
    "seed": st.integers(0, 2**32 - 1),
    "specials": st.sampled_from([0, 1, 3, 4000]),
    "processor": st.sampled_from(sorted(PROCESSORS)),
}


@settings(max_examples=120, deadline=None)
@given(**_SIDES)
def test_sums_of_one_side(dtype: str, size: int, shift: int, seed: int, specials: int, processor: str) -> None:
    """To 1e-12 of what is added, against longdouble; counts exactly."""
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    values = side_values(dtype, size + shift, seed, specials)[shift:]
    found = module.SideSums()
    getattr(functions, f"pt_side_{dtype}")(values.ctypes.data, size, found)
    functions.pt_use_processor(0)
    finite = values[np.isfinite(values)].astype(np.longdouble)
    assert (found.count, found.zeros) == (finite.size, np.count_nonzero(values == 0))
    assert (found.nans, found.positive_infinities, found.negative_infinities) == (
        np.isnan(values).sum(), (values == np.inf).sum(), (values == -np.inf).sum()
    )  # fmt: skip
    if not finite.size:
        assert found.low > found.high
        return
    assert (found.low, found.high) == (finite.min(), finite.max())
    if max(-found.low, found.high) < 1e140:  # else the sums are taken anew, scaled
        total = finite.sum()
        assert found.total == pytest.approx(float(total), rel=0, abs=1e-12 * float(np.abs(finite).sum()))
        centred = finite - total / finite.size
        # Around a mean that is rounded to float64: that of a constant leaves its last place.
        rest = finite.size * (float(np.abs(finite).max()) * 1e-15) ** 2
        assert found.deviations == pytest.approx(float((centred * centred).sum()), rel=1e-12, abs=rest)


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    size=st.sampled_from([0, 1, 2, 15, 17, 255, 1025, 70000]),
    shift=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    specials=st.sampled_from([0, 1, 400]),
    processor=st.sampled_from(sorted(PROCESSORS)),
)
def test_codes(dtype: str, size: int, shift: int, seed: int, specials: int, processor: str) -> None:
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    values = side_values(dtype, size + shift + 1, seed, specials)[shift:-1]
    limit = np.finfo(dtype).max
    values[: specials // 100] = -limit
    word = np.dtype(f"uint{8 * values.itemsize}")
    found = module.Codes()
    count = getattr(functions, f"pt_codes_{8 * word.itemsize}")
    count(values.ctypes.data, size, int(limit.view(word)), found)
    functions.pt_use_processor(0)
    finite = np.abs(values[np.isfinite(values)])
    assert found.largest == (int(finite.max().view(word)) if finite.size else 0)
    assert (found.saturated, found.nans) == (np.count_nonzero(finite == limit), np.isnan(values).sum())
    assert found.positive_infinities == np.count_nonzero(values == np.inf)
    assert found.negative_infinities == np.count_nonzero(values == -np.inf)


@settings(max_examples=80, deadline=None)
@given(**_SIDES, bins=st.sampled_from([1, 7, 40]))
def test_bins(dtype: str, size: int, shift: int, seed: int, specials: int, processor: str, bins: int) -> None:
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    values = side_values(dtype, size + shift, seed, specials)[shift:]
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size or not 0 < finite.max() / 2 - finite.min() / 2 < 1e300:
        return
    counts = np.ones(bins, np.int64)
    low, span = float(finite.min()), float(finite.max() - finite.min())
    getattr(functions, f"pt_bins_{dtype}")(values.ctypes.data, size, low, span, bins, counts.ctypes.data)
    functions.pt_use_processor(0)
    places = np.minimum(((finite - low) / span * bins).astype(np.int64), bins - 1)
    np.testing.assert_array_equal(counts - 1, np.bincount(places, minlength=bins))


@settings(max_examples=120, deadline=None)
@given(**_SIDES, other=st.integers(0, 99))
def test_items_that_are_finite_on_both_sides(
    dtype: str, size: int, shift: int, seed: int, specials: int, processor: str, other: int
) -> None:
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    x = side_values(dtype, size + shift, seed, specials)[shift:]
    y = np.where(np.random.default_rng(other).random(size) < 0.5, x, side_values(dtype, size, other, specials))
    y = y.astype(dtype)
    one, two, places = np.empty(size), np.empty(size), np.empty(size, np.int32)
    found = module.Together()
    together = getattr(functions, f"pt_together_{dtype}")
    together(x.ctypes.data, y.ctypes.data, size, one.ctypes.data, two.ctypes.data, places.ctypes.data, found)
    functions.pt_use_processor(0)
    both = np.isfinite(x) & np.isfinite(y)
    np.testing.assert_array_equal(places[: found.count], np.flatnonzero(both))
    np.testing.assert_array_equal(one[: found.count], x[both])
    np.testing.assert_array_equal(two[: found.count], y[both])
    wrong = ~(both | (np.isnan(x) & np.isnan(y)) | (x == y))
    assert found.mismatches == wrong.sum()
    assert found.nan_mismatches == (wrong & (np.isnan(x) | np.isnan(y))).sum()
    assert found.first_mismatch == (int(np.flatnonzero(wrong)[0]) if wrong.any() else -1)


@settings(max_examples=100, deadline=None)
@given(
    size=st.sampled_from([1, 7, 1023, 1025, 4000]),
    powers=st.sampled_from([(0, 0), (-70, 60), (120, -500), (-520, -520), (400, 400)]),
    seed=st.integers(0, 2**32 - 1),
    near=st.booleans(),
    processor=st.sampled_from(sorted(PROCESSORS)),
)
def test_second_sums_in_float64(size: int, powers: tuple[int, int], seed: int, near: bool, processor: str) -> None:
    """p log2(p/q) of sides of any size, also of sides that are nearly the same, to 1e-12 against longdouble."""
    functions = compiled_library().functions
    functions.pt_use_processor(PROCESSORS[processor])
    rng = np.random.default_rng(seed)
    x = rng.lognormal(0, 4, size)
    y = x * (1 + rng.normal(0, 1e-9, size)) if near else rng.lognormal(0, 4, size)
    x, y = np.ldexp(x, powers[0]), np.ldexp(y, powers[0] if near else powers[1])
    floors = [float(side.max()) * 2.0**-23 for side in (x, y)]
    limits = np.array([x.min(), y.min(), *floors])
    found = module.SecondSums()
    functions.pt_second_float64(x.ctypes.data, y.ctypes.data, size, limits.ctypes.data, found)
    functions.pt_use_processor(0)
    p, q = (
        np.maximum((side - low).astype(np.longdouble), floor)
        for side, low, floor in zip((x, y), limits[:2], floors, strict=True)
    )
    assert found.p == pytest.approx(float(p.sum()), rel=1e-12)
    assert found.q == pytest.approx(float(q.sum()), rel=1e-12)
    assert found.apart == pytest.approx(float((q - p).sum()), rel=0, abs=1e-12 * float(np.abs(q - p).sum()))
    # Of near ones even longdouble's quotient loses digits.
    is_near = np.abs(p - q) < q / 2
    ratio = np.where(is_near, np.log1p(np.where(is_near, (p - q) / q, 0)), np.log(p / q))
    terms = p * ratio / np.log(np.longdouble(2))
    assert found.p_log_ratio == pytest.approx(float(terms.sum()), rel=0, abs=1e-12 * float(np.abs(terms).sum()))


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


@settings(max_examples=150, deadline=None)
@given(
    shape=st.lists(st.sampled_from([0, 1, 2, 3, 15, 16, 17, 33]), min_size=1, max_size=4),
    dtype=st.sampled_from(["uint8", "float16", "float32", "int64", "complex128"]),
    data=st.data(),
)
def test_copies_between_orders_of_axes(shape: list[int], dtype: str, data: st.DataObject) -> None:
    """Parts of arrays in any order of axes are copied as numpy does, and nothing else is written."""
    compiled_library()
    rank = len(shape)
    orders = [data.draw(st.permutations(range(rank))) for _ in range(2)]
    sides = []
    for order in orders:
        around = (np.arange(prod(extent + 2 for extent in shape)) % 251).astype(dtype)
        whole = around.reshape([shape[axis] + 2 for axis in order]).transpose(np.argsort(order))
        sides.append((whole, whole[tuple(slice(1, extent + 1) for extent in shape)]))
    (_, source), (target_whole, target) = sides
    source += source.dtype.type(1)
    wanted = target_whole.copy()
    if layouts._copied(source, target):
        assert source.itemsize in (2, 4, 8)
        wanted[tuple(slice(1, extent + 1) for extent in shape)] = source
    elif min(shape) > 1 and rank > 1 and source.itemsize in (2, 4, 8):
        assert orders[0][-1] == orders[1][-1]
    np.testing.assert_array_equal(target_whole, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_compiled_kernel_copies_large_transposed_arrays(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_library()
    copied = layouts._copied
    done = []

    def noted(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> bool:
        done.append(copied(source, target))
        return done[-1]

    monkeypatch.setattr(layouts, "_copied", noted)
    stored = (np.arange(2 * 33 * 40 * 20) % 2039).astype(dtype).reshape(2, 33, 40, 20)
    plan = layouts.plan("NCHW", stored.shape, "NHWC", (2, 40, 20, 33))
    out = np.empty((2, 40, 20, 33), dtype)
    layouts.copy_box(plan, stored, out)
    np.testing.assert_array_equal(out, stored.transpose(0, 2, 3, 1))
    assert done == [True]
