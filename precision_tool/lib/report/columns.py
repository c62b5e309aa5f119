"""Values as the data of a report keeps them: in columns, texts once each, numbers as short as they are meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, isnan
from typing import Any

import numpy as np

from precision_tool.lib.arguments import escaped

#: JSON has no NaN and Inf.
Number = float | int | str | None


def number(value: float | None, digits: int = 6) -> Number:
    """A number of so many significant digits; text for one that is not finite, None for none."""
    if value is None or isinstance(value, int):
        return value
    if not isfinite(value):
        return "nan" if isnan(value) else "inf" if value > 0 else "-inf"
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


#: The largest integer up to which float64, and so the page, holds all of them.
_LARGEST_EXACT = 1 << 53


def whole(value: float | None) -> Number:
    """The same of a value of integers, or what was computed of them: with all the digits that are known.

    An integer is text where the page would round it; a float beyond that has lost digits already.
    """
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST_EXACT else str(value)
    if value is None or not isfinite(value) or abs(value) > _LARGEST_EXACT or not value.is_integer():
        return number(value)
    return int(value)


#: Powers of ten that float64 holds exactly.
_EXACT = 22


def numbers(values: Sequence[float | None], digits: int = 6) -> list[Number]:
    """`number` of every value of a column, quicker."""
    array = np.array(values, np.float64)  # None becomes nan
    with np.errstate(all="ignore"):
        places = digits - 1 - np.floor(np.log10(np.abs(array)))
        # One of both powers is 1, and a product or quotient with an exact power of ten is the nearest number.
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        short = np.rint(array / down * up) / up * down
    exact = np.isfinite(short) & (np.abs(places) <= _EXACT) & (np.abs(short) < 1e15)
    column: list[Number] = [int(one) if one.is_integer() else one for one in np.where(exact, short, 0.0).tolist()]
    for at in np.flatnonzero(~exact & (array != 0)).tolist():
        column[at] = number(values[at], digits)
    return column


class Texts:
    """A table of texts, each of them once; columns hold their positions. The text at 0 is empty."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {"": 0}

    def __getitem__(self, text: str) -> int:
        return self._positions.setdefault(text, len(self._positions))

    def all_of(self, texts: Iterable[str]) -> list[int]:
        """The positions of several."""
        return [self[text] for text in texts]

    def to_json(self) -> list[str]:
        """The texts by position, as the terminal shows them: control characters, marks that turn the direction of
        writing, and what no UTF-8 can hold are written out."""
        return [escaped(text) for text in self._positions]


def sound(value: Any) -> Any:
    """A document whose numbers and texts JSON and UTF-8 can hold; what it does not know becomes text.

    Texts are as the terminal shows them.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, dict):
        return {str(sound(str(key))): sound(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sound(item) for item in value]
    return escaped(str(value))
