"""The catalogue of messages: a kind and its fields become a text in a language. This module runs on Python 3.7.

A text of `en.json` or `zh.json` has these placeholders; fields may be numbers, names, other messages, or
sequences of these:

| placeholder | renders |
|---|---|
| `{name}` | the field; numbers with separators of thousands, sequences joined by ", ", messages as their own texts |
| `{name:spec}` | a number by a format specification of Python: `{x:.2f}`, `{x:+d}`, `{x:.6g}` |
| `{n:count op}`, `{n:count box|boxes}` | a number and its noun: `1 op`, `3,000 ops` |
| `{n:plural is|are}` | the first word for 1, the second for all other numbers |
| `{x:percent}` | a ratio in percent: `63.7 %` |
| `{n:bytes}` | `1.5 GB` |
| `{shape:shape}` | `(8, 12)`; of a sequence of shapes `(8, 12), (3,)` |
| `{names:list 3}` | the first three, and how many more there are |
| `{items:join ; }` | joined by what follows the blank |
| `{value:of cause}` | the text of the kind `cause.<value>`: names of an enumeration |
| `{?name …}` | its inner text, with placeholders too, where the field is set: 0 is; None, False, "", () are not |
| `{!name …}` | its inner text where the field is not set |

`{{` and `}}` are braces.
"""

import json
import os
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from precision_tool.lib.messages.language import language as current_language

#: Fields that a message may have, as JSON has them too.
Field = Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_UNITS = ("B", "kB", "MB", "GB")
#: Whole numbers from here on, which no data has, are rounded: Python refuses to write thousands of digits.
_MOST_DIGITS = 10**40
#: Percentages from here on are shown as a power of ten.
_MOST_WRITTEN_OUT = 1e6


class Message:
    """Something that a person is to be told: a kind of the catalogue, and the fields of its text.

    Parameters
    ----------
    kind : str
        A key of the catalogue, such as ``"verdict.sure"``.
    **fields : str, int, float, bool, None, Message, or a sequence of these
        What the text names; the texts of both languages use no others.
    """

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str, **fields: Field) -> None:
        self.kind = kind
        self.fields = fields

    def __getattr__(self, name: str) -> Field:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and (self.kind, self.fields) == (other.kind, other.fields)

    def __hash__(self) -> int:
        plain = (item for item in sorted(self.fields.items()) if isinstance(item[1], (str, int, float, Message)))
        return hash((self.kind, *plain))

    def __repr__(self) -> str:
        return "Message({})".format(
            ", ".join([repr(self.kind)] + ["{}={!r}".format(*item) for item in self.fields.items()])
        )

    def __str__(self) -> str:
        return render(self)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _restored, (self.kind, self.fields)

    def to_dict(self) -> Dict[str, Any]:
        """Return it as JSON keeps it; `from_dict` reads it back."""
        return {"kind": self.kind, "fields": {name: _to_json(value) for name, value in self.fields.items()}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Message":
        """Return the message of a document. KeyError, TypeError or ValueError for what is none."""
        kind, fields = document["kind"], document["fields"]
        if not isinstance(kind, str) or not isinstance(fields, dict):
            raise TypeError("no message")
        return cls(kind, **{str(name): _from_json(value) for name, value in fields.items()})


class Part(NamedTuple):
    """A piece of a rendered text; `field` names the field that it shows, "" for the catalogue's own words."""

    text: str
    field: str


def render(message: Union[Message, str, None], language: Optional[str] = None) -> str:
    """Return the text of a message; a plain string is a text already, and None says nothing.

    Parameters
    ----------
    message : Message, str or None
        What is to be said. A kind without a text is shown as kind and fields: a test keeps that from happening.
    language : {"en", "zh"}, optional
        By default the one in use, see `messages.language`.

    Returns
    -------
    str
        One text, with control characters of its fields escaped.
    """
    return "" if message is None else "".join([text for text, _ in _pieces(message, language)])


def text(kind: str, **fields: Field) -> str:
    """Return the text of a kind with these fields in the language in use."""
    return render(Message(kind, **fields))


def parts(message: Union[Message, str], language: Optional[str] = None) -> List[Part]:
    """Return the text in pieces, so that fields can be drawn in a style of their own."""
    return [Part(*piece) for piece in _pieces(message, language)]


def _pieces(message: Union[Message, str], language: Optional[str]) -> "Iterable[Tuple[str, str]]":
    if isinstance(message, str):
        return [(printable(message), "")]
    chosen = language or current_language()
    template = catalogue(chosen).get(message.kind)
    if template is None:
        return [(printable(repr(message)), "")]
    return _filled(_parsed(template), message.fields, chosen)


@lru_cache(maxsize=None)
def catalogue(language: str) -> Mapping[str, str]:
    """Return all texts of a language by kind: the sections of its file, joined by a dot."""
    with open(os.path.join(_FOLDER, language + ".json"), encoding="utf-8") as file:
        return dict(_flat(json.load(file)))


def has_text(kind: str) -> bool:
    """Return whether the catalogue has a kind."""
    return kind in catalogue("en")


def field_names(template: str) -> "frozenset[str]":
    """Return the names of the fields that a text uses."""
    return frozenset(_names(_parsed(template)))


def printable(value: str) -> str:
    """Names come from other machines: control characters, escape sequences too, are shown as \\xNN; lines stay."""
    if value.isprintable():
        return value
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode("ascii") for char in value
    )


# --- templates: a list of literal texts, fields (name, format) and conditions (name, is_set, inner template) ---


