"""The cosines by op: from result files, and from cache files that nobody trusts."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import pytest

from precision_tool.lib.compare import result_files as cosines
from precision_tool.lib.compare.result_csv import OutputFigures, read_output_figures
from precision_tool.lib.compare.result_files import Cosines, result_cosines, together
from precision_tool.lib.io import cache as cache_files
from precision_tool.lib.io.cache import CacheFiles
from precision_tool.lib.io.files import signature_of
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError


def write_result(path: Path, *rows: tuple[str, str]) -> str:
    lines = ["Index,NPUDump,TensorIndex,Shape,CosineSimilarity", *(f'0,a,{name},"[1,2]",{cos}' for name, cos in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_lowest_of_the_outputs_and_nan_lowest_of_all(tmp_path: Path) -> None:
    path = write_result(
        tmp_path / "result_20260101000000.csv",
        ("a:output:0", "0.9"), ("a:output:1", "0.5"), ("a:input:0", "0.1"), ("b/c:output:0", "nan"),
        ("b/c:output:1", "0.2"), ("c:output:0", "NaN"), ("NaN", "NaN"), ("d:1:output:0", "-0.25"),
    )  # fmt: skip
    with open(path, "a") as file:
        file.write("0,cut off\n")
    found = read_output_figures(path).cosines
    assert set(found) == {"a", "b/c", "d:1"}
    assert (found["a"], found["d:1"]) == (0.5, -0.25)
    assert isnan(found["b/c"])


def test_of_several_files_the_lowest(tmp_path: Path) -> None:
    first = write_result(tmp_path / "1.csv", ("a:output:0", "0.9"), ("b:output:0", "0.1"), ("c:output:0", "nan"))
    second = write_result(tmp_path / "2.csv", ("a:output:0", "0.8"), ("b:output:0", "nan"), ("c:output:0", "0.1"))
    found = together(result_cosines([first, second], CacheFiles()))
    assert found["a"] == 0.8
    assert isnan(found["b"])
    assert isnan(found["c"])


def test_names_are_found_in_either_spelling() -> None:
    found = Cosines([("a/b", 0.5), ("x_y", 0.25)])
    assert (found["a/b"], found["a_b"], found["x_y"], found["x/y"]) == (0.5, 0.5, 0.25, 0.25)
    assert (found.get("z"), len(found), list(found)) == (None, 2, ["a/b", "x_y"])
    alike = Cosines([("a/b", 0.5), ("a_b", 0.25)])
    assert (alike["a/b"], alike["a_b"]) == (0.5, 0.25)


def test_what_is_no_result_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError):
        result_cosines([str(tmp_path / "none.csv")], CacheFiles())
    bad = write_result(tmp_path / "bad.csv", ("a:output:0", "much"))
    with pytest.raises(FormatError, match="line 2 cannot be read"):
        result_cosines([bad], CacheFiles())


@pytest.mark.parametrize(
    "payload",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'{"a": "x"}',
        b'{"a": 1}',
        b"[" * 20_000,
        b"\xff",
        b"[1, {}]",
        b'[{"a": "x"}, {}]',
        b'[{"a": 1}, {}]',
        b'[{"a": true}, {}]',
        b'[{"a": 0.1}, {"a": [1.0]}]',
        b'[{}, {"a": 1.0}]',
    ],
    ids=repr,
)
def test_a_cache_file_serves_only_when_it_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payload: bytes | None
) -> None:
    monkeypatch.setattr(cache_files, "LARGE", 1)
    monkeypatch.setattr(cache_files, "may_change_unseen", lambda *times: False)
    path = write_result(tmp_path / "r.csv", *[("a:output:0", "0.5"), ("b:output:0", "nan")] * 2000)
    cache = CacheFiles(lambda: [tmp_path / "cache"])
    (first,) = result_cosines([path], cache)
    if payload is None:
        monkeypatch.setattr(cosines, "read_output_figures", lambda _: OutputFigures({"read again": 1.0}, {}))
    else:
        signature = signature_of(path)
        assert signature is not None
        cache.write(path, signature, cosines._FIGURES_VERSION, payload)
    (again,) = result_cosines([path], cache)
    assert json.dumps(dict(again)) == json.dumps(dict(first)) == '{"a": 0.5, "b": NaN}'
