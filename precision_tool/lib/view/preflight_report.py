"""The report of `preflight`: one HTML file with a heat map of all ops, and all of it as text where no script runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from math import isfinite, isnan
from typing import Any

from rich.console import Group

from precision_tool.lib.data.settings import PROGRAM
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.preflight_model import OpRange, Preflight, Sensitivity, TypeForecast
from precision_tool.lib.diagnose.verdict_model import StepText
from precision_tool.lib.messages import Message
from precision_tool.lib.version import __version__
from precision_tool.lib.view.packed_columns import both, numbers
from precision_tool.lib.view.preflight_screen import (
    conclusion,
    conclusion_box,
    emulated_share,
    least_headroom,
    preflight_lines,
    risk_counts,
    risk_words,
    scale_words,
    share,
    style_of,
)
from precision_tool.lib.view.report_document import SCHEMA, steps_document
from precision_tool.lib.view.report_page import plain_text, write_page

#: Digits of a value of the heat map.
_DIGITS = 4


def write_preflight(path: str, result: Preflight, steps: Sequence[StepText] = (), command: str = PROGRAM) -> None:
    """Write the report on a pre-flight as one HTML file.

    Parameters
    ----------
    path : str
        The file; written whole or not at all.
    result : Preflight
        What `preflight` tells.
    steps : sequence of StepText
        What to do next.
    command : str
        What begins a command line for the data.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    time = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    document = preflight_document(result, steps, tool=f"precision_tool {__version__}", time=time, command=command)
    write_page(path, document, [plain_text(Group(*preflight_lines(result, 0), conclusion_box(result, 0)))])


def preflight_document(
    result: Preflight, steps: Sequence[StepText] = (), *, tool: str, time: str, command: str = PROGRAM
) -> dict[str, Any]:
    """Return the data of the page: for each type a row of headrooms, and one of shares of the bounds that ops take."""
    named: dict[str, OpRange] = {}
    for forecast in result.types:
        for op in forecast.ranges:
            named.setdefault(op.name, op)
    ops, risks = list(named), _risks(result)
    return {
        "schema": SCHEMA, "tool": tool, "time": time, "results": [],
        "preflight": {
            "source": shown_path(result.source), "graph": shown_path(result.graph), "ops": ops,
            "op_types": [op.op_type for op in named.values()], "types": [_type(each, result) for each in result.types],
            "rows": [row for forecast in result.types for row in _rows(result, forecast, ops)],
            "risks": [both(Message("screen.view.preflight.all", words=risks[name])) for name in ops],
            "notes": [
                both(Message("screen.view.preflight.op_reason", name=name, reason=reason))
                for name, reason in result.not_emulated.items()
            ],
            "next": steps_document(steps, command), "command": command,
        },
    }  # fmt: skip


def _type(forecast: TypeForecast, result: Preflight) -> dict[str, Any]:
    marks = {"bold red": "is-bad", "bold yellow": "is-doubtful", "green": "is-good"}
    facts = [scale_words(forecast.scale), emulated_share(result)]
    if any(op.risks for op in forecast.ranges):
        facts.insert(0, risk_counts(forecast))
    return {
        "dtype": forecast.dtype, "mark": marks[style_of(forecast)], "conclusion": both(conclusion(forecast, result)),
        "facts": [both(fact) for fact in facts], "kept": list(forecast.kept),
        "kept_types": list(forecast.kept_types), "kept_modules": list(forecast.kept_modules),
        "steps": [
            {
                "kept": len(step.float32), "loss": share(step.errors.loss), "gradients": share(step.errors.gradients),
                "not_finite": step.errors.not_finite, "seconds": step.seconds,
            }
            for step in forecast.steps
        ],
    }  # fmt: skip


def _rows(result: Preflight, forecast: TypeForecast, ops: Sequence[str]) -> Iterator[dict[str, Any]]:
    room = {op.name: least_headroom(op) for op in forecast.ranges if isfinite(least_headroom(op))}
    taken = {one.name: _taken(result, one) for one in forecast.sensitivities}
    yield _row("headroom", forecast.dtype, room, ops)
    yield _row("sensitivity", forecast.dtype, taken, ops)


def _taken(result: Preflight, one: Sensitivity) -> float | None:
    """Return how much of the bounds the rounding of an op takes, of the loss or of gradients; None where unknown."""
    taken = (one.loss / result.bound_loss, one.gradients / result.bound_gradients)
    return max((each for each in taken if not isnan(each)), default=None)


def _row(what: str, dtype: str, values: Mapping[str, float | None], ops: Sequence[str]) -> dict[str, Any]:
    return {"what": what, "dtype": dtype, "values": numbers([values.get(name) for name in ops], _DIGITS)}


def _risks(result: Preflight) -> dict[str, list[Message]]:
    """Return what happens to each op, the same for all types once."""
    words: dict[str, list[Message]] = {}
    for forecast in result.types:
        for op in forecast.ranges:
            own = words.setdefault(op.name, [])
            own += [word for word in risk_words(op) if word not in own]
    return words
