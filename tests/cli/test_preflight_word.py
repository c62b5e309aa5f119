"""`preflight` as a user runs it: on TensorFlow's tensors with their graph, and on dumps of msprobe at any level."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import fingerprint, tool
from msprobe_network import dump_network
from preflights import forecast, preflight_result

from precision_tool import open_data
from precision_tool.cli import main
from precision_tool.lib.cli.command import load_command
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.diagnose import preflight as preflight_module
from precision_tool.lib.diagnose.emulation import StepEmulator
from precision_tool.lib.diagnose.opened_step import OpenedStep, described
from precision_tool.lib.diagnose.preflight import BOUND_GRADIENTS, BOUND_LOSS, SECONDS
from precision_tool.lib.model.graph import Graph, GraphFile, Op
from precision_tool.lib.model.msprobe import RecordedCall, RecordedOp, parse_call_name
from precision_tool.lib.session import Session
from precision_tool.lib.training.switches import _checked_file
from precision_tool.lib.view.preflight_screen import preflight_json

_FLOAT = 'attr { key: "T" value { type: DT_FLOAT } }'
#: A square that leaves float16, scaled back before the loss.
_GRAPH = f"""
node {{ name: "x" op: "Placeholder" attr {{ key: "dtype" value {{ type: DT_FLOAT }} }} }}
node {{ name: "w" op: "VariableV2" attr {{ key: "dtype" value {{ type: DT_FLOAT }} }} }}
node {{ name: "scale" op: "VariableV2" attr {{ key: "dtype" value {{ type: DT_FLOAT }} }} }}
node {{ name: "fc1/MatMul" op: "MatMul" input: "x" input: "w" {_FLOAT} }}
node {{ name: "fc1/Square" op: "Square" input: "fc1/MatMul" {_FLOAT} }}
node {{ name: "fc1/Mul" op: "Mul" input: "fc1/Square" input: "scale" {_FLOAT} }}
node {{ name: "Mean/axes" op: "Const" attr {{ key: "dtype" value {{ type: DT_INT32 }} }} attr {{ key: "value" value {{ tensor {{
  dtype: DT_INT32 tensor_shape {{ dim {{ size: 2 }} }} tensor_content: "\\000\\000\\000\\000\\001\\000\\000\\000" }} }} }} }}
