"""The passport of a run: what is in it, on the real TensorFlow, and that nothing of it can stop a training."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npu_standins import CustomOp, NpuDevice
from training_side import run_script, tensorflow_python

from precision_tool import tf_config
from precision_tool.lib.training import passport

pytestmark = pytest.mark.usefixtures("work")


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


NPU = Path("precision_data/npu/debug_0/passport.json")
BENCHMARK = Path("precision_data/tf/passport.json")


def test_a_dump_writes_what_the_run_is(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_ID", "3")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    (work / "types.cfg").write_text("fc::OutputDtype:float\n", "utf-8")
    op = CustomOp(deterministic=1, my_own=b"password")
    tf_config.update_custom_op(op, "dump", precision_mode_v2="origin", customize_dtypes="types.cfg", allow_hf32=False)
    text = NPU.read_text("utf-8")
    found = json.loads(text)
    assert (found["format"], found["version"], found["side"]) == ("precision_tool passport", 1, "npu")
    assert found["environment"] == {"DEVICE_ID": "3", "ENABLE_HF32_EXECUTION": "0"}
    digest = hashlib.sha256(b"fc::OutputDtype:float\n").hexdigest()[:16]
    assert found["switches"] == {
        "precision_mode_v2": "origin", "customize_dtypes": f"types.cfg sha256:{digest}", "deterministic": "1",
        "dump_step": "0", "dump_mode": "all", "allow_hf32": "off",
    }  # fmt: skip
    assert found["versions"]["numpy"] == np.__version__
    assert "hunter2" not in text
    assert "password" not in text
    assert sorted(os.listdir(NPU.parent)) == ["dump", "graph", "passport.json"], "no temporary file"


def test_npu_device_has_one_too(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tf_config.npu_device_dump_config(NpuDevice(), "dump", precision_mode="force_fp32")
    assert capsys.readouterr().out == "", "what the script prints is its own"
    assert read(work / NPU)["switches"] == {
        "precision_mode": "force_fp32", "deterministic": "0", "dump_step": "0", "dump_mode": "all",
        "dump_data": "tensor",
    }  # fmt: skip


def test_without_a_dump_there_is_none(work: Path) -> None:
    tf_config.update_custom_op(CustomOp(), "fusion_off")
    tf_config.update_custom_op(CustomOp(), "overflow")
    assert not (work / NPU).exists()


def test_a_passport_that_cannot_be_written_stops_nothing(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    op = tf_config.update_custom_op(CustomOp(), "dump")
    assert "enable_dump" in op.parameters
    said = capsys.readouterr().err
    assert "the passport of the run is not written: " in said
    assert "No space left on device" in said
    assert sorted(os.listdir(work / NPU.parent)) == ["dump", "graph"]


def digest_of(kind: str, shape: list[int], data: bytes) -> str:
    return hashlib.sha256(f"{kind} {shape} ".encode() + data).hexdigest()


def test_hashes() -> None:
    """Of type, shape and bytes, whatever the order in memory; of texts with their lengths."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = {"type": "float32", "shape": [2, 3], "sha256": digest_of("float32", [2, 3], array.tobytes())}
    assert passport.fingerprint(array) == expected
    assert passport.fingerprint(np.asfortranarray(array)) == expected
    assert passport.fingerprint(array.astype(">f4")) == expected
    assert passport.fingerprint(array.reshape(3, 2))["sha256"] != expected["sha256"]
    assert passport.fingerprint(array.astype(np.float16))["sha256"] != expected["sha256"]
    assert passport.fingerprint(np.float32(1))["sha256"] == digest_of("float32", [], b"\x00\x00\x80\x3f")
    assert passport.fingerprint(np.zeros((0, 3), np.int64))["sha256"] == digest_of("int64", [0, 3], b"")
    assert passport.fingerprint([b"ab", "c"])["sha256"] == digest_of("string", [2], b"2:ab1:c")
    assert passport.fingerprint([b"a", b"bc"])["sha256"] != passport.fingerprint([b"ab", b"c"])["sha256"]
    with pytest.raises(ValueError, match="no array of numbers"):
        passport.fingerprint([object()])


class Weight:
    def __init__(self, name: str, value: float) -> None:
        self.name, self._value = name, value

    def numpy(self) -> Any:
        return np.float32(self._value)


def test_of_a_model(work: Path) -> None:
    """TensorFlow 2: the benchmark's where the process set up no dump of the NPU, else the NPU's."""
    weights = [Weight("dense/kernel:0", 1), Weight("w:0", 2), Weight("w:0", 3)]
    batch = {"x": np.zeros(2, np.float32), "y": [np.int32(1), np.int32(2)]}
    assert tf_config.passport(weights, batch) == str(work / BENCHMARK)
    found = read(work / BENCHMARK)
    assert [each["name"] for each in found["variables"]] == ["dense/kernel", "w", "w#2"]
    assert [each["name"] for each in found["batch"]] == ["batch/x", "batch/y/0", "batch/y/1"]
    assert len({each["sha256"] for each in found["variables"]}) == 3
    tf_config.npu_device_dump_config(NpuDevice(), "dump")
    assert tf_config.passport(weights) == str(work / NPU)
    assert read(work / NPU)["variables"] == found["variables"]
    with pytest.raises(ValueError, match="passport takes a session or a model, not a int"):
        tf_config.passport(3)


