"""HDF5 in a process of its own: it may die, hang and claim memory, and the tool goes on.

`deadly_h5py.py` stands in for h5py in that process: files, and data sets, named `dies`, `computes`, … do it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import HANG, TOOL, environment, tool
from h5_files import GPU, NPU, write_h5

from precision_tool.lib.io import hdf5_process as h5_process
from precision_tool.lib.io import tensor_bytes
from precision_tool.lib.io.hdf5 import read_h5
from precision_tool.lib.io.hdf5_child import BUFFER
from precision_tool.lib.io.hdf5_process import Hdf5Error, close_hdf5, hdf5_blocks, hdf5_rows
from precision_tool.lib.io.tensor_bytes import open_bytes
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.model.tensor import Tensor

DEADLY = Path(__file__).resolve().parents[1] / "deadly_h5py.py"


def children(process: int = 0) -> list[int]:
    """The child processes of a process, zombies too."""
    text = Path(f"/proc/{process or os.getpid()}/task/{process or os.getpid()}/children").read_text("ascii")
    return [int(number) for number in text.split()]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No child from before, and none is left."""
    close_hdf5()
    resource_tracker.ensure_running()  # a child that multiprocessing keeps
    before = children()
    yield
    close_hdf5()
    assert children() == before


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The child finds the other h5py; what a command needs in its environment to find it too."""
    folder = tmp_path / "modules"
    folder.mkdir()
    shutil.copyfile(DEADLY, folder / "h5py.py")
    monkeypatch.syspath_prepend(str(folder))
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def a_dump(path: Path, name: str = "/Op/1/output/y") -> Path:
    return write_h5(path, {name: np.arange(4.0)}, chunks=(2,))


def tensor_of(path: Path) -> Tensor:
    ((value,),) = (op.values for op in read_h5(str(path)).ops)
    assert value.tensor is not None
    return value.tensor


def whole(path: Path, shape: tuple[int, ...], dataset: str = "/Op/1/output/y") -> bytes:
    """The whole data set, as one block."""
    nbytes = 8 * prod(shape)
    return hdf5_blocks(str(path), nbytes, dataset=dataset, dtype="<f8", shape=shape, block=shape, numbers=(0, 1))


def refused(path: Path) -> str:
    with pytest.raises(FormatError) as error:
        read_h5(str(path))
    assert error.value.hint == "copy or dump it again"
    return error.value.message


# --- one child --------------------------------------------------------------------------------------------------------


def test_one_child_serves_all_requests_and_this_process_needs_no_h5py(tmp_path: Path) -> None:
    paths = [a_dump(tmp_path / f"{number}.h5") for number in range(4)]
    script = (
        "import sys; from precision_tool.lib.io import hdf5, tensor_bytes, hdf5_process\n"
        "assert hdf5_process._child._process is None\n"
        "pids = set()\n"
        "for path in sys.argv[1:]:\n"
        "    tensor = hdf5.read_h5(path).ops[0].values[0].tensor\n"
        "    with tensor_bytes.open_bytes(tensor) as file:\n"
        "        assert file.read_at(8, 8) == b'\\0\\0\\0\\0\\0\\0\\xf0?'\n"
        "    pids.add(hdf5_process._child._process.pid)\n"
        "print(len(pids), 'h5py' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, encoding="utf-8", check=True)
    assert (run.stdout, run.stderr) == ("1 False\n", "")


def test_a_file_that_changes_is_read_anew(tmp_path: Path) -> None:
    path = a_dump(tmp_path / "d.h5")
    assert whole(path, (4,)) == np.arange(4.0).tobytes()
    write_h5(path, {"/Op/1/output/y": np.ones((3, 5))})
    assert whole(path, (3, 5)) == np.ones(15).tobytes()


def test_the_child_finds_the_file_wherever_this_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in (("a", (2,)), ("b", (3,))):
        write_h5(tmp_path / name / "d.h5", {"/Op/1/output/y": np.zeros(shape)})
        monkeypatch.chdir(tmp_path / name)
        assert tensor_of(Path("d.h5")).shape == shape


def test_names_that_are_no_text_are_found(tmp_path: Path) -> None:
    path = a_dump(tmp_path / os.fsdecode(b"caf\xe9.h5"))
    assert tensor_of(path).shape == (4,)
    path.write_bytes(path.read_bytes()[:600])
    assert r"caf\udce9.h5" in refused(path)


def test_a_message_names_the_file_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_dump(tmp_path / "d.h5")
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.chdir(tmp_path)
    message = refused(Path("d.h5"))
    assert message.startswith("d.h5: ")
    assert str(tmp_path) not in message


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    paths = [a_dump(tmp_path / f"{number}.h5", f"/Op/{number}/output/y") for number in range(8)]
    found: dict[int, list[int]] = {}

    def read(number: int) -> None:
        found[number] = [op.seq for _ in range(20) for op in read_h5(str(paths[number])).ops]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert found == {number: [number] * 20 for number in range(8)}


def child_of(path: str) -> int:
    """The process that serves the process this runs in."""
    read_h5(path)
    process = h5_process._child._process
    assert process is not None
    return process.pid


def is_there(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_process_has_a_child_of_its_own_which_ends_with_it(tmp_path: Path, method: str) -> None:
    path = str(a_dump(tmp_path / "d.h5"))
    own = child_of(path)
    with multiprocessing.get_context(method).Pool(1) as pool:
        other = pool.apply(child_of, (path,))
        assert other != own
        assert is_there(other)
        pool.close()
        pool.join()
    assert not is_there(other)
    assert child_of(path) == own


def test_a_killed_tool_leaves_no_child(tmp_path: Path) -> None:
    script = (
        "import sys, time; from precision_tool.lib.io import hdf5, hdf5_process\n"
        "hdf5.read_h5(sys.argv[1]); print(hdf5_process._child._process.pid, flush=True); time.sleep(99)"
    )
    command = [sys.executable, "-c", script, str(a_dump(tmp_path / "d.h5"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert is_there(child)
        process.kill()
    end = time.monotonic() + HANG
    while is_there(child) and "Z" not in Path(f"/proc/{child}/stat").read_text("ascii").rpartition(")")[2][:3]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ctrl_c_does_not_reach_the_child(tmp_path: Path) -> None:
    child = child_of(str(a_dump(tmp_path / "d.h5")))
    assert os.getpgid(child) != os.getpgid(0)


# --- what damaged files do --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("deadly")
@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("dies", "HDF5 itself ended with signal 11 (SIGSEGV)"),
        ("aborts", "HDF5 itself ended with signal 6 (SIGABRT)"),
        ("computes", "HDF5 itself computed for more than 1 seconds"),
        ("waits", "HDF5 itself gave no answer for 1.5 seconds"),
        ("claims", "it takes more memory than such a file may"),
        ("babbles", "HDF5 itself broke down and gave no sensible answer"),
    ],
)
def test_a_file_that_breaks_hdf5_is_an_error_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, words: str
) -> None:
    with monkeypatch.context() as changed:  # a sound file gets the usual time
        changed.setattr(h5_process, "CPU_SECONDS", 1)
        if deed == "waits":
            changed.setattr(h5_process, "WAIT_SECONDS", 1.5)
        message = refused(a_dump(tmp_path / f"{deed}.h5"))
    assert message == f"{tmp_path / deed}.h5: damaged HDF5 file: {words}"
    assert tensor_of(a_dump(tmp_path / "fine.h5")).shape == (4,)


@pytest.mark.usefixtures("deadly")
def test_what_a_library_prints_is_no_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tensor_of(a_dump(tmp_path / "prints.h5")).shape == (4,)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("deadly")
def test_a_file_that_kills_again_and_again_is_left_alone(tmp_path: Path) -> None:
    path = a_dump(tmp_path / "dies.h5")
    for _ in range(h5_process.MOST_DEATHS):
        assert "SIGSEGV" in refused(path)
    assert "has died of this file several times" in refused(path)
    assert h5_process._child._process is None
    os.utime(path, (1, 1))  # another one of that name
    assert "SIGSEGV" in refused(path)


def test_a_claim_of_memory_is_refused_by_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GB for a driver information block, were it not refused before: HDF5 asks for them when it opens the file."""
    path = tmp_path / "d.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["/Op/1/output/y"] = np.ones(4)
    raw = bytearray(path.read_bytes())
    raw[48:56] = struct.pack("<Q", len(raw))
    path.write_bytes(raw + struct.pack("<BBHI8s", 0, 0, 0, 0xFFFFFFF0, b"NCSAfami") + bytes(64))
    monkeypatch.setattr(h5_process, "_check_superblock", lambda file: None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert "not an HDF5 file that can be read" in refused(path)
    close_hdf5()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 300_000)


