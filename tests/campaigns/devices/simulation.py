"""One run of a compiled network on a device, with what is wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from devices.compiler import Kernel, computed
from devices.numerics import Array, Device
from devices.script import Ref

#: Changes what a kernel puts out, from its inputs and its right outputs.
Tamper = Callable[[Kernel, list[Array], list[Array]], list[Array]]


@dataclass(frozen=True)
class Faults:
    """What is wrong: kernels' outputs, and copies of tensors that were overwritten before a kernel read them."""

    tampers: Mapping[str, Tamper] = field(default_factory=dict)
    stomps: Mapping[tuple[str, int], Callable[[Array], Array]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """All tensors of a run: outputs, and inputs as each kernel read them."""

    outputs: Mapping[Ref, Array]
    inputs: Mapping[tuple[str, int], Array]


def simulate(
    kernels: Mapping[str, Kernel], device: Device, faults: Faults | None = None, *, sources: Mapping[Ref, Array]
) -> Run:
    """Run kernels in order; `sources` are values that replace those of the script."""
    faults = faults or Faults()
    outputs: dict[Ref, Array] = {}
    inputs: dict[tuple[str, int], Array] = {}
    for kernel in kernels.values():
        fed = []
        for slot, ref in enumerate(kernel.inputs):
            change = faults.stomps.get((kernel.name, slot))
            fed.append(outputs[ref] if change is None else change(outputs[ref]))
            inputs[kernel.name, slot] = fed[-1]
        if kernel.stages:
            made = computed(device, kernel, fed)
        else:
            made = [sources.get((kernel.name, index), value) for index, value in enumerate(kernel.values)]
        tamper = faults.tampers.get(kernel.name)
        if tamper is not None:
            with np.errstate(all="ignore"):
                made = [np.asarray(v).astype(right.dtype).reshape(right.shape)
                        for v, right in zip(tamper(kernel, fed, made), made, strict=True)]  # fmt: skip
        outputs |= {(kernel.name, index): array for index, array in enumerate(made)}
    return Run(outputs, inputs)
