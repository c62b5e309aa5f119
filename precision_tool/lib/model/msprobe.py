"""What msprobe records of a step of PyTorch or MindSpore: calls of APIs and modules, their arguments and results."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias, Union

from precision_tool.lib.messages import Message

#: The first part of the names of modules, in PyTorch and MindSpore.
MODULE_PREFIXES = ("Module", "Cell")
#: Digits of the largest count of calls that a name can have.
_MAX_DIGITS = 12


class Direction(StrEnum):
    """What of a call an entry records."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"


_DIRECTIONS = {direction.value: direction for direction in Direction}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallName:
    """The name of an entry in its parts.

    `name` is that of the API (`gelu`), or the path of the module (`blocks.1.act`), whose class is `class_name`. `count`
    numbers the calls of an API or a module from 0.
    """

    prefix: str
    name: str
    count: int
    direction: Direction
    class_name: str = ""

    @property
    def is_module(self) -> bool:
        """Whether a module was called, not an API."""
        return self.prefix in MODULE_PREFIXES

    def entry(self, direction: Direction) -> str:
        """Return the name of the entry that records another direction of the same call."""
        parts = [self.prefix, *filter(None, (self.name, self.class_name))]
        ends = (str(direction), str(self.count)) if self.is_module else (str(self.count), str(direction))
        return ".".join([*parts, *ends])


def parse_call_name(text: str) -> CallName | None:
    """Return the parts of an entry's name; None for a name that msprobe does not give.

    Parameters
    ----------
    text : str
        `{prefix}.{api}.{count}.{direction}` or `Module.{path}.{class}.{direction}.{count}`.
    """
    prefix, _, rest = text.partition(".")
    parts = rest.rsplit(".", 2)
    if len(parts) < 3:
        return None
    name, *ends = parts
    direction, count = ends if prefix in MODULE_PREFIXES else ends[::-1]
    class_name = ""
    if prefix in MODULE_PREFIXES:
        name, _, class_name = name.rpartition(".")
    if not (count.isascii() and count.isdecimal() and len(count) <= _MAX_DIGITS):
        return None
    if not prefix or not (name or class_name):
        return None
    which = _DIRECTIONS.get(direction)
    if which is None or (which is Direction.PARAMETERS_GRAD and not class_name):
        return None
    return CallName(prefix=prefix, name=name, count=int(count), direction=which, class_name=class_name)


Number: TypeAlias = float | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTensor:
    """A tensor as an entry describes it. None stands for a figure that was not recorded.

    `dtype` is spelled as the framework does (`torch.bfloat16`). `checksum` is the CRC32 of the bytes in 8 hexadecimal
    digits, or with `0x` and 16 digits the vendor's sum by XOR. `data_name` is the name of the tensor's file as the
    entry has it, which is checked before it is used. `more` has what else is recorded: device mesh, placements, layout.
    """

    type: str
    dtype: str
    shape: tuple[int, ...]
    maximum: Number | None = None
    minimum: Number | None = None
    mean: Number | None = None
    norm: Number | None = None
    requires_grad: bool | None = None
    checksum: str = ""
    data_name: str = ""
    more: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Literal:
    """An argument that is no tensor: a number, a text, a data type, a device; a size has a tuple of numbers."""

    type: str
    value: Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class SliceArgument:
    """An argument that is a slice."""

    start: int | None
    stop: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class DescribedArgument:
    """An argument of another type, by its fields: a process group, a P2P operation."""

    type: str
    fields: Mapping[str, Argument]


