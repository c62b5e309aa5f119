"""`.safetensors` files: every tensor is where the header says, and a header that lies is refused with its place."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from command_line import tool
from safetensors_files import TYPES, entry, safetensors_bytes, with_header
from torch_files import torch_bytes

from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.io import safetensors_file
from precision_tool.lib.io.readers import has_one_tensor, open_op_dump
from precision_tool.lib.io.safetensors_file import read_safetensor
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import OpDump, Tensor

Array = npt.NDArray[Any]


def values_of(tensor: Tensor) -> Array:
    with open_reader(tensor) as reader:
        shape = reader.logical_shape
        out = np.empty(math.prod(shape), reader.dtype)
        if out.size:
            reader.read_box(tuple((0, extent) for extent in shape), out)
    values: Array = out.reshape(shape)
    return values


def read(folder: Path, content: bytes) -> OpDump:
    path = folder / "x.safetensors"
    path.write_bytes(content)
    return open_op_dump(str(path))


def refused(folder: Path, content: bytes, reason: str = "") -> FormatError:
    with pytest.raises(FormatError) as caught:
        read(folder, content)
    error = caught.value
    assert error.path == str(folder / "x.safetensors")
    if reason:
        found = error.fields["reason"]
        assert isinstance(found, Message)
        assert found.kind == f"row.io.safetensors.{reason}"
    return error


@pytest.mark.parametrize("name", TYPES)
def test_every_type(name: str, tmp_path: Path) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    array = np.array([[0, 1, 2], [1, 0, 1]]).astype(dtype)
    dump = read(tmp_path, safetensors_bytes({"a": array, "b.weight": array[1], "scalar": array[0, 1]}))
    tensors = [tensor for tensor in dump.outputs if isinstance(tensor, Tensor)]
    assert [tensor.dataset for tensor in tensors] == ["a", "b.weight", "scalar"]
    assert [tensor.shape for tensor in tensors] == [(2, 3), (3,), ()]
    for tensor, expected in zip(tensors, (array, array[1], array[0, 1]), strict=True):
        wide = expected.astype(np.complex64 if name == "complex64" else np.float64)
        got = values_of(tensor)
        got = got[..., 0] + 1j * got[..., 1] if name == "complex64" else got.astype(np.float64)
        np.testing.assert_array_equal(got.reshape(wide.shape), wide)


def test_order_and_metadata_do_not_matter(tmp_path: Path) -> None:
    """The entries may be in another order than their bytes; empty tensors take none."""
    header = {
        "late": entry("F32", [1], 6, 10),
        "__metadata__": {"format": "pt"},
        "none": entry("F16", [0, 4], 6, 6),
        "early": entry("BF16", [3], 0, 6),
    }
    data = np.array([1, 2, 3], ml_dtypes.bfloat16).tobytes() + np.float32(-5).tobytes()
    dump = read(tmp_path, with_header(header, data))
    assert dump.bad_slots == ()
    found = {tensor.dataset: values_of(tensor).tolist() for tensor in dump.outputs if isinstance(tensor, Tensor)}
    assert found == {"late": [-5.0], "none": [], "early": [1.0, 2.0, 3.0]}
    assert values_of(read_safetensor(str(tmp_path / "x.safetensors"), "early")).tolist() == [1.0, 2.0, 3.0]
    assert read(tmp_path, with_header({})).outputs == ()


def test_what_is_not_read_costs_no_other_tensor(tmp_path: Path) -> None:
    header = {"odd": entry("F6_E2M3", [4], 0, 3), "good": entry("I8", [2], 3, 5), "cut": entry("F32", [2], 5, 13)}
    dump = read(tmp_path, with_header(header, b"\0\0\0\1\2\0\0"))
    assert [slot for slot, _ in dump.bad_slots] == ["output:0", "output:2"]
    assert [reason.kind for _, reason in dump.bad_slots] == ["row.io.safetensors.type", "row.io.safetensors.cut_off"]
    (good,) = (tensor for tensor in dump.outputs if isinstance(tensor, Tensor))
    assert values_of(good).tolist() == [1, 2]
    for name, kind in (("odd", "tensor"), ("cut", "tensor"), ("other", "no_name")):
        with pytest.raises(FormatError) as caught:
            read_safetensor(str(tmp_path / "x.safetensors"), name)
        assert caught.value.kind == f"io.safetensors.{kind}"


ONE = entry("F32", [2], 0, 8)
DAMAGED = {
    "no length": (b"\0" * 4 + b"\0\0\0\0{", "not_json"),
    "length past the end": (b"\xff\xff\0\0\0\0\0\0{}", "length"),
    "length of terabytes": (b"\xff\xff\xff\xff\0\0\0\0{}", "length"),
    "no JSON": (with_header(b"{'a': 1}"), "not_json"),
    "NaN": (with_header(b'{"a": NaN}'), "not_json"),
    "no UTF-8": (with_header(b'{"\xff": 1}'), "not_json"),
    "digits": (with_header(b'{"a": ' + b"9" * 100_000 + b"}"), "not_json"),
    "nested": (with_header(b'{"a": ' + b"[" * 1_000_000), "not_json"),
    "twice": (with_header(b'{"a": 1, "a": 1}'), "twice"),
    "a number": (with_header({"a": 1}), "entry"),
    "no type": (with_header({"a": {**ONE, "dtype": 3}}, b"12345678"), "entry"),
    "no shape": (with_header({"a": {**ONE, "shape": None}}, b"12345678"), "entry"),
    "true as an extent": (with_header({"a": {**ONE, "shape": [True, 2]}}, b"12345678"), "entry"),
    "negative": (with_header({"a": {**ONE, "shape": [-1, -2]}}, b"12345678"), "entry"),
    "half an extent": (with_header({"a": {**ONE, "shape": [0.5, 4]}}, b"12345678"), "entry"),
    "three offsets": (with_header({"a": {**ONE, "data_offsets": [0, 8, 8]}}, b"12345678"), "entry"),
    "backwards": (with_header({"a": entry("F32", [2], 8, 0)}, b"12345678"), "entry"),
    "half a character": (with_header(b'{"\\ud800": ' + json.dumps(ONE).encode() + b"}", b"12345678"), "entry"),
    "many axes": (with_header({"a": entry("I8", [1] * 40, 0, 1)}, b"1"), "axes"),
    "behind the last": (with_header({"a": ONE}, b"12345678+"), "gap"),
    "gap": (with_header({"a": ONE, "b": entry("I8", [1], 9, 10)}, b"1234567890"), "gap"),
    "gap at the start": (with_header({"a": entry("I8", [1], 1, 2)}, b"12"), "gap"),
    "overlap": (with_header({"a": ONE, "b": entry("F32", [1], 4, 8)}, b"12345678"), "overlap"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_header_is_refused(name: str, tmp_path: Path) -> None:
    content, reason = DAMAGED[name]
    error = refused(tmp_path, content, reason)
    assert error.kind == "io.safetensors.header"
    assert error.offset is not None
    assert 0 <= error.offset <= len(content)


def test_the_place_of_what_is_wrong(tmp_path: Path) -> None:
    text = '{"äö": 1, }'.encode()
    assert refused(tmp_path, with_header(text), "not_json").offset in range(8 + 10, 8 + len(text))
    content = with_header({"a": ONE}, b"12345678+")
    assert refused(tmp_path, content, "gap").offset == len(content) - 1


@pytest.mark.parametrize(("shape", "end"), [([3], 8), ([1 << 60], 8), ([2], 1 << 60), ([], 8)])
def test_a_size_that_does_not_fit(shape: list[int], end: int, tmp_path: Path) -> None:
    error = refused(tmp_path, with_header({"a": entry("F32", shape, 0, end)}, b"12345678"))
    assert error.kind in ("io.safetensors.claims", "io.impossible_shape")


def test_a_large_header_is_read_in_time_and_room(tmp_path: Path) -> None:
    count = 20_000
    header = {f"model.layers.{number}.mlp.weight": entry("I8", [1], number, number + 1) for number in range(count)}
    path = tmp_path / "x.safetensors"
    path.write_bytes(with_header(header, bytes(count)))
    tracemalloc.start()
    started = time.monotonic()
    assert len(open_op_dump(str(path)).outputs) == count
    assert time.monotonic() - started < 30
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()


def test_a_header_is_read_once_for_all_its_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But again where the file has changed."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes({"a": np.zeros(2), "b": np.ones(2)}))
    opened = []
    real = safetensors_file._by_name

    def counted(path: str) -> Any:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(safetensors_file, "_by_name", counted)
    monkeypatch.setattr(safetensors_file, "may_change_unseen", lambda *_: False)
    assert [read_safetensor(str(path), name).dataset for name in "abab"] == [*"abab"]
    assert len(opened) == 1
    path.write_bytes(safetensors_bytes({"a": np.zeros(3)}))
    assert read_safetensor(str(path), "a").shape == (3,)
    assert len(opened) == 2


def test_the_registry_tells_the_formats_apart(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(safetensors_bytes({"a": np.zeros(2)}))
    (tmp_path / "y").write_bytes(torch_bytes(np.zeros(2)))
    assert not has_one_tensor(str(tmp_path / "x"))
    assert has_one_tensor(str(tmp_path / "y"))
    (tensor,) = open_op_dump(str(tmp_path / "y")).outputs
    assert isinstance(tensor, Tensor)
    assert (tensor.dtype, tensor.shape, tensor.dataset) == ("float64", (2,), "")


# --- commands ---------------------------------------------------------------------------------------------------------

RIGHT = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The same tensor in every format, in `.pt` as a view, and a wrong one."""
    wrong = RIGHT.copy()
    wrong[1, 2] += 1
    tensors = {"norm": np.zeros(5, ml_dtypes.bfloat16), "up": RIGHT, "wrong": wrong}
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes(tensors))
    (tmp_path / "x.pt").write_bytes(torch_bytes(np.ascontiguousarray(RIGHT.T), (1, 3), 0, (3, 4)))
    np.save(tmp_path / "x.npy", RIGHT)
    return tmp_path


