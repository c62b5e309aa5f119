"""The JSON files of msprobe's dumps, read as a stream: `dump.json`, `stack.json` and `construct.json`.

They have a member for each call of an API or a module, a million of them in a large step. The members are found
without decoding them, so that an index takes the time to read the file; those that are needed are decoded one by one.
The text is taken as Latin-1 until then, in which a character is a byte: places in it are places in the file.

msprobe writes with `json.dump(..., indent=1)`: a line that begins with as many blanks as the first member and a quote
begins the next one, since strings have no line ends in them. Other texts are decoded as they are passed over. Like
Python's decoder, this takes NaN and Infinity for numbers.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.torch_file import TORCH_TYPES
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.msprobe import (
    Argument,
    CallStacks,
    DescribedArgument,
    Literal,
    ModuleTree,
    Number,
    RecordedCall,
    RecordedTensor,
    SliceArgument,
    UnreadCall,
    parse_call_name,
)
from precision_tool.lib.model.run import Entry

#: Bytes that are read at a time.
_BLOCK = 1 << 20
#: Bytes of an entry, at most: forty thousand tensors. Decoded, it takes some twenty times as much.
_MAX_ENTRY = 16 << 20
#: Bytes in which the line of the next member is looked for, and members in a row that have none until no more is.
_MAX_LINES, _MAX_MISSES = 4 << 20, 8
#: Entries, and characters of all their names, at most: their index takes half a gigabyte.
_MAX_COUNT, _MAX_NAMES = 1 << 22, 1 << 28
#: Lists and mappings in one another, at most; msprobe goes down 400 of them, arguments of networks less than ten.
_MAX_DEPTH = 100
#: Bytes of a value beside the entries (`task`, `level`, …).
_MAX_HEADER = 1 << 12

_BLANKS = " \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*+")
_KEY = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*)"[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_INDENT = re.compile(r"\r?\n[ \t]++(?=\")")
#: Characters in which the first member's indent ends, and longer than any token but strings and numbers.
_LOOK = 256
_DECODER = json.JSONDecoder()


class _DamagedError(Exception):
    """The text does not go on as JSON does; the arguments are the place in the file and the reason."""


class _Window:
    """A piece of a JSON file, from the cursor `at` on, as text of which each character is a byte."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self.text, self.at = "", 0
        #: The place of the text in the file, and of what was not read yet.
        self.base = self._next = 0

    @property
    def place(self) -> int:
        """The cursor's place in the file."""
        return self.base + self.at

    def damaged(self, kind: str, **fields: Any) -> _DamagedError:
        """The error for what is at the cursor."""
        return _DamagedError(self.place, Message(f"row.io.msprobe.{kind}", **fields))

    def more(self) -> bool:
        """Read on and forget what is before the cursor; False at the end of the file."""
        left, held = self._file.size - self._next, len(self.text) - self.at
        if not left:
            return False
        if held > _MAX_ENTRY:
            raise self.damaged("too_long", limit=_MAX_ENTRY)
        size = min(left, max(_BLOCK, held))
        data = self._file.read_at(self._next, size).decode("latin-1")
        self.text = self.text[self.at :] + data
        self.base += self.at
        self.at = 0
        self._next += size
        return True

    def ensure(self, count: int) -> None:
        """Read on until so much is there behind the cursor, or the file ends."""
        while len(self.text) - self.at < count and self.more():
            pass

    def token(self) -> str:
        """The next character that is no blank, to which the cursor goes; "" at the end of the file."""
        while True:
            blanks = _SPACE.match(self.text, self.at)
            self.at = blanks.end() if blanks else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def key(self) -> str:
        """A name and the colon behind it."""
        while True:
            match = _KEY.match(self.text, self.at)
            if match and match.end() < len(self.text):
                self.at = match.end()
                return match[1]
            if not self.more():
                raise self.damaged("cut_off" if match or self.token() in ('"', "") else "no_name")

    def value(self) -> tuple[int, str]:
        """A value: its place in the file and its text."""
        while True:
            try:
                _, end = _DECODER.raw_decode(self.text, self.at)
            except RecursionError:
                raise self.damaged("nested") from None
            except ValueError as error:
                if not self._may_be_cut(error):
                    raise self.damaged("value", error=shown(str(error))) from None
                if not self.more():
                    raise self.damaged("cut_off") from None
                continue
            # A number may go on in the next block.
            if end < len(self.text) or not self.more():
                start, text = self.place, self.text[self.at : end]
                self.at = end
                return start, text

    def _may_be_cut(self, error: ValueError) -> bool:
        """Whether a decoder's error may be that the text ends: it is at the end, or in a string without one."""
        if not isinstance(error, json.JSONDecodeError):  # a number of too many digits
            return False
        return error.msg.startswith("Unterminated") or error.pos + _LOOK > len(self.text)


