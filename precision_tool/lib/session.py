"""What a command, or an open prompt, works with: settings, workspace, and what was compared."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from precision_tool.lib.checks.analysis import Analysis, analyse
from precision_tool.lib.compare.engine import Progress
from precision_tool.lib.compare.folders import ComparisonStoppedError, LeafResult, compare_folders
from precision_tool.lib.compare.result_csv import find_results, read_result, row_of, write_result
from precision_tool.lib.errors import DataNotFoundError, OutputError
from precision_tool.lib.settings import Settings
from precision_tool.lib.workspace import Workspace

#: Of many dump folders that cannot be compared, as many reasons are told.
_SHOWN_REASONS = 3


class Session:
    """The state behind the commands. Nothing is read before a command asks for it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.workspace = Workspace(settings.data, settings.work)

    def default_npu(self) -> str:
        """The dump of the NPU run under test."""
        space = self.workspace
        if not space.root.is_dir():
            raise DataNotFoundError(
                f"{space.root}: no such data folder",
                "start in the folder that holds precision_data, or name it with --data DIR; `demo` makes one to try",
            )
        folder = space.dump_dir(0)
        if not folder.is_dir():
            raise DataNotFoundError(
                f"{folder}: no NPU dump",
                "put the NPU run's dump_path there, as the README says under Collect, or name its folder with -lt",
            )
        return str(folder)

    def default_golden(self, npu: str) -> str:
        """What `npu` is compared with: tf/dump, else the dump of the second NPU run."""
        candidates = (self.workspace.tf_dump_dir, self.workspace.dump_dir(1))
        for folder in candidates:
            if folder.is_dir() and any(folder.iterdir()):
                return str(folder)
        raise DataNotFoundError(
            f"nothing to compare {npu} with: neither {candidates[0]} nor {candidates[1]} holds data",
            "put benchmark tensors (op.output.timestamp.npy) into the first or the dump of another NPU run into the "
            "second, or name a folder with -rt",
        )

    def compare(
        self,
        npu: str | None,
        golden: str | None,
        graph: str | None,
        threshold: float,
        workers: int,
        progress: Progress | None = None,
    ) -> list[Analysis]:
        """Compares two folders, writes the result files, judges the rows.

        Leaves that could not be compared at all are without rows, file and path; DataNotFoundError if all are.
        When the comparison is stopped the rows that are done are written as `partial_result_*.csv` and the
        error says where.
        """
        if (
            npu is None
            and golden is None
            and self.workspace.dump_dir(1).is_dir()
            and self.workspace.tf_dump_dir.is_dir()
        ):
            other = self.workspace.debug_dir(1)
            self.workspace.notes.append(f"{other} is there too: name it with -lt to compare it, or with -rt")
        npu = npu or self.default_npu()
        golden = golden or self.default_golden(npu)
        folder = self.workspace.new_compare_dir()
        try:
            results = compare_folders(
                npu, golden, graph=graph, graph_folders=(os.curdir,), workers=workers, progress=progress
            )
            _check_any_rows(results)
        except ComparisonStoppedError as stop:
            with _ctrl_c_ignored():  # once was enough: what is done is being saved
                paths = self._write(folder, stop.results, prefix="partial_")
            kept = f"; the finished rows are in {', '.join(filter(None, paths))}" if any(paths) else ""
            raise ComparisonStoppedError(stop.message + kept, stop.hint, stop.results, stop.exit_code) from stop
        except BaseException:
            self.workspace.remove_empty(folder)
            raise
        paths = self._write(folder, results)
        return [
            analyse(path, [row_of(row) for row in result.rows], threshold, result)
            for path, result in zip(paths, results, strict=True)
        ]

    def _write(self, folder: Path, results: Sequence[LeafResult], prefix: str = "") -> list[str]:
        """The paths of the files written, one a result; empty for a result without rows, which gets no file."""
        paths: list[str] = []
        try:
            for result in results:
                if not result.rows:
                    paths.append("")
                    continue
                leaf = result.leaf
                parts = "_".join(part for part in (leaf.device, leaf.model_name, leaf.step) if part)
                name = f"{parts or 'dump'}_" if len(results) > 1 else ""
                path = folder / f"{prefix}{name}result_{folder.name}.csv"
                number = 1
                while str(path) in paths:  # the same model under two ids
                    number += 1
                    path = folder / f"{prefix}{name}{number}_result_{folder.name}.csv"
                write_result(str(path), result.rows, golden_address=result.golden_is_dump)
                paths.append(str(path))
        except OutputError:
            self.workspace.remove_empty(folder)
            raise
        return paths

    def results(self, path: str | None, threshold: float) -> list[Analysis]:
        """The results of a file or folder, by default of the newest comparison, read back and judged."""
        if path is None:
            folders = self.workspace.compare_dirs()
            if not folders:
                raise DataNotFoundError(
                    f"{self.workspace.root}: no comparison result yet",
                    "run `vc` or `ac -c` first, or name a file with -f",
                )
            paths = next((found for folder in folders if (found := _results_in(folder))), [])
            if not paths:
                raise DataNotFoundError(f"{folders[0]}: no complete result file", "run `vc` or `ac -c` again")
        else:
            paths = find_results(path)
        return [analyse(one, read_result(one), threshold) for one in paths]


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Ctrl+C does nothing in this block. Only the main thread may, and need, say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_any_rows(results: Sequence[LeafResult]) -> None:
    if any(result.rows for result in results):
        return
    reasons = list(dict.fromkeys(note.removeprefix("not compared: ") for result in results for note in result.notes))
    shown = "; ".join(reasons[:_SHOWN_REASONS])
    more = len(reasons) - _SHOWN_REASONS
    raise DataNotFoundError(
        f"none of {len(results)} dump folders could be compared: {shown or 'they hold no tensors'}"
        + (f"; and {more} more reasons" if more > 0 else ""),
        "name two folders that belong together with -lt and -rt, and their graph with -g",
    )


def _results_in(folder: Path) -> list[str]:
    try:
        return [path for path in find_results(str(folder)) if not os.path.basename(path).startswith("partial_")]
    except DataNotFoundError:
        return []
