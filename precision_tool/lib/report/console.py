"""The console that everything a person sees is printed on."""

from __future__ import annotations

from rich.console import Console


class ReportConsole(Console):
    """A console that leaves it to the command line what a reader means that has gone (`| head`)."""

    def on_broken_pipe(self) -> None:
        """Raises the error rich is handling; rich itself would exit with 1, which here means findings."""
        raise BrokenPipeError
