"""Where the toolkit is found, and what is remembered of a search."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toolkit_standin import make_toolkit

from precision_tool.lib.compare import toolkit as finder
from precision_tool.lib.compare.toolkit import find_toolkit
from precision_tool.lib.messages.errors import DataNotFoundError


def test_the_known_places_below_the_root(tmp_path: Path) -> None:
    made = make_toolkit(tmp_path)
    found = find_toolkit(str(tmp_path), {})
    assert (found.atc, found.msaccucmp) == (str(made.atc), str(made.msaccucmp))
    assert found.root == str(tmp_path / "ascend-toolkit" / "latest")
    assert found.version == "8.0.RC1"
    assert found.set_env == str(tmp_path / "ascend-toolkit" / "set_env.sh")
    assert not found.searched


@pytest.mark.parametrize("variable", ["ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"])
def test_the_environment_names_the_toolkit(tmp_path: Path, variable: str) -> None:
    made = make_toolkit(tmp_path / "home of 'it'")
    latest = made.root / "ascend-toolkit" / "latest"
    found = find_toolkit(str(tmp_path / "none"), {variable: str(latest)})
    assert (found.atc, found.msaccucmp) == (str(made.atc), str(made.msaccucmp))
    assert found.set_env == str(made.root / "ascend-toolkit" / "set_env.sh")


def test_a_compiled_script(tmp_path: Path) -> None:
    made = make_toolkit(tmp_path, atc=None)
    compiled = made.msaccucmp.with_suffix(".pyc")
    made.msaccucmp.rename(compiled)
    assert find_toolkit(str(tmp_path), {}).msaccucmp == str(compiled)


def test_none_at_all(tmp_path: Path) -> None:
    found = find_toolkit(str(tmp_path / "none"), {})
    assert (found.root, found.atc, found.msaccucmp, found.version) == (None, None, None, "")
    with pytest.raises(DataNotFoundError, match="atc was not found in") as caught:
        found.need("atc")
    assert "CMD_ROOT_PATH" in caught.value.hint


def elsewhere(root: Path) -> tuple[Path, Path]:
    """The programs where nobody expects them."""
    made = make_toolkit(root / "elsewhere" / "made")
    odd = root / "a" / "b" / "c"
    (odd / "bin").mkdir(parents=True)
    atc, script = odd / "bin" / "atc", odd / "msaccucmp.py"
    made.atc.rename(atc)
    made.msaccucmp.rename(script)
    return atc, script


def test_a_search_finds_the_rest_and_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, memory = tmp_path / "root", tmp_path / "memory"
    atc, script = elsewhere(root)
    first = find_toolkit(str(root), {}, [memory])
    assert (first.atc, first.msaccucmp, first.searched) == (str(atc), str(script), True)
    monkeypatch.setattr(finder, "_search", lambda roots: pytest.fail("searched again"))
    assert find_toolkit(str(root), {}, [memory]) == first
    monkeypatch.undo()
    script.rename(script.with_name("gone.py"))
    assert find_toolkit(str(root), {}, [memory]).msaccucmp is None


def test_the_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    (deep / "msaccucmp.py").write_text("")
    assert find_toolkit(str(tmp_path), {}).msaccucmp is None
    near = tmp_path / "z"
    near.mkdir()
    (near / "msaccucmp.py").write_text("")
    assert find_toolkit(str(tmp_path), {}).msaccucmp == str(near / "msaccucmp.py")
    monkeypatch.setattr(finder, "_MAX_FOLDERS", 3)
    assert find_toolkit(str(tmp_path), {}).msaccucmp is None


def test_a_link_to_itself_and_a_damaged_memory(tmp_path: Path) -> None:
    root, memory = tmp_path / "root", tmp_path / "memory"
    elsewhere(root)
    os.symlink(root, root / "loop")
    memory.mkdir()
    (memory / "toolkit.json").write_text("{")
    assert find_toolkit(str(root), {}, [memory]).atc is not None
