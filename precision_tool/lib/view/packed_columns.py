"""Values as the data of a report keeps them: in columns, texts once each, numbers as short as they are meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from precision_tool.lib.messages import LANGUAGES, Message, render
from precision_tool.lib.messages.errors import escaped

#: JSON has no NaN and Inf.
Number = float | int | str | None


def number(value: float | None, digits: int = 6) -> Number:
    """Return a number with so many significant digits; text for one that is not finite, None for none."""
    if value is None or isinstance(value, int):
        return value
    if not isfinite(value):
        return "nan" if isnan(value) else "inf" if value > 0 else "-inf"
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def numbers(values: Iterable[float | None], digits: int = 6) -> list[Number]:
    return [number(value, digits) for value in values]


#: The largest integer up to which float64, and so the page, holds all of them.
_LARGEST_EXACT = 1 << 53


def whole(value: float | None) -> Number:
    """Return `number` of an integer value, or of a figure computed from integers, with all its digits.

    An integer is text where the page would round it; a float beyond that has lost digits already.
    """
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST_EXACT else str(value)
    if value is None or not isfinite(value) or abs(value) > _LARGEST_EXACT or not value.is_integer():
        return number(value)
    return int(value)


#: Powers of ten that float64 holds exactly.
_EXACT = 22


#: The sign of a number of no decimal places; more and fewer have the signs behind and before it.
_NO_PLACES = ord("@")
#: The sign of the integer 0, and the integers that have one: all are letters and other signs that JSON writes as
#: they are. None has a sign for private use.
_ZERO, _LEAST, _MOST, _NONE = 0x2800, -0x2700, 0xD7FF - 0x2800, 0xE000


def signs(values: Sequence[int] | npt.NDArray[np.int64]) -> str | list[int]:
    """Return a long column of integers as one text, a character each, which is quick to write and read, if possible."""
    array = np.asarray(values, np.int64)
    if array.size and not _LEAST <= array.min() <= array.max() <= _MOST:
        unchanged: list[int] = array.tolist()
        return unchanged
    return _text(array + _ZERO)


def _text(codes: npt.NDArray[Any]) -> str:
    return codes.astype("<u2").tobytes().decode("utf-16-le")


def decimals(values: Sequence[float | None], digits: int, whole_at: Iterable[int] = ()) -> dict[str, Any]:
    """Return `number` of every value of a long column, as integers and their decimal places.

    `of` has `signs` of the integers, or themselves, `places` a sign for each: `@` none, `A` one, `B` two, `?` one
    fewer than none. `more` are the positions and values of what no integer stands for. Those at `whole_at` are `whole`.
    """
    array = np.array(values, np.float64)  # None becomes nan
    with np.errstate(all="ignore"):
        places = digits - 1 - np.floor(np.log10(np.abs(array)))
        # One of both powers is 1, and a product or quotient with an exact power of ten is the nearest number.
        short = np.rint(array / 10.0 ** np.maximum(-places, 0) * 10.0 ** np.maximum(places, 0))
    exact = np.isfinite(short) & (np.abs(places) <= _EXACT)
    others = {at: number(values[at], digits) for at in np.flatnonzero(~exact & (array != 0)).tolist()}
    others |= {at: whole(values[at]) for at in whole_at}
    exact[list(others)] = False
    integers = np.where(exact, short, 0.0).astype(np.int64)
    of = signs(integers)
    if isinstance(of, str):
        nothing = [at for at, value in others.items() if value is None]
        codes = integers + _ZERO
        codes[nothing] = _NONE
        of = _text(codes)
        others = {at: value for at, value in others.items() if value is not None}
    signs_of_places = (np.where(exact, places, 0) + _NO_PLACES).astype(np.uint8)
    return {"of": of, "places": signs_of_places.tobytes().decode("ascii"), "more": [*others.items()]}


#: A text of the page: a name or number that reads the same in every language, or a text by language.
PageText = str | dict[str, str]


class Texts(dict[str, int]):
    """A table of texts, each of them once: the position of each. The text at 0 is empty."""

    def __init__(self) -> None:
        super().__init__({"": 0})
        self._messages: dict[str, Message] = {}

    def __missing__(self, text: str) -> int:
        position = self[text] = len(self)
        return position

    def at(self, message: Message | str) -> int:
        """Return the position of a text, or of a message, which has its texts in all languages."""
        if isinstance(message, str):
            return self[message]
        text = render(message, "en")
        self._messages.setdefault(text, message)
        return self[text]

    def all_of(self, texts: Iterable[str]) -> list[int]:
        return [self[text] for text in texts]

    def to_json(self) -> list[PageText]:
        """Return the texts by position, as `both` has them."""
        return [both(self._messages.get(text, text)) for text in self]


def both(message: Message | str) -> PageText:
    """Return a message in all languages; a text that is none stays one.

    Control characters, marks that turn the direction of writing, and what no UTF-8 can hold are escaped, as on the
    terminal.
    """
    if isinstance(message, str):
        return escaped(message)
    return {language: escaped(render(message, language)) for language in LANGUAGES}


def sound(value: Any) -> Any:
    """Return a document whose numbers and texts JSON and UTF-8 can hold; other objects become text.

    Texts and messages are as `both` has them.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Message):
        return both(value)
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, dict):
        return {str(sound(str(key))): sound(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sound(item) for item in value]
    return escaped(str(value))
