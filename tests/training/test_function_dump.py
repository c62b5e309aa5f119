"""One step of TensorFlow 2 as a benchmark: its tensors against numpy, its names against what npu_device traces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array
from command_line import by_tensor, only_result, tool
from small_tree import Node, small_tree
from training_side import run_script, tensorflow_python

from precision_tool import tf_config
from precision_tool.lib.messages import Message, render

HERE = Path(__file__).resolve().parents[1]
PATHS = (HERE.parent, HERE)

#: Trains four batches: without a dump, dumping the second, dumping the second of a model that runs eagerly, and
#: waiting for a fifth.
KERAS = """
import json, os
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config

random = np.random.RandomState(5)
x, y = random.rand(8, 4).astype("f4"), random.rand(8, 2).astype("f4")
kernels = [random.rand(4, 3).astype("f4") - 0.5, random.rand(3, 2).astype("f4") - 0.5]
np.savez("given.npz", x=x, y=y, hidden=kernels[0], out=kernels[1])

def train(run_eagerly, *callbacks):
    model = tf.keras.Sequential(name="net", layers=[
        tf.keras.layers.Dense(3, "relu", use_bias=False, name="hidden", input_shape=(4,)),
        tf.keras.layers.Dense(2, use_bias=False, name="out")])
    model.set_weights(kernels)
    model.compile(tf.keras.optimizers.SGD(0.5), "mse", run_eagerly=run_eagerly)
    history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks)).history
    return [history["loss"], [weight.tolist() for weight in model.get_weights()]]

trained = [train(False), train(False, npu_tf_config.keras_dump(step=1))]
os.rename("precision_data/tf/dump", "compiled")
trained.append(train(True, npu_tf_config.keras_dump(step=1)))
train(False, npu_tf_config.keras_dump(step=4))
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse", steps_per_execution=2)
try:
    model.fit(x, y, batch_size=2, verbose=0, callbacks=[npu_tf_config.keras_dump()])
except ValueError as error:
    trained.append(str(error))
print(json.dumps(trained))
"""


def tensors_in(folder: Path) -> dict[str, Array]:
    """The tensors of a folder by op and output, as the names of their files have them; each is there once."""
    tensors = {path.name.rsplit(".", 2)[0]: np.load(path) for path in folder.iterdir()}
    assert len(tensors) == len(list(folder.iterdir()))
    return tensors


def trained_step(x: Array, y: Array, hidden: Array, out: Array) -> dict[str, Array]:
    """What SGD computes of the two layers, in float64, under the names of Keras' graph."""
    product = x.astype(np.float64) @ hidden
    relu = np.maximum(product, 0)
    result = relu @ out
    gradient = (result - y) * 2 / y.size
    at_out = relu.T @ gradient
    at_relu = gradient @ out.T
    at_hidden = x.T @ (at_relu * (relu > 0))
    return {
        "net_hidden_MatMul.0": product,
        "net_hidden_Relu.0": relu,
        "net_out_MatMul.0": result,
        "mean_squared_error_weighted_loss_value.0": np.mean((result - y) ** 2),
        "gradient_tape_net_out_MatMul_MatMul_1.0": at_out,
        "gradient_tape_net_out_MatMul_MatMul.0": at_relu,
        "gradient_tape_net_hidden_MatMul_MatMul.0": at_hidden,
        "SGD_AssignAddVariableOp.0": hidden - at_hidden / 2,
        "SGD_AssignAddVariableOp_1.0": out - at_out / 2,
    }


