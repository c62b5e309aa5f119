"""One op recomputed by itself, with some of its elements on both sides and as recomputed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.data.dumped_ops import BenchmarkSide, GoldenFiles, NoBenchmark
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.sides import own_benchmark
from precision_tool.lib.diagnose.divergence import is_random
from precision_tool.lib.diagnose.formulas import Formula
from precision_tool.lib.diagnose.op_values import DATA_TYPES, PARAMETER_TYPES, NoValueError, Root, RunValues
from precision_tool.lib.diagnose.overflow import LeafOverflow, OverflowOp, OverflowReport, StatusReport
from precision_tool.lib.diagnose.overflow_advice import OverflowResult, overflow_result, planned
from precision_tool.lib.diagnose.overwritten_memory import compare_with_benchmark
from precision_tool.lib.diagnose.random_errors import RandomReport
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.stored_verdict import StoredVerdict
from precision_tool.lib.diagnose.verdict_model import OpResult, Verdict
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.finding import CheckResult
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.op_verdict import Element, Examined, OpVerdict, Source
from precision_tool.lib.ops.base import Input, NotComputedError

#: Elements that are shown: the first ones, and those that are farthest off.
_FIRST, _WORST = 4, 4
#: Products from which on only a part of the output is recomputed to be shown, and about how much of it.
_MAX_WORK, _SAMPLES = 2e9, 1 << 12


def examine_in(data: DataFolder, run: RunGraph, op: Op) -> Examined | None:
    """Recompute one op of a run of a data folder; None where its graph has no dump."""
    return examine(run, op, *references_of(data, run))


def references_of(data: DataFolder, run: RunGraph) -> tuple[BenchmarkSide, GraphFile | None]:
    """Return the benchmark of a run, and the graph of another run, which has the original ops of fused ones."""
    golden = data.golden_of(run.number)
    benchmark: BenchmarkSide = NoBenchmark()
    if isinstance(golden, GoldenFiles):
        benchmark = golden if run.leaf is None else own_benchmark(golden, run.leaf, len(run.leaves))
    others: Sequence[RunGraph] = ()
    with suppress(PrecisionToolError):  # a graph was named, and the data folder has none
        others = data.run_graphs()
    unfused = (other.file for other in others if other.leaf is not None and other.number != run.number)
    return benchmark, next(unfused, None)


def examine(run: RunGraph, op: Op, benchmark: BenchmarkSide, unfused: GraphFile | None = None) -> Examined | None:
    """Return what recomputing says of one op of a run, with some of its elements.

    Parameters
    ----------
    run : RunGraph
        The run; only the dump files of the op and of those around it are opened.
    op : Op
        An op of its graph.
    benchmark : BenchmarkSide
        What the run is held against.
    unfused : GraphFile, optional
        A graph that has the original ops of fused ones.

    Returns
    -------
    Examined or None
        None for a run without a dump.
    """
    if run.leaf is None:
        return None
    values = RunValues(run.leaf, run.file, benchmark)
    recomputer = Recomputer(values, unfused, ops=[op])
    if not recomputer.computing or is_random(op):
        return _source(values, op)
    judged = recomputer.examine(op)
    try:
        elements = _elements(recomputer, judged)
    except (NotComputedError, NoValueError):
        elements = ()
    return Examined(judged=judged.verdict(), elements=elements)


def _elements(recomputer: Recomputer, judged: OpResult) -> tuple[Element, ...]:
    """Return the first elements of the output that is farthest off, and the worst."""
    slot, formula = judged.worst_slot, judged.formula
    if slot is None or formula is None:
        return ()
    op, values = judged.op, recomputer.values
    inputs = recomputer.inputs_of(op).inputs
    have = recomputer.outputs(op).get(slot.slot)
    if have is None:
        return ()
    array = values.load(have, op.output_desc(slot.slot)).array
    places, true = _true(formula, inputs, slot.slot)
    got = np.asarray(array).reshape(-1)
    if places is None:
        places = np.arange(got.size)
    if true.size != places.size or places.size == 0 or int(places.max()) >= got.size:
        return ()
    golden = values.load_benchmark(Root(op, slot.slot))
    other = None if golden is None else np.asarray(golden.input.array).reshape(-1)
    if other is not None and other.size != got.size:
        other = None
    with np.errstate(all="ignore"):
        off = np.abs(np.asarray(got[places], np.float64) - np.asarray(true, np.float64))
    same = got[places] == true
    off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
    return tuple(
        Element(
            place=_place(int(places[number]), array.shape),
            npu=_number(got[places[number]]),
            recomputed=_number(true[number]),
            benchmark=None if other is None else _number(other[places[number]]),
            is_worst=is_worst,
        )
        for number, is_worst in _chosen(off)
    )


def _source(values: RunValues, op: Op) -> Examined | None:
    """Return a computed-by-nothing tensor next to the benchmark's; None where a side lacks it."""
    if op.type not in DATA_TYPES and op.type not in PARAMETER_TYPES and not is_random(op):
        return None
    roots = (Root(op, index) for index in range(max(len(op.output_descs), 1)))
    pairs = [pair for root in roots if (pair := compare_with_benchmark(values, root)) is not None]
    if not pairs:
        return None
    npu, golden, apart = next((pair for pair in pairs if pair[2] is not None), pairs[0])
    array, other = np.asarray(npu.input.array), np.asarray(golden.input.array).reshape(-1)
    got = array.reshape(-1)
    seen_in = npu.slot.name if npu.slot is not None else ""
    source = Source(different=0, size=got.size, seen_in=seen_in)
    if apart is not None:
        source = replace(source, different=apart.different, distance=apart.distance)
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(np.float64) - other.astype(np.float64)) if got.dtype.kind != "c" else abs(got - other)
    off = np.where(got == other, 0.0, np.where(np.isnan(off), np.inf, off))
    elements = tuple(
        Element(
            place=_place(number, array.shape),
            npu=_number(got[number]),
            benchmark=_number(other[number]),
            is_worst=is_worst,
        )
        for number, is_worst in _chosen(off)
        if source.different or not is_worst
    )
    return Examined(source=source, elements=elements)


