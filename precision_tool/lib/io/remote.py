"""Files that are on no disk of this machine, by fsspec: object stores, HDFS, HTTP, SSH, memory.

One listing of a folder answers for all that lies in it. A file is read in ranges: the first bytes, which hold its
head, are kept; of a tensor that is read in order some are read ahead, but none beyond it. What is about to be read of
many files is asked for together (`gather`), so that a request's delay is waited for once. Credentials are found by
fsspec's own ways, or were part of the URL.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import os
import posixpath
import re
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote

from precision_tool.lib.io import urls
from precision_tool.lib.io.stores import (
    IO_THREAD,
    ContentSignature,
    Entry,
    Kind,
    NewFile,
    Stat,
    Store,
    StoredFile,
    noting_unread,
)
from precision_tool.lib.messages.errors import (
    DataNotFoundError,
    FormatError,
    OutputError,
    PrecisionToolError,
    UsageError,
)

T = TypeVar("T")

#: Seconds until a server has to have answered.
SECONDS = 60.0
#: Seconds until a connection that is ended has to be.
_ENDING = 5.0
HTTP = ("http", "https")
#: Schemes whose file systems keep no listings, and hand options that they do not know on to what connects.
_HAND_ON = ("ssh", "sftp")
#: Errors of SSH's libraries, which are none of Python's own kinds, for who may not read.
_REFUSALS = ("SFTPPermissionDenied", "PermissionDenied", "AuthenticationException")
#: Packages of fsspec's that know a scheme, where it is not the scheme's own name.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "oss": "ossfs", "gs": "gcsfs", "gcs": "gcsfs", "ssh": "paramiko", "sftp": "paramiko",
    "hdfs": "pyarrow", "http": "aiohttp", "https": "aiohttp", "az": "adlfs", "abfs": "adlfs",
}  # fmt: skip
#: Seconds for which a listing is believed, and entries of all that are kept.
_FRESH, _MAX_ENTRIES = 30.0, 200_000
#: Answers about single paths that are kept.
_MAX_INFOS = 10_000
#: Bytes at the start of a file that are read at once, and of all parts of files that are kept.
_HEAD, _HELD = 1 << 16, 128 << 20
#: Bytes of a part of a file that is kept when it was read alone.
_KEPT = 1 << 20
#: Bytes that are read ahead at most, and that are asked for together.
_AHEAD, _GATHERED = 8 << 20, 24 << 20
#: Ranges asked for just before, among which one that is asked for twice is looked for.
_NEAR = 16
#: Requests that are under way at one time.
_TOGETHER = 32
#: Bytes of a file that is fetched whole, as its server has no ranges, and of all such files that are kept.
_MAX_WHOLE, _WHOLES = 2 << 30, 8 << 30
#: Such files that are kept, each of which takes a descriptor.
_MAX_OPEN = 256
#: Folders that are listed at once.
_MAX_LISTED = 256
#: Seconds until a request is made again whose answer was cut off, or said that another may succeed.
_WAITS: tuple[float, ...] = (0.1, 1.0)
_PASSING = (408, 429, 500, 502, 503, 504)
#: Where stores tell when a file was written, and what else changes when it is.
_TIMES = (
    "mtime", "LastModified", "last_modified", "updated", "last_write_time", "modificationTime", "modify", "created",
)  # fmt: skip
_TAGS = (
    "ETag", "etag", "Last-Modified", "Content-MD5", "Digest", "md5", "md5Hash", "checksum", "generation", "created",
)  # fmt: skip


class NoAnswerError(FormatError):
    """A server that did not answer in time."""


class AnswerError(Exception):
    """An answer that is not what was asked for: a kind of the user's errors, with its fields."""

    def __init__(self, kind: str, **fields: Any) -> None:
        super().__init__(kind)
        self.kind, self.fields = kind, fields


class Answer(bytes):
    """Bytes of a file, and what the answer told of all of it; its size is None where that is not known."""

    info: Mapping[str, Any]


