"""Real training scripts under real TensorFlow: dumped by tfdbg, saved by PrecisionTfSession, replayed by `train`.

Expected values are computed from the saved weights and inputs with plain numpy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from training_side import WORD, Ran, run_script, tensorflow_python, write_npu_bridge

pytestmark = pytest.mark.slow

VERSIONS = pytest.mark.parametrize("version", ["1.15", "2.15"])

Array = npt.NDArray[Any]


def runs(cwd: Path) -> list[Path]:
    return sorted((cwd / "precision_data/tf/tf_debug").glob("run_*"))


def dumped(run: Path) -> set[str]:
    """The tensors of a tfdbg run, as op:slot."""
    files = run.glob("_tfdbg_device_*/**/*_DebugIdentity_*")
    names = ("/".join(file.relative_to(run).parts[1:]).rsplit("_", 3) for file in files)
    return {f"{op}:{slot}" for op, slot, _, _ in names}


# --- sess_dump ------------------------------------------------------------------------------------------------------

SESSION = """
import os, sys
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

tf1 = tf.compat.v1
if tf.__version__[0] == "2":
    tf1.disable_eager_execution()
x = tf1.placeholder(tf.float32, [None, 2], name="x")
w = tf1.get_variable("w", initializer=np.eye(2, dtype=np.float32), use_resource=False)
y = tf.matmul(x, w, name="layer/y")
sess = tf1.Session()
sess.run(w.initializer)
os.chdir("/")  # the folder is that of the script's start
os.chdir(os.path.dirname(os.path.abspath(__file__)))
raw = sess
sess = npu_tf_config.sess_dump(sess=sess)
os.chdir("/")
print(sess.run(y, {x: [[1, 2]]}).tolist())
os.chdir(os.path.dirname(os.path.abspath(__file__)))

def told(make):
    try:
        make()
    except ValueError as error:
        print("told:", error)

other = tf1.Session()
told(lambda: npu_tf_config.sess_dump(other))
sess.close()
told(lambda: npu_tf_config.sess_dump(raw))
told(lambda: npu_tf_config.sess_dump(other))
told(lambda: npu_tf_config.sess_dump(None))
told(lambda: npu_tf_config.sess_dump(y))
"""


@VERSIONS
def test_sess_dump(tmp_path: Path, version: str) -> None:
    ran = run_script(tensorflow_python(version), SESSION, tmp_path)
    value, busy, closed, full, nothing, tensor = ran.out.splitlines()
    assert value == "[[1.0, 2.0]]"
    (run,) = runs(tmp_path)
    assert "layer/y:0" in dumped(run)
    folder = tmp_path / "precision_data/tf/tf_debug"
    assert busy.startswith(f"told: another dump, of this script or of another one, goes to {folder}; dump one session")
    assert closed == "told: sess_dump: the session is closed; wrap it right after it was made, before it runs"
    assert full.startswith(f"told: {folder} already holds a dump ({run.name}), and two must not mix; keep it (mv ")
    assert nothing.startswith("told: sess_dump takes a session, not a NoneType")
    assert tensor.startswith("told: sess_dump takes a session, not a ")
    assert ran.err == "precision_tool: seed 0 set for random, numpy, tensorflow\n"


EAGER = """
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config
from precision_tool.tf_session import PrecisionTfSession

for make in (lambda: npu_tf_config.sess_dump(tf.compat.v1.Session()), PrecisionTfSession):
    try:
        make()
    except ValueError as error:
        print(error)
with tf.Graph().as_default():
    x = tf.constant(1.0)
    session = npu_tf_config.sess_dump(tf.compat.v1.Session())
print(session.run(x))  # a graph of its own needs no switch
"""


def test_eager_mode_is_told(tmp_path: Path) -> None:
    first, second, third = run_script(tensorflow_python("2.15"), EAGER, tmp_path).out.splitlines()
    advice = "call tf.compat.v1.disable_eager_execution() first thing in the script"
    assert first == f"sess_dump: TensorFlow runs eagerly, and there is no graph to dump; {advice}"
    assert second.startswith(f"PrecisionTfSession: TensorFlow runs eagerly, and there is no graph to run; {advice}")
    assert third == "1.0"


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "precision_data").write_text("a file", "utf-8")
    script = """
        import tensorflow as tf
        import precision_tool.tf_config as npu_tf_config
        from precision_tool.tf_session import PrecisionTfSession
        session = tf.compat.v1.Session()
        for make in (lambda: npu_tf_config.sess_dump(session), npu_tf_config.estimator_dump, PrecisionTfSession):
            try:
                make()
            except OSError as error:
                print(error)
    """
    ran = run_script(tensorflow_python("1.15"), script, tmp_path)
    assert ran.err.count("\n") == 1, ran.err
    lines = ran.out.splitlines()
    folder = tmp_path / "precision_data/tf"
    assert lines == [
        f"{folder}/{name} cannot be written (Not a directory)" for name in ("tf_debug", "tf_debug", "checkpoints")
    ]


# --- estimator_dump -------------------------------------------------------------------------------------------------

ESTIMATOR = """
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

