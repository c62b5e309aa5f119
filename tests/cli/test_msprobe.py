"""The commands on dumps of msprobe: what they name, advise and refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import check_golden, tool
from msprobe_files import dump_text, forward, write_leaf
from msprobe_network import CULPRIT, MODULE, SOURCE, data_folder, dump_network
from msprobe_python import run_torch
from terminal import Terminal

from precision_tool.lib.data.overview import RecordedOverview
from precision_tool.lib.data.settings import Settings
from precision_tool.lib.diagnose.plan import plan
from precision_tool.lib.diagnose.recorded_script import NoCodeError, call_code
from precision_tool.lib.diagnose.verdict_model import Cause, Proof, Suspect
from precision_tool.lib.messages import Message, render
from precision_tool.lib.model.msprobe import Literal, RecordedCall, RecordedTensor, SliceArgument, parse_call_name
from precision_tool.lib.session import Session


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of two steps with a wrong GELU, compared and judged."""
    folder = tmp_path_factory.mktemp("msprobe")
    data_folder(folder / "data", steps=2)
    tool("--data", "data", "ac", "-c", "-lt", "data/npu/step0", "-rt", "data/gpu/step0", cwd=folder)
    return folder


def commands(verdict: Mapping[str, Any]) -> list[str]:
    """The lines of the next steps."""
    return [step["line"] for step in verdict["next"]]


# --- the verdict: call, module, line; what to do ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "sides",
    [("-lt", "npu", "-rt", "gpu"), ("-lt", "npu/step0", "-rt", "gpu/step0"),
     ("-lt", "npu/step0/rank0", "-rt", "gpu/step0/rank0"), ("-lt", "npu/step0/rank0", "-rt", "gpu")],
)  # fmt: skip
def test_the_verdict_names_call_module_and_line_at_any_level(sides: tuple[str, ...], tmp_path: Path) -> None:
    data_folder(tmp_path)
    run = tool("ac", *sides, "--json", cwd=tmp_path)
    verdict = run.results[0]["verdict"]
    assert (verdict["culprit"], verdict["cause"]) == (CULPRIT, "kernel")
    assert (verdict["module"], verdict["source"]) == (MODULE, SOURCE)
    assert [(item["module"], item["source"]) for item in verdict["suspects"][:1]] == [(MODULE, SOURCE)]


def test_a_run_alone_is_judged_by_itself(tmp_path: Path) -> None:
    folder = dump_network(tmp_path / "dump" / "step0" / "rank0", "bfloat16", wrong=True).parents[1]
    for data in (folder, folder / "step0", folder / "step0" / "rank0"):
        run = tool("--data", data, "ac", cwd=tmp_path)
        assert MODULE in run.out
        assert SOURCE in run.out
        assert CULPRIT in run.out
        for word in ("Fusion", "tf_dump", "npu_tf_config", "customize_dtypes", "debug_0", "ge_proto"):
            assert word not in run.out + run.err, word


def test_the_first_of_several_steps_is_said_to_be_one(tmp_path: Path) -> None:
    data_folder(tmp_path, steps=2)
    run = tool("ac", "-lt", "npu", cwd=tmp_path)
    assert "ac --all -lt npu" in run.err


def test_what_to_do_is_lines_of_pytorch(data: Path) -> None:
    verdict = tool("--data", "data", "ac", "--json", cwd=data).results[0]["verdict"]
    lines = commands(verdict)
    assert lines[:2] == [f"ni {CULPRIT}", f"repro {CULPRIT}"]
    assert lines[-2:] == [f"whatif {CULPRIT}", "ac -c --since"]
    in_float32 = next(line for line in lines if "float()" in line)
    assert "model.get_submodule('blocks.0.act').float()" in in_float32
    assert 'torch.autocast("npu"' in in_float32
    for line in lines[2:-2]:
        compile(line, "advice", "exec")


