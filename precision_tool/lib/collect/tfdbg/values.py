"""The values of a tensor file as the pieces of a `.npy` file: bytes of the source to copy, or decoded bytes.

TensorFlow writes tensors as `tensor_content`, which is what `.npy` files hold. The other encodings of TensorProto are
decoded in blocks; where there are fewer values than elements the last one stands for the rest.
This module runs on Python 3.7, with any numpy that TensorFlow brings.
"""

import os
from typing import TYPE_CHECKING, Any, Iterator, Tuple, Union

from precision_tool.lib.collect.tfdbg.event import Span, TensorEvent, damaged, unreadable
from precision_tool.lib.collect.wire import FIXED32, VARINT
from precision_tool.lib.errors import FormatError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_BLOCK = 1 << 18
_ALIGNMENT = 64

Piece = Union[bytes, Span]


def npy_header(descr: str, shape: Tuple[int, ...]) -> bytes:
    """The head of a `.npy` file of version 1.0 (NEP 1), spelled as numpy does."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    start = 10
    padding = _ALIGNMENT - (start + len(text) + 1) % _ALIGNMENT
    text += b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def npy_size(event: TensorEvent) -> int:
    """Bytes of the `.npy` file."""
    return len(npy_header(event.type.descr, event.shape)) + event.nbytes


def npy_pieces(event: TensorEvent, fd: int) -> Iterator[Piece]:
    """The `.npy` file of a tensor: spans are bytes of the source `fd` as they are."""
    yield npy_header(event.type.descr, event.shape)
    if event.plain is not None:
        yield event.plain
    else:
        yield from _decoded(event, fd)


def _decoded(event: TensorEvent, fd: int) -> Iterator[Piece]:
    kind = event.type.kind
    done, last, item_size = 0, b"", event.type.item_size
    for span in event.spans:
        for block in _varints(event, fd, span) if kind == VARINT else _fixed(event, fd, span):
            done += len(block)
            if done > event.nbytes:
                raise damaged(event.path, span.start, f"more values than the {event.count} elements of its shape")
            last = (last + block[-item_size:])[-item_size:]
            yield block
    missing, rest = divmod(event.nbytes - done, item_size)
    if rest or len(last) < item_size:
        raise damaged(event.path, event.spans[0].start, "the values are not whole")
    repeated = last * min(missing, max(1, _BLOCK // item_size))
    for start in range(0, missing * item_size, max(1, len(repeated))):
        yield repeated[: missing * item_size - start]


def _fixed(event: TensorEvent, fd: int, span: Span) -> Iterator[bytes]:
    """The values of a span of 4 or 8 bytes each, without the tags between them."""
    value_size = 4 if event.type.kind == FIXED32 else 8
    size = span.tag_size + value_size
    if (span.stop - span.start) % size:
        raise damaged(event.path, span.start, "the values are not whole")
    for start in range(span.start, span.stop, _BLOCK // size * size):
        raw = read_at(event.path, fd, start, min(_BLOCK // size * size, span.stop - start))
        if not span.tag_size:
            yield raw
            continue
        import numpy as np

        yield np.frombuffer(raw, np.uint8).reshape(-1, size)[:, span.tag_size :].tobytes()


def _varints(event: TensorEvent, fd: int, span: Span) -> Iterator[bytes]:
    """The values of a span of numbers of any length, as items of the tensor's type."""
    import numpy as np

    unsigned = np.dtype(f"<u{event.type.item_size}")
    rest = b""
    count = 0
    for start in range(span.start, span.stop, _BLOCK):
        raw = rest + read_at(event.path, fd, start, min(_BLOCK, span.stop - start))
        codes: npt.NDArray[np.uint8] = np.frombuffer(raw, np.uint8)
        (ends,) = np.nonzero(codes < 0x80)
        used = int(ends[-1]) + 1 if ends.size else 0
        rest = raw[used:]
        if len(rest) > 9:
            raise damaged(event.path, start, "a number is longer than ten bytes")
        values = _decode_varints(event, start, codes[:used], ends)
        if span.tag_size:  # each behind its tag, which is a number too
            first = (count + 1) % 2
            count += len(values)
            values = values[first::2]
        yield (values != 0).tobytes() if event.type.name == "bool" else values.astype(unsigned).tobytes()
    if rest:
        raise damaged(event.path, span.stop, "a number runs past the end of its message")


def _decode_varints(event: TensorEvent, start: int, codes: "npt.NDArray[np.uint8]", ends: Any) -> Any:
    import numpy as np

    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max()) if lengths.size else 0
    if longest > 10:
        raise damaged(event.path, start, "a number is longer than ten bytes")
    values = np.zeros(len(ends), np.uint64)
    for place in range(longest):
        longer = np.nonzero(lengths > place)[0]
        digits = (codes[starts[longer] + place] & 0x7F).astype(np.uint64)
        values[longer] |= digits << np.uint64(7 * place)
    return values


def read_at(path: str, fd: int, start: int, count: int) -> bytes:
    """Exactly `count` bytes of a source file."""
    parts = []
    while count:
        try:
            part = os.pread(fd, count, start)
        except OSError as error:
            raise unreadable(path, error) from error
        if not part:
            raise FormatError.of(path, f"ends at byte {start} while it is read", "copy the file again", offset=start)
        parts.append(part)
        start, count = start + len(part), count - len(part)
    return b"".join(parts)
