"""Switches that `bisect` gives a training script: each reaches the adapter, and wins over what the script says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from npu_standins import CustomOp, NpuDevice, start_session
from torch_oracle import torch_python
from training_side import run_script

from precision_tool import tf_config, torch_config
from precision_tool.lib.training.given_switches import PYTORCH_SWITCHES, SWITCHES, VARIABLE

pytestmark = pytest.mark.usefixtures("work")

OWN_TYPES = "conv1::InputDtype:float16,float16\nfc1/MatMul::OutputDtype:float16\n"
OWN_MODES = "[ByOpType]\nSoftmax=high_performance\n[ByNodeName]\nfc1/MatMul=high_performance\n"
FUSION = '{"Switch": {"GraphFusion": {"APass": "off"}, "UBFusion": {}}}'


@pytest.fixture
def give(work: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def write(**switches: object) -> None:
        (work / "switches.json").write_text(json.dumps(switches))
        monkeypatch.setenv(VARIABLE, str(work / "switches.json"))

    return write


def everything(work: Path) -> dict[str, Any]:
    (work / "fusion.cfg").write_text(FUSION)
    return {
        "fusion_switch_file": str(work / "fusion.cfg"), "float32_types": ["Softmax"],
        "customize_dtypes": {"fc1/MatMul": "InputDtype:float,float,OutputDtype:float"},
        "op_precision_mode": {"fc1/MatMul": "high_precision", "OpType::Add": "high_precision"},
        "precision_mode": "allow_mix_precision", "allow_hf32": "off", "deterministic": "on", "loss_scale": 8,
    }  # fmt: skip


def check_files(given: dict[str, str]) -> None:
    """What the script said of other ops and types is still there."""
    mixlist = json.loads(Path(given["modify_mixlist"]).read_text())
    assert mixlist["black-list"]["to-add"] == ["Mul", "Softmax"]
    assert mixlist["white-list"]["to-add"] == ["Add"]
    assert Path(given["customize_dtypes"]).read_text().splitlines() == [
        "fc1/MatMul::InputDtype:float,float,OutputDtype:float", "conv1::InputDtype:float16,float16",
    ]  # fmt: skip
    assert Path(given["op_precision_mode"]).read_text().splitlines() == [
        "[ByOpType]", "Softmax=high_performance", "Add=high_precision", "[ByNodeName]", "fc1/MatMul=high_precision",
    ]  # fmt: skip


def own_files(work: Path, mixlist: bool = True) -> dict[str, str]:
    (work / "types.cfg").write_text(OWN_TYPES)
    (work / "modes.ini").write_text(OWN_MODES)
    lists = {"black-list": {"to-add": ["Mul"]}, "white-list": {"to-add": ["Add", "Softmax"]}}
    (work / "mixlist.json").write_text(json.dumps(lists))
    files = {"customize_dtypes": "types.cfg", "op_precision_mode": "modes.ini"}
    files.update({"modify_mixlist": "mixlist.json"} if mixlist else {})
    return {option: str(work / name) for option, name in files.items()}


def test_a_session_gets_every_switch(work: Path, give: Any) -> None:
    """What the script has set itself, or says in the call, is replaced."""
    own = {option: path.encode() for option, path in own_files(work).items()}
    op = CustomOp(**own, precision_mode=b"allow_mix_precision_bf16", fusion_switch_file=b"/own.cfg")
    give(**everything(work))
    tf_config.update_custom_op(op, precision_mode="force_fp16", deterministic=False)
    given = start_session(op)
    check_files(given)
    assert given["precision_mode"] == "allow_mix_precision"
    assert op.parameters["deterministic"] == {"i": 1}
    assert op.parameters["fusion_switch_file"] == {"s": str(work / "fusion.cfg").encode()}
    assert os.environ["ENABLE_HF32_EXECUTION"] == "0"
    assert tf_config.loss_scale(1024.0) == 8


def test_npu_device_gets_every_switch(work: Path, give: Any) -> None:
    device = NpuDevice()
    for name, path in own_files(work).items():
        setattr(device.global_options(), name, path)
    switches = everything(work)
    del switches["allow_hf32"]  # of TensorFlow 2 itself
    give(**switches)
    tf_config.npu_device_dump_config(device)
    check_files(device.all)
    assert device.all["precision_mode"] == "allow_mix_precision"
    assert device.all["deterministic"] == "1"
    old = NpuDevice(newest=False)
    tf_config.npu_device_dump_config(old)  # which lacks some of them
    assert old.all["precision_mode"] == "allow_mix_precision"


def test_an_estimator_gets_every_switch(work: Path, give: Any, npu_bridge: bool) -> None:
    switches = everything(work)
    give(**switches)
    if not npu_bridge:
        with pytest.raises(ValueError, match="too old"):
            tf_config.estimator_run_options()
        return
    given = tf_config.estimator_run_options(precision_mode="force_fp16", **own_files(work, mixlist=False))
    assert json.loads(Path(given.pop("modify_mixlist")).read_text())["black-list"]["to-add"] == ["Softmax"]
    assert "conv1::" in Path(given.pop("customize_dtypes")).read_text()
    assert "Add=high_precision" in Path(given.pop("op_precision_mode")).read_text()
    assert given == {
        "precision_mode": "allow_mix_precision", "deterministic": 1, "fusion_switch_file": str(work / "fusion.cfg"),
    }  # fmt: skip
    assert os.environ["ENABLE_HF32_EXECUTION"] == "0"


def test_a_mode_of_the_second_kind_stays_of_that_kind(give: Any) -> None:
    give(precision_mode="must_keep_origin_dtype")
    op = CustomOp(precision_mode_v2=b"mixed_float16")
    assert start_session(tf_config.update_custom_op(op)) == {"precision_mode_v2": "origin"}


def test_a_mixlist_only_goes_with_mixed_precision(work: Path, give: Any, capsys: pytest.CaptureFixture[str]) -> None:
    give(float32_types=["Softmax"])
    assert start_session(tf_config.update_custom_op(CustomOp(precision_mode=b"force_fp16"))) == {
        "precision_mode": "force_fp16"
    }
    assert "Softmax are not listed" in capsys.readouterr().err
    give(float32_types=["Softmax"], precision_mode="must_keep_origin_dtype")
    path = own_files(work)["modify_mixlist"]
    op = CustomOp(precision_mode=b"allow_mix_precision", modify_mixlist=path.encode())
    assert start_session(tf_config.update_custom_op(op)) == {"precision_mode": "must_keep_origin_dtype"}
    device = NpuDevice()
    device.global_options().precision_mode = "allow_mix_precision"
    device.global_options().modify_mixlist = path
    assert tf_config.npu_device_dump_config(device).all == {"precision_mode": "must_keep_origin_dtype"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"), ("[]", "is not a JSON object"),
        ('{"precision_mode": "fp33"}', "precision_mode.* cannot be .*fp33"), ('{"nothing": 1}', "nothing' cannot be"),
        ('{"loss_scale": -1}', "loss_scale' cannot be"), ('{"float32_types": "Mul"}', "float32_types' cannot be"),
        ('{"op_precision_mode": {"a": 1}}', "op_precision_mode' cannot be"),
        ('{"allow_hf32": {}}', "allow_hf32' cannot be"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_of_switches(work: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    (work / "bad.json").write_text(text)
    monkeypatch.setenv(VARIABLE, str(work / "bad.json"))
    with pytest.raises(ValueError, match=words):
        tf_config.update_custom_op(CustomOp())


def test_without_a_file_nothing_changes() -> None:
    assert torch_config.configure("model") == "model"
    assert torch_config.loss_scale(2.0) == 2.0
    assert {name for name in PYTORCH_SWITCHES if name != "float32_modules"} < set(SWITCHES)


TORCH_SCRIPT = """
    import json, os, types, torch
    import precision_tool.torch_config as npu_torch_config

    torch.npu = types.SimpleNamespace(
        matmul=types.SimpleNamespace(allow_hf32=True), conv=types.SimpleNamespace(allow_hf32=True),
        config=types.SimpleNamespace(allow_internal_format=True), compiled=[],
        set_compile_mode=lambda jit_compile: torch.npu.compiled.append(jit_compile))
    torch.backends.cuda.matmul.allow_tf32 = True

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        def forward(self, x):
            self.between = self.body(x)
            return self.head(self.between)

    def ran(**switches):
        with open(os.environ["PRECISION_TOOL_SWITCHES"], "w") as file:
            json.dump(switches, file)
        torch.manual_seed(0)
        net = npu_torch_config.configure(Net())
        x = torch.randn(3, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(x)
            plain = x @ x.T
        exact = torch.nn.functional.linear(net.between.float(), net.head.weight, net.head.bias)
        halves = net.body(x.bfloat16()) if "body" in switches.get("float32_modules", []) else y
        types = [str(each.dtype).partition(".")[2] for each in (net.between, y, plain, halves)]
        return types, torch.equal(y, exact.to(y.dtype))

    results = [ran(), ran(float32_modules=["head"], allow_hf32="off", allow_internal_format="off", jit_compile="on",
                          deterministic="on")]
    try:
        ran(float32_modules=["heat"])
    except ValueError as error:
        message = str(error)
    results.append(ran(autocast="off", float32_modules=["body"]))
    print(json.dumps({
        "results": results, "message": message, "deterministic": torch.are_deterministic_algorithms_enabled(),
        "npu": [torch.npu.matmul.allow_hf32, torch.npu.conv.allow_hf32, torch.npu.config.allow_internal_format,
                torch.npu.compiled, torch.backends.cuda.matmul.allow_tf32],
    }))
"""


def test_pytorch_gets_every_switch(work: Path) -> None:
    """With the real PyTorch, on the CPU: named modules leave autocast, or all of it is off."""
    run = run_script(torch_python(), TORCH_SCRIPT, work, env={VARIABLE: str(work / "switches.json")}).document
    half, full = "bfloat16", "float32"
    (plain, is_exact), (kept, is_exact_when_kept), (off, _) = run["results"]
    assert plain == [half, half, half, half]
    assert kept == [half, half, half, half]  # as what came in
    assert (is_exact, is_exact_when_kept) == (False, True)  # but for one rounding, of the result
    assert off == [full, full, full, half]
    assert run["npu"] == [False, False, False, [True], False]
    assert run["deterministic"] is True
    assert "did you mean head" in run["message"]
