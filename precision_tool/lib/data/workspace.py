"""Every path of a data folder, in one place, and the one decision where results may be written.

    precision_data/
      npu/debug_0/{dump,graph,prof,passport.json}   NPU run under test; npu/debug_1, … further runs
      tf/{tf_debug,dump,graph,checkpoints/{ckpt*,input},passport.json}
      pt/{npu,gpu}
      npu, gpu                                      msprobe's dumps: {step*/{rank*,proc*}/dump.json}
      overflow/dump
      fusion/{fusion_result.json,fusion_switch.cfg,fusion_off.cfg}
      temp/{op_graph,vector_compare/{time}/result_*.csv,decode/{dump_decode/debug_N,overflow_decode,dump_convert,pt}}

Nothing is created before something is written. This module runs on Python 3.7.
"""

import contextlib
import os
import re
import shlex
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Iterable, List, Optional, Union

from precision_tool.lib.io import urls
from precision_tool.lib.io.files import PathLike, check_local, is_folder, list_folder
from precision_tool.lib.io.writing import remove_leftovers
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError, UsageError

#: Where results go when the data folder cannot be written, below the working folder.
FALLBACK_WORK_FOLDER = "precision_work"

#: Folders of results that hold comparisons, and verdicts on dumps that there was nothing to compare with.
COMPARISONS, VERDICTS = "vector_compare", "verdict"

#: Names of the fusion switch files: the one that turns everything off, and the one for single passes.
FUSION_OFF, FUSION_SWITCH = "fusion_off.cfg", "fusion_switch.cfg"

#: Name of the file that says what a run was.
PASSPORT = "passport.json"

_TIME_FORMAT = "%Y%m%d%H%M%S"

#: The file that each rank has in a dump of msprobe, and the folders in which it lies.
MSPROBE_FILE = "dump.json"
_MSPROBE_FOLDER = re.compile(r"(?:step|rank|proc)[0-9]{1,12}\Z")
#: Where users put such a dump of the NPU, and one of the benchmark, in a data folder.
_MSPROBE_NPU, _MSPROBE_BENCHMARK = ("npu", "pt/npu"), ("gpu", "cpu", "benchmark", "golden", "bench", "pt/gpu")
#: Folders of a run's own that may lie between these and the steps.
_MAX_BETWEEN = 3
#: Names in one folder that are looked at.
_MAX_LISTED = 64


def has_msprobe(folder: Path, between: int = _MAX_BETWEEN) -> bool:
    """Return whether a folder has a dump of msprobe, below at most so many folders of other names than it gives."""
    try:
        names = list_folder(str(folder)) if is_folder(folder) else []
    except (DataNotFoundError, FormatError):
        return False
    if MSPROBE_FILE in names:
        return True
    below = sorted(names, key=lambda name: _MSPROBE_FOLDER.match(name) is None)
    for name in below[:_MAX_LISTED]:
        left = between if _MSPROBE_FOLDER.match(name) else between - 1
        if left >= 0 and has_msprobe(folder / name, left):
            return True
    return False


def lies_in(path: str, folder: str) -> bool:
    """Return whether a path is that of a folder, or of something below it; both are absolute."""
    return os.path.commonpath([folder, path]) == folder


def path_below(path: str, folder: str) -> str:
    """An absolute path as seen from a folder that it lies in; of any other place the path itself."""
    return os.path.relpath(path, folder) if lies_in(path, folder) else path


