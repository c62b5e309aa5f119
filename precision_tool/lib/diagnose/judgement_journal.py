"""The judgements of a run's ops, kept while it is recomputed: after Ctrl+C the same command goes on from there.

Each run has a text file of its own among what is only kept to save time, with a line and a checksum for each
judgement, appended a few seconds' worth at a time. A study's journal (`study_journal`) is another matter: that has the
outcomes of whole leaves, which are results and outlive the command, and one writer. This one is removed when the
verdict is made, needs no lock, and costs only time when it is lost. It is read as if somebody had made it up: what is
odd about a line makes it worthless, and its op is recomputed.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_tool.lib.compare.scheduler import WorkStoppedError, ctrl_c_ignored
from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.diagnose.device_profile import Device
from precision_tool.lib.diagnose.error_shape import Places, has_rounding
from precision_tool.lib.diagnose.formulas import Ref
from precision_tool.lib.diagnose.study_plan import made_by
from precision_tool.lib.diagnose.verdict_model import Judgement, OpResult, SlotResult, State
from precision_tool.lib.io.files import content_signature_of, read_bytes
from precision_tool.lib.io.urls import is_remote
from precision_tool.lib.io.writing import append_bytes, replacing
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.documents import from_document, to_document
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.ops.base import OPS

if TYPE_CHECKING:
    from precision_tool.lib.diagnose.op_values import RunValues
    from precision_tool.lib.diagnose.recomputer import Recomputer

#: To be raised with every change of what is kept; a file of another version is begun anew.
_HEADER = b"precision_tool judgements 1 "
_PREFIX, _SUFFIX = "judged_", ".jsonl"
#: Seconds between two writings: a run that takes less writes nothing, unless it is stopped.
_INTERVAL = 5.0
#: A judgement takes about 1 kB.
_MAX_BYTES = 256 << 20
_CHECK_BYTES = 16
#: Integers, characters of a text, and items of a list that no judgement exceeds.
_MAX_INT, _MAX_TEXT, _MAX_ITEMS = 1 << 62, 1 << 12, 1 << 12
#: Reasons that another try may not have.
_PASSING = frozenset({
    "reason.out_of_time", "reason.out_of_memory", "reason.worker_died", "reason.not_done", "reason.unreadable",
})  # fmt: skip
#: Where inputs are from that an op's own dump lacks.
_SOURCES = ("producer", "reader", "benchmark")

#: The stages of a formula: types and arguments (`Formula.shape`).
_Shape = tuple[tuple[str, tuple[Ref | None, ...]], ...]
_FIELDS = tuple(item.name for item in fields(Judgement))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A judgement as it is stored, of the op of this name and type.

    `look` tells how it was looked at, and `shape` how the ops that are fused alike hang together, as was known then.
    """

    name: str
    type: str
    look: str
    shape: _Shape | None
    judgement: Judgement


