"""The report on a study: its verdict, the findings of statistics, and the heat maps step × op and rank × op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.data.settings import PROGRAM
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.diagnose.curves import BENCHMARK, FIGURES, Curve, Curves
from precision_tool.lib.diagnose.study import Study
from precision_tool.lib.diagnose.study_conclusion import Culprit
from precision_tool.lib.diagnose.study_table import HeatMap
from precision_tool.lib.messages import Message
from precision_tool.lib.model.wording import spans
from precision_tool.lib.version import __version__
from precision_tool.lib.view.curves_screen import (
    band_of_others,
    first_words,
    leaving_words,
    ranks_off,
    role_name,
    shown_figure,
)
from precision_tool.lib.view.packed_columns import both, sound
from precision_tool.lib.view.report_document import SCHEMA, steps_document
from precision_tool.lib.view.report_page import plain_text, write_page
from precision_tool.lib.view.study_screen import ground_of, next_steps, reach_of, study_block, without_culprit
from precision_tool.lib.view.verdict_messages import cause_name, confidence

#: A shade of a heat map begins at each of these relative distances; the page has the same.
_SHADES = np.array([1e-6, 1e-4, 1e-3, 1e-2, 1e-1], np.float32)
_NOT_COMPARED = "-"
#: Other faults, suspicions and failures that are listed at most.
_MAX_LISTED = 50
#: The sign that stands for the first of several places.
_FIRST = 0x2800
#: Dump folders, and accused ops of each, that the page has details of.
_FOLDERS, _ACCUSED = 5000, 5
#: Curves that are drawn.
_CURVES = 64
#: A larger map lacks where its cells are worst; so does one with more others than characters before surrogates.
_MOST_CELLS, _MOST_SIGNS = 2_000_000, 0xD800 - _FIRST


def write_study(path: str, study: Study, command: str = PROGRAM) -> None:
    """Write the report on a study as one HTML file.

    Parameters
    ----------
    path : str
        The file; written whole or not at all.
    study : Study
        The verdict on all steps and ranks, with its heat maps.
    command : str
        What begins a command line for the data.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    time = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    document = study_document(study, tool=f"precision_tool {__version__}", time=time, command=command)
    write_page(path, document, [plain_text(study_block(study))])


def study_document(study: Study, *, tool: str, time: str, command: str = PROGRAM) -> dict[str, Any]:
    """Return the data of the page. A heat map has a text for each place, a sign an op: `-` not compared, else a shade.

    Its `own` has a 1 where the error is of an op recomputed from its inputs and not of a comparison; None without any.
    """
    conclusion = study.conclusion
    place = conclusion.not_finite
    leaves = study.leaves
    return {
        "schema": SCHEMA, "tool": tool, "time": time, "results": [],
        "study": {
            "culprit": None if conclusion.culprit is None else _culprit(study, conclusion.culprit),
            "sentence": None if conclusion.culprit is not None else both(without_culprit(study)),
            "further": [_culprit(study, other) for other in conclusion.further[:_MAX_LISTED]],
            "not_finite": None if place is None else {"step": place[0], "rank": place[1], "tensor": place[2]},
            "leaves": len(leaves), "steps": spans(study.steps), "ranks": spans(study.ranks),
            "compared": sum(leaf.compared for leaf in leaves), "below": sum(leaf.below for leaf in leaves),
            "judged": sum(leaf.judged for leaf in leaves),
            "agreed": sum(vote.agreed for vote in study.votes),
            "departed": sum(len(vote.departures) for vote in study.votes),
            "statistics": None if study.statistics is None else [
                {
                    "step": op.step, "ranks": spans(op.ranks), "op": op.op, "type": op.type,
                    "kinds": [str(kind) for kind in op.kinds], "certain": op.is_certain,
                }
                for op in study.statistics.suspicions[:_MAX_LISTED]
            ],
            "failures": [
                {"step": leaf.leaf.step, "rank": leaf.leaf.rank, "reason": both(leaf.failure or "")}
                for leaf in study.failures[:_MAX_LISTED]
            ],
            "notes": sound(list(study.notes)), "next": steps_document(next_steps(study), command),
            "command": command,
            "folders": _folders(study),
            "maps": [_map(heat) for heat in study.maps],
            "curves": _curves(study.curves),
        },
    }  # fmt: skip