class Workspace:
    """The paths of the data folder `root`. Results go to its `temp/`, or to `work` when given.

    `notes` collects notes for the user, each once; the printer takes them out. `part` is the folder of results that a
    part of the data has for itself, such as one step of one rank.
    """

    def __init__(self, root: PathLike = "precision_data", work: Optional[PathLike] = None, part: PathLike = "") -> None:
        self.root = Path(root)
        self.work = None if work is None else Path(work)
        self._part = Path(part)
        self.notes: List[Union[str, Message]] = []
        # Folders still worth trying for results, best first.
        self._bases = [Path(FALLBACK_WORK_FOLDER)]
        if self.work is not None:
            self._bases = [self.work]
        elif not urls.is_remote(self.root) and not self.is_dump:  # results go there when that is asked for
            self._bases.insert(0, self.root / "temp")
        # Folders that were not there before, deepest first.
        self._made: List[Path] = []

    # What is read

    def debug_dir(self, number: int = 0) -> Path:
        """Folder of an NPU run: 0 is the run under test."""
        return self.root / "npu" / f"debug_{number}"

    def debug_numbers(self) -> List[int]:
        """Return the numbers N of `npu/debug_N`, in order. FormatError where they cannot be listed."""
        folders = (path for path in _children(self.root / "npu") if is_folder(path))
        matches = (re.match(r"debug_([0-9]+)\Z", path.name) for path in folders)
        numbers = {int(match.group(1)) for match in matches if match}
        return sorted(numbers if 0 in numbers or self._msprobe_dir() is None else {0, *numbers})

    def dump_dir(self, number: int = 0) -> Path:
        """Dump files of an NPU run; of the one under test also those of msprobe, in the data folder or in its place."""
        folder = self.debug_dir(number) / "dump"
        return folder if number else self._msprobe_dir() or folder

    def _msprobe_dir(self) -> Optional[Path]:
        if is_folder(self.debug_dir(0)):
            return None
        if self.is_dump:
            return self.root
        return next((self.root / name for name in _MSPROBE_NPU if has_msprobe(self.root / name)), None)

    @property
    def msprobe_benchmark_dir(self) -> Optional[Path]:
        """The benchmark's dump of msprobe; None if there is none."""
        return next((self.root / name for name in _MSPROBE_BENCHMARK if has_msprobe(self.root / name)), None)

    @property
    def is_dump(self) -> bool:
        """Whether the data folder is itself a dump of msprobe, which nothing is written to."""
        return has_msprobe(self.root, 0)

    def graph_dir(self, number: int = 0) -> Path:
        """GE graphs of an NPU run."""
        return self.debug_dir(number) / "graph"

    def prof_dir(self, number: int = 0) -> Path:
        """Profiling data of an NPU run."""
        return self.debug_dir(number) / "prof"

    def npu_passport(self, number: int = 0) -> Path:
        """The file that describes an NPU run; it need not exist."""
        return self.debug_dir(number) / PASSPORT

    @property
    def benchmark_passport(self) -> Path:
        """The file that describes the benchmark run; it need not exist."""
        return self.root / "tf" / PASSPORT

    @property
    def tf_debug_dir(self) -> Path:
        """Run folders that tfdbg wrote."""
        return self.root / "tf" / "tf_debug"

    @property
    def tf_dump_dir(self) -> Path:
        """Benchmark tensors as `.npy`."""
        return self.root / "tf" / "dump"

    @property
    def tf_graph_dir(self) -> Path:
        """TensorFlow's graphs of the steps whose tensors are the benchmark's."""
        return self.root / "tf" / "graph"

    @property
    def tf_checkpoint_dir(self) -> Path:
        """Saved checkpoints `ckpt*`."""
        return self.root / "tf" / "checkpoints"

    @property
    def tf_input_dir(self) -> Path:
        """Inputs of the saved step, as `.npy`."""
        return self.tf_checkpoint_dir / "input"

    @property
    def pt_npu_dir(self) -> Path:
        """PyTorch `.h5` dumps of the NPU run."""
        return self.root / "pt" / "npu"

    @property
    def pt_gpu_dir(self) -> Path:
        """PyTorch `.h5` dumps of the benchmark."""
        return self.root / "pt" / "gpu"

    @property
    def overflow_dump_dir(self) -> Path:
        """Overflow debug dumps."""
        return self.root / "overflow" / "dump"

    def fusion_switch_file(self, name: str) -> Path:
        """The fusion switch file of this name that belongs to the data folder; it need not exist."""
        return self.root / "fusion" / name

    def fusion_result_files(self) -> List[Path]:
        """The `fusion_result.json` files that exist: data folder, working folder, `$ASCEND_WORK_PATH/FE/{pid}/`."""
        candidates = [self.root / "fusion" / "fusion_result.json", Path("fusion_result.json")]
        ascend_work_path = os.environ.get("ASCEND_WORK_PATH")
        if ascend_work_path:
            candidates += [path / "fusion_result.json" for path in _children(Path(ascend_work_path) / "FE")]
        return [path for path in candidates if _is_file(path)]

    def result_dirs(self) -> List[Path]:
        """Where results of earlier commands may lie, best first: of a part its own, then those of the whole."""
        bases = self._result_bases()
        return [*self._of_part(bases), *bases]

    def _of_part(self, bases: List[Path]) -> List[Path]:
        return [base / self._part for base in bases] if self._part.parts else []

    def _result_bases(self) -> List[Path]:
        bases = [self.root / "temp"]
        if self.work is not None:
            bases.insert(0, self.work)
        elif self.is_dump:
            bases = [Path(FALLBACK_WORK_FOLDER)]
        elif urls.is_remote(self.root) or not _looks_writable(bases[0]):
            bases.append(Path(FALLBACK_WORK_FOLDER))
        return bases

    def cache_dirs(self) -> List[Path]:
        """Folders for what is only kept to be quicker, best first. None is made where nothing else would be."""
        if self.work is not None and not urls.is_remote(self.work):
            return [self.work / "cache"]
        return [base / "cache" for base in self._result_bases() if os.path.isdir(str(base.parent)) and _is_ours(base)]

    def compare_dirs(self) -> List[Path]:
        """The `vector_compare/{time}` folders of earlier comparisons, newest first."""
        candidates: List[Path] = []
        for base in self.judged_dirs():
            try:
                candidates += _children(base / COMPARISONS)
            except FormatError as error:  # results elsewhere are as good; and new ones can be written elsewhere
                note = Message("note.data.results_unlisted", reason=error.full_message)
                self.notes += [note] if note not in self.notes else []
        return sorted(filter(_is_time_dir, candidates), key=lambda path: path.name, reverse=True)

    def judged_dirs(self) -> List[Path]:
        """Where comparisons and verdicts may lie: of a part its own alone, as soon as it has any."""
        bases = self._result_bases()
        own = self._of_part(bases)
        return own if any(is_folder(base / name) for base in own for name in (COMPARISONS, VERDICTS)) else bases

    def named(self, path: str) -> str:
        """A path as the user named it: seen from the working folder, else from the data folder or its `npu`."""
        if urls.is_remote(path) or os.path.lexists(path):
            return path
        below = (os.path.join(str(base), path) for base in (self.root, self.root / "npu"))
        return next(filter(_is_there, below), path)

    # What is written

    def output_dir(self, *parts: str) -> Path:
        """Make and return folder `parts` of the results: `output_dir("decode", "pt")` is `…/temp/decode/pt`.

        The first place that a file can really be written to is taken, and kept. Raises OutputError when
        there is none.
        """
        refused: List[Message] = []
        for base in list(self._bases):
            folder = base.joinpath(self._part, *parts)
            missing = _missing(folder)
            reason = _try_to_write(folder)
            if reason is None:
                self._made = missing + self._made
                if refused:
                    self.notes.append(Message("note.data.results_elsewhere", reason=refused[0], folder=base))
                    self._bases = self._bases[self._bases.index(base) :]
                return folder
            refused.append(Message("note.data.not_writable", folder=folder, reason=reason))
        raise OutputError("data.no_writable_folder", folders=refused)

    def on_disk(self) -> "Workspace":
        """This, or with the usual folder of results where they go to a URL: what is no single file needs a disk."""
        return Workspace(self.root, Path(FALLBACK_WORK_FOLDER), self._part) if urls.is_remote(self.work or "") else self

    def local_output_dir(self, *parts: str) -> Path:
        """As `output_dir`, on a disk, with a note where results go to a URL."""
        if urls.is_remote(self.work or ""):
            reason = Message("error.io.local_only.text", url=urls.url_of(str(self.work)))
            self.notes.append(Message("note.data.results_elsewhere", reason=reason, folder=FALLBACK_WORK_FOLDER))
        return self.on_disk().output_dir(*parts)

    def dump_dirs(self) -> List[Path]:
        """The folders of the data folder that hold dumps, whether or not they are there."""
        numbers = self.debug_numbers()
        others = (self.tf_dump_dir, self.tf_debug_dir, self.overflow_dump_dir, self.pt_npu_dir, self.pt_gpu_dir)
        return [*map(self.dump_dir, numbers), *others]

    def check_outside_dumps(self, folder: PathLike, *others: PathLike) -> None:
        """Raise UsageError for an output folder that is, or lies in, one that holds dumps, which are only read.

        These are the dump folders of the data folder, all of its benchmark's `tf`, and `others`.
        """
        place = os.path.realpath(str(folder))
        for dump in (*self.dump_dirs(), self.root / "tf", *map(Path, others)):
            root = os.path.realpath(str(dump))
            if lies_in(place, root):
                raise UsageError.of(folder, "data.inside_dumps", dumps=dump)

    def remove_empty(self, folder: Path) -> None:
        """Remove a folder for results that got none, and those above it that were made for it."""
        for path in (folder, *self._made):
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()

    def new_compare_dir(self, now: Optional[datetime] = None) -> Path:
        """Make `vector_compare/{14-digit time}` for a new comparison; its name is never that of an older one.

        What killed comparisons left in theirs is removed: nobody else writes there again.
        """
        parent = self.output_dir(COMPARISONS)
        if not urls.is_remote(parent):
            _tidy(parent)
        moment = now or datetime.now()
        while True:
            folder = parent / moment.strftime(_TIME_FORMAT)
            try:
                if not urls.is_remote(folder):
                    folder.mkdir()
                elif is_folder(folder):
                    raise FileExistsError
            except FileExistsError:  # two comparisons within one second
                moment += timedelta(seconds=1)
            except OSError as error:
                raise OutputError("data.no_result_folder", folder=folder, reason=error.strerror) from None
            else:
                return folder


