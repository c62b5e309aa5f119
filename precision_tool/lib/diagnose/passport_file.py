"""`passport.json`: what a run was, as the training helper wrote it (FORMATS.md). Read as if somebody had made it up."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn, TypeVar

from precision_tool.lib.data.workspace import PASSPORT
from precision_tool.lib.io.files import is_file, open_binary, read_text
from precision_tool.lib.messages.errors import FormatError, PrecisionToolError, shown
from precision_tool.lib.training.passport import MOST_CHARACTERS

FORMAT, VERSION = "precision_tool passport", 1

Plain = str | int | float | bool | None
T = TypeVar("T")

_MAX_BYTES = 64 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
#: Folders above a leaf folder of dump files up to that of its run, at most.
_MAX_PARENTS = 8
#: The format stands in the first bytes of a passport.
_HEAD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHash:
    """Type, shape and hash of a variable or of an input batch."""

    type: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """A kind of optimizer op with its hyperparameters; `variables` are updated by it."""

    type: str
    hyperparameters: Mapping[str, Plain]
    variables: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passport:
    """One run. Tensors by name; `left_out` says of others why they have no hash."""

    path: str
    side: str
    written: str
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    switches: Mapping[str, str]
    seeds: Mapping[str, Plain]
    optimizers: tuple[Optimizer, ...]
    variables: Mapping[str, TensorHash]
    batch: Mapping[str, TensorHash]
    left_out: Mapping[str, str]


def read_passport(path: str) -> Passport:
    """Return the passport in a file. FormatError says where it is damaged; DataNotFoundError if it is not there."""
    return parse_passport(read_text(path, _MAX_BYTES), path)


def passport_above(folder: str) -> str | None:
    """Return the passport of the run of a folder of dump files or tensors: in it, or some folders above."""
    here = posixpath.abspath(folder)
    for _ in range(_MAX_PARENTS):
        path = posixpath.join(here, PASSPORT)
        if is_file(path) and _is_passport(path):
            return path
        here = posixpath.dirname(here)
    return None


def parse_passport(text: str, path: str = PASSPORT) -> Passport:
    """Return the passport in a text. FormatError as above."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormatError.of(path, "diagnose.passport.damaged", reason=str(error)[:200]) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError.of(path, "diagnose.passport.not_passport")
    version = document.get("version")
    if version != VERSION:
        raise FormatError.of(path, "diagnose.passport.version", version=shown(str(version)), expected=VERSION)
    reader = _Reader(path)
    return Passport(
        path=path,
        side=reader.text(document.get("side"), "side"),
        written=reader.text(document.get("written", ""), "written"),
        versions=reader.mapping(document, "versions", reader.text),
        environment=reader.mapping(document, "environment", reader.text),
        switches=reader.mapping(document, "switches", reader.text),
        seeds=reader.mapping(document, "seeds", reader.plain),
        optimizers=tuple(map(reader.optimizer, reader.rows(document, "optimizers"))),
        variables=reader.tensors(document, "variables"),
        batch=reader.tensors(document, "batch"),
        left_out=reader.mapping(document, "left_out", reader.text),
    )


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _is_passport(path: str) -> bool:
    try:
        with open_binary(path) as file:
            return f'"{FORMAT}"'.encode() in file.read(_HEAD)
    except (PrecisionToolError, OSError):
        return False


class _Reader:
    """Checks of what stands in a passport; FormatError names the place."""

    def __init__(self, path: str) -> None:
        self._path = path

    def fail(self, where: str, problem: str, **fields: Any) -> NoReturn:
        """Raise the FormatError `diagnose.passport.<problem>` of the field `where`."""
        raise FormatError.of(self._path, f"diagnose.passport.{problem}", field=shown(where), **fields)

    def text(self, value: object, where: str) -> str:
        """Return a text of bounded length."""
        if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
            self.fail(where, "not_text", limit=MOST_CHARACTERS)
        return value

    def plain(self, value: object, where: str) -> Plain:
        """Return a text, a finite number, a truth value or nothing."""
        if isinstance(value, float) and not isfinite(value):
            self.fail(where, "not_finite")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
            self.fail(where, "too_large")
        return value if value is None or isinstance(value, (bool, int, float)) else self.text(value, where)

    def mapping(self, document: Mapping[str, Any], key: str, check: Callable[[object, str], T]) -> dict[str, T]:
        """Return an object of checked values; nothing for one that is not there."""
        members = document.get(key, {})
        if not isinstance(members, dict):
            self.fail(key, "not_object")
        return {self.text(name, key): check(value, f"{key}.{name}") for name, value in members.items()}

    def rows(self, document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        """Return a list of objects."""
        rows = document.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
            self.fail(key, "not_objects")
        return rows

    def count(self, value: object, where: str) -> int:
        """Return a whole number, 0 or more."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            self.fail(where, "not_count")
        return value

    def optimizer(self, row: Mapping[str, Any]) -> Optimizer:
        """Return one optimizer."""
        return Optimizer(
            type=self.text(row.get("type"), "optimizers.type"),
            hyperparameters=self.mapping(row, "hyperparameters", self.plain),
            variables=self.count(row.get("variables", 0), "optimizers.variables"),
        )

    def tensors(self, document: Mapping[str, Any], key: str) -> dict[str, TensorHash]:
        """Return the hashes of a part, by name."""
        tensors: dict[str, TensorHash] = {}
        for row in self.rows(document, key):
            name = self.text(row.get("name"), f"{key}.name")
            shape, digest = row.get("shape"), row.get("sha256")
            if name in tensors:
                self.fail(f"{key}.{name}", "twice")
            if not isinstance(shape, list) or len(shape) > 64:
                self.fail(f"{key}.{name}", "no_shape")
            if not isinstance(digest, str) or not _SHA256.match(digest):
                self.fail(f"{key}.{name}", "no_hash")
            sizes = tuple(self.count(size, f"{key}.{name}") for size in shape)
            tensors[name] = TensorHash(type=self.text(row.get("type"), f"{key}.{name}"), shape=sizes, sha256=digest)
        return tensors
