"""A Dask cluster as the executor that does the work: `pip install '.[cluster]'` here and where its workers run.

Tasks carry paths and plans and bring back rows, so a worker has to see the data under the same paths, or by the same
URLs. Dask pickles what goes between the two, so only a cluster that one trusts may be named. A task that a lost worker
had is done by another one; a task that fails in each of three tries is a `PoisonedTaskError`.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from precision_tool.lib.compare.scheduler import Done, PoisonedTaskError, WorkersLostError, cores, reuse_memory
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import is_file
from precision_tool.lib.io.local import reading_from
from precision_tool.lib.io.native.library import library
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.version import __version__

#: Each task is tried so often before it counts as poisoned.
TRIES = 3
#: Bytes of a task, as far as there are enough of them for every worker.
TASK_BYTES = 256 << 20
#: Seconds until a scheduler has to answer, until it has to have a worker, and that it may be without one later.
_CONNECTING, _FIRST_WORKER, _WITHOUT_WORKERS = 10.0, 20.0, 60.0
#: Seconds between two looks whether there are workers, and while one is waited for.
_WATCHING, _POLL = 2.0, 0.2
_ADDRESS = re.compile(r"(?:[a-z]+://)?[\w.\-\[\]:]+:[0-9]+/?\Z")
#: Workers that an error names.
_MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Data below `folder` is read by the workers of `host`: their host name or address, their name, or a resource."""

    host: str
    folder: str


def parse_place(text: str) -> Place:
    """`HOST=DIR`; UsageError for anything else."""
    host, _, folder = text.partition("=")
    if not host or not folder:
        raise UsageError("compare.bad_worker_for", text=text)
    return Place(host, posixpath.join(posixpath.abspath(folder), ""))


@contextmanager
def open_cluster(address: str, places: Sequence[Place] = ()) -> Iterator[ClusterExecutor]:
    """Yield the executor of a Dask cluster. Whatever is not done at the end of the block is cancelled.

    Parameters
    ----------
    address : str
        `tcp://host:port`, or the path of its scheduler file.
    places : sequence of Place
        Which workers read the data of which folders.

    Raises
    ------
    UsageError
        Dask is not installed, or versions differ.
    DataNotFoundError
        Nobody answers.
    """
    client = _connected(address)
    try:
        executor = ClusterExecutor(client, address, places)
        try:
            yield executor
        finally:
            executor.shutdown()
    finally:
        with suppress(Exception):  # a scheduler that has gone cannot be told
            client.close(timeout=2)


def _connected(address: str) -> Any:
    is_path = is_file(address)
    if not is_path and not _ADDRESS.match(address):
        raise UsageError("compare.bad_cluster", address=address)
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("compare.no_dask") from None
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what matters becomes an error of ours
    where = {"scheduler_file": address} if is_path else {"address": address}
    until = time.monotonic() + _CONNECTING
    while True:
        try:
            client = Client(**where, timeout=_CONNECTING, set_as_default=False)
            break
        except Exception as error:  # a scheduler that is busy with a client that has gone may answer wrongly once
            if time.monotonic() > until:
                raise DataNotFoundError("compare.no_scheduler", address=address, error=type(error).__name__) from None
            time.sleep(_POLL)
    try:
        _check_workers(client, address)
    except BaseException:
        with suppress(Exception):
            client.close(timeout=2)
        raise
    return client


def versions() -> dict[str, str]:
    """Return the versions that must be the same on this machine and on the workers."""
    from importlib import metadata  # only where there is a cluster: it takes as long to load as numpy

    python = ".".join(map(str, sys.version_info[:2]))
    return {
        "Python": python, "Dask": metadata.version("distributed"), "precision_tool": __version__,
        "kernel": "numpy" if library() is None else "compiled",
    }  # fmt: skip


def _check_workers(client: Any, address: str) -> None:
    """Raise the error for a cluster without workers, or with ones that are not as we are."""
    try:
        client.wait_for_workers(1, timeout=_FIRST_WORKER)
    except Exception:
        raise DataNotFoundError("compare.no_worker", address=address) from None
    try:
        answers: Mapping[str, Any] = client.run(versions, on_error="return")
    except Exception as error:
        raise UsageError("compare.workers_silent", address=address, error=type(error).__name__) from None
    expected = versions()
    for worker, installed in answers.items():
        if not isinstance(installed, dict):
            raise UsageError(
                "compare.worker_without_tool", worker=worker, error=f"{type(installed).__name__}: {installed}"
            )
        differences = version_differences(expected, installed)
        if differences:
            is_of_kernel = installed.get("kernel") != expected["kernel"]
            raise UsageError("compare.worker_differs", worker=worker, differences=differences, kernel=is_of_kernel)


def version_differences(expected: Mapping[str, str], installed: Mapping[str, str]) -> list[Message]:
    """Return the versions that are not the expected ones."""
    return [
        Message("note.compare.version", name=name, installed=installed.get(name), expected=version)
        for name, version in expected.items()
        if installed.get(name) != version
    ]


