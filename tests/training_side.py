"""Training scripts as processes of their own, and stand-ins for the vendor's packages, which do not exist here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import ToolServer

from precision_tool.lib.data.settings import SETTING_NAMES
from precision_tool.lib.training import passport

REPO = Path(__file__).resolve().parents[1]

#: A hang is a failure, slowness is not.
HANG = 180.0

#: Variables that hold a Python with TensorFlow; scripts/test makes those environments.
TENSORFLOWS = {"1.15": "PRECISION_TOOL_TF115", "2.15": "PRECISION_TOOL_TF215"}


#: Variables that make GE write its graphs.
GRAPH_VARIABLES = ("DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH", "NPU_DUMP_GRAPH")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A script that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The last line it printed, which is JSON."""
        return json.loads(self.out.splitlines()[-1])


def tensorflow_python(version: str) -> str:
    """The Python that has this TensorFlow; skips the test without one, but not in CI."""
    path = os.environ.get(TENSORFLOWS[version])
    if path:
        return path
    reason = f"{TENSORFLOWS[version]} names no Python with TensorFlow {version}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "SHELL": "/bin/sh"}


def _of_this_process() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


@cache
def _tensorflow_server(python: str) -> ToolServer:
    """A process that has loaded TensorFlow, which takes most of the time of a short script."""
    return ToolServer(python, ["tensorflow"], _of_this_process() | _ENVIRONMENT | {"PYTHONWARNINGS": "ignore"})


def run_script(
    python: str,
    script: str,
    cwd: Path,
    *arguments: str,
    code: int | None = 0,
    paths: tuple[Path, ...] = (REPO,),
    env: Mapping[str, str] | None = None,
    forked: bool = True,
) -> Ran:
    """Runs the text of a script in `cwd`, with `paths` on its path and `env` in its environment.

    It is a process of its own; with TensorFlow forked from one that has loaded it, if it may be `forked`.
    """
    file = cwd / "script.py"
    file.write_text(textwrap.dedent(script), "utf-8")
    environment = _of_this_process() | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(map(str, paths))} | dict(env or {})
    if forked and python in map(os.environ.get, TENSORFLOWS.values()):
        run = _tensorflow_server(python).run(arguments, cwd, environment, script=str(file), seconds=HANG)
        ran = Ran(code=run.code, out=run.out, err=run.err)
    else:
        done = subprocess.run(
            [python, "-W", "ignore", str(file), *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        ran = Ran(code=done.returncode, out=done.stdout, err=done.stderr)
    assert code is None or ran.code == code, ran
    return ran


#: Runs a word of the training side as the command line does.
WORD = """
import sys
from precision_tool.cli import main

sys.exit(main())
"""

_OLD_DUMP_CONFIG = """
class DumpConfig(object):
    def __init__(self, enable_dump=False, dump_path=None, dump_step=None, dump_mode="output",
                 enable_dump_debug=False, dump_debug_mode="all"):
        self.given = {name: value for name, value in locals().items() if name != "self"}
"""
_NEW_DUMP_CONFIG = """
class DumpConfig(object):
    def __init__(self, enable_dump=False, dump_path=None, dump_step=None, dump_mode="output",
                 enable_dump_debug=False, dump_debug_mode="all", dump_data="tensor", dump_layer=None):
        self.given = {name: value for name, value in locals().items() if name != "self"}
"""


_OLD_RUN_CONFIG = """
class NPURunConfig(object):
    def __init__(self, precision_mode=None, dump_config=None, op_debug_level=0, fusion_switch_file=None,
                 modify_mixlist=None):
        self.given = {name: value for name, value in locals().items() if name != "self" and value}
"""
_NEW_RUN_CONFIG = """
class NPURunConfig(object):
    def __init__(self, precision_mode=None, dump_config=None, op_debug_level=None, fusion_switch_file=None,
                 debug_dir=None, modify_mixlist=None, op_precision_mode=None, customize_dtypes=None,
                 deterministic=0, precision_mode_v2=None, quant_dumpable=None):
        self.given = {name: value for name, value in locals().items() if name != "self" and value}
"""


def write_npu_bridge(folder: Path, *, newest: bool) -> Path:
    """A package npu_bridge whose DumpConfig and NPURunConfig have arguments of the newest or of the 2021 releases."""
    package = folder / "npu_bridge"
    for name in ("", "estimator", "estimator/npu"):
        (package / name).mkdir(parents=True, exist_ok=True)
        (package / name / "__init__.py").write_text("", "utf-8")
    config = _NEW_DUMP_CONFIG + _NEW_RUN_CONFIG if newest else _OLD_DUMP_CONFIG + _OLD_RUN_CONFIG
    (package / "estimator/npu/npu_config.py").write_text(config, "utf-8")
    names = "from npu_bridge.estimator.npu.npu_config import DumpConfig, NPURunConfig\n"
    (package / "npu_init.py").write_text(names, "utf-8")
    return folder


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
