"""How often `ac -c`, its verdict included, opens the files of a dump."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from precision_tool import cli
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.io import local


@pytest.mark.parametrize("word", ["vc", "ac"])
def test_each_file_is_opened_once(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    truth = generate_demo(tmp_path / "precision_data")
    opened: Counter[str] = Counter()
    real = local.open_descriptor

    def counted(path: str, *rest: int) -> int:
        opened[path] += 1
        return real(path, *rest)

    monkeypatch.setattr(local, "open_descriptor", counted)
    words = [word, "-c"] if word == "ac" else [word]
    folders = "--data", str(tmp_path / "precision_data"), "--work", str(tmp_path / "work")
    monkeypatch.setattr("sys.argv", ["precision-tool", *folders, *words, "--workers", "1"])
    assert not cli.main()
    capfd.readouterr()
    dumped = {str(path) for folder in (truth.dump_dir, truth.golden_dir) for path in folder.iterdir()}
    read = {path: count for path, count in opened.items() if path in dumped}
    assert len(read) >= truth.dump_files
    assert set(read.values()) == {1}
