"""Every step that a verdict says to take runs as it is printed, once the words above it were followed."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import training_side
from builders import Array
from command_line import HANG, TOOL, environment, tool
from faults import narrowed, stored_transposed, zero_tail
from msprobe_calls import Calls
from msprobe_files import forward, tensor, write_leaf
from msprobe_network import data_folder, dump_network
from msprobe_python import run_torch
from npu_standins import CustomOp, NpuDevice, start_session
from one_cause_each import CAUSES
from opdebug_payloads import AIC, core_fields, new_payload, write_status
from tfdbg_files import content, tensor_proto, write_tensor
from tiny_network import Network, fused, layers, matmul, numbers, scaled_gradients, source

from precision_tool import tf_config
from precision_tool.lib.diagnose.plan import plan
from precision_tool.lib.diagnose.verdict_model import (
    Action,
    Cause,
    OpResult,
    Proof,
    SlotResult,
    State,
    Suspect,
)
from precision_tool.lib.io.fusion_passes import ALWAYS_ON
from precision_tool.lib.messages.catalogue import catalogue
from precision_tool.lib.model.graph import Op
from precision_tool.lib.ops.base import Kind
from precision_tool.lib.training import switches
from precision_tool.lib.view.verdict_messages import plan_steps

DATA = "precision_data"

work = training_side.work


# --- what the steps of a run are --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A step as it stands on the screen: its words, and the lines below them."""

    words: str
    lines: str

    @property
    def do(self) -> Action:
        """Which kind of step it is, by its words; the longest text that they begin with."""
        return max((do for do in Action if WORDS[do].match(self.words)), key=lambda do: len(WORDS[do].pattern))


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern for the start of a text of the catalogue, with anything for its placeholders."""
    return re.compile(".+".join(map(re.escape, re.split(r"\{[^{}]*\}", text))))


WORDS = {do: _pattern(catalogue("en")[f"step.{do}"]) for do in Action}


def printed_steps(shown: str) -> list[Printed]:
    """The steps at the end of what `ac` prints."""
    _, label, block = shown.rpartition("\nnext  ")
    assert label, shown
    steps: list[Printed] = []
    for line in textwrap.dedent(" " * len(label[1:]) + block).splitlines():
        if line.startswith(" "):
            steps[-1] = replace(steps[-1], lines=f"{steps[-1].lines}{line}\n")
        elif line:
            steps.append(Printed(words=line, lines=""))
    return [replace(step, lines=textwrap.dedent(step.lines).rstrip("\n")) for step in steps]


# --- a network for each kind ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A working folder, the command that is run in it, and the kinds of steps that it must print, among others.

    `follow` does what the words of a step say to do before its line.
    """

    make: Callable[[Path], object]
    kinds: tuple[Action, ...]
    command: tuple[str, ...] = ("ac", "-c")
    follow: Mapping[Action, Callable[[Path], object]] = field(default_factory=dict)


def of_network(network: Network, *kinds: Action, benchmark: bool = True, **more: Any) -> Case:
    return Case(make=lambda cwd: network.write(cwd / DATA, benchmark=benchmark), kinds=kinds, **more)


def hf32() -> Network:
    """One product in float32 that a matrix unit rounds to HF32."""
    parts = (source("a", numbers(24, 16)), source("b", numbers(16, 12, seed=1)), matmul("ab", "a", "b", "float32"))
    noise = 1 + np.random.default_rng(5).normal(size=(24, 12)) * 2.0**-13
    return Network(parts=parts).with_part("ab", wrong=lambda array: (array * noise).astype(array.dtype))


def overflowing_gradient() -> Network:
    scaled = replace(scaled_gradients(2e4), saturates=True)
    return scaled.with_part("loss_scale", golden=np.array(2e4, np.float32))


def secret_gradient() -> Network:
    """A gradient that nobody has a formula for, and that is infinite in float16."""
    name = "gradients/Relu"
    network = scaled_gradients(1.0).with_part(name, type="Secret", compute=lambda x: 6e4 * (1 + np.abs(x)))
    return network.with_part("loss_scale", golden=np.array(1, np.float32))


