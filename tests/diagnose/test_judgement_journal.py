"""Ctrl+C while ops are recomputed keeps the judgements, and the same command recomputes only the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import zero_tail
from tiny_network import fused, layers

from precision_tool.cli import main
from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources, WorkStoppedError
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose import judgement_journal
from precision_tool.lib.diagnose.comparing import compare
from precision_tool.lib.diagnose.decide import RunVerdict
from precision_tool.lib.diagnose.judgement_journal import JudgementJournal, KeptJudgements
from precision_tool.lib.diagnose.pipeline import DiagnoseOptions, diagnose_leaf, leaves_of
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.stored_verdict import stored_verdicts
from precision_tool.lib.diagnose.verdict_model import OpResult
from precision_tool.lib.messages import render
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import OPS
from precision_tool.lib.session import Session


class Looks:
    """Counts the ops that are looked at first; `stop_at` is the number of the one before which Ctrl+C comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first: list[str] = []
        self.again: list[str] = []
        self.stop_at: int | None = None
        self.stop_again = False
        recompute = Recomputer.recompute

        def counted(recomputer: Recomputer, op: Op) -> OpResult:
            if recomputer.is_first_look:
                if len(self.first) == self.stop_at:
                    raise KeyboardInterrupt
                self.first.append(op.name)
            else:
                if self.stop_again and self.again:
                    raise KeyboardInterrupt
                self.again.append(op.name)
            return recompute(recomputer, op)

        monkeypatch.setattr(Recomputer, "recompute", counted)

    def begin(self, stop_at: int | None = None, *, stop_again: bool = False) -> None:
        self.first, self.again, self.stop_at, self.stop_again = [], [], stop_at, stop_again


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def session_of(data: Path, work: Path) -> Session:
    return Session(load_settings({"data": str(data), "work": str(work)}))


def judged(data: Path, folder: Path | None, resources: Resources = THIS_THREAD) -> RunVerdict:
    session = session_of(data, data / "work")
    kept = KeptJudgements(() if folder is None else (folder,))
    analyses = compare(session.data, resources=THIS_THREAD)
    with kept.keeping():
        (leaf,) = leaves_of(session.data, analyses)
        diagnosis = diagnose_leaf(leaf, DiagnoseOptions(compares=False), resources, kept=kept)
    assert diagnosis.judged is not None
    return diagnosis.judged


def timeless(verdict: RunVerdict) -> list[OpResult]:
    return [replace(each, op=replace(each.op, attrs={}), seconds=0.0) for each in verdict.ops]


def write(tmp_path: Path) -> Path:
    return layers().with_part("two/Tanh", wrong=zero_tail).write(tmp_path)


def stopped(data: Path, folder: Path, looks: Looks, at: int = 3, **options: Any) -> Path:
    """Stop a run before it judges an op, and return the file of what was judged."""
    looks.begin(at)
    with pytest.raises(WorkStoppedError) as stop:
        judged(data, folder, **options)
    looks.begin()
    assert (stop.value.exit_code, stop.value.fields["done"]) == (130, at)
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("is_fused", [False, True])
def test_the_next_run_recomputes_only_the_rest(tmp_path: Path, looks: Looks, is_fused: bool) -> None:
    data = (fused() if is_fused else layers()).with_part("two/Tanh", wrong=zero_tail).write(tmp_path)
    whole = judged(data, None)
    names = looks.first
    assert len(names) == len(whole.ops)
    for at in range(1, len(names)):
        folder = tmp_path / f"kept{at}"
        stopped(data, folder, looks, at)
        resumed = judged(data, folder)
        assert looks.first == names[at:]
        assert timeless(resumed) == timeless(whole)
        assert resumed.verdict.to_dict() == whole.verdict.to_dict()
        assert resumed.profile == whole.profile
        assert list(folder.iterdir()) == []  # the verdict is made


def test_a_run_that_is_stopped_twice_goes_on_twice(tmp_path: Path, looks: Looks) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    stopped(data, folder, looks, 2)
    looks.begin(3)
    with pytest.raises(WorkStoppedError) as stop:
        judged(data, folder)
    assert stop.value.fields["done"] == 5
    assert not set(looks.first) & set(judged_names(folder)[:2])
    assert len(judged_names(folder)) == 5
    count = int(stop.value.fields["count"])
    looks.begin()
    judged(data, folder)
    assert len(looks.first) == count - 5


def judged_names(folder: Path) -> list[str]:
    (path,) = folder.iterdir()
    lines = path.read_bytes().split(b"\n")[1:]
    return [json.loads(line.partition(b" ")[2])["name"] for line in lines if line]


