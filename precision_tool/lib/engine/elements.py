"""One pair of tensors element by element, by the one stream of a pair."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool

from precision_tool.lib.engine.budget import Budget
from precision_tool.lib.engine.bundles import cost, cuts_of, worker
from precision_tool.lib.engine.pairwise import run_in_parts
from precision_tool.lib.engine.passes import run_passes
from precision_tool.lib.engine.passes.elements import ElementsPass
from precision_tool.lib.engine.scheduler import Progress, WorkStoppedError, cores, working
from precision_tool.lib.engine.stream import Span
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.elements import Detail
from precision_tool.lib.numbers.decode import Numbers

#: A single pair: nothing else keeps the workers busy, so that it is shared out in smaller parts than one of many.
_BUDGET = Budget(box=1 << 18, kept_items=1 << 20, part_bytes=64 << 20, split_bytes=128 << 20)


def compare_elements(
    pair: Pair,
    *,
    atol: float,
    rtol: float,
    shown: int,
    workers: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Detail:
    """Compares both tensors of a pair that has plans. `shown` elements are kept of the first and the worst.

    Large tensors are shared by `workers` processes (0: one per core), or done by any `executor`. Raises what reading
    the tensors does, and WorkStoppedError for a worker that died.
    """
    budget = _BUDGET
    passes = [ElementsPass(atol=atol, rtol=rtol, shown=shown)]
    workers = workers or cores()
    total = cost(pair)
    done = 0.0

    def tell(nbytes: float) -> None:
        nonlocal done
        done += nbytes
        if progress is not None and total:
            progress(min(round(done), total), total)

    with worker(budget) as here:
        if executor is None and (workers == 1 or total < budget.split_bytes):
            with here.stream(pair) as stream:
                share = total / (2 * stream.size) if stream.size else 0.0
                cuts = cuts_of(pair, stream, budget)
                (found,) = run_passes(stream, passes, lambda items: tell(items * share), cuts)
        else:
            try:
                with working(workers, executor) as pool:
                    assert pool is not None
                    (found,), _ = run_in_parts(pair, passes, pool, here, tell=tell)
            except BrokenProcessPool as error:
                hint = "was it killed for its memory? try fewer workers (--workers 1)"
                raise WorkStoppedError("a worker process died", hint, (), exit_code=2) from error
    assert isinstance(found, Detail)
    return found


def elements_of(pair: Pair) -> Iterator[tuple[Span, Numbers, Numbers, int]]:
    """All elements in runs: where each lies, the values of both sides, which the next run overwrites, and how many
    elements there are in all."""
    with worker(_BUDGET) as here, here.stream(pair) as stream:
        for block in stream.blocks():
            yield block.span(stream.index_shape if stream.is_flat else None), block.npu, block.golden, stream.size
