"""The demo's files, numbers and truth, against formulas written out plainly here."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from builders import graph_op, one_op_tree, text_graph
from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.demo import device as faults
from precision_tool.lib.demo import dump_writer, generate, network, numerics
from precision_tool.lib.demo import generate as folder
from precision_tool.lib.demo import graph_writer as compiled_graphs
from precision_tool.lib.demo import network as layers
from precision_tool.lib.demo.device import Machine, Step, Streamed
from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name, golden_file_name, pack
from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.io.data_types import BY_CODE
from precision_tool.lib.io.proto_text import escape
from precision_tool.lib.messages.errors import OutputError, UsageError

Array = npt.NDArray[Any]


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- storage layouts ---------------------------------------------------------------------------------------

extents = st.integers(1, 35)
small = st.integers(1, 3)


def indices(array: Array) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, array.shape))


def check_packed(array: Array, packed: Array, shape: tuple[int, ...], place: Callable[..., tuple[int, ...]]) -> None:
    """Every element is at its place, and everything else is zero."""
    expected = np.zeros(shape, array.dtype)
    for index in indices(array):
        expected[place(*index)] = array[index]
    assert packed.flags.c_contiguous
    np.testing.assert_array_equal(packed, expected)


@given(n=small, h=small, w=small, c=extents)
def test_nc1hwc0(n: int, h: int, w: int, c: int) -> None:
    nhwc = values(n, h, w, c)
    shape = (n, -(-c // 16), h, w, 16)
    check_packed(nhwc, pack(nhwc, "NC1HWC0", "NHWC"), shape, lambda n, h, w, c: (n, c // 16, h, w, c % 16))
    nchw = values(n, c, h, w)
    check_packed(nchw, pack(nchw, "NC1HWC0", "NCHW"), shape, lambda n, c, h, w: (n, c // 16, h, w, c % 16))


@given(n=small, d=small, c=extents)
def test_ndc1hwc0(n: int, d: int, c: int) -> None:
    array = values(n, d, 2, 3, c)
    shape = (n, d, -(-c // 16), 2, 3, 16)
    packed = pack(array, "NDC1HWC0", "NDHWC")
    check_packed(array, packed, shape, lambda n, d, h, w, c: (n, d, c // 16, h, w, c % 16))
    np.testing.assert_array_equal(pack(array.transpose(0, 4, 1, 2, 3), "NDC1HWC0", "NCDHW"), packed)


@given(lead=st.lists(small, max_size=2), rows=extents, columns=extents)
def test_fractal_nz(lead: list[int], rows: int, columns: int) -> None:
    array = values(*lead, rows, columns)
    shape = (*lead, -(-columns // 16), -(-rows // 16), 16, 16)
    packed = pack(array, "FRACTAL_NZ", "ND")
    check_packed(array, packed, shape, lambda *i: (*i[:-2], i[-1] // 16, i[-2] // 16, i[-2] % 16, i[-1] % 16))


@given(h=small, w=small, c=extents, n=extents)
def test_fractal_z(h: int, w: int, c: int, n: int) -> None:
    array = values(h, w, c, n)
    shape = (-(-c // 16) * h * w, -(-n // 16), 16, 16)

    def place(y: int, x: int, channel: int, count: int) -> tuple[int, ...]:
        return channel // 16 * h * w + y * w + x, count // 16, count % 16, channel % 16

    packed = pack(array, "FRACTAL_Z", "HWCN")
    check_packed(array, packed, shape, place)
    np.testing.assert_array_equal(pack(array.transpose(3, 2, 0, 1), "FRACTAL_Z", "NCHW"), packed)


def test_plain_layouts_stay_and_unknown_pairs_are_refused() -> None:
    array = values(2, 3)
    assert pack(array, "ND", "ND") is array
    assert pack(np.ones(()), "ND", "ND").shape == ()
    for layout, origin in (("NC1HWC0", "HWCN"), ("FRACTAL_Z", "ND"), ("NDC1HWC0", "NHWC"), ("NCHW", "NHWC")):
        with pytest.raises(ValueError, match=layout):
            pack(array, layout, origin)


# ---- dump files, by a decoder of a few lines ---------------------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def message(data: bytes) -> dict[int, list[Any]]:
    """Field number → values; varints as int, the rest as bytes."""
    fields: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            fields[tag >> 3].append(data[at : at + value])
            at += value
        else:
            assert tag & 7 == 0
            fields[tag >> 3].append(value)
    return fields


def dims(shape: bytes) -> list[int]:
    packed = message(shape)[1]
    result, at = [], 0
    while packed and at < len(packed[0]):
        value, at = varint(packed[0], at)
        result.append(value)
    return result


def split_dump(path: Path) -> tuple[dict[int, list[Any]], bytes]:
    """Header and data of a version 2 file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return message(content[8 : 8 + length]), content[8 + length :]


