"""The verdict from what msprobe keeps of a large job: Max, Min, Mean and Norm, checksums, or both, of one run or two.

Of one run alone, figures that no right kernel puts out accuse (`figure_laws`). With a benchmark, the first call whose
output has another checksum although all it read has the same, or whose figures depart from the benchmark's although
those of its inputs do not (`recorded_differences`). Where an input departs that no recorded call put out, that is the
source: data, a variable, or a function that was not recorded. Modules are judged where there are no APIs.

It is one pass over the entries in the order in which the calls ended; entries are read again in blocks, so memory is
that of an index, and of a line for each tensor that a call put out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Any

from precision_tool.lib.data.msprobe_tree import MsprobeLeaf
from precision_tool.lib.diagnose.figure_laws import BrokenBound, broken_bounds
from precision_tool.lib.diagnose.recorded_differences import (
    Difference,
    PairedTensor,
    allowed_of,
    allowed_of_same,
    amplification_of,
    difference_of,
    is_overwritten,
    judged_outputs,
    paired,
    unit_of,
)
from precision_tool.lib.diagnose.recorded_statistics import Statistics, statistics_of, statistics_of_any
from precision_tool.lib.io.msprobe_dump import DumpIndex, read_calls, read_dump_index
from precision_tool.lib.messages import Message
from precision_tool.lib.model.msprobe import MODULE_PREFIXES, Direction, RecordedCall, RecordedTensor, parse_call_name

#: Entries that are read at a time.
_BLOCK = 512
#: Suspects, and readers of one of them, that are kept.
_MOST_SUSPECTS, _MOST_READERS = 10, 8
#: Differences of bytes that may come to nothing, of which so many are kept.
_MOST_DOUBTFUL = 1000
#: The least share of a run's entries that its benchmark must have.
_LEAST_PAIRED = 0.5
#: The prefix of calls whose results are made of what other ranks put in.
_COMMUNICATION = "Distributed"
#: Parts of names of functions that draw random numbers.
_RANDOM = ("dropout", "rand", "normal", "bernoulli", "multinomial", "uniform", "exponential_", "poisson")


class Ground(StrEnum):
    """Why a call is suspected, the strongest first."""

    #: Its figures break a law.
    LAW = "law"
    #: It put out other bytes than the benchmark's call for the same bytes, and other figures than rounding explains.
    CHECKSUM = "checksum"
    #: Its figures depart from the benchmark's, and those of its inputs do not.
    DEPARTURE = "departure"
    #: It reads something that departs, which no recorded call put out.
    SOURCE = "source"
    #: It put out other bytes for the same bytes; that is no more than rounding, or there are no figures to tell.
    BYTES = "bytes"
    #: It draws random numbers, and drew others.
    RANDOM = "random"


#: How sure each is: a recomputed op is 0.95 to 0.98.
_CONFIDENCE = {
    Ground.LAW: 0.85, Ground.CHECKSUM: 0.85, Ground.DEPARTURE: 0.6, Ground.SOURCE: 0.6, Ground.BYTES: 0.4,
    Ground.RANDOM: 0.3,
}  # fmt: skip
#: From here on a suspect is accused.
_ACCUSED = 0.5


class Origin(StrEnum):
    """Where an input is from that no recorded call put out."""

    DATA = "data"
    VARIABLE = "variable"
    UNRECORDED = "unrecorded"
    #: It is what communication brought, which is made of what other ranks put in.
    RANKS = "ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A call that reads what another put out."""

    name: str
    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSuspect:
    """A call that figures or checksums speak against.

    `number` is its place in the file. `slot` is what is wrong: an output, or of a source the input. `bounds` are the
    laws that it breaks, the worst first, and `difference` what it is apart from the benchmark. `producers` put out what
    it reads, `readers` read what it put out, the first first.
    """

    name: str
    number: int
    ground: Ground
    slot: str
    confidence: float
    bounds: tuple[BrokenBound, ...] = ()
    difference: Difference | None = None
    origin: Origin | None = None
    producers: tuple[str, ...] = ()
    readers: tuple[Reader, ...] = ()

    @property
    def is_accused(self) -> bool:
        """Whether there is more against it than a difference of bytes."""
        return self.confidence >= _ACCUSED

    @property
    def reasons(self) -> tuple[Message, ...]:
        """What is held against it, with the figures."""
        if self.bounds:
            return tuple(_bound_message(bound) for bound in self.bounds)
        difference = self.difference
        figures = None if difference is None or not difference.figure else _figures_message(difference)
        if self.ground is Ground.SOURCE:
            return (Message("figures.source", slot=self.slot, origin=str(self.origin), figures=figures),)
        return (Message(f"figures.{self.ground}", slot=self.slot, figures=figures),)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "name": self.name, "number": self.number, "ground": str(self.ground), "slot": self.slot,
            "confidence": self.confidence, "accused": self.is_accused,
            "origin": None if self.origin is None else str(self.origin),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "producers": list(self.producers),
            "readers": [{"name": reader.name, "slot": reader.slot} for reader in self.readers],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresVerdict:
    """What figures and checksums alone say of a step of a rank.

    `suspects` are ranked. Of the `calls`, `judged` have laws that apply, `compared` have a twin in the benchmark;
    `has_checksums` and `has_figures` say what both sides, or the run alone, have to hold together. `unpaired` are calls
    that the benchmark lacks. `reason` says why nothing, or not the benchmark, was looked at.
    """

    path: str
    benchmark: str | None
    step: int | None
    rank: int | None
    level: str
    suspects: tuple[FigureSuspect, ...] = ()
    calls: int = 0
    judged: int = 0
    compared: int = 0
    same: int = 0
    unpaired: int = 0
    has_checksums: bool = False
    has_figures: bool = False
    reason: Message | None = None

    @property
    def culprit(self) -> FigureSuspect | None:
        """The first suspect, if it is accused."""
        return self.suspects[0] if self.suspects and self.suspects[0].is_accused else None

    @property
    def conclusion(self) -> Message:
        """What is said first: from statistics only, as it is."""
        if self.culprit is not None:
            return Message("figures.accused", culprit=self.culprit.name, ground=str(self.culprit.ground))
        if self.suspects and self.suspects[0].ground is Ground.LAW:
            return Message("figures.doubtful", call=self.suspects[0].name)
        if self.suspects:
            return Message("figures.first_difference", call=self.suspects[0].name)
        if self.reason is not None and not self.judged:
            return self.reason
        return Message("figures.nothing", judged=self.judged, compared=self.compared or None, calls=self.calls)

    def config(self) -> dict[str, Any] | None:
        """Return a `config.json` of msprobe that collects the tensors that decide; None where nobody is suspected.

        They go to `dump_path`, a new folder. The names in `list` are those of the first suspect, of what put out its
        inputs and of what reads its outputs; msprobe collects each entry in whose name one of them occurs.
        """
        if not self.suspects:
            return None
        suspect = self.suspects[0]
        names = dict.fromkeys(
            [suspect.name, *_twins(suspect.name), *suspect.producers, *(reader.name for reader in suspect.readers)]
        )  # fmt: skip
        return {
            "task": "tensor",
            "dump_path": "tensor_dump",
            "rank": [] if self.rank is None else [self.rank],
            "step": [] if self.step is None else [self.step],
            "level": self.level or "mix",
            "async_dump": False,
            "extra_info": True,
            "tensor": {"scope": [], "list": list(names), "data_mode": ["all"], "summary_mode": "md5"},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "path": self.path, "benchmark": self.benchmark, "step": self.step, "rank": self.rank,
            "conclusion": self.conclusion.to_dict(), "suspects": [suspect.to_dict() for suspect in self.suspects],
            "calls": self.calls, "judged": self.judged, "compared": self.compared, "same": self.same,
            "unpaired": self.unpaired, "has_checksums": self.has_checksums, "has_figures": self.has_figures,
            "reason": None if self.reason is None else self.reason.to_dict(), "config": self.config(),
        }  # fmt: skip


