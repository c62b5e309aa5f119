"""A study on the terminal: its one verdict, what was looked at, and the heat maps."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from math import isinf, isnan
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from precision_tool.lib.present.text import (
    LabelledLines,
    counted,
    marked_pass,
    plain,
    safe,
    shown_reason,
    whole_path,
)
from precision_tool.lib.present.verdict import NextSteps
from precision_tool.lib.present.whole import Box, Prose
from precision_tool.lib.study.conclusion import UNDECIDED, Culprit, Ground, Reach, is_from_others
from precision_tool.lib.study.leaves import spans
from precision_tool.lib.study.maps import HeatMap
from precision_tool.lib.study.outcome import Role
from precision_tool.lib.study.plan import Judging
from precision_tool.lib.study.replicas import Departure
from precision_tool.lib.study.states import LeafState
from precision_tool.lib.study.study import Study
from precision_tool.lib.verdict.model import Cause, ToldStep
from precision_tool.lib.workspace import shown_path

#: Distances from which on a cell of a heat map is darker; Inf stands beyond them.
_SHADES = (0.0, 1e-3, 1e-2, 0.1, 0.5)
_BLOCKS, _ASCII = "·░▒▓█", ".-+*#"
#: Those of what was not compared with a benchmark, but recomputed.
_ALONE = "':;%@"
_STYLES = ("dim", "green", "yellow", "red", "bold red")
_ROWS = 24
_WITHOUT_CULPRIT = {
    "see_statistics": "statistics cannot be recomputed; what they tell is below",
    "off_benchmark": "off the benchmark, and no op is known to compute wrong",
    "off_unknown": "off the benchmark, and nothing could be recomputed: which op computes wrong is not known",
    "clean": "nothing computes wrong, as far as could be seen",
    "unknown": "nothing could be judged",
    "statistics_unknown": "not known: statistics cannot be recomputed, and they speak against no op",
}
_FAILURES, _FURTHER = 3, 5


def study_block(study: Study, command: str = "precision-tool", named: Sequence[str] | None = None) -> RenderableType:
    """The verdict on all of it: who, on which ranks, from which step on, and how that is known.

    Below it stands what to do next; `command` begins the lines that are commands of this tool. `named` are the
    further options of a study of one dump that was named, None for one of data folders.
    """
    culprit = study.conclusion.culprit
    off = None if culprit is not None else _first_off(study)
    rows: list[tuple[str, Text]] = []
    if culprit is None:
        told = told_without_culprit(study)
        head = Text(_WITHOUT_CULPRIT[told])
        style = "green" if study.is_recomputed and told == "clean" else "yellow"
    else:
        head, style = _head(study, culprit), "bold red" if culprit.ground is not Ground.COMPARED else "bold yellow"
        rows += _rows(study, culprit)
    place = study.conclusion.not_finite
    if place is not None:
        rows.append(("NaN, Inf", plain(_not_finite_line(study, place))))
    rows += _looked_at(study)
    if culprit is not None:
        rows.append(("dump", whole_path(culprit.path)))
    if off is not None:
        rows.insert(0, ("off", plain(_off_line(off))))
    block = Box(Group(Prose(head), LabelledLines(rows)), title=Text("Study"), style=style, box=box.HEAVY)
    if culprit is None:
        return block if off is None or named is not None else Group(block, NextSteps(next_steps(study), command))
    return Group(block, NextSteps(next_steps(study, named), command))


def told_without_culprit(study: Study) -> str:
    """The key of what to say where no op is accused: that is no acquittal where nothing could be looked at."""
    if study.statistics is not None and study.statistics.suspicions:
        return "see_statistics"
    if _first_off(study) is not None:
        return "off_benchmark"
    if not study.is_recomputed and any(one.below for one in study.leaves):
        return "off_unknown"
    if study.tells:
        return "clean"
    return "unknown" if study.statistics is None else "statistics_unknown"


def _not_finite_line(study: Study, place: tuple[int, int, str]) -> str:
    """Where NaN or Inf was first, and whether the other ranks got it from there."""
    step, rank, tensor = place
    line = f"first in step {step}, rank {rank}: {tensor}"
    others = [one for one in study.leaves if one.leaf.step == step and one.bad and one.leaf.rank != rank]
    if others and not is_from_others(tensor) and all(is_from_others(one.first_bad) for one in others):
        line += f"; {counted(len({one.leaf.rank for one in others}), 'other rank')} got it by communication"
    return line


def _head(study: Study, culprit: Culprit) -> Text:
    text = Text.assemble((f"step {culprit.step}, rank {culprit.rank}: ", "bold"), (safe(culprit.op), "bold red"))
    text.append(f" ({safe(culprit.type)})\n" if culprit.type else "\n")
    judged = {one.leaf.step for one in study.leaves if one.has_verdict and one.leaf.rank in culprit.ranks}
    text.append(reach_sentence(culprit, study.steps, judged), style="bold")
    return text


def reach_sentence(culprit: Culprit, steps: Sequence[int], judged: Collection[int] | None = None) -> str:
    """Where it is wrong, and what that tells. `judged` are the steps that were recomputed there, by default all."""
    later = [step for step in steps if step >= culprit.step]
    goes_on = len(later) > 1 and set(later) <= set(culprit.steps)
    since = f"from step {culprit.step} on" if goes_on else f"in step {culprit.step}"
    if judged is not None and len(later) > 1 and not {*later[1:]} & {*culprit.steps, *judged}:
        since += " (later ones were not recomputed)"
    many = len(culprit.ranks)
    if culprit.reach is Reach.ALL_RANKS:
        all_of = f"all {many} ranks" if not culprit.unknown else f"all {many} ranks that were judged"
        return f"{all_of}, {since}: {_shared(culprit) if culprit.ground is not Ground.SUM else _no_sum(culprit)}"
    if culprit.reach is Reach.ONE_RANK:
        right = len(culprit.right)
        if culprit.ground is Ground.REPLICAS:
            return f"rank {culprit.rank} alone: its {right} replicas agree bit for bit: {_device(culprit)}"
        return f"rank {culprit.rank} alone, {since}: right on {counted(right, 'other rank')}: {_of_one(culprit)}"
    if culprit.reach is Reach.SOME_RANKS:
        return f"{many} of {many + len(culprit.right)} ranks ({spans(culprit.ranks)}), {since}"
    if culprit.ground is Ground.REPLICAS:
        return f"ranks {spans(culprit.ranks)} have different results, and no majority tells which is right"
    return f"{since}: no other rank tells whether it is the kernel or the device"


_NO_SUM = "it is not the sum of what the ranks put in"


def _no_sum(culprit: Culprit) -> str:
    return _NO_SUM if culprit.confidence > UNDECIDED else f"{_NO_SUM}, unless ranks were left out of the dump"


#: What is at fault where ops only hand on what came in from outside.
_FROM_OUTSIDE = {str(Cause.INPUT): "input data", str(Cause.WEIGHTS): "variables"}


def _shared(culprit: Culprit) -> str:
    """What all ranks have, and is to blame."""
    if culprit.cause in _FROM_OUTSIDE:
        return f"their {_FROM_OUTSIDE[culprit.cause]}"
    what = "" if culprit.cause in ("kernel", "compared", "first_faulty_op") else f" ({culprit.cause})"
    return f"what they share, a kernel{what}"


def _of_one(culprit: Culprit) -> str:
    """What one rank alone has: its device, and unless it was fed as the others its data too."""
    if culprit.cause in _FROM_OUTSIDE:
        return f"its {_FROM_OUTSIDE[culprit.cause]}"
    return "its device" if culprit.is_fed_alike else "its device, or its data"


def _device(culprit: Culprit) -> str:
    return "a device" if culprit.cause != "communication" else "its link, or its device"


def _rows(study: Study, culprit: Culprit) -> list[tuple[str, Text]]:
    rows = [("cause", plain(f"{culprit.cause}, {_GROUNDS[culprit.ground]}"))]
    if culprit.run is not None:
        rows.append(("run", plain(f"debug_{culprit.run}, which was dumped beside the run under test")))
    if culprit.pass_name:
        rows.append(("pass", plain(marked_pass(culprit.pass_name))))
    if len(culprit.steps) > 1:
        rows.append(("steps", plain(f"wrong in {spans(culprit.steps)} of {spans(study.steps)}")))
    if culprit.unknown:
        rows.append(("not told", plain(_numbers("rank", culprit.unknown))))
    if culprit.departure is not None and culprit.ground is not Ground.REPLICAS:
        rows.append(("replicas", plain(departure_line(culprit.departure))))
    elif culprit.replicas_agree_on:
        same = counted(culprit.replicas_agree_on, "tensor")
        rows.append(("replicas", plain(f"agree bit for bit on {same} of that step, after communication")))
    rows.append(("sure", plain(f"{culprit.confidence:.0%}")))
    further = study.conclusion.further
    for number, one in enumerate(further[:_FURTHER]):
        line = f"step {one.step}, rank {one.rank}: {one.op}: {one.cause}"
        rows.append(("further" if not number else "", plain(line, "dim")))
    if len(further) > _FURTHER:
        rows.append(("", plain(f"and {len(further) - _FURTHER} more", "dim")))
    return rows


_GROUNDS = {
    Ground.VERDICT: "recomputed from the dump of that step and rank",
    Ground.REPLICAS: "told by the other replicas",
    Ground.SUM: _NO_SUM,
    Ground.COMPARED: "by the comparison alone: nothing could be recomputed",
}


def departure_line(one: Departure) -> str:
    """What replicas do not agree on."""
    what = "after communication" if one.role is Role.COLLECTIVE else "as it was updated"
    who = f"ranks {spans(one.ranks)} differ" if len(one.ranks) > 1 else f"rank {one.ranks[0]} differs"
    others = "" if one.undecided else f" from {len(one.agreeing)} that agree bit for bit"
    fed = ", from the same inputs" if one.fed_alike else ""
    return f"{who}{others} in {one.op} {what}{fed}"


def _numbers(what: str, numbers: Sequence[int]) -> str:
    """`step 3`, `steps 0 to 3`."""
    return f"{what if len(set(numbers)) == 1 else what + 's'} {spans(numbers)}"


def _looked_at(study: Study) -> list[tuple[str, Text]]:
    leaves = study.leaves
    compared = sum(one.compared for one in leaves)
    judged = sum(one.judged for one in leaves)
    where = f"{_numbers('step', study.steps)}, {_numbers('rank', study.ranks)}"
    looked = f"{counted(len(leaves), 'dump folder')}: {where}"
    rows = [("looked at", plain(looked, "dim"))]
    below = sum(one.below for one in leaves)
    rows.append(("compared", plain(f"{counted(compared, 'tensor')}, {below:,} below {study.threshold:g}", "dim")))
    recomputed = sum(one.judged and one.has_verdict for one in leaves)
    line = f"{recomputed:,} of {counted(len(leaves), 'folder')}"
    reasons = []
    if judged < len(leaves):
        reasons.append("later ones inherit the error" if study.judging is Judging.FIRST else "the others agree")
    if recomputed < judged:
        reasons.append(f"{judged - recomputed:,} cannot be recomputed")
    line += f": {', '.join(reasons)}" if reasons else ""
    rows.append(("recomputed", plain(line, "dim")))
    agreed = sum(one.agreed for one in study.votes)
    differing = sum(len(one.departures) for one in study.votes)
    if agreed or differing:
        rows.append(("votes", plain(f"{_votes_line(agreed, differing)}", "dim")))
    for number, one in enumerate(study.failures[:_FAILURES]):
        where = f"step {one.leaf.step}, rank {one.leaf.rank}: {shown_reason(one.failure)}"
        rows.append((f"failed: {len(study.failures)}" if not number else "", plain(where, "yellow")))
    return rows


def _votes_line(agreed: int, differing: int) -> str:
    """How many results of ops that all replicas must have alike they do."""
    same = f"replicas have the same result of {counted(agreed, 'op')}, to the bit"
    return f"{same}, and different ones of {counted(differing, 'op')}" if differing else same


def _first_off(study: Study) -> LeafState | None:
    """Where tensors are off the benchmark first, though nothing that was recomputed explains it; None if none is."""
    found = [one for one in study.leaves if one.first is not None and one.below]
    return min(found, key=lambda one: (one.leaf.step, one.leaf.rank), default=None)


def _off_line(state: LeafState) -> str:
    assert state.first is not None
    where = f"step {state.leaf.step}, rank {state.leaf.rank}"
    return f"first in {where}: {state.first.op}; nothing that was recomputed explains it"


def _look_there(state: LeafState) -> list[ToldStep]:
    """What to do where the benchmark departs and no op is known to compute wrong."""
    assert state.first is not None
    place = f"--step {state.leaf.step} --rank {state.leaf.rank}"
    line = f"ni {shlex.quote(state.first.op)} {place}"
    return [
        ToldStep(why="the first op that is off the benchmark: whether both sides were fed the same", line=line),
        ToldStep(why="what was compared of that step and rank", line=f"vcs {place}"),
    ]


def next_steps(study: Study, named: Sequence[str] | None = None) -> list[ToldStep]:
    """What to do next: the commands show the culprit on its step and rank. `named` are words that named the sides."""
    culprit = study.conclusion.culprit
    if culprit is None:
        off = _first_off(study)
        return [] if off is None else _look_there(off)
    steps = []
    if culprit.ground is Ground.SUM:
        if culprit.confidence <= UNDECIDED:
            steps.append(
                ToldStep(why="see that every rank of its group was dumped: a sum of fewer is another", line="")
            )
        why = "the library of collectives (HCCL), or a link, is to blame: with another version of it, or other devices,"
        steps.append(ToldStep(why=f"{why} run from step {culprit.step} again", line=""))
    if culprit.reach is Reach.ONE_RANK and culprit.cause not in _FROM_OUTSIDE and culprit.ground is not Ground.SUM:
        steps += _other_device(culprit)

    if named is not None:
        line = shlex.join(["ac", "-c", "-lt", shown_path(culprit.path), *named])
        return [*steps, ToldStep(why="its whole verdict", line=line)]
    place = f"--step {culprit.step} --rank {culprit.rank}"
    steps.append(ToldStep(why="the op on that step and rank", line=f"ni {shlex.quote(culprit.op)} {place}"))
    if culprit.ground is Ground.VERDICT and culprit.cause not in _FROM_OUTSIDE:
        line = f"repro {shlex.quote(culprit.op)} {place}"
        steps.append(ToldStep(why="a package of it, for whoever writes the kernel", line=line))
    if any(one.leaf.path == culprit.path and one.compared for one in study.leaves):
        steps.append(ToldStep(why="what was compared of that step and rank", line=f"vcs {place}"))
    return [*steps, ToldStep(why="then collect again, and see whether it is mended", line="ac --all")]


def _other_device(culprit: Culprit) -> list[ToldStep]:
    """How to tell a device from the data that its rank has."""
    again = f"run from step {culprit.step} again with rank {culprit.rank} on another device"
    is_its_device = culprit.is_fed_alike or culprit.ground is Ground.REPLICAS
    stays = "" if is_its_device else "; where the error stays with the rank, it is its data"
    found = f"{again}, and look for memory errors of its device (`npu-smi info -t ecc`)"
    return [ToldStep(why=f"{found}: where the error is gone then, take that device out{stays}")]


class HeatMapView:
    """A heat map drawn with one sign a cell; neighbours share one where there are more than fit."""

    def __init__(self, heat: HeatMap) -> None:
        self._map = heat

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heat = self._map
        if not heat.places or not heat.ops or bool(np.isnan(heat.values).all()):
            return
        label = max(len(self._label(heat.places[0], heat.places[-1])), len(heat.what)) + 2
        width = max(min(options.max_width - label, len(heat.ops)), 1)
        signs = _ASCII if options.ascii_only else _BLOCKS
        ops = counted(len(heat.ops), "op")
        yield Text(f"{heat.what} × op: how far outputs are off, {ops} in the order of execution")
        seen: set[bool] = set()
        for rows in np.array_split(np.arange(len(heat.places)), min(_ROWS, len(heat.places))):
            first, last = heat.places[int(rows[0])], heat.places[int(rows[-1])]
            line = Text(f"{self._label(first, last):>{label - 2}}  ", no_wrap=True)
            for columns in np.array_split(np.arange(len(heat.ops)), width):
                level, is_compared = _cell(heat, np.ix_(rows, columns))
                if level is None:
                    line.append(" ")
                    continue
                seen.add(is_compared)
                line.append((signs if is_compared else _ALONE)[level], style=_STYLES[level])
            yield line
        for is_compared in sorted(seen, reverse=True):
            scale = Text(" " * label, no_wrap=True)
            for level, low in enumerate(_SHADES):
                scale.append((signs if is_compared else _ALONE)[level], style=_STYLES[level])
                scale.append(f" {'less' if not level else f'{low:g} on'}  ", style="dim")
            yield scale.append("off the benchmark" if is_compared else "own error, NaN or Inf", style="dim")

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
    """Where something was written."""
    return Text.assemble((f"{what}: ", "bold"), whole_path(path))
