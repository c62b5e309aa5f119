"""The kinds of data, a class each, so that no other module asks which kind it has."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple

from precision_tool.lib.data import dump_names as names
from precision_tool.lib.data.dump_names import is_dump_file
from precision_tool.lib.data.dump_tree import (
    MAPPING_FILE,
    Stamps,
    find_benchmark,
    find_run,
    list_folders,
    nothing_below,
)
from precision_tool.lib.data.msprobe_matching import check_same_network, fitted
from precision_tool.lib.data.msprobe_ops import find_msprobe_benchmark, find_msprobe_run, read_recorded
from precision_tool.lib.data.msprobe_tree import DUMP_FILE, find_msprobe, has_msprobe_folders
from precision_tool.lib.data.tensor_table import TABLE_FILE, find_listed, read_listed
from precision_tool.lib.io import tfdbg_files as tfdbg
from precision_tool.lib.io.files import check_folder, exists, folder_exists, is_folder, real_path, signature_of
from precision_tool.lib.io.msprobe_dump import read_dump_header
from precision_tool.lib.io.npy import read_npy
from precision_tool.lib.io.readers import read_tensor_event
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.model.run import Benchmark, BenchmarkFile, DumpLeaf, Run
from precision_tool.lib.model.tensor import AnyTensor


class DataKind(ABC):
    """One kind of data that a side of a comparison can be. Names decide which; nothing is opened."""

    #: Whether its ops are those of GE's graphs, so that they can be judged, and the toolkit reads them.
    has_graph: ClassVar[bool] = True
    #: How the names of its files end, in small letters; () where that tells nothing.
    suffixes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def owns(self, name: str) -> bool:
        """Return whether a file of this name is of this kind."""

    def has_suffix(self, name: str) -> bool:
        """Return whether a name, or a path, ends as those of this kind's files do."""
        return name.lower().endswith(self.suffixes)

    def lies_at(self, path: str) -> bool:
        """Return whether the first files below a folder that decide it are of this kind, not dump files of GE."""
        for _, file_names in list_folders(path):
            if any(map(self.owns, file_names)):
                return True
            if any(map(is_dump_file, file_names)):
                return False
        return False

    @abstractmethod
    def find(self, path: str, stamps: Stamps | None = None) -> Run | Benchmark:
        """Return the data of this kind at a path; DataNotFoundError if there is none. `stamps` notes the folders."""

    def check_goes_with(self, path: str, other: str, options: dict[str, str | None]) -> None:  # noqa: B027
        """Raise UsageError where data of this kind at `path` cannot be compared with `other`, or with these options.

        `options` are a graph for each side, by the option that names it.
        """

    def check_judged(self, option: str) -> None:  # noqa: B027
        """Raise UsageError for an option that needs recomputed ops, where none is recomputed."""

    def check_command(self, command: str, path: str) -> None:  # noqa: B027
        """Raise UsageError for a command that cannot use data of this kind, which lies at `path`."""


# --- PyTorch's `.h5` dumps ---


#: Of files left out, as many are named.
_MAX_NAMED = 3


class H5Files(DataKind):
    """PyTorch's dumps: a `.h5` file, or a folder of them."""

    has_graph = False
    suffixes = (".h5", ".hdf5")

    def owns(self, name: str) -> bool:
        return self.has_suffix(name)

    def lies_at(self, path: str) -> bool:
        """True for a `.h5` file, and for a folder in which such files, not dump files of GE, are found first."""
        return super().lies_at(path) if is_folder(path) else self.owns(path)

    def files(self, folder: str, stamps: Stamps | None = None) -> list[str]:
        """The files below a folder, by path; none where there is no such folder. `stamps` notes the folders."""
        try:
            paths = [
                posixpath.join(place, name)
                for place, names in list_folders(folder, stamps)
                for name in names
                if self.owns(name)
            ]
        except PrecisionToolError:
            return []
        return sorted(paths)

    def find(self, path: str, stamps: Stamps | None = None) -> Run:
        """Each file is a model of its own, named after it where there are several."""
        files = _files_of(path, Message("note.data.side.dump"), stamps)
        names = [posixpath.splitext(posixpath.basename(file))[0] if len(files) > 1 else "" for file in files]
        leaves = [DumpLeaf(path=file, files=(), model_name=name) for file, name in zip(files, names, strict=True)]
        return Run(root=path, leaves=tuple(leaves))

    def check_goes_with(self, path: str, other: str, options: dict[str, str | None]) -> None:
        if not self.lies_at(other):
            raise UsageError.of(other, "data.one_side_h5")
        for option, value in options.items():
            if value is not None:
                raise UsageError("data.h5_without_graph", option=option)

    def check_judged(self, option: str) -> None:
        raise UsageError("data.h5_not_recomputed", option=option)

    def check_command(self, command: str, path: str) -> None:
        raise UsageError("data.h5_for_command", command=command, path=path)


