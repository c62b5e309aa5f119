"""What the other leaves of a study say for an op that the verdict on one leaf accuses (VERDICT.md §12).

A leaf is judged by itself, with a chance of some 1 in 200 to accuse a right op: of a thousand leaves some always do.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan, sqrt
from statistics import median

from precision_tool.lib.diagnose.error_shape import OF_ROUNDING, Mistake
from precision_tool.lib.diagnose.study_journal import Accused, Excuse, LeafState
from precision_tool.lib.diagnose.verdict_model import OpResult, Proof, SlotResult, Suspect
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Kind

#: The error of an op stands out if it is so many times that of its peers; of many leaves a tenth of their root.
_TIMES, _OF_ROOT = 4.0, 0.1
#: A fault of all ranks is in doubt only where at least this share of the leaves has it and does not accuse the op.
_SHARE = 0.25
#: Mistakes that no size of an error tells of.
_OTHERWISE = frozenset({*OF_ROUNDING, Mistake.NOT_FINITE})
#: What no attribute of an op makes of its output.
_NO_ATTRIBUTE = frozenset({Mistake.ZERO, Mistake.NOT_FINITE})
#: Attributes that change no number: how tensors are stored, and what the compiler notes for itself.
_OF_COMPILER = frozenset({
    "format_for_int", "groups", "is_input_const", "op_para_size", "INPUT_IS_VAR", "OUTPUT_IS_VAR",
    "OwnerGraphIsUnknown",
})  # fmt: skip
_PRIVATE = ("_", "tvm_")

#: The relative own errors of ops' outputs in a leaf: by name of the op and number of the output.
OwnErrors = Mapping[tuple[str, int], float]


# --- what a leaf's verdict rests on ---


def sized_outputs(suspect: Suspect) -> tuple[int, ...]:
    """Return the outputs of a suspect that are wrong for the size of their error alone; () if more speaks against it.

    More is: another kind of proof, a value that is not finite, a wrong rounding, another argument that fits, anything
    wrong in an op that only moves numbers.
    """
    result = suspect.result
    if suspect.proof is not Proof.RECOMPUTED or result is None or result.variant is not None:
        return ()
    off = [slot for slot in result.slots if slot.beyond] or list(result.slots)
    return tuple(slot.slot for slot in off) if off and all(map(_is_by_size, off)) else ()


def _is_by_size(slot: SlotResult) -> bool:
    if slot.kind is Kind.EXACT or slot.not_finite or slot.overflowed or slot.flushed:
        return False
    return slot.places is None or slot.places.mistake not in _OTHERWISE


def is_by_attributes(suspect: Suspect) -> bool:
    """Return whether other attributes of the op, or of the ops that it is made of, might make it right."""
    result = suspect.result
    if suspect.proof is not Proof.RECOMPUTED or result is None or not _has_numbers(result.op):
        return False
    return not any(slot.places is not None and slot.places.mistake in _NO_ATTRIBUTE for slot in _off(result))


def _off(result: OpResult) -> Iterable[SlotResult]:
    return (slot for slot in result.slots if slot.beyond)


def _has_numbers(op: Op) -> bool:
    names = (name for name, value in op.attrs.items() if not isinstance(value, str))
    return any(not name.startswith(_PRIVATE) and name not in _OF_COMPILER for name in names)


# --- what the study makes of it ---


@dataclass
class _Known:
    """The own errors of one output in all leaves of a network: each with its leaf, and whether that accuses the op."""

    own: list[tuple[LeafState, float, bool]] = field(default_factory=list)
    #: Own errors by the leaf's path, and what `peers_up_to` gave: a fault of all ranks asks for each leaf.
    by_path: dict[str, float] = field(default_factory=dict)
    _up_to: dict[int, float] = field(default_factory=dict)

    def take(self, state: LeafState, own: float, is_accused: bool) -> None:
        """Add a leaf."""
        self.own.append((state, own, is_accused))
        self.by_path[state.leaf.path] = own

    def peers_up_to(self, step: int) -> float:
        """Return the median of leaves up to a step that do not accuse the op; NaN where these are too few."""
        if step not in self._up_to:
            so_far = [item for item in self.own if item[0].leaf.step <= step]
            peers = [own for _, own, is_accused in so_far if not is_accused]
            self._up_to[step] = median(peers) if peers and len(peers) >= _SHARE * len(so_far) else nan
        return self._up_to[step]


@dataclass
class _Graphs:
    """What speaks for and against ops of networks besides the attributes in a borrowed graph, each in its first step.

    `against` are ops that are wrong by a rank's own graph, or by more than attributes; `right` has ranks on which a
    verdict takes the op for right.
    """

    against: dict[tuple[str, str], int] = field(default_factory=dict)
    right: dict[tuple[str, str, int], int] = field(default_factory=dict)


def with_excused(
    states: Sequence[LeafState], own_errors: Callable[[LeafState, Collection[str]], OwnErrors]
) -> list[LeafState]:
    """Return the leaves without the accusations that other leaves refute; these are `excused`.

    Leaves of later steps say nothing of an earlier one: whether they are recomputed depends on it.

    Parameters
    ----------
    states : sequence of LeafState
        The leaves as they were judged, one by one.
    own_errors : callable
        Gives the own errors of some ops in a leaf.
    """
    asked: dict[str, set[str]] = {}
    for state in states:
        names = {item.op for item in state.accused if item.sized or item.by_attributes}
        if names:
            asked.setdefault(state.network, set()).update(names)
    if not asked:
        return list(states)
    known: dict[tuple[str, str, int], _Known] = {}
    graphs = _Graphs()
    for state in states:
        step, network = state.leaf.step, state.network
        for item in state.accused:
            if not item.by_attributes:
                graphs.against[network, item.op] = min(step, graphs.against.get((network, item.op), step))
        if state.has_verdict and state.network in asked:
            wrong = {item.op for item in state.accused}
            for (op, slot), own in own_errors(state, asked[state.network]).items():
                if isfinite(own):
                    known.setdefault((network, op, slot), _Known()).take(state, own, op in wrong)
                    if op not in wrong:
                        key = network, op, state.leaf.rank
                        graphs.right[key] = min(step, graphs.right.get(key, step))
    judged = sorted(state.leaf.step for state in states if state.has_verdict)
    revised = []
    for state in states:
        together = [
            replace(item, excuse=Excuse.PEERS) if _is_as_elsewhere(state, item, known, bisect(judged, state.leaf.step))
            else replace(item, excuse=Excuse.GRAPH) if _is_by_borrowed_graph(state, item, graphs)
            else item
            for item in state.accused
        ]  # fmt: skip
        excused = tuple(item for item in together if item.excuse is not None)
        kept = tuple(item for item in together if item.excuse is None)
        revised.append(replace(state, accused=kept, excused=excused) if excused else state)
    return revised


def _is_as_elsewhere(
    state: LeafState, accused: Accused, known: Mapping[tuple[str, str, int], _Known], leaves: int
) -> bool:
    """Return whether an op is off by no more than in leaves of which the verdicts take it for right."""
    return bool(accused.sized) and all(
        _is_no_outlier(state, known.get((state.network, accused.op, slot)), leaves) for slot in accused.sized
    )


def _is_no_outlier(state: LeafState, known: _Known | None, leaves: int) -> bool:
    own = None if known is None else known.by_path.get(state.leaf.path)
    if known is None or own is None:
        return False
    return own <= max(_TIMES, _OF_ROOT * sqrt(leaves)) * known.peers_up_to(state.leaf.step)  # False for NaN


def _is_by_borrowed_graph(state: LeafState, accused: Accused, graphs: _Graphs) -> bool:
    """Return whether nothing but another device's graph, which may have other attributes, speaks against an op.

    More does where the op is wrong by a rank's own graph too, and where the same graph made it right in an earlier step
    of the rank.
    """
    step, key = state.leaf.step, (state.network, accused.op)
    if not accused.by_attributes or graphs.against.get(key, step + 1) <= step:
        return False
    return graphs.right.get((*key, state.leaf.rank), step) >= step
