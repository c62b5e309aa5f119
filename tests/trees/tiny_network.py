"""Tiny networks that are computed twice, as an NPU and as a benchmark would, and written as a `precision_data` folder.

The formulas are written out here once more; they share no code with the formulas under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from builders import TIMESTAMP, Array, graph_op, leaf_folder, tensor_desc, write_dump, write_golden, write_graph

from precision_tool.lib.demo.dump_writer import OutTensor, dump_file_name
from precision_tool.lib.model.graph import Op

Compute = Callable[..., Array]
Change = Callable[[Array], Array]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One op. Its formula is taken in float64; the NPU stores the result in `dtype`, the benchmark in float32.

    `wrong` changes what the NPU puts out, `read` what it reads as an input, by slot. A source has `npu` and `golden`
    values instead. `originals` is () for an op that the compiler put in; `golden` ops are what the script has.
    """

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    compute: Compute | None = None
    dtype: str = "float32"
    attrs: Mapping[str, Any] = field(default_factory=dict)
    originals: tuple[str, ...] | None = None
    passes: tuple[str, ...] = ()
    npu: Array | None = None
    golden: Array | None = None
    wrong: Change | None = None
    read: Mapping[int, Change] = field(default_factory=dict)
    is_dumped: bool = True
    address: int = 0


@dataclass(frozen=True, kw_only=True)
class Network:
    """Parts in execution order."""

    parts: tuple[Part, ...]
    saturates: bool = False

    def with_part(self, name: str, **changes: Any) -> Network:
        """The network with one part changed."""
        assert any(part.name == name for part in self.parts)
        parts = (replace(part, **changes) if part.name == name else part for part in self.parts)
        return replace(self, parts=tuple(parts))

    def renamed(self, prefix: str) -> Network:
        """The same network with every name behind a prefix."""

        def change(part: Part) -> Part:
            inputs = tuple(f"{prefix}{name}" for name in part.inputs)
            originals = None if part.originals is None else tuple(f"{prefix}{name}" for name in part.originals)
            return replace(part, name=f"{prefix}{part.name}", inputs=inputs, originals=originals)

        return replace(self, parts=tuple(map(change, self.parts)))

    def write(
        self,
        root: Path,
        *,
        run: str = "debug_0",
        benchmark: bool = True,
        inputs: bool = True,
        without_inputs: Sequence[str] = (),
        leave_out: Sequence[str] = (),
    ) -> Path:
        """Writes dump, graph and benchmark below `root`; without `inputs` dump files hold outputs only,
        and so do those of the parts named in `without_inputs`."""
        leaf = leaf_folder(root, run)
        npu: dict[str, Array] = {}
        golden: dict[str, Array] = {}
        ops = [graph_op("IteratorV2", "IteratorV2")]
        for number, part in enumerate(self.parts):
            read = [part.read.get(slot, _same)(npu[name]) for slot, name in enumerate(part.inputs)]
            npu[part.name] = self._npu(part, read)
            golden[part.name] = _golden(part, [golden[name] for name in part.inputs])
            ops.append(_op(part, npu, read))
            if benchmark and part.originals != ():
                origin = part.originals[-1] if part.originals else part.name
                write_golden(root / "tf" / "dump", origin, 0, golden[part.name])
            if part.is_dumped and part.name not in leave_out:
                name = dump_file_name(part.type, part.name, number, TIMESTAMP + number, stream_id=0)
                output = OutTensor(data=npu[part.name], origin_shape=npu[part.name].shape, address=part.address)
                fed = [_fed(array, part) for array in read] if inputs and part.name not in without_inputs else []
                write_dump(leaf / name, part.name, fed, [output])
        write_graph(root, ops, run)
        return root

    def _npu(self, part: Part, read: Sequence[Array]) -> Array:
        if part.compute is None:
            assert part.npu is not None
            made = part.npu
        else:
            with np.errstate(all="ignore"):
                made = np.asarray(part.compute(*(one.astype(np.float64) for one in read)))
                if self.saturates and part.dtype == "float16":
                    made = np.clip(np.nan_to_num(made, nan=0.0, posinf=65504, neginf=-65504), -65504, 65504)
                made = made.astype(part.dtype)
        return made if part.wrong is None else part.wrong(made).astype(made.dtype)


def _golden(part: Part, fed: Sequence[Array]) -> Array:
    if part.compute is None:
        made = part.golden if part.golden is not None else part.npu
        assert made is not None
        return made
    with np.errstate(all="ignore"):
        if part.originals == ():  # the script has no such op
            return fed[0]
        return np.asarray(part.compute(*(one.astype(np.float64) for one in fed))).astype(np.float32)


def _same(array: Array) -> Array:
    return array


def _fed(array: Array, part: Part) -> OutTensor:
    return OutTensor(data=array, origin_shape=array.shape, address=part.address)


def _op(part: Part, npu: Mapping[str, Array], read: Sequence[Array]) -> Op:
    inserted = part.originals == ()
    origin = None if inserted else part.originals[-1] if part.originals else part.name
    fed = [f"{name}:0" for name in part.inputs] or (["IteratorV2:0"] if part.type == "GetNext" else [])
    return graph_op(
        part.name, part.type, fed, input_descs=[*map(tensor_desc, read)],
        output_descs=[tensor_desc(npu[part.name], origin)], original_names=part.originals or (() if inserted else None),
        pass_names=part.passes, attrs=part.attrs,
    )  # fmt: skip


# --- parts ------------------------------------------------------------------------------------------------------------


