"""`.pt` files: what torch writes is read as torch has it, everything else is refused with its place."""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from msprobe_python import run_torch
from torch_files import STORAGES, archive, archive_64, pickled, tensor_opcodes, text, torch_bytes, torch_entries, whole

from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.io import data_types
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.io.torch_file import read_torch
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import Access, Tensor


def read(folder: Path, content: bytes) -> Tensor:
    path = folder / "x.pt"
    path.write_bytes(content)
    return read_torch(str(path))


def refused(folder: Path, content: bytes) -> FormatError:
    with pytest.raises(FormatError) as caught:
        read(folder, content)
    assert caught.value.path == str(folder / "x.pt")
    return caught.value


def reason_of(error: FormatError) -> str:
    reason = error.fields["reason"]
    assert isinstance(reason, Message)
    return reason.kind.removeprefix("row.io.torch.")


def stored_bytes(tensor: Tensor) -> bytes:
    with open_bytes(tensor) as file:
        return file.read_at(tensor.offset, tensor.nbytes)


def values_of(tensor: Tensor) -> npt.NDArray[np.float64]:
    with open_reader(tensor) as reader:
        shape = reader.logical_shape
        out = np.empty(math.prod(shape), reader.dtype)
        box = tuple((0, extent) for extent in shape)
        if out.size:
            reader.read_box(box, out)
    return out.reshape(shape).astype(np.float64)


TYPES = [*STORAGES, "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]
SAVE = """
import numpy, sys, torch
torch.manual_seed(3)
base = torch.randint(0, 100, (4, 6)).to(torch.float64)
types = sys.argv[1:]
for name in types:
    torch.save(base.to(getattr(torch, name)), name + ".pt")
x = base.float()
views = {"transposed": x.t(), "cut": x[1:3, 1::2], "column": x[:, 2], "expanded": x[0].expand(3, 6), "scalar": x[1, 2],
         "empty": x[:0], "one": x.view(1, 4, 1, 6).transpose(1, 3), "parameter": torch.nn.Parameter(x)}
for name, view in views.items():
    torch.save(view, name + ".pt")
    numpy.save(name + ".npy", view.detach().numpy())
torch.save(base.numpy() is None, "no_tensor.pt")
torch.save({"a": x}, "dict.pt")
torch.save(torch.ones(3, dtype=torch.complex64).conj(), "conjugate.pt")
torch.save(x, "old.pt", _use_new_zipfile_serialization=False)
numpy.save("base.npy", base.numpy())
"""


@pytest.mark.slow
def test_what_torch_saves(tmp_path: Path) -> None:
    run_torch(SAVE, tmp_path, *TYPES)
    base = np.load(tmp_path / "base.npy")
    for name in TYPES:
        tensor = read_torch(str(tmp_path / f"{name}.pt"))
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        assert (tensor.dtype, tensor.shape) == (name, (4, 6))
        assert stored_bytes(tensor) == base.astype(dtype).tobytes(), name
    for name in ("transposed", "cut", "column", "expanded", "scalar", "empty", "one", "parameter"):
        expected = np.load(tmp_path / f"{name}.npy")
        tensor = read_torch(str(tmp_path / f"{name}.pt"))
        assert tensor.shape == expected.shape
        assert np.array_equal(values_of(tensor), expected), name
    for name in ("no_tensor", "dict", "conjugate", "old"):
        with pytest.raises(FormatError):
            read_torch(str(tmp_path / f"{name}.pt"))


# ---- without torch


@pytest.mark.parametrize("name", TYPES)
def test_types(tmp_path: Path, name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, None) or name)
    tensor = read(tmp_path, torch_bytes(array))
    assert (tensor.dtype, tensor.shape, tensor.origin_shape) == (name, (2, 3), (2, 3))
    assert tensor.access is Access.BYTES
    assert stored_bytes(tensor) == array.tobytes()
    assert data_types.BY_NAME[name].is_numeric


