"""What every place of files must keep to, and that readers need nothing else of it."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from memory_store import MemoryStore
from range_server import serving

from precision_tool.lib import extensions
from precision_tool.lib.api import compare
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io import files
from precision_tool.lib.io.files import (
    check_folder,
    list_folder,
    local_file,
    mounted,
    open_binary,
    read_bytes,
    read_text,
    signature_of,
    store_of,
)
from precision_tool.lib.io.local import LocalStore
from precision_tool.lib.io.npy import NpyWriter, read_npy
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.io.stores import Entry, Kind, Store
from precision_tool.lib.io.urls import path_of
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError

#: What every store holds, below its root.
_FILES = (("b.bin", bytes(range(200))), ("a/c.txt", b"text\r\n"), ("a/empty", b""))


class ReadContract:
    """Every store is held against this; its fixture `store` sets `root` and puts `_FILES` below it."""

    root: str

    def test_any_range_is_read(self, store: Store) -> None:
        with store.open(f"{self.root}/b.bin") as file:
            assert (file.size, file.path) == (200, f"{self.root}/b.bin")
            assert file.read_at(190, 10) == bytes(range(190, 200))
            assert file.read_at(3, 0) == b""
            buffer = bytearray(4)
            file.read_into(7, memoryview(buffer))
            assert buffer == bytes((7, 8, 9, 10))

    def test_a_read_is_whole_or_an_error(self, store: Store) -> None:
        with store.open(f"{self.root}/b.bin") as file, pytest.raises(FormatError, match=r"b\.bin"):
            file.read_at(195, 6)
        with store.open(f"{self.root}/a/empty") as file, pytest.raises(FormatError):
            file.read_at(0, 1)

    def test_many_threads_read_one_file(self, store: Store) -> None:
        with store.open(f"{self.root}/b.bin") as file, ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda at: file.read_at(at, 2), range(0, 198, 2)))
        assert b"".join(found) == bytes(range(198))

    def test_what_is_there_is_told(self, store: Store) -> None:
        file, folder = store.stat(f"{self.root}/b.bin"), store.stat(f"{self.root}/a")
        assert file is not None
        assert folder is not None
        assert (file.kind, file.size, folder.kind) == (Kind.FILE, 200, Kind.FOLDER)
        assert file.signature[0] == 200
        assert file.signature[3:] != folder.signature[3:]
        assert store.stat(f"{self.root}/none") is None
        assert store.stat(f"{self.root}/b.bin/none") is None

    def test_names_are_listed_in_order(self, store: Store) -> None:
        assert list(store.entries(self.root)) == [
            Entry(name="a", kind=Kind.FOLDER), Entry(name="b.bin", kind=Kind.FILE)
        ]  # fmt: skip
        assert [one.name for one in store.entries(f"{self.root}/a")] == ["c.txt", "empty"]

    @pytest.mark.parametrize("name", ["none", "b.bin", "a/none/none"])
    def test_what_is_no_folder_is_not_found(self, store: Store, name: str) -> None:
        with pytest.raises(DataNotFoundError, match=name):
            store.entries(f"{self.root}/{name}")

    def test_what_is_no_file_cannot_be_opened(self, store: Store) -> None:
        with pytest.raises(DataNotFoundError, match="none"):
            store.open(f"{self.root}/none")
        with pytest.raises(FormatError, match="folder"):
            store.open(f"{self.root}/a")

    def test_the_real_path_is_one_of_the_same_file(self, store: Store) -> None:
        real = store.real(f"{self.root}/b.bin")
        assert store.stat(real) == store.stat(f"{self.root}/b.bin")


class StoreContract(ReadContract, ABC):
    """Every store that is written to is held against this too."""

    @abstractmethod
    def make(self, folder: Path) -> Store:
        """A store; what it holds lies below `root`, which it sets."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        store = self.make(tmp_path)
        for name, data in _FILES:
            with store.create(f"{self.root}/{name}") as file:
                file.write_at(0, data)
        return store

    def test_a_file_appears_when_it_is_complete(self, store: Store) -> None:
        path = f"{self.root}/new/deep/file"
        with store.create(path) as file:
            file.write_at(3, b"def")
            file.write_at(0, b"abc")
            assert store.stat(path) is None
        with store.open(path) as written:
            assert written.read_at(0, written.size) == b"abcdef"
        assert [one.name for one in store.entries(f"{self.root}/new/deep")] == ["file"]

    def test_a_file_that_failed_leaves_the_old_one(self, store: Store) -> None:
        path = f"{self.root}/a/c.txt"
        with suppress(KeyError), store.create(path) as file:
            file.write_at(0, b"half")
            raise KeyError
        with store.open(path) as kept:
            assert kept.read_at(0, kept.size) == b"text\r\n"
        assert [one.name for one in store.entries(f"{self.root}/a")] == ["c.txt", "empty"]

    def test_a_changed_file_has_another_signature(self, store: Store) -> None:
        path = f"{self.root}/a/c.txt"
        before = store.stat(path)
        with store.create(path) as file:
            file.write_at(0, b"other\n")
        after = store.stat(path)
        assert before is not None
        assert after is not None
        assert before.signature != after.signature


