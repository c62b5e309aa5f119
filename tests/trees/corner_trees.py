"""Trees whose every op probes one corner of the formats and of the compare rules.

A corner is an op with one output (and seldom inputs) that nothing else depends on, so that many can share a folder and
a graph: both engines treat each as if it were alone. `x` and `y` are the values both sides have, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from builders import TIMESTAMP, graph_file, graph_op, leaf_folder, tensor_desc, write_dump, write_golden, write_graph

from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name, pack
from precision_tool.lib.io.data_types import BY_NAME
from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.model.graph import Op, TensorDesc

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Corner:
    """One op and its output. `golden` None: the benchmark has no such tensor; `stored` None: nothing was dumped.

    `x` are the NPU's values in the order of `golden`, None where nothing can be compared.
    """

    name: str
    stored: OutTensor | None
    golden: Array | None = None
    x: Array | None = None
    origin_layout: str | None = "ND"
    origin_shape: tuple[int, ...] | None = None
    #: The layout the graph tells; the file's unless given.
    graph_layout: str | None = None

    @property
    def op_name(self) -> str:
        """The name of its op."""
        return f"corner/{self.name}"


@dataclass(kw_only=True)
class CornerTree:
    """A dump folder, a benchmark folder and a graph that grow op by op."""

    root: Path
    run: str = "debug_0"
    ops: list[Op] = field(default_factory=list)
    #: tensor index → the values of both sides, for whoever checks figures.
    truth: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    @property
    def leaf(self) -> Path:
        """The folder of the dump files."""
        return leaf_folder(self.root, self.run)

    @property
    def golden(self) -> Path:
        """The benchmark's folder."""
        return self.root / "tf" / "dump"

    @property
    def graph(self) -> Path:
        """The text graph."""
        return graph_file(self.root, self.run)

    @property
    def graph_json(self) -> Path:
        """The same as JSON, which the vendor reads."""
        return self.root / f"{self.run}.json"

    def dump(
        self,
        op_name: str,
        op_type: str = "Add",
        inputs: Sequence[OutTensor] = (),
        outputs: Sequence[OutTensor] = (),
        *,
        time: int | None = None,
        file_name: str | None = None,
        version: int = 2,
    ) -> Path:
        """Writes a dump file. Files get newer one by one unless `time` says otherwise."""
        number = len(self.ops) + 1
        name = file_name or dump_file_name(op_type, op_name, number, time or TIMESTAMP + number, stream_id=0)
        return write_dump(self.leaf / name, op_name, inputs, outputs, version)

    def benchmark(self, op_name: str, array: Array, index: int = 0, timestamp: int = TIMESTAMP) -> Path:
        """Writes a benchmark tensor."""
        return write_golden(self.golden, op_name, index, array, timestamp)

    def add(self, corner: Corner) -> None:
        """One corner: its op, its dump and its benchmark tensor."""
        name, stored = corner.op_name, corner.stored
        if stored is not None:
            self.dump(name, outputs=[stored])
        if corner.golden is not None:
            self.benchmark(name, corner.golden)
        if corner.golden is not None and corner.x is not None:
            self.truth[f"{name}:output:0"] = (corner.x, corner.golden)
        self.ops.append(graph_op(name, output_descs=[self.desc(corner, name)]))

    @staticmethod
    def desc(corner: Corner, origin: str) -> TensorDesc:
        """What the graph says of a corner's output."""
        stored = corner.stored
        shape = corner.origin_shape
        if shape is None and stored is not None:
            shape = stored.origin_shape or stored.storage_shape
        return TensorDesc(
            dtype=stored.dtype_name if stored is not None else "float32",
            layout=corner.graph_layout or (stored.layout if stored is not None else "ND"),
            shape=stored.storage_shape if stored is not None else (),
            origin_layout=corner.origin_layout,
            origin_shape=shape,
            dump_origin_name=origin,
            dump_origin_index=0,
            dump_origin_layout=corner.origin_layout,
        )

    def finish(self) -> None:
        """Writes the graph, text and JSON."""
        ends = [graph_op("NetOutput", "NetOutput", [f"{self.ops[0].name}:0"], output_descs=(), kernel=False)]
        source = [graph_op("IteratorV2", "IteratorV2", output_descs=(), kernel=False)]
        write_graph(self.root, [*source, *self.ops, *ends], self.run)
        self.graph_json.write_text("".join(export_graph(str(self.graph))[0]), encoding="utf-8")
        self.leaf.mkdir(parents=True, exist_ok=True)
        self.golden.mkdir(parents=True, exist_ok=True)


