"""The verdict that is kept beside a result."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import FrozenInstanceError
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import tool
from faults import negated
from tiny_network import layers

import precision_tool
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.diagnose.stored_verdict import (
    StoredRun,
    StoredVerdict,
    newest_verdicts,
    op_verdicts,
    read_beside,
    read_verdict,
)
from precision_tool.lib.diagnose.verdict_model import (
    Action,
    Cause,
    Fact,
    NotChecked,
    NotCheckedKind,
    Proof,
    Step,
    StepText,
    Suspect,
    Tally,
    Verdict,
    WorstCosine,
)
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.documents import from_document, to_document
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.session import Session
from precision_tool.lib.view.verdict_screen import verdict_json


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A folder in which `ac -c` found a wrong op."""
    layers().with_part("one/MatMul", wrong=negated).write(tmp_path / "precision_data")
    tool("ac", "-c", cwd=tmp_path)
    return tmp_path


def results_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("precision_data/temp/vector_compare/*/result_*.csv"))


def verdicts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("precision_data/temp/vector_compare/*/verdict_*.json"))


def rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows of a table of a document, which has the different values of each column and their numbers."""
    columns = {
        name: [column["values"][at] for at in column["rows"] or range(len(column["values"]))]
        for name, column in table.items()
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_ac_keeps_it_with_every_op(judged: Path) -> None:
    (path,) = verdicts_of(judged)
    (result,) = results_of(judged)
    assert path.name == f"verdict_{result.stem}.json"
    document = json.loads(path.read_text())
    told = json.loads(tool("ac", "--json", cwd=judged).out)["results"][0]["verdict"]
    assert verdict_json(read_verdict(str(path)).verdict) == told
    why = {"kind": "reason.no_formula", "fields": {"op_type": "RandomUniform"}}
    assert document["verdict"]["tally"]["reasons"] == [[why, 1]]
    assert told["ops"]["reasons"] == {"there is no formula for RandomUniform": 1}
    assert told["ops"]["reason_kinds"] == {"no_formula": 1}
    assert document["verdict"]["next"][0]["do"] == "look_at_op"
    assert told["next"][0] == {"why": "inspect the op", "line": "ni one/MatMul", "file": ""}
    (run,) = document["runs"]
    ops = rows_of(run["ops"])
    states = {op["name"]: op["state"] for op in ops}
    assert [op["reason"] for op in ops if op["state"] == "not_recomputed"] == [why]
    assert states["one/MatMul"] == "wrong"
    assert states["two/MatMul"] == states["one/Relu"] == "right"
    wrong = next(op for op in ops if op["name"] == "one/MatMul")
    assert wrong["own_error"] > 100 * wrong["rounding"]
    assert wrong["worst"] > wrong["slack"]
    assert wrong["inherited"] is not None


@pytest.mark.parametrize("version", [1, 4, 8, 10])
def test_a_verdict_of_another_version_is_not_read(judged: Path, version: int) -> None:
    (path,) = judged.rglob("verdict_*.json")
    path.write_text(path.read_text("utf-8").replace('{"version":9,', f'{{"version":{version},', 1))
    assert json.loads(path.read_text("utf-8"))["version"] == version
    with pytest.raises(FormatError) as raised:
        read_verdict(str(path))
    assert raised.value.kind == "diagnose_verdict.unsound_verdict"


def test_without_c_it_is_read(judged: Path) -> None:
    first = tool("ac", cwd=judged)
    before = verdicts_of(judged)[0].stat().st_mtime_ns
    # What would be needed to judge again is gone.
    shutil.rmtree(judged / "precision_data" / "npu" / "debug_0" / "dump")
    again = tool("ac", cwd=judged)
    assert "one/MatMul (MatMulV2)" in again.text
    assert "recomputed from its own inputs" in first.text
    assert "recomputed from its own inputs" in again.text
    assert verdicts_of(judged)[0].stat().st_mtime_ns == before


def test_another_threshold_or_result_is_judged_again(judged: Path) -> None:
    (result,) = map(str, results_of(judged))
    assert read_beside(result) is not None
    assert read_beside(result, 0.98) is not None
    assert read_beside(result, 0.9) is None
    with open(result, "a", encoding="ascii") as file:
        file.write("\r\n")
    assert read_beside(result) is None


def test_a_changed_or_damaged_file_is_worthless(judged: Path) -> None:
    (path,) = verdicts_of(judged)
    (result,) = map(str, results_of(judged))
    whole = path.read_text()
    for damaged in (whole.replace("one/MatMul", "one/Relu"), whole[:-50], "[]", "{}", "nonsense", "[" * 99999):
        path.write_text(damaged)
        assert read_beside(result) is None
        with pytest.raises(FormatError):
            read_verdict(str(path))
        assert "one/MatMul (MatMulV2)" in tool("ac", cwd=judged).text  # judged again, and kept
        assert read_beside(result) is not None


def test_a_data_folder_may_be_moved(judged: Path) -> None:
    moved = judged / "elsewhere" / "precision_data"
    moved.parent.mkdir()
    (judged / "precision_data").rename(moved)
    session = Session(load_settings({"data": str(moved)}))
    (run,) = session.run_graphs()
    assert op_verdicts(session.workspace, run)["one/MatMul"].is_wrong


def test_without_a_benchmark_it_is_kept_too(tmp_path: Path) -> None:
    layers().with_part("one/MatMul", wrong=negated).write(tmp_path / "precision_data", benchmark=False)
    tool("ac", cwd=tmp_path)
    session = Session(load_settings({"data": str(tmp_path / "precision_data")}))
    (kept,) = newest_verdicts(session.workspace)
    assert kept.verdict.culprit == "one/MatMul"
    assert session.data.has_dump_alone()
    assert "one/MatMul (MatMulV2)" in tool("ac", cwd=tmp_path).text


def test_values_come_back_from_the_file(judged: Path) -> None:
    first = read_verdict(str(verdicts_of(judged)[0])).verdict.first
    assert first is not None
    assert (first.op_type, first.fact("axis"), first.fact("index")) == ("MatMulV2", 1, 2)


RUN = StoredRun(
    number=0, npu="/npu", graph="/graph", scales={"loss_scale": 16.0},
    ops=(
        OpVerdict(name="a", type="MatMul", number=0, state="wrong", own_error=inf, largest=1.0, how=("MatMul",)),
        OpVerdict(name="b", type="Foo", number=1, state="not_recomputed", reason=Message("reason.out_of_time")),
    ),
)  # fmt: skip
STORED = StoredVerdict(
    threshold=0.98, runs=(RUN,),
    verdict=Verdict(
        culprit="a", cause=Cause.KERNEL, confidence=0.9, ranking=("a",),
        suspects=(
            Suspect(
                culprit="a", cause=Cause.KERNEL, proof=Proof.RECOMPUTED, confidence=0.9, number=0,
                facts=(
                    Fact(name="own_error", value=0.5), Fact(name="order", value=[1, 0]),
                    Fact(name="not_recomputed", value=Message("reason.no_formula", op_type="Foo")),
                ),
            ),
        ),
        next=(Step(do=Action.DIVIDE_LOSS_SCALE, command=("overflow",), number=8), StepText(why="look", line="ni a")),
        tally=Tally(
            ops=2, right=0, wrong=1, doubtful=0, not_recomputed=1, reasons=((Message("reason.out_of_time"), 1),)
        ),
        gaps=(NotChecked(lack=NotCheckedKind.OUT_OF_TIME, count=1, ops=2), "in words"),
        worst=WorstCosine(op_name="a", slot="output:0", cosine=-inf),
    ),
)  # fmt: skip


#: A message whose kind is a number.
NO_MESSAGE = {"kind": 3, "fields": {}}


def test_every_value_comes_back_from_its_document() -> None:
    document = json.loads(json.dumps(to_document(STORED), allow_nan=False))
    assert from_document(StoredVerdict, document) == STORED


@pytest.mark.parametrize(
    ("place", "value", "where"),
    [
        ((), [], "list in place of dict"),
        (("threshold",), "0.98", "StoredVerdict.threshold"),
        (("threshold",), True, "StoredVerdict.threshold"),
        (("threshold",), 10**400, "StoredVerdict.threshold"),
        (("verdict", "tally", "reasons", 0), [NO_MESSAGE, 1], "Tally.reasons"),
        (("verdict", "culprit"), 3, "StoredVerdict.verdict: Verdict.culprit"),
        (("verdict", "cause"), "stars", "Verdict.cause"),
        (("verdict", "extra"), 1, "Verdict: missing or unknown: extra"),
        (("verdict", "worst", "cosine"), "1e9", "WorstCosine.cosine"),
        (("verdict", "suspects", 0, "facts", 2, "value", "kind"), 1, "Fact.value"),
        (("verdict", "suspects", 0, "number"), 0.5, "Suspect.number"),
        (("verdict", "tally", "reasons", 0), ["late"], "Tally.reasons"),
        (("verdict", "suspects", 0, "confidence"), "inf", "Verdict.suspects: a confidence of"),
        (("verdict", "confidence"), "nan", "StoredVerdict.verdict: a confidence of"),
        (("verdict", "gaps", 0, "lack"), None, "NotChecked.lack"),
        (("runs", 0, "ops"), {"name": {"values": ["a"], "rows": []}}, "OpVerdict: missing or unknown: benchmark_own"),
        (("runs", 0, "ops", "state"), {"values": ["right"]}, "OpVerdict.state: no column"),
        (("runs", 0, "ops", "state", "values", 0), 1, "OpVerdict.state: int in place of str"),
        (("runs", 0, "ops", "state", "rows"), [0, 2], "OpVerdict.state: a row without a value"),
        (("runs", 0, "ops", "state", "rows"), [0, -1], "OpVerdict.state: a row without a value"),
        (("runs", 0, "ops", "state", "rows"), [0, True], "OpVerdict.state: a row without a value"),
        (("runs", 0, "ops", "state", "rows"), [0, 1, 1], "OpVerdict: columns of different lengths"),
        (("runs", 0, "scales", "loss_scale"), None, "StoredRun.scales"),
        (("runs", 0, "npu"), None, "StoredRun.npu"),
    ],
)  # fmt: skip
def test_odd_documents_are_refused_with_the_place(place: tuple[str | int, ...], value: object, where: str) -> None:
    document = json.loads(json.dumps(to_document(STORED)))
    at = document
    for key in place[:-1]:
        at = at[key]
    if place:
        at[place[-1]] = value
    with pytest.raises(ValueError, match=re.escape(where)):
        from_document(StoredVerdict, document if place else value)


def test_the_python_interface_has_it(tmp_path: Path) -> None:
    data = layers().with_part("one/MatMul", wrong=np.zeros_like).write(tmp_path)
    (result,) = precision_tool.compare(data / "npu" / "debug_0", data / "tf" / "dump", workers=1)
    verdict = result.verdict
    assert isinstance(verdict, Verdict)
    assert (verdict.culprit, verdict.cause) == ("one/MatMul", Cause.KERNEL)
    assert result.verdict is verdict
    with pytest.raises(FrozenInstanceError):
        verdict.culprit = None  # type: ignore[misc]
