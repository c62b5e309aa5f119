"""A real terminal for tests: the program runs on a pty, a terminal emulator answers it and keeps the screen."""

from __future__ import annotations

import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pexpect
import pyte
from command_line import HANG, TOOL, environment

PROMPT = "PrecisionTool >"


class Terminal:
    """The tool in a terminal of a fixed size. `screen` is what a person would see, `history` what scrolled off too.

    `program` is what runs instead, a shell say.
    """

    def __init__(
        self,
        cwd: Path,
        *arguments: str,
        columns: int = 100,
        lines: int = 40,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = TOOL,
    ) -> None:
        variables = (
            environment(cwd) | {"TERM": "xterm-256color", "XDG_STATE_HOME": str(cwd / ".state")} | dict(env or {})
        )
        for name in ("COLUMNS", "NO_COLOR"):
            if name not in (env or {}):
                variables.pop(name, None)
        self._view = pyte.HistoryScreen(columns, lines, history=5000, ratio=1)
        self._view.write_process_input = self._answer  # type: ignore[method-assign]
        self._stream = pyte.Stream(self._view)
        self.process = pexpect.spawn(
            program[0],
            [*program[1:], *arguments],
            cwd=str(cwd),
            env=variables,
            dimensions=(lines, columns),
            encoding="utf-8",
            timeout=None,
        )
        self.process.delaybeforesend = None

    def _answer(self, data: str) -> None:
        """The terminal's own answers, where the cursor is for instance."""
        self.process.send(data)

    def _read(self) -> bool:
        """Take what the program has written; False when it has ended."""
        try:
            self._stream.feed(self.process.read_nonblocking(1 << 16, timeout=0.05))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        return True

    @property
    def screen(self) -> list[str]:
        """The lines in view."""
        return [line.rstrip() for line in self._view.display]

    @property
    def text(self) -> str:
        """Everything that was shown, from the first line on."""
        width = self._view.columns
        gone = ["".join(line[column].data for column in range(width)).rstrip() for line in self._view.history.top]
        return "\n".join([*gone, *self.screen]).rstrip()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until `condition` holds; an AssertionError that shows the screen if it never does."""
        end = time.monotonic() + HANG
        while not condition():
            alive = self._read()
            if condition():
                return
            assert alive, f"ended before {what}:\n{self.text}"
            assert time.monotonic() < end, f"no {what}:\n{self.text}"

    def expect(self, text: str) -> None:
        """Wait until `text` stands on the screen or above it."""
        self.wait(lambda: text in self.text, text)

    def at_prompt(self) -> bool:
        """True if the cursor stands behind an empty prompt."""
        row = self.screen[self._view.cursor.y]
        # The terminal's echo of a Ctrl+C in a hurry may stand before it.
        return row.removeprefix("^C") == PROMPT and self._view.cursor.x == len(row) + 1

    def ready(self) -> None:
        """Wait for an empty prompt."""
        self.wait(self.at_prompt, "empty prompt")

    def type(self, keys: str) -> None:
        """Send keys as they are."""
        self.process.send(keys)

    def start(self, line: str) -> None:
        """Type a line and wait until its command runs: then the terminal itself takes care of Ctrl+C again."""
        self.ready()
        self.type(line + "\r")
        self.wait(lambda: bool(termios.tcgetattr(self.process.child_fd)[3] & termios.ISIG), f"start of {line}")

    def run(self, line: str) -> str:
        """Type a line, wait for the next prompt, and return what was shown between them."""
        self.ready()
        before = len(self.text.splitlines())
        self.type(line)
        self.wait(lambda: line[-20:] in "".join(self.text.splitlines()[before - 1 :]), f"echo of {line}")
        self.type("\r")
        self.wait(lambda: self.at_prompt() and len(self.text.splitlines()) > before, f"prompt after {line}")
        return "\n".join(self.text.splitlines()[before:-1])

    def end(self) -> int:
        """Wait for the program's end; its exit code."""
        limit = time.monotonic() + HANG
        while self._read():
            assert time.monotonic() < limit, f"does not end:\n{self.text}"
        self.process.close()
        status: int = self.process.exitstatus
        return status

    def close(self) -> None:
        """Kill what still runs."""
        self.process.close(force=True)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
