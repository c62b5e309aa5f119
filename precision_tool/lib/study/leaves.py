"""What a study is of: every folder of dump files below the data folders, with its step and its rank.

Names are listed folder by folder and forgotten again, so that a tree of a million files takes little memory.
"""

from __future__ import annotations

import heapq
import posixpath
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import PurePath

from precision_tool.lib.data.sides import default_npu
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.io.cache import folder_fingerprint
from precision_tool.lib.io.files import folder_exists, real_path
from precision_tool.lib.model.wording import counted
from precision_tool.lib.sources import names, walk
from precision_tool.lib.sources.places import is_rank_folder, placed
from precision_tool.lib.sources.walk import MAPPING_FILE, is_status_file
from precision_tool.lib.workspace import open_workspace

#: The time at which GE built a model, in the model's name: ge_default_20260302093000_1.
_BUILT = re.compile(r"(?<=_)\d{14}(?=_|/|$)", re.ASCII)
#: How time folders are named, and how far apart those of one step may be.
_TIME, _FAR_APART = "%Y%m%d%H%M%S", timedelta(hours=1)
#: So many of a leaf's ops stand for all; dumps that share so much of them are of one network, collected again.
_SKETCHED, _ALIKE = 32, 0.5
#: What a folder is called that holds the dumps of one server, where the folder that is named is above it.
_DATA = "precision_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLeaf:
    """One folder of dump files: one step of one rank and model.

    `rank` counts over all data folders, `device` is the server's own number of it. `data` is the data folder it was
    found in, "" where the folder of dumps itself was named. `nbytes` is that of all `files`, or an estimate;
    `fingerprint` changes when one of them does. `statistics` tells that no file of it holds values, `statuses` are the
    names of overflow status files among them. `sketch` are the smallest hashes of its ops' names, in order: those of
    two leaves tell how many ops they share.
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
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What was found, in order; `notes` say what was left out and how ranks were numbered."""

    leaves: tuple[StudyLeaf, ...]
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step of any rank."""
        return tuple(sorted({leaf.step for leaf in self.leaves}))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank of any step."""
        return tuple(sorted({leaf.rank for leaf in self.leaves}))


def sources_of(folders: Sequence[str], npu: str | None = None) -> list[Source]:
    """Where the dumps of each data folder lie. Of several, one that is none, or cannot be read, has its `failure`.

    Of one alone that is raised. A folder may be a data folder, hold one called precision_data, or be a dump folder
    itself. `npu` is the one folder that was named in their place.
    """
    if npu is not None:
        return [Source(data="", dump=posixpath.abspath(npu))]
    found = []
    for folder in folders:
        try:
            found.append(_source_of(folder))
        except PrecisionToolError as error:
            if len(folders) == 1:
                raise
            found.append(Source(data=folder, dump="", failure=error.message))
    return found


def _source_of(folder: str) -> Source:
    place = posixpath.abspath(folder)
    below = posixpath.join(place, _DATA)
    if not folder_exists(posixpath.join(place, "npu")) and folder_exists(posixpath.join(below, "npu")):
        place = below
    if folder_exists(posixpath.join(place, "npu")) or folder_exists(posixpath.join(place, "dump_data")):
        return Source(data=place, dump=default_npu(open_workspace(place)))
    if folder_exists(place):
        return Source(data="", dump=place)
    raise DataNotFoundError.of(folder, "no such data folder", "name the folders that hold npu/debug_0")