# --- values -----------------------------------------------------------------------------------------------------------


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Float32 values like a network's."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def near(array: Array, error: float = 0.01, seed: int = 99) -> Array:
    """The values with some relative error, float32."""
    factors = 1 + error * np.random.default_rng(seed).standard_normal(array.shape)
    return np.asarray(array.astype(np.float64) * factors, np.float32)


# --- data types -------------------------------------------------------------------------------------------------------


def typed(name: str, values: Array) -> tuple[OutTensor, Array]:
    """The values as a plain tensor of a data type, and what is stored of them."""
    row = BY_NAME[name]
    if row.decode == "numpy":
        stored = values.astype(row.numpy_name)
        return OutTensor(data=stored, dtype=name, origin_shape=values.shape), stored
    if name == "bfloat16":
        stored = values.astype(ml_dtypes.bfloat16)
        return OutTensor(data=stored, dtype=name, origin_shape=values.shape), stored.astype(np.float32)
    raise AssertionError(name)


def data_types() -> list[Corner]:
    """A tensor of every data type that is whole elements of numpy's, or bfloat16."""
    corners = []
    for name, row in BY_NAME.items():
        if row.decode not in ("numpy", "bfloat16"):
            continue
        values = noise(4, 5, seed=3) * 20
        if name.startswith(("uint", "quint", "dual_sub_uint")):
            values = np.abs(values)
        if row.is_complex:
            continue
        stored, x = typed(name, (values > 0) if name == "bool" else values)
        golden = x if name == "bool" else near(x.astype(np.float32))
        if name == "bool":
            golden = x.copy()
            golden[0, 0] = not golden[0, 0]
        corners.append(Corner(name=f"type_{name}", stored=stored, golden=golden, x=x))
    return corners


def bools() -> list[Corner]:
    """Bools against numbers, and numbers against bools."""
    x = noise(4, 5, seed=3) > 0
    other = noise(4, 5, seed=4) > 0
    goldens: dict[str, Array] = {
        "float32": near(np.abs(noise(4, 5, seed=4))), "zeros_and_ones": other.astype(np.float32),
        "the_same": x.astype(np.float32), "int32": x.astype(np.int32) * 3, "uint8": other.astype(np.uint8),
        "float16": (x * 2).astype(np.float16), "float64": near(x).astype(np.float64), "int64": x.astype(np.int64),
    }  # fmt: skip
    corners = [plain(f"bool_{name}", x, golden) for name, golden in goldens.items()]
    for dtype in ("float32", "float16", "int32", "uint8", "float64"):
        values = np.abs(noise(4, 5, seed=6) * 3).astype(dtype)
        corners.append(plain(f"{dtype}_bool", values, other))
    corners.append(plain("bool_scalar", np.array(True), np.array(0.5, np.float32)))
    corners.append(plain("bool_false", np.zeros(6, np.bool_), np.zeros(6, np.float32)))
    return corners


def complex_types() -> list[Corner]:
    """Complex tensors, which abort the vendor's run unless the sizes fit."""
    corners = []
    for name in ("complex64", "complex128"):
        x = (noise(4, 5, seed=5) + 1j * noise(4, 5, seed=6)).astype(name)
        golden = (x * (1 + 0.01 * noise(4, 5, seed=7))).astype(name)
        stored = OutTensor(data=x, dtype=name, origin_shape=x.shape)
        corners.append(Corner(name=f"type_{name}", stored=stored, golden=golden, x=x))
    return corners


