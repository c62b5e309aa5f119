"""CANN's toolkit: where it is installed, and runs of its programs atc and msaccucmp.

It is looked for by file names, in the places it is known to lie and by a bounded search where it is not; the result of
a search is cached in a file, because walking a big installation takes a while. Programs run in processes of their own,
with a time limit, and their results are cached by the contents of the files that went in.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import posixpath
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path, PurePath

from precision_tool.lib.io.files import (
    atomic_text,
    entries,
    folder_exists,
    open_binary,
    open_file,
    open_text,
    open_to_write,
    read_text,
    signature_of,
)
from precision_tool.lib.io.local import LocalFile
from precision_tool.lib.io.om_file import MAGIC
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, OutputError, PrecisionToolError

#: Environment variables that set_env.sh sets to the toolkit's folder.
VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
#: Below an installation's root, where a toolkit lies.
_BASES = (
    ".", "ascend-toolkit/latest", "latest", "cann", "cann/latest", "ascend-toolkit", "nnae/latest", "toolkit", "tools"
)  # fmt: skip
#: Below a toolkit, where its tools lie.
_ATC = (
    "bin/atc", "compiler/bin/atc", "atc/bin/atc", "x86_64-linux/bin/atc", "aarch64-linux/bin/atc", "latest/bin/atc",
    "latest/compiler/bin/atc",
)  # fmt: skip
_COMPARE_FOLDERS = (
    "tools/operator_cmp/compare", "toolkit/tools/operator_cmp/compare", "tools/operator_cmp/compare/command",
    "operator_cmp/compare", "latest/toolkit/tools/operator_cmp/compare", "latest/tools/operator_cmp/compare",
)  # fmt: skip
_COMPARE_NAMES = ("msaccucmp.py", "msaccucmp.pyc")
_SET_ENV = ("set_env.sh", "../set_env.sh", "bin/setenv.bash", "ascend-toolkit/set_env.sh")
_VERSION_FILES = ("version.cfg", "version.info", "ascend_toolkit_install.info", "compiler/version.info",
                  "toolkit/version.info")  # fmt: skip
_VERSION = re.compile(r"(?im)^\s*(?:runtime_running_)?version\s*=\s*\[?\s*(?:[\w.]+:)?([\w.\-+]+)")
#: The search ends after so many folders, or so deep.
_MAX_FOLDERS, _MAX_DEPTH = 20_000, 8
_MAX_ABOVE = 5
_MEMORY = "toolkit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """The parts of an installed toolkit; None for a missing one. `looked_in` are the folders searched."""

    root: str | None = None
    version: str = ""
    atc: str | None = None
    msaccucmp: str | None = None
    set_env: str | None = None
    looked_in: tuple[str, ...] = ()
    searched: bool = False

    def need(self, tool: str) -> str:
        """Return the path of `atc` or `msaccucmp`; DataNotFoundError says where it was looked for."""
        path: str | None = getattr(self, tool)
        if path is None:
            raise DataNotFoundError("compare.no_tool", tool=tool, folders=self.looked_in)
        return path


def find_toolkit(root: str, environment: Mapping[str, str] | None = None, memories: Sequence[Path] = ()) -> Toolkit:
    """Return the vendor's toolkit.

    Parameters
    ----------
    root : str
        The folder it is looked for below (CMD_ROOT_PATH).
    environment : mapping, optional
        Variables that may name it too, by default those of this process.
    memories : sequence of Path
        Folders in which the result of a search is cached; it is written to the first one that takes it.
    """
    environment = os.environ if environment is None else environment
    roots = list(dict.fromkeys(filter(None, (root, *(environment.get(name, "") for name in VARIABLES)))))
    folders = [os.path.abspath(path) for path in roots if os.path.isdir(path)]
    tools = _in_known_places(folders)
    searched = bool(folders) and not {"atc", "msaccucmp"} <= tools.keys()
    if searched:
        more = _remembered(memories, folders)
        if more is None:
            more = _search(folders)
            _remember(memories, folders, more)
        tools = more | tools
    home = tools.pop("root", None) or next((os.path.dirname(path) for path in tools.values()), None)
    # Files about the whole installation lie in the toolkit's folder, or in one above it.
    around = [] if home is None else [home, *map(str, PurePath(home).parents)][:_MAX_ABOVE]
    return Toolkit(
        root=home,
        version=_version(around),
        atc=tools.get("atc"),
        msaccucmp=tools.get("msaccucmp"),
        set_env=_first_file(around, _SET_ENV),
        looked_in=tuple(roots),
        searched=searched,
    )


def _in_known_places(roots: Sequence[str]) -> dict[str, str]:
    """Return the tools in the known places; `root` is the toolkit that the first of them belongs to."""
    tools: dict[str, str] = {}
    compare = [f"{folder}/{name}" for folder in _COMPARE_FOLDERS for name in _COMPARE_NAMES]
    for root in roots:
        for base in _BASES:
            folder = os.path.normpath(os.path.join(root, base))
            if not os.path.isdir(folder):
                continue
            for tool, places in (("atc", _ATC), ("msaccucmp", compare)):
                path = _first_file([folder], places)
                if path is not None and tool not in tools:
                    tools[tool] = path
                    tools.setdefault("root", folder)
    return tools


def _first_file(folders: Sequence[str], places: Sequence[str]) -> str | None:
    for folder in folders:
        for place in places:
            path = os.path.normpath(os.path.join(folder, place))
            if os.path.isfile(path):
                return path
    return None


def _search(roots: Sequence[str]) -> dict[str, str]:
    """Return the tools by name, anywhere below the roots; links are not followed."""
    tools: dict[str, str] = {}
    for folder, names in _folders(roots):
        if "atc" in names and os.path.basename(folder) == "bin" and "atc" not in tools:
            tools["atc"] = os.path.join(folder, "atc")
        script = next((name for name in _COMPARE_NAMES if name in names), None)
        if script is not None and "msaccucmp" not in tools:
            tools["msaccucmp"] = os.path.join(folder, script)
        if len(tools) == 2:
            break
    return tools


def _folders(roots: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
    left = _MAX_FOLDERS
    for root in roots:
        depth = root.rstrip(os.sep).count(os.sep)
        for folder, below, names in os.walk(root):
            below[:] = sorted(name for name in below if not name.startswith("."))
            if folder.count(os.sep) - depth >= _MAX_DEPTH:
                below.clear()
            left -= 1
            if left < 0:
                return
            yield folder, set(names)


def _version(folders: Sequence[str]) -> str:
    for folder in folders:
        for name in _VERSION_FILES:
            with suppress(PrecisionToolError):
                match = _VERSION.search(read_text(os.path.join(folder, name))[:4096])
                if match:
                    return match[1]
    return ""


def _remembered(memories: Sequence[Path], roots: Sequence[str]) -> dict[str, str] | None:
    """Return the result of an earlier search below these roots, if still valid; None to search again."""
    for folder in memories:
        with suppress(PrecisionToolError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            document = json.loads(read_text(str(folder / _MEMORY)))
            tools = {str(name): str(path) for name, path in document["found"].items() if name in ("atc", "msaccucmp")}
            if document["roots"] == list(roots) and tools and all(map(os.path.isfile, tools.values())):
                return tools
    return None


def _remember(memories: Sequence[Path], roots: Sequence[str], tools: Mapping[str, str]) -> None:
    """Keep what was found; where that cannot be written the next search is as slow as this."""
    for folder in memories:
        with suppress(OutputError):
            with atomic_text(str(folder / _MEMORY)) as file:
                json.dump({"roots": list(roots), "found": dict(tools)}, file)
            return


# --- runs of programs ---


#: Lines of the log that an error shows.
_LAST_LINES = 8
_MAX_LINE = 300
#: How long a program may take to end when it is told to, and set_env.sh to say what it sets.
_GRACE, _ENVIRONMENT_SECONDS = 3.0, 30.0
#: Prints its environment after sourcing the file it is given. The path is an argument, never part of the text.
_SOURCE = '. "$1" >/dev/null 2>&1; exec env -0'


class ToolkitError(PrecisionToolError):
    """A program of the toolkit that could not be run, or did not do what it was to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A program that has ended. `log` is the file with all it printed."""

    name: str
    code: int
    log: str

    def failure(self, problem: Message | str) -> ToolkitError:
        """Return the error for a run that did not produce what it was to produce."""
        return ToolkitError(
            "compare.tool_failed",
            tool=self.name,
            problem=problem,
            signal=-self.code if self.code < 0 else None,
            code=self.code,
            output=last_lines(self.log),
            log=self.log,
        )


def last_lines(path: str) -> str:
    """Return the last lines of a log that say anything, joined."""
    try:
        with open_binary(path) as file:
            file.seek(max(0, os.path.getsize(path) - 64 * 1024))
            lines = file.read().decode("utf-8", "backslashreplace").splitlines()
    except (OSError, PrecisionToolError):
        return ""
    texts = [line.strip()[:_MAX_LINE] for line in lines if line.strip()]
    return " | ".join(texts[-_LAST_LINES:])


@cache
def sourced_environment(path: str) -> Mapping[str, str]:
    """Return the environment after `set_env.sh`; ours where it cannot be read, hangs or fails."""
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run(
            ["bash", "-c", _SOURCE, "bash", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ENVIRONMENT_SECONDS,
            check=True,
        )
        pairs = [entry.partition(b"=") for entry in run.stdout.split(b"\0") if b"=" in entry]
        if pairs:
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return dict(os.environ)


def run_tool(
    name: str,
    arguments: Sequence[str],
    *,
    log: str,
    cwd: str,
    environment: Mapping[str, str] | None = None,
    time_limit: float = 0.0,
) -> ToolRun:
    """Run a program to its end; all it prints goes to `log`. A `time_limit` of 0 is none.

    It has our environment where no other is given, and runs in a process group of its own, which is ended as a whole
    when the time is up or the user stops us. Raises ToolkitError when it cannot be started or takes too long.
    """
    # Threads of BLAS in each of its workers only stand in each other's way.
    variables = {"OPENBLAS_NUM_THREADS": "1", **(os.environ if environment is None else environment)}
    with open_to_write(log) as file:
        try:
            process = subprocess.Popen(
                list(arguments),
                cwd=cwd,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ToolkitError("compare.tool_not_started", program=arguments[0], reason=reason) from None
        try:
            code = process.wait(time_limit or None)
        except subprocess.TimeoutExpired:
            raise ToolkitError(
                "compare.tool_timeout", tool=name, seconds=time_limit, output=last_lines(log), log=log
            ) from None
        finally:
            _end_group(process)
    return ToolRun(name=name, code=code, log=log)


def shell() -> str:
    """Return the shell that runs commands of the user's."""
    return os.environ.get("SHELL") or "/bin/sh"


