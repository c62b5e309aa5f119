"""The one way to open and list what the user has, and that nothing else opens it."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import precision_tool
from precision_tool.lib.io import files, writing
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError

PACKAGE = Path(precision_tool.__file__).parent

NO_FILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "no such file"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "a link to a file that does not exist"),
    "link to itself": (lambda path: path.symlink_to(path.name), "cannot be read .*symbolic links"),
    "folder": (Path.mkdir, "a folder where a file should be"),
    "FIFO": (os.mkfifo, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "below a file": (lambda path: path.parent.joinpath("x").touch(), "no such file"),
}


@pytest.mark.parametrize(("make", "words"), NO_FILE.values(), ids=NO_FILE)
@pytest.mark.parametrize("read", [files.open_binary, files.open_text, files.read_bytes])
def test_what_is_no_regular_file_is_refused(
    tmp_path: Path, make: Callable[[Path], object], words: str, read: Callable[[str], object]
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises((DataNotFoundError, FormatError), match=words):
        read(str(path))


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its path has to be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        with pytest.raises(FormatError, match="s: not a regular file"):
            files.read_bytes("s")


def test_a_zero_byte_in_a_name() -> None:
    for ask in (files.read_bytes, files.list_folder):
        with pytest.raises(DataNotFoundError, match="no such"):
            ask("a\0b")
    assert not files.is_folder("a\0b")


def test_a_whole_file_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_bytes(str(path), 5) == b"12345"
    with pytest.raises(FormatError, match="more than 4 bytes"):
        files.read_bytes(str(path), 4)


def test_text_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"ab\r\nc\xff")
    with pytest.raises(FormatError, match="byte 5 is not UTF-8"):
        files.read_text(str(path))
    assert files.read_text(str(path), errors="backslashreplace", newline="") == "ab\r\nc\\xff"
    assert files.read_text(str(path), errors="replace") == "ab\nc\ufffd"


def test_what_is_no_folder_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert files.list_folder(str(tmp_path / "empty")) == []
    for name, words in (("missing", "no such folder"), ("file", "a file where a folder should be")):
        path = str(tmp_path / name)
        assert not files.is_folder(path)
        with pytest.raises(DataNotFoundError, match=words):
            files.list_folder(path)
        with pytest.raises(DataNotFoundError, match=words):
            files.check_folder(path)

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for ask in (files.is_folder, files.check_folder, files.list_folder):
        with pytest.raises(FormatError, match="no permission to read this folder"):
            ask(str(tmp_path / "empty"))


def test_a_folder_is_locked_by_one(tmp_path: Path) -> None:
    held = writing.lock_folder(str(tmp_path), fcntl.LOCK_EX)
    assert held is not None
    with pytest.raises(BlockingIOError):
        writing.lock_folder(str(tmp_path), fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(held)
    free = writing.lock_folder(str(tmp_path), fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert free is not None
    os.close(free)


def test_no_log_is_written_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OutputError, match="log: cannot be written"):
        files.open_to_write(str(tmp_path / "log"))


# --- nobody else opens files ------------------------------------------------------------------------------------------

#: Modules that open otherwise, and what they open.
OTHERWISE = {
    "lib/io/local.py": "the one way",
    "lib/io/writing.py": "locks, and what is written",
    "cli.py": "/dev/null, and the log of an internal error that it has just made",
    "lib/compare/scheduler.py": "what the system tells of the container's processors",
    "lib/extensions.py": "the entry points of installed packages",
    "lib/cli/cmd_guide.py": "the guide of the package",
    "lib/cli/kernel_command.py": "the log of a command, in a folder that it has just made",
    "lib/messages/catalogue.py": "the catalogue of the package",
    "lib/messages/help_texts.py": "the Chinese of the help, which is the package's",
    "lib/training/benchmark_folder.py": "/proc/self/mountinfo",
    "lib/training/function_dump.py": "new files in a folder that it has just made",
    "lib/io/hdf5_child.py": "/proc/self/statm",
    "lib/messages/limits.py": "/proc/self/statm",
    "lib/training/passport.py": "what the system tells of its PCI devices",
    "lib/io/native/library.py": "the library that it has compiled itself",
    "lib/view/report_page.py": "the package's own page",
    "lib/view/reproduction.py": "the package's own script, and what is written into a new folder",
}


def openings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every call that opens a file by its name to read it, or may do so."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, words = ast.unparse(node.func), ast.unparse(node)
        is_method = isinstance(node.func, ast.Attribute) and called.rpartition(".")[2] in ("read_text", "read_bytes")
        is_descriptor = called == "os.open" and not any(flag in words for flag in ("O_DIRECTORY", "O_EXCL"))
        is_path = called.endswith("path.open") and not any(mode in words for mode in ("'w", '"w'))
        is_open = called in ("open", "io.open") and not any(f"'{mode}'" in words for mode in ("w", "wb"))
        if is_method or is_descriptor or is_path or is_open:
            yield node.lineno, words


def test_the_rule_finds_what_it_is_for() -> None:
    for text in (
        "open(p)",
        "io.open(p, 'rb')",
        "os.open(p, os.O_RDONLY)",
        "p.read_text()",
        "path.open()",
        "open(p, 'w+b')",
    ):
        assert [words for _, words in openings(ast.parse(text))], text
    for text in (
        "os.open(p, os.O_RDONLY | os.O_DIRECTORY)",
        "read_text(p)",
        "path.open('w')",
        "open(p, 'wb')",
        "run.open(True)",
    ):
        assert not [words for _, words in openings(ast.parse(text))], text


def test_every_file_of_the_user_is_opened_one_way() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in OTHERWISE:
            found += [f"{name}:{line}: {words}" for line, words in openings(ast.parse(path.read_text("utf-8")))]
    assert found == []


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_can_be_no_name_is_its_own_real_path(name: str) -> None:
    assert files.real_path(f"/x/../{name}") == f"/{name}"
