"""What the toolkit made before, kept by the contents of what it was made of, whatever the files are called."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from precision_tool.lib.errors import PrecisionToolError
from precision_tool.lib.io.files import atomic_text, entries, folder_exists, open_file, read_text, signature_of
from precision_tool.lib.io.stores import Kind

_BLOCK = 1 << 20
#: Bytes of the texts that are kept as one, at most.
_MAX_TEXT = 256 << 20


def content_key(words: Sequence[str], paths: Iterable[str]) -> str:
    """A name for the result of `words`, which say who makes it and how, from these files and folders of files.

    The names inside a folder count, its own and those of files given by themselves do not. A user's error, or OSError,
    for what cannot be read.
    """
    key = hashlib.sha256("\0".join([*words, ""]).encode("utf-8", "surrogateescape"))
    for path in paths:
        if not folder_exists(path):
            key.update(_digest(path))
            continue
        for name in _files_in(path):
            key.update(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
            key.update(_digest(posixpath.join(path, name)))
        key.update(b"end of a folder")
    return key.hexdigest()[:32]


def signatures(paths: Iterable[str]) -> list[object]:
    """What changes when one of these files, or a file in one of these folders, does."""
    found: list[object] = []
    for path in paths:
        found.append(signature_of(path))
        if folder_exists(path):
            with suppress(PrecisionToolError):
                found += [(name, signature_of(posixpath.join(path, name))) for name in _files_in(path)]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Text files, by name, that a program wrote, and what there was to say of the run."""

    texts: dict[str, str]
    notes: tuple[str, ...] = ()


def keep(path: str, files: Iterable[str], notes: Sequence[str]) -> None:
    """Keeps text files as one. Where there is no room for it, or they are no UTF-8, they are not kept."""
    texts = {}
    with suppress(PrecisionToolError):
        for one in files:
            texts[posixpath.basename(one)] = read_text(one, _MAX_TEXT, newline="")
        with atomic_text(path) as file:
            json.dump({"texts": texts, "notes": list(notes)}, file)


def read_kept(path: str) -> Kept:
    """What was kept; of a file that is missing or damaged nothing."""
    try:
        document = json.loads(read_text(path, _MAX_TEXT))
        texts, notes = dict(document["texts"]), tuple(map(str, document["notes"]))
        if all(isinstance(text, str) and posixpath.basename(name) == name for name, text in texts.items()):
            return Kept(texts=texts, notes=notes)
    except (PrecisionToolError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return Kept(texts={})


def _files_in(folder: str) -> list[str]:
    return [entry.name for entry in entries(folder) if entry.kind is Kind.FILE]


def _digest(path: str) -> bytes:
    key = hashlib.sha256()
    with open_file(path) as file:
        for offset in range(0, file.size, _BLOCK):
            key.update(file.read_at(offset, min(_BLOCK, file.size - offset)))
    return key.digest()