def _chosen(off: np.ndarray) -> list[tuple[int, bool]]:
    """Return the positions that are shown of so large errors: the first ones, and those farthest off (True)."""
    order = np.argsort(-off, kind="stable")[:_WORST]
    return [(number, False) for number in range(min(_FIRST, off.size))] + [
        (int(place), True) for place in order if off[place] > 0
    ]


def _place(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(position, shape))) if shape else ()


def _true(formula: Formula, inputs: Mapping[int, Input], slot: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the recomputed output, flat, and the places of its elements; None for all of them."""
    work = formula.work(inputs)
    if work > _MAX_WORK:
        sample = formula.sample(inputs, _SAMPLES)
        if sample is None:
            raise NotComputedError("too_many_products", number=work)
        return sample[0], np.asarray(sample[1].array).reshape(-1)
    made = formula.run(inputs).get(slot)
    if made is None:
        raise NotComputedError("output_without_formula", slot=slot)
    return None, np.asarray(made.array).reshape(-1)


def _number(value: object) -> float | str:
    """Return a number as JSON and people take it; of a complex one its text."""
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, complex) else float(value)  # type: ignore[arg-type]


# --- ops of `overflow` and `random` -----------------------------------------------------------------------------------


#: Judges one op of a run; None for one that computes nothing, or was not dumped.
Examine = Callable[[RunGraph, Op], OpVerdict | None]


#: Of so many status files at most the ops are judged; there may be one for every op of a network.
_MAX_STATUS_OPS = 8


def recompute_overflow(data: DataFolder, report: OverflowReport) -> OverflowReport:
    """Return the report with the ops that overflow first recomputed."""
    return with_judged_overflow(report, _examiner(data))


def recompute_random(data: DataFolder, reports: Sequence[RandomReport], graph: str | None = None) -> list[RandomReport]:
    """Return the reports with the ops that compute differently first recomputed, in both runs."""
    runs: dict[str, RunGraph] = {}
    with suppress(PrecisionToolError):  # without a graph nothing is recomputed
        runs = {leaf.path: replace(run, leaf=leaf) for run in data.run_graphs(graph) for leaf in run.leaves}
    return [_random(report, runs, _examiner(data)) for report in reports]


def _examiner(data: DataFolder) -> Examine:
    def examined(run: RunGraph, op: Op) -> OpVerdict | None:
        examination = examine_in(data, run, op)
        return None if examination is None else examination.judged

    return examined


def with_judged_overflow(report: OverflowReport, examine: Examine) -> OverflowReport:
    """Return the report with the verdict on the first op of each leaf and of the first status files."""
    graphs = [leaf_overflow.graph for leaf_overflow in report.leaves if leaf_overflow.graph is not None]

    def judged(op: OverflowOp, run: RunGraph | None) -> OverflowOp:
        graph_op = None if run is None else run.file.op(op.name)
        return op if graph_op is None or run is None else replace(op, judged=examine(run, graph_op))

    def in_leaf(leaf_overflow: LeafOverflow) -> LeafOverflow:
        first = leaf_overflow.first
        if first is None or leaf_overflow.graph is None:
            return leaf_overflow
        new = judged(first, replace(leaf_overflow.graph, leaf=leaf_overflow.leaf))
        return replace(leaf_overflow, ops=tuple(new if op is first else op for op in leaf_overflow.ops))

    leaves = tuple(map(in_leaf, report.leaves))
    first_verdicts = {
        leaf_overflow.first.name: leaf_overflow.first.judged
        for leaf_overflow in leaves
        if leaf_overflow.first is not None
    }
    statuses: list[StatusReport] = []
    for leaf_overflow in report.statuses:
        op = leaf_overflow.op
        if op is not None and len(statuses) < _MAX_STATUS_OPS:
            op = (
                replace(op, judged=first_verdicts[op.name])
                if op.name in first_verdicts
                else judged(op, next(iter(graphs), None))
            )
        statuses.append(replace(leaf_overflow, op=op))
    return replace(report, leaves=leaves, statuses=tuple(statuses))


def with_verdicts(checks: Iterable[CheckResult], stored: Iterable[StoredVerdict | None]) -> list[CheckResult]:
    """Return the checks of a run with what the verdicts on its results add to them.

    The check for overflow tells what recomputing says of the op that it names first. Where a verdict deals with the
    overflow, the next steps of that verdict are the one remedy, and the check says so in place of its own advice.
    """
    verdicts = [one for one in stored if one is not None]
    ops = {op.name: op for one in verdicts for op in one.runs[0].ops}
    return [_with_verdicts(check, ops, [one.verdict for one in verdicts]) for check in checks]


def _with_verdicts(check: CheckResult, ops: Mapping[str, OpVerdict], verdicts: Sequence[Verdict]) -> CheckResult:
    if not isinstance(check, OverflowResult):
        return check
    report = with_judged_overflow(check.report, lambda _, op: ops.get(op.name))
    settled = next(filter(None, (_settled(report, verdict, ops) for verdict in verdicts)), None)
    return overflow_result(report, check.root, check.limit, settled)


def _settled(report: OverflowReport, verdict: Verdict, ops: Mapping[str, OpVerdict]) -> Message | None:
    """Return how a verdict deals with the overflow that comes first; None where it does not."""
    op, culprit = report.first, verdict.first
    if op is None or culprit is None or op.computes_wrong:  # its own advice is that of the verdict
        return None
    if op.name in (culprit.culprit, *culprit.also):
        return planned(report)
    others = {name for suspect in verdict.suspects[1:] for name in (suspect.culprit, *suspect.also)}
    judged = ops.get(op.name)
    if op.name in others or judged is None or judged.number <= culprit.number:
        return None
    return Message("check.advice.follows", op_name=op.name, culprit=culprit.culprit)


def _random(report: RandomReport, runs: Mapping[str, RunGraph], examine: Examine) -> RandomReport:
    first = report.first
    if first is None:
        return report
    verdicts = []
    for path in (report.left, report.right):
        run = runs.get(path)
        op = None if run is None else run.file.op(first.name)
        judged = None if run is None or op is None else examine(run, op)
        if judged is None:
            return report
        verdicts.append(judged)
    new = replace(first, judged=tuple(verdicts))
    return replace(report, ops=tuple(new if op is first else op for op in report.ops))
