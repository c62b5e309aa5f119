"""One pair of tensors element by element, by the one stream of a pair."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor

from precision_tool.lib.engine.budget import Budget
from precision_tool.lib.engine.bundles import cost, cuts_of, worker
from precision_tool.lib.engine.pairwise import run_in_parts
from precision_tool.lib.engine.passes import run_passes
from precision_tool.lib.engine.passes.elements import ElementsPass
from precision_tool.lib.engine.scheduler import ALL_CORES, Meter, Resources, WorkStoppedError
from precision_tool.lib.engine.stream import Span
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.elements import Detail
from precision_tool.lib.numbers.decode import Numbers

#: A single pair: nothing else keeps the workers busy, so that it is shared out in smaller parts than one of many.
_BUDGET = Budget(box=1 << 18, kept_items=1 << 20, part_bytes=64 << 20, split_bytes=128 << 20)


def compare_elements(pair: Pair, resources: Resources = ALL_CORES, *, atol: float, rtol: float, shown: int) -> Detail:
    """Compare both tensors of a pair that has plans, element by element.

    Parameters
    ----------
    pair : Pair
        Two tensors of one size.
    resources : Resources
        Who shares large tensors; workers of our own are processes.
    atol, rtol : float
        Absolute and relative tolerance of an element.
    shown : int
        Elements that are kept of the first and of the worst.

    Raises
    ------
    PrecisionToolError
        For tensors that cannot be read.
    WorkStoppedError
        When a worker process died.
    """
    passes = [ElementsPass(atol=atol, rtol=rtol, shown=shown)]
    meter = Meter(resources.progress, cost(pair))
    try:
        with worker(_BUDGET) as here, resources.open(is_small=meter.total < _BUDGET.split_bytes) as pool:
            if pool is not None:
                (detail,), _ = run_in_parts(pair, passes, pool, here, done=meter.add)
            else:
                with here.stream(pair) as stream:
                    share = meter.total / (2 * stream.size) if stream.size else 0.0
                    cuts = cuts_of(pair, stream, _BUDGET)
                    (detail,) = run_passes(stream, passes, lambda items: meter.add(items * share), cuts)
    except BrokenExecutor as error:
        hint = "was it killed for its memory? try fewer workers (--workers 1)"
        raise WorkStoppedError("a worker process died", hint, (), exit_code=2) from error
    assert isinstance(detail, Detail)
    return detail


def elements_of(pair: Pair) -> Iterator[tuple[Span, Numbers, Numbers, int]]:
    """All elements in runs: where each lies, the values of both sides, which the next run overwrites, and how many
    elements there are in all."""
    with worker(_BUDGET) as here, here.stream(pair) as stream:
        for block in stream.blocks():
            yield block.span(stream.index_shape if stream.is_flat else None), block.npu, block.golden, stream.size
