"""How the tool is called: lines to copy begin so; the help of a word, the guide, and terminals without other signs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pexpect
import pytest
from command_line import HANG, environment, tool
from small_tree import Node, faulty_chain, small_tree, values

from precision_tool import __version__
from precision_tool.cli import main

REPO = Path(__file__).resolve().parents[2]
GUIDE = REPO / "precision_tool" / "GUIDE.md"


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a command prints that somebody types in `cwd`."""
    whole = {**environment(cwd), "PYTHONPATH": str(REPO), **(env or {})}
    return subprocess.run(
        command, cwd=cwd, env=whole, check=True, capture_output=True, encoding="utf-8", timeout=HANG
    ).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "the tool").symlink_to(REPO)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "precision-tool"
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom precision_tool.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    small_tree(tmp_path / "precision_data", faulty_chain())
    return tmp_path


@pytest.mark.parametrize(
    "called",
    [
        [sys.executable, "-m", "precision_tool"],
        [sys.executable, "the tool/precision_tool/cli.py"],
        [sys.executable, "the tool/cli.py"],
        ["bin/precision-tool"],
    ],
    ids=["module", "script", "from the parent of the clone", "installed elsewhere"],
)
def test_a_line_to_copy_runs_as_it_stands(folder: Path, called: list[str]) -> None:
    shown = run([*called, "ac", "-c"], folder)
    (line,) = {line.strip() for line in shown.splitlines() if re.search(r" ni \S+$", line)}
    assert shlex.split(line)[: len(called)] == called
    assert "dump analysis" in run(["/bin/sh", "-c", line], folder)


def test_the_layout_of_the_manual_works(tmp_path: Path) -> None:
    """The clone is `precision_tool` beside the training script, with nothing installed."""
    (tmp_path / "precision_tool").symlink_to(REPO)
    (tmp_path / "train.py").write_text(
        "import precision_tool.tf_config as npu_tf_config\n"
        "import precision_tool\n"
        "print(npu_tf_config.session_dump_config.__module__, npu_tf_config is precision_tool.tf_config)\n"
        "print(precision_tool.__version__)\n"
    )
    bare = [sys.executable, "-S", "-E", "-B"]
    shown = run([*bare, "train.py"], tmp_path).split()
    assert shown == ["precision_tool.tf_config", "True", __version__]
    for script in ("precision_tool/cli.py", "precision_tool/precision_tool/cli.py", "./precision_tool/cli.py"):
        assert run([*bare, script, "--version"], tmp_path) == f"precision-tool {__version__}\n"
    assert run([*bare, "precision_tool/cli.py", "--version"], REPO) == f"precision-tool {__version__}\n"


def test_installed_on_the_path_it_is_called_by_its_name(folder: Path) -> None:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    shown = run(["precision-tool", "ac", "-c"], folder, {"PATH": path})
    assert re.search(r"^ +precision-tool ni ", shown, re.MULTILINE)


def test_help_of_a_word_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "ac"]) == 0
    assert capsys.readouterr().out.startswith("usage: ac ")
    assert main(["help", "nothing"]) == 2
    assert "unknown command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-h"], "export a result as one self-contained HTML report"),
        (["ac", "--all", "-h"], "with --all on statistics dumps: size limit for the full dump it suggests, e.g. 50GB"),
    ],
)
def test_help_is_in_plain_english(capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    """What one reads first has the words of the field, as the verdict has."""
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert text in shown
    assert re.findall(r"computes? wrong|beside|anew|that is to tell|what it holds", shown) == []


def test_the_guide_is_printed_and_found(tmp_path: Path) -> None:
    for lang, name in (("en", "GUIDE.md"), ("zh", "GUIDE.zh-CN.md")):
        link, guide = GUIDE.with_name(name).read_text("utf-8").split("\n\n", 1)
        assert "](GUIDE" in link
        assert tool("--lang", lang, "guide", cwd=tmp_path).out == guide
        assert Path(tool("--lang", lang, "guide", "--path", cwd=tmp_path).out.strip()).name == name


def test_on_a_terminal_the_guide_comes_in_pages_as_wide_as_it(tmp_path: Path) -> None:
    env = {**environment(tmp_path), "TERM": "xterm", "PAGER": "cat", "PYTHONPATH": str(REPO)}
    del env["COLUMNS"]
    words = f"{sys.executable} -m precision_tool guide"
    shown = pexpect.run(words, cwd=str(tmp_path), env=env, timeout=HANG, dimensions=(50, 80)).decode().splitlines()
    assert shown[0].split() == GUIDE.read_text("utf-8").splitlines()[2].split()[1:]
    assert max(map(len, shown)) <= 80
    assert not any("`precision-tool" in line for line in shown)


def test_ascii_has_three_dots(folder: Path) -> None:
    for name, value in (("LANG", "C"), ("LC_ALL", "POSIX"), ("PYTHONIOENCODING", "ascii")):
        shown = run([sys.executable, "-m", "precision_tool", "ac", "-c"], folder, {name: value})
        assert "reshapes, ...)" in shown
        assert "\\u2026" not in shown


def test_the_guide_needs_no_escapes_in_ascii(tmp_path: Path) -> None:
    shown = run([sys.executable, "-m", "precision_tool", "guide"], tmp_path, {"LC_ALL": "C"})
    assert re.findall(r"\\u[0-9a-f]{4}", shown) == []
    assert re.findall(r"\\u[0-9a-f]{4}", GUIDE.read_text("utf-8")) == []


def test_ls_keeps_names_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    names = [f"tower_{number}/gradients/block_{number}/unit_1/bottleneck/conv2/Conv2D_grad" for number in range(3)]
    ops = [Node(name=name, type="Conv2DBackpropFilterD", output=values(1, 2)) for name in names]
    small_tree(tmp_path / "precision_data", ops)
    env = {**environment(tmp_path), "TERM": "xterm", "PYTHONPATH": str(REPO)}
    del env["COLUMNS"]
    shown = pexpect.run(
        f"{sys.executable} -m precision_tool ls", cwd=str(tmp_path), env=env, timeout=HANG, dimensions=(50, 80)
    )
    lines = [line.strip() for line in shown.decode().splitlines()]
    assert [name for name in names if name not in lines] == []
