"""Verdicts of `fusion blame` on ops and passes, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from math import inf, isfinite
from statistics import median

from precision_tool.lib.compare.scheduler import Progress, counting
from precision_tool.lib.data.dumped_ops import BenchmarkSide, GoldenFiles
from precision_tool.lib.data.fusion_pair import Fusion, is_fused
from precision_tool.lib.data.matching import GraphDumps
from precision_tool.lib.data.sides import find_golden
from precision_tool.lib.diagnose.agreement import OpAgreement, all_agree, distance
from precision_tool.lib.diagnose.error_shape import LIMIT
from precision_tool.lib.diagnose.op_values import RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.run_checks import Analysis
from precision_tool.lib.diagnose.verdict_model import OpResult, State
from precision_tool.lib.io.fusion_passes import is_switchable
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.comparison import Status
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.run import Run
from precision_tool.lib.model.table import Row
from precision_tool.lib.model.wording import NO_PASS


class BlameVerdict(StrEnum):
    """Verdicts on an op or a pass."""

    GUILTY = "guilty"
    SUSPICIOUS = "suspicious"
    CLEAN = "clean"
    NOT_JUDGED = "not judged"


#: Worst first.
ORDER = (BlameVerdict.GUILTY, BlameVerdict.SUSPICIOUS, BlameVerdict.NOT_JUDGED, BlameVerdict.CLEAN)
#: The first of these that any op of a pass has is the pass's.
_OF_A_PASS = (BlameVerdict.GUILTY, BlameVerdict.SUSPICIOUS, BlameVerdict.CLEAN, BlameVerdict.NOT_JUDGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The output of a fused op that is farthest off against the recomputed one, both as relative distances.

    `rounding` is what rounding makes of it (rms), `cosine` None where no element is wrong, `benchmark_error` the
    benchmark's own error, None where that does not tell. `mismatches` counts elements that are not finite though they
    should be. `how` names the ops.
    """

    error: float
    rounding: float
    cosine: float | None = None
    benchmark_error: float | None = None
    mismatches: int = 0
    how: str = ""
    #: Inputs that are the benchmark's, as the fused op is not fed them.
    borrowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpBlame:
    """A fused op. Errors are relative distances; None where nothing was compared or recomputed.

    `error` is the one the verdict rests on: the recomputed one, else that of the comparison.
    """

    op_name: str
    op_type: str
    passes: tuple[str, ...]
    originals: tuple[str, ...]
    index: int
    verdict: BlameVerdict
    #: What the verdict rests on.
    reason: Message
    input_error: float | None = None
    output_error: float | None = None
    cosine: float | None = None
    recomputed: Recomputed | None = None
    #: Why it could not be recomputed; None of one that was, or that was not dumped.
    not_recomputed: Message | None = None
    #: Of an op whose true result is beyond its type's range: what became of that.
    beyond_range: Message | None = None

    @property
    def error(self) -> float | None:
        return self.recomputed.error if self.recomputed is not None else self.output_error


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBlame:
    """A pass with the fused ops it made. `worst` and `median` are of the errors of its ops that were judged.

    Its verdict is that of `worst_op`.
    """

    name: str
    verdict: BlameVerdict
    ops: tuple[OpBlame, ...]
    is_switchable: bool
    worst: float | None = None
    median: float | None = None

    @property
    def worst_op(self) -> OpBlame:
        """Of the ops with the pass's verdict the one that is farthest off."""
        return max((op for op in self.ops if op.verdict is self.verdict), key=lambda op: op.error or 0.0)

    def count(self, verdict: BlameVerdict) -> int:
        return sum(op.verdict is verdict for op in self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The passes, worst first; the smallest set of switches that avoids every guilty op; what no switch avoids."""

    passes: tuple[PassBlame, ...]
    switch_off: tuple[str, ...]
    #: Guilty ops that only passes made which GE never switches off.
    unavoidable: tuple[OpBlame, ...] = ()
    #: Fused ops of which the graph names no pass.
    nameless: tuple[str, ...] = ()

    @property
    def is_judged(self) -> bool:
        """True if anything is known of a pass that a switch file turns off; those are what fusion adds to a run."""
        return any(item.is_switchable and item.verdict is not BlameVerdict.NOT_JUDGED for item in self.passes)

    @property
    def ops(self) -> tuple[OpBlame, ...]:
        """Every fused op once, in execution order."""
        ops = {op.op_name: op for item in self.passes for op in item.ops}
        return tuple(sorted(ops.values(), key=lambda op: op.index))


# --- blame ------------------------------------------------------------------------------------------------------------


#: An output this many times as far off as the inputs has an error of its own.
_OWN = 3.0
#: A distance that agrees by the cosine and is still worth a look.
_NOTABLE = 0.02
#: Borrowed inputs that a reason names.
_NAMED = 3
#: Sets of passes are tried by size up to so many passes; with more the choice is made one by one.
_EXACT = 14


def _recomputed(recomputed: OpResult) -> Recomputed | None:
    """Return the figures of a judgement."""
    worst = recomputed.worst_slot
    if worst is None:
        return None
    return Recomputed(
        error=worst.own, rounding=worst.rounding, cosine=worst.cosine, benchmark_error=worst.benchmark_own,
        mismatches=worst.not_finite, how=", ".join(recomputed.how),
        borrowed=recomputed.formula.names_lent if recomputed.formula is not None else (),
    )  # fmt: skip


def blame(
    analysis: Analysis, benchmark: BenchmarkSide, unfused: GraphFile | None = None, progress: Progress | None = None
) -> Blame:
    """Decide for every fused op of a comparison whether its pass is to blame.

    Parameters
    ----------
    analysis : Analysis
        The comparison, with the leaf that it is of.
    benchmark : BenchmarkSide
        The other side: benchmark tensors, or the dump of the run without fusion.
    unfused : GraphFile, optional
        The graph of the other run; None for benchmark tensors.
    progress : callable, optional
        Hears of the ops that are done.

    Raises
    ------
    UsageError
        The graph has no op that a pass made.
    """
    leaf = analysis.leaf
    if leaf is None or leaf.graph is None:
        raise UsageError("diagnose_verdict.blame_without_graph")
    file = leaf.graph.file
    fused = _fused_ops(file)
    agreements = {op.op_name: op for op in analysis.ops}
    values = RunValues(leaf.leaf, file, benchmark)
    agreements |= {
        op.name: _with_inputs(op, agreements, values, analysis.threshold) for op in fused if op.name in agreements
    }
    blamer = _Blamer(
        alone=Recomputer(values, unfused),
        also_other=_passes_by_original(unfused),
        first_off=min((op.index for op in analysis.ops if op.outputs_agree is False), default=-1),
    )
    judged = blamer.blame_all(fused, agreements, counting(progress, "ops"))
    passes = _by_pass(judged)
    off, unavoidable = smallest_switches(passes)
    nameless = tuple(op.name for op in Fusion(file).nameless)
    return Blame(passes=passes, switch_off=off, unavoidable=unavoidable, nameless=nameless)


def _fused_ops(file: GraphFile) -> list[Op]:
    """Return the ops of a graph that passes made. UsageError where there is none, or the graph names no pass."""
    fused = [op for op in file.ops if op.pass_names or is_fused(op)]
    if not fused:
        raise UsageError.of(file.path, "diagnose_verdict.blame_no_pass")
    if not any(op.pass_names for op in fused):
        raise UsageError.of(file.path, "diagnose_verdict.blame_unnamed_pass", ops=len(fused))
    return fused


def _with_inputs(op: Op, agreements: Mapping[str, OpAgreement], values: RunValues, threshold: float) -> OpAgreement:
    """Return the op with the outputs that feed it in place of its inputs, where these were not dumped.

    Parameters need not be there; another one that is missing leaves its inputs unknown.
    """
    agreement = agreements[op.name]
    if agreement.inputs:
        return agreement
    rows: list[Row] = []
    for number, edge in enumerate(op.inputs):
        if edge is None:
            continue
        producer = values.origins.producer(op, edge)
        root = values.source(op, number)
        made = agreements.get(producer.name) if producer is not None else None
        row = next((row for row in made.outputs if row.slot == f"output:{edge.index}"), None) if made else None
        if row is not None:
            rows.append(row)
        elif root is None or values.parameter_of(root) is None:
            return agreement
    return replace(agreement, inputs=tuple(rows), inputs_agree=all_agree(rows, threshold))


def _passes_by_original(unfused: GraphFile | None) -> dict[str, set[str]]:
    """Return the passes that made an op of the other run, by the script's ops it stands for."""
    passes: dict[str, set[str]] = {}
    for op in unfused.ops if unfused is not None else ():
        for name in op.original_names or ():
            passes.setdefault(name, set()).update(op.pass_names)
    return passes


# --- single ops -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Blamer:
    alone: Recomputer
    also_other: Mapping[str, set[str]]
    #: Number of the first op whose output does not agree.
    first_off: int
    #: Chains of ops whose formula fits neither side where the sides agree: a kernel computes them otherwise.
    distrusted: set[str] = field(default_factory=set)

    def blame_all(
        self, fused: Sequence[Op], agreements: Mapping[str, OpAgreement], progress: Progress | None
    ) -> list[OpBlame]:
        """Return the verdicts on fused ops; those judged before their formula was seen to fail are judged again."""
        judged: list[OpBlame] = []
        for op in fused:
            if progress is not None:
                progress(len(judged), len(fused))
            judged.append(self.blame(op, agreements.get(op.name)))
        for number, op in enumerate(fused):
            recomputed = judged[number].recomputed
            if recomputed is not None and recomputed.how in self.distrusted:
                judged[number] = self.blame(op, agreements.get(op.name))
        return judged

    def blame(self, op: Op, agreement: OpAgreement | None) -> OpBlame:
        """Return the verdict on one fused op."""
        result = OpBlame(
            op_name=op.name,
            op_type=op.type,
            passes=op.pass_names or (NO_PASS,),
            originals=op.original_names or (op.name,),
            index=agreement.index if agreement is not None else -1,
            verdict=BlameVerdict.NOT_JUDGED,
            reason=Message("screen.view.blame.not_dumped"),
        )
        own = self.alone.examine(op)
        if agreement is None or (not own.is_dumped and own.state not in (State.RIGHT, State.WRONG)):
            return result
        result = replace(result, recomputed=_recomputed(own), beyond_range=_beyond_range(own, agreement))
        outputs = [row for row in agreement.outputs if row.cosine is not None]
        if outputs:
            worst = max(outputs, key=_error)
            result = replace(result, output_error=_error(worst), cosine=worst.cosine)
        inputs = [row for row in agreement.inputs if row.cosine is not None]
        if inputs:
            result = replace(result, input_error=max(map(_error, inputs)))
        recomputed = result.recomputed
        if recomputed is None:
            return self._by_comparison(replace(result, not_recomputed=own.reason), agreement)
        if recomputed.how not in self.distrusted and _fits_neither(own, result, agreement):
            shared = self._shared(result)
            if shared:  # they may be wrong in both, which is no reason to distrust the formula
                how = Message("screen.view.blame.recomputed", formula=recomputed.how, borrowed=())
                reason = Message("screen.view.blame.off_in_both_runs", how=how, error=recomputed.error, shared=shared)
                return replace(result, verdict=BlameVerdict.SUSPICIOUS, reason=reason)
            self.distrusted.add(recomputed.how)
        if recomputed.how in self.distrusted:
            distrusted = Message("screen.view.blame.formula_distrusted", ops=recomputed.how)
            return self._by_comparison(replace(result, recomputed=None, not_recomputed=distrusted), agreement)
        if own.is_confirmed is False:
            # The two do not refute the formula together; fed the same and yet apart, each is wrong in its own way.
            is_wrong = bool(agreement.inputs_agree) and agreement.outputs_agree is False
            own = replace(own, reason=None, state=State.WRONG if is_wrong else State.DOUBTFUL)
        elif own.state is State.DOUBTFUL and (own.reason or not own.finite_inputs):
            why = own.reason or Message("screen.view.blame.inputs_not_finite")
            return self._by_comparison(replace(result, recomputed=None, not_recomputed=why), agreement)
        return _by_recomputing(result, own, agreement)

    def _shared(self, op: OpBlame) -> tuple[str, ...]:
        """Return the passes that made the op in both runs."""
        both = set(op.passes).intersection(*(self.also_other.get(name, set()) for name in op.originals))
        return tuple(sorted(both))

    def _by_comparison(self, op: OpBlame, agreement: OpAgreement) -> OpBlame:
        verdict, why = self._compared(op, agreement)
        reason = Message("screen.view.blame.not_recomputed", why=why, reason=op.not_recomputed or "")
        return replace(op, verdict=verdict, reason=reason)

    def _compared(self, op: OpBlame, agreement: OpAgreement) -> tuple[BlameVerdict, Message | str]:
        """Return the verdict by the comparison alone, and what it rests on."""

        def because(sign: str, **fields: object) -> Message:
            figures = {"output": op.output_error, "inputs": op.input_error}
            return Message(f"screen.view.blame.sign.{sign}", **figures, **fields)

        shared, allowed = self._shared(op), _OWN * (op.input_error or 0.0)
        if op.output_error is None:
            if any(row.status == Status.STATISTICS_ONLY for row in agreement.outputs):
                return BlameVerdict.NOT_JUDGED, because("only_statistics")
            reason = next((row.reason for row in agreement.outputs if row.reason), "")
            return BlameVerdict.NOT_JUDGED, reason or because("not_compared")
        if shared:
            return BlameVerdict.NOT_JUDGED, because("in_both_runs", shared=shared)
        if agreement.outputs_agree:
            if op.output_error > _NOTABLE and op.input_error is None:
                return BlameVerdict.NOT_JUDGED, because("off_inputs_unknown")
            if op.output_error > _NOTABLE and op.output_error > allowed:
                return BlameVerdict.SUSPICIOUS, because("not_below")
            return BlameVerdict.CLEAN, because("agrees")
        if agreement.is_cancelled:
            return BlameVerdict.NOT_JUDGED, because("cancelled")
        if agreement.inputs_agree is None and self.first_off < agreement.index:
            return BlameVerdict.NOT_JUDGED, because("behind_others")
        if agreement.inputs_agree is None:
            return BlameVerdict.SUSPICIOUS, because("no_input_compared")
        if agreement.inputs_agree:
            if op.output_error <= allowed:
                return BlameVerdict.SUSPICIOUS, because("as_far_as_inputs")
            if agreement.unknown_inputs:
                return BlameVerdict.SUSPICIOUS, because("one_input_unknown", slot=agreement.unknown_inputs[0].slot)
            return BlameVerdict.GUILTY, because("inputs_agree")
        if op.output_error > allowed:
            return BlameVerdict.SUSPICIOUS, because("more_than_inputs")
        return BlameVerdict.NOT_JUDGED, because("may_be_inherited")


def _fits_neither(own: OpResult, op: OpBlame, agreement: OpAgreement) -> bool:
    """Return whether both sides have the same inputs and outputs and only the recomputed output differs."""
    if own.state is State.RIGHT:
        return False
    agree = bool(agreement.inputs_agree and agreement.outputs_agree) and not agreement.unknown_inputs
    return agree and own.own > _OWN * (op.output_error or 0.0)


def _by_recomputing(op: OpBlame, judged: OpResult, agreement: OpAgreement) -> OpBlame:
    own = op.recomputed
    assert own is not None
    other = own.benchmark_error
    figures = {
        "how": Message("screen.view.blame.recomputed", formula=own.how, borrowed=own.borrowed[:_NAMED]),
        "error": own.error,
    }
    if own.mismatches:
        reason = Message("screen.view.blame.not_finite", count=own.mismatches, **figures)
        return replace(op, verdict=BlameVerdict.GUILTY, reason=reason)
    if judged.state is State.WRONG:
        shown_other = other if agreement.inputs_agree else None
        reason = Message("screen.view.blame.wrong", rounding=own.rounding, other=shown_other, **figures)
        return replace(op, verdict=BlameVerdict.GUILTY, reason=reason)
    if judged.state is State.DOUBTFUL:
        shown_other = other if judged.is_confirmed is False else None
        reason = Message("screen.view.blame.doubtful", rounding=own.rounding, other=shown_other, **figures)
        return replace(op, verdict=BlameVerdict.SUSPICIOUS, reason=reason)
    differs, is_other_wrong = agreement.outputs_agree is False, False
    if differs and agreement.inputs_agree and other is not None:
        is_other_wrong = other > _OWN * max(own.error, own.rounding)
    reason = Message(
        "screen.view.blame.right", range=op.beyond_range, other=other if is_other_wrong else None,
        inherited=differs and agreement.inputs_agree is False, **figures,
    )  # fmt: skip
    return replace(op, verdict=BlameVerdict.CLEAN, reason=reason)


def _beyond_range(judged: OpResult, agreement: OpAgreement) -> Message | None:
    """Return what became of results that the type of an output cannot hold; None where it holds them all."""
    over = judged.overflow
    if over is None:
        return None
    row = next((row for row in agreement.outputs if row.slot == f"output:{over.slot}"), None)
    npu = row.npu if row is not None else None
    return Message(
        "screen.view.blame.beyond", infinite=npu is not None and npu.inf_count > 0, elements=over.overflowed,
        size=over.size, largest=over.largest, dtype=over.dtype, limit=LIMIT.get(over.dtype),
    )  # fmt: skip


def _error(row: Row) -> float:
    """Return how far off a tensor is."""
    if row.mismatches:
        return inf
    if row.relative_euclidean_distance is not None and isfinite(row.relative_euclidean_distance):
        return row.relative_euclidean_distance
    return distance(row)


# --- passes -----------------------------------------------------------------------------------------------------------


def _by_pass(ops: Sequence[OpBlame]) -> tuple[PassBlame, ...]:
    by_name: dict[str, list[OpBlame]] = {}
    for op in ops:
        for name in op.passes:
            by_name.setdefault(name, []).append(op)
    passes = [_pass_blame(name, blamed_ops) for name, blamed_ops in by_name.items()]
    return tuple(sorted(passes, key=lambda blame: (ORDER.index(blame.verdict), -(blame.worst or 0.0), blame.name)))


def _pass_blame(name: str, ops: Sequence[OpBlame]) -> PassBlame:
    errors = [op.error for op in ops if op.verdict is not BlameVerdict.NOT_JUDGED and op.error is not None]
    verdicts = {op.verdict for op in ops}
    return PassBlame(
        name=name,
        verdict=next(verdict for verdict in _OF_A_PASS if verdict in verdicts),
        ops=tuple(ops),
        is_switchable=name != NO_PASS and is_switchable(name),
        worst=max(errors, default=None),
        median=median(errors) if errors else None,
    )


def smallest_switches(passes: Sequence[PassBlame]) -> tuple[tuple[str, ...], tuple[OpBlame, ...]]:
    """Return the fewest switchable passes that cover every guilty op, and the guilty ops that have none.

    Of sets of one size the one whose passes made the fewest ops that are right.
    """
    guilty = {op.op_name: op for item in passes for op in item.ops if op.verdict is BlameVerdict.GUILTY}
    clean = {item.name: item.count(BlameVerdict.CLEAN) for item in passes}
    switchable = {item.name for item in passes if item.is_switchable}
    choices = {name: switchable.intersection(op.passes) for name, op in guilty.items()}
    unavoidable = tuple(op for name, op in guilty.items() if not choices[name])
    required = [choice for choice in choices.values() if choice]
    candidates = sorted({name for choice in required for name in choice}, key=lambda name: (clean[name], name))
    if len(candidates) <= _EXACT:
        for size in range(len(candidates) + 1):
            fitting = [names for names in combinations(candidates, size) if all(set(names) & item for item in required)]
            if fitting:
                return min(fitting, key=lambda names: sum(clean[name] for name in names)), unavoidable
    chosen: list[str] = []
    while left := [item for item in required if not item & set(chosen)]:
        chosen.append(max(candidates, key=lambda name: (sum(name in item for item in left), -clean[name])))
    return tuple(chosen), unavoidable


def blame_compared(analysis: Analysis, progress: Progress | None = None) -> Blame:
    """Return `blame` against the other side of a comparison: benchmark tensors, or the run without fusion.

    UsageError for a result that was read from a file, and for two runs that were matched by name.
    """
    leaf = analysis.leaf
    if leaf is None:
        raise UsageError.of(analysis.path, "diagnose_verdict.blame_result_file")
    golden = leaf.golden if isinstance(leaf.golden, GoldenFiles) else find_golden(leaf.golden_root)
    if not isinstance(golden, Run):
        return blame(analysis, golden, progress=progress)
    if leaf.other_graph is None:
        raise UsageError("diagnose_verdict.blame_by_name")
    unfused = leaf.other_graph.file
    return blame(analysis, GraphDumps(golden.leaves[0], unfused), unfused, progress)