node {{ name: "loss/Mean" op: "Mean" input: "fc1/Mul" input: "Mean/axes" {_FLOAT} }}
"""  # noqa: E501


def benchmark(folder: Path, *, has_graph: bool = True) -> Path:
    """Write the tensors of a step of TensorFlow into a data folder, with its graph beside them."""
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(shape).astype("f4") for shape in ((8, 6), (6, 5)))
    w, scale = w * 300, np.float32(1e-5)
    product = x @ w
    squared = product * product
    tensors = {
        "x": x, "w": w, "scale": scale, "fc1_MatMul": product, "fc1_Square": squared, "fc1_Mul": squared * scale,
        "loss_Mean": (squared * scale).mean(),
    }  # fmt: skip
    (folder / "tf" / "dump").mkdir(parents=True)
    for name, array in tensors.items():
        np.save(folder / "tf" / "dump" / f"{name}.0.1700000000000000.npy", np.asarray(array, "f4"))
    if has_graph:
        (folder / "tf" / "graph").mkdir()
        (folder / "tf" / "graph" / "step.pbtxt").write_text(_GRAPH)
    return folder


def custom_step(folder: Path, *ops: tuple[str, str, str, Any]) -> Path:
    """Write a step of TensorFlow: x of 8 × 6 times w of 6 × 5, and ops by name, type, inputs, and their results."""
    random = np.random.default_rng(1)
    tensors = {"x": random.standard_normal((8, 6)), "w": random.standard_normal((6, 5)) * 300}
    tensors["fc1"] = tensors["x"] @ tensors["w"]
    lines = [*_GRAPH.splitlines()[1:3], f'node {{ name: "fc1" op: "MatMul" input: "x" input: "w" {_FLOAT} }}']
    lines += _GRAPH[_GRAPH.index('node { name: "Mean/axes"') : _GRAPH.index('node { name: "loss/Mean"')].splitlines()
    for name, op_type, inputs, result in ops:
        tensors[name] = result(tensors)
        given = "".join(f' input: "{each}"' for each in inputs.split())
        shape = 'attr { key: "_output_shapes" value { list { shape { } } } }' if np.ndim(tensors[name]) == 0 else ""
        lines.append(f'node {{ name: "{name}" op: "{op_type}"{given} {_FLOAT} {shape} }}')
    (folder / "tf" / "dump").mkdir(parents=True)
    for name, array in tensors.items():
        np.save(folder / "tf" / "dump" / f"{name.replace('/', '_')}.0.1700000000000000.npy", np.asarray(array, "f4"))
    (folder / "tf" / "graph").mkdir()
    (folder / "tf" / "graph" / "step.pbtxt").write_text("\n".join(lines))
    return folder


_MEAN = ("loss", "Mean", "y Mean/axes", lambda t: t["y"].mean())


def test_a_loss_that_is_not_emulated_is_not_known(tmp_path: Path) -> None:
    custom_step(
        tmp_path / "precision_data", ("y", "Square", "fc1", lambda t: t["fc1"] ** 2),
        ("loss", "MyLoss", "y", lambda t: t["y"].mean() / 1000),
    )  # fmt: skip
    run = tool("preflight", "--type", "bfloat16", "--json", "--fail", cwd=tmp_path, code=1).json
    (brain,) = run["types"]
    assert (brain["is_enough"], brain["with_kept"]["loss"], brain["kept"]) == (None, "nan", [])
    assert (run["ops"], run["emulated"], run["between"]) == (3, 2, ["loss"])
    told = " ".join(tool("preflight", "--type", "both", cwd=tmp_path, columns=400).out.split())
    assert "emulated: 2 of 3 ops; a change before loss is not seen behind" in told
    assert "not known what has to stay in float32: no unbroken path of emulated ops leads to the loss" in told
    assert "keep at least 1 of 3 ops in float32" in told, "the square overflows float16 whatever comes behind"
    assert "verified" not in told
    assert "no smaller set" not in told


def test_an_op_without_a_formula_is_kept_where_its_recorded_values_overflow(tmp_path: Path) -> None:
    custom_step(
        tmp_path / "precision_data", ("fc1/My", "MyOp", "fc1", lambda t: t["fc1"] ** 2),
        ("y", "Add", "fc1 fc1/My", lambda t: (t["fc1"] + t["fc1/My"]) * 1.0), _MEAN,
    )  # fmt: skip
    (half,) = tool("preflight", "--type", "float16", "--json", "--write", "out", cwd=tmp_path).json["types"]
    assert half["kept_not_emulated"] == ["fc1/My"]
    assert "fc1/My" in half["kept"]
    assert "MyOp" in json.loads((tmp_path / "out" / "modify_mixlist.json").read_text())["black-list"]["to-add"]
    told = " ".join(tool("preflight", "--type", "float16", cwd=tmp_path, columns=400).out.split())
    assert "fc1/My: kept for their recorded values, not emulated" in told
    assert "verified" not in told


def test_recorded_gradients_count_for_the_loss_scale(tmp_path: Path) -> None:
    custom_step(
        tmp_path / "precision_data", ("y", "Relu", "fc1", lambda t: np.maximum(t["fc1"], 0)), _MEAN,
        ("gradients/fc1_grad/My", "MyGrad", "fc1", lambda t: np.full((8, 5), 1e-9)),
    )  # fmt: skip
    run = tool("preflight", "--type", "float16", "--json", "--fail", cwd=tmp_path, code=1).json
    scale = run["types"][0]["scale"]
    assert 1 < scale["lowest"] <= scale["advised"] <= scale["highest"] < 2.0**50
    told = " ".join(tool("preflight", "--type", "float16", cwd=tmp_path, columns=400).out.split())
    assert "leads to any weight's gradient; relative error of the loss" in told


def test_ctrl_c_shows_the_best_set_and_writes_no_unverified_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark(tmp_path / "precision_data")
    monkeypatch.chdir(tmp_path)
    real = preflight_module._Forecaster._emulate

    def emulate(self: Any, chosen: Any, **options: Any) -> Any:
        if chosen:
            raise KeyboardInterrupt
        return real(self, chosen, **options)

    monkeypatch.setattr(preflight_module._Forecaster, "_emulate", emulate)
    assert main(["preflight", "--type", "float16", "--write", "out"]) == 130
    told = " ".join(capsys.readouterr().out.replace("┃", " ").split())
    assert "no file is written" in told
    assert "the search did not end" in told
    assert "0 of" not in told
    assert not (tmp_path / "out").exists()


def test_what_overflows_is_kept_and_the_files_keep_it(tmp_path: Path) -> None:
    data = benchmark(tmp_path / "precision_data")
    before = fingerprint(data / "tf")
    run = tool("preflight", "--json", "--fail", cwd=tmp_path, code=1)
    half, brain = run.json["types"]
    risks = {op["name"]: op["risks"] for op in half["ranges"]}
    assert risks["fc1/Square"] == ["overflow"]
    assert not any(op["risks"] for op in brain["ranges"])
    assert half["all_narrow"]["loss"] == "inf"
    assert half["is_enough"]
    assert {"fc1/Square", "fc1/Mul"} <= set(half["kept"]), "the factor takes what overflows"
    assert run.json["loss_name"] == "loss/Mean"
    shown = tool("preflight", "--type", "float16", cwd=tmp_path, columns=100)
    lines = shown.out.splitlines()
    assert lines[-2] == "next  write the files that keep these ops in float32:"
    words = shlex.split(lines[-1])
    assert words[-4:] == ["preflight", "--type", "float16", "--write"]
    told = tool(*words[1:], cwd=tmp_path, columns=100).out
    written = tmp_path / "precision_data" / "temp"
    lists = json.loads((written / "modify_mixlist.json").read_text())
    assert "Square" in lists["black-list"]["to-add"]
    _checked_file("customize_dtypes", str(written / "customize_dtypes.cfg"))
    assert "fc1/Square::InputDtype:float,OutputDtype:float" in (written / "customize_dtypes.cfg").read_text()
    assert "OpType::Square" in (written / "keep_dtype.cfg").read_text()
    assert "session_dump_config(config, action='mixlist', precision_mode='allow_mix_precision_fp16'" in told
    assert fingerprint(data / "tf") == before


def test_a_name_that_no_file_can_hold_costs_neither_the_result_nor_the_other_files(tmp_path: Path) -> None:
    data = benchmark(tmp_path / "precision_data")
    graph, name = data / "tf" / "graph" / "step.pbtxt", r"fc1/Square\nOpType::Conv2D"
    graph.write_text(graph.read_text().replace("fc1/Square", name))
    (old,) = (data / "tf" / "dump").glob("fc1_Square.*")
    old.rename(old.with_name(old.name.replace("fc1_Square", "fc1_Square\nOpType::Conv2D")))
    run = tool("preflight", "--type", "float16", "--write", "out", "--json", cwd=tmp_path)
    assert "Square\nOpType::Conv2D" in "".join(run.json["types"][0]["kept"])
    assert r"so long a line: 'fc1/Square\nOpType::Conv2D'" in run.err
    assert "Conv2D" not in "".join(Path(tmp_path / entry["file"]).read_text() for entry in run.json["files"])
    assert (tmp_path / "out" / "keep_dtype.cfg").is_file()


def test_files_of_two_types_lie_apart_and_are_named_by_path(tmp_path: Path) -> None:
    benchmark(tmp_path / "precision_data")
    bounds = ("--bound-loss", "1e-9")
    run = tool("preflight", *bounds, "--write", "out", "-o", "r/p.html", "--json", cwd=tmp_path)
    files = [entry["file"] for entry in run.json["files"]]
    assert {Path(file).parent.name for file in files} == {"float16", "bfloat16"}
    assert all((tmp_path / file).is_file() for file in files)
    assert (tmp_path / "r" / "p.html").is_file()
    assert not (tmp_path / "precision_data" / "temp" / "modify_mixlist.json").exists()


def test_a_dump_of_msprobe_is_read_at_any_level_and_a_rank_is_chosen(tmp_path: Path) -> None:
    for rank in (0, 1):
        dump_network(tmp_path / "gpu" / "step0" / f"rank{rank}", seed=rank)
    run = tool("preflight", "gpu", "--rank", "1", "--type", "bfloat16", "--json", cwd=tmp_path).json
    assert run["source"] == "gpu/step0/rank1"
    assert run["framework"] == "PyTorch"
    same = tool("preflight", "gpu/step0/rank1", "--type", "bfloat16", "--json", cwd=tmp_path).json
    assert same["types"][0]["all_narrow"] == run["types"][0]["all_narrow"]
    shown = tool("preflight", "gpu/step0/rank1", "--write", "out", cwd=tmp_path).out
    module = (tmp_path / "out" / "bfloat16" / "keep_in_float32.py").read_text()
    assert "'blocks.0.act'" in module
    assert "from keep_in_float32 import MODULES, keep_in_float32" in shown


@pytest.mark.parametrize("option", ["-o", "--write"])
def test_what_the_benchmark_consists_of_is_not_written_to(option: str, tmp_path: Path) -> None:
    data = benchmark(tmp_path / "precision_data")
    graph = data / "tf" / "graph" / "step.pbtxt"
    apart, link = tmp_path / "apart.pbtxt", tmp_path / "link.html"
    apart.write_bytes(graph.read_bytes())
    link.symlink_to(graph)
    for words in (["precision_data/tf/graph/step.pbtxt"], ["precision_data/tf/new/p.html"], ["link.html"]):
        assert "holds dumps" in tool("preflight", option, *words, cwd=tmp_path, code=2).err
        run = tool("preflight", "../precision_data", option, f"../{words[0]}", cwd=data, code=2)
        assert "holds dumps" in run.err, "the folder that is named is read, not the usual one"
    assert "is the graph itself" in tool("preflight", "-g", apart, option, apart, cwd=tmp_path, code=2).err
    assert graph.read_text() == apart.read_text() == _GRAPH
    assert "holds dumps" in tool("bisect", "--check", "true", "--write", graph, cwd=tmp_path, code=2).err
    assert "holds dumps" in tool("repro", "fc1", graph.parent / "new", cwd=tmp_path, code=2).err
    assert graph.read_text() == _GRAPH


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two ranks, a dump in float16, one of statistics, tensors without a graph, and no benchmark."""
    cwd = tmp_path_factory.mktemp("several")
    for rank in (0, 1):
        dump_network(cwd / "gpu" / "step0" / f"rank{rank}")
    dump_network(cwd / "half" / "step0" / "rank0", "float16")
    dump_network(cwd / "statistics" / "step0" / "rank0", task="statistics")
    benchmark(cwd / "bare", has_graph=False)
    (cwd / "precision_data" / "npu" / "debug_0" / "dump").mkdir(parents=True)
    return cwd


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpu"], "several steps or ranks were dumped: steps 0; ranks 0, 1"),
        (["gpu", "--rank", "7"], "no dump of rank 7; steps 0; ranks 0, 1"),
        (["half"], "not a float32 benchmark"),
        (["statistics"], "statistics only"),
        (["nowhere"], "no such folder"),
        ([], "tf/dump"),
        (["bare"], "no TensorFlow graph"),
        (["gpu/step0/rank0", "--bound-loss", "0"], "must be a relative error above 0"),
        (["gpu/step0/rank0", "--write", "precision_data/npu/debug_0/dump"], "holds dumps"),
        (["gpu/step0/rank0", "--write", "gpu/step0/rank0/new"], "holds dumps"),
        (["gpu/step0/rank0", "-o", "gpu/step0/rank0/p.html"], "holds dumps"),
    ],
)
def test_what_cannot_be_told_is_an_error_that_says_what_to_do(words: list[str], said: str, several: Path) -> None:
    run = tool("preflight", *words, cwd=several, code=2)
    assert said in run.text
    assert "hint: " in run.err


