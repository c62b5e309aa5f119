"""Passports of runs as they are read: what the writer wrote, and whatever somebody made up."""

from __future__ import annotations

import copy
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_tool.lib.diagnose.passports import Optimizer, TensorHash, parse_passport, passport_above, read_passport
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError

HASH = "0123456789abcdef" * 4
#: Written out by hand, from FORMATS.md.
DOCUMENT: dict[str, Any] = {
    "format": "precision_tool passport", "version": 1, "side": "npu", "framework": "tensorflow",
    "written": "2026-03-02T09:30:00Z",
    "versions": {"python": "3.7.5", "tensorflow": "1.15.0", "cann": "7.0.0"},
    "environment": {"DEVICE_ID": "0"},
    "seeds": {"helper": 0, "graph": None, "ops_without_seed": 2},
    "switches": {"precision_mode": "allow_mix_precision"},
    "optimizers": [{"type": "ApplyAdam", "hyperparameters": {"lr": 0.5, "use_nesterov": False}, "variables": 3}],
    "variables": [{"name": "w", "type": "float32", "shape": [3, 2], "sha256": HASH}],
    "batch": [{"name": "x:0", "type": "float32", "shape": [], "sha256": HASH}],
    "left_out": {"never": "has no value"},
}  # fmt: skip


def changed(path: str, value: object) -> str:
    document = copy.deepcopy(DOCUMENT)
    *parts, last = path.split(".")
    at: Any = document
    for part in parts:
        at = at[int(part)] if part.isdigit() else at[part]
    at[last] = value
    return json.dumps(document)


def test_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "passport.json"
    path.write_text(json.dumps(DOCUMENT | {"new_key": [1]}), "utf-8")
    found = read_passport(str(path))
    assert (found.side, found.path, found.versions["cann"]) == ("npu", str(path), "7.0.0")
    assert found.variables == {"w": TensorHash(type="float32", shape=(3, 2), sha256=HASH)}
    assert found.batch["x:0"].shape == ()
    adam = Optimizer(type="ApplyAdam", hyperparameters={"lr": 0.5, "use_nesterov": False}, variables=3)
    assert found.optimizers == (adam,)
    assert found.seeds == {"helper": 0, "graph": None, "ops_without_seed": 2}
    with pytest.raises(DataNotFoundError):
        read_passport(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"format": NaN}', "NaN is no JSON"),
        ("[]", "not the passport"),
        ("{}", "not the passport"),
        (changed("version", 2), "version '2' of the passport; this release reads version 1"),
        (changed("version", "1"), "version '1'"),
        (changed("side", 3), "'side': must be a text"),
        (changed("versions", []), "'versions': must be an object"),
        (changed("versions.cann", "x" * 5000), "at most 4096 characters"),
        (changed("seeds.helper", [1]), "'seeds.helper': must be a text"),
        (changed("seeds.helper", 2**63), "too large"),
        (changed("optimizers", {}), "'optimizers': must be a list"),
        (changed("optimizers.0.variables", -1), "must be a whole number"),
        (changed("optimizers.0.hyperparameters.lr", "@").replace('"@"', "1e999"), "must be finite"),
        (changed("variables", [1]), "must be a list of objects"),
        (changed("variables.0.shape", None), "'variables.w': has no shape"),
        (changed("variables.0.shape", [True]), "must be a whole number"),
        (changed("variables.0.shape", [1] * 65), "has no shape"),
        (changed("variables.0.sha256", "f" * 63), "has no SHA-256"),
        (changed("variables.0.name", None), "'variables.name': must be a text"),
        (changed("batch", DOCUMENT["batch"] * 2), "'batch.x:0': listed twice"),
        ('{"format": "precision_tool passport", "version": 1' + "0" * 5000 + "}", "damaged"),
    ],
)
def test_what_is_damaged_is_named(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_passport(text, "passport.json")


KEYS = st.sampled_from([*DOCUMENT, "name", "shape", "sha256", "hyperparameters"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@given(st.dictionaries(KEYS, ANYTHING))
def test_whatever_stands_there(document: dict[str, Any]) -> None:
    """A passport or an error of the user's, and nothing else."""
    head = {"format": "precision_tool passport", "version": 1}
    for text in (json.dumps(document), json.dumps(document | head)):
        with suppress(FormatError):
            assert parse_passport(text).path == "passport.json"


def test_what_is_no_small_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "passport.json"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(FormatError):
        read_passport(str(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FormatError):
        read_passport(str(path))


def test_the_passport_of_a_folder_of_dump_files(tmp_path: Path) -> None:
    leaf = tmp_path / "npu/debug_1/dump/20260302093000/0/model/1/0"
    leaf.mkdir(parents=True)
    (tmp_path / "npu/passport.json").write_text('{"name": "of somebody else"}', "utf-8")
    assert passport_above(str(leaf)) is None
    own = tmp_path / "npu/debug_1/passport.json"
    own.write_text(json.dumps(DOCUMENT), "utf-8")
    assert passport_above(str(leaf)) == str(own)
    assert passport_above(str(tmp_path / "npu/debug_0/dump")) is None
