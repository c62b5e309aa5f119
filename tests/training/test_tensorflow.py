"""Real training scripts under real TensorFlow: dumped by tfdbg, saved by PrecisionTfSession, replayed by `train`.

Expected values are computed from the saved weights and inputs with plain numpy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    assert busy.startswith(
        f"told: another dump, of this script or of another one, writes to {folder}; dump one session"
    )
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
    assert first == f"sess_dump: TensorFlow runs eagerly, and there is no graph; {advice}"
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


FAILING = """
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

tf = tf.compat.v1
tf.disable_eager_execution()
x = tf.placeholder(tf.float32, [2], name="x")
checked = tf.check_numerics(1 / x, "checked")
session = npu_tf_config.sess_dump(sess=tf.Session())
try:
    session.run(checked, {x: [0, 1]})
except tf.errors.InvalidArgumentError as error:
    print("raised", "checked" in str(error))
print(session.run(checked, {x: [1, 2]}).tolist())
"""


@pytest.mark.parametrize("version", ["1.15", "2.15"])
def test_a_run_that_fails_raises(tmp_path: Path, version: str) -> None:
    assert run_script(tensorflow_python(version), FAILING, tmp_path).out.splitlines() == ["raised True", "[1.0, 0.5]"]


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
    for name in "abc":
        if name == "c":
            (tmp_path / "precision_config.py").write_text("DUMP_SEED = 7\n")
        ran = replay(python, tmp_path, "-d", "cpu")
        assert ", noise/RandomStandardNormal" in ran.out
        noise.append(result(tmp_path, "noise"))
        (tmp_path / "precision_data/tf/tf_debug").rename(tmp_path / name)
    np.testing.assert_array_equal(noise[0], noise[1])
    assert (noise[2] != noise[0]).any(), "another seed than the setting's"
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
    wrong = replay(python, tmp_path, "-a", "mixlist", extra=(site,), code=2)
    assert "error: action mixlist: there is no list yet" in wrong.err
    assert runs(tmp_path) == [], "the switches' mistakes come before the CPU's run"
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
    places = ("npu/debug_0", "tf")
    npu, cpu = (json.loads((tmp_path / "precision_data" / each / "passport.json").read_text()) for each in places)
    assert npu["variables"]
    assert "in/x:0" in [each["name"] for each in npu["batch"]]
    for part in ("variables", "batch", "optimizers", "seeds", "left_out"):
        assert npu[part] == cpu[part], "one checkpoint and one batch for both"
    assert npu["switches"]["fusion_switch_file"].startswith("fusion_off.cfg sha256:")


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
    whole = meta.read_bytes()
    meta.write_bytes(whole.replace(b"MatMul", b"NpuMul"))
    strange = replay(python, tmp_path, "-d", "cpu", code=2).err
    assert "ckpt.meta: cannot be imported (Op type not registered 'NpuMul'" in strange
    assert "hint: run this where that op's package is installed" in strange
    meta.write_bytes(whole[:1000])
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


# Each function is a script of its own, which saves into a data folder of its name.
SCRIPTS = """
import json, os, sys, time
import numpy as np
import tensorflow as tf
from precision_tool.tf_session import PrecisionTfSession

tf1 = tf.compat.v1
if tf.__version__[0] == "2":
    tf1.disable_eager_execution()
ones = np.ones((2, 3), np.float32)

def model(train=True):
    x = tf1.placeholder(tf.float32, [None, 3], name="x")
    y = tf1.placeholder(tf.float32, [None, 1], name="y")
    w = tf1.get_variable("w", [3, 1])
    p = tf.matmul(x, w)
    loss = tf.reduce_mean((p - y) ** 2)
    return x, y, w, p, tf1.train.GradientDescentOptimizer(0.1).minimize(loss) if train else loss

