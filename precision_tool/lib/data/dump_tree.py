"""The read-only walk over dump folders. It lists names and opens nothing but `mapping.csv`."""

from __future__ import annotations

import csv
import io
import posixpath
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data.dump_names import StepAndRank, placed_below
from precision_tool.lib.io.files import (
    check_folder,
    is_folder,
    may_change_unseen,
    read_text,
    signature_of,
    store_of,
)
from precision_tool.lib.io.stores import Kind, Signature
from precision_tool.lib.io.tfdbg_files import files_of_run, find_runs, last_of_each
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError
from precision_tool.lib.model.run import Benchmark, BenchmarkFile, DumpFile, DumpLeaf, DumpName, Run

MAPPING_FILE = "mapping.csv"
#: The overflow status files lie among the dumps and are read by another command.
_STATUS_OP_TYPE = "opdebug"
_MAX_MAPPING_BYTES = 256 << 20
_MAX_DEPTH = 24
#: Of names that are spelled alike so many are told.
_SHOWN_NAMES = 3


class Stamps:
    """Folders and files as they were when they were read, to tell later whether any has changed since."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, ...] | None] = {}
        self._unsure: set[str] = set()
        self._sure_until = 0.0

    def note(self, path: str) -> None:
        """Remembers a folder or a file that is about to be read, or that is not there."""
        self._remember(path, _stamp(path))

    def note_read(self, path: str, signature: Signature) -> None:
        """Remembers a file as it was when it was read, unless it was noted before that."""
        if path not in self._stamps:
            size, modified, _, inode, device = signature
            self._remember(path, (modified, size, inode, device))

    def _remember(self, path: str, stamp: tuple[int, ...] | None) -> None:
        self._stamps[path] = stamp
        if stamp is not None and may_change_unseen(stamp[0]):
            self._unsure.add(path)

    def update(self, other: Stamps) -> None:
        """Remembers what `other` does."""
        self._stamps |= other._stamps
        self._unsure |= other._unsure

    def are_current(self) -> bool:
        """True if nothing has changed. Of slow disks with very many folders, it is not asked all the time."""
        if time.monotonic() < self._sure_until:
            return True
        start = time.monotonic()
        current = not self._unsure and all(_stamp(path) == stamp for path, stamp in self._stamps.items())
        now = time.monotonic()
        if current and now - start > _SLOW:
            self._sure_until = now + _REST * (now - start)
        return current


#: Checking that takes longer than this (s) is not repeated for so many times as long.
_SLOW, _REST = 0.02, 10


def _stamp(path: str) -> tuple[int, ...] | None:
    signature = signature_of(path)
    if signature is None:
        return None
    size, modified, _, inode, device = signature
    return modified, size, inode, device


def list_folders(
    root: str,
    stamps: Stamps | None = None,
    no_files: set[str] | None = None,
    unread: list[PrecisionToolError] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Each folder below `root` and the names of its files, sorted; links to folders are followed once.

    `stamps` notes the folders, a moment before they are listed. `no_files` gets the paths of what is named like a file
    and is none, `unread` the errors of folders below `root` that cannot be listed; that of `root` is raised.
    """
    visited: set[tuple[int, ...]] = set()
    stack = [(root, 0)]
    while stack:
        folder, depth = stack.pop()
        if stamps is not None:
            stamps.note(folder)
        store = store_of(folder)
        store.list_together([folder], below=True)
        try:
            stat = store.stat(folder)
            entries = store.entries(folder)
        except PrecisionToolError as error:
            if folder == root:
                raise
            if unread is not None:  # what can be read is still worth comparing
                unread.append(error)
            continue
        if stat is not None:
            if stat.signature[3:] in visited:
                continue
            visited.add(stat.signature[3:])
        below, files = [], []
        for entry in entries:
            path = posixpath.join(folder, entry.name)
            if entry.kind is Kind.FOLDER:
                below.append(path)
            # A folder in the place of a file is named, so that opening it tells what is wrong.
            if entry.kind is not Kind.FOLDER or names.is_data_file(entry.name):
                files.append(entry.name)
                if no_files is not None and entry.kind is not Kind.FILE:
                    no_files.add(path)
        if depth < _MAX_DEPTH:
            stack += [(path, depth + 1) for path in sorted(below, reverse=True)]
        yield folder, files


def nothing_below(error: PrecisionToolError, *roots: str) -> PrecisionToolError:
    """The error for data that was not found below these folders: `error`, or that of one there which cannot be read."""
    unread: list[PrecisionToolError] = []
    for root in roots:
        if is_folder(root):
            for _ in list_folders(root, unread=unread):
                pass
    return unread[0] if unread else error


