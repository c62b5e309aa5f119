"""What is written where a terminal, or a locale, has only ASCII. This module runs on Python 3.7."""

import codecs
import os
import sys
from typing import Tuple

#: The error handler for text that a stream cannot take: see `_ascii_signs`.
SIGNS = "precision_tool_signs"

#: What stands for the signs that reports use, where there is only ASCII.
_ASCII_SIGNS = {
    "…": "...", "→": "->", "≤": "<=", "≥": ">=", "×": "x", "±": "+-", "−": "-", "–": "-", "─": "-", "━": "-", "│": "|",
    "┃": "|", "√": "sqrt ", "‖": "||", "▲": "^", "\u2800": " ",
}  # fmt: skip
_ASCII_SIGNS.update(dict.fromkeys("┏┓┗┛╭╮╯╰", "+"))
# Curves are drawn by the dots of Braille.
_ASCII_SIGNS.update(dict.fromkeys(map(chr, range(0x2801, 0x2900)), "*"))


def write_ascii_where_asked() -> None:
    """Write ASCII in the locales C and POSIX, where Python would write UTF-8."""
    if _asks_for_ascii():
        _write(encoding="ascii", errors=SIGNS)


def write_utf_8_for(language: str) -> None:
    """Write UTF-8 after all where the user chose a language that ASCII cannot show."""
    if language not in ("", "en") and _asks_for_ascii():
        _write(encoding="utf-8", errors=SIGNS)


def _asks_for_ascii() -> bool:
    every, kind, usual = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    # Python itself sets LC_CTYPE so where LANG asks for ASCII (PEP 538).
    locale = every or (usual if kind in ("C.UTF-8", "C.utf8", "UTF-8") and usual else kind or usual)
    chosen = os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8") == "1"
    return locale in ("C", "POSIX") and not chosen


def _write(encoding: str, errors: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding=encoding, errors=errors)


def _ascii_signs(error: UnicodeError) -> Tuple[str, int]:
    """Replace a character that ASCII lacks by a similar one, or escape it as JSON does."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_ASCII_SIGNS.get(char) or _escaped(char) for char in text), error.end


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join("\\u{:02x}{:02x}".format(*units[at : at + 2]) for at in range(0, len(units), 2))


codecs.register_error(SIGNS, _ascii_signs)