def overflow_status(cwd: Path) -> None:
    """That gradient with the status that the device wrote of it."""
    secret_gradient().write(cwd / DATA, benchmark=False)
    (file,) = (cwd / DATA / "npu").rglob("*.gradients_Relu.*")
    payload = new_payload(AIC, core_fields(task=int(file.name.split(".")[-3]), stream=0))
    write_status(file.parent, payload, timestamp=int(file.name.rsplit(".", 1)[1]) + 1)


def unused_switch_file(cwd: Path) -> None:
    """A pass is off in a file that the session was not given: found after a comparison, when it was dumped again."""
    name = "MatMulReluFusionPass"
    network = fused().with_part("one/MatMul", wrong=zero_tail)
    network.write(cwd / DATA)
    tool("ac", "-c", cwd=cwd)
    for side in ("npu", "tf"):
        shutil.rmtree(cwd / DATA / side)
    network.write(cwd / DATA)
    folder = cwd / DATA / "fusion"
    folder.mkdir()
    (folder / "fusion_switch.cfg").write_text(json.dumps({"Switch": {"GraphFusion": {name: "off"}}}))
    effect = {"graph_fusion": {name: {"effect_times": "1", "match_times": "1"}}}
    (folder / "fusion_result.json").write_text(json.dumps({"session_and_graph_id_0_0": effect}))


def next_number(array: Array) -> Array:
    return np.asarray(np.nextafter(array, array.dtype.type(np.inf)))


def two_runs(cwd: Path) -> None:
    """Two NPU runs of which the second computes an op otherwise, from the same inputs."""
    layers().write(cwd / DATA, benchmark=False)
    layers().with_part("two/Tanh", wrong=next_number).write(cwd / DATA, run="debug_1", benchmark=False)


def guilty_second_run(cwd: Path) -> None:
    layers().write(cwd / DATA)
    layers().with_part("one/MatMul", wrong=zero_tail).write(cwd / DATA, run="debug_1", benchmark=False)


def later_step(cwd: Path) -> None:
    CAUSES["weights"].write(cwd / DATA)
    (step,) = (cwd / DATA).glob("npu/debug_0/dump/[0-9]*/0/*/*/0")
    step.rename(step.with_name("7"))


def with_tfdbg(network: Network) -> Mapping[Action, Callable[[Path], object]]:
    """What tfdbg writes of the network's benchmark, where a step says to make it."""

    def dump(cwd: Path) -> None:
        network.write(cwd / "benchmark")
        for part in network.parts if not (cwd / DATA / "tf").exists() else ():
            name = part.originals[-1] if part.originals else part.name
            for file in (cwd / "benchmark" / "tf" / "dump").glob(f"{name.replace('/', '_')}.0.*.npy"):
                array = np.load(file)
                values = tensor_proto(array.dtype.name, array.shape, content(array.tobytes()))
                write_tensor(cwd / DATA / "tf" / "tf_debug" / "run_1_0", name, 0, 1, values)

    return {Action.MAKE_BENCHMARK: dump}


def passports(cwd: Path) -> None:
    """A clean verdict with passports of both sides that differ."""
    layers().write(cwd / DATA)
    for side, folder, seed in (("npu", "npu/debug_0", 1), ("benchmark", "tf", 2)):
        document = {
            "format": "precision_tool passport", "version": 1, "side": side, "versions": {}, "environment": {},
            "seeds": {"helper": seed}, "switches": {}, "optimizers": [], "batch": [], "left_out": {}, "variables": [],
        }  # fmt: skip
        (cwd / DATA / folder / "passport.json").write_text(json.dumps(document))


def figures(cwd: Path) -> None:
    """Statistics of a call that cannot have put out what they say."""
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    first = np.maximum(x, 0)
    entries = {
        "Functional.relu.0.forward": forward(tensor(x), output=[tensor(first)]),
        "Torch.tanh.0.forward": forward(tensor(first), output=[tensor(np.tanh(first) * 1.5)]),
        "Functional.relu.1.forward": forward(tensor(np.tanh(first) * 1.5), output=[tensor(np.tanh(first) * 1.5)]),
    }
    write_leaf(cwd / DATA / "npu" / "step0" / "rank0", entries)


