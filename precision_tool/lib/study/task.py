"""The work of a study's task: leaves compared and judged, where the data is. Nothing is written, nothing printed."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from precision_tool.lib.checks.agreement import agrees, ops_of
from precision_tool.lib.checks.first_fault import find_first_fault
from precision_tool.lib.checks.overflow_status import StatusReader, graph_for, read_statuses
from precision_tool.lib.compare.folders import CompareOptions, LeafResult, compare_matched, match_leaf
from precision_tool.lib.engine.workers import WorkStoppedError
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.graph.cache import GraphStore
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.graph.choice import GraphChooser
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.finding import Finding, FindingKind
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.table import Row
from precision_tool.lib.pairing.match import match_by_graph
from precision_tool.lib.pairing.match_names import match_by_name
from precision_tool.lib.sources import walk
from precision_tool.lib.sources.dumps import DumpIndex, GoldenFiles, NoBenchmark
from precision_tool.lib.sources.inputs import Inputs, find_golden
from precision_tool.lib.sources.names import flatten
from precision_tool.lib.sources.overflow_files import StatusFile, parse_status_name
from precision_tool.lib.study.leaf_statistics import pack_statistics, read_leaf
from precision_tool.lib.study.outcome import FirstOp, LeafOutcome
from precision_tool.lib.study.packed import columns_of, pack
from precision_tool.lib.study.plan import LeafPlan, Task
from precision_tool.lib.study.votes import Epochs, votes_of
from precision_tool.lib.verdict.decide import Judged
from precision_tool.lib.verdict.model import Flag
from precision_tool.lib.verdict.of_results import flags_of, judged_on, own_errors
from precision_tool.lib.verdict.runs import Asked, judge

#: Every tensor is looked at for NaN, Inf and the limits of its type, compared or not.
_OPTIONS = CompareOptions(extremes=True)
#: Benchmarks that a worker keeps listed.
_KEPT = 4

_stores: dict[str, GraphStore] = {}
_goldens: dict[tuple[str, str], GoldenFiles | Run] = {}


@dataclass(frozen=True, kw_only=True)
class LeafDone:
    """What a worker hands back of a leaf: its outcome, and its rows as `packed.pack` makes them (b"": none).

    `statistics` are those of a leaf that was dumped as such, as `pack_statistics` makes them.
    """

    path: str
    outcome: LeafOutcome
    rows: bytes = b""
    statistics: bytes = b""


def run_task(task: Task, executor: Executor | None = None) -> list[LeafDone]:
    """Every leaf of a task, its tensors and ops by the task's workers, or by any `executor`.

    What the user can do something about is a leaf's `failure`, all else is raised.
    """
    return [_run_leaf(plan, task, executor) for plan in task.leaves]


def _run_leaf(plan: LeafPlan, task: Task, executor: Executor | None) -> LeafDone:
    path = plan.leaf.path
    try:
        return _study_leaf(plan, task, executor)
    except WorkStoppedError as stop:
        if stop.exit_code == 130:
            raise KeyboardInterrupt from stop
        raise
    except PrecisionToolError as error:
        return LeafDone(path=path, outcome=LeafOutcome(failure=error.advice, judged=task.judges))


def _study_leaf(plan: LeafPlan, task: Task, executor: Executor | None) -> LeafDone:
    result = _compared(plan, task, executor)
    options = task.options
    ops = ops_of(result.rows, options.threshold)
    faults = find_first_fault(ops, options.threshold, result.unread_graph)
    below = sum(agrees(row, options.threshold) is False for row in result.rows)
    bad = [row for row in result.rows if _is_bad(row)]
    judges = task.judges and not (options.only_suspects and plan.benchmark and not below and not bad)
    judged = _judged(result, plan, task, faults if plan.benchmark else None, executor) if judges else None
    rows: Sequence[Row] = result.rows
    if judged is not None:
        mine = next((one for one in (judged, *judged.beside) if one.npu == result.leaf.path), judged)
        own = own_errors(mine)
        rows = [replace(row, own_error=own.get((row.op_name, row.slot))) for row in rows]
    epochs = Epochs([(row.op_name, row.op_type, row.index) for row in rows])
    first = next((one for one in faults if one.op_name and one.kind in _NAMING), None)
    verdict = None if judged is None else judged.verdict
    suspects = () if verdict is None else verdict.suspects
    file = result.graph.file if result.graph is not None else None
    assert result.dumps is not None
    outcome = LeafOutcome(
        rows=len(rows),
        compared=sum(row.cosine is not None for row in rows),
        unreadable=sum(row.status == Status.UNREADABLE for row in rows),
        below=below,
        bad=len(bad),
        first_bad=bad[0].tensor_index if bad else "",
        network=_network(file, result.leaf),
        graph=file.path if file is not None else "",
        run=plan.beside.number,
        lack="" if file is not None else next(iter(result.notes), ""),
        first=None if first is None else FirstOp(
            op=first.op_name, type=first.op_type, kind=str(first.kind),
            number=epochs.number(first.op_name), epoch=epochs.of(first.op_name),
        ),
        verdict=verdict,
        epochs={one.culprit: epochs.of(one.culprit) for one in suspects},
        votes=tuple(votes_of(result.dumps, file, epochs, executor)),
        notes=result.notes,
        judged=judges,
    )  # fmt: skip
    told = b""
    if plan.leaf.statistics:
        told = pack_statistics(read_leaf(result.leaf, plan.leaf.step, plan.leaf.rank))
    return LeafDone(path=plan.leaf.path, outcome=outcome, rows=pack(columns_of(rows)), statistics=told)


#: Findings of a comparison that name an op.
_NAMING = (FindingKind.FIRST_FAULTY_OP, FindingKind.DIFFERENT_INPUT)


def _is_bad(row: Row) -> bool:
    """Whether an NPU tensor has NaN or Inf."""
    seen = row.npu or row.extremes
    return seen is not None and seen.nan_count + seen.inf_count > 0


def _compared(plan: LeafPlan, task: Task, executor: Executor | None) -> LeafResult:
    """The leaf compared with its benchmark; without one each tensor looked at alone."""
    leaf = dump_leaf(plan.leaf.path)
    graphs = GraphChooser(store=_store(task.cache), extra_folders=(".",))
    if plan.benchmark:
        inputs = Inputs(run=Run(root=leaf.path, leaves=(leaf,)), golden=_golden(plan))
        pairs, result = match_leaf(leaf, inputs, 0, task.options.graph, graphs)
    else:
        pairs, result = _alone(leaf, task.options.graph, graphs)
    return compare_matched(pairs, result, _OPTIONS, workers=task.workers, executor=executor)


def _alone(leaf: DumpLeaf, graph: str | None, graphs: GraphChooser) -> tuple[list[Pair], LeafResult]:
    dumps, side = DumpIndex(leaf), NoBenchmark()
    result = LeafResult(leaf=leaf, golden_root="", golden_is_dump=False, rows=(), dumps=dumps)
    try:
        choice = graphs.of(leaf, graph)
    except DataNotFoundError as error:
        if graph is not None:
            raise
        return list(match_by_name(dumps, side)), replace(result, notes=(error.message,))
    return list(match_by_graph(dumps, choice.file, side)), replace(result, graph=choice)


def dump_leaf(path: str) -> DumpLeaf:
    """The dump files directly in a folder. DataNotFoundError if it has gone meanwhile, or has none any more."""
    for leaf in walk.find_run(path).leaves:
        if leaf.path == path:
            return leaf
    raise DataNotFoundError.of(path, "no dump file any more", "run the command again")


def _store(cache: str) -> GraphStore:
    if cache not in _stores:
        folders = [Path(cache)] if cache else []
        _stores[cache] = GraphStore(CacheFiles(lambda: folders))
    return _stores[cache]


def _golden(plan: LeafPlan) -> GoldenFiles | Run:
    """What is below the benchmark folder, listed once as long as the plan is the same."""
    key = plan.benchmark, plan.benchmark_print
    if key not in _goldens:
        while len(_goldens) >= _KEPT:
            del _goldens[next(iter(_goldens))]
        _goldens[key] = find_golden(plan.benchmark)
    found = _goldens[key]
    if isinstance(found, GoldenFiles):
        found.forget_changed()
    return found


def _judged(
    result: LeafResult,
    plan: LeafPlan,
    task: Task,
    faults: Sequence[Finding] | None,
    executor: Executor | None,
) -> Judged | None:
    """Every op of the leaf recomputed, however long that takes: what comes of it must not depend on the machine.

    `faults` are what its comparison says; None where there is nothing to compare with.
    """
    if result.graph is None:
        return None
    mine = RunGraph(
        number=plan.beside.number, leaf=result.leaf, file=result.graph.file, reason="", leaves=(result.leaf,)
    )  # fmt: skip
    runs, flagged = [mine, *_other_runs(plan, mine, task)], _flagged(plan, mine)
    if faults is not None:
        return judged_on(
            result,
            task.options.threshold,
            faults,
            runs=runs,
            flagged=flagged,
            seconds=inf,
            workers=task.workers,
            executor=executor,
        )
    asked = Asked(
        leaf=result.leaf, file=result.graph.file, dumps=result.dumps, threshold=task.options.threshold, flagged=flagged
    )
    return judge(asked, runs, seconds=inf, workers=task.workers, executor=executor)


def _other_runs(plan: LeafPlan, mine: RunGraph, task: Task) -> Iterator[RunGraph]:
    """The same step and device of the data folder's other runs, one model of each; what cannot be read is left out."""
    for run in plan.beside.runs:
        found = []
        for path in run.paths:
            with suppress(PrecisionToolError):
                leaf = dump_leaf(path)
                graph = GraphChooser(store=_store(task.cache)).of(leaf)
                found.append(
                    RunGraph(number=run.number, leaf=leaf, file=graph.file, reason=graph.reason, leaves=(leaf,))
                )
        if found:  # of several models the one with the most ops in common
            names = {flatten(op.name) for op in mine.file.ops}
            yield max(found, key=lambda one: len(names & {flatten(op.name) for op in one.file.ops}))


