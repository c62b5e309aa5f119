"""Dropouts and seeds in graphs that TensorFlow has made: changed, imported and run, a dropout is the identity."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_side import run_script, tensorflow_python

GRAPHS = """
import json
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util
from precision_tool.lib.training.randomness import fix_randomness

tf1 = tf.compat.v1

def constant(x, rate):
    return tf.nn.dropout(x, rate=0.5)

def fed(x, rate):
    return tf.nn.dropout(x, rate=rate)

def computed(x, rate):
    return tf.nn.dropout(x, rate=rate * 0.5, noise_shape=[6, 1])

def shared(x, rate):
    half = tf.constant(0.5, name="half")
    return tf.nn.dropout(tf.nn.dropout(x, rate=half), rate=half) * half * 2.0

def half_precision(x, rate):
    return tf.cast(tf.nn.dropout(tf.cast(x, tf.float16), rate=0.25), tf.float32)

def in_branch(x, rate):
    return tf1.cond(rate > 0, lambda: tf.nn.dropout(x, rate=0.5), lambda: x * 0)

def fed_in_branch(x, rate):
    return tf1.cond(rate > 0, lambda: tf.nn.dropout(x, rate=rate), lambda: x * 0)

def in_loop(x, rate):
    body = lambda i, y: (i + 1, tf.nn.dropout(y, rate=rate))
    return tf1.while_loop(lambda i, y: i < 3, body, (tf.constant(0), x))[1]

def layer(x, rate):
    return tf.keras.layers.Dropout(0.5)(x, training=True)

def seeded(x, rate):
    return tf.nn.dropout(x, rate=0.5, seed=3)

def old_way(x, rate):
    return tf1.nn.dropout(x, keep_prob=0.5)

def by_hand(x, rate):  # at top level, two that share a rate
    for _ in range(2):
        x = x * tf.cast(tf1.random_uniform([6, 4]) >= rate, tf.float32) / (1.0 - rate)
    return x

def by_hand_scaled_first(x, rate):
    with tf.name_scope("net"):
        return tf.where(tf1.random_uniform([6, 4]) >= rate, x * (1.0 / (1.0 - rate)), tf.zeros_like(x))

def mixture(x, rate):  # random choices that must stay
    choice = tf.cast(tf1.random_uniform([6, 4]) >= rate, tf.float32)
    return choice * x + (1.0 - rate) * x

def weighted(x, rate):
    return tf.cast(tf1.random_uniform([6, 4]) >= rate, tf.float32) * x * (1.0 - rate)

def weighted_constant(x, rate):
    return tf.where(tf1.random_uniform([6, 4]) >= 0.3, x * 0.7, tf.zeros_like(x))

def no_dropout(x, rate):  # a random choice that must stay one
    return tf.where(tf1.random_uniform([6, 4]) >= 0.5, x, tf.zeros_like(x))

values = np.arange(1, 25, dtype=np.float32).reshape(6, 4)

def run(graph_def):
    with tf1.Graph().as_default():
        y, = tf1.import_graph_def(graph_def, return_elements=["y:0"], name="")
        with tf1.Session() as session:
            return session.run(y, {"x:0": values, "rate:0": 0.5})

found = {}
for build in (constant, fed, computed, shared, half_precision, in_branch, fed_in_branch, in_loop, layer, seeded,
              old_way, by_hand, by_hand_scaled_first, no_dropout, mixture, weighted, weighted_constant):
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [6, 4], name="x")
        rate = tf1.placeholder(tf.float32, [], name="rate")
        tf.identity(build(x, rate), name="y")
    graph_def = graph.as_graph_def()
    text = graph_def.SerializeToString(deterministic=True)
    before = run(graph_def)
    fixed = fix_randomness(graph_def, 0, tensor_util)
    after, again = run(graph_def), run(graph_def)
    found[build.__name__] = [
        bool((before == values).all()), bool((after == values).all()), bool((after == again).all()), len(fixed.rates),
        len(fixed.seeds), len(fixed.unknown), len(graph_def.node) - len(type(graph_def).FromString(text).node),
    ]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.15", "2.15"])
def test_dropouts_become_the_identity(tmp_path: Path, version: str) -> None:
    found = run_script(tensorflow_python(version), GRAPHS, tmp_path).document
    for name in ("no_dropout", "mixture", "weighted", "weighted_constant"):
        assert found.pop(name) == [False, False, True, 0, 1, 0, 0], name
    rates = {name: each[3] for name, each in found.items()}
    assert rates == dict.fromkeys(found, 1) | {"shared": 2, "by_hand": 2}
    seeds = {name: each[4] for name, each in found.items()}
    assert seeds == dict.fromkeys(found, 1) | {"shared": 2, "by_hand": 2, "seeded": 0}
    for name, (before, after, again, _, _, unknown, _) in found.items():
        assert (before, after, again, unknown) == (False, True, True, 0), name
