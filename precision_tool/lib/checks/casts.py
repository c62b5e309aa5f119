"""Casts to a narrower type: which the graph has, and what the dumped tensors say was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from precision_tool.lib.compare.known import NOTHING, KnownValues
from precision_tool.lib.engine.scheduler import compare_pairs
from precision_tool.lib.graph.catalog import MissingGraph, RunGraph
from precision_tool.lib.model.comparison import Pair, Summary
from precision_tool.lib.model.finding import CheckResult, Finding, FindingKind, Grade
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.model.wording import counted
from precision_tool.lib.numbers import data_types
from precision_tool.lib.numbers.data_types import FLOATS, INTEGERS
from precision_tool.lib.numbers.layouts import LayoutError
from precision_tool.lib.pairing.align import align
from precision_tool.lib.sources.dumps import DumpIndex, Missing
from precision_tool.lib.sources.names import flatten

NAME, TITLE = "dangerous_casts", "Dangerous casts"
#: Bytes of casts' inputs and outputs that are read; `ac` stays quick.
_MAX_BYTES = 512 << 20
#: Share of the values that are not zero which may become zero: small gradients do, of which the sum shows nothing.
_LOST = 0.01
#: Relative distance of output and input that no rounding to a known type gives (bfloat16: at most 0.004).
_LARGE_LOSS = 0.05
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CastLoss:
    """One cast to a narrower type. `verdict` is dangerous or harmless by its values, suspicious by its types alone."""

    op_name: str
    op_type: str
    source: str
    target: str
    verdict: str
    reason: str


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
    unseen = [f"debug_{one.number} has no graph: {one.reason}" for one in missing if one.number == number]
    if unseen and not mine:
        return CheckResult(name=NAME, title=TITLE, skipped="; ".join(unseen))
    ops = [op for run in mine for op in run.file.ops]
    known = known or {}
    losses = [loss for run in mine for loss in _losses(run, known.get(run.leaf.path if run.leaf else "", NOTHING))]
    judged = Counter(loss.verdict for loss in losses)
    dangerous = [loss for loss in losses if loss.verdict == "dangerous"]
    where = f"debug_{number}" if number is not None else "the graph"
    casts = sum(op.type == "Cast" for op in ops)
    seen = judged["dangerous"] + judged["harmless"]
    looked_at = f"{counted(len(ops), 'op')} of {where} with {counted(casts, 'cast')}: " + (
        f"{len(losses)} to a narrower type, the values of {seen} were read before and after"
        if losses
        else "none to a narrower type"
    )
    if dangerous:
        message = f"{len(dangerous)} of {counted(len(losses), 'cast')} to a narrower type lost values"
    elif judged["suspicious"]:
        message = f"no cast was seen to lose values; narrower by their types, but not read: {judged['suspicious']}"
    elif losses:
        message = f"no value was lost in {counted(len(losses), 'cast')} to a narrower type"
    else:
        message = "no op casts to a narrower type"
    finding = Finding(
        kind=FindingKind.DANGEROUS_CASTS,
        grade=Grade.WARNING if dangerous or unseen else Grade.INFO,
        message=message,
        op_name=dangerous[0].op_name if dangerous else "",
        op_type=dangerous[0].op_type if dangerous else "",
        facts=(*(("not looked at", reason) for reason in unseen), *_facts(losses, dangerous)),
    )
    return CheckResult(name=NAME, title=TITLE, looked_at=looked_at, finding=finding, details=tuple(losses))


def _facts(losses: Sequence[CastLoss], dangerous: Sequence[CastLoss]) -> Iterator[tuple[str, str]]:
    for loss in dangerous[:_SHOWN]:
        yield "loses", f"{loss.op_name}: {loss.source} → {loss.target}: {loss.reason}"
    if len(dangerous) > _SHOWN:
        yield "loses", f"and {len(dangerous) - _SHOWN} more"
    unread = [loss for loss in losses if loss.verdict == "suspicious"]
    for loss in unread[: max(_SHOWN - len(dangerous), 0)]:
        yield "suspicious", f"{loss.op_name} ({loss.op_type}): {loss.source} → {loss.target}: {loss.reason}"
    for (source, target), count in Counter((loss.source, loss.target) for loss in losses).most_common():
        yield "types", f"{source} → {target}: {count}"


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
    found = compare_pairs([pair for _, pair in unread], workers=1)
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
            op_name=op.name, op_type=op.type, source=source, target=target, verdict="suspicious", reason="not dumped"
        )
        pair: Pair | None = None
        if op.type != "Cast":
            loss = replace(loss, reason="the op computes more than a cast, so its loss cannot be told from its tensors")
        elif dumps is not None and flatten(op.name) in dumps and spelled[flatten(op.name)] == 1:
            found = _dumped_pair(op, dumps)
            if isinstance(found, str):
                loss = replace(loss, reason=found)
            elif read + found[1] > _MAX_BYTES:
                loss = replace(loss, reason=f"not read: {_MAX_BYTES >> 20} MiB of casts were read before it")
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


def _dumped_pair(op: Op, dumps: DumpIndex) -> tuple[Pair, int] | str:
    """Output and input of a cast as a pair, with their bytes; or why they cannot be compared."""
    dump = dumps.op(flatten(op.name))
    if dump.merged:
        return f"it ran in {dump.threads} slices, of which only the first has its input here"
    before, after = dump.inputs.get(0), dump.outputs.get(0)
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        unread = [*dump.errors, *(one for one in (before, after) if isinstance(one, Missing))]
        if unread:
            return f"cannot be read: {unread[0].reason}"
        return "its input or its output was not dumped, or only as statistics"
    if not all(data_types.BY_NAME[tensor.dtype].is_numeric for tensor in (before, after)):
        return f"{before.dtype} and {after.dtype} are not both numbers"
    try:
        alignment = align(after, before, None, None)
    except LayoutError as error:
        return str(error)
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
        return replace(loss, reason=row.reason)
    problems = _problems(loss.target, row, row.golden, row.npu)
    verdict = "dangerous" if problems else "harmless"
    return replace(loss, verdict=verdict, reason="; ".join(problems) or "the values keep what the type can hold")


def _problems(target: str, row: Row, before: Summary, after: Summary) -> list[str]:
    """What a cast lost, by the values before and after it."""
    problems = []
    finite = before.minimum <= before.maximum
    infs = [side.inf_count for side in (before, after)]
    if target in INTEGERS:
        low, high = INTEGERS[target]
        if finite and (before.minimum < low or before.maximum >= high + 1):
            problems.append(
                f"values from {before.minimum:g} to {before.maximum:g}, and the type ends at {low} and {high}"
            )
        if before.nan_count + infs[0]:
            problems.append(f"{before.nan_count + infs[0]} NaN or Inf become integers")
    elif target in FLOATS:
        limit = FLOATS[target].largest
        largest = max(-before.minimum, before.maximum) if finite else 0.0
        if largest > limit:
            problems.append(f"values up to {largest:g}, and the type ends at {limit:g}")
        nonzero = before.count - before.zero_count
        lost = after.zero_count - before.zero_count
        if nonzero and lost > _LOST * nonzero:
            problems.append(f"{lost} of {nonzero} values become 0, too small for the type")
    if after.nan_count > before.nan_count:
        problems.append(f"{after.nan_count - before.nan_count} NaN appear")
    if infs[1] > infs[0]:
        problems.append(f"{infs[1] - infs[0]} Inf appear")
    distance = row.metrics.relative_euclidean_distance if row.metrics is not None else 0.0
    if not problems and distance > _LARGE_LOSS:
        problems.append(f"the output is {distance:.1%} off the input")
    return problems