@pytest.mark.slow
def test_a_module_by_advice_computes_in_float32(data: Path, tmp_path: Path) -> None:
    verdict = tool("--data", "data", "ac", "--json", cwd=data).results[0]["verdict"]
    line = next(line for line in commands(verdict) if "get_submodule" in line).replace('"npu"', '"cpu"')
    script = f"""
import torch
from torch import nn
model = nn.ModuleDict({{"blocks": nn.ModuleList([nn.ModuleDict({{"act": nn.GELU()}})])}})
seen = []
kernel = torch.nn.functional.gelu
torch.nn.functional.gelu = lambda x, **k: seen.append(x.dtype) or kernel(x, **k)
{line}
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = model["blocks"][0]["act"](torch.ones(3, dtype=torch.bfloat16))
print(seen, y.dtype)
"""
    assert run_torch(script, tmp_path).strip() == "[torch.float32] torch.bfloat16"


def test_next_steps_name_the_dumps_that_were_named(tmp_path: Path) -> None:
    data_folder(tmp_path / "there")
    shown = tool("ac", "-lt", "there/npu", "-rt", "there/gpu", cwd=tmp_path).out
    assert f"--data there/npu ni {CULPRIT}" in shown
    assert "ac -c --since -lt there/npu -rt there/gpu" in shown
    assert "ac --prove -lt there/npu -rt there/gpu" in shown
    named = ("-lt", "there/npu", "-rt", "there/gpu")
    assert "mending" in tool("ac", "--prove", *named, "--json", cwd=tmp_path).results[0]["verdict"]["evidence"]
    assert tool("--data", "there/npu", "ni", CULPRIT, "--json", cwd=tmp_path).json["ops"][0]["module"] == MODULE


def test_since_tells_that_it_is_mended(tmp_path: Path) -> None:
    data_folder(tmp_path / "before")
    data_folder(tmp_path / "after", wrong=False)
    tool("ac", "-lt", "before/npu", "-rt", "before/gpu", cwd=tmp_path)
    run = tool("ac", "-c", "--since", "-lt", "after/npu", "-rt", "after/gpu", "--json", cwd=tmp_path)
    assert (run.json["since"]["culprit"], run.json["since"]["mended"]) == (CULPRIT, True)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_screen_of_a_verdict(columns: int, tmp_path: Path) -> None:
    data_folder(tmp_path / "data")
    run = tool("--data", "data", "ac", "-c", cwd=tmp_path, columns=columns)
    check_golden(f"verdict_recorded_{columns}.txt", run, tmp_path)


def suspect(cause: Cause, culprit: str = CULPRIT, proof: Proof = Proof.RECOMPUTED) -> Suspect:
    return Suspect(culprit=culprit, cause=cause, proof=proof, confidence=0.9, number=0, op_type="Functional.gelu")


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
def test_advice_by_cause_is_of_the_framework(framework: str) -> None:
    codes = {}
    for cause in Cause:
        if cause in (Cause.NONE, Cause.LOSS_SCALE):
            continue
        steps = plan(suspect(cause), (suspect(cause),), True, framework=framework)
        assert steps[-1].command == ("ac", "-c", "--since")
        codes[cause] = "\n".join(step.code for step in steps)
        assert "npu_tf_config" not in codes[cause]
        assert "precision_mode" not in codes[cause]
    assert f"from msprobe.{framework} import seed_all" in codes[Cause.RANDOM]
    assert ("jit_compile" in codes[Cause.KERNEL]) == (framework == "pytorch")
    runs = suspect(Cause.RANDOM, proof=Proof.RUNS)
    deterministic = {"pytorch": "torch.use_deterministic_algorithms(True)",
                     "mindspore": "import mindspore\nmindspore.set_deterministic(True)"}  # fmt: skip
    assert plan(runs, (runs,), True, framework=framework)[0].code == deterministic[framework]
    runs = suspect(Cause.RANDOM, "Distributed.all_reduce.0.forward", Proof.RUNS)
    assert "HCCL_DETERMINISTIC" in plan(runs, (runs,), True, framework=framework)[0].code


def test_an_overflowing_gradient_lowers_the_loss_scale() -> None:
    gradient = suspect(Cause.OVERFLOW, "Functional.gelu.0.backward")
    assert "loss_scale" in str(plan(gradient, (gradient,), True, framework="pytorch")[0].do)


