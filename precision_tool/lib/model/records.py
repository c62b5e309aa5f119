"""Records: frozen dataclasses of which a large network has hundreds of thousands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["changed", "record"]

R = TypeVar("R")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool, **options: bool) -> Callable[[type[R]], type[R]]:
        """Make a class a dataclass that only mypy keeps frozen, so that records are made in less than half the time."""
        return dataclass(unsafe_hash=frozen, **options)


def changed(original: R, **values: Any) -> R:
    """A copy of a record as `dataclasses.replace` gives it, in less than half its time.

    It has several fields, all of them arguments of its constructor.
    """
    kind: Any = type(original)
    names, get = _fields_of(kind)
    made: R = kind(**(dict(zip(names, get(original), strict=True)) | values))
    return made


@cache
def _fields_of(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of the fields of a class, and what gives all their values at once."""
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names)