def evaluated_first():
    x, y, w, p, train = model()
    start = tf1.placeholder(tf.float32, [3, 1], name="start")
    set_w = w.assign(start)
    indices = tf.where(p > 0)
    sparse = tf.SparseTensor(indices, tf.gather_nd(p, indices), tf.shape(p, out_type=tf.int64))
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        sess.run(set_w, {start: np.ones((3, 1))})
        sess.run([p, {"sparse": sparse}], {x: ones})
        assert not folder("ckpt.index")
        sess.run([p, train], {x: 2 * ones, y: np.zeros((2, 1))})

def no_train_op():
    x, y, w, p, loss = model(train=False)
    start = tf1.placeholder(tf.float32, [3, 1], name="start")
    set_w = w.assign(tf.identity(start))
    resource = tf1.get_variable("resource", [3, 1], use_resource=True)
    set_resource = resource.assign(start)
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        sess.run([set_w, set_resource, w.assign(start).op], {start: np.ones((3, 1))})
        assert not folder("ckpt.index")
        sess.run(p, {x: ones})

def two_optimizers():
    x, y, w, p, first = model()
    z = tf1.placeholder(tf.float32, [], name="z")
    second = tf1.train.GradientDescentOptimizer(0.1, name="Other").minimize(tf.reduce_sum(w) * z)
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        sess.run(first, {x: ones, y: np.zeros((2, 1))})
        sess.run(second, {z: 1})

def handle():
    text = tf1.placeholder(tf.string, [], name="handle")
    rows = tf1.data.Dataset.from_tensors(ones).repeat()
    types = tf1.data.get_output_types(rows), tf1.data.get_output_shapes(rows)
    one = tf1.data.make_one_shot_iterator(rows)
    w = tf1.get_variable("w", [3, 1])
    value = tf.matmul(tf1.data.Iterator.from_string_handle(text, *types).get_next(), w)
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(value)
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        sess.run(train, {text: sess.run(one.string_handle())})

def uninitialised():
    with PrecisionTfSession() as sess:
        v = tf1.get_variable("v", [1])
        sess.run(tf.constant(1))
        sess.run(tf.constant(1))
        sess.run(v.initializer)
        sess.run(v)

def finalized(saver=None):
    x, y, w, p, train = model()
    other = tf1.get_variable("other", [3])
    mine = saver(w) if saver else None
    if mine is not None:
        tf1.add_to_collection("savers", mine)
    start = tf1.global_variables_initializer()
    tf1.get_default_graph().finalize()
    with PrecisionTfSession() as sess:
        sess.run(start)
        for number in range(4):
            sess.run(train, {x: ones, y: np.zeros((2, 1))})
            if mine is not None:
                mine.save(sess, folder("mine"), global_step=number)
    return [os.path.basename(path) for path in mine.last_checkpoints] if mine is not None else []

def finalized_with_saver():
    return finalized(lambda w: tf1.train.Saver(max_to_keep=2))

def finalized_with_saver_of_some():
    return finalized(lambda w: tf1.train.Saver([w], max_to_keep=2))

def finalized_after_start():
    x, y, w, p, train = model()
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        tf1.get_default_graph().finalize()
        sess.run(train, {x: ones, y: np.zeros((2, 1))})

def full_disk():
    x, y, w, p, train = model()
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        os.makedirs(os.path.join(folder(), "ckpt.index", "in the way"))
        for _ in range(2):
            sess.run(train, {x: ones, y: np.zeros((2, 1))})
        return "trained"

def folder_gone():
    x, y, w, p, train = model()
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        os.rmdir(folder())
        open(os.path.join(DATA, "tf", "checkpoints"), "w").close()
        for _ in range(2):
            sess.run(train, {x: ones, y: np.zeros((2, 1))})

def never_trained():
    x, y, w, p, train = model()
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        sess.run(p, {x: ones})

def left_by_a_killed_one():
    model()
    for name in (".input_old", ".input_new"):
        os.makedirs(os.path.join(folder(), name, "input"))
    os.utime(os.path.join(folder(), ".input_old"), (1, 1))
    with PrecisionTfSession() as sess:
        pass
    x = tf1.get_default_graph().get_tensor_by_name("x:0")
    with PrecisionTfSession() as sess:
        sess.run(tf1.global_variables_initializer())
        iterator = tf1.data.make_initializable_iterator(tf1.data.Dataset.from_tensors(x))
        sess.run(iterator.initializer, {x: ones})  # its input waits for the step
        (own,) = [name for name in os.listdir(folder()) if name.startswith(".input") and name != ".input_new"]
        os.utime(os.path.join(folder(), own), (1, 1))
        PrecisionTfSession().close()
        return [os.path.isdir(os.path.join(folder(), name)) for name in (".input_old", ".input_new", own)]

