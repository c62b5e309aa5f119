"""How precise the device is: kept beside each verdict, shown by `profile`, carried to later runs by `ac --profile`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Array
from command_line import fingerprint, tool
from faults import negated
from report_files import result_of
from tiny_network import Network, Part, binary, cast, layers, matmul, numbers, source, unary

from precision_tool.lib.diagnose.device_profile import (
    DeviceProfile,
    SumOrder,
    TypePrecision,
    merged,
    mismatch,
)
from precision_tool.lib.diagnose.stored_profile import parse_profile, read_profile, write_profile
from precision_tool.lib.messages.errors import FormatError
from precision_tool.lib.ops.base import Kind

#: What a Tanh of this device is off by: its results have 11 bits, so they are off by at most 2**-11.
BITS = 11
PASSPORT: dict[str, Any] = {
    "format": "precision_tool passport", "version": 1, "side": "npu", "framework": "tensorflow",
    "written": "2026-03-02T09:30:00Z", "versions": {"cann": "7.0.0"},
    "environment": {"SOC_VERSION": "Ascend910B3", "ENABLE_HF32_EXECUTION": "1"},
    "seeds": {"helper": 0}, "switches": {"precision_mode": "must_keep_origin_dtype"},
    "optimizers": [], "variables": [], "batch": [], "left_out": {},
}  # fmt: skip


def of_few_bits(array: Array) -> Array:
    """The numbers rounded to 11 bits, as a table would have them."""
    fraction, exponent = np.frexp(array)
    return np.ldexp(np.rint(fraction * 2.0**BITS) / 2.0**BITS, exponent)


def device_network() -> Network:
    """Four Tanh ops of few bits, all in float32; what is exact besides."""
    parts = [source("IteratorGetNext", numbers(64, 48, seed=1)), source("w", numbers(48, 48, seed=2))]
    last = "IteratorGetNext"
    for number in range(4):
        parts.append(unary(f"tanh_{number}", "Tanh", last, "float32"))
        parts.append(binary(f"add_{number}", "Add", f"tanh_{number}", "IteratorGetNext", "float32"))
        last = f"add_{number}"
    parts += [matmul("product_0", last, "w", "float32"), matmul("product_1", "IteratorGetNext", "w", "float32")]
    network = Network(parts=tuple(parts))
    for number in range(4):
        network = network.with_part(f"tanh_{number}", wrong=of_few_bits)
    return network


def write_run(folder: Path, *, soc: str = "Ascend910B3", changes: Callable[[Network], Network] | None = None) -> Path:
    """Write the run as data folder `precision_data` in a folder, with its passport; "" for a run without one."""
    network = device_network()
    root = (changes(network) if changes is not None else network).write(folder / "precision_data")
    if soc:
        passport = {**PASSPORT, "environment": {**PASSPORT["environment"], "SOC_VERSION": soc}}
        (root / "npu/debug_0/passport.json").write_text(json.dumps(passport), "utf-8")
    return folder


def profiles_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("precision_data/temp/vector_compare/*/profile_*.json"))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run that `ac -c` judged; tests only read it."""
    folder = write_run(tmp_path_factory.mktemp("judged"))
    tool("ac", "-c", cwd=folder)
    before = fingerprint(folder / "precision_data")
    yield folder
    assert fingerprint(folder / "precision_data") == before


@pytest.fixture
def profile_file(judged: Path) -> Path:
    (path,) = profiles_of(judged)
    return path


def of_type(profile: DeviceProfile, op_type: str) -> TypePrecision:
    (entry,) = (entry for entry in profile.types if entry.op_type == op_type)
    return entry


# --- kept beside the verdict ---


def test_it_is_kept_beside_the_verdict_with_device_and_mode(profile_file: Path) -> None:
    (result,) = profile_file.parent.glob("result_*.csv")
    assert profile_file.name == f"profile_{result.stem}.json"
    profile = read_profile(str(profile_file))
    assert profile.device == "Ascend910B3"
    assert profile.mode == {"precision_mode": "must_keep_origin_dtype", "cann": "7.0.0", "allow_hf32": "on"}
    assert profile.runs == 1
    tanh = of_type(profile, "Tanh")
    assert (tanh.ops, tanh.dtype, tanh.input_dtype) == (4, "float32", "float32")
    assert -13 < log2(tanh.imprecision) < -BITS
    assert not tanh.is_accepted
    add = of_type(profile, "Add")
    assert (add.ops, add.imprecision, add.is_accepted) == (4, 0.0, True)


