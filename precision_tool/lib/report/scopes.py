"""Which group of the map each op stands in: the name scopes of the training script, the backward pass apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precision_tool.lib.model.graph import Op

#: The scope that TensorFlow puts the backward pass into.
_BACKWARD = re.compile(r"gradients(_\d+)?", re.IGNORECASE)
#: It stands among the first parts of a name; farther down it is a name like others.
_DEEPEST_BACKWARD = 3
#: Scopes within each other that are told apart; what lies deeper stands in the last of them.
_MOST_SCOPES = 12


@dataclass(frozen=True, slots=True)
class Place:
    """The scopes an op stands in, outermost first, and whether it belongs to the backward pass.

    The first scope of a backward op is that of the gradients with the one behind it (`gradients/conv1`); `mirrors` are
    the scopes of the forward pass that it stands beside.
    """

    scopes: tuple[str, ...]
    is_backward: bool = False
    mirrors: tuple[str, ...] = ()


def place_of(name: str) -> Place:
    """The place that a name tells."""
    parts = tuple(part for part in name.split("/") if part)
    scopes = parts[:-1][:_MOST_SCOPES]
    for at, part in enumerate(scopes[:_DEEPEST_BACKWARD]):
        if _BACKWARD.fullmatch(part):
            rest = scopes[at + 1 :]
            if not rest:
                return Place(scopes[:at], is_backward=True)
            first = "/".join(scopes[: at + 2])
            mirrors = tuple(scope.removesuffix("_grad") for scope in rest)
            return Place((first, *rest[1:]), is_backward=True, mirrors=mirrors)
    return Place(scopes)


def places(ops: Sequence[Op], producers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]) -> list[Place]:
    """The place of each op: by the first op of the script that it does the work of, or its own name.

    What the compiler put in stands with the op that feeds it, or that it feeds. `producers` and `readers` are the
    positions of the neighbours of each op.
    """
    known: dict[int, Place] = {}
    for at, op in enumerate(ops):
        names = [name for name in op.original_names or () if name]
        if names or op.original_names is None or "/" in op.name:
            known[at] = place_of(names[0] if names else op.name)
    return [known[at] if at in known else _nearest(at, known, producers, readers) for at in range(len(ops))]


def _nearest(
    at: int, known: Mapping[int, Place], producers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]
) -> Place:
    """The place of the nearest op before an op, or behind it, that has one; a few steps are looked at."""
    for neighbours in (producers, readers):
        here = at
        for _ in range(8):
            if not neighbours[here]:
                break
            here = neighbours[here][0]
            if here in known:
                return known[here]
    return Place(())
