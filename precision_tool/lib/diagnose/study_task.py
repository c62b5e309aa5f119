"""The work of a study's task: leaves compared and judged, where the data is. Nothing is written, nothing printed."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

from precision_tool.lib.compare.folders import CompareOptions
from precision_tool.lib.compare.scheduler import Resources, WorkStoppedError
from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.dump_tree import StatusFile, parse_status_name
from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.graph_choice import GraphChooser
from precision_tool.lib.data.sides import find_golden, find_run
from precision_tool.lib.diagnose.agreement import agrees
from precision_tool.lib.diagnose.overflow import StatusReader, graph_for, read_statuses
from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, Leaf, diagnose_leaf, flags_of, is_not_finite
from precision_tool.lib.diagnose.replica_feeds import source_votes
from precision_tool.lib.diagnose.replica_votes import Epochs, pack_votes, votes_of
from precision_tool.lib.diagnose.roles import roles_of
from precision_tool.lib.diagnose.study_journal import FirstOp, LeafDone, LeafOutcome
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.study_peers import is_by_attributes, sized_outputs
from precision_tool.lib.diagnose.study_plan import LeafPlan, Task
from precision_tool.lib.diagnose.study_statistics import pack_statistics, read_leaf
from precision_tool.lib.diagnose.study_table import columns_of, pack
from precision_tool.lib.diagnose.verdict_model import Flag
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import store_of
from precision_tool.lib.io.stores import take_unread
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.messages.limits import LimitError
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.finding import FindingKind
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.run import DumpLeaf, Run

#: Findings of a comparison that name an op.
_NAMING = (FindingKind.FIRST_FAULTY_OP, FindingKind.DIFFERENT_INPUT)
#: Benchmarks that a worker keeps listed.
_MAX_CACHED = 4

_stores: dict[str, GraphStore] = {}
_goldens: dict[tuple[str, str], GoldenFiles | Run] = {}


def run_task(task: Task, executor: Executor | None = None) -> list[LeafDone]:
    """Analyse every leaf of a task, in its order, its tensors and ops by the task's workers, or by any `executor`.

    What the user can do something about is a leaf's `failure`, all else is raised.
    """
    return [_run_leaf(plan, task, executor) for plan in task.leaves]


def _run_leaf(plan: LeafPlan, task: Task, executor: Executor | None) -> LeafDone:
    take_unread()  # what this process noted before is not of this leaf
    try:
        done = _study_leaf(plan, task, executor)
    except WorkStoppedError as stop:
        if stop.exit_code == 130:
            raise KeyboardInterrupt from stop
        raise
    except LimitError:
        raise  # every other leaf would have it too
    except PrecisionToolError as error:
        done = LeafDone(outcome=LeafOutcome(failure=error.advice_message, judged=task.judges))
    unread = take_unread()
    if not unread:
        return done
    path = min(unread)
    outcome = replace(done.outcome, unread=len(unread), unread_reason=unread[path])
    _forget(plan)
    return replace(done, outcome=outcome)


def _forget(plan: LeafPlan) -> None:
    """Forget the benchmark of a leaf, of which something may be kept as unreadable that can be read later."""
    _goldens.pop((plan.benchmark, plan.benchmark_print), None)


def _study_leaf(plan: LeafPlan, task: Task, executor: Executor | None) -> LeafDone:
    graphs = GraphChooser(store=_store(task.cache), extra_folders=(".",))
    store_of(plan.leaf.path).list_together(_folders_above(plan.leaf))
    diagnosis = diagnose_leaf(_leaf(plan, task, graphs), _options(task), Resources(task.workers, executor), graphs)
    analysis, verdict = diagnosis.analysis, diagnosis.verdict
    assert analysis is not None
    result, rows = analysis.leaf, analysis.rows
    assert result is not None
    bad = [row for row in rows if is_not_finite(row)]
    epochs = Epochs([(row.op_name, row.op_type, row.index) for row in rows])
    first = next((finding for finding in analysis.findings if finding.op_name and finding.kind in _NAMING), None)
    suspects = () if verdict is None else verdict.suspects
    file = result.graph.file if result.graph is not None else None
    is_borrowed = result.graph is not None and result.graph.is_borrowed
    assert result.dumps is not None
    outcome = LeafOutcome(
        rows=len(rows),
        compared=sum(row.cosine is not None for row in rows),
        unreadable=sum(row.status == Status.UNREADABLE for row in rows),
        below=sum(agrees(row, task.options.threshold) is False for row in rows),
        bad=len(bad),
        first_bad=bad[0].tensor_index if bad else "",
        network=_network(file, result.leaf),
        graph=file.path if file is not None else "",
        run=plan.surroundings.number,
        lack=None if file is not None else next(iter(result.notes), None),
        first=None if first is None else FirstOp(
            op=first.op_name, type=first.op_type, kind=str(first.kind),
            number=epochs.number(first.op_name), epoch=epochs.of(first.op_name),
        ),
        verdict=verdict,
        borrowed=result.graph.doubt if result.graph is not None and is_borrowed else None,
        epochs={suspect.culprit: epochs.of(suspect.culprit) for suspect in suspects},
        sized={suspect.culprit: sized_outputs(suspect) for suspect in suspects},
        by_attributes=tuple(suspect.culprit for suspect in suspects if is_borrowed and is_by_attributes(suspect)),
        judged=diagnosis.recomputed,
    )  # fmt: skip
    statistics = b""
    if plan.leaf.statistics:
        statistics = pack_statistics(read_leaf(result.leaf, plan.leaf.step, plan.leaf.rank))
    votes = [*votes_of(result.dumps, file, epochs, executor), *source_votes(result.dumps, file, executor)]
    columns = columns_of(rows, roles_of(rows, file))
    return LeafDone(outcome=outcome, votes=pack_votes(votes), rows=pack(columns), statistics=statistics)


def _folders_above(leaf: StudyLeaf) -> Iterator[str]:
    """Yield the folder of a leaf and those above it, up to the data folder: graphs and passports may lie in each."""
    folder = leaf.path
    while posixpath.join(folder, "").startswith(posixpath.join(leaf.data or leaf.path, "")):
        yield folder
        folder = posixpath.dirname(folder)


def _options(task: Task) -> DiagnoseOptions:
    """Look at every tensor for NaN, Inf, its figures and the limits of its type; recompute every op, however long.

    The outcome must not depend on the machine.
    """
    compare = CompareOptions(graph=task.options.graph, threshold=task.options.threshold, extremes=True, figures=True)
    return DiagnoseOptions(
        compare=compare,
        recomputes=task.judges,
        only_suspects=task.options.only_suspects,
        seconds=inf,
        profile=task.options.profile,
    )


def _leaf(plan: LeafPlan, task: Task, graphs: GraphChooser) -> Leaf:
    """Open the leaf of a plan: its dump, its benchmark, the other runs and the status files beside it."""
    dump = dump_leaf(plan.leaf.path)
    leaf = Leaf(dump=dump, golden=_golden(plan) if plan.benchmark else None)
    if not task.judges:
        return leaf
    try:
        choice = graphs.of(dump, task.options.graph, {dump.model_name})
    except PrecisionToolError:  # the comparison says so
        return leaf
    run = RunGraph(number=plan.surroundings.number, leaf=dump, file=choice.file, reason=None, leaves=(dump,))
    return replace(leaf, runs=[run, *_other_runs(plan, run, task)], flags=_flagged(plan, run))


def dump_leaf(path: str) -> DumpLeaf:
    """Return the dump files directly in a folder. DataNotFoundError if it has gone meanwhile, or has none any more."""
    for leaf in find_run(path).leaves:
        if leaf.path == path:
            return leaf
    raise DataNotFoundError.of(path, "diagnose.dump_gone")


def _store(cache: str) -> GraphStore:
    if cache not in _stores:
        folders = [Path(cache)] if cache else []
        _stores[cache] = GraphStore(CacheFiles(lambda: folders))
    return _stores[cache]


def _golden(plan: LeafPlan) -> GoldenFiles | Run:
    """Return the tensors below the benchmark folder, listed once as long as the plan is the same."""
    key = plan.benchmark, plan.benchmark_print
    if key not in _goldens:
        while len(_goldens) >= _MAX_CACHED:
            del _goldens[next(iter(_goldens))]
        _goldens[key] = find_golden(plan.benchmark)
    folder = _goldens[key]
    if isinstance(folder, GoldenFiles):
        folder.forget_changed()
    return folder


def _other_runs(plan: LeafPlan, own: RunGraph, task: Task) -> Iterator[RunGraph]:
    """Yield the same step and device of the other runs, one model of each; what cannot be read is left out."""
    for run in plan.surroundings.runs:
        graphs = []
        for path in run.paths:
            with suppress(PrecisionToolError):
                leaf = dump_leaf(path)
                graph = GraphChooser(store=_store(task.cache)).of(leaf)
                graphs.append(
                    RunGraph(number=run.number, leaf=leaf, file=graph.file, reason=graph.reason, leaves=(leaf,))
                )
        if graphs:  # of several models the one with the most ops in common
            names = {flatten(op.name) for op in own.file.ops}
            yield max(graphs, key=lambda graph: len(names & {flatten(op.name) for op in graph.file.ops}))


def _flagged(plan: LeafPlan, own: RunGraph) -> dict[str, Flag]:
    """Return the flags that overflow status files give the leaf's ops."""
    assert own.leaf is not None
    parsed = [(path, parse_status_name(posixpath.basename(path))) for path in plan.surroundings.statuses]
    files = [StatusFile(path=path, name=name[0], decoded=name[1]) for path, name in parsed if name is not None]
    files.sort(key=lambda file: (file.name.timestamp, file.path))
    if not files:
        return {}
    # Below the folder of the device: its other folders have dumps of the ops that are meant.
    root = posixpath.dirname(posixpath.dirname(files[0].folder))
    reader = StatusReader(root, (own.leaf,), lambda leaf: graph_for(leaf, (own,)))
    return flags_of(read_statuses(files, reader, limit=0)[0])


def _network(file: GraphFile | None, leaf: DumpLeaf) -> str:
    """Return a digest of a network: its modules, or its ops by name and type; without a graph those dumped."""
    if file is not None:
        # Of recorded calls the modules, else the calls themselves: what connects them follows from the values, and one
        # rank may make some more outside of modules, for its log.
        modules = dict.fromkeys(op.attrs["module"] for op in file.ops if "module" in op.attrs)
        calls = (op for op in file.ops if not leaf.graph or op.is_recorded)
        ops = list(modules) or [f"{op.type} {op.name}" for op in calls]
    else:
        ops = sorted({f"{dump.name.op_type} {dump.name.op_name}" for dump in leaf.files})
    return hashlib.sha256("\n".join(ops).encode("utf-8", "surrogateescape")).hexdigest()[:16]
