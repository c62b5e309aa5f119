"""Where settings come from, which one wins, and how a wrong one is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.data.settings import SETTING_NAMES, Settings, check_dump_step, load_settings, read_settings_file
from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.errors import FormatError, UsageError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A place for a user's settings file."""
    return tmp_path / "precision_config.py"


def test_defaults() -> None:
    settings = load_settings(environment={})
    assert settings == Settings(tf_dump_step="0")
    assert (settings.threshold, settings.limit, settings.atol, settings.rtol) == (0.98, 3, 0.001, 0.001)
    assert (settings.data, settings.work, settings.print_count) == (Path("precision_data"), None, 20)
    assert settings.cmd_root_path == Path("/usr/local/Ascend")


def test_later_places_win(config: Path) -> None:
    config.write_text("LIMIT = 5\nTHRESHOLD = 0.9\nWORKERS = 4\n")
    environment = {"PRECISION_TOOL_THRESHOLD": "0.8", "PRECISION_TOOL_WORKERS": "6", "PRECISION_TOOL_OF_OTHERS": "x"}
    settings = load_settings({"workers": 8, "limit": None}, folder=config.parent, environment=environment)
    assert (settings.limit, settings.threshold, settings.workers) == (5, 0.8, 8)


def test_the_working_folder_is_the_current_one(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("LIMIT = 9\n")
    monkeypatch.chdir(config.parent)
    assert load_settings(environment={}).limit == 9


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().limit = 4  # type: ignore[misc]


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings({"data": "~/x"}, environment={}).data == tmp_path / "x"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("LIMT = 3\n", 1, "unknown setting LIMT"),
        ("\n\nlimit = 3\n", 3, "unknown setting limit"),
        ("LIMIT = 'three'\n", 1, "LIMIT: must be a whole number, 0 (all) or more but is 'three'"),
        ("LIMIT = True\n", 1, "LIMIT: must be a whole number"),
        ("LIMIT = -1\n", 1, "LIMIT: must be a whole number, 0 (all) or more but is -1"),
        ("'''doc'''\nTHRESHOLD = 1.5\n", 2, "THRESHOLD: must be a number from -1 to 1 but is 1.5"),
        ("THRESHOLD = [0.5]\n", 1, "THRESHOLD: must be a number"),
        ("ATOL = 1e999\n", 1, "ATOL: must be a number, 0 or more"),
        ("ATOL = " + "9" * 400 + "\n", 1, "ATOL: must be a number, 0 or more"),
        ("DATA = ''\n", 1, "DATA: must be a folder"),
        ("DATA = 'a\\0b'\n", 1, "DATA: must be a folder"),
        ("TF_DUMP_STEP = '1|x'\n", 1, "TF_DUMP_STEP: must be steps such as"),
        ("LIMIT = 2 + 1\n", 1, "the value of LIMIT must be a plain number or text"),
        ("DATA = open('x')\n", 1, "the value of DATA must be a plain number or text"),
        ("LIMIT = 3\nimport sys\n", 2, "only lines NAME = VALUE may stand here"),
        ("LIMIT = 3\nimport os, sys\n", 2, "only lines NAME = VALUE may stand here"),
        ("import os as o\n", 1, "only lines NAME = VALUE may stand here"),
        ("DATA = os.path.abspath('x')\n", 1, "the value of DATA must be a plain number or text"),
        ("DATA = os.path.join('a', 3)\n", 1, "the value of DATA must be a plain number or text"),
        ("DATA = os.path.join(NPU_DIR, 'a')\n", 1, "the value of DATA must be a plain number or text"),
        ("DATA_ROOT_DIR = 3\n", 1, "DATA_ROOT_DIR: must be a folder but is 3"),
        ("OP_DEBUG_LEVEL = 5\n", 1, "OP_DEBUG_LEVEL: must be a whole number from 0 to 4"),
        ("LIMIT = ATOL = 3\n", 1, "only lines NAME = VALUE may stand here"),
        ("LIMIT = 3\nLIMIT =\n", 2, "invalid syntax"),
    ],
)
def test_a_wrong_line_is_named(config: Path, text: str, line: int, message: str) -> None:
    config.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_settings(folder=config.parent, environment={})
    assert caught.value.message.startswith(f"{config} line {line}: ")
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("content", [b"\0", b"\xff\xfe\n", b"LIMIT = " + b"(" * 100_000], ids=["zero", "utf-8", "deep"])
def test_a_file_that_is_no_settings_file(config: Path, content: bytes) -> None:
    config.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_settings_file(config)
    assert str(config) in caught.value.message


