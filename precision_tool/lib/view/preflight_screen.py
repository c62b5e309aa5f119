"""The screen of `preflight`: ranges, loss scale, sensitivities, the search, and in a box what to keep in float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, isnan, log2
from typing import TYPE_CHECKING, TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.preflight_model import (
    LossScale,
    OpRange,
    Preflight,
    Risk,
    Sensitivity,
    TypeForecast,
)
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.catalogue import percent
from precision_tool.lib.view.precision_files import atc_lines, module_lines, outside_modules, scale_lines, script_lines
from precision_tool.lib.view.tables import NUMBERS, Box, Heading, NameTable, Prose, figure_table
from precision_tool.lib.view.text import LabelledLines, Line, json_text, label, plain, safe, shown, whole_path

if TYPE_CHECKING:
    from precision_tool.lib.model.graph import Op

T = TypeVar("T")

_COLUMN = "screen.view.preflight.column"
#: Ops that could not be emulated that are named with their reason.
_NAMED = 3
#: Calls outside modules that are named.
_MOST_CALLS = 10
_RISK_STYLES = {
    Risk.OVERFLOW: "bold red", Risk.OVERFLOW_INSIDE: "bold red", Risk.UNDERFLOW: "yellow", Risk.LOST: "yellow",
}  # fmt: skip


def share(value: float) -> str:
    """Return a relative error in percent; a dash where there is none, and in words where nothing finite came out."""
    if isnan(value):
        return "–"
    return percent(value) if isfinite(value) else render(Message("screen.view.preflight.not_finite"))


def power(value: float) -> str:
    """Return a power of two: 2^10; other numbers as they are."""
    if not isfinite(value) or value <= 0:
        return "–" if isnan(value) else f"{value:g}"
    exponent = log2(value)
    return f"2^{exponent:.0f}" if exponent == round(exponent) else f"{value:.3g}"


def risky(forecast: TypeForecast) -> list[OpRange]:
    """Return the ops that a type is too narrow for, those that overflow farthest first."""
    order = list(Risk)
    bad = [op for op in forecast.ranges if op.risks]
    return sorted(bad, key=lambda op: (order.index(op.risks[0]), least_headroom(op), -op.underflow, -op.rounding))


def least_headroom(op: OpRange) -> float:
    """Return the powers of two that are left: of the results, or of what is larger on the way."""
    return op.headroom if op.inside_headroom is None else min(op.headroom, op.inside_headroom)


def largest_change(one: Sensitivity) -> float | None:
    """Return how much an op's rounding moves the loss or a gradient, whichever is more; None where neither is known."""
    return max((change for change in (one.loss, one.gradients) if not isnan(change)), default=None)


def risk_words(op: OpRange) -> list[Message]:
    """Return what is to be expected of an op."""
    return [Message(f"screen.view.preflight.risk.{risk}", inside=_inside(op)) for risk in op.risks]


def _inside(op: OpRange) -> Message:
    return Message(f"screen.view.preflight.inside.{op.inside or 'other'}")


# --- the screen -------------------------------------------------------------------------------------------------------


def preflight_lines(result: Preflight, limit: int) -> Iterator[RenderableType]:
    """Yield all but the conclusion; at most `limit` ops and emulations of each kind, all for 0."""
    yield LabelledLines(list(_heading(result)))
    for forecast in result.types:
        yield from _type_lines(forecast, limit, bool(result.loss_name))


def _heading(result: Preflight) -> Iterator[Line]:
    yield label("benchmark"), whole_path(result.source)
    if result.graph:
        yield label("graph"), whole_path(result.graph)
    loss = None if isnan(result.loss) else result.loss
    name = safe(result.loss_name) or None
    step = Message("screen.view.preflight.step", framework=result.framework, ops=result.ops, name=name, loss=loss)
    yield Message("screen.view.preflight.label.step"), shown(step)
    bound = Message("screen.view.preflight.bound", loss=result.bound_loss, gradients=result.bound_gradients)
    yield Message("screen.view.preflight.label.bound"), shown(bound)
    if result.not_emulated:
        named = [
            Message("screen.view.preflight.op_reason", name=safe(name), reason=reason)
            for name, reason in list(result.not_emulated.items())[:_NAMED]
        ]
        more = len(result.not_emulated) - len(named)
        message = Message(
            "screen.view.preflight.not_emulated", ops=len(result.not_emulated), named=named, more=more or None
        )
        yield label("note"), shown(message, "yellow")
    if result.unconnected:
        yield label("note"), shown(Message("screen.view.preflight.unconnected", tensors=result.unconnected), "yellow")