def test_versions_of_the_installation(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, text in {
        "cann/ascend-toolkit/latest/version.cfg": "# version\nruntime_running_version=[7.0.0.1:8.0.RC1]\n",
        "cann/driver/version.info": "Version=23.0.rc3\nascendhal_version=6.11\n",
        "pci/0000:01/vendor": "0x19e5\n", "pci/0000:01/device": "0xd802\n",
        "pci/0000:02/vendor": "0x19e5\n", "pci/0000:02/device": "0x1710\n",
    }.items():  # fmt: skip
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text, "utf-8")
    monkeypatch.setenv("PRECISION_TOOL_CMD_ROOT_PATH", str(work / "cann"))
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    found = passport.versions()
    assert (found["cann"], found["driver"]) == ("7.0.0.1:8.0.RC1", "23.0.rc3")
    assert "firmware" not in found
    assert passport._chip(str(work / "pci")) == "Ascend 910B (0xd802) x1"


def test_a_session_that_fails_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = passport.Recorder(passport.begin(passport.BENCHMARK))
    recorder.before_run(object(), None, None)
    recorder.before_run(object(), None, None)
    assert capsys.readouterr().err.count("the passport lacks the hashes") == 1


# --- real TensorFlow ------------------------------------------------------------------------------------------------

TRAINING = """
import sys
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

tf = tf.compat.v1
tf.disable_eager_execution()
how = sys.argv[1]
x = tf.placeholder(tf.float32, [None, 3], name="x")
w = tf.get_variable("w", [3, 2], initializer=tf.constant_initializer(float(sys.argv[2])))
tf.get_variable("never", [], use_resource=True)
y = tf.matmul(tf.nn.dropout(x, rate=0.5), w)
train = tf.train.MomentumOptimizer(0.25, 0.5, use_nesterov=True).minimize(tf.reduce_sum(y))
feed = {x: np.arange(6).reshape(2, 3)}
if how == "session":
    from precision_tool.tf_session import PrecisionTfSession
    sess = PrecisionTfSession()
elif how == "npu":
    sess = tf.Session(config=npu_tf_config.session_dump_config(action="dump"))
else:
    sess = tf.Session()
if how == "tfdbg":
    sess = npu_tf_config.sess_dump(sess)
sess.run([v.initializer for v in tf.global_variables() if v.op.name != "never"])
sess.run(y, {x: np.zeros((1, 3))})  # an evaluation before
if how == "npu":
    npu_tf_config.passport(sess, feed)
sess.run(train, feed)
sess.run(train, feed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.15", "2.15"])
@pytest.mark.parametrize("how", ["tfdbg", "session"])
def test_of_a_session(tmp_path: Path, version: str, how: str) -> None:
    """Variables as they are before the step that trains, its batch, the optimizer and the seeds."""
    ran = run_script(tensorflow_python(version), TRAINING, tmp_path, how, "1.5")
    assert "passport" not in ran.err
    found = read(tmp_path / BENCHMARK)
    variables = {each["name"]: each for each in found["variables"]}
    w = np.full((3, 2), 1.5, np.float32)
    assert variables["w"] == {
        "name": "w",
        "type": "float32",
        "shape": [3, 2],
        "sha256": passport.fingerprint(w)["sha256"],
    }
    assert set(variables) == {"w", "w/Momentum"}
    assert list(found["left_out"]) == ["never"]
    batch = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert found["batch"] == [dict(name="x:0", **passport.fingerprint(batch))]
    assert found["optimizers"] == [
        {
            "type": "ApplyMomentum",
            "hyperparameters": {"lr": 0.25, "momentum": 0.5, "use_nesterov": True},
            "variables": 1,
        }
    ]
    seed = {"1.15": 0, "2.15": None}[version]  # TensorFlow 2 was seeded in eager mode, and forgets that
    assert (found["seeds"]["helper"], found["seeds"]["graph"]) == (0, seed)
    assert found["versions"]["tensorflow"].startswith(version)


COUNTED = """
import sys
import tensorflow as tf
import precision_tool.lib.training.passport as recording
import precision_tool.tf_config as npu_tf_config

tf = tf.compat.v1
recording._MAX_CHUNK_BYTES = int(sys.argv[1])
for number in range(24):  # of 4 bytes each
    tf.get_variable("v%d" % number, [], initializer=tf.constant_initializer(number))
tf.get_variable("large", [100], initializer=tf.zeros_initializer())

