"""`tf_dump` on what real releases of TensorFlow dump: both engines against each other and against TensorFlow itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_side import TENSORFLOWS, WORD, run_script, tensorflow_python

#: Tensors of every type, a loop, texts, resources, an uninitialized variable; the values are saved as session.run
#: gives them, under the names of the tensors.
TRAIN = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.python import debug as tf_debug
tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.disable_control_flow_v2()
tf1.set_random_seed(3)
random = np.random.RandomState(3)
names = ("float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128 "
         "bfloat16 qint8 quint8 qint32").split()
feeds = {tf1.placeholder(getattr(tf, name), [None, 3], name="in_" + name): random.rand(5, 3) * 100 for name in names}
for place, values in feeds.items():
    dtype = np.dtype(place.dtype.as_numpy_dtype)
    feeds[place] = values.astype(np.int32).astype(dtype[0] if dtype.names else dtype).astype(dtype)
fetched = {place.name[3:-2]: tf1.identity(place, name="scope.x/id_" + place.name[3:-2]) for place in feeds}
text = tf1.identity(tf1.constant(["a", "bc"]), name="text")
old = tf1.Variable(1.5 * tf1.ones([2, 2]), name="old", use_resource=False)
new = tf1.Variable(1.5 * tf1.ones([2, 2]), name="new", use_resource=True)
never = tf1.is_variable_initialized(tf1.Variable(0.0, name="never", use_resource=False))
fetched["empty"] = tf1.identity(tf1.zeros([3, 0]), name="scope.x/id_empty")
fetched["scalar"] = tf1.identity(tf1.constant(2.5), name="scope.x/id_scalar")
count, loop = tf1.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, tf1.multiply(a, 2, name="twice")),
                             [tf1.constant(0), tf1.ones([2, 3])], name="loop")
none = tf1.OptimizerOptions(opt_level=-1)
config = tf1.ConfigProto(graph_options=tf1.GraphOptions(optimizer_options=none))
with tf1.Session(config=config) as session:
    session.run([old.initializer, new.initializer])
    session = tf_debug.DumpingDebugWrapperSession(session, sys.argv[1])
    for _ in range(2):
        values = session.run([fetched, text, old + 1, new.read_value() + 1, never, loop], feed_dict=feeds)[0]
np.savez(sys.argv[2], **{name: np.asarray(value).view("u1") if np.asarray(value).dtype.kind == "V" and value.size
                         else value for name, value in values.items()})
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", TENSORFLOWS)
def test_both_engines_agree_with_tensorflow(version: str, tmp_path: Path) -> None:
    python, data, dump = tensorflow_python(version), str(tmp_path), tmp_path / "tf" / "dump"
    run_script(python, TRAIN, tmp_path, f"{data}/tf/tf_debug", f"{data}/values.npz")
    out = run_script(python, WORD, tmp_path, "--data", data, "tf_dump").out
    native = {path.name: path.read_bytes() for path in dump.iterdir()}
    for why in ("skipped 1: not initialized (the first: never:0)", "resource", "string"):
        assert why in out
    assert "not read" not in out

    wanted = np.load(tmp_path / "values.npz")
    compared = set()
    for path in dump.glob("scope_x_id_*"):
        name = path.name.split(".")[0][len("scope_x_id_") :]
        assert np.load(path).tobytes() == wanted[name].tobytes(), name
        compared.add(name)
    assert compared == set(wanted.files)
    assert len(compared) == 20
    # A tensor of a loop is there as often as it ran.
    assert sorted(np.load(path).reshape(-1)[0] for path in dump.glob("loop_twice.0.*")) == [2, 4, 8, 16]

    out = run_script(
        python, WORD, tmp_path, "--data", data, "tf_dump", "--engine", "tfdbg", "-o", f"{data}/analyzer"
    ).out
    assert "not read" not in out
    analyzed = {path.name: path.read_bytes() for path in (tmp_path / "analyzer").iterdir()}
    assert sorted(analyzed) == sorted(native)
    assert analyzed == native