def _check_folder(path: str, what: str) -> str:
    check_folder(path, what)
    return posixpath.abspath(path)


def _read_mapping(path: str) -> dict[str, str]:
    """`number → real name` of a mapping.csv (no header line)."""
    text = read_text(path, _MAX_MAPPING_BYTES, errors="backslashreplace", newline="")
    try:
        return {row[0].strip(): row[1].strip() for row in csv.reader(io.StringIO(text, newline="")) if len(row) >= 2}
    except csv.Error as error:
        raise FormatError.of(path, "data.no_csv", error=str(error)) from error


def _leaf(folder: str, file_names: list[str], no_files: Collection[str]) -> DumpLeaf | None:
    """The dump files directly in `folder`, None if there are none; `no_files` are paths of what is no file."""
    mapping: dict[str, str] = {}
    ignored: list[tuple[str, Message]] = []
    if MAPPING_FILE in file_names:
        try:
            mapping = _read_mapping(posixpath.join(folder, MAPPING_FILE))
        except (DataNotFoundError, FormatError) as error:
            ignored.append((MAPPING_FILE, error.full_message))
    files = []
    for file_name in file_names:
        if file_name == MAPPING_FILE or file_name.endswith(names.NPY):
            continue
        real_name, suffix = file_name, ""
        stem = file_name[:-4] if file_name.endswith(".csv") else file_name
        if names.is_number(stem):
            real_name = mapping.get(file_name) or mapping.get(stem, "")
            if not real_name:
                ignored.append((file_name, Message("note.data.ignored.bare_number")))
                continue
            suffix = ".csv" if file_name.endswith(".csv") and not real_name.endswith(".csv") else ""
        parsed = names.parse_dump_name(real_name + suffix)
        if parsed is None:
            ignored.append((file_name, Message("note.data.ignored.no_dump_name")))
            continue
        name, statistics = parsed
        if is_status(name):
            ignored.append((file_name, Message("note.data.ignored.overflow_status")))
            continue
        path = posixpath.join(folder, file_name)
        files.append(DumpFile(path=path, name=name, statistics=statistics, is_file=path not in no_files))
    if not files:
        return None
    where = names.parse_leaf_path(PurePath(folder).parts)
    return DumpLeaf(
        path=folder,
        files=tuple(files),
        ignored=tuple(ignored),
        **asdict(where),
    )


def is_status(name: DumpName) -> bool:
    """True for the name of an overflow status file; the documents spell it Opdebug and OpDebug."""
    return name.op_type.casefold() == _STATUS_OP_TYPE


def is_status_file(file_name: str) -> bool:
    """True for the file name of an overflow status file, decoded (`Opdebug.….json`) or not."""
    op_type, dot, _ = file_name.partition(".")
    return bool(dot) and op_type.casefold() == _STATUS_OP_TYPE


def find_run(path: str, stamps: Stamps | None = None) -> Run:
    """Return every folder with dump files below a path.

    Of several dump times of one device the newest is taken, with all its models and steps; `notes` names the others.

    Parameters
    ----------
    path : str
        A folder of any level of the dump tree.
    stamps : Stamps, optional
        Notes the folders that are listed, to find out later whether one has changed.

    Raises
    ------
    DataNotFoundError
        There is no dump file, or only bare numbers without their `mapping.csv`.
    """
    root = _check_folder(path, "NPU dump")
    no_files: set[str] = set()
    unread: list[PrecisionToolError] = []
    listed = list_folders(root, stamps, no_files, unread)
    leaves = [leaf for folder, files in listed if (leaf := _leaf(folder, files, no_files)) is not None]
    if not leaves and any(names.is_number(name) for _, file_names in list_folders(root) for name in file_names):
        raise DataNotFoundError.of(path, "data.bare_numbers", mapping=MAPPING_FILE)
    if not leaves and unread:
        raise unread[0]
    if not leaves:
        raise DataNotFoundError.of(path, "data.no_dump_below")
    newest: dict[tuple[str, str], str] = {}
    for leaf in leaves:
        newest[_series(leaf)] = max(newest.get(_series(leaf), ""), leaf.time)
    latest = [leaf for leaf in leaves if leaf.time == newest[_series(leaf)]]
    skipped = sorted({leaf.time for leaf in leaves} - {leaf.time for leaf in latest})
    notes = []
    if unread:
        notes.append(Message("note.data.unread_folders", count=len(unread), reason=unread[0].full_message))
    if len(latest) < len(leaves):
        notes.append(Message("note.data.earlier_dumps", count=len(leaves) - len(latest), times=skipped))
    return Run(root=root, leaves=tuple(sorted(latest, key=_leaf_order)), notes=tuple(notes))


