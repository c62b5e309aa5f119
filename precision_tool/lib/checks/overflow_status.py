"""What the overflow status files tell of ops, beside what the dump holds of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from precision_tool.lib.checks.overflow import OverflowOp, StatusReport, judge, with_summaries
from precision_tool.lib.engine.run_values import RunValues
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.formats.opdebug import UnitStatus, read_opdebug
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.io.files import real_path
from precision_tool.lib.messages import Message
from precision_tool.lib.model.run import DumpFile, DumpLeaf
from precision_tool.lib.sources.names import flatten
from precision_tool.lib.sources.overflow_files import StatusFile, files_of_task, leaves_below

#: The graph of a leaf; None if there is none.
GraphOf = Callable[[DumpLeaf], RunGraph | None]


class StatusReader:
    """Reads status files and finds the ops they tell of."""

    def __init__(
        self,
        root: str,
        other_leaves: Sequence[DumpLeaf],
        graph_of: GraphOf,
        leaves_at: Callable[[str], tuple[DumpLeaf, ...]] = leaves_below,
    ) -> None:
        """`other_leaves` are data dumps, for ops that the overflow detection did not dump; `leaves_at` finds dumps."""
        self._leaves_at = leaves_at
        self._leaves = leaves_at(root)
        self._others = other_leaves
        self._graph_of = graph_of
        self._values: dict[str, RunValues] = {}
        self._leaf_by_folder: dict[str, DumpLeaf | None] = {}
        self._by_task: dict[str, dict[int, list[DumpFile]]] = {}

    def read(self, file: StatusFile, *, detailed: bool = True) -> list[StatusReport]:
        """The statuses in a file, one for each task in it; PrecisionToolError if it cannot be read."""
        reports = []
        leaf = self._leaf_of(file.folder)
        for status in read_opdebug(file.path):
            known = StatusReport(
                file=file,
                output=status.output,
                units=status.units,
                device=leaf.device if leaf is not None else "",
                step=leaf.step if leaf is not None else "",
                notes=status.notes,
            )
            tasks: dict[Hashable, list[UnitStatus]] = {}
            for unit in status.units:
                if unit.is_set:
                    task = (unit.model_id, unit.stream_id, unit.task_id, unit.context_id, unit.thread_id)
                    tasks.setdefault(task, []).append(unit)
            reports += [
                self._with_op(replace(known, units=tuple(units)), leaf, units[0], detailed) for units in tasks.values()
            ] or [known]
        return reports

    def _leaf_of(self, folder: str) -> DumpLeaf | None:
        if folder not in self._leaf_by_folder:
            known = {real_path(leaf.path): leaf for leaf in (*self._leaves_at(folder), *self._leaves)}
            self._leaf_by_folder[folder] = known.get(real_path(folder))
        return self._leaf_by_folder[folder]

    def _with_op(self, known: StatusReport, leaf: DumpLeaf | None, unit: UnitStatus, detailed: bool) -> StatusReport:
        of_model = [one for one in self._leaves if one is not leaf and one.model_id == str(unit.model_id)]
        mine = [*([leaf] if leaf is not None else []), *of_model]
        for place in (*mine, *self._others):
            files = files_of_task(self._of_task(place, unit.task_id), unit.stream_id, unit.context_id, unit.thread_id)
            if not files:
                continue
            # Of several runs of the op the one just before its status was written.
            before = [one for one in files if one.name.timestamp <= known.file.name.timestamp]
            found = self._op(place, (before or list(files))[-1], detailed)
            different = len({one.name.op_name for one in files})
            doubts: list[Message] = []
            if not any(place is one for one in mine):
                doubts.append(Message("check.task.in_data_dump", path=place.path))
            if different > 1:
                doubts.append(Message("check.task.shared", ops=different))
            return replace(known, op=found, doubts=tuple(doubts))
        nowhere = Message(
            "check.task.no_dump",
            task=unit.task_id,
            stream=unit.stream_id,
            context=unit.context_id,
            thread=unit.thread_id,
        )
        return replace(known, doubts=(nowhere,))

    def _of_task(self, leaf: DumpLeaf, task: int) -> Sequence[DumpFile]:
        """The files of a task number, found once for all statuses: either may be thousands."""
        if leaf.path not in self._by_task:
            by_task = self._by_task[leaf.path] = {}
            for file in leaf.files:
                by_task.setdefault(file.name.task_id, []).append(file)
        return self._by_task[leaf.path].get(task, ())

    def _op(self, leaf: DumpLeaf, file: DumpFile, detailed: bool) -> OverflowOp | None:
        values = self._values.get(leaf.path)
        if values is None:
            graph = self._graph_of(leaf)
            values = self._values[leaf.path] = RunValues(leaf, None if graph is None else graph.file)
        op = values.find(file.name.op_name)
        if op is None:
            return None
        judged = judge(values, op, told=True)
        return with_summaries(judged, values) if judged is not None and detailed else judged


def read_statuses(
    files: Sequence[StatusFile],
    reader: StatusReader,
    limit: int,
) -> tuple[tuple[StatusReport, ...], tuple[tuple[str, str], ...]]:
    """All status files in time order, the first `limit` with their ops' figures; and those that cannot be read."""
    reports: list[StatusReport] = []
    unreadable: list[tuple[str, str]] = []
    for file in files:
        try:
            reports += reader.read(file, detailed=len(reports) < limit)
        except PrecisionToolError as error:
            unreadable.append((file.path, error.advice))
    return tuple(reports), tuple(unreadable)


def graph_for(leaf: DumpLeaf, runs: Sequence[RunGraph]) -> RunGraph | None:
    """The graph of a leaf among those of the runs: of its model by name, else the one that names most of its ops."""
    for run in runs:
        if leaf.model_name and any(other.path == leaf.path for other in run.leaves):
            return run
    flat = {flatten(file.name.op_name) for file in leaf.files}

    def named(run: RunGraph) -> int:
        return len(flat & {flatten(op.name) for op in run.file.ops})

    by_name = [run for run in runs if leaf.model_name and leaf.model_name == flatten(run.file.graphs[0].name)]
    best = max(by_name or runs, key=named, default=None)
    return best if best is not None and 2 * named(best) > len(flat) else None
