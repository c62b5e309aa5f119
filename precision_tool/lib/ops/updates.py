"""Which inputs of an op are the memory of a variable that it writes: its dump shows them before the update or after."""

from __future__ import annotations

#: Types that begin so have the variable as their first input. What else they write (slots of an optimizer) has no other
#: reader, or an address that tells.
_FIRST = (
    "Assign",
    "Apply",
    "SparseApply",
    "ResourceApply",
    "ResourceSparseApply",
    "FusedMulApply",
    "ResourceFusedMulApply",
)
_SCATTERED = frozenset(
    f"{prefix}{what}"
    for prefix in ("Scatter", "ScatterNd", "ResourceScatter", "ResourceScatterNd")
    for what in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")
)
#: Others, with the places of what they write, as the prototypes name them (the inputs that are outputs as well).
_ELSEWHERE = {
    "SGD": (0, 3, 5),
    "AdamApplyOneAssign": (1, 2, 3),
    "AdamApplyOneWithDecayAssign": (1, 2, 3),
    "LambApplyOptimizerAssign": (1, 2),
    "LambApplyWeightAssign": (4,),
}


def updated_inputs(op_type: str) -> tuple[int, ...]:
    """The inputs of an op, by slot, that it updates in place; none for most types."""
    if op_type.startswith(_FIRST) or op_type in _SCATTERED:
        return (0,)
    return _ELSEWHERE.get(op_type, ())
