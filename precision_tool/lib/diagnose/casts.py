"""Casts to a narrower type: which the graph has, and what the dumped tensors say was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from precision_tool.lib.compare.pairwise import compare_pairs
from precision_tool.lib.compare.run_values import NOTHING, KnownValues
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.axis_alignment import align
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dumped_ops import DumpIndex, Missing
from precision_tool.lib.data.graph_catalog import MissingGraph, RunGraph
from precision_tool.lib.diagnose.agreement import no_graph
from precision_tool.lib.io import data_types
from precision_tool.lib.io.data_types import FLOATS, INTEGERS
from precision_tool.lib.io.layouts import LayoutError
from precision_tool.lib.messages import Message
from precision_tool.lib.model.comparison import Pair, Summary
from precision_tool.lib.model.finding import CheckResult, Fact, Finding, FindingKind, Grade, joined
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor

NAME = "dangerous_casts"
#: Bytes of casts' inputs and outputs that are read; `ac` stays quick.
_MAX_BYTES = 512 << 20
#: Share of the values that are not zero which may become zero: small gradients do, of which the sum shows nothing.
_LOST = 0.01
#: Relative distance of output and input that no rounding to a known type gives (bfloat16: at most 0.004).
_LARGE_LOSS = 0.05
#: Casts that the finding names.
_MAX_LISTED = 5


class CastVerdict(StrEnum):
    """Effect of a narrowing cast: by its values, or `SUSPICIOUS` by its types alone."""

    DANGEROUS = "dangerous"
    HARMLESS = "harmless"
    SUSPICIOUS = "suspicious"


@dataclass(frozen=True, slots=True, kw_only=True)
class CastLoss:
    """One cast to a narrower type; `reason` says what it lost, or why that is not known."""

    op_name: str
    op_type: str
    source: str
    target: str
    verdict: CastVerdict
    reason: Message


def narrows(source: str, target: str) -> bool:
    """Return whether a type has a smaller range or fewer digits than another."""
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
    runs: Sequence[RunGraph], missing: Sequence[MissingGraph] = (), cached: Mapping[str, KnownValues] | None = None
) -> CheckResult:
    """Check the casts of the run under test, by their dumped inputs and outputs where there are any.

    `cached` is what a comparison found out, by the folder of the leaf: that is not read again.
    """
    numbers = [run.number for run in runs if run.number is not None]
    number = min(numbers + [graph.number for graph in missing], default=None)
    of_run = [run for run in runs if run.number == number]
    unseen = tuple(graph for graph in missing if graph.number == number)
    if unseen and not of_run:
        return CheckResult(name=NAME, skipped=joined(tuple(map(no_graph, unseen))))
    cached = cached or {}
    losses = tuple(
        loss for run in of_run for loss in _losses(run, cached.get(run.leaf.path if run.leaf else "", NOTHING))
    )
    ops = [op for run in of_run for op in run.file.ops]
    looked_at = Message(
        "check.dangerous_casts.looked_at",
        ops=len(ops),
        run=number,
        casts=sum(op.type == "Cast" for op in ops),
        narrower=len(losses) or None,
        read=sum(loss.verdict is not CastVerdict.SUSPICIOUS for loss in losses),
    )
    return CheckResult(name=NAME, finding=_finding(losses, unseen), looked_at=looked_at, details=losses)


def _finding(losses: Sequence[CastLoss], unseen: Sequence[MissingGraph]) -> Finding:
    dangerous = next((loss for loss in losses if loss.verdict is CastVerdict.DANGEROUS), None)
    return Finding(
        kind=FindingKind.DANGEROUS_CASTS,
        grade=Grade.WARNING if dangerous or unseen else Grade.INFO,
        message=_conclusion(losses),
        facts=tuple(_facts(losses, unseen)),
        op_name=dangerous.op_name if dangerous else "",
        op_type=dangerous.op_type if dangerous else "",
    )


def _conclusion(losses: Sequence[CastLoss]) -> Message:
    counts = Counter(loss.verdict for loss in losses)
    if counts[CastVerdict.DANGEROUS]:
        return Message("finding.casts.dangerous", dangerous=counts[CastVerdict.DANGEROUS], casts=len(losses))
    if counts[CastVerdict.SUSPICIOUS]:
        return Message("finding.casts.suspicious", suspicious=counts[CastVerdict.SUSPICIOUS])
    return Message("finding.casts.harmless", casts=len(losses)) if losses else Message("finding.casts.none")


def _facts(losses: Sequence[CastLoss], unseen: Sequence[MissingGraph]) -> Iterator[Fact]:
    for missing in unseen:
        yield Fact(Message("finding.label.not_looked_at"), no_graph(missing))
    dangerous = [loss for loss in losses if loss.verdict is CastVerdict.DANGEROUS]
    suspicious = [loss for loss in losses if loss.verdict is CastVerdict.SUSPICIOUS]
    for loss in dangerous[:_MAX_LISTED]:
        yield Fact(Message("finding.label.loses"), _described(loss))
    if len(dangerous) > _MAX_LISTED:
        yield Fact(Message("finding.label.loses"), Message("finding.fact.more", count=len(dangerous) - _MAX_LISTED))
    for loss in suspicious[: max(_MAX_LISTED - len(dangerous), 0)]:
        yield Fact(Message("finding.label.suspicious"), _described(loss, loss.op_type))
    for (source, target), count in Counter((loss.source, loss.target) for loss in losses).most_common():
        types = Message("finding.fact.cast_types", source=source, target=target, count=count)
        yield Fact(Message("finding.label.types"), types)


def _described(loss: CastLoss, op_type: str = "") -> Message:
    return Message(
        "finding.fact.cast",
        op_name=loss.op_name,
        op_type=op_type,
        source=loss.source,
        target=loss.target,
        reason=loss.reason,
    )


def _types(op: Op) -> tuple[str, str]:
    source = op.input_descs[0].dtype if op.input_descs else ""
    return source, op.output_descs[0].dtype if op.output_descs else ""


def cast_pairs(dumps: DumpIndex, file: GraphFile) -> list[Pair]:
    """Return output and input of every dumped narrowing cast, as the pairs that `check_casts` compares."""
    return [pair for _, pair in _planned(dumps, file) if pair is not None]


def _losses(run: RunGraph, cached: KnownValues) -> list[CastLoss]:
    """Return the narrowing casts of one graph in execution order; only the tensors of Cast ops are read."""
    dumps = None if run.leaf is None else cached.dumps or DumpIndex(run.leaf)
    planned = _planned(dumps, run.file)
    rows = {at: row for at, (_, pair) in enumerate(planned) if pair is not None and (row := cached.row_of(pair))}
    unread = [(at, pair) for at, (_, pair) in enumerate(planned) if pair is not None and at not in rows]
    metrics = compare_pairs([pair for _, pair in unread], THIS_THREAD)
    rows |= {at: row for (at, _), row in zip(unread, metrics, strict=True)}
    return [_judged(loss, rows[at]) if at in rows else loss for at, (loss, _) in enumerate(planned)]


def _planned(dumps: DumpIndex | None, file: GraphFile) -> list[tuple[CastLoss, Pair | None]]:
    """Return every narrowing cast by its types alone, with the pair that tells more where it was dumped."""
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
            reason=Message("check.cast.not_dumped"),
        )
        pair: Pair | None = None
        if op.type != "Cast":
            loss = replace(loss, reason=Message("check.cast.computes_more"))
        elif dumps is not None and flatten(op.name) in dumps and spelled[flatten(op.name)] == 1:
            dumped = _dumped_pair(op, dumps)
            if isinstance(dumped, Message):
                loss = replace(loss, reason=dumped)
            elif read + dumped[1] > _MAX_BYTES:
                loss = replace(loss, reason=Message("check.cast.enough_read", limit=_MAX_BYTES))
            else:
                read += dumped[1]
                pair = dumped[0]
        planned.append((loss, pair))
    return planned


def _narrowing(file: GraphFile) -> Iterable[Op]:
    """Yield casts to a narrower type, and other ops whose output has fewer digits or a smaller range than an input."""
    for op in file.ops:
        source, target = _types(op)
        if narrows(source, target) and (op.type == "Cast" or (source in FLOATS and target in FLOATS)):
            yield op


def _dumped_pair(op: Op, dumps: DumpIndex) -> tuple[Pair, int] | Message:
    """Return output and input of a cast as a pair, with their bytes; or why they cannot be compared."""
    dump = dumps.op(flatten(op.name))
    if dump.merged:
        return Message("check.cast.in_slices", slices=dump.threads)
    before, after = dump.inputs.get(0), dump.outputs.get(0)
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        unread = [*dump.errors, *(side for side in (before, after) if isinstance(side, Missing))]
        if unread:
            return Message("check.cast.unreadable", reason=unread[0].reason)
        return Message("check.cast.no_values")
    if not all(data_types.BY_NAME[tensor.dtype].is_numeric for tensor in (before, after)):
        return Message("check.cast.no_numbers", before=before.dtype, after=after.dtype)
    try:
        alignment = align(after, before)
    except LayoutError as error:
        return Message("check.cast.not_compared", reason=error.reason)
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
        return replace(loss, reason=Message("check.cast.not_compared", reason=row.reason))
    problems = _problems(loss.target, row, row.golden, row.npu)
    verdict = CastVerdict.DANGEROUS if problems else CastVerdict.HARMLESS
    return replace(loss, verdict=verdict, reason=joined(problems) or Message("check.cast.no_loss"))


def _problems(target: str, row: Row, before: Summary, after: Summary) -> tuple[Message, ...]:
    """Return what a cast lost, by the values before and after it."""
    problems: list[Message] = []
    finite = before.minimum <= before.maximum
    infs = [side.inf_count for side in (before, after)]
    if target in INTEGERS:
        low, high = INTEGERS[target]
        if finite and (before.minimum < low or before.maximum >= high + 1):
            problems.append(
                Message(
                    "check.cast.beyond_integers", smallest=before.minimum, largest=before.maximum, low=low, high=high
                )
            )
        if before.nan_count + infs[0]:
            problems.append(Message("check.cast.not_finite_to_integer", count=before.nan_count + infs[0]))
    elif target in FLOATS:
        limit = FLOATS[target].largest
        largest = max(-before.minimum, before.maximum) if finite else 0.0
        if largest > limit:
            problems.append(Message("check.cast.beyond_range", largest=largest, limit=limit))
        nonzero = before.count - before.zero_count
        lost = after.zero_count - before.zero_count
        if nonzero and lost > _LOST * nonzero:
            problems.append(Message("check.cast.became_zero", lost=lost, values=nonzero))
    if after.nan_count > before.nan_count:
        problems.append(Message("check.cast.became_nan", count=after.nan_count - before.nan_count))
    if infs[1] > infs[0]:
        problems.append(Message("check.cast.became_inf", count=infs[1] - infs[0]))
    distance = row.metrics.relative_euclidean_distance if row.metrics is not None else 0.0
    if not problems and distance > _LARGE_LOSS:
        problems.append(Message("check.cast.far_off", distance=distance))
    return tuple(problems)
