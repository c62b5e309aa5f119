"""The help of every command, argparse's words and errors included, in Chinese; and its lines on a terminal."""

# ruff: noqa: RUF001  # Chinese punctuation

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator

import pytest

from precision_tool import cli
from precision_tool.cli import main
from precision_tool.lib.cli import prompt, words
from precision_tool.lib.cli.command import Parser, load_command
from precision_tool.lib.cli.wrapping import cells, wrapped
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.messages import use_language
from precision_tool.lib.messages.help_texts import chinese_help
from precision_tool.lib.session import Session

COMMANDS = [word.name for word in words.WORDS if word.name != "data"]
CHINESE = re.compile("[\u4e00-\u9fff]")
#: Texts of argparse in other versions of Python, and of a setting that cmd2 brings.
ELSEWHERE = {"optional arguments", "Echo command issued into output"}


def parsers() -> Iterator[argparse.ArgumentParser]:
    session = Session(Settings())
    yield from (load_command(name).parser(session) for name in COMMANDS)
    yield from (prompt._own_parser(name) for name in prompt._OWN)


def texts_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What the help of a command says, as the code writes it."""
    yield str(parser.description or "")
    for group in parser._action_groups:
        if group._group_actions:
            yield group.title or ""
    yield from (action.help or "" for action in parser._actions if action.help is not argparse.SUPPRESS)


def said() -> set[str]:
    """All texts of the help."""
    families = {name for family in words.FAMILIES for name in (family, family.lower() + ":")}
    texts = {word.help for word in (*words.WORDS, *words.PROMPT_WORDS)} | families
    texts |= {cli._ABOUT, cli._EXIT_CODES, *cli.OPTIONS.values(), *prompt.KNOBS.values()}
    with use_language("en"):  # the prompt puts them into the language that it starts in
        shell = prompt.Prompt(Session(Settings()))
        texts.update(*(texts_of(parser) for parser in map(shell._parser_of_cmd2, prompt._EXAMPLES) if parser))
    with use_language("zh"):  # texts with settings in them are Chinese then
        return texts.union(*(texts_of(parser) for parser in parsers())) - {""}


def test_every_text_of_the_help_has_its_chinese() -> None:
    """A text that is new or changed is named here: add it to help.zh.json."""
    assert sorted(text for text in said() if text not in chinese_help() and not CHINESE.search(text)) == []


def test_no_chinese_is_left_over() -> None:
    """What is no text of a command any more is of argparse, or is written with settings in the code."""
    source = "".join(inspect.getsource(module) for module in (argparse, cli, prompt, words))
    source += "".join(inspect.getsource(inspect.getmodule(load_command(name).run) or cli) for name in COMMANDS)
    code = re.sub(r'"\s+"', "", source + inspect.getsource(inspect.getmodule(Parser) or cli))
    known = said() | ELSEWHERE
    assert [text for text in chinese_help() if text not in known and text not in code and "{" not in text] == []


@pytest.mark.parametrize("name", [*COMMANDS, ""])
def test_nothing_in_it_stays_english(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lang", "zh", *([name] if name else []), "-h"]) == 0
    shown = capsys.readouterr().out
    words = re.findall(r"\b(?:usage|options|arguments|default|the|with|of|is)\b(?![=_-])", shown.split("示例：")[0])
    assert words == []
    assert max(cells(line) for line in shown.splitlines() if "{" not in line) <= 80


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["ls", "--limit"], "错误：ls：参数 -l/--limit：需要一个值"),
        (["ls", "--limit", "x"], "错误：ls：参数 -l/--limit：'x'：必须是不小于 0 的整数"),
        (["ls", "--nonsense"], "错误：ls：无法识别的参数：--nonsense"),
        (["demo", "--fault", "x"], "错误：demo：参数 --fault：无效的取值：'x'（可选："),
        (["demo", "--h5", "--pytorch"], "错误：demo：参数 --pytorch：不能与参数 --h5 同时使用"),
        (["cp"], "错误：cp："),
        (["nonsense"], "错误："),
    ],
)
def test_wrong_use_is_explained_in_chinese(typed: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lang", "zh", *typed]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(says)
    assert "\n建议：" in shown
    assert re.findall(r"\b(?:error|hint|argument|expected|invalid|unrecognized)\b", shown) == []


def test_argparse_is_left_as_it_was() -> None:
    """Other parsers of the process stay English."""
    with use_language("zh"):
        parser = Parser("ls", "", "ls")
        parser.parse_args([])
        assert argparse.ArgumentParser("x").format_help().startswith("usage: x")


@pytest.mark.parametrize("width", [12, 13, 40])
def test_chinese_breaks_between_characters_but_not_before_a_comma(width: int) -> None:
    text = "与 --cluster 一起使用：DIR 下的文件只由 HOST 的 worker 读取（主机名、worker 名称），可重复给出。"
    lines = wrapped(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(cells, lines)) <= width
    assert not any(line[0] in "，。、；：）" or line[-1] == "（" for line in lines)
    assert wrapped("plain words as ever", 11) == ["plain words", "as ever"]
