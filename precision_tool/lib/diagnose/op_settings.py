"""The attributes of an op, or the arguments of a recorded call, one by one: what a smaller case of it may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Protocol

from precision_tool.lib.diagnose.formulas import FORMULA_ERRORS, Formula
from precision_tool.lib.diagnose.recorded_formulas import api_of, recorded_formulas
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import (
    Argument,
    Literal,
    RecordedCall,
    RecordedOp,
    RecordedTensor,
    SliceArgument,
)
from precision_tool.lib.ops.base import Input, NotComputedError
from precision_tool.lib.ops.torch_apis import builder_of

#: Where a setting stands: stage or kind of argument, name, and the place in a list.
Path = tuple[str | int, ...]
Changes = Mapping[Path, Any]
#: Longer lists are data, no settings.
_MOST_NUMBERS = 16


class Settings(Protocol):
    """Settings of an op, and its formula with some of them changed."""

    @property
    def values(self) -> Mapping[Path, Any]:
        """Numbers, flags and texts by path; those of lists one by one."""

    def name(self, path: Path) -> str:
        """Return the name of the attribute or argument that a path leads to; "" for one without."""

    def formula(self, inputs: Mapping[int, Input], changes: Changes) -> Formula:
        """Return the formula for these inputs. NotComputedError where there is none."""


class OpAttributes:
    """Settings of an op of a compiled graph: the attributes of the stages of its formula.

    Parameters
    ----------
    formula : Formula
        The formula, for the op's own inputs.
    inputs : mapping of int to Input
        These inputs.
    """

    def __init__(self, formula: Formula, inputs: Mapping[int, Input]) -> None:
        try:
            self._formula = formula.unshaped()
            self._formula.run(inputs)
        except FORMULA_ERRORS:
            self._formula = formula  # it needs the shapes that the graph says of its results
        self.values: Mapping[Path, Any] = {
            path: value
            for number, stage in enumerate(formula.stages)
            for path, value in _attributes(number, stage.attrs)
        }

    def name(self, path: Path) -> str:
        """As of `Settings`."""
        return str(path[1])

    def formula(self, inputs: Mapping[int, Input], changes: Changes) -> Formula:
        """Return the formula with these attributes."""
        if not changes:
            return self._formula
        stages = []
        for number, stage in enumerate(self._formula.stages):
            own = {path[1:]: value for path, value in changes.items() if path[0] == number}
            stages.append(replace(stage, attrs=_with_changes(stage.attrs, own)) if own else stage)
        return replace(self._formula, stages=tuple(stages))


def _attributes(number: int, attrs: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for name in sorted(attrs):
        try:
            value = attrs[name]
        except FormatError:
            continue
        yield from _settings_in(value, (number, name))


def _settings_in(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, (bool, int, float, str)):
        yield path, value
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_NUMBERS:
        for place, item in enumerate(value):
            yield from _settings_in(item, (*path, place))


def _with_changes(attrs: Mapping[str, Any], changes: Mapping[Path, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in attrs:
        try:
            made[name] = attrs[name]
        except FormatError:
            continue
    for path, value in changes.items():
        made[str(path[0])] = _changed(made[str(path[0])], path[1:], value)
    return made


def _changed(old: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    items = list(old)
    items[int(path[0])] = _changed(items[int(path[0])], path[1:], value)
    return items


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """Settings of a recorded call: its arguments that are no tensors, of a backward those of its forward."""

    op: Op
    recorded: RecordedOp
    #: Place of the formula among those of the call.
    which: int = 0

    @property
    def values(self) -> Mapping[Path, Any]:
        """As of `Settings`."""
        call = _settled(self.recorded)
        values = dict(_arguments_in(call.inputs, ("inputs",)))
        for name, argument in call.kwargs.items():
            values |= dict(_arguments_in(argument, ("kwargs", name)))
        return values

    def name(self, path: Path) -> str:
        """As of `Settings`: of an argument by place that of the function's parameter."""
        if path[0] != "inputs":
            return str(path[1])
        builder = builder_of(api_of(_settled(self.recorded)))
        names = [] if builder is None else list(signature(builder).parameters)
        return names[int(path[1])] if int(path[1]) < len(names) else ""

    def formula(self, inputs: Mapping[int, Input], changes: Changes) -> Formula:
        """Return the formula of the call with these arguments."""
        recorded = self._of_gradients(self.with_changes(changes), inputs)
        made = list(recorded_formulas(self.op, recorded, inputs, {}))
        if self.which >= len(made):
            raise NotComputedError("no_formula", op_type=self.op.type)
        return made[self.which].unshaped()

    def _of_gradients(self, recorded: RecordedOp, inputs: Mapping[int, Input]) -> RecordedOp:
        """Return a backward with the shapes of these inputs: those of its outputs tell which gradients they are."""
        if recorded.forward is None:
            return recorded
        shapes = {
            tensor.shape: inputs[slot].array.shape for slot, tensor in enumerate(recorded.inputs) if slot in inputs
        }
        outputs = {slot: shapes.get(tensor.shape, tensor.shape) for slot, tensor in enumerate(recorded.outputs)}
        return with_shapes(recorded, {slot: tensor.array.shape for slot, tensor in inputs.items()}, outputs)

    def with_changes(self, changes: Changes) -> RecordedOp:
        """Return the call with these arguments."""
        if not changes:
            return self.recorded
        call = _settled(self.recorded)
        inputs: Argument = call.inputs
        kwargs = dict(call.kwargs)
        for path, value in changes.items():
            if path[0] == "inputs":
                inputs = _with_argument(inputs, path[1:], value)
            else:
                name = str(path[1])
                kwargs[name] = _with_argument(kwargs[name], path[2:], value)
        assert isinstance(inputs, tuple)
        changed = replace(call, inputs=inputs, kwargs=kwargs)
        if self.recorded.forward is not None and call is self.recorded.forward:
            return replace(self.recorded, forward=changed)
        return replace(self.recorded, call=changed)