def small_types() -> list[Corner]:
    """Types of one byte or less: some the vendor decodes, of others it says that there is no dump file."""
    from precision_tool.lib.io.data_types import value_table

    corners = []
    for name, row in BY_NAME.items():
        if row.decode not in ("table8", "packed"):
            continue
        count = 64
        x: Array | None
        if row.decode == "table8":
            codes = np.arange(32, 32 + count, dtype=np.uint8)
            data, x = codes.tobytes(), value_table(row.numpy_name)[codes]
        else:
            data = np.random.default_rng(8).integers(0, 256, row.byte_size(count), dtype=np.uint8).tobytes()
            # Single bits begin with the highest one; of the other types the vendor says that there is no file.
            x = np.unpackbits(np.frombuffer(data, np.uint8)).astype(np.float32) if name == "uint1" else None
        golden = near(x, 0.05) if x is not None else np.arange(count, dtype=np.float32)
        stored = OutTensor(data=data, dtype=name, shape=(count,), origin_shape=(count,))
        corners.append(Corner(name=f"type_{name}", stored=stored, golden=golden, x=x))
    for name in ("string", "resource"):
        stored = OutTensor(data=bytes(16), dtype=name, shape=(2,), origin_shape=(2,))
        corners.append(Corner(name=f"type_{name}", stored=stored, golden=np.zeros(2, np.float32)))
    return corners


# --- layouts ----------------------------------------------------------------------------------------------------------


def packed(name: str, layout: str, origin: str, shape: tuple[int, ...]) -> Corner:
    """Values in `origin`, stored in `layout`; the benchmark's lie in `origin` too."""
    logical = noise(*shape, seed=len(name) + sum(shape)).astype(np.float16)
    stored = OutTensor.packed(logical, layout, origin)
    return Corner(name=name, stored=stored, golden=near(logical), x=logical, origin_layout=origin, origin_shape=shape)


def permuted(name: str, layout: str, origin: str, shape: tuple[int, ...]) -> Corner:
    """Values with named axes: `shape` in the order of `origin`, stored in the order of `layout`."""
    logical = noise(*shape, seed=len(name) + sum(shape))
    stored = np.ascontiguousarray(logical.transpose([origin.index(axis) for axis in layout]))
    tensor = OutTensor(data=stored, layout=layout, origin_shape=shape, origin_layout=origin)
    return Corner(name=name, stored=tensor, golden=near(logical), x=logical, origin_layout=origin, origin_shape=shape)


def layouts() -> list[Corner]:
    """Every pair of layouts that FORMATS.md §2 names, with and without padding."""
    four = (2, 5, 7, 3)
    corners = []
    for origin in ("NCHW", "NHWC"):
        for channels in (16, 20, 3):
            shape = (2, channels, 5, 4) if origin == "NCHW" else (2, 5, 4, channels)
            corners.append(packed(f"NC1HWC0_{origin}_{channels}", "NC1HWC0", origin, shape))
    for origin, shape in (("HWCN", (3, 3, 20, 17)), ("NCHW", (17, 20, 3, 3)), ("NHWC", (17, 3, 3, 20))):
        corners.append(packed(f"FRACTAL_Z_{origin}", "FRACTAL_Z", origin, shape))
    corners.append(packed("FRACTAL_Z_whole", "FRACTAL_Z", "HWCN", (3, 3, 16, 32)))
    for dims in ((32, 16), (20, 33), (3, 20, 33), (2, 3, 20, 33)):
        name = "x".join(map(str, dims))
        corners.append(packed(f"FRACTAL_NZ_ND_{name}", "FRACTAL_NZ", "ND", dims))
    for origin in ("NCHW", "NHWC"):
        corners.append(packed(f"FRACTAL_NZ_{origin}", "FRACTAL_NZ", origin, (2, 3, 20, 33)))
        corners.append(packed(f"FRACTAL_NZ_{origin}_2d", "FRACTAL_NZ", origin, (20, 33)))
    corners.append(packed("NDC1HWC0_NCDHW", "NDC1HWC0", "NCDHW", (2, 20, 3, 4, 5)))
    corners.append(packed("NDC1HWC0_NDHWC", "NDC1HWC0", "NDHWC", (2, 3, 4, 5, 20)))
    for layout, origin in (
        ("NCHW", "NHWC"), ("NHWC", "NCHW"), ("HWCN", "NCHW"), ("HWCN", "NHWC"), ("NHWC", "HWCN"), ("NCHW", "HWCN"),
        ("NCHW", "NCHW"), ("NHWC", "NHWC"), ("HWCN", "HWCN"),
    ):  # fmt: skip
        corners.append(permuted(f"{layout}_{origin}", layout, origin, four))
    return corners