def other_arguments(cwd: Path) -> None:
    for side, eps in (("npu", 0.5), ("gpu", 1e-5)):
        calls = Calls()
        calls.linear("b", calls.norm("n", calls.linear("a", calls.numbers(4, 16)), eps))
        calls.write(cwd / DATA / side / "step0" / "rank0")


def wrong_format(cwd: Path) -> None:
    """A recorded call whose output lies in memory in another order."""
    for side in ("npu", "gpu"):
        calls = Calls()
        calls.linear("b", calls.relu("r", calls.linear("a", calls.numbers(4, 16))))
        for name in ("Functional.relu.0.forward.output.0.pt", "Functional.linear.1.forward.input.0.pt"):
            calls.tensors[name] = stored_transposed(calls.tensors[name]) if side == "npu" else calls.tensors[name]
        calls.write(cwd / DATA / side / "step0" / "rank0")


CASES = {
    "kernel": of_network(
        layers().with_part("one/MatMul", wrong=narrowed), Action.LOOK_AT_OP, Action.REPORT_KERNEL,
        Action.HIGH_PRECISION, Action.FLOAT32_KERNEL, Action.WHAT_IF, Action.CHECK,
    ),
    "fusion": of_network(CAUSES["fusion"], Action.LOOK_AT_FUSED_OP, Action.SWITCH_PASS_OFF),
    "always on": of_network(
        CAUSES["fusion"].with_part("one/MatMul", passes=(min(ALWAYS_ON),)), Action.KEEP_FUSED_TYPE
    ),
    "switch file": Case(
        make=unused_switch_file, kinds=(Action.GIVE_SWITCH_FILE,), command=("ac", "-c", "--since")
    ),
    "cast": of_network(CAUSES["cast"], Action.LOOK_AT_CAST, Action.KEEP_TYPE),
    "overflow": of_network(CAUSES["overflow"], Action.SCALE_INPUTS),
    "gradient": of_network(overflowing_gradient(), Action.DIVIDE_LOSS_SCALE),
    "status": Case(make=overflow_status, kinds=(Action.LOWER_LOSS_SCALE, Action.CHECK), command=("ac",),
 follow=with_tfdbg(secret_gradient())),
    "loss scale": of_network(scaled_gradients(), Action.SAME_LOSS_SCALE),
    "layout": of_network(CAUSES["layout"], Action.REPORT_LAYOUT),
    "stomp": of_network(CAUSES["stomp"], Action.FIND_WRITER),
    "runs": Case(make=two_runs, kinds=(Action.DETERMINISTIC, Action.CHECK), follow=with_tfdbg(layers())),
    "random": of_network(
        CAUSES["random"], Action.SAME_SEEDS, Action.NO_DROPOUT, Action.RUN_AGAIN, Action.LOOK_AT_VALUES,
        follow={Action.RUN_AGAIN: lambda cwd: CAUSES["random"].write(cwd / DATA, run="debug_1", benchmark=False)},
    ),
    "input": of_network(CAUSES["input"], Action.SAME_BATCH),
    "weights": of_network(CAUSES["weights"], Action.SAME_CHECKPOINT),
    "later step": Case(make=later_step, kinds=(Action.EARLIER_STEP,)),
    "alone": of_network(
        layers(), Action.MAKE_BENCHMARK, benchmark=False, command=("ac",), follow=with_tfdbg(layers())
    ),
    "second run": Case(make=guilty_second_run, kinds=(Action.COMPARE_RUN,)),
    "clean": of_network(hf32(), Action.NO_HF32_ANYWHERE, Action.MAKE_PASSPORTS, Action.OTHER_STEP),
    "passports": Case(make=passports, kinds=(Action.MEND_PASSPORTS,)),
    "figures": Case(make=figures, kinds=(Action.COLLECT_TENSORS,), command=("ac",)),
    "arguments": Case(make=other_arguments, kinds=(Action.SAME_ARGUMENTS,)),
    "recorded": Case(
        make=lambda cwd: data_folder(cwd / DATA), kinds=(Action.COMPUTE_IN_FLOAT32, Action.OTHER_KERNEL, Action.CHECK)
    ),
    "format": Case(make=wrong_format, kinds=(Action.PLAIN_FORMATS,)),
    "recorded alone": Case(
        make=lambda cwd: dump_network(cwd / DATA / "npu" / "step0" / "rank0"), kinds=(Action.MAKE_BENCHMARK_DUMP,),
        command=("ac",),
        follow={Action.MAKE_BENCHMARK_DUMP: lambda cwd: dump_network(cwd / "benchmark_dump" / "step0" / "rank0")},
    ),
}  # fmt: skip

