"""Recorded calls in a report: short names for the map, and the arguments for the panel of an op."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from precision_tool.lib.diagnose.recorded_formulas import api_of
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import (
    Argument,
    CallName,
    DescribedArgument,
    Direction,
    Literal,
    Number,
    RecordedTensor,
    SliceArgument,
    parse_call_name,
)
from precision_tool.lib.model.wording import shape_text
from precision_tool.lib.ops.torch_apis import builder_of

#: Arguments, or tensors, of a call that are shown, and characters of each.
_MOST_ARGUMENTS, _LONGEST = 40, 160


def short_name(op: Op, reader: Op | None) -> str:
    """Return the name of an op for a small box: `gelu.1`, `linear.3.backward`, `up.weight`, `input.0 · matmul.2`."""
    recorded = op.recorded
    if recorded is not None:
        return _short_call(recorded.call.name, recorded.call.call)
    if reader is not None and op.name.startswith(f"{reader.name}."):
        return f"{op.name[len(reader.name) + 1 :]} · {_short_call(reader.name, parse_call_name(reader.name))}"
    return ".".join(op.name.rsplit(".", 2)[-2:])


def _short_call(name: str, call: CallName | None) -> str:
    if call is None:
        return name
    short = f"{call.class_name or call.name}.{call.count}"
    return short if call.direction is Direction.FORWARD else f"{short}.{call.direction}"


# --- what calls were given --------------------------------------------------------------------------------------------


def arguments_of(op: Op) -> list[str]:
    """Return the arguments of a recorded call that are no tensors: `eps=1e-05`; of a backward those of its forward.

    Names of positional arguments are those of the function where it is known, else their slots. Long ones are cut.
    """
    recorded = op.recorded
    if recorded is None:
        return []
    call = recorded.forward or recorded.call
    names = _parameter_names(api_of(call))
    positional = (
        (names[number] if number < len(names) else f"input.{number}", argument)
        for number, argument in enumerate(call.inputs)
    )
    lines: list[str] = []
    for name, argument in (*positional, *call.kwargs.items()):
        if _are_tensors(argument):
            continue
        if len(lines) == _MOST_ARGUMENTS:
            return [*lines, "…"]
        lines.append(f"{_cut([name])}={_cut(_pieces(argument))}")
    return lines


def tensor_lines(op: Op) -> list[str]:
    """Return the inputs of a recorded call by their slots in the entry: `input.0 bfloat16 [4,16]`."""
    recorded = op.recorded
    if recorded is None:
        return []
    slots = zip(recorded.input_slots[:_MOST_ARGUMENTS], recorded.inputs, strict=False)
    lines = [f"{_cut([slot])} {_type(tensor)} {shape_text(tensor.shape)}" for slot, tensor in slots]
    return [*lines, "…"] if len(recorded.inputs) > _MOST_ARGUMENTS else lines


def figures_of_call(op: Op) -> list[list[str | Number | None]]:
    """Return the recorded tensors of a call, outputs first: slot, smallest, largest, mean, norm."""
    recorded = op.recorded
    if recorded is None:
        return []
    tensors = [
        *((f"output:{number}", tensor) for number, tensor in enumerate(recorded.outputs)),
        *zip(recorded.input_slots, recorded.inputs, strict=True),
    ]
    lines: list[list[str | Number | None]] = []
    for slot, tensor in tensors[:_MOST_ARGUMENTS]:
        figures = (tensor.minimum, tensor.maximum, tensor.mean, tensor.norm)
        lines.append([_cut([slot]), *figures])
    return lines


def _type(tensor: RecordedTensor) -> str:
    return _cut([tensor.dtype.removeprefix("torch.")])


@cache
def _parameter_names(api: str) -> tuple[str, ...]:
    """The names of the positional arguments of a function; none where there is no formula of it."""
    builder = builder_of(api)
    if builder is None:
        return ()
    names = []
    for parameter in inspect.signature(builder).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break
        names.append(parameter.name)
    return tuple(names)


def _are_tensors(argument: Argument) -> bool:
    """Whether an argument is a tensor, or a list of nothing but tensors."""
    if isinstance(argument, tuple):
        return bool(argument) and all(map(_are_tensors, argument))
    return isinstance(argument, RecordedTensor)


def _cut(pieces: Iterable[str]) -> str:
    """A text of pieces, of which no more are asked for than are shown."""
    text = ""
    for piece in pieces:
        text += piece[: _LONGEST + 1]
        if len(text) > _LONGEST:
            return f"{text[:_LONGEST]}…"
    return text


def _pieces(argument: Argument) -> Iterator[str]:
    """An argument as it is written in Python, a piece at a time; tensors by type and shape."""
    if isinstance(argument, RecordedTensor):
        yield f"{_type(argument)}{shape_text(argument.shape)}"
    elif isinstance(argument, Literal):
        yield from _literal(argument)
    elif isinstance(argument, SliceArgument):
        ends = ("" if end is None else str(end) for end in (argument.start, argument.stop))
        yield ":".join((*ends, *([] if argument.step is None else [str(argument.step)])))
    elif isinstance(argument, DescribedArgument):
        yield argument.type
        yield from _listed(argument.fields, "()")
    elif isinstance(argument, (tuple, Mapping)):
        yield from _listed(argument, "[]" if isinstance(argument, tuple) else "{}")
    else:
        yield repr(argument) if isinstance(argument, str) else str(argument)


def _literal(literal: Literal) -> Iterator[str]:
    value = literal.value
    if isinstance(value, tuple):
        yield from _listed(value, "[]")
    else:
        yield repr(value[: _LONGEST + 1]) if isinstance(value, str) and literal.type == "str" else str(value)


def _listed(arguments: Sequence[Argument] | Mapping[str, Argument], brackets: str) -> Iterator[str]:
    yield brackets[0]
    items = arguments.items() if isinstance(arguments, Mapping) else (("", item) for item in arguments)
    for number, (key, item) in enumerate(items):
        yield ", " if number else ""
        yield f"{key}=" if key else ""
        yield from _pieces(item)
    yield brackets[1]
