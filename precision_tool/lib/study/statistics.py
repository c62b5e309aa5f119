"""Statistics first: what minimum, maximum, mean and norm of every tensor tell about many ranks and steps.

Evidence is of an op, a step and a rank, and typed (`EvidenceKind`). What decides, and where the bounds come from:

- NaN or Inf that an op puts out while all that it is fed is finite; values at the limit of a floating-point type.
- What a collective, or the update of a variable, puts out is the same on all replicas to the last digit.
- What an op is fed has the very numbers of what another put out before. Which one's is learned in the first two steps;
  where that ends, memory was changed in between.
- An all-reduce that adds up is linear: the means of what the ranks put in add up to the mean that comes out. This is
  only held against an all-reduce if most others of the step keep to it, as ranks that were not dumped would be missing.
- Norms, as logarithms, against a reference: the benchmark's, those of the last steps of all replicas, or those of the
  other replicas at the same step. What an op's inputs are off by is taken from what its output is off by (the norm of a
  product is off by no more than its factors are, to first order); what remains is evidence from `_FLOOR` (10 %) on. A
  population must also tell that it is no chance: the op's gain, output over inputs, is farther from the population's
  than Student's t allows one more value of a normal population of n with unknown mean and variance, at `_CHANCE` =
  1e-9 a tensor, as a study looks at some 1e8. The bound of the tail, P(T > t) < c ν^((ν-1)/2) t^-ν, is on the safe side
  for small n. Of logarithms with longer tails than a normal one, some in a million are beyond it; they are told as
  likely, never as certain. Tensors of fewer than 32 elements have no normal logarithm, and are left out. What all
  ranks have alike, variables above all, is one observation a step, not one a rank.

On clean trainings none of these accuses (tests/study/test_study_statistics.py). What they cannot see is a fault that
changes no norm by 10 %, and without a benchmark one that is there from the first step on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import exp, inf, lgamma, log, pi

import numpy as np
import numpy.typing as npt

from precision_tool.lib.study.evidence import CERTAIN, Evidence, EvidenceKind, evidence_of
from precision_tool.lib.study.exact import changed, disagreeing, edges, held, sums
from precision_tool.lib.study.leaf_statistics import (
    ELEMENTS,
    Doubles,
    LeafStatistics,
    TensorNames,
    Wholes,
    aligned,
)
from precision_tool.lib.study.votes import is_communication

#: What feeds what is learned in so many steps: in the first alone, two variables may have begun alike.
_LEARNING = 2
#: What is unexplained of the logarithm of a norm is evidence from here on: 10 %.
_FLOOR = 0.1
_CHANCE = 1e-9
#: Populations with fewer members tell nothing of norms.
_MEMBERS = 6
#: Degrees of freedom behind which the bound of the tail no longer falls.
_FREEDOM = 24
#: So many steps before a step are its population, as a training changes slowly; more where ranks have all alike.
_STEPS, _SHARED_STEPS = 4, 16
#: Logarithms of norms that are nearer than this are the same.
_SAME = 1e-9
#: What stands for the logarithm of a norm of zero.
_ZERO = -80.0
#: Leaves that have so many ops in common run the same network.
_SAME_NETWORK = 0.9

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """All evidence against an op at a step: `ranks` it is of, `right` those that run the op too and have none.

    `unknown` run it too, and nothing tells of them: all that speaks against it is a benchmark, which they have not.
    """

    step: int
    op: str
    type: str
    number: int
    kinds: tuple[EvidenceKind, ...]
    ranks: tuple[int, ...]
    right: tuple[int, ...]
    unknown: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = field(repr=False)

    @property
    def is_certain(self) -> bool:
        """Whether any of it holds by itself."""
        return any(kind in CERTAIN for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A rank of a step: the ops that it runs, and whether it has a benchmark."""

    rank: int
    ops: frozenset[str]
    has_benchmark: bool = False