class KeptJudgements:
    """The journals of the runs that a command judges, in the first of some folders that can be written.

    Where none can, nothing is kept, without a word.
    """

    def __init__(self, folders: Iterable[str | Path] = ()) -> None:
        self._folders = [str(folder) for folder in folders if not is_remote(folder)]
        self._journals: list[JudgementJournal] = []

    def open(self, recomputer: Recomputer) -> JudgementJournal | None:
        """Return the journal of a run; None where nothing of it is kept."""
        paths = _paths_of(recomputer.values, recomputer.candidates.unfused)
        if not self._folders or any(map(is_remote, paths)):  # a request for each file
            return None
        journal = JudgementJournal(recomputer, self._folders, paths)
        self._journals.append(journal)
        return journal

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Forget the judgements at the end of the block, when the verdict is made; keep them when it ends early.

        Raises
        ------
        WorkStoppedError
            After Ctrl+C, with how many ops were judged; a plain KeyboardInterrupt where nothing could be kept.
        """
        try:
            yield
        except BaseException as error:
            with ctrl_c_ignored():  # once was enough: what is done is being saved
                for journal in self._journals:
                    journal.write()
            done = sum(journal.done for journal in self._journals)
            if isinstance(error, KeyboardInterrupt) and done and not any(item.is_lost for item in self._journals):
                count = sum(journal.count for journal in self._journals)
                raise WorkStoppedError("diagnose.recompute_stopped", done=done, count=count) from None
            raise
        for journal in self._journals:
            journal.remove()


class JudgementJournal:
    """The journal of one run. What does not belong to its files as they are, and to this release, is not taken."""

    def __init__(self, recomputer: Recomputer, folders: Sequence[str], paths: Sequence[str]) -> None:
        self._recomputer = recomputer
        name = _digest(posixpath.abspath(recomputer.values.leaf.path))[:32]
        self._places = [posixpath.join(folder, f"{_PREFIX}{name}{_SUFFIX}") for folder in folders]
        # Now: a file that changes while it is judged must show.
        self._files = _digest("\0".join(f"{path}\0{content_signature_of(path)}" for path in paths))
        self._pending: list[tuple[OpResult, str]] = []
        self._written = time.monotonic()
        #: The file that lines are appended to; "" as long as there is none.
        self._path = ""
        self._first: set[int] = set()
        self._device: tuple[Device, str] | None = None
        #: Whether something could not be written.
        self.is_lost = False

    @property
    def count(self) -> int:
        """Ops to be judged."""
        return len(self._recomputer.computing)

    @property
    def done(self) -> int:
        """Ops of which there is a judgement."""
        return len(self._first)

    def judged(self, op: Op) -> OpResult | None:
        """Return the judgement that an earlier run left of an op, looked at as now; None without one.

        How the op hangs together, as was known then, is known again.
        """
        if not self._entries:
            return None
        number = self._recomputer.values.number_of(op)
        entry = self._entries.get((number, self._look(op)))
        if entry is None or not _is_sound(entry, op, self._recomputer):
            return None
        if entry.shape is not None:
            self._recomputer.fitting.setdefault(self._recomputer.key(op), entry.shape)
        self._count(number)
        return OpResult(op=op, **{name: getattr(entry.judgement, name) for name in _FIELDS})

    def keep(self, result: OpResult) -> None:
        """Take a new judgement; it is written within seconds."""
        if self.is_lost or (result.reason is not None and result.reason.kind in _PASSING) or not _is_built_in(result):
            return
        self._pending.append((result, self._look(result.op)))
        self._count(result.number)
        if time.monotonic() - self._written >= _INTERVAL:
            self.write()

    def write(self) -> None:
        """Write what was not written yet."""
        if not self._pending or self.is_lost:
            return
        lines = b"".join(self._line(result, look) for result, look in self._pending)
        self._pending.clear()
        # Of a process that was killed the last line may lack its end.
        self.is_lost = not (self._append(b"\n" + lines) if self._path else self._begin(lines))
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file, if there is one."""
        for path in self._places:
            with suppress(OSError):
                Path(path).unlink()

    # --- writing ---

    def _begin(self, lines: bytes) -> bool:
        for path in self._places:
            with suppress(OSError):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    Path(temporary).write_bytes(_HEADER + self._made_of + b"\n" + lines)
                self._path = path
                return True
        return False

    def _append(self, lines: bytes) -> bool:
        with suppress(OSError):  # another command, which judged the run as well, may have removed it
            append_bytes(self._path, lines)
            return True
        return False

    def _line(self, result: OpResult, look: str) -> bytes:
        entry = _Entry(
            name=result.name, type=result.op.type, look=look,
            shape=self._recomputer.fitting.get(self._recomputer.key(result.op)),  # type: ignore[arg-type]
            judgement=Judgement(**{name: getattr(result, name) for name in _FIELDS}),
        )  # fmt: skip
        try:
            body = json.dumps(to_document(entry), separators=(",", ":")).encode()
        except (TypeError, ValueError):  # of a type that no document has: recomputed, rather than the end of the run
            return b""
        return self._check(body) + b" " + body + b"\n"

    def _check(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=_CHECK_BYTES, key=self._made_of).hexdigest().encode()

    @cached_property
    def _made_of(self) -> bytes:
        """What changes with the files that are read, and with this package's code."""
        return _digest(f"{self._files}{made_by()}").encode()[:64]

    # --- how an op is looked at ---

    def _count(self, number: int) -> None:
        if self._recomputer.device is None:
            self._first.add(number)

    def _look(self, op: Op) -> str:
        """Return a digest of what else than files decides how an op is judged."""
        recomputer = self._recomputer
        quiet = op.name in recomputer.values.compared.quiet
        places = self._places_of.get(op.name)
        return _digest(f"{recomputer.is_first_look} {quiet} {places} {self._device_look(recomputer.device)}")[:32]

    @cached_property
    def _places_of(self) -> Mapping[str, list[tuple[str, tuple[int, int]]]]:
        """Where the comparison shows the largest errors of an op's outputs, by its name."""
        by_name: dict[str, list[tuple[str, tuple[int, int]]]] = {}
        for (name, slot), place in sorted(self._recomputer.values.compared.places.items()):
            by_name.setdefault(name, []).append((slot, place))
        return by_name

    def _device_look(self, device: Device | None) -> str:
        if device is None:
            return ""
        if self._device is None or self._device[0] is not device:
            by_key = sorted((repr(key), sorted(each.items())) for key, each in device.imprecisions.items())
            kinds = sorted((repr(key), kind.value) for key, kind in device.kinds.items())
            profile = json.dumps(to_document(device.profile), sort_keys=True)
            self._device = device, _digest(f"{by_key}{kinds}{sorted(device.flushes)}{profile}")
        return self._device[1]

    # --- reading ---

    @cached_property
    def _entries(self) -> Mapping[tuple[int, str], _Entry]:
        for path in self._places:
            try:
                header, *lines = read_bytes(path, _MAX_BYTES).split(b"\n")
            except PrecisionToolError:
                continue  # there is none
            if header == _HEADER + self._made_of:
                self._path = path
                entries = filter(None, map(self._entry, lines))
                return {(entry.judgement.number, entry.look): entry for entry in entries}
        return {}

    def _entry(self, line: bytes) -> _Entry | None:
        check, _, body = line.partition(b" ")
        if not body or check != self._check(body):
            return None
        try:
            return from_document(_Entry, json.loads(body, parse_constant=_refuse))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
            return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _paths_of(values: RunValues, unfused: GraphFile | None) -> list[str]:
    """Return the files that judging a run may read."""
    paths = [file.path for file in values.leaf.files]
    paths += [graph.path for graph in (values.file, unfused) if graph is not None]
    if isinstance(values.benchmark, GoldenFiles):
        paths += [file.path for file in values.benchmark.files]
    return paths