class TestLocalStore(StoreContract):
    """The disk."""

    def make(self, folder: Path) -> Store:
        self.root = str(folder / "files")
        return LocalStore()

    def test_a_link_to_nothing_is_no_file(self, store: Store) -> None:
        (Path(self.root) / "a" / "link").symlink_to("nowhere")
        assert store.entries(f"{self.root}/a")[2] == Entry(name="link", kind=None)
        assert store.stat(f"{self.root}/a/link") is None


class TestMemoryStore(StoreContract):
    """Memory, as a stand-in for any place that is no disk."""

    def make(self, folder: Path) -> Store:
        self.root = "/memory"
        return MemoryStore()


class TestUrlStore(StoreContract):
    """What fsspec reaches: here memory, by its URL."""

    def make(self, folder: Path) -> Store:
        pytest.importorskip("fsspec")
        self.root = path_of(f"memory://contract/{folder.name}")
        return store_of(self.root)


class TestHttpStore(ReadContract):
    """A server that lists folders and answers requests for ranges."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        pytest.importorskip("fsspec")
        for name, data in _FILES:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
        with serving(tmp_path) as served:
            self.root = path_of(served.url)
            yield store_of(self.root)


_VAULT = """
from memory_store import MemoryStore

class VaultStore(MemoryStore):
    def __init__(self, path):
        super().__init__()
        self.first_path = path
"""


class TestEntryPointStore(StoreContract):
    """A third party's, which is installed with an entry point and found by the scheme of a URL."""

    @pytest.fixture(autouse=True)
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        site = tmp_path / "site"
        info = site / "vault-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "vault_store.py").write_text(_VAULT)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[precision_tool.stores]\nvault = vault_store:VaultStore\n")
        monkeypatch.syspath_prepend(site)
        monkeypatch.setattr(files, "_remote", {})
        monkeypatch.setattr(extensions, "_installed", extensions._installed.__wrapped__)  # without its cache

    def make(self, folder: Path) -> Store:
        self.root = path_of("vault://safe/run")
        return store_of(self.root)

    def test_it_is_made_once_with_the_path_and_read_by_every_function(self, store: Store) -> None:
        assert type(store).__module__ == "vault_store"
        assert store.first_path == self.root  # type: ignore[attr-defined]  # of the third party's
        assert store_of(f"{self.root}/a/c.txt") is store
        assert list_folder(self.root) == ["a", "b.bin"]
        assert read_text(f"{self.root}/a/c.txt") == "text\n"
        with files.atomic_text(f"{self.root}/new.txt") as file:
            file.write("new")
        assert read_bytes(f"{self.root}/new.txt") == b"new"
        with pytest.raises(DataNotFoundError):
            read_bytes(f"{self.root}/none")


@pytest.fixture
def in_memory(tmp_path: Path) -> MemoryStore:
    """A demo's data folder that is not on a disk any more."""
    generate_demo(tmp_path / "data", fault="fused")
    store = MemoryStore()
    store.put_tree(tmp_path / "data", "/run")
    shutil.move(tmp_path / "data", tmp_path / "moved")
    return store


