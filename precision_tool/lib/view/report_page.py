"""The page: template, script, style and data in one file that needs nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypedDict

from jinja2 import Environment, StrictUndefined
from rich.console import Console, RenderableType

from precision_tool.lib.io.files import atomic_text
from precision_tool.lib.messages import LANGUAGES, Message, render
from precision_tool.lib.messages.language import chosen_language
from precision_tool.lib.messages.language import language as current_language
from precision_tool.lib.view.packed_columns import PageText, both
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
        verdicts=_others(document, list(verdicts)),
        heads={_TAGS[language]: headline(document, language) for language in LANGUAGES},
        no_scripts=" ".join(render(Message("page.first.scripts"), language) for language in LANGUAGES),
        tool=document["tool"],
        time=document["time"],
        language=chosen_language(),
        tag=_TAGS[current_language()],
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


# --- what is painted first, and all that there is without scripts ---


class Headline(TypedDict):
    """What the page shows before its data are read: the verdict in a language, "" and () for what there is not.

    `mark` is the class of the box, `kicker` stands above `title`, `next` above the `steps`, each of which has a line to
    be typed; `rows` have a label and lines.
    """

    mark: str
    kicker: str
    title: str
    type: str
    place: str
    cause: str
    sentence: str
    next: str
    rows: list[tuple[str, list[str]]]
    steps: list[tuple[str, str]]


def headline(document: Mapping[str, Any], language: str) -> Headline:
    """Return what the page shows before its data are read, in a language."""
    parts = _parts(document)

    def shown(part: Message | PageText) -> str:
        return _in(language, part)

    return Headline(
        mark=parts.mark, kicker=shown(Message(f"page.verdict.{parts.kicker}")), title=shown(parts.title),
        type=shown(parts.type), place=shown(parts.place), cause=shown(parts.cause), sentence=shown(parts.sentence),
        next=shown(Message("page.verdict.next")),
        rows=[(shown(Message(label)), list(map(shown, lines))) for label, lines in parts.rows if any(lines)],
        steps=[(shown(step["why"]), step["line"]) for step in parts.steps],
    )  # fmt: skip


def _in(language: str, part: Message | PageText) -> str:
    if isinstance(part, Message):
        return render(part, language)
    return part if isinstance(part, str) else part[language]


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of a `Headline` in all languages."""

    mark: str
    kicker: str
    title: Message | PageText
    type: PageText = ""
    place: Message | PageText = ""
    cause: PageText = ""
    sentence: PageText = ""
    rows: Sequence[tuple[str, Sequence[PageText]]] = ()
    steps: Sequence[Mapping[str, Any]] = ()


def _shown_first(document: Mapping[str, Any]) -> int | None:
    """Return which result the page shows first: one with a culprit, else one with a verdict; None without any."""
    verdicts = [result["verdict"] for result in document["results"]]
    order = sorted(range(len(verdicts)), key=lambda at: verdicts[at] is None or not verdicts[at]["culprit"])
    order.sort(key=lambda at: verdicts[at] is None)
    return order[0] if order and verdicts[order[0]] is not None else None


def _others(document: Mapping[str, Any], verdicts: list[str]) -> list[str]:
    """Return the verdicts, as plain text, that are not painted first. Of a study the text says more than that."""
    first = _shown_first(document)
    return [text for at, text in enumerate(verdicts) if at != first]


def _parts(document: Mapping[str, Any]) -> _Parts:
    if (study := document.get("study")) is not None:
        return _study_parts(study)
    if (preflight := document.get("preflight")) is not None:
        return _preflight_parts(preflight)
    at = _shown_first(document)
    if at is None:
        return _no_culprit("is-doubtful", Message("page.verdict.none"))
    verdict = document["results"][at]["verdict"]
    if not verdict["culprit"]:
        mark = "is-good" if verdict["is_good"] else "is-doubtful"
        return _no_culprit(mark, verdict["sentence"], verdict["confidence_text"], verdict["next"])
    first = verdict["suspects"][0]
    rows = [
        ("page.pass", [first["pass"] or ""]), ("page.op.module", [first["module"]]),
        ("page.op.source", [first["source"]]), ("page.verdict.why", first["why"]),
        ("page.verdict.also", first["also"]), ("page.verdict.sure", [first["confidence_text"]]),
        ("page.verdict.spoils", [first["affects"]]),
    ]  # fmt: skip
    return _Parts(
        mark="is-bad", kicker="culprit", title=first["culprit"], type=first["type"], cause=first["cause_text"],
        sentence=first["sentence"], rows=rows, steps=verdict["next"],
    )  # fmt: skip


def _no_culprit(
    mark: str, title: Message | PageText, confidence: PageText = "", steps: Sequence[Mapping[str, Any]] = ()
) -> _Parts:
    rows = [("page.verdict.sure", [confidence])]
    return _Parts(mark=mark, kicker="verdict", title=title, rows=rows, steps=steps)


def _preflight_parts(preflight: Mapping[str, Any]) -> _Parts:
    first, *others = preflight["types"]
    rows = [
        ("page.preflight.ops", [", ".join(first["kept"])]),
        ("page.preflight.other", [other["conclusion"] for other in others]),
    ]
    return _Parts(
        mark=first["mark"], kicker="verdict", title=first["conclusion"], rows=rows, steps=preflight["next"]
    )  # fmt: skip


def _study_parts(study: Mapping[str, Any]) -> _Parts:
    culprit = study["culprit"]
    if culprit is None:
        return _no_culprit("is-doubtful", study["sentence"], steps=study["next"])
    rows = [
        ("page.verdict.why", [culprit["ground_text"]]), ("page.study.where_else", [culprit["reach_text"]]),
        ("page.study.wrong_in", [both(Message("page.study.steps", steps=culprit["steps"]))]),
        ("page.verdict.sure", [culprit["confidence_text"]]),
    ]  # fmt: skip
    return _Parts(
        mark="is-bad", kicker="culprit", title=culprit["op"], type=culprit["type"], cause=culprit["cause_text"],
        place=Message("page.study.where", step=str(culprit["step"]), rank=str(culprit["rank"])),
        rows=rows, steps=study["next"],
    )  # fmt: skip
