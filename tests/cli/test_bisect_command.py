"""`bisect`: switches of every kind for a command of the user's, and what is left of it when it is stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import HANG, TOOL, environment, hear_signals, tool

from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.msprobe_demo import generate_msprobe
from precision_tool.lib.diagnose.bisect_changes import lines_to_keep, searched
from precision_tool.lib.diagnose.verdict_model import Action, Cause, Proof, Step, Suspect, Verdict
from precision_tool.lib.session import Session

GUILTY = "TbeConvDequantVaddReluQuantFusionPass"
#: Commands that succeed where the switches of a try have these changes.
CHECKS = {
    "hf32": """grep -q '"allow_hf32": "off"' $PRECISION_TOOL_SWITCHES""",
    "type": """grep -q '^  "MatMulV2"' $PRECISION_TOOL_SWITCHES""",
    "op": """grep -q 'conv2/Conv2Dconv2/BiasAddconv2/Relu": "Input' $PRECISION_TOOL_SWITCHES""",
    "pass": f"""grep -q '"{GUILTY}": "off"' $PRECISION_TOOL_FUSION_SWITCH_FILE""",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a demo and its verdict."""
    folder = tmp_path_factory.mktemp("bisect")
    generate_demo(folder / "precision_data", fault="fusion")
    tool("ac", "-c", cwd=folder)
    return folder


def command(*words: str) -> str:
    return " && ".join(CHECKS[word] for word in words)


def test_what_the_verdict_suspects_is_tried_first_and_kept(demo: Path) -> None:
    run = tool("bisect", "--check", command("pass"), "--write", "kept/it.json", cwd=demo)
    assert "first what the verdict suspects: fusion:" + GUILTY in run.err
    assert "try 3: 1 of 21 changes: succeeds" in run.err
    assert re.search(r"21 changes to search: about \d+ runs if one change suffices, at most 104 runs; first", run.err)
    assert run.err.count("\ntry ") == 5
    assert "about 0 runs left" in run.err
    kept = json.loads((demo / "kept/it.json").read_text())
    assert set(kept) == {"fusion_switch_file"}
    switches = json.loads(Path(kept["fusion_switch_file"]).read_text())["Switch"]
    assert switches["UBFusion"][GUILTY] == "off"
    assert f"export PRECISION_TOOL_SWITCHES={demo / 'kept/it.json'}" in run.out
    assert not (demo / "precision_data/fusion/fusion_switch.cfg").exists()  # the user's own is left alone
    again = tool("bisect", "--check", command("pass"), "--json", cwd=demo)
    assert "nothing was run" in again.err
    assert again.json["changes"] == [f"fusion:{GUILTY}"]
    assert again.json["keep"][0].endswith(f"fusion off {GUILTY}")


def test_changes_of_every_kind(demo: Path) -> None:
    found = tool("bisect", "--check", command("hf32", "type", "op"), "--json", cwd=demo).json
    op = "conv2/Conv2Dconv2/BiasAddconv2/Relu"
    assert (found["outcome"], found["changes"]) == ("found", ["allow_hf32=off", f"op:{op}", "type:MatMulV2"])
    switches = found["switches"]
    assert set(switches) == {"allow_hf32", "customize_dtypes", "float32_types"}
    assert switches["customize_dtypes"][op].startswith("InputDtype:float,")
    assert found["keep"] == lines_to_keep(switches, "", is_pytorch=False)
    assert "mixed_precision_list(black=['MatMulV2'])" in found["keep"][0]
    assert "allow_hf32=False" in found["keep"][1]


def test_no_switch_helps(demo: Path) -> None:
    run = tool("bisect", "--check", "false", "--changes", "loss_scale=8", "type:Add", "--fresh", cwd=demo, code=1)
    assert "the check fails with all of these changes as well" in run.text
    assert "the fault is in none of these switches" in " ".join(run.text.split())
    assert json.loads((demo / "precision_data/temp/bisect/switches.json").read_text()) == {
        "float32_types": ["Add"], "loss_scale": 8.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nothing", "nothing is not the name of a change"), ("loss_scale=0", "is not the name of a change"),
        ("allow_hf32=maybe", "is not the name of a change"), ("op:nobody", "no graph of the data has an op"),
    ],
)  # fmt: skip
def test_what_is_no_change_is_refused(demo: Path, change: str, words: str) -> None:
    assert words in tool("bisect", "--check", "true", "--changes", change, cwd=demo, code=2).err