def list_leaves(
    sources: Sequence[Source],
    *,
    steps: Callable[[int], bool] | None = None,
    ranks: Callable[[int], bool] | None = None,
) -> Listing:
    """The leaves below every source, in the order of step, rank and model.

    `steps` and `ranks` say which are wanted. Of a step that was dumped at several times the newest is kept. Folders
    that cannot be listed, and sources without a dump, are notes; DataNotFoundError where there is no dump at all.
    """
    notes: list[str] = []
    refused: list[PrecisionToolError] = []
    found: list[tuple[int, StudyLeaf]] = []
    named: set[str] = set()
    for number, source in enumerate(sources):
        place = real_path(source.dump) if source.dump else ""
        if place and place in named:
            notes.append(f"named twice, and taken once: {source.data or source.dump}")
            continue
        named.add(place)
        if source.failure:
            refused.append(DataNotFoundError(source.failure))
            notes.append(f"left out: {source.failure}")
            continue
        before = len(found)
        unread: list[PrecisionToolError] = []
        try:
            found += [(number, leaf) for leaf in _leaves_below(source, unread)]
        except PrecisionToolError as error:
            unread.append(error)
        refused += unread
        if len(found) == before and len(sources) > 1:
            notes.append(f"{source.dump}: {unread[0].message if unread else 'no dump file below this folder'}")
        elif unread:
            notes.append(f"folders that cannot be read: {len(unread)}, the first {unread[0].message}")
    if not found:
        if refused:
            raise refused[0]
        shown = ", ".join(source.dump for source in sources[:3])
        raise DataNotFoundError(
            f"{shown}: no dump file below this folder (their names are op_type.op_name.task.stream.timestamp)",
            "collect dump data on the NPU (enable_dump), or name other folders with --data",
        )
    leaves = _numbered(found, sources, notes)
    leaves = _newest(leaves, notes)
    wanted = [leaf for leaf in leaves if (steps is None or steps(leaf.step)) and (ranks is None or ranks(leaf.rank))]
    if not wanted:
        listing = Listing(leaves=tuple(leaves))
        raise UsageError(
            f"no dump of the steps and ranks that were asked for: there are steps {spans(listing.steps)} "
            f"of ranks {spans(listing.ranks)}",
            "change --step or --rank",
        )
    wanted.sort(key=lambda leaf: leaf.key)
    notes += [*_gaps(wanted), *_clocks(wanted)]
    return Listing(leaves=tuple(wanted), notes=tuple(notes))


def _leaves_below(source: Source, unread: list[PrecisionToolError]) -> Iterable[StudyLeaf]:
    for folder, files in walk.list_folders(source.dump, unread=unread):
        leaf = _leaf(folder, files, source.data)
        if leaf is not None:
            yield leaf


def _leaf(folder: str, file_names: Sequence[str], data: str) -> StudyLeaf | None:
    """The leaf that a folder is by the names in it; None for one without dump files."""
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


def _is_dump(name: str, has_mapping: bool) -> bool:
    if names.is_number(name.removesuffix(".csv")):
        return has_mapping
    return not is_status_file(name) and names.is_dump_file(name)


def _numbered(found: Sequence[tuple[int, StudyLeaf]], sources: Sequence[Source], notes: list[str]) -> list[StudyLeaf]:
    """The leaves with their ranks: as folders tell, else the devices, counted over the servers where these repeat.

    A folder called `worker1` that has several devices is a server, and no rank.
    """
    below: dict[tuple[int, int], set[int]] = {}
    for number, leaf in found:
        below.setdefault((number, leaf.rank), set()).add(leaf.device)
    servers = {key for key, devices in below.items() if key[1] < 0 or len(devices) > 1}
    devices = {key: below[key] for key in sorted(servers)}

    def is_ranked(number: int, leaf: StudyLeaf) -> bool:
        return (number, leaf.rank) not in servers

    if sum(map(len, devices.values())) == len(set().union(*devices.values()) if devices else set()):
        return [leaf if is_ranked(number, leaf) else replace(leaf, rank=leaf.device) for number, leaf in found]
    a_server = max(max(one) for one in devices.values()) + 1
    first = {key: place * a_server for place, key in enumerate(devices)}
    folders = {(number, leaf.rank): _server_folder(leaf, sources[number]) for number, leaf in reversed(found)}
    shown = [f"{folders[key]} from rank {start} on" for key, start in first.items()]
    more = f", and {len(shown) - 3} more" if len(shown) > 3 else ""
    notes.append(
        f"ranks are counted over the data folders, {counted(a_server, 'device')} each: {', '.join(shown[:3])}{more}"
    )
    return [
        leaf if is_ranked(number, leaf) else replace(leaf, rank=first[number, leaf.rank] + leaf.device)
        for number, leaf in found
    ]


def _server_folder(leaf: StudyLeaf, source: Source) -> str:
    """What a server is called in a note: its data folder, or the folder below it that is the server's."""
    place = source.data or source.dump
    parts = leaf.path.removeprefix(place).strip("/").split("/")
    own = max((depth for depth, part in enumerate(parts) if is_rank_folder(part)), default=-1)
    return posixpath.join(place, *parts[: own + 1])