def test_second_looks_are_kept_too(tmp_path: Path, looks: Looks) -> None:
    """All ops were judged; what stands out is recomputed by the precision of the device."""
    network = layers().with_part("two/Tanh", wrong=zero_tail).with_part("one/Relu", wrong=zero_tail)
    data, folder = network.write(tmp_path), tmp_path / "kept"
    whole = judged(data, None)
    again = looks.again
    assert len(again) >= 2
    looks.begin(stop_again=True)
    with pytest.raises(WorkStoppedError) as stop:
        judged(data, folder)
    assert stop.value.fields["done"] == stop.value.fields["count"] == len(whole.ops)
    looks.begin()
    resumed = judged(data, folder)
    assert looks.first == []
    assert looks.again == again[1:]
    assert resumed.verdict.to_dict() == whole.verdict.to_dict()


class Stopping(Executor):
    """Does everything at once in this process, until Ctrl+C comes."""

    def __init__(self, tasks: int) -> None:
        self.left = tasks

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **options))
        return done


def test_workers_judgements_are_kept(tmp_path: Path, looks: Looks) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    whole = judged(data, None)
    looks.begin()
    with pytest.raises(WorkStoppedError) as stop:
        judged(data, folder, Resources(1, Stopping(6)))
    done = int(stop.value.fields["done"])
    assert 0 < done < len(whole.ops)
    looks.begin()
    resumed = judged(data, folder, Resources(1, Stopping(-1)))
    assert len(looks.first) == len(whole.ops) - done
    assert timeless(resumed) == timeless(whole)


@pytest.mark.parametrize("side", ["npu", "tf"])
def test_nothing_is_taken_where_a_file_has_changed(tmp_path: Path, looks: Looks, side: str) -> None:
    """An op is judged by the files of others as well: one that has changed makes all of it worthless."""
    data, folder = write(tmp_path), tmp_path / "kept"
    stopped(data, folder, looks)
    changed = next(path for path in sorted((data / side).rglob("*Tanh*")) if path.is_file())
    os.utime(changed, ns=(1, 1))
    judged(data, folder)
    assert len(looks.first) == len(set(looks.first)) > 3
    assert list(folder.iterdir()) == []


def test_a_changed_dump_file_is_judged_as_it_is_now(tmp_path: Path, looks: Looks) -> None:
    folder = tmp_path / "kept"
    data = write(tmp_path / "faulty")
    stopped(data, folder, looks, len(judged(data, None).ops) - 1)
    assert any("Tanh" in name for name in judged_names(folder))
    good = layers().write(tmp_path / "good")
    for path in (good / "npu").rglob("*"):
        if path.is_file():
            (data / path.relative_to(good)).write_bytes(path.read_bytes())
    assert judged(data, folder).verdict.culprit is None


