"""Every command that writes, on data made for it, and what its files look like when nobody disturbs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import h5py
import numpy as np
import tfdbg_files as tfdbg
from h5_files import add_tensor

from precision_tool.lib.demo.generate import DemoTruth, generate_demo
from precision_tool.lib.demo.msprobe_demo import generate_msprobe
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.io.writing import PART, TEMPORARY

#: Names of files that are not complete yet. Nothing else may be unlike what an undisturbed run writes.
_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY)}.*|.*{re.escape(PART)}|.*\.tmp|\..*\.ptcache.*|tmp.*")
#: What a command that was stopped goes on from; it is removed when the command comes to its end.
_KEPT = re.compile(r"judged_.*\.jsonl")
#: Logs grow line by line, and hold times.
_GROWING = re.compile(r".*\.log")
_TIMES = re.compile(rb"\d{14}")
_PASSES = ("AFusionPass", "BFusionPass", "CFusionPass", "DFusionPass")
#: What `bisect` tries; one of them makes its check succeed.
_CHANGES = ("precision_mode=force_fp32", "op_precision_mode=high_precision", "allow_hf32=off", "loss_scale=1024")
_SWITCHES = '{"Switch": {"GraphFusion": {"ALL": "on", "BFusionPass": "off"}}}\n'


@dataclass(frozen=True, kw_only=True)
class Data:
    """What the commands read: folders and files that never change."""

    root: Path
    overflow: DemoTruth
    large: DemoTruth

    @property
    def folder(self) -> Path:
        """The data folder of most commands."""
        return self.root / "overflow"

    @property
    def torch(self) -> Path:
        """A dump of PyTorch."""
        return self.root / "torch.h5"

    @property
    def ranks(self) -> Path:
        """The data folder of a training of two ranks."""
        return self.root / "ranks" / "precision_data"

    @property
    def compared(self) -> Path:
        """The folder for results after `ac -c` on `folder`."""
        return self.root / "compared"

    @property
    def studied(self) -> Path:
        """The folder for results after `ac --all` on `ranks`."""
        return self.root / "studied"

    @property
    def profiles(self) -> tuple[Path, Path]:
        """What `profile merge` puts together."""
        return self.root / "clean.json", self.root / "overflow.json"


def make_data(root: Path) -> Data:
    """Writes what the commands read."""
    overflow = generate_demo(root / "overflow", seed=1, fault="overflow")
    generate_demo(root / "two", seed=1, fault="random")
    large = generate_demo(root / "large", seed=1, ops=200, size=512)
    values = np.arange(64, dtype=np.float32)
    for number in range(40):
        tensor = tfdbg.tensor_proto("float32", (64,), tfdbg.content((values + number).tobytes()))
        tfdbg.write_tensor(
            root / "tfdbg" / "tf" / "tf_debug" / "run_1", f"scope/op{number}", 0, 1_772_443_800_000_000, tensor
        )
    with h5py.File(root / "torch.h5", "w") as file:
        for number in range(30):
            add_tensor(file, f"Addmm/{number}/output/result", values.reshape(8, 8) + np.float32(number))
    generate_demo(root / "clean", seed=1, fault="none")
    generate_msprobe(root / "msprobe")
    generate_ranks(root / "ranks", ranks=2, steps=2, fault_step=1)
    data = Data(root=root, overflow=overflow, large=large)
    learnt, overflowed = data.profiles
    _run("--data", str(data.folder), "--work", str(data.compared), "ac", "-c")
    _run("--data", str(data.ranks), "--work", str(data.studied), "ac", "--all")
    _run("--work", str(root / "learnt"), "profile", "learn", str(root / "clean"), "-o", str(learnt))
    (profile,) = data.compared.glob("vector_compare/*/profile_*.json")
    shutil.copyfile(profile, overflowed)
    return data


def _run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "precision_tool", *words], check=True, stdout=subprocess.DEVNULL)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line; `prepare` makes what it changes. It runs in a folder of its own, which has all that it writes."""

    words: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    #: Files that may be as they were before, or of a try, until the next run mends them.
    mended: tuple[str, ...] = ()
    #: Files that are another after each run, though two runs may by chance write the same.
    varying: tuple[str, ...] = ()
    #: Words of a command that writes files as this one has them before it completes them.
    begins_as: tuple[str, ...] = ()
    #: A file with the contents that another one had before the last change of that, whatever this was.
    last_of: tuple[str, str] = ("", "")