def _newest(leaves: Sequence[StudyLeaf], notes: list[str]) -> list[StudyLeaf]:
    """Of each rank, model and step the newest dump."""
    kept: dict[tuple[int, int, str], list[StudyLeaf]] = {}
    older: list[StudyLeaf] = []
    for leaf in sorted(leaves, key=lambda leaf: (leaf.time, leaf.path), reverse=True):
        newer = kept.setdefault((leaf.step, leaf.rank, leaf.program), [])
        if any(_is_again(leaf, known) for known in newer):
            older.append(leaf)
        else:
            newer.append(leaf)
    if older:
        times = sorted({leaf.time for leaf in older if leaf.time})
        when = f", of {times[0]}" + (f" to {times[-1]}" if times[1:] else "") if times else ""
        notes.append(f"older dumps of the same step and rank are left out: {len(older)}{when}")
    return [leaf for found in kept.values() for leaf in found]


def _is_again(leaf: StudyLeaf, newer: StudyLeaf) -> bool:
    """Whether a later run dumped the same network, maybe compiled in another way, for this step and rank."""
    if leaf.model == newer.model:
        return True
    if leaf.time == newer.time:  # two networks of one run, such as training and evaluation
        return False
    smallest = heapq.nsmallest(_SKETCHED, {*leaf.sketch, *newer.sketch})
    shared = {*leaf.sketch} & {*newer.sketch} & {*smallest}
    return bool(smallest) and len(shared) >= _ALIKE * len(smallest)


def _sketch(file_names: Iterable[str]) -> tuple[int, ...]:
    ops = {name.split(".", 2)[1] for name in file_names if name.count(".") > 1}
    return tuple(heapq.nsmallest(_SKETCHED, {zlib.crc32(op.encode("utf-8", "surrogateescape")) for op in ops}))


def _gaps(leaves: Sequence[StudyLeaf]) -> list[str]:
    """Ranks that lack steps which others have; and a step that most ranks lack."""
    steps: dict[int, set[int]] = {}
    for leaf in leaves:
        steps.setdefault(leaf.rank, set()).add(leaf.step)
    every = set().union(*steps.values())
    lacking = {rank: every - have for rank, have in steps.items() if have != every}
    if not lacking:
        return []
    rank, missing = min(lacking.items())
    first = f"rank {rank} lacks {'step' if len(missing) == 1 else 'steps'} {spans(missing)}"
    if len(lacking) == 1:
        return [f"{first}, which other ranks have"]
    return [f"{len(lacking)} of {len(steps)} ranks lack steps that others have: {first}"]


def _clocks(leaves: Sequence[StudyLeaf]) -> list[str]:
    """That ranks say they dumped a step at times far apart: their clocks differ, or they are of different runs."""
    times: dict[int, set[str]] = {}
    for leaf in leaves:
        if leaf.time:
            times.setdefault(leaf.step, set()).add(leaf.time)
    for step, found in sorted(times.items()):
        try:
            first, last = (datetime.strptime(time, _TIME) for time in (min(found), max(found)))
        except ValueError:  # digits that are no time
            continue
        if last - first > _FAR_APART:
            when = f"step {step} was dumped at {first} on one rank and at {last} on another"
            why = "their clocks differ, or they are of different runs"
            return [f"{when}: {why}; what ran first is told by steps and communication, not by clocks"]
    return []


def spans(numbers: Collection[int], limit: int = 6) -> str:
    """Return whole numbers as options take them: `0-3, 7`; of many stretches the first ones."""
    ordered = sorted(set(numbers))
    stretches: list[list[int]] = []
    for number in ordered:
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    shown = [
        str(low) if low == high else f"{low}, {high}" if high == low + 1 else f"{low}-{high}"
        for low, high in stretches[:limit]
    ]
    return ", ".join(shown) + (", …" if len(stretches) > limit else "")


def parse_numbers(text: str) -> Callable[[int], bool]:
    """Which numbers a text means: `3`, `0-7`, `1,5,8-`; UsageError for anything else."""
    wanted: list[tuple[int, float]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,12})\s*(?:(-)\s*(\d{1,12})?)?\s*", part, re.ASCII)
        if match is None:
            raise UsageError(f"{text!r}: no numbers like 3, 0-7 or 1,5,8-", "separate them with commas")
        low = int(match[1])
        wanted.append((low, low if match[2] is None else float("inf") if match[3] is None else int(match[3])))
    return lambda number: any(low <= number <= high for low, high in wanted)
