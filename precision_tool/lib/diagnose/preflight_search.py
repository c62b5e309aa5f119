"""Search the smallest set of ops to keep in float32: candidates by rank, each set judged by emulating the whole step.

Errors of rounding have signs and cancel, so that keeping one more op in float32 can make matters worse. Nothing is
concluded from one set about another: what is returned was emulated itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, isnan

from precision_tool.lib.diagnose.preflight_model import Errors

#: A set of candidates, by their numbers.
Chosen = frozenset[int]
#: Up to so many candidates all smaller sets are tried.
EXHAUSTIVE = 16
#: Sets that are emulated at most, besides those.
BUDGET = 400


class SearchEndedError(Exception):
    """The time is up, or the budget spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Largest relative errors that are allowed."""

    loss: float
    gradients: float

    def excess(self, errors: Errors) -> float:
        """Return how many times the bound the errors are: at most 1 where they are within it."""
        parts = [(errors.loss, self.loss), (errors.gradients, self.gradients)]
        return max((error / bound for error, bound in parts if not isnan(error)), default=0.0)

    def allow(self, errors: Errors) -> bool:
        """Return whether errors are within the bounds."""
        return self.excess(errors) <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSet:
    """What a search ended in.

    Attributes
    ----------
    chosen : frozenset of int
        The best set that was emulated: the smallest within the bounds, without any that with the smallest errors.
    errors : Errors
        What came of it.
    is_enough : bool
        Whether that is within the bounds.
    is_finished : bool
        Whether the search came to its end: none of the set's members can be left out, or all together are not enough.
    smallest : int or None
        Size of the smallest set, where all smaller ones were tried.
    """

    chosen: Chosen
    errors: Errors
    is_enough: bool
    is_finished: bool
    smallest: int | None = None


class Search:
    """One search.

    Parameters
    ----------
    emulate : callable
        Emulates the step with a set of candidates in float32. May raise SearchEndedError.
    ranked : sequence of int
        Candidates, the most sensitive first.
    always : collection of int
        Candidates that every set has: what overflows in a way that emulation does not show.
    bounds : Bounds
        Largest errors.
    guess : int
        Candidates that may be enough: where the search begins to grow.
    """

    def __init__(
        self,
        emulate: Callable[[Chosen], Errors],
        ranked: Sequence[int],
        always: Collection[int],
        bounds: Bounds,
        guess: int = 1,
    ) -> None:
        self._emulate, self._bounds, self._guess = emulate, bounds, guess
        self._always = frozenset(always)
        self._ranked = [number for number in ranked if number not in self._always]
        self._tried: dict[Chosen, Errors] = {}
        self._best: tuple[tuple[bool, float, float], Chosen] | None = None
        #: Whether Ctrl+C ended it.
        self.is_interrupted = False

    def run(self, *, exhaustive: bool = True) -> FoundSet:
        """Search: grow by doubling, halve the step back, leave out what can be left out, try all smaller sets."""
        is_finished, smallest = False, None
        try:
            chosen = self._grow()
            if chosen is not None:
                chosen = self._shrink(chosen)
            is_finished = True
            if chosen is not None and exhaustive and len(self._ranked) + len(self._always) <= EXHAUSTIVE:
                smallest = self._try_smaller(chosen)
        except SearchEndedError:
            pass
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self.is_interrupted = True
        if self._best is None:
            raise SearchEndedError
        best = self._best[1]
        errors = self._tried[best]
        return FoundSet(
            chosen=best, errors=errors, is_enough=self._bounds.allow(errors), is_finished=is_finished, smallest=smallest
        )

    def _allows(self, chosen: Chosen) -> bool:
        """Emulate a set, unless it was already; return whether it is within the bounds."""
        if chosen not in self._tried:
            if len(self._tried) >= BUDGET:
                raise SearchEndedError
            self._note(chosen, self._emulate(chosen))
        return self._bounds.allow(self._tried[chosen])

    def _note(self, chosen: Chosen, errors: Errors) -> None:
        self._tried[chosen] = errors
        excess = self._bounds.excess(errors)
        # Within the bounds the smaller set is better, beyond them the smaller error.
        order = (True, -float(len(chosen)), -excess) if excess <= 1.0 else (False, -excess, -float(len(chosen)))
        if self._best is None or order > self._best[0]:
            self._best = order, chosen

    def _first(self, count: int) -> Chosen:
        return self._always | frozenset(self._ranked[:count])

    def _grow(self) -> Chosen | None:
        """Return a set of the first candidates that is enough; None where all of them are not."""
        low, high = -1, 0
        while not self._allows(self._first(high)):
            if high >= len(self._ranked):
                return None
            low, high = high, min(max(1, 2 * high, self._guess), len(self._ranked))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._allows(self._first(middle)) else (middle, high)
        return self._first(high)

    def _shrink(self, chosen: Chosen) -> Chosen:
        """Leave out halves, quarters, … single candidates, the least sensitive first, until none can be left out."""
        size = max(1, (len(chosen) - len(self._always)) // 2)
        while True:
            left = [number for number in reversed(self._ranked) if number in chosen]
            was_smaller = False
            for start in range(0, len(left), size):
                smaller = chosen - frozenset(left[start : start + size])
                if smaller < chosen and self._allows(smaller):
                    chosen, was_smaller = smaller, True
            if size > 1:
                size //= 2
            elif not was_smaller:
                return chosen

    def _try_smaller(self, chosen: Chosen) -> int:
        """Return the size of the smallest set that is enough, all smaller ones being tried; it becomes the best."""
        for count in range(len(chosen) - len(self._always)):
            for more in combinations(self._ranked, count):
                candidate = self._always | frozenset(more)
                if candidate in self._tried:
                    continue
                errors = self._emulate(candidate)
                if self._bounds.allow(errors):
                    self._note(candidate, errors)
                    return len(candidate)
        return len(chosen)


def rank(scores: Sequence[float]) -> list[int]:
    """Return the places of scores, the largest first; equal ones, and what has none, in their order."""
    return sorted(range(len(scores)), key=lambda number: (-inf if isnan(scores[number]) else -scores[number], number))
