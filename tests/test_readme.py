"""What the README and the guide say is there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import tool

from precision_tool.lib.cli.command import Command, load_command
from precision_tool.lib.cli.words import WORDS, find_word
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.session import Session

REPO = Path(__file__).resolve().parents[1]
GUIDE = (REPO / "precision_tool" / "GUIDE.md").read_text("utf-8")
#: Both, in the order in which they are read.
README = (REPO / "README.md").read_text("utf-8") + GUIDE
#: The same in Chinese: `test_chinese_documents.py` holds the two against each other.
CHINESE = "".join((REPO / name).read_text("utf-8") for name in ("README.zh-CN.md", "precision_tool/GUIDE.zh-CN.md"))
DOCUMENTS = {"en": README, "zh": CHINESE}
COMMANDS = {word.name: load_command(word.name) for word in WORDS if word.name != "data"}
COMPARING = ("ac", "vc", "vcs")


def options_of(command: Command) -> str:
    """The help of a command."""
    return command.parser(Session(Settings())).whole_help()


def test_the_files_it_names_are_there() -> None:
    for name in re.findall(r"`((?:scripts|precision_tool)/[\w/.]+|config\.example\.py)`", README + CHINESE):
        assert (REPO / name).exists(), name


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_links_lead_to_chapters_that_are_there(text: str) -> None:
    links = re.findall(r"\]\((precision_tool/GUIDE[\w.-]*\.md|\.\./README[\w.-]*\.md|)(?:#([\w-]+))?\)", text)
    assert len(links) > 20
    for file, chapter in links:
        document = text if not file else (REPO / file.removeprefix("../")).read_text("utf-8")
        headings = re.findall(r"^#+ (.*)$", document, re.MULTILINE)
        assert not chapter or chapter in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}


def test_the_commands_in_its_examples_are_words_with_those_options() -> None:
    calls = re.findall(r"precision-tool (?:--\w+ \S+ )*([a-z_][a-z_0-9]*)([^#\n`]*)", README)
    assert {word for word, _ in calls} >= {"ac", "vc", "vcs"}
    for word, rest in calls:
        known = find_word(word)
        assert known is not None, word
        for option in re.findall(r"(?<!\S)--?[a-z]+", rest):
            assert option in options_of(COMMANDS[known.name]), f"{word} {option}"


@pytest.mark.parametrize("option", ["-l", "--json", "--fail"])
def test_options_of_all_comparing_commands(option: str) -> None:
    for name in COMPARING:
        assert option in options_of(COMMANDS[name])


def test_every_command_has_its_line() -> None:
    for word in WORDS:
        assert re.search(rf"`(?:precision-tool )?{word.name}[ `]|precision-tool {word.name}\b", README), word.name


def test_the_options_of_its_table_are_those_of_the_commands() -> None:
    (table,) = re.findall(r"^\| option \| of \|.*?(?=^\n)", README, re.DOTALL | re.MULTILINE)
    for line in table.splitlines()[2:-1]:
        options, commands, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
        names = COMPARING if commands == "all" else re.findall(r"`(\w+)`", commands)
        if commands == "before the command":
            continue
        for name in names:
            known = options_of(COMMANDS[name])
            wanted = re.findall(r"`(--?[\w-]+)", options)
            assert any(option in known for option in wanted), f"{name}: {options}"


#: How these tests call the tool, and the lines to copy with it; the documents call it as installed.
CALLED = shlex.join([sys.executable, "-m", "precision_tool"])

#: Commands that are shown with the demo of a fault of that name.
FAULTS_SHOWN = ("overflow", "random")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder, compared as the README does first; in folders of their own the demos of other faults."""
    folder = tmp_path_factory.mktemp("readme")
    generate_demo(folder / "precision_data")
    for fault in FAULTS_SHOWN:
        generate_demo(folder / fault / "precision_data", fault=fault)
    return folder


class Chapters(NamedTuple):
    """What is shown in a language, by the demo whose data it is of."""

    main: list[tuple[str, str]]
    fusion: str
    h5: str
    ranks: str
    curves: str


