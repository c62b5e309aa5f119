"""A data folder whose ops are judged: the verdicts on its runs, now and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_tool.lib.checks.folder import CheckedFolder
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.graph.catalog import RunGraph
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.judged import Examined, JudgedOp
from precision_tool.lib.results.result_files import newest_results

# What judges takes long to load, and `ls`, `graphs` and the prompt begin without it.
if TYPE_CHECKING:
    from concurrent.futures import Executor

    from precision_tool.lib.checks.analysis import Analysis
    from precision_tool.lib.checks.overflow import OverflowReport
    from precision_tool.lib.checks.random_errors import RandomReport
    from precision_tool.lib.engine.scheduler import Progress
    from precision_tool.lib.model.graph import GraphFile
    from precision_tool.lib.sources.dumps import BenchmarkSide
    from precision_tool.lib.verdict.decide import Judged
    from precision_tool.lib.verdict.stored import StoredVerdict


class JudgedFolder(CheckedFolder):
    """What can be asked of a data folder's ops: each alone, or which of them is to blame."""

    def verdicts(
        self,
        analyses: Sequence[Analysis],
        npu: str | None = None,
        graph: str | None = None,
        progress: Progress | None = None,
        workers: int = 0,
        executor: Executor | None = None,
    ) -> list[Judged | None]:
        """Who is to blame in each result; None for one that cannot be judged (no graph, PyTorch, its dump is gone)."""
        from precision_tool.lib.verdict.of_results import judge_results, with_passports

        judged = judge_results(self, analyses, graph, progress, workers, executor)
        pair = self.passports(npu)
        return judged if pair is None else [with_passports(one, pair) for one in judged]

    def verdicts_alone(
        self,
        npu: str | None = None,
        graph: str | None = None,
        progress: Progress | None = None,
        workers: int = 0,
        executor: Executor | None = None,
    ) -> list[Judged]:
        """Who is to blame in an NPU run without a benchmark, one verdict a model."""
        from precision_tool.lib.verdict.of_results import judge_alone

        return judge_alone(self, npu, graph, progress, workers, executor)

    def stored_verdicts(self) -> list[StoredVerdict]:
        """The verdicts kept with the newest results, with every op's judgement; [] where there is none."""
        from precision_tool.lib.verdict.stored import newest_verdicts

        results: list[str] = []
        with suppress(PrecisionToolError):  # no comparison yet
            results = newest_results(self.workspace)
        return newest_verdicts(results, self.workspace)

    def judged_ops(self, run: RunGraph) -> Mapping[str, JudgedOp]:
        """What the kept verdicts say of each op of a run, by name; {} where none is of it."""
        if run.leaf is None:
            return {}
        found = (one.ops_of(run.leaf.path, run.file.path) for one in self.stored_verdicts())
        return next(filter(None, found), {})

    def examine(self, run: RunGraph, op: Op) -> Examined | None:
        """An op judged by itself, now, with some of its elements; None where its graph has no dump."""
        from precision_tool.lib.verdict.examine import examine

        return examine(run, op, *self.beside(run))

    def beside(self, run: RunGraph) -> tuple[BenchmarkSide, GraphFile | None]:
        """What an op of a run is judged beside: the benchmark, and a graph that has the original ops of fused ones."""
        from precision_tool.lib.sources.dumps import GoldenFiles, NoBenchmark
        from precision_tool.lib.sources.inputs import own_benchmark

        golden = self.golden_of(run.number)
        benchmark: BenchmarkSide = NoBenchmark()
        if isinstance(golden, GoldenFiles):
            benchmark = golden if run.leaf is None else own_benchmark(golden, run.leaf, len(run.leaves))
        others: Sequence[RunGraph] = ()
        with suppress(PrecisionToolError):  # a graph was named, and the data folder has none
            others = self.run_graphs()
        return benchmark, next((one.file for one in others if one.leaf is not None and one.number != run.number), None)

    def judged_overflow(self, report: OverflowReport) -> OverflowReport:
        """The same with what recomputing says of the ops that overflow first."""
        from precision_tool.lib.verdict.told import with_judged_overflow

        return with_judged_overflow(report, self._judge_op)

    def judged_random(self, reports: Sequence[RandomReport], graph: str | None = None) -> list[RandomReport]:
        """The same with what recomputing says, in both runs, of the ops that compute differently first."""
        from precision_tool.lib.verdict.told import with_judged_random

        runs: dict[str, RunGraph] = {}
        with suppress(PrecisionToolError):  # without a graph nothing is recomputed
            runs = {leaf.path: replace(run, leaf=leaf) for run in self.run_graphs(graph) for leaf in run.leaves}
        return with_judged_random(reports, runs, self._judge_op)

    def _judge_op(self, run: RunGraph, op: Op) -> JudgedOp | None:
        found = self.examine(run, op)
        return None if found is None else found.judged
