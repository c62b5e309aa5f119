"""Faults, each with the truth about it: what was done, who is to blame, and every name that is a right answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from devices.compiler import Kernel, Stage, computed, exact
from devices.numerics import Array, Device, rounded, truncated
from devices.script import VIEWS, Ref, Script
from devices.simulation import Faults, Run, Tamper, simulate


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is wrong with a run, in the words of the shared sets."""

    cause: str = "none"
    sub: str | None = None
    culprit: str | None = None
    accept: tuple[str, ...] = ()
    #: Other words for the cause that are as right.
    causes: tuple[str, ...] = ()
    made_by: str | None = None
    op_type: str | None = None
    note: str = "no fault: the device's own precision only"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A fault ready to be simulated: the device's faults, and other values of sources on either side."""

    truth: Truth
    faults: Faults = field(default_factory=Faults)
    npu: Mapping[Ref, Array] = field(default_factory=dict)
    golden: Mapping[Ref, Array] = field(default_factory=dict)
    kernels: Mapping[str, Kernel] | None = None


@dataclass(frozen=True)
class Scene:
    """A clean run to put a fault into."""

    script: Script
    kernels: Mapping[str, Kernel]
    device: Device
    run: Run
    golden: Mapping[Ref, Array]
    mixed: bool
    rng: np.random.Generator

    def shuffled(self, kernels: Iterable[Kernel]) -> list[Kernel]:
        """Candidates in random order."""
        listed = list(kernels)
        return [listed[i] for i in self.rng.permutation(len(listed))]

    def fed(self, kernel: Kernel) -> list[Array]:
        """What the kernel read."""
        return [self.run.inputs[kernel.name, slot] for slot in range(len(kernel.inputs))]

    def out(self, kernel: Kernel) -> list[Array]:
        """What it put out."""
        return [self.run.outputs[kernel.name, slot] for slot in range(len(kernel.dtypes))]

    def targets(self, *, made_by_pass: bool | None = None, minimum: int = 24) -> list[Kernel]:
        """Ops of the script, in random order, whose values are numbers of some size that differ from each other."""
        found = []
        for kernel in self.kernels.values():
            if not kernel.stages or not kernel.originals or kernel.type in VIEWS or not kernel.is_dumped:
                continue
            if made_by_pass is not None and made_by_pass is not bool(kernel.passes):
                continue
            y = self.out(kernel)[0]
            if y.dtype.kind != "f" or y.size < minimum or not np.isfinite(y).all() or len(np.unique(y)) < 6:
                continue
            if not self._is_zero_on_paper(kernel):
                found.append(kernel)
        return self.shuffled(found)

    def _is_zero_on_paper(self, kernel: Kernel) -> bool:
        """Whether little is left of what was added: such a tensor is noise on any device."""
        origin = kernel.origins[0]
        if origin is None:
            return False
        y, golden = self.out(kernel)[0].astype(np.float64), self.golden[origin].astype(np.float64)
        size = float(np.sqrt(np.mean(golden**2)))
        return size < 1e-7 or float(np.sqrt(np.mean((y - golden) ** 2))) > 0.1 * size


def _size(array: Array) -> float:
    return float(np.sqrt(np.mean(np.asarray(array, np.float64) ** 2)))


def _off(changed: Array, right: Array) -> float:
    """Relative distance; infinite where one is not finite."""
    difference = np.asarray(changed, np.float64) - np.asarray(right, np.float64)
    if not np.isfinite(difference).all():
        return np.inf
    return _size(difference) / (_size(right) or 1.0)


#: A fault that changes less of a tensor is not worth a search.
_LEAST_EFFECT = 0.003

Change = Callable[[Array], Array]


def _on_first(change: Change) -> Tamper:
    return lambda kernel, fed, outputs: [change(outputs[0]), *outputs[1:]]


def _stage_types(kernel: Kernel) -> tuple[str, ...]:
    return tuple(stage.type for stage in kernel.stages)


