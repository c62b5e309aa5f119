"""Noise floors as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_tool.lib.compare.noise import FOLDER, Noise, find_noise, noise_path, read_noise, with_noise, write_noise
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.model.comparison import Pair
from precision_tool.lib.model.table import Row, Table


def row(op: str, slot: str) -> Row:
    return Row(pair=Pair(index=0, op_name=op, op_type="", npu_ops=(op,), golden_ops=(op,), slot=slot))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = noise_path(tmp_path, "20260302093000")
    rows = [
        Noise(op_name="a/b", slot="output:0", distance=0.25, max_absolute_error=3.0, cosine=0.97),
        Noise(op_name="c", slot="input:1", distance=0.0),
        Noise(op_name="d", slot="output:0", distance=float("inf")),
    ]
    write_noise(path, rows)
    floor = read_noise(path)
    assert (floor.of("a/b", "output:0"), floor.of("a_b", "output:0"), floor.of("c", "input:1")) == (0.25, 0.25, 0.0)
    assert floor.of("c", "output:0") is None
    assert floor.of("d", "output:0") is None
    named = with_noise(Table((row("a/b", "output:0"), row("x", "output:0"), row("a/b", ""))), floor)
    assert [one.noise for one in named] == [0.25, None, None]
    table = Table((row("a", ""),))
    assert with_noise(table, None) is table


def test_the_newest(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no noise floor yet"):
        find_noise("", [tmp_path])
    data = tmp_path / "precision_data"
    data.mkdir()
    with pytest.raises(DataNotFoundError, match=r"precision_data: no noise floor .* in this folder") as caught:
        find_noise(str(data), [])
    assert "random -lt" in caught.value.hint
    for folder, time in ((tmp_path / "a", "20260302093000"), (data / "temp", "20260302093001")):
        write_noise(noise_path(folder / FOLDER, time), [])
    (tmp_path / "a" / FOLDER / "other.csv").write_text("x")
    newest = str(data / "temp" / FOLDER / "noise_floor_20260302093001.csv")
    assert find_noise("", [tmp_path / "a", data / "temp"]) == newest
    for folder in (data, data / "temp", data / "temp" / FOLDER):
        assert find_noise(str(folder), [tmp_path / "a"]) == newest
    assert find_noise(str(tmp_path / "x.csv"), []) == str(tmp_path / "x.csv")


def test_a_tensor_of_several_steps_has_its_largest_noise(tmp_path: Path) -> None:
    path = noise_path(tmp_path, "20260302093000")
    write_noise(path, [Noise(op_name="a", slot="output:0", distance=distance) for distance in (0.1, 0.5, 0.0)])
    assert read_noise(path).distances == {("a", "output:0"): 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "column Op is missing"), ("Op,Slot\na,b\n", "column RelativeEuclideanDistance"),
     ("Op,Slot,RelativeEuclideanDistance\na,output:0,much\n", "line 2"),
     ("Op,Slot,RelativeEuclideanDistance\na,output:0\n", "line 2")],
)  # fmt: skip
def test_what_is_none(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(FormatError, match=words) as caught:
        read_noise(str(tmp_path / "x.csv"))
    assert caught.value.hint
