"""The verdict as the page has it: every text in both languages."""

from __future__ import annotations

from typing import Any

from precision_tool.lib.messages import LANGUAGES, Message, render
from precision_tool.lib.present import verdict_messages as messages
from precision_tool.lib.present.reasons import reason_counts
from precision_tool.lib.present.verdict_json import verdict_json
from precision_tool.lib.report.columns import sound
from precision_tool.lib.verdict.model import Cause, Suspect, ToldStep, Verdict


def both(message: Message | str) -> dict[str, str]:
    """Return the text of a message in each language: `{"en": ..., "zh": ...}`."""
    return {language: str(sound(render(message, language))) for language in LANGUAGES}


def step_document(step: ToldStep) -> dict[str, Any]:
    """Return a step of a plan: `file` is None where `line` is a command, or nothing is typed."""
    return {"why": both(step.why), "line": sound(step.line), "file": both(step.file) if step.file else None}


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as JSON has it everywhere, with its texts in both languages.

    `sentence` is that of a verdict without a culprit, `is_good` whether it is an acquittal, `confidence_text` how sure
    it is; each suspect has `cause_text`, `sentence` (what is wrong), `why` (the evidence), `confidence_text` (with what
    it rests on), `affects` and `line` (all of it as a further fault).
    """
    document: dict[str, Any] = sound(verdict_json(verdict))
    document["next"] = [step_document(step) for step in messages.plan_steps(verdict.next)]
    document["gaps"] = [both(messages.gap(gap)) for gap in verdict.gaps]
    document["ops"]["reasons"] = [[both(reason), count] for reason, count in reason_counts(verdict.tally)]
    document["sentence"] = both(messages.no_fault(verdict)) if verdict.first is None else None
    document["is_good"] = verdict.first is None and (verdict.cause is Cause.LOSS_SCALE or messages.is_whole(verdict))
    document["confidence_text"] = both(messages.confidence(verdict.confidence, verdict.first))
    for one, suspect in zip(document["suspects"], verdict.suspects, strict=True):
        try:
            one.update(_texts(suspect))
        except (TypeError, ValueError):  # a file that somebody edited
            one.update({name: both("") for name in ("cause_text", "sentence", "confidence_text", "affects", "line")})
            one["why"] = []
    return document


def _texts(suspect: Suspect) -> dict[str, Any]:
    return {
        "cause_text": both(messages.cause_name(suspect.cause)),
        "sentence": both(messages.what_is_wrong(suspect)),
        "why": [both(message) for message in messages.evidence(suspect)],
        "confidence_text": both(messages.confidence(suspect.confidence, suspect)),
        "affects": both(messages.affects(suspect)),
        "line": both(messages.other_fault(suspect)),
    }
