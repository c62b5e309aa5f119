"""Threads that work through a list of files. Copying lets other threads run, so processes would gain nothing.

This module runs on Python 3.7.
"""

import os
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Callable, Dict, Generic, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

from precision_tool.lib.io.tfdbg_files import DumpedTensor, TensorEvent, is_same_npy, npy_size, read_event, write_npy
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.training.benchmark_folder import NpySet, Replaced

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Called with (bytes done, bytes in all), from the thread that waits.
Progress = Callable[[int, int], None]

_TICK = 0.25


class _StoppedError(Exception):
    """Ends the work of a thread."""


class Crew(Generic[Item, Result]):
    """Runs `work(item, told)` for each item; `told` counts bytes and ends the work when another thread failed."""

    def __init__(self, work: Callable[[Item, Callable[[int], None]], Result], workers: int = 0) -> None:
        self._work = work
        self._workers = workers or len(os.sched_getaffinity(0))
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = 0

    def run(self, items: Sequence[Item], total: int, progress: Optional[Progress] = None) -> List[Result]:
        """The results in the order of the items. The first error ends it all, Ctrl+C too."""
        results: Dict[int, Result] = {}
        todo = iter(enumerate(items))

        def loop() -> None:
            while True:
                with self._lock:
                    number, item = next(todo, (-1, None))
                if item is None or self._stop.is_set():
                    return
                results[number] = self._work(item, self._advance)

        with ThreadPoolExecutor(self._workers) as pool:
            try:
                running = set()
                for _ in range(min(self._workers, len(items))):
                    try:
                        running.add(pool.submit(loop))
                    except RuntimeError:  # no more threads can be started
                        break
                if not running:
                    self._run_here(todo, results, total, progress)
                while running:
                    ended, running = wait(running, timeout=_TICK, return_when=FIRST_EXCEPTION)
                    for thread in ended:
                        thread.result()
                    if progress is not None:
                        progress(self._done, total)
            finally:
                self._stop.set()
        return [results[number] for number in range(len(items))]

    def _run_here(
        self,
        todo: Iterator[Tuple[int, Item]],
        results: Dict[int, Result],
        total: int,
        progress: Optional[Progress],
    ) -> None:
        """The work where not one thread can be started: one item after the other, by the thread that waits."""
        for number, item in todo:
            results[number] = self._work(item, self._advance)
            if progress is not None:
                progress(self._done, total)

    def _advance(self, count: int) -> None:
        with self._lock:
            self._done += count
        if self._stop.is_set():
            raise _StoppedError


# --- Tensor files of tfdbg → a folder of `.npy` benchmark tensors, without TensorFlow ---


_MAX_NAME = 255

#: (tensor or path, reason)
Row = Tuple[str, Message]


@dataclass(frozen=True)
class Extracted:
    """What became of the tensor files. `same` says that the folder already held just these tensors."""

    folder: str
    count: int
    nbytes: int
    replaced: Replaced = field(default_factory=Replaced)
    same: bool = False
    skipped: Tuple[Row, ...] = ()
    damaged: Tuple[Row, ...] = ()
    #: What else the user should be told, each a line.
    notes: Tuple[Message, ...] = ()


def extract(
    dumps: Sequence[DumpedTensor], folder: str, workers: int = 0, progress: Optional[Progress] = None
) -> Extracted:
    """Writes the tensors into `folder` in place of all tensors that it holds."""
    named, skipped = name_files(dumps)
    heads: Crew[DumpedTensor, object] = Crew(_head, workers)
    events: Dict[str, TensorEvent] = {}
    damaged: List[Row] = []
    for dump, head in zip(named, heads.run(named, 0)):
        if isinstance(head, FormatError):
            damaged.append((dump.tensor, head.full_message))
        elif isinstance(head, TensorEvent):
            if head.skip:
                skipped.append((dump.tensor, head.skip))
            else:
                events[dump.npy_name] = head
    with NpySet(folder) as new_set:
        is_there = _is_there(new_set, events, workers, progress)
        if not is_there:
            dropped = _drop_claims(events, new_set.free())
            damaged += dropped
            is_there = bool(dropped) and _is_there(new_set, events, workers, progress)
        if is_there:
            replaced = Replaced(others=new_set.others())
        else:
            damaged += _write(events, new_set, workers, progress)
            check_any(len(events), skipped, damaged)
            replaced = new_set.commit()
    nbytes = sum(map(npy_size, events.values()))
    notes = (*new_set.notes, *alike(dump for dump in named if dump.npy_name in events))
    return Extracted(folder, len(events), nbytes, replaced, is_there, tuple(skipped), tuple(damaged), notes)


