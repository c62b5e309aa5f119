"""`.h5` dumps of PyTorch: what is read is what was written, and what is refused."""

from __future__ import annotations

import itertools
import resource
import shutil
import struct
import tracemalloc
import zlib
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import tool
from h5_files import CPU, GPU, NPU, Array, add_tensor, write_h5

from precision_tool.lib.compare.tensor_reader import Scratch, TensorReader
from precision_tool.lib.io import hdf5 as h5
from precision_tool.lib.io import hdf5_process as h5_process
from precision_tool.lib.io import layouts
from precision_tool.lib.io.hdf5 import in_logical_order, read_h5
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError, UsageError
from precision_tool.lib.model.pytorch import H5Dump, H5Value
from precision_tool.lib.model.tensor import Access, Tensor

RNG = np.random.default_rng(7)


def values(dump: H5Dump) -> dict[str, H5Value]:
    return {value.path: value for op in dump.ops for value in op.values}


def tensor_of(path: Path, name: str = "/Op/1/output/y") -> Tensor:
    value = values(read_h5(str(path)))[name]
    assert value.tensor is not None, value.reason
    return value.tensor


def read(tensor: Tensor) -> Array:
    """The values in logical order, box by box as the engine reads them."""
    plan = tensor.plan or layouts.plain_plan(tensor.shape)
    reader = TensorReader(tensor, plan, np.dtype(np.float64), Scratch(), "t")
    try:
        out = np.full(tensor.shape, -7.0)
        for box in reader.boxes():
            items = np.empty(prod(stop - start for start, stop in box))
            reader.read(box, items)
            if reader.is_flat:
                out.reshape(-1)[slice(*box[0])] = items
            else:
                out[tuple(slice(*part) for part in box)] = items.reshape([stop - start for start, stop in box])
        return out
    finally:
        reader.close()


# --- the layout -------------------------------------------------------------------------------------------------------


def test_ops_come_in_the_order_they_ran_with_their_own_names(tmp_path: Path) -> None:
    one = np.ones(2, np.float32)
    names = ["/Relu/10/output/result", "/Relu/2/input/self", "/Addmm/3/input/tensors/10", "/Addmm/3/input/tensors/9"]
    path = write_h5(tmp_path / "d.h5", dict.fromkeys(names, one))
    dump = read_h5(str(path))
    assert [op.name for op in dump.ops] == ["/Relu/2", "/Addmm/3", "/Relu/10"]
    assert [value.slot for value in dump.ops[1].values] == ["input:tensors/9", "input:tensors/10"]
    assert dump.device == "NPU"
    assert dump.has_inputs


def test_attributes_and_kinds(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        add_tensor(file, "/Op/1/input/x", np.ones((2, 3), np.float16), GPU)
        add_tensor(file, "/Op/1/input/dim", np.array(3), CPU, kind=3)
        file["/Op/1/output/bare"] = np.ones(4)
    dump = read_h5(str(path))
    x, dim, bare = dump.ops[0].values
    assert (x.kind, x.scalar_type, x.device, x.is_tensor) == (0, 10, GPU, True)
    assert (dim.kind, dim.is_tensor) == (3, False)
    assert (bare.kind, bare.scalar_type, bare.is_tensor) == (None, None, True)
    assert dump.device == "GPU"
    assert dump.ops[0].tensors == (x, bare)


def test_what_is_no_part_of_the_layout_is_named(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.ones(1, np.float32)})
    with h5py.File(path, "a") as file:
        file["/loose"] = 1.0
        file["/Op/first/input/x"] = 1.0
        file["/Op/2/weights/x"] = 1.0
    dump = read_h5(str(path))
    assert [op.name for op in dump.ops] == ["/Op/1"]
    assert {name for name, _ in dump.ignored} == {"/loose", "/Op/first/input/x", "/Op/2/weights/x"}


# --- values -----------------------------------------------------------------------------------------------------------

