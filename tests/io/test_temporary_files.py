"""Files that were not finished: those of a process that has ended go at once, those of others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io.writing import new_folder, own_prefix, remove_leftovers, temporary_file

LEAVE = """
import os, sys
from precision_tool.lib.io.writing import own_prefix, temporary_file
temporary_file(sys.argv[1])
os.mkdir(os.path.join(sys.argv[1], own_prefix() + "dc-1-2.part"))
temporary_file(os.path.join(sys.argv[1], own_prefix() + "dc-1-2.part"))
open(os.path.join(sys.argv[1], own_prefix() + "dc-1-2.part", "complete.npy"), "w").close()
os.kill(os.getpid(), 9)
"""


def leave(folder: Path) -> None:
    """A process begins to write in a folder, and is killed."""
    subprocess.run([sys.executable, "-c", LEAVE, str(folder)], check=False)
    assert len([*folder.iterdir()]) >= 2


def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path: Path) -> None:
    handle, alive = temporary_file(str(tmp_path))
    os.close(handle)
    names = (".precision_tool-0badcafe-999999999-x.part", ".precision_tool-x.part", "mine.part", "a.npy")
    others = [tmp_path / name for name in names]
    for path in others:
        path.write_bytes(b"")
    leave(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    assert len(before) == 7
    remove_leftovers(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {os.path.basename(alive), *(path.name for path in others)}
    assert os.path.basename(alive).startswith(own_prefix())


def test_a_new_comparison_removes_what_killed_ones_left(tmp_path: Path) -> None:
    space = Workspace(tmp_path / "data", tmp_path / "work")
    killed, whole, running = (space.new_compare_dir() for _ in range(3))
    (whole / "result.csv").write_text("", "utf-8")
    for folder in (killed, whole):
        leave(folder)
    handle, alive = temporary_file(str(running))
    os.close(handle)
    made = space.new_compare_dir()
    files = {path.relative_to(made.parent) for path in made.parent.rglob("*") if path.is_file()}
    assert files == {Path(whole.name, "result.csv"), Path(running.name, os.path.basename(alive))}
    assert {path.name for path in made.parent.iterdir()} == {whole.name, running.name, made.name}


def test_a_new_folder_removes_what_killed_ones_left_beside_it(tmp_path: Path) -> None:
    leave(tmp_path)
    with new_folder(str(tmp_path / "package")) as place:
        Path(place, "op.json").write_text("{}", "utf-8")
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("package"), Path("package/op.json")]


def test_a_container_of_our_host_name_has_its_own_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a writer there nobody here knows whether it lives."""
    leave(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]")
    remove_leftovers(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.undo()
    remove_leftovers(str(tmp_path))
    assert [*tmp_path.iterdir()] == []
