"""The console that everything a person sees is printed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from precision_tool.lib.io import urls
from precision_tool.lib.io.files import environment
from precision_tool.lib.present.whole import Prose

#: The colours that reports name, for dark and light backgrounds; `plain` is without any.
THEMES: dict[str, dict[str, str]] = {
    "dark": {},
    "light": {"yellow": "dark_orange3", "green": "dark_green", "cyan": "blue", "dim": "grey46"},
    "plain": {},
}


#: Columns of output that goes to a file or a pipe, as config.example.py says.
NO_TERMINAL_WIDTH = 80


class _WithUrls:
    """A stream that gets URLs for the paths that stand for them, which are as long."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(urls.shown(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
            no_color=theme == "plain" or environment("NO_COLOR") != "",
        )
        if not width and not self.is_terminal:
            # Not that of a terminal that only stdin or stderr is.
            columns = environment("COLUMNS")
            self.width = int(columns) if columns.isdecimal() and int(columns) else NO_TERMINAL_WIDTH

    @property
    def file(self) -> IO[str]:
        """Where it is printed, with URLs in the place of the paths that stand for them."""
        stream = super().file
        return stream if isinstance(stream, _WithUrls) else cast("IO[str]", _WithUrls(stream))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """As rich's, but nothing is cut at the end of a line."""
        super().print(*objects, crop=crop, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, but text that says nothing else does not break words."""
        if isinstance(renderable, Text) and not (renderable.overflow or (options or self.options).overflow):
            renderable = Prose(renderable)
        return super().render(renderable, options)

    def on_broken_pipe(self) -> None:
        """Raises the error rich is handling; rich itself would exit with 1, which here means findings."""
        raise BrokenPipeError