@dataclass(slots=True)
class _Moments:
    """Count, sum and sum of squares of the logarithms of norms, by tensor."""

    count: Doubles
    total: Doubles
    squares: Doubles

    @classmethod
    def of(cls, logs: Doubles) -> _Moments:
        """Of one leaf, NaN left out."""
        known = np.isfinite(logs)
        clean = np.where(known, logs, 0.0)
        return cls(known.astype(np.float64), clean, np.square(clean))

    def plus(self, other: _Moments, sign: float = 1.0) -> _Moments:
        """With those of `other` added, or taken away."""
        return _Moments(
            self.count + sign * other.count, self.total + sign * other.total, self.squares + sign * other.squares
        )

    def mean_and_bound(self) -> tuple[Doubles, Doubles]:
        """The mean, and how far from it one more value may be; NaN and inf of populations that are too small."""
        enough = self.count >= _MEMBERS
        count = np.where(enough, self.count, 2.0)
        mean = self.total / count
        variance = np.maximum(self.squares / count - np.square(mean), 0.0) * count / (count - 1)
        bound = _STUDENT[np.minimum(count - 1, _FREEDOM).astype(np.intp)] * np.sqrt(variance * (1 + 1 / count))
        return np.where(enough, mean, np.nan), np.where(enough, np.maximum(bound, _FLOOR), inf)


def _student_of(nu: float) -> float:
    constant = lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * log(nu * pi)
    return exp((constant + (nu + 1) / 2 * log(nu) - log(nu) - log(_CHANCE / 2)) / nu)


#: By degrees of freedom: t that is exceeded, up or down, with a probability below `_CHANCE`, by the bound of the tail.
_STUDENT = np.array([inf, *(_student_of(nu) for nu in range(1, _FREEDOM + 1))])


@dataclass(slots=True)
class _Population:
    """Logarithms of norms, and of gains, of many leaves."""

    norms: _Moments
    gains: _Moments

    @classmethod
    def of(cls, logs: Doubles, names: TensorNames, but: Flags) -> _Population:
        """Of one leaf, but for some tensors."""
        return cls(*(_Moments.of(np.where(but, np.nan, values)) for values in (logs, _gains(logs, names))))

    def reference(self) -> _Reference:
        """What one more leaf is held against."""
        return _Reference(self.norms.mean_and_bound()[0], *self.gains.mean_and_bound())

    def plus(self, other: _Population, sign: float = 1.0) -> _Population:
        """With those of `other` added, or taken away."""
        return _Population(self.norms.plus(other.norms, sign), self.gains.plus(other.gains, sign))


@dataclass(slots=True)
class _Reference:
    """Logarithms of norms as expected; of a population its gains too, and how far from them is no chance."""

    norms: Doubles
    gains: Doubles | None = None
    bound: Doubles | None = None


@dataclass(slots=True)
class _Network:
    """Leaves that run the same network, of one step after the other."""

    names: TensorNames
    populations: list[_Population] = field(default_factory=list)
    #: Of what all ranks of a step have alike, once a step.
    shared: list[_Population] = field(default_factory=list)
    #: Tensors that were at the limit of their type, or infinite, at an earlier step.
    limited: Flags | None = None
    #: Inputs, and the outputs that they are; None before the first step.
    edges: tuple[Wholes, Wholes] | None = None
    steps: int = 0

    def past(self) -> _Reference | None:
        """What the last steps have; None before the first."""
        kept = [*self.populations, *self.shared]
        return reduce(_Population.plus, kept).reference() if kept else None

    def add(self, now: _Population, shared: _Population) -> None:
        """One more step."""
        self.populations = [*self.populations[1 - _STEPS :], now]
        self.shared = [*self.shared[1 - _SHARED_STEPS :], shared]


