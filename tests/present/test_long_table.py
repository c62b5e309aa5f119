"""The quick table draws what the table of names draws, at every width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from precision_tool.lib.present import long_table
from precision_tool.lib.present.long_table import LongTable
from precision_tool.lib.present.whole import NameTable

ROWS = st.lists(
    st.tuples(*[st.text("ab /_-é漢\n", max_size=40).map(lambda text: "\n".join(text.split("\n")[:3]))] * 3), min_size=1
)


def drawn(kind: type[NameTable], rows: list[tuple[str, ...]], width: int, expand: bool) -> list[str]:
    table = kind(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=expand)
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
@pytest.mark.parametrize("expand", [True, False])
@given(rows=ROWS)
@settings(max_examples=30, deadline=None)
def test_it_looks_as_the_table_of_names(width: int, expand: bool, rows: list[tuple[str, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_table, "_MANY", 0)
        quick = drawn(LongTable, rows, width, expand)
    assert quick == drawn(NameTable, rows, width, expand)
