"""The run folders that tfdbg wrote and the tensor files in them, by name alone: nothing is opened here.

    tf_debug/run_{microseconds}_{counter}/
      _tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0/{op as folders}_{slot}_DebugIdentity_{microseconds}
      _tfdbg_core_metadata_*, _tfdbg_fetches_info_, _tfdbg_feed_keys_info_, and per device _tfdbg_graph_*

Source: the docstrings of TensorFlow's `debug_data.py` and `dumping_wrapper.py`. This module runs on Python 3.7.
"""

import errno
import os
import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from precision_tool.lib.io.files import entries, real_path, store_of
from precision_tool.lib.io.local import LOCAL
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError, UsageError

#: What chooses all runs, with all that they dumped.
ALL_RUNS = "all"

_DEVICE_PREFIX = "_tfdbg_device_"
_METADATA_PREFIX = "_tfdbg_"
_RUN_FOLDER = re.compile(r"run_(?P<time>[0-9]+)_(?P<number>[0-9]+)\Z")
_TENSOR_FILE = re.compile(
    r"(?P<name>.+)_(?P<slot>[0-9]{1,6})_(?P<watch>Debug[A-Za-z0-9]+)_(?P<time>[0-9]{1,20})(?:-(?P<again>[0-9]{1,9}))?\Z",
    re.DOTALL,
)
#: The debug op that passes a tensor on as it is; the others dump a summary of it (DebugNanCount).
_IDENTITY = re.compile(r"DebugIdentity(?:V[0-9]+)?\Z")
#: Control characters, which a terminal would obey, as well.
_FLATTEN = dict.fromkeys((*range(32), *map(ord, "./\\ "), 127), "_")
_NPY_NAME = re.compile(r".+\.[0-9]{1,6}\.[0-9]{1,20}\.npy\Z", re.DOTALL)
#: How deep below the folder that was named run folders are looked for.
_RUN_DEPTH = 3

#: Told of each folder before it is listed.
Visit = Callable[[str], None]


@dataclass(frozen=True)
class RunFolder:
    """A run folder. `time` (microseconds) and `number` are 0 and None where its name does not tell them."""

    path: str
    time: int = 0
    number: Optional[int] = None

    @property
    def name(self) -> str:
        """The name of the folder."""
        return os.path.basename(self.path)


@dataclass(frozen=True)
class DumpedTensor:
    """A file of a tensor: output `slot` of `op`, dumped at `time` (microseconds) on `device`.

    `again` counts the dumps of one tensor within one microsecond from 0 up.
    """

    path: str
    op: str
    slot: int
    time: int
    again: int
    device: str
    size: int

    @property
    def tensor(self) -> str:
        """The tensor as TensorFlow calls it, `conv1/Relu:0`."""
        return f"{self.op}:{self.slot}"

    @property
    def flat_op(self) -> str:
        """The op as file names spell it."""
        return self.op.translate(_FLATTEN)

    @property
    def npy_name(self) -> str:
        """The name of the benchmark tensor: `{op}.{slot}.{microseconds}.npy`."""
        return f"{self.flat_op}.{self.slot}.{self.time}.npy"


@dataclass(frozen=True)
class RunFiles:
    """The tensors of a run, oldest first, and what else lies there as (path or tensor, reason)."""

    run: RunFolder
    tensors: Tuple[DumpedTensor, ...]
    skipped: Tuple[Tuple[str, Message], ...] = ()
    unreadable: Tuple[Tuple[str, Message], ...] = ()


def is_tensor_name(name: str) -> bool:
    """Whether a file is named as tfdbg names those of whole tensors."""
    match = _TENSOR_FILE.match(name)
    return match is not None and _IDENTITY.match(match.group("watch")) is not None


def is_npy_name(name: str) -> bool:
    """Whether a file is named as `tf_dump` names its tensors."""
    return _NPY_NAME.match(name) is not None


def find_runs(folder: str, visit: Optional[Visit] = None) -> List[RunFolder]:
    """The run folders below `folder`, or `folder` itself, oldest first; [] if there is none.

    One that is named as such and cannot be listed counts: what reads it says why. FormatError where `folder` itself
    cannot, or a server does not tell what a folder holds.
    """
    run_folders: List[RunFolder] = []
    pending = [(os.path.abspath(folder), 0)]
    while pending:
        path, depth = pending.pop()
        if visit is not None:
            visit(path)
        try:
            below = [os.path.join(path, entry.name) for entry in entries(path) if entry.kind is Kind.FOLDER]
        except DataNotFoundError:
            continue
        except PrecisionToolError as error:
            is_on_disk = store_of(path) is LOCAL
            if _RUN_FOLDER.match(os.path.basename(path)):
                run_folders.append(_run_at(path))
            elif not is_on_disk:
                raise
            elif depth == 0:
                raise FormatError.of(path, "io.tfdbg.unlisted", reason=_reason(error)) from error
            continue
        if any(os.path.basename(each).startswith(_DEVICE_PREFIX) for each in below):
            run_folders.append(_run_at(path))
        elif depth < _RUN_DEPTH:
            pending += [(each, depth + 1) for each in below]
    return sorted(run_folders, key=lambda run: (run.time, -1 if run.number is None else run.number, run.path))


