"""The quick table draws what rich draws, at every width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precision_tool.lib.view import tables as long_table
from precision_tool.lib.view.tables import LongTable

ROWS = st.lists(
    st.tuples(*[st.text("ab /_-é漢\n", max_size=40).map(lambda text: "\n".join(text.split("\n")[:3]))] * 3), min_size=1
)


def drawn(kind: type[Table], rows: list[tuple[str, ...]], width: int) -> list[str]:
    table = kind(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("type", overflow="fold", max_width=22)
    table.add_column("name", overflow="fold", ratio=3)
    table.add_column("outputs", overflow="fold", ratio=1)
    table.add_column("dump", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(str(number), *map(Text, row), "yes")
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table, crop=False)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 80, 200])
@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_it_looks_as_rich_draws_it(width: int, rows: list[tuple[str, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_table, "_MANY", 0)
        quick = drawn(LongTable, rows, width)
    assert quick == drawn(Table, rows, width)
