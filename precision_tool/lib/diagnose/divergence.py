"""The flow of errors through a run, the distance of its tensors from the benchmark's, and its loss scale."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, log2, prod
from typing import TypeVar

import numpy as np

from precision_tool.lib.data.neighbourhood import BORDER_TYPES, order_of
from precision_tool.lib.diagnose.error_shape import flat_doubles, norm
from precision_tool.lib.diagnose.headroom import LOSS_SCALE
from precision_tool.lib.diagnose.op_values import DATA_TYPES, PASSING, VARIABLE_TYPES, Root, RunValues, Slot
from precision_tool.lib.diagnose.overwritten_memory import Divergence
from precision_tool.lib.diagnose.recorded_formulas import is_random_call
from precision_tool.lib.diagnose.verdict_model import Cause, Fact, Proof, Suspect, number_of
from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.ops.optimizers import updated_inputs

Node = TypeVar("Node")

#: Sets of ops that are followed through the graph at one time.
_BITS = 64
#: Types of ops some of which only pass on what feeds them: the op that put the tensor out is looked up.
_HANDING_ON = PASSING | BORDER_TYPES


class Flow:
    """The ops before and behind an op, by the tensors that run between them."""

    def __init__(self, values: RunValues) -> None:
        self._values = values

    @cached_property
    def _next(self) -> dict[int, list[int]]:
        """The ops that read an op's outputs, all by their numbers in the file."""
        file, readers = self._values.file, dict[int, list[int]]()
        for start, graph in zip(file.starts, file.graphs, strict=False):  # which also says where the last one ends
            numbers, types = graph.numbers, graph.column("type")
            for place, edges in enumerate(graph.column("inputs")):
                for slot, edge in enumerate(edges):
                    if edge is None or edge.producer not in numbers:
                        continue
                    number = numbers[edge.producer]
                    if types[number] not in _HANDING_ON:
                        readers.setdefault(start + number, []).append(start + place)
                    elif (root := self._values.source(graph.ops[place], slot)) is not None:
                        readers.setdefault(file.number_of(root.op), []).append(start + place)
        return readers

    def downstream(self, ops: Iterable[Op]) -> dict[int, Op]:
        """Return every op that is fed, directly or not, by one of `ops`, by id."""
        file = self._values.file
        reached = reached_from(map(file.number_of, ops), lambda number: self._next.get(number, ()), key=int)
        return {id(op): op for op in map(file.ops.__getitem__, reached)}

    def count_downstream(
        self, sources: Sequence[Collection[str]], marked: Collection[str]
    ) -> Iterator[tuple[int, int]]:
        """Yield for the ops of each set of names how many ops they feed, as `downstream`, and how many marked ones.

        Sets are counted together: where many ops of a large graph are wrong, each by itself would take too long.
        """
        names, order = self._values.file.column("name"), self._values.file.once(order_of)
        places = np.array([number for number in order if names[number] in marked], np.int64)
        for start in range(0, len(sources), _BITS):
            together = sources[start : start + _BITS]
            reached = self._reached_by(names, order, together)
            for bit in range(len(together)):
                is_reached = (reached >> np.uint64(bit)) & np.uint64(1)
                yield int(is_reached.sum()), int(is_reached[places].sum())

    def _reached_by(self, names: Sequence[str], order: Sequence[int], sources: Sequence[Collection[str]]) -> np.ndarray:
        """Return for each op of the file, by its number, a bit for each of the sets that feed it."""
        bits_of: dict[str, int] = {}
        for bit, source in enumerate(sources):
            for name in source:
                bits_of[name] = bits_of.get(name, 0) | 1 << bit
        reached = [0] * len(names)
        passed = bytearray(len(names))
        # Ops that ran before what they read: an order of the file that nothing guarantees, or a loop.
        again: list[int] = []

        def hand_on(number: int) -> None:
            bits = reached[number] | bits_of.get(names[number], 0)
            for reader in self._next.get(number, ()) if bits else ():
                if bits & ~reached[reader]:
                    reached[reader] |= bits
                    if passed[reader]:
                        again.append(reader)

        for number in order:
            passed[number] = True
            hand_on(number)
        while again:
            hand_on(again.pop())
        return np.array(reached, np.uint64)

    def upstream(self, op: Op) -> dict[int, Op]:
        """Return every op that feeds `op`, directly or not, by id."""
        return reached_from([op], lambda reader: [root.op for root in self._values.producers(reader)])


