"""Whether other arguments are the cause: an op is right, and computes another function than in the benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite

from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.graph_catalog import named_by
from precision_tool.lib.diagnose.decide import RunVerdict
from precision_tool.lib.diagnose.error_shape import UNIT
from precision_tool.lib.diagnose.plan import plan
from precision_tool.lib.diagnose.recorded_sides import ArgumentDifference, RecordedSides, compare_recorded
from precision_tool.lib.diagnose.verdict_model import Cause, Fact, OpResult, Proof, State, Suspect, number_of
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.table import Row

#: That the scripts call an op otherwise is read, not guessed; whether nothing else differs is not known.
_SURE = 0.95
#: How much farther an output must be from the benchmark than the inputs, in units of what rounding makes of both.
_FARTHER = 4.0


def sides_of(leaf: DumpLeaf | None, golden: object) -> RecordedSides | None:
    """Return what a leaf differs in from its benchmark, where msprobe recorded both."""
    if leaf is None or not leaf.graph or not isinstance(golden, GoldenFiles) or not golden.files:
        return None
    with suppress(PrecisionToolError):
        if golden.files[0].recorded is not None:
            return compare_recorded(leaf.graph, golden.files[0].path)
    return None


def with_arguments(judged: RunVerdict, sides: RecordedSides, rows: Sequence[Row], threshold: float) -> RunVerdict:
    """Return the verdict with what other arguments in the benchmark explain.

    A suspect that was only compared, and is called otherwise, is no kernel's fault: the scripts differ. So do they
    where an op is not known to be wrong, and its output is farther from the benchmark than its inputs and rounding
    account for. Of a suspect that was recomputed it is told.
    """
    verdict = judged.verdict
    if not sides.arguments or not verdict.has_benchmark:
        return judged
    suspects = [_told(suspect, sides.of_op(suspect.culprit)) for suspect in verdict.suspects]
    named = {name for suspect in suspects for name in (suspect.culprit, *suspect.also)}
    flow = _Followers(judged.ops, rows, threshold)
    apart = [suspect for suspect in _called_otherwise(judged.ops, sides, flow) if suspect.culprit not in named]
    # What was recomputed is proven by itself; what was only compared may follow from other arguments.
    at = next((at for at, each in enumerate(suspects) if each.proof is Proof.COMPARED), len(suspects))
    suspects = [*suspects[:at], *apart, *suspects[at:]]
    guilty = [suspect for suspect in suspects if suspect.cause is not Cause.LOSS_SCALE]
    if not guilty:
        return judged
    first = guilty[0]
    names = dict.fromkeys(suspect.culprit for suspect in guilty)
    names |= dict.fromkeys(name for suspect in guilty for name in suspect.also)
    is_same = verdict.first is not None and (verdict.culprit, verdict.cause) == (first.culprit, first.cause)
    verdict = replace(
        verdict, culprit=first.culprit, cause=first.cause, confidence=first.confidence,
        pass_name=first.pass_name or None, ranking=tuple(names), suspects=tuple(guilty), facts=first.facts,
        next=verdict.next if is_same else plan(first, suspects, verdict.has_benchmark),
    )  # fmt: skip
    return replace(judged, verdict=verdict)


def _fact(arguments: Iterable[ArgumentDifference]) -> Fact:
    return Fact(name="arguments", value=[[each.name, each.npu, each.benchmark] for each in arguments])


def _told(suspect: Suspect, arguments: Sequence[ArgumentDifference]) -> Suspect:
    """Return a suspect with its other arguments."""
    if not arguments:
        return suspect
    suspect = replace(suspect, facts=(*suspect.facts, _fact(arguments)))
    if suspect.proof is not Proof.COMPARED:
        return suspect
    return replace(suspect, cause=Cause.ARGUMENTS, proof=Proof.ARGUMENTS, confidence=_SURE)


def _called_otherwise(judged: Sequence[OpResult], sides: RecordedSides, flow: _Followers) -> Iterator[Suspect]:
    """Yield ops with other arguments than the benchmark's, one for each such difference.

    Of an op whose own formula the benchmark does not obey either it is not known whether it is wrong as well.
    """
    groups: dict[tuple[tuple[str, str, str], ...], Suspect] = {}
    for result in sorted(judged, key=lambda each: each.number):
        arguments = [each for each in sides.of_op(result.name) if each.op_name == result.name]
        distance, fed = flow.distances(result.name)
        if not arguments or result.state is State.WRONG or distance is None:
            continue
        rounding = max((slot.rounding for slot in result.slots), default=_unit(result))
        if distance <= _FARTHER * (fed + rounding):
            continue
        key = tuple((each.name, each.npu, each.benchmark) for each in arguments)
        previous = groups.get(key)
        if previous is not None:
            groups[key] = replace(previous, also=(*previous.also, result.name))
            continue
        followers, below = flow.after(result.name)
        groups[key] = Suspect(
            culprit=result.name, cause=Cause.ARGUMENTS, proof=Proof.ARGUMENTS, confidence=_SURE, number=result.number,
            op_type=result.op.type, result=result, followers=followers, below=below, index=flow.index(result.name),
            facts=(Fact(name="distance", value=number_of(distance)), Fact(name="fed", value=number_of(fed)),
                   _fact(arguments)),
        )  # fmt: skip
    yield from groups.values()


def _unit(result: OpResult) -> float:
    units = [UNIT[desc.dtype] for desc in result.op.output_descs if desc.dtype in UNIT]
    return max(units, default=0.0)


class _Followers:
    """The rows of a comparison by op, and the ops behind an op."""

    def __init__(self, judged: Sequence[OpResult], rows: Sequence[Row], threshold: float) -> None:
        name_of = named_by(result.name for result in judged)
        self._rows: dict[str, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(name_of(row.op_name), []).append(row)
        self._readers: dict[str, list[str]] = {}
        for result in judged:
            for edge in result.op.inputs:
                if edge is not None:
                    self._readers.setdefault(edge.producer, []).append(result.name)
        self._threshold = threshold

    def distances(self, name: str) -> tuple[float | None, float]:
        """Return how far an op's outputs are from the benchmark (None: not compared), and its inputs."""
        found: Mapping[bool, list[float]] = {True: [], False: []}
        for row in self._rows.get(name, ()):
            distance = row.metrics.relative_euclidean_distance if row.metrics is not None else float("nan")
            if isfinite(distance):
                found[row.slot.startswith("output")].append(distance)
        return max(found[True], default=None), max(found[False], default=0.0)

    def after(self, name: str) -> tuple[int, int]:
        """Return how many ops read what an op puts out, or what is made of it, and how many of them are below."""
        visited, todo = {name}, [name]
        while todo:
            for reader in self._readers.get(todo.pop(), ()):
                if reader not in visited:
                    visited.add(reader)
                    todo.append(reader)
        return len(visited) - 1, sum(self._is_below(other) for other in visited - {name})

    def _is_below(self, name: str) -> bool:
        rows = (row for row in self._rows.get(name, ()) if row.slot.startswith("output"))
        return any(row.cosine is not None and not row.cosine >= self._threshold for row in rows)

    def index(self, name: str) -> int:
        """Return the number of an op in the result."""
        return next((row.index for row in self._rows.get(name, ())), 0)