def _type_lines(forecast: TypeForecast, limit: int, is_loss: bool) -> Iterator[RenderableType]:
    yield Heading(plain(forecast.dtype, "bold"))
    bad = risky(forecast)
    if bad:
        yield shown(risk_counts(forecast))
        yield _range_table(_some(bad, limit))
        yield from _left_out(len(bad), limit)
    else:
        yield shown(_no_risk(forecast), "green")
    yield shown(scale_words(forecast.scale))
    yield shown(_all_narrow(forecast, is_loss))
    moving = [one for one in forecast.sensitivities if largest_change(one)]
    if moving:
        yield _sensitivity_table(_some(moving, limit))
        yield from _left_out(len(moving), limit)
    else:
        yield shown(Message("screen.view.preflight.no_sensitivity"), "dim")
    if forecast.steps:
        seconds = sum(step.seconds for step in forecast.steps)
        yield shown(Message("screen.view.preflight.search", steps=len(forecast.steps), seconds=seconds))
        yield _search_table(forecast, limit)
        yield from _left_out(len(forecast.steps), limit)
    else:
        yield shown(Message("screen.view.preflight.no_search"), "dim")


def _some(items: Sequence[T], limit: int) -> Sequence[T]:
    return items[: limit or None]


def _left_out(count: int, limit: int) -> Iterator[RenderableType]:
    if limit and count > limit:
        yield shown(Message("screen.view.preflight.some", shown=limit, total=count), "dim")


def risk_counts(forecast: TypeForecast) -> Message:
    """Return how many ops a type is too narrow for, by what happens to them."""
    counts = [
        Message(f"screen.view.preflight.count.{risk}", ops=ops)
        for risk in Risk
        if (ops := sum(risk in op.risks for op in forecast.ranges))
    ]
    return Message("screen.view.preflight.risks", counts=counts)


def _no_risk(forecast: TypeForecast) -> Message:
    tightest = min(forecast.ranges, key=least_headroom, default=None)
    if tightest is None:
        return Message("screen.view.preflight.no_ranges")
    return Message("screen.view.preflight.no_risk", bits=f"{least_headroom(tightest):.1f}", op=safe(tightest.name))


def _range_table(ops: Iterable[OpRange]) -> NameTable:
    table = figure_table()
    table.add_columns(_COLUMN, "largest", "headroom", "inside", "underflow", "rounding", **NUMBERS)
    table.add_columns(_COLUMN, "risk", "op")
    for op in ops:
        inside = "" if op.inside_headroom is None else f"{op.inside_headroom:.1f}"
        words = Message("screen.view.preflight.all", words=risk_words(op))
        style = _RISK_STYLES[op.risks[0]]
        table.add_row(
            f"{op.largest:.3g}", f"{op.headroom:.1f}", inside, percent(op.underflow) if op.underflow else "",
            percent(op.rounding) if isfinite(op.rounding) else "", shown(words, style),
            _op_text(op.name, op.op_type),
        )  # fmt: skip
    return table


def _op_text(name: str, op_type: str) -> Text:
    return Text.assemble((safe(name), "bold"), f" ({safe(op_type)})" if op_type else "")


def scale_words(scale: LossScale) -> Message:
    """Return which loss scales keep the gradients in range."""
    lowest, highest, advised = power(scale.lowest), power(scale.highest), power(scale.advised)
    if not scale.highest:
        return Message("screen.view.preflight.scale.infinite")
    if scale.lowest > scale.highest:
        return Message("screen.view.preflight.scale.none_fits", advised=advised, lowest=lowest, highest=highest)
    if scale.advised == 1:
        return Message("screen.view.preflight.scale.not_needed")
    return Message("screen.view.preflight.scale.advised", advised=advised, lowest=lowest, highest=highest)


def _all_narrow(forecast: TypeForecast, is_loss: bool) -> Message:
    errors = forecast.all_narrow
    return Message(
        "screen.view.preflight.all_narrow", dtype=forecast.dtype, loss=_change(errors.loss, errors.loss, False),
        gradients=_change(errors.gradients, errors.gradients, False), bad=errors.not_finite or None, is_loss=is_loss,
    )  # fmt: skip