def _culprit(study: Study, culprit: Culprit) -> dict[str, Any]:
    texts = {
        "cause_text": cause_name(culprit.cause), "ground_text": ground_of(culprit),
        "reach_text": reach_of(study, culprit), "confidence_text": confidence(culprit.confidence),
    }  # fmt: skip
    return {
        "step": culprit.step, "rank": culprit.rank, "op": culprit.op or f"rank {spans(culprit.ranks)}",
        "type": culprit.type, "cause": culprit.cause,
        "ground": str(culprit.ground), "reach": str(culprit.reach), "ranks": spans(culprit.ranks),
        "wrong": len(culprit.ranks), "right": len(culprit.right), "steps": spans(culprit.steps),
        "confidence": culprit.confidence, "pass": culprit.pass_name, **sound(texts),
    }  # fmt: skip


def _folders(study: Study) -> list[dict[str, Any]]:
    """Return the figures of each dump folder; of very many, those with a fault come first."""
    leaves = sorted(study.leaves, key=lambda leaf: not (leaf.accused or leaf.below or leaf.failure))[:_FOLDERS]
    return [
        {
            "step": leaf.leaf.step, "rank": leaf.leaf.rank, "path": shown_path(leaf.leaf.path),
            "compared": leaf.compared, "below": leaf.below, "right": leaf.right,
            "judged": leaf.judged and leaf.has_verdict,
            "accused": [
                {"op": op.op, "cause": str(op.cause), "cause_text": both(cause_name(op.cause))}
                for op in leaf.accused[:_ACCUSED]
            ],
            "failure": both(leaf.failure or ""),
        }
        for leaf in leaves
    ]  # fmt: skip


def _curves(curves: Curves) -> dict[str, Any] | None:
    """Return the curves of the page, those that leave a band first; None without any.

    Each has the figure that is drawn: of the ranks that stay in the band the ends, of those that leave it the lines,
    and the benchmark. Steps with NaN or Inf on any rank are counted by their places in `steps`.
    """
    if not curves.curves:
        return None
    drawn = curves.sorted[:_CURVES]
    return {
        "steps": list(curves.steps), "ranks": len(curves.ranks), "more": len(curves.curves) - len(drawn),
        "conclusion": both(first_words(curves)), "curves": [_curve(curve, curves) for curve in drawn],
    }  # fmt: skip


def _curve(curve: Curve, curves: Curves) -> dict[str, Any]:
    name = shown_figure(curve)
    figure = FIGURES.index(name)
    low, high = band_of_others(curve, curves, figure)
    off = ranks_off(curve)
    return {
        "role": both(role_name(curve)), "name": both(curve.name), "tensor": both(curve.tensor),
        "figure": both(Message(f"screen.view.curves.figure.{name}")), "low": _rounded(low), "high": _rounded(high),
        "lines": [{"rank": line.rank, "values": _rounded(line.figures[figure])} for line in curve.lines
                  if line.rank in off],
        "benchmark": _rounded(curve.benchmark[BENCHMARK.index(name)]) if name in BENCHMARK else None,
        "bad": np.flatnonzero(curve.bands[FIGURES.index("not_finite"), :, 2] > 0).tolist(),
        "leaves": [
            {"at": curves.steps.index(leaving.step), "text": both(leaving_words(leaving))} for leaving in curve.leaves
        ],
    }  # fmt: skip


def _rounded(values: npt.NDArray[np.float64]) -> list[float | None]:
    """Return numbers in as many digits as can be seen, None where there is none."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


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
    """Return where each cell is worst: `others` are the ranks or steps, `worst` a sign a cell, its place in them."""
    if heat.worst is None or heat.worst.size > _MOST_CELLS:
        return {}
    others, places = np.unique(heat.worst, return_inverse=True)
    if others.size > _MOST_SIGNS:
        return {}
    signs = (places.reshape(heat.worst.shape) + _FIRST).astype("<u2")
    return {"others": others.tolist(), "worst": [row.tobytes().decode("utf-16-le") for row in signs]}
