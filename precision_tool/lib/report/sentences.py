"""The evidence of a verdict as keys of sentences and the values in them: the page has the words, in each language."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.present.verdict_json import verdict_json
from precision_tool.lib.report.columns import sound
from precision_tool.lib.verdict.model import Proof, Suspect, Verdict

Sentence = dict[str, Any]

#: What may say which of two copies is the true one where the op that put it out was not dumped.
_TOLD_BY = ("recomputed", "benchmark", "readers", "nobody")


def _sentence(key: str, **values: Any) -> Sentence:
    return {"key": key, "values": sound(values)}


def evidence(suspect: Suspect) -> list[Sentence]:
    """The figures behind a suspicion, the weightiest first."""
    return [*_figures(suspect), *_where(suspect)]


def _figures(one: Suspect) -> Iterator[Sentence]:
    fact = one.fact
    if fact("own_error") is not None:
        how = ", ".join(map(str, fact("recomputed_as") or ()))
        yield _sentence("why.recomputed", how=how, own=fact("own_error"), rounding=fact("rounding"))
        yield _sentence(
            "why.wrong", count=fact("wrong_elements"), elements=fact("elements"), output=fact("output"),
            mistake=fact("mistake"),
        )  # fmt: skip
    elif fact("overflowed_elements") is not None:
        yield _sentence(
            "why.overflow", largest=fact("largest"), type=fact("type"), limit=fact("limit"),
            count=fact("overflowed_elements"), elements=fact("elements"),
        )  # fmt: skip
    elif fact("lost") is not None:
        yield _sentence("why.lost", wide=fact("from"), narrow=fact("to"), lost=fact("lost"))
    elif fact("first_byte") is not None:
        yield _sentence(
            "why.bytes", reader=fact("reader"), tensor=fact("held_against") or fact("tensor"),
            first=fact("first_byte"), last=fact("last_byte"), bytes=fact("bytes"), count=fact("different_elements"),
        )  # fmt: skip
    elif fact("not_recomputed") is not None:
        if fact("distance") is not None:
            yield _sentence("why.off_inputs", distance=fact("distance"), fed=fact("fed"))
        else:
            yield _sentence("why.inputs_agree")
        yield _sentence("why.not_recomputed", reason=reason_words(fact("not_recomputed")))
    elif fact("same_inputs"):
        yield _sentence(
            "why.runs", output=fact("output"), distance=fact("distance"), count=fact("different_elements"),
            elements=fact("elements"),
        )  # fmt: skip
    elif fact("distance") is not None:
        yield _sentence("why.distance", distance=fact("distance"))
        if fact("elements"):
            yield _sentence("why.different", count=fact("different_elements"), elements=fact("elements"))
    if fact("repeats") is not None:
        yield _sentence("why.repeats" if fact("repeats") else "why.draws_again", run=str(fact("other_run")))
    if fact("parts_run") is not None:
        yield _sentence("why.parts_right" if fact("parts_right") else "why.parts_wrong", run=str(fact("parts_run")))


def _where(one: Suspect) -> Iterator[Sentence]:
    fact = one.fact
    if fact("order"):
        yield _sentence("why.axes", axes=str(tuple(fact("order"))))
    if fact("steps"):
        yield _sentence("why.steps", steps=f"{fact('steps'):+d}", axis=fact("axis"))
    elif fact("axis") is not None:
        yield _sentence("why.only_index", index=fact("index"), axis=fact("axis"))
    if fact("reordered"):
        yield _sentence("why.reordered")
    if fact("factor") is not None:
        yield _sentence("why.factor", factor=fact("factor"))


def proof_key(suspect: Suspect) -> str:
    """The key of the sentence on what a suspicion rests on."""
    if suspect.proof is Proof.COPIES:
        by = suspect.fact("told_by")
        if by in _TOLD_BY:
            return f"proof.copies_{by}"
        return "proof.copies_producer_right" if suspect.fact("producer_is_right") else "proof.copies"
    if suspect.proof is Proof.RECOMPUTED and suspect.fact("benchmark_obeys"):
        return "proof.recomputed_benchmark_obeys"
    if suspect.proof is Proof.RECOMPUTED and suspect.fact("another_obeys"):
        return "proof.recomputed_another_obeys"
    return f"proof.{suspect.proof}"


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON has it everywhere, each suspect with its sentences beside."""
    document: dict[str, Any] = sound(verdict_json(verdict))
    for one, suspect in zip(document["suspects"], verdict.suspects, strict=True):
        try:
            one["why"], one["proof_key"] = evidence(suspect), proof_key(suspect)
        except (TypeError, ValueError):  # a file that somebody edited
            one["why"], one["proof_key"] = [], ""
    return document