Scalar: TypeAlias = str | int | float | bool | None
Argument: TypeAlias = Union[
    RecordedTensor,
    Literal,
    SliceArgument,
    DescribedArgument,
    "tuple[Argument, ...]",
    "Mapping[str, Argument]",
    Scalar,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """An entry: one direction of one call.

    Of a backward entry the inputs are the gradients of the outputs, and the outputs those of the inputs. `parameters`
    are those of a module, or, of its entry `parameters_grad`, their gradients. `call` is None for an unusual name.
    """

    name: str
    call: CallName | None
    inputs: tuple[Argument, ...] = ()
    kwargs: Mapping[str, Argument] = field(default_factory=dict)
    outputs: tuple[Argument, ...] = ()
    parameters: Mapping[str, Argument] = field(default_factory=dict)
    is_recomputed: bool = False

    def tensors(self) -> Iterator[tuple[str, RecordedTensor]]:
        """The tensors with their slots: `input.0`, `input.2.1` in a list, `kwargs.mask`, `output.0`, `parameters.w`."""
        for slot, arguments in (
            ("input", self.inputs),
            ("kwargs", self.kwargs),
            ("output", self.outputs),
            ("parameters", self.parameters),
        ):
            yield from _tensors_in(arguments, slot)


def _tensors_in(argument: Argument, slot: str) -> Iterator[tuple[str, RecordedTensor]]:
    if isinstance(argument, RecordedTensor):
        yield slot, argument
    elif isinstance(argument, tuple):
        for number, item in enumerate(argument):
            yield from _tensors_in(item, f"{slot}.{number}")
    elif isinstance(argument, (Mapping, DescribedArgument)):
        fields = argument if isinstance(argument, Mapping) else argument.fields
        for key, item in fields.items():
            yield from _tensors_in(item, f"{slot}.{key}")


@dataclass(frozen=True, kw_only=True)
class RecordedOp:
    """A call as an op of a graph: its tensors by slot.

    Inputs are the tensors among the arguments in their order; of a backward the gradients of the outputs, and behind
    them the inputs and outputs of its `forward`, where that was recorded. Those of the gradients of a module's
    parameters are the inputs of the `backward` of the call that has the parameters.
    """

    call: RecordedCall
    forward: RecordedCall | None = None
    backward: RecordedCall | None = None

    @property
    def has_parameters_grad(self) -> bool:
        """Whether its outputs are the gradients of parameters."""
        return self.call.call is not None and self.call.call.direction is Direction.PARAMETERS_GRAD

    @cached_property
    def gradients(self) -> tuple[RecordedTensor, ...]:
        """The gradients that a backward is given, which come first among the inputs."""
        backward = self.backward if self.has_parameters_grad else self.call
        if backward is None or backward.call is None or backward.call.direction is not Direction.BACKWARD:
            return ()
        return tuple(tensor for slot, tensor in backward.tensors() if not slot.startswith("output"))

    @property
    def gradient_slots(self) -> tuple[int | None, ...]:
        """The slot of each gradient, in the order of the forward's outputs; None where an output had none."""
        backward = self.backward if self.has_parameters_grad else self.call
        return () if backward is None or not self.gradients else numbered(backward.inputs)

    @cached_property
    def _slots(self) -> tuple[tuple[str, RecordedTensor], ...]:
        call = self.backward if self.has_parameters_grad else self.call
        own = () if call is None else tuple(item for item in call.tensors() if not item[0].startswith("output"))
        of_forward = () if self.forward is None else tuple(self.forward.tensors())
        return (*own, *((f"forward.{slot}", tensor) for slot, tensor in of_forward))

    @property
    def input_slots(self) -> tuple[str, ...]:
        """Where the inputs stand in the entry: `input.0`, `kwargs.mask`, of the forward `forward.input.0`."""
        return tuple(slot for slot, _ in self._slots)

    def tensor_name(self, slot: int) -> str:
        """Return the name of an input after its place, as a benchmark has it: `Functional.linear.0.forward.input.1`."""
        place = self.input_slots[slot]
        if place.startswith("forward.") and self.forward is not None:
            return f"{self.forward.name}.{place.removeprefix('forward.')}"
        call = self.backward if self.has_parameters_grad and self.backward is not None else self.call
        return f"{call.name}.{place}"

    @property
    def inputs(self) -> tuple[RecordedTensor, ...]:
        """The inputs."""
        return tuple(tensor for _, tensor in self._slots)

    @cached_property
    def outputs(self) -> tuple[RecordedTensor, ...]:
        """The outputs; of a module's `parameters_grad` these."""
        side = "parameters" if self.has_parameters_grad else "output"
        return tuple(tensor for slot, tensor in self.call.tensors() if slot.startswith(side))


def numbered(arguments: Iterable[Argument]) -> tuple[int | None, ...]:
    """Return of every argument, also those within others, which of the tensors it is; None for what is no tensor."""
    count = itertools.count()
    return tuple(next(count) if isinstance(item, RecordedTensor) else None for item in _flat(arguments))


def _flat(arguments: Iterable[Argument]) -> Iterator[Argument]:
    for item in arguments:
        if isinstance(item, tuple):
            yield from _flat(item)
        elif isinstance(item, (Mapping, DescribedArgument)):
            yield from _flat((item if isinstance(item, Mapping) else item.fields).values())
        else:
            yield item


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadCall:
    """An entry that could not be read, and why. The others of the file can."""

    name: str
    reason: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStacks:
    """The source lines from which calls were made, the innermost first; `problem` says why calls are missing."""

    frames: Mapping[str, tuple[str, ...]]
    problem: Message | None = None


@dataclass(frozen=True, kw_only=True)
class ModuleTree:
    """The module call in which each call ran, None for one at the top; empty where APIs alone were recorded.

    Megatron's micro steps are in `micro_steps`. `problem` says why calls are missing.
    """

    parents: Mapping[str, str | None]
    micro_steps: Mapping[str, int] = field(default_factory=dict)
    problem: Message | None = None

    @cached_property
    def children(self) -> Mapping[str, Sequence[str]]:
        """The calls that ran in each module call that any ran in."""
        children: dict[str, list[str]] = {}
        for child, parent in self.parents.items():
            if parent is not None:
                children.setdefault(parent, []).append(child)
        return children
