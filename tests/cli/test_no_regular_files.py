"""FIFOs and endless devices under the names of files that commands open: an error at once, in bounded memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import HANG, TOOL, environment, tool
from small_tree import faulty_chain, small_tree

Make = Callable[[Path], object]

#: More than any command needs on a small tree, less than a machine has.
LIMIT = f"--as={6 << 30}"

NO_FILES: dict[str, Make] = {"FIFO": os.mkfifo, "endless": lambda path: path.symlink_to("/dev/zero")}

#: Commands that open the file `named`; they run in a folder with a small tree.
COMMANDS = (
    "vcs -f named",
    "vc --custom named",
    "fusion show --file named",
    "fusion off AFusionPass --force --file named",
    "fusion reset --file named",
    "acl_json --check named",
    "ls -g named",
    "pt named",
    "vc --noise named",
)


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_a_file_that_is_named(tmp_path: Path, make: Make) -> None:
    """Each command at one prompt ends in an error that names the file, and the device is what it was."""
    small_tree(tmp_path / "precision_data", faulty_chain())
    make(tmp_path / "named")
    device = os.stat("/dev/zero")
    prompt = subprocess.run(
        ["prlimit", LIMIT, *TOOL],
        input="".join(f"{command}\n" for command in COMMANDS),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert prompt.returncode == 2
    errors = [line for line in prompt.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(COMMANDS), prompt.stderr
    for line in errors:
        assert "named: " in line
        assert "not a regular file" in line or "that is no file" in line
    assert os.stat("/dev/zero").st_rdev == device.st_rdev


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_a_file_that_is_found(tmp_path: Path, make: Make) -> None:
    """`mapping.csv` beside the dumps, the newest result, what a bisection left, the settings."""
    tree = small_tree(tmp_path / "precision_data", faulty_chain())
    make(tree.leaf / "mapping.csv")
    assert "mapping.csv: not a regular file" in tool("vc", cwd=tmp_path, prefix=("prlimit", LIMIT)).text
    (result,) = (tmp_path / "precision_data").rglob("result_*.csv")
    result.unlink()
    make(result)
    assert "not a regular file" in tool("vcs", cwd=tmp_path, code=2, prefix=("prlimit", LIMIT)).text
    state = tree.root / "temp" / "fusion_bisect" / "state.json"
    state.parent.mkdir()
    make(state)
    (tmp_path / "my.cfg").write_text("APass:on\n")
    assert "APass" in tool("fusion", "show", "--file", "my.cfg", cwd=tmp_path, prefix=("prlimit", LIMIT)).text
    make(tmp_path / "precision_config.py")
    told = tool("ls", cwd=tmp_path, code=2, prefix=("prlimit", LIMIT)).text
    assert "precision_config.py: not a regular file" in told
