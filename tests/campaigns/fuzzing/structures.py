"""Mutations that know a structure: JSON documents, protobuf messages, headers of `.npy` files.

What they make is well formed up to the one thing that is wrong, so it gets past the first checks of a reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fuzzing.mutations import BORDERS, MAX_BYTES, NUMBERS, varint

# ---- JSON

_RAW = "@RAW@"
#: What is put where another value stands; as text, since some of it no document can hold.
_VALUES = (
    "[]", "{}", "null", "true", "false", '""', "0", "-0", "0.0", "-1", "1.5", "1e400", "-1e400", "NaN", "Infinity",
    "[[]]",
    "[{}]", "[null]", '[""]', '{"":""}', '{"a":1,"a":2}', "9" * 30, "9" * 5000, "-9223372036854775809",
    "18446744073709551616",
    '"\\u0000"', '"\\ud800"', '"\\u001b[2J"', '"²"', '"../../x"', '"/"', '"."', '"a\\u0000b"', '"' + "A" * 300 + '"',
    '"' + "B" * 70000 + '"', "[" * 200 + "]" * 200, "[" * 20000 + "]" * 20000, '{"a":' * 1500 + "1" + "}" * 1500,
    '"nan"',
    '"inf"', '"1"', '"-1"', '"' + "9" * 5000 + '"', '"true"', "[1,2,3]", '["a","b"]', '[["a"],["b"]]',
    "[" + "1," * 3000 + "1]",
)  # fmt: skip


def _rebuilt(rng: Random, node: Any, change: Callable[[Any], Any]) -> Any:
    """The document with one node of it changed, found by going down at random."""
    if isinstance(node, dict) and node and rng.random() < 0.85:
        key = rng.choice(list(node))
        return {**node, key: _rebuilt(rng, node[key], change)}
    if isinstance(node, list) and node and rng.random() < 0.85:
        at = rng.randrange(len(node))
        return [*node[:at], _rebuilt(rng, node[at], change), *node[at + 1 :]]
    return change(node)


def mutated_json(rng: Random, document: Any, others: list[Any]) -> bytes:
    """The document as text with one to three values that are something else, are missing, or have another name."""
    raw: list[str] = []

    def change(node: Any) -> Any:
        kind = rng.randrange(10)
        if kind < 5:
            raw.append(rng.choice(_VALUES))
            return f"{_RAW}{len(raw) - 1}"
        if kind == 5 and isinstance(node, dict) and node:
            left = dict(node)
            del left[rng.choice(list(node))]
            return left
        if kind == 6 and isinstance(node, dict) and node:
            old, new = rng.choice(list(node)), rng.choice(("", "²", "name", "key", "value", "a" * 300, "\0", "\x1b[1m"))
            return {new if key == old else key: value for key, value in node.items()}
        if kind == 7 and isinstance(node, list):
            return node * rng.choice((0, 2, 50))
        if kind == 8:
            return rng.choice(([node], {"value": node}, str(node), [node, node]))
        return rng.choice(others)

    for _ in range(rng.choice((1, 1, 2, 3))):
        document = _rebuilt(rng, document, change)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
    for number, value in enumerate(raw):
        text = text.replace(f'"{_RAW}{number}"', value)
    return text.encode("utf-8", "surrogatepass")[:MAX_BYTES]


# ---- protobuf

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A field of a message: its number, its wire type, and the number, the bytes or the fields it holds."""

    number: int
    kind: int
    value: int | bytes | tuple[Entry, ...]


Message = tuple[Entry, ...]


def parsed(data: bytes, depth: int = 0) -> Message | None:
    """The fields of a message; None if the bytes are none. What can be read as a message is taken for one."""
    entries = []
    at = 0
    while at < len(data):
        tag, at = _number_at(data, at)
        number, kind = tag >> 3, tag & 7
        if at < 0 or not 0 < number < 1 << 29 or kind not in (VARINT, FIXED64, LENGTH, FIXED32):
            return None
        size = {FIXED64: 8, FIXED32: 4}.get(kind, 0)
        value: int | bytes | Message
        if kind in (VARINT, LENGTH):
            value, at = _number_at(data, at)
            size = value if kind == LENGTH else 0
        if at < 0 or at + size > len(data):
            return None
        if kind != VARINT:
            value = data[at : at + size]
            inner = parsed(value, depth + 1) if kind == LENGTH and size > 1 and depth < 12 else None
            value = value if inner is None else inner
        at += size
        entries.append(Entry(number, kind, value))
    return tuple(entries)


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, -1


def encoded(message: Message) -> bytes:
    """The bytes of a message."""
    parts = []
    for entry in message:
        parts.append(varint(entry.number << 3 | entry.kind))
        value = encoded(entry.value) if isinstance(entry.value, tuple) else entry.value
        if isinstance(value, int):
            parts.append(varint(value))
            continue
        if entry.kind == LENGTH:
            parts.append(varint(len(value)))
        parts.append(value)
    return b"".join(parts)


def mutated_message(rng: Random, message: Message, others: list[Entry]) -> Message:
    """The message with one field of it, at any depth, that says something else."""
    if not message:
        return (rng.choice(others),)
    at = rng.randrange(len(message))
    entry = message[at]
    if isinstance(entry.value, tuple) and rng.random() < 0.8:
        return (
            *message[:at],
            Entry(entry.number, entry.kind, mutated_message(rng, entry.value, others)),
            *message[at + 1 :],
        )
    return (*message[:at], *_changed(rng, entry, others), *message[at + 1 :])