#: Of no small network a verdict says so, as products in HF32 are right: see `test_lines_of_other_frameworks_run`.
WITHOUT_CASE = {Action.NO_HF32}


#: Steps of nearly all cases, which take long: run where a case names them.
OFTEN = {Action.CHECK, Action.OTHER_STEP}


def test_every_kind_of_step_has_a_case() -> None:
    kinds = {do for case in CASES.values() for do in case.kinds}
    assert kinds == set(Action) - WITHOUT_CASE


@pytest.mark.parametrize("name", CASES)
def test_steps_run_as_they_are_printed(name: str, work: Path) -> None:
    case = CASES[name]
    case.make(work)
    steps = printed_steps(tool(*case.command, cwd=work, columns=500).out)
    assert {step.do for step in steps} >= set(case.kinds)
    for step in steps:
        if step.do in OFTEN and step.do not in case.kinds:
            continue
        if step.do in case.follow:
            case.follow[step.do](work)
        if step.lines.startswith("precision-tool "):
            assert "\n" not in step.lines
            tool(*shlex.split(step.lines)[1:], cwd=work, code=0)
        elif step.words.endswith("config.json:"):
            check_config(json.loads(step.lines), work)
        elif step.lines:
            run_python(step.lines)


def check_config(config: dict[str, Any], work: Path) -> None:
    """It has what msprobe asks for, and names entries of the dump."""
    task = config[config["task"]]
    assert config["dump_path"]
    assert config["level"] in ("L0", "L1", "mix")
    assert task["data_mode"] == ["all"]
    (dump,) = (work / DATA / "npu").rglob("dump.json")
    entries = json.loads(dump.read_text())["data"]
    assert task["list"]
    assert all(any(part in entry for entry in entries) for part in task["list"])


# --- lines of training scripts ----------------------------------------------------------------------------------------