def _blamed(scene: Scene, kernel: Kernel, tamper: Tamper, sub: str, note: str, cause: str = "") -> Wrong | None:
    """The fault at one op, or where a pass made it, now and then at all ops that the pass made."""
    affected = [kernel]
    if kernel.passes and scene.rng.random() < 0.4:
        affected = [one for one in scene.kernels.values()
                    if one.passes == kernel.passes and _stage_types(one) == _stage_types(kernel)
                    and scene.out(one)[0].ndim == scene.out(kernel)[0].ndim]  # fmt: skip
    right = scene.out(kernel)
    with np.errstate(all="ignore"):
        changed = tamper(kernel, scene.fed(kernel), right)
        made = [np.asarray(v).astype(r.dtype) for v, r in zip(changed, right, strict=True)]
    if _off(made[0], right[0]) < _LEAST_EFFECT:
        return None
    names = tuple(one.name for one in affected)
    if kernel.passes:
        note += "; all ops of the pass" if len(affected) > 1 else "; one op of the pass"
    found = cause or ("fusion" if kernel.passes else "kernel")
    return Wrong(
        truth=Truth(cause=found, sub=sub, culprit=kernel.name, accept=names, op_type=kernel.type, note=note,
                    made_by=kernel.passes[0] if kernel.passes else None),
        faults=Faults(dict.fromkeys(names, tamper)),
    )  # fmt: skip


def _first(candidates: Iterator[Wrong | None]) -> Wrong | None:
    return next((wrong for wrong in candidates if wrong is not None), None)


# --- kernels ----------------------------------------------------------------------------------------------------------


