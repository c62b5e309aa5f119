"""The selection of a comparison's ops: by their id in the graph (the vendor's range and select) or by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from precision_tool.lib.data.dump_names import op_number
from precision_tool.lib.data.graph_catalog import RunGraph
from precision_tool.lib.data.origins import groups_of
from precision_tool.lib.data.pair_listing import find_ops
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, UsageError, shown
from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.graph import Graph, GraphFile, Op

#: Of many names or numbers, as many are listed in a message.
_MAX_LISTED = 10
_RANGE = re.compile(r"(?P<start>[0-9]{0,9}),(?P<end>[0-9]{0,9}|-1),(?P<step>[0-9]{0,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRange:
    """Every `step`-th id from `start` to `end` (-1: the last one); `end` itself is always in it.

    Ids begin with 0, as `ls` shows them; a start that is not given is 1, as the vendor's tool has it.
    """

    start: int = 1
    end: int = -1
    step: int = 1

    def test(self, last: int) -> Callable[[int], bool]:
        """The test for an id of a graph whose largest id is `last`. UsageError for numbers outside it."""
        end = last if self.end == -1 else self.end
        for name, value, least, most in (
            ("start", self.start, 0, last), ("end", end, self.start, last), ("step", self.step, 1, max(last - 1, 1))
        ):  # fmt: skip
            if not least <= value <= most:
                raise UsageError("data.range_outside", name=name, value=value, least=least, most=most, last=last)
        return lambda number: number == end or (self.start <= number < end and (number - self.start) % self.step == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpIds:
    """The ops with these ids."""

    ids: tuple[int, ...]

    def test(self, last: int) -> Callable[[int], bool]:
        """The test for an id of a graph whose largest id is `last`. UsageError if none of them is in it."""
        if min(self.ids) > last:
            raise UsageError("data.select_beyond", ids=[str(number) for number in self.ids], last=last)
        return lambda number: number in self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNames:
    """The ops that these names, whole or in part, stand for; of each only the slots given, if any are."""

    names: tuple[str, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


Selection = OpRange | OpIds | OpNames


def is_by_number(selection: Selection | None) -> bool:
    """True if the ops are chosen by their ids, which then are told."""
    return isinstance(selection, (OpRange, OpIds))


def parse_range(text: str) -> OpRange:
    """`START,END,STEP`, each of which may be left empty. UsageError for anything else."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise UsageError("data.bad_range", text=shown(text))
    numbers = {name: int(part) for name, part in match.groupdict().items() if part}
    return OpRange(**numbers)


