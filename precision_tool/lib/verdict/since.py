"""What has changed since an earlier verdict: whether its culprit computes right now, and a switch took effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.model.judged import JudgedOp
from precision_tool.lib.model.wording import counted
from precision_tool.lib.verdict.stored import JudgedRun, StoredVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that a switch may have changed: `what` is "pass", "type" or "scale", of `name`; before and now."""

    what: str
    name: str
    before: str
    now: str

    @property
    def is_changed(self) -> bool:
        """Whether it is another one now."""
        return self.before != self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """An earlier verdict held against today's.

    `state` is what recomputing says of the former culprit now: one of `JudgedOp.state`, "gone" for an op that is no
    longer in the graph, "agrees" or "differs" for data and variables, which nothing recomputes. `next_culprit` is
    whom today's verdict names, None for nobody.
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

    @property
    def is_mended(self) -> bool:
        """Whether the former culprit is one no more."""
        return self.culprit != self.next_culprit and self.state in ("right", "gone", "agrees")

    def to_dict(self) -> dict[str, Any]:
        """The object `since` of JSON."""
        return {
            "file": self.file, "culprit": self.culprit, "cause": self.cause, "state": self.state,
            "mended": self.is_mended, "own_error_before": self.own_error_before, "own_error": self.own_error,
            "changes": [
                {"what": one.what, "name": one.name, "before": one.before, "now": one.now, "changed": one.is_changed}
                for one in self.changes
            ],
            "next_culprit": self.next_culprit, "next_cause": self.next_cause,
        }  # fmt: skip


def since(earlier: StoredVerdict, now: StoredVerdict) -> Since | None:
    """What became of the culprit of an earlier verdict; None where it named none."""
    culprit = earlier.verdict["culprit"]
    if culprit is None:
        return None
    was = next(iter(earlier.runs))
    run = next((one for one in now.runs if one.number == was.number), now.runs[0])
    before, after = _op(was, culprit), _op(run, culprit)
    suspects = now.verdict["suspects"]
    if after is not None:
        state = after.state
    elif before is not None:
        state = "gone"
    else:  # data or a variable, which no op computes
        state = "differs" if any(one["culprit"] == culprit for one in suspects) else "agrees"
    return Since(
        file=earlier.path,
        culprit=culprit,
        cause=earlier.verdict["cause"],
        state=state,
        own_error_before=before.own_error if before is not None else None,
        own_error=after.own_error if after is not None else None,
        changes=(*_passes(earlier, was, run, before), *_types(before, after), *_scale_changes(earlier, now)),
        next_culprit=now.verdict["culprit"],
        next_cause=now.verdict["cause"],
    )


def _op(run: JudgedRun, name: str) -> JudgedOp | None:
    return next((op for op in run.ops if op.name == name), None)


def _passes(earlier: StoredVerdict, was: JudgedRun, run: JudgedRun, before: JudgedOp | None) -> Iterator[Change]:
    """The passes that made the culprit: of how many ops in each run."""
    names = set(before.passes) if before is not None else set()
    names |= {earlier.verdict["pass"]} - {None}
    for name in sorted(names):
        counts = [counted(sum(name in op.passes for op in one.ops), "op") for one in (was, run)]
        yield Change(what="pass", name=name, before=counts[0], now=counts[1])


def _types(before: JudgedOp | None, after: JudgedOp | None) -> Iterator[Change]:
    if before is None or after is None:
        return
    for number, (old, new) in enumerate(zip(before.output_types, after.output_types, strict=False)):
        yield Change(what="type", name=f"{after.name}:output:{number}", before=old, now=new)


def _scale_changes(earlier: StoredVerdict, now: StoredVerdict) -> Iterator[Change]:
    old, new = _scales(earlier.verdict), _scales(now.verdict)
    for name in sorted(old.keys() | new.keys()):
        yield Change(what="scale", name=name, before=old.get(name, "none"), now=new.get(name, "none"))


def _scales(verdict: Mapping[str, Any]) -> dict[str, str]:
    """The loss scale by its op, as far as a verdict tells."""
    found = [one for one in verdict["suspects"] if one["cause"] == "loss_scale"]
    return {one["culprit"]: f"{one['evidence']['factor']:g}" for one in found if "factor" in one["evidence"]}
