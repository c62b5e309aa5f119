"""Where msprobe's dumps lie: `{dump path}/step{N}/rank{R}`, or `proc{pid}` for a rank, and the tensor files in them."""

from __future__ import annotations

import posixpath
import re
from contextlib import suppress
from dataclasses import dataclass

from precision_tool.lib.data.dump_tree import Stamps
from precision_tool.lib.data.workspace import MSPROBE_FILE
from precision_tool.lib.io.files import check_folder, could_be_path, exists, list_folder, store_of
from precision_tool.lib.io.msprobe_dump import read_construct
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.stores import Kind
from precision_tool.lib.io.torch_file import SUFFIX, read_torch
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, PrecisionToolError, shown
from precision_tool.lib.model.msprobe import ModuleTree, RecordedTensor
from precision_tool.lib.model.tensor import Tensor

DUMP_FILE, STACK_FILE, CONSTRUCT_FILE = MSPROBE_FILE, "stack.json", "construct.json"
TENSOR_FOLDER = "dump_tensor_data"
_NPY = ".npy"
_STEP, _RANK = re.compile(r"step([0-9]{1,12})"), re.compile(r"(rank|proc)([0-9]{1,12})")
#: Folders below one another that are looked into; msprobe makes three, of which users hold several in others.
_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MsprobeLeaf:
    """A folder with a `dump.json`: one step of one rank, or of a process where training is not distributed.

    None stands for a number that no folder of the path is named after. `root` is the dump path, which has the steps in
    it. `stacks` and `construct` are paths, "" where there is no such file; `has_tensors` says whether tensors were
    saved.
    """

    path: str
    root: str
    step: int | None = None
    rank: int | None = None
    process: int | None = None
    stacks: str = ""
    construct: str = ""
    has_tensors: bool = False

    @property
    def dump(self) -> str:
        """The path of `dump.json`."""
        return posixpath.join(self.path, DUMP_FILE)

    def tensor_file(self, tensor: RecordedTensor) -> str:
        """Return the path of the file of a tensor, which may be missing.

        Raises
        ------
        DataNotFoundError
            No file was written of this tensor.
        FormatError
            The entry gives a name that no file in the folder of the tensors can have.
        """
        name = tensor.data_name
        if not name:
            raise DataNotFoundError.of(self.dump, "data.msprobe.not_saved", dtype=tensor.dtype, shape=tensor.shape)
        if not is_tensor_name(name):
            raise FormatError.of(self.dump, "data.msprobe.name", name=shown(name), folder=TENSOR_FOLDER)
        return posixpath.join(self.path, TENSOR_FOLDER, name)

    def read_tensor(self, tensor: RecordedTensor) -> Tensor:
        """Return a tensor, undecoded. Errors as of `tensor_file`, and those of a file that is missing or damaged."""
        path = self.tensor_file(tensor)
        return read_torch(path) if path.endswith(SUFFIX) else read_npy(path)


