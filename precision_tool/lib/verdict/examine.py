"""One op judged by itself, with some of its elements as both sides have them and as they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.judged import Element, Examined, Source
from precision_tool.lib.ops.base import Input, NotComputedError
from precision_tool.lib.sources.dumps import BenchmarkSide, GoldenFiles, NoBenchmark
from precision_tool.lib.sources.inputs import own_benchmark
from precision_tool.lib.verdict.copies import beside_benchmark
from precision_tool.lib.verdict.departed import is_random
from precision_tool.lib.verdict.formulas import Formula
from precision_tool.lib.verdict.judge import Judge
from precision_tool.lib.verdict.judgement import OpJudgement
from precision_tool.lib.verdict.values import DATA_TYPES, PARAMETER_TYPES, NoValueError, Root, RunValues

#: Elements that are shown: the first ones, and those that are farthest off.
_FIRST, _WORST = 4, 4
#: Products from which on only a part of the output is recomputed to be shown, and about how much of it.
_MOST_WORK, _SAMPLES = 2e9, 1 << 12


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
    """What recomputing says of one op of a run; None for a run without a dump.

    Only the dump files of the op and of those around it are opened. `unfused` is a graph that has the original ops of
    fused ones.
    """
    if run.leaf is None:
        return None
    values = RunValues(run.leaf, run.file, benchmark, near=op)
    judge = Judge(values, unfused, only=lambda other: other is op)
    if not judge.computing() or is_random(op):
        return _source(values, op)
    judged = judge.examine(op)
    try:
        elements = _elements(judge, judged)
    except (NotComputedError, NoValueError):
        elements = ()
    return Examined(judged=judged.to_keep(), elements=elements)


def _elements(judge: Judge, judged: OpJudgement) -> tuple[Element, ...]:
    """The first elements of the output that is farthest off, and the worst."""
    slot, formula = judged.worst_slot, judged.formula
    if slot is None or formula is None:
        return ()
    op, values = judged.op, judge.values
    inputs = judge.fed(op).inputs
    have = judge.outputs(op).get(slot.slot)
    if have is None:
        return ()
    desc = op.output_descs[slot.slot] if slot.slot < len(op.output_descs) else None
    array = values.load(have, desc).array
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
    """What nothing computes beside the benchmark's; None of an op that makes no numbers, or where a side lacks them."""
    if op.type not in DATA_TYPES and op.type not in PARAMETER_TYPES and not is_random(op):
        return None
    roots = (Root(op, index) for index in range(max(len(op.output_descs), 1)))
    found = [one for root in roots if (one := beside_benchmark(values, root)) is not None]
    if not found:
        return None
    mine, golden, apart = next((one for one in found if one[2] is not None), found[0])
    array, other = np.asarray(mine.input.array), np.asarray(golden.input.array).reshape(-1)
    got = array.reshape(-1)
    seen_in = mine.slot.name if mine.slot is not None else ""
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
    """The positions that are shown of so large errors: the first ones, and those farthest off (True)."""
    order = np.argsort(-off, kind="stable")[:_WORST]
    return [(number, False) for number in range(min(_FIRST, off.size))] + [
        (int(one), True) for one in order if off[one] > 0
    ]


def _place(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(position, shape))) if shape else ()


def _true(formula: Formula, inputs: Mapping[int, Input], slot: int) -> tuple[np.ndarray | None, np.ndarray]:
    """The recomputed output, flat, and the places of its elements; None for all of them."""
    work = formula.work(inputs)
    if work > _MOST_WORK:
        found = formula.sample(inputs, _SAMPLES)
        if found is None:
            raise NotComputedError("too_many_products", number=work)
        return found[0], np.asarray(found[1].array).reshape(-1)
    made = formula.run(inputs).get(slot)
    if made is None:
        raise NotComputedError("output_without_formula", slot=slot)
    return None, np.asarray(made.array).reshape(-1)


def _number(value: object) -> float | str:
    """A number as JSON and people take it; of a complex one its text."""
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, complex) else float(value)  # type: ignore[arg-type]
