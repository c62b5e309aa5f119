"""One pipeline for a leaf (a run's step and rank): compare → checks → verdict → plan. Nothing is printed or written.

`ac`, `ac --all` (in any process), the report and the Python API all call `diagnose_leaf`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from precision_tool.lib.compare.data_folder import DataFolder
from precision_tool.lib.compare.folders import (
    DEFAULT_OPTIONS,
    CompareOptions,
    LeafResult,
    compare_matched,
    match_alone,
    match_leaf,
)
from precision_tool.lib.compare.noise import with_noise
from precision_tool.lib.compare.scheduler import ALL_CORES, Resources
from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.graph_catalog import RunGraph, named_by
from precision_tool.lib.data.graph_choice import GraphChooser
from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.sides import Inputs, own_benchmark
from precision_tool.lib.diagnose.agreement import agrees, ops_of
from precision_tool.lib.diagnose.argument_blame import sides_of, with_arguments
from precision_tool.lib.diagnose.decide import SECONDS, RunVerdict, Subject, decide
from precision_tool.lib.diagnose.device_profile import DeviceProfile
from precision_tool.lib.diagnose.figures_blame import with_figures
from precision_tool.lib.diagnose.judgement_journal import KeptJudgements
from precision_tool.lib.diagnose.overflow import Origin, StatusReport, op_statuses
from precision_tool.lib.diagnose.passports import PassportPair
from precision_tool.lib.diagnose.plan import with_passports_known
from precision_tool.lib.diagnose.recorded_sides import find_differences
from precision_tool.lib.diagnose.run_checks import Analysis, analyse, check_benchmark_fits
from precision_tool.lib.diagnose.stored_profile import check_fits, identity_of
from precision_tool.lib.diagnose.stored_verdict import StoredVerdict, stored
from precision_tool.lib.diagnose.verdict_model import Cause, Fact, Flag, Step, StepText, Suspect, Verdict
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.finding import FindingKind
from precision_tool.lib.model.graph import GraphFile
from precision_tool.lib.model.records import changed
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.table import Row

#: Confidence that data or variables differ whose hashes differ.
_HASH_CONFIDENCE = 0.98


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf to diagnose, with what it is compared with and what the verdict may look at besides.

    Attributes
    ----------
    dump : DumpLeaf, optional
        The NPU's dump files; None where they are gone, so that nothing can be recomputed.
    golden : GoldenFiles or Run, optional
        The benchmark, or another NPU run; None: each tensor is looked at alone.
    analysis : Analysis, optional
        The comparison, where it was made already.
    file : GraphFile, optional
        The graph to recompute ops by, where the comparison used none.
    runs : sequence of RunGraph
        This run and others of the same script.
    flags : mapping of str to Flag
        What overflow status files say, by name of the op.
    passports : PassportPair, optional
        What the two runs were; hashes that differ prove that data or variables do.
    is_later : bool
        Whether an earlier step of the same training is diagnosed too.
    """

    dump: DumpLeaf | None
    golden: GoldenFiles | Run | None = None
    analysis: Analysis | None = None
    file: GraphFile | None = None
    runs: Sequence[RunGraph] = ()
    flags: Mapping[str, Flag] = field(default_factory=dict)
    passports: PassportPair | None = None
    is_later: bool = False


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """Options of diagnosing a leaf.

    Attributes
    ----------
    compare : CompareOptions
        What is compared and measured; the graph; the threshold.
    compares : bool
        Whether the tensors are compared, or looked at alone, where that was not done yet.
    recomputes : bool
        Whether ops are recomputed, which takes most of the time; without it there is no verdict.
    only_suspects : bool
        Recompute only where the comparison shows something, or there is no benchmark.
    seconds : float
        How long recomputing may take.
    profile : DeviceProfile, optional
        How precise the device is, as earlier runs showed (`stored_profile.read_profile`).
    """

    compare: CompareOptions = DEFAULT_OPTIONS
    compares: bool = True
    recomputes: bool = True
    only_suspects: bool = False
    seconds: float = SECONDS
    profile: DeviceProfile | None = None