class StatisticsJudge:
    """Takes the leaves of a run step by step and gives the evidence in each.

    Memory is that of the leaves of a step; of earlier ones it keeps a few numbers a tensor.
    """

    def __init__(self) -> None:
        self._networks: list[_Network] = []

    def step(
        self, leaves: Sequence[LeafStatistics], benchmark: Mapping[int, LeafStatistics] | None = None
    ) -> list[Evidence]:
        """The evidence in all ranks of a step, which is behind those of earlier calls; in the order of execution.

        `benchmark` has by rank what the benchmark has of the same tensors, as if it had been dumped as statistics.
        """
        groups: dict[int, list[LeafStatistics]] = {}
        for leaf in leaves:
            network = self._network_of(leaf)
            groups.setdefault(network, []).append(aligned(leaf, self._networks[network].names))
        found: list[Evidence] = []
        for number, group in groups.items():
            found += self._judge(self._networks[number], group, benchmark or {})
        return sorted(found, key=lambda one: (one.number, one.rank, one.kind))

    def admitted(self, leaf: LeafStatistics) -> LeafStatistics:
        """The leaf with the names of its network: what many leaves have in common is in memory once."""
        return aligned(leaf, self._networks[self._network_of(leaf)].names)

    def _network_of(self, leaf: LeafStatistics) -> int:
        ops = set(leaf.names.ops)
        for number, known in enumerate(self._networks):
            if leaf.names is known.names or leaf.names.ops == known.names.ops:
                return number
            if len(ops & set(known.names.ops)) >= _SAME_NETWORK * max(len(ops), len(known.names.ops)):
                return number
        self._networks.append(_Network(leaf.names))
        return len(self._networks) - 1

    def _judge(
        self, network: _Network, group: Sequence[LeafStatistics], benchmark: Mapping[int, LeafStatistics]
    ) -> Iterator[Evidence]:
        names = network.names
        if not len(names.op_of):
            return
        yield from disagreeing(group)
        yield from sums(group)
        if network.steps < _LEARNING:
            network.edges = held(edges(group) if network.edges is None else network.edges, group)
        if network.edges is not None and network.steps:
            for leaf in group:
                yield from changed(leaf, network.edges)
        limited = np.array([_limited(leaf) for leaf in group])
        yield from self._not_finite(network, group, limited)
        shared = _shared_of(group)
        now = reduce(_Population.plus, (_Population.of(_logs(leaf), names, shared) for leaf in group))
        past = network.past()
        for leaf in group:  # one after the other: all logarithms together would take much memory
            logs = _logs(leaf)
            if past is not None:
                yield from _off(EvidenceKind.JUMP, leaf, logs, past)
            if len(group) > _MEMBERS:
                others = now.plus(_Population.of(logs, names, shared), -1.0)
                yield from _off(EvidenceKind.OUTLIER, leaf, logs, others.reference())
            golden = benchmark.get(leaf.rank)
            if golden is not None:
                expected = _logs(aligned(golden, names, of_one_size=False))
                yield from _off(EvidenceKind.BENCHMARK, leaf, logs, _Reference(expected))
        network.add(now, _Population.of(_logs(group[0]), names, ~shared))
        seen = np.asarray(limited.any(axis=0))
        network.limited = seen if network.limited is None else network.limited | seen
        network.steps += 1

    def _not_finite(self, network: _Network, group: Sequence[LeafStatistics], limited: Flags) -> Iterator[Evidence]:
        """NaN that an op made; Inf and values at the limit that neither an earlier step nor all ranks have."""
        names = network.names
        usual = np.asarray(limited.all(axis=0) if network.limited is None else network.limited)
        fed_of = [
            _by_op(names, (leaf.nans > 0) | limit, of_inputs=True) for leaf, limit in zip(group, limited, strict=True)
        ]
        # What any rank feeds into communication may come out on all of them.
        communicates = np.array([is_communication(op_type) for op_type in names.types], bool)
        fed_of_any = np.array(fed_of).any(axis=0) & communicates
        for leaf, at_limit, fed in zip(group, limited, (one | fed_of_any for one in fed_of), strict=True):
            own = names.is_output & ~fed[names.op_of]
            for number in np.flatnonzero(own & (leaf.nans > 0)).tolist():
                yield evidence_of(EvidenceKind.NAN, leaf, number, float(leaf.nans[number]), 0.0)
            for number in np.flatnonzero(own & at_limit & ~usual & (leaf.nans == 0)).tolist():
                if leaf.infs[number]:
                    yield evidence_of(EvidenceKind.INF, leaf, number, float(leaf.infs[number]), 0.0)
                else:
                    limit = float(names.limits[number])
                    yield evidence_of(EvidenceKind.AT_LIMIT, leaf, number, float(leaf.largest[number]), limit)


def _limited(leaf: LeafStatistics) -> Flags:
    with np.errstate(invalid="ignore"):
        flags: Flags = (leaf.infs > 0) | (leaf.largest >= leaf.names.limits)
    return flags