tf1 = tf.compat.v1

def model_fn(features, labels, mode):
    logits = tf1.layers.dense(features["x"], 2, name="fc")
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
    hooks = [npu_tf_config.estimator_dump()]
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, training_hooks=hooks)

features, labels = {"x": np.ones((8, 3), np.float32)}, np.zeros(8, np.int64)
inputs = tf1.estimator.inputs.numpy_input_fn(features, labels, batch_size=4, shuffle=False, num_epochs=1)
estimator = tf.estimator.Estimator(model_fn, model_dir="model")
estimator.train(inputs, steps=2)
print("evaluated", int(estimator.evaluate(inputs, steps=1)["global_step"]))
try:
    estimator.train(inputs, steps=1)
except ValueError as error:
    print("told:", error)
"""


@VERSIONS
def test_estimator_dump(tmp_path: Path, version: str) -> None:
    ran = run_script(tensorflow_python(version), ESTIMATOR, tmp_path)
    evaluated, told = ran.out.splitlines()
    assert evaluated == "evaluated 2", "a hook that evaluation makes but does not use is no mistake"
    assert len(runs(tmp_path)) == 2, "one for each step"
    for run in runs(tmp_path):
        assert {"fc/BiasAdd:0", "fc/kernel:0"} <= dumped(run)  # TensorFlow fuses MatMul into BiasAdd
    assert told.startswith(f"told: {tmp_path}/precision_data/tf/tf_debug already holds a dump (run_")


MONITORED = """
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

step = tf.train.get_or_create_global_step()
more = tf.assign_add(step, 1, name="more")
with tf.train.MonitoredTrainingSession(hooks=[npu_tf_config.estimator_dump()]) as session:
    print(session.run(more))
try:
    npu_tf_config.sess_dump(session)
except ValueError as error:
    print("told:", error)
"""


def test_a_monitored_session_takes_the_hook(tmp_path: Path) -> None:
    one, told = run_script(tensorflow_python("1.15"), MONITORED, tmp_path).out.splitlines()
    assert one == "1"
    assert told.startswith("told: sess_dump: the session is closed")
    (run,) = runs(tmp_path)
    assert "more:0" in dumped(run)


# --- PrecisionTfSession and train -----------------------------------------------------------------------------------

# A layer with three dropouts: constant rate, fed rate, and one of another layer of the API.
TRAIN = """
import sys
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config
from precision_tool.tf_session import PrecisionTfSession

tf1 = tf.compat.v1
if tf.__version__[0] == "2":
    tf1.disable_eager_execution()
    npu_tf_config.seed_everything(0)
x = tf1.placeholder(tf.float32, [None, 4], name="in/x")
label = tf1.placeholder(tf.int64, [None], name="label")
rate = tf1.placeholder(tf.float32, [], name="rate")
w = tf1.get_variable("w", [4, 3])
hidden = tf.matmul(x, w, name="hidden")
kept = tf.nn.dropout(hidden, rate=0.5)
kept = tf.nn.dropout(kept, rate=rate, name="second")
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=kept), name="loss")
step = tf1.train.get_or_create_global_step()
train = tf1.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=step)
feed = {x: np.random.rand(5, 4), label: np.arange(5) % 3, "rate:0": 0.4}
with PrecisionTfSession() as sess:
    assert isinstance(sess, tf1.Session)
    sess.run(tf.group(tf1.global_variables_initializer(), tf1.local_variables_initializer()))
    sess.run(step)  # asks for something, trains nothing
    print("before", sess.run(w).tolist())
    sess.run([loss, train], feed_dict=feed)
    print("after", sess.run(w).tolist())
    for _ in range(2):
        sess.run(train, feed_dict={x: np.zeros((1, 4)), label: [0], rate: 0.0})