def odd_layouts() -> list[Corner]:
    """What is declared and what is there disagree."""
    corners = []
    x = noise(2, 5, 4, 20, seed=21).astype(np.float16)
    nchw = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    # A benchmark in NCHW though the graph says NHWC.
    tensor = OutTensor.packed(x, "NC1HWC0", "NHWC")
    corners.append(
        Corner(name="golden_is_NCHW", stored=tensor, golden=near(nchw), x=nchw, origin_layout="NHWC",
               origin_shape=(2, 5, 4, 20))
    )  # fmt: skip
    corners.append(
        Corner(name="golden_is_NHWC", stored=tensor, golden=near(x), x=x, origin_layout="NCHW",
               origin_shape=(2, 20, 5, 4))
    )  # fmt: skip
    # The graph's shape is wrong, the header's right.
    corners.append(
        Corner(name="header_shape_wins", stored=tensor, golden=near(x), x=x, origin_layout="NHWC",
               origin_shape=(1, 1, 1, 800))
    )  # fmt: skip
    # The graph names no origin format, or ND for a blocked layout.
    corners.append(Corner(name="no_origin_format", stored=tensor, golden=near(x), x=x, origin_layout=None))
    corners.append(Corner(name="blocked_origin_ND", stored=tensor, golden=near(x), x=x, origin_layout="ND"))
    # A value per channel.
    for channels in (16, 20, 32):
        vector = noise(channels, seed=channels).astype(np.float16)
        stored = OutTensor(
            data=pack(vector.reshape(1, 1, 1, channels), "NC1HWC0", "NHWC"), layout="NC1HWC0",
            origin_shape=(channels,), origin_layout="NHWC",
        )  # fmt: skip
        corners.append(
            Corner(name=f"per_channel_{channels}", stored=stored, golden=near(vector), x=vector, origin_layout="NHWC")
        )
    return corners


# --- sizes and values -------------------------------------------------------------------------------------------------


def plain(name: str, x: Array, golden: Array, **more: Any) -> Corner:
    """A plain ND tensor."""
    return Corner(name=name, stored=OutTensor(data=x, origin_shape=x.shape), golden=golden, x=x, **more)


def sizes() -> list[Corner]:
    """Shapes: of no, one and other numbers of elements."""
    x = noise(12, seed=31)
    return [
        plain("flat", noise(4, 5), near(noise(4, 5))),
        plain("larger", x, near(x[:10])),
        plain("smaller", x, near(noise(14, seed=31))),
        plain("same_count", noise(3, 4), near(noise(4, 3))),
        plain("same_values_other_rank", noise(3, 4), near(noise(3, 4)).reshape(2, 6)),
        plain("scalar", np.array(2.5, np.float32), np.array(2.4, np.float32)),
        plain("scalar_1", noise(1), near(noise(1))),
        plain("scalar_1x1x1", noise(1, 1, 1), near(noise(1, 1, 1))),
        plain("scalar_half", np.array([1.5], np.float16), np.array([1.5], np.float32)),
        plain("empty", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)),
        plain("empty_against_some", np.zeros((0, 3), np.float32), noise(3)),
        plain("two", noise(2), near(noise(2))),
        plain("rank_5", noise(2, 3, 2, 3, 2), near(noise(2, 3, 2, 3, 2))),
        plain("rank_8", noise(2, 1, 2, 1, 2, 1, 2, 3), near(noise(2, 1, 2, 1, 2, 1, 2, 3))),
        plain("million", noise(1000, 1100, seed=7), near(noise(1000, 1100, seed=7), 0.1)),
    ]