def _series(leaf: DumpLeaf) -> tuple[str, str]:
    """Leaves of one series are the same run repeated: one dump path and device, at different times."""
    return leaf.path.rsplit(f"/{leaf.time}/", 1)[0] if leaf.time else leaf.path, leaf.device


def _leaf_order(leaf: DumpLeaf) -> tuple[int, str, int, int, str]:
    def number(text: str) -> int:
        return int(text) if names.is_number(text) else -1

    return number(leaf.device), leaf.model_name, number(leaf.model_id), number(leaf.step), leaf.path


def find_named(root: str, name: str) -> list[str]:
    """Paths of the files below `root` of this name, their own or the one that `mapping.csv` gives a bare number."""
    paths = []
    for folder, file_names in list_folders(root):
        if name in file_names:
            paths.append(posixpath.join(folder, name))
        elif MAPPING_FILE in file_names:
            try:
                mapping = _read_mapping(posixpath.join(folder, MAPPING_FILE))
            except (DataNotFoundError, FormatError):
                continue  # `vc` and `ls dump` say what is wrong with it
            paths += [
                posixpath.join(folder, number)
                for number, real_name in mapping.items()
                if real_name == name and number in file_names
            ]
    return paths


def find_benchmark(path: str, stamps: Stamps | None = None) -> Benchmark:
    """Return the golden `.npy` files below a folder; if there is none, the tensors of the tfdbg runs there.

    Parameters
    ----------
    path : str
        The folder; folders below it may be named after a step or rank.
    stamps : Stamps, optional
        Notes the folders that are listed.

    Raises
    ------
    DataNotFoundError
        There is neither.
    """
    root = _check_folder(path, "benchmark tensors")
    files: dict[tuple[str, int], BenchmarkFile] = {}
    numbered: list[BenchmarkFile] = []
    ignored: list[tuple[str, Message]] = []
    older = 0
    places: dict[StepAndRank, str] = {}
    visited: set[tuple[StepAndRank, str, int]] = set()
    for folder, file_names in list_folders(root, stamps):
        place = placed_below(root, folder)
        for file_name in file_names:
            if not file_name.endswith(names.NPY):
                continue
            parsed = names.parse_golden_name(file_name)
            if parsed is None:
                ignored.append((file_name, Message("note.data.ignored.no_npy_name")))
                continue
            op_name, index, timestamp = parsed
            file = BenchmarkFile(
                path=posixpath.join(folder, file_name), op_name=op_name, index=index, timestamp=timestamp
            )
            other_reading = names.numbered_output(op_name) if file_name.count(".") == 2 else None
            if other_reading is not None:
                numbered.append(replace(file, op_name=other_reading[0], index=other_reading[1]))
            places[place] = posixpath.commonpath([places.get(place, folder), folder])
            older += (place, op_name, index) in visited
            visited.add((place, op_name, index))
            listed = files.get((op_name, index))
            if listed is None or listed.timestamp < timestamp:
                files[op_name, index] = file
    if not files:
        dumped = _tfdbg_benchmark(root, stamps)
        if dumped is not None:
            return dumped
        nothing = DataNotFoundError.of(path, "data.no_benchmark_below")
        raise nothing_below(nothing, root)
    for file in sorted(numbered, key=lambda file: -file.timestamp):
        files.setdefault((file.op_name, file.index), file)
    notes = [Message("note.data.older_tensors", count=older)] if older else []
    if ignored:
        notes.append(Message("note.data.misnamed", count=len(ignored), first=ignored[0][0]))
    if set(places) == {(None, None)}:
        places = {}
    return Benchmark(root=root, files=files, ignored=tuple(ignored), notes=tuple(notes), places=places)