PYTORCH = H5Files()


class H5Pair(NamedTuple):
    """Two files to be compared."""

    npu: str
    golden: str


def pair_h5_files(npu: str, golden: str) -> tuple[tuple[H5Pair, ...], tuple[Message, ...]]:
    """The files, or files below folders, that belong together, and notes on those left out.

    Files of one name belong together. Else the newest of each side do: the dumper names its files after the time.
    DataNotFoundError for a side without any, UsageError where both sides are the same file.
    """
    left, right = _apart(
        _files_of(npu, Message("note.data.side.npu")), _files_of(golden, Message("note.data.side.benchmark"))
    )
    roots = [path if folder_exists(path) else posixpath.dirname(path) or "." for path in (npu, golden)]
    by_name = {posixpath.relpath(path, roots[1]): path for path in right}
    same = [(path, by_name[name]) for path in left if (name := posixpath.relpath(path, roots[0])) in by_name]
    if not same:
        same = [(_newest(left), _newest(right))]
    notes = []
    for is_npu, root, all_files, paired in (
        (True, roots[0], left, {npu_file for npu_file, _ in same}),
        (False, roots[1], right, {other for _, other in same}),
    ):
        others = [posixpath.relpath(path, root) for path in all_files if path not in paired]
        if others:
            is_more = len(others) > _MAX_NAMED
            notes.append(
                Message(
                    "note.data.h5_left_out", count=len(others), is_npu=is_npu, names=others[:_MAX_NAMED], more=is_more
                )
            )
    return tuple(H5Pair(npu=npu_file, golden=other) for npu_file, other in same), tuple(notes)


def _apart(left: list[str], right: list[str]) -> tuple[list[str], list[str]]:
    """Both sides without what the larger one holds of the other: a file agrees with itself, whatever is in it."""
    both = set(map(real_path, left)) & set(map(real_path, right))
    if not both:
        return left, right
    if len(left) == len(right):
        raise UsageError.of(left[0], "data.same_file")
    rest = [path for path in max(left, right, key=len) if real_path(path) not in both]
    if not rest:
        raise UsageError.of(left[0], "data.same_files")
    return (rest, right) if len(left) > len(right) else (left, rest)


def _files_of(path: str, side: Message, stamps: Stamps | None = None) -> list[str]:
    if not is_folder(path):
        if not exists(path):
            raise DataNotFoundError.of(path, "data.no_such_h5", side=side)
        return [path]
    files = PYTORCH.files(path, stamps)
    if not files:
        nothing = DataNotFoundError.of(path, "data.no_h5_below", side=side)
        raise nothing_below(nothing, path)
    return files


def _newest(paths: list[str]) -> str:
    return max(paths, key=lambda path: (_modified(path), path))


def _modified(path: str) -> int:
    signature = signature_of(path)
    return 0 if signature is None else signature[1]


# --- dumps of GE, and benchmark tensors ---


class GeDump(DataKind):
    """A dump of GE on the NPU, a file for each run of an op. Its graphs lie in `graph`, beside it or higher."""

    def owns(self, name: str) -> bool:
        return names.is_dump_file(name)

    def find(self, path: str, stamps: Stamps | None = None) -> Run:
        return find_run(path, stamps)

    def check_goes_with(self, path: str, other: str, options: dict[str, str | None]) -> None:
        if MSPROBE.lies_at(other):
            _check_not_empty(path)
            raise UsageError.of(path, "data.one_side_msprobe")

    def graph_folder(self, above: str) -> str:
        """Where graphs lie in a folder that a dump lies below; empty if this is no such folder."""
        return posixpath.join(above, "graph")

    def is_graph(self, folder: str, name: str) -> bool:
        """Return whether a file is a graph as it ran on the device."""
        return names.is_build_graph(name)

    def no_graph(self, path: str, folders: Sequence[str]) -> DataNotFoundError:
        """The error for a dump at `path` without a graph in these folders."""
        return DataNotFoundError("data.no_graph_of_dump", folders=folders, dump=path)