DEFAULT_DIAGNOSE_OPTIONS = DiagnoseOptions()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A leaf's comparison with its checks, and the verdict on it.

    Attributes
    ----------
    analysis : Analysis, optional
        The rows and what the checks found; None for a run that was not compared.
    judged : RunVerdict, optional
        The verdict with every op's, as recomputed now.
    stored : StoredVerdict, optional
        The verdict that an earlier diagnosis left beside the result.
    recomputed : bool
        Whether ops were to be recomputed; still there is no verdict without a graph.
    """

    analysis: Analysis | None = None
    judged: RunVerdict | None = None
    stored: StoredVerdict | None = None
    recomputed: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """Who computes wrong, why, and what to do; None without a graph, and where ops were not recomputed."""
        if self.judged is not None:
            return self.judged.verdict
        return None if self.stored is None else self.stored.verdict

    @property
    def plan(self) -> Sequence[Step | StepText]:
        """Steps to take next, the one that settles most first."""
        return () if self.verdict is None else self.verdict.next

    def to_store(self, threshold: float) -> StoredVerdict | None:
        """Return the verdict as it is stored with a result; None where there is none."""
        if self.judged is None:
            return self.stored
        return stored(self.judged, threshold)


def diagnose_leaf(
    leaf: Leaf,
    options: DiagnoseOptions = DEFAULT_DIAGNOSE_OPTIONS,
    resources: Resources = ALL_CORES,
    graphs: GraphChooser | None = None,
    kept: KeptJudgements | None = None,
) -> Diagnosis:
    """Compare a leaf, check its rows, recompute its ops, name what computes wrong and plan what to do.

    Parameters
    ----------
    leaf : Leaf
        What is diagnosed. A comparison that it has is not made again.
    options : DiagnoseOptions
        What is compared and recomputed.
    resources : Resources
        Who shares the work; progress is counted in bytes while comparing, and in ops while recomputing.
    graphs : GraphChooser, optional
        Finds the leaf's graph.
    kept : KeptJudgements, optional
        Judgements of ops that an interrupted command left, which are taken over, and where new ones are kept; None:
        every op is recomputed, and nothing is written.

    Returns
    -------
    Diagnosis
        Plain values, the same in any process and for any number of workers.

    Raises
    ------
    DataNotFoundError, FormatError
        The leaf, or a graph that was named, is not there or damaged; NoBenchmarkError: the benchmark hardly matches.
    ComparisonStoppedError, WorkStoppedError
        The work ended early.
    UsageError
        The profile is of another device or mode.
    """
    analysis = leaf.analysis
    if analysis is None and options.compares:
        analysis = compare_leaf(leaf, options.compare, resources, graphs or GraphChooser())
        check_benchmark_fits([analysis])
    if not options.recomputes or (options.only_suspects and leaf.golden is not None and not _is_suspect(analysis)):
        return Diagnosis(analysis=analysis)
    judged = decide_leaf(leaf, analysis, options, resources, kept)
    if judged is None:
        return Diagnosis(analysis=analysis, recomputed=True)
    if leaf.passports is not None:
        judged = with_passports(judged, leaf.passports)
    golden = leaf.golden if analysis is None or analysis.leaf is None else analysis.leaf.golden
    sides = sides_of(leaf.dump, golden)
    if sides is not None and analysis is not None:
        judged = with_arguments(judged, sides, analysis.rows, analysis.threshold)
    if leaf.dump is not None:
        judged = with_figures(judged, leaf.dump, golden)
    if analysis is not None:
        analysis = with_own_errors(analysis, judged)
    return Diagnosis(analysis=analysis, judged=judged, recomputed=True)


# --- stages -----------------------------------------------------------------------------------------------------------


def compare_leaf(leaf: Leaf, options: CompareOptions, resources: Resources, graphs: GraphChooser) -> Analysis:
    """Compare a leaf with its benchmark, or look at each of its tensors alone, and check the rows."""
    assert leaf.dump is not None
    if leaf.golden is None:
        pairs, result = match_alone(leaf.dump, graphs, options)
    else:
        inputs = Inputs(run=Run(root=leaf.dump.path, leaves=(leaf.dump,)), golden=leaf.golden)
        pairs, result = match_leaf(leaf.dump, inputs, 0, graphs, options)
    result = compare_matched(pairs, result, options, resources)
    return analyse("", with_noise(result.table, options.noise), options.threshold, result)


def decide_leaf(
    leaf: Leaf,
    analysis: Analysis | None,
    options: DiagnoseOptions,
    resources: Resources,
    kept: KeptJudgements | None = None,
) -> RunVerdict | None:
    """Recompute the ops of a leaf and name the cause; None without a dump or a graph, and of PyTorch dumps."""
    result = None if analysis is None else analysis.leaf
    file = result.graph.file if result is not None and result.graph is not None else leaf.file
    if leaf.dump is None or file is None or (analysis is not None and not analysis.has_graph):
        return None
    golden = result.golden if result is not None else leaf.golden
    findings = () if analysis is None else analysis.findings
    rows = () if analysis is None else analysis.rows
    if options.profile is not None:
        check_fits(options.profile, identity_of(leaf.dump.path, rows))
    subject = Subject(
        leaf=leaf.dump, file=file, dumps=None if result is None else result.dumps, flagged=leaf.flags,
        compared=[finding.op_name for finding in findings if finding.kind == FindingKind.FIRST_FAULTY_OP],
        threshold=options.compare.threshold if analysis is None else analysis.threshold, is_later=leaf.is_later,
        profile=options.profile,
    )  # fmt: skip
    judged = decide(subject, golden, rows, leaf.runs, seconds=options.seconds, resources=resources, kept=kept)
    of_run = identity_of(judged.npu, rows if judged.npu == leaf.dump.path else ())
    return replace(judged, profile=replace(judged.profile, device=of_run.device, mode=of_run.mode))


def with_own_errors(analysis: Analysis, judged: RunVerdict) -> Analysis:
    """Return the comparison with the own error of each recomputed output; as it was if its run was not judged."""
    npu = analysis.leaf.leaf.path if analysis.leaf is not None else ""
    of_run = next((run for run in (judged, *judged.blameless) if run.npu == npu), None)
    if of_run is None or analysis.choice.compat:
        return analysis
    own = {(op.name, f"output:{slot.slot}"): slot.own for op in of_run.ops for slot in op.slots}
    name_of = named_by(op.name for op in of_run.ops)
    rows = tuple(
        changed(row, own_error=own.get((name_of(row.op_name), row.slot))) if row.slot or row.own_error is not None
        else row
        for row in analysis.rows
    )  # fmt: skip
    others = {id(row) for row, earlier in zip(rows, analysis.rows, strict=True) if row is not earlier}
    of_others = {(row.index, row.op_name) for row in rows if id(row) in others}
    theirs = [row for row in rows if (row.index, row.op_name) in of_others]
    again = {(op.index, op.op_name): op for op in ops_of(theirs, analysis.threshold)}
    ops = [again.get((op.index, op.op_name), op) for op in analysis.ops]
    return replace(analysis, rows=rows, ops=ops, choice=replace(analysis.choice, own_error=True))


def is_not_finite(row: Row) -> bool:
    """Return whether an NPU tensor has NaN or Inf."""
    summary = row.npu or row.extremes
    return summary is not None and summary.nan_count + summary.inf_count > 0


def _is_suspect(analysis: Analysis | None) -> bool:
    return analysis is None or any(
        agrees(row, analysis.threshold) is False or is_not_finite(row) for row in analysis.rows
    )


def with_passports(judged: RunVerdict, pair: PassportPair) -> RunVerdict:
    """Return the verdict with what the two runs' passports prove: that data or variables differ."""
    verdict = judged.verdict
    if verdict.first is None:
        verdict = replace(verdict, next=with_passports_known(verdict.next, differ=pair.is_other_setup))
    verdict = replace(verdict, suspects=tuple(_proven(suspect, pair) for suspect in verdict.suspects))
    if verdict.first is not None:
        verdict = replace(verdict, facts=verdict.first.facts, confidence=verdict.first.confidence)
    return replace(judged, verdict=verdict)


