"""Where the switch files are, and what becomes of them when they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from precision_tool.lib.collect import FUSION_OFF_FILE, FUSION_SWITCH_FILE
from precision_tool.lib.errors import FormatError, OutputError
from precision_tool.lib.formats.fusion_switch import SHIPPED_OFF, SHIPPED_SWITCH, parse_switches, read_switches
from precision_tool.lib.shell import switch_files
from precision_tool.lib.shell.switch_files import LAST, find_switch_file, script_lines, write_text
from precision_tool.lib.workspace import Workspace


def test_those_of_the_training_helper() -> None:
    for off, path, name in (
        (False, FUSION_SWITCH_FILE, "FUSION_SWITCH_FILE"),
        (True, FUSION_OFF_FILE, "FUSION_OFF_FILE"),
    ):
        file = find_switch_file(Workspace("data"), off=off)
        assert file.path == file.target == path
        assert file.note == ""
        assert any(f"npu_tf_config.{name}" in line for line in script_lines(file))
        assert any(f"action='fusion_{'off' if off else 'switch'}'" in line for line in script_lines(file))


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


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation in which nobody can write, not even root."""
    monkeypatch.setattr(switch_files, "FUSION_SWITCH_FILE", "/proc/self/fusion_switch.cfg")
    monkeypatch.setattr(switch_files, "FUSION_OFF_FILE", "/proc/self/fusion_off.cfg")


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize("to_write", [False, True])
def test_an_installation_that_cannot_be_written(tmp_path: Path, to_write: bool) -> None:
    """The file is a copy below the results, and the script has to name it; that is said."""
    workspace = Workspace(tmp_path / "precision_data")
    copy = tmp_path / "precision_data" / "temp" / "fusion" / "fusion_switch.cfg"
    file = find_switch_file(workspace, to_write=to_write)
    assert file.target == str(copy)
    assert "cannot be written" in file.note
    assert file.note.endswith(f"which the training script must name: {copy}")
    assert file.read() == SHIPPED_SWITCH
    file.write(file.read().with_pass("A", False))
    again = find_switch_file(workspace)
    assert again.path == again.target == str(copy)
    assert not again.read().is_on("A")
    assert any(repr(str(copy)) in line for line in script_lines(again))
    assert find_switch_file(workspace, off=True).read() == SHIPPED_OFF


def test_a_place_that_cannot_be_written() -> None:
    with pytest.raises(OutputError, match=r"/proc/self/x\.cfg: cannot be written"):
        write_text("/proc/self/x.cfg", "text")


def test_a_text_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.cfg"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="No space left"):
        write_text(str(path), "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["x.cfg"]


def test_the_examples_of_the_documents_can_be_edited() -> None:
    switches = parse_switches(
        '{"Switch":{"GraphFusion":{"ALL":"off","SoftmaxFusionPass":"on"},"UBFusion":{"ALL":"off"}}}'
    )
    assert switches.with_pass("SoftmaxFusionPass", False).is_on("SoftmaxFusionPass") is False
    assert switches.with_pass("TbeAny", True).is_on("TbeAny")
