"""Files that stay open while a command runs: opened once, never another file's bytes, none left open."""

from __future__ import annotations

import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from precision_tool.lib.io import local
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.local import shared_open_files
from precision_tool.lib.messages.errors import DataNotFoundError

#: Newer Pythons warn of what is tried here on purpose.
_FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were opened, in order."""
    paths: list[str] = []
    real = local.open_descriptor

    def noted(path: str) -> int:
        paths.append(path)
        return real(path)

    monkeypatch.setattr(local, "open_descriptor", noted)
    return paths


def _write(folder: Path, count: int) -> list[str]:
    paths = [folder / str(number) for number in range(count)]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    return [str(path) for path in paths]


def _first_bytes(path: str) -> bytes:
    with open_file(path) as file:
        return file.read_at(0, len(os.path.basename(path)))


def _says_its_name(path: str) -> bool:
    return _first_bytes(path).decode() == os.path.basename(path)


def _is_open(number: int, path: str) -> bool:
    """Whether a descriptor is that of a file; a thread of another test may have opened one under its number."""
    try:
        return os.path.samestat(os.fstat(number), os.stat(path))
    except OSError:
        return False


def test_each_file_is_opened_once_by_all_threads(tmp_path: Path, opened: list[str]) -> None:
    paths = _write(tmp_path, 30)
    with shared_open_files(), ThreadPoolExecutor(8) as pool:
        assert all(pool.map(_says_its_name, paths * 20))
    assert sorted(opened) == sorted(paths)


@_FORKS
def test_a_forked_process_finds_them_open(tmp_path: Path) -> None:
    paths = _write(tmp_path, 3)
    with shared_open_files():
        assert all(map(_says_its_name, paths))
        for path in paths:
            os.unlink(path)
        with get_context("fork").Pool(2) as pool:
            assert all(pool.map(_says_its_name, paths * 5))
    with pytest.raises(DataNotFoundError):
        open_file(paths[0])


def test_no_more_are_open_than_may_be(tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_OPEN_FILES", 4)
    paths = _write(tmp_path, 10)
    with shared_open_files():
        files = local._open_files[-1]
        assert all(map(_says_its_name, paths))
        assert len(files._open) == 4
        held = [open_file(path) for path in paths]  # those beyond are opened for themselves
        assert len(files._open) == 4
        for path, file in zip(paths, held, strict=True):
            assert file.read_at(0, 1).decode() == os.path.basename(path)
            file.close()
            file.close()
        before = len(opened)
        assert all(map(_says_its_name, list(files._open)))
        assert len(opened) == before


def test_what_is_still_read_when_the_block_ends_stays_open_until_it_is_closed(tmp_path: Path) -> None:
    paths = _write(tmp_path, 2)
    with shared_open_files():
        numbers = [_shared_number(path) for path in paths]
        held = open_file(paths[0])
    assert [_is_open(*one) for one in zip(numbers, paths, strict=True)] == [True, False]
    assert held.read_at(0, 1) == b"0"
    held.close()
    assert not _is_open(numbers[0], paths[0])


def _shared_number(path: str) -> int:
    open_file(path).close()
    return local._open_files[-1]._open[path].number


def test_blocks_in_one_another_end_with_the_outermost(tmp_path: Path, opened: list[str]) -> None:
    (path,) = _write(tmp_path, 1)
    with shared_open_files():
        with shared_open_files():
            assert _says_its_name(path)
        assert _says_its_name(path)
    assert opened == [path]
    assert _says_its_name(path)
    assert opened == [path, path]  # and then it is opened as ever
    assert not local._open_files


def test_a_file_that_grew_has_its_new_size_and_the_next_command_sees_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with shared_open_files():
        with open_file(str(path)) as file:
            assert file.size == 3
        with path.open("ab") as more:
            more.write(b"er")
        with open_file(str(path)) as file:
            assert file.size == 5
        (tmp_path / "new").write_bytes(b"another")
        os.replace(tmp_path / "new", path)
        with open_file(str(path)) as file:
            assert file.read_at(0, 5) == b"older"
    with open_file(str(path)) as file:
        assert file.read_at(0, 7) == b"another"


def test_what_is_no_file_is_an_error_each_time(tmp_path: Path) -> None:
    with shared_open_files():
        for _ in range(2):
            with pytest.raises(DataNotFoundError):
                open_file(str(tmp_path / "none"))
        (tmp_path / "none").write_bytes(b"none")
        assert _first_bytes(str(tmp_path / "none")) == b"none"


def test_the_limit_of_the_process_is_as_before_when_it_ends(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with shared_open_files():
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before[1]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@_FORKS
def test_a_fork_while_a_thread_opens_files_does_not_hang(tmp_path: Path) -> None:
    (path,) = _write(tmp_path, 1)
    with shared_open_files():
        taken, done = threading.Event(), threading.Event()

        def hold() -> None:
            with local._open_files[-1]._lock:
                taken.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait()
        child = os.fork()
        if not child:
            os._exit(0 if _says_its_name(path) else 1)
        done.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