def _changed(rng: Random, entry: Entry, others: list[Entry]) -> tuple[Entry, ...]:
    kind = rng.randrange(9)
    value = encoded(entry.value) if isinstance(entry.value, tuple) else entry.value
    if kind == 0:
        return ()
    if kind == 1:
        return (entry,) * rng.choice((2, 3, 100, 2000))
    if kind == 2:
        return (Entry(rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 99, (1 << 29) - 1)), entry.kind, entry.value),)
    if kind == 3:
        return (Entry(entry.number, VARINT, rng.choice(BORDERS)),)
    if kind == 4:
        return (
            Entry(entry.number, LENGTH, rng.choice((b"", b"\0", b"\xff" * 9, b"\xff" * 20, b"\x1b[2J", b"A" * 5000))),
        )
    if kind == 5:
        return (entry, rng.choice(others))
    if kind == 6:
        return (
            Entry(
                entry.number, *rng.choice(((FIXED64, b"\xff" * 8), (FIXED32, b"\0\0\x80\x7f"), (FIXED64, b"\0" * 8)))
            ),
        )
    if kind == 7:
        return _nested(rng, entry)
    if isinstance(value, int):
        return (Entry(entry.number, VARINT, value + rng.choice((-1, 1, 2, 100, 1 << 20, 1 << 40))),)
    # A length that is not that of the content: encoded as content of its own, as nothing else holds a wrong one.
    tag = varint(entry.number << 3 | LENGTH)
    lie = varint(rng.choice((*BORDERS, len(value) + 1, max(0, len(value) - 1))))
    return (Entry(1, LENGTH, tag + lie + value), entry)


def _nested(rng: Random, entry: Entry) -> tuple[Entry]:
    """The field in itself, many times."""
    content = encoded((entry,))
    for _ in range(rng.choice((1, 2, 50, 101, 1500))):
        content = varint(entry.number << 3 | LENGTH) + varint(len(content)) + content
        if len(content) > MAX_BYTES // 2:
            break
    return (Entry(entry.number, LENGTH, content),)


@dataclass(frozen=True)
class MessageSeed:
    """A message, and the file that is made around it."""

    message: Message
    wrap: Callable[[bytes], bytes] = bytes
    entries: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", list(_all_entries(self.message)))

    def mutated(self, rng: Random) -> bytes:
        """A file with a message that is not as it should be."""
        message = self.message
        for _ in range(rng.choice((1, 1, 2, 3))):
            message = mutated_message(rng, message, self.entries)
        return self.wrap(encoded(message)[:MAX_BYTES])


def _all_entries(message: Message) -> list[Entry]:
    found = []
    for entry in message:
        found.append(entry)
        if isinstance(entry.value, tuple):
            found += _all_entries(entry.value)
    return found


# ---- headers of .npy files

_DESCRIPTIONS = (
    "'<f4'", "'>f8'", "'|u1'", "'<f2'", "'<i8'", "'>u2'", "'|b1'", "'<c8'", "'<V2'", "'|V1000000000'", "'|O'", "'<U3'",
    "'|S5'",
    "'<M8[ns]'", "'<m8'", "[('a', '<f4')]", "('<f4', (2,))", "'<f4,<f4'", "'f99'", "''", "None", "[]", "4",
    "'float32'", "'=f4'",
    "'<f16'", "'O8'", "'|V0'", "'<U2147483647'", "{'names': ['a'], 'formats': ['<f4']}", "'" + "<f4," * 2000 + "<f4'",
    "'\\x00'",
)  # fmt: skip
_SHAPES = (
    "()", "(0,)", "(1,)", "(3,)", "(2, 3)", "(3, 2)", "(0, 5)", "(-1,)", "(-2, -3)", "(1000000000000,)",
    "(9223372036854775807, 2)",
    "(9223372036854775808,)", "(18446744073709551616,)", "(4294967296, 4294967296)", "(2.0,)", "(True,)", "('3',)",
    "[2, 3]", "3",
    "(2, 3", "(((2,),),)", "(1,) * 5", "(2L, 3L)", "None", "(" + "1, " * 40 + ")", "(" + "1, " * 3000 + ")", "(0x3,)",
    "(1e3,)",
    "(" + "9" * 5000 + ",)", "(0, 99999999999999999999)", "(1j,)", "({},)", "(" * 90 + ")" * 90, "(3_0,)", "(~1,)",
)  # fmt: skip
_ORDERS = ("True", "False", "1", "0", "None", "'no'", "[]", "true")


def npy_file(rng: Random, data: bytes) -> bytes:
    """A `.npy` file whose header says anything about the data."""
    names = ["descr", "fortran_order", "shape"]
    values = {"descr": rng.choice(_DESCRIPTIONS), "fortran_order": rng.choice(_ORDERS), "shape": rng.choice(_SHAPES)}
    if rng.random() < 0.6:
        values["descr"] = rng.choice(_DESCRIPTIONS[:9])
    if rng.random() < 0.6:
        values["fortran_order"] = rng.choice(_ORDERS[:2])
    if rng.random() < 0.1:
        names.append(rng.choice(("more", "shape", "")))
        values.setdefault(names[-1], rng.choice(NUMBERS).decode())
    if rng.random() < 0.1:
        names.remove(rng.choice(names))
    rng.shuffle(names)
    text = "{" + "".join(f"'{name}': {values[name]}, " for name in names) + "}"
    header = text.encode() + b" " * rng.choice((0, 3, 60)) + rng.choice((b"\n", b"\n", b"", b"\0"))
    version = rng.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\0\0", b"\xff\xff"))
    width = 2 if version == b"\1\0" else 4
    length = rng.choice((len(header),) * 8 + (0, 1, len(header) - 1, len(header) + 1, 65535, (1 << 8 * width) - 1))
    return b"\x93NUMPY" + version + length.to_bytes(4, "little")[:width] + header + data
