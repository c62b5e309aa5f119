"""Switches that fix precision: how they reach the three adapters, and that GE takes the files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from npu_standins import CustomOp, NpuDevice, customized_types, implementations, policy_of, start_session

from precision_tool import tf_config

pytestmark = pytest.mark.usefixtures("work")


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


# --- TensorFlow 1, session ------------------------------------------------------------------------------------------


def test_switches_of_a_call_reach_the_adapter(work: Path) -> None:
    """With an action and without: they are the run's, not the dump's."""
    modes = write(work / "op.ini", "[ByOpType]\nSoftmaxV2=high_precision\n")
    types = write(work / "types.cfg", "fc/MatMul::InputDtype:float,float,OutputDtype:float\n")
    for action in (None, "dump"):
        op = CustomOp()
        tf_config.update_custom_op(
            op, action, precision_mode_v2="origin", op_precision_mode="op.ini", customize_dtypes=types
        )
        assert start_session(op) == {
            "precision_mode_v2": "origin", "op_precision_mode": modes, "customize_dtypes": types
        }  # fmt: skip


def test_switches_of_settings_and_calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PRECISION_TOOL_PRECISION_MODE", "force_fp32")
    op = CustomOp(precision_mode=b"allow_mix_precision")
    tf_config.update_custom_op(op)
    assert start_session(op) == {"precision_mode": "force_fp32"}
    said = "precision_mode was 'allow_mix_precision' and is now 'force_fp32': a call or a setting asks for it\n"
    assert capsys.readouterr().err == f"precision_tool: {said}"
    tf_config.update_custom_op(op, precision_mode="must_keep_origin_dtype")
    assert start_session(op) == {"precision_mode": "must_keep_origin_dtype"}, "the call wins"
    monkeypatch.setenv("PRECISION_TOOL_PRECISION_MODE", "fp32")
    with pytest.raises(ValueError, match="PRECISION_MODE: must be 'force_fp32' or"):
        tf_config.update_custom_op(CustomOp())


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ({}, {"precision_mode": "force_fp32", "precision_mode_v2": "origin"}),
        ({"precision_mode": b"force_fp32"}, {"precision_mode_v2": "origin"}),
        ({"precision_mode_v2": b"origin"}, {"precision_mode": "force_fp32"}),
    ],
)
def test_the_two_modes_exclude_each_other(before: dict[str, bytes], options: dict[str, str]) -> None:
    op = CustomOp(**before)
    for name, value in options.items():
        op.parameter_map[name].s = value.encode()
    with pytest.raises(RuntimeError, match="at the same time"):
        start_session(op)
    op = CustomOp(**before)
    with pytest.raises(ValueError, match="the adapter takes one"):
        tf_config.update_custom_op(op, **options)
    assert set(op.parameters) == set(before)


@pytest.mark.parametrize(
    ("before", "options", "outcome"),
    [
        ({}, {}, "said"),
        ({"precision_mode": b"allow_mix_precision"}, {}, "taken"),
        ({}, {"precision_mode_v2": "mixed_bfloat16"}, "taken"),
        ({"precision_mode": b"must_keep_origin_dtype"}, {}, "refused"),
        ({}, {"precision_mode_v2": "origin"}, "refused"),
    ],
)
def test_a_mixlist_needs_mixed_precision(
    before: dict[str, bytes], options: dict[str, str], outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tf_config.mixed_precision_list(black=["Softmax"])
    capsys.readouterr()
    op = CustomOp(**before)
    if outcome == "refused":
        with pytest.raises(ValueError, match="modify_mixlist has no effect with precision_mode"):
            tf_config.update_custom_op(op, "mixlist", **options)
        return
    tf_config.update_custom_op(op, "mixlist", **options)
    err = capsys.readouterr().err
    if outcome == "taken":
        assert start_session(op)["modify_mixlist"] == path
        assert err == ""
    else:
        assert "modify_mixlist has no effect without mixed precision: Atlas A2 and A3 keep" in err
        with pytest.raises(RuntimeError, match="modify_mixlist is assigned"):
            start_session(op)


def test_hf32_of_tensorflow_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tf_config.update_custom_op(CustomOp())
    assert "ENABLE_HF32_EXECUTION" not in os.environ
    tf_config.update_custom_op(CustomOp(), allow_hf32=False)
    assert os.environ["ENABLE_HF32_EXECUTION"] == "0"
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PRECISION_TOOL_ALLOW_HF32", "on")
    tf_config.update_custom_op(CustomOp())
    assert os.environ["ENABLE_HF32_EXECUTION"] == "1"
    assert "ENABLE_HF32_EXECUTION was '0' and is now '1'" in capsys.readouterr().err


# --- TensorFlow 2 ---------------------------------------------------------------------------------------------------


def test_switches_of_npu_device(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = NpuDevice()
    tf_config.npu_device_dump_config(
        device, precision_mode="force_fp32", op_precision_mode={"OpType::Conv2D": "enable_float_32_execution"}
    )
    assert device.all == {
        "precision_mode": "force_fp32",
        "op_precision_mode": str(work / "precision_data/temp/op_precision_mode.ini"),
    }
    with pytest.raises(ValueError, match="the adapter takes one"):
        tf_config.npu_device_dump_config(device, precision_mode_v2="origin")
    tf_config.npu_device_dump_config(device, precision_mode="allow_mix_precision")
    assert device.all["precision_mode"] == "allow_mix_precision"
    assert "precision_mode was 'force_fp32' and is now 'allow_mix_precision'" in capsys.readouterr().err
    old = NpuDevice(newest=False)
    with pytest.raises(ValueError, match="has no option precision_mode_v2; its release is too old"):
        tf_config.npu_device_dump_config(old, precision_mode_v2="origin")
    with pytest.raises(ValueError, match="npu_device refuses precision_mode='force_fp32'"):
        tf_config.npu_device_dump_config(old, precision_mode="force_fp32")


def test_hf32_of_npu_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """npu_device.open() hands on what TensorFlow has for TF32."""
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())
    with pytest.raises(ValueError, match=r"TensorFlow 2\.4 or newer"):
        tf_config.npu_device_dump_config(NpuDevice(), allow_hf32=False)
    told: list[bool] = []
    switch = SimpleNamespace(enable_tensor_float_32_execution=told.append)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=SimpleNamespace(experimental=switch)))
    tf_config.npu_device_dump_config(NpuDevice())
    assert told == []
    tf_config.npu_device_dump_config(NpuDevice(), allow_hf32=False)
    tf_config.npu_device_dump_config(NpuDevice(), allow_hf32=True)
    assert told == [False, True]
    assert "ENABLE_HF32_EXECUTION" not in os.environ, "that is TensorFlow 1's"


def test_kernels_that_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    op, device = CustomOp(), NpuDevice()
    tf_config.update_custom_op(op, deterministic=True)
    assert op.parameters == {"deterministic": {"i": 1}}
    monkeypatch.setenv("PRECISION_TOOL_DETERMINISTIC", "on")
    tf_config.npu_device_dump_config(device)
    assert device.all == {"deterministic": "1"}
    tf_config.npu_device_dump_config(device, deterministic=False)
    assert device.all == {}


# --- Estimator ------------------------------------------------------------------------------------------------------


def test_switches_of_an_estimator(npu_bridge: bool, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    types = write(work / "types.cfg", "fc/MatMul::OutputDtype:float\n")
    if not npu_bridge:
        with pytest.raises(ValueError, match="the NPURunConfig of this npu_bridge has no customize_dtypes"):
            tf_config.estimator_run_options(customize_dtypes=types)
        assert tf_config.estimator_run_options(precision_mode="allow_mix_precision") == {
            "precision_mode": "allow_mix_precision"
        }
        return
    from npu_bridge.estimator.npu.npu_config import NPURunConfig  # type: ignore[import-not-found]

    options = tf_config.estimator_run_options(
        "dump|fusion_off",
        precision_mode_v2="origin",
        customize_dtypes=types,
        allow_hf32=False,
        quant_dumpable=True,
        deterministic=True,
    )
    assert NPURunConfig(**options).given == options == {
        "op_debug_level": 4, "debug_dir": str(work / "precision_data/npu/debug_0"), "quant_dumpable": "1",
        "fusion_switch_file": tf_config.FUSION_OFF_FILE, "precision_mode_v2": "origin", "customize_dtypes": types,
        "deterministic": 1,
    }  # fmt: skip
    assert os.environ["ENABLE_HF32_EXECUTION"] == "0"
    assert capsys.readouterr().err == ""
    tf_config.estimator_dump_config("dump", precision_mode_v2="origin")
    assert "a DumpConfig has no place for precision_mode_v2='origin': give NPURunConfig" in capsys.readouterr().err
    with pytest.raises(ValueError, match="an object of its own"):
        tf_config.estimator_run_options("prof")


# --- the files ------------------------------------------------------------------------------------------------------


def test_ops_of_a_call_become_files_that_ge_takes() -> None:
    op = CustomOp()
    tf_config.update_custom_op(
        op,
        op_precision_mode={"bert/Softmax": "high_precision", "OpType::Conv2D": "enable_float_32_execution"},
        customize_dtypes={
            "fc1/MatMul": "InputDtype:float32,,OutputDtype:float", "OpType::Relu": "OutputDtype: bfloat16,"
        },
    )  # fmt: skip
    files = start_session(op)
    assert implementations(Path(files["op_precision_mode"]).read_text("utf-8")) == {
        ("bert/Softmax", False): "high_precision", ("Conv2D", True): "enable_float_32_execution",
    }  # fmt: skip
    assert customized_types(Path(files["customize_dtypes"]).read_text("utf-8")) == {
        ("fc1/MatMul", False): (["FLOAT"], ["FLOAT"]), ("Relu", True): ([], ["BF16"]),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op_precision_mode": {"a/b": "precise"}}, "a/b has 'precise'; known are high_performance"),
        ({"op_precision_mode": {"a=b": "high_precision"}}, "'a=b' is not the name of an op"),
        ({"op_precision_mode": {}}, "no op given"),
        ({"customize_dtypes": {"a\nb": "OutputDtype:float"}}, "is not the name of an op"),
        ({"customize_dtypes": {"a": "float"}}, "use 'InputDtype:float,float,OutputDtype:float'"),
        ({"customize_dtypes": {"a": "InputDtype:,"}}, "which names no type"),
        ({"customize_dtypes": {"a": "OutputDtype:float12"}}, "has the type 'float12'"),
        ({"customize_dtypes": {"a": "InputDtype:" + "float," * 300}}, "too long for GE"),
        ({"customize_dtypes": "nowhere.cfg"}, r"nowhere\.cfg: no such file"),
        ({"allow_hf32": "maybe"}, "allow_hf32: must be 'on' or 'off'"),
    ],
)
def test_mistakes_are_told_and_nothing_is_set(work: Path, options: dict[str, Any], message: str) -> None:
    op = CustomOp()
    with pytest.raises(ValueError, match=message):
        tf_config.update_custom_op(op, "dump", **options)
    assert op.parameters == {}
    assert not (work / "precision_data/npu").exists()


@pytest.mark.parametrize(
    "line",
    ["", "# by name", "fc/MatMul", "fc::Dtype:float", "fc::OutputDtype:float32", "a::InputDtype:" + "int8," * 250],
)
def test_a_line_for_which_ge_refuses_the_file_is_told(work: Path, line: str) -> None:
    text = f"conv::InputDtype:float,int8,OutputDtype:float\n{line}\nOpType::Relu:OutputDtype:float16\n"
    if len(line) < 1000:  # GE stops reading at longer ones, and says nothing
        with pytest.raises(RuntimeError):
            customized_types(text)
    path = write(work / "types.cfg", text)
    with pytest.raises(ValueError, match="line 2") as caught:
        tf_config.update_custom_op(CustomOp(), customize_dtypes=path)
    assert "it is called float" in str(caught.value) or "float32" not in line


def test_a_way_of_computing_that_ge_skips_is_told(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(work / "op.ini", "# mine\n[ByNodeName]\na=high_precision\n\nb=precise\n")
    tf_config.update_custom_op(CustomOp(), op_precision_mode=path)
    assert f"{path} line 5: GE skips it, as it does not know 'precise'" in capsys.readouterr().err


# --- the gray list --------------------------------------------------------------------------------------------------


def install_cann(root: Path, chip: str, **flags: str) -> None:
    """The part of CANN that says which list an op type is in."""
    folder = root / "opp/built-in/op_impl/ai_core/tbe/config" / chip
    folder.mkdir(parents=True)
    ops = {name: {"precision_reduce": {"flag": flag}, "opFile": {"value": "x"}} for name, flag in flags.items()}
    write(folder / f"aic-{chip}-ops-info-nn.json", json.dumps(ops | {"Plain": {"opFile": {"value": "x"}}}))


def test_gray_ops_leave_the_list_that_holds_them(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_cann(work / "cann", "ascend910b", Add="false", Conv2D="true", Mul="true")
    install_cann(work / "cann", "ascend910", Add="false", Mul="false")
    (work / "cann/opp/built-in/op_impl/ai_core/tbe/config/bad").mkdir()
    write(work / "cann/opp/built-in/op_impl/ai_core/tbe/config/bad/aic-bad-ops-info.json", "[" * 5000)
    monkeypatch.setenv("PRECISION_TOOL_CMD_ROOT_PATH", str(work / "cann"))
    mixlist = json.loads(Path(tf_config.mixed_precision_list(gray=["Add", "Conv2D"])).read_text("utf-8"))
    assert capsys.readouterr().err == ""
    assert policy_of(mixlist, "Add", "black") == policy_of(mixlist, "Conv2D", "white") == "gray"
    mixlist = json.loads(Path(tf_config.mixed_precision_list(gray=["Mul"])).read_text("utf-8"))
    assert policy_of(mixlist, "Mul", "white") == "gray"
    assert policy_of(mixlist, "Mul", "black") == "black"
    assert "Mul is taken out of the white list; if it is in the black one, GE ignores" in capsys.readouterr().err
    mixlist = json.loads(Path(tf_config.mixed_precision_list(gray={"Mul": "black"}, white="Add")).read_text("utf-8"))
    assert policy_of(mixlist, "Mul", "black") == "gray"
    assert policy_of(mixlist, "Add", "black") == "white"
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="gray has 'gray' for Mul; use 'black' or 'white'"):
        tf_config.mixed_precision_list(gray={"Mul": "gray"})
