"""A verdict with its words, as the object `verdict` of JSON and users of the package have it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from precision_tool.lib.messages import Message
from precision_tool.lib.model.reason import reason_kind
from precision_tool.lib.present.reasons import kind_counts, reason_counts, reason_words
from precision_tool.lib.present.steps import tell_steps
from precision_tool.lib.present.unseen import gap_words
from precision_tool.lib.verdict.judgement import Tally
from precision_tool.lib.verdict.model import Fact, Verdict


def told(verdict: Verdict) -> Verdict:
    """The verdict with its reasons, what to do next, and what it did not see, in words."""
    return replace(
        verdict, next=tell_steps(verdict.next), gaps=tuple(map(gap_words, verdict.gaps)),
        tally=_told_tally(verdict.tally), facts=_told_facts(verdict.facts),
        suspects=tuple(replace(one, facts=_told_facts(one.facts)) for one in verdict.suspects),
    )  # fmt: skip


def _told_tally(tally: Tally) -> Tally:
    kinds = kind_counts(tally)
    return replace(tally, reasons=tuple(reason_counts(tally)), kinds=tuple(kinds.items()) or tally.kinds)


def _told_facts(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """The same with reasons in words, and their kinds."""
    found: list[Fact] = []
    for fact in facts:
        if not isinstance(fact.value, Message):
            found.append(fact)
            continue
        found += (
            replace(fact, value=reason_words(fact.value)),
            Fact(name=f"{fact.name}_kind", value=reason_kind(fact.value)),
        )
    return tuple(found)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it everywhere."""
    return told(verdict).to_dict()
