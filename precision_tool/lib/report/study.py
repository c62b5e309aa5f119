"""The report on a study: its verdict, what statistics tell, and the heat maps step × op and rank × op."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from rich.console import Console

from precision_tool import __version__
from precision_tool.lib.io.files import atomic_text
from precision_tool.lib.present.study import next_steps, study_block, told_without_culprit
from precision_tool.lib.report.document import SCHEMA
from precision_tool.lib.report.page import page_with
from precision_tool.lib.study.conclusion import Culprit, Ground, Reach
from precision_tool.lib.study.leaves import spans
from precision_tool.lib.study.maps import HeatMap
from precision_tool.lib.study.study import Study
from precision_tool.lib.workspace import shown_path

#: A shade of a heat map begins at each of these relative distances; the page has the same.
_SHADES = np.array([1e-6, 1e-4, 1e-3, 1e-2, 1e-1], np.float32)
_NOT_COMPARED = "-"
#: Other faults, suspicions and failures that are told at most.
_TOLD = 50
_WIDTH = 110
#: The sign that stands for the first of several places.
_FIRST = 0x2800
#: Dump folders, and what is accused in each, of which the page tells more.
_FOLDERS, _ACCUSED = 5000, 5
#: A larger map does not tell where its cells are worst; nor does one with more others than signs before surrogates.
_MOST_CELLS, _MOST_SIGNS = 2_000_000, 0xD800 - _FIRST
#: Causes that are no op's.
_FROM_OUTSIDE = ("input", "weights")


def write_study(path: str, study: Study) -> None:
    """Writes the report. OutputError when it cannot be written; then no part of it is left."""
    time = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    page = page_with(study_document(study, tool=f"precision_tool {__version__}", time=time), [_plain(study)])
    with atomic_text(path) as file:
        file.write(page)


def study_document(study: Study, *, tool: str, time: str) -> dict[str, Any]:
    """The data of the page. A heat map has a text for each place, with a sign an op: `-` not compared, else a shade.

    Its `own` has a 1 for each that is not of a comparison but of an op recomputed from its inputs; None: there is none.
    """
    conclusion = study.conclusion
    place = conclusion.not_finite
    leaves = study.leaves
    return {
        "schema": SCHEMA, "tool": tool, "time": time, "results": [],
        "study": {
            "culprit": None if conclusion.culprit is None else _culprit(conclusion.culprit),
            "without_culprit": None if conclusion.culprit is not None else told_without_culprit(study),
            "further": [_culprit(one) for one in conclusion.further[:_TOLD]],
            "not_finite": None if place is None else {"step": place[0], "rank": place[1], "tensor": place[2]},
            "leaves": len(leaves), "steps": spans(study.steps), "ranks": spans(study.ranks),
            "compared": sum(one.compared for one in leaves), "below": sum(one.below for one in leaves),
            "judged": sum(one.judged for one in leaves),
            "agreed": sum(one.agreed for one in study.votes),
            "departed": sum(len(one.departures) for one in study.votes),
            "statistics": None if study.statistics is None else [
                {
                    "step": one.step, "ranks": spans(one.ranks), "op": one.op, "type": one.type,
                    "kinds": [str(kind) for kind in one.kinds], "certain": one.is_certain,
                }
                for one in study.statistics.suspicions[:_TOLD]
            ],
            "failures": [
                {"step": one.leaf.step, "rank": one.leaf.rank, "reason": one.failure} for one in study.failures[:_TOLD]
            ],
            "notes": list(study.notes),
            "next": [{"why": one.why, "line": one.line, "file": one.file} for one in next_steps(study)],
            "folders": _folders(study),
            "maps": [_map(one) for one in study.maps],
        },
    }  # fmt: skip


def _culprit(one: Culprit) -> dict[str, Any]:
    return {
        "step": one.step, "rank": one.rank, "op": one.op, "type": one.type, "cause": one.cause,
        "ground": str(one.ground), "reach": str(one.reach), "told": told_key(one), "ranks": spans(one.ranks),
        "wrong": len(one.ranks), "right": len(one.right), "steps": spans(one.steps), "confidence": one.confidence,
        "pass": one.pass_name,
    }  # fmt: skip


def told_key(one: Culprit) -> str:
    """The key of the sentence on where it is wrong, and what that tells."""
    reach = str(one.reach)
    if one.reach is Reach.ALL_RANKS and one.ground is Ground.SUM:
        return f"{reach}_sum"
    if one.reach in (Reach.ALL_RANKS, Reach.ONE_RANK) and one.cause in _FROM_OUTSIDE:
        return f"{reach}_{one.cause}"
    if one.reach is Reach.ONE_RANK and one.cause == "communication":
        return f"{reach}_link"
    if one.reach is Reach.ONE_RANK and one.is_fed_alike:
        return f"{reach}_device"
    return f"{reach}_replicas" if one.reach is Reach.NOT_TOLD and one.ground is Ground.REPLICAS else reach


def _folders(study: Study) -> list[dict[str, Any]]:
    """What is known of each dump folder; of very many, those in which something is wrong come first."""
    leaves = sorted(study.leaves, key=lambda one: not (one.accused or one.below or one.failure))[:_FOLDERS]
    return [
        {
            "step": one.leaf.step, "rank": one.leaf.rank, "path": shown_path(one.leaf.path),
            "compared": one.compared, "below": one.below, "judged": one.judged and one.has_verdict, "right": one.right,
            "accused": [{"op": each.op, "cause": str(each.cause)} for each in one.accused[:_ACCUSED]],
            "failure": one.failure,
        }
        for one in leaves
    ]  # fmt: skip


def _map(heat: HeatMap) -> Mapping[str, Any]:
    shades = np.digitize(heat.values, _SHADES)
    signs = np.where(np.isnan(heat.values), ord(_NOT_COMPARED), shades + ord("0")).astype(np.uint8)
    rows: Sequence[str] = [row.tobytes().decode("ascii") for row in signs]
    own = None
    if heat.recomputed is not None and heat.recomputed.any():
        own = [(row.astype(np.uint8) + ord("0")).tobytes().decode("ascii") for row in heat.recomputed]
    return {
        "what": heat.what, "places": list(heat.places), "ops": list(heat.ops), "rows": list(rows), "own": own,
        **_worst(heat),
    }  # fmt: skip


def _worst(heat: HeatMap) -> dict[str, Any]:
    """Where each cell is worst: `others` are the ranks or steps, `worst` has a sign a cell, its place in them."""
    if heat.worst is None or heat.worst.size > _MOST_CELLS:
        return {}
    others, places = np.unique(heat.worst, return_inverse=True)
    if others.size > _MOST_SIGNS:
        return {}
    signs = (places.reshape(heat.worst.shape) + _FIRST).astype("<u2")
    return {"others": others.tolist(), "worst": [row.tobytes().decode("utf-16-le") for row in signs]}


def _plain(study: Study) -> str:
    """The verdict as text, for where no script runs."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(study_block(study))
    return capture.get()
