"""`.pt` files of one tensor, as `torch.save` writes them: read without torch, and without unpickling anything.

Such a file is a zip archive whose entries are stored uncompressed: `data.pkl` describes the tensor, `data/KEY` is its
storage, `byteorder` says how its elements lie. The archive's directory is read here and not by `zipfile`, which makes
an object of every entry that a directory claims. The pickle is walked opcode by opcode; what is not in the lists of
opcodes and globals below is refused. Names in the archive are keys of a dictionary and never paths.
"""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from precision_tool.lib.io import data_types
from precision_tool.lib.io.files import open_file
from precision_tool.lib.io.layouts import strided_plan
from precision_tool.lib.io.stores import StoredFile
from precision_tool.lib.io.tensor_bytes import MAX_GATHERED
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown
from precision_tool.lib.model.tensor import Access, Tensor

MAGIC = b"PK\x03\x04"
SUFFIX = ".pt"

#: Entries of the archive and bytes of its directory and pickle, at most: torch writes seven entries for a tensor, and
#: 206 bytes for a parameter.
_MAX_ENTRIES, _MAX_DIRECTORY, _MAX_PICKLE = 64, 1 << 16, 1 << 16
#: Bytes at the end of a file that are read at once; they hold the directory of every file that torch writes.
_TAIL = 4096
_END, _END_64, _LOCATOR_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_DIRECTORY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_ENCRYPTED = 1
#: The extra field with sizes of 64 bits, and what stands in their place.
_EXTRA_64, _IN_EXTRA = 1, 0xFFFFFFFF

