"""Readers of what earlier commands kept: verdicts, profiles, journals and tables of studies, of any machine."""

from __future__ import annotations

import json
import os
import posixpath
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from faults import negated
from rich.console import RenderableType
from tiny_network import layers

from fuzzing import WrongAnswerError
from precision_tool.lib.compare.result_files import kept_place
from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose import judgement_journal
from precision_tool.lib.diagnose.comparing import compare
from precision_tool.lib.diagnose.decide import RunVerdict
from precision_tool.lib.diagnose.device_profile import mismatch
from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, diagnose_leaf, leaves_of
from precision_tool.lib.diagnose.replica_votes import Role, Vote, pack_votes, unpack_votes
from precision_tool.lib.diagnose.stored_profile import merge, read_profile, write_profile
from precision_tool.lib.diagnose.stored_verdict import StoredVerdict, read_verdict, signed, since, stored
from precision_tool.lib.diagnose.study_journal import FirstOp, LeafDone, LeafOutcome, open_journal, read_rows, state_of
from precision_tool.lib.diagnose.study_leaves import StudyLeaf
from precision_tool.lib.diagnose.study_plan import LeafPlan
from precision_tool.lib.diagnose.study_statistics import unpack_statistics
from precision_tool.lib.diagnose.study_table import unpack
from precision_tool.lib.diagnose.verdict_model import Judgement, OpResult
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.documents import from_document, to_document
from precision_tool.lib.session import Session
from precision_tool.lib.view.html import text_of
from precision_tool.lib.view.profile_screen import conclusions
from precision_tool.lib.view.text import json_text, shown
from precision_tool.lib.view.verdict_screen import judged_json, since_block, verdict_block, verdict_json

Reasons = Iterable[Message | str | None]

_LEAF = StudyLeaf(path="/d/0", data="/d", step=3, rank=5, device=5, model="m/1", files=2, nbytes=10, fingerprint="f")
_PLAN = LeafPlan(leaf=_LEAF, fingerprint="all")
_OPTIONS = "o"


@cache
def _judged() -> tuple[RunVerdict, StoredVerdict]:
    """A run of a small network with a wrong op, judged."""
    with tempfile.TemporaryDirectory() as folder:
        layers().with_part("one/MatMul", wrong=negated).write(Path(folder))
        data = Session(load_settings({"data": folder, "work": f"{folder}/work"})).data
        (leaf,) = leaves_of(data, compare(data, resources=THIS_THREAD))
        diagnosis = diagnose_leaf(leaf, DiagnoseOptions(), THIS_THREAD)
        assert diagnosis.judged is not None
        return diagnosis.judged, replace(stored(diagnosis.judged, 0.98), path="verdict_0.json")


def _shown(*screens: RenderableType) -> None:
    """What is shown has no control characters, whoever made up the names."""
    text = text_of(*screens)
    if not text.replace("\n", "").isprintable():
        raise WrongAnswerError(f"a screen with control characters: {text!r}"[:500])


# --- verdicts


def verdicts(folder: Path) -> list[bytes]:
    """The verdict on a run, as its file holds it without version and hash, which are made anew."""
    del folder
    body = to_document(_judged()[1])
    for run in body["runs"]:
        run |= {name: kept_place(run[name], "/", "/") for name in ("npu", "graph")}
    return [json.dumps(body).encode()]


def read_kept_verdict(path: str) -> Reasons:
    """As `report`, and `ac` held against it: a file with the right hash, whoever made it up."""
    try:
        text = signed(json.loads(Path(path).read_bytes()))
    except (ValueError, TypeError, RecursionError):
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    Path(path).write_text(text, "utf-8", "surrogateescape")
    verdict, sound = read_verdict(path), _judged()[1]
    json_text(verdict_json(verdict.verdict))
    _shown(verdict_block(verdict.verdict))
    for run in verdict.runs:
        verdict.ops_of(run.npu, run.graph)
        for op in run.ops:
            json_text(judged_json(op))
    for change in filter(None, (since(verdict, sound), since(sound, verdict), since(verdict, verdict))):
        json_text(change.to_dict())
        _shown(since_block(change))
    return ()


# --- profiles


def profiles(folder: Path) -> list[bytes]:
    """The profile of a device."""
    path = folder / "profile.json"
    write_profile(_judged()[0].profile, str(path))
    return [path.read_bytes()]


def read_kept_profile(path: str) -> Reasons:
    """As `ac --profile` and `profile --merge`: what is accepted is the same when it is written again."""
    profile = read_profile(path)
    again = f"{path}.again.json"
    write_profile(profile, again)
    if read_profile(again) != profile or mismatch(profile, profile) is not None:
        raise WrongAnswerError("what is written is not what is read again")
    merge([profile, profile])
    _shown(*map(shown, conclusions(profile)))
    return ()


# --- judgements


def judgements(folder: Path) -> list[bytes]:
    """Entries of the journal of a run, without their checksums, which are made anew."""
    del folder
    names = [item.name for item in fields(Judgement)]
    return [
        json.dumps(
            to_document(
                judgement_journal._Entry(
                    name=result.name, type=result.op.type, look="", shape=None,
                    judgement=Judgement(**{name: getattr(result, name) for name in names}),
                )
            )
        ).encode()
        for result in _judged()[0].ops[:4]
    ]  # fmt: skip


