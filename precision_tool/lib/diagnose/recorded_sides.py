"""What differs between two runs that msprobe recorded, before any op is accused: arguments, calls, shapes, types.

Such differences are told like those of passports, grouped and counted, what most likely makes results differ first.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.msprobe_matching import CallList, CallMatches, match_calls
from precision_tool.lib.data.msprobe_tree import MsprobeRun, find_msprobe
from precision_tool.lib.data.sides import default_golden, default_npu
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.diagnose.passports import Difference, Passport, PassportPair, Plain, Topic, find_passports
from precision_tool.lib.diagnose.recorded_formulas import api_of
from precision_tool.lib.io.files import signature_of
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.msprobe import (
    Argument,
    DescribedArgument,
    Direction,
    Literal,
    RecordedCall,
    RecordedTensor,
    SliceArgument,
    parse_call_name,
)
from precision_tool.lib.ops.torch_apis import builder_of

#: Differences of one kind that are told.
_MAX_TOLD = 3
#: Calls that are held in memory at a time.
_BLOCK = 500
#: Calls that are looked at.
_MAX_CALLS = 50_000
#: Arguments that change no result: where a tensor is, and how it is copied.
_HARMLESS = frozenset({"device", "non_blocking", "memory_format", "pin_memory", "layout", "requires_grad", "inplace"})
#: Types of arguments that name places.
_PLACES = ("device", "memory_format", "generator", "processgroup", "layout")
#: A number that was computed in float32 differs by this much in two right runs.
_ROUNDING = 2.0**-20
_TENSOR = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentDifference:
    """An argument of a call that has another value in the benchmark."""

    op_name: str
    function: str
    name: str
    npu: str
    benchmark: str

    @property
    def message(self) -> Message:
        """It as a sentence."""
        return Message("check.sides.argument", name=self.name, npu=self.npu, benchmark=self.benchmark)


@dataclass
class RecordedSides:
    """What the calls of two dumps that stand for each other differ in, and what one side alone calls."""

    matches: CallMatches
    arguments: list[ArgumentDifference] = field(default_factory=list)
    #: The op, the shapes of the first tensor that has another one; how many tensors, and calls, have.
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    #: How many tensors are of one type on the NPU and of another in the benchmark, and how many there are.
    dtypes: Counter[tuple[str, str]] = field(default_factory=Counter)
    tensors: int = 0

    def of_op(self, name: str) -> list[ArgumentDifference]:
        """Return the other arguments of a call, or of the forward of a backward."""
        call = parse_call_name(name)
        if call is not None and call.direction is Direction.BACKWARD:
            name = call.entry(Direction.FORWARD)
        return self._by_op.get(name, [])

    @cached_property
    def _by_op(self) -> dict[str, list[ArgumentDifference]]:
        by_op: dict[str, list[ArgumentDifference]] = {}
        for each in self.arguments:
            by_op.setdefault(each.op_name, []).append(each)
        return by_op


def compare_recorded(npu: str, golden: str) -> RecordedSides:
    """Compare the calls of two dumps that stand for each other.

    Parameters
    ----------
    npu, golden : str
        The two files `dump.json`.

    Raises
    ------
    FormatError
        One of them is no dump of msprobe.
    """
    return _compared(npu, golden, (signature_of(npu), signature_of(golden)))


@lru_cache(maxsize=2)
def _compared(npu: str, golden: str, _signatures: Hashable) -> RecordedSides:
    matches = match_calls(npu, golden)
    sides = RecordedSides(matches)
    pairs = iter(list(islice(_paired(matches), _MAX_CALLS)))
    while block := list(islice(pairs, _BLOCK)):
        ours = matches.npu.read(number for number, _ in block)
        others = matches.golden.read(number for _, number in block)
        for number, other in block:
            if number in ours and other in others:
                _compare_calls(sides, ours[number], others[other])
    covered = set(sides.dtypes)
    sides.arguments = [
        each
        for each in sides.arguments
        if not (each.npu.startswith("torch.") and (each.npu, each.benchmark) in covered)
    ]
    return sides


def _paired(matches: CallMatches) -> Iterator[tuple[int, int]]:
    """The numbers of the forward entries that stand for each other, in the order of the NPU's."""
    golden_of = {entry: name for name, entry in matches.names().items()}
    for name, call in matches.npu.names.items():
        if call.direction is Direction.FORWARD and name in golden_of:
            yield matches.npu.numbers[name], matches.golden.numbers[golden_of[name]]


