"""The bisection finds any hidden set of guilty passes, whatever way they interact, and notices a check that wavers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain, combinations, count
from math import log2
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.diagnose.bisect import CONFIDENCE, Bisection, Outcome, Search, most_runs

PASSES = [f"Pass{number:03}" for number in range(200)]

Rule = Callable[[frozenset[str]], bool]

guilty_sets = st.sets(st.sampled_from(PASSES), min_size=1, max_size=4)


def search(rule: Rule) -> tuple[Bisection, int]:
    """The result, and how often the check was run."""
    runs = count()

    def check(off: frozenset[str]) -> bool:
        next(runs)
        return rule(off)

    return Search(names=PASSES).run(check), next(runs)


def is_minimal(off: frozenset[str], rule: Rule) -> bool:
    return rule(off) and not any(rule(off - {one}) for one in off)


@given(guilty_sets)
def test_each_guilty_pass_alone_breaks_it(guilty: set[str]) -> None:
    """Without interaction: everything guilty has to be off, and nothing else."""
    result, runs = search(lambda off: guilty <= off)
    assert (result.outcome, set(result.changes)) == (Outcome.FOUND, guilty)
    assert not result.interact
    # 2 k log2(n / k) + 2 k of the search, k + 1 to prove it, 2 at the start, 2 to confirm.
    k = len(guilty)
    assert runs <= 2 * k * log2(200 / k) + 3 * k + 6


@given(st.sets(st.sampled_from(PASSES[:8])), st.sets(st.sampled_from(PASSES[8:]), max_size=2))
def test_a_reserve_is_searched_only_where_the_rest_does_not_help(guilty: set[str], late: set[str]) -> None:
    """Passes that stay on when all others are off: nothing is asked of them as long as nothing needs it."""
    asked: list[frozenset[str]] = []

    def check(off: frozenset[str]) -> bool:
        asked.append(off)
        return guilty | late <= off

    result = Search(names=PASSES[:8], reserve=PASSES[8:]).run(check)
    assert result.changes == guilty | late
    assert result.outcome is (Outcome.FOUND if guilty | late else Outcome.NOT_NEEDED)
    if not late:
        assert all(one <= set(PASSES[:8]) for one in asked)
    never = Search(names=PASSES[:8], reserve=PASSES[8:]).run(lambda _: False)
    assert never.outcome is Outcome.NOT_FIXED
    assert never.tries == 3


@given(guilty_sets)
def test_only_all_of_them_together_break_it(guilty: set[str]) -> None:
    """Switching any one of them off is enough."""
    result, runs = search(lambda off: bool(guilty & off))
    assert result.outcome is Outcome.FOUND
    assert len(result.changes) == 1
    assert result.changes <= guilty
    assert runs <= 25


@given(st.lists(guilty_sets, min_size=1, max_size=4))
def test_several_combinations_break_it(combinations: list[set[str]]) -> None:
    """It fails as long as all passes of one of the combinations are on."""

    def rule(off: frozenset[str]) -> bool:
        return all(one & off for one in combinations)

    result, _ = search(rule)
    assert result.outcome is Outcome.FOUND
    assert is_minimal(result.changes, rule)
    assert result.changes <= set(chain.from_iterable(combinations))


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PASSES), min_size=2, max_size=4, unique=True), st.integers(0, 3))
def test_a_pass_that_hides_another_fault(names: list[str], which: int) -> None:
    """With one guilty pass off another one begins to match, and is wrong too, unless it is off as well."""
    guilty, opened = names[:-1], names[-1]
    key = guilty[which % len(guilty)]

    def rule(off: frozenset[str]) -> bool:
        return off >= set(guilty) and (key not in off or opened in off)

    result, _ = search(rule)
    assert result.outcome is Outcome.FOUND
    assert result.changes == set(names)


@settings(max_examples=100)
@given(guilty_sets, st.sets(st.sampled_from(PASSES), min_size=1, max_size=3))
def test_a_pass_that_is_needed(guilty: set[str], needed: set[str]) -> None:
    """Switching off passes that are needed breaks it, unless all of them are off: more is not always better."""
    needed = needed - guilty

    def rule(off: frozenset[str]) -> bool:
        return guilty <= off and (not needed & off or needed <= off)

    result, _ = search(rule)
    assert result.outcome is Outcome.FOUND
    assert is_minimal(result.changes, rule)
    assert guilty <= result.changes


@given(st.data())
def test_answers_of_an_interrupted_search_are_used(data: st.DataObject) -> None:
    guilty = data.draw(guilty_sets)
    known: dict[frozenset[str], bool] = {}

    def check(off: frozenset[str]) -> bool:
        known[off] = guilty <= off
        return known[off]

    whole = Search(names=PASSES).run(check)
    kept = data.draw(st.sets(st.sampled_from(sorted(known, key=sorted))))
    asked: list[frozenset[str]] = []

    def rest(off: frozenset[str]) -> bool:
        asked.append(off)
        return guilty <= off

    again = Search(names=PASSES).run(rest, [(off, known[off]) for off in kept])
    assert (again.changes, again.tries) == (whole.changes, whole.tries)
    # Only the answers that the result rests on are asked for a second time.
    assert set(asked) & kept <= {frozenset(), whole.changes}


def test_a_finished_search_asks_for_nothing_again() -> None:
    """Passes that interact: that too is known from the answers."""
    known: dict[frozenset[str], bool] = {}
    asked: list[frozenset[str]] = []

    def check(off: frozenset[str]) -> bool:
        asked.append(off)
        known[off] = "b" in off and len(off & {"c", "d"}) != 1
        return known[off]

    first = Search(names="abcd").run(check)
    twice = {off for off in asked if asked.count(off) > 1}
    assert twice
    count = len(asked)
    assert Search(names="abcd").run(check, [(off, known[off]) for off in [*known, *twice]]) == first
    assert len(asked) == count


def test_nothing_to_find() -> None:
    assert Search(names=PASSES).run(lambda off: True).outcome is Outcome.NOT_NEEDED
    assert Search(names=PASSES).run(lambda off: False).outcome is Outcome.NOT_FIXED
    assert Search(names=PASSES[:1]).run(bool).changes == {PASSES[0]}
    assert Search(names=[*PASSES[:1], *PASSES[:1]]).run(bool).changes == {PASSES[0]}


@pytest.mark.parametrize("wavering", ["none", "all", "result"])
def test_a_check_that_wavers_is_noticed(wavering: str) -> None:
    """One of the sets that the result rests on is answered the other way when it is asked for the second time."""
    guilty = set(PASSES[17:19])
    moving = {"none": frozenset(), "all": frozenset(PASSES), "result": frozenset(guilty)}[wavering]
    seen: set[frozenset[str]] = set()

    def check(off: frozenset[str]) -> bool:
        again = off in seen
        seen.add(off)
        right = guilty <= off
        if off == moving and wavering == "all":
            return again  # fails at first, with everything off
        return right != (off == moving and again)

    result = Search(names=PASSES).run(check)
    assert (result.outcome, result.changes) == (Outcome.FLAKY, moving)


def test_an_answer_that_contradicts_another_is_asked_for_again() -> None:
    """More off, and it fails: if that was chance, the check wavers; if not, the passes interact."""
    runs: list[frozenset[str]] = []

    def check(off: frozenset[str]) -> bool:
        runs.append(off)
        return {"a", "b"} == off or off == {"a", "b", "c", "d"} or off == {"a"}

    result = Search(names=["a", "b", "c", "d"]).run(check)
    assert result.changes == {"a"}
    assert result.interact or runs.count(frozenset({"a"})) == 2


def test_how_many_tries_it_takes(record_property: Callable[[str, object], None]) -> None:
    """The figures of the README are for guilty passes spread as badly as can be."""
    worst = {}
    for size in range(1, 5):
        step = len(PASSES) // size
        guilty_ones = [set(PASSES[start::step][:size]) for start in range(step)]
        worst[size] = max(search(guilty.issubset)[1] for guilty in guilty_ones)
        assert worst[size] <= 2 * size * log2(200 / size) + 3 * size + 6
    record_property("tries", worst)


# --- any rule, wrong answers, what the verdict suspects ---------------------------------------------------------------

FEW = "abcde"
SUBSETS = [frozenset(subset) for size in range(len(FEW) + 1) for subset in combinations(FEW, size)]


@settings(max_examples=150)
@given(st.sets(st.sampled_from(SUBSETS)), st.booleans(), st.lists(st.floats(0.1, 50), min_size=5, max_size=5))
def test_the_result_is_one_of_those_that_an_exhaustive_search_finds(
    right: set[frozenset[str]], is_monotone: bool, weights: list[float]
) -> None:
    """Of every rule at all, monotone or not, and whatever is suspected."""

    def rule(changes: frozenset[str]) -> bool:
        return any(each <= changes for each in right) if is_monotone else changes in right

    result = Search(names=FEW, weights=dict(zip(FEW, weights, strict=True))).run(rule)
    expected = Outcome.FOUND if rule(frozenset(FEW)) else Outcome.NOT_FIXED
    assert result.outcome is (Outcome.NOT_NEEDED if rule(frozenset()) else expected)
    if result.outcome is Outcome.FOUND:
        assert result.changes in [each for each in SUBSETS if is_minimal(each, rule)]
    if is_monotone:
        assert not result.interact


def suspecting(name: str, **how: Any) -> Search:
    names = sorted(PASSES[:60], key=lambda other: other != name)
    return Search(names=names, weights={name: 118.0}, **how)


@pytest.mark.parametrize("guilty", [("Pass040",), ("Pass040", "Pass003")])
def test_what_is_suspected_is_tried_first(guilty: tuple[str, ...]) -> None:
    """A right suspicion takes one run and what proves it; a wrong one little more than none."""
    runs = {}
    for name in ("Pass040", "Pass050", ""):
        asked: list[frozenset[str]] = []

        def check(changes: frozenset[str], asked: list[frozenset[str]] = asked) -> bool:
            asked.append(changes)
            return changes >= set(guilty)

        search = suspecting(name) if name else Search(names=PASSES[:60])
        estimate = search.remaining([])
        assert search.run(check).changes == set(guilty)
        assert asked[2] == {name} if name else len(asked[2]) == 30
        runs[name] = len(asked)
        assert search.remaining([(each, each >= set(guilty)) for each in asked]) == 0
        assert estimate is not None
        assert estimate <= 16
    assert runs["Pass050"] <= runs[""] + 3
    assert runs["Pass040"] < runs[""]
    if len(guilty) == 1:
        assert runs["Pass040"] == 5


def noisy(guilty: set[str], draw: random.Random, rate: float) -> Rule:
    return lambda changes: (guilty <= changes) != (draw.random() < rate)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_wrong_answers_are_outvoted(size: int) -> None:
    """As often as is stated, for a check that is wrong in one of ten runs; about as often where nobody has said so."""
    devices = 100
    for rate, share in ((0.1, 0.96), (0.0, 0.88)):
        right, runs = 0, 0
        for device in range(devices):
            draw = random.Random(f"{size} {device}")
            guilty = set(draw.sample(PASSES[:60], size))
            most = most_runs(60, 0.1)
            result = suspecting(min(guilty), rate=rate, assume=0.1, most=most).run(noisy(guilty, draw, 0.1))
            right += result.changes == guilty
            assert result.confidence is None or result.confidence >= CONFIDENCE
            runs += result.tries
        assert right >= share * devices


def test_a_coin_is_no_check() -> None:
    """It ends, and says so; in the worst case by the limit."""
    outcomes = set()
    for seed in range(20):
        draw = random.Random(seed)
        runs = count()

        def check(changes: frozenset[str], draw: random.Random = draw, runs: Any = runs) -> bool:
            next(runs)
            return bool(changes) and draw.random() < 0.5

        outcomes.add(suspecting("Pass040", rate=0.1, most=400).run(check).outcome)
        assert next(runs) <= 400
    assert Outcome.FLAKY in outcomes


def test_the_limit_of_runs() -> None:
    result = Search(names=PASSES[:60], most=8).run(lambda changes: changes >= {"Pass003", "Pass040"})
    assert result.outcome is Outcome.OUT_OF_RUNS
    assert result.changes >= {"Pass003", "Pass040"}
    assert len(result.changes) < 60


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(PASSES[:12]), min_size=1, max_size=3), st.integers(0, 99), st.sampled_from([0.0, 0.1]))
def test_a_search_that_is_killed_goes_on_where_it_was(guilty: set[str], seed: int, rate: float) -> None:
    """At any run: the result is the same, and no run is made again, also where answers are wrong."""

    def search(known: list[tuple[frozenset[str], bool]], stop: int) -> tuple[Bisection | None, int]:
        made = 0

        def check(changes: frozenset[str]) -> bool:
            nonlocal made
            if len(known) == stop:
                raise KeyboardInterrupt
            made += 1
            time = sum(changes == other for other, _ in known)
            wrong = random.Random(f"{seed} {sorted(changes)} {time}").random() < rate
            known.append((changes, (guilty <= changes) != wrong))
            return known[-1][1]

        try:
            return Search(names=PASSES[:12], rate=rate, assume=0.1, most=300).run(check, list(known)), made
        except KeyboardInterrupt:
            return None, made

    whole: list[tuple[frozenset[str], bool]] = []
    expected, runs = search(whole, -1)
    assert expected is not None
    for stop in range(0, runs, 3):
        known: list[tuple[frozenset[str], bool]] = []
        assert search(known, stop) == (None, stop)
        result, more = search(known, -1)
        assert result == expected
        assert stop + more == runs
