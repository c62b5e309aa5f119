"""Which benchmark tensor each NPU tensor of a run without a graph must equal: that of the op of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from precision_tool.lib.model.changed import changed
from precision_tool.lib.model.comparison import NO_GRAPH, NO_OPS, Pair, Status
from precision_tool.lib.pairing.origins import NoOrigin, Origin
from precision_tool.lib.pairing.pair_up import pair_up, pair_with_origin, without
from precision_tool.lib.sources.dumps import BenchmarkSide, DumpIndex, Missing

#: The op of the other run for an op of this one, both flattened; None for an op that has none there.
Counterpart = Callable[[str], str | None]


def same_name(name: str) -> str | None:
    """The counterpart of an op whose run has no graph: the op of the same name."""
    return name


def match_by_name(
    dumps: DumpIndex,
    benchmark: BenchmarkSide,
    other: DumpIndex | None = None,
    counterpart: Counterpart = same_name,
) -> Iterator[Pair]:
    """Pairs of equal op names, NPU order; with `other` (an NPU run) inputs too, then the ops only it has.

    `counterpart` tells of ops that are called otherwise in the other run.
    """
    names = dumps.names_by_time()
    for index, name in enumerate(names):
        yield from _match_name(index, name, dumps, benchmark, other, counterpart)
    if other is not None:
        matched = set(map(counterpart, names))
        only_other = [name for name in other.names_by_time() if name not in matched]
        for index, name in enumerate(only_other, start=len(names)):
            base = Pair(index=index, op_name=name, op_type=other.op(name).op_type, npu_ops=NO_OPS, golden_ops=(name,))
            yield without(base, Status.NO_NPU_DUMP, f"this run has no dump of {name}, the other has")


def match_name(
    name: str,
    dumps: DumpIndex,
    benchmark: BenchmarkSide,
    other: DumpIndex | None = None,
    counterpart: Counterpart = same_name,
) -> tuple[Pair, ...]:
    """The rows that `match_by_name` has for the op with this flattened name; () if it was not dumped."""
    if name not in dumps:
        return ()
    return tuple(_match_name(dumps.names_by_time().index(name), name, dumps, benchmark, other, counterpart))


def _match_name(
    index: int,
    name: str,
    dumps: DumpIndex,
    benchmark: BenchmarkSide,
    other: DumpIndex | None,
    counterpart: Counterpart,
) -> Iterator[Pair]:
    op = dumps.op(name)
    name_there = counterpart(name)
    base = Pair(index=index, op_name=name, op_type=op.op_type, npu_ops=(name,), golden_ops=NO_OPS)
    if name_there is None:
        why = f"{name} was put in by the graph compiler, and no such op of the other run connects the same ops"
        yield without(base, Status.NO_BENCHMARK, why)
        return
    if other is not None and name_there not in other:
        yield without(base, Status.NO_BENCHMARK, f"the other run has no dump of {name_there}")
        return
    base = changed(base, golden_ops=(name_there,))
    yield from (without(base, Status.UNREADABLE, error.reason) for error in op.errors)
    if not op.inputs and not op.outputs:
        if not op.errors:
            yield without(base, Status.UNREADABLE, f"{op.paths[0]}: the dump holds no input and no output")
        return
    for slot, tensor in sorted(op.inputs.items()):
        row = changed(base, slot=f"input:{slot}")
        if other is None:
            yield pair_with_origin(row, tensor, NoOrigin(Status.NO_BENCHMARK, NO_GRAPH), None, benchmark)
        else:
            missing = Missing(f"the other run's dump of {name_there} has no input {slot}")
            found = other.op(name_there).inputs.get(slot, missing)
            yield pair_up(row, tensor, found, None, None, {})
    for slot, tensor in sorted(op.outputs.items()):
        row = changed(base, slot=f"output:{slot}")
        yield pair_with_origin(row, tensor, Origin(name_there, slot, None, None, is_real=False), None, benchmark)
