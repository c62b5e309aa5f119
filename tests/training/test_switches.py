"""The parameters that reach NpuOptimizer, DumpConfig and npu_device, all of them, against the vendor's lists."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from npu_standins import CustomOp, NpuDevice, kind_of
from training_side import GRAPH_VARIABLES, run_script, tensorflow_python

from precision_tool import tf_config
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.messages.errors import OutputError
from precision_tool.lib.training.mixlist import find_mixlist
from precision_tool.lib.training.switches import parse_action

pytestmark = pytest.mark.usefixtures("work")


def path_bytes(*parts: str) -> bytes:
    return str(Path.cwd().joinpath("precision_data", *parts)).encode()


def test_dump(work: Path) -> None:
    op = CustomOp()
    assert tf_config.update_custom_op(op, action="dump") is op
    assert op.parameters == {
        "enable_dump": {"b": True},
        "dump_path": {"s": path_bytes("npu", "debug_0", "dump")},
        "dump_step": {"s": b"0"},
        "dump_mode": {"s": b"all"},
        "op_debug_level": {"i": 4},
        "debug_dir": {"s": path_bytes("npu", "debug_0")},
    }
    assert (work / "precision_data/npu/debug_0/dump").is_dir()
    assert {name: os.environ.get(name) for name in GRAPH_VARIABLES} == {
        "DUMP_GE_GRAPH": "2",
        "DUMP_GRAPH_LEVEL": "3",
        "DUMP_GRAPH_PATH": str(work / "precision_data/npu/debug_0/graph"),
        "NPU_DUMP_GRAPH": "true",
    }
    assert (work / "precision_data/npu/debug_0/graph").is_dir()


def test_how_much_the_op_compiler_keeps_is_a_setting(work: Path) -> None:
    Path("precision_config.py").write_text("OP_DEBUG_LEVEL = 1\n")
    op = tf_config.update_custom_op(CustomOp(), action="dump")
    assert op.parameters["op_debug_level"] == {"i": 1}


def test_overflow(work: Path) -> None:
    op = tf_config.update_custom_op(CustomOp(), action="overflow")
    assert op.parameters == {
        "enable_dump_debug": {"b": True},
        "dump_path": {"s": path_bytes("overflow", "dump")},
        "dump_debug_mode": {"s": b"all"},
        "op_debug_level": {"i": 4},
        "debug_dir": {"s": path_bytes("npu", "debug_0")},
    }
    assert (work / "precision_data/overflow/dump").is_dir()
    assert set(GRAPH_VARIABLES) <= set(os.environ)


def test_prof(work: Path) -> None:
    op = tf_config.update_custom_op(CustomOp(), action="prof")
    assert set(op.parameters) == {"profiling_mode", "profiling_options"}
    assert op.parameters["profiling_mode"] == {"b": True}
    options = json.loads(op.parameter_map["profiling_options"].s)
    assert options["output"] == str(work / "precision_data/npu/debug_0/prof")
    assert Path(options["output"]).is_dir()
    assert not set(GRAPH_VARIABLES) & set(os.environ)


@pytest.mark.parametrize(
    ("action", "file"), [("fusion_off", tf_config.FUSION_OFF_FILE), ("fusion_switch", tf_config.FUSION_SWITCH_FILE)]
)
def test_fusion(work: Path, action: str, file: str) -> None:
    op = tf_config.update_custom_op(CustomOp(), action)
    assert op.parameters == {"fusion_switch_file": {"s": file.encode()}}
    assert Path(file).is_absolute()
    assert list(work.iterdir()) == [], "a switch alone writes nothing"


def test_the_switch_file_of_the_data_folder(work: Path) -> None:
    """`fusion off` writes it there; that of the installation is for all users and data folders."""
    own = work / "precision_data" / "fusion" / "fusion_switch.cfg"
    own.parent.mkdir(parents=True)
    own.write_text('{"Switch": {"GraphFusion": {"APass": "off"}, "UBFusion": {}}}', "utf-8")
    op = tf_config.update_custom_op(CustomOp(), "fusion_switch")
    assert op.parameters == {"fusion_switch_file": {"s": str(own).encode()}}
    assert str(own) == tf_config.FUSION_SWITCH_FILE
    off = CustomOp()
    tf_config.update_custom_op(off, "fusion_off")
    assert off.parameters == {"fusion_switch_file": {"s": tf_config.FUSION_OFF_FILE.encode()}}
    own.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"fusion_switch\.cfg: not a text file: byte 0"):
        tf_config.update_custom_op(CustomOp(), "fusion_switch")


def test_actions_combine() -> None:
    op = tf_config.update_custom_op(CustomOp(), "fusion_off | dump")
    assert {"fusion_switch_file", "enable_dump"} < set(op.parameters)


def test_no_action_sets_nothing_unless_the_environment_asks(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op = tf_config.update_custom_op(CustomOp())
    assert op.parameters == {}
    assert list(work.iterdir()) == []
    monkeypatch.setenv("PRECISION_TOOL_OVERFLOW", "True")
    tf_config.update_custom_op(op)
    assert op.parameters["enable_dump_debug"] == {"b": True}


def test_the_mixlist_is_that_of_the_data_folder(work: Path) -> None:
    """`train --data DIR -a mixlist` gives the settings that hold DIR."""
    path = work / "elsewhere" / "temp" / "modify_mixlist.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}", "utf-8")
    assert find_mixlist(load_settings({"data": Path("elsewhere")})) == str(path)
    with pytest.raises(ValueError, match="there is no list yet"):
        find_mixlist(load_settings())


def test_mixlist(work: Path) -> None:
    with pytest.raises(ValueError, match="call mixed_precision_list"):
        tf_config.update_custom_op(CustomOp(), "mixlist")
    path = tf_config.mixed_precision_list(black=["Softmax"])
    op = tf_config.update_custom_op(CustomOp(), "mixlist")
    assert op.parameters == {"modify_mixlist": {"s": path.encode()}}


# --- the text of an action -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "names"),
    [
        ("dump", {"dump"}),
        ("fusion_off|dump", {"fusion_off", "dump"}),
        (" dump | prof |fusion_switch ", {"dump", "prof", "fusion_switch"}),
        ("Overflow|mixlist", {"overflow", "mixlist"}),
        ("dump|dump", {"dump"}),
    ],
)
def test_actions_are_read(action: str, names: set[str]) -> None:
    assert parse_action(action, {}) == names


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("dumb", "unknown action 'dumb' in 'dumb'; did you mean 'dump'"),
        ("dump|", "unknown action ''"),
        ("dump,overflow", "unknown action 'dump,overflow'"),
        ("dump|overflow", "both dump and overflow: the device cannot dump data and detect overflow in one run"),
        ("fusion_off|dump|fusion_switch", "both fusion_off and fusion_switch: there is one fusion switch file"),
        (["dump"], "action must be a text such as 'dump', not"),
        (True, "action must be a text"),
    ],
)
def test_what_is_no_action_is_a_value_error(action: object, message: str) -> None:
    with pytest.raises(ValueError, match="action") as caught:
        parse_action(action, {})
    assert message in str(caught.value)
    assert "; " in str(caught.value), "a traceback shows str() alone, so the advice must be in it"


@pytest.mark.parametrize("nothing", [None, ""])
@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, set()),
        ({"PRECISION_TOOL_DUMP": "True"}, {"dump"}),
        ({"PRECISION_TOOL_OVERFLOW": "True", "PRECISION_TOOL_DUMP": "False"}, {"overflow"}),
    ],
)
def test_without_an_action_the_environment_decides(
    nothing: str | None, environment: dict[str, str], names: set[str]
) -> None:
    assert parse_action(nothing, environment) == names


def test_an_action_beats_the_environment() -> None:
    assert parse_action("fusion_off", {"PRECISION_TOOL_DUMP": "True"}) == {"fusion_off"}


def test_contradicting_flags_are_told() -> None:
    with pytest.raises(ValueError, match="the environment asks for both dump and overflow"):
        parse_action(None, {"PRECISION_TOOL_DUMP": "True", "PRECISION_TOOL_OVERFLOW": "True"})


# --- steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("0|5|10-20", {"s": b"0|5|10-20"}), ("0 | 5", {"s": b"0|5"}), ("5-5|7", {"s": b"5|7"}), ("", None)],
)
def test_dump_step(monkeypatch: pytest.MonkeyPatch, steps: str, expected: object) -> None:
    monkeypatch.setenv("PRECISION_TOOL_TF_DUMP_STEP", steps)
    op = tf_config.update_custom_op(CustomOp(), "dump")
    assert op.parameters.get("dump_step") == expected


def test_the_dump_step_of_the_working_folder_counts(work: Path) -> None:
    (work / "precision_config.py").write_text("TF_DUMP_STEP = '3-4'\nDATA = 'elsewhere'\n", "utf-8")
    op = tf_config.update_custom_op(CustomOp(), "dump")
    assert op.parameters["dump_step"] == {"s": b"3-4"}
    assert op.parameters["dump_path"] == {"s": str(work / "elsewhere/npu/debug_0/dump").encode()}


@pytest.mark.parametrize("steps", ["1,2", "5-3", "|", "x", "|".join(map(str, range(101)))])
def test_a_wrong_dump_step_is_told(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    monkeypatch.setenv("PRECISION_TOOL_TF_DUMP_STEP", steps)
    op = CustomOp()
    with pytest.raises(ValueError, match="TF_DUMP_STEP: must"):
        tf_config.update_custom_op(op, "dump")
    assert op.parameters == {}


# --- what the user has set ------------------------------------------------------------------------------------------


def test_what_the_user_has_set_stays(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUMP_GE_GRAPH", "1")
    folder = work / "my" / "own"
    mine = {
        "dump_path": str(folder).encode(),
        "dump_mode": b"input",
        "op_debug_level": 2,
        "precision_mode": b"allow_mix_precision",
    }
    op = CustomOp(**mine)
    tf_config.update_custom_op(op, "dump")
    assert {name: op.parameters[name] for name in mine} == {
        name: {kind_of(value): value} for name, value in mine.items()
    }
    assert op.parameters["enable_dump"] == {"b": True}
    assert os.environ["DUMP_GE_GRAPH"] == "1"
    err = capsys.readouterr().err
    assert f"precision_tool: dump_path is already '{folder}' and stays" in err
    assert folder.is_dir(), "the device makes none"
    assert "precision_tool: environment variable DUMP_GE_GRAPH is '1' and stays" in err
    assert not (work / "precision_data/npu/debug_0/dump").exists(), "a folder that nothing will be written to"


def test_the_same_action_twice_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    op = tf_config.update_custom_op(CustomOp(), "dump|fusion_off")
    before = op.parameters
    tf_config.update_custom_op(op, "fusion_off|dump")
    assert op.parameters == before
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("before", "action", "message"),
    [
        ({"enable_dump_debug": True}, "dump", "enable_dump cannot be set: enable_dump_debug is on"),
        ({"enable_dump": True}, "overflow", "enable_dump_debug cannot be set: enable_dump is on"),
        ({"fusion_switch_file": b"/mine.cfg"}, "fusion_off", "fusion_switch_file is already '/mine.cfg'"),
    ],
)
def test_contradictions_with_what_is_set_are_told(before: dict[str, Any], action: str, message: str) -> None:
    op = CustomOp(**before)
    with pytest.raises(ValueError, match="is") as caught:
        tf_config.update_custom_op(op, action)
    assert message in str(caught.value)
    assert set(op.parameters) == set(before)


def test_a_dump_switched_off_is_switched_on_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    op = CustomOp(enable_dump=False, enable_dump_debug=False, profiling_mode=False)
    tf_config.update_custom_op(op, "dump|prof")
    assert op.parameters["enable_dump"] == {"b": True}
    assert op.parameters["enable_dump_debug"] == {"b": False}
    assert sorted(capsys.readouterr().err.splitlines()) == [
        f"precision_tool: {name} was False and is now True: the action asks for it"
        for name in ("enable_dump", "profiling_mode")
    ]


def test_a_dump_path_of_the_script_s_own_that_cannot_be_written_is_an_error_at_once(work: Path) -> None:
    (work / "file").write_text("no folder", "utf-8")
    path = str(work / "file" / "dump")
    op = CustomOp(dump_path=path.encode())
    with pytest.raises(OutputError, match="cannot be written") as caught:
        tf_config.update_custom_op(op, "dump")
    assert caught.value.message == f"{path} cannot be written (Not a directory)"
    assert caught.value.hint == "the script names it as dump_path: name another one there"
    assert set(op.parameters) == {"dump_path"}
    assert not (work / "precision_data").exists()


def test_a_path_that_cannot_be_written_is_an_error_at_once(work: Path) -> None:
    (work / "precision_data").write_text("a file", "utf-8")
    op = CustomOp()
    with pytest.raises(OutputError, match=r"precision_data/npu/debug_0/dump cannot be written"):
        tf_config.update_custom_op(op, "dump")
    assert op.parameters == {}
    assert not set(GRAPH_VARIABLES) & set(os.environ)


def test_a_switch_file_that_is_no_json_is_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = work / "switch.cfg"
    broken.write_text('{"Switch": {"GraphFusion": {"APass": "off",}}}', "utf-8")  # as in the printed manual
    monkeypatch.setenv("PRECISION_TOOL_FUSION_SWITCH_FILE", str(broken))
    with pytest.raises(ValueError, match="is not valid JSON"):
        tf_config.update_custom_op(CustomOp(), "fusion_switch")
    broken.write_text(" \n", "utf-8")
    with pytest.raises(ValueError, match="is empty"):
        tf_config.update_custom_op(CustomOp(), "fusion_switch")
    broken.write_text('{"Switch": {}} and text that GE does not read', "utf-8")
    tf_config.update_custom_op(CustomOp(), "fusion_switch")
    broken.write_text("APass:off\n", "utf-8")
    op = tf_config.update_custom_op(CustomOp(), "fusion_switch")
    assert op.parameters == {"fusion_switch_file": {"s": str(broken).encode()}}


# --- Estimator ------------------------------------------------------------------------------------------------------


def test_estimator_dump_config(npu_bridge: bool, capsys: pytest.CaptureFixture[str]) -> None:
    defaults: dict[str, object] = {
        "enable_dump": False, "dump_path": None, "dump_step": None, "dump_mode": "output", "enable_dump_debug": False,
        "dump_debug_mode": "all",
    }  # fmt: skip
    if npu_bridge:
        defaults |= {"dump_data": "tensor", "dump_layer": None}
    assert tf_config.estimator_dump_config().given == defaults
    assert capsys.readouterr().err == ""
    dump_path = path_bytes("npu", "debug_0", "dump").decode()
    assert tf_config.estimator_dump_config(action="dump").given == defaults | {
        "enable_dump": True, "dump_path": dump_path, "dump_step": "0", "dump_mode": "all",
    }  # fmt: skip
    assert Path(dump_path).is_dir()
    debug_dir = path_bytes("npu", "debug_0").decode()
    assert capsys.readouterr().err == (
        "precision_tool: a DumpConfig has no place for op_debug_level and debug_dir: give them to "
        f"NPURunConfig(op_debug_level=4, debug_dir='{debug_dir}')\n"
    )
    overflow_path = path_bytes("overflow", "dump").decode()
    assert tf_config.estimator_dump_config("overflow").given == defaults | {
        "enable_dump_debug": True, "dump_path": overflow_path, "dump_debug_mode": "all",
    }  # fmt: skip
    assert Path(overflow_path).is_dir()


@pytest.mark.parametrize(
    ("action", "advice"),
    [("fusion_off|dump", "FUSION_OFF_FILE"), ("mixlist", "modify_mixlist="), ("prof", "profiling")],
)
def test_what_a_dump_config_cannot_hold_is_told(npu_bridge: bool, action: str, advice: str) -> None:
    with pytest.raises(ValueError, match="is not part of a DumpConfig") as caught:
        tf_config.estimator_dump_config(action)
    assert advice in str(caught.value)


def test_without_npu_bridge_the_error_says_so() -> None:
    with pytest.raises(ImportError, match="npu_bridge is not installed"):
        tf_config.estimator_dump_config("dump")


# --- TensorFlow 2 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [False, True])
def test_npu_device(newest: bool, capsys: pytest.CaptureFixture[str]) -> None:
    device = NpuDevice(newest)
    assert tf_config.npu_device_dump_config(device, action="dump|fusion_off") is device
    said = "precision_tool: dump_mode was 'output', npu_device's default, and is now 'all'\n"
    assert capsys.readouterr().err == said, "it may be the user's own"
    tf_config.npu_device_dump_config(device, action="dump|fusion_off")
    assert capsys.readouterr().err == ""
    folder = {"debug_dir": path_bytes("npu", "debug_0").decode()} if newest else {}
    assert device.all == {
        "enable_dump": "1",
        "dump_path": path_bytes("npu", "debug_0", "dump").decode(),
        "dump_step": "0",
        "dump_mode": "all",
        "op_debug_level": "4",
        "fusion_switch_file": tf_config.FUSION_OFF_FILE,
        **folder,
    }
    assert os.environ["DUMP_GRAPH_PATH"] == path_bytes("npu", "debug_0", "graph").decode()
    other = NpuDevice(newest)
    tf_config.npu_device_dump_config(other, "overflow")
    assert other.all == {
        "enable_dump_debug": "1",
        "dump_path": path_bytes("overflow", "dump").decode(),
        "op_debug_level": "4",
        **folder,
        **({} if newest else {"dump_debug_mode": "all"}),
    }


@pytest.mark.parametrize("newest", [False, True])
def test_npu_device_keeps_what_is_set(newest: bool) -> None:
    device = NpuDevice(newest)
    device.global_options().dump_config.dump_mode = "input"
    device.global_options().op_debug_level = 1
    tf_config.npu_device_dump_config(device, "dump")
    assert device.all["dump_mode"] == "input"
    assert device.all["op_debug_level"] == "1"
    with pytest.raises(ValueError, match="enable_dump is on"):
        tf_config.npu_device_dump_config(device, "overflow")


def test_npu_device_mixlist_and_mistakes() -> None:
    path = tf_config.mixed_precision_list(white="MatMul")
    device = tf_config.npu_device_dump_config(NpuDevice(), "mixlist")
    assert device.all == {"modify_mixlist": path}
    with pytest.raises(ValueError, match="takes the module npu_device"):
        tf_config.npu_device_dump_config(None, "dump")


def test_npu_device_prof(work: Path) -> None:
    device = tf_config.npu_device_dump_config(NpuDevice(), "prof")
    assert set(device.all) == {"enable_profiling", "profiling_options"}
    assert device.all["enable_profiling"] == "1"
    assert json.loads(device.all["profiling_options"])["output"] == str(work / "precision_data/npu/debug_0/prof")
    assert (work / "precision_data/npu/debug_0/prof").is_dir()


# --- what a dump holds ----------------------------------------------------------------------------------------------

ASKED = {"dump_mode": "output", "dump_data": "stats", "dump_layer": ["conv1", "fc/MatMul"], "quant_dumpable": True}
SET = {"dump_mode": "output", "dump_data": "stats", "dump_layer": "conv1 fc/MatMul", "quant_dumpable": "1"}


def test_dump_options_of_a_call() -> None:
    op = tf_config.update_custom_op(CustomOp(), "dump", **ASKED)
    assert {name: op.parameters[name] for name in SET} == {name: {"s": text.encode()} for name, text in SET.items()}
    device = tf_config.npu_device_dump_config(NpuDevice(), "dump", **ASKED)
    assert {name: device.all[name] for name in SET if name != "dump_mode"} == {
        name: text for name, text in SET.items() if name != "dump_mode"
    }
    assert device.global_options().dump_config.dump_mode.value == "output"


def test_dump_options_of_an_estimator(npu_bridge: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if npu_bridge:
        given = tf_config.estimator_dump_config("dump", **ASKED).given
        assert {name: given[name] for name in SET if name in given} == {
            name: text for name, text in SET.items() if name != "quant_dumpable"
        }
        assert "NPURunConfig(quant_dumpable='1')" in capsys.readouterr().err
    else:
        with pytest.raises(ValueError, match="has no dump_data"):
            tf_config.estimator_dump_config("dump", **ASKED)


def test_dump_options_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"DUMP_MODE": "input", "DUMP_DATA": "stats", "DUMP_LAYER": "a b", "QUANT_DUMPABLE": "on"}.items():
        monkeypatch.setenv("PRECISION_TOOL_" + name, text)
    op = tf_config.update_custom_op(CustomOp(), "dump", dump_mode="all")
    assert op.parameters["dump_mode"] == {"s": b"all"}, "the call wins"
    assert op.parameters["dump_data"] == {"s": b"stats"}
    assert op.parameters["dump_layer"] == {"s": b"a b"}
    assert op.parameters["quant_dumpable"] == {"s": b"1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dump_mode": "both"}, "dump_mode: must be 'input' or"),
        ({"dumpmode": "all"}, "there is no option dumpmode"),
    ],
)
def test_a_wrong_dump_option_is_told(options: dict[str, str], message: str) -> None:
    op = CustomOp()
    with pytest.raises(ValueError, match=message):
        tf_config.update_custom_op(op, "dump", **options)
    assert op.parameters == {}


@pytest.mark.parametrize("newest", [False, True])
def test_an_option_that_npu_device_lacks_is_told(newest: bool) -> None:
    device = NpuDevice(newest)
    if newest:
        tf_config.npu_device_dump_config(device, "dump", dump_data="stats")
        assert device.all["dump_data"] == "stats"
    else:
        with pytest.raises(ValueError, match="has no option dump_data"):
            tf_config.npu_device_dump_config(device, "dump", dump_data="stats")
        assert device.all == {}


# --- the real protobuf ----------------------------------------------------------------------------------------------

CONFIGS = """
import json
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

