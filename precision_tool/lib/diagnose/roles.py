"""What a tensor is for the training: a variable, the gradient of one, or the loss.

The graph tells: variables are what optimizers update, gradients what they are fed, whatever the slot is called. Of
calls that msprobe recorded, variables are the parameters of modules and gradients those of their `parameters_grad`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import prod

from precision_tool.lib.diagnose.emulation import is_gradient
from precision_tool.lib.diagnose.headroom import LOSS_SCALE
from precision_tool.lib.diagnose.op_values import PASSING, VARIABLE_TYPES
from precision_tool.lib.io import data_types
from precision_tool.lib.model.graph import Edge, GraphFile, Op
from precision_tool.lib.model.table import Row
from precision_tool.lib.ops import op_table
from precision_tool.lib.ops.optimizers import updated_inputs


class Role(StrEnum):
    """What a tensor is for the training."""

    LOSS = "loss"
    VARIABLE = "variable"
    GRADIENT = "gradient"


#: Where optimizers have their variable, which is no moment of it, and their gradient, where their prototypes do not
#: say; None where they have none.
_PLACES: Mapping[str, tuple[int | None, int | None]] = {
    "AdamApplyOneAssign": (3, 0), "AdamApplyOneWithDecayAssign": (3, 0), "LambApplyOptimizerAssign": (None, 0),
    "LambApplyWeightAssign": (4, None), "SGD": (0, 1),
}  # fmt: skip
_GRADIENTS = ("grad", "delta", "gradient", "x1")
_LOSS = re.compile("loss|cost|entropy|criterion", re.IGNORECASE)

#: Role and variable of a tensor.
Roles = dict[str, tuple[str, str]]


def roles_of(rows: Sequence[Row], file: GraphFile | None) -> Roles:
    """Return role and variable of the tensors that were dumped and have one, by their `tensor_index`.

    Of a variable that is what the step leaves of it, where the update dumped that, else what it began with. The loss
    is the number of the forward pass on which most ops act, before all others one that is called so.
    """
    dumped: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.slot and row.pair.npu is not None:
            dumped.setdefault((row.op_name, row.slot), row)
    graph = _Graph(file)
    roles: Roles = {}
    named: set[tuple[Role, str]] = set()
    tensors = graph.recorded() if file is not None and file.framework else _updates(rows, dumped, graph)
    for role, name, places in (*tensors, *graph.losses()):
        place = next((place for place in places if place in dumped), None)
        if place is not None and (role, name) not in named:
            named.add((role, name))
            roles.setdefault(dumped[place].tensor_index, (str(role), name))
            if role is Role.LOSS:
                break
    return roles


#: A tensor with a role: its name, and where its values may have been dumped, in the order in which that is preferred.
_Tensor = tuple[Role, str, Sequence[tuple[str, str]]]


def _updates(rows: Sequence[Row], dumped: Mapping[tuple[str, str], Row], graph: _Graph) -> Iterator[_Tensor]:
    """Yield the variables that ops update, and their gradients."""
    seen: set[str] = set()
    for row in rows:
        name = row.op_name
        if name in seen or not updated_inputs(row.op_type):
            continue
        seen.add(name)
        variable, gradient = _places(row.op_type, name, dumped, graph)
        variable_name = graph.source(name, variable) or name
        if variable is not None:
            places = [(name, f"input:{variable}"), *graph.producer(name, variable)]
            written = updated_inputs(row.op_type)
            if variable in written:
                places.insert(0, (name, f"output:{written.index(variable)}"))
            first = next((dumped[place] for place in places if place in dumped), None)
            # What is counted in whole numbers, as steps are, is not trained.
            if first is not None and first.pair.npu is not None and first.pair.npu.dtype in data_types.FLOATS:
                yield Role.VARIABLE, variable_name, places
        if gradient is not None:
            yield Role.GRADIENT, variable_name, [(name, f"input:{gradient}"), *graph.producer(name, gradient)]


def _places(
    op_type: str, name: str, dumped: Mapping[tuple[str, str], Row], graph: _Graph
) -> tuple[int | None, int | None]:
    """Return the inputs of an update that are its variable and its gradient."""
    if op_type in _PLACES:
        return _PLACES[op_type]
    spec = op_table.find(op_type)
    names = () if spec is None else spec.inputs
    slots = graph.inputs(name) or [slot for slot in range(16) if (name, f"input:{slot}") in dumped]
    if len(slots) == len(names):  # none of them is an attribute, so that they stand where the prototype has them
        return 0, next((names.index(word) for word in _GRADIENTS if word in names), None)
    variable = dumped.get((name, "input:0"))
    if op_type.startswith("Assign") or variable is None or variable.pair.npu is None:
        return 0, None
    size = prod(variable.pair.npu.shape)
    alike = [
        slot for slot in slots[1:]
        if (row := dumped.get((name, f"input:{slot}"))) is not None and row.pair.npu is not None
        and prod(row.pair.npu.shape) == size and not graph.is_variable(name, slot)
    ]  # fmt: skip
    return 0, alike[-1] if alike and size > 1 else None


class _Graph:
    """What a graph says of tensors; without one nothing."""

    def __init__(self, file: GraphFile | None) -> None:
        self._ops: dict[str, Op] = {}
        for op in () if file is None else file.ops:
            self._ops.setdefault(op.name, op)

    def inputs(self, name: str) -> list[int]:
        """Return the connected inputs of an op."""
        op = self._ops.get(name)
        return [] if op is None else [slot for slot, edge in enumerate(op.inputs) if edge is not None]

    def _edge(self, name: str, slot: int | None) -> Edge | None:
        """Return what puts an input out, through what only passes it on."""
        op = self._ops.get(name)
        edge = op.inputs[slot] if op is not None and slot is not None and slot < len(op.inputs) else None
        for _ in range(len(self._ops)):
            producer = None if edge is None else self._ops.get(edge.producer)
            if producer is None or producer.type not in _PASSED or not producer.inputs or producer.inputs[0] is None:
                break
            edge = producer.inputs[0]
        return edge

    def source(self, name: str, slot: int | None) -> str:
        """Return the variable that an input is, "" where that is not known."""
        edge = self._edge(name, slot)
        return "" if edge is None else edge.producer

    def is_variable(self, name: str, slot: int) -> bool:
        """Return whether an input is a variable as it stands."""
        producer = self._ops.get(self.source(name, slot))
        return producer is not None and producer.type in VARIABLE_TYPES

    def producer(self, name: str, slot: int) -> list[tuple[str, str]]:
        """Return where else the tensor of an input may have been dumped: as the output of what put it out."""
        edge = self._edge(name, slot)
        return [] if edge is None else [(edge.producer, f"output:{edge.index}")]

    def recorded(self) -> Iterator[_Tensor]:
        """Yield the parameters of modules and their gradients."""
        for op in self._ops.values():
            if op.recorded is None:
                continue
            call = op.recorded.call
            if op.recorded.has_parameters_grad and call.call is not None:
                places = [place for place, _ in call.tensors() if place.startswith("parameters")]
                for number, place in enumerate(places):
                    name = f"{call.call.name}.{place.split('.')[1]}"
                    yield Role.GRADIENT, name, [(op.name, f"output:{number}")]
            for slot, edge in enumerate(op.inputs):
                producer = None if edge is None else self._ops.get(edge.producer)
                if producer is not None and not producer.is_recorded and producer.type in VARIABLE_TYPES:
                    yield Role.VARIABLE, producer.name, [(op.name, f"input:{slot}")]

    def losses(self) -> Iterator[_Tensor]:
        """Yield what may be the loss, the likeliest first; of one that was not dumped what reads it."""
        readers: dict[tuple[str, int], list[tuple[str, str]]] = {}
        behind: set[str] = set()
        numbers: list[tuple[int, Op, int]] = []
        for number, op in enumerate(self._ops.values()):
            for slot, edge in enumerate(op.inputs):
                if edge is not None:
                    readers.setdefault((edge.producer, edge.index), []).append((op.name, f"input:{slot}"))
            if op.is_recorded and is_gradient(op):
                break  # how gradients are passed on is not recorded
            is_behind = any(edge is not None and edge.producer in behind for edge in op.inputs)
            if is_behind or is_gradient(op) or updated_inputs(op.type):
                behind.add(op.name)
            elif op.inputs and op.type not in PASSING:
                numbers += [(number, op, index) for index in _numbers(op)]
        called = [item for item in numbers if _is_called_loss(item[1])]
        unscaled = [item for item in called if not LOSS_SCALE.search(item[1].name)]
        ranked = [(self._count_above(op), number, op, index) for number, op, index in unscaled or called or numbers]
        best = max(ranked, key=lambda item: item[:2], default=None)
        if best is not None:
            _, _, op, index = best
            yield Role.LOSS, op.name, [(op.name, f"output:{index}"), *readers.get((op.name, index), ())]

    def _count_above(self, op: Op) -> int:
        """Return how many ops act on what an op puts out."""
        above = {op.name}
        left = [op]
        while left:
            for edge in left.pop().inputs:
                if edge is not None and edge.producer not in above:
                    above.add(edge.producer)
                    if edge.producer in self._ops:
                        left.append(self._ops[edge.producer])
        return len(above)


#: What stands between a variable and its update without changing it.
_PASSED = frozenset({"TransData", "Cast", "Identity", "ReadVariableOp"})


def _numbers(op: Op) -> list[int]:
    """Return the outputs of an op that are single floating-point numbers."""
    found = []
    for index, desc in enumerate(op.output_descs):
        shape = desc.origin_shape if desc.origin_shape is not None else desc.shape
        if prod(shape) == 1 and desc.dtype in data_types.FLOATS:
            found.append(index)
    return found


def _is_called_loss(op: Op) -> bool:
    return any(_LOSS.search(name) for name in (op.name, op.type, *(op.original_names or ())))