"""


SaveStep = Callable[[str, Path], tuple[Ran, dict[str, Array]]]


@pytest.fixture(scope="module")
def save_step(tmp_path_factory: pytest.TempPathFactory) -> SaveStep:
    """Runs TRAIN, once for each TensorFlow, and gives a folder what it saved; the weights before and after."""
    made: dict[str, tuple[Path, Ran]] = {}

    def save(python: str, cwd: Path) -> tuple[Ran, dict[str, Array]]:
        if python not in made:
            first = tmp_path_factory.mktemp("saved")
            made[python] = first, run_script(python, TRAIN, first)
        folder, ran = made[python]
        shutil.copytree(folder / "precision_data", cwd / "precision_data")
        weights = (line.split(" ", 1) for line in ran.out.splitlines())
        shown = replace(ran, err=ran.err.replace(str(folder), str(cwd)))
        return shown, {name: np.array(json.loads(text)) for name, text in weights}

    return save


def replay(python: str, cwd: Path, *arguments: str, code: int = 0, extra: tuple[Path, ...] = ()) -> Ran:
    from training_side import REPO

    return run_script(python, WORD, cwd, "train", *arguments, code=code, paths=(REPO, *extra))


def input_folder(cwd: Path) -> Path:
    return cwd / "precision_data/tf/checkpoints/input"


def result(cwd: Path, op: str) -> Array:
    """Output 0 of an op as `tf_dump` wrote it."""
    (file,) = (cwd / "precision_data/tf/dump").glob(f"{op}.0.*.npy")
    found: Array = np.load(file)
    return found


@VERSIONS
def test_a_step_is_saved_and_replayed(tmp_path: Path, save_step: SaveStep, version: str) -> None:
    python = tensorflow_python(version)
    saved, weights = save_step(python, tmp_path)
    checkpoint = tmp_path / "precision_data/tf/checkpoints"
    assert saved.err.splitlines()[-1] == (
        f"precision_tool: saved 3 fed inputs and checkpoint {checkpoint}/ckpt; precision-tool train replays this step"
    )
    inputs = {path.name: np.load(path) for path in input_folder(tmp_path).glob("*.npy")}
    assert set(inputs) == {"in_x_0.npy", "label_0.npy", "rate_0.npy"}
    assert inputs["in_x_0.npy"].shape == (5, 4), "the first training step's, not a later one's"
    assert not [path for path in checkpoint.iterdir() if path.name.startswith(".")], "nothing temporary is left"

    ran = replay(python, tmp_path, "-d", "cpu")
    assert ran.out.splitlines()[:2] == [
        "restored from precision_data/tf/checkpoints/ckpt",
        "dropout rate 0: dropout/GreaterEqual, second/GreaterEqual",
    ]
    assert "CPU: ran GradientDescent, fed in/x:0, label:0, rate:0 -> precision_data/tf/tf_debug" in ran.out
    assert len(runs(tmp_path)) == 1
    hidden = inputs["in_x_0.npy"].astype(np.float64) @ weights["after"]
    np.testing.assert_allclose(result(tmp_path, "hidden"), hidden, rtol=1e-5)
    scores = np.exp(hidden) / np.exp(hidden).sum(axis=1, keepdims=True)
    losses = -np.log(scores[np.arange(5), inputs["label_0.npy"]])
    found = result(tmp_path, "_".join(["SparseSoftmaxCrossEntropyWithLogits"] * 2))
    np.testing.assert_allclose(found, losses, rtol=1e-5)  # so the dropouts drop nothing

    again = replay(python, tmp_path, "-d", "cpu", code=2)
    assert "tf_debug already holds a dump (run_" in again.err


def test_replays_of_random_ops_are_alike(tmp_path: Path) -> None:
    script = TRAIN.replace(
        "kept = tf.nn.dropout(hidden, rate=0.5)", "kept = hidden + tf.random.normal([3], name='noise')"
    )
    python = tensorflow_python("1.15")
    run_script(python, "import os; os.environ['PRECISION_TOOL_SEED'] = 'off'\n" + script, tmp_path)
    noise = []
    for name in "ab":
        ran = replay(python, tmp_path, "-d", "cpu")
        assert ", noise/RandomStandardNormal" in ran.out
        noise.append(result(tmp_path, "noise"))
        (tmp_path / "precision_data/tf/tf_debug").rename(tmp_path / name)
    np.testing.assert_array_equal(noise[0], noise[1])
    assert noise[0].std() > 0


def test_inputs_that_were_not_saved_are_named(tmp_path: Path, save_step: SaveStep) -> None:
    python = tensorflow_python("1.15")
    save_step(python, tmp_path)
    manifest = input_folder(tmp_path) / "feeds.json"
    content = json.loads(manifest.read_text("utf-8"))
    content["feeds"] = [each for each in content["feeds"] if each["tensor"] == "rate:0"]
    content["left_out"] = {"label:0": "not a text"}
    manifest.write_text(json.dumps(content), "utf-8")
    ran = replay(python, tmp_path, "-d", "cpu", code=2)
    assert "error: the saved step lacks inputs that it needs: in/x:0, label:0 (not a text)" in ran.err
    assert runs(tmp_path) == []


def test_the_npu_run_has_its_switches(tmp_path: Path, save_step: SaveStep) -> None:
    python = tensorflow_python("1.15")
    _, weights = save_step(python, tmp_path)
    without = replay(python, tmp_path, code=2)
    assert "error: the Python package npu_bridge is not installed" in without.err
    assert "run this in the NPU training environment; train -d cpu needs none" in without.err
    assert runs(tmp_path) == [], "nothing is half done"
    # The stand-in knows no device: TensorFlow runs the step itself. It prints what the session was configured with.
    site = write_npu_bridge(tmp_path / "site", newest=True)
    with (site / "npu_bridge/npu_init.py").open("a") as file:
        file.write(
            "import tensorflow as tf\n"
            "class Session(tf.Session):\n"
            "    def __init__(self, target='', graph=None, config=None):\n"
            "        ops = config.graph_options.rewrite_options.custom_optimizers\n"
            "        print('configured', [(op.name, sorted(op.parameter_map)) for op in ops])\n"
            "        super().__init__(target, graph, config)\n"
            "tf.compat.v1.Session = Session\n"
        )
    ran = replay(python, tmp_path, "-a", "fusion_off|dump", extra=(site,))
    shown = [line for line in ran.out.splitlines() if line.startswith(("configured", "CPU", "NPU"))]
    parameters = [
        "debug_dir",
        "dump_mode",
        "dump_path",
        "dump_step",
        "enable_dump",
        "fusion_switch_file",
        "op_debug_level",
    ]
    assert shown[-2] == f"configured {[('NpuOptimizer', [*parameters, 'use_off_line'])]}"
    assert shown[-1].startswith("NPU: ran GradientDescent, fed in/x:0")
    assert [line for line in shown if line.startswith("CPU")], "and the CPU before"
    np.testing.assert_allclose(
        result(tmp_path, "hidden"), np.load(input_folder(tmp_path) / "in_x_0.npy") @ weights["after"], rtol=1e-5
    )
    assert (tmp_path / "precision_data/npu/debug_0/dump").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "cpu"], "precision_data/tf/checkpoints: no checkpoint of a saved step"),
        (["-d", "gpu"], "train: argument -d/--device: invalid choice"),
        (["-a", "dump|overflow"], "both dump and overflow"),
    ],
)
def test_what_cannot_be_replayed_is_told(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in replay(tensorflow_python("1.15"), tmp_path, *arguments, code=2).err


def test_damaged_checkpoints_are_told(tmp_path: Path, save_step: SaveStep) -> None:
    python = tensorflow_python("1.15")
    save_step(python, tmp_path)
    folder = tmp_path / "precision_data/tf/checkpoints"
    data, meta = folder / "ckpt.data-00000-of-00001", folder / "ckpt.meta"
    whole = data.read_bytes()
    data.write_bytes(whole[:10])
    assert "error: the saved step fails on the CPU: " in replay(python, tmp_path, "-d", "cpu", code=2).err
    data.write_bytes(whole)
    np.save(input_folder(tmp_path) / "in_x_0.npy", np.zeros((5, 9)))
    wrong = replay(python, tmp_path, "-d", "cpu", code=2).err
    assert "error: the saved step fails on the CPU: Cannot feed value of shape (5, 9) for Tensor 'in/x:0'" in wrong
    assert runs(tmp_path) == []
    meta.write_bytes(meta.read_bytes()[:1000])
    assert "ckpt.meta: damaged" in replay(python, tmp_path, "-d", "cpu", code=2).err


# A pipeline whose iterator is fed, sparse inputs, a saver of the user's own, and a restored start.
PIPELINE = """
import sys
import numpy as np
import tensorflow as tf
from precision_tool.tf_session import PrecisionTfSession

