"""`scripts/bench ranks` goes through a study's real steps: in a small form here, so that what it stands on is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_ranks import Size, client, fill, statistics


def test_a_study_of_made_up_ranks_finds_the_rank_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = Size(ranks=8, tensors=300, all_reduces=4)
    rank, culprit = size.culprit
    name, _ = size.op(culprit)
    study = tmp_path / "study"
    study.mkdir()

    fill(size, str(study))
    client(size, str(study), str(tmp_path / "study.parquet"))
    statistics(size)

    said = capsys.readouterr().out
    assert f"found: ({rank}, {name!r})" in said
    assert f"{8 * 300:,} rows" in said
    assert (tmp_path / "study.parquet").stat().st_size > 0
