"""Which benchmark belongs to a leaf: one of its step and rank, one of its step or of its rank, one for all, or none."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from precision_tool.lib.data.sides import benchmark_folder
from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError
from precision_tool.lib.io.cache import folder_fingerprint
from precision_tool.lib.io.files import check_folder
from precision_tool.lib.model.wording import counted
from precision_tool.lib.sources import names, walk
from precision_tool.lib.sources.kinds import NPY
from precision_tool.lib.sources.places import placed, placed_below
from precision_tool.lib.study.leaves import StudyLeaf
from precision_tool.lib.workspace import open_workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFolder:
    """A folder of benchmark tensors, or of another run's dump, and of which step and rank it is (None: of all)."""

    path: str
    step: int | None = None
    rank: int | None = None
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """What is below one benchmark folder."""

    root: str
    by_place: dict[tuple[int | None, int | None], BenchmarkFolder] = field(default_factory=dict)

    def of(self, leaf: StudyLeaf, is_own: bool = False) -> BenchmarkFolder | None:
        """The folder that fits a leaf most closely.

        In the leaf's own data folder (`is_own`) a rank may be its device there, where ranks are counted over servers.
        """
        by_device = is_own and placed(leaf.path)[1] != leaf.rank
        for step in (leaf.step, None):
            for rank in (leaf.rank, leaf.device if by_device else leaf.rank, None):
                found = self.by_place.get((step, rank))
                if found is not None:
                    return found
        return None


def find_benchmarks(root: str) -> Benchmarks:
    """The benchmark folders below `root`. DataNotFoundError where there is none.

    Folders called `step_3` and `rank_5`, or only a number (a step; two of them a rank and a step), tell which is which;
    without them all that is below `root` is one set for every step and rank. Another run's dump tells by its own tree.
    """
    check_folder(root, "benchmark tensors")
    place = posixpath.abspath(root)
    found: dict[tuple[int | None, int | None], BenchmarkFolder] = {}
    digests: dict[tuple[int | None, int | None], hashlib._Hash] = {}
    for folder, file_names in walk.list_folders(place):
        tensors = [name for name in file_names if NPY.has_suffix(name)]
        dumps = [] if tensors else [name for name in file_names if names.is_dump_file(name)]
        if not tensors and not dumps:
            continue
        key = _placed_below(place, folder) if tensors else _placed_dump(place, folder)
        digests.setdefault(key, hashlib.sha256()).update(folder_fingerprint(folder, tensors or dumps)[1].encode())
        before = found.get(key)
        path = posixpath.commonpath([before.path, folder]) if before is not None else folder
        found[key] = BenchmarkFolder(path=path, step=key[0], rank=key[1])
    if not found:  # a run of tfdbg, or nothing: the reader says what is wrong
        with suppress(PrecisionToolError):
            walk.find_benchmark(place)
            found[None, None] = BenchmarkFolder(path=place)
            digests[None, None] = hashlib.sha256()
    if not found:
        raise DataNotFoundError(
            f"{root}: no benchmark tensor (op.index.timestamp.npy) and no dump below this folder",
            "collect them on CPU or GPU, one .npy a tensor, or name another folder with -rt",
        )
    if set(found) == {(None, None)}:
        found[None, None] = BenchmarkFolder(path=place)
    by_place = {key: replace(one, fingerprint=digests[key].hexdigest()) for key, one in found.items()}
    return Benchmarks(root=place, by_place=by_place)


def _placed_below(root: str, folder: str) -> tuple[int | None, int | None]:
    """Step and rank that the folders between `root` and `folder` tell."""
    step, rank = placed_below(root, folder)
    if step is None and rank is None:
        parts = PurePath(posixpath.relpath(folder, root)).parts if folder != root else ()
        numbers = [int(part) for part in parts if names.is_number(part)]
        if 1 <= len(numbers) == len(parts) <= 2:
            step = numbers[-1]
            rank = numbers[0] if len(numbers) == 2 else None
    return step, rank


def _placed_dump(root: str, folder: str) -> tuple[int | None, int | None]:
    """Step and rank of a folder of dump files of another run; what is above `root` tells nothing of ranks."""
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
    notes: tuple[str, ...] = ()


def pair_benchmarks(leaves: Sequence[StudyLeaf], golden: str | None = None) -> Paired:
    """Which benchmark each leaf is compared with: what is below `golden`, else below its own data folder.

    DataNotFoundError where `golden` was named and holds none. Leaves of a data folder without one are compared with
    that of another data folder, if just one has any.
    """
    notes: list[str] = []
    known: dict[str, Benchmarks | None] = {}
    if golden is not None:
        common = find_benchmarks(golden)
        found = {leaf.path: one for leaf in leaves if (one := common.of(leaf)) is not None}
    else:
        for data in dict.fromkeys(leaf.data for leaf in leaves):
            known[data] = _of_data(data, notes)
        own = {data for data, one in known.items() if one is not None}
        having = [one for one in known.values() if one is not None]
        if len(having) == 1 and len(known) > 1:
            notes.append(f"{having[0].root} is the benchmark of every data folder: no other has one")
            known = dict.fromkeys(known, having[0])
        found = {}
        for leaf in leaves:
            side = known[leaf.data]
            one = None if side is None else side.of(leaf, is_own=leaf.data in own)
            if one is not None:
                found[leaf.path] = one
    lacking = [leaf for leaf in leaves if leaf.path not in found]
    if lacking and found:
        first = lacking[0]
        notes.append(
            f"{counted(len(lacking), 'folder')} of {len(leaves)} without a benchmark, the first step {first.step}, "
            f"rank {first.rank}: judged by its own dump"
        )
    elif lacking:
        notes.append("there is no benchmark: every dump is judged by itself, and ranks by each other")
    return Paired(folders=found, notes=tuple(notes))


def _of_data(data: str, notes: list[str]) -> Benchmarks | None:
    """What a data folder has: tf/dump, else tf/tf_debug, else the second NPU run."""
    if not data:
        return None
    space = open_workspace(data)
    try:
        folder = benchmark_folder(space) or space.dump_dir(1)
        return find_benchmarks(str(folder))
    except DataNotFoundError:
        return None
    except PrecisionToolError as error:
        notes.append(f"{error.message}: taken for no benchmark")
        return None
