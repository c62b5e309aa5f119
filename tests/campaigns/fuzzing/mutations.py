"""Mutations of bytes and of texts: bits, lengths, splices, nesting, numbers that lie.

All take their chances from a `random.Random`, so that an input is the same whenever it is made again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

#: Inputs never grow beyond this: what is tried is damage, not size.
MAX_BYTES = 1 << 18

Mutation = Callable[[Random, bytes], bytes]

#: Whole numbers at the borders of the types that formats store them in.
BORDERS = (
    0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 999, 1000, 1023, 1024, 4095, 4096, 32767, 32768,
    65535,
    65536, (1 << 24) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 48) + 1, (1 << 53) + 1,
    (1 << 62),
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -(1 << 31), -(1 << 63),
)  # fmt: skip
#: The same and others as texts spell them: too many digits, no digits of ASCII, no numbers.
NUMBERS = (
    *(str(number).encode() for number in BORDERS), b"1" * 25, b"9" * 400, b"9" * 4301, b"-" + b"9" * 5000, b"1e999",
    b"-1e999", b"1e-400", b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"0x10", b"0x" + b"f" * 40, b"1_000", b"+1",
    b"--1",
    b"01", b"1.", b".5", b"1.5", b"1e", "²".encode(), "٣".encode(), b"", b" ", b"0" * 300, b"true", b"None", b"1j",
)  # fmt: skip
#: What texts do not expect: control characters, no UTF-8, byte order marks, line ends of other systems.
ODD_TEXTS = (
    b"\0", b"\x1b[2J", b"\r", b"\r\n", b"\n\n", b"\t", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe",
    "\u2028".encode(), "\u202e".encode(), "\U0010ffff".encode(), b"\\", b'"', b"'", b"`", b"{", b"}", b"[", b"]", b"<",
    b">",
    b"(", b")", b",", b";", b":", b"=", b"#", b"//", b"/*", b"..", b"../..", b"/", b"%s", b"%n", b"{0}", b"$(id)",
    b"\\x",
    b"\\u", b"\\777", b"A" * 300, b"A" * 70000, b"\n" * 2000, b" " * 5000, b"a.b.c." * 50, b"__class__",
    b"__import__('os')",
)  # fmt: skip
_OPENING = (b"{", b"[", b"(", b"<", b"a {", b"a: {", b'{"a":', b'[{"a":', b'"', b"-", b"not ", b"+")
_DEPTHS = (2, 10, 33, 100, 101, 500, 1000, 5000, 20000)
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def _place(rng: Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def _run(rng: Random, data: bytes) -> tuple[int, int]:
    """A piece of the data, a short one as a rule."""
    start = _place(rng, data)
    longest = len(data) - start
    return start, start + min(longest, rng.choice((1, 1, 2, 4, 8, 16, 64, 256, longest)))


def flip_bit(rng: Random, data: bytes) -> bytes:
    """One bit."""
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]


def set_byte(rng: Random, data: bytes) -> bytes:
    """One byte."""
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))),)) + data[at + 1 :]


def cut(rng: Random, data: bytes) -> bytes:
    """Cut off anywhere, or the beginning missing."""
    at = _place(rng, data)
    return data[:at] if rng.random() < 0.8 else data[at:]


def drop(rng: Random, data: bytes) -> bytes:
    """A piece missing."""
    start, stop = _run(rng, data)
    return data[:start] + data[stop:]


def repeat(rng: Random, data: bytes) -> bytes:
    """A piece several times."""
    start, stop = _run(rng, data)
    times = rng.choice((2, 2, 3, 10, 300, 5000))
    times = max(1, min(times, MAX_BYTES // max(1, stop - start)))
    return data[:start] + data[start:stop] * times + data[stop:]


def move(rng: Random, data: bytes) -> bytes:
    """A piece somewhere else."""
    start, stop = _run(rng, data)
    rest = data[:start] + data[stop:]
    at = _place(rng, rest)
    return rest[:at] + data[start:stop] + rest[at:]


def noise(rng: Random, data: bytes) -> bytes:
    """A piece of random bytes, put in or written over."""
    at = _place(rng, data)
    piece = rng.randbytes(rng.choice((1, 2, 4, 8, 32, 300)))
    return data[:at] + piece + data[at + (len(piece) if rng.random() < 0.5 else 0) :]


def claim(rng: Random, data: bytes) -> bytes:
    """A stored number of 1, 2, 4 or 8 bytes that says something else: a length, a count, a place."""
    width = rng.choice((1, 2, 4, 8))
    if len(data) < width:
        return data
    at = rng.randrange(len(data) - width + 1)
    if rng.random() < 0.7:
        at -= at % min(width, 4)
    big = rng.random() < 0.1
    held = int.from_bytes(data[at : at + width], "big" if big else "little")
    value = rng.choice(
        (
            held + 1,
            held - 1,
            held * 2,
            held + 8,
            held ^ 1 << rng.randrange(8 * width),
            len(data),
            rng.randrange(len(data)),
        )
        + (rng.choice(BORDERS),) * 3
    )
    stored = (value & (1 << 8 * width) - 1).to_bytes(width, "big" if big else "little")
    return data[:at] + stored + data[at + width :]


def varint(value: int) -> bytes:
    """A number as protobuf writes it; negative ones as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_varint(rng: Random, data: bytes) -> bytes:
    """A number of protobuf over another byte, sometimes one that does not end."""
    if not data:
        return data
    at = rng.randrange(len(data))
    piece = varint(rng.choice(BORDERS)) if rng.random() < 0.8 else b"\xff" * rng.choice((5, 9, 10, 11, 40))
    return data[:at] + piece + data[at + 1 :]


