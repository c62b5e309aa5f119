"""Starts a Dask cluster on this machine and prints its address. A worker that ends is started again."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import dask
from distributed import LocalCluster


def main() -> None:
    """Runs until it is told to end."""
    parser = argparse.ArgumentParser(description="A Dask cluster on this machine, until Ctrl+C.")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes (default 2)")
    parser.add_argument("--file", type=Path, metavar="FILE", help="write a scheduler file, which --cluster takes too")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="workers that a task may end (default 3)")
    parser.add_argument("--until-eof", action="store_true", help="end when the input ends, for whoever started this")
    args = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    dask.config.set({"distributed.scheduler.allowed-failures": args.tries - 1})
    with LocalCluster(n_workers=0, processes=True, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        keepers = [
            threading.Thread(target=_keep_worker, args=(address, f"worker-{number}", ended))
            for number in range(args.workers)
        ]
        for keeper in keepers:
            keeper.start()
        if args.file is not None:
            args.file.write_text(json.dumps({"type": "Scheduler", "id": "local", "address": address}))
        print(address, flush=True)
        if args.until_eof:
            threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        ended.wait()
        for keeper in keepers:
            keeper.join()


def _keep_worker(address: str, name: str, ended: threading.Event) -> None:
    """A worker process with one thread, again and again. Dask's nanny gives up on one that ends while it starts."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"]
    command += ["--nthreads", "1", "--memory-limit", "0", "--name", name, "--death-timeout", "60"]
    while not ended.is_set():
        # Its threads of BLAS would only compete with the other workers.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        while process.poll() is None and not ended.wait(0.1):
            pass
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    main()
