"""A data folder that is compared and checked: the methods hand what is known to the check that does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from precision_tool.lib.data.folder import DataFolder
from precision_tool.lib.results.noise import NoiseFloor

# What compares and checks takes long to load, and `ls`, `graphs` and the prompt begin without it.
if TYPE_CHECKING:
    from concurrent.futures import Executor

    from precision_tool.lib.checks.analysis import Analysis
    from precision_tool.lib.checks.overflow import OverflowReport
    from precision_tool.lib.checks.passports import PassportPair
    from precision_tool.lib.checks.random_errors import RandomReport
    from precision_tool.lib.compare.folders import CompareOptions
    from precision_tool.lib.compare.known import KnownValues
    from precision_tool.lib.engine.scheduler import Progress


class CheckedFolder(DataFolder):
    """What can be asked of a data folder's runs as a whole."""

    def compare(
        self,
        npu: str | None,
        golden: str | None,
        graph: str | None,
        threshold: float,
        workers: int,
        progress: Progress | None = None,
        options: CompareOptions | None = None,
        noise: NoiseFloor | None = None,
        prefix: str = "",
        executor: Executor | None = None,
    ) -> list[Analysis]:
        """Compares two folders, by default those of the data folder (see `checks.comparing.compare`)."""
        from precision_tool.lib.checks.comparing import compare

        return compare(self, npu, golden, graph, threshold, workers, progress, options, noise, prefix, executor)

    def passports(self, npu: str | None = None, golden: str | None = None) -> PassportPair | None:
        """What the runs were, as the training helper wrote it, and what differs; None where a side has no passport.

        By default of npu/debug_0 and the benchmark, or without that npu/debug_1; else of the runs that two folders
        belong to. A passport that is damaged is a note of the workspace, and counts as none.
        """
        from precision_tool.lib.checks.passports import find_passports

        return find_passports(self.workspace, npu, golden)

    def overflow(
        self,
        folder: str | None = None,
        graph: str | None = None,
        limit: int = 3,
        progress: Progress | None = None,
        max_bytes: int | None = None,
        known: Mapping[str, KnownValues] | None = None,
        workers: int = 1,
        executor: Executor | None = None,
    ) -> tuple[OverflowReport, str]:
        """The overflow in a folder, or in the data folder, and where status files were looked for.

        The first `limit` ops have figures. `max_bytes` of values are read at most, and none that a
        comparison made `known`. DataNotFoundError where there is neither a status file nor a dump.
        """
        from precision_tool.lib.checks.overflow_search import find_overflow

        return find_overflow(self, folder, graph, limit, progress, max_bytes, known, workers, executor)

    def random_errors(
        self,
        left: str | None = None,
        right: str | None = None,
        graph: str | None = None,
        workers: int = 0,
        progress: Progress | None = None,
        executor: Executor | None = None,
    ) -> list[RandomReport]:
        """What differs in two runs of the same script (npu/debug_0 and debug_1), one report a device, model and step.

        Of one run alone only the memory is checked. DataNotFoundError where there is no dump.
        """
        from precision_tool.lib.checks.random_search import find_random

        return find_random(self, left, right, graph, workers, progress, executor)