class InferWorkspace(Workspace):
    """The paths of a folder that msquickcmp wrote: dump_data/{npu,tf,onnx}, model/*.json and result_*.csv.

    They are used where they lie; results go to its `temp/` as in a data folder.
    """

    def debug_dir(self, number: int = 0) -> Path:
        """Folder of the one NPU run; others are where a data folder would have them."""
        return self.root / "dump_data" / "npu" if number == 0 else super().debug_dir(number)

    def debug_numbers(self) -> List[int]:
        """There is one run."""
        return [0]

    def dump_dir(self, number: int = 0) -> Path:
        """Dump files of the NPU run."""
        return self.debug_dir(number)

    def graph_dir(self, number: int = 0) -> Path:
        """The model as the JSON of atc."""
        return self.root / "model"

    @property
    def tf_dump_dir(self) -> Path:
        """Benchmark tensors of whichever framework ran."""
        folders = [self.root / "dump_data" / name for name in _BENCHMARKS]
        return next((path for path in folders if os.path.isdir(str(path))), folders[0])

    def compare_dirs(self) -> List[Path]:
        """Our comparisons, then msquickcmp's own results."""
        own = any(path.suffix == ".csv" and "result_" in path.name for path in _children(self.root))
        return [*super().compare_dirs(), *([self.root] if own else [])]