class Strict:
    """Attributes that can be set only if they exist."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        assert name in vars(self), name
        vars(self)[name] = value


class Half:
    """A tensor in float16, or what became of it."""

    def __init__(self, dtype: str = "float16") -> None:
        self.dtype = dtype

    def float(self) -> Half:
        return Half("float32")

    def to(self, dtype: str) -> Half:
        return Half(dtype)


class Module:
    """A module of PyTorch, or a cell of MindSpore, that wants its input in float32."""

    def float(self) -> Module:
        return self

    def forward(self, x: Half) -> Half:
        assert x.dtype == "float32"
        return x

    def to_float(self, dtype: str) -> None:
        assert dtype == "float32"


@contextlib.contextmanager
def autocast(device: str, *, enabled: bool) -> Iterator[None]:
    assert (device, enabled) == ("npu", False)
    yield


@contextlib.contextmanager
def keep_dtype_scope() -> Iterator[None]:
    yield


def seed_all(seed: int, mode: bool, rm_dropout: bool) -> None:
    assert (seed, mode, rm_dropout) == (1, True, True)


class Optimizers(list[CustomOp]):
    """The repeated field `custom_optimizers`."""

    def add(self) -> CustomOp:
        self.append(CustomOp())
        return self[-1]


def pytorch() -> dict[str, Any]:
    """`torch` with torch_npu, as far as lines use it."""
    npu = Strict(
        matmul=Strict(allow_hf32=True), conv=Strict(allow_hf32=True), config=Strict(allow_internal_format=True),
        set_compile_mode=lambda jit_compile: None,
    )  # fmt: skip
    functional = SimpleNamespace(gelu=lambda x: x, linear=lambda x, weight, bias: x)
    return {
        "torch": SimpleNamespace(
            npu=npu, autocast=autocast, use_deterministic_algorithms=lambda mode: None,
            nn=SimpleNamespace(functional=functional),
        ),
        "model": SimpleNamespace(get_submodule={"blocks.0.act": Module()}.__getitem__),
        "x": Half(), "weight": Half(), "bias": Half(),
    }  # fmt: skip


def packages() -> dict[str, Any]:
    """Packages that lines import."""
    precision = Strict(matmul_allow_hf32=lambda value: None, conv_allow_hf32=lambda value: None)
    device = SimpleNamespace(ascend=SimpleNamespace(op_precision=precision))
    mindspore = {"device_context": device, "set_deterministic": lambda value: None, "float32": "float32"}
    return {
        "mindspore": mindspore, "msprobe": {}, "msprobe.pytorch": {"seed_all": seed_all},
        "msprobe.mindspore": {"seed_all": seed_all}, "npu_bridge": {},
        "npu_bridge.npu_init": {"npu_scope": SimpleNamespace(keep_dtype_scope=keep_dtype_scope)},
    }  # fmt: skip


def protobuf(name: str) -> Any:
    assert name == "core.protobuf.rewriter_config_pb2"
    return SimpleNamespace(RewriterConfig=SimpleNamespace(DEFAULT=0, ON=1, OFF=2))


def run_python(lines: str) -> dict[str, Any]:
    """Run lines in a script that has called `npu_tf_config` already, and has what its framework gives it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, content in packages().items():
            module = ModuleType(name)
            vars(module).update(content)
            patch.setitem(sys.modules, name, module)
        patch.setattr(switches, "tensorflow_module", protobuf)
        options = SimpleNamespace(custom_optimizers=Optimizers(), remapping=0)
        config = SimpleNamespace(graph_options=SimpleNamespace(rewrite_options=options))
        script = {
            "npu_tf_config": tf_config,
            "config": tf_config.session_dump_config(config, precision_mode_v2="mixed_float16"),
            "sess": SimpleNamespace(variables=[]), "feed_dict": {"x": np.ones(2)}, "NPURunConfig": SimpleNamespace,
            "npu_device": NpuDevice(), "net": SimpleNamespace(cells_and_names=lambda: [("blocks.0.act", Module())]),
            **pytorch(),
        }  # fmt: skip
        exec(compile(lines, "train.py", "exec"), script)
        (op,) = options.custom_optimizers
        assert start_session(op)["precision_mode_v2"] == "mixed_float16", "what the script's own call says still holds"
    return script


def test_what_lines_set_is_set() -> None:
    """The stand-ins would not let a line pass that sets nothing."""
    with pytest.raises(AssertionError, match="allow_hf23"):
        run_python("torch.npu.matmul.allow_hf23 = False")
    with pytest.raises(ModuleNotFoundError):
        run_python("import npu_bridge.npu_unit")


#: Causes, proofs, names and types of calls, and their errors, that decide on lines for a framework.
OTHERS = [
    (Cause.KERNEL, Proof.RECOMPUTED, "Functional.linear.0.forward", 2.0**-12),
    (Cause.KERNEL, Proof.RECOMPUTED, "Functional.conv2d.0.forward", 2.0**-12),
    (Cause.KERNEL, Proof.RECOMPUTED, "Functional.linear.0.forward", 0.5),
    (Cause.KERNEL, Proof.RECOMPUTED, "Distributed.all_reduce.0.forward", 0.5),
    (Cause.RANDOM, Proof.RUNS, "Functional.linear.0.forward", 0.5),
    (Cause.RANDOM, Proof.RUNS, "Distributed.all_reduce.0.forward", 0.5),
    (Cause.RANDOM, Proof.SOURCE, "Functional.dropout.0.forward", 0.5),
    (Cause.LAYOUT, Proof.RECOMPUTED, "Functional.linear.0.forward", 0.5),
    (None, Proof.RECOMPUTED, "Functional.linear.0.forward", 2.0**-12),
]