def _proven(suspect: Suspect, pair: PassportPair) -> Suspect:
    if suspect.cause not in (Cause.INPUT, Cause.WEIGHTS):
        return suspect
    differs = pair.hash_differs(suspect.culprit)
    if differs is None and suspect.cause is Cause.INPUT:  # what feeds a network is called otherwise in the graph
        differs = any(difference.topic == "batch" for difference in pair.differences) or None
    if not differs:
        return suspect
    facts = (*suspect.facts, Fact(name="passport", value="differs"))
    return replace(suspect, confidence=max(suspect.confidence, _HASH_CONFIDENCE), facts=facts)


# --- leaves -----------------------------------------------------------------------------------------------------------


def leaves_of(
    data: DataFolder, analyses: Sequence[Analysis], npu: str | None = None, graph: str | None = None
) -> list[Leaf]:
    """Return the leaf of each comparison, with the other runs, status files and passports of the data folder.

    Of a result that was read back the dump, the graph and the benchmark are looked up where they were; one whose dump
    or graph is gone is a leaf without a `dump`.
    """
    runs = _runs_of(data, graph)
    passports = find_differences(data.workspace, npu, None)
    leaves = []
    for analysis in analyses:
        leaf = _leaf_of(data, analysis, runs) if analysis.has_graph else None
        leaves.append(leaf or Leaf(dump=None, analysis=analysis))
    flags = flags_of_data(data, graph) if any(leaf.dump is not None for leaf in leaves) else {}
    return [
        leaf
        if leaf.dump is None
        else replace(
            leaf,
            runs=runs,
            flags=flags,
            passports=passports,
            is_later=data.is_later_step or _is_later(leaf.dump, analyses),
        )
        for leaf in leaves
    ]