class _Edits(TypedDict):
    prepare: Callable[[Path], None]
    last_of: tuple[str, str]


def commands(data: Data) -> Mapping[str, Command]:
    """The commands by name."""
    at = ("--data", str(data.folder), "--work", "work")
    at_large = ("--data", str(data.root / "large"), "--work", "work")
    at_ranks = ("--data", str(data.ranks), "--work", "work")
    op, wrong = data.overflow.overflowed[0], str(data.large.culprit)
    compare = (*at, "vc")
    fusion = (*at, "fusion")
    file = ("--file", "switch.cfg", "--force", "--section", "GraphFusion")
    check = 'grep -q \'"CFusionPass": *"off"\' "$PRECISION_TOOL_FUSION_SWITCH_FILE"'
    edits: _Edits = {"prepare": _switch_file, "last_of": ("switch.cfg.last", "switch.cfg")}
    journal = ("work/study/journal*",)
    try_switches = ("--check", 'grep -q allow_hf32 "$PRECISION_TOOL_SWITCHES"', "--changes", *_CHANGES)
    narrow = ("--type", "float16", "--bound-loss", "1e-6")
    dump = "collected/npu/debug_0/dump"
    search = ("bisect", "--check", check, "--passes", *_PASSES, "--file", "switch.cfg", "--force")
    return {
        "vc": Command(words=compare),
        "vc -op": Command(words=(*at, "vc", "-op", op)),
        "vc -map": Command(words=(*at, "vc", "-map")),
        "ac -c": Command(words=(*at, "ac", "-c"), begins_as=compare),
        "ac -c --json": Command(words=(*at, "ac", "-c", "--json"), begins_as=compare),
        "ac --report": Command(words=(*at, "ac", "-c", "--report", "report.html"), begins_as=compare),
        "ac --prove": Command(words=(*at, "ac", "-c", "--prove"), begins_as=compare),
        "ac --all": Command(words=(*at_ranks, "ac", "--all"), mended=journal, varying=journal),
        "report": Command(words=(*at, "report", "-o", "report.html"), prepare=_with(data.compared)),
        "report explorer": Command(
            words=(*at, "report", "--model-explorer", "graph.json"), prepare=_with(data.compared)
        ),
        "profile learn": Command(
            words=("--work", "work", "profile", "learn", str(data.root / "clean"), "-o", "profile.json")
        ),
        "profile merge": Command(words=(*at, "profile", "merge", *map(str, data.profiles), "-o", "profile.json")),
        "preflight": Command(
            words=("--data", str(data.root / "msprobe"), "preflight", *narrow, "--write", "out", "-o", "report.html"),
            mended=("out/*",),  # after Ctrl+C it keeps the best so far
        ),
        "bisect": Command(
            words=(*at, "bisect", *try_switches, "--write", "found.json"),
            mended=("work/*state.json", "work/*switches.json", "work/*fusion_switch.cfg"),
        ),
        "whatif": Command(words=(*at_large, "whatif", wrong)),
        "repro": Command(words=(*at, "repro", op)),
        "repro --minimize": Command(words=(*at_large, "repro", wrong, "--minimize")),
        "curves": Command(
            words=(*at_ranks, "curves", "--tensorboard", "events"), prepare=_with(data.studied), mended=journal
        ),
        "graphs --use": Command(words=(*at, "graphs", "--use", str(data.overflow.graph_path))),
        "npu_dump": Command(
            words=(
                "--data",
                "collected",
                "npu_dump",
                f"sleep 0.3; mkdir -p {dump} && echo done > tmp && mv tmp {dump}/1",
            )
        ),
        "dc": Command(words=(*at, "dc", str(data.overflow.dump_dir), "-o", "out", "--txt")),
        "dc h5": Command(words=(*at, "dc", str(data.torch), "-o", "out")),
        "tf_dump": Command(words=("--data", str(data.root / "tfdbg"), "tf_dump", "-o", "out")),
        "demo": Command(words=("demo", "out", "--generate-only")),
        "demo again": Command(
            words=("demo", "out", "--generate-only", "--seed", "2"), prepare=_demo, mended=("out/*",)
        ),
        "fusion off": Command(words=(*fusion, "off", "AFusionPass", *file), **edits),
        "fusion on": Command(words=(*fusion, "on", "BFusionPass", *file), **edits),
        "fusion all-off": Command(words=(*fusion, "all-off", "--file", "switch.cfg"), **edits),
        "fusion reset": Command(words=(*fusion, "reset", "--file", "switch.cfg"), **edits),
        "fusion bisect": Command(
            words=(*fusion, *search), prepare=_switch_file, mended=("switch.cfg*", "work/*state.json")
        ),
        "overflow": Command(words=(*at, "overflow", "--mixlist", "list.json")),
        "random": Command(words=("--data", str(data.root / "two"), "--work", "work", "random")),
        "graph2json": Command(words=(*at, "graph2json", str(data.overflow.graph_path), "graph.json")),
        "h5copy": Command(words=(*at, "h5copy", "-i", str(data.torch), "-o", "copy.h5", "-s", "/Addmm/3")),
        "h5copy into": Command(
            words=(*at, "h5copy", "-i", str(data.torch), "-o", "copy.h5", "-s", "/Addmm/3"), prepare=_copy
        ),
        "acl_json": Command(words=("acl_json", "acl.json", "--dump-path", "/dump")),
        "ni -s": Command(words=(*at, "ni", op, "-s", "2", "-o", "out")),
        "pt -c": Command(words=(*at, "pt", op, "-o", "0", "-c")),
        "cp -s": Command(words=(*at, "cp", op, "-s")),
        "ls": Command(words=(*at_large, "ls", "-l", "3")),
    }


