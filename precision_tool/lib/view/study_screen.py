"""A study on the terminal: its one verdict, what was looked at, and the heat maps."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from math import isinf, isnan
from typing import Any

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.redump import Redump
from precision_tool.lib.diagnose.replica_count import Departure
from precision_tool.lib.diagnose.replica_feeds import FeedDeparture, same_batch_note
from precision_tool.lib.diagnose.replica_votes import Role
from precision_tool.lib.diagnose.study import Study
from precision_tool.lib.diagnose.study_conclusion import Culprit, Ground, Reach, is_from_others
from precision_tool.lib.diagnose.study_journal import LeafState
from precision_tool.lib.diagnose.study_plan import Judging
from precision_tool.lib.diagnose.study_statistics import Evidence, StatisticsFound, Suspicion
from precision_tool.lib.diagnose.study_table import HeatMap
from precision_tool.lib.diagnose.update_inputs import Feed
from precision_tool.lib.diagnose.verdict_model import Cause, StepText
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.messages import Message, render, text
from precision_tool.lib.model.wording import spans
from precision_tool.lib.view.tables import Box, Prose
from precision_tool.lib.view.text import (
    LabelledLines,
    Line,
    label,
    labelled,
    marked_pass,
    plain,
    safe,
    shown,
    shown_reason,
    whole_path,
)
from precision_tool.lib.view.verdict_messages import cause_name, confidence
from precision_tool.lib.view.verdict_screen import NextSteps

#: Distances from which on a cell of a heat map is darker; Inf stands beyond them.
_SHADES = (0.0, 1e-3, 1e-2, 0.1, 0.5)
_BLOCKS, _ASCII = "·░▒▓█", ".-+*#"
#: Those of what was not compared with a benchmark, but recomputed.
_ALONE = "':;%@"
_STYLES = ("dim", "green", "yellow", "red", "bold red")
_ROWS = 24
_FAILURES, _FURTHER = 3, 5


def study_block(study: Study, command: str = "precision-tool", named: Sequence[str] | None = None) -> RenderableType:
    """The verdict on all of it: who, on which ranks, from which step on, and how that is known.

    Below it stands what to do next; `command` begins the lines that are commands of this tool. `named` are the
    further options of a study of one dump that was named, None for one of data folders.
    """
    culprit = study.conclusion.culprit
    off = None if culprit is not None else _first_off(study)
    rows: list[Line] = []
    if culprit is None:
        kind = without_culprit(study)
        head = shown(kind)
        is_clean = study.is_recomputed and kind == Message("study.without_culprit.clean")
        style = "green" if is_clean else "yellow"
    else:
        head, style = _head(study, culprit), "bold red" if culprit.ground is not Ground.COMPARED else "bold yellow"
        rows += _rows(study, culprit)
    if study.conclusion.not_finite is not None:
        rows.append((_label("not_finite"), shown(_not_finite(study, study.conclusion.not_finite))))
    rows += _looked_at(study)
    if study.unread_reason is not None:
        reason = Message("study.unread", count=study.unread, reason=shown_reason(study.unread_reason))
        rows.append((_label("unread"), shown(reason, "yellow")))
    if culprit is not None:
        rows.append((_label("dump"), whole_path(culprit.path)))
    if off is not None and off.first is not None:
        place = place_of(off.leaf.step, off.leaf.rank)
        rows.insert(0, (_label("off"), shown(Message("study.off", place=place, op=off.first.op))))
    title = shown(Message("study.title"))
    block = Box(Group(Prose(head), LabelledLines(rows)), title=title, style=style, box=box.HEAVY)
    if culprit is None:
        following = next_steps(study) if named is None else []
        return Group(block, NextSteps(following, command)) if following else block
    return Group(block, NextSteps(next_steps(study, named), command))


def without_culprit(study: Study) -> Message:
    """Return what to say where no op is accused: that is no acquittal where nothing could be looked at."""
    if study.statistics is not None and study.statistics.suspicions:
        return Message("study.without_culprit.see_statistics")
    if _first_off(study) is not None:
        return Message("study.without_culprit.off_benchmark")
    if not study.is_recomputed and any(state.below for state in study.leaves):
        return Message("study.without_culprit.off_unknown")
    if study.conclusion.same_batch:
        return same_batch_note(study.conclusion.same_batch[0])
    if study.has_evidence:
        return Message("study.without_culprit.clean" if not study.unread else "study.without_culprit.unread")
    kind = "unknown" if study.statistics is None else "statistics_unknown"
    return Message(f"study.without_culprit.{kind}")


def place_of(step: int, rank: int) -> Message:
    return Message("study.place", step=step, rank=rank)


def _label(name: str) -> Message:
    return Message(f"study.label.{name}")


def _not_finite(study: Study, place: tuple[int, int, str]) -> Message:
    """Return where NaN or Inf was first, and whether the other ranks got it from there."""
    step, rank, tensor = place
    others = [state for state in study.leaves if state.leaf.step == step and state.bad and state.leaf.rank != rank]
    is_received = not is_from_others(tensor) and all(is_from_others(state.first_bad) for state in others)
    count = len({state.leaf.rank for state in others}) if is_received else None
    return Message("study.not_finite", place=place_of(step, rank), tensor=tensor, others=count or None)


def _head(study: Study, culprit: Culprit) -> Text:
    place = place_of(culprit.step, culprit.rank)
    message = Message("study.culprit", place=place, op=culprit.op or None, type=culprit.type)
    text = shown(message, fields={"place": "bold", "op": "bold red"}).append("\n")
    return text.append_text(shown(reach_of(study, culprit), "bold"))


def reach_of(study: Study, culprit: Culprit) -> Message:
    """Return where it is wrong, and what that tells, with the steps that were recomputed there."""
    judged = {state.leaf.step for state in study.leaves if state.has_verdict and state.leaf.rank in culprit.ranks}
    return reach(culprit, study.steps, judged)


def reach(culprit: Culprit, steps: Sequence[int], judged: Collection[int] | None = None) -> Message:
    """Return where it is wrong, and what that tells. `judged` are the steps recomputed there, by default all."""
    since = _since(culprit, steps, judged)
    count, right = len(culprit.ranks), len(culprit.right)
    if culprit.shift is not None:
        shift = culprit.shift
        who = Message("study.ranks_are" if len(shift.ranks) > 1 else "study.rank_is", ranks=spans(shift.ranks))
        return Message(
            "study.shifted", who=who, count=abs(shift.offset), behind=shift.offset > 0, own=shift.own,
            theirs=shift.theirs,
        )  # fmt: skip
    if culprit.feed is not None and _is_scale(culprit.feed):
        return Message(
            "study.reach.scale", who=_who_differs(culprit.ranks), scale=culprit.feed.value, others=right,
            usual=culprit.feed.usual,
        )  # fmt: skip
    if culprit.feed is not None:
        feed = culprit.feed
        what = Message(f"study.feed.{feed.feed}", others=feed.count - 1 or None, value=feed.value, usual=feed.usual)
        return Message("study.reach.feed", who=_who_differs(culprit.ranks), right=right or None, what=what)
    if culprit.reach is Reach.ALL_RANKS:
        return Message(
            "study.reach.all_ranks", count=count, unknown=bool(culprit.unknown), since=since, blame=_shared(culprit)
        )
    if culprit.reach is Reach.ONE_RANK and culprit.ground is Ground.REPLICAS:
        blame = Message(f"study.blame.{'link' if culprit.cause == 'communication' else 'device'}")
        return Message("study.reach.one_replica", rank=culprit.rank, right=right, blame=blame)
    if culprit.reach is Reach.ONE_RANK:
        return Message("study.reach.one_rank", rank=culprit.rank, since=since, right=right, blame=_of_one_rank(culprit))
    if culprit.reach is Reach.SOME_RANKS:
        ranks = spans(culprit.ranks)
        return Message("study.reach.some_ranks", count=count, all=count + right, ranks=ranks, since=since)
    if culprit.ground is Ground.REPLICAS:
        return Message("study.reach.replicas", ranks=spans(culprit.ranks))
    return Message("study.reach.not_told", since=since)


def _is_scale(feed: FeedDeparture) -> bool:
    """Return whether data are of another size than those of the other ranks."""
    return feed.feed is Feed.DATA and feed.value is not None


def _since(culprit: Culprit, steps: Sequence[int], judged: Collection[int] | None) -> Message:
    later = [step for step in steps if step >= culprit.step]
    if len(later) > 1 and set(later) <= set(culprit.steps):
        return Message("study.since.on", step=culprit.step)
    is_unjudged = judged is not None and len(later) > 1 and not {*later[1:]} & {*culprit.steps, *judged}
    return Message("study.since.only", step=culprit.step, unjudged=is_unjudged)


#: What is at fault where ops only hand on what came in from outside.
_FROM_OUTSIDE = (str(Cause.INPUT), str(Cause.WEIGHTS))


def _shared(culprit: Culprit) -> Message:
    """Return what all ranks share, and is to blame."""
    if culprit.ground is Ground.SUM:
        return Message("study.blame.not_the_sum")
    if culprit.cause in _FROM_OUTSIDE:
        return Message(f"study.blame.all_{culprit.cause}")
    is_kernel = culprit.cause in ("kernel", "compared", "first_faulty_op")
    return Message("study.blame.shared", cause=None if is_kernel else cause_name(culprit.cause))


def _of_one_rank(culprit: Culprit) -> Message:
    """Return what one rank alone has: its device, and unless it was fed as the others its data too."""
    if culprit.cause in _FROM_OUTSIDE:
        return Message(f"study.blame.one_{culprit.cause}")
    if culprit.ground is Ground.SUM:
        return Message("study.blame.link")
    return Message("study.blame.device" if culprit.is_fed_alike else "study.blame.device_or_data")


def ground_of(culprit: Culprit) -> Message:
    return Message(f"study.ground.{culprit.ground}")


def _rows(study: Study, culprit: Culprit) -> list[Line]:
    cause = Message("study.cause", cause=cause_name(culprit.cause), ground=ground_of(culprit))
    rows: list[Line] = [(_label("cause"), shown(cause))]
    if culprit.run is not None:
        rows.append((_label("run"), shown(Message("study.other_run", run=f"debug_{culprit.run}"))))
    if culprit.pass_name:
        rows.append((Message("verdict.label.pass"), plain(marked_pass(culprit.pass_name))))
    if culprit.feed is not None and culprit.feed.update not in ("", culprit.op):
        rows.append((_label("update"), plain(culprit.feed.update)))
    if len(culprit.steps) > 1:
        steps = Message("study.wrong_in", steps=spans(culprit.steps), all=spans(study.steps))
        rows.append((_label("steps"), shown(steps)))
    if culprit.unknown:
        rows.append((_label("unknown"), shown(_ranks(culprit.unknown))))
    if culprit.departure is not None and culprit.ground is not Ground.REPLICAS:
        rows.append((_label("replicas"), shown(departure(culprit.departure))))
    elif culprit.replicas_agree_on:
        agree = Message("study.replicas_agree", count=culprit.replicas_agree_on)
        rows.append((_label("replicas"), shown(agree)))
    rows.append((Message("verdict.label.confidence"), shown(confidence(culprit.confidence))))
    further = study.conclusion.further
    lines = [shown(_further(other), "dim") for other in further[:_FURTHER]]
    if len(further) > _FURTHER:
        lines.append(shown(Message("study.more", more=len(further) - _FURTHER), "dim"))
    return rows + labelled(_label("further"), lines)


def _further(culprit: Culprit) -> Message:
    return Message(
        "study.further",
        place=place_of(culprit.step, culprit.rank),
        op=culprit.op or None,
        cause=cause_name(culprit.cause),
    )


def departure(divergence: Departure) -> Message:
    return Message(
        "study.departure", who=_who_differs(divergence.ranks), op=divergence.op,
        fed_alike=divergence.fed_alike, agreeing=None if divergence.undecided else len(divergence.agreeing),
        collective=divergence.role is Role.COLLECTIVE,
    )  # fmt: skip


def _who_differs(ranks: Sequence[int]) -> Message:
    return Message("study.ranks_differ" if len(ranks) > 1 else "study.rank_differs", ranks=spans(ranks))


def _steps(numbers: Sequence[int]) -> Message:
    return Message("study.steps", count=len(set(numbers)), steps=spans(numbers))


def _ranks(numbers: Sequence[int]) -> Message:
    return Message("study.ranks", count=len(set(numbers)), ranks=spans(numbers))


def _looked_at(study: Study) -> list[Line]:
    leaves = study.leaves
    judged = sum(state.judged for state in leaves)
    recomputed = sum(state.judged and state.has_verdict for state in leaves)
    reasons = []
    if judged < len(leaves):
        is_first = study.judging is Judging.FIRST
        reasons.append(Message("study.later_inherit" if is_first else "study.others_agree"))
    if recomputed < judged:
        reasons.append(Message("study.not_recomputable", count=judged - recomputed))
    lines = {
        "folders": Message(
            "study.folders", count=len(leaves), steps=_steps(study.steps), ranks=_ranks(study.ranks)
        ),
        "compared": Message(
            "study.compared", count=sum(state.compared for state in leaves), below=sum(state.below for state in leaves),
            threshold=study.threshold,
        ),
        "recomputed": Message("study.recomputed", count=recomputed, all=len(leaves), reasons=tuple(reasons)),
    }  # fmt: skip
    agreed = sum(vote.agreed for vote in study.votes)
    differing = sum(len(vote.departures) for vote in study.votes)
    if agreed or differing:
        lines["replicas"] = Message("study.votes", agreed=agreed, differing=differing or None)
    rows: list[Line] = [(_label(name), shown(message, "dim")) for name, message in lines.items()]
    failures = [
        Message(
            "study.failure", place=place_of(state.leaf.step, state.leaf.rank), reason=shown_reason(state.failure)
        )
        for state in study.failures[:_FAILURES]
    ]  # fmt: skip
    failed = Message("study.label.failed", count=len(study.failures))
    return rows + labelled(failed, (shown(failure, "yellow") for failure in failures))


def _first_off(study: Study) -> LeafState | None:
    """Return where tensors first differ from the benchmark though no recomputed op explains it; None if nowhere."""
    candidates = [state for state in study.leaves if state.first is not None and state.below]
    return min(candidates, key=lambda state: (state.leaf.step, state.leaf.rank), default=None)


def _look_there(state: LeafState) -> list[StepText]:
    """Return next steps where the benchmark differs and no op was found wrong."""
    assert state.first is not None
    place = f"--step {state.leaf.step} --rank {state.leaf.rank}"
    line = f"ni {shlex.quote(state.first.op)} {place}"
    return [
        StepText(why=Message("study.next.first_off"), line=line),
        StepText(why=Message("study.next.comparison"), line=f"vcs {place}"),
    ]


def next_steps(study: Study, named: Sequence[str] | None = None) -> list[StepText]:
    """Return commands that show the culprit on its step and rank. `named` are the words that name the sides."""
    culprit = study.conclusion.culprit
    steps = []
    if study.conclusion.same_batch:
        steps.append(StepText(why=Message("study.next.same_batch")))
    if culprit is None:
        off = _first_off(study)
        return steps if off is None else [*steps, *_look_there(off)]
    if culprit.shift is not None:
        steps.append(StepText(why=Message("study.next.shifted")))
        return [*steps, StepText(why=Message("step.check"), line="ac --all")] if named is None else steps
    if culprit.feed is not None:
        kind = "scale" if _is_scale(culprit.feed) else culprit.feed.feed
        why = Message(f"study.next.feed.{kind}", rank=culprit.rank, first=culprit.feed.is_first)
        steps.append(StepText(why=why))
    elif culprit.ground is Ground.SUM:
        steps.append(StepText(why=Message("study.next.collectives", step=culprit.step)))
    elif culprit.reach is Reach.ONE_RANK and culprit.cause not in _FROM_OUTSIDE:
        is_its_device = culprit.is_fed_alike or culprit.ground is Ground.REPLICAS
        why = Message("study.next.other_device", step=culprit.step, rank=culprit.rank, or_data=not is_its_device)
        steps.append(StepText(why=why))

    if named is not None:
        line = shlex.join(["ac", "-c", "-lt", shown_path(culprit.path), *named])
        return [*steps, StepText(why=Message("study.next.verdict"), line=line)]
    place = f"--step {culprit.step} --rank {culprit.rank}"
    if culprit.reach in (Reach.ALL_RANKS, Reach.NOT_TOLD) and culprit.pass_name and is_switchable(culprit.pass_name):
        line = shlex.join(["fusion", "off", culprit.pass_name])
        steps.append(StepText(why=Message("step.switch_pass_off"), line=line))
    op = culprit.feed.update if culprit.feed is not None and culprit.feed.update else culprit.op
    steps.append(StepText(why=Message("study.next.op"), line=f"ni {shlex.quote(op)} {place}"))
    if culprit.ground is Ground.VERDICT and culprit.cause not in _FROM_OUTSIDE:
        line = f"repro {shlex.quote(culprit.op)} {place}"
        steps.append(StepText(why=Message("study.next.package"), line=line))
    if any(state.leaf.path == culprit.path and state.compared for state in study.leaves):
        steps.append(StepText(why=Message("study.next.comparison"), line=f"vcs {place}"))
    return [*steps, StepText(why=Message("step.check"), line="ac --all")]


class HeatMapView:
    """A heat map drawn with one sign a cell; neighbours share one where there are more than fit."""

    def __init__(self, heat: HeatMap) -> None:
        self._map = heat

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heat = self._map
        if not heat.places or not heat.ops or bool(np.isnan(heat.values).all()):
            return
        what = text(f"study.map.{heat.what}")
        indent = max(len(self._label(heat.places[0], heat.places[-1])), cell_len(what)) + 2
        width = max(min(options.max_width - indent, len(heat.ops)), 1)
        signs = _ASCII if options.ascii_only else _BLOCKS
        yield shown(Message("study.map.title", what=what, ops=len(heat.ops)))
        kinds: set[bool] = set()
        for rows in np.array_split(np.arange(len(heat.places)), min(_ROWS, len(heat.places))):
            first, last = heat.places[int(rows[0])], heat.places[int(rows[-1])]
            line = Text(f"{self._label(first, last):>{indent - 2}}  ", no_wrap=True)
            for columns in np.array_split(np.arange(len(heat.ops)), width):
                level, is_compared = _cell(heat, np.ix_(rows, columns))
                if level is None:
                    line.append(" ")
                    continue
                kinds.add(is_compared)
                line.append((signs if is_compared else _ALONE)[level], style=_STYLES[level])
            yield line
        for is_compared in sorted(kinds, reverse=True):
            scale = Text(" " * indent, no_wrap=True)
            for level, low in enumerate(_SHADES):
                scale.append((signs if is_compared else _ALONE)[level], style=_STYLES[level])
                end = text("study.map.from", value=f"{low:g}") if level else text("study.map.less")
                scale.append(end, style="dim")
            kind = "study.map.compared" if is_compared else "study.map.recomputed"
            yield scale.append(text(kind), style="dim")

    @staticmethod
    def _label(first: int, last: int) -> str:
        return str(first) if first == last else f"{first}-{last}"


def _cell(heat: HeatMap, place: tuple[np.ndarray[Any, Any], ...]) -> tuple[int | None, bool]:
    """The shade of the worst in a part of a map, None without any, and whether that was compared with a benchmark."""
    values = heat.values[place]
    if np.isnan(values).all():
        return None, False
    at = int(np.nanargmax(values))
    return _level(float(values.flat[at])), heat.recomputed is None or not heat.recomputed[place].flat[at]


def _level(value: float) -> int | None:
    """The shade of a distance; None where nothing was compared."""
    if isnan(value):
        return None
    if isinf(value):
        return len(_SHADES) - 1
    return max(number for number, low in enumerate(_SHADES) if value >= low)


def table_line(what: str, path: str) -> RenderableType:
    return Text.assemble((f"{what} ", "bold"), whole_path(path))


# --- statistics of a study, and the full dump that is to follow ---


_STATISTICS_FURTHER = 4


def statistics_block(statistics: StatisticsFound, redump: Redump | None, written: str = "") -> RenderableType:
    """The earliest op that statistics speak against, what does, and the dump that would prove it."""
    rows: list[Line] = []
    if not statistics.suspicions:
        head, style = shown(Message("screen.view.statistics.clean")), "green"
    else:
        first = statistics.suspicions[0]
        style = "bold red" if first.is_certain else "bold yellow"
        title = Message(
            "screen.view.statistics.head", step=first.step, ranks=_suspicious_ranks(first), op=safe(first.op),
            type=safe(first.type),
        )  # fmt: skip
        head = shown(title, fields={"step": "bold", "ranks": "bold", "op": style})
        by_kind = {evidence.kind: evidence for evidence in reversed(first.evidence)}
        rows += labelled(label("evidence"), (plain(evidence_line(evidence)) for evidence in by_kind.values()))
        if first.unknown:
            unknown = Message("screen.view.statistics.unknown", ranks=len(first.unknown))
            rows.append((label("unknown"), shown(unknown)))
        certain = Message("screen.view.statistics.certain")
        suspected = Message("screen.view.statistics.suspected")
        rows.append((label("certainty"), shown(certain if first.is_certain else suspected)))
        later = [
            Message(
                "screen.view.statistics.later", step=other.step, ranks=_suspicious_ranks(other), op=safe(other.op),
                kinds=[str(kind) for kind in other.kinds],
            )
            for other in statistics.suspicions[1 : 1 + _STATISTICS_FURTHER]
        ]  # fmt: skip
        more = len(statistics.suspicions) - 1 - _STATISTICS_FURTHER
        if more > 0:
            later.append(Message("screen.view.more", more=more))
        rows += labelled(label("later"), (shown(message, "dim") for message in later))
    checked = Message(
        "screen.view.statistics.checked", tensors=statistics.tensors, folders=statistics.leaves,
        ranks=spans(statistics.ranks),
    )  # fmt: skip
    rows.append((label("checked"), shown(checked, "dim")))
    if statistics.unread:
        first_file = safe(render(statistics.unread[0]))
        unread = Message("screen.view.statistics.unread", files=len(statistics.unread), first=first_file)
        rows.append((label("cannot_read"), shown(unread, "yellow")))
    if redump is not None:
        rows += _next(redump, written)
    box_title = shown(Message("screen.view.statistics.title"))
    return Box(Group(Prose(head), LabelledLines(rows)), title=box_title, style=style, box=box.HEAVY)


def _suspicious_ranks(suspicion: Suspicion) -> Message:
    if len(suspicion.ranks) == 1:
        return Message("screen.view.statistics.rank", rank=suspicion.ranks[0], only=bool(suspicion.right))
    if suspicion.right or suspicion.unknown:
        return Message("screen.view.statistics.ranks", ranks=spans(suspicion.ranks))
    return Message("screen.view.statistics.all_ranks", count=len(suspicion.ranks))


def evidence_line(evidence: Evidence) -> str:
    side = evidence.tensor.removeprefix(f"{evidence.op}:")
    return text(f"study.suspicion.{evidence.kind}", side=side, value=evidence.value, expected=evidence.expected)


def _next(redump: Redump, written: str) -> list[Line]:
    if not redump.layers:
        too_large = Message("screen.view.statistics.too_large", op=safe(redump.without[0]), budget=redump.budget)
        return [(label("next"), shown(too_large, "yellow"))]
    dump = Message(
        "screen.view.statistics.dump", ops=len(redump.layers), step_count=len(redump.steps), steps=spans(redump.steps),
        rank_count=len(redump.ranks), ranks=spans(redump.ranks), bytes=redump.nbytes,
    )  # fmt: skip
    rows: list[Line] = [(label("next"), shown(dump))]
    if redump.without:
        rows.append(("", shown(Message("screen.view.statistics.left_out", ops=len(redump.without)), "dim")))
    if written:
        settings = Message("screen.view.statistics.settings", path=safe(shown_path(written)))
        rows.append((label("settings"), shown(settings)))
    return rows
