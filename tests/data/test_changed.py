"""Records with changed fields: what `dataclasses.replace` gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from precision_tool.lib.model.comparison import Pair, Status
from precision_tool.lib.model.records import changed
from precision_tool.lib.model.table import Row

PAIR = Pair(index=3, op_name="conv1", op_type="Conv2D", npu_ops=("conv1",), golden_ops=("conv1", "relu1"))


@pytest.mark.parametrize(
    ("record", "values"),
    [
        (PAIR, {}),
        (PAIR, {"slot": "input:0"}),
        (PAIR, {"status": Status.LAYOUT, "reason": "odd", "shape": (2, 3)}),
        (Row(pair=PAIR), {"custom": {"mine": 1.0}, "reason": ""}),
    ],
)
def test_it_is_what_replace_gives(record: Any, values: dict[str, Any]) -> None:
    before = repr(record)
    assert changed(record, **values) == replace(record, **values)
    assert repr(record) == before


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        changed(PAIR, colour="red")
