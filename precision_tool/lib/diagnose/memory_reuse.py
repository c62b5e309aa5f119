"""Memory that an op wrote over while it was still to be read, told by the addresses in one run's dump."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precision_tool.lib.compare.run_values import KEPT_TYPES, RunOp, RunValues
from precision_tool.lib.compare.tensor_reader import Difference, difference, same_range
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.model.tensor import AnyTensor, Tensor

#: Ops between two others that are named.
_MAX_BETWEEN = 50
#: Ops that are named to be given memory of their own.
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """An op that ran between two others. `writes` tells that its output lies where memory was overwritten.

    `holds` tells that the memory then had the very bytes of that output.
    """

    name: str
    op_type: str
    writes: bool = False
    holds: bool = False


@dataclass(frozen=True, kw_only=True)
class Stomp:
    """An input that is not what its producer put out. Addresses are those of the bytes that differ."""

    run: str
    consumer: str
    consumer_type: str
    slot: int
    producer: str
    producer_type: str
    index: int
    difference: Difference
    nbytes: int
    address: int
    between: tuple[Between, ...]
    ran_between: int

    @property
    def suspects(self) -> tuple[Between, ...]:
        """The ops that wrote there, those whose bytes were found first."""
        return tuple(sorted((op for op in self.between if op.writes), key=lambda op: not op.holds))


def check_memory(values: RunValues, run: str) -> tuple[tuple[Stomp, ...], int]:
    """Compare inputs with the outputs of their producers: the changed ones in execution order, and the number compared.

    Needs a graph. Inputs that the op itself, or one before it that was fed them too, writes in place are no fault.
    """
    stomps = []
    checked = 0
    for op in values.ops:
        dump = values.dump(op)
        if dump is None or dump.threads > 1:  # slices are not what the ops before put out
            continue
        for slot, tensor in sorted(dump.inputs.items()):
            made = values.made_by(op, slot, same_memory=True)
            if made is None or not isinstance(tensor, Tensor):
                continue
            maker, index = made
            put_out = dict(values.outputs(maker)).get(index)
            if not isinstance(put_out, Tensor) or maker.timestamp > op.timestamp:
                continue
            if (put_out.dtype, put_out.nbytes) != (tensor.dtype, tensor.nbytes):
                continue
            try:
                change = difference(put_out, tensor)
            except PrecisionToolError:
                continue  # `unreadable` has it as soon as it is compared
            checked += 1
            if change is not None:
                base = tensor.address or put_out.address
                between = _ops_between(values, op, tensor, made, (base, base + change.first, base + change.last + 1))
                if between is None:
                    continue
                stomps.append(
                    Stomp(
                        run=run,
                        consumer=op.name,
                        consumer_type=op.op_type,
                        slot=slot,
                        producer=maker.name,
                        producer_type=maker.op_type,
                        index=index,
                        difference=change,
                        nbytes=tensor.nbytes,
                        address=base,
                        between=tuple(between[:_MAX_BETWEEN]),
                        ran_between=len(between),
                    )
                )
    return tuple(stomps), checked


def _ops_between(
    values: RunValues, op: RunOp, tensor: Tensor, made: tuple[RunOp, int], memory: tuple[int, int, int]
) -> list[Between] | None:
    """Return the ops that ran between producer and consumer of a changed tensor, those that wrote to it first.

    `memory` is the tensor's address (0: unknown), and the first and last address of the changed bytes. None where the
    change is meant: the consumer or an op before it writes there in place.
    """
    maker, index = made
    base, start, stop = memory
    if base and any(_covers(written, start, stop) for _, written in values.outputs(op)):
        return None  # the op writes its result there; its dump was made afterwards
    between = []
    ran = [candidate for candidate in values.ops if maker.timestamp < candidate.timestamp < op.timestamp]
    for other in sorted(ran, key=lambda candidate: candidate.timestamp):
        writers = [written for _, written in values.outputs(other) if base and _covers(written, start, stop)]
        if writers and (_reads(values, other, maker, index) or _updates_kept(values, other, start, stop)):
            return None  # an update in place, which those that read it later are meant to see
        holds = any(_holds(written, tensor, base, start, stop) for written in writers)
        between.append(Between(name=other.name, op_type=other.op_type, writes=bool(writers), holds=holds))
    return sorted(between, key=lambda other: not other.writes)


def memory_advice(stomps: Sequence[Stomp]) -> Message | None:
    """Return what to do about memory that was overwritten; None where none was."""
    if not stomps:
        return None
    names = [name for stomp in stomps for name in (stomp.producer, *(each.name for each in stomp.suspects[:1]))]
    ops = ",".join(list(dict.fromkeys(names))[:_MAX_NAMED])
    if any(stomp.suspects for stomp in stomps):
        return Message("check.memory.reused", ops=ops)
    return Message("check.memory.no_writer", ops=ops)


def _covers(tensor: AnyTensor, start: int, stop: int) -> bool:
    """Return whether a tensor's memory holds any byte of a range."""
    if not isinstance(tensor, Tensor) or not tensor.address or tensor.parts:  # parts lie apart
        return False
    return tensor.address < stop and start < tensor.address + tensor.nbytes


def _reads(values: RunValues, op: RunOp, maker: RunOp, index: int) -> bool:
    """Return whether an op reads this output."""
    inputs = values.inputs(op)
    return any(values.made_by(op, op_input.slot, same_memory=True) == (maker, index) for op_input in inputs)


def _updates_kept(values: RunValues, op: RunOp, start: int, stop: int) -> bool:
    """Return whether an op updates a variable at that address: the output of an earlier Assign is that variable too."""
    return any(
        op_input.in_place
        and op_input.producer_type in KEPT_TYPES
        and op_input.tensor is not None
        and _covers(op_input.tensor, start, stop)
        for op_input in values.inputs(op)
    )


def _holds(writer: AnyTensor, read: Tensor, base: int, start: int, stop: int) -> bool:
    """Return whether the bytes read are those of the writer, in the part of the range that it covers."""
    assert isinstance(writer, Tensor)
    begin, end = max(start, writer.address), min(stop, writer.address + writer.nbytes)
    try:
        return same_range(read, begin - base, writer, begin - writer.address, end - begin)
    except PrecisionToolError:
        return False
