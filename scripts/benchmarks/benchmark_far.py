"""A study of eight leaves over HTTP with some delay for each request, beside that of the same files on a disk.

    .venv/bin/python scripts/benchmarks/benchmark_far.py [--delay 0.02] [--ranks 8] [--requests]

Both sides are run in turn, each in a process of its own with nothing kept from before. `--requests` lists what was
asked for most often.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from precision_tool.lib.demo.ranks import generate_ranks

_TOOL = (sys.executable, "-m", "precision_tool")


def _serve(root: str, delay: float, pipe: Connection) -> None:
    """Serve a folder until the pipe says something; then send back what was asked for."""
    from aiohttp import web

    asked: Counter[str] = Counter()

    async def answer(request: Any) -> Any:
        asked[f"{request.method} {request.path}"] += 1
        await asyncio.sleep(delay)
        path = Path(root, request.path.strip("/"))
        if path.is_dir():
            if not request.path.endswith("/"):
                raise web.HTTPMovedPermanently(f"{quote(request.path)}/")
            names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir())
            links = "".join(f'<li><a href="{quote(name)}">{html.escape(name)}</a>' for name in names)
            return web.Response(text=f"<html><body>{links}</body></html>", content_type="text/html")
        if not path.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(path)

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{tail:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        while not pipe.poll():
            await asyncio.sleep(0.02)
        pipe.send(dict(asked))

    asyncio.run(main())


@contextmanager
def served(root: Path, delay: float) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the URL of a folder, and what was asked for when the block has ended."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(str(root), delay, theirs), daemon=True)
    process.start()
    asked: Counter[str] = Counter()
    try:
        yield f"http://127.0.0.1:{ours.recv()}", asked
        ours.send("end")
        asked.update(ours.recv())
    finally:
        process.terminate()
        process.join()


def study(place: str, workers: int) -> tuple[float, float, dict[str, Any]]:
    """Return seconds, seconds of processors, and the answer of a study with nothing kept from before."""
    folder = tempfile.mkdtemp(prefix="far_")
    try:
        before, start = os.times(), time.perf_counter()
        words = ["--data", place, "--work", "work", "ac", "--all", "--json", "--workers", str(workers)]
        done = subprocess.run([*_TOOL, *words], cwd=folder, stdout=subprocess.PIPE, check=False)
        seconds, after = time.perf_counter() - start, os.times()
        used = sum(after[2:4]) - sum(before[2:4])
        if done.returncode:
            raise SystemExit(f"{place}: exit code {done.returncode}")
        return seconds, used, json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds until each request is answered")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", action="store_true", help="list what was asked for most often")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="far_") as folder:
        truth = generate_ranks(Path(folder), ranks=options.ranks, steps=options.steps)
        data = Path(folder, truth.data[0])
        files = [path for path in data.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        print(f"{options.ranks * options.steps} leaves, {len(files)} files, {size / 1e6:.1f} MB, "
              f"{options.workers} workers, {options.delay * 1000:.0f} ms a request")  # fmt: skip
        best: dict[str, float] = {}
        for _ in range(options.rounds):
            seconds, used, on_disk = study(str(data), options.workers)
            best["disk"] = min(seconds, best.get("disk", seconds))
            print(f"  disk {seconds:6.1f} s ({used:.1f} s of processors)")
            with served(data, options.delay) as (url, asked):
                seconds, used, over_http = study(url, options.workers)
            best["HTTP"] = min(seconds, best.get("HTTP", seconds))
            print(f"  HTTP {seconds:6.1f} s ({used:.1f} s of processors), {sum(asked.values())} requests")
            if over_http["culprit"] is None or over_http["culprit"]["op"] != on_disk["culprit"]["op"]:
                raise SystemExit("the two studies do not name the same op")
        print(f"HTTP / disk = {best['HTTP'] / best['disk']:.2f}")
        if options.requests:
            kinds = Counter[str]()
            for what, count in asked.items():
                method, _, path = what.partition(" ")
                name = Path(path)
                kind = (
                    "listing"
                    if path.endswith("/")
                    else name.suffix
                    if name.suffix in (".npy", ".txt", ".json")
                    else "dump"
                )
                kinds[f"{method} {kind}"] += count
            print(dict(kinds.most_common()))
            for what, count in asked.most_common(15):
                print(f"  {count:5d} {what}")


if __name__ == "__main__":
    main()
