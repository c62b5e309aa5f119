"""What statistics prove: numbers that must be the same to the last digit, and sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from precision_tool.lib.study.evidence import Evidence, EvidenceKind, evidence_of
from precision_tool.lib.study.leaf_statistics import (
    ELEMENTS,
    UNKNOWN,
    Doubles,
    LeafStatistics,
    Wholes,
)
from precision_tool.lib.study.sums import SUM_SHARE
from precision_tool.lib.study.votes import is_communication

Flags = npt.NDArray[np.bool_]


def disagreeing(group: Sequence[LeafStatistics]) -> Iterator[Evidence]:
    """Ranks that have something else than most, where all must have the same.

    Of an op whose inputs are not alike either only collectives are told of: an update that is fed another variable, or
    gradient, cannot put out the same. Where ranks agree on nothing they are no replicas.
    """
    if len(group) < 2:
        return
    names = group[0].names
    shared = np.flatnonzero(names.must_agree())
    found: list[tuple[int, Flags]] = []
    agreed = 0
    for number in shared.tolist():
        column = np.array([leaf.digests[number] for leaf in group])
        known = column != UNKNOWN
        values, counts = np.unique(column[known], return_counts=True)
        if len(values) < 2:
            agreed += len(values)
        elif 2 * counts.max() > known.sum():
            found.append((number, known & (column != values[counts.argmax()])))
    if not agreed:
        return
    for number, lone in found:
        op = int(names.op_of[number])
        inputs = np.flatnonzero((names.op_of == op) & ~names.is_output)
        other = group[int(np.flatnonzero(~lone)[0])]
        for row in np.flatnonzero(lone).tolist():
            fed_alike = bool((group[row].digests[inputs] == other.digests[inputs]).all())
            if fed_alike or is_communication(names.types[op]):
                yield evidence_of(
                    EvidenceKind.REPLICAS,
                    group[row],
                    number,
                    float(group[row].means[number]),
                    float(other.means[number]),
                )


def edges(group: Sequence[LeafStatistics]) -> tuple[Wholes, Wholes]:
    """Inputs that have the same numbers as an output before them, and that output; not those of constants."""
    leaf = group[0]
    names = leaf.names
    by_digest: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for number, digest in enumerate(leaf.digests.tolist()):
        if names.counts[number] < ELEMENTS or digest == UNKNOWN or leaf.is_constant[number]:
            continue
        if names.is_output[number]:
            by_digest[digest] = number
        elif digest in by_digest:
            found.append((number, by_digest[digest]))
    inputs, outputs = (np.array([pair[side] for pair in found], np.int64) for side in (0, 1))
    return inputs, outputs


def held(edges: tuple[Wholes, Wholes], group: Sequence[LeafStatistics]) -> tuple[Wholes, Wholes]:
    """Those that hold on most leaves."""
    inputs, outputs = edges
    holds = np.array([leaf.digests[inputs] == leaf.digests[outputs] for leaf in group]).mean(axis=0) > 0.5
    return inputs[holds], outputs[holds]


def changed(leaf: LeafStatistics, edges: tuple[Wholes, Wholes]) -> Iterator[Evidence]:
    """Inputs that are no longer what was put out."""
    inputs, outputs = edges
    one, two = leaf.digests[inputs], leaf.digests[outputs]
    for place in np.flatnonzero((one != two) & (one != UNKNOWN) & (two != UNKNOWN)).tolist():
        number = int(inputs[place])
        yield evidence_of(
            EvidenceKind.CHANGED, leaf, number, float(leaf.sizes[number]), float(leaf.sizes[outputs[place]])
        )


def sums(group: Sequence[LeafStatistics]) -> Iterator[Evidence]:
    """All-reduces whose mean is not the sum of what the ranks put in, if most of the step's are."""
    if len(group) < 2:
        return
    names = group[0].names
    checked: list[tuple[int, Doubles, float, float]] = []
    for op, op_type in enumerate(names.types):
        if not is_communication(op_type) or "allreduce" not in op_type.casefold():
            continue
        of_op = names.op_of == op
        for number in np.flatnonzero(of_op & names.is_output).tolist():
            fed = np.flatnonzero(of_op & ~names.is_output & (names.slots == names.slots[number]))
            if len(fed) == 1:
                parts = np.array([leaf.means[fed[0]] for leaf in group])
                sizes = np.array([leaf.sizes[fed[0]] for leaf in group]) / max(float(names.counts[number]), 1.0) ** 0.5
                came = np.array([leaf.means[number] for leaf in group])
                if np.isfinite(parts).all() and np.isfinite(sizes).all():
                    checked.append((number, came, float(parts.sum()), SUM_SHARE * float(sizes.sum())))
    wrong = [(number, came, total, limit, np.abs(came - total) > limit) for number, came, total, limit in checked]
    if 2 * sum(bool(off.any()) for *_, off in wrong) >= len(checked):
        return
    for number, came, total, limit, off in wrong:
        for row in np.flatnonzero(off).tolist():
            yield evidence_of(
                EvidenceKind.SUM, group[row], number, float(came[row]), total, abs(float(came[row]) - total), limit
            )
