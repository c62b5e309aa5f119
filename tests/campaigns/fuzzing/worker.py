"""A child process that gives inputs to a reader, one after the other, under limits; and its parent, which watches it.

What the child dies of, and what takes too long, is a finding; so is every error that is none of the user's, a message
that is long or cannot be printed, an output nobody asked for, and an input that takes much memory.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from fuzzing.readers import Reader
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import PrecisionToolError

#: Address space that a child may have beyond what it begins with, and memory one input may add to its peak.
ADDRESS_SPACE, MEMORY = 1 << 30, 300 << 20
#: CPU seconds of one input after which the child is ended, and after which it is a finding though it ended by itself.
HANG, SLOW = 10.0, 2.0
#: Seconds after which an input that waits for something is ended.
WAIT = 60.0
#: Characters of a message without the path in it. Those that list what is known are long, those of no bound longer.
LONGEST = 600
_POLL = 0.02
#: Findings of one kind that a child tells of.
_TOLD = 20
#: What both processes see: number of the input, accepted, refused, findings, worst time (ns), peak memory (kB).
_BLOCK = struct.Struct("<6q")
_NUMBER, _ACCEPTED, _REFUSED, _FINDINGS, _WORST, _PEAK = range(6)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An input that a reader did not stand. `kind` is one for all that look alike, `detail` tells more."""

    number: int
    kind: str
    detail: str


