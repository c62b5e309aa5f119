"""Calls of two dumps of msprobe that stand for each other, and benchmarks of other networks."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import tool
from msprobe_calls import Calls

from precision_tool.lib.data.dumped_ops import GoldenFiles
from precision_tool.lib.data.kinds import MSPROBE
from precision_tool.lib.data.msprobe_matching import check_same_network, match_calls
from precision_tool.lib.data.msprobe_ops import find_msprobe_benchmark
from precision_tool.lib.data.sides import find_golden, own_benchmark
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import UsageError

Layers = Callable[[Calls], Any]


def three(calls: Calls, extra: str = "", batch: int = 4) -> Calls:
    """Three linear layers with norms between them; `extra` is a module with one more behind the first."""
    more = np.random.default_rng(9)
    x = calls.numbers(batch, calls.width)
    for module in ("a", "b", "c"):
        x = calls.norm(module, calls.linear(module, x))
        if extra and module == "a":
            weight = more.normal(size=(calls.width, calls.width)).astype(calls.dtype)
            calls.call("Functional.linear", extra, x, weight, output=x @ weight.T)
    return calls


def matched(tmp_path: Path, npu: Calls, golden: Calls, **how: Any) -> dict[str, str]:
    paths = [calls.write(tmp_path / side, **how) / "dump.json" for side, calls in (("npu", npu), ("gpu", golden))]
    return dict(match_calls(*map(str, paths)).counterparts)


@pytest.mark.parametrize("with_modules", [True, False])
def test_calls_that_are_numbered_alike_are_the_same(tmp_path: Path, with_modules: bool) -> None:
    names = matched(tmp_path, three(Calls()), three(Calls()), with_modules=with_modules)
    assert len(names) == 6
    assert all(name == other for name, other in names.items())


def test_one_call_more_shifts_none_of_another_module(tmp_path: Path) -> None:
    names = matched(tmp_path, three(Calls()), three(Calls(), extra="d"))
    assert [names[f"Functional.linear.{number}"] for number in range(3)] == [
        f"Functional.linear.{number}" for number in (0, 2, 3)
    ]
    assert names["Functional.layer_norm.2"] == "Functional.layer_norm.2"


def test_one_call_more_where_no_modules_were_recorded(tmp_path: Path) -> None:
    """What is called before tells which of them are meant: the norms are as many on both sides."""
    names = matched(tmp_path, three(Calls(), extra="d"), three(Calls()), with_modules=False)
    assert {number: names.get(f"Functional.linear.{number}") for number in range(4)} == {
        0: "Functional.linear.0",
        1: "Functional.linear.1",  # two behind one norm are told apart by nothing
        2: None,
        3: "Functional.linear.2",
    }


def test_one_call_more_within_a_module_is_told_by_shapes(tmp_path: Path) -> None:
    def made(extra: bool, batch: int) -> Calls:
        calls = Calls()
        x = calls.numbers(batch, 16)
        if extra:
            calls.linear("a", x, 8)
        calls.linear("a", calls.relu("a", calls.linear("a", x, 32)), 16)
        return calls

    for batch in (4, 6):  # in another batch size weights tell
        names = matched(tmp_path / str(batch), made(False, 4), made(True, batch))
        assert names["Functional.linear.0"] == "Functional.linear.1"
        assert names["Functional.linear.1"] == "Functional.linear.2"


def test_modules_that_run_in_another_order(tmp_path: Path) -> None:
    sides = []
    for modules in (("a", "b"), ("b", "a")):
        calls = Calls()
        for module in modules:
            calls.linear(module, calls.numbers(4, 16))
        sides.append(calls)
    names = matched(tmp_path, *sides)
    assert names == {"Functional.linear.0": "Functional.linear.1", "Functional.linear.1": "Functional.linear.0"}


def test_modules_in_wrappers(tmp_path: Path) -> None:
    sides = []
    for wrapper in ("", "module."):
        calls = three(Calls(), extra="d" if wrapper else "")
        calls.construct = {
            name: None if parent is None else parent.replace("Module.", f"Module.{wrapper}")
            for name, parent in calls.construct.items()
        }
        sides.append(calls)
    assert matched(tmp_path, *sides)["Functional.linear.2"] == "Functional.linear.3"


def test_fused_calls_have_no_counterpart(tmp_path: Path) -> None:
    npu, golden = Calls(), Calls()
    for calls in (npu, golden):
        x = calls.linear("a", calls.numbers(4, 16))
        if calls is npu:
            x = calls.call("NPU.npu_rms_norm", "n", x, np.ones(16, np.float32), output=x)
        else:
            x = calls.call("Torch.rsqrt", "n", calls.call("Tensor.pow", "n", x, 2, output=x**2), output=x)
        calls.linear("b", x)
    names = matched(tmp_path, npu, golden)
    assert set(names) == {"Functional.linear.0", "Functional.linear.1"}


def test_the_benchmark_by_the_names_of_the_npu(tmp_path: Path) -> None:
    """Tensors, and what rows name, are those of the call that is meant."""
    three(Calls()).write(tmp_path / "npu")
    three(Calls(), extra="d").write(tmp_path / "gpu")
    (leaf,) = MSPROBE.find(str(tmp_path / "npu")).leaves
    golden = find_golden(str(tmp_path / "gpu"))
    assert isinstance(golden, GoldenFiles)
    own = own_benchmark(golden, leaf, 1)
    assert own.ops_of(("Functional.linear.2.forward",)) == ("Functional.linear.3.forward",)
    files = {(file.op_name, file.index) for file in own.files}
    found = own.output_of("Functional.linear.2.forward", 0)
    assert posixpath.basename(found.path) == "Functional.linear.3.forward.output.0.pt"
    weight = own.output_of("Functional.linear.2.forward.input.1", 0)
    assert posixpath.basename(weight.path) == "Functional.linear.3.forward.input.1.pt"
    assert ("Functional_linear_1_forward", 0) not in files
    assert own_benchmark(golden, leaf, 1) is own


def test_a_clean_run_with_shifted_calls_agrees(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    three(Calls()).write(data / "npu" / "step0" / "rank0")
    three(Calls(), extra="d").write(data / "gpu" / "step0" / "rank0")
    (result,) = json.loads(tool("ac", "-c", "--json", cwd=tmp_path).out)["results"]
    assert (result["overview"]["compared"], result["overview"]["below"]) == (result["overview"]["tensors"], 0)
    assert result["verdict"]["culprit"] is None


# --- other networks ---------------------------------------------------------------------------------------------------


def other(calls: Calls) -> Calls:
    """Another network: three linear layers of another width, and ReLUs."""
    x = calls.numbers(4, calls.width)
    for module in ("a", "b", "c"):
        x = calls.relu(module, calls.linear(module, x))
    return calls


def refused(tmp_path: Path, npu: Calls, golden: Calls) -> UsageError | None:
    npu.write(tmp_path / "npu")
    golden.write(tmp_path / "gpu")
    (leaf,) = MSPROBE.find(str(tmp_path / "npu")).leaves
    try:
        check_same_network(find_msprobe_benchmark(str(tmp_path / "gpu")), leaf)
    except UsageError as error:
        return error
    return None


@pytest.mark.parametrize(
    "golden",
    [
        three(Calls()),
        three(Calls(seed=7)),
        three(Calls(), extra="d"),
        three(Calls(), batch=8),
        three(Calls(np.float64)),
    ],
    ids=["same", "other weights", "more calls", "other batch", "other types"],
)
def test_what_is_the_same_network(tmp_path: Path, golden: Calls) -> None:
    assert refused(tmp_path, three(Calls()), golden) is None


def test_part_of_the_network(tmp_path: Path) -> None:
    """A benchmark of a few calls only, or a run of a few."""
    small = Calls()
    small.linear("a", small.numbers(4, 16))
    assert refused(tmp_path / "1", three(Calls()), small) is None
    assert refused(tmp_path / "2", small, three(Calls())) is None


def test_another_network_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, three(Calls()), other(Calls(width=24)))
    assert error is not None
    assert error.kind == "data.other_network"
    why, shape = error.fields["why"], error.fields["shape"]
    assert isinstance(why, Message)
    assert isinstance(shape, Message)
    assert (why.count, why.all) == (0, 6)
    assert (error.fields["only_npu"], error.fields["only_benchmark"]) == (["layer_norm"], ["relu"])
    assert (shape.npu, shape.benchmark) == ((16, 16), (24, 24))


def test_another_size_is_another_network(tmp_path: Path) -> None:
    error = refused(tmp_path, three(Calls()), three(Calls(width=24)))
    assert error is not None
    assert error.fields["only_npu"] is None


def test_without_parameters_axes_decide(tmp_path: Path) -> None:
    for shape, is_other in (((4, 16), False), ((8, 24), False), ((4, 2, 16), True)):
        sides = Calls(), Calls()
        sides[0].relu("a", np.ones((4, 16), np.float32))
        sides[1].relu("a", np.ones(shape, np.float32))
        assert (refused(tmp_path / str(shape), *sides) is not None) == is_other


def test_levels_without_a_call_in_common(tmp_path: Path) -> None:
    three(Calls()).write(tmp_path / "npu")
    folder = three(Calls()).write(tmp_path / "gpu")
    text = (folder / "dump.json").read_text().replace('"mix"', '"L0"')
    for api in ("linear", "layer_norm"):
        text = text.replace(f'"Functional.{api}.', f'"Module.x.{api}.forward.').replace('.forward": {', '": {')
    (folder / "dump.json").write_text(text)
    (leaf,) = MSPROBE.find(str(tmp_path / "npu")).leaves
    with pytest.raises(UsageError) as caught:
        check_same_network(find_msprobe_benchmark(str(tmp_path / "gpu")), leaf)
    assert (caught.value.kind, caught.value.fields) == ("data.other_level", {"npu": "mix", "benchmark": "L0"})


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("named", [False, True])
def test_ac_refuses_another_network(tmp_path: Path, named: bool, steps: int) -> None:
    data = tmp_path / "precision_data"
    for step in range(steps):
        three(Calls()).write(data / "npu" / f"step{step}" / "rank0")
        other(Calls(width=24)).write(data / "gpu" / f"step{step}" / "rank0")
    sides = ("-lt", str(data / "npu"), "-rt", str(data / "gpu")) if named else ()
    shown = tool("ac", "-c", *sides, cwd=tmp_path, code=2)
    assert shown.err.count("0 of 6 parameters") == 1
    assert not list(data.glob("temp/vector_compare/*"))


def test_nothing_in_common_but_names(tmp_path: Path) -> None:
    data = tmp_path / "precision_data"
    for side, modules, width in (("npu", "ab", 16), ("gpu", "cde", 24)):
        calls = Calls(width=width)
        for module in modules:
            calls.linear(module, calls.numbers(4, width))
        calls.write(data / side)
    shown = tool("ac", "-c", cwd=tmp_path, code=2)
    assert "0 of 2 parameters" in shown.err
