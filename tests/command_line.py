"""The command line as a process of its own, and what its files must look like before and after."""

from __future__ import annotations

import atexit
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from precision_tool.lib.cli.words import find_word
from precision_tool.lib.view.json_schema import COMMANDS, json_schema

if TYPE_CHECKING:
    import jsonschema_rs

#: A hang is a failure, slowness is not: no test measures time with this.
HANG = 60.0

TOOL = (sys.executable, "-m", "precision_tool")


def hear_signals() -> None:
    """What ran the tests may ignore signals (nohup, a job in the background), and children inherit that."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All it printed, wrapped lines joined: for sentences that a narrow terminal cuts."""
        return " ".join((self.out + "\n" + self.err).replace("│", " ").split())

    @property
    def json(self) -> Any:
        """The document of a `--json` run."""
        return json.loads(self.out, parse_constant=_no_constant)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results in it."""
        results: list[dict[str, Any]] = self.json["results"]
        return results


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


#: For tests that send Ctrl+C at any moment: a file that an interrupted import leaves to Python to close is no leak of
#: ours, and without -W nobody sees the warning.
INTERRUPTED = {"PYTHONWARNINGS": "error,ignore::ResourceWarning"}


def environment(cwd: Path, columns: int = 200) -> dict[str, str]:
    """A plain terminal of a fixed width; temporary files (logs of internal errors) stay below `cwd`."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    temporary = cwd / ".tmp"
    temporary.mkdir(exist_ok=True)
    return kept | {"COLUMNS": str(columns), "NO_COLOR": "1", "TMPDIR": str(temporary), "PYTHONWARNINGS": "error"}


