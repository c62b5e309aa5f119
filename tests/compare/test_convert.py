"""Decoding to `.npy`: values, types, names and layouts against plain numpy; failures as rows; nothing half written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builders import Array, write_dump
from command_line import fingerprint

from precision_tool.lib.compare import convert, scheduler, tensor_reader
from precision_tool.lib.compare import convert as decoded_npy
from precision_tool.lib.compare.convert import Decoded, Source, convert_files, find_sources
from precision_tool.lib.compare.scheduler import THIS_THREAD, Resources, WorkStoppedError
from precision_tool.lib.demo.dump_writer import OutTensor, pack, write_statistics
from precision_tool.lib.io import local, npy
from precision_tool.lib.io.layouts import LayoutError, reading_as, reading_of
from precision_tool.lib.io.writing import TEMPORARY
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.tensor import Tensor

NAME = "Add.block_add.1.0.1772443800000000"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "_PIECE", 512)
    monkeypatch.setattr(tensor_reader, "_BOX_ITEMS", 300)
    monkeypatch.setattr(decoded_npy, "_BOX", 600)


def source(folder: Path, *outputs: OutTensor | Array, inputs: tuple[OutTensor | Array, ...] = ()) -> Source:
    path = write_dump(folder / "dump" / NAME, "block/add", inputs, outputs)
    return Source(path=str(path), name=NAME, folder=str(folder / "out"), nbytes=path.stat().st_size)


def decoded(one: Source, layout: str | None = None) -> list[Decoded]:
    return convert_files([one], layout, THIS_THREAD)


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
     "complex64", "complex128"],
)  # fmt: skip
@pytest.mark.usefixtures("tiny")
def test_values_and_types_stay(tmp_path: Path, dtype: str) -> None:
    values = (np.random.default_rng(1).normal(size=(3, 5, 31)) * 50).astype(np.int16).astype(dtype)
    (row,) = decoded(source(tmp_path, values))
    assert (row.reason, row.note, row.slot) == (None, None, "output:0")
    assert row.path == str(tmp_path / "out" / f"{NAME}.output.0.npy")
    found = np.load(row.path, allow_pickle=False)
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    assert found.tobytes() == values.tobytes()
    assert (row.dtype, row.shape, row.nbytes) == (dtype, values.shape, values.nbytes)


@pytest.mark.parametrize(
    ("name", "widened"),
    [("bfloat16", "float32"), ("float8_e5m2", "float32"), ("float8_e4m3fn", "float32"), ("int4", "int8"),
     ("complex32", "complex64")],
)  # fmt: skip
@pytest.mark.usefixtures("tiny")
def test_types_that_numpy_lacks_are_widened(tmp_path: Path, name: str, widened: str) -> None:
    numbers = (np.arange(20 * 33) % 13 - 6).astype(np.float32)
    if name == "int4":
        codes = numbers.astype(np.int8).view(np.uint8) & 15
        data = (codes[::2] | codes[1::2] << 4).tobytes()
    elif name == "complex32":
        data = np.stack([numbers, -numbers], axis=-1).astype(np.float16).tobytes()
        numbers = (numbers - 1j * numbers).astype(np.complex64)
    else:
        data = numbers.astype(getattr(ml_dtypes, name)).tobytes()
    (row,) = decoded(source(tmp_path, OutTensor(data=data, dtype=name, shape=(20, 33))))
    found = np.load(row.path)
    assert found.dtype == widened
    np.testing.assert_array_equal(found, numbers.reshape(20, 33))
    assert f"{name} is widened to {widened}" in str(row.note)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_small_tensors(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.ones(shape, np.float32)
    (row,) = decoded(source(tmp_path, values))
    np.testing.assert_array_equal(np.load(row.path), values)


ORDERS = {"NCHW": (0, 3, 1, 2), "NHWC": (0, 1, 2, 3), "HWCN": (1, 2, 3, 0), "CHWN": (3, 1, 2, 0)}


@pytest.mark.parametrize("target", ["NCHW", "NHWC", "HWCN"])
@pytest.mark.parametrize("stored", ["NCHW", "NHWC", "HWCN", "NC1HWC0", "FRACTAL_Z"])
@pytest.mark.usefixtures("tiny")
def test_to_plain_layouts(tmp_path: Path, stored: str, target: str) -> None:
    nhwc = np.random.default_rng(4).normal(size=(3, 7, 5, 19)).astype(np.float16)
    origin = {"NC1HWC0": "NHWC", "FRACTAL_Z": "HWCN"}.get(stored, stored)
    logical = np.ascontiguousarray(nhwc.transpose(ORDERS[origin]))
    one = source(tmp_path, OutTensor.packed(logical, stored, origin))
    (row,) = decoded(one, target)
    assert row.reason is None
    np.testing.assert_array_equal(np.load(row.path), nhwc.transpose(ORDERS[target]))
    dims = "x".join(map(str, row.shape))
    same = stored == target
    assert row.path == str(tmp_path / "out" / (f"{NAME}.output.0.npy" if same else f"{NAME}.output.0.{dims}.npy"))


@pytest.mark.parametrize("stored", ["NCHW", "NHWC", "HWCN"])
@pytest.mark.parametrize("target", ["FRACTAL_Z", "NC1HWC0"])
@pytest.mark.usefixtures("tiny")
def test_to_blocked_layouts(tmp_path: Path, stored: str, target: str) -> None:
    nhwc = np.random.default_rng(4).normal(size=(35, 6, 5, 19)).astype(np.float32)
    logical = np.ascontiguousarray(nhwc.transpose(ORDERS[stored]))
    (row,) = decoded(source(tmp_path, OutTensor.packed(logical, stored, stored)), target)
    np.testing.assert_array_equal(np.load(row.path), pack(nhwc, target, "NHWC"))


@pytest.mark.usefixtures("tiny")
def test_fractal_nz_and_five_dimensions(tmp_path: Path) -> None:
    matrix = np.random.default_rng(4).normal(size=(2, 37, 21)).astype(np.float32)
    volume = np.random.default_rng(4).normal(size=(2, 3, 5, 4, 18)).astype(np.float32)
    one = source(tmp_path, OutTensor.packed(matrix, "FRACTAL_NZ"), OutTensor.packed(volume, "NDC1HWC0", "NDHWC"))
    rows = decoded(one, "ND")
    np.testing.assert_array_equal(np.load(rows[0].path), matrix)
    np.testing.assert_array_equal(np.load(rows[1].path), volume)
    _, row = decoded(one, "NCDHW")
    np.testing.assert_array_equal(np.load(row.path), volume.transpose(0, 4, 1, 2, 3))


def test_padding_stays_where_nothing_tells_it(tmp_path: Path) -> None:
    nhwc = np.random.default_rng(4).normal(size=(2, 3, 5, 19)).astype(np.float32)
    stored = pack(nhwc, "NC1HWC0", "NHWC")
    (row,) = decoded(source(tmp_path, OutTensor(data=stored, layout="NC1HWC0")), "NCHW")
    assert row.shape == (2, 32, 3, 5)
    assert "padding is kept" in str(row.note)
    found = np.load(row.path)
    np.testing.assert_array_equal(found[:, :19], nhwc.transpose(0, 3, 1, 2))
    assert not found[:, 19:].any()


def test_the_graph_tells_what_the_header_does_not(tmp_path: Path) -> None:
    nhwc = np.random.default_rng(4).normal(size=(2, 16, 16, 16)).astype(np.float32)
    stored = OutTensor(data=pack(nhwc.transpose(0, 3, 1, 2), "NC1HWC0", "NCHW"), layout="NC1HWC0")
    plain = source(tmp_path, stored)
    origins = {"output:0": ("NCHW", (2, 16, 16, 16))}
    (row,) = decoded(Source(path=plain.path, name=plain.name, folder=plain.folder, origins=origins), "NHWC")
    np.testing.assert_array_equal(np.load(row.path), nhwc)
    assert row.note is None


def test_what_has_not_the_layout_is_kept_as_stored(tmp_path: Path) -> None:
    one = source(
        tmp_path,
        np.zeros((3, 4), np.float32),
        OutTensor(data=b"text", dtype="string", shape=(1,)),
        OutTensor(data=np.zeros((4, 1, 16, 16), "f4"), layout="FRACTAL_Z"),
        OutTensor(data=np.zeros((1, 2, 2, 3), "f4"), layout="NHWC"),
        OutTensor(data=np.zeros((1, 2, 2, 3), "c8"), layout="NHWC"),
    )
    rows = decoded(one, "NCHW")
    assert [bool(row.reason) for row in rows] == [False, True, False, False, False]
    assert [bool(row.as_stored) for row in rows] == [True, False, True, False, False]
    assert "have no names" in str(rows[0].as_stored)
    assert "no numbers" in str(rows[1].reason)
    done = [row for row in rows if not row.reason]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.path.basename(row.path) for row in done)
    assert [(row.layout, row.shape) for row in done[:3]] == [
        ("ND", (3, 4)), ("FRACTAL_Z", (4, 1, 16, 16)), ("NCHW", (1, 3, 2, 2)),
    ]  # fmt: skip
    assert [np.load(row.path).shape for row in done] == [row.shape for row in done]
    assert rows[0].path.endswith(".output.0.npy")
    assert "complex" in str(decoded(one, "NC1HWC0")[4].as_stored)


@pytest.mark.parametrize("name", ["/tmp/x/Conv2D", "../Conv2D", "a\0b", ".."])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    one = source(tmp_path, np.zeros(3, np.float32))
    before = fingerprint(tmp_path)
    (row,) = convert_files([Source(path=one.path, name=name, folder=str(tmp_path / "out"))], resources=THIS_THREAD)
    assert "no file name" in str(row.reason)
    assert fingerprint(tmp_path) == before


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    one = source(tmp_path, np.zeros(3, np.float32))
    folder = tmp_path / "out"
    folder.mkdir()
    old, new, others = (folder / name for name in (f"{TEMPORARY}a.part", f"{TEMPORARY}b.part", ".theirs.part"))
    for path in (old, new, others):
        path.write_bytes(b"half")
    for path in (old, others):
        os.utime(path, (1, 1))
    (row,) = decoded(one)
    assert sorted(os.listdir(folder)) == sorted([new.name, others.name, os.path.basename(row.path)])


def test_folders_that_killed_workers_left_are_removed(tmp_path: Path) -> None:
    one = source(tmp_path, np.zeros(3, np.float32))
    folder = tmp_path / "out"
    # of a worker that is gone, of one that still writes a large file, of one that has just begun
    places = [folder / f"{TEMPORARY}dc-{number}-1-2.part" for number in range(3)]
    for place, is_old in zip(places, (True, False, False), strict=True):
        place.mkdir(parents=True)
        half = place / f"{TEMPORARY}x.part"
        half.write_bytes(b"half")
        if is_old:
            os.utime(half, (1, 1))
    for place in places[:2]:
        os.utime(place, (1, 1))
    (row,) = decoded(one)
    assert sorted(os.listdir(folder)) == sorted([*(place.name for place in places[1:]), os.path.basename(row.path)])
    assert all(len(list(place.iterdir())) == 1 for place in places[1:])


def test_a_signal_that_ends_the_process_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = source(tmp_path, np.zeros(3, np.float32))

    def stop(*_: object) -> None:
        raise SystemExit(143)

    for owner, name in ((local._NewLocalFile, "write_at"), (npy.NpyWriter, "write")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stop)
            with pytest.raises(SystemExit):
                decoded(one)
        assert os.listdir(tmp_path / "out") == []
    monkeypatch.setattr(os, "pwritev", stop)  # while the header is written
    for size in (0, 3):
        with pytest.raises(SystemExit), npy.NpyWriter(str(tmp_path / "out" / "a.npy"), np.dtype("f4"), (size,)) as file:
            file.write(((0, size),), (size,), np.zeros(size, np.float32))
    assert os.listdir(tmp_path / "out") == []


def test_bad_files_are_rows_and_the_others_go_on(tmp_path: Path) -> None:
    good = source(tmp_path, np.arange(5.0))
    garbage, empty, cut = (tmp_path / "dump" / name for name in ("garbage", "empty", "cut"))
    garbage.write_bytes(b"\xff" * 100)
    empty.write_bytes(b"")
    cut.write_bytes(Path(good.path).read_bytes()[:-4])
    statistics = tmp_path / "dump" / f"{NAME}.csv"
    write_statistics(statistics, [], [OutTensor(data=np.ones((2, 2), np.float32))])
    others = [tmp_path / "dump" / "missing", garbage, empty, cut, statistics]
    before = fingerprint(tmp_path / "dump")
    sources = [Source(path=str(path), name=path.name, folder=good.folder) for path in others]
    rows = convert_files([*sources, good], resources=THIS_THREAD)
    assert [bool(row.reason) for row in rows] == [True] * 5 + [False]
    assert "statistics" in str(rows[4].reason)
    assert os.listdir(good.folder) == [os.path.basename(rows[5].path)]
    assert fingerprint(tmp_path / "dump") == before


def test_one_slot(tmp_path: Path) -> None:
    one = source(tmp_path, np.arange(3.0), np.arange(4.0), inputs=(np.arange(5.0),))
    assert [row.slot for row in decoded(one)] == ["input:0", "output:0", "output:1"]
    for slot, reason in (("output:1", ""), ("output:7", "it has no output:7")):
        (row,) = decoded(Source(path=one.path, name=one.name, folder=one.folder, slot=slot))
        assert render(row.reason).endswith(reason)


def test_long_names_are_shortened_apart(tmp_path: Path) -> None:
    first = source(tmp_path, np.arange(3.0))
    names = [f"Add.{'卷' * 80}{end}.1.0.1772443800000000" for end in "ab"]
    rows = [decoded(Source(path=first.path, name=name, folder=first.folder))[0] for name in names]
    assert len({row.path for row in rows}) == 2
    for row in rows:
        assert len(os.fsencode(os.path.basename(row.path))) <= 255
        assert "shortened" in str(row.note)
        np.testing.assert_array_equal(np.load(row.path), np.arange(3.0))


def test_names_come_from_mapping_csv(tmp_path: Path) -> None:
    folder = tmp_path / "20260302093000" / "0" / "graph" / "1" / "0"
    write_dump(folder / "123456", "block/add", [], [np.arange(3.0)])
    (folder / "mapping.csv").write_text(f"123456,{NAME}\n")
    for path in (tmp_path, folder / "123456"):
        (one,), _ = find_sources(str(path), str(tmp_path / "out"))
        assert one.name == NAME


def test_folders_of_several_devices_stay_apart(tmp_path: Path) -> None:
    for device in "01":
        folder = tmp_path / "dump" / "20260302093000" / device / "graph" / "1" / "0"
        write_dump(folder / NAME, "block/add", [], [np.full(3, float(device))])
    sources, _ = find_sources(str(tmp_path / "dump"), str(tmp_path / "out"))
    rows = convert_files(sources, resources=THIS_THREAD)
    assert len({row.path for row in rows}) == 2
    assert [np.load(row.path)[0] for row in rows] == [0, 1]


def _told(crews: list[str], crew: Callable[[int], AbstractContextManager[Executor]], count: int) -> object:
    crews.append(crew.__name__)
    return crew(count)


@pytest.mark.parametrize("text", [False, True])
def test_threads_or_for_text_processes_share_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool
) -> None:
    monkeypatch.setattr(convert, "_SERIAL_BYTES", 0)
    crews: list[str] = []
    for name in ("thread_pool", "process_pool"):
        monkeypatch.setattr(scheduler, name, partial(_told, crews, getattr(scheduler, name)))
    sources = []
    for number in range(9):
        path = write_dump(tmp_path / "dump" / f"Add.op{number}.1.0.1772443800000000", "op", [], [np.full(3, number)])
        out = str(tmp_path / "out")
        sources.append(Source(path=str(path), name=path.name, folder=out, nbytes=1 << 19, text=text))
    told: list[int] = []
    rows = convert_files(sources, resources=Resources(workers=2, progress=lambda done, total: told.append(done)))
    assert [int(np.load(row.path)[0]) for row in rows] == list(range(9))
    assert told[-1] == sum(one.nbytes for one in sources)
    assert crews == ["process_pool" if text else "thread_pool"]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(
        os.path.basename(path) for row in rows for path in (row.path, row.text_path) if path
    )


def test_threads_stop_in_the_middle_of_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_SERIAL_BYTES", 0)
    writing = threading.Event()
    write = npy.NpyWriter.write

    def wait_and_write(*arguments: Any) -> None:
        writing.set()
        assert scheduler._local.stopping.wait(60)
        write(*arguments)

    def stop(done: int, total: int) -> None:  # after the small one, while the large one is written
        assert writing.wait(60)
        raise KeyboardInterrupt

    large = source(tmp_path, np.zeros(1 << 20, np.float32))
    bad = Source(path=str(tmp_path / "none"), name="none", folder=large.folder, nbytes=1)
    monkeypatch.setattr(npy.NpyWriter, "write", wait_and_write)
    with pytest.raises(WorkStoppedError, match="1 of 2 files are done"):
        convert_files([replace(large, nbytes=4 << 20), bad], resources=Resources(workers=2, progress=stop))
    assert os.listdir(large.folder) == []


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    sources = []
    for number in range(4):
        path = write_dump(tmp_path / "dump" / f"Add.op{number}.1.0.1772443800000000", "op", [], [np.full(3, number)])
        sources.append(Source(path=str(path), name=path.name, folder=str(tmp_path / "out"), nbytes=1))

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    left = tmp_path / "out" / ".another-tool.part"
    left.parent.mkdir()
    left.write_text("")
    with pytest.raises(WorkStoppedError, match="2 of 4 files are done") as stopped:
        convert_files(sources, resources=Resources(workers=1, progress=stop))
    assert len(stopped.value.rows) == 2
    assert sorted(os.listdir(tmp_path / "out")) == sorted(
        [left.name, *(os.path.basename(row.path) for row in stopped.value.rows)]
    )


# --- in which order a tensor is read ----------------------------------------------------------------------------------


def tensor(layout: str, shape: tuple[int, ...], origin: tuple[int, ...] | None) -> Tensor:
    return Tensor(path="x", offset=0, nbytes=0, dtype="float32", shape=shape, layout=layout, origin_shape=origin)


def test_reading_says_how_sure_it_is() -> None:
    sure = reading_of(tensor("NC1HWC0", (2, 2, 5, 3, 16), (2, 5, 3, 19)))
    assert (sure.layout, sure.shape, sure.note) == ("NHWC", (2, 5, 3, 19), None)
    unsure = reading_of(tensor("NC1HWC0", (2, 1, 16, 16, 16), (2, 16, 16, 16)))
    assert unsure.layout == "NHWC"
    assert unsure.note == Message("reason.layout.ambiguous", layout="NHWC", others=("NCHW",))
    told = reading_of(tensor("NC1HWC0", (2, 1, 16, 16, 16), (2, 16, 16, 16)), "NCHW")
    assert (told.layout, told.note) == ("NCHW", None)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (tensor("NC1HWC0", (2, 1, 16, 16, 16), None), "original shape"),
        (tensor("NC1HWC0", (2, 1, 16, 16, 16), (5, 5)), "storage order"),
        (tensor("FRACTAL_ZZ", (2, 1, 16, 16), (5, 5)), "not known"),
    ],
)
def test_reading_falls_back_to_storage_order(one: Tensor, why: str) -> None:
    reading = reading_of(one)
    assert (reading.layout, reading.shape) == ("", one.shape)
    assert why in str(reading.note)


def test_layouts_between_which_nothing_is_known() -> None:
    with pytest.raises(LayoutError, match="plain layout first"):
        reading_as(tensor("NC1HWC0", (2, 2, 5, 3, 16), (2, 5, 3, 19)), "FRACTAL_Z")
    with pytest.raises(LayoutError, match="cannot be brought"):
        reading_as(tensor("FRACTAL_ZZ", (2, 1, 16, 16), (5, 5)), "ND")
    with pytest.raises(LayoutError, match="not have the axes"):
        reading_as(tensor("NHWC", (2, 1, 16, 16), None), "NDHWC")
