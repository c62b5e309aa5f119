"""The Python of an environment with torch (CPU) and mindstudio-probe: what it writes is what is read here."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from vendor import VARIABLE

_SECONDS = 300


@cache
def _has_torch(python: str) -> bool:
    run = subprocess.run([python, "-c", "import torch, msprobe"], capture_output=True, timeout=_SECONDS, check=False)
    return run.returncode == 0


def run_torch(script: str, folder: Path, *arguments: str) -> str:
    """Run a script with torch and msprobe in a folder and return what it prints; skips the test without them."""
    python = os.environ.get(VARIABLE)
    if not python or not _has_torch(python):
        reason = f"{VARIABLE} names no Python that has torch and mindstudio-probe: real dumps of msprobe are NOT tested"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    run = subprocess.run(
        [python, "-c", script, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout
