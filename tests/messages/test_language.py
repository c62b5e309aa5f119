"""The language of what is shown: chosen by option, setting or locale, in columns that hold double-width characters."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import tool
from faults import negated
from rich.cells import cell_len
from tiny_network import layers

from precision_tool.lib.messages import Message, language, render
from precision_tool.lib.view.console import ReportConsole
from precision_tool.lib.view.tables import Prose
from precision_tool.lib.view.text import LabelledLines, plain

CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    layers().with_part("one/MatMul", wrong=negated).write(folder / "precision_data")
    return folder


def test_the_locale_and_the_option_choose(wrong: Path) -> None:
    kernel = Message("cause.kernel")
    by_locale = tool("ac", "-c", cwd=wrong, env={"LANG": "zh_CN.UTF-8"})
    assert render(kernel, "zh") in by_locale.out
    by_option = tool("--lang", "zh", "ac", cwd=wrong)
    assert render(kernel, "zh") in by_option.out
    english = tool("--lang=en", "ac", cwd=wrong, env={"LANG": "zh_CN.UTF-8"})
    assert render(kernel, "en") in english.out
    assert render(kernel, "zh") not in english.out
    assert "option --lang: must be" in tool("--lang", "de", "ac", cwd=wrong, code=2).err


def test_a_setting_chooses(wrong: Path, tmp_path: Path) -> None:
    (tmp_path / "precision_config.py").write_text('LANGUAGE = "zh"\n')
    shown = tool("--data", wrong / "precision_data", "--work", tmp_path / "work", "ac", "-c", cwd=tmp_path)
    assert CHINESE.search(shown.out)
    shown = tool("ac", "-c", cwd=wrong, env={"PRECISION_TOOL_LANGUAGE": "zh"})
    assert CHINESE.search(shown.out)


@pytest.mark.parametrize(
    ("words", "held"),
    [
        ("误差为 63.7 %\uff0c舍入误差仅占 0.021 %", ("63.7 %", "0.021 %")),
        ("wrong in 120 of 128 elements: the axes are permuted (1, 0, 2) here", ("(1, 0, 2)",)),
        ("已重新计算\uff0c另有 2 个未重新计算", ("2 个",)),
    ],
)
def test_a_number_stands_on_the_line_of_what_it_counts(words: str, held: tuple[str, ...]) -> None:
    for width in range(24, 50):
        console = ReportConsole(width=width, theme="plain")
        with console.capture() as capture:
            console.print(LabelledLines([("", plain(words))]), Prose(plain(words)))
        assert [capture.get().count(one) for one in held] == [2] * len(held), width


def test_a_chinese_command_line_is_indented_below_its_sentence(wrong: Path) -> None:
    shown = tool("--lang", "zh", "ac", "-c", cwd=wrong).out
    steps = shown[shown.index("下一步") :].splitlines()
    sentence = cell_len("下一步") + 2
    assert steps[0].startswith("下一步  ")
    assert not steps[0].startswith("下一步   ")
    assert {len(line) - len(line.lstrip()) for line in steps if "precision-tool" in line} == {sentence + 2}


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_of_a_chinese_box_are_as_wide_as_the_terminal(wrong: Path, columns: int) -> None:
    shown = tool("--lang", "zh", "ac", "-c", cwd=wrong, columns=columns).out
    block = shown[shown.index("┏") : shown.rindex("┛") + 1].splitlines()
    assert len(block) > 5
    assert {cell_len(line) for line in block} == {columns}


def test_labels_count_double_width_characters() -> None:
    console = ReportConsole(width=60, theme="plain")
    with console.capture() as capture:
        console.print(LabelledLines([("confidence", plain("x")), ("置信度", plain("y")), ("", plain("z"))]))
    places = [cell_len(line[: line.index(sign)]) for line, sign in zip(capture.get().splitlines(), "xyz", strict=True)]
    assert len(set(places)) == 1


def test_json_keeps_its_kinds_in_every_language(wrong: Path) -> None:
    documents = [json.loads(tool("--lang", name, "ac", "-c", "--json", cwd=wrong).out) for name in ("en", "zh")]
    english, chinese = (document["results"][0]["verdict"] for document in documents)
    assert english.keys() == chinese.keys()
    same = ("culprit", "cause", "confidence", "evidence", "ranking", "suspects")
    assert [english[name] for name in same] == [chinese[name] for name in same]
    assert [step["line"] for step in english["next"]] == [step["line"] for step in chinese["next"]]
    assert CHINESE.search(chinese["next"][0]["why"])


def test_the_python_interface_chooses_for_one_command(wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import precision_tool

    before = language()
    monkeypatch.setenv("PRECISION_TOOL_LANGUAGE", "zh")
    path = wrong / "shown.txt"
    with path.open("w") as file:
        precision_tool.run("ac", data=wrong / "precision_data", file=file)
    assert CHINESE.search(path.read_text("utf-8"))
    assert language() == before
