"""A training step of real TensorFlow: from its saved graph and its tensors every op that computes is recomputed.

The networks have convolution, batch norm, attention, layer norm, dense layers, cross entropy, Adam and momentum. In
float64, from what it was fed, each op gives what TensorFlow computed, within the rounding of float32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_side import run_script, tensorflow_python

from precision_tool.lib.data.benchmark_step import benchmark_step
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.emulation import Rounding, StepEmulator
from precision_tool.lib.diagnose.op_values import RunValues
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import State

HERE = Path(__file__).resolve().parents[1]
PATHS = (HERE.parent, HERE)

SESSION = """
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config
tf.set_random_seed(3)
r = np.random.RandomState(3)
images = tf.placeholder(tf.float32, [4, 8, 8, 3], name="images")
labels = tf.placeholder(tf.int32, [4], name="labels")
x = tf.layers.conv2d(images, 4, 3, padding="same", name="conv")
x = tf.nn.relu(tf.layers.batch_normalization(x, training=True, name="bn"))
x = tf.layers.max_pooling2d(x, 2, 2)
x = tf.reshape(x, [4, 16, 4])
q, k, v = (tf.layers.dense(x, 8, name=n) for n in "qkv")
split = lambda t: tf.transpose(tf.reshape(t, [4, 16, 2, 4]), [0, 2, 1, 3])
scores = tf.matmul(split(q), split(k), transpose_b=True) * 0.5
mix = tf.matmul(tf.nn.softmax(scores), split(v))
mix = tf.reshape(tf.transpose(mix, [0, 2, 1, 3]), [4, 16, 8])
mix = tf.concat([mix, x], -1)
mean, variance = tf.nn.moments(mix, [-1], keepdims=True)
gamma = tf.get_variable("ln/gamma", [12], initializer=tf.ones_initializer())
beta = tf.get_variable("ln/beta", [12], initializer=tf.zeros_initializer())
y = tf.nn.batch_normalization(mix, mean, variance, beta, gamma, 1e-6)
y = y[:, 1:, :]
y = tf.reduce_mean(tf.nn.tanh(y), axis=1)
logits = tf.layers.dense(y, 5, name="out")
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
other = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.one_hot(labels, 5), logits=logits * 0.5))
names = tf.trainable_variables()
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train = tf.group(
        tf.train.AdamOptimizer(0.01).minimize(loss + other, var_list=names[:6]),
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, var_list=names[6:]))
config = tf.ConfigProto(device_count={"GPU": 0})
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = -1
feed = {images: r.rand(4, 8, 8, 3), labels: [0, 1, 4, 2]}
with tf.Session(config=config) as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train, feed)
    sess = npu_tf_config.sess_dump(sess)
    print(float(sess.run([train, loss], feed)[1]))
"""

FUNCTION = """
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config
tf.random.set_seed(3)
r = np.random.RandomState(3)
L = tf.keras.layers
inputs = tf.keras.Input((8, 8, 3), batch_size=4)
x = L.Conv2D(4, 3, padding="same")(inputs)
x = L.ReLU()(L.BatchNormalization()(x))
x = L.MaxPooling2D(2)(x)
x = L.Reshape((16, 4))(x)
x = L.Concatenate()([L.MultiHeadAttention(2, 4)(x, x), x])
x = L.LayerNormalization()(x)
x = L.Activation("gelu")(x)
x = L.GlobalAveragePooling1D()(x[:, 1:])
logits = L.Dense(5)(x)
model = tf.keras.Model(inputs, logits)
first, second = tf.keras.optimizers.Adam(0.01), tf.keras.optimizers.legacy.Adam(0.01)
third = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)
weights = model.trainable_variables
@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        dense = tf.keras.losses.categorical_crossentropy(tf.one_hot(labels, 5), logits, from_logits=True)
        loss += tf.reduce_mean(dense)
    grads = tape.gradient(loss, weights)
    first.apply_gradients(zip(grads[:4], weights[:4]))
    second.apply_gradients(zip(grads[4:8], weights[4:8]))
    third.apply_gradients(zip(grads[8:], weights[8:]))
    return loss
step = npu_tf_config.function_dump(step, step=1)
images, labels = tf.constant(r.rand(4, 8, 8, 3), tf.float32), tf.constant([0, 1, 4, 2])
print([float(step(images, labels)) for _ in range(2)][1])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "script", "graph", "optimizers"),
    [("1.15", SESSION, "session", {"ApplyAdam", "ApplyMomentum"}),
     ("2.15", FUNCTION, "function", {"ResourceApplyAdam", "ResourceApplyKerasMomentum"})],
)  # fmt: skip
def test_every_op_of_a_step(tmp_path: Path, version: str, script: str, graph: str, optimizers: set[str]) -> None:
    ran = run_script(tensorflow_python(version), script, tmp_path, paths=PATHS)
    space = Workspace(tmp_path / "precision_data")
    step = benchmark_step(space)
    assert step.file.path == str(space.tf_graph_dir / f"{graph}.pb")
    recomputer = Recomputer(RunValues(step.leaf, step.file, step.side))
    results = [recomputer.recompute(op) for op in recomputer.computing]
    wrong = {(result.op.type, result.op.name): result.reason for result in results if result.state is not State.RIGHT}
    assert wrong == {}
    assert len(results) > 200
    assert optimizers <= {result.op.type for result in results}

    # The whole step, each op from what the ops before it gave: the loss is TensorFlow's.
    emulator = StepEmulator(recomputer)
    assert [op.name for op in emulator.ops if emulator.check(op) is not None] == []
    loss = emulator.loss
    assert loss is not None
    everything = emulator.run(lambda op: Rounding(output="float32"), wanted=[loss])
    assert (everything.ops, everything.stopped) == (len(emulator.ops), {})
    np.testing.assert_allclose(everything.values[loss.key], ran.document, rtol=1e-6)