def _compare_calls(sides: RecordedSides, call: RecordedCall, other: RecordedCall) -> None:
    there = dict(other.tensors())
    has_other_shape = False
    for slot, tensor in call.tensors():
        sides.tensors += 1
        golden = there.get(slot)
        if golden is None:
            continue
        if golden.dtype != tensor.dtype:
            sides.dtypes[tensor.dtype, golden.dtype] += 1
        if golden.shape != tensor.shape:
            if not has_other_shape:
                sides.shapes.append((f"{call.name}.{slot}", tensor.shape, golden.shape))
            has_other_shape = True
    given = [(_plain(each.inputs), _plain(each.kwargs)) for each in (call, other)]
    if given[0] == given[1]:
        return
    ours, its = _arguments(call), _arguments(other)
    for name in dict.fromkeys([*ours, *its]):
        values = ours.get(name), its.get(name)
        if name in _HARMLESS or _is_alike(*values) or (has_other_shape and _is_extent(*values)):
            continue
        sides.arguments.append(
            ArgumentDifference(
                op_name=call.name, function=_function(call), name=name, npu=str(values[0]), benchmark=str(values[1])
            )
        )


def _function(call: RecordedCall) -> str:
    return call.name if call.call is None else call.call.class_name or call.call.name


# --- arguments --------------------------------------------------------------------------------------------------------


def _arguments(call: RecordedCall) -> dict[str, object]:
    """The arguments of a call by name, with defaults, where the function's are at hand; else by place."""
    args: Sequence[object] = [_plain(argument) for argument in call.inputs]
    kwargs = {name: _plain(argument) for name, argument in call.kwargs.items()}
    named: dict[str, Any] = {}
    builder = builder_of(api_of(call))
    if builder is not None:
        signature = inspect.signature(builder)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # a function of more arguments than the formula has
            pass
        else:
            bound.apply_defaults()
            named = dict(bound.arguments)
            args, kwargs = (), {}
            for name, parameter in signature.parameters.items():
                if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                    args = named.pop(name)
                elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    kwargs = named.pop(name)
    return {**named, **{f"input.{number}": value for number, value in enumerate(args)}, **kwargs}


def _plain(argument: Argument) -> object:
    """An argument as a value that can be compared; places, such as devices, are all alike."""
    if isinstance(argument, RecordedTensor):
        return _TENSOR
    if isinstance(argument, Literal):
        if any(word in argument.type.lower() for word in _PLACES):
            return "…"
        return list(argument.value) if isinstance(argument.value, tuple) else argument.value
    if isinstance(argument, SliceArgument):
        return slice(argument.start, argument.stop, argument.step)
    if isinstance(argument, DescribedArgument):
        return "…"
    if isinstance(argument, tuple):
        return [_plain(item) for item in argument]
    if isinstance(argument, Mapping):
        return {name: _plain(item) for name, item in argument.items()}
    return argument


def _is_alike(left: object, right: object) -> bool:
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_is_alike, left, right))
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (left, right))
    if is_number and (isinstance(left, float) or isinstance(right, float)):
        ours, its = float(left), float(right)  # type: ignore[arg-type]
        return ours == its or (math.isnan(ours) and math.isnan(its)) or math.isclose(ours, its, rel_tol=_ROUNDING)
    return left == right


def _is_extent(*values: object) -> bool:
    """Whether values are whole numbers, which follow from shapes that differ."""
    return all(
        isinstance(value, int) or (isinstance(value, (list, tuple)) and _is_extent(*value)) for value in values
    ) and not any(isinstance(value, bool) for value in values)


# --- as differences of two runs ---------------------------------------------------------------------------------------