def _tfdbg_benchmark(root: str, stamps: Stamps | None) -> Benchmark | None:
    """Of every tensor what the last tfdbg run that holds it has, the newest dump of it; None if there is no run."""
    visit = None if stamps is None else stamps.note
    runs = [files_of_run(run, visit) for run in find_runs(root, visit)]
    dumps = last_of_each(runs)
    if not dumps:
        return None
    files: dict[tuple[str, int], BenchmarkFile] = {}
    by_real_name: dict[tuple[str, int], BenchmarkFile] = {}
    ops: dict[tuple[str, int], set[str]] = {}
    for dump in sorted(dumps, key=lambda dump: (dump.time, dump.again, dump.path)):
        file = BenchmarkFile(path=dump.path, op_name=dump.flat_op, index=dump.slot, timestamp=dump.time)
        by_real_name[dump.op, dump.slot] = files[dump.flat_op, dump.slot] = file
        ops.setdefault((dump.flat_op, dump.slot), set()).add(dump.op)
    alike = {key: sorted(names) for key, names in ops.items() if len(names) > 1}
    run = runs[0].run.name if len(runs) == 1 else None
    notes = [Message("note.data.from_tfdbg", run=run, count=len(runs))]
    if len(dumps) > len(by_real_name):
        notes.append(Message("note.data.older_tensors", count=len(dumps) - len(by_real_name)))
    if alike:
        (_, slot), names_of_first = next(iter(alike.items()))
        first = [f"{name}:{slot}" for name in names_of_first[:_SHOWN_NAMES]]
        notes.append(Message("note.data.spelled_alike", count=len(alike), first=first))
    ignored = [row for run in runs for row in (*run.unreadable, *run.skipped)]
    unreadable = [row for run in runs for row in run.unreadable]
    if unreadable:
        path, reason = unreadable[0]
        notes.append(Message("note.data.unread_tfdbg", count=len(unreadable), path=path, reason=reason))
    return Benchmark(
        root=root,
        files=files,
        ignored=tuple(ignored),
        notes=tuple(notes),
        by_real_name=by_real_name,
        alike=frozenset(alike),
    )


def newest_golden(folder: str) -> int | None:
    """The time in the names of the golden `.npy` files below a folder; None if there is none."""
    newest: int | None = None
    with suppress(PrecisionToolError):
        for _, file_names in list_folders(folder):
            times = [parsed[2] for parsed in map(names.parse_golden_name, file_names) if parsed is not None]
            newest = max((time for time in (newest, *times) if time is not None), default=None)
    return newest


# --- overflow status files, and the dumps of the ops they name ---


_DECODED = ".json"
#: Where, below a folder for results, decoded status files go.
DECODED_FOLDER = ("decode", "overflow_decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFile:
    """A status file, as the device wrote it or decoded to JSON. `name` is what its own name says."""

    path: str
    name: DumpName
    decoded: bool = False

    @property
    def folder(self) -> str:
        """The folder it lies in."""
        return posixpath.dirname(self.path)


def find_status_files(root: str, stamps: Stamps | None = None) -> tuple[StatusFile, ...]:
    """Every status file below a folder, earliest first; () where there is no such folder.

    A file that was decoded beside itself is named once.
    """
    if not is_folder(root):
        return ()
    files: dict[tuple[str, DumpName], StatusFile] = {}
    for folder, file_names in list_folders(root, stamps):
        for file_name in file_names:
            parsed = parse_status_name(file_name)
            if parsed is None:
                continue
            name, decoded = parsed
            listed = files.get((folder, name))
            if listed is None or listed.decoded:
                path = posixpath.join(folder, file_name)
                files[folder, name] = StatusFile(path=path, name=name, decoded=decoded)
    return tuple(sorted(files.values(), key=lambda file: (file.name.timestamp, file.path)))


def parse_status_name(file_name: str) -> tuple[DumpName, bool] | None:
    """The parts of a status file's name and whether it was decoded; None if it is no such name."""
    decoded = file_name.endswith(_DECODED)
    if decoded:  # Opdebug.Node_OpDebug.….output.0.json
        file_name = file_name.removesuffix(_DECODED).rpartition(".output.")[0]
    parsed = names.parse_dump_name(file_name)
    if parsed is None or parsed[1] or not is_status(parsed[0]):
        return None
    return parsed[0], decoded


def leaves_below(folder: str) -> tuple[DumpLeaf, ...]:
    """The dumps of ops below a folder, newest time only; () if there are none, or they cannot be listed."""
    try:
        return find_run(folder).leaves
    except PrecisionToolError:
        return ()


def files_of_task(
    files: Iterable[DumpFile], stream: int, context: int | None = None, thread: int | None = None
) -> tuple[DumpFile, ...]:
    """Of the dump files with a task's number those of the op that ran as it, earliest first.

    Names without a stream (old releases), context or thread fit any.
    """

    def fits(name: DumpName) -> bool:
        numbers = ((name.stream_id, stream), (name.context_id, context), (name.thread_id, thread))
        return all(value is None or number in (None, value) for value, number in numbers)

    return tuple(sorted((file for file in files if fits(file.name)), key=lambda file: (file.name.timestamp, file.path)))