def source(name: str, array: Array, *, op_type: str = "GetNext", golden: Array | None = None) -> Part:
    """Data, or with another type a variable, a constant, random numbers. Only data and random numbers are dumped."""
    is_dumped = op_type not in ("Variable", "Const")
    return Part(name=name, type=op_type, npu=array, golden=golden, originals=(name,), is_dumped=is_dumped)


def cast(name: str, fed: str, dtype: str = "float16", *, originals: tuple[str, ...] = ()) -> Part:
    """A cast, by the compiler unless it has an original."""
    return Part(
        name=name, type="Cast", inputs=(fed,), compute=np.trunc if "int" in dtype else _same, dtype=dtype,
        originals=originals, attrs={"dst_type": {"float32": 0, "float16": 1, "int32": 3}[dtype]},
    )  # fmt: skip


def matmul(name: str, a: str, b: str, dtype: str = "float16") -> Part:
    """A product of two matrices."""
    return Part(
        name=name, type="MatMulV2", inputs=(a, b), compute=np.matmul, dtype=dtype, originals=(name,),
        attrs={"transpose_x1": False, "transpose_x2": False},
    )  # fmt: skip


def binary(name: str, op_type: str, a: str, b: str, dtype: str = "float16") -> Part:
    """Add, Mul or Sub."""
    compute = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "RealDiv": np.divide}[op_type]
    return Part(name=name, type=op_type, inputs=(a, b), compute=compute, dtype=dtype, originals=(name,))


def unary(name: str, op_type: str, fed: str, dtype: str = "float16") -> Part:
    """Relu, Square, Tanh, Reciprocal."""
    formulas: dict[str, Compute] = {
        "Relu": lambda x: np.maximum(x, 0), "Square": np.square, "Tanh": np.tanh, "Reciprocal": np.reciprocal,
    }  # fmt: skip
    return Part(name=name, type=op_type, inputs=(fed,), compute=formulas[op_type], dtype=dtype, originals=(name,))


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Normal random numbers in float32."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def layers() -> Network:
    """Two dense layers with an activation and a loss in float16, as GE would run them."""
    return Network(
        parts=(
            source("IteratorGetNext", numbers(8, 12, seed=1)),
            source("one/kernel", numbers(12, 16, seed=2, scale=0.3), op_type="Variable"),
            source("two/kernel", numbers(16, 6, seed=3, scale=0.3), op_type="Variable"),
            source("drop/random_uniform/RandomUniform", numbers(8, 16, seed=4), op_type="RandomUniform"),
            cast("trans_Cast_0", "IteratorGetNext"),
            cast("trans_Cast_1", "one/kernel"),
            matmul("one/MatMul", "trans_Cast_0", "trans_Cast_1"),
            unary("one/Relu", "Relu", "one/MatMul"),
            cast("trans_Cast_2", "drop/random_uniform/RandomUniform"),
            binary("drop/mul", "Mul", "one/Relu", "trans_Cast_2"),
            cast("trans_Cast_3", "two/kernel"),
            matmul("two/MatMul", "drop/mul", "trans_Cast_3"),
            unary("two/Tanh", "Tanh", "two/MatMul"),
            cast("trans_Cast_4", "two/Tanh", "float32"),
            unary("loss/Square", "Square", "trans_Cast_4", "float32"),
        )
    )


def scaled_gradients(scale: float = 1024.0, *, unscales: bool = True) -> Network:
    """A gradient that is multiplied by a loss scale, by its reciprocal at the end, and then updates a variable."""
    last = unary("unscale/factor", "Reciprocal", "loss_scale", "float32")
    if not unscales:
        last = unary("unscale/factor", "Tanh", "loss_scale", "float32")
    return Network(
        parts=(
            source("IteratorGetNext", numbers(6, 5, seed=1)),
            source("w", numbers(5, 4, seed=2), op_type="Variable"),
            source("loss_scale", np.array(scale, np.float32), op_type="Variable", golden=np.array(1, np.float32)),
            last,
            binary("gradients/seed", "Mul", "IteratorGetNext", "loss_scale", "float32"),
            cast("trans_Cast_0", "gradients/seed"),
            cast("trans_Cast_1", "w"),
            matmul("gradients/MatMul", "trans_Cast_0", "trans_Cast_1"),
            unary("gradients/Relu", "Relu", "gradients/MatMul"),
            cast("trans_Cast_2", "gradients/Relu", "float32"),
            binary("unscale/mul", "Mul", "trans_Cast_2", "unscale/factor", "float32"),
            source("learned", numbers(6, 4, seed=3), op_type="Variable"),
            source("rate", np.array(0.5, np.float32), op_type="Const"),
            gradient_descent("train/update", "learned", "rate", "unscale/mul"),
        )
    )


def gradient_descent(name: str, variable: str, rate: str, gradient: str) -> Part:
    """The step of a variable against its gradient."""
    return Part(
        name=name, type="ApplyGradientDescent", inputs=(variable, rate, gradient),
        compute=lambda var, alpha, delta: var - alpha * delta, originals=(name,),
    )  # fmt: skip


FUSED = {"originals": ("one/MatMul", "one/Relu"), "passes": ("MatMulReluFusionPass",)}


def fused() -> Network:
    """The first layer as one op that a pass made."""
    network = layers()
    parts = [part for part in network.parts if part.name != "one/Relu"]
    parts = [replace(part, inputs=tuple("one/MatMul" if n == "one/Relu" else n for n in part.inputs)) for part in parts]
    made = replace(network, parts=tuple(parts))
    return made.with_part("one/MatMul", compute=lambda a, b: np.maximum(a @ b, 0), **FUSED)