class _Field(NamedTuple):
    name: str
    form: str


class _Condition(NamedTuple):
    name: str
    is_set: bool
    inner: "Tuple[Any, ...]"


@lru_cache(maxsize=None)
def _parsed(template: str) -> "Tuple[Any, ...]":
    nodes, end = _parse(template, 0, False)
    assert end == len(template)
    return nodes


def _parse(template: str, at: int, is_inner: bool) -> "Tuple[Tuple[Any, ...], int]":
    nodes: List[Any] = []
    literal: List[str] = []
    while at < len(template):
        char = template[at]
        if char in "{}" and template[at : at + 2] == char * 2 and not (char == "}" and is_inner):
            literal.append(char)
            at += 2
            continue
        if char == "}":
            if not is_inner:
                raise ValueError(f"a brace too many in {template!r}")
            break
        if char != "{":
            literal.append(char)
            at += 1
            continue
        if literal:
            nodes.append("".join(literal))
            literal = []
        if template[at + 1 : at + 2] in ("?", "!"):
            name, _, _ = template[at + 2 :].partition(" ")
            inner, at_end = _parse(template, at + 3 + len(name), True)
            nodes.append(_Condition(name, template[at + 1] == "?", inner))
        else:
            at_end = template.index("}", at)
            name, _, form = template[at + 1 : at_end].partition(":")
            nodes.append(_Field(name, form))
        at = at_end + 1
    if is_inner and at >= len(template):
        raise ValueError(f"a brace is missing in {template!r}")
    if literal:
        nodes.append("".join(literal))
    return tuple(nodes), at


def _names(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, _Field):
            yield node.name
        elif isinstance(node, _Condition):
            yield node.name
            yield from _names(node.inner)


def _filled(nodes: Iterable[Any], fields: Mapping[str, Field], language: str) -> "Iterator[Tuple[str, str]]":
    for node in nodes:
        if isinstance(node, str):
            yield node, ""
        elif isinstance(node, _Field):
            yield _shown(fields.get(node.name), node.form, language), node.name
        elif _is_set(fields.get(node.name)) == node.is_set:
            yield from _filled(node.inner, fields, language)


def _is_set(value: Field) -> bool:
    return value is not None and value is not False and value != "" and value != () and value != []


def _shown(value: Field, form: str, language: str) -> str:
    """Return a field in a form, or plain where it does not fit: stored messages and figures come from files."""
    if not form and type(value) is str:  # most are
        return printable(value)
    try:
        return _formed(value, form, language)
    except (TypeError, ValueError, IndexError, KeyError, OverflowError):
        return _plain(value, language)


def _formed(value: Field, form: str, language: str) -> str:
    word, _, argument = form.partition(" ")
    if word == "count":
        return f"{value:,} " + _noun(value, argument)
    if word == "plural":
        return argument.split("|")[int(value != 1)]
    if word == "percent":
        return percent(value)
    if word == "bytes":
        return byte_size(value)
    if word in ("shape", "list", "join") and isinstance(value, str):
        raise TypeError("a text is no sequence of its characters")
    if word == "shape":
        return _shape(value, language)
    if word == "list":
        return _first_of(list(value), int(argument or len(value)), language)
    if word == "join":
        return argument.join(_plain(item, language) for item in value)
    if word == "of":
        return render(Message(f"{argument}.{str(value).lower()}"), language)
    return str(format(value, form)) if form else _plain(value, language)


def _plain(value: Field, language: str) -> str:
    if isinstance(value, Message):
        return render(value, language)
    if isinstance(value, (list, tuple)):
        return render(Message("list.comma"), language).join(_plain(item, language) for item in value)
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < _MOST_DIGITS else f"{Decimal(value):.6g}"
    if isinstance(value, float):
        return f"{value:,.0f}" if isfinite(value) and value == int(value) and abs(value) < 1e6 else f"{value:.6g}"
    return printable(str(value))


def _shape(value: Field, language: str) -> str:
    if value and isinstance(value[0], (list, tuple)):
        return render(Message("list.comma"), language).join(_shape(item, language) for item in value)
    return "({}{})".format(", ".join(printable(str(item)) for item in value), "," if len(value) == 1 else "")


def _noun(number: int, nouns: str) -> str:
    single, _, several = nouns.partition("|")
    return single if number == 1 else several or single + "s"


def _first_of(values: List[Field], limit: int, language: str) -> str:
    shown = _plain(values[:limit], language)
    return (
        render(Message("list.more", names=shown, more=len(values) - limit), language) if len(values) > limit else shown
    )


def percent(value: Union[float, str, None]) -> str:
    """Return a ratio in percent, with three significant digits at most; `Inf` where not finite or not known."""
    if not isinstance(value, (int, float)) or not isfinite(value):
        return "Inf"
    hundredths = 100 * value
    if hundredths < 10:
        return f"{hundredths:.2g} %"
    if hundredths < _MOST_WRITTEN_OUT:
        return f"{float(f'{hundredths:.3g}'):,g} %"
    return f"{hundredths:.3g} %"


def byte_size(count: float) -> str:
    """Return a number of bytes with a unit: 1.5 GB."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[Tuple[str, str]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, prefix + key + ".")
        else:
            yield prefix + key, value


def _to_json(value: Field) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return {"number": str(value)}
    return value


def _from_json(value: Any) -> Field:
    if isinstance(value, dict):
        return float(value["number"]) if "number" in value else Message.from_dict(value)
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    return value


def _restored(kind: str, fields: Dict[str, Field]) -> Message:
    return Message(kind, **fields)