def tool(
    *arguments: str | Path,
    cwd: Path,
    code: int | None = 0,
    columns: int = 200,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Finished:
    """Run one command line in `cwd`. It must end with `code` and, whatever happened, show no traceback.

    It is a process of its own, forked from one that has loaded the tool where nothing of the test is about loading it.
    """
    words, whole = [*map(str, arguments)], environment(cwd, columns) | dict(env or {})
    if prefix or any(name.startswith(_READ_AT_START) for name in env or {}):
        run = _started([*prefix, *TOOL, *words], cwd, whole)
    else:
        run = _tool_server(os.environ.get("LANG"), os.environ.get("PYTHONPATH")).run(words, cwd, whole)
    for text in (run.out, run.err):
        assert "Traceback" not in text, run
        assert "error: internal error" not in text, run
    assert code is None or run.code == code, run
    if "--json" in words:
        _check_documents(words, run.out, (env or {}).get("PYTHONPATH", ""))
    return run


def documents_of(out: str) -> list[Any]:
    """The JSON documents that a command printed, one after the other."""
    decoder, documents, rest = json.JSONDecoder(parse_constant=_no_constant), [], out.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        documents.append(document)
        rest = rest[end:].lstrip()
    return documents


def _check_documents(words: Sequence[str], out: str, python_path: str) -> None:
    """Whatever a test lets a command print with --json is what `schema` says of the command."""
    if importlib.util.find_spec("jsonschema_rs") is None:  # where the lowest versions of the dependencies are tested
        return
    command = next((word.name for word in map(find_word, words) if word is not None and word.name in COMMANDS), "")
    for document in documents_of(out):
        error = schema_error(command, document, python_path)
        assert error is None, (words, error)


def schema_error(command: str, document: object, python_path: str = "") -> str | None:
    """Why a document is none of this command, None if it is one. The package at another path has its own schema."""
    return next((str(error) for error in validator(command, python_path).iter_errors(document)), None)


@cache
def validator(command: str, python_path: str = "") -> jsonschema_rs.Draft202012Validator:
    from jsonschema_rs import Draft202012Validator

    if not python_path:
        return Draft202012Validator(json_schema(command))
    with tempfile.TemporaryDirectory() as folder:
        return Draft202012Validator(tool("schema", command, cwd=Path(folder), env={"PYTHONPATH": python_path}).json)


def _started(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Finished:
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            out, err = process.communicate(timeout=HANG)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Finished(code=process.returncode, out=out, err=err)


#: Starts of the names of variables that Python, its libraries or the loader heed before the tool runs.
_READ_AT_START = ("LANG", "LC_", "LD_", "OPENBLAS", "PYTHON")


#: What all commands load, and `ac`, which most tests run; what others need they load themselves, as ever.
_LOADED = (
    "precision_tool.lib.session",
    "precision_tool.lib.view.console",
    "precision_tool.lib.cli.cmd_ac",
    "precision_tool.lib.diagnose.pipeline",
    "precision_tool.lib.view.verdict_screen",
)


@cache
def _tool_server(*_: str | None) -> ToolServer:
    """The one of this process, and of these values of what it reads at its start."""
    with tempfile.TemporaryDirectory() as folder:
        return ToolServer(sys.executable, _LOADED, environment(Path(folder)))


class ToolServerError(Exception):
    """A server that could not load its modules, and what it printed."""


class ToolServer:
    """`tool_server.py` at work: see there. Raises ToolServerError where the modules cannot be loaded."""

    def __init__(self, python: str, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()  # one request at a time
        with theirs:
            self._process = subprocess.Popen(
                [python, Path(__file__).with_name("tool_server.py"), str(theirs.fileno()), *modules],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # of the kind that its children get; it says nothing itself
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        if not self._socket.recv(_ANSWER):
            self._socket.close()
            raise ToolServerError(self._process.communicate()[1].decode(errors="replace"))
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # for all that have inherited it
        self._socket.close()
        self._process.communicate()

    def run(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], *, script: str = "", seconds: float = HANG
    ) -> Finished:
        """Like `_started` with `python -m precision_tool`, or with `python SCRIPT`."""
        request = json.dumps({"script": script, "arguments": arguments, "cwd": str(cwd), "env": env}).encode()
        with self._lock, ExitStack() as stack:
            ends = [os.pipe(), os.pipe()]
            readers = [stack.enter_context(open(read, "rb")) for read, _ in ends]
            try:
                socket.send_fds(self._socket, [request], [write for _, write in ends])
            finally:
                for _, write in ends:
                    os.close(write)
            pid = int(self._socket.recv(_ANSWER) or pytest.fail(str(self._process.communicate())))
            try:
                out, err = _read_all(readers, seconds)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([script or "precision_tool", *arguments], seconds) from None
            finally:
                code = int(self._socket.recv(_ANSWER))
        return Finished(code=code, out=out, err=err)


#: More than an answer of the server has bytes.
_ANSWER = 100


def _read_all(files: Sequence[IO[bytes]], seconds: float) -> list[str]:
    """What comes out of pipes until they end, line ends as in text files."""
    found = {file.fileno(): bytearray() for file in files}
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                found[key.fd] += part
                if not part:
                    selector.unregister(key.fileobj)
    return [io.TextIOWrapper(io.BytesIO(text), encoding="utf-8").read() for text in found.values()]


# --- golden text ----------------------------------------------------------------------------------------------------

GOLDEN = Path(__file__).resolve().parent / "golden"
#: Set to 1, the texts in tests/golden/ are written anew instead of compared; read them before they are committed.
REWRITE_VARIABLE = "PRECISION_TOOL_REWRITE_GOLDEN"


def masked(text: str, cwd: Path) -> str:
    """Without what differs from run to run: times, the folder, spaces at the ends of lines."""
    text = text.replace(str(cwd), "CWD")
    text = re.sub(r"vector_compare/\d{14}/result_\d{14}", "vector_compare/TIME/result_TIME", text)
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def check_golden(name: str, run: Finished, cwd: Path) -> None:
    """The output is that of tests/golden/, or becomes it when the environment says so."""
    assert run.err == ""
    check_golden_text(name, run.out, cwd)


def check_golden_text(name: str, shown: str, cwd: Path) -> None:
    """The same for what a terminal showed."""
    text = masked(shown, cwd)
    path = GOLDEN / name
    if os.environ.get(REWRITE_VARIABLE) == "1":
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


# --- result files ---------------------------------------------------------------------------------------------------


def result_files(folder: Path) -> list[Path]:
    """The result files below a folder, oldest comparison first."""
    return sorted(folder.rglob("*result_*.csv"))


def only_result(folder: Path) -> Path:
    """The one result file below a folder."""
    (path,) = result_files(folder)
    return path


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert all(len(line) == len(header) for line in lines)
    return header, lines


def cells(path: Path) -> list[dict[str, str]]:
    """The lines of a result CSV by column; of two columns of one name the first."""
    header, lines = table(path)
    return [dict(reversed(list(zip(header, line, strict=True)))) for line in lines]


def by_tensor(path: Path) -> dict[str, dict[str, str]]:
    """The lines of a result CSV by tensor, or by op where a line stands for a whole op."""
    rows = cells(path)
    named = {row["NPUDump"] if row["TensorIndex"] == "NaN" else row["TensorIndex"]: row for row in rows}
    assert len(named) == len(rows)
    return named


# --- folders --------------------------------------------------------------------------------------------------------


def fingerprint(folder: Path) -> dict[str, tuple[object, ...]]:
    """Name, kind, time and content of everything below a folder."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file() and os.access(path, os.R_OK):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return found


@cache
def namespace() -> tuple[str, ...] | None:
    """A command prefix that gives a process mounts of its own, None where that is not allowed."""
    if shutil.which("unshare") is None:
        return None
    for prefix in (("unshare", "-m"), ("unshare", "-rm")):
        trial = [*prefix, "sh", "-c", 'mount -t tmpfs -o size=64k none "$0"', "/mnt"]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            return prefix
    return None
