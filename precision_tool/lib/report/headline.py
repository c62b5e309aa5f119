"""What the page shows before its data are read: the verdict in a few words of each language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: From here on a verdict is called sure, or likely.
_SURE, _LIKELY = 0.9, 0.65
#: Right ops among those that were judged from which on nothing that matters was left out.
_WHOLE = 0.8


def headline(document: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, str]:
    """The parts of the first paint of a report's data; `type`, `cause`, `sentence` and `sure` are empty without any."""
    return {"type": "", "cause": "", "sentence": "", "sure": "", **_parts(document, words)}


def _parts(document: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, str]:
    if (study := document.get("study")) is not None:
        return _of_study(study, words)
    verdicts = [result["verdict"] for result in document["results"]]
    verdict = next((one for one in verdicts if one is not None and one["culprit"]), next(iter(verdicts), None))
    if verdict is None:
        return {"mark": "is-doubtful", "kicker": words["verdict.verdict"], "title": words["verdict.none"]}
    if verdict["culprit"]:
        return _blame(verdict["suspects"][0], verdict["confidence"], words)
    ops = verdict["ops"]
    is_whole = bool(ops["judged"]) and ops["right"] >= _WHOLE * ops["judged"]
    key = "verdict.clean" if is_whole else "verdict.clean_part"
    is_scaled = verdict["cause"] == "loss_scale"
    return {
        "mark": "is-good" if is_whole or is_scaled else "is-doubtful",
        "kicker": words["verdict.verdict"],
        "title": words["sentence.loss_scale" if is_scaled else key],
    }


def _blame(first: Mapping[str, Any], confidence: float, words: Mapping[str, str]) -> dict[str, str]:
    cause = first["cause"]
    return {
        "mark": "is-bad", "kicker": words["verdict.culprit"], "title": first["culprit"], "type": first["type"],
        "cause": words[f"cause.{cause}"],
        "sentence": words["sentence.runs" if first["proof"] == "runs" else f"sentence.{cause}"],
        "sure": _sure(confidence, words),
    }  # fmt: skip


def _sure(confidence: float, words: Mapping[str, str]) -> str:
    key = "sure" if confidence >= _SURE else "likely" if confidence >= _LIKELY else "guess"
    return f"{words['verdict.sure']}: {words[f'sure.{key}']} ({round(100 * confidence)} %)"


def _of_study(study: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, str]:
    culprit = study["culprit"]
    if culprit is None:
        key = "study.see_statistics" if study["statistics"] else "study.clean"
        return {"mark": "is-doubtful", "kicker": words["verdict.verdict"], "title": words[key]}
    cause = culprit["cause"]
    where = words["study.where"].format(step=culprit["step"], rank=culprit["rank"])
    return {
        "mark": "is-bad", "kicker": words["verdict.culprit"], "title": culprit["op"],
        "type": " · ".join(filter(None, (culprit["type"], where))),
        "cause": words.get(f"cause.{cause}") or words.get(f"study.cause.{cause}", cause),
        "sure": _sure(culprit["confidence"], words),
    }  # fmt: skip
