"""TensorFlow's graphs: binary and text give the same ops; what is damaged is an error with its place, and no memory."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tf_graphs import node, parsed

from precision_tool.lib.io.tf_graph import MAX_ELEMENTS, load_tf_graph
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError
from precision_tool.lib.model.graph import Edge, GraphFile

_F32 = "type: DT_FLOAT"
#: A graph whose ops are not in the order in which they run.
GRAPH = (
    node("loss", "MatMul", ["scale", "split:1", "^init", "^x"], {
        "T": _F32, "transpose_b": "b: true", "_output_shapes": "list { shape { dim { size: 2 } dim { size: -1 } } }",
        "body": 'func { name: "f_1" }', "ratio": "f: 0.5", "axis": "i: -3", "strides": "list { i: 1 i: 2 i: 2 i: 1 }",
        "data_format": 's: "NHWC"', "none": "list { }", "types": "list { type: DT_HALF type: DT_BFLOAT16_REF }",
    })
    + node("init", "NoOp")
    + node("x", "Placeholder", (), {"dtype": _F32, "shape": "shape { unknown_rank: true }"})
    + node("scale", "Const", (), {"value": "tensor { dtype: DT_FLOAT tensor_shape { } float_val: 2.0 }", "dtype": _F32})
    + node("split", "Split", ["axis", "x"], {"T": _F32})
    + node("axis", "Const", (), {"value": "tensor { dtype: DT_INT32 tensor_shape { } int_val: -1 }"})
    + node("n/next", "NextIteration", ["n/add"])
    + node("n/merge", "Merge", ["x", "n/next"])
    + node("n/add", "AddN", ["n/merge", "n/merge:1"])
)  # fmt: skip


def load(path: Path, content: bytes | str) -> GraphFile:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_tf_graph(path)


def variants(text: str) -> dict[str, bytes]:
    """The contents of files that all hold one graph."""
    meta = f'meta_info_def {{ stripped_op_list {{ op {{ name: "NoOp" }} }} tags: "train" }} graph_def {{ {text} }}'
    saved = f"saved_model_schema_version: 1 meta_graphs {{ {meta} }}"
    contents = {}
    for kind, source in (("GraphDef", text), ("MetaGraphDef", meta), ("SavedModel", saved)):
        message = parsed(kind, source)
        contents[kind] = message.SerializeToString()
        contents[f"{kind} in text"] = text_format.MessageToString(message).encode()
    return contents


@pytest.mark.parametrize("kind", list(variants("")))
def test_ops_of_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    file = load(tmp_path / "graph", variants(GRAPH)[kind])
    (graph,) = file.graphs
    assert graph.name == ("tensorflow" if kind.startswith("GraphDef") else "train")
    assert [op.name for op in graph.ops] == [
        "scale",
        "axis",
        "x",
        "split",
        "init",
        "loss",
        "n/merge",
        "n/add",
        "n/next",
    ]
    loss = graph.by_name["loss"]
    assert (loss.type, loss.control_inputs) == ("MatMul", ("init", "x"))
    assert loss.inputs == (Edge(producer="scale", index=0), Edge(producer="split", index=1))
    assert dict(loss.attrs) == {
        "T": "float32", "transpose_b": True, "_output_shapes": [[2, -1]], "body": "f_1", "ratio": 0.5, "axis": -3,
        "strides": [1, 2, 2, 1], "data_format": "NHWC", "none": [], "types": ["float16", "bfloat16"],
    }  # fmt: skip
    (desc,) = loss.output_descs
    assert (desc.dtype, desc.shape, desc.origin_shape) == ("float32", (2, -1), None)
    assert len(graph.by_name["split"].output_descs) == 2
    assert graph.by_name["x"].attrs["shape"] is None
    assert graph.by_name["axis"].attrs["value"] == -1


_SHAPE = "tensor_shape { dim { size: 2 } dim { size: 3 } }"
CONSTANTS: dict[str, tuple[str, Any]] = {
    "content": (
        f"dtype: DT_INT64 {_SHAPE} tensor_content: "
        + "".join(rf'"\{number:03o}\000\000\000\000\000\000\000"' for number in range(6)),
        np.arange(6, dtype=np.int64).reshape(2, 3),
    ),
    "one value for all": (f"dtype: DT_FLOAT {_SHAPE} float_val: 0.25", np.full((2, 3), 0.25, np.float32)),
    "none": (f"dtype: DT_DOUBLE {_SHAPE}", np.zeros((2, 3))),
    "the last for the rest": (
        f"dtype: DT_INT32 {_SHAPE} int_val: 7 int_val: -8", np.array([[7, -8, -8], [-8, -8, -8]], np.int32)
    ),
    "half": ("dtype: DT_HALF tensor_shape { dim { size: 1 } } half_val: 48640", np.array([-1.5], np.float16)),
    "bfloat16": ("dtype: DT_BFLOAT16 tensor_shape { } half_val: 16256", np.array(1.0, np.float32)),
    "complex": (
        "dtype: DT_COMPLEX64 tensor_shape { dim { size: 1 } } scomplex_val: 1 scomplex_val: -2",
        np.array([1 - 2j], np.complex64),
    ),
    "bool": ("dtype: DT_BOOL tensor_shape { } bool_val: true", np.array(True)),
    "uint64": ("dtype: DT_UINT64 tensor_shape { } uint64_val: 18446744073709551615", np.array(2**64 - 1, np.uint64)),
    "empty": ("dtype: DT_INT32 tensor_shape { dim { size: 0 } }", np.zeros(0, np.int32)),
    "text": ('dtype: DT_STRING tensor_shape { } string_val: "a\\303\\244"', ("aä",)),
    "resource": ("dtype: DT_RESOURCE tensor_shape { }", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(tmp_path: Path, name: str) -> None:
    text, wanted = CONSTANTS[name]
    message = parsed("GraphDef", node("c", "Const", (), {"value": f"tensor {{ {text} }}"}))
    for content in (message.SerializeToString(), text_format.MessageToString(message)):
        value = load(tmp_path / "graph", content).ops[0].attrs["value"]
        if isinstance(wanted, np.ndarray):
            assert value.dtype == wanted.dtype
            np.testing.assert_array_equal(value, wanted)
        else:
            assert value == wanted


def test_weights_stay_in_the_file(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).random((1 << 20, 2), np.float32)
    message = parsed("GraphDef", node("w", "Const", (), {"value": "tensor { dtype: DT_FLOAT }"}))
    tensor = message.node[0].attr[0].value.tensor
    tensor.tensor_content = weights.tobytes()
    for size in weights.shape:
        tensor.tensor_shape.dim.add(size=size)
    path = tmp_path / "frozen.pb"
    path.write_bytes(message.SerializeToString())
    tracemalloc.start()
    file = load_tf_graph(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weights.nbytes / 16
    np.testing.assert_array_equal(file.ops[0].attrs["value"], weights)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FormatError, match=r"frozen\.pb"):
        file.ops[0].attrs["value"]


@pytest.mark.parametrize(
    ("shape", "more"),
    [((1 << 40,), ""), ((1 << 31, 1 << 31), "float_val: 1"), ((-5,), ""), ((2,), "float_val: 1 " * 3),
     ((3,), 'tensor_content: "abc"'), ((MAX_ELEMENTS + 1,), "float_val: 1"), ((1,) * 70, "float_val: 1")],
)  # fmt: skip
def test_a_claimed_shape_takes_no_memory(tmp_path: Path, shape: tuple[int, ...], more: str) -> None:
    dims = " ".join(f"dim {{ size: {size} }}" for size in shape)
    value = f"tensor {{ dtype: DT_FLOAT tensor_shape {{ {dims} }} {more} }}"
    message = parsed("GraphDef", node("c", "Const", (), {"value": value}))
    tracemalloc.start()
    for content in (message.SerializeToString(), text_format.MessageToString(message)):
        op = load(tmp_path / "graph.pb", content).ops[0]
        with pytest.raises(FormatError, match=r"graph\.pb.*value"):
            op.attrs["value"]
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_a_named_output_takes_no_memory(tmp_path: Path) -> None:
    """Of an output that a reader names, not all outputs before it are described."""
    text = "".join(node(f"n{number}", "X", (f"n{number - 1}:4095",)) for number in range(1000))
    content = parsed("GraphDef", text + node("split", "Split") + node("last", "X", ("split:40",))).SerializeToString()
    tracemalloc.start()
    ops = {op.name: op for op in load(tmp_path / "graph.pb", content).ops}
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()
    assert len(ops["n1"].output_descs) <= 64
    assert len(ops["split"].output_descs) == 41


@pytest.mark.parametrize("text", ["node { }" * 3, 'node { op: "Relu" }', 'node { name: "a" }'])
def test_ops_without_name_or_type_are_refused(tmp_path: Path, text: str) -> None:
    text = node("a", "Relu") + text
    for content in (parsed("GraphDef", text).SerializeToString(), text):
        with pytest.raises(FormatError, match="graph: an op has no name or no type"):
            load(tmp_path / "graph", content)


def test_what_is_no_graph_of_tensorflow(tmp_path: Path) -> None:
    ge = 'name: "ge" graph { name: "g" op { name: "a" type: "Relu" } }'
    for content in (b"", b"\0\0\0\0", b"\x08\x01", ge, "{}", "node { name: }", b"\x93NUMPY" + bytes(40)):
        with pytest.raises(FormatError, match="graph"):
            load(tmp_path / "graph", content)


@pytest.mark.parametrize("kind", list(variants("")))
def test_damaged_files(tmp_path: Path, kind: str) -> None:
    """Whatever is cut off or changed: an error of ours, or a graph all of whose attributes can be asked for."""
    whole = variants(GRAPH)[kind]
    chance = random.Random(kind)
    path = tmp_path / "graph"
    damaged = [whole[: chance.randrange(len(whole))] for _ in range(20)]
    for _ in range(80):
        changed = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3))):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        damaged.append(bytes(changed))
    errors: list[str] = []
    for content in damaged:
        try:
            file = load(path, content)
            for op in file.ops:
                for key in op.attrs:
                    op.attrs[key]
        except PrecisionToolError as error:
            errors.append(error.message)
    assert len(errors) > 10
    assert all("graph" in error for error in errors)


def test_an_output_that_one_op_names_is_no_proof_of_those_before_it(tmp_path: Path) -> None:
    message = parsed("GraphDef", node("many", "Split", ()) + node("reader", "Relu", ["many:4000"]))
    many, _ = load(tmp_path / "graph.pb", message.SerializeToString()).ops
    assert len(many.output_descs) < 100