def shown(config):
    options = config.graph_options.rewrite_options
    ops = [
        [op.name, {name: getattr(value, value.WhichOneof("value")) for name, value in op.parameter_map.items()}]
        for op in options.custom_optimizers
    ]
    texts = json.loads(json.dumps(ops, default=lambda value: value.decode()))
    return {"ops": texts, "remapping": options.remapping, "growth": config.gpu_options.allow_growth}

made = shown(npu_tf_config.session_dump_config(None))
config = tf.compat.v1.ConfigProto()
config.gpu_options.allow_growth = True
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")
same = npu_tf_config.session_dump_config(config, action="dump|fusion_switch") is config
updated = tf.compat.v1.ConfigProto().graph_options.rewrite_options.custom_optimizers.add()
same = same and npu_tf_config.update_custom_op(updated, action="overflow") is updated
try:
    npu_tf_config.session_dump_config("dump")
except ValueError as error:
    wrong = str(error)
host = tf.compat.v1.ConfigProto()
own = host.graph_options.rewrite_options.custom_optimizers.add()
own.name = "NpuOptimizer"
own.parameter_map["use_off_line"].b = False
host.graph_options.rewrite_options.remapping = 1  # ON
host = shown(npu_tf_config.session_dump_config(host))
print(json.dumps([made, shown(config), same, sorted(updated.parameter_map), wrong, host]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.15", "2.15"])
def test_session_dump_config(tmp_path: Path, version: str) -> None:
    ran = run_script(tensorflow_python(version), CONFIGS, tmp_path)
    made, changed, same, updated, wrong, host = ran.document
    off = 2  # RewriterConfig.OFF
    assert made == {"ops": [["NpuOptimizer", {"use_off_line": True}]], "remapping": off, "growth": False}
    ((name, parameters),) = changed["ops"]
    assert (name, changed["remapping"], changed["growth"], same) == ("NpuOptimizer", off, True, True)
    assert parameters == {
        "use_off_line": True,
        "precision_mode": "allow_mix_precision",
        "enable_dump": True,
        "dump_path": str(tmp_path / "precision_data/npu/debug_0/dump"),
        "dump_step": "0",
        "dump_mode": "all",
        "op_debug_level": 4,
        "debug_dir": str(tmp_path / "precision_data/npu/debug_0"),
        "fusion_switch_file": tf_config.FUSION_SWITCH_FILE,
    }
    assert updated == ["debug_dir", "dump_debug_mode", "dump_path", "enable_dump_debug", "op_debug_level"]
    assert wrong.startswith("session_dump_config takes a tf.ConfigProto, not a str")
    assert host == {"ops": [["NpuOptimizer", {"use_off_line": False}]], "remapping": off, "growth": False}
    first, second = ran.err.splitlines()[1:]
    assert first.startswith("precision_tool: use_off_line is already False and stays: the network runs on the host")
    assert second == "precision_tool: remapping was on and is now off: the device needs that"