def _logs(leaf: LeafStatistics) -> Doubles:
    """Logarithms of the norms; NaN of tensors that tell nothing: small ones, and those with NaN or Inf."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.maximum(np.log(leaf.sizes), _ZERO)
    dumb = (leaf.names.counts < ELEMENTS) | (leaf.nans > 0) | (leaf.infs > 0)
    return np.where(dumb, np.nan, logs)


def _shared_of(group: Sequence[LeafStatistics]) -> Flags:
    """Tensors of which all ranks have the same: so many ranks are one observation, which is no population.

    Of one rank alone that cannot be seen; there it is what communication puts out.
    """
    names = group[0].names
    shared: Flags = names.is_output & np.array([is_communication(one) for one in names.types], bool)[names.op_of]
    if len(group) > 1:
        low = high = _logs(group[0])
        for leaf in group[1:]:
            logs = _logs(leaf)
            low, high = np.fmin(low, logs), np.fmax(high, logs)
        with np.errstate(invalid="ignore"):
            shared |= ~(high - low >= _SAME)
    return shared


def _by_op(names: TensorNames, flags: Flags, *, of_inputs: bool) -> Flags:
    """Whether any input, or any output, of each op has its flag set."""
    chosen = flags & (names.is_output != of_inputs)
    result = np.zeros(len(names.ops), bool)
    result[names.op_of[chosen]] = True
    return result


def _gains(logs: Doubles, names: TensorNames) -> Doubles:
    """What each output has over all inputs of its op together; NaN for inputs."""
    gains: Doubles = np.where(names.is_output, logs - _of_inputs(logs, names), np.nan)
    return gains


def _of_inputs(values: Doubles, names: TensorNames) -> Doubles:
    """The sum of what is known of the inputs of each tensor's op."""
    inputs = ~names.is_output
    weights = np.nan_to_num(values[inputs], nan=0.0)
    by_op: Doubles = np.bincount(names.op_of[inputs], weights=weights, minlength=len(names.ops)).astype(np.float64)
    return by_op[names.op_of]


def _off(kind: EvidenceKind, leaf: LeafStatistics, logs: Doubles, reference: _Reference) -> Iterator[Evidence]:
    """Outputs that are farther off than what their op was fed, and the bound, explain."""
    names = leaf.names
    expected = reference.norms
    bound = np.full(len(logs), _FLOOR) if reference.bound is None else reference.bound
    off = np.abs(logs - expected)
    own = off - _of_inputs(off, names)
    spoiled = _by_op(names, leaf.nans + leaf.infs > 0, of_inputs=True)
    with np.errstate(invalid="ignore"):
        wrong = names.is_output & (own > _FLOOR) & ~spoiled[names.op_of]
        if reference.gains is not None:
            wrong &= np.abs(_gains(logs, names) - reference.gains) > bound
    for number in np.flatnonzero(wrong).tolist():
        yield evidence_of(
            kind, leaf, number, exp(logs[number]), exp(expected[number]), float(own[number]), float(bound[number])
        )


def suspicions(evidence: Iterable[Evidence], looked_at: Mapping[int, Sequence[LookedAt]]) -> list[Suspicion]:
    """The evidence by step and op, the earliest first. `looked_at` are the ranks that have each step."""
    groups: dict[tuple[int, int, str], list[Evidence]] = {}
    for one in evidence:
        groups.setdefault((one.step, one.number, one.op), []).append(one)
    found = []
    for (step, number, op), of_op in sorted(groups.items()):
        wrong = {one.rank for one in of_op}
        kinds = {one.kind for one in of_op}
        others = [one for one in looked_at.get(step, ()) if one.rank not in wrong and op in one.ops]
        right = {one.rank for one in others if one.has_benchmark or kinds != {EvidenceKind.BENCHMARK}}
        found.append(
            Suspicion(
                step=step,
                op=op,
                type=of_op[0].type,
                number=number,
                kinds=tuple(sorted(kinds)),
                ranks=tuple(sorted(wrong)),
                right=tuple(sorted(right)),
                unknown=tuple(sorted({one.rank for one in others} - right)),
                evidence=tuple(of_op),
            )
        )
    return found
