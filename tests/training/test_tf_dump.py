"""`tf_dump` by the native reader: whose tensors are taken, their names, and the set that is replaced as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from real_tree import tensors_of, unpack
from tfdbg_files import CODES, DEVICE, content, number, shape_proto, sized, tensor_proto, varint, write_tensor

from precision_tool.lib.cli.cmd_tf_dump import _Progress, tf_dump
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.messages.errors import DataNotFoundError, OutputError, PrecisionToolError, UsageError

TIME = 1795190660042954
STRING = tensor_proto("string", (1,), sized(8, b"text"))


def floats(*values: float) -> bytes:
    """A TensorProto of float32 values."""
    return tensor_proto("float32", (len(values),), content(np.array(values, "<f4").tobytes()))


class Data:
    """A data folder with runs of tfdbg, and what `tf_dump` makes of it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.source = root / "tf" / "tf_debug"
        self.dump = root / "tf" / "dump"
        self._capsys = capsys

    def run(self, name: str) -> Path:
        return self.source / name

    def tf_dump(self, *arguments: str | Path) -> str:
        """What it prints on standard output; exit code 0."""
        settings = load_settings({"data": self.root}, folder=self.root, environment={})
        assert tf_dump.main([str(argument) for argument in arguments], settings) == 0
        self.err = ""
        out, self.err = self._capsys.readouterr()
        return out

    def names(self) -> list[str]:
        return sorted(os.listdir(self.dump))

    def written(self) -> dict[str, tuple[int, int]]:
        """Which file each is and when it was written; reading changes other times."""
        found = {name: os.stat(self.dump / name) for name in self.names()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}

    def values(self, name: str) -> list[float]:
        values: list[float] = np.load(self.dump / name, allow_pickle=False).tolist()
        return values


@pytest.fixture
def data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Data:
    return Data(tmp_path / "precision_data", capsys)


@pytest.fixture
def one_run(data: Data) -> Data:
    run = data.run("run_1795190660015229_0")
    write_tensor(run, "conv1/Conv2D", 0, TIME, floats(1, 2))
    write_tensor(run, "conv.1/Split", 1, TIME + 1, floats(3))
    return data


def test_names_and_values(one_run: Data) -> None:
    out = one_run.tf_dump()
    assert one_run.names() == [f"conv1_Conv2D.0.{TIME}.npy", f"conv_1_Split.1.{TIME + 1}.npy"]
    assert one_run.values(f"conv1_Conv2D.0.{TIME}.npy") == [1, 2]
    assert "2 tensors" in out
    assert "of 1 run written" in out
    assert one_run.err == ""


def test_a_real_run_gives_every_tensor_that_can_be_read(data: Data, tmp_path: Path) -> None:
    """A training step as TensorFlow 1.15 dumped it."""
    unpack(tmp_path / "real")
    run = next((tmp_path / "real" / "benchmark").glob("run_*"))
    data.source.mkdir(parents=True)
    run.rename(data.source / run.name)
    data.tf_dump()
    wanted = tensors_of(data.source / run.name)
    assert len(wanted) > 50
    found = {".".join(name.split(".")[:2]): np.load(data.dump / name) for name in data.names()}
    assert len(found) == len(wanted)
    values = sorted(array.tobytes() for array in found.values())
    assert values == sorted(array.tobytes() for array in wanted.values())


def test_the_last_run_that_holds_a_tensor_wins(data: Data) -> None:
    """By time and counter, not by the spelling of the names. A loop's dumps are all kept."""
    for run, value in (("run_999_9", 1), ("run_1000_9", 2), ("run_1000_10", 3)):
        write_tensor(data.run(run), "both", 0, TIME + value, floats(value))
    write_tensor(data.run("run_999_9"), "once", 0, TIME, floats(7))
    for moment in (TIME + 5, TIME + 6):
        write_tensor(data.run("run_1000_9"), "loop", 0, moment, floats(moment - TIME))
    write_tensor(data.run("run_999_9"), "loop", 0, TIME + 9, floats(9))
    assert "of 3 runs" in data.tf_dump()
    assert data.names() == sorted(
        [f"both.0.{TIME + 3}.npy", f"once.0.{TIME}.npy", f"loop.0.{TIME + 5}.npy", f"loop.0.{TIME + 6}.npy"]
    )


