"""atc and msaccucmp as functions: each makes its arguments, runs the program, and checks what it wrote.

What a program writes goes to a folder of its own first and is moved when it is complete. A program that ends with an
error and yet wrote a complete result is a warning: msaccucmp ends with 2 when a variable was not dumped.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from precision_tool.lib.errors import DataNotFoundError, OutputError, PrecisionToolError
from precision_tool.lib.formats.om_file import MAGIC
from precision_tool.lib.io.files import atomic_text, open_binary, open_text, read_text, signature_of
from precision_tool.lib.io.local import LocalFile
from precision_tool.lib.toolkit.finder import Toolkit
from precision_tool.lib.toolkit.kept import Kept, content_key, keep, read_kept, signatures
from precision_tool.lib.toolkit.runner import ToolRun, run_tool

#: Bytes of a table that msaccucmp wrote, at most.
_MAX_TABLE = 4 << 30
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
    """What a program wrote, and what to say of the run."""

    paths: tuple[str, ...]
    notes: tuple[str, ...] = ()


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
    _runs: list[ToolRun] = field(default_factory=list)

    # --- atc ---

    def graph_json(self, graph: str) -> Produced:
        """The JSON that atc makes of a graph file or an offline model; kept by content, so made once."""
        atc = self.toolkit.need("atc")
        mode = "1" if _is_om(graph) else "5"
        kept = self.kept_json(graph, "atc", mode, *_version(atc))
        if os.path.isfile(kept):
            return Produced(paths=(kept,))
        os.makedirs(self.cache, exist_ok=True)
        with self._place(self.cache) as place:
            made = os.path.join(place, "graph.json")
            arguments = [atc, f"--mode={mode}", f"--om={os.path.abspath(graph)}", f"--json={made}"]
            run = self._run("atc", arguments, place)
            problem = _json_problem(made)
            if problem:
                raise run.failure(f"it made no JSON of {graph}: {problem}")
            shutil.move(made, kept)
        return Produced(paths=(kept,), notes=_warning(run, "the JSON it wrote is complete"))

    def kept_json(self, graph: str, maker: str, *version: str) -> str:
        """Where the JSON that `maker` makes of a graph file's contents is kept, whatever the file is called."""
        return os.path.join(self.cache, f"{maker}_{content_key(version, [graph])}.json")

    # --- msaccucmp ---

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
        kept, before = self._kept_tables(read, [str(graph is None), str(unfused is None), *options])
        known = read_kept(kept)
        if _results_in(known.texts):
            return _compared_before(kept, known, output)
        with self._place(output) as place, _plain_paths(npu, golden) as paths:
            rule = []
            for flag, path in (("-f", graph), ("-cf", unfused)):
                if path is not None:
                    copy = os.path.join(place, f"graph{flag}.json")
                    shutil.copyfile(path, copy)
                    rule += [flag, copy]
            arguments = ["compare", "-m", paths[0], "-g", paths[1], *rule, *options, "-out", place]
            run = self._run("msaccucmp", [*self._msaccucmp(), *arguments], place)
            made = sorted(name for name in os.listdir(place) if name.endswith((".csv", ".txt")))
            results = _results_in(made)
            if not results:
                raise run.failure("it wrote no result")
            for name in results:
                problem = _table_problem(os.path.join(place, name))
                if problem:
                    raise run.failure(f"its result is not complete: {problem}")
            notes = _warning(run, "its result is complete")
            if kept and signatures(read) == before and _depends_on_files_alone(run):
                keep(kept, [os.path.join(place, name) for name in made], notes)
            moved = tuple(_move(os.path.join(place, name), output) for name in made)
        return Produced(paths=moved, notes=notes)

    def _kept_tables(self, read: Sequence[str], how: Sequence[str]) -> tuple[str, list[object]]:
        """The file in which the tables that msaccucmp makes of such files are kept, and what changes when they do.

        The file is "" where they cannot be read.
        """
        python, script = self._msaccucmp()
        makers = [shutil.which(python) or python, self.toolkit.set_env or "", *_modules_beside(script)]
        version = [self.toolkit.version, *(os.environ.get(name, "") for name in _LIBRARY_VARIABLES)]
        version += [word for one in makers for word in _version(one)]
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
            arguments = ["convert", "-d", links, *options, "-out", place]
            run = self._run("msaccucmp", [*self._msaccucmp(), *arguments], place)
            made = sorted(name for name in os.listdir(place) if name.endswith((".npy", ".bin")))
            if not made:
                raise run.failure(f"it decoded nothing of {', '.join(sorted(dumps)[:3])}")
            moved = tuple(_move(os.path.join(place, name), output) for name in made)
        return Produced(paths=moved, notes=_warning(run, f"{len(made)} tensors were decoded"))

    def overflow(self, dump: str, output: str, count: int = 1) -> Produced:
        """`msaccucmp overflow`: its summary and the decoded status files, moved to `output`."""
        with self._place(output) as place, _plain_paths(dump, link=shutil.copyfile) as (path,):
            arguments = ["overflow", "-d", path, "-out", place, "-n", str(count)]
            run = self._run("msaccucmp", [*self._msaccucmp(), *arguments], place)
            made = sorted(name for name in os.listdir(place) if name.endswith((".txt", ".json", ".npy")))
            if not any(name.startswith("overflow_summary_") for name in made):
                raise run.failure("it wrote no summary")
            moved = tuple(_move(os.path.join(place, name), output) for name in made)
        return Produced(paths=moved, notes=_warning(run, "its summary is complete"))

    def _msaccucmp(self) -> list[str]:
        return [self.python or sys.executable, self.toolkit.need("msaccucmp")]

    def _run(self, name: str, arguments: Sequence[str], place: str) -> ToolRun:
        log = os.path.join(self.folder, f"{name}_{os.getpid()}_{len(self._runs)}.log")
        run = run_tool(
            name,
            arguments,
            log=log,
            cwd=place,
            variables={"TMPDIR": _short_folder()},
            set_env=self.toolkit.set_env,
            time_limit=self.time_limit,
        )
        self._runs.append(run)
        return run

    @contextmanager
    def _place(self, folder: str) -> Iterator[str]:
        """A folder, inside `folder` where that is possible, for what is not complete yet; it is removed in the end."""
        try:
            os.makedirs(folder, exist_ok=True)
            place = os.path.abspath(tempfile.mkdtemp(prefix=_TEMPORARY, dir=_plain_folder(folder)))
        except OSError as error:
            raise OutputError.of(folder, f"cannot be written ({error.strerror})", "name another with --work") from None
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _plain_paths(*paths: str, link: Callable[[str, str], object] = os.symlink) -> Iterator[tuple[str, ...]]:
    """The paths as msaccucmp takes them.

    It refuses spaces, quotes and much else in a path and resolves links to folders: so what lies in such a place is
    reached through a plain folder of links to the files. `overflow` resolves those of files too: it gets copies.
    """
    found = []
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
            found.append(whole)
        yield tuple(found)