def _members(window: _Window) -> Iterator[tuple[str, int, str]]:
    """The members of the object whose brace is before the cursor: the name, the value's place, and its text.

    The cursor goes behind the object. _DamagedError where the text ends before it does, or is no JSON, or has more
    members than are read.
    """
    characters = 0
    for count, (key, place, text) in enumerate(_all_members(window)):
        characters += len(key)
        if count >= _MAX_COUNT or characters > _MAX_NAMES:
            raise window.damaged("too_many", count=count)
        yield _name(key), place, text


def _all_members(window: _Window) -> Iterator[tuple[str, int, str]]:
    """The same, with keys as they are written, however many there are."""
    window.ensure(_LOOK)
    indent = _INDENT.match(window.text, window.at)
    separator = f'{indent[0]}"' if indent else ""
    token = window.token()
    if token == "}":
        window.at += 1
        return
    misses = 0
    while token == '"':
        if separator and misses < _MAX_MISSES:
            start = window.place
            yield from _lines(window, separator)
            misses = misses + 1 if window.place == start else 0
        key = window.key()
        place, text = window.value()
        yield key, place, text
        token = window.token()
        if token not in (",", "}"):
            raise window.damaged("no_json" if token else "cut_off")
        window.at += 1
        if token == "}":
            return
        token = window.token()
    raise window.damaged("no_name" if token else "cut_off")


def _lines(window: _Window, separator: str) -> Iterator[tuple[str, int, str]]:
    """The members up to the last one, where each begins a line as the first does.

    It ends at a member that has to be decoded to find its end: the last one, or one that is not written so.
    """
    searched = window.at
    while True:
        stop = window.text.find(separator, searched)
        if stop < 0:
            if len(window.text) - window.at > _MAX_LINES:
                return
            searched = max(len(window.text) - len(separator), window.at) - window.at
            if not window.more():
                return
            continue
        key = _KEY.match(window.text, window.at, stop)
        if key is None or window.text[stop - 1] != ",":
            return
        value = window.text[key.end() : stop - 1].rstrip(_BLANKS)
        if not _is_whole(value):
            return
        yield key[1], window.base + key.end(), value
        window.at = searched = stop + len(separator) - 1


def _is_whole(value: str) -> bool:
    """Whether a text is one value, and not the beginning of one in which a line begins as members do.

    Where this says no of a whole value, because of a brace in a string, it is decoded to find its end. It could say
    yes of a beginning only where lines are indented as nobody indents them and a brace in a string makes up for one.
    """
    first, last = value[:1], value[-1:]
    if first == "{":
        return last == "}" and value.count("{") == value.count("}")
    if first == "[":
        return last == "]" and value.count("[") == value.count("]")
    return True


def _name(key: str) -> str:
    """A key as text: escapes are resolved where they can be."""
    if "\\" in key:
        try:
            return str(json.loads(f'"{_utf8(key)}"'))
        except ValueError:
            pass
    return _utf8(key)


def _utf8(text: str) -> str:
    """The text whose bytes these characters are."""
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")