TENSOR_IN = OutTensor.packed(values(2, 3, 3, 20, dtype="float16"), "NC1HWC0", "NHWC", address=0x124080000200)
TENSOR_OUT = OutTensor.packed(values(5, 7), "FRACTAL_NZ", "ND", original_op=("block/add", 1), address=1 << 40)
SCALAR = OutTensor(data=np.array(3, np.int64), origin_shape=())


def test_dump_version_2(tmp_path: Path) -> None:
    size = dump_writer.write_dump(tmp_path / "x", "block/add", [TENSOR_IN, SCALAR], [TENSOR_OUT], dump_time=1 << 50)
    header, data = split_dump(tmp_path / "x")
    assert size == (tmp_path / "x").stat().st_size
    assert header[1] == [b"2.0"]
    assert header[2] == [1 << 50]
    assert header[6] == [b"block/add"]
    first, second = map(message, header[4])
    assert (first[1], first[2], first[5], first[8]) == ([2], [3], [2 * 2 * 9 * 16 * 2], [0x124080000200])
    assert dims(first[3][0]) == [2, 2, 3, 3, 16]
    assert dims(first[6][0]) == [2, 3, 3, 20]
    assert (second[1], second[2], second[5], second[10]) == ([8], [2], [8], [1])
    assert dims(second[3][0]) == dims(second[6][0]) == []
    (output,) = map(message, header[3])
    assert (output[1], output[2], output[6], output[9]) == ([1], [29], [1024], [1 << 40])
    assert (dims(output[3][0]), dims(output[7][0])) == ([1, 1, 16, 16], [5, 7])
    original = message(output[4][0])
    assert (original[1], original[2], original[4]) == ([b"block/add"], [1], [2])
    arrays = [TENSOR_IN.data, SCALAR.data, TENSOR_OUT.data]
    assert data == b"".join(array.tobytes() for array in arrays if isinstance(array, np.ndarray))


def test_dump_version_1_holds_the_data_in_the_message(tmp_path: Path) -> None:
    dump_writer.write_dump(tmp_path / "x", "block/add", [TENSOR_IN], [TENSOR_OUT], version=1)
    header = message((tmp_path / "x").read_bytes())
    assert message(header[4][0])[4] == [TENSOR_IN.data.tobytes()]  # type: ignore[union-attr]
    assert message(header[3][0])[5] == [TENSOR_OUT.data.tobytes()]  # type: ignore[union-attr]


def test_blocks_and_bytes_and_types_of_ml_dtypes(tmp_path: Path) -> None:
    array = values(64, 32)
    streamed = OutTensor(data=lambda: np.split(array, 4), dtype="float32", shape=array.shape)
    nibbles = OutTensor(data=b"\x12\x03", dtype="int4", shape=(3,))
    brain = OutTensor(data=values(3).astype(ml_dtypes.bfloat16))
    dump_writer.write_dump(tmp_path / "x", "a", [streamed, nibbles], [brain])
    header, data = split_dump(tmp_path / "x")
    assert data == array.tobytes() + b"\x12\x03" + brain.data.tobytes()  # type: ignore[union-attr]
    assert [message(tensor)[1] for tensor in (*header[4], *header[3])] == [[1], [28], [27]]
    dump_writer.write_golden(tmp_path / "x.npy", lambda: np.split(array, 4), array.shape)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), array)
    wrong = OutTensor(data=lambda: [array], dtype="float32", shape=(2,))
    with pytest.raises(ValueError, match="announced"):
        dump_writer.write_dump(tmp_path / "x", "a", [wrong])


def test_file_names() -> None:
    assert dump_file_name("Conv2D", "a/b.c d\\e", 3, 42) == "Conv2D.a_b_c_d_e.3.0000000000000042"
    assert dump_file_name("Add", "a", 3, 10**15, stream_id=7) == "Add.a.3.7.1000000000000000"
    assert dump_file_name("Add", "a", 3, 10**15, stream_id=7, ffts=(1, 2, 0)).endswith(".7.1000000000000000.4.1.2.0")
    assert golden_file_name("a/b.c", 2, 10**15) == "a_b_c.2.1000000000000000.npy"