def test_a_faulty_op_does_not_move_it(judged: Path, profile_file: Path, tmp_path: Path) -> None:
    write_run(tmp_path, changes=lambda network: network.with_part("tanh_2", wrong=negated))
    assert tool("ac", "-c", "--json", cwd=tmp_path).results[0]["verdict"]["culprit"] == "tanh_2"
    (path,) = profiles_of(tmp_path)
    faulty, clean = (of_type(read_profile(str(each)), "Tanh") for each in (path, profile_file))
    assert faulty.ops == clean.ops - 1
    assert faulty.imprecision == pytest.approx(clean.imprecision, rel=0.5)


def test_a_run_without_a_benchmark_has_one_too(tmp_path: Path) -> None:
    write_run(tmp_path)
    shutil.rmtree(tmp_path / "precision_data/tf")
    tool("ac", cwd=tmp_path)
    (path,) = tmp_path.glob("precision_data/temp/verdict/profile_*.json")
    assert of_type(read_profile(str(path)), "Tanh").ops == 4
    document = tool("profile", "--json", cwd=tmp_path).json
    assert document["device"] == "Ascend910B3"


def test_what_it_stores_is_what_it_reads(profile_file: Path, tmp_path: Path) -> None:
    profile = read_profile(str(profile_file))
    write_profile(profile, str(tmp_path / "copy.json"))
    assert read_profile(str(tmp_path / "copy.json")) == profile
    assert (tmp_path / "copy.json").read_bytes() == profile_file.read_bytes()


def test_a_device_that_saturates_is_told_from_one_that_keeps_inf(tmp_path: Path) -> None:
    for name, saturates, mode in (("one", True, "saturate"), ("two", False, "inf_nan")):
        network = Network(
            parts=(
                source("IteratorGetNext", numbers(8, 12, seed=1, scale=300.0)),
                cast("trans_Cast_0", "IteratorGetNext"),
                unary("big/Square", "Square", "trans_Cast_0"),
            ),
            saturates=saturates,
        )
        (tmp_path / name).mkdir()
        network.write(tmp_path / name / "precision_data")
        tool("ac", "-c", cwd=tmp_path / name)
        (path,) = profiles_of(tmp_path / name)
        assert read_profile(str(path)).mode == {"overflow": mode}
    (path,) = profiles_of(tmp_path / "one")
    run = tool("ac", "-c", "--profile", path, cwd=tmp_path / "two", code=2)
    assert "overflow is saturate there, inf_nan in this run" in run.text


# --- the screen ---


def test_the_table_and_what_it_comes_to(judged: Path) -> None:
    run = tool("profile", cwd=judged)
    assert "Ascend910B3" in run.out
    (line,) = (line for line in run.out.splitlines() if line.rstrip().endswith(" Tanh"))
    assert line.split()[0] == "4"
    assert "✗ 0.0001" in line
    assert "1 of 3 types of op is less precise than the vendor accepts: Tanh (float32) to 2^-1" in run.text
    assert "op_precision_mode" in run.text
    assert run.out.rstrip().splitlines()[-1].startswith("┗")


def test_its_json_has_the_same(judged: Path, profile_file: Path) -> None:
    document = tool("profile", "--json", cwd=judged).json
    assert document["device"] == "Ascend910B3"
    assert document["files"] == [str(profile_file.relative_to(judged))]
    first = document["types"][0]
    assert (first["type"], first["ops"], first["acceptance"], first["accepted"]) == ("Tanh", 4, 1e-4, False)
    tanh = of_type(read_profile(str(profile_file)), "Tanh")
    assert first["imprecision"] == tanh.imprecision
    assert first["own"] == tanh.own
    assert document["missed"] == 1
    assert any("op_precision_mode" in line for line in document["conclusion"])


def test_a_result_a_folder_or_a_file_may_be_named(judged: Path, profile_file: Path) -> None:
    newest = tool("profile", "--json", cwd=judged).out
    (result,) = profile_file.parent.glob("result_*.csv")
    for name in (result.name, profile_file.parent, profile_file, result):
        assert tool("profile", name, "--json", cwd=judged).out == newest


def test_in_chinese(judged: Path) -> None:
    run = tool("--lang=zh", "profile", cwd=judged)
    assert "设备精度" in run.out
    assert "op_select_implmode（high_precision）可能提高其精度" in run.text  # noqa: RUF001


