"""Lines to be copied name folders as a shell takes them, whatever their names."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import tool
from report_files import data_of
from tiny_network import layers

ODD = "my $HOME's é `x`"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    network = layers().with_part("one/MatMul", wrong=lambda array: -array)
    network.write(tmp_path / ODD / "precision_data")
    return tmp_path


def word_behind(option: str, said: str) -> str:
    """The word that a shell sees behind an option in a line to be copied."""
    (line,) = re.findall(rf"{option} (\S.*)", said)
    return shlex.split(line)[0]


def test_the_folder_that_looks_like_one(folder: Path) -> None:
    said = tool("--data", ODD, "ls", cwd=folder, code=2).err
    assert word_behind("looks like one: --data", said) == f"{ODD}/precision_data"
    inside = folder / ODD / "precision_data"
    said = tool("ls", cwd=inside / "npu" / "debug_0", code=2).err
    assert word_behind("looks like one: --data", said) == str(inside)


def test_the_next_steps_and_the_earlier_verdict(folder: Path) -> None:
    data = f"{ODD}/precision_data"
    first = tool("--data", data, "ac", "-c", cwd=folder).out
    (line,) = (line for line in first.splitlines() if line.endswith(" ni one/MatMul"))
    assert shlex.split(line) == ["precision-tool", "--data", data, "ni", "one/MatMul"]
    shutil.rmtree(folder / data / "npu")
    layers().write(folder / data)  # mended, and collected again
    said = tool("--data", data, "ac", "-c", cwd=folder).err
    (command,) = re.findall(r"named one/MatMul: `precision-tool (.*)` checks it again", said)
    assert shlex.split(command)[:2] == ["--data", data]
    assert tool(*shlex.split(command), cwd=folder).out.count("Since the earlier verdict") == 1


def test_the_next_steps_name_the_work_folder_that_was_given(folder: Path) -> None:
    work = "my work's"
    said = tool("--data", f"{ODD}/precision_data", "--work", work, "ac", "-c", cwd=folder).out
    (line,) = (line for line in said.splitlines() if line.endswith(" ni one/MatMul"))
    options = shlex.split(line)
    assert options[options.index("--work") + 1] == work
    assert "computes incorrectly" in tool(*options[1:], cwd=folder).out


def test_the_next_steps_of_the_report(folder: Path) -> None:
    data = f"{ODD}/precision_data"
    tool("--data", data, "ac", "-c", "--report", "report.html", cwd=folder)
    steps = data_of(folder / "report.html")["results"][0]["verdict"]["next"]
    assert ["precision-tool", "--data", data, "ni", "one/MatMul"] in [shlex.split(step["line"]) for step in steps]


def test_the_script_of_a_reproduction(folder: Path) -> None:
    shown = tool("--data", f"{ODD}/precision_data", "repro", "one/MatMul", cwd=folder).out
    assert (folder / word_behind("python3", shown)).is_file()