def test_statistics(tmp_path: Path) -> None:
    array = np.array([[1, -2, np.nan], [np.inf, -np.inf, 4]], np.float16)
    text = OutTensor(data=b"abc", dtype="string", shape=(1,))
    dump_writer.write_statistics(tmp_path / "x.csv", [OutTensor(data=values(4))], [OutTensor(data=array), text])
    with (tmp_path / "x.csv").open(newline="") as stream:
        first, second, third = csv.DictReader(stream)
    assert first["Input/Output"] == "Input"
    assert float(first["l2norm"]) == pytest.approx(float(np.linalg.norm(values(4))))
    assert (second["Shape"], second["Count"], second["Data Type"]) == ("2x3", "6", "DT_FLOAT16")
    assert [second[f"{kind} Count"] for kind in ("Nan", "Negative Inf", "Positive Inf")] == ["1", "1", "1"]
    assert third["Max Value"] == "NA"


# ---- graphs ------------------------------------------------------------------------------------------------


def test_graph_text_is_well_formed() -> None:
    strange = graph_op('a"b\\c', pass_names=["P"], original_names=[], attrs={"note": "ünder\n", "gain": 0.5})
    text = text_graph([strange, graph_op("d", inputs=['a"b\\c:0'], original_names=["x", "y"], is_multiop=True)])
    without_strings = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
    assert all(re.fullmatch(r" *(?:\w+ \{|\w+: \S+|\}|)", line) for line in without_strings.split("\n"))
    depth = list(itertools.accumulate((c == "{") - (c == "}") for c in without_strings))
    assert min(depth) >= 0
    assert depth[-1] == 0
    assert r'name: "a\"b\\c"' in text
    assert r'input: "a\"b\\c:0"' in text
    assert r's: "\303\274nder\n"' in text
    assert text.count("_datadump_original_op_names") == 2


@given(st.binary())
def test_escapes_come_back(content: bytes) -> None:
    text = escape(content)
    assert text.isascii()
    assert text.encode().decode("unicode_escape").encode("latin-1") == content


# ---- numbers -----------------------------------------------------------------------------------------------


def naive_conv(x: Array, w: Array, pad: int) -> Array:
    batch, rows, cols, channels = x.shape
    height, width, _, count = w.shape
    out = np.zeros((batch, rows + 2 * pad - height + 1, cols + 2 * pad - width + 1, count))
    for b, i, j, k in indices(out):
        for y, z, c in itertools.product(range(height), range(width), range(channels)):
            row, col = i + y - pad, j + z - pad
            if 0 <= row < rows and 0 <= col < cols:
                out[b, i, j, k] += float(x[b, row, col, c]) * float(w[y, z, c, k])
    return out


def slope(function: Callable[[Array], float], at: Array, step: float = 1e-5) -> Array:
    """Numerical gradient."""
    result = np.zeros(at.shape)
    for index in indices(at):
        moved = at.copy()
        moved[index] += step
        above = function(moved)
        moved[index] -= 2 * step
        result[index] = (above - function(moved)) / (2 * step)
    return result


@pytest.mark.parametrize(("pad", "kernel"), [(0, 3), (1, 3), (0, 1), (2, 5)])
def test_convolution_and_its_gradients(pad: int, kernel: int) -> None:
    x, w = values(2, 5, 6, 3, dtype="float64"), values(kernel, kernel, 3, 4, dtype="float64", seed=1)
    out = numerics.conv2d(x, w, pad)
    np.testing.assert_allclose(out, naive_conv(x, w, pad), atol=1e-10)
    grad = values(*out.shape, dtype="float64", seed=2)
    by_input = slope(lambda x: float((numerics.conv2d(x, w, pad) * grad).sum()), x)
    np.testing.assert_allclose(numerics.conv2d_backprop_input(w, grad, x.shape, pad), by_input, atol=1e-6)
    by_filter = slope(lambda w: float((numerics.conv2d(x, w, pad) * grad).sum()), w)
    np.testing.assert_allclose(numerics.conv2d_backprop_filter(x, grad, w.shape, pad), by_filter, atol=1e-6)