def value_corners() -> list[Corner]:
    """Values that formulas stumble over."""
    x = noise(40, seed=41)
    zeros = np.zeros(40, np.float32)
    with_nan, with_inf, with_minus, other = (x.copy() for _ in range(4))
    with_nan[3] = np.nan
    with_inf[5], with_minus[5] = np.inf, -np.inf
    other[7] = np.nan
    some = x.copy()
    some[::3] = 0
    return [
        plain("equal", x, x),
        plain("negated", x, -x),
        plain("zero_both", zeros, zeros),
        plain("zero_npu", zeros, x),
        plain("zero_golden", x, zeros),
        plain("some_zeros", near(x), some),
        plain("constant", np.full(40, 3, np.float32), near(x)),
        plain("constant_both", np.full(40, 3, np.float32), np.full(40, 3, np.float32)),
        plain("constants_differ", np.full(40, 3, np.float32), np.full(40, 2, np.float32)),
        plain("nan_npu", with_nan, near(x)),
        plain("nan_golden", near(x), with_nan),
        plain("nan_both", with_nan, near(with_nan)),
        plain("nan_elsewhere", with_nan, other),
        plain("inf_npu", with_inf, near(x)),
        plain("inf_golden", near(x), with_inf),
        plain("inf_both", with_inf, with_inf),
        plain("inf_signs", with_inf, with_minus),
        plain("huge", x * np.float32(1e18), near(x) * np.float32(1e18)),
        plain("huge_beyond_float32_squares", x * np.float32(1e30), near(x) * np.float32(1e30)),
        plain("tiny", x * np.float32(1e-18), near(x) * np.float32(1e-18)),
        plain("denormal", x * np.float32(1e-40), near(x) * np.float32(1e-40)),
        plain("offset", x + np.float32(1000), near(x) + np.float32(1000)),
        plain("float64_golden", x, near(x).astype(np.float64)),
        plain("int_golden", np.round(x * 10), np.round(near(x) * 10).astype(np.int32)),
        plain("half_golden", x, near(x).astype(np.float16)),
        plain("half_limit", (x * 30000).clip(-65504, 65504).astype(np.float16), near(x * 30000)),
        plain("large_int", np.arange(40, dtype=np.int64) + (1 << 40), np.arange(40, dtype=np.int64) + (1 << 40)),
    ]


# --- structure --------------------------------------------------------------------------------------------------------


#: An output of `Builder`'s ops.
_VECTOR = np.zeros(20, np.float32)


class Builder:
    """Adds ops of 1-D float32 tensors to a tree, with whatever is odd about them."""

    def __init__(self, tree: CornerTree) -> None:
        self.tree = tree
        self._seed = 100

    def values(self) -> tuple[OutTensor, Array]:
        """A tensor, and a benchmark near it."""
        self._seed += 1
        x = noise(20, seed=self._seed)
        return OutTensor(data=x, origin_shape=x.shape), near(x)

    def op(
        self,
        name: str,
        *,
        op_type: str = "Add",
        inputs: Sequence[str] = (),
        originals: Sequence[str] | None = None,
        outputs: int = 1,
        described: int | None = None,
        origin: str | None = "",
        origin_index: int | None = None,
        dumped: bool = True,
        golden: bool = True,
        fed: Sequence[OutTensor] = (),
        time: int | None = None,
        file_name: str | None = None,
        attrs: dict[str, Any] | None = None,
        is_multiop: bool = False,
        l1: str | None = None,
        subgraphs: tuple[str, ...] = (),
        version: int = 2,
    ) -> list[OutTensor]:
        """One op. `origin` is the original of its outputs: the last of `originals` unless given, None for none."""
        tree = self.tree
        names = (name,) if originals is None else tuple(originals)
        stands_for = (names[-1] if names and names[-1] else name) if origin == "" else origin
        pairs = [self.values() for _ in range(outputs)]
        stored = [tensor for tensor, _ in pairs]
        if dumped:
            tree.dump(name, op_type, fed, stored, time=time, file_name=file_name, version=version)
        for index, (tensor, array) in enumerate(pairs):
            place = index if origin_index is None else origin_index
            if golden and stands_for:
                tree.benchmark(stands_for, array, place)
                if dumped and isinstance(tensor.data, np.ndarray):
                    # An output that the graph does not describe is compared with the benchmark of the first.
                    known = described is None or index < described
                    tree.truth[f"{name}:output:{index}"] = (tensor.data, array if known else pairs[0][1])
        descs = [
            tensor_desc(_VECTOR, stands_for, index if origin_index is None else origin_index)
            for index in range(outputs if described is None else described)
        ]
        op = graph_op(
            name, op_type, inputs, input_descs=[tensor_desc(_VECTOR)] * len(inputs), output_descs=descs,
            original_names=None if originals is None else names, attrs=attrs, is_multiop=is_multiop,
        )  # fmt: skip
        self.tree.ops.append(replace(op, l1_fusion_group=l1, subgraph_names=subgraphs))
        return stored

    def exactly(
        self, name: str, output: OutTensor, originals: Sequence[str], *, op_type: str = "Add", dumped: bool = True
    ) -> None:
        """An op with this output, which stands for that of the last of `originals`; no benchmark."""
        if dumped:
            self.tree.dump(name, op_type, outputs=[output])
        desc = tensor_desc(np.empty(output.storage_shape, np.float32), originals[-1])
        desc = replace(desc, dtype=output.dtype_name)
        self.tree.ops.append(graph_op(name, op_type, output_descs=[desc], original_names=tuple(originals)))

    def stored(self, name: str, output: OutTensor | Array) -> Path:
        """An op with this output, and no benchmark."""
        if not isinstance(output, OutTensor):
            output = OutTensor(data=output, origin_shape=output.shape)
        path = self.tree.dump(name, outputs=[output])
        self.tree.ops.append(graph_op(name))
        return path


