"""`ac -c` reads the data once: how often files are opened, and how many of their bytes are read."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from command_line import tool

from precision_tool import cli
from precision_tool.lib.api import run
from precision_tool.lib.data import dump_tree as walk
from precision_tool.lib.data import graph_choice as choice
from precision_tool.lib.data.graph_cache import GraphStore
from precision_tool.lib.data.settings import load_settings
from precision_tool.lib.demo.generate import generate_demo
from precision_tool.lib.diagnose import pipeline
from precision_tool.lib.io import local
from precision_tool.lib.io.local import LocalFile
from precision_tool.lib.messages.errors import DataNotFoundError
from precision_tool.lib.model.run import DumpLeaf
from precision_tool.lib.session import Session


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], Counter[str]]:
    """How often each file was opened, and how many bytes of it were read, in this process."""
    opens: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    usual_open, usual_read = LocalFile.__init__, LocalFile.read_into

    def noted_open(self: LocalFile, path: str) -> None:
        opens[path] += 1
        usual_open(self, path)

    def noted_read(self: LocalFile, offset: int, buffer: memoryview) -> None:
        sizes[self.path] += len(buffer)
        usual_read(self, offset, buffer)

    monkeypatch.setattr(LocalFile, "__init__", noted_open)
    monkeypatch.setattr(LocalFile, "read_into", noted_read)
    return opens, sizes


@pytest.mark.parametrize("fault", ["fused", "nan", "scale"])
def test_every_file_is_opened_twice_and_read_once(
    tmp_path: Path, reads: tuple[Counter[str], Counter[str]], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Once for what it holds, once for the values: the comparison, its copies, casts, overflow, the fusion check."""
    data = tmp_path / "precision_data"
    generate_demo(data, fault=fault)
    opens, sizes = reads
    opens.clear()
    sizes.clear()
    # The verdict recomputes ops from values that it reads itself.
    monkeypatch.setattr(pipeline, "decide_leaf", lambda *_, **__: None)
    assert run("ac", "-c", "--workers", "1", data=data, file=io.StringIO()) == 0
    tensors = [path for path in data.rglob("*") if path.is_file() and {"dump", "tf"} & set(path.parts)]
    tensors = [path for path in tensors if str(path) in sizes]  # not what only has a name
    assert len(tensors) > 50
    assert max(opens[str(path)] for path in tensors) <= 2
    total = sum(path.stat().st_size for path in tensors)
    assert sum(sizes[str(path)] for path in tensors) <= 1.15 * total


@pytest.mark.parametrize("sides", [(), ("-lt", "npu/debug_0/dump", "-rt", "tf/dump")], ids=["data folder", "named"])
def test_a_run_is_found_and_its_graph_chosen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sides: tuple[str, ...]
) -> None:
    """The comparison, the checks and the verdict are handed the same run and the same choice."""
    data = tmp_path / "precision_data"
    generate_demo(data, fault="nan")
    for path in data.rglob("*"):
        os.utime(path, (1.6e9, 1.6e9))  # what was written just now may change unseen, and is looked at again
    found: Counter[str] = Counter()
    chosen: Counter[str] = Counter()
    usual_leaf, usual_choice = walk._leaf, choice.choose_graph

    def noted_leaf(folder: str, names: list[str], no_files: Collection[str]) -> DumpLeaf | None:
        leaf = usual_leaf(folder, names, no_files)
        if leaf is not None:
            found[folder] += 1
        return leaf

    def noted_choice(paths: Iterable[str], leaf: DumpLeaf, store: GraphStore) -> choice.GraphChoice:
        chosen[leaf.path] += 1
        return usual_choice(paths, leaf, store)

    monkeypatch.setattr(walk, "_leaf", noted_leaf)
    monkeypatch.setattr(choice, "choose_graph", noted_choice)
    monkeypatch.chdir(data)
    assert run("ac", "-c", "--workers", "1", *sides, data=data, file=io.StringIO()) == 0
    assert found
    assert set(found.values()) == {1}
    assert set(chosen.values()) == {1}


def test_a_graph_is_chosen_anew_when_its_folder_changed(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    generate_demo(data)
    session = Session(load_settings({"data": data, "work": None}))
    (run_graph, *_) = session.run_graphs()
    assert run_graph.leaf is not None
    chooser = session.data.graph_chooser()
    assert chooser.of(run_graph.leaf).file.path == run_graph.file.path
    Path(run_graph.file.path).unlink()
    with pytest.raises(DataNotFoundError):
        chooser.of(run_graph.leaf)


def test_the_verdict_opens_and_reads_each_file_once_more(
    tmp_path: Path, reads: tuple[Counter[str], Counter[str]]
) -> None:
    """Each op's file is read to judge it; which copies of a tensor are the same, checksums tell."""
    data = tmp_path / "precision_data"
    generate_demo(data)
    opens, sizes = reads
    opens.clear()
    sizes.clear()
    assert run("ac", "-c", "--workers", "1", data=data, file=io.StringIO()) == 0
    dumps = [path for path in (data / "npu").rglob("*") if path.is_file() and str(path) in sizes]
    assert len(dumps) > 50
    assert sum(opens[str(path)] for path in dumps) <= 3.2 * len(dumps)
    assert sum(sizes[str(path)] for path in dumps) <= 2 * sum(path.stat().st_size for path in dumps)
    # Of the benchmark only data, variables, and what stands beside a wrong op.
    goldens = [path for path in (data / "tf").rglob("*.npy") if str(path) in sizes]
    assert len(goldens) > 50
    assert sum(opens[str(path)] for path in goldens) <= 2.5 * len(goldens)
    assert sum(sizes[str(path)] for path in goldens) <= 1.4 * sum(path.stat().st_size for path in goldens)


# How often `ac -c`, its verdict included, opens the files of a dump.


@pytest.mark.parametrize("word", ["vc", "ac"])
def test_each_file_is_opened_once(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    truth = generate_demo(tmp_path / "precision_data")
    opened: Counter[str] = Counter()
    real = local.open_descriptor

    def counted(path: str, *rest: int) -> int:
        opened[path] += 1
        return real(path, *rest)

    monkeypatch.setattr(local, "open_descriptor", counted)
    words = [word, "-c"] if word == "ac" else [word]
    folders = "--data", str(tmp_path / "precision_data"), "--work", str(tmp_path / "work")
    monkeypatch.setattr("sys.argv", ["precision-tool", *folders, *words, "--workers", "1"])
    assert not cli.main()
    capfd.readouterr()
    dumped = {str(path) for folder in (truth.dump_dir, truth.golden_dir) for path in folder.iterdir()}
    read = {path: count for path, count in opened.items() if path in dumped}
    assert len(read) >= truth.dump_files
    assert set(read.values()) == {1}


# The order of sets reaches no output: the same comparison in processes with different hash seeds.


def test_the_json_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    generate_demo(tmp_path / "made")
    shown: list[str] = []
    for seed in ("1", "2"):
        folder = tmp_path / "demo"  # the same paths in both; nothing is left of the run before
        shutil.copytree(tmp_path / "made", folder / "precision_data")
        out = tool("ac", "-c", "--json", cwd=folder, env={"PYTHONHASHSEED": seed}).out
        shutil.rmtree(folder)
        shown.append(
            re.sub(r"\b\d{14}\b|(?<=result_)\d{14}", "MOMENT", out)
        )  # results are named by when they were made
    assert "MOMENT" in shown[0]
    assert shown[0] == shown[1]
