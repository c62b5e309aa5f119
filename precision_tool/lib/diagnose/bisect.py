"""Finds a minimal set of changes with which a check succeeds: an algorithm over a callable.

First divide and conquer (QuickXplain, Junker 2004), which needs about 2 k log2(n / k) runs for k of n changes as long
as more changes never hurt. It halves by weight, so that what is suspected is tried first and costs the fewest runs.
What it finds is checked: if it does not succeed, which only changes that interact can bring about, delta debugging
(Zeller's ddmin) takes over, which needs no such assumption. Either way no change of the result can be left out.

A check that gives both answers for one set is asked again by a sequential test (Wald 1945): until one answer leads by
so many that a wrong one is as improbable as `CONFIDENCE` asks, if at most a given share of its answers is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, log, sqrt

#: The changes that are made, and whether the check then succeeds.
Check = Callable[[frozenset[str]], bool]
#: One answer of the check.
Answer = tuple[frozenset[str], bool]

#: How probable the result of a check that gives wrong answers is to be right, at least.
CONFIDENCE = 0.99
#: By how many answers one leads before the search follows it; what the result rests on is asked for more.
_LEAD = 2
#: On how many answers a result rests before it is known: both ends and itself.
_RESTS_ON = 3
#: The same where answers do not fit together.
_IN_DOUBT = 1000
#: Standard deviations by which more answers differ than can be by the share that is assumed.
_TOO_MANY = 3.0
#: Guesses at the result from which the runs that remain are reckoned.
_GUESSES = 16


class Outcome(StrEnum):
    """Outcome of the search."""

    FOUND = "found"
    #: It succeeds as it is.
    NOT_NEEDED = "not_needed"
    #: It fails with every change as well.
    NOT_FIXED = "not_fixed"
    #: It gave different answers for one set, more often than was assumed.
    FLAKY = "flaky"
    #: It took as many runs as it may before it was sure.
    OUT_OF_RUNS = "out_of_runs"


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The result: `changes` is the minimal set; out of runs, the smallest so far with which the check succeeded.

    Of a flaky check it is the set for which it gave both answers.
    """

    outcome: Outcome
    changes: frozenset[str] = frozenset()
    #: Sets that were asked for, each once however often it was run.
    tries: int = 0
    #: True if changes interact: more of them were seen to break what fewer had mended.
    interact: bool = False
    #: How probable the result is to be right if no more than `rate` of the answers are wrong; None where all agree.
    confidence: float | None = None
    rate: float = 0.0
    #: Answers that the majority for the same set contradicts.
    outvoted: int = 0