tf1 = tf.compat.v1
table = tf1.placeholder(tf.float32, [None, 2], name="table")
batch = tf1.data.make_initializable_iterator(tf1.data.Dataset.from_tensor_slices(table).batch(2))
rows = tf.identity(batch.get_next(), name="rows")
sparse = tf1.sparse_placeholder(tf.float32, shape=[2, 2], name="sparse")
w = tf1.get_variable("w", [2, 1])
total = tf.add(rows, tf.sparse.to_dense(sparse), name="total")
y = tf.matmul(total, w)
train = tf1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(y))
saver = tf1.train.Saver()
if sys.argv[1] == "plain":
    with tf1.Session() as sess:
        sess.run(tf1.global_variables_initializer())
        saver.save(sess, "start/ckpt")
else:
    with PrecisionTfSession() as sess:
        saver.restore(sess, "start/ckpt")
        saver.save(sess, "start/again")
        sess.run(batch.initializer, {table: np.arange(8).reshape(4, 2)})
        value = tf1.SparseTensorValue(indices=[[0, 1]], values=[10.0], dense_shape=[2, 2])
        sess.run(train, {sparse: value})
"""


def test_iterators_sparse_inputs_and_restored_weights(tmp_path: Path) -> None:
    python = tensorflow_python("1.15")
    run_script(python, PIPELINE, tmp_path, "plain")
    run_script(python, PIPELINE, tmp_path, "saved")
    inputs = {path.name for path in input_folder(tmp_path).glob("*.npy")}
    assert {"table_0.npy", "sparse_values_0.npy", "sparse_indices_0.npy"} <= inputs
    assert not [name for name in inputs if "save" in name], "a Saver's file names are no inputs"
    replay(python, tmp_path, "-d", "cpu")
    np.testing.assert_array_equal(result(tmp_path, "rows"), [[0, 1], [2, 3]])
    np.testing.assert_array_equal(result(tmp_path, "total"), [[0, 11], [2, 3]])


MISTAKES = """
import tensorflow as tf
from precision_tool.tf_session import PrecisionTfSession

