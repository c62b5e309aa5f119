"""Importing the training helper, its seeds, and its small helpers."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_side import REPO, run_script, tensorflow_python

from precision_tool import tf_config
from precision_tool.lib.messages.errors import OutputError

PYTHONS = [sys.executable, *filter(None, [os.environ.get("PYTHON37")])]

# --- importing ------------------------------------------------------------------------------------------------------

IMPORT = """
import json, logging, sys, warnings
loaded = set(sys.modules)
before = list(sys.path), list(logging.root.handlers), logging.root.level, list(warnings.filters)
import precision_tool.tf_config
after = list(sys.path), list(logging.root.handlers), logging.root.level, list(warnings.filters)
names = ("tensorflow", "numpy", "keras", "npu_bridge", "subprocess")
heavy = [name for name in names if name in sys.modules and name not in loaded]
print(json.dumps([before == after, heavy, precision_tool.tf_config.__file__]))
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_importing_leaves_the_job_alone(tmp_path: Path, python: str) -> None:
    same, heavy, _ = run_script(python, IMPORT, tmp_path).document
    assert same
    assert heavy == []


@pytest.mark.parametrize("python", PYTHONS)
def test_the_package_folder_may_be_merely_copied(tmp_path: Path, python: str) -> None:
    shutil.copytree(REPO / "precision_tool", tmp_path / "precision_tool", ignore=shutil.ignore_patterns("__pycache__"))
    ran = run_script(python, IMPORT, tmp_path, paths=())
    assert ran.document[2] == str(tmp_path / "precision_tool" / "tf_config.py")
    script = """
        import os, types, collections
        import precision_tool.tf_config as npu_tf_config
        op = types.SimpleNamespace(parameter_map=collections.defaultdict(types.SimpleNamespace))
        os.chdir("/")
        npu_tf_config.update_custom_op(op, action="fusion_off")
        print(op.parameter_map["fusion_switch_file"].s.decode())
    """
    path = Path(run_script(python, script, tmp_path, paths=()).out.strip())
    assert path == tmp_path / "precision_tool/lib/config/fusion_off.cfg"
    assert json.loads(path.read_text("utf-8"))["Switch"]["GraphFusion"]["ALL"] == "off"


def test_all_documented_names_are_there() -> None:
    names = "FUSION_OFF_FILE FUSION_SWITCH_FILE session_dump_config estimator_dump_config update_custom_op "
    names += "npu_device_dump_config sess_dump estimator_dump seed_everything mixed_precision_list keep_dtype"
    for name in names.split():
        assert hasattr(tf_config, name), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tf_config.nothing  # noqa: B018


# --- seeds ----------------------------------------------------------------------------------------------------------

SEEDED = """
import json, os, random, sys
{first}
import precision_tool.tf_config
{then}
print(json.dumps([random.random(), os.environ.get("PYTHONHASHSEED"), {number}]))
"""


def seeded(cwd: Path, first: str = "", then: str = "", number: str = "None", **env: str) -> tuple[list[object], str]:
    ran = run_script(sys.executable, SEEDED.format(first=first, then=then, number=number), cwd, env=env)
    found: list[object] = ran.document
    return found, ran.err


def first_random(seed: int) -> float:
    import random

    return random.Random(seed).random()


def test_importing_seeds_what_is_imported(tmp_path: Path) -> None:
    found, err = seeded(tmp_path)
    assert found == [first_random(0), "0", None]
    note = "not imported yet: call seed_everything() after"
    assert err == f"precision_tool: seed 0 set for random (numpy, tensorflow {note})\n"
    found, err = seeded(tmp_path, first="import numpy", number="float(numpy.random.rand())")
    assert found[2] == np.random.RandomState(0).rand()
    assert err == f"precision_tool: seed 0 set for random, numpy (tensorflow {note})\n"


def test_the_environment_chooses_the_seed_or_none(tmp_path: Path) -> None:
    assert seeded(tmp_path, PRECISION_TOOL_SEED="7")[0] == [first_random(7), "7", None]
    found, err = seeded(tmp_path, first="random.seed(5)", PRECISION_TOOL_SEED="off")
    assert (found, err) == ([first_random(5), None, None], "")
    for wrong in ("of", "²"):
        ran = run_script(
            sys.executable, "import precision_tool.tf_config", tmp_path, code=1, env={"PRECISION_TOOL_SEED": wrong}
        )
        assert "ValueError: environment variable PRECISION_TOOL_SEED must be a number or 'off'" in ran.err


def test_the_setting_is_the_seed_where_nothing_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "precision_config.py").write_text("DUMP_SEED = 9\n")
    assert seeded(tmp_path)[0] == [first_random(9), "9", None]
    assert seeded(tmp_path, then="precision_tool.tf_config.seed_everything()")[0] == [first_random(9), "9", None]
    assert seeded(tmp_path, PRECISION_TOOL_SEED="7")[0] == [first_random(7), "7", None]