def is_tensor_name(name: str) -> bool:
    """Return whether a name is that of a tensor file, and of nothing outside its folder."""
    if "/" in name or "\\" in name or name.startswith("."):
        return False
    return name.endswith((SUFFIX, _NPY)) and could_be_path(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MsprobeRun:
    """What was found below a folder, in the order of steps and ranks; `notes` name folders that could not be listed."""

    root: str
    leaves: tuple[MsprobeLeaf, ...]
    notes: tuple[Message, ...] = ()

    @property
    def roots(self) -> tuple[str, ...]:
        """The dump paths: several where the folder holds more than one run."""
        return tuple(sorted({leaf.root for leaf in self.leaves}))

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps, each once."""
        return tuple(sorted({leaf.step for leaf in self.leaves if leaf.step is not None}))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, each once; empty where training was not distributed."""
        return tuple(sorted({leaf.rank for leaf in self.leaves if leaf.rank is not None}))


def has_msprobe_folders(path: str) -> bool:
    """Return whether a folder is, or has, one of a step or rank, as msprobe calls them, whatever is in it."""
    names = [posixpath.basename(posixpath.abspath(path))]
    with suppress(PrecisionToolError):
        names += list_folder(path)
    return any(pattern.fullmatch(name) for name in names for pattern in (_STEP, _RANK))


def find_msprobe(path: str, stamps: Stamps | None = None) -> MsprobeRun:
    """Return the dumps of msprobe at or below a folder: a dump path, a step, a rank, or what holds dump paths.

    Parameters
    ----------
    path : str
        The folder.
    stamps : Stamps, optional
        Notes the folders that are listed, to find out later whether one has changed.

    Raises
    ------
    DataNotFoundError
        The folder is missing, or has no `dump.json` below it.
    """
    check_folder(path, "msprobe dump")
    root = posixpath.abspath(path)
    leaves: list[MsprobeLeaf] = []
    unread: list[PrecisionToolError] = []
    visited: set[tuple[int, ...]] = set()
    stack = [(root, 0)]
    while stack:
        folder, depth = stack.pop()
        if stamps is not None:
            stamps.note(folder)
        store = store_of(folder)
        try:
            stat = store.stat(folder)
            entries = {entry.name: entry.kind for entry in store.entries(folder)}
        except PrecisionToolError as error:
            if folder == root:
                raise
            unread.append(error)
            continue
        if stat is not None:
            if stat.signature[3:] in visited:  # a link to a folder above it
                continue
            visited.add(stat.signature[3:])
        if entries.get(DUMP_FILE) is Kind.FILE:
            leaves.append(_leaf(folder, entries))
        elif depth < _MAX_DEPTH:  # below a leaf there are its tensors, very many of them
            below = [name for name, kind in entries.items() if kind is Kind.FOLDER and name != TENSOR_FOLDER]
            stack += [(posixpath.join(folder, name), depth + 1) for name in sorted(below, reverse=True)]
    if not leaves:
        raise unread[0] if unread else DataNotFoundError.of(path, "data.msprobe.none_below", file=DUMP_FILE)
    notes: tuple[Message, ...] = ()
    if unread:
        notes = (Message("note.data.unread_folders", count=len(unread), reason=unread[0].full_message),)
    return MsprobeRun(root=root, leaves=tuple(sorted(leaves, key=_order)), notes=notes)


def modules_beside(path: str) -> ModuleTree:
    """Return the modules that are recorded beside a `dump.json`; none where they are not recorded, or unreadable."""
    construct = posixpath.join(posixpath.dirname(path), CONSTRUCT_FILE)
    with suppress(PrecisionToolError):  # the graph's notes say why
        if exists(construct):
            return read_construct(construct)
    return ModuleTree(parents={})


def _leaf(folder: str, entries: dict[str, Kind | None]) -> MsprobeLeaf:
    step = rank = process = None
    root, name = posixpath.split(folder)
    match = _RANK.fullmatch(name)
    if match is not None:
        number = int(match[2])
        rank, process = (number, None) if match[1] == "rank" else (None, number)
        above, name = posixpath.split(root)
    else:
        above, root = root, folder
    match = _STEP.fullmatch(name)
    if match is not None:
        step, root = int(match[1]), above

    def file(name: str) -> str:
        return posixpath.join(folder, name) if entries.get(name) is Kind.FILE else ""

    return MsprobeLeaf(
        path=folder,
        root=root,
        step=step,
        rank=rank,
        process=process,
        stacks=file(STACK_FILE),
        construct=file(CONSTRUCT_FILE),
        has_tensors=entries.get(TENSOR_FOLDER) is Kind.FOLDER,
    )


def _order(leaf: MsprobeLeaf) -> tuple[str, int, int, int, str]:
    numbers = [-1 if number is None else number for number in (leaf.step, leaf.rank, leaf.process)]
    return leaf.root, numbers[0], numbers[1], numbers[2], leaf.path