STORED: dict[str, dict[str, Any]] = {
    "one piece": {},
    "one chunk": {"chunks": (13, 50, 11), "compression": "gzip"},
    "chunks": {"chunks": (5, 16, 11)},
    "chunks that do not fit": {"chunks": (4, 7, 3)},
    "gzip": {"chunks": (4, 7, 3), "compression": "gzip"},
    "shuffled gzip with checksum": {"chunks": (4, 7, 3), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "checksum": {"chunks": (4, 7, 11), "fletcher32": True},
    "lzf": {"chunks": (4, 7, 3), "compression": "lzf", "shuffle": True},
    "growing": {"chunks": (32, 50, 11), "maxshape": (None, 50, 11)},
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", ">f4", "i1", "u1", "i8", "b1"])
def test_values_are_read_however_they_are_stored(tmp_path: Path, stored: str, dtype: str) -> None:
    array = (RNG.normal(size=(13, 50, 11)) * 20).astype(dtype)
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        add_tensor(file, "/Op/1/output/y", array, scalar_type=1, **STORED[stored])
    tensor = tensor_of(path)
    assert tensor.shape == array.shape
    np.testing.assert_array_equal(read(tensor), array.astype(np.float64))
    with open_bytes(tensor) as file:  # any part of what is stored, as the engine compares bytes
        whole = file.read_at(tensor.offset, tensor.nbytes)
        for start, count in ((0, 1), (1, 100), (tensor.nbytes - 3, 3)):
            assert file.read_at(tensor.offset + start, count) == whole[start : start + count]


@pytest.mark.parametrize("box", [((5, 9), (0, 30)), ((0, 7), (8, 16)), ((3, 20), (7, 8)), ((19, 20), (29, 30))])
def test_boxes_need_not_begin_where_chunks_do(tmp_path: Path, box: tuple[tuple[int, int], ...]) -> None:
    """The other side of a comparison may have chunks of another size."""
    array = RNG.normal(size=(20, 30))
    tensor = tensor_of(write_h5(tmp_path / "d.h5", {"/Op/1/output/y": array}, chunks=(4, 8)))
    assert tensor.plan is not None
    reader = TensorReader(tensor, tensor.plan, np.dtype(np.float64), Scratch(), "t")
    expected = array[tuple(slice(*part) for part in box)]
    items = np.empty(expected.size)
    reader.read_box(box, items)
    reader.close()
    np.testing.assert_array_equal(items.reshape(expected.shape), expected)


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_a_compact_data_set_is_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        group = file.create_group("/Op/1/output")
        space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
        made = h5py.h5d.create(group.id, b"y", h5py.h5t.IEEE_F32LE, space, properties)
        values = np.arange(1, 1 + prod(shape), dtype=np.float32).reshape(shape)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    np.testing.assert_array_equal(read(tensor_of(path)), values)


@pytest.mark.parametrize("array", [np.float32(2.5), np.zeros((0, 3), np.float32), np.array([4.0])])
def test_scalars_and_empty_tensors(tmp_path: Path, array: Array) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": array}, GPU)
    np.testing.assert_array_equal(read(tensor_of(path)), np.asarray(array, np.float64))


LOGICAL = RNG.normal(size=(4, 5, 6)).astype(np.float32)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("options", [{}, {"chunks": (2, 2, 2), "compression": "gzip"}], ids=["plain", "chunks"])
@pytest.mark.parametrize("device", [GPU, CPU])
def test_strides_tell_the_order_of_what_a_gpu_wrote(
    tmp_path: Path, order: tuple[int, ...], options: dict[str, Any], device: int
) -> None:
    in_memory = np.ascontiguousarray(LOGICAL.transpose(order))
    stride = [0, 0, 0]
    for axis, step in zip(order, in_memory.strides, strict=True):
        stride[axis] = step // 4
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        stored = in_memory.reshape(LOGICAL.shape)
        add_tensor(file, "/Op/1/output/y", stored, device, stride=tuple(stride), **options)
    np.testing.assert_array_equal(read(tensor_of(path)), LOGICAL)


def test_an_expanded_tensor_repeats_its_elements(tmp_path: Path) -> None:
    stored = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        add_tensor(file, "/Op/1/output/y", stored, GPU, stride=(0, 1))
    np.testing.assert_array_equal(read(tensor_of(path)), [[0, 1, 2, 3]] * 3)


def test_strides_of_an_npu_are_those_of_its_memory_and_left_alone(tmp_path: Path) -> None:
    stored = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        add_tensor(file, "/Op/1/output/y", stored, NPU, stride=(1, 3))
    np.testing.assert_array_equal(read(tensor_of(path)), stored)


@pytest.mark.parametrize("stride", [(100, 1), (4,), (-4, 1), (4, 3)])
def test_strides_that_fit_nothing_are_told_and_left_out(tmp_path: Path, stride: tuple[int, ...]) -> None:
    stored = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        add_tensor(file, "/Op/1/output/y", stored, GPU, stride=stride)
    value = values(read_h5(str(path)))["/Op/1/output/y"]
    assert value.tensor is not None
    assert value.note == Message("row.io.strides", strides=stride, shape=value.tensor.shape)
    np.testing.assert_array_equal(read(value.tensor), stored)


@pytest.mark.parametrize("options", [{}, {"chunks": (2, 2, 2)}])
def test_any_order_can_be_had_as_plain_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        in_memory = np.ascontiguousarray(LOGICAL.transpose(2, 0, 1)).reshape(LOGICAL.shape)
        add_tensor(file, "/Op/1/output/y", in_memory, GPU, stride=(5, 1, 20))
        add_tensor(file, "/Op/1/output/z", LOGICAL, NPU, **options)
    for name in ("y", "z"):
        plain = in_logical_order(tensor_of(path, f"/Op/1/output/{name}"))
        assert plain is not None
        assert plain.plan is None
        np.testing.assert_array_equal(read(plain), LOGICAL)


def test_what_is_too_large_to_be_gathered_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h5, "MAX_GATHERED", 100)
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        add_tensor(file, "/Op/1/output/y", np.ones((10, 10), np.float32), GPU, stride=(0, 1))
        add_tensor(file, "/Op/1/output/z", np.ones((10, 10), np.float32), NPU, chunks=(3, 3))
    found = values(read_h5(str(path)))
    assert "strides [0, 1]" in str(found["/Op/1/output/y"].reason)
    tensor = found["/Op/1/output/z"].tensor
    assert tensor is not None
    assert in_logical_order(tensor) is None


def test_large_chunked_tensors_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    array = np.zeros((4096, 2048), np.float32)
    array[::7, ::5] = 3
    write_h5(path, {"/Op/1/output/y": array}, chunks=(128, 256), compression="gzip", compression_opts=1)
    tensor = tensor_of(path)
    reader = TensorReader(tensor, tensor.plan or layouts.plain_plan(tensor.shape), np.dtype("f4"), Scratch(), "t")
    tracemalloc.start()
    total = 0.0
    for box in reader.boxes():
        items = np.empty(prod(stop - start for start, stop in box), np.float32)
        reader.read(box, items)
        total += float(items.sum(dtype=np.float64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reader.close()
    assert total == float(array.sum(dtype=np.float64))
    assert peak < array.nbytes + (24 << 20)  # the chunks that are kept, and the buffers


# --- refused ----------------------------------------------------------------------------------------------------------


def a_dump(path: Path) -> h5py.File:
    file = h5py.File(path, "w")
    add_tensor(file, "/Op/1/output/y", np.ones(3, np.float32))
    return file


def external_link(file: h5py.File, folder: Path) -> None:
    write_h5(folder / "other.h5", {"/Op/9/output/secret": np.ones(1, np.float32)})
    file["/Op/2"] = h5py.ExternalLink("other.h5", "/Op/9")


def soft_link(file: h5py.File, folder: Path) -> None:
    file["/Op/2"] = h5py.SoftLink("/Op/1")


def dangling_link(file: h5py.File, folder: Path) -> None:
    file["/Op/2"] = h5py.SoftLink("/nowhere")


def cycle(file: h5py.File, folder: Path) -> None:
    file["/Op/1/output/again"] = file["/Op"]


def twice(file: h5py.File, folder: Path) -> None:
    file["/Op/2"] = file["/Op/1"]


def raw_data_elsewhere(file: h5py.File, folder: Path) -> None:
    secret = folder / "secret"
    secret.write_bytes(b"0123456789abcdef")
    file.create_dataset("/Op/2/output/y", (4,), "f4", external=[(str(secret), 0, 16)])


def virtual(file: h5py.File, folder: Path) -> None:
    source = write_h5(folder / "other.h5", {"/x": np.ones(4, np.float32)})
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(source), "/x", (4,))
    file.create_virtual_dataset("/Op/2/output/y", layout)


def absurd_chunks(file: h5py.File, folder: Path) -> None:
    file.create_dataset("/Op/2/output/y", (1 << 50,), "f4", chunks=(1024,))


def absurd_compressed(file: h5py.File, folder: Path) -> None:
    made = file.create_dataset("/Op/2/output/y", (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")
    made[:4] = 1


def never_written(file: h5py.File, folder: Path) -> None:
    file.create_dataset("/Op/2/output/y", (1 << 40,), "f4")


def deep(file: h5py.File, folder: Path) -> None:
    file["/Op/1/output/" + "a/" * 40 + "y"] = 1.0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (external_link, "link to another file, other.h5"),
        (soft_link, "symbolic link"),
        (dangling_link, "symbolic link"),
        (cycle, "more than once: a cycle"),
        (twice, "more than once: a cycle"),
        (raw_data_elsewhere, "keeps its data in another file"),
        (virtual, "virtual data set"),
        (absurd_chunks, "claims 4,503,599,627,370,496 bytes"),
        (absurd_compressed, "claims 4,398,046,511,104 bytes"),
        (never_written, "claims 4,398,046,511,104 bytes of data, of which the file holds 0"),
        (deep, "nested more than 32 levels"),
    ],
)
def test_files_that_lead_elsewhere_or_claim_too_much_are_refused(tmp_path: Path, damage: Any, words: str) -> None:
    path = tmp_path / "d.h5"
    with a_dump(path) as file:
        damage(file, tmp_path)
    with pytest.raises(FormatError, match="refused") as refused:
        read_h5(str(path))
    assert words in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("count", [1 << 40, 99_999])
def test_a_header_that_claims_more_than_the_file_has_is_refused(tmp_path: Path, count: int) -> None:
    """Size and shape changed in the bytes, as HDF5 itself writes no such file. Some releases of it see that too."""
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.zeros(12_345, np.float32)})
    data = path.read_bytes()
    for old, new in ((12_345, count), (4 * 12_345, 4 * count)):
        assert struct.pack("<Q", old) in data
        data = data.replace(struct.pack("<Q", old), struct.pack("<Q", new))
    path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"claims {4 * count:,} bytes of data|invalid dataset size"):
        read_h5(str(path))