def test_another_release_does_not_take_it(tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    stopped(data, folder, looks)
    monkeypatch.setattr(judgement_journal, "made_by", lambda: "another")
    total = len(judged(data, folder).ops)
    assert len(looks.first) == total


def signed(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change every judgement in a file, with right checksums: somebody did that on purpose."""
    header, *lines = path.read_bytes().split(b"\n")
    key = header.removeprefix(judgement_journal._HEADER)
    bodies = [change(line.partition(b" ")[2]) for line in lines if line]
    path.write_bytes(b"\n".join([header, *(check(body, key) + b" " + body for body in bodies)]))


def check(body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=judgement_journal._CHECK_BYTES, key=key).hexdigest().encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"slots":[{"slot":0', b'"slots":[{"slot":7'),
        (b'"slots":[{"slot":0', b'"slots":[{"slot":-1'),
        (b'"slots":[{"slot":0', b'"slots":[{"slot":' + b"9" * 400),
        (b'"size":', b'"size":-'),
        (b'"state":"', b'"state":"very '),
        (b'"dtype":"', b'"dtype":"un'),
        (b'"name":"', b'"name":"un'),
        (b'"type":"', b'"type":"un'),
        (b'"look":"', b'"look":"0'),
        (b'"own":', b'"own":NaN,"x":'),
        (b'"own":', b'"owns":'),
        (b'"number":', b'"number":1'),
        (b'"number":', b'"number":-'),
        (b'"how":[', b'"how":[3,'),
        (b'"reason":null', b'"reason":{"kind":"reason.out_of_time"}'),
        (b'"reason":null', b'"reason":{"kind":"reason.of_nobody"}'),
        (b'"is_dumped":true', b'"is_dumped":false'),
        (b'"from_elsewhere":[', b'"from_elsewhere":[[0,"nobody"]'),
        (b'"slots":[', b'"slots":[],"slots":[]}}' + b"[" * 100_000),
        (b'"shape":[', b'"shape":[["Add",[{"slot":0,"stage":5}]],'),
        (b"{", b"{" * 100_000),
    ],
)
def test_hostile_judgements_are_not_taken(tmp_path: Path, looks: Looks, old: bytes, new: bytes) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    whole = judged(data, None)
    path = stopped(data, folder, looks, 5)
    before = path.read_bytes()
    signed(path, lambda body: body.replace(old, new, 1))
    assert path.read_bytes() != before
    untouched = sum(old not in line for line in before.split(b"\n")[1:] if line)
    resumed = judged(data, folder)
    assert len(looks.first) == len(whole.ops) - untouched
    assert timeless(resumed) == timeless(whole)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"seconds":', b'"seconds":1'),
        lambda data: data.replace(b"precision_tool judgements 1", b"precision_tool judgements 2"),
        lambda data: b"",
        lambda data: bytes(4096),
        lambda data: data.replace(b"\n", b" "),
        lambda data: data.replace(b'"', b"\xff"),
    ],
)
def test_a_damaged_file_is_begun_anew(tmp_path: Path, looks: Looks, damage: Callable[[bytes], bytes]) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    path = stopped(data, folder, looks)
    path.write_bytes(damage(path.read_bytes()))
    total = len(judged(data, folder).ops)
    assert len(looks.first) == total


def test_a_line_without_its_end_costs_its_op_alone(tmp_path: Path, looks: Looks) -> None:
    """A process that was killed while it wrote: what the next one appends is whole."""
    data, folder = write(tmp_path), tmp_path / "kept"
    path = stopped(data, folder, looks, 4)
    path.write_bytes(path.read_bytes()[:-40])
    looks.begin(2)
    with pytest.raises(WorkStoppedError) as stop:
        judged(data, folder)
    assert stop.value.fields["done"] == 5
    looks.begin()
    assert len(judged(data, folder).ops) == len(looks.first) + 5


def test_nothing_is_written_through_a_link(tmp_path: Path, looks: Looks) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    path = stopped(data, folder, looks)
    path.unlink()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path.symlink_to(victim)
    stopped(data, folder, looks)
    assert victim.read_text() == "mine"


def test_a_run_of_seconds_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    judged(data, folder)
    assert not folder.exists()
    written: list[int] = []
    begin = JudgementJournal._begin
    monkeypatch.setattr(judgement_journal, "_INTERVAL", 0.0)

    def counted(journal: JudgementJournal, lines: bytes) -> bool:
        written.append(1)
        return begin(journal, lines)

    monkeypatch.setattr(JudgementJournal, "_begin", counted)
    judged(data, folder)  # one of hours writes now and then
    assert written == [1]
    assert list(folder.iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_promised(tmp_path: Path, looks: Looks) -> None:
    data = write(tmp_path)
    (tmp_path / "file").write_text("")
    looks.begin(3)
    with pytest.raises(KeyboardInterrupt):
        judged(data, tmp_path / "file" / "below")
    looks.begin()
    assert judged(data, tmp_path / "file" / "below").verdict.culprit == "two/Tanh"


def test_formulas_of_others_are_asked_again(tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code may change without a sign."""
    data, folder = write(tmp_path), tmp_path / "kept"
    whole = judged(data, None)
    count = len(whole.ops)
    foreign = next(each.op.type for each in whole.ops if each.how)
    monkeypatch.setattr(type(OPS), "is_third_party", lambda self, name: name == foreign)
    looks.begin(count - 1)
    with pytest.raises(WorkStoppedError):
        judged(data, folder)
    looks.begin()
    judged(data, folder)
    expected = {each.name for each in whole.ops[:-1] if foreign in (each.op.type, *each.how)} | {whole.ops[-1].name}
    assert set(looks.first) == expected


def test_what_cannot_be_stored_is_judged_again(tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = write(tmp_path), tmp_path / "kept"
    recompute = Recomputer.recompute

    def odd(recomputer: Recomputer, op: Op) -> OpResult:
        result = recompute(recomputer, op)
        odd_truth: Any = np.bool_(True)
        return replace(result, finite_inputs=odd_truth) if op.name == "one/Relu" else result

    monkeypatch.setattr(Recomputer, "recompute", odd)
    stopped(data, folder, looks, 6)
    names = judged_names(folder)
    assert len(names) == 5
    assert "one/Relu" not in names


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("again", [["ac", "-c"], ["ac"]])
def test_the_command(
    tmp_path: Path, looks: Looks, capsys: pytest.CaptureFixture[str], language: str, again: list[str]
) -> None:
    """`ac -c` says how far it came, shows no verdict, and goes on when it is called again.

    So does `ac`, which has the result file alone: what was judged with the help of the comparison is judged again.
    """
    data, work = write(tmp_path), tmp_path / "work"
    total = len(judged(data, None).ops)
    place = ["--data", str(data), "--work", str(work), "--lang", language]
    names = looks.first
    stop_at = names.index("two/Tanh") + 1
    looks.begin(stop_at)
    assert main([*place, "ac", "-c"]) == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    stop = WorkStoppedError("diagnose.recompute_stopped", done=stop_at, count=total)
    for words in (stop.reason_message, stop.hint_message):
        assert words is not None
        assert render(words, language) in shown.err
    session = session_of(data, work)
    assert not list(stored_verdicts(session.workspace))
    looks.begin()
    assert main([*place, *again]) == 0
    assert "two/Tanh" not in looks.first
    assert looks.first == names[stop_at:] or again == ["ac"]
    assert "two/Tanh" in capsys.readouterr().out
    assert not list(work.rglob("judged_*"))
    assert [verdict.verdict.culprit for verdict in stored_verdicts(session.workspace)] == ["two/Tanh"]
