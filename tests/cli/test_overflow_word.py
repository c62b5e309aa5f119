"""`overflow`, its panel in `ac` and `dc` of status files, as a user runs them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import fingerprint, tool
from opdebug_payloads import AIC, core_fields, new_payload, write_status
from outside_data import LENET_OVERFLOW, needs_outside_data
from report_files import names_of, result_of
from small_tree import chain, small_tree

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.diagnose.checked_ops import with_verdicts
from precision_tool.lib.diagnose.comparing import read_results
from precision_tool.lib.diagnose.overflow_advice import check_overflow
from precision_tool.lib.diagnose.stored_verdict import StoredRun, StoredVerdict
from precision_tool.lib.diagnose.verdict_model import Cause, Proof, Suspect, Verdict
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.op_verdict import OpVerdict
from precision_tool.lib.session import Session
from precision_tool.lib.view.compare_screen import below_list
from precision_tool.lib.view.report_page import plain_text


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, DemoTruth]]:
    """A demo that overflows, which tests only read."""
    cwd = tmp_path_factory.mktemp("overflow")
    truth = generate_demo(cwd / "precision_data", fault="overflow")
    before = fingerprint(cwd / "precision_data")
    yield cwd, truth
    assert fingerprint(cwd / "precision_data") == before


def overflow(cwd: Path, *words: str | Path, work: Path, code: int = 0) -> dict[str, Any]:
    run = tool("--work", work, "overflow", *words, "--json", cwd=cwd, code=code)
    document: dict[str, Any] = run.json
    return document


def test_with_status_files(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    found = overflow(cwd, work=tmp_path)
    assert found["first"] == truth.culprit
    assert [status["op"]["name"] for status in found["statuses"]] == list(truth.overflowed[:3])
    assert [status["op"]["origin"] for status in found["statuses"]] == ["own", "received", "received"]
    assert {unit["words"][0] for status in found["statuses"] for unit in status["units"]} == {"floating-point overflow"}
    (leaf,) = found["leaves"]
    assert leaf["mode"] == "saturation"
    assert [op["name"] for op in leaf["ops"]] == list(truth.overflowed)
    assert leaf["trail"][-1]["op"] == truth.culprit
    assert leaf["trail"][0]["op"] == "conv2/kernel"


def test_what_it_shows(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    run = tool("--work", tmp_path, "overflow", "-l", "1", cwd=cwd, columns=80)
    lines = run.out.splitlines()
    assert "3 overflow statuses in precision_data/overflow/dump" in lines[0]
    assert str(truth.culprit) in lines[1]
    assert "AIC 0x20: floating-point overflow" in run.out
    assert "overflowed itself" in run.out
    assert "1 of 3 statuses shown" in run.out
    assert "keep_dtype_scope" in run.out
    # A name in the last column may stand out; nothing else does.
    found = lines[: lines.index(next(line for line in lines if line.startswith("┏")))]
    assert all(len(line) <= 80 or "/" in line.split()[-1] or "/" in line.split()[-2] for line in found)
    assert lines[len(found) + 1].startswith(f"┃ {truth.culprit} overflows first: ")  # the conclusion is the last
    assert (lines[-2], lines[-1].split()[-2:]) == ("next  dump again and check whether it is fixed:", ["ac", "-c"])
    assert "\x1b" not in run.out


def test_where_nothing_overflows_that_is_the_last_word(tmp_path: Path) -> None:
    small_tree(tmp_path / "precision_data", chain())
    lines = tool("overflow", cwd=tmp_path).out.splitlines()
    assert lines[-3].startswith("┏━ Overflow ")
    assert lines[-2].startswith("┃ nothing overflowed: no value is saturated, Inf or NaN")


def test_all_ops_with_their_numbers(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    listed = tool("--work", tmp_path, "ls", "--json", cwd=cwd).json
    numbers = {one["name"]: one["index"] for one in listed["graphs"][0]["ops"]}
    run = tool("--work", tmp_path, "overflow", "-l", "0", cwd=cwd)
    assert "more shown" not in run.text
    for name in truth.overflowed:
        assert re.search(rf"\[{numbers[name]}\] +{re.escape(name)}", run.text)


def test_what_used_the_range_is_in_the_advice(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, _ = demo
    advice = overflow(cwd, work=tmp_path)["advice"]
    kinds = [one["kind"] for one in advice]
    assert kinds[:3] == ["mixlist", "keep_dtype", "upstream"]  # the verdict's order: the type, then what it is fed
    assert advice[2]["text"].startswith("or scale down conv2/kernel (Variable): its values reach 40000, ")


def test_ops_that_overflow_themselves_come_first(tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data", fault="scale")
    (leaf,) = overflow(tmp_path, work=tmp_path / "w")["leaves"]
    origins = [op["origin"] for op in leaf["ops"]]
    own = [op["name"] for op in leaf["ops"] if op["origin"] == "own"]
    assert origins != sorted(origins)  # in execution order one is behind some that received it
    text = tool("overflow", cwd=tmp_path).text
    assert all(f"{name} overflowed itself" in text for name in own[1:])
    assert text.count("the loss scale to") == 1
    assert (
        leaf["loss_scale"]["tightest"]
        in tool("overflow", "-l", "1", cwd=tmp_path).text.split("range along the path")[0]
    )


def test_narrow_terminals(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, _ = demo
    lines = tool("--work", tmp_path, "overflow", "-l", "1", cwd=cwd, columns=60).out.splitlines()
    tables = [line for line in lines if not line.startswith(("file ", "dump ", " "))]  # paths are kept whole
    names = next(at for at, line in enumerate(tables) if line.endswith("range along the path"))
    assert [line for line in tables[:names] if len(line) > 60 and "/" not in line] == []
    assert any(line.startswith("output:0 float16") and "4.2 %" in line for line in tables)


@pytest.mark.parametrize("fault", ["overflow", "scale"])
def test_without_status_files(tmp_path: Path, fault: str) -> None:
    truth = generate_demo(tmp_path / "precision_data", fault=fault)
    shutil.rmtree(tmp_path / "precision_data" / "overflow", ignore_errors=True)
    found = overflow(tmp_path, "--fail", work=tmp_path / "work", code=1)
    assert (found["first"], found["statuses"]) == (truth.culprit, [])
    (leaf,) = found["leaves"]
    assert leaf["mode"] == ("saturation" if fault == "overflow" else "Inf/NaN")
    assert leaf["first"] == truth.overflowed[0]


def test_a_clean_run(tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data", fault="none")
    run = tool("overflow", "--fail", cwd=tmp_path)
    assert "no value is saturated, Inf or NaN" in run.out
    assert "no overflow status file" in run.out
    panel = tool("ac", "-c", cwd=tmp_path)
    assert "nothing overflowed" in panel.out


def test_the_panel_of_ac(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    run = tool("--work", tmp_path, "ac", "-c", "--json", cwd=cwd)
    (check,) = [one for one in run.json["checks"] if one["name"] == "overflow"]
    assert check["finding"]["op_name"] == truth.culprit
    facts = [(fact["name"], fact["value"]) for fact in check["finding"]["facts"]]
    assert ("status", "AIC 0x20: floating-point overflow") in facts
    assert any(name == "output:0" and "values of ±65504" in value for name, value in facts)
    assert any(name == "input:1" and "max" in value for name, value in facts)
    assert [name for name, _ in facts].count("output:0") == 1  # only the first op's: the panel stays short
    assert any(name == "then" and value.endswith(": received it") for name, value in facts)
    shown = tool("--work", tmp_path, "ac", cwd=cwd, columns=80)
    assert "─ Overflow ─" in shown.out
    assert "overflows first" in shown.text


def test_the_verdict_and_the_check_give_one_remedy(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    """The check's own advice, to widen all ops of the type, would be another one than to keep the type of this op."""
    cwd, _ = demo
    document = tool("--work", tmp_path, "ac", "-c", "--json", cwd=cwd).json
    (check,) = [one for one in document["checks"] if one["name"] == "overflow"]
    (advice,) = [fact["value"] for fact in check["finding"]["facts"] if fact["name"] == "advice"]
    assert advice == render(Message("check.advice.planned", op_types=("Conv2D",), reason=None), "en")


