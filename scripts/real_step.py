"""One training step of a small LeNet under TensorFlow 1.15, as tfdbg dumped it: tests/data/real_step.tar.xz.

The step is done twice from the same weights: in float32, the benchmark, and in float16 with variables in float32, as
a device in mixed precision does it. In the second the output of conv2 is fed with what a faulty kernel might give, so
that everything behind it is what TensorFlow really computes from that. Runs on Python 3.7; scripts/real_step makes the
archive.

usage: real_step.py FOLDER        (an empty folder)
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.debug.wrappers.dumping_wrapper import DumpingDebugWrapperSession

#: The op of the training script whose output is wrong on the device: the second half of its channels was not written.
FAULTY = "conv2/Relu"
BATCH, SIZE, CLASSES = 4, 12, 10
RUNS = {"benchmark": tf.float32, "device": tf.float16}


def in_float32(dtype):
    """Variables in float32, which ops get in `dtype`."""

    def get(getter, name, shape=None, dtype=None, **options):
        variable = getter(name, shape=shape, dtype=tf.float32, **options)
        return variable if dtype in (None, tf.float32) else tf.cast(variable, dtype, name=name + "/Cast")

    return tf.variable_scope("", custom_getter=get, dtype=dtype)


def network(dtype):
    """Placeholders, loss and training op."""
    image = tf.placeholder(tf.float32, [BATCH, SIZE, SIZE, 1], name="image")
    label = tf.placeholder(tf.int64, [BATCH], name="label")
    with in_float32(dtype):
        x = image if dtype == tf.float32 else tf.cast(image, dtype, name="image_cast")
        x = tf.layers.conv2d(x, 6, 3, padding="same", activation=tf.nn.relu, name="conv1")
        x = tf.layers.max_pooling2d(x, 2, 2, name="pool1")
        x = tf.layers.conv2d(x, 10, 3, padding="same", activation=tf.nn.relu, name="conv2")
        x = tf.layers.max_pooling2d(x, 2, 2, name="pool2")
        x = tf.layers.flatten(x, name="flatten")
        x = tf.layers.dense(x, 24, activation=tf.nn.relu, name="fc1")
        logits = tf.layers.dense(x, CLASSES, name="fc2")
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits, name="cross_entropy")
        loss = tf.reduce_mean(each, name="loss")
    return image, label, loss, tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)


def attributes(op):
    """What an op is told beside its inputs."""
    found = {}
    for name in ("strides", "ksize", "padding", "dilations", "data_format", "transpose_a", "transpose_b"):
        if name in op.node_def.attr:
            value = op.get_attr(name)
            found[name] = value.decode("ascii") if isinstance(value, bytes) else value
    return found


def step(folder, name, weights):
    """Dumps one step to FOLDER/NAME, and its ops to FOLDER/NAME.json; returns the weights it began with."""
    tf.reset_default_graph()
    tf.set_random_seed(3)
    random = np.random.RandomState(3)
    image, label, loss, train = network(RUNS[name])
    # One thread and no rewriting: the same sums in the same order, and every op under its own name.
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    fed = {image: random.rand(BATCH, SIZE, SIZE, 1), label: random.randint(0, CLASSES, BATCH)}
    session = tf.Session(config=config)
    session.run(tf.global_variables_initializer())
    variables = tf.global_variables()
    for variable, value in zip(variables, weights or ()):  # noqa: B905  # Python 3.7
        variable.load(value, session)
    weights = session.run(variables)
    place = os.path.join(folder, name)
    before = session.graph.get_operation_by_name(FAULTY).inputs[0]  # which nothing needs where its reader is fed
    if name == "device":
        output = session.graph.get_tensor_by_name(FAULTY + ":0")
        fed[output] = session.run(output, fed) * (np.arange(10) < 5)
        np.save(place + "_fed.npy", fed[output].astype(np.float16))
    ops = [
        {
            "name": op.name,
            "type": op.type,
            "inputs": [tensor.name for tensor in op.inputs],
            "outputs": [tensor.dtype.base_dtype.name for tensor in op.outputs],
            "attributes": attributes(op),
        }
        for op in session.graph.get_operations()
    ]
    with open(place + ".json", "w") as file:
        json.dump(ops, file, indent=0, sort_keys=True)
    DumpingDebugWrapperSession(session, place, log_usage=False).run([loss, train, before], fed)
    keep_tensors(place)
    return weights


def main(folder):
    """Dumps both steps."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    weights = None
    for name in RUNS:
        weights = step(folder, name, weights)


def keep_tensors(place):
    """Leaves the tensors of a run: its graphs are large, and graph.json says what tests need."""
    for run in os.listdir(place):
        for name in os.listdir(os.path.join(place, run)):
            path = os.path.join(place, run, name)
            if os.path.isfile(path):
                os.unlink(path)
            else:
                for graph in os.listdir(path):
                    if graph.startswith("_tfdbg_graph_"):
                        os.unlink(os.path.join(path, graph))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]) or os.listdir(sys.argv[1]):
        sys.exit(__doc__)
    main(sys.argv[1])
