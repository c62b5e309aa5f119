"""The vendor's toolkit: where it is found, and its programs as processes."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from toolkit_standin import make_toolkit

from precision_tool.lib.compare import toolkit as finder
from precision_tool.lib.compare.toolkit import ToolkitError, ToolRun, find_toolkit, run_tool, sourced_environment
from precision_tool.lib.messages.errors import DataNotFoundError

# --- where it is found ---


def test_the_known_places_below_the_root(tmp_path: Path) -> None:
    made = make_toolkit(tmp_path)
    found = find_toolkit(str(tmp_path), {})
    assert (found.atc, found.msaccucmp) == (str(made.atc), str(made.msaccucmp))
    assert found.root == str(tmp_path / "ascend-toolkit" / "latest")
    assert found.version == "8.0.RC1"
    assert found.set_env == str(tmp_path / "ascend-toolkit" / "set_env.sh")
    assert not found.searched


@pytest.mark.parametrize("variable", ["ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"])
def test_the_environment_names_the_toolkit(tmp_path: Path, variable: str) -> None:
    made = make_toolkit(tmp_path / "home of 'it'")
    latest = made.root / "ascend-toolkit" / "latest"
    found = find_toolkit(str(tmp_path / "none"), {variable: str(latest)})
    assert (found.atc, found.msaccucmp) == (str(made.atc), str(made.msaccucmp))
    assert found.set_env == str(made.root / "ascend-toolkit" / "set_env.sh")


def test_a_compiled_script(tmp_path: Path) -> None:
    made = make_toolkit(tmp_path, atc=None)
    compiled = made.msaccucmp.with_suffix(".pyc")
    made.msaccucmp.rename(compiled)
    assert find_toolkit(str(tmp_path), {}).msaccucmp == str(compiled)


def test_none_at_all(tmp_path: Path) -> None:
    found = find_toolkit(str(tmp_path / "none"), {})
    assert (found.root, found.atc, found.msaccucmp, found.version) == (None, None, None, "")
    with pytest.raises(DataNotFoundError, match="atc was not found in") as caught:
        found.need("atc")
    assert "CMD_ROOT_PATH" in caught.value.hint


def elsewhere(root: Path) -> tuple[Path, Path]:
    """The programs where nobody expects them."""
    made = make_toolkit(root / "elsewhere" / "made")
    odd = root / "a" / "b" / "c"
    (odd / "bin").mkdir(parents=True)
    atc, script = odd / "bin" / "atc", odd / "msaccucmp.py"
    made.atc.rename(atc)
    made.msaccucmp.rename(script)
    return atc, script


def test_a_search_finds_the_rest_and_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, memory = tmp_path / "root", tmp_path / "memory"
    atc, script = elsewhere(root)
    first = find_toolkit(str(root), {}, [memory])
    assert (first.atc, first.msaccucmp, first.searched) == (str(atc), str(script), True)
    monkeypatch.setattr(finder, "_search", lambda roots: pytest.fail("searched again"))
    assert find_toolkit(str(root), {}, [memory]) == first
    monkeypatch.undo()
    script.rename(script.with_name("gone.py"))
    assert find_toolkit(str(root), {}, [memory]).msaccucmp is None


def test_the_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    (deep / "msaccucmp.py").write_text("")
    assert find_toolkit(str(tmp_path), {}).msaccucmp is None
    near = tmp_path / "z"
    near.mkdir()
    (near / "msaccucmp.py").write_text("")
    assert find_toolkit(str(tmp_path), {}).msaccucmp == str(near / "msaccucmp.py")
    monkeypatch.setattr(finder, "_MAX_FOLDERS", 3)
    assert find_toolkit(str(tmp_path), {}).msaccucmp is None


def test_a_link_to_itself_and_a_damaged_memory(tmp_path: Path) -> None:
    root, memory = tmp_path / "root", tmp_path / "memory"
    elsewhere(root)
    os.symlink(root, root / "loop")
    memory.mkdir()
    (memory / "toolkit.json").write_text("{")
    assert find_toolkit(str(root), {}, [memory]).atc is not None


# --- runs: arguments, environment, log, time limit, survivors ---


def python(*words: str, tmp_path: Path, code: str, time_limit: float = 0, set_env: str | None = None) -> ToolRun:
    return run_tool(
        "trial", [sys.executable, "-c", code, *words], log=str(tmp_path / "log"), cwd=str(tmp_path),
        time_limit=time_limit, environment=None if set_env is None else sourced_environment(set_env),
    )  # fmt: skip


def test_arguments_are_no_shell_words(tmp_path: Path) -> None:
    words = ["with space", "quote'and\"", "$(touch x); rm *", "", "-o"]
    run = python(*words, tmp_path=tmp_path, code="import json, sys; print(json.dumps(sys.argv[1:]))")
    assert run.code == 0
    assert json.loads(Path(run.log).read_text()) == words
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_the_environment_of_set_env(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s "here" $HOME'
    folder.mkdir()
    script = folder / "set_env.sh"
    script.write_text("export TRIAL_VALUE='two words'\necho noise\n")
    run = python(tmp_path=tmp_path, code="import os; print(os.environ['TRIAL_VALUE'])", set_env=str(script))
    assert Path(run.log).read_text() == "two words\n"


def test_a_set_env_that_fails_leaves_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "set_env.sh"
    script.write_text("exit 3\n")
    monkeypatch.setenv("TRIAL_OWN", "mine")
    run = python(tmp_path=tmp_path, code="import os; print(os.environ['TRIAL_OWN'])", set_env=str(script))
    assert Path(run.log).read_text() == "mine\n"


def test_the_error_has_the_last_lines(tmp_path: Path) -> None:
    run = python(tmp_path=tmp_path, code="[print('line', n) for n in range(100)]; raise SystemExit(7)")
    error = run.failure("it made nothing")
    assert error.message.startswith("trial: it made nothing (exit code 7); its last output: line 92 | ")
    assert error.message.endswith("| line 99")
    assert run.log in error.hint


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_time_limit_ends_its_children_too(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open('pids', 'w').write(str(child.pid))\n"
        "print('thinking', flush=True)\n"
        "time.sleep(600)\n"
    )
    started = time.monotonic()
    with pytest.raises(ToolkitError, match=r"stopped after 1\.5 s; its last output: thinking") as caught:
        python(tmp_path=tmp_path, code=code, time_limit=1.5)
    assert time.monotonic() - started < 30
    assert "TOOLKIT_SECONDS" in caught.value.hint
    pid = int((tmp_path / "pids").read_text())
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for path in (plain, tmp_path / "none"):
        with pytest.raises(ToolkitError, match="cannot be run"):
            run_tool("trial", [str(path)], log=str(tmp_path / "log"), cwd=str(tmp_path))


def test_a_signal_is_named(tmp_path: Path) -> None:
    run = python(tmp_path=tmp_path, code="import os; os.kill(os.getpid(), 11)")
    assert "killed by signal 11" in run.failure("it made nothing").message
    assert os.path.getsize(run.log) == 0
    assert "it printed nothing" in run.failure("it made nothing").message
