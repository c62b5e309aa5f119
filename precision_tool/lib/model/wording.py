"""Words that every part of the tool needs for its messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from math import isfinite

#: Stands where the name of a fusion pass does, of fused ops of which the graph names none.
NO_PASS = "(no pass named)"


def shape_text(shape: Sequence[int]) -> str:
    """A shape as result files have it: [8,12]; [] for a scalar."""
    return f"[{','.join(map(str, shape))}]"


class Streamed(list[object]):
    """A list of a document for JSON whose items are made when they are written, once, and not kept."""

    def __init__(self, items: Iterable[object]) -> None:
        super().__init__()
        self._items = iter(items)
        self._first = [*islice(self._items, 1)]

    def __bool__(self) -> bool:
        return bool(self._first)

    def __iter__(self) -> Iterator[object]:
        return chain(self._first, self._items)


def without_nan(value: object) -> object:
    """A document for JSON, which has no NaN and Inf: they become text."""
    if isinstance(value, Streamed):
        return Streamed(map(without_nan, value))
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value


def spans(numbers: Collection[int], limit: int = 6) -> str:
    """Return whole numbers as options take them: `0-3, 7`; of many stretches the first ones."""
    ordered = sorted(set(numbers))
    stretches: list[list[int]] = []
    for number in ordered:
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    shown = [
        str(low) if low == high else f"{low}, {high}" if high == low + 1 else f"{low}-{high}"
        for low, high in stretches[:limit]
    ]
    return ", ".join(shown) + (", …" if len(stretches) > limit else "")
