"""Commands that words run for the user: their shell, their exit code, Ctrl+C."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import hear_signals

from precision_tool.lib.cli.arguments import run_in_shell

REPO = Path(__file__).resolve().parents[2]

SAVES = """
import pathlib, time
try:
    pathlib.Path("begun").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.6)
    pathlib.Path("saved").touch()
    raise SystemExit(7)
"""


@pytest.mark.parametrize(("shell", "form"), [("/bin/bash", "{}"), ("/bin/sh", "true && {}")])
def test_a_command_saves_after_ctrl_c(tmp_path: Path, shell: str, form: str) -> None:
    """A terminal sends the signal to all of them at once. The exit code is the shell's: dash has one of its own."""
    if not os.access(shell, os.X_OK):
        pytest.skip(f"{shell} does not exist here")
    command = form.format(f"{shlex.quote(sys.executable)} -c {shlex.quote(SAVES)}")
    process = subprocess.Popen(
        [sys.executable, "-m", "precision_tool", "npu_dump", command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO), "SHELL": shell},
        start_new_session=True,
        preexec_fn=hear_signals,  # noqa: PLW1509  # no threads here
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    code = process.wait(60)
    assert (tmp_path / "saved").exists()
    assert code in ((7,) if shell == "/bin/bash" else (7, 130))


@pytest.mark.parametrize("shell", ["/nonexistent", "", "/"])
def test_without_a_shell_of_the_user_sh_does(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert run_in_shell(["exit 3"]) == 3
    assert run_in_shell(["kill -TERM $$"]) == 128 + 15