def _bound_message(bound: BrokenBound) -> Message:
    return Message(
        "figures.bound", slot=bound.slot, figure=bound.figure, value=bound.value,
        low=bound.low if isfinite(bound.low) else None, high=bound.high if isfinite(bound.high) else None,
        law=bound.law,
    )  # fmt: skip


def _figures_message(difference: Difference) -> Message:
    return Message(
        "figures.both", figure=difference.figure, value=difference.value, benchmark=difference.benchmark,
        relative=difference.relative, allowed=difference.allowed,
    )  # fmt: skip


def _twins(name: str) -> list[str]:
    """The forward entry of a gradient, which has what it was computed from."""
    forward = _forward_name(name)
    return [] if forward is None else [forward]


def _forward_name(name: str) -> str | None:
    call = parse_call_name(name)
    if call is None or call.direction is not Direction.BACKWARD:
        return None
    return call.entry(Direction.FORWARD)


def judge_figures(leaf: MsprobeLeaf, benchmark: MsprobeLeaf | None = None) -> FiguresVerdict:
    """Return what statistics and checksums alone say of a step of a rank.

    Parameters
    ----------
    leaf : MsprobeLeaf
        The run's step of a rank.
    benchmark : MsprobeLeaf, optional
        The same of another run of this network: of the same types for checksums to be compared, of any for figures.

    Raises
    ------
    FormatError, DataNotFoundError
        A `dump.json` is missing, or is none.
    """
    index = read_dump_index(leaf.dump)
    other = None if benchmark is None else read_dump_index(benchmark.dump)
    return _Judge(leaf, benchmark, index, other).verdict()


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry with its forward, and both of the benchmark."""

    number: int
    call: RecordedCall
    forward: RecordedCall | None
    twin: RecordedCall | None
    twin_forward: RecordedCall | None


class _Judge:
    """One pass over the entries."""

    def __init__(
        self, leaf: MsprobeLeaf, benchmark: MsprobeLeaf | None, index: DumpIndex, other: DumpIndex | None
    ) -> None:
        self._leaf, self._benchmark, self._index = leaf, benchmark, index
        names = [(number, name) for number, name in enumerate(index.names)]
        apis = [item for item in names if item[1].partition(".")[0] not in MODULE_PREFIXES]
        self._names = apis or [item for item in names if not _is_parameters_grad(item[1])]
        self._reason: Message | None = None if self._names else Message("figures.no_calls")
        if other is not None and self._names:
            there = set(other.names)
            shared = sum(name in there for _, name in self._names)
            if shared < _LEAST_PAIRED * len(self._names):
                self._reason = Message("figures.other_network", shared=shared, calls=len(self._names))
                other = None
        self._other = other
        self._numbers = {name: number for number, name in enumerate(index.names)}
        self._other_numbers = {} if other is None else {name: number for number, name in enumerate(other.names)}
        #: Functions that one side called more often: which of their calls belong together is not known.
        self._unequal = frozenset[str]()
        if other is not None:
            counts = [Counter(map(_function, side.names)) for side in (index, other)]
            self._unequal = frozenset(name for name in counts[0] if counts[0][name] != counts[1][name])
        self._suspects: list[FigureSuspect] = []
        #: The entry that put out a tensor last, by its checksum and by its figures.
        self._producers: dict[tuple[Any, ...], tuple[str, Statistics | None]] = {}
        #: Outputs of suspects, by the same keys: whose readers are looked for.
        self._watched: dict[tuple[Any, ...], int] = {}
        self._readers: dict[int, list[Reader]] = {}
        self._judged = self._compared = self._same = 0
        self._unpaired: set[str] = set()
        self._has_checksums = self._has_figures = False
        #: The largest difference of figures and the coarsest rounding so far, and what was seen.
        self._seen = self._unit = 0.0
        self._has_departed = self._is_after_forward = self._has_computed = False
        #: Whether bytes can be the same: until a call rounds in its own way.
        self._trusts_bytes = True
        #: Suspects for other bytes with the same figures, by what was written into it if that is why.
        self._doubtful: dict[tuple[Any, ...], FigureSuspect] = {}

    def verdict(self) -> FiguresVerdict:
        """Judge all entries."""
        for entry in self._entries():
            self._note_readers(entry.call)
            self._drop_overwritten(entry.call)
            if entry.call.call is not None and entry.call.call.direction is Direction.BACKWARD:
                self._is_after_forward = True
            suspect = self._suspect_of(entry)
            self._note_outputs(entry.call, suspect)
        self._suspects += self._doubtful.values()
        ranked = sorted(self._suspects, key=lambda suspect: (not suspect.is_accused, suspect.number))
        suspects = tuple(
            replace(suspect, readers=tuple(self._readers.get(suspect.number, ())))
            for suspect in ranked[:_MOST_SUSPECTS]
        )  # fmt: skip
        return FiguresVerdict(
            path=self._leaf.path,
            benchmark=None if self._benchmark is None else self._benchmark.path,
            step=self._leaf.step,
            rank=self._leaf.rank,
            level=self._index.level,
            suspects=suspects,
            calls=len(self._names),
            judged=self._judged,
            compared=self._compared,
            same=self._same,
            unpaired=len(self._unpaired),
            has_checksums=self._has_checksums,
            has_figures=self._has_figures,
            reason=self._reason,
        )

    # --- reading

    def _entries(self) -> Iterator[_Entry]:
        for start in range(0, len(self._names), _BLOCK):
            block = self._names[start : start + _BLOCK]
            wanted = [name for _, item in block for name in (item, _forward_name(item)) if name is not None]
            calls = self._read(self._index, self._numbers, wanted)
            twins = {} if self._other is None else self._read(self._other, self._other_numbers, wanted)
            for number, name in block:
                call = calls.get(name)
                if call is not None and call.call is not None:
                    forward = _forward_name(name) or ""
                    twin = None if _function(name) in self._unequal else twins.get(name)
                    yield _Entry(number, call, calls.get(forward), twin, twins.get(forward))

    @staticmethod
    def _read(index: DumpIndex, numbers: Mapping[str, int], names: list[str]) -> dict[str, RecordedCall]:
        wanted = sorted({numbers[name] for name in names if name in numbers})
        return {call.name: call for call in read_calls(index, wanted) if isinstance(call, RecordedCall)}

    # --- who put out what

    def _note_outputs(self, call: RecordedCall, suspect: FigureSuspect | None) -> None:
        for slot, tensor in call.tensors():
            if slot.startswith("output"):
                for key in _keys(tensor):
                    self._producers[key] = (call.name, statistics_of(tensor))
                    self._watched.pop(key, None)
                    if suspect is not None and slot == suspect.slot:
                        self._watched[key] = suspect.number

    def _note_readers(self, call: RecordedCall) -> None:
        if not self._watched:
            return
        for slot, tensor in call.tensors():
            if not slot.startswith("output"):
                for number in {self._watched[key] for key in _keys(tensor) if key in self._watched}:
                    readers = self._readers.setdefault(number, [])
                    if len(readers) < _MOST_READERS and all(reader.name != call.name for reader in readers):
                        readers.append(Reader(name=call.name, slot=slot))

    def _drop_overwritten(self, call: RecordedCall) -> None:
        """Forget differences of bytes of what is written into: msprobe takes CRCs in the background, of what is there
        by then.
        """
        if self._doubtful:
            for slot, tensor in call.tensors():
                if is_overwritten(call, slot):
                    self._doubtful.pop(_written(tensor), None)

    def _producer_of(self, tensor: RecordedTensor) -> str | None:
        statistics = statistics_of(tensor)
        for key in _keys(tensor):
            name, figures = self._producers.get(key, ("", None))
            if name and (key[0] == "checksum" or (statistics and figures and statistics.is_like(figures))):
                return name
        return None

    def _producers_of(self, call: RecordedCall) -> tuple[str, ...]:
        inputs = (tensor for slot, tensor in call.tensors() if not slot.startswith("output"))
        names = (self._producer_of(tensor) for tensor in inputs)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    # --- judging

    def _suspect_of(self, entry: _Entry) -> FigureSuspect | None:
        laws = broken_bounds(entry.call, entry.forward)
        self._judged += laws is not None
        if laws and entry.twin is not None:
            # What the benchmark does as well is no fault of this kernel.
            theirs = {bound.law for bound in broken_bounds(entry.twin, entry.twin_forward) or ()}
            laws = [bound for bound in laws if bound.law not in theirs]
        suspect = None
        if self._other is not None:
            if entry.twin is None:
                self._unpaired.add(entry.call.name)
            else:
                self._compared += 1
                suspect = self._difference(entry, entry.twin)
        if laws:
            laws.sort(key=lambda bound: -bound.excess)
            broken = self._suspect(entry.call, entry.number, Ground.LAW, laws[0].slot, bounds=tuple(laws))
            if _may_be_another(entry.call):
                broken = replace(broken, confidence=_CONFIDENCE[Ground.BYTES])
            if suspect is None or broken.is_accused:
                suspect = broken
        if any(isinstance(item, RecordedTensor) for item in entry.call.outputs):
            self._has_computed = True
        if suspect is not None and len(self._suspects) < _MOST_SUSPECTS:
            self._suspects.append(suspect)
        return suspect

    def _suspect(self, call: RecordedCall, number: int, ground: Ground, slot: str, **more: Any) -> FigureSuspect:
        return FigureSuspect(
            name=call.name, number=number, ground=ground, slot=slot, confidence=_CONFIDENCE[ground],
            producers=self._producers_of(call), **more,
        )  # fmt: skip

    def _difference(self, entry: _Entry, twin: RecordedCall) -> FigureSuspect | None:
        """Hold a call against the benchmark's."""
        call = entry.call
        own = list(paired(call, twin, outputs=False))
        # The CRC of what a call writes into may be of what it has written.
        own = [
            pair for pair in own
            if pair.is_same or not pair.has_same_figures or not is_overwritten(call, pair.slot)
        ]  # fmt: skip
        read = list(own)
        if entry.forward is not None and entry.twin_forward is not None:
            read += paired(entry.forward, entry.twin_forward, outputs=False)
            read += paired(entry.forward, entry.twin_forward, outputs=True)
        wrote = list(paired(call, twin, outputs=True))
        if any(pair.own.dtype != pair.other.dtype for pair in (*read, *wrote)):
            self._trusts_bytes = False  # from here on both round in their own ways
        if call.call is not None and call.call.direction is Direction.BACKWARD:
            # Gradients are added up and scaled in place, by functions that are not recorded.
            wrote = [pair for pair in wrote if not pair.has_same_figures or pair.is_same]
        knows_bytes = self._trusts_bytes and bool(wrote) and all(pair.is_comparable for pair in (*read, *wrote))
        self._has_checksums |= knows_bytes
        self._has_figures |= any(pair.own.maximum is not None and pair.other.maximum is not None for pair in wrote)
        reads_same = knows_bytes and bool(read) and all(pair.is_same for pair in read)
        slots = judged_outputs(call, entry.forward, reads_same=reads_same)
        if knows_bytes and all(pair.is_same for pair in (*read, *wrote)):
            self._same += 1
            return None
        # What was in a coarse type once is not more exact in a finer one.
        unit = self._unit = max(self._unit, unit_of(call, twin))
        source = self._source(entry, own, unit)
        differences = [(pair, difference_of(pair, elements=False)) for pair in (*read, *wrote)]
        inputs = [difference.relative for _, difference in differences[: len(read)] if difference is not None]
        seen = max([self._seen, *(value for value in inputs if isfinite(value))])
        # A kernel that puts out too little does not excuse itself: the benchmark must have lost as much.
        factor = amplification_of(call, entry.forward)
        if call.call is not None and call.call.direction is Direction.BACKWARD:
            factor = min(factor, amplification_of(twin, entry.twin_forward))
        allowed = allowed_of_same(unit, factor) if reads_same else allowed_of(unit, seen, factor)
        outputs = [
            replace(difference, allowed=allowed)
            for pair, difference in differences[len(read) :]
            if difference is not None and pair.slot in slots
        ]
        is_explained = any(value > allowed for value in inputs) or any(map(_is_not_finite, read))
        self._seen = max([seen, *(item.relative for item in outputs if isfinite(item.relative))])
        if source is not None:
            return source
        worst = max(outputs, key=lambda item: item.relative, default=None)
        if call.call is not None and call.call.prefix == _COMMUNICATION:
            return self._from_ranks(entry, wrote if reads_same else [], worst)
        if reads_same:
            return self._other_bytes(entry, wrote, worst)
        if worst is None or not worst.is_beyond or is_explained or self._has_departed or _is_another_node(entry):
            return None
        self._has_departed = True
        return self._suspect(call, entry.number, Ground.DEPARTURE, worst.slot, difference=worst)

    def _other_bytes(
        self, entry: _Entry, wrote: list[PairedTensor], worst: Difference | None
    ) -> FigureSuspect | None:  # fmt: skip
        """Tell of a call that put out other bytes for the same bytes."""
        call = entry.call
        first = next(pair for pair in wrote if not pair.is_same)
        slot = first.slot
        if call.call is not None and any(word in call.call.name.lower() for word in _RANDOM):
            ground = Ground.RANDOM
        elif worst is not None and worst.is_beyond:
            ground, slot = Ground.CHECKSUM, worst.slot
            self._has_departed = True
        elif first.has_same_figures:
            suspect = self._suspect(call, entry.number, Ground.BYTES, slot, difference=worst)
            self._doubt(first, suspect)
            return None
        else:
            ground = Ground.BYTES
        self._trusts_bytes = False  # the first stands for all that follow
        return self._suspect(call, entry.number, ground, slot, difference=worst)

    def _from_ranks(
        self, entry: _Entry, other_bytes: list[PairedTensor], worst: Difference | None
    ) -> FigureSuspect | None:  # fmt: skip
        """Tell of communication that brought something else: another rank departed before, and it is judged there."""
        departs = worst is not None and worst.is_beyond
        differing = [pair.slot for pair in other_bytes if not pair.is_same and not pair.has_same_figures]
        if self._has_departed or not (departs or differing):
            return None
        self._has_departed, self._trusts_bytes = departs, False
        slot = worst.slot if worst is not None and departs else differing[0]
        suspect = self._suspect(
            entry.call, entry.number, Ground.SOURCE, slot, origin=Origin.RANKS, difference=worst
        )  # fmt: skip
        return replace(suspect, confidence=_CONFIDENCE[Ground.BYTES])

    def _doubt(self, pair: PairedTensor, suspect: FigureSuspect) -> None:
        """Keep a difference of bytes whose figures are the same, until something is seen to be written there."""
        if len(self._doubtful) < _MOST_DOUBTFUL:
            self._doubtful.setdefault(_written(pair.own), suspect)

    def _source(self, entry: _Entry, own: list[PairedTensor], unit: float) -> FigureSuspect | None:
        """Tell of the first input that departs, which no recorded call put out."""
        if self._has_departed:
            return None
        for pair in own:
            by_bytes = self._trusts_bytes and pair.is_comparable
            producer = self._producer_of(pair.own)
            if pair.is_same or (producer is not None and producer not in self._unpaired):
                continue
            # What comes before all that is computed was not rounded but to its type, each element of it.
            difference = difference_of(pair, elements=not self._has_computed)
            allowed = allowed_of(unit, self._seen, 1.0)
            origin = self._origin(pair.own) if producer is None else Origin.UNRECORDED
            if difference is None:
                # A checksum without figures tells only that it is not the same.
                if not by_bytes or statistics_of(pair.own) is not None:
                    continue
                difference = Difference(slot=pair.slot)
            elif not by_bytes:
                # Training takes variables apart, and gradients add up behind the last node that is recorded.
                is_trained = self._is_after_forward or (origin is not Origin.DATA and self._leaf.step)
                if is_trained or not replace(difference, allowed=allowed).is_beyond:
                    continue
            difference = replace(difference, allowed=allowed)
            suspect = self._suspect(
                entry.call, entry.number, Ground.SOURCE, pair.slot, origin=origin, difference=difference
            )  # fmt: skip
            if difference.figure and not difference.is_beyond:
                suspect = replace(suspect, confidence=_CONFIDENCE[Ground.BYTES])
            if pair.has_same_figures:
                if not self._is_after_forward:
                    self._doubt(pair, suspect)
                continue
            if suspect.is_accused:
                self._has_departed = True
            else:
                self._trusts_bytes = False
            return suspect
        return None

    def _origin(self, tensor: RecordedTensor) -> Origin:
        if self._is_after_forward:
            return Origin.UNRECORDED
        return Origin.VARIABLE if tensor.requires_grad else Origin.DATA


