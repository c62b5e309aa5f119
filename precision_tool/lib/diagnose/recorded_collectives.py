"""Communication calls that msprobe recorded, and GE's: what the ranks of a group put in, which of it each one gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import NamedTuple

from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.msprobe import (
    Argument,
    DescribedArgument,
    Literal,
    RecordedCall,
)

#: How the types of communication calls begin.
PREFIX = "Distributed."


class Exchange(StrEnum):
    """What a collective does."""

    ALL_REDUCE = "all_reduce"
    #: As ALL_REDUCE, for one rank.
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


#: After these all ranks have the same.
SAME_FOR_ALL = frozenset({Exchange.ALL_REDUCE, Exchange.BROADCAST, Exchange.ALL_GATHER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What a collective does: the exchange, how numbers are combined (sum, avg, max, min), and for which ranks.

    `ranks` is the group in its order, () where it is not said: all that were trained together. `root` is the rank that
    a broadcast is from, or a reduction for.
    """

    exchange: Exchange = Exchange.ALL_REDUCE
    reduction: str = "sum"
    ranks: tuple[int, ...] = ()
    root: int | None = None

    @property
    def is_copy(self) -> bool:
        """Whether what a rank gets is what one put in, or one number of it: nothing is rounded."""
        combines = (Exchange.ALL_REDUCE, Exchange.REDUCE, Exchange.REDUCE_SCATTER)
        return self.exchange not in combines or self.reduction in ("max", "min")

    def parts_of(self, rank: int, slot: int, group: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return rank and slot of the inputs that make up an output of a rank; none where anything may come out."""
        if self.exchange is Exchange.BROADCAST:
            return [(self.root, slot)] if self.root in group else []
        if self.exchange is Exchange.ALL_GATHER:
            return [(group[slot], 0)] if slot < len(group) else []
        if self.exchange is Exchange.ALL_TO_ALL:
            return [(group[slot], group.index(rank))] if slot < len(group) else []
        if self.exchange is Exchange.REDUCE_SCATTER:
            return [(other, group.index(rank)) for other in group]
        if self.exchange is Exchange.REDUCE and rank != self.root:
            return []
        return [(other, slot) for other in group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A collective and its tensors, by slot of the op: what it sends and what it gets.

    A tensor that stands for a list is cut into as many pieces as the group has ranks: `cut_input`, `cut_output`.
    """

    collective: Collective
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cut_input: int = 1
    cut_output: int = 1
    #: Whether the call did not wait for the result.
    is_async: bool = False

    @property
    def size(self) -> int:
        """How many ranks take part; 0 where that is not said, and no list of tensors tells it."""
        pieces = {
            Exchange.ALL_GATHER: self.cut_output * len(self.outputs),
            Exchange.REDUCE_SCATTER: self.cut_input * len(self.inputs),
            Exchange.ALL_TO_ALL: self.cut_input * len(self.inputs),
        }
        return len(self.collective.ranks) or pieces.get(self.collective.exchange, 0)


class _Call(NamedTuple):
    exchange: Exchange
    #: The arguments that are sent and received, and all in their order.
    sent: str
    received: str
    arguments: tuple[str, ...]
    #: Which of the two stands for a list.
    whole: str = ""


_GATHER = ("output_tensor", "input_tensor", "group", "async_op")
_SCATTER = ("output", "input", "op", "group", "async_op")
_ALL_TO_ALL = ("output", "input", "output_split_sizes", "input_split_sizes", "group", "async_op")
#: The collectives of torch.distributed.
_CALLS: Mapping[str, _Call] = {
    "all_reduce": _Call(Exchange.ALL_REDUCE, "tensor", "tensor", ("tensor", "op", "group", "async_op")),
    "reduce": _Call(Exchange.REDUCE, "tensor", "tensor", ("tensor", "dst", "op", "group", "async_op")),
    "broadcast": _Call(Exchange.BROADCAST, "tensor", "tensor", ("tensor", "src", "group", "async_op")),
    "all_gather": _Call(Exchange.ALL_GATHER, "tensor", "tensor_list", ("tensor_list", "tensor", "group", "async_op")),
    "all_gather_into_tensor": _Call(Exchange.ALL_GATHER, "input_tensor", "output_tensor", _GATHER, "output"),
    "_all_gather_base": _Call(Exchange.ALL_GATHER, "input_tensor", "output_tensor", _GATHER, "output"),
    "reduce_scatter": _Call(
        Exchange.REDUCE_SCATTER, "input_list", "output", ("output", "input_list", "op", "group", "async_op")
    ),
    "reduce_scatter_tensor": _Call(Exchange.REDUCE_SCATTER, "input", "output", _SCATTER, "input"),
    "_reduce_scatter_base": _Call(Exchange.REDUCE_SCATTER, "input", "output", _SCATTER, "input"),
    "all_to_all": _Call(
        Exchange.ALL_TO_ALL, "input_tensor_list", "output_tensor_list",
        ("output_tensor_list", "input_tensor_list", "group", "async_op"),
    ),
    "all_to_all_single": _Call(Exchange.ALL_TO_ALL, "input", "output", _ALL_TO_ALL, "both"),
}  # fmt: skip
_REDUCTIONS = frozenset({"sum", "avg", "max", "min"})


def exchanged_by(op: Op) -> Exchanged | None:
    """Return the collective that an op is, as it was recorded; None for all else, and for one that is not followed.

    PyTorch writes into its arguments: msprobe records these before the call, and as its outputs after it.
    """
    recorded = op.recorded
    name = op.type.removeprefix(PREFIX)
    if recorded is None or name == op.type or name not in _CALLS:
        return None
    call = _CALLS[name]
    arguments = dict(_bound(call, recorded.call))
    sent, received = arguments.get(call.sent), arguments.get(call.received)
    group, reduction = _group(arguments), _reduction(arguments)
    splits = (arguments.get(name) for name in ("output_split_sizes", "input_split_sizes"))
    if sent is None or received is None or reduction not in _REDUCTIONS or any(each and each.value for each in splits):
        return None
    output_slots = [slot for slot, _ in recorded.call.tensors() if slot.startswith("output")]
    inputs = _slots(recorded.input_slots, sent.slot)
    outputs = _slots(output_slots, received.output_slot)
    if not inputs or not outputs:
        return None
    cut_input = cut_output = 1
    if call.whole:
        count = len(group)
        if not count:
            before, after = (prod(side[slots[0]].shape) for side, slots in (
                (recorded.inputs, inputs), (recorded.outputs, outputs)
            ))  # fmt: skip
            count = max(before, after) // max(min(before, after), 1) if call.whole != "both" else 0
        if not count:
            return None  # nothing says into how many pieces it is cut
        cut_input = count if call.whole in ("input", "both") else 1
        cut_output = count if call.whole in ("output", "both") else 1
    root = next((_number(arguments[name]) for name in ("src", "dst") if name in arguments), None)
    collective = Collective(exchange=call.exchange, reduction=reduction, ranks=group, root=root)
    return Exchanged(
        collective=collective,
        inputs=inputs,
        outputs=outputs,
        cut_input=cut_input,
        cut_output=cut_output,
        is_async=_is_async(arguments),
    )


#: GE's ops that cut tensors, whole on one side, along their first axis.
_COMPILED = {
    "hcomallgather": Exchange.ALL_GATHER, "hcomreducescatter": Exchange.REDUCE_SCATTER,
    "hcomalltoall": Exchange.ALL_TO_ALL,
}  # fmt: skip


def compiled_exchange(op_type: str, size: int, reduction: str, ranks: tuple[int, ...]) -> Exchanged | None:
    """Return the collective that an op of GE's is, in a group of so many ranks; None for one that cuts nothing."""
    exchange = _COMPILED.get(op_type.casefold().replace("_", ""))
    if exchange is None or size < 2 or reduction not in _REDUCTIONS:
        return None
    return Exchanged(
        collective=Collective(exchange=exchange, reduction=reduction, ranks=ranks), inputs=(0,), outputs=(0,),
        cut_input=1 if exchange is Exchange.ALL_GATHER else size,
        cut_output=1 if exchange is Exchange.REDUCE_SCATTER else size,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """An argument as it was given, and the slots of its tensors before and after the call."""

    value: Argument
    slot: str
    output_slot: str


def _bound(call: _Call, recorded: RecordedCall) -> Iterator[tuple[str, _Bound]]:
    """The arguments by name; outputs are all arguments, in their order."""
    for number, (name, value) in enumerate(zip(call.arguments, recorded.inputs, strict=False)):
        yield name, _Bound(value=value, slot=f"input.{number}", output_slot=f"output.{number}")
    for number, (name, value) in enumerate(recorded.kwargs.items(), len(recorded.inputs)):
        yield name, _Bound(value=value, slot=f"kwargs.{name}", output_slot=f"output.{number}")


def _slots(names: Sequence[str], name: str) -> tuple[int, ...]:
    """The places of the tensors of an argument, which may be a list."""
    return tuple(at for at, slot in enumerate(names) if slot == name or slot.startswith(f"{name}."))


def _group(arguments: Mapping[str, _Bound]) -> tuple[int, ...]:
    value = arguments["group"].value if "group" in arguments else None
    ranks = value.fields.get("group_ranks") if isinstance(value, DescribedArgument) else None
    return tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, tuple) else ()


def _reduction(arguments: Mapping[str, _Bound]) -> str:
    value = arguments["op"].value if "op" in arguments else None
    text = value.value if isinstance(value, Literal) else None
    return text.rpartition(".")[2].lower() if isinstance(text, str) else "sum"


def _number(bound: _Bound) -> int | None:
    value = bound.value.value if isinstance(bound.value, Literal) else bound.value
    return value if isinstance(value, int) else None


def _is_async(arguments: Mapping[str, _Bound]) -> bool:
    value = arguments["async_op"].value if "async_op" in arguments else None
    return isinstance(value, Literal) and value.value is True