def test_more_answers_than_a_file_can_hold_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h5_process, "MOST_ANSWERED", 2000)
    names = {f"/Op/{number}/output/y": np.ones(1) for number in range(9)}
    assert "it claims more than such a file can hold" in refused(write_h5(tmp_path / "d.h5", names))


def test_a_fault_of_our_own_is_none_of_the_file(tmp_path: Path) -> None:
    path = str(a_dump(tmp_path / "d.h5"))
    with pytest.raises(RuntimeError, match="no attribute 'nonsense'"), hdf5_rows("nonsense", path) as rows:
        next(rows)


def test_stopping_in_the_middle_leaves_nothing_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_h5(tmp_path / "d.h5", {f"/Op/{number}/output/y": np.ones(1) for number in range(900)}))
    with hdf5_rows("walk", path, most=9999, depth=32, attributes=()) as rows:
        next(rows)
    assert h5_process._child._process is None
    assert len(read_h5(path).ops) == 900


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("deadly")
def test_ctrl_c_ends_a_request(tmp_path: Path) -> None:
    with alarm(1.0), pytest.raises(KeyboardInterrupt):
        read_h5(str(a_dump(tmp_path / "waits.h5")))
    assert tensor_of(a_dump(tmp_path / "fine.h5")).shape == (4,)


