"""What a study is of: every folder of dump files below the data folders, with its step and its rank.

Names are listed folder by folder and forgotten again, so that a tree of a million files takes little memory.
"""

from __future__ import annotations

import hashlib
import heapq
import posixpath
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import PurePath

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data.dump_names import is_rank_folder, placed, placed_below
from precision_tool.lib.data.dump_tree import MAPPING_FILE, find_status_files, is_status_file
from precision_tool.lib.data.kinds import MSPROBE, benchmark_kind, device_kind, is_benchmark_file
from precision_tool.lib.data.msprobe_tree import CONSTRUCT_FILE, DUMP_FILE, STACK_FILE, TENSOR_FOLDER
from precision_tool.lib.data.sides import benchmark_folder, default_npu
from precision_tool.lib.data.workspace import Workspace, lies_in, open_workspace
from precision_tool.lib.io.cache import folder_fingerprint
from precision_tool.lib.io.files import (
    check_folder,
    exists,
    folder_exists,
    is_folder,
    list_folder,
    real_path,
    signature_of,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.model.wording import spans

#: The time at which GE built a model, in the model's name: ge_default_20260302093000_1.
_BUILT = re.compile(r"(?<=_)\d{14}(?=_|/|$)", re.ASCII)
#: How time folders are named, and how far apart those of one step may be.
_TIME, _FAR_APART = "%Y%m%d%H%M%S", timedelta(hours=1)
#: So many of a leaf's ops stand for all; dumps that share so much of them are of one network, collected again.
_SKETCHED, _MIN_SHARED_FRACTION = 32, 0.5
#: The note on a benchmark that has another number of ranks.
OTHER_RANKS = "study.note.other_ranks"
#: What a folder is called that holds the dumps of one server, where the folder that is named is above it.
_DATA = "precision_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLeaf:
    """One folder of dump files: one step of one rank and model.

    `rank` counts over all data folders, `device` is the server's own number of it. `data` is the data folder it was
    found in, "" where the folder of dumps itself was named. `nbytes` is that of all `files`, or an estimate;
    `fingerprint` changes when one of them does. `statistics` tells that no file of it holds values, `statuses` are the
    names of overflow status files among them. `sketch` are the smallest hashes of its ops' names, in order: those of
    two leaves tell how many ops they share. `is_trained` tells that its step is not the first of the training.
    """

    path: str
    data: str
    step: int
    rank: int
    device: int
    model: str
    time: str = ""
    files: int
    nbytes: int
    fingerprint: str
    statistics: bool = False
    statuses: tuple[str, ...] = ()
    sketch: tuple[int, ...] = ()
    is_trained: bool = False

    @property
    def program(self) -> str:
        """Its model without the time at which that was built, which no two ranks and runs have alike."""
        return _BUILT.sub("", self.model)

    @property
    def key(self) -> tuple[int, int, str, str]:
        """Its place in the order of a study: step, rank, model."""
        return self.step, self.rank, self.model, self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data folder of a study, or a dump folder without one: where its dumps lie."""

    #: Empty for a dump folder that was named itself.
    data: str
    dump: str
    #: Why nothing can be read of it.
    failure: PrecisionToolError | None = None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The leaves in order; `notes` say what was left out and how ranks were numbered."""

    leaves: tuple[StudyLeaf, ...]
    notes: tuple[Message, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step of any rank."""
        return tuple(sorted({leaf.step for leaf in self.leaves}))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank of any step."""
        return tuple(sorted({leaf.rank for leaf in self.leaves}))


def sources_of(folders: Sequence[str], npu: str | None = None) -> list[Source]:
    """Return the dump folder of each data folder. Of several, one that is none, or cannot be read, has its `failure`.

    Of one alone that is raised. A folder may be a data folder, hold one called precision_data, or be a dump folder
    itself. `npu` is the one folder that was named in their place.
    """
    if npu is not None:
        return [Source(data="", dump=posixpath.abspath(npu))]
    sources = []
    for folder in folders:
        try:
            sources.append(_source_of(folder))
        except PrecisionToolError as error:
            if len(folders) == 1:
                raise
            sources.append(Source(data=folder, dump="", failure=error))
    return sources


def _source_of(folder: str) -> Source:
    place = posixpath.abspath(folder)
    below = posixpath.join(place, _DATA)
    if not folder_exists(posixpath.join(place, "npu")) and folder_exists(posixpath.join(below, "npu")):
        place = below
    has_dump = any(folder_exists(posixpath.join(place, name)) for name in ("npu", "dump_data"))
    if has_dump or is_folder(open_workspace(place).dump_dir(0)):
        return Source(data=place, dump=default_npu(open_workspace(place)))
    if folder_exists(place):
        return Source(data="", dump=place)
    raise DataNotFoundError.of(folder, "diagnose.no_data_folder")


def list_leaves(
    sources: Sequence[Source],
    *,
    steps: Callable[[int], bool] | None = None,
    ranks: Callable[[int], bool] | None = None,
) -> Listing:
    """List the leaves below every source, in the order of step, rank and model.

    `steps` and `ranks` say which are wanted. Of a step that was dumped at several times the newest is kept. Folders
    that cannot be listed, and sources without a dump, are notes; DataNotFoundError where there is no dump at all.
    """
    notes: list[Message] = []
    leaves = _newest(_numbered(_leaves_of(sources, notes), sources, notes), notes)
    selected = [leaf for leaf in leaves if (steps is None or steps(leaf.step)) and (ranks is None or ranks(leaf.rank))]
    if not selected:
        listing = Listing(leaves=tuple(leaves))
        raise UsageError("diagnose.no_such_steps", steps=spans(listing.steps), ranks=spans(listing.ranks))
    selected.sort(key=lambda leaf: leaf.key)
    notes += [*_gaps(selected), *_clocks(selected)]
    return Listing(leaves=tuple(selected), notes=tuple(notes))


def _leaves_of(sources: Sequence[Source], notes: list[Message]) -> list[tuple[int, StudyLeaf]]:
    """Return the leaves below every source, with its number."""
    refused: list[PrecisionToolError] = []
    numbered: list[tuple[int, StudyLeaf]] = []
    visited: set[str] = set()
    for number, source in enumerate(sources):
        place = real_path(source.dump) if source.dump else ""
        if place and place in visited:
            notes.append(Message("study.note.named_twice", folder=source.data or source.dump))
            continue
        visited.add(place)
        if source.failure is not None:
            refused.append(source.failure)
            notes.append(Message("study.note.skipped", reason=source.failure.full_message))
            continue
        before = len(numbered)
        unread: list[PrecisionToolError] = []
        try:
            numbered += [(number, leaf) for leaf in _leaves_below(source, unread, notes)]
        except PrecisionToolError as error:
            unread.append(error)
        refused += unread
        if len(numbered) == before and len(sources) > 1:
            nothing = Message("study.note.no_dump_below", folder=source.dump)
            damaged = [Message("error.place", where=source.dump, reason=error.full_message) for error in unread[:1]]
            notes += damaged or [nothing]
        elif unread:
            notes.append(Message("study.note.unread_folders", count=len(unread), reason=unread[0].full_message))
    if numbered:
        return numbered
    if refused:
        raise refused[0]
    folders = [source.dump for source in sources[:3]]
    raise DataNotFoundError("diagnose.no_dump_below", folders=folders, count=len(folders))


def _leaves_below(source: Source, unread: list[PrecisionToolError], notes: list[Message]) -> Iterable[StudyLeaf]:
    if device_kind(source.dump) is MSPROBE:
        run = MSPROBE.find(source.dump)
        notes += run.notes
        for recorded in run.leaves:
            yield _recorded_leaf(recorded, source.data)
        return
    for folder, files in walk.list_folders(source.dump, unread=unread):
        leaf = _leaf(folder, files, source.data)
        if leaf is not None:
            yield leaf


def _leaf(folder: str, file_names: Sequence[str], data: str) -> StudyLeaf | None:
    """Return the leaf that a folder is by the names in it; None for one without dump files."""
    has_mapping = MAPPING_FILE in file_names
    dumps = [name for name in file_names if _is_dump(name, has_mapping)]
    if not dumps:
        return None
    where = names.parse_leaf_path(PurePath(folder).parts)
    step, rank = placed(folder)
    stats = sum(name.endswith(".csv") for name in dumps)
    nbytes, fingerprint = folder_fingerprint(folder, dumps)
    return StudyLeaf(
        path=folder,
        data=data,
        step=int(where.step) if where.step else step or 0,
        rank=-1 if rank is None else rank,
        device=int(where.device) if where.device else rank or 0,
        model="/".join(filter(None, (where.model_name, where.model_id))),
        time=where.time,
        files=len(dumps),
        nbytes=nbytes,
        fingerprint=fingerprint,
        statistics=stats == len(dumps),
        statuses=tuple(name for name in file_names if is_status_file(name) and not name.endswith(".json")),
        sketch=_sketch(dumps),
    )


def _recorded_leaf(leaf: DumpLeaf, data: str) -> StudyLeaf:
    """Return the leaf that a folder of msprobe is.

    A process that is no rank has none that was trained with it: of two in one step the later one is the dump made anew.
    """
    present = [name for name in (DUMP_FILE, STACK_FILE, CONSTRUCT_FILE) if exists(posixpath.join(leaf.path, name))]
    nbytes, fingerprint = folder_fingerprint(leaf.path, present)
    files, folder = [], posixpath.join(leaf.path, TENSOR_FOLDER)
    if is_folder(folder):
        files = sorted(list_folder(folder))
        of_tensors, print_of_tensors = folder_fingerprint(folder, files)
        nbytes, fingerprint = nbytes + of_tensors, f"{fingerprint}{print_of_tensors}"
    signature = signature_of(leaf.graph)
    time = "" if leaf.device or signature is None else f"{datetime.fromtimestamp(signature[1] / 1e9):{_TIME}}"
    rank = int(leaf.device) if leaf.device else None
    return StudyLeaf(
        path=leaf.path,
        data=data,
        step=int(leaf.step or 0),
        rank=-1 if rank is None else rank,
        device=rank or 0,
        model="",
        time=time,
        files=len(files) or 1,
        nbytes=nbytes,
        fingerprint=fingerprint,
        is_trained=int(leaf.step or 0) > 0,
    )


def _is_dump(name: str, has_mapping: bool) -> bool:
    if names.is_number(name.removesuffix(".csv")):
        return has_mapping
    return not is_status_file(name) and names.is_dump_file(name)


def _numbered(
    leaves: Sequence[tuple[int, StudyLeaf]], sources: Sequence[Source], notes: list[Message]
) -> list[StudyLeaf]:
    """Return the leaves with their ranks: by folders, else by devices, counted over the servers where these repeat.

    A folder called `worker1` that has several devices is a server, and no rank.
    """
    below: dict[tuple[int, int], set[int]] = {}
    for number, leaf in leaves:
        below.setdefault((number, leaf.rank), set()).add(leaf.device)
    servers = {key for key, devices in below.items() if key[1] < 0 or len(devices) > 1}
    devices = {key: below[key] for key in sorted(servers)}

    def is_ranked(number: int, leaf: StudyLeaf) -> bool:
        return (number, leaf.rank) not in servers

    if sum(map(len, devices.values())) == len(set().union(*devices.values()) if devices else set()):
        return [leaf if is_ranked(number, leaf) else replace(leaf, rank=leaf.device) for number, leaf in leaves]
    a_server = max(max(numbers) for numbers in devices.values()) + 1
    first = {key: place * a_server for place, key in enumerate(devices)}
    folders = {(number, leaf.rank): _server_folder(leaf, sources[number]) for number, leaf in reversed(leaves)}
    servers_shown = [Message("study.note.server", folder=folders[key], rank=start) for key, start in first.items()]
    notes.append(Message("study.note.counted_ranks", devices=a_server, servers=servers_shown))
    return [
        leaf if is_ranked(number, leaf) else replace(leaf, rank=first[number, leaf.rank] + leaf.device)
        for number, leaf in leaves
    ]


def _server_folder(leaf: StudyLeaf, source: Source) -> str:
    """Return the folder of a server for a note: its data folder, or the folder below it that is the server's."""
    place = source.data or source.dump
    parts = leaf.path.removeprefix(place).strip("/").split("/")
    own = max((depth for depth, part in enumerate(parts) if is_rank_folder(part)), default=-1)
    return posixpath.join(place, *parts[: own + 1])


def _newest(leaves: Sequence[StudyLeaf], notes: list[Message]) -> list[StudyLeaf]:
    """Return the newest dump of each rank, model and step."""
    newest: dict[tuple[int, int, str], list[StudyLeaf]] = {}
    older: list[StudyLeaf] = []
    for leaf in sorted(leaves, key=lambda leaf: (leaf.time, leaf.path), reverse=True):
        newer = newest.setdefault((leaf.step, leaf.rank, leaf.program), [])
        if any(_is_again(leaf, other) for other in newer):
            older.append(leaf)
        else:
            newer.append(leaf)
    if older:
        times = sorted({leaf.time for leaf in older if leaf.time})
        first, last = (times[0] if times else None), (times[-1] if times[1:] else None)
        notes.append(Message("study.note.older", count=len(older), first=first, last=last))
    return [leaf for of_place in newest.values() for leaf in of_place]


def _is_again(leaf: StudyLeaf, newer: StudyLeaf) -> bool:
    """Return whether a later run dumped the same network, maybe compiled in another way, for this step and rank."""
    if leaf.model == newer.model:
        return True
    if leaf.time == newer.time:  # two networks of one run, such as training and evaluation
        return False
    smallest = heapq.nsmallest(_SKETCHED, {*leaf.sketch, *newer.sketch})
    shared = {*leaf.sketch} & {*newer.sketch} & {*smallest}
    return bool(smallest) and len(shared) >= _MIN_SHARED_FRACTION * len(smallest)


def _sketch(file_names: Iterable[str]) -> tuple[int, ...]:
    ops = {name.split(".", 2)[1] for name in file_names if name.count(".") > 1}
    return tuple(heapq.nsmallest(_SKETCHED, {zlib.crc32(op.encode("utf-8", "surrogateescape")) for op in ops}))


def _gaps(leaves: Sequence[StudyLeaf]) -> list[Message]:
    """Return a note where ranks lack steps that others have."""
    steps: dict[int, set[int]] = {}
    for leaf in leaves:
        steps.setdefault(leaf.rank, set()).add(leaf.step)
    every = set().union(*steps.values())
    lacking = {rank: every - have for rank, have in steps.items() if have != every}
    if not lacking:
        return []
    rank, missing = min(lacking.items())
    fields = {"rank": rank, "count": len(missing), "steps": spans(missing)}
    if len(lacking) == 1:
        return [Message("study.note.lacks_steps", **fields)]
    return [Message("study.note.ranks_lack_steps", ranks=len(lacking), all=len(steps), **fields)]


def _clocks(leaves: Sequence[StudyLeaf]) -> list[Message]:
    """Return a note on the first step that ranks dumped at times far apart: clocks differ, or the runs do."""
    times: dict[int, set[str]] = {}
    for leaf in leaves:
        if leaf.time:
            times.setdefault(leaf.step, set()).add(leaf.time)
    for step, of_step in sorted(times.items()):
        try:
            first, last = (datetime.strptime(time, _TIME) for time in (min(of_step), max(of_step)))
        except ValueError:  # digits that are no time
            continue
        if last - first > _FAR_APART:
            return [Message("study.note.clocks", step=step, first=str(first), last=str(last))]
    return []


def parse_numbers(text: str) -> Callable[[int], bool]:
    """Return a test for the numbers of a text: `3`, `0-7`, `1,5,8-`; UsageError for anything else."""
    spans: list[tuple[int, float]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,12})\s*(?:(-)\s*(\d{1,12})?)?\s*", part, re.ASCII)
        if match is None:
            raise UsageError("diagnose.numbers", value=repr(text))
        low = int(match[1])
        spans.append((low, low if match[2] is None else float("inf") if match[3] is None else int(match[3])))
    return lambda number: any(low <= number <= high for low, high in spans)


# --- benchmark folders ---


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFolder:
    """A folder of benchmark tensors, or of another run's dump, and of which step and rank it is (None: of all)."""

    path: str
    step: int | None = None
    rank: int | None = None
    fingerprint: str = ""


#: Of a leaf that is compared with nothing.
NO_BENCHMARK = BenchmarkFolder(path="")


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """Benchmark tensors below one folder."""

    root: str
    by_place: dict[tuple[int | None, int | None], BenchmarkFolder] = field(default_factory=dict)

    def of(self, leaf: StudyLeaf, is_own: bool = False) -> BenchmarkFolder | None:
        """Return the folder that fits a leaf most closely.

        In the leaf's own data folder (`is_own`) a rank may be its device there, where ranks are counted over servers.
        """
        by_device = is_own and placed(leaf.path)[1] != leaf.rank
        for step in (leaf.step, None):
            for rank in (leaf.rank, leaf.device if by_device else leaf.rank, None):
                folder = self.by_place.get((step, rank))
                if folder is not None:
                    return folder
        return None


def find_benchmarks(root: str) -> Benchmarks:
    """List the benchmark folders below `root`. DataNotFoundError where there is none.

    Folders called `step_3` and `rank_5`, or only a number (a step; two of them a rank and a step), tell which is which;
    without them all that is below `root` is one set for every step and rank. Another run's dump tells by its own tree.
    """
    check_folder(root, "benchmark tensors")
    place = posixpath.abspath(root)
    folders: dict[tuple[int | None, int | None], list[str]] = {}
    digests: dict[tuple[int | None, int | None], hashlib._Hash] = {}
    for folder, file_names in walk.list_folders(place):
        tensors = [name for name in file_names if is_benchmark_file(name)]
        files = tensors or [name for name in file_names if names.is_dump_file(name)]
        if files:
            key = _placed_below(place, folder) if tensors else _placed_dump(place, folder)
            folders.setdefault(key, []).append(folder)
            digests.setdefault(key, hashlib.sha256()).update(folder_fingerprint(folder, files)[1].encode())
    if not folders:  # a run of tfdbg, or nothing: the reader says what is wrong
        with suppress(PrecisionToolError):
            if (kind := benchmark_kind(place)) is not None:
                kind.find(place)
                digests[None, None] = hashlib.sha256()
    if not digests:
        raise DataNotFoundError.of(root, "diagnose.no_benchmark_below")
    if set(digests) == {(None, None)}:
        folders = {(None, None): [place]}
    by_place = {}
    for (step, rank), of_place in folders.items():
        path = of_place[0] if len(of_place) == 1 else posixpath.commonpath(of_place)
        fingerprint = digests[step, rank].hexdigest()
        by_place[step, rank] = BenchmarkFolder(path=path, step=step, rank=rank, fingerprint=fingerprint)
    return Benchmarks(root=place, by_place=by_place)


def _placed_below(root: str, folder: str) -> tuple[int | None, int | None]:
    """Return step and rank that the folders between `root` and `folder` tell."""
    step, rank = placed_below(root, folder)
    if step is None and rank is None:
        parts = PurePath(posixpath.relpath(folder, root)).parts if folder != root else ()
        numbers = [int(part) for part in parts if names.is_number(part)]
        if 1 <= len(numbers) == len(parts) <= 2:
            step = numbers[-1]
            rank = numbers[0] if len(numbers) == 2 else None
    return step, rank


def _placed_dump(root: str, folder: str) -> tuple[int | None, int | None]:
    """Return step and rank of a folder of dump files of another run; what is above `root` tells nothing of ranks."""
    where = names.parse_leaf_path(PurePath(folder).parts)
    step, rank = placed(posixpath.relpath(folder, root))
    return (
        int(where.step) if where.step else step,
        rank if rank is not None else int(where.device) if where.device else None,
    )


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The benchmark folder of each leaf, by the leaf's path; `notes` say what has none."""

    folders: dict[str, BenchmarkFolder]
    notes: tuple[Message, ...] = ()


def pair_benchmarks(leaves: Sequence[StudyLeaf], golden: str | None = None) -> Paired:
    """Return the benchmark of each leaf: what is below `golden`, else below its own data folder.

    DataNotFoundError where `golden` was named and holds none. Leaves of a data folder without one are compared with
    that of another data folder, if just one has any.
    """
    notes: list[Message] = []
    by_data: dict[str, Benchmarks | None] = {}
    if golden is not None:
        common = find_benchmarks(golden)
        folders = {leaf.path: benchmark for leaf in leaves if (benchmark := common.of(leaf)) is not None}
    else:
        for data in dict.fromkeys(leaf.data for leaf in leaves):
            by_data[data] = _of_data(data, notes)
        own = {data for data, benchmark in by_data.items() if benchmark is not None}
        having = [benchmark for benchmark in by_data.values() if benchmark is not None]
        if len(having) == 1 and len(by_data) > 1:
            notes.append(Message("study.note.common_benchmark", folder=having[0].root))
            by_data = dict.fromkeys(by_data, having[0])
        folders = {}
        for leaf in leaves:
            side = by_data[leaf.data]
            benchmark = None if side is None else side.of(leaf, is_own=leaf.data in own)
            if benchmark is not None:
                folders[leaf.path] = benchmark
    lacking = [leaf for leaf in leaves if leaf.path not in folders]
    notes += _other_ranks(leaves, [common] if golden is not None else [side for side in by_data.values() if side])
    if lacking and folders:
        place = Message("study.place", step=lacking[0].step, rank=lacking[0].rank)
        counts = {"count": len(lacking), "all": len(leaves)}
        notes.append(Message("study.note.some_without_benchmark", place=place, **counts))
    elif lacking:
        notes.append(Message("study.note.no_benchmark"))
    return Paired(folders=folders, notes=tuple(notes))


def _other_ranks(leaves: Sequence[StudyLeaf], sides: Sequence[Benchmarks]) -> list[Message]:
    """Return a note where the benchmark, by msprobe, has another number of ranks: it may be split otherwise."""
    own = {leaf.rank for leaf in leaves}
    for side in sides:
        ranks = {rank for _, rank in side.by_place if rank is not None}
        if ranks and len(ranks) != len(own) and MSPROBE.lies_at(side.root):
            return [Message(OTHER_RANKS, npu=spans(own), benchmark=spans(ranks))]
    return []


def _of_data(data: str, notes: list[Message]) -> Benchmarks | None:
    """Return the benchmark of a data folder: tf/dump, else tf/tf_debug, else the second NPU run."""
    if not data:
        return None
    space = open_workspace(data)
    try:
        folder = benchmark_folder(space) or space.dump_dir(1)
        return find_benchmarks(str(folder))
    except DataNotFoundError:
        return None
    except PrecisionToolError as error:
        notes.append(Message("study.note.benchmark_unread", reason=error.full_message))
        return None


# --- surroundings of a leaf: other NPU runs, overflow status files ---


#: Of further runs so many are looked at.
_RUNS = 2
#: Which step of which device a folder is of, and what server or rank the folders above it tell.
_Place = tuple[tuple[str, ...], str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRun:
    """The dump of the same step and device in `npu/debug_{number}`; one folder a model."""

    number: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Other runs and status files of a leaf, which is of run `number` (None: of none), and their fingerprint."""

    number: int | None = None
    runs: tuple[OtherRun, ...] = ()
    statuses: tuple[str, ...] = ()
    fingerprint: str = ""


#: Of a leaf that has nothing beside it.
NOTHING = Surroundings()


def find_surroundings(leaves: Sequence[StudyLeaf], notes: list[Message]) -> dict[str, Surroundings]:
    """Return the surroundings of leaves by path; those without any are left out. What cannot be listed is a note."""
    by_data: dict[str, list[StudyLeaf]] = {}
    for leaf in leaves:
        if leaf.data:
            by_data.setdefault(leaf.data, []).append(leaf)
    by_path: dict[str, Surroundings] = {}
    for data, of_data in by_data.items():
        try:
            by_path |= _surroundings_of(open_workspace(data), of_data)
        except PrecisionToolError as error:
            notes.append(Message("study.note.runs_unread", reason=error.full_message, folder=data))
    return by_path


def _surroundings_of(space: Workspace, leaves: Sequence[StudyLeaf]) -> dict[str, Surroundings]:
    numbers = space.debug_numbers()
    dumps = {number: str(space.dump_dir(number)) for number in numbers}
    own = next((number for number in numbers if lies_in(leaves[0].path, dumps[number])), None)
    others = [number for number in numbers if number != own][:_RUNS] if own is not None else []
    runs = {number: _run(dumps[number]) for number in others}
    statuses = [file.path for file in find_status_files(str(space.overflow_dump_dir)) if not file.decoded]
    by_path: dict[str, Surroundings] = {}
    for leaf in leaves:
        place = _place(leaf.path, dumps[own]) if own is not None else None
        digest = hashlib.sha256()
        at_place = []
        for number, folders in runs.items():
            of_place = folders.get(place, ()) if place is not None else ()
            for path, _, fingerprint in of_place:
                digest.update(f"{path}\0{fingerprint}\0".encode("utf-8", "surrogateescape"))
            if of_place:
                at_place.append(OtherRun(number=number, paths=tuple(path for path, *_ in of_place)))
        status_paths = _status_files_of(leaf, statuses, is_alone=len(leaves) == 1)
        for folder in sorted({posixpath.dirname(path) for path in status_paths}):
            of_folder = [posixpath.basename(path) for path in status_paths if posixpath.dirname(path) == folder]
            digest.update(folder_fingerprint(folder, of_folder)[1].encode())
        if at_place or status_paths:
            by_path[leaf.path] = Surroundings(
                number=own, runs=tuple(at_place), statuses=status_paths, fingerprint=digest.hexdigest()
            )
    return by_path


def _run(dump: str) -> Mapping[_Place, list[tuple[str, str, str]]]:
    """Return the leaves of a run by place: path, time and fingerprint; of what was dumped again the newest."""
    by_place: dict[_Place, list[tuple[str, str, str]]] = {}
    if not is_folder(dump):
        return by_place
    with suppress(DataNotFoundError):
        for folder, file_names in walk.list_folders(dump):
            files = [name for name in file_names if names.is_dump_file(name)]
            if not files:
                continue
            time = names.parse_leaf_path(PurePath(folder).parts).time
            by_place.setdefault(_place(folder, dump), []).append((folder, time, folder_fingerprint(folder, files)[1]))
    for place, of_place in by_place.items():
        newest = max(time for _, time, _ in of_place)
        by_place[place] = [leaf for leaf in of_place if leaf[1] == newest]
    return by_place


def _place(folder: str, dump: str) -> _Place:
    """Return the place of a leaf folder below the dump folder, without the time and the model's name and number."""
    relative = PurePath(posixpath.relpath(folder, dump)).parts
    where = names.parse_leaf_path(PurePath(folder).parts)
    if not where.step:
        return relative, "", ""
    depth = 3 + bool(where.time) + bool(where.model_name)
    return relative[:-depth], where.device, where.step


def _status_files_of(leaf: StudyLeaf, statuses: Iterable[str], *, is_alone: bool) -> tuple[str, ...]:
    """Return the status files that are of a leaf: of the overflow detection's dump, else those among its own files."""
    where = names.parse_leaf_path(PurePath(leaf.path).parts)
    of_leaf = []
    for path in statuses:
        other = names.parse_leaf_path(PurePath(posixpath.dirname(path)).parts)
        is_same = (other.device, other.step) == (where.device, where.step)
        if is_same if other.step and where.step else is_alone:
            of_leaf.append(path)
    return tuple(of_leaf or (posixpath.join(leaf.path, name) for name in leaf.statuses))