def test_a_profile_of_nothing(judged: Path, tmp_path: Path) -> None:
    path = tmp_path / "nothing.json"
    path.write_text(json.dumps(document(types=[])), "utf-8")
    assert "nothing is known of its precision" in tool("profile", path, cwd=judged).text


def test_fewer_types(judged: Path) -> None:
    run = tool("profile", "-l", "1", cwd=judged)
    assert "1 of 3 types shown" in run.text
    assert "Tanh" in run.out


def test_nothing_there_yet(tmp_path: Path) -> None:
    write_run(tmp_path)
    run = tool("profile", cwd=tmp_path, code=2)
    assert "`ac` on this result judges it, and writes one beside it" in run.text
    tool("vc", cwd=tmp_path)
    tool("profile", cwd=tmp_path, code=2)
    tool("ac", cwd=tmp_path)
    assert "Tanh" in tool("profile", cwd=tmp_path).out
    assert "no such file or folder" in tool("profile", "nowhere.json", cwd=tmp_path, code=2).text


# --- carried to later runs ---


def test_a_profile_of_this_device_is_taken(judged: Path, profile_file: Path, tmp_path: Path) -> None:
    run = tool("--work", tmp_path, "ac", "-c", "--profile", profile_file, "--json", cwd=judged)
    assert run.results[0]["verdict"]["culprit"] is None
    assert "profile" not in run.err


@pytest.mark.parametrize(("soc", "name"), [("Ascend310P", "device"), ("Ascend910B3", "precision_mode")])
def test_a_profile_of_another_device_or_mode_is_refused(
    judged: Path, profile_file: Path, tmp_path: Path, soc: str, name: str
) -> None:
    document = json.loads(profile_file.read_text("utf-8"))
    document["device"] = soc
    document["mode"]["precision_mode"] = "allow_mix_precision" if name == "precision_mode" else "force_fp16"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document), "utf-8")
    run = tool("--work", tmp_path / "work", "ac", "-c", "--profile", other, cwd=judged, code=2)
    assert f"{other.name}: the profile is of another device or mode: {name} is" in run.text
    assert "leave --profile out" in run.text


def test_what_is_unknown_fits_and_is_said(profile_file: Path, tmp_path: Path) -> None:
    write_run(tmp_path, soc="")
    run = tool("ac", "-c", "--profile", profile_file, cwd=tmp_path)
    assert "could not be checked: device, allow_hf32, cann, precision_mode unknown" in run.text


def write_alone(folder: Path) -> None:
    """Write a run whose only op is a Tanh with results of 8 bits."""

    def coarse(array: Array) -> Array:
        fraction, exponent = np.frexp(array)
        return np.ldexp(np.rint(fraction * 2.0**7) / 2.0**7, exponent)

    parts = source("IteratorGetNext", numbers(64, 48, seed=1)), unary("alone", "Tanh", "IteratorGetNext", "float32")
    Network(parts=parts).with_part("alone", wrong=coarse).write(folder / "precision_data")


def test_a_single_op_is_judged_by_its_peers_in_the_profile(tmp_path: Path) -> None:
    """A Tanh without peers is off by more than 2**-9: a fault, unless others of this device are as far off."""

    write_alone(tmp_path)
    assert tool("ac", "-c", "--json", cwd=tmp_path).results[0]["verdict"]["culprit"] == "alone"
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(document(types=[entry(imprecisions=[2.0**-9] * 4, ops=4)])), "utf-8")
    run = tool("ac", "-c", "--profile", profile, "--json", cwd=tmp_path)
    assert run.results[0]["verdict"]["culprit"] is None


def test_a_kept_verdict_is_not_taken_for_that_by_a_profile(judged: Path, profile_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(judged, copy)
    (path,) = copy.glob("precision_data/temp/vector_compare/*/verdict_*.json")
    before = path.stat().st_mtime_ns
    tool("ac", "--profile", profile_file, cwd=copy)
    assert path.stat().st_mtime_ns != before


def test_a_study_judges_by_it_and_does_not_take_what_it_did_without(profile_file: Path, tmp_path: Path) -> None:
    write_alone(tmp_path)
    assert tool("ac", "--all", "--json", cwd=tmp_path).json["culprit"]["op"] == "alone"
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(document(types=[entry(imprecisions=[2.0**-9] * 4, ops=4)])), "utf-8")
    assert tool("ac", "--all", "--profile", profile, "--json", cwd=tmp_path).json["culprit"] is None
    assert tool("ac", "--all", "--json", cwd=tmp_path).json["culprit"]["op"] == "alone"


