"""The causes of the errors of a run: another bias, overflows and casts, and every independent fault, ranked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf, prod, sqrt

import numpy as np

from precision_tool.lib.data.dumped_ops import NoBenchmark
from precision_tool.lib.data.msprobe_ops import UNRECORDED
from precision_tool.lib.diagnose.divergence import Flow, distance, find_sources, is_random, loss_scale
from precision_tool.lib.diagnose.error_shape import LIMIT, UNIT, Doubles, Mistake, flat_doubles, tells_rounding
from precision_tool.lib.diagnose.op_values import DATA_TYPES, PARAMETER_TYPES, NoValueError, Root, RunValues
from precision_tool.lib.diagnose.overwritten_memory import Divergence, Overwritten, stomps
from precision_tool.lib.diagnose.recomputer import is_off_all_over
from precision_tool.lib.diagnose.recorded_formulas import GRADIENTS
from precision_tool.lib.diagnose.replay import Effect
from precision_tool.lib.diagnose.verdict_model import (
    Cause,
    Fact,
    Flag,
    Gap,
    OpResult,
    Proof,
    SlotResult,
    State,
    Suspect,
    number_of,
)
from precision_tool.lib.io import data_types
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import Literal
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.ops.base import Input

#: Ops that add a bias to each channel.
_ADDING = ("BiasAdd", "Add", "AddV2")
#: Fewer channels, or elements in each, prove nothing.
_MIN_CHANNELS, _MIN_ELEMENTS = 4, 4
#: How far what was added may be from one number a channel, in units of the last place of what was added up.
_UNITS = 4.0
#: How near it must be to what a kernel would make of the benchmark's bias to be put down to the kernel.
_NEAR = 0.02


def is_another_bias(values: RunValues, op: Op, bias: Root) -> bool:
    """Return whether an op added one number per channel that is no multiple nor another order of its bias.

    `bias` is the variable, whose numbers are the benchmark's. False where that is not known.
    """
    if op.type not in _ADDING:
        return False
    golden = values.load_benchmark(bias)
    other_input = _other_input(values, op, bias)
    output = values.tensor_at(values.output_slot(Root(op, 0)))
    if (
        golden is None
        or other_input is None
        or not isinstance(output, Tensor)
        or {other_input.dtype, output.dtype} - UNIT.keys()
    ):
        return False
    try:
        got = values.load(output, op.output_desc())
    except (NoValueError, PrecisionToolError):
        return False
    x, y = np.asarray(other_input.array, np.float64), np.asarray(got.array, np.float64)
    true = flat_doubles(golden.input.array)
    if x.shape != y.shape or true.size < _MIN_CHANNELS:
        return False
    unit = max(UNIT[other_input.dtype], UNIT[got.dtype])
    for axis in (axis for axis, size in enumerate(x.shape) if size == true.size):
        added = _one_a_channel(x, y, axis, unit)
        if added is not None:
            return not _is_made_of(true, added)
    return False


def _other_input(values: RunValues, op: Op, bias: Root) -> Input | None:
    """Return what the bias is added to."""
    for slot in values.input_slots(op):
        root = values.source_of(slot)
        if root is None or values.parameter_of(root) is bias.op:
            continue
        own = values.tensor_at(slot)
        try:
            if isinstance(own, Tensor):
                return values.load(own, slot.desc)
            loaded = values.load_root(root)
        except (NoValueError, PrecisionToolError):
            return None
        return loaded.input if loaded is not None else None
    return None


def _one_a_channel(x: Doubles, y: Doubles, axis: int, unit: float) -> Doubles | None:
    """Return what was added to each channel; None if it is not the same for all its elements."""
    with np.errstate(all="ignore"):
        added = np.moveaxis(y - x, axis, -1).reshape(-1, x.shape[axis])
        slack = _UNITS * unit * np.moveaxis(np.abs(x) + np.abs(y), axis, -1).reshape(added.shape)
        middle = np.median(added, axis=0)
        is_one = bool((np.abs(added - middle) <= slack).all())
    return middle if is_one and len(added) >= _MIN_ELEMENTS else None


def _is_made_of(true: Doubles, added: Doubles) -> bool:
    """Return whether a faulty kernel may have added this for the bias: a multiple, or another order of it."""
    size = float(np.linalg.norm(added))
    square = float(true @ true)
    multiple = true * (float(added @ true) / square) if square else np.zeros_like(true)
    others = (multiple, np.sort(true) - np.sort(added) + added)
    return any(float(np.linalg.norm(added - other)) <= _NEAR * size for other in others)


# --- overflows and lossy casts ----------------------------------------------------------------------------------------


#: Readers of a cast that are looked at.
_MAX_READERS = 16


class OutOfRange:
    """Finds the ops of one run whose results their types cannot hold; `flagged` is what status files say by op."""

    def __init__(self, values: RunValues, flow: Flow, judged: Sequence[OpResult], flagged: Mapping[str, Flag]) -> None:
        self._values, self._flow = values, flow
        self._judged, self._flagged = judged, flagged
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}
        #: Whether any op has or reads NaN: only then those are looked at that were not recomputed.
        self._has_nans = any(
            any(slot.nans for slot in item.slots)
            or (item.reason is not None and item.reason.kind == "reason.nowhere_finite")
            for item in judged
        )

    def overflows(self, faulty: Iterable[Op]) -> Iterator[Suspect]:
        """Yield ops whose true result their type cannot hold; not those fed by another such op."""
        over = [result for result in self._judged if result.overflow is not None]
        spoiled = self._flow.downstream(result.op for result in over)
        after_faults = self._flow.downstream(faulty)
        for result in over:
            slot = result.overflow
            assert slot is not None
            if id(result.op) in spoiled or not result.finite_inputs:
                continue
            golden = distance(self._values, Root(result.op, slot.slot))
            beyond_too = golden is not None and golden.largest > LIMIT.get(slot.dtype, np.inf)
            if id(result.op) in after_faults and not beyond_too:
                continue
            flag = self._flagged.get(result.name)
            facts = [
                Fact(name="largest", value=number_of(slot.largest)), Fact(name="limit", value=LIMIT.get(slot.dtype)),
                Fact(name="overflowed_elements", value=slot.overflowed), Fact(name="elements", value=slot.size),
                Fact(name="at_limit", value=slot.at_limit),
                Fact(name="type", value=slot.dtype), Fact(name="benchmark_overflows", value=beyond_too),
                Fact(name="script_ops", value=self._script_ops(result.op)),
                *(flag.facts if flag is not None else ()),
            ]  # fmt: skip
            sure = 0.98 if flag is not None and not flag.is_doubtful else 0.95
            yield _suspect(result, _cast_or_overflow(result.op), Proof.RECOMPUTED, sure, facts)

    def told_by_status(self, suspects: Sequence[Suspect]) -> Iterator[Suspect]:
        """Yield ops that only a status file names, as they cannot be recomputed, and that no fault feeds."""
        named = {item.culprit for item in suspects} | {name for item in suspects for name in item.also}
        spoiled = self._flow.downstream(self._values.named(named))
        for item in sorted(self._judged, key=lambda op: op.number):
            flag = self._flagged.get(item.name)
            if flag is None or flag.is_doubtful or item.state is not State.NOT_RECOMPUTED:
                continue
            if item.name in named or id(item.op) in spoiled:
                continue
            spoiled |= self._flow.downstream([item.op])
            facts = (*flag.facts, Fact(name="not_recomputed", value=item.reason),
                     Fact(name="script_ops", value=self._script_ops(item.op)))  # fmt: skip
            yield _suspect(item, _cast_or_overflow(item.op), Proof.STATUS, 0.8, facts)

    def unseen_overflows(self, suspects: Sequence[Suspect]) -> Iterator[Suspect]:
        """Yield ops that were not recomputed, with infinities where the benchmark is beyond their type.

        Not those that an overflow feeds, nor those that read numbers that are not finite. That the benchmark is beyond
        the type no fault explains.
        """
        named = {name for item in suspects for name in (item.culprit, *item.also)}
        _, spoiled = self._named(item for item in suspects if item.fact("overflowed_elements") is not None)
        for item in sorted(self._judged, key=lambda op: op.number):
            if item.state is not State.NOT_RECOMPUTED or item.name in named or id(item.op) in spoiled:
                continue
            if not self._values.is_shown(item.op):
                continue
            beyond = next((beyond for beyond in self._beyond(item.op) if beyond is not None), None)
            if beyond is None or any(self._not_finite(root) for root in self._values.producers(item.op)):
                continue
            spoiled |= self._flow.downstream([item.op])
            facts = (*beyond, Fact(name="not_recomputed", value=item.reason),
                     Fact(name="script_ops", value=self._script_ops(item.op)))  # fmt: skip
            yield _suspect(item, _cast_or_overflow(item.op), Proof.COMPARED, 0.85, facts)

    def _beyond(self, op: Op) -> Iterator[tuple[Fact, ...] | None]:
        """Yield for each output how far the benchmark is beyond its type where it is infinite or at the limit."""
        for index, desc in enumerate(op.output_descs):
            limit = LIMIT.get(desc.dtype)
            root = Root(op, index)
            if limit is None or self._values.compared.largest.get((op.name, f"output:{index}"), inf) <= limit:
                continue
            golden = self._values.load_benchmark(root)
            npu = self._values.load_root(root) if golden is not None else None
            if golden is None or npu is None or golden.input.array.size != npu.input.array.size:
                continue
            if golden.input.array.dtype.kind != "f" or npu.input.array.dtype.kind != "f":
                continue
            true, got = np.abs(flat_doubles(golden.input.array)), np.abs(flat_doubles(npu.input.array))
            over = np.isfinite(true) & (true > limit) & (got >= limit)
            count = int(np.count_nonzero(over))
            if not count:
                continue
            yield (
                Fact(name="largest", value=number_of(float(true[over].max()))), Fact(name="limit", value=limit),
                Fact(name="overflowed_elements", value=count), Fact(name="elements", value=true.size),
                Fact(name="at_limit", value=int(np.count_nonzero(~(got < limit)))),
                Fact(name="type", value=desc.dtype), Fact(name="benchmark_overflows", value=True),
            )  # fmt: skip

    def _not_finite(self, root: Root) -> tuple[int, int] | None:
        """Return how many NaN and infinities a tensor has; None if none, or if it is not known."""
        cached = self._counts.get(root.key)
        if cached is None:
            loaded = self._values.load_root(root)
            if loaded is None and self._values.parameter_of(root) is not None:
                loaded = self._values.load_benchmark(root)
            array = loaded.input.array if loaded is not None else np.zeros(0)
            is_float = array.dtype.kind in "fc"
            nans = int(np.count_nonzero(np.isnan(array))) if is_float else 0
            cached = nans, int(np.count_nonzero(np.isinf(array))) if is_float else 0
            self._counts[root.key] = cached
        return cached if any(cached) else None

    def with_nans(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return the suspects with the ops that make NaN of infinities, such as 0 · Inf in a mask.

        Such an op is evidence against the suspect that put these infinities out, and a suspect itself where none did.
        """
        suspects = list(suspects)
        named, spoiled = self._named(suspects)
        behind: dict[int, Op] = {}
        for item in sorted(self._judged, key=lambda op: op.number):
            nans = self._first_nans(item) if id(item.op) not in behind else None
            if nans is None:
                continue
            behind |= self._flow.downstream([item.op])
            root, count, size = nans
            source = self._source_of_infinities(item.op)
            overflow = next((n for n, other in enumerate(suspects) if self._leads_to(other, source, item.op)), None)
            facts = (
                Fact(name="nan_op", value=item.name), Fact(name="nan_elements", value=count),
                Fact(name="nan_of", value=size), Fact(name="infinities_of", value=source.name if source else None),
            )  # fmt: skip
            if overflow is not None:
                if suspects[overflow].fact("nan_op") is None:
                    suspects[overflow] = replace(suspects[overflow], facts=(*suspects[overflow].facts, *facts))
            elif source is not None and item.name not in named and id(item.op) not in spoiled:
                is_compared = self._values.load_benchmark(root) is not None
                more = (Fact(name="output", value=root.index), Fact(name="script_ops", value=self._script_ops(item.op)))
                proof = Proof.COMPARED if item.state is State.NOT_RECOMPUTED and is_compared else Proof.RECOMPUTED
                is_made = source.type not in PARAMETER_TYPES | DATA_TYPES | {UNRECORDED}
                # A mask of the script's own has infinities too, and a row of nothing else is NaN in a right softmax.
                alone = 0.6 if is_made and not _puts_infinities(source) else 0.4
                suspect = _suspect(item, Cause.OVERFLOW, proof, 0.85 if is_compared else alone, (*facts, *more))
                suspects.append(replace(suspect, also=(source.name,) if is_made else ()))
        return suspects

    def _named(self, suspects: Iterable[Suspect]) -> tuple[set[str], dict[int, Op]]:
        """Return the names of all suspects, and the ops that they feed."""
        named = {name for item in suspects for name in (item.culprit, *item.also)}
        return named, self._flow.downstream(self._values.named(named))

    def _leads_to(self, suspect: Suspect, source: Op | None, op: Op) -> bool:
        """Return whether a suspect is an overflow that put out the infinities that an op makes NaN of."""
        if suspect.cause not in (Cause.OVERFLOW, Cause.CAST) or source is None or suspect.culprit == op.name:
            return False
        names = {suspect.culprit, *suspect.also}
        return source.name in names or any(other.name in names for other in self._flow.upstream(source).values())

    def _first_nans(self, item: OpResult) -> tuple[Root, int, int] | None:
        """Return the output in which an op has NaN, of how many of its elements, if it reads none and should have none.

        What the benchmark has as NaN as well is what the script computes.
        """
        seen = [slot.slot for slot in item.slots if slot.nans]
        if item.state is State.NOT_RECOMPUTED:
            seen = list(range(len(item.op.output_descs))) if self._has_nans else []
        for index in seen:
            root = Root(item.op, index)
            counts = self._not_finite(root)
            if counts is None or not counts[0]:
                continue
            read = [self._not_finite(producer) for producer in self._values.producers(item.op)]
            if any(other is not None and other[0] for other in read):
                return None
            loaded, golden = self._values.load_root(root), self._values.load_benchmark(root)
            size = loaded.input.array.size if loaded is not None else 0
            if golden is not None and golden.input.array.dtype.kind == "f" and np.isnan(golden.input.array).any():
                continue
            return root, counts[0], size
        return None

    def _source_of_infinities(self, op: Op) -> Op | None:
        """Return the op that put out the first infinities on the way to an op; None if it reads none."""
        source: Op | None = None
        visited: set[int] = set()
        while id(op) not in visited:
            visited.add(id(op))
            producer = next((root for root in self._values.producers(op) if self._not_finite(root) is not None), None)
            if producer is None:
                break
            source = op = producer.op
        return source

    def lost_in_integers(self) -> Iterator[Suspect]:
        """Yield casts that the compiler put in, through an integer type, of numbers that are no integers."""
        for result in self._judged:
            op = result.op
            if op.type != "Cast" or op.original_names or result.state is State.WRONG:
                continue
            if not op.input_descs or not op.output_descs:
                continue
            source, target = op.input_descs[0].dtype, op.output_descs[0].dtype
            if source not in UNIT or target in UNIT or not target.startswith(("int", "uint")):
                continue
            lost = self._lost(op)
            if lost is None:
                continue
            back = [
                slot.op.name
                for slot in self._values.readers(Root(op, 0))
                if slot.op.type == "Cast" and slot.op.output_descs and slot.op.output_descs[0].dtype in UNIT
            ]
            facts = [
                Fact(name="from", value=source), Fact(name="to", value=target),
                Fact(name="lost", value=number_of(lost)), Fact(name="script_ops", value=self._script_ops(op)),
            ]  # fmt: skip
            suspect = _suspect(result, Cause.CAST, Proof.RECOMPUTED, 0.95 if back else 0.85, facts)
            yield replace(suspect, also=tuple(back), pass_name="")

    def _script_ops(self, op: Op) -> list[str]:
        """Return the ops of the script that an op does the work of; of a cast those that read it."""
        names: dict[str, None] = {}
        waiting, visited = [op], 0
        while waiting and visited < _MAX_READERS:
            reader = waiting.pop(0)
            visited += 1
            if reader.type in ("Cast", "TransData") and not reader.original_names:
                waiting += [slot.op for slot in self._values.readers(Root(reader, 0))]
            else:
                names |= dict.fromkeys(reader.original_names or (reader.name,))
        return list(names)

    def _lost(self, op: Op) -> float | None:
        """Return the relative distance that a cast to integers takes its input; None if that is nothing."""
        for slot in self._values.input_slots(op):
            root = self._values.source_of(slot)
            loaded = self._values.load_root(root) if root is not None else None
            if loaded is None and root is not None:
                loaded = self._values.load_benchmark(root)
            if loaded is None:
                return None
            x = flat_doubles(loaded.input.array)
            x = x[np.isfinite(x)]
            size = float(np.linalg.norm(x))
            lost = float(np.linalg.norm(x - np.trunc(x)))
            return lost / size if size and lost > 1e-6 * size else None
        return None


