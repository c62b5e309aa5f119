"""Names of dump files and folders: step and rank, op, slot and time."""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from precision_tool.lib.model.run import DumpName

_RANK_FOLDER = re.compile(r"(?:rank|device|dev|card|worker)[_-]?(\d{1,9})", re.ASCII | re.IGNORECASE)
_STEP_FOLDER = re.compile(r"(?:step|iter|iteration)[_-]?(\d{1,12})", re.ASCII | re.IGNORECASE)
#: Step and rank; None is of all.
StepAndRank = tuple[int | None, int | None]


def is_rank_folder(name: str) -> bool:
    """Return whether a folder has the name of a rank or device."""
    return _RANK_FOLDER.fullmatch(name) is not None


def placed(folder: str) -> StepAndRank:
    """Step and rank as folders called `step_3`, `rank5` or the like tell them; the innermost one counts."""
    step = rank = None
    for part in PurePath(folder).parts:
        if (match := _STEP_FOLDER.fullmatch(part)) is not None:
            step = int(match[1])
        elif (match := _RANK_FOLDER.fullmatch(part)) is not None:
            rank = int(match[1])
    return step, rank


def placed_below(root: str, folder: str) -> StepAndRank:
    """Step and rank that the folders between `root` and `folder` tell."""
    return placed(posixpath.join("/", posixpath.relpath(folder, root))) if folder != root else (None, None)


# --- grammars of file and folder names (FORMATS.md §2 to §4) ---