def _write(events: Dict[str, TensorEvent], new_set: NpySet, workers: int, progress: Optional[Progress]) -> List[Row]:
    """Write the tensors into the new set; takes out those that are damaged, and returns why."""
    total = sum(map(npy_size, events.values()))
    new_folder = new_set.start(total)

    def write(name: str, advance: Callable[[int], None]) -> Optional[Message]:
        try:
            write_npy(events[name], os.path.join(new_folder, name), advance)
        except FormatError as error:
            return error.full_message
        return None

    # The largest first, so that no thread is left with one at the end.
    names = sorted(events, key=lambda name: -events[name].nbytes)
    reasons = Crew(write, workers).run(names, total, progress)
    damaged = [(name, reason) for name, reason in zip(names, reasons) if reason is not None]
    for name, _ in damaged:
        del events[name]
    return damaged


def _drop_claims(events: Dict[str, TensorEvent], free: int) -> List[Row]:
    """Takes out, if all do not fit, the tensors that claim to be far larger than what their files hold of them."""
    total = sum(map(npy_size, events.values()))
    if total <= free:
        return []
    rows: List[Row] = []
    for name in [name for name, event in events.items() if event.is_mostly_claimed]:
        size = npy_size(events.pop(name))
        rows.append((name, Message("note.training.tfdbg.too_large", nbytes=size)))
    return rows


def alike(dumps: Iterable[DumpedTensor]) -> List[Message]:
    """A line about tensors of different ops whose names are spelled alike in the names of files, if there are some."""
    by_file: Dict[Tuple[str, int], List[str]] = {}
    for dump in dumps:
        names = by_file.setdefault((dump.flat_op, dump.slot), [])
        if dump.tensor not in names:
            names.append(dump.tensor)
    several = [names for names in by_file.values() if len(names) > 1]
    if not several:
        return []
    return [Message("note.training.tfdbg.alike", count=len(several), first=several[0][:3])]


def name_files(dumps: Sequence[DumpedTensor]) -> Tuple[List[DumpedTensor], List[Row]]:
    """The dumps that get a `.npy` file, each name once, and why others get none."""
    by_name: Dict[str, DumpedTensor] = {}
    skipped: List[Row] = []
    for dump in sorted(dumps, key=lambda dump: (dump.time, dump.again, dump.path)):
        if len(os.fsencode(dump.npy_name)) > _MAX_NAME:
            skipped.append((dump.tensor, Message("note.training.tfdbg.long_name")))
            continue
        other = by_name.get(dump.npy_name)
        if other is not None:
            alike_name = None if other.op == dump.op else dump.tensor
            skipped.append((other.tensor, Message("note.training.tfdbg.same_time", tensor=alike_name)))
        by_name[dump.npy_name] = dump
    return list(by_name.values()), skipped


def check_any(count: int, skipped: Sequence[Row], damaged: Sequence[Row]) -> None:
    """Raises DataNotFoundError when there is no tensor to write: the old set stays."""
    if not count:
        rows = [*damaged, *skipped]
        first = Message("error.place", where=rows[0][0], reason=rows[0][1]) if rows else None
        raise DataNotFoundError("training.no_tensors", count=len(skipped) + len(damaged), first=first)


def _head(dump: DumpedTensor, advance: Callable[[int], None]) -> object:
    try:
        return read_event(dump.path)
    except FormatError as error:
        return error


def _is_there(new_set: NpySet, events: Dict[str, TensorEvent], workers: int, progress: Optional[Progress]) -> bool:
    """Whether the folder holds these tensors already, byte for byte, and no others."""
    names = new_set.names()
    if not names or set(names) != set(events):
        return False
    paths = {name: os.path.join(new_set.folder, name) for name in names}
    try:
        if any(os.path.getsize(paths[name]) != npy_size(events[name]) for name in names):
            return False
    except OSError:
        return False

    def compare(name: str, advance: Callable[[int], None]) -> None:
        try:
            same = is_same_npy(events[name], paths[name], advance)
        except FormatError:
            same = False
        if not same:
            raise _DifferentError

    try:
        Crew(compare, workers).run(names, sum(map(npy_size, events.values())), progress)
    except _DifferentError:
        return False
    return True


class _DifferentError(Exception):
    """Ends the comparison with the tensors that are there at the first that differs."""
