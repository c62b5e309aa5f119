"""The files that keep ops in float32: what GE's parsers, and Python, take of them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from preflights import OPS, forecast

from precision_tool.lib.model.graph import Op, TensorDesc
from precision_tool.lib.model.msprobe import RecordedCall, RecordedOp, parse_call_name
from precision_tool.lib.training.mixlist import MIXLIST_NAME
from precision_tool.lib.training.switches import _checked_file
from precision_tool.lib.view.precision_files import (
    KEEP_DTYPE_NAME,
    MODULE_NAME,
    PrecisionFile,
    atc_lines,
    outside_modules,
    precision_files,
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
    assert lists == {"black-list": {"to-add": ["SoftmaxV2", "ReduceMean", "ReduceMeanD"]}}
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


class Tensor:
    """A tensor of a type; `torch` below has no more of it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def is_floating_point(self) -> bool:
        return self.dtype != "int64"

    def float(self) -> Tensor:
        return Tensor("float32")


class Torch(ModuleType):
    """What the module takes of PyTorch."""

    Tensor = Tensor
    autocasts: ClassVar[list[tuple[str, bool]]] = []

    @contextmanager
    def autocast(self, device: str, enabled: bool = True) -> Iterator[None]:
        self.autocasts.append((device, enabled))
        yield
        self.autocasts.append((device, not enabled))


class Gelu:
    """A module that keeps what it is given, and whether autocast was on."""

    def float(self) -> Gelu:
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs, Torch.autocasts[-1]


def test_named_modules_get_float32_and_no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = precision_files(forecast(kept=("x",), modules=("act (GELU)",)), calls(), "PyTorch")
    monkeypatch.setitem(sys.modules, "torch", Torch("torch"))
    module: dict[str, Any] = {}
    exec(file.content, module)
    act = Gelu()
    model = SimpleNamespace(get_submodule={"act": act}.__getitem__)
    assert module["keep_in_float32"](model, "cpu") is model
    args, kwargs, autocast = act.forward([Tensor("float16")], 3, mask=Tensor("int64"))
    assert (args[0][0].dtype, args[1], kwargs["mask"].dtype) == ("float32", 3, "int64")
    assert autocast == ("cpu", False)