# --- causes -----------------------------------------------------------------------------------------------------------


#: An op that cannot be recomputed is suspected if its output is so many times as far off as its inputs, and so far.
_JUMP, _FAR = 30.0, 0.05


#: Bytes that the device's units write at least; its memory is given out in multiples of them.
_BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Findings of the previous steps on one run."""

    judged: Sequence[OpResult]
    overwritten: Sequence[Overwritten]
    divergences: Sequence[Divergence]
    #: Tensors whose true copy recomputing could not tell for want of time.
    unsettled: int = 0
    #: Ops that were judged together.
    gaps: Sequence[Gap] = ()
    #: What overflow status files say, by name of the op.
    flagged: Mapping[str, Flag] = field(default_factory=dict)
    #: Whether an earlier step of the same training is judged too.
    is_later: bool = False
    #: What own errors do to the end of the run, by name of the op.
    effects: Mapping[str, Effect] = field(default_factory=dict)


class Explainer:
    """Names the causes of one run's findings."""

    def __init__(self, values: RunValues, findings: Findings) -> None:
        self._values = values
        self._findings = findings
        self.flow = Flow(values)
        self._by_id = {id(result.op): result for result in findings.judged}
        #: Wrong ops, by name, that may as well be right and have read another variable.
        self._either: dict[str, Op] = {}

    def suspects(self, compared: Sequence[str] = ()) -> list[Suspect]:
        """Return every independent fault, best first. `compared` are the suspects of the comparison alone."""
        overwritten = list(stomps(self._values, self._findings.overwritten, self._by_id))
        divergences, explained = self._borrowed()
        shared = list(self._shared_inputs(explained))
        explained |= {name for item in shared for name in (item.culprit, *item.also)}
        wrong = [*shared, *self._wrong(explained)]
        out_of_range = OutOfRange(self._values, self.flow, self._findings.judged, self._findings.flagged)
        lost = list(out_of_range.lost_in_integers())
        sources, scale = find_sources(
            self._values, self.flow, [*self._findings.divergences, *divergences], self._findings.is_later
        )
        proven = [*overwritten, *wrong, *lost]
        ops = [item.op for item in self._findings.judged if item.state is State.WRONG]
        ops += [item.consumer for item in self._findings.overwritten]
        proven += out_of_range.overflows([*ops, *self._ops_of(sources)])
        proven += out_of_range.unseen_overflows(proven)
        suspects = sorted(proven, key=_rank) + sorted(sources, key=_rank)
        if scale is None and isinstance(self._values.benchmark, NoBenchmark):
            scale = loss_scale(self._values, self.flow)
        if scale is not None:
            suspects.append(scale)
        suspects += self._in_gaps(suspects)
        suspects += out_of_range.told_by_status(suspects)
        suspects = out_of_range.with_nans(suspects)
        suspects += self._jumps(suspects)
        return suspects or list(self._by_comparison(compared))

    # --- what recomputing says ---

    def _readers_of_borrowed(self) -> Iterable[list[tuple[Root, OpResult]]]:
        """Return, for each undumped variable, the ops that were recomputed with the benchmark's numbers of it."""
        by_parameter: dict[int, list[tuple[Root, OpResult]]] = {}
        for item in self._findings.judged:
            if not item.from_elsewhere:
                continue
            slots = {slot.index: slot for slot in self._values.input_slots(item.op)}
            for index, source in item.from_elsewhere:
                root = self._values.source_of(slots[index]) if index in slots else None
                parameter = self._values.parameter_of(root) if root is not None else None
                if source == "benchmark" and parameter is not None:
                    by_parameter.setdefault(id(parameter), []).append((Root(parameter, 0), item))
        return by_parameter.values()

    def _borrowed(self) -> tuple[list[Divergence], set[str]]:
        """Return undumped variables that differ, as every op shows that was recomputed with the benchmark's.

        With them the names of these ops, which are not to blame.
        """
        known_divergences = {id(item.root.op): item for item in self._findings.divergences}
        divergences, explained = [], set()
        for readers in self._readers_of_borrowed():
            root = readers[0][0]
            wrong = [item for _, item in readers if item.state is State.WRONG]
            judged = [item for _, item in readers if item.state in (State.WRONG, State.RIGHT)]
            if not wrong:
                continue
            factors = [factor for item in wrong if (factor := _whole_factor(item)) is not None]
            size = root.op.output_descs[0].shape if root.op.output_descs else (0,)
            is_scalar = size in ((), (1,))
            if id(root.op) not in known_divergences:
                if len(wrong) < len(judged):
                    continue
                is_shown = len(wrong) > 1 or (is_scalar and factors)
                if not is_shown and is_off_all_over(wrong[0]):
                    is_shown = is_another_bias(self._values, wrong[0].op, root)
                    if not is_shown:
                        self._either[wrong[0].name] = root.op
                if not is_shown:
                    continue
                slot = wrong[0].worst_slot
                divergences.append(
                    Divergence(
                        root=root, distance=slot.own if slot is not None else 0.0, different=0, size=0, cosine=0.0,
                        factor=factors[0] if len(factors) == len(wrong) else None, is_scalar=is_scalar,
                        seen_in=wrong[0].name,
                    )
                )  # fmt: skip
            explained |= {item.name for item in wrong}
        return divergences, explained

    def _shared_inputs(self, explained: set[str]) -> Iterator[Suspect]:
        """Yield ops whose inputs were not dumped and that are wrong together: what they both read was overwritten."""
        readers: dict[tuple[int, int], list[OpResult]] = {}
        roots: dict[tuple[int, int], Root] = {}
        for result in self._findings.judged:
            if result.state is not State.WRONG or result.name in explained or not _is_unlike_kernels(result):
                continue
            slots = {slot.index: slot for slot in self._values.input_slots(result.op)}
            for index, source in result.from_elsewhere:
                root = self._values.source_of(slots[index]) if index in slots else None
                if root is not None and source == "producer":
                    readers.setdefault(root.key, []).append(result)
                    roots[root.key] = root
        done: set[str] = set()
        for key, together in sorted(readers.items(), key=lambda item: (-len(item[1]), item[1][0].number)):
            producer = self._by_id.get(id(roots[key].op))
            names = {result.name for result in together}
            if len(names) < 2 or names & done or producer is None or producer.state is not State.RIGHT:
                continue
            if len({result.op.pass_names for result in together}) == 1 and together[0].op.pass_names:
                continue  # the same pass made them all: that explains it as well
            done |= names
            first = min(together, key=lambda op: op.number)
            suspect = self._own_error(first)
            others = sorted(names - {first.name})
            facts = (
                Fact(name="tensor", value=roots[key].name), Fact(name="producer", value=roots[key].op.name),
                Fact(name="other_readers", value=others), *suspect.facts,
            )  # fmt: skip
            yield replace(
                suspect, cause=Cause.STOMP, confidence=0.75, pass_name="", facts=facts,
                also=(*others, roots[key].op.name),
            )  # fmt: skip

    def _wrong(self, explained: set[str]) -> Iterator[Suspect]:
        """Yield ops with an error of their own; those of one pass are one suspect."""
        by_pass: dict[str, list[Suspect]] = {}
        truncating: dict[tuple[str, str, str], list[Suspect]] = {}
        for result in self._findings.judged:
            if result.state is not State.WRONG or result.name in explained:
                continue
            suspect = self._own_error(result)
            if result.name in self._either:
                suspect = _or_its_variable(suspect, self._either[result.name])
            if suspect.cause is Cause.FUSION:
                by_pass.setdefault(suspect.pass_name, []).append(suspect)
            elif suspect.fact("mistake") == Mistake.TRUNCATED:
                truncating.setdefault(_types(result.op), []).append(suspect)
            else:
                yield suspect
        yield from self._truncating_alike(truncating)
        for together in by_pass.values():
            first = min(together, key=lambda op: op.number)
            also = dict.fromkeys(
                (*first.also, *(name for result in together for name in (result.culprit, *result.also)))
            )
            yield replace(first, also=tuple(name for name in also if name != first.culprit))

    def _truncating_alike(self, truncating: Mapping[tuple[str, str, str], Sequence[Suspect]]) -> Iterator[Suspect]:
        """Yield one suspect for all ops of a type that truncate: how the device rounds there is one fault."""
        for types, ops in truncating.items():
            first, *others = sorted(ops, key=lambda suspect: suspect.number)
            rounding = any(
                item.state is State.RIGHT and _types(item.op) == types and self._has_inexact(item.op, types[2])
                for item in self._findings.judged
            )  # fmt: skip
            facts = (
                Fact(name="from", value=types[1]), Fact(name="to", value=types[2]),
                Fact(name="truncating_ops", value=len(ops)), Fact(name="others_round", value=rounding),
            )  # fmt: skip
            yield replace(first, also=tuple(other.culprit for other in others), facts=(*first.facts, *facts))

    def _has_inexact(self, op: Op, dtype: str) -> bool:
        """Return whether an op's result tells how it rounds; a cast has to read numbers that its type does not hold."""
        if op.type != "Cast":
            return True
        for slot in self._values.input_slots(op):
            root = self._values.source_of(slot)
            loaded = self._values.load_root(root) if root is not None else None
            return loaded is not None and tells_rounding(flat_doubles(loaded.input.array), dtype)
        return False

    def _in_gaps(self, suspects: Sequence[Suspect]) -> Iterator[Suspect]:
        """Yield ops that are wrong together, with no dump between them, unless they are suspects already."""
        named = {name for item in suspects for name in (item.culprit, *item.also)}
        for gap in self._findings.gaps:
            names = {op.name for op in gap.ops} | {root.op.name for op in gap.ops for root in self._parameters(op)}
            if gap.result.state is not State.WRONG or names & named:
                continue
            # What only changes the type or the order is seldom to blame.
            op = next((op for op in reversed(gap.ops) if op.type not in ("Cast", "TransData")), gap.ops[-1])
            suspect = self._own_error(replace(gap.result, op=op))
            also = tuple(other.name for other in gap.ops if other is not op)
            named |= names
            if len(gap.borrowed) == 1 and is_off_all_over(gap.result):
                variable = gap.borrowed[0]
                also = tuple(other.name for other in gap.ops)
                suspect = replace(suspect, culprit=variable.name, cause=Cause.WEIGHTS, op_type=variable.type)
                op = variable
            yield replace(
                suspect, confidence=0.5, also=also, number=self._values.number_of(op),
                facts=(*suspect.facts, Fact(name="one_of", value=[op.name, *also])),
            )  # fmt: skip

    def _parameters(self, op: Op) -> Iterator[Root]:
        """Yield the variables and constants that feed an op."""
        for root in self._values.producers(op):
            parameter = self._values.parameter_of(root)
            if parameter is not None:
                yield Root(parameter, 0)

    def _own_error(self, result: OpResult) -> Suspect:
        slot = result.worst_slot
        assert slot is not None
        wrong = [other for other in result.slots if other.beyond]
        moved = all(other.places is not None and other.places.is_moved for other in wrong)
        cause = Cause.LAYOUT if moved else _fusion_or_kernel(result.op)
        if result.op.type == "Cast" and all(
            other.places is not None and other.places.mistake in _OF_CASTS for other in wrong
        ):
            cause = Cause.CAST  # it goes through another type than the one it is told to make, or does not round
        sure = 0.97 if result.is_confirmed else 0.75 if result.is_guessed else 0.95
        if _is_seen_apart(result) and self._is_overwritten(result, slot):
            cause, sure = Cause.STOMP, 0.7
        undumped_inputs = [index for index, source in result.from_elsewhere if source != "benchmark"]
        if undumped_inputs and cause is not Cause.STOMP:
            sure = min(sure, 0.92)  # what it read may have been overwritten after it was put out
        sure = sure if result.is_dumped else sure - 0.05
        facts = (
            *_own_error_facts(result, slot, undumped_inputs),
            *_effect_facts(self._findings.effects.get(result.name)),
        )
        return _suspect(result, cause, Proof.RECOMPUTED, sure, facts)

    def _is_overwritten(self, result: OpResult, slot: SlotResult) -> bool:
        """Return whether the wrong elements are one run, which another tensor may have overwritten."""
        places = slot.places
        if places is None or not places.is_run:
            return False
        length = places.last - places.first + 1
        # What was written there has nothing to do with what should stand there; a narrower type comes near it.
        if slot.own < UNIT["bfloat16"] * sqrt(length / places.size):
            return False
        elsewhere = {index for index, _ in result.from_elsewhere}
        sizes = [
            prod(input_slot.desc.shape)
            for input_slot in self._values.input_slots(result.op)
            if input_slot.index in elsewhere and input_slot.desc is not None
        ]
        # A sum of many elements is one: as much of an input is more bytes.
        stretch = max(1.0, *(size / places.size for size in sizes)) if sizes else 1.0
        return length * stretch * data_types.BY_NAME[slot.dtype].bits >= 8 * _BLOCK

    def _ops_of(self, suspects: Iterable[Suspect]) -> list[Op]:
        return self._values.named({suspect.culprit for suspect in suspects})

    # --- by comparison alone ---

    def _jumps(self, suspects: Sequence[Suspect]) -> Iterator[Suspect]:
        """Yield the first op that cannot be recomputed, is far more off than its inputs, and follows no suspect."""
        followers = self.flow.downstream(self._ops_of(suspects))
        named = {name for item in suspects for name in (item.culprit, *item.also)}
        for result in self._findings.judged:
            op = result.op
            if not self._values.is_shown(op) or result.state is not State.NOT_RECOMPUTED:
                continue
            if is_random(op) or op.type in ("Cast", "TransData"):
                continue
            if id(op) in followers or result.name in named or op.type.endswith(GRADIENTS):
                continue  # gradients differ by much more than what they are made of
            if self._values.compared.distances.get((op.name, "output:0"), inf) <= _FAR / 2:
                continue  # nothing needs to be read
            out = distance(self._values, Root(op, 0))
            if out is None or not out.relative > _FAR:
                continue
            distances = [distance(self._values, root) for root in self._values.producers(op)]
            inputs = [item for item in distances if item is not None]
            if len(inputs) < len(distances):
                continue
            largest = max((item.relative for item in inputs), default=0.0)
            if out.relative / max(largest, 2.0**-11) <= _JUMP:
                continue
            facts = (
                Fact(name="distance", value=number_of(out.relative)), Fact(name="fed", value=number_of(largest)),
                Fact(name="not_recomputed", value=result.reason),
            )  # fmt: skip
            yield _suspect(result, _fusion_or_kernel(op), Proof.COMPARED, 0.6 if not largest else 0.4, facts)
            return

    def _by_comparison(self, names: Iterable[str]) -> Iterator[Suspect]:
        """Yield the first of the ops whose inputs agree and whose output does not that recomputing does not acquit."""
        by_name = {result.name: result for result in self._findings.judged}
        for name in names:
            result = by_name.get(name)
            if result is None or (result.state is not State.NOT_RECOMPUTED and not result.is_guessed):
                continue
            if result.op.type.endswith(GRADIENTS):
                continue
            facts = (Fact(name="not_recomputed", value=result.reason),)
            yield _suspect(result, _fusion_or_kernel(result.op), Proof.COMPARED, 0.35, facts)
            return


