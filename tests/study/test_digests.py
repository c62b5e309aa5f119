"""What a vote keeps of a tensor, read once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from memory_store import MemoryStore

from precision_tool.lib.io.files import mounted
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.study import digests
from precision_tool.lib.study.digests import digest_of

SIZE = 1000


def stored(path: Path, array: np.ndarray, dtype: str, *, behind: bytes = b"", big_endian: bool = False) -> Tensor:
    data = array.tobytes()
    path.write_bytes(b"head" + data + behind)
    return Tensor(
        path=str(path), offset=4, nbytes=len(data) + len(behind), dtype=dtype, shape=(array.size // 10, 10),
        big_endian=big_endian,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "stored_as", "rounding"),
    [
        ("float64", np.dtype("f8"), 2.0**-52),
        ("float32", np.dtype("f4"), 2.0**-23),
        ("float32", np.dtype(">f4"), 2.0**-23),
        ("float16", np.dtype("f2"), 2.0**-10),
        ("bfloat16", np.dtype(ml_dtypes.bfloat16), 2.0**-7),
    ],
)
def test_hash_and_means_of_one_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, stored_as: np.dtype, rounding: float
) -> None:
    monkeypatch.setattr(digests, "_BLOCKS", 3)
    monkeypatch.setattr(digests, "_PIECE", 77)
    array = np.random.default_rng(3).standard_normal(SIZE).astype(stored_as)
    tensor = stored(tmp_path / "tensor", array, dtype, big_endian=stored_as.str.startswith(">"))
    found = digest_of(tensor, with_means=True)
    assert found.value == hashlib.sha256(array.tobytes()).hexdigest()[:32]
    assert found.value == digest_of(tensor).value
    assert digest_of(tensor).means is None
    assert found.means is not None
    parts = [array[start:end].astype(np.float64) for start, end in ((0, 333), (333, 666), (666, 1000))]
    assert found.means.means == pytest.approx([part.mean() for part in parts], rel=1e-12)
    assert found.means.sizes == pytest.approx([np.sqrt((part**2).mean()) for part in parts], rel=1e-12)
    assert found.means.rounding == rounding


def test_what_is_no_number_has_a_hash_alone(tmp_path: Path) -> None:
    numbers = np.arange(SIZE, dtype=np.int32)
    padded = np.ones(SIZE, np.float32)
    for tensor, data in (
        (stored(tmp_path / "whole", numbers, "int32"), numbers.tobytes()),
        (stored(tmp_path / "padded", padded, "float32", behind=b"\1" * 32), padded.tobytes() + b"\1" * 32),
    ):
        found = digest_of(tensor, with_means=True)
        assert found.value == hashlib.sha256(data).hexdigest()[:32]
        assert found.means is None


class _Counting(StoredFile):
    """Counts the bytes that are read of a file."""

    read = 0

    def __init__(self, file: StoredFile) -> None:
        self.path, self.size, self._file = file.path, file.size, file

    def read_into(self, offset: int, buffer: memoryview) -> None:
        _Counting.read += len(buffer)
        self._file.read_into(offset, buffer)

    def close(self) -> None:
        self._file.close()


class _CountingStore(MemoryStore):
    def open(self, path: str) -> StoredFile:
        return _Counting(super().open(path))


def test_bytes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Counting, "read", 0)
    store = _CountingStore()
    array = np.ones(SIZE, np.float32)
    tensor = stored(tmp_path / "tensor", array, "float32")
    store.put(tensor.path, (tmp_path / "tensor").read_bytes())
    with mounted(str(tmp_path), store):
        assert digest_of(tensor, with_means=True).means is not None
    assert _Counting.read == array.nbytes