def _is_built_in(result: OpResult) -> bool:
    """Return whether the package's own code judged an op: that of others changes unseen."""
    return not any(map(OPS.is_third_party, (result.op.type, *result.how)))


# --- what no judgement has --------------------------------------------------------------------------------------------


def _is_sound(entry: _Entry, op: Op, recomputer: Recomputer) -> bool:
    """Return whether an entry may be the judgement of an op."""
    judged = entry.judgement
    if (entry.name, entry.type) != (op.name, op.type) or not _is_small(to_document(entry)):
        return False
    dump = recomputer.values.dumped(op)
    if judged.is_dumped != (dump is not None) or (not judged.slots and judged.state is not State.NOT_RECOMPUTED):
        return False
    if judged.reason is not None and judged.reason.kind in _PASSING:
        return False
    outputs = max(len(op.output_descs), 1 + max(dump.outputs, default=-1) if dump is not None else 0, 1)
    numbers = [slot.slot for slot in judged.slots]
    if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(outputs)):
        return False
    if not all(slot >= 0 and source in _SOURCES for slot, source in judged.from_elsewhere):
        return False
    if judged.state is State.WRONG and not any(slot.beyond for slot in judged.slots):
        return False
    return all(map(_is_slot, judged.slots)) and (entry.shape is None or _is_shape(entry.shape))


def _is_slot(slot: SlotResult) -> bool:
    counts = (slot.beyond, slot.overflowed, slot.at_limit, slot.not_finite, slot.nans, slot.flushed, slot.subnormal)
    if not has_rounding(slot.dtype) or (slot.sampled or 0) < 0 or not all(0 <= count <= slot.size for count in counts):
        return False
    return slot.places is None or _is_place(slot.places)


def _is_place(places: Places) -> bool:
    is_inside = 0 <= places.first <= places.last < places.size and 0 < places.wrong <= places.size
    return is_inside and set(places.order) == set(range(len(places.order))) and (places.axis or 0) >= 0


def _is_shape(shape: _Shape) -> bool:
    """Return whether every stage works on inputs of the op and results of earlier stages."""
    refs = [(number, ref) for number, (_, args) in enumerate(shape) for ref in args if ref is not None]
    return all(ref.slot >= 0 and (ref.stage is None or 0 <= ref.stage < number) for number, ref in refs)


def _is_small(document: Any) -> bool:
    """Return whether numbers, texts and lists have a size that judgements have."""
    if isinstance(document, dict):
        return all(map(_is_small, document.values()))
    if isinstance(document, list):
        return len(document) <= _MAX_ITEMS and all(map(_is_small, document))
    if isinstance(document, str):
        return len(document) <= _MAX_TEXT
    return not isinstance(document, int) or abs(document) <= _MAX_INT