def structures(tree: CornerTree) -> None:
    """How ops, original ops and files belong together."""
    build = Builder(tree)
    build.op("one/plain")
    # Files and their names.
    (newer,) = build.op("one/repeated")
    older, _ = build.values()
    tree.dump("one/repeated", outputs=[older], time=TIMESTAMP - 5_000_000)
    del newer
    build.op("one/no_stream", file_name=f"Add.one_no_stream.77.{TIMESTAMP + 777}")
    build.op("one/task_type", file_name=f"Add.one_task_type.78.0.{TIMESTAMP + 778}.0.1.2.0")
    long_name = "one/" + "long_" * 40 + "name"
    build.op(long_name, file_name="1234567890123")
    mapped = f"Add.{long_name.replace('/', '_')}.79.0.{TIMESTAMP + 779}"
    tree.leaf.joinpath("mapping.csv").write_text(f"1234567890123,{mapped}\n", encoding="ascii")
    build.op("one/with.dot and space")
    build.op("one/inputs_and_outputs_apart")
    build.op("one/version_1_file", version=1)
    # Goldens.
    build.op("one/no_golden", golden=False)
    build.op("one/no_dump", dumped=False)
    build.op("one/neither", dumped=False, golden=False)
    build.op("one/two_goldens")
    tree.benchmark("one/two_goldens", noise(20, seed=900), timestamp=TIMESTAMP + 9_000_000)
    tree.truth.pop("one/two_goldens:output:0")
    # Outputs.
    build.op("one/two_outputs", outputs=2)
    build.op("one/undescribed_output", outputs=2, described=1)
    build.op("one/other_index", origin_index=3)
    # Originals.
    build.op("one/renamed", originals=["script/name"])
    build.op("one/empty_original", originals=[""])
    build.op("one/inserted", op_type="Reshape", originals=(), origin=None, golden=False)
    build.op("fused/three", originals=["f/a", "f/b", "f/c"])
    build.op("fused/no_origin", originals=["g/a", "g/b"], origin=None, golden=False)
    (split,) = build.op("split/first", originals=["s/op"], origin=None, golden=False)
    build.op("split/second", originals=["s/op"], inputs=["split/first:0"], fed=[split])
    build.op("split/dumped", originals=["t/op"])
    build.op("split/undumped", originals=["t/op"], dumped=False, golden=False)
    build.op("split/none_1", originals=["u/op"], dumped=False, golden=False)
    build.op("split/none_2", originals=["u/op"], dumped=False)
    build.op("many/first", originals=["m/a", "m/b"], golden=False, origin=None, is_multiop=True)
    build.op("many/second", originals=["m/b", "m/a"], inputs=["many/first:0"], origin="m/b", is_multiop=True)
    for number, names in enumerate((["l/a"], ["l/b"], ["l/c"])):
        build.op(f"l1/op_{number}", originals=names, l1="7")
    for number, names in enumerate((["k/a"], ["k/b"], ["k/c"])):
        build.op(f"l1/undumped_{number}", originals=names, l1="8", dumped=False)
    # Inputs.
    (source,) = build.op("in/source")
    build.op("in/direct", inputs=["in/source:0"], fed=[source])
    build.op("in/cast", op_type="Cast", originals=(), inputs=["in/source:0"], fed=[source], origin=None, golden=False)
    build.op("in/trans", op_type="TransData", originals=(), inputs=["in/cast:0"], origin=None, golden=False,
             dumped=False)  # fmt: skip
    build.op("in/behind_cast_and_trans", inputs=["in/trans:0"], fed=[source])
    build.op("in/two", inputs=["in/source:0", "in/direct:0"], fed=[source, source])
    build.op("in/more_fed_than_connected", inputs=["in/source:0"], fed=[source, source])
    build.op("in/control", inputs=["in/source:0", "in/direct:-1"], fed=[source])
    build.op("in/unknown_producer", inputs=["nowhere:0"], fed=[source])
    build.op("in/no_golden_producer", inputs=["one/no_golden:0"], fed=[source])


