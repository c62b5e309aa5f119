"""Frozen dataclasses as JSON documents, and back.

Documents may come from other machines. They are read strictly: a key that is missing or unknown, or a value of another
type than its field's, makes a document worthless.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, overload

from precision_tool.lib.messages import LANGUAGES, Message, render

T = TypeVar("T")
Reader = Callable[[Any], Any]

#: Metadata of a field with a default that documents leave out.
NOT_STORED: Mapping[str, bool] = {"not_stored": True}
#: Metadata of a field that is a sequence of dataclasses of one kind, very many of which may be alike: documents have a
#: column for each of their fields, with its different values and for each row the number of its value.
AS_TABLE: Mapping[str, bool] = {"as_table": True}
#: How documents have the numbers that JSON has not.
_NOT_FINITE = ("nan", "inf", "-inf")


def to_document(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Message):
        return value.to_dict()
    if is_dataclass(value):
        kind: Any = type(value)
        tables = _tables(kind)
        return {name: (_table if name in tables else to_document)(getattr(value, name)) for name in _stored_names(kind)}
    if isinstance(value, Mapping):
        return {str(key): to_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_document(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def from_document(kind: type[T], document: object) -> T:
    """Return the value that a document describes.

    Parameters
    ----------
    kind : type
        A dataclass, or another type that fields of dataclasses have: of numbers, text, enumerations, messages,
        sequences, mappings of text, unions of these. Of `Any` is what JSON has, or a message.
    document : object
        What `to_document` returned, through JSON.

    Raises
    ------
    ValueError
        The document is none of this kind; says where.
    """
    return cast(T, _reader(cast(Any, kind))(document))


@cache
def _stored_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if not field.metadata.get("not_stored"))


@cache
def _tables(kind: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind) if field.metadata.get("as_table"))


class TableRows(Sequence[T]):
    """The rows of a table in a document, each made when it is asked for. Their values were all read."""

    def __init__(self, kind: type[T], columns: Mapping[str, tuple[Sequence[Any], Sequence[int]]], count: int) -> None:
        self._kind = kind
        self._columns = columns
        self._count = count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[number] for number in range(self._count)[index]]
        number = range(self._count)[index]
        return self._kind(**{name: values[at[number]] for name, (values, at) in self._columns.items()})

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def column(self, name: str) -> list[Any]:
        """Return a field of all rows."""
        values, at = self._columns[name]
        return [values[number] for number in at]


def column_of(rows: Sequence[Any], name: str) -> list[Any]:
    """Return a field of all rows, without making those of a document."""
    return rows.column(name) if isinstance(rows, TableRows) else [getattr(row, name) for row in rows]


def _table(rows: Sequence[Any]) -> dict[str, dict[str, list[Any]]]:
    names = _stored_names(cast(Any, type(rows[0]))) if rows else ()
    return {name: _column(column_of(rows, name)) for name in names}


def _column(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the different values as documents, in the order in which they come, and the number of each row's."""
    if len(set(map(id, values))) == 1:
        return {"values": [to_document(values[0])], "rows": [0] * len(values) if len(values) > 1 else []}
    keys = values
    is_plain = set(map(type, values)) in ({str}, {int})
    if not is_plain:  # one object many times over is common
        of_objects = {at: _key(value) for at, value in dict(zip(map(id, values), values, strict=True)).items()}
        keys = [of_objects[at] for at in map(id, values)]
    first: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        first.setdefault(key, value)
    numbers = {key: number for number, key in enumerate(first)}
    rows = [numbers[key] for key in keys] if len(numbers) < len(values) else []
    return {"values": list(first if is_plain else map(to_document, first.values())), "rows": rows}


def _key(value: Any) -> object:
    """Return what values with one document have in common, and no others."""
    if type(value) in (str, NoneType):
        return value
    if isinstance(value, tuple) and set(map(type, value)) <= {str}:
        return value
    return type(value), repr(value) if isinstance(value, (int, float)) else json.dumps(to_document(value))


