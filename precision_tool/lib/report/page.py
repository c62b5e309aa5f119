"""The page: template, script, style and data in one file that needs nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.console import Console

from precision_tool.lib.io.files import atomic_text
from precision_tool.lib.present.verdict import verdict_block
from precision_tool.lib.report.document import Material
from precision_tool.lib.report.headline import headline

_ASSETS = "precision_tool.lib.report.assets"
#: Half the time of the usual level, for some percent more bytes.
_LEVEL = 4
#: The tag of a language by its file of texts, where it is another.
_LANGUAGES = {"zh": "zh-CN"}
#: Columns of the text that stands in for the page where scripts are off.
_WIDTH = 110


def page_of(document: Mapping[str, Any], materials: Sequence[Material]) -> str:
    """The HTML of a report. `materials` give the verdicts as text, for where no script runs."""
    return page_with(document, [_plain_verdict(material) for material in materials])


def page_with(document: Mapping[str, Any], verdicts: Sequence[str]) -> str:
    """The HTML of a report with these texts for where no script runs."""
    script, style, first = asset("report.js"), asset("report.css"), asset("first.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(asset("report.html.j2"))
    return template.render(
        script=script,
        style=style,
        first_script=first,
        first_hash=_hash(first),
        script_hash=_hash(script),
        style_hash=_hash(style),
        licences=asset("LICENSES.txt"),
        data=packed(document),
        verdicts=verdicts,
        heads={language: headline(document, words) for language, words in _words().items()},
        tool=document["tool"],
        time=document["time"],
    )


def write_page(path: str, document: Mapping[str, Any], materials: Sequence[Material]) -> None:
    """Writes a report. OutputError when it cannot be written; then no part of it is left."""
    page = page_of(document, materials)
    with atomic_text(path) as file:
        file.write(page)


def packed(document: Mapping[str, Any]) -> str:
    """A document as JSON, deflated, in base64: nothing that HTML could take for anything else."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


@cache
def asset(name: str) -> str:
    """A file of the page as it was built."""
    return (files(_ASSETS) / name).read_text(encoding="utf-8")


def _words() -> dict[str, dict[str, str]]:
    """What is painted before the data are read is in these languages: their texts by key."""
    words: dict[str, dict[str, str]] = json.loads(asset("first.json"))
    return {_LANGUAGES.get(name, name): texts for name, texts in words.items()}


def _hash(text: str) -> str:
    """What a Content-Security-Policy knows a script or style by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _plain_verdict(material: Material) -> str:
    verdict = material.verdict_object()
    if verdict is None or verdict.is_empty:
        return material.title
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(verdict_block(verdict))
    return capture.get()
