"""The object `verdict` of JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from precision_tool.lib.present.steps import tell_steps
from precision_tool.lib.verdict.model import Verdict


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it everywhere: as it is kept, with what to do next in words."""
    return {**verdict.to_dict(), "next": [asdict(step) for step in tell_steps(verdict.next)]}