@pytest.mark.parametrize("framework", ["", "pytorch", "mindspore"])
@pytest.mark.parametrize(("cause", "proof", "name", "error"), OTHERS)
def test_lines_of_other_frameworks_run(
    framework: str, cause: Cause | None, proof: Proof, name: str, error: float, work: Path
) -> None:
    slot = SlotResult(
        slot=0, dtype="float32", size=100, kind=Kind.MATRIX, own=error, rounding=1e-7, worst=100.0, slack=8.0, beyond=9,
        exact_share=0.1,
    )  # fmt: skip
    state = State.RIGHT if cause is None else State.WRONG
    result = OpResult(op=Op(name=name, type=name.rsplit(".", 2)[0]), number=0, state=state, slots=(slot,))
    suspect = Suspect(
        culprit=name, cause=cause or Cause.NONE, proof=proof, confidence=0.9, number=0, op_type=result.op.type,
        result=result,
    )  # fmt: skip
    steps = plan(suspect if cause else None, (suspect,) if cause else (), True, (result,), framework)
    lines = [step.line for step in plan_steps(steps) if step.file]
    for line in lines:
        run_python(line)
    if error < 0.5:
        assert any("hf32" in line for line in lines)


TORCH = """
import json, sys, types
import torch
torch.utils.rename_privateuse1_backend("npu")
npu = types.ModuleType("npu")
npu.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
torch._register_device_module("npu", npu)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.nn.GELU()
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block()])
model = Network()
x = torch.linspace(-2, 2, 48, dtype=torch.bfloat16).reshape(6, 8)
for lines in json.loads(sys.argv[1]):
    exec(compile(lines, "train.py", "exec"))
seen = []
inside = torch.nn.functional.gelu
torch.nn.functional.gelu = lambda x, **how: seen.append(x.dtype) or inside(x, **how)
assert model.blocks[0].act(x).dtype == torch.bfloat16
assert seen == [torch.float32], seen
print(y.dtype)
"""


@pytest.mark.slow
def test_lines_of_pytorch_in_pytorch(tmp_path: Path) -> None:
    """A module that computes in float32, and a call of a function."""
    data_folder(tmp_path / DATA)
    lines = [in_float32(tmp_path)]
    (construct,) = (tmp_path / DATA / "npu").rglob("construct.json")
    construct.unlink()
    lines.append(in_float32(tmp_path))
    assert ["get_submodule" in line for line in lines] == [True, False]
    assert run_torch(TORCH, tmp_path, json.dumps(lines)).split() == ["torch.bfloat16"]


def in_float32(cwd: Path) -> str:
    steps = printed_steps(tool("ac", "-c", cwd=cwd, columns=500).out)
    (lines,) = (step.lines for step in steps if step.do is Action.COMPUTE_IN_FLOAT32)
    return lines


# --- steps of other screens, and at the prompt ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demo", "command"),
    [
        (("--h5", "."), ("ac", "-c")),
        (("--ranks", "2", "--steps", "2", "."), ("ac", "--all")),
        (("--fault", "fusion", "."), ("fusion", "blame")),
    ],
    ids=["h5", "study", "blame"],
)
def test_steps_of_other_screens_run(demo: tuple[str, ...], command: tuple[str, ...], tmp_path: Path) -> None:
    tool("demo", "--generate-only", *demo, cwd=tmp_path)
    shown = tool(*command, cwd=tmp_path, columns=500).out
    lines = re.findall(r"^ +(precision-tool .*)$", shown[shown.rindex("\nnext ") :], re.MULTILINE)
    assert lines
    for line in lines:
        tool(*shlex.split(line)[1:], cwd=tmp_path, code=0)


def test_steps_at_the_prompt_run_at_the_prompt(tmp_path: Path) -> None:
    """They begin with the command's word."""
    layers().with_part("one/MatMul", wrong=narrowed).write(tmp_path / DATA)
    steps = printed_steps(at_the_prompt(tmp_path, "ac -c"))
    lines = [step.lines for step in steps if not step.lines.startswith("config = ")]
    assert lines == ["ni one/MatMul", "repro one/MatMul", "whatif one/MatMul", "ac -c --since"]
    assert "still computes incorrectly" in " ".join(at_the_prompt(tmp_path, *lines).split())


def at_the_prompt(cwd: Path, *lines: str) -> str:
    """What the prompt prints for lines of standard input, none of which is an error."""
    run = subprocess.run(
        TOOL, input="\n".join(lines), cwd=cwd, env=environment(cwd, 500), capture_output=True, text=True, check=True,
        timeout=HANG,
    )  # fmt: skip
    assert "error: " not in run.stderr
    return run.stdout
