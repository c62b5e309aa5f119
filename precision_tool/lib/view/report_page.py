"""The page: template, script, style and data in one file that needs nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.console import Console, RenderableType

from precision_tool.lib.io.files import atomic_text
from precision_tool.lib.messages import LANGUAGES, Message, render
from precision_tool.lib.messages.language import chosen_language
from precision_tool.lib.view.packed_columns import PageText
from precision_tool.lib.view.report_document import Material
from precision_tool.lib.view.verdict_screen import verdict_block

_ASSETS = "precision_tool.lib.view.assets"
#: Half the time of the usual level, for some percent more bytes.
_LEVEL = 4
#: The tags that HTML knows the languages by.
_TAGS = {"en": "en", "zh": "zh-CN"}
#: Columns of the text that stands in for the page where scripts are off.
_WIDTH = 110


def page_of(document: Mapping[str, Any], verdicts: Iterable[str]) -> str:
    """Return the HTML of a report; `verdicts` are plain texts for readers without scripts."""
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
        verdicts=list(verdicts),
        heads={_TAGS[language]: headline(document, language) for language in LANGUAGES},
        no_scripts=" ".join(render(Message("page.first.scripts"), language) for language in LANGUAGES),
        tool=document["tool"],
        time=document["time"],
        language=chosen_language(),
    )


def write_page(path: str, document: Mapping[str, Any], verdicts: Iterable[str]) -> None:
    """Write a report. OutputError when it cannot be written; then no part of it is left."""
    page = page_of(document, verdicts)
    with atomic_text(path) as file:
        file.write(page)


def packed(document: Mapping[str, Any]) -> str:
    """Return a document as deflated JSON in base64, which HTML cannot take for anything else."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


@cache
def asset(name: str) -> str:
    return (files(_ASSETS) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a script or style."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def plain_verdict(material: Material) -> str:
    """Return the verdict on a result as plain text, or the title of the result."""
    if material.verdict is None or material.verdict.verdict.is_empty:
        return material.title
    return plain_text(verdict_block(material.verdict.verdict))


def plain_text(block: RenderableType) -> str:
    """Return a block of the terminal as text without colours."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(block)
    return capture.get()


# --- what is painted first ---


def headline(document: Mapping[str, Any], language: str) -> dict[str, str]:
    """Return what the page shows before its data are read: parts of the verdict in a language, "" where there is none.

    `mark` is the class of the box, `kicker` stands above `title`; the others follow.
    """
    parts = {"type": "", "place": "", "cause": "", "sentence": "", "confidence": "", **_parts(document)}
    shown = {name: _in(language, part) for name, part in parts.items()}
    if shown["confidence"]:
        shown["confidence"] = render(Message("page.verdict.confidence", confidence=shown["confidence"]), language)
    return shown


def _in(language: str, part: Message | PageText) -> str:
    if isinstance(part, Message):
        return render(part, language)
    return part if isinstance(part, str) else part[language]


def _parts(document: Mapping[str, Any]) -> dict[str, Message | PageText]:
    if (study := document.get("study")) is not None:
        return _study_parts(study)
    verdicts = [result["verdict"] for result in document["results"] if result["verdict"] is not None]
    verdict = next((entry for entry in verdicts if entry["culprit"]), next(iter(verdicts), None))
    if verdict is None:
        return _no_culprit("is-doubtful", Message("page.verdict.none"))
    if not verdict["culprit"]:
        return _no_culprit("is-good" if verdict["is_good"] else "is-doubtful", verdict["sentence"])
    first = verdict["suspects"][0]
    return {
        "mark": "is-bad", "kicker": Message("page.verdict.culprit"), "title": first["culprit"], "type": first["type"],
        "cause": first["cause_text"], "sentence": first["sentence"], "confidence": verdict["confidence_text"],
    }  # fmt: skip


def _no_culprit(mark: str, title: Message | PageText) -> dict[str, Message | PageText]:
    return {"mark": mark, "kicker": Message("page.verdict.verdict"), "title": title}


def _study_parts(study: Mapping[str, Any]) -> dict[str, Message | PageText]:
    culprit = study["culprit"]
    if culprit is None:
        return _no_culprit("is-doubtful", study["sentence"])
    place = Message("page.study.where", step=str(culprit["step"]), rank=str(culprit["rank"]))
    return {
        "mark": "is-bad", "kicker": Message("page.verdict.culprit"), "title": culprit["op"], "type": culprit["type"],
        "place": place, "cause": culprit["cause_text"], "confidence": culprit["confidence_text"],
    }  # fmt: skip
