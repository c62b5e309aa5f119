"""The console that everything a person sees is printed on."""

from __future__ import annotations

import os

from rich.console import Console


class ReportConsole(Console):
    """A console that leaves it to the command line what a reader means that has gone (`| head`)."""

    def __init__(self, *, stderr: bool = False) -> None:
        # Set but empty, NO_COLOR asks for nothing; old releases of rich do not see it so.
        super().__init__(stderr=stderr, no_color=os.environ.get("NO_COLOR", "") != "")

    def on_broken_pipe(self) -> None:
        """Raises the error rich is handling; rich itself would exit with 1, which here means findings."""
        raise BrokenPipeError
