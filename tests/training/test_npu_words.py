"""`npu_dump` and the old word `npu_overflow`: the command runs as typed, in the user's shell, with one flag set."""

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
from training_side import REPO, WORD, run_script

from precision_tool.lib.cli.arguments import run_in_shell

SHOW = "import os; print({name: value for name, value in sorted(os.environ.items()) if 'PRECISION_TOOL_' in name})"
BOTH = ("PRECISION_TOOL_DUMP", "PRECISION_TOOL_OVERFLOW")


def word(cwd: Path, *arguments: str, code: int = 0, **env: str) -> tuple[str, str]:
    ran = run_script(sys.executable, WORD, cwd, *arguments, code=code, env=env)
    return ran.out, ran.err


@pytest.mark.parametrize(
    ("name", "flag"), [("npu_dump", "DUMP"), ("npu_dump --overflow", "OVERFLOW"), ("npu_overflow", "OVERFLOW")]
)
def test_the_command_sees_one_flag(tmp_path: Path, name: str, flag: str) -> None:
    (tmp_path / "show.py").write_text(SHOW, "utf-8")
    out, _ = word(
        tmp_path, *name.split(), f"{sys.executable} show.py", PRECISION_TOOL_DUMP="True", PRECISION_TOOL_OVERFLOW="1"
    )
    expected = {"PRECISION_TOOL_DATA": str(tmp_path / "precision_data"), f"PRECISION_TOOL_{flag}": "True"}
    assert out == f"{expected}\n"


def test_a_script_without_an_action_dumps(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text(
        "import collections, types, pathlib\n"
        "import precision_tool.tf_config as npu_tf_config\n"
        "op = types.SimpleNamespace(parameter_map=collections.defaultdict(types.SimpleNamespace))\n"
        "npu_tf_config.update_custom_op(op)\n"
        "path = pathlib.Path(op.parameter_map['dump_path'].s.decode())\n"
        "(path / '20240101000000').mkdir()\n"
        "print(path)\n",
        "utf-8",
    )
    out, err = word(tmp_path, "npu_dump", f"cd sub && {sys.executable} train.py")
    assert out == f"{tmp_path}/precision_data/npu/debug_0/dump\n"
    assert "nothing new" not in err
    _, err = word(tmp_path, "npu_dump", "true")
    assert "note: nothing new in precision_data/npu/debug_0/dump; does the script call tf_config" in err


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("true", 0), ("kill -9 $$", 137), ("no_such_command_here 2>/dev/null", 127)]
)
def test_the_exit_code_is_the_command_s(tmp_path: Path, command: str, code: int) -> None:
    word(tmp_path, "npu_dump", command, code=code)


def test_one_text_is_a_shell_s_and_words_are_themselves(tmp_path: Path) -> None:
    out, err = word(tmp_path, "npu_overflow", "echo to  stdout; echo to stderr >&2")
    assert (out, err.splitlines()[0]) == ("to stdout\n", "to stderr")
    out, _ = word(tmp_path, "npu_dump", "echo", "to  stdout;", "$HOME", "-n", "--overflow")
    assert out == "to  stdout; $HOME -n --overflow\n"


def test_no_command_is_told(tmp_path: Path) -> None:
    _, err = word(tmp_path, "npu_dump", code=2)
    assert "npu_dump: no command is given" in err


# --- the shell and its signals ---

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
