"""Which of two NPU runs was compiled with fusion and which without, by their graphs, not by their folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.graph_choice import ENOUGH, GraphChoice
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError
from precision_tool.lib.model.graph import GraphFile, Op

#: Two graphs with a smaller share of the training script's ops in common are of different networks.
_MIN_COMMON_FRACTION = 0.5
_MAX_NAMED = 5


@dataclass(frozen=True)
class Fusion:
    """The fused ops of a graph."""

    file: GraphFile

    @cached_property
    def passes(self) -> Counter[str]:
        """Ops by the pass that made them."""
        return Counter(name for op in self.file.ops for name in op.pass_names)

    @property
    def switchable(self) -> Counter[str]:
        """Ops by the pass that made them and that a switch file can turn off."""
        return Counter({name: count for name, count in self.passes.items() if is_switchable(name)})

    @cached_property
    def nameless(self) -> tuple[Op, ...]:
        """Fused ops of which the graph does not tell the pass."""
        return tuple(op for op in self.file.ops if is_fused(op) and not op.pass_names)

    @cached_property
    def script_ops(self) -> frozenset[str]:
        """Flattened names of the ops of the training script."""
        return frozenset(
            flatten(name)
            for op in self.file.ops
            for name in ((op.name,) if op.original_names is None else op.original_names)
        )


def is_fused(op: Op) -> bool:
    """Return whether an op does the work of several ops of the training script."""
    return len(set(op.original_names or ())) > 1


@dataclass(frozen=True, kw_only=True)
class FusionPair:
    """A run with fusion and one of the same network without it. `notes` say what is not as clean as that."""

    fused: RunGraph
    unfused: RunGraph
    notes: tuple[Message, ...] = ()


def find_pair(runs: Sequence[RunGraph]) -> FusionPair:
    """The fused and the unfused run among the graphs of the NPU runs.

    Errors say what is missing: a second run, a dump, a run without fusion, names of passes, the same network.
    """
    if not runs:
        raise DataNotFoundError("data.no_run_has_graph")
    dumped = [run for run in runs if run.leaf is not None]
    if len({run.number for run in dumped}) < 2:
        only = next((f"debug_{run.number}" for run in dumped), "")
        without = [f"debug_{run.number}" for run in runs if run.leaf is None]
        raise DataNotFoundError("data.one_run_dumped", run=only, without_dump=without)
    pairs = [(first, second) for first, second in combinations(dumped, 2) if first.number != second.number]
    alike = [(first, second) for first, second in pairs if _share(first, second) >= _MIN_COMMON_FRACTION]
    if not alike:
        first, second = max(pairs, key=lambda pair: _share(*pair))
        raise UsageError(
            "data.runs_of_two_networks", first=first.number, second=second.number, share=_share(first, second)
        )
    problems: list[UsageError] = []
    for first, second in sorted(alike, key=lambda pair: -_share(*pair)):
        try:
            return _ordered(first, second)
        except UsageError as error:
            problems.append(error)
    raise problems[0]


def _share(first: GraphChoice, second: GraphChoice) -> float:
    """The share of the training script's ops that two graphs have in common, of the one with fewer."""
    ops, others = Fusion(first.file).script_ops, Fusion(second.file).script_ops
    return len(ops & others) / max(1, min(len(ops), len(others)))


def _ordered(first: RunGraph, second: RunGraph) -> FusionPair:
    first_fusion, second_fusion = Fusion(first.file), Fusion(second.file)
    counts = first_fusion.switchable.total(), second_fusion.switchable.total()
    if counts == (0, 0) and (first_fusion.nameless or second_fusion.nameless):
        counts = len(first_fusion.nameless), len(second_fusion.nameless)
    if counts == (0, 0):
        raise UsageError("data.no_switchable_fusion", first=first.number, second=second.number)
    if counts[0] == counts[1] or min(counts) > 0.9 * max(counts):
        raise UsageError(
            "data.both_fused", first=first.number, second=second.number, first_ops=counts[0], second_ops=counts[1]
        )
    fused, unfused = (first, second) if counts[0] > counts[1] else (second, first)
    steps = [sorted({leaf.step for leaf in run.leaves}) for run in (fused, unfused)]
    if all(steps) and not set(steps[0]) & set(steps[1]):
        raise UsageError(
            "data.steps_differ",
            fused=fused.number,
            fused_steps=steps[0][:_MAX_NAMED],
            unfused=unfused.number,
            unfused_steps=steps[1][:_MAX_NAMED],
        )
    return FusionPair(fused=fused, unfused=unfused, notes=tuple(_left_over(Fusion(unfused.file), unfused.number)))


def _left_over(unfused: Fusion, number: int | None) -> list[Message]:
    left = unfused.switchable
    return [Message("note.data.not_unfused", number=number, **_listed(left))] if left else []


def _listed(passes: Counter[str]) -> dict[str, Any]:
    """Return the first passes with their ops, and how many more there are, as fields of a note."""
    made = [Message("note.data.pass_made", name=name, ops=count) for name, count in passes.most_common(_MAX_NAMED)]
    return {"passes": made, "more": max(len(passes) - _MAX_NAMED, 0) or None}


# --- two graphs that were named, or lie beside the dumps ---


def check_fits(choice: GraphChoice, option: str) -> None:
    """Raise UsageError for a graph that is not the one of its dump."""
    if choice.matched < ENOUGH * choice.total:
        raise UsageError.of(
            choice.file.path, "data.graph_misfit", matched=choice.matched, total=choice.total, option=option
        )


def pair_notes(fused: GraphChoice, unfused: GraphChoice) -> list[Message]:
    """Return notes for the user on two graphs compared as fused and unfused. UsageError if they are no pair."""
    first, second = Fusion(fused.file), Fusion(unfused.file)
    share = _share(fused, unfused)
    if share < _MIN_COMMON_FRACTION:
        raise UsageError("data.graphs_of_two_networks", fused=fused.file.path, unfused=unfused.file.path, share=share)
    if second.switchable.total() > first.switchable.total():
        return [Message("note.data.more_fused")]
    left = second.switchable
    return [Message("note.data.not_unfused", number=None, **_listed(left))] if left else []
