"""What the README says is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.session import Session
from precision_tool.lib.settings import Settings
from precision_tool.lib.shell.commands.base import Command
from precision_tool.lib.shell.commands.compare import AC, VC, VCS
from precision_tool.lib.words import find_word

REPO = Path(__file__).resolve().parents[1]
README = (REPO / "README.md").read_text("utf-8")
COMMANDS = {"ac": AC, "vc": VC, "vcs": VCS}


def options_of(command: Command) -> str:
    """The help of a command."""
    return command.parser(Session(Settings())).format_help()


def test_the_files_it_names_are_there() -> None:
    for name in re.findall(r"`((?:scripts|precision_tool)/[\w/.]+|config\.example\.py)`", README):
        assert (REPO / name).exists(), name


def test_the_commands_in_its_examples_are_words_with_those_options() -> None:
    calls = re.findall(r"precision-tool (?:--\w+ \S+ )*([a-z_]+)([^#\n`]*)", README)
    assert {word for word, _ in calls} >= {"ac", "vc", "vcs"}
    for word, rest in calls:
        known = find_word(word)
        assert known is not None, word
        for option in re.findall(r"(?<!\S)--?[a-z]+", rest):
            assert option in options_of(COMMANDS[known.name]), f"{word} {option}"


@pytest.mark.parametrize("option", ["-l", "--json", "--fail"])
def test_options_of_all_comparing_commands(option: str) -> None:
    for command in COMMANDS.values():
        assert option in options_of(command)


def test_every_option_has_help_and_every_command_an_example() -> None:
    for name, command in COMMANDS.items():
        parser = command.parser(Session(Settings()))
        assert all(action.help for action in parser._actions)
        assert f"example: {name}" in parser.format_help()


def test_its_output_of_the_demo_is_what_the_demo_prints(tmp_path: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (block,) = [text for text in blocks if text.startswith("$ precision-tool ac")]
    shown = [line for line in block.splitlines()[1:] if line != "…" and not line.startswith("result file")]
    generate_demo(tmp_path / "precision_data")
    run = subprocess.run(
        [sys.executable, "-m", "precision_tool", "ac", "-c"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    printed = [line.rstrip() for line in run.stdout.splitlines()]
    assert len(shown) > 15
    assert [line for line in shown if line not in printed] == []


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = generate_demo(tmp_path / "precision_data")
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "compare(" in block]
    exec(compile(code, "README.md", "exec"), {})
    assert str(truth.culprit) in capsys.readouterr().out
    assert (tmp_path / "result.csv").is_file()
