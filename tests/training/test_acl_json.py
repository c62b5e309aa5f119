"""`acl_json`: the file that turns on the dump of single ops, written and checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import tool

from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.training.acl_json import acl_config, check_acl_json, write_acl_json

#: The documents' example, with the commas that it lacks.
DOCUMENTED = {
    "dump": {"dump_list": [], "dump_path": "./output_IR2TBE", "dump_mode": "all", "dump_op_switch": "on"}
}  # fmt: skip
#: And as it is printed there.
WITHOUT_COMMAS = """{
    "dump":
    {
            "dump_list":[]
            "dump_path":"./output_IR2TBE"
            "dump_mode":"all"
            "dump_op_switch":"on"
    }
}
"""


def test_what_is_written_is_what_the_documents_have(tmp_path: Path) -> None:
    run = tool("acl_json", cwd=tmp_path)
    assert json.loads((tmp_path / "acl.json").read_text("utf-8")) == DOCUMENTED
    for words in ("acl.json", "ACL_DUMP_DATA=1", "load_with_acl_dump=True", "h5copy", "dc DIR --txt"):
        assert words in run.out
    assert "single ops are dumped" in tool("acl_json", "--check", cwd=tmp_path).out
    assert not (tmp_path / "precision_data").exists()


@pytest.mark.parametrize("mode", ["input", "output", "all"])
def test_every_mode_and_path(tmp_path: Path, mode: str) -> None:
    tool("acl_json", "train.json", "--dump-path", "/home/a b/out", "--dump-mode", mode, cwd=tmp_path)
    dump = json.loads((tmp_path / "train.json").read_text("utf-8"))["dump"]
    assert dump == {"dump_list": [], "dump_path": "/home/a b/out", "dump_mode": mode, "dump_op_switch": "on"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dump-mode", "both"),
        ("--dump-op-switch", "off"),
        ("--dump-path", ""),
        ("--dump-path", "~/out"),
    ],
)
def test_what_would_dump_nothing_is_not_written(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    tool("acl_json", *arguments, cwd=tmp_path, code=2)
    assert not list(tmp_path.glob("*.json"))


def test_other_settings_of_the_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "acl.json"
    path.write_text('{"profiler": {"switch": "on"}, "dump": {"dump_mode": "input"}}', "utf-8")
    assert write_acl_json(path, acl_config("out")) == ("profiler",)
    written = json.loads(path.read_text("utf-8"))
    assert written["profiler"] == {"switch": "on"}
    assert written["dump"] == {**DOCUMENTED["dump"], "dump_path": "out"}


def test_a_file_that_is_no_json_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "acl.json"
    path.write_text(WITHOUT_COMMAS, "utf-8")
    with pytest.raises(UsageError, match="not overwritten"):
        write_acl_json(path, acl_config())
    assert path.read_text("utf-8") == WITHOUT_COMMAS
    run = tool("acl_json", "--check", cwd=tmp_path, code=2)
    assert "line 5, column 13" in run.text
    assert "put a comma at the end of the line before" in run.text


def change(**fields: object) -> str:
    dump = {name: value for name, value in {**DOCUMENTED["dump"], **fields}.items() if value is not None}
    return json.dumps({"dump": dump})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", 'no "dump"'),
        ('{"dump": []}', "not an object"),
        (change(dump_mode="both"), "it can be all, input, output"),
        (change(dump_mode=["all"]), "it can be all, input, output"),
        (change(dump_op_switch="off"), "no single op is dumped"),
        (change(dump_op_switch=None), "no single op is dumped"),
        (change(dump_op_switch=True), "it can be on, off"),
        (change(dump_path=None), "dump_path is missing"),
        (change(dump_path=7), "dump_path is missing or not a string"),
        (change(dump_list=None), "dump_list is missing"),
        (change(dump_list={}), "dump_list is not a list"),
        (change(dump_list=[{"model_name": "ResNet-50"}]), "dump_list names models"),
        (change(dump_debug="on"), "exclude each other"),
        (change(dump_level="graph"), "it can be op, kernel, all"),
        (change(dump_mod="input"), "did you mean dump_mode?"),
        (change(dump_modus="input"), "did you mean dump_mode?"),
    ],
)
def test_each_fault_of_a_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "acl.json"
    path.write_text(text, "utf-8")
    assert any(problem in str(one.text) for one in check_acl_json(path) if one.is_error)
    assert problem.replace('"', "") in tool("acl_json", "--check", cwd=tmp_path, code=2).text.replace('"', "")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (change(), ""),
        (change(dump_list=[{}]), ""),  # as later documents have it
        (change(dump_data="stats", dump_level="op", dump_step="0|5"), ""),
        (change(dump_kernel_data="all"), "dump_kernel_data is not a known field"),
        (change(dump_mode=None), "only outputs"),
    ],
)
def test_files_that_work(tmp_path: Path, text: str, note: str) -> None:
    (tmp_path / "acl.json").write_text(text, "utf-8")
    run = tool("acl_json", "--check", cwd=tmp_path)
    assert note in run.err
    assert bool(note) == bool(run.err)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "not a JSON object"),
        ("{", "not valid JSON: line 1"),
        ('{"dump": {"dump_mode": "all", "dump_mode": "input"}}', "dump_mode is in it twice"),
        ('{"a": ' + "[" * 2000 + "]" * 2000 + "}", "nested 2001 levels"),
        ('{"dump": {}} // why', "not valid JSON"),
    ],
)
def test_what_is_no_json_object(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "acl.json"
    path.write_text(text, "utf-8")
    with pytest.raises(FormatError, match=problem):
        check_acl_json(path)


def test_brackets_within_texts_do_not_count_as_depth(tmp_path: Path) -> None:
    path = tmp_path / "acl.json"
    path.write_text(change(dump_path="x" + "[" * 40), "utf-8")
    assert check_acl_json(path) == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (json.dumps(DOCUMENTED)[:-1], "} is missing at its end"),
        (json.dumps(DOCUMENTED)[:-2] + "\n", "}} is missing at its end"),
        ('{"dump": {"dump_list": [', "]}} is missing at its end"),
        (WITHOUT_COMMAS.rstrip()[:-1], "put a comma"),  # what comes first
        ("", "remove it"),
        (" \n", "remove it"),
    ],
)
def test_the_hint_says_what_to_mend(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "acl.json"
    path.write_text(text, "utf-8")
    with pytest.raises(FormatError) as caught:
        check_acl_json(path)
    assert hint in caught.value.hint


def test_a_folder_and_what_is_no_text(tmp_path: Path) -> None:
    assert "train: a folder" in tool("acl_json", "--check", made(tmp_path / "train"), cwd=tmp_path, code=2).text
    (tmp_path / "acl.json").write_bytes(b"{\xff}")
    assert "byte 1 is not UTF-8" in tool("acl_json", "--check", cwd=tmp_path, code=2).text


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("option", [("--dump-path", "./output_IR2TBE"), ("--dump-mode", "all")])
def test_check_takes_no_fields(tmp_path: Path, option: tuple[str, str]) -> None:
    tool("acl_json", cwd=tmp_path)
    assert option[0] in tool("acl_json", "--check", *option, cwd=tmp_path, code=2).text


def test_the_folder_is_made(tmp_path: Path) -> None:
    tool("acl_json", "train/run/acl.json", cwd=tmp_path)
    assert json.loads((tmp_path / "train" / "run" / "acl.json").read_text("utf-8")) == DOCUMENTED
    assert "cannot be written" in tool("acl_json", "train/run/acl.json/acl.json", cwd=tmp_path, code=2).text


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError):
        check_acl_json(tmp_path / "acl.json")


def test_nothing_is_written_among_dumps(tmp_path: Path) -> None:
    folder = tmp_path / "precision_data" / "npu" / "debug_0" / "dump"
    folder.mkdir(parents=True)
    assert "only read" in tool("acl_json", folder / "acl.json", cwd=tmp_path, code=2).text
    assert not list(folder.iterdir())