def run_command(
    command: str, *, log: str, environment: Mapping[str, str] | None = None, time_limit: float | None = None
) -> int | None:
    """Run a command of the user's in the shell, and end with it all that it started, also where the user stops us.

    Parameters
    ----------
    command : str
        What the shell gets.
    log : str
        The file for all that it prints.
    environment : mapping of str to str, optional
        Its variables instead of ours.
    time_limit : float, optional
        Seconds that it may take.

    Returns
    -------
    int or None
        Its exit code; None where the time is up.

    Raises
    ------
    OSError
        The shell cannot be started, or, as OutputError, the log not be written.
    """
    with (
        open_to_write(log) as file,
        subprocess.Popen(
            [shell(), "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(time_limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing interrupt what ends a command or restores a file: a second Ctrl+C comes too early."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group: the program may have ended and left children behind."""
    with uninterrupted():
        for sent in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sent)
            except (ProcessLookupError, PermissionError):
                break
            deadline = time.monotonic() + _GRACE
            while time.monotonic() < deadline and _is_alive(process):
                time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)


def _is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Return whether anyone of the group still runs."""
    process.poll()  # collects the leader, which would count as long as nobody does
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


# --- results cached by the contents of their inputs ---


_BLOCK = 1 << 20
#: Bytes of the texts that are kept as one, at most.
_MAX_TEXT = 256 << 20


def content_key(words: Sequence[str], paths: Iterable[str]) -> str:
    """Return a name for the result of `words`, which say who makes it and how, from these files and folders of files.

    The names inside a folder count, its own and those of files given by themselves do not. A user's error, or OSError,
    for what cannot be read.
    """
    key = hashlib.sha256("\0".join([*words, ""]).encode("utf-8", "surrogateescape"))
    for path in paths:
        if not folder_exists(path):
            key.update(_digest(path))
            continue
        for name in _files_in(path):
            key.update(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
            key.update(_digest(posixpath.join(path, name)))
        key.update(b"end of a folder")
    return key.hexdigest()[:32]


def signatures(paths: Iterable[str]) -> list[object]:
    """Return signatures that change when one of these files, or a file in one of these folders, does."""
    values: list[object] = []
    for path in paths:
        values.append(signature_of(path))
        if folder_exists(path):
            with suppress(PrecisionToolError):
                values += [(name, signature_of(posixpath.join(path, name))) for name in _files_in(path)]
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTexts:
    """Text files, by name, that a program wrote, and what there was to say of the run."""

    texts: dict[str, str]
    notes: tuple[Message, ...] = ()


def keep_texts(path: str, files: Iterable[str], notes: Sequence[Message]) -> None:
    """Keep text files as one. Where there is no room for it, or they are no UTF-8, they are not kept."""
    texts = {}
    with suppress(PrecisionToolError):
        for name in files:
            texts[posixpath.basename(name)] = read_text(name, _MAX_TEXT, newline="")
        with atomic_text(path) as file:
            json.dump({"texts": texts, "notes": [note.to_dict() for note in notes]}, file)


def read_texts(path: str) -> CachedTexts:
    """Return the texts of a file; none of one that is missing or damaged."""
    try:
        document = json.loads(read_text(path, _MAX_TEXT))
        texts, notes = dict(document["texts"]), tuple(map(Message.from_dict, document["notes"]))
        if all(isinstance(text, str) and posixpath.basename(name) == name for name, text in texts.items()):
            return CachedTexts(texts=texts, notes=notes)
    except (PrecisionToolError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return CachedTexts(texts={})


def _files_in(folder: str) -> list[str]:
    return [entry.name for entry in entries(folder) if entry.kind is Kind.FILE]


def _digest(path: str) -> bytes:
    key = hashlib.sha256()
    with open_file(path) as file:
        for offset in range(0, file.size, _BLOCK):
            key.update(file.read_at(offset, min(_BLOCK, file.size - offset)))
    return key.digest()


# --- atc and msaccucmp ---


#: Bytes of a table that msaccucmp wrote, at most.
_MAX_TABLE = 4 << 30
#: Numbers of the runs of this process, in the names of their logs.
_RUNS = count()
#: What names of folders for results that are not complete begin with.
_TEMPORARY = ".precision_tool-toolkit-"
#: Where temporary files may go if the user's place for them will not do.
_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp")
#: Linux takes 107 bytes for a socket, of which Python's multiprocessing uses 32 for names of its own.
_MAX_SOCKET_FOLDER = 75
#: msaccucmp's exit code where ops of the graph, often variables, have no dump.
_NOT_DUMPED = 2
#: Where msaccucmp looks for the library that reads dumps.
_LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "ASCEND_TOOLKIT_HOME")
#: What msaccucmp's own paths may hold; others it refuses.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:()=\\-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The files that a program wrote, and notes on the run."""

    paths: tuple[str, ...]
    notes: tuple[Message, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tools:
    """A toolkit with everything that its programs need to run.

    `python` runs msaccucmp ("" for ours), `folder` holds the logs, `cache` what they made of files before.
    """

    toolkit: Toolkit
    folder: str
    cache: str
    python: str = ""
    time_limit: float = 0.0

    def graph_json(self, graph: str) -> Produced:
        """Return the JSON that atc makes of a graph file or an offline model; kept by content, so made once."""
        atc = self.toolkit.need("atc")
        mode = "1" if _is_om(graph) else "5"
        cached = self.cached_json(graph, "atc", mode, *_tools_version(atc))
        if os.path.isfile(cached):
            return Produced(paths=(cached,))
        os.makedirs(self.cache, exist_ok=True)
        with self._place(self.cache) as place:
            made = os.path.join(place, "graph.json")
            arguments = [atc, f"--mode={mode}", f"--om={os.path.abspath(graph)}", f"--json={made}"]
            run = self._run("atc", arguments, place)
            problem = _json_problem(made)
            if problem:
                raise run.failure(Message("note.compare.no_json", graph=graph, problem=problem))
            shutil.move(made, cached)
        return Produced(paths=(cached,), notes=_warning(run, "json"))

    def cached_json(self, graph: str, maker: str, *version: str) -> str:
        """Return the path of the JSON that `maker` makes of a graph file's contents, whatever the file is called."""
        return os.path.join(self.cache, f"{maker}_{content_key(version, [graph])}.json")

    def compare(
        self,
        npu: str,
        golden: str,
        output: str,
        *,
        graph: str | None = None,
        unfused: str | None = None,
        options: Sequence[str] = (),
    ) -> Produced:
        """`msaccucmp compare` of two folders of files, or two `.h5`; its tables, moved to the folder `output`.

        `graph` is the JSON of atc, None for two NPU runs by name; with `unfused`, that of the other run, two runs are
        compared by their graphs. `options` are msaccucmp's own. What it made of files of the same content before is
        used again.
        """
        read = [path for path in (npu, golden, graph, unfused) if path is not None]
        cache_path, before = self._cached_tables(read, [str(graph is None), str(unfused is None), *options])
        cached = read_texts(cache_path)
        if _results_in(cached.texts):
            return _compared_before(cache_path, cached, output)
        with self._place(output) as place, _plain_paths(npu, golden) as paths:
            rule = []
            for flag, path in (("-f", graph), ("-cf", unfused)):
                if path is not None:
                    copy = os.path.join(place, f"graph{flag}.json")
                    shutil.copyfile(path, copy)
                    rule += [flag, copy]
            arguments = ["compare", "-m", paths[0], "-g", paths[1], *rule, *options]
            run, made = self._run_msaccucmp(arguments, place, (".csv", ".txt"))
            results = _results_in(made)
            if not results:
                raise run.failure(Message("note.compare.no_result"))
            for name in results:
                problem = _table_problem(os.path.join(place, name))
                if problem:
                    raise run.failure(Message("note.compare.incomplete_result", problem=problem))
            notes = _warning(run, "result")
            if cache_path and signatures(read) == before and _depends_on_files_alone(run):
                keep_texts(cache_path, [os.path.join(place, name) for name in made], notes)
            return Produced(paths=_moved(place, made, output), notes=notes)

    def _cached_tables(self, read: Sequence[str], how: Sequence[str]) -> tuple[str, list[object]]:
        """Return the file that caches msaccucmp's tables of such files, and signatures that change when they do.

        The file is "" where they cannot be read.
        """
        python, script = self._msaccucmp()
        makers = [shutil.which(python) or python, self.toolkit.set_env or "", *_modules_beside(script)]
        version = [self.toolkit.version, *(os.environ.get(name, "") for name in _LIBRARY_VARIABLES)]
        version += [word for maker in makers for word in _tools_version(maker)]
        try:
            before = signatures(read)
            key = content_key([*version, *how], read)
        except (PrecisionToolError, OSError):
            return "", []  # msaccucmp has its own words for them
        return os.path.join(self.cache, f"compared_{key}.json"), before

    def convert(self, dumps: Mapping[str, str], output: str, options: Sequence[str] = ()) -> Produced:
        """`msaccucmp convert` of dump files, given by the names that results begin with; the `.npy`, in `output`."""
        with (
            self._place(output) as place,
            tempfile.TemporaryDirectory(prefix="precision_tool_", dir=_plain_folder()) as links,
        ):
            for name, path in dumps.items():
                os.symlink(os.path.abspath(path), os.path.join(links, name))
            run, made = self._run_msaccucmp(["convert", "-d", links, *options], place, (".npy", ".bin"))
            if not made:
                raise run.failure(Message("note.compare.nothing_decoded", names=sorted(dumps)))
            notes = _warning(run, "decoded", len(made))
            return Produced(paths=_moved(place, made, output), notes=notes)

    def overflow(self, dump: str, output: str, limit: int = 1) -> Produced:
        """`msaccucmp overflow`: its summary and the decoded status files, moved to `output`."""
        with self._place(output) as place, _plain_paths(dump, link=shutil.copyfile) as (path,):
            arguments = ["overflow", "-d", path, "-n", str(limit)]
            run, made = self._run_msaccucmp(arguments, place, (".txt", ".json", ".npy"))
            if not any(name.startswith("overflow_summary_") for name in made):
                raise run.failure(Message("note.compare.no_summary"))
            return Produced(paths=_moved(place, made, output), notes=_warning(run, "summary"))

    def _msaccucmp(self) -> list[str]:
        return [self.python or sys.executable, self.toolkit.need("msaccucmp")]

    def _run_msaccucmp(
        self, arguments: Sequence[str], place: str, endings: tuple[str, ...]
    ) -> tuple[ToolRun, list[str]]:
        """Return the run, and the names with these endings of the files that it wrote to `place`."""
        run = self._run("msaccucmp", [*self._msaccucmp(), *arguments, "-out", place], place)
        return run, sorted(name for name in os.listdir(place) if name.endswith(endings))

    def _run(self, name: str, arguments: Sequence[str], place: str) -> ToolRun:
        log = os.path.join(self.folder, f"{name}_{os.getpid()}_{next(_RUNS)}.log")
        set_env = self.toolkit.set_env
        environment = {
            **(os.environ if set_env is None else sourced_environment(set_env)), "TMPDIR": _short_folder()
        }  # fmt: skip
        return run_tool(name, arguments, log=log, cwd=place, environment=environment, time_limit=self.time_limit)

    @contextmanager
    def _place(self, folder: str) -> Iterator[str]:
        """Yield a folder, inside `folder` where possible, for files that are not complete yet; removed in the end."""
        try:
            os.makedirs(folder, exist_ok=True)
            place = os.path.abspath(tempfile.mkdtemp(prefix=_TEMPORARY, dir=_plain_folder(folder)))
        except OSError as error:
            raise OutputError.of(folder, "compare.not_writable", reason=error.strerror) from None
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _plain_paths(*paths: str, link: Callable[[str, str], object] = os.symlink) -> Iterator[tuple[str, ...]]:
    """Return the paths as msaccucmp takes them.

    It refuses spaces, quotes and much else in a path and resolves links to folders: so what lies in such a place is
    reached through a plain folder of links to the files. `overflow` resolves those of files too: it gets copies.
    """
    plain = []
    with tempfile.TemporaryDirectory(prefix="precision_tool_", dir=_plain_folder()) as links:
        for number, path in enumerate(paths):
            whole = os.path.realpath(path)
            place = os.path.join(links, str(number))
            if os.path.isfile(whole):  # a .h5: nothing else is given as a file
                if not _is_plain(whole) or not whole.endswith(".h5"):
                    link(whole, f"{place}.h5")
                    whole = f"{place}.h5"
            elif not _is_plain(whole):
                whole = _linked(whole, place, link)
            plain.append(whole)
        yield tuple(plain)


def _linked(folder: str, place: str, link: Callable[[str, str], object]) -> str:
    """`place`, a new folder with a link, or whatever `link` makes, to each file of a folder."""
    os.mkdir(place)
    for name in os.listdir(folder):
        if os.path.isfile(os.path.join(folder, name)):
            try:
                link(os.path.join(folder, name), os.path.join(place, name))
            except OSError as error:
                reason = error.strerror or str(error)
                raise OutputError("compare.no_link", folder=place, name=name, reason=reason) from error
    return place


def _plain_folder(*folders: str) -> str:
    """Return the first folder to write to whose resolved path msaccucmp takes: of `folders`, else a temporary one."""
    for folder in (*folders, tempfile.gettempdir(), *_TEMPORARY_FOLDERS):
        if _is_plain(os.path.realpath(folder)) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise OutputError("compare.no_plain_folder", folder=tempfile.gettempdir())


def _short_folder() -> str:
    """Return a folder for msaccucmp's temporary files; its sockets there need short paths."""
    folders = (tempfile.gettempdir(), *_TEMPORARY_FOLDERS)
    return next((folder for folder in folders if len(os.fsencode(folder)) <= _MAX_SOCKET_FOLDER), folders[0])


def _is_plain(path: str) -> bool:
    return set(path) <= _PLAIN


def _tools_version(program: str) -> tuple[str, ...]:
    """Return words that change when a program is another one."""
    return os.path.realpath(program), str(signature_of(program))


def _modules_beside(script: str) -> Iterator[str]:
    """Return the files of the program that a script belongs to, itself among them."""
    for folder, folders, names in os.walk(os.path.dirname(os.path.realpath(script))):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith((".py", ".pyc", ".so")))


def _depends_on_files_alone(run: ToolRun) -> bool:
    """Not where msaccucmp tells of an error, which may be one of the moment and leave ops out."""
    if run.code not in (0, _NOT_DUMPED):
        return False
    with open_binary(run.log) as file:
        return not any(b"[ERROR]" in line for line in file)


def _compared_before(cache_path: str, cached: CachedTexts, output: str) -> Produced:
    paths = [os.path.join(output, name) for name in cached.texts]
    for path, text in zip(paths, cached.texts.values(), strict=True):
        with atomic_text(path) as file:
            file.write(text)
    return Produced(paths=tuple(paths), notes=(*cached.notes, Message("note.compare.made_before", path=cache_path)))


def _results_in(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(("result_", "mapping_"))]


def _is_om(path: str) -> bool:
    with LocalFile(path) as file:
        return file.size >= len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC


def _json_problem(path: str) -> Message | str:
    """Return why a file is no complete JSON of a graph; "" if it is."""
    try:
        with open_text(path, errors="surrogateescape") as file:
            root = json.load(file)
    except DataNotFoundError:
        return Message("note.compare.no_file")
    except PrecisionToolError as error:
        return error.full_message
    except (ValueError, RecursionError) as error:
        return Message("note.compare.cut_json", reason=str(error))
    return "" if isinstance(root, dict) and "graph" in root else Message("note.compare.no_graph_in_json")


def _table_problem(path: str) -> Message | str:
    """Return why a table is not complete; "" if it is."""
    name = os.path.basename(path)
    try:
        text = read_text(path, _MAX_TABLE, errors="surrogateescape", newline="")
    except PrecisionToolError as error:
        return error.full_message
    if not text.endswith("\n"):
        return Message("note.compare.cut_line", file=name)
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        return Message("note.compare.bad_table", file=name, reason=str(error))
    if len(lines) < 2:
        return Message("note.compare.empty_table", file=name)
    return "" if all(len(line) == len(lines[0]) for line in lines) else Message("note.compare.cut_lines", file=name)


def _moved(place: str, names: Sequence[str], folder: str) -> tuple[str, ...]:
    return tuple(shutil.move(os.path.join(place, name), os.path.join(folder, name)) for name in names)


def _warning(run: ToolRun, kind: str, count: int = 0) -> tuple[Message, ...]:
    """Return a note on a program that failed and made something all the same: a kind of `note.compare.made`."""
    if run.code == 0:
        return ()
    made = Message(f"note.compare.made.{kind}", count=count)
    return (Message("note.compare.exit_code", name=run.name, code=run.code, made=made, log=run.log),)
