"""The user's own metrics: what is a metric, what its values may be, and what becomes of mistakes in it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from precision_tool.lib.compare.custom_metrics import CustomValues, apply_metrics, load_metrics
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError, UsageError


def written(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text, "utf-8")
    return str(path)


def asked(folder: Path, text: str) -> CustomValues:
    """The values of a file's metrics for (3, 4) and (3, 6)."""
    metrics = load_metrics(written(folder, text))
    return apply_metrics(metrics, np.array([3, 4], np.float32), np.array([3, 6], np.float32))


def test_every_public_compare_function_is_a_metric(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "import math\n"
        "compare_all = 3\n"
        "def helper(x): return float(x)\n"
        "def _compare_hidden(x, y): return 1\n"
        "def compare_worst(x, y): return helper(abs(x - y).max())\n"
        "def compare_name(x, y): return 'two\\nlines' + ' of text'\n",
    )
    metrics = load_metrics(path)
    assert metrics.names == ("compare_worst", "compare_name")
    assert pickle.loads(pickle.dumps(metrics)) == metrics
    values = apply_metrics(metrics, np.array([1.0, 4.0]), np.array([1.0, 1.5]))
    assert values == CustomValues({"compare_worst": 2.5, "compare_name": "two lines of text"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.py"]  # no __pycache__ beside it


def test_a_list_names_others(tmp_path: Path) -> None:
    text = "METRICS = ['size']\ndef size(x, y): return x.size\ndef compare_not(x, y): return 0\n"
    assert asked(tmp_path, text) == CustomValues({"size": 2})


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ("3", 3), ("2.5", 2.5), ("float('inf')", np.inf), ("x[0]", 3.0), ("x.sum() > 1", "True"), ("True", "True"),
        ("'=1+1'", "=1+1"), ("''", ""), ("'x' * 900", "x" * 199 + "…"), ("y.max().reshape(1)", 6.0),
        (r"'\x1b[31m\u202ered'", r"\x1b[31m\u202ered"), ("2**64 - 1", 2**64 - 1), ("-3 * 10**300", -3e300),
        ("10**400", "1" + "0" * 78 + "…"), ("-(10**9000)", "-0x"), ("'\\x1b' * 900", r"\x1b" * 49 + r"\x1…"),
    ],
)  # fmt: skip
def test_values(tmp_path: Path, result: str, value: object) -> None:
    found = asked(tmp_path, f"def compare_it(x, y): return {result}\n")
    if value == "-0x":  # of so many digits that Python refuses to write them
        text = found.values["compare_it"]
        assert isinstance(text, str)
        assert text.startswith("-0x")
        assert len(text) == 80
    else:
        assert found == CustomValues({"compare_it": value})  # type: ignore[dict-item]


def test_nan_is_a_value(tmp_path: Path) -> None:
    (value,) = asked(tmp_path, "def compare_it(x, y): return float('nan')\n").values.values()
    assert isinstance(value, float)
    assert np.isnan(value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("return x", "TypeError: it returned a ndarray, not a number or a text"),
        ("return None", "TypeError: it returned a NoneType, not a number or a text"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ValueError", "ValueError"),
        ("x[0] = 1; return 1", "ValueError: assignment destination is read-only"),
        ("raise KeyError('a' * 900)", "KeyError: 'aaa"),
    ],
)
def test_a_mistake_is_a_reason_and_spares_the_others(tmp_path: Path, body: str, reason: str) -> None:
    values = asked(tmp_path, f"def compare_bad(x, y): {body}\ndef compare_good(x, y): return 7\n")
    assert values.values == {"compare_bad": None, "compare_good": 7}
    ((name, why),) = values.errors
    assert name == "compare_bad"
    assert why.startswith(reason)
    assert len(why) <= 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has no metrics"),
        ("METRICS = []", "it has no metrics"),
        ("METRICS = 3", "it has no metrics"),
        ("METRICS = ['gone']", "'gone', which is no function"),
        ("METRICS = [3]", "3, which is no function"),
        ("def compare_x(x, y:", "SyntaxError"),
        ("import no_such_module_anywhere", "ModuleNotFoundError"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("METRICS = ['Shape']\ndef Shape(x, y): return 1", "Shape is the name of another column"),
    ],
)
def test_files_that_are_no_good(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load_metrics(written(tmp_path, text), taken=("Shape",))
    assert str(tmp_path / "mine.py") in caught.value.message


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no such file"):
        load_metrics(str(tmp_path / "none.py"))
    with pytest.raises(FormatError, match="a folder"):
        load_metrics(str(tmp_path))


def test_an_edited_file_is_run_anew(tmp_path: Path) -> None:
    assert asked(tmp_path, "def compare_a(x, y): return 1\n").values == {"compare_a": 1}
    assert asked(tmp_path, "def compare_a(x, y): return 2\n").values == {"compare_a": 2}