tf1 = tf.compat.v1

def told(make):
    with tf.Graph().as_default():
        try:
            make()
        except ValueError as error:
            print("told:", error)

def no_variables():
    PrecisionTfSession().run(tf.constant(1))

def uninitialised():
    tf1.get_variable("v", [1])
    PrecisionTfSession().run(tf.constant(1))

def finalized():
    v = tf1.get_variable("v", [1])
    session = PrecisionTfSession()
    session.run(v.initializer)
    tf1.get_default_graph().finalize()
    session.run("v:0")

def finalized_with_saver():
    v = tf1.get_variable("v", initializer=1.0)
    tf1.add_to_collection("savers", tf1.train.Saver())
    session = PrecisionTfSession()
    session.run(v.initializer)
    tf1.get_default_graph().finalize()
    print(session.run("v:0"))

for make in (no_variables, uninitialised, finalized, finalized_with_saver):
    told(make)

with tf.Graph().as_default():
    x = tf1.placeholder(tf.float32, [], name="x")
    v = tf1.get_variable("v", [1])
    session = PrecisionTfSession()
    session.run(v.initializer)
    for feed in ({}, {x: "text"}, {"nothing:0": 1}):
        try:
            session.run(v * x, feed)
        except (tf1.errors.InvalidArgumentError, ValueError, TypeError) as error:
            print(type(error).__name__)
    session.run(tf.IndexedSlices(v * x, tf.constant([0])), {x: 2})
"""


def test_mistakes_are_told_and_tensorflow_s_stay(tmp_path: Path) -> None:
    ran = run_script(tensorflow_python("1.15"), MISTAKES, tmp_path)
    lines = ran.out.splitlines()
    assert lines[0].startswith("told: PrecisionTfSession: no checkpoint can be saved (No variables to save)")
    assert lines[1].startswith(f"told: {tmp_path}/precision_data/tf/checkpoints/ckpt cannot be saved (")
    assert lines[2].startswith("told: PrecisionTfSession: the graph is finalized, and has no Saver")
    assert lines[3:] == ["1.0", "InvalidArgumentError", "ValueError", "TypeError"]
    assert ran.err.splitlines()[-1].startswith("precision_tool: saved 1 fed input and checkpoint ")
    assert len(ran.err.splitlines()) == 2, "two steps saved, nothing of TensorFlow's"
    folder = tmp_path / "precision_data/tf/checkpoints"
    assert json.loads((folder / "input/feeds.json").read_text("utf-8"))["left_out"] == {}
    assert np.load(folder / "input/x_0.npy") == 2
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
