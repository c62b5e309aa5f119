"""Writer of graphs as GE's text protobuf (`ge_proto_{n:08d}_graph_{id}_{stage}.txt`).

Ops carry the attributes that GE 6 and newer write; `Op.attrs` adds more. Values are rendered by their Python type.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from precision_tool.lib.io.data_types import BY_GE_NAME, BY_NAME, LAYOUT_CODES
from precision_tool.lib.io.proto_text import escape
from precision_tool.lib.model.graph import Edge, Graph, Op, TensorDesc

GE_LOCAL = "DNN_VM_GE_LOCAL_OP_STORE"
AI_CORE = "AIcoreEngine"

_LIST_KINDS = {
    bool: ("b", "VT_LIST_BOOL"),
    int: ("i", "VT_LIST_INT"),
    float: ("f", "VT_LIST_FLOAT"),
    str: ("s", "VT_LIST_STRING"),
}


def graph_file_name(number: int, graph_id: int, stage: str = "Build") -> str:
    """File name of a text graph: the dump's running number, the graph's id, the compiler stage."""
    return f"ge_proto_{number:08d}_graph_{graph_id}_{stage}.txt"


def _quoted(value: str | bytes) -> str:
    return f'"{escape(value.encode() if isinstance(value, str) else value)}"'


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, bytes)):
        return _quoted(value)
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _attr(key: str, value: Any, indent: str) -> str:
    """One `attr` map entry. `("type", list)` gives the element type of a list that may be empty."""
    lines = [f"{indent}attr {{", f"{indent}  key: {_quoted(key)}", f"{indent}  value {{"]
    if isinstance(value, tuple):
        field, kind = _LIST_KINDS[value[0]]
        lines.append(f"{indent}    list {{")
        lines += [f"{indent}      {field}: {_scalar(item)}" for item in value[1]]
        lines += [f"{indent}      val_type: {kind}", f"{indent}    }}"]
    elif isinstance(value, dict):
        # The only message-valued attribute GE always writes is an empty shape range.
        lines += [f"{indent}    list_list_int {{", f"{indent}    }}"]
    else:
        fields = {bool: "b", int: "i", float: "f", bytes: "bt", str: "s"}
        lines.append(f"{indent}    {fields[type(value)]}: {_scalar(value)}")
    lines += [f"{indent}  }}", f"{indent}}}\n"]
    return "\n".join(lines)


def _attrs(attrs: Mapping[str, Any], indent: str) -> str:
    """Map fields come out sorted by key."""
    return "".join(_attr(key, attrs[key], indent) for key in sorted(attrs))


def _ge_dtype(dtype: str) -> str:
    return BY_NAME[dtype].ge_name if dtype in BY_NAME else dtype


@lru_cache(maxsize=4096)
def _desc(desc: TensorDesc, field: str) -> str:
    """An `input_desc` or `output_desc` block."""
    dtype = _ge_dtype(desc.dtype)
    row = BY_GE_NAME.get(dtype)
    origin_dtype = "DT_FLOAT" if dtype == "DT_FLOAT16" else dtype
    attrs: dict[str, Any] = {"origin_data_type": origin_dtype, "shape_range": {}}
    if desc.layout in LAYOUT_CODES:
        attrs["format_for_int"] = LAYOUT_CODES[desc.layout]
    if desc.origin_layout is not None:
        attrs["origin_format"] = desc.origin_layout
    if desc.origin_shape is not None:
        attrs["origin_shape"] = (int, desc.origin_shape)
    if field == "input_desc":
        attrs["is_end_of_inputmem_lifecycle"] = 1
    if desc.dump_origin_name is not None:
        attrs["_datadump_origin_data_type"] = origin_dtype
        attrs["_datadump_origin_name"] = desc.dump_origin_name
        attrs["_datadump_origin_output_index"] = desc.dump_origin_index or 0
        if desc.dump_origin_layout is not None:
            attrs["_datadump_origin_format"] = desc.dump_origin_layout
    nbytes = row.byte_size(prod(desc.shape)) if row else 0
    dims = "".join(f"        dim: {dim}\n" for dim in desc.shape)
    return (
        f"    {field} {{\n      dtype: {dtype}\n      shape {{\n{dims}      }}\n"
        f"      layout: {_quoted(desc.layout)}\n{_attrs(attrs, '      ')}      has_out_attr: true\n"
        # GE rounds up to 32 and leaves 32 spare bytes behind each tensor
        f'      size: {(nbytes + 63) // 32 * 32}\n      device_type: "NPU"\n'
        f"      real_dim_cnt: {len(desc.origin_shape or desc.shape) or 1}\n    }}\n"
    )


def _kernel_attrs(op: Op, noise: random.Random, kernel_bytes: int) -> dict[str, Any]:
    """Return the attributes that the compiler sets on an op of the AI core."""
    binary = b"\x7fELF\x02\x01\x01" + noise.randbytes(kernel_bytes)
    name = op.kernel_name or f"te_{op.type.lower()}_{noise.getrandbits(64):016x}_{noise.getrandbits(64):016x}__kernel0"
    slices = '{"_op_slice_info": {"splitMaps": [], "reduceMaps": [], "l1FusionEnable": 0, "minTbeL1Space": 0}}'
    return {
        "_fe_imply_type": 6,
        "_op_slice_info": slices,
        "_tbeKernelSize": len(binary),
        "_tbe_kernel_buffer": binary,
        "_tbe_kernel_name": op.name,
        f"{op.name}_kernelname": name,
        "op_para_size": 0,
        "tvm_blockdim": 32,
        "tvm_magic": "RT_DEV_BINARY_MAGIC_ELF",
    }


def _op_attrs(op: Op, noise: random.Random, kernel_bytes: int) -> dict[str, Any]:
    inputs, outputs = len(op.inputs), len(op.output_descs)
    lib = op.kernel_lib or GE_LOCAL
    attrs: dict[str, Any] = {
        "OUTPUT_IS_VAR": (bool, [op.type == "Variable"] * outputs),
        "OwnerGraphIsUnknown": False,
        "_ge_attr_op_kernel_lib_name": lib,
        "_output_name_key": (str, [f"__output{i}" for i in range(outputs)]),
        "_output_name_value": (int, range(outputs)),
        "is_input_const": (bool, [False] * inputs),
    }
    if inputs:
        attrs["INPUT_IS_VAR"] = (bool, [False] * inputs)
        attrs["_input_name_key"] = (str, [f"__input{i}" for i in range(inputs)])
        attrs["_input_name_value"] = (int, range(inputs))
    if lib == AI_CORE:
        attrs |= _kernel_attrs(op, noise, kernel_bytes)
    if op.original_names is not None:
        attrs["_datadump_original_op_names"] = (str, op.original_names)
    if len(op.pass_names) == 1:
        attrs["pass_name"] = op.pass_names[0]
    elif op.pass_names:
        attrs["pass_name"] = (str, op.pass_names)
    if op.l1_fusion_group is not None:
        attrs["_L1_fusion_sub_graph_no"] = op.l1_fusion_group
    if op.is_multiop:
        attrs["_datadump_is_multiop"] = True
    if op.parent_index is not None:
        attrs["_parent_node_index"] = op.parent_index
    return attrs | dict(op.attrs)


def _op_text(
    op: Op,
    consumers: list[tuple[str, int]],
    offsets: Mapping[tuple[str, int], int],
    noise: random.Random,
    kernel_bytes: int,
) -> str:
    edges = [edge for edge in op.inputs if edge is not None]
    lines = [f"  op {{\n    name: {_quoted(op.name)}\n    type: {_quoted(op.type)}\n"]
    for edge in op.inputs:
        lines.append(f"    input: {_quoted(f'{edge.producer}:{edge.index}' if edge else '')}\n")
    lines += [f"    input: {_quoted(f'{name}:-1')}\n" for name in op.control_inputs]
    lines.append(_attrs(_op_attrs(op, noise, kernel_bytes), "    "))
    lines.append("    has_out_attr: true\n")
    if op.id:
        lines.append(f"    id: {op.id}\n")
    if op.stream_id:
        lines.append(f"    stream_id: {op.stream_id}\n")
    lines += [f"    src_name: {_quoted(edge.producer)}\n" for edge in edges]
    lines += [f"    src_index: {edge.index}\n" for edge in edges]
    lines += [f"    dst_name: {_quoted(name)}\n" for name, _ in consumers]
    lines += [f"    dst_index: {index}\n" for _, index in consumers]
    lines += [f"    input_i: {offsets.get((edge.producer, edge.index), 0)}\n" for edge in edges]
    lines += [f"    output_i: {offsets.get((op.name, i), 0)}\n" for i in range(len(op.output_descs))]
    lines += ["    is_input_const: false\n"] * len(edges)
    lines += [_desc(desc, "input_desc") for desc in op.input_descs]
    lines += [_desc(desc, "output_desc") for desc in op.output_descs]
    lines += [f"    subgraph_name: {_quoted(name)}\n" for name in op.subgraph_names]
    lines.append("  }\n")
    return "".join(lines)


def graph_text(
    *graphs: Graph, offsets: Mapping[tuple[str, int], int] | None = None, seed: int = 0, kernel_bytes: int = 256
) -> Iterator[str]:
    """The text of a graph file, piece by piece; the root graph comes first.

    `offsets` are the memory offsets of (op, output). Kernel binaries are random bytes of the seed.
    """
    noise = random.Random(seed)
    offsets = offsets or {}
    for graph in graphs:
        consumers: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for op in graph.ops:
            for slot, edge in enumerate(op.inputs):
                if edge is not None:
                    consumers[edge.producer].append((op.name, slot))
        yield f"graph {{\n  name: {_quoted(graph.name)}\n"
        for op in graph.ops:
            yield _op_text(op, consumers[op.name], offsets, noise, kernel_bytes)
        attrs = {"_dynamic_shape_partitioned": False, "_session_graph_id": "0_1", "label_num": 0}
        yield _attrs(attrs | dict(graph.attrs), "  ") + "}\n"
    yield _attrs(
        {
            "event_num": 6,
            "label_num": 0,
            "memory_size": 1 << 30,
            "p2p_memory_size": 0,
            "stream_num": 3,
            "target_type": "MINI",
            "weight_size": 0,
        },
        "",
    )


def write_graph(
    path: Path,
    *graphs: Graph,
    offsets: Mapping[tuple[str, int], int] | None = None,
    seed: int = 0,
    kernel_bytes: int = 256,
) -> int:
    """Write one graph file and return its size."""
    with path.open("w", encoding="ascii", newline="\n") as stream:
        for piece in graph_text(*graphs, offsets=offsets, seed=seed, kernel_bytes=kernel_bytes):
            stream.write(piece)
        return stream.tell()


def write_onnx(path: Path, graph: Graph) -> int:
    """Write the ONNX-like picture of a graph that GE leaves beside the proto file, and return its size."""
    nodes = []
    for op in graph.ops:
        inputs = "".join(f"    input: {_quoted(f'{e.producer}:{e.index}')}\n" for e in op.inputs if e)
        outputs = "".join(f"    output: {_quoted(f'{op.name}:{i}')}\n" for i in range(len(op.output_descs)))
        nodes.append(
            f"  node {{\n{inputs}{outputs}    name: {_quoted(op.name)}\n    op_type: {_quoted('ge:' + op.type)}\n"
            f'    attribute {{\n      name: "id"\n      i: {op.id or 0}\n      type: INT\n    }}\n  }}\n'
        )
    text = f'ir_version: 6\nproducer_name: "GE"\ngraph {{\n{"".join(nodes)}  name: {_quoted(graph.name)}\n}}\n'
    return path.write_text(text, encoding="ascii")


# --- GE's graphs ------------------------------------------------------------------------------------------------------


_GRAPH_NUMBER, GRAPH_ID = 7, 1


def model_name(stamp: str, graph_id: int = GRAPH_ID) -> str:
    """The name of a graph that was compiled at this time (14 digits)."""
    return f"ge_default_{stamp}_{graph_id}"


def write_graphs(folder: Path, stamp: str, ops: Sequence[Op], offsets: Mapping[tuple[str, int], int], seed: int) -> int:
    """Write the computational graph (`graph_path`) and the files GE leaves around it; returns the former's size."""
    session = f"0_{GRAPH_ID}"
    graph = Graph(name=model_name(stamp), ops=tuple(ops), attrs={"_session_graph_id": session})
    number = _GRAPH_NUMBER
    size = write_graph(graph_path(folder), graph, offsets=offsets, seed=seed)
    write_onnx(folder / f"ge_onnx_{number:08d}_graph_{GRAPH_ID}_Build.pbtxt", graph)
    unfused = Graph(name=graph.name, ops=_before_compilation(ops), attrs=graph.attrs)
    write_graph(folder / graph_file_name(number - 4, GRAPH_ID, "PreRunBegin"), unfused)
    for other, other_ops in ((11, _initializers(ops)), (21, _evaluation())):
        decoy = Graph(name=model_name(stamp, other), ops=other_ops, attrs={"_session_graph_id": f"0_{other}"})
        number += 8
        write_graph(folder / graph_file_name(number, other), decoy, seed=seed + other)
    return size


