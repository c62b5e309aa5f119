"""What replicas must have alike, of one leaf: hashes of what all-reduces put out and of what optimizers update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from precision_tool.lib.engine.scheduler import map_tasks
from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.model.graph import GraphFile, Op
from precision_tool.lib.model.tensor import Tensor
from precision_tool.lib.sources.dumps import DumpedOp, DumpIndex, Found
from precision_tool.lib.sources.names import flatten
from precision_tool.lib.study.digests import Digest, digest_of
from precision_tool.lib.study.outcome import BlockMeans, Role, Vote
from precision_tool.lib.study.sums import is_all_reduce

#: How the types of communication ops begin, without regard to case.
_COMMUNICATION = ("hcom", "horovod")
#: What those of them are called that give every rank of a group the same.
_SAME_FOR_ALL = ("allreduce", "allgather", "broadcast")
#: Ops that update a variable by a gradient: ApplyMomentum, ResourceApplyAdamD, FusedMulApplyMomentum, …
_UPDATE = "apply"


def is_communication(op_type: str) -> bool:
    """Whether an op talks to other ranks."""
    return op_type.casefold().startswith(_COMMUNICATION)


def role_of(op_type: str) -> Role | None:
    """Why replicas must agree on what an op puts out; None if they need not."""
    folded = op_type.casefold()
    if is_communication(op_type):
        return Role.COLLECTIVE if any(word in folded for word in _SAME_FOR_ALL) else None
    return Role.UPDATE if _UPDATE in folded else None


class Epochs:
    """How many communication ops ran before an op: what orders the ops of several ranks.

    `ops` are names, types and numbers in the order of execution.
    """

    def __init__(self, ops: Sequence[tuple[str, str, int]]) -> None:
        self._before: dict[str, int] = {}
        self._number: dict[str, int] = {}
        seen = 0
        counted: set[str] = set()
        for name, op_type, number in ops:
            flat = flatten(name)
            self._before.setdefault(flat, seen)
            self._number.setdefault(flat, number)
            if is_communication(op_type) and flat not in counted:
                counted.add(flat)
                seen += 1

    def of(self, name: str) -> int:
        """How many ran before the op of this name; 0 for one that is not known."""
        return self._before.get(flatten(name), 0)

    def number(self, name: str) -> int:
        """Its place in the order of execution; 0 for one that is not known."""
        return self._number.get(flatten(name), 0)


def votes_of(dumps: DumpIndex, file: GraphFile | None, epochs: Epochs, executor: Executor | None = None) -> list[Vote]:
    """The votes of a leaf in the order of execution, hashed here or by an `executor`.

    An op whose files cannot be read has none.
    """
    types = {dump.name.op_name: dump.name.op_type for dump in dumps.leaf.files}
    by_name: Mapping[str, Op] = {flatten(op.name): op for op in file.ops} if file is not None else {}
    voting: list[tuple[str, Role, DumpedOp]] = []
    calls: list[tuple[Found, bool]] = []
    for name in dumps.names_by_time():
        role = role_of(types.get(name, ""))
        if role is not None:
            with suppress(PrecisionToolError):  # its row says why
                dumped = dumps.op(name)
                op = by_name.get(name)
                adds = is_all_reduce(types[name], None if op is None else op.attrs.get("reduction"))
                added_up = set(_alike(dumped.inputs, dumped.outputs)) if adds else set()
                for slots in (dumped.inputs, dumped.outputs):
                    calls += [(tensor, slot in added_up) for slot, tensor in slots.items()]
                voting.append((name, role, dumped))
    digests = iter(map_tasks(_digest_or_error, calls, executor))
    votes = []
    for name, role, dumped in voting:
        results = [{slot: next(digests) for slot in slots} for slots in (dumped.inputs, dumped.outputs)]
        with suppress(PrecisionToolError):
            into, out_of = map(_digests, results)
            inputs, outputs = _hashes(into), _hashes(out_of)
            if any(outputs):
                op = by_name.get(name)
                added, came = _means(into, out_of)
                votes.append(
                    Vote(
                        op=op.name if op is not None else name, type=types[name], role=role,
                        number=epochs.number(name), epoch=epochs.of(name), inputs=inputs, outputs=outputs,
                        fed=added, came=came,
                        group="" if op is None else str(op.attrs.get("group", "")),
                    )
                )  # fmt: skip
    return sorted(votes, key=lambda vote: (vote.number, vote.op))


#: Digests of an op's tensors by slot.
_Digests = Mapping[int, Digest]


def _alike(inputs: Mapping[int, Found], outputs: Mapping[int, Found]) -> Iterator[int]:
    """The slots whose input and output are of one type and order of elements."""
    for slot, one in inputs.items():
        other = outputs.get(slot)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            same = (getattr(one, name) == getattr(other, name) for name in ("dtype", "shape", "layout"))
            if all(same):
                yield slot


def _means(into: _Digests, out_of: _Digests) -> tuple[tuple[BlockMeans, ...], tuple[BlockMeans, ...]]:
    """The means of what goes into an op and of what comes out, slot by slot where both are there."""
    means = [(into[slot].means, out_of[slot].means) for slot in into if slot in out_of]
    pairs = [(before, after) for before, after in means if before is not None and after is not None]
    return tuple(before for before, _ in pairs), tuple(after for _, after in pairs)


def _digest_or_error(tensor: Found, with_means: bool) -> Digest | PrecisionToolError:
    """`digest_of` as a task: a tensor that cannot be read costs its op alone the vote."""
    try:
        return digest_of(tensor, with_means)
    except PrecisionToolError as error:
        return error


def _digests(results: Mapping[int, Digest | PrecisionToolError]) -> _Digests:
    for result in results.values():
        if isinstance(result, PrecisionToolError):
            raise result
    return {slot: result for slot, result in results.items() if isinstance(result, Digest)}


def _hashes(slots: _Digests) -> tuple[str, ...]:
    return tuple(slots[slot].value if slot in slots else "" for slot in range(max(slots, default=-1) + 1))