def test_pt_shows_each_tensor_with_its_name(files: Path) -> None:
    shown = tool("pt", "x.safetensors", cwd=files).text
    assert all(name in shown for name in ("norm", "up", "wrong", "output:2"))
    only = tool("pt", "x.safetensors:output:1", cwd=files).text
    assert "up" in only
    assert "norm" not in only
    shown = tool("pt", "x.pt", cwd=files).text
    assert "output:0" not in shown
    assert f"{RIGHT.max():.4g}"[:5] in shown


def test_dc_writes_the_values(files: Path) -> None:
    tool("dc", "x.safetensors", "-o", "out", cwd=files)
    tool("dc", "x.pt", "-o", "out", cwd=files)
    arrays = {path.name: np.load(path) for path in (files / "out").rglob("*.npy")}
    assert len(arrays) == 4
    same = [name for name, array in arrays.items() if np.array_equal(array, RIGHT)]
    assert sorted(same) == ["x.pt.output.0.npy", "x.safetensors.output.1.npy"]


@pytest.mark.parametrize("other", ["x.npy", "x.pt", "x.safetensors:output:1"])
def test_two_files_are_compared(other: str, files: Path) -> None:
    equal, differ = (tool("cp", name, other, "--json", cwd=files).json for name in ("x.pt", "x.safetensors:output:2"))
    assert (equal["all_close"], equal["worst_relative"]) == (True, [])
    assert not differ["all_close"]
    assert [worst["index"] for worst in differ["worst_relative"]] == [[1, 2]]
