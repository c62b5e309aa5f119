"""The demo's files, numbers and truth, against formulas written out plainly here."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from builders import graph_op, one_op_tree, text_graph
from command_line import tool
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
from precision_tool.lib.io.layouts import copy_box, plan
from precision_tool.lib.io.proto_text import escape
from precision_tool.lib.io.readers import open_op_dump
from precision_tool.lib.messages.errors import OutputError, UsageError
from precision_tool.lib.model.tensor import AnyTensor, Tensor

Array = npt.NDArray[Any]


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- storage layouts ---------------------------------------------------------------------------------------


def indices(array: Array) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, array.shape))


@pytest.mark.parametrize("extent", [1, 16, 35])
@pytest.mark.parametrize(
    ("layout", "origin", "lead"),
    [
        ("NC1HWC0", "NHWC", (2, 3, 2)), ("NC1HWC0", "NCHW", (2,)), ("NDC1HWC0", "NDHWC", (2, 3, 2, 3)),
        ("NDC1HWC0", "NCDHW", (3,)), ("FRACTAL_NZ", "ND", ()), ("FRACTAL_NZ", "ND", (2, 3, 20)),
        ("FRACTAL_Z", "HWCN", (3, 2, 20)), ("FRACTAL_Z", "NCHW", (17,)),
    ],
)  # fmt: skip
def test_what_is_packed_is_read_back(layout: str, origin: str, lead: tuple[int, ...], extent: int) -> None:
    """By the layouts that dumps are read with; everything else is zero."""
    rank = len(origin) if origin != "ND" else max(2, len(lead) + 1)
    array = values(*(*lead, extent, *[3] * rank)[:rank])
    packed = pack(array, layout, origin)
    out = np.empty_like(array)
    order = plan(layout, packed.shape, origin, array.shape)
    copy_box(order, packed.reshape(order.storage_shape), out)  # FRACTAL_Z merges its first axes
    np.testing.assert_array_equal(out, array)
    assert packed.flags.c_contiguous
    assert np.count_nonzero(packed) == array.size


def test_plain_layouts_stay_and_unknown_pairs_are_refused() -> None:
    array = values(2, 3)
    assert pack(array, "ND", "ND") is array
    assert pack(np.ones(()), "ND", "ND").shape == ()
    for layout, origin in (("NC1HWC0", "HWCN"), ("FRACTAL_Z", "ND"), ("NDC1HWC0", "NHWC"), ("NCHW", "NHWC")):
        with pytest.raises(ValueError, match=layout):
            pack(array, layout, origin)


# ---- dump files --------------------------------------------------------------------------------------------


def stored(tensor: AnyTensor | None) -> bytes:
    """The bytes of a tensor in a dump file."""
    assert isinstance(tensor, Tensor)
    return Path(tensor.path).read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]


TENSOR_IN = OutTensor.packed(values(2, 3, 3, 20, dtype="float16"), "NC1HWC0", "NHWC", address=0x124080000200)
TENSOR_OUT = OutTensor.packed(values(5, 7), "FRACTAL_NZ", "ND", original_op=("block/add", 1), address=1 << 40)
SCALAR = OutTensor(data=np.array(3, np.int64), origin_shape=())


@pytest.mark.parametrize("version", [1, 2])
def test_a_dump_file(tmp_path: Path, version: int) -> None:
    path = tmp_path / "x"
    tensors = [TENSOR_IN, SCALAR, TENSOR_OUT]
    size = dump_writer.write_dump(path, "block/add", tensors[:2], tensors[2:], dump_time=1 << 50, version=version)
    assert size == path.stat().st_size
    dump = open_op_dump(str(path))
    assert dump.bad_slots == ()
    assert version == 1 or dump.op_name == "block/add"
    for tensor, written in zip((*dump.inputs, *dump.outputs), tensors, strict=True):
        assert isinstance(tensor, Tensor)
        assert isinstance(written.data, np.ndarray)
        assert stored(tensor) == written.data.tobytes()
        assert (tensor.dtype, tensor.shape, tensor.layout) == (
            written.data.dtype.name,
            written.data.shape,
            written.layout,
        )
        assert version == 1 or (tensor.address, tensor.origin_shape) == (written.address, written.origin_shape)


def test_blocks_and_bytes_and_types_of_ml_dtypes(tmp_path: Path) -> None:
    array = values(64, 32)
    streamed = OutTensor(data=lambda: np.split(array, 4), dtype="float32", shape=array.shape)
    nibbles = OutTensor(data=b"\x12\x03", dtype="int4", shape=(3,))
    brain = OutTensor(data=values(3).astype(ml_dtypes.bfloat16))
    dump_writer.write_dump(tmp_path / "x", "a", [streamed, nibbles], [brain])
    dump = open_op_dump(str(tmp_path / "x"))
    tensors = (*dump.inputs, *dump.outputs)
    assert [*map(stored, tensors)] == [array.tobytes(), b"\x12\x03", brain.data.tobytes()]  # type: ignore[union-attr]
    assert [tensor.dtype for tensor in tensors if tensor is not None] == ["float32", "int4", "bfloat16"]
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


@pytest.mark.parametrize("fault", ["none", "fused"])
def test_only_the_culprit_is_wrong_given_its_inputs(tmp_path: Path, fault: str) -> None:
    """As the tool recomputes every op, with formulas that are tested against TensorFlow."""
    truth = generate_demo(tmp_path / "precision_data", fault=fault)
    (result,) = tool("ac", "-c", "--json", cwd=tmp_path).results
    named = [finding["op_name"] for finding in result["findings"] if finding["kind"] == "first_faulty_op"]
    errors = {row["op"]: row["own_error"] for row in result["rows"] if row["own_error"] is not None}
    assert len(errors) > 60
    # Half a unit in the last place of float16 is 2^-11 of the value.
    assert (
        [op for op, error in errors.items() if error > 2.0**-11] == named == ([truth.culprit] if truth.culprit else [])
    )
    assert all(error > 0.3 for op, error in errors.items() if op == truth.culprit)


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


def numbers(tensor: Tensor) -> Array:
    """The tensor's logical values, flat and sorted: enough to compare with golden, whatever the layout."""
    flat = np.sort(np.frombuffer(stored(tensor), tensor.dtype).astype(np.float64))
    # Padding is zero, so zeros are all that may be too many.
    zeros = np.searchsorted(flat, 0)
    return np.delete(flat, slice(zeros, zeros + len(flat) - math.prod(tensor.origin_shape or ())))


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
        dump = open_op_dump(str(path))
        kind, flat, task, stream, _ = path.name.split(".")
        assert flat == dump.op_name.replace("/", "_")
        assert f'name: "{dump.op_name}"\n    type: "{kind}"' in graph
        assert int(stream) in (0, 1)
        tasks.append(int(task))
        sides = (("input", dump.inputs), ("output", dump.outputs))
        for side, index, tensor in [(side, *slot) for side, tensors in sides for slot in enumerate(tensors)]:
            assert isinstance(tensor, Tensor)
            source = edges[dump.op_name][index] if side == "input" else f"{dump.op_name}:{index}"
            assert addresses.setdefault(source, tensor.address) == tensor.address, source
            truth = demo.tensors[f"{dump.op_name}:{side}:{index}"]
            if truth.golden is not None and dump.op_name != demo.culprit and (truth.cosine or 0) > 0.9999:
                name = truth.golden.replace("/", "_").replace(":", ".")
                golden = np.sort(np.load(newest[name]).astype(np.float64).ravel())
                np.testing.assert_allclose(numbers(tensor), golden, atol=0.05 * np.abs(golden).max())
                seen += 1
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
    (tensor,) = open_op_dump(str(path)).outputs
    assert isinstance(tensor, Tensor)
    assert tensor.shape == golden.shape
    assert tensor.nbytes == golden.nbytes == 33_000_000 // 16384 * 16384
    device = np.frombuffer(stored(tensor), np.float32).reshape(golden.shape)
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
    dump = open_op_dump(str(tree.dump_path))
    assert [len(stored(tensor)) for tensor in (*dump.inputs, *dump.outputs)] == [12, 2 * 4 * 32]
    assert b"a/Relu" in tree.dump_path.read_bytes()
    assert tree.golden_path is not None
    assert tree.golden_path.name.startswith("a_Relu.0.")
    assert '"_datadump_origin_name"' in tree.graph_path.read_text()


@pytest.mark.parametrize("words", [["--fault", "fused"], ["--pytorch"]])
def test_what_else_can_be_asked_is_printed_as_it_runs_on_the_data(words: list[str], tmp_path: Path) -> None:
    printed = tool("demo", "x y", *words, cwd=tmp_path).out.partition("\n$ ")[0]
    lines = [line.partition(": ")[2] for line in printed.splitlines()[1:]]
    what_if, minimize, bisect = (shlex.split(line.partition(" --data ")[2])[1:] for line in lines[-3:])
    assert all("--data 'x y/precision_data' " in line for line in lines)
    data = ("--data", "x y/precision_data")
    assert "with this op mended" in tool(*data, *what_if, cwd=tmp_path).out
    assert tool(*data, *minimize, cwd=tmp_path).out.startswith(
        "smallest part of the dump that shows the error: wrong in"
    )
    assert bisect == ["bisect", "--check", "python3 train.py"]
    bisect[-1] = "true"
    assert tool(*data, *bisect, cwd=tmp_path).code == 0


def test_faults_of_no_single_op_are_not_to_be_mended(tmp_path: Path) -> None:
    assert "--minimize" not in tool("demo", "x", "--fault", "none", cwd=tmp_path).out