def accusing(*culprits: tuple[str, int]) -> Verdict:
    """A verdict on ops, each with its place in the order of execution, the culprit first."""
    suspects = tuple(
        Suspect(culprit=name, cause=Cause.KERNEL, proof=Proof.RECOMPUTED, confidence=0.9, number=number)
        for name, number in culprits
    )
    return Verdict(culprit=culprits[0][0], cause=Cause.KERNEL, confidence=0.9, suspects=suspects)


def test_an_overflow_behind_the_culprit_needs_no_remedy_of_its_own(demo: tuple[Path, DemoTruth]) -> None:
    cwd, truth = demo
    assert truth.culprit is not None
    check = check_overflow(Session(load_settings({"data": str(cwd / "precision_data")})).data, None, None, 9, None)
    op = OpVerdict(name=truth.culprit, type="Conv2D", number=17, state="right", overflowed=1)

    def advice(verdict: Verdict) -> Message:
        run = StoredRun(number=0, npu="", graph="", ops=(op,))
        (settled,) = with_verdicts([check], [StoredVerdict(threshold=0.98, verdict=verdict, runs=(run,))])
        assert settled.finding is not None
        (message,) = [value for label, value in settled.finding.facts if label == Message("finding.label.advice")]
        assert isinstance(message, Message)
        return message

    follows = Message("check.advice.follows", op_name=truth.culprit, culprit="conv1")
    assert advice(accusing(("conv1", 3))) == follows
    # What runs before the culprit, or is a fault of its own, does not follow from it.
    assert advice(accusing(("later", 30))).kind == "check.advice.wider"
    assert advice(accusing(("conv1", 3), (truth.culprit, 17))).kind == "check.advice.wider"


