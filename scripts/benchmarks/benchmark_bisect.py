"""How many runs `bisect` takes on simulated devices, against plain delta debugging: a table.

    python3 scripts/benchmarks/benchmark_bisect.py [DEVICES]

A device has 60 switches, of which one, two or three have to be changed. In eight of ten the verdict names one of them,
else a wrong one. A flaky device gives the wrong answer in 10 % of its runs.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable

from precision_tool.lib.diagnose.bisect import Outcome, Search, delta, most_runs

SWITCHES = [f"switch{number:02}" for number in range(60)]
FLAKY = 0.1
#: In how many of ten devices the verdict is right.
RIGHT = 8

Check = Callable[[frozenset[str]], bool]
Method = Callable[[Check, str], frozenset[str]]


def bisected(named: str, rate: float, assume: float) -> Callable[[Check], frozenset[str]]:
    """The search with what the verdict names, "" for nothing."""
    names = sorted(SWITCHES, key=lambda name: name != named)
    weights = {named: 2.0 * (len(SWITCHES) - 1)} if named else {}

    def run(check: Check) -> frozenset[str]:
        most = most_runs(len(names), max(rate, assume))
        result = Search(names=names, weights=weights, rate=rate, assume=assume, most=most).run(check)
        return result.changes if result.outcome is Outcome.FOUND else frozenset()

    return run


def plain(check: Check) -> frozenset[str]:
    """Delta debugging as it is: both ends first, each set once."""
    answers: dict[frozenset[str], bool] = {}

    def ask(changes: frozenset[str]) -> bool:
        if changes not in answers:
            answers[changes] = check(changes)
        return answers[changes]

    if ask(frozenset()) or not ask(frozenset(SWITCHES)):
        return frozenset()
    return frozenset(delta(ask, tuple(SWITCHES)))


def repeated(check: Check, times: int) -> Check:
    """The answer that most of so many runs give."""
    return lambda changes: 2 * sum(check(changes) for _ in range(times)) > times


def main() -> None:
    devices = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    methods: dict[str, Method] = {
        "bisect": lambda check, named: bisected(named, 0.0, FLAKY)(check),
        "bisect without a verdict": lambda check, _: bisected("", 0.0, FLAKY)(check),
        "bisect --flaky 10": lambda check, named: bisected(named, FLAKY, FLAKY)(check),
        "ddmin": lambda check, _: plain(check),
        "ddmin, each set 3 times": lambda check, _: plain(repeated(check, 3)),
        "ddmin, each set 5 times": lambda check, _: plain(repeated(check, 5)),
    }
    print("| wrong answers | needed | method | median | worst | right |\n|---|---|---|---|---|---|")
    for rate in (0.0, FLAKY):
        for size in (1, 2, 3):
            for name, method in methods.items():
                runs, right = [], 0
                for device in range(devices):
                    draw = random.Random(f"{size} {device}")
                    guilty = frozenset(draw.sample(SWITCHES, size))
                    innocent = draw.choice([other for other in SWITCHES if other not in guilty])
                    named = sorted(guilty)[0] if draw.randrange(10) < RIGHT else innocent
                    count = 0

                    def check(
                        changes: frozenset[str], guilty: frozenset[str] = guilty, draw: random.Random = draw,
                        rate: float = rate,
                    ) -> bool:  # fmt: skip
                        nonlocal count
                        count += 1
                        return (guilty <= changes) != (draw.random() < rate)

                    right += method(check, named) == guilty
                    runs.append(count)
                share = f"{100 * right / devices:.0f} %"
                print(f"| {100 * rate:.0f} % | {size} | {name} | {statistics.median(runs):g} | {max(runs)} | {share} |")


if __name__ == "__main__":
    main()