def test_a_run_in_memory_is_compared_as_one_on_the_disk(tmp_path: Path, in_memory: MemoryStore) -> None:
    moved = tmp_path / "moved"
    on_disk = compare(moved / "npu/debug_0", moved / "tf/dump", workers=1)
    with mounted("/run", in_memory):
        found = compare("/run/npu/debug_0", "/run/tf/dump", workers=1)
        shared = compare("/run/npu/debug_0", "/run/tf/dump", executor=ThreadPoolExecutor(2))
    assert [one.graph_path for one in found] == [
        str(one.graph_path).replace(str(moved), "/run") for one in on_disk
    ]  # fmt: skip
    for one in (found, shared):
        assert [repr(result.to_numpy().tolist()) for result in one] == [
            repr(result.to_numpy().tolist()) for result in on_disk
        ]
        assert sum(row.metrics is not None for result in one for row in result.rows) > 50


def test_what_is_damaged_in_memory_is_a_row_with_its_reason(in_memory: MemoryStore) -> None:
    path = next(path for path in sorted(in_memory.files) if "/npu/debug_0/dump/" in path and "Conv2D" in path)
    in_memory.put(path, in_memory.files[path][:100])
    with mounted("/run", in_memory):
        (result,) = compare("/run/npu/debug_0", "/run/tf/dump", workers=1)
    assert any(path in str(row.reason) for row in result.rows)
    assert sum(row.metrics is not None for row in result.rows) > 50


def test_a_tensor_is_written_to_and_read_from_memory() -> None:
    store = MemoryStore()
    with mounted("/run", store):
        with NpyWriter("/run/x.npy", np.dtype("f4"), (2, 3)) as writer:
            writer.write(((0, 2), (0, 3)), (2, 3), np.arange(6, dtype="f4"))
        assert read_npy("/run/x.npy").shape == (2, 3)
        (tensor,) = open_op_dump("/run/x.npy").outputs
        assert tensor is not None
        assert tensor.nbytes == 24
    with pytest.raises(DataNotFoundError):
        read_npy("/run/x.npy")


def test_helpers_read_any_store() -> None:
    store = MemoryStore()
    store.put("/run/a.txt", "ä\r\nb".encode())
    with mounted("/run", store):
        assert read_bytes("/run/a.txt") == "ä\r\nb".encode()
        assert read_text("/run/a.txt") == "ä\nb"
        with open_binary("/run/a.txt") as file:
            assert (file.read(2), file.read(), file.seek(0), file.readline()) == (
                "ä".encode(),
                b"\r\nb",
                0,
                "ä\r\n".encode(),
            )
        assert list_folder("/run") == ["a.txt"]
        assert signature_of("/run/a.txt") is not None
        check_folder("/run")
        for path in ("/run/none", "/run/a.txt"):
            with pytest.raises(DataNotFoundError, match=path):
                check_folder(path)
        with pytest.raises(FormatError, match="too large"):
            read_bytes("/run/a.txt", limit=3)
        with pytest.raises(FormatError, match="not on a disk"):
            local_file("/run/a.txt")


def test_only_what_lies_below_is_of_the_store(tmp_path: Path) -> None:
    store = MemoryStore()
    with mounted("/run/x", store):
        assert store_of("/run/x") is store
        assert store_of("/run/x/../x/y") is store
        assert isinstance(store_of("/run/xy"), LocalStore)
        assert isinstance(store_of(tmp_path), LocalStore)
        with pytest.raises(ValueError, match="mounted already"), mounted("/run/x/", store):
            pass
    assert isinstance(store_of("/run/x"), LocalStore)
    with pytest.raises(ValueError, match="no absolute path"), mounted("run", store):
        pass


def test_an_h5_file_of_another_store_is_refused() -> None:
    store = MemoryStore()
    store.put("/run/a.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
    store.put("/run/b.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
    with mounted("/run", store), pytest.raises(PrecisionToolError, match="not on a disk"):
        compare("/run/a.h5", "/run/b.h5")


def test_of_mounts_in_one_another_the_inner_one_counts() -> None:
    outer, inner = MemoryStore(), MemoryStore()
    for paths in ((("/run", outer), ("/run/deep", inner)), (("/run/deep", inner), ("/run", outer))):
        with ExitStack() as stack:
            for path, store in paths:
                stack.enter_context(mounted(path, store))
            assert store_of("/run/deep/x") is inner
            assert store_of("/run/deeper") is outer
