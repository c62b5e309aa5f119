"""The journal: kept whole, for one study at a time, and of what has not changed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from precision_tool.lib.diagnose.replica_votes import Role, Vote, pack_votes, unpack_votes
from precision_tool.lib.diagnose.study_journal import JOURNAL, FirstOp, LeafDone, LeafOutcome, open_journal, read_rows
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.study_plan import LeafPlan
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, UsageError

LEAF = StudyLeaf(path="/d/0", data="/d", step=3, rank=5, device=5, model="m/1", files=2, nbytes=10, fingerprint="f")
PLAN = LeafPlan(leaf=LEAF, fingerprint="all")
VOTE = Vote(op="g", type="HcomAllReduce", role=Role.COLLECTIVE, number=7, epoch=2, inputs=("a",), outputs=("b", ""))
VOTES = pack_votes([VOTE])
OUTCOME = LeafOutcome(
    rows=3, compared=2, below=1, network="n", judged=True, epochs={"g": 2},
    first=FirstOp(op="g", type="T", kind="first_faulty_op", number=7, epoch=2),
)  # fmt: skip


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    done = LeafDone(outcome=OUTCOME, votes=VOTES, rows=b"rows")
    with open_journal(str(tmp_path)) as journal:
        journal.keep([(PLAN, done)], "o")
    with open_journal(str(tmp_path)) as journal:
        assert list(journal.stored_outcomes([PLAN], "o")) == [(PLAN, OUTCOME)]
        assert journal.votes(LEAF.path, "o") == VOTES
        assert journal.rows(LEAF.path, "o") == b"rows"
        changed = replace(PLAN, fingerprint="other")
        assert not list(journal.stored_outcomes([changed], "o"))
        assert not list(journal.stored_outcomes([PLAN], "other options"))
    with open_journal(str(tmp_path), fresh=True) as journal:
        assert not list(journal.stored_outcomes([PLAN], "o"))


def test_what_was_given_up_is_tried_again_by_the_next_study(tmp_path: Path) -> None:
    done = LeafDone(outcome=LeafOutcome(failure=Message("text", text="given up")))
    with open_journal(str(tmp_path)) as journal:
        journal.keep([(PLAN, done)], "o", given_up=True)
        assert not list(journal.stored_outcomes([PLAN], "o"))


def test_a_second_study_in_the_folder_is_told(tmp_path: Path) -> None:
    line = (
        "import sys; from precision_tool.lib.diagnose.study_journal import open_journal\n"
        "with open_journal(sys.argv[1]): print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", line, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with (
            pytest.raises(UsageError, match=rf"another study is running in this folder \(process {other.pid} on"),
            open_journal(str(tmp_path)),
        ):
            pass
        other.kill()
    with open_journal(str(tmp_path)):
        pass  # whoever was killed has it no longer


def test_a_second_study_of_this_process_is_told_and_takes_nothing(tmp_path: Path) -> None:
    with open_journal(str(tmp_path)) as journal:
        journal.keep([(PLAN, LeafDone(outcome=OUTCOME))], "o")
        with (
            pytest.raises(UsageError, match="another study is running in this folder"),
            open_journal(f"{tmp_path}/.", fresh=True),
        ):
            pass
        line = (
            "import sys; from precision_tool.lib.diagnose.study_journal import open_journal\n"
            "with open_journal(sys.argv[1]): pass"
        )
        other = subprocess.run([sys.executable, "-c", line, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "another study is running" in other.stderr
        assert list(journal.stored_outcomes([PLAN], "o"))


def test_names_of_folders_need_not_be_utf8(tmp_path: Path) -> None:
    leaf = replace(LEAF, path="/d/f\udcff/0")
    plan = replace(PLAN, leaf=leaf, benchmark="/d/f\udcff/tf", benchmark_print="p")
    with open_journal(str(tmp_path)) as journal:
        journal.keep([(plan, LeafDone(outcome=OUTCOME, votes=VOTES, rows=b"rows"))], "o")
        assert list(journal.stored_outcomes([plan], "o"))
        assert journal.votes(leaf.path, "o") == VOTES
        kept = read_rows(journal.path, leaf.path)
    assert kept is not None
    assert (kept.rows, kept.benchmark) == (b"rows", plan.benchmark)


def test_rows_of_another_release_are_none(tmp_path: Path) -> None:
    with open_journal(str(tmp_path)) as journal:
        journal.keep([(PLAN, LeafDone(outcome=OUTCOME, rows=b"rows"))], "o")
    assert read_rows(journal.path, LEAF.path) is not None
    with closing(sqlite3.connect(journal.path)) as connection, connection:
        connection.execute("PRAGMA user_version=5")
    assert read_rows(journal.path, LEAF.path) is None


def test_a_damaged_entry_is_told_as_a_damaged_journal(tmp_path: Path) -> None:
    with open_journal(str(tmp_path)) as journal:
        journal.keep([(PLAN, LeafDone(outcome=OUTCOME))], "o")
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection, connection:
        connection.execute("UPDATE leaves SET outcome = x'00112233', votes = x'00112233'")
    with open_journal(str(tmp_path)) as journal, pytest.raises(FormatError, match="journal of the study is damaged"):
        journal.outcome(LEAF.path, "o")
    with open_journal(str(tmp_path)) as journal, pytest.raises(FormatError, match="cannot be read"):
        unpack_votes(journal.path, journal.votes(LEAF.path, "o"))


def test_a_damaged_journal_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(FormatError, match="journal of the study is damaged") as caught, open_journal(str(tmp_path)):
        pass
    assert "--fresh" in caught.value.hint
    with open_journal(str(tmp_path), fresh=True) as journal:
        assert not list(journal.stored_outcomes([PLAN], "o"))


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    with open_journal(str(tmp_path)) as journal:
        failed = LeafOutcome(failure=Message("text", text="its server does not answer"), judged=True)
        journal.keep([(PLAN, LeafDone(outcome=failed))], "o")
        assert not list(journal.stored_outcomes([PLAN], "o"))
        assert journal.outcome(PLAN.leaf.path, "o") == failed
        journal.keep([(PLAN, LeafDone(outcome=LeafOutcome(judged=True)))], "o")
        assert [outcome for _, outcome in journal.stored_outcomes([PLAN], "o")] == [LeafOutcome(judged=True)]


@pytest.mark.parametrize(
    ("piece", "damaged"),
    [(b"CREATE TABLE leaves", b"CREATE\xff\x0fABLE leaves"), (b"judged INTEGER", b"jud'ed INTEGER")],
)
def test_what_a_damaged_database_quotes_is_no_more_than_a_reason(tmp_path: Path, piece: bytes, damaged: bytes) -> None:
    with open_journal(str(tmp_path)) as journal:
        journal.keep([(PLAN, LeafDone(outcome=OUTCOME, rows=b"rows"))], "o")
    path = tmp_path / JOURNAL
    assert piece in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(piece, damaged, 1))
    with pytest.raises(FormatError, match="damaged") as error:
        read_rows(str(path), LEAF.path)
    assert str(error.value).isprintable()
    with pytest.raises(FormatError, match="damaged"), open_journal(str(tmp_path)):
        pass
