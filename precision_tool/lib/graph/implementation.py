"""Whose kernel an op runs: one that CANN brings, or one of the user's own.

The numbers are those of the fusion engine's OpImplType, which a compiled graph keeps in `_fe_imply_type`: their lower
32 bits are the kind, the upper ones a priority among custom ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from precision_tool.lib.errors import FormatError
from precision_tool.lib.model.graph import Op

_KIND, _IS_CUSTOM = "_fe_imply_type", "_is_custom_op"
#: Kinds of OpImplType by number.
_CUSTOM = {0: "CCE", 1: "TIK", 2: "TBE", 10: "TBE, vector core", 11: "TBE, not persistent"}
_BUILT_IN = {
    3: "CCE constant", 4: "CCE", 5: "TIK", 6: "TBE", 7: "runtime", 8: "TBE plug-in", 9: "TBE, vector core", 12: "DSA"
}  # fmt: skip
#: Parts of the paths of kernels and of their sources, below `opp` of an installation.
_CUSTOM_PLACES = ("op_impl/custom", "op_impl/vendors", "opp/vendors/", "/vendors/customize", "libcust_aicpu")
_BUILT_IN_PLACES = ("op_impl/built-in", "opp/built-in/")
#: Kernel libraries that only CANN itself can be: the runtime, the graph engine and communication.
_OWN_LIBRARIES = ("DNN_VM_RTS_OP_STORE", "DNN_VM_RTS_FFTS_PLUS_OP_STORE", "DNN_VM_GE_LOCAL_OP_STORE",
                  "DNN_VM_HOST_CPU_OP_STORE", "ops_kernel_info_hccl")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Implementation:
    """Whether a kernel is `custom`, and what of the graph says so."""

    is_custom: bool
    why: str


def implementation(op: Op) -> Implementation | None:
    """Built-in or custom; None where the graph does not tell."""
    is_custom = _attribute(op, _IS_CUSTOM)
    if is_custom is True or (is_custom == 1 and isinstance(is_custom, int)):
        return Implementation(True, _IS_CUSTOM)
    number = _attribute(op, _KIND)
    if isinstance(number, int) and not isinstance(number, bool):
        kind = number & 0xFFFFFFFF
        for known, custom in ((_CUSTOM, True), (_BUILT_IN, False)):
            if kind in known:
                return Implementation(custom, f"{known[kind]}: {_KIND} {number}")
    for name, path in _paths(op):
        for places, custom in ((_CUSTOM_PLACES, True), (_BUILT_IN_PLACES, False)):
            if any(place in path for place in places):
                return Implementation(custom, f"{name} {path}")
    if op.kernel_lib == "CUSTAICPUKernel":
        return Implementation(True, f"kernel library {op.kernel_lib}")
    if op.kernel_lib in _OWN_LIBRARIES:
        return Implementation(False, f"kernel library {op.kernel_lib}")
    return None


def _attribute(op: Op, name: str) -> object:
    try:
        return op.attrs.get(name)
    except FormatError:  # a damaged attribute says nothing; -a shows what is wrong with it
        return None


def _paths(op: Op) -> Iterator[tuple[str, str]]:
    """Attributes that are paths, by name: releases differ in what they call that of a kernel."""
    for name in sorted(op.attrs):
        if "path" in name or "impl" in name or "kernelSo" in name:
            value = _attribute(op, name)
            if isinstance(value, str):
                yield name, value