#: How files of numpy arrays end.
NPY = ".npy"
_DUMP_FILE = re.compile(
    r"(?P<op_type>[^./\\\0]+)\.(?P<op_name>[^./\\\0]*)\.(?P<task_id>\d{1,10})(?:\.(?P<stream_id>\d{1,10}))?"
    r"\.(?P<timestamp>\d{13,19})"
    r"(?:\.(?P<task_type>\d)\.(?P<context_id>\d{1,10})\.(?P<thread_id>\d{1,10})\.(?P<device_id>\d{1,10}))?",
    re.ASCII,
)
_GOLDEN_FILE = re.compile(r"(?P<name>.+)\.(?P<index>\d{1,6})\.(?P<timestamp>\d{10,20})\.npy", re.ASCII | re.DOTALL)
_GOLDEN_FILE_TF2 = re.compile(
    r"(?P<name>.+?)(?::(?P<index>\d{1,6}))?\.(?P<timestamp>\d{10,20})\.npy", re.ASCII | re.DOTALL
)
_GRAPH_FILE = re.compile(r"ge_proto_\d+(?:_.*)?_(?P<suffix>[A-Za-z]+)\.txt", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_OP_NUMBER = re.compile(r"\[(\d{1,9})\]", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)
#: Hexadecimal digits of the hash in a shortened name.
_HASH = 12
#: What no file name may hold: it would lead to another folder, or nowhere.
_NO_FILE_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")

#: What manual FFTS+ slicing appends to op names, and what stands before those of graphs that threads run.
_SLICE = re.compile(r"_lxslice(\d{1,9})")
_THREADS = re.compile(r".*sgt_graph_\d+_(?=.)", re.DOTALL)

#: Stages of the compiler after which the graph is what ran on the device.
BUILD_SUFFIXES = ("Build", "PreRunAfterBuild")


def flatten(name: str) -> str:
    """An op name as file names spell it: `.`, `/`, `\\` and space become `_`."""
    # Several times as fast as `str.translate`, and asked for every op of a graph.
    return name.replace("/", "_").replace(".", "_").replace("\\", "_").replace(" ", "_")


def whole_name(op_name: str) -> str:
    """The name of the op that a slice is of; any other name as it is."""
    return _SLICE.sub("", op_name) if "_lxslice" in op_name else op_name


def slice_number(op_name: str) -> int | None:
    """Return the number of the slice that a name belongs to, None for any other name."""
    numbers = _SLICE.findall(op_name)
    return int(numbers[-1]) if numbers else None


def outside_threads(op_name: str) -> str:
    """The name without the graph that FFTS+ threads run the op in."""
    return _THREADS.sub("", op_name) if "sgt_graph_" in op_name else op_name


def base_name(op_name: str) -> str:
    """The flattened name that an op has in the script's graph: without slice, and without a graph that threads run."""
    return outside_threads(whole_name(op_name))


_GLOB = re.compile(r"[*?\[]")


def pattern(text: str) -> Callable[[str], bool]:
    """Return the test for names: `*`, `?` and `[…]` make a glob for the whole name, any other text is a part of it.

    Case does not matter, nor whether it is spelled with `/` or `_`.
    """
    flat = flatten(text).lower()
    if _GLOB.search(flat):
        matches = re.compile(fnmatch.translate(flat)).match
        return lambda name: matches(flatten(name).lower()) is not None
    return lambda name: flat in flatten(name).lower()


def op_number(text: str) -> int | None:
    """The number of an op, written `[17]` as results and lists show it; None for any other name."""
    match = _OP_NUMBER.fullmatch(text.strip())
    return int(match[1]) if match is not None else None


def parse_dump_name(name: str) -> tuple[DumpName, bool] | None:
    """The parts of a dump file name and whether it holds statistics; None if it is no dump file name."""
    statistics = name.endswith(".csv")
    match = _DUMP_FILE.fullmatch(name[:-4] if statistics else name)
    if match is None:
        return None
    op_type, op_name, task_id, stream_id, timestamp, *of_thread = match.groups()
    task_type, context_id, thread_id, device_id = (None if part is None else int(part) for part in of_thread)
    parsed = DumpName(
        op_type=op_type,
        op_name=op_name,
        task_id=int(task_id),
        timestamp=int(timestamp),
        stream_id=None if stream_id is None else int(stream_id),
        task_type=task_type,
        context_id=context_id,
        thread_id=thread_id,
        device_id=device_id,
    )
    return parsed, statistics


def is_dump_file(name: str) -> bool:
    """True for names that `parse_dump_name` can read, which takes longer."""
    return _DUMP_FILE.fullmatch(name.removesuffix(".csv")) is not None


def dump_name(name: DumpName) -> str:
    """The file name of a dump, as `parse_dump_name` reads it: for files that are bare numbers."""
    ffts = (name.task_type, name.context_id, name.thread_id, name.device_id)
    numbers = (name.task_id, name.stream_id, name.timestamp, *ffts)
    return ".".join([name.op_type, name.op_name, *(str(number) for number in numbers if number is not None)])


def is_file_name(text: str) -> bool:
    """True for what can be the name of a file, not a way to another folder; names come from files of data too."""
    return "/" not in text and "\0" not in text and text not in ("", ".", "..")


def file_part(text: str) -> str:
    """A part of a file name of any text: what no file name may hold, or should, becomes `_`."""
    return _NO_FILE_NAME.sub("_", text)


def shortened(stem: str, room: int) -> str:
    """A file name of at most `room` bytes: a longer one keeps its start and gets a hash that tells it from others."""
    encoded = stem.encode("utf-8", "surrogateescape")
    if len(encoded) <= room:
        return stem
    digest = hashlib.sha256(encoded).hexdigest()[:_HASH]
    return f"{encoded[: room - _HASH - 1].decode('utf-8', 'ignore')}~{digest}"


def parse_golden_name(name: str) -> tuple[str, int, int] | None:
    """`(flattened op name, output index, timestamp)` of a golden `.npy` name, None if it is none.

    A name without an index stands for output 0; what its own last digits may mean, `numbered_output` tells.
    """
    match = _GOLDEN_FILE.fullmatch(name) or _GOLDEN_FILE_TF2.fullmatch(name)
    if match is None:
        return None
    return flatten(match["name"]), int(match["index"] or 0), int(match["timestamp"])


def is_number(text: str) -> bool:
    """True for a whole number as names have it; `²` is a digit to Python, and no number."""
    return _NUMBER.fullmatch(text) is not None


def numbered_output(name: str) -> tuple[str, int] | None:
    """`conv_1` read as output 1 of `conv`: TF2's dumper flattens the `:` of tensor names; None without digits."""
    stem, _, digits = name.rpartition("_")
    return (stem, int(digits)) if stem and digits.isascii() and digits.isdigit() and len(digits) < 7 else None


def is_build_graph(name: str) -> bool:
    """True for names of graphs as they ran on the device (`ge_proto_…_Build.txt`)."""
    match = _GRAPH_FILE.fullmatch(name)
    return match is not None and match["suffix"] in BUILD_SUFFIXES


def is_graph_file(name: str) -> bool:
    """True for names of GE text graphs of any stage."""
    return _GRAPH_FILE.fullmatch(name) is not None


def is_data_file(name: str) -> bool:
    """True for names that dump files, benchmark tensors and graphs have."""
    return is_dump_file(name) or parse_golden_name(name) is not None or is_graph_file(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafName:
    """The names of the folders above a leaf; empty where the tree is hand-made."""

    time: str = ""
    device: str = ""
    model_name: str = ""
    model_id: str = ""
    step: str = ""


def parse_leaf_path(parts: tuple[str, ...]) -> LeafName:
    """`…/{time}/{device}/{model_name}/{model_id}/{data_index}` from the end of a path; partial paths count.

    AscendCL's dump of single ops has no model name: `…/{time}/{device}/{model_id}/{data_index}`.
    """
    if len(parts) < 4:
        return LeafName()
    if _TIME.fullmatch(parts[-4]) and all(map(is_number, parts[-3:])):
        return LeafName(time=parts[-4], device=parts[-3], model_id=parts[-2], step=parts[-1])
    model_name, model_id, step = parts[-3:]
    device = parts[-4]
    if not all(map(is_number, (model_id, step, device))):
        return LeafName()
    time = parts[-5] if len(parts) > 4 and _TIME.fullmatch(parts[-5]) else ""
    return LeafName(time=time, device=device, model_name=model_name, model_id=model_id, step=step)
