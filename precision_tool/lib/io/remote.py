"""Files that are on no disk of this machine, by fsspec: object stores, HDFS, HTTP, SSH, memory.

One listing of a folder answers for all that lies in it. A file is read in ranges: the first bytes, which hold its
head, are cached; of a tensor that is read in order ever longer ranges are read ahead, but none beyond it. Credentials
are found by fsspec's own ways, or were part of the URL.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from html.parser import HTMLParser
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from precision_tool.lib.io import urls
from precision_tool.lib.io.stores import ContentSignature, Entry, Kind, NewFile, Stat, Store, StoredFile
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
#: Bytes at the start of a file that are read at once, and of all starts that are kept.
_HEAD, _HEADS = 1 << 16, 32 << 20
#: Bytes that are read ahead at most.
_AHEAD = 8 << 20
#: Bytes of a page that lists a folder.
_MAX_PAGE = 64 << 20
#: Where stores tell when a file was written, and what else changes when it is.
_TIMES = (
    "mtime", "LastModified", "last_modified", "updated", "last_write_time", "modificationTime", "modify", "created",
)  # fmt: skip
_TAGS = (
    "ETag", "etag", "Last-Modified", "Content-MD5", "Digest", "md5", "md5Hash", "checksum", "generation", "created",
)  # fmt: skip


class NoAnswerError(FormatError):
    """A server that did not answer in time."""


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
            user, _, password = urls.secret_of(path).user.partition(":")
            if user:
                plain = f"{unquote(user)}:{unquote(password)}".encode()
                options["client_kwargs"]["headers"] = {"Authorization": f"Basic {base64.b64encode(plain).decode()}"}
        else:
            options |= kind._get_kwargs_from_urls(_full_url(path))
        if scheme in _HAND_ON:
            kind, checked = _of_known_hosts(kind)
            options |= checked
        return timed(path, lambda: kind(**options))
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
    return FormatError.of(path, "io.remote.unreadable", reason=_reason(error))


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


class _Links(HTMLParser):
    """The names that a page of a server lists."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, Kind] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if tag == "a" and key == "href" and value and re.match(r"(?:\./)?[^/?#:]+/?\Z", value):
                name = unquote(value.removeprefix("./"))
                if name.rstrip("/") not in ("", ".", "..") and "/" not in name.rstrip("/"):
                    self.names[name.rstrip("/")] = Kind.FOLDER if name.endswith("/") else Kind.FILE


class RemoteStore(Store):
    """The files of one server, bucket or memory, by the paths that `urls` makes of URLs."""

    def __init__(self, path: str, filesystem: Any = None) -> None:
        self.scheme = path[1:].partition(":")[0]
        self._fs = filesystem if filesystem is not None else filesystem_of(path)
        self.lists_sizes = self.scheme not in HTTP
        self._lock = threading.Lock()
        #: Folders that were listed: when, and what of each name is known.
        self._listings: OrderedDict[str, tuple[float, dict[str, dict[str, Any]]]] = OrderedDict()
        #: What was asked of single paths, and when; {} of what is not there.
        self._infos: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()
        self._heads: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()

    # --- how fsspec calls what lies at a path ---

    def _name(self, path: str) -> str:
        url = urls.url_of(path) or path
        if self.scheme in HTTP:
            scheme, _, rest = url.partition("://")
            host, _, below = rest.partition("/")
            query = urls.secret_of(path).query
            return f"{scheme}://{host}/{quote(below)}" + (f"?{query}" if query else "")
        return str(self._fs._strip_protocol(url))

    def _call(self, path: str, call: Callable[[], T]) -> T:
        try:
            return call() if self.scheme == "memory" else timed(path, call)
        except Exception as error:
            raise error_of(path, error) from None

    # --- what is there ---

    def _listing(self, folder: str) -> dict[str, dict[str, Any]]:
        """What lies in a folder, by name. DataNotFoundError for what is no folder."""
        folder = posixpath.normpath(folder)
        with self._lock:
            cached = self._listings.get(folder)
            if cached is not None and time.monotonic() - cached[0] < _FRESH:
                return cached[1]
        listing = self._page(folder) if self.scheme in HTTP else self._ls(folder)
        with self._lock:
            self._listings[folder] = time.monotonic(), listing
            self._listings.move_to_end(folder)
            held = sum(len(names) for _, names in self._listings.values())
            while self._listings and held > _MAX_ENTRIES:
                held -= len(self._listings.popitem(last=False)[1][1])
        return listing

    def _ls(self, folder: str) -> dict[str, dict[str, Any]]:
        name = self._name(folder)
        try:
            infos = self._call(folder, lambda: self._fs.ls(name, detail=True))
        except DataNotFoundError:
            raise DataNotFoundError.of(folder, "io.no_folder", content="files") from None
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
            return dict(self._call(path, lambda: self._fs.info(info["name"])))
        except NoAnswerError:
            raise
        except (DataNotFoundError, FormatError):  # what opens it says so
            return {"name": info["name"], "type": None}

    def _page(self, folder: str) -> dict[str, dict[str, Any]]:
        name, mark, query = self._name(folder).partition("?")
        address = name.rstrip("/") + "/" + mark + query
        try:
            page = self._call(folder, lambda: self._fs.cat_file(address, start=None, end=None))
        except NoAnswerError:
            raise
        except (DataNotFoundError, FormatError) as error:
            raise DataNotFoundError.of(folder, "io.remote.unlisted", reason=error.reason_message) from None
        links = _Links()
        links.feed(bytes(page[:_MAX_PAGE]).decode("utf-8", "replace"))
        if not links.names and not re.match(rb"\s*<(?:!doctype|html|head|body|ul|pre|table)", page, re.IGNORECASE):
            raise DataNotFoundError.of(folder, "io.file_not_folder", content="files")
        kinds = {Kind.FOLDER: "directory", Kind.FILE: "file"}
        return {base: {"name": base, "type": kinds[kind]} for base, kind in links.names.items()}

    def stat(self, path: str) -> Stat | None:
        path = posixpath.normpath(path)
        info = self._cached_info(path)
        if info is None:
            return None
        if info.get("size") is None and info.get("type") != "directory":
            try:
                info = self._info(path)
            except DataNotFoundError:
                info = {}
            with self._lock:
                self._infos[path] = time.monotonic(), info
                while len(self._infos) > _MAX_INFOS:
                    self._infos.popitem(last=False)
        return self._stat(path, info) if info else None

    def _cached_info(self, path: str) -> dict[str, Any] | None:
        """What the listing of the folder above says; {} where there is none, None if nothing lies at the path."""
        above, base = posixpath.split(path)
        now = time.monotonic()
        with self._lock:
            listing = self._listings.get(above)
            if listing is not None and now - listing[0] < _FRESH:
                return listing[1].get(base)
            if path in self._listings and now - self._listings[path][0] < _FRESH:
                return {"type": "directory"}
            cached = self._infos.get(path)
            return (cached[1] or None) if cached is not None and now - cached[0] < _FRESH else {}

    def _info(self, path: str) -> dict[str, Any]:
        name = self._name(path)
        info = dict(self._call(path, lambda: self._fs.info(name)))
        if self.scheme in HTTP and str(info.get("url", "")).partition("?")[0].endswith("/"):
            info["type"] = "directory"  # where it sent us
        with self._lock:
            listing = self._listings.get(posixpath.dirname(path))
            if listing is not None and posixpath.basename(path) in listing[1]:
                listing[1][posixpath.basename(path)] = info
        return info

    def _stat(self, path: str, info: Mapping[str, Any]) -> Stat:
        kind = Kind.FOLDER if info.get("type") == "directory" else Kind.FILE
        if kind is Kind.FOLDER:
            info = {"size": 0}
        return Stat(kind=kind, size=int(info.get("size") or 0), signature=_signature(path, info))

    def content_signature(self, stat: Stat) -> ContentSignature:
        return *stat.signature[:2], stat.signature[-1]

    def entries(self, folder: str) -> Sequence[Entry]:
        listing = self._listing(folder)
        return [
            Entry(name=base, kind=Kind.FOLDER if listing[base].get("type") == "directory" else Kind.FILE)
            for base in sorted(listing)
        ]

    # --- what is in it ---

    def open(self, path: str) -> StoredFile:
        info = self._cached_info(posixpath.normpath(path)) or {}
        if info.get("size") is None and info.get("type") != "directory":
            info = self._info(path)
        if info.get("type") == "directory":
            raise FormatError.of(path, "io.folder_not_file")
        if info.get("size") is None:
            raise FormatError.of(path, "io.remote.unknown_length")
        return RemoteFile(self, path, int(info["size"]), _signature(path, info)[-1])

    def fetch(self, path: str, start: int, stop: int) -> bytes:
        """The bytes of a range, whole."""
        name = self._name(path)
        data = bytes(self._call(path, lambda: self._fs.cat_file(name, start=start, end=stop)))
        if len(data) > stop - start and self.scheme in HTTP:  # a server without ranges sends all, each time
            raise FormatError.of(path, "io.remote.no_ranges")
        if len(data) < stop - start:
            raise FormatError.of(path, "io.cut_off", offset=start + len(data), end=start + len(data), stop=stop)
        return data

    def head(self, path: str, size: int, tag: int) -> bytes:
        """The first bytes of a file, read once."""
        key = path, size, tag
        with self._lock:
            cached = self._heads.get(key)
            if cached is not None:
                self._heads.move_to_end(key)
                return cached
        data = self.fetch(path, 0, min(size, _HEAD)) if size else b""
        with self._lock:
            self._heads[key] = data
            held = sum(map(len, self._heads.values())) if len(self._heads) % 64 == 0 else 0
            while held > _HEADS:
                held -= len(self._heads.popitem(last=False)[1])
        return data

    def create(self, path: str, *, place: str = "") -> NewFile:
        return _NewRemoteFile(self, path)

    def put(self, path: str, data: bytes) -> None:
        """Writes a whole file at once. OutputError if that fails."""
        name = self._name(path)
        if self.scheme in HTTP:
            raise OutputError.of(path, "io.remote.http_read_only")
        try:
            self._call(path, lambda: self._put(name, data))
        except PrecisionToolError as error:
            raise OutputError.of(path, "io.remote.not_writable", reason=error.reason_message) from None
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
    """A file of a store, whose ranges are read as they are asked for, and ahead of that while they are in order."""

    def __init__(self, store: RemoteStore, path: str, size: int, tag: int) -> None:
        self.path, self.size = path, size
        self._store, self._tag = store, tag
        self._lock = threading.Lock()
        self._start, self._window = 0, b""
        self._ahead = 0
        #: The last byte that is worth reading ahead of.
        self._until = 0

    def expect(self, offset: int, count: int) -> None:
        self._until = min(self.size, offset + count)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        stop = offset + len(buffer)
        if stop > self.size:
            raise FormatError.of(self.path, "io.cut_off", offset=self.size, end=self.size, stop=stop)
        if not len(buffer):
            return
        with self._lock:
            if offset < _HEAD:
                head = self._store.head(self.path, self.size, self._tag)
                count = min(len(head), stop) - offset
                buffer[:count] = head[offset : offset + count]
                offset, buffer = offset + count, buffer[count:]
                if not len(buffer):
                    return
            self._read_behind(offset, stop, buffer)

    def _read_behind(self, offset: int, stop: int, buffer: memoryview) -> None:
        end = self._start + len(self._window)
        if self._start <= offset < end:
            count = min(end, stop) - offset
            buffer[:count] = self._window[offset - self._start : offset - self._start + count]
            offset, buffer = offset + count, buffer[count:]
            if not len(buffer):
                return
        is_next = offset == end
        self._ahead = min(_AHEAD, max(2 * self._ahead, stop - offset)) if is_next else 0
        last = max(stop, min(self._until, offset + self._ahead))
        data = self._store.fetch(self.path, offset, last)
        buffer[:] = data[: len(buffer)]
        self._start, self._window = offset, data

    def close(self) -> None:
        self._window = b""


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