#: What msquickcmp calls the folder of the benchmark.
_BENCHMARKS = ("tf", "onnx", "caffe")


def is_infer_folder(folder: PathLike) -> bool:
    """Return whether msquickcmp wrote a folder."""
    return os.path.isdir(os.path.join(str(folder), "dump_data", "npu"))


def open_workspace(root: PathLike, work: Optional[PathLike] = None, part: PathLike = "") -> Workspace:
    """The workspace of a data folder, or of a folder that msquickcmp wrote; `part` as of `Workspace`."""
    return InferWorkspace(root, work, part) if is_infer_folder(root) else Workspace(root, work, part)


#: What data folders are made of.
_DATA_FOLDERS = ("npu", "tf", "pt", "overflow", "dump_data")


def check_data(root: PathLike) -> None:
    """Raise DataNotFoundError where there is no data folder; its hint names one nearby."""
    path = Path(root)
    is_there = is_folder(path)
    if is_there and _is_data(path):
        return
    near = None if urls.is_remote(path) else _near_data(path)
    if is_there and near is None:  # one that is still empty
        return
    if is_there:
        raise DataNotFoundError.of(root, "data.no_data_folder", near=near, folders=_DATA_FOLDERS[:3])
    if os.path.lexists(str(root)):
        raise DataNotFoundError.of(root, "data.file_for_data_folder", near=near)
    raise DataNotFoundError.of(root, "data.no_such_data_folder", near=near)


def _is_data(folder: Path) -> bool:
    return any(is_folder(folder / name) for name in _DATA_FOLDERS)


