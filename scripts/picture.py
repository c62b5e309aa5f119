"""Drives the prompt in tmux on demo data and writes what the terminal shows as SVG. Called by scripts/picture."""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 96, 200
SERVER = "precision_tool_picture"
PROMPT = "PrecisionTool >"
#: What is typed.
SESSION = ("ac -c -l 1", "ls -t Conv2D --below 0.98", "vcs -l 1")


def tmux(*arguments: str) -> str:
    """Runs a tmux command on a server of our own."""
    return subprocess.run(["tmux", "-L", SERVER, *arguments], check=True, capture_output=True, text=True).stdout


def shown(*, styled: bool = False) -> str:
    """What the terminal shows."""
    return tmux("capture-pane", "-p", *(["-e"] if styled else [])).rstrip()


def wait_for_prompts(count: int) -> None:
    """Waits until the last line is an empty prompt, the `count`th one."""
    for _ in range(600):
        lines = shown().splitlines() or [""]
        if lines[-1] == PROMPT and sum(line.startswith(PROMPT) for line in lines) == count:
            return
        time.sleep(0.1)
    raise SystemExit(f"the prompt did not come back:\n{shown()}")


def record(folder: Path, language: str) -> str:
    """Runs the session in `folder`; the screen at its end with its colours."""
    program = f"exec {sys.executable} -m precision_tool --lang {language}"
    variables = [f"XDG_STATE_HOME={folder}", "TERM=screen-256color", f"PYTHONPATH={Path(__file__).parents[1]}"]
    tmux("-f", os.devnull, "new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "-c", str(folder),
         "env", *variables, "sh", "-c", program)  # fmt: skip
    try:
        for number, line in enumerate(SESSION, 1):
            wait_for_prompts(number)
            tmux("send-keys", "-l", "--", line)
            tmux("send-keys", "Enter")
        wait_for_prompts(len(SESSION) + 1)
        return shown(styled=True)
    finally:
        tmux("kill-server")


def with_wide_characters(svg: str) -> str:
    """Gives Chinese the room of two letters a character, where rich counts characters."""

    def widened(found: re.Match[str]) -> str:
        text = html.unescape(found[3])
        return f'textLength="{float(found[1]) * cell_len(text) / max(len(text), 1):g}"{found[2]}>{found[3]}</text>'

    return re.sub(r'textLength="([\d.]+)"([^>]*)>([^<]*)</text>', widened, svg)


def main() -> None:
    """Writes the picture to the file that is named, in the language named after it."""
    target, language = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tool = [sys.executable, "-m", "precision_tool", "demo", "--generate-only", "."]
        subprocess.run(tool, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        screen = record(folder, language)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen))
    target.parent.mkdir(exist_ok=True)
    target.write_text(with_wide_characters(console.export_svg(title="precision-tool")), "utf-8")
    print(target)


if __name__ == "__main__":
    main()
