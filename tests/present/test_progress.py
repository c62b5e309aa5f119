"""Progress names what it counts: bytes that are read, or ops that are recomputed."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from diagnosing import judged_results
from rich.console import Console
from tiny_network import layers

from precision_tool.lib.engine.scheduler import Resources
from precision_tool.lib.present import progress as progress_module
from precision_tool.lib.present.progress import ProgressReport
from precision_tool.lib.session import Session
from precision_tool.lib.settings import load_settings


def console(*, is_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100, color_system=None)


def text_of(drawn: Console) -> str:
    assert isinstance(drawn.file, io.StringIO)
    return drawn.file.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_names_the_unit(clock: list[float]) -> None:
    drawn = console()
    with ProgressReport(drawn, "working") as report:
        report(0, 4_000_000)
        clock[0] = 20.0
        report(1_000_000, 4_000_000)
        count_ops = report.counting("ops")
        count_ops(0, 1200)
        clock[0] = 60.0
        count_ops(300, 1200)
        clock[0] = 80.0
        count_ops(330, 1200)
    assert text_of(drawn).splitlines() == [
        "working: 25% of 4.0 MB, 50.0 kB/s, 60 s left",
        "working: 25% of 1200 ops, 7.5 ops/s, 120 s left",
        "working: 27% of 1200 ops, 5.5 ops/s, 158 s left",
    ]


def test_the_bar_names_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_REDRAW_SECONDS", 0.0)
    drawn = console(is_terminal=True)
    with ProgressReport(drawn, "recomputing") as report:
        count_ops = report.counting("ops")
        for done in (0, 40, 80, 120):
            count_ops(done, 120)
            time.sleep(0.01)
    assert " ops/s" in text_of(drawn)
    assert "B/s" not in text_of(drawn)


@pytest.mark.parametrize("workers", [1, 2])
def test_recomputing_counts_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(progress_module, "_LINE_SECONDS", 0.0)
    session = Session(load_settings({"data": str(layers().write(tmp_path)), "work": str(tmp_path / "work")}))
    drawn = console()
    with ProgressReport(drawn, "recomputing") as report:
        (judged,) = judged_results(session, resources=Resources(workers, progress=report))
    assert f"recomputing: 100% of {len(judged.ops)} ops, " in text_of(drawn)
    assert "B/s" not in text_of(drawn)
