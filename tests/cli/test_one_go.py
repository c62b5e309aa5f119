"""`ac -c` reads the data once: how often files are opened, and how many of their bytes are read."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest

from precision_tool.lib.api import run
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.session import Session
from precision_tool.lib.storage.files import LocalFile


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], Counter[str]]:
    """How often each file was opened, and how many bytes of it were read, in this process."""
    opens: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    usual_open, usual_read = LocalFile.__init__, LocalFile.read_into

    def noted_open(self: LocalFile, path: str) -> None:
        opens[path] += 1
        usual_open(self, path)

    def noted_read(self: LocalFile, offset: int, buffer: memoryview) -> None:
        sizes[self.path] += len(buffer)
        usual_read(self, offset, buffer)

    monkeypatch.setattr(LocalFile, "__init__", noted_open)
    monkeypatch.setattr(LocalFile, "read_into", noted_read)
    return opens, sizes


@pytest.mark.parametrize("fault", ["fused", "nan", "scale"])
def test_every_file_is_opened_twice_and_read_once(
    tmp_path: Path, reads: tuple[Counter[str], Counter[str]], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Once for what it holds, once for the values: the comparison, its copies, casts, overflow, the fusion check."""
    data = tmp_path / "precision_data"
    generate_demo(data, fault=fault)
    opens, sizes = reads
    opens.clear()
    sizes.clear()
    # The verdict recomputes ops from values that it reads itself.
    monkeypatch.setattr(Session, "verdicts", lambda session, analyses, *_, **__: [None for _ in analyses])
    assert run("ac", "-c", "--workers", "1", data=data, file=io.StringIO()) == 0
    tensors = [path for path in data.rglob("*") if path.is_file() and {"dump", "tf"} & set(path.parts)]
    tensors = [path for path in tensors if str(path) in sizes]  # not what only has a name
    assert len(tensors) > 50
    assert max(opens[str(path)] for path in tensors) <= 2
    total = sum(path.stat().st_size for path in tensors)
    assert sum(sizes[str(path)] for path in tensors) <= 1.15 * total
