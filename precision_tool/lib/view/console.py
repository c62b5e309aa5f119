"""The console that everything a person sees is printed on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from precision_tool.lib.data.overview import DataOverview, RecordedOverview, RunOverview
from precision_tool.lib.data.workspace import shown_path
from precision_tool.lib.io import urls
from precision_tool.lib.io.files import environment
from precision_tool.lib.messages import Message
from precision_tool.lib.model.wording import spans
from precision_tool.lib.view.notebook import in_notebook
from precision_tool.lib.view.tables import Prose
from precision_tool.lib.view.text import LabelledLines, Line, byte_size, label, safe, shown, whole_path

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
    """A console that leaves it to the command line what a reader means that has gone (`| head`).

    Attributes
    ----------
    on_progress : callable, optional
        Gets progress in place of a bar: what is done, how much of it and of how much, and the unit.
    """

    on_progress: Callable[[str, int, int, str], None] | None = None

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
            # In a notebook it prints as into a file, although the streams of kernels say that they are terminals.
            force_jupyter=False,
            force_terminal=False if in_notebook() else None,
        )
        if not width and not self.is_terminal:
            # Not that of a terminal that only stdin or stderr is.
            columns = environment("COLUMNS")
            self.width = int(columns) if columns.isdecimal() and int(columns) else NO_TERMINAL_WIDTH

    @property
    def file(self) -> IO[str]:
        """The output stream, with URLs in the place of the paths that stand for them."""
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


# --- progress: a bar on a terminal, now and then a plain line otherwise, never on standard output ---


_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 10.0


class ProgressReport:
    """Call it with (done, total), in bytes; `counting` gives the same for another unit.

    It draws from the caller's thread, so that workers can be forked.
    """

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._unit = "bytes"
        self._started = self._last = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressReport:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                _SpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                auto_refresh=False,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def counting(self, unit: str) -> Callable[[int, int], None]:
        """Return what is called with (done, total) in a unit: "bytes", "ops"."""
        return partial(self, unit=unit)

    def __call__(self, done: int, total: int, unit: str = "bytes") -> None:
        if isinstance(self._console, ReportConsole) and self._console.on_progress is not None:
            self._console.on_progress(self._what, done, total, unit)
            return
        now = time.monotonic()
        is_new = done == 0 or unit != self._unit
        if is_new:
            self._unit, self._started = unit, now
        if self._bar is not None:
            if self._task is None or is_new:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(self._what, total=max(total, 1), unit=unit)
            if now - self._last >= _REDRAW_SECONDS or done >= total:
                self._bar.update(self._task, completed=done, refresh=True)
                self._last = now
        elif now - self._last >= _LINE_SECONDS and total:
            self._last = now
            rate = done / (now - self._started) if now > self._started else 0.0
            line = Message(
                "screen.view.progress.line", what=self._what, percent=100 * done // total, total=_amount(total, unit),
                rate=_amount(rate, unit), left=f"{(total - done) / rate:.0f}" if rate else "",
            )  # fmt: skip
            self._console.print(shown(line), highlight=False)


class _SpeedColumn(ProgressColumn):
    """Progress per second, in the unit of the task."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        rate = "?" if speed is None else f"{_amount(speed, task.fields['unit'])}/s"
        return Text(rate, style="progress.data.speed")


def _amount(count: float, unit: str) -> str:
    """A number of bytes as 1.5 GB, of others as 120 ops or 1.5 ops."""
    if unit == "bytes":
        return byte_size(count)
    return f"{count:.0f} {unit}" if count >= 10 or count == int(count) else f"{count:.1f} {unit}"


# --- banner of the prompt ---


_COLLECT = (
    ("npu/debug_0/dump", Message("screen.view.banner.npu_dump")),
    ("npu/debug_0/graph", Message("screen.view.banner.npu_graph")),
    ("tf/dump", Message("screen.view.banner.benchmark")),
)


def _run_line(run: RunOverview) -> Text:
    dumps = len(run.dumps)
    message = Message(
        "screen.view.banner.run", files=run.dump_files if dumps else None, folders=dumps if dumps > 1 else None,
        graphs=run.graph_files or None,
    )  # fmt: skip
    return shown(message, "" if dumps and run.graph_files else "yellow")


def _recorded_line(side: RecordedOverview) -> Text:
    if side.problem is not None:
        return shown(side.problem, "yellow")
    message = Message(
        "screen.view.banner.recorded", framework=side.framework, level=side.level, task=side.task,
        steps=spans(side.steps) or None, ranks=spans(side.ranks) or None,
        processes=side.processes if side.processes > 1 else None,
        entries=side.entries, tensors=side.tensors or None,
    )  # fmt: skip
    return shown(message, fields={"framework": "bold"})


