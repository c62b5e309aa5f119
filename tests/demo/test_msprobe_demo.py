"""The demo of msprobe's dumps: its program is run under msprobe, and records the same."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import tool
from msprobe_python import run_torch

from precision_tool.lib.compare.tensor_figures import open_reader
from precision_tool.lib.demo.msprobe_demo import SCRIPT, MsprobeTruth, generate_msprobe
from precision_tool.lib.io.msprobe_dump import read_calls, read_construct, read_dump_index, read_stacks
from precision_tool.lib.io.torch_file import read_torch
from precision_tool.lib.messages.errors import UsageError
from precision_tool.lib.model.msprobe import Argument, Literal, RecordedCall, RecordedTensor
from precision_tool.lib.ops.base import Input
from precision_tool.lib.ops.op_table import find
from precision_tool.lib.ops.torch_apis import torch_call

Array = npt.NDArray[Any]
LEAF = Path("step0", "rank0")
SIDES = {"npu": "bfloat16", "gpu": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo."""
    path = tmp_path_factory.mktemp("demo")
    generate_msprobe(path)
    return path


def values(path: Path) -> Array:
    with open_reader(read_torch(str(path))) as reader:
        out = np.empty(math.prod(reader.logical_shape), reader.dtype)
        reader.read_box(tuple((0, extent) for extent in reader.logical_shape), out)
    array: Array = out.reshape(reader.logical_shape)
    return array


def calls_of(leaf: Path) -> dict[str, RecordedCall]:
    calls = {}
    for call in read_calls(read_dump_index(str(leaf / "dump.json"))):
        assert isinstance(call, RecordedCall)
        calls[call.name] = call
    return calls


# --- what msprobe and torch make of it --------------------------------------------------------------------------------

#: Puts the demo's parameters and data in the place of those that are drawn, without a line more.
LOAD = """
for module, owner in model.named_modules():
    for name, parameter in owner.named_parameters(recurse=False):
        stored = f"{sys.argv[4]}/Module.{module}.{type(owner).__name__}.forward.0.parameters.{name}.pt"
        parameter.data.copy_(torch.load(stored, weights_only=True))
images.copy_(torch.load(f"{sys.argv[4]}/Functional.conv2d.0.forward.input.0.pt", weights_only=True))
labels.copy_(torch.load(f"{sys.argv[4]}/Functional.cross_entropy.0.forward.input.1.pt", weights_only=True))
"""


def program() -> str:
    """The demo's program, line by line, with the demo's values."""
    process = 'init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)'
    changes = {"init_process_group()": process, "foreach=False)": f"foreach=False); exec({LOAD!r})"}
    made = SCRIPT
    for old, new in changes.items():
        assert made.count(old) == 1
        made = made.replace(old, new)
    return made


def without_figures(value: Any) -> Any:
    if isinstance(value, dict):
        figures = ("Max", "Min", "Mean", "Norm")
        return {key: item is None if key in figures else without_figures(item) for key, item in value.items()}
    return [without_figures(item) for item in value] if isinstance(value, list) else value


def in_order(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_it_is_what_msprobe_records_of_the_program(side: str, tmp_path: Path) -> None:
    """Names, order, arguments, source lines, modules and files are the same, and values as far as they are rounded."""
    generate_msprobe(tmp_path / "demo", fault=False)
    ours = tmp_path / "demo" / side / LEAF
    tensors = ours / "dump_tensor_data"
    run_torch(program(), tmp_path, str(tmp_path / "real"), SIDES[side], "cpu", str(tensors), forked=False)
    real = tmp_path / "real" / LEAF
    texts = {
        leaf: {name: (leaf / f"{name}.json").read_text() for name in ("dump", "stack", "construct")}
        for leaf in (ours, real)
    }
    dumps = {leaf: json.loads(text["dump"]) for leaf, text in texts.items()}
    for dump in dumps.values():
        assert dump.pop("dump_data_dir").endswith("/step0/rank0/dump_tensor_data")
    assert in_order(without_figures(dumps[ours])) == in_order(without_figures(dumps[real]))
    assert in_order(json.loads(texts[ours]["construct"])) == in_order(json.loads(texts[real]["construct"]))
    packages = texts[real]["stack"].partition("/torch/nn/")[0].rpartition("File ")[2]
    stacks = texts[real]["stack"].replace(packages, "/usr/local/lib/python3.11/site-packages")
    assert stacks.replace(str(tmp_path / "script.py"), "/home/user/vit/train.py") == texts[ours]["stack"]
    names = sorted(path.name for path in tensors.iterdir())
    assert names == sorted(path.name for path in (real / "dump_tensor_data").iterdir())
    for name in names:
        tolerance = 1e-4 if side == "gpu" else 0.04
        if "addcdiv_" in name and side == "npu":
            tolerance = (
                0.3  # the first update of a parameter has the size of the rate, and the sign of a small gradient
            )
        a, b = (values(path / name).astype(np.float64) for path in (tensors, real / "dump_tensor_data"))
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), name