@cache
def _reader(kind: Any) -> Reader:
    """Return the function that reads a document of a type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union_reader([_reader(arg) for arg in args])
    if origin is tuple and args[-1] is not Ellipsis:
        return _row_reader([_reader(arg) for arg in args])
    if origin in (tuple, Sequence):
        item = _reader(args[0])
        return lambda document: tuple(map(item, _checked(document, list)))
    if origin is Mapping:
        value = _reader(args[1])
        return lambda document: {key: value(item) for key, item in _checked(document, dict).items()}
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    return cast(Reader, kind) if issubclass(kind, Enum) else _READERS[kind]


def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    tables = _tables(kind)
    readers = {
        name: _table_reader(get_args(hints[name])[0]) if name in tables else _reader(hints[name])
        for name in _stored_names(kind)
    }

    def read(document: Any) -> Any:
        return kind(**_each(kind, readers, document))

    return read


def _each(kind: Any, readers: Mapping[str, Reader], document: Any) -> dict[str, Any]:
    """Return what a document has under the name of each reader."""
    if _checked(document, dict).keys() != readers.keys():
        odd = ", ".join(sorted(map(str, document.keys() ^ readers.keys())))
        raise ValueError(f"{kind.__name__}: missing or unknown: {odd}")
    values = {}
    for name, reader in readers.items():
        try:
            values[name] = reader(document[name])
        except ValueError as error:
            raise ValueError(f"{kind.__name__}.{name}: {error}") from error
    return values


def _table_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {name: _column_reader(_reader(hints[name])) for name in _stored_names(kind)}

    def read(document: Any) -> Any:
        if not _checked(document, dict):
            return ()
        columns = _each(kind, readers, document)
        counts = {len(rows) for _, rows in columns.values()}
        if len(counts) != 1:
            raise ValueError(f"{kind.__name__}: columns of different lengths")
        return TableRows(kind, columns, *counts)

    return read


def _column_reader(reader: Reader) -> Reader:
    def read(document: Any) -> tuple[Sequence[Any], Sequence[int]]:
        if _checked(document, dict).keys() != {"values", "rows"}:
            raise ValueError("no column")
        values = list(map(reader, _checked(document["values"], list)))
        rows = _checked(document["rows"], list)
        if not rows:
            return values, range(len(values))
        if set(map(type, rows)) != {int} or min(rows) < 0 or max(rows) >= len(values):
            raise ValueError("a row without a value")
        return values, array("I", rows)  # in half the memory of a list

    return read


def _union_reader(readers: Sequence[Reader]) -> Reader:
    def read(document: Any) -> Any:
        errors = []
        for reader in readers:
            try:
                return reader(document)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError("; ".join(errors))

    return read


def _row_reader(readers: Sequence[Reader]) -> Reader:
    return lambda document: tuple(reader(item) for reader, item in zip(readers, _checked(document, list), strict=True))


def _checked(document: Any, *kinds: type[Any]) -> Any:
    if type(document) not in kinds:
        raise ValueError(f"{type(document).__name__} in place of {kinds[0].__name__}")
    return document


def _number(document: Any) -> float:
    try:
        return float(document if document in _NOT_FINITE else _checked(document, float, int))
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _message(document: Any) -> Message:
    try:
        message = Message.from_dict(_checked(document, dict))
        for language in LANGUAGES:  # what cannot be shown is found out now, not on the screen
            render(message, language)
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no message: {error}") from error
    return message


def _anything(document: Any) -> Any:
    return _message(document) if isinstance(document, dict) else document


_READERS: Mapping[Any, Reader] = {
    NoneType: lambda document: _checked(document, NoneType),
    bool: lambda document: _checked(document, bool),
    int: lambda document: _checked(document, int),
    str: lambda document: _checked(document, str),
    float: _number,
    Message: _message,
    Any: _anything,
}