def _flagged(plan: LeafPlan, mine: RunGraph) -> dict[str, Flag]:
    """What overflow status files say of the leaf's ops."""
    assert mine.leaf is not None
    parsed = [(path, parse_status_name(posixpath.basename(path))) for path in plan.beside.statuses]
    files = [StatusFile(path=path, name=name[0], decoded=name[1]) for path, name in parsed if name is not None]
    files.sort(key=lambda file: (file.name.timestamp, file.path))
    if not files:
        return {}
    # Below the folder of the device: its other folders have dumps of the ops that are meant.
    root = posixpath.dirname(posixpath.dirname(files[0].folder))
    reader = StatusReader(root, (mine.leaf,), lambda leaf: graph_for(leaf, (mine,)))
    return flags_of(read_statuses(files, reader, limit=0)[0])


def _network(file: GraphFile | None, leaf: DumpLeaf) -> str:
    """What tells networks apart: names and types of the ops in their order, or without a graph of those dumped."""
    if file is not None:
        ops = [f"{op.type} {op.name}" for op in file.ops]
    else:
        ops = sorted({f"{dump.name.op_type} {dump.name.op_name}" for dump in leaf.files})
    return hashlib.sha256("\n".join(ops).encode("utf-8", "surrogateescape")).hexdigest()[:16]