def test_too_many_objects_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h5, "MAX_OBJECTS", 5)
    path = write_h5(tmp_path / "d.h5", {f"/Op/{number}/output/y": np.ones(1, np.float32) for number in range(9)})
    with pytest.raises(FormatError, match="holds more than 5 groups"):
        read_h5(str(path))


def test_more_links_than_a_file_of_its_size_has_objects_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 20 bytes, and as long to look behind as a data set of its own."""
    monkeypatch.setattr(h5, "_FREE_OBJECTS", 10)
    values = {f"/Op/{number}/output/y": np.ones(100, np.float32) for number in range(20)}
    assert len(read_h5(str(write_h5(tmp_path / "usual.h5", values))).ops) == 20
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.ones(1, np.float32)})
    with h5py.File(path, "a") as file:
        for number in range(1000):
            file[f"/Op/1/output/{number}"] = file["/Op/1/output/y"]
    most = 10 + path.stat().st_size // 512
    with pytest.raises(FormatError, match=f"holds more than {most} groups"):
        read_h5(str(path))


def text(file: h5py.File) -> None:
    file["/Op/2/output/y"] = "words"


def compound(file: h5py.File) -> None:
    file["/Op/2/output/y"] = np.zeros(3, [("a", "f4"), ("b", "i4")])


def huge_chunk(file: h5py.File) -> None:
    file.create_dataset("/Op/2/output/y", data=np.zeros(5, "f8"), chunks=(1 << 24,), maxshape=(None,), compression=1)


def other_filter(file: h5py.File) -> None:
    made = file.create_dataset(
        "/Op/2/output/y", (100,), "i8", chunks=(100,), compression=32123, allow_unknown_filter=True
    )
    made.id.write_direct_chunk((0,), bytes(99))


def stopped_before_writing(file: h5py.File) -> None:
    file.create_dataset("/Op/2/output/y", (1000,), "f4")


def missing_chunks(file: h5py.File) -> None:
    file.create_dataset("/Op/2/output/y", (100,), "f4", chunks=(10,))[:15] = 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (text, "not numbers that can be compared"),
        (compound, "not numbers that can be compared"),
        (huge_chunk, "one chunk takes 134,217,728 bytes, the limit is 67,108,864; h5repack"),
        (other_filter, "filter 32123, which is not supported; h5repack"),
        (missing_chunks, "8 of its 10 chunks were never written"),
        (stopped_before_writing, "its data was never written"),
    ],
)
def test_one_bad_data_set_does_not_hide_the_others(tmp_path: Path, damage: Any, words: str) -> None:
    path = tmp_path / "d.h5"
    with a_dump(path) as file:
        damage(file)
    found = values(read_h5(str(path)))
    assert found["/Op/1/output/y"].tensor is not None
    assert found["/Op/2/output/y"].tensor is None
    assert words in str(found["/Op/2/output/y"].reason)


# --- damaged ----------------------------------------------------------------------------------------------------------


def chunk_place(path: Path) -> tuple[int, int]:
    """Where the first chunk lies."""
    with h5py.File(path, "r") as file:
        info = file["/Op/1/output/y"].id.get_chunk_info(0)
        return info.byte_offset, info.size


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "gzip", "fletcher32": True}])
def test_a_damaged_chunk_is_an_error_that_names_it(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": RNG.normal(size=(64, 64))}, chunks=(16, 16), **options)
    offset, size = chunk_place(path)
    with path.open("r+b") as file:
        file.seek(offset + size // 2)
        file.write(b"\xff" * 20)
    with pytest.raises(FormatError, match=r"chunk at \[0, 0\]") as damaged:
        read(tensor_of(path))
    assert "/Op/1/output/y" in damaged.value.message


def test_a_wrong_checksum_is_seen(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.ones((4, 4))}, chunks=(4, 4), fletcher32=True)
    offset, _ = chunk_place(path)
    with path.open("r+b") as file:
        file.seek(offset + 5)
        file.write(b"\x01")
    with pytest.raises(FormatError, match="checksum"):
        read(tensor_of(path))


def test_a_chunk_that_unpacks_to_gigabytes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 gives a compressed chunk all the memory that it asks for, here 1 GB of a chunk of 4 MB."""
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        made = add_tensor(file, "/Op/1/output/y", np.ones((1024, 1024), "f4"), chunks=(1024, 1024), compression="gzip")
        stream = zlib.compressobj(9)
        zeros = [stream.compress(bytes(16 << 20)) + stream.flush(zlib.Z_FULL_FLUSH) for _ in range(2)]
        made.id.write_direct_chunk((0, 0), zeros[0] + zeros[1] * 63 + stream.flush())
    monkeypatch.setattr(h5_process, "MEMORY", 256 << 20)
    h5_process.close_hdf5()
    tensor = tensor_of(path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"/Op/1/output/y: cannot be read: chunk at \[0, 0\]"):
        read(tensor)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    h5_process.close_hdf5()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # what a child has until it runs another program
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, own, 400_000)  # kB