#: Loads every tensor of a leaf and compares it with its entry.
LOAD_ALL = """
import json, os, sys, torch
count = 0
def check(value, dtype=None):
    global count
    if isinstance(value, list):
        [check(item) for item in value]
    elif isinstance(value, dict) and "data_name" in value:
        tensor = torch.load(os.path.join(sys.argv[1], "dump_tensor_data", value["data_name"]), weights_only=True)
        assert str(tensor.dtype) == value["dtype"] and list(tensor.shape) == value["shape"], value
        assert tensor.is_contiguous() and tensor.device.type == "cpu"
        assert tensor.max().item() == value["Max"] and tensor.min().item() == value["Min"], value
        if value["Norm"] is not None:
            assert abs(tensor.double().norm().item() - abs(value["Norm"])) <= 0.01 * abs(value["Norm"]), value
            assert abs(tensor.double().mean().item() - value["Mean"]) <= 0.01 * abs(value["Mean"]) + 1e-9, value
        count += 1
    elif isinstance(value, dict):
        [check(item) for item in value.values()]
with open(os.path.join(sys.argv[1], "dump.json")) as file:
    check(json.load(file)["data"])
assert count == len(os.listdir(os.path.join(sys.argv[1], "dump_tensor_data")))
print(count)
"""


@pytest.mark.slow
def test_torch_loads_every_tensor(folder: Path, tmp_path: Path) -> None:
    for side in SIDES:
        assert int(run_torch(LOAD_ALL, tmp_path, str(folder / side / LEAF)).splitlines()[-1]) > 900


#: `msprobe compare` of two leaves into a folder.
COMPARE = """
import sys
from msprobe.msprobe import main
npu, gpu, out = sys.argv[1:]
sys.argv = ["msprobe", "compare", "-tp", f"{npu}/dump.json", "-gp", f"{gpu}/dump.json", "-o", out]
main()
"""


@pytest.mark.slow
def test_msprobe_compares_it(folder: Path, tmp_path: Path) -> None:
    run_torch(COMPARE, tmp_path, *(str(folder / side / LEAF) for side in SIDES), str(tmp_path / "out"))
    (result,) = (tmp_path / "out").glob("compare_result_*.csv")
    with result.open(newline="") as file:
        rows = {row["NPU Name"]: row for row in csv.DictReader(file)}
    assert len(rows) > 1000
    cosines = {name: float(rows[f"Functional.{name}"]["Cosine"]) for name in GELU_TENSORS}
    assert cosines.pop("gelu.1.forward.output.0") < 0.99
    assert min(cosines.values()) > 0.999


GELU_TENSORS = [f"gelu.{number}.forward.{slot}.0" for number in (0, 1) for slot in ("input", "output")]


# --- without torch ----------------------------------------------------------------------------------------------------


def argument(value: Argument, leaf: Path) -> Any:
    if isinstance(value, RecordedTensor):
        array = values(leaf / "dump_tensor_data" / value.data_name)
        dtype = value.dtype.removeprefix("torch.")
        return Input(array=array if dtype == "int64" else array.astype(np.float64), dtype=dtype)
    if isinstance(value, tuple):
        return [argument(item, leaf) for item in value]
    return value.value if isinstance(value, Literal) else value


@pytest.mark.parametrize("side", SIDES)
def test_one_api_alone_is_computed_wrong(side: str, folder: Path) -> None:
    """The formulas of the APIs, from the inputs that are recorded, give what is recorded but for the culprit."""
    leaf, wrong, seen = folder / side / LEAF, [], set()
    for call in calls_of(leaf).values():
        assert call.call is not None
        if call.call.is_module or call.call.direction != "forward":
            continue
        api = f"{call.call.prefix}.{call.call.name}"
        kwargs = {name: argument(value, leaf) for name, value in call.kwargs.items()}
        formula = torch_call(api, [argument(value, leaf) for value in call.inputs], kwargs)
        spec = find(formula.op_type)
        assert spec is not None
        first = next(iter(spec.function(formula)))
        (output,) = call.outputs
        got = argument(output, leaf).array
        assert first is not None
        unit = 2.0**-8 if side == "npu" else 2.0**-23
        if not np.allclose(got, first.array, rtol=unit, atol=unit * np.abs(first.array).max()):
            wrong.append(call.name)
        seen.add(api)
    assert wrong == (["Functional.gelu.1.forward"] if side == "npu" else [])
    assert len(seen) == 18


def test_the_truth_is_in_the_folder(folder: Path, tmp_path: Path) -> None:
    truth = generate_msprobe(tmp_path)
    leaf = truth.npu / LEAF
    assert truth.golden == tmp_path / "gpu"
    assert json.loads((tmp_path / "truth.json").read_text())["culprit"] == truth.culprit == "Functional.gelu.1.forward"
    assert (truth.ops, truth.tensors) == (len(calls_of(leaf)), len(list((leaf / "dump_tensor_data").iterdir())))
    parents = read_construct(str(leaf / "construct.json")).parents
    assert parents[truth.culprit] == f"Module.{truth.module}.GELU.forward.0"
    assert truth.source in read_stacks(str(leaf / "stack.json")).frames[truth.culprit]
    script = (tmp_path / "train.py").read_text()
    number = int(truth.source.partition("line ")[2].partition(",")[0])
    assert script.splitlines()[number - 1].strip() == truth.source.partition("\n ")[2]
    assert "self.act" in truth.source
    wrong = values(leaf / "dump_tensor_data" / f"{truth.culprit}.output.0.pt").astype(np.float64)
    assert not wrong[..., 112:].any()
    assert wrong[..., :112].any()


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_seed_makes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    generate_msprobe(tmp_path / "again")
    assert content(tmp_path / "again") == content(folder)
    generate_msprobe(tmp_path / "again", seed=2)  # an earlier demo is replaced
    other = content(tmp_path / "again")
    assert other.keys() == content(folder).keys()
    name = f"npu/{LEAF}/dump_tensor_data/Functional.gelu.0.forward.output.0.pt"
    assert other[name] != content(folder)[name]


def test_a_clean_demo_has_no_culprit(tmp_path: Path) -> None:
    truth: MsprobeTruth = generate_msprobe(tmp_path, fault=False)
    assert (truth.culprit, truth.module, truth.source) == ("", "", "")
    assert values(truth.npu / LEAF / "dump_tensor_data" / "Functional.gelu.1.forward.output.0.pt")[..., 112:].any()


def test_what_is_not_the_demos_stays(tmp_path: Path) -> None:
    truth = generate_msprobe(tmp_path)
    (truth.golden / LEAF / "dump_tensor_data" / "mine.pt").write_bytes(b"")
    with pytest.raises(UsageError) as caught:
        generate_msprobe(tmp_path)
    assert caught.value.kind == "demo.changed_since"


def test_the_command_finds_what_was_computed_wrong(tmp_path: Path) -> None:
    """And says in which line, as for the other demos; the folder is a data folder."""
    run = tool("demo", "x y", "--pytorch", "--seed", "3", cwd=tmp_path)
    data = tmp_path / "x y" / "precision_data"
    assert (data / "npu" / LEAF / "dump.json").is_file()
    assert json.loads((data / "truth.json").read_text())["seed"] == 3
    assert "--data 'x y/precision_data' ac -c" in run.text
    assert "--data 'x y/precision_data' preflight" in run.text
    assert run.text.endswith("truth of this demo: Functional.gelu.1.forward was computed incorrectly")
    since = tool("ac", "-c", "--since", "--json", cwd=tmp_path / "x y").json["since"]
    assert since["culprit"] == "Functional.gelu.1.forward"
    made = tool("demo", "z", "--pytorch", "--generate-only", cwd=tmp_path)
    assert len(made.out.splitlines()) == 1


@pytest.mark.parametrize("options", [["--fault", "nan"], ["--ops", "3"], ["--ranks", "2"], ["--h5"]])
def test_options_of_other_demos_are_refused(options: list[str], tmp_path: Path) -> None:
    bad = tool("demo", "y", "--pytorch", *options, cwd=tmp_path, code=2).err
    assert "does not go with" in bad or "not allowed with" in bad
    assert not (tmp_path / "y").exists()