def test_a_study_of_another_device_is_refused(judged: Path, profile_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(profile_file.read_text("utf-8")) | {"device": "Ascend310P"}), "utf-8")
    run = tool("--work", tmp_path / "work", "ac", "--all", "--profile", other, cwd=judged, code=2)
    assert "another device or mode: device is Ascend310P there, Ascend910B3 in this run" in run.text


# --- learn and merge ---


def test_learn_from_a_clean_run(judged: Path, tmp_path: Path) -> None:
    clean = write_run(tmp_path / "clean")
    other = tmp_path / "here"
    other.mkdir()
    run = tool("profile", "learn", clean / "precision_data", "-o", "npu.json", cwd=other)
    assert "ac -c --profile npu.json" in run.out
    assert of_type(read_profile(str(other / "npu.json")), "Tanh").ops == 4


def test_ops_that_cannot_be_judged_are_counted(tmp_path: Path) -> None:
    clean = write_run(tmp_path / "clean") / "precision_data"
    for name in ("Tanh.tanh_2.*", "Add.add_2.*"):
        (dump,) = (path for path in clean.rglob(name) if "npu" in path.parts)
        dump.write_bytes(dump.read_bytes()[:40])
    run = tool("profile", "learn", clean, "-o", "npu.json", cwd=tmp_path)
    assert "2 of 10 ops are not in the profile" in run.text
    assert of_type(read_profile(str(tmp_path / "npu.json")), "Tanh").ops == 3


def test_a_run_with_a_culprit_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, changes=lambda network: network.with_part("tanh_2", wrong=negated))
    run = tool("profile", "learn", "precision_data", "-o", "npu.json", cwd=tmp_path, code=2)
    assert "not a clean run: tanh_2 computes wrong" in run.text
    assert not (tmp_path / "npu.json").exists()


def test_merge(profile_file: Path, judged: Path, tmp_path: Path) -> None:
    run = tool("profile", "merge", profile_file, profile_file.parent, "-o", "all.json", "--json", cwd=tmp_path)
    assert run.json["runs"] == 2
    both = read_profile(str(tmp_path / "all.json"))
    assert of_type(both, "Tanh").ops == 8
    assert of_type(both, "Tanh").imprecision == of_type(read_profile(str(profile_file)), "Tanh").imprecision


def test_two_devices_are_not_merged(profile_file: Path, tmp_path: Path) -> None:
    document = json.loads(profile_file.read_text("utf-8")) | {"device": "Ascend310P"}
    (tmp_path / "other.json").write_text(json.dumps(document), "utf-8")
    run = tool("profile", "merge", profile_file, "other.json", "-o", "all.json", cwd=tmp_path, code=2)
    assert "two devices or modes: device is Ascend310P there, Ascend910B3 in" in run.text
    assert not (tmp_path / "all.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("merge",), ("learn",), ("learn", "a", "b"), ("learn", "nowhere"), ("a.json", "b.json"), ("-o", "x.json"),
        ("merge", "nowhere.json"), ("merge", "nowhere.json", "-o", "."),
    ],
)  # fmt: skip
def test_wrong_use(judged: Path, words: tuple[str, ...]) -> None:
    tool("profile", *words, cwd=judged, code=2)


# --- the error of a function over its input ---


def test_the_curve_of_a_function(tmp_path: Path) -> None:
    """A Tanh whose error is a function of its input: x / 1000, cut at 1; two ops have one curve."""

    def biased(seed: int) -> Callable[[Array], Array]:
        values = numbers(64, 48, seed=seed).astype(np.float64)
        return lambda array: array * (1 + np.clip(values, -1, 1) / 1000)

    parts: list[Part] = []
    for seed in range(4):
        parts.append(source(f"data_{seed}", numbers(64, 48, seed=seed)))
        parts.append(replace(unary(f"tanh_{seed}", "Tanh", f"data_{seed}", "float32"), wrong=biased(seed)))
    Network(parts=tuple(parts)).write(tmp_path / "precision_data")
    tool("ac", "-c", cwd=tmp_path)
    (path,) = profiles_of(tmp_path)
    profile = read_profile(str(path))
    curve = of_type(profile, "Tanh").curve
    assert len(curve) == 16
    assert [x for x, _ in curve] == sorted(x for x, _ in curve)
    for x, error in curve:
        assert error == pytest.approx(np.clip(x, -1, 1) / 1000, abs=2e-5)
    again = of_type(merged([profile, profile]), "Tanh").curve
    assert again == curve
    shown = tool("profile", "--json", cwd=tmp_path).json
    assert [tuple(point) for point in shown["types"][0]["curve"]] == list(curve)


