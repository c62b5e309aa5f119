"""The plan of a study: which leaf is compared with what, and how the work is cut into tasks."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import groupby, zip_longest
from pathlib import Path

from precision_tool.lib.data.graph_choice import find_graph_files, graph_folders
from precision_tool.lib.data.settings import DEFAULT_THRESHOLD, check_options
from precision_tool.lib.diagnose.device_profile import DeviceProfile
from precision_tool.lib.diagnose.study_leaves import (
    NO_BENCHMARK,
    NOTHING,
    Listing,
    StudyLeaf,
    Surroundings,
    find_surroundings,
    list_leaves,
    pair_benchmarks,
    parse_numbers,
    sources_of,
)
from precision_tool.lib.io.files import content_signature_of, exists, read_bytes
from precision_tool.lib.io.native.library import description
from precision_tool.lib.io.stores import take_unread
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.model.documents import to_document

#: Bytes of a task: large enough that handing it over costs nothing, small enough that losing one does not hurt.
TASK_BYTES = 256 << 20
#: Leaves of a task at most.
_MAX_TASK_LEAVES = 64


@cache
def made_by() -> str:
    """Return a digest that changes when leaves may be judged in another way, so that they are analysed again.

    That is this package's code, and the kernel, whose sums differ in the last digits.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(description().encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(read_bytes(str(path)))
    return digest.hexdigest()


