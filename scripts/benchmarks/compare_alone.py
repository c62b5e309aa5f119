"""`precision-tool` that ends where `ac` would begin to judge: what comparing alone takes, for scripts/bench.

usage: compare_alone.py plain|count|profile WORD...

`count` prints how often files of the data folder were opened, and the bytes read of them; `profile` where the
processor's time goes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

#: The module whose work begins when the comparison is written.
_NEXT = "precision_tool.lib.checks.run_checks"
_SHOWN = 25


def main(arguments: list[str]) -> int:
    """Runs the command in one of the three ways; its exit code."""
    how, *words = arguments
    judging = ModuleType(_NEXT)
    judging.all_checks = _end  # type: ignore[attr-defined]
    sys.modules[_NEXT] = judging
    from precision_tool import cli

    sys.argv[1:] = words
    if how == "count":
        return _counted(cli.main, words[words.index("--data") + 1])
    if how == "profile":
        return _profiled(cli.main)
    return int(cli.main() or 0)


def _end(*_: object, **__: object) -> None:
    raise SystemExit(0)


def _counted(run: Any, folder: str) -> int:
    root = os.path.abspath(folder)
    parts = tuple(os.path.join(root, side) + os.sep for side in ("npu", "tf"))
    opened: dict[str, int] = {}

    def hear(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(details[0], str) and os.path.abspath(details[0]).startswith(parts):
            path = os.path.abspath(details[0])
            opened[path] = opened.get(path, 0) + 1

    before = _bytes_read()
    sys.addaudithook(hear)
    code = run()
    nbytes = _bytes_read() - before
    size = sum(os.path.getsize(path) for path in opened if os.path.isfile(path))
    files = sum(os.path.isfile(path) for path in opened)
    times = sum(count for path, count in opened.items() if os.path.isfile(path))
    print(f"  files opened {files}, {times / max(files, 1):.2f} times each")
    print(
        f"  bytes read {nbytes / 1e9:.2f} GB of {size / 1e9:.2f} GB in these files: {nbytes / max(size, 1):.2f} times"
    )
    return int(code or 0)


def _bytes_read() -> int:
    """What this process has read, from disks or the page cache."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def _profiled(run: Any) -> int:
    import cProfile  # not before: what is timed should not load them
    import pstats

    profile = cProfile.Profile(time.process_time)
    code = profile.runcall(run)
    pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats("tottime").print_stats(_SHOWN)
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
