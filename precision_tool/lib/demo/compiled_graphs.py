"""The graphs that GE leaves beside a dump: the one that ran, the one before compilation, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from precision_tool.lib.demo.graph_writer import GE_LOCAL, graph_file_name, write_graph, write_onnx
from precision_tool.lib.model.graph import Edge, Graph, Op, TensorDesc

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
    """Where `write_graphs` puts the computational graph."""
    return folder / graph_file_name(_GRAPH_NUMBER, GRAPH_ID)


def _before_compilation(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The graph before the compiler touched it: no fused ops, no `Cast`, no `TransData`."""
    result: list[Op] = []
    seen: set[str] = set()
    previous: Edge | None = None
    for op in ops:
        for name in op.original_names if op.original_names is not None else (op.name,):
            if name not in seen:
                seen.add(name)
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
