"""Finds a minimal set of fusion passes whose switching off makes a check succeed: an algorithm over a callable.

First divide and conquer (QuickXplain, Junker 2004), which needs about 2 k log2(n / k) tries for k of n passes as long
as switching off more never hurts. What it finds is checked: if it does not succeed, which only passes that interact
can bring about, delta debugging (Zeller's ddmin) takes over, which needs no such assumption. Either way no pass of the
result can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

#: The passes that are switched off, and whether the check then succeeds.
Check = Callable[[frozenset[str]], bool]


class Outcome(StrEnum):
    """Outcome of the search."""

    FOUND = "found"
    #: It succeeds with every pass on.
    NOT_NEEDED = "not_needed"
    #: It fails with every pass off as well.
    NOT_FUSION = "not_fusion"
    #: It gave different answers for one set.
    FLAKY = "flaky"


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The result: `off` is the minimal set, of a flaky check the set it answered differently for."""

    outcome: Outcome
    off: frozenset[str] = frozenset()
    #: Sets that were asked for, each once however often it was tried.
    tries: int = 0
    #: True if passes interact: switching off more was seen to break what less had mended.
    interact: bool = False


@dataclass(frozen=True, kw_only=True)
class Try:
    """One run of the check: the passes that were off, whether it succeeded, its exit code (None: out of time)."""

    off: tuple[str, ...]
    succeeded: bool
    code: int | None
    seconds: float
    log: str


class FlakyCheckError(Exception):
    """The check answers differently for one set."""

    def __init__(self, off: frozenset[str]) -> None:
        super().__init__("the check gives different answers")
        self.off = off


@dataclass
class _Asker:
    """Asks the check, each set once; what contradicts an earlier answer is asked again before it is believed."""

    check: Check
    answers: dict[frozenset[str], bool] = field(default_factory=dict)
    #: Sets that were asked for twice already.
    confirmed: frozenset[frozenset[str]] = frozenset()
    interact: bool = False

    def ask(self, off: frozenset[str]) -> bool:
        if off not in self.answers:
            answer = self.check(off)
            if self._contradicts(off, answer):
                self._again(off, answer)
                self.interact = True
            self.answers[off] = answer
        return self.answers[off]

    def _contradicts(self, off: frozenset[str], answer: bool) -> bool:
        """Return True if fewer passes off succeeded and more fail."""
        if answer:
            return any(not helps and other > off for other, helps in self.answers.items())
        return any(helps and other < off for other, helps in self.answers.items())

    def _again(self, off: frozenset[str], answer: bool) -> None:
        if self.check(off) != answer:
            raise FlakyCheckError(off)

    def confirm(self, off: frozenset[str]) -> None:
        """Check a set again whose answer the result rests on."""
        if off not in self.confirmed:
            self._again(off, self.answers[off])


def bisect_passes(
    passes: Sequence[str],
    check: Check,
    *,
    reserve: Sequence[str] = (),
    results: Mapping[frozenset[str], bool] | None = None,
    confirmed: Iterable[frozenset[str]] = (),
) -> Bisection:
    """Search a minimal set of `passes` to switch off for `check` to succeed.

    Those in `reserve` are searched as well if switching all of `passes` off does not help. `results` are answers of an
    earlier attempt, `confirmed` those that it got twice.

    The answers that the result rests on are asked for twice.
    """
    answers = dict(results or {})
    interact = any(answers[few] and not answers[many] for few in answers for many in answers if few < many)
    asker = _Asker(check, answers, frozenset(confirmed), interact)
    try:
        outcome, off = _search(tuple(dict.fromkeys(passes)), tuple(dict.fromkeys(reserve)), asker)
    except FlakyCheckError as error:
        outcome, off = Outcome.FLAKY, error.off
    return Bisection(outcome=outcome, off=off, tries=len(asker.answers), interact=asker.interact)


def _search(passes: tuple[str, ...], reserve: tuple[str, ...], asker: _Asker) -> tuple[Outcome, frozenset[str]]:
    none: frozenset[str] = frozenset()
    if asker.ask(none):
        asker.confirm(none)
        return Outcome.NOT_NEEDED, none
    if reserve and not asker.ask(frozenset(passes)):
        passes = (*passes, *reserve)
    everything = frozenset(passes)
    if not asker.ask(everything):
        asker.confirm(everything)
        return Outcome.NOT_FUSION, none
    off = frozenset(_quick(asker, none, False, passes))
    if not asker.ask(off):
        asker.interact = True
        off = frozenset(_delta(asker, passes))
    off = _reduced(asker, off)
    asker.confirm(none)
    asker.confirm(off)
    return Outcome.FOUND, off


def _quick(asker: _Asker, base: frozenset[str], is_new: bool, passes: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `passes` that must be off in addition to `base`; `is_new`: base has grown since."""
    if is_new and asker.ask(base):
        return ()
    if len(passes) == 1:
        return passes
    half = len(passes) // 2
    first, second = passes[:half], passes[half:]
    of_second = _quick(asker, base | set(first), True, second)
    of_first = _quick(asker, base | set(of_second), bool(of_second), first)
    return (*of_first, *of_second)


def _delta(asker: _Asker, passes: tuple[str, ...]) -> tuple[str, ...]:
    """ddmin: from all of `passes`, with which the check succeeds, to a set of which no part can be left out."""
    off, parts = passes, 2
    while len(off) > 1:
        size = -(-len(off) // parts)
        chunks = [off[start : start + size] for start in range(0, len(off), size)]
        rests = [tuple(name for name in off if name not in chunk) for chunk in chunks] if len(chunks) > 2 else []
        smaller = next((name for name in [*chunks, *rests] if asker.ask(frozenset(name))), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            off = smaller
        elif parts >= len(off):
            break
        else:
            parts = min(len(off), 2 * parts)
    return off


def _reduced(asker: _Asker, off: frozenset[str]) -> frozenset[str]:
    """`off` without the passes that can be left out one after the other."""
    for name in sorted(off):
        if len(off) > 1 and asker.ask(off - {name}):
            return _reduced(asker, off - {name})
    return off