# --- files that somebody made up ---


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "op_type": "Tanh", "dtype": "float32", "kind": "approximate", "ops": 1, "imprecisions": [1e-4], "own": 1e-4,
        "rounding": 1e-6, "input_dtype": "float32", "curve": [[0.0, 1e-4]], **changes,
    }  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": "precision_tool profile", "version": 1, "types": [entry()], "flushes": [], "runs": 1, "device": "",
        "mode": {}, **changes,
    }  # fmt: skip


def test_the_document_is_one() -> None:
    profile = parse_profile(json.dumps(document()), "p.json")
    assert (profile.path, len(profile.types)) == ("p.json", 1)


HOSTILE = {
    "no json": "{",
    "list": "[]",
    "nothing": "",
    "text": '"profile"',
    "deep": "[" * 100_000,
    "deep in it": json.dumps(document(types=[])).replace("[]", "[" * 5000 + "]" * 5000, 1),
    "other format": json.dumps(document(format="something")),
    "other version": json.dumps(document(version=2)),
    "true version": json.dumps(document(version=True)),
    "long version": json.dumps(document()).replace('"version": 1', f'"version": {10**400}'),
    "NaN": json.dumps(document(types=[entry(own=float("nan"))])),
    "nan as text": json.dumps(document(types=[entry(own="nan")])),
    "inf as text": json.dumps(document(types=[entry(imprecisions=["inf"])])),
    "negative": json.dumps(document(types=[entry(rounding=-1.0)])),
    "long number": json.dumps(document(types=[entry(own=10**400)])),
    "long count": json.dumps(document(types=[entry(ops=10**400)])),
    "endless number": json.dumps(document(types=[entry(own=1)])).replace('"own": 1', '"own": ' + "9" * 10_000),
    "no ops": json.dumps(document(types=[entry(ops=0)])),
    "true ops": json.dumps(document(types=[entry(ops=True)])),
    "no imprecisions": json.dumps(document(types=[entry(imprecisions=[])])),
    "many imprecisions": json.dumps(document(types=[entry(imprecisions=[0.0] * 65)])),
    "unsorted": json.dumps(document(types=[entry(imprecisions=[1.0, 0.5])])),
    "twice": json.dumps(document(types=[entry(), entry()])),
    "many types": json.dumps(document(types=[entry(op_type=f"T{number}") for number in range(5000)])),
    "a million entries": json.dumps(document(types=[0] * 1_000_000)),
    "huge": json.dumps(document()) + " " * (9 << 20),
    "no dtype": json.dumps(document(types=[entry(dtype="int32")])),
    "no kind": json.dumps(document(types=[entry(kind="other")])),
    "long name": json.dumps(document(types=[entry(op_type="T" * 5000)])),
    "no name": json.dumps(document(types=[entry(op_type="")])),
    "long curve": json.dumps(document(types=[entry(curve=[[float(number), 0.0] for number in range(17)])])),
    "curve back": json.dumps(document(types=[entry(curve=[[1.0, 0.0], [0.0, 0.0]])])),
    "odd point": json.dumps(document(types=[entry(curve=[[1.0]])])),
    "no runs": json.dumps(document(runs=0)),
    "odd flushes": json.dumps(document(flushes=["int8"])),
    "odd mode": json.dumps(document(mode={"a": 1})),
    "much mode": json.dumps(document(mode={str(number): "" for number in range(100)})),
    "missing": json.dumps({key: value for key, value in document().items() if key != "types"}),
    "more": json.dumps(document(more=1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_made_up_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "made_up.json"
    path.write_text(HOSTILE[name], "utf-8")
    with pytest.raises(FormatError) as caught:
        read_profile(str(path))
    assert str(path) in caught.value.text()
    assert len(caught.value.text()) < 1000
    assert caught.value.hint_message is not None


@pytest.mark.parametrize("name", ["no json", "deep", "NaN", "long version"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_ends_the_command_with_a_reason(judged: Path, tmp_path: Path, name: str, language: str) -> None:
    path = tmp_path / "made_up.json"
    path.write_text(HOSTILE[name], "utf-8")
    for words in (("profile", path), ("ac", "-c", "--profile", path), ("profile", "merge", path)):
        run = tool(f"--lang={language}", "--work", tmp_path, *words, cwd=judged, code=2)
        assert "made_up.json" in run.text


def test_names_of_a_made_up_file_do_no_harm(judged: Path, tmp_path: Path) -> None:
    odd = "\x1b[31mred\u202e"
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(document(types=[entry(op_type=odd)], device=odd, mode={odd: odd})), "utf-8")
    run = tool("profile", path, cwd=judged)
    assert "\x1b" not in run.out
    assert "\u202e" not in run.out


# --- what the errors of a type tell ---


def precision(**changes: Any) -> TypePrecision:
    given: dict[str, Any] = {
        "op_type": "MatMulV2", "dtype": "float32", "kind": Kind.MATRIX, "ops": 3, "imprecisions": (0.0,),
        "own": 2.0**-13, "rounding": 2.0**-12.5, "input_dtype": "float32",
    }  # fmt: skip
    return TypePrecision(**(given | changes))


def test_hf32_is_told_by_its_error() -> None:
    assert precision().is_hf32
    assert precision().float32 == pytest.approx(2.0**-24.5)
    assert not precision(own=2.0**-24).is_hf32
    assert not precision(input_dtype="float16").is_hf32
    assert not precision(own=2.0**-8).is_hf32
    assert precision(op_type="Conv2D+BiasAdd", kind=Kind.COMPOSITE).is_hf32
    assert not precision(op_type="Tanh", kind=Kind.APPROXIMATE).is_hf32


@pytest.mark.parametrize(
    ("own", "order"),
    [(2.0**-23, SumOrder.TREE), (2.0**-20, SumOrder.SEQUENTIAL), (2.0**-16, SumOrder.COARSE)],
)
def test_the_order_of_sums(own: float, order: SumOrder) -> None:
    sums = precision(op_type="ReduceSumD", kind=Kind.SUM, own=own, rounding=2.0**-20)
    assert sums.order is order
    assert precision(op_type="ReduceSumD", kind=Kind.SUM, own=own, rounding=2.0**-24).order is None
    assert precision(op_type="ReduceSumD", kind=Kind.SUM, own=own, rounding=2.0**-20, dtype="float16").order is None


def test_what_is_unknown_fits_everything() -> None:
    this = DeviceProfile(device="a", mode={"x": "1", "y": "2"})
    assert mismatch(this, DeviceProfile()) is None
    assert mismatch(this, DeviceProfile(device="b")) == ("device", "a", "b")
    assert mismatch(this, DeviceProfile(device="a", mode={"y": "3", "z": "1"})) == ("y", "2", "3")
    both = merged([this, DeviceProfile(mode={"z": "1"}, runs=2, flushes=("float16",))])
    assert (both.device, both.mode, both.runs, both.flushes) == ("a", {"x": "1", "y": "2", "z": "1"}, 3, ("float16",))


def test_layers_in_half_precision_are_as_the_vendor_accepts(tmp_path: Path) -> None:
    layers().write(tmp_path / "precision_data")
    tool("ac", "-c", cwd=tmp_path)
    document = tool("profile", "--json", cwd=tmp_path).json
    assert document["missed"] == 0
    assert document["device"] is None
    assert all(entry["accepted"] for entry in document["types"])


# --- the report ---


def test_the_report_has_it(judged: Path, tmp_path: Path) -> None:
    tool("--work", tmp_path / "work", "ac", "-c", "--report", tmp_path / "now.html", cwd=judged)
    tool("report", "-o", tmp_path / "later.html", cwd=judged)
    for page in ("now.html", "later.html"):
        profile = result_of(tmp_path / page)["profile"]
        assert (profile["device"], profile["missed"]) == ("Ascend910B3", 1)
        assert profile["types"][0]["type"] == "Tanh"
        assert len(profile["types"][0]["curve"]) == 16
        assert "设备" not in profile["conclusion"][0]["en"]
        assert profile["conclusion"][0]["zh"].startswith("3 种算子中有 1 种")


def test_a_report_without_a_sound_profile(judged: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(judged, copy)
    (path,) = profiles_of(copy)
    path.write_text("{", "utf-8")
    tool("report", "-o", tmp_path / "page.html", cwd=copy)
    assert result_of(tmp_path / "page.html")["profile"] is None
