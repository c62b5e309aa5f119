"""Passports of runs as they are read: what the writer wrote, and whatever somebody made up."""

from __future__ import annotations

import copy
import io
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import tool
from hypothesis import given
from hypothesis import strategies as st
from tiny_network import layers
from training_side import REPO

from precision_tool import open_data
from precision_tool.lib.diagnose.passports import (
    Optimizer,
    Passport,
    TensorHash,
    compare_passports,
    parse_passport,
    passport_above,
    read_passport,
)
from precision_tool.lib.messages import render, use_language
from precision_tool.lib.messages.errors import DataNotFoundError, FormatError
from precision_tool.lib.training.passport import Passport as Writer
from precision_tool.lib.training.passport import fingerprint
from precision_tool.lib.view.console import ReportConsole
from precision_tool.lib.view.findings import passport_lines

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


# --- what differs between two passports: each thing once, in one line, and nothing that need not agree ---


ONE, OTHER = "1" * 64, "2" * 64


def tensor(digest: str = ONE, kind: str = "float32", *shape: int) -> TensorHash:
    return TensorHash(type=kind, shape=shape, sha256=digest)


def passport(side: str = "npu", **changes: Any) -> Passport:
    adam = Optimizer(type="ApplyAdam", hyperparameters={"lr": 0.5, "beta1": 0.9}, variables=2)
    return replace(
        Passport(
            path=f"{side}.json", side=side, written="",
            versions={"python": "3.7.5", "tensorflow": "1.15.0", "numpy": "1.18.0"},
            environment={"OMP_NUM_THREADS": "8"}, switches={}, seeds={"helper": 0, "graph": 0}, optimizers=(adam,),
            variables={"a": tensor(), "b": tensor()}, batch={"x:0": tensor()}, left_out={},
        ),
        **changes,
    )  # fmt: skip


def texts(npu: dict[str, Any], other: dict[str, Any]) -> list[str]:
    pair = compare_passports(passport(**npu), passport("benchmark", **other))
    return [f"{one.topic}: {render(one.message)}" for one in pair.differences]


def test_two_runs_of_one_thing() -> None:
    assert texts({}, {}) == []
    npu = {
        "versions": {"python": "3.7.9", "tensorflow": "1.15.0", "numpy": "1.18.0", "cann": "7.0.0", "chip": "910B"},
        "environment": {"OMP_NUM_THREADS": "8", "DEVICE_ID": "3", "ENABLE_HF32_EXECUTION": "0"},
        "switches": {"precision_mode": "must_keep_origin_dtype", "allow_hf32": "off", "dump_mode": "all"},
    }
    assert texts(npu, {}) == [], "what only an NPU has, and what keeps the script's types"


@pytest.mark.parametrize(
    ("npu", "other", "lines"),
    [
        (
            {"variables": {"a": tensor(OTHER), "b": tensor(), "c": tensor()}},
            {},
            ["variables: 1 of 2 variables has other values: a", "variables: 1 variable only on the NPU side: c"],
        ),
        (
            {"batch": {"x:0": tensor(OTHER, "float16", 2)}},
            {},
            ["batch: 1 of 1 fed tensor has other values: x:0 (x:0 is float16 [2] and float32 [])"],
        ),
        ({"variables": {}}, {}, []),
        ({"seeds": {"helper": 0, "graph": None}}, {}, ["seeds: seed of the graph: NPU not set, benchmark 0"]),
        (
            {},
            {"optimizers": (Optimizer(type="ApplyMomentum", hyperparameters={}, variables=2),)},
            ["optimizer: optimizer: NPU ApplyAdam, benchmark ApplyMomentum"],
        ),
        (
            {},
            {"optimizers": (Optimizer(type="ApplyAdam", hyperparameters={"lr": 0.25, "beta1": 0.9}, variables=2),)},
            ["optimizer: lr of ApplyAdam: NPU 0.5, benchmark 0.25"],
        ),
        (
            {"switches": {"precision_mode": "allow_mix_precision", "allow_hf32": "on"}},
            {},
            [
                "precision: precision_mode: NPU allow_mix_precision, benchmark not set",
                "precision: allow_hf32: NPU on, benchmark not set",
            ],
        ),
        (
            {"versions": {"tensorflow": "2.6.5", "python": "3.9.1"}},
            {},
            ["versions: tensorflow: NPU 2.6.5, benchmark 1.15.0", "versions: python: NPU 3.9, benchmark 3.7"],
        ),
        (
            {"environment": {}},
            {"environment": {"TF_DETERMINISTIC_OPS": "1"}},
            ["environment: TF_DETERMINISTIC_OPS: NPU not set, benchmark 1"],
        ),
    ],
)
def test_what_differs(npu: dict[str, Any], other: dict[str, Any], lines: list[str]) -> None:
    assert texts(npu, other) == lines


