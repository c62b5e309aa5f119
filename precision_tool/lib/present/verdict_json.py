"""A verdict with its words, as the object `verdict` of JSON and users of the package have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precision_tool.lib.present.steps import tell_steps
from precision_tool.lib.present.unseen import gap_words
from precision_tool.lib.verdict.model import Verdict


def told(verdict: Verdict) -> Verdict:
    """The verdict with what to do next, and what it did not see, in words."""
    return replace(verdict, next=tell_steps(verdict.next), gaps=tuple(map(gap_words, verdict.gaps)))


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it everywhere."""
    return told(verdict).to_dict()
