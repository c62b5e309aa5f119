"""What every worker and every pass must keep to, whoever it is."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import written_pair
from executors import WORKERS

from precision_tool.lib.compare.custom_metrics import OwnMetricsPass, load_metrics
from precision_tool.lib.compare.pairwise import compare_pairs
from precision_tool.lib.compare.passes import AtLimitPass, MetricsPass, Pass, run_passes
from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources
from precision_tool.lib.compare.stream import open_stream
from precision_tool.lib.compare.tensor_reader import DEFAULT_BUDGET, Budget, OpenTensors, Scratch
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.table import Row

SMALL = replace(DEFAULT_BUDGET, block=64, box=128, kept_items=256, part_bytes=1024, split_bytes=4096, serial_bytes=0)


def pairs_in(folder: Path) -> list[Pair]:
    """Large and small, flat and blocked, with values at the limit of float16."""
    rng = np.random.default_rng(4)
    made = []
    for number, (shape, layout) in enumerate([((40, 50), "ND"), ((2, 9, 5, 35), "NC1HWC0"), ((7,), "ND")]):
        golden = rng.standard_normal(shape).astype(np.float32)
        npu = (golden + 0.1 * rng.standard_normal(shape)).astype(np.float16)
        npu.flat[:: 5 + number] = 65504 * (-1) ** number
        made.append(written_pair(folder, npu, golden, layout, f"op{number}"))
    return made


# --- workers ----------------------------------------------------------------------------------------------------------


def numbers(row: Row) -> list[float]:
    assert row.metrics is not None, row.reason
    return [
        float(value) for value in (row.metrics.cosine, row.metrics.max_absolute_error, row.metrics.mean_relative_error)
    ]


class TestWorkers:
    """Whoever does the work, the rows are the same and in the same order."""

    @pytest.mark.parametrize("who", WORKERS, ids=lambda who: who.__name__)
    @pytest.mark.parametrize("budget", [DEFAULT_BUDGET, SMALL], ids=["usual", "small"])
    def test_the_rows_are_those_of_one_process(self, tmp_path: Path, who: Any, budget: Budget) -> None:
        pairs = pairs_in(tmp_path)
        expected = compare_pairs(pairs, THIS_THREAD, budget=budget)
        with who() as executor:
            rows = compare_pairs(pairs, Resources(workers=2, executor=executor), budget=budget)
        assert [row.pair for row in rows] == pairs
        assert list(map(repr, rows)) == list(map(repr, expected))  # to the last bit

    @pytest.mark.parametrize("who", WORKERS, ids=lambda who: who.__name__)
    def test_a_tensor_that_cannot_be_read_costs_its_own_row(self, tmp_path: Path, who: Any) -> None:
        pairs = pairs_in(tmp_path)
        assert pairs[1].npu is not None
        Path(pairs[1].npu.path).write_bytes(b"")
        with who() as executor:
            rows = compare_pairs(pairs, Resources(workers=2, executor=executor), budget=SMALL)
        assert [row.metrics is None for row in rows] == [False, True, False]
        assert "ends at byte" in str(rows[1].reason)

    @pytest.mark.parametrize("who", WORKERS, ids=lambda who: who.__name__)
    def test_progress_ends_at_the_whole(self, tmp_path: Path, who: Any) -> None:
        pairs = pairs_in(tmp_path)
        told: list[tuple[int, int]] = []
        with who() as executor:
            compare_pairs(
                pairs, Resources(workers=2, executor=executor, progress=lambda *now: told.append(now)), budget=SMALL
            )
        assert told == sorted(told)
        assert told[-1] == (told[0][1], told[0][1])


# --- passes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MadePass:
    """A pass, and what of its result does not depend on the order of sums."""

    one: Pass[Any, Any]
    told: Callable[[Any], object]


def passes(folder: Path) -> list[MadePass]:
    own = folder / "own.py"
    own.write_text("def compare_largest(x, y): return float(abs(x - y).max())\n")
    return [
        MadePass(MetricsPass(), lambda result: (result.metrics.max_error_index, result.npu.maximum, result.npu.count)),
        MadePass(MetricsPass(divergence=False), lambda result: (result.metrics.max_error_index, result.golden.minimum)),
        MadePass(AtLimitPass(65504.0), lambda result: result),
        MadePass(OwnMetricsPass(load_metrics(str(own))), lambda result: result.values),
    ]


class TestPasses:
    """Every pass gives one result however the tensor is cut, alone or beside others, here or in another process."""

    @pytest.fixture(params=range(4))
    def made(self, request: pytest.FixtureRequest, tmp_path: Path) -> MadePass:
        number: int = request.param
        return passes(tmp_path)[number]

    def results(self, pair: Pair, wanted: list[Pass[Any, Any]], budget: Budget) -> list[Any]:
        with OpenTensors(budget) as opened, open_stream(pair, opened, Scratch(), budget) as stream:
            return run_passes(stream, wanted)

    def test_blocks_of_any_size(self, made: MadePass, tmp_path: Path) -> None:
        for pair in pairs_in(tmp_path):
            (whole,) = self.results(pair, [made.one], DEFAULT_BUDGET)
            (cut,) = self.results(pair, [made.one], SMALL)
            assert made.told(cut) == made.told(whole)

    def test_beside_others(self, made: MadePass, tmp_path: Path) -> None:
        for pair in pairs_in(tmp_path):
            (alone,) = self.results(pair, [made.one], SMALL)
            _, among, _ = self.results(pair, [MetricsPass(), made.one, AtLimitPass(1.0)], SMALL)
            assert made.told(among) == made.told(alone)

    def test_parts_are_merged(self, made: MadePass, tmp_path: Path) -> None:
        if not made.one.splits:
            with pytest.raises(NotImplementedError):
                made.one.merge(None, None)
            return
        for pair in pairs_in(tmp_path):
            (whole,) = self.results(pair, [made.one], SMALL)
            with OpenTensors(SMALL) as opened, open_stream(pair, opened, Scratch(), SMALL) as stream:
                middle, end = len(stream.boxes) // 2, len(stream.boxes)
                (merged,) = run_passes(stream, [made.one], cuts=[(0, middle), (middle, end)])
            assert made.told(merged) == made.told(whole)

    def test_it_can_go_to_another_process(self, made: MadePass, tmp_path: Path) -> None:
        pair = pairs_in(tmp_path)[0]
        copy = pickle.loads(pickle.dumps(made.one))
        (here,) = self.results(pair, [made.one], SMALL)
        (there,) = self.results(pair, [copy], SMALL)
        assert made.told(there) == made.told(here)

    def test_what_numpy_says(self, tmp_path: Path) -> None:
        for number, pair in enumerate(pairs_in(tmp_path)):
            _, at_limit = self.results(pair, [MetricsPass(), AtLimitPass(65504.0)], SMALL)
            assert pair.shape is not None
            assert at_limit == -(-int(np.prod(pair.error_shape)) // (5 + number))