def test_many_names_are_counted() -> None:
    npu = {f"w{number}": tensor(OTHER) for number in range(1200)}
    other = {f"w{number}": tensor() for number in range(1200)}
    pair = compare_passports(passport(variables=npu), passport("benchmark", variables=other))
    (one,) = pair.differences
    assert render(one.message) == "1,200 of 1,200 variables have other values: w0, w1, w2 and 1,197 more"
    assert len(one.names) == 1200


def test_the_block_of_the_readme() -> None:
    """It is what is shown of two such passports."""
    names = ["fc1/kernel", "fc1/bias", *(f"layer{number}/kernel" for number in range(12))]
    momentum = [Optimizer(type="ApplyMomentum", hyperparameters={"lr": lr}, variables=14) for lr in (0.1, 0.01)]
    npu = passport(
        variables={name: tensor(OTHER if name.startswith("fc1") else ONE) for name in names},
        optimizers=(momentum[0],), switches={"precision_mode": "allow_mix_precision"},
    )  # fmt: skip
    other = passport("benchmark", variables={name: tensor() for name in names}, optimizers=(momentum[1],))
    for language, guide in (("en", "GUIDE.md"), ("zh", "GUIDE.zh-CN.md")):
        file = io.StringIO()
        with use_language(language):
            ReportConsole(file=file, width=120).print(passport_lines(compare_passports(npu, other)))
        shown = file.getvalue()
        assert "14" in shown.splitlines()[0]
        assert f"```\n{shown}```\n" in (REPO / "precision_tool" / guide).read_text("utf-8")


# --- ac ---------------------------------------------------------------------------------------------------------------