def filesystem_of(path: str) -> Any:
    """The file system of fsspec that a path stands for. UsageError where what it needs is not installed."""
    scheme = path[1:].partition(":")[0]
    try:
        import fsspec
    except ImportError:
        raise UsageError("io.remote.no_fsspec", url=urls.url_of(path)) from None
    try:
        kind = fsspec.get_filesystem_class(scheme)
        options: dict[str, Any] = {"skip_instance_cache": True}
        if scheme not in _HAND_ON:
            options["use_listings_cache"] = False
        if scheme == "memory":
            return kind()
        if scheme in HTTP:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(SECONDS, 15.0), sock_read=SECONDS)
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
            options["loop"] = _new_loop()
            user, _, password = urls.secret_of(path).user.partition(":")
            if user:
                plain = f"{unquote(user)}:{unquote(password)}".encode()
                options["client_kwargs"]["headers"] = {"Authorization": f"Basic {base64.b64encode(plain).decode()}"}
        else:
            options |= kind._get_kwargs_from_urls(_full_url(path))
        if scheme in HTTP:
            kind = _checked(kind)
        if scheme in _HAND_ON:
            kind, checked = _of_known_hosts(kind)
            options |= checked
        filesystem = timed(path, lambda: kind(**options))
        if getattr(filesystem, "async_impl", False):
            filesystem.batch_size = _TOGETHER
        return filesystem
    except PrecisionToolError:
        raise
    except (ImportError, ValueError) as error:
        package = _PACKAGES.get(scheme)
        if isinstance(error, ValueError) and "not known" in str(error).lower():
            raise UsageError("io.remote.unknown_scheme", url=urls.url_of(path), scheme=scheme) from None
        raise UsageError(
            "io.remote.not_opened", url=urls.url_of(path), scheme=scheme, reason=_reason(error), package=package
        ) from None
    except Exception as error:
        raise error_of(path, error) from None


def _of_known_hosts(kind: Any) -> tuple[Any, dict[str, Any]]:
    """SSH's file system, and options, that connect to servers alone whose keys are known; both else take any key."""
    try:
        from fsspec.implementations import sftp
    except ImportError:  # without paramiko it is that of sshfs, which hands options on to asyncssh
        sftp = None
    if sftp is None or not issubclass(kind, sftp.SFTPFileSystem):
        return kind, {"known_hosts": ()}

    class OfKnownHosts(kind):  # type: ignore[misc]  # fsspec has no types
        def _connect(self) -> None:
            self.client = sftp.paramiko.SSHClient()
            self.client.load_system_host_keys()
            self.client.set_missing_host_key_policy(sftp.paramiko.RejectPolicy())
            self.client.connect(self.host, **self.ssh_kwargs)
            self.ftp = self.client.open_sftp()

    return OfKnownHosts, {}


def _new_loop() -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread of its own, not in fsspec's, which others in this process may use too."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_name_of(loop), daemon=True).start()
    return loop


def _name_of(loop: asyncio.AbstractEventLoop) -> str:
    """What the thread of an event loop is called."""
    return f"{IO_THREAD}_{id(loop)}"


async def _up_to(most: int, response: Any) -> bytes:
    """Return the body of an answer; of a longer one, which may never end, a little more than `most` bytes."""
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > most:
            break
    return bytes(data)