def _tail(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    copies = bool(scene.rng.random() < 0.5)

    def change(y: Array) -> Array:
        changed = y.copy()
        rows = changed.reshape(1, -1) if y.shape[-1] <= 16 else changed.reshape(-1, y.shape[-1])
        width = min(16, rows.shape[1] // 2)
        rows[:, -width:] = rows[:, -2 * width : -width] if copies else 0
        return changed

    what = "a copy of the one before" if copies else "zero"
    note = f"the last tile of its output (up to 16 values, of every row if rows are longer) is {what}"
    targets = scene.targets(made_by_pass=made_by_pass, minimum=32)
    return _first(_blamed(scene, kernel, _on_first(change), "tail_tile", note) for kernel in targets)


def _shift(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    def candidates() -> Iterator[Wrong | None]:
        for kernel in scene.targets(made_by_pass=made_by_pass):
            axes = [axis for axis, size in enumerate(scene.out(kernel)[0].shape) if size > 3]
            if not axes:
                continue
            axis, by = int(scene.rng.choice(axes)), int(scene.rng.choice([-1, 1]))
            from_end = axis - scene.out(kernel)[0].ndim
            tamper = _on_first(partial(np.roll, shift=by, axis=from_end))
            yield _blamed(scene, kernel, tamper, "shift", f"its output is shifted by {by} along axis {axis}")

    return _first(candidates())


def _channel(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    def candidates() -> Iterator[Wrong | None]:
        for kernel in scene.targets(made_by_pass=made_by_pass):
            y = scene.out(kernel)[0]
            if y.ndim < 2 or y.shape[-1] < 3:
                continue
            place, factor = int(scene.rng.integers(y.shape[-1])), float(scene.rng.choice([-1, 0.5, 1.25, 2]))

            def change(y: Array, place: int = place, factor: float = factor) -> Array:
                changed = y.copy()
                changed[..., place % y.shape[-1]] *= factor
                return changed

            yield _blamed(scene, kernel, _on_first(change), "channel", f"channel {place} is {factor:g} times too large")

    return _first(candidates())


def _with_added(added: float, y: Array) -> Array:
    return np.asarray((y.astype(np.float32) + added).astype(y.dtype))


def _constant(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    def candidates() -> Iterator[Wrong | None]:
        for kernel in scene.targets(made_by_pass=made_by_pass):
            added = float(f"{scene.rng.uniform(0.1, 0.5) * _size(scene.out(kernel)[0]):.3g}")
            tamper = _on_first(partial(_with_added, added))
            yield _blamed(scene, kernel, tamper, "constant", f"{added:g} is added to every element")

    return _first(candidates())


#: Types that are built of an approximated function.
_FUNCTIONS = frozenset({
    "Exp", "Log", "Log1p", "Tanh", "Sigmoid", "Sqrt", "Rsqrt", "Softplus", "Elu", "Gelu", "GeluGrad", "RealDiv",
    "Reciprocal", "SoftmaxV2", "SoftplusGrad", "BNTrainingUpdateV3", "LayerNorm", "LayerNormXBackprop", "ApplyAdamD",
    "ApplyRMSPropD", "SparseSoftmaxCrossEntropyWithLogits", "SigmoidCrossEntropyWithLogits",
    "SigmoidCrossEntropyWithLogitsGrad",
})  # fmt: skip


def _coarse(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    """A table of so few entries that six or seven bits are right."""
    bits = int(scene.rng.integers(6, 8))
    steps = bool(scene.rng.random() < 0.5)

    def change(y: Array) -> Array:
        if steps:
            return rounded(y, bits).astype(y.dtype)
        single = y.astype(np.float32)
        wave = np.sin(9 * np.log2(np.abs(single) + 1e-30))
        return np.asarray((single * (1 + 2.0 ** (0.5 - bits) * wave)).astype(y.dtype))

    def candidates() -> Iterator[Wrong | None]:
        for kernel in scene.targets(made_by_pass=made_by_pass, minimum=10):
            if set(_stage_types(kernel)) & _FUNCTIONS:
                yield _blamed(scene, kernel, _on_first(change), "approx",
                              f"its function is approximated too coarsely ({bits} bits)")  # fmt: skip

    return _first(candidates())


def _whole_type(scene: Scene, types: Sequence[str], tamper: Tamper, sub: str, note: str) -> Wrong | None:
    """A fault of every op of a type."""
    for op_type in types:
        affected = [k for k in scene.kernels.values() if op_type in _stage_types(k) and k.is_dumped]
        if not affected:
            continue
        right = scene.out(affected[0])
        made = tamper(affected[0], scene.fed(affected[0]), right)
        if _off(made[0], right[0]) < _LEAST_EFFECT:
            continue
        names, passes = tuple(kernel.name for kernel in affected), affected[0].passes
        return Wrong(
            truth=Truth(cause="fusion" if passes else "kernel", sub=sub, culprit=names[0], accept=names,
                        causes=("fusion", "kernel") if passes else (), made_by=passes[0] if passes else None,
                        op_type=op_type, note=f"{note}, in every {op_type}"),
            faults=Faults(dict.fromkeys(names, tamper)),
        )  # fmt: skip
    return None


def _epsilon(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    wrong = float(scene.rng.choice([0.03, 0.1, 0.3]))

    def tamper(kernel: Kernel, fed: list[Array], outputs: list[Array]) -> list[Array]:
        stages = tuple(replace(stage, attrs={**stage.attrs, "epsilon": wrong}) for stage in kernel.stages)
        return computed(scene.device, replace(kernel, stages=stages), fed)

    types = ["BNTrainingUpdateV3", "LayerNorm"]
    return _whole_type(scene, types, tamper, "epsilon", f"the epsilon is {wrong:g}")


def _scaled_softmax(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    def tamper(kernel: Kernel, fed: list[Array], outputs: list[Array]) -> list[Array]:
        return [(outputs[0].astype(np.float32) * 1.04).astype(outputs[0].dtype), *outputs[1:]]

    types = ["SoftmaxV2", "Sigmoid", "Tanh", "Gelu", "Softplus"]
    return _whole_type(scene, types, tamper, "scaled_type", "the result is 4 % high")


def _truncating_cast(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    """A cast to float16 that drops bits in place of rounding."""

    def tamper(kernel: Kernel, fed: list[Array], outputs: list[Array]) -> list[Array]:
        return [truncated(fed[0], 11).astype(np.float16)]

    casts = [k for k in scene.kernels.values() if k.type == "Cast" and k.dtypes == ("float16",)
             and scene.fed(k)[0].size >= 64 and len(np.unique(scene.fed(k)[0])) > 32]  # fmt: skip
    for kernel in scene.shuffled(casts):
        changed = tamper(kernel, scene.fed(kernel), [])[0]
        if np.mean(changed != scene.out(kernel)[0]) > 0.3:
            return Wrong(
                truth=Truth(cause="kernel", causes=("kernel", "cast"), sub="truncating_cast", culprit=kernel.name,
                            accept=(kernel.name,), op_type="Cast", note="it drops bits in place of rounding"),
                faults=Faults({kernel.name: tamper}),
            )  # fmt: skip
    return None


# --- fusion -----------------------------------------------------------------------------------------------------------


def _missing_part(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    """A fused op without its bias or its activation."""

    def candidates() -> Iterator[Wrong | None]:
        for kernel in scene.targets(made_by_pass=True):
            parts = [t for t in _stage_types(kernel)[1:] if t in ("BiasAdd", "Relu", "LeakyRelu", "Mul", "Add")]
            if len(kernel.stages) < 2 or not parts:
                continue
            part = str(scene.rng.choice(parts))

            def tamper(kernel: Kernel, fed: list[Array], outputs: list[Array], part: str = part) -> list[Array]:
                kinds = _stage_types(kernel)
                number = len(kinds) - 1 - kinds[::-1].index(part)
                inner = [kind == "stage" for kind, _ in kernel.stages[number].sources].index(True)
                stage = kernel.stages[number]
                plain = replace(stage, type="TransData", sources=(stage.sources[inner],))  # hands on what it reads
                stages = (*kernel.stages[:number], plain, *kernel.stages[number + 1 :])
                return computed(scene.device, replace(kernel, stages=stages), fed)

            sub = "missing_bias" if part == "BiasAdd" else "missing_part"
            note = "the bias is not added" if part == "BiasAdd" else f"{part} is left out"
            yield _blamed(scene, kernel, tamper, sub, note)

    return _first(candidates())


# --- layouts, casts, memory -------------------------------------------------------------------------------------------


def _transposed(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    tamper = _on_first(lambda y: np.ascontiguousarray(np.swapaxes(y, -1, -2)).reshape(y.shape))

    def candidates() -> Iterator[Wrong | None]:
        for kernel in scene.targets():
            shape = scene.out(kernel)[0].shape
            if len(shape) >= 2 and min(shape[-2:]) > 1:
                yield _blamed(scene, kernel, tamper, "transposed", "its output is stored transposed", "layout")

    return _first(candidates())


def _channels_first(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    tamper = _on_first(lambda y: np.ascontiguousarray(y.transpose(0, 3, 1, 2)).reshape(y.shape))
    note = "its output is stored in NCHW order although described as NHWC"

    def candidates() -> Iterator[Wrong | None]:
        for kernel in scene.targets():
            shape = scene.out(kernel)[0].shape
            is_filter = kernel.type.startswith(("Apply", "Conv2DBackpropFilter"))
            if len(shape) == 4 and shape[-1] > 1 and not is_filter:
                yield _blamed(scene, kernel, tamper, "nchw", note, "layout")

    return _first(candidates())


def _through_integers(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    """Two casts that the compiler put before an input."""
    places = [(k, slot) for k in scene.targets() for slot, y in enumerate(scene.fed(k))
              if y.dtype == np.float32 and y.size > 16
              and scene.kernels[k.inputs[slot][0]].stages and _off(np.trunc(y), y) > 0.05]  # fmt: skip
    if not places:
        return None
    kernel, slot = places[int(scene.rng.integers(len(places)))]
    source = kernel.inputs[slot]
    layout = scene.kernels[source[0]].layouts.get(source[1])
    made: dict[str, Kernel] = {}
    numbers = [int(name.rpartition("_")[2]) for name in scene.kernels if name.startswith("trans_Cast_")]
    first = max(numbers, default=-1) + 1
    names = [f"trans_Cast_{first}", f"trans_Cast_{first + 1}"]
    for name, each in scene.kernels.items():
        one = each
        if name == kernel.name:
            ref = source
            for cast, dtype, code in zip(names, ("int32", "float32"), (3, 0), strict=True):
                attrs: dict[str, Any] = {"dst_type": code, "truncate": True}
                made[cast] = _inserted_cast(cast, ref, dtype, attrs, layout)
                ref = (cast, 0)
            one = replace(one, inputs=(*one.inputs[:slot], ref, *one.inputs[slot + 1 :]))
        made[name] = one
    return Wrong(
        truth=Truth(cause="cast", sub="float32_to_int32", culprit=names[0], accept=tuple(names),
                    note=f"float32 goes through int32 before {kernel.name}"),
        kernels=made,
    )  # fmt: skip


def _inserted_cast(name: str, source: Ref, dtype: str, attrs: Mapping[str, Any], layout: str | None) -> Kernel:
    stage = Stage(type="Cast", attrs=attrs, sources=(("input", 0),))
    return Kernel(name=name, type="Cast", inputs=(source,), attrs=attrs, dtypes=(dtype,), origins=(None,),
                  originals=(), stages=(stage,), layouts={0: layout} if layout else {})  # fmt: skip


def _stomp(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    """A run of bytes that another tensor's values overwrite before a reader."""
    places = []
    for kernel in scene.targets():
        for slot, ref in enumerate(kernel.inputs):
            y, producer = scene.run.outputs[ref], scene.kernels[ref[0]]
            is_plain = producer.stages and producer.is_dumped and not producer.layouts and producer.type != "TransData"
            if y.dtype.kind == "f" and y.nbytes >= 192 and is_plain:
                places.append((kernel, slot, ref, y))
    for number in scene.rng.permutation(len(places)):
        kernel, slot, ref, y = places[number]
        length = 32 * int(scene.rng.integers(1, max(2, min(6, y.nbytes // 64))))
        start = 32 * int(scene.rng.integers(0, (y.nbytes - length) // 32))
        noise = (scene.rng.standard_normal(length // y.itemsize) * 2 * _size(y)).astype(y.dtype)

        def change(array: Array, start: int = start, noise: Array = noise) -> Array:
            flat = array.copy().reshape(-1)
            flat[start // array.itemsize :][: len(noise)] = noise
            return flat.reshape(array.shape)

        if _off(change(y), y) > 0.05:
            tensor = f"{ref[0]}:output:{ref[1]}"
            note = f"bytes {start} to {start + length} of {tensor} are overwritten before they are read as"
            return Wrong(
                truth=Truth(cause="stomp", culprit=kernel.name, accept=(ref[0], kernel.name),
                            note=f"{note} {kernel.name}:input:{slot}"),
                faults=Faults(stomps={(kernel.name, slot): change}),
            )  # fmt: skip
    return None


# --- ranges -----------------------------------------------------------------------------------------------------------


def _overflow(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    """A weight that drives one product over the range of float16, on both sides."""
    for kernel in scene.targets():
        if kernel.stages[0].type not in ("MatMulV2", "Conv2D") or kernel.dtypes[0] != "float16":
            continue
        ref = kernel.inputs[1]
        while scene.kernels[ref[0]].originals == ():
            ref = scene.kernels[ref[0]].inputs[0]
        if scene.kernels[ref[0]].type != "Variable" or kernel.name.startswith("gradients"):
            continue
        right = exact(kernel, scene.fed(kernel))[0]
        factor = 65504 * scene.rng.uniform(1.1, 1.7) / float(np.abs(right).max())
        weight = (scene.run.outputs[ref] * factor).astype(np.float32)
        if np.abs(weight).max() > 50000:
            continue
        first = _first_overflow(scene, ref, weight)
        if first is None:
            continue
        kind = "saturates" if scene.device.saturates else "gives Inf"
        note = "the true result is over the 65504 of float16; the inputs are within range; on this device an overflow"
        return Wrong(
            truth=Truth(cause="overflow", sub="saturate" if scene.device.saturates else "infnan", culprit=first.name,
                        accept=(first.name,), op_type=first.type, note=f"{note} {kind}",
                        made_by=first.passes[0] if first.passes else None),
            npu={ref: weight}, golden={ref: weight},
        )  # fmt: skip
    return None


def _first_overflow(scene: Scene, ref: Ref, weight: Array) -> Kernel | None:
    """The first op whose true result is over the range, with another weight; None where it is a cast."""
    run = simulate(scene.kernels, scene.device, sources={ref: weight})
    for kernel in scene.kernels.values():
        if kernel.stages and kernel.dtypes[0] == "float16":
            true = exact(kernel, [run.inputs[kernel.name, slot] for slot in range(len(kernel.inputs))])[0]
            if np.abs(true).max() > 65519:
                return None if kernel.type == "Cast" else kernel
    return None


def _masked_nan(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    """A mask of -1e9, which is -Inf in float16 and gives NaN where the mask is 0."""
    constant: Ref = ("attention/mask/y", 0)
    mask = scene.kernels.get("attention/mask")
    if mask is None or mask.dtypes[0] != "float16" or scene.device.saturates:
        return None
    value = {constant: np.asarray(-1e9, np.float32)}
    source = mask.inputs[1]
    note = "the mask's -1e9 is -Inf in float16, and 0 times it NaN"
    if scene.kernels[source[0]].type == "Const":  # the cast was done when the graph was compiled
        folded: dict[Ref, Array] = {source: np.asarray(-np.inf, np.float16)}
        return Wrong(
            truth=Truth(cause="overflow", causes=("overflow", "cast", "kernel"), sub="masked_nan", culprit=mask.name,
                        accept=(mask.name, source[0]), note=note),
            npu=value | folded, golden=value,
        )  # fmt: skip
    return Wrong(
        truth=Truth(cause="cast", causes=("cast", "overflow"), sub="masked_nan", culprit=source[0],
                    accept=(source[0], mask.name), note=note),
        npu=value, golden=value,
    )  # fmt: skip


# --- what is fed ------------------------------------------------------------------------------------------------------


def _readers(scene: Scene, names: Iterable[str]) -> tuple[str, ...]:
    """Names, and the casts and conversions of them."""
    listed = list(names)
    for kernel in scene.kernels.values():
        if kernel.originals == () and kernel.inputs[0][0] in listed:
            listed.append(kernel.name)
    return tuple(listed)


def _input(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    data = scene.kernels["IteratorGetNext"]
    last = len(data.values) - 1
    index = last if scene.rng.random() < 0.5 else int(scene.rng.integers(0, last + 1))
    right = data.values[index]
    order = scene.rng.permutation(len(right))
    changed, sub = right[order], "labels" if index == last else "shuffled"
    note = "the labels are in another order" if index == last else "one fed tensor has its batch in another order"
    if index < last and right.dtype.kind == "f" and right.ndim == 2 and scene.rng.random() < 0.4:
        changed, sub = ((right - right.mean()) / (right.std() * 1.7)).astype(np.float32), "standardised"
        note = "the NPU side subtracts the mean and divides by the deviation"
    if np.mean(changed != right) < 0.3:
        return None
    return Wrong(
        truth=Truth(cause="input", sub=sub, culprit="IteratorGetNext", accept=_readers(scene, ["IteratorGetNext"]),
                    note=note),
        npu={("IteratorGetNext", index): changed},
    )  # fmt: skip


def _weights(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    variables = [v for v in scene.script.variables if v.value.size >= 24 and len(v.shape) > 1]
    chosen = variables[int(scene.rng.integers(len(variables)))]
    if scene.rng.random() < 0.5:
        changed = scene.rng.permutation(chosen.value.reshape(-1)).reshape(chosen.shape)
        sub, note = "reinit", "the NPU side has its values in another order"
    else:
        noise = scene.rng.standard_normal(chosen.shape) * 0.3 * _size(chosen.value)
        changed, sub = (chosen.value + noise).astype(np.float32), "older"
        note = "the NPU side has other values, as of an older checkpoint"
    return Wrong(
        truth=Truth(cause="weights", sub=sub, culprit=chosen.node, accept=_readers(scene, [chosen.node]), note=note),
        npu={chosen.ref: changed},
    )


def _random(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    drawn = [k for k in scene.kernels.values() if k.type == "RandomUniform"]
    if not drawn:
        return None
    names = tuple(kernel.name for kernel in drawn)
    values = {(k.name, 0): scene.rng.random(k.values[0].shape).astype(np.float32) for k in drawn}
    return Wrong(
        truth=Truth(cause="random", culprit=names[0], accept=names, op_type="RandomUniform",
                    note="random ops draw other numbers than the benchmark"),
        npu=values,
    )  # fmt: skip


def _loss_scale(scene: Scene, made_by_pass: bool | None) -> Wrong | None:
    scale = float(2.0 ** scene.rng.integers(4, 13))
    return Wrong(
        truth=Truth(cause="loss_scale", note="no fault: the NPU side scales its loss by "
                    f"{scale:g} and divides the gradients by it again"),
        npu={("loss_scale", 0): np.asarray(scale, np.float32)}, golden={("loss_scale", 0): np.asarray(1, np.float32)},
    )  # fmt: skip


Maker = Callable[[Scene, bool | None], Wrong | None]

#: Kinds of faults: how one is made, and whether its op must be one that a pass made.
FAULTS: dict[str, tuple[Maker, bool | None]] = {
    "tail": (_tail, False), "shift": (_shift, False), "channel": (_channel, False), "constant": (_constant, False),
    "coarse": (_coarse, False), "epsilon": (_epsilon, None), "scaled_type": (_scaled_softmax, None),
    "truncating_cast": (_truncating_cast, None),
    "fused_tail": (_tail, True), "fused_shift": (_shift, True), "fused_channel": (_channel, True),
    "missing_part": (_missing_part, True),
    "transposed": (_transposed, None), "nchw": (_channels_first, None), "integers": (_through_integers, None),
    "stomp": (_stomp, None), "overflow": (_overflow, None), "masked_nan": (_masked_nan, None),
    "input": (_input, None), "weights": (_weights, None), "random": (_random, None), "loss_scale": (_loss_scale, None),
}  # fmt: skip


def wrong(scene: Scene, kind: str) -> Wrong | None:
    """Return a fault of a kind in this scene, or None where it has no place for one."""
    make, made_by_pass = FAULTS[kind]
    return make(scene, made_by_pass)