def test_pooling_and_its_gradient() -> None:
    x = values(2, 4, 6, 3, dtype="float64")
    out = numerics.max_pool(x)
    for b, i, j, c in indices(out):
        assert out[b, i, j, c] == x[b, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c].max()
    grad = values(*out.shape, dtype="float64", seed=2)
    expected = slope(lambda x: float((numerics.max_pool(x) * grad).sum()), x)
    np.testing.assert_allclose(numerics.max_pool_grad(x, grad), expected, atol=1e-6)
    ties = numerics.max_pool_grad(np.zeros((1, 2, 2, 1)), np.ones((1, 1, 1, 1)))
    assert ties.ravel().tolist() == [1, 0, 0, 0]


def test_loss_and_its_gradient() -> None:
    logits, labels = values(4, 5, dtype="float64"), np.array([0, 4, 2, 2])
    loss, grad = numerics.softmax_cross_entropy(logits, labels)
    for row, label in enumerate(labels):
        parts = [math.exp(value) for value in logits[row]]
        assert loss[row] == pytest.approx(-math.log(parts[label] / sum(parts)))
    expected = slope(lambda z: float(numerics.softmax_cross_entropy(z, labels)[0].sum()), logits)
    np.testing.assert_allclose(grad, expected, atol=1e-6)


def run_steps(fault: str = "none", seed: int = 1) -> tuple[list[Step], Machine]:
    """The small network's steps, in memory."""
    steps: list[Step] = []
    chosen = faults.FAULTS[fault]
    machine = Machine(
        emit=steps.append,
        rng=np.random.default_rng(seed),
        fault=chosen,
        target=faults.TARGETS[chosen.target] if chosen.target else None,
    )
    generate._run(machine, generate._Plan(), None)
    return steps, machine


def network_loss(tensors: dict[str, Array]) -> float:
    """The forward pass in float64, written out without the demo's functions."""

    def conv(x: Array, name: str, pad: int) -> Array:
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        w = tensors[f"{name}/kernel"]
        rows, cols = x.shape[1] - 2, x.shape[2] - 2
        out = sum(
            np.einsum("nhwc,ck->nhwk", x[:, i : i + rows, j : j + cols], w[i, j])
            for i, j in itertools.product(range(3), range(3))
        )
        return np.asarray(np.maximum(out + tensors[f"{name}/bias"], 0))

    def pool(x: Array) -> Array:
        return np.asarray(np.maximum.reduce([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]))

    x = pool(conv(pool(conv(tensors["IteratorGetNext"], "conv1", 1)), "conv2", 0))
    x = np.maximum(x.reshape(len(x), -1) @ tensors["fc1/kernel"] + tensors["fc1/bias"], 0)
    logits = x @ tensors["fc2/kernel"] + tensors["fc2/bias"]
    chosen = logits[np.arange(len(logits)), tensors["labels"].astype(int)]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))


def test_benchmark_gradients_against_differences_of_the_loss() -> None:
    steps, _ = run_steps()
    goldens = {(name, i): array for step in steps for name, i, array in step.goldens if isinstance(array, np.ndarray)}
    tensors = {name: array.astype(np.float64) for (name, i), array in goldens.items() if i == 0}
    tensors["labels"] = goldens["IteratorGetNext", 1]
    assert goldens["loss/Mean", 0] == pytest.approx(network_loss(tensors), rel=1e-5)
    rng = np.random.default_rng(0)
    grads = {
        "conv1/kernel": "gradients/conv1/Conv2D_grad/Conv2DBackpropFilter",
        "conv1/bias": "gradients/conv1/BiasAdd_grad/BiasAddGrad",
        "conv2/kernel": "gradients/conv2/Conv2D_grad/Conv2DBackpropFilter",
        "fc1/kernel": "gradients/fc1/MatMul_grad/MatMul_1",
        "fc2/bias": "gradients/fc2/BiasAdd_grad/BiasAddGrad",
    }
    for name, grad in grads.items():
        # Along a random direction, so that one kink of a Relu cannot spoil the difference.
        direction = rng.standard_normal(tensors[name].shape)
        direction /= np.linalg.norm(direction)
        above, below = (network_loss({**tensors, name: tensors[name] + s * 1e-5 * direction}) for s in (1, -1))
        assert (above - below) / 2e-5 == pytest.approx(float((tensors[grad] * direction).sum()), rel=2e-3), name
        update = tensors[f"GradientDescent/update_{name}/ApplyGradientDescent"]
        np.testing.assert_allclose(update, tensors[name] - 0.01 * tensors[grad], atol=1e-6)


