"""The files that keep ops in float32: what GE's parsers, and Python, take of them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from preflights import OPS, forecast
from torch_oracle import torch_python
from training_side import run_script

from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.msprobe import RecordedCall, RecordedOp, parse_call_name
from precision_tool.lib.training.mixlist import MIXLIST_NAME
from precision_tool.lib.training.switches import _checked_file
from precision_tool.lib.view.precision_files import (
    KEEP_DTYPE_NAME,
    MODULE_NAME,
    PrecisionFile,
    atc_lines,
    module_lines,
    outside_modules,
    precision_files,
    scale_lines,
    script_lines,
    unnameable,
)

FLOAT, INT = TensorDesc(dtype="float32"), TensorDesc(dtype="int32")


def ops() -> list[Op]:
    return [
        Op(name=name, type=kind, input_descs=(FLOAT, INT) if kind == "Mean" else (FLOAT,), output_descs=(FLOAT,))
        for name, kind in OPS.items()
    ]


def files_of(*kept: str, types: tuple[str, ...] = ()) -> dict[str, PrecisionFile]:
    made = precision_files(forecast(kept=kept, kept_types=types), ops(), "TensorFlow")
    return {file.option: file for file in made}


def test_types_are_named_as_ge_names_them_and_ops_by_name_where_others_of_their_type_are_not_kept() -> None:
    files = files_of("fc1/MatMul", "loss/Softmax", "loss/Mean", types=("Softmax", "Mean"))
    assert files["modify_mixlist"].name == MIXLIST_NAME
    lists = json.loads(files["modify_mixlist"].content)
    assert lists.pop("black-list") == {"to-add": ["SoftmaxV2", "ReduceMean", "ReduceMeanD"], "to-remove": []}
    assert all(changes == {"to-add": [], "to-remove": []} for changes in lists.values())
    lines = files["keep_dtype"].content.splitlines()
    assert lines == ["OpType::SoftmaxV2", "OpType::ReduceMean", "OpType::ReduceMeanD", "fc1/MatMul"]
    assert files["keep_dtype"].name == KEEP_DTYPE_NAME


def test_the_types_of_every_slot_stand_in_a_file_that_ge_takes(tmp_path: Path) -> None:
    content = files_of("loss/Mean", "fc1/MatMul")["customize_dtypes"].content
    assert content.splitlines() == [
        "fc1/MatMul::InputDtype:float,OutputDtype:float", "loss/Mean::InputDtype:float,int32,OutputDtype:float"
    ]  # fmt: skip
    (tmp_path / "c.cfg").write_text(content)
    _checked_file("customize_dtypes", str(tmp_path / "c.cfg"))


def test_products_in_float32_are_not_computed_in_hf32_and_functions_with_high_precision() -> None:
    files = files_of("fc1/MatMul", "loss/Softmax", "fc1/Relu", types=("Softmax",))
    assert files["op_precision_mode"].content.splitlines() == [
        "[ByOpType]", "SoftmaxV2=high_precision", "[ByNodeName]", "fc1/MatMul=enable_float_32_execution"
    ]  # fmt: skip
    assert "op_precision_mode" not in files_of("fc1/Relu"), "no kernel of a Relu computes otherwise"


def test_an_op_that_the_files_cannot_name_is_left_out_of_all_and_named() -> None:
    """A line break in a name would be a line of its own, and GE reads no line beyond 1,023 characters."""
    two_lines, many = "a\nOpType::Conv2D", Op(name="many", type="ConcatV2", input_descs=(FLOAT,) * 300)
    all_ops = [*ops(), Op(name=two_lines, type="Exp", input_descs=(FLOAT,), output_descs=(FLOAT,)), many,
               Op(name="typed", type="B\nad")]  # fmt: skip
    kept = forecast(kept=("fc1/MatMul", two_lines, "many", "typed"), kept_types=("Exp", "B\nad"))
    content = "".join(file.content for file in precision_files(kept, all_ops, "TensorFlow"))
    assert not any(name in content for name in ("Conv2D", "many", "typed", "ad\n"))
    assert "OpType::Exp\nfc1/MatMul\n" in content, "a type that is kept needs no name"
    assert unnameable(kept, all_ops, "TensorFlow") == [two_lines, "many", "typed"]
    assert unnameable(kept, all_ops, "PyTorch") == []


def test_paths_are_quoted_for_the_shell() -> None:
    (line,) = atc_lines("float16", {"keep_dtype": "/tmp/a b;rm -rf x/k.cfg"})
    assert "--keep_dtype=/tmp/a b;rm -rf x/k.cfg" in shlex.split(line)


def test_nothing_to_keep_makes_no_file() -> None:
    assert files_of() == {}


def test_the_action_finds_the_list_where_the_helper_looks_and_else_its_path_is_named() -> None:
    paths = {"modify_mixlist": "/d/m.json", "customize_dtypes": "/d/c.cfg", "keep_dtype": "/d/k.cfg"}
    lines = script_lines("bfloat16", paths, is_in_place=True)
    assert "action='mixlist', precision_mode='allow_mix_precision_bf16', customize_dtypes='/d/c.cfg')" in lines[1]
    assert not any("m.json" in line for line in lines[:-1])
    lines = script_lines("bfloat16", paths, is_in_place=False)
    assert not any("action" in line for line in lines)
    assert any("parameter_map['modify_mixlist']" in line and "/d/m.json" in line for line in lines)
    assert not any("k.cfg" in line for line in lines), "the adapter has no keep_dtype"


@pytest.mark.parametrize("framework", ["TensorFlow", "PyTorch", "MindSpore"])
def test_the_loss_scale_of_the_emulation_is_set_in_the_script(framework: str) -> None:
    lines = scale_lines(framework, 64.0, is_alone=True)
    assert "64.0" in lines[-1]
    compile("\n".join(lines), "script", "exec")
    assert scale_lines(framework, 1.0, is_alone=True) == []


def test_the_helper_is_imported_once() -> None:
    own = scale_lines("TensorFlow", 64.0, is_alone=False)
    imports = [line for line in (*script_lines("float16", {}, False), *own) if line.startswith("import")]
    assert imports == scale_lines("TensorFlow", 64.0, is_alone=True)[:1]


def recorded(name: str, module: str) -> Op:
    call = parse_call_name(name)
    recorded_op = RecordedOp(call=RecordedCall(name=name, call=call))
    return Op(name=name, type="torch.call", attrs={"module": module, "source": "train.py:9"}, recorded=recorded_op)


def calls() -> list[Op]:
    return [
        recorded("Functional.softmax.0.forward", "blocks.0.att (Attention)"),
        recorded("Functional.gelu.0.forward", "blocks.0.act (GELU)"),
        recorded("Torch.matmul.0.forward", ""),
    ]


def test_calls_of_no_kept_module_are_left_to_the_script() -> None:
    kept = forecast(kept=tuple(op.name for op in calls()[1:]), modules=("blocks.0.act (GELU)",))
    assert [op.name for op in outside_modules(kept, calls())] == ["Torch.matmul.0.forward"]


@pytest.mark.parametrize("framework", ["PyTorch", "MindSpore"])
def test_the_module_names_modules_by_their_paths(framework: str) -> None:
    kept = forecast(kept=("Functional.gelu.0.forward",), modules=("blocks.0.act (GELU)", "head (Linear)"))
    (file,) = precision_files(kept, calls(), framework)
    assert (file.name, file.option) == (MODULE_NAME, "")
    compile(file.content, file.name, "exec")
    listed = re.search(r"MODULES = (\(.*?\))", file.content, re.DOTALL)
    assert listed is not None
    assert eval(listed[1]) == ("blocks.0.act", "head")


def test_the_printed_lines_find_the_module_from_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    (folder / MODULE_NAME).write_text("MODULES = ('head',)\ndef keep_in_float32(model, names): return model, names\n")
    lines = ["model = 7", *module_lines("PyTorch", str(folder / MODULE_NAME)), "print(model)"]
    run = [sys.executable, "-c", "\n".join(lines)]
    assert subprocess.check_output(run, cwd=tmp_path, text=True) == "(7, ('head',))\n"


TORCH_SCRIPT = """
    import json, torch
    from keep_in_float32 import MODULES, keep_in_float32

    class Two(torch.nn.Module):
        def forward(self, x, mask, *, scale=None):
            seen.update(x=x, mask=mask, scale=scale)
            return {"y": [x * mask], "at": mask, "loss": x.mean()}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.two, self.lstm = torch.nn.Embedding(10, 8), Two(), torch.nn.LSTM(8, 8, batch_first=True)
            self.att, self.head = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.Linear(8, 2)
        def forward(self, at):
            x = self.emb(at)
            y = self.two(x, at[..., None], scale=x)
            h, state = self.lstm(y["y"][0])
            out, weights = self.att(h, h, h)
            return {"emb": x, "y": y["y"][0], "at": y["at"], "loss": y["loss"], "h": h, "c": state[1], "out": out,
                    "weights": weights, "head": self.head(out)}

    def name(each):
        return str(each.dtype).partition(".")[2]

    def types(net, is_on):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            return {key: name(each) for key, each in net(torch.tensor([[1, 2, 3]])).items()}

    seen = {}
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():  # as below: with gradients other kernels may add up in another order
        exact = net(torch.tensor([[1, 2, 3]]))["weights"]
    assert keep_in_float32(net, MODULES) is net
    results = [types(net, True), types(net, False)]
    inner = {key: name(each) for key, each in seen.items()}
    with torch.no_grad():
        same = torch.equal(net(torch.tensor([[1, 2, 3]]))["weights"], exact)
    halves = types(keep_in_float32(Net().bfloat16(), MODULES), False)
    print(json.dumps({"results": results, "inner": inner, "same": same, "halves": halves}))
"""


def test_named_modules_compute_in_float32_with_pytorch(tmp_path: Path) -> None:
    """Indices stay, keywords and nested outputs are cast, and no type changes where autocast is off."""
    kept = forecast(kept=("x",), modules=("emb (Embedding)", "two (Two)", "lstm (LSTM)", "att (MultiheadAttention)"))
    (file,) = precision_files(kept, calls(), "PyTorch")
    (tmp_path / file.name).write_text(file.content, "utf-8")
    run = run_script(torch_python(), TORCH_SCRIPT, tmp_path, paths=(tmp_path,)).document
    assert run["inner"] == {"x": "float32", "mask": "int64", "scale": "float32"}
    assert run["same"]
    on, off = run["results"]
    assert on.pop("loss") == "float32"  # float16 may not hold it
    assert on.pop("at") == off.pop("at") == run["halves"].pop("at") == "int64"
    assert set(on.values()) == {"bfloat16"}
    assert set(off.values()) == {"float32"}
    assert run["halves"].pop("loss") == "float32"
    assert set(run["halves"].values()) == {"bfloat16"}