def test_seed_everything_seeds_numpy_too(tmp_path: Path) -> None:
    then = "precision_tool.tf_config.seed_everything(12)\nimport numpy"
    found, err = seeded(tmp_path, then=then, number="float(numpy.random.rand())")
    assert found == [first_random(12), "12", np.random.RandomState(12).rand()]
    assert err.splitlines()[-1] == "precision_tool: seed 12 set for random, numpy"


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "1"])
def test_what_is_no_seed_is_told(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be a whole number from 0 to 4294967295"):
        tf_config.seed_everything(seed)


TENSORFLOW_SEED = """
import json, sys
import tensorflow as tf
tf1 = tf.compat.v1
if tf.__version__[0] == "2":
    tf1.disable_eager_execution()
import precision_tool.tf_config as npu_tf_config
number = tf1.random_uniform([])
with tf1.Session() as session:
    first = float(session.run(number))
with tf1.Graph().as_default(), tf1.Session() as session:
    npu_tf_config.seed_everything(0)
    second = float(session.run(tf1.random_uniform([])))
print(json.dumps([first, second]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.15", "2.15"])
def test_tensorflow_is_seeded(tmp_path: Path, version: str) -> None:
    ran = run_script(tensorflow_python(version), TENSORFLOW_SEED, tmp_path)
    assert ran.document[0] == ran.document[1], "the same op with the same seed in another graph"
    assert ran.err.count("precision_tool: seed 0 set for random, numpy, tensorflow\n") == 2
    other = run_script(tensorflow_python(version), TENSORFLOW_SEED, tmp_path, env={"PRECISION_TOOL_SEED": "1"})
    assert other.document[0] != ran.document[0]


# --- mixed precision ------------------------------------------------------------------------------------------------


def test_mixed_precision_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(tf_config.mixed_precision_list(black=["Softmax", "Exp", "Exp"], white="MatMul", gray=("Add",)))
    assert path.is_absolute()
    assert json.loads(path.read_text("utf-8")) == {
        "black-list": {"to-add": ["Softmax", "Exp"], "to-remove": []},
        "white-list": {"to-add": ["MatMul"], "to-remove": ["Add"]},
        "gray-list": {"to-add": ["Add"], "to-remove": []},
    }
    assert path.stat().st_mode & 0o777 == 0o644, "the device's processes read it"
    mine = tf_config.mixed_precision_list(gray="Mul", path="mine.json")
    assert mine == str(tmp_path / "mine.json")
    assert json.loads(Path(mine).read_text("utf-8"))["gray-list"]["to-add"] == ["Mul"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine.json", "precision_data"], "no temporary files"


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({}, "no op type given"),
        ({"black": ["Add"], "gray": ["Mul", "Add"]}, "op type Add is in black-list and in gray-list"),
        ({"black": ["fc1/MatMul"]}, "black has 'fc1/MatMul'; give op types"),
        ({"white": [3]}, "white has 3"),
    ],
)
def test_wrong_lists_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        tf_config.mixed_precision_list(**lists)
    assert list(tmp_path.iterdir()) == []


def test_a_list_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tf_config.mixed_precision_list("Add", path=str(tmp_path / "list.json"))
    old = Path(path).read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match=r"list\.json cannot be written \(No space left on device\)"):
        tf_config.mixed_precision_list("Mul", path=path)
    assert Path(path).read_bytes() == old
    assert [each.name for each in tmp_path.iterdir()] == ["list.json"]
    with pytest.raises(OutputError, match="cannot be written"):
        tf_config.mixed_precision_list("Mul", path=str(tmp_path / "nowhere" / "list.json"))


KEEP = "import precision_tool.tf_config as npu_tf_config; npu_tf_config.keep_dtype(['fc1/MatMul', 'fc2/MatMul'])"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("1.15", ["from npu_bridge.npu_init import *", "with npu_scope.keep_dtype_scope():"]),
        ("2.15", ["import npu_device as npu", "with npu.keep_dtype_scope():"]),
    ],
)
def test_keep_dtype_is_for_the_tensorflow_in_use(tmp_path: Path, version: str, lines: list[str]) -> None:
    out = run_script(tensorflow_python(version), KEEP, tmp_path).out.splitlines()
    assert out == [*lines, "    ...  # the lines that make fc1/MatMul, fc2/MatMul"]


def test_keep_dtype_without_tensorflow_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    text = tf_config.keep_dtype("fc1/MatMul")
    assert "npu_scope.keep_dtype_scope()" in text
    assert "npu.keep_dtype_scope()" in text
    assert capsys.readouterr().out == text + "\n"
    with pytest.raises(ValueError, match="no op given"):
        tf_config.keep_dtype([])


# --- the callback ---------------------------------------------------------------------------------------------------

CALLBACK = """
import sys
import precision_tool.tf_config as npu_tf_config
assert "tensorflow" not in sys.modules
from precision_tool.tf_config import NpuPrintLossScaleCallBack
import tensorflow as tf
import numpy as np

class Value:
    def __init__(self, value):
        self.value = value
    def numpy(self):
        return np.float32(self.value)

class Optimizer:
    loss_scale = Value(65536)
    last_step_finite = Value(0)

assert issubclass(NpuPrintLossScaleCallBack, tf.keras.callbacks.Callback)
assert NpuPrintLossScaleCallBack is npu_tf_config.NpuPrintLossScaleCallBack
callback = NpuPrintLossScaleCallBack(Optimizer())
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0, callbacks=[callback])
try:
    NpuPrintLossScaleCallBack(object())
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.15", "2.15"])
def test_the_loss_scale_is_printed(tmp_path: Path, version: str) -> None:
    lines = run_script(tensorflow_python(version), CALLBACK, tmp_path, forked=False).out.splitlines()
    assert lines == [
        "precision_tool: batch 0: loss scale 65536, last step overflowed",
        "precision_tool: batch 1: loss scale 65536, last step overflowed",
        "object has no loss scale; give the loss scale optimizer that wraps it",
    ]