def test_pytorch_has_modules(tmp_path: Path) -> None:
    generate_msprobe(tmp_path / "precision_data")
    runs = Session(load_settings({"data": tmp_path / "precision_data"})).run_graphs()
    suspect = Suspect(
        culprit="Functional.gelu.1.forward", cause=Cause.KERNEL, proof=Proof.RECOMPUTED, confidence=0.9, number=3,
        op_type="Functional.gelu", module="blocks.1.act (GELU)",
    )  # fmt: skip
    steps = (Step(do=Action.COMPUTE_IN_FLOAT32), Step(do=Action.OTHER_KERNEL))
    verdict = Verdict(culprit=suspect.culprit, cause=Cause.KERNEL, confidence=0.9, suspects=(suspect,), next=steps)
    what = searched(runs, [], [verdict])
    suspected = ("module:blocks.1.act", "jit_compile=on", "allow_internal_format=off")
    assert what.names[:3] == what.suspected == suspected
    assert sum(what.weights.values()) > len(what.names) - 3  # more than all others
    assert {"module:blocks.0.act", "autocast=off", "allow_hf32=off", "loss_scale=1"} < set(what.names)
    assert not [name for name in what.names if name.startswith(("type:", "op:", "fusion:", "op_precision_mode"))]
    kept = lines_to_keep({"float32_modules": ["a"], "allow_hf32": "off"}, "", is_pytorch=True)
    assert kept[1] == "model = npu_torch_config.keep_in_float32(model, ['a'])"
    assert kept[2] == "torch.npu.matmul.allow_hf32 = torch.npu.conv.allow_hf32 = False"


def test_without_data_the_changes_say_whose_lines_keep_them(tmp_path: Path) -> None:
    changes = ["module:head", "loss_scale=1048576", "autocast=off", "precision_mode=must_keep_origin_dtype"]
    check = "grep -q head $F && grep -q 1048576 $F && grep -q autocast $F && grep -q must_keep $F"
    check = check.replace("$F", "$PRECISION_TOOL_SWITCHES")
    kept = tool("bisect", "--check", check, "--changes", *changes, "--json", cwd=tmp_path).json["keep"]
    assert "loss_scale = 1048576" in kept
    assert "model = npu_torch_config.keep_in_float32(model, ['head'])" in kept
    block = kept.index('with torch.autocast("npu", enabled=False):')
    assert kept[block + 1].startswith("    ")
    assert kept[-1] == "config = npu_tf_config.session_dump_config(config, precision_mode='must_keep_origin_dtype')"
    for line in ("loss_scale = 0.5", "loss_scale = 33554432"):
        assert lines_to_keep({"loss_scale": float(line.split()[-1])}, "", is_pytorch=False) == [line]


#: Sends signals, as by Ctrl+C, where Python can raise nothing: in a callback of the interpreter's.
_LOST = """
import os, signal, sys, time, weakref
from precision_tool import cli
from precision_tool.lib.cli import bisect_runner

class Thing:
    pass

number, times = int(sys.argv.pop()), int(sys.argv.pop())

def send(*_):
    for _ in range(times):
        os.kill(os.getpid(), number)
        time.sleep(0.01)

def search(self, search, run=bisect_runner.BisectRun.search):
    thing = Thing()
    weak = weakref.ref(thing, send)
    del thing
    return run(self, search)

bisect_runner.BisectRun.search = search
sys.exit(cli.main())
"""


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [(signal.SIGINT, 1, 130), (signal.SIGINT, 2, 130), (signal.SIGINT, 5, 130), (signal.SIGTERM, 1, 143),
     (signal.SIGHUP, 1, 129)],
)  # fmt: skip
def test_a_signal_that_python_cannot_raise_stops_the_search_all_the_same(
    demo: Path, number: int, times: int, code: int
) -> None:
    words = ("bisect", "--check", "sleep 60", str(times), str(int(number)))
    with subprocess.Popen(
        [sys.executable, "-c", _LOST, *words], cwd=demo, env=environment(demo),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True,
        preexec_fn=hear_signals,  # noqa: PLW1509  # no threads here
    ) as process:  # fmt: skip
        _, err = process.communicate(timeout=HANG)
    assert process.returncode == code
    assert "KeyboardInterrupt" not in err
    assert "Traceback" not in err
    assert "0 tries kept" in err
    assert not json.loads((demo / "precision_data/temp/bisect/state.json").read_text())["running"]


def test_a_search_that_is_stopped_by_ctrl_c_twice(demo: Path) -> None:
    """What the command started ends with it, and the next search goes on."""
    count, go = demo / "count", demo / "go"
    hang = "sleep 60 & echo $! > pid; wait"
    check = f"if ! test -e go && test $(wc -l < count) -ge 3; then {hang}; fi; echo >> count; {command('hf32')}"
    count.touch()
    arguments = ["bisect", "--check", check]
    with subprocess.Popen(
        [*TOOL, *arguments], cwd=demo, env=environment(demo), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", start_new_session=True, preexec_fn=hear_signals,  # noqa: PLW1509  # no threads here
    ) as process:  # fmt: skip
        end = time.monotonic() + HANG
        while time.monotonic() < end and not (demo / "pid").exists():
            time.sleep(0.02)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG)
    child = int((demo / "pid").read_text())
    assert "Traceback" not in err
    assert "3 tries kept: the same command continues the search" in err
    assert process.returncode == 130
    assert not Path(f"/proc/{child}").exists()
    go.touch()
    run = tool(*arguments, cwd=demo)
    assert "3 tries of an earlier search are used" in run.text
    assert "1 change is needed for the check to succeed: allow_hf32=off" in run.text
    tries = json.loads((demo / "precision_data/temp/bisect/state.json").read_text())["tries"]
    assert len({json.dumps(each["changes"]) for each in tries}) == len(tries) - 2  # both ends of it twice
