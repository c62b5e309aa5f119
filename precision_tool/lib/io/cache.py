"""Cache files: what was worked out from a large file, kept until that file changes.

A cache file is told by the path and the signature of its source and guarded by a checksum. It is never trusted: what
is odd about it makes it worthless and no more. Whoever reads its contents checks them as if somebody had made them up.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from precision_tool.lib.io.files import may_change_unseen, signature_of, store_of
from precision_tool.lib.io.local import LocalFile
from precision_tool.lib.io.stores import Signature
from precision_tool.lib.io.writing import replacing
from precision_tool.lib.messages.errors import PrecisionToolError
from precision_tool.lib.version import __version__

_log = logging.getLogger(__name__)

#: Smaller files are read faster than they are worth a cache file.
LARGE = 1 << 20
_MAGIC = b"PTcache\n"
#: Magic, version, signature of the source, length of what follows, checksum of all but itself.
HEADER = struct.Struct("<8sI5qQ32s")
SUFFIX = ".ptcache"
#: Of files that a server has to be asked of one by one so many are, of a folder, spread evenly.
_MAX_REQUESTS = 256
#: All cache files together; the oldest go first.
MAX_FILES, MAX_BYTES = 64, 512 << 20


class OddCacheError(Exception):
    """A cache file that is not what we write."""


@dataclass(frozen=True)
class CacheFiles:
    """The cache files in some folders, best first. Where none can be written there is no cache, without a word."""

    folders: Callable[[], Sequence[Path]] = list

    def read(self, path: str, signature: Signature, version: int) -> bytes | None:
        """What `write` was given for the file with this signature; None if there is nothing, or nothing sound."""
        if signature[0] < LARGE:
            return None
        for folder in self.folders():
            cached = folder / _name_for(path)
            try:
                return _read(str(cached), signature, version)
            except PrecisionToolError:
                continue  # there is none
            except OddCacheError as error:
                _log.info("%s: %s; its source is read instead", cached, error)
        return None

    def write(self, path: str, signature: Signature, version: int, payload: bytes) -> None:
        """Keeps what was worked out from a file, if the file is large and no longer changing."""
        if signature[0] < LARGE or len(payload) > signature[0] or signature != signature_of(path):
            return
        if may_change_unseen(*signature[1:3]):
            return
        data = framed(payload, signature, version)
        for folder in self.folders():
            if _write(folder, _name_for(path), data):
                _tidy(folder)
                return


def _name_for(path: str) -> str:
    digest = hashlib.blake2b(os.fsencode(os.path.abspath(path)), digest_size=16)
    return digest.hexdigest() + SUFFIX


def _checksum(start: bytes, payload: bytes) -> bytes:
    digest = hashlib.blake2b(start, digest_size=32)
    digest.update(f"{__version__} {sys.byteorder}".encode())
    digest.update(payload)
    return digest.digest()


def framed(payload: bytes, signature: Signature, version: int) -> bytes:
    """The bytes of a cache file."""
    start = HEADER.pack(_MAGIC, version, *signature, len(payload), b"")
    checksum = _checksum(start, payload)
    return HEADER.pack(_MAGIC, version, *signature, len(payload), checksum) + payload


def _read(path: str, signature: Signature, version: int) -> bytes:
    """The payload of a cache file, which is never larger than its source."""
    with LocalFile(path) as file:
        if not HEADER.size <= file.size <= HEADER.size + signature[0]:
            raise OddCacheError(f"{file.size} bytes")
        magic, of_version, *of_source, length, checksum = HEADER.unpack(file.read_at(0, HEADER.size))
        if (magic, of_version, tuple(of_source), length) != (_MAGIC, version, signature, file.size - HEADER.size):
            raise OddCacheError("of another version, or of another state of its source")
        payload = file.read_at(HEADER.size, length)
    if _checksum(HEADER.pack(magic, version, *of_source, length, b""), payload) != checksum:
        raise OddCacheError("damaged")
    return payload


def _write(folder: Path, name: str, data: bytes) -> bool:
    """Writes a file that appears when it is complete; False if that does not work."""
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(str(folder / name)) as temporary:
            Path(temporary).write_bytes(data)
    except OSError as error:
        _log.info("%s: no cache: %s", folder, error)
        if made:
            with suppress(OSError):
                folder.rmdir()
        return False
    return True


def _tidy(folder: Path) -> None:
    """Removes the oldest cache files beyond the limits."""
    cached_files: list[tuple[float, int, str]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                if entry.name.endswith(SUFFIX):
                    cached_files.append((stat.st_mtime, stat.st_size, entry.path))
    cached_files.sort(reverse=True)
    sizes = accumulate(size for _, size, _ in cached_files)
    for number, (total, (_, _, path)) in enumerate(zip(sizes, cached_files, strict=True)):
        if number >= MAX_FILES or (number and total > MAX_BYTES):
            with suppress(OSError):
                os.unlink(path)


def folder_fingerprint(folder: str, file_names: Sequence[str]) -> tuple[int, str]:
    """Return how many bytes the files have, and what changes when they do: names of all, and their contents as far
    as the store tells (sizes, times, tags).

    Where each would be a request of its own (HTTP), only some are asked for: what is put in the place of a file under
    the same name may then go unnoticed, and the bytes are an estimate.
    """
    digest = hashlib.sha256("\0".join(file_names).encode("utf-8", "surrogateescape"))
    store = store_of(folder)
    chosen = file_names if store.lists_sizes else file_names[:: -(-len(file_names) // _MAX_REQUESTS) or 1]
    signatures = list(store.content_signatures(folder, chosen))
    digest.update(repr(signatures).encode())
    return sum(signature[0] for signature in signatures) * len(file_names) // max(len(chosen), 1), digest.hexdigest()
