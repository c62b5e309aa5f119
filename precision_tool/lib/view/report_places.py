"""Where ops stand on the map of a report: in the scopes of their names, or in the modules that recorded calls ran in.

A recorded call stands in its modules, its backward beside it. What ran in no module behind the last backward is the
optimizer's. Ops that stand for tensors (parameters, inputs, views that were not recorded) stand with their reader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from precision_tool.lib.data.msprobe_ops import GRAPH_NAME, UNRECORDED
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.msprobe import Direction, RecordedOp

#: The scope that TensorFlow puts the backward pass into, of TensorFlow 2 `gradient_tape`.
_BACKWARD = re.compile(r"gradients(_\d+)?|gradient_tape(_\d+)?", re.IGNORECASE)
#: It stands among the first parts of a name; farther down it is a name like others.
_DEEPEST_BACKWARD = 3
#: Scopes within each other that are told apart; what lies deeper stands in the last of them.
_MOST_SCOPES = 12
#: The scope of calls in no module behind the last backward.
OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Place:
    """The scopes an op stands in, outermost first, and whether it belongs to the backward pass.

    The first scope of a backward op is that of the gradients with the one behind it (`gradients/conv1`, of recorded
    calls `backward/blocks`); `mirrors` are the scopes of the forward pass that it stands beside. `leaf` is what the op
    is called within its scopes; a recorded call and its backward are called the same.
    """

    scopes: tuple[str, ...]
    is_backward: bool = False
    mirrors: tuple[str, ...] = ()
    leaf: str = ""


# --- by names ---------------------------------------------------------------------------------------------------------


def place_of(name: str) -> Place:
    """Return the place that a name says."""
    parts = tuple(part for part in name.split("/") if part)
    scopes = parts[:-1][:_MOST_SCOPES]
    leaf = parts[-1] if parts else ""
    for at, part in enumerate(scopes[:_DEEPEST_BACKWARD]):
        if _BACKWARD.fullmatch(part):
            rest = scopes[at + 1 :]
            if not rest:
                return Place(scopes[:at], is_backward=True, leaf=leaf)
            first = "/".join(scopes[: at + 2])
            mirrors = tuple(scope.removesuffix("_grad") for scope in rest)
            return Place((first, *rest[1:]), is_backward=True, mirrors=mirrors, leaf=leaf)
    return Place(scopes, leaf=leaf)


def places_of_names(
    ops: Sequence[Op], producers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]
) -> list[Place]:
    """Return the place of each op: by the first op of the script that it does the work of, or its own name.

    What the compiler put in stands with the op that feeds it, or that it feeds.
    """
    by_name: dict[int, Place] = {}
    for at, op in enumerate(ops):
        names = [name for name in op.original_names or () if name]
        if names or op.original_names is None or "/" in op.name:
            by_name[at] = place_of(names[0] if names else op.name)
    return [by_name.get(at) or _nearest(at, by_name, producers, readers) for at in range(len(ops))]


def _nearest(
    at: int, places_by_op: Mapping[int, Place], producers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]
) -> Place:
    """Return the place of the nearest op upstream that has one, else downstream, within a few steps."""
    for neighbours in (producers, readers):
        here = at
        for _ in range(8):
            if not neighbours[here]:
                break
            here = neighbours[here][0]
            if here in places_by_op:
                return replace(places_by_op[here], leaf="")
    return Place(())


# --- by modules -------------------------------------------------------------------------------------------------------


def is_recorded(file: GraphFile) -> bool:
    """Return whether a graph was made of recorded calls."""
    graph = next(iter(file.graphs), None)
    return graph is not None and graph.name == GRAPH_NAME and any(op.recorded is not None for op in graph.ops)


def places_of_calls(ops: Sequence[Op], readers: Sequence[Sequence[int]]) -> list[Place]:
    """Return the place of each op of recorded calls; `readers` are in order of execution, as the ops are."""
    calls = [op.recorded for op in ops]
    last_backward = max((op.id or 0 for op, call in zip(ops, calls, strict=True) if _is_backward(call)), default=None)
    places: dict[int, Place] = {}
    for at, (op, call) in enumerate(zip(ops, calls, strict=True)):
        if call is None:
            continue
        scopes = _modules(op)
        if _is_backward(call):
            own = (f"backward/{scopes[0]}", *scopes[1:]) if scopes else ()
            places[at] = Place(own, is_backward=True, mirrors=scopes, leaf=_call_name(op))
        elif not scopes and last_backward is not None and (op.id or 0) > last_backward:
            places[at] = Place((OPTIMIZER,))
        else:
            places[at] = Place(scopes, leaf=_call_name(op))
    nothing: list[Sequence[int]] = [()] * len(ops)
    return [places.get(at) or _nearest(at, places, nothing, readers) for at in range(len(ops))]


def order_of_calls(
    ops: Sequence[Op], places: Sequence[Place], producers: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """Return edges of the layout alone, from a call to the next in time, where nothing says what an input was made of.

    A loss of a tensor in another type, which was not recorded, then stands behind the network, not at its top.
    """
    edges: list[tuple[int, int]] = []
    latest: dict[bool, int] = {}
    #: The passes that an op has something of.
    passes: list[frozenset[bool]] = []
    is_optimized = False
    for at, op in enumerate(ops):
        fed = frozenset[bool]().union(*(passes[producer] for producer in producers[at] if producer < at))
        if op.recorded is None:
            passes.append(fed)
            continue
        side = places[at].is_backward
        is_lost = any(ops[producer].type == UNRECORDED and not producers[producer] for producer in producers[at])
        is_optimizer = places[at].scopes == (OPTIMIZER,)
        is_start = not is_optimized if is_optimizer else is_lost and side not in fed
        if is_start and side in latest:
            edges.append((latest[side], at))
        is_optimized = is_optimized or is_optimizer
        latest[side] = at
        passes.append(frozenset([side]))
    return edges


def _is_backward(recorded: RecordedOp | None) -> bool:
    call = None if recorded is None else recorded.call.call
    return call is not None and call.direction is not Direction.FORWARD


def _call_name(op: Op) -> str:
    """Return the name of a recorded call without its direction."""
    return op.name.removesuffix(".forward").removesuffix(".backward")


def _modules(op: Op) -> tuple[str, ...]:
    path, _ = module_of(op)
    return tuple(path.split(".", _MOST_SCOPES)[:_MOST_SCOPES]) if path else ()


def module_of(op: Op) -> tuple[str, str]:
    """Return the path and the class of the module that a recorded call ran in; empty texts outside of modules."""
    path, separator, class_name = op.module.rpartition(" (")
    return (path, class_name.removesuffix(")")) if separator else ("", "")


def module_classes(ops: Sequence[Op], places: Sequence[Place]) -> dict[tuple[str, ...], str]:
    """Return the classes of modules that calls ran in directly, by the scopes of their groups."""
    classes: dict[tuple[str, ...], str] = {}
    for op, place in zip(ops, places, strict=True):
        path, class_name = module_of(op)
        if class_name and path.count(".") < _MOST_SCOPES:
            classes.setdefault(place.scopes, class_name)
    return classes