class InferDump(GeDump):
    """A folder of msquickcmp: dumps of an offline model below `dump_data`, and the model's JSON in `model`."""

    _DUMPS, _MODEL = "dump_data", "model"

    def lies_at(self, path: str) -> bool:
        return bool(self._model_of(path))

    def graph_folder(self, above: str) -> str:
        return posixpath.join(above, self._MODEL) if folder_exists(posixpath.join(above, self._DUMPS)) else ""

    def is_graph(self, folder: str, name: str) -> bool:
        return (
            name.endswith(".json")
            and posixpath.basename(folder) == self._MODEL
            and bool(self.graph_folder(posixpath.dirname(folder)))
        )

    def no_graph(self, path: str, folders: Sequence[str]) -> DataNotFoundError:
        return DataNotFoundError("data.no_model_json", folder=self._model_of(path))

    def _model_of(self, path: str) -> str:
        """Where the graphs of a dump below `dump_data` belong, there or not; empty for other dumps."""
        root, separator, _ = posixpath.abspath(path).rpartition(posixpath.join("/", self._DUMPS, ""))
        return posixpath.join(root, self._MODEL) if separator else ""


class MsprobeDump(GeDump):
    """A dump of msprobe: `dump.json` says which ops there are and how they are connected, and has their tensors' names.

    It is a benchmark as well.
    """

    def owns(self, name: str) -> bool:
        return name == DUMP_FILE

    def lies_at(self, path: str) -> bool:
        with suppress(PrecisionToolError):  # whoever reads the folder says what is wrong with it
            return is_folder(path) and super().lies_at(path)
        return False

    def find(self, path: str, stamps: Stamps | None = None) -> Run:
        return find_msprobe_run(path, stamps)

    def graph_folder(self, above: str) -> str:
        return ""

    def is_graph(self, folder: str, name: str) -> bool:
        return self.owns(name)

    def no_graph(self, path: str, folders: Sequence[str]) -> DataNotFoundError:
        return DataNotFoundError.of(path, "data.msprobe.none_below", file=DUMP_FILE)

    def check_goes_with(self, path: str, other: str, options: dict[str, str | None]) -> None:
        if not self.lies_at(other):
            if PYTORCH.lies_at(other) or (benchmark_kind(other) or GE) in (NPY, TFDBG, GE):
                _check_not_empty(other)
                raise UsageError.of(other, "data.one_side_msprobe")
            return
        own, others = ({} if not (dump := first_dump(side)) else read_dump_header(dump) for side in (path, other))
        self._check_task(path, own)
        frameworks = own.get("framework"), others.get("framework")
        if None not in frameworks and frameworks[0] != frameworks[1]:
            raise UsageError.of(other, "data.msprobe.two_frameworks", own=frameworks[0], other=frameworks[1])

    def check_judged_alone(self, path: str) -> None:
        """Raise UsageError for a dump that has no values."""
        dump = first_dump(path)
        self._check_task(path, read_dump_header(dump) if dump else {})

    @staticmethod
    def _check_task(path: str, header: Mapping[str, str]) -> None:
        if header.get("task") == "structure":
            raise UsageError.of(path, "data.msprobe.structure")


def first_dump(path: str) -> str:
    """Return the first `dump.json` of a dump of msprobe at or below a folder; "" for a folder of another kind."""
    if not MSPROBE.lies_at(path):
        return ""
    with suppress(PrecisionToolError):
        return find_msprobe(path).leaves[0].dump
    return ""


def _check_not_empty(path: str) -> None:
    """Raise DataNotFoundError for a folder of a dump of msprobe whose files are missing."""
    if not has_tensors(path) and has_msprobe_folders(path):
        raise DataNotFoundError.of(path, "data.msprobe.no_dump_json", file=DUMP_FILE)


class NpyFiles(DataKind):
    """A benchmark's tensors, a `.npy` file each."""

    suffixes: ClassVar[tuple[str, ...]] = (names.NPY,)

    def has_suffix(self, name: str) -> bool:
        return name.endswith(self.suffixes)

    def owns(self, name: str) -> bool:
        return self.has_suffix(name) and names.parse_golden_name(name) is not None

    def find(self, path: str, stamps: Stamps | None = None) -> Benchmark:
        return find_benchmark(path, stamps)

    def read(self, file: BenchmarkFile) -> AnyTensor:
        """Return the tensor of a file that `find` returned; its values are read when they are used."""
        return read_npy(file.path) if self.has_suffix(file.path) else read_tensor_event(file.path)

    def fitted(self, benchmark: Benchmark, leaf: DumpLeaf) -> Benchmark:
        """Return a benchmark by the names that ops have in a leaf, where the two number them otherwise."""
        return benchmark

    def check_same_network(self, benchmark: Benchmark, leaf: DumpLeaf) -> None:
        """Raise UsageError for a benchmark of another network than a leaf's, where it tells of what network it is."""