def _with(results: Path) -> Callable[[Path], None]:
    """Puts results of earlier commands into the folder for results."""

    def prepare(folder: Path) -> None:
        shutil.copytree(results, folder / "work", dirs_exist_ok=True)

    return prepare


def _switch_file(folder: Path) -> None:
    (folder / "switch.cfg").write_text(_SWITCHES, "utf-8")


def _demo(folder: Path) -> None:
    generate_demo(folder / "out", seed=3)


def _copy(folder: Path) -> None:
    with h5py.File(folder / "copy.h5", "w") as file:
        add_tensor(file, "Relu/1/output/x", np.arange(2000, dtype=np.float32))


# ---- files


def files_below(folder: Path) -> Iterator[Path]:
    """All files, those with hidden names too."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def is_temporary(path: Path, root: Path) -> bool:
    """Whether a file, or a folder above it, has the name of what is not complete."""
    return any(_TEMPORARY.fullmatch(part) for part in path.relative_to(root).parts)


def is_kept(path: Path) -> bool:
    """Whether a file is what a command that was stopped goes on from."""
    return _KEPT.fullmatch(path.name) is not None


def contents(folder: Path) -> dict[str, set[bytes]]:
    """What the finished files below a folder hold, by their names; times in both are masked."""
    found: dict[str, set[bytes]] = {}
    for path in files_below(folder):
        if not is_temporary(path, folder) and not is_kept(path) and not _GROWING.fullmatch(path.name):
            name = _TIMES.sub(b"TIME", os.fsencode(path.relative_to(folder))).decode("utf-8", "backslashreplace")
            found.setdefault(name, set()).add(_TIMES.sub(b"TIME", path.read_bytes()))
    return found


def fingerprint(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What changes when a file below a folder does."""
    found = {}
    for path in files_below(folder):
        status = path.lstat()
        found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def fresh(folder: Path, command: Command) -> None:
    """An empty folder for a run of a command."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    command.prepare(folder)