def recompute(step: Step) -> Array | None:
    """The op's first output from its stored inputs, in float64 and by plain formulas; None if there is no formula."""
    op = step.op
    x = [value.array.astype(np.float64) for value in step.inputs if isinstance(value.array, np.ndarray)]
    pad = op.attrs.get("pads", (int, (0,)))[1][0]

    def shifted(image: Array, like: Array, i: int, j: int) -> Array:
        image = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        return image[:, i : i + like.shape[1], j : j + like.shape[2]]

    if op.type in ("Cast", "TransData"):
        return x[0]
    if op.type in ("Reshape", "ExpandDims"):
        return x[0].reshape(step.outputs[0].array.shape)
    if op.type == "Conv2D":
        like = step.outputs[0].array
        assert isinstance(like, np.ndarray)
        out = sum(
            np.einsum("nhwc,ck->nhwk", shifted(x[0], like, i, j), x[1][i, j])
            for i, j in itertools.product(range(3), range(3))
        )
        return np.asarray(np.maximum(out + x[2], 0))
    if op.type == "Conv2DBackpropFilter":
        parts = [
            np.einsum("nhwc,nhwk->ck", shifted(x[0], x[1], i, j), x[1])
            for i, j in itertools.product(range(3), range(3))
        ]
        return np.stack(parts).reshape(step.outputs[0].array.shape)
    if op.type == "Conv2DBackpropInput":
        flipped = x[0][::-1, ::-1].transpose(0, 1, 3, 2)
        grad = np.pad(x[1], ((0, 0), (2, 2), (2, 2), (0, 0)))
        rows, cols = step.outputs[0].array.shape[1:3]
        return np.asarray(
            sum(
                np.einsum("nhwk,kc->nhwc", grad[:, i : i + rows, j : j + cols], flipped[i, j])
                for i, j in itertools.product(range(3), range(3))
            )
        )
    if op.type == "MatMulV2":
        left = x[0].T if op.attrs["transpose_x1"] else x[0]
        product = left @ (x[1].T if op.attrs["transpose_x2"] else x[1])
        if len(x) == 3:
            product = product * (x[2] > 0) if x[2].ndim == 2 else product + x[2]
        return np.maximum(product, 0) if op.name.endswith("/Relu") else product
    if op.type == "MaxPool":
        return np.asarray(np.maximum.reduce([x[0][:, i::2, j::2] for i in (0, 1) for j in (0, 1)]))
    if op.type == "MaxPoolGrad":
        out, taken = np.zeros(x[0].shape), np.zeros(x[1].shape, bool)
        for i, j in itertools.product((0, 1), (0, 1)):
            here = (x[0][:, i::2, j::2] == x[1]) & ~taken
            out[:, i::2, j::2] = np.where(here, x[2], 0)
            taken |= here
        return out
    if op.type == "SparseSoftmaxCrossEntropyWithLogits":
        chosen = x[0][np.arange(len(x[0])), x[1].astype(int)]
        return np.asarray(np.log(np.exp(x[0]).sum(axis=1)) - chosen)
    simple: dict[str, Callable[..., Any]] = {
        "ReluGrad": lambda grad, features: grad * (features > 0),
        "BiasAddGrad": lambda grad: grad.sum(axis=tuple(range(grad.ndim - 1))),
        "ReduceSumD": lambda x: x.sum(),
        "Muls": lambda x: x / network.IMAGES[0],
        "Mul": lambda x, y: x * y,
        "RealDiv": lambda x, y: x / y,
        "TileD": lambda x: np.full(network.IMAGES[0], x[0]),
        "ApplyGradientDescent": lambda variable, rate, grad: variable - rate * grad,
    }
    return np.asarray(simple[op.type](*x)) if op.type in simple else None


@pytest.mark.parametrize("fault", ["none", "fused"])
def test_only_the_culprit_is_wrong_given_what_it_was_given(fault: str) -> None:
    steps, machine = run_steps(fault)
    checked = 0
    for step in steps:
        expected = recompute(step)
        if expected is None:
            assert step.op.type in ("IteratorV2", "GetNext", "Variable", "Const", "NetOutput")
            continue
        array = step.outputs[0].array
        assert isinstance(array, np.ndarray)
        assert array.shape == expected.shape, step.op.name
        error = np.linalg.norm(array.astype(np.float64) - expected) / np.linalg.norm(expected)
        # Half a unit in the last place of float16 is 2^-11 of the value.
        assert error > 0.3 if step.op is machine.culprit else error < 2.0**-11, (step.op.name, error)
        checked += 1
    assert checked > 60
    assert (machine.culprit is None) == (fault == "none")


