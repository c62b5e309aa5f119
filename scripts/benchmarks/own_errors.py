"""The table behind `scripts/own_errors`: how many ops are recomputed, and their own errors over what is allowed.

An op's figure is the largest error of an element over its rounding, divided by the slack of its kind (VERDICT.md §2):
up to 1 it is right. The chosen slack is as good as the room that clean runs leave below 1.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose.comparing import compare
from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, diagnose_leaf, leaves_alone, leaves_of
from precision_tool.lib.diagnose.verdict_model import OpResult, State
from precision_tool.lib.session import Session

#: Bounds of the classes of the distribution.
_CLASSES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, np.inf)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the ops of one data folder come to; `ratios` by name of the op, of those with a slack."""

    name: str
    ops: int
    recomputed: int
    wrong: int
    doubtful: int
    ratios: dict[str, float]


def figures_of(name: str, ops: Sequence[OpResult]) -> Figures:
    """The figures of judged ops."""
    states = [one.state for one in ops]
    worst = {one.name: one.worst_slot for one in ops}
    return Figures(
        name=name,
        ops=len(ops),
        recomputed=sum(state is not State.NOT_RECOMPUTED for state in states),
        wrong=states.count(State.WRONG),
        doubtful=states.count(State.DOUBTFUL),
        ratios={op: slot.worst / slot.slack for op, slot in worst.items() if slot is not None and slot.slack},
    )


def judged(data: Path, work: str) -> list[OpResult]:
    """Every op of the run under test, judged beside the benchmark where there is one."""
    session = Session(load_settings({"data": str(data), "work": work}))
    if session.data.has_dump_alone():
        leaves = leaves_alone(session.data)
    else:
        leaves = leaves_of(session.data, compare(session.data))
    diagnoses = [diagnose_leaf(leaf, DiagnoseOptions(compares=False)) for leaf in leaves]
    return [op for diagnosis in diagnoses if diagnosis.judged is not None for op in diagnosis.judged.ops]


def lines(figures: Sequence[Figures]) -> Iterable[str]:
    """The table, and the distribution over all ops."""
    width = max(len(item.name) for item in figures)
    yield f"{'data':{width}}  ops  recomputed  wrong  doubtful  median    99 %  largest  of"
    for item in figures:
        ratios = np.array(sorted(item.ratios.values()))
        share = item.recomputed / item.ops if item.ops else 0.0
        head = f"{item.name:{width}} {item.ops:4}  {share:9.1%}  {item.wrong:5}  {item.doubtful:8}"
        if not ratios.size:
            yield head
            continue
        op = max(item.ratios, key=lambda name: item.ratios[name])
        yield f"{head}  {np.median(ratios):6.3f}  {np.quantile(ratios, 0.99):6.3f}  {item.ratios[op]:7.3f}  {op}"
    every = np.array([ratio for item in figures for ratio in item.ratios.values()])
    ops, recomputed = sum(item.ops for item in figures), sum(item.recomputed for item in figures)
    yield f"all: {recomputed:,} of {ops:,} ops recomputed ({recomputed / max(ops, 1):.1%})"
    if every.size:
        yield f"largest error of an element over what is allowed, of {every.size:,} ops:"
        for low, high in pairwise(_CLASSES):
            count = int(np.count_nonzero((every > low if low else every >= 0) & (every <= high)))
            label = f"above {low:g}" if np.isinf(high) else f"up to {high:g}"
            yield f"  {label:10} {count:7,}  {count / every.size:7.2%}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="folders like precision_data")
    figures = []
    for data in parser.parse_args().data:
        with tempfile.TemporaryDirectory() as work:
            name = data.parent.name if data.name == "precision_data" else data.name
            figures.append(figures_of(name or str(data), judged(data, work)))
    print("\n".join(lines(figures)))


if __name__ == "__main__":
    main()
