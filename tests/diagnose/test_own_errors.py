"""The table of own errors over what is allowed."""

from __future__ import annotations

from pathlib import Path

from faults import negated
from own_errors import figures_of, judged, lines
from tiny_network import layers


def test_the_ops_of_a_clean_run_keep_to_what_is_allowed(tmp_path: Path) -> None:
    data = layers().write(tmp_path / "precision_data")
    found = figures_of("right", judged(data, str(tmp_path / "work")))
    assert (found.ops, found.recomputed, found.wrong, found.doubtful) == (12, 11, 0, 0)  # all but the random numbers
    assert len(found.ratios) == 11
    assert 0 < max(found.ratios.values()) < 1


def test_a_wrong_op_stands_out(tmp_path: Path) -> None:
    data = layers().with_part("one/MatMul", wrong=negated).write(tmp_path / "precision_data", benchmark=False)
    found = figures_of("wrong", judged(data, str(tmp_path / "work")))
    assert found.wrong == 1
    assert {op for op, ratio in found.ratios.items() if ratio > 1} == {"one/MatMul"}
    head, row, total, _, *classes = lines([found])
    assert head.split()[:4] == ["data", "ops", "recomputed", "wrong"]
    assert row.split()[:4] == ["wrong", "12", "91.7%", "1"]
    assert row.endswith("one/MatMul")
    assert total == "all: 11 of 12 ops recomputed (91.7%)"
    assert sum(int(line.split()[-2]) for line in classes) == 11
    assert classes[-1].split() == ["above", "1", "1", "9.09%"]
