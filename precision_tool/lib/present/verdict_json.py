"""A verdict with its words, as the object `verdict` of JSON and users of the package have it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.reason import reason_kind
from precision_tool.lib.present.reasons import kind_counts, reason_counts, reason_words
from precision_tool.lib.present.verdict_messages import gap, plan_step
from precision_tool.lib.verdict.judgement import Tally
from precision_tool.lib.verdict.model import Fact, Step, ToldStep, Verdict


def told(verdict: Verdict) -> Verdict:
    """The verdict with its reasons, what to do next, and what it did not see, in words."""
    return replace(
        verdict, next=tuple(map(_told_step, verdict.next)), gaps=tuple(render(gap(each)) for each in verdict.gaps),
        tally=_told_tally(verdict.tally), facts=_told_facts(verdict.facts),
        suspects=tuple(replace(one, facts=_told_facts(one.facts)) for one in verdict.suspects),
    )  # fmt: skip


def _told_step(step: Step | ToldStep) -> ToldStep:
    shown = plan_step(step)
    return replace(shown, why=render(shown.why), file=render(shown.file))


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
