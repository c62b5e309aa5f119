"""Folders and files without permission: every command says so, and none takes them for missing or empty."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import HANG, TOOL, Finished, environment, tool
from small_tree import SmallTree, faulty_chain, small_tree

#: For root permissions count only without these capabilities.
CAPABILITIES = "-dac_override,-dac_read_search"
AS_ANYBODY: tuple[str, ...] = ()
if os.geteuid() == 0:
    AS_ANYBODY = ("setpriv", f"--bounding-set={CAPABILITIES}", f"--inh-caps={CAPABILITIES}")

pytestmark = pytest.mark.skipif(
    bool(AS_ANYBODY) and shutil.which("setpriv") is None, reason="root may read everything, and there is no setpriv"
)


@pytest.fixture
def tree(tmp_path: Path) -> SmallTree:
    return small_tree(tmp_path / "precision_data", faulty_chain())


@contextmanager
def forbidden(path: Path) -> Iterator[None]:
    mode = path.stat().st_mode & 0o777
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


def run(tree: SmallTree, *words: str, code: int | None = 2) -> Finished:
    return tool(*words, cwd=tree.root.parent, code=code, prefix=AS_ANYBODY)


ASKED = {
    ".": (
        "vc",
        "ac -c",
        "random",
        "fusion",
        "fusion blame",
        "ls",
        "ni middle/Mul",
        "graphs",
        "overflow",
        "pt last/Sub",
    ),
    "npu": ("vc", "ac -c", "random", "fusion", "fusion blame", "ls", "ni middle/Mul", "graphs", "overflow"),
    "npu/debug_0": ("vc", "ac -c", "random", "fusion", "fusion blame", "ls", "graphs", "overflow", "pt last/Sub"),
    "npu/debug_0/dump": ("vc", "ac -c", "random", "fusion blame", "overflow"),
    "npu/debug_0/dump/*": ("vc", "ac -c", "random", "fusion blame", "overflow"),
    "npu/debug_0/graph": ("fusion", "fusion blame", "ls", "ni middle/Mul", "graphs"),
    "tf/dump": ("vc", "ac -c", "fusion blame"),
}


@pytest.mark.parametrize("place", ASKED)
def test_a_folder_without_permission(tree: SmallTree, place: str) -> None:
    """Each command at one prompt ends in an error that names the folder."""
    folder = next(tree.root.glob(place)) if "*" in place else tree.root / place
    cwd = tree.root.parent
    with forbidden(folder):
        prompt = subprocess.run(
            [*AS_ANYBODY, *TOOL],
            input="".join(f"{words}\n" for words in ASKED[place]),
            cwd=cwd,
            env=environment(cwd),
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG,
        )
    assert prompt.returncode == 2
    errors = [line for line in prompt.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(ASKED[place]), prompt.stderr
    for line in errors:
        assert str(folder.relative_to(cwd)) in line
        assert line.endswith(": no permission to read this folder")


def test_a_dump_that_is_left_out_is_told(tree: SmallTree) -> None:
    with forbidden(tree.dump_path):
        told = run(tree, "ls", code=0)
    assert "npu/debug_0/dump: no permission to read this folder; the run is treated as one without a dump" in told.text


def test_a_part_of_a_dump_is_left_out_and_told(tree: SmallTree) -> None:
    other = tree.copy_leaf("1", "model", "1", "0")
    with forbidden(other):
        told = run(tree, "vc", code=0)
    assert "1 folder of the dump cannot be read, the first" in told.text


def test_results_without_permission_are_made_elsewhere(tree: SmallTree) -> None:
    tool("vc", cwd=tree.root.parent)
    with forbidden(tree.root / "temp"):
        assert "no permission" in run(tree, "vcs").text
        assert "results go to precision_work instead" in run(tree, "vc", code=0).text
        assert "results in it are ignored" in run(tree, "vcs", code=0).text


@pytest.mark.parametrize("words", ["fusion off AFusionPass --force --file file", "vcs -f file", "vc --custom file"])
def test_a_file_without_permission(tree: SmallTree, words: str) -> None:
    path = tree.root.parent / "file"
    path.touch()
    with forbidden(path):
        told = run(tree, *words.split())
    assert "file: no permission to read it" in told.text