def _settled(recorded: RecordedOp) -> RecordedCall:
    """Return the call whose arguments say what is computed."""
    return recorded.forward if recorded.forward is not None else recorded.call


def _arguments_in(argument: Argument, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(argument, (RecordedTensor, SliceArgument)):
        return
    if isinstance(argument, Literal):
        yield from _settings_in(argument.value, path)
    elif isinstance(argument, tuple):
        for place, item in enumerate(argument):
            yield from _arguments_in(item, (*path, place))
    else:
        yield from _settings_in(argument, path)


def _with_argument(argument: Argument, path: Path, value: Any) -> Argument:
    if not path:
        return replace(argument, value=value) if isinstance(argument, Literal) else value
    if isinstance(argument, Literal):
        return replace(argument, value=tuple(_changed(argument.value, path, value)))
    assert isinstance(argument, tuple)
    items = list(argument)
    place = int(path[0])
    items[place] = _with_argument(items[place], path[1:], value)
    return tuple(items)


def with_shapes(
    recorded: RecordedOp, inputs: Mapping[int, Sequence[int]], outputs: Mapping[int, Sequence[int]]
) -> RecordedOp:
    """Return a recorded op with the shapes of its tensors by slot, as the graph of a smaller case has them."""
    call = _reshaped(recorded.call, inputs, outputs, 0)
    if recorded.forward is None:
        return replace(recorded, call=call)
    own = sum(not slot.startswith("output") for slot, _ in recorded.call.tensors())
    return replace(recorded, call=call, forward=_reshaped(recorded.forward, inputs, {}, own))


def _reshaped(
    call: RecordedCall, inputs: Mapping[int, Sequence[int]], outputs: Mapping[int, Sequence[int]], first: int
) -> RecordedCall:
    def inside(argument: Argument, shapes: Iterator[Sequence[int] | None]) -> Argument:
        if isinstance(argument, RecordedTensor):
            shape = next(shapes)
            return argument if shape is None else replace(argument, shape=tuple(shape))
        if isinstance(argument, tuple):
            return tuple(inside(item, shapes) for item in argument)
        return argument

    of_inputs = (inputs.get(slot) for slot in range(first, 1 << 20))
    of_outputs = (outputs.get(slot) for slot in range(1 << 20))
    return replace(
        call,
        inputs=tuple(inside(item, of_inputs) for item in call.inputs),
        kwargs={name: inside(item, of_inputs) for name, item in call.kwargs.items()},
        outputs=tuple(inside(item, of_outputs) for item in call.outputs),
    )