def _linked(folder: str, place: str, link: Callable[[str, str], object]) -> str:
    """`place`, a new folder with a link, or whatever `link` makes, to each file of a folder."""
    os.mkdir(place)
    for name in os.listdir(folder):
        if os.path.isfile(os.path.join(folder, name)):
            try:
                link(os.path.join(folder, name), os.path.join(place, name))
            except OSError as error:
                raise OutputError(
                    f"{place}: cannot hold {name} ({error.strerror or error})",
                    "msaccucmp takes no path with spaces, quotes and the like: move the dump, or set TMPDIR to a "
                    "folder with room for a copy; --engine native takes it where it is",
                ) from error
    return place


def _plain_folder(*wanted: str) -> str:
    """The first folder to write to whose path msaccucmp takes, in links resolved: of `wanted`, else a temporary one."""
    for folder in (*wanted, tempfile.gettempdir(), *_TEMPORARY_FOLDERS):
        if _is_plain(os.path.realpath(folder)) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise OutputError(
        f"{tempfile.gettempdir()}: msaccucmp takes no path with spaces, quotes and the like",
        "set TMPDIR to a folder without them",
    )


def _short_folder() -> str:
    """A folder for msaccucmp's temporary files; its processes talk through sockets there, whose paths are short."""
    folders = (tempfile.gettempdir(), *_TEMPORARY_FOLDERS)
    return next((one for one in folders if len(os.fsencode(one)) <= _MAX_SOCKET_FOLDER), folders[0])


def _is_plain(path: str) -> bool:
    return set(path) <= _PLAIN


def _version(program: str) -> tuple[str, ...]:
    """What changes when a program is another one."""
    return os.path.realpath(program), str(signature_of(program))


def _modules_beside(script: str) -> Iterator[str]:
    """The files of the program that a script belongs to, itself among them."""
    for folder, folders, names in os.walk(os.path.dirname(os.path.realpath(script))):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith((".py", ".pyc", ".so")))


def _depends_on_files_alone(run: ToolRun) -> bool:
    """Not where msaccucmp tells of an error, which may be one of the moment and leave ops out."""
    if run.code not in (0, _NOT_DUMPED):
        return False
    with open_binary(run.log) as file:
        return not any(b"[ERROR]" in line for line in file)


def _compared_before(kept: str, known: Kept, output: str) -> Produced:
    paths = [os.path.join(output, name) for name in known.texts]
    for path, text in zip(paths, known.texts.values(), strict=True):
        with atomic_text(path) as file:
            file.write(text)
    told = f"msaccucmp compared files of this content before: its result of then, kept in {kept}"
    return Produced(paths=tuple(paths), notes=(*known.notes, f"{told} (remove it to have it compare again)"))


def _results_in(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(("result_", "mapping_"))]


def _is_om(path: str) -> bool:
    with LocalFile(path) as file:
        return file.size >= len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC


def _json_problem(path: str) -> str:
    """Why a file is no complete JSON of a graph; empty if it is."""
    try:
        with open_text(path, errors="surrogateescape") as file:
            root = json.load(file)
    except DataNotFoundError:
        return "it wrote no file"
    except PrecisionToolError as error:
        return error.message
    except (ValueError, RecursionError) as error:
        return f"the file is cut off or no JSON ({error})"
    return "" if isinstance(root, dict) and "graph" in root else "it holds no graph"


def _table_problem(path: str) -> str:
    """Why a table is not complete; empty if it is."""
    try:
        text = read_text(path, _MAX_TABLE, errors="surrogateescape", newline="")
    except PrecisionToolError as error:
        return error.message
    if not text.endswith("\n"):
        return f"{os.path.basename(path)} ends in the middle of a line"
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        return f"{os.path.basename(path)} is no valid CSV: {error}"
    if len(lines) < 2:
        return f"{os.path.basename(path)} has no line of an op"
    return "" if all(len(line) == len(lines[0]) for line in lines) else f"{os.path.basename(path)} has lines cut off"


def _move(path: str, folder: str) -> str:
    return shutil.move(path, os.path.join(folder, os.path.basename(path)))


def _warning(run: ToolRun, but: str) -> tuple[str, ...]:
    if run.code == 0:
        return ()
    return (f"{run.name} ended with exit code {run.code}, but {but}; its output is in {run.log}",)
