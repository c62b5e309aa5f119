"""What every kind of data answers of itself, so that nobody else asks which kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from precision_tool.lib.model.run import Benchmark, Run
from precision_tool.lib.sources.names import is_dump_file
from precision_tool.lib.sources.walk import Stamps, list_folders


class DataKind(ABC):
    """One kind of data that a side of a comparison can be. It is told by names; nothing is opened."""

    #: Whether its ops are those of GE's graphs, so that they can be judged, and the toolkit reads them.
    has_graph: ClassVar[bool] = True
    #: How the names of its files end, in small letters; () where that tells nothing.
    suffixes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def owns(self, name: str) -> bool:
        """Whether a file of this name is of this kind."""

    def has_suffix(self, name: str) -> bool:
        """Return whether a name, or a path, ends as those of this kind's files do."""
        return name.lower().endswith(self.suffixes)

    def lies_at(self, path: str) -> bool:
        """Whether the first files below a folder that tell it are of this kind, not dump files of GE."""
        for _, names in list_folders(path):
            if any(map(self.owns, names)):
                return True
            if any(map(is_dump_file, names)):
                return False
        return False

    @abstractmethod
    def find(self, path: str, stamps: Stamps | None = None) -> Run | Benchmark:
        """What lies at a path, of this kind; DataNotFoundError if nothing does. `stamps` notes the folders."""

    def check_goes_with(self, path: str, other: str, options: dict[str, str | None]) -> None:  # noqa: B027
        """Raises UsageError where data of this kind at `path` cannot be compared with `other`, or with these options.

        `options` are a graph for each side, by the option that names it.
        """

    def check_judged(self, option: str) -> None:  # noqa: B027
        """Raises UsageError for an option that asks which ops compute wrong by themselves, where none is recomputed."""

    def check_command(self, command: str, path: str) -> None:  # noqa: B027
        """Raises UsageError for a command that cannot use data of this kind, which lies at `path`."""