class ClusterExecutor(Executor):
    """The workers of a cluster. Made by `open_cluster`."""

    task_bytes = TASK_BYTES

    def __init__(self, client: Any, address: str, places: Sequence[Place] = ()) -> None:
        self._client = client
        self.address = address
        self._places = sorted(places, key=lambda place: -len(place.folder))  # of folders in one another the inner one
        self._executors: dict[str, Any] = {}
        #: What was given out, and what the cluster does for it. A task that is done is held by neither: Dask then
        #: drops its result, and does not do it again when the worker is lost.
        self._pending: dict[Future[Any], Future[Any]] = {}
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._folder = posixpath.abspath(".")
        for place in places:
            self._executor_of(place.host)
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self._watch.start()

    @property
    def workers(self) -> int:
        """Tasks that run at once."""
        return max(1, int(sum(self._client.nthreads().values())))

    def host_of(self, path: str) -> str:
        """Whose workers read a path; "": any."""
        full = posixpath.abspath(path)
        return next((place.host for place in self._places if full.startswith(place.folder)), "")

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Hand out a task to whichever worker is free."""
        return self.submit_to("", task, arguments, options)

    def at(self, host: str) -> Executor:
        """Return the workers of a host, as `host_of` names it, alone."""
        return _Host(self, host)

    def submit_to(
        self, host: str, task: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Future[Any]:
        """Hand out a task to the workers of a host."""
        inner = self._executor_of(host).submit(_run_in, (self._folder, urls.secrets()), task, arguments, options)
        outer: Future[Any] = Future()
        with self._lock:
            self._pending[outer] = inner
        outer.add_done_callback(self._done)
        inner.add_done_callback(lambda future: self._hand_on(future, outer))
        return outer

    def _done(self, outer: Future[Any]) -> None:
        with self._lock:
            inner = self._pending.pop(outer)
        if outer.cancelled():
            inner.cancel()

    def _hand_on(self, inner: Future[Any], outer: Future[Any]) -> None:
        """Hand on the result or the error of a task of the cluster."""
        with suppress(InvalidStateError):  # it was cancelled, or the watch was quicker
            if inner.cancelled():
                outer.set_exception(WorkersLostError("compare.task_given_up", address=self.address))
            elif (error := inner.exception()) is not None:
                outer.set_exception(_poisoned(error))
            else:
                inner.result().hand_on(outer)

    def _executor_of(self, host: str) -> Any:
        executor = self._executors.get(host)
        if executor is None:
            options = self._workers_of(host) if host else {}
            executor = self._client.get_executor(pure=False, retries=TRIES - 1, **options)
            self._executors[host] = executor
        return executor

    def _workers_of(self, host: str) -> dict[str, Any]:
        """Return Dask's options for the workers that a host name, a worker's name or a resource stands for."""
        until = time.monotonic() + _FIRST_WORKER  # one that was lost may be starting again
        while True:
            workers = self._workers()
            names = {str(worker.get("name")): worker.get("name") for worker in workers}  # which may be a number
            hosts = {str(worker.get("host")) for worker in workers}
            if host in names or host in hosts:
                return {"workers": [names.get(host, host)], "allow_other_workers": False}
            resources = {name for worker in workers for name in worker.get("resources", {})}
            if host in resources:
                return {"resources": {host: 1e-9}}
            if time.monotonic() > until:
                workers_there = sorted({*names, *hosts, *resources})[:_MAX_NAMED]
                raise UsageError("compare.no_such_worker", host=host, address=self.address, workers=workers_there)
            time.sleep(_POLL)

    def _workers(self) -> list[Mapping[str, Any]]:
        return list(self._client.scheduler_info()["workers"].values())

    def _watched(self) -> None:
        """Give up when there are no workers any more, which Dask would wait for without end."""
        without = 0.0
        while not self._is_closed.wait(_WATCHING):
            missing = self._missing()
            without = 0.0 if missing is None else without + _WATCHING
            if missing is not None and without >= _WITHOUT_WORKERS:  # and so does what is handed out from then on
                self._fail(missing)

    def _missing(self) -> WorkersLostError | None:
        """Return the error for what of the cluster is gone; None while there is all that is needed."""
        try:
            workers = self._workers()
        except Exception:
            return WorkersLostError("compare.scheduler_gone", address=self.address)
        for host in filter(None, list(self._executors)):
            if not any(
                host in (worker.get("host"), str(worker.get("name")), *worker.get("resources", {}))
                for worker in workers
            ):
                return WorkersLostError("compare.workers_gone", address=self.address, host=host)
        return None if workers else WorkersLostError("compare.workers_gone", address=self.address, host="")

    def _fail(self, error: PrecisionToolError) -> None:
        with self._lock:
            pending = list(self._pending)
        for future in pending:
            with suppress(InvalidStateError):  # done meanwhile
                future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Cancel what is not done; what a worker has begun ends with its task."""
        self._is_closed.set()
        with self._lock:
            pending = list(self._pending)
        for future in pending:
            future.cancel()
        for executor in self._executors.values():
            with suppress(Exception):
                executor.shutdown(wait=False)


def near(executor: Executor, path: str) -> Executor:
    """Return the workers of an executor that read a path: of a cluster those of its host, else all."""
    return executor.at(executor.host_of(path)) if isinstance(executor, ClusterExecutor) else executor


class _Host(Executor):
    def __init__(self, cluster: ClusterExecutor, host: str) -> None:
        self._cluster = cluster
        self._host = host

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        return self._cluster.submit_to(self._host, task, arguments, options)


def _run_in(
    where: tuple[str, urls.Secrets],
    task: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
) -> Done:
    """Do a task on a worker: relative paths are those of whoever asked for it.

    No other try would make good the user's error that a task raises.
    """
    _make_ready()
    urls.take_secrets(where[1])
    with reading_from(where[0]):
        return Done.by(task, arguments, options)


@cache
def _make_ready() -> None:
    """Prepare a worker, once: it keeps freed memory as our own processes do, beside one worker for each core."""
    reuse_memory(cores())


def _poisoned(error: BaseException) -> PoisonedTaskError:
    from distributed.scheduler import KilledWorker

    if isinstance(error, KilledWorker):
        return PoisonedTaskError("compare.worker_ended", count=error.allowed_failures + 1)
    return PoisonedTaskError("compare.task_failed", tries=TRIES, error=f"{type(error).__name__}: {error}")