def test_nan_fault() -> None:
    steps, machine = run_steps("nan")
    (struck,) = (step for step in steps if step.op is machine.culprit)
    array = struck.outputs[0].array
    assert isinstance(array, np.ndarray)
    assert np.isnan(array).sum() == 3
    assert not any(math.isnan(value.cosine) for value in struck.inputs)


# ---- the tree ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoTruth:
    return generate_demo(tmp_path_factory.mktemp("demo") / "precision_data")


def suspects(truth: DemoTruth) -> list[str]:
    """Ops with an output below 0.98 though all inputs are above 0.999; inputs without a golden tensor do not count."""
    ops: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"input": [], "output": []})
    for name, tensor in truth.tensors.items():
        op, side, _ = name.rsplit(":", 2)
        if tensor.cosine is not None:
            ops[op][side].append(tensor.cosine)
    return [
        op
        for op, cosines in ops.items()
        if cosines["input"]
        and all(value > 0.999 for value in cosines["input"])
        and not all(value >= 0.98 for value in cosines["output"])
    ]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fault", ["none", "fused", "nan"])
def test_the_truth_is_plain_to_see(tmp_path: Path, fault: str, seed: int) -> None:
    truth = generate_demo(tmp_path / "x", seed=seed, fault=fault)
    assert suspects(truth) == ([truth.culprit] if truth.culprit else [])
    assert (truth.culprit is None) == (fault == "none")
    if fault == "fused":
        cosine = truth.tensors[f"{truth.culprit}:output:0"].cosine
        assert cosine is not None
        assert cosine < 0.9
        assert truth.culprit_passes == (layers.CONV_PASS,)
        assert truth.culprit_originals == ("conv2/Conv2D", "conv2/BiasAdd", "conv2/Relu")


def unpack(tensor: dict[int, list[Any]], data: bytes, shape_field: int) -> Array:
    """The tensor's logical values as a flat sorted array: enough to compare with golden, whatever the layout."""
    array = np.frombuffer(data, BY_CODE[tensor[1][0]].numpy_name)
    real = math.prod(dims(tensor[shape_field][0]))
    flat = np.sort(array.astype(np.float64).ravel())
    # Padding is zero, so zeros are all that may be too many.
    spare = len(flat) - real
    zeros = np.searchsorted(flat, 0)
    return np.delete(flat, slice(zeros, zeros + spare))


def test_files_are_consistent(demo: DemoTruth) -> None:
    """Sizes add up, addresses are shared, times rise, and every tensor lies near the newest golden one."""
    newest: dict[str, Path] = {}
    for path in sorted(demo.golden_dir.iterdir(), key=lambda path: path.name.rsplit(".", 2)[1]):
        newest[path.name.rsplit(".", 2)[0]] = path
    assert len(newest) == demo.golden_files - 1, "one older tensor lies about"
    files = sorted(demo.dump_dir.iterdir(), key=lambda path: path.name.rsplit(".", 1)[1])
    assert len(files) == demo.dump_files
    graph = demo.graph_path.read_text()
    edges = {
        name: re.findall(r'^    input: "([^"]*)"', body, re.M)
        for name, body in re.findall(r'^  op \{\n    name: "([^"]*)"\n(.*?)^  \}', graph, re.M | re.S)
    }
    addresses: dict[str, int] = {}
    tasks = []
    seen = 0
    for path in files:
        header, data = split_dump(path)
        op = header[6][0].decode()
        kind, flat, task, stream, time = path.name.split(".")
        assert flat == op.replace("/", "_")
        assert f'name: "{op}"\n    type: "{kind}"' in graph
        assert int(stream) in (0, 1)
        assert header[2] == [int(time)]
        tasks.append(int(task))
        at = 0
        for side, tensors, size, address, origin in (("input", header[4], 5, 8, 6), ("output", header[3], 6, 9, 7)):
            for index, tensor in enumerate(map(message, tensors)):
                here = data[at : at + tensor[size][0]]
                at += tensor[size][0]
                source = edges[op][index] if side == "input" else f"{op}:{index}"
                assert addresses.setdefault(source, tensor[address][0]) == tensor[address][0], source
                truth = demo.tensors[f"{op}:{side}:{index}"]
                if truth.golden is not None and op != demo.culprit and (truth.cosine or 0) > 0.9999:
                    name = truth.golden.replace("/", "_").replace(":", ".")
                    golden = np.sort(np.load(newest[name]).astype(np.float64).ravel())
                    np.testing.assert_allclose(unpack(tensor, here, origin), golden, atol=0.05 * np.abs(golden).max())
                    seen += 1
        assert at == len(data), path
    assert seen > 60
    assert tasks == list(range(len(files)))


