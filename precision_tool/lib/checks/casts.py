"""Casts to a narrower type: which the graph has, and what the dumped tensors say was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from precision_tool.lib.checks.missing import NoGraphs
from precision_tool.lib.compare.known import NOTHING, KnownValues
from precision_tool.lib.engine.pairwise import compare_pairs
from precision_tool.lib.engine.scheduler import THIS_THREAD
from precision_tool.lib.graph.catalog import MissingGraph, RunGraph
from precision_tool.lib.model.comparison import Pair, Summary
from precision_tool.lib.model.finding import CheckResult, Evidence, Finding, FindingKind, Grade
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.data_types import FLOATS, INTEGERS
from precision_tool.lib.numbers.layouts import LayoutError
from precision_tool.lib.pairing.align import align
from precision_tool.lib.sources.dumps import DumpIndex, Missing
from precision_tool.lib.sources.names import flatten

NAME = "dangerous_casts"
#: Bytes of casts' inputs and outputs that are read; `ac` stays quick.
_MAX_BYTES = 512 << 20
#: Share of the values that are not zero which may become zero: small gradients do, of which the sum shows nothing.
_LOST = 0.01
#: Relative distance of output and input that no rounding to a known type gives (bfloat16: at most 0.004).
_LARGE_LOSS = 0.05


class CastVerdict(StrEnum):
    """What a narrowing cast does: by its values, or `SUSPICIOUS` by its types alone."""

    DANGEROUS = "dangerous"
    HARMLESS = "harmless"
    SUSPICIOUS = "suspicious"


# Why a cast is only suspicious:


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDumped(Evidence):
    """The op was not dumped, or several ops have its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputesMore(Evidence):
    """The op computes more than a cast, so its tensors do not tell what the narrower type loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnoughRead(Evidence):
    """So many bytes of casts were read before it that it was left out."""

    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InSlices(Evidence):
    """The op ran in slices, of which only the first has its input in the dump."""

    slices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(Evidence):
    """Its input or its output cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoValues(Evidence):
    """Its input or its output was not dumped, or only as statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNumbers(Evidence):
    """Its input and its output are not both of types that have numbers."""

    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared(Evidence):
    """The two tensors could not be compared; `reason` is the comparison's."""

    reason: str