BASE = np.arange(24, dtype=np.float32)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "access"),
    [
        ((2, 3, 4), (12, 4, 1), 0, Access.BYTES),
        ((4, 3, 2), (1, 4, 12), 0, Access.BYTES),
        ((2, 3), (3, 1), 7, Access.BYTES),
        ((3, 1, 2), (2, 99, 1), 1, Access.BYTES),
        ((), (), 23, Access.BYTES),
        ((0, 5), (5, 1), 24, Access.BYTES),
        ((2, 2, 2), (12, 4, 2), 4, Access.GATHER),
        ((5, 4), (0, 1), 3, Access.GATHER),
        ((3, 4), (1, 2), 0, Access.GATHER),
    ],
)
def test_views(tmp_path: Path, shape: Any, strides: Any, offset: int, access: Access) -> None:
    tensor = read(tmp_path, torch_bytes(BASE, strides, offset, shape))
    steps = [4 * stride for stride in strides]
    expected = np.lib.stride_tricks.as_strided(BASE[offset:], shape, steps)
    assert (tensor.shape, tensor.access) == (shape, access)
    assert np.array_equal(values_of(tensor), expected)


def test_a_tensor_of_an_npu_is_saved_with_its_format(tmp_path: Path) -> None:
    """As torch_npu's `_reduce_ex` has it: a copy on the CPU, with a number or a `Format` behind it."""
    name = "torch_npu.utils.storage\n_rebuild_npu_tensor"
    for more in (whole(29), b"ctorch_npu.npu._format\nFormat\n" + whole(2) + b"\x85R", b"\x88"):
        opcodes = tensor_opcodes("float32", 24, (24,), (1,), function=name, more=more)
        tensor = read(tmp_path, archive(torch_entries(opcodes, BASE.tobytes())))
        assert np.array_equal(values_of(tensor), BASE)


def test_bytes_of_the_other_order(tmp_path: Path) -> None:
    opcodes = tensor_opcodes("float32", 24, (24,), (1,))
    tensor = read(tmp_path, archive(torch_entries(opcodes, BASE.astype(">f4").tobytes(), b"big")))
    assert tensor.big_endian
    assert np.array_equal(values_of(tensor), BASE)
    error = refused(tmp_path, archive(torch_entries(opcodes, BASE.tobytes(), b"middle")))
    assert reason_of(error) == "byte_order"
    opcodes = tensor_opcodes("bfloat16", 24, (24,), (1,))
    assert reason_of(refused(tmp_path, archive(torch_entries(opcodes, bytes(48), b"big")))) == "byte_order"


def test_archives_beyond_4_gb(tmp_path: Path) -> None:
    entries = torch_entries(tensor_opcodes("float32", 24, (24,), (1,)), BASE.tobytes())
    assert np.array_equal(values_of(read(tmp_path, archive_64(entries))), BASE)


def test_only_lists_of_opcodes_and_globals(tmp_path: Path) -> None:
    """What would run a command if it were unpickled, and what else has no place in a tensor."""
    good = tensor_opcodes("float32", 24, (24,), (1,))
    hostile = {
        b"cos\nsystem\n" + text("touch ran") + b"\x85R": "global",
        b"cbuiltins\neval\n" + text("1") + b"\x85R": "global",
        b"ctorch._utils\n_rebuild_qtensor\n)R": "global",
        b"ctorch.\\x5futils\n_rebuild_tensor_v2\n)R": "global",
        b"ctor\\gch\n\xff": "global",
        b"(" + text("os") + b"ios\nsystem\n": "opcode",
        text("os") + text("system") + b"\x93": "opcode",
        b"]" + good + b"a": "opcode",
        good + b"}b": "opcode",
        b"\x95" + b"\0" * 8 + good: "opcode",
        good + good: "no_tensor",
        whole(3): "no_tensor",
        b"}" + text("a") + good + b"s": "no_tensor",
        b"h\7": "nothing_there",
        b"0": "opcode",
        b"R": "nothing_there",
        b"t": "nothing_there",
        b"ccollections\nOrderedDict\n" + whole(1) + b"\x85R": "arguments",
        whole(1) + b")R": "arguments",
        b"\xff": "opcode",
        b"S'\\g'\n": "opcode",
        b"X\xff\xff\xff\xff": "no_pickle_text",
        b"": "no_tensor",
        b"I" + b"9" * 5000 + b"\n": "opcode",
    }
    for opcodes, reason in hostile.items():
        error = refused(tmp_path, archive(torch_entries(opcodes, BASE.tobytes())))
        assert (error.kind, reason_of(error)) == ("io.torch.pickle", reason), opcodes
        assert error.offset is not None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"shape": (-1, 24), "strides": (24, 1)},
        {"shape": (24,), "strides": (-1,)},
        {"shape": (24,), "strides": ()},
        {"shape": (24,), "strides": (1,), "offset": -1},
        {"shape": (24,), "strides": (1,), "more": whole(1)},
        {"shape": (24,), "strides": (1,), "more": b"}" + text("conj") + b"\x88s"},
        {"shape": (24,), "strides": (1,), "more": b"}" + text("neg") + b"\x89s"},  # PyTorch looks at the name alone
        {"shape": (1,) * 40, "strides": (1,) * 40},
    ],
)
def test_arguments_that_no_tensor_has(tmp_path: Path, arguments: dict[str, Any]) -> None:
    opcodes = tensor_opcodes("float32", 24, **arguments)
    assert refused(tmp_path, archive(torch_entries(opcodes, BASE.tobytes()))).kind == "io.torch.pickle"


