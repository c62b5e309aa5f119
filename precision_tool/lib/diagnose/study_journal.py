"""What a worker says of one leaf, and what of it a study remembers: little, as there may be a hundred thousand."""

from __future__ import annotations

import json
import posixpath
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.study_plan import LeafPlan
from precision_tool.lib.diagnose.verdict_model import Cause, Proof, Verdict
from precision_tool.lib.io.writing import LockedError, only_process
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, OutputError, UsageError, shown_name
from precision_tool.lib.model.documents import from_document, to_document


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOp:
    """The op that the comparison alone names: `kind` is that of the finding."""

    op: str
    type: str
    kind: str
    number: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafCounts:
    """A leaf in numbers; one that could not be worked on has a `failure` and nothing else.

    `rows`, `compared`, `unreadable` and `below` count tensors; `bad` those with NaN or Inf. `lack` says why there is no
    graph, without which nothing is recomputed. `network` tells graphs apart: replicas have the same. `unread` counts
    files that their storage did not give, `unread_reason` is that of the first.
    """

    failure: Message | None = None
    rows: int = 0
    compared: int = 0
    unreadable: int = 0
    below: int = 0
    bad: int = 0
    first_bad: str = ""
    network: str = ""
    lack: Message | None = None
    borrowed: Message | None = None
    #: Whether its ops were recomputed, or would have been if that had been possible.
    judged: bool = False
    unread: int = 0
    unread_reason: Message | None = None

    def counts(self) -> dict[str, Any]:
        """Return the fields of this class by name."""
        return {item.name: getattr(self, item.name) for item in fields(LeafCounts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOutcome(LeafCounts):
    """Outcome of one leaf.

    `epochs` has, by suspect of the verdict, how many communication ops ran before it; `sized` the outputs of those that
    are accused for the size of an error alone. `by_attributes` are those that other attributes than the graph's might
    acquit, where it is `borrowed`: says that it is, or may be, another device's.
    """

    graph: str = ""
    #: N of npu/debug_N that it is of; None where it is of none.
    run: int | None = None
    first: FirstOp | None = None
    verdict: Verdict | None = None
    epochs: Mapping[str, int] | None = None
    sized: Mapping[str, tuple[int, ...]] | None = None
    by_attributes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeafDone:
    """Result of a worker for a leaf: its outcome, and its rows as `pack` makes them (b"": none).

    `votes` are as `pack_votes` makes them; `statistics` are those of a leaf that was dumped as such, as
    `pack_statistics` makes them.
    """

    outcome: LeafOutcome
    votes: bytes = b""
    rows: bytes = b""
    statistics: bytes = b""


# --- what stays in memory of a leaf ---


class Excuse(StrEnum):
    """Why an op that the verdict on a leaf accuses does not count as wrong."""

    #: It is off by as much where it counts as right.
    PEERS = "peers"
    #: It is wrong only by attributes in the graph of another rank.
    GRAPH = "graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """An op that the verdict on a leaf accuses. `epoch` counts the communication ops before it."""

    op: str
    type: str
    cause: Cause
    proof: Proof
    confidence: float
    number: int
    epoch: int
    pass_name: str = ""
    #: N of npu/debug_N in which it computes wrong, where that is another run than the one under test.
    run: int | None = None
    #: Outputs for which it is accused, where only the size of their error speaks against it.
    sized: tuple[int, ...] = ()
    #: Whether other attributes than those of a borrowed graph might acquit it.
    by_attributes: bool = False
    #: Why it does not count in view of the other leaves; None where it does.
    excuse: Excuse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafState(LeafCounts):
    """A leaf and what came out. `is_own` tells that its benchmark is of just this step and rank.

    `excused` are ops that its verdict accuses and other leaves acquit (`study_peers`).
    """

    leaf: StudyLeaf
    #: Whether a verdict could be made, and of how many ops it says that they compute right.
    has_verdict: bool = False
    right: int = 0
    accused: tuple[Accused, ...] = ()
    excused: tuple[Accused, ...] = ()
    first: FirstOp | None = None
    is_own: bool = True


#: What differs from a benchmark that is of another step or rank differs for good reasons.
_OF_THE_DATA = (Cause.INPUT, Cause.WEIGHTS)
#: Proofs that the benchmark alone gives.
BY_BENCHMARK = (Proof.COMPARED, Proof.SOURCE)


def state_of(plan: LeafPlan, outcome: LeafOutcome) -> LeafState:
    """Return the part of an outcome that stays in memory.

    Held against a benchmark that is not its own, a leaf may have other data: what only the comparison says is left out.
    After the first step that a rank has, its variables are what both sides have trained meanwhile: that they differ
    accuses nobody.
    """
    verdict = outcome.verdict
    epochs, sized = outcome.epochs or {}, outcome.sized or {}
    run = None if verdict is None or verdict.run == outcome.run else verdict.run
    suspects = () if verdict is None or verdict.culprit is None else verdict.suspects
    accused = tuple(
        Accused(
            op=suspect.culprit, type=suspect.op_type, cause=suspect.cause, proof=suspect.proof,
            confidence=suspect.confidence,
            number=suspect.number, epoch=epochs.get(suspect.culprit, 0), pass_name=suspect.pass_name, run=run,
            sized=sized.get(suspect.culprit, ()), by_attributes=suspect.culprit in outcome.by_attributes,
        )
        for suspect in suspects
        if suspect.cause is not Cause.LOSS_SCALE
        and (plan.is_own or (suspect.cause not in _OF_THE_DATA and suspect.proof not in BY_BENCHMARK))
        and (plan.is_start or suspect.cause is not Cause.WEIGHTS)
    )  # fmt: skip
    return LeafState(
        leaf=plan.leaf, **outcome.counts(), has_verdict=verdict is not None and not verdict.is_empty,
        right=0 if verdict is None else verdict.tally.right, accused=accused,
        first=outcome.first if plan.is_own else None, is_own=plan.is_own,
    )  # fmt: skip


# --- the journal: one SQLite database, one writer, consistent after every kill ---


#: The layout of the database; one of another layout is begun anew.
_VERSION = 6
JOURNAL, _LOCK = "journal.sqlite", "journal.lock"
# With row numbers: a search by key in a table without them reads whole rows, and these may be megabytes.
_TABLES = """
CREATE TABLE IF NOT EXISTS leaves (
    path BLOB NOT NULL, options TEXT NOT NULL, fingerprint TEXT NOT NULL, dump TEXT NOT NULL,
    benchmark BLOB NOT NULL, benchmark_print TEXT NOT NULL,
    judged INTEGER NOT NULL, given_up INTEGER NOT NULL, outcome TEXT NOT NULL, votes BLOB NOT NULL,
    PRIMARY KEY (path, options)
);
CREATE TABLE IF NOT EXISTS tensors (
    path BLOB NOT NULL, options TEXT NOT NULL, rows BLOB NOT NULL, statistics BLOB NOT NULL,
    PRIMARY KEY (path, options)
);
"""
_NAMES = ("leaves", "tensors")
#: Paths that one question to the database names.
_AT_ONCE = 500
#: What reading a text as an outcome raises where it is none.
_NO_OUTCOME = (KeyError, TypeError, ValueError, RecursionError)
#: What a damaged database raises: it may quote itself in bytes that are no text.
_DAMAGED = (sqlite3.DatabaseError, UnicodeDecodeError)


class Journal:
    """The journal of the study in a folder. Open it with `open_journal`."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self.path = path

    def keep(self, done: Sequence[tuple[LeafPlan, LeafDone]], options: str, *, given_up: bool = False) -> None:
        """Store what a task found, all of it or nothing. OutputError where that cannot be written."""
        # What failed is tried again: a server may answer by then, and credentials be new.
        leaves = [
            (
                _stored(plan.leaf.path), options, plan.fingerprint, plan.leaf.fingerprint,
                _stored(plan.benchmark),
                plan.benchmark_print,
                leaf_done.outcome.judged,
                given_up or bool(leaf_done.outcome.failure or leaf_done.outcome.unread),
                json.dumps(to_document(leaf_done.outcome)), leaf_done.votes,
            )
            for plan, leaf_done in done
        ]  # fmt: skip
        tensors = [(_stored(plan.leaf.path), options, leaf_done.rows, leaf_done.statistics) for plan, leaf_done in done]
        with self._errors(), self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO leaves VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", leaves)
            self._connection.executemany("INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, ?)", tensors)

    def stored_outcomes(self, plans: Sequence[LeafPlan], options: str) -> Iterator[tuple[LeafPlan, LeafOutcome]]:
        """Yield the stored outcomes of unchanged leaves; not of those that were given up."""
        for at in range(0, len(plans), _AT_ONCE):
            by_path = {_stored(plan.leaf.path): plan for plan in plans[at : at + _AT_ONCE]}
            with self._errors():
                rows = self._connection.execute(
                    "SELECT path, fingerprint, outcome FROM leaves WHERE options = ? AND NOT given_up AND path IN "
                    f"({','.join('?' * len(by_path))})",
                    (options, *by_path),
                ).fetchall()
            for path, fingerprint, text in rows:
                if by_path[path].fingerprint == fingerprint:
                    with suppress(*_NO_OUTCOME):  # it is done again
                        yield by_path[path], from_document(LeafOutcome, json.loads(text))

    def outcome(self, path: str, options: str) -> LeafOutcome | None:
        """Return the outcome of a leaf."""
        row = self._cell("outcome", path, options)
        with self._damage():
            return None if row is None else from_document(LeafOutcome, json.loads(row))

    def votes(self, path: str, options: str) -> bytes:
        """Return the votes of a leaf as `unpack_votes` reads them; b"" for none."""
        row: bytes | None = self._cell("votes", path, options)
        return row or b""

    def rows(self, path: str, options: str) -> bytes:
        """Return the rows of a leaf, as `packed.unpack` reads them; b"" for none."""
        row: bytes | None = self._cell("rows", path, options, "tensors")
        return row or b""

    def statistics(self, path: str, options: str) -> bytes:
        """Return the statistics of a leaf as `unpack_statistics` reads them; b"" for none."""
        row: bytes | None = self._cell("statistics", path, options, "tensors")
        return row or b""

    def _cell(self, column: str, path: str, options: str, table: str = "leaves") -> Any:
        with self._errors():
            row = self._connection.execute(
                f"SELECT {column} FROM {table} WHERE path = ? AND options = ?", (_stored(path), options)
            ).fetchone()
        return None if row is None else row[0]

    def forget(self) -> None:
        """Forget all of it."""
        with self._errors(), self._connection:
            for table in _NAMES:
                self._connection.execute(f"DELETE FROM {table}")

    def close(self) -> None:
        """Put everything into the one file and closes it."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Raise FormatError for what is stored in a form of ours: the database does not notice when that is damaged."""
        try:
            yield
        except _NO_OUTCOME as error:
            raise _damaged(self.path, error) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
            raise OutputError.of(self.path, "diagnose.journal_not_written", reason=str(error)) from error
        except _DAMAGED as error:
            raise _damaged(self.path, error) from error


def _stored(path: str) -> bytes:
    """Return a path as it is stored: names of files need not be UTF-8, texts of the database have to."""
    return path.encode("utf-8", "surrogateescape")


def _damaged(path: str, error: object) -> FormatError:
    return FormatError.of(path, "diagnose.journal_damaged", reason=shown_name(str(error)))


@contextmanager
def open_journal(folder: str, *, fresh: bool = False) -> Iterator[Journal]:
    """Open the journal in an existing folder, for this study alone. UsageError while another study has it.

    With `fresh`, or where it is of another release, it is begun anew; FormatError for a damaged one.
    """
    path = posixpath.join(folder, JOURNAL)
    with _only_one(posixpath.join(folder, _LOCK), folder):
        if fresh:
            for name in (path, f"{path}-wal", f"{path}-shm"):
                Path(name).unlink(missing_ok=True)
        try:
            connection = _connected(path)
        except _DAMAGED as error:
            raise _damaged(path, error) from error
        with closing(Journal(connection, path)) as journal:
            yield journal


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """The rows of a leaf, the folder of its benchmark, and the fingerprints that its dump and this had."""

    rows: bytes
    dump: str
    benchmark: str
    benchmark_print: str


def read_rows(path: str, leaf: str) -> KeptRows | None:
    """Return the rows of a leaf in the journal at `path`, which a study may be writing; None where it has none.

    One of another release, whose rows have other columns, counts as one that has none: the next study begins it anew.
    FormatError for a damaged journal.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            if connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):
                return None
            row = connection.execute(
                "SELECT rows, dump, benchmark, benchmark_print FROM leaves JOIN tensors USING (path, options) "
                "WHERE path = ? AND NOT given_up ORDER BY judged DESC LIMIT 1",
                (_stored(leaf),),
            ).fetchone()
    except _DAMAGED as error:
        raise _damaged(path, error) from error
    if row is None or not row[0]:
        return None
    return KeptRows(
        rows=row[0], dump=row[1], benchmark=row[2].decode("utf-8", "surrogateescape"), benchmark_print=row[3]
    )


def _connected(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level="DEFERRED")
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            for table in _NAMES:
                connection.execute(f"DROP TABLE IF EXISTS {table}")
        with connection:
            connection.executescript(_TABLES)
            connection.execute(f"PRAGMA user_version={_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _only_one(path: str, folder: str) -> Iterator[None]:
    """Lock the folder against other studies."""
    try:
        with only_process(path):
            yield
    except LockedError as error:
        raise UsageError.of(folder, "diagnose.study_busy", holder=str(error)) from error