def _puts_infinities(op: Op) -> bool:
    """Whether a call was given an infinity as a number, as `masked_fill` is."""
    recorded = op.recorded
    arguments = [] if recorded is None else [*recorded.call.inputs, *recorded.call.kwargs.values()]
    return any(
        isinstance(each, Literal) and isinstance(each.value, float) and isinf(each.value) for each in arguments
    )  # fmt: skip


def _suspect(result: OpResult, cause: Cause, proof: Proof, confidence: float, facts: Iterable[Fact]) -> Suspect:
    """Return an op as the suspect of a cause."""
    return Suspect(
        culprit=result.name, cause=cause, proof=proof, confidence=confidence, number=result.number,
        op_type=result.op.type, pass_name=result.op.pass_name, facts=tuple(facts), result=result,
    )  # fmt: skip


#: What is wrong with a cast that computes nothing but its rounding.
_OF_CASTS = (Mistake.NARROWED, Mistake.TRUNCATED, Mistake.MISROUNDED)


def _types(op: Op) -> tuple[str, str, str]:
    """Return the type of an op, and those of its first input and output."""
    source = op.input_descs[0].dtype if op.input_descs else ""
    return op.type, source, op.output_descs[0].dtype if op.output_descs else ""


def _fusion_or_kernel(op: Op) -> Cause:
    return Cause.FUSION if op.pass_names else Cause.KERNEL


