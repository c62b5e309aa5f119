"""The manual page: what the help says, in what `man` reads without a warning."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import tool

from precision_tool.lib.cli.command import load_command
from precision_tool.lib.cli.words import LISTED, WORDS
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.session import Session


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    path = folder / "precision-tool.1"
    path.write_text(tool("--man", cwd=folder).out, "utf-8")
    return path


def test_every_command_with_every_option_is_in_it(page: Path) -> None:
    chapters = re.split(r"(?m)^\.SH ", page.read_text("utf-8").replace(r"\-", "-"))
    by_title = {chapter.partition("\n")[0].strip('"'): chapter for chapter in chapters}
    for word in (word for words in LISTED.values() for word in words):
        assert f"\\fB{word.name}" in by_title["COMMANDS"]
        chapter = by_title[f"{word.name.upper()} OPTIONS"]
        for action in load_command(word.name).parser(Session(Settings()))._actions:
            for option in action.option_strings if action.help != argparse.SUPPRESS else ():
                assert re.search(rf"(?m)^\\fB(?:-.*, )?{re.escape(option)}\b", chapter), option
    assert not {f"{word.name.upper()} OPTIONS" for word in WORDS if word.hidden} & set(by_title)
    assert r"\fB--data DIR\fR" in by_title["OPTIONS"].replace("\n", " ")


@pytest.mark.parametrize(
    "command", [["man", "--warnings", "-l"], ["mandoc", "-Tlint", "-Wwarning"]], ids=["man", "mandoc"]
)
def test_it_is_read_without_a_warning(page: Path, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    env = {**os.environ, "MANWIDTH": "80", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"}
    ran = subprocess.run([*command, str(page)], capture_output=True, encoding="utf-8", env=env, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    if command[0] == "man":
        assert "ac [-c] [-l N]" in ran.stdout
    else:
        assert ran.stdout == ""
