"""What differs between two dumps of msprobe, told before any op is accused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command_line import tool
from msprobe_calls import Calls

from precision_tool import open_data
from precision_tool.lib.diagnose.passports import Difference, Topic
from precision_tool.lib.diagnose.recorded_sides import compare_recorded, differences_of
from precision_tool.lib.messages import render


def block(calls: Calls, eps: float = 1e-5, batch: int = 4, **kwargs: Any) -> Calls:
    x = calls.numbers(batch, calls.width)
    x = calls.norm("n", calls.linear("a", x), eps, **kwargs)
    calls.linear("b", x)
    return calls


def differences(tmp_path: Path, npu: Calls, golden: Calls, **how: Any) -> list[Difference]:
    paths = [calls.write(tmp_path / side, **how) / "dump.json" for side, calls in (("npu", npu), ("gpu", golden))]
    found = differences_of(compare_recorded(*map(str, paths)))
    for difference in found:
        for language in ("en", "zh"):
            assert render(difference.message, language)
    return found


def topics(found: list[Difference]) -> list[Topic]:
    return [difference.topic for difference in found]


def test_nothing_differs(tmp_path: Path) -> None:
    assert differences(tmp_path, block(Calls()), block(Calls())) == []


def test_another_argument(tmp_path: Path) -> None:
    (found,) = differences(tmp_path, block(Calls(), eps=1e-2), block(Calls()))
    assert (found.topic, found.names) == (Topic.ARGUMENTS, ("Functional.layer_norm.0.forward",))
    assert (found.npu, found.benchmark) == ("0.01", "1e-05")
    assert (found.message.name, found.message.function, found.message.count) == ("eps", "layer_norm", 1)


def test_arguments_are_the_same_however_they_are_given(tmp_path: Path) -> None:
    """By place or name, or the default."""
    made = []
    for args, kwargs in (((-1,), {}), ((), {"dim": -1}), ((), {"dim": -1, "dtype": None})):
        calls = Calls()
        x = calls.numbers(4, 16)
        calls.call("Functional.softmax", "s", x, *args, output=x, **kwargs)
        made.append(calls)
    for number, golden in enumerate(made[1:]):
        assert differences(tmp_path / str(number), made[0], golden) == []


@pytest.mark.parametrize(
    ("npu", "golden", "differs"),
    [
        (0.1, 0.2, True),
        (0.1, 0.1 * (1 + 2**-30), False),
        (1.0, 1, False),
        (float("nan"), float("nan"), False),
        (True, False, True),
        (None, 0.5, True),
        ("mean", "sum", True),
        ([1, 2], [1, 3], True),
    ],
)
def test_values(tmp_path: Path, npu: Any, golden: Any, differs: bool) -> None:
    sides = []
    for value in (npu, golden):
        calls = Calls()
        calls.call("Torch.something_new", "s", calls.numbers(4, 16), value, output=np.ones(3))
        sides.append(calls)
    assert topics(differences(tmp_path, *sides)) == [Topic.ARGUMENTS] * differs


@pytest.mark.parametrize("name", ["device", "non_blocking", "inplace"])
def test_arguments_that_change_nothing(tmp_path: Path, name: str) -> None:
    sides = []
    for value in (True, False):
        calls = Calls()
        calls.call("Functional.relu6", "s", calls.numbers(4, 16), output=np.ones(3), **{name: value})
        sides.append(calls)
    assert differences(tmp_path, *sides) == []


def test_many_arguments_are_counted(tmp_path: Path) -> None:
    sides = []
    for side in (0, 1):
        calls = Calls()
        for number in range(6):
            calls.call("Torch.something_new", "s", calls.numbers(4), number + side * 100, output=np.ones(3))
        sides.append(calls)
    found = differences(tmp_path, *sides)
    assert topics(found) == [Topic.ARGUMENTS] * 4
    assert (found[-1].message.count, found[-1].message.ops) == (3, 3)


def test_another_batch(tmp_path: Path) -> None:
    """Sizes among the arguments follow from shapes, and are not told again."""
    sides = []
    for batch in (4, 8):
        calls = block(Calls(), batch=batch)
        calls.call("Tensor.reshape", "r", calls.numbers(batch, 16), [batch, 4, 4], output=np.ones((batch, 4, 4)))
        sides.append(calls)
    (found,) = differences(tmp_path, *sides)
    assert (found.topic, found.npu, found.benchmark) == (Topic.SHAPES, "[4, 16]", "[8, 16]")
    assert (found.names[0], found.message.count) == ("Functional.linear.0.forward.input.0", 4)


def test_other_types_are_one_line(tmp_path: Path) -> None:
    npu, golden = block(Calls(ml_dtypes.bfloat16)), block(Calls())
    for calls, dtype in ((npu, "torch.bfloat16"), (golden, "torch.float32")):
        calls.call("Tensor.to", "t", calls.numbers(4), dtype, output=calls.numbers(4))
    (found,) = differences(tmp_path, npu, golden)
    assert (found.topic, found.npu, found.benchmark) == (Topic.DTYPES, "torch.bfloat16", "torch.float32")
    assert (found.message.count, found.message.all) == (11, 11)


def test_fused_calls_and_what_they_replace(tmp_path: Path) -> None:
    npu, golden = Calls(), Calls()
    for calls in (npu, golden):
        x = calls.linear("a", calls.numbers(4, 16))
        if calls is npu:
            x = calls.call("NPU.npu_rms_norm", "n", x, np.ones(16, np.float32), output=x)
        else:
            x = calls.call("Torch.rsqrt", "n", calls.call("Tensor.pow", "n", x, 2, output=x**2), output=x)
            calls.call("Torch.sin", "", x, output=x)
        calls.linear("b", x)
    fused, alone = differences(tmp_path, npu, golden)
    assert (fused.topic, fused.names, fused.message.others) == (
        Topic.CALLS, ("NPU.npu_rms_norm.0",), ["Tensor.pow", "Torch.rsqrt"],
    )  # fmt: skip
    assert (alone.message.api, alone.message.is_npu, alone.message.others) == ("Torch.sin", False, None)


def test_shifted_calls(tmp_path: Path) -> None:
    npu, golden = Calls(), Calls()
    for calls in (npu, golden):
        x = calls.numbers(4, 16)
        for module in "abc" if calls is npu else "axbc":
            calls.linear(module, x)
    alone, shifted = differences(tmp_path, npu, golden)
    assert (alone.names, alone.message.is_npu) == (("Functional.linear.1",), False)
    assert shifted.names == ("Functional.linear.1", "Functional.linear.2")
    assert (shifted.npu, shifted.benchmark) == ("Functional.linear.1", "Functional.linear.2")


def test_another_order(tmp_path: Path) -> None:
    sides = []
    for apis in (("relu", "gelu", "silu"), ("gelu", "relu", "silu")):
        calls = Calls()
        for api in apis:
            calls.call(f"Functional.{api}", "m", calls.numbers(4), output=np.ones(4))
        sides.append(calls)
    (found,) = differences(tmp_path, *sides)
    assert (found.topic, found.names, found.npu) == (Topic.ORDER, ("Functional.relu.0", "Functional.gelu.0"), 1)


def test_how_it_was_recorded(tmp_path: Path) -> None:
    """Framework, level and task; and steps and ranks of the runs."""
    data = tmp_path / "precision_data"
    for side, ranks in (("npu", (0, 1)), ("gpu", (0,))):
        for rank in ranks:
            folder = block(Calls()).write(data / side / "step0" / f"rank{rank}")
            if side == "gpu":
                text = (folder / "dump.json").read_text().replace('"pytorch"', '"mindspore"').replace('"mix"', '"L1"')
                (folder / "dump.json").write_text(text)
    pair = open_data(data).passports()
    assert pair is not None
    assert [(each.topic, each.names, each.npu, each.benchmark) for each in pair.differences] == [
        (Topic.RECORDING, ("framework",), "pytorch", "mindspore"),
        (Topic.RECORDING, ("level",), "mix", "L1"),
        (Topic.RECORDING, ("ranks",), 2, 1),
    ]


# --- other arguments as the cause -------------------------------------------------------------------------------------


def written(tmp_path: Path, npu: Calls, golden: Calls) -> dict[str, Any]:
    data = tmp_path / "precision_data"
    for side, calls in (("npu", npu), ("gpu", golden)):
        shutil.rmtree(data / side, ignore_errors=True)
        calls.write(data / side / "step0" / "rank0")
    document: dict[str, Any] = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)
    return document


def test_an_op_that_is_right_with_another_argument(tmp_path: Path) -> None:
    document = written(tmp_path, block(Calls(), eps=0.5), block(Calls()))
    (difference,) = document["passports"]["differences"]
    assert (difference["topic"], difference["npu"], difference["benchmark"]) == ("arguments", "0.5", "1e-05")
    verdict = document["results"][0]["verdict"]
    assert (verdict["culprit"], verdict["cause"]) == ("Functional.layer_norm.0.forward", "arguments")
    assert verdict["evidence"]["arguments"] == [["eps", "0.5", "1e-05"]]
    assert verdict["evidence"]["distance"] > 0.01 > 100 * verdict["evidence"]["fed"]
    assert verdict["suspects"][0]["followers"] == 1
    assert [step["line"] for step in verdict["next"]][1:] == ["ni Functional.layer_norm.0.forward", "ac -c --since"]
    shown = tool("ac", cwd=tmp_path).out
    assert shown.index("differs") < shown.index("Verdict")
    assert "eps is 0.5 on the NPU and 1e-05 in the benchmark" in " ".join(shown.replace("┃", " ").split())


def test_since_the_arguments_are_the_same(tmp_path: Path) -> None:
    written(tmp_path, block(Calls(), eps=0.5), block(Calls()))
    written(tmp_path, block(Calls()), block(Calls()))
    since = json.loads(tool("ac", "-c", "--json", "--since", cwd=tmp_path).out)["since"]
    assert (since["cause"], since["state"], since["mended"]) == ("arguments", "agrees", True)


def test_an_argument_that_changes_no_more_than_rounding(tmp_path: Path) -> None:
    document = written(tmp_path, block(Calls(ml_dtypes.bfloat16), eps=1.1e-5), block(Calls(ml_dtypes.bfloat16)))
    assert len(document["passports"]["differences"]) == 1
    assert document["results"][0]["verdict"]["culprit"] is None


def test_a_wrong_kernel_with_another_argument(tmp_path: Path) -> None:
    """The benchmark cannot confirm the formula, as it computes another function: that is to be mended first."""
    npu = Calls()
    x = npu.linear("a", npu.numbers(4, npu.width))
    wrong = np.array(Calls().norm("n", x, 0.5))
    wrong[:, -3:] = 0
    npu.linear("b", npu.call("Functional.layer_norm", "n", x, [16], np.ones(16, np.float32), None, 0.5, output=wrong))
    verdict = written(tmp_path, npu, block(Calls()))["results"][0]["verdict"]
    assert (verdict["culprit"], verdict["cause"]) == ("Functional.layer_norm.0.forward", "arguments")


def test_an_op_without_a_formula_is_called_otherwise(tmp_path: Path) -> None:
    sides = []
    for factor in (3.0, 2.0):
        calls = Calls()
        x = calls.linear("a", calls.numbers(4, 16))
        calls.linear("b", calls.call("Torch.something_new", "s", x, factor, output=np.sin(factor * x)))
        sides.append(calls)
    verdict = written(tmp_path, *sides)["results"][0]["verdict"]
    assert (verdict["culprit"], verdict["cause"]) == ("Torch.something_new.0.forward", "arguments")
    assert verdict["suspects"][0]["proof"] == "arguments"
