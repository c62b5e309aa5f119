"""The gradient that flows into an op's output, as a dump of a training step holds it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.diagnose.emulation import StepEmulator, is_gradient
from precision_tool.lib.diagnose.op_values import Root
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import Direction

Array = npt.NDArray[Any]

#: `gradients/` and the scope of an op with `_grad` at its end: where TensorFlow puts the ops of its gradient.
_SCOPE = re.compile(r"(?:^|.*/)gradients(?:_\d+)?/(.+?)_grad(?:/|$)")


class Adjoints:
    """The derivatives of the loss by the tensors of the forward pass, where they were dumped.

    In TensorFlow the ops of `gradients/NAME_grad/` take the gradient of the output of NAME: what they read from outside
    of their scope that has its shape and is a gradient itself. A recorded backward is given it. Where a call has no
    backward, the gradients that the backwards of its readers put out are added up.

    Parameters
    ----------
    emulator : StepEmulator
        The step.
    """

    def __init__(self, emulator: StepEmulator) -> None:
        self._emulator, self._values = emulator, emulator.values
        #: Ops of the backward pass by the op whose gradient they compute: of recorded calls its backward.
        self._gradients_of: dict[str, list[Op]] = {}
        for op in emulator.ops:
            for name in set(_forward_names(op)):
                self._gradients_of.setdefault(name, []).append(op)
        loss = emulator.loss
        start = None if loss is None else self._of(loss)
        #: The loss scale, which the gradients of the dump contain: that of the loss itself.
        self._scale = float(start.reshape(-1)[0]) if start is not None and start.size == 1 and start.any() else 1.0

    def of(self, root: Root) -> Array | None:
        """Return the derivative of the loss by a tensor, in its shape; None where it was not dumped."""
        if root == self._emulator.loss:
            return np.ones(())
        gradient = self._of(root)
        return None if gradient is None else gradient / self._scale

    def _of(self, root: Root) -> Array | None:
        if root.op.recorded is not None:
            return self._recorded(root)
        return self._of_scope(root)

    # --- TensorFlow ---

    def _of_scope(self, root: Root) -> Array | None:
        if root.index:
            return None
        names = root.op.original_names or (root.op.name,)
        inside = self._gradients_of.get(names[-1], [])
        own = {id(op) for op in inside}
        size = _size(root)
        seen: dict[tuple[int, int], Root] = {}
        for op in inside:
            for source in self._values.producers(op):
                is_outside = id(source.op) not in own
                if is_outside and _is_backward(source.op) and (size is None or _size(source) in (None, size)):
                    seen.setdefault(source.key, source)
        arrays = [loaded.array for source in seen.values() if (loaded := self._emulator.recorded(source)) is not None]
        if size is not None:
            arrays = [array for array in arrays if array.size == size]
        return np.asarray(arrays[0], np.float64) if len(arrays) == 1 else None

    # --- recorded calls ---

    def _recorded(self, root: Root) -> Array | None:
        given = self._given(root)
        return given if given is not None else self._summed(root)

    def _given(self, root: Root) -> Array | None:
        """Return what the op's own backward was given for this output."""
        for op in self._gradients_of.get(root.op.name, []):
            recorded = op.recorded
            if recorded is None or root.index >= len(recorded.gradient_slots):
                continue
            slot = recorded.gradient_slots[root.index]
            taken = None if slot is None else self._emulator.inputs_of(op).inputs.get(slot)
            if taken is not None and taken.array.size == _size(root):
                return np.asarray(taken.array, np.float64)
        return None

    def _summed(self, root: Root) -> Array | None:
        """Return the sum of the gradients that the backwards of all readers put out for this tensor."""
        total: Array | None = None
        for slot in self._values.readers(root):
            if is_gradient(slot.op):
                continue
            part = self._by_reader(slot.op, root, slot.index)
            if part is None:
                return None
            total = part if total is None else total + part
        return total

    def _by_reader(self, reader: Op, root: Root, index: int) -> Array | None:
        alike = [
            slot.index for slot in self._values.input_slots(reader) if _shape_at(reader, slot.index) == _shape(root)
        ]
        for op in self._gradients_of.get(reader.name, []):
            if op.recorded is None or op.recorded.has_parameters_grad:
                continue
            # Inputs that need no gradient have no output: only where shapes tell which is whose.
            fitting = [place for place, desc in enumerate(op.output_descs) if _dims(desc) == _shape(root)]
            if len(fitting) == len(alike) and index in alike:
                loaded = self._emulator.recorded(Root(op, fitting[alike.index(index)]))
                if loaded is not None:
                    return np.asarray(loaded.array, np.float64)
        return None


def _forward_names(op: Op) -> Iterator[str]:
    """Yield the names of the ops whose gradient an op computes."""
    recorded = op.recorded
    if recorded is not None:
        call = recorded.call.call
        if call is not None and call.direction is Direction.BACKWARD and recorded.forward is not None:
            yield recorded.forward.name
        return
    for name in op.original_names or (op.name,):
        match = _SCOPE.match(name)
        if match is not None:
            yield match[1]


def _is_backward(op: Op) -> bool:
    return is_gradient(op) or any("gradients" in name for name in (op.name, *(op.original_names or ())))


def _dims(desc: Any) -> tuple[int, ...] | None:
    shape = desc.origin_shape if desc.origin_shape is not None else desc.shape
    return None if shape is None or min(shape, default=0) < 0 else tuple(shape)


def _shape(root: Root) -> tuple[int, ...] | None:
    desc = root.op.output_desc(root.index)
    return None if desc is None else _dims(desc)


def _shape_at(op: Op, slot: int) -> tuple[int, ...] | None:
    desc = op.input_descs[slot] if slot < len(op.input_descs) else None
    return None if desc is None else _dims(desc)


def _size(root: Root) -> int | None:
    shape = _shape(root)
    return None if shape is None else int(np.prod(shape, dtype=np.int64))