def damages(tree: CornerTree) -> None:
    """Files that are not what they should be."""
    build = Builder(tree)

    def damaged(name: str, change: Callable[[bytes], bytes]) -> None:
        build.op(f"bad/{name}")
        (path,) = tree.leaf.glob(f"Add.bad_{name}.*")
        path.write_bytes(change(path.read_bytes()))

    build.op("good/before")
    damaged("cut", lambda data: data[:-8])
    damaged("cut_in_header", lambda data: data[:20])
    damaged("empty", lambda data: b"")
    damaged("garbage", lambda data: bytes(range(256)) * 4)
    damaged("header_too_long", lambda data: b"\xff" * 8 + data[8:])
    damaged("more_bytes", lambda data: data + bytes(64))
    build.op("bad/no_tensors", outputs=0)
    short = OutTensor(data=bytes(40), dtype="float32", shape=(20,), origin_shape=(20,))
    tree.dump("bad/short", outputs=[replace(short, shape=(10,))])
    tree.benchmark("bad/short", noise(20))
    tree.ops.append(graph_op("bad/short", output_descs=[tensor_desc(_VECTOR, "bad/short")]))
    for name, content in (("golden_garbage", b"no array"), ("golden_empty", b""), ("golden_cut", None)):
        build.op(f"bad/{name}")
        (path,) = tree.golden.glob(f"bad_{name}.*")
        path.write_bytes(path.read_bytes()[:-8] if content is None else content)
        tree.truth.pop(f"bad/{name}:output:0")
    build.op("bad/golden_fortran")
    (path,) = tree.golden.glob("bad_golden_fortran.*")
    np.save(path, np.asfortranarray(noise(4, 5, seed=5)))
    build.op("bad/golden_big_endian")
    (path,) = tree.golden.glob("bad_golden_big_endian.*")
    np.save(path, noise(20, seed=5).astype(">f4"))
    build.op("bad/golden_text")
    (path,) = tree.golden.glob("bad_golden_text.*")
    np.save(path, np.array(["a", "b"]))
    for name in ("bad/golden_fortran", "bad/golden_big_endian", "bad/golden_text"):
        tree.truth.pop(f"{name}:output:0")
    build.op("good/after")
    tree.leaf.joinpath("README.txt").write_text("no dump", encoding="ascii")
    tree.leaf.joinpath(f"Stranger.not_in_graph.5.0.{TIMESTAMP}").write_bytes(
        next(iter(tree.leaf.glob("Add.good_before.*"))).read_bytes()
    )


# --- two runs ---------------------------------------------------------------------------------------------------------