def find_differences(space: Workspace, npu: str | None = None, golden: str | None = None) -> PassportPair | None:
    """Return what two runs differ in, by their passports and by what msprobe recorded; None where neither tells.

    By default of the data folder. The comparison reports what cannot be read.
    """
    pair = find_passports(space, npu, golden)
    try:
        npu = npu or default_npu(space)
        golden = golden or default_golden(space, npu)
        if not (MSPROBE.lies_at(npu) and MSPROBE.lies_at(golden)):
            return pair
        runs = find_msprobe(npu), find_msprobe(golden)
        paths = _first_of_both(*runs)
        differences = [*differences_of(compare_recorded(*paths)), *_places(*runs)]
    except PrecisionToolError:
        return pair
    if pair is None:
        pair = PassportPair(npu=_passport(paths[0], "npu"), other=_passport(paths[1], "benchmark"), differences=())
    order = list(Topic)
    together = sorted([*pair.differences, *differences], key=lambda each: order.index(each.topic))
    return replace(pair, differences=tuple(together))


def _passport(path: str, side: str) -> Passport:
    return Passport(
        path=path, side=side, written="", versions={}, environment={}, switches={}, seeds={}, optimizers=(),
        variables={}, batch={}, left_out={},
    )  # fmt: skip


def _first_of_both(npu: MsprobeRun, golden: MsprobeRun) -> tuple[str, str]:
    """The first step and rank that both runs have; else the first of each."""
    places = {(leaf.step, leaf.rank): leaf.dump for leaf in reversed(golden.leaves)}
    for leaf in npu.leaves:
        if (leaf.step, leaf.rank) in places:
            return leaf.dump, places[leaf.step, leaf.rank]
    return npu.leaves[0].dump, golden.leaves[0].dump


def differences_of(sides: RecordedSides) -> list[Difference]:
    """Return what two dumps differ in, what most likely makes results differ first."""
    return [
        *_other_arguments(sides.arguments),
        *_one_sided(sides.matches),
        *_shapes(sides),
        *_order(sides.matches),
        *_recording(sides.matches),
        *_dtypes(sides),
    ]


def _difference(topic: Topic, names: Iterable[str], npu: Plain, benchmark: Plain, message: Message) -> Difference:
    return Difference(topic=topic, names=tuple(names), npu=npu, benchmark=benchmark, message=message)


def _other_arguments(arguments: Sequence[ArgumentDifference]) -> Iterator[Difference]:
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for each in arguments:
        groups.setdefault((each.function, each.name, each.npu, each.benchmark), []).append(each.op_name)
    for number, ((function, name, npu, benchmark), ops) in enumerate(groups.items()):
        if number == _MAX_TOLD:
            more = [op for rest in islice(groups.values(), _MAX_TOLD, None) for op in rest]
            message = Message("check.sides.more_arguments", count=len(groups) - _MAX_TOLD, ops=len(set(more)))
            yield _difference(Topic.ARGUMENTS, more, None, None, message)
            return
        message = Message(
            "check.sides.arguments", function=function, name=name, npu=npu, benchmark=benchmark, count=len(ops),
            op=ops[0],
        )  # fmt: skip
        yield _difference(Topic.ARGUMENTS, ops, npu, benchmark, message)


