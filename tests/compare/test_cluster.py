"""A real Dask cluster of two workers on this machine does the work, and loses workers."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from precision_tool.cli import main
from precision_tool.lib.api import compare
from precision_tool.lib.compare import cluster as engine_cluster
from precision_tool.lib.compare import scheduler
from precision_tool.lib.compare.cluster import ClusterExecutor, Place, open_cluster, parse_place, version_differences
from precision_tool.lib.compare.custom_metrics import load_metrics
from precision_tool.lib.compare.folders import CompareOptions, compare_folders
from precision_tool.lib.compare.scheduler import THIS_THREAD, PoisonedTaskError, Resources
from precision_tool.lib.data.pair_selection import OpNames
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose import study
from precision_tool.lib.diagnose.recomputer import Recomputer
from precision_tool.lib.diagnose.verdict_model import OpResult
from precision_tool.lib.io import urls
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, UsageError
from precision_tool.lib.model.graph import Op
from precision_tool.lib.model.table import Row

pytest.importorskip("distributed")  # in the extra `cluster`, which the extra `test` has

_SCRIPT = Path(__file__).parents[2] / "scripts/benchmarks/local_cluster.py"


@pytest.fixture(autouse=True)
def forked_workers() -> None:
    """Workers are started as users have them: Dask's threads are what these tests are of."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cluster") / "data"
    generate_demo(root, fault="nan")
    return root


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("scheduler")
    command = [sys.executable, str(_SCRIPT), "--until-eof", "--tries", "2", "--file", str(folder / "cluster.json")]
    # Workers start elsewhere: the paths that they are given are those of whoever asks.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = process.stdout.readline().strip()
        assert json.loads((folder / "cluster.json").read_text())["address"] == found
        yield found
        process.stdin.close()
        process.wait()


@pytest.fixture
def cluster(address: str) -> Iterator[ClusterExecutor]:
    with open_cluster(address) as executor:
        yield executor


def chosen(metrics: Path | None, op: str | None) -> CompareOptions:
    return CompareOptions(
        custom=None if metrics is None else load_metrics(str(metrics), ()),
        selection=None if op is None else OpNames(names=(op,)),
    )


def compared(
    data: Path, executor: ClusterExecutor | None, metrics: Path | None = None, op: str | None = None
) -> list[Row]:
    (result,) = compare_folders(
        str(data / "npu/debug_0"), str(data / "tf/dump"), resources=Resources(1, executor), options=chosen(metrics, op)
    )
    return list(result.rows)


def alone(data: Path, cluster: ClusterExecutor, metrics: Path | None = None, op: str | None = None) -> list[Row]:
    """What one worker finds all by itself. Not this process: with more threads of BLAS last digits are others."""
    task = partial(compare_folders, resources=THIS_THREAD, options=chosen(metrics, op))
    (result,) = cluster.submit(task, str(data / "npu/debug_0"), str(data / "tf/dump")).result()
    return list(result.rows)


