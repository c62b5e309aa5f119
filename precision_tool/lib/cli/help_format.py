"""The help of a command in the language in use, in lines as wide as the terminal. This module runs on Python 3.7."""

# ruff: noqa: RUF001  # Chinese punctuation

import argparse
import contextlib
import re
from typing import Any, Iterator, List, Optional

from precision_tool.lib.cli.wrapping import cells, wrapped
from precision_tool.lib.messages import language
from precision_tool.lib.messages.help_texts import help_text

#: Ends of clauses, where a brief help may stop.
_CLAUSE = re.compile(r"(?=[;.,:] | \(|[；。，：（])")


class HelpFormatter(argparse.HelpFormatter):
    """argparse's layout of a help, in the language in use: `-f, --file FILE`, as from Python 3.13 on.

    A brief one has the first clauses only of what takes more than a line.
    """

    is_brief = False

    def add_text(self, text: Optional[str]) -> None:
        """Add a paragraph."""
        super().add_text(text and help_text(text))

    def start_section(self, heading: Optional[str]) -> None:
        """Begin what stands below a heading."""
        super().start_section(heading and help_text(heading))

    def format_help(self) -> str:
        """Return the help; the colon behind a Chinese heading is as wide as its characters."""
        return re.sub(r"(?m)([\u2e80-\u9fff]):$", "\\1：", super().format_help())

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        return action.help and help_text(action.help)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _split_lines(self, text: str, width: int) -> List[str]:
        if self.is_brief and cells(text) > width:
            starts = (text[: match.start()] for match in _CLAUSE.finditer(text))
            fitting = [start for start in starts if cells(start) <= width and _is_balanced(start)]
            text = fitting[-1] if fitting else text
        return wrapped(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in wrapped(text, width - len(indent)))

    def _format_usage(self, *arguments: Any) -> str:
        begin = help_text("usage: ")
        wider = cells(begin) - len(begin)  # than argparse takes it for, which counts characters
        self._width -= wider
        with argparse_in_language():
            usage = super()._format_usage(*arguments)
        self._width += wider
        return usage.replace("\n ", "\n " + " " * wider)


def _is_balanced(text: str) -> bool:
    return text.count("(") + text.count("（") == text.count(")") + text.count("）")


@contextlib.contextmanager
def argparse_in_language() -> Iterator[None]:
    """Let argparse take its own words, those of its errors too, from our catalogue while in the block."""
    if language() == "en":
        yield
        return
    names: Any = argparse
    before = names._, names.ngettext
    names._, names.ngettext = help_text, lambda singular, plural, count: help_text(singular if count == 1 else plural)
    try:
        yield
    finally:
        names._, names.ngettext = before