def test_a_folder_in_its_place(config: Path) -> None:
    config.mkdir()
    with pytest.raises(FormatError, match=r"precision_config\.py: a folder where a file should be"):
        load_settings(folder=config.parent, environment={})


def test_nothing_is_executed(config: Path) -> None:
    config.write_text("DATA = __import__('pathlib').Path('executed').touch()\n")
    with pytest.raises(UsageError):
        read_settings_file(config)
    assert not Path("executed").exists()


# --- the config.py of the old tool ------------------------------------------------------------------------------------

#: What the manuals of its releases show.
DOCUMENTED = """
# coding=utf-8
import os

# Dump config '0|5|10'
TF_DUMP_STEP = '5|7'
FUSION_SWITCH_FILE = './precision_tool/fusion_switch.cfg'
CMD_ROOT_PATH = '/usr/local/'
ASCEND_SET_ENV = os.path.join(CMD_ROOT_PATH, 'bin/setenv.bash')
ASCEND_LOG_PATH = 'HOME/ascend/log/plog/'
LOG_LEVEL = "NOTSET"
ROOT_DIR = './'

'''
precision_data/
├── npu
'''
DATA_ROOT_DIR = os.path.join(ROOT_DIR, 'mine')
NPU_DIR = os.path.join(DATA_ROOT_DIR, 'npu')
DEFAULT_NPU_DIR = os.path.join(NPU_DIR, 'debug_0')
TF_DUMP_DIR = os.path.join(DATA_ROOT_DIR, 'tf', 'dump')
TMP_DIR = os.path.join(DATA_ROOT_DIR, 'temp')
VECTOR_COMPARE_PATH = os.path.join(TMP_DIR, 'vector_compare')
PRECISION_TOOL_DUMP_FLAG = 'PRECISION_TOOL_DUMP'
OP_DEBUG_LEVEL = 1
DUMP_GE_GRAPH_VALUE = 2
DUMP_SEED = 7
TF_DEBUG_TIMEOUT = 360
MS_ACCU_CMP = r'msaccucmp.py[c]?'
PYTHON = 'python3'
BUILD_JSON_GRAPH_NAME = 'Build'
"""


def test_the_config_of_the_old_tool_is_read(config: Path) -> None:
    config.write_text(DOCUMENTED)
    notes: list[Message] = []
    settings = load_settings(folder=config.parent, environment={}, notes=notes)
    assert settings == Settings(
        tf_dump_step="5|7",
        fusion_switch_file="./precision_tool/fusion_switch.cfg",
        cmd_root_path=Path("/usr/local"),
        log_level="debug",
        data=Path("mine"),
        op_debug_level=1,
        dump_seed=7,
        python="python3",
    )
    assert notes == []