@pytest.mark.parametrize(
    ("count", "shape", "strides", "offset", "kind"),
    [
        (24, (25,), (1,), 0, "io.torch.claims"),
        (24, (24,), (1,), 1, "io.torch.claims"),
        (24, (2, 3), (23, 1), 0, "io.torch.claims"),
        (1 << 40, (24,), (1,), 0, "io.torch.claims"),
        (1 << 40, (1 << 40,), (1,), 0, "io.torch.claims"),
        (24, (1 << 40, 1 << 40), (0, 0), 0, "io.impossible_shape"),
        (24, (1 << 30, 24), (0, 1), 0, "io.torch.strides"),
    ],
)
def test_sizes_that_lie(
    tmp_path: Path, count: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, kind: str
) -> None:
    opcodes = tensor_opcodes("float32", count, shape, strides, offset)
    assert refused(tmp_path, archive(torch_entries(opcodes, BASE.tobytes()))).kind == kind


def test_archives_that_are_not_torchs(tmp_path: Path) -> None:
    entries = torch_entries(tensor_opcodes("float32", 24, (24,), (1,)), BASE.tobytes())
    good = archive(entries)
    assert refused(tmp_path, b"").kind == "io.empty"
    assert refused(tmp_path, b"\x80\x02" + bytes(99)).kind == "io.torch.no_archive"
    assert refused(tmp_path, good[:-30]).kind == "io.torch.cut_off"
    assert reason_of(refused(tmp_path, archive(entries, zipfile.ZIP_DEFLATED))) == "compressed"
    assert reason_of(refused(tmp_path, archive({"a/x": b"", **entries, "b/data.pkl": b""}))) == "no_pickle"
    assert reason_of(refused(tmp_path, archive({"name/x": b""}))) == "no_pickle"
    assert reason_of(refused(tmp_path, archive({f"name/{n}": b"" for n in range(99)}))) == "directory"
    del entries["name/data/0"]
    assert reason_of(refused(tmp_path, archive({**entries, "name/data/1": BASE.tobytes()}))) == "no_entry"
    long = {**entries, "name/data.pkl": pickled(b"N0" * 50_000)}
    assert reason_of(refused(tmp_path, archive(long))) == "long_pickle"


def test_a_directory_that_lies(tmp_path: Path) -> None:
    good = archive(torch_entries(tensor_opcodes("float32", 24, (24,), (1,)), BASE.tobytes()))
    place = good.index(b"PK\1\2")
    for at, number in ((20, 1 << 31), (24, 1 << 31), (42, 5), (42, 1 << 31), (28, 60_000), (8, 1), (10, 8)):
        damaged = bytearray(good)
        struct.pack_into("<L" if at in (20, 24, 42) else "<H", damaged, place + at, number)
        assert refused(tmp_path, bytes(damaged)).kind == "io.torch.archive", at
    for cut in range(0, len(good), 7):
        assert refused(tmp_path, good[:cut]).kind.startswith("io."), cut


def test_names_are_no_paths(tmp_path: Path) -> None:
    """The archive's folder and its keys may be anything: they are looked up in the archive alone."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0").write_bytes(BASE.tobytes())
    entries = torch_entries(tensor_opcodes("float32", 24, (24,), (1,)), BASE.tobytes())
    elsewhere = {name.replace("name/", "../../etc/"): data for name, data in entries.items()}
    assert np.array_equal(values_of(read(tmp_path, archive(elsewhere))), BASE)
    del elsewhere["../../etc/data/0"]
    assert reason_of(refused(tmp_path, archive(elsewhere))) == "no_entry"
