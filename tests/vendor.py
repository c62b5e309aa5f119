"""The vendor's msaccucmp from PyPI, run as the subprocess a user would run.

It needs one library of CANN that is not public; parity/dump_parser.c stands in for it and is built where the tests run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import Finished, tool

#: Names the Python of an environment with mindstudio-probe; scripts/test makes one.
VARIABLE = "PRECISION_TOOL_MSPROBE"
LIBRARY = "libascend_dump_parser.so"
SOURCE = Path(__file__).resolve().parent / "parity" / "dump_parser.c"
#: It imports torch if that is there, and writes .pt files with it, which nobody asks for here: most of its time.
WITHOUT = "without_torch"
_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run of the vendor's tool that has ended."""

    code: int
    log: str
    output: Path

    @property
    def result(self) -> Path:
        """The one result file it wrote."""
        found = sorted(self.output.glob("result_*.csv"))
        assert len(found) == 1, (self.code, self.log[-4000:])
        return found[0]


def preset(folder: Path) -> dict[str, str]:
    """The variables by which it has the library and does without torch, both in `folder`."""
    return {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder / WITHOUT)}


class Vendor:
    """Runs msaccucmp with the interpreter that has it."""

    def __init__(self, python: str, library_folder: Path) -> None:
        self.python = python
        where = "import importlib.util as u; print(u.find_spec('msprobe').submodule_search_locations[0])"
        found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True, timeout=_SECONDS)
        self.script = Path(found.stdout.strip()) / "msaccucmp" / "msaccucmp.py"
        assert self.script.is_file()
        self.environment: Mapping[str, str] = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ},
            **preset(library_folder),
            "OPENBLAS_NUM_THREADS": "1",
        }

    def run(self, *arguments: str | Path, output: Path) -> Ran:
        """One command; `output` is the folder it writes to, which is made."""
        output.mkdir(parents=True, exist_ok=True)
        run = subprocess.run(
            [self.python, str(self.script), *map(str, arguments), "-out", str(output)],
            env=dict(self.environment),
            cwd=output,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            timeout=_SECONDS,
            check=False,
        )
        return Ran(code=run.returncode, log=run.stdout, output=output)

    def compare(self, npu: Path, golden: Path, *options: str | Path, output: Path) -> Ran:
        """`compare`; `options` hold the graph."""
        return self.run("compare", "-m", npu, "-g", golden, *options, output=output)


def find_vendor(folder: Path) -> Vendor:
    """The vendor's tool with the library, built in `folder`; skips the test where the tool was not installed."""
    python = os.environ.get(VARIABLE)
    if not python:
        reason = f"{VARIABLE} names no Python that has mindstudio-probe: parity with the vendor's tool is NOT tested"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    library = folder / LIBRARY
    build = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(build, check=True, timeout=_SECONDS)
    (folder / WITHOUT).mkdir()
    (folder / WITHOUT / "torch.py").write_text('raise ImportError("not for these tests")\n')
    return Vendor(python, folder)


def installed(vendor: Vendor, root: Path) -> dict[str, str]:
    """A toolkit with the real script, and what tells our tool of it."""
    home = root / "ascend-toolkit" / "latest"
    script = home / "tools" / "operator_cmp" / "compare" / "msaccucmp.py"
    script.parent.mkdir(parents=True)
    script.symlink_to(vendor.script)
    library = Path(vendor.environment["LD_LIBRARY_PATH"])
    assert (library / LIBRARY).is_file()
    exports = (f"export {name}='{value}'\n" for name, value in preset(library).items())
    (home.parent / "set_env.sh").write_text("".join(exports))
    return {"PRECISION_TOOL_CMD_ROOT_PATH": str(root), "PRECISION_TOOL_PYTHON": vendor.python}


def cann(
    vendor: Vendor, cwd: Path, *words: str | Path, code: int = 0, env: Mapping[str, str] | None = None
) -> Finished:
    """Our tool with the real msaccucmp as its engine."""
    # PYTHONWARNINGS=error is ours, not the vendor's.
    environment = installed(vendor, cwd / "cann") | {"PYTHONWARNINGS": "default"} | dict(env or {})
    return tool(*words, "--engine", "cann", cwd=cwd, env=environment, code=code)