def test_the_help_tells_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    parser = load_command("preflight").parser(Session(Settings()))
    told = {action.option_strings[0]: str(action.help) for action in parser._actions if action.option_strings}
    for option, value in (
        ("--bound-loss", BOUND_LOSS), ("--bound-gradients", BOUND_GRADIENTS), ("--seconds", SECONDS)
    ):  # fmt: skip
        assert f"(default {value:g})" in told[option]


def test_a_module_with_calls_that_need_not_be_kept_stays_in_autocast() -> None:
    calls = {
        "Functional.gelu.0.forward": "blocks.0.act (GELU)", "Tensor.__add__.0.forward": "blocks.0 (Block)",
        "Functional.linear.0.forward": "blocks.0.up (Linear)", "Functional.linear.1.forward": "blocks.0.up2 (Linear)",
    }  # fmt: skip
    ops = tuple(
        Op(
            name=name,
            type="call",
            attrs={"module": module},
            recorded=RecordedOp(call=RecordedCall(name=name, call=call)),
        )
        for name, module in calls.items()
        if (call := parse_call_name(name)) is not None
    )
    kept = [*calls][:3]
    told = forecast(kept=tuple(kept), modules=tuple(calls[name] for name in kept))
    ranges = tuple(replace(told.ranges[0], name=name) for name in calls)
    step = OpenedStep(
        emulator=StepEmulator.__new__(StepEmulator), source="gpu", framework="PyTorch",
        file=GraphFile(path="gpu/dump.json", graphs=(Graph(name="step", ops=ops),)),
    )  # fmt: skip
    result = described(preflight_result(replace(told, ranges=ranges)), step)
    assert result.types[0].kept_modules == ("blocks.0.act (GELU)", "blocks.0.up (Linear)"), "up2 is below blocks.0"
    assert (result.source, result.graph) == ("gpu", "gpu/dump.json")


def test_from_python(tmp_path: Path) -> None:
    data = open_data(str(benchmark(tmp_path / "precision_data")))
    result = data.preflight(types=("float16",), bound_loss=0.5)
    assert (result.framework, result.bound_loss, len(result.types)) == ("TensorFlow", 0.5, 1)
    assert result.source.endswith("tf/dump")
    assert "fc1/Square" in result.types[0].kept


def test_json_has_no_nan() -> None:
    document = json.loads(preflight_json(preflight_result()))
    assert document["types"][0]["all_narrow"] == {"loss": "inf", "gradients": "nan", "not_finite": 3}
    assert document["not_emulated"]["dropout/Mask"]