def _cast_or_overflow(op: Op) -> Cause:
    return Cause.CAST if op.type == "Cast" else Cause.OVERFLOW


def _or_its_variable(suspect: Suspect, variable: Op) -> Suspect:
    """Return an op that is wrong, or was fed another variable than the benchmark's: no file tells which."""
    return replace(
        suspect, confidence=min(suspect.confidence, 0.5), also=(*suspect.also, variable.name),
        facts=(*suspect.facts, Fact(name="or_variable", value=variable.name)),
    )  # fmt: skip


def _own_error_facts(result: OpResult, slot: SlotResult, undumped_inputs: Sequence[int]) -> tuple[Fact, ...]:
    """Return the figures of an op whose output `slot` is wrong."""
    facts = [
        Fact(name="own_error", value=number_of(slot.own)), Fact(name="rounding", value=number_of(slot.rounding)),
        Fact(name="worst_over_rounding", value=number_of(slot.worst)),
        Fact(name="wrong_elements", value=slot.beyond), Fact(name="elements", value=slot.looked_at),
        Fact(name="exactly_rounded", value=number_of(slot.exact_share)),
        Fact(name="recomputed_as", value=list(result.how)), Fact(name="output", value=slot.slot),
    ]  # fmt: skip
    if slot.sampled is not None:
        facts.append(Fact(name="elements_in_all", value=slot.size))
    if result.variant is not None:
        facts.append(Fact(name="variant", value=list(result.variant)))
    if slot.places is not None:
        facts.append(Fact(name="mistake", value=str(slot.places.mistake)))
        for name in ("axis", "index", "factor", "offset", "steps"):
            value = getattr(slot.places, name)
            if value is not None and (name != "steps" or value):
                facts.append(Fact(name=name, value=value))
        if slot.places.order:
            facts.append(Fact(name="order", value=list(slot.places.order)))
    if undumped_inputs:
        facts.append(Fact(name="inputs_not_dumped", value=undumped_inputs))
    shares = {"fed": slot.inherited, "benchmark_own": slot.benchmark_own, "amplification": slot.amplification}
    for name, value in shares.items():
        if value is not None:
            facts.append(Fact(name=name, value=number_of(value)))
    if result.is_by_another:
        facts.append(Fact(name="another_obeys", value=True))
    elif result.is_confirmed is not None:
        facts.append(Fact(name="benchmark_obeys", value=result.is_confirmed))
    return tuple(facts)