class TfdbgRuns(NpyFiles):
    """A benchmark's tensors as tfdbg wrote them; `.npy` files that lie among them are read instead."""

    def lies_at(self, path: str) -> bool:
        return bool(tfdbg.find_runs(path)) and not GE.lies_at(path)


class MsprobeTensors(NpyFiles):
    """A benchmark's tensors in a dump of msprobe."""

    suffixes = ()

    def owns(self, name: str) -> bool:
        return MSPROBE.owns(name)

    def lies_at(self, path: str) -> bool:
        return MSPROBE.lies_at(path)

    def find(self, path: str, stamps: Stamps | None = None) -> Benchmark:
        return find_msprobe_benchmark(path, stamps)

    def read(self, file: BenchmarkFile) -> AnyTensor:
        return read_recorded(file)

    def fitted(self, benchmark: Benchmark, leaf: DumpLeaf) -> Benchmark:
        return fitted(benchmark, leaf)

    def check_same_network(self, benchmark: Benchmark, leaf: DumpLeaf) -> None:
        check_same_network(benchmark, leaf)


class ListedFiles(NpyFiles):
    """A benchmark's tensors in files of any name, `.npy`, `.pt` or `.safetensors`, which a table lists."""

    def owns(self, name: str) -> bool:
        return name == TABLE_FILE

    def find(self, path: str, stamps: Stamps | None = None) -> Benchmark:
        return find_listed(path, stamps)

    def read(self, file: BenchmarkFile) -> AnyTensor:
        return read_listed(file)


GE, INFER, MSPROBE = GeDump(), InferDump(), MsprobeDump()
NPY, TFDBG, MSPROBE_TENSORS, LISTED = NpyFiles(), TfdbgRuns(), MsprobeTensors(), ListedFiles()
#: What has graphs, the more special kind first.
DEVICE_KINDS: tuple[GeDump, ...] = (MSPROBE, INFER, GE)
#: Of these the first that lies at a path counts.
BENCHMARK_KINDS: tuple[NpyFiles, ...] = (MSPROBE_TENSORS, LISTED, NPY, TFDBG)


def kind_at(path: str) -> DataKind:
    """The kind of what a run dumped: PyTorch's, or GE's, which may also be missing or odd."""
    return PYTORCH if PYTORCH.lies_at(path) else device_kind(path)


def device_kind(path: str) -> GeDump:
    """Return which of the kinds that have graphs a dump is."""
    return next((kind for kind in (MSPROBE, INFER) if kind.lies_at(path)), GE)


def benchmark_kind(path: str) -> NpyFiles | None:
    """The kind of the benchmark's tensors below a folder; None where there are none, or a dump comes first."""
    check_folder(path, "benchmark tensors")
    return next((kind for kind in BENCHMARK_KINDS if kind.lies_at(path)), None)


def is_benchmark_file(name: str) -> bool:
    """Return whether a file of this name holds benchmark tensors, of whatever kind."""
    return any(kind.owns(name) for kind in BENCHMARK_KINDS)


def has_tensors(folder: str, stamps: Stamps | None = None) -> bool:
    """Return whether a folder holds a benchmark tensor, or a dump file; False also for one that cannot be listed.

    `mapping.csv`, which gives such names, counts. `stamps` notes the folders that were listed.
    """
    with suppress(PrecisionToolError):
        for _, file_names in list_folders(folder, stamps):
            if any(is_benchmark_file(name) or is_dump_file(name) or name == MAPPING_FILE for name in file_names):
                return True
    return False


def kind_of_both(npu: str, golden: str, options: dict[str, str | None]) -> DataKind:
    """The kind that both sides of a comparison have to be of. UsageError if only one is, and for options unfit."""
    kinds = [kind_at(path) for path in (npu, golden)]
    for kind, path, other in zip(kinds, (npu, golden), (golden, npu), strict=True):
        kind.check_goes_with(path, other, options)
    return kinds[0]


def check_command(command: str, *sides: str | None) -> None:
    """Raise UsageError for a command that cannot use the kind of data on one of its sides."""
    for side in sides:
        if side is not None:
            kind_at(side).check_command(command, side)