@dataclass(frozen=True, kw_only=True)
class Try:
    """One run of the check: the changes made, whether it succeeded, its exit code (None: out of time)."""

    changes: tuple[str, ...]
    succeeded: bool
    code: int | None
    seconds: float
    log: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and how: the changes, what is preferred first, and how the check is asked.

    Parameters
    ----------
    names : sequence of str
        The changes to search. Of two that do the same, the earlier is preferred.
    reserve : sequence of str
        Changes that are searched as well if all of `names` do not help.
    weights : mapping, optional
        How probable each change is to be needed, relative to the others (default 1).
    repeat : int
        How often each set is run; the answers have to agree.
    rate : float
        The share of the check's answers that may be wrong, below 0.5; 0 for none: then two different answers for a
        set end the search, unless there is a rate to `assume` from there on.
    assume : float
        See `rate`.
    most : int, optional
        Runs that it may take.
    """

    names: Sequence[str]
    reserve: Sequence[str] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    repeat: int = 1
    rate: float = 0.0
    assume: float = 0.0
    most: int | None = None

    def run(self, check: Check, earlier: Iterable[Answer] = ()) -> Bisection:
        """Search a minimal set of changes with which the check succeeds.

        The answers that the result rests on are asked for twice.

        Parameters
        ----------
        check : callable
            Runs once and returns whether it succeeds with these changes.
        earlier : iterable of (frozenset, bool)
            Answers of an earlier attempt, in their order: these runs are not repeated.

        Returns
        -------
        Bisection
            What the search came to.
        """
        known: dict[frozenset[str], list[bool]] = {}
        for changes, answer in earlier:
            known.setdefault(changes, []).append(answer)

        def replayed(changes: frozenset[str]) -> bool:  # in their order: the search is the same as without a break
            return known[changes].pop(0) if known.get(changes) else check(changes)

        asker = _Asker(self, replayed)
        while True:
            try:
                outcome, changes = _search(self, asker)
            except _ChangedError:
                continue
            except FlakyCheckError as error:
                outcome, changes = Outcome.FLAKY, error.changes
            except _OutOfRunsError:
                outcome, changes = Outcome.OUT_OF_RUNS, asker.best()
            return Bisection(
                outcome=outcome, changes=changes, tries=len(asker.votes), interact=asker.interacts,
                confidence=asker.confidence if outcome is Outcome.FOUND else None, rate=asker.rate,
                outvoted=asker.outvoted,
            )  # fmt: skip

    def remaining(self, earlier: Sequence[Answer]) -> int | None:
        """Return about how many runs are left after these answers; None where the changes interact.

        That is the mean over guesses at the result that agree with the answers, drawn by the weights.
        """
        draw = random.Random(0)  # the same figure each time
        answers = [(changes, 2 * earlier.count((changes, True)) > sum(changes == other for other, _ in earlier))
                   for changes in dict.fromkeys(changes for changes, _ in earlier)]  # fmt: skip
        guesses = (self._guess(answers, draw) for _ in range(_GUESSES))
        runs = [self._runs_left(guess, earlier) for guess in guesses if guess is not None]
        return ceil(sum(runs) / len(runs)) if runs else None

    def _guess(self, earlier: Sequence[Answer], draw: random.Random) -> frozenset[str] | None:
        """Return changes that would explain the answers, if more of them never hurt; None where none do."""
        names = [*self.names, *self.reserve]
        allowed = set(names).intersection(*(changes for changes, answer in earlier if answer))
        if not earlier:
            allowed = set(self.names)
        guess: set[str] = set()
        failed = [frozenset[str](), *(changes for changes, answer in earlier if not answer)]
        for changes in sorted(failed, key=len, reverse=True):  # what is outside of the largest is so of its parts
            if guess <= changes:
                rest = [name for name in names if name in allowed and name not in changes]
                if not rest:
                    return None
                guess.add(draw.choices(rest, [self.weights.get(name, 1.0) for name in rest])[0])
        return frozenset(guess)

    def _runs_left(self, guess: frozenset[str], earlier: Sequence[Answer]) -> float:
        runs = 0

        def check(changes: frozenset[str]) -> bool:
            nonlocal runs
            runs += 1
            return guess <= changes

        search = Search(names=self.names, reserve=self.reserve, weights=self.weights, repeat=self.repeat,
                        rate=self.rate, assume=self.assume)  # fmt: skip
        search.run(check, earlier)
        rate = self.rate or (self.assume if _wavers(earlier) else 0.0)
        return runs / (1 - 2 * rate)


def most_runs(count: int, rate: float = 0.0, repeat: int = 1) -> int:
    """Return how many runs suffice for `count` changes whichever of them are needed, if more never hurt."""
    repeats = _lead(rate, _RESTS_ON) / (1 - 2 * rate) if rate else 1.0
    return ceil((4 * count + 20) * repeats * repeat)


def _lead(rate: float, sets: int) -> int:
    """Return by how many answers one leads, for all of these sets to be answered right with `CONFIDENCE`."""
    return max(_LEAD, ceil(log(sets / (1 - CONFIDENCE) - 1) / log((1 - rate) / rate) - 1e-9))


def _wavers(answers: Iterable[Answer]) -> bool:
    """Return whether one set has both answers."""
    return any((changes, not answer) in answers for changes, answer in answers)


class FlakyCheckError(Exception):
    """The check answers differently for one set."""

    def __init__(self, changes: frozenset[str]) -> None:
        super().__init__("the check gives different answers")
        self.changes = changes


class _ChangedError(Exception):
    """An answer that the search followed turned out to be wrong: it is searched again with what is known now."""


class _EnoughError(Exception):
    """These changes suffice: what else there is need not be searched."""

    def __init__(self, changes: frozenset[str]) -> None:
        super().__init__("enough")
        self.changes = changes


class _OutOfRunsError(Exception):
    """It took as many runs as it may."""


@dataclass
class _Asker:
    """Asks the check; what contradicts an earlier answer is asked again before it is believed."""

    search: Search
    check: Check
    votes: dict[frozenset[str], list[bool]] = field(default_factory=dict)
    #: The answers that the search follows, and the sets of which the answer is sure.
    answers: dict[frozenset[str], bool] = field(default_factory=dict)
    settled: set[frozenset[str]] = field(default_factory=set)
    #: On how many answers the result rests.
    rests_on: int = _RESTS_ON
    is_delta: bool = False
    confidence: float | None = None
    runs: int = 0

    def __post_init__(self) -> None:
        self.rate = self.search.rate

    def ask(self, changes: frozenset[str]) -> bool:
        """Return whether the check succeeds with these changes."""
        if changes not in self.answers:
            self.answers[changes] = answer = self._voted(changes, sure=False)
            others = [other for other in self.answers if self._contradict(changes, answer, other)]
            if others:
                self.confirm(changes)
                if self.rate:
                    self.confirm(others[0])
        return self.answers[changes]

    def _contradict(self, changes: frozenset[str], answer: bool, other: frozenset[str]) -> bool:
        """Return whether fewer changes succeeded and more fail."""
        fewer, more = (changes, other) if answer else (other, changes)
        return self.answers[other] != answer and fewer < more

    def confirm(self, changes: frozenset[str]) -> bool:
        """Ask for a set until its answer is one that a result may rest on."""
        if changes not in self.settled:
            answer = self._voted(changes, sure=True)
            if answer != self.answers.get(changes, answer):
                self.answers.clear()
                raise _ChangedError
            self.settled.add(changes)
            self.answers[changes] = answer
        return self.answers[changes]

    def _voted(self, changes: frozenset[str], *, sure: bool) -> bool:
        """Ask as often as it takes for one answer to lead."""
        votes = self.votes.setdefault(changes, [])
        while True:
            lead = votes.count(True) - votes.count(False)
            if not self.rate:
                needed = self.search.repeat * (2 if sure else 1)
                if votes and abs(lead) < len(votes):
                    self._waver(changes)
            else:
                needed = max(_lead(self.rate, self.rests_on) if sure else _LEAD, self.search.repeat)
                self._check_rate(changes)
            if abs(lead) >= needed:
                return lead > 0
            if self.search.most is not None and self.runs >= self.search.most:
                raise _OutOfRunsError
            votes.append(self.check(changes))
            self.runs += 1

    def _waver(self, changes: frozenset[str]) -> None:
        """Go on with the share of wrong answers that is to be assumed then."""
        if not self.search.assume:
            raise FlakyCheckError(changes)
        self.rate = self.search.assume
        self.answers.clear()
        self.settled.clear()
        raise _ChangedError

    @property
    def interacts(self) -> bool:
        """True if more changes were seen to break what fewer had mended."""
        right, wrong = (
            [changes for changes, votes in self.votes.items() if (votes.count(True) > votes.count(False)) is answer]
            for answer in (True, False)
        )
        return self.is_delta or any(fewer < more for fewer in right for more in wrong)

    @property
    def outvoted(self) -> int:
        """Answers that the majority for the same set contradicts."""
        return sum(min(votes.count(True), votes.count(False)) for votes in self.votes.values())

    def _check_rate(self, changes: frozenset[str]) -> None:
        """Raise FlakyCheckError where more answers are contradicted than can be by the rate."""
        usual = self.rate * self.runs
        if self.outvoted > usual + _TOO_MANY * sqrt(usual * (1 - self.rate)) + 1:
            raise FlakyCheckError(changes)

    def doubt(self, changes: frozenset[str]) -> None:
        """Make sure of answers by which these changes suffice, where they do not: rather than that changes interact,
        one of them may be wrong.
        """
        if self.rate and not (self.ask(changes) and self.confirm(changes)):
            more = sorted((more for more, answer in self.answers.items() if answer and more > changes), key=len)
            self.make_sure([changes, *more], _IN_DOUBT)

    def make_sure(self, sets: Sequence[frozenset[str]], among: int) -> None:
        """Ask for sets until all of so many answers are right with `CONFIDENCE`."""
        if self.rate:
            self.rests_on = among
            self.settled.clear()
        for changes in sets:
            self.confirm(changes)

    def rest_on(self, sets: Sequence[frozenset[str]]) -> None:
        """Make sure of the answers that a result rests on."""
        self.make_sure(sets, len(self.votes))  # each set that was asked for might have become the result
        if self.rate:
            lead = _lead(self.rate, self.rests_on)
            self.confidence = 1 - self.rests_on / (1 + ((1 - self.rate) / self.rate) ** lead)

    def best(self) -> frozenset[str]:
        """Return the smallest set with which the check succeeds, as far as is known."""
        right = [changes for changes, votes in self.votes.items() if votes.count(True) > votes.count(False)]
        return min(right, key=lambda changes: (len(changes), sorted(changes)), default=frozenset())


def _search(search: Search, asker: _Asker) -> tuple[Outcome, frozenset[str]]:
    names, reserve = tuple(dict.fromkeys(search.names)), tuple(dict.fromkeys(search.reserve))
    none: frozenset[str] = frozenset()
    if asker.ask(none):
        asker.rest_on([none])
        return Outcome.NOT_NEEDED, none
    if reserve and not asker.ask(frozenset(names)):
        names = (*names, *reserve)
    everything = frozenset(names)
    if not asker.ask(everything):
        asker.rest_on([everything])
        return Outcome.NOT_FIXED, none
    try:
        found = frozenset(_quick(asker, none, none, False, names))
    except _EnoughError as enough:
        found = enough.changes
    if not asker.ask(found):
        asker.doubt(found)
        asker.is_delta = True
        found = frozenset(delta(asker.ask, names))
    found = _reduced(asker, found)
    fewer = [found - {name} for name in sorted(found)] if len(found) > 1 and (asker.rate or search.assume) else []
    asker.rest_on([none, found, *fewer])
    return Outcome.FOUND, found


def _quick(
    asker: _Asker, needed: frozenset[str], others: frozenset[str], is_new: bool, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return those of `names` that are needed in addition to those needed so far and to others.

    `is_new`: these have grown since they were asked for. _EnoughError once what is needed suffices without the others.
    """
    base = needed | others
    if is_new and asker.ask(base):
        return ()
    if len(names) == 1:
        if asker.rate:  # that it suffices follows from other answers, of which one may be wrong
            asker.doubt(base | set(names))
        if others and asker.ask(needed | set(names)):
            raise _EnoughError(needed | set(names))
        return names
    half = _half(names, asker.search.weights)
    first, second = names[:half], names[half:]
    of_second = _quick(asker, needed, others | set(first), True, second)
    of_first = _quick(asker, needed | set(of_second), others, bool(of_second), first)
    return (*of_first, *of_second)