class Counting(tf.Session):
    fetched = []

    def run(self, fetches, *args, **kwargs):
        self.fetched.append(len(fetches) if isinstance(fetches, list) else 1)
        return super().run(fetches, *args, **kwargs)

sess = Counting()
sess.run([v.initializer for v in tf.global_variables() if v.op.name not in sys.argv[2:]])
del sess.fetched[:]
npu_tf_config.passport(sess)
print("fetched", sess.fetched)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "without", "fetched"),
    [
        (1 << 20, (), [25]),
        (40, (), [10, 10, 4, 1]),  # the last is larger than that
        (1 << 20, ("v0",), [25, 12, 6, 3, 1, 2, 3, 6, 13]),
    ],
)
def test_variables_are_read_together(tmp_path: Path, most: int, without: tuple[str, ...], fetched: list[int]) -> None:
    """On the NPU each run is a graph of its own, so there are few; one that has no value costs no other its hash."""
    ran = run_script(tensorflow_python("1.15"), COUNTED, tmp_path, str(most), *without)
    assert f"fetched {fetched}" in ran.out
    found = read(tmp_path / BENCHMARK)
    names = [each["name"] for each in found["variables"]]
    assert names == [name for name in (*(f"v{number}" for number in range(24)), "large") if name not in without]
    assert found["variables"][-2]["sha256"] == passport.fingerprint(np.float32(23))["sha256"]
    assert list(found["left_out"]) == list(without)


@pytest.mark.slow
def test_both_sides_of_one_script_agree(tmp_path: Path) -> None:
    """The script that dumps on the NPU says with one line what tfdbg's side says by itself."""
    for how in ("npu", "tfdbg"):
        run_script(tensorflow_python("1.15"), TRAINING, tmp_path, how, "1.5")
    npu, benchmark = read(tmp_path / NPU), read(tmp_path / BENCHMARK)
    assert (npu["side"], benchmark["side"]) == ("npu", "benchmark")
    for part in ("variables", "batch", "optimizers", "seeds", "left_out"):
        assert npu[part] == benchmark[part], part
    assert npu["switches"] == {"use_off_line": "True", "dump_step": "0", "dump_mode": "all"}


ESTIMATOR = """
import sys
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

tf = tf.compat.v1
hooks = {"dump": npu_tf_config.estimator_dump, "passport": npu_tf_config.estimator_passport}

def model(features, labels, mode):
    w = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean((tf.matmul(features, w) - labels) ** 2)
    train = tf.train.GradientDescentOptimizer(0.5).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, training_hooks=[hooks[sys.argv[1]]()])

def data():
    return tf.data.Dataset.from_tensors((np.ones((2, 3), np.float32), np.ones((2, 1), np.float32))).repeat(2)

tf.estimator.Estimator(model, config=tf.estimator.RunConfig(tf_random_seed=7)).train(data)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dump", "passport"])
def test_of_an_estimator(tmp_path: Path, how: str) -> None:
    run_script(tensorflow_python("1.15"), ESTIMATOR, tmp_path, how)
    found = read(tmp_path / BENCHMARK)
    variables = {each["name"]: each["sha256"] for each in found["variables"]}
    assert variables["w"] == passport.fingerprint(np.zeros((3, 1), np.float32))["sha256"]
    assert variables["global_step"] == passport.fingerprint(np.int64(0))["sha256"], "before the first step"
    assert found["optimizers"][0]["type"] == "ApplyGradientDescent"
    assert found["seeds"]["graph"] == 7


TENSORFLOW_2 = """
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config
from npu_standins import NpuDevice

model = tf.keras.Sequential([tf.keras.layers.Dense(2, kernel_initializer="ones", input_shape=(3,))])
model.compile(tf.keras.optimizers.Adam(0.125), "mse")
npu_tf_config.passport(model, (tf.zeros([4, 3]), np.ones([4, 2])))
npu_tf_config.npu_device_dump_config(NpuDevice(), action="dump", allow_hf32=False)
assert not tf.config.experimental.tensor_float_32_execution_enabled()
npu_tf_config.passport(model, (tf.zeros([4, 3]), np.ones([4, 2])))
"""


@pytest.mark.slow
def test_of_tensorflow_2(tmp_path: Path) -> None:
    here = Path(__file__).resolve().parents[1]
    run_script(tensorflow_python("2.15"), TENSORFLOW_2, tmp_path, paths=(here.parent, here))
    npu, benchmark = read(tmp_path / NPU), read(tmp_path / BENCHMARK)
    assert npu["variables"] == benchmark["variables"]
    assert benchmark["variables"][0] == dict(name="dense/kernel", **passport.fingerprint(np.ones((3, 2), np.float32)))
    assert [each["type"] for each in benchmark["batch"]] == ["float32", "float64"]
    (optimizer,) = benchmark["optimizers"]
    assert (optimizer["type"], optimizer["hyperparameters"]["learning_rate"]) == ("Adam", 0.125)
    assert npu["switches"]["allow_hf32"] == "off"
