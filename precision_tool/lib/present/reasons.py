"""Reasons why ops were not recomputed, rendered and counted."""

from __future__ import annotations

from collections import Counter

from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.reason import reason_kind
from precision_tool.lib.verdict.judgement import Tally


def reason_words(reason: Message | str | None) -> str:
    """Return the text of a reason, "" for none."""
    return render(reason) if reason else ""


def reason_counts(tally: Tally) -> list[tuple[str, int]]:
    """Return the reasons why ops were not recomputed, rendered, each with its number of ops; most frequent first."""
    counts: Counter[str] = Counter()
    for reason, count in tally.reasons:
        counts[reason_words(reason)] += count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def kind_counts(tally: Tally) -> dict[str, int]:
    """Return the same by kind, without those of older releases."""
    counts: Counter[str] = Counter()
    for reason, count in tally.reasons:
        kind = reason_kind(reason)
        if kind is not None:
            counts[kind] += count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