def _one_sided(matches: CallMatches) -> Iterator[Difference]:
    """Calls of functions that one side alone has, with what the other computes in their place in the same modules."""
    rest = _alone(matches.npu, set(matches.counterparts)), _alone(matches.golden, set(matches.counterparts.values()))
    replaced: set[str] = set()
    for number, (api, bases) in enumerate(rest[0].items()):
        if number == _MAX_TOLD:
            more = [base for rest_of in islice(rest[0].values(), _MAX_TOLD, None) for base in rest_of]
            message = Message("check.sides.more_calls", count=len(more), is_npu=True)
            yield _difference(Topic.CALLS, more, len(more), 0, message)
            break
        modules = {matches.npu.apis[base].module for base in bases} - {""}
        others = [
            other for other, its in rest[1].items() if any(matches.golden.apis[base].module in modules for base in its)
        ]
        replaced.update(others)
        message = Message("check.sides.only", api=api, count=len(bases), is_npu=True, others=others or None)
        yield _difference(Topic.CALLS, bases, len(bases), 0, message)
    alone = {api: bases for api, bases in rest[1].items() if api not in replaced}
    for number, (api, bases) in enumerate(alone.items()):
        if number == _MAX_TOLD:
            more = [base for rest_of in islice(alone.values(), _MAX_TOLD, None) for base in rest_of]
            message = Message("check.sides.more_calls", count=len(more), is_npu=False)
            yield _difference(Topic.CALLS, more, 0, len(more), message)
            break
        message = Message("check.sides.only", api=api, count=len(bases), is_npu=False, others=None)
        yield _difference(Topic.CALLS, bases, 0, len(bases), message)
    counterparts = ((base, matches.counterparts.get(base, base)) for base in matches.npu.apis)
    shifted = [(base, other) for base, other in counterparts if base != other]
    if shifted:
        message = Message("check.sides.shifted", count=len(shifted), npu=shifted[0][0], benchmark=shifted[0][1])
        yield _difference(Topic.CALLS, [base for base, _ in shifted], *shifted[0], message)


def _alone(side: CallList, matched: set[str]) -> dict[str, list[str]]:
    """The calls of functions that are not matched, by function, the most frequent first."""
    alone: dict[str, list[str]] = {}
    for base, place in side.apis.items():
        if base not in matched:
            alone.setdefault(place.api, []).append(base)
    return dict(sorted(alone.items(), key=lambda item: -len(item[1])))


def _shapes(sides: RecordedSides) -> Iterator[Difference]:
    if sides.shapes:
        name, npu, benchmark = sides.shapes[0]
        message = Message("check.sides.shapes", count=len(sides.shapes), name=name, npu=npu, benchmark=benchmark)
        names = [name for name, _, _ in sides.shapes]
        yield _difference(Topic.SHAPES, names, str(list(npu)), str(list(benchmark)), message)


def _order(matches: CallMatches) -> Iterator[Difference]:
    """Calls that run before others on one side, and behind them on the other."""
    places = matches.golden.apis
    pairs = [
        (base, places[other].number)
        for base in matches.npu.apis
        if (other := matches.counterparts.get(base)) is not None
    ]
    ends: list[int] = []
    for _, number in pairs:  # the longest part that both run in one order
        at = bisect_left(ends, number)
        ends[at : at + 1] = [number]
    moved = len(pairs) - len(ends)
    if moved:
        at = next(at for at in range(1, len(pairs)) if pairs[at][1] < pairs[at - 1][1])
        message = Message("check.sides.order", count=moved, later=pairs[at][0], earlier=pairs[at - 1][0])
        yield _difference(Topic.ORDER, [pairs[at - 1][0], pairs[at][0]], moved, 0, message)


def _recording(matches: CallMatches) -> Iterator[Difference]:
    for name in ("framework", "level", "task"):
        npu, benchmark = (getattr(side.index, name) for side in (matches.npu, matches.golden))
        if npu != benchmark:
            message = Message(f"check.sides.{name}", npu=npu, benchmark=benchmark)
            yield _difference(Topic.RECORDING, [name], npu, benchmark, message)


def _dtypes(sides: RecordedSides) -> Iterator[Difference]:
    if sides.dtypes:
        (npu, benchmark), _ = sides.dtypes.most_common(1)[0]
        message = Message(
            "check.sides.dtypes", count=sides.dtypes.total(), all=sides.tensors, npu=npu.removeprefix("torch."),
            benchmark=benchmark.removeprefix("torch."),
        )  # fmt: skip
        yield _difference(Topic.DTYPES, [f"{npu} {benchmark}"], npu, benchmark, message)


def _places(npu: MsprobeRun, golden: MsprobeRun) -> Iterator[Difference]:
    for name in ("steps", "ranks"):
        ours, its = (max(len(getattr(run, name)), 1) for run in (npu, golden))
        if ours != its:
            message = Message(f"check.sides.{name}", npu=ours, benchmark=its)
            yield _difference(Topic.RECORDING, [name], ours, its, message)