def test_every_cut_and_flipped_byte_is_a_user_error_or_read_all_the_same(tmp_path: Path) -> None:
    whole = write_h5(
        tmp_path / "whole.h5",
        {"/Op/1/input/x": np.ones((3, 4), np.float32), "/Relu/2/output/y": np.ones((40, 3))},
        chunks=True,
        compression="gzip",
    ).read_bytes()
    path = tmp_path / "d.h5"
    rng = np.random.default_rng(3)
    messages = []
    for round_ in range(150):
        data = bytearray(whole)
        if round_ % 3 == 0:
            data = data[: rng.integers(0, len(data))]
        else:
            for at in rng.integers(0, len(data), 1 + round_ % 4):
                data[at] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            for value in values(read_h5(str(path))).values():
                if value.tensor is not None and value.tensor.size < 1 << 16:
                    read(value.tensor)
        except PrecisionToolError as error:
            messages.append(error.message)
    assert len(messages) > 40
    assert all("d.h5" in message for message in messages)


@pytest.mark.parametrize("content", [b"", b"no HDF5", h5_process.SIGNATURE, h5_process.SIGNATURE + bytes(500)])
def test_what_is_no_hdf5_file_is_said_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.h5"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="HDF5"):
        read_h5(str(path))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError):
        read_h5(str(tmp_path / "none.h5"))
    with pytest.raises(FormatError, match="folder"):
        read_h5(str(tmp_path))