@dataclass(kw_only=True)
class Tally:
    """What came out of the inputs of one reader. Times in CPU seconds, memory in bytes."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    found: int = 0
    worst_time: float = 0.0
    peak_memory: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def try_inputs(reader: Reader, make: Callable[[int], bytes], numbers: range, seconds: float | None = None) -> Tally:
    """Gives inputs to a reader in child processes, until all are done or the time is up."""
    tally = Tally()
    start = time.monotonic()
    end = None if seconds is None else start + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz", dir=_memory_folder()) as folder:
        while numbers and (end is None or time.monotonic() < end):
            numbers = _Child(reader, make, numbers, Path(folder)).watch(tally, end)
    tally.seconds = time.monotonic() - start
    return tally


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _Child:
    """One child process, as its parent sees it."""

    def __init__(self, reader: Reader, make: Callable[[int], bytes], numbers: range, folder: Path) -> None:
        self._reader, self._make, self._numbers = reader, make, numbers
        self._block = mmap.mmap(-1, _BLOCK.size)
        self._told = folder / "findings"
        self._told.write_bytes(b"")
        self._put(_NUMBER, numbers.start)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            try:
                self._run(folder)
            finally:
                os._exit(70)

    def _put(self, at: int, value: int) -> None:
        struct.pack_into("<q", self._block, 8 * at, value)

    # --- the parent

    def watch(self, tally: Tally, end: float | None) -> range:
        """Waits until the child has ended or has to be; gives the numbers that are left."""
        reason, known, since = "", -1, (0.0, 0.0)
        try:
            while True:
                done, status = os.waitpid(self._pid, os.WNOHANG)
                if done:
                    reason = self._why_it_ended(os.waitstatus_to_exitcode(status))
                    break
                now = (_cpu_seconds(self._pid), time.monotonic())
                number = _BLOCK.unpack(self._block[: _BLOCK.size])[_NUMBER]
                if number != known:
                    known, since = number, now
                elif now[0] - since[0] > HANG or now[1] - since[1] > WAIT:
                    reason = "hang: " + ("CPU time" if now[0] - since[0] > HANG else "waits")
                    break
                if end is not None and now[1] > end:
                    break
                time.sleep(_POLL)
        finally:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        return self._counted(tally, reason)

    def _why_it_ended(self, code: int) -> str:
        """Why a child ended before all its inputs were tried; empty where they were."""
        if code < 0:
            return f"dies: {signal.Signals(-code).name}"
        (number, *_) = _BLOCK.unpack(self._block[: _BLOCK.size])
        return "" if number == self._numbers.stop else f"stops with exit code {code}"

    def _counted(self, tally: Tally, reason: str) -> range:
        number, accepted, refused, found, worst, peak = _BLOCK.unpack(self._block[: _BLOCK.size])
        tally.inputs += number - self._numbers.start + bool(reason)
        tally.accepted += accepted
        tally.refused += refused
        tally.found += found + bool(reason)
        tally.worst_time = max(tally.worst_time, worst / 1e9, HANG if reason.startswith("hang") else 0)
        tally.peak_memory = max(tally.peak_memory, peak << 10)
        for line in self._told.read_text("utf-8").splitlines():
            tally.findings.append(Finding(**json.loads(line)))
        if reason:
            tally.findings.append(Finding(number=number, kind=reason, detail=""))
        return range(number + bool(reason), self._numbers.stop)

    # --- the child

    def _run(self, folder: Path) -> None:
        """Never returns."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        output = os.open(folder / "output", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        place = folder / "place"
        place.mkdir(exist_ok=True)
        os.chdir(place)
        _limit()
        warnings.simplefilter("error")
        gc.collect()
        gc.freeze()
        counts = [0] * 6
        counts[_PEAK] = _peak()
        told: dict[str, int] = {}
        path = str(place / self._reader.file_name)
        for number in self._numbers:
            self._put(_NUMBER, number)
            data = self._make(number)
            for kind, detail in self._findings_of(path, data, counts, output):
                counts[_FINDINGS] += 1
                told[kind] = told.get(kind, 0) + 1
                if told[kind] <= _TOLD:
                    line = json.dumps({"number": number, "kind": kind, "detail": detail})
                    with self._told.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
            for at in range(_ACCEPTED, _PEAK + 1):
                self._put(at, counts[at])
        self._put(_NUMBER, self._numbers.stop)
        os._exit(0)

    def _findings_of(self, path: str, data: bytes, counts: list[int], output: int) -> Iterator[tuple[str, str]]:
        """Reads one input; what is wrong with the answer, as kind and detail."""
        Path(path).write_bytes(data)
        start = time.process_time_ns()
        try:
            for reason in self._reader.read(path):
                yield from _message_findings(render(reason), path, "reason of a part")
            counts[_ACCEPTED] += 1
        except PrecisionToolError as error:
            counts[_REFUSED] += 1
            where = _place_of(error.__traceback__)
            yield from _message_findings(error.message, path, where)
            yield from _message_findings(error.hint, path, f"hint, {where}")
        except Exception as error:
            yield f"{type(error).__name__} at {_place_of(error.__traceback__)}", _last_lines(error)
        took = time.process_time_ns() - start
        if took > counts[_WORST]:
            counts[_WORST] = took
        if took > SLOW * 1e9:
            yield "slow", f"{took / 1e9:.1f} s"
        peak = _peak()
        if peak > counts[_PEAK] + (MEMORY >> 10):
            yield "memory", f"{(peak - counts[_PEAK]) >> 10} MB more than before"
        counts[_PEAK] = max(peak, counts[_PEAK])
        if os.fstat(output).st_size:
            text = os.pread(output, 300, 0)
            os.ftruncate(output, 0)
            os.lseek(output, 0, os.SEEK_SET)
            yield "prints something", repr(text)


def _limit() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ADDRESS_SPACE, held + ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _cpu_seconds(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _message_findings(text: str, path: str, where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(text, str):
        yield f"no text, {where}", repr(text)[:200]
        return
    shown = text.replace(path, "FILE").replace(os.path.dirname(path), "FOLDER")
    if len(shown) > LONGEST:
        yield f"long message, {where}", f"{len(shown)} characters: {shown[:200]!r}"
    elif not shown.isprintable():
        yield f"message that cannot be printed, {where}", repr(shown)


def _place_of(trace: TracebackType | None) -> str:
    """The innermost line of the project, or of the campaign."""
    frames = traceback.extract_tb(trace)
    ours = [frame for frame in frames if "/precision_tool/lib/" in frame.filename] or frames
    frame = ours[-1]
    return f"{frame.filename.rpartition('/precision_tool/lib/')[2]}:{frame.lineno} {frame.name}"


def _last_lines(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-3:])[-600:]
