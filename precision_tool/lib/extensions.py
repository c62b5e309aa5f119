"""Registries: what is built in, and what third parties add by entry points of their packages.

A registry asks for a third party's entries only when it lacks a name, or when all of it is listed. An entry that cannot
be used is a note with its reason, and what is built in keeps its name.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from precision_tool.lib.messages.errors import shown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_PREFIX = "precision_tool."
_notes: list[str] = []
_log = logging.getLogger(__name__)


def take_notes() -> list[str]:
    """Return what the user should know of entries that cannot be used, each once."""
    notes, _notes[:] = _notes[:], []
    return notes


@cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group. Loading what reads metadata takes longer than seeing that nobody has any."""
    mark = f"[{group}]".encode()
    files = (path for folder in sys.path for path in Path(folder).glob("*-info/entry_points.txt"))
    if not any(mark in path.read_bytes() for path in files):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


class Registry(Generic[T]):
    """Things of one kind by name, in the order in which they are asked; third parties' come last.

    Parameters
    ----------
    group : str
        The group of entry points, below ``precision_tool.``.
    built_in : mapping
        What the package brings; whoever fills it does so before the registry is asked.
    accept : callable
        Takes the name of an entry point and what it loaded, and returns the entry, or raises an error that says what
        is wrong with it.
    """

    def __init__(self, group: str, built_in: Mapping[str, T], accept: Callable[[str, Any], T]) -> None:
        self.group = _PREFIX + group
        self.built_in = built_in
        self._accept = accept
        self._loaded: dict[str, T | None] = {}

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        for point in _installed(self.group):
            if point.name in self.built_in or point.name in points:
                whose = "built in" if point.name in self.built_in else f"that of {points[point.name].value}"
                _add_note(point, f"the one of this name is {whose}")
            else:
                points[point.name] = point
        return points

    def get(self, name: str) -> T | None:
        """Return the entry of this name; None if there is none that can be used."""
        return self.built_in[name] if name in self.built_in else self._load(name)

    def is_third_party(self, name: str) -> bool:
        """Return whether a third party adds the entry of this name, usable or not."""
        return name in self._entry_points

    def third_party(self) -> dict[str, T]:
        """Return what third parties have added, by name."""
        entries = {name: self._load(name) for name in self._entry_points}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def all(self) -> dict[str, T]:
        """Return every entry by name."""
        return {**self.built_in, **self.third_party()}

    @cached_property
    def spelled(self) -> dict[str, str]:
        """The names of all entries by their spelling in small letters; of two alike the first."""
        return {name.lower(): name for name in reversed(self.all())}

    def _load(self, name: str) -> T | None:
        point = self._entry_points.get(name)
        if point is not None and name not in self._loaded:
            self._loaded[name] = None  # also of one that asks for itself while it is loaded
            try:
                self._loaded[name] = self._accept(name, point.load())
            except Exception as error:  # a third party's code: whatever it does, the work goes on
                _add_note(point, f"{type(error).__name__}: {error}")
        return self._loaded.get(name)


def _add_note(point: EntryPoint, reason: str) -> None:
    note = f"{point.group}: {shown_name(point.name)} ({shown_name(point.value)}) is left out: {reason}"
    _log.warning(note)
    _notes.append(note)
