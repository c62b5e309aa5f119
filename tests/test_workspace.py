"""The paths of a data folder and the choice of a place to write to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.messages import render
from precision_tool.lib.messages.errors import OutputError, UsageError

NOW = datetime(2026, 1, 31, 23, 59, 59)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of each test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def unwritable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that refuses writes, for root too: as on a read-only mount."""
    data = folder / "precision_data"
    (data / "npu").mkdir(parents=True)
    real_mkdir = os.mkdir
    real_trial = tempfile.TemporaryFile

    def refuse(path: object) -> None:
        if data in Path(str(path)).resolve().parents or Path(str(path)).resolve() == data:
            raise OSError(30, "Read-only file system", str(path))

    def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
        refuse(path)
        real_mkdir(path, *arguments, **options)

    def trial(*arguments: Any, dir: Any, **options: Any) -> Any:
        refuse(dir)
        return real_trial(*arguments, dir=dir, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(tempfile, "TemporaryFile", trial)
    monkeypatch.setattr(os, "access", lambda path, mode: data not in (p := Path(path).resolve()).parents and p != data)
    return data


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_documented_paths() -> None:
    workspace = Workspace("d")
    assert [
        workspace.dump_dir(),
        workspace.graph_dir(1),
        workspace.prof_dir(),
        workspace.tf_debug_dir,
        workspace.tf_dump_dir,
        workspace.tf_checkpoint_dir,
        workspace.tf_input_dir,
        workspace.pt_npu_dir,
        workspace.pt_gpu_dir,
        workspace.overflow_dump_dir,
    ] == [
        Path("d") / path
        for path in (
            "npu/debug_0/dump",
            "npu/debug_1/graph",
            "npu/debug_0/prof",
            "tf/tf_debug",
            "tf/dump",
            "tf/checkpoints",
            "tf/checkpoints/input",
            "pt/npu",
            "pt/gpu",
            "overflow/dump",
        )
    ]


def test_looking_creates_nothing(folder: Path) -> None:
    workspace = Workspace()
    assert workspace.debug_numbers() == []
    assert workspace.compare_dirs() == []
    assert workspace.fusion_result_files() == []
    assert names(folder) == []


def test_debug_numbers_in_order(folder: Path) -> None:
    for name in ("debug_10", "debug_2", "debug_0", "debug_x", "other"):
        (folder / "d" / "npu" / name).mkdir(parents=True)
    (folder / "d" / "npu" / "debug_3").write_text("no folder")
    assert Workspace("d").debug_numbers() == [0, 2, 10]


def test_fusion_results_are_found_in_three_places(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_WORK_PATH", str(folder / "ascend"))
    places = [Path("d/fusion"), Path(), folder / "ascend/FE/4711"]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        (place / "fusion_result.json").write_text("{}")
    assert Workspace("d").fusion_result_files() == [place / "fusion_result.json" for place in places]


def test_results_go_to_temp(folder: Path) -> None:
    workspace = Workspace("d")
    assert workspace.output_dir("decode", "pt") == Path("d/temp/decode/pt")
    assert workspace.notes == []
    assert names(folder) == ["d", "d/temp", "d/temp/decode", "d/temp/decode/pt"]


def test_results_go_to_the_work_folder(folder: Path) -> None:
    workspace = Workspace("d", "w")
    assert workspace.new_compare_dir(NOW) == Path("w/vector_compare/20260131235959")
    assert names(folder) == ["w", "w/vector_compare", "w/vector_compare/20260131235959"]
    assert workspace.compare_dirs() == [Path("w/vector_compare/20260131235959")]


def test_two_comparisons_in_one_second() -> None:
    first, second = (Workspace("d").new_compare_dir(NOW) for _ in range(2))
    assert (first.name, second.name) == ("20260131235959", "20260201000000")


def test_earlier_comparisons_newest_first(folder: Path) -> None:
    for name in ("20250101000000", "20260101000000", "2026", "notes"):
        (folder / "d/temp/vector_compare" / name).mkdir(parents=True)
    (folder / "w/vector_compare/20251231000000").mkdir(parents=True)
    found = [path.name for path in Workspace("d", "w").compare_dirs()]
    assert found == ["20260101000000", "20251231000000", "20250101000000"]


def test_an_unwritable_data_folder_is_said_once(folder: Path, unwritable: Path) -> None:
    workspace = Workspace()
    made = workspace.new_compare_dir(NOW)
    assert made == Path("precision_work/vector_compare/20260131235959")
    assert workspace.output_dir("op_graph") == Path("precision_work/op_graph")
    (note,) = workspace.notes
    assert render(note).startswith("precision_data/temp/vector_compare cannot be written (Read-only file system); ")
    assert render(note).endswith("results go to precision_work instead")
    assert names(unwritable) == ["npu"]
    assert Workspace().compare_dirs() == [made]


def test_results_of_another_data_folder_are_not_shown(folder: Path) -> None:
    (folder / "precision_work/vector_compare/20260101000000").mkdir(parents=True)
    assert Workspace().compare_dirs() == []


def test_a_folder_of_somebody_else_below_a_good_one(folder: Path) -> None:
    (folder / "precision_data/temp").mkdir(parents=True)
    (folder / "precision_data/temp/decode").write_text("not a folder")
    workspace = Workspace()
    assert workspace.output_dir("op_graph") == Path("precision_data/temp/op_graph")
    assert workspace.output_dir("decode") == Path("precision_work/decode")
    assert len(workspace.notes) == 1


def test_nowhere_to_write(folder: Path, unwritable: Path) -> None:
    (folder / "precision_work").write_text("in the way")
    with pytest.raises(OutputError) as caught:
        Workspace().output_dir("op_graph")
    assert "precision_data/temp/op_graph cannot be written (Read-only file system)" in caught.value.message
    assert "precision_work/op_graph cannot be written (" in caught.value.message
    assert "--work DIR" in caught.value.hint


def test_a_work_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "w").write_text("a file")
    with pytest.raises(OutputError, match="w/op_graph cannot be written"):
        Workspace("d", "w").output_dir("op_graph")
    assert names(folder) == ["w"]


def test_a_full_disk_leaves_no_empty_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OutputError, match="No space left on device"):
        Workspace().output_dir("decode", "pt")
    assert names(folder) == []