def parse_ids(text: str) -> OpIds:
    """Numbers with commas between them. UsageError for anything else."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        raise UsageError("data.bad_select", text=shown(text))
    return OpIds(ids=tuple(sorted({int(part) for part in parts})))


@dataclass(frozen=True, slots=True)
class Selected:
    """The pairs that are wanted, and what to say of the choice."""

    pairs: list[Pair]
    notes: list[Message] = field(default_factory=list)


def select(pairs: Sequence[Pair], selection: Selection, file: GraphFile | None) -> Selected:
    """The pairs of the wanted ops. `file` is the graph they were matched by, None if by name alone.

    UsageError and DataNotFoundError say why nothing is left.
    """
    if isinstance(selection, OpNames):
        return _by_name(pairs, selection, file)
    return _by_id(pairs, selection, file)


# --- by id ---


def _by_id(pairs: Sequence[Pair], selection: OpRange | OpIds, file: GraphFile | None) -> Selected:
    """Whole groups of fused ops, if the id of one op of the group is wanted (the vendor's rule)."""
    notes: list[Message] = []
    if any(pair.op_name.startswith("/") for pair in pairs):
        return _by_sequence(pairs, selection)
    if file is not None:
        ids = {op.name: op.id or 0 for op in file.ops}
        groups = [{op.id or 0 for op in group.ops} for group in groups_of(file)]
    else:
        ids = {pair.op_name: pair.index for pair in pairs}
        groups = [{index} for index in range(max(ids.values(), default=-1) + 1)]
        notes.append(Message("note.data.numbered_by_time"))
    ids_in_graph = {number for group in groups for number in group}
    fits = selection.test(max(ids_in_graph, default=0))
    indices = {index for index, group in enumerate(groups) if any(map(fits, group))}
    chosen = _numbered([pair for pair in pairs if pair.index in indices], ids)
    if not chosen:
        raise DataNotFoundError("data.no_op_id")
    if isinstance(selection, OpIds):
        absent = [str(number) for number in selection.ids if number not in ids_in_graph]
        if absent:
            notes.append(Message("note.data.no_such_id", ids=absent))
    notes.append(Message("note.data.some_groups", count=len(indices), all=len(groups)))
    notes += _nothing_to_compare(chosen)
    return Selected(chosen, notes)


def _by_sequence(pairs: Sequence[Pair], selection: OpRange | OpIds) -> Selected:
    """The ops of a PyTorch dump, which have numbers of their own, by these."""
    numbers = {pair.index for pair in pairs}
    fits = selection.test(max(numbers))
    chosen = [replace(pair, sequence=pair.index) for pair in pairs if fits(pair.index)]
    if not chosen:
        raise DataNotFoundError("data.no_h5_number")
    count = len({pair.index for pair in chosen})
    notes = [Message("note.data.some_ops", count=count, all=len(numbers)), *_nothing_to_compare(chosen)]
    return Selected(chosen, notes)


def _nothing_to_compare(chosen: Sequence[Pair]) -> list[Message]:
    """Return a note with the reasons, op by op, if no selected op has a tensor to compare."""
    if any(pair.status == Status.COMPARED for pair in chosen):
        return []
    reasons = {f"{pair.sequence}: {pair.op_name}": pair.reason for pair in reversed(chosen)}
    shown_reasons = list(reversed(reasons.items()))
    lines = [Message("error.place", where=where, reason=reason) for where, reason in shown_reasons[:_MAX_LISTED]]
    more = max(len(reasons) - _MAX_LISTED, 0) or None
    return [Message("note.data.nothing_comparable", reasons=lines, more=more)]


def _numbered(pairs: Sequence[Pair], ids: Mapping[str, int]) -> list[Pair]:
    return [replace(pair, sequence=ids.get(pair.op_name)) for pair in pairs]


# --- by name ---


def _by_name(pairs: Sequence[Pair], selection: OpNames, file: GraphFile | None) -> Selected:
    run = RunGraph(number=None, leaf=None, file=file or _as_graph(pairs), reason=None)
    chosen = {op_name for name in selection.names for op_name in _op_names(run, pairs, name)}
    selected: list[Pair] = []
    for op_name in chosen:
        of_op = [pair for pair in pairs if pair.op_name == op_name and pair.slot]
        if not of_op:
            why = next((pair.reason for pair in pairs if op_name in (pair.op_name, *pair.npu_ops)), None)
            raise DataNotFoundError("data.nothing_to_compare", op=op_name, reason=why)
        selected += _slots(op_name, of_op, selection)
    order = {id(pair): position for position, pair in enumerate(pairs)}
    return Selected(sorted(selected, key=lambda pair: order[id(pair)]))


def _op_names(run: RunGraph, pairs: Sequence[Pair], name: str) -> list[str]:
    """The ops of a name; of a number, as `[17]`, those that the rows have it for."""
    number = op_number(name)
    if number is None:
        return [hit.op.name for hit in find_ops([_of_type(run, name)], name)]
    names = [pair.op_name for pair in pairs if pair.index == number]
    if not names:
        last = max((pair.index for pair in pairs), default=0)
        raise DataNotFoundError("data.no_op_number", number=number, place="", last=last)
    return names


def _of_type(run: RunGraph, name: str) -> RunGraph:
    """Of PyTorch dumps the ops of exactly this type, if there are any: `Addmm` is not `AddmmBackward`, as in `pt`."""
    ops = tuple(op for op in run.file.ops if op.name.startswith("/") and op.type == name.strip("/"))
    return replace(run, file=replace(run.file, graphs=(Graph(name="", ops=ops),))) if ops else run


def _as_graph(pairs: Sequence[Pair]) -> GraphFile:
    """The ops of two dumps that were matched by name, to be looked up as those of a graph."""
    types = {pair.op_name: pair.op_type for pair in pairs}
    ops = tuple(Op(name=name, type=op_type) for name, op_type in types.items())
    return GraphFile(path="the dump", graphs=(Graph(name="", ops=ops),))


def _slots(op_name: str, pairs: Sequence[Pair], selection: OpNames) -> list[Pair]:
    slots = [f"input:{index}" for index in selection.inputs] + [f"output:{index}" for index in selection.outputs]
    if not slots:
        return list(pairs)
    available = [pair.slot for pair in pairs]
    if op_name.startswith("/"):  # the tensors of PyTorch dumps have names instead of numbers
        numbers = {
            f"{kind}:{number}": slot
            for kind in ("input", "output")
            for number, slot in enumerate(slot for slot in available if slot.startswith(kind))
        }
        slots = [numbers.get(slot, slot) for slot in slots]
    absent = [slot for slot in slots if slot not in available]
    if absent:
        raise DataNotFoundError("data.no_slot", op=op_name, slot=absent[0], slots=available)
    return [pair for pair in pairs if pair.slot in slots]