def put_number(rng: Random, data: bytes) -> bytes:
    """A number in a text that is another one."""
    found = [match.span() for match in _NUMBER.finditer(data[: 1 << 14])]
    start, stop = rng.choice(found) if found else (0, 0)
    return data[:start] + rng.choice(NUMBERS) + data[stop:]


def put_odd_text(rng: Random, data: bytes) -> bytes:
    """A piece that texts do not expect."""
    start, stop = _run(rng, data)
    return data[:start] + rng.choice(ODD_TEXTS) + data[stop if rng.random() < 0.3 else start :]


def nest(rng: Random, data: bytes) -> bytes:
    """Opened again and again, and perhaps closed."""
    at = _place(rng, data)
    opening = rng.choice(_OPENING)
    depth = min(rng.choice(_DEPTHS), MAX_BYTES // len(opening) // 2)
    closing = opening.translate(bytes.maketrans(b"{[(<", b"}])>"))[::-1].strip(b':"a') if rng.random() < 0.5 else b""
    return data[:at] + opening * depth + closing * depth + data[at:]


def change_lines(rng: Random, data: bytes) -> bytes:
    """A line dropped, doubled, moved, emptied or joined to the next."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    elif kind == 3:
        lines[at] = b""
    elif at + 1 < len(lines):
        lines[at] += lines.pop(at + 1)
    return b"\n".join(lines)


def change_cell(rng: Random, data: bytes) -> bytes:
    """A cell of a CSV that is another number or text, missing, quoted or one too many."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    cells = lines[at].split(b",")
    column = rng.randrange(len(cells))
    kind = rng.randrange(5)
    if kind == 0:
        cells[column] = rng.choice(NUMBERS)
    elif kind == 1:
        cells[column] = rng.choice(ODD_TEXTS)
    elif kind == 2:
        del cells[column]
    elif kind == 3:
        cells.insert(column, cells[column])
    else:
        cells[column] = b'"' + cells[column] + rng.choice((b"", b'"', b'""'))
    lines[at] = b",".join(cells)
    return b"\n".join(lines)


BINARY: tuple[Mutation, ...] = (flip_bit, set_byte, cut, drop, repeat, move, noise, claim, claim, put_varint)
TEXT: tuple[Mutation, ...] = (
    flip_bit, set_byte, cut, drop, repeat, move, noise, put_number, put_number, put_odd_text, nest, change_lines,
)  # fmt: skip
CSV: tuple[Mutation, ...] = (*TEXT, change_cell, change_cell, change_cell, change_cell)
#: Single false claims in data that stays as it is otherwise.
CLAIMS: tuple[Mutation, ...] = (claim,)


def splice(rng: Random, data: bytes, other: bytes) -> bytes:
    """The beginning of one and the end of another."""
    return data[: _place(rng, data)] + other[_place(rng, other) :]


def mutated(rng: Random, data: bytes, mutations: Sequence[Mutation], others: Sequence[bytes]) -> bytes:
    """The data after one to five mutations."""
    if others and rng.random() < 0.05:
        data = splice(rng, data, rng.choice(others))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        data = rng.choice(mutations)(rng, data)
    return data[:MAX_BYTES]
