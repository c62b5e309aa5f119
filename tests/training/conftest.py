"""What tests of the training side share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_side import GRAPH_VARIABLES, write_npu_bridge

from precision_tool.lib.data.settings import SETTING_NAMES
from precision_tool.lib.training import passport


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, an environment that is put back, and no passport of an earlier run."""
    ours = (f"PRECISION_TOOL_{name}" for name in ("DUMP", "OVERFLOW", *SETTING_NAMES))
    for name in (*GRAPH_VARIABLES, *passport.ENVIRONMENT, *ours):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(passport, "_BEGUN", {})
    return tmp_path


@pytest.fixture(params=[True, False], ids=["newest", "2021"])
def npu_bridge(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """A stand-in for npu_bridge, in one of its releases."""
    monkeypatch.syspath_prepend(str(write_npu_bridge(tmp_path / "site", newest=request.param)))
    yield request.param
    for name in [name for name in sys.modules if name.startswith("npu_bridge")]:
        del sys.modules[name]
