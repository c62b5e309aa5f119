"""Words for casts to a narrower type, and what they lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from precision_tool.lib.checks.casts import (
    BecameInf,
    BecameNan,
    BecameZero,
    BeyondIntegers,
    BeyondRange,
    CastLoss,
    CastsFound,
    CastVerdict,
    ComputesMore,
    EnoughRead,
    FarOff,
    InSlices,
    NoNumbers,
    NotCompared,
    NotDumped,
    NotFiniteToInteger,
    NoValues,
    Unreadable,
)
from precision_tool.lib.model.finding import Evidence
from precision_tool.lib.model.wording import counted
from precision_tool.lib.present.evidence.missing import no_graph

_SHOWN = 5


def _found(one: CastsFound) -> str:
    losses, dangerous = counted(len(one.losses), "cast"), one.judged(CastVerdict.DANGEROUS)
    suspicious = len(one.judged(CastVerdict.SUSPICIOUS))
    if dangerous:
        return f"{len(dangerous)} of {losses} to a narrower type lost values"
    if suspicious:
        return f"no cast was seen to lose values; narrower by their types, but not read: {suspicious}"
    return f"no value was lost in {losses} to a narrower type" if one.losses else "no op casts to a narrower type"


def _looked_at(one: CastsFound) -> str:
    where = f"debug_{one.number}" if one.number is not None else "the graph"
    text = f"{counted(one.ops, 'op')} of {where} with {counted(one.casts, 'cast')}: "
    if not one.losses:
        return f"{text}none to a narrower type"
    seen = len(one.losses) - len(one.judged(CastVerdict.SUSPICIOUS))
    return f"{text}{len(one.losses)} to a narrower type, the values of {seen} were read before and after"


def _facts(one: CastsFound) -> Iterator[tuple[str, str]]:
    for missing in one.missing:
        yield "not looked at", no_graph(missing)
    dangerous = one.judged(CastVerdict.DANGEROUS)
    for loss in dangerous[:_SHOWN]:
        yield "loses", f"{loss.op_name}: {loss.source} → {loss.target}: {reason_of(loss)}"
    if len(dangerous) > _SHOWN:
        yield "loses", f"and {len(dangerous) - _SHOWN} more"
    for loss in one.judged(CastVerdict.SUSPICIOUS)[: max(_SHOWN - len(dangerous), 0)]:
        yield "suspicious", f"{loss.op_name} ({loss.op_type}): {loss.source} → {loss.target}: {reason_of(loss)}"
    for (source, target), count in Counter((loss.source, loss.target) for loss in one.losses).most_common():
        yield "types", f"{source} → {target}: {count}"


def reason_of(loss: CastLoss) -> str:
    """What a cast lost, or why that is not known."""
    return "; ".join(SENTENCES[type(one)](one) for one in loss.reasons) or "the values keep what the type can hold"


def _detail(loss: CastLoss) -> dict[str, Any]:
    return {
        "op_name": loss.op_name,
        "op_type": loss.op_type,
        "source": loss.source,
        "target": loss.target,
        "verdict": loss.verdict,
        "reason": reason_of(loss),
    }


SENTENCES: dict[type[Evidence], Callable[[Any], str]] = {
    BecameInf: lambda one: f"{one.count} Inf appear",
    BecameNan: lambda one: f"{one.count} NaN appear",
    BecameZero: lambda one: f"{one.lost} of {counted(one.values, 'value')} become 0, too small for the type",
    BeyondIntegers: lambda one: (
        f"values from {one.smallest:g} to {one.largest:g}, and the type ends at {one.low} and {one.high}"
    ),
    BeyondRange: lambda one: f"values up to {one.largest:g}, and the type ends at {one.limit:g}",
    CastsFound: _found,
    ComputesMore: lambda one: "the op computes more than a cast, so its loss cannot be told from its tensors",
    EnoughRead: lambda one: f"not read: {one.limit >> 20} MiB of casts were read before it",
    FarOff: lambda one: f"the output is {one.distance:.1%} off the input",
    InSlices: lambda one: f"it ran in {one.slices} slices, of which only the first has its input here",
    NoNumbers: lambda one: f"{one.before} and {one.after} are not both numbers",
    NotCompared: lambda one: str(one.reason),
    NotDumped: lambda one: "not dumped",
    NotFiniteToInteger: lambda one: f"{one.count} NaN or Inf become integers",
    NoValues: lambda one: "its input or its output was not dumped, or only as statistics",
    Unreadable: lambda one: f"cannot be read: {one.reason}",
}
FACTS: dict[type[Evidence], Callable[[Any], Iterable[tuple[str, str]]]] = {CastsFound: _facts}
LOOKED_AT: dict[type[Evidence], Callable[[Any], str]] = {CastsFound: _looked_at}
DETAILS: dict[type[Any], Callable[[Any], dict[str, Any]]] = {CastLoss: _detail}
