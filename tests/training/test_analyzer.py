"""`tf_dump --engine tfdbg` against a stand-in for TensorFlow's analyzer, well and badly behaved."""

from __future__ import annotations

import os
import struct
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tfdbg_files import content, sized, tensor_proto, write_tensor

from precision_tool.lib.cli.cmd_tf_dump import tf_dump
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError

TIME = 1795190660042954

#: Reads a table of answers instead of event files: tensor, number of its dump, the values as Python.
ANALYZER = """
import os, sys
import numpy as np
run = sys.argv[sys.argv.index("--dump_dir") + 1]
print("tfdbg offline @", run)
if os.path.exists(os.path.join(run, "die")): sys.exit("Causality violated in timing relations")
answers = [line.split(" ", 2) for line in open(os.path.join(run, "..", "..", "answers")).read().splitlines()]
while True:
    try: command = input("\\ntfdbg> ")
    except EOFError: break
    words = command.split()
    if words[0] == "lt":
        lines = [str(len(answers)) + " dumped tensor(s):", "", "t (ms)  Size (B) Op type  Tensor name"]
        open(words[2], "w").write("\\n".join(lines + ["[0.000] 168 Const " + each[0] for each in answers] + [""]))
    elif words[0] == "pt":
        (value,) = [each[2] for each in answers if each[:2] == [words[1], words[3]]]
        if value == "hang": input()
        elif value == "end": sys.exit("Segmentation fault")
        elif value.startswith("ERROR"): print(value)
        else:
            np.save(words[5], eval(value, {"np": np}))
            print("Saved value to:", words[5])
    elif words[0] == "exit": break
"""


class Setup:
    """A run of one tensor a dump, TensorFlow's stand-in and its answers."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root / "precision_data"
        self.run = self.root / "tf" / "tf_debug" / "run_5_0"
        package = root / "packages" / "tensorflow" / "python" / "debug" / "cli"
        package.mkdir(parents=True)
        (package / "offline_analyzer.py").write_text(textwrap.dedent(ANALYZER))
        monkeypatch.setenv("PYTHONPATH", str(root / "packages"))
        self._answers: list[str] = []

    def dump(self, op: str, time: int, answer: str, tensor: bytes = b"") -> None:
        tensor = tensor or tensor_proto("float32", (1,), content(struct.pack("<f", 7)))
        write_tensor(self.run, op, 0, time, tensor)
        number = sum(line.startswith(f"{op}:0 ") for line in self._answers)
        self._answers.append(f"{op}:0 {number} {answer}")

    def tf_dump(self, *arguments: str) -> int:
        (self.root / "tf" / "answers").write_text("\n".join(self._answers))
        settings = load_settings({"data": self.root}, folder=self.root, environment={})
        return tf_dump.main(["--engine", "tfdbg", *arguments], settings)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.root / "tf" / "dump"))

    def load(self, op: str, time: int = TIME) -> np.ndarray:
        array: np.ndarray = np.load(self.root / "tf" / "dump" / f"{op}.0.{time}.npy", allow_pickle=False)
        return array


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(tmp_path, monkeypatch)


def test_what_the_analyzer_says_is_what_is_written(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.dump("scope/op", TIME, "np.float32([1, 2])")
    setup.dump("loop", TIME + 1, "np.int64(1)")
    setup.dump("loop", TIME + 2, "np.int64(2)")
    setup.dump("quantized", TIME, "np.array([(3,), (-4,)], [('qint8', 'i1')])")
    assert setup.tf_dump() == 0
    assert setup.load("scope_op").tolist() == [1, 2]
    assert [setup.load("loop", TIME + each).tolist() for each in (1, 2)] == [1, 2]
    assert setup.load("quantized").dtype == np.int8
    assert setup.load("quantized").tolist() == [3, -4]
    assert len(setup.names()) == 4
    assert "4 tensors" in capsys.readouterr().out
    assert setup.tf_dump() == 0
    assert "up to date, 4 tensors" in capsys.readouterr().out
    log = setup.root / "temp" / "tf_dump" / "offline_analyzer_run_5_0.log"
    assert "pt loop:0 -n 1 -w" in log.read_text()


def test_what_it_does_not_write_is_told(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.dump("good", TIME, "np.float32(1)")
    setup.dump("gone", TIME, 'ERROR: Node "gone" does not exist in partition graphs')
    setup.dump("objects", TIME, "np.array([b'text', None], object)")
    setup.dump("text", TIME, "ERROR: is never asked for", tensor_proto("string", (1,), sized(8, b"text")))
    setup.dump("two words", TIME, "ERROR: is never asked for")
    write_tensor(setup.run, "unlisted", 0, TIME, tensor_proto("float32", (1,), content(bytes(4))))
    assert setup.tf_dump() == 0
    out = capsys.readouterr().out
    assert setup.names() == [f"good.0.{TIME}.npy"]
    assert 'gone:0: the analyzer did not write it: ERROR: Node "gone" does not exist in partition graphs' in out
    assert "objects:0: it holds Python objects, not numbers" in out
    assert "two words:0: the analyzer does not take a tensor of this name" in out
    assert "unlisted:0: the analyzer lists 0 dumps of it, the folder has 1" in out
    assert "skipped 1: string (the first: text:0)" in out


def test_no_prompt_within_the_time_limit(setup: Setup) -> None:
    setup.dump("op", TIME, "hang")
    with pytest.raises(PrecisionToolError, match=r"no prompt within 1\.5 s \(pt op:0 -n 0") as error:
        setup.tf_dump("--time-limit", "1.5")
    assert "offline_analyzer_run_5_0.log" in error.value.hint
    assert os.listdir(setup.root / "tf" / "tf_debug") == ["run_5_0"]
    assert sorted(os.listdir(setup.root / "tf")) == ["answers", "tf_debug"]


def test_it_ends_by_itself(setup: Setup) -> None:
    setup.dump("op", TIME, "end")
    with pytest.raises(PrecisionToolError, match=r"ended by itself \(pt op:0 .*\): Segmentation fault"):
        setup.tf_dump()
    (setup.run / "die").touch()
    with pytest.raises(PrecisionToolError, match=r"ended by itself \(its start\): Causality violated"):
        setup.tf_dump()


def test_no_tensorflow(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.dump("op", TIME, "np.float32(1)")
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(DataNotFoundError, match=r"needs TensorFlow, which .* does not have"):
        setup.tf_dump()


def test_no_pexpect(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.dump("op", TIME, "np.float32(1)")
    monkeypatch.setitem(sys.modules, "pexpect", None)
    with pytest.raises(DataNotFoundError, match="needs the Python package pexpect"):
        setup.tf_dump()