def two_runs(one: CornerTree, other: CornerTree) -> None:
    """Two NPU runs that are compared by op name."""
    for run, tree in enumerate((one, other)):
        build = Builder(tree)
        source, _ = build.values()
        build.op("run/same")
        build.op("run/only_in_other" if run else "run/only_in_one")
        build.op("run/two_outputs", outputs=2)
        build.op("run/more_in_other", outputs=1 + run)
        build.op("run/fed", fed=[source])
        build.op("run/fed_more_in_other", fed=[source] * (1 + run))
        build.op("run/repeated")
        tree.dump("run/repeated", outputs=[build.values()[0]], time=TIMESTAMP - 5_000_000)
        for layout, origin, shape in (
            ("NC1HWC0", "NHWC", (2, 5, 4, 20)), ("FRACTAL_Z", "HWCN", (3, 3, 20, 17)), ("NHWC", "NHWC", (2, 5, 7, 3)),
            ("NCHW", "NCHW", (2, 5, 7, 3)), ("HWCN", "HWCN", (2, 5, 7, 3)),
        ):  # fmt: skip
            values = noise(*shape, seed=5)
            values = (near(values, seed=9) if run else values).astype(np.float16)
            build.stored(f"run/{layout}", OutTensor.packed(values, layout, origin))
        for rows, columns in ((20, 33), (32, 16)):
            values = noise(rows, columns, seed=5)
            values = (near(values, seed=9) if run else values).astype(np.float16)
            build.stored(f"run/NZ_{rows}", OutTensor.packed(values, "FRACTAL_NZ", "ND"))
        values = noise(2, 5, 4, 20, seed=6).astype(np.float16)
        build.stored("run/other_layout", OutTensor.packed(values, "NC1HWC0" if run else "NHWC", "NHWC"))
        build.stored("run/other_shape", noise(4, 5) if run else noise(5, 4))
        build.stored("run/other_type", noise(4, 5).astype(np.float16 if run else np.float32))
        build.stored("run/scalar", np.array(2.5 + run, np.float32))
        build.stored("run/zero", np.zeros(9, np.float32))
        build.stored("run/bool", np.array([True, False, bool(run)]))
        build.stored("run/int64", np.arange(9, dtype=np.int64) + run)
        damaged = build.stored("run/damaged", noise(9))
        if not run:
            damaged.write_bytes(b"x" * 40)


# --- two graphs -------------------------------------------------------------------------------------------------------


def two_graphs(fused: CornerTree, unfused: CornerTree) -> None:
    """Two NPU runs that are matched by the ops of the training script, each by its own graph."""
    for run, tree in enumerate((fused, unfused)):
        build = Builder(tree)

        def add(name: str, seed: int, *originals: str, run: int = run, build: Builder = build, **more: Any) -> None:
            x = noise(20, seed=seed)
            values = near(x, seed=9) if run else x
            build.exactly(name, OutTensor(data=values, origin_shape=x.shape), originals or (name,), **more)

        add("same", 1)
        add("other_kind/same", 2, op_type="Conv2D" if run else "Conv2DCompress")
        if run:
            for name, seed in (("f/a", 3), ("f/b", 4), ("f/c", 5)):
                add(name, seed)
            add("only_in_unfused", 6)
            add("r/orig", 7)
            add("named_here", 8, "script/q")
            add("u_ab", 9, "u/a", "u/b")
            add("x/1", 10, "x/a")
            add("x/2", 11, "x/b", "x/c")
        else:
            add("f/af/bf/c", 5, "f/a", "f/b", "f/c")
            add("only_in_fused", 6)
            add("r/new", 7, "r/orig")
            add("script/q", 8)
            add("u/b", 9)
            add("x/12", 11, "x/a", "x/b", "x/c")
        add("in_both_undumped", 12, dumped=False)
        add("undumped_in_unfused", 13, dumped=not run)
        add("undumped_in_fused", 14, dumped=bool(run))
        for number, dtype in enumerate(("float16", "float64", "int32", "int8", "uint8", "int64", "bfloat16", "bool")):
            x = np.abs(noise(4, 5, seed=20 + number) * 20)
            tensor, _ = typed(dtype, (x > 9) ^ (np.arange(20).reshape(4, 5) == 3 * run) if dtype == "bool" else x)
            build.exactly(f"type/{dtype}", tensor, (f"type/{dtype}",))


LISTS: tuple[Callable[[], list[Corner]], ...] = (
    data_types,
    bools,
    small_types,
    layouts,
    odd_layouts,
    sizes,
    value_corners,
)
TREES: tuple[Callable[[CornerTree], None], ...] = (structures, damages)
