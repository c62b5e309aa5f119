"""What the graph engine makes of a script: casts, split norms, fused ops and storage layouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from devices.formulas import compute
from devices.numerics import Arithmetic, Array, Device
from devices.script import SOURCES, VIEWS, Node, Ref, Script


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One op within a kernel; `sources` are ("input", slot) or ("stage", number)."""

    type: str
    attrs: Mapping[str, Any]
    sources: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An op of the compiled graph. Its stages pass float32 on and are rounded once, at the end."""

    name: str
    type: str
    inputs: tuple[Ref, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    #: Tensors of the script that the outputs must equal.
    origins: tuple[Ref | None, ...] = ()
    #: Ops of the script; () for an op of the compiler's, None for variables and constants.
    originals: tuple[str, ...] | None = None
    passes: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    values: tuple[Array, ...] = ()
    #: Storage layouts of the outputs, by number, where they are not plain.
    layouts: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_dumped(self) -> bool:
        """Whether it has a dump file."""
        return self.type not in ("Variable", "Const", *VIEWS)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a script is compiled."""

    mixed: bool
    fuses: bool
    formats: bool
    #: Whether casts of constants are done beforehand.
    folds: bool = False


#: Inputs that stay float32 whatever the precision, by type.
_FULL_INPUTS = {
    "BNTrainingUpdateV3": (1, 2, 3, 4), "BNTrainingUpdateGrad": (2, 3), "BNTrainingReduceGrad": (2, 3, 4, 5, 6),
}  # fmt: skip
#: Outputs that are float32 whatever the precision.
_FULL_OUTPUTS = {
    "BNTrainingReduce": (0, 1), "BNTrainingUpdateV3": (1, 2, 3, 4), "BNTrainingUpdateGrad": (0, 1),
    "Conv2DBackpropFilter": (0,),
}  # fmt: skip

#: What is fused: types in a row, the kernel's type, and the pass.
_FUSIONS = (
    (("Conv2D", "BiasAdd", "Relu"), "Conv2D", "TbeConvDequantVaddReluQuantFusionPass"),
    (("Conv2D", "BiasAdd"), "Conv2D", "TbeConvDequantVaddReluQuantFusionPass"),
    (("MatMulV2", "BiasAdd", "Relu"), "MatMulV2", "TbeMatmulElemwiseFusionPass"),
    (("MatMulV2", "BiasAdd", "LeakyRelu"), "MatMulV2", "TbeMatmulElemwiseFusionPass"),
    (("MatMulV2", "BiasAdd"), "MatMulV2", "MatMulBiasAddFusionPass"),
    (("BatchMatMul", "Mul"), "BatchMatMul", "TbeBatchMatmulElementWiseFusionPass"),
    (("Conv2DBackpropInput", "ReluGrad"), "Conv2DBackpropInput", "TbeConv2DBackpropElemwiseFusionPass"),
    (("AddN", "ReluGrad"), "AddN", "TbeEltwiseFusionPass"),
    (("Mul", "Add"), "FusedMulAdd", "MulAddFusionPass"),
)

#: Types that take images in blocks of channels.
_IMAGES = frozenset({
    "Conv2D", "BiasAdd", "Relu", "ReluGrad", "MaxPool", "MaxPoolGrad", "AvgPool", "AvgPoolGradD", "BNTrainingReduce",
    "BNTrainingUpdateV3", "BNTrainingUpdateGrad", "BNTrainingReduceGrad", "Conv2DBackpropInput", "Conv2DBackpropFilter",
    "Add", "AddN", "BiasAddGrad",
})  # fmt: skip
_DST_TYPES = {"float32": 0, "float16": 1, "int32": 3}