# What a dangerous cast lost:


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondIntegers(Evidence):
    """Values from `smallest` to `largest`, of which some are beyond the integer type's `low` and `high`."""

    smallest: float
    largest: float
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFiniteToInteger(Evidence):
    """So many NaN and Inf become integers."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondRange(Evidence):
    """Values of a size up to `largest` in a type that ends at `limit`."""

    largest: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameZero(Evidence):
    """`lost` of `values` that are not zero become zero."""

    lost: int
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameNan(Evidence):
    """So many more NaN after the cast."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameInf(Evidence):
    """So many more Inf after the cast."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FarOff(Evidence):
    """The output is farther off the input than rounding explains (relative distance)."""

    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CastLoss:
    """One cast to a narrower type; `reasons` say what it lost, or why that is not known."""

    op_name: str
    op_type: str
    source: str
    target: str
    verdict: CastVerdict
    reasons: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CastsFound(Evidence):
    """The casts of a run: `casts` of `ops` are Cast ops, `losses` are the ops that put out a narrower type.

    `number` is that of the run, None where only a graph was named; `missing` are its models without a graph.
    """

    number: int | None
    ops: int
    casts: int
    losses: tuple[CastLoss, ...]
    missing: tuple[MissingGraph, ...] = ()

    def judged(self, verdict: CastVerdict) -> tuple[CastLoss, ...]:
        """Those of one verdict."""
        return tuple(loss for loss in self.losses if loss.verdict is verdict)


def narrows(source: str, target: str) -> bool:
    """Whether a type holds less than another: values beyond its range, or digits."""
    if target in FLOATS:
        if source in FLOATS:
            new, old = FLOATS[target], FLOATS[source]
            return new.largest < old.largest or new.digits < old.digits
        # Counters and ids in float32 are the rule, and exact up to 2**24.
        return source in INTEGERS and max(INTEGERS[source]) > 2 ** (FLOATS[target].digits + 1) and target != "float32"
    if target not in INTEGERS:
        return False
    if source in FLOATS:
        return True
    if source not in INTEGERS:
        return False
    (low, high), (new_low, new_high) = INTEGERS[source], INTEGERS[target]
    return low < new_low or high > new_high


def check_casts(
    runs: Sequence[RunGraph], missing: Sequence[MissingGraph] = (), known: Mapping[str, KnownValues] | None = None
) -> CheckResult:
    """The casts of the run under test, judged by their dumped inputs and outputs where there are any.

    `known` is what a comparison found out, by the folder of the leaf: that is not read again.
    """
    numbers = [run.number for run in runs if run.number is not None]
    number = min(numbers + [one.number for one in missing], default=None)
    mine = [run for run in runs if run.number == number]
    unseen = tuple(one for one in missing if one.number == number)
    if unseen and not mine:
        return CheckResult(name=NAME, skipped=NoGraphs(missing=unseen))
    ops = [op for run in mine for op in run.file.ops]
    known = known or {}
    losses = [loss for run in mine for loss in _losses(run, known.get(run.leaf.path if run.leaf else "", NOTHING))]
    casts = CastsFound(
        number=number,
        ops=len(ops),
        casts=sum(op.type == "Cast" for op in ops),
        losses=tuple(losses),
        missing=unseen,
    )
    dangerous = next(iter(casts.judged(CastVerdict.DANGEROUS)), None)
    finding = Finding(
        kind=FindingKind.DANGEROUS_CASTS,
        grade=Grade.WARNING if dangerous or unseen else Grade.INFO,
        evidence=casts,
        op_name=dangerous.op_name if dangerous else "",
        op_type=dangerous.op_type if dangerous else "",
    )
    return CheckResult(name=NAME, finding=finding, details=casts.losses)


def _types(op: Op) -> tuple[str, str]:
    source = op.input_descs[0].dtype if op.input_descs else ""
    return source, op.output_descs[0].dtype if op.output_descs else ""


def cast_pairs(dumps: DumpIndex, file: GraphFile) -> list[Pair]:
    """Output and input of every narrowing cast that was dumped, as pairs: what `check_casts` wants to be compared."""
    return [pair for _, pair in _planned(dumps, file) if pair is not None]


def _losses(run: RunGraph, known: KnownValues) -> list[CastLoss]:
    """The narrowing casts of one graph in execution order; only the tensors of Cast ops are read."""
    dumps = None if run.leaf is None else known.dumps or DumpIndex(run.leaf)
    planned = _planned(dumps, run.file)
    rows = {at: row for at, (_, pair) in enumerate(planned) if pair is not None and (row := known.row_of(pair))}
    unread = [(at, pair) for at, (_, pair) in enumerate(planned) if pair is not None and at not in rows]
    found = compare_pairs([pair for _, pair in unread], THIS_THREAD)
    rows |= {at: row for (at, _), row in zip(unread, found, strict=True)}
    return [_judged(loss, rows[at]) if at in rows else loss for at, (loss, _) in enumerate(planned)]


def _planned(dumps: DumpIndex | None, file: GraphFile) -> list[tuple[CastLoss, Pair | None]]:
    """Every narrowing cast by its types alone, with the pair that tells more where it was dumped."""
    spelled = Counter(flatten(op.name) for op in file.ops)
    planned: list[tuple[CastLoss, Pair | None]] = []
    read = 0
    for op in _narrowing(file):
        source, target = _types(op)
        loss = CastLoss(
            op_name=op.name,
            op_type=op.type,
            source=source,
            target=target,
            verdict=CastVerdict.SUSPICIOUS,
            reasons=(NotDumped(),),
        )
        pair: Pair | None = None
        if op.type != "Cast":
            loss = replace(loss, reasons=(ComputesMore(),))
        elif dumps is not None and flatten(op.name) in dumps and spelled[flatten(op.name)] == 1:
            found = _dumped_pair(op, dumps)
            if isinstance(found, Evidence):
                loss = replace(loss, reasons=(found,))
            elif read + found[1] > _MAX_BYTES:
                loss = replace(loss, reasons=(EnoughRead(limit=_MAX_BYTES),))
            else:
                read += found[1]
                pair = found[0]
        planned.append((loss, pair))
    return planned


def _narrowing(file: GraphFile) -> Iterable[Op]:
    """Cast ops to a narrower type, and other ops that put out fewer digits, or a smaller range, than they are fed."""
    for op in file.ops:
        source, target = _types(op)
        if narrows(source, target) and (op.type == "Cast" or (source in FLOATS and target in FLOATS)):
            yield op


def _dumped_pair(op: Op, dumps: DumpIndex) -> tuple[Pair, int] | Evidence:
    """Output and input of a cast as a pair, with their bytes; or why they cannot be compared."""
    dump = dumps.op(flatten(op.name))
    if dump.merged:
        return InSlices(slices=dump.threads)
    before, after = dump.inputs.get(0), dump.outputs.get(0)
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        unread = [*dump.errors, *(one for one in (before, after) if isinstance(one, Missing))]
        if unread:
            return Unreadable(reason=unread[0].reason)
        return NoValues()
    if not all(data_types.BY_NAME[tensor.dtype].is_numeric for tensor in (before, after)):
        return NoNumbers(before=before.dtype, after=after.dtype)
    try:
        alignment = align(after, before, None, None)
    except LayoutError as error:
        return NotCompared(reason=str(error))
    pair = Pair(
        index=0,
        op_name=op.name,
        op_type=op.type,
        npu_ops=(op.name,),
        golden_ops=(op.name,),
        slot="output:0",
        npu=after,
        golden=before,
        npu_plan=alignment.npu_plan,
        golden_plan=alignment.golden_plan,
        shape=alignment.shape,
        error_shape=alignment.npu_plan.logical_shape,
    )
    return pair, before.nbytes + after.nbytes


def _judged(loss: CastLoss, row: Row) -> CastLoss:
    if row.npu is None or row.golden is None:
        return replace(loss, reasons=(NotCompared(reason=row.reason),))
    problems = _problems(loss.target, row, row.golden, row.npu)
    return replace(loss, verdict=CastVerdict.DANGEROUS if problems else CastVerdict.HARMLESS, reasons=problems)


def _problems(target: str, row: Row, before: Summary, after: Summary) -> tuple[Evidence, ...]:
    """What a cast lost, by the values before and after it."""
    problems: list[Evidence] = []
    finite = before.minimum <= before.maximum
    infs = [side.inf_count for side in (before, after)]
    if target in INTEGERS:
        low, high = INTEGERS[target]
        if finite and (before.minimum < low or before.maximum >= high + 1):
            problems.append(BeyondIntegers(smallest=before.minimum, largest=before.maximum, low=low, high=high))
        if before.nan_count + infs[0]:
            problems.append(NotFiniteToInteger(count=before.nan_count + infs[0]))
    elif target in FLOATS:
        limit = FLOATS[target].largest
        largest = max(-before.minimum, before.maximum) if finite else 0.0
        if largest > limit:
            problems.append(BeyondRange(largest=largest, limit=limit))
        nonzero = before.count - before.zero_count
        lost = after.zero_count - before.zero_count
        if nonzero and lost > _LOST * nonzero:
            problems.append(BecameZero(lost=lost, values=nonzero))
    if after.nan_count > before.nan_count:
        problems.append(BecameNan(count=after.nan_count - before.nan_count))
    if infs[1] > infs[0]:
        problems.append(BecameInf(count=infs[1] - infs[0]))
    distance = row.metrics.relative_euclidean_distance if row.metrics is not None else 0.0
    if not problems and distance > _LARGE_LOSS:
        problems.append(FarOff(distance=distance))
    return tuple(problems)