def test_mindspore_has_its_own_advice(tmp_path: Path) -> None:
    dump_network(tmp_path / "npu" / "step0" / "rank0", "float16", wrong=True, framework="mindspore")
    run = tool("--data", ".", "ac", "--json", cwd=tmp_path)
    verdict = run.json["verdict"]
    assert (verdict["culprit"], verdict["module"]) == (CULPRIT, MODULE)
    lines = "\n".join(commands(verdict))
    assert "to_float(mindspore.float32)" in lines
    assert "torch" not in lines
    tool("--data", ".", "repro", CULPRIT, "out", cwd=tmp_path)
    script = (tmp_path / "out" / "run.py").read_text()
    compile(script, "run.py", "exec")
    assert "mindspore.ops.gelu(input_0)" in script


def test_overflow_advises_lines_of_pytorch(tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        dump_network(tmp_path / "npu" / "step0" / "rank0", "float16", gain=6e4)
    advice = tool("--data", ".", "overflow", "--json", cwd=tmp_path).json["advice"]
    lines = [line for item in advice for line in item["lines"]]
    assert any("torch.autocast" in line for line in lines)
    assert not any("keep_dtype" in line or "npu_bridge" in line for line in lines)


def test_without_a_benchmark_one_of_msprobe_is_asked_for() -> None:
    steps = plan(None, (), False, framework="pytorch")
    assert [step.command for step in steps] == [("ac", "-c", "-rt", "benchmark_dump")]


# --- what was found ---------------------------------------------------------------------------------------------------


def test_the_overview_says_what_was_recorded(tmp_path: Path) -> None:
    data_folder(tmp_path / "data", steps=2)
    npu, golden = Session(Settings(data=tmp_path / "data")).overview().recorded
    assert isinstance(npu, RecordedOverview)
    assert golden is not None
    assert (npu.framework, npu.level, npu.task, npu.steps, npu.ranks) == ("pytorch", "mix", "tensor", (0, 1), (0,))
    assert (npu.entries, npu.tensors, golden.root) == (5, 13, str(tmp_path / "data" / "gpu"))
    with Terminal(tmp_path, "--data", "data", columns=120) as terminal:
        terminal.ready()
        shown = "\n".join(terminal.screen)
    for words in ("pytorch", "level mix", "task tensor", "step 0, 1", "rank 0", "5 entries", "13 tensor files"):
        assert words in shown, words


def test_modules_are_completed_and_found(data: Path) -> None:
    names = Session(Settings(data=data / "data")).names
    assert "blocks.0.act" in names.op_names()
    assert names.dump_file_names() == names.golden_file_names() == ()  # all entries lie in one file
    hits = tool("--data", "data", "ni", "blocks.0.act", "--json", cwd=data).json["ops"]
    assert [(hit["name"], hit["module"], hit["source_line"]) for hit in hits] == [(CULPRIT, MODULE, SOURCE)]
    listed = tool("--data", "data", "ls", "blocks.0.act", "--json", cwd=data).json["graphs"][0]["ops"]
    assert [(op["name"], op["module"], op["source"]) for op in listed] == [(CULPRIT, MODULE, SOURCE)]
    shown = tool("--data", "data", "ls", cwd=data, columns=140).out
    assert MODULE in shown
    assert "debug_0" not in shown
    assert "msprobe" not in shown.splitlines()[0]


def test_ni_shows_the_call_as_code(data: Path) -> None:
    op = tool("--data", "data", "ni", CULPRIT, "-a", "--json", cwd=data).json["ops"][0]
    assert op["attributes"]["recorded"] == "torch.nn.functional.gelu(input_0)"
    assert op["verdict"]["state"] == "wrong"
    shown = tool("--data", "data", "ni", "Functional.linear.0.forward.input.0", cwd=data).out
    assert "OriginOp" not in shown
    assert "debug_0" not in shown


def test_entries_are_listed_by_their_names(data: Path) -> None:
    dumps = tool("--data", "data", "ls", "dump", "--json", cwd=data).json["dumps"]
    assert [dump["step"] for dump in dumps] == ["0", "1"]
    names = [file["op"] for file in dumps[0]["files"]]
    assert CULPRIT in names
    assert not any(name.startswith("Module") for name in names)


def test_each_step_has_its_own_calls(data: Path) -> None:
    run = tool("--data", "data", "ac", "-c", "--json", cwd=data)
    assert [result["graph"].rpartition("step")[2][0] for result in run.results] == ["0", "1"]
    reports = tool("--data", "data", "random", "-rt", "data/gpu", "--json", cwd=data).json["pairs"]
    assert [report["graph"].rpartition("step")[2][0] for report in reports] == ["0", "1"]


def test_graphs_and_their_differences(data: Path) -> None:
    (graph,) = tool("--data", "data", "graphs", "--json", cwd=data).json["graphs"]
    assert graph["in_use"]
    assert not graph["error"]
    assert graph["matched"] == graph["dumped"] == 4
    found = tool("--data", "data", "graphs", "--find", "gelu", "--json", cwd=data).json
    assert CULPRIT in str(found)
    both = tool("--data", "data", "graphs", "diff", "--json", cwd=data).json
    named = tool("--data", "data", "graphs", "diff", "data/npu/step0", "data/gpu/step0", "--json", cwd=data).json
    assert both["similarity"]["left"].endswith("npu/step0/rank0/dump.json")
    assert both == named


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_files_of_tensors_are_shown_compared_and_decoded(data: Path) -> None:
    place = f"step0/rank0/dump_tensor_data/{CULPRIT}.output.0.pt"
    npu, gpu = f"data/npu/{place}", f"data/gpu/{place}"
    shown = tool("pt", npu, "--json", cwd=data).json
    assert "bfloat16" in str(shown)
    compared = tool("cp", npu, gpu, "--json", cwd=data).json
    by_op = tool("--data", "data", "cp", CULPRIT, "--json", cwd=data).json
    assert compared["metrics"] == by_op["metrics"]
    tool("dc", npu, "-o", "decoded", cwd=data)
    (decoded,) = (data / "decoded").glob("*.npy")
    assert np.all(np.load(decoded)[:, -3:] == 0)


# --- two runs, a reproduction -----------------------------------------------------------------------------------------


def test_random_names_what_computes_differently(tmp_path: Path) -> None:
    for name, wrong in (("one", False), ("two", True)):
        dump_network(tmp_path / name / "step0" / "rank0", wrong=wrong)
    (report,) = tool("random", "-lt", "one", "-rt", "two", "--json", cwd=tmp_path).json["pairs"]
    assert report["first"] == CULPRIT
    assert report["overwritten"] == []
    alone = tool("random", "-lt", "one", cwd=tmp_path, code=2)
    assert "-rt" in alone.err


@pytest.mark.slow
def test_a_reproduction_makes_the_call_again(data: Path, tmp_path: Path) -> None:
    run = tool("--data", "data", "repro", CULPRIT, tmp_path / "out", cwd=data)
    script = (tmp_path / "out" / "run.py").read_text()
    compile(script, "run.py", "exec")
    assert "run.py" in run.out
    assert "torch.nn.functional.gelu(input_0)" in script
    shown = run_torch(f"import runpy, sys\nsys.argv = ['run.py', 'cpu']\nsys.path.insert(0, '{tmp_path}/out')\n"
                      f"runpy.run_path('{tmp_path}/out/run.py', run_name='__main__')", tmp_path)  # fmt: skip
    assert " 0 of 96 elements are beyond" in shown
    here = np.load(tmp_path / "out" / "output_0.here.npy")
    assert np.any(here[:, -3:])


def test_names_cannot_get_out_of_the_comments_of_a_script(tmp_path: Path) -> None:
    folder = dump_network(tmp_path / "npu" / "step0" / "rank0", "bfloat16", wrong=True)
    stack = {"0": [[CULPRIT], ['File /x"""\nimport os;os.abort()\n.py, line 1, in f, \n x']]}
    (folder / "stack.json").write_text(json.dumps(stack))
    tool("--data", ".", "repro", CULPRIT, "out", cwd=tmp_path)
    script = (tmp_path / "out" / "run.py").read_text()
    compile(script, "run.py", "exec")
    assert "import os;os.abort()" not in script.splitlines()


def call(name: str, *inputs: Any, **kwargs: Any) -> RecordedCall:
    return RecordedCall(name=name, call=parse_call_name(name), inputs=inputs, kwargs=kwargs)


X = RecordedTensor(type="torch.Tensor", dtype="torch.float32", shape=(2,))


@pytest.mark.parametrize(
    ("recorded", "code"),
    [
        (call("Functional.layer_norm.0.forward", X, (2,), X, None, 1e-5),
         "torch.nn.functional.layer_norm(a, [2], a, None, 1e-05)"),
        (call("Tensor.__radd__.0.forward", X, 2), "2 + a"),
        (call("Tensor.__getitem__.0.forward", X, (SliceArgument(0, None, 2), Literal("ellipsis", "..."))),
         "a[(slice(0, None, 2), ...)]"),
        (call("Torch.full.0.forward", Literal("torch.Size", (2, 3)), float("inf"),
              dtype=Literal("torch.dtype", "torch.bfloat16")),
         "torch.full([2, 3], float('inf'), dtype=torch.bfloat16)"),
        (call("NPU.npu_rms_norm.0.forward", X, X, epsilon=1e-6), "torch_npu.npu_rms_norm(a, a, epsilon=1e-06)"),
        (call("Torch.cat.0.forward", (X, X), dim=0), "torch.cat([a, a], dim=0)"),
        (call("Torch.inv.0.forward", X), "torch.linalg.inv(a)"),
    ],
)  # fmt: skip
def test_calls_as_code(recorded: RecordedCall, code: str) -> None:
    assert call_code(recorded, "pytorch", lambda slot, tensor: "a") == code


@pytest.mark.parametrize(
    "recorded",
    [
        call("Module.a.Linear.forward.0", X), call("Distributed.all_reduce.0.forward", X),
        call("Torch.a;b.0.forward", X), call("Torch.to.0.forward", X, Literal("torch.dtype", "os.system('x')")),
        call("Torch.add.0.forward", X, {"a": 1}),
    ],
)  # fmt: skip
def test_what_is_no_code_is_not_written(recorded: RecordedCall) -> None:
    with pytest.raises(NoCodeError):
        call_code(recorded, "pytorch", lambda slot, tensor: "a")


# --- errors -----------------------------------------------------------------------------------------------------------


def advice(kind: str) -> str:
    """The beginning of the advice of an error."""
    return render(Message(f"error.{kind}.hint", own="", other="", file="dump.json")).partition(":")[0][:40]


def test_folders_without_their_index(tmp_path: Path) -> None:
    (tmp_path / "npu" / "step0" / "rank0" / "dump_tensor_data").mkdir(parents=True)
    dump_network(tmp_path / "other" / "step0" / "rank0")
    for arguments in (
        ("--data", ".", "ac", "-c"), ("ac", "-lt", "npu", "-rt", "other"), ("ac", "-lt", "other", "-rt", "npu"),
    ):  # fmt: skip
        run = tool(*arguments, cwd=tmp_path, code=2)
        assert advice("data.msprobe.no_dump_json") in run.err, arguments


def test_a_dump_without_values(tmp_path: Path) -> None:
    folder = write_leaf(tmp_path / "npu" / "step0" / "rank0", {CULPRIT: forward()})
    (folder / "dump.json").write_text(dump_text({CULPRIT: forward()}, task="structure"))
    dump_network(tmp_path / "gpu" / "step0" / "rank0")
    for arguments in (("ac", "-c"), ("ac", "-lt", "npu"), ("ac", "-lt", "gpu", "-rt", "npu")):
        run = tool("--data", ".", *arguments, cwd=tmp_path, code=2)
        assert advice("data.msprobe.structure") in run.err, arguments
    assert tool("--data", ".", "ls", "--json", cwd=tmp_path).json["graphs"][0]["total"] == 1


def test_two_frameworks(tmp_path: Path) -> None:
    dump_network(tmp_path / "npu" / "step0" / "rank0")
    dump_network(tmp_path / "gpu" / "step0" / "rank0", framework="mindspore")
    run = tool("--data", ".", "ac", "-c", cwd=tmp_path, code=2)
    assert advice("data.msprobe.two_frameworks") in run.err
    assert "mindspore" in run.err


def test_a_dump_of_ge_beside_a_dump_of_msprobe(tmp_path: Path) -> None:
    dump_network(tmp_path / "msprobe" / "step0" / "rank0")
    ge = tmp_path / "ge" / "20260101000000" / "0" / "net" / "1" / "0"
    ge.mkdir(parents=True)
    (ge / "Relu.relu.1.2.1700000000000000").write_bytes(b"x")
    for left, right in (("msprobe", "ge"), ("ge", "msprobe")):
        run = tool("ac", "-lt", left, "-rt", right, cwd=tmp_path, code=2)
        assert advice("data.one_side_msprobe") in run.err
