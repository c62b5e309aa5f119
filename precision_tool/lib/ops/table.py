"""The table of all ops whose formula is known, with every family imported."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from precision_tool.lib.ops.base import OpSpec, known_types

#: Each puts its ops into the table when it is imported.
_FAMILIES = (
    "activations",
    "batch_norms",
    "blocks",
    "compare_select",
    "convolution",
    "elementwise",
    "fills",
    "losses",
    "matrix",
    "movement",
    "norms",
    "optimizers",
    "pooling",
    "recurrent",
    "reductions",
    "resize",
    "scatter",
)
for _family in _FAMILIES:
    import_module(f"precision_tool.lib.ops.{_family}")


def find(op_type: str) -> OpSpec | None:
    """What is known of an op type, by GE's or TensorFlow's name."""
    return known_types().get(op_type)


def all_types() -> Iterable[str]:
    """Every name that `find` knows."""
    return known_types().keys()