class Judging(StrEnum):
    """Choice of the leaves that are recomputed op by op, in addition to being compared."""

    #: Those of every step up to the first in which something computes wrong.
    FIRST = "first"
    #: Those with a tensor that is off, or not finite; without a benchmark all.
    SUSPECTS = "suspects"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOptions:
    """Options of comparing and judging a leaf."""

    threshold: float = DEFAULT_THRESHOLD
    graph: str | None = None
    #: Recompute only where the comparison shows something.
    only_suspects: bool = False
    #: How precise the device is, as earlier runs showed.
    profile: DeviceProfile | None = None

    @property
    def digest(self) -> str:
        """Digest of these options, by which a journal tells them from others."""
        return hashlib.sha256(json.dumps([made_by(), to_document(self)], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlan:
    """A leaf, the folder that it is compared with ("": none), and what is beside it.

    `fingerprint` changes when anything does that the result depends on, `benchmark_print` when the benchmark does.
    `is_own` tells that the benchmark is of just this step and rank, `is_start` that its rank was not trained before.
    """

    leaf: StudyLeaf
    benchmark: str = ""
    benchmark_print: str = ""
    fingerprint: str = ""
    surroundings: Surroundings = NOTHING
    is_own: bool = True
    is_start: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Leaves for one worker. It carries paths and plans only. `judges`: whether they are recomputed too.

    `cache` is a folder in which parsed graphs are kept, "" for none. `workers` share the work of each leaf,
    where there are fewer leaves than workers. The tensors and ops of a leaf that is `shared` go to all workers: it is
    so large that the others would wait for the one that had it.
    """

    leaves: tuple[LeafPlan, ...]
    options: LeafOptions = field(default_factory=LeafOptions)
    judges: bool = True
    cache: str = ""
    workers: int = 1
    shared: bool = False

    @property
    def nbytes(self) -> int:
        """About how many bytes are read."""
        return sum(plan.leaf.nbytes for plan in self.leaves)

    def alone(self) -> Iterator[Task]:
        """Return one task for each leaf."""
        for plan in self.leaves:
            yield replace(self, leaves=(plan,))


def batches(
    plans: Iterable[LeafPlan], task_bytes: int = TASK_BYTES, host_of: Callable[[str], str] = lambda path: ""
) -> Iterator[tuple[LeafPlan, ...]]:
    """Return leaves in order of steps, of one step and one host each batch, of about `task_bytes`.

    `host_of` says whose workers read a leaf's path. Hosts take turns, so that all have something to do.
    """
    for _, of_step in groupby(plans, key=lambda plan: plan.leaf.step):
        by_host: dict[str, list[LeafPlan]] = {}
        for plan in of_step:
            by_host.setdefault(host_of(plan.leaf.path), []).append(plan)
        for turn in zip_longest(*(_cut(of_host, task_bytes) for of_host in by_host.values())):
            yield from filter(None, turn)


def _cut(plans: Iterable[LeafPlan], task_bytes: int) -> Iterator[tuple[LeafPlan, ...]]:
    batch: list[LeafPlan] = []
    nbytes = 0
    for plan in plans:
        if batch and (nbytes + plan.leaf.nbytes > task_bytes or len(batch) >= _MAX_TASK_LEAVES):
            yield tuple(batch)
            batch, nbytes = [], 0
        batch.append(plan)
        nbytes += plan.leaf.nbytes
    if batch:
        yield tuple(batch)


def digest_of(parts: Iterable[str]) -> str:
    """Return a digest of several texts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


# --- options and preparation ---


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Data and options of a study.

    Attributes
    ----------
    folders : sequence of str
        Data folders, one for each server; none: those of the session.
    npu, golden, graph : str, optional
        The dump folder, the benchmark and the graph, in the place of those of the data folders.
    steps, ranks : str, optional
        Which are wanted, all by default: ``"3"``, ``"0-7"`` or ``"1,5,8-"``.
    judging : Judging
        Which leaves are recomputed op by op.
    threshold : float
        Cosine similarity, -1 to 1, below which a tensor counts as wrong.
    table : str
        The Parquet file of all rows; by default in the folder of results, if pyarrow is installed.
    csv : bool
        Write a result file for each leaf as well.
    profile : DeviceProfile, optional
        How precise the device is, as earlier runs showed (`stored_profile.read_profile`).
    fresh : bool
        Begin anew, whatever the journal holds.
    watch_seconds : float
        Look for new steps every so many seconds, until Ctrl+C; 0: analyse once.
    world_size : int
        How many ranks were trained together, dumped or not: of a sum, only that of all can be checked. 0: not known.
    results : str
        The folder of the table and the result files, which may be on no disk; by default that of the journal.
    """

    folders: Sequence[str] = ()
    npu: str | None = None
    golden: str | None = None
    graph: str | None = None
    steps: str | None = None
    ranks: str | None = None
    judging: Judging = Judging.FIRST
    threshold: float = DEFAULT_THRESHOLD
    table: str = ""
    csv: bool = False
    results: str = ""
    profile: DeviceProfile | None = None
    fresh: bool = False
    watch_seconds: float = 0.0
    world_size: int = 0

    def __post_init__(self) -> None:
        check_options(self, threshold="threshold")
        for numbers in (self.steps, self.ranks):
            _numbers(numbers)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The work of a study: every leaf with its benchmark, in order."""

    plans: tuple[LeafPlan, ...]
    notes: tuple[Message, ...]
    #: What could not be read for a reason of its storage while this was listed, by path.
    unread: Mapping[str, Message] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """About how many bytes that is."""
        return sum(plan.leaf.nbytes for plan in self.plans)


def prepare(options: StudyOptions) -> Prepared:
    """List the leaves and find their benchmarks. Only names, sizes and times of files are read.

    DataNotFoundError where there is no dump, or what was named is not there.
    """
    if options.graph is not None and not exists(options.graph):
        raise DataNotFoundError.of(options.graph, "diagnose.no_graph")
    take_unread()  # what an earlier command of this process could not read
    sources = sources_of(options.folders, options.npu)
    listing = list_leaves(sources, steps=_numbers(options.steps), ranks=_numbers(options.ranks))
    golden = options.golden
    if golden is None and options.npu is not None and len(options.folders) == 1:
        listing = _of_folder(listing, options.folders[0])
    paired = pair_benchmarks(listing.leaves, golden)
    unread: list[Message] = []
    surroundings = find_surroundings(listing.leaves, unread)
    graphs: dict[str, str] = {}
    one_step, one_rank = len(listing.steps) == 1, len(listing.ranks) == 1
    first_steps: dict[tuple[int, str], int] = {}
    plans = []
    for leaf in listing.leaves:  # in the order of steps
        benchmark = paired.folders.get(leaf.path, NO_BENCHMARK)
        around = surroundings.get(leaf.path, NOTHING)
        parts = [leaf.fingerprint, _graph_print(leaf.path, options.graph, graphs), benchmark.path]
        parts += [benchmark.fingerprint, around.fingerprint]
        parts += [_graph_print(run.paths[0], None, graphs) for run in around.runs]
        is_of_its_own = (benchmark.step is not None or one_step) and (benchmark.rank is not None or one_rank)
        plans.append(
            LeafPlan(
                leaf=leaf,
                benchmark=benchmark.path,
                benchmark_print=benchmark.fingerprint,
                fingerprint=digest_of(parts),
                surroundings=around,
                is_own=not benchmark.path or is_of_its_own,
                is_start=not leaf.is_trained
                and first_steps.setdefault((leaf.rank, leaf.program), leaf.step) == leaf.step,
            )
        )
    notes = (*listing.notes, *paired.notes, *unread)
    return Prepared(plans=tuple(plans), notes=notes, unread=take_unread())


def _numbers(text: str | None) -> Callable[[int], bool] | None:
    return None if text is None else parse_numbers(text)


def _of_folder(listing: Listing, data: str) -> Listing:
    """Return leaves of a named dump folder, as those of the data folder: its benchmark stands for them."""
    if not exists(data):
        return listing
    return replace(listing, leaves=tuple(replace(leaf, data=posixpath.abspath(data)) for leaf in listing.leaves))


def _graph_print(path: str, graph: str | None, prints: dict[str, str]) -> str:
    """Return a digest of the graphs that the leaf at `path` may have."""
    folders = [graph] if graph is not None else graph_folders(path)
    key = "\0".join(folders)
    if key not in prints:
        paths = [graph] if graph is not None else find_graph_files(folders)
        prints[key] = digest_of(f"{path}{content_signature_of(path)}" for path in sorted(paths))
    return prints[key]


def from_anywhere(options: StudyOptions) -> StudyOptions:
    """Return the options with absolute paths: workers of a cluster have working folders of their own."""
    named = {key: getattr(options, key) for key in ("npu", "golden", "graph")}
    absolute = {key: path and posixpath.abspath(path) for key, path in named.items()}
    return replace(options, folders=[posixpath.abspath(folder) for folder in options.folders], **absolute)
