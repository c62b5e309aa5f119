"""Screens as HTML: what a notebook shows, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.diagnose.verdict_model import StepText
from precision_tool.lib.view.html import html_of, text_of
from precision_tool.lib.view.tables import Box, Heading, list_table
from precision_tool.lib.view.text import LabelledLines, plain
from precision_tool.lib.view.verdict_screen import NextSteps

#: A name from another machine.
EVIL = "<img src=x onerror=alert(1)>&\x1b[31m\x00"


class Elements(HTMLParser):
    """The elements, in order, and whether each is closed."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_every_kind_of_screen_is_escaped() -> None:
    table = list_table()
    table.add_column(EVIL)
    table.add_row(EVIL)
    table.add_row(Group(plain(EVIL), LabelledLines([(EVIL, plain(EVIL))])))
    screen: list[RenderableType] = [
        plain(EVIL, "bold red"), EVIL, Heading(plain(EVIL)), table, LabelledLines([(EVIL, plain(EVIL))]),
        Box(Group(plain(EVIL)), title=plain(EVIL), style="red"),
        NextSteps([StepText(why=EVIL, line=EVIL), StepText(why=EVIL, line=f"{EVIL}\n{EVIL}", file=EVIL)], EVIL),
    ]  # fmt: skip
    document = html_of(*screen)
    elements = Elements(document)
    assert not elements.open
    assert "img" not in elements.names
    assert "\x1b" not in document
    assert "\x00" not in document
    assert elements.text.count("<img src=x onerror=alert(1)>&\\x1b[31m\\x00") == 19


def test_colours_and_weight_are_kept_in_every_theme() -> None:
    table = list_table()
    table.add_column("name", style="bold")
    table.add_column("count", justify="right")
    table.add_row("conv1", Text("3", style="red"))
    document = html_of(table, plain("said quietly", "dim"))
    assert '<td><b>conv1</b></td><td class="pt-number"><span class="pt-red">3</span></td>' in document
    assert '<p><span class="pt-dim">said quietly</span></p>' in document
    style = document.partition("</style>")[0]
    assert {"pt-red", "pt-dim"} <= set(re.findall(r"\.(pt-\w+)\{color:var", style))
    for theme in ('[data-jp-theme-light="false"]', "body.vscode-dark", 'html[theme="dark"]'):
        assert f"{theme} .precision-tool" in style


def test_the_same_as_text_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert text_of(plain("conv1", "bold red"), plain("said quietly", "dim")) == "conv1\nsaid quietly"