def graph_path(folder: Path) -> Path:
    """Return the path of the computational graph that `write_graphs` writes."""
    return folder / graph_file_name(_GRAPH_NUMBER, GRAPH_ID)


def _before_compilation(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The graph before the compiler touched it: no fused ops, no `Cast`, no `TransData`."""
    result: list[Op] = []
    names: set[str] = set()
    previous: Edge | None = None
    for op in ops:
        for name in op.original_names if op.original_names is not None else (op.name,):
            if name not in names:
                names.add(name)
                op_type = op.type if len(op.original_names or ()) < 2 else name.rsplit("/", 1)[-1]
                inputs = (previous,) if previous and op.inputs else ()
                descs = op.output_descs[:1]
                result.append(
                    Op(name=name, type=op_type, id=len(result), inputs=inputs, input_descs=descs[: len(inputs)],
                       output_descs=descs, kernel_lib=GE_LOCAL)
                )  # fmt: skip
                previous = Edge(producer=name, index=0)
    return tuple(result)


def _initializers(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The graph that gave the variables their first values; it has no data source."""
    result: list[Op] = []
    for variable in (op for op in ops if op.type == "Variable"):
        const = f"{variable.name}/Initializer/const"
        edges = tuple(Edge(producer=name, index=0) for name in (variable.name, const))
        desc = variable.output_descs[:1]
        for name, op_type, inputs in (
            (const, "Constant", ()),
            (variable.name, "Variable", ()),
            (f"{variable.name}/Assign", "Assign", edges),
        ):
            result.append(
                Op(name=name, type=op_type, id=len(result), inputs=inputs, input_descs=desc * len(inputs),
                   output_descs=desc, kernel_lib=GE_LOCAL)
            )  # fmt: skip
    return tuple(result)


def _evaluation() -> tuple[Op, ...]:
    """A graph with a data source of its own that was not dumped."""
    desc = TensorDesc(dtype="float32", layout="ND", shape=(10, 10), origin_layout="ND", origin_shape=(10, 10))
    chain = (
        ("IteratorV2", "IteratorV2"),
        ("IteratorGetNext", "GetNext"),
        ("eval/Softmax", "SoftmaxV2"),
        ("eval/ArgMax", "ArgMaxD"),
        ("NetOutput", "NetOutput"),
    )
    result: list[Op] = []
    for name, op_type in chain:
        inputs = (Edge(producer=result[-1].name, index=0),) if result else ()
        outputs = () if op_type == "NetOutput" else (desc,)
        result.append(
            Op(name=name, type=op_type, id=len(result), inputs=inputs, input_descs=(desc,) * len(inputs),
               output_descs=outputs, kernel_lib=GE_LOCAL)
        )  # fmt: skip
    return tuple(result)
