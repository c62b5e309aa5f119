"""The console that everything a person sees is printed on."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console
from rich.theme import Theme

#: The colours that reports name, for dark and light backgrounds; `plain` is without any.
THEMES: dict[str, dict[str, str]] = {
    "dark": {},
    "light": {"yellow": "dark_orange3", "green": "dark_green", "cyan": "blue", "dim": "grey46"},
    "plain": {},
}


#: Columns of output that goes to a file or a pipe: wide enough for names to stay whole, for grep.
NO_TERMINAL_WIDTH = 200


class ReportConsole(Console):
    """A console that leaves it to the command line what a reader means that has gone (`| head`)."""

    def __init__(
        self, *, file: TextIO | None = None, stderr: bool = False, width: int = 0, theme: str = "dark"
    ) -> None:
        super().__init__(
            file=file,
            stderr=stderr,
            width=width or None,
            theme=Theme(THEMES[theme]),
            # Set but empty, NO_COLOR asks for nothing; old releases of rich do not see it so.
            no_color=theme == "plain" or os.environ.get("NO_COLOR", "") != "",
        )
        if not (width or self.is_terminal or os.environ.get("COLUMNS")):
            self.width = NO_TERMINAL_WIDTH

    def on_broken_pipe(self) -> None:
        """Raises the error rich is handling; rich itself would exit with 1, which here means findings."""
        raise BrokenPipeError
