"""Histograms drawn with characters: a labelled line a bin, of blocks, or of `#` where the terminal has no blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log1p

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

#: Parts of a cell in eighths.
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
#: Counts that differ by more than this factor are drawn as logarithms.
_LOG_FROM = 200
_WIDEST = 60


@dataclass(frozen=True)
class Bar:
    """A bar of a share (0 to 1) of the width there is. Any share above zero is seen."""

    share: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        if options.ascii_only:
            yield Text("#" * max(round(self.share * width), self.share > 0), style="cyan", no_wrap=True)
            return
        eighths = max(round(self.share * width * 8), int(self.share > 0))
        rest = _EIGHTHS[eighths % 8] if eighths % 8 else ""
        yield Text(_FULL * (eighths // 8) + rest, style="cyan", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, min(options.max_width, _WIDEST))


def edges(low: float, high: float, bins: int) -> list[float]:
    """The borders of equal bins over [low, high], none of which is beyond one that follows."""
    inner = (low * ((bins - number) / bins) + high * (number / bins) for number in range(1, bins))
    # Rounding may lead out of so narrow a range, that of a constant among them.
    return list(accumulate((low, *(min(max(edge, low), high) for edge in inner), high), max))


def is_logarithmic(counts: Sequence[int]) -> bool:
    """True if the counts differ so much that small ones would not be seen beside large ones."""
    some = [count for count in counts if count]
    return bool(some) and max(some) > _LOG_FROM * min(some)


def histogram(labels: Sequence[tuple[str, str]], counts: Sequence[int], title: str) -> Table:
    """One line a bin: its borders (or one word), a bar, its count. `title` says of what."""
    logarithmic = is_logarithmic(counts)
    sizes = [log1p(count) if logarithmic else count for count in counts]
    largest = max(sizes, default=0) or 1
    table = Table(
        title=title + (" (bars: logarithms of the counts)" if logarithmic else ""),
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        padding=(0, 1, 0, 0),
        expand=False,
    )
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for (low, high), count, size in zip(labels, counts, sizes, strict=True):
        between = Text("to" if low and high else "", style="dim")
        table.add_row(Text(low), between, Text(high), Bar(size / largest), Text(str(count)))
    return table
