"""What the HTML report costs: writing it, its size, opening it and moving its map in Chromium."""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from precision_tool import open_data
from precision_tool.lib.diagnose.pipeline import Diagnosis
from precision_tool.lib.diagnose.stored_verdict import read_beside
from precision_tool.lib.view.report_material import make_report

#: Networks whose reports are measured, by ops.
SIZES = (2_000, 30_000)
#: Elements of an activation: small, as only the number of ops counts here.
ELEMENTS = 512
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
#: Milliseconds of each frame while the map is dragged about.
_PAN = """async ([isWhole]) => { const map = report.parts.map; if (isWhole) map.openAll(); const frames = [];
  let last = performance.now();
  for (let at = 0; at < 60; at += 1) {
    map.panBy(at % 2 ? 7 : 9, at % 20 < 10 ? 11 : -11);
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now(); frames.push(now - last); last = now;
  } return frames; }"""
_TIMES = """() => [performance.getEntriesByName('first-contentful-paint')[0].startTime,
  performance.getEntriesByName('interactive')[0].startTime]"""


def bench_report(folder: Path) -> None:
    """Prints the figures of a small and a large network."""
    for ops in SIZES:
        data = folder / f"report_{ops}"
        data.mkdir(parents=True, exist_ok=True)
        tool = [sys.executable, "-m", "precision_tool"]
        generate = ["demo", "--generate-only", "--ops", str(ops), "--size", str(ELEMENTS), "."]
        for words in (generate, ["ac", "-c"]):
            subprocess.run([*tool, *words], cwd=data, check=True, stdout=subprocess.DEVNULL)
        path = data / "report.html"
        writing = write(data, path)
        print(f"report of {ops:,} ops: {path.stat().st_size / 1e6:.2f} MB, {writing}")
        with browser() as open_page:
            print(f"  {opening(open_page, path)}")


def write(data: Path, path: Path) -> str:
    """Time and memory of writing a report on a result that is in memory."""
    session = open_data(str(data / "precision_data"))
    diagnoses = [Diagnosis(analysis=result.analysis, kept=read_beside(result.path)) for result in session.results()]
    session.run_graphs()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter(), time.process_time()
    make_report(session.data, diagnoses, str(path))
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return f"written in {wall:.2f} s ({cpu:.2f} s of one core), {memory:.0f} MB more memory"


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium of its own; gives what opens a page."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS])
        yield lambda: started.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        started.close()


def opening(open_page: Any, path: Path) -> str:
    """Milliseconds to the first paint, until it can be used, and of the frames while the map moves."""
    paints, uses = [], []
    for _ in range(3):
        page = open_page()
        page.goto(path.as_uri())
        page.wait_for_selector("header.top")
        page.wait_for_timeout(300)
        paint, use = page.evaluate(_TIMES)
        paints.append(paint)
        uses.append(use)
    start = time.perf_counter()
    page.click("#button-map")
    page.wait_for_selector(".map-canvas")
    shown = time.perf_counter() - start
    frames = [page.evaluate(_PAN, [is_whole]) for is_whole in (False, True)]
    near, whole = (f"{statistics.median(of):.0f} ms, 95 % below {sorted(of)[int(0.95 * len(of))]:.0f}" for of in frames)
    start = time.perf_counter()
    page.click("#button-tensors")
    page.wait_for_selector("#tab-tensors .grid-row")
    table = time.perf_counter() - start
    return (
        f"first paint {min(paints):.0f} ms, interactive {min(uses):.0f} ms; map opened in {1000 * shown:.0f} ms, "
        f"table in {1000 * table:.0f} ms; frames while panning at the culprit {near}, all groups open and whole {whole}"
    )


if __name__ == "__main__":
    bench_report(Path(sys.argv[1]))