@pytest.mark.slow
def test_a_batch_of_keras_fit(tmp_path: Path) -> None:
    ran = run_script(tensorflow_python("2.15"), KERAS, tmp_path, paths=PATHS)
    plain, compiled, eager, refusal = ran.document
    for losses, weights in (compiled, eager):
        np.testing.assert_allclose(losses, plain[0], rtol=1e-5)
        for weight, wanted in zip(weights, plain[1], strict=True):
            np.testing.assert_allclose(weight, wanted, rtol=1e-5, atol=1e-6)
    assert "steps_per_execution=1" in refusal
    assert render(Message("note.training.function.never", step=4, count=4), "en") in ran.err

    given: dict[str, Any] = dict(np.load(tmp_path / "given.npz"))
    x, y = given["x"], given["y"]
    first = trained_step(x[:4], y[:4], given["hidden"], given["out"])
    hidden, out = first["SGD_AssignAddVariableOp.0"], first["SGD_AssignAddVariableOp_1.0"]
    wanted = trained_step(x[4:], y[4:], hidden, out)
    data = tmp_path / "precision_data"
    dump = data / "tf" / "dump"
    tensors = tensors_in(tmp_path / "compiled")
    of_eager = tensors_in(dump)
    assert set(of_eager) == set(tensors)
    np.testing.assert_array_equal(tensors["IteratorGetNext.0"], x[4:])
    np.testing.assert_array_equal(tensors["IteratorGetNext.1"], y[4:])
    for dumped in (tensors, of_eager):
        for name, value in wanted.items():
            np.testing.assert_allclose(dumped[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    variables = json.loads((data / "tf" / "passport.json").read_text("utf-8"))["variables"]
    assert [each["name"] for each in variables] == ["hidden/kernel", "out/kernel"]

    # An NPU dump of the very same values, of which one op is wrong. Its variables have names of npu_device's own.
    source = Node(name="IteratorGetNext", type="IteratorGetNext", output=x[4:])
    weights = [
        Node(name=f"npu_AnonymousVar{number}", type="Variable", output=value.astype(np.float32))
        for number, value in enumerate((hidden, out))
    ]
    nodes = [source, *weights]
    product, relu = of_eager["net_hidden_MatMul.0"], of_eager["net_hidden_Relu.0"]
    nodes.append(Node(name="net/hidden/MatMul", type="MatMul", inputs=(source, weights[0]), output=product))
    nodes.append(Node(name="net/hidden/Relu", type="Relu", inputs=(nodes[-1],), output=relu))
    wrong = of_eager["net_out_MatMul.0"] * np.array([1, -1], np.float32)
    nodes.append(Node(name="net/out/MatMul", type="MatMul", inputs=(nodes[-1], weights[1]), output=wrong))
    small_tree(data, nodes)
    assert "net/out/MatMul" in tool("ls", cwd=tmp_path).out
    (result,) = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)["results"]
    assert (result["verdict"]["culprit"], result["verdict"]["cause"]) == ("net/out/MatMul", "kernel")
    rows = by_tensor(only_result(data / "temp"))
    cosines = {node.name: float(rows[f"{node.name}:output:0"]["CosineSimilarity"]) for node in nodes[3:]}
    assert cosines.pop("net/out/MatMul") < 0.98
    assert cosines == {"net/hidden/MatMul": 1.0, "net/hidden/Relu": 1.0}


#: A method that calls other functions, loops and branches, dumped at its second call; then all that goes wrong.
FUNCTIONS = """
import json, os, resource, sys
import numpy as np
import tensorflow as tf
import precision_tool.tf_config as npu_tf_config
from npu_standins import trace_as_npu_device

@tf.function
def nested(x):
    return tf.nn.relu(x, name="nested")

@tf.function
def branching(x):
    return x * 2 if tf.reduce_sum(x) > 0 else x

def step(self, x, scale):
    y = nested(tf.matmul(x, self.w, name="product"))
    y = branching(y)
    for number in tf.range(3):
        y += tf.cast(number, tf.float32)
    small = tf.cast(y, tf.bfloat16, name="narrow")
    self.w.assign_add(tf.ones_like(self.w))
    self.w.assign_sub(tf.ones_like(self.w) * scale, name="update")
    self.seen.assign(scale, name="unknown")
    if tf.reduce_sum(y) > 0:
        self.seen.assign(7.0)
    return {"sum": tf.reduce_sum(y, name="total"), "small": small}

class Layer(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(np.arange(6, dtype="f4").reshape(3, 2), name="w")
        self.seen = tf.Variable(0.0)
    plain = tf.function(step)
    dumped = npu_tf_config.function_dump(tf.function(step), step=1)

def refusal(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def there():
    return sorted(name.rsplit(".", 2)[0] for name in os.listdir("precision_data/tf/dump"))

x, plain, layer = tf.ones([2, 3]), Layer(), Layer()
for number in range(3):
    before = layer.w.numpy()
    wanted, result = plain.plain(x, 0.5), layer.dumped(x, 0.5)
    assert wanted["sum"] == result["sum"] and (plain.w.numpy() == layer.w.numpy()).all()
    if number == 1:
        np.savez("given.npz", before=before, after=layer.w, total=result["sum"])
os.rename("precision_data/tf/dump", "method")

def names_on_npu(function, *args):
    graph_of = type(Layer.plain)  # the class of functions
    call = graph_of.__call__
    trace_as_npu_device(graph_of)
    function(*args)
    names = {f"{op.name}:{slot}".replace("/", "_").replace(":", ".")
             for op in function.get_concrete_function(*args).graph.get_operations()
             for slot, tensor in enumerate(op.outputs) if tensor.dtype not in (tf.resource, tf.variant, tf.string)}
    graph_of.__call__ = call
    return sorted(names)

on_npu = Layer()
names = names_on_npu(on_npu.plain, x, 0.5)

class Once(tf.Module):
    def __init__(self):
        super().__init__()
        self.v, self.made, self.inlined = tf.Variable(0.0), None, tf.Variable(0.0)
    @tf.function
    def deepest(self, x):
        self.v.assign_add(1.0)
        return self.branching(x)
    @tf.function
    def branching(self, x):
        if self.made is None:
            self.made = tf.Variable(tf.fill([2], 5.0))
        self.v.assign_add(1.0)
        self.made.assign_add(x)
        with tf.name_scope("left"):
            left = tf.square(x + 1, name="over")
        if tf.reduce_sum(left) > 0:
            return x * 2
        return x
    @tf.function
    def second(self, x):
        if tf.reduce_sum(x, name="tried") > 0:
            return x * 3
        return x
    @tf.function
    def first(self, x):
        return tf.exp(self.second(tf.exp(x))) + nested(x)
    @tf.function
    def outer(self, x):
        self.inlined.assign_add(1.0)
        x = self.first(x)
        with tf.name_scope("scope"):
            y = self.branching(tf.negative(x))
        if tf.reduce_sum(x) > 0:
            y += self.deepest(x)
        return tf.reduce_sum(tf.square(self.deepest(y)), name="end")
    @tf.function
    def failing(self, x):
        self.v.assign_add(1.0)
        raise KeyError("own")
    @tf.function
    def catching(self, x):
        try:
            self.failing(x)
        except KeyError:
            return x + 1

def state(once):
    return [float(once.v), float(once.inlined), once.made.numpy().tolist()]

pair = tf.ones([2])
once, dumped_once = Once(), Once()
wanted = once.outer(pair)
assert npu_tf_config.function_dump(dumped_once.outer)(pair) == wanted
assert state(dumped_once) == state(once), (state(dumped_once), state(once))
dumped_once, on_npu = Once(), Once()
dumped_once.made, on_npu.made = tf.Variable([5.0, 5.0]), tf.Variable([5.0, 5.0])
npu_tf_config.function_dump(dumped_once.outer)(pair)
assert state(dumped_once) == state(once), (state(dumped_once), state(once))
once = [there(), names_on_npu(on_npu.outer, pair)]
catching = Once()
assert npu_tf_config.function_dump(catching.catching)(pair).numpy().tolist() == [2.0, 2.0]
assert float(catching.v) == 0.0
variable = tf.Variable(0.0)
@tf.function
def once_only(x):
    variable.assign_add(1.0)
    if tf.reduce_sum(x, name="tested") > 0:
        return x + 1
    return x
npu_tf_config.function_dump(lambda x: tf.square(once_only(x)))(pair)
assert variable == 1.0, "what has an effect has it once"
simple = there()

tf.config.run_functions_eagerly(True)
eager = npu_tf_config.function_dump(lambda x: nested(x) + 1.0)
assert eager(tf.constant([-1.0, 2.0])).numpy().tolist() == [1.0, 3.0]
assert tf.config.functions_run_eagerly()
tf.config.run_functions_eagerly(False)
tensors = there()

inner = npu_tf_config.function_dump(tf.function(lambda x: x + 1))
outer = tf.function(lambda x: inner(x))
outer(x)
assert there() == tensors, "a call inside of a trace is no step"

variable = tf.Variable(0.0)
def large(x):
    variable.assign_add(1.0)
    return tf.reduce_sum(x * 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (100000, resource.RLIM_INFINITY))
full = refusal(lambda: npu_tf_config.function_dump(large)(tf.ones([50000])))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert there() == tensors and sorted(os.listdir("precision_data/tf")) == ["dump", "graph", "passport.json"]
assert variable.numpy() == 1.0, "the step itself is done"

untraced = refusal(lambda: npu_tf_config.function_dump(lambda x: float(x.numpy().sum()))(x))
sys.modules["npu_device"] = sys
assert npu_tf_config.function_dump(lambda x: 7)(x) == 7
assert there() == tensors
del sys.modules["npu_device"]
tf.compat.v1.disable_eager_execution()
tf.compat.v1.disable_v2_behavior()
graphs = refusal(lambda: npu_tf_config.function_dump(lambda x: x)(1))
print(json.dumps([names, tensors, once, simple, full, untraced, graphs]))
"""


@pytest.mark.slow
def test_a_call_of_a_function(tmp_path: Path) -> None:
    ran = run_script(tensorflow_python("2.15"), FUNCTIONS, tmp_path, paths=PATHS)
    names, tensors, once, simple, full, untraced, graphs = ran.document
    method = tensors_in(tmp_path / "method")
    given = np.load(tmp_path / "given.npz")
    product = np.ones((2, 3)) @ given["before"]
    np.testing.assert_array_equal(method["product.0"], product)
    np.testing.assert_array_equal(method["nested.0"], np.maximum(product, 0))
    np.testing.assert_array_equal(method["total.0"], given["total"])
    assert (method["narrow.0"].dtype.str, method["narrow.0"].shape) == ("|V2", (2, 2))
    np.testing.assert_array_equal(method["update.0"], given["after"])
    # Of a variable only its last assignment is known, and of one that a branch may change none. npu_device's graph has
    # no op that reads it.
    # What stands for a variable has the tensor that the variable was before the step.
    before = method["product_ReadVariableOp_resource.0"]
    np.testing.assert_array_equal(before, given["before"])
    assert set(method) - set(names) == {"update.0", "product_ReadVariableOp_resource.0", "unknown_resource.0"}
    missing = {name for name in set(names) - set(method) if not name.startswith("Identity")}
    # npu_device leaves what it traced of `branching` before that failed.
    assert missing == {"Const.0", "Sum.0", "Greater_y.0", "Greater.0"}
    inside = Message("note.training.function.inside", count=3, first=["PartitionedCall", "while", "cond"])
    assert render(inside, "en") in ran.err
    assert tensors == ["add.0", "add_y.0", "nested.0", "x.0"]
    assert simple == ["Square.0", "StatefulPartitionedCall.0", "x.0"]
    dumped, on_npu = map(set, once)
    dumped = {name for name in dumped if not re.fullmatch(r"scope_\d+\.0", name)}  # what stands for a variable
    assert {name for name in dumped - on_npu if not name.startswith("AssignAddVariableOp")} == set()
    left = {"Const_1.0", "Greater.0", "Greater_y.0", "Identity.0", "tried.0"}
    assert {name for name in on_npu - dumped if not name.startswith("scope_")} == left
    assert {name for name in dumped if name.startswith("scope_")} == {"scope_Neg.0", "scope_StatefulPartitionedCall.0"}
    assert full.startswith("OutputError")
    assert "large" in full
    assert untraced.startswith("ScriptError: <lambda> cannot be traced as a graph: AttributeError")
    assert "sess_dump" in graphs


@pytest.mark.parametrize("step", [-1, True, "1"])
def test_mistakes(work: Path, step: Any) -> None:
    with pytest.raises(ValueError, match="from 0 up"):
        tf_config.function_dump(print, step=step)
    with pytest.raises(ValueError, match="takes a function, not a"):
        tf_config.function_dump(step)
