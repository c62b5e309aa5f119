"""The user's errors: a message that says what is wrong and where, and a hint that says what to do next.

Everything else that is raised is our own mistake and ends with a traceback in the log and exit code 3.
This module runs on Python 3.7.
"""

from typing import Any, Dict, Optional, Tuple, Type, TypeVar

#: Characters that are shown of what a file holds where something else should be, and of a whole message or hint.
_SHOWN, _MOST = 80, 6000


def shown(token: str) -> str:
    """A token of a file as a message quotes it: escaped, and at most 80 characters of it, quotes and dots included."""
    text = repr(token[:_SHOWN])  # no more is looked at, however long it is
    return text if len(token) <= _SHOWN and len(text) <= _SHOWN else text[: _SHOWN - 4] + "..." + text[0]


def shown_name(token: str) -> str:
    """The same without the quotes, for a name that is a label of what follows it."""
    return shown(token)[1:-1]


def escaped(text: str) -> str:
    """Return `text` with control characters, escape sequences too, as \\xNN: names come from other machines."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _bounded(text: str) -> str:
    """A text whose end is cut off where it quotes more than anybody reads: several paths of the longest kind fit."""
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


Kind = TypeVar("Kind", bound="PrecisionToolError")


class PrecisionToolError(Exception):
    """An error the user can do something about: `message` says what and where, `hint` what to do next.

    `path` is the file or folder, `offset` the byte and `line` the line in it, each as far as it is known, and `reason`
    what is wrong there; without a path that is the message.
    """

    exit_code = 2
    path: Optional[str] = None
    offset: Optional[int] = None
    line: Optional[int] = None
    reason = ""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = _bounded(message), _bounded(hint)
        super().__init__(self.message)
        self.reason = self.message

    @classmethod
    def of(
        cls: Type[Kind],
        path: object,
        reason: str,
        hint: str = "",
        *,
        offset: Optional[int] = None,
        line: Optional[int] = None,
        what: str = "",
    ) -> Kind:
        """The error of a file: `path: reason`, or `path line N: reason`; or of `what` is in it: `what: reason`."""
        where = what or (str(path) if line is None else f"{path} line {line}")
        error = cls(f"{where}: {reason}", hint)
        error.path, error.offset, error.line, error.reason = str(path), offset, line, reason
        return error

    @classmethod
    def within(cls: Type[Kind], reason: str, hint: str = "", *, line: Optional[int] = None) -> Kind:
        """The error of a value that does not know its file: who reads the file says which it is, with `of`."""
        error = cls(reason, hint)
        error.line = line
        return error

    @property
    def place(self) -> Dict[str, Any]:
        """Where it is and what is wrong there: path, offset, line and reason by name."""
        return {name: getattr(self, name) for name in ("path", "offset", "line", "reason")}

    @property
    def advice(self) -> str:
        """Message and hint as one text: for cells and lists, where both must fit in one place."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> "Tuple[Any, ...]":
        # Errors travel back from worker processes, so all parts must survive pickling.
        return (type(self), (self.message, self.hint), self.place)


class UsageError(PrecisionToolError, ValueError):
    """A wrong word, option or value on the command line or in a setting."""


class DataNotFoundError(PrecisionToolError, FileNotFoundError):
    """A folder, file, graph or tensor that was asked for, or is needed, is not there."""

    def __str__(self) -> str:
        return self.message


class NoBenchmarkError(DataNotFoundError):
    """There is an NPU dump, but nothing to compare it with."""


class FormatError(PrecisionToolError, ValueError):
    """A file that is damaged, cut off or of a kind that cannot be read; names the file and the offset."""


class OutputError(PrecisionToolError, OSError):
    """A result that could not be written: no permission, disk full."""

    def __str__(self) -> str:
        return self.message
