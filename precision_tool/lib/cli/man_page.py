"""The manual page, in the language of `man`, made of the same parsers and texts as the help."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date

from precision_tool.lib.cli.arguments import NAME, Parser
from precision_tool.lib.cli.command import load_command
from precision_tool.lib.cli.words import LISTED, PROMPT_WORDS, Word
from precision_tool.lib.cli.wrapping import cells, wrapped
from precision_tool.lib.messages import language
from precision_tool.lib.messages.help_texts import help_text
from precision_tool.lib.session import Session
from precision_tool.lib.version import __version__

#: Columns of the source.
_WIDTH = 72


def man_page(session: Session, usage: str, about: str, options: Mapping[str, str], exit_codes: str) -> str:
    """Return the page, in roff.

    Parameters
    ----------
    session : Session
        Its settings are the defaults that options show.
    usage, about, exit_codes : str
        What the help of the whole tool says of it.
    options : mapping
        What each option before the command does.
    """
    lines = [
        f'.TH PRECISION\\-TOOL 1 {date.today().isoformat()} "precision\\-tool {__version__}"',
        # Lines are broken at blanks only, so that what is copied of one is right; Chinese between any two characters.
        ".nh",
        ".ad l",
        *([".mso zh.tmac"] if language() == "zh" else []),
        *_section("NAME", [rf"{_roff(NAME)} \- {_paragraph(re.split('[.。]', about)[0])}"]),
        *_section("SYNOPSIS", [".nf", *map(_roff, usage.split("\n")), ".fi"]),
        *_section("DESCRIPTION", [_paragraph(about)]),
        *_section("OPTIONS", _entries(options.items())),
        *_section("COMMANDS", (line for family, words in LISTED.items() for line in _family(family, words))),
        *_section("PROMPT", _entries((_call(word), help_text(word.help)) for word in PROMPT_WORDS)),
    ]
    for words in LISTED.values():
        for word in words:
            lines += _section(f"{word.name.upper()} OPTIONS", _command(load_command(word.name).parser(session)))
    lines += _section("EXIT STATUS", [_paragraph(exit_codes)])
    lines += _section("SEE ALSO", [_roff(f"{NAME} guide, {NAME} COMMAND -h")])
    return "\n".join(lines) + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [f".SH {_quoted(help_text(title))}", *lines]


def _family(family: str, words: Iterable[Word]) -> Iterator[str]:
    yield f".SS {_quoted(help_text(family))}"
    yield from _entries((_call(word), help_text(word.help)) for word in words)


def _call(word: Word) -> str:
    return f"{word.name} {word.arguments}".rstrip()


def _command(parser: Parser) -> Iterator[str]:
    """Yield the description, usage, arguments and example of a command."""
    formatter = parser._get_formatter()
    yield _paragraph(help_text(parser.description or ""))
    yield ".PP"
    yield _paragraph(" ".join(parser.format_usage().split())).join((r"\fB", r"\fR"))
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help not in (None, argparse.SUPPRESS)]
        if actions:
            yield f".SS {_quoted(help_text(group.title or ''))}"
            yield from _entries(
                (formatter._format_action_invocation(action), formatter._expand_help(action)) for action in actions
            )
    yield ".PP"
    yield _paragraph(parser.epilog or "")


def _entries(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in pairs:
        yield ".TP"
        yield rf"\fB{_roff(name)}\fR"
        yield _paragraph(text)


def _paragraph(text: str) -> str:
    # A line break would be a blank in Chinese.
    return "\n".join(map(_roff, wrapped(text, _WIDTH))) if cells(text) == len(text) else _roff(text)


def _roff(text: str) -> str:
    """Return a text that roff sets as it is: hyphens are those that are typed, and no line is a request."""
    line = text.replace("\n", " ").replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + line if line.startswith((".", "'")) else line


def _quoted(text: str) -> str:
    return '"' + _roff(text).replace('"', r"\(dq") + '"'