class Compiler:
    """Turns the nodes of a script into kernels in execution order."""

    def __init__(self, script: Script, options: Options) -> None:
        self.script, self.options = script, options
        self.kernels: dict[str, Kernel] = {}
        self._of: dict[Ref, Ref] = {}
        self._inserted: dict[tuple[Ref, str], Ref] = {}
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._readers: defaultdict[Ref, int] = defaultdict(int)
        for node in script.nodes.values():
            for ref in node.inputs:
                self._readers[ref] += 1

    def compile(self) -> dict[str, Kernel]:
        """Return the kernels by name."""
        groups = self._groups()
        done: set[str] = set()
        for node in self.script.nodes.values():
            # A group stands where its last op stands, so that all its inputs are there.
            group = groups.get(node.name, [node])
            if node is not group[-1] or node.name in done:
                continue
            done |= {one.name for one in group}
            self._add(group)
        if self.options.formats:
            self.kernels = _Formats(self).run()
        return self.kernels

    # --- fusion ---

    def _groups(self) -> dict[str, list[Node]]:
        groups: dict[str, list[Node]] = {}
        if not self.options.fuses:
            return groups
        nodes = self.script.nodes
        reader_of: dict[Ref, Node] = {ref: node for node in nodes.values() for ref in node.inputs}
        for types, _, _ in _FUSIONS:
            for node in nodes.values():
                row = [node]
                while len(row) < len(types) and row[-1].type == types[len(row) - 1]:
                    ref = (row[-1].name, 0)
                    reader = reader_of.get(ref)
                    if self._readers[ref] != 1 or reader is None or reader.half != node.half:
                        break
                    row.append(reader)
                if tuple(one.type for one in row) != types or any(one.name in groups for one in row):
                    continue
                if types == ("Mul", "Add") and len({self._shape((one.name, 0)) for one in row}) > 1:
                    continue
                groups |= {one.name: row for one in row}
        return groups

    def _shape(self, ref: Ref) -> tuple[int, ...]:
        return self.script.tensor(ref).shape

    # --- kernels ---

    def _add(self, group: list[Node]) -> None:
        node = group[0]
        if node.type in SOURCES:
            self._source(node)
        elif node.type == "FusedBatchNormV3":
            self._batch_norm(node)
        elif node.type == "FusedBatchNormGradV3":
            self._batch_norm_grad(node)
        elif len(group) == 1:
            refs = tuple((node.name, index) for index in range(len(node.dtypes)))
            self._kernel(node.name, node.type, node.inputs, node, refs, (node.name,))
        else:
            self._fused(group)

    def _source(self, node: Node) -> None:
        originals = None if node.type in ("Variable", "Const") else (node.name,)
        refs = tuple((node.name, index) for index in range(len(node.dtypes)))
        self._keep(Kernel(name=node.name, type=node.type, dtypes=node.dtypes, originals=originals, values=node.values,
                          origins=tuple(None if node.type == "Const" else ref for ref in refs)), refs)  # fmt: skip

    def _kernel(
        self, name: str, op_type: str, inputs: Sequence[Ref], node: Node, refs: Sequence[Ref | None],
        originals: tuple[str, ...], passes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        half = self.options.mixed and node.half
        fed = tuple(self._typed(self._of.get(ref, ref), half and slot not in _FULL_INPUTS.get(op_type, ()))
                    for slot, ref in enumerate(inputs))  # fmt: skip
        dtypes = tuple(self._result(ref, slot, op_type, half) for slot, ref in enumerate(refs))
        stage = Stage(type=op_type, attrs=node.attrs, sources=tuple(("input", i) for i in range(len(fed))))
        self._keep(Kernel(name=name, type=op_type, inputs=fed, attrs=node.attrs, dtypes=dtypes, origins=tuple(refs),
                          originals=originals, passes=passes, stages=(stage,)), refs)  # fmt: skip

    def _result(self, ref: Ref | None, slot: int, op_type: str, half: bool) -> str:
        plain = self.script.nodes[ref[0]].dtypes[ref[1]] if ref else "float32"
        if plain != "float32" or not half or slot in _FULL_OUTPUTS.get(op_type, ()):
            return plain
        return "float16"

    def _keep(self, kernel: Kernel, refs: Iterable[Ref | None]) -> None:
        self.kernels[kernel.name] = kernel
        for slot, ref in enumerate(refs):
            if ref is not None:
                self._of[ref] = (kernel.name, slot)

    def _typed(self, ref: Ref, half: bool) -> Ref:
        """The tensor in float16 or float32, by a cast that the compiler puts in where it must."""
        kernel = self.kernels[ref[0]]
        dtype, wanted = kernel.dtypes[ref[1]], "float16" if half else "float32"
        if dtype == wanted or dtype not in ("float16", "float32"):
            return ref
        if (ref, wanted) not in self._inserted and kernel.type == "Const" and self.options.folds:
            name = self.numbered("dynamic_const")
            with np.errstate(over="ignore"):
                value = np.asarray(kernel.values[0].astype(wanted))
            self._keep(Kernel(name=name, type="Const", dtypes=(wanted,), origins=(None,), values=(value,)), ())
            self._inserted[ref, wanted] = (name, 0)
        if (ref, wanted) not in self._inserted:
            name = self.numbered("trans_Cast")
            attrs = {"dst_type": _DST_TYPES[wanted], "truncate": False}
            stage = Stage(type="Cast", attrs=attrs, sources=(("input", 0),))
            self._keep(Kernel(name=name, type="Cast", inputs=(ref,), attrs=attrs, dtypes=(wanted,), origins=(None,),
                              originals=(), stages=(stage,)), ())  # fmt: skip
            self._inserted[ref, wanted] = (name, 0)
        return self._inserted[ref, wanted]

    def numbered(self, what: str) -> str:
        """The next name of an op that the compiler puts in."""
        self._numbers[what] += 1
        return f"{what}_{self._numbers[what] - 1}"

    def _fused(self, group: list[Node]) -> None:
        types = tuple(node.type for node in group)
        _, op_type, made_by = next(fusion for fusion in _FUSIONS if fusion[0] == types)
        half = self.options.mixed and group[0].half
        inputs: list[Ref] = []
        stages: list[Stage] = []
        inner = {(node.name, 0): number for number, node in enumerate(group[:-1])}
        for node in group:
            sources: list[tuple[str, int]] = []
            for ref in node.inputs:
                if ref in inner:
                    sources.append(("stage", inner[ref]))
                else:
                    sources.append(("input", len(inputs)))
                    inputs.append(self._typed(self._of[ref], half))
            stages.append(Stage(type=node.type, attrs=node.attrs, sources=tuple(sources)))
        last = (group[-1].name, 0)
        attrs = {key: value for node in reversed(group) for key, value in node.attrs.items()}
        self._keep(Kernel(name="".join(node.name for node in group), type=op_type, inputs=tuple(inputs),
                          attrs={} if op_type == "FusedMulAdd" else attrs,
                          dtypes=(self._result(last, 0, op_type, half),), origins=(last,),
                          originals=tuple(node.name for node in group), passes=(made_by,),
                          stages=tuple(stages)), [last])  # fmt: skip

    def _batch_norm(self, node: Node) -> None:
        passes = ("FusedBatchnormFusionPass",)
        name, (x, gamma, beta) = node.name, node.inputs
        self._kernel(f"{name}_Reduce", "BNTrainingReduce", (x,), node, (None, None), (name,), passes)
        for index in (0, 1):
            self._of[f"{name}_Reduce", index] = (f"{name}_Reduce", index)
        refs = tuple((name, index) for index in range(5))
        inputs = (x, (f"{name}_Reduce", 0), (f"{name}_Reduce", 1), gamma, beta)
        self._kernel(f"{name}_Update", "BNTrainingUpdateV3", inputs, node, refs, (name,), passes)

    def _batch_norm_grad(self, node: Node) -> None:
        passes = ("FusedBatchnormGradFusionPass",)
        name, (dy, x, gamma, mean, variance) = node.name, node.inputs
        refs: list[Ref] = [(name, 1), (name, 2)]
        self._kernel(f"{name}_Update", "BNTrainingUpdateGrad", (dy, x, mean, variance), node, refs, (name,), passes)
        inputs = (dy, x, *refs, gamma, mean, variance)
        self._kernel(f"{name}_Reduce", "BNTrainingReduceGrad", inputs, node, [(name, 0)], (name,), passes)


class _Formats:
    """Puts in the ops that convert between storage layouts."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.made: dict[str, Kernel] = {}
        self.inserted: dict[tuple[Ref, str], Ref] = {}
        kernels = compiler.kernels.values()
        self.images = _IMAGES if any(kernel.type == "Conv2D" for kernel in kernels) else frozenset[str]()

    def run(self) -> dict[str, Kernel]:
        for kernel in self.compiler.kernels.values():
            inputs = tuple(self._stored(ref, self._wanted(kernel, slot, ref)) for slot, ref in enumerate(kernel.inputs))
            self.made[kernel.name] = replace(kernel, inputs=inputs, layouts=self._results(kernel))
        return self.made

    def _rank(self, kernel: Kernel, slot: int) -> int:
        origin = kernel.origins[slot]
        if origin is not None:
            return len(self.compiler.script.tensor(origin).shape)
        if kernel.originals == ():  # an inserted op has the rank of what it reads
            producer = self.made.get(kernel.inputs[0][0]) or self.compiler.kernels[kernel.inputs[0][0]]
            return self._rank(producer, kernel.inputs[0][1])
        return len(kernel.values[slot].shape) if kernel.values else 1

    def _is_filter(self, kernel: Kernel, slot: int) -> bool:
        if kernel.type == "Variable" or kernel.type.startswith("Apply"):
            return self._rank(kernel, slot) == 4
        if kernel.originals == ():
            producer = self.made.get(kernel.inputs[0][0]) or self.compiler.kernels[kernel.inputs[0][0]]
            return self._is_filter(producer, kernel.inputs[0][1])
        return kernel.type == "Conv2DBackpropFilter"

    def _results(self, kernel: Kernel) -> dict[int, str]:
        if kernel.type == "Conv2DBackpropFilter":
            return {0: "FRACTAL_Z"}
        if kernel.type == "Cast" and kernel.originals == ():
            source, index = kernel.inputs[0]
            layout = self.made[source].layouts.get(index) if source in self.made else None
            return {0: layout} if layout else {}
        if kernel.type in self.images and kernel.type != "BiasAddGrad":
            return {slot: "NC1HWC0" for slot in range(len(kernel.dtypes)) if self._rank(kernel, slot) == 4}
        return {}

    def _wanted(self, kernel: Kernel, slot: int, ref: Ref) -> str:
        source = self.made[ref[0]]
        rank = self._rank(source, ref[1])
        if kernel.type == "Cast" and kernel.originals == ():
            return source.layouts.get(ref[1], "")
        if kernel.type in ("Conv2D", "Conv2DBackpropInput") and slot == (1 if kernel.type == "Conv2D" else 0):
            return "FRACTAL_Z"
        if kernel.type in self.images and rank == 4 and not self._is_filter(source, ref[1]):
            return "NC1HWC0"
        if kernel.type == "MatMulV2" and slot < 2:
            return "FRACTAL_NZ"
        return ""

    def _stored(self, ref: Ref, wanted: str) -> Ref:
        source = self.made[ref[0]]
        layout = source.layouts.get(ref[1], "")
        if layout == wanted:
            return ref
        if source.type == "TransData" and self.made[source.inputs[0][0]].layouts.get(source.inputs[0][1], "") == wanted:
            return source.inputs[0]
        if (ref, wanted) not in self.inserted:
            name = self.compiler.numbered("trans_TransData")
            plain = "HWCN" if self._is_filter(source, ref[1]) else "NHWC" if self._rank(source, ref[1]) == 4 else "ND"
            attrs = {"src_format": layout or plain, "dst_format": wanted or plain, "groups": 1}
            stage = Stage(type="TransData", attrs=attrs, sources=(("input", 0),))
            self.made[name] = Kernel(name=name, type="TransData", inputs=(ref,), attrs=attrs,
                                     dtypes=(source.dtypes[ref[1]],), origins=(None,), originals=(), stages=(stage,),
                                     layouts={0: wanted} if wanted else {})  # fmt: skip
            self.inserted[ref, wanted] = (name, 0)
        return self.inserted[ref, wanted]


def computed(device: Device, kernel: Kernel, inputs: Sequence[Array]) -> list[Array]:
    """Return what a device puts out for a kernel's inputs."""
    done: list[list[Array]] = []
    arithmetic = device.arithmetic(kernel.type, kernel.dtypes[0], kernel.name)
    for stage in kernel.stages:
        fed = [inputs[number] if kind == "input" else done[number][0] for kind, number in stage.sources]
        arithmetic = device.arithmetic(stage.type, kernel.dtypes[0], kernel.name)
        done.append(compute(arithmetic, stage.type, stage.attrs, fed))
    return [arithmetic.store(array, dtype) for array, dtype in zip(done[-1], kernel.dtypes, strict=True)]


def exact(kernel: Kernel, inputs: Sequence[Array]) -> list[Array]:
    """Return what a kernel would put out without rounding."""
    done: list[list[Array]] = []
    for stage in kernel.stages:
        fed = [inputs[number] if kind == "input" else done[number][0] for kind, number in stage.sources]
        done.append(compute(Arithmetic(), stage.type, stage.attrs, fed))
    return done[-1]