def _next_step(overview: DataOverview) -> Text:
    npu, golden = overview.recorded
    has_dump = npu is not None or any(run.dumps for run in overview.runs)
    if overview.newest_result:
        steps = ("ac", "show", "ac -c", "anew")
    elif npu is not None and golden is None:
        steps = ("ac", "alone", "ac -c -rt DIR", "elsewhere")
    elif has_dump and (
        golden is not None or overview.benchmark_tensors or sum(bool(run.dumps) for run in overview.runs) > 1
    ):
        steps = ("ac -c", "compare", "help", "help")
    elif all(overview.pytorch_files) and not has_dump:
        steps = ("ac -c", "compare", "ls", "list")
    elif has_dump:
        steps = ("ls", "list", "vc -rt DIR", "elsewhere")
    else:
        steps = ("graphs", "graphs", "help", "help")
    first, does, second, also = steps
    message = Message(
        "screen.view.banner.step", first=first, does=Message(f"screen.view.banner.does.{does}"), second=second,
        also=Message(f"screen.view.banner.does.{also}"),
    )  # fmt: skip
    return shown(message, fields={"first": "bold cyan", "second": "bold cyan"})


def _collect(overview: DataOverview) -> RenderableType:
    """Return where to put the data that an empty folder lacks."""
    state = Message("screen.view.banner.empty") if overview.exists else Message("screen.view.banner.missing")
    path = safe(shown_path(overview.root))
    head = shown(Message("screen.view.banner.nothing", path=path, state=state), fields={"state": "yellow"})
    head.no_wrap, head.overflow = True, "ignore"
    table = Table.grid(padding=(0, 2))
    for place, content in _COLLECT:
        table.add_row(Text(f"  {place}", style="bold"), shown(content))
    other = Message("screen.view.banner.other", data="data DIR", demo="demo", help="help")
    commands = shown(other, fields=dict.fromkeys(("data", "demo", "help"), "bold cyan"))
    return Group(head, shown(Message("screen.view.banner.collect")), table, commands)


def banner(overview: DataOverview) -> RenderableType:
    """A few lines: the data folder, what was found in it, what to type."""
    if overview.is_empty:
        return _collect(overview)
    return LabelledLines([*_contents(overview), (label("next"), _next_step(overview))])


def contents(overview: DataOverview) -> RenderableType:
    """The same for Python, where methods are called."""
    if overview.is_empty:
        return _collect(overview)
    calls = {"diagnose": ".diagnose()", "compare": ".compare()"}
    step = shown(Message("screen.view.notebook.next", **calls), fields=dict.fromkeys(calls, "bold cyan"))
    return LabelledLines([*_contents(overview), (label("next"), step)])


def _contents(overview: DataOverview) -> list[Line]:
    rows: list[Line] = [(label("data"), whole_path(overview.root))]
    for name, side in zip(("npu", "benchmark"), overview.recorded, strict=True):
        if side is not None:
            rows += [(label(name), _recorded_line(side)), ("", whole_path(shown_path(side.root)))]
    rows += [(f"debug_{run.number}", _run_line(run)) for run in overview.runs]
    if overview.graphs_here:
        rows.append((label("graphs"), shown(Message("screen.view.banner.graphs", count=overview.graphs_here))))
    tensors = overview.benchmark_tensors
    if any(overview.pytorch_files):
        npu, golden = overview.pytorch_files
        rows.append((label("pytorch"), shown(Message("screen.view.banner.pytorch", npu=npu, benchmark=golden))))
    if tensors or (
        not overview.recorded[1] and (overview.runs or overview.recorded[0] or not any(overview.pytorch_files))
    ):
        runs = overview.benchmark_runs or None
        benchmark = Message("screen.view.banner.tensors", tensors=tensors, runs=runs)
        none = Message("screen.view.none")
        rows.append((label("benchmark"), shown(benchmark) if tensors else shown(none, "yellow")))
    if overview.overflow_files:
        status_files = Message("screen.view.banner.status_files", count=overview.overflow_files)
        rows.append((label("overflow"), shown(status_files)))
    if overview.newest_result:
        rows.append((label("result"), whole_path(shown_path(overview.newest_result))))
    return rows


def command_list(families: Mapping[str, Sequence[tuple[str, str]]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for number, (family, commands) in enumerate(families.items()):
        if number:
            table.add_row()
        table.add_row(Text(family, style="bold"))
        for name, help_ in commands:
            table.add_row(Text(f"  {name}", style="cyan"), Text(help_))
    table.add_row()
    table.add_row(Text("help COMMAND", style="cyan"), shown(Message("screen.view.banner.help")))
    return table
