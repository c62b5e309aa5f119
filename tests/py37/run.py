"""Checks the training side with a real Python 3.7: `python run.py PYTHON37`.

Each file that pyproject.toml marks as py37 must compile there, then the `check_*.py` beside this file must pass.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

# Compiled in memory, with warnings as errors: nothing is left in the tree.
COMPILE = "import sys, pathlib\nfor name in sys.argv[1:]: compile(pathlib.Path(name).read_bytes(), name, 'exec')"


def marked_files() -> list[Path]:
    """The files whose ruff target is Python 3.7; every pattern must match something."""
    settings = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))
    files: list[Path] = []
    for pattern, target in settings["tool"]["ruff"]["per-file-target-version"].items():
        found = sorted(REPO.glob(pattern)) if target == "py37" else []
        if target == "py37" and not found:
            raise SystemExit(f"pyproject.toml marks {pattern} as py37, but there is no such file")
        files += found
    return files


def main(python37: str) -> int:
    files = marked_files()
    command = [python37, "-B", "-W", "error"]
    compiled = subprocess.run([*command, "-c", COMPILE, *map(str, files)], check=False)
    if compiled.returncode:
        return compiled.returncode
    print(f"{len(files)} files compile", flush=True)
    checks = ["-m", "unittest", "discover", "-s", str(Path(__file__).parent), "-p", "check_*.py"]
    return subprocess.run([*command, *checks], cwd=REPO, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
