"""What has changed since an earlier verdict: whether its culprit computes right now, and a switch took effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.model.reason import reason_kind
from precision_tool.lib.verdict.model import Cause, Proof
from precision_tool.lib.verdict.stored import JudgedRun, StoredVerdict

#: What is still so of an op whose own error is not what accuses it.
_STILL = {
    Cause.OVERFLOW: "overflows", Cause.STOMP: "overwritten", Cause.CAST: "narrows", Cause.RANDOM: "draws",
    Cause.INPUT: "differs", Cause.WEIGHTS: "differs",
}  # fmt: skip
#: What is no more.
_NO_MORE = {Cause.OVERFLOW: "fits", Cause.STOMP: "whole", Cause.CAST: "keeps", Cause.RANDOM: "agrees"}
_MENDED = frozenset({"right", "gone", "agrees", "repeats", *_NO_MORE.values()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that a switch may have changed: `what` is "pass", "type" or "scale", of `name`; before and now."""

    what: str
    name: str
    before: Message | str
    now: Message | str

    @property
    def is_changed(self) -> bool:
        """Whether it is another one now."""
        return self.before != self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """An earlier verdict held against today's.

    `state` is what became of the former culprit. Where today's verdict names it still, it is by today's cause, "wrong"
    or one of `_STILL`; where it does not, one of `_NO_MORE`, "agrees" for data and variables, which nothing recomputes,
    "one_run" where the fault takes two runs to be seen, "unseen" where it takes
    a benchmark or a dump that is missing, "gone" for an op that is no longer in the graph, or one of
    `JudgedOp.state`. `next_culprit` is whom today's verdict names, None for nobody. `is_same_dump` tells that nothing
    was collected since.
    """

    file: str
    culprit: str
    cause: str
    state: str
    own_error_before: float | None = None
    own_error: float | None = None
    changes: Sequence[Change] = ()
    next_culprit: str | None = None
    next_cause: str = "none"
    is_same_dump: bool = False

    @property
    def is_mended(self) -> bool:
        """Whether the former culprit is one no more."""
        return self.culprit != self.next_culprit and self.state in _MENDED

    def to_dict(self) -> dict[str, Any]:
        """The object `since` of JSON."""
        return {
            "file": self.file, "culprit": self.culprit, "cause": self.cause, "state": self.state,
            "mended": self.is_mended, "own_error_before": self.own_error_before, "own_error": self.own_error,
            "changes": [
                {
                    "what": one.what, "name": one.name, "before": render(one.before), "now": render(one.now),
                    "changed": one.is_changed,
                }
                for one in self.changes
            ],
            "same_dump": self.is_same_dump, "next_culprit": self.next_culprit, "next_cause": self.next_cause,
        }  # fmt: skip


def since(earlier: StoredVerdict, now: StoredVerdict) -> Since | None:
    """What became of the culprit of an earlier verdict; None where it named none."""
    culprit = earlier.verdict["culprit"]
    if culprit is None:
        return None
    was = next(iter(earlier.runs))
    named = next((one for one in now.verdict["suspects"] if _names(one, culprit)), None)
    run = next((one for one in now.runs if one.number == was.number), now.runs[0]) if named is None else now.runs[0]
    before, after = _op(was, culprit), _op(run, culprit)
    return Since(
        file=earlier.path,
        culprit=culprit,
        cause=earlier.verdict["cause"],
        state=_no_more(earlier, now, before, after) if named is None else _still(named),
        own_error_before=before.own_error if before is not None else None,
        own_error=after.own_error if after is not None else None,
        changes=(*_passes(earlier, was, run, before), *_types(before, after), *_scale_changes(was, run)),
        next_culprit=now.verdict["culprit"],
        next_cause=now.verdict["cause"],
        is_same_dump=was.dump == run.dump != "",
    )


def _names(suspect: Mapping[str, Any], culprit: str) -> bool:
    """Whether a suspicion is of an op; what overwrote memory is further named with it, and computes right."""
    return suspect["culprit"] == culprit or (suspect["cause"] != Cause.STOMP and culprit in suspect["also"])


def _still(suspect: Mapping[str, Any]) -> str:
    """What is wrong with the former culprit now."""
    if suspect["proof"] == Proof.RUNS:
        return "unsteady"
    return _STILL.get(suspect["cause"], "wrong")


def _no_more(earlier: StoredVerdict, now: StoredVerdict, before: JudgedOp | None, after: JudgedOp | None) -> str:
    """What became of the former culprit, whom today's verdict does not name."""
    cause = earlier.verdict["cause"]
    is_bare = earlier.verdict["benchmark"] and not now.verdict["benchmark"]
    if after is None:  # data or a variable, which no op computes, if it was not judged before
        return "gone" if before is not None else "unseen" if is_bare else "agrees"
    if after.state == "wrong":
        return "wrong"
    if earlier.verdict["suspects"][0]["proof"] == Proof.RUNS:
        return "repeats" if len(now.runs) > 1 else "one_run"
    if cause == Cause.OVERFLOW and after.overflowed:
        return "overflows"
    if cause == Cause.RANDOM:  # this needs no recomputing to be seen, but another side
        return "unseen" if is_bare else _NO_MORE[cause]
    if cause == Cause.STOMP and after.is_fed_by_others:
        return "unseen"
    if cause == Cause.STOMP and before is not None and _is_as_before(before, after):
        return _NO_MORE[cause]  # what it reads is known as it was then
    if after.state == "right":
        return _NO_MORE.get(cause, "right")
    return after.state


def _is_as_before(before: JudgedOp, after: JudgedOp) -> bool:
    """Whether an op was judged, or not judged, for the same reason; those of older releases are only words."""
    if isinstance(before.reason, str) or isinstance(after.reason, str):
        return before.state == after.state and bool(before.reason) == bool(after.reason)
    return (before.state, reason_kind(before.reason)) == (after.state, reason_kind(after.reason))


def _op(run: JudgedRun, name: str) -> JudgedOp | None:
    return next((op for op in run.ops if op.name == name), None)


def _passes(earlier: StoredVerdict, was: JudgedRun, run: JudgedRun, before: JudgedOp | None) -> Iterator[Change]:
    """The passes that made the culprit: of how many ops in each run."""
    names = set(before.passes) if before is not None else set()
    names |= {earlier.verdict["pass"]} - {None}
    for name in sorted(names):
        before_count, count = (
            Message("since.ops", count=sum(name in op.passes for op in each.ops)) for each in (was, run)
        )
        yield Change(what="pass", name=name, before=before_count, now=count)


def _types(before: JudgedOp | None, after: JudgedOp | None) -> Iterator[Change]:
    if before is None or after is None:
        return
    for number, (old, new) in enumerate(zip(before.output_types, after.output_types, strict=False)):
        yield Change(what="type", name=f"{after.name}:output:{number}", before=old, now=new)


def _scale_changes(was: JudgedRun, run: JudgedRun) -> Iterator[Change]:
    """The loss scale of each run, as far as they tell it."""
    for name in sorted(was.scales.keys() & run.scales.keys()):
        yield Change(what="scale", name=name, before=f"{was.scales[name]:g}", now=f"{run.scales[name]:g}")
    for name in sorted(was.scales.keys() ^ run.scales.keys()):
        before, now = (
            f"{each.scales[name]:g}" if name in each.scales else Message("since.not_seen") for each in (was, run)
        )
        yield Change(what="scale", name=name, before=before, now=now)