def _decoded(text: str) -> Any:
    """The value of a member. FormatError where it is no JSON, or nested too deep."""
    try:
        return json.loads(_utf8(text))
    except RecursionError:
        reason = Message("row.io.msprobe.nested")
    except ValueError as error:
        reason = Message("row.io.msprobe.value", error=shown(str(error)))
    raise FormatError.within("io.msprobe.entry", reason=reason)


def _problem(error: _DamagedError) -> Message:
    place, reason = error.args
    return Message("row.io.msprobe.ends", offset=place, reason=reason)


# --- dump.json --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpIndex:
    """What a `dump.json` has, without its entries' contents.

    `names` are the entries in the order in which the calls ended; a name may be there twice in a file of somebody else.
    `dump_data_dir` is a path of the machine that dumped and is never followed. `header` has all members beside the
    entries. `problem` says why entries at the end are missing.
    """

    path: str
    names: Sequence[str]
    header: Mapping[str, Any] = field(default_factory=dict)
    problem: Message | None = None
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()

    @property
    def task(self) -> str:
        """`tensor`, `statistics` or `structure`; "" where it is not said."""
        return self._text("task")

    @property
    def level(self) -> str:
        """`L0` for modules, `L1` for APIs, `mix` for both."""
        return self._text("level")

    @property
    def framework(self) -> str:
        """`pytorch`, `mindspore` or `mindtorch`."""
        return self._text("framework")

    @property
    def dump_data_dir(self) -> str:
        """Where the tensors were written on the machine that dumped; "" where there are none."""
        return self._text("dump_data_dir")

    def _text(self, name: str) -> str:
        value = self.header.get(name)
        return value if isinstance(value, str) else ""


#: Bytes at the start of a file that have all members before the entries.
_HEAD = 1 << 14
_MEMBER = re.compile(r'"(task|level|framework)"\s*:\s*"([^"\\]{0,64})"')


def read_dump_header(path: str) -> dict[str, str]:
    """Return the task, level and framework of a `dump.json` without its entries, as far as they are before these."""
    with open_file(path) as file:
        head = file.read_at(0, min(file.size, _HEAD)).decode("utf-8", "replace")
    return dict(_MEMBER.findall(head.partition('"data"')[0]))


def read_dump_index(path: str) -> DumpIndex:
    """Return the index of a `dump.json`.

    Parameters
    ----------
    path : str
        The file. It may be cut off: the entries before that are there, and `problem` says where it ends.

    Raises
    ------
    FormatError
        It is no JSON object, or has no entries.
    """
    header: dict[str, Any] = {}
    names: list[str] = []
    starts, ends = array("q"), array("q")
    has_data, problem = False, None
    with open_file(path) as file:
        window = _opened(file)
        try:
            token = window.token()
            while token == '"':
                key = _name(window.key())
                if key == "data" and window.token() == "{":
                    window.at += 1
                    has_data = True
                    for name, place, text in _members(window):
                        names.append(name)
                        starts.append(place)
                        ends.append(place + len(text))
                else:
                    _, text = window.value()
                    if len(text) <= _MAX_HEADER:
                        header[key] = _decoded(text)
                token = window.token()
                if token == ",":
                    window.at += 1
                    token = window.token()
            if token != "}":
                raise window.damaged("no_json" if token else "cut_off")
        except _DamagedError as error:
            problem = error
        except FormatError as error:
            raise error.at(path) from None
    if not has_data:
        raise _no_dump(path, problem)
    message = None if problem is None else _problem(problem)
    return DumpIndex(path=path, names=names, header=header, problem=message, starts=starts, ends=ends)


def _no_dump(path: str, problem: _DamagedError | None) -> FormatError:
    if problem is None:
        return FormatError.of(path, "io.msprobe.no_data")
    offset, reason = problem.args
    return FormatError.of(path, "io.msprobe.not_json", offset=offset, reason=reason)


def _opened(file: StoredFile) -> _Window:
    """The text behind the file's first brace."""
    if file.size == 0:
        raise FormatError.of(file.path, "io.empty")
    window = _Window(file)
    if window.token() != "{":
        reason = Message("row.io.msprobe.no_object")
        raise FormatError.of(file.path, "io.msprobe.not_json", offset=window.place, reason=reason)
    window.at += 1
    return window