def test_one_run_and_all_runs(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0").mkdir()
    for number_of_run in range(3):
        write_tensor(data.run(f"run_{1000 + number_of_run}_{number_of_run}"), "op", 0, TIME + number_of_run, floats(1))
    write_tensor(data.run("again/run_2000_2"), "op", 0, TIME + 7, floats(1))
    data.tf_dump("--run", "1")
    assert data.names() == [f"op.0.{TIME + 1}.npy"]
    data.tf_dump("--run", "run_1002_2")
    assert data.names() == [f"op.0.{TIME + 2}.npy"]
    data.tf_dump("--run", "all")
    assert data.names() == [f"op.0.{TIME + number}.npy" for number in (0, 1, 2, 7)]
    elsewhere = write_tensor(tmp_path / "other", "op", 3, TIME, floats(1)).parents[1]
    data.tf_dump("--run", elsewhere)
    assert data.names() == [f"op.3.{TIME}.npy"]
    data.tf_dump("--run", "0")  # also where a folder here is called so
    assert data.names() == [f"op.0.{TIME}.npy"]
    with pytest.raises(UsageError, match="run_1002_2, run_2000_2"):
        data.tf_dump("--run", "2")
    with pytest.raises(DataNotFoundError) as error:
        data.tf_dump("--run", "5")
    assert "run_1000_0" in error.value.hint
    for odd in ("²", "9" * 5000):
        with pytest.raises(DataNotFoundError, match="no such run"):
            data.tf_dump("--run", odd)


def test_a_run_folder_itself_and_no_run_at_all(data: Data) -> None:
    with pytest.raises(DataNotFoundError, match="no such folder") as error:
        data.tf_dump()
    assert "sess_dump" in error.value.hint
    (data.source / "empty").mkdir(parents=True)
    with pytest.raises(DataNotFoundError, match="no run folder"):
        data.tf_dump()
    write_tensor(data.source, "op", 0, TIME, floats(1))
    data.tf_dump()
    assert data.names() == [f"op.0.{TIME}.npy"]


def test_devices_and_what_is_no_tensor(one_run: Data) -> None:
    run = one_run.run("run_1795190660015229_0")
    gpu = DEVICE.replace("CPU_0", "GPU_1")
    write_tensor(run, "gpu/op", 2, TIME, floats(5), device=gpu)
    write_tensor(run, "conv1/Conv2D", 0, TIME + 9, tensor_proto("int64", (1,)), watch="DebugNanCount")
    (run / "_tfdbg_fetches_info_").write_bytes(b"2\x00")
    (run / gpu / "_tfdbg_graph_hash12_34").write_bytes(b"graph")
    (run / gpu / "notes.txt").write_bytes(b"a note")
    out = one_run.tf_dump()
    assert len(one_run.names()) == 3
    assert f"gpu_op.2.{TIME}.npy" in one_run.names()
    assert "skipped 1: not a tensor, but what DebugNanCount reports of it (the first: conv1/Conv2D:0)" in out
    assert "skipped 1: not named like a tensor file of tfdbg (the first: " in out
    assert "graph_hash" not in out


def test_skipped_and_damaged_tensors_are_counted(one_run: Data) -> None:
    run = one_run.run("run_1795190660015229_0")
    for name in ("a", "b"):
        write_tensor(run, name, 0, TIME, STRING)
    write_tensor(run, "handle", 0, TIME, tensor_proto("resource", (), content(b"handle")))
    write_tensor(run, "never", 0, TIME, tensor_proto("float32", ()))
    cut = write_tensor(run, "cut", 0, TIME, floats(1, 2, 3))
    cut.write_bytes(cut.read_bytes()[:-20])
    write_tensor(run, "odd", 0, TIME, tensor_proto("int32", (1,), sized(7, b"\x01\x02")))
    evil = write_tensor(run, "evil\x1b[2J", 0, TIME, floats(1))
    evil.write_bytes(b"")
    out = one_run.tf_dump()
    assert len(one_run.names()) == 2
    assert "skipped 2: string (the first: a:0)" in out
    assert "skipped 1: resource (the first: handle:0)" in out
    assert "skipped 1: not initialized (the first: never:0)" in out
    assert out.count("not read: ") == 3
    assert "more values than the 1 elements" in out
    assert "\\x1b[2J" in out
    assert "\x1b" not in out


def test_many_damaged_tensors_are_not_all_listed(one_run: Data) -> None:
    for count in range(20):
        write_tensor(one_run.run("run_1795190660015229_0"), f"op{count}", 0, TIME, b"").write_bytes(b"")
    out = one_run.tf_dump()
    assert out.count("the file is empty") == 5
    assert "not read: 15 more, 20 in all" in out


def test_nothing_readable_is_an_error_and_leaves_the_old_set(one_run: Data) -> None:
    one_run.tf_dump()
    before = one_run.names()
    for path in one_run.source.rglob("*DebugIdentity*"):
        path.write_bytes(b"")
    with pytest.raises(DataNotFoundError, match=r"none of 2 tensor files .*conv1/Conv2D:0.*the file is empty"):
        one_run.tf_dump()
    assert one_run.names() == before


def test_names_that_come_out_alike(data: Data) -> None:
    run = data.run("run_1_0")
    write_tensor(run, "a/b", 0, TIME, floats(1))
    write_tensor(run, "a_b", 0, TIME, floats(2))
    write_tensor(run, "twice", 0, TIME, floats(3))
    write_tensor(run, "twice", 0, f"{TIME}-1", floats(4))
    long = "/".join(["x" * 60] * 5)
    write_tensor(run, long, 0, TIME, floats(5))
    out = data.tf_dump()
    assert data.names() == [f"a_b.0.{TIME}.npy", f"twice.0.{TIME}.npy"]
    assert data.values(f"twice.0.{TIME}.npy") == [4]
    assert "the same tensor was dumped within the same microsecond (the first: twice:0)" in out
    assert "which file names spell alike, was dumped within the same microsecond" in out
    assert "note: " not in out
    write_tensor(run, "c/d", 0, TIME, floats(1))
    write_tensor(run, "c_d", 0, TIME + 1, floats(2))
    assert "have the same file name but for the time: 1, the first c/d:0 and c_d:0; which of" in data.tf_dump()
    assert "its name is too long for a file" in out


def test_a_second_time_nothing_is_written(one_run: Data) -> None:
    one_run.tf_dump()
    before = one_run.written()
    out = one_run.tf_dump()
    assert "up to date, 2 tensors" in out
    assert one_run.written() == before


@pytest.mark.parametrize("change", ["value", "cut", "extra"])
def test_a_set_that_differs_is_replaced_as_a_whole(one_run: Data, change: str) -> None:
    one_run.tf_dump()
    path = one_run.dump / f"conv1_Conv2D.0.{TIME}.npy"
    if change == "value":
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        (one_run.dump / f"old_op.0.{TIME}.npy").write_bytes(b"old")
    out = one_run.tf_dump()
    assert one_run.names() == [f"conv1_Conv2D.0.{TIME}.npy", f"conv_1_Split.1.{TIME + 1}.npy"]
    assert one_run.values(path.name) == [1, 2]
    assert f"replaced: {3 if change == 'extra' else 2} existing tensors" in out
    assert sorted(os.listdir(one_run.dump.parent)) == ["dump", "tf_debug"]


def test_other_files_are_kept_and_told_of(one_run: Data) -> None:
    one_run.tf_dump()
    (one_run.dump / "conv1:0.1795190660042954000.npy").write_bytes(b"of tfdbg_ascend")
    (one_run.dump / "notes").mkdir()
    (one_run.dump / "notes" / "a.txt").write_bytes(b"mine")
    write_tensor(one_run.run("run_1795190660015229_0"), "new", 0, TIME, floats(1))
    out = one_run.tf_dump()
    assert (one_run.dump / "notes" / "a.txt").read_bytes() == b"mine"
    assert len(one_run.names()) == 5
    kept = "kept: 1 .npy file of another origin, the first conv1:0.1795190660042954000.npy"
    assert kept in out
    assert kept in one_run.tf_dump()  # also when nothing is written


def test_the_documented_way_to_start_afresh(one_run: Data) -> None:
    """`rm -rf precision_data/tf/dump/* && tf_dump`"""
    one_run.tf_dump()
    for path in one_run.dump.iterdir():
        path.unlink()
    out = one_run.tf_dump()
    assert len(one_run.names()) == 2
    assert "replaced" not in out


MOUNTS = "36 35 98:0 / / rw - ext4 /dev/root rw\n37 36 98:0 /a {} rw - ext4 /dev/root rw\n"


def test_a_mount_point_is_told_before_anything_is_written(one_run: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renaming one fails with EBUSY; one of the same disk looks like any folder."""
    one_run.dump.mkdir()
    mounts = one_run.root / "mounts"
    mounts.write_text(MOUNTS.format(str(one_run.dump).replace("_", "\\137")), "utf-8")
    real = open
    monkeypatch.setattr(
        "builtins.open",
        lambda file, *rest, **more: real(mounts if file == "/proc/self/mountinfo" else file, *rest, **more),
    )
    with pytest.raises(OutputError, match="is a mount point") as error:
        one_run.tf_dump()
    assert one_run.names() == []
    assert error.value.hint.endswith(f"-o {one_run.dump / 'tensors'}")
    one_run.tf_dump("-o", one_run.dump / "tensors")
    assert len(os.listdir(one_run.dump / "tensors")) == 2


def test_a_folder_in_one_that_is_not_to_be_written(one_run: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    one_run.dump.mkdir()
    monkeypatch.setattr(os, "mkdir", Breakdown(os.mkdir, 0, PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(OutputError, match=r"tf: cannot be written \(Permission denied\), where the new set") as error:
        one_run.tf_dump()
    assert error.value.hint.endswith(f"-o {one_run.dump / 'tensors'}")


def test_a_linked_folder_stays_a_link(one_run: Data, tmp_path: Path) -> None:
    (tmp_path / "disk" / "dump").mkdir(parents=True)
    one_run.dump.symlink_to(tmp_path / "disk" / "dump")
    one_run.tf_dump()
    assert one_run.dump.is_symlink()
    assert len(os.listdir(tmp_path / "disk" / "dump")) == 2


def test_the_folder_keeps_its_permissions(one_run: Data) -> None:
    one_run.tf_dump()
    one_run.dump.chmod(0o750)
    (one_run.dump / f"old.0.{TIME}.npy").write_bytes(b"old")
    one_run.tf_dump()
    assert one_run.dump.stat().st_mode & 0o777 == 0o750


class Breakdown:
    """Lets a function through a number of times, then raises."""

    def __init__(self, function: Callable[..., object], times: int, error: BaseException) -> None:
        self._function, self._times, self._error = function, times, error

    def __call__(self, *arguments: object) -> object:
        self._times -= 1
        if self._times < 0:
            raise self._error
        return self._function(*arguments)


@pytest.mark.parametrize("written", range(4))
@pytest.mark.parametrize(
    ("error", "seen"),
    [(OSError(errno.ENOSPC, "No space left on device"), OutputError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_interrupted_or_out_of_space_the_old_set_stays(
    one_run: Data, monkeypatch: pytest.MonkeyPatch, written: int, error: BaseException, seen: type[BaseException]
) -> None:
    """Wherever a write fails: every file has a header and values, and there are two."""
    one_run.tf_dump()
    (one_run.dump / f"old.0.{TIME}.npy").write_bytes(b"old")
    before = one_run.names()
    real = os.write if written % 2 == 0 else os.sendfile
    monkeypatch.setattr(os, real.__name__, Breakdown(real, written // 2, error))
    with pytest.raises(seen):
        one_run.tf_dump()
    monkeypatch.undo()
    assert one_run.names() == before
    assert sorted(os.listdir(one_run.dump.parent)) == ["dump", "tf_debug"]


def test_too_little_space_is_told_before_anything_is_written(one_run: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100})())
    with pytest.raises(OutputError, match="not enough space: "):
        one_run.tf_dump()
    assert sorted(os.listdir(one_run.dump.parent)) == ["tf_debug"]


def test_a_swap_that_fails_is_taken_back(one_run: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    one_run.tf_dump()
    (one_run.dump / f"old.0.{TIME}.npy").write_bytes(b"old")
    before = one_run.names()
    real, calls = os.rename, []

    def rename(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OutputError, match="Input/output error"):
        one_run.tf_dump()
    monkeypatch.undo()
    assert one_run.names() == before


def test_what_a_killed_process_left_is_put_right(one_run: Data) -> None:
    """Killed while writing, between the two renames, or while it removed the old set."""
    one_run.tf_dump()
    parent, expected = one_run.dump.parent, one_run.names()
    (parent / ".dump.12.34.part").mkdir()
    (parent / ".dump.12.34.part" / "half.npy").write_bytes(b"half")
    (parent / ".dump.12.34.old").mkdir()
    (parent / ".dump.12.34.old" / f"old.0.{TIME}.npy").write_bytes(b"old")
    (parent / ".dump.12.34.old" / "mine.txt").write_bytes(b"mine")
    (parent / ".dump.backup.old").mkdir()
    one_run.tf_dump()
    assert one_run.names() == [*expected, "mine.txt"]
    assert sorted(os.listdir(parent)) == [".dump.backup.old", "dump", "tf_debug"]
    one_run.dump.rename(parent / ".dump.12.35.old")
    assert "up to date" in one_run.tf_dump()


def test_the_new_set_of_another_process_is_left_alone(one_run: Data) -> None:
    other = one_run.dump.parent / ".dump.12.34.part"
    other.mkdir(parents=True)
    fd = os.open(other, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        one_run.tf_dump()
        assert other.is_dir()
    finally:
        os.close(fd)


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, which locks files that are open for writing only."""
    monkeypatch.setattr(fcntl, "flock", Breakdown(fcntl.flock, 0, OSError(errno.EBADF, "Bad file descriptor")))


def test_what_was_left_where_locks_do_not_work(one_run: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's files come back at once; a half set goes when its process is dead and nothing changes any more."""
    without_locks(monkeypatch)
    parent = one_run.dump.parent
    dead = subprocess.Popen(["true"])
    dead.wait()
    part = {who: parent / f".dump.{pid}.34.part" for who, pid in (("dead", dead.pid), ("alive", os.getppid()))}
    for path in part.values():
        path.mkdir()
        (path / "half.npy").write_bytes(b"half")
    old = parent / ".dump.12.34.old"
    old.mkdir()
    (old / "my_notes.txt").write_bytes(b"mine")
    out = one_run.tf_dump()
    assert (one_run.dump / "my_notes.txt").read_bytes() == b"mine"
    assert not old.exists()
    for path in part.values():  # on another machine the same number may be that of a living one
        assert f"note: left alone: {path}; another tf_dump may be writing it, else remove it" in out
    for path in part.values():
        for each in (path / "half.npy", path):
            os.utime(each, (1e9, 1e9))
    one_run.tf_dump()
    assert not part["dead"].exists()
    assert part["alive"].exists()
    one_run.dump.rename(old)
    one_run.tf_dump()
    assert "my_notes.txt" in one_run.names()
    assert not old.exists()


def test_a_leftover_whose_name_is_taken_gets_another(one_run: Data) -> None:
    one_run.tf_dump()
    old = one_run.dump.parent / ".dump.12.34.old"
    for folder, text in ((one_run.dump, b"new"), (old, b"old")):
        folder.mkdir(exist_ok=True)
        (folder / "notes.txt").write_bytes(text)
    out = one_run.tf_dump()
    assert (one_run.dump / "notes.txt").read_bytes() == b"new"
    assert (one_run.dump / "notes.txt.kept1").read_bytes() == b"old"
    assert f"note: kept under a new name: {one_run.dump / 'notes.txt.kept1'}" in out
    assert not old.exists()


def test_another_folder(one_run: Data, tmp_path: Path) -> None:
    one_run.tf_dump("-o", tmp_path / "here" / "below")
    assert len(os.listdir(tmp_path / "here" / "below")) == 2
    assert not one_run.dump.exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="a file where a folder should be"):
        one_run.tf_dump("-o", tmp_path / "file")
    with pytest.raises(OutputError, match="cannot be written"):
        one_run.tf_dump("-o", tmp_path / "file" / "below")


@pytest.mark.parametrize("out", [".", ".."])
def test_the_working_folder_is_not_replaced(
    one_run: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    (tmp_path / "around" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "around" / "here")
    with pytest.raises(UsageError, match="working folder"):
        one_run.tf_dump("-o", out)
    assert Path.cwd().samefile(tmp_path / "around" / "here")


@pytest.mark.parametrize("out", [".", "..", "run_1795190660015229_0", "below"])
def test_what_tfdbg_wrote_is_never_written_to(one_run: Data, out: str) -> None:
    with pytest.raises(UsageError, match="lies in"):
        one_run.tf_dump("-o", one_run.source / out)


@pytest.mark.parametrize("out", ["npu/debug_0/dump", "npu/debug_0/dump/20240101000000", "npu", "overflow/dump/a", "."])
def test_dumps_of_the_npu_are_never_written_to(one_run: Data, out: str) -> None:
    dump = one_run.root / "npu" / "debug_0" / "dump" / "20240101000000"
    dump.mkdir(parents=True)
    (dump / "Add.add.1.2.3").write_bytes(b"dump")
    before = tree(one_run.root / "npu")
    with pytest.raises(UsageError, match="which holds dumps"):
        one_run.tf_dump("-o", one_run.root / out, "false")
    assert tree(one_run.root / "npu") == before
    shutil.rmtree(one_run.root / "npu")
    with pytest.raises(UsageError, match="which holds dumps"):
        one_run.tf_dump("-o", one_run.root / out)
    one_run.tf_dump("-o", one_run.dump)
    assert len(one_run.names()) == 2


def test_what_cannot_be_looked_at_is_a_row(one_run: Data) -> None:
    """A link to itself among the runs, and among the tensors of one."""
    run = one_run.run("run_1795190660015229_0")
    for folder in (one_run.source, run, run / DEVICE, run / DEVICE / "conv1"):
        (folder / "loop").symlink_to(folder / "loop")
    out = one_run.tf_dump()
    assert len(one_run.names()) == 2
    for folder in (run, run / DEVICE, run / DEVICE / "conv1"):
        assert f"not read: {folder / 'loop'}: cannot be read (Too many levels of symbolic links)" in out


def test_tensors_of_several_runs_are_said_to_be_mixed(data: Data) -> None:
    for count in range(3):
        write_tensor(data.run(f"run_{1000 + count}_{count}"), f"op{min(count, 1)}", 0, TIME + count, floats(count))
    mixed = "each tensor is taken from the last of 2 runs that has it: --run chooses one"
    # The second run has nothing of its own.
    assert mixed in data.tf_dump()
    assert "--run chooses" not in data.tf_dump("--run", "all")
    assert "--run chooses" not in data.tf_dump("--run", "1")


def test_tensors_that_claim_more_than_they_hold(one_run: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not keep the others from being written."""
    run = one_run.run("run_1795190660015229_0")
    for count in range(3):
        write_tensor(run, f"fill{count}", 0, TIME, tensor_proto("float32", (5 << 20,), sized(5, bytes(4))))
    write_tensor(run, "absurd", 0, TIME, tensor_proto("float32", (1 << 30,), sized(5, bytes(4))))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 50_000_000})())
    out = one_run.tf_dump()
    assert len(one_run.names()) == 2
    assert "cannot have the shape" in out
    assert f"not read: fill2.0.{TIME}.npy: 21.0 MB by its shape, of which the file holds little, do not fit" in out
    monkeypatch.undo()
    assert "5 tensors (62.9 MB)" in one_run.tf_dump()


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}


def test_the_source_is_left_as_it_is(one_run: Data) -> None:
    before = tree(one_run.source)
    one_run.tf_dump()
    one_run.tf_dump("--run", "all")
    assert tree(one_run.source) == before


def test_wrong_options(one_run: Data) -> None:
    for arguments in (["--engine", "other"], ["--time-limit", "0"], ["--time-limit", "soon"], ["--runs"], ["a", "b"]):
        with pytest.raises(UsageError, match="tf_dump: "):
            one_run.tf_dump(*arguments)


def python(code: str) -> str:
    """A shell command that runs Python code."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


def test_a_command_runs_first_where_there_is_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = Data(tmp_path / "precision_data", capfd)
    made = data.run("run_1_0")
    template = write_tensor(data.root / "template", "op", 0, TIME, floats(4)).parents[1]
    show = "print('step', 1, os.environ['PRECISION_TOOL_DATA'])"
    command = python(f"import os, shutil; {show}; shutil.copytree({str(template)!r}, {str(made)!r})")
    settings = load_settings({"data": data.root}, folder=data.root, environment={})
    assert tf_dump.main([command], settings) == 0
    assert f"step 1 {data.root}\n" in capfd.readouterr().out
    assert data.values(f"op.0.{TIME}.npy") == [4]
    assert tf_dump.main(["exit 9"], settings) == 0
    first, second = capfd.readouterr().err.splitlines()
    assert first == "not run: exit 9"
    assert second.endswith("already holds 1 run, the last run_1_0: it is used; to dump again remove it first")


def test_a_command_that_fails_passes_its_exit_code_on(data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings({"data": data.root}, folder=data.root, environment={})
    assert tf_dump.main([python("raise SystemExit(7)")], settings) == 7
    assert capsys.readouterr().err == "the command ended with exit code 7\n"
    assert tf_dump.main(["kill -TERM $$"], settings) == 143
    with pytest.raises(DataNotFoundError):
        tf_dump.main(["true"], settings)
    run = data.run("run_1_0") / DEVICE
    assert tf_dump.main([f"mkdir -p '{run}'; exit 5"], settings) == 5
    assert "exit code 5; tf_dump without it uses what was dumped" in capsys.readouterr().err
    assert not data.dump.exists()


#: More than the system copies at once, and more than 31 bits.
HUGE = (2 << 30) + (16 << 20)


@pytest.fixture
def huge_run(data: Data) -> Iterator[Data]:
    """A tensor of 2 GB, which takes no room on the disk: a hole in a file."""
    size = HUGE // 4
    shape = number(1, CODES["float32"]) + sized(2, shape_proto((size,)))
    path = write_tensor(data.run("run_1_0"), "huge", 0, TIME, b"")
    head = shape + varint(4 << 3 | 2) + varint(HUGE)
    for field, before in ((8, sized(1, b"huge")), (1, b""), (5, b"\x09" + bytes(8))):
        head = before + varint(field << 3 | 2) + varint(len(head) + HUGE) + head
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + HUGE)
    yield data
    for each in (path, data.dump / f"huge.0.{TIME}.npy"):
        each.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_huge_tensor_takes_little_memory(huge_run: Data) -> None:
    # Not ru_maxrss, which counts what the test's own process held when it started this one.
    code = (
        "import sys\n"
        "from precision_tool.cli import main\n"
        "assert main(['--data', sys.argv[1], 'tf_dump']) == 0\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, huge_run.root], capture_output=True, text=True, check=True, cwd=huge_run.root
    )
    assert (huge_run.dump / f"huge.0.{TIME}.npy").stat().st_size == HUGE + 128
    assert int(ran.stdout.splitlines()[-1]) < 200_000


def test_errors_are_the_users(one_run: Data) -> None:
    """What is raised has a hint that says what to do."""
    for arguments in (["--run", "8"], ["-o", str(one_run.source)], ["--engine", "no"]):
        with pytest.raises(PrecisionToolError) as error:
            one_run.tf_dump(*arguments)
        assert error.value.hint


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = _Progress()
    for seconds, done in ((1, 10_000_000), (5, 50_000_000), (6, 60_000_000), (11, 110_000_000), (20, 200_000_000)):
        now[0] = 100 + seconds
        progress(done, 200_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "tf_dump: 25% of 200.0 MB, 10.0 MB/s, 15 s left",
        "tf_dump: 55% of 200.0 MB, 10.0 MB/s, 9 s left",
    ]
