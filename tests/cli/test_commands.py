"""The one table of commands, and every command held against its line in it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from precision_tool.lib import cli
from precision_tool.lib.cli.arguments import PlainCommand
from precision_tool.lib.cli.command import Command, load_command
from precision_tool.lib.cli.words import PROMPT_WORDS, WORDS, Word
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.session import Session

#: `data` is done by the command line and the prompt themselves.
COMMANDS = [word for word in WORDS if word.name != "data"]


@pytest.mark.parametrize("word", COMMANDS, ids=lambda word: word.name)
class TestCommandContract:
    """What the table says of a command and what its module declares are the same."""

    def test_its_module_has_the_command(self, word: Word) -> None:
        command = word.load()
        assert isinstance(command, PlainCommand if word.plain else Command)
        assert word.min_python == ((3, 7) if word.plain else (3, 11))

    def test_its_parser_is_its_help(self, word: Word) -> None:
        parser = load_command(word.name).parser(Session(Settings()))
        text = parser.format_help()
        assert parser.prog == word.name
        assert f"example: {word.name}" in text
        assert all(action.help for action in parser._actions)
        for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", word.arguments):
            assert option in text, option

    def test_wrong_use_is_the_users_error(self, word: Word) -> None:
        parser = load_command(word.name).parser(Session(Settings()))
        if not any(action.nargs == argparse.REMAINDER for action in parser._actions):
            with pytest.raises(UsageError):
                parser.parse_args(["--no-such-option"])


def test_every_module_of_a_command_belongs_to_a_word() -> None:
    modules = [path.stem for path in Path(cli.__path__[0]).glob("cmd_*.py")]
    assert sorted(modules) == sorted({word.file or f"cmd_{word.name}" for word in COMMANDS})


def test_no_name_stands_twice() -> None:
    names = [name for word in (*WORDS, *PROMPT_WORDS) for name in (word.name, *word.aliases)]
    assert len(names) == len(set(names))