def _effect_facts(effect: Effect | None) -> tuple[Fact, ...]:
    """Return what an error does to the end of the run."""
    if effect is None:
        return ()
    facts = (Fact(name="changes", value=number_of(effect.change)), Fact(name="changed_tensor", value=effect.target))
    if effect.explained is None:
        return facts
    return (*facts, Fact(name="explains", value=number_of(effect.explained)))


def _whole_factor(result: OpResult) -> float | None:
    """Return the one factor by which all of an op's wrong output is off."""
    slot = result.worst_slot
    if slot is None or slot.places is None or slot.places.mistake is not Mistake.SCALED:
        return None
    return slot.places.factor if slot.places.wrong >= 0.9 * slot.places.size or slot.looked_at == slot.beyond else None


def _is_seen_apart(result: OpResult) -> bool:
    """Return whether an op was recomputed from what others put out, or its result seen in what others read."""
    return not result.is_dumped or any(source in ("producer", "reader") for _, source in result.from_elsewhere)


def _is_unlike_kernels(result: OpResult) -> bool:
    """Return whether none of the simple mistakes of a kernel explains an op's error."""
    slot = result.worst_slot
    unlike = (Mistake.UNKNOWN, Mistake.NOT_FINITE, Mistake.TAIL)
    return slot is not None and slot.places is not None and slot.places.mistake in unlike