def test_a_read_only_mount(folder: Path) -> None:
    """The real thing, where this machine lets a test mount: even root cannot write there."""
    (folder / "precision_data").mkdir()
    repo = Path(__file__).resolve().parents[1]
    mount = "mount -t tmpfs -o ro none precision_data && exec env PYTHONPATH={} {} -c {}"
    code = "'from precision_tool.lib.data.workspace import Workspace; print(Workspace().output_dir(\"op_graph\"))'"
    unshare = shutil.which("unshare")
    probe = [unshare or "unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if unshare is None or subprocess.run([*probe, "mount -t tmpfs none precision_data"], check=False).returncode:
        pytest.skip("this machine does not let a test mount; test_an_unwritable_data_folder_is_said_once stands in")
    run = subprocess.run(
        [*probe, mount.format(repo, sys.executable, code)], capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.stderr) == ("precision_work/op_graph\n", "")


def test_caches_go_where_results_go_but_make_no_new_places(folder: Path) -> None:
    assert Workspace("none").cache_dirs() == []
    assert Workspace("none", "w").cache_dirs() == [Path("w/cache")]
    (folder / "precision_data").mkdir()
    assert Workspace().cache_dirs() == [Path("precision_data/temp/cache")]
    assert names(folder) == ["precision_data"]


def test_caches_of_a_data_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "precision_data").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert Workspace().cache_dirs() == [Path("precision_data/temp/cache")]
    (folder / "precision_work").mkdir()  # an earlier command's
    assert Workspace().cache_dirs() == [Path("precision_data/temp/cache"), Path("precision_work/cache")]


def test_results_do_not_go_among_dumps(tmp_path: Path) -> None:
    space = Workspace(tmp_path / "data")
    for number in (0, 3):
        space.dump_dir(number).mkdir(parents=True)
    other = tmp_path / "other"
    (tmp_path / "link").symlink_to(space.dump_dir(3))
    for folder in (
        space.dump_dir(0), space.dump_dir(3) / "out" / "deep", space.tf_dump_dir / "x", space.overflow_dump_dir,
        tmp_path / "link" / "x", space.dump_dir(0) / "a" / "..", other / "x",
    ):  # fmt: skip
        with pytest.raises(UsageError, match="only read"):
            space.check_outside_dumps(folder, other)
    for folder in (tmp_path / "data" / "temp", tmp_path, space.debug_dir(0) / "dump2", tmp_path / "others"):
        space.check_outside_dumps(folder, other)