def _run_at(path: str) -> RunFolder:
    match = _RUN_FOLDER.match(os.path.basename(path))
    return RunFolder(path, int(match.group("time")), int(match.group("number"))) if match else RunFolder(path)


def _reason(error: PrecisionToolError) -> str:
    """What the system says, or the server."""
    cause = error.__cause__
    return cause.strerror or str(cause) if isinstance(cause, OSError) else error.message


def _size(path: str) -> int:
    """The bytes of a file; FormatError for one that cannot be looked at, DataNotFoundError if it is gone."""
    stat = store_of(path).stat(path)
    if stat is None:
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise DataNotFoundError.of(path, "io.no_file") from error
    return stat.size


def is_number(choice: str) -> bool:
    """Whether `--run` names a run by its number."""
    return choice.isdigit() and choice.isascii()


def choose_runs(runs: Sequence[RunFolder], choice: str) -> List[RunFolder]:
    """The runs that `--run` names: `all`, a folder's name, or the number at its end."""
    if choice == ALL_RUNS:
        return list(runs)
    named = [run for run in runs if run.name == choice]
    if not named and is_number(choice):
        named = [run for run in runs if str(run.number) == (choice.lstrip("0") or "0")]
    if len(named) == 1:
        return named
    names = [run.name for run in (named or runs)]
    shown = ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
    if named:
        raise UsageError("io.tfdbg.ambiguous_run", choice=choice, runs=shown)
    raise DataNotFoundError("io.tfdbg.no_run", choice=choice, runs=shown)


def files_of_run(run: RunFolder, visit: Optional[Visit] = None) -> RunFiles:
    """Every tensor file of a run."""
    tensors: List[DumpedTensor] = []
    skipped: List[Tuple[str, Message]] = []
    unreadable: List[Tuple[str, Message]] = []
    visited: Set[str] = set()
    # (folder, its device, the op name that its path spells)
    pending: List[Tuple[str, str, str]] = [(run.path, "", "")]
    while pending:
        folder, device, scope = pending.pop()
        if visit is not None:
            visit(folder)
        real = real_path(folder)
        if real in visited:  # a link to a folder above
            continue
        visited.add(real)
        try:
            listed = entries(folder)
        except PrecisionToolError as error:
            unreadable.append((folder, Message("note.io.tfdbg.unlisted", reason=_reason(error))))
            continue
        for name, kind in listed:
            path = os.path.join(folder, name)
            try:
                if kind is None:  # a link to itself, or to what may not be looked at
                    store_of(path).stat(path)
            except PrecisionToolError as error:
                unreadable.append((path, Message("note.io.tfdbg.unread", reason=_reason(error))))
                continue
            if kind is Kind.FOLDER:
                if device:
                    pending.append((path, device, scope + name + "/"))
                elif name.startswith(_DEVICE_PREFIX):
                    pending.append((path, name[len(_DEVICE_PREFIX) :].lstrip(","), ""))
                else:
                    skipped.append((path, Message("note.io.tfdbg.other_folder")))
                continue
            if name.startswith(_METADATA_PREFIX):
                continue
            match = _TENSOR_FILE.match(name) if device else None
            if match is None:
                skipped.append((path, Message("note.io.tfdbg.other_name")))
                continue
            op, slot = scope + match.group("name"), int(match.group("slot"))
            if _IDENTITY.match(match.group("watch")) is None:
                skipped.append((f"{op}:{slot}", Message("note.io.tfdbg.watch", name=match.group("watch"))))
                continue
            try:
                size = _size(path)
            except PrecisionToolError as error:
                unreadable.append((path, Message("note.io.tfdbg.unread", reason=_reason(error))))
                continue
            time, again = int(match.group("time")), int(match.group("again") or 0)
            tensors.append(DumpedTensor(path, op, slot, time, again, device, size))
    tensors.sort(key=lambda tensor: (tensor.time, tensor.again, tensor.path))
    return RunFiles(run, tuple(tensors), tuple(skipped), tuple(unreadable))


def last_of_each(runs: Iterable[RunFiles]) -> List[DumpedTensor]:
    """Of every tensor what the last run that holds it has of it; `runs` are in their order, oldest first.

    A loop dumps a tensor more than once in a run: all of that are kept, each with its own time.
    """
    newest: Dict[Tuple[str, int], List[DumpedTensor]] = {}
    for run in runs:
        of_run: Dict[Tuple[str, int], List[DumpedTensor]] = {}
        for tensor in run.tensors:
            of_run.setdefault((tensor.op, tensor.slot), []).append(tensor)
        newest.update(of_run)
    return [tensor for tensors in newest.values() for tensor in tensors]