def shown_in(text: str) -> list[tuple[str, str]]:
    """What is shown of commands, in order; `…` stands for lines left out."""
    return re.findall(r"^```\n\$ precision-tool( [^\n]*)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def chapters_of(text: str) -> Chapters:
    """The chapters of a document whose screens are of other data than the main demo's."""
    chapters = dict.fromkeys(Chapters._fields[1:], "")
    rest = ""
    for chapter in re.split(r"(?m)^(?=## )", text):
        name = next((name for name, sign in _SIGNS.items() if sign in chapter and shown_in(chapter)), None)
        if name is None:
            rest += chapter
        else:
            chapters[name] = chapter
    return Chapters(shown_in(rest), **chapters)


#: Lines of examples by which a chapter is recognised in every language.
_SIGNS = {
    "fusion": "\n$ precision-tool fusion", "h5": "/NpuConvolution", "ranks": "\n$ precision-tool ac --all",
    "curves": "\n$ precision-tool curves",
}  # fmt: skip
CHAPTERS = {language: chapters_of(text) for language, text in DOCUMENTS.items()}
#: The chapters in both languages.
in_both = pytest.mark.parametrize("language", CHAPTERS)


@in_both
def test_it_shows_the_prompt_and_the_main_commands(language: str) -> None:
    shown = CHAPTERS[language].main
    assert [call.split()[0] if call else "" for call, _ in shown] == ["ac", "", "ls", "ni", "cp", "overflow", "random"]


def test_its_outputs_are_what_the_commands_print(demo: Path) -> None:
    check_outputs({language: chapters.main for language, chapters in CHAPTERS.items()}, demo)


@in_both
def test_the_demo_ends_with_what_it_shows(language: str, tmp_path: Path) -> None:
    (shown,) = re.findall(r"\n\n```\n(┏[^`]*^(?:truth|本演示).*?)^```$", DOCUMENTS[language], re.DOTALL | re.MULTILINE)
    demo = tool("--lang", language, "demo", cwd=tmp_path, columns=80)
    assert demo.out.replace(CALLED, "precision-tool").endswith(shown)


def test_the_fusion_chapter_is_what_the_commands_print(tmp_path: Path) -> None:
    tool("demo", "DIR", "--fault", "fusion", "--generate-only", cwd=tmp_path)
    for chapters in CHAPTERS.values():
        assert [call.split() for call, _ in shown_in(chapters.fusion)] == [["fusion"], ["fusion", "blame"]]
        for option in re.findall(r"`(?:fusion \w+ )?(--[a-z-]+)", chapters.fusion):
            assert any(option in options_of(COMMANDS[name]) for name in ("fusion", "vc", "demo")), option
        for action in re.findall(r"fusion (show|off|on|all-off|reset|blame|bisect)\b", chapters.fusion):
            assert action in options_of(COMMANDS["fusion"])
    check_outputs({language: shown_in(chapters.fusion) for language, chapters in CHAPTERS.items()}, tmp_path / "DIR")


def test_the_chapters_on_ranks_are_what_the_commands_print(tmp_path: Path) -> None:
    generate_ranks(tmp_path, ranks=4, steps=3, fault="update", fault_rank=3)
    check_outputs({language: shown_in(chapters.ranks) for language, chapters in CHAPTERS.items()}, tmp_path)
    check_outputs({language: shown_in(chapters.curves) for language, chapters in CHAPTERS.items()}, tmp_path)


def check_outputs(shown: dict[str, list[tuple[str, str]]], folder: Path) -> None:
    """Every line that is shown of a command, by language, is one that it prints."""
    for language, calls in shown.items():
        for call, block in calls:
            if not call:
                continue  # tests/shell has the prompt's
            lines = [line for line in block.splitlines() if line != "…" and "/result_" not in line]
            place = folder / call.split()[0] if call.split()[0] in FAULTS_SHOWN else folder
            run = tool("--lang", language, *call.split(), cwd=place, columns=80)
            printed = [line.rstrip() for line in run.out.replace(CALLED, "precision-tool").splitlines()]
            assert len(lines) > 5, call
            assert [line for line in lines if line not in printed] == [], call


def test_its_picture_is_of_a_session() -> None:
    picture = (REPO / ".readme" / "session.svg").read_text("utf-8").replace("&#160;", " ")
    assert "PrecisionTool &gt;" in picture
    assert "Verdict" in picture


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = generate_demo(tmp_path / "precision_data")
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "compare(" in block]
    exec(compile(code, "README.md", "exec"), {})
    assert str(truth.culprit) in capsys.readouterr().out
    assert (tmp_path / "result.csv").is_file()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if ".diagnose(" in block]
    exec(compile(code, "README.md", "exec"), {})
    assert f"('{truth.culprit}',) ('fusion',)" in capsys.readouterr().out
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if ".tensor(" in block]
    exec(compile(code, "README.md", "exec"), {})
    assert "(8, 8, 8, 28) float16 stored as NC1HWC0 (8, 2, 8, 8, 16)" in capsys.readouterr().out
