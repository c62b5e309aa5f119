"""Files that were not finished: those of a process that has ended go at once, those of others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from precision_tool.lib.io.writing import own_prefix, remove_leftovers, temporary_file

LEAVE = """
import os, sys
from precision_tool.lib.io.writing import own_prefix, temporary_file
temporary_file(sys.argv[1])
os.mkdir(os.path.join(sys.argv[1], own_prefix() + "dc-1-2.part"))
temporary_file(os.path.join(sys.argv[1], own_prefix() + "dc-1-2.part"))
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path: Path) -> None:
    handle, alive = temporary_file(str(tmp_path))
    os.close(handle)
    names = (".precision_tool-0badcafe-999999999-x.part", ".precision_tool-x.part", "mine.part", "a.npy")
    others = [tmp_path / name for name in names]
    for path in others:
        path.write_bytes(b"")
    subprocess.run([sys.executable, "-c", LEAVE, str(tmp_path)], check=False)
    before = {path.name for path in tmp_path.iterdir()}
    assert len(before) == 7
    remove_leftovers(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {os.path.basename(alive), *(path.name for path in others)}
    assert os.path.basename(alive).startswith(own_prefix())
