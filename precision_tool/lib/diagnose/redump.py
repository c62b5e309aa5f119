"""What to dump whole, next: the ops, ranks and steps that tell most of what statistics leave open, within a budget.

The first suspicion's op comes first, whatever it takes. After it the greedy choice: what has the most value for a byte,
as long as it fits. Of values: the i-th suspicion has 1/i, three times as much if it is certain; what feeds the op a
third of that, as whether its input was right decides whose fault it is; and the ops before the first suspect, which may
have made what only shows there, less the farther away they are.

That is of the earliest step. A later one is dumped too where another op is suspected than before, as long as there is
room for all that is dumped at that step as well: GE dumps the same ops at every step that it is told.

It is made on the first rank that is suspected and, to hold against it, on one that is not. What comes out of
communication depends on what every rank put in, so that is dumped on all of them, as far as the budget goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from precision_tool.lib.data.settings import Settings, with_settings
from precision_tool.lib.diagnose.replica_votes import is_communication
from precision_tool.lib.diagnose.study_statistics import OpBytes, StatisticsFound, Suspicion
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import UsageError

_CERTAIN, _PRODUCER, _NEAR = 3.0, 1 / 3, 0.05
#: A dump file's header, and the directory's share of it.
_HEADER = 512
#: Steps of one dump at most, as GE takes them.
_MAX_STEPS = 100
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("KMGT", 1)
    for unit, base in (("B", 1000), ("IB", 1024), ("", 1000))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Redump:
    """A whole dump to make: `layers` are names of ops as GE takes them, `nbytes` what it takes in all.

    Every rank dumps every op at every step. `without` are ops that the budget has no room for, the first of them by
    value; `ranks` the suspect one first.
    """

    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    layers: tuple[str, ...]
    nbytes: int
    budget: int
    without: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, with the settings."""
        return asdict(self) | {"settings": self.settings()}

    def settings(self) -> dict[str, str]:
        """Return what to set for the dump, by the names of the settings, which check it."""
        values = {
            "tf_dump_step": "|".join(map(str, self.steps)),
            "dump_layer": " ".join(self.layers),
            "dump_mode": "all",
            "dump_data": "tensor",
        }
        with_settings(Settings(), values)
        return {name.upper(): value for name, value in values.items()}

    def config_text(self) -> str:
        """Return the lines of a `precision_config.py`."""
        head = render(Message("study.redump", ranks=self.ranks, nbytes=self.nbytes), "en")
        return f"# {head}\n" + "".join(f"{name} = {value!r}\n" for name, value in self.settings().items())


def parse_bytes(text: str) -> int:
    """`50GB` as a number of bytes; a GB is 10^9, a GiB 2^30. UsageError for anything else."""
    folded = text.strip().upper().replace(" ", "")
    digits = folded.rstrip("KMGTIB")
    unit = folded[len(digits) :]
    try:
        value = float(digits) * _UNITS[unit]
    except (ValueError, KeyError, OverflowError):
        value = 0.0
    if not 1 <= value < 2**63:
        raise UsageError("diagnose.budget", value=repr(text))
    return int(value)


def plan_redump(statistics: StatisticsFound, budget: int, names: Mapping[str, str] | None = None) -> Redump | None:
    """Return the dump to make of the earliest step with a suspicion, and of later ones with others; None without one.

    Parameters
    ----------
    statistics : StatisticsFound
        The suspicions, and the bytes of each op.
    budget : int
        Bytes that the dump may take in all, on all ranks and steps.
    names : mapping, optional
        The ops' names in the graph by those in file names.
    """
    if not statistics.suspicions:
        return None
    first = statistics.suspicions[0]
    of_step = [suspicion for suspicion in statistics.suspicions if suspicion.step == first.step]
    ranks = _ranks(first, statistics.ops, budget)
    values = _values(of_step, statistics.ops)
    order = sorted(values, key=lambda name: (name != first.op, -values[name] / _cost(statistics.ops[name]), name))
    chosen: list[str] = []
    without: list[str] = []
    total = 0
    for name in order:
        cost = _cost(statistics.ops[name]) * len(ranks)
        if total + cost <= budget:
            chosen.append(name)
            total += cost
        else:
            without.append(name)
    if first.op in without and len(ranks) > 1:  # one rank is better than none
        alone = [name for name in order if name == first.op and _cost(statistics.ops[name]) <= budget]
        if alone:
            chosen, total, ranks = alone, _cost(statistics.ops[first.op]), ranks[:1]
            without = [name for name in order if name not in alone]
    steps, on_ranks = [first.step], list(ranks)
    if chosen:
        total = _add_steps(statistics, steps, on_ranks, chosen, budget)
        without = [name for name in without if name not in chosen]
    chosen.sort(key=lambda name: statistics.ops[name].number)
    without.sort(key=lambda name: -values[name])
    real = names or {}
    return Redump(
        steps=tuple(steps), ranks=tuple(on_ranks), layers=tuple(real.get(name, name) for name in chosen), nbytes=total,
        budget=budget, without=tuple(real.get(name, name) for name in without),
    )  # fmt: skip


def _ranks(first: Suspicion, ops: Mapping[str, OpBytes], budget: int) -> tuple[int, ...]:
    others = (*first.right, *first.unknown)
    if not is_communication(first.type):
        return (first.ranks[0], *others[:1])
    all_of_them = (*first.ranks, *others)
    room = budget // _cost(ops[first.op]) if first.op in ops else len(all_of_them)
    return all_of_them[: max(room, 1)]


def _add_steps(statistics: StatisticsFound, steps: list[int], ranks: list[int], chosen: list[str], budget: int) -> int:
    """Add later steps with what is suspected there first, as far as the budget goes; the bytes of all."""
    suspects = {suspicion.op for suspicion in statistics.suspicions if suspicion.step == steps[0]}
    total = sum(_cost(statistics.ops[name]) for name in chosen) * len(ranks)
    for suspicion in statistics.suspicions:
        if suspicion.op in suspects or suspicion.op not in statistics.ops:
            continue
        suspects.add(suspicion.op)
        more_steps = steps if suspicion.step in steps else [*steps, suspicion.step]
        more_ranks = ranks if set(suspicion.ranks) & set(ranks) else [*ranks, suspicion.ranks[0]]
        more = chosen if suspicion.op in chosen else [*chosen, suspicion.op]
        cost = sum(_cost(statistics.ops[name]) for name in more) * len(more_ranks) * len(more_steps)
        if cost <= budget and len(more_steps) <= _MAX_STEPS:
            steps[:], ranks[:], chosen[:], total = more_steps, more_ranks, more, cost
    return total


def _cost(op: OpBytes) -> int:
    return op.nbytes + _HEADER


def _values(of_step: Sequence[Suspicion], ops: Mapping[str, OpBytes]) -> dict[str, float]:
    """Return what a whole dump of each op is worth."""
    values: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        if name in ops:
            values[name] = values.get(name, 0.0) + value

    for place, suspicion in enumerate(of_step, 1):
        value = (_CERTAIN if suspicion.is_certain else 1.0) / place
        add(suspicion.op, value)
        for producer in ops[suspicion.op].producers if suspicion.op in ops else ():
            add(producer, _PRODUCER * value)
    first = of_step[0].number
    for op in ops.values():
        if op.number < first:
            add(op.name, _NEAR / (first - op.number) ** 2)
    return values
