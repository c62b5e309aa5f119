"""Where the switch files are, and what becomes of them when they are written."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from memory_store import MemoryStore

from precision_tool import tf_config
from precision_tool.lib.cli.bisect_runner import edit_alone
from precision_tool.lib.cli.switch_files import LAST, find_switch_file, script_lines
from precision_tool.lib.data.workspace import Workspace
from precision_tool.lib.io import files, writing
from precision_tool.lib.io.files import mounted
from precision_tool.lib.io.fusion_passes import SHIPPED_OFF, SHIPPED_SWITCH, parse_switches, read_switches
from precision_tool.lib.io.urls import path_of
from precision_tool.lib.io.writing import only_writer, rewrite_text
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, OutputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a data folder."""
    (tmp_path / "precision_data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_those_of_the_data_folder_begin_as_the_installed_ones(folder: Path) -> None:
    workspace = Workspace("precision_data")
    for off, name in ((False, "FUSION_SWITCH_FILE"), (True, "FUSION_OFF_FILE")):
        installed = Path(getattr(tf_config, name))
        before = installed.read_bytes()
        file = find_switch_file(workspace, off=off)
        assert file.path == str(installed)
        assert file.target == f"precision_data/fusion/{installed.name}"
        assert file.note is None
        file.write(file.read().with_pass("A", off))
        assert installed.read_bytes() == before
        again = find_switch_file(workspace, off=off)
        assert again.path == again.target == file.target
        assert again.read().is_on("A") == off
        # The training helper of this folder uses it, and that of another folder does not.
        assert getattr(tf_config, name) == str(folder / file.target)
        action = f"fusion_{'off' if off else 'switch'}"
        assert any(f"npu_tf_config.{name}" in line for line in script_lines(again))
        assert any(f"action='{action}'" in line for line in script_lines(again))
        asked = find_switch_file(workspace, off=off, installed=True)
        assert asked.path == asked.target == str(installed)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("to_write", [False, True])
def test_of_remote_data_a_copy_on_this_machine_is_written(monkeypatch: pytest.MonkeyPatch, to_write: bool) -> None:
    monkeypatch.setattr(files, "_remote", {})
    data, store = path_of("vault://host/run"), MemoryStore()
    with mounted("/vault:/host", store):
        for work, place in ((None, "precision_work"), ("mine", "mine"), ("vault://host/results", "precision_work")):
            workspace = Workspace(data, None if work is None else path_of(work))
            file = find_switch_file(workspace, to_write=to_write)
            assert file.target == f"{place}/fusion/fusion_switch.cfg"
            assert file.note is not None
            assert repr(os.path.abspath(file.write(file.read().with_pass("A", False)))) in script_lines(file)[0]
            assert not find_switch_file(workspace).read().is_on("A")


@pytest.mark.usefixtures("folder")
def test_of_another_data_folder_the_script_has_to_name_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir("other")
    file = find_switch_file(Workspace("other"))
    assert all(repr(os.path.abspath("other/fusion/fusion_switch.cfg")) in line for line in script_lines(file))
    assert file.target == "other/fusion/fusion_switch.cfg"
    monkeypatch.setenv("PRECISION_TOOL_DATA", "other")
    assert any("action='fusion_switch'" in line for line in script_lines(find_switch_file(Workspace("other"))))


@pytest.mark.usefixtures("folder")
def test_the_file_of_a_bisection_is_used_wherever_its_command_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.cfg").write_text("{}")
    monkeypatch.setenv("PRECISION_TOOL_FUSION_SWITCH_FILE", "my.cfg")
    assert str(tmp_path / "my.cfg") == tf_config.FUSION_SWITCH_FILE
    assert os.path.basename(tf_config.FUSION_OFF_FILE) == "fusion_off.cfg"


def test_the_file_of_the_setting_is_used_and_edited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the old tool's FUSION_SWITCH_FILE in config.py."""
    monkeypatch.chdir(tmp_path)
    Path("precision_config.py").write_text("import os\nFUSION_SWITCH_FILE = os.path.join('mine', 'switches.cfg')\n")
    with pytest.raises(DataNotFoundError, match=r"FUSION_SWITCH_FILE: .*mine/switches\.cfg: no such file"):
        tf_config.FUSION_SWITCH_FILE  # noqa: B018
    file = find_switch_file(Workspace("precision_data"))
    file.write(file.read().with_pass("A", False))
    assert not read_switches("mine/switches.cfg").is_on("A")
    assert str(tmp_path / "mine" / "switches.cfg") == tf_config.FUSION_SWITCH_FILE
    assert any("action='fusion_switch'" in line for line in script_lines(file))
    for other in (find_switch_file(Workspace("precision_data"), off=True), find_switch_file(Workspace("d"), "x.cfg")):
        assert "mine" not in other.target


def test_one_that_is_not_there_yet(tmp_path: Path) -> None:
    file = find_switch_file(Workspace("data"), str(tmp_path / "new" / "my.cfg"))
    assert file.read() == SHIPPED_SWITCH
    file.write(file.read().with_pass("A", False))
    assert not read_switches(file.target).is_on("A")
    assert not os.path.exists(file.target + LAST)
    lines = script_lines(file)
    assert all(repr(str(tmp_path / "new" / "my.cfg")) in line for line in lines)


def test_the_version_before_and_the_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "my.cfg"
    path.write_text("A:on\n")
    path.chmod(0o640)
    file = find_switch_file(Workspace("data"), str(path))
    file.write(file.read().with_pass("A", False))
    assert path.read_text() == "A:off\n"
    assert Path(f"{path}{LAST}").read_text() == "A:on\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["my.cfg", "my.cfg.last"]


def test_what_ge_would_refuse_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "my.cfg"
    path.write_text("A:on\n")
    file = find_switch_file(Workspace("data"), str(path))
    with pytest.raises(FormatError):
        file.write(file.read().with_pass("not a pass", False))
    assert path.read_text() == "A:on\n"
    assert os.listdir(tmp_path) == ["my.cfg"]


@pytest.mark.parametrize("to_write", [False, True])
def test_a_data_folder_that_cannot_be_written(tmp_path: Path, to_write: bool) -> None:
    """The file is a copy below the results, and the script has to name it; that is said."""
    workspace = Workspace("/proc/self", tmp_path / "work")  # in which nobody can write, not even root
    copy = tmp_path / "work" / "fusion" / "fusion_switch.cfg"
    file = find_switch_file(workspace, to_write=to_write)
    assert file.target == str(copy)
    assert "cannot be written" in str(file.note)
    assert str(file.note).endswith(f"which the training script must name: {copy}")
    assert file.read() == SHIPPED_SWITCH
    file.write(file.read().with_pass("A", False))
    again = find_switch_file(workspace)
    assert again.path == again.target == str(copy)
    assert not again.read().is_on("A")
    assert any(repr(str(copy)) in line for line in script_lines(again))
    assert find_switch_file(workspace, off=True).read() == SHIPPED_OFF


def test_a_place_that_cannot_be_written() -> None:
    with pytest.raises(OutputError, match=r"/proc/self/x\.cfg: cannot be written"):
        rewrite_text("/proc/self/x.cfg", "text")


def test_a_text_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.cfg"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="No space left"):
        rewrite_text(str(path), "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["x.cfg"]


def test_the_examples_of_the_documents_can_be_edited() -> None:
    switches = parse_switches(
        '{"Switch":{"GraphFusion":{"ALL":"off","SoftmaxFusionPass":"on"},"UBFusion":{"ALL":"off"}}}'
    )
    assert switches.with_pass("SoftmaxFusionPass", False).is_on("SoftmaxFusionPass") is False
    assert switches.with_pass("TbeAny", True).is_on("TbeAny")


def test_edits_at_the_same_time_are_all_made(tmp_path: Path) -> None:
    """Each reads what the one before has written; nothing but the file and its last version is left."""
    path = tmp_path / "my.cfg"
    names = [f"Pass{number:02}" for number in range(16)]
    path.write_text("".join(f"{name}:on\n" for name in names))

    def edit(name: str) -> None:
        file = find_switch_file(Workspace("data"), str(path))
        with edit_alone([], file.target):
            switches = file.read()
            time.sleep(0.01)  # long enough for all others to read
            file.write(switches.with_pass(name, False))

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(edit, names))
    assert path.read_text() == "".join(f"{name}:off\n" for name in names)
    assert sorted(os.listdir(tmp_path)) == ["my.cfg", "my.cfg.last"]


def test_an_edit_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LONGEST_EDIT", 0.1)
    path = str(tmp_path / "my.cfg")
    with only_writer(path), pytest.raises(OutputError, match=r"my\.cfg: cannot be written"), only_writer(path):
        pass
    assert os.listdir(tmp_path) == []


def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="there is something that is no file"):
        rewrite_text(str(tmp_path / "pipe"), "text")
    assert os.listdir(tmp_path) == ["pipe"]
