"""Which call of the benchmark's dump of msprobe stands for a call of the NPU's, and whether both are of one network.

msprobe numbers the calls of each function over a whole step: one call more on one side, and all that follow are called
otherwise. Calls are therefore matched by the module in which they ran and their order there. Where a module calls a
function more often on one side, shapes decide, and what was called before. Functions that one side alone calls, as
fused kernels are, have no counterpart.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

from precision_tool.lib.data.dump_names import flatten
from precision_tool.lib.data.msprobe_ops import WITH_PARAMETERS
from precision_tool.lib.data.msprobe_tree import modules_beside
from precision_tool.lib.io.files import signature_of
from precision_tool.lib.io.msprobe_dump import DumpIndex, read_calls, read_dump_index
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.msprobe import (
    CallName,
    Direction,
    RecordedCall,
    RecordedTensor,
    parse_call_name,
)
from precision_tool.lib.model.run import Benchmark, BenchmarkFile, DumpLeaf

#: Parts of the paths of modules that wrappers for distributed and compiled training, and checkpointing, put in.
_WRAPPERS = frozenset({
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_network",
})  # fmt: skip
#: Calls that are looked at to tell whether two dumps are of one network, drawn at random from larger ones.
_SAMPLED = 1000


@dataclass(frozen=True, slots=True)
class _Place:
    """A call with all its directions: its name without them, function, module, and its entry that comes first."""

    base: str
    api: str
    module: str
    number: int


class CallList:
    """The calls of one side in the order in which they ended."""

    def __init__(self, path: str) -> None:
        self.index: DumpIndex = read_dump_index(path)
        self.tree = modules_beside(path)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The entries by their names, in their order; of two of one name the first."""
        numbers: dict[str, int] = {}
        for number, name in enumerate(self.index.names):
            numbers.setdefault(name, number)
        return numbers

    @cached_property
    def names(self) -> dict[str, CallName]:
        """The names of the entries, taken apart."""
        parsed = ((name, parse_call_name(name)) for name in self.numbers)
        return {name: call for name, call in parsed if call is not None}

    @cached_property
    def apis(self) -> dict[str, _Place]:
        """The calls of functions by name without direction."""
        places: dict[str, _Place] = {}
        for name in self.index.names:
            call = self.names.get(name)
            if call is None or call.is_module:
                continue
            base = base_of(name, call)
            if base not in places:
                parent = self.tree.parents.get(name)
                module = None if parent is None else parse_call_name(parent)
                path = "" if module is None else _unwrapped(module.name)
                places[base] = _Place(base, f"{call.prefix}.{call.name}", path, self.numbers[name])
        return places

    @cached_property
    def modules(self) -> dict[tuple[str, int], str]:
        """The calls of modules by path and count, without direction."""
        calls = ((name, call) for name, call in self.names.items() if call.is_module)
        return {(_unwrapped(call.name), call.count): base_of(name, call) for name, call in calls}

    def read(self, numbers: Iterable[int]) -> dict[int, RecordedCall]:
        """Return entries, decoded; those that are damaged are left out."""
        ordered = sorted(set(numbers))
        calls = zip(ordered, read_calls(self.index, ordered), strict=True)
        return {number: call for number, call in calls if isinstance(call, RecordedCall)}


