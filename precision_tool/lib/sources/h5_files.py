"""PyTorch's `.h5` dumps: where they lie, and which of two folders belong together. Nothing is opened."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from precision_tool.lib.errors import DataNotFoundError, PrecisionToolError, UsageError
from precision_tool.lib.io.files import exists, folder_exists, is_folder, real_path, signature_of
from precision_tool.lib.model.run import DumpLeaf, Run
from precision_tool.lib.model.wording import counted
from precision_tool.lib.sources.kind import DataKind
from precision_tool.lib.sources.walk import Stamps, list_folders, nothing_below

#: Of files left out, as many are named.
_NAMED = 3


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
            found = [
                posixpath.join(place, name)
                for place, names in list_folders(folder, stamps)
                for name in names
                if self.owns(name)
            ]
        except PrecisionToolError:
            return []
        return sorted(found)

    def find(self, path: str, stamps: Stamps | None = None) -> Run:
        """Each file is a model of its own, named after it where there are several."""
        found = _files_of(path, "dump", stamps)
        names = [posixpath.splitext(posixpath.basename(one))[0] if len(found) > 1 else "" for one in found]
        leaves = [DumpLeaf(path=one, files=(), model_name=name) for one, name in zip(found, names, strict=True)]
        return Run(root=path, leaves=tuple(leaves))

    def check_goes_with(self, path: str, other: str, options: dict[str, str | None]) -> None:
        if not self.lies_at(other):
            raise UsageError(f"{other}: no .h5 dump, and the other side is one", "name two .h5 files with -lt and -rt")
        for option, value in options.items():
            if value is not None:
                raise UsageError(
                    f"{option}: .h5 dumps are compared by op and order, without a graph", f"leave {option} out"
                )

    def check_judged(self, option: str) -> None:
        raise UsageError(f"{option}: ops of PyTorch dumps are not recomputed", "`ls --below` has their cosines")

    def check_command(self, command: str, path: str) -> None:
        raise UsageError(
            f"{command}: {path} is a PyTorch dump, and {command} reads those of GE (dump_path of the NPU run)",
            "vc, ac, ls, ni, pt, cp, dc and h5copy take .h5 dumps; vc -lt FILE.h5 -rt FILE.h5 compares any two",
        )


PYTORCH = H5Files()


@dataclass(frozen=True, slots=True, kw_only=True)
class H5Pair:
    """Two files to be compared."""

    npu: str
    golden: str


def pair_h5_files(npu: str, golden: str) -> tuple[tuple[H5Pair, ...], tuple[str, ...]]:
    """The files, or files below folders, that belong together, and notes on those left out.

    Files of one name belong together. Else the newest of each side do: the dumper names its files after the time.
    DataNotFoundError for a side without any, UsageError where both sides are the same file.
    """
    left, right = _apart(_files_of(npu, "NPU dump"), _files_of(golden, "benchmark"))
    roots = [path if folder_exists(path) else posixpath.dirname(path) or "." for path in (npu, golden)]
    by_name = {posixpath.relpath(path, roots[1]): path for path in right}
    same = [(path, by_name[name]) for path in left if (name := posixpath.relpath(path, roots[0])) in by_name]
    if not same:
        same = [(_newest(left), _newest(right))]
    notes = []
    for what, root, all_files, kept in (
        ("NPU", roots[0], left, {one for one, _ in same}),
        ("benchmark", roots[1], right, {other for _, other in same}),
    ):
        others = [posixpath.relpath(path, root) for path in all_files if path not in kept]
        if others:
            more = ", …" if len(others) > _NAMED else ""
            names = ", ".join(others[:_NAMED]) + more
            count = counted(len(others), "more .h5 file")
            notes.append(f"{count} of the {what} left out ({names}): name one with -lt, -rt")
    return tuple(H5Pair(npu=one, golden=other) for one, other in same), tuple(notes)


def _apart(left: list[str], right: list[str]) -> tuple[list[str], list[str]]:
    """Both sides without what the larger one holds of the other: a file agrees with itself, whatever is in it."""
    both = set(map(real_path, left)) & set(map(real_path, right))
    if not both:
        return left, right
    if len(left) == len(right):
        raise UsageError(f"{left[0]}: the same file on both sides", "name another one with -lt or -rt")
    rest = [path for path in max(left, right, key=len) if real_path(path) not in both]
    if not rest:
        raise UsageError(f"{left[0]}: nothing but the same files on both sides", "name others with -lt or -rt")
    return (rest, right) if len(left) > len(right) else (left, rest)


def _files_of(path: str, what: str, stamps: Stamps | None = None) -> list[str]:
    if not is_folder(path):
        if not exists(path):
            raise DataNotFoundError.of(path, "no such file", f"name the .h5 file of the {what}, or its folder")
        return [path]
    found = PYTORCH.files(path, stamps)
    if not found:
        nothing = DataNotFoundError.of(path, "no .h5 file below this folder", f"name the .h5 file of the {what}")
        raise nothing_below(nothing, path)
    return found


def _newest(paths: list[str]) -> str:
    return max(paths, key=lambda path: (_modified(path), path))


def _modified(path: str) -> int:
    signature = signature_of(path)
    return 0 if signature is None else signature[1]
