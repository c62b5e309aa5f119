"""Small tensors that stay in memory for the next pairs: always right, and quick however many there are."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from precision_tool.lib.engine.budget import Budget
from precision_tool.lib.engine.opened import OpenTensors
from precision_tool.lib.model.tensor import Tensor


class Ordered(OrderedDict[object, object]):
    """What must not be gone through for each tensor."""

    def items(self) -> NoReturn:
        raise AssertionError("all tensors in memory are looked at")


def test_what_is_in_memory_is_the_tensor_however_often_it_was_filled(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(4000)
    path = tmp_path / "file"
    path.write_bytes(content)
    opened = OpenTensors(replace(Budget(), stored_bytes=256, stored_tensor=100))
    opened._places = Ordered()  # type: ignore[assignment]
    choice = random.Random(2)
    found = 0
    for _ in range(3000):
        start, size = choice.choice([0, 40, 120, 400, 1200, 2400]), choice.randint(1, 110)
        tensor = Tensor(path=str(path), offset=start, nbytes=size, dtype="uint8", shape=(size,))
        opened.keep(tensor)
        stored = opened.stored(tensor)
        assert (stored is None) == (size > 100)
        other = replace(tensor, offset=choice.choice([0, 40, 120, 400, 1200, 2400]))
        for one in (tensor, other):
            stored = opened.stored(one)
            if stored is not None:
                found += one is other
                assert bytes(stored)[: one.nbytes] == content[one.offset : one.offset + one.nbytes]
    assert found > 100