def test_a_file_that_changes_after_it_was_read_is_seen(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.ones((64, 64))}, chunks=(16, 16))
    tensor = tensor_of(path)
    write_h5(tmp_path / "e.h5", {"/Op/1/output/z": np.ones((2, 2))})
    shutil.move(tmp_path / "e.h5", path)
    with pytest.raises(FormatError, match="cannot be read"):
        read(tensor)
    small = replace(tensor, access=Access.GATHER, plan=None)
    with pytest.raises(FormatError, match="cannot be read"):
        open_bytes(small)


def test_without_h5py_the_message_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.ones(3)})
    (tmp_path / "h5py.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    h5_process.close_hdf5()
    with pytest.raises(UsageError, match="h5py") as missing:
        read_h5(str(path))
    assert "pip install" in missing.value.hint
    assert "pip install h5py" in missing.value.hint


def test_a_number_with_zeros_before_it_is_no_op(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/7/output/x": np.zeros(2), "/Op/007/output/x": np.ones(2)})
    dump = read_h5(str(path))
    assert [op.name for op in dump.ops] == ["/Op/7"]
    assert [name for name, _ in dump.ignored] == ["/Op/007/output/x"]


# --- what HDF5 would take at its word ---------------------------------------------------------------------------------


def claim_chunk_size(path: Path, found: int, claimed: int) -> None:
    """Another size for the first chunk in the B-tree (version 1): 4 bytes of size, 4 of filter mask, then its place."""
    raw = path.read_bytes()
    record = struct.pack("<IIQQQ", found, 0, 0, 0, 0)
    assert raw.count(record) == 1
    path.write_bytes(raw.replace(record, struct.pack("<IIQQQ", claimed, 0, 0, 0, 0)) + bytes(1 << 17))


@pytest.mark.parametrize("claimed", [0, 127, 129, 4096, 66_000, (1 << 32) - 1])
def test_a_chunk_without_filters_has_its_size(tmp_path: Path, claimed: int) -> None:
    """HDF5's own reading copies what is claimed into a buffer of 128 bytes; a child process shows that nothing does."""
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.ones((8, 8))}, chunks=(4, 4))
    claim_chunk_size(path, 128, claimed)
    run = tool("pt", f"{path}:/Op/1/output/y", cwd=tmp_path, code=None)
    assert run.code == 2, run.text
    assert f"it claims {claimed} bytes instead of 128" in run.text


