"""`.safetensors` files: many named tensors, whose bytes lie behind a header of JSON that says where.

Eight bytes with the length of the header (little-endian), the header, the data: name → `dtype`, `shape`, `data_offsets`
(begin and end, counted from the end of the header), and `__metadata__`. The data lie without gaps and overlaps.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Any

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import may_change_unseen, open_file, signature_of
from precision_tool.lib.io.stores import Signature, StoredFile
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.tensor import OpDump, Tensor

SUFFIX = ".safetensors"
_LENGTH = 8
#: Bytes of the longest header that is read: a tensor takes about 150.
_MAX_HEADER = 8 << 20
_METADATA = "__metadata__"
_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0",
}  # fmt: skip
#: The last files of which tensors were asked for by name.
_KEPT = 4


def looks_like_safetensors(head: bytes) -> bool:
    """Return whether a file that starts like this has the length of a header and its first brace."""
    return head[4 : _LENGTH + 1] == b"\0\0\0\0{"


def read_safetensors_file(file: StoredFile) -> OpDump:
    """Return the tensors of an open file as the outputs of an op, in the order of its header.

    Parameters
    ----------
    file : StoredFile
        The file; only its header is read.

    Returns
    -------
    OpDump
        `dataset` of a tensor is its name. What has a type that is not read, or lies past the end of a file that was
        cut off, is in `bad_slots`.

    Raises
    ------
    FormatError
        The header is damaged, or what it says does not fit: a size, a gap, an overlap.
    """
    tensors = [*_tensors(file).values()]
    return OpDump(
        path=file.path,
        outputs=tuple(tensor if isinstance(tensor, Tensor) else None for tensor in tensors),
        bad_slots=tuple(
            (f"output:{number}", tensor) for number, tensor in enumerate(tensors) if isinstance(tensor, Message)
        ),
    )


def read_safetensor(path: str, name: str) -> Tensor:
    """Return the tensor of a name, undecoded; FormatError where the file has none, or is damaged."""
    signature = signature_of(path)
    may_change = signature is None or may_change_unseen(*signature[1:3])
    return _named(path, name, _by_name(path) if may_change else _kept(path, signature))


@lru_cache(maxsize=_KEPT)
def _kept(path: str, signature: Signature | None) -> dict[str, Tensor | Message]:
    return _by_name(path)


def _by_name(path: str) -> dict[str, Tensor | Message]:
    with open_file(path) as file:
        return _tensors(file)


def _tensors(file: StoredFile) -> dict[str, Tensor | Message]:
    """The tensors by their names, or why they cannot be read."""
    entries, start = _header(file)
    tensors: dict[str, Tensor | Message] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in entries.items():
        if name == _METADATA:
            continue
        dtype, shape, begin, end = _described(file.path, name, entry)
        spans.append((begin, end))
        if dtype not in _TYPES:
            tensors[name] = Message("row.io.safetensors.type", name=shown(name), dtype=shown(dtype))
        elif start + end > file.size:
            kind = "row.io.safetensors.cut_off"
            tensors[name] = Message(kind, name=shown(name), end=start + end, size=file.size)
        else:
            tensors[name] = Tensor(
                path=file.path, offset=start + begin, nbytes=end - begin, dtype=_TYPES[dtype], shape=shape,
                origin_shape=shape, dataset=name,
            )  # fmt: skip
    _check_spans(file, start, spans)
    return tensors


def _named(path: str, name: str, tensors: dict[str, Tensor | Message]) -> Tensor:
    found = tensors.get(name)
    if found is None:
        raise FormatError.of(path, "io.safetensors.no_name", name=shown(name), count=len(tensors))
    if isinstance(found, Message):
        raise FormatError.of(path, "io.safetensors.tensor", reason=found)
    return found


# --- the header -------------------------------------------------------------------------------------------------------


def _damaged(path: str, offset: int, kind: str, **fields: Any) -> FormatError:
    reason = Message(f"row.io.safetensors.{kind}", **fields)
    return FormatError.of(path, "io.safetensors.header", offset=offset, reason=reason)


def _header(file: StoredFile) -> tuple[dict[str, Any], int]:
    """The entries by name, and where the data begin."""
    if file.size == 0:
        raise FormatError.of(file.path, "io.empty")
    length = int.from_bytes(file.read_at(0, min(_LENGTH, file.size)), "little")
    if length > _MAX_HEADER or _LENGTH + length > file.size:
        raise _damaged(file.path, 0, "length", length=length, size=max(file.size - _LENGTH, 0))
    data = file.read_at(_LENGTH, length)
    try:
        entries = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except _TwiceError as error:
        raise _damaged(file.path, _LENGTH, "twice", name=shown(error.args[0])) from None
    except json.JSONDecodeError as error:
        at = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        raise _damaged(file.path, _LENGTH + at, "not_json", error=shown(error.msg)) from error
    except (ValueError, RecursionError, MemoryError) as error:  # no UTF-8, a number of too many digits, nested too deep
        raise _damaged(file.path, _LENGTH, "not_json", error=shown(str(error))) from error
    if not isinstance(entries, dict):
        raise _damaged(file.path, _LENGTH, "no_object")
    return entries, _LENGTH + length


class _TwiceError(Exception):
    """A member of an object is there twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise _TwiceError(name)
        members[name] = value
    return members


def _no_number(text: str) -> None:
    """NaN and Infinity, which are no JSON."""
    raise ValueError(text)


def _described(path: str, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, begin and end of an entry. FormatError for what is no entry."""
    members = entry if isinstance(entry, dict) else {}
    dtype = members.get("dtype")
    shape, offsets = _sizes(members.get("shape")), _sizes(members.get("data_offsets"))
    is_text = not any("\ud800" <= char <= "\udfff" for char in name)
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2 or not is_text:
        raise _damaged(path, _LENGTH, "entry", name=shown(name))
    begin, end = offsets
    if begin > end:
        raise _damaged(path, _LENGTH, "entry", name=shown(name))
    if len(shape) > data_types.MAX_RANK:
        raise _damaged(path, _LENGTH, "axes", name=shown(name), count=len(shape))
    data_types.refuse_impossible(shape, path)
    if dtype in _TYPES:
        needed = data_types.BY_NAME[_TYPES[dtype]].byte_size(prod(shape))
        if needed != end - begin:
            raise FormatError.of(
                path, "io.safetensors.claims", offset=_LENGTH, name=shown(name), shape=shape, dtype=dtype,
                needed=needed, stored=end - begin,
            )  # fmt: skip
    return dtype, shape, begin, end


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(map(_is_size, value)):
        return None
    return tuple(value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _check_spans(file: StoredFile, start: int, spans: list[tuple[int, int]]) -> None:
    """FormatError where the tensors overlap, or do not fill what is behind the header."""
    place = 0
    for begin, end in sorted(spans):
        if begin != place:
            raise _damaged(file.path, start + begin, "gap" if begin > place else "overlap")
        place = end
    if start + place < file.size:
        raise _damaged(file.path, start + place, "gap")
