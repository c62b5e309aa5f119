"""Fed inputs into files and back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.training.saving import FeedWriter, SavedFeed, file_name, load_feed, read_feeds


def tensor(name: str, dtype: Any = np.float32, dtype_name: str = "") -> Any:
    """What of a tf.Tensor is looked at."""
    kind = SimpleNamespace(as_numpy_dtype=dtype, name=dtype_name or np.dtype(dtype).name)
    return SimpleNamespace(name=name, dtype=kind)


def saved_and_loaded(folder: Path, fed: Any, value: Any) -> Any:
    writer = FeedWriter(folder)
    writer.save(fed, value)
    assert writer.finish() == [fed.name]
    feeds = read_feeds(folder, [])
    assert feeds.left_out == {}
    return load_feed(folder, feeds.saved[0], fed)


def test_the_documented_name() -> None:
    assert file_name("tower_0/in/x:0") == "tower_0_in_x_0.npy"


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.float32, [[1, 2.5], [np.nan, -np.inf]]),
        (np.int64, 7),
        (np.bool_, [True, False]),
        (np.float16, np.arange(6.0).reshape(1, 2, 3)),
        (np.complex64, [1 + 2j]),
        (np.float32, np.zeros((0, 4))),
    ],
)
def test_numbers_come_back_as_the_tensor_s_type(tmp_path: Path, dtype: Any, value: Any) -> None:
    loaded = saved_and_loaded(tmp_path, tensor("x:0", dtype), value)
    assert loaded.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(loaded, np.asarray(value, dtype))


def test_bfloat16_comes_back(tmp_path: Path) -> None:
    value = np.asarray([1.5, -3.0], ml_dtypes.bfloat16)
    loaded = saved_and_loaded(tmp_path, tensor("x:0", ml_dtypes.bfloat16), value)
    assert loaded.dtype == value.dtype
    assert loaded.tobytes() == value.tobytes()


@pytest.mark.parametrize("value", [["ab", "ü"], [[b"ab"], [b""]], "one"])
def test_texts_come_back_as_bytes(tmp_path: Path, value: Any) -> None:
    loaded = saved_and_loaded(tmp_path, tensor("names:0", object, "string"), value)
    expected = np.vectorize(lambda text: text if isinstance(text, bytes) else text.encode(), otypes=[object])(value)
    assert loaded.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("fed", "value", "reason"),
    [
        (tensor("t:0", object, "string"), [b"a\0"], "text that ends with a zero byte"),
        (tensor("t:0", object, "string"), [1], "not a text"),
        (tensor("r:0", object, "resource"), object(), "no array of numbers (resource)"),
        (tensor("x:0"), [[1, 2], [3]], "no array of float32"),
        (tensor("x:0"), "text", "no array of float32"),
    ],
)
def test_what_cannot_be_saved_has_a_reason(tmp_path: Path, fed: Any, value: Any, reason: str) -> None:
    writer = FeedWriter(tmp_path)
    writer.save(fed, value)
    assert writer.finish() == []
    ((name, said),) = read_feeds(tmp_path, []).left_out.items()
    assert name == fed.name
    assert said.startswith(reason)
    assert [each.name for each in tmp_path.iterdir()] == ["feeds.json"]


def test_what_is_fed_again_properly_is_not_left_out(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path)
    writer.save(tensor("x:0"), "text")
    writer.save(tensor("x:0"), 1.0)
    assert writer.finish() == ["x:0"]
    assert read_feeds(tmp_path, []).left_out == {}


def test_names_that_become_alike_get_their_own_files(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path)
    names = ["a/b:0", "a_b:0", "a/b_0"]
    for number, name in enumerate(names):
        writer.save(tensor(name), number)
    writer.save(tensor("a/b:0"), 10)  # fed again
    assert writer.finish() == names
    feeds = read_feeds(tmp_path, [])
    assert [each.file for each in feeds.saved] == ["a_b_0.npy", "a_b_0.2.npy", "a_b_0.3.npy"]
    assert [float(load_feed(tmp_path, each, tensor(each.tensor))) for each in feeds.saved] == [10, 1, 2]


def test_without_a_manifest_the_documented_names_are_found(tmp_path: Path) -> None:
    np.save(tmp_path / "in_x_0.npy", np.arange(3, dtype=np.float32))
    assert read_feeds(tmp_path, ["in/x:0", "y:0"]).saved == (SavedFeed("in/x:0", "in_x_0.npy"),)
    assert read_feeds(tmp_path / "nowhere", ["in/x:0"]).saved == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"feeds": [{}], "left_out": {}}',
        '{"feeds": [{"tensor": "x:0", "file": "../x.npy"}], "left_out": {}}',
        '{"feeds": [], "left_out": {}, "train_ops": 1}',
        pytest.param("[" * 200_000, id="deep"),
    ],
)
def test_a_damaged_manifest_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "feeds.json").write_text(text, "utf-8")
    with pytest.raises(FormatError, match=r"feeds\.json: damaged"):
        read_feeds(tmp_path, [])


def test_damaged_files_are_told_and_pickles_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "x_0.npy").write_bytes(b"\x93NUMPY\x01\x00 cut off")
    with pytest.raises(FormatError, match=r"x_0\.npy: cannot be read"):
        load_feed(tmp_path, SavedFeed("x:0", "x_0.npy"), tensor("x:0"))
    np.save(tmp_path / "y_0.npy", np.asarray([{}], object), allow_pickle=True)
    with pytest.raises(FormatError, match=r"y_0\.npy: cannot be read"):
        load_feed(tmp_path, SavedFeed("y:0", "y_0.npy"), tensor("y:0"))
    with pytest.raises(DataNotFoundError, match=r"z_0\.npy: no such file"):
        load_feed(tmp_path, SavedFeed("z:0", "z_0.npy"), tensor("z:0"))


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 44,)}"), ""),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (17592186044416,)}"), "needs 70368744177664 bytes"),
        (npy("-" * 60_000), "EOF"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", bytes(11)), "needs 12 bytes, and 11 are there"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}", bytes(99)), "negative dimension"),
        (npy("(" * 100), ""),
        (b"PK\x03\x04" + bytes(100), "magic"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "version"),
    ],
)
def test_a_damaged_array_is_told_before_anything_is_made_for_it(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x_0.npy").write_bytes(content)
    with pytest.raises(FormatError, match=rf"x_0\.npy: cannot be read \(.*{reason}"):
        load_feed(tmp_path, SavedFeed("x:0", "x_0.npy"), tensor("x:0"))


def test_what_is_no_regular_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x_0.npy")
    with pytest.raises(FormatError, match=r"x_0\.npy: not a regular file"):
        load_feed(tmp_path, SavedFeed("x:0", "x_0.npy"), tensor("x:0"))
    os.mkfifo(tmp_path / "feeds.json")
    with pytest.raises(FormatError, match=r"feeds\.json: not a regular file"):
        read_feeds(tmp_path, [])


def test_column_major_arrays_are_read(tmp_path: Path) -> None:
    """Somebody may put a file there that numpy has saved from a transposed array."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.save(tmp_path / "x_0.npy", array)
    np.testing.assert_array_equal(load_feed(tmp_path, SavedFeed("x:0", "x_0.npy"), tensor("x:0")), array)


def test_the_manifest_is_plain(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path)
    writer.save(tensor("x:0"), [1.0])
    writer.finish()
    assert json.loads((tmp_path / "feeds.json").read_text("utf-8")) == {
        "version": 1,
        "feeds": [{"tensor": "x:0", "file": "x_0.npy"}],
        "left_out": {},
        "train_ops": [],
    }
