"""The verdicts on the runs of a data folder: which runs there are to judge, and which of two is to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import nan

from precision_tool.lib.engine.scheduler import ALL_CORES, Resources
from precision_tool.lib.errors import DataNotFoundError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.named import names_in
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.table import Row
from precision_tool.lib.pairing.groups import originals
from precision_tool.lib.pairing.unfused import GraphDumps
from precision_tool.lib.settings import DEFAULT_THRESHOLD
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpIndex, GoldenFiles, NoBenchmark
from precision_tool.lib.sources.inputs import golden_leaf
from precision_tool.lib.verdict.compared import Compared
from precision_tool.lib.verdict.copies import is_repeated
from precision_tool.lib.verdict.decide import SECONDS, Judged, Subject, judge_run, unsteady
from precision_tool.lib.verdict.judge import Judge
from precision_tool.lib.verdict.judgement import State
from precision_tool.lib.verdict.model import Cause, Do, Fact, Flag, Step, Verdict
from precision_tool.lib.verdict.plan import plan
from precision_tool.lib.verdict.values import Root, RunValues

#: Of the runs beside the one that is asked about, how many are judged.
_OTHERS = 2


@dataclass(frozen=True, kw_only=True)
class Request:
    """A dump to judge, and what is known of it."""

    leaf: DumpLeaf
    file: GraphFile
    golden: GoldenFiles | Run | None = None
    #: The dump's files as far as they were opened.
    dumps: DumpIndex | None = None
    rows: Sequence[Row] = ()
    #: Ops that the comparison alone would suspect, the likeliest first.
    compared: Sequence[str] = ()
    threshold: float = DEFAULT_THRESHOLD
    #: What overflow status files of the run say, by name of the op.
    flagged: Mapping[str, Flag] = field(default_factory=dict)
    #: Whether an earlier step of the same training is judged too.
    is_later: bool = False


def judge(
    request: Request,
    runs: Sequence[RunGraph],
    *,
    seconds: float = SECONDS,
    resources: Resources = ALL_CORES,
) -> Judged:
    """The verdict on a dump; where nothing in it computes wrong, and in another run of `runs` something does, on that.

    `runs` are the graphs of the data folder's runs.
    """
    mine = next((run for run in runs if any(leaf.path == request.leaf.path for leaf in run.leaves)), None)
    number = mine.number if mine is not None else None
    others = [run for run in runs if run.leaf is not None and run is not mine and run.number != number]
    others = [run for run in others if mine is not None]
    benchmark, other_run = _benchmark(request, others)
    subject = Subject(
        leaf=request.leaf, file=request.file, benchmark=benchmark, unfused=others[0].file if others else None,
        dumps=request.dumps, other=other_run, number=number, cosines=_cosines(request.rows, request.file),
        compared=request.compared, threshold=request.threshold, flagged=request.flagged, is_later=request.is_later,
        seen=Compared.of(request.rows) if isinstance(benchmark, GoldenFiles) else None,
    )  # fmt: skip
    first = judge_run(subject, seconds=seconds, resources=resources)
    if first.verdict.culprit is not None:
        return _with_parts(_with_repetition(first, subject, others), subject, others)
    beside: list[Judged] = []
    for run in others[:_OTHERS]:
        assert run.leaf is not None
        other = Subject(
            leaf=run.leaf, file=run.file, benchmark=benchmark, unfused=request.file, number=run.number,
            cosines=_cosines_of_other(request, run), threshold=request.threshold,
        )  # fmt: skip
        found = judge_run(other, seconds=seconds, resources=resources)
        if found.verdict.culprit is not None:
            found = _with_parts(found, other, [one for one in runs if one is not run])
            return replace(_with_comparison(found), beside=(first, *beside))
        beside.append(found)
        differs = unsteady(subject, other, first)
        if differs is not None:
            return replace(differs, beside=beside)
    return replace(first, beside=beside)


def _with_repetition(found: Judged, subject: Subject, others: Sequence[RunGraph]) -> Judged:
    """A verdict that blames random numbers, with what another run says: whether they are drawn anew each time."""
    first = found.verdict.first
    other = next((run for run in others if run.leaf is not None), None)
    if (
        first is None
        or other is None
        or other.leaf is None
        or not (first.cause is Cause.RANDOM and first.fact("seen_in"))
    ):
        return found
    op = next(op for op in subject.file.ops if op.name == first.culprit)
    mine = RunValues(subject.leaf, subject.file, NoBenchmark(), dumps=subject.dumps, near=op)
    again = is_repeated(mine, RunValues(other.leaf, other.file, NoBenchmark()), Root(op, first.fact("output") or 0))
    if again is None:
        return found
    verdict = _with_facts(found.verdict, Fact(name="repeats", value=again), Fact(name="other_run", value=other.number))
    steps = plan(verdict.suspects[0], verdict.suspects, verdict.has_benchmark)
    return replace(found, verdict=replace(verdict, next=steps))


def _with_parts(found: Judged, subject: Subject, others: Sequence[RunGraph]) -> Judged:
    """A verdict that blames a fusion pass, with what a run without it says: whether the parts compute right there."""
    first = found.verdict.first
    if first is None or first.cause is not Cause.FUSION:
        return found
    op = next(op for op in subject.file.ops if op.name == first.culprit)
    wanted = set(originals(op))
    for run in others:
        parts = [one for one in run.file.ops if originals(one) and wanted.issuperset(originals(one))]
        made = {name for one in parts for name in originals(one)}
        if run.leaf is None or made != wanted or any(first.pass_name in one.pass_names for one in parts):
            continue
        judge = Judge(RunValues(run.leaf, run.file, subject.benchmark), subject.file)
        states = {judge.examine(one).state for one in parts}
        if not states <= {State.RIGHT, State.WRONG}:
            continue
        right = Fact(name="parts_right", value=states == {State.RIGHT})
        verdict = _with_facts(found.verdict, right, Fact(name="parts_run", value=run.number))
        return replace(found, verdict=verdict)
    return found


def _with_facts(verdict: Verdict, *more: Fact) -> Verdict:
    """The verdict with more facts of its first suspect."""
    first = verdict.suspects[0]
    first = replace(first, facts=(*first.facts, *more))
    return replace(verdict, suspects=(first, *verdict.suspects[1:]), facts=first.facts)


def _with_comparison(found: Judged) -> Judged:
    """The verdict on a run that was not compared itself, with the step that compares it with the benchmark."""
    verdict = found.verdict
    if not verdict.has_benchmark or found.run is None:
        return found
    step = Step(do=Do.COMPARE_RUN, command=("ac", "-c", "-lt", f"debug_{found.run}"))
    return replace(found, verdict=replace(verdict, next=(*verdict.next[:-1], step, verdict.next[-1])))


def _benchmark(request: Request, others: Sequence[RunGraph]) -> tuple[BenchmarkSide, BenchmarkSide | None]:
    """What the dump is held against, and another NPU run that tells of random numbers."""
    golden = request.golden
    if isinstance(golden, GoldenFiles):
        return golden, None
    leaf: DumpLeaf | None = None
    if golden is not None:
        with suppress(DataNotFoundError):
            leaf = golden_leaf(golden, request.leaf, 0, 1)
    other = next((run for run in others if leaf is None or any(one.path == leaf.path for one in run.leaves)), None)
    if other is None or other.leaf is None:
        return NoBenchmark(), None
    return NoBenchmark(), GraphDumps(leaf or other.leaf, other.file)


def _cosines(rows: Sequence[Row], file: GraphFile, *, is_other: bool = False) -> Mapping[tuple[str, str], float]:
    """The cosines of a comparison by op and slot, of ops of the other of two NPU runs if `is_other`."""
    name_of = names_in(file)
    return {
        (name_of(row.pair.golden_ops[0] if is_other else row.op_name), row.slot): nan if row.mismatches else row.cosine
        for row in rows
        if row.cosine is not None and not row.is_scalar and (len(row.pair.golden_ops) == 1 or not is_other)
    }


def _cosines_of_other(request: Request, run: RunGraph) -> Mapping[tuple[str, str], float]:
    """The cosines that a run has as the other side of the comparison; none where it was not compared."""
    golden = request.golden
    if not isinstance(golden, Run) or run.leaf is None or run.leaf.path not in {leaf.path for leaf in golden.leaves}:
        return {}
    return _cosines(request.rows, run.file, is_other=True)
