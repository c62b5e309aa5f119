"""Whatever asks for work takes any executor, which then does it, and finds the same as one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosing import judged_results
from executors import WORKERS, AtOnce

from precision_tool.lib.api import compare, open_data
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.engine.element_errors import compare_elements
from precision_tool.lib.engine.scheduler import PoisonedTaskError, Resources
from precision_tool.lib.inspect.convert import convert_files, find_sources
from precision_tool.lib.inspect.named_tensors import tensors_of_pair, views_of
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.present.reasons import reason_words
from precision_tool.lib.session import Session
from precision_tool.lib.verdict.judgement import State

#: What is asked, given the data folder, a folder for what is written and who does the work: what was found.
Ask = Callable[[Path, Path, dict[str, Any]], object]


def by_compare(data: Path, out: Path, who: dict[str, Any]) -> object:
    (result,) = compare(data / "npu/debug_0", data / "tf/dump", **who)
    return [repr(row.metrics) for row in result.rows]


def by_session(data: Path, out: Path, who: dict[str, Any]) -> object:
    session = open_data(data, work=out)
    (analysis,) = session.compare(resources=Resources(**who))
    return [repr(row.metrics) for row in analysis.rows]


def by_elements(data: Path, out: Path, who: dict[str, Any]) -> object:
    return repr(compare_elements(one_pair(open_data(data)), Resources(**who), atol=0.0, rtol=1e-3, shown=4))


def one_pair(session: Session) -> Pair:
    found, *_ = session.find_ops("conv1/Conv2D")  # of both runs
    return next(pair for pair in session.pairs_of(found) if pair.slot == "output:0")


def by_random(data: Path, out: Path, who: dict[str, Any]) -> object:
    session = open_data(data)
    (found,) = session.random_errors(None, str(data / "npu/debug_1/dump"), resources=Resources(**who))
    return [replace(op, slots=()) for op in found.ops], [repr(slot) for op in found.ops for slot in op.slots]


def by_convert(data: Path, out: Path, who: dict[str, Any]) -> object:
    sources, _ = find_sources(str(data / "npu/debug_0/dump"), str(out))
    rows = convert_files(sources, resources=Resources(**who))
    return [(row.source, np.load(row.path).tobytes()) for row in rows if row.path]


def by_overflow(data: Path, out: Path, who: dict[str, Any]) -> object:
    found, _ = open_data(data, work=out).overflow(resources=Resources(**who))
    return [(op.name, op.origin, repr(op.slots)) for leaf in found.leaves for op in leaf.ops]


def by_views(data: Path, out: Path, who: dict[str, Any]) -> object:
    pair = one_pair(open_data(data))
    return repr(
        views_of(
            [one for one in tensors_of_pair(pair, "") if one is not None], bins=4, first=3, resources=Resources(**who)
        )
    )


def by_verdict(data: Path, out: Path, who: dict[str, Any]) -> object:
    session = open_data(data, work=out)
    (judged,) = judged_results(session, resources=Resources(**who))
    assert judged is not None
    verdict = judged.verdict
    told = (verdict.culprit, verdict.cause, verdict.confidence, verdict.ranking, repr(verdict.facts))
    return told, [(op.op.name, op.state, repr(op.slots), op.reason) for op in judged.ops]


ASKS: tuple[Any, ...] = (
    by_compare, by_session, by_elements, by_random, by_convert, by_overflow, by_views, by_verdict,
)  # fmt: skip


class Counted(AtOnce):
    """Counts what it is asked to do."""

    def __init__(self) -> None:
        self.tasks = 0

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self.tasks += 1
        return super().submit(task, *arguments, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("executors") / "data"
    generate_demo(root, fault="nan")
    generate_demo(root.parent / "other")
    (root.parent / "other/npu/debug_0").rename(root / "npu/debug_1")
    return root


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__)
class TestAsker:
    @pytest.mark.parametrize("who", WORKERS, ids=lambda who: who.__name__)
    def test_what_is_found_is_what_one_process_finds(self, data: Path, tmp_path: Path, ask: Ask, who: Any) -> None:
        expected = ask(data, tmp_path / "one", {"workers": 1})
        with who() as executor:
            assert ask(data, tmp_path / "other", {"executor": executor}) == expected
        assert expected

    def test_the_executor_does_the_work(self, data: Path, tmp_path: Path, ask: Ask) -> None:
        executor: Executor = Counted()
        ask(data, tmp_path, {"executor": executor})
        assert isinstance(executor, Counted)
        assert executor.tasks > 0


class Poisoned(AtOnce):
    """Gives its third task up, as a cluster does whose workers it ended again and again."""

    def __init__(self) -> None:
        self.tasks = 0

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self.tasks += 1
        if self.tasks != 3:
            return super().submit(task, *arguments, **options)
        future: Future[Any] = Future()
        future.set_exception(PoisonedTaskError("not done: the worker that had it ended, 3 times"))
        return future


def test_ops_that_no_worker_can_judge_say_so_and_the_others_are_judged(data: Path, tmp_path: Path) -> None:
    session = open_data(data, work=tmp_path)
    (judged,) = judged_results(session, resources=Resources(executor=Poisoned()))
    assert judged is not None
    lost = [op for op in judged.ops if reason_words(op.reason) == "not done: the worker that had it ended, 3 times"]
    assert lost
    assert all(op.state is State.NOT_RECOMPUTED for op in lost)
    assert judged.verdict.tally.right > len(lost)
