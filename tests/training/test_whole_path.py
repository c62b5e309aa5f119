"""The whole path: a training script under tfdbg, `tf_dump` by both engines, and a comparison with an NPU dump."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import by_tensor, only_result, tool
from small_tree import Node, small_tree
from training_side import WORD, run_script, tensorflow_python

pytestmark = pytest.mark.slow

#: Both scripts train one step of one layer.
MODEL = """
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

tf1 = tf.compat.v1
if tf.__version__[0] == "2":
    tf1.disable_eager_execution()

def layer(x):
    w = tf1.get_variable("layer/w", initializer=np.arange(12, dtype=np.float32).reshape(4, 3), use_resource=False)
    y = tf.nn.relu(tf.matmul(x, w, name="layer/matmul"), name="layer/relu")
    loss = tf.reduce_sum(tf.square(y, name="square"), name="loss")
    step = tf1.train.get_or_create_global_step()
    return loss, tf1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)

rows = np.random.RandomState(5).rand(2, 4).astype(np.float32)
"""

SESSION = """
x = tf1.placeholder(tf.float32, [None, 4], name="x")
text = tf.identity(tf.constant("a text"), name="text")
loss, train = layer(x)
sess = tf1.Session()
sess.run(tf1.global_variables_initializer())
sess = npu_tf_config.sess_dump(sess=sess)
sess.run([loss, train, text], feed_dict={x: rows})
"""

ESTIMATOR = """
def model(features, labels, mode):
    loss, train = layer(features["x"])
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train, training_hooks=[npu_tf_config.estimator_dump()])

def inputs():
    return tf.data.Dataset.from_tensors({"x": rows})

tf.estimator.Estimator(model).train(inputs, steps=1)
"""

#: Where `tf_dump` with TensorFlow's own analyzer writes.
ANALYZED = "analyzed"


@pytest.mark.parametrize(
    ("version", "script"),
    [("1.15", SESSION), ("1.15", ESTIMATOR), ("2.15", SESSION)],
    ids=["session-1.15", "estimator-1.15", "session-2.15"],
)
def test_a_script_s_tensors_are_compared(tmp_path: Path, version: str, script: str) -> None:
    python = tensorflow_python(version)
    run_script(python, MODEL + script, tmp_path)
    assert "written" in run_script(python, WORD, tmp_path, "tf_dump").out
    run_script(python, WORD, tmp_path, "tf_dump", "--engine", "tfdbg", "-o", ANALYZED)
    data = tmp_path / "precision_data"
    dump = data / "tf" / "dump"
    written = {path.name: path.read_bytes() for path in dump.iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / ANALYZED).iterdir()}

    # An NPU dump of the very same values, one of them wrong.
    tensors = {path.name.split(".")[0]: np.load(path) for path in dump.glob("*.0.*.npy")}
    ops = [("layer/matmul", "MatMul"), ("layer/relu", "Relu"), ("square", "Square")]
    goldens = [tensors[name.replace("/", "_")] for name, _ in ops]
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = np.random.RandomState(5).rand(2, 4).astype(np.float32)
    np.testing.assert_allclose(goldens[0], rows @ weights, rtol=1e-6)
    np.testing.assert_allclose(goldens[2], np.square(rows @ weights), rtol=1e-6)
    nodes = [Node(name="IteratorV2", type="IteratorV2")]
    for (name, kind), golden in zip(ops, goldens, strict=True):
        output = golden[::-1, ::-1].copy() if name == "square" else golden
        nodes.append(Node(name=name, type=kind, inputs=(nodes[-1],), output=output))
    small_tree(data, nodes)

    tool("vc", cwd=tmp_path)
    first = only_result(data / "temp")
    cosines = {name: float(row["CosineSimilarity"]) for name, row in by_tensor(first).items() if "output" in name}
    right, wrong = goldens[2].astype(np.float64).ravel(), goldens[2].astype(np.float64).ravel()[::-1]
    expected = right @ wrong / (right @ right)
    assert cosines.pop("square:output:0") == pytest.approx(expected, abs=1e-6)
    assert expected < 0.9
    assert cosines == {"layer/matmul:output:0": 1.0, "layer/relu:output:0": 1.0}

    # The run folder itself, without tf_dump, gives the same rows.
    dump.rename(tmp_path / "moved")
    shown = tool("--work", "second", "vc", cwd=tmp_path)
    assert "the benchmark is read from what tfdbg dumped (run_" in shown.out
    assert only_result(tmp_path / "second").read_bytes() == first.read_bytes()
