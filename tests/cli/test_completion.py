"""`completion`: what real shells offer by the script that it prints."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import tool
from small_tree import faulty_chain, small_tree
from terminal import Terminal

from precision_tool.lib.cli.words import LISTED, WORDS

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with data in `precision_data`, other data in `other`, the scripts, and the program in `bin`."""
    folder = tmp_path_factory.mktemp("shells")
    small_tree(folder / "precision_data", faulty_chain())
    (folder / "other" / "npu").mkdir(parents=True)
    for shell, name in (("bash", "pt.bash"), ("zsh", "_precision-tool"), ("fish", "pt.fish")):
        (folder / name).write_text(tool("completion", shell, cwd=folder).out, "utf-8")
    (folder / "bin").mkdir()
    program = folder / "bin" / "precision-tool"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -m precision_tool "$@"\n', "utf-8")
    program.chmod(0o755)
    return folder


def environment(folder: Path, *, installed: bool = True) -> dict[str, str]:
    """Without the program no name is found, but everything else is."""
    path = os.environ["PATH"]
    return {**os.environ, "PATH": f"{folder / 'bin'}:{path}" if installed else path, "HOME": str(folder)}


def offered_by_bash(folder: Path, *lines: str) -> list[set[str]]:
    asked = "".join(
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()\n"
        "_shtab_precision_tool 2>&1; echo ${COMPREPLY[@]}\n"
        for words in (" ".join(map(shlex.quote, ["precision-tool", *line.split(" ")])) for line in lines)
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"source {folder / 'pt.bash'}\n{asked}"],
        cwd=folder, env=environment(folder), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [set(line.split()) for line in ran.stdout.splitlines()]


def test_bash_offers_commands_options_files_and_names(folder: Path) -> None:
    (ops,) = ([op["name"] for op in graph["ops"]] for graph in tool("ls", "--json", cwd=folder).json["graphs"])
    offered = offered_by_bash(
        folder, "", "gr", "ac --fa", "ac --engine ", "graphs ", "fusion b", "--lang ", "ac -lt precision_da", "ni ",
        f"ni {ops[-1][:3]}", "--data other ni ", "pt precision_da", "--data = other ni ",  # as bash splits --data=other
    )  # fmt: skip
    assert offered[0] == {word.name for words in LISTED.values() for word in words}
    assert not offered[0] & {name for word in WORDS if word.hidden for name in (word.name, *word.aliases)}
    assert offered[1:7] == [
        {"graphs", "graph2json"}, {"--fail"}, {"native", "cann", "auto"}, {"diff"}, {"blame", "bisect"}, {"en", "zh"},
    ]  # fmt: skip
    assert offered[7] == {"precision_data"}
    assert offered[8] == set(ops)
    assert offered[9] == {name for name in ops if name.startswith(ops[-1][:3])}
    assert offered[10:] == [set(), {"precision_data"}, set()]


def test_names_that_a_shell_would_run_are_not_offered(tmp_path: Path) -> None:
    folder = tmp_path / "precision_data" / "npu" / "debug_0" / "dump" / "20240101000000" / "0" / "m" / "1" / "0"
    folder.mkdir(parents=True)
    stamp = "1.1.1600000000000000"
    for name in ("Relu.$(touch x)", "-rf.x", "~root.x", "=cmd.x", "[a-z].x", "Relu.relu"):
        (folder / f"{name}.{stamp}").write_bytes(b"")
    assert tool("completion", "--names", "tensor", cwd=tmp_path).out == "Relu.relu.1.1.1600000000000000\n"
    assert tool("completion", "--names", "op", cwd=tmp_path / "precision_data").out == ""
    assert "completion bash" in tool("completion", cwd=tmp_path, code=2).err


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_the_same(folder: Path) -> None:
    lines = ("gr", "ac --fa", "ac -overf", "ac --engine n", "ni ", "--data other ni ", "--data=other ni ")
    asked = "; echo ---; ".join(f"complete -C 'precision-tool {line}'" for line in lines)
    ran = subprocess.run(
        ["fish", "--no-config", "-c", f"source {folder / 'pt.fish'}; {asked}"],
        cwd=folder, env=environment(folder), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stderr == ""
    offered = [{line.split("\t")[0] for line in part.splitlines() if line} for part in ran.stdout.split("---")]
    (ops,) = ([op["name"] for op in graph["ops"]] for graph in tool("ls", "--json", cwd=folder).json["graphs"])
    assert offered == [
        {"graphs", "graph2json"},
        {"--fail"},
        {"-overflow_detection"},
        {"native"},
        set(ops),
        set(),
        set(),
    ]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_at_its_prompt(folder: Path) -> None:
    (ops,) = ([op["name"] for op in graph["ops"]] for graph in tool("ls", "--json", cwd=folder).json["graphs"])
    with Terminal(folder, program=("zsh", "-f", "-i"), env=environment(folder) | {"PROMPT": "> "}) as terminal:
        terminal.type(f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; print re''ady\r")
        terminal.expect("ready")
        for typed, completed in (
            ("ac --fa", "ac --fail"), ("tool", "toolkit"), ("ac --engine ca", "ac --engine cann"),
            (f"ni {ops[-1][:-1]}", f"ni {ops[-1]}"), ("ac -lt precision_d", "ac -lt precision_data/"),
        ):  # fmt: skip
            terminal.type(f"precision-tool {typed}\t")
            terminal.expect(f"> precision-tool {completed}")
            terminal.type("\x15")