#: Of several sources that differ, the data come first: they explain all the others cannot.
_SOURCES = (Cause.INPUT, Cause.WEIGHTS, Cause.RANDOM)


#: An own error from here on is no matter of precision: bfloat16 itself is half as exact.
_LARGE = 2.0**-7
#: Mistakes that only make numbers less exact, by however little; all others put them in wrong places or leave them out.
_OF_PRECISION = (
    Mistake.UNKNOWN, Mistake.SCALED, Mistake.OFFSET, Mistake.NARROWED, Mistake.TRUNCATED, Mistake.MISROUNDED,
)  # fmt: skip


def _rank(suspect: Suspect) -> tuple[int, int]:
    """Return the order of suspects: large errors in the order in which the ops ran, then small ones, in theirs."""
    if suspect.cause in _SOURCES:
        return _SOURCES.index(suspect.cause), suspect.number
    return int(_is_small(suspect)), suspect.number


def _is_small(suspect: Suspect) -> bool:
    """Return whether a suspect is an op that is merely inexact, in every element of its output."""
    result = suspect.result
    if result is None or suspect.cause not in (Cause.KERNEL, Cause.FUSION, Cause.LAYOUT, Cause.CAST):
        return False
    wrong = [slot for slot in result.slots if slot.beyond]
    return bool(wrong) and all(map(_is_slot_small, wrong))


def _is_slot_small(slot: SlotResult) -> bool:
    if slot.places is not None and slot.places.mistake not in _OF_PRECISION:
        return False
    return max(slot.own, slot.worst * slot.rounding) < _LARGE  # the worst element, beside such as rounding moves