def folder(*parts):
    path = os.path.join(DATA, "tf", "checkpoints", *parts)
    return path if not parts or parts[0] == "mine" or os.path.lexists(path) else None

found = {}
for script in (evaluated_first, no_train_op, uninitialised, two_optimizers, handle, finalized, finalized_with_saver,
               finalized_with_saver_of_some, finalized_after_start, full_disk, folder_gone, never_trained,
               left_by_a_killed_one):
    DATA = os.environ["PRECISION_TOOL_DATA"] = os.path.abspath(script.__name__)
    with tf.Graph().as_default():
        print("script", script.__name__, file=sys.stderr, flush=True)
        returned = script()
        found[script.__name__] = returned
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What one of SCRIPTS left."""

    folder: Path
    returned: Any
    said: list[str]

    @property
    def files(self) -> set[str]:
        """The names in the folder of checkpoints."""
        return {path.name for path in self.folder.iterdir()}

    @property
    def manifest(self) -> Any:
        """The saved inputs' feeds.json."""
        return json.loads((self.folder / "input/feeds.json").read_text("utf-8"))

    @property
    def fed(self) -> list[str]:
        """The names of the saved inputs."""
        return [each["tensor"] for each in self.manifest["feeds"]]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Saved]]:
    """Runs SCRIPTS, once for each TensorFlow."""
    made: dict[str, dict[str, Saved]] = {}

    def run(version: str) -> dict[str, Saved]:
        if version not in made:
            cwd = tmp_path_factory.mktemp("scripts")
            ran = run_script(tensorflow_python(version), SCRIPTS, cwd)
            said: dict[str, list[str]] = {}
            for line in ran.err.splitlines():
                first, _, rest = line.partition(" ")
                if first == "script":
                    said[rest] = []
                elif first == "precision_tool:":
                    said[list(said)[-1]].append(rest)
            made[version] = {
                name: Saved(folder=cwd / name / "tf/checkpoints", returned=returned, said=said[name])
                for name, returned in ran.document.items()
            }
        return made[version]

    return run


Scripts = Callable[[str], dict[str, Saved]]


@VERSIONS
def test_the_step_that_trains_is_saved_not_an_evaluation_before(scripts: Scripts, version: str) -> None:
    saved = scripts(version)["evaluated_first"]
    assert saved.manifest["train_ops"] == ["GradientDescent"]
    assert saved.fed == ["x:0", "y:0"]
    np.testing.assert_array_equal(np.load(saved.folder / "input/x_0.npy"), np.full((2, 3), 2))
    assert len(saved.said) == 1


@VERSIONS
def test_without_a_train_op_the_first_run_is_saved(scripts: Scripts, version: str) -> None:
    saved = scripts(version)["no_train_op"]
    assert (saved.fed, saved.manifest["train_ops"]) == (["x:0"], [])
    (line,) = saved.said
    assert line.startswith(f"saved 1 fed input and checkpoint {saved.folder}/ckpt; the collection train_op is empty: ")


def test_of_two_optimizers_the_one_that_ran_is_replayed(scripts: Scripts, tmp_path: Path) -> None:
    saved = scripts("1.15")["two_optimizers"]
    assert saved.manifest["train_ops"] == ["GradientDescent"]
    shutil.copytree(saved.folder, tmp_path / "precision_data/tf/checkpoints")
    python = tensorflow_python("1.15")
    ran = replay(python, tmp_path, "-d", "cpu")
    assert "CPU: ran GradientDescent, fed x:0, y:0 -> " in ran.out
    manifest = saved.manifest | {"train_ops": ["w"]}
    (input_folder(tmp_path) / "feeds.json").write_text(json.dumps(manifest), "utf-8")
    strange = replay(python, tmp_path, "-d", "cpu", code=2).err
    assert "feeds.json: w ran, which is not a training op of precision_data/tf/checkpoints/ckpt.meta" in strange