def _near_data(root: Path) -> Optional[str]:
    """The data folder in a folder, or around it; of a folder that is not there, of the working folder. As typed."""
    place = root if is_folder(root) else Path()
    inside = place / "precision_data"
    if is_folder(inside) and _is_data(inside):
        return typed_path(str(inside))
    whole = Path(os.path.abspath(str(place)))
    for folder in (whole, *whole.parents):
        if any(_is_run(path) for path in _visible_children(folder / "npu")) or is_folder(folder / "tf" / "dump"):
            return typed_path(str(folder))
    return None


def _is_file(path: Path) -> bool:
    if urls.is_remote(path):
        return path in _children(path.parent)
    return os.path.isfile(str(path))


def _is_there(path: str) -> bool:
    return is_folder(path) if urls.is_remote(path) else os.path.lexists(path)


def _is_run(folder: Path) -> bool:
    return re.match(r"debug_[0-9]+\Z", folder.name) is not None and is_folder(folder)


def _visible_children(folder: Path) -> Iterable[Path]:
    """Return the entries of a folder; none where it cannot be listed."""
    with contextlib.suppress(FormatError):
        return _children(folder)
    return []


def make_writable(folder: Path) -> Path:
    """Make a folder that others, the device or TensorFlow, write to; returns its absolute path. Raises OutputError."""
    check_local(folder)
    absolute = Path(os.path.abspath(str(folder)))
    reason = _try_to_write(absolute)
    if reason is not None:
        raise OutputError("data.not_writable_data", folder=absolute, reason=reason)
    return absolute


def _children(folder: Path) -> Iterable[Path]:
    """Return the entries of a folder by name; none where there is no folder. FormatError where it may not be read."""
    return [folder / name for name in list_folder(str(folder))] if is_folder(folder) else []


def _is_ours(base: Path) -> bool:
    """Return whether a folder for results is below the data folder, or was made by an earlier command."""
    return base.name == "temp" or os.path.isdir(str(base))


def _is_time_dir(path: Path) -> bool:
    return re.match(r"[0-9]{14}\Z", path.name) is not None and is_folder(path)


def _tidy(parent: Path) -> None:
    """Remove what killed processes left in the folders of earlier comparisons, and such a folder that held no more."""
    with contextlib.suppress(FormatError, OSError):
        for earlier in filter(_is_time_dir, _children(parent)):
            if remove_leftovers(str(earlier)):
                with contextlib.suppress(OSError):  # not empty
                    earlier.rmdir()


def _looks_writable(folder: Path) -> bool:
    """Return whether writing may work, without writing: for looking up results only."""
    while not os.path.exists(str(folder)) and folder != folder.parent:
        folder = folder.parent
    return os.access(str(folder), os.W_OK | os.X_OK)


def _missing(folder: Path) -> List[Path]:
    """`folder` and the folders above it as far as they are not there, deepest first."""
    if urls.is_remote(folder):
        return []
    return [path for path in (folder, *folder.parents) if not os.path.lexists(str(path))]


def _try_to_write(folder: Path) -> Optional[str]:
    """Make `folder` and write a nameless file in it. None when that works, else why not.

    Permission bits tell too little: root, read-only mounts, quotas and full disks answer otherwise.
    """
    if urls.is_remote(folder):  # the first file that is written tells
        return None
    missing = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=str(folder)) as trial:
            trial.write(b"trial")
            trial.flush()
    except OSError as error:
        for path in missing:  # leave no empty folders behind
            with contextlib.suppress(OSError):
                path.rmdir()
        return error.strerror or str(error)
    return None


def typed_path(path):
    # type: (str) -> str
    """Return a path as a word of a command line, to be copied into a shell or the prompt."""
    return shlex.quote(shown_path(path))


def shown_path(path):
    # type: (str) -> str
    """A path as a user would type it here: relative to the working folder if it lies below."""
    if urls.is_remote(path):
        return urls.url_of(path) or path
    folder = os.getcwd()
    return os.path.relpath(path, folder) if lies_in(os.path.abspath(path), folder) else path


def without_folder(text):
    # type: (str) -> str
    """A text in which paths below the working folder are as one would type them there."""
    try:
        folder = os.path.join(os.getcwd(), "")
    except OSError:  # it has been removed
        return text
    if folder == os.sep:
        return text
    return re.sub(r"(?<![\w./:\-])" + re.escape(folder), "", text)  # what stands in a URL is the server's folder
