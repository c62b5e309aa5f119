"""The kinds of data, a class each, and which of them lies at a path."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from precision_tool.lib.errors import DataNotFoundError
from precision_tool.lib.io.files import check_folder, folder_exists
from precision_tool.lib.model.run import Benchmark, Run
from precision_tool.lib.sources import names, walk
from precision_tool.lib.sources import tfdbg_runs as tfdbg
from precision_tool.lib.sources.h5_files import PYTORCH
from precision_tool.lib.sources.kind import DataKind
from precision_tool.lib.sources.walk import Stamps


class GeDump(DataKind):
    """What GE dumps on the NPU, a file for each run of an op. Its graphs lie in `graph`, beside it or higher."""

    def owns(self, name: str) -> bool:
        return names.is_dump_file(name)

    def find(self, path: str, stamps: Stamps | None = None) -> Run:
        return walk.find_run(path, stamps)

    def graph_folder(self, above: str) -> str:
        """Where graphs lie in a folder that a dump lies below; empty if this is no such folder."""
        return posixpath.join(above, "graph")

    def is_graph(self, folder: str, name: str) -> bool:
        """Whether a file is a graph as it ran on the device."""
        return names.is_build_graph(name)

    def no_graph(self, path: str, folders: Sequence[str]) -> DataNotFoundError:
        """The error for a dump at `path` without a graph in these folders."""
        where = f"in {', '.join(folders)}" if folders else f"beside {path}"
        return DataNotFoundError(
            f"no graph: no ge_proto_*_Build.txt {where}",
            "copy the graph files of the run to npu/debug_0/graph, or name one with -g",
        )


class InferDump(GeDump):
    """What msquickcmp wrote: dumps of an offline model below `dump_data`, and the model's JSON in `model` beside it."""

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
        return DataNotFoundError(
            f"no graph: no *.json in {self._model_of(path)}",
            "copy msquickcmp's model/*.json there, or name a graph with -g; graph2json makes one of an .om",
        )

    def _model_of(self, path: str) -> str:
        """Where the graphs of a dump below `dump_data` belong, there or not; empty for other dumps."""
        root, found, _ = posixpath.abspath(path).rpartition(posixpath.join("/", self._DUMPS, ""))
        return posixpath.join(root, self._MODEL) if found else ""


class NpyFiles(DataKind):
    """A benchmark's tensors, a `.npy` file each."""

    suffixes = (names.NPY,)

    def has_suffix(self, name: str) -> bool:
        return name.endswith(self.suffixes)

    def owns(self, name: str) -> bool:
        return self.has_suffix(name) and names.parse_golden_name(name) is not None

    def find(self, path: str, stamps: Stamps | None = None) -> Benchmark:
        return walk.find_benchmark(path, stamps)


class TfdbgRuns(NpyFiles):
    """A benchmark's tensors as tfdbg wrote them; `.npy` files that lie among them are read instead."""

    def lies_at(self, path: str) -> bool:
        return bool(tfdbg.find_runs(path)) and not GE.lies_at(path)


GE, INFER = GeDump(), InferDump()
NPY, TFDBG = NpyFiles(), TfdbgRuns()
#: What has GE's graphs, the more special kind first.
DEVICE_KINDS: tuple[GeDump, ...] = (INFER, GE)
#: Of these the first that lies at a path counts.
BENCHMARK_KINDS: tuple[NpyFiles, ...] = (NPY, TFDBG)


def kind_at(path: str) -> DataKind:
    """The kind of what a run dumped: PyTorch's, or GE's, which may also be missing or odd."""
    return PYTORCH if PYTORCH.lies_at(path) else device_kind(path)


def device_kind(path: str) -> GeDump:
    """Which of GE's kinds a dump is."""
    return INFER if INFER.lies_at(path) else GE


def benchmark_kind(path: str) -> NpyFiles | None:
    """The kind of the benchmark's tensors below a folder; None where there are none, or a dump comes first."""
    check_folder(path, "benchmark tensors")
    return next((kind for kind in BENCHMARK_KINDS if kind.lies_at(path)), None)


def kind_of_both(npu: str, golden: str, options: dict[str, str | None]) -> DataKind:
    """The kind that both sides of a comparison have to be of. UsageError if only one is, and for options unfit."""
    kinds = [kind_at(path) for path in (npu, golden)]
    for kind, path, other in zip(kinds, (npu, golden), (golden, npu), strict=True):
        kind.check_goes_with(path, other, options)
    return kinds[0]


def check_command(command: str, *sides: str | None) -> None:
    """Raises UsageError for a command that cannot use the kind of data that one of its sides is."""
    for side in sides:
        if side is not None:
            kind_at(side).check_command(command, side)