def reached_from(
    nodes: Iterable[Node], next_of: Callable[[Node], Iterable[Node]], key: Callable[[Node], int] = id
) -> dict[int, Node]:
    """Return every node that one way leads to from `nodes`, which are among them only if it leads back, by its key."""
    reached: dict[int, Node] = {}
    waiting = [next_node for node in nodes for next_node in next_of(node)]
    while waiting:
        node = waiting.pop()
        if key(node) not in reached:
            reached[key(node)] = node
            waiting += next_of(node)
    return reached


@dataclass(frozen=True, slots=True)
class Distance:
    """A tensor against the benchmark's: relative distance, cosine, and their uniform factor with its residual."""

    relative: float
    cosine: float
    factor: float
    residual: float
    largest: float


def distance(values: RunValues, root: Root) -> Distance | None:
    """Return how far a tensor is from the benchmark's; None where one of the two is not there."""
    golden = values.load_benchmark(root)
    npu = values.load_root(root) if golden is not None else None
    if golden is None or npu is None or golden.input.array.size != npu.input.array.size:
        return None
    if golden.input.array.dtype.kind == "c" or npu.input.array.dtype.kind == "c":
        return None
    x, y = flat_doubles(npu.input.array), flat_doubles(golden.input.array)
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    sizes = norm(x), norm(y)
    if not sizes[1]:
        return Distance(0.0 if not sizes[0] else np.inf, float(not sizes[0]), 1.0, 0.0, 0.0)
    with np.errstate(all="ignore"):
        dot = float(x @ y)
        factor = dot / sizes[1] ** 2
        residual = norm(x - factor * y) / sizes[0] if sizes[0] else 1.0
        relative = norm(x - y) / sizes[1]
        cosine = dot / (sizes[0] * sizes[1]) if sizes[0] else 0.0
    return Distance(relative, cosine, factor, residual, float(np.abs(y).max(initial=0.0)))


# --- loss scales ------------------------------------------------------------------------------------------------------


#: Ops that divide their first input by their second one, that make the reciprocal, and that multiply.
_DIVIDING = frozenset({"RealDiv", "Div", "DivNoNan", "TruncateDiv"})
_INVERTING = frozenset({"Reciprocal", "Inv"})
_MULTIPLYING = frozenset({"Mul", "Muls"})
#: How near a factor must be to a power of two to be a loss scale.
_POWER = 1e-3
#: How far what gradients were divided by may be off the scale, for rounding.
_ROUNDED = 2.0**-7
#: Ops that change neither which numbers a gradient has nor what it is of.
_REWRITING = frozenset({"Cast", "TransData"})


def is_scale(factor: float) -> bool:
    """Return whether a factor is a power of two other than 1."""
    if not (isfinite(factor) and factor > 0):
        return False
    power = log2(factor)
    return abs(power - round(power)) <= _POWER and round(power) != 0


def known_scales(values: RunValues, suspect: Suspect | None) -> dict[str, float]:
    """Return the loss scale of a run by its op's name: the one that was found, else scalars that are called so."""
    if suspect is not None:
        return {suspect.culprit: suspect.fact("factor")} if suspect.fact("factor") is not None else {}
    named = [op for op in values.ops if LOSS_SCALE.search(op.name) and not op.inputs and _is_scalar(op)]
    scales = {op.name: _number(values, Root(op, 0)) for op in named}
    return {name: value for name, value in scales.items() if value is not None and isfinite(value)}


def loss_scale(values: RunValues, flow: Flow) -> Suspect | None:
    """Return the variable that scales the loss, where a run shows that the gradients are divided by it again."""
    return next(iter(_scales(values, flow)), None)


@dataclass(frozen=True, slots=True)
class _Unscaling:
    """An op that divides a gradient by a scale, or multiplies it by the reciprocal."""

    op: Op
    gradient: Root


def _scales(values: RunValues, flow: Flow) -> Iterator[Suspect]:
    for op in values.ops:
        if op.type not in VARIABLE_TYPES and op.type not in DATA_TYPES:
            continue
        root = Root(op, 0)
        if not _is_scalar(op):
            continue
        unscalings, inverse = _unscaled(values, flow, root)
        unscalings = [unscaling for unscaling in unscalings if _updates(values, flow, unscaling.op)]
        if not unscalings:
            continue
        factor = _factor(values, root, inverse, unscalings)
        if factor is not None and is_scale(factor) and _is_divided_by(values, unscalings, factor):
            facts = (
                Fact(name="factor", value=float(f"{factor:.6g}")),
                Fact(name="unscaled_by", value=unscalings[0].op.name), Fact(name="gradients", value=len(unscalings)),
            )  # fmt: skip
            yield Suspect(
                culprit=op.name, cause=Cause.LOSS_SCALE, proof=Proof.RECOMPUTED, confidence=0.9,
                number=values.number_of(op), op_type=op.type, facts=facts,
            )  # fmt: skip