@pytest.mark.parametrize("libver", ["earliest", "v108"])
def test_a_driver_information_block_is_refused_before_hdf5_opens_the_file(tmp_path: Path, libver: str) -> None:
    """HDF5 would take the 4 GB of memory that the block claims."""
    path = tmp_path / "d.h5"
    with h5py.File(path, "w", libver=(libver, "v108")) as file:
        add_tensor(file, "/Op/1/output/y", np.ones(4))
    raw = bytearray(path.read_bytes())
    assert h5.read_h5(str(path)).ops
    if raw[8] > 1:
        return  # newer superblocks have no such field
    place = 24 + 3 * 8
    assert raw[place : place + 8] == b"\xff" * 8
    raw[place : place + 8] = struct.pack("<Q", len(raw))
    path.write_bytes(raw + struct.pack("<BBHI8s", 0, 0, 0, 0xFFFFFFF0, b"NCSAfami") + bytes(64))
    with pytest.raises(FormatError, match="driver information block"):
        h5.read_h5(str(path))


@pytest.mark.parametrize("size", [512, 1024, 1 << 16])
def test_data_before_the_signature_is_refused(tmp_path: Path, size: int) -> None:
    path = write_h5(tmp_path / "d.h5", {"/Op/1/output/y": np.ones(4)})
    path.write_bytes(bytes(size) + path.read_bytes())
    with pytest.raises(FormatError, match=f"begin only at byte {size}"):
        h5.read_h5(str(path))