def _sensitivity_table(sensitivities: Iterable[Sensitivity]) -> NameTable:
    table = figure_table()
    table.add_columns(_COLUMN, "loss_change", "gradient_change", **NUMBERS)
    table.add_columns(_COLUMN, "by", "op")
    for one in sensitivities:
        by = shown(Message(f"screen.view.preflight.by.{one.by}"), "dim")
        table.add_row(share(one.loss), share(one.gradients), by, plain(one.name, "bold"))
    return table


def _shown_steps(forecast: TypeForecast, limit: int) -> set[int]:
    """Return the places of the emulations to show: the last ones, with that of the set that was chosen."""
    count = len(forecast.steps)
    if not limit or count <= limit:
        return set(range(count))
    chosen = next((n for n in reversed(range(count)) if forecast.steps[n].errors == forecast.with_kept), count - 1)
    return {min(chosen, count - limit), *range(count - limit + 1, count)}


def _search_table(forecast: TypeForecast, limit: int) -> NameTable:
    table = figure_table()
    table.add_columns(_COLUMN, "number", "kept", "loss_error", "gradient_error", "not_finite", "seconds", **NUMBERS)
    table.add_columns(_COLUMN, "newest")
    before: set[str] = set()
    places = _shown_steps(forecast, limit)
    for number, step in enumerate(forecast.steps, 1):
        new = [name for name in step.float32 if name not in before]
        gone = sorted(before - set(step.float32))
        before = set(step.float32)
        change = Message(
            "screen.view.preflight.change", new=safe(new[0]) if new else None, more=max(len(new) - 1, 0) or None,
            gone=safe(gone[0]) if gone else None, others=max(len(gone) - 1, 0) or None,
        )  # fmt: skip
        if number - 1 not in places:
            continue
        table.add_row(
            str(number), str(len(step.float32)), share(step.errors.loss), share(step.errors.gradients),
            str(step.errors.not_finite or ""), f"{step.seconds:.1f}", shown(change),
        )  # fmt: skip
    return table


# --- the conclusion ---------------------------------------------------------------------------------------------------


def conclusion(forecast: TypeForecast, result: Preflight) -> Message:
    """Return what to keep in float32 and what comes of it, in a sentence."""
    before, after, scale = forecast.all_narrow, forecast.with_kept, forecast.scale.advised
    fields = {
        "dtype": forecast.dtype, "ops": result.ops, "is_loss": bool(result.loss_name),
        "kept": len(forecast.kept) or None, "whole": result.is_whole,
        "not_emulated": _named(forecast.kept_not_emulated) or None,
        "loss": _change(before.loss, after.loss, bool(forecast.kept)),
        "gradients": _change(before.gradients, after.gradients, bool(forecast.kept)), "bad": after.not_finite or None,
        "scale": None if scale == 1 else f"{scale:.0f}" if scale > 1 else power(scale),
    }  # fmt: skip
    if forecast.is_enough is None:
        return Message("screen.view.preflight.conclusion.not_known", **fields, lost=isnan(after.loss))
    if not forecast.is_enough:
        return Message("screen.view.preflight.conclusion.not_enough", **fields, stopped=not forecast.is_finished)
    if not forecast.kept:
        return Message("screen.view.preflight.conclusion.as_it_is", **fields)
    return Message("screen.view.preflight.conclusion.keep", **fields, least=_least(forecast))


def _named(names: Sequence[str]) -> list[str | Message]:
    return _shown_names(names, _NAMED)


def _change(before: float, after: float, is_pair: bool) -> str | None:
    """Return an error before and after; None where there is none."""
    if isnan(after) and isnan(before):
        return None
    return f"{share(before)} → {share(after)}" if is_pair else share(before)


def _least(forecast: TypeForecast) -> Message:
    """Return how far the set is from the smallest one, where that is known."""
    if not forecast.is_finished:
        return Message("screen.view.preflight.least.stopped")
    if len(forecast.kept) > 1 and forecast.smallest is None:
        return Message("screen.view.preflight.least.unknown")
    if forecast.smallest is None or forecast.smallest >= len(forecast.kept):
        return Message("screen.view.preflight.least.smallest")
    return Message("screen.view.preflight.least.larger", smallest=forecast.smallest)


def kept_lines(forecast: TypeForecast, limit: int) -> list[Line]:
    """Return the names of what is kept in float32."""
    listed = (
        ("types", forecast.kept_types), ("modules", forecast.kept_modules), ("ops", forecast.kept),
    )  # fmt: skip
    return [
        (
            Message(f"screen.view.preflight.label.{name}"),
            shown(Message("screen.view.preflight.names", names=_shown_names(names, limit))),
        )
        for name, names in listed
        if names
    ]