def write(path: Path, side: str, variables: dict[str, Any], **changes: Any) -> None:
    document = {
        "format": "precision_tool passport", "version": 1, "side": side, "versions": {}, "environment": {},
        "seeds": {}, "switches": {}, "optimizers": [], "batch": [], "left_out": {},
        "variables": [dict(name=name, **fingerprint(value)) for name, value in variables.items()],
    }  # fmt: skip
    path.write_text(json.dumps(document | changes), "utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A network whose first variable differs, and passports that say so."""
    root = layers().with_part("one/kernel", golden=weights() * np.float32(0.5)).write(tmp_path / "precision_data")
    write(root / "npu/debug_0/passport.json", "npu", {"one/kernel": weights() * 2}, seeds={"helper": 1})
    write(root / "tf/passport.json", "benchmark", {"one/kernel": weights()}, seeds={"helper": 2})
    return root


def weights() -> Any:
    (part,) = (part for part in layers().parts if part.name == "one/kernel")
    return part.npu


def test_ac_begins_with_what_differs(data: Path) -> None:
    shown = tool("ac", "-c", cwd=data.parent)
    lines = shown.out.splitlines()
    assert lines[0].split(maxsplit=1) == ["differs", "1 of 1 variable has other values: one/kernel"]
    assert lines[1].strip() == "seed: NPU 1, benchmark 2"
    assert "the hashes in the passports differ too" in " ".join(shown.out.replace("┃", "").split())
    document = json.loads(tool("ac", "--json", cwd=data.parent).out)
    assert [one["topic"] for one in document["passports"]["differences"]] == ["variables", "seeds"]
    assert document["results"][0]["verdict"]["cause"] == "weights"
    assert document["results"][0]["verdict"]["evidence"]["passport"] == "differs"
    assert document["results"][0]["verdict"]["confidence"] == 0.98


def test_of_python(data: Path) -> None:
    session = open_data(data)
    pair = session.passports()
    assert pair is not None
    assert pair.hash_differs("one/kernel") is True
    assert pair.hash_differs("other") is None
    assert [one.names for one in pair.differences] == [("one/kernel",), ("helper",)]
    folders = str(data / "npu/debug_0/dump"), str(data / "tf/dump")
    assert session.passports(*folders) == pair


def test_no_passport_and_a_damaged_one(data: Path) -> None:
    (data / "tf/passport.json").write_text("{", "utf-8")
    shown = tool("ac", "-c", cwd=data.parent)
    assert "the settings of the runs cannot be compared: precision_data/tf/passport.json: damaged" in shown.err
    assert "differs" not in shown.out.splitlines()[0]
    assert json.loads(tool("ac", "--json", cwd=data.parent).out)["passports"] is None
    (data / "tf/passport.json").unlink()
    shown = tool("ac", cwd=data.parent)
    assert shown.err == ""
    assert json.loads(tool("ac", "--json", cwd=data.parent).out)["passports"] is None


def test_random_begins_with_what_differs_between_two_runs(tmp_path: Path) -> None:
    """Other seeds explain other random numbers; names from files are shown without their escapes."""
    root = tmp_path / "precision_data"
    for number, seed in ((0, 1), (1, 2)):
        layers().write(root, run=f"debug_{number}", benchmark=False)
        name = "odd\x1b[31m"
        value = weights() * (number + 1)
        write(root / f"npu/debug_{number}/passport.json", "npu", {name: value}, seeds={"helper": seed})
    shown = tool("random", cwd=tmp_path)
    assert "\x1b" not in shown.out
    first, second = shown.out.splitlines()[:2]
    assert first.startswith("differs    1 of 1 variable has other values: odd")
    assert second.strip() == "seed: NPU 1, other run 2"
    document = json.loads(tool("random", "--json", cwd=tmp_path).out)
    assert [one["topic"] for one in document["passports"]["differences"]] == ["variables", "seeds"]


def test_of_several_outputs_of_one_op_any_may_differ() -> None:
    npu, other = {"it:0": tensor(ONE), "it:1": tensor(ONE)}, {"it:0": tensor(OTHER), "it:1": tensor(ONE)}
    pair = compare_passports(passport(batch=npu), passport("benchmark", batch=other))
    assert pair.hash_differs("it") is True
    assert pair.hash_differs("a") is False
    assert pair.hash_differs("nowhere") is None


def test_the_name_of_a_file_is_no_difference() -> None:
    def switches(text: str) -> dict[str, Any]:
        return {"switches": {"op_precision_mode": text}}

    assert texts(switches("x.ini sha256:1234"), switches("y.ini sha256:1234")) == []
    (line,) = texts(switches("x.ini sha256:1234"), switches("x.ini sha256:5678"))
    assert line.startswith("precision: op_precision_mode")


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Long texts, seeds of numpy, a variable that stands twice in its collection, one that was left out at first."""
    one = Writer("npu", tmp_path / "passport.json")
    one.set_switches({"dump_layer": " ".join(f"block_{number}/conv2d/Conv2D" for number in range(300))})
    seed: Any = np.int64(5)
    one.set_seeds(seed, 0)
    one.leave_out("w", "it has no value yet")
    one.set_tensors("variables", [("w", np.zeros(2)), ("w", np.zeros(2)), ("v" * 5000, np.ones(3))])
    one.save()
    found = read_passport(str(one.path))
    assert found.seeds["graph"] == 5
    assert [name[:3] for name in found.variables] == ["w", "vvv"]
    assert found.left_out == {}
    assert found.switches["dump_layer"].startswith("block_0/conv2d/Conv2D ")
    assert " sha256:" in found.switches["dump_layer"]