def test_the_rows_are_those_of_one_process(
    data: Path, cluster: ClusterExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(data, cluster)
    assert list(map(repr, compared(data, cluster))) == list(map(repr, expected))
    monkeypatch.chdir(data)
    with open_cluster(cluster.address) as again:
        (relative,) = compare("npu/debug_0", "tf/dump", executor=again)
    assert [(repr(row.reason), repr(row.metrics)) for row in relative.rows] == [
        (repr(row.reason), repr(row.metrics)) for row in expected
    ]
    assert sum(row.metrics is not None for row in relative.rows) > 50


def metric(folder: Path, name: str, body: str = "pass") -> Path:
    """A file with a metric of the user's own, which workers run; `body` is done before it returns the size."""
    path = folder / f"{name}.py"
    path.write_text(f"import os, pathlib\n\ndef compare_mine(x, y):\n    {body}\n    return float(x.size)\n")
    return path


def test_what_a_lost_worker_had_is_done_by_another(data: Path, tmp_path: Path, cluster: ClusterExecutor) -> None:
    once = tmp_path / "once"
    once.touch()
    # One of those that find the file at the same moment removes it.
    ends = f"""try:
        pathlib.Path({str(once)!r}).unlink()
    except FileNotFoundError:
        pass
    else:
        os._exit(1)"""
    rows = compared(data, cluster, metric(tmp_path, "ends", ends))
    assert not once.exists()
    assert list(map(repr, rows)) == list(map(repr, alone(data, cluster, metric(tmp_path, "plain"))))


def test_what_ends_every_worker_is_a_row_with_its_reason(data: Path, tmp_path: Path, cluster: ClusterExecutor) -> None:
    op = "conv1/Conv2D"
    expected = alone(data, cluster, metric(tmp_path, "plain"), op)
    sizes = Counter(row.custom["compare_mine"] for row in expected if "compare_mine" in row.custom)
    assert len(sizes) > 1
    size = min(sizes, key=lambda size: sizes[size])
    rows = compared(data, cluster, metric(tmp_path, "ends", f"x.size == {size} and os._exit(1)"), op)
    told = [(row, other) for row, other in zip(rows, expected, strict=True) if repr(row) != repr(other)]
    assert all("the worker process ended 2 times" in str(row.reason) for row, _ in told)
    poisoned = [other.pair.golden for _, other in told if other.custom.get("compare_mine") == size]
    assert len(poisoned) == sizes[size]
    # Whatever shares the benchmark's tensor with them is in the same task.
    assert all(other.pair.golden in poisoned for _, other in told)


def test_an_error_of_the_user_is_raised_as_it_was(cluster: ClusterExecutor) -> None:
    code = "from precision_tool.lib.messages.errors import FormatError\nraise FormatError('x: damaged', 'dump again')"
    with pytest.raises(FormatError, match="x: damaged") as caught:
        cluster.submit(exec, code).result()
    assert caught.value.hint == "dump again"


def test_a_task_that_fails_is_tried_three_times(cluster: ClusterExecutor, tmp_path: Path) -> None:
    code = f"with open({str(tmp_path / 'tries')!r}, 'a') as file: file.write('x')\nraise LookupError('which')"
    with pytest.raises(PoisonedTaskError, match="failed in 3 tries on the cluster: LookupError: which"):
        cluster.submit(exec, code).result()
    assert (tmp_path / "tries").read_text() == "xxx"


def test_what_is_done_is_not_kept_on_the_workers(cluster: ClusterExecutor) -> None:
    gc.disable()  # nothing has to wait for it
    try:
        for _ in range(3):
            cluster.submit(os.getpid).result()
        until = time.monotonic() + 60
        while cluster._client.futures and time.monotonic() < until:
            time.sleep(0.01)
        assert not cluster._client.futures
    finally:
        gc.enable()


def test_what_is_not_begun_is_cancelled(address: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    begins = f"import os, pathlib, time\nplace = pathlib.Path({str(tmp_path)!r})\n"
    begins += "(place / f'{os.getpid()}.begun').touch()\n"
    waits = "while not (place / 'gate').exists(): time.sleep(0.01)"
    with suppress(KeyboardInterrupt), open_cluster(address) as executor:
        first = [executor.submit(exec, begins + waits) for _ in range(2)]
        while len(list(tmp_path.glob("*.begun"))) < 2:  # one that was lost may be starting again
            time.sleep(0.01)
        rest = [executor.submit(Path.touch, tmp_path / f"{number}.done") for number in range(50)]
        raise KeyboardInterrupt
    assert all(future.cancelled() for future in (*first, *rest))
    gate.touch()
    with open_cluster(address) as executor:
        for _ in range(4):
            executor.submit(os.getpid).result()
    assert len(list(tmp_path.glob("*.done"))) < 10  # those that a worker had been sent already


def test_work_is_done_where_the_data_lies(address: str, data: Path) -> None:
    with open_cluster(address, [parse_place(f"worker-0={data}"), parse_place(f"worker-1={data / 'npu'}")]) as cluster:
        paths = [str(data / "npu/x"), str(data / "tf/x"), f"{data}2"]
        assert [cluster.host_of(path) for path in paths] == ["worker-1", "worker-0", ""]
        workers = [{cluster.at(host).submit(os.getpid).result() for _ in range(4)} for host in ("worker-0", "worker-1")]
        assert list(map(repr, compared(data, cluster))) == list(map(repr, alone(data, cluster)))
    assert [len(processes) for processes in workers] == [1, 1]
    assert workers[0] != workers[1]


def test_a_host_that_is_none_is_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cluster, "_FIRST_WORKER", 0.5)
    with pytest.raises(UsageError, match="no such worker") as caught, open_cluster(address, [Place("far", "/data/")]):
        pass
    assert "127.0.0.1" in caught.value.hint
    for text in ("host", "=dir", "host="):
        with pytest.raises(UsageError, match="names no host and folder"):
            parse_place(text)


def test_a_wrong_address_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cluster, "_CONNECTING", 0.5)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with (
            pytest.raises(DataNotFoundError, match="no Dask scheduler answers"),
            open_cluster(f"tcp://127.0.0.1:{port}"),
        ):
            pass
    with pytest.raises(UsageError, match="no address of a scheduler"), open_cluster(str(tmp_path / "none.json")):
        pass