def _checked(kind: Any) -> Any:
    """HTTP's file system with answers that are whole, or are errors: fsspec's takes whatever comes for the range."""
    import aiohttp

    class Checked(kind):  # type: ignore[misc]  # fsspec has no types
        async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
            for wait in _WAITS:
                try:
                    return await call()
                except (
                    aiohttp.ClientConnectionError,
                    aiohttp.ClientPayloadError,
                    aiohttp.ClientResponseError,
                ) as error:
                    if isinstance(error, TimeoutError) or getattr(error, "status", 500) not in _PASSING:
                        raise
                await asyncio.sleep(wait)
            return await call()

        async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            list_once = super()._ls
            return await self._tried(lambda: list_once(path, detail=detail, **options))

        async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **_: Any) -> Answer:
            assert start is not None
            assert end is not None
            return await self._tried(lambda: self._range(url, start, end))

        async def _range(self, url: str, start: int, end: int) -> Answer:
            session = await self.set_session()
            headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
            async with session.get(self.encode_url(url), headers=headers) as response:
                told = re.match(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", response.headers.get("Content-Range", ""))
                if response.status == 416 and told is not None and told[3] in ("0", str(start)):
                    return _answer(b"", response, int(told[3]))
                self._raise_not_found_for_status(response, url)
                if response.status != 206:
                    return await self._start_of_all(response, start, end)
                data = await _up_to(end - start, response)
                size = int(told[3]) if told is not None and told[3] != "*" else None
                first = int(told[1]) if told is not None and told[1] else -1
                if (
                    first != start
                    or len(data) > end - start
                    or (size is not None and first + len(data) < min(end, size))
                ):
                    raise AnswerError("io.remote.odd_answer", start=start, stop=end, count=len(data))
                if size is None and len(data) < end - start:
                    size = start + len(data)
                return _answer(data, response, size)

        async def _start_of_all(self, response: Any, start: int, end: int) -> Answer:
            """Return a file that is no longer than what was asked for, of a server without ranges."""
            length = response.content_length
            if start or (length is not None and length > end):
                raise _no_ranges(length)
            data = await _up_to(end, response)
            if len(data) > end:
                raise _no_ranges(length)
            return _answer(data, response, len(data))

        async def _spool(self, url: str, file: IO[bytes]) -> Mapping[str, Any]:
            """Write a whole file into another; what its server tells of it is returned."""
            return await self._tried(lambda: self._spool_once(url, file))

        async def _spool_once(self, url: str, file: IO[bytes]) -> Mapping[str, Any]:
            session = await self.set_session()
            file.seek(0)
            file.truncate()
            async with session.get(self.encode_url(url), headers={"Accept-Encoding": "identity"}) as response:
                self._raise_not_found_for_status(response, url)
                if (response.content_length or 0) > _MAX_WHOLE:
                    raise _no_ranges(response.content_length)
                async for part in response.content.iter_any():
                    file.write(part)
                    if file.tell() > _MAX_WHOLE:
                        raise _no_ranges(file.tell())
                file.flush()
                return _answer(b"", response, file.tell()).info

        async def _info(self, url: str, **_: Any) -> Mapping[str, Any]:
            return await self._tried(lambda: self._head(url))

        async def _head(self, url: str) -> Mapping[str, Any]:
            session = await self.set_session()
            headers = {"Accept-Encoding": "identity"}
            async with session.head(self.encode_url(url), allow_redirects=True, headers=headers) as response:
                if response.status not in (405, 501):  # one that answers no HEAD answers a GET
                    self._raise_not_found_for_status(response, url)
                    if response.content_length is not None or str(response.url).partition("?")[0].endswith("/"):
                        return _answer(b"", response, response.content_length).info
            try:
                return (await self._range(url, 0, 1)).info
            except AnswerError:  # fetching it will tell how long it is
                return {"name": url, "type": "file", "size": None}

    return Checked


def _no_ranges(size: int | None) -> AnswerError:
    """The error of a file that is sent only whole, and of what size; None: that is not told."""
    return AnswerError("io.remote.no_ranges", limit=_MAX_WHOLE, is_too_large=(size or 0) > _MAX_WHOLE)


def _answer(data: bytes, response: Any, size: int | None) -> Answer:
    answer = Answer(data)
    tags = {key: response.headers[key] for key in _TAGS if key in response.headers}
    answer.info = {"name": str(response.url), "type": "file", "size": size, "url": str(response.url), **tags}
    return answer


def _full_url(path: str) -> str:
    """The URL with all that the user gave."""
    url = urls.url_of(path) or path
    secret = urls.secret_of(path)
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{secret.user + '@' if secret.user else ''}{rest}"


def timed(path: str, call: Callable[[], T]) -> T:
    """What a call returns, which may not take longer than a server may need to answer."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS * 2)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]


def _reason(error: BaseException) -> str:
    return urls.scrubbed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:500]


def error_of(path: str, error: BaseException) -> PrecisionToolError:
    """The user's error for what a server, or a library, answered."""
    if isinstance(error, PrecisionToolError):
        return error
    if isinstance(error, AnswerError):
        return FormatError.of(path, error.kind, **error.fields)
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:  # as fsspec words whatever HTTP says
        return error_of(path, error.__cause__)
    status = getattr(error, "status", None)
    name = type(error).__name__  # asyncssh's errors are none of Python's own kinds
    if isinstance(error, FileNotFoundError) or status == 404 or name in ("SFTPNoSuchFile", "SFTPNoSuchPath"):
        return DataNotFoundError.of(path, "io.remote.no_file")
    if name in ("HostKeyNotVerifiable", "BadHostKeyException") or "not found in known_hosts" in str(error):
        return FormatError.of(path, "io.remote.host_key", reason=_reason(error))
    is_refused = isinstance(error, PermissionError) or name in _REFUSALS or "Credential" in name
    if is_refused or status in (401, 403) or "Expired" in str(error):
        return FormatError.of(path, "io.remote.no_permission", reason=_reason(error))
    if isinstance(error, IsADirectoryError):
        return FormatError.of(path, "io.folder_not_file")
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return NoAnswerError.of(path, "io.remote.no_answer")
    reason = f"HTTP {status} {getattr(error, 'message', '')}".strip() if isinstance(status, int) else _reason(error)
    return FormatError.of(path, "io.remote.unreadable", reason=reason)


def _signature(path: str, info: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """What changes when a file does, as far as its store tells."""
    changed = next((info[key] for key in _TIMES if info.get(key)), 0)
    if isinstance(changed, datetime):
        changed = changed.timestamp()
    elif "modificationTime" in info and changed == info["modificationTime"] and isinstance(changed, (int, float)):
        changed /= 1000  # webhdfs has milliseconds
    nanoseconds = int(changed * 1e9) if isinstance(changed, (int, float)) else 0
    tags = [str(info[key]).strip('"') if info.get(key) else None for key in _TAGS]
    if isinstance(changed, str):  # as a server words it
        tags.append(changed)
    return int(info.get("size") or 0), nanoseconds, nanoseconds, _number(path), _number(repr(tags))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=7).digest(), "big")


