"""What the page shows before its data are read: the verdict in a few words of each language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_tool.lib.messages import Message, render


def headline(document: Mapping[str, Any], language: str) -> dict[str, str]:
    """Return the parts of the first paint; `type`, `cause`, `sentence` and `sure` are empty without any."""
    return {"type": "", "cause": "", "sentence": "", "sure": "", **_parts(document, language)}


def _parts(document: Mapping[str, Any], language: str) -> dict[str, str]:
    if (study := document.get("study")) is not None:
        return _of_study(study, language)
    verdicts = [result["verdict"] for result in document["results"]]
    verdict = next((one for one in verdicts if one is not None and one["culprit"]), next(iter(verdicts), None))
    if verdict is None:
        title = render(Message("verdict.not_checked"), language)
        return {"mark": "is-doubtful", "kicker": _label("title", language), "title": title}
    if verdict["culprit"]:
        first = verdict["suspects"][0]
        return {
            "mark": "is-bad", "kicker": _label("culprit", language), "title": first["culprit"], "type": first["type"],
            "cause": first["cause_text"][language], "sentence": first["sentence"][language],
            "sure": _confidence(verdict, language),
        }  # fmt: skip
    return {
        "mark": "is-good" if verdict["is_good"] else "is-doubtful",
        "kicker": _label("title", language),
        "title": verdict["sentence"][language],
    }


def _of_study(study: Mapping[str, Any], language: str) -> dict[str, str]:
    culprit = study["culprit"]
    if culprit is None:
        return {"mark": "is-doubtful", "kicker": _label("title", language), "title": study["sentence"][language]}
    place = render(Message("study.place", step=culprit["step"], rank=culprit["rank"]), language)
    return {
        "mark": "is-bad", "kicker": _label("culprit", language), "title": culprit["op"],
        "type": " · ".join(filter(None, (culprit["type"], place))), "cause": culprit["cause_text"][language],
        "sure": _confidence(culprit, language),
    }  # fmt: skip


def _label(name: str, language: str) -> str:
    return render(Message(f"verdict.label.{name}"), language)


def _confidence(accused: Mapping[str, Any], language: str) -> str:
    return f"{_label('confidence', language)}: {accused['confidence_text'][language]}"