def _unscaled(values: RunValues, flow: Flow, root: Root) -> tuple[list[_Unscaling], list[Root]]:
    """Return what divides by a scalar something that this scalar feeds, and the tensors that are its reciprocal."""
    inverse: list[Root] = []
    dividing: list[Slot] = []
    scaled: list[Op] = []
    for slot in values.readers(root):
        if slot.op.type in _INVERTING:
            inverse.append(Root(slot.op, 0))
        elif slot.op.type in _DIVIDING and slot.graph_index == 1:
            if _is_scalar(slot.op):
                inverse.append(Root(slot.op, 0))
            else:
                dividing.append(slot)
        else:
            scaled.append(slot.op)
    for reciprocal in inverse:
        dividing += [slot for slot in values.readers(reciprocal) if slot.op.type in _MULTIPLYING]
    followers = flow.downstream(scaled)
    followers |= {id(op): op for op in scaled}
    unscalings = []
    for slot in dividing:
        others = [
            producer
            for producer in values.producers(slot.op)
            if producer.key not in {root.key, *(reciprocal.key for reciprocal in inverse)}
        ]
        if len(others) == 1 and id(others[0].op) in followers:
            unscalings.append(_Unscaling(slot.op, others[0]))
    return unscalings, inverse


def _updates(values: RunValues, flow: Flow, op: Op) -> bool:
    """Return whether what an op puts out is the gradient of a variable that the run updates.

    An update behind it is of as many elements, or reads it itself: one that merely stands behind it is behind
    everything that the loss is made of.
    """
    count = _count(op.output_descs[0]) if op.output_descs else None
    for update in flow.downstream([op]).values():
        if not updated_inputs(update.type):
            continue
        if count is not None and count in map(_count, update.input_descs):
            return True
        if any(_written_by(values, root) is op for root in values.producers(update)):
            return True
    return False


def _count(desc: TensorDesc) -> int | None:
    """Return elements of a tensor, without padding; None where the graph does not tell."""
    shape = desc.origin_shape if desc.origin_shape is not None else desc.shape
    return prod(shape) if shape and min(shape) >= 0 else None


def _written_by(values: RunValues, root: Root) -> Op:
    """Return the op that put out a tensor, before it was cast or stored otherwise."""
    visited: set[int] = set()
    while root.op.type in _REWRITING and id(root.op) not in visited:
        visited.add(id(root.op))
        root = next(values.producers(root.op), root)
    return root.op


def _is_divided_by(values: RunValues, unscalings: Sequence[_Unscaling], factor: float) -> bool:
    """Return whether a gradient was divided by the factor, or none is known on both sides."""
    is_known = False
    for unscaling in unscalings:
        quotient = _quotient(values, unscaling)
        if quotient is None:
            continue
        if abs(quotient / factor - 1) <= _ROUNDED:
            return True
        is_known = True
    return not is_known


def _is_scalar(op: Op) -> bool:
    return bool(op.output_descs) and prod(op.output_descs[0].shape) == 1


def _factor(values: RunValues, root: Root, inverse: list[Root], unscalings: list[_Unscaling]) -> float | None:
    """Return the scale from its copies, its reciprocal's, or what divided a gradient; None if unknown."""
    value = _number(values, root)
    if value is not None:
        return value
    for item in inverse:
        value = _number(values, item)
        if value:
            return 1 / value
    return next((quotient for item in unscalings if (quotient := _quotient(values, item)) is not None), None)


def _quotient(values: RunValues, unscaling: _Unscaling) -> float | None:
    """Return what a gradient was divided by; None where it is not known before and after, or is not finite, or zero."""
    scaled, back = values.load_root(unscaling.gradient), values.load_root(Root(unscaling.op, 0))
    if scaled is None or back is None or scaled.input.array.size != back.input.array.size:
        return None
    x, y = flat_doubles(scaled.input.array), flat_doubles(back.input.array)
    size = norm(y)
    if not (size and isfinite(size) and isfinite(norm(x))):
        return None
    return float(np.einsum("i,i->", x / size, y / size))