class RemoteStore(Store):
    """The files of one server, bucket or memory, by the paths that `urls` makes of URLs."""

    def __init__(self, path: str, filesystem: Any = None) -> None:
        self.scheme = path[1:].partition(":")[0]
        self._path, self._pid = path, os.getpid()
        self._connection = filesystem if filesystem is not None else filesystem_of(path)
        self.lists_sizes = self.scheme not in HTTP
        self.gathers = bool(getattr(self._fs, "async_impl", False))
        self._lock = threading.Lock()
        #: Folders that were listed: when, and what of each name is known.
        self._listings: OrderedDict[str, tuple[float, dict[str, dict[str, Any]]]] = OrderedDict()
        #: What was asked of single paths, and when; {} of what is not there.
        self._infos: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()
        #: Parts of files by path and tag, each with its start, and how many bytes these are in all.
        self._parts: OrderedDict[tuple[str, int], list[tuple[int, bytes]]] = OrderedDict()
        self._held = 0
        #: What was asked for together and not given: place and start.
        self._refused: set[tuple[str, int]] = set()
        #: Files that were fetched whole: what closes each, its descriptor (it has no name), and what was told of it.
        self._wholes: OrderedDict[str, tuple[Callable[[], object], int, Mapping[str, Any]]] = OrderedDict()

    # --- the connection ---

    @property
    def _fs(self) -> Any:
        """The file system; one that was let go, or is another process's, is opened anew."""
        if self._connection is None or (self._pid != os.getpid() and self.scheme in HTTP):
            self._pid, self._connection = os.getpid(), filesystem_of(self._path)
        return self._connection

    def let_go(self) -> bool:
        if self.scheme not in HTTP:
            return False
        from fsspec.asyn import sync

        if self._connection is not None and self._pid == os.getpid():
            loop, session = self._connection.loop, self._connection._session
            if session is not None:
                sync(loop, session.close, timeout=_ENDING)
            sync(loop, loop.shutdown_default_executor, timeout=_ENDING)
            loop.call_soon_threadsafe(loop.stop)
            thread = next((each for each in threading.enumerate() if each.name == _name_of(loop)), None)
            if thread is not None:
                thread.join(_ENDING)
            if not loop.is_running():
                loop.close()
            self._connection = None
        return True

    # --- how fsspec calls what lies at a path ---

    def _name(self, path: str) -> str:
        url = urls.url_of(path) or path
        if self.scheme in HTTP:
            scheme, _, rest = url.partition("://")
            host, _, below = rest.partition("/")
            query = urls.secret_of(path).query
            return f"{scheme}://{host}/{quote(below)}" + (f"?{query}" if query else "")
        return str(self._fs._strip_protocol(url))

    def _call(self, path: str, method: str, *arguments: Any, seconds: float = 0.0, **options: Any) -> Any:
        """What a method of the file system returns, which may not take much longer than a server may to answer."""
        try:
            if self.gathers:
                from fsspec.asyn import sync

                call, limit = getattr(self._fs, f"_{method}"), SECONDS * 2 + seconds
                return sync(self._fs.loop, call, *arguments, timeout=limit, **options)
            call = getattr(self._fs, method)
            if self.scheme == "memory":
                return call(*arguments, **options)
            return timed(path, lambda: call(*arguments, **options))
        except Exception as error:
            raise error_of(path, error) from None

    def _together(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """What each of some calls of the file system returns, or the exception that it raises."""
        from fsspec.asyn import _run_coros_in_chunks, sync

        async def run() -> Any:
            coroutines = [call() for call in calls]
            return await _run_coros_in_chunks(coroutines, batch_size=_TOGETHER, nofiles=True, return_exceptions=True)

        if not calls:
            return []
        try:
            return list(sync(self._fs.loop, run, timeout=SECONDS * (2 + len(calls))))
        except Exception as error:  # who reads them is told what is wrong with each
            return [error] * len(calls)

    # --- what is there ---

    def _listing(self, folder: str) -> dict[str, dict[str, Any]]:
        """What lies in a folder, by name. DataNotFoundError for what is no folder."""
        folder = posixpath.normpath(folder)
        with self._lock:
            cached = self._listings.get(folder)
            if cached is not None and time.monotonic() - cached[0] < _FRESH:
                return cached[1]
        address = self._address(folder)
        try:
            with noting_unread(folder):
                infos = self._call(folder, "ls", address, detail=True)
        except NoAnswerError:
            raise
        except (DataNotFoundError, FormatError) as error:
            if self.scheme in HTTP:
                raise DataNotFoundError.of(folder, "io.remote.unlisted", reason=error.reason_message) from None
            if isinstance(error, DataNotFoundError):
                raise DataNotFoundError.of(folder, "io.no_folder", content="files") from None
            raise
        return self._take_listing(folder, address, infos)

    def _address(self, folder: str) -> str:
        """What a folder is listed by."""
        if self.scheme not in HTTP:
            return self._name(folder)
        name, mark, query = self._name(folder).partition("?")
        return name.rstrip("/") + "/" + mark + query

    def _take_listing(self, folder: str, address: str, infos: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        listing = self._links(folder, address, infos) if self.scheme in HTTP else self._ls(folder, address, infos)
        with self._lock:
            self._listings[folder] = time.monotonic(), listing
            self._listings.move_to_end(folder)
            held = sum(len(names) for _, names in self._listings.values())
            while self._listings and held > _MAX_ENTRIES:
                held -= len(self._listings.popitem(last=False)[1][1])
        return listing

    def _ls(self, folder: str, name: str, infos: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        whole = name.strip("/")
        if [info["name"].strip("/") for info in infos] == [whole] and infos[0].get("type") == "file":
            raise DataNotFoundError.of(folder, "io.file_not_folder", content="files")
        entries = ((posixpath.basename(info["name"].rstrip("/")), info) for info in infos)
        return {
            base: self._followed(posixpath.join(folder, base), info)
            for base, info in entries
            if base and info["name"].strip("/") != whole
        }

    def _followed(self, path: str, info: dict[str, Any]) -> dict[str, Any]:
        """What a symbolic link leads to, which ssh lists as what it is itself; nothing of one that leads nowhere."""
        if info.get("type") != "link":
            return info
        try:
            return dict(self._call(path, "info", info["name"]))
        except NoAnswerError:
            raise
        except (DataNotFoundError, FormatError):  # what opens it says so
            return {"name": info["name"], "type": None}

    def _links(self, folder: str, address: str, infos: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """What a page of a server lists, by the names that are shown of it: links to other places are none."""
        listing = {}
        for info in infos:
            link = html.unescape(info["name"]).removeprefix(address.rstrip("/") + "/").removeprefix("./")
            base = unquote(link.rstrip("/"))
            if base not in ("", ".", "..") and not re.search("[/?#:]", link.rstrip("/")) and "/" not in base:
                listing[base] = {"name": base, "type": "directory" if link.endswith("/") else "file"}
        if not listing and not re.match(rb"\s*<(?:!doctype|html|head|body|ul|pre|table)", self._start(address), re.I):
            raise DataNotFoundError.of(folder, "io.file_not_folder", content="files")
        return listing

    def _start(self, address: str) -> bytes:
        """The first bytes of a page; of a large one, which is none of a folder without files, nothing."""
        try:
            return bytes(self._call(address, "cat_file", address, start=0, end=_HEAD))
        except FormatError:
            return b""

    def list_together(self, folders: Iterable[str], *, below: bool = False) -> None:
        waiting, count = [*folders], 0
        while self.gathers and waiting and count < _MAX_LISTED:
            fresh = [folder for folder in map(posixpath.normpath, waiting) if not self._is_listed(folder)]
            fresh = fresh[: _MAX_LISTED - count]
            addresses = [self._address(folder) for folder in fresh]
            listed = self._together([partial(self._fs._ls, address, detail=True) for address in addresses])
            waiting, count = [], count + len(fresh)
            for folder, address, infos in zip(fresh, addresses, listed, strict=True):
                listing: Mapping[str, Mapping[str, Any]] = {}
                if not isinstance(infos, BaseException):
                    with suppress(PrecisionToolError):  # who lists it is told
                        listing = self._take_listing(folder, address, infos)
                if below:
                    folders_in = (base for base, info in listing.items() if info.get("type") == "directory")
                    waiting += [posixpath.join(folder, base) for base in folders_in]

    def _is_listed(self, folder: str) -> bool:
        with self._lock:
            cached = self._listings.get(folder)
            return cached is not None and time.monotonic() - cached[0] < _FRESH

    def stat(self, path: str) -> Stat | None:
        path = posixpath.normpath(path)
        info = self._cached_info(path)
        if info is None:
            return None
        if info.get("size") is None and info.get("type") != "directory":
            try:
                info = dict(self._call(path, "info", self._name(path)))
            except DataNotFoundError:
                info = {}
            self._take_info(path, info)
        return self._stat(path, info) if info else None

    def _cached_info(self, path: str) -> dict[str, Any] | None:
        """What the listing of the folder above says; {} where there is none, None if nothing lies at the path."""
        above, base = posixpath.split(path)
        now = time.monotonic()
        with self._lock:
            listing = self._listings.get(above)
            if listing is not None and now - listing[0] < _FRESH:
                info = listing[1].get(base)
                if info is None or info.get("size") is not None or info.get("type") == "directory":
                    return info
            if path in self._listings and now - self._listings[path][0] < _FRESH:
                return {"type": "directory"}
            cached = self._infos.get(path)
            return (cached[1] or None) if cached is not None and now - cached[0] < _FRESH else {}

    def _take_info(self, path: str, info: dict[str, Any]) -> None:
        """Keep what was told of a path; {} where nothing is there."""
        if self.scheme in HTTP and str(info.get("url", "")).partition("?")[0].endswith("/"):
            info["type"] = "directory"  # where it sent us
        with self._lock:
            self._infos[path] = time.monotonic(), info
            self._infos.move_to_end(path)
            while len(self._infos) > _MAX_INFOS:
                self._infos.popitem(last=False)

    def _stat(self, path: str, info: Mapping[str, Any]) -> Stat:
        kind = Kind.FOLDER if info.get("type") == "directory" else Kind.FILE
        if kind is Kind.FOLDER:
            info = {"size": 0}
        return Stat(kind=kind, size=int(info.get("size") or 0), signature=_signature(path, info))

    def content_signature(self, stat: Stat) -> ContentSignature:
        return *stat.signature[:2], stat.signature[-1]

    def look_together(self, paths: Iterable[str]) -> None:
        if not self.gathers:
            return
        places = map(posixpath.normpath, paths)
        unknown = [place for place in places if (info := self._cached_info(place)) is not None and "size" not in info]
        infos = self._together([partial(self._fs._info, self._name(place)) for place in unknown])
        for place, info in zip(unknown, infos, strict=True):
            if not isinstance(info, BaseException):
                self._take_info(place, dict(info))
            elif isinstance(error_of(place, info), DataNotFoundError):
                self._take_info(place, {})

    def content_signatures(self, folder: str, file_names: Sequence[str]) -> Iterator[ContentSignature]:
        self.look_together(posixpath.join(folder, name) for name in file_names)
        return super().content_signatures(folder, file_names)

    def entries(self, folder: str) -> Sequence[Entry]:
        listing = self._listing(folder)
        return [
            Entry(name=base, kind=Kind.FOLDER if listing[base].get("type") == "directory" else Kind.FILE)
            for base in sorted(listing)
        ]

    # --- what is in it ---

    def open(self, path: str) -> StoredFile:
        place = posixpath.normpath(path)
        info: Mapping[str, Any] = self._cached_info(place) or {}
        if info.get("type") == "directory":
            raise FormatError.of(path, "io.folder_not_file")
        if info.get("size") is None:
            with noting_unread(path):
                if self.scheme in HTTP:  # the answer tells what a request of its own would
                    info = self._ask(place, 0, _HEAD, path)[1]
                    if info.get("size") is None and info.get("type") != "directory":
                        self._fetch_whole(place, path)
                        info = self._cached_info(place) or {}
                else:
                    info = dict(self._call(path, "info", self._name(path)))
                    self._take_info(place, info)
        if info.get("type") == "directory":
            raise FormatError.of(path, "io.folder_not_file")
        if info.get("size") is None:
            raise FormatError.of(path, "io.remote.unknown_length")
        return RemoteFile(self, path, int(info["size"]), _signature(place, info)[-1])

    def _ask(self, place: str, start: int, stop: int, path: str) -> tuple[bytes, Mapping[str, Any]]:
        """The bytes of a range and what is told of the file; of one that is sent only whole, from a temporary file."""
        while True:
            with self._lock:
                if place in self._wholes:
                    _, descriptor, info = self._wholes[place]
                    return os.pread(descriptor, stop - start, start), info
            try:
                data = self._call(path, "cat_file", self._name(path), start=start, end=stop)
            except FormatError as error:
                if error.kind != "io.remote.no_ranges" or error.fields["is_too_large"]:
                    raise
                self._fetch_whole(place, path)
            else:
                return data, self._taken(place, start, data, is_kept=start < _HEAD or len(data) <= _KEPT)

    def _fetch_whole(self, place: str, path: str) -> None:
        """Put a file of a server without ranges into a temporary one."""
        with tempfile.TemporaryFile(prefix="precision_tool_") as file:
            info = self._call(path, "spool", self._name(path), file, seconds=_MAX_WHOLE / 1e6)
            descriptor = os.dup(file.fileno())
        self._take_info(place, dict(info))
        with self._lock:
            self._wholes[place] = weakref.finalize(self, os.close, descriptor), descriptor, info
            while len(self._wholes) > 1 and (
                len(self._wholes) > _MAX_OPEN
                or sum(int(told["size"]) for _, _, told in self._wholes.values()) > _WHOLES
            ):
                self._wholes.popitem(last=False)[1][0]()

    def _taken(self, place: str, start: int, data: bytes, *, is_kept: bool = True) -> Mapping[str, Any]:
        """Keep a part of a file, and what its answer told; the latter, or what was told before, is returned."""
        info = dict(data.info) if isinstance(data, Answer) else self._cached_info(place) or {}
        if isinstance(data, Answer) and info["size"] is not None:
            self._take_info(place, info)
        if is_kept:
            self._hold(place, _signature(place, info)[-1], start, data)
        return info

    def _hold(self, place: str, tag: int, start: int, data: bytes) -> None:
        with self._lock:
            parts = self._parts.setdefault((place, tag), [])
            if any(first <= start and start + len(data) <= first + len(part) for first, part in parts):
                return
            parts.append((start, bytes(data)))
            self._held += len(data)
            self._parts.move_to_end((place, tag))
            while self._held > _HELD:
                self._held -= sum(len(part) for _, part in self._parts.popitem(last=False)[1])

    def held(self, place: str, tag: int, offset: int, stop: int = 0) -> tuple[int, bytes] | None:
        """A part of a file that has the bytes from an offset on, to `stop` or at least one, and where it starts."""
        stop = max(stop, offset + 1)
        with self._lock:
            parts = self._parts.get((place, tag), ())
            return next(((start, part) for start, part in parts if start <= offset and stop <= start + len(part)), None)

    def fetch(self, path: str, start: int, stop: int, size: int) -> bytes:
        """The bytes of a range, whole, of a file of a size."""
        with noting_unread(path):
            data, info = self._ask(posixpath.normpath(path), start, stop, path)
            if info.get("size") not in (None, size):
                raise FormatError.of(path, "io.remote.other_length", now=int(info["size"]), before=size)
            if len(data) < stop - start:
                raise FormatError.of(path, "io.cut_off", offset=start + len(data), end=start + len(data), stop=stop)
            return data

    def gather(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        asked: list[tuple[str, int, int]] = []
        total = 0
        for path, offset, count in ranges:
            wanted = self._lacking(posixpath.normpath(path), offset, offset + count)
            if not wanted and not asked:
                return
            for place, start, stop in wanted:
                last = asked[-1] if asked else ("", 0, 0)
                if (place, start) == (last[0], last[2]) and stop - last[1] <= _AHEAD:
                    asked[-1] = place, last[1], stop
                elif (place, start, stop) not in asked[-_NEAR:]:
                    asked.append((place, start, stop))
                total += stop - start
            if total > _GATHERED:
                break
        cat = self._fs._cat_file
        answers = self._together([partial(cat, self._name(place), start=a, end=b) for place, a, b in asked])
        for (place, start, _), data in zip(asked, answers, strict=True):
            if isinstance(data, BaseException):  # who reads it is told why
                self._refused.add((place, start))
            else:
                self._taken(place, start, data)

    def _lacking(self, place: str, start: int, stop: int) -> list[tuple[str, int, int]]:
        """What a part of a file, and its head, lack of being held."""
        info = self._cached_info(place)
        with self._lock:
            is_whole = place in self._wholes
        if not self.gathers or info is None or is_whole or info.get("type") == "directory":
            return []
        size = info.get("size")
        if size is None:
            parts = [(0, _HEAD)] if self.scheme in HTTP else []
        else:
            ends = [(0, min(_HEAD, size)), (max(start, _HEAD), min(stop, size))]
            tag = _signature(place, info)[-1]
            parts = [(a, b) for a, b in ends if a < b and b - a <= _AHEAD and self.held(place, tag, a, b) is None]
        return [(place, a, b) for a, b in parts if (place, a) not in self._refused]

    def create(self, path: str, *, place: str = "") -> NewFile:
        return _NewRemoteFile(self, path)

    def put(self, path: str, data: bytes) -> None:
        """Writes a whole file at once. OutputError if that fails."""
        name = self._name(path)
        if self.scheme in HTTP:
            raise OutputError.of(path, "io.remote.http_read_only")
        try:
            timed(path, lambda: self._put(name, data))
        except Exception as error:
            reason = error_of(path, error).reason_message
            raise OutputError.of(path, "io.remote.not_writable", reason=reason) from None
        with self._lock:
            self._listings.clear()
            self._infos.clear()

    def _put(self, name: str, data: bytes) -> None:
        # Object stores show a file when its single put is done; elsewhere it gets its name when it is complete.
        is_whole = self.scheme in ("memory", "s3", "s3a", "gs", "gcs", "oss", "az", "abfs")
        target = name if is_whole else f"{name}.{_number(name + str(time.time_ns())):x}.part"
        with suppress(Exception):  # of places that have no folders
            self._fs.makedirs(posixpath.dirname(name), exist_ok=True)
        try:
            self._fs.pipe_file(target, data)
            if target != name:
                self._fs.mv(target, name)
        except BaseException:
            if target != name:
                with suppress(Exception):
                    self._fs.rm_file(target)
            raise


class RemoteFile(StoredFile):
    """A file of a store, of which parts are kept, and ranges read as they are asked for, and ahead of that."""

    def __init__(self, store: RemoteStore, path: str, size: int, tag: int) -> None:
        from fsspec.caching import ReadAheadCache

        self.path, self.size = path, size
        self._place = posixpath.normpath(path)
        self._store, self._tag = store, tag
        self._lock = threading.Lock()
        #: The last byte that is worth reading ahead of, and of the range that is asked for.
        self._until = self._stop = 0
        self._ahead = ReadAheadCache(_AHEAD, self._fetch, size)

    def expect(self, offset: int, count: int) -> None:
        self._until = min(self.size, offset + count)

    def _fetch(self, start: int, stop: int) -> bytes:
        return self._store.fetch(self.path, start, min(stop, max(self._stop, self._until)), self.size)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        stop = offset + len(buffer)
        if stop > self.size:
            raise FormatError.of(self.path, "io.cut_off", offset=self.size, end=self.size, stop=stop)
        with self._lock:
            while len(buffer):
                held = self._store.held(self._place, self._tag, offset)
                if held is None and offset < _HEAD:
                    held = 0, self._store.fetch(self.path, 0, min(self.size, _HEAD), self.size)
                if held is None:
                    self._stop = stop
                    buffer[:] = self._ahead._fetch(offset, stop)
                    return
                start, part = held
                count = min(start + len(part), stop) - offset
                buffer[:count] = part[offset - start : offset - start + count]
                offset, buffer = offset + count, buffer[count:]

    def close(self) -> None:
        self._ahead.cache = b""
        self._ahead.start = self._ahead.end = 0


class _NewRemoteFile(NewFile):
    def __init__(self, store: RemoteStore, path: str) -> None:
        self._store, self._path = store, path
        self._data: bytearray | None = bytearray()

    def write_at(self, offset: int, *parts: bytes | memoryview) -> None:
        assert self._data is not None
        for part in parts:
            view = memoryview(part).cast("B")
            if len(self._data) < offset + len(view):
                self._data.extend(bytes(offset + len(view) - len(self._data)))
            self._data[offset : offset + len(view)] = view
            offset += len(view)

    def commit(self) -> None:
        if self._data is not None:
            self._store.put(self._path, bytes(self._data))

    def discard(self) -> None:
        self._data = None
