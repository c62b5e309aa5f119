"""The user's errors: a message that says what is wrong and where, and a hint that says what to do next.

Everything else that is raised is our own mistake and ends with a traceback in the log and exit code 3.
This module runs on Python 3.7.
"""

#: Characters that are shown of what a file holds where something else should be, and of a whole message or hint.
_SHOWN, _MOST = 80, 6000


def shown(token: str) -> str:
    """A token of a file as a message quotes it: escaped, and at most 80 characters of it, quotes and dots included."""
    text = repr(token[:_SHOWN])  # no more is looked at, however long it is
    return text if len(token) <= _SHOWN and len(text) <= _SHOWN else text[: _SHOWN - 4] + "..." + text[0]


def shown_name(token: str) -> str:
    """The same without the quotes, for a name that is a label of what follows it."""
    return shown(token)[1:-1]


def _bounded(text: str) -> str:
    """A text whose end is cut off where it quotes more than anybody reads: several paths of the longest kind fit."""
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


class PrecisionToolError(Exception):
    """An error the user can do something about: `message` says what and where, `hint` what to do next."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = _bounded(message), _bounded(hint)
        super().__init__(self.message)

    @property
    def advice(self) -> str:
        """Message and hint as one text: for cells and lists, where both must fit in one place."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> "tuple[type, tuple[str, str]]":
        # Errors travel back from worker processes, so both parts must survive pickling.
        return (type(self), (self.message, self.hint))


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
