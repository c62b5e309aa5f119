"""Nodes of a tree that are made whenever somebody asks for them: the ops of a graph, which together are large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

Place = TypeVar("Place")


class LazyNodes(Sequence[Any], Generic[Place]):
    """Nodes of which only the places are kept.

    Parameters
    ----------
    places : sequence
        Where each of them is.
    read : callable
        What makes a node of its place.
    """

    __slots__ = ("_places", "_read")

    def __init__(self, places: Sequence[Place], read: Callable[[Place], Any]) -> None:
        self._places, self._read = places, read

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        return map(self._read, self._places)

    @overload
    def __getitem__(self, number: int) -> Any: ...

    @overload
    def __getitem__(self, number: slice) -> LazyNodes[Place]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return LazyNodes(self._places[number], self._read)
        return self._read(self._places[number])