@pytest.mark.usefixtures("deadly")
def test_a_data_set_that_breaks_hdf5_is_an_error_of_its_own(tmp_path: Path) -> None:
    tensor = tensor_of(a_dump(tmp_path / "d.h5", "/Op/1/output/dies"))
    with pytest.raises(FormatError) as error:
        open_bytes(tensor)
    assert error.value.message.startswith(f"{tmp_path}/d.h5: /Op/1/output/dies: cannot be read: HDF5 itself ended with")


def test_small_chunks_are_read_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(5000.0)
    tensor = tensor_of(write_h5(tmp_path / "d.h5", {"/Op/1/output/y": values}, chunks=(2,)))
    monkeypatch.setattr(tensor_bytes, "_READ_AHEAD", 16 << 10)
    numbers: list[object] = []

    def count(path: str, nbytes: int, **request: Any) -> bytes:
        numbers.append(request["numbers"])
        return hdf5_blocks(path, nbytes, **request)

    monkeypatch.setattr(tensor_bytes, "hdf5_blocks", count)
    with open_bytes(tensor) as file:
        assert file.read_at(0, values.nbytes) == values.tobytes()
    assert numbers == [(0, 1024), (1024, 2048), (2048, 2500)]


# --- whole commands ---------------------------------------------------------------------------------------------------