def _unwrapped(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def base_of(name: str, call: CallName) -> str:
    """Return an entry's name without its direction: that of `Module.up.Linear.forward.0` is `Module.up.Linear.0`."""
    if not call.is_module:
        return name.removesuffix(f".{call.direction}")
    head, _, count = name.rpartition(".")
    return f"{head.removesuffix(f'.{call.direction}')}.{count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMatches:
    """The calls of two dumps that stand for each other: the benchmark's by the NPU's, names without directions.

    `is_same` tells that all that is called alike belongs together.
    """

    npu: CallList
    golden: CallList
    counterparts: Mapping[str, str]
    is_same: bool

    def names(self) -> dict[str, str]:
        """Return the entries of the NPU by those of the benchmark that they stand for."""
        entries: dict[tuple[str, Direction], str] = {}
        for name, call in self.npu.names.items():
            base = self.counterparts.get(base_of(name, call))
            if base is not None:
                entries[base, call.direction] = name
        paired = {}
        for name, call in self.golden.names.items():
            entry = entries.get((base_of(name, call), call.direction))
            if entry is not None:
                paired[name] = entry
        return paired


def match_calls(npu: str, golden: str) -> CallMatches:
    """Match the calls of two dumps; of files that are as they were the latest matches are kept.

    Parameters
    ----------
    npu, golden : str
        The two files `dump.json`.

    Raises
    ------
    FormatError
        One of them is no dump of msprobe.
    """
    return _match(npu, golden, (signature_of(npu), signature_of(golden)))


@lru_cache(maxsize=2)
def _match(npu: str, golden: str, _signatures: Hashable) -> CallMatches:
    left, right = CallList(npu), CallList(golden)
    has_modules = bool(left.tree.parents) and bool(right.tree.parents)
    if left.numbers.keys() == right.numbers.keys() and (not has_modules or left.tree.parents == right.tree.parents):
        bases = {base: base for base in (base_of(name, call) for name, call in left.names.items())}
        return CallMatches(npu=left, golden=right, counterparts=bases, is_same=True)
    found: dict[str, str] = {}
    for key, base in left.modules.items():
        if key in right.modules:
            found[base] = right.modules[key]
    found |= _match_functions(left, right)
    is_same = all(base == other for base, other in found.items())
    is_same = is_same and not ((left.apis.keys() & right.apis.keys()) - found.keys())
    return CallMatches(npu=left, golden=right, counterparts=found, is_same=is_same)


_Shapes: TypeAlias = tuple[tuple[int, ...], ...]
#: What a call is recognised by: its side, 0 for the NPU, and its place.
_KeyOf: TypeAlias = Callable[[int, _Place], Hashable]


class _Matching:
    """Matches the calls of functions, the surest first."""

    def __init__(self, npu: Sequence[_Place], golden: Sequence[_Place]) -> None:
        self._sides = npu, golden
        #: The benchmark's calls by the NPU's.
        self.found: dict[str, str] = {}

    def rest(self) -> tuple[list[_Place], list[_Place]]:
        """The calls of both sides that are not matched."""
        taken = set(self.found.values())
        npu, golden = self._sides
        return [each for each in npu if each.base not in self.found], [
            each for each in golden if each.base not in taken
        ]

    def pair(self, key_of: _KeyOf, *, all_or_none: bool) -> None:
        """Match calls of equal keys in their order; with `all_or_none` only where both sides have as many."""
        groups: dict[Hashable, tuple[list[str], list[str]]] = {}
        for side, places in enumerate(self.rest()):
            for place in places:
                groups.setdefault(key_of(side, place), ([], []))[side].append(place.base)
        for npu, golden in groups.values():
            if len(npu) == len(golden) or not all_or_none:
                self.found.update(zip(npu, golden, strict=False))

    def before(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the matched call before each call, as the NPU's is named."""
        names = {other: base for base, other in self.found.items()}
        before: tuple[dict[str, str], dict[str, str]] = {}, {}
        for side, places in enumerate(self._sides):
            last = ""
            for place in places:
                before[side][place.base] = last
                anchor = names.get(place.base, "") if side else place.base
                last = anchor if anchor in self.found else last
        return before


def _match_functions(left: CallList, right: CallList) -> dict[str, str]:
    """Match the calls of functions by module; where that has not as many on both sides, by shapes and what was before.

    Where the shapes differ as well, those without the first axis decide, which is the batch.
    """
    sides = [list(side.apis.values()) for side in (left, right)]
    if not (left.tree.parents and right.tree.parents):
        sides = [[replace(place, module="") for place in side] for side in sides]
    matching = _Matching(*sides)
    matching.pair(lambda _, place: (place.api, place.module), all_or_none=True)
    rest = matching.rest()
    both = {place.api for place in rest[0]} & {place.api for place in rest[1]}
    if both:
        ours, theirs = ([place for place in places if place.api in both] for places in rest)
        shapes, before = (_shapes(left, ours), _shapes(right, theirs)), matching.before()
        for cut in (0, 1):
            for with_context in (True, False):
                matching.pair(_key(shapes, before if with_context else ({}, {}), cut), all_or_none=not with_context)
    return matching.found


def _key(shapes: Sequence[Mapping[str, _Shapes]], before: Sequence[Mapping[str, str]], cut: int) -> _KeyOf:
    """What calls of one module are recognised by that stand for each other: shapes, and what was called before."""

    def key(side: int, place: _Place) -> Hashable:
        forms = shapes[side].get(place.base)
        if forms is None:
            return side, place.base  # belongs to nothing
        forms = tuple(shape[cut:] if len(shape) > 1 else shape for shape in forms)
        return place.api, place.module, forms, before[side].get(place.base)

    return key


def _shapes(side: CallList, places: Iterable[_Place]) -> dict[str, _Shapes]:
    wanted = {place.number: place.base for place in places}
    return {
        wanted[number]: (*(tensor.shape for _, tensor in call.tensors()), (int(call.is_recomputed),))
        for number, call in side.read(wanted).items()
    }


# --- the benchmark by the names of the NPU's calls --------------------------------------------------------------------


def fitted(benchmark: Benchmark, leaf: DumpLeaf) -> Benchmark:
    """Return a benchmark with its tensors under the names that the calls they stand for have in a dump of the NPU.

    It is the benchmark itself where all calls are called alike. Errors as of `match_calls`.
    """
    first = next(iter(benchmark.files.values()), None)
    if first is None or not leaf.graph:
        return benchmark
    matches = match_calls(leaf.graph, first.path)
    if matches.is_same:
        return benchmark
    names = matches.names()
    files: dict[tuple[str, int], BenchmarkFile] = {}
    for file in benchmark.files.values():
        name = matches.golden.index.names[file.timestamp]
        entry = names.get(name)
        if entry is None:
            continue
        op_name = _renamed(file.op_name, name, entry, matches)
        files.setdefault((op_name, file.index), file)
    if not files:  # of another network, which is refused before it is compared
        return benchmark
    called = {entry: name for name, entry in names.items()}
    return replace(benchmark, files=files, called=called)


def _renamed(op_name: str, name: str, entry: str, matches: CallMatches) -> str:
    """The flattened name of a tensor with that of the NPU's entry, or module, in place of the benchmark's."""
    flat = flatten(name)
    if op_name.startswith(flat):
        return flatten(entry) + op_name[len(flat) :]
    own, other = (flatten(side.names[each].name) for side, each in ((matches.golden, name), (matches.npu, entry)))
    return (other + op_name[len(own) :]).lstrip("_") if op_name.startswith(own) else op_name


# --- another network --------------------------------------------------------------------------------------------------


def check_same_network(benchmark: Benchmark, leaf: DumpLeaf) -> None:
    """Raise UsageError for a benchmark of another network than that of a dump of the NPU.

    It is another one where less than half of the parameters have a counterpart of the same shape. Parts that one side
    alone has do not count: the calls of the smaller side are looked up in the other. Where no parameter was recorded,
    it is one where less than half of the calls have a counterpart whose tensors have as many axes.
    """
    first = next(iter(benchmark.files.values()), None)
    if first is None or not leaf.graph:
        return
    matches = match_calls(leaf.graph, first.path)
    shared = _Shared(matches)
    if not shared.is_other:
        return
    levels = [side.index.level for side in (matches.npu, matches.golden)]
    if levels[0] != levels[1] and not matches.counterparts:
        raise UsageError("data.other_level", npu=levels[0], benchmark=levels[1])
    npu, golden = (Counter(_kinds(side)) for side in (matches.npu, matches.golden))
    raise UsageError(
        "data.other_network", why=shared.figures, shape=shared.other_shape,
        only_npu=[name for name, _ in npu.most_common() if name not in golden] or None,
        only_benchmark=[name for name, _ in golden.most_common() if name not in npu] or None,
    )  # fmt: skip


def _kinds(side: CallList) -> Iterable[str]:
    for call in side.names.values():
        if call.direction is Direction.FORWARD:
            yield call.class_name if call.is_module else call.name


class _Shared:
    """How much of the smaller of two dumps has a counterpart in the other."""

    def __init__(self, matches: CallMatches) -> None:
        #: Parameters, and calls, and how many of each have a counterpart of the same shape, or of as many axes.
        self._parameters = self._same_parameters = self._calls = self._same_calls = 0
        #: The first tensor that has another shape.
        self.other_shape: Message | None = None
        to_npu = matches.names()
        to_golden = {entry: name for name, entry in to_npu.items()}
        sides = matches.npu, matches.golden
        forwards = [
            [name for name, call in side.names.items() if call.direction is Direction.FORWARD] for side in sides
        ]
        is_swapped = len(forwards[1]) < len(forwards[0])
        names = forwards[1] if is_swapped else forwards[0]
        if len(names) > _SAMPLED:
            names = random.Random(0).sample(names, _SAMPLED)
        other_of = to_npu if is_swapped else to_golden
        small, large = sides[::-1] if is_swapped else sides
        calls = small.read(small.numbers[name] for name in names)
        others = large.read(large.numbers[other_of[name]] for name in names if name in other_of)
        for name in names:
            call = calls.get(small.numbers[name])
            other = others.get(large.numbers[other_of[name]]) if name in other_of else None
            if call is not None:
                self._count(call, other, is_swapped=is_swapped)

    def _count(self, call: RecordedCall, other: RecordedCall | None, *, is_swapped: bool) -> None:
        there = {} if other is None else dict(other.tensors())
        axes = True
        for slot, tensor in call.tensors():
            if not tensor.shape:  # all numbers have the same
                continue
            own = there.get(slot)
            is_alike = own is not None and own.shape == tensor.shape
            axes = axes and own is not None and len(own.shape) == len(tensor.shape)
            is_parameter = _is_parameter(call, slot, tensor)
            self._parameters += is_parameter
            self._same_parameters += is_parameter and is_alike
            if is_parameter and own is not None and not is_alike and self.other_shape is None:
                shapes = (own.shape, tensor.shape) if is_swapped else (tensor.shape, own.shape)
                self.other_shape = Message(
                    "error.data.other_shape", name=f"{call.name}.{slot}", npu=shapes[0], benchmark=shapes[1]
                )
        self._calls += 1
        self._same_calls += axes and other is not None

    @property
    def figures(self) -> Message:
        """How many parameters, or calls, have a counterpart."""
        if self._parameters:
            return Message("error.data.same_parameters", count=self._same_parameters, all=self._parameters)
        return Message("error.data.same_calls", count=self._same_calls, all=self._calls)

    @property
    def is_other(self) -> bool:
        """Whether the dumps are of two networks."""
        if self._parameters:
            return 2 * self._same_parameters < self._parameters
        return 2 * self._same_calls < self._calls


def _is_parameter(call: RecordedCall, slot: str, tensor: RecordedTensor) -> bool:
    if slot.startswith("parameters."):
        return True
    name = call.call
    return (
        name is not None
        and name.name in WITH_PARAMETERS
        and not slot.startswith("output")
        and slot != "input.0"
        and tensor.requires_grad is True
    )