def read_judgement(path: str) -> Reasons:
    """As a run that was stopped goes on: an entry that is taken can be shown and kept again."""
    journal = object.__new__(judgement_journal.JudgementJournal)
    journal.__dict__["_made_of"] = b"key"
    body = Path(path).read_bytes()
    entry = journal._entry(journal._check(body) + b" " + body)
    if entry is None:
        return ()
    op = next((each.op for each in _judged()[0].ops if each.name == entry.name), _judged()[0].ops[0].op)
    dump = SimpleNamespace(outputs=range(len(op.output_descs))) if entry.judgement.is_dumped else None
    recomputer: Any = SimpleNamespace(values=SimpleNamespace(dumped=lambda op: dump))
    if not judgement_journal._is_sound(entry, op, recomputer):
        return ()
    result = OpResult(op=op, **{name: getattr(entry.judgement, name) for name in judgement_journal._FIELDS})
    json_text(judged_json(result.verdict()))
    document = to_document(entry)
    if to_document(from_document(judgement_journal._Entry, json.loads(json.dumps(document)))) != document:
        raise WrongAnswerError("what is kept is not what is read again")
    return ()


# --- studies


def _outcome() -> LeafOutcome:
    return LeafOutcome(
        rows=3, compared=2, below=1, network="n", judged=True, epochs={"g": 2}, sized={"g": (0,)}, by_attributes=("g",),
        first=FirstOp(op="g", type="T", kind="first_faulty_op", number=7, epoch=2), verdict=_judged()[1].verdict,
        unread_reason=Message("error.place", where="f", reason="damaged"),
    )  # fmt: skip


def outcomes(folder: Path) -> list[bytes]:
    """The outcome of a leaf, as the journal of a study holds it."""
    del folder
    failed = LeafOutcome(failure=Message("text", text="given up"), lack=Message("text", text="no graph"))
    return [json.dumps(to_document(each)).encode() for each in (_outcome(), failed)]


def read_outcome(path: str) -> Reasons:
    """As a study goes on, and shows what it found: of an outcome in a sound database."""
    folder = Path(path).parent / "study"
    folder.mkdir(exist_ok=True)
    text = Path(path).read_bytes().decode("utf-8", "replace")
    with open_journal(str(folder)) as journal:
        journal.keep([(_PLAN, LeafDone(outcome=_outcome()))], _OPTIONS)
        with journal._connection:
            journal._connection.execute("UPDATE leaves SET outcome = ?", (text,))
        found = list(journal.stored_outcomes([_PLAN], _OPTIONS))
        outcome = journal.outcome(_LEAF.path, _OPTIONS)
    if outcome is None or [to_document(each) for _, each in found] != [to_document(outcome)]:
        raise WrongAnswerError("two questions, two answers")
    state = state_of(_PLAN, outcome)
    json_text({"failure": state.failure, "lack": state.lack, "reason": state.unread_reason})
    if outcome.verdict is not None:
        _shown(verdict_block(outcome.verdict))
    return ()


def databases(folder: Path) -> list[bytes]:
    """The database of a study."""
    with open_journal(str(folder), fresh=True) as journal:
        journal.keep([(_PLAN, LeafDone(outcome=_outcome(), votes=_votes(), rows=_votes(), statistics=b"s"))], _OPTIONS)
    path = folder / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    return [path.read_bytes()]


def _votes() -> bytes:
    vote = Vote(op="g", type="HcomAllReduce", role=Role.COLLECTIVE, number=7, epoch=2, inputs=("a",), outputs=("b",))
    return pack_votes([vote, vote])


def read_database(path: str) -> Reasons:
    """As a study goes on in a folder whose database is damaged."""
    folder = Path(path).parent / "study"
    folder.mkdir(exist_ok=True)
    for name in os.listdir(folder):
        os.unlink(folder / name)
    database = posixpath.join(str(folder), "journal.sqlite")
    Path(database).write_bytes(Path(path).read_bytes())
    with suppress(PrecisionToolError):
        read_rows(database, _LEAF.path)
    with open_journal(str(folder)) as journal:
        for _, outcome in journal.stored_outcomes([_PLAN], _OPTIONS):
            state_of(_PLAN, outcome)
        journal.outcome(_LEAF.path, _OPTIONS)
        yield from _of_blobs(database, journal.votes(_LEAF.path, _OPTIONS))
        yield from _of_blobs(database, journal.rows(_LEAF.path, _OPTIONS))
        journal.keep([(_PLAN, LeafDone(outcome=_outcome()))], _OPTIONS)


def votes(folder: Path) -> list[bytes]:
    """Votes and rows of a leaf, packed."""
    del folder
    return [_votes(), pack_votes([])]


def read_votes(path: str) -> Reasons:
    """As a study reads what its workers packed, and its journal kept."""
    yield from _of_blobs(path, Path(path).read_bytes())


def _of_blobs(path: str, data: bytes) -> Iterator[Message]:
    for read in (unpack_votes, unpack, lambda path, data: unpack_statistics(path, data, 0, 0)):
        try:
            read(path, data)
        except PrecisionToolError as error:
            yield error.full_message