def _half(names: tuple[str, ...], weights: Mapping[str, float]) -> int:
    """Return how many of the names have half of the weight."""
    each = [weights.get(name, 1.0) for name in names]
    total, so_far, best, distance = sum(each), 0.0, 1, float("inf")
    for number in range(1, len(names)):
        so_far += each[number - 1]
        if abs(2 * so_far - total) < distance:
            best, distance = number, abs(2 * so_far - total)
    return best


def delta(ask: Check, names: tuple[str, ...]) -> tuple[str, ...]:
    """Search by delta debugging (ddmin), which takes no change to help for itself.

    Parameters
    ----------
    ask : callable
        Whether the check succeeds with these changes; it does with all of `names`.
    names : tuple of str
        The changes.

    Returns
    -------
    tuple of str
        Changes with which it succeeds, and of which no single one can be left out.
    """
    left, parts = names, 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        chunks = [left[start : start + size] for start in range(0, len(left), size)]
        rests = [tuple(name for name in left if name not in chunk) for chunk in chunks] if len(chunks) > 2 else []
        smaller = next((each for each in [*chunks, *rests] if ask(frozenset(each))), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            left = smaller
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def _reduced(asker: _Asker, changes: frozenset[str]) -> frozenset[str]:
    """`changes` without those that can be left out one after the other."""
    for name in sorted(changes):
        if len(changes) > 1 and asker.ask(changes - {name}):
            return _reduced(asker, changes - {name})
    return changes