def test_old_names_without_effect_are_named_with_what_replaces_them(config: Path) -> None:
    lines = [
        "import os", "NET_TYPE = 'infer'", "TF_DEBUG_TIMEOUT = 20", "BUILD_JSON_GRAPH_NAME = 'Merged'",
        "MS_ACCU_CMP = 'mine.py'", "ASCEND_LOG_PATH = 'logs'", "TF_DUMP_DIR = 'benchmark'", "OVERFLOW_DIR = 'o'",
        "GRAPH_DIR_ALL = os.path.join('precision_data', 'graph', 'all')",
    ]  # fmt: skip
    config.write_text("\n".join(lines))
    notes: list[Message] = []
    load_settings(folder=config.parent, environment={}, notes=notes)
    said = {note.names[0].name: render(note) for note in notes}
    assert list(said) == [
        "NET_TYPE", "TF_DEBUG_TIMEOUT", "BUILD_JSON_GRAPH_NAME", "MS_ACCU_CMP", "ASCEND_LOG_PATH", "TF_DUMP_DIR",
        "GRAPH_DIR_ALL",
    ]  # fmt: skip
    assert "`infer DIR`" in said["NET_TYPE"]
    assert "`graphs --use`" in said["BUILD_JSON_GRAPH_NAME"]
    assert "TF_DUMP_DIR (line 7), OVERFLOW_DIR (line 8) are old settings without effect" in said["TF_DUMP_DIR"]
    assert "npu/debug_N/graph" in said["GRAPH_DIR_ALL"]


def test_root_dir_holds_the_data_folder(config: Path) -> None:
    config.write_text("ROOT_DIR = '/data/run1'\n")
    assert load_settings(folder=config.parent, environment={}).data == Path("/data/run1/precision_data")


@pytest.mark.parametrize(("level", "ours"), [("NOTSET", "debug"), ("WARN", "warning"), ("CRITICAL", "error")])
def test_levels_of_pythons_logging(level: str, ours: str) -> None:
    assert Settings(log_level=level).log_level == ours


def test_a_path_that_doubles_with_each_line_ends(config: Path) -> None:
    config.write_text("A = 'x'\n".replace("A", "DATA") + "DATA = os.path.join(DATA, DATA)\n" * 60)
    with pytest.raises(UsageError, match="the value of DATA must be"):
        read_settings_file(config)


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(UsageError, match="environment variable PRECISION_TOOL_LIMIT: must be a whole number"):
        load_settings(environment={"PRECISION_TOOL_LIMIT": "2.5"})


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(UsageError, match="option --print-count: must be a whole number"):
        load_settings({"print_count": 0}, environment={})


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", "0"), ("0|5|10-20", "0|5|10-20"), (" 0 | 5 ", "0|5"), ("", ""), (None, ""), (3, "3"), ("7-7", "7")],
)
def test_dump_steps(value: object, expected: str) -> None:
    assert check_dump_step(value) == expected


@pytest.mark.parametrize(
    "value", ["|", "0|", "a", "-1", "5-", "9-3", "0,5", "1-2-3", "٣", True, 0.5, "|".join("1" * 101)]
)
def test_wrong_dump_steps(value: object) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        check_dump_step(value)


@given(st.text())
def test_any_text_is_a_good_dump_step_or_a_value_error(text: str) -> None:
    try:
        steps = check_dump_step(text)
    except ValueError:
        return
    assert check_dump_step(steps) == steps


def test_only_so_many_values_are_shown() -> None:
    assert Settings(print_count=10_000).print_count == 10_000
    with pytest.raises(UsageError, match="PRINT_COUNT: must be a whole number from 1 to 10000 but is 10001"):
        Settings(print_count=10_001)


@pytest.mark.parametrize("name", sorted(SETTING_NAMES))
@pytest.mark.parametrize("text", ["9" * 4000, "-" + "9" * 4000, "0x" + "f" * 6000, "1" * 5000])
def test_numbers_of_thousands_of_digits(config: Path, name: str, text: str) -> None:
    """They are refused, in few words, or stay what every use of the setting can do with."""
    for content, environment in ((f"{name} = {text}\n", {}), ("", {f"PRECISION_TOOL_{name}": text})):
        config.write_text(content)
        told = ""
        value: object = 0
        try:
            value = getattr(load_settings(folder=config.parent, environment=environment), name.lower())
        except UsageError as error:
            told = error.advice
        assert len(told) < 600
        assert not isinstance(value, int) or value <= 10**15
        assert not isinstance(value, float) or value < float("inf")