def test_the_tree(demo: DemoTruth) -> None:
    root = demo.golden_dir.parent.parent
    assert demo.nbytes < 10e6
    assert demo.dump_dir.parts[-7:-5] == ("debug_0", "dump")
    assert re.fullmatch(r"\d{14}", demo.dump_dir.parts[-5])
    assert demo.dump_dir.parts[-4:] == ("0", demo.model_name, "1", "0")
    graphs = {path.name: path.read_text() for path in demo.graph_path.parent.iterdir()}
    build = {name: text for name, text in graphs.items() if name.endswith("_Build.txt")}
    assert len(build) == 3
    assert sum('type: "IteratorV2"' in text for text in build.values()) == 2
    assert sum(f'  name: "{demo.model_name}"' in text for text in build.values()) == 1
    assert any("PreRunBegin" in name for name in graphs)
    assert any(name.endswith(".pbtxt") for name in graphs)
    text = build[demo.graph_path.name]
    assert text.count("_datadump_is_multiop") == 2
    for attr in ("_tbe_kernel_buffer", "_ge_attr_op_kernel_lib_name", "_datadump_origin_output_index", "pass_name"):
        assert attr in text
    assert set(re.findall(r'^      layout: "(\w+)"', text, re.M)) == {
        "NC1HWC0", "FRACTAL_Z", "FRACTAL_NZ", "ND", "NHWC", "HWCN",
    }  # fmt: skip
    dumped = {path.name.split(".")[0] for path in demo.dump_dir.iterdir()}
    assert dumped.isdisjoint({"Variable", "Const", "NetOutput", "Reshape", "IteratorV2"})
    fusion = json.loads(demo.fusion_path.read_text())["session_and_graph_id_0_1"]
    assert fusion["ub_fusion"][layers.CONV_PASS] == {"match_times": "2", "effect_times": "2"}
    assert fusion["graph_fusion"][network.MEAN_PASS]["effect_times"] == "1"
    truth = json.loads((root / "truth.json").read_text())
    assert truth["culprit"] == demo.culprit
    assert root / truth["graph_path"] == demo.graph_path
    assert truth["tensors"].keys() == demo.tensors.keys()
    assert sorted(path.name for path in root.iterdir()) == [folder.MARKER, "fusion", "npu", "tf", "truth.json"]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        generate_demo(tmp_path / name, seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


def test_a_scaled_tree(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "x", ops=250, bytes_total=40_000_000)
    size = sum(path.stat().st_size for path in (tmp_path / "x").rglob("*") if path.is_file())
    assert size == pytest.approx(40_000_000, rel=0.1)
    assert truth.ops == pytest.approx(250, rel=0.15)
    assert suspects(truth) == [truth.culprit]
    assert truth.culprit is not None
    assert truth.culprit.startswith("tower0/conv")
    nan = generate_demo(tmp_path / "x", ops=250, fault="nan")
    assert suspects(nan) == [nan.culprit]
    sized = generate_demo(tmp_path / "x", size=20_000)
    biggest = max(path.stat().st_size for path in sized.dump_dir.iterdir())
    assert biggest > 3 * 2 * 19_000


def test_towers_stay_sound_however_many_there_are(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "x", ops=1200)
    assert truth.ops == pytest.approx(1200, rel=0.05)
    assert suspects(truth) == [truth.culprit]


def test_a_giant_tensor_is_streamed(tmp_path: Path) -> None:
    truth = generate_demo(tmp_path / "x", giant_bytes=33_000_000, fault="none")
    (path,) = truth.dump_dir.glob("Mul.giant_Mul.*")
    (golden_path,) = truth.golden_dir.glob("giant_Mul.0.*")
    golden = np.load(golden_path, mmap_mode="r")
    header, data = split_dump(path)
    (output,) = map(message, header[3])
    assert dims(output[3][0]) == list(golden.shape)
    assert output[6] == [golden.nbytes] == [33_000_000 // 16384 * 16384]
    device = np.frombuffer(data[-golden.nbytes :], np.float32).reshape(golden.shape)
    np.testing.assert_allclose(device, golden, rtol=2e-3, atol=1e-6)
    assert truth.tensors["giant/Mul:output:0"].cosine == pytest.approx(
        float(device.ravel().astype(np.float64) @ golden.ravel())
        / float(np.linalg.norm(device.astype(np.float64)) * np.linalg.norm(golden.astype(np.float64))),
        abs=1e-12,
    )


def test_streamed_values_are_never_held_as_one_array() -> None:
    steps: list[Step] = []
    machine = Machine(emit=steps.append, rng=np.random.default_rng(0))
    generate._run(machine, generate._Plan(), 1 << 34)
    (giant,) = (step for step in steps if step.op.name == "giant/Mul")
    assert isinstance(giant.outputs[0].array, Streamed)
    assert giant.outputs[0].desc.shape == (1 << 20, 4096)


# ---- the folder --------------------------------------------------------------------------------------------


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="not empty") as caught:
        generate_demo(tmp_path)
    assert caught.value.hint
    with pytest.raises(UsageError, match="not a folder"):
        generate_demo(tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_earlier_demo_is_replaced_and_the_users_results_stay(tmp_path: Path) -> None:
    root = tmp_path / "x"
    root.mkdir()
    generate_demo(root, seed=5)
    (root / "temp").mkdir()
    (root / "temp/result.csv").write_text("mine")
    truth = generate_demo(root, seed=6, fault="none")
    assert json.loads((root / "truth.json").read_text())["seed"] == 6
    assert len(list(truth.dump_dir.iterdir())) == truth.dump_files
    assert (root / "temp/result.csv").read_text() == "mine"
    (truth.dump_dir / "Add.mine.1.2.1234567890123456").write_bytes(b"")
    with pytest.raises(UsageError, match="changed"):
        generate_demo(root)
    (root / folder.MARKER).write_text("{}")
    with pytest.raises(UsageError, match="changed"):
        generate_demo(root)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, "demo.no_space"), (errno.EACCES, "demo.no_permission"), (errno.EIO, "demo.not_written")],
)
def test_a_failed_write_is_the_users_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    generate_demo(tmp_path / "x", seed=5)
    before = contents(tmp_path / "x")

    def fail(*args: object, **options: object) -> int:
        raise OSError(code, "told so")

    monkeypatch.setattr(compiled_graphs, "write_graph", fail)
    with pytest.raises(OutputError) as caught:
        generate_demo(tmp_path / "x")
    assert caught.value.kind == kind
    assert caught.value.hint
    assert contents(tmp_path / "x") == before
    with pytest.raises(OutputError) as caught:
        generate_demo(tmp_path / "y")
    assert caught.value.kind == kind
    assert contents(tmp_path / "y") == {}


def test_too_big_for_the_disk_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        generate_demo(tmp_path / "x", giant_bytes=1 << 60)
    assert caught.value.kind == "demo.too_large"


@pytest.mark.parametrize("options", [{"fault": "gremlin"}, {"ops": 0}, {"size": 9, "bytes_total": 9}])
def test_senseless_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        generate_demo(tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


# ---- the builders of other tests ---------------------------------------------------------------------------


def test_one_op_tree(tmp_path: Path) -> None:
    images = values(1, 2, 2, 20, dtype="float16")
    tree = one_op_tree(
        tmp_path, output=images, golden=images.astype(np.float32), inputs=[values(3)], input_goldens=[values(3)],
        layout="NC1HWC0", origin_layout="NHWC", original_names=["a/Conv2D", "a/Relu"], pass_names=["P"],
    )  # fmt: skip
    header, data = split_dump(tree.dump_path)
    assert len(data) == 12 + 2 * 4 * 32
    assert message(message(header[3][0])[4][0])[1] == [b"a/Relu"]
    assert tree.golden_path is not None
    assert tree.golden_path.name.startswith("a_Relu.0.")
    assert '"_datadump_origin_name"' in tree.graph_path.read_text()
