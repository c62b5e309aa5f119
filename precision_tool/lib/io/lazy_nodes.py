"""Nodes of a tree that are made whenever somebody asks for them: the ops of a graph, which together are large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload


class LazyNodes(Sequence[Any]):
    """Parts of a text or of a message that are parsed whenever somebody asks for them, and not kept.

    Parameters
    ----------
    starts, ends : sequence of int
        Where the parts begin and end.
    read : callable
        What makes a part of its start and end.
    """

    __slots__ = ("_ends", "_read", "_starts")

    def __init__(self, starts: Sequence[int], ends: Sequence[int], read: Callable[[int, int], Any]) -> None:
        self._starts, self._ends, self._read = starts, ends, read

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, number: int) -> Any: ...

    @overload
    def __getitem__(self, number: slice) -> LazyNodes: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return LazyNodes(self._starts[number], self._ends[number], self._read)
        return self._read(self._starts[number], self._ends[number])