def _number(values: RunValues, root: Root) -> float | None:
    loaded = values.load_root(root)
    if loaded is None or loaded.input.array.size != 1 or loaded.input.array.dtype.kind not in "fiu":
        return None
    return float(np.asarray(loaded.input.array, np.float64).reshape(-1)[0])


# --- sources that differ ----------------------------------------------------------------------------------------------


#: Ops that are random by design.
_RANDOM = re.compile(
    r"Random|DropOutGenMask|TruncatedNormal|Multinomial|Bernoulli|^Stateful(?:StandardNormal|Uniform)|^Rng"
)
#: How near the tensors that a loss scale scales must be to each other.
_SCALED = 0.2
#: How sure it is that what differs is to blame, and of a variable at a later step, before which the sides trained it.
_LOADED, _TRAINED = 0.95, 0.5
#: Other random numbers differ in nearly every element.
_OTHER_NUMBERS = 0.5


def is_random(op: Op) -> bool:
    """Return whether an op draws random numbers."""
    recorded = op.recorded
    return bool(_RANDOM.search(op.type)) if recorded is None else is_random_call(recorded)


def find_sources(
    values: RunValues, flow: Flow, divergences: Sequence[Divergence], is_later: bool = False
) -> tuple[list[Suspect], Suspect | None]:
    """Return the sources that differ from the benchmark's, and apart from them a loss scale.

    Where an earlier step was judged too (`is_later`), variables are what both sides have trained since: that they
    differ accuses nobody.
    """
    sources = []
    scale = None
    for divergence in divergences:
        op = divergence.root.op
        cause = Cause.RANDOM if is_random(op) else Cause.INPUT if op.type in DATA_TYPES else Cause.WEIGHTS
        if cause is Cause.RANDOM and divergence.different < _OTHER_NUMBERS * divergence.size and op.recorded is None:
            cause = Cause.KERNEL  # the same numbers, and some of them spoilt
        facts = (
            Fact(name="distance", value=number_of(divergence.distance)),
            Fact(name="cosine", value=number_of(divergence.cosine)),
            Fact(name="different_elements", value=divergence.different), Fact(name="elements", value=divergence.size),
            Fact(name="factor", value=divergence.factor), Fact(name="reordered", value=divergence.reordered),
            Fact(name="output", value=divergence.root.index), Fact(name="seen_in", value=divergence.seen_in),
        )  # fmt: skip
        suspect = Suspect(
            culprit=op.name, cause=cause, proof=Proof.SOURCE, confidence=_LOADED,
            number=values.number_of(op), op_type=op.type, facts=facts,
        )  # fmt: skip
        if cause is Cause.WEIGHTS and _is_loss_scale(values, flow, divergence):
            scale = replace(suspect, cause=Cause.LOSS_SCALE)
            continue
        if cause is Cause.WEIGHTS and is_later:
            continue
        if cause is Cause.WEIGHTS and (step := _step(values)):
            suspect = replace(suspect, confidence=_TRAINED, facts=(*facts, Fact(name="step", value=step)))
        sources.append(suspect)
    together: dict[str, Suspect] = {}
    for suspect in sources:
        previous = together.get(suspect.culprit)
        if previous is None or suspect.fact("distance") > previous.fact("distance"):
            together[suspect.culprit] = suspect
    return list(together.values()), scale


def _step(values: RunValues) -> int:
    """Return the step of the dump; 0 where its folder does not tell, too."""
    step = values.leaf.step
    return int(step) if step.isascii() and step.isdigit() else 0


def _is_loss_scale(values: RunValues, flow: Flow, divergence: Divergence) -> bool:
    """Return whether a number that is a power of two times the benchmark's scales gradients, and them back."""
    if not divergence.is_scalar or divergence.factor is None or divergence.factor <= 0:
        return False
    power = log2(divergence.factor)
    if not is_scale(divergence.factor):
        return False
    followers = flow.downstream([divergence.root.op])
    scaled = back = 0
    for op in followers.values():
        off = distance(values, Root(op, 0))
        if off is None or not isfinite(off.factor) or off.factor <= 0 or off.residual > _SCALED:
            continue
        if abs(abs(log2(off.factor)) - abs(power)) < 0.1:
            scaled += 1
        elif abs(log2(off.factor)) < 0.1:
            back += 1
    return scaled > 0 and back > 0