def read_calls(index: DumpIndex, numbers: Iterable[int] | None = None) -> Iterator[RecordedCall | UnreadCall]:
    """Return entries one by one, decoded; what is wrong with one costs no other.

    Parameters
    ----------
    index : DumpIndex
        Of the file as it still is.
    numbers : iterable of int, optional
        The entries, as positions in `index.names`; by default all. In rising order fewest bytes are read.
    """
    with open_file(index.path) as file:
        block, base = b"", 0
        for number in range(len(index.names)) if numbers is None else numbers:
            start, end = index.starts[number], index.ends[number]
            if not base <= start <= end <= base + len(block):
                size = min(max(end - start, _BLOCK), max(file.size - start, 0))
                block, base = file.read_at(start, size), start
            yield _read_call(index.names[number], block[start - base : end - base])


def read_entries(path: str, entries: Sequence[Entry]) -> list[RecordedCall | UnreadCall]:
    """Return some entries of a file whose index is there already; only their bytes are read."""
    with open_file(path) as file:
        return [
            _read_call(entry.name, file.read_at(entry.start, max(min(entry.end, file.size) - entry.start, 0)))
            for entry in entries
        ]


def _read_call(name: str, data: bytes) -> RecordedCall | UnreadCall:
    try:
        return call_of(name, _decoded(data.decode("latin-1")))
    except FormatError as error:
        return UnreadCall(name=name, reason=error.reason_message)


def call_of(name: str, entry: Any) -> RecordedCall:
    """Return a decoded entry as a call. FormatError, without a path, for what is none."""
    if not isinstance(entry, dict):
        raise _entry_error("no_entry", type=type(entry).__name__)
    call = parse_call_name(name)
    if call is not None and call.direction == "parameters_grad":
        return RecordedCall(name=name, call=call, parameters=_mapping(entry))
    inputs = entry.get("input_args", entry.get("input"))
    return RecordedCall(
        name=name,
        call=call,
        inputs=_items(inputs),
        kwargs=_mapping(entry.get("input_kwargs")),
        outputs=_items(entry.get("output")),
        parameters=_mapping(entry.get("parameters")),
        is_recomputed=entry.get("is_recompute") is True,
    )


def _entry_error(kind: str, **fields: Any) -> FormatError:
    return FormatError.within("io.msprobe.entry", reason=Message(f"row.io.msprobe.{kind}", **fields))


def _items(value: Any) -> tuple[Argument, ...]:
    if value is None:
        return ()
    return tuple(_argument(item) for item in value) if isinstance(value, list) else (_argument(value),)


def _mapping(value: Any) -> dict[str, Argument]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _entry_error("no_mapping", type=type(value).__name__)
    return _fields(value, 0)


def _argument(value: Any, depth: int = 0) -> Argument:
    """An argument as it was recorded: lists and mappings nest."""
    if depth > _MAX_DEPTH:
        raise _entry_error("nested")
    if isinstance(value, list):
        return tuple(_argument(item, depth + 1) for item in value)
    if not isinstance(value, dict):
        scalar: Argument = value
        return scalar
    kind = value.get("type")
    if not isinstance(kind, str):
        return _fields(value, depth)
    if isinstance(value.get("dtype"), str) and "shape" in value:
        return _tensor(kind, value, depth)
    if kind == "slice" and "value" in value:
        return _slice(value["value"])
    fields = {key: item for key, item in value.items() if key != "type"}
    if len(fields) == 1 and ("value" in fields or "format" in fields):
        (held,) = fields.values()
        if not isinstance(held, (list, dict)):
            return Literal(kind, held)
        if isinstance(held, list) and not any(isinstance(item, (list, dict)) for item in held):
            return Literal(kind, tuple(held))
    return DescribedArgument(kind, _fields(fields, depth))


def _fields(value: Mapping[str, Any], depth: int) -> dict[str, Argument]:
    return {key: _argument(item, depth + 1) for key, item in value.items()}