def _function(name: str) -> str:
    """A name without the number of the call."""
    call = parse_call_name(name)
    return name if call is None else f"{call.prefix}.{call.name}.{call.class_name}.{call.direction}"


def _may_be_another(call: RecordedCall) -> bool:
    """Whether the class of a module may be the user's, of which the name alone does not tell what it computes.

    The classes with parameters are those that are written again: a `Linear` that scales its weight.
    """
    return call.call is not None and call.call.is_module and bool(call.parameters)


def _is_not_finite(pair: PairedTensor) -> bool:
    statistics = statistics_of_any(pair.own)
    return statistics is not None and not statistics.is_finite


def _is_another_node(entry: _Entry) -> bool:
    """Whether a gradient is that of the function before, on one side: the forward has put out what it was given."""
    for forward in (entry.forward, entry.twin_forward):
        if forward is not None and forward.inputs and forward.outputs:
            given, out = forward.inputs[0], forward.outputs[0]
            if isinstance(given, RecordedTensor) and isinstance(out, RecordedTensor):
                figures = [statistics_of(tensor) for tensor in (given, out)]
                if given.dtype == out.dtype and figures[0] and figures[1] and figures[0].is_like(figures[1]):
                    return True
    return False


def _is_parameters_grad(name: str) -> bool:
    call = parse_call_name(name)
    return call is not None and call.direction is Direction.PARAMETERS_GRAD


def _written(tensor: RecordedTensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.maximum, tensor.minimum, tensor.norm


def _keys(tensor: RecordedTensor) -> Iterator[tuple[Any, ...]]:
    """What tensors of the same numbers share: bytes, or, in another shape, figures."""
    if tensor.checksum:
        yield "checksum", tensor.dtype, tensor.checksum
    statistics = statistics_of(tensor)
    if statistics is not None and not statistics.is_constant:
        yield "figures", statistics.dtype, statistics.count, statistics.maximum, statistics.minimum