def test_workers_of_another_version_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cluster, "__version__", "0.0.1")
    with (
        pytest.raises(UsageError, match=r"worker tcp://.*: precision_tool .* instead of 0\.0\.1"),
        open_cluster(address),
    ):
        pass
    (version,) = version_differences({"Python": "3.11", "Dask": "1"}, {"Python": "3.12", "Dask": "1"})
    assert (version.name, version.installed, version.expected) == ("Python", "3.12", "3.11")
    assert version_differences({"Dask": "1"}, {"Dask": "1"}) == []


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="not installed") as caught, open_cluster("tcp://127.0.0.1:1"):
        pass
    assert "pip install" in caught.value.hint


@pytest.mark.parametrize("word", ["vc", "ac"])
def test_the_command_says_what_one_process_says(
    data: Path,
    tmp_path: Path,
    address: str,
    word: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recompute = Recomputer._recompute_safely
    judged_here: list[Op] = []

    def judged(self: Recomputer, op: Op, *, lightly: bool = False) -> OpResult:
        judged_here.append(op)
        return recompute(self, op, lightly=lightly)

    monkeypatch.setattr(Recomputer, "_recompute_safely", judged)
    told, counts = [], []
    for number, options in enumerate((["--workers", "1"], ["--cluster", address])):
        work = tmp_path / str(number)
        assert main(["--data", str(data), "--work", str(work), word, *(["-c"] if word == "ac" else []), *options]) == 0
        told.append(re.sub(r"[0-9]{14}", "TIME", capfd.readouterr().out.replace(str(work), "WORK")))
        counts.append(len(judged_here))
    assert told[0] == told[1]
    assert (counts[0] > 0) is (word == "ac")
    # The cluster's workers recompute every op, this process only what stands out of the device's precision.
    assert counts[1] - counts[0] == (word == "ac")
    assert main(["--data", str(data), word, "--worker-for", "a=b", "-lt", str(data / "npu")]) == 2
    assert "--worker-for only goes with --cluster" in capfd.readouterr().err


def test_a_study_finds_what_one_process_finds(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    truth = generate_ranks(tmp_path, ranks=2, steps=2, fault_step=1)
    monkeypatch.chdir(tmp_path)
    told = []
    for options in (["--workers", "1"], ["--cluster", address, "--fresh"]):
        folders = [word for folder in truth.data for word in ("--data", folder)]
        assert main([*folders, "--work", "work", "ac", "--all", "--json", *options]) == 0
        told.append(json.loads(capfd.readouterr().out)["culprit"])
    assert told[0] == told[1]
    assert told[0]["op"] == truth.culprit


def test_a_leaf_that_all_workers_would_wait_for_is_shared_by_them(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    truth = generate_ranks(tmp_path, ranks=1, steps=1, fault_step=0)
    monkeypatch.chdir(tmp_path)
    handed: list[str] = []
    submit = ClusterExecutor.submit_to

    def counted(self: ClusterExecutor, host: str, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        handed.append(task.__name__)
        return submit(self, host, task, *arguments)

    monkeypatch.setattr(ClusterExecutor, "submit_to", counted)
    told = []
    for least, options in (
        (1 << 30, ["--workers", "1"]),
        (1 << 30, ["--cluster", address]),
        (1, ["--cluster", address]),
    ):
        handed.clear()
        monkeypatch.setattr(study, "_SHARED_BYTES", least)
        words = ["--data", truth.data[0], "--work", "work", "ac", "--all", "--json", "--fresh", *options]
        assert main(words) == 0
        told.append(json.loads(capfd.readouterr().out))
        assert (handed.count("run_task") == 1) is (least > 1 and "--cluster" in options)
    assert handed.count("_recompute_task") > 1, "its ops, by the workers"
    assert told[0] == told[1] == told[2]
    assert told[0]["culprit"]["op"] == truth.culprit


def test_a_worker_keeps_freed_memory_as_our_own_processes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(engine_cluster, "reuse_memory", told.append)
    engine_cluster._make_ready.cache_clear()
    assert [engine_cluster._run_in((".", urls.secrets()), abs, (number,), {}).result for number in (-1, 2)] == [1, 2]
    engine_cluster._make_ready.cache_clear()
    assert told == [scheduler.cores()], "once in a process"