def test_the_culprit_has_the_first_card(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    """Then comes what runs after it. What agrees takes a line, but for the culprit, whose output agrees here."""
    cwd, truth = demo
    rows = tool("--work", tmp_path, "ac", "-c", "--json", cwd=cwd).json["results"][0]["rows"]
    outputs = [row for row in rows if row["slot"].startswith("output") and row["status"] == "compared"]
    agreeing = {row["op"] for row in outputs} - {row["op"] for row in outputs if row["metrics"]["cosine"] < 0.98}
    assert truth.culprit in agreeing
    shown = tool("--work", tmp_path, "ac", "-l", "0", cwd=cwd, columns=200).out
    first, *others = re.findall(r"^(╭─ )?\[(\d+)\] +(\S+) \(", shown, re.MULTILINE)
    assert (first[0], first[2]) == ("╭─ ", truth.culprit)
    numbers = [int(number) for _, number, _ in others]
    assert numbers == sorted(numbers)
    in_a_line = {name for box, _, name in others if not box}
    assert in_a_line
    assert in_a_line <= agreeing
    # What runs before the culprit comes last.
    session = Session(load_settings({"data": str(cwd / "precision_data"), "work": str(tmp_path)}))
    (analysis,) = read_results(session.data, None, 0.98)
    text = plain_text(below_list(analysis, 0, accusing(("trans_Cast_10", 45))))
    culprit, *rest = map(int, re.findall(r"^(?:╭─ )?\[(\d+)\]", text, re.MULTILINE))
    after, before = [at for at in rest if at > culprit], [at for at in rest if at <= culprit]
    assert culprit == 45
    assert before
    assert rest == [*sorted(after), *sorted(before)]
    # A variable, of which no tensor was compared, has no card.
    text = plain_text(below_list(analysis, 0, accusing(("conv1/kernel", 2))))
    assert "conv1/kernel (" not in text


def test_a_report_of_a_kept_result_has_the_statuses_of_the_device(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    tool("--work", tmp_path, "ac", "-c", cwd=cwd)
    tool("--work", tmp_path, "report", "-o", tmp_path / "report.html", cwd=cwd)
    result = result_of(tmp_path / "report.html")
    (finding,) = [one for one in result["findings"] if one["kind"] == "overflow"]
    assert finding["op"] == truth.culprit == truth.overflowed[0]
    assert finding["looked_at"]["en"].startswith("3 overflow statuses")
    noted = {names_of(result)[int(at)]: notes for at, notes in result["overflow_notes"].items()}
    assert list(noted) == list(truth.overflowed[:3])
    assert "AIC 0x20: floating-point overflow" in noted[truth.overflowed[0]][0]["en"]


def test_the_list_for_mixed_precision(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, _ = demo
    run = tool("--work", tmp_path / "w", "overflow", "--mixlist", cwd=cwd)
    path = tmp_path / "w" / "modify_mixlist.json"
    assert "mixed-precision list" in run.out
    assert f"NPURunConfig(modify_mixlist={str(path)!r})" in run.out
    lists = json.loads(path.read_text())
    assert lists["black-list"] == {"to-add": ["Conv2D"], "to-remove": []}
    assert set(lists) == {"black-list", "white-list", "gray-list"}
    named = tmp_path / "mine.json"
    assert overflow(cwd, "--mixlist", named, work=tmp_path / "w")["mixlist"] == str(named)
    assert json.loads(named.read_text()) == lists
    refused = tool("overflow", "--mixlist", "precision_data/overflow/dump/x.json", cwd=cwd, code=2)
    assert "only read" in refused.err
    for wrong in (tmp_path / "nowhere" / "x.json", tmp_path):
        refused = tool("overflow", "--mixlist", wrong, cwd=cwd, code=2)
        assert "cannot be written" in refused.err
        assert refused.out == ""


def test_the_list_where_the_helper_finds_it(tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data", fault="overflow")
    assert "session_dump_config(config, action='mixlist')" in tool("overflow", "--mixlist", cwd=tmp_path).out


def test_no_list_without_a_reason(tmp_path: Path) -> None:
    generate_demo(tmp_path / "precision_data", fault="none")
    assert "no op type" in tool("overflow", "--mixlist", cwd=tmp_path, code=2).err


def test_a_dump_without_a_graph(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, _ = demo
    (folder,) = (cwd / "precision_data" / "npu" / "debug_0" / "dump").glob("*/0/*/1/0")
    shutil.copytree(folder, tmp_path / "files")
    shown = tool("overflow", "files", cwd=tmp_path, columns=100).out
    assert "range along the path" in shown
    assert " ()" not in shown  # what feeds an op has no type then


def test_another_folder(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    """A dump anywhere, without graph and benchmark: found by the values, in the order of the files."""
    cwd, truth = demo
    shutil.copytree(cwd / "precision_data" / "npu" / "debug_0" / "dump", tmp_path / "elsewhere")
    found = overflow(tmp_path, "elsewhere", work=tmp_path / "w")
    (leaf,) = found["leaves"]
    assert leaf["graph"] is None
    assert leaf["first"] == str(truth.culprit).replace("/", "_")
    graph = cwd / "precision_data" / "npu" / "debug_0" / "graph" / truth.graph_path.name
    assert overflow(tmp_path, "elsewhere", "-g", graph, work=tmp_path / "w")["first"] == truth.culprit


def test_many_steps(tmp_path: Path) -> None:
    """Those without overflow have a line each, and the first of those with it is named."""
    truth = generate_demo(tmp_path / "clean" / "precision_data", fault="none")
    bad = generate_demo(tmp_path / "precision_data", fault="overflow")
    shutil.rmtree(tmp_path / "precision_data" / "overflow")
    for step in ("1", "2", "10"):
        shutil.copytree(bad.dump_dir if step == "10" else truth.dump_dir, bad.dump_dir.parent / step)
    shutil.rmtree(bad.dump_dir)
    run = tool("overflow", cwd=tmp_path)
    assert run.out.count("67 ops without such values") == 2
    assert "dumped values, device 0 step 10" in run.out
    found = overflow(tmp_path, work=tmp_path / "w")
    assert found["first"] == bad.culprit
    assert [leaf["step"] for leaf in found["leaves"] if leaf["first"]] == ["10"]


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "precision_data").mkdir()
    (tmp_path / "empty").mkdir()
    run = tool("overflow", cwd=tmp_path, code=2)
    assert "no overflow status file" in run.err
    assert "npu_dump --overflow" in run.err
    assert "no such folder" in tool("overflow", "nowhere", cwd=tmp_path, code=2).err
    assert "no dump file" in tool("overflow", "empty", cwd=tmp_path, code=2).err
    assert "no such data folder" in tool("--data", "missing", "overflow", cwd=tmp_path, code=2).err


def test_damaged_status_files_are_told(tmp_path: Path) -> None:
    write_status(tmp_path / "d", b"\0" * 9)
    run = tool("overflow", "d", cwd=tmp_path)
    assert "9 bytes" in run.out
    assert tool("overflow", "d", "--fail", cwd=tmp_path, code=1).out
    name = "Opdebug.Node_\x1b[31m.1.2.1772443800000000"
    (tmp_path / "d" / name).write_bytes(b"x")
    assert "\x1b" not in tool("overflow", "d", cwd=tmp_path).out
    for number in range(4):
        write_status(tmp_path / "d", b"\0" * 9, task=number)
    assert "unreadable: 3 more; --json lists all" in tool("overflow", "d", cwd=tmp_path).out


# --- dc ---------------------------------------------------------------------------------------------------------------


def test_dc_of_a_folder_and_of_a_file(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, _ = demo
    tool("dc", "precision_data/overflow/dump", "-o", tmp_path / "all", cwd=cwd)
    decoded = sorted((tmp_path / "all").glob("Opdebug.*.output.0.json"))
    assert len(decoded) == 3
    assert len(list((tmp_path / "all").glob("*.npy"))) > 3
    name = decoded[0].name.removesuffix(".output.0.json")
    run = tool("--work", tmp_path / "w", "dc", name, "--json", cwd=cwd)
    (row,) = run.json["tensors"]
    again = tmp_path / "w" / "decode" / "overflow_decode" / decoded[0].name
    assert row["path"] == str(again)
    assert again.read_text() == decoded[0].read_text()
    data = json.loads(again.read_text())["acc_list"]["data"]
    assert (data["status"], data["task_id"] + 1000) == (32, int(name.split(".")[2]))
    assert "is decoded already" in tool("dc", again, "-o", tmp_path / "x", cwd=cwd, code=2).err


def test_dc_of_status_files_alone(tmp_path: Path) -> None:
    write_status(tmp_path / "d", new_payload(AIC, core_fields()))
    write_status(tmp_path / "d", b"bad", timestamp=1772443800000999)
    run = tool("dc", "d", "-o", "out", cwd=tmp_path)
    assert "1 not decoded" in run.out
    assert len(list((tmp_path / "out").glob("*.json"))) == 1


def test_the_decoded_files_are_found_without_the_dumps(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    """As the vendor's tool leaves them; the ops are found in the data dump, with a word of doubt."""
    cwd, truth = demo
    data = tmp_path / "precision_data"
    shutil.copytree(cwd / "precision_data", data)
    tool("dc", "precision_data/overflow/dump", cwd=tmp_path)
    shutil.rmtree(data / "overflow")
    found = overflow(tmp_path, work=data / "temp")
    assert [status["decoded"] for status in found["statuses"]] == [True] * 3
    assert found["statuses"][0]["op"]["name"] == truth.culprit
    assert "data dump" in found["statuses"][0]["doubt"]


def test_status_files_among_a_data_dump(demo: tuple[Path, DemoTruth], tmp_path: Path) -> None:
    cwd, truth = demo
    data = tmp_path / "precision_data"
    shutil.copytree(cwd / "precision_data", data)
    leaf = data / truth.dump_dir.relative_to(cwd / "precision_data")
    for path in (data / "overflow").rglob("Opdebug.*"):
        shutil.copy(path, leaf)
    shutil.rmtree(data / "overflow")
    found = overflow(tmp_path, work=tmp_path / "w")
    assert [status["op"]["name"] for status in found["statuses"]] == list(truth.overflowed[:3])
    assert {status["doubt"] for status in found["statuses"]} == {""}


# --- a real network ---------------------------------------------------------------------------------------------------


@needs_outside_data
@pytest.mark.parametrize("with_status", [True, False])
def test_lenet(tmp_path: Path, with_status: bool) -> None:
    truth = json.loads((LENET_OVERFLOW / "truth.json").read_text())
    data = LENET_OVERFLOW / "precision_data"
    if not with_status:
        data = tmp_path / "precision_data"
        shutil.copytree(LENET_OVERFLOW / "precision_data" / "npu", data / "npu")
        shutil.copytree(LENET_OVERFLOW / "precision_data" / "tf", data / "tf")
    run = tool("--data", data, "--work", tmp_path / "w", "overflow", "--json", cwd=tmp_path)
    found = run.json
    assert found["first"] == truth["overflow"][0]["op"]
    (leaf,) = found["leaves"]
    assert [op["name"] for op in leaf["ops"] if any(
        tensor["slot"].startswith("output") and tensor["saturated"] for tensor in op["tensors"]
    )] == truth["overflowed"]  # fmt: skip
    own = next(op for op in leaf["ops"] if op["name"] == truth["culprit"])
    output = own["tensors"][-1]
    assert (own["origin"], output["saturated"] / output["count"]) == ("own", truth["overflowed_fraction"])
    assert leaf["trail"][-1]["benchmark_largest"] == truth["golden_peak"]
    assert leaf["trail"][0]["op"] == truth["driven_by"]
    if with_status:
        told = [(one["op"]["name"], one["units"][0]["status"], one["units"][0]["task_id"]) for one in found["statuses"]]
        assert told == [(one["op"], [one["status"]], one["task"]) for one in truth["overflow"]]


@needs_outside_data
def test_lenets_decoded_files_are_the_vendors(tmp_path: Path) -> None:
    tool(
        "--data",
        LENET_OVERFLOW / "precision_data",
        "dc",
        LENET_OVERFLOW / "precision_data/overflow/dump",
        "-o",
        "out",
        cwd=tmp_path,
    )
    vendor = sorted((LENET_OVERFLOW / "vendor" / "decoded").iterdir())
    assert len(vendor) == 3
    for path in vendor:
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