#: The members of a tensor, by the fields they become.
_FIGURES = {"maximum": "Max", "minimum": "Min", "mean": "Mean", "norm": "Norm"}
_USUAL = frozenset({"type", "dtype", "shape", "requires_grad", "md5", "data_name", *_FIGURES.values()})


#: What most tensors have beside the usual: one object for all.
_NOTHING: Mapping[str, Argument] = {}


def _tensor(kind: str, value: Mapping[str, Any], depth: int) -> RecordedTensor:
    shape = value["shape"]
    if not isinstance(shape, list) or not all(_is_extent(extent) for extent in shape):
        raise _entry_error("shape", text=shown(str(shape)))
    requires_grad = value.get("requires_grad")
    return RecordedTensor(
        type=kind,
        dtype=value["dtype"],
        shape=tuple(shape),
        requires_grad=requires_grad if isinstance(requires_grad, bool) else None,
        checksum=_text(value.get("md5")),
        data_name=_text(value.get("data_name")),
        more=_fields({key: item for key, item in value.items() if key not in _USUAL}, depth) or _NOTHING,
        **{name: _figure(value.get(key)) for name, key in _FIGURES.items()},
    )


def _is_extent(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _figure(value: Any) -> Number | None:
    """A figure of the statistics; some versions write those that are no numbers as text."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, str) and value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return float(value)
    return None


def _slice(value: Any) -> Argument:
    if isinstance(value, list) and len(value) == 3 and all(item is None or isinstance(item, int) for item in value):
        return SliceArgument(*value)
    raise _entry_error("slice", text=shown(str(value)))


def data_type_of(dtype: str) -> str:
    """Return our name of a data type that a framework spells `torch.bfloat16` or `BFloat16`; "" where there is none."""
    return TORCH_TYPES.get(dtype.removeprefix("torch.").removeprefix("mindspore.").lower(), "")


# --- stack.json and construct.json ------------------------------------------------------------------------------------


def read_stacks(path: str) -> CallStacks:
    """Return the source lines of the calls of a `stack.json`. FormatError for what is no JSON object.

    Members that are not as msprobe writes them are left out.
    """
    frames: dict[str, tuple[str, ...]] = {}
    with open_file(path) as file:
        window = _opened(file)
        problem = None
        try:
            for _, _, text in _members(window):
                names, lines = _stack(text)
                frames.update(dict.fromkeys(names, lines))
                if len(frames) > _MAX_COUNT:
                    raise window.damaged("too_many", count=len(frames))
        except _DamagedError as error:
            problem = _problem(error)
    return CallStacks(frames=frames, problem=problem)


def _stack(text: str) -> tuple[list[str], tuple[str, ...]]:
    """The calls that were made from some source lines, and the lines."""
    try:
        value = _decoded(text)
    except FormatError:
        return [], ()
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(part, list) for part in value):
        return [], ()
    names, lines = value
    return [name for name in names if isinstance(name, str)], tuple(line for line in lines if isinstance(line, str))


def read_construct(path: str) -> ModuleTree:
    """Return the modules in which the calls of a `construct.json` ran. FormatError for what is no JSON object."""
    parents: dict[str, str | None] = {}
    micro_steps: dict[str, int] = {}
    #: A module has many calls in it: its name is held once.
    held: dict[str, str] = {}
    with open_file(path) as file:
        window = _opened(file)
        problem = None
        try:
            for key, _, text in _members(window):
                name = held.setdefault(key, key)
                try:
                    parent = _decoded(text)
                except FormatError:
                    continue
                if isinstance(parent, list) and len(parent) == 2:
                    parent, step = parent
                    if isinstance(step, int):
                        micro_steps[name] = step
                if parent is None or isinstance(parent, str):
                    parents[name] = None if parent is None else held.setdefault(parent, parent)
        except _DamagedError as error:
            problem = _problem(error)
    return ModuleTree(parents=parents, micro_steps=micro_steps, problem=problem)
