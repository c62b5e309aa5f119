"""What a study is asked for, and what it has to look at: leaves, their benchmarks, their fingerprints."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from precision_tool.lib.errors import DataNotFoundError
from precision_tool.lib.graph.choice import find_graph_files, graph_folders
from precision_tool.lib.io.files import content_signature_of, exists
from precision_tool.lib.settings import DEFAULT_THRESHOLD
from precision_tool.lib.study.benchmarks import BenchmarkFolder, pair_benchmarks
from precision_tool.lib.study.beside import NOTHING, find_beside
from precision_tool.lib.study.leaves import Listing, StudyLeaf, list_leaves, parse_numbers, sources_of
from precision_tool.lib.study.plan import Judging, LeafPlan, digest_of


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What a study is of, and how.

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

    def __post_init__(self) -> None:
        for numbers in (self.steps, self.ranks):
            _numbers(numbers)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What will be worked on: every leaf with what it is compared with, in order."""

    plans: tuple[LeafPlan, ...]
    notes: tuple[str, ...]
    #: Paths of leaves whose benchmark is of just their step and rank, and of those with the first step of their rank.
    own: frozenset[str]
    starts: frozenset[str]

    @property
    def nbytes(self) -> int:
        """About how many bytes that is."""
        return sum(plan.leaf.nbytes for plan in self.plans)


def prepare(options: StudyOptions) -> Prepared:
    """Lists the leaves and finds what each is compared with. Nothing but names, sizes and times is looked at.

    DataNotFoundError where there is no dump, or what was named is not there.
    """
    if options.graph is not None and not exists(options.graph):
        raise DataNotFoundError(
            f"{options.graph}: no such graph", "name a ge_proto_*_Build.txt or its JSON, or leave -g out"
        )
    sources = sources_of(options.folders, options.npu)
    listing = list_leaves(sources, steps=_numbers(options.steps), ranks=_numbers(options.ranks))
    golden = options.golden
    if golden is None and options.npu is not None and len(options.folders) == 1:
        listing = _of_folder(listing, options.folders[0])
    paired = pair_benchmarks(listing.leaves, golden)
    unread: list[str] = []
    beside = find_beside(listing.leaves, unread)
    graphs: dict[str, str] = {}
    plans = []
    for leaf in listing.leaves:
        folder = paired.folders.get(leaf.path)
        around = beside.get(leaf.path, NOTHING)
        parts = [
            leaf.fingerprint,
            _graph_print(leaf.path, options.graph, graphs),
            "" if folder is None else folder.path,
        ]
        parts += ["" if folder is None else folder.fingerprint, around.fingerprint]
        parts += [_graph_print(one.paths[0], None, graphs) for one in around.runs]
        plans.append(
            LeafPlan(
                leaf=leaf,
                benchmark="" if folder is None else folder.path,
                benchmark_print="" if folder is None else folder.fingerprint,
                fingerprint=digest_of(parts),
                beside=around,
            )
        )
    one_step, one_rank = len(listing.steps) == 1, len(listing.ranks) == 1
    return Prepared(
        plans=tuple(plans), notes=(*listing.notes, *paired.notes, *unread),
        own=frozenset(
            leaf.path for leaf in listing.leaves if _is_own(paired.folders.get(leaf.path), one_step, one_rank)
        ),
        starts=_starts(listing.leaves),
    )  # fmt: skip


def _numbers(text: str | None) -> Callable[[int], bool] | None:
    return None if text is None else parse_numbers(text)


def _starts(leaves: Sequence[StudyLeaf]) -> frozenset[str]:
    first: dict[tuple[int, str], int] = {}
    for leaf in leaves:  # in the order of steps
        first.setdefault((leaf.rank, leaf.program), leaf.step)
    return frozenset(leaf.path for leaf in leaves if first[leaf.rank, leaf.program] == leaf.step)


def _of_folder(listing: Listing, data: str) -> Listing:
    """Leaves of a named dump folder, as those of the data folder: its benchmark stands for them."""
    if not exists(data):
        return listing
    return replace(listing, leaves=tuple(replace(leaf, data=posixpath.abspath(data)) for leaf in listing.leaves))


def _is_own(folder: BenchmarkFolder | None, one_step: bool, one_rank: bool) -> bool:
    """Whether a benchmark is of no other step and rank than its leaf, or the study has one step, one rank only."""
    return folder is None or ((folder.step is not None or one_step) and (folder.rank is not None or one_rank))


def _graph_print(path: str, graph: str | None, known: dict[str, str]) -> str:
    """What changes when the graphs that the leaf at `path` may have do."""
    folders = [graph] if graph is not None else graph_folders(path)
    key = "\0".join(folders)
    if key not in known:
        paths = [graph] if graph is not None else find_graph_files(folders)
        known[key] = digest_of(f"{path}{content_signature_of(path)}" for path in sorted(paths))
    return known[key]


def from_anywhere(options: StudyOptions) -> StudyOptions:
    """The same with absolute paths: workers of a cluster have working folders of their own."""
    named = {key: getattr(options, key) for key in ("npu", "golden", "graph")}
    absolute = {key: path and posixpath.abspath(path) for key, path in named.items()}
    return replace(options, folders=[posixpath.abspath(folder) for folder in options.folders], **absolute)
