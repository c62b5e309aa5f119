"""A study of very many ranks, by simulation: names of files, rows and votes are made up, no tensor is there.

What is real is all that one client does for them: listing, pairing, planning and cutting into tasks; reading the
journal, counting votes, concluding, heat maps and table. What workers do is measured on one real leaf, and what a study
needs of them is reckoned from that, on paper.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose.replica_count import WORLD, settled
from precision_tool.lib.diagnose.replica_votes import BlockMeans, Role, Vote, is_communication, pack_votes
from precision_tool.lib.diagnose.study import Runner, Study
from precision_tool.lib.diagnose.study_conclusion import conclude
from precision_tool.lib.diagnose.study_journal import JOURNAL, LeafDone, LeafOutcome, open_journal
from precision_tool.lib.diagnose.study_plan import LeafPlan, Prepared, StudyOptions, Task, batches, prepare
from precision_tool.lib.diagnose.study_statistics import LeafStatistics, StatisticsJudge, TensorNames
from precision_tool.lib.diagnose.study_table import (
    HEAT_MAP_COLUMNS,
    NUMBERS,
    TEXTS,
    WHOLE,
    Columns,
    Maps,
    coded,
    pack,
    write_table,
)
from precision_tool.lib.diagnose.study_task import run_task
from precision_tool.lib.io import cache as fingerprint
from precision_tool.lib.io.local import LocalStore
from precision_tool.lib.view.study_report import write_study

#: Tensors of an op, and blocks of which a worker takes the means on both sides of an all-reduce.
_TENSORS, _BLOCKS = 3, 64
#: A file of an op (bytes), as listing shows it.
_FILE = 260_000
_ROOT = "/simulated/ranks"
_STAMP = 1_772_443_802_000_000
_DIGEST = "0" * 31
#: What a study of the reference's size reads.
_PAPER_BYTES, _PAPER_RANKS = 8e12, 1000


@dataclass(frozen=True)
class Size:
    """How much is simulated."""

    ranks: int
    tensors: int
    all_reduces: int = 160

    @property
    def ops(self) -> int:
        """Ops of the network."""
        return max(1, self.tensors // _TENSORS)

    @property
    def culprit(self) -> tuple[int, int]:
        """The rank that differs, and in which op."""
        return self.ranks * 211 // 1000, sorted(self.shared)[len(self.shared) // 2]

    @cached_property
    def shared(self) -> frozenset[int]:
        """The ops that all replicas must have alike."""
        return frozenset(self.ops * number // self.all_reduces for number in range(self.all_reduces))

    def op(self, number: int) -> tuple[str, str]:
        """Name and type of an op."""
        kind = "HcomAllReduce" if number in self.shared else "MatMulV2"
        return f"tower_{number // 100}/layer_{number}/{kind}", kind


def options() -> StudyOptions:
    """A dump folder with a folder for each rank."""
    return StudyOptions(folders=["/simulated/nowhere"], npu=_ROOT)


class _Simulated(LocalStore):
    """Every file is there."""

    def sizes_and_times(self, folder: str, file_names: Sequence[str]) -> Iterator[tuple[int, int]]:
        return iter([(_FILE, 1)] * len(file_names))


@contextmanager
def simulated_files(size: Size) -> Iterator[None]:
    """Listing finds a folder of dump files for each rank; nothing is on a disk."""
    names = []
    for number in range(size.ops):
        name, kind = size.op(number)
        names.append(f"{kind}.{name.replace('/', '_')}.{number}.0.{_STAMP + number * 40}")

    def list_folders(root: str, *_: Any, **__: Any) -> Iterator[tuple[str, list[str]]]:
        for rank in range(size.ranks) if root == _ROOT else ():
            yield f"{_ROOT}/rank_{rank}/20260302093000/{rank % 8}/ge_default_20260302093000_1/1/0", names

    with (
        patch.object(walk, "list_folders", list_folders),
        patch.object(fingerprint, "store_of", lambda _: _Simulated()),
    ):
        yield


def plan(size: Size) -> Prepared:
    """What the study will do."""
    with simulated_files(size):
        return prepare(options())


def fill(size: Size, folder: str) -> None:
    """Puts what workers would have handed back into a journal."""
    prepared = plan(size)
    key = Runner(prepared, options(), None, "")._key  # type: ignore[arg-type]  # only its key is asked for
    variants = [pack(columns(size, seed)) for seed in range(4)]
    rng = np.random.default_rng(0)
    given = rng.normal(0, 1, (len(size.shared), size.ranks, _BLOCKS))
    with open_journal(folder) as journal:
        for number, leaf_plan in enumerate(prepared.plans):
            done = LeafDone(
                outcome=LeafOutcome(rows=size.tensors, compared=size.tensors, network="one", judged=True),
                votes=pack_votes(votes_of_rank(size, leaf_plan.leaf.rank, given)),
                rows=variants[number % 4],
            )
            journal.keep([(leaf_plan, done)], key)


def columns(size: Size, seed: int) -> Columns:
    """The rows of a leaf."""
    rng = np.random.default_rng(seed)
    places = [(number, slot) for number in range(size.ops) for slot in ("input:0", "input:1", "output:0")]
    columns: Columns = {name: coded([""] * len(places)) for name in TEXTS}
    columns["op"] = coded([size.op(number)[0] for number, _ in places])
    columns["type"] = coded([size.op(number)[1] for number, _ in places])
    columns["slot"] = coded([slot for _, slot in places])
    columns |= {name: np.zeros(len(places), np.int64) for name in WHOLE}
    columns["number"] = np.array([number for number, _ in places])
    # Digits as real figures have them: a constant would be packed to nothing.
    columns |= {name: rng.normal(1, 1e-3, len(places)) for name in NUMBERS}
    columns["cosine"] = 1 - 1e-5 * rng.random(len(places))
    return columns


def votes_of_rank(size: Size, rank: int, given: npt.NDArray[np.float64]) -> tuple[Vote, ...]:
    """What a worker says of a rank; `given` are the means that ranks put in, shape (all-reduces, ranks, blocks)."""
    lone, wrong = size.culprit
    votes = []
    for epoch, number in enumerate(sorted(size.shared)):
        name, kind = size.op(number)
        digest = f"{_DIGEST}{int(rank == lone and number >= wrong)}"
        into, came = given[epoch, rank], given[epoch].sum(axis=0)
        if (rank, number) == (lone, wrong):
            came[0] += np.sqrt(size.ranks)
        votes.append(
            Vote(
                op=name, type=kind, role=Role.COLLECTIVE, number=number, epoch=epoch, inputs=(f"{rank:032x}",),
                outputs=(digest,), input_means=(block_means(into),), output_means=(block_means(came),),
                group=WORLD, size=size.ranks,
            )
        )  # fmt: skip
    return tuple(votes)


def block_means(means: npt.NDArray[np.float64]) -> BlockMeans:
    """Means of blocks as a worker hands them back, and sizes that go with them."""
    return BlockMeans(figures=np.array([means, np.abs(means)], np.float32), rounding=2**-23)


def count(size: Size, folder: str) -> None:
    """What votes with real block means take: bytes of the journal, time and memory of counting one step."""
    path = Path(folder) / JOURNAL
    with closing(sqlite3.connect(path)) as connection:
        (nbytes,) = connection.execute("SELECT sum(length(votes)) FROM leaves").fetchone()
    print(f"  votes on {len(size.shared)} all-reduces of {size.ranks:,} ranks: {nbytes / 1e6:.0f} MB of the journal")
    with open_journal(folder) as journal:
        runner = Runner(plan(size), options(), journal)
        runner.run(THIS_THREAD)
        states = runner.final_states()
        (votes,), _ = timed("votes of a step", lambda: runner.votes(states))
    wrong = [(item.ranks, item.op) for item in settled([votes.sums]).wrong]
    assert wrong == [((size.culprit[0],), size.op(size.culprit[1])[0])], wrong
    print(f"  memory at most {memory():,.0f} MB")


def memory() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(what: str, work: Callable[[], Any]) -> Any:
    """Does it and says how long it took, on the clock and of the processor."""
    start, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"  {what:<32} {wall:8.1f} s ({cpu:.1f} s of one core)", flush=True)
    return result


def client(size: Size, folder: str, table: str) -> None:
    """All that one client does, with its figures."""
    prepared = timed("planning: list, pair, plan", lambda: plan(size))
    tasks = timed("planning: tasks", lambda: list(batches(prepared.plans)))
    print(f"  {len(prepared.plans):,} dump folders, {prepared.nbytes / 1e12:.2f} TB claimed, {len(tasks):,} tasks")
    with open_journal(folder) as journal:
        runner = Runner(prepared, options(), journal)
        timed("what the journal knows", lambda: runner.run(THIS_THREAD))
        states = runner.final_states()
        votes, feeds = timed("verdict: votes", lambda: runner.votes(states))
        conclusion = timed("verdict: conclusion", lambda: conclude(states, votes, feeds=feeds))
        culprit = conclusion.culprit
        culprit_found = None if culprit is None else (culprit.rank, culprit.op)
        assert culprit_found == (size.culprit[0], size.op(size.culprit[1])[0]), culprit_found
        print(f"  found: {culprit_found}")
        maps = Maps()

        def fill_maps() -> None:
            for state in states:
                rows = runner.columns(state, HEAT_MAP_COLUMNS)
                assert rows is not None
                maps.take(state.leaf.step, state.leaf.rank, rows)

        timed("heat maps", fill_maps)
        study = Study(conclusion=conclusion, leaves=tuple(states), votes=tuple(votes), maps=maps.maps())
        page = Path(table).with_name("study.html")
        timed("report", lambda: write_study(str(page), study))
        print(f"  the report has {page.stat().st_size / 1e6:.1f} MB")
        rows = timed("table (Parquet)", lambda: write_table(table, states, runner.columns))
        print(f"  {rows:,} rows, {Path(table).stat().st_size / 1e9:.2f} GB")
    print(f"  memory of the client at most {memory():,.0f} MB")


def statistics(size: Size) -> None:
    """What statistics tell, of two steps; in the second a norm is off on one rank."""
    rng = np.random.default_rng(0)
    count = size.ops * _TENSORS
    op_of = np.repeat(np.arange(size.ops), _TENSORS)
    is_output = np.tile(np.array([False, False, True]), size.ops)
    names = TensorNames(
        ops=tuple(size.op(number)[0] for number in range(size.ops)),
        types=tuple(size.op(number)[1] for number in range(size.ops)),
        op_of=op_of, is_output=is_output, slots=np.tile(np.array([0, 1, 0]), size.ops),
        counts=np.full(count, 4096), limits=np.full(count, np.inf), nbytes=np.full(count, 8192),
    )  # fmt: skip
    shared = np.array([is_communication(names.types[op]) for op in op_of]) & is_output
    norms = rng.lognormal(0, 1, count)
    lone, wrong = size.culprit
    wrong += 1  # no collective

    def leaf(step: int, rank: int) -> LeafStatistics:
        sizes = norms * np.exp(0.01 * rng.standard_normal(count) * ~shared)
        if (step, rank) == (1, lone):
            sizes[_TENSORS * wrong + 2] *= 0.5
        digests = rng.integers(1, 2**32, count, np.uint32)
        digests[shared] = 7
        zeros = np.zeros(count, np.float32)
        return LeafStatistics(
            step=step, rank=rank, names=names, sizes=sizes.astype(np.float32), means=zeros.copy(),
            largest=zeros + 1, nans=zeros.copy(), infs=zeros.copy(), digests=digests,
            is_constant=np.zeros(count, bool),
        )  # fmt: skip

    judge = StatisticsJudge()
    for step in range(2):
        leaves: list[LeafStatistics] = []  # those of the step before go first
        leaves = [leaf(step, rank) for rank in range(size.ranks)]
        findings = timed(f"statistics: step {step}", partial(judge.step, leaves))
    places = {(finding.rank, finding.op) for finding in findings}
    assert places == {(lone, size.op(wrong)[0])}, places
    print(f"  found: {places}")
    print(f"  memory of the client at most {memory():,.0f} MB")


@contextmanager
def no_executor() -> Iterator[None]:
    """The journal knows all, so there is no work."""
    yield None


def on_paper(folder: Path) -> None:
    """What 8 TB over 1,000 ranks take, from the rate of one core on a real leaf."""
    truth = generate_demo(folder / "precision_data", fault="none", ops=120, bytes_total=300_000_000)
    found = prepare(StudyOptions(folders=[str(folder / "precision_data")])).plans
    (leaf,) = found
    run_task(Task(leaves=(replace(leaf, benchmark=""),), judges=False))  # read once before the clock starts
    for what, plans, judges in (
        ("compared with a benchmark", leaf, False),
        ("compared and recomputed", leaf, True),
        ("without a benchmark, looked at", replace(leaf, benchmark=""), False),
        ("without a benchmark, recomputed", replace(leaf, benchmark=""), True),
    ):
        seconds = core_seconds(plans, judges)
        rate = leaf.leaf.nbytes / seconds
        hours = _PAPER_BYTES / rate / 3600
        print(
            f"  {what:<34} {rate / 1e6:6.0f} MB of dump a core and second: {hours:7,.0f} core-hours for 8 TB, "
            f"{60 * hours / _PAPER_RANKS:5.1f} min with a core beside each of 1,000 ranks"
        )
    print(f"  ({truth.dump_files} files, {leaf.leaf.nbytes / 1e6:.0f} MB; a slower disk sets the pace)")


def core_seconds(plan_of_leaf: LeafPlan, judges: bool) -> float:
    """Processor seconds of one leaf in one process."""
    start = time.process_time()
    (done,) = run_task(Task(leaves=(plan_of_leaf,), judges=judges))
    assert not done.outcome.failure, done.outcome.failure
    return time.process_time() - start


def bench_ranks(arguments: list[str] | None = None) -> None:
    """Prints the figures of a study with this many ranks."""
    parser = argparse.ArgumentParser(prog="scripts/bench ranks", description="A study of many ranks, by simulation.")
    parser.add_argument("--ranks", type=int, default=1000, help="ranks (default %(default)s)")
    parser.add_argument("--tensors", type=int, default=30_000, help="tensors of each rank (default %(default)s)")
    parser.add_argument("--all-reduces", type=int, default=160, help="all-reduces of a step (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where journal and table go (default: a temporary folder)")
    args = parser.parse_args(arguments)
    size = Size(args.ranks, args.tensors, args.all_reduces)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        (folder / "study").mkdir()
        print(f"a simulation of {size.ranks:,} ranks × {size.tensors:,} tensors: rows and names are made up, no files")
        in_a_process(fill, size, str(folder / "study"))
        print(f"  the journal has {sum(file.stat().st_size for file in (folder / 'study').iterdir()) / 1e9:.2f} GB")
        in_a_process(count, size, str(folder / "study"))
        in_a_process(client, size, str(folder / "study"), str(folder / "study.parquet"))
        in_a_process(statistics, size)
        print("on paper, from rates measured here on one leaf of a demo:")
        on_paper(folder)


def in_a_process(work: Callable[..., None], *arguments: Any) -> None:
    """Does it in a process of its own, whose memory is that of this work alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        executor.submit(work, *arguments).result()


if __name__ == "__main__":
    bench_ranks()
