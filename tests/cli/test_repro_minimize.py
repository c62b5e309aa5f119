"""`repro OP --minimize`: with a command, with what was dumped, and what it says where neither helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import one_op_tree
from command_line import HANG, TOOL, environment, hear_signals, tool
from msprobe_network import CULPRIT, data_folder

X = (np.arange(21, dtype=np.float32) / 7 + 1).astype(np.float16)
#: A Relu that leaves out what is beyond the last multiple of 16; without numpy, so that it starts fast.
KERNEL = """
import json, struct, sys
given, made = sys.argv[-2:]
op = json.load(open(given + "/op.json"))
assert op["type"] == "Relu" and op["inputs"][0]["dtype"] == "float16" and op["outputs"][0]["file"] == "output_0.npy"
data = open(given + "/input_0.npy", "rb").read()
start = 10 + struct.unpack("<H", data[8:10])[0]
values = list(struct.unpack("<%de" % ((len(data) - start) // 2), data[start:]))
width = op["inputs"][0]["shape"][-1]
for at in range(len(values)):
    values[at] = 0 if at % width >= width // 16 * 16 else max(0, values[at])
open(made + "/output_0.npy", "wb").write(data[:start] + struct.pack("<%de" % len(values), *values))
"""


def kernel(folder: Path) -> str:
    (folder / "kernel.py").write_text(KERNEL)
    return f"{sys.executable} -I -S kernel.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    wrong = X.copy()
    wrong[16:] = 0
    one_op_tree(tmp_path / "precision_data", output=wrong, golden=X, inputs=[X], op_type="Relu", op_name="relu")
    return tmp_path


def check(folder: Path) -> int:
    words = [sys.executable, "-I", str(folder / "check.py")]
    return subprocess.run(words, cwd="/", capture_output=True, check=False).returncode


def test_by_a_command(tree: Path) -> None:
    run = tool("repro", "relu", "out", "--minimize", "--run", kernel(tree), "--json", cwd=tree)
    made = run.json["minimized"]
    (rule,) = made["rules"]
    assert (rule["condition"], rule["number"], rule["is_last"]) == ("not_multiple", 16, True)
    assert (made["elements_before"], made["elements"], made["failed"]) == (42, 2, 0)
    assert "no multiple of 16" in made["sentence"]
    assert 0 < made["runs"] <= 50
    np.testing.assert_array_equal(np.load(tree / "out" / "input_0.npy"), np.ones(1, np.float16))
    np.testing.assert_array_equal(np.load(tree / "out" / "output_0.npu.npy"), np.zeros(1, np.float16))
    assert check(tree / "out") == 1
    assert sum(run.json["files"].values()) < 13_000
    assert {"single_op.json", "check.py", "README.md"} <= run.json["files"].keys()
    op = json.loads((tree / "out" / "op.json").read_text("utf-8"))
    assert op["minimized"]["sentence"] == made["sentence"]
    (alone,) = json.loads((tree / "out" / "single_op.json").read_text("utf-8"))
    assert (alone["op"], alone["input_desc"][0]["shape"]) == ("Relu", [1])
    readme = (tree / "out" / "README.md").read_text("utf-8")
    assert "atc --singleop=single_op.json" in readme
    assert "There is no" not in readme


def test_by_what_was_dumped(tree: Path) -> None:
    run = tool("repro", "relu", "out", "--minimize", cwd=tree)
    assert "wrong in the last 5 of 21 along the last axis: the tail beyond the last multiple of 16." in run.text
    assert "42 elements shrunk to 42 elements" in run.text  # less has no such tail
    assert check(tree / "out") == 1
    plain = tool("repro", "relu", "whole", "--json", cwd=tree).json
    assert plain["minimized"] is None
    assert np.load(tree / "whole" / "input_0.npy").shape == (21,)


def test_a_call_of_pytorch(tmp_path: Path) -> None:
    data_folder(tmp_path)
    made = tool("--data", ".", "repro", CULPRIT, "out", "--minimize", "--json", cwd=tmp_path).json
    assert made["minimized"]["elements"] == 32  # a row with its tail
    assert "single_op.json" not in made["files"]
    assert check(tmp_path / "out") == 1
    script = (tmp_path / "out" / "run.py").read_text()
    compile(script, "run.py", "exec")
    assert "torch.nn.functional.gelu(input_0)" in script
    assert 'device = "cpu"' in script  # where there is no torch_npu


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("echo no card >&2; false", (), "exit code 1: no card"),
        ("exec sleep 60 #", ("--timeout", "1"), "did not end within 1 s"),
        ("true", (), "did not write output_0.npy"),
        ('f() { echo x > "$2/output_0.npy"; }; f', (), "output_0.npy cannot be read"),
        ('f() { cp "$1/input_0.npy" "$2/output_0.npy"; }; f', (), "does not reproduce the error"),
    ],
)
def test_a_command_that_does_not_reproduce(tree: Path, command: str, options: Sequence[str], said: str) -> None:
    run = tool("repro", "relu", "out", "--minimize", "--run", command, *options, cwd=tree, code=2)
    assert said in run.text
    assert not (tree / "out").exists()


def test_bad_input(tmp_path: Path) -> None:
    one_op_tree(tmp_path / "precision_data", output=X, golden=X, inputs=[X], op_type="Relu", op_name="relu")
    assert "nothing to minimize" in tool("repro", "relu", "--minimize", cwd=tmp_path, code=2).text
    assert "--minimize" in tool("repro", "relu", "--run", "true", cwd=tmp_path, code=2).text
    one_op_tree(tmp_path / "other", output=X, golden=X, inputs=[X], op_type="NobodyKnowsIt", op_name="relu")
    assert "cannot be minimized" in tool("--data", "other", "repro", "relu", "--minimize", cwd=tmp_path, code=2).text


def test_the_limit_is_said(tree: Path) -> None:
    run = tool("repro", "relu", "out", "--minimize", "--run", kernel(tree), "--runs", "5", cwd=tree)
    assert "stopped after 5 runs" in run.text
    assert check(tree / "out") == 1


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_writes_the_smallest_so_far(tree: Path) -> None:
    """The kernel presses Ctrl+C twice in its eighth run: its shell's parent is the tool, which waits for its end."""
    hang = "echo $$ > pid; trap '' INT TERM; kill -INT $PPID; sleep 0.4; kill -INT $PPID; sleep 1.5; exit"
    command = f"echo >> count; if [ $(wc -l < count) -eq 8 ]; then {hang}; fi; {kernel(tree)}"
    words = [*TOOL, "repro", "relu", "out", "--minimize", "--run", command]
    ended = subprocess.run(
        words, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=HANG, check=False,
        preexec_fn=hear_signals,
    )  # fmt: skip
    assert ended.returncode == 130, ended.stderr
    end, group = time.monotonic() + HANG, int((tree / "pid").read_text())
    while is_there(group):  # until whoever inherits the killed processes has taken note of their ends
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "smallest case so far" in " ".join(ended.stderr.split())
    assert check(tree / "out") == 1
    assert np.load(tree / "out" / "input_0.npy").size < X.size
    assert not [name for name in os.listdir(tree) if "part" in name]