def test_an_iterator_s_handle_is_named(scripts: Scripts, tmp_path: Path) -> None:
    saved = scripts("1.15")["handle"]
    reason = "an iterator's handle, which only its own session knows"
    assert saved.manifest["left_out"] == {"handle:0": reason}
    assert saved.said[1:] == [f"fed input handle:0 is not saved: {reason}"]
    shutil.copytree(saved.folder, tmp_path / "precision_data/tf/checkpoints")
    err = replay(tensorflow_python("1.15"), tmp_path, "-d", "cpu", code=2).err
    assert f"error: the saved step lacks inputs that it needs: handle:0 ({reason})" in err


@VERSIONS
def test_finalized_graphs(scripts: Scripts, version: str) -> None:
    found = scripts(version)
    saved = found["finalized_with_saver"]
    assert "ckpt.index" in saved.files, "the user's Saver keeps two files, and does not delete this one"
    assert saved.returned == ["mine-2", "mine-3"]
    assert found["finalized_after_start"].files >= {"ckpt.index", "ckpt.meta", "input"}
    for name in ("finalized", "finalized_with_saver_of_some"):
        (line,) = found[name].said
        assert line.startswith("the step is not saved: the graph is finalized, and has no Saver of all its variables; ")
        assert "tf.add_to_collection('savers', tf.train.Saver())" in line
        assert "ckpt.index" not in found[name].files
    assert found["finalized_with_saver_of_some"].returned == ["mine-2", "mine-3"], "and the training went on"


@VERSIONS
def test_the_training_goes_on_when_saving_fails(scripts: Scripts, version: str) -> None:
    saved = scripts(version)["full_disk"]
    assert saved.returned == "trained"
    (line,) = saved.said
    assert line.startswith(f"the step is not saved: {saved.folder}/ckpt cannot be saved (")
    assert "Is a directory" in line
    assert not [name for name in saved.files if name.startswith(".")]
    saved = scripts(version)["folder_gone"]
    line = f"the step is not saved: {saved.folder}: the fed inputs cannot be saved (Not a directory)"
    assert saved.said == [line]


@VERSIONS
def test_a_run_before_variables_are_initialised_is_not_the_step(scripts: Scripts, version: str) -> None:
    early, saved = scripts(version)["uninitialised"].said
    told = "Attempting to use uninitialized value v" if version == "1.15" else "Could not find variable v"
    assert early.startswith(f"the step is not saved: {told}")
    assert early.endswith("; initialise all variables first; a later run may be saved")
    assert saved.startswith("saved 0 fed inputs and checkpoint ")


def test_a_session_that_never_trained_says_so(scripts: Scripts) -> None:
    (line,) = scripts("1.15")["never_trained"].said
    assert line.startswith("no step is saved: no run has trained; what trains is what the collection train_op holds")


def test_what_a_killed_script_left_is_removed_and_what_is_in_use_is_not(scripts: Scripts) -> None:
    assert scripts("1.15")["left_by_a_killed_one"].returned == [False, True, True]


MISTAKES = """
import tensorflow as tf
from precision_tool.tf_session import PrecisionTfSession

tf1 = tf.compat.v1

with tf.Graph().as_default():
    print(PrecisionTfSession().run(tf.constant(1)))

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
    assert lines == ["1", "InvalidArgumentError", "ValueError", "TypeError"]
    none, saved = ran.err.splitlines()
    assert none == "precision_tool: the step is not saved: no checkpoint can be made (No variables to save)"
    assert saved.startswith("precision_tool: saved 1 fed input and checkpoint ")
    folder = tmp_path / "precision_data/tf/checkpoints"
    assert json.loads((folder / "input/feeds.json").read_text("utf-8"))["left_out"] == {}
    assert np.load(folder / "input/x_0.npy") == 2
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
