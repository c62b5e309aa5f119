"""The user's errors: a kind of the catalogue with its fields, which says what is wrong, where, and what to do next.

Everything else that is raised is our own mistake and ends with a traceback in the log and exit code 3.
This module runs on Python 3.7.
"""

from typing import Any, Dict, Iterator, List, Optional, Tuple, Type, TypeVar, Union

from precision_tool.lib.messages import Message, render
from precision_tool.lib.messages.catalogue import has_text

#: Characters that are shown of what a file holds where something else should be, and of a whole message or hint.
_MAX_TOKEN, _MAX_TEXT = 80, 6000


def shown(token: str) -> str:
    """Return a token of a file as a message quotes it: escaped, and at most 80 characters, quotes and dots included."""
    text = repr(token[:_MAX_TOKEN])  # no more is looked at, however long it is
    return text if len(token) <= _MAX_TOKEN and len(text) <= _MAX_TOKEN else text[: _MAX_TOKEN - 4] + "..." + text[0]


def shown_name(token: str) -> str:
    """Return the same without the quotes, for a name that is a label of what follows it."""
    return shown(token)[1:-1]


def escaped(text: str) -> str:
    """Return `text` with control characters, escape sequences too, as \\xNN: names come from other machines."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _bounded(text: str) -> str:
    """A text whose end is cut off where it quotes more than anybody reads: several paths of the longest kind fit."""
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


Error = TypeVar("Error", bound="PrecisionToolError")


class PrecisionToolError(Exception):
    """An error the user can do something about.

    Parameters
    ----------
    kind : str
        A kind below `error` in the catalogue: its `text` says what is wrong, its `hint` what to do next.
    **fields
        What the texts name.

    Attributes
    ----------
    path, offset, line
        The file or folder, the byte and the line in it, each as far as it is known; set by `of`.
    """

    exit_code = 2
    path: Optional[str] = None
    offset: Optional[int] = None
    line: Optional[int] = None
    #: What in the file it is about, where that is shown in place of the path.
    subject: Union[str, Message] = ""

    def __init__(self, kind: str, hint: str = "", **fields: Any) -> None:
        super().__init__(kind)
        self.kind = kind if has_text("error." + kind + ".text") else "plain"
        self.fields = fields if self.kind != "plain" else {"text": kind, "hint": hint}

    @classmethod
    def of(
        cls: Type[Error],
        path: object,
        kind: str,
        hint: str = "",
        *,
        offset: Optional[int] = None,
        line: Optional[int] = None,
        what: Union[str, Message] = "",
        **fields: Any,
    ) -> Error:
        """Return the error of a file: `path: text`, or `path line N: text`; or of `what` is in it: `what: text`."""
        error = cls(kind, hint, **fields)
        error.path, error.offset, error.line, error.subject = str(path), offset, line, what
        return error

    @classmethod
    def within(cls: Type[Error], kind: str, hint: str = "", *, line: Optional[int] = None, **fields: Any) -> Error:
        """Return the error of a value that does not know its file: who reads the file says which it is, with `at`."""
        error = cls(kind, hint, **fields)
        error.line = line
        return error

    def _render_traceback_(self) -> List[str]:
        """Return what IPython shows in place of a traceback: what is wrong, and what to do next."""
        return [type(self).__name__ + ": " + str(self), *filter(None, [self.hint])]

    @property
    def reason_message(self) -> Message:
        """What is wrong, without the place."""
        return self._message("text")

    @property
    def hint_message(self) -> Optional[Message]:
        """What to do next; None where there is nothing to say."""
        hint = self._message("hint") if has_text("error." + self.kind + ".hint") else None
        return hint if render(hint, "en") else None

    @property
    def full_message(self) -> Message:
        """What is wrong and where."""
        where = self.subject or self.path
        if not where:
            return self.reason_message
        kind = "error.place" if self.subject or self.line is None else "error.place_line"
        return Message(kind, where=where, line=self.line, reason=self.reason_message)

    @property
    def advice_message(self) -> Message:
        """What is wrong and where, and what to do next: for cells and lists, where both must fit in one place."""
        hint = self.hint_message
        advice = Message("error.advice", message=self.full_message, hint=hint) if hint else self.full_message
        text = render(advice, "en")
        return advice if len(text) <= _MAX_TEXT else Message("text", text=_bounded(text))

    def _message(self, part: str) -> Message:
        fields = dict({"offset": self.offset, "line": self.line}, **self.fields)
        return Message("error." + self.kind + "." + part, **fields)

    def at(self: Error, path: object) -> Error:
        """Return it as the error of a file, for one made with `within`."""
        self.path = str(path)
        return self

    def names(self, path: str) -> bool:
        """Return whether the error is about a file: in its place, or in a field of what it says."""
        return path in _values(self.full_message)

    def text(self, language: Optional[str] = None) -> str:
        """Return what is wrong and where, in a language, by default the one in use."""
        return _bounded(render(self.full_message, language))

    @property
    def message(self) -> str:
        """What is wrong and where."""
        return self.text()

    @property
    def reason(self) -> str:
        """What is wrong, without the place."""
        return _bounded(render(self.reason_message))

    @property
    def hint(self) -> str:
        """What to do next; "" where there is nothing to say."""
        return _bounded(render(self.hint_message))

    @property
    def advice(self) -> str:
        """Message and hint as one text."""
        return render(self.advice_message)

    @property
    def place(self) -> Dict[str, Any]:
        """Where it is and what is wrong there: path, offset, line and reason by name."""
        return {name: getattr(self, name) for name in ("path", "offset", "line", "reason")}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> "Tuple[Any, ...]":
        # Errors travel back from worker processes, so all parts must survive pickling.
        return (_restored, (type(self),), self.__dict__)


def _values(value: Any) -> Iterator[Any]:
    """The values of all fields of a message and of those in it."""
    if isinstance(value, Message):
        value = list(value.fields.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(item)
    else:
        yield value


def _restored(cls: Type[Error]) -> Error:
    return cls.__new__(cls)


class UsageError(PrecisionToolError, ValueError):
    """A wrong word, option or value on the command line or in a setting."""


class DataNotFoundError(PrecisionToolError, FileNotFoundError):
    """A folder, file, graph or tensor that was asked for, or is needed, is not there."""


class NoBenchmarkError(DataNotFoundError):
    """There is an NPU dump, but nothing to compare it with."""


class FormatError(PrecisionToolError, ValueError):
    """A file that is damaged, cut off or of a kind that cannot be read; names the file and the offset."""


class OutputError(PrecisionToolError, OSError):
    """A result that could not be written: no permission, disk full."""
