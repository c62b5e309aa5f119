"""A data folder that is not as `ac -c` takes it: a file where a folder should be, dumps of several ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import tool

from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import generate_ranks


@pytest.mark.parametrize("place", ["tf/dump", "npu/debug_0/dump"])
def test_a_file_where_a_folder_should_be_is_named(place: str, tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    generate_demo(data)
    shutil.rmtree(data / place)
    (data / place).write_bytes(b"")
    run = tool("ac", "-c", cwd=tmp_path, code=2)
    assert f"{place}: a file where a folder should be" in run.text


def test_dumps_of_several_ranks_are_sent_to_the_study(tmp_path: Path) -> None:
    generate_ranks(tmp_path, ranks=2, steps=1)
    run = tool("ac", "-c", cwd=tmp_path)
    last = run.out.splitlines()[-1]
    assert last == "2 dump folders of 2 ranks and 1 step: `precision-tool ac --all` gives one verdict on them"


def test_a_report_says_which_folder_was_made_for_it(tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data")
    tool("ac", "-c", cwd=tmp_path)
    first = tool("report", "-o", "new/a.html", cwd=tmp_path)
    second = tool("report", "-o", "new/b.html", cwd=tmp_path)
    assert "created the folder new\n" in first.out
    assert "created the folder" not in second.out
    assert (tmp_path / "new" / "a.html").is_file()


def test_a_study_is_not_held_against_an_earlier_verdict(tmp_path: Path) -> None:
    run = tool("ac", "--all", "--since", cwd=tmp_path, code=2)
    assert run.err.startswith("error: ac: --since cannot be combined with --all\n")