#: Storages and data types of torch by the names that pickles have for them.
_STORAGES = {
    "torch FloatStorage": "float32", "torch DoubleStorage": "float64", "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16", "torch ByteStorage": "uint8", "torch CharStorage": "int8",
    "torch ShortStorage": "int16", "torch IntStorage": "int32", "torch LongStorage": "int64",
    "torch BoolStorage": "bool", "torch ComplexFloatStorage": "complex64", "torch ComplexDoubleStorage": "complex128",
    "torch.storage UntypedStorage": "",
}  # fmt: skip
_SAME_NAMES = (
    "float64", "float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "uint64", "bool", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
#: Our names of torch's data types.
TORCH_TYPES = {name: name for name in _SAME_NAMES} | {
    "float": "float32", "double": "float64", "half": "float16", "short": "int16", "int": "int32", "long": "int64",
    "chalf": "complex32", "cfloat": "complex64", "cdouble": "complex128", "float8_e8m0fnu": "float8_e8m0",
}  # fmt: skip

_TENSOR, _TENSOR_3 = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"
_PARAMETER, _ORDERED_DICT = "torch._utils _rebuild_parameter", "collections OrderedDict"
#: What torch_npu saves of a tensor on the NPU: a copy on the CPU, in plain order, and the format that it had there.
_NPU_TENSOR, _NPU_FORMAT = "torch_npu.utils.storage _rebuild_npu_tensor", "torch_npu.npu._format Format"
_GLOBALS = frozenset(
    {_TENSOR, _TENSOR_3, _PARAMETER, _ORDERED_DICT, _NPU_TENSOR, _NPU_FORMAT, *_STORAGES}
    | {f"torch {name}" for name in TORCH_TYPES}
)


def read_torch(path: str) -> Tensor:
    """Return the tensor of a `.pt` file, undecoded; FormatError for what holds something else or is damaged."""
    with open_file(path) as file:
        return read_torch_file(file)


def read_torch_file(file: StoredFile) -> Tensor:
    """Return the same of a file that is open.

    Parameters
    ----------
    file : StoredFile
        A file as `torch.save` writes it since torch 1.6, with a tensor or a parameter in it.

    Returns
    -------
    Tensor
        Its bytes stay in the file. A view has the plan of its axes, or, where it has gaps or overlaps, is gathered.

    Raises
    ------
    FormatError
        The archive is damaged or cut off, holds something else than a tensor, or claims more than the file has.
    """
    if file.size == 0:
        raise FormatError.of(file.path, "io.empty")
    archive = _Archive(file)
    offset, size = archive.data_of("data.pkl")
    if size > _MAX_PICKLE:
        raise archive.damaged(offset, Message("row.io.torch.long_pickle", size=size))
    data = file.read_at(offset, size)
    try:
        pickled = _described_by(data)
    except FormatError:
        pickled = _Pickle(file.path, data, offset).tensor()  # whose error has the path and the place
    return archive.tensor(pickled)


@lru_cache(maxsize=4096)
def _described_by(data: bytes) -> _Pickled:
    """The tensor of a pickle. Those of a network are few: tensors of one shape and type have the same."""
    return _Pickle("", data, 0).tensor()


# --- the archive ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the archive: where its header begins, and the bytes of its data."""

    header: int
    size: int
    name: bytes


class _Archive:
    """A zip archive of few entries, all of them stored uncompressed."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._tail_start = max(file.size - _TAIL, 0)
        self._tail = file.read_at(self._tail_start, file.size - self._tail_start)
        count, size, start = self._end()
        if count > _MAX_ENTRIES or size > _MAX_DIRECTORY:
            raise self.damaged(start, Message("row.io.torch.directory", count=count, size=size))
        if start + size > file.size:
            raise self.damaged(start, Message("row.io.torch.cut_off", size=file.size))
        #: Where the directory begins; the data of entries lie before it.
        self._start = start
        self._entries = self._directory(self._read(start, size), count)
        pickles = [name for name in self._entries if name.endswith(b"/data.pkl")]
        if len(pickles) != 1:
            raise self.damaged(start, Message("row.io.torch.no_pickle", count=len(pickles)))
        self._folder = pickles[0].removesuffix(b"data.pkl")

    def damaged(self, offset: int, reason: Message) -> FormatError:
        """The error for a place in the archive."""
        return FormatError.of(self._file.path, "io.torch.archive", offset=offset, reason=reason)

    def _read(self, offset: int, size: int) -> bytes:
        """Bytes of the file, whose end was read already; FormatError where they are not there."""
        if offset + size > self._file.size:
            raise self.damaged(offset, Message("row.io.torch.cut_off", size=self._file.size))
        if offset >= self._tail_start:
            return self._tail[offset - self._tail_start :][:size]
        return self._file.read_at(offset, size)

    def _end(self) -> tuple[int, int, int]:
        """The number of entries, and the bytes of the directory and where they begin, as the file's end says."""
        place = len(self._tail) - _END.size
        if place < 0 or not self._tail.startswith(b"PK\5\6", place):
            kind = "io.torch.cut_off" if self._read(0, min(4, self._file.size)) == MAGIC else "io.torch.no_archive"
            raise FormatError.of(self._file.path, kind, offset=self._file.size)
        _, _, _, _, count, size, start, _ = _END.unpack_from(self._tail, place)
        locator = place - _LOCATOR_64.size
        if locator >= 0 and self._tail.startswith(b"PK\6\7", locator):
            where = _LOCATOR_64.unpack_from(self._tail, locator)[2]
            end = self._read(where, _END_64.size)
            if not end.startswith(b"PK\6\6"):
                raise self.damaged(where, Message("row.io.torch.signature"))
            count, size, start = _END_64.unpack(end)[-3:]
        return count, size, start

    def _directory(self, data: bytes, count: int) -> dict[bytes, _Entry]:
        entries: dict[bytes, _Entry] = {}
        place = 0
        for _ in range(count):
            where = self._start + place
            if place + _DIRECTORY.size > len(data) or not data.startswith(b"PK\1\2", place):
                raise self.damaged(where, Message("row.io.torch.signature"))
            fields = _DIRECTORY.unpack_from(data, place)
            flags, method, packed, size, name_size, extra_size, comment_size = *fields[3:5], *fields[8:13]
            header = fields[16]
            place += _DIRECTORY.size
            name, extra = data[place : place + name_size], data[place + name_size :][:extra_size]
            place += name_size + extra_size + comment_size
            packed, size, header = self._wide(extra, [size, packed, header], where)
            if method or flags & _ENCRYPTED or packed != size:
                raise self.damaged(where, Message("row.io.torch.compressed", name=_shown_bytes(name)))
            if name in entries:
                raise self.damaged(where, Message("row.io.torch.twice", name=_shown_bytes(name)))
            entries[name] = _Entry(header, size, name)
        return entries

    def _wide(self, extra: bytes, numbers: list[int], where: int) -> tuple[int, int, int]:
        """Packed size, size and place of the header, of which those that do not fit 32 bits lie in the extra field."""
        wide = b""
        while len(extra) >= 4:
            number, size = struct.unpack_from("<2H", extra)
            if number == _EXTRA_64:
                wide = extra[4 : 4 + size]
                break
            extra = extra[4 + size :]
        for position, number in enumerate(numbers):
            if number == _IN_EXTRA:
                if len(wide) < 8:
                    raise self.damaged(where, Message("row.io.torch.no_size"))
                numbers[position], wide = int.from_bytes(wide[:8], "little"), wide[8:]
        size, packed, header = numbers
        return packed, size, header

    def has(self, name: str) -> bool:
        """Whether there is an entry of this name."""
        return self._folder + name.encode() in self._entries

    def data_of(self, name: str) -> tuple[int, int]:
        """Where the data of an entry begin, and their bytes, all of which are in the file."""
        entry = self._entries.get(self._folder + name.encode("utf-8", "surrogateescape"))
        if entry is None:
            raise self.damaged(self._start, Message("row.io.torch.no_entry", name=shown(name)))
        head = self._read(entry.header, _LOCAL.size)
        if not head.startswith(MAGIC):
            raise self.damaged(entry.header, Message("row.io.torch.signature"))
        fields = _LOCAL.unpack(head)
        name_size, extra_size = fields[9:11]
        if fields[3] or self._read(entry.header + _LOCAL.size, name_size) != entry.name:
            raise self.damaged(entry.header, Message("row.io.torch.other_header", name=_shown_bytes(entry.name)))
        start = entry.header + _LOCAL.size + name_size + extra_size
        if start + entry.size > self._start:
            raise self.damaged(entry.header, Message("row.io.torch.claims", size=entry.size, name=shown(name)))
        return start, entry.size

    def tensor(self, pickled: _Pickled) -> Tensor:
        """The tensor that a pickle describes, with the bytes of this archive."""
        offset, stored = self.data_of(f"data/{pickled.storage.key}")
        dtype, shape, strides = pickled.dtype, pickled.shape, pickled.strides
        is_big_endian = False
        if self.has("byteorder"):
            place, size = self.data_of("byteorder")
            order = self._read(place, min(size, 8))
            is_big_endian = order == b"big"
            # The decoder of bfloat16 knows one order.
            is_decoded = not is_big_endian or data_types.BY_NAME[dtype].decode != "bfloat16"
            if order not in (b"little", b"big") or not is_decoded:
                raise self.damaged(place, Message("row.io.torch.byte_order", text=_shown_bytes(order)))
        itemsize = data_types.BY_NAME[dtype].byte_size(1)
        data_types.refuse_impossible(shape, self._file.path)
        claimed = pickled.storage.count * (itemsize if pickled.storage.dtype else 1)
        reach = 0
        if 0 not in shape:
            reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        needed = (pickled.offset + reach) * itemsize
        if needed > claimed or claimed > stored:
            raise FormatError.of(
                self._file.path,
                "io.torch.claims",
                offset=offset,
                shape=shape,
                dtype=dtype,
                needed=max(needed, claimed),
                stored=stored,
            )
        tensor = Tensor(
            path=self._file.path,
            offset=offset + pickled.offset * itemsize,
            nbytes=prod(shape) * itemsize,
            dtype=dtype,
            shape=shape,
            origin_shape=shape,
            big_endian=is_big_endian,
        )
        return _strided(tensor, strides, reach * itemsize) if tensor.size else tensor


def _shown_bytes(name: bytes) -> str:
    return shown(name.decode("utf-8", "backslashreplace"))


def _strided(tensor: Tensor, strides: tuple[int, ...], reach: int) -> Tensor:
    """The tensor whose elements have these strides; they reach over so many bytes."""
    shape = tensor.shape
    plan = strided_plan(shape, strides)
    if plan is not None:
        return tensor if plan.is_flat else replace(tensor, plan=plan)
    nbytes = max(reach, tensor.nbytes)
    if nbytes > MAX_GATHERED:
        raise FormatError.of(tensor.path, "io.torch.strides", strides=str(list(strides)), nbytes=nbytes)
    return replace(tensor, access=Access.GATHER, strides=strides)


# --- the pickle -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """A storage; `count` is in elements of `dtype`, in bytes where that is empty."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class _Pickled:
    """A tensor as its pickle describes it; offset and strides in elements."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _RefusedError(Exception):
    """Something in the pickle that no tensor of torch has there; the argument is the Message that says what."""


_MARK = object()
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINFLOAT"})
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
_OTHERS = (
    "PROTO", "STOP", "MARK", "TUPLE", "GLOBAL", "BINPERSID", "REDUCE", "EMPTY_DICT", "SETITEM", "SETITEMS",
)  # fmt: skip
#: The opcodes that may come, by their bytes. What others have behind them is not even decoded.
_OPCODES = {
    opcode.code.encode("latin-1"): opcode
    for opcode in pickletools.opcodes
    if opcode.name in {*_CONSTANTS, *_VALUES, *_TUPLES, *_PUTS, *_GETS, *_OTHERS}
}


class _Pickle:
    """A pickle of one tensor. Nothing is imported or called: the values are numbers, texts, tuples and the above."""

    def __init__(self, path: str, data: bytes, start: int) -> None:
        self._path, self._data, self._start = path, data, start
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def tensor(self) -> _Pickled:
        """The tensor that is pickled; FormatError for anything else."""
        stream = io.BytesIO(self._data)
        place, name = 0, ""
        try:
            while name != "STOP":
                place = stream.tell()
                code = stream.read(1)
                opcode = _OPCODES.get(code)
                if opcode is None:
                    raise _RefusedError(Message("row.io.torch.opcode", name=shown(code.decode("latin-1"))))
                name = opcode.name
                if name == "GLOBAL":  # whose reader would resolve escapes, which pickle does not
                    argument: Any = _line(stream) + " " + _line(stream)
                else:
                    argument = None if opcode.arg is None else opcode.arg.reader(stream)
                self._take(name, argument)
            if len(self._stack) != 1 or not isinstance(self._stack[0], _Pickled):
                raise _RefusedError(Message("row.io.torch.no_tensor", type=_type_of(self._stack[-1:])))
        except _RefusedError as error:
            raise self._error(place, error.args[0]) from None
        except ValueError as error:  # what pickletools raises for an argument that is cut off or no text
            raise self._error(place, Message("row.io.torch.no_pickle_text", error=shown(str(error)))) from error
        except (IndexError, KeyError):  # more is taken than was put
            raise self._error(place, Message("row.io.torch.nothing_there")) from None
        tensor: _Pickled = self._stack[0]
        return tensor

    def _error(self, place: int, reason: Message) -> FormatError:
        return FormatError.of(self._path, "io.torch.pickle", offset=self._start + place, reason=reason)

    def _take(self, name: str, argument: Any) -> None:
        """One opcode."""
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _PUTS:
            self._memory[argument] = stack[-1]
        elif name in _GETS:
            stack.append(self._memory[argument])
        elif name in _TUPLES:
            count = _TUPLES[name]
            if len(stack) < count:
                raise IndexError
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            stack.append(tuple(self._above_mark()))
        elif name == "GLOBAL":
            if argument not in _GLOBALS:
                raise _RefusedError(Message("row.io.torch.global", name=shown(argument)))
            stack.append(_Global(argument))
        elif name == "BINPERSID":
            stack.append(_storage_of(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_call(function, arguments))
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self._set(key, value)
        elif name == "SETITEMS":
            items = self._above_mark()
            for key, value in zip(items[::2], items[1::2], strict=True):
                self._set(key, value)

    def _above_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _set(self, key: Any, value: Any) -> None:
        """An item of the dictionary on top of the stack."""
        if not isinstance(key, str) or not isinstance(self._stack[-1], dict):
            raise _RefusedError(Message("row.io.torch.arguments", name="dict"))
        self._stack[-1][key] = value


def _line(stream: io.BytesIO) -> str:
    return stream.readline().removesuffix(b"\n").decode("utf-8", "backslashreplace")


def _type_of(values: list[Any]) -> str:
    return type(values[0]).__name__.lstrip("_") if values else "-"


def _storage_of(identity: Any) -> _Storage:
    """The storage of a persistent id: ("storage", type, key, location, number of elements)."""
    if isinstance(identity, tuple) and len(identity) == 5 and identity[0] == "storage":
        _, kind, key, _, count = identity
        if isinstance(kind, _Global) and kind.name in _STORAGES and isinstance(key, str) and _is_size(count):
            return _Storage(_STORAGES[kind.name], key, count)
    raise _RefusedError(Message("row.io.torch.arguments", name="storage"))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _sizes(value: Any) -> tuple[int, ...] | None:
    return value if isinstance(value, tuple) and all(_is_size(size) for size in value) else None


def _call(function: Any, arguments: Any) -> Any:
    """What a global makes of its arguments."""
    name = function.name if isinstance(function, _Global) else ""
    made: Any = None
    if isinstance(arguments, tuple) and name in _CALLS:
        made = _CALLS[name](arguments)
    if made is None:
        raise _RefusedError(Message("row.io.torch.arguments", name=shown(name.rpartition(" ")[2])))
    return made


def _dictionary(arguments: tuple[Any, ...]) -> dict[str, Any] | None:
    return None if arguments else {}


def _number(arguments: tuple[Any, ...]) -> int | None:
    return arguments[0] if len(arguments) == 1 and isinstance(arguments[0], int) else None


def _parameter(arguments: tuple[Any, ...]) -> _Pickled | None:
    return arguments[0] if len(arguments) == 3 and isinstance(arguments[0], _Pickled) else None


def _typed(arguments: tuple[Any, ...]) -> _Pickled | None:
    """(storage, offset, shape, strides, requires_grad, hooks), and at times what of it is lazy."""
    if len(arguments) not in (6, 7) or not isinstance(arguments[0], _Storage):
        return None
    if len(arguments) == 7:
        _refuse_lazy(arguments[6])
    return _described(arguments, arguments[0].dtype)


def _untyped(arguments: tuple[Any, ...]) -> _Pickled | None:
    """The same of a storage of bytes, with the data type after the hooks."""
    if len(arguments) not in (7, 8) or not isinstance(arguments[6], _Global):
        return None
    if len(arguments) == 8:
        _refuse_lazy(arguments[7])
    module, _, name = arguments[6].name.partition(" ")
    return _described(arguments, TORCH_TYPES.get(name, "") if module == "torch" else "")


def _on_npu(arguments: tuple[Any, ...]) -> _Pickled | None:
    """The same, with the format that it had on the NPU."""
    if len(arguments) != 7 or not isinstance(arguments[0], _Storage) or not isinstance(arguments[6], int):
        return None
    return _described(arguments, arguments[0].dtype)


def _described(arguments: tuple[Any, ...], dtype: str) -> _Pickled | None:
    storage, offset, *sizes = arguments[:4]
    shape, strides = map(_sizes, sizes)
    if not isinstance(storage, _Storage) or shape is None or strides is None:
        return None
    if not dtype or not _is_size(offset) or len(shape) != len(strides):
        return None
    if len(shape) > data_types.MAX_RANK:
        raise _RefusedError(Message("row.io.npy.axes", count=len(shape)))
    return _Pickled(storage, dtype, offset, shape, strides)


def _refuse_lazy(metadata: Any) -> None:
    """Refuse a tensor whose values are the conjugate or the negative of the stored ones."""
    if not isinstance(metadata, dict):
        raise _RefusedError(Message("row.io.torch.arguments", name="metadata"))
    for name in metadata:  # PyTorch takes what is named for so, whatever its value is
        raise _RefusedError(Message("row.io.torch.lazy", name=shown(name)))


_CALLS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    _TENSOR: _typed,
    _TENSOR_3: _untyped,
    _NPU_TENSOR: _on_npu,
    _NPU_FORMAT: _number,
    _PARAMETER: _parameter,
    _ORDERED_DICT: _dictionary,
}
