"""What tests of several folders share."""

from __future__ import annotations

import os

# As the command line has it, and before numpy loads: spawned workers add in the same order as this process does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from real_tree import real_tree
from report_browser import browse as browse
from report_browser import chromium as chromium
from report_browser import demo_report as demo_report
from report_browser import h5_report as h5_report
from tensorflow_oracle import TensorFlow
from torch_oracle import Torch
from training_side import npu_bridge as npu_bridge
from training_side import work as work
from vendor import Vendor, find_vendor

from precision_tool.lib.compare import scheduler
from precision_tool.lib.messages.language import choose_language

# Importing `tf_config` seeds what is random. Not in this process: its other tests want their own luck.
os.environ["PRECISION_TOOL_SEED"] = "off"

# No test asserts on time. CI says the same about the same change twice; by hand each run tries other examples. Older
# versions of hypothesis have no profile of their own for that.
hypothesis.settings.register_profile("project", deadline=None, derandomize=os.environ.get("CI") == "true")
hypothesis.settings.load_profile("project")


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked, as in a process of its own, and so know what a test has replaced.

    Threads that earlier tests left behind (fsspec's, Dask's) wait for work and hold nothing; they do not count. Where
    such threads are what is tested, this fixture does nothing.
    """
    before = threading.active_count()
    monkeypatch.setattr(scheduler, "can_fork", lambda: threading.active_count() <= before)


@pytest.fixture(autouse=True)
def the_language_of_the_locale() -> Iterator[None]:
    """A command that runs in this process may choose another language for as long as the process lasts."""
    yield
    choose_language("")


@pytest.fixture(scope="session")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Vendor:
    """The vendor's msaccucmp, its library built once; skips the test where it was not installed."""
    return find_vendor(tmp_path_factory.mktemp("vendor"))


@pytest.fixture(scope="session")
def tensorflow() -> Iterator[TensorFlow]:
    """TensorFlow 2.15, asked op by op."""
    with TensorFlow("2.15") as oracle:
        yield oracle


@pytest.fixture(scope="session")
def tensorflow_115() -> Iterator[TensorFlow]:
    """TensorFlow 1.15, asked op by op."""
    with TensorFlow("1.15") as oracle:
        yield oracle


@pytest.fixture(scope="session")
def torch() -> Iterator[Torch]:
    """PyTorch, asked call by call."""
    with Torch() as oracle:
        yield oracle


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of a real network (see `real_tree`), which is only read: give commands a `--work`."""
    root = tmp_path_factory.mktemp("real")
    real_tree(root / "precision_data", root / "archive")
    return root / "precision_data"