def test_a_tensor_that_breaks_hdf5_is_a_row_with_a_reason(tmp_path: Path, deadly: dict[str, str]) -> None:
    values = {f"/Op/{number}/output/{name}": np.arange(6.0) for number, name in enumerate(("x", "dies", "z"), 1)}
    for side, device in (("npu", NPU), ("gpu", GPU)):
        write_h5(tmp_path / f"{side}.h5", values, device, chunks=(2,))
    run = tool("vc", "-lt", "npu.h5", "-rt", "gpu.h5", "--json", cwd=tmp_path, code=None, env=deadly)
    rows = {row["slot"]: row for row in run.results[0]["rows"]}
    assert "HDF5 itself ended with signal 11 (SIGSEGV)" in rows["output:dies"]["reason"]
    assert [rows[f"output:{name}"]["metrics"]["cosine"] for name in "xz"] == [1.0, 1.0]


def test_a_file_that_breaks_hdf5_is_exit_code_2_and_others_go_on(tmp_path: Path, deadly: dict[str, str]) -> None:
    a_dump(tmp_path / "dies.h5")
    a_dump(tmp_path / "fine.h5")
    for arguments in (
        ("pt", "dies.h5:/Op/1"),
        ("dc", "dies.h5", "-o", "out"),
        ("vc", "-lt", "dies.h5", "-rt", "fine.h5"),
    ):
        assert "signal 11 (SIGSEGV)" in tool(*arguments, cwd=tmp_path, code=2, env=deadly).text
    for side, device in (("npu", NPU), ("gpu", GPU)):
        for name in ("dies", "fine"):
            write_h5(tmp_path / f"precision_data/pt/{side}/{name}.h5", {"/Op/1/output/y": np.ones(9)}, device)
    run = tool("vc", cwd=tmp_path, env=deadly)
    assert (
        "not compared: precision_data/pt/npu/dies.h5: damaged HDF5 file: HDF5 itself ended with signal 11" in run.text
    )
    assert "1 of 1 tensor of 1 op" in run.text
    (result,) = tmp_path.rglob("*result_*.csv")
    assert result.name.startswith("fine_")


def test_h5copy_of_a_file_that_breaks_hdf5(tmp_path: Path, deadly: dict[str, str]) -> None:
    a_dump(tmp_path / "d.h5")
    a_dump(tmp_path / "dies.h5", "/Op/2/output/y")
    run = tool("h5copy", "-i", "d.h5", "-o", "dies.h5", "-s", "/Op/1", cwd=tmp_path, code=2, env=deadly)
    assert "SIGSEGV" in run.text
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == ["d.h5", "dies.h5"]
    assert not list(tmp_path.glob(".precision_tool-*"))


def test_ctrl_c_at_a_hanging_file_ends_the_command(tmp_path: Path, deadly: dict[str, str]) -> None:
    a_dump(tmp_path / "waits.h5")
    with subprocess.Popen(
        [*TOOL, "pt", "waits.h5:/Op/1"],
        cwd=tmp_path,
        env=environment(tmp_path) | deadly,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        # Run in the background, a shell has Ctrl+C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # no threads here
    ) as process:
        end = time.monotonic() + HANG
        while not children(process.pid):
            assert time.monotonic() < end
            time.sleep(0.01)
        (child,) = children(process.pid)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not is_there(child)


def test_the_system_may_refuse_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(Exception, match="no process can be started") as error:
        read_h5(str(a_dump(tmp_path / "d.h5")))
    assert type(error.value).__name__ == "OutputError"


def test_messages_are_lines_of_json_and_data_are_left_in_shared_memory(tmp_path: Path) -> None:
    """No pickle: what a damaged child sends is data at most."""
    arguments: dict[str, object] = {"path": str(a_dump(tmp_path / "d.h5")), "dataset": "/Op/1/output/y"}
    arguments |= {"dtype": "<f8", "shape": [4], "block": [2], "numbers": [0, 2]}
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as buffer, ours, theirs:
        buffer.truncate(BUFFER)
        command = [sys.executable, "-c", h5_process._START, json.dumps(sys.path), str(buffer.fileno()), str(1 << 30)]
        ours.sendall(json.dumps({"method": "blocks", "arguments": arguments, "seconds": 9}).encode() + b"\n")
        ours.shutdown(socket.SHUT_WR)
        subprocess.run(command, stdin=theirs.fileno(), pass_fds=(buffer.fileno(),), check=True)
        assert ours.recv(1000) == b'{"row":null}\n{"done":true}\n'
        assert os.pread(buffer.fileno(), 40, 0) == np.array([0, 1, 2, 3, 0], "<f8").tobytes()