def _shown_names(names: Sequence[str], limit: int) -> list[str | Message]:
    some: list[str | Message] = [safe(name) for name in names[: limit or None]]
    more = len(names) - len(some)
    return [*some, Message("screen.view.preflight.more", more=more)] if more else some


def conclusion_box(result: Preflight, limit: int) -> RenderableType:
    """Return the conclusion, last and heaviest on the screen: what each type takes."""
    parts: list[RenderableType] = []
    parts.append(Prose(shown(emulated_share(result))))
    for forecast in result.types:
        parts.append(Prose(shown(conclusion(forecast, result), style_of(forecast))))
        if forecast.kept:
            parts.append(LabelledLines(kept_lines(forecast, limit)))
    styles = [style_of(forecast) for forecast in result.types]
    style = next((each for each in ("bold red", "bold yellow") if each in styles), "green")
    return Box(Group(*parts), title=shown(Message("screen.view.preflight.title")), style=style, box=box.HEAVY)


def emulated_share(result: Preflight) -> Message:
    """Return how much of the step was emulated, and where changes end."""
    return Message(
        "screen.view.preflight.emulated", emulated=result.emulated, ops=result.ops,
        between=_named(result.between) or None,
    )  # fmt: skip


def style_of(forecast: TypeForecast) -> str:
    """Return the style of a conclusion: red beyond the bound, yellow where something has to be done, green else."""
    if forecast.is_enough is False:
        return "bold red"
    is_safe = forecast.is_enough is not None
    return "bold yellow" if not is_safe or forecast.kept or forecast.with_kept.not_finite else "green"


# --- the files that were written ---


def files_block(
    forecast: TypeForecast, framework: str, ops: Sequence[Op], paths: Sequence[tuple[str, str]], *, is_in_place: bool
) -> Iterator[RenderableType]:
    """Yield the files of a type, and the lines of a script or of ATC that use them.

    Parameters
    ----------
    forecast : TypeForecast
        The type.
    framework : str
        Whose script it is.
    ops : sequence of Op
        The ops of the graph.
    paths : sequence of (str, str)
        The option of GE and the path of each file.
    is_in_place : bool
        Whether the training helper finds the mixed-precision list by itself.
    """
    if forecast.is_enough is False:
        yield shown(Message("screen.cli.preflight.not_verified", dtype=forecast.dtype), "bold yellow")
        return
    outside = outside_modules(forecast, ops)
    scaling = scale_lines(framework, forecast.scale.advised, is_alone=not paths)
    if not paths and not outside:
        yield shown(Message("screen.cli.preflight.nothing_to_write", dtype=forecast.dtype), "green")
    for _, path in paths:
        line = shown(Message("screen.cli.preflight.file", path=safe(shown_path(path))))
        line.no_wrap, line.overflow = True, "ignore"
        yield line
    of_option = dict(paths)
    if not paths:
        lines = scaling
    elif framework == "TensorFlow":
        lines = [*script_lines(forecast.dtype, of_option, is_in_place), *scaling]
        lines += ["", *atc_lines(forecast.dtype, of_option)]
    else:
        lines = [*module_lines(framework, paths[0][1]), *scaling]
    if lines:
        yield shown(Message("screen.view.preflight.lines_for", dtype=forecast.dtype), "dim")
    yield from (Text(f"  {line}".rstrip(), no_wrap=True, overflow="ignore") for line in lines)
    if outside:
        calls = [
            Message("screen.view.preflight.call", name=safe(op.name), source=safe(op.source) or None)
            for op in outside[:_MOST_CALLS]
        ]
        more = len(outside) - len(calls) or None
        yield shown(
            Message("screen.view.preflight.outside", calls=calls, more=more, torch=framework == "PyTorch"), "yellow"
        )
    if paths and framework == "TensorFlow":
        yield shown(Message("screen.view.preflight.names_may_change"), "dim")


# --- JSON -------------------------------------------------------------------------------------------------------------


def preflight_json(result: Preflight, files: Mapping[str, str] = {}) -> str:
    """Return the result as one JSON document; `files` are those that were written, each with its option of GE."""
    document = {**asdict(result), "source": shown_path(result.source), "graph": shown_path(result.graph)}
    written = [{"file": shown_path(path), "option": option or None} for path, option in files.items()]
    return json_text({**document, "files": written})