def leaves_alone(data: DataFolder, npu: str | None = None, graph: str | None = None) -> list[Leaf]:
    """Return the leaves of an NPU run that there is nothing to compare with, one a model; diagnose them alone."""
    runs = _runs_of(data, graph)
    folder = npu or str(data.workspace.dump_dir(0))
    if MSPROBE.lies_at(folder):
        MSPROBE.check_judged_alone(folder)
    if npu is not None:
        dump = data.run_at(npu).leaves[0]
        return [Leaf(dump=dump, file=data.graph_chooser(graph).of(dump, graph).file, runs=runs)]
    flags = flags_of_data(data, graph)
    dumped = [run for run in runs if run.leaf is not None]
    number = min((run.number or 0 for run in dumped), default=0)
    return [Leaf(dump=run.leaf, file=run.file, runs=runs, flags=flags) for run in dumped if (run.number or 0) == number]


def _leaf_of(data: DataFolder, analysis: Analysis, runs: Sequence[RunGraph]) -> Leaf | None:
    result, source = analysis.leaf, analysis.source
    if result is not None:
        file = result.graph.file if result.graph is not None else _file_of(result, runs)
        return None if file is None else Leaf(dump=result.leaf, golden=result.golden, analysis=analysis, file=file)
    if source is None or not source.graph:
        return None
    try:
        dump, file = data.run_at(source.npu).leaves[0], data.store.load(source.graph)
    except PrecisionToolError:
        return None
    leaf = Leaf(dump=dump, analysis=analysis, file=file)
    with suppress(PrecisionToolError):  # its benchmark may be gone
        golden = data.golden_at(source.golden)
        if isinstance(golden, GoldenFiles):
            golden = own_benchmark(golden, dump, 1)
        return replace(leaf, golden=golden)
    return leaf


def _file_of(result: LeafResult, runs: Sequence[RunGraph]) -> GraphFile | None:
    """Return the graph of a leaf that was matched by name."""
    return next((run.file for run in runs if any(leaf.path == result.leaf.path for leaf in run.leaves)), None)


def _is_later(leaf: DumpLeaf, analyses: Sequence[Analysis]) -> bool:
    """Return whether an earlier step of the same device and run is among these."""
    others = [analysis.leaf.leaf for analysis in analyses if analysis.leaf is not None]
    return any(
        (run.device, run.model_name, run.model_id, run.time) == (leaf.device, leaf.model_name, leaf.model_id, leaf.time)
        and run.step.isdecimal() and leaf.step.isdecimal() and int(run.step) < int(leaf.step)
        for run in others
    )  # fmt: skip


def _runs_of(data: DataFolder, graph: str | None) -> tuple[RunGraph, ...]:
    try:
        return data.run_graphs(graph)
    except PrecisionToolError:
        return ()


def flags_of_data(data: DataFolder, graph: str | None) -> dict[str, Flag]:
    """Return what the overflow status files of a data folder say of ops."""
    with suppress(PrecisionToolError):  # `overflow` says what is wrong with them
        return flags_of(op_statuses(data, graph))
    return {}


def flags_of(statuses: Iterable[StatusReport]) -> dict[str, Flag]:
    """Return what status files say, by name of the op; not of ops that only received an overflow."""
    flags: dict[str, Flag] = {}
    for status in statuses:
        if status.op is None or status.op.origin in (Origin.RECEIVED, Origin.MEANT):
            continue
        words = [
            f"{unit.unit}: {', '.join(render(bit, 'en') for bit in unit.bits) or 'set'}"
            for unit in status.units
            if unit.is_set
        ]
        if words:
            flag = Flag(path=status.file.path, words="; ".join(words), is_doubtful=bool(status.doubts))
            flags.setdefault(status.op.name, flag)
    return flags
