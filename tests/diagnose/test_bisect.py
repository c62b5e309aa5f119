"""The bisection finds any hidden set of guilty passes, whatever way they interact, and notices a check that wavers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_tool.lib.diagnose.bisect import Bisection, Outcome, Search

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


def test_what_interacts_is_known_from_earlier_answers() -> None:
    few, many = frozenset("a"), frozenset("ab")
    known = {frozenset[str](): False, few: True, many: False, frozenset("abc"): True}
    assert Search(names="abc").run(lambda off: known[off], known.items()).interact


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