def test_a_fork_while_another_thread_waits_for_an_answer_goes_on(tmp_path: Path) -> None:
    script = (
        "import os, sys, threading, time; from precision_tool.lib.io import hdf5, hdf5_process\n"
        "hdf5.read_h5(sys.argv[1])\n"
        "threading.Thread(target=hdf5_process._child._next_line, daemon=True).start()\n"
        "time.sleep(0.3)\n"
        "if not os.fork(): os._exit(0)\n"
        "os._exit(os.wait()[1])"
    )
    subprocess.run([sys.executable, "-c", script, str(a_dump(tmp_path / "d.h5"))], check=True, timeout=HANG)


@pytest.mark.parametrize("answer", ["[]", "7", "{}", '[["row", 1]]', '{"rows": 1}', "{", "[" * 99999])
def test_an_answer_that_is_none_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    said = f"import os, time; os.write(0, {answer.encode()!r} + bytes([10])); time.sleep({HANG})"
    monkeypatch.setattr(h5_process, "_START", said)
    with pytest.raises(Hdf5Error) as error:
        whole(a_dump(tmp_path / "d.h5"), (4,))
    assert error.value.died
    assert error.value.reason == Message("row.io.h5.no_sensible_answer")


def test_a_missing_data_set_is_a_reason_and_no_death(tmp_path: Path) -> None:
    with pytest.raises(Hdf5Error) as error:
        whole(a_dump(tmp_path / "d.h5"), (4,), dataset="/none")
    assert not error.value.died
    assert "none" in str(error.value.reason)


@pytest.mark.usefixtures("deadly")
def test_memory_that_failures_leave_behind_is_free_again(tmp_path: Path) -> None:
    path = a_dump(tmp_path / "hoards.h5")
    child = child_of(str(a_dump(tmp_path / "fine.h5")))
    for _ in range(4):
        assert "not that one" in refused(path)
    assert child_of(str(tmp_path / "fine.h5")) == child


def test_a_file_written_over_one_that_was_just_looked_at_is_not_taken_for_it(tmp_path: Path) -> None:
    """HDF5 tells files apart by their places on disk, and remembers of one that is open what it has read."""
    path = a_dump(tmp_path / "d.h5")
    with open_bytes(tensor_of(path)) as file:
        assert file.read_at(8, 8) == struct.pack("<d", 1)
    other = write_h5(tmp_path / "other.h5", {"/Relu/7/input/x": np.zeros((5, 5))})
    path.write_bytes(other.read_bytes())
    assert tensor_of(path).shape == (5, 5)


class Interrupting(socket.socket):
    """Ctrl+C comes when it is closed for the first time."""

    def close(self) -> None:
        is_first = self.fileno() >= 0
        super().close()
        if is_first:
            raise KeyboardInterrupt


def test_ctrl_c_while_the_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_dump(tmp_path / "a.h5")
    started: list[subprocess.Popen[bytes]] = []
    make_pair, start = socket.socketpair, subprocess.Popen

    def interrupting() -> tuple[socket.socket, socket.socket]:
        ours, theirs = make_pair()
        return ours, Interrupting(fileno=theirs.detach())

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", interrupting)
        patch.setattr(subprocess, "Popen", noted)
        with pytest.raises(KeyboardInterrupt):
            read_h5(str(path))
    (process,) = started
    process.wait(HANG)
    assert tensor_of(path).shape == (4,)
